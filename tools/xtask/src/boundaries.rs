//! `cargo xtask boundaries`: checks that crates have no forbidden dependencies, direct or indirect.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use devenv::{cargo, read};

/// Packages, their forbidden dependencies, and the reasons. Dependencies of build scripts, procedural macros and tests are ignored.
const BOUNDARIES: &[(&str, &[&str], &str)] = &[
    ("api", &["kube-client", "hyper", "reqwest", "russh", "tokio"], "types for operator and host, without I/O"),
    (
        "wnp-core",
        &["controller", "gitops", "hyper", "kube-client", "remote", "reqwest", "russh", "tokio"],
        "decisions, without I/O",
    ),
    ("gitops", &["controller", "kube-client", "remote"], "lists of hosts, without Kubernetes"),
    ("remote", &["controller", "gitops", "hyper", "kube-client", "reqwest"], "the way to a host, without Kubernetes"),
    ("wicd", &["controller", "gitops", "russh", "testbed"], "the host side, which goes over the wire to each host"),
    ("controller", &["testbed", "wicd"], "the operator, without test code"),
    ("xtask", &["api", "controller", "kube", "testbed", "tokio"], "starts within seconds in a fresh clone"),
];

/// Checks that crates have no forbidden dependencies, direct or indirect.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Checks all [`BOUNDARIES`].
pub(crate) fn run(_: &Args) -> Result<()> {
    let mut problems = Vec::new();
    for (package, forbidden, reason) in BOUNDARIES {
        let tree = tree(package)?;
        let crossed: Vec<&str> = forbidden.iter().copied().filter(|name| tree.contains(*name)).collect();
        if crossed.is_empty() {
            println!("{package}: {} dependencies, without {}", tree.len() - 1, forbidden.join(", "));
        }
        for name in crossed {
            problems.push(format!(
                "{package} ({reason}) has {name}: `cargo tree -p {package} -e normal -i {name}` shows how"
            ));
        }
    }
    ensure!(problems.is_empty(), "forbidden dependencies:\n  {}", problems.join("\n  "));
    Ok(())
}

/// Returns the names of a package and of all packages that are compiled into it, with the features that it selects.
fn tree(package: &str) -> Result<BTreeSet<String>> {
    let mut cargo = cargo();
    cargo.args(["tree", "--locked", "--package", package, "--edges", "normal,no-proc-macro", "--prefix", "none"]);
    let tree = names(&read(&mut cargo)?);
    ensure!(tree.contains(package), "cargo tree does not name {package}");
    Ok(tree)
}

/// Returns the package names in lines such as `tokio v1.47.0 (*)`.
fn names(tree: &str) -> BTreeSet<String> {
    tree.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}
