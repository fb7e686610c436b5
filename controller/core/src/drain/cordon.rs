//! Ownership of a cordon.
//!
//! `spec.unschedulable` has no owner. The annotation [`CORDONED_BY`] records that the cordon is this operator's, and for which operation; this
//! operator sets a new cordon and the annotation in one patch under `resourceVersion`. A cordon without the annotation belongs to another client and
//! is not lifted, unless it is taken over from the legacy operator. One case cannot be detected: a user who cordons a node that is already cordoned
//! changes nothing on it. [`KEEP_CORDONED`] is for that user.

use api::names::key::{CORDONED_BY, KEEP_CORDONED, UPGRADING};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde_json::{Value, json};

/// Cordon of one operation on one Node. The caller stores this value before it applies the first [`Cordon::take_patch`], so that the owner of the
/// cordon is known after a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cordon {
    /// Id of the operation that holds the cordon.
    pub operation_id: String,
    /// True if another client had cordoned the Node before; it stays cordoned afterwards.
    pub pre_cordoned: bool,
}

/// Reports whether a Node is cordoned, which keeps new pods away.
pub fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

/// Reports whether a Node is cordoned and labelled as upgrading, as the legacy operator leaves it if it stops during an upgrade. Any client may
/// set that label, so the caller must check that this operator has not changed the node yet.
pub fn is_of_the_legacy_operator(node: &Node) -> bool {
    is_cordoned(node) && cordoned_by(node).is_none() && node.labels().get(UPGRADING).is_some_and(|v| v == "true")
}

impl Cordon {
    /// Returns the cordon for an operation. Concludes from the state of the Node before the operation whether another client has cordoned it. Pure.
    ///
    /// A cordon with the annotation of another operation was left behind by an earlier operation of this operator; it is taken over.
    pub fn plan(node: &Node, operation_id: impl Into<String>) -> Self {
        Self { operation_id: operation_id.into(), pre_cordoned: is_cordoned(node) && cordoned_by(node).is_none() }
    }

    /// Reports whether [`Cordon::take_patch`] has nothing left to do: the Node is cordoned, by this operation or by another client.
    pub fn is_held(&self, node: &Node) -> bool {
        self.take_patch(node).is_none()
    }

    /// Returns the merge patch that cordons `node`; `None` if there is nothing to do. A Node that another client has cordoned since [`Cordon::plan`]
    /// is left unchanged: that cordon belongs to the client.
    pub fn take_patch(&self, node: &Node) -> Option<Value> {
        match (is_cordoned(node), cordoned_by(node)) {
            (true, None) => None,
            (true, Some(holder)) if holder == self.operation_id => None,
            _ => Some(json!({
                "metadata": { "annotations": { CORDONED_BY: self.operation_id } },
                "spec": { "unschedulable": true },
            })),
        }
    }

    /// Returns the merge patch that transfers the legacy operator's cordon of a Node to this operation, so that the operation lifts the cordon at its
    /// end; `None` without such a cordon.
    pub fn take_over_patch(&self, node: &Node) -> Option<Value> {
        is_of_the_legacy_operator(node).then(|| {
            json!({ "metadata": { "annotations": { CORDONED_BY: self.operation_id }, "labels": { UPGRADING: null } } })
        })
    }

    /// Returns the merge patch that gives up this operation's cordon; `None` if this operation does not hold it. The Node stays cordoned if another
    /// client had cordoned it before, or if [`KEEP_CORDONED`] is set.
    pub fn release_patch(&self, node: &Node) -> Option<Value> {
        if cordoned_by(node) != Some(&self.operation_id) {
            return None;
        }
        let mut patch = json!({ "metadata": { "annotations": { CORDONED_BY: null } } });
        let keep = node.annotations().get(KEEP_CORDONED).is_some_and(|value| value == "true");
        if !self.pre_cordoned && !keep {
            patch["spec"] = json!({ "unschedulable": null });
        }
        Some(patch)
    }
}

/// Returns the id in the annotation [`CORDONED_BY`] of a Node: the operation that has cordoned the Node, even if another client has lifted the cordon
/// since.
pub fn cordoned_by(node: &Node) -> Option<&str> {
    node.annotations().get(CORDONED_BY).map(String::as_str).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(unschedulable: bool, annotations: &[(&str, &str)]) -> Node {
        let annotations: serde_json::Map<_, _> =
            annotations.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        serde_json::from_value(json!({
            "metadata": { "name": "win-1", "uid": "n1", "resourceVersion": "7", "annotations": annotations },
            "spec": { "unschedulable": unschedulable },
        }))
        .unwrap()
    }

    /// Returns the effect of a merge patch on the cordon: the written annotation, and the written value of unschedulable.
    fn effect(patch: Option<Value>) -> Option<(Value, Option<Value>)> {
        patch.map(|patch| {
            (patch["metadata"]["annotations"][CORDONED_BY].clone(), patch.pointer("/spec/unschedulable").cloned())
        })
    }

    #[test]
    fn an_operation_lifts_only_its_own_cordon() {
        let set = Some((json!("op-1"), Some(json!(true))));
        let lift = Some((Value::Null, Some(Value::Null)));
        let only_forget = Some((Value::Null, None));
        let keep = (KEEP_CORDONED, "true");
        let ours = (CORDONED_BY, "op-1");
        // Columns: case, Node, cordoned by another client before the operation, effect of taking, effect of releasing.
        let cases = vec![
            ("free", node(false, &[]), false, set.clone(), None),
            ("another client's", node(true, &[]), true, None, None),
            ("ours", node(true, &[ours]), false, None, lift.clone()),
            ("ours, uncordoned by another client", node(false, &[ours]), false, set.clone(), lift.clone()),
            ("left behind by an earlier operation", node(true, &[(CORDONED_BY, "op-0")]), false, set.clone(), None),
            ("a stale annotation", node(false, &[(CORDONED_BY, "op-0")]), false, set.clone(), None),
            ("an empty annotation owns nothing", node(true, &[(CORDONED_BY, "")]), true, None, None),
            ("ours, to be kept", node(true, &[ours, keep]), false, None, only_forget.clone()),
            ("keep must be true", node(true, &[ours, (KEEP_CORDONED, "false")]), false, None, lift),
            ("another client's, to be kept", node(true, &[keep]), true, None, None),
        ];
        for (name, node, pre_cordoned, take, release) in cases {
            let cordon = Cordon::plan(&node, "op-1");
            assert_eq!(cordon.pre_cordoned, pre_cordoned, "{name}: before");
            assert_eq!(effect(cordon.take_patch(&node)), take, "{name}: take");
            assert_eq!(cordon.is_held(&node), take.is_none(), "{name}: held");
            assert_eq!(effect(cordon.release_patch(&node)), release, "{name}: release");
        }

        let taken_over = |unschedulable, annotations, upgrading: &str| {
            let mut node = node(unschedulable, annotations);
            node.labels_mut().insert(UPGRADING.into(), upgrading.into());
            let after = effect(Cordon::plan(&node, "op-1").take_over_patch(&node));
            (is_of_the_legacy_operator(&node), after)
        };
        assert_eq!(taken_over(true, &[], "true"), (true, Some((json!("op-1"), None))));
        for (unschedulable, annotations, upgrading) in
            [(false, &[][..], "true"), (true, &[ours][..], "true"), (true, &[][..], "false")]
        {
            assert_eq!(taken_over(unschedulable, annotations, upgrading), (false, None));
        }

        let was_foreign = Cordon { operation_id: "op-1".into(), pre_cordoned: true };
        assert_eq!(effect(was_foreign.release_patch(&node(true, &[ours]))), only_forget);
    }
}
