//! What hosts get from this operator: the payload, wicd, and what the services are rendered from.

use api::{TemplateSpec, payload::File};

use crate::{args::Run, cluster::ClusterError};
use remote::payload::{Payload, PayloadError, Wicd};
use wnp_core::render::{self, Cluster, LogSettings, LogSettingsError, RenderError, Rendered, Settings};

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

    /// What the hosts of a pool get.
    pub(crate) fn render(&self, template: &TemplateSpec) -> Result<Rendered, RenderError> {
        render::render(&self.cluster, self.payload.manifest(), &self.settings, template)
    }

    /// Whether hosts that have nothing can be sent these files.
    pub(crate) fn has(&self, files: &[File]) -> bool {
        let mine = &self.payload.manifest().files;
        files.iter().all(|f| mine.iter().any(|m| m.sha256 == f.sha256))
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
    Ok(Settings { debug: false, logs, kubelet_extra })
}
