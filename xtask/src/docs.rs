//! `cargo xtask docs`: checks the documentation as a whole, and builds its site with mdBook.

mod blocks;
mod claims;
mod site;
mod summary;

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use devenv::workspace_root;

use crate::links;

/// The page that is generated here: which commands of the guide and of runbooks are run.
const COMMANDS: &str = "docs/reference/commands.md";

/// Writes the list of the commands of guide and runbooks, and builds the site of the documentation in target/site.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build nothing and write nothing: fail if a page is not in docs/SUMMARY.md, a test that a page names does not exist, a command of the guide or of a runbook is neither run nor says why not, or the list of commands
    /// is not up to date.
    #[arg(long)]
    pub check: bool,
}

/// Checks or builds.
pub(crate) fn run(args: &Args) -> Result<()> {
    let files = tracked()?;
    let root = workspace_root();
    let documents = read(&root, &files)?;
    let faults = summary::faults(&documents);
    ensure!(faults.is_empty(), "docs/SUMMARY.md:\n  {}", faults.join("\n  "));
    let source_of = |test: &str| fs::read_to_string(root.join(blocks::source(test))).ok();
    let faults = claims::faults(&documents, &source_of);
    ensure!(faults.is_empty(), "tests that pages name:\n  {}", faults.join("\n  "));
    let blocks = blocks::all(&documents);
    let faults = blocks::faults(&blocks, &source_of);
    ensure!(faults.is_empty(), "commands of the guide and of runbooks:\n  {}", faults.join("\n  "));
    let page = blocks::page(&blocks);
    if args.check {
        ensure!(documents.get(COMMANDS) == Some(&page), "{COMMANDS} is not up to date; run `cargo xtask docs`");
        println!("{} pages, {} blocks of commands", documents.len(), blocks.len());
        return Ok(());
    }
    fs::write(root.join(COMMANDS), &page).with_context(|| format!("write {COMMANDS}"))?;
    site::build(&root, &files, documents)
}

/// Files of the repository.
fn tracked() -> Result<Vec<String>> {
    let output = Command::new("git").arg("ls-files").current_dir(workspace_root()).output().context("run git")?;
    ensure!(output.status.success(), "git ls-files: {}", output.status);
    let files = String::from_utf8(output.stdout)?.lines().map(ToOwned::to_owned).collect();
    Ok(files)
}

/// The documents among them, by path.
fn read(root: &Path, files: &[String]) -> Result<BTreeMap<String, String>> {
    let documents = files.iter().filter(|path| links::is_document(path));
    documents
        .map(|path| {
            let text = fs::read_to_string(root.join(path)).with_context(|| format!("read {path}"))?;
            Ok((path.clone(), text))
        })
        .collect()
}
