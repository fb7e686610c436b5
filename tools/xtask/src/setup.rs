//! `cargo xtask setup`: installs on a Debian machine what the demonstration, tests and images need.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use devenv::{STATIC_TARGET, WINDOWS_TARGET, find, has_target, skip, workspace_root};

/// Programs for the demonstration, and the Debian packages that contain them.
const OF_DEMO: &[(&str, &str)] = &[
    ("x86_64-w64-mingw32-gcc", "gcc-mingw-w64-x86-64"),
    ("wine", "wine"),
    ("/usr/lib/wine/wine64", "wine64"),
    ("sshd", "openssh-server"),
    ("ssh", "openssh-client"),
    ("ip", "iproute2"),
    ("git", "git"),
];

/// Programs and files for the tests and the images.
const OF_TESTS: &[(&str, &str)] = &[
    // libFuzzer is written in C++.
    ("g++", "g++"),
    // The test of images that are pulled in advance runs containerd.
    ("containerd", "containerd"),
    ("make", "make"),
    // pip installs the prebuilt programs of the check.
    ("pip3", "python3-pip"),
    // These programs build and run the operator's image.
    ("musl-gcc", "musl-tools"),
    ("buildah", "buildah"),
    ("podman", "podman"),
    ("runc", "runc"),
    ("/usr/share/ca-certificates/mozilla", "ca-certificates"),
    // Redis, here without the service of `redis-server`, is the cache of Argo CD in the nightly check.
    ("redis-check-rdb", "redis-tools"),
    // Tests of the page of the command `ui` need a browser and a font.
    ("chromium", "chromium"),
    ("chromedriver", "chromium-driver"),
    ("/usr/share/fonts/truetype/dejavu", "fonts-dejavu-core"),
    // The image for `oc adm must-gather` contains these programs.
    ("/bin/bash-static", "bash-static"),
    ("/bin/busybox", "busybox-static"),
];

/// Disk, memory and time of `make demo`.
const NEEDS_OF_DEMO: &str = "the demonstration takes up to 20 GB of disk and 6 GB of memory, and on 2 cores about 10 minutes the first time until nodes are Ready";
/// Disk, memory and time of `make test`.
const NEEDS_OF_TESTS: &str = "the tests take up to 50 GB of disk in the caches of cargo, Go and this repository, 8 GB of memory, and on 2 cores half an hour, or more than an hour the first time";

/// Debian's Rust with the source of its standard library, for cross-builds if rustup cannot add the Windows target.
const DEBIAN_RUST: &[(&str, &str)] = &[
    ("/usr/bin/rustc", "rustc-web"),
    ("/usr/bin/cargo", "cargo-web"),
    ("/usr/lib/rustlib/src/rust/library", "rust-web-src"),
];

/// Installs what the demonstration, tests and images need and this machine lacks: Debian packages, as root, and targets of the Rust toolchain.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Install only the requirements of the demonstration.
    #[arg(long)]
    demo: bool,
}

/// Prints the needed disk, memory and time, and installs missing Rust targets and packages. Packages are installed as root on Debian; other users get
/// a list of them. Go is not installed: Debian's version is too old for Kubernetes, so a missing Go is an error with a remedy.
pub(crate) fn setup(args: &Args) -> Result<()> {
    if find("go").is_none() {
        bail!(
            "Go is not installed: install the version in tools/testbed/go/go.mod or a later one from https://go.dev/dl/"
        );
    }
    println!("setup: {}", if args.demo { NEEDS_OF_DEMO } else { NEEDS_OF_TESTS });
    let present = |place: &str| {
        if place.starts_with('/') { Path::new(place).exists() } else { find(place).is_some() }
    };
    let mut packages = missing(OF_DEMO, present);
    if !ensure_target(WINDOWS_TARGET) {
        packages.extend(missing(DEBIAN_RUST, present));
    }
    if !args.demo {
        packages.extend(missing(OF_TESTS, present));
        if !ensure_target(STATIC_TARGET) {
            skip(&format!("images cannot be built or tested: rustup cannot add the target {STATIC_TARGET}"))?;
        }
    }
    if packages.is_empty() {
        println!("setup: all requirements are installed");
        return Ok(());
    }
    if !is_root() {
        return skip(&format!(
            "these packages are missing, and only root can install them: {}. Tests that need them are skipped",
            packages.join(" ")
        ));
    }
    install(&packages)
}

/// Reports whether this process runs as root.
fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// Returns the packages of those programs and files that are not `present`.
fn missing<'a>(wanted: &[(&str, &'a str)], present: impl Fn(&str) -> bool) -> Vec<&'a str> {
    wanted.iter().filter(|(place, _)| !present(place)).map(|(_, package)| *package).collect()
}

/// Reports whether the pinned toolchain has a target, after an attempt to add it.
fn ensure_target(target: &str) -> bool {
    if has_target(target) {
        return true;
    }
    eprintln!("setup: rustup target add {target}");
    let added = Command::new("rustup").current_dir(workspace_root()).args(["target", "add", target]).status();
    added.is_ok_and(|status| status.success()) && has_target(target)
}

fn install(packages: &[&str]) -> Result<()> {
    eprintln!("setup: apt-get install {}", packages.join(" "));
    apt_get(&["update", "-q"])?;
    let options = ["install", "-q", "-y", "--no-install-recommends"];
    apt_get(&[&options, packages].concat())
}

fn apt_get(args: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    let status = command.args(args).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).status();
    let status = status.context("cannot start apt-get: on a system other than Debian, install the packages by hand")?;
    if !status.success() {
        bail!("apt-get {}: {status}", args.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_installed() {
        assert_eq!(missing(OF_DEMO, |_| true), Vec::<&str>::new());
        assert_eq!(missing(OF_DEMO, |place| place != "sshd"), ["openssh-server"]);
    }
}
