//! Tests of whole host operations against the objects of an API server and a simulated host. The tests interrupt and overtake operations at each
//! write, remove hosts during the join, and cut connections at many points.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use api::{
    GrantType, TemplateSpec, WindowsInstance,
    host::{RestartCause, path},
    names,
};
use futures::StreamExt as _;
use kube::runtime::controller::Action;
use serde_json::{Value, json};
use testbed::sim::Fault;

use super::{
    reconcile_instance,
    test_bed::{Bed, CLUSTER, IMAGES, LONG_AGO, NODE, key, new_key, operation},
};
use crate::fake_api::{AtWrite, Call};

/// Maximum number of writes, more than any operation makes.
const MAX_WRITES: usize = 100;
/// Time limit, far more than any operation takes.
const LIMIT: Duration = Duration::from_mins(5);

/// Host that operations change, and its cluster.
pub(super) struct World {
    pub(super) bed: Bed,
    /// Number of kubelet starts seen so far: a Node is registered only when kubelet starts.
    starts: u64,
    /// True if the pool removes the host when the operator crashes.
    leaves_at_crash: bool,
}

pub(super) fn grant(id: &str, type_: GrantType, more: &Value) -> Value {
    let mut grant = json!({"id": id, "type": type_.as_str(), "grantedTime": LONG_AGO});
    grant.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    grant
}

impl World {
    pub(super) async fn new() -> Self {
        let bed = Bed::with_objects().await;
        let mut instance = serde_json::to_value(bed.instance(&json!({}), &json!({}), &json!({}))).unwrap();
        let metadata = json!({"name": "win-1", "uid": "i-1", "finalizers": [names::FINALIZER_INSTANCE]});
        instance["metadata"] = metadata;
        bed.api.forget("PATCH", &format!("{}/status", super::test_bed::INSTANCE));
        bed.api.objects(|o| o.put("windowsinstances", instance));
        Self { bed, starts: 0, leaves_at_crash: false }
    }

    /// Returns a world whose host is a node, and the version that the node follows.
    pub(super) async fn joined() -> (Self, String) {
        let mut world = Self::new().await;
        let version = world.begin_join();
        world.works_until("it joins", |w| w.follows(&version)).await;
        (world, version)
    }

    /// Stores a version, and returns its name.
    pub(super) fn publish(&self, max_pods: u32) -> String {
        let template: TemplateSpec = serde_json::from_value(json!({"kubelet": {"maxPods": max_pods}})).unwrap();
        let release = self.bed.cx.hosts.release.get();
        let rendered = release.render(&template).unwrap();
        let version = rendered.name("1.0.0");
        let config_map = serde_json::to_value(rendered.to_config_map(&version, "operator")).unwrap();
        self.bed.api.objects(|o| o.put("configmaps", config_map));
        version
    }

    pub(super) fn instance(&self) -> Option<Value> {
        self.bed.api.objects(|o| o.get("windowsinstances", "win-1").cloned())
    }

    /// Returns the status of the instance, or null if there is none.
    pub(super) fn status(&self) -> Value {
        self.instance().map(|i| i["status"].clone()).unwrap_or_default()
    }

    /// Reports whether the last operation that ended has this ID.
    pub(super) fn has_ended(&self, id: &str) -> bool {
        self.status()["lastOperation"] == id
    }

    /// Returns the operation, or null if there is none.
    pub(super) fn operation(&self) -> Value {
        self.status()["operation"].clone()
    }

    /// Returns a condition of the instance, or null if it is missing.
    pub(super) fn condition(&self, type_: &str) -> Value {
        let conditions = self.status()["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|c| c["type"] == type_).unwrap_or_default()
    }

    /// Reports whether an attempt has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.status()["failures"]["count"].is_number()
    }

    pub(super) fn node(&self) -> Option<Value> {
        self.bed.api.objects(|o| o.get("nodes", "win-1").cloned())
    }

    pub(super) fn edit(&self, change: impl FnOnce(&mut Value)) {
        self.bed.api.objects(|o| o.edit("windowsinstances", "win-1", change));
    }

    /// Changes the Node, as another client would.
    pub(super) fn edit_node(&self, change: impl FnOnce(&mut Value)) {
        self.bed.api.objects(|o| o.edit("nodes", "win-1", change));
    }

    /// Sets the status of the Node's condition `Ready`.
    pub(super) fn set_ready(&self, status: &str) {
        self.edit_node(|n| n["status"]["conditions"] = json!([{"type": "Ready", "status": status}]));
    }

    /// Runs a pod on the node.
    pub(super) fn run_pod(&self, name: &str) {
        let pod = json!({
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"nodeName": "win-1"},
            "status": {"phase": "Running"},
        });
        self.bed.api.objects(|o| o.put("pods", pod));
    }

    pub(super) fn has_pods(&self) -> bool {
        self.bed.api.objects(|o| !o.of_kind("pods").is_empty())
    }

    /// Gives the host a version and a grant to join. Returns the version.
    pub(super) fn begin_join(&self) -> String {
        let version = self.publish(110);
        self.grant("join-1", GrantType::Provision, &version, &json!({}));
        version
    }

    /// Returns the file with the keys that the host accepts.
    fn authorized_keys(&self) -> std::path::PathBuf {
        self.bed.host.drive_c().join("ProgramData/ssh/administrators_authorized_keys")
    }

    fn write_authorized_keys(&self, text: &str) {
        let file = self.authorized_keys();
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    /// Gives the host another key and a grant to rotate to it, as its pool does.
    fn begin_key_rotation(&self) {
        self.edit(|i| {
            let keys = ["new-key", "key"].map(|name| json!({"name": name, "key": "private-key.pem"}));
            i["spec"]["host"]["privateKeys"] = json!(keys);
            i["spec"]["grant"] = grant("rotate-1", GrantType::RotateKey, &json!({}));
        });
    }

    /// Gives the host a version and a grant for it, as its pool does.
    pub(super) fn grant(&self, id: &str, type_: GrantType, version: &str, more: &Value) {
        self.edit(|i| {
            i["spec"]["desired"] = json!({"version": version});
            i["spec"]["grant"] = grant(id, type_, more);
        });
    }

    /// Gives the host a new version, and a grant to update to it with this disruption. Returns the version.
    pub(super) fn begin_update(&self, disruption: &str) -> String {
        let version = self.publish(120);
        self.grant("update-1", GrantType::Update, &version, &json!({"version": version, "disruption": disruption}));
        version
    }

    /// Marks the host as leaving and grants its removal, as its pool does.
    pub(super) fn take_out(&self) {
        self.edit(|i| {
            i["spec"]["leaving"] = json!({"since": LONG_AGO, "why": "it is no longer listed"});
            i["spec"]["grant"] = grant("remove-1", GrantType::Remove, &json!({}));
        });
    }

    /// Reports whether the host is a node of this version, has no operation, and is not cordoned.
    pub(super) fn follows(&self, version: &str) -> bool {
        let (Some(instance), Some(node)) = (self.instance(), self.node()) else { return false };
        instance["status"]["currentVersion"] == version
            && instance["status"]["operation"].is_null()
            && node["metadata"]["annotations"][names::key::VERSION] == version
            && !is_cordoned(&node)
    }

    /// Reports whether the instance, the Node and the operator's files on the host are gone.
    pub(super) fn is_gone(&self) -> bool {
        let on_host =
            |file: &str| self.bed.host.drive_c().join(file.trim_start_matches(r"C:\").replace('\\', "/")).exists();
        self.instance().is_none() && self.node().is_none() && !on_host(path::STATE) && !on_host(path::ROOT)
    }

    /// Reports whether the operator has ever cordoned the Node.
    fn was_cordoned(&self) -> bool {
        let calls = self.bed.api.all_calls();
        calls.iter().any(|c| c.method == "PATCH" && c.path == NODE && is_cordoned(&c.body))
    }

    /// Simulates kubelet and wicd on the host.
    fn host_works(&mut self) {
        let starts = self.bed.host.kubelet_starts();
        if let Some(Ok(mut node)) = self.bed.host.node() {
            let is_start = starts != self.starts;
            self.starts = starts;
            match self.node() {
                None if is_start => drop(self.bed.api.objects(|o| o.put("nodes", node))),
                Some(known) if is_start || known["status"]["nodeInfo"] != node["status"]["nodeInfo"] => {
                    self.edit_node(|n| n["status"] = node["status"].take());
                }
                // kubelet registers only when it starts.
                _ => {}
            }
        }
        let node = self.node().map(|node| serde_json::from_value(node).unwrap());
        let changes = self.bed.host.wicd_report(node.as_ref());
        if !changes.is_empty() {
            self.edit_node(|node| {
                for (key, value) in changes {
                    node["metadata"]["annotations"][key] = json!(value);
                }
            });
        }
    }

    /// Runs the operator and the host until a condition holds. Restarts the operator after a crash.
    pub(super) async fn works_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        // Objects at the last reconcile that requested no requeue.
        let mut asleep = None;
        loop {
            self.host_works();
            let instance: Option<WindowsInstance> = self.bed.sync();
            if is_so(self) {
                return;
            }
            let seen = Some((self.instance(), self.node()));
            let shown = || {
                let objects = serde_json::to_string_pretty(&(self.instance(), self.node())).unwrap();
                let host =
                    (self.bed.host.services(), self.bed.host.node(), self.bed.host.kubelet_starts(), self.starts);
                format!("{objects}\nhost: {host:?}")
            };
            assert!(began.elapsed() < LIMIT, "{what}: {}\nunexpected {:?}", shown(), self.bed.api.unexpected());
            let Some(instance) = instance.map(Into::into) else { panic!("{what}: the instance is gone, {}", shown()) };
            if asleep == seen {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
            let (api, cx) = (self.bed.api.clone(), self.bed.cx.clone());
            let crashed = tokio::select! {
                result = Box::pin(reconcile_instance(&instance, &cx)) => {
                    if let Err(error) = &result {
                        let is_expected = matches!(error.reason().as_str(), "Conflict" | "ApiError");
                        assert!(is_expected, "{what}: {error}\n{}", shown());
                    }
                    asleep = seen.filter(|_| result.is_ok_and(|action| action == Action::await_change()));
                    false
                }
                () = api.crashed() => true,
            };
            if crashed {
                asleep = None;
                self.bed.restart_operator();
                if std::mem::take(&mut self.leaves_at_crash) {
                    self.take_out();
                }
            }
            // Replaces the wait until the next watch event or requeue.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub(super) fn is_cordoned(node: &Value) -> bool {
    node["spec"]["unschedulable"] == true
}

/// Runs an operation with this interruption at its first write, then at its second, and so on, until it has no more writes.
async fn at_each_write(what: AtWrite, prepare: impl AsyncFn() -> World, operate: impl AsyncFn(&mut World)) {
    let ended = AtomicBool::new(false);
    let with_number = async |number: usize| {
        if ended.load(Ordering::Relaxed) {
            return;
        }
        let mut world = prepare().await;
        world.bed.api.at_write(number, what);
        operate(&mut world).await;
        if world.bed.api.is_still_to_come() {
            assert!(number > 3, "the operation made at most {number} writes: it did too little");
            ended.store(true, Ordering::Relaxed);
        }
    };
    // The runs are concurrent, because each of them mostly waits.
    futures::stream::iter(0..MAX_WRITES).for_each_concurrent(40, with_number).await;
    assert!(ended.into_inner(), "the operation has no end");
}

/// Runs an operation with an interruption of each kind at each of its writes.
pub(super) async fn interrupted(prepare: impl AsyncFn() -> World, operate: impl AsyncFn(&mut World)) {
    for what in [AtWrite::Crash, AtWrite::Overtake, AtWrite::Fail] {
        at_each_write(what, &prepare, &operate).await;
    }
}

/// Returns a world whose host is a node.
async fn a_node() -> World {
    World::joined().await.0
}

#[tokio::test]
async fn a_join_that_is_interrupted_anywhere_ends_with_a_node() {
    interrupted(World::new, async |world: &mut World| {
        let version = world.begin_join();
        world.works_until("it joins", |w| w.follows(&version)).await;
    })
    .await;
}

#[tokio::test]
async fn a_removal_that_is_interrupted_anywhere_leaves_nothing() {
    interrupted(a_node, async |world: &mut World| {
        world.take_out();
        world.works_until("it leaves", World::is_gone).await;
    })
    .await;
}

/// Another controller's finalizer keeps a Node: the operator deletes the Node once, and the instance names the finalizer.
#[tokio::test]
async fn a_node_that_a_finalizer_keeps_is_waited_for_and_named() {
    let (mut world, _) = World::joined().await;
    let keep = |world: &World, finalizers: Value| world.edit_node(|n| n["metadata"]["finalizers"] = finalizers);
    keep(&world, json!(["storage.example.com/detach"]));
    world.take_out();
    let says = |world: &World| {
        let text = world.status()["conditions"].to_string();
        text.contains("finalizers are removed: storage.example.com/detach") && text.contains("patch node win-1")
    };
    world.works_until("it names the finalizer", says).await;
    let deletions = world.bed.api.calls("DELETE", "/api/v1/nodes/win-1").len();
    assert_eq!(deletions, 1, "the Node is deleted again and again");
    keep(&world, json!([]));
    world.works_until("it leaves", World::is_gone).await;
}

#[tokio::test]
async fn a_host_that_is_cut_off_anywhere_joins() {
    let (world, _) = World::joined().await;
    let bytes = world.bed.host.stats().bytes_received;
    for part in 0..12 {
        let mut world = World::new().await;
        world.bed.host.fault(Fault::CutAfterBytes { bytes: bytes * part / 12, once: true });
        let version = world.begin_join();
        world.works_until("it joins", |w| w.follows(&version)).await;
        assert_eq!(world.bed.cx.cluster.id, CLUSTER);
    }
}

#[tokio::test]
async fn a_host_that_is_removed_anywhere_in_its_join_leaves_nothing() {
    let prepare = async || World { leaves_at_crash: true, ..World::new().await };
    at_each_write(AtWrite::Crash, prepare, async |world: &mut World| {
        let version = world.begin_join();
        world.works_until("it joins or leaves", |w| w.follows(&version) || w.is_gone()).await;
        // The crash after the last write may come too late.
        if world.instance().is_some() && !world.bed.api.is_still_to_come() {
            world.take_out();
            world.works_until("it leaves", World::is_gone).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_non_disruptive_change_that_is_interrupted_anywhere_disturbs_nothing() {
    interrupted(a_node, async |world: &mut World| {
        let boots = world.bed.host.boots();
        let version = world.begin_update("None");
        world.works_until("it is updated", |w| w.follows(&version)).await;
        assert_eq!(world.bed.host.boots(), boots);
        assert!(!world.was_cordoned());
    })
    .await;
}

#[tokio::test]
async fn a_change_with_a_drain_that_is_interrupted_anywhere_moves_the_pods_first() {
    let prepare = async || {
        let world = World::joined().await.0;
        world.run_pod("cart");
        world
    };
    interrupted(prepare, async |world: &mut World| {
        let starts = world.bed.host.kubelet_starts();
        let version = world.begin_update("Drain");
        let is_updated = |w: &World| {
            assert!(!w.has_pods() || w.bed.host.kubelet_starts() == starts, "kubelet was restarted under a pod");
            w.follows(&version)
        };
        world.works_until("it is updated", is_updated).await;
        let calls = world.bed.api.all_calls();
        let first = |is_it: &dyn Fn(&Call) -> bool| calls.iter().position(is_it);
        let cordoned = first(&|c| c.method == "PATCH" && c.path == NODE && is_cordoned(&c.body)).unwrap();
        let evicted = first(&|c| c.path.ends_with("/eviction")).unwrap();
        assert!(cordoned < evicted, "a pod was evicted while others could come");
    })
    .await;
}

/// A Node that a user deletes is registered again without a cordon, and pods are scheduled to it.
#[tokio::test]
async fn a_node_recreated_during_its_change_is_drained_again() {
    let (mut world, _) = World::joined().await;
    let starts = world.bed.host.kubelet_starts();
    let version = world.begin_update("Drain");
    world.works_until("it is drained", |w| w.operation()["step"] == "Drain").await;
    let mut node = world.node().unwrap();
    node["metadata"]["uid"] = json!("made-again");
    node["spec"] = json!({});
    world.bed.api.objects(|o| o.put("nodes", node));
    world.run_pod("late");
    let is_updated = |w: &World| {
        assert!(!w.has_pods() || w.bed.host.kubelet_starts() == starts, "kubelet was restarted under a pod");
        w.follows(&version)
    };
    world.works_until("it is updated", is_updated).await;
    let calls = world.bed.api.all_calls();
    let cordons = calls.iter().filter(|c| c.method == "PATCH" && c.path == NODE && is_cordoned(&c.body)).count();
    assert!(cordons >= 2, "the new Node was not cordoned");
}

/// The host accepts the old key or the new one at any time. Otherwise, no operator could log in again.
#[tokio::test]
async fn a_key_rotation_that_is_interrupted_anywhere_leaves_the_new_key_alone() {
    const FOREIGN: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPeoples peoples";

    let prepare = async || {
        let world = World::joined().await.0;
        let old = key().public_key().to_openssh().unwrap();
        world.write_authorized_keys(&format!("{FOREIGN}\n{old}\n"));
        world
    };
    interrupted(prepare, async |world: &mut World| {
        world.begin_key_rotation();
        world.works_until("it has the new key", |w| w.has_ended("rotate-1")).await;
        let left = std::fs::read_to_string(world.authorized_keys()).unwrap();
        let keys: Vec<&str> = left.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
        let new = new_key().public_key().to_openssh().unwrap();
        assert_eq!(keys, [FOREIGN, &new].map(|line| line.split(' ').nth(1).unwrap()), "{left}");
        assert!(world.status()["keyRotation"].is_null());
    })
    .await;
}

#[tokio::test]
async fn a_pull_of_images_that_is_interrupted_anywhere_pulls_each_of_them_once() {
    interrupted(a_node, async |world: &mut World| {
        world.edit(|i| i["spec"]["grant"] = grant("pull-1", GrantType::PullImages, &json!({})));
        world.works_until("it has the images", |w| w.has_ended("pull-1")).await;
        let images = world.bed.host.windows().images_state().clone();
        let mut names: Vec<&str> = images.pulls.iter().map(|(image, _)| image.as_str()).collect();
        // After a failure, another image comes first.
        names.sort_unstable();
        assert_eq!((names.as_slice(), images.pinned.len()), (&IMAGES[..], 2));
        let status = world.status()["prePulled"].clone();
        assert_eq!((&status["requested"], &status["images"]), (&json!(IMAGES), &json!(IMAGES)));
        assert!(status["failures"].is_null());
    })
    .await;
}

/// An image that cannot be pulled must block neither other images nor the node.
#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_tried_again() {
    let (mut world, version) = World::joined().await;
    world.bed.host.windows().images_state().refused.insert(IMAGES[0].into(), "no such image\u{7}".into());
    world.edit(|i| i["spec"]["grant"] = grant("pull-1", GrantType::PullImages, &json!({})));
    let has_failed = |w: &World| {
        let status = w.status()["prePulled"].clone();
        status["failures"]["count"].as_i64() > Some(1) && status["images"] == json!([IMAGES[1]])
    };
    world.works_until("it has the other one", has_failed).await;
    assert!(world.follows(&version) || world.operation()["type"] == "PullImages");
    let failures = world.status()["prePulled"]["failures"].clone();
    assert_eq!((&failures["lastReason"], &failures["step"]), (&json!("PrePullFailed"), &json!("PullImages")));
    assert!(!failures["lastMessage"].as_str().unwrap().contains('\u{7}'));
    world.bed.host.windows().images_state().refused.clear();
    world.works_until("it has both", |w| w.has_ended("pull-1")).await;
    assert!(!world.was_cordoned());
}

/// A pull takes minutes: joins, changes and removals of other hosts must not wait for a pull, and a pull must not wait for them.
#[tokio::test]
async fn a_pull_of_images_takes_no_connection_of_other_work() {
    let (mut world, _) = World::joined().await;
    let connections = world.bed.cx.hosts.connections.clone();
    let taken: Vec<_> = (0..connections.all()).filter_map(|n| connections.take(&format!("pool-{n}"))).collect();
    assert_eq!(taken.len(), connections.all());
    world.edit(|i| i["spec"]["grant"] = grant("pull-1", GrantType::PullImages, &json!({})));
    world.works_until("it has the images", |w| w.has_ended("pull-1")).await;
}

/// The pool combines a restart and a new wicd in one operation.
#[tokio::test]
async fn a_host_that_must_be_restarted_gets_another_wicd_with_the_restart() {
    let (mut world, version) = World::joined().await;
    let boots = world.bed.host.boots();
    world.edit_node(|n| n["metadata"]["annotations"][names::key::REBOOT_REQUIRED] = json!("true"));
    world.edit(|i| i["status"]["wicd"] = json!("another"));
    world.grant("update-1", GrantType::Update, &version, &json!({"version": version, "disruption": "Reboot"}));
    world.works_until("it has the other wicd", |w| w.has_ended("update-1")).await;
    assert_eq!(world.status()["wicd"], json!(world.bed.cx.hosts.release.get().wicd.sha256));
    assert_eq!(world.bed.host.boots(), boots + 1);
}

/// A pool usually revokes the grant of a failed key rotation. Here, the grant stays, as if the pool observed the host only after its wait.
#[tokio::test]
async fn a_failed_key_rotation_is_retried_although_the_instance_changes() {
    let (mut world, _) = World::joined().await;
    world.begin_key_rotation();
    let has_failed = |w: &World| w.status()["keyRotation"]["failures"]["count"] == 1;
    world.works_until("it finds no file with the old key", has_failed).await;
    let old = key().public_key().to_openssh().unwrap();
    world.write_authorized_keys(&format!("{old}\n"));
    // Any change triggers a reconcile before the requeue.
    let next = jiff::Timestamp::now() + Duration::from_secs(2);
    world.edit(|i| i["status"]["keyRotation"]["failures"]["nextRetryTime"] = json!(next));
    world.works_until("it has the new key", |w| w.has_ended("rotate-1")).await;
}

/// User data of the legacy operator writes its key again at each start: without that key, the next restart would lock the operator out.
#[tokio::test]
async fn a_host_whose_user_data_is_of_another_operator_keeps_its_key() {
    let (mut world, _) = World::joined().await;
    let old = format!("{}\n", key().public_key().to_openssh().unwrap());
    let file = world.authorized_keys();
    world.write_authorized_keys(&old);
    world.edit(|i| i["spec"]["origin"] = json!({"source": "machines", "machine": "openshift-machine-api/win-a"}));
    world.begin_key_rotation();
    let failure = |w: &World| w.status()["keyRotation"]["failures"].clone();
    world.works_until("it is refused", |w| failure(w)["count"] == 1).await;
    assert_eq!(failure(&world)["lastReason"], "KeyRotationFailed");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), old, "the file was changed");

    // User data of this operator has run on the host.
    std::fs::write(file.with_file_name("windows-node-pools-machine.txt"), "4C4C4544-0042\r\n").unwrap();
    let next = jiff::Timestamp::now() + Duration::from_secs(2);
    world.edit(|i| i["status"]["keyRotation"]["failures"]["nextRetryTime"] = json!(next));
    world.works_until("it has the new key", |w| w.has_ended("rotate-1")).await;
    assert!(!std::fs::read_to_string(&file).unwrap().contains(old.split(' ').nth(1).unwrap()));
}

/// A non-disruptive change is granted without a slot in the disruption budget, together with many others.
#[tokio::test]
async fn a_non_disruptive_change_that_turns_out_to_need_a_restart_waits_for_its_turn() {
    let (mut world, _) = World::joined().await;
    let boots = world.bed.host.boots();
    world.bed.host.fault(Fault::NeedsReboot);
    world.begin_update("None");
    let waits = |w: &World| {
        let asks = |n: Value| n["metadata"]["annotations"].get(names::key::REBOOT_REQUIRED).is_some();
        w.node().is_some_and(asks) && w.operation().is_null() && w.has_ended("update-1")
    };
    world.works_until("it asks for a restart", waits).await;
    assert_eq!(world.bed.host.boots(), boots, "it was restarted without a turn");
    assert!(!world.was_cordoned(), "it was drained without a turn");
}

/// A grant for a node that accepts no pods needs no slot in the budget. The node may have recovered just before.
#[tokio::test]
async fn a_recovered_node_is_not_cordoned_outside_the_disruption_budget() {
    let (mut world, _) = World::joined().await;
    world.take_out();
    world.edit(|i| i["spec"]["grant"]["withoutPlace"] = json!(true));
    for _ in 0..2 {
        let instance = world.bed.sync().unwrap().into();
        Box::pin(reconcile_instance(&instance, &world.bed.cx)).await.unwrap();
    }
    assert!(!world.was_cordoned());
    // The pool finds a slot for the node.
    world.edit(|i| drop(i["spec"]["grant"].as_object_mut().unwrap().remove("withoutPlace")));
    world.works_until("it leaves", World::is_gone).await;
    assert!(world.was_cordoned());
}

/// The network was down and is back: the node's pods have kept running.
#[tokio::test]
async fn a_node_that_is_ready_again_by_itself_is_not_repaired() {
    let (mut world, version) = World::joined().await;
    let before = (world.bed.host.kubelet_starts(), world.bed.host.boots());
    world.set_ready("Unknown");
    world.bed.host.fault(Fault::Refuse);
    world.grant("repair-1", GrantType::Repair, &version, &json!({"disruption": "Reboot"}));
    world.works_until("it cannot be reached", World::has_failed).await;
    world.bed.host.mend();
    world.set_ready("True");
    let is_over = |w: &World| w.operation().is_null() && w.has_ended("repair-1") && w.status()["failures"].is_null();
    world.works_until("it is left as it is", is_over).await;
    assert_eq!((world.bed.host.kubelet_starts(), world.bed.host.boots()), before, "it was disturbed");
}

#[tokio::test]
async fn a_removal_whose_host_is_gone_says_how_to_end_it() {
    let (mut world, _) = World::joined().await;
    world.bed.host.fault(Fault::Refuse);
    world.take_out();
    world.works_until("it fails", World::has_failed).await;
    let message = world.status()["failures"]["lastMessage"].to_string();
    for part in ["kubectl windows-node-pools abandon win-1", &format!("{}=true", names::key::ABANDON)] {
        assert!(message.contains(part), "{part} in {message}");
    }
}

/// The host was unreachable when it was to be deconfigured, so its node still works.
#[tokio::test]
async fn a_removal_drains_again_if_a_user_uncordons_the_node_before_the_cleanup() {
    let (mut world, _) = World::joined().await;
    world.take_out();
    world.edit(|i| {
        i["metadata"]["deletionTimestamp"] = json!(LONG_AGO);
        let drain = json!({"drain": {"startTime": LONG_AGO, "remaining": 0}});
        i["status"]["operation"] = operation("remove-1", "Remove", "Deconfigure", &drain);
    });
    world.run_pod("cart");
    let is_gone = |w: &World| {
        assert!(!w.has_pods() || w.bed.host.services().contains_key("kubelet"), "kubelet was removed under a pod");
        w.is_gone()
    };
    world.works_until("it leaves", is_gone).await;
    assert!(world.was_cordoned());
}

/// The operator that began the removal ran on a machine whose clock was years ahead. Another operator has replaced it.
#[tokio::test]
async fn a_removal_that_a_wrong_clock_began_ends() {
    let (mut world, _) = World::joined().await;
    world.take_out();
    let wrong = "2099-01-01T00:00:00Z";
    world.edit(|i| {
        i["spec"]["leaving"]["since"] = json!(wrong);
        let drain = json!({"startTime": wrong, "cordonedTime": wrong, "remaining": 0});
        let more = json!({"startTime": wrong, "stepStartTime": wrong, "drain": drain});
        i["status"]["operation"] = operation("remove-1", "Remove", "Drain", &more);
    });
    world.works_until("it leaves", World::is_gone).await;
}

#[tokio::test]
async fn an_annotation_without_effect_is_reported() {
    let (mut world, _) = World::joined().await;
    world.take_out();
    world.edit(|i| i["metadata"]["annotations"][names::key::ABANDON] = json!("yes"));
    let notes = |w: &World| {
        let events = w.bed.api.all_calls().into_iter().filter(|c| c.method == "POST" && c.path.ends_with("/events"));
        events.filter(|c| c.body["reason"] == "AnnotationWithoutEffect").map(|c| c.body["note"].to_string()).collect()
    };
    world.works_until("it is reported", |w| !Vec::<String>::is_empty(&notes(w))).await;
    let notes = notes(&world);
    assert!(
        notes[0].contains("abandon=yes of the WindowsInstance has no effect: its value must be true or false"),
        "{notes:?}"
    );
    assert!(world.instance().unwrap()["metadata"]["deletionTimestamp"].is_null(), "the host was abandoned");
}

/// The cache may still contain an instance that was just abandoned and deleted.
#[tokio::test]
async fn an_abandoned_host_is_not_abandoned_twice() {
    let (mut world, _) = World::joined().await;
    world.take_out();
    world.edit(|i| i["metadata"]["annotations"][names::key::ABANDON] = json!("true"));
    world.edit(|i| i["metadata"]["deletionTimestamp"] = json!(LONG_AGO));
    let seen: WindowsInstance = world.bed.sync().unwrap();
    world.works_until("it is gone", |w| w.instance().is_none()).await;
    let result = super::remove::abandon(&mut world.bed.scope(seen)).await;
    assert!(result.as_ref().is_err_and(|error| error.reason() == "Conflict"), "{result:?}");
}

#[tokio::test]
async fn node_metadata_refused_by_the_api_server_is_a_failure_of_its_host() {
    let (mut world, version) = World::joined().await;
    let refusal = "metadata.labels: Invalid value: \"b\"";
    world.bed.api.fail("PATCH", NODE, 422, "Invalid", refusal, Value::Null);
    let wants = |hall: &str| {
        let hall = json!({"example.com/hall": hall});
        move |i: &mut Value| i["spec"]["host"]["labels"] = hall
    };
    world.edit(wants("b"));
    let failures = |w: &World| w.status()["failures"].clone();
    world.works_until("it says so", |w| failures(w)["lastReason"] == "NodeRefused").await;
    let seen = failures(&world);
    assert!(seen["lastMessage"].as_str().is_some_and(|m| m.contains(refusal)), "{seen}");
    assert!(!world.was_cordoned(), "{seen}");
    world.bed.api.forget("PATCH", NODE);
    world.edit(wants("c"));
    let has_label = |w: &World| w.node().is_some_and(|n| n["metadata"]["labels"]["example.com/hall"] == "c");
    world.works_until("its Node has the label", |w| has_label(w) && failures(w).is_null() && w.follows(&version)).await;
}

/// All missing requirements are reported at once, before the host is changed.
#[tokio::test]
async fn a_host_that_fails_the_preflight_check_is_not_changed() {
    let mut world = World::new().await;
    world.bed.host.fault(Fault::ClockBehind(Duration::from_hours(1)));
    world.bed.host.windows().state().unreachable = Some("timed out".to_owned());
    let version = world.begin_join();
    world.works_until("it fails", World::has_failed).await;
    let condition = world.condition("PreflightPassed");
    let message = condition["message"].as_str().unwrap_or_default();
    assert_eq!((condition["status"].as_str(), condition["reason"].as_str()), (Some("False"), Some("ClockSkew")));
    assert!(message.contains("s behind") && message.contains("timed out") && message.contains("https://"), "{message}");
    assert!(world.bed.host.services().is_empty() && world.node().is_none(), "the host was changed");

    world.bed.host.mend();
    world.bed.host.windows().state().unreachable = None;
    world.edit(|i| i["status"]["failures"]["nextRetryTime"] = json!(jiff::Timestamp::now()));
    world.works_until("it joins", |w| w.follows(&version)).await;
    assert_eq!(world.condition("PreflightPassed")["status"], "True");
}

/// Each weakness of the host is reported with its remedy, and blocks nothing.
#[tokio::test]
async fn preflight_warnings_are_reported_and_block_nothing() {
    let mut world = World::new().await;
    world.bed.host.windows().state().restart_causes.insert(RestartCause::WindowsUpdate);
    world.bed.host.windows().state().antivirus.filters.push("csagent".to_owned());
    world.bed.host.windows().state().machine.domain = Some("CORP.example.com".to_owned());
    let version = world.begin_join();
    world.works_until("it joins", |w| w.follows(&version)).await;
    let passed = world.condition("PreflightPassed");
    assert_eq!((passed["status"].as_str(), passed["reason"].as_str()), (Some("True"), Some("PassedWithWarnings")));
    let message = passed["message"].as_str().unwrap_or_default();
    assert!(message.contains("Windows Update") && message.contains("csagent"), "{message}");
    let label = |w: &World| w.node().is_some_and(|n| n["metadata"]["labels"][names::key::DOMAIN] == "corp.example.com");
    world.works_until("its Node has the label of its domain", label).await;
}

/// A restart may restore the network of the host.
#[tokio::test]
async fn a_node_that_cannot_reach_the_api_server_is_repaired() {
    let (mut world, version) = World::joined().await;
    let boots = world.bed.host.boots();
    world.bed.host.windows().state().unreachable = Some("timed out".to_owned());
    world.bed.host.windows().state().ports_in_use.insert(10250);
    world.set_ready("Unknown");
    world.grant("repair-1", GrantType::Repair, &version, &json!({"disruption": "Reboot"}));
    world.works_until("it is restarted", |w| w.bed.host.boots() > boots).await;
}

/// Users look for the cause of a failure in the place that its message names.
#[tokio::test]
async fn a_failure_names_its_cause() {
    let failure = |w: &World| {
        let failures = w.status()["failures"].clone();
        (failures["lastReason"].as_str().unwrap_or_default().to_owned(), failures["lastMessage"].to_string())
    };

    // A damaged file of the operator affects every host.
    let mut world = World::new().await;
    world.begin_join();
    world.bed.damage_payload();
    world.works_until("it cannot be sent what is damaged", |w| !failure(w).0.is_empty()).await;
    let (reason, message) = failure(&world);
    assert!(reason == "PayloadInvalid" && message.contains("kubelet"), "{reason}: {message}");

    // The connection breaks while a program runs on the host.
    let mut world = World::new().await;
    world.begin_join();
    let host = world.bed.host.clone();
    host.fault(Fault::HangInCommand);
    let cut = tokio::spawn(async move {
        while host.stats().processes == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        host.fault(Fault::Refuse);
    });
    world.works_until("its connection breaks", |w| !failure(w).0.is_empty()).await;
    cut.await.unwrap();
    let (reason, message) = failure(&world);
    assert_eq!(reason, "Unreachable", "{message}");
    assert!(message.contains("broke") && message.contains("check whether the host restarts"), "{message}");
}
