//! Owner of a Node. Only this module decides it.
//!
//! The name of a Node proves nothing: the author of a list or the host itself chooses it. The report of a host proves nothing either. A
//! Node belongs to a host if
//!
//! - it has the UID that is recorded for the host ([`By::Uid`]);
//! - or the host has reserved the name, because no Node or only a proven Node of the host had it before, and the Node runs Windows and has an address
//!   of the host, or no address yet ([`By::Name`]);
//! - or it runs Windows, this operator or the legacy one has marked it, and it has a proven address of the host: the one at which the host was last
//!   reached, or one of its Machine ([`By::Mark`]).
//!
//! Every other Node counts as the Node of another owner. Before anything is issued, moved away or deleted, the Node must be read from the API server:
//! the operator's cache has only Windows Nodes.

use std::{fmt, net::IpAddr};

use api::{Origin, WindowsInstance, WindowsInstanceStatus, names::key};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

/// Known facts about a host, to tell its Node from other Nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Name of the host's Node.
    pub name: String,
    /// Recorded UID of the host's Node.
    pub uid: Option<String>,
    /// True if the host has reserved the name: no Node had it when the host got its identity, or a proven Node had it.
    pub holds_name: bool,
    /// Address at which the host was last reached with its pinned host key, and the addresses of its Machine. Empty if the host was never reached.
    pub proven: Vec<IpAddr>,
    /// Addresses that the host reports. They count only for a Node that appears under a name that the host has reserved.
    pub reported: Vec<IpAddr>,
}

/// Owner of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeOwner {
    /// No Node has this name.
    Nobodys,
    /// The Node belongs to the host.
    Hosts(By),
    /// The Node belongs to another owner, or its owner is unknown.
    Others(Mismatch),
}

/// Proof that a Node belongs to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Recorded UID of the Node.
    Uid,
    /// Name that the host has reserved, and an address of the host, if the Node has addresses.
    Name,
    /// Mark of an operator, and a proven address of the host.
    Mark,
}

/// Reason why a Node does not count as the Node of a host. The text names the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The Node does not have the label `kubernetes.io/os=windows`.
    NotWindows {
        /// Value of the label `kubernetes.io/os`; empty if the Node does not have this label.
        os: String,
    },
    /// The Node has none of the host's proven addresses.
    OtherAddresses {
        /// Addresses of the Node.
        has: Vec<String>,
        /// Proven addresses of the host.
        proven: Vec<IpAddr>,
    },
    /// No operator has marked the Node as its own.
    Unmarked,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotWindows { os } if os.is_empty() => {
                write!(
                    f,
                    "the Node has no label kubernetes.io/os=windows; add the label if it runs Windows, or give the host another name"
                )
            }
            Self::NotWindows { os } => {
                write!(f, "the Node has the label kubernetes.io/os={os}, not windows; give the host another name")
            }
            Self::OtherAddresses { has, proven } => {
                let proven: Vec<String> = proven.iter().map(ToString::to_string).collect();
                let of_node = if has.is_empty() { "none".to_owned() } else { has.join(", ") };
                let of_host = if proven.is_empty() { "none".to_owned() } else { proven.join(", ") };
                write!(
                    f,
                    "the addresses of the Node ({of_node}) include no known address of the host ({of_host}); give the host another name, or delete the \
                     Node if it is a leftover",
                )
            }
            Self::Unmarked => write!(
                f,
                "no operator has marked the Node as its own; give the host another name, delete the Node if it is a leftover, \
                 or label the Node {}=true if it belongs to this host",
                key::BYOH
            ),
        }
    }
}

/// Returns the known facts about an instance's host. `addresses_of` returns the addresses in the status of a Machine.
pub fn evidence(
    instance: &WindowsInstance,
    status: &WindowsInstanceStatus,
    addresses_of: &dyn Fn(&str) -> Vec<(String, String)>,
) -> Evidence {
    let uid = status.node_ref.as_ref().map(|r| r.uid.clone()).filter(|uid| !uid.is_empty());
    // A Node with another UID than the recorded one appeared after the recorded Node was deleted, even if the deletion was not observed.
    let holds_name = status.holds_node_name || uid.is_some();
    let facts = status.facts.as_ref().filter(|_| holds_name);
    let reported = facts.into_iter().flat_map(|f| f.addresses.iter().chain([&f.node_ip]));
    Evidence {
        name: instance.name_any(),
        holds_name,
        uid,
        proven: proven_addresses(instance.spec.origin.as_ref(), status, addresses_of),
        reported: reported.filter_map(|a| a.parse::<IpAddr>().ok()).map(|ip| ip.to_canonical()).collect(),
    }
}

/// Returns the proven addresses of a host: the one at which it was last reached, and those of its Machine. A host that was never reached
/// has none.
pub fn proven_addresses(
    origin: Option<&Origin>,
    status: &WindowsInstanceStatus,
    addresses_of: &dyn Fn(&str) -> Vec<(String, String)>,
) -> Vec<IpAddr> {
    let Some(reached) = status.proven_address.as_deref().and_then(|a| a.parse::<IpAddr>().ok()) else {
        return Vec::new();
    };
    let of_machine = origin.and_then(|o| o.machine.as_deref()).map(addresses_of).unwrap_or_default();
    let of_machine = of_machine.into_iter().filter_map(|(_, address)| address.parse::<IpAddr>().ok());
    let mut all: Vec<IpAddr> = std::iter::once(reached).chain(of_machine).map(|ip| ip.to_canonical()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Decides who owns the Node with the host's name.
pub fn whose(node: Option<&Node>, evidence: &Evidence) -> NodeOwner {
    let Some(node) = node else { return NodeOwner::Nobodys };
    if evidence.uid.is_some() && node.uid() == evidence.uid {
        return NodeOwner::Hosts(By::Uid);
    }
    let os = node.labels().get("kubernetes.io/os").map_or("", String::as_str);
    if os != "windows" {
        return NodeOwner::Others(Mismatch::NotWindows {
            os: os.chars().filter(|c| !c.is_control()).take(63).collect(),
        });
    }
    let addresses = addresses(node);
    let has_one_of = |known: &[IpAddr]| addresses.iter().any(|a| known.contains(a));
    // A Node that has just registered may have no address yet.
    let of_holder = addresses.is_empty() || has_one_of(&evidence.proven) || has_one_of(&evidence.reported);
    if evidence.holds_name && of_holder {
        return NodeOwner::Hosts(By::Name);
    }
    if !has_one_of(&evidence.proven) {
        let has = addresses.iter().map(ToString::to_string).collect();
        return NodeOwner::Others(Mismatch::OtherAddresses { has, proven: evidence.proven.clone() });
    }
    if is_marked(node) { NodeOwner::Hosts(By::Mark) } else { NodeOwner::Others(Mismatch::Unmarked) }
}

/// Returns the IP addresses that a Node reports, in canonical form.
pub fn addresses(node: &Node) -> Vec<IpAddr> {
    super::addresses(node).filter_map(|a| a.parse::<IpAddr>().ok()).map(|ip| ip.to_canonical()).collect()
}

/// Reports whether a Node runs Windows and has a mark of this operator or the legacy one.
pub fn is_of_operator(node: &Node) -> bool {
    node.labels().get("kubernetes.io/os").is_some_and(|os| os == "windows") && is_marked(node)
}

/// Reports whether a Node has an annotation that the legacy operator writes, and this one keeps.
pub(crate) fn has_annotation(node: &Node) -> bool {
    [key::VERSION, key::DESIRED_VERSION, key::PUB_KEY_HASH, key::USERNAME]
        .iter()
        .any(|k| node.annotations().contains_key(*k))
}

/// Reports whether a Node has a mark of this operator or the legacy one.
fn is_marked(node: &Node) -> bool {
    [key::BYOH, key::POOL].iter().any(|k| node.labels().contains_key(*k)) || has_annotation(node)
}

#[cfg(test)]
mod tests {
    use api::HostFacts;
    use serde_json::json;

    use super::*;

    fn node(os: &str, address: &str, mark: bool) -> Node {
        let addresses =
            if address.is_empty() { json!([]) } else { json!([{"type": "InternalIP", "address": address}]) };
        let annotations = if mark { json!({key::VERSION: "1"}) } else { json!({}) };
        serde_json::from_value(json!({
            "metadata": {"name": "w", "uid": "u1", "labels": {"kubernetes.io/os": os}, "annotations": annotations},
            "status": {"addresses": addresses},
        }))
        .unwrap()
    }

    /// Covers addresses that a certificate may name: a host must not get a certificate for an address that it only reports.
    #[test]
    fn an_address_that_a_host_only_reports_is_not_proven() {
        let machine = |name: &str| match name {
            "openshift-machine-api/m" => {
                [("InternalIP", "10.0.0.7"), ("InternalDNS", "m.example.com"), ("InternalIP", "::ffff:10.0.0.1")]
                    .map(|(kind, address)| (kind.to_owned(), address.to_owned()))
                    .into()
            }
            _ => Vec::new(),
        };
        let of = |machine: &str| Some(Origin { machine: Some(machine.into()), ..Origin::default() });
        for (about, origin, reached, expected) in [
            ("never reached", None, None, &[][..]),
            ("a Machine that was never reached", of("openshift-machine-api/m"), None, &[]),
            ("reached", None, Some("10.0.0.1"), &["10.0.0.1"]),
            ("in another form", None, Some("::ffff:10.0.0.1"), &["10.0.0.1"]),
            ("no address", None, Some("kubernetes.default.svc"), &[]),
            ("its Machine has another", of("openshift-machine-api/m"), Some("10.0.0.1"), &["10.0.0.1", "10.0.0.7"]),
            ("its Machine is not known", of("openshift-machine-api/x"), Some("10.0.0.1"), &["10.0.0.1"]),
        ] {
            let status = WindowsInstanceStatus {
                proven_address: reached.map(Into::into),
                facts: Some(HostFacts {
                    hostname: "kubernetes.default.svc".into(),
                    addresses: vec!["10.96.0.1".into(), "10.0.0.9".into()],
                    node_ip: "10.96.0.1".into(),
                    ..HostFacts::default()
                }),
                ..WindowsInstanceStatus::default()
            };
            let proven: Vec<String> =
                proven_addresses(origin.as_ref(), &status, &machine).iter().map(ToString::to_string).collect();
            assert_eq!(proven, expected, "{about}");
        }
    }

    #[test]
    fn a_node_of_the_same_name_may_belong_to_another_owner() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let reached = Evidence { name: "w".into(), proven: vec![ip("10.0.0.1")], ..Evidence::default() };
        let reported = Evidence { reported: vec![ip("10.0.0.9")], ..reached.clone() };
        let holder = Evidence { holds_name: true, ..reported.clone() };
        let again = Evidence { holds_name: true, uid: Some("u0".into()), ..reached.clone() };
        let known = Evidence { uid: Some("u1".into()), ..Evidence::default() };
        let hosts = |by| Ok(Some(by));
        for (about, node, evidence, expected) in vec![
            ("none", None, &reached, Ok(None)),
            ("the UID on record", Some(node("windows", "10.9.9.9", false)), &known, hosts(By::Uid)),
            ("its mark and the address", Some(node("windows", "10.0.0.1", true)), &reached, hosts(By::Mark)),
            ("in another form", Some(node("windows", "::ffff:10.0.0.1", true)), &reached, hosts(By::Mark)),
            ("a Linux node", Some(node("linux", "10.0.0.1", true)), &reached, Err("NotWindows")),
            ("a Linux node under a reserved name", Some(node("linux", "10.0.0.1", true)), &holder, Err("NotWindows")),
            ("no operating system label", Some(node("", "10.0.0.1", true)), &holder, Err("NotWindows")),
            ("another address", Some(node("windows", "10.0.0.2", true)), &reached, Err("OtherAddresses")),
            ("no address yet", Some(node("windows", "", true)), &reached, Err("OtherAddresses")),
            (
                "an address that the host only reports",
                Some(node("windows", "10.0.0.9", true)),
                &reported,
                Err("OtherAddresses"),
            ),
            ("no mark", Some(node("windows", "10.0.0.1", false)), &reached, Err("Unmarked")),
            ("nothing is proven", Some(node("windows", "10.0.0.1", true)), &Evidence::default(), Err("OtherAddresses")),
            ("a Node under a reserved name", Some(node("windows", "10.0.0.1", false)), &holder, hosts(By::Name)),
            (
                "a Node under a reserved name, without an address yet",
                Some(node("windows", "", false)),
                &holder,
                hosts(By::Name),
            ),
            (
                "a Node under a reserved name, behind NAT",
                Some(node("windows", "10.0.0.9", false)),
                &holder,
                hosts(By::Name),
            ),
            (
                "a Node under a reserved name, with another address",
                Some(node("windows", "10.0.0.2", false)),
                &holder,
                Err("OtherAddresses"),
            ),
            ("recreated", Some(node("windows", "10.0.0.1", false)), &again, hosts(By::Name)),
            ("recreated, with another address", Some(node("windows", "10.0.0.9", true)), &again, Err("OtherAddresses")),
        ] {
            let found = match whose(node.as_ref(), evidence) {
                NodeOwner::Nobodys => Ok(None),
                NodeOwner::Hosts(by) => Ok(Some(by)),
                NodeOwner::Others(Mismatch::NotWindows { .. }) => Err("NotWindows"),
                NodeOwner::Others(Mismatch::OtherAddresses { .. }) => Err("OtherAddresses"),
                NodeOwner::Others(Mismatch::Unmarked) => Err("Unmarked"),
            };
            assert_eq!(found, expected, "{about}");
        }
    }

    #[test]
    fn a_mismatch_names_what_is_known() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let other = |has: &[&str], proven: Vec<IpAddr>| Mismatch::OtherAddresses {
            has: has.iter().map(|a| (*a).to_owned()).collect(),
            proven,
        };
        for (mismatch, parts) in [
            (Mismatch::NotWindows { os: "linux".into() }, ["kubernetes.io/os=linux", "another name"]),
            (Mismatch::NotWindows { os: String::new() }, ["no label kubernetes.io/os=windows", "add the label"]),
            (other(&["10.0.0.2"], vec![ip("10.0.0.1")]), ["Node (10.0.0.2)", "host (10.0.0.1)"]),
            (other(&["10.0.0.2"], Vec::new()), ["Node (10.0.0.2)", "host (none)"]),
            (other(&[], vec![ip("10.0.0.1")]), ["Node (none)", "host (10.0.0.1)"]),
            (Mismatch::Unmarked, ["no operator has marked", "=true"]),
        ] {
            let text = mismatch.to_string();
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    }
}
