//! YAML and JSON from untrusted writers, as a tree with line numbers. Pure.
//!
//! Aliases and merge keys are resolved here, and their expansion counts against the size limit: a few lines of nested aliases must not exhaust the
//! memory. All untrusted YAML is read here, or at least [checked](check) before another parser reads it.

use std::collections::{BTreeMap, BTreeSet};

use api::text;
use granit_parser::{Event, Parser, ScalarStyle, Span, Tag};
use serde_json::{Map, Value};

/// Maximum number of values in a text, including values that aliases repeat. 5,000 hosts with every field have about 150,000.
const MAX_NODES: usize = 500_000;
/// Bytes of text that count as one more value, because aliases can repeat long texts, too.
const BYTES_OF_A_NODE: usize = 64;
/// Maximum nesting depth. A host list needs 6, the schema of a CRD about 40.
const MAX_DEPTH: usize = 64;

/// YAML value and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Line on which the value begins, from 1.
    pub line: usize,
    /// Content of the value.
    pub kind: Kind,
}

/// Content of a value, without its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text, number, boolean or null.
    Scalar {
        /// Text without its quotes.
        text: String,
        /// True if the text has no quotes, no block style and no tag `!!str`, so that it may be a number, a boolean or null.
        is_plain: bool,
    },
    /// List of values.
    List(Vec<Node>),
    /// Object with its members, in the order in which they are written.
    Map(Vec<Member>),
}

/// Key of an object, with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Text of the key.
    pub key: String,
    /// Line of the key, from 1.
    pub line: usize,
    /// Value of the key.
    pub value: Node,
}

/// Type of a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Null, or an empty value without quotes.
    Null,
    /// Boolean.
    Bool,
    /// Integer.
    Int,
    /// Floating-point number.
    Float,
    /// Text of any other form.
    Text,
}

impl Node {
    /// Returns the type of the value, unless it is a list or an object.
    pub fn meaning(&self) -> Option<Meaning> {
        match &self.kind {
            Kind::Scalar { text, is_plain: true } => Some(meaning(text)),
            Kind::Scalar { .. } => Some(Meaning::Text),
            Kind::List(_) | Kind::Map(_) => None,
        }
    }

    /// Reports whether the value is null, or empty without quotes.
    pub fn is_null(&self) -> bool {
        self.meaning() == Some(Meaning::Null)
    }

    /// Returns the value of a key, if the node is an object. A null value counts as missing.
    pub fn get(&self, key: &str) -> Option<&Node> {
        let Kind::Map(members) = &self.kind else { return None };
        members.iter().find(|m| m.key == key).map(|m| &m.value).filter(|n| !n.is_null())
    }

    /// Returns the text of the node, if it is a scalar.
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar { text, .. } => Some(text),
            Kind::List(_) | Kind::Map(_) => None,
        }
    }

    /// Returns the name of the value's type, for messages.
    pub fn what(&self) -> &'static str {
        match (&self.kind, self.meaning()) {
            (Kind::List(_), _) => "a list",
            (Kind::Map(_), _) => "an object",
            (_, Some(Meaning::Null)) => "nothing",
            (_, Some(Meaning::Bool)) => "a boolean",
            (_, Some(Meaning::Int)) => "a number",
            (_, Some(Meaning::Float)) => "a number with a fraction",
            _ => "text",
        }
    }

    /// Returns the value as JSON. A number that is not written as in JSON becomes text.
    pub fn to_json(&self) -> Value {
        match (&self.kind, self.meaning()) {
            (Kind::List(items), _) => items.iter().map(Node::to_json).collect(),
            (Kind::Map(members), _) => {
                Value::Object(members.iter().map(|m| (m.key.clone(), m.value.to_json())).collect::<Map<_, _>>())
            }
            (Kind::Scalar { .. }, Some(Meaning::Null)) => Value::Null,
            (Kind::Scalar { text, .. }, Some(Meaning::Bool)) => {
                ["true", "yes", "on"].contains(&text.to_ascii_lowercase().as_str()).into()
            }
            (Kind::Scalar { text, .. }, Some(Meaning::Int | Meaning::Float)) => {
                text.parse().map_or_else(|_| text.clone().into(), Value::Number)
            }
            (Kind::Scalar { text, .. }, _) => text.clone().into(),
        }
    }

    fn size(&self) -> usize {
        match &self.kind {
            Kind::Scalar { text, .. } => size(text),
            Kind::List(items) => 1 + items.iter().map(Node::size).sum::<usize>(),
            Kind::Map(members) => 1 + members.iter().map(|m| size(&m.key) + m.value.size()).sum::<usize>(),
        }
    }
}

fn size(text: &str) -> usize {
    1 + text.len() / BYTES_OF_A_NODE
}

/// Returns the type of an unquoted text by the core schema of YAML 1.2. The YAML 1.1 booleans `yes`, `no`, `on` and `off` still count as booleans, as
/// in Kubernetes.
fn meaning(text: &str) -> Meaning {
    let digits = |t: &str, radix| !t.is_empty() && t.chars().all(|c| c.is_digit(radix));
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let lower = unsigned.to_ascii_lowercase();
    if ["", "~", "null"].contains(&text.to_ascii_lowercase().as_str()) {
        Meaning::Null
    } else if ["true", "false", "yes", "no", "on", "off"].contains(&text.to_ascii_lowercase().as_str()) {
        Meaning::Bool
    } else if digits(unsigned, 10)
        || unsigned.strip_prefix("0x").is_some_and(|t| digits(t, 16))
        || unsigned.strip_prefix("0o").is_some_and(|t| digits(t, 8))
    {
        Meaning::Int
    } else if [".inf", ".nan"].contains(&lower.as_str())
        || unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') && unsigned.parse::<f64>().is_ok()
    {
        Meaning::Float
    } else {
        Meaning::Text
    }
}

/// Line number of a fault, from 1, and a message about it.
pub type Fault = (usize, String);

/// Returns the documents of a text, as far as they can be read, and the faults up to the first syntax error.
pub fn documents(text: &str) -> (Vec<Node>, Vec<Fault>) {
    let (Builder { documents, faults, .. }, _) = build(text);
    (documents, faults)
}

/// Returns the only document of a text. An empty text gives null.
///
/// # Errors
/// Fails if the text has a fault, or more than one document.
pub fn document(text: &str) -> Result<Node, Fault> {
    let (documents, faults) = documents(text);
    let mut documents = documents.into_iter();
    match (faults.into_iter().next(), documents.next(), documents.next()) {
        (Some(fault), ..) => Err(fault),
        (None, _, Some(second)) => Err((second.line, "a second document begins: remove it".into())),
        (None, first, None) => {
            Ok(first.unwrap_or(Node { line: 1, kind: Kind::Scalar { text: String::new(), is_plain: true } }))
        }
    }
}

/// Checks the size of a text before another parser reads it.
///
/// # Errors
/// Fails if the text has more values than [`documents`] reads.
pub fn check(text: &str) -> Result<(), Fault> {
    let (mut builder, is_too_large) = build(text);
    builder.faults.pop().filter(|_| is_too_large).map_or(Ok(()), Err)
}

/// Reads the documents of a text. Returns true if the text is too large; its last fault then says so.
fn build(text: &str) -> (Builder, bool) {
    let mut options = granit_parser::options! { flow_nesting_limit: MAX_DEPTH, block_nesting_limit: MAX_DEPTH };
    options.set_emit_comments(false);
    let mut builder = Builder::default();
    for next in Parser::new_from_str_with_options(text, options) {
        match next {
            Ok((event, span)) => builder.take(event, span),
            Err(error) => {
                // The parser may report the end of the text as an additional line.
                let line = error.marker().line().clamp(1, text.lines().count().max(1));
                builder.faults.push((line, syntax(text, line, &error.info())));
                break;
            }
        }
        if builder.nodes > MAX_NODES {
            let line = builder.faults.last().map_or(1, |(line, _)| *line).max(builder.line);
            builder.faults.push((
                line,
                format!("the file has more than {MAX_NODES} values: split the file, or use fewer aliases"),
            ));
            return (builder, true);
        }
    }
    (builder, false)
}

fn syntax(text: &str, line: usize, problem: &str) -> String {
    let this = text.lines().nth(line - 1).unwrap_or_default();
    let indent = &this[..this.len() - this.trim_start().len()];
    if indent.contains('\t') {
        return "YAML cannot be indented with tabs: use spaces".into();
    }
    format!("invalid YAML: {}", text::line(problem, 80))
}

/// List or object whose end has not been read yet.
struct Open {
    line: usize,
    anchor: usize,
    content: Content,
}

enum Content {
    List(Vec<Node>),
    Map { members: Vec<Member>, seen: BTreeSet<String>, merged: Vec<Node>, key: Option<(String, usize)> },
}

#[derive(Default)]
struct Builder {
    documents: Vec<Node>,
    faults: Vec<Fault>,
    open: Vec<Open>,
    anchors: BTreeMap<usize, Node>,
    nodes: usize,
    line: usize,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: Span) {
        let line = span.start.line().max(1);
        self.line = line;
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let text = text.into_owned();
                let is_text = tag.as_ref().is_some_and(|t| t.is_yaml_core_schema_tag("str"));
                self.refuse_tag(line, tag.as_deref());
                let is_plain = style == ScalarStyle::Plain && !is_text;
                self.done(Node { line, kind: Kind::Scalar { text, is_plain } }, anchor);
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.refuse_tag(line, tag.as_deref());
                self.open.push(Open { line, anchor, content: Content::List(Vec::new()) });
            }
            Event::MappingStart(_, anchor, tag) => {
                self.refuse_tag(line, tag.as_deref());
                let content =
                    Content::Map { members: Vec::new(), seen: BTreeSet::new(), merged: Vec::new(), key: None };
                self.open.push(Open { line, anchor, content });
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(Open { line, anchor, content }) = self.open.pop() else { return };
                let kind = match content {
                    Content::List(items) => Kind::List(items),
                    Content::Map { members, seen, merged, .. } => Kind::Map(self.merge(members, seen, merged)),
                };
                self.done(Node { line, kind }, anchor);
            }
            Event::Alias(id) => {
                let Some(mut node) = self.anchors.get(&id).cloned() else {
                    self.faults.push((line, "an alias must not be inside the value that it repeats".into()));
                    return self.done(Node { line, kind: Kind::Scalar { text: String::new(), is_plain: true } }, 0);
                };
                self.nodes += node.size();
                node.line = line;
                self.done(node, 0);
            }
            Event::DocumentStart(..) => self.anchors.clear(),
            _ => {}
        }
    }

    fn refuse_tag(&mut self, line: usize, tag: Option<&Tag>) {
        if tag.is_some_and(|t| t.is_custom() && !t.suffix().is_empty()) {
            self.faults.push((line, "a tag (`!…`) is not supported: remove it".into()));
        }
    }

    /// Adds a complete value: an item, a key, the value of a key, or a document.
    fn done(&mut self, node: Node, anchor: usize) {
        self.nodes += match &node.kind {
            Kind::Scalar { text, .. } => size(text),
            Kind::List(_) | Kind::Map(_) => 1,
        };
        if anchor != 0 {
            self.nodes += node.size();
            self.anchors.insert(anchor, node.clone());
        }
        let Some(open) = self.open.last_mut() else { return self.documents.push(node) };
        match &mut open.content {
            Content::List(items) => items.push(node),
            Content::Map { members, seen, merged, key } => match key.take() {
                None => match node.kind {
                    Kind::Scalar { text, .. } => *key = Some((text, node.line)),
                    Kind::List(_) | Kind::Map(_) => {
                        self.faults.push((node.line, "a key must be text".into()));
                        *key = Some((String::new(), node.line));
                    }
                },
                Some((key, _)) if key == "<<" => merged.push(node),
                Some((key, line)) if !seen.insert(key.clone()) => {
                    self.faults.push((line, format!("duplicate key `{}`: remove one", text::escape(&key, 80))));
                }
                Some((key, line)) => members.push(Member { key, line, value: node }),
            },
        }
    }

    /// Adds merged members to the members of an object. The object's own members take precedence, then members that were merged earlier.
    fn merge(&mut self, mut members: Vec<Member>, mut seen: BTreeSet<String>, merged: Vec<Node>) -> Vec<Member> {
        let mut sources = Vec::new();
        for node in merged {
            match node.kind {
                Kind::List(items) => sources.extend(items),
                _ => sources.push(node),
            }
        }
        for source in sources {
            match source.kind {
                Kind::Map(from) => members.extend(from.into_iter().filter(|m| seen.insert(m.key.clone()))),
                _ => self.faults.push((source.line, "`<<` can merge only objects".into())),
            }
        }
        members
    }
}

#[cfg(test)]
#[path = "yaml_tests.rs"]
mod tests;
