//! Simulated Windows hosts, for hundreds and thousands in one process: an SSH server over a directory, the portable core of
//! `wicd` in place of the exe, and a kubelet that is a few API calls.
//!
//! ```text
//!  operator ── TCP ── link (latency, bandwidth, cuts) ── sshd ─┬─ sftp ── drive (a directory)
//!                                                             └─ machine::execute ── windows (wicd's core)
//!  API server ── fleet (one watch each of Nodes, CSRs, Pods; one client) ── kubelet (one task for each host)
//! ```
//!
//! All hosts have the same port and each an address of its own out of 127.0.0.0/8. All of them are one client of the API
//! server, which acts for each kubelet by impersonation, as an administrator may.

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
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
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
    maintenance::Means,
};

pub use self::{
    fault::Fault, fleet::ServingCertificate, jump_host::SimJumpHost, kubelet::BROKEN, link::Link, shell::Shell,
};
use self::{fleet::Fleet, machine::Machine, machine::Parts};

/// Options that all hosts of a [`Sim`] have in common.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// The line to every host.
    pub link: Link,
    /// Time that a host takes to start a program.
    pub process_start: Duration,
    /// Time that a kubelet takes from its start to its Node.
    pub boot: Duration,
    /// Time that a restart takes, until the SSH port answers again.
    pub restart: Duration,
    /// Account that SSH admits.
    pub user: String,
    /// Keys that SSH admits. Those of a host that has one of the files in which OpenSSH keeps them are in these files instead.
    pub authorized_keys: Vec<PublicKey>,
    /// SSH port of every host.
    pub port: u16,
    /// Directory of the hosts' disks; a temporary directory if not given. `/dev/shm` is faster than a disk.
    pub dir: Option<PathBuf>,
    /// Handling of the serving certificate by a kubelet.
    pub serving: ServingCertificate,
    /// Interval at which each Node's Lease is renewed. `None`: never, and then the controller manager needs longer timeouts.
    pub heartbeat: Option<Duration>,
    /// Interval at which each kubelet reports a status that has not changed. `None`: never.
    pub status_report: Option<Duration>,
    /// Maximum time that a Pod takes to end; less if its grace period is shorter.
    pub termination: Duration,
    /// Version that Nodes report, unless their `kubelet.exe` is no more than a version.
    pub kubelet_version: String,
    /// True if kubelet and wicd of each host go to the API server with the host's own certificates and CA, and kubelet answers requests for
    /// logs. Otherwise all hosts share one connection, as many must.
    pub own_credentials: bool,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            link: Link::default(),
            process_start: Duration::ZERO,
            boot: Duration::ZERO,
            restart: Duration::from_millis(500),
            user: "Administrator".into(),
            authorized_keys: Vec::new(),
            port: 2222,
            dir: None,
            serving: ServingCertificate::Await,
            heartbeat: Some(Duration::from_secs(20)),
            status_report: Some(Duration::from_secs(20)),
            termination: Duration::ZERO,
            kubelet_version: crate::binaries::KUBERNETES_VERSION.into(),
            own_credentials: false,
        }
    }
}

/// Options of one host. The rest is as in [`SimOptions`].
#[derive(Clone, Debug, Default)]
pub struct HostOptions {
    /// Host name.
    pub name: String,
    /// Account that SSH admits.
    pub user: Option<String>,
    /// Keys that SSH admits.
    pub authorized_keys: Option<Vec<PublicKey>>,
    /// The line to the host.
    pub link: Option<Link>,
    /// Time that the host takes to start a program.
    pub process_start: Option<Duration>,
    /// Time that the host's kubelet takes from its start to its Node.
    pub boot: Option<Duration>,
    /// Faults of the host from the beginning.
    pub faults: Vec<Fault>,
}

impl HostOptions {
    /// Options of a host as all others.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }
}

/// Counts of what has happened to a host since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// TCP connections to the SSH port of the host.
    pub connections: u64,
    /// Programs that were started.
    pub processes: u64,
    /// Bytes that came over the connections to the SSH port.
    pub bytes_received: u64,
}

/// A world of simulated hosts. Dropped, all of them are gone. It lives in the tokio runtime that it is made in.
///
/// Each host needs one file descriptor, and one more for each connection: for a thousand hosts, raise `ulimit -n` first where it
/// is 1024.
pub struct Sim {
    options: SimOptions,
    fleet: Option<Arc<Fleet>>,
    dir: TempDir,
    stop: CancellationToken,
    _end: DropGuard,
}

impl Sim {
    /// A world whose hosts become Nodes of the cluster of `admin`, a client that may impersonate any user.
    ///
    /// # Errors
    /// Fails when the directory for the hosts cannot be made.
    pub fn start(admin: kube::Client, options: SimOptions) -> Result<Self> {
        Self::new(Some(admin), options)
    }

    /// A world without a cluster: kubelets run and do nothing.
    ///
    /// # Errors
    /// Fails when the directory for the hosts cannot be made.
    pub fn without_cluster(options: SimOptions) -> Result<Self> {
        Self::new(None, options)
    }

    fn new(admin: Option<kube::Client>, options: SimOptions) -> Result<Self> {
        let mut builder = tempfile::Builder::new();
        builder.prefix("simulated-hosts-");
        let dir = match &options.dir {
            Some(parent) => builder.tempdir_in(parent),
            None => builder.tempdir(),
        }
        .context("cannot make a directory for simulated hosts")?;
        let stop = CancellationToken::new();
        let fleet = admin.map(|client| {
            let (fleet, live_nodes) = Fleet::start(client, options.clone(), stop.clone());
            fleet.spawn(|fleet| pods::run(fleet, live_nodes));
            fleet
        });
        Ok(Self { options, fleet, dir, _end: stop.clone().drop_guard(), stop })
    }

    /// Makes a host and switches it on. Its name must be new.
    ///
    /// # Errors
    /// Fails when its name is not new, its directory cannot be written, or there is no address to listen on.
    pub async fn host(&self, options: HostOptions) -> Result<SimHost> {
        let common = &self.options;
        let dir = self.dir.path().join(&options.name);
        std::fs::create_dir(&dir).with_context(|| format!("cannot make host {:?}", options.name))?;
        let (listener, address) = listen(common.port).await?;
        let machine = Machine::new(Parts {
            address,
            dir,
            user: options.user.unwrap_or_else(|| common.user.clone()),
            authorized_keys: options.authorized_keys.unwrap_or_else(|| common.authorized_keys.clone()),
            host_key: new_key(),
            link: options.link.unwrap_or(common.link),
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

    /// Runs the kubelet of another world's host from now on: its Node is one of this world's cluster. All else of the host stays where it is.
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

/// One simulated host.
#[derive(Clone)]
pub struct SimHost {
    machine: Arc<Machine>,
}

impl SimHost {
    /// Host name.
    pub fn name(&self) -> &str {
        &self.machine.parts().name
    }

    /// Address, out of 127.0.0.0/8.
    pub fn address(&self) -> IpAddr {
        self.machine.address().ip()
    }

    /// SSH port.
    pub fn port(&self) -> u16 {
        self.machine.address().port()
    }

    /// Host key that the host shows now.
    pub fn host_key(&self) -> PublicKey {
        self.machine.current_host_key().public_key().clone()
    }

    /// Directory that is the host's `C:\`.
    pub fn drive_c(&self) -> &Path {
        self.machine.drive()
    }

    /// Puts a file on the host's `C:` before the first log-in, as an image of a disk has it. The file is a hard link, so that one
    /// file serves many hosts.
    ///
    /// # Errors
    /// Fails when `file` lies on another file system than the hosts, or there is such a file already.
    pub fn preload(&self, windows_path: &str, file: &Path) -> Result<()> {
        let drive::Place::Below(parts) = drive::place(windows_path, true) else { bail!("{windows_path} is no path") };
        let path = drive::find(self.drive_c(), &parts);
        std::fs::create_dir_all(path.parent().context("a file has a directory")?)?;
        std::fs::hard_link(file, &path).with_context(|| format!("cannot link {} to {}", path.display(), file.display()))
    }

    /// Breaks the host with a fault, from now on.
    pub fn fault(&self, fault: Fault) {
        if fault == Fault::NeedsReboot {
            // The feature goes with a restart in real life, after which wicd asks for it again.
            let asked = drive::find(self.drive_c(), &["k", "wicd", "containers.json"]);
            let _ = std::fs::remove_file(asked);
        }
        self.machine.change(|s| s.faults.push(fault));
    }

    /// Removes all faults of the host.
    pub fn mend(&self) {
        self.machine.change(|s| s.faults.clear());
    }

    /// Counts of what has happened to the host since it was made.
    pub fn stats(&self) -> Stats {
        self.machine.stats()
    }

    /// Time that the ended programs of the host ran, all together.
    pub fn busy(&self) -> Duration {
        self.machine.busy()
    }

    /// Restarts the host, as a user with the power button would.
    pub fn reboot(&self) {
        self.machine.restart();
    }

    /// Pulls the plug: connections end, the port refuses, kubelet sends nothing.
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
        let (listener, address) = listen(self.port()).await?;
        drop(listener);
        self.machine.readdress(address);
        Ok(())
    }

    /// Number of restarts so far, and one. This is the host's boot id.
    pub fn boots(&self) -> u32 {
        self.machine.state().borrow().boots
    }

    /// Sets the time that the host's kubelet takes from its next start to its Node.
    pub fn set_boot_delay(&self, boot: Duration) {
        self.machine.change(|s| s.boot = boot);
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

    /// The host's Windows: services, variables, trusted certificates and facts, to read and to change as an administrator on
    /// the host would. What [`Fault`]s govern is set again when one comes or goes.
    pub fn windows(&self) -> &FakeHost {
        self.machine.windows().host()
    }

    /// Number of times that the host's kubelet was started.
    pub fn kubelet_starts(&self) -> u64 {
        self.machine.state().borrow().kubelet_runs
    }

    /// The Node that the host's kubelet registers and keeps, for a test without a cluster. `None` while no kubelet runs.
    ///
    /// # Errors
    /// Fails when the kubelet cannot start: its configuration or its certificate is not that of a node.
    pub fn node(&self) -> Option<Result<Value>> {
        self.machine.windows().is_running(windows::KUBELET).then(|| kubelet::ready_node(&self.machine))
    }

    /// Makes the host's wicd do its work, if it runs, and returns the changes of the Node's annotations. wicd works without a Node too: what failed
    /// once is tried again.
    pub fn wicd_report(&self, node: Option<&PartialObjectMeta<Node>>) -> BTreeMap<&'static str, Option<String>> {
        if let Some(node) = node {
            kubelet::report(&self.machine, node)
        } else {
            self.machine.windows().keep(None);
            BTreeMap::new()
        }
    }

    /// Runs `wicd.exe maintenance` on the host, with the host's own credentials. A second of it takes a tenth.
    pub async fn maintenance(&self, action: &Action) -> Outcome {
        let connect = Kube::new(Arc::new(self.windows().clone()));
        let means = Means { host: self.windows(), connect: &connect, say: &|_| {}, second: Duration::from_millis(100) };
        wicd::maintenance::run(&means, action, std::future::pending()).await
    }

    /// State of the host's Windows services.
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

/// Networks that processes share out among themselves: 127.16.0.0/16 and those after it.
const NETS: std::ops::Range<u8> = 16..216;
/// Port at which a process listens to have a network for itself.
const RESERVED_PORT: u16 = 22_522;

/// The second byte of the addresses of this process. As long as it runs it listens at the last of them: a host that restarts gives up its
/// port for a moment, and no other process must put a host of its own there.
fn own_net() -> Result<u8> {
    static OWN: OnceLock<Option<(u8, std::net::TcpListener)>> = OnceLock::new();
    let reserve = || {
        // Each process begins elsewhere, so that they seldom meet.
        let begin = usize::try_from(std::process::id()).unwrap_or_default() % NETS.len();
        let bind = |net| std::net::TcpListener::bind((Ipv4Addr::new(127, net, 255, 254), RESERVED_PORT));
        NETS.cycle().skip(begin).take(NETS.len()).find_map(|net| Some((net, bind(net).ok()?)))
    };
    let own = OWN.get_or_init(reserve).as_ref();
    own.map(|(net, _)| *net).context("other processes have all networks for simulated hosts")
}

/// Listens on an address that no other host has, not even of another process.
async fn listen(port: u16) -> Result<(TcpListener, SocketAddr)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let net = own_net()?;
    for _ in 0..10_000 {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let [_, _, high, low] = (number / 250 * 256 + number % 250 + 1).to_be_bytes();
        let address = SocketAddr::from((Ipv4Addr::new(127, net, high, low), port));
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok((listener, address)),
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {}
            Err(e) => {
                return Err(e)
                    .with_context(|| format!("cannot listen on {address}; for many hosts, raise `ulimit -n`"));
            }
        }
    }
    bail!("no free address on port {port}; something listens there on all addresses")
}
