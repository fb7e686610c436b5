//! Reasons why a host list, or an entry of it, is not used as it is.

use super::{Section, row};

const RETRIED: &str = "No action is needed: the operator retries.";

pub(super) const ENTRIES: Section = Section {
    title: "A pool: entries of its list",
    place: "They appear in the condition `InventorySynced=False` of the pool, as the first fault in `Ready`, `Degraded` and `Stalled`, and as \
            reasons of events on the pool and on the ConfigMap with the hosts.",
    reasons: &[
        row(
            "HostConflict",
            "A name or an address is used twice, here or in another pool; or a host reports the name of a Node, an instance or a Machine that \
             it is not proven to be.",
            "Remove one of the two entries that the message names, rename the host, or delete the leftover Node.",
        ),
        row(
            "InvalidInventory",
            "An address, a host key or a file of the list cannot be read. Entries that were used before stay in use.",
            "Correct the entry that the message names.",
        ),
        row(
            "HostnameUnknown",
            "A host of a list [without names](../guide/inventory.md#hosts-without-names) does not report its name.",
            "Correct the cause that the message names; the operator retries.",
        ),
        row(
            "InvalidHostname",
            "A host has a name that a Node cannot have.",
            "Rename the host, or give it a name in the list.",
        ),
        row(
            "HostKeyUnknown",
            "The policy is `Strict`, and no key of the host is declared, or the known hosts do not list it.",
            "Verify the key, and [declare it](../guide/hosts.md#host-keys).",
        ),
        row(
            "HostKeyInvalid",
            "A declared or stored host key cannot be read.",
            "Correct or remove the key that the message names.",
        ),
        row(
            "HostKeyMismatch",
            "A host shows another [key](../guide/hosts.md#host-keys) than the known one, so the operator does not log in.",
            "Verify the key. If it is right, declare it, or remove the entry and add it again.",
        ),
        row(
            "TooManyUnknownHosts",
            "The names of more than 1000 hosts of the list are unknown, and the operator asks no more of them.",
            "Remove the hosts that do not answer, or use several pools.",
        ),
        row(
            "ApiError",
            "The API server did not answer the question that the message names.",
            "Check the API server and the operator's rights.",
        ),
    ],
};

pub(super) const REMOVALS: Section = Section {
    title: "A pool: hosts that stay although the list lacks them",
    place: "They appear in the same places. See [removal](../guide/removal.md#remove-several-hosts-or-all).",
    reasons: &[
        row(
            "MachinesRemain",
            "A Machine left the pool's MachineSet, but exists and is not being deleted.",
            "Delete the Machine, label it `windowsmachineconfig.openshift.io/ignore=true`, or confirm the removal.",
        ),
        row(
            "ReadingOtherPools",
            "Another pool may list the host now, and the operator reads its list.",
            "No action is needed.",
        ),
        row(
            "OtherPoolsUnreadable",
            "Another pool may list the host now, and its list cannot be read.",
            "Correct or suspend that source, or confirm the removal.",
        ),
        row(
            "ConfigMapMissing",
            "The ConfigMap with the hosts does not exist: it was deleted, is being replaced, or went with its namespace.",
            "Create it, confirm the removal, or delete the pool.",
        ),
        row(
            "HandOverWaits",
            "Another pool lists the host, and is in mode Plan.",
            "Set that mode to Apply, or put the host back.",
        ),
    ],
};

pub(super) const GIT: Section = Section {
    title: "A pool: hosts from Git",
    place: "They appear in the same places. The list that was used before stays in force. See [Git](../guide/git.md#what-is-used-and-what-is-not).",
    reasons: &[
        row("GitOperationFailed", "The Git server does not answer as it must.", RETRIED),
        row(
            "Timeout",
            "The fetch exceeded `inventory.git.timeout`.",
            "The operator retries. Raise the timeout if the server is slow.",
        ),
        row("Stopped", "The operator stopped during the fetch.", RETRIED),
        row("AuthenticationFailed", "The server rejects the credentials.", "Correct the Secret; the operator retries."),
        row(
            "CertificateInvalid",
            "The server's certificate is not trusted, or the server rejects the operator's.",
            "Correct the certificate authority or the client certificate in the Secret.",
        ),
        row(
            "HostKeyUnknown",
            "`known_hosts` does not list the server's SSH host key.",
            "Verify the key, and add it to the Secret.",
        ),
        row(
            "HostKeyRevoked",
            "`known_hosts` revokes the server's SSH host key.",
            "Ask the administrator of the server for its key.",
        ),
        row("KnownHostsInvalid", "A line of `known_hosts` cannot be read.", "Correct the line that the message names."),
        row(
            "CertAuthorityUnsupported",
            "`known_hosts` has a certificate authority, which the operator does not support.",
            "List the key of the server instead.",
        ),
        row(
            "SecretInvalid",
            "The Secret with the credentials cannot be used.",
            "Correct the key of the Secret that the message names.",
        ),
        row(
            "RepositoryNotFound",
            "The server has no such repository, or the credentials must not read it.",
            "Check the URL and the Secret.",
        ),
        row(
            "RevisionNotFound",
            "The repository has no such branch, tag or commit.",
            "Correct `inventory.git.ref`, or push the revision.",
        ),
        row(
            "RedirectRefused",
            "The server redirects to another server or to a URL without https.",
            "If it is right, write it as the URL.",
        ),
        row("URLInvalid", "The URL cannot be used.", "Correct it as the message says."),
        row("ReferenceInvalid", "The reference cannot be used.", "Correct `inventory.git.ref` as the message says."),
        row(
            "VerificationError",
            "The revision is not signed, not by a trusted key, or a tag was signed under another name.",
            "Sign the revision with a trusted key, or correct the list of keys.",
        ),
        row(
            "VersionRolledBack",
            "The highest tag in the range of `ref.semver` is lower than the one in use: its tag was deleted, or the server hides it.",
            "Bring the tag back, set `allowNonFastForward`, or set a range that ends below.",
        ),
        row(
            "HistoryRewritten",
            "The revision does not descend from the one in use, for example after a force push.",
            "Push a revision that does, or set `allowNonFastForward`.",
        ),
        row(
            "SymbolicLink",
            "The list has a symbolic link, which the operator does not follow.",
            "Put the file itself there.",
        ),
        row(
            "Submodule",
            "The list has a submodule, which the operator does not fetch.",
            "Put the files themselves there.",
        ),
        row(
            "LfsPointer",
            "The list has a pointer of Git LFS, which the operator does not fetch.",
            "Store the file itself in the repository.",
        ),
        row("NameInvalid", "The commit has a file name that is not valid.", "Remove the file."),
        row("PathInvalid", "The path is outside of the repository, or is no path.", "Correct `inventory.git.path`."),
        row("PathNotFound", "The commit has no file or folder at the path.", "Correct the path, or add the file."),
        row("InventoryTooLarge", "A file or the list is too large.", "Split the list."),
        row(
            "RepositoryTooLarge",
            "The repository is too large to be fetched, perhaps because of an older commit.",
            "Keep the hosts in a repository of their own, or reset the branch to the commit before.",
        ),
        row(
            "WrongObject",
            "An object of the repository is of another kind than its reference says.",
            "Check the repository with `git fsck`.",
        ),
        row(
            "RepositoryDamaged",
            "The fetched data cannot be read any more.",
            "No action is needed: the operator fetches them again.",
        ),
        row(
            "StorageFailed",
            "The directory for repositories cannot be used.",
            "Check whether the volume at `--cache` is full or not writable.",
        ),
    ],
};

pub(super) const FLUX: Section = Section {
    title: "A pool: hosts from Flux",
    place: "They appear in the same places. The list that was used before stays in force. See [Flux](../guide/git.md#with-flux).",
    reasons: &[
        row(
            "SourceNotFound",
            "The source does not exist, or the cluster has no such kind.",
            "Create the source, install Flux with this kind, or name another source.",
        ),
        row(
            "SourceNotReadable",
            "The API server does not return the source.",
            "Check the API server and the operator's rights.",
        ),
        row("SourceNotReady", "Flux gets no new revision; the message quotes it.", "Correct the source in Flux."),
        row("ArtifactMissing", "Flux has never fetched an artifact.", "Correct the source in Flux."),
        row(
            "ArtifactNotReadable",
            "The server of the artifact does not answer as it must, or the operator does not follow the URL.",
            "Check the server, or allow it with `--artifact-host`; the operator retries.",
        ),
        row("ArtifactNotRead", "The artifact was not received completely.", RETRIED),
        row(
            "DigestMismatch",
            "The server sends other content than Flux stored.",
            "The operator retries. If it stays so, check the server of the artifact.",
        ),
        row(
            "DigestNotSupported",
            "The digest of the artifact is not one that the operator can check.",
            "Start the source controller of Flux with `--artifact-digest-algo=sha256`.",
        ),
        row(
            "InvalidArtifact",
            "The artifact is no archive that the operator accepts.",
            "Correct the content of the source; the operator checks the next artifact.",
        ),
        row("ArtifactTooLarge", "The artifact is too large.", "Keep the hosts in a source of their own."),
        row("PathNotFound", "The artifact has no file or folder at the path.", "Correct the path, or add the file."),
        row(
            "VerificationError",
            "`requireVerified` is set, and Flux has not verified the artifact.",
            "Sign the source, set its `spec.verify`, or remove `requireVerified`.",
        ),
    ],
};

pub(super) const LEGACY: Section = Section {
    title: "A pool: hosts of a WMCO cluster",
    place: "They appear in the same places. See [coming from WMCO](../guide/from-wmco.md).",
    reasons: &[
        row(
            "MachineHasNoAddress",
            "A Machine has no internal address in its status.",
            "Check the Machine and its provider.",
        ),
        row(
            "MachineApiMissing",
            "The cluster has no API of the Machines that the pool names.",
            "Install the API, or name another source.",
        ),
        row("SourceNotSupported", "This operator does not know the pool's source of hosts.", "Update the operator."),
    ],
};
