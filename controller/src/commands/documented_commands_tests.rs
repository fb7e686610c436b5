//! Tests of the commands in the documentation: the programs must accept them, and the fields that kubectl commands print must exist.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{CommandFactory as _, error::ErrorKind};
use serde_json::Value;

use crate::{args::Operator, client};

/// Name of the operator's program, and of the client as a plugin of kubectl.
const OPERATOR: &str = "windows-node-pools";
/// Words that end a command in a shell line or in prose.
const ENDS: [&str; 8] = ["|", ">", "<", "&&", ";", "#", "\\", "…"];

/// Kind of text that contains a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Shell block, from which a reader copies the command.
    Block,
    /// Code span in a sentence, which may leave out arguments.
    Prose,
}

/// Returns the lines of shell blocks, with continued lines joined, and the code spans of the prose.
fn texts(page: &str) -> Vec<(Place, String)> {
    let (mut texts, mut prose) = (Vec::new(), String::new());
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.trim_start().strip_prefix("```") else {
            prose += line;
            prose.push('\n');
            continue;
        };
        let block: Vec<&str> = lines.by_ref().take_while(|line| !line.trim_start().starts_with("```")).collect();
        if language == "sh" {
            let block = block.join("\n").replace("\\\n", " ");
            texts.extend(block.lines().map(|line| (Place::Block, line.to_owned())));
        }
    }
    texts.extend(prose.split('`').skip(1).step_by(2).map(|span| (Place::Prose, span.to_owned())));
    texts
}

/// Returns the program and the arguments if the text has a command line of one of the programs: by its name, as a plugin, or in the operator's Pod.
fn arguments(text: &str) -> Option<(clap::Command, Vec<&str>)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.iter().enumerate().find_map(|(at, word)| {
        let before = words.get(..at).and_then(<[&str]>::last).copied();
        let command = match (*word, before) {
            (OPERATOR, None | Some("--" | "|" | "./")) => Operator::command(),
            (OPERATOR, Some("kubectl" | "oc")) | (client::PROGRAM, None | Some("--" | "|" | "./")) => client::command(),
            _ => return None,
        };
        Some((command, words.iter().copied().skip(at + 1).take_while(|word| !ENDS.contains(word)).collect()))
    })
}

fn fault(place: Place, (command, arguments): (clap::Command, Vec<&str>)) -> Option<String> {
    let words = ["x"].iter().chain(&arguments);
    let error = command.try_get_matches_from(words).err()?;
    let is_incomplete = matches!(
        error.kind(),
        ErrorKind::MissingRequiredArgument
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::ValueValidation
            | ErrorKind::InvalidValue
    );
    let is_fine = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
        || (place == Place::Prose && is_incomplete);
    (!is_fine).then(|| format!("{}: {error}", arguments.join(" ")))
}

/// Returns the fields of pools and instances that a kubectl command prints, each with the kind of its object.
fn fields(line: &str) -> Vec<(&'static str, Vec<String>)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let kind = words.iter().find_map(|word| match *word {
        "wnp" | "windowsnodepool" | "windowsnodepools" => Some("WindowsNodePool"),
        "wi" | "windowsinstance" | "windowsinstances" => Some("WindowsInstance"),
        _ => None,
    });
    let Some(kind) = kind.filter(|_| line.contains("jsonpath") || line.contains("custom-columns")) else {
        return Vec::new();
    };
    let paths = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    let paths = paths.filter(|path| [".status", ".spec"].iter().any(|part| path.starts_with(part)));
    paths.map(|path| (kind, path.split('.').skip(1).map(ToOwned::to_owned).collect())).collect()
}

fn has_field(kind: &str, path: &[String]) -> bool {
    let crds = api::crds();
    let crd = crds.iter().find(|crd| crd.spec.names.kind == kind).map(serde_json::to_value);
    let Some(Ok(crd)) = crd else { return false };
    let mut schema: &Value = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    for name in path {
        schema = &schema["properties"][name];
    }
    !schema.is_null()
}

fn pages(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(pages(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found
}

#[test]
fn the_program_knows_each_command_that_a_page_shows_and_pools_have_each_field() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let (mut commands, mut faults) = (0, Vec::new());
    for page in pages(&root.join("docs")).into_iter().chain([root.join("README.md")]) {
        for (place, text) in texts(&fs::read_to_string(&page).unwrap()) {
            if let Some(arguments) = arguments(&text) {
                commands += 1;
                faults.extend(fault(place, arguments).map(|fault| format!("{}: {fault}", page.display())));
            }
            for (kind, path) in fields(&text).into_iter().filter(|(kind, path)| !has_field(kind, path)) {
                faults.push(format!("{}: {kind} has no {}", page.display(), path.join(".")));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(commands > 50, "only {commands} commands were found");
}

#[test]
fn a_command_that_the_program_refuses_is_found() {
    use Place::{Block, Prose};
    for (page, is_fine) in [
        ("```sh\nkubectl windows-node-pools approve POOL --removals 3   # asks\n```\n", true),
        ("```sh\nkubectl windows-node-pools approve POOL --removal 3\n```\n", false),
        ("```sh\nkubectl windows-node-pools abandon\n```\n", false),
        ("```sh\nkubectl windows-node-pools \\\n  check files hosts | grep x\n```\n", true),
        ("```sh\nwindows-node-pools check files hosts\n```\n", false),
        ("```sh\nkubectl exec x -- kubectl-windows_node_pools status\n```\n", true),
        ("`windows-node-pools run`", true),
        ("give it up with `kubectl windows-node-pools abandon`\n", true),
        ("with `kubectl windows-node-pools forget HOST`\n", false),
        ("with `gather --nothing` or `deploy/windows-node-pools --x`\n", true),
        ("```yaml\nwindows-node-pools --nothing\n```\n", true),
    ] {
        let found = texts(page).into_iter().filter_map(|(place, text)| fault(place, arguments(&text)?)).count();
        assert_eq!(found == 0, is_fine, "{page}");
    }
    assert_eq!(texts("`a`\n```sh\nb \\\n c\n```\n"), [(Block, "b   c".to_owned()), (Prose, "a".to_owned())]);
    for (line, is_fine) in [
        ("kubectl get wi -o custom-columns=NAME:.metadata.name,FAILED:.status.failedVersion", true),
        ("kubectl get wi -o custom-columns=NAME:.metadata.name,FAILED:.status.failedVersions", false),
        (r#"kubectl get wnp a -o jsonpath='{.status.conditions[?(@.type=="Stalled")].message}'"#, true),
        ("kubectl get wnp a -o jsonpath='{.spec.paused}'", false),
    ] {
        assert_eq!(fields(line).iter().all(|(kind, path)| has_field(kind, path)), is_fine, "{line}");
        assert!(!fields(line).is_empty(), "{line}");
    }
}
