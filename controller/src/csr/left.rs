//! Requests that the operator cannot decide yet and that users may approve meanwhile, as the approver last found them.

use std::sync::Arc;

use tokio::sync::watch;
use wnp_core::csr::pending::Pending;

/// Requests that users may approve meanwhile, the newest one of each Node. Shared by the approver and the pools, which report them.
#[derive(Clone, Debug)]
pub struct ManualRequests(Arc<watch::Sender<Arc<Vec<Pending>>>>);

impl Default for ManualRequests {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Arc::default())))
    }
}

impl ManualRequests {
    /// Returns the requests that users may approve now.
    pub fn all(&self) -> Arc<Vec<Pending>> {
        self.0.borrow().clone()
    }

    /// Returns a receiver that is notified of changes.
    pub fn changes(&self) -> watch::Receiver<Arc<Vec<Pending>>> {
        self.0.subscribe()
    }

    pub(super) fn replace(&self, all: Vec<Pending>) {
        self.0.send_if_modified(|known| {
            let is_new = **known != all;
            if is_new {
                *known = Arc::new(all);
            }
            is_new
        });
    }
}
