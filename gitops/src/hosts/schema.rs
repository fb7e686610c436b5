//! Schema of a host, as in the CRD, with the line of each fault. No I/O.
//!
//! The rules are derived from the Rust type, so that the same rules apply to hosts in files and in pools.

use std::{collections::BTreeMap, sync::LazyLock};

use api::Host;
use regex::Regex;
use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use super::{field, quote};
use wnp_core::{
    inventory::address::is_address,
    node::permitted,
    yaml::{Fault, Kind, Meaning, Node},
};

/// API version of a host list.
pub const API_VERSION: &str = "windowsmachineconfig.openshift.io/v1alpha1";
/// Kind of a host list.
pub const KIND: &str = "WindowsHostInventory";

/// Remedies for text that does not match a pattern, by the path of the field.
const REMEDIES: [(&str, &str); 4] = [
    (
        "name",
        "use lower-case letters, digits and `-`, with `.` between parts that begin and end with a letter or digit",
    ),
    (
        "address",
        "use an IPv4 address, an IPv6 address without brackets or zone, or a DNS name; the port belongs in `port`",
    ),
    (
        "username",
        "use a name such as `Administrator` or `DOMAIN\\name`, without \" / [ ] : ; | = , + * ? < > and without spaces at its ends",
    ),
    ("hostKey", "use `SHA256:` and the 43 characters after it, or `<type> <base64>` without address and comment"),
];

/// Schema of a host, and the compiled patterns of the schema.
pub(super) struct Rules {
    host: Value,
    patterns: BTreeMap<String, Option<Regex>>,
}

/// Rules for a host.
pub(super) static RULES: LazyLock<Rules> = LazyLock::new(|| {
    let host = schema_of::<Host>();
    let mut patterns = BTreeMap::new();
    collect_patterns(&host, &mut patterns);
    Rules { host, patterns }
});

/// Returns the schema of a type with all references inlined.
fn schema_of<T: JsonSchema>() -> Value {
    let settings = schemars::generate::SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(schema) = schema.as_object_mut() {
        schema.retain(|key, _| !["$schema", "title"].contains(&key.as_str()));
    }
    tidy(&mut schema);
    schema
}

/// Removes extensions for the API server and null defaults, forbids unknown fields, and puts each description on one line.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.retain(|key, value| !key.starts_with("x-kubernetes-") && (key != "default" || !value.is_null()));
            if map.get("properties").is_some_and(Value::is_object) {
                map.insert("additionalProperties".into(), false.into());
            }
            if let Some(Value::String(text)) = map.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            map.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

fn collect_patterns(schema: &Value, into: &mut BTreeMap<String, Option<Regex>>) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::String(pattern)) = map.get("pattern") {
                into.insert(pattern.clone(), Regex::new(pattern).ok());
            }
            map.values().for_each(|v| collect_patterns(v, into));
        }
        Value::Array(items) => items.iter().for_each(|v| collect_patterns(v, into)),
        _ => {}
    }
}

/// Returns the JSON Schema of files with hosts, for editors and for checks in other tools. [`super::read`] also accepts ConfigMaps, objects of kind
/// `List`, and `hosts` without a kind.
pub fn json_schema() -> Value {
    let mut host = RULES.host.clone();
    if let Some(host) = host.as_object_mut() {
        host.insert("title".into(), "Host".into());
    }
    let hosts = json!({"type": "array", "items": {"$ref": "#/$defs/host"}});
    let mut listed = hosts.clone();
    listed["description"] = "The hosts. An empty list declares an empty inventory.".into();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": KIND,
        "description": "Hosts of a WindowsNodePool: an object with a list of hosts, a list of hosts, or one host.",
        "anyOf": [
            {
                "title": KIND,
                "type": "object",
                "required": ["apiVersion", "kind", "hosts"],
                "properties": {
                    "apiVersion": {"const": API_VERSION},
                    "kind": {"const": KIND},
                    "metadata": {"type": "object", "description": "Free-form metadata, which the operator ignores."},
                    "hosts": listed,
                },
                "additionalProperties": false,
            },
            hosts,
            {"$ref": "#/$defs/host"},
        ],
        "$defs": {"host": host},
    })
}

/// Parses a host, and adds its faults to `faults`. Returns `None` if it has faults.
pub(super) fn host(node: &Node, faults: &mut Vec<Fault>) -> Option<Host> {
    let before = faults.len();
    let value = RULES.check(node, &RULES.host, "", faults);
    if faults.len() > before {
        return None;
    }
    let host = match serde_json::from_value::<Host>(value) {
        Ok(host) => host,
        Err(error) => {
            faults.push((node.line, format!("this is not a host: {error}")));
            return None;
        }
    };
    let line = |key: &str| node.get(key).map_or(node.line, |n| n.line);
    if !is_address(&host.address) {
        faults.push((
            line("address"),
            format!(
                "`address`: {} is neither an IPv4 or IPv6 address nor a DNS name: correct it",
                quote(&host.address)
            ),
        ));
    }
    if let Some(key) = host.host_key.as_deref().filter(|k| !k.starts_with("SHA256:"))
        && russh::keys::ssh_key::PublicKey::from_openssh(key).is_err()
    {
        let mend = "take the line that `ssh-keyscan` prints, without the address";
        faults.push((line("hostKey"), format!("`hostKey`: {} is not a public key: {mend}", quote(key))));
    }
    if let Some(labels) = node.get("labels") {
        check_labels(labels, faults);
    }
    if let (Some(taints), Some(Kind::List(items))) = (&host.taints, node.get("taints").map(|n| &n.kind)) {
        let problems = taints.iter().zip(items).filter_map(|(t, at)| Some((at.line, permitted::taint_problem(t)?)));
        faults.extend(problems.map(|(line, problem)| (line, format!("`taints`: {problem}"))));
    }
    (faults.len() == before).then_some(host)
}

/// Adds a fault for each key and value of a label that the API server would refuse on the Node.
fn check_labels(map: &Node, faults: &mut Vec<Fault>) {
    let Kind::Map(members) = &map.kind else { return };
    for member in members {
        if let Some(mend) = permitted::key_problem(&member.key) {
            faults
                .push((member.line, format!("`labels`: {} is not a valid key of a label: {mend}", quote(&member.key))));
        }
        let value = member.value.text().unwrap_or_default();
        if let Some(mend) = permitted::value_problem(value) {
            faults.push((
                member.value.line,
                format!("`labels`: {} is not a valid value of a label: {mend}", quote(value)),
            ));
        }
    }
}

impl Rules {
    /// Converts a YAML node to JSON according to the schema, and adds the faults of the node to `faults`. The value is valid only if no fault was
    /// added.
    fn check(&self, node: &Node, schema: &Value, path: &str, faults: &mut Vec<Fault>) -> Value {
        let about = if path.is_empty() { "a host".to_owned() } else { field(path) };
        let mut wrong = |message: String| faults.push((node.line, message));
        let types = types(schema);
        match (&node.kind, types.as_slice()) {
            (Kind::Map(_), ["object"]) => self.check_object(node, schema, path, faults),
            (Kind::List(items), ["array"]) => {
                let max = number_of(schema, "maxItems").unwrap_or(i64::MAX);
                if count(items.len()) > max {
                    wrong(format!("{about} has more than {max} entries: remove some"));
                }
                let of = schema.get("items").unwrap_or(&Value::Null);
                let items = items.iter().enumerate();
                Value::Array(items.map(|(n, item)| self.check(item, of, &format!("{path}[{n}]"), faults)).collect())
            }
            (Kind::Scalar { text, .. }, []) if !words(schema).is_empty() => {
                let words = words(schema);
                if !words.contains(&text.as_str()) {
                    wrong(format!("{about}: {} must be one of {}", quote(text), words.join(", ")));
                }
                Value::String(text.clone())
            }
            (Kind::Scalar { text, .. }, ["string"]) => {
                if node.meaning() != Some(Meaning::Text) {
                    wrong(format!(
                        "{about}: {} is read as {}: put it in quotes",
                        api::text::escape(text, 80),
                        node.what()
                    ));
                    return Value::Null;
                }
                self.check_text(text, schema, path, &mut wrong);
                Value::String(text.clone())
            }
            (Kind::Scalar { text, .. }, ["integer"]) => {
                let number = text.parse::<i64>().ok().filter(|_| node.meaning() == Some(Meaning::Int));
                let min = number_of(schema, "minimum").unwrap_or(i64::MIN);
                let max = number_of(schema, "maximum").unwrap_or(i64::MAX);
                let digits = text.trim_start_matches('0');
                if number.is_some() && !digits.is_empty() && digits != text {
                    wrong(format!(
                        "{about}: {} begins with 0, so that kubectl reads an octal number: write {digits}",
                        quote(text)
                    ));
                    return Value::Null;
                }
                if let Some(number) = number.filter(|n| (min..=max).contains(n)) {
                    return number.into();
                }
                wrong(format!("{about}: {} is not a number from {min} to {max}, without quotes", quote(text)));
                Value::Null
            }
            (_, [wanted]) => {
                let wanted = match *wanted {
                    "object" => "an object",
                    "string" => "text",
                    "integer" => "a number",
                    "array" => "a list",
                    other => other,
                };
                wrong(format!("{about} must be {wanted}, but is {}", node.what()));
                Value::Null
            }
            _ => {
                wrong(format!("{about} cannot be read from a file"));
                Value::Null
            }
        }
    }

    fn check_object(&self, node: &Node, schema: &Value, path: &str, faults: &mut Vec<Fault>) -> Value {
        let Kind::Map(members) = &node.kind else { return Value::Null };
        let empty = Map::new();
        let known = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let others = schema.get("additionalProperties").filter(|s| s.is_object());
        let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        if let Some(most) = number_of(schema, "maxProperties")
            && count(members.len()) > most
        {
            faults.push((node.line, format!("{} has more than {most} entries: remove some", field(path))));
        }
        let mut object = Map::new();
        for member in members {
            match known.get(&member.key).or(others) {
                None => {
                    let mend = mend_unknown(&member.key, known.keys().map(String::as_str));
                    faults.push((member.line, format!("unknown field {}{mend}", field(&below(&member.key)))));
                }
                Some(_) if member.value.is_null() && known.contains_key(&member.key) => {}
                Some(schema) => {
                    let value = self.check(&member.value, schema, &below(&member.key), faults);
                    object.insert(member.key.clone(), value);
                }
            }
        }
        for key in required.filter_map(Value::as_str) {
            if node.get(key).is_none() {
                let about = if path.is_empty() { "a host".to_owned() } else { field(path) };
                faults.push((node.line, format!("{about} needs {}: add it", field(key))));
            }
        }
        Value::Object(object)
    }

    fn check_text(&self, text: &str, schema: &Value, path: &str, wrong: &mut impl FnMut(String)) {
        let length = count(text.chars().count());
        let max = number_of(schema, "maxLength").unwrap_or(i64::MAX);
        if length < number_of(schema, "minLength").unwrap_or(0) {
            return wrong(format!("{} is empty: set a value, or remove it", field(path)));
        }
        if length > max {
            return wrong(format!("{} has {length} characters: at most {max} are allowed", field(path)));
        }
        let pattern = schema.get("pattern").and_then(Value::as_str).and_then(|p| self.patterns.get(p)?.as_ref());
        if pattern.is_some_and(|p| !p.is_match(text)) {
            let mend = REMEDIES.iter().find(|(of, _)| *of == path).map_or("see the reference", |(_, mend)| mend);
            wrong(format!("{}: {} cannot be used: {mend}", field(path), quote(text)));
        }
    }
}

/// Returns the types that a value may have, other than null.
fn types(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).filter(|t| *t != "null").collect(),
        _ => Vec::new(),
    }
}

/// Returns the values that an enum allows.
fn words(schema: &Value) -> Vec<&str> {
    let each = schema.get("oneOf").and_then(Value::as_array).into_iter().flatten();
    each.filter_map(|one| one.get("const").and_then(Value::as_str)).collect()
}

/// Returns a limit of the schema as a whole number, even if the generator writes a float.
fn number_of(schema: &Value, key: &str) -> Option<i64> {
    let number = schema.get(key)?;
    #[expect(clippy::cast_possible_truncation, reason = "casts of floats stop at the limits")]
    number.as_i64().or_else(|| number.as_f64().map(|n| n as i64))
}

fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Returns the end of a message about an unknown field: the most similar known field or, if there is none, all known fields.
pub(super) fn mend_unknown<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let near = did_you_mean(word, known.clone());
    if !near.is_empty() {
        return near;
    }
    let known: Vec<String> = known.map(|k| format!("`{k}`")).collect();
    format!(": remove it; allowed here: {}", known.join(", "))
}

/// Returns the end of a message about an unknown word, with the most similar known word if there is one.
pub(super) fn did_you_mean<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    let lower = word.to_lowercase();
    // Lengths are compared first: a file may have a hundred thousand fields, and each is compared with all known ones.
    let near = known
        .filter(|k| word.len().abs_diff(k.len()) <= k.len() / 3)
        .map(|k| (strsim::damerau_levenshtein(&lower, &k.to_lowercase()), k))
        .filter(|(distance, k)| *distance <= k.len() / 3)
        .min();
    near.map_or_else(String::new, |(_, k)| format!(", did you mean `{k}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pattern_compiles_and_has_a_remedy() {
        assert!(RULES.patterns.len() >= 4, "{:?}", RULES.patterns.keys());
        assert!(RULES.patterns.values().all(Option::is_some), "{:?}", RULES.patterns);
        let properties = RULES.host["properties"].as_object().unwrap();
        for (name, schema) in properties {
            assert_eq!(types(schema).len(), 1, "{name}: {schema}");
            assert_eq!(schema.get("pattern").is_some(), REMEDIES.iter().any(|(of, _)| of == name), "{name}");
        }
    }

    #[test]
    fn the_published_schema_forbids_unknown_fields_and_has_no_kubernetes_extensions() {
        let schema = json_schema();
        let host = &schema["$defs"]["host"];
        assert_eq!(host["additionalProperties"], false);
        assert_eq!(host["required"], json!(["name", "address"]));
        assert_eq!(host["properties"]["labels"]["additionalProperties"]["type"], "string");
        assert!(!schema.to_string().contains("x-kubernetes"), "{schema}");
    }

    #[test]
    fn a_similar_word_is_proposed() {
        let known = ["address", "name", "hostKey", "port"];
        for (word, said) in [
            ("adress", ", did you mean `address`?"),
            ("hostkey", ", did you mean `hostKey`?"),
            ("nmae", ", did you mean `name`?"),
            ("nam", ", did you mean `name`?"),
            ("resources", ""),
            ("", ""),
        ] {
            assert_eq!(did_you_mean(word, known.into_iter()), said, "{word}");
        }
        assert_eq!(did_you_mean(&"a".repeat(100_000), known.into_iter()), "");
    }
}
