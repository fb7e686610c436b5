//! Configuration files of a host.

use std::collections::BTreeMap;

use api::{
    host::{ConfigFile, path},
    names::user,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Cluster, PullSecret, containerd, context::NODE_NAME, credential_provider, mirrors, program, pull_secret};

/// Path of the certificates that are trusted machine-wide, the same as WMCO's.
const TRUSTED_CA: &str = r"C:\k\ca-bundle.crt";
/// Path of windows_exporter's certificate, the same as WMCO's. Its configuration in the payload names this path and that of the key.
const EXPORTER_CERT: &str = r"C:\k\tls\certs\tls.crt";
const EXPORTER_KEY: &str = r"C:\k\tls\certs\tls.key";

/// Programs on hosts that need files of their own.
pub(super) struct Programs {
    /// Configuration of the credential providers, if there are any.
    pub credential_providers: Option<Value>,
    /// True if hosts run a cloud-node-manager.
    pub node_manager: bool,
}

/// Returns the files that depend only on the cluster, the programs on hosts and the name of the node. Only the exporter's private key is secret.
pub(super) fn of_cluster(cluster: &Cluster, programs: &Programs, node_name: &str) -> Vec<ConfigFile> {
    let node_user = format!("{}{node_name}", user::NODE_PREFIX);
    let wicd_user = format!("{}{node_name}", user::WICD_PREFIX);
    let server = &cluster.api_server;
    let mut files = vec![
        file(path::API_CA, pem(&cluster.api_ca)),
        file(path::KUBELET_CA, pem(&cluster.kubelet_client_ca)),
        // wicd derives kubelet's own kubeconfig from this file, and adds kubelet's first certificate and key. The key never leaves the host.
        file(path::NODE_KUBECONFIG, text(&kubeconfig(server, &node_user, path::KUBELET_CURRENT_CERT))),
        file(path::WICD_KUBECONFIG, text(&kubeconfig(server, &wicd_user, path::WICD_CERT))),
    ];
    if let Some(tls) = &cluster.exporter_tls {
        files.push(file(EXPORTER_CERT, pem(&tls.certificate)));
        files.push(ConfigFile { secret: true, ..file(EXPORTER_KEY, pem(&tls.key)) });
    }
    if let Some(trusted) = cluster.trusted_ca.as_ref().filter(|pem| !pem.trim().is_empty()) {
        files.push(file(TRUSTED_CA, pem(trusted)));
    }
    files.extend(containerd::network(cluster).map(|text| file(program::CONTAINERD_NETWORK, text)));
    if programs.node_manager {
        let token = json!({"tokenFile": path::NODE_MANAGER_TOKEN});
        files.push(file(path::NODE_MANAGER_KUBECONFIG, text(&kubeconfig_of(server, user::NODE_MANAGER, &token))));
    }
    if let Some(config) = &programs.credential_providers {
        files.push(file(credential_provider::PATH, text(config)));
    }
    files
}

/// Returns the files for pulling images, with the logins that the pool may use.
pub(super) fn of_registries(cluster: &Cluster, logins: &PullSecret) -> Vec<ConfigFile> {
    let mirrors = mirrors::files(&cluster.mirrors, logins);
    let kubelet = logins.file().map(|logins| (pull_secret::PATH.to_owned(), text(&logins)));
    mirrors.into_iter().chain(kubelet).map(|(path, text)| ConfigFile { secret: true, ..file(&path, text) }).collect()
}

/// Returns the hashes of the files of [`of_cluster`] and [`of_registries`], for a placeholder node and without secrets: a hash must not help to guess
/// a key or a password.
pub(super) fn hashes(cluster: &Cluster, programs: &Programs, logins: &PullSecret) -> BTreeMap<String, String> {
    let files = of_cluster(cluster, programs, NODE_NAME).into_iter().filter(|f| !f.secret);
    let files = files.chain(of_registries(cluster, &logins.redacted()));
    files.map(|f| (f.path, hex::encode(Sha256::digest(&f.content)))).collect()
}

pub(super) fn file(path: &str, content: String) -> ConfigFile {
    ConfigFile { path: path.into(), content, secret: false }
}

/// Formats JSON for reading: users read the configuration files on hosts.
pub(super) fn text(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Returns the content of a certificate file. White space around `text` makes no difference.
fn pem(text: &str) -> String {
    format!("{}\n", text.trim())
}

/// Returns a kubeconfig in JSON, which is valid YAML. Certificate and key are in one file, as kubelet and wicd write them.
fn kubeconfig(server: &str, user: &str, certificate: &str) -> Value {
    kubeconfig_of(server, user, &json!({"client-certificate": certificate, "client-key": certificate}))
}

fn kubeconfig_of(server: &str, user: &str, credentials: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": {"server": server, "certificate-authority": path::API_CA}}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": user, "context": {"cluster": "local", "user": user}}],
        "current-context": user,
    })
}
