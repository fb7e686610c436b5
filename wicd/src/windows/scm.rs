//! Service control manager.

use std::io;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use api::host::ServiceState;
use windows_sys::Win32::Foundation::{
    ERROR_INSUFFICIENT_BUFFER, ERROR_INVALID_LEVEL, ERROR_MORE_DATA, ERROR_SERVICE_ALREADY_RUNNING,
    ERROR_SERVICE_CANNOT_ACCEPT_CTRL, ERROR_SERVICE_DOES_NOT_EXIST, ERROR_SERVICE_MARKED_FOR_DELETE,
    ERROR_SERVICE_NOT_ACTIVE, ERROR_SERVICE_REQUEST_TIMEOUT, ERROR_SERVICE_SPECIFIC_ERROR,
};
use windows_sys::Win32::System::Services as win;

use super::process::Process;
use super::wide::{check, is, text, text_list, wide, wide_list};
use crate::host::{HostError, Recovery, ServiceInfo, ServiceSpec, StartType};

/// Maximum wait for a service to stop before its process is terminated.
const STOP_LIMIT: Duration = Duration::from_mins(2);
/// Maximum wait for the service manager to notice the end of a process, or to drop a deleted service.
const SETTLE_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(200);
/// Size of the buffer for a service's configuration, in bytes: the documented maximum of an answer.
const QUERY_BYTES: usize = 8192;

/// Handle of the service manager or of a service.
struct Handle(win::SC_HANDLE);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, open, and not used afterwards.
        unsafe { win::CloseServiceHandle(self.0) };
    }
}

impl Handle {
    fn new(handle: win::SC_HANDLE) -> io::Result<Self> {
        if handle.is_null() { Err(io::Error::last_os_error()) } else { Ok(Self(handle)) }
    }
}

fn manager(access: u32) -> Result<Handle, HostError> {
    // SAFETY: no pointers but nulls, which mean this computer and the active database.
    let handle = unsafe { win::OpenSCManagerW(null(), null(), access) };
    Handle::new(handle).map_err(HostError::system("open", "the service manager"))
}

/// Opens a service, `None` if it does not exist.
fn open(name: &str, access: u32) -> Result<Option<Handle>, HostError> {
    let manager = manager(win::SC_MANAGER_CONNECT)?;
    let opened = wide(name).and_then(|wide_name| {
        // SAFETY: the handle is open and the name ends with a zero.
        Handle::new(unsafe { win::OpenServiceW(manager.0, wide_name.as_ptr(), access) })
    });
    match opened {
        Ok(handle) => Ok(Some(handle)),
        Err(e) if is(&e, ERROR_SERVICE_DOES_NOT_EXIST) => Ok(None),
        Err(e) => Err(HostError::system("open service", name)(e)),
    }
}

/// Returns all Win32 services; only name and state of those that cannot be queried.
pub(super) fn services() -> Result<Vec<ServiceInfo>, HostError> {
    let failed = || HostError::system("list", "the services");
    let manager = manager(win::SC_MANAGER_CONNECT | win::SC_MANAGER_ENUMERATE_SERVICE)?;
    let mut buffer: Vec<u64> = vec![0; 8192];
    let mut resume = 0;
    let mut listed = Vec::new();
    loop {
        let (mut needed, mut count) = (0, 0);
        // SAFETY: the handle is open; the buffer has the passed length and is aligned for the structs in it.
        let done = check(unsafe {
            win::EnumServicesStatusExW(
                manager.0,
                win::SC_ENUM_PROCESS_INFO,
                win::SERVICE_WIN32,
                win::SERVICE_STATE_ALL,
                buffer.as_mut_ptr().cast(),
                byte_length(&buffer),
                &raw mut needed,
                &raw mut count,
                &raw mut resume,
                null(),
            )
        });
        let more = match done {
            Ok(()) => false,
            Err(e) if is(&e, ERROR_MORE_DATA) => true,
            Err(e) => return Err(failed()(e)),
        };
        // SAFETY: the call has put `count` structs at the beginning of the buffer; their texts are in the buffer, too.
        unsafe {
            let entries = buffer.as_ptr().cast::<win::ENUM_SERVICE_STATUS_PROCESSW>();
            for entry in std::slice::from_raw_parts(entries, count as usize) {
                listed.push((text(entry.lpServiceName), state(entry.ServiceStatusProcess.dwCurrentState)));
            }
        }
        if !more {
            break;
        }
        if count == 0 {
            buffer.resize(buffer.len() + (needed as usize).div_ceil(8), 0);
        }
    }
    let mut infos = Vec::with_capacity(listed.len());
    for (name, state) in listed {
        match service(&name) {
            Ok(Some(info)) => infos.push(info),
            Ok(None) => {}
            Err(_) => infos.push(ServiceInfo { name, state, ..ServiceInfo::default() }),
        }
    }
    Ok(infos)
}

/// Service with this name, `None` if it does not exist.
pub(super) fn service(name: &str) -> Result<Option<ServiceInfo>, HostError> {
    let Some(service) = open(name, win::SERVICE_QUERY_CONFIG | win::SERVICE_QUERY_STATUS)? else {
        return Ok(None);
    };
    let failed = || HostError::system("query service", name);
    let status = status(&service).map_err(failed())?;
    let mut config = config(&service).map_err(failed())?;
    if config.dependencies.is_empty() {
        // Wine stores dependencies without reporting them; on Windows, the registry has none either.
        config.dependencies = super::registry::dependencies(name);
    }
    let description = description(&service).map_err(failed())?;
    Ok(Some(ServiceInfo {
        name: name.to_owned(),
        description,
        command: config.command,
        dependencies: config.dependencies,
        environment: super::registry::service_environment(name),
        start: config.start,
        state: state(status.dwCurrentState),
    }))
}

/// Last exit code of a service: its service-specific one, if it has one.
pub(super) fn exit_code(name: &str) -> Result<Option<u32>, HostError> {
    let Some(service) = open(name, win::SERVICE_QUERY_STATUS)? else { return Ok(None) };
    let status = status(&service).map_err(HostError::system("query service", name))?;
    let is_own = status.dwWin32ExitCode == ERROR_SERVICE_SPECIFIC_ERROR;
    Ok(Some(if is_own { status.dwServiceSpecificExitCode } else { status.dwWin32ExitCode }))
}

struct Config {
    command: String,
    dependencies: Vec<String>,
    start: StartType,
    own_process: bool,
}

fn config(service: &Handle) -> io::Result<Config> {
    let mut buffer: Vec<u64> = vec![0; QUERY_BYTES / 8];
    let mut needed = 0;
    // SAFETY: the handle is open; the buffer has the passed length and is aligned for the struct, whose texts are in it, too.
    unsafe {
        let config = buffer.as_mut_ptr().cast::<win::QUERY_SERVICE_CONFIGW>();
        check(win::QueryServiceConfigW(service.0, config, byte_length(&buffer), &raw mut needed))?;
        Ok(Config {
            command: text((*config).lpBinaryPathName),
            dependencies: text_list((*config).lpDependencies),
            start: match (*config).dwStartType {
                win::SERVICE_AUTO_START | win::SERVICE_BOOT_START | win::SERVICE_SYSTEM_START => StartType::Auto,
                win::SERVICE_DISABLED => StartType::Disabled,
                _ => StartType::Demand,
            },
            own_process: (*config).dwServiceType & win::SERVICE_WIN32_OWN_PROCESS != 0,
        })
    }
}

/// Queries one kind of additional configuration. The struct is at the beginning of the answer.
fn config2(service: &Handle, kind: u32) -> io::Result<Vec<u64>> {
    let mut buffer: Vec<u64> = vec![0; QUERY_BYTES / 8];
    loop {
        let mut needed = 0;
        // SAFETY: the handle is open and the buffer has the passed length.
        let done = check(unsafe {
            win::QueryServiceConfig2W(
                service.0,
                kind,
                buffer.as_mut_ptr().cast(),
                byte_length(&buffer),
                &raw mut needed,
            )
        });
        match done {
            Err(e) if is(&e, ERROR_INSUFFICIENT_BUFFER) && needed as usize > buffer.len() * 8 => {
                buffer.resize((needed as usize).div_ceil(8), 0);
            }
            other => return other.map(|()| buffer),
        }
    }
}

fn description(service: &Handle) -> io::Result<String> {
    let buffer = config2(service, win::SERVICE_CONFIG_DESCRIPTION)?;
    // SAFETY: the struct of this kind is at the beginning of the answer, its text is null or is in the buffer.
    unsafe { Ok(text((*buffer.as_ptr().cast::<win::SERVICE_DESCRIPTIONW>()).lpDescription)) }
}

/// Recovery settings as Windows stores them: delays of restarts in milliseconds (none if an action is not a restart), reset period in seconds, and
/// whether a stop with an error counts.
fn recovery(service: &Handle) -> io::Result<(Vec<u32>, u32, bool)> {
    let actions = config2(service, win::SERVICE_CONFIG_FAILURE_ACTIONS)?;
    let flag = config2(service, win::SERVICE_CONFIG_FAILURE_ACTIONS_FLAG)?;
    // SAFETY: the structs of these kinds are at the beginning of the answers; the list is null or is in the buffer and
    // has the number of entries in the struct.
    unsafe {
        let actions = &*actions.as_ptr().cast::<win::SERVICE_FAILURE_ACTIONSW>();
        let flag = (*flag.as_ptr().cast::<win::SERVICE_FAILURE_ACTIONS_FLAG>()).fFailureActionsOnNonCrashFailures;
        let list = if actions.lpsaActions.is_null() {
            &[]
        } else {
            std::slice::from_raw_parts(actions.lpsaActions, actions.cActions as usize)
        };
        let restarts = list.iter().all(|a| a.Type == win::SC_ACTION_RESTART);
        let delays = if restarts { list.iter().map(|a| a.Delay).collect() } else { Vec::new() };
        Ok((delays, actions.dwResetPeriod, flag != 0))
    }
}

/// Sets one kind of additional configuration of a service.
///
/// # Safety
/// `T` is the struct that belongs to the kind, and its pointers are valid.
unsafe fn set_config2<T>(service: &Handle, kind: u32, info: &T) -> io::Result<()> {
    // SAFETY: the handle is open; the caller promises the struct.
    check(unsafe { win::ChangeServiceConfig2W(service.0, kind, std::ptr::from_ref(info).cast()) })
}

fn set_description(service: &Handle, description: &str) -> io::Result<()> {
    let mut wide = wide(description)?;
    let info = win::SERVICE_DESCRIPTIONW { lpDescription: wide.as_mut_ptr() };
    // SAFETY: the struct is the one of the kind; its text ends with a zero and is still alive.
    unsafe { set_config2(service, win::SERVICE_CONFIG_DESCRIPTION, &info) }
}

/// Delays of restarts in milliseconds and reset period in seconds, as Windows expects them.
fn recovery_raw(recovery: &Recovery) -> (Vec<u32>, u32) {
    let delays = recovery.delays.iter().map(|d| u32::try_from(d.as_millis()).unwrap_or(u32::MAX)).collect::<Vec<_>>();
    (delays, u32::try_from(recovery.reset.as_secs()).unwrap_or(u32::MAX))
}

fn set_recovery(service: &Handle, delays: &[u32], reset: u32) -> io::Result<()> {
    let mut actions: Vec<_> =
        delays.iter().map(|&delay| win::SC_ACTION { Type: win::SC_ACTION_RESTART, Delay: delay }).collect();
    let info = win::SERVICE_FAILURE_ACTIONSW {
        dwResetPeriod: reset,
        lpRebootMsg: null_mut(),
        lpCommand: null_mut(),
        cActions: u32::try_from(actions.len()).unwrap_or(0),
        lpsaActions: actions.as_mut_ptr(),
    };
    // SAFETY: the struct is the one of the kind; its list has the length in the struct and is still alive.
    unsafe { set_config2(service, win::SERVICE_CONFIG_FAILURE_ACTIONS, &info)? };
    // Without the flag, a service is restarted only after a crash, not after it stops with an error.
    let flag = win::SERVICE_FAILURE_ACTIONS_FLAG { fFailureActionsOnNonCrashFailures: 1 };
    // SAFETY: the struct is the one of the kind.
    match unsafe { set_config2(service, win::SERVICE_CONFIG_FAILURE_ACTIONS_FLAG, &flag) } {
        // Wine stores the actions without performing them, and does not know the flag.
        Err(e) if is(&e, ERROR_INVALID_LEVEL) => Ok(()),
        other => other,
    }
}

fn start_raw(start: StartType) -> u32 {
    match start {
        StartType::Auto => win::SERVICE_AUTO_START,
        StartType::Demand => win::SERVICE_DEMAND_START,
        StartType::Disabled => win::SERVICE_DISABLED,
    }
}

/// Creates a service from `spec`, or changes it where it differs.
pub(super) fn put_service(spec: &ServiceSpec) -> Result<bool, HostError> {
    // Setting restarts as recovery actions needs the right to start the service.
    const ACCESS: u32 = win::SERVICE_QUERY_CONFIG | win::SERVICE_CHANGE_CONFIG | win::SERVICE_START;
    let end = Instant::now() + SETTLE_LIMIT;
    loop {
        let (action, done) = match open(&spec.name, ACCESS)? {
            Some(service) => ("change service", change(&service, spec)),
            None => ("create service", create(spec, ACCESS).and_then(|service| change(&service, spec)).map(|_| true)),
        };
        match done {
            // A deleted service of this name exists until all handles to it are closed.
            Err(e) if is(&e, ERROR_SERVICE_MARKED_FOR_DELETE) && Instant::now() < end => std::thread::sleep(POLL),
            done => return done.map_err(HostError::system(action, &spec.name)),
        }
    }
}

/// Creates a service without the settings that Windows accepts only for an existing service. [`change`] adds them.
fn create(spec: &ServiceSpec, access: u32) -> io::Result<Handle> {
    let (name, command) = (wide(&spec.name)?, wide(&spec.command)?);
    let dependencies = wide_list(&spec.dependencies)?;
    let manager = manager(win::SC_MANAGER_CONNECT | win::SC_MANAGER_CREATE_SERVICE).map_err(io::Error::other)?;
    // SAFETY: the handle is open and all texts are terminated. Null stands for: no group, no tag, LocalSystem.
    Handle::new(unsafe {
        win::CreateServiceW(
            manager.0,
            name.as_ptr(),
            name.as_ptr(),
            access,
            win::SERVICE_WIN32_OWN_PROCESS,
            start_raw(spec.start),
            win::SERVICE_ERROR_NORMAL,
            command.as_ptr(),
            null(),
            null_mut(),
            dependencies.as_ptr(),
            null(),
            null(),
        )
    })
}

fn change(service: &Handle, spec: &ServiceSpec) -> io::Result<bool> {
    let now = config(service)?;
    let mut changed = false;
    if now.command != spec.command || now.dependencies != spec.dependencies || now.start != spec.start {
        let command = wide(&spec.command)?;
        let dependencies = wide_list(&spec.dependencies)?;
        // SAFETY: the handle is open and all texts are terminated. Null stands for: leave as it is.
        check(unsafe {
            win::ChangeServiceConfigW(
                service.0,
                win::SERVICE_NO_CHANGE,
                start_raw(spec.start),
                win::SERVICE_NO_CHANGE,
                command.as_ptr(),
                null(),
                null_mut(),
                dependencies.as_ptr(),
                null(),
                null(),
                null(),
            )
        })?;
        changed = true;
    }
    // The variables are set before the description and the recovery settings, because a service without them would start without the cluster's
    // proxy.
    if super::registry::service_environment(&spec.name) != spec.environment {
        super::registry::set_service_environment(&spec.name, &spec.environment)?;
        changed = true;
    }
    if description(service)? != spec.description {
        set_description(service, &spec.description)?;
        changed = true;
    }
    let (delays, reset) = recovery_raw(&spec.recovery);
    // Settings that cannot be read are written.
    if recovery(service).ok() != Some((delays.clone(), reset, true)) {
        set_recovery(service, &delays, reset)?;
        changed = true;
    }
    Ok(changed)
}

/// Starts a service, without waiting until it runs.
pub(super) fn start_service(name: &str) -> Result<(), HostError> {
    let failed = || HostError::system("start service", name);
    let service = existing(name, win::SERVICE_START).map_err(failed())?;
    // SAFETY: the handle is open; no arguments are passed.
    match check(unsafe { win::StartServiceW(service.0, 0, null()) }) {
        Err(e) if !is(&e, ERROR_SERVICE_ALREADY_RUNNING) => Err(failed()(e)),
        _ => Ok(()),
    }
}

fn existing(name: &str, access: u32) -> io::Result<Handle> {
    match open(name, access) {
        Ok(Some(service)) => Ok(service),
        Ok(None) => Err(super::wide::error(ERROR_SERVICE_DOES_NOT_EXIST)),
        Err(HostError::System { source, .. }) => Err(source),
        Err(e) => Err(io::Error::other(e)),
    }
}

/// Stops one service, whose dependents are stopped already, and waits until its process has ended, unless other services share the process.
pub(super) fn stop_service(name: &str) -> Result<(), HostError> {
    let access = win::SERVICE_STOP | win::SERVICE_QUERY_STATUS | win::SERVICE_QUERY_CONFIG;
    let Some(service) = open(name, access)? else {
        return Ok(());
    };
    let failed = || HostError::system("stop service", name);
    let begin = Instant::now();
    let mut process = None;
    let mut asked = false;
    loop {
        let status = status(&service).map_err(failed())?;
        if process.is_none() && status.dwProcessId != 0 {
            process = Process::open(status.dwProcessId).ok();
        }
        if status.dwCurrentState == win::SERVICE_STOPPED {
            break;
        }
        if begin.elapsed() > STOP_LIMIT {
            // A shared process may have other services.
            if config(&service).map_err(failed())?.own_process
                && let Some(process) = &process
            {
                process.end_with_descendants().map_err(failed())?;
            }
            break;
        }
        if !asked {
            let mut ignored = win::SERVICE_STATUS::default();
            // SAFETY: the handle is open and the struct is ours.
            match check(unsafe { win::ControlService(service.0, win::SERVICE_CONTROL_STOP, &raw mut ignored) }) {
                Ok(()) => asked = true,
                // The service is starting or stopping: retry, or find it stopped.
                Err(e) if is(&e, ERROR_SERVICE_CANNOT_ACCEPT_CTRL) => {}
                Err(e) if is(&e, ERROR_SERVICE_NOT_ACTIVE) => {}
                // The service does not answer: it may still stop, and is terminated otherwise.
                Err(e) if is(&e, ERROR_SERVICE_REQUEST_TIMEOUT) => asked = true,
                Err(e) => return Err(failed()(e)),
            }
        }
        std::thread::sleep(POLL);
    }
    // A service may report that it has stopped while its process still runs: wait for the process, so that its files can be replaced.
    if let Some(process) = &process
        && config(&service).map_err(failed())?.own_process
        && !process.wait(STOP_LIMIT.saturating_sub(begin.elapsed()).max(POLL)).map_err(failed())?
    {
        process.end_with_descendants().map_err(failed())?;
    }
    let settled = Instant::now() + SETTLE_LIMIT;
    while status(&service).map_err(failed())?.dwCurrentState != win::SERVICE_STOPPED {
        if Instant::now() > settled {
            let seconds = begin.elapsed().as_secs();
            return Err(HostError::Timeout {
                what: format!("service {name} to stop; if that repeats, restart the host"),
                seconds,
            });
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Deletes a stopped service and waits until the service manager no longer lists it.
pub(super) fn delete_service(name: &str) -> Result<(), HostError> {
    /// Right to delete, which is the same for all kinds of objects.
    const DELETE: u32 = 0x0001_0000;
    let Some(service) = open(name, DELETE)? else {
        return Ok(());
    };
    // SAFETY: the handle is open.
    match check(unsafe { win::DeleteService(service.0) }) {
        Err(e) if !is(&e, ERROR_SERVICE_MARKED_FOR_DELETE) => {
            return Err(HostError::system("delete service", name)(e));
        }
        _ => drop(service),
    }
    let end = Instant::now() + SETTLE_LIMIT;
    while open(name, win::SERVICE_QUERY_STATUS)?.is_some() {
        if Instant::now() > end {
            return Err(HostError::Timeout {
                what: format!(
                    "service {name} to be deleted; a program, for example services.msc, still has it open: close that program"
                ),
                seconds: SETTLE_LIMIT.as_secs(),
            });
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

fn status(service: &Handle) -> io::Result<win::SERVICE_STATUS_PROCESS> {
    let mut status = win::SERVICE_STATUS_PROCESS::default();
    let size = u32::try_from(size_of_val(&status)).unwrap_or(0);
    let mut needed = 0;
    // SAFETY: the handle is open and the struct has the passed size.
    check(unsafe {
        win::QueryServiceStatusEx(
            service.0,
            win::SC_STATUS_PROCESS_INFO,
            (&raw mut status).cast(),
            size,
            &raw mut needed,
        )
    })?;
    Ok(status)
}

fn state(raw: u32) -> ServiceState {
    match raw {
        win::SERVICE_STOPPED => ServiceState::Stopped,
        win::SERVICE_RUNNING | win::SERVICE_PAUSED => ServiceState::Running,
        _ => ServiceState::Pending,
    }
}

fn byte_length(buffer: &[u64]) -> u32 {
    u32::try_from(size_of_val(buffer)).unwrap_or(u32::MAX)
}
