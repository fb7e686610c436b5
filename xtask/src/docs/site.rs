//! The site: mdBook over the pages as they are. What lies outside of `docs/` and is linked comes along in a folder of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result};
use devenv::execute;

use crate::{
    links,
    spelling::OWN_WORDS,
    tools::{MDBOOK, MDBOOK_MERMAID},
};

/// Files of `docs/` that are no pages.
const SETTINGS: [&str; 2] = ["book.toml", "site.css"];
/// Where the sources of the site are made.
const STAGE: &str = "target/book";
/// Where files from outside of `docs/` are in the site.
const OUTSIDE: &str = "repository";

/// Builds the site.
pub(super) fn build(root: &Path, files: &[String], documents: BTreeMap<String, String>) -> Result<()> {
    let (mdbook, mermaid) = (MDBOOK.program()?, MDBOOK_MERMAID.program()?);
    let stage = root.join(STAGE);
    if stage.exists() {
        fs::remove_dir_all(&stage)?;
    }
    let is_file: BTreeSet<&str> = files.iter().map(String::as_str).collect();
    for path in of_site(&documents, &is_file) {
        let to = stage.join("src").join(staged(&path));
        fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        match documents.get(&path) {
            Some(text) => fs::write(&to, links::with_links(text, |link| moved(&path, link)))?,
            None => fs::copy(root.join(&path), &to).map(drop)?,
        }
    }
    for name in SETTINGS {
        fs::copy(root.join("docs").join(name), stage.join(name)).with_context(|| format!("copy docs/{name}"))?;
    }
    execute(Command::new(&mermaid).arg("install").arg(&stage))?;
    // mdBook starts the other program by its name.
    let folder = mermaid.parent().context("a program has a folder")?.to_owned();
    let others = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(folder).chain(std::env::split_paths(&others)))?;
    execute(Command::new(mdbook).arg("build").arg(&stage).env("PATH", path))?;
    println!("{}", root.join("target/site/index.html").display());
    Ok(())
}

/// The pages, and all that they lead to.
fn of_site(documents: &BTreeMap<String, String>, is_file: &BTreeSet<&str>) -> BTreeSet<String> {
    let mut waiting: Vec<String> = is_file
        .iter()
        .filter(|path| {
            path.starts_with("docs/") && **path != OWN_WORDS && !SETTINGS.iter().any(|name| path.ends_with(name))
        })
        .map(ToString::to_string)
        .collect();
    let mut site = BTreeSet::new();
    while let Some(path) = waiting.pop() {
        if !site.insert(path.clone()) {
            continue;
        }
        let links = documents.get(&path).map(|text| links::links(text)).unwrap_or_default();
        let targets =
            links.into_iter().map(|(_, link)| links::joined(&path, link.split('#').next().unwrap_or_default()));
        waiting.extend(targets.filter(|target| is_file.contains(target.as_str())));
    }
    site
}

/// The place of a file among the sources of the site.
fn staged(path: &str) -> String {
    path.strip_prefix("docs/").map_or_else(|| format!("{OUTSIDE}/{path}"), ToOwned::to_owned)
}

/// A link as it must be in the site.
fn moved(document: &str, link: &str) -> String {
    let (file, anchor) = link.split_at(link.find('#').unwrap_or(link.len()));
    if file.is_empty() {
        return link.to_owned();
    }
    let (from, to) = (staged(document), staged(&links::joined(document, file)));
    // mdBook makes the first page of a folder of it, and the table of contents needs its true name.
    let to = match to.strip_suffix("README.md") {
        Some(folder) if from != "SUMMARY.md" => format!("{folder}index.md"),
        _ => to,
    };
    let up = "../".repeat(from.matches('/').count());
    format!("{up}{to}{anchor}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_the_same_files() {
        for (document, link, expected) in [
            ("docs/guide/a.md", "b.md#c", "../guide/b.md#c"),
            ("docs/guide/a.md", "../../examples/x.yaml", "../repository/examples/x.yaml"),
            ("docs/SUMMARY.md", "../CHANGELOG.md", "repository/CHANGELOG.md"),
            ("CHANGELOG.md", "docs/guide/a.md", "../guide/a.md"),
            ("docs/guide/a.md", "#c", "#c"),
            ("SECURITY.md", "docs/adr/README.md", "../adr/index.md"),
            ("docs/SUMMARY.md", "adr/README.md", "adr/README.md"),
        ] {
            assert_eq!(moved(document, link), expected, "{document} {link}");
        }
    }

    #[test]
    fn what_pages_lead_to_comes_along() {
        let documents = BTreeMap::from([
            ("docs/a.md".to_owned(), "[b](../b.md) [folder](../examples)\n".to_owned()),
            ("b.md".to_owned(), "[c](c.yaml#x)\n".to_owned()),
            ("other.md".to_owned(), String::new()),
        ]);
        let files = BTreeSet::from(["docs/a.md", "docs/book.toml", OWN_WORDS, "b.md", "c.yaml", "other.md"]);
        assert_eq!(Vec::from_iter(of_site(&documents, &files)), ["b.md", "c.yaml", "docs/a.md"]);
    }
}
