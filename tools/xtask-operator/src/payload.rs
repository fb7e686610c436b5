//! `cargo xtask payload`: makes the directory with everything that a host needs.

mod given;
mod go;
mod parts;
mod take;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use api::{
    host,
    payload::{File, MANIFEST},
};
use remote::payload::Payload;
use testbed::payload::{Content, Entry, LEVEL_RELEASE};

use crate::sign::Signer;
use parts::{MINORS, PARTS, Part, Source};

/// Makes the payload: the programs and static files that hosts need, with their manifest.
///
/// Programs in Go modules are built, at the versions pinned in tools/xtask/payload. Others are taken from a folder. Programs that
/// are in neither are left out, and so are the services that need them.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Directory to write; created if it does not exist.
    #[arg(long, value_name = "DIR", required = true)]
    out: Option<PathBuf>,
    /// Folder with finished programs, such as csi-proxy.exe. They take precedence over programs that can be built. Its directory ccg has
    /// plugins of Container Credential Guard.
    #[arg(long, value_name = "FOLDER")]
    from: Option<PathBuf>,
    /// Minor version of Kubernetes whose programs are built, a comma-separated list, or all. Each of several versions has its payload in a
    /// directory with its name, such as DIR/1.35.
    #[arg(long, value_name = "MINORS", value_delimiter = ',', default_value = MINORS[0], value_parser = clap::builder::PossibleValuesParser::new([ALL].into_iter().chain(MINORS)))]
    kubernetes: Vec<String>,
    /// Path of a finished kubelet.exe.
    #[arg(long, value_name = "PATH")]
    kubelet: Option<PathBuf>,
    /// Version of the finished kubelet.exe, such as v1.35.2. The operator refuses a kubelet that the API server does not support.
    #[arg(long, value_name = "VERSION")]
    kubelet_version: Option<String>,
    /// Make only these parts, such as kubelet,kube-log-runner.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    #[command(flatten)]
    signer: Signer,
    /// Compression level of zstd, 1 to 22.
    #[arg(long, default_value_t = LEVEL_RELEASE, value_parser = clap::value_parser!(i32).range(1..=22))]
    level: i32,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Checks every file of a payload against its manifest.
    Verify {
        /// Directory of the payload.
        dir: PathBuf,
    },
    Take(take::Args),
}

/// Argument for all minor versions whose programs can be built.
const ALL: &str = "all";

/// Minor versions of Kubernetes that a payload can have, such as 1.36. The first is the default.
pub(crate) const KUBERNETES: [&str; MINORS.len()] = MINORS;

/// First minor version of Kubernetes in OpenShift 5: that of 5.0, which is also called 4.23.
pub(crate) const OPENSHIFT_5_FIRST_MINOR: u32 = 36;
/// Difference between minor versions: OpenShift 4.N has the minor version N + 13 of Kubernetes.
pub(crate) const OPENSHIFT_4_MINOR_OFFSET: u32 = 13;

/// Returns the number of a minor version of Kubernetes, such as 36 for 1.36.
pub(crate) fn minor(version: &str) -> Result<u32> {
    let minor =
        version.strip_prefix("1.").with_context(|| format!("{version} is not a minor version of Kubernetes"))?;
    minor.parse().with_context(|| format!("{version} is not a minor version of Kubernetes"))
}

pub(crate) fn run(args: Args) -> Result<()> {
    match (&args.command, &args.out) {
        (Some(Command::Verify { dir }), _) => verify(dir),
        (Some(Command::Take(args)), _) => take::run(args),
        (None, Some(out)) => make_all(&args, out),
        (None, None) => bail!("set the directory to write to with --out"),
    }
}

/// Returns the requested minor versions, each once, the newest first.
fn minors(asked: &[String]) -> Vec<&'static str> {
    MINORS.into_iter().filter(|minor| asked.iter().any(|one| one == minor || one == ALL)).collect()
}

/// Makes one payload, or one for each minor version. Fails if another run has left the other kind in the directory: a single payload hides
/// those of minor versions.
fn make_all(args: &Args, out: &Path) -> Result<()> {
    let remedy = "remove it, or name another directory with --out";
    if let [minor] = minors(&args.kubernetes)[..] {
        let other = MINORS.map(|minor| out.join(minor).join(MANIFEST)).into_iter().find(|path| path.is_file());
        ensure!(other.is_none(), "{} has payloads of several minor versions of Kubernetes: {remedy}", out.display());
        return make(args, minor, out);
    }
    ensure!(
        !out.join(MANIFEST).is_file(),
        "{} has a payload without a minor version of Kubernetes: {remedy}",
        out.display()
    );
    let mut kubelets = PARTS.iter().filter(|part| part.name == "kubelet");
    if let Some(given) = kubelets.find_map(|part| file_of(part, args).transpose()) {
        bail!("{} is for one minor version of Kubernetes: set only this version with --kubernetes", given?.display());
    }
    for minor in minors(&args.kubernetes) {
        println!("making the payload for Kubernetes {minor}");
        make(args, minor, &out.join(minor))?;
    }
    Ok(())
}

/// Makes the payload for a minor version of Kubernetes.
fn make(args: &Args, kubernetes: &str, out: &Path) -> Result<()> {
    let parts = chosen(&args.only)?;
    let signed = tempfile::tempdir()?;
    let file = |path: PathBuf, name: &str| args.signer.signed(path, signed.path().join(name)).map(Content::File);
    let mut entries = Vec::new();
    let mut missing = Vec::new();
    for (n, part) in parts.iter().enumerate() {
        let step = format!("[{}/{}] {}", n + 1, parts.len(), part.name);
        let given = file_of(part, args)?;
        let (content, version) = match (&given, &part.source) {
            (Some(path), _) => {
                println!("{step}: taking {}", path.display());
                given::check(part.name, path)?;
                (file(path.clone(), part.file_name())?, args.kubelet_version.clone().filter(|_| part.name == "kubelet"))
            }
            (None, Source::Go(program)) => {
                let (path, version) = go::build(program, kubernetes, part.file_name(), &step)?;
                (file(path, part.file_name())?, Some(version))
            }
            (None, Source::Static(text)) => (Content::Bytes((*text).into()), None),
            (None, Source::Folder { .. }) => {
                missing.push(part);
                continue;
            }
        };
        let entry = Entry::with(part.destination, content).services(part.services).platforms(part.platforms);
        entries.push(entry.version(version.as_deref()));
    }
    entries.extend(plugins(args, &file)?);

    println!("compressing {} files at level {}", entries.len(), args.level);
    let manifest = testbed::payload::write_with(out, &entries, args.level, &|file| println!("  {}", sizes(file)))?;
    let total: u64 = manifest.files.iter().map(|f| f.compressed_size).sum();
    println!("{}: {} files, {} compressed", out.display(), manifest.files.len(), mib(total));
    for part in missing {
        if let Source::Folder { without } = part.source {
            println!(
                "without {}: {without} (to add it, put it into a folder, and set the folder with --from)",
                part.file_name()
            );
        }
    }
    Ok(())
}

/// Returns the plugins of Container Credential Guard, from the directory `ccg` of the user's folder.
fn plugins(args: &Args, take: &dyn Fn(PathBuf, &str) -> Result<Content>) -> Result<Vec<Entry>> {
    let Some(folder) = args.from.as_ref().map(|from| from.join("ccg")).filter(|ccg| ccg.is_dir()) else {
        return Ok(Vec::new());
    };
    let mut entries = Vec::new();
    for file in std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = file?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        ensure!(
            path.is_file() && is_library(&name),
            "{} is not a library that a pool can use: its name must have 5 to 64 letters, digits, -, _ and ., and end with .dll",
            path.display()
        );
        println!("taking the plugin {}", path.display());
        let destination = format!(r"{}\{name}", host::path::CREDENTIAL_PLUGINS);
        entries.push(Entry::with(&destination, take(path, &name)?));
    }
    Ok(entries)
}

/// Reports whether `template.spec.gmsa.plugin.file` accepts this name.
fn is_library(name: &str) -> bool {
    (5..=64).contains(&name.len())
        && name.strip_suffix(".dll").is_some()
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

/// Returns the parts with these names, or all.
fn chosen(only: &[String]) -> Result<Vec<&'static Part>> {
    let names: BTreeSet<&str> = only.iter().map(String::as_str).collect();
    let known: Vec<&str> = PARTS.iter().map(|p| p.name).collect();
    for name in &names {
        ensure!(known.contains(name), "the payload does not have a part {name:?}; its parts are {}", known.join(", "));
    }
    Ok(PARTS.iter().filter(|p| names.is_empty() || names.contains(p.name)).collect())
}

/// Returns the file that the user provides for a part, if any.
fn file_of(part: &Part, args: &Args) -> Result<Option<PathBuf>> {
    if let (true, Some(kubelet)) = (part.name == "kubelet", &args.kubelet) {
        ensure!(kubelet.is_file(), "{} is not a file", kubelet.display());
        return Ok(Some(kubelet.clone()));
    }
    let Some(folder) = &args.from else { return Ok(None) };
    ensure!(folder.is_dir(), "{} is not a folder", folder.display());
    Ok(Some(folder.join(part.file_name())).filter(|path| path.is_file()))
}

fn verify(dir: &Path) -> Result<()> {
    let payload = Payload::open(dir).with_context(|| format!("{} is not a usable payload", dir.display()))?;
    let files: Vec<&File> = payload.manifests().flat_map(|manifest| &manifest.files).collect();
    let mut bad = 0;
    for file in &files {
        match payload.verify(&file.sha256) {
            Ok(()) => println!("good  {}", sizes(file)),
            Err(error) => {
                bad += 1;
                println!("BAD   {error}");
            }
        }
    }
    ensure!(bad == 0, "{bad} of {} files are bad", files.len());
    println!("{} files are good", files.len());
    Ok(())
}

fn sizes(file: &File) -> String {
    format!("{:<46} {:>10} -> {:>10}  {}", file.path, mib(file.size), mib(file.compressed_size), &file.sha256[..16])
}

#[expect(clippy::cast_precision_loss, reason = "for people to read")]
fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;
    use api::{TemplateSpec, payload::Manifest};
    use clap::Parser;
    use wnp_core::render::{Cluster, LogSettings, Settings, program, render};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn parts_can_be_chosen() {
        assert_eq!(chosen(&[]).unwrap().len(), PARTS.len());
        assert_eq!(chosen(&["kubelet".into(), "containerd".into()]).unwrap().len(), 2);
        assert!(chosen(&["kublet".into()]).err().unwrap().to_string().contains("kubelet"));
    }

    /// Returns the minor versions that a command line requests. `None` if it is refused.
    fn requested_by(line: &str) -> Option<Vec<&'static str>> {
        let cli = Cli::try_parse_from(line.split_whitespace()).ok()?;
        Some(minors(&cli.args.kubernetes))
    }

    #[test]
    fn arguments_select_minor_versions_of_kubernetes() {
        for (line, expected) in [
            ("x --out d", Some(&MINORS[..1])),
            ("x --out d --from f --kubelet k --only a,b --level 3", Some(&MINORS[..1])),
            ("x --out d --kubernetes 1.34", Some(&["1.34"])),
            ("x --out d --kubernetes 1.33,1.36,1.33", Some(&["1.36", "1.33"])),
            ("x --out d --kubernetes all", Some(&MINORS)),
            ("x --out d --kubernetes 1.36,1.32", None),
            ("x --out d --level 0", None),
            ("x", None),
        ] {
            assert_eq!(requested_by(line).as_deref(), expected, "{line}");
        }
        for (line, is_valid) in [("x verify d", true), ("x verify", false), ("x --out d verify d", false)] {
            assert_eq!(Cli::try_parse_from(line.split(' ')).is_ok(), is_valid, "{line}");
        }
    }

    /// Checks the commands of `make image` without running them: an image for every cluster of the guide, unless minor versions are named.
    #[test]
    fn make_image_has_a_payload_for_each_supported_cluster() {
        for (variables, expected) in [
            (&[][..], &MINORS[..]),
            (&["KUBERNETES=1.34"], &["1.34"]),
            (&["KUBERNETES=1.35,1.33", "PROGRAMS=mine"], &["1.35", "1.33"]),
        ] {
            let mut make = std::process::Command::new("make");
            // A make that runs the tests passes its own flags and variables on.
            let make = make.args(["--dry-run", "image"]).args(variables).current_dir(devenv::workspace_root());
            let make = make.env_remove("MAKEFLAGS").env_remove("KUBERNETES").env_remove("PROGRAMS");
            let output = make.output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let line = text.lines().find(|line| line.starts_with("cargo xtask payload")).unwrap();
            assert_eq!(requested_by(line.strip_prefix("cargo xtask ").unwrap()).as_deref(), Some(expected), "{text}");
            assert_eq!(line.contains("--from mine"), variables.len() == 2, "{text}");
            assert!(text.lines().any(|line| line == "cargo xtask image --payload target/payload"), "{text}");
        }
        // Each cluster of the guide has a kubelet that is not newer than its API server.
        let guide = std::fs::read_to_string(devenv::workspace_root().join("docs/guide/quick-start.md")).unwrap();
        assert!(
            guide.contains(&format!("a cluster of Kubernetes {}", MINORS[MINORS.len() - 1])),
            "the quick start does not name the oldest version"
        );
    }

    #[test]
    fn each_of_several_minor_versions_has_a_directory() {
        let (from, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(from.path().join("csi-proxy.exe"), "csi").unwrap();
        let line = |more: &str| {
            let (from, out) = (from.path().display(), out.path().display());
            let line = format!("x --out {out} --from {from} --only csi-proxy,containerd_conf --level 1 {more}");
            Cli::try_parse_from(line.split_whitespace()).unwrap().args
        };
        make_all(&line("--kubernetes 1.36,1.34"), out.path()).unwrap();
        let minors: Vec<_> = Payload::open(out.path()).unwrap().by_minor().keys().copied().collect();
        assert_eq!(minors, [Some(34), Some(36)]);
        let error = make_all(&line("--kubernetes 1.36"), out.path()).unwrap_err();
        assert!(error.to_string().contains("payloads of several minor versions"), "{error}");

        let one = tempfile::tempdir().unwrap();
        make_all(&line("--kubernetes 1.36"), one.path()).unwrap();
        let error = make_all(&line("--kubernetes all"), one.path()).unwrap_err();
        assert!(error.to_string().contains("without a minor version"), "{error}");

        std::fs::write(from.path().join("kubelet.exe"), "of one minor version").unwrap();
        let error = make_all(&line("--kubernetes all"), out.path()).unwrap_err();
        assert!(error.to_string().contains("kubelet.exe is for one minor version"), "{error}");
    }

    #[test]
    fn files_of_the_user_take_precedence_and_their_payload_is_valid() {
        let (from, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(from.path().join("csi-proxy.exe"), "csi").unwrap();
        std::fs::write(from.path().join("other-kubelet"), "kubelet").unwrap();
        std::fs::create_dir(from.path().join("ccg")).unwrap();
        std::fs::write(from.path().join("ccg/plugin.dll"), "plugin").unwrap();
        let args = Args {
            command: None,
            out: None,
            from: Some(from.path().into()),
            kubernetes: vec![MINORS[0].into()],
            kubelet: Some(from.path().join("other-kubelet")),
            kubelet_version: Some("v1.35.2".into()),
            only: ["csi-proxy", "hybrid-overlay-node", "kubelet", "containerd_conf"].map(String::from).into(),
            signer: crate::sign::tests::fake(from.path()),
            level: 1,
        };
        make_all(&args, out.path()).unwrap();
        verify(out.path()).unwrap();
        let payload = Payload::open(out.path()).unwrap();
        let destinations: Vec<&str> =
            payload.manifest(None).unwrap().files.iter().map(|f| f.destination.as_str()).collect();
        assert_eq!(
            destinations,
            [
                r"C:\k\containerd\containerd_conf.toml",
                r"C:\k\csi-proxy.exe",
                r"C:\k\kubelet.exe",
                r"C:\windows\wicd-ccg\plugin.dll"
            ],
            "hybrid-overlay-node.exe, which the folder lacks, must be left out"
        );
        let signed: Vec<_> = payload.manifest(None).unwrap().files.iter().map(|f| f.size).collect();
        assert_eq!(signed[1..], ["csi signed", "kubelet signed", "plugin signed"].map(|content| content.len() as u64));
        let versions: Vec<_> = payload.manifest(None).unwrap().files.iter().map(|f| f.version.as_deref()).collect();
        assert_eq!(versions, [None, None, Some("1.35.2"), None]);
        std::fs::write(from.path().join("ccg/readme.txt"), "no plugin").unwrap();
        assert!(make_all(&args, out.path()).unwrap_err().to_string().contains("readme.txt is not a library"));
        std::fs::write(out.path().join("csi-proxy.exe.zst"), "spoilt").unwrap();
        assert!(verify(out.path()).is_err());
    }

    /// Returns the words of kubelet's command line, with all possible flags of the log runner.
    fn command_of_kubelet() -> Vec<String> {
        let pem = "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n".to_owned();
        let cluster = Cluster {
            api_server: "https://api.example.com:6443".into(),
            api_ca: pem.clone(),
            kubelet_client_ca: pem,
            ..Cluster::default()
        };
        let file = |destination: &str| File { destination: destination.into(), ..File::default() };
        let files = [program::KUBELET, program::LOG_RUNNER].map(file).into();
        let logs = LogSettings { flush: Some("1s".into()), ..LogSettings::default() };
        let settings = Settings { logs, ..Settings::default() };
        let rendered = render(&cluster, &Manifest { schema: 1, files }, &settings, &TemplateSpec::default()).unwrap();
        rendered.services.services[0].path.split(' ').map(Into::into).collect()
    }

    /// Checks the flags of the log runner: Go programs exit at an unknown flag, and then nothing is started.
    #[test]
    fn the_log_runner_of_each_payload_takes_the_flags_that_it_gets_and_starts_its_program() {
        let words = command_of_kubelet();
        assert_eq!(words[0], program::LOG_RUNNER);
        let is_flag = |word: &&String| word.starts_with('-') && !word.starts_with("-log-file=");
        let flags: Vec<&String> =
            words[1..].iter().take_while(|word| *word != program::KUBELET).filter(is_flag).collect();
        assert_eq!(flags.len(), 3, "{flags:?}");
        let runner = PARTS.iter().find_map(|part| match &part.source {
            Source::Go(program) if part.destination == program::LOG_RUNNER => Some(program),
            _ => None,
        });
        let runner = runner.unwrap();
        let sets: BTreeSet<PathBuf> = MINORS.iter().map(|minor| runner.folder(minor)).collect();
        for set in sets {
            let dir = tempfile::tempdir().unwrap();
            let (program, started, log) =
                (dir.path().join("runner"), dir.path().join("kubelet"), dir.path().join("log"));
            let mut go = runner.go(MINORS[0]);
            go.current_dir(&set).env_remove("GOOS").args(["build", "-o"]).arg(&program).arg(runner.package);
            assert!(go.status().unwrap().success(), "{}", set.display());
            fs::write(&started, "#!/bin/sh\necho it runs\n").unwrap();
            fs::set_permissions(&started, fs::Permissions::from_mode(0o755)).unwrap();
            let mut run = std::process::Command::new(&program);
            let output = run.arg(format!("-log-file={}", log.display())).args(&flags).arg(&started).output().unwrap();
            assert!(output.status.success(), "{}: {output:?}", set.display());
            assert_eq!(fs::read_to_string(&log).unwrap(), "it runs\n", "{}", set.display());
        }
    }
}
