//! What wicd on one host may do in the cluster, as RBAC objects.
//!
//! wicd authenticates as user `system:wicd-node:<node>`, group `system:wicd-nodes`. The group's rights are fixed and ship with the
//! operator (`deploy/base`): to post and read certificate requests. What depends on the cluster is built here: the right to its own Node,
//! one pair of objects for each host, and the right to read the services ConfigMaps that are in use. RBAC cannot look into an object, so which
//! annotations of the Node may change is said by the `ValidatingAdmissionPolicy` `windows-node-pools-wicd-nodes`.
//!
//! Nobody can grant what they do not hold, so the operator's own role contains every right in here.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleRef, Subject},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::api::ObjectMeta;

/// Stands before the node's name in the names of its objects. An admission policy holds the operator to this prefix.
pub const NAME_PREFIX: &str = "windows-node-pools:wicd:";
/// The Role, and the RoleBinding that ships with the operator, for the services ConfigMaps.
pub const SERVICES_ROLE: &str = "windows-node-pools-wicd-services";

const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

/// The right of the wicd of `node` to its own Node object: to read it, to watch it (by the field selector `metadata.name`) and to patch it.
///
/// `owner` is the host's WindowsInstance, so that the rights end with it at the latest.
pub fn objects(node: &str, owner: OwnerReference) -> (ClusterRole, ClusterRoleBinding) {
    let name = format!("{NAME_PREFIX}{node}");
    let metadata = ObjectMeta {
        name: Some(name.clone()),
        labels: Some(labels()),
        owner_references: Some(vec![owner]),
        ..Default::default()
    };
    let role = ClusterRole {
        metadata: metadata.clone(),
        rules: Some(vec![PolicyRule {
            api_groups: Some(vec![String::new()]),
            resources: Some(vec!["nodes".into()]),
            resource_names: Some(vec![node.to_owned()]),
            verbs: ["get", "list", "watch", "patch"].map(String::from).to_vec(),
            ..Default::default()
        }]),
        ..Default::default()
    };
    let binding = ClusterRoleBinding {
        metadata,
        role_ref: RoleRef { api_group: Some(RBAC_GROUP.into()), kind: "ClusterRole".into(), name },
        subjects: Some(vec![Subject {
            api_group: Some(RBAC_GROUP.into()),
            kind: "User".into(),
            name: format!("{}{node}", api::names::user::WICD_PREFIX),
            namespace: None,
        }]),
    };
    (role, binding)
}

/// The right of every wicd to the services ConfigMaps called `live`, in the operator's `namespace`.
pub fn services_role(namespace: &str, live: &BTreeSet<String>) -> Role {
    // To RBAC an empty list of names means every name, so no ConfigMap in use must give no rule.
    let rules = (!live.is_empty()).then(|| PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec!["configmaps".into()]),
        resource_names: Some(live.iter().cloned().collect()),
        verbs: ["get", "list", "watch"].map(String::from).to_vec(),
        ..Default::default()
    });
    Role {
        metadata: ObjectMeta {
            name: Some(SERVICES_ROLE.into()),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels()),
            ..Default::default()
        },
        rules: Some(rules.into_iter().collect()),
    }
}

fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([("app.kubernetes.io/managed-by".into(), api::names::COMPONENT.into())])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> OwnerReference {
        OwnerReference {
            api_version: "windowsmachineconfig.openshift.io/v1alpha1".into(),
            kind: "WindowsInstance".into(),
            name: "win-1".into(),
            uid: "u-1".into(),
            ..Default::default()
        }
    }

    #[test]
    fn a_host_gets_its_own_node_and_nothing_else() {
        let (role, binding) = objects("win-1", owner());
        let rules = role.rules.unwrap();
        let [rule] = rules.as_slice() else { panic!("one rule, not {rules:?}") };
        assert_eq!(rule.resources.as_deref(), Some(&["nodes".to_owned()][..]));
        assert_eq!(rule.resource_names.as_deref(), Some(&["win-1".to_owned()][..]));
        assert_eq!(rule.verbs, ["get", "list", "watch", "patch"]);
        assert_eq!(binding.role_ref.name, "windows-node-pools:wicd:win-1");
        assert_eq!(role.metadata.name, Some(binding.role_ref.name));
        let subjects = binding.subjects.unwrap();
        assert_eq!(subjects.len(), 1);
        assert_eq!((subjects[0].kind.as_str(), subjects[0].name.as_str()), ("User", "system:wicd-node:win-1"));
        assert_eq!(role.metadata.owner_references, Some(vec![owner()]));
    }

    #[test]
    fn services_are_readable_by_name_only() {
        let live = BTreeSet::from(["windows-services-1".to_owned(), "windows-services-2".to_owned()]);
        let rules = services_role("ns", &live).rules.unwrap();
        assert_eq!(rules.len(), 1);
        assert_eq!(rules[0].resource_names, Some(live.into_iter().collect()));
    }

    #[test]
    fn no_services_means_no_right_and_not_every_right() {
        assert_eq!(services_role("ns", &BTreeSet::new()).rules, Some(vec![]));
    }
}
