//! The changes of a CRD that OLM v1 refuses when it upgrades an operator.
//!
//! It refuses what it knows to be unsafe, and also each change of a field that it has no rule for, as that of a validation rule.

use std::collections::BTreeSet;

use serde_json::Value;

/// Bounds that must not fall.
const MAXIMA: [&str; 4] = ["maximum", "maxLength", "maxProperties", "maxItems"];
/// Bounds that must not rise.
const MINIMA: [&str; 4] = ["minimum", "minLength", "minProperties", "minItems"];
/// What has rules of its own below, and descriptions, which may change.
const RULED: [&str; 8] =
    ["type", "required", "default", "enum", "properties", "items", "additionalProperties", "description"];

/// What is refused, each with its field.
pub(super) fn refused(old: &Value, new: &Value) -> Vec<String> {
    let mut refused = Vec::new();
    if old["spec"]["scope"] != new["spec"]["scope"] {
        refused.push("scope: changed".to_owned());
    }
    let versions = |crd: &Value| crd["spec"]["versions"].as_array().cloned().unwrap_or_default();
    let new = versions(new);
    for version in versions(old) {
        let name = version["name"].as_str().unwrap_or_default();
        let schema = |version: &Value| version["schema"]["openAPIV3Schema"].clone();
        match new.iter().find(|other| other["name"] == version["name"]) {
            Some(other) => compare(name, &schema(&version), &schema(other), &mut refused),
            None if version["storage"] == true => refused.push(format!("{name}: the stored version is removed")),
            None => {}
        }
    }
    refused
}

fn compare(path: &str, old: &Value, new: &Value, refused: &mut Vec<String>) {
    let mut refuse = |what: String| refused.push(format!("{path}: {what}"));
    if old["type"] != new["type"] {
        refuse("the type is changed".into());
    }
    let of_list = |schema: &Value, key: &str| -> BTreeSet<String> {
        schema[key].as_array().into_iter().flatten().map(Value::to_string).collect()
    };
    for field in of_list(new, "required").difference(&of_list(old, "required")) {
        refuse(format!("{field} is required now"));
    }
    if old.get("default") != new.get("default") {
        refuse("the default is added, changed or removed".into());
    }
    match (old.get("enum"), new.get("enum")) {
        (None, Some(_)) => refuse("an enum is added".into()),
        (Some(_), Some(_)) => {
            for value in of_list(old, "enum").difference(&of_list(new, "enum")) {
                refuse(format!("{value} is taken out of the enum"));
            }
        }
        (_, None) => {}
    }
    for (bounds, is_tighter) in [(MAXIMA, f64::lt as fn(&f64, &f64) -> bool), (MINIMA, f64::gt)] {
        for bound in bounds {
            let tightened = match (old[bound].as_f64(), new[bound].as_f64()) {
                (Some(old), Some(new)) => is_tighter(&new, &old),
                (None, Some(_)) => true,
                (_, None) => false,
            };
            if tightened {
                refuse(format!("{bound} is tightened"));
            }
        }
    }
    let keys =
        |schema: &Value| schema.as_object().into_iter().flat_map(|map| map.keys().cloned()).collect::<BTreeSet<_>>();
    for key in keys(old).union(&keys(new)) {
        let has_rule =
            RULED.contains(&key.as_str()) || MAXIMA.contains(&key.as_str()) || MINIMA.contains(&key.as_str());
        if !has_rule && old.get(key) != new.get(key) {
            refuse(format!("{key} is changed"));
        }
    }
    let inner = |schema: &Value| -> Vec<(String, Value)> {
        let properties = schema["properties"].as_object().into_iter().flatten();
        let properties = properties.map(|(name, schema)| (format!("{path}.{name}"), schema.clone()));
        let items = ["items", "additionalProperties"].into_iter().filter_map(|key| schema.get(key));
        properties.chain(items.map(|schema| (format!("{path}[]"), schema.clone()))).collect()
    };
    let new = inner(new);
    for (path, schema) in inner(old) {
        match new.iter().find(|(other, _)| *other == path) {
            Some((_, other)) => compare(&path, &schema, other, refused),
            None => refused.push(format!("{path}: removed")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn crd(schema: &Value) -> Value {
        json!({"spec": {"scope": "Cluster", "versions": [
            {"name": "v1", "storage": true, "schema": {"openAPIV3Schema": schema}},
            {"name": "v0", "storage": false, "schema": {"openAPIV3Schema": {}}},
        ]}})
    }

    #[test]
    fn what_olm_refuses() {
        let field = |schema: &Value| json!({"type": "object", "properties": {"a": schema}});
        for (old, new, expected) in [
            (json!({"type": "string"}), json!({"type": "string", "description": "x"}), None),
            (json!({"type": "string"}), json!({"type": "integer"}), Some("v1.a: the type is changed")),
            (json!({"type": "string"}), json!({"type": "string", "default": "x"}), Some("v1.a: the default is added")),
            (json!({"default": "x"}), json!({"default": "y"}), Some("v1.a: the default is")),
            (json!({"default": "x"}), json!({}), Some("v1.a: the default is")),
            (json!({"enum": ["x"]}), json!({"enum": ["x", "y"]}), None),
            (json!({"enum": ["x", "y"]}), json!({"enum": ["x"]}), Some("v1.a: \"y\" is taken out")),
            (json!({}), json!({"enum": ["x"]}), Some("v1.a: an enum is added")),
            (json!({"enum": ["x"]}), json!({}), None),
            (json!({"maxLength": 9}), json!({"maxLength": 10}), None),
            (json!({"maxLength": 9}), json!({"maxLength": 8}), Some("v1.a: maxLength is tightened")),
            (json!({}), json!({"maxItems": 8}), Some("v1.a: maxItems is tightened")),
            (json!({"minimum": 1}), json!({"minimum": 0}), None),
            (json!({"minimum": 1}), json!({"minimum": 2.5}), Some("v1.a: minimum is tightened")),
            (json!({"minimum": 1}), json!({}), None),
            (json!({"pattern": "x"}), json!({"pattern": "y"}), Some("v1.a: pattern is changed")),
            (
                json!({}),
                json!({"x-kubernetes-validations": [{"rule": "true"}]}),
                Some("v1.a: x-kubernetes-validations"),
            ),
            (json!({"required": ["x"]}), json!({}), None),
            (json!({}), json!({"required": ["x"]}), Some("v1.a: \"x\" is required now")),
            (json!({"properties": {"x": {}}}), json!({"properties": {"x": {}, "y": {"default": 1}}}), None),
            (json!({"properties": {"x": {}}}), json!({"properties": {}}), Some("v1.a.x: removed")),
            (json!({"items": {"type": "string"}}), json!({"items": {"type": "object"}}), Some("v1.a[]: the type")),
            (
                json!({"additionalProperties": {"maxLength": 2}}),
                json!({"additionalProperties": {"maxLength": 1}}),
                Some("v1.a[]: maxLength"),
            ),
        ] {
            let found = refused(&crd(&field(&old)), &crd(&field(&new)));
            match expected {
                None => assert!(found.is_empty(), "{old} {new}: {found:?}"),
                Some(part) => assert!(found.len() == 1 && found[0].starts_with(part), "{old} {new}: {found:?}"),
            }
        }
    }

    #[test]
    fn what_olm_refuses_of_the_whole_crd() {
        let old = crd(&json!({}));
        for (about, change, expected) in [
            (
                "the scope",
                json!({"spec": {"scope": "Namespaced", "versions": old["spec"]["versions"]}}),
                &["scope: changed"][..],
            ),
            (
                "a version that is not stored",
                json!({"spec": {"scope": "Cluster", "versions": [old["spec"]["versions"][0]]}}),
                &[],
            ),
            (
                "the stored version",
                json!({"spec": {"scope": "Cluster", "versions": [old["spec"]["versions"][1]]}}),
                &["v1: the stored version is removed"],
            ),
        ] {
            assert_eq!(refused(&old, &change), expected, "{about}");
        }
    }
}
