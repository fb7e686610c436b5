//! What hosts get from this operator: the payload, wicd, and what the services are rendered from.

use std::{path::PathBuf, sync::Arc};

use api::{
    TemplateSpec,
    payload::{File, Manifest},
};
use parking_lot::RwLock;

use crate::{args::Run, cluster::ClusterError};
use remote::payload::{Payload, PayloadError, Wicd};
use wnp_core::{
    render::{self, Cluster, LogSettings, LogSettingsError, RenderError, Rendered, Settings},
    rollout::release_file::ReleaseFile,
};

/// The operator has nothing to give to hosts.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReleaseError {
    /// The payload is wrong.
    #[error("{0}")]
    Payload(#[from] PayloadError),
    /// The services of hosts cannot be rendered.
    #[error("{0}")]
    Render(#[from] RenderError),
    /// The settings of logs are wrong.
    #[error("{0}")]
    Logs(#[from] LogSettingsError),
    /// The cluster cannot be made out.
    #[error("{0}")]
    Cluster(#[from] ClusterError),
    /// A file named on the command line cannot be used.
    #[error("{path} cannot be used as a patch of kubelet's configuration: {problem}")]
    KubeletPatch {
        /// The file.
        path: String,
        /// What is wrong.
        problem: String,
    },
}

impl ReleaseError {
    /// Reason for conditions and events.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Payload(_) => "PayloadInvalid",
            Self::Render(e) => e.reason(),
            Self::Logs(e) => e.reason(),
            Self::Cluster(e) => e.reason(),
            Self::KubeletPatch { .. } => "SettingsInvalid",
        }
    }
}

/// What hosts get from this operator. The settings of pools come on top, see [`Release::render`].
pub(crate) struct Release {
    /// Facts of the cluster.
    pub cluster: Cluster,
    /// The payload.
    pub payload: Payload,
    /// The program that is sent first.
    pub wicd: Wicd,
    settings: Settings,
}

impl Release {
    /// Opens the payload, and sees whether it can be rendered.
    pub(crate) fn load(cluster: Cluster, args: &Run) -> Result<Self, ReleaseError> {
        let settings = settings(args)?;
        let payload = Payload::open(&args.payload)?;
        let wicd = Wicd::open(&args.wicd)?;
        let release = Self { cluster, payload, wicd, settings };
        release.render(&TemplateSpec::default())?;
        Ok(release)
    }

    /// What hosts get from another release, of which only the manifests are here.
    ///
    /// # Errors
    /// When the services of hosts cannot be rendered with them.
    pub(crate) fn announced(cluster: Cluster, args: &Run, file: &ReleaseFile) -> Result<Self, ReleaseError> {
        let wicd = Wicd { path: PathBuf::new(), sha256: file.wicd.clone(), size: 0 };
        let release = Self { cluster, payload: Payload::announced(file.payloads()), wicd, settings: settings(args)? };
        release.render(&TemplateSpec::default())?;
        Ok(release)
    }

    /// The same in a cluster whose facts have changed, if it can be rendered.
    fn with(&self, cluster: Cluster) -> Result<Self, RenderError> {
        let Self { cluster: _, payload, wicd, settings } = self;
        let release = Self { cluster, payload: payload.clone(), wicd: wicd.clone(), settings: settings.clone() };
        release.render(&TemplateSpec::default())?;
        Ok(release)
    }

    /// What the hosts of a pool get.
    pub(crate) fn render(&self, template: &TemplateSpec) -> Result<Rendered, RenderError> {
        render::render(&self.cluster, self.manifest(), &self.settings, template)
    }

    /// What hosts get of the payload: what fits the API server.
    pub(crate) fn manifest(&self) -> &Manifest {
        static NOTHING: Manifest = Manifest { schema: 1, files: Vec::new() };
        self.payload.manifest(self.cluster.kubernetes_minor).unwrap_or(&NOTHING)
    }

    /// Whether hosts that have nothing can be sent these files.
    pub(crate) fn has(&self, files: &[File]) -> bool {
        files.iter().all(|f| self.payload.has(&f.sha256))
    }
}

/// A message of a condition is read in a terminal.
const SHOWN_PROBLEMS: usize = 5;

/// Reason and message of what every pool reports.
pub(crate) type Warning = (&'static str, String);

/// The release as the facts of the cluster have it now.
pub(crate) struct CurrentRelease {
    release: RwLock<Arc<Release>>,
    fault: RwLock<Option<Warning>>,
}

impl CurrentRelease {
    /// Begins with this one.
    pub(crate) fn new(release: Release) -> Self {
        log_problems(&release.cluster);
        Self { release: RwLock::new(Arc::new(release)), fault: RwLock::default() }
    }

    /// The release in force. An operation that spans a change may see both.
    pub(crate) fn get(&self) -> Arc<Release> {
        self.release.read().clone()
    }

    /// Why the facts that were read last are not in force.
    pub(crate) fn fault(&self) -> Option<Warning> {
        self.fault.read().clone()
    }

    /// Why nodes do not follow the version of the API servers yet.
    pub(crate) fn waits(&self) -> Option<Warning> {
        let cluster = &self.get().cluster;
        let (now, next) = cluster.kubernetes_minor.zip(cluster.next_minor)?;
        let message = format!(
            "the API servers have version 1.{next}, and nodes stay with 1.{now} until the upgrade of the control plane is done \
             (ClusterVersion version is no longer Progressing)"
        );
        Some(("ControlPlaneUpgrading", message))
    }

    /// What of the facts in force does not reach hosts as it is meant.
    pub(crate) fn problems(&self) -> Option<Warning> {
        let problems = self.get().cluster.problems();
        let shown = problems.iter().take(SHOWN_PROBLEMS).cloned().collect::<Vec<_>>().join("; ");
        let more = problems.len().saturating_sub(SHOWN_PROBLEMS);
        let more = if more > 0 { format!("; and {more} more, which the operator's log has") } else { String::new() };
        (!problems.is_empty()).then(|| ("ClusterFactsPartlyUsed", format!("{shown}{more}")))
    }

    /// Takes over facts that were read again. Those that cannot be used leave the earlier ones in force, so that nodes keep what they
    /// have. Returns whether pools must be reconciled.
    pub(crate) fn follow(&self, found: Result<Cluster, ClusterError>) -> bool {
        let before = self.get();
        let next = found.map_err(ReleaseError::from).and_then(|cluster| {
            let cluster = settled(&before.cluster, cluster);
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
                    "the facts of the cluster as they are now cannot be used, and those before stay in force: {error}"
                );
                (false, Some((error.reason(), message)))
            }
        };
        let mut shown = self.fault.write();
        if *shown == fault {
            return changed;
        }
        if let Some((reason, message)) = &fault {
            tracing::warn!(reason, "{message}");
        }
        *shown = fault;
        true
    }
}

/// The cluster without the part of an upgrade that is not done: nodes follow a new version of Kubernetes when the control plane has it
/// altogether, and not while it may still go back.
fn settled(before: &Cluster, found: Cluster) -> Cluster {
    let kubernetes_minor =
        if found.is_upgrading { before.kubernetes_minor.or(found.kubernetes_minor) } else { found.kubernetes_minor };
    let next_minor = found.kubernetes_minor.filter(|next| Some(*next) != kubernetes_minor);
    Cluster { kubernetes_minor, next_minor, ..found }
}

fn log_problems(cluster: &Cluster) {
    for problem in cluster.problems() {
        tracing::warn!(reason = "ClusterFactsPartlyUsed", "{problem}");
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
            serde_json::from_slice(&text).map_err(|e| refuse(e.to_string()))?
        }
    };
    Ok(Settings { logs, kubelet_extra })
}

#[cfg(test)]
mod tests {
    use testbed::payload::{Entry, LEVEL_FAST, write};
    use wnp_core::render::fixtures;

    use super::*;
    use crate::instance::test_bed::Bed;

    fn proxy(url: &str) -> Cluster {
        let mut cluster = fixtures::cluster();
        cluster.proxy.https = Some(url.to_owned());
        cluster
    }

    /// A payload for two minor versions, of which each has a kubelet of its own.
    #[tokio::test]
    async fn nodes_follow_the_control_plane_when_its_upgrade_is_done() {
        let dir = tempfile::tempdir().unwrap();
        for (minor, kubelet) in [("1.34", "1.34.9"), ("1.36", "1.36.3")] {
            let entries = [Entry::new(r"C:\k\kubelet.exe", kubelet).version(Some(kubelet))];
            write(&dir.path().join(minor), &entries, LEVEL_FAST).unwrap();
        }
        let bed = Bed::new().await;
        let cluster = |minor: u32, is_upgrading: bool| Cluster {
            kubernetes_minor: Some(minor),
            is_upgrading,
            ..fixtures::cluster()
        };
        let first = bed.cx.hosts.release.get();
        let release = Release {
            cluster: cluster(34, false),
            payload: Payload::open(dir.path()).unwrap(),
            wicd: first.wicd.clone(),
            settings: first.settings.clone(),
        };
        let current = CurrentRelease::new(release);
        let kubelet = || current.get().manifest().files[0].version.clone().unwrap();
        let rendered = || current.get().render(&TemplateSpec::default()).unwrap();
        let (old, mut last) = (rendered(), rendered().hash());
        for (about, found, expected, changes) in [
            ("the upgrade begins", cluster(34, true), "1.34.9", false),
            ("all API servers are new", cluster(36, true), "1.34.9", false),
            ("it is done", cluster(36, false), "1.36.3", true),
            ("the next one, which no payload is for", cluster(37, false), "1.36.3", false),
            ("a cluster that is taken back", cluster(35, false), "1.34.9", true),
        ] {
            current.follow(Ok(found));
            assert_eq!((kubelet().as_str(), rendered().hash() != last), (expected, changes), "{about}");
            assert_eq!(current.fault(), None, "{about}");
            let waits = current.waits().map(|(_, message)| message).unwrap_or_default();
            let is_said =
                waits.contains("1.36") && waits.contains("stay with 1.34") && waits.contains("ClusterVersion");
            assert_eq!(is_said, about == "all API servers are new", "{about}: {waits}");
            last = rendered().hash();
        }
        assert!(current.get().has(old.files()), "a node can go back");
        current.follow(Ok(cluster(33, false)));
        assert_eq!(current.fault().map(|(reason, _)| reason), Some("KubeletVersionSkew"));
    }

    #[tokio::test]
    async fn facts_that_cannot_be_used_leave_the_earlier_ones_in_force() {
        let bed = Bed::new().await;
        let release = &bed.cx.hosts.release;
        let unreadable = || ClusterError::Invalid { what: "the proxy", value: String::new(), problem: "it is empty" };
        let (good, other) = (|| proxy("http://proxy:3128"), || proxy("http://other:3128"));
        let fault = || release.fault().map(|(reason, _)| reason);
        let hidden = || proxy("http://user:hunter2@proxy:3128");
        // What is read, whether pools are reconciled, the proxy in force, and the fault that is reported.
        for (about, found, changed, in_force, reported) in [
            ("the same", Ok(fixtures::cluster()), false, None, None),
            ("a change", Ok(good()), true, Some("http://proxy:3128"), None),
            ("no change", Ok(good()), false, Some("http://proxy:3128"), None),
            ("a password", Ok(hidden()), true, Some("http://proxy:3128"), Some("ClusterFactsInvalid")),
            ("still", Ok(hidden()), false, Some("http://proxy:3128"), Some("ClusterFactsInvalid")),
            ("another fault", Err(unreadable()), true, Some("http://proxy:3128"), Some("ClusterUnknown")),
            ("as before", Ok(good()), true, Some("http://proxy:3128"), None),
            ("a fault again", Err(unreadable()), true, Some("http://proxy:3128"), Some("ClusterUnknown")),
            ("another proxy", Ok(other()), true, Some("http://other:3128"), None),
        ] {
            assert_eq!(release.follow(found), changed, "{about}");
            assert_eq!(release.get().cluster.proxy.https.as_deref(), in_force, "{about}");
            assert_eq!(fault(), reported, "{about}");
            let message = release.fault().map(|(_, message)| message).unwrap_or_default();
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}
