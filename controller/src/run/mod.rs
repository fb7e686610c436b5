//! Operator process: waits for the Lease, fills its caches, and runs its controllers until a stop signal, the loss of the Lease or a fault.

pub(crate) mod certificate_approval;
pub(crate) mod cluster_facts;
pub(crate) mod other_installation;
mod webhook;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    convert::Infallible,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use api::{Reason, WindowsInstance, WindowsNodePool, names::key};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::ListParams,
    runtime::{
        Controller,
        controller::{self, Action},
        reflector::ObjectRef,
    },
};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    args::{self, Run},
    caches::{
        machines::Machines,
        unreadable::Unreadable,
        watch::{Changes, news, watch, watch_instances, watch_nodes},
    },
    client::{api_server, cluster_view::ApiProblem},
    cluster,
    cluster::{
        crds::{self, CrdFault},
        release::ReleaseError,
    },
    context::{Base, Caches, Cluster, Context, Process, WINDOWS_NODES},
    instance::{self, StepError},
    inventory::{flux, wmco_sources},
    pool::{self, PoolContext, PoolError},
    rights::{operator_condition, wicd_binding},
    runtime::{
        clock,
        events::EventReason,
        http::{self, Health, Phase, Readiness},
        lease::Election,
        metrics::{FaultSource, Metrics},
        scrape,
        supervision::{Panicked, Tasks, catch},
        telemetry,
    },
    wmco::lock,
};
use wnp_core::{
    inventory::{
        concerns::{concerned_pools, concerns_hosts},
        ownership::Reading,
        wmco_nodes::wmco_nodes,
    },
    rollout::versions_in_use::versions_in_use,
    status::pool::refuse,
};

/// Delay before the operator checks again whether it can work, for example whether its release can be loaded.
const RELEASE_RETRY: Duration = Duration::from_secs(30);
/// Delay before an object that cannot be reconciled is reconciled again without a change.
const REFUSED_RETRY: Duration = Duration::from_mins(1);
/// Time for operations to end after a stop signal.
const GRACE: Duration = Duration::from_secs(20);

/// Runs the operator until it receives a stop signal or loses the Lease.
///
/// # Errors
/// Fails when a setting or the configuration for the API server is invalid, an address to listen on cannot be bound, the API server does not answer
/// when this process begins to lead, a CRD is missing or unusable, the Lease is lost, or a task of the operator ends. A stop signal is not an error.
pub async fn run(args: Run, cluster: &args::Cluster) -> anyhow::Result<()> {
    let level = telemetry::init(args.log_format, &args.log_level)?;
    tracing::info!(version = crate::args::version(), namespace = args.namespace, "starting");
    let stop = CancellationToken::new();
    tokio::spawn(stop_on_signal(stop.clone()));
    let metrics = Arc::new(Metrics::default());
    let readiness = Readiness::default();
    let health = Health { readiness: readiness.clone(), metrics: metrics.clone() };
    if args.metrics_tls && args.metrics_listen == args.listen {
        bail!(
            "--metrics-listen is the address of --listen, which has no TLS: set another address, or --metrics-tls false"
        );
    }
    let identity = args.identity.clone().unwrap_or_else(|| format!("windows-node-pools-{}", std::process::id()));
    // Unlike a pod's name, this differs after a restart in place, so that every start has its own epoch.
    let identity = format!("{identity}_{:08x}", rand::random::<u32>());
    let plain = (!args.metrics_tls).then_some(args.metrics_listen);
    http::serve(args.listen, plain, args.admin_listen, health, level, stop.clone())
        .await
        .context("cannot listen on an address of --listen, --metrics-listen or --admin-listen")?;

    let config = api_server::config(cluster).await?;
    // A separate client, so that the Lease never waits for other requests.
    let mut for_lease = config.clone();
    for_lease.default_retry = false;
    let for_lease = Client::try_from(for_lease).context("the connection settings for the API server cannot be used")?;
    let cluster =
        Cluster::new(config, &metrics).context("the connection settings for the API server cannot be used")?;
    if args.metrics_tls {
        let serving = scrape::serve(&args, cluster.client.clone(), metrics.clone(), stop.clone());
        serving.await.context("cannot serve metrics at --metrics-listen")?;
    }

    let election = Election::new(for_lease, &args.namespace, api::names::LEASE, &identity, args.lease_duration);
    tracing::info!(identity, "waiting for the Lease");
    let elected = async {
        wait_until_alone(&cluster, &args).await;
        election.acquire(|| readiness.is_able()).await
    };
    let epoch = tokio::select! {
        epoch = elected => epoch,
        never = stand_by(&cluster, &args, &readiness, &metrics) => match never {},
        () = stop.cancelled() => return Ok(()),
    };
    tracing::info!(epoch, "leading");
    metrics.leader.set(1);
    metrics.host_certificate_lifetime.set(i64::try_from(args.wicd_certificate_lifetime.as_secs()).unwrap_or(i64::MAX));
    readiness.enter(Phase::Leading);
    let process = Process { args, identity, epoch, metrics, stop: stop.clone(), is_one_shot: false };
    let leader = Leader { process, cluster, readiness };
    tokio::select! {
        result = leader.lead() => {
            election.release(epoch).await;
            result
        }
        lost = election.hold(epoch) => {
            // Nothing is ended gracefully: another operator may already be active.
            bail!(lost)
        }
    }
}

/// Waits until no other installation leads, because both would write the same objects. A failed query counts as none.
async fn wait_until_alone(cluster: &Cluster, args: &Run) {
    while other_leader(cluster, args).await.is_some() {
        tokio::time::sleep(other_installation::INTERVAL).await;
    }
}

async fn other_leader(cluster: &Cluster, args: &Run) -> Option<String> {
    let found = other_installation::leads(&cluster.client, &args.namespace, clock::now()).await;
    Some(found.ok()?.0?.message())
}

/// Waits for another installation that leads and takes precedence, or for a stop signal. The end of this task ends the process.
async fn end_if_superseded(cx: Arc<Base>) {
    let stop = &cx.process.stop;
    while stop.run_until_cancelled(tokio::time::sleep(other_installation::INTERVAL)).await.is_some() {
        let namespace = &cx.process.args.namespace;
        let found = other_installation::leads(&cx.cluster.client, namespace, clock::now()).await;
        if let Ok((Some(other), since)) = found
            && other.goes_first(namespace, since)
        {
            return tracing::error!(reason = other_installation::REASON.as_str(), "{}", other.message());
        }
    }
}

/// Checks until this process can work, sets its phase for the readiness probe, and never returns. A process that cannot work must not replace a
/// process that can.
async fn stand_by(cluster: &Cluster, args: &Run, readiness: &Readiness, metrics: &Metrics) -> Infallible {
    while let Some((reason, why)) = unable(cluster, args).await {
        tracing::error!(
            reason = reason.as_str(),
            why,
            "this replica of the operator cannot work, so it lets another replica lead if there is one; it checks again in 30 s"
        );
        metrics.fault(FaultSource::Release, Some(reason));
        readiness.enter(Phase::Unable(format!("{reason}: {why}")));
        tokio::time::sleep(RELEASE_RETRY).await;
    }
    metrics.fault(FaultSource::Release, None);
    readiness.enter(Phase::StandingBy);
    std::future::pending().await
}

/// Returns the reason and message if this process cannot work. A failed request for the CRDs does not count, because it proves nothing about them.
async fn unable(cluster: &Cluster, args: &Run) -> Option<(Reason, String)> {
    if let Some(message) = other_leader(cluster, args).await {
        return Some((other_installation::REASON, message));
    }
    if let Ok(Some(fault)) = crds::fault(&cluster.client).await {
        return Some((fault.reason(), format!("{fault}: {}", fault.remedy())));
    }
    cluster.release(args).await.err().map(|error| (error.reason(), error.to_string()))
}

/// Process that holds the Lease.
struct Leader {
    process: Process,
    cluster: Cluster,
    readiness: Readiness,
}

impl Leader {
    /// Fills the caches, loads the release, and runs all tasks of the leader until a stop signal. Fails when the CRDs are unusable, the API server
    /// does not answer at the start, or a task ends.
    async fn lead(self) -> anyhow::Result<()> {
        if !self.check_crds().await? {
            return Ok(());
        }
        let client = self.cluster.client.clone();
        let version = client.apiserver_version().await.context("failed to get the version of the API server")?;
        let warning = cluster::version_warning(&version.major, &version.minor);
        if let Some((_, message)) = &warning {
            tracing::warn!("{message}");
        }
        let id = until(&self.process, &self.cluster, || self.cluster.id());
        let Some(cluster_id) = id.await else { return Ok(()) };
        let unreadable = Unreadable::default();
        let (pools, [pools_for_pools, pools_for_instances, pools_for_sources, pools_for_flux], watch_pools) =
            watch(client.clone(), &unreadable);
        let (instances, [instances_for_pools, instances_for_instances, instances_for_requests], watch_instances) =
            watch_instances(client.clone(), &unreadable);
        let (nodes, [nodes_for_pools, nodes_for_instances], watch_nodes) =
            watch_nodes(client, WINDOWS_NODES, &unreadable);
        let caches = Caches { pools, instances, nodes, machines: Machines::default(), unreadable };
        self.process.metrics.show(caches.pools.clone(), caches.instances.store(), caches.nodes.clone());
        let base = Arc::new(Base::new(self.process, self.cluster, cluster_id, caches));
        let stop = base.process.stop.clone();
        let mut watches = Tasks::default();
        watches.spawn("the watch of pools", watch_pools);
        watches.spawn("the watch of instances", watch_instances);
        watches.spawn("the watch of Nodes", watch_nodes);
        watches.spawn("the watch of the admission policies", wicd_binding::keep(base.clone()));
        // The caches are filled first: an object that is not in them yet would seem to be missing.
        tokio::select! {
            filled = async { tokio::join!(base.caches.pools.wait_until_ready(), base.caches.instances.wait_until_ready(), base.caches.nodes.wait_until_ready()) } => {
                if filled.0.is_err() || filled.1.is_err() || filled.2.is_err() {
                    bail!("a watch of pools, instances or Nodes ended while the operator started; this process exits, and kubelet restarts it");
                }
            }
            () = stop.cancelled() => return Ok(()),
        }
        watches.spawn("the watch of another operator", watch_wmco(base.clone()));
        watches.spawn("the watch of other installations", end_if_superseded(base.clone()));
        watches.spawn("the observer of the API server's answers", watch_api_visibility(base.clone(), self.readiness));
        tokio::select! {
            _ = async { tokio::join!(base.wicd.rights.known(), base.other_operator.known()) } => {}
            () = stop.cancelled() => return Ok(()),
        }
        let mut tasks = Tasks::default();
        // The approver starts before the release is loaded, because running nodes must not lose their certificates for lack of a usable release.
        let approver = certificate_approval::run(base.clone(), instances_for_requests, RELEASE_RETRY);
        tasks.spawn("the certificate approver", approver);
        let release = tokio::select! {
            release = until(&base.process, &base.cluster, || base.cluster.release(&base.process.args)) => release,
            end = tasks.first_end() => bail!("{}", end.unwrap_or_default()),
            end = watches.first_end() => bail!("{}", end.unwrap_or_default()),
        };
        let Some(release) = release else { return Ok(()) };
        base.process.metrics.fault(FaultSource::Release, None);
        tracing::info!(
            payload = api::payload::digest(&release.manifest().for_platform(release.cluster.platform.as_str())),
            wicd = release.wicd.sha256,
            cluster = base.cluster.id,
            "release loaded"
        );
        let logs = release.logs();
        tracing::info!(
            size = logs.size,
            age = logs.age,
            flush_interval = logs.flush,
            "log rotation of services on hosts"
        );
        let cx = Arc::new(Context::new(base, release));
        let pool_cx = Arc::new(PoolContext::new(cx.clone(), warning));
        let pools = run_pools(pool_cx.clone(), pools_for_pools, instances_for_pools, nodes_for_pools);
        tasks.spawn("the pool controller", pools);
        let instances = run_instances(cx.clone(), instances_for_instances, nodes_for_instances, pools_for_instances);
        tasks.spawn("the instance controller", instances);
        tasks.spawn("the adapter of legacy sources", wmco_sources::run(cx.clone(), pools_for_sources));
        tasks.spawn("the watch of Flux", flux::run(cx.clone(), pool_cx.sources.flux.clone(), pools_for_flux));
        tasks.spawn("the facts of the cluster", cluster_facts::follow(cx.clone()));
        tasks.spawn("the collector of versions", collect(cx.clone()));
        tasks.spawn("the receiver of pushes", webhook::run(pool_cx.clone()));
        tasks.spawn("the watch of unreadable objects", wake_unreadable(cx.clone()));
        tasks.spawn("the OperatorCondition", operator_condition::keep(cx.clone()));
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            // An operator without one of its tasks must end, because its Lease would keep a complete operator from leading.
            end = tasks.first_end() => bail!("{}", end.unwrap_or_default()),
            end = watches.first_end() => bail!("{}", end.unwrap_or_default()),
        }
        tracing::info!("stopping");
        if tokio::time::timeout(GRACE, tasks.all_end()).await.is_err() {
            tracing::warn!(
                "some operations did not end within {} s; the next leader resumes them from their stored step",
                GRACE.as_secs()
            );
        }
        Ok(())
    }

    /// Waits until the CRDs match this release, so that all written fields are stored. While the CRDs are outdated, every pool reports the fault.
    /// Returns false after a stop signal. Fails with any other fault of the CRDs.
    async fn check_crds(&self) -> anyhow::Result<bool> {
        let Process { args, metrics, stop, .. } = &self.process;
        let client = &self.cluster.client;
        while let Some(fault) = crds::fault(client).await.context("failed to get the CRDs")? {
            let message = format!("{fault}: {}", fault.remedy());
            operator_condition::cannot_work(client, args, fault.reason()).await;
            let CrdFault::Outdated { .. } = fault else { bail!(message) };
            tracing::error!(reason = fault.reason().as_str(), "{message}");
            report_fault(fault.reason(), &message, client, metrics).await;
            if stop.run_until_cancelled(tokio::time::sleep(RELEASE_RETRY)).await.is_none() {
                return Ok(false);
            }
        }
        metrics.fault(FaultSource::Release, None);
        Ok(true)
    }
}

/// Repeats a request until it succeeds. While it fails, every pool reports the error. Returns `None` after a stop signal.
async fn until<T, F>(process: &Process, cluster: &Cluster, ask: impl Fn() -> F) -> Option<T>
where
    F: Future<Output = Result<T, ReleaseError>>,
{
    loop {
        match ask().await {
            Ok(found) => return Some(found),
            Err(error) => report(&error, cluster, process).await,
        }
        process.stop.run_until_cancelled(tokio::time::sleep(RELEASE_RETRY)).await?;
    }
}

/// Reports an error because of which no operation can begin: in the log, the metric, every pool and the OperatorCondition.
async fn report(error: &ReleaseError, cluster: &Cluster, process: &Process) {
    let reason = error.reason();
    tracing::error!(reason = reason.as_str(), %error, "the operator cannot work yet, so no host is changed; the operator retries");
    let message = format!("{error}; meanwhile, the operator changes no host, and it retries every 30 s");
    report_fault(reason, &message, &cluster.client, &process.metrics).await;
    operator_condition::cannot_work(&cluster.client, &process.args, reason).await;
}

/// Reports a fault in the metric and in every pool.
async fn report_fault(reason: Reason, message: &str, client: &Client, metrics: &Metrics) {
    metrics.fault(FaultSource::Release, Some(reason));
    if let Err(error) = refuse_pools(client, reason, message).await {
        tracing::warn!(%error, "failed to report the fault in the status of the pools; the operator retries");
    }
}

async fn refuse_pools(client: &Client, reason: Reason, message: &str) -> kube::Result<()> {
    let pools: Api<WindowsNodePool> = Api::all(client.clone());
    for pool in pools.list(&ListParams::default()).await? {
        let status = refuse(&pool, reason, message, None, clock::now());
        if pool.status.as_ref() != Some(&status) {
            pool::store_known_status(client, &pool, &status).await?;
        }
    }
    Ok(())
}

async fn run_pools(
    cx: Arc<PoolContext>,
    pools: Changes<WindowsNodePool>,
    instances: Changes<WindowsInstance>,
    nodes: Changes<Node>,
) {
    let store = cx.caches.pools.clone();
    let all = cx.caches.pools.clone();
    let pace = Arc::new(pool::Debouncer::default());
    let (of_instances, of_nodes) = (pace.clone(), pace.clone());
    let (there, places) = (cx.caches.instances.clone(), EntriesSeen::default());
    let of_instance = move |instance: Arc<WindowsInstance>| -> Vec<ObjectRef<WindowsNodePool>> {
        of_instances.changed(&instance.spec.pool_ref.name, Instant::now());
        let is_gone = there.get(&ObjectRef::from_obj(&*instance)).is_none();
        let is_freed = is_gone || places.is_new(&instance);
        if is_gone {
            places.forget(&instance);
        }
        let pools = if is_freed { all.state() } else { Vec::new() };
        concerned_pools(&instance, is_freed, &pools).iter().map(|pool| ObjectRef::new(pool)).collect()
    };
    let of_node = move |node: Arc<Node>| {
        node.labels().get(key::POOL).map(|pool| {
            of_nodes.changed(pool, Instant::now());
            ObjectRef::new(pool)
        })
    };
    // The concurrency has no limit. With a limit, waiting pools would be picked in no fixed order, and a pool could starve. The client limits its own
    // requests.
    Controller::for_shared_stream(pools, store)
        .with_config(controller::Config::default().concurrency(0))
        .watches_shared_stream(instances, of_instance)
        .watches_shared_stream(nodes, of_node)
        .reconcile_on(cx.wake.triggered().map(|name| ObjectRef::new(&name)))
        .graceful_shutdown_on(cx.process.stop.clone().cancelled_owned())
        .run(
            move |pool, cx| {
                let pace = pace.clone();
                async move {
                    pace.wait(&pool.name_any()).await;
                    cx.process.metrics.reconciled("WindowsNodePool");
                    // The pool may have changed during the wait.
                    let pool = cx.caches.pools.get(&ObjectRef::from_obj(&*pool)).unwrap_or(pool);
                    if cx.caches.unreadable.has("WindowsNodePool", &pool.name_any()) {
                        // `wake_unreadable` reports it. The cache has an old state of the pool.
                        return Ok(Action::await_change());
                    }
                    if let Some(message) = cx.caches.unreadable.of_pool(&pool.name_any()) {
                        return refuse_pool(&pool, Reason::ObjectUnreadable, &message, &cx).await;
                    }
                    if let Some(problem) = cx.other_operator.problem() {
                        return refuse_pool(&pool, problem.reason(), &problem.to_string(), &cx).await;
                    }
                    if let Some(problem) = cx.cluster.sight.problem() {
                        return refuse_pool(&pool, problem.reason(), &problem.to_string(), &cx).await;
                    }
                    match Box::pin(catch(pool::reconcile(pool.clone(), cx.clone()))).await {
                        Ok(result) => result,
                        Err(panicked) => refuse_pool(&pool, Panicked::REASON, &panicked.to_string(), &cx).await,
                    }
                }
            },
            pool::error_policy,
            cx,
        )
        .for_each(|_| async {})
        .await;
}

/// Hash of the pool, address and port of each instance, as last seen. When an instance releases them, the pools that wait for them are reconciled.
#[derive(Default)]
struct EntriesSeen(Mutex<HashMap<String, u64>>);

impl EntriesSeen {
    /// Reports whether the pool, address or port of the instance has changed since it was last seen.
    fn is_new(&self, instance: &WindowsInstance) -> bool {
        let mut hash = DefaultHasher::new();
        let (pool, host) = (&instance.spec.pool_ref.name, &instance.spec.host);
        (pool, &host.address, host.port).hash(&mut hash);
        let now = hash.finish();
        self.0.lock().insert(instance.name_any(), now).is_some_and(|before| before != now)
    }

    /// Forgets a deleted instance.
    fn forget(&self, instance: &WindowsInstance) {
        self.0.lock().remove(&instance.name_any());
    }
}

/// Triggers a reconcile of pools whose unreadable objects change, and reports unreadable pools in their status.
async fn wake_unreadable(cx: Arc<Context>) {
    let (mut before, mut unread) = (Vec::new(), BTreeMap::new());
    loop {
        let now = cx.caches.unreadable.pools();
        cx.wake.pools(before.iter().chain(&now));
        before = now;
        let pools = cx.caches.unreadable.of_kind("WindowsNodePool");
        unread.retain(|name, _| pools.iter().any(|(unread, _)| unread == name));
        for (name, error) in pools {
            let is_new = unread.get(&name) != Some(&error);
            if is_new && pool::unread::report(&cx.cluster.client, &name, &error).await {
                unread.insert(name, error);
            }
        }
        let changed = tokio::time::timeout(REFUSED_RETRY, cx.caches.unreadable.changed());
        if cx.process.stop.run_until_cancelled(changed).await.is_none() {
            return;
        }
    }
}

/// Prevents new operations while the legacy operator runs. The caches must be filled: otherwise, a Node would count as a node of the legacy operator
/// because its instance is not cached yet.
async fn watch_wmco(cx: Arc<Base>) {
    let on_seen = |found| {
        if cx.other_operator.note(found, &cx.process.metrics, &cx.events) {
            cx.wake_all_pools();
            cx.caches.machines.notify_change();
            // Requests that were left to the other operator are evaluated again.
            cx.wicd.judge_again.notify_one();
        }
    };
    let (args, stop) = (&cx.process.args, cx.process.stop.clone());
    let has_nodes = || {
        let has_instance = |name: &str| cx.caches.instances.get(&ObjectRef::new(name)).is_some();
        // A Node that a pool has just released may be counted, too.
        !wmco_nodes(cx.caches.nodes.state().iter().map(|n| &**n), &has_instance, &|_| false).is_empty()
    };
    lock::follow(cx.cluster.client.clone(), &args.namespace, args.lease_duration, has_nodes, on_seen, stop).await;
}

/// Reports failing watches and status writes of the operator, and reconciles all pools when such a problem begins or ends.
async fn watch_api_visibility(cx: Arc<Base>, readiness: Readiness) {
    let sight = &cx.cluster.sight;
    let mut before = None;
    loop {
        let now = sight.problem();
        if now != before {
            cx.process.metrics.fault(FaultSource::ClusterView, now.as_ref().map(ApiProblem::reason));
            if let Some(problem) = &now {
                tracing::error!(reason = problem.reason().as_str(), "{problem}");
                readiness.enter(Phase::Blind(format!("{}: {problem}", problem.reason())));
            } else {
                tracing::info!("the watches and the status writes of the operator work again");
                readiness.enter(Phase::Leading);
            }
            cx.wake_all_pools();
            before = now;
        }
        if cx.process.stop.run_until_cancelled(sight.changed()).await.is_none() {
            return;
        }
    }
}

/// Reports in the status of a pool the reason why it is not reconciled.
async fn refuse_pool(
    pool: &WindowsNodePool,
    reason: Reason,
    message: &str,
    cx: &PoolContext,
) -> Result<Action, PoolError> {
    tracing::error!(pool = pool.name_any(), reason = reason.as_str(), "{message}");
    // The list of this pool is recorded as unknown, so that other pools do not wait for it.
    let begun = cx.sources.owners().begin(&pool.name_any());
    cx.wake.pools(cx.sources.owners().end(pool, begun, Reading::Unknown));
    let status = pool::refused(pool, reason, message, cx);
    if pool.status.as_ref() != Some(&status) {
        let stored = pool::store_status(&cx.cluster.client, pool, &status).await;
        stored.map_err(|source| PoolError::Api { doing: "store the pool's status", source })?;
    }
    Ok(Action::requeue(REFUSED_RETRY))
}

async fn reconcile_instance(instance: Arc<WindowsInstance>, cx: Arc<Context>) -> Result<Action, StepError> {
    cx.process.metrics.reconciled("WindowsInstance");
    match catch(Box::pin(instance::reconcile(instance.clone(), cx.clone()))).await {
        Ok(result) => result,
        Err(panicked) => {
            let name = instance.name_any();
            tracing::error!(instance = name, reason = Panicked::REASON.as_str(), "{panicked}");
            cx.events.say(&*instance, EventReason::InternalError, "Reconcile", &panicked.to_string());
            Ok(Action::requeue(REFUSED_RETRY))
        }
    }
}

async fn run_instances(
    cx: Arc<Context>,
    instances: Changes<WindowsInstance>,
    nodes: Changes<Node>,
    pools: Changes<WindowsNodePool>,
) {
    let (of_node, by_pool) = (cx.caches.instances.clone(), cx.caches.instances.clone());
    // Each progress of a host changes its pool's status, so only relevant changes pass.
    let pools = news(cx.caches.pools.clone(), pools, concerns_hosts);
    // The concurrency has no limit, because each reconcile may wait for a host for minutes. Grants and SSH slots limit the work.
    Controller::for_shared_stream(instances, cx.caches.instances.store())
        .with_config(controller::Config::default().concurrency(0))
        .watches_shared_stream(nodes, move |node: Arc<Node>| {
            of_node.get(&ObjectRef::new(&node.name_any())).map(|i| ObjectRef::from_obj(&*i))
        })
        .watches_shared_stream(pools, move |pool: Arc<WindowsNodePool>| {
            by_pool.of_pool(&pool.name_any()).iter().map(|i| ObjectRef::from_obj(&**i)).collect::<Vec<_>>()
        })
        .reconcile_on(cx.wicd.renewals.nodes().map(|name| ObjectRef::new(&name)))
        .graceful_shutdown_on(cx.process.stop.clone().cancelled_owned())
        .run(reconcile_instance, instance::error_policy, cx)
        .for_each(|_| async {})
        .await;
}

/// Deletes unused versions and the in-memory records of deleted instances, and restores needed versions, at each interval until the process stops.
async fn collect(cx: Arc<Context>) {
    while cx.process.stop.run_until_cancelled(tokio::time::sleep(cx.process.args.version_grace)).await.is_some() {
        let names: BTreeSet<String> = cx.caches.instances.state().iter().map(|i| i.name_any()).collect();
        cx.writes.instances.keep(&names);
        cx.writes.grants.keep(&names);
        cx.writes.nodes.keep(&names);
        cx.writes.unsaved.keep_only(&names);
        let (pools, instances, nodes) = (cx.caches.pools.state(), cx.caches.instances.state(), cx.caches.nodes.state());
        let needed =
            versions_in_use(pools.iter().map(|p| &**p), instances.iter().map(|i| &**i), nodes.iter().map(|n| &**n));
        if let Err(error) = cx.hosts.versions.keep(&needed, cx.process.args.version_grace).await {
            tracing::warn!(%error, "failed to delete unused versions or to restore needed ones; the operator retries");
        }
    }
}

#[cfg(not(unix))]
async fn stop_on_signal(stop: CancellationToken) {
    let _ = tokio::signal::ctrl_c().await;
    stop.cancel();
}

#[cfg(unix)]
async fn stop_on_signal(stop: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut term), Ok(mut int)) => {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        }
        // Without a handler, the signal ends the process at once, which is also safe.
        _ => return,
    }
    stop.cancel();
}
