//! Reasons of failures on a host.

use super::{Section, row};

const RETRIED: &str = "No action is needed: the operator retries.";
const REPORT: &str = "Report the fault with the operator's log.";
/// Where the failures of an instance stand.
const PLACE: &str = "See [a host](#a-host).";

/// The place that the others refer to.
pub(super) const ANY: Section = Section {
    title: "A host",
    place: "A reason of a failure on a host appears in the condition `Ready=False` of its instance and, if the host does not answer, in \
            `Reachable=False`; in `status.failures.lastReason`; in the metric `windows_node_pool_failures_total`; and at the beginning of the note \
            of the [event](events.md), for example `JoinFailed`. The following sections list them.",
    reasons: &[],
};

pub(super) const CONNECTING: Section = Section {
    title: "A host: connection",
    place: PLACE,
    reasons: &[
        row("ConnectRefused", "No program listens at the address and port.", "Start sshd, or correct the port."),
        row(
            "ConnectTimeout",
            "The host does not answer within `ssh.connectTimeoutSeconds` (15 if not set).",
            "Check that the host is up, and that no firewall is in between.",
        ),
        row(
            "Unreachable",
            "The operator has no route to the host, or another network error occurs.",
            "Check the address and the network.",
        ),
        row(
            "NameNotResolved",
            "The name of the host has no address.",
            "Check the name and the cluster's DNS, or write an IP address.",
        ),
        row(
            "HandshakeFailed",
            "Operator and host have no common algorithm, or the port is not that of an SSH server.",
            "Update the host's OpenSSH, or correct the port.",
        ),
        row(
            "HostKeyMismatch",
            "The host shows another key than the known one: it was reinstalled, or another machine intercepts the connection.",
            "Verify the key on the host's console, and [trust it](../guide/troubleshooting.md#trust-a-host-key-that-has-changed).",
        ),
        row(
            "HostKeyUnknown",
            "The policy is `Strict`, and no key of the host is declared, or the known hosts do not list it.",
            "Verify the key, and [declare it](../guide/hosts.md#host-keys).",
        ),
        row(
            "HostKeyInvalid",
            "A host key that is stored or declared cannot be read.",
            "Correct or remove the annotation or the entry that the message names.",
        ),
        row(
            "HostKeyRevoked",
            "The known hosts revoke the key that the host shows.",
            "Give the host another key, or correct the known hosts.",
        ),
        row(
            "AuthenticationFailed",
            "The host accepts none of the public keys that the message names.",
            "Add one to the [authorised keys](../guide/hosts.md#ssh-server), and check the access list of that file.",
        ),
        row(
            "JumpHostUnreachable",
            "The operator cannot connect to the [jump host](../guide/hosts.md#hosts-behind-a-jump-host) of the pool, or the connection to it \
             broke. Nothing is known of the host.",
            "Correct the cause that the message names; the operator retries.",
        ),
        row(
            "JumpHostKeyMismatch",
            "The jump host shows another key than `ssh.jumpHost.hostKey` declares. The operator does not log in to it.",
            "Verify the key on the jump host, and correct `ssh.jumpHost.hostKey`.",
        ),
        row(
            "JumpHostAuthenticationFailed",
            "The jump host does not accept the key of `ssh.jumpHost.privateKeySecretRef`.",
            "Add the public key that the message names to the user's `authorized_keys` on the jump host.",
        ),
        row(
            "JumpHostRefused",
            "The jump host does not forward connections to the address and port of the host.",
            "Allow it in the `sshd_config` of the jump host (`AllowTcpForwarding`, `PermitOpen`), and in the options of the key.",
        ),
        row(
            "UnreachableFromJumpHost",
            "The jump host cannot connect to the host.",
            "Check that the host is up and its sshd runs, and the network between the jump host and the host.",
        ),
        row(
            "CredentialsUnavailable",
            "A Secret, a key in it or its content is missing or cannot be used.",
            "Correct the Secret that the message names; the operator retries within 15 s.",
        ),
        row(
            "Disconnected",
            "The connection broke.",
            "The operator retries. If it breaks often, check the network and the host's sshd log.",
        ),
        row(
            "CommandTimeout",
            "A command takes longer than `ssh.commandTimeoutSeconds` (600 if not set).",
            "Check why the host is slow, or raise the limit.",
        ),
        row(
            "CommandRefused",
            "sshd does not start the command.",
            "Check `ForceCommand` and the shell in `sshd_config`.",
        ),
        row(
            "NotASftpServer",
            "The host offers no SFTP.",
            "Add `Subsystem sftp sftp-server.exe` to `sshd_config`, or remove `ForceCommand`, as the message says.",
        ),
        row(
            "TransferFailed",
            "A file cannot be written or read.",
            "Correct the cause that the message names, for example a read-only file.",
        ),
        row("NotWindows", "The host has no `C:\\Windows` over SFTP.", "Check the address."),
    ],
};

pub(super) const UNFIT: Section = Section {
    title: "A host: fitness",
    place: PLACE,
    reasons: &[
        row(
            "NotAdministrator",
            "The user has no administrator's rights in an SSH session.",
            "Log in as a user that has them.",
        ),
        row(
            "WindowsNotSupported",
            "The host runs another Windows than Windows Server 2019, 2022 or 2025.",
            "Install one of them; containers need a base image of the same version.",
        ),
        row(
            "ApiServerUnreachable",
            "The host cannot resolve the name of the API server, or cannot connect to it. Nothing on the host was changed.",
            "Check DNS, routes and firewalls between the host and the API server that the message names.",
        ),
        row(
            "PortInUse",
            "Another program listens on the port of kubelet.",
            "Stop the program, or move it to another port.",
        ),
        row("PreflightFailed", "The host lacks something that a node needs.", "Follow the message."),
        row("ClockSkew", "The clock of the host is more than 5 minutes off.", "Correct the time service of the host."),
        row(
            "HostConflict",
            "The address leads to a machine that is an instance already, or a Node of the host's name is not proven to belong to this host.",
            "Remove one entry, give the host another name, or delete the Node if it is a leftover. The message names which.",
        ),
        row(
            "ForeignServices",
            "Another installer installed services with names of the operator's services.",
            "Remove the services that the message names.",
        ),
        row(
            "ForeignService",
            "The same, found while the host is configured.",
            "Remove the service that the message names.",
        ),
        row(
            "ForeignCredentialPlugin",
            "The pool names a [plugin of Container Credential Guard](../guide/gmsa.md#a-plugin-for-hosts-in-no-domain) whose class another installer \
             registered on the host. Nothing of it was changed.",
            "Uninstall that plugin, or take `template.spec.gmsa.plugin` out of the pool.",
        ),
        row("DiskFull", "`C:` has not enough room.", "Make room; the message has the size that is needed."),
        row(
            "NoAddress",
            "The host reports no address that a Node can use.",
            "Give the host an address that is not loopback or link-local.",
        ),
        row(
            "NotRegistered",
            "The Node does not appear or does not become Ready, or the host does not follow its version, within `--register-timeout`, \
             although the host answers. The message names which.",
            "Check the logs of kubelet and wicd, the host's way to the API server, and the pod network for Windows.",
        ),
        row(
            "NodeDeleted",
            "The Node was deleted during a change of the host, and kubelet did not register it again within `--register-timeout`.",
            "Check the log of kubelet; the operator retries.",
        ),
        row(
            "NodeRefused",
            "The API server refuses the labels, annotations or taints of the Node, or an admission policy does.",
            "Correct the pool's template or the entry of the host; the operator retries.",
        ),
        row("NotRestarted", "The host does not answer after a restart.", "Check its console."),
    ],
};

pub(super) const REFUSED: Section = Section {
    title: "A host: refusals and failures of wicd",
    place: PLACE,
    reasons: &[
        row(
            "StaleEpoch",
            "An operator with a newer epoch of this cluster has worked on the host.",
            "Make sure that only one operator runs. If no newer one exists, \
             [void the epoch](../guide/troubleshooting.md#hosts-refuse-every-operator).",
        ),
        row(
            "EpochImplausible",
            "The Lease has a number that no operator reaches. The host does not remember it.",
            "Correct `spec.leaseTransitions` of the Lease `windows-node-pools`, and restart the operator.",
        ),
        row(
            "NotThisMachine",
            "Another machine answers than the one that joined. The operator changed nothing on it.",
            "[Correct the list](../guide/hosts.md#which-host-it-is).",
        ),
        row(
            "NotThisNode",
            "The machine that answers is another Node. The operator changed nothing on it.",
            "[Correct the list](../guide/hosts.md#which-host-it-is).",
        ),
        row(
            "HostOfAnotherCluster",
            "The host is a node of another cluster.",
            "[Remove it there, or take it over](../guide/hosts.md#hosts-of-a-cluster-that-no-longer-exists).",
        ),
        row(
            "HostUnproven",
            "The host has a Node, and there is no record of its host key or of its machine id, so that nothing proves which host answers.",
            "Nodes of WMCO: [give the pool their host keys](../guide/from-wmco.md#host-keys). Otherwise declare the host key, [trust it](../guide/troubleshooting.md#trust-a-host-key-that-has-changed) \
             (`kubectl windows-node-pools trust-host-key`, or the annotation `trust-host-key` of the instance), or correct the address.",
        ),
        row("NoRecipient", "A request names no recipient.", REPORT),
        row("HostBusy", "Another operation, or the service, holds the host for more than 30 s.", RETRIED),
        row(
            "AccessDenied",
            "Windows denied access to the object that the message names. That a program has a file open shows like this, too.",
            "Close what uses the file (`handle.exe` of Sysinternals shows it); check the antivirus and the policies of the host.",
        ),
        row("HostCallFailed", "A call of Windows failed.", "Correct the cause that the message names."),
        row("HostCallTimeout", "A call of Windows takes too long.", "Check the service that the message names."),
        row("ServiceFailed", "wicd's service ended or did not start.", "Check the logs in `C:\\var\\log\\wicd`."),
        row(
            "DirectoryRefused",
            "`C:\\k`, another directory of the operator, or one above them is a link or a file, or belongs to a user who is perhaps no \
             administrator and can change its content; or a file in it is a hard link to a file of such a user. The operator does not use it.",
            "Check its content. Then remove it or the link, or give it to the administrators with the command in the message.",
        ),
        row(
            "LinkRefused",
            "A directory above those of the operator (`C:\\var`, `C:\\var\\log`) is a link. During a removal this is only a warning, and the \
             files behind it stay.",
            "Remove the link.",
        ),
        row(
            "RecordLost",
            "The record of what the operator put on the host is missing, and so is its copy.",
            "Check the disk, and remove the operator's services and `C:\\k` by hand.",
        ),
        row(
            "CleanupIncomplete",
            "Some of the operator's files or services remain after a removal. The message lists them.",
            "The operator retries. Close the program that uses the file.",
        ),
        row(
            "CertificateMismatch",
            "The certificate does not fit the key that waits on the host.",
            "No action is needed: the operator retries with a new request.",
        ),
        row(
            "CertificateInvalid",
            "The certificate cannot be read.",
            "No action is needed: the operator retries with a new request.",
        ),
        row(
            "CertificateExpired",
            "The certificate is not valid now.",
            "Compare the clocks; the operator retries with a new request.",
        ),
        row("CryptoFailed", "A key or a request cannot be made.", REPORT),
        row(
            "HashMismatch",
            "A file that arrived is damaged.",
            "The operator sends it again. If it stays so, check disk and network.",
        ),
        row(
            "ArchiveInvalid",
            "What arrived is damaged.",
            "The operator sends it again. If it stays so, check disk and network.",
        ),
        row(
            "PayloadMissing",
            "A file of the payload is missing on the host.",
            "The operator sends it again. If it stays so, check the disk.",
        ),
        row("TrustedCaInvalid", "The certificates to trust cannot be read.", "Correct the bundle."),
        row(
            "ProgramDamaged",
            "The host returns other bytes of `wicd.exe` than the operator sent. The operator did not start it.",
            "Check for an antivirus that changes files, and for a failing disk.",
        ),
        row(
            "ShellNotSupported",
            "The log-in shell of the user, as that of the Windows Subsystem for Linux, starts no Windows program by its path.",
            "Set the [default shell](../guide/hosts.md#ssh-server) of the host's SSH server to cmd.exe or PowerShell.",
        ),
        row(
            "NoAnswer",
            "`wicd.exe` ended without an answer. The message has its exit status and its output.",
            "Check for an antivirus, for [App Control and AppLocker](../guide/hosts.md#app-control-applocker-and-antivirus), and for a missing system library.",
        ),
        row("BadAnswer", "The answer of `wicd.exe` cannot be read: another process changed the host's files.", RETRIED),
        row("ProtocolMismatch", "`wicd.exe` is of another release: another process changed the host's files.", RETRIED),
        row("NotApplied", "The host has no desired state: another process changed the host's files.", RETRIED),
        row("ExeMissing", "`wicd.exe` is missing or incomplete: another process changed the host's files.", RETRIED),
        row("HostFailed", "The host gave a reason that is no word.", "Follow the host's text in the message."),
        row("PathRefused", "A file of the version has a path that the host does not accept.", REPORT),
        row("BadPath", "The operator has a path that cannot be written over SFTP.", REPORT),
        row("BadCommand", "The operator has a command that cannot be sent.", REPORT),
        row(
            "TooLarge",
            "A file on the host is larger than the operator reads.",
            "Shorten the file that the message names, or report the fault.",
        ),
        row("TooManyEntries", "A directory on the host has more entries than the operator reads.", REPORT),
        row("SourceUnreadable", "A file in the operator's image cannot be read.", "Replace the operator's image."),
    ],
};

pub(super) const KEYS: Section = Section {
    title: "A host: another SSH key",
    place: "They appear in the event `KeyRotationFailed`, in `status.keyRotation.failures` of the instance and in the metric \
            `windows_node_pool_failures_total`. See [keys](../guide/keys.md).",
    reasons: &[
        row(
            "KeyLineNotFound",
            "The host accepts a key whose line is in no file that the operator knows.",
            "Add the first key of the list to the file from which sshd reads keys.",
        ),
        row(
            "KeyNotTaken",
            "The key is in the file, and sshd refuses it.",
            "Check the log of the host's sshd for the cause.",
        ),
        row(
            "KeyOfUserData",
            "The host belongs to a Machine whose user data is not of this operator, and may write the old key again at each start. The key stays as it is.",
            "Keep the old key in the list, and [replace the Machine](../guide/keys.md#machines).",
        ),
    ],
};

pub(super) const IMAGES: Section = Section {
    title: "A host: images",
    place: "They appear in the event `PrePullFailed`, in `status.prePulled.failures` of the instance and in the metric \
            `windows_node_pool_failures_total`. See [images](../guide/images.md).",
    reasons: &[
        row(
            "ImagePullFailed",
            "containerd cannot pull or pin an image. The message has its own words.",
            "Check the name of the image, the pull secret, and that the image is for the Windows of the host.",
        ),
        row(
            "ImagePullTimeout",
            "A pull takes longer than `ssh.commandTimeoutSeconds`, less a margin for the answer.",
            "Raise the limit, or `template.spec.containerd.maxConcurrentDownloads`; complete layers are not pulled again \
             as long as containerd keeps them.",
        ),
        row("ContainerdUnavailable", "containerd does not answer on the host.", "Check its service and its log."),
        row(
            "ImageNotKept",
            "The host reports no error, and does not have the image.",
            "Check for a program on the host that deletes images.",
        ),
    ],
};

pub(super) const VERSIONS: Section = Section {
    title: "A host: versions",
    place: "See [a host](#a-host); on a pool, `Ready=False`, `Degraded=True` and `Stalled=True`.",
    reasons: &[
        row(
            "VersionMissing",
            "The ConfigMap of the services of a version is missing, or another client made it.",
            "Find the client that deleted or wrote the ConfigMap; the operator retries.",
        ),
        row(
            "VersionFilesMissing",
            "The host is to follow a version whose files are in no payload of this operator: an earlier operator made it.",
            "End what keeps the pool at this version, or install an operator whose [payload](../guide/payload.md) has the files; the message \
             names the version and the payloads that are there.",
        ),
        row(
            "VersionUnreadable",
            "The ConfigMap of a version cannot be read.",
            "Delete the ConfigMap that the message names; the operator stores it again if it is needed.",
        ),
        row(
            "VersionUnverified",
            "The content of the ConfigMap of a version does not match its name.",
            "Delete the ConfigMap that the message names, and find the client that writes it.",
        ),
        row(
            "TemplateInvalid",
            "A setting of the pool's template cannot be used.",
            "Correct the field that the message names.",
        ),
    ],
};

pub(super) const DRAINING: Section = Section {
    title: "A host: drains and the API server",
    place: PLACE,
    reasons: &[
        row(
            "DrainTimedOut",
            "The drain exceeded `drain.timeoutSeconds`, and `onTimeout` is `Abort`. The operator lifted the cordon.",
            "See [blocked drains](../guide/removal.md#a-drain-that-does-not-get-on).",
        ),
        row(
            "EvictionForbidden",
            "The operator's rights or an admission policy refuse evictions.",
            "Follow the policy's text in the message.",
        ),
        row("EvictionRejected", "The API server rejects an eviction.", "Follow its text in the message."),
        row("InvalidDrainRule", "A selector in `drain` is invalid.", "Correct it in the pool."),
        row("CordonConflict", "The Node changed while the operator cordoned it.", RETRIED),
        row("NodeGone", "The Node was deleted during the drain.", RETRIED),
        row(
            "ApiError",
            "A request to the API server failed.",
            "Check the API server and the operator's rights; the message names the request.",
        ),
        row("Outdated", "The instance changed while the operator worked on it.", RETRIED),
    ],
};
