//! `hostkubelet`: the real kubelet without its access to the machine, for Wine and for Linux (`tools/testbed/go/hostkubelet`).
//!
//! This repository contains no upstream file. The few that must differ are generated from the pinned modules and replace them with
//! `go build -overlay`. Go refuses an overlay of a file inside its module cache, so such a module is replaced by a
//! symbolic link to its folder there.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use super::{
    GO_MOD, GO_SUM, KUBERNETES_VERSION, Run as _, built_once, cache_dir, go, go_build, go_dir, key, ldflags, say,
};

/// Platform that a program is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// `hostkubelet.exe`, which runs under Wine.
    Windows,
    /// `hostkubelet`, a Linux process whose node reports that it runs Windows.
    Linux,
}

/// Changes of a file in a module.
struct Edit {
    file: &'static str,
    /// Replaced text, its replacement, and how often the text has to occur: another number means that upstream changed.
    replace: &'static [(&'static str, &'static str, usize)],
}

/// Edits for Wine 8, whose CreateSymbolicLinkW does nothing and reports success: hard-link the current certificate instead, and close it
/// before it is linked, since two links share one share mode.
const WINDOWS: &[Edit] = &[Edit {
    file: "util/certificate/certificate_store.go",
    replace: &[
        ("os.Symlink(", "os.Link(", 1),
        ("fi.Mode()&os.ModeSymlink != os.ModeSymlink", "fi.IsDir()", 3),
        ("\tcert, err := loadFile(certPath)\n", "\tf.Close()\n\tcert, err := loadFile(certPath)\n", 1),
    ],
}];

/// Edits for Linux: without them, the node reports the platform that it was compiled for.
const LINUX: &[Edit] = &[
    Edit { file: "pkg/kubelet/kubelet_node_status.go", replace: &[("goruntime.GOOS", "\"windows\"", 4)] },
    Edit { file: "pkg/kubelet/nodestatus/setters.go", replace: &[("goruntime.GOOS", "\"windows\"", 1)] },
];

/// Finds or builds hostkubelet, which takes about 3 minutes the first time.
///
/// # Errors
/// Fails when it is missing and cannot be built, for example because a file of Kubernetes is not as the edits expect, or the cache
/// cannot be written.
pub fn host_kubelet(platform: Platform) -> Result<PathBuf> {
    let inputs = [GO_MOD, GO_SUM, include_str!("../../go/hostkubelet/main.go"), include_str!("hostkubelet.rs")];
    let dir = cache_dir()?.join(format!("hostkubelet-{KUBERNETES_VERSION}-{}", key(&inputs)));
    let (name, goos, module, edits) = match platform {
        Platform::Windows => ("hostkubelet.exe", "windows", "k8s.io/client-go", WINDOWS),
        Platform::Linux => ("hostkubelet", "linux", "k8s.io/kubernetes", LINUX),
    };
    built_once(&dir, name, |out| {
        say(&format!("building {name} {KUBERNETES_VERSION} (about 3 minutes, once)"));
        let work = dir.join(goos);
        let overlay = lay_over(&work, module, edits)?;
        go_build()
            .env("GOOS", goos)
            .env("GOFLAGS", "-buildvcs=false -mod=mod")
            .arg(format!("-modfile={}", work.join("go.mod").display()))
            .arg(format!("-overlay={}", overlay.display()))
            .args(["-ldflags", &ldflags(KUBERNETES_VERSION)])
            .arg("-o")
            .arg(out)
            .arg("./hostkubelet")
            .run()
    })
}

/// Writes the changed files, a go.mod that uses them, and the overlay file. Returns the path of the overlay file.
fn lay_over(work: &Path, module: &str, edits: &[Edit]) -> Result<PathBuf> {
    fs::create_dir_all(work)?;
    let link = work.join("module");
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(module_dir(module)?, &link)?;
    fs::write(work.join("go.mod"), replace_module(GO_MOD, module, &link))?;
    fs::write(work.join("go.sum"), GO_SUM)?;
    let mut overlay = serde_json::Map::new();
    for edit in edits {
        let original = link.join(edit.file);
        let mut text = fs::read_to_string(&original).with_context(|| format!("read {}", original.display()))?;
        for (from, to, count) in edit.replace {
            let found = text.matches(from).count();
            if found != *count {
                bail!("{} of {module} has {from:?} {found} times instead of {count}: look what changed", edit.file);
            }
            text = text.replace(from, to);
        }
        let changed = work.join(Path::new(edit.file).file_name().context("an edit names no file")?);
        fs::write(&changed, text)?;
        overlay.insert(original.display().to_string(), json!(changed));
    }
    let path = work.join("overlay.json");
    fs::write(&path, json!({ "Replace": overlay }).to_string())?;
    Ok(path)
}

fn module_dir(module: &str) -> Result<String> {
    Command::new("go").current_dir(go_dir()).args(["mod", "download", module]).run()?;
    go("list").args(["-m", "-f", "{{.Dir}}", module]).read()
}

/// Returns `go_mod` with `module` replaced by the folder `dir`.
fn replace_module(go_mod: &str, module: &str, dir: &Path) -> String {
    let old = format!("\t{module} => ");
    let others: String = go_mod.lines().filter(|line| !line.starts_with(&old)).flat_map(|line| [line, "\n"]).collect();
    format!("{others}\nreplace {module} => {}\n", dir.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_replaced_by_a_folder_once() {
        let go_mod = "require a v1\nreplace (\n\ta => a v1\n\ta/b => a/b v1\n)\n";
        let replaced = replace_module(go_mod, "a", Path::new("/x"));
        assert_eq!(replaced, "require a v1\nreplace (\n\ta/b => a/b v1\n)\n\nreplace a => /x\n");
    }
}
