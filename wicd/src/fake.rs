//! Fake host, made of a directory and a few maps, for tests and simulated hosts.
//!
//! A [`FakeHost`] is a handle: clones are the same host. Services do nothing but have a state; the behaviour of a simulated host when one starts or
//! stops is set with [`FakeHost::on_service`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::host::{AccountState, Antivirus, Defender, Feature, Machine, RestartCause, ServiceState};
use serde_json::Value;

use crate::access::{ADMINISTRATORS, AccessList, Guard};
use crate::daemon::order::dependents;
use crate::fake_images::{FakeImages, Images};
use crate::files::if_there;
use crate::held::{self, Held};
use crate::host::{
    Adapter, HnsRequest, Host, HostError, PathEntry, RegistryValues, Route, ServiceInfo, ServiceSpec, path_parts,
};
use crate::images::{ImageError, ImageStore};
use crate::network::HNS_NETWORKS;

/// Event of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceEvent {
    /// Start of the service.
    Started,
    /// Stop of the service.
    Stopped,
}

/// Access list of a registry key that is open for writing.
pub const OPENED: &[u8] = b"opened";

type ServiceHook = Arc<dyn Fn(ServiceEvent, &ServiceInfo) + Send + Sync>;
type PathHook = Arc<dyn Fn(&Path) + Send + Sync>;

/// Fake host, made of a directory and a few maps.
#[derive(Clone)]
pub struct FakeHost {
    dir: PathBuf,
    state: Arc<Mutex<State>>,
    images: Arc<Mutex<Images>>,
    #[cfg(test)]
    #[expect(dead_code, reason = "removes the directory when dropped")]
    owned: tests::Owned,
}

/// State of a simulated host: everything but the files. Public, so that tests can arrange and compare it.
#[derive(Clone, Default)]
pub struct State {
    /// Facts of the host itself. Its clock is the real one plus `clock_ms`.
    pub machine: Machine,
    /// Services by name.
    pub services: BTreeMap<String, ServiceInfo>,
    /// Specification with which each service was last created or changed, by name.
    pub specs: BTreeMap<String, ServiceSpec>,
    /// Machine-wide environment variables.
    pub env: BTreeMap<String, String>,
    /// Trusted certificates, DER.
    pub trusted: BTreeSet<Vec<u8>>,
    /// Number of restarts of the host.
    pub reboots: u32,
    /// Numbers of calls of [`Host::remove_networks`] and [`Host::kill_leftovers`].
    pub sweeps: (u32, u32),
    /// Running programs whose parent process has ended.
    pub orphans: Vec<String>,
    /// Registry keys below `HKLM` that wicd creates or queries.
    pub registry: BTreeMap<String, RegistryValues>,
    /// Owner and access list of registry keys that administrators may not change: such a key can be removed, and a direct subkey of it created or
    /// changed, only while the key is [`OPENED`].
    pub registry_access: BTreeMap<String, Vec<u8>>,
    /// Answers of HNS to `GET`, by path. Only tests and [`Host::remove_networks`] change them.
    pub hns: BTreeMap<String, Value>,
    /// Other requests to HNS.
    pub hns_posts: Vec<HnsRequest>,
    /// Network adapters.
    pub adapters: Vec<Adapter>,
    /// IPv4 routes.
    pub routes: Vec<Route>,
    /// Programs that are excluded from the antivirus.
    pub excluded: BTreeSet<String>,
    /// Reason why the API server is unreachable. `None` if it is reachable.
    pub unreachable: Option<String>,
    /// Ports on which a program listens.
    pub ports_in_use: BTreeSet<u16>,
    /// Causes of pending restarts of Windows itself, until the next restart.
    pub restart_causes: BTreeSet<RestartCause>,
    /// Antivirus programs of the host. An active Defender skips programs that are [excluded](Self::excluded).
    pub antivirus: Antivirus,
    /// Accounts of the domain. Others are not found.
    pub service_accounts: BTreeMap<String, AccountState>,
    /// Exit codes of services; 0 for others.
    pub exit_codes: BTreeMap<String, u32>,
    /// Events by channel, returned for any query.
    pub events: BTreeMap<String, Vec<String>>,
    /// Installed updates.
    pub updates: Vec<String>,
    /// Number of starts of each service.
    pub starts: BTreeMap<String, u32>,
    /// State of a started service; [`ServiceState::Running`] unless a test sets another one.
    pub started_state: Option<ServiceState>,
    /// Names of calls that fail, such as `delete_service kubelet`.
    pub refused: BTreeSet<String>,
    /// Errors of Windows for calls, by name as in `refused`.
    pub errors: BTreeMap<String, String>,
    /// Time that calls take, by name as in `refused`.
    pub slow: BTreeMap<String, Duration>,
    /// Services that another program has open. A deleted one stays, marked for deletion, until it is closed.
    pub open_services: BTreeSet<String>,
    /// Services that are marked for deletion.
    pub deleted_services: BTreeSet<String>,
    /// Calls that hang while a test holds the mutex, by name as in `refused`.
    pub hung: BTreeMap<String, Arc<Mutex<()>>>,
    /// Number of calls that still succeed before all fail, as after a crash of the process.
    pub calls_left: Option<u32>,
    /// Number of calls since the last [`FakeHost::fail_after`].
    pub calls: u32,
    /// Number of calls so far by name.
    pub counts: BTreeMap<&'static str, u32>,
    /// SIDs of owners of files and directories, by real path. Defaults to Administrators.
    pub owners: BTreeMap<PathBuf, String>,
    /// Access lists of files and directories, by real path. Defaults to [`AccessList::usual`].
    pub access: BTreeMap<PathBuf, AccessList>,
    /// Directories whose content had its access lists reset.
    pub resets: Vec<PathBuf>,
    service_hook: Option<ServiceHook>,
    protect_hook: Option<PathHook>,
}

impl FakeHost {
    /// Creates a fresh Windows Server 2022 whose `C:` is in this directory.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        let machine = Machine {
            uptime_ms: 3_600_000,
            hostname: "win-1".into(),
            machine_id: "00000000-0000-0000-0000-000000000001".into(),
            boot_id: "1".into(),
            os_build: "10.0.20348.2527".into(),
            os_name: "Windows Server 2022 Datacenter".into(),
            clock_ms: 0,
            addresses: vec!["10.0.0.1".into()],
            default_address: Some("10.0.0.1".into()),
            disk_free: 100 << 30,
            is_admin: true,
            containers_feature: Feature::Enabled,
            domain: None,
            language: Some("en-US".into()),
        };
        let default_route = Route {
            destination: Ipv4Addr::UNSPECIFIED,
            length: 0,
            next_hop: Ipv4Addr::new(10, 0, 0, 254),
            interface: 1,
            metric: 25,
        };
        let state = State { machine, routes: vec![default_route], ..State::default() };
        Self {
            dir: dir.into(),
            state: Arc::new(Mutex::new(state)),
            images: Arc::default(),
            #[cfg(test)]
            owned: tests::Owned::default(),
        }
    }

    /// State of the host (everything but the files), to read or to change.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Images of the host's containerd, to read or to change.
    pub fn images_state(&self) -> MutexGuard<'_, Images> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the host's own facts.
    pub fn with_machine(self, change: impl FnOnce(&mut Machine)) -> Self {
        change(&mut self.state().machine);
        self
    }

    /// Simulates that another program holds a file (Windows path), even one that does not exist yet. `None` releases it.
    ///
    /// # Errors
    /// Fails when the path is refused.
    pub fn hold(&self, windows_path: &str, by: Option<Held>) -> Result<(), HostError> {
        held::put(self.path(windows_path)?, by);
        Ok(())
    }

    /// Closes the services that other programs have open, as a restart does, and removes those that are marked for deletion.
    pub fn close_services(&self) {
        let mut state = self.state();
        state.open_services.clear();
        for name in std::mem::take(&mut state.deleted_services) {
            state.services.remove(&name);
            state.specs.remove(&name);
        }
    }

    /// Calls `hook` after a service was started or stopped, without holding a lock.
    pub fn on_service(&self, hook: impl Fn(ServiceEvent, &ServiceInfo) + Send + Sync + 'static) {
        self.state().service_hook = Some(Arc::new(hook));
    }

    /// Calls `hook` with each path that is being protected.
    pub fn on_protect(&self, hook: impl Fn(&Path) + Send + Sync + 'static) {
        self.state().protect_hook = Some(Arc::new(hook));
    }

    /// Makes all calls fail after `calls` further calls, as after a crash of the process. `None` removes the limit.
    pub fn fail_after(&self, calls: Option<u32>) {
        let mut state = self.state();
        (state.calls, state.calls_left) = (0, calls);
    }

    /// Counts a call, and fails if a test has arranged that.
    fn call(&self, name: &'static str, object: &str) -> Result<MutexGuard<'_, State>, HostError> {
        let key = format!("{name} {object}");
        let hung = self.state().hung.get(&key).cloned();
        drop(hung.as_ref().map(|held| held.lock()));
        let slow = self.state().slow.get(&key).copied();
        slow.into_iter().for_each(std::thread::sleep);
        let mut state = self.state();
        state.calls += 1;
        *state.counts.entry(name).or_default() += 1;
        let is_gone = state.calls_left == Some(0);
        state.calls_left = state.calls_left.map(|left| left.saturating_sub(1));
        let error = if is_gone || state.refused.contains(&key) {
            "injected failure"
        } else {
            let Some(error) = state.errors.get(&key) else { return Ok(state) };
            error.as_str()
        };
        Err(HostError::system(name, object)(io::Error::other(error)))
    }

    fn changed(&self, event: ServiceEvent, service: &ServiceInfo) {
        let hook = self.state().service_hook.clone();
        if let Some(hook) = hook {
            hook(event, service);
        }
    }
}

/// Refuses the use of a service that is marked for deletion.
fn check_not_deleted(state: &State, action: &'static str, name: &str) -> Result<(), HostError> {
    const MARKED_FOR_DELETE: i32 = 1072;
    if state.deleted_services.contains(name) {
        return Err(HostError::system(action, name)(io::Error::from_raw_os_error(MARKED_FOR_DELETE)));
    }
    Ok(())
}

/// Refuses a change in a registry key that administrators may not change.
fn check_may_change(state: &State, key: &str) -> Result<(), HostError> {
    if state.registry_access.get(key).is_some_and(|access| access != OPENED) {
        return Err(HostError::system("write", key)(io::Error::from(io::ErrorKind::PermissionDenied)));
    }
    Ok(())
}

impl Host for FakeHost {
    fn detached(&self) -> Arc<dyn Host> {
        Arc::new(self.clone())
    }

    fn images(&self) -> Result<Box<dyn ImageStore>, ImageError> {
        let is_stopped = self.state().services.get("containerd").is_some_and(|s| s.state != ServiceState::Running);
        Ok(Box::new(FakeImages { images: self.images.clone(), is_stopped }))
    }

    fn path(&self, windows_path: &str) -> Result<PathBuf, HostError> {
        drop(self.call("path", windows_path)?);
        Ok(path_parts(windows_path)?.fold(self.dir.clone(), |path, part| path.join(part)))
    }

    fn unreachable(&self, _: &str) -> Option<String> {
        self.state().unreachable.clone()
    }

    fn is_in_use(&self, port: u16) -> bool {
        self.state().ports_in_use.contains(&port)
    }

    fn machine(&self) -> Result<Machine, HostError> {
        let machine = self.call("machine", "")?.machine.clone();
        Ok(Machine { clock_ms: jiff::Timestamp::now().as_millisecond() + machine.clock_ms, ..machine })
    }

    fn boot_id(&self) -> Result<String, HostError> {
        Ok(self.call("boot_id", "")?.machine.boot_id.clone())
    }

    fn machine_id(&self) -> Result<String, HostError> {
        Ok(self.call("machine_id", "")?.machine.machine_id.clone())
    }

    fn disk_free(&self) -> Result<u64, HostError> {
        Ok(self.call("disk_free", "")?.machine.disk_free)
    }

    fn is_admin(&self) -> Result<bool, HostError> {
        Ok(self.call("is_admin", "")?.machine.is_admin)
    }

    fn now(&self) -> Result<i64, HostError> {
        Ok(jiff::Timestamp::now().as_second() + self.call("now", "")?.machine.clock_ms / 1000)
    }

    fn services(&self) -> Result<Vec<ServiceInfo>, HostError> {
        Ok(self.call("services", "")?.services.values().cloned().collect())
    }

    fn service(&self, name: &str) -> Result<Option<ServiceInfo>, HostError> {
        Ok(self.call("service", name)?.services.get(name).cloned())
    }

    fn put_service(&self, spec: &ServiceSpec) -> Result<bool, HostError> {
        let mut state = self.call("put_service", &spec.name)?;
        check_not_deleted(&state, "change service", &spec.name)?;
        let old = state.services.get(&spec.name);
        let new = spec.service(old.map_or(ServiceState::Stopped, |s| s.state));
        let changed = old != Some(&new) || state.specs.get(&spec.name) != Some(spec);
        state.services.insert(spec.name.clone(), new);
        state.specs.insert(spec.name.clone(), spec.clone());
        Ok(changed)
    }

    fn start_service(&self, name: &str) -> Result<(), HostError> {
        let mut state = self.call("start_service", name)?;
        check_not_deleted(&state, "start service", name)?;
        let started = state.started_state.unwrap_or(ServiceState::Running);
        let Some(service) = state.services.get_mut(name) else {
            return Err(HostError::system("start service", name)(io::Error::from(io::ErrorKind::NotFound)));
        };
        if service.is_up() {
            return Ok(());
        }
        service.state = started;
        let service = service.clone();
        *state.starts.entry(service.name.clone()).or_default() += 1;
        drop(state);
        service.dependencies.iter().try_for_each(|dependency| self.start_service(dependency))?;
        self.changed(ServiceEvent::Started, &service);
        Ok(())
    }

    fn stop_service(&self, name: &str) -> Result<Vec<String>, HostError> {
        let all: Vec<ServiceInfo> = self.call("stop_service", name)?.services.values().cloned().collect();
        if !all.iter().any(|s| s.name == name && s.is_up()) {
            return Ok(Vec::new());
        }
        let dependents = dependents(&all, name);
        for stopped in dependents.iter().map(String::as_str).chain([name]) {
            if stopped != name {
                drop(self.call("stop_service", stopped)?);
            }
            let service = self.state().services.get_mut(stopped).map(|service| {
                service.state = ServiceState::Stopped;
                service.clone()
            });
            if let Some(service) = service {
                self.changed(ServiceEvent::Stopped, &service);
            }
        }
        Ok(dependents)
    }

    fn delete_service(&self, name: &str) -> Result<(), HostError> {
        let mut state = self.call("delete_service", name)?;
        if state.open_services.contains(name) && state.services.contains_key(name) {
            state.deleted_services.insert(name.to_owned());
            let what = format!(
                "service {name} to be deleted; a program, for example services.msc, still has it open: close that program"
            );
            return Err(HostError::Timeout { what, seconds: 30 });
        }
        state.services.remove(name);
        state.specs.remove(name);
        Ok(())
    }

    fn env_var(&self, name: &str) -> Result<Option<String>, HostError> {
        Ok(self.call("env_var", name)?.env.get(name).cloned())
    }

    fn set_env_var(&self, name: &str, value: Option<&str>) -> Result<(), HostError> {
        let mut state = self.call("set_env_var", name)?;
        match value {
            Some(value) => state.env.insert(name.into(), value.into()),
            None => state.env.remove(name),
        };
        Ok(())
    }

    fn trusted(&self) -> Result<BTreeSet<Vec<u8>>, HostError> {
        Ok(self.call("trusted", "")?.trusted.clone())
    }

    fn trust(&self, der: &[u8]) -> Result<(), HostError> {
        self.call("trust", "")?.trusted.insert(der.to_vec());
        Ok(())
    }

    fn untrust(&self, der: &[u8]) -> Result<(), HostError> {
        self.call("untrust", "")?.trusted.remove(der);
        Ok(())
    }

    fn place(&self, path: &Path) -> Result<Option<PathEntry>, HostError> {
        let state = self.call("place", "")?;
        let meta = if_there(path.symlink_metadata());
        let meta = meta.map_err(HostError::system("inspect", path.display().to_string()))?;
        Ok(meta.map(|meta| PathEntry {
            kind: meta.file_type().into(),
            owner: state.owners.get(path).cloned().unwrap_or_else(|| ADMINISTRATORS.into()),
            is_own: false,
            access: state.access.get(path).cloned().unwrap_or_else(AccessList::usual),
        }))
    }

    fn make_guarded(&self, path: &Path, guard: Guard) -> Result<(), HostError> {
        let mut state = self.call("make_guarded", "")?;
        match std::fs::create_dir(path) {
            Ok(()) => drop(state.access.insert(path.to_owned(), AccessList::of(guard))),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(HostError::system("create directory", path.display().to_string())(e)),
        }
        Ok(())
    }

    fn set_access(&self, path: &Path, list: &AccessList) -> Result<(), HostError> {
        let mut state = self.call("set_access", "")?;
        state.access.insert(path.to_owned(), list.clone());
        state.owners.remove(path);
        Ok(())
    }

    fn reset_below(&self, path: &Path, except: Option<&Path>) -> Result<(), HostError> {
        let mut state = self.call("reset_below", "")?;
        let stays = |other: &Path| {
            other == path || !other.starts_with(path) || except.is_some_and(|except| other.starts_with(except))
        };
        state.owners.retain(|owned, _| stays(owned));
        state.access.retain(|guarded, _| stays(guarded));
        state.resets.push(path.to_owned());
        Ok(())
    }

    fn protect(&self, path: &Path, guard: Guard) -> Result<(), HostError> {
        let mut state = self.call("protect", "")?;
        state.access.insert(path.to_owned(), AccessList::of(guard));
        state.owners.remove(path);
        let hook = state.protect_hook.clone();
        drop(state);
        if let Some(hook) = hook {
            hook(path);
        }
        Ok(())
    }

    fn has_containers(&self) -> bool {
        self.state().machine.containers_feature == Feature::Enabled
    }

    fn enable_containers(&self) -> Result<bool, HostError> {
        Ok(self.call("enable_containers", "")?.machine.containers_feature != Feature::Enabled)
    }

    /// Restarts the host: increments the boot ID, and completes the installation of the Containers feature.
    fn reboot(&self) -> Result<(), HostError> {
        let mut state = self.call("reboot", "")?;
        state.reboots += 1;
        state.machine.boot_id = (state.machine.boot_id.parse::<u64>().unwrap_or_default() + 1).to_string();
        state.machine.containers_feature = Feature::Enabled;
        state.restart_causes.clear();
        drop(state);
        self.close_services();
        Ok(())
    }

    fn hns(&self, request: &HnsRequest) -> Result<Value, HostError> {
        let mut state = self.call("hns", &request.path)?;
        if request.method == "GET" {
            return Ok(state.hns.get(&request.path).cloned().unwrap_or_default());
        }
        state.hns_posts.push(request.clone());
        Ok(Value::Null)
    }

    fn routes(&self) -> Result<Vec<Route>, HostError> {
        Ok(self.call("routes", "")?.routes.clone())
    }

    fn add_route(&self, route: &Route) -> Result<(), HostError> {
        self.call("add_route", &route.destination.to_string())?.routes.push(*route);
        Ok(())
    }

    fn remove_route(&self, route: &Route) -> Result<(), HostError> {
        self.call("remove_route", &route.destination.to_string())?.routes.retain(|other| !other.is(route));
        Ok(())
    }

    fn adapters(&self) -> Result<Vec<Adapter>, HostError> {
        Ok(self.call("adapters", "")?.adapters.clone())
    }

    fn remove_networks(&self) -> Result<(), HostError> {
        let mut state = self.call("remove_networks", "")?;
        state.sweeps.0 += 1;
        if let Some(Value::Array(networks)) = state.hns.get_mut("/networks") {
            networks.retain(|n| !n["Name"].as_str().is_some_and(|name| HNS_NETWORKS.contains(&name)));
        }
        Ok(())
    }

    fn exclude_from_antivirus(&self, windows_path: &str) -> Result<(), HostError> {
        self.call("exclude_from_antivirus", windows_path)?.excluded.insert(windows_path.into());
        Ok(())
    }

    fn is_excluded_from_antivirus(&self, windows_path: &str) -> Result<bool, HostError> {
        Ok(self.call("is_excluded_from_antivirus", windows_path)?.excluded.contains(windows_path))
    }

    fn include_in_antivirus(&self, windows_path: &str) -> Result<(), HostError> {
        self.call("include_in_antivirus", windows_path)?.excluded.remove(windows_path);
        Ok(())
    }

    fn registry_key(&self, key: &str) -> Result<Option<RegistryValues>, HostError> {
        Ok(self.call("registry_key", key)?.registry.get(key).cloned())
    }

    fn registry_keys(&self, key: &str) -> Result<Vec<String>, HostError> {
        let state = self.call("registry_keys", key)?;
        let inside = state.registry.keys().filter_map(|other| other.strip_prefix(key)?.strip_prefix('\\'));
        let names: BTreeSet<&str> = inside.filter_map(|rest| rest.split('\\').next()).collect();
        Ok(names.into_iter().map(str::to_owned).collect())
    }

    fn registry_key_access(&self, key: &str) -> Result<Vec<u8>, HostError> {
        Ok(self.call("registry_key_access", key)?.registry_access.get(key).cloned().unwrap_or_default())
    }

    fn open_registry_key(&self, key: &str) -> Result<(), HostError> {
        self.call("open_registry_key", key)?.registry_access.insert(key.into(), OPENED.to_vec());
        Ok(())
    }

    fn restore_registry_key(&self, key: &str, access: &[u8]) -> Result<(), HostError> {
        if let Some(now) = self.call("restore_registry_key", key)?.registry_access.get_mut(key) {
            *now = access.to_vec();
        }
        Ok(())
    }

    fn put_registry_key(&self, key: &str, values: &RegistryValues) -> Result<(), HostError> {
        let mut state = self.call("put_registry_key", key)?;
        check_may_change(&state, key.rsplit_once('\\').map_or("", |(above, _)| above))?;
        state.registry.entry(key.into()).or_default().extend(values.clone());
        Ok(())
    }

    fn remove_registry_key(&self, key: &str) -> Result<bool, HostError> {
        let mut state = self.call("remove_registry_key", key)?;
        if state.registry.keys().any(|other| other.strip_prefix(key).is_some_and(|rest| rest.starts_with('\\'))) {
            return Ok(false);
        }
        check_may_change(&state, key)?;
        state.registry.remove(key);
        state.registry_access.remove(key);
        Ok(true)
    }

    fn restart_causes(&self) -> BTreeSet<RestartCause> {
        self.state().restart_causes.clone()
    }

    fn antivirus(&self, windows_path: &str) -> Antivirus {
        let state = self.state();
        let mut antivirus = state.antivirus.clone();
        if antivirus.defender == Defender::Checks && state.excluded.contains(windows_path) {
            antivirus.defender = Defender::Excludes;
        }
        antivirus
    }

    fn service_account(&self, name: &str) -> AccountState {
        self.state().service_accounts.get(name).copied().unwrap_or(AccountState::NotFound)
    }

    fn exit_code(&self, service: &str) -> Result<Option<u32>, HostError> {
        let state = self.call("exit_code", service)?;
        let code = state.exit_codes.get(service).copied().unwrap_or_default();
        Ok(state.services.contains_key(service).then_some(code))
    }

    fn events(&self, channel: &str, _: &str, most: usize) -> Result<Vec<String>, HostError> {
        let state = self.call("events", channel)?;
        Ok(state.events.get(channel).into_iter().flatten().take(most).cloned().collect())
    }

    fn updates(&self) -> Result<Vec<String>, HostError> {
        Ok(self.call("updates", "")?.updates.clone())
    }

    fn kill_leftovers(&self) -> Result<(), HostError> {
        self.call("kill_leftovers", "")?.sweeps.1 += 1;
        Ok(())
    }

    fn end_orphans(&self, programs: &[&str]) -> Result<Vec<String>, HostError> {
        let mut state = self.call("end_orphans", "")?;
        let (ended, stay) =
            std::mem::take(&mut state.orphans).into_iter().partition(|p| programs.contains(&p.as_str()));
        state.orphans = stay;
        Ok(ended)
    }
}

#[cfg(test)]
#[path = "fake_tests.rs"]
mod tests;
