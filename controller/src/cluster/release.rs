//! Release for the hosts of this operator: the payload, wicd, and the data from which their configuration is rendered.

use std::{path::PathBuf, sync::Arc};

use api::{
    Reason, TemplateSpec,
    payload::{File, Manifest},
};
use parking_lot::RwLock;

use crate::{args::Run, cluster::ClusterError};
use remote::payload::{Payload, PayloadError, Wicd};
use wnp_core::{
    render::{self, Cluster, Found, Kept, LogSettings, LogSettingsError, RenderError, Rendered, Settings, settled},
    rollout::release_file::ReleaseFile,
};

/// Error of an operator without a usable release for hosts.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReleaseError {
    /// The payload is not valid.
    #[error("{0}")]
    Payload(#[from] PayloadError),
    /// The services of hosts cannot be rendered.
    #[error("{0}")]
    Render(#[from] RenderError),
    /// The log settings are not valid.
    #[error("{0}")]
    Logs(#[from] LogSettingsError),
    /// The facts of the cluster cannot be detected.
    #[error("{0}")]
    Cluster(#[from] ClusterError),
    /// The file with the patch of kubelet's configuration cannot be used.
    #[error(
        "the file {path} of --kubelet-config-patch cannot be used as a patch of kubelet's configuration: {problem}; correct the file"
    )]
    KubeletPatch {
        /// Path of the file.
        path: String,
        /// Fault of the file.
        problem: String,
    },
}

impl ReleaseError {
    /// Returns the reason for conditions and events.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Payload(_) => Reason::PayloadInvalid,
            Self::Render(e) => e.reason(),
            Self::Logs(e) => e.reason(),
            Self::Cluster(e) => e.reason(),
            Self::KubeletPatch { .. } => Reason::SettingsInvalid,
        }
    }
}

/// Release for the hosts of this operator. [`Release::render`] adds the settings of a pool.
pub(crate) struct Release {
    /// Facts of the cluster.
    pub cluster: Cluster,
    /// Files for hosts, with their manifests.
    pub payload: Payload,
    /// `wicd.exe`, which is sent first.
    pub wicd: Wicd,
    settings: Settings,
}

impl Release {
    /// Returns the release for the detected facts. `kept` are the facts that were last in force.
    ///
    /// # Errors
    /// Fails when [`Self::load`] fails. If only the payload's version does not fit and all API servers have the next version, that one is tried, too.
    pub(crate) fn begin(kept: Option<&Kept>, found: Found, args: &Run) -> Result<Self, ReleaseError> {
        let cluster = settled(kept, found);
        match (Self::load(cluster.clone(), args), cluster.next_minor) {
            // This release has no payload for the version of the nodes, and all API servers have the next version.
            (Err(ReleaseError::Render(RenderError::Skew { .. })), Some(next))
                if cluster.silent_api_servers.is_empty() =>
            {
                Self::load(Cluster { kubernetes_minor: Some(next), next_minor: None, ..cluster }, args)
            }
            (loaded, _) => loaded,
        }
    }

    /// Returns the rotation and the level of the logs of services on hosts, which a pool can override.
    pub(crate) fn logs(&self) -> &LogSettings {
        &self.settings.logs
    }

    /// Opens the payload and wicd, and checks that the services can be rendered.
    pub(crate) fn load(cluster: Cluster, args: &Run) -> Result<Self, ReleaseError> {
        let settings = settings(args)?;
        let payload = Payload::open(&args.payload)?;
        let wicd = Wicd::open(&args.wicd)?;
        Ok(Self { cluster, payload, wicd, settings }.checked()?)
    }

    /// Returns this release if the services can be rendered with it.
    fn checked(self) -> Result<Self, RenderError> {
        self.render(&TemplateSpec::default())?;
        Ok(self)
    }

    /// Returns the release that a release file announces. It has manifests, but no files to send.
    ///
    /// # Errors
    /// Fails when the settings of the operator are not valid, or the services of hosts cannot be rendered with these manifests.
    pub(crate) fn announced(cluster: Cluster, args: &Run, file: &ReleaseFile) -> Result<Self, ReleaseError> {
        let wicd = Wicd { path: PathBuf::new(), sha256: file.wicd.clone(), size: 0 };
        let (payload, settings) = (Payload::announced(file.payloads()), settings(args)?);
        Ok(Self { cluster, payload, wicd, settings }.checked()?)
    }

    /// Returns this release with other facts of the cluster. Fails if the services cannot be rendered with them.
    fn with(&self, cluster: Cluster) -> Result<Self, RenderError> {
        let Self { cluster: _, payload, wicd, settings } = self;
        Self { cluster, payload: payload.clone(), wicd: wicd.clone(), settings: settings.clone() }.checked()
    }

    /// Renders the services for the hosts of a pool.
    pub(crate) fn render(&self, template: &TemplateSpec) -> Result<Rendered, RenderError> {
        render::render(&self.cluster, self.manifest(), &self.settings, template)
    }

    /// Returns the newest manifest of the payload that is not newer than the version of Kubernetes that nodes follow, otherwise the oldest manifest.
    /// The manifest is empty if the payload has none.
    pub(crate) fn manifest(&self) -> &Manifest {
        static NOTHING: Manifest = Manifest { schema: 1, files: Vec::new() };
        self.payload.manifest(self.cluster.kubernetes_minor).unwrap_or(&NOTHING)
    }

    /// Reports whether the payload has all these files.
    pub(crate) fn has(&self, files: &[File]) -> bool {
        files.iter().all(|f| self.payload.has(&f.sha256))
    }
}

/// Maximum number of problems in a condition's message, which is read in a terminal.
const SHOWN_PROBLEMS: usize = 5;

/// Reason and message that every pool reports.
pub(crate) type Warning = (Reason, String);

/// Release with the current facts of the cluster.
pub(crate) struct CurrentRelease {
    release: RwLock<Arc<Release>>,
    fault: RwLock<Option<Warning>>,
}

impl CurrentRelease {
    /// Creates the current release, and logs the problems of its facts.
    pub(crate) fn new(release: Release) -> Self {
        log_problems(&release.cluster);
        Self { release: RwLock::new(Arc::new(release)), fault: RwLock::default() }
    }

    /// Returns the release in force.
    pub(crate) fn get(&self) -> Arc<Release> {
        self.release.read().clone()
    }

    /// Returns the reason why some or all of the facts that were read last are not in force.
    pub(crate) fn fault(&self) -> Option<Warning> {
        let of_all = self.fault.read().clone();
        of_all.or_else(|| warning(Reason::ClusterFactsInvalid, &self.get().cluster.held))
    }

    /// Returns the reason why nodes do not follow the version of the API servers yet.
    pub(crate) fn waits(&self) -> Option<Warning> {
        let cluster = &self.get().cluster;
        let (now, next) = cluster.kubernetes_minor.zip(cluster.next_minor)?;
        let stay = format!("have version 1.{next}, and nodes stay with 1.{now} until");
        if cluster.is_upgrading {
            let message = format!(
                "the API servers {stay} the upgrade of the control plane is done (ClusterVersion version is no longer Progressing)"
            );
            return Some((Reason::ControlPlaneUpgrading, message));
        }
        let silent = cluster.silent_api_servers.join(", ");
        let message = format!(
            "the API servers that answer {stay} those at {silent} answer, too: they may be older. If they run, let the operator's pod \
             reach these addresses, which the EndpointSlice default/kubernetes lists"
        );
        Some((Reason::ApiServerSilent, message))
    }

    /// Returns a warning about settings of the cluster that hosts do not get as they are configured.
    pub(crate) fn problems(&self) -> Option<Warning> {
        warning(Reason::ClusterFactsInvalid, &self.get().cluster.problems())
    }

    /// Puts facts in force that were read again. Unusable facts leave the earlier ones in force, so that nodes keep what they have. Reports whether
    /// pools must be reconciled.
    pub(crate) fn follow(&self, found: Result<Found, ClusterError>) -> bool {
        let before = self.get();
        let next = found.map_err(ReleaseError::from).and_then(|found| {
            let cluster = settled(Some(&Kept::of(&before.cluster)), found);
            let differences = before.cluster.differences(&cluster);
            let release = if differences.is_empty() { None } else { Some(before.with(cluster)?) };
            Ok((release, differences))
        });
        let (changed, fault) = match next {
            Ok((None, _)) => (false, None),
            Ok((Some(release), differences)) => {
                tracing::info!(changed = differences.join(", "), "facts of the cluster have changed");
                log_problems(&release.cluster);
                *self.release.write() = Arc::new(release);
                (true, None)
            }
            Err(error) => {
                let message = format!(
                    "the current settings of the cluster (such as its network, proxy, CA or registries) cannot be read or used, so hosts keep the earlier ones, and \
                     the operator retries: {error}"
                );
                (false, Some((error.reason(), message)))
            }
        };
        let mut shown = self.fault.write();
        if *shown == fault {
            return changed;
        }
        if let Some((reason, message)) = &fault {
            tracing::warn!(reason = reason.as_str(), "{message}");
        }
        *shown = fault;
        true
    }
}

/// Returns the warning for every pool, if there is a problem.
fn warning(reason: Reason, problems: &[String]) -> Option<Warning> {
    let shown = problems.iter().take(SHOWN_PROBLEMS).cloned().collect::<Vec<_>>().join("; ");
    let more = problems.len().saturating_sub(SHOWN_PROBLEMS);
    let more = if more > 0 { format!("; the operator's log has {more} more") } else { String::new() };
    (!problems.is_empty()).then(|| (reason, format!("{shown}{more}")))
}

fn log_problems(cluster: &Cluster) {
    for problem in cluster.held.iter().chain(&cluster.problems()) {
        tracing::warn!(reason = Reason::ClusterFactsInvalid.as_str(), "{problem}");
    }
}

fn settings(args: &Run) -> Result<Settings, ReleaseError> {
    let logs = LogSettings::from_env(|name| match name {
        LogSettings::SIZE => args.services_log_file_size.clone(),
        LogSettings::AGE => args.services_log_file_age.clone(),
        LogSettings::FLUSH => args.services_log_flush_interval.clone(),
        _ => None,
    })?;
    let kubelet_extra = match &args.kubelet_config_patch {
        None => serde_json::Map::new(),
        Some(path) => {
            let refuse = |problem: String| ReleaseError::KubeletPatch { path: path.display().to_string(), problem };
            let text = std::fs::read(path).map_err(|e| refuse(e.to_string()))?;
            let text = api::text::decode(&text).map_err(|e| refuse(e.to_string()))?;
            serde_json::from_str(&text).map_err(|e| refuse(e.to_string()))?
        }
    };
    Ok(Settings { logs, kubelet_extra })
}

#[cfg(test)]
#[path = "release_tests.rs"]
mod tests;
