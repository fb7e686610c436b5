//! Embedded list of a program's crates, in the section and the format of `cargo auditable`, for image scanners that read no SBOM.

use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use devenv::execute;
use flate2::{Compression, write::ZlibEncoder};
use serde_json::{Value, json};

use super::sbom::Part;

/// Section in which scanners look for the crates.
const SECTION: &str = ".dep-v0";

/// Writes a copy of a program with its list of crates to the folder `program` in `out`, and returns the copy's path.
pub(super) fn with_crates(
    objcopy: &str,
    program: &Path,
    package: &str,
    crates: &BTreeSet<Part>,
    out: &Path,
) -> Result<PathBuf> {
    let folder = out.join("program");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let (list, copy) = (folder.join("crates.zlib"), folder.join(program.file_name().unwrap_or_default()));
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(document(package, crates).to_string().as_bytes())?;
    fs::write(&list, encoder.finish()?).with_context(|| format!("cannot write {}", list.display()))?;
    let mut objcopy = Command::new(objcopy);
    objcopy.args(["--add-section", &format!("{SECTION}={}", list.display())]);
    // The section is not loaded into memory.
    objcopy.args(["--set-section-flags", &format!("{SECTION}=noload,readonly")]);
    execute(objcopy.arg(program).arg(&copy))?;
    fs::remove_file(list)?;
    Ok(copy)
}

fn document(package: &str, crates: &BTreeSet<Part>) -> Value {
    let packages = crates.iter().map(|part| {
        let source = if part.is_ours { "local" } else { "crates.io" };
        let mut value = json!({"name": part.name, "version": part.version, "source": source});
        if part.is_ours && part.name == package {
            value["root"] = json!(true);
        }
        value
    });
    json!({"format": 1, "packages": packages.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use devenv::STATIC_TARGET;
    use flate2::read::ZlibDecoder;

    use super::{super::sbom, *};

    #[test]
    fn a_program_with_its_crates_runs_and_has_the_same_bytes_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let crates = sbom::crates("controller", STATIC_TARGET).unwrap();
        let written = ["one", "another"].map(|name| {
            let copy = with_crates("objcopy", Path::new("/bin/true"), "controller", &crates, &folder.path().join(name))
                .unwrap();
            assert!(Command::new(&copy).status().unwrap().success());
            copy
        });
        assert_eq!(fs::read(&written[0]).unwrap(), fs::read(&written[1]).unwrap());

        let section = folder.path().join("section");
        let mut objcopy = Command::new("objcopy");
        objcopy.args(["--dump-section", &format!("{SECTION}={}", section.display())]).arg(&written[0]);
        execute(objcopy.arg(folder.path().join("ignored"))).unwrap();
        let mut text = String::new();
        ZlibDecoder::new(fs::File::open(section).unwrap()).read_to_string(&mut text).unwrap();
        let found: Value = serde_json::from_str(&text).unwrap();
        let packages = found["packages"].as_array().unwrap();
        assert_eq!(packages.len(), crates.len());
        let roots: Vec<_> = packages.iter().filter(|one| one["root"] == true).map(|one| &one["name"]).collect();
        assert_eq!(roots, ["controller"]);
        assert!(packages.iter().any(|one| one["name"] == "ring" && one["source"] == "crates.io"));
    }
}
