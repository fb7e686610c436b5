//! Repository with the hosts of many clusters. Each cluster follows its own folder, and a commit for one cluster does not affect
//! the others.

use anyhow::{Context as _, Result, ensure};
use api::{IntOrPercent, WindowsNodePool, WindowsNodePoolSpec, conditions, conditions::kind};
use kube::ResourceExt as _;
use serde_json::json;
use testbed::{
    deployment::NAMESPACE,
    sim::{HostOptions, SimHost, SimOptions, Stats},
};

use crate::{
    fleet::{World, is_cordoned, is_ready, pool_status},
    git::{POOL, Scene},
};

fn list(hosts: &[&SimHost]) -> String {
    let line = |h: &&SimHost| format!("- {{name: {}, address: {}, port: {}}}\n", h.name(), h.address(), h.port());
    hosts.iter().map(line).collect()
}

/// Returns a check that the pool follows this commit and all its hosts are Ready nodes.
fn follows(commit: &str, hosts: i32) -> impl Fn(&WindowsNodePool) -> bool {
    let revision = Some(format!("main@sha1:{commit}"));
    move |pool| {
        let status = pool_status(pool);
        let used = status.inventory.as_ref().and_then(|i| i.revision.clone());
        is_ready(pool) && used == revision && (status.hosts, status.ready_nodes) == (hosts, hosts)
    }
}

/// Returns a check that the pool keeps its hosts for this reason.
fn holds(reason: &'static str) -> impl Fn(&WindowsNodePool) -> bool {
    move |pool| {
        let status = pool_status(pool);
        let synced = conditions::find(&status.conditions, kind::INVENTORY_SYNCED);
        synced.is_some_and(|c| c.status == "False" && c.reason == reason)
    }
}

/// Two clusters that follow one repository.
struct Sites {
    /// Northern cluster with the repository.
    scene: Scene,
    south: World,
    /// Hosts of the northern cluster. The last one accepts the keys of both clusters.
    of_north: Vec<SimHost>,
    of_south: Vec<SimHost>,
}

impl Sites {
    async fn new() -> Result<Self> {
        let (scene, south) = tokio::try_join!(Scene::new(2), World::new(SimOptions::default(), &[]))?;
        let keys = [&scene.world.key, &south.key].map(|key| key.public_key().clone());
        let moves = HostOptions { authorized_keys: Some(keys.into()), ..HostOptions::named("moves") };
        let mut of_north = scene.hosts.clone();
        of_north.push(scene.world.sim.host(moves).await?);
        let of_south = south.hosts("south", 3).await?;
        let metadata = json!({"name": "repository", "namespace": NAMESPACE});
        let trusted = json!({"ca.crt": scene.server.authority.pem});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": trusted});
        south.control_plane.apply_yaml(&secret.to_string()).await?;
        Ok(Self { scene, south, of_north, of_south })
    }

    /// Returns the spec of a site's pool, which may remove at most `max_removals` hosts at once.
    fn pool(&self, site: &str, max_removals: u32) -> WindowsNodePoolSpec {
        let mut spec = self.scene.spec(json!({"path": format!("sites/{site}")}));
        spec.inventory.max_removals = Some(IntOrPercent::Int(max_removals));
        spec
    }

    fn commit(&self, site: &str, hosts: &[&SimHost], message: &str) -> String {
        self.scene.origin.commit(&format!("sites/{site}/hosts.yaml"), list(hosts), message)
    }

    async fn until_north(&self, what: &str, check: impl Fn(&WindowsNodePool) -> bool) -> Result<()> {
        self.scene.world.until(POOL, what, check).await
    }

    async fn until_south(&self, what: &str, check: impl Fn(&WindowsNodePool) -> bool) -> Result<()> {
        self.south.until(POOL, what, check).await
    }
}

fn all(hosts: &[SimHost]) -> Vec<&SimHost> {
    hosts.iter().collect()
}

fn stats(hosts: &[SimHost]) -> Vec<Stats> {
    hosts.iter().map(SimHost::stats).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_repository_has_the_hosts_of_two_clusters() -> Result<()> {
    let sites = Box::pin(Sites::new()).await?;
    let (north, south) = (&sites.scene.world, &sites.south);
    sites.commit("north", &all(&sites.of_north), "Hosts of the north");
    let first = sites.commit("south", &all(&sites.of_south), "Hosts of the south");
    north.apply(POOL, &sites.pool("north", 1)).await?;
    south.apply(POOL, &sites.pool("south", 2)).await?;
    sites.until_north("the north has its hosts", follows(&first, 3)).await?;
    sites.until_south("the south has its hosts", follows(&first, 3)).await?;

    Box::pin(a_deleted_folder_removes_no_node(&sites)).await?;
    Box::pin(a_host_of_another_cluster_stays_where_it_is(&sites)).await?;
    Box::pin(each_cluster_limits_removals_by_itself(&sites)).await?;
    Box::pin(a_host_moves(&sites)).await
}

/// Checks that a deleted folder removes no node, and that the other cluster follows the commit.
async fn a_deleted_folder_removes_no_node(sites: &Sites) -> Result<()> {
    let before = stats(&sites.of_north);
    sites.scene.origin.git(&["rm", "-rq", "sites/south"]);
    let lost = sites.scene.origin.commit_all("Without the south");
    sites.until_south("the south keeps its hosts", holds("SourceInvalid")).await?;
    sites.until_north("the north follows the commit", follows(&lost, 3)).await?;
    ensure!(before == stats(&sites.of_north), "hosts of the north were contacted");
    for host in &sites.of_south {
        ensure!(sites.south.node(host.name()).await?.is_some(), "the node {} is gone", host.name());
    }
    Ok(())
}

/// Puts two hosts of the northern cluster in the folder of the southern one, as by mistake. One host accepts only the northern key, and the other
/// one accepts both keys.
async fn a_host_of_another_cluster_stays_where_it_is(sites: &Sites) -> Result<()> {
    let (north, south) = (&sites.scene.world, &sites.south);
    let mut hosts = all(&sites.of_south);
    let (locked, open) = (&sites.of_north[0], &sites.of_north[2]);
    let (processes, services) = (locked.stats().processes, open.services());
    let uid = north.node(open.name()).await?.context("no Node")?.uid();
    hosts.extend([locked, open]);
    sites.commit("south", &hosts, "Hosts of another cluster");
    south.until_failed(locked.name(), "AuthenticationFailed").await?;
    south.until_failed(open.name(), "HostOfAnotherCluster").await?;
    ensure!(locked.stats().processes == processes, "a program was started on a host of the north");

    // After the correction, each cluster has its own hosts.
    let last = sites.commit("south", &hosts[..3], "Corrected");
    sites.until_south("the south is as before", follows(&last, 3)).await?;
    sites.until_north("the north is as before", follows(&last, 3)).await?;
    let node = north.node(open.name()).await?.context("the Node is gone")?;
    ensure!(node.uid() == uid && !is_cordoned(&node), "the Node of {} is another one, or cordoned", open.name());
    ensure!(open.services() == services, "services were changed: {:?}", open.services());
    Ok(())
}

/// Removes two hosts from each folder. The north may remove one at once, and the south two.
async fn each_cluster_limits_removals_by_itself(sites: &Sites) -> Result<()> {
    let (north, south) = (all(&sites.of_north), all(&sites.of_south));
    sites.commit("north", &north[2..], "One host of the north");
    let one = sites.commit("south", &south[..1], "One host of the south");
    for host in &sites.of_south[1..] {
        sites.south.until_gone(host).await?;
    }
    sites.until_south("the south has one host", follows(&one, 1)).await?;
    sites.until_north("the north holds", holds("RemovalBlocked")).await?;
    for host in &sites.of_north {
        let instance = sites.scene.world.instance(host.name()).await?.context("no instance")?;
        ensure!(!instance.is_leaving() && !host.services().is_empty(), "{} leaves", host.name());
    }
    let corrected = sites.commit("north", &north, "All of the north");
    sites.until_north("the north has all its hosts", follows(&corrected, 3)).await
}

/// Moves a host from one folder to the other, once its Node is gone.
async fn a_host_moves(sites: &Sites) -> Result<()> {
    let (north, host) = (all(&sites.of_north), &sites.of_north[2]);
    sites.commit("north", &north[..2], "It leaves the north");
    sites.scene.world.until_gone(host).await?;
    // The host's next kubelet belongs to the southern cluster. Only the test bed must be told.
    sites.south.sim.take_over(host);
    let moved = sites.commit("south", &[&sites.of_south[0], host], "It joins the south");
    sites.until_south("the south has it", follows(&moved, 2)).await?;
    sites.until_north("the north has the others", follows(&moved, 2)).await?;
    ensure!(sites.south.node(host.name()).await?.is_some(), "there is no Node");
    ensure!(sites.scene.world.node(host.name()).await?.is_none(), "the north has a Node again");
    Ok(())
}
