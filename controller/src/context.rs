//! What all controllers share.

use std::sync::Arc;

use api::{WindowsInstance, WindowsNodePool};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Client, Config,
    client::ClientBuilder,
    runtime::reflector::{ObjectRef, Store},
};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tower::limit::ConcurrencyLimitLayer;

use crate::{
    args::Run,
    csr::Renewals,
    drain::Drainer,
    events::Events,
    legacy_host_keys::LegacyHostKeys,
    machines::Machines,
    metrics::Metrics,
    reconcile_trigger::ReconcileTrigger,
    release::{Release, ReleaseError},
    secrets::Secrets,
    unreadable::Unreadable,
    versions::Versions,
    wicd_rights::WicdRights,
    write_tracker::WriteTracker,
};

/// Requests that are on their way at once from one client. Each has a TLS connection of its own, because the client speaks
/// HTTP/1.1: without a limit, 560 were open while a thousand hosts joined.
const REQUESTS: usize = 32;
/// Hosts that may be examined at once without a grant. None of them waits for a place among the connections of granted work.
const LOOKS: usize = 16;
/// Which Nodes are watched.
pub const WINDOWS_NODES: &str = "kubernetes.io/os=windows";

/// The cluster, as this process reaches it.
pub struct Cluster {
    config: Config,
    /// For reads and for writes that may be repeated.
    pub client: Client,
    /// Repeats nothing by itself: for evictions, and for writes that must not be repeated.
    pub direct: Client,
}

impl Cluster {
    /// That of a configuration.
    ///
    /// # Errors
    /// When the configuration is of no use.
    pub fn new(config: Config) -> kube::Result<Self> {
        let mut direct = config.clone();
        direct.default_retry = false;
        Ok(Self { client: limited(config.clone())?, direct: limited(direct)?, config })
    }

    /// Id of this cluster: UID of the Namespace `kube-system`, which lives as long as the cluster.
    ///
    /// # Errors
    /// When the API server does not show it.
    pub async fn id(&self) -> Result<String, ReleaseError> {
        Ok(crate::cluster::id(&self.client).await?)
    }

    /// One that answers from a script.
    #[cfg(test)]
    pub fn fake(client: Client) -> Self {
        Self { config: Config::new(http::Uri::from_static("http://localhost")), direct: client.clone(), client }
    }

    /// What hosts get from this operator in this cluster.
    ///
    /// # Errors
    /// When there is nothing to give, or the cluster cannot be made out.
    pub async fn release(&self, args: &Run) -> Result<Release, ReleaseError> {
        let cluster = crate::cluster::discover(&self.client, &self.config, args).await?;
        Release::load(cluster, args)
    }
}

/// A client that asks the API server with at most [`REQUESTS`] concurrent requests. Watches do not count.
fn limited(config: Config) -> kube::Result<Client> {
    Ok(ClientBuilder::try_from(config)?.with_layer(&ConcurrencyLimitLayer::new(REQUESTS)).build())
}

/// What is seen of the cluster all the time.
pub struct Caches {
    /// Pools.
    pub pools: Store<WindowsNodePool>,
    /// Instances.
    pub instances: Store<WindowsInstance>,
    /// Windows Nodes.
    pub nodes: Store<Node>,
    /// What is in none of them because it cannot be read.
    pub unreadable: Unreadable,
}

/// Identity of this process.
pub struct Process {
    /// Settings.
    pub args: Run,
    /// Name.
    pub identity: String,
    /// Epoch of the Lease.
    pub epoch: i64,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Ends everything.
    pub stop: CancellationToken,
    /// Whether it is a command that looks once, and waits for sources that take a while.
    pub looks_once: bool,
}

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
    /// Id of this cluster. A host that is on record as another cluster's is not touched.
    pub cluster_id: String,
    /// Pools.
    pub pools: Store<WindowsNodePool>,
    /// Instances.
    pub instances: Store<WindowsInstance>,
    /// What this process has written of instances.
    pub written: WriteTracker,
    /// Grants require them: a decision about a disruption uses no older state.
    pub granted: WriteTracker,
    /// The stored versions of what hosts get.
    pub versions: Versions,
    /// Whether the hosts' daemons may have rights and certificates.
    pub wicd_rights: WicdRights,
    /// Windows Nodes.
    pub nodes: Store<Node>,
    /// What is in no cache because it cannot be read.
    pub unreadable: Unreadable,
    /// Events.
    pub events: Events,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Keys and known hosts.
    pub secrets: Secrets,
    /// Host keys that the legacy operator has seen.
    pub legacy_host_keys: LegacyHostKeys,
    /// What hosts get.
    pub release: Release,
    /// Has pools look again.
    pub wake: ReconcileTrigger,
    /// Machines.
    pub machines: Machines,
    /// Drains.
    pub drainer: Drainer,
    /// SSH connections that may be open at once.
    pub connections: Arc<Semaphore>,
    /// Hosts that may be examined at once without a grant.
    pub looks: Semaphore,
    /// Notifies the certificate approver that a host has been proven.
    pub proven: Arc<Notify>,
    /// Certificates that wicd has renewed.
    pub renewals: Renewals,
    /// Ends everything.
    pub stop: CancellationToken,
    /// Whether this is a command that looks once, and waits for sources that take a while.
    pub looks_once: bool,
}

impl Context {
    /// Puts it together.
    pub fn new(process: Process, cluster: Cluster, cluster_id: String, caches: Caches, release: Release) -> Self {
        let Process { args, identity, epoch, metrics, stop, looks_once } = process;
        let Cluster { client, direct, .. } = cluster;
        let Caches { pools, instances, nodes, unreadable } = caches;
        let wake = ReconcileTrigger::default();
        let events = Events::new(client.clone(), &identity, metrics.clone());
        Self {
            secrets: Secrets::new(client.clone(), &args.namespace),
            legacy_host_keys: LegacyHostKeys::new(client.clone(), &args.namespace),
            // A command that looks once replaces nothing.
            versions: Versions::new(client.clone(), &args.namespace, (!looks_once).then(|| events.clone())),
            events,
            drainer: Drainer::new(direct.clone()),
            // A command that looks once issues nothing.
            wicd_rights: if looks_once { WicdRights::default() } else { WicdRights::unknown() },
            connections: Arc::new(Semaphore::new(args.max_connections)),
            looks: Semaphore::new(LOOKS),
            proven: Arc::new(Notify::new()),
            renewals: Renewals::default(),
            written: WriteTracker::default(),
            granted: WriteTracker::default(),
            wake,
            machines: Machines::default(),
            client,
            direct,
            args,
            epoch,
            cluster_id,
            pools,
            instances,
            nodes,
            unreadable,
            metrics,
            release,
            stop,
            looks_once,
        }
    }

    /// The pool of an instance.
    pub fn pool_of(&self, instance: &WindowsInstance) -> Option<Arc<WindowsNodePool>> {
        self.pools.get(&ObjectRef::new(&instance.spec.pool_ref.name))
    }

    /// The Node of that name, as last seen.
    pub fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.get(&ObjectRef::new(name))
    }
}
