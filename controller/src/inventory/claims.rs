//! Which pool lists which hosts, for all pools that are reconciled at once.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use api::WindowsNodePool;
use wnp_core::inventory::ownership::{Begun, HostOwners, Reading, Unread};

/// [`HostOwners`], shared.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<HostOwners>);

impl Claims {
    /// As [`HostOwners::begin`].
    pub(crate) fn begin(&self, pool: &str) -> Begun {
        self.lock().begin(pool)
    }

    /// As [`HostOwners::end`].
    pub(crate) fn end(&self, pool: &WindowsNodePool, begun: Begun, reading: Reading) -> Vec<String> {
        self.lock().end(pool, begun, reading)
    }

    /// As [`HostOwners::forget`].
    pub(crate) fn forget(&self, pool: &str) {
        self.lock().forget(pool);
    }

    /// As [`HostOwners::unread`].
    pub(crate) fn unread(&self, pool: &str, missed: &BTreeSet<String>, pools: &[Arc<WindowsNodePool>]) -> Unread {
        self.lock().unread(pool, missed, pools)
    }

    /// What is known now. No pool is read or missed meanwhile.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HostOwners> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
