//! What is rendered from.

use std::fmt;

use api::Taint;

use super::LogSettings;

/// Facts about the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// URL of the API server as hosts reach it: `https://host:port`.
    pub api_server: String,
    /// PEM certificates that the API server's certificate is checked with.
    pub api_ca: String,
    /// PEM certificates that kubelet checks its clients with.
    pub kubelet_client_ca: String,
    /// Service network, as `172.30.0.0/16`.
    pub service_cidr: String,
    /// Addresses of the cluster's DNS.
    pub cluster_dns: Vec<String>,
    /// Domain of the cluster, as `cluster.local`.
    pub cluster_domain: String,
    /// Minor version of the API server, as 36 of `1.36`, if it reports one.
    pub kubernetes_minor: Option<u32>,
    /// Where the cluster runs.
    pub platform: Platform,
    /// Whether a cloud controller manager initialises nodes. kubelet then registers them as uninitialised, and they stay so
    /// until it has been there: say it only where there is one.
    pub external_cloud_provider: bool,
    /// Provider of the pod network.
    pub network: Network,
    /// The cluster's proxy.
    pub proxy: Proxy,
    /// What windows_exporter serves with. Without it, it serves plain HTTP.
    pub exporter_tls: Option<TlsPair>,
    /// PEM certificates that hosts must trust machine-wide.
    pub trusted_ca: Option<String>,
}

/// Where a cluster runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Platform {
    /// On no platform that makes a difference here.
    #[default]
    None,
    /// Amazon.
    Aws,
    /// Microsoft.
    Azure,
    /// Google.
    Gcp,
    /// VMware.
    Vsphere,
    /// Nutanix.
    Nutanix,
}

impl Platform {
    /// As in the payload manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Aws => "aws",
            Self::Azure => "azure",
            Self::Gcp => "gcp",
            Self::Vsphere => "vsphere",
            Self::Nutanix => "nutanix",
        }
    }

    /// From OpenShift's `Infrastructure` (`status.platformStatus.type`, as `AWS`) or our own spelling. What is not known
    /// makes no difference here, and so is [`Platform::None`].
    pub fn from_name(name: &str) -> Self {
        let all = [Self::Aws, Self::Azure, Self::Gcp, Self::Vsphere, Self::Nutanix];
        all.into_iter().find(|p| p.as_str().eq_ignore_ascii_case(name)).unwrap_or_default()
    }
}

/// Provider of the pod network on hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Another component, for example Calico or Flannel in its own pods, which also provides kube-proxy.
    #[default]
    External,
    /// OVN-Kubernetes with a hybrid overlay.
    OvnHybrid {
        /// VXLAN port, if not the usual one.
        vxlan_port: Option<u16>,
    },
}

/// Proxy variables; they go to hosts as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxy {
    /// `HTTP_PROXY`
    pub http: Option<String>,
    /// `HTTPS_PROXY`
    pub https: Option<String>,
    /// `NO_PROXY`
    pub no: Option<String>,
}

/// A certificate and its key.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsPair {
    /// PEM chain.
    pub certificate: String,
    /// PEM key.
    pub key: String,
}

impl fmt::Debug for TlsPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsPair").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// One host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostParams {
    /// Name of its Node.
    pub node_name: String,
    /// Address of its Node.
    pub node_ip: String,
    /// Taints that the Node has from its first moment on.
    pub taints: Vec<Taint>,
}

/// The operator's settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Whether services log more.
    pub debug: bool,
    /// Rotation of logs.
    pub logs: LogSettings,
    /// JSON merge patch (RFC 7386) over kubelet's configuration.
    pub kubelet_extra: serde_json::Map<String, serde_json::Value>,
}
