//! Paths of the payload's programs and static files on a host. `cargo xtask payload` writes these destinations into the manifest, and a service is
//! rendered only if its program is there. All but [`SHIM`] and the CNI plugins are named in command lines or configuration files.

/// kubelet.
pub const KUBELET: &str = r"C:\k\kubelet.exe";
/// kube-proxy.
pub const KUBE_PROXY: &str = r"C:\k\kube-proxy.exe";
/// Log runner, which runs another program and writes what it prints to a log file that it rotates.
pub const LOG_RUNNER: &str = r"C:\k\kube-log-runner.exe";
/// containerd.
pub const CONTAINERD: &str = r"C:\k\containerd\containerd.exe";
/// containerd's shim for Windows containers. containerd finds it beside itself.
pub const SHIM: &str = r"C:\k\containerd\containerd-shim-runhcs-v1.exe";
/// containerd's configuration.
pub const CONTAINERD_CONFIG: &str = r"C:\k\containerd\containerd_conf.toml";
/// Settings of a pool for containerd. containerd's configuration imports the whole directory.
pub const CONTAINERD_DROP_IN: &str = r"C:\k\containerd\conf.d\pool.toml";
/// Directories of the cluster's network, for containerd.
pub const CONTAINERD_NETWORK: &str = r"C:\k\containerd\conf.d\network.toml";
/// CNI plugin: addresses.
pub const HOST_LOCAL: &str = r"C:\k\cni\host-local.exe";
/// CNI plugin: overlay networks.
pub const WIN_OVERLAY: &str = r"C:\k\cni\win-overlay.exe";
/// windows_exporter, for metrics of the host.
pub const WINDOWS_EXPORTER: &str = r"C:\k\windows_exporter.exe";
/// windows_exporter's configuration, which names the certificate that it serves with.
pub const WINDOWS_EXPORTER_CONFIG: &str = r"C:\k\tls\windows-exporter-webconfig.yaml";
/// CSI proxy, which does for CSI drivers what only the host can.
pub const CSI_PROXY: &str = r"C:\k\csi-proxy.exe";
/// OVN-Kubernetes' hybrid overlay.
pub const HYBRID_OVERLAY: &str = r"C:\k\hybrid-overlay-node.exe";
/// Azure's cloud node manager.
pub const AZURE_NODE_MANAGER: &str = r"C:\k\azure-cloud-node-manager.exe";
/// Credential provider, which gives kubelet passwords for Amazon's registry.
pub const ECR_CREDENTIAL_PROVIDER: &str = r"C:\k\ecr-credential-provider.exe";
/// Credential provider, which gives kubelet passwords for Azure's registry.
pub const ACR_CREDENTIAL_PROVIDER: &str = r"C:\k\acr-credential-provider.exe";
/// Login of Azure's credential provider: a cloud configuration that names a managed identity, and holds no secret.
pub const ACR_CREDENTIAL_PROVIDER_CONFIG: &str = r"C:\k\acr-credential-provider.json";
/// Credential provider, which gives kubelet passwords for Google's registry.
pub const GCR_CREDENTIAL_PROVIDER: &str = r"C:\k\gcr-credential-provider.exe";
