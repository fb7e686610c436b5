//! The same hosts by each of the five ways in which a pool may name them: the nodes are the same, and nobody notices the change.

use std::{
    collections::BTreeMap,
    io::Write as _,
    sync::{Arc, Mutex},
};

use anyhow::{Context as _, Result, ensure};
use api::{InstanceHost, WindowsNodePool, WindowsNodePoolSpec, conditions, conditions::kind, names::WINDOWS_INSTANCES};
use flate2::{Compression, write::GzEncoder};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use testbed::{
    deployment::{self, MachineApi, NAMESPACE},
    git::{Origin, Server},
    sim::{SimHost, SimOptions, Stats},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use crate::{
    fleet::{World, entry, is_ready, nodes, pool_status},
    rollout::Watcher,
};

const POOL: &str = "fleet";
const HOSTS: usize = 10;

/// What must not change.
#[derive(Debug, PartialEq)]
struct Seen {
    /// UIDs of Nodes by name.
    nodes: BTreeMap<String, Option<String>>,
    /// What the instances say of how hosts are reached.
    hosts: BTreeMap<String, InstanceHost>,
    /// What the hosts have noticed.
    stats: Vec<Stats>,
}

async fn look(world: &World, hosts: &[SimHost]) -> Result<Seen> {
    let nodes = nodes(&world.client).await?.into_iter().map(|n| (n.name_any(), n.uid())).collect();
    let mut specs = BTreeMap::new();
    for host in hosts {
        let instance = world.instance(host.name()).await?.context("no instance")?;
        ensure!(instance.metadata.deletion_timestamp.is_none(), "{} is being removed", host.name());
        specs.insert(host.name().to_owned(), instance.spec.host);
    }
    Ok(Seen { nodes, hosts: specs, stats: hosts.iter().map(SimHost::stats).collect() })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_hosts_by_five_ways_are_the_same_nodes() -> Result<()> {
    // No way but the pool's own may look for Machines by itself: another pool would take the hosts.
    let world = World::new(SimOptions::default(), &["--machine-discovery-interval", "1s"]).await?;
    let hosts = world.hosts("win", HOSTS).await?;
    let port = hosts[0].port();
    let list: Vec<_> = hosts.iter().map(entry).collect();
    switch(&world, json!({"hosts": list}), port, None).await?;
    let first = look(&world, &hosts).await?;
    ensure!(first.nodes.len() == HOSTS, "{first:?}");
    let watcher = Watcher::of(&world.client, POOL);

    let data: BTreeMap<String, &str> =
        hosts.iter().map(|h| (h.address().to_string(), "username=Administrator")).collect();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "our-instances", "namespace": NAMESPACE}, "data": data});
    world.control_plane.apply_yaml(&map.to_string()).await?;
    switch(&world, json!({"configMapRef": {"name": "our-instances"}}), port, Some("ConfigMap our-instances")).await?;
    same(&world, &hosts, &first, "a ConfigMap").await?;

    let text = serde_json::to_string(&list)?;
    let origin = Origin::new();
    origin.git(&["rm", "-q", "hosts.yaml"]);
    origin.commit("hosts.json", &text, "All hosts");
    let server = Server::new(origin.root());
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "repository", "namespace": NAMESPACE}, "stringData": {"ca.crt": server.authority.pem}});
    world.control_plane.apply_yaml(&secret.to_string()).await?;
    let git = json!({"git": {"url": server.url(), "secretRef": {"name": "repository"}}});
    switch(&world, git, port, Some(&format!("git {}", server.url()))).await?;
    same(&world, &hosts, &first, "Git").await?;

    let flux = Flux::new(&world).await?;
    flux.publish(&text, "main@sha1:0a", None).await?;
    switch(&world, json!({"sourceRef": Flux::reference(false)}), port, Some("GitRepository flux-system/hosts")).await?;
    same(&world, &hosts, &first, "Flux").await?;
    flux_is_not_believed_blindly(&world, &flux, &text, port).await?;
    same(&world, &hosts, &first, "what Flux may not say").await?;

    machines(&world, &hosts).await?;
    let set = json!({"machineSetRef": {"name": "paint", "namespace": "openshift-machine-api"}});
    switch(&world, set, port, Some("MachineSet openshift-machine-api/paint")).await?;
    same(&world, &hosts, &first, "a MachineSet").await?;

    ensure!(world.pool(WINDOWS_INSTANCES).await.is_err(), "a pool was made for nothing");
    let seen = watcher.seen.lock().unwrap();
    ensure!(seen.ever_cordoned.is_empty() && seen.ever_disrupted.is_empty(), "{:?}", seen.ever_disrupted);
    Ok(())
}

/// Has the pool take its hosts from there, and waits until all are Ready that way.
async fn switch(world: &World, inventory: Value, port: u16, source: Option<&str>) -> Result<()> {
    let spec = json!({"inventory": inventory, "ssh": {"port": port}, "provisioning": {"maxConcurrent": 10}});
    let spec: WindowsNodePoolSpec = serde_json::from_value(spec)?;
    world.apply(POOL, &spec).await?;
    let all = |p: &WindowsNodePool| {
        let status = pool_status(p);
        is_ready(p)
            && usize::try_from(status.ready_nodes).is_ok_and(|n| n == HOSTS)
            && status.inventory.as_ref().map(|i| i.source.as_str()) == source
    };
    world.until(POOL, &format!("all are Ready by {source:?}"), all).await
}

async fn same(world: &World, hosts: &[SimHost], first: &Seen, about: &str) -> Result<()> {
    let now = look(world, hosts).await?;
    ensure!(now == *first, "by {about}: {now:#?}\nat first: {first:#?}");
    Ok(())
}

/// Flux's source-controller, as the operator sees it: an object, and a server for artifacts.
struct Flux {
    objects: Api<DynamicObject>,
    address: std::net::SocketAddr,
    artifact: Arc<Mutex<Vec<u8>>>,
}

impl Flux {
    async fn new(world: &World) -> Result<Self> {
        deployment::install_flux(&world.control_plane).await?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "flux-system"}});
        world.control_plane.apply_yaml(&namespace.to_string()).await?;
        let artifact = Arc::<Mutex<Vec<u8>>>::default();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let served = artifact.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let body = served.lock().unwrap().clone();
                tokio::spawn(async move {
                    let mut asked = [0; 4096];
                    let _ = stream.read(&mut asked).await;
                    let head =
                        format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
                    let _ = stream.write_all(head.as_bytes()).await;
                    let _ = stream.write_all(&body).await;
                });
            }
        });
        let kind = ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk("source.toolkit.fluxcd.io", "v1", "GitRepository"),
            "gitrepositories",
        );
        let objects = Api::namespaced_with(world.client.clone(), "flux-system", &kind);
        Ok(Self { objects, address, artifact })
    }

    fn reference(require_verified: bool) -> Value {
        json!({"kind": "GitRepository", "name": "hosts", "namespace": "flux-system", "path": "halls", "requireVerified": require_verified})
    }

    /// Makes an artifact of a list, and says that it is there; with another digest if one is given.
    async fn publish(&self, list: &str, revision: &str, digest: Option<&str>) -> Result<()> {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(list.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, "halls/hosts.json", list.as_bytes())?;
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&tar.into_inner()?)?;
        let bytes = gzip.finish()?;
        let right = format!("sha256:{}", hex::encode(Sha256::digest(&bytes)));
        *self.artifact.lock().unwrap() = bytes;
        self.says(json!({"artifact": {
            "revision": revision,
            "digest": digest.unwrap_or(&right),
            "url": format!("http://{}/hosts.tar.gz", self.address),
            "lastUpdateTime": "2026-01-02T03:04:05Z",
        }}))
        .await
    }

    async fn says(&self, status: Value) -> Result<()> {
        let object = json!({
            "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository", "metadata": {"name": "hosts"},
        });
        self.objects.patch("hosts", &PatchParams::apply("flux").force(), &Patch::Apply(&object)).await?;
        self.objects.patch_status("hosts", &PatchParams::default(), &Patch::Merge(json!({"status": status}))).await?;
        Ok(())
    }
}

/// A digest that does not fit, a list that is wrong, and what Flux itself has not verified.
async fn flux_is_not_believed_blindly(world: &World, flux: &Flux, text: &str, port: u16) -> Result<()> {
    let wrong = format!("sha256:{}", "0".repeat(64));
    for (list, digest, reason) in [("[]", Some(wrong.as_str()), "DigestMismatch"), ("[{}]", None, "InvalidInventory")] {
        flux.publish(list, "main@sha1:0b", digest).await?;
        refused(world, reason).await?;
        flux.publish(text, "main@sha1:0c", None).await?;
        switch(world, json!({"sourceRef": Flux::reference(false)}), port, Some("GitRepository flux-system/hosts"))
            .await?;
    }
    let spec = json!({"inventory": {"sourceRef": Flux::reference(true)}, "ssh": {"port": port}});
    world.apply(POOL, &serde_json::from_value(spec)?).await?;
    refused(world, "VerificationError").await?;
    flux.says(json!({"conditions": [{"type": "SourceVerified", "status": "True", "message": "verified"}]})).await?;
    world
        .until(POOL, "what Flux has verified is used", |p| {
            is_ready(p) && conditions::is_true(&pool_status(p).conditions, kind::SOURCE_VERIFIED)
        })
        .await
}

async fn refused(world: &World, reason: &str) -> Result<()> {
    let told = |p: &WindowsNodePool| {
        let synced = conditions::find(&pool_status(p).conditions, kind::INVENTORY_SYNCED).cloned();
        synced.is_some_and(|c| c.status == "False" && c.reason == reason)
    };
    world.until(POOL, reason, told).await
}

/// A MachineSet with a Machine for each host. The pool of this test reads it, so that none is made for it.
async fn machines(world: &World, hosts: &[SimHost]) -> Result<()> {
    deployment::install_machines(&world.control_plane, MachineApi::OpenShift).await?;
    let namespace = MachineApi::OpenShift.namespace();
    let of = |kind: &str| {
        let gvk = GroupVersionKind::gvk("machine.openshift.io", "v1beta1", kind);
        Api::<DynamicObject>::namespaced_with(world.client.clone(), namespace, &ApiResource::from_gvk(&gvk))
    };
    let labels = json!({"machine.openshift.io/os-id": "Windows"});
    let apply = PatchParams::apply("machine-controller").force();
    let set = json!({
        "apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet",
        // No pool is made for it by itself: the one of this test is to read it.
        "metadata": {"name": "paint", "labels": {"windowsmachineconfig.openshift.io/ignore": "true"}},
        "spec": {"template": {"metadata": {"labels": labels}}},
    });
    let set = of("MachineSet").patch("paint", &apply, &Patch::Apply(&set)).await?;
    for host in hosts {
        let owner = json!([{
            "apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet", "name": "paint", "uid": set.uid(), "controller": true,
        }]);
        let machine = json!({
            "apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
            "metadata": {"name": host.name(), "labels": labels, "ownerReferences": owner},
        });
        of("Machine").patch(host.name(), &apply, &Patch::Apply(&machine)).await?;
        let addresses = json!([{"type": "InternalIP", "address": host.address().to_string()}]);
        let status = json!({"status": {"phase": "Running", "addresses": addresses, "nodeRef": {"kind": "Node", "name": host.name()}}});
        of("Machine").patch_status(host.name(), &PatchParams::default(), &Patch::Merge(status)).await?;
    }
    Ok(())
}
