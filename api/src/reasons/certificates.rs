//! Reasons about certificates.

use super::{Section, row};

const RETRIED: &str = "No action is needed: the operator retries.";
/// What a request asks for that its host must not get.
const TAMPERED: &str = "If the request is not yours, check the host that it names.";

pub(super) const ISSUING: Section = Section {
    title: "A host: certificates",
    place: "See [a host](#a-host). A reason of [denied requests](#denied-certificate-requests) means that the host's own request is wrong: check \
            whether another program changed the host.",
    reasons: &[
        row(
            "CertificateRequestFailed",
            "The API server refused the request or did not answer.",
            "Check the API server and the operator's rights.",
        ),
        row(
            "CertificateRequestReplaced",
            "A client deleted the request and created another under its name during the approval. The operator did not approve that one.",
            "Find the clients that may create and delete certificate requests.",
        ),
        row("CertificateRequestNameTaken", "A request of that name has other content.", "Delete it."),
        row(
            "CertificateDenied",
            "A client denied the request, or the signer failed.",
            "Follow the output of `kubectl describe csr`.",
        ),
        row(
            "CertificateNotIssued",
            "The request is approved, and no signer issued the certificate within a minute.",
            "Check that the signers of kube-controller-manager run.",
        ),
        row(
            "WrongCertificate",
            "The signer issued another certificate than requested.",
            "Check the signer of the cluster.",
        ),
        row("IdentityUnknown", "The API server does not return the operator's user name.", "Check the API server."),
        row("HostNotProven", "The host was not proven before its request arrived.", RETRIED),
    ],
};

pub(super) const DENIED: Section = Section {
    title: "Denied certificate requests",
    place: "They appear in the condition `Denied` of the request (`kubectl describe csr`), in its events, and in the metric \
            `windows_node_pool_csr_verdicts_total`. For one requester at most ten requests are denied in a minute, and for one host at most ten are approved. The others \
            follow, and the log has `too many certificate requests of one requester`.",
    reasons: &[
        row("UnknownHost", "No pool has a host of that name.", "Add the host to a pool first."),
        row("WrongRequester", "The user must not request this certificate.", TAMPERED),
        row("HostLeaves", "The host is being removed and has no pods left.", "No action is needed."),
        row("WrongSubject", "The common name is not exactly that of the host.", TAMPERED),
        row("WrongOrganisation", "The organisation is not exactly that of the kind of certificate.", TAMPERED),
        row("WrongSigner", "The signer does not issue certificates of Windows hosts.", TAMPERED),
        row("WrongUsages", "The request has other usages than its kind of certificate.", TAMPERED),
        row("LifetimeTooLong", "The request names no lifetime, or a longer one than allowed.", TAMPERED),
        row("WrongNames", "The request has names that its kind of certificate must not have, or lacks them.", TAMPERED),
        row("ForeignName", "The request has a name or an address that is not proven to be the host's.", TAMPERED),
        row("KeyNotAllowed", "The key is weak or of a type that is not allowed.", TAMPERED),
        row("BadSignature", "The request is not signed by its own key.", TAMPERED),
        row("BadEncoding", "The request cannot be read.", TAMPERED),
        row("TooLarge", "The request is larger than a request is.", TAMPERED),
        row("UnexpectedAttribute", "The request has an attribute that is not allowed.", TAMPERED),
        row("UnexpectedExtension", "The request has an extension that is not allowed.", TAMPERED),
    ],
};
