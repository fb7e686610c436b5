//! Nodes: their reports, owners and metadata.
//!
//! * [`owner`]: owner of a Node.
//! * [`metadata`]: labels, annotations and taints of a Node, and the patch that applies them.
//! * [`desired_metadata`]: type of the desired labels, annotations and taints of a Node.
//! * [`permitted`]: labels, annotations and taints that users may set on a Node.
//! * [`maintenance`]: maintenance requests for a node.
//! * [`applied`]: record of the metadata that may be removed from a Node.
//! * [`essentials`]: parts of a Node that the operator caches, and changes that matter.
//! * [`silence`]: detection of hosts whose daemon no longer reports.
//! * [`username`]: annotation with the encrypted user name, as the Windows Machine Config Operator writes it.

pub mod applied;
pub mod desired_metadata;
pub mod essentials;
pub mod maintenance;
pub mod metadata;
pub mod owner;
pub mod permitted;
pub mod silence;
pub mod username;

use api::NodeRef;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::ResourceExt;

/// Returns a reference to a Node.
pub fn reference(node: &Node) -> NodeRef {
    NodeRef { name: node.name_any(), uid: node.uid().unwrap_or_default() }
}

/// Returns the boot ID of the host, as kubelet reported it at its start; empty if kubelet has not reported one.
pub fn boot_id(node: &Node) -> String {
    node.status.as_ref().and_then(|s| s.node_info.as_ref()).map(|i| i.boot_id.clone()).unwrap_or_default()
}

/// Returns the addresses that kubelet reports for its Node.
pub(crate) fn addresses(node: &Node) -> impl Iterator<Item = &str> {
    node.status.iter().filter_map(|s| s.addresses.as_deref()).flatten().map(|a| a.address.as_str())
}

/// Returns the conditions of a Node.
pub(crate) fn conditions(node: &Node) -> &[NodeCondition] {
    node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default()
}

/// Reports whether kubelet has stopped reporting: the node lifecycle controller has set the condition Ready of its Node to Unknown.
pub fn is_ready_unknown(node: &Node) -> bool {
    conditions(node).iter().any(|c| c.type_ == "Ready" && c.status == "Unknown")
}

/// Returns the state of the condition Ready of a Node: true if the Node is Ready, the time of the last transition, and the message. A text replaces a
/// missing message.
pub fn ready(node: &Node) -> (bool, Option<jiff::Timestamp>, String) {
    match conditions(node).iter().find(|c| c.type_ == "Ready") {
        Some(c) => {
            let says = c
                .message
                .clone()
                .filter(|m| !m.is_empty())
                .unwrap_or_else(|| format!("the condition Ready of the Node is {}", c.status));
            (c.status == "True", c.last_transition_time.as_ref().map(|t| t.0), says)
        }
        None => (false, None, "kubelet has not reported the condition Ready of the Node yet".into()),
    }
}
