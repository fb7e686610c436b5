//! Serving certificate of the API server. Nodes trust the CA in a ConfigMap only if that CA verifies the certificate: clients that may write
//! ConfigMaps in the operator's namespace must not decide which CA all nodes trust. No host may have a certificate with a name of the API server.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use kube::Config;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use super::ClusterError;

/// Time limit for an answer of the API server.
const LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of names that are read from a certificate. API servers have fewer.
const MAX_NAMES: usize = 200;

/// Fault of a connection to the API server.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("it does not answer in {} s", LIMIT.as_secs())]
    Silent,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("there is no readable CA certificate to verify it")]
    NoCertificate,
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    #[error("its URL has no host name")]
    NoName,
}

impl Fault {
    /// Reports whether the certificates do not verify the API server. Other faults may be temporary.
    fn is_of_certificates(&self) -> bool {
        match self {
            Self::NoCertificate | Self::Tls(_) => true,
            Self::Io(error) => matches!(error.get_ref(), Some(inner) if inner.is::<rustls::Error>()),
            Self::Silent | Self::NoName => false,
        }
    }
}

/// Returns the names and addresses in the API server's certificate, which is verified as for all requests of the operator. The set is empty if the
/// operator reaches the API server without TLS, without its own root certificates, or through a proxy.
pub(super) async fn names(config: &Config) -> Result<BTreeSet<String>, ClusterError> {
    let roots = config.root_cert.iter().flatten().cloned().map(CertificateDer::from).collect::<Vec<_>>();
    if roots.is_empty() || config.cluster_url.scheme_str() != Some("https") || config.proxy_url.is_some() {
        return Ok(BTreeSet::new());
    }
    shown(config, roots).await.map_err(|fault| no_answer(config, &fault))
}

/// Checks that the PEM certificates in `ca` verify the certificate of the API server that answers the operator.
pub(super) async fn prove(config: &Config, ca: &str) -> Result<(), ClusterError> {
    let roots = CertificateDer::pem_slice_iter(ca.as_bytes()).flatten().collect();
    match shown(config, roots).await {
        Ok(_) => Ok(()),
        Err(fault) if fault.is_of_certificates() => {
            Err(ClusterError::Unproven { url: config.cluster_url.to_string(), problem: fault.to_string() })
        }
        Err(fault) => Err(no_answer(config, &fault)),
    }
}

fn no_answer(config: &Config, fault: &Fault) -> ClusterError {
    ClusterError::NoAnswer { url: config.cluster_url.to_string(), problem: fault.to_string() }
}

/// Connects to the API server, trusting only these certificates, and returns the names in its certificate.
async fn shown(config: &Config, roots: Vec<CertificateDer<'_>>) -> Result<BTreeSet<String>, Fault> {
    tokio::time::timeout(LIMIT, connect(config, roots)).await.unwrap_or(Err(Fault::Silent))
}

async fn connect(config: &Config, certificates: Vec<CertificateDer<'_>>) -> Result<BTreeSet<String>, Fault> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates);
    if roots.is_empty() {
        return Err(Fault::NoCertificate);
    }
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let host = config.cluster_url.host().unwrap_or_default().trim_matches(['[', ']']);
    let name = config.tls_server_name.as_deref().unwrap_or(host).to_owned();
    let name = ServerName::try_from(name).map_err(|_| Fault::NoName)?;
    let stream = TcpStream::connect((host, config.cluster_url.port_u16().unwrap_or(443))).await?;
    let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).cloned();
    Ok(certificate.as_ref().map(of_certificate).unwrap_or_default())
}

/// Returns the names and addresses for which a certificate is valid.
fn of_certificate(certificate: &CertificateDer<'_>) -> BTreeSet<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return BTreeSet::new() };
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|names| &names.value.general_names).take(MAX_NAMES);
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            GeneralName::IPAddress(bytes) => address(bytes).map(|ip| ip.to_string()),
            _ => None,
        })
        .collect()
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes).map(IpAddr::from).or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// Starts an API server with its own port and certificate.
    async fn api_server() -> (Config, String) {
        let key = KeyPair::generate().unwrap();
        let names = ["127.0.0.1".to_owned(), "api.example.com".to_owned(), "Kubernetes".to_owned()];
        let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        let tls = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key.serialize_der().try_into().unwrap())
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let acceptor = TlsAcceptor::from(Arc::new(tls));
            while let Ok((stream, _)) = listener.accept().await {
                let _ = acceptor.accept(stream).await;
            }
        });
        (Config::new(url.parse().unwrap()), certificate.pem())
    }

    #[tokio::test]
    async fn a_ca_counts_only_if_it_verifies_the_api_server_that_answers() {
        let ((mut config, own), (_, other)) = tokio::join!(api_server(), api_server());
        // During a rotation, there are two CAs.
        for ca in [own.clone(), format!("{other}{own}")] {
            prove(&config, &ca).await.unwrap();
        }
        for (ca, words) in [
            (other.as_str(), "invalid peer certificate"),
            ("", "no readable CA certificate"),
            ("x", "no readable CA certificate"),
        ] {
            let error = prove(&config, ca).await.unwrap_err();
            assert!(matches!(error, ClusterError::Unproven { .. }) && error.to_string().contains(words), "{error}");
        }
        assert!(names(&config).await.unwrap().is_empty(), "the configuration has no root certificates");
        config.root_cert = Some(CertificateDer::pem_slice_iter(own.as_bytes()).flatten().map(|c| c.to_vec()).collect());
        let known = names(&config).await.unwrap();
        assert_eq!(known, ["127.0.0.1", "api.example.com", "kubernetes"].map(str::to_owned).into());
        // The CA is not at fault if the API server does not answer.
        config.cluster_url = "https://127.0.0.1:1".parse().unwrap();
        for error in [prove(&config, &own).await.unwrap_err(), names(&config).await.unwrap_err()] {
            assert!(matches!(error, ClusterError::NoAnswer { .. }), "{error}");
        }
    }
}
