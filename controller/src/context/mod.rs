//! Context that all controllers share.

pub(crate) mod wicd_reports;

use std::{ops::Deref, sync::Arc, time::Duration};

use api::{WindowsInstance, WindowsNodePool};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Client, Config,
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
    render::{Found, Kept, settled},
    rollout::{image_pull::MAX_PULLING, release_file::ReleaseFile},
};

use crate::{
    args::Run,
    caches::{
        instances::Instances,
        machines::Machines,
        unreadable::Unreadable,
        wicd_rights::WicdRights,
        write_tracker::{WriteTracker, WrittenNodes},
    },
    client::{cluster_view::Sight, write_count},
    cluster::{
        self, ClusterError,
        release::{CurrentRelease, Release, ReleaseError},
        secrets::Secrets,
        versions::Versions,
    },
    context::wicd_reports::WicdReports,
    csr::{Issuing, LeftToPeople, Renewals},
    drain::Drainer,
    runtime::{
        events::Events,
        metrics::Metrics,
        reconcile_trigger::ReconcileTrigger,
        ssh_slots::{Places, Share},
    },
    wmco::{host_keys::WmcoHostKeys, lock::OtherOperator},
};

/// Requests that are on their way at once from one client. Each has a TLS connection of its own, because the client speaks
/// HTTP/1.1: without a limit, 560 were open while a thousand hosts joined.
const REQUESTS: usize = 32;
/// Time from when a request is sent until its answer begins, with all repetitions: an API server that is gone must not hold all places forever.
const ANSWER: Duration = Duration::from_secs(75);
/// Time until the next bytes of an answer. A watch, which may be silent, ends after 290 s.
const SILENCE: Duration = Duration::from_secs(295);
/// Hosts that may be examined at once without a grant. None of them waits for a place among the connections of granted work.
const LOOKS: usize = 16;
/// Hosts of one pool that may be examined at once without a grant.
const LOOKS_OF_ONE_POOL: usize = 4;
/// Hosts of all pools that pull images at once.
const PULLS: usize = 200;
/// Share of one pool in the SSH connections of granted work: of 100 it takes 90 at most, however many of its hosts hang.
const CONNECTIONS_OF_ONE_POOL: Share = Share::ForEachFree(9);
/// Label selector of the Nodes that are watched.
pub(crate) const WINDOWS_NODES: &str = "kubernetes.io/os=windows";
/// Label selector of the Nodes that are not watched.
pub(crate) const OTHER_NODES: &str = "kubernetes.io/os!=windows";

/// The cluster, as this process reaches it.
pub(crate) struct Cluster {
    /// Configuration by which the API server is reached.
    pub config: Config,
    /// Client for reads and for writes that may be repeated.
    pub client: Client,
    /// Client that repeats nothing by itself: for evictions, and for writes that must not be repeated.
    pub direct: Client,
    /// Client for the watch of certificate requests: after a mass join their list has hundreds of pages, and none may wait behind all other requests.
    pub watch_requests: Client,
    /// View that this process has of the cluster, by the answers of its API server.
    pub sight: Arc<Sight>,
}

impl Cluster {
    /// Creates the cluster of a configuration. Writes to it are counted in the metrics.
    ///
    /// # Errors
    /// Fails if the configuration is of no use.
    pub(crate) fn new(config: Config, metrics: &Arc<Metrics>) -> kube::Result<Self> {
        let mut direct = config.clone();
        direct.default_retry = false;
        let sight = Arc::<Sight>::default();
        Ok(Self {
            client: client(config.clone(), metrics, &sight)?,
            direct: client(direct, metrics, &sight)?,
            watch_requests: client(config.clone(), metrics, &sight)?,
            config,
            sight,
        })
    }

    /// Id of this cluster: UID of the Namespace `kube-system`, which lives as long as the cluster.
    ///
    /// # Errors
    /// Fails if the API server does not show the Namespace.
    pub(crate) async fn id(&self) -> Result<String, ReleaseError> {
        Ok(cluster::id(&self.client).await?)
    }

    /// Creates a cluster that answers from a script.
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
    /// Fails if there is nothing to give, or the cluster cannot be identified.
    pub(crate) async fn release(&self, args: &Run) -> Result<Release, ReleaseError> {
        let (kept, found) = self.facts(args).await?;
        Release::begin(kept.as_ref(), found, args)
    }

    /// Returns another release as hosts would get it in this cluster.
    ///
    /// # Errors
    /// Fails if the release cannot be rendered, or the cluster cannot be identified.
    pub(crate) async fn announced(&self, args: &Run, file: &ReleaseFile) -> Result<Release, ReleaseError> {
        let (kept, found) = self.facts(args).await?;
        Release::announced(settled(kept.as_ref(), found), args, file)
    }

    /// The facts that were in force last, and those of now.
    async fn facts(&self, args: &Run) -> Result<(Option<Kept>, Found), ClusterError> {
        let found = cluster::discover(&self.client, &self.config, args).await?;
        Ok((cluster::kept::load(&self.client, &args.namespace).await?, found))
    }
}

/// A client that waits for the API server as [`bounded`] says.
fn client(mut config: Config, metrics: &Arc<Metrics>, sight: &Arc<Sight>) -> kube::Result<Client> {
    config.read_timeout = Some(SILENCE);
    config.reset_reader_on_write = true;
    let bounded = bounded(ClientBuilder::try_from(config)?, ANSWER);
    Ok(bounded.with_layer(&sight.layer()).with_layer(&write_count::layer(metrics.clone())).build())
}

/// Bounds a client to [`REQUESTS`] concurrent requests, those first that came first, each answered in time. Of a watch only its beginning counts.
fn bounded<S>(builder: ClientBuilder<S>, answer: Duration) -> ClientBuilder<ConcurrencyLimit<Timeout<S>>> {
    builder.with_layer(&TimeoutLayer::new(answer)).with_layer(&ConcurrencyLimitLayer::new(REQUESTS))
}

/// Caches of what is watched in the cluster.
pub(crate) struct Caches {
    /// Pools.
    pub pools: Store<WindowsNodePool>,
    /// Instances.
    pub instances: Instances,
    /// Windows Nodes.
    pub nodes: Store<Node>,
    /// Machines.
    pub machines: Machines,
    /// Objects that are in none of the caches because they cannot be read.
    pub unreadable: Unreadable,
}

/// Identity of this process.
pub(crate) struct Process {
    /// Settings of the process.
    pub args: Run,
    /// Name of the process.
    pub identity: String,
    /// Epoch of the Lease.
    pub epoch: i64,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Token that ends everything.
    pub stop: CancellationToken,
    /// True if the process is a command that looks once, and waits for sources that take a while.
    pub looks_once: bool,
}

/// The operator's own cluster, as controllers reach it.
pub(crate) struct ThisCluster {
    /// Clients and configuration of the cluster.
    reached: Cluster,
    /// Id of the cluster. A host that is on record as another cluster's is not touched.
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
    /// Keys and known hosts.
    pub secrets: Secrets,
    /// Host keys that the legacy operator has seen.
    pub wmco_host_keys: WmcoHostKeys,
    /// The operator, as hosts know it.
    pub operator: Arc<Operator>,
    /// Release that hosts get.
    pub release: CurrentRelease,
    /// Stored versions of the services of hosts.
    pub versions: Versions,
    /// Drains.
    pub drainer: Drainer,
    /// SSH connections that may be open at once.
    pub connections: Places,
    /// Hosts that may be examined at once without a grant.
    pub looks: Places,
    /// Hosts that may pull images at once. Such a connection takes minutes, and no granted work must wait for it.
    pub pulls: Places,
}

/// Record of what this process has written, so that no decision is made on older state.
#[derive(Default)]
pub(crate) struct Writes {
    /// Statuses of instances.
    pub instances: WriteTracker,
    /// Grants.
    pub grants: WriteTracker,
    /// Metadata of Nodes.
    pub nodes: WrittenNodes,
}

/// Identities of the hosts' daemons.
pub(crate) struct Wicd {
    /// Decision whether the daemons may have rights and certificates.
    pub rights: WicdRights,
    /// Certificates that the daemons have renewed.
    pub renewals: Renewals,
    /// Last reports of the daemons.
    pub reports: WicdReports,
    /// Requests for first certificates, of kubelet as well, that this process is issuing.
    pub issuing: Issuing,
    /// Notification of the certificate approver that other verdicts are possible.
    pub judge_again: Arc<Notify>,
    /// Certificate requests of nodes that are left to users.
    pub left_to_people: LeftToPeople,
}

/// Context that works without a release: what a certificate approver needs, and all that is watched.
pub(crate) struct Base {
    /// Settings and identity of this process.
    pub process: Process,
    /// Events.
    pub events: Events,
    /// The operator's own cluster.
    pub cluster: ThisCluster,
    /// Caches of what is watched in the cluster.
    pub caches: Caches,
    /// Identities of the hosts' daemons.
    pub wicd: Wicd,
    /// The legacy operator, which must not work at the same time.
    pub other_operator: OtherOperator,
    /// Trigger of reconciles of pools.
    pub wake: ReconcileTrigger,
}

impl Base {
    /// Creates the context from its parts.
    pub(crate) fn new(process: Process, cluster: Cluster, cluster_id: String, caches: Caches) -> Self {
        let events = Events::new(cluster.client.clone(), &process.identity);
        // A command that looks once issues nothing, and begins nothing.
        let (rights, other_operator) = if process.looks_once {
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
                left_to_people: LeftToPeople::default(),
            },
            other_operator,
            wake: ReconcileTrigger::default(),
        }
    }

    /// Node of that name, as last seen.
    pub(crate) fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.caches.nodes.get(&ObjectRef::new(name))
    }
}

/// Context that all controllers share: [`Base`], which it gives access to as if it were its own, and the resources for the work on hosts.
pub(crate) struct Context {
    /// Context that works without a release.
    pub base: Arc<Base>,
    /// Resources for the work on hosts.
    pub hosts: Hosts,
    /// Record of what this process has written.
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
            // A command that looks once replaces nothing.
            versions: Versions::new(client.clone(), namespace, (!process.looks_once).then(|| events.clone())),
            operator: Arc::new(Operator {
                cluster_id: cluster.id.clone(),
                epoch: process.epoch,
                wicd: release.wicd.clone(),
                payload: release.payload.clone(),
                traffic: process.metrics.traffic.clone(),
            }),
            release: CurrentRelease::new(release),
            drainer: Drainer::new(cluster.direct.clone()),
            connections: Places::new(process.args.max_connections, CONNECTIONS_OF_ONE_POOL),
            looks: Places::new(LOOKS, Share::AtMost(LOOKS_OF_ONE_POOL)),
            pulls: Places::new(PULLS, Share::AtMost(MAX_PULLING as usize)),
        };
        Self { base, hosts, writes: Writes::default() }
    }

    /// The pool of an instance.
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

    /// The machine of an API server may be gone, and no packet says so.
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
