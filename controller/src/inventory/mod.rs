//! Sources of hosts. `wnp_core::inventory` processes the lists of all sources in the same way.

pub(crate) mod wmco_sources;

mod files;
pub(crate) mod flux;
pub(crate) mod git;
pub(crate) mod hostname_probe;

use std::sync::Arc;

use crate::context::Context;
use api::Reason;
use flux::Flux;
use git::GitSources;
use hostname_probe::HostnameProbe;
use parking_lot::{Mutex, MutexGuard};
use wnp_core::inventory::{SourceError, ownership::HostOwners};

/// Returns an error that may disappear without a change by a user.
fn temporary(reason: Reason, message: String) -> SourceError {
    SourceError { reason, message, stalls: false }
}

/// Sources of hosts that are read continuously, with the state of their lists.
pub(crate) struct Sources {
    /// Record of the hosts that each pool lists, shared by pools that are reconciled concurrently.
    owners: Mutex<HostOwners>,
    /// Probe for the names of hosts.
    pub names: HostnameProbe,
    /// Git repositories.
    pub git: GitSources,
    /// Flux artifacts.
    pub flux: Arc<Flux>,
}

impl Sources {
    /// Creates the sources without reading any of them.
    pub(crate) fn new(cx: &Context) -> Self {
        let git = GitSources::new(
            cx.cluster.client.clone(),
            &cx.process.args,
            cx.wake.clone(),
            cx.process.metrics.clone(),
            cx.process.stop.clone(),
        );
        Self {
            owners: Mutex::default(),
            names: HostnameProbe::default(),
            git,
            flux: Arc::new(Flux::new(&cx.process.args)),
        }
    }

    /// Locks the record of the hosts that each pool lists. While the guard is held, no list of another pool is recorded.
    pub(crate) fn owners(&self) -> MutexGuard<'_, HostOwners> {
        self.owners.lock()
    }
}
