//! What the pool controller uses.

use std::{ops::Deref, sync::Arc};

use crate::{
    cluster::release::Warning, context::Context, inventory::Sources, pool::disruption_budget::GlobalDisruptionBudget,
};

/// What the pool controller uses beside what all controllers share, which it gives access to as if it were its own.
pub(crate) struct PoolContext {
    /// What all controllers share.
    pub shared: Arc<Context>,
    /// Where hosts come from.
    pub sources: Sources,
    /// Nodes that each pool disrupts, for the limit over all of them.
    pub disruptions: GlobalDisruptionBudget,
    /// What every pool reports from the start, for example that the API server is older than supported.
    at_start: Option<Warning>,
}

impl PoolContext {
    /// Begins with no source read.
    pub(crate) fn new(shared: Arc<Context>, at_start: Option<Warning>) -> Self {
        Self { sources: Sources::new(&shared), disruptions: GlobalDisruptionBudget::default(), shared, at_start }
    }

    /// What every pool reports beside its own state.
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
