//! Nodes of the legacy operator that keep its version, because a change would lose settings that they have.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use api::{WindowsInstance, WindowsNodePool, names::key, services::ServicesConfig};
use kube::ResourceExt;

use crate::context::Context;
use wnp_core::{
    render::Stored,
    rollout::lost_settings::{Loss, losses, unaccepted},
};

/// Versions of the legacy operator that hosts follow, and what people accept to lose.
pub struct Legacies {
    /// By version; an error in words for one that cannot be read.
    versions: HashMap<String, Result<Arc<Stored>, String>>,
    /// The pool's annotation.
    accepted: Option<String>,
}

impl Legacies {
    /// Reads these versions. One that is not stored says nothing that could be compared, and is left out.
    pub async fn read(versions: BTreeSet<String>, pool: &WindowsNodePool, cx: &Context) -> Self {
        let accepted = pool.annotations().get(key::ACCEPT_LOST_SETTINGS).cloned();
        let mut read = Self { versions: HashMap::new(), accepted };
        for version in versions {
            match cx.versions.get(&version).await {
                Ok(Some(stored)) => drop(read.versions.insert(version, Ok(stored))),
                Ok(None) => {}
                Err(error) => drop(read.versions.insert(version, Err(error.to_string()))),
            }
        }
        read
    }

    /// Settings that a node of this version would lose, and whose loss is not accepted. `accepted` is the instance's
    /// annotation.
    pub fn losses(&self, version: &str, accepted: Option<&String>, to: &ServicesConfig) -> Vec<Loss> {
        let all = match self.versions.get(version) {
            Some(Ok(stored)) => match stored.as_ref() {
                Stored::Legacy(from) => losses(from, to),
                Stored::Ours(_) => Vec::new(),
            },
            Some(Err(error)) => vec![Loss::Unreadable(error.clone())],
            None => Vec::new(),
        };
        unaccepted(&all, &[self.accepted.as_ref(), accepted])
    }

    /// The same for a host.
    pub fn losses_of(&self, instance: &WindowsInstance, to: &ServicesConfig) -> Vec<Loss> {
        let Some(version) = adopted_version(instance) else { return Vec::new() };
        self.losses(version, instance.annotations().get(key::ACCEPT_LOST_SETTINGS), to)
    }
}

/// The version of a node that was taken over and has not been changed since.
pub fn adopted_version(instance: &WindowsInstance) -> Option<&String> {
    let status = instance.status.as_ref().filter(|s| s.wicd.is_none())?;
    status.current_version.as_ref()
}
