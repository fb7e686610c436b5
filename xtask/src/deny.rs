//! `cargo xtask deny`: cargo-deny over deny.toml.

use std::process::Command;

use anyhow::Result;
use devenv::execute;

use crate::tools::prebuilt;

/// Seconds to fetch the advisories.
const FETCH: &str = "120";

/// Checks licenses, sources, duplicates and, where their database can be fetched, known vulnerabilities of dependencies with cargo-deny.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Runs cargo-deny.
pub(crate) fn run(_: &Args) -> Result<()> {
    let mut deny = prebuilt("cargo-deny")?;
    let mut fetch = Command::new("timeout");
    fetch.arg(FETCH).arg(deny.get_program()).args(["fetch", "db"]);
    execute(deny.args(["check", "bans", "licenses", "sources"]))?;
    if execute(&mut fetch).is_err() {
        println!(
            "LEFT OUT: the advisories (https://github.com/RustSec/advisory-db) cannot be fetched; known vulnerabilities were not looked up. Git fetches them: \
             `git config --global url.<mirror>.insteadOf https://github.com/RustSec/advisory-db` names a mirror."
        );
        return Ok(());
    }
    execute(prebuilt("cargo-deny")?.args(["check", "--disable-fetch", "advisories"]))
}

#[cfg(test)]
mod tests {
    use devenv::workspace_root;

    use super::*;

    /// The reason for which deny.toml takes the vulnerability of `rsa`; that no crate of ours uses it itself, its section `bans` says.
    #[test]
    fn nothing_is_decrypted_with_rsa() {
        let mut git = Command::new("git");
        let grep = git.args(["grep", "-h", r"\.decrypt", "--", "*.rs", ":!*/deny.rs"]).current_dir(workspace_root());
        let found = String::from_utf8(grep.output().unwrap().stdout).unwrap();
        assert!(found.contains(".decrypt_with_password("), "{found}");
        assert!(found.lines().all(|line| !line.replace(".decrypt_with_password(", "").contains(".decrypt")), "{found}");
    }
}
