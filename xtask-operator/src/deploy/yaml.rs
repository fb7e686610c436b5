//! YAML as a person would write it: with comments, short lists in one line, long texts in lines of their own.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Length of lines, unless a word is longer.
const WIDTH: usize = 120;
/// In the text of a note: the column of what is inside the entry.
pub(crate) const INSIDE: &str = "\u{E003}";

/// The order of keys. All others follow by name.
const ORDER: &[&str] = &[
    "apiVersion",
    "kind",
    "op",
    "path",
    "target",
    "patch",
    "key",
    "metadata",
    "name",
    "namespace",
    "labels",
    "annotations",
    "roleRef",
    "apiGroups",
    "apiVersions",
    "components",
    "replicas",
    "selector",
    "strategy",
    "podSelector",
    "policyTypes",
    "serviceAccountName",
    "image",
    "args",
    "env",
    "ports",
    "livenessProbe",
    "readinessProbe",
    "resources",
    "resourceNames",
    "operations",
    "verbs",
    "failurePolicy",
    "matchConstraints",
    "matchConditions",
    "variables",
    "expression",
    "message",
    "value",
];

/// What stands beside a value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Note {
    /// Comment above the entry.
    pub comment: String,
    /// Lines in the place of the entry.
    pub instead: Option<String>,
    /// Lines after what is inside the entry.
    pub append: Vec<String>,
}

/// Notes by JSON pointer.
pub(crate) type Notes = BTreeMap<String, Note>;

/// The text of a value.
pub(crate) fn emit(value: &Value, notes: &Notes) -> String {
    let mut writer = Writer { text: String::new(), notes };
    match value {
        Value::Object(map) if !map.is_empty() => writer.map(map, "", 0),
        Value::Array(items) if !items.is_empty() => writer.list(items, "", 0),
        other => writer.text = scalar(other) + "\n",
    }
    writer.text
}

/// Comment lines at a column. An empty line of the text parts two paragraphs.
pub(crate) fn comment(text: &str, column: usize, width: usize) -> String {
    let mut lines = Vec::new();
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.is_empty()) {
        if !lines.is_empty() {
            lines.push(String::from("#"));
        }
        lines.extend(wrap(paragraph, width.saturating_sub(column + 2)).into_iter().map(|line| format!("# {line}")));
    }
    let lines: Vec<String> = lines.iter().map(|line| format!("{:column$}{line}\n", "")).collect();
    lines.concat()
}

/// The words of a text in lines of at most so many characters.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

struct Writer<'a> {
    text: String,
    notes: &'a Notes,
}

impl Writer<'_> {
    fn put(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn map(&mut self, map: &Map<String, Value>, pointer: &str, column: usize) {
        let rank = |key: &str| ORDER.iter().position(|one| *one == key).unwrap_or(ORDER.len());
        let mut entries: Vec<_> = map.iter().collect();
        entries.sort_by_key(|(key, _)| (rank(key), key.as_str()));
        for (key, value) in entries {
            let pointer = format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"));
            let key = format!("{}:", plain(key).unwrap_or_else(|| quoted(key)));
            self.entry(&key, value, &pointer, column);
        }
        self.appended(pointer, column);
    }

    fn list(&mut self, items: &[Value], pointer: &str, column: usize) {
        for (at, item) in items.iter().enumerate() {
            self.entry("-", item, &format!("{pointer}/{at}"), column);
        }
        self.appended(pointer, column);
    }

    /// One entry of a map (`key:`) or of a list (`-`).
    fn entry(&mut self, key: &str, value: &Value, pointer: &str, column: usize) {
        let note = self.notes.get(pointer).cloned().unwrap_or_default();
        self.put(&comment(&note.comment, column, WIDTH));
        match note.instead {
            Some(text) => self.lines(&text, column, column + 2),
            None => self.value(key, value, pointer, column),
        }
    }

    fn value(&mut self, key: &str, value: &Value, pointer: &str, column: usize) {
        if let (Value::Object(map), "-") = (value, key)
            && !map.is_empty()
        {
            return self.item(map, pointer, column);
        }
        self.put(&" ".repeat(column));
        self.put(key);
        let room = WIDTH.saturating_sub(column + key.len() + 1);
        match value {
            Value::Object(map) if !map.is_empty() => {
                self.text.push('\n');
                self.map(map, pointer, column + 2);
            }
            Value::Array(items) if !items.is_empty() => {
                let appends = self.notes.get(pointer).is_some_and(|note| !note.append.is_empty());
                if let Some(line) = flow(items).filter(|line| line.len() <= room && !appends) {
                    self.put(&format!(" {line}\n"));
                    return;
                }
                self.text.push('\n');
                self.list(items, pointer, column + 2);
            }
            Value::String(text) => self.string(text, column + 2, room),
            other => self.put(&format!(" {}\n", scalar(other))),
        }
    }

    /// An item of a list that is a map: its first key stands beside the dash.
    fn item(&mut self, map: &Map<String, Value>, pointer: &str, column: usize) {
        let begin = self.text.len();
        self.map(map, pointer, column + 2);
        let block = self.text.split_off(begin);
        let mut is_first = true;
        for line in block.split_inclusive('\n') {
            if line.trim_start().starts_with('#') || !is_first {
                self.put(line);
            } else {
                let rest = line.strip_prefix(&" ".repeat(column + 2)).unwrap_or(line);
                self.put(&format!("{:column$}- {rest}", ""));
                is_first = false;
            }
        }
    }

    fn string(&mut self, text: &str, column: usize, room: usize) {
        let pad = " ".repeat(column);
        let words_only = text.split(' ').all(|word| !word.is_empty()) && !text.chars().any(char::is_control);
        match plain(text) {
            Some(text) if text.chars().count() <= room => self.put(&format!(" {text}\n")),
            _ if is_block(text) => {
                self.put(" |-\n");
                for line in text.lines() {
                    let line = if line.is_empty() { String::new() } else { format!("{pad}{line}") };
                    self.put(&format!("{line}\n"));
                }
            }
            plain if words_only && text.contains(' ') && (plain.is_some() || is_code(text)) => {
                self.put(" >-\n");
                for line in wrap(text, WIDTH.saturating_sub(column)) {
                    self.put(&format!("{pad}{line}\n"));
                }
            }
            _ => self.put(&format!(" {}\n", quoted(text))),
        }
    }

    fn appended(&mut self, pointer: &str, column: usize) {
        for lines in self.notes.get(pointer).map(|note| note.append.clone()).unwrap_or_default() {
            self.lines(&lines, column, column);
        }
    }

    fn lines(&mut self, text: &str, column: usize, inside: usize) {
        for line in text.lines() {
            let line = line.replace(INSIDE, &inside.to_string());
            self.put(&format!("{:column$}{line}\n", ""));
        }
    }
}

/// Whether a text can stand in lines of its own as it is.
fn is_block(text: &str) -> bool {
    let is_text = |c: char| c == '\n' || !c.is_control();
    text.contains('\n') && !text.starts_with([' ', '\n']) && !text.ends_with('\n') && text.chars().all(is_text)
}

/// Whether quotes inside make a text unreadable in quotes.
fn is_code(text: &str) -> bool {
    text.contains('"') && !text.starts_with(super::marks::OPEN)
}

/// A list of scalars in one line.
fn flow(items: &[Value]) -> Option<String> {
    let is_scalar = |item: &Value| match item {
        Value::Array(_) | Value::Object(_) => false,
        Value::String(text) => !text.contains('\n'),
        _ => true,
    };
    if !items.iter().all(is_scalar) {
        return None;
    }
    let part = |item: &Value| match item {
        Value::String(text) if text.contains([',', '[', ']', '{', '}']) => quoted(text),
        other => scalar(other),
    };
    Some(format!("[{}]", items.iter().map(part).collect::<Vec<_>>().join(", ")))
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => plain(text).unwrap_or_else(|| quoted(text)),
        // Bounds in a schema are floating point numbers.
        Value::Number(number) => number.to_string().trim_end_matches(".0").to_owned(),
        other => other.to_string(),
    }
}

/// The text as it is, if YAML reads it as a string.
fn plain(text: &str) -> Option<String> {
    let safe = |c: char| c.is_alphanumeric() || " _./-()':,*+<>=;$%^|~\"".contains(c);
    let begins = text.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || "_./".contains(c));
    let is_word_of_yaml =
        ["true", "false", "yes", "no", "on", "off", "null", "y", "n"].contains(&text.to_lowercase().as_str());
    let is_plain = begins
        && !is_word_of_yaml
        && text.chars().all(safe)
        && !text.contains(": ")
        && !text.contains(" #")
        && !text.contains('"')
        && !text.ends_with([':', ' '])
        && !(text.starts_with('.') && text[1..].starts_with(|c: char| c.is_ascii_digit()));
    (is_plain || is_amount(text)).then(|| text.to_owned())
}

/// Whether it is an amount of a resource, as `50m` or `1Gi`.
fn is_amount(text: &str) -> bool {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    unit.len() < text.len() && ["m", "Ki", "Mi", "Gi"].contains(&unit)
}

/// In single quotes if the text has double ones and would be disfigured in others.
fn quoted(text: &str) -> String {
    if text.contains('"') && !text.contains('\'') && !text.chars().any(char::is_control) {
        return format!("'{text}'");
    }
    // A string of JSON is one of YAML, but for control characters that only JSON has as they are.
    let json = Value::String(text.to_owned()).to_string();
    json.chars().map(|c| if c.is_control() { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Value {
        serde_yaml::from_str(text).unwrap_or_else(|error| panic!("{error}:\n{text}"))
    }

    #[test]
    fn what_is_written_is_read_again() {
        for text in [
            "",
            " ",
            "a",
            "a b",
            "yes",
            "No",
            "null",
            "~",
            "1",
            "1.5",
            ".5",
            "-",
            "- a",
            "a: b",
            "a:",
            "a #b",
            "#a",
            "*",
            "&a",
            "!a",
            "%a",
            "@a",
            "`a",
            "{a}",
            "[a]",
            "a,b",
            "a\"b",
            "a'b",
            "\"a\" b == 'c'",
            "a\nb",
            "a\n  b\nc",
            "\na",
            "a\n",
            " a\nb",
            "a\n\nb",
            "a  b",
            "a ",
            "\t",
            "\u{7f}",
            "ä",
            "{{ a }}",
            "|",
            ">-",
            "0x1",
            "1e3",
            "2001-01-01",
            "=",
            "<<",
            "---",
            "...",
            "/a/b",
            "?a",
            "a?b \"c\" d",
        ] {
            for long in
                [text.to_owned(), format!("{text} {}", "word \"x\" ".repeat(30).trim_end()), "word ".repeat(40) + text]
            {
                let value = json!({"key": long, "list": [long, {"a": long}], long.clone(): 1});
                assert_eq!(read(&emit(&value, &Notes::new())), value, "{}", emit(&value, &Notes::new()));
            }
        }
        for value in
            [json!([]), json!({}), json!(null), json!([[], {}]), json!([[1, [2]], [{"a": {}}]]), json!("a"), json!(1)]
        {
            assert_eq!(read(&emit(&value, &Notes::new())), value, "{}", emit(&value, &Notes::new()));
        }
    }

    #[test]
    fn lists_and_texts_have_the_form_in_which_they_are_read_best() {
        let value = json!({
            "verbs": ["get", "list", "*"],
            "kind": "Role",
            "expression": "request.operation == \"UPDATE\"",
            "lines": "a ||\n  b",
            "long": "word ".repeat(30).trim_end(),
            "rules": [{"verbs": ["get"], "apiGroups": [""]}],
        });
        let note = |comment: &str| Note { comment: comment.into(), ..Note::default() };
        let notes = [("/rules/0".into(), note("Why.")), ("/kind".into(), note("First.\n\nSecond."))].into();
        let expected = "\
# First.
#
# Second.
kind: Role
verbs: [get, list, \"*\"]
expression: >-
  request.operation == \"UPDATE\"
lines: |-
  a ||
    b
long: >-
  word word word word word word word word word word word word word word word word word word word word word word word
  word word word word word word word
rules:
  # Why.
  - apiGroups: [\"\"]
    verbs: [get]
";
        assert_eq!(emit(&value, &notes), expected);
    }

    #[test]
    fn lines_of_notes_stand_in_the_place_of_an_entry_or_after_what_is_in_it() {
        let value = json!({"a": {"b": 1, "c": 2}, "d": ["x"], "e": 3});
        let instead = |text: &str| Note { instead: Some(text.into()), ..Note::default() };
        let append = |text: &str| Note { append: vec![text.into()], ..Note::default() };
        let notes = [
            ("/a/b".into(), instead(&format!("b:\n{INSIDE}"))),
            ("/a".into(), append(&format!("more {INSIDE}"))),
            ("/d".into(), append("- y")),
            ("/e".into(), instead("")),
        ];
        assert_eq!(emit(&value, &notes.into()), "a:\n  b:\n  4\n  c: 2\n  more 2\nd:\n  - x\n  - y\n");
    }

    #[test]
    fn comments_are_wrapped() {
        let text = comment(&"word ".repeat(50), 2, 100);
        assert!(text.lines().all(|line| line.starts_with("  # word") && line.len() <= 100), "{text}");
    }
}
