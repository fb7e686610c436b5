//! `cargo xtask deny`: cargo-deny over deny.toml, at a pinned version that is built once and kept.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use devenv::{execute, workspace_root};

use crate::tools::CARGO_DENY;

/// Time to fetch the advisories.
const FETCH: Duration = Duration::from_mins(2);

/// Checks licenses, sources, duplicates and, where their database can be fetched, known vulnerabilities of dependencies with cargo-deny, which is
/// built first if need be (minutes).
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Runs cargo-deny.
pub(crate) fn run(_: &Args) -> Result<()> {
    let program = CARGO_DENY.program()?;
    let deny = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("--manifest-path").arg(workspace_root().join("Cargo.toml")).args(args);
        command
    };
    execute(&mut deny(&["check", "bans", "licenses", "sources"]))?;
    if !succeeds_within(FETCH, &mut deny(&["fetch", "db"]))? {
        println!(
            "LEFT OUT: the advisories (https://github.com/RustSec/advisory-db) cannot be fetched; known vulnerabilities were not looked up. Git fetches them: \
             `git config --global url.<mirror>.insteadOf https://github.com/RustSec/advisory-db` names a mirror."
        );
        return Ok(());
    }
    execute(&mut deny(&["check", "--disable-fetch", "advisories"]))
}

/// Whether a program succeeds in this time. It is ended if it takes longer.
fn succeeds_within(limit: Duration, command: &mut Command) -> Result<bool> {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("start cargo-deny")?;
    let begin = Instant::now();
    while begin.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    child.kill()?;
    child.wait()?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const DATABASE: &str = "https://github.com/RustSec/advisory-db";

    /// An advisory on all versions of a crate.
    fn advisory(id: &str, package: &str) -> String {
        format!(
            "```toml\n[advisory]\nid = \"{id}\"\npackage = \"{package}\"\ndate = \"2023-11-22\"\n\n[versions]\npatched = []\n```\n\n# A fault\n\nFor this test.\n"
        )
    }

    /// A vulnerability that is known is recorded with its reason, and any other one fails the check.
    #[test]
    fn what_is_recorded_passes_and_what_is_not_fails() {
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
            let mut deny = Command::new(CARGO_DENY.program().unwrap());
            deny.arg("--manifest-path").arg(workspace_root().join("Cargo.toml")).arg("--config").arg(&config);
            deny.env("GIT_CONFIG_COUNT", "1")
                .env("GIT_CONFIG_KEY_0", format!("url.file://{}.insteadOf", repository.display()))
                .env("GIT_CONFIG_VALUE_0", DATABASE);
            let output = deny.args(["check", "advisories"]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.success(), expected, "{advisories:?}: {said}");
            assert!(expected || (said.contains("RUSTSEC-2099-0001") && !said.contains("RUSTSEC-2023-0071")), "{said}");
        }
    }

    /// The reason for which the vulnerability of `rsa` is recorded.
    #[test]
    fn nothing_is_decrypted_with_rsa() {
        let mut sources = vec![workspace_root()];
        let mut found = 0;
        while let Some(path) = sources.pop() {
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            if path.is_dir() && !matches!(name, "target" | ".git") {
                sources.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with(file!()) {
                let text = fs::read_to_string(&path).unwrap();
                let with_password = text.matches(".decrypt_with_password(").count();
                assert_eq!(text.matches(".decrypt").count(), with_password, "{}", path.display());
                assert!(!text.contains("rsa::"), "{} uses the crate rsa itself", path.display());
                found += with_password;
            }
        }
        assert!(found > 0, "nothing was found that is decrypted at all");
    }
}
