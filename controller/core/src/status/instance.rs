//! Phase and conditions of an instance, from its situation. Pure.

use api::{
    Failures, GrantType, Phase, Reason, Step, Time, WindowsInstanceStatus,
    act::{Act, HOST},
    conditions::{Status, find, kind, remove, set},
    services_version::short,
};
use jiff::Timestamp;

use super::{failing::lasts, shown};

/// Situation of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Situation<'a> {
    /// Instance that waits for a grant.
    Waiting {
        /// True if the instance waits to be removed.
        leaving: bool,
        /// Message about the wait.
        why: &'a str,
    },
    /// Instance with an operation under way.
    Working {
        /// Type of the operation.
        type_: GrantType,
        /// Current step of the operation.
        step: Step,
        /// Sentence about the current work.
        what: &'a str,
    },
    /// Instance whose last attempt failed.
    Failed {
        /// True if the instance is being removed.
        leaving: bool,
    },
    /// Instance whose pool does not exist.
    WithoutPool {
        /// Message with the consequence and the remedy.
        message: &'a str,
    },
    /// Instance that is a node.
    Node {
        /// True if the Node is Ready.
        ready: bool,
        /// Message of kubelet about the Node.
        says: &'a str,
        /// True if the host has the desired version, this operator's wicd, and the address that its Node needs.
        up_to_date: bool,
    },
}

/// Updates phase and conditions for the situation. The status must already hold `failures`.
pub fn describe(
    status: &mut WindowsInstanceStatus,
    situation: &Situation<'_>,
    generation: Option<i64>,
    now: Timestamp,
) {
    status.observed_generation = generation;
    let failures = status.failures.clone();
    let failed_version = status.failed_version.clone();
    let conditions = &mut status.conditions;
    let mut put =
        |type_, s: Status, why: Reason, message: &str| set(conditions, type_, s, why, message, generation, now);
    let again = failures.is_some();
    let progressing = if again { Reason::ProgressingWithRetry } else { Reason::Progressing };
    let (phase, reconciling) = match situation {
        Situation::Waiting { leaving, why } => {
            put(kind::READY, Status::Unknown, Reason::Waiting, why);
            (if *leaving { Phase::Removing } else { Phase::Pending }, Some((Reason::Waiting, (*why).to_string())))
        }
        Situation::Working { type_, step, what } => {
            let message = match &failures {
                Some(f) => format!("{step}: {what} (failed {} before: {})", times(f.count), f.last_reason),
                None => format!("{step}: {what}"),
            };
            // Operations and steps that are not disruptive: the node continues to run as before.
            let quiet = matches!(type_, GrantType::Stage | GrantType::RotateKey | GrantType::PullImages)
                || *step == Step::Check;
            let phase = match type_ {
                _ if quiet => Phase::Ready,
                GrantType::Provision => Phase::Joining,
                GrantType::Stage | GrantType::RotateKey | GrantType::PullImages => Phase::Ready,
                GrantType::Update | GrantType::Reboot => Phase::Updating,
                GrantType::Repair => Phase::Repairing,
                GrantType::Maintenance => Phase::Maintenance,
                GrantType::Remove | GrantType::Orphan => Phase::Removing,
            };
            if !quiet {
                // A host that has failed is not Ready until an attempt succeeds: the condition keeps the time of the first failure.
                put(kind::READY, if again { Status::False } else { Status::Unknown }, progressing, &message);
            }
            if *type_ == GrantType::Update {
                put(kind::UP_TO_DATE, Status::False, Reason::Progressing, "");
            }
            (phase, Some((progressing, message)))
        }
        Situation::Failed { leaving } => {
            let f = failures.unwrap_or_default();
            let message = failed(&f);
            put(kind::READY, Status::False, f.reason(), &message);
            (if *leaving { Phase::Removing } else { Phase::Failed }, Some((Reason::ProgressingWithRetry, message)))
        }
        Situation::WithoutPool { message } => {
            put(kind::READY, Status::Unknown, Reason::PoolMissing, message);
            put(kind::STALLED, Status::True, Reason::PoolMissing, message);
            (status.phase.unwrap_or(Phase::Pending), None)
        }
        Situation::Node { ready, says, up_to_date } => {
            let failed_now = failures.as_ref().map(failed);
            put(
                kind::NODE_HEALTHY,
                (*ready).into(),
                if *ready { Reason::AsExpected } else { Reason::NodeNotReady },
                says,
            );
            let (why, message) = match (up_to_date, &failed_version) {
                (true, _) => (Reason::AsExpected, String::new()),
                (false, Some(version)) => (Reason::UpdateFailed, rolled_back(version)),
                (false, None) if again => (Reason::Outdated, failed_now.clone().unwrap_or_default()),
                (false, None) => (Reason::Outdated, "the host is not up to date with its pool yet; the condition Updating of the pool tells what it waits for".into()),
            };
            // Ready is read first, so it also reports that a working node could not be changed.
            let is_told = failed_version.is_some() && !up_to_date;
            let beside = failed_now.or_else(|| is_told.then(|| message.clone())).map(|m| format!("; {m}"));
            let says_all = format!("{says}{}", beside.unwrap_or_default());
            let reason = match &failures {
                _ if !ready => Reason::NodeNotReady,
                Some(failures) => failures.reason(),
                None if is_told => Reason::UpdateFailed,
                None if !up_to_date => Reason::Outdated,
                None => Reason::Succeeded,
            };
            put(kind::READY, (*ready).into(), reason, &says_all);
            put(kind::UP_TO_DATE, (*up_to_date).into(), why, &message);
            (if *ready { Phase::Ready } else { Phase::NotReady }, None)
        }
    };
    // The operator continues to retry, but clients must not wait any longer.
    let lasting = status.failures.as_ref().filter(|f| lasts(f, now)).map(Failures::reason);
    match (situation, reconciling, lasting) {
        (Situation::WithoutPool { .. }, ..) => remove(conditions, kind::RECONCILING),
        (Situation::Failed { .. } | Situation::Working { .. }, Some((_, message)), Some(why)) => {
            put(kind::STALLED, Status::True, why, &message);
            remove(conditions, kind::RECONCILING);
        }
        (_, Some((why, message)), _) => {
            put(kind::RECONCILING, Status::True, why, &message);
            remove(conditions, kind::STALLED);
        }
        (_, None, _) => {
            remove(conditions, kind::RECONCILING);
            remove(conditions, kind::STALLED);
        }
    }
    status.phase = Some(phase);
}

/// Reason of [`kind::REACHABLE`] after a successful attempt.
const CONNECTED: Reason = Reason::AsExpected;
/// Reason of [`kind::REACHABLE`] after a successful attempt while kubelet posts no status.
const WITHOUT_KUBELET: Reason = Reason::AnswersWithoutKubelet;
/// Reason of [`kind::REACHABLE`] before an attempt.
const NOT_TRIED: Reason = Reason::Waiting;

/// Updates the conditions for the host after a change of the Node's health: an answer from before kubelet stopped is outdated, and so is a
/// failure from before the Node was Ready again. Such a failure is removed if it is not part of an operation; otherwise the next attempt is made
/// at once.
pub fn follow_node(
    status: &mut WindowsInstanceStatus,
    (is_ready, is_ready_unknown): (bool, bool),
    says: &str,
    generation: Option<i64>,
    now: Timestamp,
) {
    let was_healthy = find(&status.conditions, kind::NODE_HEALTHY).map(|c| c.status == "True");
    let reachable = find(&status.conditions, kind::REACHABLE).map(|c| (c.status.clone(), c.reason.clone()));
    let mut put = |type_, s, why: Reason, message: &str| {
        set(&mut status.conditions, type_, s, why, message, generation, now);
    };
    if was_healthy.is_some_and(|was| was != is_ready) {
        put(
            kind::NODE_HEALTHY,
            is_ready.into(),
            if is_ready { Reason::AsExpected } else { Reason::NodeNotReady },
            says,
        );
    }
    let Some((reaches, why)) = reachable else { return };
    let is_back = is_ready && was_healthy == Some(false);
    match reaches.as_str() {
        "True" if is_ready_unknown && why == CONNECTED => {
            put(
                kind::REACHABLE,
                Status::Unknown,
                NOT_TRIED,
                "kubelet has stopped posting the status of the Node since the host last answered; the operator connects to the host to see whether it still answers",
            );
        }
        "True" if is_ready && why == WITHOUT_KUBELET => put(kind::REACHABLE, Status::True, CONNECTED, ""),
        "False" if is_back => {
            put(
                kind::REACHABLE,
                Status::Unknown,
                NOT_TRIED,
                "the Node is Ready again, and the operator has not connected to the host since then; it does so next",
            );
            let is_same = |f: &Failures| f.last_reason == why && status.operation.is_none();
            status.failures = status.failures.take().filter(|f| !is_same(f));
        }
        _ => {}
    }
    if is_back && let Some(failures) = &mut status.failures {
        failures.next_retry_time = None;
    }
}

/// Records that the operator could not try to contact the host, with the cause.
pub fn not_tried(status: &mut WindowsInstanceStatus, why: Reason, says: &str, generation: Option<i64>, now: Timestamp) {
    set(&mut status.conditions, kind::REACHABLE, Status::Unknown, why, says, generation, now);
}

/// Reports whether [`kind::REACHABLE`] is Unknown, so that a connection must be tried.
pub fn is_untried(status: &WindowsInstanceStatus) -> bool {
    find(&status.conditions, kind::REACHABLE).is_some_and(|c| c.status == "Unknown")
}

/// Records that the host answers although kubelet posts no status. `problem` is the failure of an operation on the host, which may be the cause.
pub fn answers_without_kubelet(
    status: &mut WindowsInstanceStatus,
    problem: Option<&str>,
    generation: Option<i64>,
    now: Timestamp,
) {
    let message = r"kubelet posts no status of the Node, but the host answers over SSH: check the service kubelet on the host, and its log in C:\var\log\kubelet";
    let message = problem.map_or_else(
        || message.to_owned(),
        |problem| format!("{message}. The operator cannot examine the host: {problem}"),
    );
    set(&mut status.conditions, kind::REACHABLE, Status::True, WITHOUT_KUBELET, &message, generation, now);
}

/// Returns details that kubelet's message lacks: that the host's entry is refused or, if kubelet posts no status, whether the host answers.
pub fn beside_kubelet(status: &WindowsInstanceStatus, is_ready_unknown: bool) -> Option<String> {
    if let Some(refused) = &status.address_failures {
        return Some(format!("the entry of the host in its list is refused: {}", refused.last_message));
    }
    let reachable = find(&status.conditions, kind::REACHABLE).filter(|_| is_ready_unknown)?;
    match reachable.status.as_str() {
        "False" => Some(format!("the operator cannot log in to the host either: {}", reachable.message)),
        "Unknown" if reachable.reason != NOT_TRIED => {
            Some(format!("the operator cannot try to log in to the host: {}", reachable.message))
        }
        "True" if reachable.reason == WITHOUT_KUBELET => Some(
            "the host answers over SSH: check its service kubelet, and the log in C:\\var\\log\\kubelet".to_owned(),
        ),
        _ => None,
    }
}

/// Records whether the host answered at the last attempt.
pub fn reached(
    status: &mut WindowsInstanceStatus,
    answer: Result<(), (Reason, &str)>,
    generation: Option<i64>,
    now: Timestamp,
) {
    let (s, why, message) = match answer {
        Ok(()) => (Status::True, CONNECTED, ""),
        Err((why, message)) => (Status::False, why, message),
    };
    set(&mut status.conditions, kind::REACHABLE, s, why, message, generation, now);
}

/// Returns the message for a version that was rolled back.
fn rolled_back(version: &str) -> String {
    format!(
        "version {} did not work on this host and was rolled back; see the events of the WindowsInstance. To try it again, run {}",
        short(version),
        Act::Retry(HOST).command()
    )
}

fn times(count: i32) -> String {
    if count == 1 { "once".into() } else { format!("{count} times") }
}

/// Returns a failure as text, with the time of the next attempt.
fn failed(f: &Failures) -> String {
    let next = f.next_retry_time.and_then(Time::known).map_or_else(|| "now".into(), shown);
    format!("{} (failed {}; next try {next})", f.summary(), times(f.count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::conditions::{find, is_true};

    const TODAY: &str = "2027-01-01T09:50:00Z";

    fn described(situation: &Situation<'_>, failures: Option<Failures>) -> WindowsInstanceStatus {
        let mut status = WindowsInstanceStatus { failures, ..WindowsInstanceStatus::default() };
        describe(&mut status, situation, Some(3), TODAY.parse().unwrap());
        status
    }

    fn twice() -> Failures {
        Failures {
            count: 2,
            first_time: None,
            next_retry_time: Some("2027-01-01T09:50:12Z".parse().unwrap()),
            last_reason: "Unreachable".into(),
            last_message: "10.0.0.1:22 did not answer within 15 s".into(),
            step: Step::Connect,
            host_digest: None,
        }
    }

    #[test]
    fn each_situation_has_its_phase_and_conditions() {
        let node = |ready, says| Situation::Node { ready, says, up_to_date: true };
        for (situation, failures, expected) in [
            (
                Situation::Waiting { leaving: false, why: "waits for its turn" },
                None,
                "Pending Unknown: waits for its turn",
            ),
            (
                Situation::Working { type_: GrantType::Provision, step: Step::Upload, what: "sending 4 files" },
                None,
                "Joining Unknown: Upload: sending 4 files",
            ),
            (
                Situation::Working { type_: GrantType::Remove, step: Step::Drain, what: "2 pods left" },
                Some(twice()),
                "Removing False: Drain: 2 pods left (failed 2 times before: Unreachable)",
            ),
            (
                Situation::Failed { leaving: false },
                Some(twice()),
                "Failed False: Connect: 10.0.0.1:22 did not answer within 15 s (failed 2 times; next try 2027-01-01T09:50:12Z)",
            ),
            (
                Situation::WithoutPool { message: "the pool p does not exist" },
                None,
                "Pending Unknown: the pool p does not exist",
            ),
            (node(true, "kubelet is posting ready status"), None, "Ready True: kubelet is posting ready status"),
            (
                node(false, "Kubelet stopped posting node status."),
                None,
                "NotReady False: Kubelet stopped posting node status.",
            ),
        ] {
            let status = described(&situation, failures);
            let c = find(&status.conditions, kind::READY).unwrap();
            assert_eq!(format!("{:?} {}: {}", status.phase.unwrap(), c.status, c.message), expected);
            let rests = matches!(situation, Situation::Node { .. } | Situation::WithoutPool { .. });
            assert_eq!(is_true(&status.conditions, kind::RECONCILING), !rests);
            let stalls = matches!(situation, Situation::WithoutPool { .. });
            assert_eq!(is_true(&status.conditions, kind::STALLED), stalls);
            assert_eq!(status.observed_generation, Some(3));
        }
    }

    #[test]
    fn a_ready_node_says_that_it_waits_for_a_change_or_could_not_be_changed() {
        for (failures, failed_version, up_to_date, expected) in [
            (None, None, true, "Succeeded"),
            (None, None, false, "Outdated"),
            (Some(twice()), None, false, "Unreachable"),
            (None, Some("v2"), false, "UpdateFailed"),
            (None, Some("v2"), true, "Succeeded"),
        ] {
            let failed_version = failed_version.map(str::to_owned);
            let mut status = WindowsInstanceStatus { failures, failed_version, ..WindowsInstanceStatus::default() };
            let node = Situation::Node { ready: true, says: "kubelet is posting ready status", up_to_date };
            describe(&mut status, &node, Some(3), TODAY.parse().unwrap());
            let ready = find(&status.conditions, kind::READY).unwrap();
            assert_eq!((&*ready.status, &*ready.reason), ("True", expected), "{}", ready.message);
        }
    }

    #[test]
    fn a_host_that_fails_for_long_is_failed_also_while_it_is_tried_again() {
        let working = Situation::Working { type_: GrantType::Provision, step: Step::Connect, what: "logging in" };
        for (count, stalls) in [(2, false), (3, true)] {
            for situation in [&Situation::Failed { leaving: false }, &working] {
                let status = described(situation, Some(Failures { count, ..twice() }));
                let is = |type_| is_true(&status.conditions, type_);
                assert_eq!((is(kind::STALLED), is(kind::RECONCILING)), (stalls, !stalls), "{count}: {situation:?}");
            }
        }
        let node = Situation::Node { ready: true, says: "kubelet is posting ready status", up_to_date: true };
        let status = described(&node, Some(Failures { count: 3, ..twice() }));
        assert!(!is_true(&status.conditions, kind::STALLED), "a node that works has not failed: {status:?}");
    }

    #[test]
    fn a_second_update_changes_nothing() {
        let mut status = described(&Situation::Failed { leaving: false }, Some(twice()));
        let before = status.clone();
        describe(&mut status, &Situation::Failed { leaving: false }, Some(3), "2027-01-01T23:59:59Z".parse().unwrap());
        assert_eq!(status, before);
    }

    #[test]
    fn a_node_whose_host_could_not_be_checked_stays_ready_and_says_why() {
        let node = Situation::Node { ready: true, says: "kubelet is posting ready status", up_to_date: false };
        let mut status = described(&node, None);
        let before = find(&status.conditions, kind::READY).cloned();
        let check = Situation::Working { type_: GrantType::Update, step: Step::Check, what: "logging in" };
        status.failures = Some(twice());
        describe(&mut status, &check, Some(3), TODAY.parse().unwrap());
        assert_eq!((find(&status.conditions, kind::READY), status.phase), (before.as_ref(), Some(Phase::Ready)));
        describe(&mut status, &node, Some(3), TODAY.parse().unwrap());
        let says = find(&status.conditions, kind::UP_TO_DATE).unwrap().message.clone();
        assert_eq!(
            says,
            "Connect: 10.0.0.1:22 did not answer within 15 s (failed 2 times; next try 2027-01-01T09:50:12Z)"
        );
    }
}
