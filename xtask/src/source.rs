//! The workspace's packages and their sources: which modules a crate has, and which paths each of them names.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};
use devenv::{forget_caller, workspace_root};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use serde_json::Value;

/// A package of a workspace.
pub(crate) struct Package {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// Libraries and programs.
    pub roots: Vec<Root>,
    /// What its `Cargo.toml` names.
    pub dependencies: Vec<Dependency>,
}

/// A library or a program.
pub(crate) struct Root {
    /// Its name in code.
    pub name: String,
    /// Its file, from the root of the repository.
    pub path: String,
    /// Whether it is a library.
    pub library: bool,
}

/// An entry of a `Cargo.toml`.
pub(crate) struct Dependency {
    /// The key of the entry.
    pub key: String,
    /// For whom: code, tests or the build script.
    pub kind: Kind,
}

/// For whom a dependency is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Code.
    Normal,
    /// Tests, benchmarks and examples.
    Dev,
    /// The build script.
    Build,
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
        let library = list(&target["kind"]).any(|kind| kind == "lib");
        if library || list(&target["kind"]).any(|kind| kind == "bin") {
            let path = PathBuf::from(text(&target["src_path"])?);
            let path = path.strip_prefix(workspace_root()).unwrap_or(&path).display().to_string();
            roots.push(Root { name: text(&target["name"])?.replace('-', "_"), path, library });
        }
    }
    let mut dependencies = Vec::new();
    for dependency in list(&package["dependencies"]) {
        let key = if dependency["rename"].is_null() { &dependency["name"] } else { &dependency["rename"] };
        let kind = match dependency["kind"].as_str() {
            None => Kind::Normal,
            Some("dev") => Kind::Dev,
            Some(_) => Kind::Build,
        };
        dependencies.push(Dependency { key: text(key)?, kind });
    }
    let manifest = PathBuf::from(text(&package["manifest_path"])?);
    let folder = manifest.parent().context("a file has a folder")?.to_owned();
    Ok(Package { name: text(&package["name"])?, folder, roots, dependencies })
}

/// The Rust files in a folder and below it; none if there is no such folder.
pub(crate) fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            for entry in fs::read_dir(&path).with_context(|| format!("list {}", path.display()))? {
                waiting.push(entry?.path());
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") && path.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

/// The tokens of a file.
pub(crate) fn tokens(text: &str) -> Result<TokenStream> {
    text.parse().map_err(|error| anyhow::anyhow!("{error}"))
}

/// A module: a file, or an inline module in one.
#[derive(Default)]
pub(crate) struct Module {
    /// Its file, from the root of the repository.
    pub file: String,
    /// Names of the items that it defines, modules left out.
    pub items: BTreeSet<String>,
    /// What it imports or re-exports.
    pub imports: Vec<Import>,
    /// All paths in it that have two or more parts, and all that are imported.
    pub mentions: Vec<Mention>,
}

/// What a `use` brings into a module.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    /// The name in this module; `None` for a glob.
    pub name: Option<String>,
    /// Without the `*` of a glob.
    pub path: Vec<String>,
}

/// A path in code.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mention {
    /// Its parts.
    pub path: Vec<String>,
    /// Its line in the file.
    pub line: usize,
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
        let mut module = Module { file: self.file.to_owned(), ..Module::default() };
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            if let Some(end) = end_of_test_code(&tokens, at) {
                at = end;
            } else if word(token).is_some_and(|word| word == "mod") && name(&tokens, at + 1).is_some() {
                at += self.child(path, &tokens, at)?;
            } else {
                if let Some(defined) = defined(&tokens, at) {
                    module.items.insert(defined);
                }
                at = element(&tokens, at, &mut module, true);
            }
        }
        self.modules.insert(path.to_vec(), module);
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

/// Reads the imports, paths or groups that begin at a token, and returns where the next begin. `outermost`: whether the token is in the module
/// itself, where imports give names to all of it.
fn element(tokens: &[TokenTree], at: usize, module: &mut Module, outermost: bool) -> usize {
    match &tokens[at] {
        TokenTree::Group(group) => {
            nested(group.stream(), module);
            at + 1
        }
        // Not the `use<'a>` of bounds.
        TokenTree::Ident(word) if *word == "use" && !tokens.get(at + 1).is_some_and(|next| is_punct(next, '<')) => {
            let end = (at..tokens.len()).find(|i| is_punct(&tokens[*i], ';')).unwrap_or(tokens.len());
            let mut imports = Vec::new();
            // A path that begins with `::` leads to another crate.
            if !tokens.get(at + 1).is_some_and(|next| is_punct(next, ':')) {
                import(&tokens[at + 1..end], &[], &mut imports);
            }
            let line = word.span().start().line;
            module.mentions.extend(imports.iter().map(|import| Mention { path: import.path.clone(), line }));
            if outermost {
                module.imports.extend(imports);
            }
            end
        }
        TokenTree::Ident(word) => {
            let mut path = vec![plain(&word.to_string())];
            let mut end = at + 1;
            while let (true, Some(part)) = (is_separator(tokens, end), name(tokens, end + 2)) {
                path.push(part);
                end += 3;
            }
            let continued = at >= 2 && is_separator(tokens, at - 2);
            if path.len() > 1 && !continued {
                module.mentions.push(Mention { path, line: word.span().start().line });
            }
            end
        }
        _ => at + 1,
    }
}

/// Reads what is inside of parentheses, brackets or braces.
fn nested(stream: TokenStream, module: &mut Module) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        at = end_of_test_code(&tokens, at).unwrap_or_else(|| element(&tokens, at, module, false));
    }
}

/// Reads a tree of imports.
fn import(tokens: &[TokenTree], prefix: &[String], imports: &mut Vec<Import>) {
    for tree in tokens.split(|token| is_punct(token, ',')) {
        let mut path = prefix.to_vec();
        let mut renamed = None;
        let mut complete = false;
        for (at, token) in tree.iter().enumerate() {
            match token {
                TokenTree::Group(group) => {
                    import(&group.stream().into_iter().collect::<Vec<_>>(), &path, imports);
                    complete = true;
                }
                TokenTree::Punct(punct) if punct.as_char() == '*' => {
                    imports.push(Import { name: None, path: path.clone() });
                    complete = true;
                }
                TokenTree::Ident(word) if *word == "as" => {
                    renamed = name(tree, at + 1);
                    break;
                }
                // `a::{self}` is `a`.
                TokenTree::Ident(word) if *word == "self" && !path.is_empty() => {}
                TokenTree::Ident(word) => path.push(plain(&word.to_string())),
                _ => {}
            }
        }
        if !complete && let Some(last) = path.last().cloned() {
            imports.push(Import { name: Some(renamed.unwrap_or(last)), path });
        }
    }
}

/// The name of the item that begins with this token.
fn defined(tokens: &[TokenTree], at: usize) -> Option<String> {
    let keyword = word(tokens.get(at)?)?;
    match keyword.as_str() {
        "struct" | "enum" | "union" | "fn" | "const" | "static" | "type" | "trait" => {
            let mut names = (at + 1..).map_while(|i| name(tokens, i));
            names.find(|name| !["mut", "fn", "unsafe", "async", "extern"].contains(&name.as_str()))
        }
        "macro_rules" => name(tokens, at + 2),
        _ => None,
    }
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

/// Whether `::` is here.
pub(crate) fn is_separator(tokens: &[TokenTree], at: usize) -> bool {
    [at, at + 1].iter().all(|i| tokens.get(*i).is_some_and(|token| is_punct(token, ':')))
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
