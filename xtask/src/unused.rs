//! `cargo xtask unused`: finds dependencies that no source names.
//!
//! A dependency is used if a file of the package names it at the beginning of a path (`name::…`), as an import (`use name;`), or in a string of an
//! attribute. Dependencies of code count files in `src/`, those for tests also files in `tests/`, `benches/` and `examples/`. A dependency that is there for
//! another reason is in [`EXCEPTIONS`], with the reason.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use devenv::workspace_root;
use proc_macro2::{TokenStream, TokenTree};

use crate::source::{self, Kind, Package, is_punct, is_separator};

/// Package, dependency, and why it is there although no source names it.
const EXCEPTIONS: &[(&str, &str, &str)] =
    &[("gitops", "k8s-openapi", "for tests, selects the version of the Kubernetes API that the types of api are of")];

/// Finds dependencies that no source names, and those of the workspace that no package has.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Checks the packages of the workspace and of the fuzz targets.
pub(crate) fn run(_: &Args) -> Result<()> {
    let mut packages = source::packages(Path::new("Cargo.toml"))?;
    packages.extend(source::packages(Path::new("fuzz/Cargo.toml"))?);
    let mut problems = Vec::new();
    let mut named = BTreeSet::new();
    let mut excused = BTreeSet::new();
    for package in &packages {
        let words = Words::read(package)?;
        for dependency in &package.dependencies {
            named.insert(dependency.key.clone());
            if words.name(&dependency.key, dependency.kind) {
                continue;
            }
            let excuse = EXCEPTIONS.iter().position(|(p, d, _)| *p == package.name && *d == dependency.key);
            match excuse {
                Some(excuse) => _ = excused.insert(excuse),
                None => problems.push(format!("{}/Cargo.toml: {}", package.name, dependency.key)),
            }
        }
    }
    let root = workspace_root().join("Cargo.toml");
    let root = fs::read_to_string(&root).with_context(|| format!("read {}", root.display()))?;
    problems.extend(keys(&root).filter(|key| !named.contains(*key)).map(|key| format!("Cargo.toml: {key}")));
    ensure!(
        problems.is_empty(),
        "no source names these dependencies; remove them, or list them in xtask/src/unused.rs:\n  {}",
        problems.join("\n  ")
    );
    for (at, (package, dependency, reason)) in EXCEPTIONS.iter().enumerate() {
        ensure!(
            excused.contains(&at),
            "xtask/src/unused.rs lists {dependency} of {package} ({reason}), but a source names it: remove the entry"
        );
    }
    println!("{} packages; each dependency is used", packages.len());
    Ok(())
}

/// Keys of the section `[workspace.dependencies]`, one on each line.
fn keys(manifest: &str) -> impl Iterator<Item = &str> {
    let lines = manifest.lines().skip_while(|line| *line != "[workspace.dependencies]").skip(1);
    let entries = lines.take_while(|line| !line.starts_with('['));
    entries.filter(|line| !line.starts_with('#')).filter_map(|line| Some(line.split_once('=')?.0.trim()))
}

/// The names of crates that a package's sources may mean.
#[derive(Default)]
struct Words {
    code: BTreeSet<String>,
    tests: BTreeSet<String>,
    build: BTreeSet<String>,
}

impl Words {
    fn read(package: &Package) -> Result<Self> {
        let mut words = Self::default();
        let read = |files: Vec<PathBuf>, into: &mut BTreeSet<String>| -> Result<()> {
            for file in files {
                let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
                collect(source::tokens(&text).with_context(|| format!("{} is no Rust", file.display()))?, into);
            }
            Ok(())
        };
        read(source::rust_files(&package.folder.join("src"))?, &mut words.code)?;
        for folder in ["tests", "benches", "examples"] {
            read(source::rust_files(&package.folder.join(folder))?, &mut words.tests)?;
        }
        read(source::rust_files(&package.folder.join("build.rs"))?, &mut words.build)?;
        Ok(words)
    }

    fn name(&self, dependency: &str, kind: Kind) -> bool {
        let name = dependency.replace('-', "_");
        match kind {
            Kind::Normal => self.code.contains(&name),
            Kind::Dev => self.code.contains(&name) || self.tests.contains(&name),
            Kind::Build => self.build.contains(&name),
        }
    }
}

/// Adds the words at the beginnings of paths, those that are imported, and those at the beginnings of paths in strings.
fn collect(stream: TokenStream, words: &mut BTreeSet<String>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => collect(group.stream(), words),
            TokenTree::Ident(word) => {
                let after =
                    |keyword: &str| at > 0 && matches!(&tokens[at - 1], TokenTree::Ident(before) if before == keyword);
                if after("use") || after("crate") || (is_separator(&tokens, at + 1) && is_head(&tokens, at)) {
                    words.insert(word.to_string());
                }
            }
            TokenTree::Literal(literal) => {
                // Attributes of serde and clap name functions in strings.
                let text = literal.to_string();
                let first = text.trim_matches('"').split_once("::").map(|(first, _)| first.to_owned());
                words.extend(first.filter(|first| first.chars().all(|c| c.is_alphanumeric() || c == '_')));
            }
            TokenTree::Punct(_) => {}
        }
    }
}

/// Whether a word is the first of its path, perhaps after the `::` that means another crate.
fn is_head(tokens: &[TokenTree], at: usize) -> bool {
    let before = at.checked_sub(2).filter(|before| is_separator(tokens, *before));
    let Some(separator) = before else { return true };
    !separator.checked_sub(1).is_some_and(|i| match &tokens[i] {
        TokenTree::Ident(word) => word != "use",
        // The end of type parameters, not of `->`.
        token => is_punct(token, '>') && !i.checked_sub(1).is_some_and(|dash| is_punct(&tokens[dash], '-')),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_found_where_sources_name_them() {
        for (text, used) in [
            ("use x::Y;", true),
            ("use x;", true),
            ("use x as z;", true),
            ("use {std::fs, x::{Y, Z}};", true),
            ("extern crate x;", true),
            ("#[x::main] fn f() {}", true),
            ("#[derive(x::Y)] struct S;", true),
            ("#[serde(with = \"x::time\")] struct S;", true),
            ("fn f() { g!(x::y()) }", true),
            ("fn f() -> ::x::Y { z }", true),
            ("use ::x::Y;", true),
            ("use crate::x::Y;", false),
            ("fn f() { a::x::y(); Vec::<u8>::x::y() }", false),
            ("fn f(x: u8) { x.y(); }", false),
            ("// x::Y\n/// [`x::Y`] is meant\nfn f() {}", false),
            ("const TEXT: &str = \"see x::y\";", false),
        ] {
            let mut words = BTreeSet::new();
            collect(source::tokens(text).unwrap(), &mut words);
            assert_eq!(words.contains("x"), used, "{text}");
        }
    }

    #[test]
    fn code_does_not_use_what_only_tests_name() {
        let words = Words { tests: ["x_y".to_owned()].into(), ..Words::default() };
        assert!(words.name("x-y", Kind::Dev));
        assert!(!words.name("x-y", Kind::Normal));
        assert!(!words.name("x-y", Kind::Build));
    }

    #[test]
    fn keys_of_the_workspace_are_read() {
        let manifest = "[workspace]\nmembers = []\n[workspace.dependencies]\n# About a.\na = \"1\"\nb-c = { version = \"2\", features = [] }\n\n[profile.dev]\nd = 1\n";
        assert_eq!(keys(manifest).collect::<Vec<_>>(), ["a", "b-c"]);
    }
}
