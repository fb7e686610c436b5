//! Invariants of every decision about grants, independently of the tested code.

use super::{
    world::{leaves, write},
    *,
};

/// Reports whether a node counts against the budget of unavailable nodes, independently of the tested code.
fn takes_one(candidate: &Candidate) -> bool {
    let granted = match candidate.grant {
        Some(GrantType::Update) => candidate.grant_disruption != Some(Disruption::None),
        Some(grant) => {
            matches!(grant, GrantType::Reboot | GrantType::Repair | GrantType::Remove | GrantType::Maintenance)
        }
        None => false,
    };
    !candidate.available || candidate.begun || granted
}

/// Reports whether a grant is blocked by a user or a window, or is no longer needed by its node.
fn is_unwanted(candidate: &Candidate, limits: &Limits, too_many_down: bool) -> bool {
    let stopped = candidate.held || candidate.withheld || limits.paused;
    let wanted = match candidate.grant {
        Some(GrantType::Update) => {
            !candidate.failed
                && candidate.change.as_ref().is_some_and(|w| Some(&w.version) == candidate.grant_version.as_ref())
        }
        Some(GrantType::Reboot) => candidate.wants_reboot,
        Some(GrantType::Maintenance) => return stopped || candidate.maintenance.is_none(),
        Some(GrantType::Repair) => {
            let is_wanted = !candidate.ready && candidate.maintenance.is_none();
            return stopped || !is_wanted || too_many_down || limits.remediation == RemediationType::None;
        }
        _ => true,
    };
    stopped || !limits.open || !wanted
}

/// Reports whether the operator disturbs the pods of a node, or may do so.
fn loses_pods(candidate: &Candidate) -> bool {
    let quiet = candidate.grant == Some(GrantType::Update) && candidate.grant_disruption == Some(Disruption::None);
    let changes = candidate.begun
        || candidate.removing
        || matches!(
            candidate.grant,
            Some(
                GrantType::Update | GrantType::Reboot | GrantType::Repair | GrantType::Remove | GrantType::Maintenance
            )
        );
    candidate.joined && candidate.ready && !candidate.cordoned && !candidate.vanishing && changes && !quiet
}

/// Reports whether an operation has changed nothing on the host, so that only the cordon must be lifted.
fn can_be_taken_back(candidate: &Candidate) -> bool {
    match candidate.grant {
        Some(GrantType::Remove) => candidate.leaving && !candidate.deconfiguring,
        Some(GrantType::Update | GrantType::Reboot | GrantType::Repair | GrantType::Maintenance) => {
            !candidate.irrevocable
        }
        _ => false,
    }
}

/// Decides about the grants of a pool, and checks the invariants of every decision.
#[expect(clippy::too_many_lines, reason = "one check after another")]
pub(super) fn check(candidates: &[Candidate], limits: &Limits, now: Timestamp) -> Result<Decision, TestCaseError> {
    let decision = decide(candidates, limits, now);
    let base = |s: &&Candidate| s.joined && !s.held && !s.vanishing && !decision.lost.contains(&s.name);
    let cap = limits.max_unavailable.of(u32::try_from(candidates.iter().filter(base).count()).unwrap()) as usize;
    // A hold does not make a node available while an operation disturbs it.
    let is_charged = |s: &&Candidate| base(s) || (s.held && loses_pods(s));
    let before = candidates.iter().filter(is_charged).filter(|s| takes_one(s)).count();
    let mut after = candidates.to_vec();
    for candidate in &mut after {
        if let Some(change) = decision.changes.get(&candidate.name) {
            write(candidate, change.as_ref());
        }
    }
    let pairs = || candidates.iter().zip(&after);
    let new = pairs().filter(|(old, new)| base(new) && takes_one(new) && !takes_one(old)).count();
    prop_assert!(new == 0 || before + new <= cap, "{new} nodes in addition to {before}, of {cap}: {decision:?}");
    prop_assert!(limits.others.as_ref().is_none_or(|share| new <= share.left as usize), "{decision:?}");

    // A node that was down when its operation was granted may be up again: no more nodes than allowed are disturbed, whatever their state was.
    let losing = |candidates: &[Candidate]| candidates.iter().filter(|s| loses_pods(s)).count();
    let too_many = losing(candidates) > cap;
    let goes_on =
        |(old, new): (&Candidate, &Candidate)| loses_pods(new) && (!loses_pods(old) || can_be_taken_back(old));
    prop_assert!(
        losing(&after) <= cap || !pairs().any(goes_on),
        "{} nodes lose their pods, and {cap} may: {decision:?}",
        losing(&after)
    );

    let staying: Vec<Candidate> = candidates.iter().filter(|s| !s.vanishing).cloned().collect();
    let too_many_down = is_too_many_down(&staying, limits.max_unhealthy);
    for (old, new) in pairs() {
        let is_left_alone = old.vanishing || (old.leaving && old.deconfiguring);
        prop_assert!(!is_left_alone || !decision.changes.contains_key(&old.name), "{old:?} {new:?}");
        prop_assert!(is_left_alone || old.leaving || !leaves(new.grant), "a host that stays is removed: {new:?}");
        let orphan = old.leaving && (limits.orphan || old.let_go);
        prop_assert!(
            is_left_alone || !orphan || new.grant == Some(GrantType::Orphan),
            "a host is not orphaned: {new:?}"
        );
    }
    // An operation that is no longer wanted is aborted, as long as the host is unchanged.
    let is_reversible = |old: &Candidate| old.begun && !old.irrevocable && !old.leaving && !old.vanishing;
    for (old, new) in pairs().filter(|(old, _)| is_reversible(old)) {
        let is_change = old.grant.is_some_and(GrantType::is_change);
        let is_kept = !decision.changes.contains_key(&old.name) && new.grant == old.grant;
        prop_assert!(!(is_change && is_kept && is_unwanted(old, limits, too_many_down)), "{old:?}");
    }
    for (old, new) in pairs().filter(|(old, _)| decision.changes.contains_key(&old.name)) {
        let waits = old.waits_until.is_some_and(|until| until > now);
        let ends = old.grant.is_none() || (old.leaving && new.grant.is_some());
        let given_up = !old.irrevocable && (is_unwanted(old, limits, too_many_down) || (too_many && loses_pods(old)));
        prop_assert!(!old.begun || ends || leaves(old.grant) || given_up, "{old:?} {new:?}");
        prop_assert!(old.grant != new.grant || old.grant.is_some());
        let Some(grant) = new.grant else { continue };
        let leaves = leaves(Some(grant));
        prop_assert_eq!(leaves, old.leaving);
        prop_assert_eq!(grant == GrantType::Provision, !old.joined && !leaves);
        prop_assert!(!old.held || grant == GrantType::Orphan);
        let changes = grant.is_change() || grant == GrantType::Stage;
        prop_assert!(!old.withheld || !changes, "a withheld node is changed: {new:?}");
        prop_assert!(!waits || leaves);
        let (version, disruption) =
            old.change.as_ref().map_or((None, None), |w| (Some(&w.version), Some(w.disruption)));
        match grant {
            GrantType::Stage => prop_assert!(version == new.grant_version.as_ref() && !old.staged && !old.failed),
            GrantType::Update => {
                let its_own = old.grant == Some(grant) && old.grant_version == new.grant_version;
                prop_assert!(old.staged || its_own);
                prop_assert!(
                    version == new.grant_version.as_ref() && disruption == new.grant_disruption && !old.failed
                );
            }
            GrantType::Reboot => prop_assert!(old.wants_reboot),
            GrantType::Maintenance => prop_assert!(old.maintenance.is_some()),
            GrantType::RotateKey => {
                prop_assert!(old.wants_key && old.ready && old.key_waits_until.is_none_or(|until| until <= now));
            }
            GrantType::PullImages => {
                prop_assert!(old.wants_images && old.ready && old.images_wait_until.is_none_or(|until| until <= now));
            }
            GrantType::Repair => prop_assert!(!old.ready && limits.remediation != RemediationType::None),
            _ => {}
        }
        let changes = matches!(grant, GrantType::Stage | GrantType::Update | GrantType::Reboot);
        prop_assert!(limits.open || !changes, "{new:?}");
        prop_assert!(!limits.paused || grant == GrantType::Orphan, "{new:?}");
    }

    // New grants exceed none of the other limits.
    let many = limits.max_concurrent as usize;
    let joins = |s: &Candidate| !s.joined && s.grant == Some(GrantType::Provision);
    let tries = |s: &Candidate| s.waits_until.is_none_or(|until| until <= now);
    let quiet =
        |s: &Candidate| tries(s) && s.grant == Some(GrantType::Update) && s.grant_disruption == Some(Disruption::None);
    let dead = |s: &Candidate| {
        let changes = matches!(s.grant, Some(GrantType::Update | GrantType::Reboot | GrantType::Maintenance));
        let is_drained = s.grant == Some(GrantType::Maintenance) && s.irrevocable;
        tries(s) && s.joined && !s.available && changes && !is_drained && !quiet(s)
    };
    let repair = |s: &Candidate| tries(s) && s.grant == Some(GrantType::Repair);
    let rotates = |s: &Candidate| (s.rotating && !s.leaving) || s.grant == Some(GrantType::RotateKey);
    let pulls = |s: &Candidate| s.pulling || s.grant == Some(GrantType::PullImages);
    let sends = |s: &Candidate| s.grant == Some(GrantType::Stage) && !s.staged;
    let limit = limits.gate.limit.map_or(usize::MAX, |l| l as usize);
    let counts = |s: &Candidate| {
        let follows = s
            .change
            .as_ref()
            .is_none_or(|w| s.grant == Some(GrantType::Update) && s.grant_version.as_ref() == Some(&w.version));
        base(&s) && !s.leaving && (s.failed || follows)
    };
    type Kind<'a> = (&'a str, usize, &'a dyn Fn(&Candidate) -> bool);
    let kinds: [Kind<'_>; 8] = [
        ("pulls", limits.max_pulling as usize, &pulls),
        ("key rotations", 1, &rotates),
        ("joins", many, &joins),
        ("changes without a disruption", many, &quiet),
        ("changes of unavailable nodes", many, &dead),
        ("repairs", many, &repair),
        ("transfers of files", 2 * cap + many, &sends),
        ("changed nodes", limit, &counts),
    ];
    for (name, limit, which) in kinds {
        let count = |candidates: &[Candidate]| candidates.iter().filter(|s| !s.vanishing && which(s)).count();
        prop_assert!(count(&after) <= limit.max(count(candidates)), "more {name} than {limit}: {decision:?}");
    }

    let mut other = candidates.to_vec();
    other.reverse();
    let middle = other.len() / 3;
    other.rotate_left(middle);
    prop_assert_eq!(&decide(&other, limits, now), &decision);

    // The written grants lead to a stable state after at most one round for each host: a grant for one host may make room for another.
    let limits = &Limits { others: limits.others.as_ref().map(|_| Share::default()), ..limits.clone() };
    let mut next = decide(&after, limits, now);
    for _ in 0..after.len() {
        for candidate in &mut after {
            if let Some(change) = next.changes.get(&candidate.name) {
                write(candidate, change.as_ref());
            }
        }
        next = decide(&after, limits, now);
    }
    prop_assert!(next.changes.is_empty(), "the decisions do not become stable: {:?}", next);
    Ok(decision)
}
