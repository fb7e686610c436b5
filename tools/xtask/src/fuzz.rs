//! `cargo xtask fuzz`: fuzzes all parsers of outside input with libFuzzer, with coverage but on the stable toolchain.

use std::{
    collections::VecDeque,
    fs,
    num::NonZero,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    thread,
};

use anyhow::{Context as _, Result, bail, ensure};
use devenv::{cache_dir, execute, workspace_root};

/// Fuzzes the parsers of outside input: all targets, as many at once as there are cores.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds for which each target runs.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Run one target with only the input in this file.
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Targets. Defaults to all.
    #[arg(value_name = "TARGET", value_parser = TARGETS.map(|(name, _)| name))]
    pub targets: Vec<String>,
}

/// Fuzz targets: names, and folders of the repository with seeds besides `tools/fuzz/seeds/<name>`.
const TARGETS: [(&str, &[&str]); 15] = [
    ("answer", &[]),
    ("artifact", &[]),
    ("artifact-tar", &[]),
    ("csr", &["controller/core/src/csr/fixtures"]),
    ("hosts", &["examples/inventory", "examples/gitops"]),
    ("kept", &[]),
    ("keys", &["gitops/src/verify/fixtures"]),
    ("known-hosts", &[]),
    ("object", &[]),
    ("release", &[]),
    ("signature", &["gitops/src/verify/fixtures"]),
    ("support", &[]),
    ("username", &[]),
    ("webhook", &[]),
    ("windows-instances", &[]),
];

/// Compiler flags for coverage, for which a nightly toolchain has a single flag. The address sanitizer also needs a nightly toolchain, so it is off:
/// the parsers of this repository have no unsafe code, and memory errors in dependencies may stay unnoticed.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions";
/// Time limit for one input, in seconds. A slower input is a finding. Debug code on a busy machine is slow.
const SECONDS_FOR_ONE: u64 = 20;
/// Memory limit of a target, in MiB.
const MEGABYTES: u64 = 1024;
/// Maximum number of bytes of a finding that are printed.
const SHOWN: usize = 2048;

/// Builds the targets and runs them. A finding is an error.
pub(crate) fn run(args: &Args) -> Result<()> {
    let program = build()?;
    let names: Vec<&str> = match args.targets.as_slice() {
        [] => TARGETS.iter().map(|(name, _)| *name).collect(),
        named => named.iter().map(String::as_str).collect(),
    };
    if let Some(input) = &args.input {
        let [name] = names.as_slice() else { bail!("--input needs exactly one target") };
        return execute(Command::new(program).env("FUZZ_TARGET", name).arg(input));
    }
    let waiting = Mutex::new(VecDeque::from(names));
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let work = || {
        let mut failed = 0;
        // The lock is released before the target runs.
        while let Some(name) = { waiting.lock().ok().and_then(|mut names| names.pop_front()) } {
            if let Err(error) = fuzz(&program, name, args.seconds) {
                println!("{name}: {error:#}");
                failed += 1;
            }
        }
        failed
    };
    let failed: u32 = thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or(1)).sum()
    });
    ensure!(failed == 0, "{failed} of the fuzz targets failed");
    Ok(())
}

/// Builds the fuzzer, and returns its path. Its target folder is its own, because all crates are built with other flags.
pub(crate) fn build() -> Result<PathBuf> {
    let host = devenv::read(Command::new("rustc").args(["--print", "host-tuple"]).current_dir(workspace_root()))?;
    let target_dir = cache_dir()?.join("fuzz/target");
    let mut cargo = devenv::cargo();
    cargo.args(["build", "--locked", "--target", &host]).current_dir(workspace_root().join("tools/fuzz"));
    cargo.env("RUSTFLAGS", FLAGS).env("CARGO_TARGET_DIR", &target_dir).env_remove("CARGO_ENCODED_RUSTFLAGS");
    let mend =
        "after a change of dependencies, `cargo update --workspace` in tools/fuzz brings its lock file up to date";
    execute(&mut cargo).with_context(|| format!("cannot build the fuzz targets ({mend})"))?;
    Ok(target_dir.join(&host).join("debug/fuzz"))
}

/// Runs a target with its seeds and with the new inputs that earlier runs on this machine found.
fn fuzz(program: &Path, name: &str, seconds: u64) -> Result<()> {
    let root = workspace_root();
    let corpus = cache_dir()?.join("fuzz/corpus").join(name);
    let findings = cache_dir()?.join("fuzz/findings").join(name);
    for folder in [&corpus, &findings] {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let before = files(&findings)?;
    let mut command = Command::new(program);
    command.env("FUZZ_TARGET", name).current_dir(&root).stdin(Stdio::null());
    command.arg(format!("-max_total_time={seconds}")).arg(format!("-timeout={SECONDS_FOR_ONE}"));
    command.arg(format!("-rss_limit_mb={MEGABYTES}")).arg(format!("-artifact_prefix={}/", findings.display()));
    let dictionary = root.join("tools/fuzz/dictionaries").join(format!("{name}.txt"));
    if dictionary.is_file() {
        command.arg(format!("-dict={}", dictionary.display()));
    }
    // libFuzzer writes to the first folder.
    command.arg(&corpus).args(seeds(&root, name));
    let output = command.output().with_context(|| format!("cannot start {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        println!("{name}: {}", said.lines().rfind(|line| line.starts_with("Done ")).unwrap_or("done"));
        return Ok(());
    }
    let last: Vec<&str> = said.lines().collect();
    println!("{}", last[last.len().saturating_sub(40)..].join("\n"));
    for finding in files(&findings)?.into_iter().filter(|file| !before.contains(file)) {
        println!("{}", shown(&fs::read(&finding)?));
        println!("run it again: cargo xtask fuzz {name} --input {}", finding.display());
    }
    bail!("{}", output.status)
}

fn seeds(root: &Path, name: &str) -> Vec<PathBuf> {
    let others = TARGETS.iter().filter(|(known, _)| *known == name).flat_map(|(_, folders)| folders.iter());
    let folders = others.map(|folder| root.join(folder)).chain([root.join("tools/fuzz/seeds").join(name)]);
    folders.filter(|folder| folder.is_dir()).collect()
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    Ok(entries.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?)
}

/// Returns an input as hex and text, for a user who writes a test for it.
fn shown(input: &[u8]) -> String {
    let shown = &input[..input.len().min(SHOWN)];
    let text = String::from_utf8_lossy(shown);
    format!("{} bytes\nhex: {}\ntext: {text:?}", input.len(), hex::encode(shown))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn every_target_is_run_and_has_seeds() {
        let program = include_str!("../../fuzz/src/main.rs");
        let names = |text: &str| {
            let lines = text.lines().filter_map(|l| l.trim().strip_prefix("(\"")?.split_once('"'));
            lines.map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(TARGETS.map(|(name, _)| name.to_owned()).to_vec(), names(program));
        let root = workspace_root();
        for (name, folders) in TARGETS {
            for folder in folders {
                assert!(root.join(folder).is_dir(), "{name}: {folder}");
            }
            assert!(seeds(&root, name).iter().any(|folder| !files(folder).unwrap().is_empty()), "{name}");
        }
        for dictionary in files(&root.join("tools/fuzz/dictionaries")).unwrap() {
            let name = dictionary.file_stem().unwrap().to_string_lossy().into_owned();
            assert!(TARGETS.iter().any(|(known, _)| *known == name), "{name}");
        }
    }

    /// Checks that the fuzzed dependencies have the released versions.
    #[test]
    fn both_lock_files_have_the_same_versions() {
        let versions = |lock: &str| {
            let mut versions = BTreeMap::<String, BTreeSet<String>>::new();
            let mut name = String::new();
            for line in lock.lines() {
                let value = |key| line.strip_prefix(key).map(|v: &str| v.trim_matches('"').to_owned());
                if let Some(value) = value("name = ") {
                    name = value;
                } else if let Some(version) = value("version = ").filter(|_| !name.is_empty()) {
                    versions.entry(std::mem::take(&mut name)).or_default().insert(version);
                }
            }
            versions
        };
        let shipped = versions(include_str!("../../../Cargo.lock"));
        let fuzzed = versions(include_str!("../../fuzz/Cargo.lock"));
        assert!(fuzzed.len() > 100);
        for (name, versions) in fuzzed {
            if let Some(shipped) = shipped.get(&name) {
                assert!(versions.is_subset(shipped), "{name} {versions:?}: not what Cargo.lock has, {shipped:?}");
            }
        }
    }

    #[test]
    fn an_input_is_reported_in_hex_and_text() {
        assert_eq!(shown(b"a\n\xff"), "3 bytes\nhex: 610aff\ntext: \"a\\n\u{fffd}\"");
        assert!(shown(&vec![b'a'; 10_000]).starts_with("10000 bytes\nhex: 6161"));
        assert!(shown(&vec![b'a'; 10_000]).len() < 4 * SHOWN);
    }
}
