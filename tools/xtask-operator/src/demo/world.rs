//! Control plane, hosts and operator of the demo.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use api::{Host, Inventory, Provisioning, WindowsInstance, WindowsNodePool, WindowsNodePoolSpec};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use testbed::{
    ControlPlane, ControlPlaneOptions, Operator, OperatorOptions, binaries, deployment, operator,
    payload::{self, Content, Entry},
    sim::{HostOptions, Sim, SimHost, SimOptions},
    wine::{HostNetwork, WineHost, WineOptions},
};
use tokio::task::spawn_blocking;

use super::table::View;

/// Name of the pool.
pub(super) const POOL: &str = "demo";
/// Names of the hosts under Wine.
const WINE_HOSTS: [&str; 2] = ["wine-1", "wine-2"];
/// Kubelet settings for Wine, which treats a rooted path without a drive as a Linux path.
const WINE_KUBELET: &str = r#"{"podLogsDir": "C:\\var\\log\\pods"}"#;

/// Everything that runs for the demo, in the order of the shutdown.
pub(super) struct World {
    pub(super) operator: Operator,
    wine: Vec<WineHost>,
    simulated: Vec<SimHost>,
    _sim: Sim,
    client: Client,
    pub(super) control_plane: ControlPlane,
    _files: tempfile::TempDir,
}

impl World {
    /// Builds missing programs, and starts everything but the pool.
    pub(super) async fn start(hosts: Option<u16>, with_wine: bool) -> Result<Self> {
        say("building the operator");
        let program = spawn_blocking(operator::build).await??;
        say("building the control plane");
        spawn_blocking(binaries::control_plane).await??;
        let (exe, kubelet) = if with_wine {
            say("building wicd.exe and kubelet.exe");
            let exe = spawn_blocking(binaries::wicd_exe).await??;
            let kubelet = spawn_blocking(|| binaries::host_kubelet(binaries::Platform::Windows)).await??;
            (Some(exe), Content::File(kubelet))
        } else {
            // Simulated hosts only compare hashes. The size is a small part of a real payload's.
            (None, Content::Random { size: 4 << 20, seed: 1 })
        };
        let files = tempfile::tempdir()?;
        let mut args =
            ["--backoff-base", "2s", "--backoff-max", "30s", "--show-step-after", "0s"].map(str::to_owned).to_vec();
        if with_wine {
            let patch = files.path().join("kubelet.json");
            std::fs::write(&patch, WINE_KUBELET)?;
            // Simulated hosts keep loopback addresses, although Wine hosts need the API server at another address.
            args.extend([
                "--loopback-hosts".to_owned(),
                "--kubelet-config-patch".to_owned(),
                patch.display().to_string(),
            ]);
        }
        let options = OperatorOptions {
            program,
            payload: files.path().join("payload"),
            wicd: exe.unwrap_or_else(|| files.path().join("wicd.exe")),
            args,
        };
        if !options.wicd.exists() {
            std::fs::write(&options.wicd, "wicd, for hosts that only compare its hash")?;
        }
        let to = options.payload.clone();
        spawn_blocking(move || {
            let kubelet = Entry::with(r"C:\k\kubelet.exe", kubelet).services(&["kubelet"]);
            payload::write(&to, &[kubelet], payload::LEVEL_FAST)
        })
        .await??;

        say("starting the control plane");
        let network = with_wine.then(HostNetwork::create).transpose()?.map(Arc::new);
        // The node of a host that is cut off is not Ready after this time.
        let controller_manager_flags = vec!["--node-monitor-grace-period=30s".to_owned()];
        let control_plane =
            ControlPlane::start(ControlPlaneOptions { network, controller_manager_flags, ..Default::default() })
                .await?;
        deployment::install(&control_plane).await?;
        let key = deployment::new_key()?;
        deployment::store_key(&control_plane, &key).await?;
        let client = control_plane.client().await?;

        say("starting the hosts");
        let mut wine = Vec::new();
        if with_wine {
            let starting = WINE_HOSTS.map(|name| WineHost::start(&control_plane, WineOptions::new(name)));
            wine = futures::future::try_join_all(starting).await?;
            let public = key.public_key().to_openssh()?;
            wine.iter().try_for_each(|host| host.authorize(&public))?;
        }
        let sim = SimOptions {
            authorized_keys: vec![key.public_key().clone()],
            // Hosts are as slow as small machines, so that the table has something to show.
            process_start: Duration::from_millis(300),
            boot: Duration::from_secs(2),
            heartbeat: Some(Duration::from_secs(5)),
            ..SimOptions::default()
        };
        let sim = Sim::start(client.clone(), sim)?;
        let mut simulated = Vec::new();
        for n in 1..=hosts.unwrap_or(if with_wine { 3 } else { 5 }) {
            simulated.push(sim.host(HostOptions::named(format!("sim-{n}"))).await?);
        }

        say("starting the operator");
        let operator = Operator::start(&control_plane, &options)?;
        operator.leads().await?;
        Ok(Self { operator, wine, simulated, _sim: sim, client, control_plane, _files: files })
    }

    /// Returns the number of hosts.
    pub(super) fn count(&self) -> usize {
        self.wine.len() + self.simulated.len()
    }

    /// Applies the pool, as a user would.
    pub(super) async fn apply_pool(&self) -> Result<()> {
        let host = |name: &str, address: String, port: u16| Host {
            name: name.into(),
            address,
            port: Some(i32::from(port)),
            ..Host::default()
        };
        let wine = self.wine.iter().map(|h| host(h.name(), h.address().to_string(), h.port()));
        let simulated = self.simulated.iter().map(|h| host(h.name(), h.address().to_string(), h.port()));
        let spec = WindowsNodePoolSpec {
            inventory: Inventory { hosts: Some(wine.chain(simulated).collect()), ..Inventory::default() },
            provisioning: Some(Provisioning { max_concurrent: Some(10), ..Provisioning::default() }),
            ..WindowsNodePoolSpec::default()
        };
        let pools: Api<WindowsNodePool> = Api::all(self.client.clone());
        let pool = WindowsNodePool::new(POOL, spec);
        pools.patch(POOL, &PatchParams::apply("demo").force(), &Patch::Apply(&pool)).await?;
        Ok(())
    }

    /// Reads the pool and its instances.
    pub(super) async fn look(&self) -> Result<View> {
        let pool = Api::<WindowsNodePool>::all(self.client.clone()).get_opt(POOL).await?;
        let instances: Api<WindowsInstance> = Api::all(self.client.clone());
        let mut instances = instances.list(&ListParams::default()).await?.items;
        instances.sort_by_key(|i| self.names().position(|name| name == i.spec.host.name));
        Ok(View { pool, instances })
    }

    /// Returns the names of the hosts, in the order of the pool.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.wine.iter().map(WineHost::name).chain(self.simulated.iter().map(SimHost::name))
    }

    /// Cuts a host off, or lets it come back. Returns false if there is no such host.
    pub(super) fn switch(&self, name: &str, on: bool) -> Result<bool> {
        if let Some(host) = self.wine.iter().find(|h| h.name() == name) {
            if on { host.mend_network()? } else { host.cut_network()? }
        } else if let Some(host) = self.simulated.iter().find(|h| h.name() == name) {
            if on { host.power_on() } else { host.power_off() }
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

/// Builds the programs of hosts under Wine.
pub(super) async fn build_for_wine() -> Result<()> {
    say("building wicd.exe and kubelet.exe");
    spawn_blocking(|| binaries::wicd_exe().and_then(|_| binaries::host_kubelet(binaries::Platform::Windows))).await??;
    Ok(())
}

fn say(what: &str) {
    println!("==> {what}");
}
