//! State that all simulated kubelets share: one client of the API server, one watch each of Nodes, certificate requests and Pods,
//! one clock for all heartbeats.

use std::{
    collections::{HashMap, HashSet},
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use api::names::{key, user};
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::{
    api::{certificates::v1::CertificateSigningRequest, coordination::v1::Lease, core::v1::Node},
    apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, MicroTime},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
    core::PartialObjectMeta,
    runtime::{WatchStreamExt as _, watcher},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{SimOptions, fault::Fault, machine::Machine};
use crate::lock::lock;

/// Number of images that a kubelet reports: the maximum of a real one (`nodeStatusMaxImages`).
const IMAGES: usize = 50;

/// Handling of the serving certificate by a kubelet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServingCertificate {
    /// Request the certificate, and become Ready when it is issued. (A real kubelet does not wait. Here, a Ready Node also
    /// proves the approval.)
    #[default]
    Await,
    /// Request the certificate, and become Ready at once.
    Request,
    /// Request no certificate.
    Skip,
}

/// Namespace of the kubelets' Leases.
const LEASES: &str = "kube-node-lease";
/// Maximum wait for a response of the API server.
const ANSWER: Duration = Duration::from_mins(1);
/// Seconds for which a kubelet's Lease is valid.
const LEASE_SECONDS: i32 = 40;
/// Maximum number of concurrent requests of kubelets; each may need a connection of its own.
const REQUESTS: usize = 64;

/// State of a Node, as the watch shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeView {
    pub(super) uid: Option<String>,
    pub(super) desired_version: Option<String>,
    pub(super) version: Option<String>,
    pub(super) reboot_required: bool,
    pub(super) drift: Option<String>,
    pub(super) reported: Option<String>,
    /// Time when the cluster last wrote the Node's status, because kubelet did not report.
    pub(super) last_status_write_by_controller: Option<String>,
    /// Name, labels and annotations of the Node, as JSON, without metadata that change all the time.
    pub(super) json: Option<Value>,
}

impl NodeView {
    pub(super) fn of(node: &PartialObjectMeta<Node>) -> Self {
        let annotation = |key| node.annotations().get(key).cloned();
        Self {
            uid: node.uid(),
            desired_version: annotation(key::DESIRED_VERSION),
            version: annotation(key::VERSION),
            reboot_required: annotation(key::REBOOT_REQUIRED).is_some(),
            drift: annotation(key::DRIFT),
            reported: annotation(key::WICD_REPORTED),
            last_status_write_by_controller: last_status_write_by_controller(node),
            json: Some(json!({ "metadata": {
                "name": node.name_any(), "labels": node.labels(), "annotations": node.annotations(),
            } })),
        }
    }
}

/// Outcome of a certificate request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Issued {
    /// The certificate was issued, with this chain in PEM.
    Yes(String),
    No,
}

/// Running kubelet that has its Node.
struct Live {
    machine: Arc<Machine>,
    address: String,
    /// Kubelet's own client of the API server, if it has one.
    client: Option<Client>,
    next_heartbeat: Instant,
    next_report: Instant,
}

/// State that all simulated kubelets share.
pub(super) struct Fleet {
    client: Client,
    options: SimOptions,
    stop: CancellationToken,
    live: Mutex<HashMap<String, Live>>,
    views: Mutex<HashMap<String, watch::Sender<NodeView>>>,
    requests: Mutex<HashMap<String, watch::Sender<Option<Issued>>>>,
    came_up: mpsc::UnboundedSender<String>,
    slots: Semaphore,
}

/// Identity to impersonate.
pub(super) struct Identity {
    user: String,
    group: &'static str,
}

impl Identity {
    pub(super) fn kubelet(node: &str) -> Self {
        Self { user: format!("{}{node}", user::NODE_PREFIX), group: user::NODES_GROUP }
    }

    pub(super) fn wicd(node: &str) -> Self {
        Self { user: format!("{}{node}", user::WICD_PREFIX), group: user::WICD_GROUP }
    }
}

/// Request of [`kube::core::Request`], which may fail to be built.
pub(super) type RequestResult = Result<http::Request<Vec<u8>>, kube::core::request::Error>;

impl Fleet {
    /// Starts the fleet. Also returns a channel with the names of Nodes that become live from then on.
    pub(super) fn start(
        client: Client,
        options: SimOptions,
        stop: CancellationToken,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<String>) {
        let (came_up, coming_up) = mpsc::unbounded_channel();
        let fleet = Arc::new(Self {
            client,
            options,
            stop,
            live: Mutex::default(),
            views: Mutex::default(),
            requests: Mutex::default(),
            came_up,
            slots: Semaphore::new(REQUESTS),
        });
        fleet.spawn(|fleet| async move { fleet.watch_nodes().await });
        if fleet.options.serving == ServingCertificate::Await {
            fleet.spawn(|fleet| async move { fleet.watch_requests().await });
        }
        fleet.spawn(|fleet| async move { fleet.beat().await });
        (fleet, coming_up)
    }

    /// Runs a task until the simulation ends.
    pub(super) fn spawn<F: Future<Output = ()> + Send + 'static>(self: &Arc<Self>, task: impl FnOnce(Arc<Self>) -> F) {
        let stop = self.stop.clone();
        let task = task(self.clone());
        tokio::spawn(async move { stop.run_until_cancelled(task).await });
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn options(&self) -> &SimOptions {
        &self.options
    }

    /// Sends a request of [`kube::core::Request`] under another identity.
    pub(super) async fn send<T: DeserializeOwned>(&self, who: &Identity, request: RequestResult) -> kube::Result<T> {
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        for (name, value) in [("impersonate-user", who.user.as_str()), ("impersonate-group", who.group)] {
            let value = http::HeaderValue::from_str(value).map_err(|e| kube::Error::HttpError(e.into()))?;
            request.headers_mut().insert(name, value);
        }
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await;
        self.client.request(request).await
    }

    /// Returns a receiver of the changes of a Node, from now on.
    pub(super) fn view(&self, node: &str) -> watch::Receiver<NodeView> {
        lock(&self.views).entry(node.to_string()).or_default().subscribe()
    }

    /// Waits until this certificate request is decided. The decision may come before or after this call, and the first of the two creates the shared
    /// entry.
    pub(super) async fn decision(&self, request: &str) -> Issued {
        let mut note = lock(&self.requests).entry(request.to_string()).or_default().subscribe();
        let issued = note.wait_for(Option::is_some).await.ok().and_then(|i| i.clone()).unwrap_or(Issued::No);
        lock(&self.requests).remove(request);
        issued
    }

    /// Sends heartbeats for the Node from now on, and ends its Pods on request, until the guard is dropped.
    pub(super) fn go_live(
        self: &Arc<Self>,
        node: &str,
        address: String,
        machine: Arc<Machine>,
        client: Option<Client>,
    ) -> LiveGuard {
        // The first heartbeat is due at once. Later ones are spread by the times at which hosts came up.
        let now = Instant::now();
        let live = Live { machine, address, client, next_heartbeat: now, next_report: now };
        lock(&self.live).insert(node.to_string(), live);
        let _ = self.came_up.send(node.to_string());
        LiveGuard { fleet: self.clone(), node: node.to_string() }
    }

    /// Returns the address of a Node whose kubelet runs.
    pub(super) fn live_address(&self, node: &str) -> Option<String> {
        lock(&self.live).get(node).map(|l| l.address.clone())
    }

    /// Waits until containers of this Node can end. Returns at once if no kubelet runs.
    pub(super) async fn containers_end(&self, node: &str) {
        let Some(mut state) = lock(&self.live).get(node).map(|l| l.machine.state()) else { return };
        let _ = state.wait_for(|s| !s.powered || !s.faults.contains(&Fault::PodsLinger)).await;
    }

    async fn watch_nodes(&self) {
        let api: Api<PartialObjectMeta<Node>> = Api::all(self.client.clone());
        let config = watcher::Config::default().labels("kubernetes.io/os=windows");
        let mut listed = HashSet::new();
        let mut events = std::pin::pin!(events(watcher(api, config)));
        while let Some(event) = events.next().await {
            match event {
                watcher::Event::Init => listed.clear(),
                watcher::Event::InitApply(node) => {
                    listed.insert(node.name_any());
                    self.see(&node);
                }
                watcher::Event::InitDone => {
                    for (name, view) in &*lock(&self.views) {
                        if !listed.contains(name) {
                            replace(view, NodeView::default());
                        }
                    }
                }
                watcher::Event::Apply(node) => self.see(&node),
                watcher::Event::Delete(node) => {
                    if let Some(view) = lock(&self.views).get(&node.name_any()) {
                        replace(view, NodeView::default());
                    }
                }
            }
        }
    }

    fn see(&self, node: &PartialObjectMeta<Node>) {
        let seen = NodeView::of(node);
        replace(lock(&self.views).entry(node.name_any()).or_default(), seen);
    }

    async fn watch_requests(&self) {
        let api: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        let config = watcher::Config::default().fields("spec.signerName=kubernetes.io/kubelet-serving");
        let mut events = std::pin::pin!(events(watcher(api, config)));
        while let Some(event) = events.next().await {
            let (request, gone) = match event {
                watcher::Event::Apply(request) | watcher::Event::InitApply(request) => (request, false),
                watcher::Event::Delete(request) => (request, true),
                watcher::Event::Init | watcher::Event::InitDone => continue,
            };
            let issued = if gone { Some(Issued::No) } else { outcome(&request) };
            if issued.is_some() {
                lock(&self.requests).entry(request.name_any()).or_default().send_replace(issued);
            }
        }
    }

    /// Renews the Leases and reports the statuses that are due, once a second.
    async fn beat(&self) {
        loop {
            let leases = self.due(self.options.heartbeat, |live| &mut live.next_heartbeat);
            let reports = self.due(self.options.status_report, |live| &mut live.next_report);
            stream::iter(leases).for_each_concurrent(8, |node| self.renew(node)).await;
            stream::iter(reports).for_each_concurrent(8, |node| self.report(node)).await;
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Returns the nodes for which a task is due that repeats after each `period`, and schedules the next repetition.
    fn due(&self, period: Option<Duration>, next: impl Fn(&mut Live) -> &mut Instant) -> Vec<String> {
        let Some(period) = period else { return Vec::new() };
        let now = Instant::now();
        let mut live = lock(&self.live);
        let due = live.iter_mut().filter_map(|(node, live)| {
            let next = next(live);
            let is_due = *next <= now;
            if is_due {
                *next = now + period;
            }
            is_due.then(|| node.clone())
        });
        due.collect()
    }

    /// Returns the kubelet's own client of the API server, or the shared one.
    fn client_of(&self, node: &str) -> Client {
        let own = lock(&self.live).get(node).and_then(|live| live.client.clone());
        own.unwrap_or_else(|| self.client.clone())
    }

    /// Reports the status as kubelet does while nothing changes: with new times, and with [`IMAGES`] images.
    async fn report(&self, node: String) {
        let nodes: Api<Node> = Api::all(self.client_of(&node));
        let now = Timestamp::now().to_string();
        let condition = |kind: &str| json!({"type": kind, "lastHeartbeatTime": now});
        let image =
            |n: usize| json!({"names": [format!("registry.example.com/images/{n}@sha256:{n:064x}")], "sizeBytes": n});
        let conditions = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"].map(condition);
        let images: Vec<Value> = (1..=IMAGES).map(image).collect();
        let status = json!({"conditions": conditions, "images": images});
        let patch = Patch::Strategic(json!({"status": status}));
        if let Err(error) = nodes.patch_status(&node, &PatchParams::default(), &patch).await {
            tracing::warn!(
                node,
                error = &error as &dyn std::error::Error,
                "simulated kubelet cannot report its status"
            );
        }
    }

    async fn renew(&self, node: String) {
        let leases: Api<Lease> = Api::namespaced(self.client_of(&node), LEASES);
        let Some(uid) = self.view(&node).borrow().uid.clone() else { return };
        let now = MicroTime(Timestamp::now());
        let patch = json!({ "spec": { "renewTime": now } });
        let renewed = leases.patch_metadata(&node, &PatchParams::default(), &Patch::Merge(patch)).await;
        let missing = matches!(&renewed, Err(kube::Error::Api(status)) if status.code == 404);
        let failed = if missing {
            let lease = lease(&node, &uid, now);
            leases.create(&PostParams::default(), &lease).await.err()
        } else {
            renewed.err()
        };
        if let Some(error) = failed {
            tracing::warn!(node, error = &error as &dyn std::error::Error, "simulated kubelet cannot renew its lease");
            if let Some(live) = lock(&self.live).get_mut(&node) {
                live.next_heartbeat = Instant::now();
            }
        }
    }
}

/// Guard that stops on drop what [`Fleet::go_live`] started.
pub(super) struct LiveGuard {
    fleet: Arc<Fleet>,
    node: String,
}

impl Drop for LiveGuard {
    fn drop(&mut self) {
        lock(&self.fleet.live).remove(&self.node);
    }
}

/// Returns the time when the controller manager last wrote the Node's status.
fn last_status_write_by_controller(node: &PartialObjectMeta<Node>) -> Option<String> {
    let by_cluster = |f: &&ManagedFieldsEntry| {
        f.manager.as_deref() == Some("kube-controller-manager") && f.subresource.as_deref() == Some("status")
    };
    let times = node.managed_fields().iter().filter(by_cluster).filter_map(|f| f.time.as_ref());
    times.map(|t| t.0.to_string()).max()
}

/// Returns the outcome of a certificate request, if it is decided.
fn outcome(request: &CertificateSigningRequest) -> Option<Issued> {
    let status = request.status.as_ref()?;
    if let Some(chain) = status.certificate.as_ref().filter(|c| !c.0.is_empty()) {
        return Some(Issued::Yes(String::from_utf8_lossy(&chain.0).into_owned()));
    }
    let refused = status.conditions.iter().flatten().any(|c| matches!(c.type_.as_str(), "Denied" | "Failed"));
    refused.then_some(Issued::No)
}

fn lease(node: &str, uid: &str, now: MicroTime) -> Lease {
    let lease = json!({
        "metadata": {
            "name": node,
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": node, "uid": uid }],
        },
        "spec": { "holderIdentity": node, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now },
    });
    serde_json::from_value(lease).unwrap_or_default()
}

/// Returns the events of a watch that retries for ever, with backoff.
pub(super) fn events<K>(
    watch: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send,
) -> impl Stream<Item = watcher::Event<K>> + Send
where
    K: Resource + Clone + std::fmt::Debug + Send + 'static,
{
    watch
        .default_backoff()
        .inspect_err(|e| tracing::debug!(error = e as &dyn std::error::Error, "a watch of the simulated hosts failed"))
        .filter_map(|event| std::future::ready(event.ok()))
}

/// Repeats an attempt until it succeeds, with growing pauses. Stops when the future is dropped.
pub(super) async fn retry_forever<T, F: Future<Output = kube::Result<T>>>(
    what: &str,
    mut attempt: impl FnMut() -> F,
) -> T {
    let mut pause = Duration::from_millis(200);
    loop {
        match timeout(ANSWER, attempt()).await {
            Ok(Ok(value)) => return value,
            Ok(Err(error)) => {
                tracing::warn!(
                    what,
                    error = &error as &dyn std::error::Error,
                    "request of a simulated host failed and is retried"
                );
            }
            Err(_) => tracing::warn!(what, "request of a simulated host got no answer and is retried"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(10));
    }
}

fn replace(view: &watch::Sender<NodeView>, new: NodeView) {
    view.send_if_modified(|old| {
        let changed = *old != new;
        *old = new;
        changed
    });
}
