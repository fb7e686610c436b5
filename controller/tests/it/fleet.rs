//! A world for the operator: a control plane of its own, simulated hosts, a payload, and the operator as a process.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail};
use api::{Host, Inventory, WindowsInstance, WindowsNodePool, WindowsNodePoolSpec, conditions};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use russh::keys::PrivateKey;
use serde_json::json;
use testbed::{
    ControlPlane, ControlPlaneOptions, Operator, OperatorOptions,
    deployment::{self, within},
    payload::{self, Entry},
    sim::{HostOptions, Sim, SimHost, SimOptions},
};

/// The world.
pub struct World {
    pub operator: Operator,
    pub sim: Sim,
    pub client: Client,
    pub control_plane: ControlPlane,
    pub options: OperatorOptions,
    pub key: PrivateKey,
    _files: tempfile::TempDir,
}

impl World {
    /// Makes it, with the operator running. `args` are further arguments of the operator.
    pub async fn new(sim: SimOptions, args: &[&str]) -> Result<Self> {
        let control_plane = ControlPlane::start(ControlPlaneOptions::default()).await?;
        deployment::install(&control_plane).await?;
        let key = deployment::new_key()?;
        deployment::store_key(&control_plane, &key).await?;
        let client = control_plane.client().await?;
        let files = tempfile::tempdir()?;
        let sim = Sim::start(client.clone(), SimOptions { authorized_keys: vec![key.public_key().clone()], ..sim })?;
        let options = OperatorOptions {
            program: PathBuf::from(env!("CARGO_BIN_EXE_windows-node-pools")),
            payload: files.path().join("payload"),
            wicd: files.path().join("wicd.exe"),
            args: ["--backoff-base", "1s", "--backoff-max", "4s"].iter().chain(args).map(ToString::to_string).collect(),
        };
        let kubelet = Entry::new(r"C:\k\kubelet.exe", b"kubelet".to_vec()).services(&["kubelet"]);
        let containerd = Entry::new(r"C:\k\containerd\containerd.exe", b"containerd".to_vec()).services(&["containerd"]);
        payload::write(&options.payload, &[kubelet, containerd], payload::LEVEL_FAST)?;
        std::fs::write(&options.wicd, b"wicd, for hosts that only look at its hash")?;
        let operator = Operator::start(&control_plane, &options)?;
        operator.leads().await?;
        Ok(Self { operator, sim, client, control_plane, options, key, _files: files })
    }

    pub async fn hosts(&self, prefix: &str, count: usize) -> Result<Vec<SimHost>> {
        let mut hosts = Vec::new();
        for n in 0..count {
            hosts.push(self.sim.host(HostOptions::named(format!("{prefix}-{n}"))).await?);
        }
        Ok(hosts)
    }

    pub async fn apply(&self, name: &str, spec: &WindowsNodePoolSpec) -> Result<()> {
        let pools: Api<WindowsNodePool> = Api::all(self.client.clone());
        let pool = WindowsNodePool::new(name, spec.clone());
        pools.patch(name, &PatchParams::apply("a-person").force(), &Patch::Apply(&pool)).await?;
        Ok(())
    }

    pub async fn pool(&self, name: &str) -> Result<WindowsNodePool> {
        Ok(Api::all(self.client.clone()).get(name).await?)
    }

    pub async fn instances(&self) -> Result<Vec<WindowsInstance>> {
        Ok(Api::all(self.client.clone()).list(&ListParams::default()).await?.items)
    }

    /// Waits until something is so of a pool, and shows how all stands if it never is.
    pub async fn until(&self, seconds: u64, what: &str, pool: &str, is_so: impl Fn(&WindowsNodePool) -> bool) -> Result<()> {
        let result = within(Duration::from_secs(seconds), what, || async { self.pool(pool).await.is_ok_and(|p| is_so(&p)) }).await;
        if let Err(error) = result {
            bail!("{error}\n{}\n{}", self.show().await, tail(&self.operator.log()));
        }
        Ok(())
    }

    /// What a person would look at.
    pub async fn show(&self) -> String {
        let mut text = String::new();
        for args in [["get", "wnp,wi", "-o", "wide"], ["get", "nodes", "-o", "wide"], ["get", "csr", "-o", "wide"]] {
            if let Ok(output) = self.control_plane.kubectl(&args).await {
                text += &String::from_utf8_lossy(&output.stdout);
            }
        }
        text
    }
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

/// A pool of these hosts.
pub fn spec(hosts: &[SimHost]) -> WindowsNodePoolSpec {
    let hosts = hosts.iter().map(|h| Host {
        name: h.name().into(),
        address: h.address().to_string(),
        port: Some(i32::from(h.port())),
        ..Host::default()
    });
    WindowsNodePoolSpec { inventory: Inventory { hosts: Some(hosts.collect()) }, ..WindowsNodePoolSpec::default() }
}

pub fn is_ready(pool: &WindowsNodePool) -> bool {
    let status = pool.status.clone().unwrap_or_default();
    status.observed_generation == pool.metadata.generation && conditions::is_true(&status.conditions, conditions::kind::READY)
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_join_and_leave() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("win", 3).await?;
    world.apply("factory", &spec(&hosts)).await?;
    world.until(60, "all are Ready", "factory", |p| is_ready(p) && p.status.as_ref().is_some_and(|s| s.ready_nodes == 3)).await?;
    println!("{}", world.show().await);
    println!("{:?}", hosts[0].stats());
    let mut fewer = spec(&hosts[..2]);
    fewer.rollout = Some(serde_json::from_value(json!({"maxUnavailable": 2}))?);
    world.apply("factory", &fewer).await?;
    let gone = || async { world.instances().await.is_ok_and(|i| i.iter().all(|i| i.name_any() != "win-2")) };
    within(Duration::from_secs(30), "the third is gone", gone).await.with_context(|| tail(&world.operator.log()))?;
    println!("{}", world.show().await);
    println!("{}", world.operator.log());
    Ok(())
}
