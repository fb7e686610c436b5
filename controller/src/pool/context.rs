//! What the pool controller uses.

use std::{ops::Deref, sync::Arc};

use crate::{context::Context, disruption_budget::GlobalDisruptionBudget, inventory::Sources};

/// What the pool controller uses beside what all controllers share, which it gives access to as if it were its own.
pub(crate) struct PoolContext {
    /// What all controllers share.
    pub shared: Arc<Context>,
    /// Where hosts come from.
    pub sources: Sources,
    /// Nodes that each pool disrupts, for the limit over all of them.
    pub disruptions: GlobalDisruptionBudget,
    /// Reason and message that every pool reports, for example that the API server is older than supported.
    pub warning: Option<(&'static str, String)>,
}

impl PoolContext {
    /// Begins with no source read.
    pub(crate) fn new(shared: Arc<Context>, warning: Option<(&'static str, String)>) -> Self {
        Self { sources: Sources::new(&shared), disruptions: GlobalDisruptionBudget::default(), shared, warning }
    }
}

impl Deref for PoolContext {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.shared
    }
}
