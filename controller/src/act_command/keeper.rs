//! Whether a tool keeps a pool as Git has it, and would take a change back. Pure.

use api::{
    WindowsNodePool,
    names::{LAST_APPLIED, of_gitops},
};
use kube::ResourceExt;
use serde_json::Value;

/// A tool that applies what is in Git.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    ArgoCd,
    Flux,
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Self::ArgoCd => "Argo CD",
            Self::Flux => "Flux",
        }
    }

    /// Whether this is one of the names under which it applies objects.
    fn is_manager(self, manager: &str) -> bool {
        match self {
            Self::ArgoCd => manager.starts_with("argocd"),
            Self::Flux => matches!(manager, "kustomize-controller" | "helm-controller"),
        }
    }

    fn of(pool: &WindowsNodePool) -> Option<Self> {
        let (labels, annotations) = (pool.labels(), pool.annotations());
        let has_manager = |tool: Self| {
            let managers = pool.managed_fields().iter().filter_map(|entry| entry.manager.as_deref());
            managers.into_iter().any(|manager| tool.is_manager(manager))
        };
        if annotations.contains_key(of_gitops::ARGO_CD_TRACKING_ID) || has_manager(Self::ArgoCd) {
            Some(Self::ArgoCd)
        } else if of_gitops::FLUX_LABELS.iter().any(|label| labels.contains_key(*label)) || has_manager(Self::Flux) {
            Some(Self::Flux)
        } else {
            None
        }
    }
}

/// Warns if the pool is kept as Git has it, and the file sets this field of `spec.rollout` or may do so.
pub(super) fn warning(pool: &WindowsNodePool, fields: &[&str]) -> Option<String> {
    let tool = Tool::of(pool)?;
    let name = tool.name();
    let set = fields.iter().find(|field| is_set(pool, tool, field));
    Some(match set {
        Some(field) => format!(
            "{name} sets spec.rollout.{field} of this pool and takes the change back: change it in Git, or leave the field out there"
        ),
        None => format!(
            "{name} keeps this pool as Git has it; the change stays as long as its file does not set {}",
            fields.iter().map(|field| format!("spec.rollout.{field}")).collect::<Vec<_>>().join(" and ")
        ),
    })
}

/// Whether the tool has set the field: the API server says so for server-side apply, and the annotation for the older way.
fn is_set(pool: &WindowsNodePool, tool: Tool, field: &str) -> bool {
    let key = format!("/f:spec/f:rollout/f:{field}");
    let owns = pool.managed_fields().iter().any(|entry| {
        entry.manager.as_deref().is_some_and(|manager| tool.is_manager(manager))
            && entry.fields_v1.as_ref().is_some_and(|fields| fields.0.pointer(&key).is_some())
    });
    let applied = pool.annotations().get(LAST_APPLIED).and_then(|text| serde_json::from_str::<Value>(text).ok());
    owns || applied.is_some_and(|applied| applied.pointer(&format!("/spec/rollout/{field}")).is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tool_that_takes_a_change_back_is_named() {
        let argo =
            json!({of_gitops::ARGO_CD_TRACKING_ID: "pools:windowsmachineconfig.openshift.io/WindowsNodePool:/a"});
        let owner = |manager: &str, field: &str| {
            json!([{"manager": manager, "operation": "Apply", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:spec": {"f:rollout": {(format!("f:{field}")): {}}}}}])
        };
        let applied = |field: &str| json!({"spec": {"rollout": {field: true}}}).to_string();
        let reverts = |tool: &str| Some(format!("{tool} sets spec.rollout.paused of this pool and takes"));
        let keeps = |tool: &str| Some(format!("{tool} keeps this pool as Git has it; the change stays"));
        for (about, metadata, expected) in [
            ("by hand", json!({}), None),
            ("by hand, applied", json!({"annotations": {LAST_APPLIED: applied("paused")}}), None),
            ("by another manager", json!({"managedFields": owner("kubectl", "paused")}), None),
            ("Argo CD, by its mark", json!({"annotations": argo}), keeps("Argo CD")),
            (
                "Argo CD, by its manager",
                json!({"managedFields": owner("argocd-controller", "order")}),
                keeps("Argo CD"),
            ),
            ("Argo CD sets it", json!({"managedFields": owner("argocd-controller", "paused")}), reverts("Argo CD")),
            (
                "Argo CD sets it without server-side apply",
                json!({"annotations": {of_gitops::ARGO_CD_TRACKING_ID: "a", LAST_APPLIED: applied("paused")}}),
                reverts("Argo CD"),
            ),
            (
                "Argo CD, and the annotation is no JSON",
                json!({"annotations": {of_gitops::ARGO_CD_TRACKING_ID: "a", LAST_APPLIED: "{"}}),
                keeps("Argo CD"),
            ),
            ("Flux, by its label", json!({"labels": {"kustomize.toolkit.fluxcd.io/name": "pools"}}), keeps("Flux")),
            ("Flux sets it", json!({"managedFields": owner("kustomize-controller", "paused")}), reverts("Flux")),
            ("Flux sets another", json!({"managedFields": owner("helm-controller", "order")}), keeps("Flux")),
        ] {
            let mut pool = WindowsNodePool::new("a", api::WindowsNodePoolSpec::default());
            pool.metadata = serde_json::from_value(metadata).unwrap();
            let found = warning(&pool, &["paused", "pausedUntil"]);
            match (&found, expected) {
                (Some(found), Some(expected)) => assert!(found.starts_with(&expected), "{about}: {found}"),
                (found, expected) => assert_eq!(*found, expected, "{about}"),
            }
        }
    }
}
