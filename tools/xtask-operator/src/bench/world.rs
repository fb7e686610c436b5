//! Control plane, simulated hosts and the operator as a process of its own.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use api::{
    Host, Inventory, Provisioning, WindowsInstance, WindowsNodePool, WindowsNodePoolSpec,
    conditions::{find, kind},
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use testbed::{
    ControlPlane, ControlPlaneOptions, Operator, OperatorOptions, deployment,
    image::{self, Arch, Compiler, Profile},
    payload::{self, Content, Entry},
    sim::{Fault, HostOptions, Sim, SimHost, SimOptions},
};
use tokio::{task::spawn_blocking, time::sleep};

use super::{GIVEN_OPERATOR, process::Usage};

/// Metric of the operator's writes to the API server.
pub(super) const API_WRITES: &str = "windows_node_pool_api_writes_total";

/// Number of hosts of a pool that join at once: the maximum that a pool allows.
const MAX_CONCURRENT: i32 = 100;
/// Number of the pool with hosts that hang.
const HANGING: usize = 99;
/// Number of connections that one pool can hold, of the operator's 100.
const HELD: f64 = 90.0;
/// Maximum number of hosts of a pool.
const POOL_HOSTS: usize = 1000;
/// Files of the payload, all of the same size.
const FILES: [(&str, &str); 4] = [
    (r"C:\k\kubelet.exe", "kubelet"),
    (r"C:\k\kube-proxy.exe", "kubelet"),
    (r"C:\k\containerd\containerd.exe", "containerd"),
    (r"C:\k\containerd\containerd-shim-runhcs-v1.exe", "containerd"),
];

/// Returns options for simulated hosts whose kubelets report nothing on their own: heartbeats would be most of the API server's load.
pub(super) fn without_heartbeats() -> SimOptions {
    SimOptions { heartbeat: None, status_report: None, ..SimOptions::default() }
}

/// Everything that runs for a benchmark, in the order of the shutdown.
pub(super) struct World {
    pub(super) operator: Operator,
    options: OperatorOptions,
    pub(super) hosts: Vec<SimHost>,
    _sim: Sim,
    pub(super) client: Client,
    pub(super) control_plane: ControlPlane,
    files: tempfile::TempDir,
}

impl World {
    /// Starts everything but the pool, with further arguments of the operator.
    pub(super) async fn start(hosts: u32, payload_mib: u64, sim: SimOptions, args: &[&str]) -> Result<Self> {
        let program = match std::env::var_os(GIVEN_OPERATOR) {
            Some(given) => given.into(),
            None => {
                spawn_blocking(|| Compiler::new()?.program(image::OPERATOR, Arch::Amd64, Profile::Release, None))
                    .await??
            }
        };
        // Nodes must not become NotReady: they send no heartbeats, or late ones on a busy machine.
        let patient = ["--node-monitor-grace-period=24h", "--node-startup-grace-period=24h"];
        // The certificate signer gets the rate limits of OpenShift. With the default of 20 requests per second, a hundred hosts
        // wait 15 s for their 300 certificates.
        let quick = ["--kube-api-qps=150", "--kube-api-burst=300"];
        let controller_manager_flags = patient.into_iter().chain(quick).map(String::from).collect();
        let options = ControlPlaneOptions { controller_manager_flags, ..ControlPlaneOptions::default() };
        let control_plane = ControlPlane::start(options).await?;
        deployment::install(&control_plane).await?;
        let key = deployment::new_key()?;
        deployment::store_key(&control_plane, &key).await?;
        let client = control_plane.retrying_client().await?;

        let files = tempfile::tempdir()?;
        let (dir, wicd) = (files.path().join("payload"), files.path().join("wicd.exe"));
        std::fs::write(&wicd, "wicd, for hosts that only compare its hash")?;
        let to = dir.clone();
        spawn_blocking(move || {
            let size = (payload_mib << 20) / FILES.len() as u64;
            let entry = |(seed, (path, service)): (usize, &(&str, &str))| {
                Entry::with(path, Content::Random { size, seed: seed as u64 }).services(&[service])
            };
            payload::write(&to, &FILES.iter().enumerate().map(entry).collect::<Vec<_>>(), payload::LEVEL_FAST)
        })
        .await??;

        let sim = SimOptions { authorized_keys: vec![key.public_key().clone()], ..sim };
        let sim = Sim::start(control_plane.client().await?, sim)?;
        let names = (0..hosts).map(|n| HostOptions::named(format!("win-{n}")));
        let hosts = stream::iter(names).map(|host| sim.host(host)).buffered(8).try_collect().await?;

        let args = ["--lease-duration", "30s"].iter().chain(args).map(ToString::to_string).collect();
        let options = OperatorOptions { program, payload: dir, wicd, args };
        let operator = Operator::start(&control_plane, &options)?;
        operator.leads().await?;
        Ok(Self { operator, options, hosts, _sim: sim, client, control_plane, files })
    }

    /// Returns the number of hosts of each pool.
    pub(super) fn pools(&self) -> impl Iterator<Item = usize> {
        self.hosts.chunks(POOL_HOSTS).map(<[SimHost]>::len)
    }

    /// Applies the pools with `spec` and their hosts, which join as quickly as a pool allows.
    pub(super) async fn apply(&self, spec: &WindowsNodePoolSpec) -> Result<()> {
        for (number, hosts) in self.hosts.chunks(POOL_HOSTS).enumerate() {
            self.apply_pool(number, spec, hosts.iter()).await?;
        }
        Ok(())
    }

    /// Applies a pool with `spec` and these hosts.
    pub(super) async fn apply_pool(
        &self,
        number: usize,
        spec: &WindowsNodePoolSpec,
        hosts: impl Iterator<Item = &SimHost>,
    ) -> Result<()> {
        let hosts = hosts.map(|h| Host {
            name: h.name().into(),
            address: h.address().to_string(),
            port: Some(i32::from(h.port())),
            ..Host::default()
        });
        let spec = WindowsNodePoolSpec {
            inventory: Inventory { hosts: Some(hosts.collect()), ..Inventory::default() },
            provisioning: Some(Provisioning { max_concurrent: Some(MAX_CONCURRENT), ..Provisioning::default() }),
            ..spec.clone()
        };
        let pools: Api<WindowsNodePool> = Api::all(self.client.clone());
        let (name, params) = (format!("bench-{number}"), PatchParams::apply("bench").force());
        pools.patch(&name, &params, &Patch::Apply(&WindowsNodePool::new(&name, spec))).await?;
        Ok(())
    }

    /// Applies a pool of hosts whose programs never end, and waits until they hold nearly all connections.
    pub(super) async fn hang(&self, hosts: &[SimHost]) -> Result<()> {
        if hosts.is_empty() {
            return Ok(());
        }
        for host in hosts {
            host.fault(Fault::HangInCommand);
        }
        self.apply_pool(HANGING, &WindowsNodePoolSpec::default(), hosts.iter()).await?;
        while self.operator.metric("windows_node_pool_ssh_connections_open").await? < HELD {
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Kills the operator, and starts a new one.
    pub(super) async fn restart_operator(&mut self) -> Result<()> {
        self.operator.signal("KILL")?;
        self.operator = Operator::start(&self.control_plane, &self.options)?;
        self.operator.leads().await
    }

    /// Applies the pools and waits until all their nodes are Ready. Returns how long that took.
    pub(super) async fn join(&mut self, spec: &WindowsNodePoolSpec, limit: Duration) -> Result<Duration> {
        let begun = Instant::now();
        self.apply(spec).await?;
        let hosts = self.hosts.len();
        self.until(limit, kind::READY, |pools| usize::try_from(ready(pools)) == Ok(hosts)).await?;
        Ok(begun.elapsed())
    }

    /// Waits until the pools are as expected. The error after the time limit has the messages of at most ten instances whose
    /// condition is not true.
    pub(super) async fn until(
        &mut self,
        limit: Duration,
        condition: &str,
        is_done: impl Fn(&[WindowsNodePool]) -> bool,
    ) -> Result<()> {
        let begun = Instant::now();
        let mut told = begun;
        let pools: Api<WindowsNodePool> = Api::all(self.client.clone());
        loop {
            self.operator.check()?;
            let pools = pools.list(&ListParams::default()).await?.items;
            if is_done(&pools) {
                return Ok(());
            }
            let so_far = format!("{} Ready, {} up to date", ready(&pools), up_to_date(&pools));
            if told.elapsed() > Duration::from_secs(15) {
                told = Instant::now();
                eprintln!("{:>4} s: {so_far}", begun.elapsed().as_secs());
            }
            if begun.elapsed() > limit {
                let complaints = self.complaints(condition).await?;
                bail!("of {} nodes, {so_far} after {limit:?}\n{complaints}", self.hosts.len());
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Runs a command of the kubectl plugin as the administrator. Returns the command, its time and its exit status.
    pub(super) async fn run(&self, command: &str) -> Result<String> {
        let program = spawn_blocking(testbed::operator::build).await??.with_file_name("kubectl-windows_node_pools");
        let begun = Instant::now();
        let mut process = tokio::process::Command::new(program);
        process.args(command.split_whitespace()).env("KUBECONFIG", self.control_plane.kubeconfig());
        let output = process.current_dir(self.files.path()).output().await?;
        eprintln!("{}\n{}", excerpt(&output.stdout), excerpt(&output.stderr));
        Ok(format!("{command} {:.1} s ({})", begun.elapsed().as_secs_f64(), output.status))
    }

    /// Returns the seconds of CPU time that the control plane has used.
    pub(super) fn control_plane_seconds(&self) -> Result<f64> {
        self.control_plane.processes().into_iter().map(|pid| Ok(Usage::of(pid)?.cpu_seconds)).sum()
    }

    /// Returns the messages of at most ten instances whose condition is not true.
    async fn complaints(&self, condition: &str) -> Result<String> {
        let instances: Api<WindowsInstance> = Api::all(self.client.clone());
        let instances = instances.list(&ListParams::default()).await.context("cannot list the instances")?;
        let say = |i: WindowsInstance| {
            let conditions = i.status.unwrap_or_default().conditions;
            let wrong = find(&conditions, condition).filter(|c| c.status != "True")?;
            Some(format!("{}: {}", i.spec.host.name, wrong.message))
        };
        Ok(instances.items.into_iter().filter_map(say).take(10).collect::<Vec<_>>().join("\n"))
    }
}

/// Returns the first and the last line of an output.
fn excerpt(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let lines: Vec<&str> = text.lines().collect();
    let ends: Vec<&str> = [lines.first(), lines.last()].into_iter().flatten().copied().collect();
    ends.join("\n")
}

/// Returns the number of nodes that pools report as Ready.
pub(super) fn ready(pools: &[WindowsNodePool]) -> i64 {
    pools.iter().filter_map(|p| p.status.as_ref()).map(|s| i64::from(s.ready_nodes)).sum()
}

/// Returns the number of nodes that pools report as up to date.
pub(super) fn up_to_date(pools: &[WindowsNodePool]) -> i64 {
    pools.iter().filter_map(|p| p.status.as_ref()).map(|s| i64::from(s.up_to_date_nodes)).sum()
}
