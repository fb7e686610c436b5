//! Maintenance of a node, as requested by users, programs and hosts. Pure.

use api::{MaintenanceState, WindowsInstance, maintenance::MAX_REASON_CHARS, names::key, text::line};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

/// Client that requests a maintenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// Client of the API server that may write the instance.
    Person,
    /// Client that may write the Node: a user, or the host's own kubelet.
    Node,
    /// Administrator on the host, through wicd.
    Host,
}

/// Maintenance request in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Client that requests the maintenance.
    pub by: By,
    /// Reason of the request, safe to display.
    pub reason: String,
}

impl Request {
    /// Returns the request as text for users.
    pub fn in_words(&self) -> String {
        match self.by {
            By::Person => self.reason.clone(),
            By::Node => format!("{} (requested on the Node)", self.reason),
            By::Host => format!("{} (requested on the host)", self.reason),
        }
    }
}

/// Maintenance requests of all annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Request in effect, if there is one.
    pub request: Option<Request>,
    /// True if the host requests a maintenance, and an annotation of the instance or the Node refuses it.
    pub refused: bool,
}

/// Reads the maintenance annotations. The annotation of the instance takes precedence over those of the Node, which the host's own kubelet may write.
pub fn requests(instance: &WindowsInstance, node: Option<&Node>) -> Requests {
    let on_node = |key: &str| node.and_then(|n| n.annotations().get(key)).filter(|v| !v.is_empty());
    let by_host = on_node(key::MAINTENANCE_REQUEST);
    let of_instance = instance.annotations().get(key::MAINTENANCE).filter(|v| !v.is_empty()).map(|v| (By::Person, v));
    let of_node = on_node(key::MAINTENANCE).map(|v| (By::Node, v));
    let request = |by, reason: &str| Some(Request { by, reason: line(reason, MAX_REASON_CHARS) });
    match of_instance.or(of_node).map(|(by, value)| (by, value.as_str())) {
        Some((_, "false")) => Requests { request: None, refused: by_host.is_some() },
        Some((by, reason)) => Requests { request: request(by, reason), refused: false },
        None => Requests { request: by_host.and_then(|reason| request(By::Host, reason)), refused: false },
    }
}

/// Returns the state to show while no maintenance is in progress.
pub fn idle_state(requests: &Requests, held: bool) -> Option<MaintenanceState> {
    match requests {
        Requests { request: Some(_), .. } if held => Some(MaintenanceState::Held),
        Requests { request: Some(_), .. } => Some(MaintenanceState::Waiting),
        Requests { refused: true, .. } => Some(MaintenanceState::Held),
        Requests { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn read(on_instance: &Value, on_node: &Value) -> Requests {
        let instance: WindowsInstance = serde_json::from_value(json!({
            "apiVersion": "windowsmachineconfig.openshift.io/v1alpha1", "kind": "WindowsInstance",
            "metadata": {"name": "w", "annotations": on_instance},
            "spec": WindowsInstance::new("w", api::WindowsInstanceSpec::default()).spec,
        }))
        .unwrap();
        let node: Node = serde_json::from_value(json!({"metadata": {"annotations": on_node}})).unwrap();
        requests(&instance, Some(&node))
    }

    #[test]
    fn a_person_goes_before_the_host_and_the_instance_before_the_node() {
        let none = json!({});
        let says = |reason: &str| json!({key::MAINTENANCE: reason});
        let host = json!({key::MAINTENANCE_REQUEST: "patches"});
        let both = |reason: &str| json!({key::MAINTENANCE_REQUEST: "patches", key::MAINTENANCE: reason});
        for (name, instance, node, expected, refused) in [
            ("nothing", none.clone(), none.clone(), None, false),
            ("empty values", says(""), says(""), None, false),
            ("on the Node", none.clone(), says("disk"), Some((By::Node, "disk")), false),
            ("on the instance", says("disk"), says("fan"), Some((By::Person, "disk")), false),
            ("on the host", none.clone(), host.clone(), Some((By::Host, "patches")), false),
            ("both", none.clone(), both("disk"), Some((By::Node, "disk")), false),
            ("the host is refused", says("false"), host, None, true),
            ("a request on the Node does not lift the refusal", says("false"), both("disk"), None, true),
            ("refused on the Node", none.clone(), both("false"), None, true),
            ("nothing to refuse", says("false"), none, None, false),
        ] {
            let seen = read(&instance, &node);
            let request = seen.request.as_ref().map(|r| (r.by, r.reason.as_str()));
            assert_eq!((request, seen.refused), (expected, refused), "{name}");
            let state = |held| idle_state(&seen, held).map(MaintenanceState::as_str);
            let (free, held) = match (expected, refused) {
                (Some(_), _) => (Some("Waiting"), Some("Held")),
                (None, true) => (Some("Held"), Some("Held")),
                (None, false) => (None, None),
            };
            assert_eq!((state(false), state(true)), (free, held), "{name}");
        }
    }

    proptest! {
        #[test]
        fn a_reason_is_one_short_line(reason in any::<String>()) {
            let node = json!({key::MAINTENANCE_REQUEST: reason});
            if let Some(request) = read(&json!({}), &node).request {
                prop_assert!(request.reason.chars().count() <= MAX_REASON_CHARS);
                prop_assert!(!request.reason.chars().any(|c| c.is_control() || api::text::is_deceptive(c)));
            }
        }
    }
}
