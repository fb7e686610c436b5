//! Cluster facts that are read from one object each, and keep their earlier value while the object cannot be used.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client, api::DynamicObject};
use serde_json::Value;
use wnp_core::render::{Fact, Proxy, TlsPair, Unusable, certificates, proxy_problem};

use super::{ClusterError, failed};
use crate::{args::Run, cluster::texts};

/// ConfigMap with certificates to trust. WMCO uses the same name.
const TRUSTED_CA: &str = "trusted-ca";

/// Returns the proxy in an OpenShift cluster's `Proxy`, as checked and completed by its network operator, or `None` if it has none.
fn proxy_of_object(object: &Value) -> Option<Proxy> {
    let text = |field: &str| object["status"][field].as_str().filter(|v| !v.is_empty()).map(str::to_owned);
    let proxy = Proxy { http: text("httpProxy"), https: text("httpsProxy"), no: text("noProxy") };
    (proxy.http.is_some() || proxy.https.is_some()).then_some(proxy)
}

/// Returns the proxy of the OpenShift cluster, or else the operator's own proxy. Fails if hosts cannot use it.
pub(super) fn proxy(proxies: Option<&DynamicObject>, args: &Run) -> Result<Proxy, Unusable> {
    let of_args = || {
        let own = Proxy { http: args.http_proxy.clone(), https: args.https_proxy.clone(), no: args.no_proxy.clone() };
        ("the operator's own proxy (HTTP_PROXY, HTTPS_PROXY)", own)
    };
    let found = proxies.and_then(|p| proxy_of_object(&p.data)).map(|p| ("Proxy/cluster of config.openshift.io", p));
    let (origin, proxy) = found.unwrap_or_else(of_args);
    match proxy_problem(&proxy) {
        None => Ok(proxy),
        Some(problem) => Err(Unusable {
            fact: Fact::Proxy,
            problem: format!("{origin}: {problem}. Alternatively, set template.spec.proxy in each pool"),
            is_missing: false,
        }),
    }
}

/// Reads the certificates that hosts must trust machine-wide, if the ConfigMap exists. OpenShift fills a ConfigMap that has its label.
pub(super) async fn trusted_ca(client: &Client, namespace: &str) -> Result<Result<String, Unusable>, ClusterError> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = api.get_opt(TRUSTED_CA).await.map_err(failed("the ConfigMap trusted-ca"))?;
    Ok(map.map_or_else(|| Ok(String::new()), |map| bundle(map, namespace)))
}

/// Returns the PEM certificates of the ConfigMap, or an empty string if it has none.
pub(super) fn bundle(map: ConfigMap, namespace: &str) -> Result<String, Unusable> {
    const KEY: &str = "ca-bundle.crt";
    let unusable = |problem: String| Unusable {
        fact: Fact::TrustedCa,
        problem: format!(
            "ConfigMap {namespace}/{TRUSTED_CA}: {problem}. Without the ConfigMap, hosts trust none of its certificates"
        ),
        is_missing: false,
    };
    let pem = texts::of_config_map(map, KEY)
        .map_err(|error| unusable(format!("{KEY} cannot be read: {error}; correct it")))?;
    let Some(pem) = pem.filter(|pem| !pem.trim().is_empty()) else { return Ok(String::new()) };
    match certificates(pem.as_bytes()) {
        Ok(_) => Ok(pem + "\n"),
        Err(damaged) => {
            // OpenShift fills a ConfigMap that has its label from this object.
            let mend = "correct or remove this certificate, on OpenShift in the trusted CA of Proxy/cluster";
            Err(unusable(format!("certificate {damaged} in {KEY} is damaged; {mend}")))
        }
    }
}

/// Reads the certificate of windows_exporter, which OpenShift's service CA or a user creates. A Secret without data means plain HTTP.
pub(super) async fn exporter_tls(
    client: &Client,
    namespace: &str,
) -> Result<Result<Option<TlsPair>, Unusable>, ClusterError> {
    const NAME: &str = api::names::EXPORTER_CERTIFICATE;
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = api.get_opt(NAME).await.map_err(failed("the certificate of windows_exporter"))?;
    let unusable = |problem: &str, is_missing| {
        let problem = format!("Secret {namespace}/{NAME}, the certificate of windows_exporter, {problem}");
        Err(Unusable { fact: Fact::ExporterTls, problem, is_missing })
    };
    let Some(secret) = secret else {
        let problem = "is missing; restore it (OpenShift's service CA operator does so while it runs), or create it without data to serve metrics over plain HTTP";
        return Ok(unusable(problem, true));
    };
    let text = |key: &str| texts::of_secret(&secret, key).ok().flatten().unwrap_or_default();
    let pair = TlsPair { certificate: text("tls.crt"), key: text("tls.key") };
    let data = secret.data.unwrap_or_default();
    Ok(if data.values().all(|value| value.0.is_empty()) {
        Ok(None)
    } else if pair.is_usable() {
        Ok(Some(pair))
    } else {
        let problem = "has no certificate with its key in PEM (tls.crt and tls.key); correct it; on OpenShift, delete it, so that it is created \
                       again; or replace it with a Secret without data to serve metrics over plain HTTP";
        unusable(problem, false)
    })
}

#[cfg(test)]
#[path = "objects_tests.rs"]
mod tests;
