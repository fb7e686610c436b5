//! Takes secrets out of what is written. Pure.
//!
//! [`value`] is for objects, where names and values are known; [`text`] is for everything, and is applied again to what was an object.
//! In doubt it takes too much: what is missing can be asked for, what was sent cannot be taken back.

use std::{borrow::Cow, sync::LazyLock};

use base64::prelude::{BASE64_STANDARD_NO_PAD, Engine as _};
use regex::{Captures, Regex};
use serde_json::{Map, Value};

/// What stands in the place of a secret.
pub(crate) const REDACTED: &str = "(redacted)";

/// Longest value in brackets or in an XML element, in bytes.
const MOST_OF_A_VALUE: usize = 64 << 10;

/// Parts of names that say that the value is a secret, in lower case and without what separates words.
const SECRET_PARTS: [&str; 14] = [
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "token",
    "secret",
    "credential",
    "apikey",
    "accesskey",
    "privatekey",
    "dockerconfig",
    "dockercfg",
    // Repeats the whole object, with values that were taken out of it since.
    "lastappliedconfiguration",
    "connectionstring",
];
/// Whole names that say so.
const SECRET_NAMES: [&str; 3] = ["auth", "authorization", "proxyauthorization"];
/// Last words of names that say so: `DB_PASS`, and the signatures of URLs, with which any client has what the URL names.
const SECRET_ENDS: [&str; 6] = ["pass", "passcode", "sig", "signature", "psk", "sas"];
/// Last words of names whose values only name or describe a secret.
const HARMLESS_ENDS: [&str; 40] = [
    "name",
    "names",
    "namespace",
    "namespaces",
    "ref",
    "refs",
    "file",
    "files",
    "path",
    "paths",
    "directory",
    "dir",
    "type",
    "kind",
    "hash",
    "sha256",
    "fingerprint",
    "id",
    "ids",
    "policy",
    "plugin",
    "provider",
    "seconds",
    "time",
    "timestamp",
    "at",
    "count",
    "total",
    "size",
    "bytes",
    "version",
    "algorithm",
    "usage",
    "usages",
    "mode",
    "audience",
    "audiences",
    "optional",
    "signer",
    "bits",
];
/// Words before `key` that make it a public one, or one of another sense.
/// The first two say so of variables, too.
const PUBLIC_KEYS: [&str; 10] =
    ["public", "pub", "host", "topology", "label", "match", "sort", "known", "authorized", "registry"];

/// Whether a name (of a field, a variable, an annotation, an argument) says that its value is a secret.
fn says_secret(name: &str) -> bool {
    let words = words(name);
    let joined = words.concat();
    let is_password = joined.contains("passw");
    // The second half of the credentials of an AppRole of Vault.
    if joined.ends_with("secretid") {
        return true;
    }
    if words.last().is_some_and(|last| HARMLESS_ENDS.contains(&last.as_str()))
        && !(is_password && joined.ends_with("hash"))
    {
        return false;
    }
    // Of a variable, as `HOST_KEY`, nothing says that the key is a public one but these words.
    let is_variable = name.contains('_') && !name.contains(|c: char| c.is_lowercase());
    let publics = if is_variable { &PUBLIC_KEYS[..2] } else { &PUBLIC_KEYS };
    let is_key = |(i, word): (usize, &String)| {
        let before = i.checked_sub(1).map(|before| words[before].as_str());
        (matches!(word.as_str(), "key" | "keys") && before.map_or(is_variable, |before| !publics.contains(&before)))
            || (is_variable && word.ends_with("key") && word.len() > 3)
    };
    SECRET_PARTS.iter().any(|part| joined.contains(part))
        || SECRET_NAMES.contains(&joined.as_str())
        || words.last().is_some_and(|last| SECRET_ENDS.contains(&last.as_str()))
        || name == "KEY"
        || words.iter().enumerate().any(is_key)
}

/// The words of `fooBar`, `foo-bar`, `FOO_BAR` and `foo.example/bar`, in lower case.
fn words(name: &str) -> Vec<String> {
    let (mut words, mut was_lower) = (vec![String::new()], false);
    for c in name.chars() {
        let begins = !c.is_alphanumeric() || (was_lower && c.is_uppercase());
        if begins && words.last().is_some_and(|word| !word.is_empty()) {
            words.push(String::new());
        }
        if c.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase() || c.is_ascii_digit();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Takes the secrets out of an object.
pub(crate) fn value(value: &mut Value) {
    walk(value, false);
}

/// `is_secret`: a name above says so.
fn walk(value: &mut Value, is_secret: bool) {
    match value {
        Value::String(text) if is_secret && !text.is_empty() => *text = REDACTED.into(),
        Value::Number(_) if is_secret => *value = REDACTED.into(),
        Value::String(text) => *text = content(text),
        Value::Array(items) => {
            let mut follows_flag = false;
            for item in items {
                let flag =
                    item.as_str().is_some_and(|arg| arg.starts_with('-') && !arg.contains('=') && says_secret(arg));
                walk(item, is_secret || (follows_flag && item.is_string()));
                follows_flag = flag;
            }
        }
        Value::Object(fields) => walk_fields(fields, is_secret),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn walk_fields(fields: &mut Map<String, Value>, is_secret: bool) {
    // As a variable in `env`, or a header: the name is a value.
    let named = ["name", "Name", "key"].iter().filter_map(|k| fields.get(*k)?.as_str()).any(says_secret);
    for (name, mut value) in std::mem::take(fields) {
        // As in the YAML `password: {hunter2}`: the name is the value.
        let is_name_secret = is_secret && value.is_null();
        let describes = name == "key" || words(&name).last().is_some_and(|last| HARMLESS_ENDS.contains(&last.as_str()));
        if name == "auths" {
            forget(&mut value);
        } else {
            let is_value = named && matches!(name.as_str(), "value" | "Value");
            walk(&mut value, says_secret(&name) || is_value || (is_secret && !describes));
        }
        fields.insert(if is_name_secret { REDACTED.into() } else { text(&name) }, value);
    }
}

/// Log-ins of registries: only the names of registries stay.
fn forget(auths: &mut Value) {
    match auths {
        Value::Object(registries) => registries.values_mut().for_each(|login| *login = REDACTED.into()),
        other => *other = REDACTED.into(),
    }
}

/// Takes the secrets out of a text that may be JSON or YAML.
pub(crate) fn content(content: &str) -> String {
    let is_json = content.trim_start().starts_with(['{', '[']);
    let parsed: Option<Value> = if is_json {
        serde_json::from_str(content).ok()
    } else if content.contains('\n') && content.contains(':') {
        serde_yaml::from_str(content).ok().filter(|v: &Value| v.is_object() || v.is_array())
    } else {
        None
    };
    if let Some(mut parsed) = parsed {
        let before = parsed.clone();
        value(&mut parsed);
        if parsed != before {
            let printed =
                if is_json { serde_json::to_string(&parsed).ok() } else { serde_yaml::to_string(&parsed).ok() };
            return text(&printed.unwrap_or_else(|| REDACTED.into()));
        }
    }
    text(content)
}

macro_rules! pattern {
    ($name:ident, $pattern:expr) => {
        static $name: LazyLock<Regex> = LazyLock::new(|| Regex::new($pattern).unwrap());
    };
}

// A block whose beginning is missing, because a log was cut, counts from the first line of base64; one without an end to the end of the text.
pattern!(
    PRIVATE_KEY,
    r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----|\z)|(?:[A-Za-z0-9+/=]{4,}(?:\s|\\[nr])+)*-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----"
);
pattern!(JWT, r"\beyJ[A-Za-z0-9_=-]{4,}\.[A-Za-z0-9_=-]{4,}(?:\.[A-Za-z0-9_=+/-]*)?");
pattern!(BASE64, r"(?:[A-Za-z0-9+/]{32,}(?:\s|\\[nr])*)+[A-Za-z0-9+/]*={0,2}");
pattern!(AUTHORIZATION, r#"(?i)\b((?:proxy-)?authorization\\*["']?\s*[:=,]\s*\[?\\*["']?)([^"'\\\r\n]+)"#);
pattern!(SCHEME, r"(?i)\b(bearer|basic|negotiate|digest|ntlm)(\s+)([A-Za-z0-9+/=._~-]{6,})");
pattern!(
    USER_INFO,
    r#"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^/\s"'<>?#]*@|[^/\s@:"']*:[^/\s@"']*[^0-9/\s@"'][^/\s@"']*/[^\s@"']*@)"#
);
pattern!(FLAG, r"(?m)(^|\s)(--?[A-Za-z][\w-]*)([ \t]+)([^\s-]\S*)");
// The same as two items of a list, in JSON and in YAML.
pattern!(FLAG_ITEM, r#"(\\*["']|- )(--?[A-Za-z][\w-]*)(\\*["']\s*,\s*\\*["']|\s*\n\s*- )([^"'\\\n]+)"#);
pattern!(VARIABLE, r#"(?i)\b(?:name|key)\\*["']?\s*[:=]\s*\\*["']?([\w.-]+)\\*["']?(?:,|\s|\\n)+\\*["']?\z"#);
// The beginning of an XML element, with its attributes.
pattern!(ELEMENT, r"<([A-Za-z_][\w:.-]*)((?:\s[^<>]*)?)>");
pattern!(NAME_ATTRIBUTE, r#"(?i)\s(?:name|key)\s*=\s*\\*["']([^"'\\<>]+)"#);
pattern!(
    NAME,
    r#"((?:(?i:api|access|private|secret|shared|signing|account)[ _-])?[\w$][\w.$/-]*)(\\*["']?|&(?:quot|apos|#34|#39);)[ \t]*(?:=>|:=|=|:)[ \t]*"#
);

/// Takes the secrets out of a text of any kind.
pub(crate) fn text(text: &str) -> String {
    let text = PRIVATE_KEY.replace_all(text, REDACTED);
    let text = replace(&JWT, text, |_| Some(REDACTED.into()));
    let text = replace(&BASE64, text, |found| base64(&found[0]));
    let text = replace(&AUTHORIZATION, text, |found| Some(format!("{}{REDACTED}", &found[1])));
    let text = replace(&SCHEME, text, |found| {
        let is_word = found[3].len() < 20 && found[3].bytes().all(|b| b.is_ascii_lowercase() || b == b'.');
        (!is_word).then(|| format!("{}{}{REDACTED}", &found[1], &found[2]))
    });
    let text = replace(&USER_INFO, text, |found| Some(format!("{}{REDACTED}@", &found[1])));
    let flag = |found: &Captures<'_>| {
        says_secret(&found[2]).then(|| format!("{}{}{}{REDACTED}", &found[1], &found[2], &found[3]))
    };
    let text = replace(&FLAG, text, flag);
    let text = replace(&FLAG_ITEM, text, flag);
    named(&elements(&text))
}

/// Replaces what is in XML elements whose names, or those in their attributes, say that it is a secret: `<Password>`,
/// `<Data Name='Password'>`. One that is cut off ends with its line.
fn elements(text: &str) -> Cow<'_, str> {
    let (mut result, mut copied, mut from) = (String::new(), 0, 0);
    while let Some(found) = ELEMENT.captures_at(text, from) {
        let (Some(whole), Some(name), Some(attributes)) = (found.get(0), found.get(1), found.get(2)) else { break };
        from = whole.end();
        let named = NAME_ATTRIBUTE.captures(attributes.as_str()).is_some_and(|named| says_secret(&named[1]));
        if attributes.as_str().ends_with('/') || !(named || says_secret(name.as_str())) {
            continue;
        }
        let rest = &text[from..];
        let length = near(rest).find(&format!("</{}", name.as_str())).or_else(|| rest.find(['\n', '\r']));
        let length = length.unwrap_or(rest.len());
        if !rest[..length].trim().is_empty() {
            result.push_str(&text[copied..from]);
            result.push_str(REDACTED);
            copied = from + length;
        }
        from += length;
    }
    if copied == 0 {
        return text.into();
    }
    result.push_str(&text[copied..]);
    result.into()
}

/// Replaces what `with` gives something for.
fn replace<'a>(pattern: &Regex, text: Cow<'a, str>, with: impl Fn(&Captures<'_>) -> Option<String>) -> Cow<'a, str> {
    let with = |found: &Captures<'_>| with(found).unwrap_or_else(|| found[0].to_owned());
    match pattern.replace_all(&text, with) {
        Cow::Borrowed(_) => text,
        Cow::Owned(replaced) => Cow::Owned(replaced),
    }
}

/// Base64 of a text that holds secrets, as in a `Secret` or a kubeconfig; lines of it are one.
fn base64(run: &str) -> Option<String> {
    let lines: Vec<&str> = run.split(|c: char| c.is_whitespace() || c == '\\').collect();
    // What follows a backslash is the letter of a line break.
    let is_escaped = run.contains('\\');
    let line = |(i, line): (usize, &&str)| {
        if is_escaped && i > 0 { line.get(1..).unwrap_or_default().to_owned() } else { (*line).to_owned() }
    };
    let joined: String = lines.iter().enumerate().map(line).collect();
    let is_secret = |encoded: &str| {
        let encoded = encoded.trim_end_matches('=');
        // Six bits at the end are no byte.
        let encoded = if encoded.len() % 4 == 1 { &encoded[..encoded.len() - 1] } else { encoded };
        let decoded = BASE64_STANDARD_NO_PAD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        decoded.is_some_and(|decoded| content(&decoded) != decoded)
    };
    (is_secret(&joined) || lines.iter().any(|line| line.len() >= 32 && is_secret(line))).then(|| REDACTED.into())
}

/// Replaces the values of names that say that they are secrets.
fn named(text: &str) -> String {
    let (mut result, mut copied, mut from) = (String::with_capacity(text.len()), 0, 0);
    while let Some(found) = NAME.captures_at(text, from) {
        let (Some(whole), Some(name)) = (found.get(0), found.get(1)) else { break };
        from = whole.end();
        // `a::b` is a path in Rust, and `a::b: c` a line of its log.
        let is_path = text[from..].starts_with(':') || text[..name.start()].ends_with("::");
        let is_value = name.as_str().eq_ignore_ascii_case("value") && follows_secret(&text[..name.start()]);
        if !(is_value || name.as_str() == "auths" || says_secret(name.as_str()))
            || (is_path && whole.as_str().trim_end().ends_with(':'))
        {
            continue;
        }
        if let Some((length, mut logins)) = json(&text[from..]).filter(|_| name.as_str() == "auths") {
            forget(&mut logins);
            result.push_str(&text[copied..from]);
            result.push_str(&logins.to_string());
            from += length;
            copied = from;
            continue;
        }
        let line = text[..name.start()].rfind('\n').map_or(0, |at| at + 1);
        let before = &text[line..name.start()];
        let is_quoted = found.get(2).is_some_and(|quote| !quote.is_empty());
        if let Some((end, replacement)) = scalar(&text[from..], before, is_quoted) {
            result.push_str(&text[copied..from]);
            result.push_str(&replacement);
            from += end;
            copied = from;
        }
    }
    result.push_str(&text[copied..]);
    result
}

/// Whether a text ends with the name of a secret variable, as in `env` of a container: its value follows.
fn follows_secret(before: &str) -> bool {
    let mut from = before.len().saturating_sub(200);
    while !before.is_char_boundary(from) {
        from += 1;
    }
    VARIABLE.captures(&before[from..]).is_some_and(|found| says_secret(&found[1]))
}

/// Length of the value at the beginning of `rest` and what stands in its place. `before` is what is on the line before the name.
fn scalar(rest: &str, before: &str, is_quoted: bool) -> Option<(usize, String)> {
    if rest.starts_with(REDACTED) {
        return None;
    }
    let to_line_end = rest.find(['\n', '\r']).unwrap_or(rest.len());
    let backslashes = rest.len() - rest.trim_start_matches('\\').len();
    let quote = rest[backslashes..].chars().next().filter(|c| matches!(c, '"' | '\'' | '`'));
    if let Some(quote) = quote {
        let mark = &rest[..=backslashes];
        let end = closing(&rest[mark.len()..], mark, quote).unwrap_or(rest.len() - mark.len());
        let closes = if mark.len() + end < rest.len() { mark } else { "" };
        return (end > 0).then(|| (mark.len() + end + closes.len(), format!("{mark}{REDACTED}{closes}")));
    }
    // Quotation marks in XML.
    for mark in ["&quot;", "&apos;", "&#34;", "&#39;"] {
        if let Some(value) = rest.strip_prefix(mark) {
            let (length, closes) = value.find(mark).map_or((value.len(), ""), |end| (end, mark));
            return (length > 0).then(|| (mark.len() + length + closes.len(), format!("{mark}{REDACTED}{closes}")));
        }
    }
    let line = &rest[..to_line_end];
    let block = || {
        let indent = before.len() - before.trim_start_matches([' ', '-']).len();
        let below = |l: &&str| l.trim().is_empty() || l.len() - l.trim_start_matches(' ').len() > indent;
        let block: usize = rest[to_line_end..].split_inclusive('\n').skip(1).take_while(below).map(str::len).sum();
        let first = rest[to_line_end..].find('\n').map_or(rest.len() - to_line_end, |at| at + 1);
        to_line_end + first + block
    };
    if line.starts_with(['|', '>']) {
        return Some((block(), format!("{REDACTED}\n")));
    }
    if let Some((length, mut below)) = json(rest) {
        walk(&mut below, true);
        return Some((length, below.to_string()));
    }
    if line.trim().is_empty() {
        return None;
    }
    if line.starts_with(['{', '[']) {
        // What is cut off, or none that ends, goes as far as what is below it.
        return Some(
            bracketed(rest).map_or_else(|| (block(), format!("{REDACTED}\n")), |end| (end, REDACTED.to_owned())),
        );
    }
    let begins_line = ["", "export", "set", "-", "SET", "$env:", "#", "//"].contains(&before.trim());
    let end = if is_quoted {
        line.find([',', '}', ']', ' ', '\t']).unwrap_or(line.len())
    } else if begins_line {
        line.len()
    } else {
        line.find(char::is_whitespace).unwrap_or(line.len())
    };
    let says_nothing =
        ["true", "false", "null", "none", "~", REDACTED].contains(&line[..end].trim().to_lowercase().as_str());
    (!says_nothing && end > 0).then(|| (end, if is_quoted { format!("\"{REDACTED}\"") } else { REDACTED.to_owned() }))
}

/// The object or list at the beginning of a text, and its length.
fn json(text: &str) -> Option<(usize, Value)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    let value = text.starts_with(['{', '[']).then(|| values.next())??.ok()?;
    Some((values.byte_offset(), value))
}

/// The beginning of a text, in which the end of a value is sought: a hostile text has many beginnings and no end.
fn near(text: &str) -> &str {
    let mut end = text.len().min(MOST_OF_A_VALUE);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Where the bracket at the beginning of a text is closed, and what follows it without a break ends.
fn bracketed(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let closed = near(text).char_indices().find_map(|(at, c)| {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(at + 1)
    })?;
    let ends = |c: char| c.is_whitespace() || [',', ';', '"', '\'', '\\', '}', ']', '<'].contains(&c);
    Some(closed + text[closed..].find(ends).unwrap_or(text.len() - closed))
}

/// Where the quotation mark that began a text ends it.
fn closing(text: &str, mark: &str, quote: char) -> Option<usize> {
    if mark.len() > 1 || quote != '"' {
        return text.find(mark);
    }
    let mut is_escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let ends = c == quote && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends.then_some(at)
    })
}

#[cfg(test)]
#[path = "redact_tests.rs"]
mod tests;
