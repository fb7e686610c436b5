//! Context of the pool controller.

use std::{ops::Deref, sync::Arc};

use crate::{
    cluster::release::Warning, context::Context, inventory::Sources, pool::disruption_budget::GlobalDisruptionBudget,
};

/// Context of the pool controller. Dereferences to the context that all controllers share.
pub(crate) struct PoolContext {
    /// Context that all controllers share.
    pub shared: Arc<Context>,
    /// Sources of hosts.
    pub sources: Sources,
    /// Number of nodes that each pool disrupts, for the limits that pools share.
    pub disruptions: GlobalDisruptionBudget,
    /// Warning that every pool reports from the start, for example about an unsupported API server.
    at_start: Option<Warning>,
}

impl PoolContext {
    /// Creates the context. No source is read yet.
    pub(crate) fn new(shared: Arc<Context>, at_start: Option<Warning>) -> Self {
        Self { sources: Sources::new(&shared), disruptions: GlobalDisruptionBudget::default(), shared, at_start }
    }

    /// Releases the disruption slots of a pool that grants nothing in this reconcile, except those of its existing grants.
    pub(super) fn release_ungranted_disruptions(&self, pool: &str, granted: u32) {
        self.wake.pools(self.disruptions.keep(pool, granted));
    }

    /// Returns the warning that every pool reports in addition to its own state.
    pub(crate) fn warning(&self) -> Option<Warning> {
        let release = &self.hosts.release;
        let of_release = release.fault().or_else(|| release.waits()).or_else(|| release.problems());
        of_release.or_else(|| self.cluster.sight.clock_warning()).or_else(|| self.at_start.clone())
    }
}

impl Deref for PoolContext {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.shared
    }
}
