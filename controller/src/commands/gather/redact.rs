//! Redaction of secrets in gathered data. Pure functions.
//!
//! [`value`] redacts objects, whose names and values are known. [`text`] redacts everything else, in one pass and line by line, because a host
//! may send text of any length and form. In doubt, the rest of a line is removed: missing data can be requested, but a leaked secret cannot be
//! recalled.

use serde_json::{Map, Value};

/// Text that replaces a secret.
pub(crate) const REDACTED: &str = "(redacted)";

/// Parts of names whose values are secret, in lower case and without separators. `lastappliedconfiguration` repeats the whole object, with values
/// that may have been removed from it since.
const SECRET_PARTS: &str = "password passwd passphrase pwd token secret credential apikey accesskey privatekey dockerconfig dockercfg \
                            lastappliedconfiguration connectionstring cookie";
/// Last words of names whose values are secret, such as `DB_PASS`, and the signatures of URLs, which give any client access.
const SECRET_LAST_WORDS: &str = "auth authorization pass passcode sig signature psk sas";
/// Last words of names whose values only name or describe a secret.
const HARMLESS_LAST_WORDS: &str = "name names namespace namespaces ref refs file files path paths directory dir type kind hash sha256 fingerprint \
                             id ids policy plugin provider seconds time timestamp at count total size bytes version algorithm usage usages \
                             mode audience audiences optional signer bits";
/// Words before `key` for which the key is public, or not a cryptographic key. In variables, only the first two count.
const PUBLIC_KEYS: [&str; 10] =
    ["public", "pub", "host", "topology", "label", "match", "sort", "known", "authorized", "registry"];
/// Prefixes of tokens: GitHub, GitLab, Slack, AWS, Google, Vault, npm, PyPI, Docker, OpenShift, and JSON in base64, as in a JWT.
const TOKEN_PREFIXES: &str = "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- xoxa- xoxb- xoxp- xoxr- xoxs- xapp- AKIA ASIA AIza ya29. hvs. hvb. \
                      npm_ pypi- dckr_pat_ dckr_oat_ sha256~ eyJ";
/// Maximum number of lines of a private key.
const MAX_KEY_LINES: usize = 500;
/// Maximum number of lines of an XML element.
const MAX_ELEMENT_LINES: usize = 50;
/// Minimum length of a token, including its prefix.
const MIN_TOKEN_LENGTH: usize = 16;

fn is_one_of(words: &str, word: &str) -> bool {
    words.split_ascii_whitespace().any(|one| one == word)
}

/// Reports whether the name of a field, variable, annotation or argument indicates that its value is secret.
fn names_secret(name: &str) -> bool {
    if name.len() < 3 {
        return false;
    }
    let words = words(name);
    let (joined, last) = (words.concat(), words.last().map(String::as_str).unwrap_or_default());
    // `secretid` is half of the credentials of a Vault AppRole.
    if joined.ends_with("secretid") || joined.contains("passw") && last == "hash" {
        return true;
    }
    // Names of .NET assemblies contain the token of a public key.
    if is_one_of(HARMLESS_LAST_WORDS, last) || joined == "publickeytoken" {
        return false;
    }
    // In a variable such as `HOST_KEY`, only the first two words show that the key is public.
    let is_variable = name.contains('_') && !name.contains(|c: char| c.is_lowercase());
    let publics = if is_variable { &PUBLIC_KEYS[..2] } else { &PUBLIC_KEYS };
    let is_key = |(i, word): (usize, &String)| {
        let before = i.checked_sub(1).map(|before| words[before].as_str());
        (matches!(word.as_str(), "key" | "keys") && before.map_or(is_variable, |before| !publics.contains(&before)))
            || (is_variable && word.ends_with("key") && word.len() > 3)
    };
    SECRET_PARTS.split_ascii_whitespace().any(|part| joined.contains(part))
        || is_one_of(SECRET_LAST_WORDS, last)
        || name == "KEY"
        || words.iter().enumerate().any(is_key)
}

/// Splits `fooBar`, `foo-bar`, `FOO_BAR` and `foo.example/bar` into words in lower case.
fn words(name: &str) -> Vec<String> {
    let (mut words, mut was_lower) = (vec![String::new()], false);
    for c in name.chars() {
        if !c.is_alphanumeric() || (was_lower && c.is_uppercase()) {
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

/// Redacts the secrets in an object.
pub(crate) fn value(value: &mut Value) {
    walk(value, false);
}

/// Redacts the secrets in a value. `is_secret` is true if an enclosing name indicates a secret.
fn walk(value: &mut Value, is_secret: bool) {
    match value {
        Value::String(content) if is_secret && !content.is_empty() => *content = REDACTED.into(),
        Value::Number(_) if is_secret => *value = REDACTED.into(),
        Value::String(content) => *content = text(content),
        Value::Array(items) => {
            let mut follows_flag = false;
            for item in items {
                let is_flag = |arg: &str| arg.starts_with('-') && !arg.contains('=') && names_secret(arg);
                let flag = item.as_str().is_some_and(is_flag);
                walk(item, is_secret || (follows_flag && item.is_string()));
                follows_flag = flag;
            }
        }
        Value::Object(fields) => walk_fields(fields, is_secret),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn walk_fields(fields: &mut Map<String, Value>, is_secret: bool) {
    // In a variable of `env` or a header, the name is itself a value.
    let named = ["name", "Name", "key"].iter().filter_map(|k| fields.get(*k)?.as_str()).any(names_secret);
    for (name, mut value) in std::mem::take(fields) {
        // YAML parses `password: {hunter2}` as `{"password": {"hunter2": null}}`, with the secret as a name.
        let written = if is_secret && value.is_null() { REDACTED.to_owned() } else { text(&name) };
        let describes = name == "key" || words(&name).last().is_some_and(|last| is_one_of(HARMLESS_LAST_WORDS, last));
        let is_value = named && matches!(name.as_str(), "value" | "Value");
        // Credentials of registries: only the names of registries are kept.
        walk(&mut value, name == "auths" || names_secret(&name) || is_value || (is_secret && !describes));
        fields.insert(written, value);
    }
}

/// Treatment of the lines that follow a secret.
enum After {
    /// Lines are scanned as usual.
    Nothing,
    /// Lines are removed until the end of a private key, at most this many.
    Key(usize),
    /// Lines are removed while they are empty, indented deeper than this, or list items at this indentation.
    Indented(usize),
    /// Lines are removed until this end tag of an XML element, at most this many: a log may contain `<token>` as a word.
    Element(String, usize),
    /// The next line is replaced, because it is the value of a flag, or of a name that is itself a value.
    Next,
}

/// Redacts the secrets in text of any kind.
pub(crate) fn text(text: &str) -> String {
    if let Some(json) = redact_json(text) {
        return json;
    }
    let (mut out, mut after) = (String::with_capacity(text.len()), After::Nothing);
    for line in text.split_inclusive('\n') {
        let content = line.trim_end_matches(['\n', '\r']);
        let indent = content.len() - content.trim_start().len();
        let rest = match &mut after {
            After::Key(0) | After::Element(_, 0) => Some(content),
            After::Key(left) => {
                *left -= 1;
                content.split_once("-----END ").map(|(_, rest)| rest.split_once("-----").map_or("", |r| r.1))
            }
            After::Element(end, left) => {
                *left -= 1;
                content.find(&*end).map(|at| &content[at..])
            }
            After::Indented(of) if content.trim().is_empty() || indent > *of => None,
            After::Indented(of) if indent == *of && content[*of..].starts_with("- ") => None,
            After::Next => None,
            After::Nothing | After::Indented(_) => Some(content),
        };
        let Some(rest) = rest else {
            if matches!(after, After::Next) {
                (after, out) = (After::Nothing, out + REDACTED + &line[content.len()..]);
            }
            continue;
        };
        match redact_json(rest) {
            Some(json) => (after, out) = (After::Nothing, out + &json),
            None => after = redact_private_keys(rest, &mut out),
        }
        out.push_str(&line[content.len()..]);
    }
    out
}

/// Returns the text without its secrets if it is a JSON object or array.
fn redact_json(text: &str) -> Option<String> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let before: Value = serde_json::from_str(text).ok()?;
    let mut after = before.clone();
    value(&mut after);
    Some(if after == before { text.to_owned() } else { after.to_string() })
}

/// Redacts private keys in a line, also keys with escaped line breaks (`\n`), and then all other secrets with [`scan`].
fn redact_private_keys(line: &str, out: &mut String) -> After {
    let is_key = |after: &str| after.split("-----").next().is_some_and(|kind| kind.contains("PRIVATE KEY"));
    let find =
        |mark: &str, text: &str| text.match_indices(mark).map(|(at, _)| at).find(|at| is_key(&text[at + mark.len()..]));
    let (begin, end) = ("-----BEGIN ", "-----END ");
    let past = |text: &str, at: usize| at + end.len() + text[at + end.len()..].find("-----").map_or(0, |n| n + 5);
    let mut rest = line;
    if let Some(at) = find(end, rest).filter(|at| find(begin, &rest[..*at]).is_none()) {
        // The beginning of the key was cut off: the preceding lines of base64 belong to it.
        while let Some(last) = out.trim_end().rsplit('\n').next().filter(|last| is_base64(last)) {
            out.truncate(out.trim_end().len() - last.len());
        }
        out.push_str(REDACTED);
        rest = &rest[past(rest, at)..];
    }
    while let Some(at) = find(begin, rest) {
        scan(&rest[..at], out);
        out.push_str(REDACTED);
        let key = &rest[at..];
        let Some(to) = key.find(end) else { return After::Key(MAX_KEY_LINES) };
        rest = &key[past(key, to)..];
    }
    scan(rest, out)
}

fn is_base64(text: &str) -> bool {
    text.len() >= 4 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b))
}

/// Redacts the secrets in a line. They are found by the names before them, and by their form.
fn scan(line: &str, out: &mut String) -> After {
    let is_word = |c: char| c.is_alphanumeric() || "_.$/-+~".contains(c);
    let indent = line.len() - line.trim_start_matches([' ', '\t', '-']).len();
    // Positions up to which the line is written and read, and the end of the last URL. Each part is read once, because a line may be very long.
    let (mut written, mut at, mut url, mut before, mut tag) = (0, 0, 0, "", None);
    while let Some(start) = line[at..].find(is_word).map(|n| at + n) {
        let word = line[start..].split(|c| !is_word(c)).next().unwrap_or_default();
        let (end, gap) = (start + word.len(), &line[at..start]);
        let rest = &line[end..];
        tag = gap.rfind('<').map(|n| at + n + 1).or(tag);
        let form = if rest.starts_with("://") && start >= url {
            let place =
                rest[3..].split(|c: char| c.is_whitespace() || "\"'<>\\".contains(c)).next().unwrap_or_default();
            url = end + 3 + place.len();
            user_info_length(place).map(|length| (end + 3, end + 3 + length))
        } else {
            (is_credential(before, gap, word) || is_token(word)).then_some((start, end))
        };
        if let Some((from, to)) = form {
            out.push_str(&line[written..from]);
            out.push_str(REDACTED);
            (written, at, before) = (to, to, "");
            continue;
        }
        let last = std::mem::replace(&mut before, word);
        at = end;
        // The last part of a module path, as in a log, is not the name of a value.
        if gap.ends_with("::") || !(names_secret(word) || is_key_of(last, word)) {
            continue;
        }
        // Value of the name: the text after `=` or `:`, the content of an element, or the text after a flag.
        let is_of_name =
            ["name", "key"].iter().any(|n| last.eq_ignore_ascii_case(n)) && separator_length(gap) == Some(gap.len());
        let is_end = word.starts_with('/') || last.starts_with('/') && gap == ":";
        let is_element = tag.is_some() && !is_end && (tag == Some(start) || tag_end_length(rest) > 0);
        let close = || Some(format!("</{}", line[tag?..].split([' ', '\t', '>', '/']).next().unwrap_or_default()));
        let (from, goes_on) = match separator_length(rest) {
            Some(length) => (end + length, false),
            None if is_of_name || is_element => (end + tag_end_length(rest), true),
            None if word.starts_with('-') => (end, true),
            None => continue,
        };
        let from = line.len() - line[from..].trim_start_matches([' ', '\t', '"', '\'', '\\', ',']).len();
        if from == line.len() {
            out.push_str(&line[written..]);
            let element = |close| After::Element(close, MAX_ELEMENT_LINES);
            return if goes_on { close().map_or(After::Next, element) } else { After::Indented(indent) };
        }
        if is_harmless_value(&line[from..]) {
            continue;
        }
        out.push_str(&line[written..from]);
        out.push_str(REDACTED);
        let Some(close) = close() else { return After::Indented(indent) };
        // An attribute ends with its tag, and the content of an element with the element.
        let is_in_tag = !line[..from].ends_with('>');
        let ends = |&(at, mark): &(usize, &str)| {
            if mark == "/" {
                is_in_tag && line[from + at..].starts_with("/>")
            } else {
                line[from + at..].starts_with(&close)
            }
        };
        match line[from..].match_indices(['<', '/']).find(ends) {
            Some((length, _)) => (written, at, before) = (from + length, from + length, ""),
            None if goes_on => return After::Element(close, MAX_ELEMENT_LINES),
            None => return After::Indented(indent),
        }
    }
    out.push_str(&line[written..]);
    After::Nothing
}

/// Returns the length of the separator between a name and its value, if there is one: `: `, `=`, `":`, `&quot;:`.
fn separator_length(rest: &str) -> Option<usize> {
    let closed = rest.trim_start_matches(['"', '\'', '\\']);
    let closed = ["&quot;", "&apos;", "&#34;", "&#39;"].iter().find_map(|q| closed.strip_prefix(q)).unwrap_or(closed);
    let value = closed.trim_start_matches([' ', '\t']).strip_prefix([':', '='])?;
    let value = value.strip_prefix(['>', '=']).unwrap_or(value).trim_start_matches([' ', '\t', '"', '\'', '\\']);
    Some(rest.len() - value.len())
}

/// Returns the length of the end of an element's opening tag: `>`, or `'>`.
fn tag_end_length(rest: &str) -> usize {
    let value = rest.trim_start_matches(['"', '\'', '\\']).strip_prefix('>');
    value.map_or(0, |value| rest.len() - value.len())
}

/// Reports whether two words together name a key, such as `API Key`.
fn is_key_of(before: &str, word: &str) -> bool {
    let kinds = ["api", "access", "private", "secret", "shared", "signing", "account"];
    word.eq_ignore_ascii_case("key") && kinds.iter().any(|kind| before.eq_ignore_ascii_case(kind))
}

/// Reports whether a word is a credential because an authentication scheme comes before it, as in `Bearer x`.
fn is_credential(before: &str, gap: &str, word: &str) -> bool {
    let schemes = ["bearer", "basic", "negotiate", "digest", "ntlm"];
    let is_english = word.len() < 20 && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'.');
    schemes.iter().any(|scheme| before.eq_ignore_ascii_case(scheme))
        && gap.trim().is_empty()
        && word.len() >= 6
        && !is_english
}

/// Reports whether a word has the prefix and the length of a token.
fn is_token(word: &str) -> bool {
    let begins = |part: &str| TOKEN_PREFIXES.split_ascii_whitespace().any(|begin| part.starts_with(begin));
    word.split('/').any(|part| part.len() >= MIN_TOKEN_LENGTH && begins(part))
}

/// Returns the length of the user and the password after the `://` of a URL.
fn user_info_length(place: &str) -> Option<usize> {
    let authority = place.split(['/', '?', '#']).next().unwrap_or_default();
    if let Some(at) = authority.rfind('@') {
        return Some(at);
    }
    // A password may contain `/`; a port has only digits.
    let (_, port) = authority.split_once(':')?;
    place.rfind('@').filter(|_| !port.bytes().all(|b| b.is_ascii_digit()))
}

/// Reports whether a value cannot be a secret, such as `true` or `null`, or is redacted already.
fn is_harmless_value(value: &str) -> bool {
    let ends = |c: char| c.is_whitespace() || ",;}]\"'<>\\".contains(c);
    let first = value.split(ends).next().unwrap_or_default();
    ["true", "false", "null", "none", "nil", "~", REDACTED].iter().any(|word| first.eq_ignore_ascii_case(word))
}

#[cfg(test)]
#[path = "redact_tests.rs"]
mod tests;
