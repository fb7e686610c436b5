//! Comparison of the API server's CRDs with those of this release. The API server drops or refuses fields that an older CRD lacks.

use api::Reason;
use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

/// Fault of a CRD.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CrdFault {
    /// Missing CRD.
    #[error("the CustomResourceDefinition {0} is missing")]
    Missing(String),
    /// CRD of another product with the same name.
    #[error("the CustomResourceDefinition {0} has another scope or kind, so it does not belong to this operator")]
    Conflict(String),
    /// CRD whose objects are stored in an unknown version.
    #[error("the CustomResourceDefinition {name} lists the stored version {version}, which this release does not know")]
    VersionUnknown {
        /// Name of the CRD.
        name: String,
        /// Unknown version.
        version: String,
    },
    /// CRD of an earlier release, which lacks a version or a property.
    #[error("the CustomResourceDefinition {name} is of an earlier release: it lacks {lacks}")]
    Outdated {
        /// Name of the CRD.
        name: String,
        /// Missing part of the CRD.
        lacks: String,
    },
}

impl CrdFault {
    /// Returns the reason for conditions and checks.
    #[expect(clippy::unused_self, reason = "like other error types, most of which have several reasons")]
    pub(crate) fn reason(&self) -> Reason {
        Reason::CrdInvalid
    }

    /// Returns the remedy of the fault.
    pub(crate) fn remedy(&self) -> String {
        match self {
            Self::Missing(_) => "install the operator again; its CRDs are in crds/".into(),
            Self::Conflict(name) => format!(
                "find out which product uses it (kubectl get crd {name} -o yaml), and remove that product and the CRD, or use another cluster: \
                 two products cannot share a name"
            ),
            Self::VersionUnknown { version, .. } => {
                format!("install the release that stored objects as {version}, or a newer one: this release cannot read them")
            }
            Self::Outdated { .. } => {
                "apply the CRDs of this release: kubectl apply --server-side -k crds; helm upgrade does it unless crds.enabled is false".into()
            }
        }
    }
}

/// Returns the first fault of the API server's CRDs that prevents this release from working. A CRD that the operator may not read counts as valid.
pub(crate) async fn fault(client: &Client) -> kube::Result<Option<CrdFault>> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for shipped in api::crds() {
        let name = shipped.name_any();
        let found = match crds.get_opt(&name).await {
            Ok(None) => Some(CrdFault::Missing(name)),
            Ok(Some(crd)) => conflict(&shipped, &crd).or_else(|| outdated(&shipped, &crd)),
            Err(kube::Error::Api(status)) if status.is_forbidden() => None,
            Err(error) => return Err(error),
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Returns the fault that prevents an update of an existing CRD to this release.
pub(crate) fn conflict(shipped: &CustomResourceDefinition, crd: &CustomResourceDefinition) -> Option<CrdFault> {
    let names = |crd: &CustomResourceDefinition| {
        (crd.spec.scope.clone(), crd.spec.names.kind.clone(), crd.spec.names.plural.clone())
    };
    if names(shipped) != names(crd) {
        return Some(CrdFault::Conflict(crd.name_any()));
    }
    let known: BTreeSet<&str> = shipped.spec.versions.iter().map(|v| v.name.as_str()).collect();
    let stored = crd.status.as_ref().and_then(|s| s.stored_versions.as_deref()).unwrap_or_default();
    let version = stored.iter().find(|v| !known.contains(v.as_str()))?;
    Some(CrdFault::VersionUnknown { name: crd.name_any(), version: version.clone() })
}

/// Returns a fault if the API server's CRD lacks a version of this release, or a property of one.
pub(crate) fn outdated(shipped: &CustomResourceDefinition, crd: &CustomResourceDefinition) -> Option<CrdFault> {
    let lacks = shipped.spec.versions.iter().filter(|version| version.served).find_map(|version| {
        let name = &version.name;
        let Some(served) = crd.spec.versions.iter().find(|v| v.name == *name && v.served) else {
            return Some(format!("the version {name}"));
        };
        let property = lacking(&json!(version.schema), &json!(served.schema))?;
        Some(format!("the property {property} of the version {name}"))
    })?;
    Some(CrdFault::Outdated { name: crd.name_any(), lacks })
}

/// Returns the value without the properties that the schema lacks. Server-side apply would refuse them.
pub(crate) fn known(value: &Value, schema: &Value) -> Value {
    match (value, schema["properties"].as_object()) {
        (Value::Object(map), Some(properties)) => {
            let known_of = |(name, value): (&String, &Value)| Some((name.clone(), known(value, properties.get(name)?)));
            Value::Object(map.iter().filter_map(known_of).collect())
        }
        (Value::Array(items), _) => Value::Array(items.iter().map(|item| known(item, &schema["items"])).collect()),
        _ => value.clone(),
    }
}

/// Returns the path of the first property that `shipped` has and `served` lacks. The API server drops such a property without an error. Properties
/// that only `served` has are not faults: they belong to a newer release, whose CRD accepts everything that this release writes.
fn lacking(shipped: &Value, served: &Value) -> Option<String> {
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
        // Items of a list, and values of a map.
        [("items", "[]"), ("additionalProperties", ".*")].into_iter().find_map(|(field, mark)| {
            let schema = shipped.get(field).filter(|schema| schema.is_object())?;
            lacking_below(schema, &served[field], &format!("{path}{mark}"))
        })
    };
    properties.or_else(inner)
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn properties_that_an_older_crd_lacks_are_left_out() {
        let schema = json!({"properties": {
            "a": {"type": "string"},
            "list": {"items": {"properties": {"b": {"type": "string"}}}},
            "map": {"additionalProperties": {"type": "string"}},
        }});
        let value = json!({"a": "1", "new": {"x": 1}, "list": [{"b": "2", "new": 3}], "map": {"any": "4"}});
        assert_eq!(known(&value, &schema), json!({"a": "1", "list": [{"b": "2"}], "map": {"any": "4"}}));
    }

    #[test]
    fn each_fault_has_a_remedy() {
        let (name, version) = ("windowsnodepools.windowsmachineconfig.openshift.io".to_owned(), "v2".to_owned());
        for (fault, remedy) in [
            (CrdFault::Missing(name.clone()), "install the operator again"),
            (CrdFault::Conflict(name.clone()), "remove that product and the CRD"),
            (CrdFault::VersionUnknown { name: name.clone(), version }, "install the release that stored objects as v2"),
            (CrdFault::Outdated { name, lacks: "the version v2".into() }, "kubectl apply --server-side -k crds"),
        ] {
            assert_eq!(fault.reason(), "CrdInvalid");
            assert!(fault.remedy().contains(remedy), "{}", fault.remedy());
        }
    }
}
