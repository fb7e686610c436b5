//! Reasons of the operator's events, each with its type, the objects that it is reported on, and its meaning.
//!
//! `cargo xtask gen` writes docs/reference/conditions.md from them.

use crate::Reason;

/// Type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// Progress.
    Normal,
    /// A problem, or a step that a user may want to check.
    Warning,
}

impl EventType {
    /// Returns the name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Kinds of objects that have events. The names are those of the API.
#[expect(missing_docs, reason = "the names say it")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regarding {
    WindowsInstance,
    WindowsNodePool,
    ConfigMap,
    Secret,
    Machine,
    MachineSet,
    CertificateSigningRequest,
    Node,
}

/// Defines the enum and its table from one list, so that no reason lacks a type, an object or a description. The description is the doc comment.
macro_rules! event_reasons {
    ($($(#[doc = $about:literal])+ $variant:ident $(as $word:literal)?: $event_type:ident on $($kind:ident)+;)+) => {
        /// Reason of an event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum EventReason {
            $($(#[doc = $about])+ $variant,)+
            /// A host list or an entry in it cannot be used. The event has the reason of the condition `InventorySynced`.
            Inventory(Reason),
            /// Changes of the pool are now waiting. The event has the reason of the pool's conditions.
            Waits(Reason),
            /// The operator denied a certificate request. The event has the reason of the request's condition `Denied`.
            Denied(Reason),
        }

        impl EventReason {
            /// All reasons with a fixed name.
            pub const FIXED: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the reason in the event.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => event_reasons!(@word $variant $($word)?),)+
                    Self::Inventory(reason) | Self::Waits(reason) | Self::Denied(reason) => reason.as_str(),
                }
            }

            /// Returns the type of the event.
            pub fn event_type(self) -> EventType {
                match self {
                    $(Self::$variant => EventType::$event_type,)+
                    Self::Waits(Reason::Paused | Reason::WaitingForWindow) => EventType::Normal,
                    Self::Inventory(_) | Self::Waits(_) | Self::Denied(_) => EventType::Warning,
                }
            }

            /// Returns the kinds of the objects that have events with this reason.
            pub fn regarding(self) -> &'static [Regarding] {
                match self {
                    $(Self::$variant => &[$(Regarding::$kind),+],)+
                    Self::Inventory(_) => &[Regarding::WindowsNodePool, Regarding::ConfigMap],
                    Self::Waits(_) => &[Regarding::WindowsNodePool],
                    Self::Denied(_) => &[Regarding::CertificateSigningRequest],
                }
            }

            /// Returns the description and the remedy in Markdown, or `None` for a reason that is documented among the reasons of conditions.
            pub fn about(self) -> Option<&'static str> {
                match self {
                    $(Self::$variant => Some(concat!($($about),+).trim_start()),)+
                    Self::Inventory(_) | Self::Waits(_) | Self::Denied(_) => None,
                }
            }
        }
    };
    (@word $variant:ident) => { stringify!($variant) };
    (@word $variant:ident $word:literal) => { $word };
}

event_reasons! {
    /// The Windows Machine Config Operator runs. No operation begins until it is [removed](../guide/from-wmco.md).
    AnotherOperator: Warning on ConfigMap;
    /// The host is a node of the pool. No action is needed.
    Joined: Normal on WindowsInstance;
    /// The node of another operator belongs to the pool now, with the version that it has. No action is needed.
    Adopted: Normal on WindowsInstance;
    /// An attempt to join the host failed. The note begins with the [reason](conditions.md#reasons) and names the remedy; the operator retries.
    JoinFailed: Warning on WindowsInstance;
    /// An attempt to copy the next version to the host in advance failed. The node continues as it is, and the operator retries; the note begins
    /// with the [reason](conditions.md#reasons).
    StageFailed: Warning on WindowsInstance;
    /// An attempt to change the version of a node, or the metadata of its Node, failed. The note begins with the [reason](conditions.md#reasons) and
    /// names the remedy; the operator retries, or returns the node to the previous version.
    UpdateFailed: Warning on WindowsInstance;
    /// An attempt to restart the host failed. The note begins with the [reason](conditions.md#reasons) and names the remedy; the operator retries.
    RebootFailed: Warning on WindowsInstance;
    /// An attempt to repair the node failed. The note begins with the [reason](conditions.md#reasons) and names the remedy; the operator retries.
    RepairFailed: Warning on WindowsInstance;
    /// The node is drained for the maintenance that the note names, and stays so until the request is withdrawn. Patch and restart the host,
    /// then [hand it back](../guide/maintenance.md#hand-the-node-back).
    DrainedForMaintenance: Normal on WindowsInstance Node;
    /// The node works after its maintenance, and accepts pods again unless another client keeps it cordoned. No action is needed.
    MaintenanceEnded: Normal on WindowsInstance Node;
    /// An attempt to drain the node for maintenance, or to return it to service, failed. The note begins with the [reason](conditions.md#reasons).
    /// The operator retries; a node that was drained stays cordoned until an attempt succeeds.
    MaintenanceFailed: Warning on WindowsInstance;
    /// An attempt to remove the host failed. The note begins with the [reason](conditions.md#reasons) and names the remedy; the operator
    /// retries. A host that no longer exists must be [abandoned](../guide/removal.md#a-host-that-cannot-be-reached).
    RemoveFailed: Warning on WindowsInstance;
    /// The node follows the version in the note. No action is needed. On the Node only if it was drained.
    Updated: Normal on WindowsInstance Node;
    /// The operator restarts the host; the note has the cause. No action is needed.
    Rebooting: Normal on WindowsInstance Node;
    /// The host was restarted, and its Node is Ready again. No action is needed.
    Rebooted: Normal on WindowsInstance Node;
    /// The node does not work, and the operator configures its host and starts its services again. No action is needed.
    Repairing: Normal on WindowsInstance Node;
    /// The host was repaired, and its Node is Ready again. No action is needed.
    Repaired: Normal on WindowsInstance Node;
    /// The version does not work on this host, which returns to the previous version. Correct what the note names, and change the pool again.
    RollingBack: Warning on WindowsInstance Node;
    /// The node follows the previous version again; on a pool, too many nodes failed to follow a version, and all return to the previous one. See
    /// [rollouts](../guide/rollouts.md#operations-in-progress).
    RolledBack: Warning on WindowsInstance WindowsNodePool Node;
    /// The nodes of the pool begin to change to another version. No action is needed.
    RolloutStarted: Normal on WindowsNodePool;
    /// All nodes of the pool follow the version, apart from nodes that failed, are on hold, are lost or would lose settings. No action is needed.
    RolloutCompleted: Normal on WindowsNodePool;
    /// A change would lose settings that the node has from WMCO, so the node keeps its version.
    /// [Add them to the pool, or accept the loss](../guide/from-wmco.md#what-a-node-has-and-what-it-would-lose).
    SettingsWouldBeLost: Warning on WindowsInstance;
    /// The host follows another version than was stored, for example after a restore of a backup. The operator stores the host's version and
    /// changes nothing on the host. No action is needed.
    VersionCorrected: Normal on WindowsInstance;
    /// The instance had no stored state of a node, although its host and its Node show that the host is a node. The operator restored the state. No
    /// action is needed.
    Recovered: Normal on WindowsInstance;
    /// The operator moves the pods away from the node; the note has the cause. No action is needed.
    Draining: Normal on Node;
    /// The operator restarts the services in the note, and the pods continue to run. No action is needed.
    ServicesRestarting: Normal on Node;
    /// A drain makes no progress; the note names the pods and what holds them. See
    /// [how a drain works](../guide/removal.md#how-a-drain-works).
    DrainBlocked: Warning on WindowsInstance Node;
    /// A pod was deleted without regard to its PodDisruptionBudget, because the drain exceeded its time and the pool sets `onTimeout: Force`.
    /// Check the application.
    DrainForced: Warning on WindowsInstance Node;
    /// A drain deletes data or a pod that no controller creates again, or cannot wait for a pod; the note names it. Check the application.
    DrainWarning: Warning on WindowsInstance;
    /// The drain was aborted before the host was changed, and the operator lifted its cordon; the note has the cause. A change that is still needed
    /// is made in its next turn.
    DrainAborted: Normal on WindowsInstance Node;
    /// The node was no longer cordoned during a drain or a maintenance, because another client uncordoned it or its Node was created again. The
    /// operator cordons it again. Find that client; to let the node accept pods, end the operation or the maintenance instead.
    ExternalUncordon: Warning on WindowsInstance;
    /// The host answers at the new address of its entry, or with the new host key that its entry declares, and is the expected one. No action is
    /// needed.
    AddressVerified: Normal on WindowsInstance;
    /// The host could not be verified at its new address, or shows another host key than its entry declares. The node continues unchanged, and the
    /// operator retries. [Correct the entry](../guide/hosts.md#address).
    AddressRefused: Warning on WindowsInstance;
    /// The host reports a warning that does not stop the operation. The note names the object on the host to check.
    HostWarning: Warning on WindowsInstance;
    /// The [node name](../guide/hosts.md#name) and the computer name of the host differ, because Windows cuts computer names to 15 characters.
    /// Harmless unless a tool expects both to match.
    HostNameTooLong: Warning on WindowsInstance;
    /// The Node is no longer Ready; the note has kubelet's message. The pool's message has the time from which the operator [repairs
    /// it](../guide/rollouts.md).
    NodeNotReady: Warning on WindowsInstance;
    /// The state of the host differs from what the operator configured; the note names the object. wicd restores it unless the pool sets
    /// `remediation.drift: Report`. Find the program or the user that changes it.
    Drifted: Warning on WindowsInstance;
    /// wicd, the daemon of the host, has reported nothing for half an hour, although the Node is Ready. Until it reports again, drift may not be
    /// restored, versions may not be followed and certificates may not be renewed. Check on the host that the service
    /// `windows-instance-config-daemon` runs, and read its log in `C:\var\log\wicd`.
    WicdSilent: Warning on WindowsInstance;
    /// A client other than the operator deleted the Node. The note shows whether the operator registers the host again. Find the client that
    /// deleted it.
    NodeDeleted: Warning on WindowsInstance;
    /// The pool's first key was added to `authorized_keys` of the host; the operator logs in with it next. No action is needed.
    KeyAdded: Normal on WindowsInstance;
    /// The old key was removed from the host. No action is needed.
    KeyRetired: Normal on WindowsInstance;
    /// The host could not be changed to [another SSH key](../guide/maintenance.md#rotate-the-ssh-key). The node continues, and the operator
    /// retries; the note begins with the [reason](conditions.md#reasons).
    KeyRotationFailed: Warning on WindowsInstance;
    /// The host has all images of `provisioning.prePullImages`. No action is needed.
    ImagesPulled: Normal on WindowsInstance;
    /// The host could not [pull images ahead](../guide/rollouts.md#pull-images-ahead). The node continues, and the operator retries; the note
    /// begins with the [reason](conditions.md#reasons).
    PrePullFailed: Warning on WindowsInstance;
    /// The list has new hosts, and the operator created an instance for each. The note has their names and the locations of their entries. Hosts for
    /// which the note has no room are in the operator's log, one line for each (`event="HostAdmitted"`).
    HostsAdmitted: Normal on WindowsNodePool;
    /// The entry of the host changed. The note has its location.
    HostChanged: Normal on WindowsInstance;
    /// The host must leave the pool; the note has the cause. If this is a mistake, [put the entry back](../guide/removal.md).
    HostDismissed: Normal on WindowsInstance;
    /// The removal of the host was cancelled, and it stays a node. No action is needed.
    HostReturned: Normal on WindowsInstance;
    /// Another pool lists the host now. It stays a node.
    HostMoved: Normal on WindowsInstance;
    /// The removal of the host ended before it was complete, because the list has the host again. No action is needed.
    RemovalTakenBack: Normal on WindowsInstance;
    /// The host is no longer a node; the note says whether the host was cleaned. On a Node: the Node is about to be deleted, and the note has the
    /// cause. No action is needed.
    Removed: Normal on WindowsInstance Node;
    /// The host was [abandoned](../guide/removal.md#a-host-that-cannot-be-reached) without being deconfigured. Clean or rebuild it before you use
    /// it again.
    RemovedUnclean: Warning on WindowsInstance WindowsNodePool;
    /// The host that was to be removed belongs to another Node, another cluster or an unknown owner now, so the operator did not change it. No
    /// action is needed.
    HostIsAnothers: Normal on WindowsInstance;
    /// An annotation of a pool, an instance or a Node has no effect; the note has the cause.
    AnnotationWithoutEffect: Warning on WindowsInstance WindowsNodePool;
    /// The host was released as it is, and stays a node. No action is needed.
    Orphaned: Normal on WindowsInstance;
    /// The host was released during a change and is partly changed. Add it to a pool again to complete the change.
    OrphanedPartlyChanged as "Orphaned": Warning on WindowsInstance;
    /// The removal of the number of hosts in the note was confirmed by the annotation `approve-removal`, which is used up now.
    RemovalConfirmed: Normal on WindowsNodePool;
    /// The annotation `approve-removal` confirms no removal that waits, and the operator removed it. The condition `InventorySynced` names what
    /// to confirm.
    ConfirmationUnused: Warning on WindowsNodePool;
    /// A Secret, a key in it or its content is missing or cannot be used. Correct the Secret that the note names; the operator uses the keys
    /// that it has.
    CredentialsUnavailable: Warning on WindowsNodePool;
    /// A private key of the pool is weak. [Change to another key](../guide/maintenance.md#rotate-the-ssh-key).
    WeakPrivateKey: Warning on WindowsNodePool;
    /// The operator has an internal fault that this object triggers; all others continue. Report it with the operator's log.
    InternalError: Warning on WindowsInstance;
    /// The host of a Machine refuses every key, and the operator deleted the Machine so that its MachineSet replaces it. No action is needed.
    MachineDeleted: Normal on Machine WindowsNodePool;
    /// The host of a Machine refuses every key, and the operator does not delete the Machine; the note has the cause. Authorise a key of the
    /// pool on the host, or delete the Machine.
    MachineDeletionRestricted: Warning on Machine WindowsNodePool;
    /// The host of a Machine refuses every key, and the operator could not delete the Machine; the note has the error. Check the operator's rights.
    MachineDeletionFailed: Warning on Machine WindowsNodePool;
    /// The Node of a Machine does not get the Machine's `spec.providerID`, because it is not a provider ID or another Machine has the same one. The
    /// Machine API cannot find the Node then. Correct the ID where the Machine is created.
    ProviderIdRefused: Warning on WindowsNodePool;
    /// No pool reads this source of hosts, because the pool with its name has another source. Name this source in a pool, or delete a
    /// ConfigMap that is not needed.
    PoolTaken: Warning on ConfigMap MachineSet;
    /// Nodes of WMCO are in the cluster, and the operator has made this pool in mode Plan. Read `status.plan`, and
    /// [begin the takeover](../guide/from-wmco.md).
    TakeoverWaits: Normal on WindowsNodePool;
    /// The content of a services ConfigMap does not match its name, so it is not used. The operator deletes it and stores it again if it is
    /// needed. Find the client that wrote it.
    ServicesReplaced: Warning on ConfigMap;
    /// New Machines accept passwords over SSH, because the user data in the Secret does not disable them. Delete the Secret; the operator
    /// writes it again.
    PasswordLogInAllowed: Warning on Secret;
    /// The request is valid, but must wait: the identity of its host is not proven yet, a name in the request is not proven to belong to the node, or
    /// wicd has no rights. The note names the remedy.
    Waiting: Normal on CertificateSigningRequest;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_a_word_with_a_sentence() {
        for reason in EventReason::FIXED {
            let (word, about) = (reason.as_str(), reason.about().unwrap_or_default());
            assert!(word.starts_with(|c: char| c.is_ascii_uppercase()), "{word}");
            assert!(word.bytes().all(|b| b.is_ascii_alphanumeric()), "{word}");
            assert!(about.ends_with('.') && about.split_whitespace().count() > 4, "{word}: {about}");
        }
    }

    #[test]
    fn a_word_has_more_than_one_row_only_if_the_type_differs() {
        let mut rows: Vec<_> = EventReason::FIXED.iter().map(|r| (r.as_str(), r.event_type().as_str())).collect();
        rows.sort_unstable();
        let all = rows.len();
        rows.dedup();
        assert_eq!(rows.len(), all);
    }
}
