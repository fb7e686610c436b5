//! Waits of hosts and pools: the cause, its end, and the words. Pure.
//!
//! Every wait that is reported is one [`Wait`], so that each has a cause with an end, and each end is something that wakes the object that waits.

use api::{Pause, Reason, act::Act, names::key};

/// Cause of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The pool is in mode Plan.
    Plan,
    /// Another operator works in the cluster, or it is not known that none does.
    OtherOperator,
    /// Admission policies that hold the rights of wicd are missing.
    Policies,
    /// A user holds the host.
    Hold,
    /// The pool is paused.
    Pause,
    /// The maximum number of hosts is being set up.
    TurnToJoin,
    /// The maximum number of hosts is being deconfigured.
    TurnToLeave,
    /// The Machine of a host that leaves exists.
    Machine,
    /// The maximum number of the pool's nodes is disrupted.
    Disruption,
    /// The change would lose settings of the legacy operator.
    LostSettings,
    /// No maintenance window is open.
    Window,
    /// The version is not approved.
    Approval,
    /// The nodes that have the version are observed first.
    Soak,
    /// Nodes that a user has cordoned use up what may be unavailable.
    Cordon,
    /// Nodes that do not work use up what may be unavailable.
    NotWorking,
    /// Another pool uses up a limit over all pools.
    OtherPool,
    /// Hosts that are no longer listed are not removed.
    Removal(Hold),
}

/// Cause for which hosts that are no longer listed are not removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The list of hosts is missing.
    Missing,
    /// The list names no host.
    Empty,
    /// An entry of the list has no known name.
    Nameless,
    /// The list removes more hosts than one change may.
    TooMany,
    /// Machines of the hosts exist.
    Machines,
    /// The lists of other pools are about to be read.
    Pending,
    /// The lists of other pools cannot be read.
    Unreadable,
}

/// Source of the event that ends a wait, and wakes the object that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The pool is changed: its spec, or an annotation.
    Pool,
    /// Instances or Nodes of the pool change, by an act of a user or by their work.
    Hosts,
    /// The Machine is deleted.
    Machine,
    /// The list of hosts changes.
    List,
    /// Another pool, or its list, changes.
    OtherPools,
    /// The other operator ends.
    OtherOperator,
    /// The policies are applied.
    Policies,
    /// A point in time is reached.
    Time,
}

impl Cause {
    /// All causes of waits.
    pub const ALL: [Self; 23] = [
        Self::Plan,
        Self::OtherOperator,
        Self::Policies,
        Self::Hold,
        Self::Pause,
        Self::TurnToJoin,
        Self::TurnToLeave,
        Self::Machine,
        Self::Disruption,
        Self::LostSettings,
        Self::Window,
        Self::Approval,
        Self::Soak,
        Self::Cordon,
        Self::NotWorking,
        Self::OtherPool,
        Self::Removal(Hold::Missing),
        Self::Removal(Hold::Empty),
        Self::Removal(Hold::Nameless),
        Self::Removal(Hold::TooMany),
        Self::Removal(Hold::Machines),
        Self::Removal(Hold::Pending),
        Self::Removal(Hold::Unreadable),
    ];

    /// Reason of the conditions that report the cause.
    pub fn reason(self) -> Reason {
        match self {
            Self::Hold => Reason::OnHold,
            Self::Pause => Reason::Paused,
            Self::LostSettings => Reason::SettingsWouldBeLost,
            Self::Window => Reason::WaitingForWindow,
            Self::Approval => Reason::WaitingForApproval,
            Self::Soak
            | Self::Removal(Hold::Pending)
            | Self::Plan
            | Self::OtherOperator
            | Self::Policies
            | Self::TurnToJoin
            | Self::TurnToLeave
            | Self::Machine
            | Self::Disruption => Reason::Waiting,
            Self::Cordon => Reason::BlockedByCordon,
            Self::NotWorking | Self::OtherPool => Reason::DisruptionsUsedUp,
            Self::Removal(Hold::Missing) => Reason::SourceNotFound,
            Self::Removal(Hold::Empty | Hold::Nameless | Hold::TooMany) => Reason::RemovalBlocked,
            Self::Removal(Hold::Machines) => Reason::MachinesRemain,
            Self::Removal(Hold::Unreadable) => Reason::OtherPoolsUnreadable,
        }
    }

    /// Event that ends the wait.
    pub fn ended_by(self) -> End {
        match self {
            Self::Plan | Self::Pause | Self::LostSettings | Self::Approval => End::Pool,
            Self::OtherOperator => End::OtherOperator,
            Self::Policies => End::Policies,
            Self::Hold | Self::TurnToJoin | Self::TurnToLeave | Self::Disruption | Self::Cordon | Self::NotWorking => {
                End::Hosts
            }
            Self::Machine | Self::Removal(Hold::Machines) => End::Machine,
            Self::Window | Self::Soak => End::Time,
            Self::OtherPool | Self::Removal(Hold::Pending | Hold::Unreadable) => End::OtherPools,
            Self::Removal(Hold::Missing | Hold::Empty | Hold::Nameless | Hold::TooMany) => End::List,
        }
    }

    /// Reports whether the wait ends by itself or by a decision that is still to be made, so that a pool counts as on its way. Otherwise users have
    /// decided that the nodes stay as they are.
    pub fn is_on_its_way(self) -> bool {
        !matches!(self, Self::Hold | Self::Pause | Self::Soak)
    }
}

/// A wait, as it is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Cause of the wait.
    pub cause: Cause,
    /// Object that waits, what it waits for and until when, and what ends the wait.
    pub message: String,
}

impl Wait {
    /// A wait for this cause.
    pub fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self { cause, message: message.into() }
    }
}

/// A host without a turn, and what may be in its way.
#[expect(clippy::struct_excessive_bools, reason = "each field is an independent observation")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Idle {
    /// True if the host leaves, false if it is to join.
    pub leaves: bool,
    /// True if the host is a node.
    pub is_node: bool,
    /// True if the host leaves with a Machine.
    pub has_machine: bool,
    /// True if the pool is in mode Plan.
    pub is_plan: bool,
    /// True if another operator works in the cluster, or it is not known that none does.
    pub has_other_operator: bool,
    /// Pause of the pool.
    pub pause: Option<Pause>,
    /// True if a user holds the host.
    pub held: bool,
    /// True if the admission policies that hold the rights of wicd are missing.
    pub lacks_policies: bool,
}

impl Idle {
    /// Returns the wait for the first cause that applies. `host` is the host's name.
    pub fn wait(self, host: &str) -> Wait {
        let (cause, message) = match self {
            Self { is_plan: true, .. } => {
                (Cause::Plan, "waits because its pool is in mode Plan: no operation begins".into())
            }
            Self { has_other_operator: true, .. } => (
                Cause::OtherOperator,
                "waits until no other operator works in the cluster; see the condition Ready of its pool".into(),
            ),
            Self { lacks_policies: true, .. } => (
                Cause::Policies,
                "waits until the admission policies for wicd are in force again; see the condition PoliciesInForce of its pool"
                    .into(),
            ),
            Self { held: true, .. } => {
                let end = Act::Release(host).command();
                (
                    Cause::Hold,
                    format!("waits because the annotation {}=true holds it. To end the hold, run {end}", key::HOLD),
                )
            }
            Self { pause: Some(pause), .. } => {
                (Cause::Pause, format!("waits because its pool is {pause} ({})", pause.field()))
            }
            Self { leaves: false, .. } => {
                (Cause::TurnToJoin, "waits for its turn to join (provisioning.maxConcurrent)".into())
            }
            Self { has_machine: true, .. } => (
                Cause::Machine,
                "waits until its Machine is deleted, or until its turn to be deconfigured (rollout.maxUnavailable)".into(),
            ),
            Self { is_node: true, .. } => {
                (Cause::Disruption, "waits until another node may be disrupted (rollout.maxUnavailable)".into())
            }
            _ => (Cause::TurnToLeave, "waits for its turn to be deconfigured (provisioning.maxConcurrent)".into()),
        };
        Wait::new(cause, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_is_named_with_its_end() {
        let (join, leave) = (Idle::default(), Idle { leaves: true, ..Idle::default() });
        let node = Idle { is_node: true, ..leave };
        let pause = Some(Pause::Indefinite);
        let until = Some(Pause::Until("2027-01-01T08:00:00Z".parse().unwrap()));
        let in_plan = Idle { pause, lacks_policies: true, has_other_operator: true, is_plan: true, ..join };
        for (idle, cause, expected) in [
            (join, Cause::TurnToJoin, "its turn to join (provisioning.maxConcurrent)"),
            (leave, Cause::TurnToLeave, "its turn to be deconfigured (provisioning.maxConcurrent)"),
            (node, Cause::Disruption, "another node may be disrupted (rollout.maxUnavailable)"),
            (Idle { has_machine: true, ..node }, Cause::Machine, "until its Machine is deleted"),
            (Idle { pause, ..node }, Cause::Pause, "its pool is paused (rollout.paused)"),
            (
                Idle { pause: until, ..join },
                Cause::Pause,
                "its pool is paused until 2027-01-01T08:00:00Z (rollout.pausedUntil)",
            ),
            (Idle { pause, held: true, ..join }, Cause::Hold, "kubectl windows-node-pools resume --host win-1"),
            (Idle { pause, lacks_policies: true, ..join }, Cause::Policies, "PoliciesInForce"),
            (Idle { is_plan: false, ..in_plan }, Cause::OtherOperator, "no other operator works"),
            (in_plan, Cause::Plan, "mode Plan"),
        ] {
            let wait = idle.wait("win-1");
            assert_eq!(wait.cause, cause, "{idle:?}");
            assert!(wait.message.contains(expected), "{idle:?}: {}", wait.message);
        }
    }

    #[test]
    fn each_cause_is_listed_once_and_has_an_end() {
        for (i, cause) in Cause::ALL.iter().enumerate() {
            assert_eq!(Cause::ALL.iter().position(|c| c == cause), Some(i), "{cause:?} is listed twice");
            let waits_for_time = cause.ended_by() == End::Time;
            assert_eq!(waits_for_time, matches!(cause, Cause::Window | Cause::Soak), "{cause:?}");
        }
    }
}
