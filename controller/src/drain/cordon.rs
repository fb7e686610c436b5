//! Whose cordon it is.
//!
//! `spec.unschedulable` has no owner. The annotation [`CORDONED_BY`] records that this operator set it, and for which
//! operation; both are written in one patch under `resourceVersion`, so that neither is ever there without the other. A
//! cordon without the annotation belongs to another client and is never lifted. One case cannot be detected: a person
//! who cordons a node that is already cordoned changes nothing on it. [`KEEP_CORDONED`] is for that person.

use api::names::key::UPGRADING;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use super::error::DrainError;

/// Annotation on a Node: the id of the operation that cordoned it.
pub(crate) const CORDONED_BY: &str = "windowsmachineconfig.openshift.io/cordoned-by";
/// Annotation on a Node: with the value "true" it stays cordoned when the operation ends. A person sets and removes it.
pub(crate) const KEEP_CORDONED: &str = "windowsmachineconfig.openshift.io/keep-cordoned";

/// Attempts to patch a Node that changes meanwhile.
const ATTEMPTS: usize = 4;

/// The cordon of one operation on one Node. The caller stores it before the first [`Cordon::take`], so that its owner
/// is known after a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cordon {
    /// The operation that holds the cordon.
    pub operation_id: String,
    /// Another client had cordoned the Node before; it stays cordoned afterwards.
    pub pre_cordoned: bool,
}

/// What is in the way of new pods on a Node.
pub(crate) fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

/// Whether a Node looks as the legacy operator leaves it when it ends in the middle of an upgrade: cordoned, and called upgrading.
/// Any client may write that label, so it counts only on a node that this operator has not changed yet.
pub(crate) fn is_of_the_legacy_operator(node: &Node) -> bool {
    is_cordoned(node) && holder(node).is_none() && node.labels().get(UPGRADING).is_some_and(|v| v == "true")
}

impl Cordon {
    /// Decides, from the Node as it is before the operation, whether another client has cordoned it. Pure.
    ///
    /// A cordon with the annotation of another operation is one that an earlier operation of this operator left behind; it is taken over.
    pub(crate) fn plan(node: &Node, operation_id: impl Into<String>) -> Self {
        Self { operation_id: operation_id.into(), pre_cordoned: is_cordoned(node) && holder(node).is_none() }
    }

    /// Whether [`Cordon::take`] has nothing to do any more: the Node is cordoned, by this operation or by another
    /// client.
    pub(crate) fn is_held(&self, node: &Node) -> bool {
        self.take_patch(node).is_none()
    }

    /// Cordons the Node, if it is not cordoned, and gives back the Node as it is then. A Node that does not pass `may_cordon`, which is asked
    /// again whenever the Node has changed meanwhile, is left unchanged.
    ///
    /// A Node that another client has cordoned since [`Cordon::plan`] is left unchanged: that cordon belongs to the
    /// client.
    pub(crate) async fn take(
        &self,
        client: &Client,
        node: &Node,
        may_cordon: impl Fn(&Node) -> bool,
    ) -> Result<Node, DrainError> {
        patch(client, node, "cordon", |node| self.take_patch(node).filter(|_| may_cordon(node))).await
    }

    /// Makes the cordon that the legacy operator has left on a Node this operation's, so that it is lifted when that ends. The
    /// caller has seen that it is the legacy operator's.
    pub(crate) async fn take_over(&self, client: &Client, node: &Node) -> Result<Node, DrainError> {
        patch(client, node, "take over the cordon of", |node| self.take_over_patch(node)).await
    }

    /// Lifts the cordon, if it belongs to this operation alone, and no annotation keeps it. A deleted Node has none.
    pub(crate) async fn release(&self, client: &Client, node: &Node) -> Result<(), DrainError> {
        match patch(client, node, "uncordon", |node| self.release_patch(node)).await {
            Ok(_) | Err(DrainError::NodeGone { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The merge patch that cordons `node`; `None` when there is nothing to do.
    fn take_patch(&self, node: &Node) -> Option<Value> {
        match (is_cordoned(node), holder(node)) {
            (true, None) => None,
            (true, Some(holder)) if holder == self.operation_id => None,
            _ => Some(json!({
                "metadata": { "annotations": { CORDONED_BY: self.operation_id } },
                "spec": { "unschedulable": true },
            })),
        }
    }

    /// The merge patch that takes over a cordon of the legacy operator; `None` if it is lifted.
    fn take_over_patch(&self, node: &Node) -> Option<Value> {
        is_of_the_legacy_operator(node).then(|| {
            json!({ "metadata": { "annotations": { CORDONED_BY: self.operation_id }, "labels": { UPGRADING: null } } })
        })
    }

    /// The merge patch that releases the cordon of `node`; `None` if it belongs to another owner.
    fn release_patch(&self, node: &Node) -> Option<Value> {
        if holder(node) != Some(&self.operation_id) {
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

fn holder(node: &Node) -> Option<&str> {
    node.annotations().get(CORDONED_BY).map(String::as_str).filter(|id| !id.is_empty())
}

/// Patches the Node under its `resourceVersion`. When it has changed, it is read again and `decide` is asked again.
async fn patch(
    client: &Client,
    node: &Node,
    verb: &str,
    decide: impl Fn(&Node) -> Option<Value>,
) -> Result<Node, DrainError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let name = node.name_any();
    let mut node = node.clone();
    for _ in 0..ATTEMPTS {
        let Some(mut patch) = decide(&node) else { return Ok(node) };
        patch["metadata"]["resourceVersion"] = json!(node.resource_version());
        match nodes.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(patched) => return Ok(patched),
            Err(kube::Error::Api(status)) if status.is_not_found() => return Err(DrainError::NodeGone { node: name }),
            Err(kube::Error::Api(status)) if status.is_conflict() => {
                node = reread(client, &node).await?;
            }
            Err(source) => {
                return Err(DrainError::Api { what: format!("{verb} node {name}"), source: Box::new(source) });
            }
        }
    }
    Err(DrainError::CordonConflict { node: name })
}

/// Reads a Node again; another Node of that name is not it.
pub(super) async fn reread(client: &Client, node: &Node) -> Result<Node, DrainError> {
    let name = node.name_any();
    match Api::<Node>::all(client.clone()).get_opt(&name).await {
        Ok(Some(fresh)) if node.uid().is_none() || node.uid() == fresh.uid() => Ok(fresh),
        Ok(_) => Err(DrainError::NodeGone { node: name }),
        Err(source) => Err(DrainError::Api { what: format!("read node {name}"), source: Box::new(source) }),
    }
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

    /// What a merge patch does to the cordon: (annotation written, unschedulable written).
    fn effect(patch: Option<Value>) -> Option<(Value, Option<Value>)> {
        patch.map(|patch| {
            (patch["metadata"]["annotations"][CORDONED_BY].clone(), patch.pointer("/spec/unschedulable").cloned())
        })
    }

    #[test]
    fn ownership() {
        let set = Some((json!("op-1"), Some(json!(true))));
        let lift = Some((Value::Null, Some(Value::Null)));
        let only_forget = Some((Value::Null, None));
        let keep = (KEEP_CORDONED, "true");
        let ours = (CORDONED_BY, "op-1");
        // name, Node, foreign before the operation, take, release
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
            ("kept without us", node(true, &[keep]), true, None, None),
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
