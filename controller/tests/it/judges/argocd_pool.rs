//! Pool that Argo CD applies from Git: Argo CD's pages show the state of the nodes, and user actions take effect and last.

use anyhow::{Context as _, Result, ensure};
use api::{
    Reason, WindowsNodePool,
    conditions::{is_true, kind},
};
use kube::Api;
use serde_json::{Value, json};
use testbed::{
    ControlPlane, ControlPlaneOptions,
    sim::{SimHost, SimOptions},
};

use super::{
    add,
    application::{Argo, How},
    gated,
};
use crate::{
    act_command::Plugin,
    cluster::kubectl,
    fleet::{World, all_up_to_date, entries, entry, has, pool_status},
    off_host::mark_not_ready_for_a_day,
};

const POOL: &str = "factory";
const OPERATOR: &str = "windows-operator";
const POOLS: &str = "windows-node-pools";
/// Settings of the Application, as in the examples.
const HOW: How = How { diff: true, apply: true, automated: true };

/// World whose operator and pools Argo CD installs from Git.
struct Scene {
    world: World,
    argo: Argo,
    hosts: Vec<SimHost>,
}

impl Scene {
    /// Creates a world in which Argo CD installs the operator's manifests. The operator itself runs outside the cluster, with the installed rights.
    async fn new(hosts: usize) -> Result<Option<Self>> {
        let control_plane = Box::pin(ControlPlane::start(ControlPlaneOptions::default())).await?;
        let Some(argo) = Argo::start(&control_plane).await? else { return Ok(None) };
        for folder in ["deploy", "crds", "examples/gitops/operator"] {
            add(&argo.origin, folder)?;
        }
        argo.origin.commit_all("The operator");
        argo.create(OPERATOR, "examples/gitops/operator", HOW).await?;
        argo.compare(OPERATOR).await?;
        argo.until(OPERATOR, "the operator is installed", |a| {
            a["status"]["sync"]["status"] == "Synced" && a["status"]["operationState"]["phase"] == "Succeeded"
        })
        .await?;
        let payload = entries(b"kubelet");
        let world = World::installed(control_plane, SimOptions::default(), &payload, None, &[]);
        let world = Box::pin(world).await?;
        world.operator.leads().await?;
        let hosts = world.hosts("win", hosts).await?;
        Ok(Some(Self { world, argo, hosts }))
    }

    /// Commits the pool of the example with these hosts and more fields.
    fn commit(&self, hosts: &[Value], fields: Value) -> Result<()> {
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/gitops/argocd-pool.yaml");
        let mut pool: Value = serde_yaml::from_str(&std::fs::read_to_string(example)?)?;
        pool["spec"]["inventory"]["hosts"] = hosts.into();
        crate::crd::merge(&mut pool["spec"], &fields);
        self.argo.origin.commit("windows-node-pools/factory.yaml", serde_yaml::to_string(&pool)?, "The pool");
        Ok(())
    }

    /// Waits until a condition holds for the pool, and Argo CD shows this health, with `words` in the message.
    async fn shows(
        &self,
        what: &str,
        health: &str,
        words: &str,
        is_so: impl Fn(&WindowsNodePool) -> bool,
    ) -> Result<()> {
        self.world.until(POOL, what, is_so).await?;
        let shown = || async { self.argo.pages.health(POOLS, "WindowsNodePool", POOL).await };
        let is_shown = || async { shown().await.is_ok_and(|(status, why)| status == health && why.contains(words)) };
        let waited = self.world.eventually(&format!("{what}: Argo CD says {health}, {words:?}"), is_shown).await;
        waited.with_context(|| format!("{what}: {health}"))
    }

    /// Checks that Argo CD reports the pool as Synced, also after changes by hand.
    async fn is_synced(&self) -> Result<()> {
        let compared = self.argo.compare(POOLS).await?;
        ensure!(compared.iter().all(|one| one.is_synced), "{compared:?}");
        Ok(())
    }
}

fn all(hosts: &[SimHost]) -> Vec<Value> {
    hosts.iter().map(|host| json!(entry(host))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_to_a_live_pool_are_followed_and_its_health_is_shown() -> Result<()> {
    let Some(scene) = Scene::new(3).await? else { return Ok(()) };
    let Scene { world, argo, hosts } = &scene;
    let mut listed = all(hosts);
    scene.commit(&listed, json!({}))?;
    argo.create(POOLS, "windows-node-pools", HOW).await?;
    scene.shows("all are nodes", "Healthy", "3 of 3", all_up_to_date(3)).await?;
    scene.is_synced().await?;

    // Each commit has one kind of change. With another kind, Argo CD might notice a commit that it would otherwise miss.
    let label = |value: &'static str| {
        move |meta: &kube::core::ObjectMeta| {
            meta.labels.as_ref().and_then(|l| l.get("example.com/hall")).map(String::as_str) == Some(value)
        }
    };
    for value in ["a", "b"] {
        listed[0]["labels"] = json!({"example.com/hall": value});
        scene.commit(&listed, json!({}))?;
        argo.compare(POOLS).await?;
        let is_there =
            || async { world.node("win-0").await.is_ok_and(|n| n.is_some_and(|n| label(value)(&n.metadata))) };
        world.eventually(&format!("the Node has the label {value}"), is_there).await?;
    }
    let template =
        json!({"template": {"spec": {"kubelet": {"maxPods": 77}}, "metadata": {"labels": {"example.com/hall": "c"}}}});
    scene.commit(&listed, template.clone())?;
    argo.compare(POOLS).await?;
    let changed = |p: &WindowsNodePool| all_up_to_date(3)(p) && json!(p.spec)["template"] == template["template"];
    scene.shows("all follow", "Healthy", "3 of 3", changed).await?;
    scene.is_synced().await?;

    // A host is powered off and on again.
    hosts[1].power_off();
    mark_not_ready_for_a_day(world, "win-1").await?;
    scene.shows("a host is off", "Degraded", "win-1", |p| pool_status(p).ready_nodes == 2).await?;
    hosts[1].power_on();
    scene.shows("it is on", "Healthy", "3 of 3", all_up_to_date(3)).await?;

    // A host is removed from the list.
    scene.commit(&listed[..2], template)?;
    argo.compare(POOLS).await?;
    world.until_gone(&hosts[2]).await?;
    scene.shows("two are left", "Healthy", "2 of 2", all_up_to_date(2)).await?;
    scene.is_synced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn user_actions_take_effect_and_last() -> Result<()> {
    let Some(scene) = Scene::new(4).await? else { return Ok(()) };
    let Scene { world, argo, hosts } = &scene;
    scene.commit(&all(hosts), gated(3))?;
    argo.create(POOLS, "windows-node-pools", HOW).await?;
    scene.shows("all are nodes", "Healthy", "4 of 4", all_up_to_date(4)).await?;

    // A user pauses and resumes the pool, in each of three ways.
    let plugin = Plugin::new(world)?;
    let is_paused = |p: &WindowsNodePool| is_true(&pool_status(p).conditions, kind::PAUSED);
    let pause = |paused: bool| json!({"spec": {"rollout": {"paused": paused}}}).to_string();
    for way in ["Argo CD", "kubectl", "our command"] {
        for (paused, health) in [(true, "Suspended"), (false, "Healthy")] {
            match way {
                "Argo CD" => {
                    argo.pages.act(POOLS, "WindowsNodePool", POOL, if paused { "pause" } else { "resume" }).await?;
                }
                "kubectl" => {
                    let patch = ["patch", "wnp", POOL, "--type", "merge", "-p", &pause(paused)];
                    kubectl(&world.control_plane, &patch).await.map(drop)?;
                }
                _ => drop(plugin.run_ok(&[if paused { "pause" } else { "resume" }, POOL])?),
            }
            let what = format!("{way}: paused {paused}");
            scene.shows(&what, health, "", |p| is_paused(p) == paused).await?;
            // Self-heal keeps what was set, too.
            scene.is_synced().await?;
            argo.sync(POOLS).await?;
            scene.shows(&format!("{what}, after a sync"), health, "", |p| is_paused(p) == paused).await?;
        }
    }

    // One approval covers both steps.
    scene.commit(&all(hosts), gated(6))?;
    argo.compare(POOLS).await?;
    let waits =
        |p: &WindowsNodePool| has(&pool_status(p).conditions, kind::READY, "Unknown", Reason::WaitingForApproval);
    scene.shows("it waits for an approval", "Suspended", "", waits).await?;
    argo.pages.act(POOLS, "WindowsNodePool", POOL, "approve").await?;
    argo.sync(POOLS).await?;
    scene.shows("all follow", "Healthy", "4 of 4", all_up_to_date(4)).await?;
    scene.is_synced().await?;

    // A user confirms the removal of three hosts.
    scene.commit(&all(&hosts[..1]), gated(6))?;
    argo.compare(POOLS).await?;
    let held = |p: &WindowsNodePool| has(&pool_status(p).conditions, kind::STALLED, "True", Reason::RemovalBlocked);
    scene.shows("the removal waits", "Degraded", "3", held).await?;
    argo.pages.act(POOLS, "WindowsNodePool", POOL, "confirm-removal").await?;
    argo.sync(POOLS).await?;
    for host in &hosts[1..] {
        world.until_gone(host).await?;
    }
    scene.shows("one is left", "Healthy", "1 of 1", all_up_to_date(1)).await?;

    // A pool that is removed from Git stays. The deletion of its Application waits for a user's confirmation.
    std::fs::remove_file(argo.origin.work().join("windows-node-pools/factory.yaml"))?;
    argo.origin.commit("windows-node-pools/README.md", "Nothing here.", "Take the pool out");
    let compared = argo.compare(POOLS).await?;
    ensure!(compared.iter().any(|one| one.name == POOL && !one.is_synced), "{compared:?}");
    scene.commit(&all(&hosts[..1]), gated(6))?;
    argo.compare(POOLS).await?;
    argo.until(POOLS, "Synced", |a| a["status"]["sync"]["status"] == "Synced").await?;
    argo.delete(POOLS).await?;
    let asks = |log: String| log.contains("requires manual confirmation to delete");
    world.eventually("Argo CD asks", || async { asks(argo.pages.log("argocd-application-controller")) }).await?;
    let pool = world.pool(POOL).await?;
    ensure!(pool.metadata.deletion_timestamp.is_none(), "the pool is being deleted");
    argo.confirm_deletion(POOLS).await?;
    world.until_gone(&hosts[0]).await?;
    let pools: Api<WindowsNodePool> = Api::all(world.client.clone());
    world.eventually("the pool is gone", || async { matches!(pools.get_opt(POOL).await, Ok(None)) }).await
}
