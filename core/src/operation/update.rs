//! The next step of changing a node: of giving it another version, restarting its host, or putting it right.
//!
//! What is done on the host is the same as when it joined, and chosen by [`super::join`]. Around it the pods are moved away if
//! that is needed, and the node is watched for a while before it takes pods again.

use api::{Disruption, GrantType};

/// A step, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Log in, check that the host can be changed, and send missing files. The node continues unchanged.
    Check,
    /// Take no new pods.
    Cordon,
    /// Move the pods away.
    Drain,
    /// Everything on the host, and until the Node is Ready again.
    Host,
    /// See that it stays so.
    Verify,
    /// Take pods again.
    Uncordon,
}

impl Step {
    /// As the status shows it; what is done on the host has names of its own there.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Check => "Check",
            Self::Cordon => "Cordon",
            Self::Drain => "Drain",
            Self::Host => "Connect",
            Self::Verify => "Verify",
            Self::Uncordon => "Uncordon",
        }
    }

    /// The step that a name in a status stands for.
    pub fn parse(name: &str) -> Self {
        let named = [Self::Check, Self::Cordon, Self::Drain, Self::Verify, Self::Uncordon]
            .into_iter()
            .find(|s| s.as_str() == name);
        named.unwrap_or(Self::Host)
    }
}

/// Whether the pods are moved away first. A node that does not work has none that could be moved.
pub fn drains(type_: GrantType, disruption: Disruption) -> bool {
    match type_ {
        GrantType::Update => disruption >= Disruption::Drain,
        GrantType::Reboot => true,
        _ => false,
    }
}

/// What is seen.
#[expect(clippy::struct_excessive_bools, reason = "each field is an independent observation")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Whether the pods are to be moved away.
    pub drains: bool,
    /// Whether the host was found fit to be changed in this operation, with everything on it that the change needs.
    pub checked: bool,
    /// Whether the Node is cordoned, by this operation or by another client before it.
    pub cordoned: bool,
    /// Whether the last pass of the drain found it empty. Counts for one choice only.
    pub drained: bool,
    /// The step that this operation had begun. It is stored before a step begins, so all earlier ones were seen done.
    pub begun: Option<Step>,
    /// Whether the host is in its desired state and its Node Ready.
    pub works: bool,
    /// Whether that has been so for long enough.
    pub proven: bool,
    /// Whether a cordon of this operation is on the Node.
    pub our_cordon: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// This step.
    Do(Step),
    /// Nothing: it is done.
    Done,
}

/// Chooses the next step.
pub fn next(seen: Seen) -> Next {
    // Past the drain services on the host may be stopped: no pod can be moved any more, none must be waited for.
    if seen.drains && seen.begun < Some(Step::Host) {
        // The cordon is stored only after the check, so an operator that finds it begun need not check again.
        if !seen.checked && seen.begun < Some(Step::Cordon) {
            return Next::Do(Step::Check);
        }
        if !seen.cordoned {
            return Next::Do(Step::Cordon);
        }
        if !seen.drained {
            return Next::Do(Step::Drain);
        }
    }
    if !seen.works {
        return Next::Do(Step::Host);
    }
    if !seen.proven {
        return Next::Do(Step::Verify);
    }
    if seen.our_cordon { Next::Do(Step::Uncordon) } else { Next::Done }
}

/// The part at fault. Only an error of the version counts against it, and may stop or roll back a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The host: it cannot be reached or logged in to, or is not fit to be changed. It is tried again after a while.
    Host,
    /// What the host was given.
    Version,
    /// The cluster, the operator, or what a person has set in either.
    Cluster,
}

/// What is known of a failure in the middle of changing a node.
#[expect(clippy::struct_excessive_bools, reason = "each field is an independent flag")]
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// The kind of the operation.
    pub type_: GrantType,
    /// Whether something on the host may have been changed.
    pub past_return: bool,
    /// Whether the host is on its way back to the version before.
    pub rolling_back: bool,
    /// The part at fault.
    pub blame: Blame,
    /// Whether only the API server did not do what was asked, which is tried again where it was.
    pub is_of_the_api: bool,
    /// Whether one such failure is enough, because it took all the time that there is.
    pub is_final: bool,
    /// Failures of the version before this one.
    pub attempts: i32,
}

/// What follows from a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFailure {
    /// The operation is retried from its present step, after a delay. Holds the number of failures of the version.
    Retry {
        /// With this one.
        attempts: i32,
    },
    /// The operation ends, and with it our cordon: nothing on the host was changed.
    GiveUp,
    /// The version does not work on this host: it gets the one before.
    TakeBack,
}

/// Attempts on a host before its version is rolled back.
const ATTEMPTS: i32 = 3;

/// Decides what follows from a failure of changing a node.
pub fn after_failure(failure: Failure) -> AfterFailure {
    let Failure { type_, past_return, rolling_back, blame, is_of_the_api, is_final, attempts } = failure;
    // A repair has cordoned nothing, and no other host waits for its place.
    if !past_return && type_ != GrantType::Repair {
        return if is_of_the_api { AfterFailure::Retry { attempts } } else { AfterFailure::GiveUp };
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

    #[test]
    fn cases() {
        use Step::{Check, Cordon, Drain, Host, Uncordon, Verify};
        let free = Seen::default();
        let full = Seen { drains: true, ..free };
        let held = Seen { cordoned: true, our_cordon: true, ..full };
        let past = |begun, seen: Seen| Seen { begun: Some(begun), ..seen };
        let works = |seen: Seen| Seen { works: true, ..seen };
        let checked = |seen: Seen| Seen { checked: true, ..seen };
        for (name, seen, expected) in [
            ("no pod is moved for a service", free, Next::Do(Host)),
            ("it works, for a moment", works(free), Next::Do(Verify)),
            ("it has worked long enough", Seen { proven: true, ..works(free) }, Next::Done),
            ("the host is checked before its pods are moved", full, Next::Do(Check)),
            ("a crash in the middle of the check", past(Check, full), Next::Do(Check)),
            ("a node that a person has cordoned is checked as well", Seen { cordoned: true, ..full }, Next::Do(Check)),
            ("pods are moved first", checked(full), Next::Do(Cordon)),
            ("a crash before the cordon was taken", past(Cordon, full), Next::Do(Cordon)),
            ("the cordon is there", checked(held), Next::Do(Drain)),
            ("another client's cordon is sufficient", Seen { cordoned: true, ..checked(full) }, Next::Do(Drain)),
            ("empty", Seen { drained: true, ..checked(held) }, Next::Do(Host)),
            ("another client lifted the cordon", past(Drain, full), Next::Do(Cordon)),
            ("a crash in the middle of the drain", past(Drain, held), Next::Do(Drain)),
            ("a crash past the drain", past(Host, held), Next::Do(Host)),
            ("nothing is drained again at the end", past(Verify, works(held)), Next::Do(Verify)),
            ("it stopped working while it was watched", past(Verify, held), Next::Do(Host)),
            ("proven", past(Verify, Seen { proven: true, ..works(held) }), Next::Do(Uncordon)),
            (
                "the cordon was another client's",
                past(Verify, Seen { proven: true, our_cordon: false, ..works(held) }),
                Next::Done,
            ),
        ] {
            assert_eq!(next(seen), expected, "{name}");
        }
    }

    #[test]
    fn who_is_drained() {
        for (type_, disruption, expected) in [
            (GrantType::Update, Disruption::None, false),
            (GrantType::Update, Disruption::Restart, false),
            (GrantType::Update, Disruption::Drain, true),
            (GrantType::Update, Disruption::Reboot, true),
            (GrantType::Reboot, Disruption::None, true),
            (GrantType::Repair, Disruption::Reboot, false),
            (GrantType::Stage, Disruption::Drain, false),
        ] {
            assert_eq!(drains(type_, disruption), expected, "{type_:?} {disruption:?}");
        }
    }

    #[test]
    fn names_come_back() {
        for step in [Step::Check, Step::Cordon, Step::Drain, Step::Host, Step::Verify, Step::Uncordon] {
            assert_eq!(Step::parse(step.as_str()), step);
        }
        assert_eq!(Step::parse("Register"), Step::Host);
    }

    fn any_seen() -> impl Strategy<Value = Seen> {
        let step = proptest::sample::select(vec![
            None,
            Some(Step::Check),
            Some(Step::Cordon),
            Some(Step::Drain),
            Some(Step::Host),
            Some(Step::Verify),
            Some(Step::Uncordon),
        ]);
        (step, any::<[bool; 6]>()).prop_map(|(begun, [checked, cordoned, drained, works, proven, our_cordon])| Seen {
            drains: true,
            checked,
            cordoned,
            drained,
            begun,
            works,
            proven,
            our_cordon,
        })
    }

    proptest! {
        #[test]
        fn no_node_is_cordoned_before_its_host_was_checked(seen in any_seen()) {
            let disturbs = matches!(next(seen), Next::Do(Step::Cordon | Step::Drain | Step::Host));
            prop_assert!(!disturbs || seen.checked || seen.begun >= Some(Step::Cordon), "{:?}", seen);
        }

        #[test]
        fn only_a_version_that_was_put_on_the_host_is_taken_back(
            type_ in proptest::sample::select(vec![GrantType::Update, GrantType::Reboot, GrantType::Repair]),
            blame in proptest::sample::select(vec![Blame::Host, Blame::Version, Blame::Cluster]),
            [past_return, rolling_back, is_of_the_api, is_final] in any::<[bool; 4]>(),
            attempts in 0..5i32,
        ) {
            let failure = Failure { type_, past_return, rolling_back, blame, is_of_the_api, is_final, attempts };
            match after_failure(failure) {
                AfterFailure::TakeBack => {
                    prop_assert!(past_return && blame == Blame::Version && !rolling_back && type_ == GrantType::Update);
                }
                AfterFailure::GiveUp => prop_assert!(!past_return),
                AfterFailure::Retry { attempts: now } => prop_assert!(blame == Blame::Version || now == attempts),
            }
        }
    }

    #[test]
    fn what_follows_from_a_failure() {
        use AfterFailure::{GiveUp, Retry, TakeBack};
        use Blame::{Cluster, Host, Version};
        let update = Failure {
            type_: GrantType::Update,
            past_return: true,
            rolling_back: false,
            blame: Host,
            is_of_the_api: false,
            is_final: false,
            attempts: 0,
        };
        let untouched = Failure { past_return: false, ..update };
        let of = |blame, attempts, failure: Failure| Failure { blame, attempts, ..failure };
        let again = |attempts| Retry { attempts };
        for (name, failure, expected) in [
            ("a host that does not answer is not drained", untouched, GiveUp),
            ("nor one of which the version is not there", of(Cluster, 0, untouched), GiveUp),
            ("nor is a version blamed that is not on the host", of(Version, 2, untouched), GiveUp),
            (
                "a drain waits for the API server",
                Failure { is_of_the_api: true, ..of(Cluster, 0, untouched) },
                again(0),
            ),
            ("a restart is given up as well", Failure { type_: GrantType::Reboot, ..untouched }, GiveUp),
            ("a repair goes on", Failure { type_: GrantType::Repair, ..untouched }, again(0)),
            ("a host that went away in the middle is waited for", of(Host, 2, update), again(2)),
            ("so is the cluster", of(Cluster, 2, update), again(2)),
            ("the version failed once", of(Version, 0, update), again(1)),
            ("and once too often", of(Version, 2, update), TakeBack),
            ("all its time was not enough", Failure { is_final: true, ..of(Version, 0, update) }, TakeBack),
            ("a host that took all the time", Failure { is_final: true, ..of(Host, 0, update) }, again(0)),
            (
                "there is no way back from the way back",
                Failure { rolling_back: true, ..of(Version, 2, update) },
                again(3),
            ),
            ("a restart has no version", Failure { type_: GrantType::Reboot, ..of(Version, 2, update) }, again(2)),
        ] {
            assert_eq!(after_failure(failure), expected, "{name}");
        }
    }
}
