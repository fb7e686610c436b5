//! Programs that the user gives: what is known of them without a host to run them on.

use std::{path::Path, process::Command};

use anyhow::{Result, ensure};

/// Refuses a program that cannot work with the other files of the payload.
pub(super) fn check(name: &str, path: &Path) -> Result<()> {
    if name != "containerd" {
        return Ok(());
    }
    // A program that Go did not build has no such record, and neither has one that was packed.
    let record = Command::new("go").args(["version", "-m"]).arg(path).output();
    let record = record.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    ensure!(
        !is_containerd_1(&record),
        "{} is containerd 1, which does not read the configuration that nodes get (version 3); give containerd 2.0 or newer, or none to have it built",
        path.display()
    );
    Ok(())
}

/// Reads what `go version -m` prints: the path of a program has the major version of its module, but for version 1.
fn is_containerd_1(record: &str) -> bool {
    record.lines().any(|line| line.split_whitespace().eq(["path", "github.com/containerd/containerd/cmd/containerd"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_versions_of_containerd() {
        for (record, expected) in [
            (
                "containerd.exe: go1.24.0\n\tpath\tgithub.com/containerd/containerd/cmd/containerd\n\tmod\tgithub.com/containerd/containerd\t(devel)\n",
                true,
            ),
            ("containerd.exe: go1.26.0\n\tpath\tgithub.com/containerd/containerd/v2/cmd/containerd\n", false),
            (
                "x.exe: go1.26.0\n\tpath\tk8s.io/kubernetes/cmd/kubelet\n\tdep\tgithub.com/containerd/containerd/cmd/containerd\tv1.7.27\n",
                false,
            ),
            ("", false),
        ] {
            assert_eq!(is_containerd_1(record), expected, "{record}");
        }
    }

    /// Go's own record of a program, with the path that one of containerd 1 has.
    #[test]
    fn containerd_1_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("cmd/containerd");
        std::fs::create_dir_all(&source).unwrap();
        std::fs::write(dir.path().join("go.mod"), "module github.com/containerd/containerd\n\ngo 1.24\n").unwrap();
        std::fs::write(source.join("main.go"), "package main\n\nfunc main() {}\n").unwrap();
        let built = Command::new("go")
            .current_dir(dir.path())
            .env("GOWORK", "off")
            .args(["build", "-o", "containerd.exe", "./cmd/containerd"])
            .status()
            .unwrap();
        assert!(built.success());
        let program = dir.path().join("containerd.exe");
        let error = check("containerd", &program).unwrap_err().to_string();
        assert!(error.contains("containerd 2.0 or newer"), "{error}");
        check("kubelet", &program).unwrap();
        std::fs::write(&program, "no program").unwrap();
        check("containerd", &program).unwrap();
    }
}
