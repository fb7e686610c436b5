//! SBOM of the images, as one CycloneDX document: the operator, its client and `wicd.exe` with their crates, the payload's programs with their Go
//! modules, and files from Debian packages.
//!
//! The crates are those that cargo resolves for the program's target. Go embeds the list of modules in a program. For the payload's other
//! programs and files, the document contains only the hash.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Write as _,
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result};
use devenv::{WINDOWS_TARGET, cargo, read};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use testbed::image::{self, BUNDLE, Files, authorities, manifests, must_gather};

/// File of the images, with the parts that were compiled into it.
struct Program {
    name: String,
    version: Option<String>,
    sha256: String,
    parts: BTreeSet<Part>,
}

/// Crate, Go module or Debian package.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Part {
    /// Type in the URL of a package: `cargo`, `golang` or `deb/debian`.
    kind: &'static str,
    pub name: String,
    pub version: String,
    licence: Option<String>,
    /// True if the part is a member of this workspace.
    pub is_ours: bool,
}

impl Part {
    fn url(&self) -> String {
        let Self { kind, name, version, .. } = self;
        format!("pkg:{kind}/{name}@{}", version.replace('+', "%2B"))
    }
}

/// Returns the SBOM of the images, for their files.
pub(super) fn of(files: &Files) -> Result<String> {
    let built = |name: &str, file: &Path, package: &str, target: &str| -> Result<Program> {
        let version = Some(env!("CARGO_PKG_VERSION").into());
        Ok(Program { name: name.into(), version, sha256: sha256(file)?, parts: crates(package, target)? })
    };
    let mut programs = vec![
        built(image::OPERATOR, &files.operator, "controller", files.arch.target())?,
        built(image::CLIENT, &files.client, "controller", files.arch.target())?,
        built("wicd.exe", &files.wicd, "wicd", WINDOWS_TARGET)?,
    ];
    if let Some(client) = &files.client_for_windows {
        programs.push(built(&format!("{}.exe", image::CLIENT), client, "controller", WINDOWS_TARGET)?);
    }
    let mut of_debian = vec![(BUNDLE, "ca-certificates", authorities()?)];
    if must_gather::is_built(files.arch) {
        for (name, package, file) in
            [("bin/bash", "bash-static", must_gather::BASH), ("bin/busybox", "busybox-static", must_gather::BUSYBOX)]
        {
            of_debian.push((name, package, fs::read(file).with_context(|| format!("cannot read {file}"))?));
        }
    }
    for (name, package, content) in of_debian {
        let (sha256, parts) = (format!("{:x}", Sha256::digest(&content)), BTreeSet::from([debian(package)?]));
        programs.push(Program { name: name.into(), version: None, sha256, parts });
    }
    for (folder, manifest) in manifests(&files.payload)? {
        for file in manifest.files {
            let blob = folder.join(format!("{}.zst", file.path));
            let prefix = folder.strip_prefix(&files.payload).unwrap_or(&folder).join(&file.path);
            programs.push(Program {
                name: format!("payload/{}", prefix.display()),
                parts: if is_program(&file.path) { modules(&blob)? } else { BTreeSet::new() },
                version: file.version,
                sha256: file.sha256,
            });
        }
    }
    Ok(serde_json::to_string_pretty(&document(&programs))? + "\n")
}

fn document(programs: &[Program]) -> Value {
    let whole = "windows-node-pools-images";
    let part = |part: &Part| {
        let mut value = json!({
            "type": "library", "bom-ref": part.url(), "purl": part.url(), "name": part.name, "version": part.version,
        });
        if let Some(licence) = &part.licence {
            value["licenses"] = json!([{"expression": licence}]);
        }
        value
    };
    let program = |program: &Program| {
        let mut value = json!({
            "type": if program.parts.is_empty() { "file" } else { "application" },
            "bom-ref": program.name, "name": program.name, "hashes": [{"alg": "SHA-256", "content": program.sha256}],
        });
        if let Some(version) = &program.version {
            value["version"] = json!(version);
        }
        value
    };
    let parts: BTreeMap<String, &Part> =
        programs.iter().flat_map(|program| &program.parts).map(|part| (part.url(), part)).collect();
    let names: Vec<_> = programs.iter().map(|program| &program.name).collect();
    let mut dependencies = vec![json!({"ref": whole, "dependsOn": names})];
    dependencies.extend(programs.iter().map(
        |program| json!({"ref": program.name, "dependsOn": program.parts.iter().map(Part::url).collect::<Vec<_>>()}),
    ));
    // The document has no timestamp and no serial number, so that the same images have the same document.
    json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {
            "type": "application", "bom-ref": whole, "name": "windows-node-pools", "version": env!("CARGO_PKG_VERSION"),
            "licenses": [{"license": {"id": "Apache-2.0"}}],
        }},
        "components": programs.iter().map(program).chain(parts.into_values().map(part)).collect::<Vec<_>>(),
        "dependencies": dependencies,
    })
}

fn sha256(path: &Path) -> Result<String> {
    let content = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(format!("{:x}", Sha256::digest(content)))
}

/// Returns the crates that are compiled into a package, without those that only run at build time.
pub(super) fn crates(package: &str, target: &str) -> Result<BTreeSet<Part>> {
    let mut cargo = cargo();
    cargo.args(["tree", "--locked", "--package", package, "--target", target]);
    cargo.args(["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}|{l}"]);
    Ok(read(&mut cargo)?.lines().filter_map(of_cargo).collect())
}

/// Parses a line of `cargo tree`, such as `serde v1.0.228|MIT OR Apache-2.0 (*)`.
fn of_cargo(line: &str) -> Option<Part> {
    let (package, licence) = line.trim_end_matches(" (*)").split_once('|')?;
    let mut words = package.split_whitespace();
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    // The line of a workspace member contains its folder.
    let is_ours = words.any(|word| word.starts_with("(/"));
    // Some crates separate alternatives by `/`, as was usual before SPDX.
    let licence = Some(licence.replace(" / ", " OR ").replace('/', " OR ")).filter(|licence| !licence.is_empty());
    Some(Part { kind: "cargo", name: name.into(), version: version.into(), licence, is_ours })
}

/// Returns an installed Debian package.
fn debian(package: &str) -> Result<Part> {
    let mut query = Command::new("dpkg-query");
    let version = read(query.args(["--show", "--showformat", "${Version}", package]))?;
    Ok(Part { kind: "deb/debian", name: package.into(), version, ..Part::default() })
}

fn is_program(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("exe"))
}

/// Returns the Go modules of a compressed program.
fn modules(blob: &Path) -> Result<BTreeSet<Part>> {
    let mut program = tempfile::NamedTempFile::new()?;
    let compressed = File::open(blob).with_context(|| format!("cannot open {}", blob.display()))?;
    zstd::stream::copy_decode(compressed, &mut program).with_context(|| format!("cannot read {}", blob.display()))?;
    program.flush()?;
    // The command fails for a program that Go did not build.
    let output = Command::new("go").args(["version", "-m"]).arg(program.path()).output().context("cannot start go")?;
    Ok(of_go(&String::from_utf8_lossy(&output.stdout)))
}

/// Returns the modules in the output of `go version -m`, and Go's standard library.
fn of_go(record: &str) -> BTreeSet<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let part = |name: &str, version: &str| Part {
        kind: "golang",
        name: name.into(),
        version: version.into(),
        ..Part::default()
    };
    for (number, line) in record.lines().enumerate() {
        let words: Vec<&str> = line.split('\t').map(str::trim).collect();
        match words.as_slice() {
            [first] if number == 0 => {
                let version = first.rsplit_once(": go").map(|(_, version)| version);
                parts.extend(version.map(|version| part("stdlib", version)));
            }
            ["", "mod", name, version, ..] if !version.is_empty() && *version != "(devel)" => {
                parts.push(part(name, version));
            }
            ["", "dep", name, version, ..] => parts.push(part(name, version)),
            // A replacement takes the place of the previous module.
            ["", "=>", name, version, ..] => {
                parts.pop();
                parts.push(part(name, version));
            }
            _ => {}
        }
    }
    parts.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_cargo_tree_are_parsed() {
        for (line, expected) in [
            ("serde v1.0.228|MIT OR Apache-2.0", Some(("serde", "1.0.228", Some("MIT OR Apache-2.0")))),
            ("bytes v1.11.0|MIT (*)", Some(("bytes", "1.11.0", Some("MIT")))),
            ("memchr v2.7.6|Unlicense/MIT", Some(("memchr", "2.7.6", Some("Unlicense OR MIT")))),
            ("api v0.1.0 (/src/api)|Apache-2.0", Some(("api", "0.1.0", Some("Apache-2.0")))),
            ("a v1.0.0|", Some(("a", "1.0.0", None))),
            ("", None),
        ] {
            let part = of_cargo(line);
            let found = part.as_ref().map(|p| (p.name.as_str(), p.version.as_str(), p.licence.as_deref()));
            assert_eq!(found, expected, "{line}");
        }
    }

    #[test]
    fn modules_are_parsed_from_the_output_of_go_version() {
        let record = "kubelet.exe: go1.26.8\n\tpath\tk8s.io/kubernetes/cmd/kubelet\n\tmod\tpayload\t(devel)\t\n\
                      \tdep\tgithub.com/a/b\tv1.2.3\th1:x=\n\tdep\tk8s.io/api\tv0.0.0\n\t=>\tk8s.io/api\tv0.36.3\th1:y=\n\
                      \tbuild\t-ldflags=\"-s -w\"\n";
        let urls: Vec<_> = of_go(record).iter().map(Part::url).collect();
        let expected =
            ["pkg:golang/github.com/a/b@v1.2.3", "pkg:golang/k8s.io/api@v0.36.3", "pkg:golang/stdlib@1.26.8"];
        assert_eq!(urls, expected);
        assert!(of_go("").is_empty());
    }

    #[test]
    fn a_part_of_two_programs_is_listed_once() {
        let part = |name: &str| Part { kind: "cargo", name: name.into(), version: "1.0.0+x".into(), ..Part::default() };
        let program = |name: &str, parts: &[&str]| Program {
            name: name.into(),
            version: None,
            sha256: "0".into(),
            parts: parts.iter().map(|name| part(name)).collect(),
        };
        let document = document(&[program("a", &["x", "y"]), program("b", &["y"]), program("c", &[])]);
        let refs: Vec<_> = document["components"].as_array().unwrap().iter().map(|c| c["bom-ref"].clone()).collect();
        assert_eq!(refs, ["a", "b", "c", "pkg:cargo/x@1.0.0%2Bx", "pkg:cargo/y@1.0.0%2Bx"]);
        assert_eq!(document["dependencies"][0]["dependsOn"], json!(["a", "b", "c"]));
        assert_eq!(document["dependencies"][2]["dependsOn"], json!(["pkg:cargo/y@1.0.0%2Bx"]));
        assert_eq!(document["components"][2]["type"], "file");
    }

    #[test]
    fn the_operator_has_its_crates_and_none_of_the_build() {
        let crates = crates("controller", devenv::STATIC_TARGET).unwrap();
        let has = |name: &str| crates.iter().any(|part| part.name == name);
        assert!(has("kube") && has("ring") && has("wnp-core"));
        assert!(
            crates.iter().all(|part| part.is_ours
                == ["api", "controller", "gitops", "remote", "wnp-core"].contains(&part.name.as_str()))
        );
        assert!(
            !has("serde_derive") && !has("cc") && !has("proptest"),
            "a crate that only the build or a test uses is listed"
        );
    }
}
