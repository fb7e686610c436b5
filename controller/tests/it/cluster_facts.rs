//! The facts of the cluster are followed while nodes run: what changes reaches them, with no more than it has to disturb.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use api::{
    WindowsNodePool,
    conditions::{self, kind},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use testbed::{deployment, sim::SimOptions};

use crate::fleet::{World, has, is_ready, pool_status, spec, status};

const POOL: &str = "factory";
const KEY: &str = "client-ca-file";

/// Writes the proxy of an OpenShift cluster as its network operator does.
async fn set_proxy(world: &World, url: &str) -> Result<()> {
    let status = json!({"httpProxy": url, "httpsProxy": url, "noProxy": ".cluster.local,.svc"});
    let proxy: Value = json!({"apiVersion": "config.openshift.io/v1", "kind": "Proxy", "metadata": {"name": "cluster"}, "status": status});
    world.control_plane.apply_yaml(&proxy.to_string()).await
}

/// Certificates that hosts must trust, or none.
async fn trust(world: &World, pem: Option<&str>) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), api::names::DEFAULT_NAMESPACE);
    let data = pem.map(|pem| json!({"ca-bundle.crt": pem}));
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "trusted-ca"}, "data": data});
    maps.patch("trusted-ca", &PatchParams::apply("a-person").force(), &Patch::Apply(map)).await?;
    Ok(())
}

fn is_reported(pool: &WindowsNodePool) -> bool {
    has(&pool_status(pool).conditions, kind::WARNING, "True", "ClusterFactsInvalid")
}

async fn version(world: &World) -> Result<String> {
    let instance = world.instance("win-0").await?.context("there is no instance")?;
    status(&instance).current_version.context("it follows no version")
}

/// Waits until the node follows another version than this one, and its pool is done.
async fn until_followed(world: &World, before: &str) -> Result<()> {
    let is_other = |s: &api::WindowsInstanceStatus| s.current_version.as_deref().is_some_and(|v| v != before);
    world.until_instance("win-0", "it follows another version", |i| is_other(&status(i))).await?;
    world.until(POOL, "it is Ready", is_ready).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_in_the_cluster_reaches_nodes_that_run() -> Result<()> {
    let world = World::new(SimOptions::default(), &["--cluster-facts-interval", "500ms"]).await?;
    deployment::install_openshift(&world.control_plane).await?;
    let hosts = world.hosts("win", 1).await?;
    let host = &hosts[0];
    world.join(POOL, &spec(&hosts)).await?;
    world.until(POOL, "it is Ready", is_ready).await?;

    // A new CA of kubelet's clients beside the old one, as in a rotation, disturbs nothing: kubelet reads the file again by itself.
    let (before, starts, boots) = (version(&world).await?, host.kubelet_starts(), host.boots());
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), "kube-system");
    let map = maps.get("extension-apiserver-authentication").await?;
    let present = map.data.and_then(|d| d.get(KEY).cloned()).context("it has no CA")?;
    let key = rcgen::KeyPair::generate()?;
    let mut params = rcgen::CertificateParams::new(Vec::new())?;
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let next = params.self_signed(&key)?.pem();
    let patch = json!({"data": {KEY: format!("{present}{next}")}});
    maps.patch("extension-apiserver-authentication", &PatchParams::default(), &Patch::Merge(patch)).await?;
    until_followed(&world, &before).await?;
    let trusted = fs::read_to_string(host.drive_c().join("k").join("kubelet-ca.crt"))?;
    ensure!(trusted.replace("\r\n", "\n").contains(next.trim()), "{trusted}");
    ensure!((host.kubelet_starts(), host.boots()) == (starts, boots), "a new CA disturbed the node");

    // A certificate to trust comes and goes without a restart.
    let before = version(&world).await?;
    let key = rcgen::KeyPair::generate()?;
    let registry = rcgen::CertificateParams::new(Vec::new())?.self_signed(&key)?;
    trust(&world, Some(&registry.pem())).await?;
    until_followed(&world, &before).await?;
    let is_trusted = || host.windows().state().trusted.contains(&registry.der().to_vec());
    ensure!(is_trusted(), "the host does not trust the certificate");
    let with_registry = version(&world).await?;
    trust(&world, Some("-----BEGIN CERTIFICATE-----\njunk")).await?;
    world.until(POOL, "it reports the junk", is_reported).await?;
    ensure!(version(&world).await? == with_registry && is_trusted(), "junk reached the host");
    trust(&world, None).await?;
    until_followed(&world, &with_registry).await?;
    ensure!(!is_trusted(), "the host still trusts the certificate");
    ensure!((host.kubelet_starts(), host.boots()) == (starts, boots), "a certificate to trust disturbed the node");

    // Variables of the machine reach services when the host starts.
    let before = version(&world).await?;
    set_proxy(&world, "http://proxy.example.com:3128").await?;
    until_followed(&world, &before).await?;
    let variable = |name: &str| host.windows().state().env.get(name).cloned();
    ensure!(
        variable("HTTPS_PROXY").as_deref() == Some("http://proxy.example.com:3128"),
        "{:?}",
        variable("HTTPS_PROXY")
    );
    ensure!(variable("NO_PROXY").as_deref() == Some(".cluster.local,.svc"), "{:?}", variable("NO_PROXY"));
    ensure!(host.boots() == boots + 1, "{} restarts", host.boots() - boots);

    // What cannot be used is reported, without what is secret in it, and changes nothing.
    let (before, boots) = (version(&world).await?, host.boots());
    set_proxy(&world, "http://user:hunter2@proxy.example.com:3128").await?;
    world.until(POOL, "it reports the proxy", is_reported).await?;
    let reported = pool_status(&world.pool(POOL).await?);
    let message = conditions::find(&reported.conditions, kind::WARNING).map(|c| c.message.clone()).unwrap_or_default();
    ensure!(message.contains("HTTPS proxy") || message.contains("HTTP proxy"), "{message}");
    ensure!(!serde_json::to_string(&reported)?.contains("hunter2"), "a status shows the password");
    ensure!(!world.operator.log().contains("hunter2"), "the log shows the password");

    set_proxy(&world, "http://proxy.example.com:3128").await?;
    world
        .until(POOL, "it reports it no more", |p| conditions::find(&pool_status(p).conditions, kind::WARNING).is_none())
        .await?;
    ensure!((version(&world).await?, host.boots()) == (before, boots), "a fact that cannot be used reached the node");
    Ok(())
}
