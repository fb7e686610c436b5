//! One repository with the hosts of many clusters. Each cluster follows its own folder, and what a commit does to one cluster no other
//! notices.

use anyhow::{Result, ensure};
use api::{WindowsNodePool, conditions, conditions::kind};
use serde_json::json;
use testbed::{
    deployment::NAMESPACE,
    sim::{SimHost, SimOptions},
};

use crate::{
    fleet::{World, is_ready, pool_status},
    git::{POOL, Scene},
};

fn list(hosts: &[&SimHost]) -> String {
    let line = |h: &&SimHost| format!("- {{name: {}, address: {}, port: {}}}\n", h.name(), h.address(), h.port());
    hosts.iter().map(line).collect()
}

/// The pool follows this commit, and all its hosts are Ready nodes.
fn follows(commit: &str, hosts: i32) -> impl Fn(&WindowsNodePool) -> bool {
    let revision = Some(format!("main@sha1:{commit}"));
    move |pool| {
        let status = pool_status(pool);
        let used = status.inventory.as_ref().and_then(|i| i.revision.clone());
        is_ready(pool) && used == revision && (status.hosts, status.ready_nodes) == (hosts, hosts)
    }
}

/// The pool refuses the newest commit for this reason.
fn refuses(reason: &'static str) -> impl Fn(&WindowsNodePool) -> bool {
    move |pool| {
        let status = pool_status(pool);
        let synced = conditions::find(&status.conditions, kind::INVENTORY_SYNCED);
        synced.is_some_and(|c| c.status == "False" && c.reason == reason)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_repository_has_the_hosts_of_two_clusters() -> Result<()> {
    // The first cluster, with the repository.
    let scene = Scene::new(2).await?;
    let (north, origin) = (&scene.world, &scene.origin);
    let south = World::new(SimOptions::default(), &[]).await?;
    let of_south = south.hosts("south", 2).await?;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "repository", "namespace": NAMESPACE},
        "stringData": {"ca.crt": scene.server.authority.pem},
    });
    south.control_plane.apply_yaml(&secret.to_string()).await?;

    origin.commit("sites/north/hosts.yaml", list(&[&scene.hosts[0], &scene.hosts[1]]), "Hosts of the north");
    let first = origin.commit("sites/south/hosts.yaml", list(&[&of_south[0], &of_south[1]]), "Hosts of the south");
    north.apply(POOL, &scene.spec(json!({"path": "sites/north"}))).await?;
    south.apply(POOL, &scene.spec(json!({"path": "sites/south"}))).await?;
    north.until(POOL, "the north has its hosts", follows(&first, 2)).await?;
    south.until(POOL, "the south has its hosts", follows(&first, 2)).await?;

    // A folder that goes removes no node, and the other cluster works on.
    let stats: Vec<_> = scene.hosts.iter().map(SimHost::stats).collect();
    origin.git(&["rm", "-rq", "sites/south"]);
    let lost = origin.commit_all("Without the south");
    south.until(POOL, "the south keeps its hosts", refuses("PathNotFound")).await?;
    north.until(POOL, "the north follows the commit", follows(&lost, 2)).await?;
    ensure!(stats == scene.hosts.iter().map(SimHost::stats).collect::<Vec<_>>(), "hosts of the north were contacted");
    ensure!(south.node(of_south[0].name()).await?.is_some(), "a node of the south is gone");

    // A host of the north in the folder of the south, by mistake: the south has no key that it takes.
    let both = list(&[&of_south[0], &of_south[1], &scene.hosts[0]]);
    origin.commit("sites/south/hosts.yaml", both, "A host of another cluster");
    south.until_failed(scene.hosts[0].name(), "AuthenticationFailed").await?;
    ensure!(scene.hosts[0].stats().processes == stats[0].processes, "a program was started on a host of the north");

    // Corrected, each has its own again.
    let last = origin.commit("sites/south/hosts.yaml", list(&[&of_south[0], &of_south[1]]), "Corrected");
    south.until(POOL, "the south is as before", follows(&last, 2)).await?;
    north.until(POOL, "the north is as before", follows(&last, 2)).await
}
