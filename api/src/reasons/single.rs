//! Reasons that only one condition has.

use super::{Reason, Section};

const NONE: &str = "No action is needed.";

pub(super) const SINGLE: Section = Section {
    title: "Other reasons of conditions",
    place: "Each appears in the conditions of its row.",
    reasons: &[
        of("NodeReady", "instance: `NodeHealthy=True`", "The Node of the instance is Ready.", NONE),
        of(
            "NodeNotReady",
            "instance: `NodeHealthy=False`, `Ready=False`",
            "The Node of the instance is not Ready. The message is kubelet's.",
            "Check the Node and the log of kubelet.",
        ),
        of("Connected", "instance: `Reachable=True`", "The host answered over SSH at the last attempt.", NONE),
        of(
            "AnswersWithoutKubelet",
            "instance: `Reachable=True`",
            "kubelet stopped posting the status of the Node, and the host answered over SSH afterwards.",
            "Check the services on the host, and the log of kubelet.",
        ),
        of(
            "NotTried",
            "instance: `Reachable=Unknown`",
            "kubelet stopped, or the Node is Ready again, and the host was not tried since.",
            "None; the operator tries it.",
        ),
        of(
            "NoReport",
            "instance: `WicdSilent=True`",
            "wicd reports about every ten minutes, and did not for half an hour, although kubelet works. No drift is restored meanwhile.",
            "Start the service `windows-instance-config-daemon` on the host.",
        ),
        of(
            "UpdateFailed",
            "instance: `UpToDate=False`",
            "The version of the pool does not work on this host, which returned to the one before.",
            "See [a version that fails](../guide/rollouts.md#a-version-that-fails).",
        ),
        of(
            "RestartPending",
            "instance: `RebootRequired=True`",
            "The host must be restarted, and waits for its turn (`rollout.maxUnavailable`).",
            NONE,
        ),
        of(
            "ChangedOnHost",
            "instance: `Drifted=True`",
            "The state of the host [differs](../guide/hosts.md#drift-on-a-host) from what the operator configured.",
            "Find the program or the user that changes it.",
        ),
        of(
            "WindowsRestartPending",
            "a warning in `PreflightPassed=True` and of `check host`",
            "Windows waits for a restart that the operator has no reason for: an update, changed features, or another name or domain.",
            "Restart the host; a node by the [annotation](../guide/rollouts.md#reboots) `windowsmachineconfig.openshift.io/reboot-required`.",
        ),
        of(
            "AntivirusFilter",
            "a warning in `PreflightPassed=True` and of `check host`",
            "An antivirus other than Windows Defender checks files on the host.",
            "Exclude the directories that the message names in the settings of the product.",
        ),
        of(
            "DefenderChecksContainerd",
            "a warning in `PreflightPassed=True` and of `check host`",
            "Windows Defender checks what containerd does, although the operator excluded it when it configured the host.",
            "Add the exclusion where these policies are managed.",
        ),
        of(
            "OtherContainerRuntime",
            "a warning in `PreflightPassed=True` and of `check host`",
            "Docker or the node agent of another distribution is installed on the host.",
            "Remove the services that the message names, or disable them.",
        ),
        of(
            "WindowsUpdateMissing",
            "a warning in `PreflightPassed=True` and of `check host`",
            "The host's Windows is older than the [update](platforms.md#versions-of-windows) that nodes need: its pods may have no network while the Node is Ready.",
            "Install the current cumulative update of Windows.",
        ),
        of(
            "WindowsSupportEnds",
            "a warning in `PreflightPassed=True` and of `check host`",
            "Microsoft's extended support of the host's Windows ends in this year, or has ended.",
            "Replace the host by one with a newer [version](platforms.md#versions-of-windows).",
        ),
        of(
            "NameNotOfInstance",
            "a warning in `PreflightPassed=True`",
            "The host is to have a cloud controller manager on AWS, which finds no instance by the name of its Node.",
            "List the host with the private DNS name of its instance, or outside of the cloud: see [platforms](platforms.md).",
        ),
        of(
            "NotDomainJoined",
            "instance: `GMSAReady=False`",
            "The pool lists accounts, and the host is a member of no domain.",
            "See [gMSA](../guide/gmsa.md).",
        ),
        of(
            "AccountNotUsable",
            "instance: `GMSAReady=False`",
            "The host cannot use an account that the pool lists. The message has the cause for each.",
            "See [gMSA](../guide/gmsa.md#a-host-that-cannot-use-an-account).",
        ),
        of(
            "AccountUnknown",
            "instance: `GMSAReady=Unknown`",
            "Windows did not report whether the host can use an account.",
            "See [gMSA](../guide/gmsa.md#a-host-that-cannot-use-an-account).",
        ),
        of(
            "AccountsNotChecked",
            "instance: `GMSAReady=Unknown`",
            "The host is in no domain, and its pool names a plugin: only a pod shows whether that retrieves the password of an account.",
            "Nothing; run a pod with the account to see it. See [gMSA](../guide/gmsa.md#a-plugin-for-hosts-in-no-domain).",
        ),
        of("AllNodesUpdated", "pool: `Updated=True`", "All nodes follow the desired version.", NONE),
        of(
            "NotVerified",
            "pool: `SourceVerified=False`",
            "The revision in force was accepted before the pool demanded signatures.",
            "Sign the next revision with a trusted key.",
        ),
        of("Deleting", "pool: `Ready=Unknown`", "The pool is being deleted, and its hosts leave.", NONE),
        of("AllKeysCurrent", "pool: `KeysCurrent=True`", "All hosts accept the first key of their list.", NONE),
        of("RotatingKeys", "pool: `KeysCurrent=False`", "Hosts accept an old key. The message names them.", NONE),
        of(
            "KeyRotationFailed",
            "pool: `KeysCurrent=False`",
            "A host could not be changed to another key. The message names the cause.",
            "See [keys](../guide/keys.md).",
        ),
        of("AllImagesPulled", "pool: `ImagesPulled=True`", "All hosts have the images that they pull ahead.", NONE),
        of(
            "PullingImages",
            "pool: `ImagesPulled=False`",
            "Hosts do not have all images that they pull ahead. The message names them.",
            NONE,
        ),
        of(
            "PrePullFailed",
            "pool: `ImagesPulled=False`",
            "A host could not pull an image ahead. The message names the cause; changes of its node no longer wait for it.",
            "See [images](../guide/images.md).",
        ),
        of(
            "InvalidWindow",
            "pool: `Stalled=True`, `Ready=False`, `Updated=False`, `Updating=False`",
            "A [maintenance window](../guide/rollouts.md#maintenance-windows) of the pool cannot be used, so no node is changed.",
            "Correct the window that the message names.",
        ),
    ],
};

const fn of(word: &'static str, conditions: &'static str, meaning: &'static str, remedy: &'static str) -> Reason {
    Reason { word, conditions, meaning, remedy }
}
