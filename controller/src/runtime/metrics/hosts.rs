//! State of a host for the metrics, from its instance and its Node.

use std::sync::Arc;

use api::{GrantType, Reason, WindowsInstance, WindowsInstanceStatus, names::key};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use wnp_core::{
    drain::cordon::{cordoned_by, is_cordoned},
    node,
    rollout::member,
};

use crate::args::host_key_policy::trusts_shown_key;

/// Host with its instance and its Node, from the caches.
pub(super) struct Host {
    pub(super) instance: Arc<WindowsInstance>,
    pub(super) node: Option<Arc<Node>>,
}

impl Host {
    pub(super) fn status(&self) -> Option<&WindowsInstanceStatus> {
        self.instance.status.as_ref()
    }

    /// Reports whether the host has joined.
    pub(super) fn is_node(&self) -> bool {
        self.status().is_some_and(|s| s.current_version.is_some())
    }

    pub(super) fn is_held(&self) -> bool {
        member::is_held(&self.instance, self.node.as_deref())
    }

    /// Reports whether the host is out of service on purpose: it leaves, is granted maintenance, or is on hold.
    pub(super) fn is_set_aside(&self) -> bool {
        let in_maintenance = self.instance.spec.grant.as_ref().is_some_and(|g| g.type_ == GrantType::Maintenance);
        self.instance.is_leaving() || in_maintenance || self.is_held()
    }

    /// Reports whether pods block the drain of the node.
    pub(super) fn is_drain_blocked(&self) -> bool {
        let operation = self.status().and_then(|s| s.operation.as_ref());
        operation.and_then(|o| o.drain.as_ref()).is_some_and(|drain| !drain.blockers.is_empty())
    }

    /// Reports whether the node is missing, not Ready or cordoned by an operation, and no user has cordoned it or set the host aside.
    pub(super) fn is_unavailable(&self) -> bool {
        if !self.is_node() || self.is_set_aside() {
            return false;
        }
        let Some(node) = self.node.as_deref() else { return true };
        let by_person = is_cordoned(node) && cordoned_by(node).is_none();
        !by_person && (is_cordoned(node) || !node::ready(node).0)
    }

    /// Reports whether the host or its jump host showed another host key at the last failure, and no user has accepted it or put the instance on
    /// hold. The annotation `trust-host-key` accepts only the key that it names, and no key of a jump host. Annotations of the Node do not count,
    /// because kubelet can write them.
    pub(super) fn shows_another_key(&self) -> bool {
        let Some(failures) = self.status().and_then(|s| s.failures.as_ref()) else { return false };
        let is_trusted = match failures.reason() {
            Reason::HostKeyMismatch => trusts_shown_key(
                self.instance.annotations().get(key::TRUST_HOST_KEY).map(String::as_str),
                self.instance.spec.host.host_key.as_deref(),
                &failures.last_message,
            ),
            Reason::JumpHostKeyMismatch => false,
            _ => return false,
        };
        !is_trusted && !member::is_held(&self.instance, None)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn host(annotations: &Value, spec: &Value, status: &Value, node: &Value) -> Host {
        let mut instance = WindowsInstance::new("w", api::WindowsInstanceSpec::default());
        instance.metadata.annotations = serde_json::from_value(annotations.clone()).unwrap();
        instance.spec.grant = serde_json::from_value(spec.clone()).unwrap();
        instance.status = Some(serde_json::from_value(status.clone()).unwrap());
        Host {
            instance: Arc::new(instance),
            node: serde_json::from_value::<Option<Node>>(node.clone()).unwrap().map(Arc::new),
        }
    }

    fn node(annotations: &Value, cordoned: bool, ready: &str) -> Value {
        json!({
            "metadata": {"name": "w", "annotations": annotations},
            "spec": {"unschedulable": cordoned},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        })
    }

    #[test]
    fn a_node_is_unavailable_unless_a_user_has_set_it_aside() {
        let joined = json!({"currentVersion": "v"});
        let none = Value::Null;
        let hold = json!({(key::HOLD): "true"});
        let ours = json!({(key::CORDONED_BY): "1"});
        let maintenance = json!({"id": "1", "type": "Maintenance", "grantedTime": "2027-01-01T00:00:00Z"});
        for (about, host, expected) in [
            ("it works", host(&none, &none, &joined, &node(&none, false, "True")), false),
            ("it is not Ready", host(&none, &none, &joined, &node(&none, false, "Unknown")), true),
            ("it is gone", host(&none, &none, &joined, &none), true),
            ("it has not joined", host(&none, &none, &json!({}), &none), false),
            ("an operation has cordoned it", host(&none, &none, &joined, &node(&ours, true, "True")), true),
            ("a user has cordoned it", host(&none, &none, &joined, &node(&none, true, "False")), false),
            ("the instance is on hold", host(&hold, &none, &joined, &node(&none, false, "False")), false),
            ("the Node is on hold", host(&none, &none, &joined, &node(&hold, false, "False")), false),
            ("in maintenance", host(&none, &maintenance, &joined, &node(&ours, true, "False")), false),
        ] {
            assert_eq!(host.is_unavailable(), expected, "{about}");
        }
    }

    #[test]
    fn another_key_is_reported_until_a_user_trusts_it() {
        let none = Value::Null;
        let shown = format!("SHA256:{}", "A".repeat(43));
        let message = format!("the host key of 10.0.0.1 does not match: expected SHA256:x, got {shown}; if");
        let failed = |reason: &str| {
            let at = "2027-01-01T00:00:00Z";
            json!({"failures": {"count": 1, "firstTime": at, "lastReason": reason, "lastMessage": message}})
        };
        let (changed, of_jump_host) = (failed("HostKeyMismatch"), failed("JumpHostKeyMismatch"));
        let trust = |fingerprint: &str| json!({(key::TRUST_HOST_KEY): fingerprint});
        let (trusted, earlier) = (trust(&shown), trust(&format!("SHA256:{}A", "B".repeat(42))));
        let hold = json!({key::HOLD: "true"});
        for (about, host, expected) in [
            ("another key", host(&none, &none, &changed, &none), true),
            ("of the jump host", host(&none, &none, &of_jump_host, &none), true),
            ("another failure", host(&none, &none, &failed("Unreachable"), &none), false),
            ("no failure", host(&none, &none, &json!({}), &none), false),
            ("trusted", host(&trusted, &none, &changed, &none), false),
            ("another key was trusted once", host(&earlier, &none, &changed, &none), true),
            ("only the host's own key is trusted", host(&trusted, &none, &of_jump_host, &none), true),
            ("held", host(&hold, &none, &changed, &none), false),
            ("held by an annotation of the Node", host(&none, &none, &changed, &node(&hold, false, "True")), true),
        ] {
            assert_eq!(host.shows_another_key(), expected, "{about}");
        }
    }
}
