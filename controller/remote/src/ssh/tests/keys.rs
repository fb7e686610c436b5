//! Tests of private keys and host keys. The keys were made with ssh-keygen for these tests and are used nowhere else.

use proptest::prelude::*;

use super::host::{ed25519, pem, public};
use crate::ssh::{HostKey, HostKeyCheck, Identity};

pub(crate) const RSA_PKCS1: &str = include_str!("keys/rsa-pkcs1.pem");
const RSA_PKCS1_ENCRYPTED: &str = include_str!("keys/rsa-pkcs1-encrypted.pem");
const RSA_PKCS8: &str = include_str!("keys/rsa-pkcs8.pem");
const RSA_PKCS8_ENCRYPTED: &str = include_str!("keys/rsa-pkcs8-encrypted.pem");
const RSA_OPENSSH: &str = include_str!("keys/rsa-openssh.pem");
const ED25519_ENCRYPTED: &str = include_str!("keys/ed25519-openssh-encrypted.pem");
pub(crate) const ECDSA_SEC1: &str = include_str!("keys/ecdsa-sec1.pem");
pub(crate) const ECDSA_P521_PKCS8: &str = include_str!("keys/ecdsa-p521-pkcs8.pem");

pub(crate) const ECDSA_PUBLIC: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBC4Z29yVENBbZknAo3vOMGm7w6klaPMd3fP10ygZwkfgra1MjXIimpA4yB+oxFN0ZDY8KmyRtRwa2CY/zURX6fE=";
const ECDSA_FINGERPRINT: &str = "SHA256:WB6BK3eeDahvLvuTDnnMYTG54A26ldaqL4XWJ0q0EoA";

#[test]
fn private_keys_are_parsed_in_every_format() {
    let rsa = "30b28e182671ba3a42df160d27e24d00ec8bb350e896213ebf6cc85be70ed96e";
    let carriage_returns = format!("\r\n  {}", RSA_PKCS1.replace('\n', "\r\n"));
    let with_mark = format!("\u{feff}{RSA_PKCS1}");
    for (pem, hash) in [
        (RSA_PKCS1, rsa),
        (&*with_mark, rsa),
        (RSA_PKCS8, rsa),
        (RSA_OPENSSH, rsa),
        (&carriage_returns, rsa),
        (ECDSA_SEC1, "f826aa723fb4f6b8229028373d0ecd0e5b1a17465f04a4553aac66839344d4de"),
        (ECDSA_P521_PKCS8, "c98b1475dfaace3f7cc3f9e4e74b949b17e2c4066a3b6ebfe1b18173780bb52a"),
    ] {
        let identity = Identity::from_pem("a Secret", pem.as_bytes()).unwrap();
        assert_eq!(identity.public_key_hash(), hash);
        assert_eq!(format!("{identity:?}"), format!("Identity({:?})", identity.fingerprint()));
    }
    let utf16: Vec<u8> = with_mark.encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(Identity::from_pem("a Secret", &utf16).unwrap().public_key_hash(), rsa);
    let ecdsa = Identity::from_pem("a Secret", ECDSA_SEC1.as_bytes()).unwrap();
    assert_eq!((ecdsa.authorized_key().as_str(), ecdsa.fingerprint().as_str()), (ECDSA_PUBLIC, ECDSA_FINGERPRINT));
}

#[test]
fn an_unusable_private_key_is_refused_with_the_remedy() {
    let truncated = &RSA_PKCS1[..RSA_PKCS1.len() / 2];
    for (pem, hint) in [
        ("", "without a passphrase"),
        (" \n\n", "without a passphrase"),
        (RSA_PKCS1_ENCRYPTED, "passphrase"),
        (RSA_PKCS8_ENCRYPTED, "passphrase"),
        (ED25519_ENCRYPTED, "passphrase"),
        (truncated, "cannot be parsed"),
        (ECDSA_PUBLIC, "public key"),
        ("PuTTY-User-Key-File-3: ssh-ed25519", "puttygen"),
        ("hello", "PEM"),
        ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----", "cannot be parsed"),
    ] {
        let error = Identity::from_pem("Secret ns/ssh, key private-key.pem", pem.as_bytes()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("Secret ns/ssh, key private-key.pem") && text.contains(hint), "{text}");
    }
}

#[test]
fn a_weak_key_is_accepted_with_a_warning() {
    let weak = Identity::from_pem("Secret ns/ssh", include_bytes!("keys/rsa-1024.pem")).unwrap();
    let said = weak.weakness().unwrap();
    assert!(said.contains("Secret ns/ssh") && said.contains("1024 bits"), "{said}");
    let strong = Identity::from_pem("Secret ns/ssh", RSA_PKCS1.as_bytes()).unwrap();
    assert_eq!(strong.weakness(), None);
}

#[test]
fn host_keys_are_parsed_in_every_format() {
    let base64 = ECDSA_PUBLIC.split(' ').nth(1).unwrap();
    let key = HostKey::parse(ECDSA_PUBLIC).unwrap();
    assert_eq!(key.fingerprint(), ECDSA_FINGERPRINT);
    for text in [base64, base64.trim_end_matches('='), &format!(" {ECDSA_PUBLIC} a comment\n")] {
        assert_eq!(HostKey::parse(text).unwrap(), key, "{text}");
        assert_eq!(HostKeyCheck::pinned(text).unwrap(), HostKeyCheck::Pinned(key.clone()));
    }
    for text in [ECDSA_FINGERPRINT, &format!("{ECDSA_FINGERPRINT}=")] {
        assert_eq!(HostKeyCheck::pinned(text).unwrap(), HostKeyCheck::PinnedFingerprint(ECDSA_FINGERPRINT.to_owned()));
    }
    for bad in ["", "AAAA", "ssh-ed25519", "SHA256:", "SHA256:AAAA", &format!("ssh-ed25519 {base64}"), "ssh-rsa ****"] {
        assert!(HostKeyCheck::pinned(bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn parsers_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in any::<String>()) {
        let _ = Identity::from_pem("x", &bytes);
        let _ = HostKeyCheck::pinned(&text);
    }

    #[test]
    fn damaged_private_keys_never_panic(
        which in 0..5_usize,
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let own = pem(&ed25519(1));
        let source = [RSA_PKCS8, RSA_OPENSSH, ECDSA_SEC1, ECDSA_P521_PKCS8, &own][which];
        let mut damaged = source.as_bytes().to_vec();
        let at = at.index(damaged.len());
        damaged[at] = byte;
        let _ = Identity::from_pem("x", &damaged);
        damaged.truncate(cut.index(source.len()));
        let _ = Identity::from_pem("x", &damaged);
    }

    #[test]
    fn a_host_key_is_the_same_after_a_round_trip(seed in any::<u8>()) {
        let key = public(&ed25519(seed));
        prop_assert_eq!(&HostKey::parse(&key.public_key_base64).unwrap(), &key);
        prop_assert_eq!(HostKey::parse(&format!("{} {}", key.key_type, key.public_key_base64)).unwrap(), key);
    }
}
