//! Tests of the check of admission policies.

use serde_json::json;

use super::*;

/// Index of the policy for Nodes in the sorted list.
const NODES: usize = 1;
/// Index of the policy for certificate requests in the sorted list.
const REQUESTS: usize = 2;

fn shipped() -> Vec<Shipped> {
    super::shipped(DEFAULT_NAMESPACE)
}

fn seen() -> Vec<ObservedGuard> {
    seen_in(DEFAULT_NAMESPACE)
}

/// Returns the policies as installed for an operator in a namespace.
fn seen_in(namespace: &str) -> Vec<ObservedGuard> {
    let there = |guard: Shipped| Guard {
        name: guard.name,
        policy: Observed::There(Box::new(guard.policy)),
        binding: Observed::There(Box::new(guard.binding)),
    };
    super::shipped(namespace).into_iter().map(there).collect()
}

fn patched<K: serde::Serialize + DeserializeOwned>(object: &K, pointer: &str, value: Value) -> K {
    let mut json = serde_json::to_value(object).unwrap();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match json.pointer_mut(parent).unwrap() {
        Value::Array(items) => items[key.parse::<usize>().unwrap()] = value,
        fields => fields[key] = value,
    }
    serde_json::from_value(json).unwrap()
}

fn with_policy(pointer: &str, value: Value) -> Vec<ObservedGuard> {
    let mut seen = seen();
    seen[NODES].policy = Observed::There(Box::new(patched(seen[NODES].policy.object().unwrap(), pointer, value)));
    seen
}

fn with_binding(value: Value) -> Vec<ObservedGuard> {
    let mut seen = seen();
    seen[REQUESTS].binding =
        Observed::There(Box::new(patched(seen[REQUESTS].binding.object().unwrap(), "/spec", value)));
    seen
}

#[test]
fn the_shipped_policies_are_in_force() {
    let names: Vec<String> = shipped().into_iter().map(|g| g.name).collect();
    let expected = ["node-manager-nodes", "wicd-nodes", "wicd-requests", "wicd-tokens"];
    assert_eq!(names, expected.map(|name| format!("windows-node-pools-{name}")));
    assert_eq!(fault(&shipped(), &seen()), None);
}

#[test]
fn policies_of_another_namespace_are_not_in_force() {
    assert_eq!(fault(&super::shipped("elsewhere"), &seen_in("elsewhere")), None);
    for (of_operator, installed) in [("elsewhere", DEFAULT_NAMESPACE), (DEFAULT_NAMESPACE, "elsewhere")] {
        let found = fault(&super::shipped(of_operator), &seen_in(installed)).unwrap();
        assert!(found.to_string().contains("windows-node-pools-wicd-tokens"), "{found}");
    }
}

#[test]
fn defaults_of_the_api_server_are_not_a_difference() {
    let mut as_stored =
        with_policy("/spec/matchConstraints/resourceRules/0/operations", json!(["CREATE", "UPDATE", "DELETE"]));
    let policy = as_stored[NODES].policy.object().unwrap().clone();
    let mut spec = canonical(policy.spec.clone().unwrap());
    // Expression as kustomize writes it.
    let expression = &mut spec.validations.as_mut().unwrap()[2].expression;
    *expression = expression.replace(" ||", " ||\n\n ");
    as_stored[NODES].policy = Observed::There(Box::new(ValidatingAdmissionPolicy { spec: Some(spec), ..policy }));
    assert_eq!(fault(&shipped(), &as_stored), None);
    let audited = json!({"policyName": "windows-node-pools-wicd-requests", "validationActions": ["Audit", "Deny"]});
    assert_eq!(fault(&shipped(), &with_binding(audited)), None);
}

#[test]
fn a_weakened_policy_is_not_in_force() {
    let name = "windows-node-pools-wicd-requests";
    let binding = |more: Value| {
        let mut spec = json!({"policyName": name, "validationActions": ["Deny"]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        with_binding(spec)
    };
    for (what, seen) in [
        ("spec.failurePolicy", with_policy("/spec/failurePolicy", json!("Ignore"))),
        ("spec.matchConditions", with_policy("/spec/matchConditions/0/expression", json!("false"))),
        ("spec.matchConstraints", with_policy("/spec/matchConstraints/resourceRules/0/resources", json!(["nodes"]))),
        ("spec.matchConstraints", with_policy("/spec/matchConstraints/resourceRules/0/scope", json!("Namespaced"))),
        ("spec.validations", with_policy("/spec/validations/0/expression", json!("true"))),
        ("spec.variables", with_policy("/spec/variables/1/expression", json!("[]"))),
        ("spec.validationActions", binding(json!({"validationActions": ["Audit"]}))),
        ("spec.validationActions", binding(json!({"validationActions": ["Warn", "Audit"]}))),
        ("spec.policyName", binding(json!({"policyName": "other"}))),
        ("spec.matchResources", binding(json!({"matchResources": {"namespaceSelector": {}}}))),
        ("spec.paramRef", binding(json!({"paramRef": {"name": "x"}}))),
    ] {
        let found = fault(&shipped(), &seen);
        assert_eq!(found.map(|fault| fault.deviation), Some(Deviation::Differs(what)));
    }
}

#[test]
fn a_missing_policy_is_not_in_force() {
    for (shipped, seen) in [(shipped(), Vec::new()), (Vec::new(), seen())] {
        assert_eq!(fault(&shipped, &seen).map(|fault| fault.deviation), Some(Deviation::Missing));
    }
    for gone in [Observed::Missing, Observed::NotRead] {
        let mut without = seen();
        without[REQUESTS].policy = gone;
        let found = fault(&shipped(), &without).unwrap().to_string();
        assert_eq!(found, "the ValidatingAdmissionPolicy windows-node-pools-wicd-requests is missing");
    }
    let mut without = seen();
    without[NODES].binding = Observed::Missing;
    let found = fault(&shipped(), &without).unwrap().to_string();
    assert_eq!(found, "the ValidatingAdmissionPolicyBinding windows-node-pools-wicd-nodes is missing");
    without[NODES].binding = Observed::Unreadable("no right".into());
    assert!(
        fault(&shipped(), &without)
            .unwrap()
            .to_string()
            .ends_with("cannot be read: no right; check the API server and the operator's rights")
    );

    let mut leaving = seen();
    let mut policy = leaving[NODES].policy.object().unwrap().clone();
    policy.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
    leaving[NODES].policy = Observed::There(Box::new(policy));
    assert_eq!(fault(&shipped(), &leaving).map(|fault| fault.deviation), Some(Deviation::Leaving));
}
