//! Measurements for developers of the simulation: `cargo test -p testbed --test it -- --ignored --nocapture
//! sim::scale`. They print; that all hosts come up is all that they check.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use api::{
    host::{Desired, WICD_SERVICE, path},
    names::{key, user},
    services::{Service, ServicesConfig},
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use rcgen::{CertificateParams, DnType, KeyPair};
use testbed::{
    ControlPlane, ControlPlaneOptions,
    sim::{HostOptions, ServingCertificate, Sim, SimHost, SimOptions},
};
use wicd::host::{Host as _, ServiceSpec, StartType};

use super::operator::{Connection, eventually, facts, options, put};

const HOSTS: usize = 1000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn a_thousand_nodes() -> Result<()> {
    let control_plane = ControlPlane::start(ControlPlaneOptions::default()).await?;
    let client = control_plane.client().await?;
    let serving = ServingCertificate::Request;
    let sim = Sim::start(client.clone(), SimOptions { serving, ..options() })?;
    let begun = Instant::now();
    let hosts = hosts(&sim).await?;
    println!("{HOSTS} hosts after {:?}, {} MiB", begun.elapsed(), resident()?);

    let begun = Instant::now();
    let nodes: Api<Node> = Api::all(client);
    hosts.iter().try_for_each(|host| join_by_hand(host, &KeyPair::generate()?))?;
    println!("kubelets started after {:?}", begun.elapsed());
    all_ready(&nodes).await?;
    println!("{HOSTS} nodes after {:?}, {} MiB", begun.elapsed(), resident()?);

    let (cpu, begun) = (cpu()?, Instant::now());
    tokio::time::sleep(Duration::from_mins(1)).await;
    let own = self::cpu()?.saturating_sub(cpu);
    println!("idle: {:.1} % of a core here", own.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0);
    all_ready(&nodes).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn a_thousand_connections() -> Result<()> {
    let sim = Sim::without_cluster(options())?;
    let hosts = hosts(&sim).await?;
    let begun = Instant::now();
    stream::iter(&hosts)
        .map(|host| async move {
            let connection = Connection::open(host).await?;
            let exe = connection.upload_exe().await?;
            connection.verb(&exe, "try-1", facts()).await
        })
        .buffer_unordered(50)
        .try_for_each(|_| async { Ok(()) })
        .await?;
    println!("facts of {HOSTS} hosts after {:?}, {} MiB", begun.elapsed(), resident()?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn a_big_upload() -> Result<()> {
    for rtt_ms in [0, 20] {
        let mut options = options();
        options.link.rtt = Duration::from_millis(rtt_ms);
        let sim = Sim::without_cluster(options)?;
        let host = sim.host(HostOptions::named("win-1")).await?;
        let sftp = Connection::open(&host).await?.sftp().await?;
        let content = vec![7; 235 << 20];
        let begun = Instant::now();
        put(&sftp, r"C:\x", &content).await?;
        println!("235 MiB at {rtt_ms} ms: {:.0} MiB/s", 235.0 / begun.elapsed().as_secs_f64());
    }
    Ok(())
}

async fn hosts(sim: &Sim) -> Result<Vec<SimHost>> {
    let names = (0..HOSTS).map(|n| HostOptions::named(format!("win-{n}")));
    stream::iter(names).map(|host| sim.host(host)).buffered(8).try_collect().await
}

/// What `apply` and `start` leave on a host, without SSH.
fn join_by_hand(host: &SimHost, key: &KeyPair) -> Result<()> {
    let kubelet = Service { name: "kubelet".into(), path: r"C:\k\kubelet.exe".into(), ..Service::default() };
    let desired = Desired {
        node_name: host.name().into(),
        node_ip: host.address().to_string(),
        services: ServicesConfig { services: vec![kubelet], ..ServicesConfig::default() },
        ..Desired::default()
    };
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, format!("{}{}", user::NODE_PREFIX, host.name()));
    params.distinguished_name.push(DnType::OrganizationName, user::NODES_GROUP);
    let windows = host.windows();
    std::fs::create_dir_all(windows.path(path::WICD)?)?;
    std::fs::write(windows.path(path::DESIRED)?, serde_json::to_vec(&desired)?)?;
    std::fs::write(windows.path(path::KUBELET_FIRST_CERT)?, params.self_signed(key)?.pem())?;
    let wicd = ServiceSpec { name: WICD_SERVICE.into(), start: StartType::Auto, ..ServiceSpec::default() };
    windows.put_service(&wicd)?;
    windows.start_service(WICD_SERVICE)?;
    Ok(())
}

async fn all_ready(nodes: &Api<Node>) -> Result<()> {
    let ready = |node: &Node| {
        let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
        conditions.is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
    };
    let params = ListParams::default().labels(&format!("{}=Windows", key::OS_ID));
    eventually("all nodes are ready", || async {
        let ready = nodes.list(&params).await?.into_iter().filter(ready).count();
        Ok((ready == HOSTS).then_some(()))
    })
    .await
}

fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|l| l.starts_with("VmRSS")).context("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).context("no number")?.parse::<u64>()? / 1024)
}

/// Processor time of this process.
fn cpu() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit_once(')').context("no name")?.1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok(Duration::from_millis(ticks * 10))
}
