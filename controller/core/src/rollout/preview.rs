//! Preview of the operation on each host, for pools in mode Plan and for the command `plan`. Pure.

use std::collections::BTreeMap;

use api::{Disruption, InstanceHost, PlanStatus, PlannedHost, Reason, RemediationType, act::Act};

use super::{grants::Limits, member::Member};
use crate::enumeration::counted;

/// Action for a host that is not changed but has a note.
const NOTHING: &str = "Nothing";
/// Action for a node that would lose settings: a user has to decide.
const WITHHELD: &str = "Withhold";
/// Action for a node that cannot be adopted with the current settings of its pool.
const REFUSED: &str = "Refuse";
/// Maximum number of hosts in a pool's status.
const SHOWN: usize = 100;

/// Adoption of another operator's node, as far as it can be foreseen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adoption {
    /// Reason and message of the refusal, if the node cannot be adopted.
    pub refusal: Option<(Reason, String)>,
    /// Message about settings that the next change of the node would lose.
    pub withheld: Option<String>,
}

/// Facts about hosts that the preview looks up.
pub struct HostLookups<'a> {
    /// Function that returns the cause of a node's change, for users.
    pub why: &'a dyn Fn(&Member) -> String,
    /// Hosts without an instance that are nodes already, by name.
    pub adoptable: &'a BTreeMap<String, Adoption>,
    /// Function that returns the non-disruptive changes of a node other than a new version.
    pub beside: &'a dyn Fn(&Member, &InstanceHost) -> Vec<String>,
}

/// Returns the hosts that would be changed or have a note, sorted by name.
pub fn preview(
    hosts: &BTreeMap<String, InstanceHost>,
    members: &[Member],
    limits: &Limits,
    lookups: &HostLookups<'_>,
) -> Vec<PlannedHost> {
    let known: BTreeMap<&str, &Member> = members.iter().map(|m| (m.candidate.name.as_str(), m)).collect();
    let mut list = Vec::new();
    for (name, host) in hosts {
        match known.get(name.as_str()) {
            None => list.push(match lookups.adoptable.get(name) {
                None => planned(name, "Join", Disruption::None, "new in the inventory".into()),
                Some(adoption) => of_adoption(name, adoption),
            }),
            Some(m) if m.candidate.held => list.push(planned(name, NOTHING, Disruption::None, "it is on hold".into())),
            Some(m) if m.candidate.leaving && !m.instance.is_deleting() => {
                let why = "its removal is revoked, because the host is listed again";
                list.push(planned(name, NOTHING, Disruption::None, why.into()));
            }
            Some(m) if m.candidate.leaving => {
                let why = "its WindowsInstance is being deleted; the host joins again afterwards";
                list.push(planned(name, "Remove", Disruption::Drain, why.into()));
            }
            Some(m) if !m.candidate.joined => {
                list.push(planned(name, "Join", Disruption::None, "has not joined yet".into()));
            }
            Some(m) => list.extend(of_node(m, limits, lookups, (lookups.beside)(m, host))),
        }
    }
    for member in members.iter().filter(|m| !hosts.contains_key(&m.candidate.name)) {
        let (action, disruption) = match (limits.orphan, member.candidate.joined) {
            (true, _) => ("Orphan", Disruption::None),
            (false, true) => ("Remove", Disruption::Drain),
            (false, false) => ("Remove", Disruption::None),
        };
        list.push(planned(&member.candidate.name, action, disruption, "no longer in the inventory".into()));
    }
    list.sort_by(|a, b| a.host.cmp(&b.host));
    list
}

/// Returns the plan for another operator's node.
fn of_adoption(name: &str, adoption: &Adoption) -> PlannedHost {
    let (action, what) = match adoption {
        Adoption { refusal: Some((reason, message)), .. } => {
            (REFUSED, format!("it cannot be adopted ({reason}: {message})"))
        }
        Adoption { withheld: Some(withheld), .. } => ("Adopt", withheld.clone()),
        _ => ("Adopt", "it is adopted unchanged, and then updated in its turn".to_owned()),
    };
    planned(name, action, Disruption::None, format!("it is a node of another operator; {what}"))
}

fn planned(host: &str, action: &str, disruption: Disruption, why: String) -> PlannedHost {
    PlannedHost { host: host.into(), action: action.into(), disruption: disruption.as_str().into(), why }
}

/// Returns the plan for a node of the pool; `None` if nothing would be done.
fn of_node(member: &Member, limits: &Limits, lookups: &HostLookups<'_>, beside: Vec<String>) -> Option<PlannedHost> {
    let candidate = &member.candidate;
    let planned = |action, disruption, why| Some(planned(&candidate.name, action, disruption, why));
    if candidate.failed {
        let retry = Act::Retry(&candidate.name).command();
        let why = format!("the version failed on this host and is not retried automatically; to retry, run {retry}");
        return planned(NOTHING, Disruption::None, why);
    }
    if candidate.withheld {
        let why: Vec<String> = beside.into_iter().chain([(lookups.why)(member)]).collect();
        return planned(WITHHELD, Disruption::None, why.join(", "));
    }
    if let Some(change) = &candidate.change {
        let why: Vec<String> = [(lookups.why)(member)].into_iter().chain(beside).collect();
        return planned("Update", change.disruption, why.join(", "));
    }
    if candidate.wants_reboot {
        return planned("Reboot", Disruption::Reboot, "the host requests a restart".into());
    }
    if candidate.down_since.is_some() && candidate.no_repair().is_none() && limits.remediation != RemediationType::None
    {
        let why =
            format!("the node is not Ready; it is repaired if that lasts for {} s", limits.not_ready_after.as_secs());
        let restarts = limits.remediation == RemediationType::Reboot;
        return planned("Repair", if restarts { Disruption::Reboot } else { Disruption::None }, why);
    }
    if !beside.is_empty() {
        return planned("Update", Disruption::None, beside.join(", "));
    }
    if candidate.wants_key {
        return planned(
            "RotateKey",
            Disruption::None,
            "it accepts another SSH key than the first of its list, or still has an old key".into(),
        );
    }
    if candidate.wants_images {
        let why = "images to pull in advance, or to release (provisioning.prePullImages)";
        return planned("PullImages", Disruption::None, why.into());
    }
    None
}

/// Reports whether no host needs an action of the operator or a decision of a user.
pub fn is_idle(list: &[PlannedHost]) -> bool {
    list.iter().all(|p| p.action == NOTHING)
}

/// Returns the plan for a pool's status, which must not grow with the pool.
pub fn status_of(list: &[PlannedHost], hosts: usize) -> PlanStatus {
    PlanStatus { summary: summary(list, hosts), hosts: list.iter().take(SHOWN).cloned().collect() }
}

/// Returns the numbers of hosts by action, as a sentence.
pub fn summary(list: &[PlannedHost], hosts: usize) -> String {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for planned in list.iter().filter(|p| p.action != NOTHING) {
        *counts.entry((&planned.action, &planned.disruption)).or_default() += 1;
    }
    if counts.is_empty() {
        return format!("nothing to do for {}", counted(hosts, "host"));
    }
    let words = |(action, disruption): (&str, &str), n: usize| {
        let how = match disruption {
            "Restart" => " with a restart of services",
            "Drain" => " with a drain",
            "Reboot" => " with a drain and a restart of the host",
            _ => "",
        };
        let what = match action {
            "RotateKey" => "key rotation".to_owned(),
            "PullImages" => "image pull".to_owned(),
            other => other.to_lowercase(),
        };
        format!("{n} {what}{how}")
    };
    counts.into_iter().map(|(kind, n)| words(kind, n)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::{WindowsInstance, WindowsInstanceSpec};
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::rollout::grants::{Candidate, PendingChange, tests::limits};

    #[test]
    fn each_host_gets_the_action_that_it_needs() {
        let free = Candidate { name: "w".into(), joined: true, ready: true, ..Candidate::default() };
        let change = |disruption| Candidate {
            change: Some(PendingChange { disruption, ..PendingChange::default() }),
            ..free.clone()
        };
        let (none, heal) = (RemediationType::None, RemediationType::Reconfigure);
        let down = Candidate { down_since: Some(Timestamp::UNIX_EPOCH), ready: false, ..free.clone() };
        let checked = Candidate { health_check: Some("MachineHealthCheck ns/c".into()), ..down.clone() };
        // Arguments: listed in the inventory, candidate, changes other than a new version, orphaned, remediation.
        let said = |listed: bool, candidate: Option<Candidate>, beside: &str, orphan, remediation| {
            let hosts: BTreeMap<_, _> = listed.then(|| ("w".to_owned(), InstanceHost::default())).into_iter().collect();
            let mut instance = WindowsInstance::new("w", WindowsInstanceSpec::default());
            // Only an instance that is being deleted is deconfigured.
            let is_deleting = candidate.as_ref().is_some_and(|c| c.deconfiguring);
            instance.metadata.deletion_timestamp = is_deleting.then_some(Time(Timestamp::UNIX_EPOCH));
            let instance = Arc::new(instance);
            let members: Vec<Member> =
                candidate.into_iter().map(|candidate| Member { instance: instance.clone(), candidate }).collect();
            let lookups = HostLookups {
                why: &|_| "because".to_owned(),
                adoptable: &BTreeMap::new(),
                beside: &|_, _| Some(beside.to_owned()).filter(|b| !b.is_empty()).into_iter().collect(),
            };
            let list = preview(&hosts, &members, &Limits { orphan, remediation, ..limits() }, &lookups);
            list.first().map(|p| format!("{} {}: {}", p.action, p.disruption.as_str(), p.why)).unwrap_or_default()
        };
        let listed = |candidate: Candidate| said(true, Some(candidate), "", false, heal);
        let relabelled = |candidate: Candidate| said(true, Some(candidate), "labels (a)", false, heal);
        let gone = |candidate: Candidate| said(false, Some(candidate), "", false, heal);
        for (about, said, expected) in [
            ("in its desired state", listed(free.clone()), ""),
            ("new", said(true, None, "", false, heal), "Join None: new in the inventory"),
            ("not joined yet", listed(Candidate { joined: false, ..free.clone() }), "Join None: has not joined yet"),
            ("a change", listed(change(Disruption::Restart)), "Update Restart: because"),
            ("a change and a label", relabelled(change(Disruption::Drain)), "Update Drain: because, labels (a)"),
            (
                "a change and a restart",
                listed(Candidate { wants_reboot: true, ..change(Disruption::Reboot) }),
                "Update Reboot: because",
            ),
            ("a label", relabelled(free.clone()), "Update None: labels (a)"),
            (
                "a restart",
                listed(Candidate { wants_reboot: true, ..free.clone() }),
                "Reboot Reboot: the host requests a restart",
            ),
            (
                "a key to rotate",
                listed(Candidate { wants_key: true, ..free.clone() }),
                "RotateKey None: it accepts another SSH key than the first of its list, or still has an old key",
            ),
            (
                "a change that loses something",
                relabelled(Candidate { withheld: true, ..change(Disruption::Drain) }),
                &format!("{WITHHELD} None: labels (a), because"),
            ),
            (
                "on hold",
                listed(Candidate { held: true, ..change(Disruption::Drain) }),
                &format!("{NOTHING} None: it is on hold"),
            ),
            (
                "the version failed",
                listed(Candidate { failed: true, ..change(Disruption::Drain) }),
                &format!(
                    "{NOTHING} None: the version failed on this host and is not retried automatically; to retry, run kubectl windows-node-pools retry w"
                ),
            ),
            (
                "down",
                listed(down.clone()),
                "Repair None: the node is not Ready; it is repaired if that lasts for 600 s",
            ),
            ("down, and left to a MachineHealthCheck", listed(checked), ""),
            ("down, without remediation", said(true, Some(down), "", false, none), ""),
            (
                "deleted by a user",
                listed(Candidate { leaving: true, deconfiguring: true, ..free.clone() }),
                "Remove Drain: its WindowsInstance is being deleted; the host joins again afterwards",
            ),
            (
                "listed again",
                listed(Candidate { leaving: true, ..free.clone() }),
                &format!("{NOTHING} None: its removal is revoked, because the host is listed again"),
            ),
            ("not listed any more", gone(free.clone()), "Remove Drain: no longer in the inventory"),
            (
                "not listed any more before it joined",
                gone(Candidate { joined: false, ..free.clone() }),
                "Remove None: no longer in the inventory",
            ),
            ("released", said(false, Some(free.clone()), "", true, heal), "Orphan None: no longer in the inventory"),
        ] {
            assert_eq!(said, expected, "{about}");
        }
    }

    #[test]
    fn nodes_of_another_operator_are_adopted() {
        let hosts = BTreeMap::from([("w".to_owned(), InstanceHost::default())]);
        let refusal = || Some((Reason::HostUnproven, "declare its key".to_owned()));
        let withheld = || Some("it would lose x".to_owned());
        for (refusal, withheld, action, expected, summary) in [
            (None, None, "Adopt", "updated in its turn", "1 adopt"),
            (None, withheld(), "Adopt", "it would lose x", "1 adopt"),
            (refusal(), None, "Refuse", "it cannot be adopted (HostUnproven: declare its key)", "1 refuse"),
            (refusal(), withheld(), "Refuse", "it cannot be adopted (HostUnproven: declare its key)", "1 refuse"),
        ] {
            let adoptable = BTreeMap::from([("w".to_owned(), Adoption { refusal, withheld })]);
            let lookups = HostLookups { why: &|_| String::new(), adoptable: &adoptable, beside: &|_, _| Vec::new() };
            let list = preview(&hosts, &[], &limits(), &lookups);
            assert_eq!((list[0].action.as_str(), list[0].disruption.as_str()), (action, "None"));
            assert!(list[0].why.ends_with(expected), "{}", list[0].why);
            assert_eq!(super::summary(&list, 1), summary);
        }
    }

    #[test]
    fn the_summary_counts_hosts_by_action() {
        let list = |kinds: &[(&str, Disruption)]| -> Vec<PlannedHost> {
            kinds.iter().map(|(action, disruption)| planned("w", action, *disruption, String::new())).collect()
        };
        for (kinds, expected, idle) in [
            (&[][..], "nothing to do for 3 hosts", true),
            (&[(NOTHING, Disruption::None)], "nothing to do for 3 hosts", true),
            (
                &[
                    ("Update", Disruption::Drain),
                    (NOTHING, Disruption::None),
                    ("Join", Disruption::None),
                    ("Update", Disruption::Drain),
                ],
                "1 join, 2 update with a drain",
                false,
            ),
            (
                &[("PullImages", Disruption::None), ("RotateKey", Disruption::None)],
                "1 image pull, 1 key rotation",
                false,
            ),
        ] {
            let list = list(kinds);
            assert_eq!((summary(&list, 3).as_str(), is_idle(&list)), (expected, idle));
        }
    }
}
