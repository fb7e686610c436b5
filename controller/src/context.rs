//! What all controllers share.

use std::sync::Arc;

use api::{WindowsInstance, WindowsNodePool};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Client,
    runtime::reflector::{ObjectRef, Store},
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    args::Run, drain::Drainer, events::Events, instance::Written, metrics::Metrics, pool::Disrupting, release::Release,
    secrets::Secrets, versions::Versions,
};

/// What all controllers share.
pub struct Context {
    /// For reads and for writes that may be repeated.
    pub client: Client,
    /// Repeats nothing by itself: for evictions, and for writes that must not be repeated.
    pub direct: Client,
    /// Settings.
    pub args: Run,
    /// Epoch of the Lease.
    pub epoch: i64,
    /// Pools.
    pub pools: Store<WindowsNodePool>,
    /// Instances.
    pub instances: Store<WindowsInstance>,
    /// What this process has written of instances.
    pub written: Written,
    /// The grants among it: who may be disturbed is decided on nothing older.
    pub granted: Written,
    /// The stored versions of what hosts get.
    pub versions: Versions,
    /// Nodes that each pool disturbs, for the limit over all of them.
    pub disrupting: Disrupting,
    /// Windows Nodes.
    pub nodes: Store<Node>,
    /// Events.
    pub events: Events,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Keys and known hosts.
    pub secrets: Secrets,
    /// What hosts get.
    pub release: Release,
    /// Drains.
    pub drainer: Drainer,
    /// SSH connections that may be open at once.
    pub connections: Arc<Semaphore>,
    /// Tells the certificate approver that a host has been proven.
    pub proven: Arc<tokio::sync::Notify>,
    /// Something that people should know of this cluster, as an API server that is older than supported.
    pub warning: Option<(&'static str, String)>,
    /// Ends everything.
    pub stop: CancellationToken,
}

impl Context {
    /// The pool of an instance.
    pub fn pool_of(&self, instance: &WindowsInstance) -> Option<Arc<WindowsNodePool>> {
        self.pools.get(&ObjectRef::new(&instance.spec.pool_ref.name))
    }

    /// The Node of that name, as last seen.
    pub fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.get(&ObjectRef::new(name))
    }
}
