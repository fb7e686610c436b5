//! Simulated Windows hosts, hundreds or thousands in one process: an SSH server over a directory, the portable core of
//! `wicd` in place of the program, and a kubelet that consists of a few API calls.
//!
//! ```text
//!  operator ── TCP ── link (latency, cuts) ── sshd ─┬─ sftp ── drive (a directory)
//!                                                   └─ machine::execute ── windows (wicd's core)
//!  API server ── fleet (one watch each of Nodes, CSRs, Pods; one client) ── kubelet (one task for each host)
//! ```
//!
//! All hosts have the same port, and each has an address of its own in 127.0.0.0/8. All of them share one client of the API server, which
//! impersonates each kubelet, as an administrator may. With [`SimOptions::own_credentials`], each kubelet and wicd have clients of their own.

mod drive;
mod fault;
mod fleet;
mod jump_host;
mod kubelet;
mod kubelet_server;
mod link;
mod machine;
mod pods;
mod port;
pub mod sftp;
mod shell;
mod sshd;
mod windows;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use api::host::ServiceState;
use k8s_openapi::api::core::v1::Node;
use kube::core::PartialObjectMeta;
use russh::keys::{Algorithm, PrivateKey, ssh_key::PublicKey};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
pub use wicd::held::Held;
pub use wicd::maintenance::{Action, Outcome};
use wicd::{
    credential_plugin::CLASSES_OF_CCG,
    daemon::cluster::Kube,
    fake::FakeHost,
    host::{RegistryValue, RegistryValues},
    maintenance::MaintenanceContext,
};

pub use self::{
    fault::Fault,
    fleet::ServingCertificate,
    jump_host::SimJumpHost,
    kubelet::BROKEN,
    link::{Line, Link},
    shell::Shell,
};
use self::{fleet::Fleet, machine::Machine, machine::Parts};

/// Options that all hosts of a [`Sim`] have in common.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Link to every host.
    pub link: Link,
    /// Time that a host takes to start a program.
    pub process_start: Duration,
    /// Time from a kubelet's start until its Node exists.
    pub boot: Duration,
    /// Time that a restart takes, until the SSH port answers again.
    pub restart: Duration,
    /// Keys that SSH accepts. If a host has one of the files in which OpenSSH keeps authorized keys, the keys in these files count instead.
    pub authorized_keys: Vec<PublicKey>,
    /// Handling of the serving certificate by a kubelet.
    pub serving: ServingCertificate,
    /// Interval at which each Node's Lease is renewed. `None` means never, and then the controller manager needs longer timeouts.
    pub heartbeat: Option<Duration>,
    /// Interval at which each kubelet reports an unchanged status. `None` means never.
    pub status_report: Option<Duration>,
    /// Maximum time that a Pod takes to end, or its grace period if that is shorter.
    pub termination: Duration,
    /// Version that Nodes report, unless their `kubelet.exe` begins with a version such as `v1.36.3`.
    pub kubelet_version: String,
    /// True if kubelet and wicd of each host use the host's own certificates and CA for the API server, and kubelet answers requests for
    /// logs. Otherwise, all hosts share one client, so that a simulation can have many hosts.
    pub own_credentials: bool,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            link: Link::default(),
            process_start: Duration::ZERO,
            boot: Duration::ZERO,
            restart: Duration::from_millis(500),
            authorized_keys: Vec::new(),
            serving: ServingCertificate::Await,
            heartbeat: Some(Duration::from_secs(20)),
            status_report: Some(Duration::from_secs(20)),
            termination: Duration::ZERO,
            kubelet_version: crate::binaries::KUBERNETES_VERSION.into(),
            own_credentials: false,
        }
    }
}

/// Options of one host. Those that are `None` have the values of [`SimOptions`].
#[derive(Clone, Debug, Default)]
pub struct HostOptions {
    /// Host name.
    pub name: String,
    /// Keys that SSH accepts.
    pub authorized_keys: Option<Vec<PublicKey>>,
    /// Time that the host takes to start a program.
    pub process_start: Option<Duration>,
    /// Time from the start of the host's kubelet until its Node exists.
    pub boot: Option<Duration>,
    /// Faults of the host from the beginning.
    pub faults: Vec<Fault>,
}

impl HostOptions {
    /// Returns the options of a host with this name and all defaults.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }
}

/// Counters of a host since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of TCP connections to the SSH port of the host.
    pub connections: u64,
    /// Number of programs that were started.
    pub processes: u64,
    /// Number of bytes that the connections to the SSH port received.
    pub bytes_received: u64,
}

/// Simulation of hosts. Dropping it removes all of them. It runs in the tokio runtime in which it is created.
///
/// Each host needs one file descriptor, and one more for each connection: for a thousand hosts, raise `ulimit -n` first if it
/// is 1024.
pub struct Sim {
    options: SimOptions,
    fleet: Option<Arc<Fleet>>,
    dir: TempDir,
    stop: CancellationToken,
    _end: DropGuard,
}

impl Sim {
    /// Starts a simulation whose hosts become Nodes of the cluster of `admin`, a client that may impersonate any user.
    ///
    /// # Errors
    /// Fails when the directory for the hosts cannot be made.
    pub fn start(admin: kube::Client, options: SimOptions) -> Result<Self> {
        Self::new(Some(admin), options)
    }

    /// Starts a simulation without a cluster: kubelets run and do nothing.
    ///
    /// # Errors
    /// Fails when the directory for the hosts cannot be made.
    pub fn without_cluster(options: SimOptions) -> Result<Self> {
        Self::new(None, options)
    }

    fn new(admin: Option<kube::Client>, options: SimOptions) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("simulated-hosts-").tempdir();
        let dir = dir.context("cannot create a directory for simulated hosts")?;
        let stop = CancellationToken::new();
        let fleet = admin.map(|client| {
            let (fleet, live_nodes) = Fleet::start(client, options.clone(), stop.clone());
            fleet.spawn(|fleet| pods::run(fleet, live_nodes));
            fleet
        });
        Ok(Self { options, fleet, dir, _end: stop.clone().drop_guard(), stop })
    }

    /// Creates a host and switches it on. Its name must be new.
    ///
    /// # Errors
    /// Fails when its name is not new, its directory cannot be written, or there is no address to listen on.
    pub async fn host(&self, options: HostOptions) -> Result<SimHost> {
        let common = &self.options;
        let dir = self.dir.path().join(&options.name);
        std::fs::create_dir(&dir).with_context(|| format!("cannot create the directory of host {:?}", options.name))?;
        let (listener, address) = listen().await?;
        let machine = Machine::new(Parts {
            address,
            dir,
            authorized_keys: options.authorized_keys.unwrap_or_else(|| common.authorized_keys.clone()),
            host_key: new_key(),
            link: common.link.clone(),
            process_start: options.process_start.unwrap_or(common.process_start),
            restart: common.restart,
            boot: options.boot.unwrap_or(common.boot),
            name: options.name,
        })?;
        machine.change(|s| s.faults = options.faults);
        tokio::spawn(port::serve(machine.clone(), listener, self.stop.clone()));
        self.run(machine.clone(), 0);
        Ok(SimHost { machine })
    }

    /// Runs the kubelet of another simulation's host from now on: its Node belongs to this simulation's cluster. The rest of the host stays the same.
    pub fn take_over(&self, host: &SimHost) {
        let cluster = host.machine.state().borrow().cluster + 1;
        host.machine.change(|s| s.cluster = cluster);
        self.run(host.machine.clone(), cluster);
    }

    fn run(&self, machine: Arc<Machine>, cluster: u32) {
        if let Some(fleet) = &self.fleet {
            fleet.spawn(|fleet| kubelet::supervise(fleet, machine, cluster));
        }
    }
}

/// Simulated host.
#[derive(Clone)]
pub struct SimHost {
    machine: Arc<Machine>,
}

impl SimHost {
    /// Returns the host name.
    pub fn name(&self) -> &str {
        &self.machine.parts().name
    }

    /// Returns the address, which is in 127.0.0.0/8.
    pub fn address(&self) -> IpAddr {
        self.machine.address().ip()
    }

    /// Returns the SSH port.
    pub fn port(&self) -> u16 {
        self.machine.address().port()
    }

    /// Returns the host key that the host presents now.
    pub fn host_key(&self) -> PublicKey {
        self.machine.current_host_key().public_key().clone()
    }

    /// Returns the directory that is the host's `C:\`.
    pub fn drive_c(&self) -> &Path {
        self.machine.drive()
    }

    /// Puts a file on the host's `C:` before the first log-in, as in a disk image. The file is a hard link, so that one file serves
    /// many hosts.
    ///
    /// # Errors
    /// Fails when `file` is on another file system than the hosts, or the host has such a file already.
    pub fn preload(&self, windows_path: &str, file: &Path) -> Result<()> {
        let drive::SftpPath::Below(parts) = drive::place(windows_path, true) else {
            bail!("{windows_path} is not a path")
        };
        let path = drive::find(self.drive_c(), &parts);
        std::fs::create_dir_all(path.parent().context("a file has a directory")?)?;
        std::fs::hard_link(file, &path).with_context(|| format!("cannot link {} to {}", path.display(), file.display()))
    }

    /// Adds a fault to the host.
    pub fn fault(&self, fault: Fault) {
        if fault == Fault::NeedsReboot {
            // A real host can lose the feature only with a restart, after which wicd requests it again.
            let asked = drive::find(self.drive_c(), &["k", "wicd", "containers.json"]);
            let _ = std::fs::remove_file(asked);
        }
        self.machine.change(|s| s.faults.push(fault));
    }

    /// Removes all faults of the host.
    pub fn mend(&self) {
        self.machine.change(|s| s.faults.clear());
    }

    /// Returns the counters of the host since its creation.
    pub fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            connections: read(&self.machine.connections),
            processes: read(&self.machine.processes),
            bytes_received: read(&self.machine.received),
        }
    }

    /// Returns the total time for which the host's ended programs ran.
    pub fn busy(&self) -> Duration {
        Duration::from_micros(self.machine.busy.load(Ordering::Relaxed))
    }

    /// Restarts the host, as a user with the power button would.
    pub fn reboot(&self) {
        self.machine.restart_after(Duration::ZERO);
    }

    /// Switches the host off without a shutdown: connections end, the port refuses new ones, and kubelet sends nothing.
    pub fn power_off(&self) {
        self.machine.power_off();
    }

    /// Switches the host on again, with a new boot id.
    pub fn power_on(&self) {
        self.machine.power_on();
    }

    /// Gives the host another address, as a DHCP server does while the host runs. The machine id and the host key stay.
    ///
    /// # Errors
    /// Fails when there is no address to listen on.
    pub async fn readdress(&self) -> Result<()> {
        let (listener, address) = listen().await?;
        drop(listener);
        self.machine.readdress(address);
        Ok(())
    }

    /// Returns the number of boots so far, which is the host's boot id.
    pub fn boots(&self) -> u32 {
        self.machine.state().borrow().boots
    }

    /// Registers a plugin of Container Credential Guard, as another installer does.
    pub fn register_plugin(&self, clsid: &str, library: &str) {
        let values = RegistryValues::from([(String::new(), RegistryValue::Text(library.to_owned()))]);
        let keys = [
            (format!(r"SOFTWARE\Classes\CLSID\{clsid}\InprocServer32"), values),
            (format!(r"{CLASSES_OF_CCG}\{clsid}"), RegistryValues::new()),
        ];
        self.windows().state().registry.extend(keys);
    }

    /// Returns the host's Windows: services, variables, trusted certificates and facts, which a test can read and change like an administrator on the
    /// host. Values that [`Fault`]s control are reset with each change of the host's power, address, faults or cluster, and after each program.
    pub fn windows(&self) -> &FakeHost {
        self.machine.windows().host()
    }

    /// Returns the number of starts of the host's kubelet.
    pub fn kubelet_starts(&self) -> u64 {
        self.machine.state().borrow().kubelet_runs
    }

    /// Returns the Node that the host's kubelet registers and maintains, for a test without a cluster. `None` while no kubelet runs.
    ///
    /// # Errors
    /// Fails when the kubelet cannot start, because its configuration or its certificate is missing or not that of a node.
    pub fn node(&self) -> Option<Result<Value>> {
        self.machine.windows().is_running(windows::KUBELET).then(|| kubelet::ready_node(&self.machine))
    }

    /// Lets the host's wicd do its work, if it runs, and returns the changes of the Node's annotations. wicd also works without a Node, and retries
    /// what failed.
    pub fn wicd_report(&self, node: Option<&PartialObjectMeta<Node>>) -> BTreeMap<&'static str, Option<String>> {
        if let Some(node) = node {
            kubelet::report(&self.machine, node)
        } else {
            self.machine.windows().keep(None);
            BTreeMap::new()
        }
    }

    /// Runs `wicd.exe maintenance` on the host, with the host's own credentials. One of its seconds takes a tenth of a second.
    pub async fn maintenance(&self, action: &Action) -> Outcome {
        let connect = Kube::new(Arc::new(self.windows().clone()));
        let means = MaintenanceContext {
            host: self.windows(),
            connect: &connect,
            say: &|_| {},
            second: Duration::from_millis(100),
        };
        wicd::maintenance::run(&means, action, std::future::pending()).await
    }

    /// Returns the state of the host's Windows services.
    pub fn services(&self) -> BTreeMap<String, ServiceState> {
        self.windows().state().services.iter().map(|(name, s)| (name.clone(), s.state)).collect()
    }
}

fn new_key() -> PrivateKey {
    let seed: [u8; 32] = rand::random();
    let pair = russh::keys::ssh_key::private::Ed25519Keypair::from_seed(&seed);
    debug_assert_eq!(Algorithm::Ed25519, PrivateKey::from(pair.clone()).algorithm());
    PrivateKey::from(pair)
}

/// SSH port of every host.
const PORT: u16 = 2222;
/// Second bytes of the networks for simulated hosts: 127.16.0.0/16 and those after it. Each process takes one.
const NETS: std::ops::Range<u8> = 16..216;
/// Port on which a process listens to reserve a network.
const RESERVED_PORT: u16 = 22_522;

/// Returns the second byte of this process's network. While the process runs, it listens on the network's last address to reserve the network: a
/// restarting host releases its port for a moment, and no other process may place a host there.
fn own_net() -> Result<u8> {
    static OWN: OnceLock<Option<(u8, std::net::TcpListener)>> = OnceLock::new();
    let reserve = || {
        // Each process begins at another network, so that conflicts are rare.
        let begin = usize::try_from(std::process::id()).unwrap_or_default() % NETS.len();
        let bind = |net| std::net::TcpListener::bind((Ipv4Addr::new(127, net, 255, 254), RESERVED_PORT));
        NETS.cycle().skip(begin).take(NETS.len()).find_map(|net| Some((net, bind(net).ok()?)))
    };
    let own = OWN.get_or_init(reserve).as_ref();
    own.map(|(net, _)| *net).context("other processes have reserved all networks for simulated hosts")
}

/// Listens on an address that no other host has, even one of another process.
async fn listen() -> Result<(TcpListener, SocketAddr)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let net = own_net()?;
    for _ in 0..10_000 {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let [_, _, high, low] = (number / 250 * 256 + number % 250 + 1).to_be_bytes();
        let address = SocketAddr::from((Ipv4Addr::new(127, net, high, low), PORT));
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok((listener, address)),
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {}
            Err(e) => {
                return Err(e)
                    .with_context(|| format!("cannot listen on {address}; for many hosts, raise `ulimit -n`"));
            }
        }
    }
    bail!("no free address on port {PORT}: another program may listen on all addresses")
}
