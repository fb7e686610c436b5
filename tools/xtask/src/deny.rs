//! `cargo xtask deny`: runs cargo-deny with `deny.toml`.

use std::process::Command;

use anyhow::Result;
use devenv::execute;

use crate::tools::prebuilt;

/// Time limit for fetching the advisories, in seconds.
const FETCH: &str = "120";

/// Checks dependencies with cargo-deny: licenses, sources, duplicates and, if the database can be fetched, known vulnerabilities.
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
            "LEFT OUT: the advisories (https://github.com/RustSec/advisory-db) cannot be fetched, so dependencies were not checked for \
             known vulnerabilities. To fetch them from a mirror: `git config --global url.<mirror>.insteadOf https://github.com/RustSec/advisory-db`."
        );
        return Ok(());
    }
    execute(prebuilt("cargo-deny")?.args(["check", "--disable-fetch", "advisories"]))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use devenv::workspace_root;

    use super::*;

    /// Returns an advisory for all versions of a crate.
    fn advisory(id: &str, package: &str) -> String {
        format!(
            "```toml\n[advisory]\nid = \"{id}\"\npackage = \"{package}\"\ndate = \"2023-11-22\"\n\n[versions]\npatched = []\n```\n\n# A fault\n\nFor this test.\n"
        )
    }

    /// Checks that vulnerabilities that `deny.toml` lists pass, and that any other vulnerability is an error.
    #[test]
    fn recorded_vulnerabilities_pass_and_others_fail() {
        for (advisories, expected) in [
            (&[("RUSTSEC-2023-0071", "rsa")][..], true),
            (&[("RUSTSEC-2023-0071", "rsa"), ("RUSTSEC-2099-0001", "serde")], false),
        ] {
            let files = tempfile::tempdir().unwrap();
            let (repository, config) = (files.path().join("repository"), files.path().join("deny.toml"));
            for (id, package) in advisories {
                let folder = repository.join("crates").join(package);
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join(format!("{id}.md")), advisory(id, package)).unwrap();
            }
            let git = |args: &[&str]| {
                let mut git = Command::new("git");
                git.arg("-C").arg(&repository).args(["-c", "user.name=a", "-c", "user.email=a@example.com"]).args(args);
                execute(&mut git).unwrap();
            };
            git(&["init", "--quiet", "--initial-branch", "main"]);
            git(&["add", "--all"]);
            git(&["commit", "--quiet", "--message", "Advisories"]);
            let ours = fs::read_to_string(workspace_root().join("deny.toml")).unwrap();
            let path = format!("[advisories]\ndb-path = \"{}\"", files.path().join("database").display());
            fs::write(&config, ours.replace("[advisories]", &path)).unwrap();
            let mut deny = prebuilt("cargo-deny").unwrap();
            deny.arg("--config").arg(&config).env("GIT_CONFIG_COUNT", "1");
            deny.env("GIT_CONFIG_KEY_0", format!("url.file://{}.insteadOf", repository.display()))
                .env("GIT_CONFIG_VALUE_0", "https://github.com/RustSec/advisory-db");
            let output = deny.args(["check", "advisories"]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.success(), expected, "{advisories:?}: {said}");
            assert!(expected || (said.contains("RUSTSEC-2099-0001") && !said.contains("RUSTSEC-2023-0071")), "{said}");
        }
    }

    /// Checks the reason why `deny.toml` ignores the vulnerability of `rsa`: no code decrypts with it. The section `bans` there forbids direct use
    /// of `rsa`.
    #[test]
    fn nothing_is_decrypted_with_rsa() {
        let mut git = Command::new("git");
        let grep = git.args(["grep", "-h", r"\.decrypt", "--", "*.rs", ":!*/deny.rs"]).current_dir(workspace_root());
        let found = String::from_utf8(grep.output().unwrap().stdout).unwrap();
        assert!(found.contains(".decrypt_with_password("), "{found}");
        assert!(found.lines().all(|line| !line.replace(".decrypt_with_password(", "").contains(".decrypt")), "{found}");
    }
}
