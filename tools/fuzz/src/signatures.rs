//! Fuzz targets for Git objects, their signatures, and trusted keys.

use std::{collections::BTreeMap, sync::LazyLock};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use gitops::{
    repository::{split_commit, split_tag},
    verify::{Keys, Signed, verify},
};

macro_rules! fixture {
    ($name:literal) => {
        include_bytes!(concat!("../../../gitops/src/verify/fixtures/", $name)).as_slice()
    };
}

const SIGNED: &[u8] = fixture!("data");

/// Keys of most fixtures, so that signatures reach the checks of their keys.
static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    let secret = [
        ("ed25519.sshpub", fixture!("ed25519.sshpub")),
        ("ecdsa.sshpub", fixture!("ecdsa.sshpub")),
        ("rsa.sshpub", fixture!("rsa.sshpub")),
        ("primary.asc", fixture!("primary.asc")),
        ("subkey.asc", fixture!("subkey.asc")),
        ("subkey-revoked.asc", fixture!("subkey-revoked.asc")),
        ("subkey-expired.asc", fixture!("subkey-expired.asc")),
        ("revoked.asc", fixture!("revoked.asc")),
    ];
    let secret = secret.into_iter().map(|(name, bytes)| (name.to_owned(), bytes.to_vec())).collect();
    Keys::from_secret(&secret).expect("the fixtures are keys")
});

/// Fuzzes a signature with its armor, or only the content of the armor, because nearly every change of the text damages the armor.
pub fn signature(data: &[u8]) {
    if data.starts_with(b"-----") {
        return judge(data.to_vec());
    }
    let kind = if data.starts_with(b"SSHSIG") { "SSH" } else { "PGP" };
    judge(armor(data, &format!("{kind} SIGNATURE")));
}

fn judge(signature: Vec<u8>) {
    let mut signed = Signed { signature: Some(signature), data: SIGNED.to_vec() };
    let _ = verify(&signed, &KEYS).map_err(|error| error.to_string());
    // Nothing has signed this data.
    signed.data.push(b'!');
    assert!(verify(&signed, &KEYS).is_err(), "an invalid signature was accepted");
}

/// Wraps bytes in an armor without a checksum, which OpenPGP allows.
fn armor(bytes: &[u8], label: &str) -> Vec<u8> {
    let body = BASE64_STANDARD.encode(bytes);
    // OpenPGP needs an empty line after the headers; SSH has neither.
    let blank = if label.starts_with("PGP") { "\n" } else { "" };
    let lines: Vec<&str> = body.as_bytes().chunks(64).filter_map(|line| str::from_utf8(line).ok()).collect();
    format!("-----BEGIN {label}-----\n{blank}{}\n-----END {label}-----\n", lines.join("\n")).into_bytes()
}

/// Fuzzes public keys of every kind in a Secret, and the verification of signatures with them.
pub fn keys(data: &[u8]) {
    let ssh = format!("ssh-ed25519 {}", BASE64_STANDARD.encode(data));
    let secrets = [("a.sshpub", data.to_vec()), ("a.sshpub", ssh.into_bytes()), ("a.asc", data.to_vec())];
    for (name, bytes) in secrets {
        let secret = BTreeMap::from([(name.to_owned(), bytes)]);
        let Ok(keys) = Keys::from_secret(&secret) else { continue };
        for signature in [
            fixture!("ed25519.sig"),
            fixture!("primary.pgp.sig"),
            fixture!("subkey.pgp.sig"),
            fixture!("revoked.pgp.sig"),
        ] {
            let mut signed = Signed { signature: Some(signature.to_vec()), data: SIGNED.to_vec() };
            let _ = verify(&signed, &keys).map_err(|error| error.to_string());
            signed.data.push(b'!');
            assert!(verify(&signed, &keys).is_err(), "an invalid signature was accepted");
        }
    }
}

/// Fuzzes the split of a tag, and of a commit, into signed data and signature.
pub fn object(data: &[u8]) {
    let tag = split_tag(data);
    let whole = [tag.data.as_slice(), tag.signature.as_deref().unwrap_or_default()].concat();
    assert_eq!(whole, data, "a part of the tag is lost");
    for header in [b"gpgsig".as_slice(), b"gpgsig-sha256"] {
        let commit = split_commit(data, header);
        let length = commit.data.len() + commit.signature.as_ref().map_or(0, Vec::len);
        assert!(length <= data.len(), "the parts are longer than the object");
        if commit.signature.is_none() && !commit.data.starts_with(b"gpgsig") {
            // The signed data contains no signature.
            let again = split_commit(&commit.data, header);
            assert_eq!(again, commit);
        }
    }
}
