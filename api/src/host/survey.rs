//! Survey of other software on a host: pending restarts, antivirus programs, and accounts of the domain. Untrusted until
//! checked.

use serde::{Deserialize, Serialize};

/// Reason why Windows itself waits for a restart.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub enum RestartCause {
    /// Features or packages of Windows were changed.
    Servicing,
    /// Windows Update has installed an update.
    WindowsUpdate,
    /// The computer got another name or joined a domain.
    NameOrDomain,
}

/// Antivirus programs of a host.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Antivirus {
    /// Windows Defender.
    #[serde(default)]
    pub defender: Defender,
    /// Names of the file system filters of other products.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<String>,
}

/// Effect of Windows Defender on containerd.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub enum Defender {
    /// Windows Defender does not run, or its real-time protection is off.
    #[default]
    Off,
    /// Real-time protection excludes containerd.
    Excludes,
    /// Real-time protection checks the files of containerd.
    Checks,
}

/// Usability of a group Managed Service Account (gMSA) on a host.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub enum AccountState {
    /// The host can retrieve the account's password.
    Usable,
    /// The domain has no account of this name.
    NotFound,
    /// The account is of another kind.
    NotManaged,
    /// The host may not retrieve the account's password.
    NotAllowed,
    /// Windows did not report the state of the account.
    #[default]
    Unknown,
}
