//! Certificates for Windows hosts: the approver, and the operator's own requests. [`wnp_core::csr`] decides.

mod approver;
mod index;
mod issue;
mod issuing;
mod left;
mod open;
mod rate;
mod renewals;

#[cfg(test)]
#[path = "../../core/src/csr/forge.rs"]
#[expect(dead_code, reason = "shared with the cases of the policy, which forge more")]
mod forge;
#[cfg(test)]
mod swapped_tests;
#[cfg(test)]
mod together_tests;

use std::sync::Arc;

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use kube::Client;
use tokio::sync::Notify;

pub use approver::run;
pub use issue::{CsrError, operator_user, request_and_sign};
pub use issuing::Issuing;
pub use left::LeftToPeople;
pub use renewals::Renewals;
pub use wnp_core::csr::{Claim, Kind, Outstanding, Verdict, verdict};

/// Clients of the approver for the API server.
pub struct Clients {
    /// Client for the watch.
    pub watch: Client,
    /// Client for approvals and denials.
    pub decide: Client,
}

impl From<Client> for Clients {
    fn from(client: Client) -> Self {
        Self { watch: client.clone(), decide: client }
    }
}

/// Identity of the operator's own requests.
#[derive(Clone, Debug)]
pub struct Own {
    /// User of the operator; see [`operator_user`].
    pub user: String,
    /// Requests that are left to [`request_and_sign`] in this process.
    pub issuing: Issuing,
}

/// Triggers by which the approver judges requests again, and its report of those that wait.
pub struct Again {
    /// Report of the requests that are left to users.
    pub left: LeftToPeople,
    /// Trigger by `notify_one` for all requests, because other verdicts are possible.
    pub all: Arc<Notify>,
    /// Trigger for waiting requests, because more may be proven of a host.
    pub waiting: BoxStream<'static, ()>,
}

impl Default for Again {
    fn default() -> Self {
        Self { left: LeftToPeople::default(), all: Arc::default(), waiting: stream::pending().boxed() }
    }
}

/// Source from which the approver learns about hosts.
pub trait Hosts: Send + Sync + 'static {
    /// Returns the claim of the host of a node name, from the caches. They must know every host of every pool from the first call: a host that they
    /// do not know counts as foreign, and in wicd's name space as wrong.
    fn lookup(&self, node: &str) -> Option<Claim>;

    /// Looks up the host after asking the API server for the Node of that name, for a verdict on a request to the signer of `kind`. `None` also if
    /// the Node does not belong to the host.
    ///
    /// # Errors
    /// Fails when the API server refuses a request or does not answer.
    fn confirm(&self, node: &str, kind: Option<Kind>) -> impl Future<Output = kube::Result<Option<Claim>>> + Send;
}
