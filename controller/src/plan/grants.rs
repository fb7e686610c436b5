//! Who may be worked on now.
//!
//! A grant is a slot: it is written on the instance, so that it can be counted, seen and taken back. Joining disturbs
//! nobody and is bounded by `provisioning.maxConcurrent` alone; removing a node that works is bounded by
//! `rollout.maxUnavailable`; removing one that does not work costs nothing.

use std::collections::BTreeMap;

use api::GrantType;
use jiff::Timestamp;

/// What counts of one host of a pool.
#[derive(Clone, Debug, Default)]
pub struct Slot {
    /// Name of the instance.
    pub name: String,
    /// The grant it has.
    pub grant: Option<GrantType>,
    /// Whether it shall go: taken out of the inventory, its pool deleted, or deleted by hand.
    pub leaving: bool,
    /// Whether it has joined and followed its version completely at least once.
    pub joined: bool,
    /// Whether its Node is Ready, has been so for long enough, and takes pods.
    pub available: bool,
    /// Until when it waits after a failure.
    pub waits_until: Option<Timestamp>,
}

/// Limits of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Hosts that join, or are removed without being disturbed, at once.
    pub max_concurrent: u32,
    /// Nodes that may be unavailable at once.
    pub max_unavailable: u32,
    /// Whether nothing new may begin.
    pub paused: bool,
    /// Whether hosts that leave are let go as they are.
    pub orphan: bool,
}

/// What follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Grants to write; `None` takes one back.
    pub changes: BTreeMap<String, Option<GrantType>>,
    /// How many more available nodes could be disturbed now.
    pub allowed_disruptions: u32,
    /// When to look again though nothing else happens.
    pub next: Option<Timestamp>,
}

/// Decides. The same state gives the same decision, whatever the order of `slots`.
pub fn decide(slots: &[Slot], limits: Limits, now: Timestamp) -> Decision {
    let mut sorted: Vec<&Slot> = slots.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));

    let mut decision = Decision::default();
    let waits = |s: &Slot| s.waits_until.filter(|until| *until > now);
    decision.next = sorted.iter().filter_map(|s| waits(s)).min();

    // Joining: a host that waits after a failure gives its slot to the next one.
    let mut free = limits.max_concurrent;
    for slot in sorted.iter().filter(|s| !s.leaving && s.grant == Some(GrantType::Provision)) {
        if slot.joined || waits(slot).is_some() {
            decision.changes.insert(slot.name.clone(), None);
        } else {
            free = free.saturating_sub(1);
        }
    }
    // A host that is to stay has no use for a grant to go, as after its pool was set from Orphan to Deconfigure and back.
    for slot in sorted.iter().filter(|s| !s.leaving && matches!(s.grant, Some(GrantType::Remove | GrantType::Orphan))) {
        decision.changes.insert(slot.name.clone(), None);
    }

    // Leaving.
    let busy = |s: &Slot| s.joined && (!s.available || s.grant == Some(GrantType::Remove));
    let unavailable = u32::try_from(sorted.iter().filter(|s| busy(s)).count()).unwrap_or(u32::MAX);
    let mut budget = limits.max_unavailable.saturating_sub(unavailable);
    let mut undisturbed = limits.max_concurrent.saturating_sub(
        u32::try_from(
            sorted.iter().filter(|s| s.leaving && s.grant == Some(GrantType::Remove) && !s.available).count(),
        )
        .unwrap_or(u32::MAX),
    );
    for slot in sorted.iter().filter(|s| s.leaving) {
        let wanted = if limits.orphan { GrantType::Orphan } else { GrantType::Remove };
        if slot.grant == Some(wanted) || slot.grant == Some(GrantType::Remove) {
            continue;
        }
        let may = if limits.orphan {
            true
        } else if limits.paused {
            false
        } else if slot.joined && slot.available {
            take(&mut budget)
        } else {
            take(&mut undisturbed)
        };
        if may {
            decision.changes.insert(slot.name.clone(), Some(wanted));
        } else if slot.grant.is_some() {
            decision.changes.insert(slot.name.clone(), None);
        }
    }
    decision.allowed_disruptions = if limits.paused { 0 } else { budget };

    for slot in sorted.iter().filter(|s| !s.leaving && !s.joined && s.grant.is_none()) {
        if !limits.paused && waits(slot).is_none() && take(&mut free) {
            decision.changes.insert(slot.name.clone(), Some(GrantType::Provision));
        }
    }
    decision
}

fn take(of: &mut u32) -> bool {
    let some = *of > 0;
    *of = of.saturating_sub(1);
    some
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits { max_concurrent: 2, max_unavailable: 1, paused: false, orphan: false };
    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn new(name: &str) -> Slot {
        Slot { name: name.into(), ..Slot::default() }
    }
    fn node(name: &str) -> Slot {
        Slot { joined: true, available: true, ..new(name) }
    }
    fn leaving(slot: Slot) -> Slot {
        Slot { leaving: true, ..slot }
    }
    fn granted(slot: Slot, grant: GrantType) -> Slot {
        Slot { grant: Some(grant), ..slot }
    }
    fn waiting(slot: Slot) -> Slot {
        Slot { waits_until: Some(Timestamp::from_second(60).unwrap()), ..slot }
    }
    fn changes(slots: &[Slot], limits: Limits) -> Vec<(String, Option<GrantType>)> {
        decide(slots, limits, NOW).changes.into_iter().collect()
    }

    #[test]
    fn cases() {
        use GrantType::{Orphan, Provision, Remove};
        let paused = Limits { paused: true, ..LIMITS };
        let orphan = Limits { orphan: true, ..LIMITS };
        let dead = |name| Slot { available: false, ..node(name) };
        for (name, slots, limits, expected) in [
            (
                "new hosts up to the limit, by name",
                vec![new("c"), new("a"), new("b")],
                LIMITS,
                vec![("a", Some(Provision)), ("b", Some(Provision))],
            ),
            (
                "a slot that is taken counts",
                vec![granted(new("a"), Provision), new("b"), new("c")],
                LIMITS,
                vec![("b", Some(Provision))],
            ),
            (
                "who waits gives its slot away",
                vec![waiting(granted(new("a"), Provision)), new("b"), new("c")],
                LIMITS,
                vec![("a", None), ("b", Some(Provision)), ("c", Some(Provision))],
            ),
            ("who waits is not taken", vec![waiting(new("a"))], LIMITS, vec![]),
            ("who has joined gives its slot back", vec![granted(node("a"), Provision)], LIMITS, vec![("a", None)]),
            ("nothing to do", vec![node("a"), node("b")], LIMITS, vec![]),
            ("paused: nothing new", vec![new("a"), leaving(node("b"))], paused, vec![]),
            (
                "paused: what has begun goes on",
                vec![granted(new("a"), Provision), granted(leaving(node("b")), Remove)],
                paused,
                vec![],
            ),
            (
                "one at a time leaves",
                vec![leaving(node("a")), leaving(node("b")), node("c")],
                LIMITS,
                vec![("a", Some(Remove))],
            ),
            (
                "one that leaves already counts",
                vec![granted(leaving(node("a")), Remove), leaving(node("b"))],
                LIMITS,
                vec![],
            ),
            ("a dead node takes the budget of the others", vec![dead("a"), leaving(node("b"))], LIMITS, vec![]),
            (
                "but is itself removed for nothing",
                vec![leaving(dead("a")), node("b")],
                LIMITS,
                vec![("a", Some(Remove))],
            ),
            (
                "who never joined is removed for nothing",
                vec![dead("x"), leaving(new("a")), leaving(new("b")), leaving(new("c"))],
                LIMITS,
                vec![("a", Some(Remove)), ("b", Some(Remove))],
            ),
            (
                "orphans go at once",
                vec![leaving(node("a")), leaving(node("b"))],
                orphan,
                vec![("a", Some(Orphan)), ("b", Some(Orphan))],
            ),
            ("a removal that has begun is finished", vec![granted(leaving(node("a")), Remove)], orphan, vec![]),
            (
                "leaving in the middle of joining",
                vec![granted(leaving(new("a")), Provision)],
                LIMITS,
                vec![("a", Some(Remove))],
            ),
        ] {
            let expected: Vec<_> = expected.into_iter().map(|(n, g)| (n.to_string(), g)).collect();
            assert_eq!(changes(&slots, limits), expected, "{name}");
        }
    }

    #[test]
    fn looks_again_when_the_first_wait_ends() {
        let later = |s, slot| Slot { waits_until: Timestamp::from_second(s).ok(), ..slot };
        let decision = decide(&[later(90, new("a")), later(60, new("b")), later(-5, new("c"))], LIMITS, NOW);
        assert_eq!(decision.next, Timestamp::from_second(60).ok());
    }

    prop_compose! {
        fn any_slot()(name in "[a-f]", grant in 0..4u8, leaving: bool, joined: bool, available: bool, waits: bool) -> Slot {
            let grant = [None, Some(GrantType::Provision), Some(GrantType::Remove), Some(GrantType::Orphan)][usize::from(grant)];
            Slot { name, grant, leaving, joined, available: joined && available, waits_until: waits.then(|| Timestamp::from_second(60).unwrap()) }
        }
    }

    proptest! {
        #[test]
        fn limits_hold(slots in proptest::collection::btree_map("[a-z]{1,2}", any_slot(), 0..20), max_concurrent in 1..5u32, max_unavailable in 1..5u32, paused: bool) {
            let mut slots: Vec<Slot> = slots.into_iter().map(|(name, s)| Slot { name, ..s }).collect();
            let limits = Limits { max_concurrent, max_unavailable, paused, orphan: false };
            let decision = decide(&slots, limits, NOW);
            let new = |g| decision.changes.values().filter(|c| **c == Some(g)).count();
            let newly_disturbed = slots.iter().filter(|s| s.available && decision.changes.get(&s.name) == Some(&Some(GrantType::Remove))).count();
            let unavailable_before = slots.iter().filter(|s| s.joined && (!s.available || s.grant == Some(GrantType::Remove))).count();
            prop_assert!(newly_disturbed == 0 || newly_disturbed + unavailable_before <= max_unavailable as usize);
            if paused {
                prop_assert_eq!(new(GrantType::Provision) + new(GrantType::Remove), 0);
            }
            let order = decide(&{ let mut r = slots.clone(); r.reverse(); r }, limits, NOW);
            prop_assert_eq!(&order, &decision);
            // Writing the grants leads to a state in which there is nothing more to write: what is taken back first is
            // given anew in the next look at the latest.
            let mut looks = 0;
            let mut next = decision.clone();
            while !next.changes.is_empty() {
                looks += 1;
                prop_assert!(looks <= 3, "{next:?}");
                for slot in &mut slots {
                    if let Some(change) = next.changes.get(&slot.name) {
                        slot.grant = *change;
                    }
                }
                next = decide(&slots, limits, NOW);
            }
            let provision = slots.iter().filter(|s| !s.leaving && !s.joined && s.grant == Some(GrantType::Provision)).count();
            let before = slots.iter().filter(|s| !s.leaving && !s.joined && s.grant == Some(GrantType::Provision) && !decision.changes.contains_key(&s.name)).count();
            prop_assert!(provision <= (max_concurrent as usize).max(before));
        }
    }
}
