//! `cargo xtask docs`: builds the documentation site with mdBook, or checks the documentation: its list of pages, the sources that it names, and the
//! tests of its commands.

mod site;

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result, ensure};
use devenv::workspace_root;

use crate::tracked;

/// Table of contents of the site.
const SUMMARY: &str = "docs/SUMMARY.md";
/// Pages with commands for users, which must be tested.
const FOLLOWED: [&str; 2] = ["docs/guide/", "docs/reference/alerts.md"];
/// Words that exempt a block of commands from tests: programs that need a real host, cluster, registry or build, commands for Pods, and placeholders.
const NOT_RUN: &str =
    "oc opm ssh crane podman skopeo cosign flux make cargo helm exec logs port-forward rollout NAME VERSION POD DIGEST";

/// Builds the site of the documentation in target/site.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Check only: each page is once in docs/SUMMARY.md, sources and tests that pages name exist, and commands for users are tested or excused.
    #[arg(long)]
    pub check: bool,
}

/// Checks the documentation, or builds its site.
pub(crate) fn run(args: &Args) -> Result<()> {
    if !args.check {
        return site::build(&workspace_root());
    }
    let mut pages = BTreeMap::new();
    for path in tracked(&["*.md"])? {
        let text = fs::read_to_string(workspace_root().join(&path)).with_context(|| format!("cannot read {path}"))?;
        pages.insert(path, text);
    }
    let faults = faults(&pages, &|path| {
        let path = workspace_root().join(path);
        path.exists().then(|| fs::read_to_string(path).unwrap_or_default())
    });
    ensure!(faults.is_empty(), "faults in the documentation:\n  {}", faults.join("\n  "));
    println!("{} pages", pages.len());
    Ok(())
}

/// Returns the faults of the pages. `read` returns the text of a source, or `None` if it does not exist.
fn faults(pages: &BTreeMap<String, String>, read: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let summary = pages.get(SUMMARY).map(String::as_str).unwrap_or_default();
    let mut faults = Vec::new();
    for (page, text) in pages {
        let name = page.strip_prefix("docs/").filter(|_| page != SUMMARY);
        if name.is_some_and(|name| summary.matches(&format!("]({name})")).count() != 1) {
            faults.push(format!("{page}: {SUMMARY} must link to it exactly once"));
        }
        let (mut section, mut above, mut lines) = ("", "", (1..).zip(text.lines()));
        while let Some((number, line)) = lines.next() {
            let fault = if let Some(language) = line.trim_start().strip_prefix("```") {
                let block: Vec<&str> = lines
                    .by_ref()
                    .map(|(_, line)| line)
                    .take_while(|line| !line.trim_start().starts_with("```"))
                    .collect();
                let is_followed = language == "sh" && FOLLOWED.iter().any(|path| page.starts_with(path));
                is_followed.then(|| fault_of_commands(page, section, above.trim(), &block.join("\n"), read)).flatten()
            } else {
                line.split('`').skip(1).step_by(2).find_map(|span| fault_of_name(span, read))
            };
            faults.extend(fault.map(|fault| format!("{page}:{number}: {fault}")));
            if line.starts_with('#') {
                section = line;
            }
            above = line;
        }
    }
    faults
}

/// Returns the fault of a command block. A block must name a file in `controller/tests/it/` with string literals that end with the file name of its
/// page and with its section heading, state a reason why no test runs it, or have a word of [`NOT_RUN`].
fn fault_of_commands(
    page: &str,
    section: &str,
    above: &str,
    commands: &str,
    read: &dyn Fn(&str) -> Option<String>,
) -> Option<String> {
    let Some(test) = above.strip_prefix("<!-- run: ").and_then(|rest| rest.strip_suffix(" -->")) else {
        let is_excused = above.starts_with("<!-- not run: ")
            || commands
                .split(|c: char| !c.is_ascii_alphanumeric() && !"-_$".contains(c))
                .any(|word| NOT_RUN.split(' ').any(|not_run| not_run == word));
        return (!is_excused).then(|| {
            "say which file of controller/tests/it runs it (`<!-- run: FILE -->` above, without .rs), or why none does (`<!-- not run: REASON -->`)".into()
        });
    };
    let source = read(&source_of(test)).unwrap_or_default();
    let is_named = |word: &str| source.contains(&format!("{word}\""));
    let is_run = is_named(section) && is_named(page.rsplit('/').next().unwrap_or_default());
    (!is_run).then(|| format!("{} does not name this page and {section:?}", source_of(test)))
}

/// Returns the fault of a code span that names a missing source, such as `controller/core/src/csr/`, or a missing integration test, as
/// `file::test_of_it`.
fn fault_of_name(span: &str, read: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let consists_of =
        |others: &str| span.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || others.contains(c));
    let is_path =
        consists_of("_-./") && !span.starts_with('/') && ["/src/", "/tests/"].iter().any(|part| span.contains(part));
    if is_path && read(span).is_none() {
        return Some(format!("there is no {span}"));
    }
    // Targets of log levels (`controller::pool`) and paths of functions look like tests. Only a last part with an underscore counts as a test.
    let (file, test) = span.split_once("::").filter(|(file, test)| {
        consists_of("_:") && *file != "controller" && test.contains('_') && !test.contains(':')
    })?;
    let is_there = read(&source_of(file)).is_some_and(|source| has_test(&source, test));
    (!is_there).then(|| format!("there is no test {span}"))
}

/// Reports whether a source has a test of this name. A function that a test calls does not count, because it cannot be run alone.
fn has_test(source: &str, name: &str) -> bool {
    let before = source.split_once(&format!("fn {name}(")).map_or("", |(before, _)| before);
    let attributes = before.lines().rev().skip_while(|line| line.ends_with("async "));
    attributes.take_while(|line| line.starts_with("#[")).any(|line| line.contains("test"))
}

/// Returns the file of an integration test module.
fn source_of(test: &str) -> String {
    format!("controller/tests/it/{test}.rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_commands_of_pages_are_checked() {
        let read = |path: &str| {
            let text = match path {
                "controller/tests/it/t.rs" => {
                    "#[tokio::test]\n#[ignore]\nasync fn of_one() {}\n\nasync fn of_part() {} (\"a.md\", \"# A\")"
                }
                "controller/core/src/a.rs" => "",
                _ => return None,
            };
            Some(text.to_owned())
        };
        for (text, fault) in [
            ("`t::of_one`, `controller::pool_of`, `a::b`, `Pod::list`, `controller/core/src/a.rs`, `/src/x`", None),
            ("`t::of_part`", Some("there is no test t::of_part")),
            ("`t::of_two`", Some("docs/guide/a.md:2: there is no test t::of_two")),
            ("`b::of_one`", Some("there is no test b::of_one")),
            ("`controller/core/src/gone.rs`", Some("there is no controller/core/src/gone.rs")),
            ("<!-- run: t -->\n```sh\nkubectl get wi\n```", None),
            ("  <!-- not run: it hurts -->\n  ```sh\n  kubectl get wi\n  ```", None),
            (
                "<!-- run: b -->\n```sh\nkubectl get wi\n```",
                Some("docs/guide/a.md:3: controller/tests/it/b.rs does not name"),
            ),
            ("## B\n<!-- run: t -->\n```sh\nkubectl get wi\n```", Some("does not name this page and \"## B\"")),
            ("```sh\nkubectl get wi\n```", Some("docs/guide/a.md:2: say which file")),
            ("```sh\nkubectl get wi $NAME --renamed my-oc\n```", Some("say which file")),
            ("```sh\nx=$(oc get wi)\n```\n```yaml\n# `b::of_one`\n```", None),
        ] {
            let page = ("docs/guide/a.md".to_owned(), format!("# A\n{text}\n"));
            let summary = (SUMMARY.to_owned(), "- [A](guide/a.md)\n".to_owned());
            let faults = faults(&[page, summary].into(), &read);
            assert_eq!(faults.len(), usize::from(fault.is_some()), "{text}: {faults:?}");
            assert!(fault.is_none_or(|fault| faults[0].contains(fault)), "{text}: {faults:?}");
        }
    }

    /// Checks that docs/README.md, to which README.md links, has a row for each of the users' questions, which are given as search words.
    #[test]
    fn each_question_is_answered_after_two_clicks() {
        const WORDS: &str = "rotate the SSH key|domain user|node NotReady|private registry|ports|from Kubernetes 1.34|Calico|AKS|undo|OpenShift without OLM|\
            prepare a host|user|patching|a dead host|uninstall|logs of kubelet|kubelet settings|HTTP proxy|company CA|alerts|Grafana|WMCO|sizing|\
            two versions of Windows|requirements|limitations|air-gapped|bastion|EKS|RKE2|kubeadm|Cilium|EUS|gMSA|canary|backup|storage";
        let read = |page: &str| fs::read_to_string(workspace_root().join(page)).unwrap();
        assert!(read("README.md").contains("](docs/README.md)"));
        let page = read("docs/README.md");
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with('|') && line.contains("](")).collect();
        for words in WORDS.split('|') {
            assert!(rows.iter().any(|row| row.contains(words)), "docs/README.md leads to no answer for {words:?}");
        }
    }

    #[test]
    fn each_page_is_once_in_the_table_of_contents() {
        for (summary, is_right) in [("[A](a.md)", true), ("", false), ("[A](a.md) [B](a.md)", false)] {
            let pages = [("docs/a.md".to_owned(), String::new()), (SUMMARY.to_owned(), summary.to_owned())].into();
            assert_eq!(faults(&pages, &|_| None).is_empty(), is_right, "{summary}");
        }
    }
}
