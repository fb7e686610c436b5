//! Certificates for Windows hosts: the approver, and the operator's own requests. The verdicts come from [`wnp_core::csr`].

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
mod test_requests;
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
pub use left::ManualRequests;
pub use renewals::Renewals;
pub use wnp_core::csr::{Claim, Kind, Outstanding, Verdict, verdict};

/// API clients of the approver.
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
pub struct OwnRequests {
    /// User name of the operator; see [`operator_user`].
    pub user: String,
    /// Requests that [`request_and_sign`] approves in this process.
    pub issuing: Issuing,
}

/// Triggers for another evaluation of requests, and the report of waiting requests.
pub struct ReevaluationTriggers {
    /// Report of the requests that only users may approve.
    pub left: ManualRequests,
    /// Trigger for all requests (by `notify_one`), when other verdicts have become possible.
    pub all: Arc<Notify>,
    /// Trigger for waiting requests, when more may be proven about a host.
    pub waiting: BoxStream<'static, ()>,
}

impl Default for ReevaluationTriggers {
    fn default() -> Self {
        Self { left: ManualRequests::default(), all: Arc::default(), waiting: stream::pending().boxed() }
    }
}

/// Source of host claims.
pub trait Hosts: Send + Sync + 'static {
    /// Returns the claim of a host by node name, from the caches. The caches must know every host of every pool from the first call: the request of
    /// an unknown host counts as foreign, and in wicd's name space as invalid.
    fn lookup(&self, node: &str) -> Option<Claim>;

    /// Returns the claim of a host after reading its Node from the API server. `kind` is the kind of the requested certificate, if the request's
    /// signer has one. Returns `None` if the host is unknown, or its Node is known to belong to another owner.
    ///
    /// # Errors
    /// Fails when the API server refuses a request or does not answer.
    fn confirm(&self, node: &str, kind: Option<Kind>) -> impl Future<Output = kube::Result<Option<Claim>>> + Send;
}
