//! Cluster, payload and host for tests.

use api::payload::{File, Manifest};

use super::{Cluster, HostParams, program};

/// Destinations of the payload files that tests use, without [`CREDENTIAL_PROVIDERS`].
pub const PROGRAMS: [&str; 13] = [
    program::KUBELET,
    program::KUBE_PROXY,
    program::LOG_RUNNER,
    program::CONTAINERD,
    program::CONTAINERD_CONFIG,
    program::WINDOWS_EXPORTER,
    program::WINDOWS_EXPORTER_CONFIG,
    program::CSI_PROXY,
    program::HYBRID_OVERLAY,
    program::WIN_OVERLAY,
    program::HOST_LOCAL,
    program::AZURE_NODE_MANAGER,
    program::ECR_CREDENTIAL_PROVIDER,
];
/// Credential providers and their files, which a payload has only if a user adds them.
pub const CREDENTIAL_PROVIDERS: [&str; 3] =
    [program::ACR_CREDENTIAL_PROVIDER, program::ACR_CREDENTIAL_PROVIDER_CONFIG, program::GCR_CREDENTIAL_PROVIDER];

/// Returns a payload with files at these destinations.
pub fn payload(destinations: &[&str]) -> Manifest {
    let file = |destination: &&str| File {
        path: destination.rsplit('\\').next().unwrap_or_default().into(),
        destination: (*destination).into(),
        sha256: "a".repeat(64),
        platforms: match *destination {
            program::AZURE_NODE_MANAGER
            | program::ACR_CREDENTIAL_PROVIDER
            | program::ACR_CREDENTIAL_PROVIDER_CONFIG => ["azure".to_owned()].into(),
            program::ECR_CREDENTIAL_PROVIDER => ["aws".to_owned()].into(),
            program::GCR_CREDENTIAL_PROVIDER => ["gcp".to_owned()].into(),
            _ => [].into(),
        },
        ..File::default()
    };
    Manifest { schema: 1, files: destinations.iter().map(file).collect() }
}

/// Returns a cluster with the facts that every cluster has.
pub fn cluster() -> Cluster {
    let ca = |name: &str| format!("-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n");
    Cluster {
        api_server: "https://api-int.example.com:6443".into(),
        api_ca: ca("api"),
        kubelet_client_ca: ca("kubelet"),
        service_cidr: "172.30.0.0/16".into(),
        cluster_dns: vec!["172.30.0.10".into()],
        cluster_domain: "cluster.local".into(),
        ..Cluster::default()
    }
}

/// Returns the parameters of a host.
pub fn host() -> HostParams {
    HostParams { node_name: "win-1".into(), node_ip: "10.0.0.7".into(), taints: vec![api::names::default_taint()] }
}
