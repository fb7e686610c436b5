//! `/metrics` over TLS: its readers and its certificate.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, Result, ensure};
use api::names::METRICS_SERVICE;
use k8s_openapi::api::{core::v1::ServiceAccount, rbac::v1::ClusterRoleBinding};
use kube::{Api, Client, api::PostParams};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use serde_json::json;
use testbed::{ControlPlane, ControlPlaneOptions, Operator, OperatorOptions, deployment, pki::Authority};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::{
    access::{create, object},
    cluster::{NAMESPACE, eventually},
};

/// Checks `/metrics` over TLS. The test has an API server of its own, because the operator has no payload.
#[tokio::test]
async fn metrics_are_served_over_tls() -> Result<()> {
    let control_plane = Box::pin(ControlPlane::start(ControlPlaneOptions::default())).await?;
    deployment::install(&control_plane).await?;
    let directory = tempfile::tempdir()?;
    let client = control_plane.client().await?;
    let operator = operator(&control_plane, directory.path())?;
    let reader = token(&client, "reader").await?;
    bind(&client, "reader").await?;
    let authority = a_mounted_certificate_is_served_and_reloaded(&operator, directory.path(), &reader).await?;
    metrics_need_a_token_with_the_right_to_get_them(&operator, &authority, &reader, &token(&client, "other").await?)
        .await
}

/// Starts an operator that only serves metrics over TLS: it has no payload.
fn operator(control_plane: &ControlPlane, directory: &Path) -> Result<Operator> {
    let directory = directory.to_str().context("path is not UTF-8")?;
    let options = OperatorOptions {
        program: PathBuf::from(env!("CARGO_BIN_EXE_windows-node-pools")),
        payload: "/nowhere".into(),
        wicd: "/nowhere".into(),
        args: ["--metrics-tls", "true", "--metrics-tls-directory", directory].map(Into::into).into(),
    };
    Operator::start(control_plane, &options)
}

/// Returns a token of a new ServiceAccount in the operator's namespace.
pub(crate) async fn token(client: &Client, account: &str) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    accounts.create(&PostParams::default(), &object(json!({"metadata": {"name": account}}))).await?;
    let request = object(json!({"spec": {"audiences": [], "expirationSeconds": 600}}));
    let response = accounts.create_token_request(account, &PostParams::default(), &request).await?;
    response.status.and_then(|status| status.token).context("no token")
}

pub(crate) async fn bind(client: &Client, account: &str) -> Result<()> {
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "windows-node-pools-metrics-reader"});
    let subject = json!({"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE});
    let binding =
        json!({"metadata": {"name": format!("{NAMESPACE}-{account}")}, "roleRef": role, "subjects": [subject]});
    create::<ClusterRoleBinding>(client, binding).await?;
    Ok(())
}

/// Returns the answer to a scraper that trusts only this authority, for the name of the Service.
async fn scrape(address: SocketAddr, authority: &Authority, headers: &str) -> Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.identity().certificate.as_bytes())?)?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(format!("{METRICS_SERVICE}.{NAMESPACE}.svc"))?;
    let stream = TcpStream::connect(address).await?;
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: metrics\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

fn has_status(answer: &str, status: u16) -> bool {
    answer.starts_with(&format!("HTTP/1.1 {status} "))
}

/// Checks that a mounted certificate is served, and reloaded when it changes. Returns the authority of the last certificate.
async fn a_mounted_certificate_is_served_and_reloaded(
    operator: &Operator,
    directory: &Path,
    reader: &str,
) -> Result<Authority> {
    let mut served = Authority::new("service-ca")?;
    let own = || async {
        let refusal = scrape(operator.metrics_address(), &served, &bearer(reader)).await;
        refusal.is_err_and(|error| format!("{error:#}").contains("invalid peer certificate"))
    };
    eventually(own).await.with_context(|| operator.log())?;
    for round in 0..2 {
        served = Authority::new(&format!("service-ca {round}"))?;
        let identity = served.server(METRICS_SERVICE, &[], &[&format!("{METRICS_SERVICE}.{NAMESPACE}.svc")])?;
        std::fs::write(directory.join("tls.crt"), &identity.certificate)?;
        std::fs::write(directory.join("tls.key"), &identity.key)?;
        let answer = || async {
            scrape(operator.metrics_address(), &served, &bearer(reader))
                .await
                .is_ok_and(|answer| has_status(&answer, 200))
        };
        eventually(answer).await.with_context(|| operator.log())?;
    }
    Ok(served)
}

async fn metrics_need_a_token_with_the_right_to_get_them(
    operator: &Operator,
    authority: &Authority,
    reader: &str,
    other: &str,
) -> Result<()> {
    let address = operator.metrics_address();
    let asks = async |headers: &str| scrape(address, authority, headers).await;
    let answer = asks(&bearer(reader)).await?;
    ensure!(answer.contains("windows_node_pool_build_info"), "{answer}");
    for (about, headers, status) in [
        ("no token", String::new(), 401),
        ("an invalid token", bearer("abc"), 401),
        ("a password", "Authorization: Basic YTpi\r\n".into(), 401),
        ("a token without the right", bearer(other), 403),
        ("the right one again", bearer(reader), 200),
    ] {
        let answer = asks(&headers).await?;
        let shows = answer.contains("windows_node_pool_build_info");
        ensure!(has_status(&answer, status) && shows == (status == 200), "{about}: {answer}");
    }

    // Probes use a port without tokens and TLS, which serves no metrics.
    ensure!(operator.get("/healthz").await?.starts_with("HTTP/1.1 200"), "no answer to the probe");
    ensure!(operator.get("/metrics").await?.starts_with("HTTP/1.1 404"), "metrics without TLS");

    // Clients that do not speak TLS do not keep others out, however many there are.
    let mut others = Vec::new();
    for n in 0..100 {
        let mut stream = TcpStream::connect(address).await?;
        let garbage: &[u8] =
            if n % 2 == 0 { b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" } else { b"\x16\x03\x01\xff\xff" };
        stream.write_all(garbage).await?;
        others.push(stream);
    }
    ensure!(has_status(&asks(&bearer(reader)).await?, 200), "other connections keep a reader out");
    let mut said = Vec::new();
    // A connection reset is as good as a TLS alert.
    let _ = others.swap_remove(0).read_to_end(&mut said).await;
    ensure!(!String::from_utf8_lossy(&said).contains("HTTP"), "{said:?}");
    for secret in [reader, other] {
        ensure!(!operator.log().contains(secret), "a token is in the log");
    }
    Ok(())
}
