//! The commands that the guide and the runbooks show: each block is run by a test, or it is known why it is not.
//!
//! A block that a test runs has a comment above it, `<!-- run: TEST -->`, with the name of a file in `controller/tests/it/`. Why others are not run follows from the
//! programs in them; where it does not, a comment says it: `<!-- not run: REASON -->`.

use std::{collections::BTreeMap, fmt::Write as _};

/// Pages that people follow with their hands on the keyboard.
const FOLDERS: [&str; 2] = ["docs/guide/", "docs/runbooks/"];
/// Programs that CI has not, or does not start with these arguments, and why. The first one that a block starts counts.
const PROGRAMS: &[(&[&str], &str)] = &[
    (&["oc", "opm"], "needs OpenShift"),
    (&["ssh"], "needs a real host"),
    (&["crane", "podman", "skopeo"], "needs a registry"),
    (&["cosign"], "needs cosign"),
    (&["flux"], "needs Flux"),
    (&["make", "cargo"], "builds; what it builds, other tests use"),
    (&["helm"], "other tests run helm, with the objects of the chart"),
];
/// Commands of kubectl for a Pod: no Pod of Linux runs in the test bed.
const FOR_PODS: &[&str] = &["exec", "logs", "port-forward", "rollout"];
/// What commands that end an installation have.
const OF_ENDS: &[&str] = &["wnp --all", "delete -k", "delete -f crds/", "\"finalizers\":null"];
/// Words that a reader replaces.
const PLACEHOLDERS: &[&str] = &["NAME", "VERSION", "POD", "DIGEST"];

/// A block of commands.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// The page, from the root of the repository.
    pub page: String,
    /// Its line there.
    pub line: usize,
    /// The heading above, with its `#`.
    pub section: String,
    /// What becomes of it. `None`: the page does not say.
    pub fate: Option<Fate>,
}

/// What becomes of a block.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// A test runs it: the name of a file without its ending.
    Run(String),
    /// It is not run, and why.
    NotRun(String),
}

/// The file of a test.
pub(super) fn source(test: &str) -> String {
    format!("controller/tests/it/{test}.rs")
}

/// All blocks of the guide and of the runbooks.
pub(super) fn all(documents: &BTreeMap<String, String>) -> Vec<Block> {
    let is_checked = |path: &str| FOLDERS.iter().any(|folder| path.starts_with(folder));
    let pages = documents.iter().filter(|(path, _)| is_checked(path));
    pages.flat_map(|(path, text)| of_page(path, text)).collect()
}

fn of_page(page: &str, text: &str) -> Vec<Block> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut blocks, mut section, mut open) = (Vec::new(), String::new(), false);
    for (at, line) in lines.iter().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        if let Some(language) = fence {
            open = !open;
            if open && language == "sh" {
                let commands: Vec<&str> =
                    lines[at + 1..].iter().copied().take_while(|line| !line.trim_start().starts_with("```")).collect();
                let above = at.checked_sub(1).map_or("", |above| lines[above].trim());
                let fate = fate(above, &commands);
                blocks.push(Block { page: page.into(), line: at + 1, section: section.clone(), fate });
            }
        } else if !open && line.starts_with('#') {
            (*line).clone_into(&mut section);
        }
    }
    blocks
}

fn fate(above: &str, commands: &[&str]) -> Option<Fate> {
    let said = above.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
    if let Some(test) = said.and_then(|said| said.strip_prefix("run: ")) {
        return Some(Fate::Run(test.into()));
    }
    if let Some(why) = said.and_then(|said| said.strip_prefix("not run: ")) {
        return Some(Fate::NotRun(why.into()));
    }
    let words: Vec<&str> = commands.iter().flat_map(|line| line.split(|c: char| !is_of_word(c))).collect();
    let programs = commands.iter().flat_map(|line| line.split(['|', ';', '(']));
    let programs: Vec<&str> = programs.filter_map(|part| part.split_whitespace().next()).collect();
    let of_program = PROGRAMS.iter().find(|(names, _)| names.iter().any(|name| programs.contains(name)));
    let why = match of_program {
        Some((_, why)) => why,
        None if FOR_PODS.iter().any(|word| programs.contains(&"kubectl") && words.contains(word)) => {
            "needs the operator's Pod"
        }
        None if commands.iter().any(|line| OF_ENDS.iter().any(|part| line.contains(part))) => {
            "ends an installation, or all pools"
        }
        None if PLACEHOLDERS.iter().any(|word| words.contains(word)) => "has a placeholder",
        None => return None,
    };
    Some(Fate::NotRun(why.into()))
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_$".contains(c)
}

/// What the pages do not say, and what they say wrongly: a test that runs a block names its page and its section.
pub(super) fn faults(blocks: &[Block], source_of: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let fault = |block: &Block| {
        let Block { page, line, section, fate } = block;
        let what = match fate {
            None => "a test must run this block (`<!-- run: TEST -->` above it), or the page must say why none does \
                     (`<!-- not run: REASON -->`)"
                .to_owned(),
            Some(Fate::NotRun(_)) => return None,
            Some(Fate::Run(test)) => {
                let name = page.rsplit('/').next().unwrap_or_default();
                let text = source_of(test).unwrap_or_default();
                let is_named = [name, section].iter().all(|word| text.contains(&format!("{word}\"")));
                if is_named {
                    return None;
                }
                format!("{} does not name {name:?} and {section:?}", source(test))
            }
        };
        Some(format!("{page}:{line}: {what}"))
    };
    blocks.iter().filter_map(fault).collect()
}

/// The page about all blocks.
pub(super) fn page(blocks: &[Block]) -> String {
    let is_run = |block: &&Block| matches!(block.fate, Some(Fate::Run(_)));
    let mut page = format!(
        "<!-- Generated by `cargo xtask docs`. -->\n\n# Commands of the guide and of the runbooks\n\nOf the {} blocks of commands that the guide and the runbooks show, tests run {} as \
         they stand there, against a real API server; in runbooks, with names for the words in capitals. For each other one, the reason is in its row.\n\n| page | section | run by, or why not \
         |\n|---|---|---|\n",
        blocks.len(),
        blocks.iter().filter(is_run).count()
    );
    for Block { page: path, section, fate, .. } in blocks {
        let name = path.strip_prefix("docs/").unwrap_or(path);
        let by = match fate {
            Some(Fate::Run(test)) => format!("run by `{}`", source(test)),
            Some(Fate::NotRun(why)) => why.clone(),
            None => String::new(),
        };
        let title = section.trim_start_matches('#').trim();
        let _ = writeln!(page, "| [{name}](../{name}) | {title} | {by} |");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<(String, Option<Fate>)> {
        of_page("docs/guide/a.md", text).into_iter().map(|block| (block.section, block.fate)).collect()
    }

    #[test]
    fn a_block_is_run_or_its_programs_say_why_not() {
        let run = |test: &str| Some(Fate::Run(test.into()));
        let not = |why: &str| Some(Fate::NotRun(why.into()));
        for (text, expected) in [
            ("<!-- run: guide -->\n```sh\nkubectl get wi\n```\n", run("guide")),
            ("<!-- not run: it hurts -->\n```sh\nkubectl get wi\n```\n", not("it hurts")),
            ("  <!-- run: guide -->\n  ```sh\n  kubectl get wi\n  ```\n", run("guide")),
            ("```sh\nkubectl get wi\n```\n", None),
            ("```sh\nx=$(oc get wi)\n```\n", not("needs OpenShift")),
            ("```sh\ncargo xtask dist --image a@sha256:DIGEST\n```\n", not("builds; what it builds, other tests use")),
            ("```sh\nkubectl -n $NS exec deploy/a -- b\n```\n", not("needs the operator's Pod")),
            ("```sh\nkubectl get wnp NAME -o yaml\n```\n", not("has a placeholder")),
            ("```sh\nkubectl delete -k deploy/mine\n```\n", not("ends an installation, or all pools")),
            ("```sh\nkubectl get wnp RENAME\n```\n", None),
            ("```sh\nkubectl get wnp exec.yaml # logs\n```\n", not("needs the operator's Pod")),
        ] {
            assert_eq!(of(&format!("# A\n{text}")), [("# A".to_owned(), expected)], "{text}");
        }
        assert_eq!(of("# A\n```yaml\n# B\n```\n## C\n```console\n$ kubectl get wi\n```\n"), []);
    }

    #[test]
    fn the_guide_and_the_runbooks_are_checked() {
        let page = |path: &str| (path.to_owned(), "# A\n```sh\nkubectl get wi\n```\n".to_owned());
        let paths = ["docs/guide/a.md", "docs/reference/b.md", "docs/runbooks/c.md"];
        let pages: Vec<_> = all(&paths.map(page).into()).into_iter().map(|block| block.page).collect();
        assert_eq!(pages, ["docs/guide/a.md", "docs/runbooks/c.md"]);
    }

    #[test]
    fn a_test_names_what_it_runs() {
        let blocks = of_page("docs/guide/a.md", "## B\n<!-- run: t -->\n```sh\nkubectl get wi\n```\n");
        for (source, is_right) in [
            (Some("(\"a.md\", \"## B\")"), true),
            (Some("(\"b.md\", \"## B\")"), false),
            (Some("\"a.md\", \"## C\""), false),
            (None, false),
        ] {
            let faults = faults(&blocks, &|test| (test == "t").then_some(source?.to_owned()));
            assert_eq!(faults.is_empty(), is_right, "{source:?}: {faults:?}");
        }
    }

    #[test]
    fn the_page_has_each_block() {
        let text = "# A\n<!-- run: t -->\n```sh\nkubectl get wi\n```\n## B\n```sh\noc get wi\n```\n";
        let page = page(&of_page("docs/guide/a.md", text));
        for line in [
            "Of the 2 blocks of commands that the guide and the runbooks show, tests run 1 as they stand there",
            "| [guide/a.md](../guide/a.md) | A | run by `controller/tests/it/t.rs` |",
            "| [guide/a.md](../guide/a.md) | B | needs OpenShift |",
        ] {
            assert!(page.contains(line), "{page}");
        }
    }
}
