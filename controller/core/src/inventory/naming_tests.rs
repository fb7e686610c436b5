//! Tests of names for hosts that are listed without one.

use super::*;
use proptest::prelude::*;

const KEY: &str = "SHA256:mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE";

fn entry(address: &str) -> Entry {
    Entry { host: Host { address: address.into(), ..Host::default() }, origin: None }
}

fn identity(hostname: &str, boot_id: &str) -> Identity {
    Identity { host_key: KEY.into(), hostname: hostname.into(), machine_id: "m".into(), boot_id: boot_id.into() }
}

fn existing(name: &str, address: &str) -> Existing {
    Existing {
        name: name.into(),
        place: (address.into(), 22),
        is_foreign: false,
        identity: Some(identity(&name.to_uppercase(), "1")),
    }
}

/// Returns the first contact with a host that reports this hostname at an address.
fn calls_itself(hostname: &str, dialed: &str) -> FirstContact {
    FirstContact {
        host_key: KEY.into(),
        dialed: dialed.into(),
        hostname: Some(hostname.into()),
        machine_id: Some("m".into()),
        boot_id: Some("1".into()),
        ..FirstContact::default()
    }
}

/// Known facts of a case.
#[derive(Default)]
struct World {
    existing: Vec<Existing>,
    /// Names and addresses of Nodes.
    nodes: Vec<(&'static str, &'static str)>,
    dns: Vec<(&'static str, Vec<&'static str>)>,
    contacts: Vec<(&'static str, FirstContact)>,
    failures: Vec<&'static str>,
    taken: Vec<&'static str>,
    is_strict: bool,
}

impl World {
    fn name(&self, addresses: &[&str], port: i32) -> Named {
        let names = Names {
            existing: &self.existing,
            nodes_at: &|at| self.nodes.iter().filter(|(_, a)| *a == at).map(|(n, _)| (*n).to_owned()).collect(),
            resolved: &|name| {
                let found = self.dns.iter().find(|(n, _)| *n == name);
                found.map(|(_, ips)| ips.iter().map(ToString::to_string).collect())
            },
            forbidden: &|_| self.is_strict.then(|| (Reason::HostKeyUnknown, String::new())),
            contact: &|(at, _)| self.contacts.iter().find(|(a, _)| a == at).map(|(_, c)| c.clone()),
            failure: &|(at, _)| self.failures.iter().any(|a| a == at).then(|| (Reason::HostnameUnknown, String::new())),
            owner: &|name| match name {
                "unknown" => Err("the API server does not answer".into()),
                _ => Ok(self.taken.contains(&name).then(|| format!("the Node {name}"))),
            },
        };
        name(addresses.iter().map(|a| entry(a)).collect(), port, &names)
    }

    /// Returns the names in the order of their entries, the reasons of problems, the number of unnamed hosts, and the number of hosts to ask.
    fn seen(&self, addresses: &[&str], port: i32) -> (String, String, usize, usize) {
        let named = self.name(addresses, port);
        let names: Vec<&str> = named.entries.iter().map(|e| e.host.name.as_str()).collect();
        let reasons: Vec<&str> = named.problems.iter().map(|p| p.reason.as_str()).collect();
        (names.join(" "), reasons.join(" "), named.unnamed.len(), named.to_ask.len())
    }
}

#[test]
fn a_host_keeps_its_name_and_a_new_host_reports_it() {
    let foreign = Existing { is_foreign: true, ..existing("theirs", "10.0.0.8") };
    let world = World {
        existing: vec![existing("known", "10.0.0.1"), foreign],
        nodes: vec![("old-node", "10.0.0.2"), ("ip-10-0-0-7.ec2.internal", "10.0.0.7")],
        dns: vec![("dn-0.example.com", vec!["10.0.0.7"]), ("nat.example.com", vec!["192.0.2.1"])],
        contacts: vec![
            ("10.0.0.3", calls_itself("WIN-3", "10.0.0.3")),
            ("10.0.0.4", calls_itself("WIN_4", "10.0.0.4")),
            ("10.0.0.9", FirstContact { hostname: None, ..calls_itself("", "10.0.0.9") }),
            ("nat.example.com", calls_itself("dn-0", "10.0.0.7")),
        ],
        failures: vec!["10.0.0.5"],
        ..World::default()
    };
    for (about, address, name, problem, unnamed, asked) in [
        ("name of the instance", "10.0.0.1", "known", "", 0, 0),
        ("name of the instance of another pool", "10.0.0.8", "theirs", "", 0, 0),
        ("name of the Node", "10.0.0.2", "old-node", "", 0, 0),
        (
            "name of the Node that has the addresses of the DNS name",
            "dn-0.example.com",
            "ip-10-0-0-7.ec2.internal",
            "",
            0,
            0,
        ),
        ("name of the Node that has the dialed address", "nat.example.com", "ip-10-0-0-7.ec2.internal", "", 0, 0),
        ("reported name", "10.0.0.3", "win-3", "", 0, 0),
        ("no usable name is reported", "10.0.0.4", "", "InvalidInventory", 1, 1),
        ("could not be asked", "10.0.0.5", "", "HostnameUnknown", 1, 1),
        ("not asked yet", "10.0.0.6", "", "", 1, 1),
        ("contacted and not asked yet", "10.0.0.9", "", "", 1, 1),
        ("not looked up yet", "new.example.com", "", "", 1, 0),
    ] {
        assert_eq!(world.seen(&[address], 22), (name.into(), problem.into(), unnamed, asked), "{about}");
    }
}

#[test]
fn an_entry_with_another_spelling_or_port_means_the_same_host() {
    let world = |address: &'static str| World {
        existing: vec![existing("win-1", address), existing("other", "10.0.0.9")],
        dns: vec![("win-1.example.com", vec!["fd00::1", "10.0.0.1"]), ("alias.example.com", vec!["10.0.0.1"])],
        ..World::default()
    };
    for (about, before, now, port, expected) in [
        ("from an address to its DNS name", "10.0.0.1", "win-1.example.com", 22, "win-1 other"),
        ("from a DNS name to its address", "win-1.example.com", "10.0.0.1", 22, "win-1 other"),
        ("from one DNS name to another", "win-1.example.com", "alias.example.com", 22, "win-1 other"),
        ("another port", "10.0.0.1", "10.0.0.1", 2222, "win-1 other"),
        ("another port, by DNS name", "win-1.example.com", "win-1.example.com", 2222, "win-1 other"),
        ("another port and another spelling", "10.0.0.1", "alias.example.com", 2222, "win-1 other"),
    ] {
        let world = world(before);
        assert_eq!(world.seen(&[now, "10.0.0.9"], port), (expected.into(), String::new(), 0, 0), "{about}");
    }
    // During the lookup of a name, no host counts as missing, and none is asked.
    assert_eq!(world("10.0.0.1").seen(&["later.example.com", "10.0.0.9"], 22), ("other".into(), String::new(), 1, 0));
    assert_eq!(world("later.example.com").seen(&["10.0.0.1", "10.0.0.9"], 22), ("other".into(), String::new(), 1, 0));
    // An address of two hosts, for example behind a gateway, does not distinguish them.
    let mut world = world("10.0.0.1");
    world.existing[1].place = ("10.0.0.1".into(), 23);
    assert_eq!(world.seen(&["10.0.0.1"], 2222), (String::new(), String::new(), 1, 1));
}

#[test]
fn a_host_is_found_by_its_proven_identity_and_a_clone_is_not() {
    let nat = |hostname: &str, boot: &str| World {
        existing: vec![existing("win-1", "10.0.0.1")],
        dns: vec![("nat.example.com", vec!["192.0.2.1"])],
        contacts: vec![(
            "nat.example.com",
            FirstContact { boot_id: Some(boot.into()), ..calls_itself(hostname, "192.0.2.1") },
        )],
        taken: vec!["win-1"],
        ..World::default()
    };
    let refused = (String::new(), "HostConflict".to_owned(), 1, 1);
    assert_eq!(nat("WIN-1", "1").seen(&["nat.example.com"], 22), ("win-1".into(), String::new(), 0, 0));
    assert_eq!(nat("WIN-1", "2").seen(&["nat.example.com"], 22), refused, "another boot may be another machine");
    let mut other_key = nat("WIN-1", "1");
    other_key.contacts[0].1.host_key = "SHA256:other".into();
    assert_eq!(other_key.seen(&["nat.example.com"], 22), refused);
    let mut never_proven = nat("WIN-1", "1");
    never_proven.existing[0].identity = None;
    assert_eq!(never_proven.seen(&["nat.example.com"], 22), refused);
    // The host itself is listed, so another host with the same identity is a clone.
    let both = nat("WIN-1", "1").seen(&["10.0.0.1", "nat.example.com"], 22);
    assert_eq!(both, ("win-1".into(), "HostConflict".into(), 1, 1));
}

#[test]
fn a_reported_name_never_replaces_another_owner_of_the_name() {
    let world = World {
        contacts: vec![
            ("10.0.0.1", calls_itself("MASTER-0", "10.0.0.1")),
            ("10.0.0.2", calls_itself("win", "10.0.0.2")),
            ("10.0.0.3", calls_itself("WIN", "10.0.0.3")),
            ("10.0.0.4", calls_itself("unknown", "10.0.0.4")),
            ("10.0.0.5", calls_itself("twice", "10.0.0.5")),
        ],
        nodes: vec![("left-over", "10.0.0.5"), ("node", "10.0.0.5")],
        taken: vec!["master-0"],
        ..World::default()
    };
    for (addresses, names, reasons) in [
        (&["10.0.0.1"][..], "", "HostConflict"),
        (&["10.0.0.2", "10.0.0.3"], "win", "HostConflict"),
        (&["10.0.0.4"], "", "ApiError"),
        (&["10.0.0.5"], "", "HostConflict"),
    ] {
        assert_eq!(world.seen(addresses, 22), (names.into(), reasons.into(), 1, 1), "{addresses:?}");
    }
    let named = world.name(&["10.0.0.1"], 22);
    let message = &named.problems[0].message;
    for part in ["10.0.0.1", "master-0", "the Node master-0", "rename the host"] {
        assert!(message.contains(part), "{message} does not say {part}");
    }
}

#[test]
fn a_node_that_claims_addresses_of_other_hosts_does_not_name_them() {
    // The Node `old` has 10.0.0.2, and its kubelet reports the address of another host, too.
    let nodes = vec![("old", "10.0.0.2"), ("old", "10.0.0.1")];
    let silent = World { nodes: nodes.clone(), ..World::default() };
    assert_eq!(silent.seen(&["10.0.0.1", "10.0.0.2"], 22), (String::new(), String::new(), 2, 2));
    let contacts = vec![("10.0.0.1", calls_itself("NEW", "10.0.0.1")), ("10.0.0.2", calls_itself("OLD", "10.0.0.2"))];
    let both = vec![("old", "10.0.0.2"), ("old", "10.0.0.1"), ("new", "10.0.0.1")];
    let known = World { nodes: both, contacts, ..World::default() };
    assert_eq!(known.seen(&["10.0.0.1", "10.0.0.2"], 22), ("new old".into(), String::new(), 0, 0));
    let listed = World { existing: vec![existing("old", "10.0.0.2")], nodes, ..World::default() };
    assert_eq!(listed.seen(&["10.0.0.2", "10.0.0.1"], 22), ("old".into(), String::new(), 1, 1));
}

#[test]
fn a_host_that_must_not_be_asked_is_not() {
    let strict = World { is_strict: true, nodes: vec![("old", "10.0.0.2")], ..World::default() };
    assert_eq!(strict.seen(&["10.0.0.1"], 22), (String::new(), "HostKeyUnknown".into(), 1, 0));
    assert_eq!(strict.seen(&["10.0.0.2"], 22), ("old".into(), String::new(), 0, 0));
}

/// Checks that a host cannot choose a DNS name for its own certificates.
#[test]
fn a_reported_dns_name_is_refused() {
    for (said, expected) in
        [("WIN-1", Some("win-1")), ("api.shop.example.com", None), ("win-1.", None), ("localhost.", None)]
    {
        assert_eq!(usable(&Host::default(), said).ok().as_deref(), expected, "{said}");
    }
}

proptest! {
    #[test]
    fn any_reported_name_is_usable_or_a_problem(said in ".{0,80}") {
        if let Ok(name) = usable(&Host::default(), &said) {
            prop_assert!(name.len() <= 63 && !name.is_empty());
            prop_assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
        }
    }

    #[test]
    fn each_entry_is_named_or_unnamed_and_no_name_is_given_twice(
        hosts in proptest::collection::vec(0_u8..6, 0..6),
        listed in proptest::collection::btree_set(0_u8..9, 0..7),
        reported in proptest::collection::vec("[a-c]", 9),
        nodes in proptest::collection::vec(("[a-d]", 0_u8..9), 0..6),
    ) {
        let address = |n: u8| format!("10.0.0.{n}");
        let mut unique: Vec<u8> = hosts;
        unique.sort_unstable();
        unique.dedup();
        let existing: Vec<Existing> = unique.iter().map(|n| existing(&format!("h{n}"), &address(*n))).collect();
        let contact = |(at, _): &Endpoint| {
            let n: usize = at.rsplit('.').next()?.parse().ok()?;
            Some(calls_itself(reported.get(n)?, at))
        };
        let names = Names {
            existing: &existing,
            nodes_at: &|at| nodes.iter().filter(|(_, n)| address(*n) == at).map(|(node, _)| node.clone()).collect(),
            resolved: &|_| None,
            forbidden: &|_| None,
            contact: &contact,
            failure: &|_| None,
            owner: &|_| Ok(None),
        };
        let entries: Vec<Entry> = listed.iter().map(|n| entry(&address(*n))).collect();
        let named = name(entries, 22, &names);
        prop_assert_eq!(named.entries.len() + named.unnamed.len(), listed.len());
        let given: BTreeSet<&str> = named.entries.iter().map(|e| e.host.name.as_str()).collect();
        prop_assert_eq!(given.len(), named.entries.len());
    }
}
