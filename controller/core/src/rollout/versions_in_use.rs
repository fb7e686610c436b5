//! Versions in use, whose services ConfigMaps must stay. Pure.

use std::collections::BTreeSet;

use api::{WindowsInstance, WindowsNodePool, names::key};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

/// Returns the versions that a pool or an instance changes to or from, that an instance follows or has followed last, or that a Node names. A
/// released Node names the version that its host still follows; an operator that adopts it again learns from that version what to remove.
pub fn versions_in_use<'a>(
    pools: impl Iterator<Item = &'a WindowsNodePool>,
    instances: impl Iterator<Item = &'a WindowsInstance>,
    nodes: impl Iterator<Item = &'a Node>,
) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for pool in pools {
        let rollout = pool.status.as_ref().and_then(|s| s.rollout.as_ref());
        used.extend(rollout.map(|r| r.to_version.clone()));
        used.extend(rollout.and_then(|r| r.from_version.clone()));
    }
    for instance in instances {
        if let Some(status) = &instance.status {
            used.extend([&status.current_version, &status.previous_version].into_iter().flatten().cloned());
            let operation = status.operation.as_ref();
            used.extend(operation.iter().flat_map(|o| [&o.from_version, &o.to_version]).flatten().cloned());
        }
        used.extend(instance.spec.desired.as_ref().map(|d| d.version.clone()));
        used.extend(instance.open_grant().and_then(|g| g.version.clone()));
    }
    for node in nodes {
        used.extend([key::VERSION, key::DESIRED_VERSION].iter().filter_map(|k| node.annotations().get(*k).cloned()));
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn versions_that_a_node_without_an_instance_names_are_in_use() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "w", "annotations": {key::VERSION: "1-a", key::DESIRED_VERSION: "2-b"}},
        }))
        .unwrap();
        let used = versions_in_use([].iter(), [].iter(), [node].iter());
        assert_eq!(used, ["1-a", "2-b"].map(String::from).into());
    }
}
