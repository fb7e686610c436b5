//! What hosts get from this operator: payload, services and configuration, and the version that stands for them.

use std::collections::{BTreeMap, BTreeSet};

use api::{Taint, host::ConfigFile, names::SERVICES_CONFIG_MAP_PREFIX, payload::File, services::ServicesConfig};
use k8s_openapi::api::{core::v1::ConfigMap, rbac::v1::Role};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};

use crate::{
    args::{self, Run},
    cluster::ClusterError,
    payload::{Payload, PayloadError, Wicd},
    render::{self, Cluster, HostParams, LogSettings, LogSettingsError, RenderError, Settings},
    wicd_rbac,
};

/// The operator has nothing to give to hosts.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// The payload is wrong.
    #[error("{0}")]
    Payload(#[from] PayloadError),
    /// What shall run on hosts cannot be rendered.
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
    /// The services ConfigMap could not be stored.
    #[error("the API server did not store {what}: {}", crate::errors::said(.source))]
    Api {
        /// What.
        what: &'static str,
        /// Why not.
        #[source]
        source: Box<kube::Error>,
    },
}

impl ReleaseError {
    /// Reason for conditions and events.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Payload(_) => "PayloadInvalid",
            Self::Render(e) => e.reason(),
            Self::Logs(e) => e.reason(),
            Self::Cluster(e) => e.reason(),
            Self::KubeletPatch { .. } => "SettingsInvalid",
            Self::Api { .. } => "ApiError",
        }
    }
}

/// What hosts get.
pub struct Release {
    /// Facts of the cluster.
    pub cluster: Cluster,
    /// The payload.
    pub payload: Payload,
    /// Its files that hosts of this cluster need.
    pub files: Vec<File>,
    /// Digest of those.
    pub payload_digest: String,
    /// The program that is sent first.
    pub wicd: Wicd,
    /// The services.
    pub services: ServicesConfig,
    /// The version that stands for services and payload.
    pub version: String,
    settings: Settings,
}

impl Release {
    /// Opens the payload and renders the services.
    pub fn load(cluster: Cluster, args: &Run) -> Result<Self, ReleaseError> {
        let settings = settings(args)?;
        let payload = Payload::open(&args.payload)?;
        let wicd = Wicd::open(&args.wicd)?;
        let platform = cluster.platform.as_str();
        let (files, payload_digest) = (payload.files(platform), payload.digest(platform));
        let services = render::services(&cluster, payload.manifest(), &settings)?;
        let version = render::services_version(args::version(), &services, &payload_digest);
        Ok(Self { cluster, payload, files, payload_digest, wicd, services, version, settings })
    }

    /// The configuration files of one host.
    pub fn configs(&self, node_name: &str, node_ip: &str, taints: Vec<Taint>) -> Result<Vec<ConfigFile>, RenderError> {
        let host = HostParams { node_name: node_name.into(), node_ip: node_ip.into(), taints };
        render::configs(&self.cluster, self.payload.manifest(), &self.settings, &host)
    }

    /// Stores the services ConfigMap, and lets wicd read it and those that nodes still follow.
    pub async fn publish(&self, client: &Client, namespace: &str) -> Result<(), ReleaseError> {
        let failed = |what| move |source| ReleaseError::Api { what, source: Box::new(source) };
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let name = format!("{SERVICES_CONFIG_MAP_PREFIX}{}", self.version);
        let config_map = ConfigMap {
            metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
            immutable: Some(true),
            data: Some(self.services.to_data().into_iter().collect::<BTreeMap<_, _>>()),
            ..ConfigMap::default()
        };
        match api.create(&PostParams::default(), &config_map).await {
            Ok(_) => tracing::info!(name, "stored the services ConfigMap"),
            // The name has the hash of the content in it.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => return Err(failed("the services ConfigMap")(error)),
        }
        let all = api.list_metadata(&ListParams::default()).await.map_err(failed("the list of ConfigMaps"))?;
        let live: BTreeSet<String> =
            all.items.iter().map(ResourceExt::name_any).filter(|n| n.starts_with(SERVICES_CONFIG_MAP_PREFIX)).collect();
        let params = PatchParams::apply(api::names::MANAGER_POOL).force();
        let role = wicd_rbac::services_role(namespace, &live);
        let roles: Api<Role> = Api::namespaced(client.clone(), namespace);
        roles
            .patch(&role.name_any(), &params, &Patch::Apply(&role))
            .await
            .map_err(failed("the right of the hosts' daemons to read it"))?;
        Ok(())
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
