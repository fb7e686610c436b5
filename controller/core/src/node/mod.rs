//! Nodes: what they report, whose they are, and the metadata that they must have.
//!
//! * [`owner`]: whose a Node is.
//! * [`metadata`]: the labels, annotations and taints of a Node, and the patch that applies them.
//! * [`permitted`]: which labels, annotations and taints users may give to a Node.
//! * [`maintenance`]: what is requested of a node's maintenance.
//! * [`applied`]: the record of what may be removed from a Node.
//! * [`essentials`]: what is kept of a Node, and which changes of it matter.
//! * [`silence`]: whether the daemon of a host reports.

pub mod applied;
pub mod desired_metadata;
pub mod essentials;
pub mod maintenance;
pub mod metadata;
pub mod owner;
pub mod permitted;
pub mod silence;

use api::NodeRef;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

/// Reference to a Node.
pub fn reference(node: &Node) -> NodeRef {
    NodeRef { name: node.name_any(), uid: node.uid().unwrap_or_default() }
}

/// Boot id of the host, as kubelet reported it at its start.
pub fn boot_id(node: &Node) -> String {
    node.status.as_ref().and_then(|s| s.node_info.as_ref()).map(|i| i.boot_id.clone()).unwrap_or_default()
}

/// Reports whether nothing is heard of kubelet: the cluster, and not kubelet, says of its Node that it is not known to be Ready.
pub fn is_unheard(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|c| c.type_ == "Ready" && c.status == "Unknown")
}

/// Returns whether the Node is Ready, since when, and kubelet's message.
pub fn ready(node: &Node) -> (bool, Option<jiff::Timestamp>, String) {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    match conditions.iter().find(|c| c.type_ == "Ready") {
        Some(c) => {
            let says =
                c.message.clone().filter(|m| !m.is_empty()).unwrap_or_else(|| format!("node is Ready: {}", c.status));
            (c.status == "True", c.last_transition_time.as_ref().map(|t| t.0), says)
        }
        None => (false, None, "kubelet has not reported yet".into()),
    }
}
