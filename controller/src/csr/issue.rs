//! Certificate requests that the operator itself posts, for a host whose identity it has just proven over SSH.

use std::time::Duration;

use api::Reason;
use k8s_openapi::{
    ByteString,
    api::{
        authentication::v1::SelfSubjectReview,
        certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
    },
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ObjectMeta, PostParams},
};
use sha2::{Digest as _, Sha256};
use x509_parser::pem::Pem;

use super::{Claim, Issuing, Kind, Outstanding, Verdict, approver::decide, verdict};
use crate::runtime::{clock, errors::api_message};
use wnp_core::csr::{is_decided, request::Request};

/// Time limit for a signer. kube-controller-manager takes milliseconds.
const ISSUE_TIMEOUT: Duration = Duration::from_mins(1);
/// Delay between the approval and the first check for the certificate. Doubles with each check, up to [`LONGEST_LOOK`].
const FIRST_LOOK: Duration = Duration::from_millis(50);
/// Maximum delay between two checks for the certificate.
const LONGEST_LOOK: Duration = Duration::from_secs(2);
/// Maximum number of attempts to approve an object that other clients change.
const APPROVAL_ATTEMPTS: usize = 5;
/// Placeholder for the operator's user name in the check before posting. The API server sets the real one.
const OPERATOR: &str = "the operator";

/// Error of a certificate request of the operator.
#[derive(Debug, thiserror::Error)]
pub enum CsrError {
    /// The verdict on the host's request is not an approval, for example because the request names another host.
    #[error("the operator did not approve the certificate request that the host sent over SSH: {message}")]
    Refused {
        /// Reason of the verdict.
        reason: Reason,
        /// Fault of the request.
        message: String,
    },
    /// The API server refused the request, or did not answer.
    #[error("failed to {doing} certificate request {name}: {}; check the API server and the operator's rights", api_message(.source))]
    Api {
        /// Action that failed.
        doing: &'static str,
        /// Name of the `CertificateSigningRequest`.
        name: String,
        /// Error of the API server.
        #[source]
        source: Box<kube::Error>,
    },
    /// An object with the name of the request exists with other content.
    #[error(
        "the host gets no certificate, because a certificate request {name} with other content exists. Delete it (kubectl delete csr \
         {name}), and the operator retries"
    )]
    NameTaken {
        /// Name of the `CertificateSigningRequest`.
        name: String,
    },
    /// The object was replaced before its certificate was issued.
    #[error(
        "certificate request {name} was deleted and created again before its certificate was issued, and the operator does not use the new one. The \
         operator retries; if this happens again, find the client that deletes and creates certificate requests"
    )]
    Replaced {
        /// Name of the `CertificateSigningRequest`.
        name: String,
    },
    /// The request was deleted before its certificate was issued.
    #[error(
        "certificate request {name} was deleted before its certificate was issued. The operator retries; if this happens again, find the client that \
         deletes certificate requests"
    )]
    Deleted {
        /// Name of the `CertificateSigningRequest`.
        name: String,
    },
    /// A client denied the request, or the signer failed it.
    #[error(
        "certificate request {name} has been denied or has failed: {message}. Find the client that denied it, or check the signers of \
         kube-controller-manager. Then delete the request, so that the operator makes it again: kubectl delete csr {name}"
    )]
    NotIssued {
        /// Name of the `CertificateSigningRequest`.
        name: String,
        /// Message of the request's conditions.
        message: String,
    },
    /// The request is approved, but no signer has issued the certificate in time.
    #[error(
        "certificate request {name} is approved but not issued after a minute; the operator retries. Check that the signers of kube-controller-manager run"
    )]
    TimedOut {
        /// Name of the `CertificateSigningRequest`.
        name: String,
    },
    /// The signer issued a certificate that does not match the request, or that cannot be used.
    #[error(
        "the operator does not use the certificate issued for certificate request {name}, because it {what}: check the signer of this cluster. Then \
         delete the request, so that the operator makes it again: kubectl delete csr {name}"
    )]
    WrongCertificate {
        /// Name of the `CertificateSigningRequest`.
        name: String,
        /// Fault of the certificate.
        what: &'static str,
    },
    /// The API server did not return the operator's user name.
    #[error(
        "failed to get the operator's own user name: {}; check the API server",
        .0.as_ref().map_or_else(|| "the SelfSubjectReview has none".into(), |error| api_message(error))
    )]
    Identity(#[source] Option<Box<kube::Error>>),
}

impl CsrError {
    /// Returns the stable reason for conditions and events.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Refused { reason, .. } => *reason,
            Self::Api { .. } | Self::Identity(_) => Reason::ApiError,
            Self::NameTaken { .. }
            | Self::Replaced { .. }
            | Self::Deleted { .. }
            | Self::NotIssued { .. }
            | Self::TimedOut { .. }
            | Self::WrongCertificate { .. } => Reason::CertificateNotIssued,
        }
    }
}

/// Returns the operator's user name on the API server.
///
/// # Errors
/// [`CsrError::Identity`] when the API server does not answer, or returns no user name.
pub async fn operator_user(client: &Client) -> Result<String, CsrError> {
    let review = Api::all(client.clone()).create(&PostParams::default(), &SelfSubjectReview::default()).await;
    let review = review.map_err(|error| CsrError::Identity(Some(Box::new(error))))?;
    let user = review.status.and_then(|status| status.user_info).and_then(|info| info.username);
    user.filter(|user| !user.is_empty()).ok_or(CsrError::Identity(None))
}

/// Gets a certificate for the request that a host sent over SSH, and returns the certificate and its chain as PEM.
///
/// The request is evaluated like any other before it is posted. The approver of this process skips requests in `issuing`. A repeated call with the
/// same request finds the same object and certificate. Nothing is deleted: the cluster removes an approved object after an hour.
///
/// # Errors
/// [`CsrError::Refused`] when the verdict on the request is not an approval for this host and `kind`. [`CsrError::Api`] when the API server refuses a
/// call or does not answer. [`CsrError::NameTaken`] when an object with the name exists and has other content. [`CsrError::Replaced`] when another
/// object replaces the request. [`CsrError::NotIssued`] when the request is denied or has failed, and [`CsrError::Deleted`] when it is deleted.
/// [`CsrError::TimedOut`] when no signer issues the certificate within a minute. [`CsrError::WrongCertificate`] when the certificate is not for the
/// key and subject of the request, is a CA certificate, or has expired.
pub async fn request_and_sign(
    client: Client,
    claim: &Claim,
    kind: Kind,
    csr_pem: &str,
    expiration: Duration,
    issuing: &Issuing,
) -> Result<String, CsrError> {
    let wanted = build(claim, kind, csr_pem, expiration)?;
    let name = wanted.metadata.name.clone().unwrap_or_default();
    // Registered before the approver can see the request.
    let _registered = issuing.begin(name.clone());
    let failed = |doing| {
        let name = name.clone();
        move |error: kube::Error| CsrError::Api { doing, name, source: Box::new(error) }
    };
    let api: Api<CertificateSigningRequest> = Api::all(client);

    let mut csr = match api.create(&PostParams::default(), &wanted).await {
        Ok(created) => created,
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let existing = api.get(&name).await.map_err(failed("read"))?;
            if !asks_the_same(&existing.spec, &wanted.spec) {
                return Err(CsrError::NameTaken { name });
            }
            existing
        }
        Err(error) => return Err(failed("create")(error)),
    };

    for attempt in 1.. {
        if is_decided(&csr) {
            break;
        }
        csr = match decide(&api, &csr, &Verdict::Approve(kind)).await {
            Ok(approved) => {
                issuing.decided(approved.uid().unwrap_or_default(), std::time::Instant::now());
                approved
            }
            // Another client, or the approver of this operator, has changed the request first.
            Err(kube::Error::Api(status)) if status.is_conflict() && attempt < APPROVAL_ATTEMPTS => {
                let now = api.get(&name).await.map_err(failed("read"))?;
                // Only the evaluated request may be approved: another object with this name may request anything.
                if now.uid() != csr.uid() || !asks_the_same(&now.spec, &wanted.spec) {
                    return Err(CsrError::Replaced { name });
                }
                now
            }
            Err(error) => return Err(failed("approve")(error)),
        };
    }

    let uid = csr.uid();
    let issued = tokio::time::timeout(ISSUE_TIMEOUT, ended(&api, &name)).await;
    let issued = issued.map_err(|_| CsrError::TimedOut { name: name.clone() })?.map_err(failed("read"))?;
    let Some(issued) = issued else {
        return Err(CsrError::Deleted { name });
    };
    if issued.uid() != uid {
        return Err(CsrError::Replaced { name });
    }
    if let Some(message) = refusal(&issued) {
        return Err(CsrError::NotIssued { name, message });
    }
    let chain = certificate(&issued).unwrap_or_default();
    match check_certificate(chain, &Request::read(csr_pem.as_bytes()), clock::now().as_second()) {
        Ok(()) => Ok(String::from_utf8_lossy(chain).into_owned()),
        Err(what) => Err(CsrError::WrongCertificate { name, what }),
    }
}

/// Waits until the request is issued or refused, and returns it, or `None` if it is deleted. Polls, because each watch would cost a list and a
/// connection, and signers take milliseconds.
async fn ended(api: &Api<CertificateSigningRequest>, name: &str) -> kube::Result<Option<CertificateSigningRequest>> {
    let mut pause = FIRST_LOOK;
    loop {
        tokio::time::sleep(pause).await;
        let Some(csr) = api.get_opt(name).await? else { return Ok(None) };
        if certificate(&csr).is_some() || refusal(&csr).is_some() {
            return Ok(Some(csr));
        }
        pause = (pause * 2).min(LONGEST_LOOK);
    }
}

/// Returns the object to post. Fails with [`CsrError::Refused`] unless the verdict on it is an approval for `kind`.
fn build(
    claim: &Claim,
    kind: Kind,
    csr_pem: &str,
    expiration: Duration,
) -> Result<CertificateSigningRequest, CsrError> {
    let request = Request::read(csr_pem.as_bytes());
    let hash = hex::encode(&Sha256::digest(&request.public_key)[..8]);
    let mut csr = CertificateSigningRequest {
        metadata: ObjectMeta {
            name: Some(format!("{}-{}-{hash}", kind.as_str(), claim.node_name)),
            ..Default::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(csr_pem.as_bytes().to_vec()),
            signer_name: kind.signer_name().into(),
            usages: Some(vec!["digital signature".into(), kind.purpose().into()]),
            expiration_seconds: Some(i32::try_from(expiration.as_secs()).unwrap_or(i32::MAX)),
            username: Some(OPERATOR.into()),
            ..Default::default()
        },
        status: None,
    };
    let known = |node: &str| (node == claim.node_name).then(|| claim.clone());
    match verdict(&csr, &request, &known, &Outstanding::default(), OPERATOR) {
        Verdict::Approve(found) if found == kind => {
            csr.spec.username = None;
            Ok(csr)
        }
        Verdict::Deny { reason, message } => Err(CsrError::Refused { reason, message }),
        Verdict::Wait { message, .. } => Err(CsrError::Refused { reason: Reason::CertificateNotIssued, message }),
        Verdict::NotOurs | Verdict::Queue { .. } | Verdict::Approve(_) => {
            let message = format!(
                "it is not a {} request of the node {}; if this happens again, check whether another program changes files in C:\\k\\wicd on the host",
                kind.as_str(),
                claim.node_name
            );
            Err(CsrError::Refused { reason: Reason::RequestDenied, message })
        }
    }
}

/// Reports whether two requests have the same content, compared after parsing. ECDSA signatures are random: a host that repeats a request for the
/// same key sends another text.
fn asks_the_same(a: &CertificateSigningRequestSpec, b: &CertificateSigningRequestSpec) -> bool {
    (&a.signer_name, &a.usages, a.expiration_seconds) == (&b.signer_name, &b.usages, b.expiration_seconds)
        && Request::read(&a.request.0) == Request::read(&b.request.0)
}

fn certificate(csr: &CertificateSigningRequest) -> Option<&[u8]> {
    csr.status.as_ref()?.certificate.as_ref().map(|pem| pem.0.as_slice()).filter(|pem| !pem.is_empty())
}

/// Returns the message of the condition that ended the request without a certificate.
fn refusal(csr: &CertificateSigningRequest) -> Option<String> {
    let conditions = csr.status.as_ref()?.conditions.as_ref()?;
    let ended = conditions.iter().find(|c| ["Denied", "Failed"].contains(&c.type_.as_str()))?;
    let part = |text: &Option<String>| text.clone().unwrap_or_default();
    Some(format!("{} {}: {}", ended.type_, part(&ended.reason), part(&ended.message)))
}

/// Checks that the first certificate of `chain` is for the key and subject of `request`, is not a CA certificate, and has not expired at `now`
/// (seconds since 1970).
fn check_certificate(chain: &[u8], request: &Request, now: i64) -> Result<(), &'static str> {
    let Some(Ok(pem)) = Pem::iter_from_buffer(chain).next() else { return Err("is not PEM") };
    let Ok(certificate) = pem.parse_x509() else { return Err("is not an X.509 certificate") };
    let texts = |attributes: Vec<&[u8]>| attributes.into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>();
    let subject = certificate.subject();
    let names = texts(subject.iter_common_name().map(|a| a.attr_value().data).collect());
    let organisations = texts(subject.iter_organization().map(|a| a.attr_value().data).collect());
    let same =
        |found: &[Vec<u8>], asked: &[String]| found.iter().map(Vec::as_slice).eq(asked.iter().map(String::as_bytes));
    let validity = certificate.validity();
    if certificate.public_key().raw != request.public_key {
        Err("is for another key")
    } else if !same(&names, &request.common_names)
        || !same(&organisations, &request.organisations)
        || subject.iter_attributes().count() != names.len() + organisations.len()
    {
        Err("is for another subject")
    } else if certificate.is_ca() {
        Err("is for a certificate authority")
    } else if validity.not_after.timestamp() <= now {
        Err("has expired")
    } else {
        Ok(())
    }
}
