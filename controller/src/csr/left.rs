//! Requests that are left to users, as the approver has found them last.

use std::sync::Arc;

use tokio::sync::watch;
use wnp_core::csr::pending::Pending;

/// Requests that a user may approve: one for each Node, the newest. Shared by the approver and those who report them.
#[derive(Clone, Debug)]
pub struct LeftToPeople(Arc<watch::Sender<Arc<Vec<Pending>>>>);

impl Default for LeftToPeople {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Arc::default())))
    }
}

impl LeftToPeople {
    /// Requests that wait now.
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
