//! Claims of hosts: the proven facts about each host, for the verdict on its certificate requests.
//!
//! The proven values of a host are the address at which it was last reached with its pinned host key and machine id, the addresses in the status
//! of its Machine, the name of its Node, and the host name that it reports, if that is the first label of the Node's name. Values that belong to the
//! cluster ([`Reserved`]) or to another host ([`Neighbours`]) are excluded. Other values that the Node reports are not proven: requests for these
//! are neither approved nor denied.

pub mod neighbours;
pub mod reserved;

use std::{collections::BTreeSet, net::IpAddr};

use api::{WindowsInstance, WindowsInstanceStatus, names::key};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::Claim;
use crate::{
    node::{self, owner::is_of_operator},
    operation::remove,
};
use neighbours::Neighbours;
use reserved::Reserved;

/// Service account of the legacy operator's daemon.
const LEGACY_DAEMON: &str = "windows-instance-config-daemon";

/// Inputs of [`claim`] other than the instance and its status.
pub struct ClaimInputs<'a> {
    /// Proven IP addresses of the host.
    pub proven: Vec<IpAddr>,
    /// Addresses of the host's Machine: names and IP addresses.
    pub machine: Vec<String>,
    /// Addresses and names that belong to the cluster.
    pub reserved: &'a Reserved,
    /// Known addresses and names of other hosts.
    pub neighbours: &'a Neighbours,
    /// Node of the host.
    pub node: Option<&'a Node>,
    /// Namespace of this operator and of the legacy one.
    pub namespace: &'a str,
}

/// Returns the claim for the host of an instance.
pub fn claim(instance: &WindowsInstance, status: &WindowsInstanceStatus, inputs: &ClaimInputs<'_>) -> Claim {
    let name = instance.name_any();
    let facts = status.facts.as_ref();
    let is_free = |ip: &IpAddr| inputs.reserved.allows_address(*ip) && !inputs.neighbours.has_address(*ip, &name);
    let is_unused = |dns: &String| inputs.reserved.allows_name(dns) && !inputs.neighbours.has_name(dns, &name);

    let reported = facts.map(|f| f.hostname.to_ascii_lowercase());
    let reported = reported.filter(|reported| name.split('.').next() == Some(reported));
    let of_machine = inputs.machine.iter().filter(|a| a.parse::<IpAddr>().is_err()).map(|a| a.to_ascii_lowercase());
    // The names of a Machine count only after its host has been reached.
    let of_machine = of_machine.filter(|_| !inputs.proven.is_empty());
    let dns_names = unique([name.clone()].into_iter().chain(reported).chain(of_machine).filter(is_unused));
    let addresses: Vec<IpAddr> = inputs.proven.iter().copied().filter(is_free).collect();
    let proven = status.proven_address.is_some() && status.host_key.is_some();
    let (joined, ended) = (status.node_ref.is_some(), status.operation.as_ref().is_some_and(remove::is_deconfiguring));
    let by_node = inputs.node.filter(|node| !proven && is_of_operator(node));
    if let Some(node) = by_node {
        let of_node = of_node(node, inputs.reserved, inputs.neighbours);
        let legacy_daemon = Some(legacy_daemon(inputs.namespace));
        return Claim { unclaimed: false, legacy_daemon, joined, ended, ..of_node };
    }

    let (ips, names) = split(inputs.node.into_iter().flat_map(node::addresses));
    // An address that two hosts claim is proven for neither but may be correct, so neighbours are not excluded here.
    let unproven = |ip: &IpAddr| inputs.reserved.allows_address(*ip) && !addresses.contains(ip);
    let reported_addresses = ips.into_iter().filter(unproven).collect();
    let reported_names = names.into_iter().filter(|n| is_unused(n) && !dns_names.contains(n)).collect();
    Claim {
        legacy_daemon: (!proven || runs_legacy_software(status, inputs.node)).then(|| legacy_daemon(inputs.namespace)),
        node_name: name,
        addresses,
        dns_names,
        reported_addresses,
        reported_names,
        joined,
        proven,
        ended,
        renews: false,
        unclaimed: false,
    }
}

/// Returns the user name of the legacy operator's daemon.
fn legacy_daemon(namespace: &str) -> String {
    format!("system:serviceaccount:{namespace}:{LEGACY_DAEMON}")
}

/// Returns the claim for a Node that an operator created and whose host is not proven: the names and addresses for which it may renew
/// certificates. A Node's report is only a claim, so an address that another Node reports, too, does not count.
pub fn of_node(node: &Node, reserved: &Reserved, neighbours: &Neighbours) -> Claim {
    let name = node.name_any();
    let (ips, names) = split(node::addresses(node).filter(|a| !neighbours.is_reported_by_another(a, &name)));
    let is_free = |ip: &IpAddr| reserved.allows_address(*ip) && !neighbours.has_address(*ip, &name);
    let is_unused = |dns: &String| reserved.allows_name(dns) && !neighbours.has_name(dns, &name);
    Claim {
        addresses: ips.into_iter().filter(is_free).collect(),
        dns_names: unique(names.into_iter().chain([name.clone()]).filter(is_unused)),
        joined: true,
        renews: true,
        unclaimed: true,
        node_name: name,
        ..Claim::default()
    }
}

/// Splits the addresses of a Node into IP addresses and names.
fn split<'a>(addresses: impl Iterator<Item = &'a str>) -> (Vec<IpAddr>, Vec<String>) {
    let (mut ips, mut names) = (Vec::new(), Vec::new());
    for address in addresses {
        match address.parse() {
            Ok(ip) => ips.push(ip),
            Err(_) => names.push(address.to_owned()),
        }
    }
    (ips, names)
}

fn unique(names: impl Iterator<Item = String>) -> Vec<String> {
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Reports whether the proofs about a host changed in a way that may decide a waiting request.
pub fn proofs_differ(before: &WindowsInstance, after: &WindowsInstance) -> bool {
    let proof = |instance: &WindowsInstance| {
        let status = instance.status.as_ref()?;
        let is_leaving = status.operation.as_ref().is_some_and(remove::is_deconfiguring);
        Some((status.proven_address.clone(), status.host_key.is_some(), status.node_ref.is_some(), is_leaving))
    };
    proof(before) != proof(after)
}

/// Reports whether the host is an adopted node that still runs the legacy operator's software, including its daemon.
fn runs_legacy_software(status: &WindowsInstanceStatus, node: Option<&Node>) -> bool {
    let follows = node.and_then(|n| n.annotations().get(key::VERSION));
    let is_changed = status.operation.as_ref().is_some_and(|o| o.applied);
    status.wicd.is_none()
        && status.current_version.is_some()
        && status.current_version.as_ref() == follows
        && !is_changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{GrantType, HostFacts, InstanceHost, NodeRef, Operation, PinnedHostKey, WindowsInstanceSpec};
    use serde_json::json;

    fn reserved() -> Reserved {
        Reserved::of(
            &crate::render::Cluster {
                api_server: "https://10.1.0.5:6443".into(),
                service_cidr: "10.96.0.0/16".into(),
                cluster_domain: "cluster.local".into(),
                ..crate::render::Cluster::default()
            },
            false,
        )
    }

    fn status() -> WindowsInstanceStatus {
        WindowsInstanceStatus {
            facts: Some(HostFacts {
                hostname: "WIN-1".into(),
                node_ip: "10.96.0.1".into(),
                addresses: vec!["10.96.0.1".into(), "10.0.0.7".into()],
                ..HostFacts::default()
            }),
            proven_address: Some("10.0.0.1".into()),
            host_key: Some(PinnedHostKey::default()),
            node_ref: Some(NodeRef { name: "win-1".into(), uid: "u".into() }),
            ..WindowsInstanceStatus::default()
        }
    }

    fn built(
        name: &str,
        status: &WindowsInstanceStatus,
        machine: &[&str],
        says: &[&str],
        others: &Neighbours,
    ) -> Claim {
        let host = InstanceHost { name: name.into(), address: "192.0.2.9".into(), ..InstanceHost::default() };
        let instance = WindowsInstance::new(name, WindowsInstanceSpec { host, ..WindowsInstanceSpec::default() });
        let addresses: Vec<_> = says.iter().map(|a| json!({"type": "InternalIP", "address": a})).collect();
        let node = json!({"metadata": {"name": name, "annotations": {key::VERSION: "legacy"}}, "status": {"addresses": addresses}});
        let node: Node = serde_json::from_value(node).unwrap();
        let reached = status.proven_address.iter().map(String::as_str);
        let proven = reached.chain(machine.iter().copied()).filter_map(|a| a.parse().ok()).collect();
        let machine = machine.iter().map(|a| (*a).to_owned()).collect();
        let reserved = reserved();
        let inputs = ClaimInputs {
            proven,
            machine,
            reserved: &reserved,
            neighbours: others,
            node: Some(&node),
            namespace: "ns",
        };
        claim(&instance, status, &inputs)
    }

    /// Returns the names that a certificate may have, and the reported names, which are neither approved nor denied.
    fn names(claim: &Claim) -> (String, String) {
        let text = |ips: &[IpAddr], names: &[String]| {
            ips.iter().map(ToString::to_string).chain(names.iter().cloned()).collect::<Vec<_>>().join(" ")
        };
        (text(&claim.addresses, &claim.dns_names), text(&claim.reported_addresses, &claim.reported_names))
    }

    #[test]
    fn a_false_report_adds_no_name_to_a_certificate() {
        let none = Neighbours::default();
        let with = |hostname: &str| {
            let mut status = status();
            status.facts.as_mut().unwrap().hostname = hostname.into();
            status
        };
        for (about, name, status, machine, says, proven, left) in vec![
            ("no false report", "win-1", status(), &[][..], &["10.0.0.1", "win-1"][..], "10.0.0.1 win-1", ""),
            ("another address that it reports", "win-1", status(), &[], &["10.0.0.7"], "10.0.0.1 win-1", "10.0.0.7"),
            ("an address of a Service", "win-1", status(), &[], &["10.96.0.1"], "10.0.0.1 win-1", ""),
            ("the address of the API server", "win-1", status(), &[], &["10.1.0.5"], "10.0.0.1 win-1", ""),
            (
                "a false host name",
                "win-1",
                with("kubernetes.default.svc"),
                &[],
                &["kubernetes.default.svc"],
                "10.0.0.1 win-1",
                "",
            ),
            (
                "a name below its own",
                "win-1",
                with("win-1.evil.example"),
                &[],
                &["win-1.evil.example"],
                "10.0.0.1 win-1",
                "win-1.evil.example",
            ),
            (
                "the first label of its name",
                "win-1.corp.example",
                with("WIN-1"),
                &[],
                &[],
                "10.0.0.1 win-1 win-1.corp.example",
                "",
            ),
            (
                "only a part of the first label",
                "win-1.corp.example",
                with("win"),
                &[],
                &[],
                "10.0.0.1 win-1.corp.example",
                "",
            ),
            ("a reserved name in the list", "kubernetes.default.svc", with("kubernetes"), &[], &[], "10.0.0.1", ""),
            (
                "names and addresses of its Machine",
                "win-1",
                status(),
                &["203.0.113.1", "10.96.0.1", "IP-10-0-0-1.ec2.internal", "kubernetes.default"],
                &["203.0.113.1", "ip-10-0-0-1.ec2.internal"],
                "10.0.0.1 203.0.113.1 ip-10-0-0-1.ec2.internal win-1",
                "",
            ),
        ] {
            let claim = built(name, &status, machine, says, &none);
            assert_eq!(names(&claim), (proven.to_owned(), left.to_owned()), "{about}");
        }
    }

    type Change = fn(&mut WindowsInstanceStatus);

    #[test]
    fn a_proof_and_a_node_change_the_claim_and_a_step_does_not() {
        let instance = |status: Option<WindowsInstanceStatus>| {
            let mut instance = WindowsInstance::new("win-1", WindowsInstanceSpec::default());
            instance.status = status;
            instance
        };
        let proven = instance(Some(status()));
        let cases: [(&str, Change, bool); 6] = [
            ("nothing", |_| (), false),
            ("a step", |s| s.operation = Some(Operation { applied: true, ..Operation::default() }), false),
            ("it is not proven", |s| s.proven_address = None, true),
            ("another address", |s| s.proven_address = Some("10.0.0.2".into()), true),
            ("its key is not known", |s| s.host_key = None, true),
            ("it has no Node", |s| s.node_ref = None, true),
        ];
        for (about, change, expected) in cases {
            let mut status = status();
            change(&mut status);
            let other = instance(Some(status));
            assert_eq!(proofs_differ(&proven, &other), expected, "{about}");
            assert_eq!(proofs_differ(&other, &proven), expected, "{about}");
        }
        assert!(proofs_differ(&instance(None), &proven));
    }

    #[test]
    fn names_and_addresses_of_other_hosts_are_not_certified() {
        let other: Node = serde_json::from_value(json!({
            "metadata": {"name": "master-0", "labels": {"node-role.kubernetes.io/control-plane": ""}},
            "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
        }))
        .unwrap();
        let others = Neighbours::gather(&[], &[other]);
        let claim =
            built("win-1", &status(), &["10.0.0.1", "10.0.0.2", "master-0"], &["10.0.0.1", "master-0"], &others);
        assert_eq!(names(&claim), ("10.0.0.2 win-1".to_owned(), "10.0.0.1".to_owned()));
    }

    #[test]
    fn a_host_that_is_not_proven_renews_what_its_node_alone_reports() {
        let node = |name: &str, os: &str, annotation: &str, address: &str| -> Node {
            serde_json::from_value(json!({
                "metadata": {"name": name, "labels": {"kubernetes.io/os": os}, "annotations": {annotation: "x"}},
                "status": {"addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}]},
            }))
            .unwrap()
        };
        let others = Neighbours::gather(&[], &[node("linux-1", "linux", "x", "10.0.0.2")]);
        let proven = WindowsInstanceStatus { node_ref: None, ..status() };
        let blank = WindowsInstanceStatus::default;
        for (about, status, os, annotation, address, renews, addresses) in [
            ("not proven", blank(), "windows", key::VERSION, "10.0.0.1", true, &["10.0.0.1"][..]),
            ("an address of another Node", blank(), "windows", key::VERSION, "10.0.0.2", true, &[]),
            ("an address of another Node, as IPv6", blank(), "windows", key::VERSION, "::ffff:10.0.0.2", true, &[]),
            ("the address of the API server", blank(), "windows", key::VERSION, "10.1.0.5", true, &[]),
            ("no operator has made it", blank(), "windows", "x", "10.0.0.1", false, &[]),
            ("another operating system", blank(), "linux", key::VERSION, "10.0.0.1", false, &[]),
            ("it is proven", proven, "windows", key::VERSION, "10.0.0.9", false, &["10.0.0.1"]),
        ] {
            let instance = WindowsInstance::new("win-1", WindowsInstanceSpec::default());
            let (node, reserved) = (node("win-1", os, annotation, address), reserved());
            let proven = status.proven_address.iter().filter_map(|a| a.parse().ok()).collect();
            let inputs = ClaimInputs {
                proven,
                machine: vec![],
                reserved: &reserved,
                neighbours: &others,
                node: Some(&node),
                namespace: "ns",
            };
            let claim = claim(&instance, &status, &inputs);
            let found: Vec<String> = claim.addresses.iter().map(ToString::to_string).collect();
            assert_eq!((claim.renews, found), (renews, addresses.iter().map(|a| (*a).to_owned()).collect()), "{about}");
            assert!(!claim.unclaimed, "{about}");
        }
    }

    #[test]
    fn the_legacy_daemon_requests_certificates_only_for_nodes_that_it_still_manages() {
        let none = Neighbours::default();
        let adopted = WindowsInstanceStatus { current_version: Some("legacy".into()), ..status() };
        let applied = Operation { applied: true, ..Operation::default() };
        for (about, status, expected) in [
            ("adopted and not changed", adopted.clone(), true),
            ("not adopted yet", status(), false),
            ("it runs our daemon", WindowsInstanceStatus { wicd: Some("x".into()), ..adopted.clone() }, false),
            // The request of an unproven host only waits.
            ("it was never reached", WindowsInstanceStatus::default(), true),
            ("it is being changed", WindowsInstanceStatus { operation: Some(applied), ..adopted.clone() }, false),
            (
                "it follows another version",
                WindowsInstanceStatus { current_version: Some("ours".into()), ..adopted },
                false,
            ),
        ] {
            let claim = built("win-1", &status, &[], &[], &none);
            let user = expected.then(|| "system:serviceaccount:ns:windows-instance-config-daemon".to_owned());
            assert_eq!(claim.legacy_daemon, user, "{about}");
        }
    }

    #[test]
    fn a_host_that_is_being_deconfigured_gets_no_certificate() {
        let none = Neighbours::default();
        for (step, expected) in
            [("Cordon", false), ("Drain", false), ("Deconfigure", true), ("DeleteNode", true), ("Certify", false)]
        {
            for (type_, ends) in [(GrantType::Remove, expected), (GrantType::Update, false)] {
                let operation = Some(Operation { step: step.into(), type_, ..Operation::default() });
                let claim = built("win-1", &WindowsInstanceStatus { operation, ..status() }, &[], &[], &none);
                assert_eq!(claim.ended, ends, "{type_:?} {step}");
            }
        }
    }
}
