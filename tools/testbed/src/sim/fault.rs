//! Faults of a simulated host.

use std::time::Duration;

use super::shell::Shell;

/// Fault of a host. Several can be active at once; all can be set and removed while the host runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The SSH port refuses connections, and open ones are cut.
    Refuse,
    /// The SSH port accepts new connections and never sends anything.
    Hang,
    /// Programs are started and never end. They continue when the fault is removed.
    HangInCommand,
    /// A connection is cut when it has received this many bytes.
    CutAfterBytes {
        /// Bytes of the TCP connection.
        bytes: u64,
        /// True if the fault disappears after it has cut one connection.
        once: bool,
    },
    /// Nothing can be written over SFTP, and the host reports that it has no space left.
    DiskFull,
    /// No key and no user is accepted.
    WrongKey,
    /// The host presents another host key. Without the fault, it presents the old one.
    ChangedHostKey,
    /// Containers ignore the request to end, whatever the grace period of their Pod, until the fault is removed or the host is switched off.
    PodsLinger,
    /// kubelet runs and never creates a Node.
    NeverRegisters,
    /// The SFTP server has none of OpenSSH's extensions.
    PlainSftp,
    /// The SFTP server is that of OpenSSH 7.7, which Windows Server 2019 has: it does not report the maximum length of its requests, and a file that
    /// is open for writing cannot be opened again.
    OldSftp,
    /// The host behaves as a Linux host: it has no `/C:`, and no program is found.
    NotWindows,
    /// The clock is ahead by this much.
    ClockAhead(Duration),
    /// The clock is behind by this much.
    ClockBehind(Duration),
    /// The clock is behind by this much since the last restart, if there was one.
    ClockBehindAfterRestart(Duration),
    /// The Windows feature Containers is not available until the next restart.
    NeedsReboot,
    /// The log-in shell is this one.
    Shell(Shell),
    /// The host shows a banner at log-in, and the log-in shell prints text of another language around the output of programs.
    GarbledOutput,
    /// Programs exit with this status and do nothing.
    ProgramsFail(u32),
}
