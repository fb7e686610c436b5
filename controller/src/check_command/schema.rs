//! The schema of a CRD that the API server has, beside that of this release. Pure.

use serde_json::Value;

/// The path of the first property that `shipped` has and `served` lacks: the API server drops it from what is written, without an error that a
/// tool would report. What `served` has beside is of a newer release, and accepts all that this one writes.
pub(super) fn lacking(shipped: &Value, served: &Value) -> Option<String> {
    lacking_below(shipped.get("openAPIV3Schema")?, &served["openAPIV3Schema"], "")
}

fn lacking_below(shipped: &Value, served: &Value, path: &str) -> Option<String> {
    let properties = shipped["properties"].as_object().into_iter().flatten().find_map(|(name, schema)| {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match served["properties"].get(name) {
            None => Some(path),
            Some(served) => lacking_below(schema, served, &path),
        }
    });
    let inner = || {
        // Of a list and of a map.
        [("items", "[]"), ("additionalProperties", ".*")].into_iter().find_map(|(field, mark)| {
            let schema = shipped.get(field).filter(|schema| schema.is_object())?;
            lacking_below(schema, &served[field], &format!("{path}{mark}"))
        })
    };
    properties.or_else(inner)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(properties: &Value) -> Value {
        json!({"type": "object", "properties": properties})
    }

    #[test]
    fn the_first_property_that_is_not_served_is_named() {
        let text = || json!({"type": "string"});
        let list = |of: Value| json!({"type": "array", "items": of});
        let map = |of: Value| json!({"type": "object", "additionalProperties": of});
        let (one, two) = (object(&json!({"a": text()})), object(&json!({"a": text(), "b": text()})));
        for (about, shipped, served, expected) in [
            ("the same", &two, &two, None),
            ("older", &two, &one, Some("b")),
            ("newer", &one, &two, None),
            ("another description", &json!({"description": "x", "properties": {"a": {}}}), &one, None),
            ("in an object", &object(&json!({"x": two})), &object(&json!({"x": one})), Some("x.b")),
            (
                "in a list",
                &object(&json!({"x": list(two.clone())})),
                &object(&json!({"x": list(one.clone())})),
                Some("x[].b"),
            ),
            (
                "in a map",
                &object(&json!({"x": map(two.clone())})),
                &object(&json!({"x": map(one.clone())})),
                Some("x.*.b"),
            ),
            ("no schema", &two, &Value::Null, Some("a")),
        ] {
            let of = |schema: &Value| json!({"openAPIV3Schema": schema});
            assert_eq!(lacking(&of(shipped), &of(served)).as_deref(), expected, "{about}");
        }
    }

    #[test]
    fn the_crds_of_this_release_lack_nothing() {
        for crd in api::crds() {
            for version in &crd.spec.versions {
                let mut schema = json!(version.schema);
                assert_eq!(lacking(&schema, &schema), None);
                let whole = schema.clone();
                schema["openAPIV3Schema"]["properties"]["spec"]["properties"] = json!({});
                assert!(lacking(&whole, &schema).is_some_and(|path| path.starts_with("spec.")));
            }
        }
    }
}
