//! Windows service `windows-instance-config-daemon`: keeps the host in the desired state that its Node's annotation
//! names.
//!
//! * [`reconciler`]: brings services, variables and certificates to the last good copy of the desired state.
//! * [`drift`]: distinguishes changes on the host from changes of the desired state.
//! * [`file_integrity`]: checks payload files, and restores or reports those that have changed on the host.
//! * [`metadata_route`]: route to the cloud's metadata service.
//! * [`logs`]: rotates the logs of services that do not do so themselves.
//! * [`follow`]: gets the desired state from the API server, and reports the state of the host there.
//! * [`rotation`]: renews wicd's own certificate.
//! * [`service_token`]: renews the token of a service that has an identity of its own.

pub mod backoff;
pub mod cluster;
pub mod drift;
pub mod environment;
#[cfg(test)]
pub(crate) mod fake_cluster;
pub mod file_integrity;
pub mod follow;
pub mod log;
pub mod logs;
pub mod metadata_route;
pub mod order;
pub mod plan;
pub mod reconciler;
pub mod rotation;
pub mod service_token;
pub mod variables;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use crate::host::chain;

use crate::host::Host;
use cluster::Connect;
use reconciler::{Reconciler, Report};

/// Interval between checks of the services while no change is in progress.
const QUIET: Duration = Duration::from_secs(5);
/// Interval between checks while a change is in progress.
const BUSY: Duration = Duration::from_millis(500);
/// Number of passes without a change after which all services are checked, not only those of the operator. A round over the payload files starts at
/// least this number of passes after the previous one.
const THOROUGH: u32 = 24;

/// Runs wicd until `stop` is cancelled. The services continue to run then: wicd can be replaced without disrupting
/// the node.
pub async fn run(host: Arc<dyn Host>, connect: Arc<dyn Connect>, stop: CancellationToken) {
    let (node, node_seen) = watch::channel(None);
    let (report, reported) = watch::channel(Report::default());
    let (certificate, certificate_changed) = watch::channel(0);
    tokio::select! {
        () = stop.cancelled() => {}
        () = keep(host.clone(), node_seen.clone(), report) => {}
        () = logs::keep(host.clone()) => {}
        () = follow::follow(host.clone(), connect.clone(), node, reported, certificate_changed) => {}
        () = service_token::keep(host.clone(), connect.clone(), node_seen.clone()) => {}
        () = rotation::rotate(host, connect, certificate) => {}
    }
}

/// Runs passes of the [`Reconciler`] forever. Returns only if a pass panics.
async fn keep(host: Arc<dyn Host>, mut node: watch::Receiver<Option<Value>>, report: watch::Sender<Report>) {
    let begin = Instant::now();
    let mut reconciler = Reconciler::new(host);
    loop {
        let seen = node.borrow_and_update().clone();
        let pass = tokio::task::spawn_blocking(move || {
            let report = reconciler.reconcile_once(seen.as_ref(), begin.elapsed());
            (reconciler, report)
        });
        let Ok((back, now)) = pass.await else { return };
        reconciler = back;
        let wait = if reconciler.is_moving() { BUSY } else { QUIET };
        report.send_if_modified(|last| std::mem::replace(last, now.clone()) != now);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            Ok(()) = node.changed() => {}
        }
    }
}
