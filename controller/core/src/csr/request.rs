//! Parser of PKCS #10 requests, which are untrusted.

use std::net::IpAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use x509_parser::{
    certification_request::X509CertificationRequest,
    cri_attributes::ParsedCriAttribute,
    der_parser::asn1_rs::{FromDer as _, Header, Oid, Tag},
    extensions::{GeneralName, ParsedExtension, X509Extension},
    oid_registry::{
        OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_PKCS1_RSAENCRYPTION, OID_X509_COMMON_NAME,
        OID_X509_ORGANIZATION_NAME,
    },
    public_key::PublicKey,
    x509::{SubjectPublicKeyInfo, X509Name},
};

use super::{Fault, quoted};

/// Maximum size of `spec.request`, in bytes. A larger request is not parsed; real ones have well under 2 KiB.
pub const MAX_BYTES: usize = 16 * 1024;

/// Maximum number of names in the subject, and of subject alternative names. A host has a few. Parsed names stay in memory, where a short name takes
/// more space than in the request.
const MAX_NAMES: usize = 100;

const BEGIN: &str = "-----BEGIN CERTIFICATE REQUEST-----";
const END: &str = "-----END CERTIFICATE REQUEST-----";
const MIN_RSA_BITS: usize = 2048;
const MAX_RSA_BITS: usize = 8192;

/// `AlgorithmIdentifier` of ECDSA with SHA-256 and SHA-384 (RFC 5758, 3.2) and of RSA PKCS #1 with SHA-256, SHA-384 and SHA-512 (RFC 4055, 5), in
/// DER. Compared byte by byte, because the signature does not cover them.
const SIGNATURE_ALGORITHMS: [&[u8]; 5] = [
    b"\x30\x0a\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x02",
    b"\x30\x0a\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x03",
    b"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0b\x05\x00",
    b"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0c\x05\x00",
    b"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0d\x05\x00",
];

/// Parsed certificate request: its names as far as they can be read, and its first fault that does not depend on its purpose.
///
/// Parsing never fails: a malformed request that names a host of a pool must still be recognised.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Every common name of the subject, in order.
    pub common_names: Vec<String>,
    /// Every organisation of the subject, in order.
    pub organisations: Vec<String>,
    /// Subject alternative names; `None` without that extension, or if there are more than [`MAX_NAMES`].
    pub(super) alternative_names: Option<Vec<AlternativeName>>,
    /// True if the key usage extension requests more than digital signature and key encipherment.
    pub(super) excess_key_usage: bool,
    /// Purpose in the extended key usage extension; `None` without that extension.
    pub(super) extended_key_usage: Option<ExtendedUsage>,
    /// `SubjectPublicKeyInfo`, DER.
    pub public_key: Vec<u8>,
    /// First fault of the request.
    pub(super) fault: Option<Fault>,
}

/// One entry of the subject alternative names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AlternativeName {
    Dns(String),
    Ip(IpAddr),
    /// An e-mail address, a URI, a malformed address or any other name that no node certificate has.
    Other(String),
}

/// Purpose that the extended key usage extension requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExtendedUsage {
    ClientAuth,
    ServerAuth,
    Other,
}

impl Request {
    /// Reads the PEM of `spec.request`. A panic of the parser becomes a fault of this request, so that it does not stop the approval of others.
    pub fn read(pem: &[u8]) -> Self {
        std::panic::catch_unwind(|| Self::parse(pem)).unwrap_or_else(|_| {
            let mut request = Self::default();
            request.fault("cannot be parsed");
            request
        })
    }

    fn parse(pem: &[u8]) -> Self {
        let mut request = Self::default();
        if pem.len() > MAX_BYTES {
            request.fault(format!("has more than {MAX_BYTES} bytes"));
            return request;
        }
        let Some((der, clean)) = decode_pem(pem) else {
            request.fault("is not a PEM block of type CERTIFICATE REQUEST");
            return request;
        };
        if !clean {
            request.fault("must be exactly one PEM block with nothing around it");
        }
        // The parser below accepts encodings that the signer's parser rejects, and the two must never read different requests.
        if !is_strict_der(&der) {
            request.fault("is not in DER");
        } else if !has_pkcs10_structure(&der) {
            request.fault("does not have the structure of a PKCS #10 certificate request");
        }
        match X509CertificationRequest::from_der(&der) {
            Ok((rest, parsed)) => {
                if !rest.is_empty() {
                    request.fault("has bytes after the request");
                }
                request.fill(&parsed);
            }
            Err(_) => request.fault("is not a PKCS #10 certificate request"),
        }
        request
    }

    fn fill(&mut self, parsed: &X509CertificationRequest<'_>) {
        let info = &parsed.certification_request_info;
        self.public_key = info.subject_pki.raw.to_vec();
        self.read_subject(&info.subject);
        self.check_key(&info.subject_pki);
        let wrapper = Header::from_der(parsed.as_raw()).map(|(content, _)| content).unwrap_or_default();
        let algorithm = wrapper.strip_prefix(info.raw).unwrap_or_default();
        // Only the signature may follow the algorithm.
        let signature = |known: &&[u8]| algorithm.strip_prefix(*known).and_then(elements);
        let is_alone = |signature: Vec<Element<'_>>| matches!(signature.as_slice(), [only] if only.tag == BIT_STRING);
        let modern = SIGNATURE_ALGORITHMS.iter().filter_map(signature).any(is_alone);
        if !modern || parsed.signature_value.unused_bits != 0 || parsed.verify_signature().is_err() {
            self.fault("is not signed by its own key with ECDSA or RSA and SHA-2");
        }
        let mut extension_requests = 0;
        for attribute in info.iter_attributes() {
            match attribute.parsed_attribute() {
                ParsedCriAttribute::ExtensionRequest(wanted) if is_only_value(attribute.value, &wanted.extensions) => {
                    extension_requests += 1;
                    self.read_extensions(&wanted.extensions);
                }
                _ => self.fault(format!("has the attribute {}, which is not allowed", attribute.oid)),
            }
        }
        if extension_requests > 1 {
            self.fault("has more than one list of extensions");
        }
    }

    fn read_subject(&mut self, subject: &X509Name<'_>) {
        for rdn in subject.iter() {
            if rdn.iter().count() != 1 {
                self.fault("has a subject with several values in one part");
            }
            for attribute in rdn.iter() {
                // Programs decode other string types differently, and could read different names.
                if !matches!(attribute.attr_value().tag(), Tag::Utf8String | Tag::PrintableString) {
                    self.fault("has a subject part that is neither a UTF8String nor a PrintableString");
                }
                let oid = attribute.attr_type();
                let (is_common, is_organisation) = (*oid == OID_X509_COMMON_NAME, *oid == OID_X509_ORGANIZATION_NAME);
                if !is_common && !is_organisation {
                    self.fault(format!("has the subject attribute {oid}: only CN and O are allowed"));
                    continue;
                }
                if self.common_names.len() + self.organisations.len() == MAX_NAMES {
                    self.fault(format!("has a subject of more than {MAX_NAMES} names"));
                    return;
                }
                let names = if is_common { &mut self.common_names } else { &mut self.organisations };
                names.push(String::from_utf8_lossy(attribute.attr_value().data).into_owned());
            }
        }
    }

    /// Checks that the key is ECDSA P-256 or P-384, or RSA with 2048 to 8192 bits, as kubelet, `wicd` and their libraries create. None of them
    /// creates Ed25519 keys, and P-521 cannot be verified here, so both are refused.
    fn check_key(&mut self, key: &SubjectPublicKeyInfo<'_>) {
        let algorithm = &key.algorithm.algorithm;
        let curve = || key.algorithm.parameters.as_ref().and_then(|p| Oid::try_from(p.clone()).ok());
        // An uncompressed point is the byte 4 followed by both coordinates: the only form that all programs read in the same way.
        let point = |length: usize| {
            key.subject_public_key.data.first() == Some(&4) && key.subject_public_key.data.len() == length
        };
        let allowed = if *algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY {
            curve().is_some_and(|curve| (curve == OID_EC_P256 && point(65)) || (curve == OID_NIST_EC_P384 && point(97)))
        } else if *algorithm == OID_PKCS1_RSAENCRYPTION {
            match key.parsed() {
                Ok(PublicKey::RSA(rsa)) => (MIN_RSA_BITS..=MAX_RSA_BITS).contains(&bits(rsa.modulus)),
                _ => false,
            }
        } else {
            false
        };
        if !allowed {
            self.fault("must have a key of ECDSA P-256, ECDSA P-384 or RSA with 2048 to 8192 bits");
        }
    }

    fn read_extensions(&mut self, extensions: &[X509Extension<'_>]) {
        for (index, extension) in extensions.iter().enumerate() {
            if extensions[..index].iter().any(|earlier| earlier.oid == extension.oid) {
                self.fault(format!("has the extension {} twice", extension.oid));
            }
            match extension.parsed_extension() {
                ParsedExtension::SubjectAlternativeName(names) if names.general_names.len() > MAX_NAMES => {
                    self.fault(format!("has more than {MAX_NAMES} subject alternative names"));
                }
                ParsedExtension::SubjectAlternativeName(names) => {
                    self.alternative_names =
                        Some(names.general_names.iter().map(AlternativeName::from_general).collect());
                }
                ParsedExtension::KeyUsage(usage) => {
                    // Bit 0 is digitalSignature, bit 2 keyEncipherment (RFC 5280, 4.2.1.3).
                    self.excess_key_usage |= usage.flags & !0b101 != 0;
                }
                ParsedExtension::ExtendedKeyUsage(usage) => {
                    let others = usage.any
                        || usage.code_signing
                        || usage.email_protection
                        || usage.time_stamping
                        || usage.ocsp_signing
                        || !usage.other.is_empty();
                    self.extended_key_usage = Some(match (usage.client_auth, usage.server_auth, others) {
                        (true, false, false) => ExtendedUsage::ClientAuth,
                        (false, true, false) => ExtendedUsage::ServerAuth,
                        _ => ExtendedUsage::Other,
                    });
                }
                ParsedExtension::BasicConstraints(constraints) if constraints.ca => {
                    self.fault("requests a CA certificate, which is not allowed");
                }
                _ => self.fault(format!("requests the extension {}, which is not allowed", extension.oid)),
            }
        }
    }

    fn fault(&mut self, what: impl AsRef<str>) {
        self.fault.get_or_insert_with(|| Fault::denied(format!("the certificate request {}", what.as_ref())));
    }
}

impl AlternativeName {
    fn from_general(name: &GeneralName<'_>) -> Self {
        match name {
            GeneralName::DNSName(name) => Self::Dns((*name).to_owned()),
            GeneralName::IPAddress(bytes) => match (<[u8; 4]>::try_from(*bytes), <[u8; 16]>::try_from(*bytes)) {
                (Ok(v4), _) => Self::Ip(v4.into()),
                (_, Ok(v6)) => Self::Ip(v6.into()),
                _ => Self::Other("a malformed IP address".into()),
            },
            GeneralName::RFC822Name(name) => Self::Other(format!("the e-mail address {}", quoted(name))),
            GeneralName::URI(name) => Self::Other(format!("the URI {}", quoted(name))),
            _ => Self::Other("a name that is neither DNS nor IP".into()),
        }
    }
}

/// Decodes the first PEM block of type `CERTIFICATE REQUEST` in `pem`. Returns its content, and true if the text has nothing but this block and white
/// space after it.
///
/// Returns `None` if there is no such block, or its content cannot be decoded.
fn decode_pem(pem: &[u8]) -> Option<(Vec<u8>, bool)> {
    let text = String::from_utf8_lossy(pem);
    let (before, rest) = text.split_once(BEGIN)?;
    let (body, after) = rest.split_once(END)?;
    let compact: String = body.split_ascii_whitespace().collect();
    let clean = before.is_empty() && after.trim_ascii().is_empty();
    Some((STANDARD.decode(compact).ok()?, clean))
}

const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;

/// One DER element.
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
}

/// Splits `bytes` into DER elements with definite, shortest-form lengths below 64 KiB; `None` if they have another structure.
fn elements(mut bytes: &[u8]) -> Option<Vec<Element<'_>>> {
    let mut found = Vec::new();
    while let [tag, first, rest @ ..] = bytes {
        let (length, rest) = match *first {
            short @ 0..=0x7f => (usize::from(short), rest),
            0x81 if rest.first().is_some_and(|length| *length > 0x7f) => (usize::from(rest[0]), &rest[1..]),
            0x82 if rest.len() > 1 && rest[0] > 0 => (usize::from(u16::from_be_bytes([rest[0], rest[1]])), &rest[2..]),
            _ => return None,
        };
        let (content, after) = rest.split_at_checked(length)?;
        found.push(Element { tag: *tag, content });
        bytes = after;
    }
    bytes.is_empty().then_some(found)
}

/// Reports whether `bytes` are valid DER in tags and lengths: definite, shortest-form lengths, only universal tags and `[0]`, and constructed
/// encoding where DER requires it. The content of an OCTET STRING or BIT STRING is not checked.
fn is_strict_der(bytes: &[u8]) -> bool {
    elements(bytes).is_some_and(|all| {
        all.iter().all(|element| match element.tag {
            0x30 | 0x31 | 0xa0 => is_strict_der(element.content),
            0x01..=0x0f | 0x12..=0x1e => true,
            _ => false,
        })
    })
}

/// Reports whether a request, its signed part and its key have exactly the parts that RFC 2986 defines. Some parsers ignore additional parts.
fn has_pkcs10_structure(request: &[u8]) -> bool {
    fn parts<'a>(element: &Element<'a>, tags: &[u8]) -> Option<Vec<Element<'a>>> {
        let found = elements(element.content).filter(|_| element.tag == SEQUENCE)?;
        found.iter().map(|part| part.tag).eq(tags.iter().copied()).then_some(found)
    }
    let check = || {
        let [request]: [Element<'_>; 1] = elements(request)?.try_into().ok()?;
        let whole = parts(&request, &[SEQUENCE, SEQUENCE, BIT_STRING])?;
        let info = parts(&whole[0], &[0x02, SEQUENCE, SEQUENCE, 0xa0])?;
        let key = parts(&info[2], &[SEQUENCE, BIT_STRING])?;
        (1..=2).contains(&elements(key[0].content)?.len()).then_some(())
    };
    check().is_some()
}

/// Reports whether a list of extensions is not empty, and is the only value in the attribute's SET. This parser would not see a second value, but the
/// signer might.
fn is_only_value(set: &[u8], extensions: &[X509Extension<'_>]) -> bool {
    let Ok((content, header)) = Header::from_der(set) else { return false };
    // The parser drops unconsumed bytes from `set`, so with a second value, the length in the header exceeds the content.
    header.length().definite() == Ok(content.len()) && !extensions.is_empty()
}

/// Returns the number of bits of an unsigned big-endian integer, without leading zeros.
fn bits(integer: &[u8]) -> usize {
    let digits = integer.iter().skip_while(|byte| **byte == 0).count();
    let first = integer.iter().find(|byte| **byte != 0).copied().unwrap_or(0);
    (digits * 8).saturating_sub(first.leading_zeros() as usize * usize::from(digits > 0))
}
