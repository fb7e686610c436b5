//! Files that describe pools to kustomize, for users who manage their own pools with it.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use api::names::{GROUP, VERSION};
use serde_json::{Map, Value, json};

use super::HEADER;

const ABOUT: &str = "# Names of Secrets and ConfigMaps in pools, for the field `configurations` of a kustomization: a name that kustomize changes, as that
# of a generated Secret, is changed in the pool, too.
";

/// Returns the generated files for users of kustomize, by path from the root of the repository.
pub(super) fn files() -> Result<BTreeMap<String, String>> {
    let crds = api::crds();
    let pool = crds.iter().find(|crd| crd.spec.names.kind == "WindowsNodePool").context("no CRD of pools")?;
    let pool = serde_json::to_value(pool)?;
    let schema = &pool["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let references = serde_yaml::to_string(&references(schema))?;
    Ok([
        ("deploy/kustomize/openapi.json".into(), serde_json::to_string_pretty(&openapi(schema))? + "\n"),
        ("deploy/kustomize/name-references.yaml".into(), format!("{HEADER}{ABOUT}{references}")),
    ]
    .into())
}

/// Returns a schema of the lists of a pool that a patch merges by key. The patch replaces all other lists.
fn openapi(spec: &Value) -> Value {
    let kind = json!({"group": GROUP, "version": VERSION, "kind": "WindowsNodePool"});
    let definition = json!({
        "type": "object",
        "properties": {"spec": merging(spec).unwrap_or_default()},
        "x-kubernetes-group-version-kind": [kind],
    });
    // This path declares that pools are cluster-scoped: `namespace` of a kustomization does not apply to them or to their references.
    let path = format!("/apis/{GROUP}/{VERSION}/windowsnodepools/{{name}}");
    json!({
        "definitions": {format!("{GROUP}.{VERSION}.WindowsNodePool"): definition},
        "paths": {path: {"get": {"x-kubernetes-group-version-kind": kind}}},
    })
}

/// Returns the part of a schema that leads to lists with keys.
fn merging(schema: &Value) -> Option<Value> {
    if let Some(items) = schema.get("items") {
        let keys = schema.get("x-kubernetes-list-map-keys")?.as_array()?;
        let items = merging(items).unwrap_or_else(|| json!({"type": "object"}));
        let mut list = json!({"type": "array", "items": items, "x-kubernetes-patch-strategy": "merge", "x-kubernetes-list-map-keys": keys});
        if let [key] = keys.as_slice() {
            list["x-kubernetes-patch-merge-key"] = key.clone();
        }
        return Some(list);
    }
    let properties: Map<_, _> = schema
        .get("properties")?
        .as_object()?
        .iter()
        .filter_map(|(name, schema)| Some((name.clone(), merging(schema)?)))
        .collect();
    (!properties.is_empty()).then(|| json!({"type": "object", "properties": properties}))
}

fn references(spec: &Value) -> Value {
    let mut places = Vec::new();
    collect(spec, "spec", &mut places);
    let of_kind = |kind: &str| {
        let of_kind = places.iter().filter(|(one, _)| *one == kind);
        let fields: Vec<_> = of_kind.map(|(_, path)| json!({"path": path, "kind": "WindowsNodePool"})).collect();
        json!({"kind": kind, "version": "v1", "fieldSpecs": fields})
    };
    json!({"nameReference": [of_kind("ConfigMap"), of_kind("Secret")]})
}

/// Collects the kind and path of all references to objects in the operator's namespace.
fn collect(schema: &Value, path: &str, places: &mut Vec<(&'static str, String)>) {
    let schema = schema.get("items").unwrap_or(schema);
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}/{name}");
        let name = name.to_lowercase();
        match name.trim_end_matches('s') {
            one if one.ends_with("configmapref") => places.push(("ConfigMap", format!("{path}/name"))),
            one if one.ends_with("secretref") => places.push(("Secret", format!("{path}/name"))),
            _ => collect(schema, &path, places),
        }
    }
}
