//! User actions that messages propose: the command of the kubectl plugin, and the annotation or field with the same effect for users without the
//! plugin.

use std::fmt;

use crate::{
    names::{PLUGIN, key},
    services_version::short,
};

/// Placeholder in a command for a host name that the message does not have.
pub const HOST: &str = "HOST";
/// Text between a failure and [`Act::Abandon`], its last resort.
pub const IF_GONE: &str = ". If this host is gone for good, abandon it: ";
/// Placeholder for a fingerprint that a user reads on the console of a host.
pub const FINGERPRINT: &str = "FINGERPRINT";

/// User action, displayed as `run COMMAND (or CHANGE)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act<'a> {
    /// Retry the operation on a host at once.
    Retry(&'a str),
    /// Hold a host: begin no operation on it.
    Hold(&'a str),
    /// End the hold of a host.
    Release(&'a str),
    /// Abandon a host without a connection to it.
    Abandon(&'a str),
    /// Trust the key that a host showed.
    TrustHostKey(&'a str, &'a str),
    /// Confirm the removal of a number of hosts from a pool.
    ApproveRemovals(&'a str, usize),
    /// Approve a version for the rollout of a pool.
    ApproveVersion(&'a str, &'a str),
}

impl Act<'_> {
    /// Arguments of the plugin's command.
    fn arguments(self) -> String {
        match self {
            Self::Retry(host) => format!("retry {host}"),
            Self::Hold(host) => format!("pause --host {host}"),
            Self::Release(host) => format!("resume --host {host}"),
            Self::Abandon(host) => format!("abandon {host}"),
            Self::TrustHostKey(host, fingerprint) => format!("trust-host-key {host} {fingerprint}"),
            Self::ApproveRemovals(pool, number) => format!("approve {pool} --removals {number}"),
            Self::ApproveVersion(pool, version) => format!("approve {pool} --version {}", short(version)),
        }
    }

    /// Command as a user enters it.
    pub fn command(self) -> String {
        format!("{PLUGIN} {}", self.arguments())
    }

    /// Instruction for a user without the plugin.
    fn change(self) -> String {
        match self {
            Self::Retry(_) => format!("annotate the WindowsInstance with a new value of {}", key::RETRY),
            Self::Hold(_) => format!("annotate the WindowsInstance with {}=true", key::HOLD),
            Self::Release(_) => format!("remove the annotation {} from the WindowsInstance and the Node", key::HOLD),
            Self::Abandon(_) => format!("annotate the WindowsInstance with {}=true", key::ABANDON),
            Self::TrustHostKey(_, fingerprint) => {
                format!("annotate the WindowsInstance with {}={fingerprint}", key::TRUST_HOST_KEY)
            }
            Self::ApproveRemovals(_, number) => format!("annotate the pool with {}={number}", key::APPROVE_REMOVAL),
            Self::ApproveVersion(_, version) => format!("set rollout.approvedVersion to {version}"),
        }
    }
}

impl fmt::Display for Act<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run {} (or {})", self.command(), self.change())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_act_has_its_command_and_its_change() {
        for (act, command, change) in [
            (Act::Retry("win-1"), "retry win-1", "a new value of windowsmachineconfig.openshift.io/retry"),
            (
                Act::Hold("win-1"),
                "pause --host win-1",
                "the WindowsInstance with windowsmachineconfig.openshift.io/hold=true",
            ),
            (
                Act::Release(HOST),
                "resume --host HOST",
                "the annotation windowsmachineconfig.openshift.io/hold from the WindowsInstance and the Node",
            ),
            (Act::Abandon("win-1"), "abandon win-1", "windowsmachineconfig.openshift.io/abandon=true"),
            (
                Act::TrustHostKey("win-1", "SHA256:a"),
                "trust-host-key win-1 SHA256:a",
                "windowsmachineconfig.openshift.io/trust-host-key=SHA256:a",
            ),
            (
                Act::ApproveRemovals("hall-a", 3),
                "approve hall-a --removals 3",
                "the pool with windowsmachineconfig.openshift.io/approve-removal=3",
            ),
            (
                Act::ApproveVersion("hall-a", "1.0.0-a"),
                "approve hall-a --version 1.0.0-a",
                "rollout.approvedVersion to 1.0.0-a",
            ),
        ] {
            let said = act.to_string();
            let rest = said.strip_prefix(&format!("run kubectl windows-node-pools {command} (or "));
            assert!(rest.is_some_and(|rest| rest.ends_with(&format!("{change})"))), "{said}");
        }
    }
}
