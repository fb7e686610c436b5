//! What a new Debian machine needs for the test bed and for `wicd.exe`.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use devenv::{STATIC_TARGET, WINDOWS_TARGET, find, has_target, skip, workspace_root};

/// Programs and the Debian packages that they come from.
const PACKAGES: &[(&str, &str)] = &[
    ("x86_64-w64-mingw32-gcc", "gcc-mingw-w64-x86-64"),
    // libFuzzer is C++.
    ("g++", "g++"),
    ("wine", "wine"),
    ("/usr/lib/wine/wine64", "wine64"),
    ("sshd", "openssh-server"),
    ("ssh", "openssh-client"),
    ("ip", "iproute2"),
    ("git", "git"),
    // Test of images that are pulled ahead.
    ("containerd", "containerd"),
    ("make", "make"),
    // Prebuilt programs of the check.
    ("pip3", "python3-pip"),
    // The operator's image, and a run of it.
    ("musl-gcc", "musl-tools"),
    ("buildah", "buildah"),
    ("podman", "podman"),
    ("runc", "runc"),
    ("/usr/share/ca-certificates/mozilla", "ca-certificates"),
    // Redis, without the service of `redis-server`: the cache of Argo CD, which runs by night.
    ("redis-check-rdb", "redis-tools"),
    // The image for `oc adm must-gather`.
    ("/bin/bash-static", "bash-static"),
    ("/bin/busybox", "busybox-static"),
];

/// Debian's Rust with the source of its standard library: what cross-builds where rustup has no Windows target.
const DEBIAN_RUST: &[(&str, &str)] = &[
    ("/usr/bin/rustc", "rustc-web"),
    ("/usr/bin/cargo", "cargo-web"),
    ("/usr/lib/rustlib/src/rust/library", "rust-web-src"),
];

/// Installs what is missing, saying so first; does nothing when all is there. Needs root (and Debian) only to install.
/// Go is not installed: Debian's is too old for Kubernetes, so its absence is an error that says what to do.
pub(crate) fn setup() -> Result<()> {
    let present = |place: &str| {
        if place.starts_with('/') { Path::new(place).exists() } else { find(place).is_some() }
    };
    let mut packages = missing(PACKAGES, present);
    if !ensure_target(WINDOWS_TARGET) {
        packages.extend(missing(DEBIAN_RUST, present));
    }
    if !ensure_target(STATIC_TARGET) {
        skip(&format!("no image can be built, nor tested: there is no rustup that adds {STATIC_TARGET}"))?;
    }
    install(&packages)?;
    if find("go").is_none() {
        bail!("there is no Go: install the version in tools/testbed/go/go.mod or a later one from https://go.dev/dl/");
    }
    println!("setup: all is there");
    Ok(())
}

/// The packages of what is not `present`.
fn missing<'a>(wanted: &[(&str, &'a str)], present: impl Fn(&str) -> bool) -> Vec<&'a str> {
    wanted.iter().filter(|(place, _)| !present(place)).map(|(_, package)| *package).collect()
}

/// Whether the pinned toolchain has a target, after an attempt to add it.
fn ensure_target(target: &str) -> bool {
    if has_target(target) {
        return true;
    }
    eprintln!("setup: rustup target add {target}");
    let added = Command::new("rustup").current_dir(workspace_root()).args(["target", "add", target]).status();
    added.is_ok_and(|status| status.success()) && has_target(target)
}

fn install(packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    eprintln!("setup: apt-get install {}", packages.join(" "));
    apt_get(&["update", "-q"])?;
    let options = ["install", "-q", "-y", "--no-install-recommends"];
    apt_get(&[&options, packages].concat())
}

fn apt_get(args: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    let status = command.args(args).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).status();
    let status = status.context("start apt-get: on another system than Debian, install the packages by hand")?;
    if !status.success() {
        bail!("apt-get {}: {status}; it needs root", args.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_installed() {
        assert_eq!(missing(PACKAGES, |_| true), Vec::<&str>::new());
        assert_eq!(missing(PACKAGES, |place| place != "sshd"), ["openssh-server"]);
    }
}
