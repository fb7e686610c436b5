//! Fields of a pool's spec with two values each, derived from the schema in the CRD.

use anyhow::{Context as _, Result};
use api::WindowsNodePool;
use kube::CustomResourceExt as _;
use serde_json::{Map, Value, json};

use crate::crd::{host, merge};

/// Field, and specs of a pool without it, with it, and with another value.
pub(crate) struct Field {
    pub path: String,
    pub specs: [Value; 3],
}

/// Strings for fields that do not accept arbitrary strings, by the end of the path.
const STRINGS: &[(&str, [&str; 2])] = &[
    (".address", ["10.0.0.1", "10.0.0.2"]),
    (".clsid", ["{CCC2A336-D7F3-4818-A213-272B7924213E}", "{CCC2A336-D7F3-4818-A213-272B7924213F}"]),
    (".commit", ["0123456789012345678901234567890123456789", "1123456789012345678901234567890123456789"]),
    (".file", ["first.dll", "second.dll"]),
    (
        ".hostKey",
        ["SHA256:mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE", "SHA256:a5dbhnVDVV+wzA3hzpgP7k0GfTkN0yYuMJrxQhl8wrE"],
    ),
    (".httpProxy", ["http://first.example.com:3128", "http://second.example.com:3128"]),
    (".httpsProxy", ["http://first.example.com:3128", "http://second.example.com:3128"]),
    (
        ".prePullImages[]",
        ["mcr.microsoft.com/windows/servercore:ltsc2022", "mcr.microsoft.com/windows/nanoserver:ltsc2022"],
    ),
    (".pausedUntil", ["2040-01-01T00:00:00Z", "2040-01-02T00:00:00Z"]),
    (".schedule", ["0 22 * * 1-5", "0 23 * * 1-5"]),
    (".takeOverFrom[]", ["0b0d5b4c-7a0e-4f3b-9a53-6c6b7f0d9a11", "0b0d5b4c-7a0e-4f3b-9a53-6c6b7f0d9a12"]),
    (
        ".trustedCertificates",
        [
            "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n",
            "-----BEGIN CERTIFICATE-----\nAQ==\n-----END CERTIFICATE-----\n",
        ],
    ),
    (".git.url", ["https://git.example.com/first.git", "https://git.example.com/second.git"]),
];

/// Numbers for fields that another field bounds.
const NUMBERS: &[(&str, [i64; 2])] = &[(".imageGCHighThresholdPercent", [90, 91])];

/// Returns other fields that the field at this path requires.
fn beside(path: &str) -> Value {
    if path == ".ssh.hostKeyPolicy" { json!({"ssh": {"knownHostsSecretRef": {"name": "known"}}}) } else { json!({}) }
}

/// Returns all fields in the schema of a pool's spec. A field that is in none of the tables gets a value of its type.
pub(crate) fn all() -> Result<Vec<Field>> {
    let crd = json!(WindowsNodePool::crd());
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let mut fields = Vec::new();
    walk(schema, schema, String::new(), &mut fields)
        .context("the schema has a kind of field that the test does not know")?;
    Ok(fields)
}

fn walk(root: &Value, schema: &Value, path: String, fields: &mut Vec<Field>) -> Option<()> {
    if let Some(properties) = schema["properties"].as_object() {
        for (name, inner) in properties {
            walk(root, inner, format!("{path}.{name}"), fields)?;
        }
        return Some(());
    }
    if schema["items"].is_object() || schema["additionalProperties"].is_object() {
        // The field is tested with two entries and with one.
        fields.push(Field { specs: specs(root, &path, &many(schema, &path)?)?, path: format!("{path}, an entry") });
    }
    if schema["items"].is_object() {
        return walk(root, &schema["items"], format!("{path}[]"), fields);
    }
    let one = |n| {
        let entries = &schema["additionalProperties"];
        if !entries.is_object() {
            return value(schema, &path, n);
        }
        Some(json!({keys(&path)[0]: value(entries, &format!("{path}{{}}"), n)?}))
    };
    let values = [one(0)?, one(1)?];
    fields.push(Field { specs: specs(root, &path, &values)?, path });
    Some(())
}

/// Returns two keys that the map at this path accepts.
fn keys(path: &str) -> [&'static str; 2] {
    match path.rsplit('.').next() {
        Some("evictionHard") => ["memory.available", "nodefs.available"],
        Some("kubeReserved" | "systemReserved") => ["memory", "ephemeral-storage"],
        _ => ["example.com/first", "example.com/second"],
    }
}

/// Returns a list or map with two entries, and one with one entry.
fn many(schema: &Value, path: &str) -> Option<[Value; 2]> {
    if schema["items"].is_object() {
        let one = |n| value(&schema["items"], &format!("{path}[]"), n);
        return Some([json!([one(0)?, one(1)?]), json!([one(0)?])]);
    }
    let one = |n| value(&schema["additionalProperties"], &format!("{path}{{}}"), n);
    let [first, second] = keys(path);
    Some([json!({first: one(0)?, second: one(1)?}), json!({first: one(0)?})])
}

/// Returns the first (`n` = 0) or second (`n` = 1) sample of a value that the schema accepts, with required fields only.
fn value(schema: &Value, path: &str, n: usize) -> Option<Value> {
    let found = |end: &str| path.ends_with(end);
    if path == ".rollout.steps[]" {
        return Some(json!({"nodes": n + 1, "pauseSeconds": 60}));
    }
    if path == ".inventory.machineSetRef" {
        // No field is required: without a name, both samples would be the same empty object.
        let name = ["first", "second"][n];
        return Some(json!({"name": name}));
    }
    if let Some((_, strings)) = STRINGS.iter().find(|(end, _)| found(end)) {
        return Some(strings[n].into());
    }
    if let Some((_, numbers)) = NUMBERS.iter().find(|(end, _)| found(end)) {
        return Some(numbers[n].into());
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.get(n).or(values.first()).cloned();
    }
    let rules = schema["x-kubernetes-validations"].to_string();
    if schema["x-kubernetes-int-or-string"] == true {
        return Some(if rules.contains("1Ki") || found("{}") {
            ["1Gi", "2Gi"][n].into()
        } else if n == 0 {
            1.into()
        } else if rules.contains('%') {
            "20%".into()
        } else {
            "2".into()
        });
    }
    match schema["type"].as_str()? {
        "boolean" => Some((n == 0).into()),
        "integer" => {
            // The minimum of an integer is a floating-point number in the types of Kubernetes.
            let number = schema["minimum"].as_f64().unwrap_or(1.0) + [0.0, 1.0][n];
            number.to_string().parse::<i64>().ok().map(Value::from)
        }
        "string" => Some(["first", "second"][n].into()),
        "array" => Some(json!([value(&schema["items"], &format!("{path}[]"), n)?])),
        "object" => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let of =
                |name: &str| Some((name.to_owned(), value(&schema["properties"][name], &format!("{path}.{name}"), n)?));
            required.map(of).collect::<Option<Map<_, _>>>().map(Value::Object)
        }
        _ => None,
    }
}

/// Returns specs without a field, and with each of its values.
fn specs(root: &Value, path: &str, values: &[Value; 2]) -> Option<[Value; 3]> {
    let own_hosts = json!({"inventory": {"hosts": [host("first")]}});
    let source = path.strip_prefix(".inventory.").and_then(|rest| rest.split(['.', '[', ',']).next());
    let source = source.filter(|source| !["hosts", "maxRemovals"].contains(source));
    let with = |value: &Value| {
        let mut spec = if source.is_some() { json!({}) } else { own_hosts.clone() };
        merge(&mut spec, &beside(path));
        put(root, &mut spec, "", path, value)?;
        if path == ".rollout.steps[].approval" && *value == true {
            // A step has either a pause or an approval.
            spec["rollout"]["steps"][0].as_object_mut()?.remove("pauseSeconds");
        }
        Some(spec)
    };
    let (first, second) = (with(&values[0])?, with(&values[1])?);
    // The pool without the field has the source with its required fields, or, if that would be the same spec, hosts of its own.
    let without = match source {
        Some(source) => {
            let at = format!(".inventory.{source}");
            let mut spec = json!({});
            put(root, &mut spec, "", &at, &value(&root["properties"]["inventory"]["properties"][source], &at, 0)?)?;
            if spec == first { own_hosts } else { spec }
        }
        None => own_hosts,
    };
    Some([without, first, second])
}

/// Sets the value at a path, and creates missing parents with their required fields.
fn put(schema: &Value, target: &mut Value, at: &str, path: &str, new: &Value) -> Option<()> {
    let rest = path.strip_prefix(at)?;
    if rest.is_empty() {
        *target = new.clone();
        return Some(());
    }
    if target.is_null() {
        *target = value(schema, at, 0)?;
    }
    if rest.starts_with("[]") {
        return put(&schema["items"], &mut target[0], &format!("{at}[]"), path, new);
    }
    // Names of fields may have dots in them.
    let names = schema["properties"].as_object()?.keys();
    let is_next = |name: &&String| {
        let rest = rest[1..].strip_prefix(name.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[', '{']))
    };
    let name = names.filter(is_next).max_by_key(|name| name.len())?;
    put(&schema["properties"][name], &mut target[name.as_str()], &format!("{at}.{name}"), path, new)
}
