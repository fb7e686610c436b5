//! Facts and settings from which the services and files of hosts are rendered.

use std::{fmt, net::Ipv4Addr};

use api::Taint;

use super::{LogSettings, MirrorRule, PullSecret, TlsProfile, mirrors};

/// Facts about the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// URL of the API server as hosts reach it: `https://host:port`.
    pub api_server: String,
    /// Names and addresses in the API server's certificate, and the cluster's ingress as `*.domain`. No host may use them.
    pub own_names: Vec<String>,
    /// PEM certificates that verify the API server.
    pub api_ca: String,
    /// PEM certificates with which kubelet verifies its clients.
    pub kubelet_client_ca: String,
    /// Service network, for example `172.30.0.0/16`; both networks of a dual-stack cluster, separated by a comma.
    pub service_cidr: String,
    /// Addresses of the cluster's DNS servers.
    pub cluster_dns: Vec<String>,
    /// Domain of the cluster, for example `cluster.local`.
    pub cluster_domain: String,
    /// Minor version of Kubernetes for nodes, for example 36 for `1.36`, if it is known: that of the oldest API server or, during an upgrade, that
    /// from before the upgrade.
    pub kubernetes_minor: Option<u32>,
    /// True if the control plane is being upgraded.
    pub is_upgrading: bool,
    /// Minor version that all API servers that answer already have, while nodes still follow the one from before the upgrade.
    pub next_minor: Option<u32>,
    /// Addresses of API servers that do not answer, while nodes wait for their version.
    pub silent_api_servers: Vec<String>,
    /// Platform of the cluster.
    pub platform: Platform,
    /// True if a cloud controller manager initialises nodes. kubelet then registers them with the taint for uninitialised nodes, and they keep it
    /// until that controller has run. Must not be true if the cluster has none.
    pub external_cloud_provider: bool,
    /// Provider of the pod network.
    pub network: Network,
    /// Directory in which containerd finds the CNI plugins, if it is not the payload's.
    pub cni_bin_dir: Option<String>,
    /// Directory in which containerd finds the CNI configuration, if it is not the hybrid overlay's.
    pub cni_conf_dir: Option<String>,
    /// Proxy of the cluster.
    pub proxy: Proxy,
    /// Certificate with which windows_exporter serves. Without one, it serves plain HTTP.
    pub exporter_tls: Option<TlsPair>,
    /// PEM certificates that hosts must trust machine-wide.
    pub trusted_ca: Option<String>,
    /// Mirrors of image registries, in order of preference.
    pub mirrors: Vec<MirrorRule>,
    /// Logins of image registries.
    pub pull_secret: PullSecret,
    /// TLS profile of kubelet's server. Without one, kubelet's own defaults apply.
    pub tls_profile: Option<TlsProfile>,
    /// True if the ServiceAccount of cloud-node-managers is missing, so that hosts would wait for its tokens.
    pub lacks_node_manager: bool,
    /// Unusable parts of facts whose other parts are in force. Contains no secrets.
    pub unusable: Vec<String>,
    /// Facts that are unusable as a whole, and the values that are in force instead. Contains no secrets.
    pub held: Vec<String>,
}

impl Cluster {
    /// Lists the facts that do not reach hosts, or reach them in another form, with the cause.
    pub fn problems(&self) -> Vec<String> {
        self.unusable.iter().cloned().chain(mirrors::problems(&self.mirrors, &self.pull_secret)).collect()
    }

    /// Returns the first IPv4 service network or, without one, the first service network.
    pub fn service_network(&self) -> &str {
        let is_ipv4 = |network: &&str| !network.contains(':');
        let mut networks = self.service_cidr.split(',').map(str::trim);
        networks.clone().find(is_ipv4).or_else(|| networks.next()).unwrap_or_default()
    }

    /// Returns the CNI directories that the cluster sets, for hosts to protect.
    pub fn cni_directories(&self) -> Vec<String> {
        [&self.cni_bin_dir, &self.cni_conf_dir].into_iter().flatten().cloned().collect()
    }

    /// Returns the names of the facts that differ, for users. Values are left out: some are secret.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        // A new fact must be added here, too.
        let Self {
            api_server,
            own_names,
            api_ca,
            kubelet_client_ca,
            service_cidr,
            cluster_dns,
            cluster_domain,
            kubernetes_minor,
            is_upgrading,
            next_minor,
            silent_api_servers,
            platform,
            external_cloud_provider,
            network,
            cni_bin_dir,
            cni_conf_dir,
            proxy,
            exporter_tls,
            trusted_ca,
            mirrors,
            pull_secret,
            tls_profile,
            lacks_node_manager,
            unusable,
            held,
        } = self;
        let facts = [
            ("address of the API server", *api_server != other.api_server),
            ("names of the API server", *own_names != other.own_names),
            ("CA of the API server", *api_ca != other.api_ca),
            ("CA of kubelet's clients", *kubelet_client_ca != other.kubelet_client_ca),
            ("service network", *service_cidr != other.service_cidr),
            ("addresses of DNS", *cluster_dns != other.cluster_dns),
            ("domain", *cluster_domain != other.cluster_domain),
            ("version of the API server", *kubernetes_minor != other.kubernetes_minor),
            ("upgrade of the control plane", *is_upgrading != other.is_upgrading),
            ("next version of the API server", *next_minor != other.next_minor),
            ("API servers that do not answer", *silent_api_servers != other.silent_api_servers),
            ("platform", *platform != other.platform),
            ("cloud provider", *external_cloud_provider != other.external_cloud_provider),
            ("pod network", *network != other.network),
            ("directories of CNI", (cni_bin_dir, cni_conf_dir) != (&other.cni_bin_dir, &other.cni_conf_dir)),
            ("proxy", *proxy != other.proxy),
            ("certificate of windows_exporter", *exporter_tls != other.exporter_tls),
            ("certificates to trust", *trusted_ca != other.trusted_ca),
            ("mirrors of registries", *mirrors != other.mirrors),
            ("pull secret", *pull_secret != other.pull_secret),
            ("TLS profile", *tls_profile != other.tls_profile),
            ("ServiceAccount of cloud-node-managers", *lacks_node_manager != other.lacks_node_manager),
            ("what cannot be used", *unusable != other.unusable),
            ("what keeps its earlier value", *held != other.held),
        ];
        facts.into_iter().filter_map(|(name, differs)| differs.then_some(name)).collect()
    }
}

/// Address of the metadata service, from which a machine gets its name, zone and credentials. AWS, Azure and Google Cloud use the same address.
pub(super) const METADATA_ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

/// Platform of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Platform {
    /// No platform, or a platform that makes no difference here.
    #[default]
    None,
    /// Amazon Web Services.
    Aws,
    /// Microsoft Azure.
    Azure,
    /// Google Cloud.
    Gcp,
    /// VMware vSphere.
    Vsphere,
    /// Nutanix.
    Nutanix,
}

impl Platform {
    /// Returns the name of the platform in the payload manifest.
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

    /// Parses `status.platformStatus.type` of OpenShift's `Infrastructure`, for example `AWS`, or the operator's own spelling. An unknown platform
    /// makes no difference here, and is [`Platform::None`].
    pub fn from_name(name: &str) -> Self {
        let all = [Self::Aws, Self::Azure, Self::Gcp, Self::Vsphere, Self::Nutanix];
        all.into_iter().find(|p| p.as_str().eq_ignore_ascii_case(name)).unwrap_or_default()
    }
}

/// Provider of the pod network on hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Another component, for example Calico or Flannel, which runs in pods and also provides kube-proxy.
    #[default]
    External,
    /// OVN-Kubernetes with a hybrid overlay.
    OvnHybrid {
        /// VXLAN port, if it is not the default.
        vxlan_port: Option<u16>,
    },
}

impl Network {
    /// Returns the VXLAN port of the hybrid overlay. `None` if it is the default, or there is no overlay.
    pub fn vxlan_port(self) -> Option<u16> {
        match self {
            Self::OvnHybrid { vxlan_port } => vxlan_port,
            Self::External => None,
        }
    }
}

/// Proxy variables. Hosts get further exceptions in `NO_PROXY`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxy {
    /// Value of `HTTP_PROXY`.
    pub http: Option<String>,
    /// Value of `HTTPS_PROXY`.
    pub https: Option<String>,
    /// Given entries of `NO_PROXY`.
    pub no: Option<String>,
}

/// Certificate and its private key.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsPair {
    /// Certificate chain in PEM.
    pub certificate: String,
    /// Private key in PEM.
    pub key: String,
}

impl fmt::Debug for TlsPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsPair").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// Parameters of one host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostParams {
    /// Name of the host's Node.
    pub node_name: String,
    /// Address of the host's Node.
    pub node_ip: String,
    /// Taints with which the Node registers.
    pub taints: Vec<Taint>,
}

/// Operator settings that determine the services and files of hosts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Level and rotation of logs.
    pub logs: LogSettings,
    /// JSON merge patch (RFC 7386) for kubelet's configuration.
    pub kubelet_extra: serde_json::Map<String, serde_json::Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fact_that_differs_is_named() {
        type Change = fn(&mut Cluster);
        let changes: [(&str, Change); 24] = [
            ("address of the API server", |c| c.api_server = "https://other:6443".into()),
            ("names of the API server", |c| c.own_names.push("other".into())),
            ("CA of the API server", |c| c.api_ca = "other".into()),
            ("CA of kubelet's clients", |c| c.kubelet_client_ca = "other".into()),
            ("service network", |c| c.service_cidr = "10.0.0.0/16".into()),
            ("addresses of DNS", |c| c.cluster_dns.push("10.0.0.10".into())),
            ("domain", |c| c.cluster_domain = "other".into()),
            ("version of the API server", |c| c.kubernetes_minor = Some(36)),
            ("upgrade of the control plane", |c| c.is_upgrading = true),
            ("next version of the API server", |c| c.next_minor = Some(37)),
            ("API servers that do not answer", |c| c.silent_api_servers.push("10.0.0.1:6443".into())),
            ("platform", |c| c.platform = Platform::Aws),
            ("cloud provider", |c| c.external_cloud_provider = true),
            ("pod network", |c| c.network = Network::OvnHybrid { vxlan_port: None }),
            ("directories of CNI", |c| c.cni_conf_dir = Some("other".into())),
            ("proxy", |c| c.proxy.https = Some("http://hunter2".into())),
            ("certificate of windows_exporter", |c| {
                c.exporter_tls = Some(TlsPair { certificate: String::new(), key: "hunter2".into() });
            }),
            ("certificates to trust", |c| c.trusted_ca = Some("other".into())),
            ("mirrors of registries", |c| c.mirrors.push(MirrorRule::default())),
            ("pull secret", |c| {
                c.pull_secret = PullSecret::parse(br#"{"auths": {"quay.io": {"auth": "YTpi"}}}"#, "1").unwrap().0;
            }),
            ("TLS profile", |c| c.tls_profile = Some(TlsProfile::default())),
            ("ServiceAccount of cloud-node-managers", |c| c.lacks_node_manager = true),
            ("what cannot be used", |c| c.unusable.push("other".into())),
            ("what keeps its earlier value", |c| c.held.push("other".into())),
        ];
        let mut all = Cluster::default();
        for (name, change) in changes {
            let mut one = Cluster::default();
            change(&mut one);
            change(&mut all);
            assert_eq!(Cluster::default().differences(&one), [name]);
        }
        assert_eq!(Cluster::default().differences(&all), changes.map(|(name, _)| name));
        assert!(all.differences(&all).is_empty());
    }
}
