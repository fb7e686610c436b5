//! Where hosts come from: the sources that are read. What becomes of their lists is the same for all (`wnp_core::inventory`).

pub(crate) mod claims;
mod files;
pub(crate) mod flux;
pub(crate) mod git;
pub(crate) mod hostname_probe;

use std::sync::Arc;

use crate::context::Context;
use claims::Claims;
use flux::Flux;
use git::GitSources;
use hostname_probe::HostnameProbe;

/// The sources of hosts that are read all the time, and what is known of their lists.
pub(crate) struct Sources {
    /// Which pool lists which hosts.
    pub claims: Claims,
    /// Hosts that are asked for their names.
    pub names: HostnameProbe,
    /// Git repositories.
    pub git: GitSources,
    /// Artifacts of Flux.
    pub flux: Arc<Flux>,
}

impl Sources {
    /// Begins with nothing read.
    pub(crate) fn new(cx: &Context) -> Self {
        let git = GitSources::new(
            cx.cluster.client.clone(),
            &cx.process.args,
            cx.wake.clone(),
            cx.process.metrics.clone(),
            cx.process.stop.clone(),
        );
        Self {
            claims: Claims::default(),
            names: HostnameProbe::default(),
            git,
            flux: Arc::new(Flux::new(&cx.process.args)),
        }
    }
}
