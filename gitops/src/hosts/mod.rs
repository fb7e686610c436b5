//! Parsing of files into entries. No I/O.
//!
//! The content of a file determines its format: an object of kind `WindowsHostInventory`, a list of hosts, one host, or a ConfigMap such
//! as `windows-instances`. Objects of other kinds are ignored, so that a host list can be stored beside other manifests. A document
//! without a kind that is not a host list is an error.

mod config_map;
mod schema;

use std::collections::BTreeMap;

use api::Host;

use crate::File;
use base64::Engine as _;
pub use config_map::{Bad, windows_instances};
pub use schema::{API_VERSION, KIND, json_schema};
use wnp_core::{
    inventory::address::canonical,
    yaml::{self, Fault, Kind, Node},
};

/// Host in a file, with its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Host of the entry. The name is empty if the format has no names (the ConfigMap of WMCO): the host reports its name.
    pub host: Host,
    /// Path of the file.
    pub file: String,
    /// Line on which the entry begins, from 1.
    pub line: usize,
}

/// Fault in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Path of the file; empty if the fault concerns all files.
    pub file: String,
    /// Line of the fault, from 1, as exact as the parser reports it.
    pub line: Option<usize>,
    /// Message that describes the fault.
    pub message: String,
}

/// Prints `file:line: message`, as compilers do.
impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.file.as_str(), self.line) {
            ("", _) => write!(f, "{}", self.message),
            (file, None) => write!(f, "{file}: {}", self.message),
            (file, Some(line)) => write!(f, "{file}:{line}: {}", self.message),
        }
    }
}

/// Parses all files of an inventory. A single finding rejects the whole inventory.
///
/// # Errors
/// All findings, sorted by file and line.
pub fn read(files: &[File]) -> Result<Vec<Entry>, Vec<Finding>> {
    let (mut entries, mut findings) = (Vec::new(), Vec::new());
    let mut says_empty = false;
    for file in files {
        let mut list = List::default();
        list.read(file);
        let finding = |(line, message)| Finding { file: file.path.clone(), line: Some(line), message };
        findings.extend(list.faults.into_iter().map(finding));
        entries.extend(list.hosts.into_iter().map(|(line, host)| Entry { host, file: file.path.clone(), line }));
        says_empty |= list.says_empty;
    }
    findings.extend(duplicates(&entries));
    if entries.is_empty() && findings.is_empty() && !says_empty {
        findings.push(Finding { file: String::new(), line: None, message: no_hosts(files) });
    }
    if findings.is_empty() {
        return Ok(entries);
    }
    findings.sort();
    findings.dedup();
    Err(findings)
}

fn no_hosts(files: &[File]) -> String {
    let mend = "for an empty inventory, write `hosts: []`";
    match files {
        [] => format!("there is no *.yaml, *.yml or *.json file: {mend}"),
        [file] => format!("there are no hosts in {}: {mend}", file.path),
        files => format!("there are no hosts in any of the {} files: {mend}", files.len()),
    }
}

/// Finds duplicate names and addresses. An address with and without a port may be two hosts: the pool's default port is not known here.
fn duplicates(entries: &[Entry]) -> Vec<Finding> {
    let (mut names, mut places) = (BTreeMap::new(), BTreeMap::new());
    let mut findings = Vec::new();
    for entry in entries {
        let mut twice = |other: &Entry, what: String| {
            let message =
                format!("duplicate {what} (first defined at {}:{}): correct or remove one", other.file, other.line);
            findings.push(Finding { file: entry.file.clone(), line: Some(entry.line), message });
        };
        let Host { name, address, port, .. } = &entry.host;
        if !name.is_empty()
            && let Some(other) = names.insert(name, entry)
        {
            names.insert(name, other);
            twice(other, format!("name `{name}`"));
        }
        if let Some(other) = places.insert((canonical(address), *port), entry) {
            places.insert((canonical(address), *port), other);
            let port = port.map_or_else(String::new, |port| format!(" port {port}"));
            twice(other, format!("address `{address}`{port}"));
        }
    }
    findings
}

/// Entries and faults of one file.
#[derive(Default)]
struct List {
    hosts: Vec<(usize, Host)>,
    faults: Vec<Fault>,
    says_empty: bool,
}

impl List {
    fn fault(&mut self, line: usize, message: impl Into<String>) {
        self.faults.push((line, message.into()));
    }

    fn read(&mut self, file: &File) {
        let text = match api::text::decode(&file.bytes) {
            Ok(text) => text,
            Err(error) => return self.fault(error.line(), format!("the file cannot be read: {error}")),
        };
        if file.path.rsplit_once('.').is_some_and(|(_, extension)| extension == "json") {
            if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&text) {
                return self.fault(
                    error.line().max(1),
                    format!("the file is not JSON: {}", api::text::line(&error.to_string(), MAX_TEXT_CHARS)),
                );
            }
            // JSON is valid YAML, except for tabs between values. Valid JSON has no tabs elsewhere.
            return self.documents(&text.replace('\t', " "));
        }
        self.documents(&text);
    }

    fn documents(&mut self, text: &str) {
        let (documents, faults) = yaml::documents(text);
        self.faults.extend(faults);
        for document in &documents {
            self.document(document);
        }
        if self.faults.is_empty() && documents.iter().all(Node::is_null) {
            self.fault(1, "the file is empty: for an empty inventory, write `hosts: []`");
        }
    }

    fn document(&mut self, node: &Node) {
        match &node.kind {
            Kind::List(_) => self.list(node),
            Kind::Map(members) => match node.get("kind") {
                Some(kind) => self.object(node, kind.text().unwrap_or_default()),
                None if ["name", "address"].iter().any(|key| node.get(key).is_some()) => self.host(node),
                None if node.get("hosts").is_some() => self.inventory(node),
                None => {
                    let known = "apiVersion kind hosts name address".split(' ');
                    let mend = members.first().map(|m| schema::did_you_mean(&m.key, known)).unwrap_or_default();
                    let begin = members
                        .first()
                        .map_or_else(String::new, |m| format!(", it begins with {}{mend}", field(&m.key)));
                    self.fault(
                        node.line,
                        format!("not a host list{begin}: add `kind: {KIND}`, or remove the file from this directory"),
                    );
                }
            },
            Kind::Scalar { .. } if node.is_null() => {}
            Kind::Scalar { .. } => self.fault(
                node.line,
                format!(
                    "this is {}, not a host list: write `hosts:` with a list, or remove the file from this directory",
                    node.what()
                ),
            ),
        }
    }

    fn object(&mut self, node: &Node, kind: &str) {
        let api_version = node.get("apiVersion").and_then(Node::text).unwrap_or_default();
        let line = node.get("kind").map_or(node.line, |n| n.line);
        let mend = schema::did_you_mean(kind, [KIND].into_iter());
        let is_ours = api_version.split('/').next() == API_VERSION.split('/').next();
        match kind {
            KIND if api_version == API_VERSION => self.inventory(node),
            KIND => {
                let line = node.get("apiVersion").map_or(line, |n| n.line);
                self.fault(line, format!("a {KIND} needs `apiVersion: {API_VERSION}`"));
            }
            "ConfigMap" => self.config_map(node),
            "List" => self.items(node),
            "WindowsNodePool" | "WindowsInstance" => {}
            _ if !mend.is_empty() => self.fault(line, format!("unknown kind {}{mend}", field(kind))),
            _ if is_ours => self.fault(line, format!("unknown kind {}: write `kind: {KIND}`", field(kind))),
            _ => {}
        }
    }

    /// Reads the items of a `List`, which `kubectl get -o yaml` prints.
    fn items(&mut self, node: &Node) {
        match node.get("items").map(|items| (&items.kind, items)) {
            Some((Kind::List(items), _)) => items.iter().for_each(|item| self.document(item)),
            Some((_, items)) => self.fault(items.line, format!("`items` must be a list, but is {}", items.what())),
            None => {}
        }
    }

    fn inventory(&mut self, node: &Node) {
        let known = ["apiVersion", "kind", "metadata", "hosts"];
        let Kind::Map(members) = &node.kind else { return };
        for member in members.iter().filter(|m| !known.contains(&m.key.as_str())) {
            let mend = schema::mend_unknown(&member.key, known.into_iter());
            self.fault(member.line, format!("unknown field {}{mend}", field(&member.key)));
        }
        match node.get("hosts") {
            Some(hosts) => self.list(hosts),
            None => {
                self.fault(node.line, "`hosts` is missing: write it at this level, for an empty inventory `hosts: []`");
            }
        }
    }

    fn list(&mut self, node: &Node) {
        match &node.kind {
            Kind::List(items) => {
                self.says_empty |= items.is_empty();
                for item in items {
                    self.host(item);
                }
            }
            _ => self.fault(node.line, format!("`hosts` must be a list, but is {}", node.what())),
        }
    }

    fn host(&mut self, node: &Node) {
        if let Some(host) = schema::host(node, &mut self.faults) {
            self.hosts.push((node.line, host));
        }
    }

    fn config_map(&mut self, node: &Node) {
        let name = node.get("metadata").and_then(|m| m.get("name")).and_then(Node::text);
        let parts = ["data", "binaryData"].map(|part| (part, node.get(part)));
        let members = |part: Option<&Node>| match part.map(|node| &node.kind) {
            Some(Kind::Map(members)) => members.clone(),
            _ => Vec::new(),
        };
        let value = |part: &str, value: &Node| {
            let text = value.text()?;
            if part == "data" { Some(text.as_bytes().to_vec()) } else { base64(text) }
        };
        let entries: Vec<_> = parts
            .iter()
            .flat_map(|(part, node)| members(*node).into_iter().map(|m| (m.line, value(part, &m.value), m.key)))
            .collect();
        if !config_map::is_host_list(name, entries.iter().filter_map(|(_, value, _)| value.as_deref())) {
            return;
        }
        if parts.iter().all(|(_, part)| part.is_none()) {
            return self.fault(node.line, "`data` is missing: for an empty list, write `data: {}`");
        }
        for (name, part) in parts.iter().filter_map(|(name, part)| Some((name, (*part)?))) {
            if !matches!(part.kind, Kind::Map(_)) {
                self.fault(part.line, format!("`{name}` must be an object, but is {}", part.what()));
            }
        }
        self.says_empty |= entries.is_empty();
        for (line, value, key) in entries {
            match value.as_deref().map(|value| config_map::entry(&key, value)) {
                None => self.fault(
                    line,
                    format!(
                        "{}: the value is not text, or not in base64 in `binaryData`: write `username=<name>`",
                        field(&key)
                    ),
                ),
                Some(Err(message)) => self.fault(line, message),
                Some(Ok(username)) => {
                    let address = key.trim().to_owned();
                    self.hosts.push((line, Host { address, username: Some(username), ..Host::default() }));
                }
            }
        }
    }
}

/// Decodes a value in `binaryData`, which may contain line breaks.
fn base64(text: &str) -> Option<Vec<u8>> {
    let text: String = text.split_whitespace().collect();
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}

/// Maximum number of characters of a text in a message.
const MAX_TEXT_CHARS: usize = 80;

/// Returns an external text in quotes, for a message.
fn quote(text: &str) -> String {
    api::text::quote(text, MAX_TEXT_CHARS)
}

/// Returns a field name in backticks, for a message.
fn field(name: &str) -> String {
    let more = if name.chars().nth(MAX_TEXT_CHARS).is_some() { "…" } else { "" };
    format!("`{}{more}`", api::text::escape(name, MAX_TEXT_CHARS))
}

/// Returns findings about entries that are valid but probably a mistake.
pub fn doubts(entries: &[Entry]) -> Vec<Finding> {
    let doubt = |entry: &Entry| {
        let username = entry.host.username.as_deref()?;
        let message = config_map::doubt(username)?;
        Some(Finding { file: entry.file.clone(), line: Some(entry.line), message })
    };
    entries.iter().filter_map(doubt).collect()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
