//! `cargo xtask modules`: finds cycles between the modules at the root of each crate, with tsort.
//!
//! A module depends on another one if its files contain `crate::` with the other name. Tests and comments do not count. Cycles further down, and
//! those through re-exports of the root, are not detected.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use devenv::workspace_root;

use crate::tracked;

/// Finds cycles between the modules at the root of each crate.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Sorts the modules of each crate by their dependencies. Fails if there is a cycle.
pub(crate) fn run(_: &Args) -> Result<()> {
    let mut crates: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for path in tracked(&["*/src/*.rs"])? {
        let Some((name, file)) = path.split_once("/src/") else { continue };
        if file.split(['/', '.', '_']).any(|part| matches!(part, "test" | "tests")) {
            continue;
        }
        let module = file.split(['/', '.']).next().unwrap_or_default();
        if !matches!(module, "lib" | "main") {
            let text =
                fs::read_to_string(workspace_root().join(&path)).with_context(|| format!("cannot read {path}"))?;
            crates.entry(name.into()).or_default().entry(module.into()).or_default().extend(named(&text));
        }
    }
    for (name, modules) in crates {
        let edge = |from: &str, to: &String| (from != to && modules.contains_key(to)).then(|| format!("{from} {to}\n"));
        let edges: String = modules.iter().flat_map(|(from, to)| to.iter().filter_map(|to| edge(from, to))).collect();
        let mut tsort =
            Command::new("tsort").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().context("cannot start tsort")?;
        tsort.stdin.take().context("tsort has no input")?.write_all(edges.as_bytes())?;
        ensure!(
            tsort.wait()?.success(),
            "the modules of {name} that tsort lists depend on each other: move the code that they share to a module below both"
        );
    }
    Ok(())
}

/// Returns the names after `crate::`, including those in a group, but not those in comments or in the tests at the end.
fn named(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: String = lines.flat_map(|line| [line, "\n"]).collect();
    let mut names = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let mut depth = 0;
        let group: String = rest
            .chars()
            .map_while(|c| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                (depth > 0).then_some((depth, c))
            })
            .filter_map(|(depth, c)| (depth == 1).then_some(c))
            .collect();
        let first =
            |path: &str| path.trim().split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned);
        match group.strip_prefix('{') {
            Some(group) => names.extend(group.split(',').filter_map(first)),
            None => names.extend(first(rest)),
        }
    }
    names.remove("");
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_after_crate_are_found_outside_comments_and_tests() {
        for (text, expected) in [
            ("use crate::a::{b, c};", &["a"][..]),
            ("use crate::{a, b::{c, d}, e::f};\nuse g;", &["a", "b", "e"]),
            ("fn f() -> crate::a::A { crate::b::c(d, e) }", &["a", "b"]),
            ("use crate::{\n    a::{self, b},\n    c,\n};", &["a", "c"]),
            ("// crate::a\n/// [`crate::b`]\npub(crate) fn f() {}", &[]),
            ("use crate::a;\n#[cfg(test)]\nmod tests {\n    use crate::b;\n}", &["a"]),
        ] {
            assert_eq!(named(text).iter().map(String::as_str).collect::<Vec<_>>(), expected, "{text}");
        }
    }
}
