//! wicd as a Windows service.

use std::ffi::OsString;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::host::WICD_SERVICE;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};
use tracing_subscriber::util::SubscriberInitExt as _;
use windows_service::service::{
    ServiceControl, ServiceControlAccept, ServiceExitCode, ServiceState, ServiceStatus, ServiceType,
};
use windows_service::service_control_handler::{self, ServiceControlHandlerResult, ServiceStatusHandle};
use windows_service::{define_windows_service, service_dispatcher};

use super::WindowsHost;
use crate::daemon::{self, cluster::Kube, log};
use crate::files;

/// Time for which a pass over the services may continue after the service received a stop. The next start of wicd completes
/// unfinished work.
const LAST_PASS: Duration = Duration::from_secs(5);
/// Exit code when the service could not start its runtime. The service manager restarts it.
const CANNOT_BEGIN: u32 = 1;

define_windows_service!(entry, service_main);

/// Runs the process as a service; returns when the service has stopped.
///
/// # Errors
/// Fails when the process was not started by the service manager.
pub fn run() -> windows_service::Result<()> {
    service_dispatcher::start(WICD_SERVICE, entry)
}

/// Runs the service's tasks in the foreground, with the log on standard error, until Ctrl-C.
///
/// # Errors
/// Fails when the asynchronous runtime cannot start.
pub fn run_in_foreground() -> std::io::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let stop = CancellationToken::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let on_signal = stop.clone();
    runtime.spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            on_signal.cancel();
        }
    });
    runtime.block_on(keep_host(stop));
    runtime.shutdown_timeout(LAST_PASS);
    Ok(())
}

async fn keep_host(stop: CancellationToken) {
    let host = Arc::new(WindowsHost);
    daemon::run(host.clone(), Arc::new(Kube::new(host)), stop).await;
}

fn service_main(_arguments: Vec<OsString>) {
    start_log();
    let stop = CancellationToken::new();
    let on_control = stop.clone();
    // wicd stops before a shutdown of the host, so that it does not restart services that the shutdown ends.
    let registered = service_control_handler::register(WICD_SERVICE, move |control| match control {
        ServiceControl::Stop | ServiceControl::Preshutdown | ServiceControl::Shutdown => {
            on_control.cancel();
            ServiceControlHandlerResult::NoError
        }
        ServiceControl::Interrogate => ServiceControlHandlerResult::NoError,
        _ => ServiceControlHandlerResult::NotImplemented,
    });
    let service = match registered {
        Ok(handle) => Status(handle),
        Err(e) => return error!("cannot register with the service manager: {}", daemon::chain(&e)),
    };
    service.set(ServiceState::StartPending, 1, 0);
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            error!("cannot start the asynchronous runtime of wicd: {e}; the service manager restarts the service");
            return service.set(ServiceState::Stopped, 0, CANNOT_BEGIN);
        }
    };
    // The state is reported before the first pass, because an operation that holds the lock may wait for the state.
    service.set(ServiceState::Running, 0, 0);
    info!(version = env!("CARGO_PKG_VERSION"), "wicd has started");
    runtime.block_on(keep_host(stop));
    info!("wicd is stopping; the services that it manages continue to run");
    stop_runtime(runtime, service);
    info!("wicd has stopped");
    service.set(ServiceState::Stopped, 0, 0);
}

/// Stops the runtime, and reports progress to the service manager meanwhile.
fn stop_runtime(runtime: tokio::runtime::Runtime, service: Status) {
    let done = Arc::new((Mutex::new(false), std::sync::Condvar::new()));
    let theirs = done.clone();
    let ticker = std::thread::spawn(move || {
        let (flag, condition) = &*theirs;
        for checkpoint in 1.. {
            service.set(ServiceState::StopPending, checkpoint, 0);
            let Ok(flag) = flag.lock() else { return };
            let waited = condition.wait_timeout_while(flag, Duration::from_secs(1), |done| !*done);
            if waited.is_ok_and(|(done, _)| *done) {
                return;
            }
        }
    });
    runtime.shutdown_timeout(LAST_PASS);
    if let Ok(mut flag) = done.0.lock() {
        *flag = true;
    }
    done.1.notify_all();
    // No progress may be reported after the state Stopped.
    let _ = ticker.join();
}

#[derive(Clone, Copy)]
struct Status(ServiceStatusHandle);

impl Status {
    fn set(self, state: ServiceState, checkpoint: u32, exit: u32) {
        let accepted = match state {
            ServiceState::Running => ServiceControlAccept::STOP | ServiceControlAccept::PRESHUTDOWN,
            _ => ServiceControlAccept::empty(),
        };
        let wait_hint = if checkpoint == 0 { Duration::ZERO } else { LAST_PASS * 2 };
        let status = ServiceStatus {
            service_type: ServiceType::OWN_PROCESS,
            current_state: state,
            controls_accepted: accepted,
            exit_code: ServiceExitCode::Win32(exit),
            checkpoint,
            wait_hint,
            process_id: None,
        };
        if let Err(e) = self.0.set_service_status(status) {
            error!("cannot report the state of wicd to the service manager: {}", daemon::chain(&e));
        }
    }
}

/// Starts the log to a file. If that fails, the service runs without a log.
fn start_log() {
    // `apply` creates and protects the directory; a link in its place would lead to files of others.
    if files::parents(&WindowsHost, log::FILE).is_ok()
        && let Ok(subscriber) = log::subscriber(log::FILE.as_ref())
        && subscriber.try_init().is_ok()
    {
        std::panic::set_hook(Box::new(|panic| error!("{panic}")));
    }
}
