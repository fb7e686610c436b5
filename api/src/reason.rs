//! Reasons of conditions, failures, refused entries and denied requests.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Defines the enum and its texts from one list, so that no reason lacks a description. The description is the doc comment, in Markdown.
macro_rules! reasons {
    ($($(#[doc = $meaning:literal])+ $word:ident,)+) => {
        /// Reason of a condition, a failure, a refused entry of a list or a denied request: a stable name for tools and alerts. The message has the
        /// object and the remedy.
        ///
        /// `cargo xtask gen` writes docs/reference/conditions.md from the doc comments.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Reason {
            $($(#[doc = $meaning])+ $word,)+
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &'static [Self] = &[$(Self::$word),+];

            /// Returns the name in conditions, events and metrics.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$word => stringify!($word),)+
                }
            }

            /// Returns the description in Markdown.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$word => concat!($($meaning),+).trim_start(),)+
                }
            }
        }
    };
}

reasons! {
    /// Windows denied access to an object on the host. Windows reports the same for a file that another program has open.
    AccessDenied,
    /// The host cannot use a [group Managed Service Account](../guide/workloads.md#a-host-that-cannot-use-an-account) that its pool lists, or is in
    /// no domain.
    AccountNotUsable,
    /// Usability of a [group Managed Service Account](../guide/workloads.md#a-host-that-cannot-use-an-account) on the host is unknown, although its
    /// pool lists the account.
    AccountUnknown,
    /// The Windows Machine Config Operator runs or is installed: a change that has begun on a host is completed, and no other operation begins until
    /// that operator is [removed](../guide/from-wmco.md).
    AnotherOperator,
    /// The host answers over SSH, and kubelet has stopped posting the status of the Node.
    AnswersWithoutKubelet,
    /// A request to the API server failed, or was refused by rights, a quota, a policy or a webhook.
    ApiError,
    /// The API servers have a new version, and a listed API server does not answer: nodes
    /// [keep their version](../guide/cluster-facts.md#the-version-of-the-api-servers).
    ApiServerSilent,
    /// The API server is older than what is tested, or reports no version that can be read. This stops no operation.
    ApiServerTooOld,
    /// The host, or the machine where `check` runs, cannot reach the API server.
    ApiServerUnreachable,
    /// The artifact of a [Flux](../guide/inventory.md#with-flux) source could not be received, checked or unpacked. The previous list stays in
    /// force.
    ArtifactNotReadable,
    /// The state is as desired. No action is needed.
    AsExpected,
    /// The host accepts none of the pool's [keys](../guide/hosts.md#ssh-server), or the Git server rejects the credentials.
    AuthenticationFailed,
    /// Nodes that a user has cordoned use up `rollout.maxUnavailable`: uncordon or hold them.
    BlockedByCordon,
    /// The operator cannot use its payload or a fact of the cluster. It changes no host, so that it can be upgraded at any time
    /// ([OLM](../guide/install.md#with-the-operator-lifecycle-manager)).
    CannotWork,
    /// A certificate, its key or a certificate authority cannot be used: for a host, a Git server, the API server's URL, `/metrics` or
    /// windows_exporter.
    CertificateInvalid,
    /// A host's certificate was not issued: its request waits, or was denied, replaced or ignored by the signer; or the issued certificate differs
    /// from the requested one.
    CertificateNotIssued,
    /// A node requests a certificate with an address or a name that nothing proves to be its own: [check the request, and approve
    /// it](../guide/troubleshooting.md#certificate-requests-that-wait).
    CertificateRequestsWait,
    /// Some steps of the cleanup failed, so that files, services or settings of the operator remain on the host.
    CleanupIncomplete,
    /// The clock of the host, of the operator or of the machine where `check` runs differs too much from the clock of the API server.
    ClockSkew,
    /// A [fact of the cluster](../guide/cluster-facts.md#a-fact-that-cannot-be-used), or a part of it, cannot be used on Windows. The previous
    /// value stays in force.
    ClusterFactsInvalid,
    /// The API server, the service network or a certificate authority of the cluster cannot be detected.
    ClusterUnknown,
    /// An object changed or was deleted while the operator worked on it. The operator retries.
    Conflict,
    /// The upgrade of the control plane is not done: nodes [keep their version](../guide/cluster-facts.md#the-version-of-the-api-servers).
    ControlPlaneUpgrading,
    /// A CRD of the operator is missing, of an earlier or a newer release, or of another product.
    CrdInvalid,
    /// A Secret, a key in it or its content is missing or cannot be used; on a host, the credentials of wicd.
    CredentialsUnavailable,
    /// A directory of the operator on the host, or one above it, is a link or belongs to a user who is not an administrator.
    DirectoryRefused,
    /// Free space on `C:` of the host is too small.
    DiskFull,
    /// No node gets its turn to be changed: nodes that do not work use up `rollout.maxUnavailable`, or other pools use up a shared limit
    /// (`--max-disruptions`, or one node at a time over all pools with nodes of WMCO that are not updated yet).
    DisruptionsUsedUp,
    /// A [drain](../guide/rollouts.md#a-drain-that-is-blocked) makes no progress, or exceeded `drain.timeoutSeconds` and was aborted.
    DrainBlocked,
    /// The state of the host [differs](../guide/hosts.md#drift-on-a-host) from what the operator configured.
    Drifted,
    /// The API server refuses an eviction: by rights, an admission policy or the request itself.
    EvictionForbidden,
    /// A [version](../guide/rollouts.md#a-version-that-fails) failed on too many nodes.
    FailureLimitReached,
    /// The source of hosts is fetched for the first time.
    Fetching,
    /// Another installer put services, or the [plugin for gMSA](../guide/workloads.md#a-plugin-for-hosts-in-no-domain), on the host under names that
    /// the operator uses.
    ForeignServices,
    /// The fetch from the [Git server](../guide/inventory.md#what-is-used-and-what-is-not) failed. The previous list stays in force.
    GitOperationFailed,
    /// Another pool lists the host now, but is in mode Plan. The host stays in its pool until the other pool is in mode Apply.
    HandOverWaits,
    /// Files that the host received are damaged. The operator sends them again.
    HashMismatch,
    /// The revision of the Git list does not follow the one in use: a force push, or a tag that is gone.
    HistoryRewritten,
    /// Another operation, or wicd's service, holds the lock of the host.
    HostBusy,
    /// A call of Windows, a command or wicd's service failed on the host or took too long.
    HostCallFailed,
    /// A name or an address is used twice, or belongs to a Node, an instance or a Machine that the host is not proven to be.
    HostConflict,
    /// The host reported a reason that this operator does not know.
    HostFailed,
    /// The operator's files on the host are missing, incomplete or not as they were sent: another process changed them.
    HostFilesChanged,
    /// A host key that is declared or stored, or a line of known hosts, cannot be used.
    HostKeyInvalid,
    /// The host shows another [key](../guide/troubleshooting.md#trust-a-host-key-that-has-changed) than the known one: it was reinstalled, or
    /// another machine intercepts the connection.
    HostKeyMismatch,
    /// The host or the Git server shows a [key](../guide/hosts.md#host-keys) that is not trusted: none is declared, or the known hosts do not
    /// list it or revoke it.
    HostKeyUnknown,
    /// The host is a [node of another cluster](../guide/hosts.md#hosts-of-a-cluster-that-no-longer-exists).
    HostOfAnotherCluster,
    /// The host has a Node, and no record of a host key or a machine id proves [which host answers](../guide/hosts.md#identity-of-a-host).
    HostUnproven,
    /// The check of the host has a [warning](../guide/hosts.md#warnings), which stops no operation.
    HostWarning,
    /// A host of a list [without names](../guide/inventory.md#hosts-without-names) does not report its name, or too many such hosts do not.
    HostnameUnknown,
    /// Nodes are in [maintenance](../guide/maintenance.md#hand-the-node-back), and no operation is due on the others.
    InMaintenance,
    /// The operator has an internal fault: report it with the operator's log.
    InternalError,
    /// A file or an entry of the host list cannot be used. The previous list or entry stays in use.
    InvalidInventory,
    /// A [maintenance window](../guide/rollouts.md#maintenance-windows) of the pool cannot be used, so no node is changed.
    InvalidWindow,
    /// The [jump host](../guide/hosts.md#hosts-behind-a-jump-host) shows another key than the pool declares. The operator does not log in to it.
    JumpHostKeyMismatch,
    /// The operator cannot use the [jump host](../guide/hosts.md#hosts-behind-a-jump-host) of the pool, so the state of the host is unknown.
    JumpHostUnreachable,
    /// A host could not be changed to another [SSH key](../guide/maintenance.md#rotate-the-ssh-key).
    KeyRotationFailed,
    /// The kubelet of the [payload](../guide/upgrade.md#the-payload) does not fit the version of the API server.
    KubeletVersionSkew,
    /// A Machine left the pool's MachineSet, but exists and is not being deleted.
    /// [Its host stays](../guide/removal.md#remove-several-hosts-or-all).
    MachinesRemain,
    /// The host, or its Machine, has no address that a Node can use.
    NoAddress,
    /// `wicd.exe` ended without an answer: see [App Control, AppLocker and antivirus](../guide/hosts.md#app-control-applocker-and-antivirus).
    NoAnswer,
    /// No process of the operator holds the Lease and renews it, so no operation is performed on hosts.
    NoLeader,
    /// A Node that had joined is not Ready. The message is kubelet's.
    NodeNotReady,
    /// The API server refuses the labels, annotations or taints of the Node, or an admission policy does.
    NodeRefused,
    /// Hosts of the pool failed to join, to be changed or to be removed. The operator retries, except for a version that failed on a host.
    NodesFailed,
    /// Nodes are not Ready and their hosts do not answer, and the rollout no longer waits for them ([repair](../guide/rollouts.md#repair)).
    NodesLost,
    /// The user does not have administrator rights in an SSH session.
    NotAdministrator,
    /// The Node does not appear, does not become Ready or does not follow its version within `--register-timeout`, although the host answers.
    NotRegistered,
    /// The machine or Node that [answers](../guide/hosts.md#identity-of-a-host) is not the one that joined. The operator did not change it.
    NotThisMachine,
    /// A pool or an instance has a value that this operator does not know, most often after an older version was installed again.
    ObjectUnreadable,
    /// The only nodes that do not follow the desired version are those that a user holds.
    OnHold,
    /// Another pool may list the host now, and its list cannot be read. [The host stays](../guide/removal.md#remove-several-hosts-or-all).
    OtherPoolsUnreadable,
    /// The node follows another version than its pool wants, or lacks this operator's wicd or the right address.
    Outdated,
    /// The host meets all requirements of a node, but has [warnings](../guide/hosts.md#warnings), which stop no operation.
    PassedWithWarnings,
    /// The pool is paused: the operator begins no operation except the release of hosts.
    Paused,
    /// The [payload](../guide/upgrade.md#the-payload) of the operator is missing or incomplete, or a path in it is refused.
    PayloadInvalid,
    /// The pool is in mode Plan, so the operator begins no operation.
    Planned,
    /// An admission policy that limits the operator or other clients is missing or changed. This stops no operation
    /// ([policies](../guide/troubleshooting.md#policiesinforce-is-false)).
    PoliciesMissing,
    /// An admission policy that restricts the hosts' daemons is missing, changed or not read yet, or their role cannot be bound: the daemons have no
    /// rights ([policies](../guide/troubleshooting.md#policiesinforce-is-false)).
    PolicyMissing,
    /// The pool of the instance does not exist. The operator does not change the host.
    PoolMissing,
    /// Pools are not Ready.
    PoolsNotReady,
    /// Another program, or a reservation of Windows, holds the port of kubelet.
    PortInUse,
    /// A host could not [pull an image ahead](../guide/rollouts.md#pull-images-ahead). Changes of its node no longer wait for it.
    PrePullFailed,
    /// An operation takes longer than `rollout.progressDeadlineSeconds`. The operator continues with it.
    ProgressDeadlineExceeded,
    /// An operation is in progress. No action is needed.
    Progressing,
    /// An operation is in progress again after a failure.
    ProgressingWithRetry,
    /// The record of what the operator put on the host is missing, and so is its copy.
    RecordLost,
    /// The list lacks hosts that stay until the list is corrected or their removal is
    /// [confirmed](../guide/removal.md#remove-several-hosts-or-all).
    RemovalBlocked,
    /// The certificate request differs from the one that its host must make: if you did not make it, check the host that it names.
    RequestDenied,
    /// You lack rights that the installation needs: install as cluster-admin.
    RightsMissing,
    /// A change is [rolled back](../guide/rollouts.md#a-version-that-fails).
    RollingBack,
    /// A [setting](settings.md) of the operator cannot be used.
    SettingsInvalid,
    /// A change would lose settings that nodes have from WMCO:
    /// [add them to the pool, or accept the loss](../guide/from-wmco.md#what-a-node-has-and-what-it-would-lose).
    SettingsWouldBeLost,
    /// The URL, reference or path of the source of hosts cannot be used, does not exist, or may not be read with the credentials.
    SourceInvalid,
    /// The source of hosts does not exist, or is of a kind that the cluster or this operator does not know.
    SourceNotFound,
    /// Flux has no artifact, or gets no new revision of the source.
    SourceNotReady,
    /// A field of the pool cannot be used.
    SpecInvalid,
    /// The configuration of the host's [SSH server](../guide/hosts.md#ssh-server) does not allow the use of wicd: no common algorithm, no SFTP, a
    /// forced command or a shell that does not start programs.
    SshServerUnfit,
    /// The host [refuses the epoch](../guide/troubleshooting.md#hosts-refuse-every-operator) of the operator: a newer one has worked on it, or
    /// the Lease has a number that no operator reaches.
    StaleEpoch,
    /// The observed state matches the spec. No action is needed.
    Succeeded,
    /// Too many nodes are not Ready, so the operator repairs none: find the common cause.
    TooManyUnhealthy,
    /// A file on the host cannot be written or read, or is too large.
    TransferFailed,
    /// No pool has the host of a certificate request, or the host is being removed.
    UnknownHost,
    /// The operator cannot connect to the host, or the connection broke.
    Unreachable,
    /// The [version](../guide/rollouts.md#a-version-that-fails) of the pool does not work on this host, which returned to the previous one.
    UpdateFailed,
    /// The revision of the list is not signed by a trusted key.
    VerificationError,
    /// The host must follow a version of an earlier operator, whose files are in no [payload](../guide/upgrade.md#the-payload) of this one.
    VersionFilesMissing,
    /// The ConfigMap of a version is missing, damaged or not the operator's own.
    VersionUnreadable,
    /// The object waits for its turn, for another object or for a time. No action is needed.
    Waiting,
    /// A change waits for an [approval](../guide/rollouts.md#steps-and-approval).
    WaitingForApproval,
    /// Changes wait until a [maintenance window](../guide/rollouts.md#maintenance-windows) opens.
    WaitingForWindow,
    /// wicd, the daemon of the host, has reported nothing for half an hour, although kubelet works. Drift may not be restored meanwhile.
    WicdSilent,
    /// The host does not run a supported version of Windows ([Windows Server 2019, 2022 or 2025](limits.md#versions-of-windows)), or it runs
    /// Windows Server 2019 and the hybrid overlay has another VXLAN port than 4789.
    WindowsNotSupported,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// Error for a name that is not a reason of this release.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a reason")]
pub struct UnknownReason(String);

impl FromStr for Reason {
    type Err = UnknownReason;

    fn from_str(word: &str) -> Result<Self, UnknownReason> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == word).ok_or_else(|| UnknownReason(word.to_owned()))
    }
}

impl AsRef<str> for Reason {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

/// Comparison with reasons in the status of objects, which are strings.
impl PartialEq<str> for Reason {
    fn eq(&self, word: &str) -> bool {
        self.as_str() == word
    }
}

impl PartialEq<&str> for Reason {
    fn eq(&self, word: &&str) -> bool {
        self.as_str() == *word
    }
}

impl PartialEq<Reason> for String {
    fn eq(&self, reason: &Reason) -> bool {
        self == reason.as_str()
    }
}

impl PartialEq<Reason> for &str {
    fn eq(&self, reason: &Reason) -> bool {
        *self == reason.as_str()
    }
}

impl From<Reason> for String {
    fn from(reason: Reason) -> Self {
        reason.as_str().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_one_word_and_a_meaning() {
        for reason in Reason::ALL {
            let meaning = reason.meaning();
            assert!(meaning.ends_with('.') && meaning.contains(' ') && !meaning.contains('|'), "{reason}: {meaning}");
            assert_eq!(reason.as_str().parse(), Ok(*reason));
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        }
        assert!("no word\u{1b}".parse::<Reason>().is_err());
    }
}
