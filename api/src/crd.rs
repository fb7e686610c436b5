//! CustomResourceDefinitions of the kinds, as stored in `crds/`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

use crate::{WindowsInstance, WindowsNodePool};

/// Returns the CRDs, as stored in `crds/`.
///
/// kstatus treats an object without a status as finished. The only default is therefore `status: {observedGeneration: -1}`, as in Flux.
/// Defaults that schemars derives from `#[serde(default)]` are removed.
///
/// No field is `nullable`, so the API server removes a null: null and absent are the same. In `/openapi/v2`, which Argo CD and other tools use to
/// compare objects, a nullable object or list has neither type nor properties, and changes in it would go unnoticed.
///
/// No field has both a `pattern` and a rule. The patterns of the Rust types are for host lists in files, which have their own messages; the API
/// server answers with the message of the rule.
///
/// Each list has a list type for server-side apply. The default is atomic, for lists with an order or a single writer.
pub fn crds() -> Vec<CustomResourceDefinition> {
    [WindowsNodePool::crd(), WindowsInstance::crd()].map(with_status_default).into()
}

fn with_status_default(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut crd.spec.versions {
        let root = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut());
        let Some(root) = root else { continue };
        tidy(root);
        if let Some(status) = root.properties.as_mut().and_then(|p| p.get_mut("status")) {
            status.default = Some(JSON(serde_json::json!({"observedGeneration": -1})));
        }
    }
    crd
}

/// Applies the rules of [`crds`] to a schema and the schemas in it: removes defaults, `nullable` and patterns beside rules, sets missing list types,
/// and joins the lines of each paragraph of a description, because kubectl wraps lines itself.
fn tidy(schema: &mut JSONSchemaProps) {
    schema.default = None;
    schema.nullable = None;
    if schema.x_kubernetes_validations.as_ref().is_some_and(|rules| !rules.is_empty()) {
        schema.pattern = None;
    }
    if schema.type_.as_deref() == Some("array") {
        schema.x_kubernetes_list_type.get_or_insert_with(|| "atomic".into());
    }
    if let Some(description) = &mut schema.description {
        *description = description.split("\n\n").map(|text| text.replace('\n', " ")).collect::<Vec<_>>().join("\n\n");
    }
    schema.properties.iter_mut().flat_map(|p| p.values_mut()).for_each(tidy);
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        tidy(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        tidy(values);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    fn walk(value: &Value, path: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                for (k, v) in map {
                    if k == "default" && !path.ends_with("/properties")
                        || k == "format" && v.as_str().is_some_and(|f| f.starts_with("uint"))
                    {
                        found.push(format!("{path}/{k}"));
                    }
                    walk(v, &format!("{path}/{k}"), found);
                }
            }
            Value::Array(list) => list.iter().for_each(|v| walk(v, path, found)),
            _ => {}
        }
    }

    /// Collects every schema in a CRD, with its path.
    fn schemas(value: &Value, path: &str, found: &mut Vec<(String, Value)>) {
        if let Some(map) = value.as_object() {
            found.push((path.to_owned(), value.clone()));
            for (name, field) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
                schemas(field, &format!("{path}.{name}"), found);
            }
            for inner in ["items", "additionalProperties"].iter().filter_map(|key| map.get(*key)) {
                schemas(inner, &format!("{path}[]"), found);
            }
        }
    }

    #[test]
    fn each_rule_has_a_message_and_no_field_has_a_pattern() {
        let pool = serde_json::to_value(&super::crds()[0]).unwrap();
        let mut found = Vec::new();
        schemas(&pool["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "", &mut found);
        for (path, schema) in found {
            assert_eq!(schema.get("pattern"), None, "{path}");
            let rules = schema["x-kubernetes-validations"].as_array();
            assert!(!path.ends_with(".hosts[].name") || rules.is_some_and(|r| r.len() == 1), "{path}");
            for rule in rules.into_iter().flatten() {
                assert!(rule["message"].as_str().is_some_and(|m| m.contains(' ')), "{path}: {rule}");
            }
        }
    }

    #[test]
    fn no_field_is_nullable_and_each_list_has_a_type() {
        for crd in super::crds() {
            let crd = serde_json::to_value(&crd).unwrap();
            let mut found = Vec::new();
            schemas(&crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "", &mut found);
            assert!(found.iter().any(|(path, _)| path == ".status.conditions[].type"));
            for (path, schema) in found {
                assert_eq!(schema.get("nullable"), None, "{path}");
                let (is_list, list_type) = (schema["type"] == "array", schema["x-kubernetes-list-type"].as_str());
                assert!(!is_list || list_type.is_some_and(|t| ["atomic", "map", "set"].contains(&t)), "{path}");
            }
        }
    }

    #[test]
    fn descriptions_have_whole_paragraphs() {
        for crd in super::crds() {
            let text = serde_json::to_string(&crd).unwrap();
            assert!(!text.replace("\\n\\n", "").contains("\\n"), "{text}");
        }
    }

    #[test]
    fn the_only_default_is_that_of_the_status_and_no_format_is_unknown_to_the_api_server() {
        for crd in super::crds() {
            let mut found = Vec::new();
            walk(&serde_json::to_value(&crd).unwrap(), "", &mut found);
            assert_eq!(
                found,
                ["/spec/versions/schema/openAPIV3Schema/properties/status/default"],
                "{:?}",
                crd.metadata.name
            );
        }
    }
}
