//! Tests for the proof of a host's identity.

use super::*;

const HERE: &str = "cluster-here";
const THERE: &str = "cluster-there";

fn of(cluster_id: &str, node_name: &str) -> Owner {
    Owner { cluster_id: cluster_id.into(), node_name: node_name.into() }
}

fn safe_message(result: Result<Identity, Refusal>) -> String {
    match result {
        Ok(Identity::ExpectedHost) => "meant".into(),
        Ok(Identity::Supersedes(owner)) => format!("supersedes {} {}", owner.cluster_id, owner.node_name),
        Ok(Identity::OtherOwner(owner)) => format!("anothers {} {}", owner.cluster_id, owner.node_name),
        Err(refusal) => {
            let text = refusal.to_string();
            assert!(!text.contains("{}") && text.len() < 500, "{text}");
            refusal.reason().into()
        }
    }
}

struct Case {
    known: Option<&'static str>,
    node: NodeProof,
    declared: bool,
    address_and_key_changed: bool,
    take_over_from: Vec<String>,
    found: &'static str,
    owner: Option<Owner>,
    has_kubelet: bool,
    others: Others,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            known: None,
            node: NodeProof::Missing,
            declared: false,
            address_and_key_changed: false,
            take_over_from: Vec::new(),
            found: "m-1",
            owner: None,
            has_kubelet: false,
            others: Others::default(),
        }
    }
}

impl Case {
    /// Returns the results for the purposes join, keep and remove, or one result if all are the same.
    fn answers(&self) -> String {
        let owner = of(HERE, "win-1");
        let meant = ExpectedHost {
            owner: &owner,
            address: "10.0.0.1",
            machine_id: self.known,
            node: self.node,
            key_declared: self.declared,
            address_and_key_changed: self.address_and_key_changed,
            take_over_from: &self.take_over_from,
        };
        let found = Found { machine_id: self.found.into(), owner: self.owner.clone(), has_kubelet: self.has_kubelet };
        let purposes = [Purpose::Join, Purpose::Keep, Purpose::Remove];
        let answers = purposes.map(|p| safe_message(identify(p, meant, &found, &self.others)));
        if answers.iter().all(|answer| *answer == answers[0]) { answers[0].clone() } else { answers.join(", ") }
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn hosts_are_identified_by_machine_owner_and_node() {
    let case = Case::default;
    let owned_by = |cluster, node| Case { owner: Some(of(cluster, node)), ..case() };
    let joined = || Case { known: Some("m-1"), node: NodeProof::Proven, ..owned_by(HERE, "win-1") };
    let conflict = "HostConflict, NotThisMachine, NotThisMachine";
    let elsewhere = "HostOfAnotherCluster";
    for (name, case, expected) in [
        ("a clean host", case(), "meant"),
        ("our node", joined(), "meant"),
        (
            "another machine that reports the same as our node",
            Case { address_and_key_changed: true, ..joined() },
            "HostUnproven",
        ),
        (
            "another address and host key, before the host was a node",
            Case { known: None, node: NodeProof::Missing, owner: None, address_and_key_changed: true, ..joined() },
            "meant",
        ),
        ("our node, after all records were lost", Case { known: None, ..joined() }, "meant"),
        ("our node, whose address has changed", Case { node: NodeProof::Unproven, ..joined() }, "meant"),
        (
            "a machine that only claims to be our node",
            Case { known: None, node: NodeProof::Unproven, ..joined() },
            "HostUnproven",
        ),
        ("our node, whose Node is gone", Case { node: NodeProof::Missing, ..joined() }, "meant"),
        ("our node, whose record is gone", Case { owner: None, has_kubelet: true, ..joined() }, "meant"),
        ("another machine in the place of our node", Case { found: "m-2", ..joined() }, "NotThisMachine"),
        ("a clean machine in the place of our node", Case { found: "m-2", owner: None, ..joined() }, "NotThisMachine"),
        (
            "a clean machine, after a user deleted the Node",
            Case { found: "m-2", owner: None, node: NodeProof::Missing, ..joined() },
            "meant, meant, NotThisMachine",
        ),
        (
            "the machine of another node, after a swap in the list",
            Case { found: "m-2", owner: Some(of(HERE, "win-2")), ..joined() },
            "NotThisMachine",
        ),
        (
            "the machine of another node, and all records were lost",
            Case { known: None, owner: Some(of(HERE, "win-2")), others: lives(), ..joined() },
            conflict,
        ),
        (
            "a second entry for a machine that is a node",
            Case { others: lives(), ..owned_by(HERE, "win-2") },
            "HostConflict, NotThisMachine, anothers cluster-here win-2",
        ),
        (
            "a new name, and the old one is gone",
            owned_by(HERE, "win-2"),
            "supersedes cluster-here win-2, NotThisMachine, anothers cluster-here win-2",
        ),
        (
            "a new name, and an instance without a Node yet is the same machine",
            Case { others: same_machine_instance(), ..owned_by(HERE, "win-2") },
            "HostConflict, NotThisMachine, anothers cluster-here win-2",
        ),
        (
            "two entries for a clean machine",
            Case { others: same_machine_instance(), ..case() },
            "HostConflict, meant, meant",
        ),
        (
            "a host of another cluster",
            owned_by(THERE, "win-1"),
            "HostOfAnotherCluster, HostOfAnotherCluster, anothers cluster-there win-1",
        ),
        (
            "a host of another cluster, with the name of a Node here",
            Case { node: NodeProof::Unproven, ..owned_by(THERE, "win-1") },
            elsewhere,
        ),
        (
            "a host of another cluster that may be taken over",
            Case { take_over_from: from(THERE), declared: true, ..owned_by(THERE, "win-1") },
            "supersedes cluster-there win-1, HostOfAnotherCluster, anothers cluster-there win-1",
        ),
        (
            "a host of another cluster that may be taken over, with a key that is not declared",
            Case { take_over_from: from(THERE), ..owned_by(THERE, "win-1") },
            "HostOfAnotherCluster, HostOfAnotherCluster, anothers cluster-there win-1",
        ),
        (
            "a host of a cluster that spec.takeOverFrom does not name",
            Case { take_over_from: from(THERE), declared: true, ..owned_by("third", "win-1") },
            "HostOfAnotherCluster, HostOfAnotherCluster, anothers third win-1",
        ),
        (
            "a host of another cluster that may be taken over, with the name of a Node here",
            Case { node: NodeProof::Proven, take_over_from: from(THERE), declared: true, ..owned_by(THERE, "win-1") },
            elsewhere,
        ),
        (
            "a record without a cluster, and a proven Node",
            Case { node: NodeProof::Proven, ..owned_by("", "win-1") },
            "supersedes  win-1",
        ),
        (
            "a record without a cluster, and nothing proves it",
            owned_by("", "win-1"),
            "HostOfAnotherCluster, HostOfAnotherCluster, anothers  win-1",
        ),
        (
            "a record without a cluster that names another Node",
            Case { node: NodeProof::Proven, ..owned_by("", "win-2") },
            elsewhere,
        ),
        (
            "a host of the legacy operator with a proven Node",
            Case { has_kubelet: true, node: NodeProof::Proven, ..case() },
            "meant",
        ),
        (
            "a host of the legacy operator without a Node",
            Case { has_kubelet: true, ..case() },
            "HostOfAnotherCluster, HostOfAnotherCluster, anothers  ",
        ),
        (
            "a host of the legacy operator that may be taken over from an unknown cluster",
            Case { has_kubelet: true, declared: true, take_over_from: from(UNKNOWN_CLUSTER), ..case() },
            "supersedes  , HostOfAnotherCluster, anothers  ",
        ),
    ] {
        assert_eq!(case.answers(), expected, "{name}");
    }
}

fn lives() -> Others {
    Others { owner_lives: true, same_machine_instance: None }
}

fn same_machine_instance() -> Others {
    Others { owner_lives: false, same_machine_instance: Some("win-0".into()) }
}

fn from(cluster: &str) -> Vec<String> {
    vec![cluster.into()]
}
