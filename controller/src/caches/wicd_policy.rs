//! Check that the cluster's admission policies match those of this release.
//!
//! The rights of wicd depend on these policies: the ClusterRole of all hosts lets every wicd patch every Node, and only the
//! `ValidatingAdmissionPolicies` of `deploy/base/policies.yaml` limit each wicd to its own Node. So the ClusterRole is bound only while the API
//! server has exactly these policies, with bindings that deny.

use api::names::{COMPONENT, DEFAULT_NAMESPACE};
use k8s_openapi::{
    Resource,
    api::admissionregistration::v1::{
        ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicySpec,
    },
};
use kube::ResourceExt as _;
use serde::{Deserialize as _, de::DeserializeOwned};
use serde_json::Value;

macro_rules! policy {
    ($name:literal) => {
        include_str!(concat!("../../../deploy/chart/windows-node-pools/files/", $name, ".yaml"))
    };
}

/// Manifests of the policies that restrict wicd, and cloud-node-managers, for which wicd gets tokens.
const OF_WICD: &str = policy!("policies/wicd");
/// Manifests of the policies that restrict the operator and other clients.
const OTHERS: [&str; 6] = [
    policy!("policies/instances"),
    policy!("policies/services"),
    policy!("policies/root-ca"),
    policy!("policies/operator-rbac"),
    policy!("policies/operator-nodes"),
    policy!("policies/operator-approvals"),
];
/// Remedy that restores the policies of this release, for messages.
pub(crate) const REMEDY: &str = "install this release again with the tool that installed it, or under OLM apply its policies: \
                                 kubectl apply --server-side --force-conflicts -f deploy/base/policies.yaml";

/// Observed state of an object at the API server.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Observed<K> {
    /// The API server has not answered yet.
    #[default]
    NotRead,
    /// The object does not exist.
    Missing,
    /// The object exists.
    There(Box<K>),
    /// The API server refuses to show the object, for this reason.
    Unreadable(String),
}

impl<K> Observed<K> {
    /// Returns the object if it exists.
    pub fn object(&self) -> Option<&K> {
        match self {
            Self::There(object) => Some(object),
            Self::NotRead | Self::Missing | Self::Unreadable(_) => None,
        }
    }
}

/// Policy and its binding, which have the same name.
#[derive(Clone, Debug, PartialEq)]
pub struct Guard<P, B> {
    /// Name of the policy and the binding.
    pub name: String,
    /// Policy.
    pub policy: P,
    /// Binding.
    pub binding: B,
}

/// Policy with its binding as this release ships them.
pub type Shipped = Guard<ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding>;
/// Policy with its binding as observed at the API server.
pub type ObservedGuard = Guard<Observed<ValidatingAdmissionPolicy>, Observed<ValidatingAdmissionPolicyBinding>>;

/// Object that does not match this release.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {kind} {name} {deviation}")]
pub struct PolicyFault {
    /// Kind of the object.
    pub kind: &'static str,
    /// Name of the object.
    pub name: String,
    /// Deviation from this release.
    pub deviation: Deviation,
}

/// Deviation of a policy or a binding from this release.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Deviation {
    /// The object is missing, or has not been read yet.
    #[error("is missing")]
    Missing,
    /// The object is being deleted.
    #[error("is being deleted")]
    Leaving,
    /// The object was changed, or belongs to another release. Names the field that differs.
    #[error("does not match this release: {0} differs")]
    Differs(&'static str),
    /// The object cannot be read. Has the error of the API server.
    #[error("cannot be read: {0}; check the API server and the operator's rights")]
    Unreadable(String),
}

/// Returns the manifests of all policies.
pub(crate) fn texts() -> impl Iterator<Item = &'static str> {
    [OF_WICD].into_iter().chain(OTHERS)
}

/// Returns the user name of an operator with the default ServiceAccount in this namespace.
pub fn default_user(namespace: &str) -> String {
    format!("system:serviceaccount:{namespace}:{COMPONENT}")
}

/// Returns the policies on which the rights of wicd depend, as this release ships them for an operator in this namespace, sorted by name.
pub fn shipped(namespace: &str) -> Vec<Shipped> {
    // These policies do not name the operator.
    parse(OF_WICD, namespace, "")
}

/// Returns the policies that restrict the operator, which has this user name, and other clients, sorted by name.
pub fn others(namespace: &str, user: &str) -> Vec<Shipped> {
    let mut guards: Vec<Shipped> = OTHERS.iter().flat_map(|text| parse(text, namespace, user)).collect();
    guards.sort_by(|a, b| a.name.cmp(&b.name));
    guards
}

fn parse(text: &str, namespace: &str, user: &str) -> Vec<Shipped> {
    // Replaces the default namespace and ServiceAccount of the manifests, as the Helm chart does.
    let text = text.replace(DEFAULT_NAMESPACE, namespace);
    let text = text.replace(&format!("\"{}\"", default_user(namespace)), &format!("\"{user}\""));
    let documents: Vec<Value> =
        serde_yaml::Deserializer::from_str(&text).filter_map(|d| Value::deserialize(d).ok()).collect();
    let bindings: Vec<ValidatingAdmissionPolicyBinding> = of_kind(&documents);
    let policies: Vec<ValidatingAdmissionPolicy> = of_kind(&documents);
    let mut guards: Vec<Shipped> = policies
        .into_iter()
        .filter_map(|policy| {
            let name = policy.name_any();
            let binding = bindings.iter().find(|b| b.name_any() == name)?.clone();
            Some(Guard { name, policy, binding })
        })
        .collect();
    guards.sort_by(|a, b| a.name.cmp(&b.name));
    guards
}

fn of_kind<K: Resource + DeserializeOwned>(documents: &[Value]) -> Vec<K> {
    let of_kind = documents.iter().filter(|d| d["kind"] == K::KIND);
    of_kind.filter_map(|d| serde_json::from_value(d.clone()).ok()).collect()
}

/// Returns the first difference from the `shipped` policies, or `None` if all of them are in force. An empty list of shipped policies counts as a
/// missing policy.
pub fn fault(shipped: &[Shipped], seen: &[ObservedGuard]) -> Option<PolicyFault> {
    if shipped.is_empty() {
        let missing = fault_in::<ValidatingAdmissionPolicy>("windows-node-pools-wicd-nodes");
        return Some(missing(Deviation::Missing));
    }
    shipped.iter().find_map(|guard| fault_of(guard, seen))
}

/// Returns the first difference of one policy or its binding from the release, or `None` if both are in force.
pub fn fault_of(guard: &Shipped, seen: &[ObservedGuard]) -> Option<PolicyFault> {
    let in_policy = fault_in::<ValidatingAdmissionPolicy>(&guard.name);
    let in_binding = fault_in::<ValidatingAdmissionPolicyBinding>(&guard.name);
    let Some(seen) = seen.iter().find(|s| s.name == guard.name) else {
        return Some(in_policy(Deviation::Missing));
    };
    let policy = object(&seen.policy).and_then(|policy| same_policy(&guard.policy, policy));
    let binding = || object(&seen.binding).and_then(|binding| same_binding(&guard.binding, binding));
    policy.map_err(in_policy).and_then(|()| binding().map_err(in_binding)).err()
}

fn fault_in<K: Resource>(name: &str) -> impl Fn(Deviation) -> PolicyFault {
    |deviation| PolicyFault { kind: K::KIND, name: name.to_owned(), deviation }
}

fn object<K: kube::Resource>(observed: &Observed<K>) -> Result<&K, Deviation> {
    match observed {
        Observed::NotRead | Observed::Missing => Err(Deviation::Missing),
        Observed::Unreadable(why) => Err(Deviation::Unreadable(why.clone())),
        Observed::There(object) if object.meta().deletion_timestamp.is_some() => Err(Deviation::Leaving),
        Observed::There(object) => Ok(object),
    }
}

/// Fails with the name of the first field that differs.
fn all_same(fields: &[(&'static str, bool)]) -> Result<(), Deviation> {
    fields.iter().find(|(_, same)| !same).map_or(Ok(()), |(field, _)| Err(Deviation::Differs(field)))
}

fn same_policy(shipped: &ValidatingAdmissionPolicy, seen: &ValidatingAdmissionPolicy) -> Result<(), Deviation> {
    let shipped = canonical(shipped.spec.clone().unwrap_or_default());
    let seen = canonical(seen.spec.clone().unwrap_or_default());
    // Fields that a user is likely to change come first.
    all_same(&[
        ("spec.failurePolicy", shipped.failure_policy == seen.failure_policy),
        ("spec.matchConditions", shipped.match_conditions == seen.match_conditions),
        ("spec.matchConstraints", shipped.match_constraints == seen.match_constraints),
        ("spec.validations", shipped.validations == seen.validations),
        ("spec.variables", shipped.variables == seen.variables),
        ("spec", shipped == seen),
    ])
}

/// Converts a policy to a canonical form for comparison: with the API server's defaults, and without line breaks, which tools that rewrite YAML
/// (kustomize, Helm) may move. No shipped expression depends on line breaks.
fn canonical(mut spec: ValidatingAdmissionPolicySpec) -> ValidatingAdmissionPolicySpec {
    spec.failure_policy.get_or_insert_with(|| "Fail".into());
    if let Some(constraints) = &mut spec.match_constraints {
        constraints.match_policy.get_or_insert_with(|| "Equivalent".into());
        constraints.namespace_selector.get_or_insert_default();
        constraints.object_selector.get_or_insert_default();
        for rule in constraints.resource_rules.iter_mut().flatten() {
            rule.scope.get_or_insert_with(|| "*".into());
        }
    }
    let one_line = |text: &mut String| *text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    spec.match_conditions.iter_mut().flatten().for_each(|c| one_line(&mut c.expression));
    spec.variables.iter_mut().flatten().for_each(|v| one_line(&mut v.expression));
    for validation in spec.validations.iter_mut().flatten() {
        one_line(&mut validation.expression);
        validation.message.iter_mut().for_each(one_line);
    }
    spec
}

/// Checks that a binding denies and has the same scope as the shipped one. Further actions such as `Audit` do not weaken it.
fn same_binding(
    shipped: &ValidatingAdmissionPolicyBinding,
    seen: &ValidatingAdmissionPolicyBinding,
) -> Result<(), Deviation> {
    let (shipped, seen) = (&shipped.spec, &seen.spec);
    all_same(&[
        ("spec.validationActions", seen.validation_actions.iter().any(|action| action == "Deny")),
        ("spec.policyName", seen.policy_name == shipped.policy_name),
        ("spec.matchResources", seen.match_resources == shipped.match_resources),
        ("spec.paramRef", seen.param_ref == shipped.param_ref),
    ])
}

#[cfg(test)]
#[path = "wicd_policy_tests.rs"]
mod tests;
