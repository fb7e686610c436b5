//! Paths of programs and their files on a host. `cargo xtask payload` writes the paths of the payload's files into the manifest, and a service is
//! rendered only if the payload has its program. [`CONTAINERD_DROP_IN`] and [`CONTAINERD_NETWORK`] are not in the payload: the operator renders them.

/// Path of kubelet.
pub const KUBELET: &str = r"C:\k\kubelet.exe";
/// Path of kube-proxy.
pub const KUBE_PROXY: &str = r"C:\k\kube-proxy.exe";
/// Path of the log runner, which runs another program and writes its output to a rotated log file.
pub const LOG_RUNNER: &str = r"C:\k\kube-log-runner.exe";
/// Path of containerd.
pub const CONTAINERD: &str = r"C:\k\containerd\containerd.exe";
/// Path of containerd's shim for Windows containers, which containerd finds in its own directory.
pub const SHIM: &str = r"C:\k\containerd\containerd-shim-runhcs-v1.exe";
/// Path of containerd's configuration.
pub const CONTAINERD_CONFIG: &str = r"C:\k\containerd\containerd_conf.toml";
/// Path of the containerd settings of a pool. containerd's configuration imports the whole directory.
pub const CONTAINERD_DROP_IN: &str = r"C:\k\containerd\conf.d\pool.toml";
/// Path of the containerd settings with the cluster's CNI directories.
pub const CONTAINERD_NETWORK: &str = r"C:\k\containerd\conf.d\network.toml";
/// Path of the CNI plugin that assigns addresses to Pods.
pub const HOST_LOCAL: &str = r"C:\k\cni\host-local.exe";
/// Path of the CNI plugin for overlay networks.
pub const WIN_OVERLAY: &str = r"C:\k\cni\win-overlay.exe";
/// Path of windows_exporter, which serves metrics of the host.
pub const WINDOWS_EXPORTER: &str = r"C:\k\windows_exporter.exe";
/// Path of windows_exporter's configuration, which names the certificate that it serves with.
pub const WINDOWS_EXPORTER_CONFIG: &str = r"C:\k\tls\windows-exporter-webconfig.yaml";
/// Path of CSI proxy, which runs host operations for CSI drivers.
pub const CSI_PROXY: &str = r"C:\k\csi-proxy.exe";
/// Path of OVN-Kubernetes' hybrid overlay.
pub const HYBRID_OVERLAY: &str = r"C:\k\hybrid-overlay-node.exe";
/// Path of Azure's cloud node manager.
pub const AZURE_NODE_MANAGER: &str = r"C:\k\azure-cloud-node-manager.exe";
/// Path of the credential provider that gives kubelet passwords for Amazon's registry.
pub const ECR_CREDENTIAL_PROVIDER: &str = r"C:\k\ecr-credential-provider.exe";
/// Path of the credential provider that gives kubelet passwords for Azure's registry.
pub const ACR_CREDENTIAL_PROVIDER: &str = r"C:\k\acr-credential-provider.exe";
/// Path of the configuration of Azure's credential provider. It names a managed identity, and holds no secret.
pub const ACR_CREDENTIAL_PROVIDER_CONFIG: &str = r"C:\k\acr-credential-provider.json";
/// Path of the credential provider that gives kubelet passwords for Google's registry.
pub const GCR_CREDENTIAL_PROVIDER: &str = r"C:\k\gcr-credential-provider.exe";
