//! Effect of a release on nodes before it is installed. Pure functions.

use std::collections::{BTreeMap, BTreeSet};

use api::{Disruption, PlannedHost};
use wnp_core::rollout::version_diff::Change;

/// Action on a node that the release changes.
const UPDATE: &str = "Update";
/// Actions that an update includes.
const ALONG: [&str; 2] = ["RotateKey", "PullImages"];

/// Adds the change by the release to the plan of each node, except for a node with an action that an update does not include, such as `Remove`.
/// `nodes` are the hosts that have joined.
pub(super) fn with_change(list: &mut Vec<PlannedHost>, nodes: &BTreeSet<String>, change: &Change) {
    if *change == Change::default() {
        return;
    }
    for node in nodes {
        match list.iter_mut().find(|planned| planned.host == *node) {
            None => list.push(PlannedHost {
                host: node.clone(),
                action: UPDATE.into(),
                disruption: change.disruption.as_str().into(),
                why: change.why.join(", "),
            }),
            Some(planned) if planned.action == UPDATE || ALONG.contains(&planned.action.as_str()) => {
                UPDATE.clone_into(&mut planned.action);
                if rank(&planned.disruption) < rank(change.disruption.as_str()) {
                    change.disruption.as_str().clone_into(&mut planned.disruption);
                }
                let parts = change.why.iter().filter(|why| !planned.why.contains(*why)).cloned();
                planned.why = [planned.why.clone()].into_iter().chain(parts).collect::<Vec<_>>().join(", ");
            }
            Some(_) => {}
        }
    }
    list.sort_by(|a, b| a.host.cmp(&b.host));
}

/// Adds the names of the services that are restarted while pods keep running.
pub(super) fn with_services(list: &mut [PlannedHost], restarts: &BTreeMap<String, BTreeSet<String>>) {
    for planned in list.iter_mut().filter(|planned| planned.disruption == Disruption::Restart.as_str()) {
        let services: Vec<&str> = restarts.get(&planned.host).into_iter().flatten().map(String::as_str).collect();
        if !services.is_empty() {
            planned.why = format!("{} (restarts {})", planned.why, services.join(", "));
        }
    }
}

fn rank(disruption: &str) -> usize {
    let all = [Disruption::None, Disruption::Restart, Disruption::Drain, Disruption::Reboot];
    all.iter().position(|one| one.as_str() == disruption).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(host: &str, action: &str, disruption: Disruption, why: &str) -> PlannedHost {
        PlannedHost {
            host: host.into(),
            action: action.into(),
            disruption: disruption.as_str().into(),
            why: why.into(),
        }
    }

    #[test]
    fn a_release_adds_to_what_is_done_with_a_node() {
        use Disruption::{Drain, None, Reboot, Restart};
        let change = Change {
            disruption: Restart,
            services: ["kubelet".to_owned()].into(),
            why: vec!["the command of kubelet".to_owned()],
        };
        for (about, before, expected) in [
            ("nothing", Option::None, Some(("Update", Restart, "the command of kubelet"))),
            ("less", Some(("Update", None, "wicd")), Some(("Update", Restart, "wicd, the command of kubelet"))),
            (
                "more",
                Some(("Update", Drain, "kubelet.exe")),
                Some(("Update", Drain, "kubelet.exe, the command of kubelet")),
            ),
            (
                "the same",
                Some(("Update", Reboot, "the command of kubelet")),
                Some(("Update", Reboot, "the command of kubelet")),
            ),
            ("a key", Some(("RotateKey", None, "a key")), Some(("Update", Restart, "a key, the command of kubelet"))),
            ("it leaves", Some(("Remove", Drain, "gone")), Some(("Remove", Drain, "gone"))),
            ("it is held", Some(("Nothing", None, "it is on hold")), Some(("Nothing", None, "it is on hold"))),
        ] {
            let of = |list: Option<(&str, Disruption, &str)>| -> Vec<PlannedHost> {
                list.into_iter().map(|(action, disruption, why)| planned("w", action, disruption, why)).collect()
            };
            let mut list = of(before);
            with_change(&mut list, &["w".to_owned()].into(), &change);
            assert_eq!(list, of(expected), "{about}");
            let mut same = of(before);
            with_change(&mut same, &["w".to_owned()].into(), &Change::default());
            assert_eq!(same, of(before), "{about}");
        }
        let mut joins = vec![planned("new", "Join", None, "new")];
        with_change(&mut joins, &BTreeSet::new(), &change);
        assert_eq!(joins, [planned("new", "Join", None, "new")], "a host that joins gets the release anyway");
    }

    #[test]
    fn services_that_restart_are_named() {
        let mut list = vec![
            planned("a", "Update", Disruption::Restart, "kube-proxy.exe"),
            planned("b", "Update", Disruption::Drain, "kubelet.exe"),
            planned("c", "Update", Disruption::Restart, "x"),
        ];
        let services: BTreeSet<String> = ["kube-proxy".to_owned(), "x".to_owned()].into();
        with_services(&mut list, &[("a".to_owned(), services.clone()), ("b".to_owned(), services)].into());
        let why: Vec<&str> = list.iter().map(|p| p.why.as_str()).collect();
        assert_eq!(why, ["kube-proxy.exe (restarts kube-proxy, x)", "kubelet.exe", "x"]);
    }
}
