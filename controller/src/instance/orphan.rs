//! Metadata that the legacy operator needs on a released Node to adopt the host again.

use api::names::key;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::{error::StepError, scope::Scope};
use crate::drain::release_cordon;
use wnp_core::{
    drain::cordon::{Cordon, cordoned_by},
    node::ready,
};

/// Annotations without which the legacy operator ignores a node, or configures it again.
const ANNOTATIONS: [&str; 6] =
    [key::VERSION, key::DESIRED_VERSION, key::USERNAME, key::PUB_KEY_HASH, key::SSH_HOST_KEY, key::SSH_HOST_KEY_TYPE];

/// Returns the differences between a Node and the expectations of the legacy operator: missing metadata, unwanted metadata with the prefix "no", and
/// a `Ready` condition that is not True. `of_machine` is true for the host of a Machine.
pub(super) fn lacks(node: &Node, of_machine: bool) -> Vec<String> {
    let (labels, annotations) = (node.labels(), node.annotations());
    let mut lacks: Vec<String> = ANNOTATIONS
        .iter()
        .filter(|k| annotations.get(**k).is_none_or(String::is_empty))
        .map(ToString::to_string)
        .collect();
    let has_byoh_label = labels.get(key::BYOH).is_some_and(|v| v == "true");
    if has_byoh_label == of_machine {
        lacks.push(if of_machine { format!("no {}", key::BYOH) } else { key::BYOH.to_owned() });
    }
    if !of_machine && !labels.contains_key(key::WORKER_ROLE) {
        lacks.push(key::WORKER_ROLE.to_owned());
    }
    if labels.get(key::OS_ID).is_none_or(|v| v != "Windows") {
        lacks.push(key::OS_ID.to_owned());
    }
    let unwanted = [key::UPGRADING, key::REBOOT_REQUIRED].into_iter();
    lacks.extend(
        unwanted.filter(|k| labels.contains_key(*k) || annotations.contains_key(*k)).map(|k| format!("no {k}")),
    );
    if cordoned_by(node).is_some() {
        lacks.push(format!("no {}", key::CORDONED_BY));
    }
    if !ready(node).0 {
        lacks.push("a Ready condition that is True".to_owned());
    }
    lacks
}

/// Released host.
#[derive(Debug, Default)]
pub(super) struct Released {
    /// True if the host has a Node.
    has_node: bool,
    /// Differences between its Node and the expectations of the legacy operator.
    lacks: Vec<String>,
}

impl Released {
    /// Returns the note for the user. `half_changed` is the message about a change that the release has interrupted.
    pub(super) fn note(&self, half_changed: Option<String>) -> String {
        let unchanged = if self.has_node {
            "the host was released unchanged, and its Node stays in the cluster"
        } else {
            "the host was released unchanged"
        };
        let released = half_changed.unwrap_or_else(|| unchanged.to_owned());
        if self.lacks.is_empty() {
            return released;
        }
        format!(
            "{released}. The Windows Machine Config Operator ignores the node or configures it again unless the Node has: {}",
            self.lacks.join(", ")
        )
    }
}

/// Removes the operator's cordon from the Node, and compares the Node with the expectations of the legacy operator.
pub(super) async fn hand_back(scope: &mut Scope) -> Result<Released, StepError> {
    let Some(node) = scope.find_node().await?.node() else { return Ok(Released::default()) };
    if let Some(operation) = cordoned_by(&node) {
        let pre_cordoned = scope.status.operation.as_ref().is_some_and(|o| o.id == operation && o.pre_cordoned);
        let left = Cordon { operation_id: operation.into(), pre_cordoned };
        release_cordon(&left, &scope.cx.cluster.client, &node).await?;
    }
    let of_machine = scope.pool.spec.inventory.machine_set_ref.is_some();
    let lacks = lacks(&node, of_machine).into_iter().filter(|l| !l.ends_with(key::CORDONED_BY)).collect();
    Ok(Released { has_node: true, lacks })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(change: &Value) -> Node {
        let mut node = json!({
            "metadata": {
                "name": "w",
                "labels": {key::BYOH: "true", key::WORKER_ROLE: "", key::OS_ID: "Windows", key::POOL: "p"},
                "annotations": ANNOTATIONS.iter().map(|k| ((*k).to_owned(), json!("x"))).collect::<serde_json::Map<_, _>>(),
            },
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        for (pointer, value) in change.as_object().unwrap() {
            let (kind, key) = pointer.split_once(' ').unwrap();
            let map = node["metadata"][kind].as_object_mut().unwrap();
            match value {
                Value::Null => drop(map.remove(key)),
                value => drop(map.insert(key.to_owned(), value.clone())),
            }
        }
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn each_difference_from_the_expectations_of_the_legacy_operator_is_found() {
        let of = |kind: &str, key: &str, value: Value| json!({format!("{kind} {key}"): value});
        let mut cases = vec![
            (json!({}), false, None),
            (of("labels", key::WORKER_ROLE, Value::Null), false, Some(key::WORKER_ROLE.to_owned())),
            (of("labels", key::BYOH, Value::Null), false, Some(key::BYOH.to_owned())),
            (of("labels", key::BYOH, Value::Null), true, None),
            (json!({}), true, Some(format!("no {}", key::BYOH))),
            (of("labels", key::OS_ID, json!("linux")), false, Some(key::OS_ID.to_owned())),
            (of("labels", key::UPGRADING, json!("true")), false, Some(format!("no {}", key::UPGRADING))),
            (of("annotations", key::REBOOT_REQUIRED, json!("")), false, Some(format!("no {}", key::REBOOT_REQUIRED))),
            (of("annotations", key::CORDONED_BY, json!("op")), false, Some(format!("no {}", key::CORDONED_BY))),
        ];
        for k in ANNOTATIONS {
            cases.push((of("annotations", k, Value::Null), false, Some(k.to_owned())));
            cases.push((of("annotations", k, json!("")), false, Some(k.to_owned())));
        }
        for (change, of_machine, expected) in cases {
            assert_eq!(lacks(&node(&change), of_machine), Vec::from_iter(expected), "{change} {of_machine}");
        }
        let mut down = node(&json!({}));
        down.status = None;
        assert_eq!(lacks(&down, false).len(), 1);
    }

    #[test]
    fn the_note_names_what_the_legacy_operator_needs_also_after_half_a_change() {
        let half = || Some("it is partly changed".to_owned());
        for (has_node, lacks, half_changed, expected) in [
            (false, vec![], None, "the host was released unchanged"),
            (true, vec![], None, "the host was released unchanged, and its Node stays in the cluster"),
            (true, vec![], half(), "it is partly changed"),
            (
                true,
                vec!["a".to_owned(), "no b".to_owned()],
                half(),
                "it is partly changed. The Windows Machine Config Operator ignores the node or configures it again unless the Node has: a, no b",
            ),
        ] {
            assert_eq!(Released { has_node, lacks }.note(half_changed), expected);
        }
    }
}
