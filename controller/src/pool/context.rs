//! Context of the pool controller.

use std::{ops::Deref, sync::Arc};

use crate::{
    cluster::release::Warning, context::Context, inventory::Sources, pool::disruption_budget::GlobalDisruptionBudget,
};

/// Context of the pool controller, with access to what all controllers share as if it were its own.
pub(crate) struct PoolContext {
    /// Context that all controllers share.
    pub shared: Arc<Context>,
    /// Sources of hosts.
    pub sources: Sources,
    /// Nodes that each pool disrupts, for the limit over all of them.
    pub disruptions: GlobalDisruptionBudget,
    /// Warning that every pool reports from the start, for example that the API server is older than supported.
    at_start: Option<Warning>,
}

impl PoolContext {
    /// Creates the context, with no source read.
    pub(crate) fn new(shared: Arc<Context>, at_start: Option<Warning>) -> Self {
        Self { sources: Sources::new(&shared), disruptions: GlobalDisruptionBudget::default(), shared, at_start }
    }

    /// Gives back the places of a pool that decides nothing now, except those of the nodes for which it has grants.
    pub(super) fn keep_disruptions(&self, pool: &str, granted: u32) {
        for waiting in self.disruptions.keep(pool, granted) {
            self.wake.pool(&waiting);
        }
    }

    /// Warning that every pool reports in addition to its own state.
    pub(crate) fn warning(&self) -> Option<Warning> {
        let release = &self.hosts.release;
        let of_facts = release.fault().or_else(|| release.waits()).or_else(|| release.problems());
        of_facts.or_else(|| self.cluster.sight.clock_warning()).or_else(|| self.at_start.clone())
    }
}

impl Deref for PoolContext {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.shared
    }
}
