//! Cluster facts that change while the node runs: each change reaches the host, and disturbs no more than necessary.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use api::{WindowsNodePool, conditions::kind, host::WICD_SERVICE};
use kube::Api;
use serde_json::Value;

use super::{POOL, SERVICES, World, facts, the_endpoint};

/// Returns the processes of each service: two under kube-log-runner, otherwise one.
pub(super) async fn processes(world: &World) -> Result<BTreeMap<&'static str, BTreeSet<u32>>> {
    let all = world.host.processes().await?;
    let of = |program: &str| all.iter().filter(|p| p.command.contains(program)).map(|p| p.pid).collect();
    Ok(SERVICES.iter().map(|(service, program)| (*service, of(program))).collect())
}

/// Returns the services with no process left from `before`. A service that has kept only some of its processes is an error. wicd is left out,
/// because it restarts with each version.
fn restarted(
    before: &BTreeMap<&'static str, BTreeSet<u32>>,
    after: &BTreeMap<&'static str, BTreeSet<u32>>,
) -> Result<BTreeSet<&'static str>> {
    let mut all = BTreeSet::new();
    for (service, old) in before.iter().filter(|(service, _)| **service != WICD_SERVICE) {
        let new = &after[service];
        ensure!(old.len() == new.len(), "{service} had processes {old:?} and has {new:?}");
        let kept = old.intersection(new).count();
        ensure!(kept == 0 || kept == old.len(), "{service} has kept some of {old:?}: {new:?}");
        if kept == 0 {
            all.insert(*service);
        }
    }
    Ok(all)
}

/// Returns the pool of the node.
pub(super) async fn pool(world: &World) -> Result<WindowsNodePool> {
    Ok(Api::<WindowsNodePool>::all(world.client.clone()).get(POOL).await?)
}

/// Returns the version that the pool has reached, if it has reached one.
pub(super) fn reached(pool: &WindowsNodePool) -> Option<String> {
    let status = pool.status.clone().unwrap_or_default();
    let is = |kind| api::conditions::is_true(&status.conditions, kind);
    let is_done = status.observed_generation == pool.metadata.generation && is(kind::UPDATED) && is(kind::READY);
    status.desired_version.filter(|_| is_done)
}

/// Waits until the node follows a version other than `old`.
pub(super) async fn follows_another(world: &World, old: &str) -> Result<()> {
    let is_other = async || Ok(reached(&pool(world).await?).is_some_and(|version| version != old));
    world.wait("the node follows a change", is_other).await
}

/// Writes an object of the cluster, waits until the node follows, and checks that exactly the expected services were restarted and that the pod
/// network has stayed.
async fn change(world: &World, object: &Value, expected: &[&'static str]) -> Result<()> {
    ensure!(keeps_endpoint(world, object, expected).await?, "the endpoint is another one");
    Ok(())
}

/// Makes a change as [`change`] does, and returns whether the endpoint of the pod network is the same.
async fn keeps_endpoint(world: &World, object: &Value, expected: &[&'static str]) -> Result<bool> {
    let (before, boots, endpoint) = (processes(world).await?, world.host.boots(), the_endpoint(world)?);
    let version = reached(&pool(world).await?).context("the pool is not done")?;
    world.control_plane.apply_yaml(&object.to_string()).await?;
    follows_another(world, &version).await?;
    world.wait("all services run after a change", async || world.is_complete().await).await?;
    let restarted = restarted(&before, &processes(world).await?)?;
    ensure!(restarted == expected.iter().copied().collect(), "restarted: {restarted:?}");
    ensure!(world.host.boots() == boots, "the host was restarted");
    Ok(the_endpoint(world)? == endpoint)
}

/// Checks that the host has the facts that the cluster had when the host joined.
pub(super) async fn were_there_from_the_start(world: &World) -> Result<()> {
    ensure!(facts::trusts(world, &world.trusted[0]).await?, "the certificate is not trusted");
    ensure!(facts::containerd_has_mirror(world, facts::MIRRORS[0], facts::PASSWORDS[0])?, "hosts.toml");
    ensure!(facts::kubelet_has_login(world, facts::PASSWORDS[0])?, "config.json");
    for (service, _) in SERVICES.iter().filter(|(service, _)| *service != WICD_SERVICE) {
        ensure!(facts::uses_proxy(world, service, facts::PROXIES[0]).await?, "{service} does not use the proxy");
    }
    Ok(())
}

/// Changes each fact of the cluster, and checks that the change reaches the node.
pub(super) async fn reach_the_node(world: &World) -> Result<()> {
    let [old, new] = &world.trusted;
    change(world, &facts::trusted_ca(new), &[]).await.context("change of the trusted CA")?;
    ensure!(facts::trusts(world, new).await? && !facts::trusts(world, old).await?, "the old CA is trusted");

    let [_, mirror] = facts::MIRRORS;
    change(world, &facts::mirrors(mirror), &[]).await.context("change of the mirror")?;
    ensure!(facts::containerd_has_mirror(world, mirror, facts::PASSWORDS[0])?, "containerd is led to the old mirror");

    let [_, login] = facts::PASSWORDS;
    change(world, &facts::pull_secret(login), &[]).await.context("change of the login")?;
    ensure!(
        facts::containerd_has_mirror(world, mirror, login)? && facts::kubelet_has_login(world, login)?,
        "the old login is there"
    );

    let [_, port] = facts::VXLAN_PORTS;
    let restarted = ["hybrid-overlay-node", "kube-proxy"];
    let is_same =
        keeps_endpoint(world, &facts::overlay(port), &restarted).await.context("change of the overlay's port")?;
    ensure!(!is_same, "the network with the old port is still there");

    let [_, proxy] = facts::PROXIES;
    let services: Vec<&str> = SERVICES.iter().map(|(name, _)| *name).filter(|name| *name != WICD_SERVICE).collect();
    change(world, &facts::proxy(proxy), &services).await.context("change of the proxy")?;
    for service in services {
        ensure!(facts::uses_proxy(world, service, proxy).await?, "{service} uses the old proxy");
    }
    Ok(())
}
