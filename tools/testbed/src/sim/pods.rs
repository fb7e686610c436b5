//! Pods on simulated Nodes: they run once bound, and end once deleted. One watch serves all hosts.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::StreamExt as _;
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api, Resource as _,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    core::Request,
    runtime::watcher,
};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::sleep};

use super::fleet::{Fleet, Identity, RequestResult, events, retry_forever};
use crate::lock::lock;

/// State of a Pod, as far as a kubelet needs it.
#[derive(Clone, Debug)]
struct Bound {
    namespace: String,
    name: String,
    uid: String,
    node: String,
    containers: Vec<(String, String)>,
    host_network: bool,
    /// True if the Pod has ended or its status reports that it is Ready.
    is_started: bool,
    /// Grace period, if the Pod is being deleted.
    ends: Option<Duration>,
}

impl Bound {
    fn read(pod: Pod) -> Option<Self> {
        let spec = pod.spec?;
        let status = pod.status.unwrap_or_default();
        let is_over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        // The node lifecycle controller sets Ready to false on pods of a node that is not Ready; a kubelet that is back restores it.
        let is_ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
        let grace = pod.metadata.deletion_grace_period_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(0);
        Some(Self {
            namespace: pod.metadata.namespace?,
            name: pod.metadata.name?,
            uid: pod.metadata.uid?,
            node: spec.node_name?,
            containers: spec.containers.into_iter().map(|c| (c.name, c.image.unwrap_or_default())).collect(),
            host_network: spec.host_network.unwrap_or(false),
            is_started: is_over || is_ready,
            ends: pod.metadata.deletion_timestamp.map(|_| Duration::from_secs(grace)),
        })
    }

    fn running(&self, address: &str) -> Value {
        let now = Timestamp::now().to_string();
        let condition = |kind| json!({ "type": kind, "status": "True", "lastTransitionTime": now });
        let containers: Vec<Value> = self
            .containers
            .iter()
            .map(|(name, image)| {
                json!({
                    "name": name, "image": image, "imageID": "", "ready": true, "started": true, "restartCount": 0,
                    "state": { "running": { "startedAt": now } },
                })
            })
            .collect();
        let conditions: Vec<Value> = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition).into();
        let mut status = json!({
            "phase": "Running",
            "hostIP": address,
            "startTime": now,
            "conditions": conditions,
            "containerStatuses": containers,
        });
        if self.host_network {
            status["podIP"] = json!(address);
        }
        json!({ "status": status })
    }
}

/// Does the work of all Pods' kubelets. `came_up` reports Nodes whose kubelets have started.
pub(super) async fn run(fleet: Arc<Fleet>, mut came_up: mpsc::UnboundedReceiver<String>) {
    let api: Api<Pod> = Api::all(fleet.client().clone());
    let mut events = std::pin::pin!(events(watcher(api, watcher::Config::default().fields("spec.nodeName!="))));
    let mut pods: HashMap<String, Bound> = HashMap::new();
    let busy = Arc::new(Mutex::new(HashSet::new()));
    let mut listed = HashSet::new();
    loop {
        tokio::select! {
            event = events.next() => match event {
                None => return,
                Some(watcher::Event::Init) => listed.clear(),
                Some(watcher::Event::InitDone) => pods.retain(|uid, _| listed.contains(uid)),
                Some(watcher::Event::Delete(pod)) => {
                    pods.remove(pod.metadata.uid.as_deref().unwrap_or_default());
                }
                Some(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => {
                    if let Some(bound) = Bound::read(pod) {
                        listed.insert(bound.uid.clone());
                        attend(&fleet, &busy, &bound);
                        pods.insert(bound.uid.clone(), bound);
                    }
                }
            },
            node = came_up.recv() => match node {
                None => return,
                Some(node) => pods.values().filter(|p| p.node == node).for_each(|p| attend(&fleet, &busy, p)),
            },
        }
    }
}

/// Starts a task that reports the Pod as running or deletes it, if either is necessary and no such task is at work.
fn attend(fleet: &Arc<Fleet>, busy: &Arc<Mutex<HashSet<(String, bool)>>>, pod: &Bound) {
    let Some(address) = fleet.live_address(&pod.node) else { return };
    if pod.ends.is_none() && pod.is_started {
        return;
    }
    let task = (pod.uid.clone(), pod.ends.is_some());
    if !lock(busy).insert(task.clone()) {
        return;
    }
    let (pod, busy) = (pod.clone(), busy.clone());
    fleet.spawn(|fleet| async move {
        match pod.ends {
            Some(grace) => end(&fleet, &pod, grace).await,
            None => start(&fleet, &pod, &address).await,
        }
        lock(&busy).remove(&task);
    });
}

async fn start(fleet: &Fleet, pod: &Bound, address: &str) {
    let patch = Patch::Strategic(pod.running(address));
    let request = || {
        Request::new(Pod::url_path(&(), Some(&pod.namespace))).patch_subresource(
            "status",
            &pod.name,
            &PatchParams::default(),
            &patch,
        )
    };
    retry_forever("pod status", || send_for_pod(fleet, pod, request(), &[404])).await;
}

async fn end(fleet: &Fleet, pod: &Bound, grace: Duration) {
    sleep(grace.min(fleet.options().termination)).await;
    fleet.containers_end(&pod.node).await;
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: Some(pod.uid.clone()), resource_version: None }),
        ..DeleteParams::default()
    };
    let request = || Request::new(Pod::url_path(&(), Some(&pod.namespace))).delete(&pod.name, &params);
    // A conflict means that another pod has this name by now.
    retry_forever("pod deletion", || send_for_pod(fleet, pod, request(), &[404, 409])).await;
}

/// Sends a request, unless the kubelet has stopped. `gone` are the status codes which mean that nothing is left to do.
async fn send_for_pod(fleet: &Fleet, pod: &Bound, request: RequestResult, gone: &[u16]) -> kube::Result<()> {
    if fleet.live_address(&pod.node).is_none() {
        return Ok(());
    }
    match fleet.send::<IgnoredAny>(&Identity::kubelet(&pod.node), request).await {
        Err(kube::Error::Api(status)) if gone.contains(&status.code) => Ok(()),
        other => other.map(drop),
    }
}
