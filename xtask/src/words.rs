//! `cargo xtask words`: finds words in the project's prose that its style does not use.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

use devenv::workspace_root;

/// Words and phrases that the project does not use, and what to use instead. They match in any case, and across lines.
const WORDS: &[(&[&str], &str)] = &[
    (&["shall"], "must, or the present tense"),
    (&["tell", "tells", "told"], "report, return, notify"),
    (
        &["nobody", "somebody", "someone", "anybody", "anyone", "everybody", "everyone"],
        "the client or user that is meant",
    ),
    (&["whoever"], "the client, author or owner that is meant"),
    (&["look at", "looks at", "looked at"], "check, read, observe"),
    (&["look after", "looks after", "looked after"], "manage, reconcile"),
    (&["anew", "afresh"], "again"),
    (&["or else", "nonetheless", "lest"], "otherwise, still, so that … not"),
    (&["nowhere else", "nothing else"], "only"),
    (&["mend", "mends", "mended"], "correct, repair"),
    (&["thing", "things", "what is so"], "the noun that is meant"),
];

/// Files that are not scanned, by the beginning of their paths, and the reason.
const EXEMPT: &[(&str, &str)] = &[
    ("crds/", "generated from api/"),
    ("docs/reference/conditions.md", "generated from api/"),
    ("docs/reference/events.md", "generated from api/"),
    ("docs/reference/helm-values.md", "generated from xtask-operator/"),
    ("docs/reference/labels.md", "generated from api/"),
    ("docs/reference/metrics.md", "generated from controller/"),
    ("docs/reference/rights.md", "generated from xtask-operator/"),
    ("docs/reference/settings.md", "generated from controller/ and api/"),
    ("docs/reference/windowsinstance.md", "generated from api/"),
    ("docs/reference/windowsnodepool.md", "generated from api/"),
    ("examples/", "generated from api/, or checked with the guides"),
    ("xtask/src/words.rs", "lists the words"),
    ("core/src/yaml_tests.rs", "has YAML tags"),
    ("xtask/payload/", "sources of other projects"),
];

/// Finds words in comments, strings and documents that the project's style does not use, and prints what to use instead.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Scans all tracked files. A word that the project does not use is an error.
pub(crate) fn run(_: &Args) -> Result<()> {
    let output = Command::new("git").arg("ls-files").current_dir(workspace_root()).output().context("run git")?;
    ensure!(output.status.success(), "git ls-files: {}", output.status);
    let mut found = 0;
    for path in String::from_utf8(output.stdout)?.lines() {
        let Some(kind) = kind(path) else { continue };
        let text = fs::read_to_string(workspace_root().join(path)).with_context(|| format!("read {path}"))?;
        for (line, word, instead) in findings(&text, kind) {
            println!("{path}:{line}: {word:?}: use {instead}");
            found += 1;
        }
    }
    ensure!(found == 0, "{found} words that the project does not use");
    Ok(())
}

/// What is prose: comments and strings, or the whole text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rust,
    Text,
}

fn kind(path: &str) -> Option<Kind> {
    if EXEMPT.iter().any(|(start, _)| path.starts_with(start)) {
        return None;
    }
    match Path::new(path).extension().and_then(|e| e.to_str()) {
        Some("rs") => Some(Kind::Rust),
        Some("md" | "toml" | "yaml") => Some(Kind::Text),
        _ => (path == "Makefile").then_some(Kind::Text),
    }
}

/// Line, word and what to use instead, in order.
fn findings(text: &str, kind: Kind) -> Vec<(usize, &'static str, &'static str)> {
    let prose = if kind == Kind::Rust { prose_of_rust(text) } else { text.chars().collect() };
    let words = words(&without_code(prose));
    let all = WORDS.iter().flat_map(|(all, instead)| all.iter().map(move |one| (*one, *instead)));
    let phrases: Vec<_> =
        all.map(|(phrase, instead)| (phrase.split(' ').collect::<Vec<_>>(), phrase, instead)).collect();
    let mut findings = Vec::new();
    for start in 0..words.len() {
        for (parts, phrase, instead) in &phrases {
            let here = words[start..].iter().map(|(_, word)| word.as_str()).take(parts.len());
            if here.eq(parts.iter().copied()) {
                findings.push((words[start].0, *phrase, *instead));
            }
        }
    }
    findings
}

/// Words in lower case with their lines. An empty word is punctuation, which ends a phrase.
fn words(prose: &[char]) -> Vec<(usize, String)> {
    let (mut words, mut word, mut line) = (Vec::new(), String::new(), 1);
    for (at, c) in prose.iter().copied().chain(['\n']).enumerate() {
        // What has such a character inside is an identifier or a path.
        let joins = "./:-#'".contains(c) && prose.get(at + 1).is_some_and(|c| c.is_alphanumeric());
        if c.is_alphanumeric() || c == '_' || (joins && !word.is_empty()) {
            word.extend(c.to_lowercase());
            continue;
        }
        if !word.is_empty() {
            words.push((line, word.trim_end_matches("'s").to_owned()));
            word.clear();
        }
        match c {
            '\n' => line += 1,
            c if c.is_whitespace() || c == '#' => {}
            _ => words.push((line, String::new())),
        }
    }
    words
}

/// Blanks out code spans and placeholders; each ends with its line.
fn without_code(mut prose: Vec<char>) -> Vec<char> {
    let mut end = None;
    for c in &mut prose {
        match end {
            Some(closing) if *c == closing || *c == '\n' => end = None,
            Some(_) => *c = ';',
            None if *c == '`' => end = Some('`'),
            None if *c == '{' => end = Some('}'),
            None => {}
        }
    }
    prose
}

/// The text with each character of code that is not white space replaced by `;`: only comments and strings are left.
fn prose_of_rust(text: &str) -> Vec<char> {
    let text: Vec<char> = text.chars().collect();
    let mut prose = text.clone();
    let mut at = 0;
    let find = |from: usize, end: &str| {
        let end: Vec<char> = end.chars().collect();
        (from..text.len()).find(|at| text[*at..].starts_with(&end)).map_or(text.len(), |at| at + end.len())
    };
    while at < text.len() {
        let rest = &text[at..];
        at = match rest {
            ['/', '/', ..] => {
                let marks = rest.iter().take_while(|c| matches!(c, '/' | '!')).count();
                prose[at..at + marks].fill(' ');
                find(at, "\n")
            }
            ['r', '"' | '#', ..] => {
                let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
                let is_text = rest.get(1 + hashes) == Some(&'"');
                if is_text { find(at + hashes + 2, &format!("\"{}", "#".repeat(hashes))) } else { at + 1 }
            }
            ['"', ..] => {
                let mut end = at + 1;
                while text.get(end).is_some_and(|c| *c != '"') {
                    if text[end] == '\\' {
                        prose[end] = ' ';
                        end += 1;
                        prose[end] = if text[end] == '\n' { '\n' } else { ' ' };
                    }
                    end += 1;
                }
                end + 1
            }
            ['\'', '\\', ..] => find(at + 3, "'"),
            ['\'', _, '\'', ..] => at + 3,
            _ => {
                prose[at] = if rest[0].is_whitespace() { rest[0] } else { ';' };
                at + 1
            }
        };
    }
    prose
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_in_prose_and_not_in_code() {
        for (text, kind, expected) in [
            ("/// It shall run.\nfn told() {}", Kind::Rust, vec![(1, "shall")]),
            ("// It is looked\n    // at once a day.", Kind::Rust, vec![(1, "looked at")]),
            ("// It looked.\n// At noon it ends.", Kind::Rust, vec![]),
            ("f(\"no\\nNobody's, \\\n  told\")", Kind::Rust, vec![(1, "nobody"), (2, "told")]),
            ("f('\"'); told(); g('\\'', \"anew\")", Kind::Rust, vec![(1, "anew")]),
            ("f(r#\"a \"told\" b\"#, told)", Kind::Rust, vec![(1, "told")]),
            ("told(\"{told} of {thing:?}\"); // `told` [`Told`] so_told pool/told.rs told.rs", Kind::Rust, vec![]),
            ("Run it, or else\n`told` waits. See [it](told.md#told).", Kind::Text, vec![(1, "or else")]),
            ("# A thing\nkey: told # Anew", Kind::Text, vec![(1, "thing"), (2, "told"), (2, "anew")]),
        ] {
            let found: Vec<_> = findings(text, kind).into_iter().map(|(line, word, _)| (line, word)).collect();
            assert_eq!(found, expected, "{text}");
        }
    }
}
