//! Check that a request is for this host, according to the host's own record, before the operation begins. Until then, only the lock and the
//! directories `C:\k`, `C:\k\wicd` and `C:\windows\wicd` are created or taken over.

use api::Reason;
use api::host::{Body, Desired, Marker, Owner, Request, path};

use super::Failure;
use crate::files;
use crate::host::{Host, HostError};

/// Refuses a request for another host.
pub(super) fn check(host: &dyn Host, request: &Request) -> Result<(), Failure> {
    let machine_id = host.machine_id()?;
    verdict(request, &machine_id, owner(host)?.as_ref())
}

/// Owner of the host according to its own record: the marker or, if that is missing or damaged, the desired state of its service.
/// A failure to read a file is an error, because the host may then have any owner.
pub(super) fn owner(host: &dyn Host) -> Result<Option<Owner>, HostError> {
    let marker = files::read(host, path::STATE)?.and_then(|text| serde_json::from_slice::<Marker>(&text).ok());
    if let Some(marker) = marker {
        return Ok(Some(marker.owner()));
    }
    let desired = files::read(host, path::DESIRED)?.and_then(|text| serde_json::from_slice::<Desired>(&text).ok());
    Ok(desired.map(|d| Owner { cluster_id: d.cluster_id, node_name: d.node_name }))
}

/// Recipient of a request.
pub(super) fn meant(request: &Request) -> Owner {
    let recipient = &request.recipient;
    Owner { cluster_id: recipient.cluster_id.clone(), node_name: recipient.node_name.clone() }
}

fn verdict(request: &Request, machine_id: &str, owner: Option<&Owner>) -> Result<(), Failure> {
    let meant = meant(request);
    if meant.cluster_id.is_empty() || meant.node_name.is_empty() {
        let message = "the request does not name the Node and the cluster that it is for; this is a bug in the operator: report it";
        return Err(Failure::new(Reason::InternalError, message));
    }
    if let Body::Apply(body) = &request.body
        && (&body.desired.cluster_id, &body.desired.node_name) != (&meant.cluster_id, &meant.node_name)
    {
        let message = format!(
            "the request is for the Node {}, but its content is for the Node {} of the cluster {}; this is a bug in the operator: report it",
            meant.node_name, body.desired.node_name, body.desired.cluster_id
        );
        return Err(Failure::new(Reason::InternalError, message));
    }
    if let Some(wanted) = request.recipient.machine_id.as_ref().filter(|id| *id != machine_id) {
        let message = format!(
            "the request is for the machine with the ID {wanted}, but this machine has the ID {machine_id}; check that the address of the host in \
             the pool is the right one"
        );
        return Err(Failure::new(Reason::NotThisMachine, message));
    }
    let Some(owner) = owner else { return Ok(()) };
    // A cleanup never removes the configuration of another owner. A record without a cluster ID is from an older version, and
    // names no other owner.
    let same_name = owner.cluster_id.is_empty() && owner.node_name == meant.node_name;
    let may_supersede = same_name || !matches!(request.body, Body::Cleanup(_));
    let superseded = may_supersede && request.supersedes.as_ref() == Some(owner);
    if *owner == meant || superseded {
        return Ok(());
    }
    if owner.cluster_id != meant.cluster_id {
        let is_unknown = owner.cluster_id.is_empty();
        let cluster =
            if is_unknown { "an unknown cluster".to_owned() } else { format!("cluster {}", owner.cluster_id) };
        let message = format!(
            "the host is the Node {} of {cluster}, not of cluster {}; remove it from the pool of that cluster, or correct the address of the host \
             in this pool",
            owner.node_name, meant.cluster_id
        );
        return Err(Failure::new(Reason::HostOfAnotherCluster, message));
    }
    let message = format!(
        "the host is the Node {}, not {}; correct the address of the host in the pool",
        owner.node_name, meant.node_name
    );
    Err(Failure::new(Reason::NotThisMachine, message))
}

#[cfg(test)]
mod tests {
    use api::host::{Cleanup, Facts, Outcome, Reboot, Stage, Start};

    use super::super::tests::{CLUSTER, TestHost, reason, request, wanted};
    use super::*;
    use crate::operation::run;

    const OTHER: &str = "8c5d9c5e-0000-4000-8000-00000000ffff";

    fn of(cluster_id: &str, node_name: &str) -> Owner {
        Owner { cluster_id: cluster_id.into(), node_name: node_name.into() }
    }

    #[test]
    fn a_request_for_another_owner_is_refused() {
        let cleanup = || Body::Cleanup(Cleanup {});
        let apply = || Body::Apply(Box::new(wanted("1")));
        let stage = || Body::Stage(Stage::default());
        let (ours, win_2, win_3) = ((CLUSTER, "win-1"), (CLUSTER, "win-2"), (CLUSTER, "win-3"));
        let (others, unknown) = ((OTHER, "win-1"), ("", "win-1"));
        for (name, owner, supersedes, body, expected) in [
            ("a host without a record", None, None, apply(), "Done"),
            ("cleaning a host without a record", None, None, cleanup(), "Done"),
            ("the same owner", Some(ours), None, cleanup(), "Done"),
            ("another Node", Some(win_2), None, apply(), "NotThisMachine"),
            ("cleaning another Node", Some(win_2), None, cleanup(), "NotThisMachine"),
            ("staging on another Node", Some(win_2), None, stage(), "NotThisMachine"),
            ("another Node that is superseded", Some(win_2), Some(win_2), apply(), "Done"),
            ("another Node than the superseded one", Some(win_2), Some(win_3), apply(), "NotThisMachine"),
            ("cleaning a superseded Node", Some(win_2), Some(win_2), cleanup(), "NotThisMachine"),
            ("another cluster", Some(others), None, apply(), "HostOfAnotherCluster"),
            ("cleaning a host of another cluster", Some(others), None, cleanup(), "HostOfAnotherCluster"),
            ("another cluster that is superseded", Some(others), Some(others), apply(), "Done"),
            ("a record without a cluster", Some(unknown), None, apply(), "HostOfAnotherCluster"),
            ("a record without a cluster that is superseded", Some(unknown), Some(unknown), apply(), "Done"),
        ] {
            let [owner, supersedes] = [owner, supersedes].map(|owner| owner.map(|(cluster, node)| of(cluster, node)));
            let request = Request { supersedes, ..request("x", 1, body) };
            let answered = verdict(&request, "m", owner.as_ref()).map_or_else(|f| f.reason.as_str(), |()| "Done");
            assert_eq!(answered, expected, "{name}");
        }
    }

    #[test]
    fn a_request_must_name_its_recipient() {
        let with = |cluster: &str, node: &str, machine_id: Option<&str>| {
            let mut request = request("x", 1, Body::Reboot(Reboot::default()));
            request.recipient.cluster_id = cluster.into();
            request.recipient.node_name = node.into();
            request.recipient.machine_id = machine_id.map(Into::into);
            verdict(&request, "m", None).map_or_else(|f| f.reason.as_str(), |()| "Done")
        };
        for (cluster, node, machine_id, expected) in [
            (CLUSTER, "win-1", None, "Done"),
            (CLUSTER, "win-1", Some("m"), "Done"),
            (CLUSTER, "win-1", Some("n"), "NotThisMachine"),
            ("", "win-1", Some("m"), "InternalError"),
            (CLUSTER, "", Some("m"), "InternalError"),
        ] {
            assert_eq!(with(cluster, node, machine_id), expected, "{cluster} {node} {machine_id:?}");
        }
        let mut apply = request("x", 1, Body::Apply(Box::new(wanted("1"))));
        apply.recipient.node_name = "win-2".into();
        assert_eq!(verdict(&apply, "m", None).unwrap_err().reason, "InternalError");
    }

    /// Verbs that change a host are refused before any change, even of the epoch. Every operator may request facts.
    #[test]
    fn a_host_of_another_owner_does_not_change() {
        let test_host = TestHost::new();
        test_host.join("1");
        let before = test_host.tree();
        for (cluster, node, expected) in
            [(CLUSTER, "win-2", "NotThisMachine"), (OTHER, "win-1", "HostOfAnotherCluster")]
        {
            let mut apply = wanted("1");
            (apply.desired.cluster_id, apply.desired.node_name) = (cluster.into(), node.into());
            for body in [
                Body::Stage(Stage::default()),
                Body::Apply(Box::new(apply)),
                Body::Start(Start::default()),
                Body::Reboot(Reboot { boot_id: "1".into() }),
                Body::Cleanup(Cleanup {}),
            ] {
                let verb = body.verb();
                let mut request = request("x", 99, body);
                (request.recipient.cluster_id, request.recipient.node_name) = (cluster.into(), node.into());
                assert_eq!(reason(&run(&test_host.host, &request)), expected, "{verb:?}");
            }
        }
        let mut facts = request("x", 99, Body::Facts(Facts::default()));
        facts.recipient = api::host::Recipient::default();
        assert_eq!(run(&test_host.host, &facts).outcome, Outcome::Done);
        assert!(test_host.tree() == before, "something was changed");
    }

    #[test]
    fn a_host_without_its_marker_keeps_its_owner() {
        let test_host = TestHost::new();
        test_host.join("1");
        test_host.write(path::STATE, b"{ torn");
        let mut request = request("x", 1, Body::Cleanup(Cleanup {}));
        request.recipient.node_name = "win-2".into();
        assert_eq!(reason(&run(&test_host.host, &request)), "NotThisMachine");
    }

    /// Checks that a host that was cleaned in part, and follows no version, still belongs to its cluster.
    #[test]
    fn a_partially_cleaned_host_keeps_its_owner() {
        let test_host = TestHost::new();
        test_host.join("1");
        test_host.add_service("kubelet", "OpenShift managed kubelet", &[]);
        test_host.state().refused.insert(format!("delete_service {}", api::host::WICD_SERVICE));
        let cleaned = |node: &str| {
            let mut request = request("x", 1, Body::Cleanup(Cleanup {}));
            request.recipient.node_name = node.into();
            reason(&run(&test_host.host, &request)).to_string()
        };
        assert_eq!(cleaned("win-1"), "CleanupIncomplete");
        let marker: Marker = files::read_json(&test_host.host, path::STATE).unwrap().unwrap();
        assert_eq!((marker.owner(), marker.version.as_str()), (of(CLUSTER, "win-1"), ""));
        assert_eq!(cleaned("win-2"), "NotThisMachine");
        test_host.state().refused.clear();
        assert_eq!(cleaned("win-1"), "Done");
        assert!(!test_host.exists(path::STATE));
        assert_eq!(cleaned("win-2"), "Done");
    }

    #[test]
    fn certificates_of_another_cluster_are_requested_again() {
        let test_host = TestHost::new();
        test_host.join("1");
        let before = of(CLUSTER, "win-1");
        let mut desired = wanted("1");
        desired.desired.cluster_id = OTHER.into();
        let mut request = request("x", 1, Body::Apply(Box::new(desired)));
        request.recipient.cluster_id = OTHER.into();
        request.supersedes = Some(before);
        let answer = run(&test_host.host, &request);
        assert_eq!(answer.outcome, Outcome::Done);
        assert_eq!(answer.requests.len(), 2, "each is requested again");
        assert_eq!(answer.state.unwrap().certificates.len(), 0);
    }
}
