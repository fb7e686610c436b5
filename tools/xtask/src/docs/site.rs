//! Site of the documentation, built by mdBook. Files outside of `docs/` are copied to a folder of their own.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result};
use devenv::execute;

use crate::{
    tools::{LYCHEE, MDBOOK, MDBOOK_MERMAID, prebuilt},
    tracked,
};

/// Builds the site in target/site, and checks its links.
pub(super) fn build(root: &Path) -> Result<()> {
    let (mdbook, mermaid) = (MDBOOK.program()?, MDBOOK_MERMAID.program()?);
    let (stage, site) = (root.join("target/book"), root.join("target/site"));
    if stage.exists() {
        fs::remove_dir_all(&stage)?;
    }
    for path in tracked(&["docs", "examples", "LICENSE", "*.md"])? {
        let to = stage.join(staged(&path));
        fs::create_dir_all(to.parent().context("the path of a file has no folder")?)?;
        match path.strip_suffix(".md") {
            Some(_) => fs::write(&to, with_links(&path, &fs::read_to_string(root.join(&path))?))?,
            None => fs::copy(root.join(&path), &to).map(drop)?,
        }
    }
    execute(Command::new(&mermaid).arg("install").arg(&stage))?;
    // mdBook starts mdbook-mermaid by its name.
    let folder = mermaid.parent().context("the path of a program has no folder")?.to_owned();
    let others = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(folder).chain(std::env::split_paths(&others)))?;
    execute(Command::new(mdbook).arg("build").arg(&stage).env("PATH", path))?;
    execute(prebuilt("lychee")?.args(LYCHEE).args(["--root-dir".into(), site.clone(), site]))?;
    println!("{}", root.join("target/site/index.html").display());
    Ok(())
}

/// Returns the path of a file in mdBook's input folder.
fn staged(path: &str) -> String {
    match path.strip_prefix("docs/") {
        Some(setting @ ("book.toml" | "site.css" | "site.js")) => setting.to_owned(),
        Some(page) => format!("src/{page}"),
        None => format!("src/repository/{path}"),
    }
}

/// Returns the page, with its links between `docs/` and the rest of the repository adapted to the site. mdBook makes `index.md` of a folder's
/// `README.md`, but needs the true name in the table of contents.
fn with_links(path: &str, text: &str) -> String {
    let folders = path.matches('/').count();
    let text = match path.strip_prefix("docs/") {
        Some(_) => text
            .replace(&format!("]({}", "../".repeat(folders)), &format!("]({}repository/", "../".repeat(folders - 1))),
        None => text.replace(&format!("]({}docs/", "../".repeat(folders)), &format!("]({}", "../".repeat(folders + 1))),
    };
    if path == super::SUMMARY {
        text
    } else {
        text.replace("README.md)", "index.md)").replace("README.md#", "index.md#")
    }
}
