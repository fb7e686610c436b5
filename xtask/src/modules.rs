//! `cargo xtask modules`: finds cycles between the modules of each crate.
//!
//! Two modules depend on each other for good reasons only where one contains the other: in Rust, a parent declares its children and uses them, and a
//! child uses `super::` items. So this check compares *siblings*. For each module of a crate, and for the crate's root, it takes the child
//! modules, each with all that is below it, and draws an edge from one child to another if a path somewhere in the first leads to something that
//! the second defines. A group of children that all reach each other is a cycle.
//!
//! What counts as a path:
//!
//! * Each `use`, and each path in code, also inside macros and attributes, that begins with `crate`, `self`, `super`, a child module, or a name that the
//!   module imports. Paths in comments, strings and intra-doc links do not count, and neither does what is under `#[cfg(test)]`.
//! * A path leads to where an item is defined. `super::Item` or `crate::parent::Item` that the parent only re-exports leads to the child that defines
//!   it. An item that the parent itself defines is no edge: it belongs to all of its children.
//!
//! What this does not see: names that only macros make, methods and fields (which need no path), and two siblings that reach each other only
//! through functions of their parent.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use devenv::workspace_root;

use crate::source::{self, Mention, Module};

/// Most steps from a name through imports and re-exports to its definition.
const STEPS: usize = 32;

/// Finds cycles between the modules of each crate of the workspace. Fails if there is one.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Finds the cycles of all crates of the workspace.
pub(crate) fn run(_: &Args) -> Result<()> {
    let mut cycles = Vec::new();
    let mut count = 0;
    for (name, root) in roots()? {
        let folder = workspace_root();
        let read = |path: &str| match fs::read_to_string(folder.join(path)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("read {path}")),
        };
        let modules = Crate { modules: source::read_crate(&root, &read)?, name };
        count += modules.modules.len();
        cycles.extend(modules.cycles());
    }
    println!("{count} modules, {} cycles between siblings", cycles.len());
    let problems: Vec<String> = cycles.iter().map(ToString::to_string).collect();
    ensure!(
        problems.is_empty(),
        "modules import each other; move what they share below both, or into the parent:\n  {}",
        problems.join("\n  ")
    );
    Ok(())
}

/// Name and root file of each library and program in the workspace.
fn roots() -> Result<Vec<(String, String)>> {
    let mut roots = Vec::new();
    for package in source::packages(Path::new("Cargo.toml"))? {
        let library = package.roots.iter().any(|root| root.library);
        for root in &package.roots {
            let name = if library && !root.library { format!("{} (program)", root.name) } else { root.name.clone() };
            roots.push((name, root.path.clone()));
        }
    }
    Ok(roots)
}

/// A module's name and those of its ancestors, without the crate's.
type ModulePath = Vec<String>;

struct Crate {
    name: String,
    modules: BTreeMap<ModulePath, Module>,
}

/// Sibling modules that all reach each other.
struct Cycle {
    /// The parent, with the crate's name.
    parent: String,
    /// Sorted.
    modules: Vec<String>,
    /// For each edge a path that makes it.
    paths: Vec<String>,
}

impl std::fmt::Display for Cycle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.parent, self.modules.join(", "))?;
        self.paths.iter().try_for_each(|path| write!(f, "\n    {path}"))
    }
}

impl Crate {
    /// The cycles between siblings, from the root down.
    fn cycles(&self) -> Vec<Cycle> {
        let edges = self.edges();
        let parents: BTreeSet<&[String]> = self.modules.keys().filter_map(|m| m.split_last()).map(|(_, p)| p).collect();
        parents.into_iter().flat_map(|parent| self.cycles_below(parent, &edges)).collect()
    }

    fn cycles_below(&self, parent: &[String], edges: &BTreeMap<(ModulePath, ModulePath), String>) -> Vec<Cycle> {
        let child = |module: &ModulePath| module.strip_prefix(parent).and_then(|rest| rest.first().cloned());
        let mut below: BTreeMap<(String, String), &String> = BTreeMap::new();
        for ((from, to), text) in edges {
            if let (Some(from), Some(to)) = (child(from), child(to))
                && from != to
            {
                below.entry((from, to)).or_insert(text);
            }
        }
        let name = [std::slice::from_ref(&self.name), parent].concat().join("::");
        groups(below.keys())
            .into_iter()
            .map(|modules| {
                let inside = |(from, to): &(String, String)| modules.contains(from) && modules.contains(to);
                let paths = below
                    .iter()
                    .filter(|(edge, _)| inside(edge))
                    .map(|((from, to), text)| format!("{from} -> {to}: {text}"));
                Cycle { parent: name.clone(), paths: paths.collect(), modules }
            })
            .collect()
    }

    /// From which module to which a path leads, and the first such path with its place.
    fn edges(&self) -> BTreeMap<(ModulePath, ModulePath), String> {
        let mut edges = BTreeMap::new();
        for (from, module) in &self.modules {
            for Mention { path, line } in &module.mentions {
                let target =
                    self.absolute(from, path, STEPS).and_then(|(base, rest)| self.definition(base, &rest, STEPS));
                if let Some(to) = target.filter(|to| to != from) {
                    let place = || format!("{} ({}:{line})", path.join("::"), module.file);
                    edges.entry((from.clone(), to)).or_insert_with(place);
                }
            }
        }
        edges
    }

    /// The module in which a path that `from` names begins, and the rest of the path. `None`: it begins in another crate.
    fn absolute(&self, from: &ModulePath, path: &[String], steps: usize) -> Option<(ModulePath, Vec<String>)> {
        let (head, rest) = path.split_first()?;
        match head.as_str() {
            "crate" => Some((Vec::new(), rest.to_vec())),
            "self" => Some((from.clone(), rest.to_vec())),
            "super" => {
                let mut base = from.clone();
                let mut rest = path;
                while let Some(("super", tail)) = rest.split_first().map(|(head, tail)| (head.as_str(), tail)) {
                    base.pop()?;
                    rest = tail;
                }
                Some((base, rest.to_vec()))
            }
            _ if self.modules.contains_key(&child(from, head)) => Some((from.clone(), path.to_vec())),
            _ => {
                let import = self.modules.get(from)?.imports.iter().find(|i| i.name.as_ref() == Some(head))?;
                // `use serde;` imports a crate under its own name.
                if import.path.first() == Some(head) {
                    return None;
                }
                self.absolute(from, &[&import.path, rest].concat(), steps.checked_sub(1)?)
            }
        }
    }

    /// The module that defines what is at the path `rest` of the module `base`.
    fn definition(&self, base: ModulePath, rest: &[String], steps: usize) -> Option<ModulePath> {
        let mut at = base;
        let mut rest = rest;
        while let Some((head, tail)) = rest.split_first() {
            let next = child(&at, head);
            if !self.modules.contains_key(&next) {
                break;
            }
            (at, rest) = (next, tail);
        }
        let Some((head, tail)) = rest.split_first() else { return Some(at) };
        let module = self.modules.get(&at)?;
        let Some(steps) = steps.checked_sub(1).filter(|_| !module.items.contains(head)) else { return Some(at) };
        if let Some(import) = module.imports.iter().find(|import| import.name.as_ref() == Some(head)) {
            return match self.absolute(&at, &[&import.path, tail].concat(), steps) {
                Some((base, rest)) => self.definition(base, &rest, steps),
                None => Some(at),
            };
        }
        for glob in module.imports.iter().filter(|import| import.name.is_none()) {
            let globbed = self.absolute(&at, &glob.path, steps).and_then(|(base, p)| self.definition(base, &p, steps));
            if let Some(globbed) = globbed.filter(|globbed| *globbed != at && self.has(globbed, head)) {
                return self.definition(globbed, rest, steps);
            }
        }
        Some(at)
    }

    fn has(&self, module: &ModulePath, name: &String) -> bool {
        let named = |m: &Module| m.items.contains(name) || m.imports.iter().any(|i| i.name.as_ref() == Some(name));
        self.modules.get(module).is_some_and(named) || self.modules.contains_key(&child(module, name))
    }
}

fn child(module: &ModulePath, name: &str) -> ModulePath {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

/// The groups of two and more nodes that all reach each other, sorted.
fn groups<'a>(edges: impl Iterator<Item = &'a (String, String)>) -> Vec<Vec<String>> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in edges {
        next.entry(from).or_default().push(to);
    }
    let reached = |start: &'a str| {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut waiting = vec![start];
        while let Some(node) = waiting.pop() {
            waiting.extend(next.get(node).into_iter().flatten().copied().filter(|to| seen.insert(*to)));
        }
        seen
    };
    let reach: BTreeMap<&str, BTreeSet<&str>> = next.keys().map(|node| (*node, reached(node))).collect();
    let reaches = |from: &str, to: &str| reach.get(from).is_some_and(|seen| seen.contains(to));
    let mut groups: Vec<Vec<String>> = Vec::new();
    for node in reach.keys().filter(|node| reaches(node, node)) {
        let group = reach.keys().filter(|other| reaches(node, other) && reaches(other, node));
        let group: Vec<String> = group.map(ToString::to_string).collect();
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(files: &[(&str, &str)]) -> Vec<String> {
        let read = |path: &str| Ok(files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned()));
        let modules = source::read_crate("src/lib.rs", &read).unwrap();
        let cycles = Crate { name: "x".into(), modules }.cycles();
        cycles.iter().map(|cycle| format!("{}: {}", cycle.parent, cycle.modules.join(", "))).collect()
    }

    #[test]
    fn siblings_that_reach_each_other_are_a_cycle() {
        let root = ("src/lib.rs", "mod a; mod b; mod c;");
        let empty = |name| (name, "");
        for (what, a, b, expected) in [
            ("one direction", "use crate::b::B;", "pub struct B;", None),
            ("both", "use crate::b::B; pub struct A;", "use crate::a::A; pub struct B;", Some("x: a, b")),
            ("relative paths", "use super::b::B; pub struct A;", "use super::{a::A}; pub struct B;", Some("x: a, b")),
            ("paths in code", "fn f() { crate::b::g(vec![1]) }", "fn g() { super::a::f() }", Some("x: a, b")),
            (
                "in a macro and an attribute",
                "fn f() { println!(\"{}\", crate::b::X) }",
                "#[derive(crate::a::D)] pub struct X;",
                Some("x: a, b"),
            ),
            (
                "by an imported module",
                "use crate::b; fn f() { b::g() }",
                "use crate::{a as other}; fn g() { other::f() }",
                Some("x: a, b"),
            ),
            ("a glob", "use super::b::*;", "pub use super::a::*;", Some("x: a, b")),
            ("in a test", "use crate::b::B;", "#[cfg(test)] mod tests { use crate::a::A; } pub struct B;", None),
            ("imported for tests", "use crate::b::B;", "#[cfg(test)] use crate::a::{A, C}; pub struct B;", None),
            (
                "a function for tests",
                "use crate::b::B;",
                "#[cfg(test)] fn f<T, U>() { crate::a::f() } pub struct B;",
                None,
            ),
            (
                "in comments and strings",
                "use crate::b::B;",
                "/// [`crate::a::A`]\n// crate::a\nconst B: &str = r#\"crate::a::A\"#;",
                None,
            ),
            (
                "bounds that capture lifetimes",
                "use crate::b::B;",
                "fn f<'a>(s: &'a str) -> impl Copy + use<'a> { s } pub struct B;",
                None,
            ),
            ("crates of the same name", "use crate::b::B;", "use a::Other; fn f() { ::a::f(); serde::a::g() }", None),
        ] {
            let expected: Vec<String> = expected.into_iter().map(str::to_owned).collect();
            assert_eq!(cycles(&[root, ("src/a.rs", a), ("src/b.rs", b), empty("src/c.rs")]), expected, "{what}");
        }
    }

    #[test]
    fn paths_lead_through_re_exports_to_definitions() {
        for (what, files, expected) in [
            (
                "a parent and its child are no cycle",
                &[
                    ("src/lib.rs", "mod p;"),
                    ("src/p/mod.rs", "mod a; use a::A; struct P;"),
                    ("src/p/a.rs", "use super::P; struct A;"),
                ][..],
                &[][..],
            ),
            (
                "what the parent defines belongs to all children",
                &[
                    ("src/lib.rs", "mod a; mod b; struct P; use a::A;"),
                    ("src/a.rs", "use crate::b::B; struct A;"),
                    ("src/b.rs", "use crate::P; struct B;"),
                ],
                &[],
            ),
            (
                "what the parent re-exports is the child's",
                &[
                    ("src/lib.rs", "mod a; mod b; pub use a::A;"),
                    ("src/a.rs", "use crate::b::B; struct A;"),
                    ("src/b.rs", "use crate::A; struct B;"),
                ],
                &["x: a, b"],
            ),
            (
                "also by a glob and under another name",
                &[
                    ("src/lib.rs", "mod a; mod b; pub use a::*; use b::B as C;"),
                    ("src/a.rs", "use crate::C; struct A;"),
                    ("src/b.rs", "use super::A; struct B;"),
                ],
                &["x: a, b"],
            ),
            (
                "what is below counts for the child",
                &[
                    ("src/lib.rs", "mod a; mod b;"),
                    ("src/a.rs", "mod deep; pub struct A;"),
                    ("src/a/deep.rs", "use crate::b::inner::B;"),
                    ("src/b/mod.rs", "pub mod inner { use super::super::a; pub struct B(a::A); }"),
                ],
                &["x: a, b"],
            ),
            (
                "cycles at two levels are two",
                &[
                    ("src/lib.rs", "mod a; mod b;"),
                    ("src/a.rs", "mod c; mod d;"),
                    ("src/a/c.rs", "use super::d::D; use crate::b::B; pub struct C;"),
                    ("src/a/d.rs", "use crate::a::c::C; pub struct D;"),
                    ("src/b.rs", "use crate::a::c::C; pub struct B;"),
                ],
                &["x: a, b", "x::a: c, d"],
            ),
            (
                "imports that lead to each other end",
                &[
                    ("src/lib.rs", "mod a; mod b;"),
                    ("src/a.rs", "pub use crate::b::X;"),
                    ("src/b.rs", "pub use crate::a::X;"),
                ],
                &["x: a, b"],
            ),
        ] {
            assert_eq!(cycles(files), expected, "{what}");
        }
    }

    #[test]
    fn a_file_that_is_missing_is_an_error() {
        let read = |path: &str| Ok((path == "src/lib.rs").then(|| "mod gone;".to_owned()));
        assert!(source::read_crate("src/lib.rs", &read).is_err());
    }
}
