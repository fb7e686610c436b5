//! `cargo xtask spelling`: finds misspelled words in the documentation, with Debian's hunspell and a list of the project's own words.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use devenv::{find, skip, workspace_root};

use crate::links;

/// Words that the dictionary lacks, one a line, in the order of their letters. One in lower case stands also for a sentence's first word.
pub(crate) const OWN_WORDS: &str = "docs/words.txt";
/// The dictionary.
const DICTIONARY: &str = "en_US";

/// Finds words of docs/ and README.md, outside of code and links, that neither the dictionary of English nor docs/words.txt has.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Checks all pages. A word that is not known is an error, and so is one in the list that no page has.
pub(crate) fn run(_: &Args) -> Result<()> {
    if find("hunspell").is_none() {
        return skip("spelling: there is no hunspell; `cargo xtask setup` installs it");
    }
    let output = Command::new("git").arg("ls-files").current_dir(workspace_root()).output().context("run git")?;
    ensure!(output.status.success(), "git ls-files: {}", output.status);
    let files = String::from_utf8(output.stdout)?;
    let is_checked =
        |path: &&str| links::is_document(path) && (path.starts_with("docs/") || matches!(*path, "README.md"));
    let mut pages: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for path in files.lines().filter(is_checked) {
        let text = fs::read_to_string(workspace_root().join(path)).with_context(|| format!("read {path}"))?;
        for word in words(&text) {
            pages.entry(word).or_default().insert(path);
        }
    }
    let list = fs::read_to_string(workspace_root().join(OWN_WORDS)).with_context(|| format!("read {OWN_WORDS}"))?;
    let all: BTreeSet<&str> = pages.keys().map(String::as_str).collect();
    let mut faults = faults_of_list(&list, &all);
    for word in unknown(&all, &list)? {
        let places: Vec<&str> = pages.get(&word).into_iter().flatten().copied().take(3).collect();
        faults.push(format!("{word} ({})", places.join(", ")));
    }
    ensure!(faults.is_empty(), "correct these, or add a word that is right to {OWN_WORDS}:\n  {}", faults.join("\n  "));
    println!("{} words", all.len());
    Ok(())
}

/// The words that neither the dictionary nor the list has.
fn unknown(words: &BTreeSet<&str>, list: &str) -> Result<Vec<String>> {
    let own: BTreeSet<&str> = list.lines().collect();
    let arguments = ["-l", "-d", DICTIONARY, "-i", "UTF-8", "-p", "/dev/null"];
    let mut child = Command::new("hunspell")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start hunspell")?;
    let mut input = child.stdin.take().context("hunspell has no input")?;
    let lines = words.iter().copied().collect::<Vec<_>>().join("\n") + "\n";
    // It prints while it reads, and would wait for a reader of more than a pipe holds.
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = child.wait_with_output()?;
    writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
    ensure!(output.status.success(), "hunspell: {}", output.status);
    let found = String::from_utf8(output.stdout)?;
    Ok(found.lines().filter(|word| !is_own(word, &own)).map(str::to_owned).collect())
}

fn is_own(word: &str, own: &BTreeSet<&str>) -> bool {
    own.contains(word) || own.contains(word.to_lowercase().as_str())
}

/// What is wrong with the list itself: its order, and words that no page has.
fn faults_of_list(list: &str, words: &BTreeSet<&str>) -> Vec<String> {
    let lines: Vec<&str> = list.lines().collect();
    let key = |word: &str| (word.to_lowercase(), word.to_owned());
    let disorder = lines.windows(2).filter(|pair| key(pair[0]) >= key(pair[1]));
    let disorder = disorder.map(|pair| format!("{OWN_WORDS}: {} stands before {}", pair[0], pair[1]));
    let lower: BTreeSet<String> = words.iter().map(|word| word.to_lowercase()).collect();
    let unused = lines.iter().filter(|word| !words.contains(**word) && !lower.contains(**word));
    disorder.chain(unused.map(|word| format!("{OWN_WORDS}: no page has {word}"))).collect()
}

/// The words of the prose of a page: without blocks and spans of code, targets of links, comments, addresses, and names in which a digit or a capital
/// letter follows the first letter.
fn words(page: &str) -> BTreeSet<String> {
    let prose = prose(page);
    let is_of_word = |c: char| c.is_alphanumeric() || matches!(c, '\'' | '’' | '_' | '$');
    let words = prose.split(|c| !is_of_word(c)).map(|word| word.replace('’', "'"));
    let words = words.map(|word| word.trim_matches('\'').trim_end_matches("'s").to_owned());
    words.filter(|word| word.len() > 1 && is_plain(word)).collect()
}

fn is_plain(word: &str) -> bool {
    let mut letters = word.chars();
    letters.next().is_some_and(char::is_alphabetic) && letters.all(|c| c.is_lowercase() || c == '\'')
}

fn prose(page: &str) -> String {
    let mut lines = String::new();
    let mut in_block = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            lines.push_str(line);
            lines.push('\n');
        }
    }
    let lines = without(&lines, "<!--", "-->");
    let lines = without(&lines, "``", "``");
    let lines = without(&without(&lines, "`", "`"), "](", ")");
    lines.split_inclusive(char::is_whitespace).filter(|part| !is_address(part)).collect()
}

/// An address, a path or the name of a file.
fn is_address(part: &str) -> bool {
    let part = part.trim_matches(|c: char| !c.is_alphanumeric());
    // Of a sentence, the point stands at the end.
    let is_dotted = part.split('.').skip(1).any(|rest| rest.starts_with(char::is_alphanumeric));
    is_dotted || part.contains("://") || part.contains('@') || part.matches('/').count() > 1
}

/// A text without what stands between two marks.
fn without(text: &str, open: &str, close: &str) -> String {
    let (mut kept, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(open) {
        let Some((_, behind)) = after.split_once(close) else { break };
        kept.push_str(before);
        kept.push(' ');
        rest = behind;
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_prose_is_checked() {
        for (page, expected) in [
            ("A host is drained.\n", &["drained", "host", "is"][..]),
            ("```sh\nkubctl get\n```\nThe end\n", &["The", "end"]),
            ("run `kubctl` in [the gude](gude.md#xyz) now\n", &["gude", "in", "now", "run", "the"]),
            ("<!-- nott run -->\nit's the host’s\n", &["host", "it", "the"]),
            ("WindowsNodePool, v1alpha1, RBAC and $HOMEE\n", &["and"]),
            ("see https://exmple.com/a or docs/gude/a or a/b or kubctl.exe.\nThe end.\n", &["The", "end", "or", "see"]),
        ] {
            assert_eq!(words(page).iter().map(String::as_str).collect::<Vec<_>>(), expected, "{page}");
        }
    }

    #[test]
    fn the_list_is_in_order_and_all_of_it_is_used() {
        let words = BTreeSet::from(["Kubelet", "uncordon"]);
        for (list, expected) in [
            ("kubelet\nuncordon\n", vec![]),
            ("uncordon\nkubelet\n", vec!["docs/words.txt: uncordon stands before kubelet"]),
            ("kubelet\nsshd\nuncordon\n", vec!["docs/words.txt: no page has sshd"]),
        ] {
            assert_eq!(faults_of_list(list, &words), expected, "{list}");
        }
    }

    #[test]
    fn a_misspelled_word_is_refused() {
        if find("hunspell").is_none() {
            return skip("there is no hunspell").unwrap();
        }
        let words = BTreeSet::from(["receive", "recieve", "Kubelet", "uncordon"]);
        assert_eq!(unknown(&words, "kubelet\nuncordon\n").unwrap(), ["recieve"]);
        assert_eq!(unknown(&words, "kubelet\n").unwrap(), ["recieve", "uncordon"]);
    }
}
