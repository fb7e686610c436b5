//! `cargo xtask reasons`: compares the reasons in the code with the rows of their reference.
//!
//! Reasons are PascalCase string literals: in the functions `reason` of errors, and where a condition or a refusal is made. So each literal of
//! two or more words (`ApiError`), and each literal in such a function or after `reason:`, must have a row in [`PAGE`] or be listed in
//! [`OTHERS`]. The rows are generated from `api/`, and `cargo xtask gen --check` keeps the page in step with them. Reasons of events need no
//! such check: they are the variants of an enum.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use devenv::workspace_root;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::source::{self, end_of_test_code, is_punct, tokens};

/// The reference, with a row for each reason.
const PAGE: &str = "docs/reference/conditions.md";

/// Packages whose errors have reasons.
const PACKAGES: [&str; 6] = ["api", "wnp-core", "remote", "gitops", "controller", "wicd"];

/// The tables from which the page is generated: what is in them is no use of a word.
const TABLES: &str = "api/src/reasons";

/// Files whose literals are no reasons, and the reason.
const EXEMPT: &[(&str, &str)] = &[
    ("wicd/src/network.rs", "fields of the host network service"),
    ("wicd/src/windows/", "names of Windows"),
    ("wicd/src/credential_plugin.rs", "names of Windows"),
    ("core/src/render/kubelet.rs", "fields of kubelet's configuration"),
    ("controller/src/machineset_command.rs", "kinds and fields of machine providers"),
];

/// Words that are no reasons of conditions, and what they are.
const OTHERS: &[(&str, &[&str])] = &[
    ("settings of sshd", &["HostKeyAlgorithms", "KexAlgorithms"]),
    ("names of values in the registry of Windows", &["ImagePath", "WindowsNodePoolsAcceptance"]),
    ("versions of TLS", &["VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"]),
    (
        "kinds",
        &[
            "ClusterServiceVersion",
            "OperatorCondition",
            "ClusterRole",
            "ClusterVersion",
            "ConfigFile",
            "ConfigMap",
            "ControllerConfig",
            "CredentialProviderConfig",
            "DaemonSet",
            "ImageContentSourcePolicy",
            "ImageDigestMirrorSet",
            "ImageTagMirrorSet",
            "IntOrPercent",
            "MachineHealthCheck",
            "MachineSet",
            "OperatorCondition",
            "WindowsHostInventory",
            "WindowsInstance",
            "WindowsNodePool",
        ],
    ),
    ("conditions of a MachineHealthCheck", &["RemediationAllowed"]),
    (
        "steps, operations and actions of events",
        &["AdaptSource", "KeepUserData", "PullImages", "ReadInventory", "ReadSecret", "ReplaceMachine", "RotateKey"],
    ),
    ("platforms of OpenShift", &["AlibabaCloud", "KubeVirt", "OpenStack", "PowerVS"]),
    ("types and schemas", &["AuthConfig", "KubeletDuration", "PoolCollector", "PullSecret"]),
    ("values of OpenShift", &["NeverContactSource", "OVNKubernetesHybridOverlayNetwork", "OpenShiftSDN"]),
    (
        "values of Kubernetes",
        &[
            "DisruptionBudget",
            "NamespaceTerminating",
            "InternalDNS",
            "InternalIP",
            "NoExecute",
            "NoSchedule",
            "PreferNoSchedule",
        ],
    ),
    ("a line of the audit log, whose event on the pool is HostsAdmitted", &["HostAdmitted"]),
    ("a kind of signature", &["OpenPGP"]),
    ("the reason of an approval", &["WindowsNodePoolApproved"]),
    ("a struct in its Debug output", &["TlsPair"]),
    (
        "causes that another reason covers: CredentialsUnavailable, a line in the log, VersionUnreadable",
        &[
            "PrivateKeyEmpty",
            "PrivateKeyEncrypted",
            "PrivateKeyUnusable",
            "UsernameAnnotationMalformed",
            "UsernameAnnotationOfOtherKey",
            "UsernameNotEncrypted",
            "StoredVersionInvalid",
        ],
    ),
];

/// Finds reasons in the code that the reference does not explain, and rows of the reference that no code uses.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Compares the words of all packages with the rows.
pub(crate) fn run(_: &Args) -> Result<()> {
    let mut used = BTreeMap::new();
    for file in files()? {
        let text = fs::read_to_string(workspace_root().join(&file)).with_context(|| format!("read {file}"))?;
        for word in words(tokens(&text)?) {
            let place = used.entry(word.text).or_insert((false, format!("{file}:{}", word.line)));
            place.0 |= word.is_reason;
        }
    }
    let page = fs::read_to_string(workspace_root().join(PAGE)).with_context(|| format!("read {PAGE}"))?;
    let problems = problems(&used, &rows(&page), &OTHERS.iter().flat_map(|(_, words)| *words).copied().collect());
    ensure!(problems.is_empty(), "reasons and their reference differ:\n  {}", problems.join("\n  "));
    println!("{} rows", rows(&page).len());
    Ok(())
}

/// Files of [`PACKAGES`] that are not for tests, from the root of the repository.
fn files() -> Result<BTreeSet<String>> {
    let mut files = BTreeSet::new();
    let read = |path: &str| match fs::read_to_string(workspace_root().join(path)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {path}")),
    };
    for package in source::packages(Path::new("Cargo.toml"))? {
        if PACKAGES.contains(&package.name.as_str()) {
            for root in &package.roots {
                files.extend(source::read_crate(&root.path, &read)?.into_values().map(|module| module.file));
            }
        }
    }
    let exempt = |file: &String| file.starts_with(TABLES) || EXEMPT.iter().any(|(start, _)| file.starts_with(start));
    files.retain(|file| !exempt(file));
    Ok(files)
}

/// Words with whether they are reasons and where they stand; words with a row; words that are no reasons.
fn problems(used: &BTreeMap<String, (bool, String)>, rows: &BTreeSet<String>, others: &BTreeSet<&str>) -> Vec<String> {
    let is_explained = |word: &str| rows.contains(word) || others.contains(word);
    let missing = used.iter().filter(|(word, (is_reason, _))| *is_reason && !is_explained(word)).map(|(word, (_, place))| {
        format!("{place}: {word} has no row: add one in {TABLES}/ and run `cargo xtask gen`, or list it in xtask/src/reasons.rs if it is no reason")
    });
    let stale = rows
        .iter()
        .filter(|word| !used.contains_key(*word))
        .map(|word| format!("{PAGE}: {word} is in no code: remove its row from {TABLES}/ and run `cargo xtask gen`"));
    let listed = others.iter().filter(|word| !used.contains_key(**word) || rows.contains(**word));
    let listed = listed.map(|word| format!("xtask/src/reasons.rs: {word} is in no code, or has a row: remove it"));
    missing.chain(stale).chain(listed).collect()
}

/// The words in the first cells of tables.
fn rows(page: &str) -> BTreeSet<String> {
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    cells.map(|(word, _)| word.to_owned()).collect()
}

/// A literal in PascalCase.
#[derive(Debug, PartialEq, Eq)]
struct Word {
    text: String,
    line: usize,
    /// Whether it must be a reason.
    is_reason: bool,
}

/// The literals in PascalCase of a file, without those for tests and in attributes.
fn words(stream: TokenStream) -> Vec<Word> {
    let mut words = Vec::new();
    collect(stream, false, &mut words);
    words
}

fn collect(stream: TokenStream, in_reason: bool, words: &mut Vec<Word>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let is = |at: Option<usize>, test: fn(&str) -> bool| match at.and_then(|at| tokens.get(at)) {
        Some(TokenTree::Ident(word)) => test(&word.to_string()),
        _ => false,
    };
    // Whether the body that follows is that of a function `reason`.
    let (mut at, mut of_reason) = (0, false);
    while let Some(token) = tokens.get(at) {
        if let Some(end) = end_of_test_code(&tokens, at) {
            at = end;
            continue;
        }
        match token {
            TokenTree::Group(group) => {
                let is_attribute = group.delimiter() == Delimiter::Bracket && at > 0 && is_punct(&tokens[at - 1], '#');
                if !is_attribute {
                    collect(group.stream(), in_reason || of_reason, words);
                }
                of_reason &= group.delimiter() != Delimiter::Brace;
            }
            TokenTree::Ident(_) if is(Some(at), |word| word == "fn") => {
                of_reason = is(Some(at + 1), |name| name.starts_with("reason"));
            }
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                if let Some(text) = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')).filter(|t| is_pascal(t)) {
                    let named = at > 1 && is_punct(&tokens[at - 1], ':') && is(at.checked_sub(2), |w| w == "reason");
                    let is_reason = in_reason || named || humps(text) > 1;
                    words.push(Word { text: text.to_owned(), line: literal.span().start().line, is_reason });
                }
            }
            _ => {}
        }
        at += 1;
    }
}

/// Whether a text is one word or several without spaces, each with a capital. A single letter or a unit is none.
fn is_pascal(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_uppercase())
        && chars.all(|c| c.is_ascii_alphanumeric())
        && text.bytes().any(|b| b.is_ascii_lowercase())
}

/// Number of words in PascalCase.
fn humps(text: &str) -> usize {
    let capital = |b: &u8| b.is_ascii_uppercase();
    text.as_bytes().windows(2).filter(|pair| !capital(&pair[0]) && capital(&pair[1])).count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_found_where_code_makes_them() {
        let code = r#"
            #[serde(rename = "NotThis")]
            fn reason(&self) -> &str { match self { A => "Timeout", B => { "ApiError" } } }
            fn other() { set("Deleting"); Fault { reason: "Stopped" }; f("a text", "C:\\k", "HTTP", "GitOperationFailed") }
            #[cfg(test)]
            mod tests { fn reason() -> &str { "InTests" } }
        "#;
        let found: Vec<_> = words(tokens(code).unwrap()).into_iter().map(|w| (w.text, w.is_reason)).collect();
        let expected = [
            ("Timeout", true),
            ("ApiError", true),
            ("Deleting", false),
            ("Stopped", true),
            ("GitOperationFailed", true),
        ];
        assert_eq!(found, expected.map(|(word, is_reason)| (word.to_owned(), is_reason)));
    }

    #[test]
    fn a_word_without_a_row_and_a_row_without_a_word_are_problems() {
        let used: BTreeMap<_, _> = [("ApiError", true), ("ConfigMap", true), ("NewFault", true), ("Paused", false)]
            .map(|(word, is_reason)| (word.to_owned(), (is_reason, "a.rs:1".to_owned())))
            .into();
        let rows = rows("| reason | meaning |\n|---|---|\n| `ApiError` | x `Y` |\n| `Gone` | x |\n");
        let problems = problems(&used, &rows, &["ConfigMap", "Old"].into());
        let starts =
            ["a.rs:1: NewFault has no row", "docs/reference/conditions.md: Gone is", "xtask/src/reasons.rs: Old is"];
        assert_eq!(problems.len(), starts.len(), "{problems:?}");
        assert!(problems.iter().zip(starts).all(|(problem, start)| problem.starts_with(start)), "{problems:?}");
    }
}
