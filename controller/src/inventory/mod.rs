//! Sources that hosts come from. The lists of all sources are treated in the same way (`wnp_core::inventory`).

pub(crate) mod wmco_sources;

mod files;
pub(crate) mod flux;
pub(crate) mod git;
pub(crate) mod hostname_probe;

use std::sync::Arc;

use crate::context::Context;
use flux::Flux;
use git::GitSources;
use hostname_probe::HostnameProbe;
use parking_lot::{Mutex, MutexGuard};
use wnp_core::inventory::ownership::HostOwners;

/// The sources of hosts that are read all the time, and what is known of their lists.
pub(crate) struct Sources {
    /// Record of which pool lists which hosts, for all pools that are reconciled at once.
    owners: Mutex<HostOwners>,
    /// Hosts that are asked for their names.
    pub names: HostnameProbe,
    /// Git repositories.
    pub git: GitSources,
    /// Artifacts of Flux.
    pub flux: Arc<Flux>,
}

impl Sources {
    /// Creates the sources, with nothing read.
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

    /// Locks the record of which pool lists which hosts. No pool is read or missed as long as the guard is held.
    pub(crate) fn owners(&self) -> MutexGuard<'_, HostOwners> {
        self.owners.lock()
    }
}
