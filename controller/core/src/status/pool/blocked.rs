//! Causes for which nodes wait for their change: lost settings, holds, cordons, and a budget that is used up. Pure.

use api::{
    GrantType,
    act::{Act, HOST},
    conditions::kind,
    names::key,
};

use crate::{
    enumeration::first_names,
    rollout::{
        grants::{Decision, UsedUp},
        member::Member,
    },
    wait::{Cause, Wait},
};

/// Returns the wait of nodes of the legacy operator whose change would lose settings.
pub(super) fn withheld(members: &[Member]) -> Option<Wait> {
    let is_withheld =
        |m: &Member| m.candidate.withheld && !m.candidate.leaving && !m.candidate.held && m.candidate.change.is_some();
    let names = names(members, is_withheld);
    let message = format!(
        "{} not updated, because the change could lose settings of the previous operator: {}. The condition {} of each instance names the settings and the remedy",
        number(&names),
        first_names(&names),
        kind::UPDATE_WITHHELD
    );
    (!names.is_empty()).then(|| Wait::new(Cause::LostSettings, message))
}

/// Returns the wait of nodes that users hold with an annotation.
pub(super) fn on_hold(members: &[Member]) -> Option<Wait> {
    let names = names(members, |m| m.candidate.held && !m.candidate.leaving && m.candidate.change.is_some());
    let message = format!(
        "{} not updated, because the annotation {}=true holds {}: {}. To end a hold, run {}",
        number(&names),
        key::HOLD,
        if names.len() == 1 { "it" } else { "them" },
        first_names(&names),
        Act::Release(only(&names)).command()
    );
    (!names.is_empty()).then(|| Wait::new(Cause::Hold, message))
}

/// Returns the names of the nodes that users hold, whether or not they need a change. Leaving nodes are left out.
pub(super) fn held(members: &[Member]) -> Vec<String> {
    names(members, |m| m.candidate.held && !m.candidate.leaving)
}

/// Returns the wait for nodes that users have cordoned, and that use up `rollout.maxUnavailable`.
pub(super) fn by_cordon(members: &[Member], decision: &Decision) -> Option<Wait> {
    let is_changed = |m: &Member| m.candidate.begun || m.candidate.grant.is_some_and(GrantType::is_change);
    // A cordoned node that must be changed goes first, and does not use up the budget.
    let stays = |m: &Member| m.candidate.change.is_none() || m.candidate.withheld || m.candidate.failed;
    let blocks = |m: &Member| {
        m.candidate.cordoned && m.candidate.joined && !m.candidate.held && !m.candidate.leaving && stays(m)
    };
    let names = names(members, blocks);
    if names.is_empty() || decision.allowed_disruptions > 0 || members.iter().any(is_changed) {
        return None;
    }
    let (node, it, each) = if names.len() == 1 { ("node", "it", "it") } else { ("nodes", "them", "each") };
    let message = format!(
        "{} to be updated, blocked by the cordon of {node} {}, which uses up rollout.maxUnavailable. Uncordon {it}, or hold \
         {each} so that it does not count: {}",
        decision.waiting.len(),
        first_names(&names),
        Act::Hold(only(&names))
    );
    Some(Wait::new(Cause::Cordon, message))
}

/// Returns the wait for the nodes that use up the budget because they are cordoned or not Ready, or for other pools that use it up.
pub(super) fn used_up(decision: &Decision) -> Option<Wait> {
    let n = decision.waiting.len();
    let wait = format!("{n} to be updated {}", if n == 1 { "waits" } else { "wait" });
    let (cause, message) = match decision.used_up.as_ref()? {
        UsedUp::Unavailable { nodes, cap, .. } => (
            Cause::NotWorking,
            format!(
                "{wait}: rollout.maxUnavailable ({cap}) is used up by {}, which {} cordoned or not Ready. Repair or uncordon {}, or hold {} so that it does not count: {}",
                first_names(nodes),
                if nodes.len() == 1 { "is" } else { "are" },
                if nodes.len() == 1 { "it" } else { "them" },
                if nodes.len() == 1 { "it" } else { "each" },
                Act::Hold(only(nodes))
            ),
        ),
        UsedUp::OtherPools(share) => {
            let holder = share.holder.as_deref().unwrap_or_default();
            let message = match share.max_disruptions {
                Some(limit) => format!(
                    "{wait}: the limit over all pools (--max-disruptions {limit}) is used up, among others by the pool {holder}; check why the changes of that pool do not finish"
                ),
                None => format!(
                    "{wait}: nodes that came from WMCO change one at a time over all pools, and the pool {holder} has the turn; check why the changes of that pool do not finish, or set \
                     rollout.maxUnavailable"
                ),
            };
            (Cause::OtherPool, message)
        }
    };
    Some(Wait::new(cause, message))
}

/// Returns the names of the nodes that users have cordoned, whether or not they need a change. Leaving and held nodes are left out.
pub(super) fn cordoned(members: &[Member]) -> Vec<String> {
    names(members, |m| m.candidate.cordoned && m.candidate.joined && !m.candidate.held && !m.candidate.leaving)
}

fn names(members: &[Member], which: impl Fn(&Member) -> bool) -> Vec<String> {
    let mut names: Vec<String> = members.iter().filter(|m| which(m)).map(|m| m.candidate.name.clone()).collect();
    names.sort();
    names
}

/// Returns the name of the only host; for several, a placeholder that the reader fills in.
fn only(names: &[String]) -> &str {
    if let [name] = names { name } else { HOST }
}

fn number(names: &[String]) -> String {
    if names.len() == 1 { "1 node is".into() } else { format!("{} nodes are", names.len()) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::{WindowsInstance, WindowsInstanceSpec};

    use super::*;
    use crate::rollout::grants::{Candidate, PendingChange};

    fn member(name: &str, candidate: Candidate) -> Member {
        let instance = Arc::new(WindowsInstance::new(name, WindowsInstanceSpec::default()));
        Member { instance, candidate: Candidate { name: name.into(), joined: true, ready: true, ..candidate } }
    }

    #[test]
    fn a_cordon_that_blocks_the_budget_is_named() {
        let change = || Some(PendingChange::default());
        let waits = || member("waits", Candidate { available: true, change: change(), ..Candidate::default() });
        let cordoned = |candidate| member("x", Candidate { cordoned: true, ..candidate });
        let plain = Candidate::default();
        for (about, first, allowed, expected) in [
            ("a node that follows its version", cordoned(plain.clone()), 0, true),
            ("there is room", cordoned(plain.clone()), 1, false),
            ("it is changed first", cordoned(Candidate { change: change(), ..plain.clone() }), 0, false),
            ("it gave up", cordoned(Candidate { change: change(), failed: true, ..plain.clone() }), 0, true),
            (
                "its change is withheld",
                cordoned(Candidate { change: change(), withheld: true, ..plain.clone() }),
                0,
                true,
            ),
            ("it does not count", cordoned(Candidate { held: true, ..plain.clone() }), 0, false),
            ("no client has cordoned it", member("x", plain.clone()), 0, false),
            ("another is being changed", member("x", Candidate { grant: Some(GrantType::Update), ..plain }), 0, false),
        ] {
            let decision =
                Decision { allowed_disruptions: allowed, waiting: vec!["waits".into()], ..Decision::default() };
            let said = by_cordon(&[first, waits()], &decision);
            assert_eq!(said.is_some(), expected, "{about}");
            if let Some(Wait { cause, message }) = said {
                assert_eq!(cause, Cause::Cordon);
                assert!(message.contains("blocked by the cordon of node x,"), "{message}");
            }
        }
    }

    #[test]
    fn nodes_whose_change_loses_something_are_named() {
        let withheld_slot =
            Candidate { withheld: true, change: Some(PendingChange::default()), ..Candidate::default() };
        let Wait { cause, message } =
            withheld(&[member("a", withheld_slot.clone()), member("b", Candidate::default())]).unwrap();
        assert_eq!(cause, Cause::LostSettings);
        assert!(message.starts_with("1 node is not updated") && message.contains("operator: a."), "{message}");
        assert_eq!(withheld(&[member("a", Candidate { leaving: true, ..withheld_slot })]), None);
    }
}
