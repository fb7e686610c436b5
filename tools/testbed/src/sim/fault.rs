//! Faults of a simulated host.

use std::time::Duration;

use super::shell::Shell;

/// A fault of a host. Several can be active at once; all can be set and removed while the host runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The SSH port refuses connections; those that were open are cut.
    Refuse,
    /// The SSH port accepts new connections and never says a word.
    Hang,
    /// Programs are started and never end. They continue when the fault is removed.
    HangInCommand,
    /// A connection is cut when it has received this many bytes.
    CutAfterBytes {
        /// Bytes of the TCP connection.
        bytes: u64,
        /// True if the fault is gone after it has cut one connection.
        once: bool,
    },
    /// Nothing can be written over SFTP, and the host says that it has no space left.
    DiskFull,
    /// No key and no user is accepted.
    WrongKey,
    /// The host shows another host key. Without the fault, it shows the old one.
    ChangedHostKey,
    /// A restart takes this much longer. Without the fault, it ends at once.
    SlowReboot(Duration),
    /// Containers ignore the request to end, whatever the grace period of their Pod, until the fault is removed.
    PodsLinger,
    /// kubelet runs and never makes a Node.
    NeverRegisters,
    /// The SFTP server has none of OpenSSH's extensions.
    PlainSftp,
    /// The SFTP server is that of OpenSSH 7.7, which Windows Server 2019 has: it does not tell the length of its requests.
    OldSftp,
    /// The host is a Linux host: it has no `/C:`.
    NotWindows,
    /// The clock is ahead by this much.
    ClockAhead(Duration),
    /// The clock is behind by this much.
    ClockBehind(Duration),
    /// The clock is behind by this much since the last restart, if there was one.
    ClockBehindAfterRestart(Duration),
    /// The Windows feature Containers is not there until the next restart.
    NeedsReboot,
    /// The log-in shell is this one.
    Shell(Shell),
    /// The host greets whoever logs in, and the log-in shell prints noise of another language around what programs print.
    GarbledOutput,
    /// Programs end with this status and do nothing.
    ProgramsFail(u32),
}
