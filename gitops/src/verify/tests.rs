//! Tests of signatures of commits and tags.

use std::{fs, path::PathBuf, time::Duration};

use proptest::prelude::*;
use russh::keys::ssh_key::{Algorithm, HashAlg, LineEnding, Signature, SshSig};

use super::*;

/// Reads a fixture that `fixtures/make.sh` created.
fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/verify/fixtures").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn keys(names: &[&str]) -> Keys {
    Keys::from_secret(&names.iter().map(|n| ((*n).to_owned(), fixture(n))).collect()).unwrap()
}

fn signed(signature: &str) -> Signed {
    Signed { signature: Some(fixture(signature)), data: fixture("data") }
}

/// Returns the signer, or the reason why it is not trusted.
fn trusted(result: Result<String, VerifyError>) -> Result<String, RejectReason> {
    match result {
        Ok(signer) => Ok(signer),
        Err(VerifyError::Untrusted { signer, doubt }) => {
            assert!(signer.split(' ').next_back().is_some_and(|fingerprint| fingerprint.len() >= 16), "{signer}");
            Err(doubt)
        }
        Err(error) => panic!("{error}"),
    }
}

const ALL_KEYS: [&str; 11] = [
    "ed25519.sshpub",
    "ecdsa.sshpub",
    "rsa.sshpub",
    "namespace.sshpub",
    "primary.asc",
    "subkey.asc",
    "subkey-revoked.asc",
    "subkey-expired.asc",
    "expired.asc",
    "revoked.asc",
    "tiny.asc",
];

#[test]
fn a_signature_by_a_key_of_the_secret_is_trusted() {
    let all = keys(&ALL_KEYS);
    for (signature, begins, length) in [
        ("ed25519.sig", "SSH SHA256:", 54),
        ("ecdsa.sig", "SSH SHA256:", 54),
        ("rsa.sig", "SSH SHA256:", 54),
        ("primary.pgp.sig", "OpenPGP ", 48),
        ("subkey.pgp.sig", "OpenPGP ", 48),
        // The key had not expired at the time of the signature.
        ("expired.early.pgp.sig", "OpenPGP ", 48),
        ("subkey-expired.early.pgp.sig", "OpenPGP ", 48),
    ] {
        let by = verify(&signed(signature), &all).unwrap_or_else(|error| panic!("{signature}: {error}"));
        assert!(by.starts_with(begins) && by.len() == length, "{signature}: {by}");
        // Other content does not match the signature.
        let mut other = signed(signature);
        other.data[56] ^= 1;
        assert_eq!(trusted(verify(&other, &all)), Err(RejectReason::Bad), "{signature}");
    }
}

#[test]
fn a_signature_with_a_fault_is_not_trusted() {
    let all = keys(&ALL_KEYS);
    for (signature, why) in [
        ("namespace.sig", RejectReason::OtherUse),
        ("text.pgp.sig", RejectReason::OtherUse),
        ("weak-sha1.pgp.sig", RejectReason::WeakHash),
        ("weak-md5.pgp.sig", RejectReason::WeakHash),
        ("tiny.pgp.sig", RejectReason::WeakKey),
        ("unknown.pgp.sig", RejectReason::Unknown),
        ("revoked.pgp.sig", RejectReason::Revoked),
        ("subkey-revoked.pgp.sig", RejectReason::Revoked),
        ("expired.late.pgp.sig", RejectReason::Expired),
        ("subkey-expired.late.pgp.sig", RejectReason::Expired),
        ("not-for-signing.pgp.sig", RejectReason::Unknown),
        ("signature-expired.pgp.sig", RejectReason::SignatureExpired),
    ] {
        assert_eq!(trusted(verify(&signed(signature), &all)), Err(why), "{signature}");
    }
    assert_eq!(trusted(verify(&signed("ed25519.sig"), &keys(&["rsa.sshpub"]))), Err(RejectReason::Unknown));
    assert_eq!(trusted(verify(&signed("primary.pgp.sig"), &keys(&["subkey.asc"]))), Err(RejectReason::Unknown));
    // The signature was valid on the day when it was made.
    let then = SystemTime::UNIX_EPOCH + Duration::from_hours(490_920 + 20);
    let keys = keys(&["primary.asc"]);
    assert!(verify_at(&signed("signature-expired.pgp.sig"), &keys, then).is_ok());
}

/// Checks that keys with another purpose are not trusted, and neither are subkeys that are copied to another owner's certificate.
#[test]
fn a_key_is_trusted_only_if_its_owner_allows_it_to_sign() {
    assert_eq!(
        trusted(verify(&signed("not-for-signing.pgp.sig"), &keys(&["not-for-signing.asc"]))),
        Err(RejectReason::NotForSigning)
    );
    let mut keys = keys(&["subkey.asc", "primary.asc"]);
    let stolen = keys.openpgp.iter_mut().find(|k| !k.public_subkeys.is_empty()).unwrap().public_subkeys.clone();
    let thief = keys.openpgp.iter_mut().find(|k| k.public_subkeys.is_empty()).unwrap();
    thief.public_subkeys = stolen;
    let thief = Keys { ssh: Vec::new(), openpgp: vec![thief.clone()] };
    assert_eq!(trusted(verify(&signed("subkey.pgp.sig"), &thief)), Err(RejectReason::NotForSigning));
}

#[test]
fn a_weak_ssh_signature_is_not_trusted() {
    let good = SshSig::from_pem(fixture("rsa.sig")).unwrap();
    let again = |algorithm, key| {
        let signature = Signature::new(algorithm, good.signature_bytes()).unwrap();
        let made = SshSig::new(key, "git", HashAlg::Sha256, signature).unwrap();
        Signed { signature: Some(made.to_pem(LineEnding::LF).unwrap().into()), data: fixture("data") }
    };
    let sha1 = again(Algorithm::Rsa { hash: None }, good.public_key().clone());
    assert_eq!(trusted(verify(&sha1, &keys(&["rsa.sshpub"]))), Err(RejectReason::WeakHash));
    let tiny = keys(&["tiny.sshpub"]);
    let by_tiny = again(Algorithm::Rsa { hash: Some(HashAlg::Sha512) }, tiny.ssh[0].key_data().clone());
    assert_eq!(trusted(verify(&by_tiny, &tiny)), Err(RejectReason::WeakKey));
}

#[test]
fn a_text_that_is_not_a_valid_signature_is_refused() {
    let keys = keys(&["ed25519.sshpub", "primary.asc"]);
    let cut = |name: &str, at: usize| fixture(name)[..at].to_vec();
    let twice = [fixture("primary.pgp.sig"), fixture("primary.pgp.sig")].concat();
    for (signature, part) in [
        (None, "it is not signed"),
        (Some(Vec::new()), "it is not signed"),
        (Some(b" \n".to_vec()), "it is not signed"),
        (Some(b"yes".to_vec()), "neither an SSH nor an OpenPGP"),
        (Some(b"-----BEGIN SIGNED MESSAGE-----\n".to_vec()), "X.509"),
        (Some(cut("ed25519.sig", 200)), "a damaged SSH signature"),
        (Some(cut("primary.pgp.sig", 100)), "OpenPGP signature"),
        (Some(vec![b'a'; MAX_SIGNATURE + 1]), "longer than 64 KiB"),
        (Some(b"-----BEGIN PGP SIGNATURE-----\n\n-----END PGP SIGNATURE-----\n".to_vec()), "OpenPGP signature"),
    ] {
        let error = verify(&Signed { signature, data: fixture("data") }, &keys).unwrap_err();
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    // Text after the armor is ignored.
    assert!(verify(&Signed { signature: Some(twice), data: fixture("data") }, &keys).is_ok());
}

#[test]
fn public_keys_of_a_secret_are_read() {
    let read = |entries: &[(&str, Vec<u8>)]| {
        Keys::from_secret(&entries.iter().map(|(k, v)| ((*k).into(), v.clone())).collect())
    };
    let both = [fixture("primary.asc"), fixture("subkey.asc")].concat();
    let lines = [b"# us\n\n".to_vec(), fixture("ed25519.sshpub"), fixture("rsa.sshpub")].concat();
    let count = |entries: &[(&str, Vec<u8>)]| read(entries).map(|k| (k.ssh.len(), k.openpgp.len()));
    assert_eq!(count(&[("us.sshpub", lines.clone()), ("us.asc", both.clone())]), Ok((2, 2)));
    assert_eq!(count(&[("alice", fixture("primary-binary.pgp"))]), Ok((0, 1)));
    assert_eq!(count(&[("alice", both), ("ca.crt", b"x".to_vec())]), Ok((0, 2)));
    let binary = read(&[("alice", fixture("primary-binary.pgp"))]).unwrap();
    assert!(verify(&signed("primary.pgp.sig"), &binary).is_ok());
    for none in [vec![], vec![("ca.crt", b"x".to_vec())], vec![("us.sshpub", b"# no key\n".to_vec())]] {
        assert_eq!(count(&none), Err(VerifyError::NoKeys));
    }
    let options = [b"restrict ".to_vec(), fixture("ed25519.sshpub")].concat();
    for (name, bytes, part) in [
        ("us.sshpub", options, "line 1: it is not an SSH public key"),
        ("us.sshpub", [lines, b"x\n".to_vec()].concat(), "line 5: it is not an SSH public key"),
        ("us.sshpub", vec![0xff], "it is not text"),
        ("us.asc", fixture("ed25519.sshpub"), "it is not an OpenPGP public key"),
        ("us.asc", Vec::new(), "it is not an OpenPGP public key"),
        ("us", fixture("primary.pgp.sig"), "it is not an OpenPGP public key"),
    ] {
        let error = read(&[(name, bytes)]).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(name), "{name}: {error}");
    }
}

proptest! {
    #[test]
    fn any_text_is_refused(text: Vec<u8>, head in 0..4_usize, at in 0.0..1.0_f64) {
        let keys = keys(&["ed25519.sshpub", "primary.asc"]);
        let heads = ["", "-----BEGIN SSH SIGNATURE-----\n", "-----BEGIN PGP SIGNATURE-----\n\n", "-----BEGIN PGP SIGNATURE-----"];
        let signature = [heads[head].as_bytes(), &text].concat();
        let result = verify(&Signed { signature: Some(signature), data: fixture("data") }, &keys);
        prop_assert!(result.is_err());
        // Text that is inserted into a valid signature, where it may be ignored, must cause no panic.
        for good in ["ed25519.sig", "primary.pgp.sig"] {
            let mut signature = fixture(good);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a place in it")]
            let at = (at * signature.len() as f64) as usize;
            signature.splice(at..at, text.iter().copied());
            let _ = verify(&Signed { signature: Some(signature), data: fixture("data") }, &keys);
        }
    }

    #[test]
    fn a_signature_with_a_flipped_bit_is_refused(at in 0..200_usize, bit in 0..8_u8) {
        use base64::{Engine as _, prelude::BASE64_STANDARD};
        let keys = keys(&["ed25519.sshpub"]);
        let text = String::from_utf8(fixture("ed25519.sig")).unwrap();
        let body: String = text.lines().filter(|l| !l.starts_with('-')).collect();
        let mut bytes = BASE64_STANDARD.decode(body).unwrap();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        let body = BASE64_STANDARD.encode(bytes);
        let lines: Vec<&str> = body.as_bytes().chunks(70).map(|c| str::from_utf8(c).unwrap()).collect();
        let text = format!("-----BEGIN SSH SIGNATURE-----\n{}\n-----END SSH SIGNATURE-----\n", lines.join("\n"));
        let result = verify(&Signed { signature: Some(text.into()), data: fixture("data") }, &keys);
        prop_assert!(result.is_err());
    }

    #[test]
    fn any_secret_is_read_or_refused(bytes: Vec<u8>, armored: bool, ssh: bool) {
        let bytes = if armored { [b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n".to_vec(), bytes].concat() } else { bytes };
        let name = if ssh { "a.sshpub" } else { "a.asc" };
        let _ = Keys::from_secret(&[(name.to_owned(), bytes)].into());
    }
}
