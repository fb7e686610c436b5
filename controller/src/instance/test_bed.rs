//! Test bed: one simulated host, and an API server that answers from a script or from its objects.

use std::{path::Path, sync::Arc, time::Duration};

use api::{WindowsInstance, WindowsNodePool, WindowsNodePoolSpec};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use clap::Parser as _;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::store::Writer;
use russh::keys::{
    PrivateKey,
    ssh_key::{LineEnding, private::Ed25519Keypair},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::{
    payload::{Entry, LEVEL_FAST, write},
    sim::{HostOptions, Sim, SimHost, SimOptions},
};
use tokio_util::sync::CancellationToken;

use super::scope::Scope;
use crate::{
    args::Run,
    caches::{instances::Instances, machines::Machines, unreadable::Unreadable, watch::Event, wicd_rights::WicdRights},
    cluster::release::Release,
    context::{Base, Caches, Cluster, Context, Process},
    fake_api::FakeApi,
    runtime::metrics::Metrics,
    wmco::lock::OtherOperator,
};

/// ID of the simulated cluster.
pub(crate) const CLUSTER: &str = "cluster-1";
/// Time before the start of any test.
pub(super) const LONG_AGO: &str = "2026-01-01T00:00:00Z";
/// API path of the host's Node.
pub(crate) const NODE: &str = "/api/v1/nodes/win-1";
/// API path of the host's instance.
pub(crate) const INSTANCE: &str = "/apis/windowsmachineconfig.openshift.io/v1alpha1/windowsinstances/win-1";

/// Test bed with the host `win-1` of the pool `p`.
pub(crate) struct Bed {
    pub api: FakeApi,
    pub cx: Arc<Context>,
    pub host: SimHost,
    caches: Writers,
    files: tempfile::TempDir,
    _sim: Sim,
}

/// Writers that fill the caches of an operator.
struct Writers {
    pools: Writer<WindowsNodePool>,
    instances: Writer<WindowsInstance>,
    nodes: Writer<Node>,
}

impl Bed {
    /// Creates a bed whose API server answers only from a script.
    pub(crate) async fn new() -> Self {
        Self::with(FakeApi::new()).await
    }

    /// Creates a bed whose API server answers from a script, and otherwise from its objects.
    pub(crate) async fn with_objects() -> Self {
        Self::with(FakeApi::with_objects()).await
    }

    async fn with(api: FakeApi) -> Self {
        let files = tempfile::tempdir().unwrap();
        write(
            &files.path().join("payload"),
            &[Entry::new(r"C:\k\kubelet.exe", *b"kubelet").services(&["kubelet"])],
            LEVEL_FAST,
        )
        .unwrap();
        std::fs::write(files.path().join("wicd.exe"), b"wicd, of which hosts only check the hash").unwrap();
        for (name, key) in [("key", key()), ("new-key", new_key())] {
            let pem = BASE64_STANDARD.encode(key.to_openssh(LineEnding::LF).unwrap());
            let secret = json!({"metadata": {"name": name}, "data": {"private-key.pem": pem}});
            api.on("GET", &format!("/api/v1/namespaces/operator/secrets/{name}"), 200, secret);
        }

        let options = SimOptions {
            authorized_keys: vec![key().public_key().clone()],
            restart: Duration::from_millis(1),
            ..SimOptions::default()
        };
        let sim = Sim::without_cluster(options).unwrap();
        let host = sim.host(HostOptions::named("win-1")).await.unwrap();
        let (cx, caches) = process(&api, files.path(), 1);
        Self { api, cx, host, caches, files, _sim: sim }
    }

    /// Ends the operator at the current point, and starts the next one with empty caches.
    pub(crate) fn restart_operator(&mut self) {
        let epoch = self.cx.process.epoch + 1;
        (self.cx, self.caches) = process(&self.api, self.files.path(), epoch);
    }

    /// Restarts the operator with these payloads, each named after a minor version of Kubernetes.
    pub(super) fn take_payloads(&mut self, payloads: &[(&str, Vec<Entry>)]) {
        let dir = self.files.path().join("payload");
        std::fs::remove_dir_all(&dir).unwrap();
        for (minor, entries) in payloads {
            write(&dir.join(minor), entries, LEVEL_FAST).unwrap();
        }
        self.restart_operator();
    }

    /// Corrupts the payload on the operator's disk while the operator runs. The file sizes stay.
    pub(super) fn damage_payload(&self) {
        let mut folders = vec![self.files.path().join("payload")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if entry.is_dir() {
                    folders.push(entry);
                } else if entry.extension().is_some_and(|extension| extension == "zst") {
                    let size = usize::try_from(entry.metadata().unwrap().len()).unwrap();
                    std::fs::write(entry, vec![b'x'; size]).unwrap();
                }
            }
        }
    }

    /// Puts a pool into the cache of pools, whatever the API server has.
    pub(crate) fn cache_pool(&mut self, pool: WindowsNodePool) {
        self.caches.pools.apply_watcher_event(&Event::Apply(pool));
    }

    /// Copies the API server's instances and Nodes into the caches, as the watches do. Returns the first instance, if there is one.
    pub(crate) fn sync(&mut self) -> Option<WindowsInstance> {
        let read = |plural: &str| self.api.objects(|o| o.of_kind(plural));
        let (instances, nodes) = (read("windowsinstances"), read("nodes"));
        refill(&mut self.caches.nodes, nodes);
        refill(&mut self.caches.instances, instances.clone());
        self.cx.caches.instances.refill();
        instances.into_iter().next().map(|i| serde_json::from_value(i).unwrap())
    }

    /// Returns the instance of the host. From now on, a write of its status is answered with this instance.
    pub(crate) fn instance(&self, metadata: &Value, spec: &Value, status: &Value) -> WindowsInstance {
        let mut instance = json!({
            "apiVersion": "windowsmachineconfig.openshift.io/v1alpha1",
            "kind": "WindowsInstance",
            "metadata": {"name": "win-1", "uid": "i-1", "resourceVersion": "5"},
            "spec": {
                "poolRef": {"name": "p"},
                "host": {
                    "name": "win-1",
                    "address": self.host.address().to_string(),
                    "port": self.host.port(),
                    "username": "Administrator",
                    "hostKey": self.host.host_key().to_openssh().unwrap(),
                    "privateKeys": [{"name": "key", "key": "private-key.pem"}],
                },
            },
            "status": status,
        });
        for (part, more) in [("metadata", metadata), ("spec", spec)] {
            let more = more.as_object().unwrap().clone();
            instance[part].as_object_mut().unwrap().extend(more);
        }
        let status = format!("{INSTANCE}/status");
        self.api.forget("PATCH", &status).on("PATCH", &status, 200, instance.clone());
        serde_json::from_value(instance).unwrap()
    }

    /// Returns the host key as an instance records it.
    pub(super) fn pinned_key(&self) -> Value {
        let key = self.host.host_key();
        json!({
            "keyType": "ssh-ed25519", "publicKey": key.to_openssh().unwrap().split(' ').nth(1),
            "fingerprint": key.fingerprint(russh::keys::HashAlg::Sha256).to_string(),
        })
    }

    /// Creates the scope of the host's instance with this status.
    pub(super) fn scope_with(&self, status: &Value) -> Scope {
        self.scope(self.instance(&json!({}), &json!({}), status))
    }

    /// Creates the scope of an instance.
    pub(super) fn scope(&self, instance: impl Into<Arc<WindowsInstance>>) -> Scope {
        let instance = instance.into();
        let pool = self.cx.pool_of(&instance).unwrap();
        Scope::new(self.cx.clone(), instance, pool)
    }

    /// Creates the Node of the host, which is not Ready.
    pub(crate) fn node(&mut self, uid: &str, address: &str, annotations: &Value) {
        self.node_that_is("False", uid, address, annotations);
    }

    /// Creates the Node of the host, with this status of its `Ready` condition.
    pub(crate) fn node_that_is(&mut self, ready: &str, uid: &str, address: &str, annotations: &Value) {
        let node = json!({
            "metadata": {
                "name": "win-1", "uid": uid, "resourceVersion": "7",
                "labels": {"kubernetes.io/os": "windows"}, "annotations": annotations,
            },
            "status": {
                "addresses": [{"type": "InternalIP", "address": address}],
                "conditions": [{"type": "Ready", "status": ready, "message": "no network"}],
            },
        });
        self.api.forget("GET", NODE).on("GET", NODE, 200, node.clone());
        self.api.forget("PATCH", NODE).on("PATCH", NODE, 200, node.clone());
        self.caches.nodes.apply_watcher_event(&Event::Apply(serde_json::from_value(node).unwrap()));
    }

    /// Makes the API server answer that the Node of the host does not exist. The cache keeps the Node.
    pub(crate) fn no_node(&self) {
        self.api.forget("GET", NODE).fail("GET", NODE, 404, "NotFound", "there is no such Node", Value::Null);
    }

    /// Returns the number of requests that changed or deleted a Node, or evicted a pod.
    pub(crate) fn disturbed(&self) -> usize {
        let is_disturbing = |path: &str| path.starts_with("/api/v1/nodes/") || path.ends_with("/eviction");
        self.api.all_calls().iter().filter(|c| c.method != "GET" && is_disturbing(&c.path)).count()
    }
}

/// Returns an operation that began long ago, with these fields in addition.
pub(super) fn operation(id: &str, type_: &str, step: &str, more: &Value) -> Value {
    let mut operation =
        json!({"id": id, "type": type_, "step": step, "epoch": 1, "startTime": LONG_AGO, "stepStartTime": LONG_AGO});
    operation.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    operation
}

/// Returns the key that the host accepts, in the Secret `key`.
pub(crate) fn key() -> PrivateKey {
    PrivateKey::from(Ed25519Keypair::from_seed(&[7; 32]))
}

/// Returns another key, in the Secret `new-key`.
pub(crate) fn new_key() -> PrivateKey {
    PrivateKey::from(Ed25519Keypair::from_seed(&[8; 32]))
}

/// Images that the hosts of the pool `p` pull ahead, once granted.
pub(crate) const IMAGES: [&str; 2] = ["r.example/a:1", "r.example/b:1"];

/// Creates an operator that has just become the leader.
fn process(api: &FakeApi, files: &Path, epoch: i64) -> (Arc<Context>, Writers) {
    let args = ["run", "--namespace", "operator", "--loopback-hosts", "--backoff-base", "1ms", "--backoff-max", "2s"];
    let args = args.into_iter().map(Into::into);
    let args =
        args.chain(["--payload".into(), files.join("payload").into(), "--wicd".into(), files.join("wicd.exe").into()]);
    let args = Run::parse_from::<_, std::ffi::OsString>(args);
    let release = Release::load(wnp_core::render::fixtures::cluster(), &args).unwrap();
    let (mut pools, instances, nodes) = (Writer::default(), Writer::default(), Writer::default());
    let spec = WindowsNodePoolSpec {
        provisioning: Some(api::Provisioning {
            pre_pull_images: Some(IMAGES.map(Into::into).into()),
            ..api::Provisioning::default()
        }),
        ..WindowsNodePoolSpec::default()
    };
    pools.apply_watcher_event(&Event::Apply(WindowsNodePool::new("p", spec)));
    let caches = Caches {
        pools: pools.as_reader(),
        instances: Instances::new(instances.as_reader()),
        nodes: nodes.as_reader(),
        machines: Machines::default(),
        unreadable: Unreadable::default(),
    };
    let process = Process {
        args,
        identity: format!("operator-{epoch}"),
        epoch,
        metrics: Arc::new(Metrics::default()),
        stop: CancellationToken::new(),
        is_one_shot: false,
    };
    let cluster = Cluster::fake(api.client());
    let mut base = Base::new(process, cluster, CLUSTER.into(), caches);
    base.wicd.rights = WicdRights::default();
    base.other_operator = OtherOperator::default();
    let cx = Context::new(Arc::new(base), release);
    (Arc::new(cx), Writers { pools, instances, nodes })
}

fn refill<K>(cache: &mut Writer<K>, objects: Vec<Value>)
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + 'static,
{
    cache.apply_watcher_event(&Event::Init);
    for object in objects {
        cache.apply_watcher_event(&Event::InitApply(serde_json::from_value(object).unwrap()));
    }
    cache.apply_watcher_event(&Event::InitDone);
}
