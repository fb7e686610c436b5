//! Rotation of the cluster's certificate authorities while nodes run: hosts trust the current ones, and at each stage hosts reach the API server and
//! the API server reaches kubelet.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use serde_json::json;
use testbed::{
    CaRotation, ControlPlane,
    pki::Identity,
    sim::{SimHost, SimOptions},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    cluster::kubectl,
    crash::ended,
    fleet::{LIMIT, World, is_ready, spec, spec_with, status},
    off_host::mark_not_ready_for_a_day,
    removal::pod,
};

const POOL: &str = "factory";

async fn logs_answer(world: &World, stage: CaRotation) -> Result<()> {
    let text = kubectl(&world.control_plane, &["logs", "app-win-0"]).await.with_context(|| format!("{stage:?}"))?;
    ensure!(text.contains("win-0 runs default/app-win-0/"), "{stage:?}: {text}");
    Ok(())
}

/// Waits until kubelet has renewed its Lease, for which the API server and kubelet must trust each other.
async fn until_lease_is_renewed(world: &World) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), "kube-node-lease");
    let renewed = || async { leases.get("win-0").await.ok().and_then(|l| l.spec?.renew_time) };
    let before = renewed().await;
    world.eventually("kubelet renews its Lease", || async { renewed().await > before }).await
}

/// Returns the number of certificate authorities in a file on the host.
fn authorities(host: &SimHost, file: &str) -> usize {
    let text = fs::read_to_string(host.drive_c().join("k").join(file)).unwrap_or_default();
    text.matches("BEGIN CERTIFICATE").count()
}

/// Waits until the host trusts exactly `servers` authorities for the API server and `clients` for kubelet's clients, and is up to date.
async fn until_trusts(world: &World, host: &SimHost, servers: usize, clients: usize) -> Result<()> {
    let both = || (authorities(host, "bootstrap-ca.crt"), authorities(host, "kubelet-ca.crt"));
    world.eventually("the host trusts the authorities", || async { both() == (servers, clients) }).await?;
    let version = |i: &api::WindowsInstance| status(i).current_version;
    world
        .until(POOL, "it is up to date", |p| is_ready(p) && p.status.as_ref().is_some_and(|s| s.up_to_date_nodes == 1))
        .await?;
    let instance = world.instance("win-0").await?.context("there is no instance")?;
    // wicd reports the version over its own connection to the API server.
    let node = world.node("win-0").await?.context("there is no Node")?;
    let says = node.metadata.annotations.and_then(|a| a.get(api::names::key::VERSION).cloned());
    ensure!(says.is_some() && says == version(&instance), "{says:?}");
    Ok(())
}

/// Reports whether kubelet answers a client with this certificate.
async fn admits(control_plane: &ControlPlane, host: &SimHost, client: Option<Identity>) -> Result<bool> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(control_plane.ca_pem().as_bytes())?)?;
    let builder = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let config = match client {
        Some(client) => {
            let chain = vec![CertificateDer::from_pem_slice(client.certificate.as_bytes())?];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(client.key.as_bytes())?)?
        }
        None => builder.with_no_client_auth(),
    };
    let stream = TcpStream::connect((host.address(), 10250)).await?;
    let name = ServerName::from(host.address());
    let exchange = async {
        let mut stream = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config)).connect(name, stream).await?;
        stream.write_all(b"GET /containerLogs/a/b/c HTTP/1.1\r\n\r\n").await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer.starts_with(b"HTTP/1.1 200"))
    };
    Ok(exchange.await.unwrap_or(false))
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_answer_at_each_stage_of_a_rotation() -> Result<()> {
    let sim = SimOptions { own_credentials: true, heartbeat: Some(Duration::from_secs(1)), ..SimOptions::default() };
    let mut world = World::new(sim, &["--cluster-facts-interval", "500ms"]).await?;
    let hosts = world.hosts("win", 1).await?;
    let host = &hosts[0];
    world.join(POOL, &spec(&hosts)).await?;
    pod(&world, "app", "win-0", &[]).await?;
    logs_answer(&world, CaRotation::NotBegun).await?;
    let starts = |service: &str| host.windows().state().starts.get(service).copied().unwrap_or_default();
    let services: Vec<String> = host.services().into_keys().filter(|s| s != "kubelet").collect();
    let others = || services.iter().filter(|s| *s != api::host::WICD_SERVICE).map(|s| starts(s)).collect::<Vec<_>>();
    let (kubelet, before, boots) = (starts("kubelet"), others(), host.boots());
    let (old, new) = (world.control_plane.kubelet_client(false)?, world.control_plane.kubelet_client(true)?);
    let admits = |client: Option<&Identity>| admits(&world.control_plane, host, client.cloned());
    ensure!(admits(Some(&old)).await?, "kubelet refuses the API server");
    ensure!(!admits(Some(&new)).await? && !admits(None).await?, "kubelet answers unknown clients");

    // kubelet of Kubernetes 1.35 and earlier reads the API server's authorities only when it starts, but reloads those of its clients.
    until_trusts(&world, host, 1, 2).await?;
    world.control_plane.rotate(CaRotation::BothTrusted).await?;
    until_trusts(&world, host, 2, 3).await?;
    ensure!(starts("kubelet") == kubelet + 1, "kubelet was started {} times", starts("kubelet") - kubelet);
    logs_answer(&world, CaRotation::BothTrusted).await?;

    // The operator read the authorities when it started, and does not trust the new certificate. It exits, and the next process reads them again.
    world.control_plane.rotate(CaRotation::NewInUse).await?;
    until_lease_is_renewed(&world).await?;
    logs_answer(&world, CaRotation::NewInUse).await?;
    ended(&mut world.operator, LIMIT).await?;
    world.new_operator().await?;
    ensure!(starts("kubelet") == kubelet + 1, "new certificates restarted kubelet");

    world.control_plane.rotate(CaRotation::Done).await?;
    until_trusts(&world, host, 1, 2).await?;
    until_lease_is_renewed(&world).await?;
    logs_answer(&world, CaRotation::Done).await?;
    ensure!(starts("kubelet") == kubelet + 2, "kubelet was started {} times", starts("kubelet") - kubelet);
    ensure!((others(), host.boots()) == (before, boots), "the rotation disturbed more than kubelet");
    let admits = |client: &Identity| self::admits(&world.control_plane, host, Some(client.clone()));
    ensure!(admits(&new).await? && !admits(&old).await?, "kubelet trusts an authority that the cluster has dropped");
    let running = world.node("win-0").await?.context("there is no Node")?;
    ensure!(running.spec.and_then(|s| s.unschedulable).is_none(), "the node was cordoned");
    Ok(())
}

/// Covers a host that was off and trusts only authorities that the cluster has dropped. The operator gives it the new authorities over SSH.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_was_off_during_a_rotation_comes_back_without_a_person() -> Result<()> {
    let sim = SimOptions { own_credentials: true, heartbeat: Some(Duration::from_secs(1)), ..SimOptions::default() };
    let mut world = World::new(sim, &["--cluster-facts-interval", "500ms"]).await?;
    let hosts = world.hosts("win", 2).await?;
    let fields = json!({"remediation": {"notReadySeconds": 30, "maxUnhealthy": "100%"}});
    world.join(POOL, &spec_with(&hosts, fields)).await?;
    let (on, off) = (&hosts[0], &hosts[1]);
    off.power_off();
    mark_not_ready_for_a_day(&world, off.name()).await?;

    let follows = async |world: &World, servers: usize, clients: usize| {
        let both = || (authorities(on, "bootstrap-ca.crt"), authorities(on, "kubelet-ca.crt"));
        world.eventually("the host that is on follows", || async { both() == (servers, clients) }).await
    };
    world.control_plane.rotate(CaRotation::BothTrusted).await?;
    follows(&world, 2, 3).await?;
    world.control_plane.rotate(CaRotation::NewInUse).await?;
    // The operator trusts only the authorities that it read when it started.
    ended(&mut world.operator, LIMIT).await?;
    world.new_operator().await?;
    world.control_plane.rotate(CaRotation::Done).await?;
    follows(&world, 1, 2).await?;
    off.power_on();
    world
        .until(POOL, "both are Ready", |p| {
            is_ready(p) && p.status.as_ref().is_some_and(|s| s.ready_nodes == 2 && s.up_to_date_nodes == 2)
        })
        .await?;
    ensure!(authorities(off, "bootstrap-ca.crt") == 1, "the host trusts an authority that the cluster has dropped");
    let (new, old) = (world.control_plane.kubelet_client(true)?, world.control_plane.kubelet_client(false)?);
    ensure!(admits(&world.control_plane, off, Some(new)).await?, "kubelet refuses the API server");
    ensure!(
        !admits(&world.control_plane, off, Some(old)).await?,
        "kubelet still accepts the old certificate of the API server"
    );
    Ok(())
}
