//! Server-side apply as kubectl does it, without starting kubectl, which takes longer than the apply of most objects in tests.

use std::collections::HashMap;

use anyhow::{Context as _, Result, anyhow};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, TypeMeta, ValidationDirective},
    discovery::{Scope, pinned_kind},
};
use serde::Deserialize as _;
use serde_json::Value;

/// Applies the objects of a stream of YAML documents in their order, and overrides other field managers. Unknown fields are refused.
pub(crate) async fn yaml(client: &Client, manifests: &str) -> Result<()> {
    let mut kinds = HashMap::new();
    for document in serde_yaml::Deserializer::from_str(manifests) {
        for object in items(Value::deserialize(document)?) {
            one(client, &mut kinds, &object).await?;
        }
    }
    Ok(())
}

/// Returns the objects of a document: the items of a List, nothing for an empty document, and otherwise the object itself.
fn items(document: Value) -> Vec<Value> {
    match document {
        Value::Null => Vec::new(),
        Value::Object(mut list) if list.get("kind").is_some_and(|kind| kind == "List") => match list.remove("items") {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        },
        object => vec![object],
    }
}

async fn one(
    client: &Client,
    kinds: &mut HashMap<GroupVersionKind, (ApiResource, Scope)>,
    object: &Value,
) -> Result<()> {
    let types: TypeMeta = serde_json::from_value(object.clone()).context("an object has no kind")?;
    let kind = GroupVersionKind::try_from(&types)?;
    let name = object["metadata"]["name"].as_str().with_context(|| format!("a {} has no name", kind.kind))?;
    let apply = async {
        if !kinds.contains_key(&kind) {
            let (resource, capabilities) = pinned_kind(client, &kind).await?;
            kinds.insert(kind.clone(), (resource, capabilities.scope));
        }
        let (resource, scope) = &kinds[&kind];
        let objects: Api<DynamicObject> = match scope {
            Scope::Cluster => Api::all_with(client.clone(), resource),
            Scope::Namespaced => {
                let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
                Api::namespaced_with(client.clone(), namespace, resource)
            }
        };
        let mut how = PatchParams::apply("kubectl").force();
        how.field_validation = Some(ValidationDirective::Strict);
        objects.patch(name, &how, &Patch::Apply(object)).await
    };
    apply.await.map(drop).map_err(|error: kube::Error| anyhow!("cannot apply {} {name}: {error}", kind.kind))
}
