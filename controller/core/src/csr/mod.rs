//! Certificates for Windows hosts: which requests the operator approves, which it denies, and which it leaves to others.
//!
//! [`verdict`] is a pure function over a `CertificateSigningRequest` and what SSH has proven about the hosts of the pools. The operator decides
//! about three kinds of certificate ([`Kind`]). Subject, requester and names bind each request to one host.
//!
//! | | requester | subject | names |
//! |---|---|---|---|
//! | [`Kind::KubeletClient`] | the operator; `system:node:<node>` | `O=system:nodes, CN=system:node:<node>` | none |
//! | [`Kind::KubeletServing`] | `system:node:<node>` | `O=system:nodes, CN=system:node:<node>` | at least one, all proven |
//! | [`Kind::WicdClient`] | the operator; `system:wicd-node:<node>`; a legacy daemon | `O=system:wicd-nodes, CN=system:wicd-node:<node>` | none |
//!
//! Each request is judged twice: on the cached objects and, before the verdict is written, on the Node that the API server returns (`Hosts` in
//! the controller).
//!
//! A request claims to come from a host if its subject names a host of a pool, if its subject has the organisation or the form of a wicd user, if its
//! requester is a wicd user (only this operator and WMCO issue certificates for such users), or if a host's kubelet user sends it to one of kubelet's
//! signers. The operator approves or denies such requests. It ignores all others, including those that a host's kubelet user sends to other signers:
//! network plug-ins obtain their certificates in that way and have their own approvers. It also leaves requests undecided that may be valid but
//! cannot be judged: a request for a host that is not proven yet, if it is valid or if a bootstrap user sends it before the host has a Node, and a
//! request for a serving certificate with a name or address that the Node reports and nothing proves. A denial is final, and a user or another
//! approver may know more.
//!
//! When WMCO is uninstalled, its Nodes have no approver until a pool adopts them. Until then, such a Node renews its certificates with its own
//! user: for its own name and, in a serving certificate, for addresses and names that only this Node reports. This gives the host nothing new.
//! All other requests of such a Node stay undecided, except some that its wicd user sends to a wrong signer, which are denied.
//!
//! A denial is public: its reason is a constant, and its message quotes only a short, escaped part of the request.

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
pub use queue::{Outstanding, QueuePosition, is_finished, queue_position, verdict};

/// Facts about one host, for the verdict on its certificate requests.
#[expect(clippy::struct_excessive_bools, reason = "each field is an independent observation")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claim {
    /// Name of the host's Node, in lower case.
    pub node_name: String,
    /// Proven IP addresses or, with [`Self::renews`], IP addresses that only this Node reports. An approved serving certificate has no
    /// other IP addresses.
    pub addresses: Vec<IpAddr>,
    /// Proven DNS names or, with [`Self::renews`], DNS names that only this Node reports. An approved serving certificate has no other
    /// DNS names.
    pub dns_names: Vec<String>,
    /// IP addresses that the Node reports and that are not proven. Another host may have them, too.
    pub reported_addresses: Vec<IpAddr>,
    /// DNS names that the Node reports and that are neither proven nor used by another host.
    pub reported_names: Vec<String>,
    /// User of the legacy operator's daemon, as long as it may request certificates for the host.
    pub legacy_daemon: Option<String>,
    /// True if the host has a Node.
    pub joined: bool,
    /// True if the host is proven over SSH. Until then, its valid requests wait unless [`Self::renews`] applies, and its invalid ones are denied.
    pub proven: bool,
    /// True if the host is being removed and may be partly deconfigured, so that it needs no certificate.
    pub ended: bool,
    /// True if an operator created the Node and the host is not proven yet. The Node then renews its certificates with its own user, for its name
    /// and for `addresses` and `dns_names`, which only this Node reports.
    pub renews: bool,
    /// True if no pool has an instance of the host. Only renewals of its Node are decided then.
    pub unclaimed: bool,
}

/// Verdict on a certificate request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Request that the operator ignores: it concerns no host of a pool, is left to another approver, or is already decided.
    NotOurs,
    /// Request that meets all rules, and waits for no older one.
    Approve(Kind),
    /// Request that claims to come from a host and breaks a rule.
    Deny {
        /// Stable reason in `PascalCase`.
        reason: Reason,
        /// Message for users that names the fault.
        message: String,
    },
    /// Request that cannot be decided yet.
    Wait {
        /// Message that names what the request waits for.
        message: String,
        /// Name of the requesting Node, if a user may approve the request meanwhile.
        node: Option<String>,
    },
    /// Request that meets all rules and waits for an older one of the same host and kind.
    Queue {
        /// Name of the older request, which must be finished or deleted first.
        behind: String,
    },
}

/// Kind of a Windows host's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Client certificate with which kubelet authenticates to the API server.
    KubeletClient,
    /// Serving certificate that kubelet presents to its clients.
    KubeletServing,
    /// Client certificate with which wicd authenticates to the API server.
    WicdClient,
}

impl Kind {
    /// All kinds of certificates.
    pub const ALL: [Self; 3] = [Self::KubeletClient, Self::KubeletServing, Self::WicdClient];

    /// Returns the name of the signer that issues this kind (`spec.signerName`).
    pub fn signer_name(self) -> &'static str {
        match self {
            Self::KubeletClient => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::KubeletServing => "kubernetes.io/kubelet-serving",
            Self::WicdClient => "kubernetes.io/kube-apiserver-client",
        }
    }

    /// Returns the kind of certificate that a signer issues for hosts; `None` for all other signers.
    pub fn of_signer(signer_name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.signer_name() == signer_name)
    }

    /// Returns the prefix of the node name in the subject's common name. The common name is also the host's user name.
    pub fn user_prefix(self) -> &'static str {
        match self {
            Self::KubeletClient | Self::KubeletServing => user::NODE_PREFIX,
            Self::WicdClient => user::WICD_PREFIX,
        }
    }

    /// Returns the only organisation of the subject, which is also the host's group.
    pub fn organisation(self) -> &'static str {
        match self {
            Self::KubeletClient | Self::KubeletServing => user::NODES_GROUP,
            Self::WicdClient => user::WICD_GROUP,
        }
    }

    /// Returns the extended key usage, in the spelling of `spec.usages`.
    pub fn purpose(self) -> &'static str {
        match self {
            Self::KubeletClient | Self::WicdClient => "client auth",
            Self::KubeletServing => "server auth",
        }
    }

    /// Returns a short name for object names, logs and messages.
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
    fn denied(message: impl Into<String>) -> Self {
        Self { reason: Reason::RequestDenied, message: message.into() }
    }
}

/// Returns untrusted text in a form that is safe for messages: escaped, quoted and truncated.
fn quoted(text: &str) -> String {
    const LONGEST: usize = 80;
    let short: String = text.chars().take(LONGEST).collect();
    let more = if short.len() < text.len() { "…" } else { "" };
    format!("{short:?}{more}")
}
