//! Next step of a change of a node: an update, a restart, a repair or a maintenance.
//!
//! Steps on the host are those of a join, chosen by [`super::join`]. Before them the node is drained if necessary, and after them it is watched
//! for a while before it takes pods again.

use std::collections::BTreeSet;

use api::{Disruption, GrantType, MaintenanceState, Step, host::RestartCause};

/// Phase of a change, in order. Work on the host has several steps in the status, and is one phase here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangePhase {
    /// Login, check that the host can be changed, and upload of missing files. The node continues unchanged.
    Check,
    /// Cordon of the Node, which takes no new pods.
    Cordon,
    /// Drain of the node, which moves the pods away.
    Drain,
    /// Maintenance of the host, during which the node stays drained.
    Maintain,
    /// All work on the host, until the Node is Ready again.
    Converge,
    /// Check that the host stays in its desired state and its Node Ready.
    Verify,
    /// End of the cordon: the node takes pods again.
    Uncordon,
}

impl From<Step> for ChangePhase {
    fn from(step: Step) -> Self {
        match step {
            Step::Check => Self::Check,
            Step::Cordon => Self::Cordon,
            Step::Drain => Self::Drain,
            Step::Maintain => Self::Maintain,
            Step::Verify => Self::Verify,
            Step::Uncordon => Self::Uncordon,
            _ => Self::Converge,
        }
    }
}

/// Returns the first step of a change. A host that needs maintenance may not answer, so it is not contacted first.
pub fn first_step(type_: GrantType, drains: bool) -> Step {
    match type_ {
        GrantType::Maintenance => Step::Cordon,
        _ if drains => Step::Check,
        _ => Step::Connect,
    }
}

/// Reports whether the node is drained first. A repair drains nothing: a node that does not work has no pods that can be moved.
pub fn drains(type_: GrantType, disruption: Disruption) -> bool {
    match type_ {
        GrantType::Update => disruption >= Disruption::Drain,
        GrantType::Reboot | GrantType::Maintenance => true,
        _ => false,
    }
}

/// Reports whether an operation restarts the host because Windows waits for a restart. Only the end of a maintenance does: the node is empty, its
/// patches may need the restart, and later it would have to be drained again. The restart for a new name or domain is left to the user who set
/// it.
pub fn is_restart_due(type_: GrantType, causes: &BTreeSet<RestartCause>) -> bool {
    let is_patched = |cause: &RestartCause| matches!(cause, RestartCause::Servicing | RestartCause::WindowsUpdate);
    type_ == GrantType::Maintenance && causes.iter().any(is_patched)
}

/// State of the maintenance request for a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Maintenance {
    /// The operation is not maintenance.
    #[default]
    None,
    /// The node must be drained, and stay drained.
    Requested,
    /// The request has ended: the node returns to service.
    Over,
}

/// Observations of a node that changes.
#[expect(clippy::struct_excessive_bools, reason = "each field is an independent observation")]
#[derive(Clone, Copy, Debug)]
pub struct ObservedChange {
    /// Last phase that this operation began. It is stored before a step begins, so all earlier phases are complete.
    pub begun: ChangePhase,
    /// True if the node must be drained.
    pub drains: bool,
    /// State of the maintenance request for the node.
    pub maintenance: Maintenance,
    /// True if this operation found the host fit for the change, with everything on it that the change needs.
    pub checked: bool,
    /// True if the Node is cordoned, by this operation or by another client before it.
    pub cordoned: bool,
    /// True if the last pass of the drain found the node empty. Valid for one decision only.
    pub drained: bool,
    /// True if the host is in its desired state and its Node Ready.
    pub works: bool,
    /// True if host and Node have worked for long enough.
    pub proven: bool,
    /// True if a cordon of this operation is on the Node.
    pub our_cordon: bool,
}

impl ObservedChange {
    /// Reports whether pods may still have to be moved away. After the drain of an update or restart, and at the end of a maintenance, services on
    /// the host may be stopped, so no pod can be moved, and none is waited for.
    pub fn is_before_drain(&self) -> bool {
        match self.maintenance {
            Maintenance::None => self.drains && self.begun < ChangePhase::Converge,
            Maintenance::Requested => true,
            Maintenance::Over => false,
        }
    }

    /// Returns the maintenance state that the Node must show; `None` leaves it unchanged. `Drained` is shown only after [`ChangePhase::Maintain`] is
    /// stored as begun, and no longer once work on the host may begin.
    pub fn maintenance_state(&self) -> Option<MaintenanceState> {
        match self.maintenance {
            Maintenance::None => None,
            Maintenance::Requested if self.begun == ChangePhase::Maintain && self.cordoned && self.drained => {
                Some(MaintenanceState::Drained)
            }
            Maintenance::Requested => Some(MaintenanceState::Draining),
            Maintenance::Over => Some(MaintenanceState::Returning),
        }
    }
}

/// Next step of a change, with the Node where it needs one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<N> {
    /// Login, check that the host can be changed, and upload of missing files.
    Check,
    /// Cordon of the Node, which takes no new pods.
    Cordon(N),
    /// Drain of the node, which moves the pods away.
    Drain(N),
    /// Wait, with the node drained, until the maintenance ends.
    Maintain,
    /// Change of the host.
    Converge,
    /// Check that the host stays in its desired state and its Node Ready.
    Verify,
    /// End of the cordon: the node takes pods again.
    Uncordon(N),
    /// End: the change is done.
    Done,
}

/// Chooses the next step. Without a Node there is nothing to move away, and nothing to uncordon.
pub fn next<N>(node: Option<N>, seen: ObservedChange) -> Next<N> {
    if seen.maintenance == Maintenance::Requested {
        // A node that returns from maintenance is drained again if a new request comes: another client may have lifted its cordon.
        return match node {
            Some(node) if !seen.cordoned => Next::Cordon(node),
            Some(node) if !seen.drained => Next::Drain(node),
            _ => Next::Maintain,
        };
    }
    if seen.is_before_drain() {
        // The cordon is stored only after the check, so an operator that finds it begun need not check again.
        if !seen.checked && seen.begun < ChangePhase::Cordon {
            return Next::Check;
        }
        match node {
            Some(node) if !seen.cordoned => return Next::Cordon(node),
            Some(node) if !seen.drained => return Next::Drain(node),
            _ => {}
        }
        return Next::Converge;
    }
    if !seen.works {
        return Next::Converge;
    }
    if !seen.proven {
        return Next::Verify;
    }
    node.filter(|_| seen.our_cordon).map_or(Next::Done, Next::Uncordon)
}

/// Cause of a failure. Only failures of the version count against it, and may stop or roll back a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The host: it cannot be reached or logged in to, or is not fit to be changed. It is retried after a while.
    Host,
    /// The version that the host was given.
    Version,
    /// The cluster, the operator, or what a user has set in one of these.
    Cluster,
}

/// Known facts about a failure during a change of a node.
#[expect(clippy::struct_excessive_bools, reason = "each field is an independent flag")]
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// Type of the operation.
    pub type_: GrantType,
    /// True if something on the host may have been changed.
    pub irrevocable: bool,
    /// True if the host is on its way back to the previous version.
    pub rolling_back: bool,
    /// Part at fault.
    pub blame: Blame,
    /// True if only a request to the API server failed.
    pub is_api_failure: bool,
    /// True if this failure alone is enough for a rollback, because it used up all available time.
    pub is_final: bool,
    /// Failures of the version before this one.
    pub attempts: i32,
}

/// Consequence of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFailure {
    /// The operation is retried from its current step, after a delay.
    Retry {
        /// Failures of the version, with this one.
        attempts: i32,
    },
    /// The operation ends and lifts its cordon: nothing on the host was changed.
    GiveUp,
    /// The version does not work on this host, which returns to the previous one.
    TakeBack,
}

/// Attempts on a host before its version is rolled back.
const ATTEMPTS: i32 = 3;

/// Decides how to continue after a failure during a change of a node.
pub fn after_failure(failure: Failure) -> AfterFailure {
    let Failure { type_, irrevocable, rolling_back, blame, is_api_failure, is_final, attempts } = failure;
    // A repair has cordoned nothing, and no other host waits for its slot.
    if !irrevocable && type_ != GrantType::Repair {
        return if is_api_failure { AfterFailure::Retry { attempts } } else { AfterFailure::GiveUp };
    }
    let of_version = type_ == GrantType::Update && blame == Blame::Version;
    let attempts = attempts + i32::from(of_version);
    if of_version && !rolling_back && (is_final || attempts >= ATTEMPTS) {
        AfterFailure::TakeBack
    } else {
        AfterFailure::Retry { attempts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Observed state at the beginning of a change that drains the node.
    const SEEN: ObservedChange = ObservedChange {
        begun: ChangePhase::Check,
        drains: true,
        maintenance: Maintenance::None,
        checked: false,
        cordoned: false,
        drained: false,
        works: false,
        proven: false,
        our_cordon: false,
    };
    const CORDONED: ObservedChange = ObservedChange { cordoned: true, our_cordon: true, ..SEEN };

    fn past(begun: ChangePhase, seen: ObservedChange) -> ObservedChange {
        ObservedChange { begun, ..seen }
    }

    fn works(seen: ObservedChange) -> ObservedChange {
        ObservedChange { works: true, ..seen }
    }

    fn proven(seen: ObservedChange) -> ObservedChange {
        ObservedChange { proven: true, ..works(seen) }
    }

    fn without_our_cordon(seen: ObservedChange) -> ObservedChange {
        ObservedChange { our_cordon: false, ..seen }
    }

    #[test]
    fn each_phase_follows_from_the_state_of_the_node() {
        use ChangePhase::{Converge, Cordon, Drain, Verify};
        let free = ObservedChange { begun: Converge, drains: false, ..SEEN };
        let by_a_user = ObservedChange { cordoned: true, ..SEEN };
        let checked = |seen: ObservedChange| ObservedChange { checked: true, ..seen };
        let drained = |seen: ObservedChange| ObservedChange { drained: true, ..checked(seen) };
        for (name, seen, expected) in [
            ("no pod is moved for a service", free, Next::Converge),
            ("the node works, for a moment", works(free), Next::Verify),
            ("the node has worked long enough", proven(free), Next::Done),
            ("the host is checked before its pods are moved", SEEN, Next::Check),
            ("a node that a user has cordoned is checked as well", by_a_user, Next::Check),
            ("the node is cordoned after the check", checked(SEEN), Next::Cordon(())),
            ("a crash before the cordon was taken", past(Cordon, SEEN), Next::Cordon(())),
            ("the node is drained after the cordon", checked(CORDONED), Next::Drain(())),
            ("another client's cordon is sufficient", checked(by_a_user), Next::Drain(())),
            ("the host is changed after the drain", drained(CORDONED), Next::Converge),
            ("another client lifted the cordon", past(Drain, SEEN), Next::Cordon(())),
            ("a crash in the middle of the drain", past(Drain, CORDONED), Next::Drain(())),
            ("a crash after the drain", past(Converge, CORDONED), Next::Converge),
            ("nothing is drained again at the end", past(Verify, works(CORDONED)), Next::Verify),
            ("the node stopped working while it was watched", past(Verify, CORDONED), Next::Converge),
            ("the node has worked long enough after a drain", past(Verify, proven(CORDONED)), Next::Uncordon(())),
            ("the cordon was another client's", past(Verify, without_our_cordon(proven(CORDONED))), Next::Done),
        ] {
            assert_eq!(next(Some(()), seen), expected, "{name}");
        }
        assert_eq!(next(None::<()>, SEEN), Next::Check, "a host without a Node is checked as well");
        assert_eq!(next(None::<()>, checked(SEEN)), Next::Converge, "a host without a Node has no pods to move");
    }

    #[test]
    fn a_node_in_maintenance_is_emptied_and_handed_back() {
        use ChangePhase::{Converge, Cordon, Drain, Maintain, Verify};
        use MaintenanceState::{Drained, Draining, Returning};
        let free = ObservedChange { begun: Cordon, maintenance: Maintenance::Requested, ..SEEN };
        let held = ObservedChange { cordoned: true, our_cordon: true, ..free };
        let empty = ObservedChange { drained: true, ..held };
        let over = |begun, seen: ObservedChange| ObservedChange { begun, maintenance: Maintenance::Over, ..seen };
        for (name, seen, expected, state) in [
            ("the host is not contacted first", free, Next::Cordon(()), Draining),
            ("a cordoned node is drained", held, Next::Drain(()), Draining),
            ("a node that is found empty", empty, Next::Maintain, Draining),
            ("a node that is stored as empty", past(Maintain, empty), Next::Maintain, Drained),
            (
                "another client lifts the cordon during the maintenance",
                past(Maintain, free),
                Next::Cordon(()),
                Draining,
            ),
            ("a node that is drained again", past(Drain, held), Next::Drain(()), Draining),
            ("the maintenance ends", over(Maintain, empty), Next::Converge, Returning),
            ("the maintenance has ended, after a crash", over(Converge, held), Next::Converge, Returning),
            ("the maintenance ends while the node is drained again", over(Drain, held), Next::Converge, Returning),
            ("the node works after the maintenance", over(Converge, works(held)), Next::Verify, Returning),
            (
                "the node has worked long enough after the maintenance",
                over(Verify, proven(held)),
                Next::Uncordon(()),
                Returning,
            ),
            (
                "the node has worked long enough, and the cordon was there before",
                over(Verify, without_our_cordon(proven(held))),
                Next::Done,
                Returning,
            ),
            ("a maintenance is requested again on the way back", past(Verify, works(held)), Next::Drain(()), Draining),
            (
                "a maintenance is requested again, and the node is empty",
                past(Verify, works(empty)),
                Next::Maintain,
                Draining,
            ),
        ] {
            assert_eq!((next(Some(()), seen), seen.maintenance_state()), (expected, Some(state)), "{name}");
        }
        assert_eq!(next(None::<()>, free), Next::Maintain, "without a Node there is nothing to move away");
    }

    #[test]
    fn the_type_and_disruption_of_a_change_decide_the_drain() {
        for (type_, disruption, expected) in [
            (GrantType::Update, Disruption::None, false),
            (GrantType::Update, Disruption::Restart, false),
            (GrantType::Update, Disruption::Drain, true),
            (GrantType::Update, Disruption::Reboot, true),
            (GrantType::Reboot, Disruption::None, true),
            (GrantType::Repair, Disruption::Reboot, false),
            (GrantType::Maintenance, Disruption::None, true),
            (GrantType::Stage, Disruption::Drain, false),
        ] {
            assert_eq!(drains(type_, disruption), expected, "{type_:?} {disruption:?}");
        }
    }

    #[test]
    fn restarts_that_windows_waits_for_are_done_at_the_end_of_a_maintenance() {
        use RestartCause::{NameOrDomain, Servicing, WindowsUpdate};
        for (type_, causes, expected) in [
            (GrantType::Maintenance, &[][..], false),
            (GrantType::Maintenance, &[Servicing], true),
            (GrantType::Maintenance, &[WindowsUpdate, NameOrDomain], true),
            (GrantType::Maintenance, &[NameOrDomain], false),
            (GrantType::Update, &[WindowsUpdate], false),
            (GrantType::Provision, &[Servicing], false),
        ] {
            assert_eq!(is_restart_due(type_, &causes.iter().copied().collect()), expected, "{type_:?} {causes:?}");
        }
    }

    fn any_seen() -> impl Strategy<Value = ObservedChange> {
        let phase = proptest::sample::select(vec![
            ChangePhase::Check,
            ChangePhase::Cordon,
            ChangePhase::Drain,
            ChangePhase::Converge,
            ChangePhase::Verify,
            ChangePhase::Uncordon,
        ]);
        (phase, any::<[bool; 6]>()).prop_map(|(begun, [checked, cordoned, drained, works, proven, our_cordon])| {
            ObservedChange { begun, checked, cordoned, drained, works, proven, our_cordon, ..SEEN }
        })
    }

    proptest! {
        #[test]
        fn no_node_is_cordoned_before_its_host_was_checked(seen in any_seen()) {
            let disturbs = matches!(next(Some(()), seen), Next::Cordon(()) | Next::Drain(()) | Next::Converge);
            prop_assert!(!disturbs || seen.checked || seen.begun >= ChangePhase::Cordon, "{:?}", seen);
        }

        #[test]
        fn only_a_version_that_was_put_on_the_host_is_taken_back(
            type_ in proptest::sample::select(vec![GrantType::Update, GrantType::Reboot, GrantType::Repair]),
            blame in proptest::sample::select(vec![Blame::Host, Blame::Version, Blame::Cluster]),
            [irrevocable, rolling_back, is_api_failure, is_final] in any::<[bool; 4]>(),
            attempts in 0..5i32,
        ) {
            let failure = Failure { type_, irrevocable, rolling_back, blame, is_api_failure, is_final, attempts };
            match after_failure(failure) {
                AfterFailure::TakeBack => {
                    prop_assert!(irrevocable && blame == Blame::Version && !rolling_back && type_ == GrantType::Update);
                }
                AfterFailure::GiveUp => prop_assert!(!irrevocable),
                AfterFailure::Retry { attempts: now } => prop_assert!(blame == Blame::Version || now == attempts),
            }
        }
    }

    #[test]
    fn a_failure_is_retried_given_up_or_taken_back() {
        use AfterFailure::{GiveUp, Retry, TakeBack};
        use Blame::{Cluster, Host, Version};
        let update = Failure {
            type_: GrantType::Update,
            irrevocable: true,
            rolling_back: false,
            blame: Host,
            is_api_failure: false,
            is_final: false,
            attempts: 0,
        };
        let untouched = Failure { irrevocable: false, ..update };
        let of = |blame, attempts, failure: Failure| Failure { blame, attempts, ..failure };
        let again = |attempts| Retry { attempts };
        for (name, failure, expected) in [
            ("the host does not answer, and nothing was changed on it", untouched, GiveUp),
            ("the cluster fails, and nothing was changed on the host", of(Cluster, 0, untouched), GiveUp),
            ("the version fails, and nothing was changed on the host", of(Version, 2, untouched), GiveUp),
            (
                "a drain waits for the API server",
                Failure { is_api_failure: true, ..of(Cluster, 0, untouched) },
                again(0),
            ),
            (
                "a restart fails, and nothing was changed on the host",
                Failure { type_: GrantType::Reboot, ..untouched },
                GiveUp,
            ),
            (
                "a repair continues, although nothing was changed on the host",
                Failure { type_: GrantType::Repair, ..untouched },
                again(0),
            ),
            ("the host stops answering during the change", of(Host, 2, update), again(2)),
            ("the cluster fails during the change", of(Cluster, 2, update), again(2)),
            ("the version failed once", of(Version, 0, update), again(1)),
            ("the version failed for the third time", of(Version, 2, update), TakeBack),
            ("the version used up all its time", Failure { is_final: true, ..of(Version, 0, update) }, TakeBack),
            ("the host used up all the time", Failure { is_final: true, ..of(Host, 0, update) }, again(0)),
            ("a rollback is not rolled back", Failure { rolling_back: true, ..of(Version, 2, update) }, again(3)),
            (
                "a node that was in maintenance is not used until it works",
                Failure { type_: GrantType::Maintenance, ..of(Version, 2, update) },
                again(2),
            ),
            (
                "a maintenance that fails before a change is given up",
                Failure { type_: GrantType::Maintenance, ..of(Cluster, 0, untouched) },
                GiveUp,
            ),
            ("a restart has no version", Failure { type_: GrantType::Reboot, ..of(Version, 2, update) }, again(2)),
        ] {
            assert_eq!(after_failure(failure), expected, "{name}");
        }
    }
}
