//! Context that all controllers share.

pub(crate) mod wicd_reports;

use std::{ops::Deref, sync::Arc, time::Duration};

use api::{WindowsInstance, WindowsNodePool};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Client, Config, ResourceExt as _,
    client::ClientBuilder,
    runtime::reflector::{ObjectRef, Store},
};
use remote::Operator;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tower::{
    limit::{ConcurrencyLimit, ConcurrencyLimitLayer},
    timeout::{Timeout, TimeoutLayer},
};
use wnp_core::{
    render::{Found, Kept, Rendered, Stored, settled},
    rollout::{image_pull::MAX_PULLING, release_file::ReleaseFile},
};

use crate::{
    args::Run,
    caches::{
        instances::Instances,
        machines::Machines,
        unreadable::Unreadable,
        wicd_rights::WicdRights,
        write_tracker::{UnsavedStatuses, WriteTracker, WrittenNodes},
    },
    client::{cluster_view::ApiHealth, write_count},
    cluster::{
        self, ClusterError,
        release::{CurrentRelease, Release, ReleaseError},
        secrets::Secrets,
        versions::{VersionError, Versions},
    },
    context::wicd_reports::WicdReports,
    csr::{Issuing, ManualRequests, Renewals},
    drain::Drainer,
    runtime::{
        events::Events,
        metrics::Metrics,
        reconcile_trigger::ReconcileTrigger,
        ssh_slots::{Share, SshSlots},
    },
    wmco::{host_keys::WmcoHostKeys, lock::OtherOperator},
};

/// Maximum number of concurrent requests of one client. Each has its own TLS connection, because the client uses HTTP/1.1:
/// without a limit, 560 were open while a thousand hosts joined.
const REQUESTS: usize = 32;
/// Timeout from the start of a request until its response begins, including retries, so that an unreachable API server does not block all requests.
const ANSWER: Duration = Duration::from_secs(75);
/// Timeout for the next bytes of a response. It is longer than a watch, which may receive nothing until it ends after 290 s.
const SILENCE: Duration = Duration::from_secs(295);
/// Maximum number of hosts that are examined at once without a grant. They do not take the SSH connections of granted operations.
const LOOKS: usize = 16;
/// Maximum number of hosts of one pool that are examined at once without a grant.
const LOOKS_OF_ONE_POOL: usize = 4;
/// Maximum number of hosts of all pools that pull images at once.
const PULLS: usize = 200;
/// Maximum share of one pool in the SSH connections for granted operations: nine times the free ones, for example 90 of 100. So a pool whose hosts
/// all hang leaves connections to other pools.
const CONNECTIONS_OF_ONE_POOL: Share = Share::ForEachFree(9);
/// Label selector of the Nodes that are watched.
pub(crate) const WINDOWS_NODES: &str = "kubernetes.io/os=windows";
/// Label selector of the Nodes that are not watched.
pub(crate) const OTHER_NODES: &str = "kubernetes.io/os!=windows";

/// Connection of this process to a cluster.
pub(crate) struct Cluster {
    /// Configuration of the connection to the API server.
    pub config: Config,
    /// Client for reads, and for writes that may be retried.
    pub client: Client,
    /// Client without automatic retries, for evictions and for writes that must not be repeated.
    pub direct: Client,
    /// Client for the watch of certificate requests. After a mass join, their list has hundreds of pages, which must not wait behind other requests.
    pub watch_requests: Client,
    /// Health of the API server, as observed from its responses to all clients.
    pub sight: Arc<ApiHealth>,
}

impl Cluster {
    /// Creates the clients for a configuration. Writes are counted in the metrics.
    ///
    /// # Errors
    /// Fails if the configuration cannot be used.
    pub(crate) fn new(config: Config, metrics: &Arc<Metrics>) -> kube::Result<Self> {
        let mut direct = config.clone();
        direct.default_retry = false;
        let sight = Arc::<ApiHealth>::default();
        Ok(Self {
            client: client(config.clone(), metrics, &sight)?,
            direct: client(direct, metrics, &sight)?,
            watch_requests: client(config.clone(), metrics, &sight)?,
            config,
            sight,
        })
    }

    /// Returns the id of this cluster: the UID of the Namespace `kube-system`, which exists as long as the cluster.
    ///
    /// # Errors
    /// Fails if the Namespace cannot be read.
    pub(crate) async fn id(&self) -> Result<String, ReleaseError> {
        Ok(cluster::id(&self.client).await?)
    }

    /// Creates the connection to a fake API server.
    #[cfg(test)]
    pub(crate) fn fake(client: Client) -> Self {
        Self {
            config: Config::new(http::Uri::from_static("http://localhost")),
            direct: client.clone(),
            watch_requests: client.clone(),
            client,
            sight: Arc::default(),
        }
    }

    /// Returns the release that hosts get from this operator in this cluster.
    ///
    /// # Errors
    /// Fails if the release cannot be loaded or rendered, or the facts of the cluster cannot be read.
    pub(crate) async fn release(&self, args: &Run) -> Result<Release, ReleaseError> {
        let (kept, found) = self.facts(args).await?;
        Release::begin(kept.as_ref(), found, args)
    }

    /// Returns the release that a release file announces, rendered with the facts of this cluster.
    ///
    /// # Errors
    /// Fails if the release cannot be rendered, or the facts of the cluster cannot be read.
    pub(crate) async fn announced(&self, args: &Run, file: &ReleaseFile) -> Result<Release, ReleaseError> {
        let (kept, found) = self.facts(args).await?;
        Release::announced(settled(kept.as_ref(), found), args, file)
    }

    /// Returns the stored facts of the cluster, which were last in force, and the facts that are detected now.
    async fn facts(&self, args: &Run) -> Result<(Option<Kept>, Found), ClusterError> {
        let found = cluster::discover(&self.client, &self.config, args).await?;
        Ok((cluster::kept::load(&self.client, &args.namespace).await?, found))
    }
}

/// Returns a client with the limits of [`bounded`].
fn client(mut config: Config, metrics: &Arc<Metrics>, sight: &Arc<ApiHealth>) -> kube::Result<Client> {
    config.read_timeout = Some(SILENCE);
    config.reset_reader_on_write = true;
    let bounded = bounded(ClientBuilder::try_from(config)?, ANSWER);
    Ok(bounded.with_layer(&sight.layer()).with_layer(&write_count::layer(metrics.clone())).build())
}

/// Limits a client to [`REQUESTS`] concurrent requests in the order of their arrival, each with a timeout. A watch counts until its response begins.
fn bounded<S>(builder: ClientBuilder<S>, answer: Duration) -> ClientBuilder<ConcurrencyLimit<Timeout<S>>> {
    builder.with_layer(&TimeoutLayer::new(answer)).with_layer(&ConcurrencyLimitLayer::new(REQUESTS))
}

/// Caches of the objects that are watched in the cluster.
pub(crate) struct Caches {
    pub pools: Store<WindowsNodePool>,
    pub instances: Instances,
    pub nodes: Store<Node>,
    pub machines: Machines,
    /// Objects that are in none of the caches because they cannot be read.
    pub unreadable: Unreadable,
}

/// Settings and identity of this process.
pub(crate) struct Process {
    pub args: Run,
    pub identity: String,
    /// Epoch of the Lease. wicd refuses requests with a lower epoch, so that an earlier leader cannot change a host.
    pub epoch: i64,
    pub metrics: Arc<Metrics>,
    /// Token that stops all tasks of the process.
    pub stop: CancellationToken,
    /// True if the process is a command that reads the state once, and waits for slow sources.
    pub is_one_shot: bool,
}

/// Cluster in which the operator runs.
pub(crate) struct ThisCluster {
    /// Clients and configuration of the cluster.
    reached: Cluster,
    /// Id of the cluster. The operator does not change a host whose record names another cluster.
    pub id: String,
}

impl Deref for ThisCluster {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.reached
    }
}

/// Resources for the work on hosts.
pub(crate) struct Hosts {
    /// Reader of the Secrets with private keys and known hosts.
    pub secrets: Secrets,
    /// Host keys that the legacy operator has recorded.
    pub wmco_host_keys: WmcoHostKeys,
    /// Identity of the operator and its files, for sessions with hosts.
    pub operator: Arc<Operator>,
    pub release: CurrentRelease,
    pub versions: Versions,
    pub drainer: Drainer,
    /// Limit of open SSH connections for granted operations.
    pub connections: SshSlots,
    /// Limit of hosts that are examined at once without a grant.
    pub looks: SshSlots,
    /// Limit of hosts that pull images at once. A pull takes minutes, and no granted operation must wait for it.
    pub pulls: SshSlots,
}

/// Recent and pending writes of this process, so that no decision is based on an older state in the caches.
#[derive(Default)]
pub(crate) struct Writes {
    pub instances: WriteTracker,
    pub grants: WriteTracker,
    pub nodes: WrittenNodes,
    /// Statuses that are kept in memory while their instances wait for their Nodes.
    pub unsaved: UnsavedStatuses,
}

/// Rights, certificates and reports of wicd on the hosts.
pub(crate) struct Wicd {
    /// Decision whether wicd may get rights and certificates.
    pub rights: WicdRights,
    /// Expiry of the certificates that wicd has renewed, by node.
    pub renewals: Renewals,
    /// Last reports of wicd.
    pub reports: WicdReports,
    /// First certificates, also of kubelet, that this process is issuing.
    pub issuing: Issuing,
    /// Notification for the certificate approver to judge pending requests again.
    pub judge_again: Arc<Notify>,
    /// Certificate requests of nodes on which users must decide.
    pub manual_requests: ManualRequests,
}

/// Context that needs no release: for the certificate approver and the watches.
pub(crate) struct Base {
    pub process: Process,
    pub events: Events,
    pub cluster: ThisCluster,
    pub caches: Caches,
    pub wicd: Wicd,
    /// State of the legacy operator, which must not run at the same time.
    pub other_operator: OtherOperator,
    /// Trigger of reconciles of pools.
    pub wake: ReconcileTrigger,
}

impl Base {
    /// Creates the context from its parts.
    pub(crate) fn new(process: Process, cluster: Cluster, cluster_id: String, caches: Caches) -> Self {
        let events = Events::new(cluster.client.clone(), &process.identity);
        // A command that reads the state once issues no certificate, and begins no operation.
        let (rights, other_operator) = if process.is_one_shot {
            (WicdRights::default(), OtherOperator::default())
        } else {
            (WicdRights::unknown(), OtherOperator::unknown())
        };
        Self {
            process,
            events,
            cluster: ThisCluster { reached: cluster, id: cluster_id },
            caches,
            wicd: Wicd {
                rights,
                renewals: Renewals::default(),
                reports: WicdReports::default(),
                issuing: Issuing::default(),
                judge_again: Arc::new(Notify::new()),
                manual_requests: ManualRequests::default(),
            },
            other_operator,
            wake: ReconcileTrigger::default(),
        }
    }

    /// Triggers a reconcile of each pool.
    pub(crate) fn wake_all_pools(&self) {
        self.wake.pools(self.caches.pools.state().iter().map(|pool| pool.name_any()));
    }

    /// Returns the Node with this name from the cache.
    pub(crate) fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.caches.nodes.get(&ObjectRef::new(name))
    }
}

/// Context that all controllers share: [`Base`], to which it dereferences, and the resources for the work on hosts.
pub(crate) struct Context {
    pub base: Arc<Base>,
    pub hosts: Hosts,
    pub writes: Writes,
}

impl Deref for Context {
    type Target = Base;

    fn deref(&self) -> &Base {
        &self.base
    }
}

impl Context {
    /// Creates the context with the release that hosts get.
    pub(crate) fn new(base: Arc<Base>, release: Release) -> Self {
        let Base { process, events, cluster, .. } = &*base;
        let client = &cluster.client;
        let namespace = &process.args.namespace;
        let hosts = Hosts {
            secrets: Secrets::new(client.clone(), namespace),
            wmco_host_keys: WmcoHostKeys::new(client.clone(), namespace),
            // A command that reads the state once replaces no version, so it needs no events.
            versions: Versions::new(client.clone(), namespace, (!process.is_one_shot).then(|| events.clone())),
            operator: Arc::new(Operator {
                cluster_id: cluster.id.clone(),
                epoch: process.epoch,
                wicd: release.wicd.clone(),
                payload: release.payload.clone(),
                traffic: process.metrics.traffic.clone(),
            }),
            release: CurrentRelease::new(release),
            drainer: Drainer::new(cluster.direct.clone()),
            connections: SshSlots::new(process.args.max_connections, CONNECTIONS_OF_ONE_POOL),
            looks: SshSlots::new(LOOKS, Share::AtMost(LOOKS_OF_ONE_POOL)),
            pulls: SshSlots::new(PULLS, Share::AtMost(MAX_PULLING as usize)),
        };
        Self { base, hosts, writes: Writes::default() }
    }

    /// Returns the rendered configuration of a stored version. Returns `None` if the version is not stored, or was not created by this operator.
    ///
    /// # Errors
    /// Fails if the version cannot be read.
    pub(crate) async fn own_version(&self, version: &str) -> Result<Option<Arc<Rendered>>, VersionError> {
        Ok(match self.hosts.versions.get(version).await?.as_deref() {
            Some(Stored::Ours(rendered)) => Some(Arc::new(rendered.clone())),
            _ => None,
        })
    }

    /// Returns the pool of an instance from the cache.
    pub(crate) fn pool_of(&self, instance: &WindowsInstance) -> Option<Arc<WindowsNodePool>> {
        self.caches.pools.get(&ObjectRef::new(&instance.spec.pool_ref.name))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use http::{Request, Response};
    use kube::client::Body;
    use tokio::net::TcpListener;
    use tower::service_fn;

    use super::*;

    /// The machine of an API server may vanish without closing its connections.
    #[tokio::test]
    async fn requests_that_are_never_answered_do_not_stop_all_others() {
        let served = Arc::new(AtomicUsize::new(0));
        let served_of = served.clone();
        let service = service_fn(move |_: Request<Body>| {
            let number = served_of.fetch_add(1, Ordering::Relaxed);
            async move {
                if number < REQUESTS {
                    std::future::pending::<()>().await;
                }
                Ok::<_, Infallible>(Response::new(Body::empty()))
            }
        });
        let client = bounded(ClientBuilder::new(service, "default"), Duration::from_millis(100)).build();
        let ask = || Request::get("/api").body(Vec::new()).unwrap();
        let lost: Vec<_> = (0..REQUESTS)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move { client.request_text(ask()).await })
            })
            .collect();
        while served.load(Ordering::Relaxed) < REQUESTS {
            tokio::task::yield_now().await;
        }
        assert!(client.request_text(ask()).await.is_ok());
        for request in lost {
            assert!(request.await.unwrap().is_err());
        }
    }

    #[tokio::test]
    async fn the_list_of_certificate_requests_does_not_wait_behind_all_others() {
        let api_server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", api_server.local_addr().unwrap());
        let cluster = Cluster::new(Config::new(address.parse().unwrap()), &Arc::default()).unwrap();
        let ask = |client: &Client| {
            let client = client.clone();
            tokio::spawn(async move { client.request_text(Request::get("/api").body(Vec::new()).unwrap()).await })
        };
        let all: Vec<_> = (0..=REQUESTS).map(|_| ask(&cluster.client)).collect();
        let mut unanswered = Vec::new();
        while unanswered.len() < REQUESTS {
            unanswered.push(api_server.accept().await.unwrap());
        }
        let list = ask(&cluster.watch_requests);
        let connected = tokio::time::timeout(Duration::from_secs(20), api_server.accept()).await;
        assert!(connected.is_ok_and(|accepted| accepted.is_ok()));
        all.iter().chain([&list]).for_each(tokio::task::JoinHandle::abort);
    }
}
