//! `cargo xtask tracked`: finds tracked files that belong in no commit: what a build has made, large ones, and those that name a folder of the machine
//! on which they were made.

use std::{fs, io, process::Command};

use anyhow::{Context as _, Result, ensure};
use devenv::workspace_root;

/// Finds tracked files that a build has made, that are large, or that name a folder of a machine.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Folders that builds make.
const BUILT: &[&str] = &["target", "node_modules", "__pycache__"];
/// Ends of the names of what builds make.
const BUILT_FILES: &[&str] = &[".o", ".a", ".so", ".rlib", ".rmeta", ".pdb", ".exe", ".dll", ".pyc", ".profraw"];
/// Largest file without a reason, in bytes.
const LARGEST: usize = 1 << 20;
/// Larger ones, and the reason.
const LARGE: &[(&str, &str)] = &[];
/// Folders that have folders of users or of builds in them.
const OF_MACHINES: &[&str] = &["/home/", "/tmp/"];

/// Checks all tracked files, also those that are not committed yet.
pub(crate) fn run(_: &Args) -> Result<()> {
    let output = Command::new("git").args(["ls-files", "-z"]).current_dir(workspace_root()).output();
    let output = output.context("run git")?;
    ensure!(output.status.success(), "git ls-files: {}", output.status);
    let names = String::from_utf8(output.stdout)?;
    let (mut count, mut problems) = (0, Vec::new());
    for name in names.split_terminator('\0') {
        let content = match fs::read(workspace_root().join(name)) {
            // Deleted, and not yet from the index; or a link to a folder.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::IsADirectory) => continue,
            content => content.with_context(|| format!("read {name}"))?,
        };
        count += 1;
        problems.extend(problem(name, &content, LARGE).map(|problem| format!("{name}: {problem}")));
    }
    ensure!(problems.is_empty(), "files that belong in no commit:\n  {}", problems.join("\n  "));
    println!("{count} files");
    Ok(())
}

/// What is wrong with a file, and what to do.
fn problem(name: &str, content: &[u8], large: &[(&str, &str)]) -> Option<String> {
    let (folders, file) = name.rsplit_once('/').unwrap_or(("", name));
    if folders.split('/').any(|folder| BUILT.contains(&folder)) || BUILT_FILES.iter().any(|end| file.ends_with(end)) {
        return Some("a build makes it: take it out with `git rm --cached`, and name it in .gitignore".into());
    }
    if content.len() > LARGEST && !large.iter().any(|(one, _)| *one == name) {
        return Some(format!(
            "it has {} KiB: make it smaller, or give the reason in xtask/src/tracked.rs",
            content.len() >> 10
        ));
    }
    let text = String::from_utf8_lossy(content);
    let (line, path) = text.lines().zip(1..).find_map(|(line, number)| Some((number, of_machine(line)?)))?;
    Some(format!(
        "line {line} names {path}, a folder of a machine: name it by a variable, or from the root of the repository"
    ))
}

/// The folder of a user or of a build that a text names.
fn of_machine(text: &str) -> Option<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let begins = |at: usize| !text[..at].ends_with(|c: char| is_part(c) || c == '/');
    let root = concat!("/ro", "ot/");
    if let Some((at, found)) = text.match_indices(root).find(|(at, _)| begins(*at)) {
        return text.get(at..at + found.len());
    }
    OF_MACHINES.iter().flat_map(|folder| text.match_indices(folder)).filter(|(at, _)| begins(*at)).find_map(
        |(at, folder)| {
            let below = at + folder.len();
            let end = below + text[below..].find(|c: char| !is_part(c))?;
            (end > below && text[end..].starts_with('/')).then(|| &text[at..=end])
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_in_no_commit_is_found() {
        let big = vec![b'a'; LARGEST + 1];
        let below = |folder: &str, rest: &str| format!("see {}{rest}", folder.replace('+', "")).into_bytes();
        for (about, name, content, part) in [
            ("a source", "a/src/lib.rs", b"//! A file".to_vec(), None),
            ("a folder of a build", "a/target/debug/x.d", Vec::new(), Some("a build makes it")),
            ("a file of that name", "docs/target", Vec::new(), None),
            ("a program", "bin/wicd.exe", Vec::new(), Some("a build makes it")),
            ("a large one", "a.json", big.clone(), Some("1024 KiB")),
            ("a large one with a reason", "known.json", big.clone(), None),
            ("none that is too large", "a.json", big[1..].to_vec(), None),
            ("root's folder", "a.md", below("/+root/", ".cargo"), Some("line 1")),
            ("a folder of that name elsewhere", "a.md", below("var/+root/", "x"), None),
            ("a user's folder", "a.md", [b"one\n".to_vec(), below("/+home/", "me/x")].concat(), Some("line 2")),
            ("a user", "a.md", below("/+home/", "me"), None),
            ("a build's folder", "a.log", below("/+tmp/", ".tmpAb1/x"), Some("names /")),
            ("a file for a short time", "a.md", below("/+tmp/", "x.yaml and more"), None),
            ("no text", "a.png", vec![0xff, 0xfe, 0], None),
        ] {
            let found = problem(name, &content, &[("known.json", "the reason")]);
            assert_eq!(found.is_some(), part.is_some(), "{about}: {found:?}");
            assert!(
                part.is_none_or(|part| found.as_ref().is_some_and(|found| found.contains(part))),
                "{about}: {found:?}"
            );
        }
    }
}
