//! Certificates for Windows hosts: which requests the operator approves, which it denies, and which it leaves to others.
//!
//! [`verdict`] is a pure function over a `CertificateSigningRequest` and what SSH has proven about the hosts of the pools. Three
//! kinds of certificate belong to the operator ([`Kind`]); each is bound to one host by its subject, its requester, and
//! its names.
//!
//! | | requester | subject | names |
//! |---|---|---|---|
//! | [`Kind::KubeletClient`] | the operator; `system:node:<node>` | `O=system:nodes, CN=system:node:<node>` | none |
//! | [`Kind::KubeletServing`] | `system:node:<node>` | the same | some, all of them proven |
//! | [`Kind::WicdClient`] | the operator; `system:wicd-node:<node>`; the legacy daemon's service account for a node that it still keeps | `O=system:wicd-nodes, CN=system:wicd-node:<node>` | none |
//!
//! A verdict is given twice: on what the caches know, and, before it is written, on the Node that the API server
//! returns (`Hosts` in the controller).
//!
//! A request claims to come from a host if its subject names a host of a pool, or lies in wicd's name space, which
//! belongs to this operator alone, or if such a host's own identity asks one of kubelet's signers for it. Such a
//! request is approved or denied. All others are left alone, also those that a host's kubelet identity sends to other
//! signers: network plug-ins obtain certificates of their own in that way, and have approvers of their own. Left alone,
//! too, is what may be right and cannot be judged: a bootstrap identity that asks for a host which is not proven yet,
//! and a serving certificate with an address that the Node has and nothing proves. A denial is final, and a user or
//! another approver may know more.
//!
//! A Node that WMCO has made is left without an approver when WMCO is gone, until a pool has adopted it. Until then it renews its
//! certificates with its own identity: for its own name, and in a serving certificate for addresses and names that it reports and that
//! no other Node reports. Such a certificate gives the host nothing that it does not have. Everything else of such a Node is left alone.
//!
//! A denial is a statement in public, so the reason is a fixed word and the message quotes the request only in short and escaped.

#[cfg(test)]
mod cases;
pub mod claims;
#[cfg(test)]
mod forge;
pub mod pending;
mod policy;
mod queue;
pub mod request;

use std::net::IpAddr;

use api::{Reason, names::user};

pub use policy::{hosts_of, is_decided};
pub use queue::{Outstanding, Place, is_finished, place, verdict};

/// Facts about one host of a pool, for the verdict on its certificate requests.
#[expect(clippy::struct_excessive_bools, reason = "each field is an independent observation")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claim {
    /// Name of the host's Node, in lower case.
    pub node_name: String,
    /// The IP addresses that are proven; a serving certificate may name these and no others.
    pub addresses: Vec<IpAddr>,
    /// The DNS names that are proven.
    pub dns_names: Vec<String>,
    /// IP addresses that the Node reports, and that are neither proven nor known to be another's.
    pub reported_addresses: Vec<IpAddr>,
    /// DNS names that the Node reports, and that are neither proven nor known to be another's.
    pub reported_names: Vec<String>,
    /// User of the legacy operator's daemon, while the host runs that daemon.
    pub legacy_daemon: Option<String>,
    /// True if the Node exists.
    pub joined: bool,
    /// True if SSH has proven the host. Until then its right requests wait, and its wrong ones are denied.
    pub proven: bool,
    /// True if the host is being removed, and its pods are deleted: it no longer needs a certificate.
    pub ended: bool,
    /// True if an operator has made the Node, and the host is not proven yet. With its own identity the Node renews its certificates, for its name
    /// and for `addresses` and `dns_names`, which are what the Node alone reports.
    pub renews: bool,
    /// True if no pool has an instance of the host: only the renewals of its Node are decided.
    pub unclaimed: bool,
}

/// Verdict on a certificate request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Request that is not of a host, or is already decided: it is ignored.
    NotOurs,
    /// Request that is right in every point.
    Approve(Kind),
    /// Request that claims to come from a host and is wrong.
    Deny {
        /// Reason in `PascalCase`, stable.
        reason: Reason,
        /// Message for users that names the fault.
        message: String,
    },
    /// Request that is valid as far as is known, but not to be approved now.
    Wait {
        /// Message that names what the request waits for.
        message: String,
        /// Node that asks, if a user may approve the request meanwhile.
        node: Option<String>,
    },
    /// Request that is right in every point, and not the first of its host.
    Queue {
        /// Name of the request that must be issued before.
        behind: String,
    },
}

/// Kind of a Windows host's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// kubelet's identity towards the API server.
    KubeletClient,
    /// kubelet's identity towards those who connect to it.
    KubeletServing,
    /// wicd's identity towards the API server.
    WicdClient,
}

impl Kind {
    /// All kinds of certificates.
    pub const ALL: [Self; 3] = [Self::KubeletClient, Self::KubeletServing, Self::WicdClient];

    /// The signer that issues this kind (`spec.signerName`).
    pub fn signer_name(self) -> &'static str {
        match self {
            Self::KubeletClient => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::KubeletServing => "kubernetes.io/kubelet-serving",
            Self::WicdClient => "kubernetes.io/kube-apiserver-client",
        }
    }

    /// The kind that a signer issues.
    pub fn of_signer(signer_name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.signer_name() == signer_name)
    }

    /// Prefix of the node's name in the common name, which is also the host's user name.
    pub fn user_prefix(self) -> &'static str {
        match self {
            Self::KubeletClient | Self::KubeletServing => user::NODE_PREFIX,
            Self::WicdClient => user::WICD_PREFIX,
        }
    }

    /// The subject's one organisation, which is also the host's group.
    pub fn organisation(self) -> &'static str {
        match self {
            Self::KubeletClient | Self::KubeletServing => user::NODES_GROUP,
            Self::WicdClient => user::WICD_GROUP,
        }
    }

    /// The extended key usage, as `spec.usages` has it.
    pub fn purpose(self) -> &'static str {
        match self {
            Self::KubeletClient | Self::WicdClient => "client auth",
            Self::KubeletServing => "server auth",
        }
    }

    /// A short name, for object names and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::KubeletClient => "kubelet-client",
            Self::KubeletServing => "kubelet-serving",
            Self::WicdClient => "wicd-client",
        }
    }
}

/// Fault for which a request is denied.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fault {
    reason: Reason,
    message: String,
}

impl Fault {
    fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// Hostile text made fit for a message: escaped, in quotes, and short.
fn quoted(text: &str) -> String {
    const LONGEST: usize = 80;
    let short: String = text.chars().take(LONGEST).collect();
    let more = if short.len() < text.len() { "…" } else { "" };
    format!("{short:?}{more}")
}
