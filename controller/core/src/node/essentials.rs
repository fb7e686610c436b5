//! Parts of a Node that the operator caches, and changes of a Node that matter.
//!
//! kubelet reports a Node's status every few minutes, with new times and with the images on the host, and CSI drivers report volumes.
//! kube-controller-manager writes an annotation to all Nodes when the cluster has grown. No decision reads any of that, and in a large fleet it is
//! most of what the API server sends.

use std::collections::BTreeMap;

use api::names::key;
use k8s_openapi::api::core::v1::Node;
use kube::Resource as _;

/// Annotation with the time for which kubelet may cache Secrets and ConfigMaps, which depends on the number of Nodes.
const TTL: &str = "node.alpha.kubernetes.io/ttl";

/// Removes parts of a Node that no decision reads: managed fields, [`TTL`], resources, features, images, runtime handlers, volumes, the reported
/// configuration, and the times of heartbeats.
pub fn keep_essentials(node: &mut Node) {
    node.metadata.managed_fields = None;
    if let Some(annotations) = &mut node.metadata.annotations {
        annotations.remove(TTL);
        if annotations.is_empty() {
            node.metadata.annotations = None;
        }
    }
    let Some(status) = &mut node.status else { return };
    status.allocatable = None;
    status.capacity = None;
    status.config = None;
    status.features = None;
    status.images = None;
    status.runtime_handlers = None;
    status.volumes_attached = None;
    status.volumes_in_use = None;
    for condition in status.conditions.iter_mut().flatten() {
        condition.last_heartbeat_time = None;
    }
}

/// Reports whether the change from `before` to `after` matters to any controller. [`keep_essentials`] must have been applied to both.
pub fn differs(before: &Node, after: &Node) -> bool {
    let (was, is) = (before.meta(), after.meta());
    // Any write changes the resource version, so it is not compared.
    let same_metadata = was.uid == is.uid
        && was.labels == is.labels
        && lasting(was.annotations.as_ref()).eq(lasting(is.annotations.as_ref()))
        && was.deletion_timestamp == is.deletion_timestamp
        && was.finalizers == is.finalizers
        && was.owner_references == is.owner_references;
    !same_metadata || before.spec != after.spec || before.status != after.status
}

/// Returns the annotations without the time of wicd's last report.
fn lasting(annotations: Option<&BTreeMap<String, String>>) -> impl Iterator<Item = (&String, &String)> {
    annotations.into_iter().flatten().filter(|(name, _)| *name != key::WICD_REPORTED)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(change: impl FnOnce(&mut Value)) -> Node {
        let mut node = json!({
            "metadata": {"name": "w", "uid": "u1", "resourceVersion": "7", "labels": {"a": "1"}, "managedFields": [{"manager": "kubelet"}]},
            "spec": {"taints": [{"key": "os", "effect": "NoSchedule"}]},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "allocatable": {"cpu": "4"},
                "capacity": {"cpu": "4"},
                "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2027-01-15T02:00:00Z",
                    "lastTransitionTime": "2027-01-15T01:00:00Z", "message": "kubelet is posting ready status"}],
                "images": [{"names": ["mcr.example.com/nanoserver"], "sizeBytes": 100}],
                "nodeInfo": {"architecture": "amd64", "bootID": "1", "containerRuntimeVersion": "containerd://2.1.0", "kernelVersion": "10.0",
                    "kubeProxyVersion": "", "kubeletVersion": "v1.36.0", "machineID": "m", "operatingSystem": "windows",
                    "osImage": "Windows Server 2022", "systemUUID": "s"},
                "volumesInUse": ["v"],
            },
        });
        change(&mut node);
        let mut node: Node = serde_json::from_value(node).unwrap();
        keep_essentials(&mut node);
        node
    }

    /// Case: description, change, and whether it counts as a difference.
    type Case = (&'static str, fn(&mut Value), bool);

    #[test]
    fn a_heartbeat_is_not_a_change() {
        let before = node(|_| ());
        let cases: [Case; 19] = [
            ("nothing", |_| (), false),
            (
                "a heartbeat",
                |n| n["status"]["conditions"][0]["lastHeartbeatTime"] = json!("2027-01-15T02:05:00Z"),
                false,
            ),
            ("its resource version", |n| n["metadata"]["resourceVersion"] = json!("8"), false),
            ("images", |n| n["status"]["images"] = json!([]), false),
            ("volumes", |n| n["status"]["volumesInUse"] = json!(["v", "w"]), false),
            ("free resources", |n| n["status"]["allocatable"]["cpu"] = json!("3"), false),
            (
                "a larger cluster",
                |n| n["metadata"]["annotations"] = json!({"node.alpha.kubernetes.io/ttl": "15"}),
                false,
            ),
            (
                "a report of wicd",
                |n| n["metadata"]["annotations"] = json!({key::WICD_REPORTED: "2027-01-15T02:05:00Z"}),
                false,
            ),
            ("another Node of that name", |n| n["metadata"]["uid"] = json!("u2"), true),
            ("a label", |n| n["metadata"]["labels"]["a"] = json!("2"), true),
            ("an annotation", |n| n["metadata"]["annotations"] = json!({"a": "1"}), true),
            ("a deletion", |n| n["metadata"]["deletionTimestamp"] = json!("2027-01-15T02:00:00Z"), true),
            ("a cordon", |n| n["spec"]["unschedulable"] = json!(true), true),
            ("a taint", |n| n["spec"]["taints"] = json!([]), true),
            ("its address", |n| n["status"]["addresses"][0]["address"] = json!("10.0.0.2"), true),
            ("its condition", |n| n["status"]["conditions"][0]["status"] = json!("Unknown"), true),
            ("what kubelet says", |n| n["status"]["conditions"][0]["message"] = json!("no network"), true),
            ("a restart of the host", |n| n["status"]["nodeInfo"]["bootID"] = json!("2"), true),
            ("another kubelet", |n| n["status"]["nodeInfo"]["kubeletVersion"] = json!("v1.36.1"), true),
        ];
        for (about, change, expected) in cases {
            assert_eq!(differs(&before, &node(change)), expected, "{about}");
        }
    }

    #[test]
    fn large_parts_of_a_node_are_not_kept() {
        let kept = serde_json::to_value(node(|_| ())).unwrap();
        for path in [
            "/metadata/managedFields",
            "/status/images",
            "/status/volumesInUse",
            "/status/capacity",
            "/status/allocatable",
        ] {
            assert!(kept.pointer(path).is_none(), "{path}");
        }
        assert_eq!(kept.pointer("/status/nodeInfo/bootID"), Some(&json!("1")));
    }
}
