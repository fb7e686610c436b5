//! Checks of programs that the user provides, as far as they are possible without a host.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};

/// Refuses a program that cannot work with the other files of the payload.
pub(super) fn check(name: &str, path: &Path) -> Result<()> {
    match name {
        "containerd" => check_containerd(path),
        "kube-log-runner" => check_log_runner(path),
        _ => Ok(()),
    }
}

/// Refuses a log runner that does not know the flags of rotation: it would exit at each start, and start nothing.
fn check_log_runner(path: &Path) -> Result<()> {
    const FLAG: &[u8] = b"log-file-size";
    let program = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(
        program.windows(FLAG.len()).any(|part| part == FLAG),
        "{} does not support the flags of log rotation, and would exit; provide kube-log-runner.exe of Kubernetes 1.34 or newer, or remove the file, so that it is built",
        path.display()
    );
    Ok(())
}

fn check_containerd(path: &Path) -> Result<()> {
    // A program that Go did not build, or that was packed, has no such record.
    let record = Command::new("go").args(["version", "-m"]).arg(path).output();
    let record = record.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    ensure!(
        !is_old_containerd(&record),
        "{} is containerd 1 or 2.0, which does not support the whole configuration of nodes; provide containerd 2.1 or newer, or remove the file, so that it is built",
        path.display()
    );
    Ok(())
}

/// Reports whether the output of `go version -m` shows a containerd that is too old. The path of a program contains the major version of its
/// module, except for version 1. Version 2.0 does not know the CNI directories of the configuration (`bin_dirs`).
fn is_old_containerd(record: &str) -> bool {
    let is_1 = |line: &str| line.split_whitespace().eq(["path", "github.com/containerd/containerd/cmd/containerd"]);
    let is_2_0 = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words[..], ["mod", "github.com/containerd/containerd/v2", version, ..] if version.starts_with("v2.0."))
            || line.contains("containerd/v2/version.Version=v2.0.")
    };
    record.lines().any(|line| is_1(line) || is_2_0(line))
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
            ("\tmod\tgithub.com/containerd/containerd/v2\tv2.0.5\th1:x=\n", true),
            ("\tmod\tgithub.com/containerd/containerd/v2\tv2.1.0\th1:x=\n", false),
            ("\tbuild\t-ldflags=\"-X github.com/containerd/containerd/v2/version.Version=v2.0.2 -s\"\n", true),
            ("\tbuild\t-ldflags=\"-X github.com/containerd/containerd/v2/version.Version=v2.2.0 -s\"\n", false),
            (
                "x.exe: go1.26.0\n\tpath\tk8s.io/kubernetes/cmd/kubelet\n\tdep\tgithub.com/containerd/containerd/cmd/containerd\tv1.7.27\n",
                false,
            ),
            ("", false),
        ] {
            assert_eq!(is_old_containerd(record), expected, "{record}");
        }
    }

    #[test]
    fn a_log_runner_without_rotation_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("kube-log-runner.exe");
        for (content, is_good) in [("\0log-file\0also-stdout", false), ("\0log-file-size\0", true)] {
            std::fs::write(&program, content).unwrap();
            assert_eq!(check("kube-log-runner", &program).is_ok(), is_good, "{content:?}");
        }
    }

    /// Checks Go's own record of a program with the path of containerd 1.
    #[test]
    fn an_old_containerd_is_refused() {
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
        assert!(error.contains("containerd 2.1 or newer"), "{error}");
        check("kubelet", &program).unwrap();
        std::fs::write(&program, "no program").unwrap();
        check("containerd", &program).unwrap();
    }
}
