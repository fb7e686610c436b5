//! Versions of all API servers, which differ during an upgrade of the control plane. kubelet must not be newer than the oldest API server.

use std::{net::IpAddr, time::Duration};

use futures::future::join_all;
use k8s_openapi::{api::discovery::v1::EndpointSlice, apimachinery::pkg::version::Info};
use kube::{Api, Client, Config};

use super::{ClusterError, failed, number};

/// Name in the certificate of every API server, whatever its address is.
const NAME: &str = "kubernetes.default.svc";
/// Maximum number of API servers that are queried. Clusters have fewer.
const MAX_API_SERVERS: usize = 16;
/// Time limit for the answer of an API server.
const LIMIT: Duration = Duration::from_secs(5);

/// Versions of the API servers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Versions {
    /// Oldest minor version of the API servers that answer.
    pub oldest: Option<u32>,
    /// Addresses of API servers that do not answer. They may be restarting, with an older version.
    pub silent: Vec<String>,
}

/// Queries the version of the API server that the operator uses, and of all others in the EndpointSlice `default/kubernetes`.
pub(super) async fn versions(client: &Client, config: &Config) -> Result<Versions, ClusterError> {
    let own = client.apiserver_version().await.map_err(failed("the version of the API server"))?;
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    let slice = slices.get_opt("kubernetes").await.map_err(failed("the addresses of the API servers"))?;
    let urls = slice.as_ref().map(urls).unwrap_or_default();
    // A single API server has already answered.
    let others = if urls.len() > 1 { urls } else { Vec::new() };
    let asked = others.into_iter().map(|url| async {
        let address = url.authority().map(ToString::to_string).unwrap_or_default();
        (address, version(config, url).await)
    });
    Ok(summary(&own, join_all(asked).await))
}

/// Combines all answers: `own` is the version of the API server that the operator uses, and `found` has the address and the version of each listed
/// API server.
fn summary(own: &Info, found: Vec<(String, Option<Info>)>) -> Versions {
    let mut versions = Versions { oldest: minor(own), silent: Vec::new() };
    for (address, version) in found {
        match version {
            Some(version) => versions.oldest = versions.oldest.into_iter().chain(minor(&version)).min(),
            None => versions.silent.push(address),
        }
    }
    versions
}

/// Queries the version of an API server; `None` if it does not answer within [`LIMIT`]. Before any request, the server must present a certificate of
/// the cluster's CA for [`NAME`].
async fn version(config: &Config, url: http::Uri) -> Option<Info> {
    let mut config = config.clone();
    config.cluster_url = url;
    config.tls_server_name = Some(NAME.to_owned());
    let client = Client::try_from(config).ok()?;
    tokio::time::timeout(LIMIT, client.apiserver_version()).await.ok()?.ok()
}

fn urls(slice: &EndpointSlice) -> Vec<http::Uri> {
    let ports = slice.ports.as_deref().unwrap_or_default();
    let port = ports.iter().find(|p| p.name.as_deref() == Some("https")).and_then(|p| p.port).unwrap_or(6443);
    let addresses = slice.endpoints.iter().flatten().flat_map(|e| &e.addresses).take(MAX_API_SERVERS);
    let url = |address: &String| match address.parse().ok()? {
        IpAddr::V4(ip) => format!("https://{ip}:{port}").parse().ok(),
        IpAddr::V6(ip) => format!("https://[{ip}]:{port}").parse().ok(),
    };
    addresses.filter_map(url).collect()
}

fn minor(version: &Info) -> Option<u32> {
    number(&version.minor).filter(|_| number(&version.major) == Some(1))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_api_server_that_does_not_answer_is_named() {
        let info = |minor: &str| Info { major: "1".into(), minor: minor.into(), ..Info::default() };
        for (own, others, oldest, silent) in [
            ("36", vec![], Some(36), vec![]),
            ("36", vec![("a", Some("36")), ("b", Some("34+"))], Some(34), vec![]),
            ("36", vec![("a", Some("36")), ("b", None)], Some(36), vec!["b"]),
            ("34", vec![("a", None), ("b", None)], Some(34), vec!["a", "b"]),
            ("", vec![("a", Some("36"))], Some(36), vec![]),
        ] {
            let others = others.into_iter().map(|(address, minor)| (address.to_owned(), minor.map(info))).collect();
            let silent = silent.into_iter().map(str::to_owned).collect();
            assert_eq!(summary(&info(own), others), Versions { oldest, silent });
        }
    }

    #[test]
    fn each_api_server_has_a_url() {
        let slice = |endpoints: serde_json::Value, ports: serde_json::Value| -> Vec<String> {
            let object = json!({"metadata": {"name": "kubernetes"}, "addressType": "IPv4", "endpoints": endpoints, "ports": ports});
            urls(&serde_json::from_value(object).unwrap()).iter().map(ToString::to_string).collect()
        };
        let https = json!([{"name": "https", "port": 8443}]);
        let two = json!([{"addresses": ["10.0.0.1", "10.0.0.2"]}, {"addresses": ["fd00::1"]}]);
        assert_eq!(slice(two, https), ["https://10.0.0.1:8443/", "https://10.0.0.2:8443/", "https://[fd00::1]:8443/"]);
        assert_eq!(
            slice(json!([{"addresses": ["evil.example.com", "10.0.0.1"]}]), json!([])),
            ["https://10.0.0.1:6443/"]
        );
        assert_eq!(slice(json!([]), json!([])), [""; 0]);
    }
}
