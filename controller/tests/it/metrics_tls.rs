//! `/metrics` over TLS: who gets it, and with which certificate.

use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use api::names::{METRICS_CA, METRICS_CA_KEY, METRICS_SERVICE};
use k8s_openapi::api::{
    core::v1::{ConfigMap, ServiceAccount},
    rbac::v1::ClusterRoleBinding,
};
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

/// On an API server of its own: operators without a payload are there.
#[tokio::test]
async fn metrics_are_served_over_tls() -> Result<()> {
    let control_plane = Box::pin(ControlPlane::start(ControlPlaneOptions::default())).await?;
    deployment::install(&control_plane).await?;
    they_are_for_those_who_may_get_them(&control_plane).await?;
    certificates_change_without_a_failed_request(&control_plane).await?;
    a_certificate_in_files_is_served_and_read_again(&control_plane).await
}

/// An operator that only serves metrics over TLS: it has no payload.
fn operator(control_plane: &ControlPlane, args: &[&str]) -> Result<Operator> {
    let options = OperatorOptions {
        program: PathBuf::from(env!("CARGO_BIN_EXE_windows-node-pools")),
        payload: "/nowhere".into(),
        wicd: "/nowhere".into(),
        args: ["--metrics-tls", "true"].iter().chain(args).map(ToString::to_string).collect(),
    };
    Operator::start(control_plane, &options)
}

/// A token of a new ServiceAccount in the operator's namespace.
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

/// What the operator publishes, as a scraper has it mounted.
pub(crate) async fn published(client: &Client) -> Result<String> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let map = maps.get(METRICS_CA).await?;
    map.data.and_then(|mut data| data.remove(METRICS_CA_KEY)).context("no authority")
}

/// Status and text of the answer, and the certificate that was shown.
struct Answer {
    text: String,
    certificate: Vec<u8>,
}

impl Answer {
    fn is(&self, status: u16) -> bool {
        self.text.starts_with(&format!("HTTP/1.1 {status} "))
    }
}

/// As a scraper does: trusts only these authorities, for the name of the Service.
async fn scrape(address: SocketAddr, authorities: &str, headers: &str) -> Result<Answer> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        roots.add(certificate?)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(format!("{METRICS_SERVICE}.{NAMESPACE}.svc"))?;
    let stream = TcpStream::connect(address).await?;
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let certificate =
        stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).context("no certificate")?;
    let certificate = certificate.to_vec();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: metrics\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(Answer { text, certificate })
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

async fn they_are_for_those_who_may_get_them(control_plane: &ControlPlane) -> Result<()> {
    let client = control_plane.client().await?;
    let operator = operator(control_plane, &[])?;
    let (address, reader, other) =
        (operator.metrics_address(), token(&client, "reader").await?, token(&client, "other").await?);
    bind(&client, "reader").await?;
    // The operator adds its authority to what others have published.
    let asks = async |headers: &str| scrape(address, &published(&client).await?, headers).await;
    eventually(|| async { asks(&bearer(&reader)).await.is_ok_and(|answer| answer.is(200)) })
        .await
        .with_context(|| operator.log())?;
    let answer = asks(&bearer(&reader)).await?;
    ensure!(answer.text.contains("windows_node_pool_build_info"), "{}", answer.text);
    for (about, headers, status) in [
        ("no token", String::new(), 401),
        ("a token of another cluster", bearer("abc"), 401),
        ("a password", "Authorization: Basic YTpi\r\n".into(), 401),
        ("a token without the right", bearer(&other), 403),
        ("the right one again", bearer(&reader), 200),
    ] {
        let answer = asks(&headers).await?;
        ensure!(
            answer.is(status) && (status == 200 || !answer.text.contains("windows_node_pool")),
            "{about}: {}",
            answer.text
        );
    }

    // Probes ask without a token and without TLS, and get no metrics there.
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
    ensure!(asks(&bearer(&reader)).await?.is(200), "others are in the way");
    let mut said = Vec::new();
    // A reset says as much as an alert.
    let _ = others.swap_remove(0).read_to_end(&mut said).await;
    ensure!(!String::from_utf8_lossy(&said).contains("HTTP"), "{said:?}");
    for secret in [&reader, &other] {
        ensure!(!operator.log().contains(secret.as_str()), "a token is in the log");
    }
    Ok(())
}

async fn certificates_change_without_a_failed_request(control_plane: &ControlPlane) -> Result<()> {
    let client = control_plane.client().await?;
    // Two processes, as in an update: each keeps the other's authority.
    let first = operator(control_plane, &["--metrics-tls-lifetime", "12s"])?;
    let second = operator(control_plane, &["--metrics-tls-lifetime", "12s"])?;
    let token = token(&client, "rotation").await?;
    bind(&client, "rotation").await?;
    let scrape = async |operator: &Operator| {
        scrape(operator.metrics_address(), &published(&client).await?, &bearer(&token)).await
    };
    let mut seen = BTreeSet::new();
    for operator in [&first, &second] {
        eventually(|| async { scrape(operator).await.is_ok_and(|answer| answer.is(200)) })
            .await
            .with_context(|| operator.log())?;
    }
    while seen.len() < 6 {
        for (at, operator) in [&first, &second].into_iter().enumerate() {
            let answer = scrape(operator).await.with_context(|| operator.log())?;
            ensure!(answer.is(200), "{}", answer.text);
            seen.insert((at, answer.certificate));
        }
    }
    Ok(())
}

async fn a_certificate_in_files_is_served_and_read_again(control_plane: &ControlPlane) -> Result<()> {
    let client = control_plane.client().await?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().to_str().context("path is not UTF-8")?;
    let operator = operator(control_plane, &["--metrics-tls-directory", path, "--metrics-tls-lifetime", "1m"])?;
    let token = bearer(&token(&client, "files").await?);
    bind(&client, "files").await?;
    let served = async |authorities: &str| -> Result<()> {
        eventually(|| async {
            scrape(operator.metrics_address(), authorities, &token).await.is_ok_and(|answer| answer.is(200))
        })
        .await
        .with_context(|| operator.log())
    };
    // Until they are there, the operator's own.
    eventually(|| async { published(&client).await.is_ok() }).await?;
    eventually(|| async {
        let Ok(authorities) = published(&client).await else { return false };
        scrape(operator.metrics_address(), &authorities, &token).await.is_ok_and(|answer| answer.is(200))
    })
    .await?;
    let name = format!("{METRICS_SERVICE}.{NAMESPACE}.svc");
    for round in 0..2 {
        let authority = Authority::new(&format!("service-ca {round}"))?;
        let identity = authority.server(METRICS_SERVICE, &[], &[&name])?;
        std::fs::write(directory.path().join("tls.crt"), &identity.certificate)?;
        std::fs::write(directory.path().join("tls.key"), &identity.key)?;
        served(&authority.identity().certificate).await?;
        if round == 1 {
            // A file that is broken changes nothing, and the log says so without what is in it.
            std::fs::write(directory.path().join("tls.key"), "broken")?;
            eventually(|| async { operator.log().contains("CertificateInvalid") }).await?;
            ensure!(
                scrape(operator.metrics_address(), &authority.identity().certificate, &token).await?.is(200),
                "it is not served any more"
            );
            ensure!(!operator.log().contains("broken"), "{}", operator.log());
        }
    }
    // Without files, the operator's own again.
    std::fs::remove_file(directory.path().join("tls.crt"))?;
    eventually(|| async {
        let Ok(authorities) = published(&client).await else { return false };
        scrape(operator.metrics_address(), &authorities, &token).await.is_ok_and(|answer| answer.is(200))
    })
    .await
    .with_context(|| operator.log())
}
