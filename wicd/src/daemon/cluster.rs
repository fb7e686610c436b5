//! Access of wicd to the API server: the host's own Node, services ConfigMaps, certificate requests, tokens of ServiceAccounts. wicd has no other
//! access.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::names::key;
use api::{Reason, host::path};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Node, ServiceAccount};
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher;
use serde_json::{Value, json};

use crate::certificates::split;
use crate::files;
use crate::host::{Host, HostError};

/// Signer of wicd's certificates.
const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// Field manager of wicd's changes to its Node.
const MANAGER: &str = "wicd";
/// Read timeout, longer than the API server keeps a watch open without an event.
const READ_TIMEOUT: Duration = Duration::from_secs(330);

/// Failure to use the API server.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// wicd's kubeconfig, its certificate or the CA certificate is missing, or is not text with the expected parts.
    #[error("{0} is missing or damaged; the operator writes it when it configures the host")]
    Missing(String),
    /// wicd's kubeconfig cannot be used.
    #[error("the kubeconfig {}, which the operator writes, cannot be used", path::WICD_KUBECONFIG)]
    Kubeconfig(#[source] Box<kube::config::KubeconfigError>),
    /// A call to the API server failed.
    #[error("cannot {action}")]
    Call {
        /// Action that was attempted, with its object.
        action: String,
        /// Cause of the failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An operation on the host failed.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl ClusterError {
    /// Reason for logs.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Missing(_) | Self::Kubeconfig(_) => Reason::CredentialsUnavailable,
            Self::Call { .. } => Reason::ApiError,
            Self::Host(e) => e.reason(),
        }
    }
}

fn call<E: std::error::Error + Send + Sync + 'static>(action: impl Into<String>) -> impl FnOnce(E) -> ClusterError {
    let action = action.into();
    move |source| ClusterError::Call { action, source: Box::new(source) }
}

/// State of a certificate request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Issue {
    /// Request without a decision or a certificate yet.
    Pending,
    /// Issued certificate chain, in PEM.
    Issued(String),
    /// Reason why the request was denied, has failed or was deleted.
    Refused(String),
}

/// Services ConfigMap as stored in the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicesConfigMap {
    /// Data of the ConfigMap.
    pub data: BTreeMap<String, String>,
    /// Annotation of the ConfigMap with the rest of the rendered configuration, which is not in the data.
    pub rendered: Option<String>,
}

/// Awaited answer of the API server.
pub type Response<'a, T> = BoxFuture<'a, Result<T, ClusterError>>;

/// Annotations to write or, if `None`, to remove.
pub type Annotations = BTreeMap<&'static str, Option<String>>;

/// API server, accessed with wicd's current certificate.
pub trait Cluster: Send + Sync {
    /// Streams the Node of this name: its current state, and each change. `None` while it does not exist.
    fn watch_node(&self, name: &str) -> BoxStream<'static, Result<Option<Value>, ClusterError>>;
    /// Returns a services ConfigMap, `None` if there is none.
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> Response<'a, Option<ServicesConfigMap>>;
    /// Writes annotations of a Node or (`None`) removes them, and changes no other field.
    fn annotate<'a>(&'a self, node: &'a str, annotations: Annotations) -> Response<'a, ()>;
    /// Requests a token of a ServiceAccount.
    fn request_token<'a>(&'a self, namespace: &'a str, account: &'a str, request: TokenRequest)
    -> Response<'a, String>;
    /// Requests a certificate with a lifetime of `seconds`; returns the name of the request.
    fn request_certificate(&self, pem: String, seconds: i32) -> Response<'_, String>;
    /// Returns the state of a certificate request.
    fn certificate<'a>(&'a self, request: &'a str) -> Response<'a, Issue>;
}

/// Returns the value of a Node annotation; `None` if it is missing or empty.
pub(crate) fn annotation<'a>(node: &'a Value, key: &str) -> Option<&'a str> {
    node.pointer("/metadata/annotations")?.get(key)?.as_str().filter(|value| !value.is_empty())
}

/// Reports whether a Node is Ready.
pub(crate) fn is_ready(node: &Value) -> bool {
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// Source of connections to the API server.
pub trait Connect: Send + Sync {
    /// Connects with the kubeconfig and the certificate that the host has now.
    fn connect(&self) -> Response<'_, Arc<dyn Cluster>>;
}

/// Placeholder proxy in the kubeconfig, so that kube ignores the proxy variables, which may be damaged. No connection uses it.
const NO_PROXY: &str = "http://none.invalid";

/// Connections to the real API server, with the kubeconfig on the host.
pub struct Kube {
    host: Arc<dyn Host>,
}

impl Kube {
    /// Creates the source of connections for a host.
    pub fn new(host: Arc<dyn Host>) -> Self {
        Self { host }
    }

    async fn config(&self) -> Result<kube::Config, ClusterError> {
        let text = files::read(&*self.host, path::WICD_KUBECONFIG)?
            .and_then(|t| String::from_utf8(t).ok())
            .ok_or_else(|| ClusterError::Missing(path::WICD_KUBECONFIG.to_owned()))?;
        let unusable = |e| ClusterError::Kubeconfig(Box::new(e));
        let mut kubeconfig = Kubeconfig::from_yaml(&text).map_err(unusable)?;
        // Certificate and key are in one file, which is read once, so that they belong together.
        let damaged = || ClusterError::Missing(path::WICD_CERT.to_owned());
        let pem = files::read(&*self.host, path::WICD_CERT)?.ok_or_else(damaged)?;
        let (chain, key) = split(&String::from_utf8_lossy(&pem)).ok_or_else(damaged)?;
        for user in kubeconfig.auth_infos.iter_mut().filter_map(|u| u.auth_info.as_mut()) {
            user.client_certificate = None;
            user.client_certificate_data = Some(STANDARD.encode(&chain));
            user.client_key = None;
            user.client_key_data = Some(STANDARD.encode(&key).into());
        }
        for cluster in kubeconfig.clusters.iter_mut().filter_map(|c| c.cluster.as_mut()) {
            if let Some(ca) = cluster.certificate_authority.take() {
                let pem = files::read(&*self.host, &ca)?.ok_or_else(|| ClusterError::Missing(ca.clone()))?;
                cluster.certificate_authority_data = Some(STANDARD.encode(&pem));
            }
            // The machine-wide proxy variables are for containerd. kube would use them, but does not read NO_PROXY.
            cluster.proxy_url = Some(NO_PROXY.to_owned());
        }
        let mut config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(unusable)?;
        config.connect_timeout = Some(Duration::from_secs(10));
        config.read_timeout = Some(READ_TIMEOUT);
        config.proxy_url = None;
        Ok(config)
    }

    async fn client(&self) -> Result<kube::Client, ClusterError> {
        kube::Client::try_from(self.config().await?).map_err(call("create a client for the API server"))
    }
}

impl Connect for Kube {
    fn connect(&self) -> Response<'_, Arc<dyn Cluster>> {
        async move { Ok(Arc::new(KubeCluster(self.client().await?)) as Arc<dyn Cluster>) }.boxed()
    }
}

struct KubeCluster(kube::Client);

impl Cluster for KubeCluster {
    fn watch_node(&self, name: &str) -> BoxStream<'static, Result<Option<Value>, ClusterError>> {
        // wicd's rights allow only a watch with a field selector on the name.
        let nodes: Api<Node> = Api::all(self.0.clone());
        let action = format!("watch the Node {name}");
        watcher::watch_object(nodes, name)
            .map(move |event| {
                let node = event.map_err(call(action.as_str()))?;
                node.map(|n| serde_json::to_value(n).map_err(call("read the Node"))).transpose()
            })
            .boxed()
    }

    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> Response<'a, Option<ServicesConfigMap>> {
        async move {
            let maps: Api<ConfigMap> = Api::namespaced(self.0.clone(), namespace);
            let map = maps.get_opt(name).await.map_err(call(format!("get the ConfigMap {namespace}/{name}")))?;
            Ok(map.map(|m| ServicesConfigMap {
                rendered: m.metadata.annotations.and_then(|mut a| a.remove(key::RENDERED)),
                data: m.data.unwrap_or_default(),
            }))
        }
        .boxed()
    }

    fn annotate<'a>(&'a self, node: &'a str, annotations: Annotations) -> Response<'a, ()> {
        async move {
            let nodes: Api<Node> = Api::all(self.0.clone());
            let patch = json!({"metadata": {"annotations": annotations}});
            // The managed fields of the Node then show what wicd wrote.
            let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
            let patched = nodes.patch_metadata(node, &params, &Patch::Merge(patch)).await;
            patched.map_err(call(format!("annotate the Node {node}")))?;
            Ok(())
        }
        .boxed()
    }

    fn request_token<'a>(
        &'a self,
        namespace: &'a str,
        account: &'a str,
        request: TokenRequest,
    ) -> Response<'a, String> {
        async move {
            let action = format!("request a token of the ServiceAccount {namespace}/{account}");
            let accounts: Api<ServiceAccount> = Api::namespaced(self.0.clone(), namespace);
            let made = accounts.create_token_request(account, &PostParams::default(), &request).await;
            let token = made.map_err(call(action.as_str()))?.status.and_then(|s| s.token);
            token.ok_or_else(|| ClusterError::Call { action, source: "the answer does not have a token".into() })
        }
        .boxed()
    }

    fn request_certificate(&self, pem: String, seconds: i32) -> Response<'_, String> {
        async move {
            let requests: Api<CertificateSigningRequest> = Api::all(self.0.clone());
            let request = CertificateSigningRequest {
                metadata: ObjectMeta { generate_name: Some("csr-wicd-".into()), ..ObjectMeta::default() },
                spec: CertificateSigningRequestSpec {
                    request: ByteString(pem.into_bytes()),
                    signer_name: SIGNER.into(),
                    usages: Some(["digital signature", "client auth"].map(String::from).to_vec()),
                    expiration_seconds: Some(seconds),
                    ..CertificateSigningRequestSpec::default()
                },
                status: None,
            };
            let made = requests
                .create(&PostParams::default(), &request)
                .await
                .map_err(call("create a certificate request"))?;
            Ok(made.metadata.name.unwrap_or_default())
        }
        .boxed()
    }

    fn certificate<'a>(&'a self, request: &'a str) -> Response<'a, Issue> {
        async move {
            let requests: Api<CertificateSigningRequest> = Api::all(self.0.clone());
            let found =
                requests.get_opt(request).await.map_err(call(format!("get the certificate request {request}")))?;
            Ok(found.map_or_else(|| Issue::Refused("the request was deleted".into()), |r| issue(&r)))
        }
        .boxed()
    }
}

fn issue(request: &CertificateSigningRequest) -> Issue {
    let Some(status) = &request.status else { return Issue::Pending };
    let refused = status.conditions.iter().flatten().find(|c| c.type_ == "Denied" || c.type_ == "Failed");
    if let Some(condition) = refused {
        let message = condition.message.as_deref().unwrap_or_default();
        return Issue::Refused(format!("{}: {message}", condition.type_));
    }
    match &status.certificate {
        Some(ByteString(pem)) if !pem.is_empty() => Issue::Issued(String::from_utf8_lossy(pem).into_owned()),
        _ => Issue::Pending,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeHost;
    use crate::files::Access;

    #[test]
    fn a_denied_request_is_refused_even_with_a_certificate() {
        let request = |conditions: Value, certificate: &str| -> CertificateSigningRequest {
            let certificate = STANDARD.encode(certificate);
            serde_json::from_value(json!({"metadata": {}, "spec": {"request": "", "signerName": "x"},
                "status": {"conditions": conditions, "certificate": certificate}}))
            .unwrap()
        };
        let denied =
            json!([{"type": "Approved", "status": "True"}, {"type": "Denied", "status": "True", "message": "no"}]);
        assert_eq!(issue(&request(denied, "x")), Issue::Refused("Denied: no".into()));
        assert_eq!(issue(&request(json!([{"type": "Approved", "status": "True"}]), "")), Issue::Pending);
        assert_eq!(issue(&request(json!([]), "chain")), Issue::Issued("chain".into()));
    }

    #[tokio::test]
    async fn a_client_is_made_from_the_files_on_the_host() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let host = FakeHost::temporary();
        let kube = Kube::new(Arc::new(host.clone()));
        assert!(matches!(kube.client().await, Err(ClusterError::Missing(file)) if file == path::WICD_KUBECONFIG));
        let kubeconfig = json!({
            "clusters": [{"name": "local", "cluster": {"server": "https://api.example:6443", "certificate-authority": path::API_CA}}],
            "users": [{"name": "wicd", "user": {"client-certificate": path::WICD_CERT, "client-key": path::WICD_CERT}}],
            "contexts": [{"name": "wicd", "context": {"cluster": "local", "user": "wicd"}}],
            "current-context": "wicd",
        });
        files::write_json(&host, path::WICD_KUBECONFIG, &kubeconfig, Access::Protected).unwrap();
        let pair = rcgen::generate_simple_self_signed(["x".to_string()]).unwrap();
        files::write(&host, path::API_CA, pair.cert.pem().as_bytes(), Access::Inherited).unwrap();
        assert!(matches!(kube.client().await, Err(ClusterError::Missing(file)) if file == path::WICD_CERT));
        let pem = format!("{}{}", pair.cert.pem(), pair.signing_key.serialize_pem());
        files::write(&host, path::WICD_CERT, pem.as_bytes(), Access::Protected).unwrap();
        kube.client().await.unwrap();
        assert_eq!(kube.config().await.unwrap().proxy_url, None);
    }

    /// The operator sets a proxy machine-wide. The test runs in a process of its own, because variables belong to the whole process.
    #[test]
    fn a_client_is_made_on_a_machine_with_a_proxy() {
        let test = "daemon::cluster::tests::a_client_is_made_from_the_files_on_the_host";
        for proxy in ["http://user:hunter2@proxy.example.com:3128", "no URL"] {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let output =
                again.args(["--exact", test]).env("HTTPS_PROXY", proxy).env("https_proxy", proxy).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{proxy}: {text}");
        }
    }
}
