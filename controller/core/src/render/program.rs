//! Where the programs and static files of the payload go on a host. `cargo xtask payload` writes these destinations into
//! the manifest, and a service is rendered only if its program is there. All but [`SHIM`] and the CNI plugins are named in
//! command lines or configuration files.

/// kubelet.
pub const KUBELET: &str = r"C:\k\kubelet.exe";
/// kube-proxy.
pub const KUBE_PROXY: &str = r"C:\k\kube-proxy.exe";
/// Runs another program and writes what it prints to a log file that it rotates.
pub const LOG_RUNNER: &str = r"C:\k\kube-log-runner.exe";
/// containerd.
pub const CONTAINERD: &str = r"C:\k\containerd\containerd.exe";
/// containerd's shim for Windows containers. containerd finds it beside itself.
pub const SHIM: &str = r"C:\k\containerd\containerd-shim-runhcs-v1.exe";
/// containerd's configuration.
pub const CONTAINERD_CONFIG: &str = r"C:\k\containerd\containerd_conf.toml";
/// What a pool sets in it. The configuration imports the whole directory.
pub const CONTAINERD_DROP_IN: &str = r"C:\k\containerd\conf.d\pool.toml";
/// Where the cluster's network has put its parts, for containerd.
pub const CONTAINERD_NETWORK: &str = r"C:\k\containerd\conf.d\network.toml";
/// CNI plugin: addresses.
pub const HOST_LOCAL: &str = r"C:\k\cni\host-local.exe";
/// CNI plugin: bridge networks.
pub const WIN_BRIDGE: &str = r"C:\k\cni\win-bridge.exe";
/// CNI plugin: overlay networks.
pub const WIN_OVERLAY: &str = r"C:\k\cni\win-overlay.exe";
/// Metrics of the host.
pub const WINDOWS_EXPORTER: &str = r"C:\k\windows_exporter.exe";
/// Which certificate it serves with.
pub const WINDOWS_EXPORTER_CONFIG: &str = r"C:\k\tls\windows-exporter-webconfig.yaml";
/// Does for CSI drivers what only the host can.
pub const CSI_PROXY: &str = r"C:\k\csi-proxy.exe";
/// OVN-Kubernetes' hybrid overlay.
pub const HYBRID_OVERLAY: &str = r"C:\k\hybrid-overlay-node.exe";
/// Azure's cloud node manager.
pub const AZURE_NODE_MANAGER: &str = r"C:\k\azure-cloud-node-manager.exe";
/// Gives kubelet passwords for Amazon's registry.
pub const ECR_CREDENTIAL_PROVIDER: &str = r"C:\k\ecr-credential-provider.exe";
/// The same for Azure's.
pub const ACR_CREDENTIAL_PROVIDER: &str = r"C:\k\acr-credential-provider.exe";
/// How it logs in to Azure: a cloud configuration that names a managed identity, and holds no secret.
pub const ACR_CREDENTIAL_PROVIDER_CONFIG: &str = r"C:\k\acr-credential-provider.json";
/// The same for Google's.
pub const GCR_CREDENTIAL_PROVIDER: &str = r"C:\k\gcr-credential-provider.exe";
