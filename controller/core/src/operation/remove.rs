//! Next step of a removal.
//!
//! Until the host is being deconfigured, it is only marked as leaving, and at most cordoned and drained. The mark can be revoked as long as the
//! instance is not being deleted.

use api::{GrantType, Operation, Step, WindowsInstance};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

use crate::enumeration::first_names;

/// Observations of a leaving host, other than its Node.
#[expect(clippy::struct_excessive_bools, reason = "each field is an independent observation")]
#[derive(Clone, Copy, Debug, Default)]
pub struct ObservedRemoval {
    /// True if the Node is cordoned, by this operation or by another client before it.
    pub cordoned: bool,
    /// True if a pass of the drain in this reconcile found the node empty. Reset when the Node is cordoned again.
    pub drained: bool,
    /// True if the instance is being deleted: then the removal can no longer be revoked.
    pub deleted: bool,
    /// True if the status has the host key, so that something may have been put on the host.
    pub touched: bool,
    /// True if the host was found clean in this operation.
    pub clean: bool,
    /// True if the host may be partly deconfigured.
    pub deconfiguring: bool,
    /// True if the Node is Ready.
    pub ready: bool,
    /// Last step that this operation began. It is stored before a step begins, so all earlier steps are complete.
    pub begun: Option<Step>,
}

/// Next step of a removal, with the Node where it needs one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<N> {
    /// Cordon of the Node, which keeps new pods away.
    Cordon(N),
    /// Drain of the node, which moves the pods away.
    Drain(N),
    /// Deletion of the instance, if the host must still leave.
    Delete,
    /// Removal of everything that the operator put on the host.
    Deconfigure,
    /// Deletion of the Node.
    DeleteNode(N),
    /// End: the removal is complete.
    Gone,
}

/// Returns the message about a deleted Node that still exists because of its finalizers; `None` for any other Node. The API server keeps the Node
/// until each finalizer is removed by the controller that has set it.
pub fn kept_by_finalizers(node: &Node) -> Option<String> {
    let (name, finalizers) = (node.name_any(), node.finalizers());
    (node.metadata.deletion_timestamp.is_some() && !finalizers.is_empty()).then(|| {
        format!(
            "the Node {name} is being deleted and stays until its finalizers are removed: {}. Check the controllers that have set them, or remove the finalizers: \
             kubectl patch node {name} --type=merge -p '{{\"metadata\":{{\"finalizers\":null}}}}'",
            // Clients may set any number of finalizers.
            first_names(finalizers)
        )
    })
}

/// Reports whether a step is one of a removal.
pub fn is_step(step: Step) -> bool {
    matches!(step, Step::Cordon | Step::Drain | Step::Deconfigure | Step::DeleteNode)
}

/// Reports whether the host of a removal may be partly deconfigured: its services may already be stopped.
pub fn is_deconfiguring(operation: &Operation) -> bool {
    let is_past_drain = matches!(operation.step, Step::Deconfigure | Step::DeleteNode);
    operation.type_ == GrantType::Remove && (operation.deconfiguring || is_past_drain)
}

/// Reports whether the removal operation of a host can no longer be aborted: the instance is being deleted, and the host may be partly deconfigured.
pub fn is_irrevocable(instance: &WindowsInstance) -> bool {
    let operation = instance.status.as_ref().and_then(|s| s.operation.as_ref());
    instance.is_deleting() && operation.is_some_and(is_deconfiguring)
}

/// Reports whether the node must be empty before the next step. Once services on the host may be stopped, no pod can be moved, and none is waited
/// for. But as long as the node works, a user may lift its cordon between two attempts, and new pods may start.
fn must_be_empty(seen: ObservedRemoval) -> bool {
    match seen.begun {
        _ if !seen.deconfiguring => true,
        Some(Step::DeleteNode) => false,
        Some(Step::Deconfigure) => seen.ready && !seen.cordoned && !seen.clean,
        _ => seen.ready,
    }
}

/// Chooses the next step. `node` is the Node, if it exists and belongs to this host.
pub fn next<N>(node: Option<N>, seen: ObservedRemoval) -> Next<N> {
    let node = match node {
        Some(node) if must_be_empty(seen) => {
            if !seen.cordoned {
                return Next::Cordon(node);
            }
            if !seen.drained {
                return Next::Drain(node);
            }
            Some(node)
        }
        node => node,
    };
    if !seen.deleted {
        return Next::Delete;
    }
    if seen.touched && !seen.clean && seen.begun != Some(Step::DeleteNode) {
        return Next::Deconfigure;
    }
    node.map_or(Next::Gone, Next::DeleteNode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_observed_state_decides_the_next_step() {
        use Next::{Cordon, Deconfigure, Delete, DeleteNode, Drain, Gone};
        type Seen = ObservedRemoval;
        let node = Some(());
        let marked = Seen { touched: true, ..Seen::default() };
        let deleted = Seen { deleted: true, ..marked };
        let never = Seen { deleted: true, ..Seen::default() };
        let at = |step, seen: Seen| {
            let deconfiguring = matches!(step, Step::Deconfigure | Step::DeleteNode);
            Seen { begun: Some(step), deconfiguring, ..seen }
        };
        let again = |step, seen: Seen| Seen { deconfiguring: true, ready: true, ..at(step, seen) };
        let cordoned = |seen: Seen| Seen { cordoned: true, ..seen };
        let drained = |seen: Seen| Seen { drained: true, ..seen };
        let clean = |seen: Seen| Seen { clean: true, ..seen };
        for (name, node, seen, expected) in [
            ("a node that is marked", node, marked, Cordon(())),
            ("a marked node, cordoned", node, cordoned(marked), Drain(())),
            ("a marked node, drained and not deleted yet", node, drained(cordoned(marked)), Delete),
            ("marked before it had a Node", None, marked, Delete),
            ("marked before it was reached", None, Seen::default(), Delete),
            ("a node that a user deletes", node, deleted, Cordon(())),
            ("a node that a user deletes, cordoned", node, cordoned(deleted), Drain(())),
            ("another client lifts the cordon during the drain", node, at(Step::Drain, drained(deleted)), Cordon(())),
            ("a node that a user deletes, drained", node, drained(cordoned(deleted)), Deconfigure),
            ("the operator died while deconfiguring", node, at(Step::Deconfigure, cordoned(deleted)), Deconfigure),
            (
                "the operator died while deconfiguring, and the node still works",
                node,
                again(Step::Deconfigure, cordoned(deleted)),
                Deconfigure,
            ),
            (
                "the operator died while deconfiguring, and a user has lifted the cordon",
                node,
                again(Step::Deconfigure, deleted),
                Cordon(()),
            ),
            ("a partly deconfigured node is cordoned again", node, again(Step::Cordon, cordoned(deleted)), Drain(())),
            (
                "the operator died while draining a partly deconfigured node",
                node,
                again(Step::Drain, cordoned(deleted)),
                Drain(()),
            ),
            (
                "a partly deconfigured node is drained again",
                node,
                again(Step::Drain, drained(cordoned(deleted))),
                Deconfigure,
            ),
            (
                "a partly deconfigured node is no longer Ready",
                node,
                Seen { ready: false, ..again(Step::Drain, cordoned(deleted)) },
                Deconfigure,
            ),
            (
                "a user has lifted the cordon of a clean host",
                node,
                again(Step::Deconfigure, clean(deleted)),
                DeleteNode(()),
            ),
            (
                "a clean host with a Node",
                node,
                at(Step::Deconfigure, clean(drained(cordoned(deleted)))),
                DeleteNode(()),
            ),
            (
                "the operator died before the Node was deleted",
                node,
                at(Step::DeleteNode, cordoned(deleted)),
                DeleteNode(()),
            ),
            ("a clean host without a Node", None, clean(deleted), Gone),
            ("the Node was deleted by hand", None, deleted, Deconfigure),
            ("the operator died after it deleted the Node", None, at(Step::DeleteNode, deleted), Gone),
            ("the host was never reached", None, never, Gone),
        ] {
            assert_eq!(next(node, seen), expected, "{name}");
        }
    }
}
