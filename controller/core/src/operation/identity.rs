//! Proof that the host that answers is the expected one. Pure.
//!
//! The host key was verified before, at the login. The decision compares what the host reports, its machine id and its owner record, with the machine
//! id that is recorded in this cluster and with this cluster's own objects.

use api::{
    Reason,
    act::{Act, FINGERPRINT},
    host::{HostState, Owner, ServiceState, path::STATE},
    names::UNKNOWN_CLUSTER,
};

/// Purpose for which a host is identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The host must become a node.
    Join,
    /// The host is a node, and is identified for work that keeps it a node, for example a change or a query.
    Keep,
    /// The host leaves. The operator removes everything that it put on the host, or first recovers the lost status of the host.
    Remove,
}

/// State of the Node with the host's name in this cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeProof {
    /// No Node has the host's name.
    Missing,
    /// The Node is proven to be this host's, see [`NodeOwner::Hosts`](crate::node::owner::NodeOwner::Hosts).
    Proven,
    /// The Node exists, and may be another host's.
    Unproven,
}

/// The expected host.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedHost<'a> {
    /// Id of this cluster, and name of the Node.
    pub owner: &'a Owner,
    /// Expected address of the host.
    pub address: &'a str,
    /// Machine id that was recorded when the host was last proven. `None` if it was never proven.
    pub machine_id: Option<&'a str>,
    /// State of the host's Node.
    pub node: NodeProof,
    /// True if a user has declared the host key.
    pub key_declared: bool,
    /// True if both the address (or port) and the host key differ from the recorded ones, and no user has allowed the key for the host.
    pub address_and_key_changed: bool,
    /// Clusters whose hosts may be taken over.
    pub take_over_from: &'a [String],
}

/// The host that answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Machine id that the host claims.
    pub machine_id: String,
    /// Owner in the host's own record.
    pub owner: Option<Owner>,
    /// True if the host has a service with the name kubelet, whoever has installed the service.
    pub has_kubelet: bool,
}

impl Found {
    /// Extracts the identity from the state of a host.
    pub fn of(state: &HostState) -> Self {
        Self {
            machine_id: state.machine.machine_id.clone(),
            owner: state.marker.as_ref().map(api::host::Marker::owner),
            has_kubelet: state.services.get("kubelet").is_some_and(|s| *s != ServiceState::Missing),
        }
    }
}

/// Other instances and Nodes of this cluster that may be the same host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// True if the Node name on the host's record is that of another instance or Node of this cluster.
    pub owner_lives: bool,
    /// Name of another instance with the same machine id that is a node, or takes precedence.
    pub same_machine_instance: Option<String>,
}

/// Identity of the host that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The expected host.
    ExpectedHost,
    /// The expected host. The expected owner replaces the one in the host's record.
    Supersedes(Owner),
    /// A host that now belongs to another or an unknown owner, so that nothing is removed from it. Returned only for removals.
    OtherOwner(Owner),
}

/// Refusal of a host that is not the expected one, or cannot be proven. Nothing was changed on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another machine answers.
    #[error(
        "the machine at {address} is not the recorded machine of {name}: its machine id is {found}, and the recorded one is {known}; the operator did not change it. Correct \
         the address and the host key of {name} in its list. If the machine was reinstalled and the Node {name} exists, drain and delete this Node"
    )]
    NotThisMachine {
        /// Address of the machine.
        address: String,
        /// Name of the expected host.
        name: String,
        /// Machine id that was found.
        found: String,
        /// Machine id of the expected host.
        known: String,
    },
    /// The record on the machine names another Node of this cluster, although the expected host is a node or leaves. A leaving host without a Node is
    /// not refused.
    #[error(
        "the record on the machine at {address} names the Node {other}, not {name}; the operator did not change it. Correct the address and the host key of \
         {name} in its list"
    )]
    NotThisNode {
        /// Address of the machine.
        address: String,
        /// Name of the expected host.
        name: String,
        /// Node whose host the machine is.
        other: String,
    },
    /// The record on the machine names another host or Node of this cluster, so that the machine would get a second name.
    #[error(
        "the record on the machine at {address} names {other}, which is another host or Node of this cluster; the operator did not change it. To rename the host to {name}, remove {other} from its list, or delete the Node {other} if it is a leftover; otherwise correct the address of {name} in its list"
    )]
    HasAnotherName {
        /// Address of the machine.
        address: String,
        /// Name of the expected host.
        name: String,
        /// Node whose host the machine is.
        other: String,
    },
    /// Another instance has the same machine id.
    #[error(
        "the machine at {address} has the same machine id ({machine_id}) as the host {other}; the operator did not change it. If {name} and {other} are one machine, remove one of them from the inventory. If one was cloned from the other, run sysprep /generalize on the clone, so that it gets a machine id of its own"
    )]
    SameMachine {
        /// Address of the machine.
        address: String,
        /// Name of the expected host.
        name: String,
        /// Name of the instance with the same machine id.
        other: String,
        /// Id of the machine.
        machine_id: String,
    },
    /// The record on a new host names another cluster, from which hosts may not be taken over.
    #[error(
        "the record on the host at {address} names the Node {node} of the cluster {cluster}; the operator did not change the host. Remove the host from the pool in that cluster first. If that cluster no longer exists, add \"{cluster}\" to spec.takeOverFrom of this pool, and set hostKey in the entry of {name}"
    )]
    HostOfAnotherCluster {
        /// Address of the host.
        address: String,
        /// Name of the expected host.
        name: String,
        /// Id of the other cluster.
        cluster: String,
        /// Node of the host in the other cluster.
        node: String,
    },
    /// The record on the host names another cluster, and the host is not new to this cluster.
    #[error(
        "the record on the host at {address} names the Node {node} of the cluster {cluster}, but this cluster lists it as the host {name}; the operator did not change it. If the host belongs to this cluster, remove it from the pool in {cluster}; otherwise, correct the entry of {name} or remove it from its list"
    )]
    RecordOfAnotherCluster {
        /// Address of the host.
        address: String,
        /// Name of the expected host.
        name: String,
        /// Id of the other cluster.
        cluster: String,
        /// Node of the host in the other cluster.
        node: String,
    },
    /// A new host has a kubelet without a record, or a record without a cluster.
    #[error(
        "the host at {address} has a kubelet service or a record of an operator, and nothing on it shows which cluster it belongs to; the operator did not change it. If that cluster still exists, remove the host from it. Otherwise, add \"{UNKNOWN_CLUSTER}\" to spec.takeOverFrom of this pool and set hostKey in the entry of {name}"
    )]
    HostOfUnknownCluster {
        /// Address of the host.
        address: String,
        /// Name of the expected host.
        name: String,
    },
    /// The host has a kubelet or a record without a cluster, and nothing proves that it is the expected one.
    #[error(
        "the host at {address} has a kubelet service or a record of an operator, and nothing proves that it is the host of {name}; the operator did not change it. Correct the address of {name} in its list; or, if this is the right host, delete its service kubelet (sc.exe stop kubelet, sc.exe delete kubelet), and its file {STATE}"
    )]
    KubeletUnproven {
        /// Address of the host.
        address: String,
        /// Name of the expected host.
        name: String,
    },
    /// A new host appears to belong to another or an unknown cluster, from which hosts may be taken over, but its key is not declared.
    #[error(
        "the host at {address} appears to belong to the cluster \"{cluster}\", which spec.takeOverFrom of this pool names, but only hosts with a declared host key are taken over; the operator did not change it. Set hostKey in the entry of {name}"
    )]
    KeyNotDeclared {
        /// Address of the host.
        address: String,
        /// Name of the expected host.
        name: String,
        /// Id of the other cluster.
        cluster: String,
    },
    /// The machine claims to be the host of a Node that may belong to another host.
    #[error(
        "the machine at {address} claims to be the host of the Node {name}, but this is not proven: no machine id is recorded for {name}, and \
         neither the UID nor the addresses and labels of the Node show that it belongs to this machine; the operator did not change it. Correct the \
         address and the host key of {name} in its list; or, if the Node is a leftover, delete it: kubectl delete node {name}"
    )]
    UnverifiedClaim {
        /// Address of the machine.
        address: String,
        /// Name of the expected host.
        name: String,
    },
    /// The host key of a node's host is not on record.
    #[error(
        "no host key is recorded for the host of the Node {name}, and the first key of a host that is already a node is not trusted; the host at {address} {}. Compare its key with the one on the console of the host, and declare it: hostKey in the entry, or, for all hosts of the pool, ssh.knownHostsSecretRef with ssh.hostKeyPolicy Strict{}. To adopt nodes of the Windows Machine Config Operator on a trusted network, set ssh.hostKeyPolicy to TrustOnAdoption. If the Node is a leftover, delete it: kubectl delete node {name}",
        shown.as_deref().map_or_else(|| "did not answer with a key".to_owned(), |key| format!("shows {key}")), trust(*has_instance, name, shown.as_deref())
    )]
    KeyUnproven {
        /// Name of the expected host.
        name: String,
        /// Address at which the host is expected.
        address: String,
        /// Fingerprint of the key that the host shows, if it answered.
        shown: Option<String>,
        /// True if the host has a WindowsInstance, so that a command can trust the key.
        has_instance: bool,
    },
    /// Neither the address (with port) nor the host key of a machine is the recorded one.
    #[error(
        "the machine at {address} claims to be {name}, but neither its address (with port) nor its host key is the recorded one, so this is not proven; the operator did not change it. Correct the address and the host key of {name} in its list, one after the other; or compare the key with the one on the console of the host, and {}",
        Act::TrustHostKey(name, FINGERPRINT)
    )]
    AddressAndKeyChanged {
        /// Address of the machine.
        address: String,
        /// Name of the expected host.
        name: String,
    },
}

/// Returns the remedy that needs a WindowsInstance; empty if the host has none.
fn trust(has_instance: bool, name: &str, shown: Option<&str>) -> String {
    if has_instance { format!(", or {}", Act::TrustHostKey(name, shown.unwrap_or(FINGERPRINT))) } else { String::new() }
}

impl Refusal {
    /// Returns the reason for conditions and events.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NotThisMachine { .. } | Self::NotThisNode { .. } => Reason::NotThisMachine,
            Self::HasAnotherName { .. } | Self::SameMachine { .. } => Reason::HostConflict,
            Self::HostOfAnotherCluster { .. }
            | Self::RecordOfAnotherCluster { .. }
            | Self::HostOfUnknownCluster { .. }
            | Self::KubeletUnproven { .. }
            | Self::KeyNotDeclared { .. } => Reason::HostOfAnotherCluster,
            Self::UnverifiedClaim { .. } | Self::KeyUnproven { .. } | Self::AddressAndKeyChanged { .. } => {
                Reason::HostUnproven
            }
        }
    }
}

/// Decides whether the host that answers is the expected one.
///
/// # Errors
/// Fails if the host is not the expected one, or cannot be proven.
pub fn identify(
    purpose: Purpose,
    meant: ExpectedHost<'_>,
    found: &Found,
    others: &Others,
) -> Result<Identity, Refusal> {
    let known = meant.machine_id.filter(|id| !id.is_empty());
    let same_machine = known.is_some_and(|id| id == found.machine_id);
    // A host without a Node may be another machine than before: at a join, because its entry was corrected; later, because a user has deleted the
    // Node, if the machine has neither an owner nor a kubelet.
    let clean = found.owner.is_none() && !found.has_kubelet;
    let may_be_new =
        meant.node == NodeProof::Missing && (purpose == Purpose::Join || purpose == Purpose::Keep && clean);
    if let Some(known) = known.filter(|_| !same_machine && !may_be_new) {
        return Err(Refusal::NotThisMachine {
            address: meant.address.into(),
            name: meant.owner.node_name.clone(),
            found: found.machine_id.clone(),
            known: known.into(),
        });
    }
    if known.is_some() && meant.address_and_key_changed && !may_be_new {
        return Err(Refusal::AddressAndKeyChanged {
            address: meant.address.into(),
            name: meant.owner.node_name.clone(),
        });
    }
    match &found.owner {
        // The record is only the host's own claim, and the host learns the expected owner from the request.
        Some(owner) if owner == meant.owner && !same_machine && meant.node == NodeProof::Unproven => {
            Err(Refusal::UnverifiedClaim { address: meant.address.into(), name: owner.node_name.clone() })
        }
        Some(owner) if owner == meant.owner => Ok(Identity::ExpectedHost),
        Some(owner) if owner.cluster_id == meant.owner.cluster_id => another_node(purpose, meant, owner, found, others),
        // A record from before clusters had ids is proven by the machine id, or by this cluster's own Node.
        Some(owner)
            if owner.cluster_id.is_empty()
                && owner.node_name == meant.owner.node_name
                && (same_machine || meant.node == NodeProof::Proven) =>
        {
            Ok(Identity::Supersedes(owner.clone()))
        }
        Some(owner) => another_cluster(purpose, meant, owner),
        // A kubelet without a record, as on a host of the legacy operator.
        None if found.has_kubelet && !same_machine && meant.node != NodeProof::Proven => {
            another_cluster(purpose, meant, &Owner::default())
        }
        None => match others.same_machine_instance.clone().filter(|_| purpose == Purpose::Join) {
            Some(other) => Err(Refusal::SameMachine {
                address: meant.address.into(),
                name: meant.owner.node_name.clone(),
                other,
                machine_id: found.machine_id.clone(),
            }),
            None => Ok(Identity::ExpectedHost),
        },
    }
}

/// Identifies a host whose record names another Node of this cluster.
fn another_node(
    purpose: Purpose,
    meant: ExpectedHost<'_>,
    owner: &Owner,
    found: &Found,
    others: &Others,
) -> Result<Identity, Refusal> {
    let (address, name, other) = (meant.address.into(), meant.owner.node_name.clone(), owner.node_name.clone());
    match purpose {
        Purpose::Remove if meant.node == NodeProof::Missing => Ok(Identity::OtherOwner(owner.clone())),
        Purpose::Keep | Purpose::Remove => Err(Refusal::NotThisNode { address, name, other }),
        Purpose::Join if others.owner_lives => Err(Refusal::HasAnotherName { address, name, other }),
        Purpose::Join => match others.same_machine_instance.clone() {
            Some(other) => Err(Refusal::SameMachine { address, name, other, machine_id: found.machine_id.clone() }),
            None => Ok(Identity::Supersedes(owner.clone())),
        },
    }
}

/// Identifies a host whose record names another cluster or no cluster, or that has a kubelet without a record.
fn another_cluster(purpose: Purpose, meant: ExpectedHost<'_>, owner: &Owner) -> Result<Identity, Refusal> {
    let known = |text: &str| if text.is_empty() { UNKNOWN_CLUSTER.into() } else { text.to_owned() };
    let (cluster, node) = (known(&owner.cluster_id), known(&owner.node_name));
    if purpose == Purpose::Remove && meant.node == NodeProof::Missing {
        return Ok(Identity::OtherOwner(owner.clone()));
    }
    let is_new = purpose == Purpose::Join && meant.node == NodeProof::Missing;
    let (address, name) = (meant.address.to_owned(), meant.owner.node_name.clone());
    match (is_new, owner.cluster_id.is_empty()) {
        (true, _) if meant.take_over_from.contains(&cluster) && meant.key_declared => {
            Ok(Identity::Supersedes(owner.clone()))
        }
        (true, _) if meant.take_over_from.contains(&cluster) => Err(Refusal::KeyNotDeclared { address, name, cluster }),
        (true, true) => Err(Refusal::HostOfUnknownCluster { address, name }),
        (true, false) => Err(Refusal::HostOfAnotherCluster { address, name, cluster, node }),
        (false, true) => Err(Refusal::KubeletUnproven { address, name }),
        (false, false) => Err(Refusal::RecordOfAnotherCluster { address, name, cluster, node }),
    }
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
