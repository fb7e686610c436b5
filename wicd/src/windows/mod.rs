//! Implementation of [`crate::host::Host`] for Windows: a thin layer without decisions. `docs/concept/windows-only.md` lists
//! the parts that only a real Windows host can test.

#[expect(unsafe_code, reason = "Windows' own interface")]
mod acl;
#[expect(unsafe_code, reason = "Windows' own interface")]
mod dism;
#[expect(unsafe_code, reason = "Windows' own interface")]
mod domain;
#[expect(unsafe_code, reason = "Windows' own interface")]
mod event_log;
#[expect(unsafe_code, reason = "Windows' own interface")]
mod hns;
#[expect(unsafe_code, reason = "loads libraries that not every Windows has")]
pub mod library;
#[expect(unsafe_code, reason = "Windows' own interface")]
mod machine;
#[expect(unsafe_code, reason = "Windows' own interface")]
mod power;
#[expect(unsafe_code, reason = "Windows' own interface")]
mod privilege;
#[expect(unsafe_code, reason = "Windows' own interface")]
mod process;
mod registry;
#[expect(unsafe_code, reason = "Windows' own interface")]
mod registry_key;
#[expect(unsafe_code, reason = "Windows' own interface")]
mod routes;
#[expect(unsafe_code, reason = "Windows' own interface")]
mod scm;
pub mod service;
mod survey;
#[expect(unsafe_code, reason = "Windows' own interface")]
mod trust;
#[expect(unsafe_code, reason = "reads the texts that Windows gives")]
mod wide;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::host::{AccountState, Antivirus, Machine, RestartCause, ServiceState};
use tokio::net::windows::named_pipe::{ClientOptions, NamedPipeClient};

use crate::access::{AccessList, Guard};
use crate::host::{
    Adapter, HnsRequest, Host, HostError, PathEntry, RegistryValues, Route, ServiceInfo, ServiceSpec, path_parts,
};
use crate::images::{self, Containerd, ImageError, ImageStore};

/// Path of containerd's shims, which continue when containerd stops. The path excludes shims of another containerd on the
/// host.
const LEFTOVER: &str = r"C:\k\containerd\containerd-shim-runhcs-v1.exe";

/// Pipe on which containerd listens. wicd does not wait for a busy pipe, because containerd offers many instances of the pipe.
const CONTAINERD_PIPE: &str = r"\\.\pipe\containerd-containerd";

/// Windows host on which wicd runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct WindowsHost;

impl Host for WindowsHost {
    fn detached(&self) -> Arc<dyn Host> {
        Arc::new(*self)
    }

    fn path(&self, windows_path: &str) -> Result<PathBuf, HostError> {
        path_parts(windows_path).map(|_| PathBuf::from(windows_path))
    }

    fn machine(&self) -> Result<Machine, HostError> {
        machine::machine()
    }

    fn boot_id(&self) -> Result<String, HostError> {
        machine::boot_id()
    }

    fn machine_id(&self) -> Result<String, HostError> {
        machine::machine_id()
    }

    fn disk_free(&self) -> Result<u64, HostError> {
        machine::disk_free()
    }

    fn is_admin(&self) -> Result<bool, HostError> {
        machine::is_admin()
    }

    fn now(&self) -> Result<i64, HostError> {
        Ok(jiff::Timestamp::now().as_second())
    }

    fn services(&self) -> Result<Vec<ServiceInfo>, HostError> {
        scm::services()
    }

    fn service(&self, name: &str) -> Result<Option<ServiceInfo>, HostError> {
        scm::service(name)
    }

    fn put_service(&self, spec: &ServiceSpec) -> Result<bool, HostError> {
        scm::put_service(spec)
    }

    fn start_service(&self, name: &str) -> Result<(), HostError> {
        scm::start_service(name)
    }

    fn stop_service(&self, name: &str) -> Result<Vec<String>, HostError> {
        if scm::service(name)?.is_none_or(|s| s.state == ServiceState::Stopped) {
            return Ok(Vec::new());
        }
        let dependents = crate::daemon::order::dependents(&scm::services()?, name);
        for dependent in &dependents {
            scm::stop_service(dependent)?;
        }
        scm::stop_service(name)?;
        Ok(dependents)
    }

    fn delete_service(&self, name: &str) -> Result<(), HostError> {
        scm::delete_service(name)
    }

    fn env_var(&self, name: &str) -> Result<Option<String>, HostError> {
        registry::env_var(name)
    }

    fn set_env_var(&self, name: &str, value: Option<&str>) -> Result<(), HostError> {
        registry::set_env_var(name, value)
    }

    fn trusted(&self) -> Result<BTreeSet<Vec<u8>>, HostError> {
        trust::trusted()
    }

    fn trust(&self, der: &[u8]) -> Result<(), HostError> {
        trust::trust(der)
    }

    fn untrust(&self, der: &[u8]) -> Result<(), HostError> {
        trust::untrust(der)
    }

    fn place(&self, path: &Path) -> Result<Option<PathEntry>, HostError> {
        acl::place(path)
    }

    fn make_guarded(&self, path: &Path, guard: Guard) -> Result<(), HostError> {
        acl::make_guarded(path, guard)
    }

    fn protect(&self, path: &Path, guard: Guard) -> Result<(), HostError> {
        acl::protect(path, guard)
    }

    fn set_access(&self, path: &Path, list: &AccessList) -> Result<(), HostError> {
        acl::set_access(path, list)
    }

    fn reset_below(&self, path: &Path, except: Option<&Path>) -> Result<(), HostError> {
        acl::reset_below(path, except)
    }

    fn has_containers(&self) -> bool {
        machine::has_containers()
    }

    fn enable_containers(&self) -> Result<bool, HostError> {
        dism::enable_containers()
    }

    fn reboot(&self) -> Result<(), HostError> {
        power::reboot()
    }

    fn hns(&self, request: &HnsRequest) -> Result<serde_json::Value, HostError> {
        hns::ask(request)
    }

    fn routes(&self) -> Result<Vec<Route>, HostError> {
        routes::list().map_err(HostError::system("list", "the routes"))
    }

    fn add_route(&self, route: &Route) -> Result<(), HostError> {
        routes::add(route).map_err(HostError::system("add the route to", route.destination.to_string()))
    }

    fn remove_route(&self, route: &Route) -> Result<(), HostError> {
        routes::remove(route).map_err(HostError::system("remove the route to", route.destination.to_string()))
    }

    fn adapters(&self) -> Result<Vec<Adapter>, HostError> {
        machine::adapters().map_err(HostError::system("list", "the network adapters"))
    }

    fn remove_networks(&self) -> Result<(), HostError> {
        hns::remove_networks()
    }

    fn registry_key(&self, key: &str) -> Result<Option<RegistryValues>, HostError> {
        registry_key::values(key)
    }

    fn registry_keys(&self, key: &str) -> Result<Vec<String>, HostError> {
        registry_key::keys(key)
    }

    fn registry_key_access(&self, key: &str) -> Result<Vec<u8>, HostError> {
        registry_key::access(key)
    }

    fn open_registry_key(&self, key: &str) -> Result<(), HostError> {
        registry_key::open_up(key)
    }

    fn restore_registry_key(&self, key: &str, access: &[u8]) -> Result<(), HostError> {
        registry_key::restore(key, access)
    }

    fn put_registry_key(&self, key: &str, values: &RegistryValues) -> Result<(), HostError> {
        registry_key::put(key, values)
    }

    fn remove_registry_key(&self, key: &str) -> Result<bool, HostError> {
        registry_key::remove(key)
    }

    fn exclude_from_antivirus(&self, windows_path: &str) -> Result<(), HostError> {
        if scm::service(registry::DEFENDER)?.is_none() {
            return Ok(());
        }
        registry::exclude_from_defender(windows_path)
    }

    fn is_excluded_from_antivirus(&self, windows_path: &str) -> Result<bool, HostError> {
        Ok(scm::service(registry::DEFENDER)?.is_none() || registry::is_excluded_from_defender(windows_path)?)
    }

    fn include_in_antivirus(&self, windows_path: &str) -> Result<(), HostError> {
        registry::include_in_defender(windows_path)
    }

    fn restart_causes(&self) -> BTreeSet<RestartCause> {
        survey::restart_causes()
    }

    fn antivirus(&self, windows_path: &str) -> Antivirus {
        survey::antivirus(windows_path)
    }

    fn service_account(&self, name: &str) -> AccountState {
        domain::service_account(name)
    }

    fn images(&self) -> Result<Box<dyn ImageStore>, ImageError> {
        let open = || std::future::ready(ClientOptions::new().open(CONTAINERD_PIPE));
        let check = |pipe: &NamedPipeClient| images::check_owner(&acl::pipe_owner(pipe)?);
        Ok(Box::new(Containerd::connect(CONTAINERD_PIPE, open, check)?))
    }

    fn exit_code(&self, service: &str) -> Result<Option<u32>, HostError> {
        scm::exit_code(service)
    }

    fn events(&self, channel: &str, query: &str, most: usize) -> Result<Vec<String>, HostError> {
        event_log::events(channel, query, most).map_err(HostError::system("read the event log", channel))
    }

    fn updates(&self) -> Result<Vec<String>, HostError> {
        survey::updates().map_err(HostError::system("list", "the installed updates"))
    }

    fn remove_any(&self) {
        acl::take_any();
    }

    fn kill_leftovers(&self) -> Result<(), HostError> {
        process::end_all(LEFTOVER)
    }

    fn end_orphans(&self, programs: &[&str]) -> Result<Vec<String>, HostError> {
        process::end_orphans(programs).map_err(HostError::system("end", "processes of an earlier run of a service"))
    }
}
