//! Objects of an OpenShift cluster that define its facts, and checks of their counterparts on hosts.

use std::fs;

use anyhow::{Context as _, Result};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Value, json};

use super::{World, cmd, on_drive};

/// Registry key under which Windows keeps the certificates that the machine trusts.
const TRUSTED: &str = r"HKLM\Software\Microsoft\SystemCertificates\Root\Certificates";
/// Image registry that has mirrors.
const REGISTRY: &str = "registry.example.com:5000";
pub(super) const MIRRORS: [&str; 2] = ["mirror-1.example.com:5000", "mirror-2.example.com:5000"];
pub(super) const PROXIES: [&str; 2] = ["http://proxy-1.example.com:3128", "http://proxy-2.example.com:3128"];
pub(super) const PASSWORDS: [&str; 2] = ["first-login", "second-login"];
pub(super) const VXLAN_PORTS: [u16; 2] = [4789, 9898];

fn config(kind: &str, name: &str, fields: &Value) -> Value {
    let mut object = json!({"apiVersion": "config.openshift.io/v1", "kind": kind, "metadata": {"name": name}});
    object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    object
}

/// Returns the Infrastructure object of a cluster on Azure, whose nodes a cloud controller manager initialises.
pub(super) fn infrastructure(api_server: &str) -> Value {
    let status = json!({"platformStatus": {"type": "Azure"}, "apiServerInternalURI": api_server});
    config("Infrastructure", "cluster", &json!({"status": status}))
}

/// Returns the Network object of a cluster with OVN-Kubernetes.
pub(super) fn network() -> Value {
    let spec = json!({"serviceNetwork": ["10.96.0.0/16"]});
    config("Network", "cluster", &json!({"spec": spec, "status": {"networkType": "OVNKubernetes"}}))
}

/// Returns the configuration of the cluster's hybrid overlay.
pub(super) fn overlay(port: u16) -> Value {
    let hybrid = json!({"hybridOverlayConfig": {"hybridOverlayVXLANPort": port}});
    json!({
        "apiVersion": "operator.openshift.io/v1", "kind": "Network", "metadata": {"name": "cluster"},
        "spec": {"defaultNetwork": {"type": "OVNKubernetes", "ovnKubernetesConfig": hybrid}},
    })
}

/// Returns the cluster's Proxy object, with a status as its network operator sets it.
pub(super) fn proxy(url: &str) -> Value {
    let status = json!({"httpProxy": url, "httpsProxy": url, "noProxy": ".cluster.local,.svc"});
    config("Proxy", "cluster", &json!({"status": status}))
}

/// Returns an ImageDigestMirrorSet with a mirror of the registry.
pub(super) fn mirrors(mirror: &str) -> Value {
    let rules = json!({"imageDigestMirrors": [{"source": REGISTRY, "mirrors": [mirror]}]});
    config("ImageDigestMirrorSet", "factory", &json!({"spec": rules}))
}

/// Returns a pull secret with logins for both mirrors.
pub(super) fn pull_secret(password: &str) -> Value {
    let login = json!({"username": "robot", "password": password});
    let auths = json!({"auths": {MIRRORS[0]: login, MIRRORS[1]: login}});
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
        "metadata": {"name": "pull-secret", "namespace": "openshift-config"},
        "stringData": {".dockerconfigjson": auths.to_string()},
    })
}

/// Returns the ConfigMap `trusted-ca` with a certificate that the machines of the cluster trust.
pub(super) fn trusted_ca(certificate: &rcgen::Certificate) -> Value {
    let namespace = api::names::DEFAULT_NAMESPACE;
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "trusted-ca", "namespace": namespace},
        "data": {"ca-bundle.crt": certificate.pem()},
    })
}

pub(super) fn certificate() -> Result<rcgen::Certificate> {
    Ok(rcgen::CertificateParams::new(Vec::new())?.self_signed(&rcgen::KeyPair::generate()?)?)
}

/// Reports whether the host trusts the certificate.
pub(super) async fn trusts(world: &World, certificate: &rcgen::Certificate) -> Result<bool> {
    Ok(cmd(&world.host, &format!("reg query {TRUSTED} /s")).await?.contains(&hex::encode_upper(certificate.der())))
}

/// Reports whether containerd uses this mirror, with this login.
pub(super) fn containerd_has_mirror(world: &World, mirror: &str, password: &str) -> Result<bool> {
    let directory = REGISTRY.replace(':', "_");
    let toml = fs::read_to_string(on_drive(world, &format!(r"C:\k\containerd\registries\{directory}_\hosts.toml"))?)
        .context("hosts.toml")?;
    let login = BASE64.encode(format!("robot:{password}"));
    Ok(toml.contains(&format!("[host.\"https://{mirror}/v2\"]")) && toml.contains(&login))
}

/// Reports whether kubelet has this login.
pub(super) fn kubelet_has_login(world: &World, password: &str) -> Result<bool> {
    let config = fs::read_to_string(on_drive(world, r"C:\var\lib\kubelet\config.json")?).context("config.json")?;
    Ok(config.contains(&BASE64.encode(format!("robot:{password}"))) || config.contains(password))
}

/// Reports whether the service has this proxy, and the API server in its `NO_PROXY`.
pub(super) async fn uses_proxy(world: &World, service: &str, url: &str) -> Result<bool> {
    let key = format!(r"HKLM\System\CurrentControlSet\Services\{service}");
    let variables = cmd(&world.host, &format!("reg query {key} /v Environment")).await?;
    let server = world.control_plane.server();
    let api_server = server.trim_start_matches("https://").split(':').next().unwrap_or_default();
    let without = variables.split("NO_PROXY=").nth(1).is_some_and(|list| list.contains(api_server));
    Ok(variables.contains(&format!("HTTPS_PROXY={url}")) && without)
}
