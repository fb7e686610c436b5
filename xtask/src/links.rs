//! `cargo xtask links`: finds links in the documentation that lead to no file, or to no heading of it, and paths of sources that do not exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use devenv::workspace_root;

/// Finds links between documents that lead nowhere. Links to other sites are not followed.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Checks all tracked Markdown files. A link that leads nowhere is an error.
pub(crate) fn run(_: &Args) -> Result<()> {
    let output = Command::new("git").args(["ls-files"]).current_dir(workspace_root()).output().context("run git")?;
    ensure!(output.status.success(), "git ls-files: {}", output.status);
    let files = String::from_utf8(output.stdout)?;
    let mut documents = BTreeMap::new();
    for path in files.lines().filter(|path| is_document(path)) {
        let text = fs::read_to_string(workspace_root().join(path)).with_context(|| format!("read {path}"))?;
        documents.insert(path.to_owned(), text);
    }
    let broken = broken(&documents, &|path| workspace_root().join(path).exists());
    for (path, line, link) in &broken {
        println!("{path}:{line}: {link} leads nowhere");
    }
    ensure!(broken.is_empty(), "{} links lead nowhere", broken.len());
    println!("{} documents", documents.len());
    Ok(())
}

/// Whether a file is a document.
pub(crate) fn is_document(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|e| e == "md")
}

/// Path, line and target of each link that leads nowhere.
fn broken(documents: &BTreeMap<String, String>, exists: &dyn Fn(&str) -> bool) -> Vec<(String, usize, String)> {
    let anchors: BTreeMap<&str, BTreeSet<String>> =
        documents.iter().map(|(path, text)| (path.as_str(), anchors(text))).collect();
    let mut broken = Vec::new();
    for (path, text) in documents {
        for (line, link) in links(text) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { path.clone() } else { joined(path, file) };
            let has_anchor = anchor.is_empty() || anchors.get(target.as_str()).is_none_or(|all| all.contains(anchor));
            if !exists(&target) || !has_anchor {
                broken.push((path.clone(), line, link));
            }
        }
        let sources = sources(text).into_iter().filter(|(_, source)| !exists(source));
        broken.extend(sources.map(|(line, source)| (path.clone(), line, source)));
    }
    broken
}

/// Code spans that are paths of sources, from the root of the repository, such as `core/src/csr/`.
fn sources(text: &str) -> Vec<(usize, String)> {
    let mut in_block = false;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let fence = line.trim_start().starts_with("```");
        in_block ^= fence;
        if in_block || fence {
            continue;
        }
        for span in line.split('`').skip(1).step_by(2) {
            let is_path = span.starts_with(|c: char| c.is_ascii_lowercase())
                && ["/src/", "/tests/"].iter().any(|part| span.contains(part))
                && span.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
            if is_path {
                found.push((number + 1, span.to_owned()));
            }
        }
    }
    found
}

/// A path that stands in a document, from the root of the repository.
pub(crate) fn joined(document: &str, file: &str) -> String {
    let mut all = PathBuf::new();
    for part in Path::new(document).parent().unwrap_or(Path::new("")).join(file).components() {
        if part == Component::ParentDir {
            all.pop();
        } else {
            all.push(part);
        }
    }
    all.to_string_lossy().into_owned()
}

/// Lines outside of code blocks, with their numbers and without code spans.
fn prose(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut in_block = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let fence = line.trim_start().starts_with("```");
        in_block ^= fence;
        (!in_block && !fence).then(|| (number + 1, line.split('`').step_by(2).collect::<Vec<_>>().join("`")))
    })
}

/// Relative links with their lines.
pub(crate) fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        for rest in line.split("](").skip(1) {
            let link = rest.split([')', ' ']).next().unwrap_or_default();
            if is_relative(link) {
                links.push((number, link.to_owned()));
            }
        }
    }
    links
}

fn is_relative(link: &str) -> bool {
    !link.is_empty() && !link.contains("://") && !link.starts_with("mailto:")
}

/// The text with other relative links.
pub(crate) fn with_links(text: &str, other: impl Fn(&str) -> String) -> String {
    let mut in_block = false;
    let changed = |line: &str| {
        let mut parts = line.split("](");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |line, part| {
            let (link, rest) = part.split_at(part.find([')', ' ']).unwrap_or(0));
            format!("{line}]({}{rest}", if is_relative(link) { other(link) } else { link.to_owned() })
        })
    };
    let lines = text.lines().map(|line| {
        let fence = line.trim_start().starts_with("```");
        in_block ^= fence;
        (if in_block || fence { line.to_owned() } else { changed(line) }) + "\n"
    });
    lines.collect()
}

/// Anchors of the headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut in_block = false;
    let headings = text.lines().filter_map(move |line| {
        in_block ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        (!in_block && line.starts_with('#') && heading.starts_with(' ')).then(|| heading.trim().to_lowercase())
    });
    let kept = |c: char| (c.is_alphanumeric() || "_- ".contains(c)).then_some(if c == ' ' { '-' } else { c });
    headings.map(|heading| heading.chars().filter_map(kept).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_files_and_headings() {
        let text = "# One\n## What `it` does, and why\n```sh\n# not a heading\n[a](b.md)\n```\n`[c](d.md)`\n";
        for (link, is_broken) in [
            ("other.md", false),
            ("../README.md", false),
            ("missing.md", true),
            ("#one", false),
            ("#what-it-does-and-why", false),
            ("#two", true),
            ("other.md#there", false),
            ("other.md#not-there", true),
            ("../crds/a.yaml", false),
            ("https://example.com/x#y", false),
        ] {
            let documents = BTreeMap::from([
                ("docs/a.md".to_owned(), format!("{text}See [this]({link}).\n")),
                ("docs/other.md".to_owned(), "# There\n".to_owned()),
            ]);
            let exists = |p: &str| ["docs/a.md", "docs/other.md", "README.md", "crds/a.yaml"].contains(&p);
            let expected = if is_broken { vec![("docs/a.md".to_owned(), 8, link.to_owned())] } else { Vec::new() };
            assert_eq!(broken(&documents, &exists), expected, "{link}");
        }
    }

    #[test]
    fn links_can_be_changed() {
        let text = "A [b](c.md#d), [e](https://f) and [g](h \"i\").\n```\n[j](k.md)\n```\n";
        let changed = "A [b](C.MD#D), [e](https://f) and [g](H \"i\").\n```\n[j](k.md)\n```\n";
        assert_eq!(with_links(text, str::to_uppercase), changed);
    }

    #[test]
    fn paths_of_sources_exist() {
        let text = "`core/src/a.rs`, `core/src/gone.rs`, `/src/x`, `a b/src/c`\n```\n`core/src/gone.rs`\n```\n";
        let documents = BTreeMap::from([("a.md".to_owned(), text.to_owned())]);
        let expected = vec![("a.md".to_owned(), 1, "core/src/gone.rs".to_owned())];
        assert_eq!(broken(&documents, &|path| path == "core/src/a.rs"), expected);
    }
}
