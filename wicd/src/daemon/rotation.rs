//! Renews wicd's own certificate in time.
//!
//! Key and request are created here, and the key never leaves the host. An expired certificate cannot request a new one: the services then
//! continue, and the operator delivers a new certificate over SSH.

use api::Reason;
use std::sync::Arc;
use std::time::Duration;

use api::host::{CertificateKind, Desired, WICD_CERTIFICATE_LIFE, path};
use rcgen::KeyPair;
use sha2::{Digest, Sha256};
use tokio::{sync::watch, time::Instant};
use tracing::{error, info, warn};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use super::chain;
use super::cluster::{Cluster, ClusterError, Connect, Issue};
use crate::certificates::{self, CertificateError};
use crate::files;
use crate::host::{Host, HostError};
use crate::operation::{SETTINGS, Settings};

/// Interval between checks of the certificate. A timer is not enough: the operator may replace the certificate, and clocks may change.
const LOOK: Duration = Duration::from_secs(30);
/// Interval between queries for a requested certificate.
const POLL: Duration = Duration::from_secs(5);
/// Time after which an unanswered request is abandoned.
const PATIENCE: Duration = Duration::from_mins(15);
/// Delay after the first failure. It doubles with each consecutive failure.
const FIRST_RETRY: Duration = Duration::from_secs(30);
/// Maximum delay after a failure.
const MAX_RETRY: Duration = Duration::from_mins(10);

/// Failure to renew wicd's certificate.
#[derive(Debug, thiserror::Error)]
pub enum RotationError {
    /// The certificate was not issued in time.
    #[error(
        "the certificate request {0} was not answered within {minutes} minutes; check that the operator runs, and see the request: kubectl \
         describe csr {0}",
        minutes = PATIENCE.as_secs() / 60
    )]
    Unanswered(String),
    /// The certificate request was denied, has failed or was deleted.
    #[error("the certificate request {request} was refused ({why}); wicd creates another one")]
    Refused {
        /// Name of the request.
        request: String,
        /// Reason for the refusal.
        why: String,
    },
    /// The issued certificate does not match the key of the request.
    #[error("the issued certificate does not match the key of the request; wicd creates another request")]
    Mismatch,
    /// A key or a certificate request could not be created.
    #[error("cannot create a private key or a certificate request")]
    Crypto(#[from] rcgen::Error),
    /// The issued text is not a certificate.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The API server cannot be used.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// An operation on the host failed.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl RotationError {
    /// Reason for logs.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Unanswered(_) | Self::Refused { .. } => Reason::CertificateNotIssued,
            Self::Mismatch | Self::Crypto(_) => Reason::CertificateInvalid,
            Self::Certificate(e) => e.reason(),
            Self::Cluster(e) => e.reason(),
            Self::Host(e) => e.reason(),
        }
    }
}

/// Data of the current certificate for its renewal. Times are Unix seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Current {
    not_before: i64,
    not_after: i64,
    /// Number that distinguishes the certificate from others.
    seed: u64,
}

/// State of the certificate's renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// Renewal is not due yet.
    Later,
    /// Renewal is due.
    Now,
    /// The certificate has expired.
    Over,
}

impl Current {
    fn read(pem: &[u8]) -> Option<Self> {
        let der = certificates::bundle(pem).ok()?.into_iter().next()?;
        let (_, leaf) = X509Certificate::from_der(&der).ok()?;
        let seed = Sha256::digest(&der).iter().take(8).fold(0, |seed, &b| seed << 8 | u64::from(b));
        let validity = leaf.validity();
        Some(Self { not_before: validity.not_before.timestamp(), not_after: validity.not_after.timestamp(), seed })
    }

    /// Returns the time to renew the certificate: after 20 to 40 % of its lifetime, spread evenly over many hosts. A host may be switched off
    /// for the rest of the lifetime.
    fn renew_at(self) -> i64 {
        let life = self.not_after.saturating_sub(self.not_before).max(0);
        let permille = 200 + i64::try_from(self.seed % 201).unwrap_or(0);
        self.not_before + i64::try_from(i128::from(life) * i128::from(permille) / 1000).unwrap_or(0)
    }

    fn due(self, now: i64) -> Due {
        if now >= self.not_after {
            Due::Over
        } else if now >= self.renew_at() {
            Due::Now
        } else {
            Due::Later
        }
    }
}

/// Returns the delay after a failed attempt. `failures` is the number of consecutive failures before that attempt.
fn retry_after(failures: u32) -> Duration {
    FIRST_RETRY.saturating_mul(1 << failures.min(8)).min(MAX_RETRY)
}

/// Renews the certificate forever, and notifies `changed` of every new certificate, from any source.
pub async fn rotate(host: Arc<dyn Host>, connect: Arc<dyn Connect>, changed: watch::Sender<u64>) {
    let (mut next, mut failures, mut told_over) = (Instant::now(), 0_u32, None);
    loop {
        let pem = files::read(&*host, path::WICD_CERT).ok().flatten().unwrap_or_default();
        if let Some(current) = Current::read(&pem) {
            if changed.send_if_modified(|seed| std::mem::replace(seed, current.seed) != current.seed) {
                (next, failures) = (Instant::now(), 0);
            }
            let now = jiff::Timestamp::now().as_second();
            match current.due(now) {
                Due::Over if told_over != Some(current.seed) => {
                    error!(
                        "wicd's certificate has expired; the services continue to run, and the operator delivers a new certificate over SSH"
                    );
                    told_over = Some(current.seed);
                }
                Due::Now if Instant::now() >= next => match renew(&host, &*connect).await {
                    Ok(true) => {
                        info!("wicd's certificate has been renewed");
                        continue;
                    }
                    Ok(false) => {}
                    Err(e) => {
                        warn!(
                            reason = e.reason().as_str(),
                            "wicd's certificate was not renewed, and wicd tries again: {}",
                            chain(&e)
                        );
                        next = Instant::now() + retry_after(failures);
                        failures = failures.saturating_add(1);
                    }
                },
                _ => {}
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Renews the certificate. Returns false if the host has no desired state, as during a removal.
async fn renew(host: &Arc<dyn Host>, connect: &dyn Connect) -> Result<bool, RotationError> {
    let Some(desired) = files::read_json::<Desired>(&**host, path::DESIRED)? else { return Ok(false) };
    let settings: Option<Settings> = files::read_json(&**host, SETTINGS)?;
    let seconds = settings
        .map_or_else(|| i32::try_from(WICD_CERTIFICATE_LIFE.as_secs()).unwrap_or(i32::MAX), |s| s.certificate_seconds);
    let key = KeyPair::generate()?;
    let request = certificates::request_for(&key, CertificateKind::Wicd, &desired.node_name)?;
    let cluster = connect.connect().await?;
    let issued = obtain(&*cluster, request, seconds).await?;
    let pem = certificates::joined(&issued, &key)?.ok_or(RotationError::Mismatch)?;
    certificates::install_wicd(&**host, pem.as_bytes(), jiff::Timestamp::now().as_second())?;
    if let Err(error) = certificates::prune_overlay(&**host) {
        warn!(
            "cannot remove earlier certificates of hybrid-overlay-node, which nothing uses; wicd tries again at its next renewal: {}",
            chain(&error)
        );
    }
    Ok(true)
}

/// Requests a certificate and waits for it.
async fn obtain(cluster: &dyn Cluster, request: String, seconds: i32) -> Result<String, RotationError> {
    let name = cluster.request_certificate(request, seconds).await?;
    info!(request = name, "requested a new certificate");
    let wait = async {
        loop {
            match cluster.certificate(&name).await {
                Ok(Issue::Issued(chain)) => return Ok(chain),
                Ok(Issue::Refused(why)) => return Err(RotationError::Refused { request: name.clone(), why }),
                Ok(Issue::Pending) => {}
                // The certificate can still be read when the API server is available again.
                Err(e) => warn!(reason = e.reason().as_str(), "{}; wicd tries again", chain(&e)),
            }
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| Err(RotationError::Unanswered(name.clone())))
}

#[cfg(test)]
#[path = "rotation_tests.rs"]
mod tests;
