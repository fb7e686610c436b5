//! Rights of hosts' daemons (wicd) in the cluster, as RBAC objects.
//!
//! wicd authenticates as user `system:wicd-node:<node>` in the group `system:wicd-nodes`. The rights of the group are fixed and ship with the
//! operator (`deploy/base/wicd.yaml`). RBAC cannot limit a user to its own objects or to parts of an object, so the `ValidatingAdmissionPolicy`
//! [`OWNER_POLICY`] decides which Node a wicd may change, and which parts of it. Objects that depend on the cluster are built here: the binding of
//! the group's role, which exists only while that policy is in force ([`wicd_rights`](crate::caches::wicd_rights)), and the right to read the
//! services ConfigMaps that are in use.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::{
        admissionregistration::v1::ValidatingAdmissionPolicyBinding,
        rbac::v1::{ClusterRoleBinding, PolicyRule, Role, RoleRef, Subject},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{Resource as _, api::ObjectMeta};

/// Name of the ClusterRole of all hosts' daemons, and of its binding. An admission policy allows the operator no other pair.
pub const BINDING: &str = "windows-node-pools-wicd";
/// Policy that restricts a wicd to its own Node. Its binding owns [`BINDING`].
pub const OWNER_POLICY: &str = "windows-node-pools-wicd-nodes";
/// Name of the Role for the services ConfigMaps, and of its RoleBinding, which ships with the operator.
pub const SERVICES_ROLE: &str = "windows-node-pools-wicd-services";

const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

/// Returns the binding that grants the role to all hosts' daemons.
///
/// `owner` is the binding of the policy that restricts the daemons. If it is deleted, the garbage collector deletes the returned binding with it,
/// even while no operator runs.
pub fn binding(owner: &ValidatingAdmissionPolicyBinding) -> ClusterRoleBinding {
    let owner = owner.owner_ref(&()).map(|o| OwnerReference { controller: None, ..o });
    ClusterRoleBinding {
        metadata: ObjectMeta {
            name: Some(BINDING.into()),
            labels: Some(labels()),
            owner_references: owner.map(|o| vec![o]),
            ..Default::default()
        },
        role_ref: RoleRef { api_group: Some(RBAC_GROUP.into()), kind: "ClusterRole".into(), name: BINDING.into() },
        subjects: Some(vec![Subject {
            api_group: Some(RBAC_GROUP.into()),
            kind: "Group".into(),
            name: api::names::user::WICD_GROUP.into(),
            namespace: None,
        }]),
    }
}

/// Returns the role that lets every wicd read the services ConfigMaps `live` in the operator's `namespace`.
pub fn services_role(namespace: &str, live: &BTreeSet<String>) -> Role {
    // For RBAC, an empty list of names means every name, so without a ConfigMap in use there must be no rule.
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
    BTreeMap::from([(api::names::MANAGED_BY.into(), api::names::COMPONENT.into())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_hosts_share_one_binding_that_ends_with_the_policy() {
        let mut owner = ValidatingAdmissionPolicyBinding::default();
        owner.metadata.name = Some(OWNER_POLICY.into());
        owner.metadata.uid = Some("u-1".into());
        let binding = binding(&owner);
        assert_eq!(binding.role_ref.name, "windows-node-pools-wicd");
        let subjects = binding.subjects.unwrap();
        assert_eq!(subjects.len(), 1);
        assert_eq!((subjects[0].kind.as_str(), subjects[0].name.as_str()), ("Group", "system:wicd-nodes"));
        let owners = binding.metadata.owner_references.unwrap();
        assert_eq!(owners.len(), 1);
        assert_eq!((owners[0].kind.as_str(), owners[0].uid.as_str()), ("ValidatingAdmissionPolicyBinding", "u-1"));
        assert_eq!((owners[0].controller, owners[0].block_owner_deletion), (None, None));
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
