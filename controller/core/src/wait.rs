//! Waits of hosts and pools: the cause, and the message about what ends the wait. Pure.

use api::{Pause, Reason, act::Act, names::key};

/// Cause of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The pool is in mode Plan.
    Plan,
    /// Another operator is active in the cluster, or may be.
    OtherOperator,
    /// Admission policies that restrict the rights of wicd are missing.
    Policies,
    /// A user has put the host on hold.
    Hold,
    /// The pool is paused.
    Pause,
    /// The host waits for its turn to join.
    TurnToJoin,
    /// The host waits for its turn to be deconfigured.
    TurnToLeave,
    /// The Machine of a host that must be removed still exists.
    Machine,
    /// The node waits until it may be disrupted.
    Disruption,
    /// The change would lose settings of the legacy operator, or may do so.
    LostSettings,
    /// No maintenance window is open.
    Window,
    /// The version is not approved.
    Approval,
    /// Nodes that already have the version are observed first.
    Soak,
    /// Nodes that a user has cordoned use up the budget for unavailable nodes.
    Cordon,
    /// Nodes that do not work use up the budget for unavailable nodes.
    NotWorking,
    /// Another pool uses up a limit that pools share.
    OtherPool,
    /// The removal of hosts that are no longer listed is blocked.
    Removal(Hold),
}

/// Cause that blocks the removal of hosts that are no longer listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The list of hosts is missing.
    Missing,
    /// The list names no host.
    Empty,
    /// The name of a listed host is unknown.
    Nameless,
    /// The change of the list removes more hosts than allowed at once.
    TooMany,
    /// Machines of the hosts still exist.
    Machines,
    /// The host lists of other pools have not been read yet.
    Pending,
    /// The host lists of other pools cannot be read.
    Unreadable,
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

    /// Returns the reason for conditions that report the cause.
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

    /// Reports whether a pool counts as progressing because of the wait. A hold and a pause do not count: a user has decided that the nodes stay as
    /// they are for now. A soak does not count either, because the nodes then count as about to change.
    pub fn counts_as_progress(self) -> bool {
        !matches!(self, Self::Hold | Self::Pause | Self::Soak)
    }
}

/// Wait of a host or a pool, as reported to users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Cause of the wait.
    pub cause: Cause,
    /// Message for users about what is awaited, until when, and what ends the wait.
    pub message: String,
}

impl Wait {
    /// Creates a wait for the cause.
    pub fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self { cause, message: message.into() }
    }
}

/// Host on which no operation may begin yet, with the observations that explain it.
#[expect(clippy::struct_excessive_bools, reason = "each field is an independent observation")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Idle {
    /// True if the host waits to be removed, false if it waits to join.
    pub leaves: bool,
    /// True if the host is a node.
    pub is_node: bool,
    /// True if the host to be removed has a Machine.
    pub has_machine: bool,
    /// True if the pool is in mode Plan.
    pub is_plan: bool,
    /// True if another operator is active in the cluster, or may be.
    pub has_other_operator: bool,
    /// Pause of the pool.
    pub pause: Option<Pause>,
    /// True if a user has put the host on hold.
    pub held: bool,
    /// True if the admission policies that restrict the rights of wicd are missing.
    pub lacks_policies: bool,
}

impl Idle {
    /// Returns the wait for the first cause that applies. `host` is the host's name.
    pub fn wait(self, host: &str) -> Wait {
        let (cause, message) = match self {
            Self { is_plan: true, .. } => {
                (Cause::Plan, "waits because its pool is in mode Plan: no operation begins until spec.mode of the pool is Apply".into())
            }
            Self { has_other_operator: true, .. } => (
                Cause::OtherOperator,
                "waits until no other operator is active in the cluster; see the condition Ready of its pool".into(),
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
                (Cause::Disruption, "waits until one more node may be disrupted (rollout.maxUnavailable)".into())
            }
            _ => (Cause::TurnToLeave, "waits for its turn to be deconfigured (provisioning.maxConcurrent)".into()),
        };
        Wait::new(cause, message)
    }

    /// Returns the message about a node whose host must be restarted. `host` is the host's name.
    pub fn restart(self, host: &str) -> String {
        let wait = Self { leaves: true, is_node: true, has_machine: false, ..self }.wait(host);
        match wait.cause {
            Cause::Disruption => {
                "the host must be restarted; it waits until rollout.maxUnavailable and the maintenance windows of its pool allow it"
                    .into()
            }
            _ => format!("the host must be restarted; it {}", wait.message),
        }
    }

    /// Returns the message about a host whose Node was deleted. `host` is the host's name.
    pub fn deleted_node(self, host: &str) -> String {
        let wait = Self { leaves: false, is_node: false, ..self }.wait(host);
        match wait.cause {
            Cause::TurnToJoin => "the Node was deleted; the operator registers the host again".into(),
            _ => format!("the Node was deleted; the host {}", wait.message),
        }
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
            (node, Cause::Disruption, "one more node may be disrupted (rollout.maxUnavailable)"),
            (Idle { has_machine: true, ..node }, Cause::Machine, "until its Machine is deleted"),
            (Idle { pause, ..node }, Cause::Pause, "its pool is paused (rollout.paused)"),
            (
                Idle { pause: until, ..join },
                Cause::Pause,
                "its pool is paused until 2027-01-01T08:00:00Z (rollout.pausedUntil)",
            ),
            (Idle { pause, held: true, ..join }, Cause::Hold, "kubectl windows-node-pools resume --host win-1"),
            (Idle { pause, lacks_policies: true, ..join }, Cause::Policies, "PoliciesInForce"),
            (Idle { is_plan: false, ..in_plan }, Cause::OtherOperator, "no other operator is active"),
            (in_plan, Cause::Plan, "mode Plan"),
        ] {
            let wait = idle.wait("win-1");
            assert_eq!(wait.cause, cause, "{idle:?}");
            assert!(wait.message.contains(expected), "{idle:?}: {}", wait.message);
        }
    }

    #[test]
    fn restarts_and_deleted_nodes_name_what_holds_them_up() {
        let (free, plan) = (Idle { is_node: true, ..Idle::default() }, Idle { is_plan: true, ..Idle::default() });
        let (other, held) = (Idle { has_other_operator: true, ..free }, Idle { held: true, ..free });
        let paused = Idle { pause: Some(Pause::Indefinite), ..free };
        for (idle, restart, deleted) in [
            (free, "it waits until rollout.maxUnavailable and", "deleted; the operator registers the host again"),
            (plan, "restarted; it waits because its pool is in mode Plan", "deleted; the host waits because its pool"),
            (other, "it waits until no other operator", "the host waits until no other operator"),
            (held, "it waits because the annotation", "the host waits because the annotation"),
            (paused, "it waits because its pool is paused", "the host waits because its pool is paused"),
        ] {
            let said = [idle.restart("win-1"), idle.deleted_node("win-1")];
            assert!(said[0].contains(restart) && said[1].contains(deleted), "{said:?}");
        }
    }

    #[test]
    fn no_cause_is_listed_twice() {
        for (i, cause) in Cause::ALL.iter().enumerate() {
            assert_eq!(Cause::ALL.iter().position(|c| c == cause), Some(i), "{cause:?} is listed twice");
        }
    }
}
