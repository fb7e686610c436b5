//! The files of the workspace's packages, for `cargo xtask reasons`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};
use devenv::{forget_caller, workspace_root};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use serde_json::Value;

/// A package of the workspace.
pub(crate) struct Package {
    /// Its name.
    pub name: String,
    /// Files of its libraries and programs, from the root of the repository.
    pub roots: Vec<Root>,
}

/// A library or a program.
pub(crate) struct Root {
    /// Its file, from the root of the repository.
    pub path: String,
}

/// The packages of the workspace with this `Cargo.toml`, a path from the root of the repository.
pub(crate) fn packages(manifest: &Path) -> Result<Vec<Package>> {
    let mut cargo = Command::new("cargo");
    forget_caller(&mut cargo);
    cargo.args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"]);
    let output = cargo.arg(workspace_root().join(manifest)).output().context("start cargo")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    list(&metadata["packages"]).map(package).collect()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> Result<String> {
    Ok(value.as_str().context("cargo metadata has another form than expected")?.to_owned())
}

fn package(package: &Value) -> Result<Package> {
    let mut roots = Vec::new();
    for target in list(&package["targets"]) {
        if list(&target["kind"]).any(|kind| kind == "lib" || kind == "bin") {
            let path = PathBuf::from(text(&target["src_path"])?);
            roots.push(Root { path: path.strip_prefix(workspace_root()).unwrap_or(&path).display().to_string() });
        }
    }
    Ok(Package { name: text(&package["name"])?, roots })
}

/// The tokens of a file.
pub(crate) fn tokens(text: &str) -> Result<TokenStream> {
    text.parse().map_err(|error| anyhow::anyhow!("{error}"))
}

/// A module: a file, or an inline module in one.
pub(crate) struct Module {
    /// Its file, from the root of the repository.
    pub file: String,
}

/// Reads a crate from its root file on. `read` returns the text of a file, or `None` if there is no such file.
pub(crate) fn read_crate(
    root: &str,
    read: &dyn Fn(&str) -> Result<Option<String>>,
) -> Result<BTreeMap<Vec<String>, Module>> {
    let mut modules = BTreeMap::new();
    let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut waiting = vec![(Vec::new(), root.to_owned(), folder.to_owned())];
    while let Some((path, file, folder)) = waiting.pop() {
        let text = read(&file)?.with_context(|| format!("{file} does not exist"))?;
        let stream = tokens(&text).with_context(|| format!("{file} is no Rust"))?;
        let mut scan = Scan { file: &file, modules: &mut modules, files: Vec::new() };
        scan.module(&path, stream)?;
        for child in scan.files {
            let below = format!("{folder}/{}", child[path.len()..].join("/"));
            let nested = format!("{below}/mod.rs");
            let file = if read(&nested)?.is_some() { nested } else { format!("{below}.rs") };
            waiting.push((child, file, below));
        }
    }
    Ok(modules)
}

/// The modules of a file as they are found.
struct Scan<'a> {
    file: &'a str,
    modules: &'a mut BTreeMap<Vec<String>, Module>,
    /// Modules that are in files of their own.
    files: Vec<Vec<String>>,
}

impl Scan<'_> {
    /// Reads the items of a module.
    fn module(&mut self, path: &[String], stream: TokenStream) -> Result<()> {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            if let Some(end) = end_of_test_code(&tokens, at) {
                at = end;
            } else if word(token).is_some_and(|word| word == "mod") && name(&tokens, at + 1).is_some() {
                at += self.child(path, &tokens, at)?;
            } else {
                at += 1;
            }
        }
        self.modules.insert(path.to_vec(), Module { file: self.file.to_owned() });
        Ok(())
    }

    /// Reads `mod name;` or `mod name { … }`, and returns how many tokens that is.
    fn child(&mut self, path: &[String], tokens: &[TokenTree], at: usize) -> Result<usize> {
        let name = name(tokens, at + 1).context("a module has a name")?;
        let path = [path, &[name]].concat();
        match tokens.get(at + 2) {
            Some(TokenTree::Group(group)) => self.module(&path, group.stream())?,
            _ if has_path_attribute(&tokens[..at]) => bail!("{}: a module with #[path] is not supported", self.file),
            _ => self.files.push(path),
        }
        Ok(3)
    }
}

/// Whether the item that follows these tokens has the attribute `path`.
fn has_path_attribute(before: &[TokenTree]) -> bool {
    let own = before.iter().rev().take_while(|token| !is_punct(token, ';') && group(token, Delimiter::Brace).is_none());
    own.filter_map(|token| group(token, Delimiter::Bracket))
        .any(|attribute| attribute.into_iter().next().is_some_and(|first| word(&first).is_some_and(|w| w == "path")))
}

/// If an item that is only for tests begins here, where it ends.
pub(crate) fn end_of_test_code(tokens: &[TokenTree], at: usize) -> Option<usize> {
    const ITEMS: [&str; 14] = [
        "pub", "use", "mod", "fn", "struct", "enum", "union", "const", "static", "type", "trait", "impl", "async",
        "unsafe",
    ];
    let attribute = |at: usize| group(tokens.get(at + 1)?, Delimiter::Bracket).filter(|_| is_punct(&tokens[at], '#'));
    if !is_for_tests(attribute(at)?) {
        return None;
    }
    let mut end = at;
    while attribute(end).is_some() {
        end += 2;
    }
    // A field, a variant or a match arm ends with a comma; an item may have one between its type parameters.
    let item = tokens.get(end).and_then(word).is_some_and(|word| ITEMS.contains(&word.as_str()));
    let import = tokens.get(end..)?.iter().take(3).any(|token| word(token).is_some_and(|word| word == "use"));
    while let Some(token) = tokens.get(end) {
        end += 1;
        let body = group(token, Delimiter::Brace).is_some() && !import;
        if body || is_punct(token, ';') || (!item && is_punct(token, ',')) {
            break;
        }
    }
    Some(end)
}

/// Whether an attribute is `cfg(test)`.
fn is_for_tests(attribute: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = attribute.into_iter().collect();
    let [TokenTree::Ident(cfg), TokenTree::Group(condition)] = tokens.as_slice() else { return false };
    let condition: Vec<TokenTree> = condition.stream().into_iter().collect();
    *cfg == "cfg" && matches!(condition.as_slice(), [TokenTree::Ident(only)] if *only == "test")
}

/// Whether a token is this character.
pub(crate) fn is_punct(token: &TokenTree, character: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == character)
}

fn group(token: &TokenTree, delimiter: Delimiter) -> Option<TokenStream> {
    match token {
        TokenTree::Group(group) if group.delimiter() == delimiter => Some(group.stream()),
        _ => None,
    }
}

fn word(token: &TokenTree) -> Option<String> {
    match token {
        TokenTree::Ident(word) => Some(word.to_string()),
        _ => None,
    }
}

fn name(tokens: &[TokenTree], at: usize) -> Option<String> {
    tokens.get(at).and_then(word).map(|word| plain(&word))
}

/// A name without the mark of raw ones.
fn plain(word: &str) -> String {
    word.trim_start_matches("r#").to_owned()
}
