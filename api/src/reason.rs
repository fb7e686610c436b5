//! Reasons of conditions, failures, refused entries and denied requests.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Makes the enum and its texts from one list, so that no reason is without a meaning. The meaning is the doc comment, in Markdown.
macro_rules! reasons {
    ($($(#[doc = $meaning:literal])+ $word:ident,)+) => {
        /// Reason of a condition, a failure, a refused entry of a list or a denied request: one stable word, for machines and alerts. The message
        /// beside it has the object and the remedy.
        ///
        /// `cargo xtask gen` writes docs/reference/conditions.md from the doc comments.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Reason {
            $($(#[doc = $meaning])+ $word,)+
        }

        impl Reason {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$word),+];

            /// The word, as conditions, events and metrics have it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$word => stringify!($word),)+
                }
            }

            /// The meaning, in Markdown.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$word => concat!($($meaning),+).trim_start(),)+
                }
            }
        }
    };
}

reasons! {
    /// Windows denied access to the object that the message names. That a program has a file open shows like this, too.
    AccessDenied,
    /// The host cannot use an account that the pool lists. The message has the cause for each.
    AccountNotUsable,
    /// Windows did not report whether the host can use an account.
    AccountUnknown,
    /// The host is in no domain, and its pool names a plugin: only a pod shows whether that retrieves the password of an account.
    AccountsNotChecked,
    /// All hosts have the images that they pull ahead.
    AllImagesPulled,
    /// All hosts accept the first key of their list.
    AllKeysCurrent,
    /// All nodes follow the desired version.
    AllNodesUpdated,
    /// The Windows Machine Config Operator runs, too. Operations in progress end; no other begins. Certificates of nodes are still renewed.
    AnotherOperator,
    /// kubelet stopped posting the status of the Node, and the host answered over SSH afterwards.
    AnswersWithoutKubelet,
    /// An antivirus other than Windows Defender checks files on the host.
    AntivirusFilter,
    /// The API server does not answer, or refuses. wicd keeps the services as they are.
    ApiCallFailed,
    /// The API server did not answer the question that the message names.
    ApiError,
    /// The API servers that answer have a new version of Kubernetes, and one that is listed does not answer. Nodes keep their version.
    ApiServerSilent,
    /// The API server is older than what is tested.
    ApiServerTooOld,
    /// The URL at which hosts reach the API server does not answer where the command runs. Hosts may reach it all the same.
    ApiServerUnreachable,
    /// The API server does not report a version that can be read.
    ApiServerVersionUnknown,
    /// What arrived is damaged.
    ArchiveInvalid,
    /// Flux has never fetched an artifact.
    ArtifactMissing,
    /// The artifact was not received completely.
    ArtifactNotRead,
    /// The server of the artifact does not answer as it must, or the operator does not follow the URL.
    ArtifactNotReadable,
    /// The artifact is too large.
    ArtifactTooLarge,
    /// No fault exists.
    AsExpected,
    /// The server rejects the credentials.
    AuthenticationFailed,
    /// The answer of `wicd.exe` cannot be read: another process changed the host's files.
    BadAnswer,
    /// The operator has a command that cannot be sent.
    BadCommand,
    /// The request cannot be read.
    BadEncoding,
    /// The operator has a path that cannot be written over SFTP.
    BadPath,
    /// The request is not signed by its own key.
    BadSignature,
    /// Nodes that a person has cordoned use up `rollout.maxUnavailable`. The message names them.
    BlockedByCordon,
    /// The operator cannot use its payload or a fact of the cluster, so that it changes no host: it may be upgraded.
    CannotWork,
    /// `known_hosts` has a certificate authority, which the operator does not support.
    CertAuthorityUnsupported,
    /// A client denied the request, or the signer failed.
    CertificateDenied,
    /// The certificate is not valid now.
    CertificateExpired,
    /// The server's certificate is not trusted, or the server rejects the operator's.
    CertificateInvalid,
    /// The certificate does not fit the key that waits on the host.
    CertificateMismatch,
    /// The request is approved, and no signer issued the certificate within a minute.
    CertificateNotIssued,
    /// The API server refused the request or did not answer.
    CertificateRequestFailed,
    /// A request of that name has other content.
    CertificateRequestNameTaken,
    /// A client deleted the request and created another under its name during the approval. The operator did not approve that one.
    CertificateRequestReplaced,
    /// A node of the pool asks for a certificate with an address or a name that nothing proves to be its own, so that the operator neither
    /// approves nor denies it.
    CertificateRequestsWait,
    /// The state of the host [differs](../guide/hosts.md#drift-on-a-host) from what the operator configured.
    ChangedOnHost,
    /// Some of the operator's files or services remain after a removal. The message lists them.
    CleanupIncomplete,
    /// The clock where the command runs and that of the API server differ. Certificates and the Lease depend on clocks.
    ClockDiffers,
    /// The clock of the host is more than 5 minutes off.
    ClockSkew,
    /// A [fact of the cluster](../guide/cluster-facts.md#a-fact-that-cannot-be-used) cannot be used as it is. What was in force before stays so.
    ClusterFactsInvalid,
    /// A part of a [fact of the cluster](../guide/cluster-facts.md#images) cannot be used on Windows, or has a wider effect there. The rest is
    /// used.
    ClusterFactsPartlyUsed,
    /// The API server, the service network or a certificate authority cannot be detected.
    ClusterUnknown,
    /// sshd does not start the command.
    CommandRefused,
    /// A command takes longer than `ssh.commandTimeoutSeconds` (600 if not set).
    CommandTimeout,
    /// The ConfigMap with the hosts does not exist: it was deleted, is being replaced, or went with its namespace.
    ConfigMapMissing,
    /// No program listens at the address and port.
    ConnectRefused,
    /// The host does not answer within `ssh.connectTimeoutSeconds` (15 if not set).
    ConnectTimeout,
    /// The host answered over SSH at the last attempt.
    Connected,
    /// containerd does not answer on the host.
    ContainerdUnavailable,
    /// The API servers have a new version of Kubernetes, and the upgrade of the control plane is not done. Nodes keep their version.
    ControlPlaneUpgrading,
    /// The Node changed while the operator cordoned it.
    CordonConflict,
    /// A CRD of this name has another kind or scope: it is of another product.
    CrdConflict,
    /// A CRD of the operator is not there.
    CrdMissing,
    /// The operator's CRD is of an earlier release: it does not serve a version of this one, or lacks a property of it, which the API server
    /// drops from what is written. The message names it.
    CrdOutdated,
    /// Objects of the operator's CRD are stored in a version that this release does not know.
    CrdVersionUnknown,
    /// A Secret, a key in it or its content is missing or cannot be used.
    CredentialsUnavailable,
    /// wicd's kubeconfig or certificate is missing, damaged or expired.
    CredentialsUnusable,
    /// A key or a request cannot be made.
    CryptoFailed,
    /// Windows Defender checks what containerd does, although the operator excluded it when it configured the host.
    DefenderChecksContainerd,
    /// The pool is being deleted, and its hosts leave.
    Deleting,
    /// The server sends other content than Flux stored.
    DigestMismatch,
    /// The digest of the artifact is not one that the operator can check.
    DigestNotSupported,
    /// `C:\k`, another directory of the operator, or one above them is a link or a file, or belongs to a user who is perhaps no administrator and
    /// can change its content; or a file in it is a hard link to a file of such a user. The operator does not use it.
    DirectoryRefused,
    /// The connection broke.
    Disconnected,
    /// `C:` has not enough room.
    DiskFull,
    /// No node gets its turn to be changed: nodes that do not work use up `rollout.maxUnavailable`, or other pools the limit over all pools
    /// (`--max-disruptions`). The message names them.
    DisruptionsUsedUp,
    /// A drain makes no progress.
    DrainBlocked,
    /// The drain exceeded `drain.timeoutSeconds`, and `onTimeout` is `Abort`. The operator lifted the cordon.
    DrainTimedOut,
    /// The Lease has a number that no operator reaches. The host does not remember it.
    EpochImplausible,
    /// The operator's rights or an admission policy refuse evictions.
    EvictionForbidden,
    /// The API server rejects an eviction.
    EvictionRejected,
    /// `wicd.exe` is missing or incomplete: another process changed the host's files.
    ExeMissing,
    /// There is no certificate for windows_exporter: hosts serve their metrics as plain HTTP.
    ExporterCertificateMissing,
    /// A version failed on too many nodes.
    FailureLimitReached,
    /// The source is fetched for the first time.
    Fetching,
    /// The pool names a [plugin of Container Credential Guard](../guide/gmsa.md#a-plugin-for-hosts-in-no-domain) whose class another installer
    /// registered on the host. Nothing of it was changed.
    ForeignCredentialPlugin,
    /// The request has a name or an address that is not proven to be the host's.
    ForeignName,
    /// The same, found while the host is configured.
    ForeignService,
    /// Another installer installed services with names of the operator's services.
    ForeignServices,
    /// The Git server does not answer as it must.
    GitOperationFailed,
    /// Another pool lists the host, and is in mode Plan.
    HandOverWaits,
    /// Operator and host have no common algorithm, or the port is not that of an SSH server.
    HandshakeFailed,
    /// A file that arrived is damaged.
    HashMismatch,
    /// The revision does not descend from the one in use, for example after a force push.
    HistoryRewritten,
    /// Another operation, or the service, holds the host for more than 30 s.
    HostBusy,
    /// A call of Windows failed.
    HostCallFailed,
    /// A call of Windows takes too long.
    HostCallTimeout,
    /// A name or an address is used twice, here or in another pool; or a host reports the name of a Node, an instance or a Machine that it is not
    /// proven to be.
    HostConflict,
    /// The host gave a reason that is no word.
    HostFailed,
    /// A declared or stored host key cannot be read.
    HostKeyInvalid,
    /// A host shows another [key](../guide/hosts.md#host-keys) than the known one, so the operator does not log in.
    HostKeyMismatch,
    /// `known_hosts` revokes the server's SSH host key.
    HostKeyRevoked,
    /// The policy is `Strict`, and no key of the host is declared, or the known hosts do not list it.
    HostKeyUnknown,
    /// The host is being removed and has no pods left.
    HostLeaves,
    /// The host was not proven before its request arrived.
    HostNotProven,
    /// The host is a node of another cluster.
    HostOfAnotherCluster,
    /// The host has a Node, and there is no record of its host key or of its machine id, so that nothing proves which host answers.
    HostUnproven,
    /// A host of a list [without names](../guide/inventory.md#hosts-without-names) does not report its name.
    HostnameUnknown,
    /// Hosts join, are updated or are removed. The message has the pools and the numbers of hosts.
    HostsChange,
    /// The API server does not return the operator's user name.
    IdentityUnknown,
    /// The host reports no error, and does not have the image.
    ImageNotKept,
    /// containerd cannot pull or pin an image. The message has its own words.
    ImagePullFailed,
    /// A pull takes longer than `ssh.commandTimeoutSeconds`, less a margin for the answer.
    ImagePullTimeout,
    /// Nodes are in maintenance, and nothing is to be done with the others. The message names them.
    InMaintenance,
    /// A WindowsInstance of the pool has a value that this operator does not know, most often after an older version was installed again. The
    /// operator begins no operation in the pool.
    InstanceUnreadable,
    /// The operator has an internal fault that this object triggers; all others continue.
    InternalError,
    /// The artifact is no archive that the operator accepts.
    InvalidArtifact,
    /// A selector in `drain` is invalid.
    InvalidDrainRule,
    /// A host has a name that a Node cannot have.
    InvalidHostname,
    /// A file of the list cannot be read; its message has file and line. The list that was used before stays in force.
    InvalidInventory,
    /// A [maintenance window](../guide/rollouts.md#maintenance-windows) of the pool cannot be used, so no node is changed.
    InvalidWindow,
    /// The list names no host any more. All stay.
    InventoryEmpty,
    /// A file or the list is too large.
    InventoryTooLarge,
    /// The jump host does not accept the key of `ssh.jumpHost.privateKeySecretRef`.
    JumpHostAuthenticationFailed,
    /// The jump host shows another key than `ssh.jumpHost.hostKey` declares. The operator does not log in to it.
    JumpHostKeyMismatch,
    /// The jump host does not forward connections to the address and port of the host.
    JumpHostRefused,
    /// The operator cannot connect to the [jump host](../guide/hosts.md#hosts-behind-a-jump-host) of the pool, or the connection to it broke.
    /// Nothing is known of the host.
    JumpHostUnreachable,
    /// The host accepts a key whose line is in no file that the operator knows.
    KeyLineNotFound,
    /// The key is weak or of a type that is not allowed.
    KeyNotAllowed,
    /// The key is in the file, and sshd refuses it.
    KeyNotTaken,
    /// The host belongs to a Machine whose user data is not of this operator, and may write the old key again at each start. The key stays as it
    /// is.
    KeyOfUserData,
    /// A host could not be changed to another key. The message names the cause.
    KeyRotationFailed,
    /// A line of `known_hosts` cannot be read.
    KnownHostsInvalid,
    /// The kubelet of the payload is newer than the API server, or more than three minor versions older.
    KubeletVersionSkew,
    /// The list has a pointer of Git LFS, which the operator does not fetch.
    LfsPointer,
    /// The request names no lifetime, or a longer one than allowed.
    LifetimeTooLong,
    /// A directory above those of the operator (`C:\var`, `C:\var\log`) is a link. During a removal this is only a warning, and the files behind
    /// it stay.
    LinkRefused,
    /// A [setting](settings.md) for the logs of services cannot be used.
    LogSettingsInvalid,
    /// The cluster has no API of the Machines that the pool names.
    MachineApiMissing,
    /// A Machine has no internal address in its status.
    MachineHasNoAddress,
    /// A Machine left the pool's MachineSet, but exists and is not being deleted.
    MachinesRemain,
    /// The list lacks more hosts than one change may remove (`maxRemovals`). All stay.
    MassRemovalBlocked,
    /// The files with the certificate for `/metrics` cannot be used. What was served before stays.
    MetricsCertificateInvalid,
    /// The commit has a file name that is not valid.
    NameInvalid,
    /// The host is to have a cloud controller manager on AWS, which finds no instance by the name of its Node.
    NameNotOfInstance,
    /// The name of the host has no address.
    NameNotResolved,
    /// An entry of the list has no known name and may be one of the hosts that the list lacks. No host is removed.
    NamesUnknown,
    /// The host reports no address that a Node can use.
    NoAddress,
    /// `wicd.exe` ended without an answer. The message has its exit status and its output.
    NoAnswer,
    /// No process of the operator holds the Lease, or the one that held it renews it no more. Nothing is done for hosts.
    NoLeader,
    /// No host joins, is updated or is removed: the operator may be upgraded.
    NoOperation,
    /// A request names no recipient.
    NoRecipient,
    /// wicd reports about every ten minutes, and did not for half an hour, although kubelet works. No drift is restored meanwhile.
    NoReport,
    /// The Node was deleted during a change of the host, and kubelet did not register it again within `--register-timeout`.
    NodeDeleted,
    /// The Node was deleted during the drain.
    NodeGone,
    /// A node of WMCO lacks the annotation with its version.
    NodeMetadataMissing,
    /// The Node of the instance is not Ready. The message is kubelet's.
    NodeNotReady,
    /// The Node of the instance is Ready.
    NodeReady,
    /// The API server refuses the labels, annotations or taints of the Node, or an admission policy does.
    NodeRefused,
    /// Operations on hosts failed, and the operator retries them. The message has the first one. `Stalled` once a host has failed three times or
    /// for ten minutes.
    NodesFailed,
    /// Nodes are not Ready and their hosts do not answer, and the rollout no longer waits for them.
    NodesLost,
    /// Nodes that had joined are not Ready now.
    NodesNotReady,
    /// The host offers no SFTP.
    NotASftpServer,
    /// The user has no administrator's rights in an SSH session.
    NotAdministrator,
    /// The host has no desired state: another process changed the host's files.
    NotApplied,
    /// The pool lists accounts, and the host is a member of no domain.
    NotDomainJoined,
    /// The pool is not paused.
    NotPaused,
    /// Something could not be read, so that it is not checked.
    NotReadable,
    /// The Node does not appear or does not become Ready, or the host does not follow its version, within `--register-timeout`, although the host
    /// answers. The message names which.
    NotRegistered,
    /// The host does not answer after a restart.
    NotRestarted,
    /// Another machine answers than the one that joined. The operator changed nothing on it.
    NotThisMachine,
    /// The machine that answers is another Node. The operator changed nothing on it.
    NotThisNode,
    /// kubelet stopped, or the Node is Ready again, and the host was not tried since.
    NotTried,
    /// The revision in force was accepted before the pool demanded signatures.
    NotVerified,
    /// The host has no `C:\Windows` over SFTP.
    NotWindows,
    /// The only nodes that do not follow the desired version are those that a person holds with the annotation `hold`. The message names them.
    OnHold,
    /// The operator works on the host.
    OperationInProgress,
    /// Docker or the node agent of another distribution is installed on the host.
    OtherContainerRuntime,
    /// Another pool may list the host now, and its list cannot be read.
    OtherPoolsUnreadable,
    /// The node follows another version than its pool wants.
    Outdated,
    /// The host has all that a node needs, and warnings, which the message has. They stop nothing.
    PassedWithWarnings,
    /// The path is outside of the repository, or is no path.
    PathInvalid,
    /// The commit has no file or folder at the path.
    PathNotFound,
    /// A file of the version has a path that the host does not accept.
    PathRefused,
    /// `rollout.paused` is true or `rollout.pausedUntil` is to come, so the operator begins no operation. The message names the end, if there is
    /// one.
    Paused,
    /// The payload in the operator's image is incomplete.
    PayloadInvalid,
    /// There is no payload, so that what nodes would lose is not known.
    PayloadMissing,
    /// The pool is in mode Plan, so the operator begins no operation.
    Planned,
    /// An admission policy that limits the operator or other clients is missing, or differs from the one of this release. Nothing stops. The
    /// metric `windows_node_pool_policy_in_force` names each.
    PoliciesMissing,
    /// An admission policy that holds the hosts' daemons is missing, or differs from the one of this release.
    PolicyMissing,
    /// The operator has not read the policies yet.
    PolicyUnknown,
    /// The pool of the instance does not exist. The operator does not change the host.
    PoolMissing,
    /// The pool has a value that this operator does not know, most often after an older version was installed again. The operator does nothing
    /// for it.
    PoolUnreadable,
    /// Pools are not Ready.
    PoolsNotReady,
    /// Another program listens on the port of kubelet.
    PortInUse,
    /// A host could not pull an image ahead. The message names the cause; changes of its node no longer wait for it.
    PrePullFailed,
    /// The host lacks something that a node needs.
    PreflightFailed,
    /// The host returns other bytes of `wicd.exe` than the operator sent. The operator did not start it.
    ProgramDamaged,
    /// An operation takes longer than `rollout.progressDeadlineSeconds`. The operator continues with it.
    ProgressDeadlineExceeded,
    /// An operation is in progress.
    Progressing,
    /// An operation is in progress again after a failure.
    ProgressingWithRetry,
    /// `wicd.exe` is of another release: another process changed the host's files.
    ProtocolMismatch,
    /// Hosts join.
    Provisioning,
    /// Hosts do not have all images that they pull ahead. The message names them.
    PullingImages,
    /// Another pool may list the host now, and the operator reads its list.
    ReadingOtherPools,
    /// The record of what the operator put on the host is missing, and so is its copy.
    RecordLost,
    /// The server redirects to another server or to a URL without https.
    RedirectRefused,
    /// The reference cannot be used.
    ReferenceInvalid,
    /// Nodes leave.
    Removing,
    /// Nodes that do not work are repaired.
    Repairing,
    /// The fetched data cannot be read any more.
    RepositoryDamaged,
    /// The server has no such repository, or the credentials must not read it.
    RepositoryNotFound,
    /// The repository is too large to be fetched, perhaps because of an older commit.
    RepositoryTooLarge,
    /// The request for wicd's next certificate was denied.
    RequestRefused,
    /// The request for wicd's next certificate has no answer.
    RequestUnanswered,
    /// The host must be restarted, and waits for its turn (`rollout.maxUnavailable`).
    RestartPending,
    /// The API server did not review the sender of a request for `/metrics` in time. The request got 503.
    ReviewSlow,
    /// The repository has no such branch, tag or commit.
    RevisionNotFound,
    /// You lack rights that the operator gets. The API server lets no user grant more than they have.
    RightsMissing,
    /// The operator cannot write the ClusterRoleBinding of the hosts' daemons, for example because its own role is of an older release.
    RightsNotStored,
    /// A change is rolled back.
    RollingBack,
    /// A change reaches the nodes.
    RollingOut,
    /// Hosts accept an old key. The message names them.
    RotatingKeys,
    /// The Secret with the credentials cannot be used.
    SecretInvalid,
    /// wicd's service ended or did not start.
    ServiceFailed,
    /// The services ConfigMap cannot be read.
    ServicesInvalid,
    /// The ConfigMap with the services of a node is missing or cannot be read, so that the node is withheld.
    ServicesUnreadable,
    /// The content of the services ConfigMap does not match its name, so wicd does not follow it.
    ServicesUnverified,
    /// A [setting](settings.md) of the operator cannot be used.
    SettingsInvalid,
    /// A change would lose settings that nodes have from WMCO. The condition `UpdateWithheld` of each instance names them.
    SettingsWouldBeLost,
    /// The log-in shell of the user, as that of the Windows Subsystem for Linux, starts no Windows program by its path.
    ShellNotSupported,
    /// A change waits between two steps.
    Soaking,
    /// The source does not exist, or the cluster has no such kind.
    SourceNotFound,
    /// The API server does not return the source.
    SourceNotReadable,
    /// Flux gets no new revision; the message quotes it.
    SourceNotReady,
    /// This operator does not know the pool's source of hosts.
    SourceNotSupported,
    /// A file in the operator's image cannot be read.
    SourceUnreadable,
    /// An operator with a newer epoch of this cluster has worked on the host.
    StaleEpoch,
    /// The operator stopped during the fetch.
    Stopped,
    /// The directory for repositories cannot be used.
    StorageFailed,
    /// The list has a submodule, which the operator does not fetch.
    Submodule,
    /// The observed state matches the spec.
    Succeeded,
    /// The source is not fetched, because its owner suspended it, and the operator has no list of before.
    Suspended,
    /// The list has a symbolic link, which the operator does not follow.
    SymbolicLink,
    /// A setting of the pool's template cannot be used.
    TemplateInvalid,
    /// The fetch exceeded `inventory.git.timeout`.
    Timeout,
    /// A file on the host is larger than the operator reads.
    TooLarge,
    /// A directory on the host has more entries than the operator reads.
    TooManyEntries,
    /// Too many nodes are not Ready, so the operator repairs none.
    TooManyUnhealthy,
    /// The names of more than 1000 hosts of the list are unknown, and the operator asks no more of them.
    TooManyUnknownHosts,
    /// A file cannot be written or read.
    TransferFailed,
    /// The certificates to trust cannot be read.
    TrustedCaInvalid,
    /// The URL cannot be used.
    URLInvalid,
    /// The request has an attribute that is not allowed.
    UnexpectedAttribute,
    /// The request has an extension that is not allowed.
    UnexpectedExtension,
    /// No pool has a host of that name.
    UnknownHost,
    /// The operator has no route to the host, or another network error occurs.
    Unreachable,
    /// The jump host cannot connect to the host.
    UnreachableFromJumpHost,
    /// The nodes follow the desired version.
    UpToDate,
    /// The version of the pool does not work on this host, which returned to the one before.
    UpdateFailed,
    /// The user in the annotation of a node was not encrypted with the private key that is there.
    UsernameUnreadable,
    /// A command needs a value of the Node that cannot be used.
    VariableInvalid,
    /// A command needs a value of the Node that is not there yet.
    VariableNotYetKnown,
    /// The revision is not signed, not by a trusted key, or a tag was signed under another name.
    VerificationError,
    /// The host is to follow a version whose files are in no payload of this operator: an earlier operator made it.
    VersionFilesMissing,
    /// The Node names a version that is no name of one.
    VersionInvalid,
    /// The ConfigMap of the services of a version is missing, or another client made it.
    VersionMissing,
    /// The highest tag in the range of `ref.semver` is lower than the one in use: its tag was deleted, or the server hides it.
    VersionRolledBack,
    /// The ConfigMap of a version cannot be read.
    VersionUnreadable,
    /// The content of the ConfigMap of a version does not match its name.
    VersionUnverified,
    /// The host waits for its turn.
    Waiting,
    /// A change waits for an approval.
    WaitingForApproval,
    /// Changes wait until a [maintenance window](../guide/rollouts.md#maintenance-windows) opens. The message names the next one.
    WaitingForWindow,
    /// The host runs another Windows than Windows Server 2019, 2022 or 2025.
    WindowsNotSupported,
    /// Windows waits for a restart that the operator has no reason for: an update, changed features, or another name or domain.
    WindowsRestartPending,
    /// Microsoft's extended support of the host's Windows ends in this year, or has ended.
    WindowsSupportEnds,
    /// The host's Windows is older than the [update](platforms.md#versions-of-windows) that nodes need: its pods may have no network while the
    /// Node is Ready.
    WindowsUpdateMissing,
    /// WMCO changes a node.
    WmcoBusy,
    /// A Subscription, a ClusterServiceVersion or the Deployment of WMCO is there, and starts it again.
    WmcoInstalled,
    /// No node of WMCO is there, so that there is nothing to take over.
    WmcoNodesMissing,
    /// The signer issued another certificate than requested.
    WrongCertificate,
    /// The request has names that its kind of certificate must not have, or lacks them.
    WrongNames,
    /// An object of the repository is of another kind than its reference says.
    WrongObject,
    /// The organisation is not exactly that of the kind of certificate.
    WrongOrganisation,
    /// The user must not request this certificate.
    WrongRequester,
    /// The signer does not issue certificates of Windows hosts.
    WrongSigner,
    /// The common name is not exactly that of the host.
    WrongSubject,
    /// The request has other usages than its kind of certificate.
    WrongUsages,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// Word that is no reason of this release.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no reason")]
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

/// Words in the status of objects are strings.
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
