//! Conversion of Machines into hosts. Pure.

use std::{collections::BTreeMap, net::IpAddr};

use api::{Host, InventoryStatus, MachineGroup, Origin, Reason};

use super::{
    provider_id::ProviderIds,
    read::{Machine, Source},
};
use crate::{
    inventory::{Departures, Entry, EntryError, HostList},
    node::permitted::is_label,
    render::Platform,
};

/// Inputs of [`list`] other than the Machines.
#[derive(Clone, Debug, Default)]
pub struct ListInputs {
    /// Platform of the cluster.
    pub platform: Platform,
    /// True if the pool sets the user for the login.
    pub pool_has_user: bool,
    /// Names of the existing instances, by `<namespace>/<name>` of their Machines.
    pub instances: BTreeMap<String, String>,
}

/// Returns the hosts of a source.
///
/// A Machine is a host as soon as it is provisioned. Once the Machine has an instance, it stays listed in every phase: a user must check a failed
/// Machine. A Machine that is being deleted or ignored is not listed.
pub fn list(source: &Source, machines: &[Machine], inputs: &ListInputs) -> HostList {
    let mut listing = HostList {
        status: Some(InventoryStatus { source: source.to_string(), ..InventoryStatus::default() }),
        ..HostList::default()
    };
    let provider_ids = ProviderIds::of(machines);
    let ours = |m: &&Machine| m.source.as_ref() == Some(source) && m.windows && !m.ignored;
    for machine in machines.iter().filter(ours) {
        let instance = inputs.instances.get(&machine.key());
        let is_there = matches!(machine.phase.as_str(), "Provisioned" | "Running");
        if machine.deleting || (!is_there && instance.is_none()) {
            continue;
        }
        let name = instance.cloned().unwrap_or_else(|| name(machine, inputs.platform));
        let mut refuse = |reason, message| {
            listing.problems.push(EntryError { host: name.clone(), reason, message });
        };
        let Some(address) = address(machine) else {
            refuse(
                Reason::NoAddress,
                format!(
                    "the Machine {} has no internal address in its status; the operator uses the host once the provider of the Machine reports one",
                    machine.key()
                ),
            );
            continue;
        };
        if !is_host_name(&name) {
            let message = format!(
                "the host of Machine {} would get the invalid name {name:?}; replace the Machine by one whose name (on AWS, the private DNS name of its instance) has at most 63 letters, digits, `-` and `.`, with a letter or digit at both ends of each part",
                machine.key()
            );
            refuse(Reason::InvalidInventory, message);
            continue;
        }
        let username = (!inputs.pool_has_user).then(|| username(inputs.platform).to_owned());
        let provider_id = provider_ids.usable(machine).ok().flatten().map(Into::into);
        let origin =
            Origin { source: source.to_string(), machine: Some(machine.key()), provider_id, ..Origin::default() };
        let host = Host { name, address: address.to_owned(), username, ..Host::default() };
        listing.entries.push(Entry { host, origin: Some(origin) });
    }
    // A Machine may name the Node of another one, for example if both have one provider ID: the host stays with its own Machine.
    let is_new = |e: &Entry| {
        e.origin.as_ref().and_then(|o| o.machine.as_ref()).is_none_or(|m| !inputs.instances.contains_key(m))
    };
    listing.entries.sort_by_cached_key(|e| (e.host.name.clone(), is_new(e)));
    listing
}

/// Returns the instances that leave because of their Machines. `instances` has pairs of the `<namespace>/<name>` of a Machine and its instance,
/// `machines` are all Machines of the API. A Machine that exists and is neither deleted nor ignored keeps its host, even if another MachineSet
/// owns it now.
pub fn departures(group: MachineGroup, machines: &[Machine], instances: &[(String, String)]) -> Departures {
    let mut departures = Departures::default();
    for (key, instance) in instances {
        let machine = machines.iter().find(|m| m.key() == *key && m.source.as_ref().is_some_and(|s| s.group == group));
        match machine {
            None => drop(departures.vanishing.insert(instance.clone())),
            Some(m) if m.deleting => drop(departures.vanishing.insert(instance.clone())),
            Some(m) if m.ignored => drop(departures.dismissed.insert(instance.clone())),
            Some(_) => {}
        }
    }
    departures
}

/// Returns the user for the login to a platform's images.
fn username(platform: Platform) -> &'static str {
    match platform {
        Platform::Azure => "capi",
        _ => "Administrator",
    }
}

/// Returns the first internal IPv4 address, otherwise the first internal IPv6 address, otherwise an internal DNS name, if there is one.
fn address(machine: &Machine) -> Option<&str> {
    let of = |kind: &'static str| {
        machine.addresses.iter().filter(move |a| a.kind == kind && !a.address.is_empty()).map(|a| a.address.as_str())
    };
    let ip = |wanted: fn(&IpAddr) -> bool| of("InternalIP").find(|a| a.parse().as_ref().is_ok_and(wanted));
    ip(IpAddr::is_ipv4).or_else(|| ip(IpAddr::is_ipv6)).or_else(|| of("InternalDNS").next())
}

/// Returns the name of a Machine's Node, or the name that the Node will have. On AWS, the cloud provider identifies a node by the private DNS name of
/// its instance.
fn name(machine: &Machine, platform: Platform) -> String {
    let dns = || machine.addresses.iter().find(|a| a.kind == "InternalDNS" && !a.address.is_empty());
    let name = match (&machine.node, platform) {
        (Some(node), _) => node,
        (None, Platform::Aws) => dns().map_or(&machine.name, |a| &a.address),
        (None, _) => &machine.name,
    };
    name.to_ascii_lowercase()
}

fn is_host_name(name: &str) -> bool {
    name.len() <= 63 && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::read::Address;
    use proptest::prelude::*;

    fn source() -> Source {
        Source { group: MachineGroup::OpenShift, namespace: "ns".into(), set: Some("win".into()) }
    }

    fn machine(name: &str, phase: &str, addresses: &[(&str, &str)]) -> Machine {
        Machine {
            source: Some(source()),
            name: name.into(),
            uid: name.into(),
            windows: true,
            phase: phase.into(),
            addresses: addresses.iter().map(|(k, a)| Address { kind: (*k).into(), address: (*a).into() }).collect(),
            ..Machine::default()
        }
    }

    const IP: &[(&str, &str)] = &[("InternalIP", "10.0.0.7")];

    #[test]
    fn a_host_leaves_only_when_its_machine_is_missing_deleted_or_ignored() {
        let with = |change: fn(&mut Machine)| {
            let mut machine = machine("m", "Running", IP);
            change(&mut machine);
            vec![machine]
        };
        let of_cluster_api = |m: &mut Machine| m.source = Some(Source { group: MachineGroup::ClusterApi, ..source() });
        // Columns: name, Machines, host vanishes, host is dismissed.
        for (about, machines, vanishing, dismissed) in [
            ("existing", with(|_| ()), false, false),
            ("missing", vec![], true, false),
            ("a Machine of that name in another API", with(of_cluster_api), true, false),
            ("being deleted", with(|m| m.deleting = true), true, false),
            ("failed", with(|m| m.phase = "Failed".into()), false, false),
            ("ignored", with(|m| m.ignored = true), false, true),
            ("ignored and being deleted", with(|m| (m.ignored, m.deleting) = (true, true)), true, false),
            ("without the label for Windows", with(|m| m.windows = false), false, false),
            ("of another MachineSet", with(|m| m.source = Some(Source { set: None, ..source() })), false, false),
        ] {
            let found = departures(MachineGroup::OpenShift, &machines, &[("ns/m".into(), "w".into())]);
            assert_eq!(
                (found.vanishing.contains("w"), found.dismissed.contains("w")),
                (vanishing, dismissed),
                "{about}"
            );
        }
    }

    #[test]
    fn a_machine_is_a_host_from_its_provisioning_until_its_deletion() {
        let with = |change: fn(&mut Machine)| {
            let mut machine = machine("m", "Running", IP);
            change(&mut machine);
            machine
        };
        let other = |m: &mut Machine| m.source = Some(Source { set: None, ..source() });
        // Columns: name, Machine, instance exists, Machine is listed.
        for (about, machine, has_instance, listed) in [
            ("running", with(|_| ()), false, true),
            ("provisioned", with(|m| m.phase = "Provisioned".into()), false, true),
            ("provisioning", with(|m| m.phase = "Provisioning".into()), false, false),
            ("no phase", with(|m| m.phase = String::new()), false, false),
            ("failed before", with(|m| m.phase = "Failed".into()), false, false),
            ("failed later", with(|m| m.phase = "Failed".into()), true, true),
            ("deleted before", with(|m| m.deleting = true), false, false),
            ("deleted later", with(|m| (m.deleting, m.phase) = (true, "Deleting".into())), true, false),
            ("ignored", with(|m| m.ignored = true), false, false),
            ("ignored later", with(|m| m.ignored = true), true, false),
            ("not Windows", with(|m| m.windows = false), false, false),
            ("without an owner", with(other), false, false),
        ] {
            let instances = has_instance.then(|| ("ns/m".to_string(), "old-name".to_string())).into_iter().collect();
            let listing = list(&source(), &[machine], &ListInputs { instances, ..ListInputs::default() });
            assert_eq!(listing.entries.len(), usize::from(listed), "{about}");
            assert!(listing.problems.is_empty(), "{about}");
            if let (Some(entry), true) = (listing.entries.first(), has_instance) {
                assert_eq!(entry.host.name, "old-name", "{about}");
            }
        }
    }

    #[test]
    fn a_machine_that_names_the_node_of_another_comes_after_it() {
        for names in [["a", "z"], ["z", "a"]] {
            let machines = names.map(|name| Machine { node: Some("win".into()), ..machine(name, "Running", IP) });
            let instances = [("ns/z".to_string(), "win".to_string())].into();
            let listing = list(&source(), &machines, &ListInputs { instances, ..ListInputs::default() });
            let origins: Vec<_> = listing.entries.iter().filter_map(|e| e.origin.clone()?.machine).collect();
            assert_eq!(origins, ["ns/z", "ns/a"]);
        }
    }

    #[test]
    fn name_address_and_user_follow_the_platform() {
        let dns = &[("InternalDNS", "IP-10-0-0-7.ec2.internal"), ("InternalIP", "10.0.0.7"), ("ExternalIP", "1.2.3.4")];
        let six = &[("InternalIP", "fd00::7"), ("InternalDNS", "m.example.com")];
        let both = &[("InternalIP", "fd00::7"), ("InternalIP", "10.0.0.8"), ("InternalIP", "10.0.0.9")];
        let name_only = &[("ExternalIP", "1.2.3.4"), ("InternalDNS", "m.example.com")];
        for (about, platform, addresses, node, name, address, user) in [
            ("AWS", Platform::Aws, &dns[..], None, "ip-10-0-0-7.ec2.internal", "10.0.0.7", "Administrator"),
            ("AWS, no name yet", Platform::Aws, IP, None, "win-x", "10.0.0.7", "Administrator"),
            ("Azure", Platform::Azure, &dns[..], None, "win-x", "10.0.0.7", "capi"),
            ("vSphere", Platform::Vsphere, &six[..], None, "win-x", "fd00::7", "Administrator"),
            ("both families", Platform::Gcp, &both[..], None, "win-x", "10.0.0.8", "Administrator"),
            ("a name alone", Platform::None, &name_only[..], None, "win-x", "m.example.com", "Administrator"),
            ("its Node", Platform::Aws, &dns[..], Some("Node-7"), "node-7", "10.0.0.7", "Administrator"),
        ] {
            let mut machine = machine("Win-X", "Running", addresses);
            machine.node = node.map(Into::into);
            let listing = list(&source(), &[machine], &ListInputs { platform, ..ListInputs::default() });
            let host = &listing.entries[0].host;
            let seen = (host.name.as_str(), host.address.as_str(), host.username.as_deref());
            assert_eq!(seen, (name, address, Some(user)), "{about}");
            let origin = listing.entries[0].origin.clone().unwrap();
            assert_eq!((origin.source.as_str(), origin.machine.as_deref()), ("MachineSet ns/win", Some("ns/Win-X")));
        }
        let inputs = ListInputs { pool_has_user: true, platform: Platform::Azure, ..ListInputs::default() };
        let listing = list(&source(), &[machine("m", "Running", IP)], &inputs);
        assert_eq!(listing.entries[0].host.username, None, "the user in the pool takes precedence");
    }

    #[test]
    fn each_unusable_machine_is_a_problem() {
        let machines = [
            machine("good", "Running", IP),
            machine(
                "silent",
                "Provisioned",
                &[("ExternalIP", "1.2.3.4"), ("InternalIP", ""), ("InternalIP", "nonsense")],
            ),
            machine("under_score", "Running", IP),
            machine(&"a".repeat(64), "Running", IP),
        ];
        let listing = list(&source(), &machines, &ListInputs::default());
        assert_eq!(listing.entries.len(), 1);
        let reasons: Vec<(&str, &str)> =
            listing.problems.iter().map(|p| (p.host.as_str(), p.reason.as_str())).collect();
        let long = "a".repeat(64);
        assert_eq!(
            reasons,
            [("silent", "NoAddress"), ("under_score", "InvalidInventory"), (&long, "InvalidInventory")]
        );
    }

    proptest! {
        #[test]
        fn every_listed_host_has_a_name_that_the_crd_takes(name in ".{0,70}", dns in ".{0,70}", aws in any::<bool>()) {
            let machine = machine(&name, "Running", &[("InternalDNS", &dns), ("InternalIP", "10.0.0.7")]);
            let platform = if aws { Platform::Aws } else { Platform::None };
            let listing = list(&source(), &[machine], &ListInputs { platform, ..ListInputs::default() });
            prop_assert_eq!(listing.entries.len() + listing.problems.len(), 1);
            for entry in listing.entries {
                let name = entry.host.name;
                prop_assert!((1..=63).contains(&name.len()));
                prop_assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.'));
            }
        }
    }
}
