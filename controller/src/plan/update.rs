//! The next step of changing a node: of giving it another version, restarting its host, or putting it right.
//!
//! What is done on the host is the same as when it joined, and chosen by [`super::join`]. Around it the pods are moved away if
//! that is needed, and the node is watched for a while before it takes pods again.

use api::{Disruption, GrantType};

/// A step, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
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
            Self::Cordon => "Cordon",
            Self::Drain => "Drain",
            Self::Host => "Connect",
            Self::Verify => "Verify",
            Self::Uncordon => "Uncordon",
        }
    }

    /// The step that a name in a status stands for.
    pub fn parse(name: &str) -> Self {
        let named = [Self::Cordon, Self::Drain, Self::Verify, Self::Uncordon].into_iter().find(|s| s.as_str() == name);
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
#[expect(clippy::struct_excessive_bools, reason = "each is a thing of its own that is seen or not")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Whether the pods are to be moved away.
    pub drains: bool,
    /// Whether the Node is cordoned, by this operation or by somebody before it.
    pub cordoned: bool,
    /// Whether the last pass of the drain found it empty. Counts for one choice only.
    pub drained: bool,
    /// The step that this operation had begun. It is stored before a step begins, so all earlier ones were seen done.
    pub begun: Option<Step>,
    /// Whether the host is as it shall be and its Node Ready.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases() {
        use Step::{Cordon, Drain, Host, Uncordon, Verify};
        let free = Seen::default();
        let full = Seen { drains: true, ..free };
        let held = Seen { cordoned: true, our_cordon: true, ..full };
        let past = |begun, seen: Seen| Seen { begun: Some(begun), ..seen };
        let works = |seen: Seen| Seen { works: true, ..seen };
        for (name, seen, expected) in [
            ("no pod is moved for a service", free, Next::Do(Host)),
            ("it works, for a moment", works(free), Next::Do(Verify)),
            ("it has worked long enough", Seen { proven: true, ..works(free) }, Next::Done),
            ("pods are moved first", full, Next::Do(Cordon)),
            ("the cordon is there", held, Next::Do(Drain)),
            ("somebody else's cordon is as good", Seen { cordoned: true, ..full }, Next::Do(Drain)),
            ("empty", Seen { drained: true, ..held }, Next::Do(Host)),
            ("somebody lifted the cordon", past(Drain, full), Next::Do(Cordon)),
            ("a crash in the middle of the drain", past(Drain, held), Next::Do(Drain)),
            ("a crash past the drain", past(Host, held), Next::Do(Host)),
            ("nothing is drained again at the end", past(Verify, works(held)), Next::Do(Verify)),
            ("it stopped working while it was watched", past(Verify, held), Next::Do(Host)),
            ("proven", past(Verify, Seen { proven: true, ..works(held) }), Next::Do(Uncordon)),
            (
                "the cordon was somebody else's",
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
        for step in [Step::Cordon, Step::Drain, Step::Host, Step::Verify, Step::Uncordon] {
            assert_eq!(Step::parse(step.as_str()), step);
        }
        assert_eq!(Step::parse("Register"), Step::Host);
    }
}
