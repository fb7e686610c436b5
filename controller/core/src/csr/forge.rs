//! Certificate requests as an attacker would make them: with any subject and attribute, and with a valid signature unless a test breaks it.
//!
//! Libraries refuse to create most of these, so the DER is encoded here. Shared with the controller's unit and integration tests.

use std::net::IpAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::{KeyPair, PublicKeyData as _, SigningKey as _};

// Object identifiers of subject attributes, extensions and algorithms, as the content of a DER element, and tags of string types.
pub(crate) const CN: &[u8] = &[0x55, 4, 3];
pub(crate) const O: &[u8] = &[0x55, 4, 10];
pub(crate) const OU: &[u8] = &[0x55, 4, 11];
pub(crate) const SAN: &[u8] = &[0x55, 0x1d, 17];
pub(crate) const KEY_USAGE: &[u8] = &[0x55, 0x1d, 15];
pub(crate) const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 37];
pub(crate) const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 19];
pub(crate) const NAME_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 30];
pub(crate) const UTF8: u8 = 0x0c;
pub(crate) const BMP: u8 = 0x1e;
const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 14];
const CHALLENGE_PASSWORD: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 7];
const ECDSA_WITH_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
const ECDSA_WITH_SHA384: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3];
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];

/// Encodes one DER element.
pub(crate) fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut out = vec![tag];
    match content.len() {
        short @ 0..=0x7f => out.push(u8::try_from(short).unwrap()),
        long => {
            let bytes = long.to_be_bytes();
            let first = bytes.iter().position(|b| *b != 0).unwrap_or(0);
            out.push(0x80 | u8::try_from(bytes.len() - first).unwrap());
            out.extend_from_slice(&bytes[first..]);
        }
    }
    out.extend(content);
    out
}

/// Encodes an `AttributeTypeAndValue`.
pub(crate) fn attribute(oid: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
    der(0x30, &[&der(6, &[oid]), &der(tag, &[value])])
}

/// One entry of the subject alternative names.
pub(crate) enum Name<'a> {
    Dns(&'a str),
    Ip(&'a str),
    Email(&'a str),
    Uri(&'a str),
    RawIp(&'a [u8]),
}

/// Builder of a certificate request.
pub(crate) struct Forged {
    /// Relative distinguished names of the subject, one in each inner list.
    pub subject: Vec<Vec<Vec<u8>>>,
    pub extensions: Vec<Vec<u8>>,
    /// Attributes other than the one that holds the extensions.
    pub attributes: Vec<Vec<u8>>,
    /// Additional elements of the signed part.
    pub more: Vec<u8>,
    /// True if the key is written as a compressed point.
    pub compressed: bool,
    pub key: KeyPair,
}

impl Forged {
    /// Creates a request for a subject, with a new ECDSA P-256 key.
    pub(crate) fn new(common_name: &str, organisations: &[&str]) -> Self {
        let mut subject: Vec<_> = organisations.iter().map(|o| vec![attribute(O, UTF8, o.as_bytes())]).collect();
        subject.push(vec![attribute(CN, UTF8, common_name.as_bytes())]);
        Self {
            subject,
            extensions: vec![],
            attributes: vec![],
            more: vec![],
            compressed: false,
            key: KeyPair::generate().unwrap(),
        }
    }

    /// Replaces the key by a new one for this algorithm.
    pub(crate) fn key(mut self, algorithm: &'static rcgen::SignatureAlgorithm) -> Self {
        self.key = KeyPair::generate_for(algorithm).unwrap();
        self
    }

    /// Adds an attribute to the subject, as a relative distinguished name of its own.
    pub(crate) fn also(mut self, oid: &[u8], tag: u8, value: &[u8]) -> Self {
        self.subject.push(vec![attribute(oid, tag, value)]);
        self
    }

    /// Adds an extension to the requested ones.
    pub(crate) fn extension(mut self, oid: &[u8], value: &[u8]) -> Self {
        self.extensions.push(extension(oid, value));
        self
    }

    /// Adds the extension with subject alternative names.
    pub(crate) fn names(self, names: &[Name<'_>]) -> Self {
        let entries: Vec<Vec<u8>> = names
            .iter()
            .map(|name| match name {
                Name::Email(text) => der(0x81, &[text.as_bytes()]),
                Name::Dns(text) => der(0x82, &[text.as_bytes()]),
                Name::Uri(text) => der(0x86, &[text.as_bytes()]),
                Name::RawIp(bytes) => der(0x87, &[bytes]),
                Name::Ip(text) => match text.parse().unwrap() {
                    IpAddr::V4(ip) => der(0x87, &[&ip.octets()]),
                    IpAddr::V6(ip) => der(0x87, &[&ip.octets()]),
                },
            })
            .collect();
        self.extension(SAN, &der(0x30, &[&entries.concat()]))
    }

    /// Adds an element to the signed part.
    pub(crate) fn part(mut self, part: &[u8]) -> Self {
        self.more.extend(part);
        self
    }

    /// Returns the content of a DER element.
    pub(crate) fn content_of(element: &[u8]) -> &[u8] {
        let long = usize::from(element[1]).saturating_sub(0x80);
        &element[2 + long..]
    }

    /// Adds the attribute with a challenge password.
    pub(crate) fn challenge_password(mut self) -> Self {
        let set = der(0x31, &[&der(UTF8, &[b"secret"])]);
        self.attributes.push(der(0x30, &[&der(6, &[CHALLENGE_PASSWORD]), &set]));
        self
    }

    /// Adds a second attribute with a list of extensions: programs differ in which of the two they read.
    pub(crate) fn second_list(mut self, oid: &[u8], value: &[u8]) -> Self {
        let list = der(0x30, &[&extension(oid, value)]);
        self.attributes.push(der(0x30, &[&der(6, &[EXTENSION_REQUEST]), &der(0x31, &[&list])]));
        self
    }

    /// Adds a second list of extensions within the same attribute.
    pub(crate) fn second_value(mut self, oid: &[u8], value: &[u8]) -> Self {
        let first = der(0x30, &[&std::mem::take(&mut self.extensions).concat()]);
        let second = der(0x30, &[&extension(oid, value)]);
        self.attributes.push(der(0x30, &[&der(6, &[EXTENSION_REQUEST]), &der(0x31, &[&first, &second])]));
        self
    }

    /// Writes the public key as a compressed point.
    pub(crate) fn compressed(mut self) -> Self {
        self.compressed = true;
        self
    }

    /// Returns the `SubjectPublicKeyInfo` in DER.
    fn public_key(&self) -> Vec<u8> {
        let info = self.key.subject_public_key_info();
        if !self.compressed {
            return info;
        }
        let point = self.key.der_bytes();
        let (x, y) = point[1..].split_at((point.len() - 1) / 2);
        // The header of the outer sequence is two bytes for keys of this size.
        let algorithm = &info[2..info.len() - point.len() - 3];
        der(0x30, &[algorithm, &der(3, &[&[0, 2 + (y[y.len() - 1] & 1)], x])])
    }

    /// Signs the request, and returns it in DER.
    pub(crate) fn der(&self) -> Vec<u8> {
        let rdns: Vec<Vec<u8>> = self.subject.iter().map(|rdn| der(0x31, &[&rdn.concat()])).collect();
        let mut attributes = self.attributes.clone();
        if !self.extensions.is_empty() {
            let list = der(0x30, &[&self.extensions.concat()]);
            attributes.push(der(0x30, &[&der(6, &[EXTENSION_REQUEST]), &der(0x31, &[&list])]));
        }
        let info = der(
            0x30,
            &[
                &der(2, &[&[0]]),
                &der(0x30, &[&rdns.concat()]),
                &self.public_key(),
                &der(0xa0, &[&attributes.concat()]),
                &self.more,
            ],
        );
        let algorithm = match self.key.algorithm() {
            a if *a == rcgen::PKCS_ECDSA_P384_SHA384 => ECDSA_WITH_SHA384,
            a if *a == rcgen::PKCS_ED25519 => ED25519,
            _ => ECDSA_WITH_SHA256,
        };
        let signature = self.key.sign(&info).unwrap();
        der(0x30, &[&info, &der(0x30, &[&der(6, &[algorithm])]), &der(3, &[&[0], &signature])])
    }

    /// Signs the request, and returns it in PEM.
    pub(crate) fn pem(&self) -> String {
        armour(&self.der())
    }
}

impl From<Forged> for Vec<u8> {
    fn from(request: Forged) -> Self {
        request.pem().into_bytes()
    }
}

/// Encodes an `Extension` that is not critical.
fn extension(oid: &[u8], value: &[u8]) -> Vec<u8> {
    der(0x30, &[&der(6, &[oid]), &der(4, &[value])])
}

/// Returns the PEM block of a request in DER.
pub(crate) fn armour(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n", lines.join("\n"))
}
