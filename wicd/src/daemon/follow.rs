//! Follows the API server: gets the desired state that the Node's annotation names, and reports the state of the host
//! on the Node.
//!
//! While the API server is unavailable, the reconciler keeps the host in the state of the last good copy.

use std::sync::Arc;
use std::time::Duration;

use api::host::{Desired, Marker, REPORT_INTERVAL, path};
use api::names::{SERVICES_CONFIG_MAP_PREFIX, key};
use api::services::{ServicesConfig, ServicesError};
use api::services_version::{self, UnverifiedError};
use api::{Reason, Time};
use futures::StreamExt;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch;
use tracing::{info, warn};

use super::chain;
use super::cluster::{Annotations, Cluster, ClusterError, Connect, annotation, is_ready};
use super::drift;
use super::reconciler::Report;
use crate::files::{self, Access};
use crate::host::{Host, HostError};
use crate::lock;
use crate::operation::marker;

/// Delay before a retry: the base, which doubles with each consecutive failure, and the maximum.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// Maximum wait for an operation of the operator that holds the lock.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);

/// Failure to follow the API server.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The desired version of the Node cannot be part of an object's name.
    #[error(
        "the annotation {annotation} of the Node has the value {0:?}, which is not a version; the services keep their last desired state, and the operator \
         corrects the annotation. If this happens again, find the client that writes it",
        annotation = key::DESIRED_VERSION
    )]
    Version(String),
    /// The services ConfigMap of the desired version does not exist.
    #[error(
        "the ConfigMap {0:?} does not exist; the services keep their last desired state until the operator creates it"
    )]
    NoConfigMap(String),
    /// The content of the services ConfigMap does not match its name.
    #[error("the ConfigMap {name:?} is not used: {problem}; the operator stores it again")]
    Unverified {
        /// Name of the ConfigMap.
        name: String,
        /// Problem with the ConfigMap.
        problem: UnverifiedError,
    },
    /// The desired version of the Node is one of another operator, without a digest.
    #[error(
        "the annotation {annotation} of the Node names the ConfigMap {0:?} of another operator, which wicd does not use; the operator of the \
         host's pool corrects the annotation",
        annotation = key::DESIRED_VERSION
    )]
    Foreign(String),
    /// The services ConfigMap is not usable.
    #[error(transparent)]
    Services(#[from] ServicesError),
    /// An operation, or another task of wicd, holds the lock of the host.
    #[error("an operation of the operator or a check of the services is in progress on this host; wicd retries")]
    Busy,
    /// The API server cannot be used.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// An operation on the host failed.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl FollowError {
    /// Reason for logs.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Version(_) | Self::NoConfigMap(_) | Self::Unverified { .. } | Self::Foreign(_) => {
                Reason::VersionUnreadable
            }
            Self::Services(e) => e.reason(),
            Self::Busy => Reason::HostBusy,
            Self::Cluster(e) => e.reason(),
            Self::Host(e) => e.reason(),
        }
    }
}

/// Follows the API server forever: passes the Node on to `node`, writes `report` to the Node's annotations, and connects again after a change of
/// `certificate`.
pub async fn follow(
    host: Arc<dyn Host>,
    connect: Arc<dyn Connect>,
    node: watch::Sender<Option<Value>>,
    mut report: watch::Receiver<Report>,
    mut certificate: watch::Receiver<u64>,
) {
    let mut wait = AGAIN.0;
    let mut last = String::new();
    loop {
        let mut session = Session { host: &host, node: &node, connected: false };
        let ended = session.run(&*connect, &mut report, &mut certificate).await;
        if session.connected {
            wait = AGAIN.0;
            last.clear();
        }
        if let Err(e) = ended {
            let text = chain(&e);
            if text != last {
                warn!(
                    reason = e.reason().as_str(),
                    "cannot follow the Node in the API server; the services keep their last desired state, and wicd tries again: {text}"
                );
                last = text;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => wait = (wait * 2).min(AGAIN.1),
            Ok(()) = certificate.changed() => {}
        }
    }
}

struct Session<'a> {
    host: &'a Arc<dyn Host>,
    node: &'a watch::Sender<Option<Value>>,
    connected: bool,
}

impl Session<'_> {
    /// Follows the Node until the connection breaks or the certificate has changed. Returns at once if the host has no desired state.
    async fn run(
        &mut self,
        connect: &dyn Connect,
        report: &mut watch::Receiver<Report>,
        certificate: &mut watch::Receiver<u64>,
    ) -> Result<(), FollowError> {
        let Some(desired) = files::read_json::<Desired>(&**self.host, path::DESIRED)? else {
            return Ok(());
        };
        certificate.borrow_and_update();
        let cluster = connect.connect().await?;
        let mut nodes = cluster.watch_node(&desired.node_name);
        let mut seen: Option<Value> = None;
        let mut wait = AGAIN.0;
        let mut again = false;
        let mut last = String::new();
        loop {
            tokio::select! {
                event = nodes.next() => match event {
                    Some(event) => {
                        seen = event?;
                        if !self.connected {
                            info!(node = desired.node_name, exists = seen.is_some(), "connected to the API server");
                            self.connected = true;
                        }
                        self.node.send_if_modified(|n| std::mem::replace(n, seen.clone()) != seen);
                    }
                    None => return Ok(()),
                },
                Ok(()) = report.changed() => {}
                Ok(()) = certificate.changed() => return Ok(()),
                () = tokio::time::sleep(wait), if again => {}
            }
            // A missing Node is normal: kubelet registers it.
            let Some(node) = &seen else { continue };
            let now = report.borrow_and_update().clone();
            match sync(self.host, &*cluster, &desired, node, &now).await {
                Ok(written) => {
                    if let Some(node) = &mut seen {
                        annotate(node, &written);
                    }
                    (again, wait) = (false, AGAIN.0);
                    last.clear();
                }
                Err(e) => {
                    (again, wait) = (true, (wait * 2).min(AGAIN.1));
                    let text = chain(&e);
                    if text != last {
                        warn!(reason = e.reason().as_str(), "{text}");
                        last = text;
                    }
                }
            }
        }
    }
}

/// Gets the desired state that `node` names if the host follows another one, and annotates the Node. Returns the
/// annotations that were written. A refused ConfigMap is an error, after the Node was annotated.
async fn sync(
    host: &Arc<dyn Host>,
    cluster: &dyn Cluster,
    identity: &Desired,
    node: &Value,
    report: &Report,
) -> Result<Annotations, FollowError> {
    let mut report = report.clone();
    let refused = match obtain(host, cluster, identity, node, &report).await {
        Ok(()) => None,
        Err(FollowError::Unverified { name, problem }) => {
            // The last good copy stays in use, and the drift annotation informs the operator of the refusal.
            report.drift.push(format!("ConfigMap {name} (refused)"));
            Some(FollowError::Unverified { name, problem })
        }
        Err(error) => return Err(error),
    };
    let mut annotations = annotations(node, &report);
    let now = Timestamp::now();
    // The first report is written with the first version, not before.
    let is_stamped = annotations.contains_key(key::VERSION) || annotation(node, key::VERSION).is_some();
    if is_stamped && is_ready(node) && is_report_due(annotation(node, key::WICD_REPORTED), now) {
        annotations.insert(key::WICD_REPORTED, Some(Time::from(now).to_string()));
    }
    if !annotations.is_empty() {
        info!(?annotations, "annotating the Node");
        cluster.annotate(&identity.node_name, annotations.clone()).await?;
    }
    refused.map_or(Ok(annotations), Err)
}

/// Gets the desired state that `node` names, if the host follows another one. A ConfigMap that does not match the digest in its name is not used.
async fn obtain(
    host: &Arc<dyn Host>,
    cluster: &dyn Cluster,
    identity: &Desired,
    node: &Value,
    report: &Report,
) -> Result<(), FollowError> {
    let wanted = annotation(node, key::DESIRED_VERSION);
    let Some(version) = wanted.filter(|wanted| report.version.as_deref().is_some_and(|v| v != *wanted)) else {
        return Ok(());
    };
    let name = config_map_name(version).ok_or_else(|| FollowError::Version(version.to_owned()))?;
    let unverified = |problem| FollowError::Unverified { name: name.clone(), problem };
    if services_version::carried(version).is_none() {
        return Err(FollowError::Foreign(name));
    }
    let found = cluster.config_map(&identity.namespace, &name).await?;
    let found = found.ok_or_else(|| FollowError::NoConfigMap(name.clone()))?;
    services_version::verify(version, &found.data, found.rendered.as_deref()).map_err(unverified)?;
    let services = ServicesConfig::from_data(&found.data)?;
    services.validate_for_host()?;
    let (host, version) = (host.clone(), version.to_owned());
    let written = tokio::task::spawn_blocking(move || remember(&*host, &version, services)).await;
    written.unwrap_or(Err(FollowError::Busy))
}

/// Applies the written annotations to the local copy of the Node, so that they are not written again before the watch delivers them.
fn annotate(node: &mut Value, written: &Annotations) {
    let Some(metadata) = node.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let annotations = metadata.entry("annotations").or_insert(Value::Null);
    if annotations.is_null() {
        *annotations = Value::Object(serde_json::Map::new());
    }
    let Some(annotations) = annotations.as_object_mut() else { return };
    for (key, value) in written {
        match value {
            Some(value) => drop(annotations.insert((*key).to_owned(), value.clone().into())),
            None => drop(annotations.remove(*key)),
        }
    }
}

/// Writes the new last good copy of the desired state, and its version into the marker that the operator reads. The reconciler sees the copy in its
/// next pass.
fn remember(host: &dyn Host, version: &str, services: ServicesConfig) -> Result<(), FollowError> {
    let _lock = lock::take(host, LOCK_PATIENCE)?.ok_or(FollowError::Busy)?;
    let Some(before) = files::read_json::<Desired>(host, path::DESIRED)? else { return Ok(()) };
    let desired = Desired { version: version.to_owned(), services, ..before };
    // The marker is written first: after a crash in between, both are written again, which would not happen if the copy were new already.
    if let Some(before) = marker(host) {
        let marker = Marker { version: version.to_owned(), ..before };
        files::write_json(host, path::STATE, &marker, Access::Inherited)?;
    }
    if files::write_json(host, path::DESIRED, &desired, Access::Protected)? {
        info!(
            version,
            "the desired version in the annotation of the Node has changed; the services follow it from the next check"
        );
    }
    Ok(())
}

/// Returns the name of a version's services ConfigMap, if the version may be part of a name.
fn config_map_name(version: &str) -> Option<String> {
    let name = format!("{SERVICES_CONFIG_MAP_PREFIX}{version}");
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = version.as_bytes();
    let good = name.len() <= 253
        && bytes.iter().all(|&b| allowed(b))
        && ends(bytes.first())
        && ends(bytes.last())
        && !version.contains("..");
    good.then_some(name)
}

/// Returns the changes to the Node's annotations.
///
/// The version is reported only when all services run, the Node is Ready, and no restart is pending, whether requested by wicd or by another client
/// through the annotation. The operator removes the restart annotation once it has observed the restart. Only wicd writes the drift annotation, and
/// not before the first pass over the host.
fn annotations(node: &Value, report: &Report) -> Annotations {
    let mut change = Annotations::new();
    let drift = drift::annotation(&report.drift);
    if report.version.is_some() && drift.as_deref() != annotation(node, key::DRIFT) {
        change.insert(key::DRIFT, drift);
    }
    let awaited = node.pointer("/metadata/annotations").and_then(|a| a.get(key::REBOOT_REQUIRED)).is_some();
    if report.reboot.is_some() {
        if !awaited {
            change.insert(key::REBOOT_REQUIRED, Some(String::new()));
        }
        return change;
    }
    let Some(version) = annotation(node, key::DESIRED_VERSION) else { return change };
    let done = report.settled && report.version.as_deref() == Some(version);
    if done && !awaited && is_ready(node) && annotation(node, key::VERSION) != Some(version) {
        change.insert(key::VERSION, Some(version.to_owned()));
    }
    change
}

/// Reports whether the time in the annotation `wicd-reported` must be renewed: after half of [`REPORT_INTERVAL`], because the times of passes are not
/// exact to the second. A time in the future must be renewed as well, because the clock was corrected.
pub fn is_report_due(reported: Option<&str>, now: Timestamp) -> bool {
    let age = reported.and_then(|text| text.parse::<Timestamp>().ok()).map(|at| now.duration_since(at));
    age.and_then(|age| Duration::try_from(age).ok()).is_none_or(|age| age >= REPORT_INTERVAL / 2)
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
