//! Windows of a simulated host: wicd's fake host, over the directory that SFTP serves.
//!
//! wicd's own core runs the operator's verbs, and its service's own [`Reconciler`] maintains services: not continuously, which
//! would be too much for hundreds of hosts, but after each event, until nothing is left to do.

use std::{
    net::IpAddr,
    path::PathBuf,
    sync::{Arc, LazyLock, Mutex},
    time::{Duration, Instant},
};

use anyhow::Result;
use api::{
    host::{Feature, Machine, ServiceState, Verb, WICD_SERVICE, path},
    names::user,
};
use serde_json::Value;
use wicd::{
    daemon::reconciler::{Reconciler, Report},
    fake::{FakeHost, ServiceEvent},
    fake_kubelet,
    host::{Host as _, StartType},
    operation,
};
use x509_parser::{extensions::GeneralName, pem::Pem};

use super::fault::Fault;
use crate::lock::lock;

/// Service whose state is that of the kubelet.
pub(super) const KUBELET: &str = "kubelet";
/// Number of free bytes on `C:`.
const DISK: u64 = 100 << 30;

/// Maximum number of passes of a reconciler that does not settle, until the next event.
const PASSES: usize = 20;

/// Windows on one host.
pub(super) struct Windows {
    host: FakeHost,
    reconciler: Arc<Mutex<Reconciler>>,
}

impl Windows {
    /// Creates Windows for a host. `changed` is called after a service was started or stopped.
    pub(super) fn new(
        hostname: &str,
        address: IpAddr,
        drive: PathBuf,
        changed: impl Fn(ServiceEvent, &str) + Send + Sync + 'static,
    ) -> Self {
        let host = FakeHost::new(drive).with_machine(|m| {
            m.hostname = hostname.to_string();
            m.machine_id = machine_id(hostname, address);
            m.addresses = vec![address.to_string()];
            m.default_address = Some(address.to_string());
        });
        let reconciler = Arc::new(Mutex::new(Reconciler::new(Arc::new(host.clone()))));
        let (handle, started) = (host.clone(), reconciler.clone());
        host.on_service(move |event, service| {
            if event == ServiceEvent::Started && service.name == WICD_SERVICE {
                // A new process of wicd begins without state. It changes nothing while a verb holds the host's lock.
                *lock(&started) = Reconciler::new(Arc::new(handle.clone()));
                settle(&started, None);
            }
            if event == ServiceEvent::Started && service.name == KUBELET {
                // An error is ignored here: the simulated kubelet logs it when it begins to register its Node.
                let _unfit = fake_kubelet::start(&handle);
            }
            changed(event, &service.name);
        });
        Self { host, reconciler }
    }

    pub(super) fn host(&self) -> &FakeHost {
        &self.host
    }

    /// Sets the host's boot id, and the clock, free space and Containers feature according to the faults.
    pub(super) fn set_conditions(&self, boots: u32, faults: &[Fault]) {
        let ahead = faults.iter().find_map(|f| match f {
            Fault::ClockAhead(by) => Some(millis(*by)),
            Fault::ClockBehind(by) => Some(-millis(*by)),
            Fault::ClockBehindAfterRestart(by) if boots > 1 => Some(-millis(*by)),
            _ => None,
        });
        let mut state = self.host.state();
        state.machine.boot_id = boots.to_string();
        state.machine.clock_ms = ahead.unwrap_or(0);
        state.machine.disk_free = if faults.contains(&Fault::DiskFull) { 0 } else { DISK };
        state.machine.containers_feature =
            if faults.contains(&Fault::NeedsReboot) { Feature::Disabled } else { Feature::Enabled };
    }

    /// Runs wicd for one verb, and then lets wicd's service do its work. Returns true if the host must restart.
    pub(super) fn run(&self, verb: Verb, operation: &str) -> Result<bool> {
        let restarts = self.host.state().reboots;
        operation::serve(&self.host, verb, operation)?;
        self.keep(None);
        Ok(self.host.state().reboots != restarts)
    }

    /// Does the work of wicd's service, if it runs: brings services and files to their desired state. Returns wicd's report, which is empty if the
    /// service does not run.
    pub(super) fn keep(&self, node: Option<&Value>) -> Report {
        if self.is_running(WICD_SERVICE) { settle(&self.reconciler, node) } else { Report::default() }
    }

    /// Reports whether wicd's service runs and has unfinished work, for example because a verb held the host's lock.
    pub(super) fn is_moving(&self) -> bool {
        // A thread that holds the lock is working on it now.
        let moving = || self.reconciler.try_lock().is_ok_and(|r| r.is_moving());
        self.is_running(WICD_SERVICE) && moving()
    }

    /// Returns the facts of the host as a machine.
    pub(super) fn machine(&self) -> Machine {
        self.host.state().machine.clone()
    }

    pub(super) fn is_running(&self, service: &str) -> bool {
        self.host.state().services.get(service).is_some_and(|s| s.state == ServiceState::Running)
    }

    /// Stops all services and programs at once.
    pub(super) fn halt(&self) {
        self.host.fail_after(Some(0));
        for service in self.host.state().services.values_mut() {
            service.state = ServiceState::Stopped;
        }
        self.host.close_services();
    }

    /// Starts the services that start with the host.
    pub(super) fn boot(&self) {
        self.host.fail_after(None);
        let automatic = |start| start == StartType::Auto;
        let names: Vec<String> =
            self.host.state().services.values().filter(|s| automatic(s.start)).map(|s| s.name.clone()).collect();
        for name in names {
            if let Err(error) = self.host.start_service(&name) {
                tracing::warn!(name, error = &error as &dyn std::error::Error, "a simulated service does not start");
            }
        }
    }

    /// Reports whether kubelet has a serving certificate for this Node at this address, read from the host's file.
    pub(super) fn has_serving_certificate(&self, node: &str, address: &str) -> bool {
        let is_for = |pem: &str| {
            let block = Pem::iter_from_buffer(pem.as_bytes()).flatten().find(|b| b.label == "CERTIFICATE")?;
            let leaf = block.parse_x509().ok()?;
            let name = leaf.subject().iter_common_name().next()?.as_str().ok()?.to_owned();
            let names = leaf.subject_alternative_name().ok()??;
            let octets = match address.parse().ok()? {
                IpAddr::V4(v4) => v4.octets().to_vec(),
                IpAddr::V6(v6) => v6.octets().to_vec(),
            };
            let names_address = names.value.general_names.iter().any(|n| *n == GeneralName::IPAddress(&octets));
            let is_of_node = name == format!("{}{node}", user::NODE_PREFIX);
            Some(is_of_node && names_address && leaf.validity().is_valid())
        };
        self.serving_certificate().is_some_and(|pem| is_for(&pem) == Some(true))
    }

    /// Returns kubelet's serving certificate and its key, if there is one.
    pub(super) fn serving_certificate(&self) -> Option<String> {
        std::fs::read_to_string(self.host.path(path::KUBELET_PKI).ok()?.join(SERVING)).ok()
    }

    /// Stores a serving certificate where kubelet keeps its own.
    pub(super) fn keep_serving_certificate(&self, pem: &str) {
        let kept = self
            .host
            .path(path::KUBELET_PKI)
            .map(|dir| std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(dir.join(SERVING), pem)));
        if !matches!(kept, Ok(Ok(()))) {
            tracing::warn!("a simulated kubelet cannot keep its serving certificate");
        }
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        // The callback holds the host, and the host holds the callback.
        self.host.on_service(|_, _| {});
    }
}

/// Name of the file in which kubelet keeps its serving certificate.
const SERVING: &str = "kubelet-server-current.pem";

/// Repeats passes of a reconciler until nothing is left to do, at most [`PASSES`] times.
fn settle(reconciler: &Mutex<Reconciler>, node: Option<&Value>) -> Report {
    static SINCE: LazyLock<Instant> = LazyLock::new(Instant::now);
    let mut reconciler = lock(reconciler);
    let mut report = Report::default();
    for _ in 0..PASSES {
        report = reconciler.reconcile_once(node, SINCE.elapsed());
        if report.settled {
            break;
        }
    }
    report
}

fn machine_id(hostname: &str, address: IpAddr) -> String {
    use sha2::Digest as _;
    let hex = hex::encode(sha2::Sha256::digest(format!("{hostname} {address}")));
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..32])
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
