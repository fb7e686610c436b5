//! Annotation `windowsmachineconfig.openshift.io/username` of Nodes, in the format of the Windows Machine Config Operator, so that a cluster can
//! be taken over and handed back.
//!
//! The annotation is a symmetric OpenPGP message (RFC 4880), whose passphrase is the private key exactly as in its Secret: a v4 session key packet
//! (AES-128; iterated and salted SHA-256) and an integrity-protected v1 data packet with the name as literal data. The ASCII armor has no first
//! and last line, and `<wmcoMarker>` in place of newlines. Old releases stored the whole block, labelled `ENCRYPTED DATA`. The encryption hides
//! nothing from readers of the Secret.

use std::io::Read as _;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use pgp::{
    composed::{Esk, Message, MessageBuilder},
    crypto::{hash::HashAlgorithm, sym::SymmetricKeyAlgorithm},
    packet::SymKeyEncryptedSessionKey,
    types::{Password, StringToKey},
};
use rand_core_06::OsRng;

const NEWLINE: &str = "<wmcoMarker>";
/// Encoded count of 65,536 hashed bytes, as the Windows Machine Config Operator uses it.
const HASHED_BYTES: u8 = 96;
/// Maximum length of an annotation in bytes. One for a Windows user name has about 200.
const MAX_ANNOTATION: usize = 8 << 10;
/// Maximum length of a user name, in bytes.
const MAX_USERNAME: u64 = 1 << 10;

/// Error when the annotation is written or read. No variant reveals the content of the annotation.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum UsernameError {
    /// OpenPGP refused to encrypt.
    #[error(
        "the user name of the host cannot be encrypted for the annotation {} of its Node: report this fault with the operator's log",
        api::names::key::USERNAME
    )]
    Encrypt,
    /// The annotation has a form that no release writes, or the user name in it is too long or not UTF-8.
    #[error(
        "the annotation {} of the Node is damaged: remove it, and the operator writes it again",
        api::names::key::USERNAME
    )]
    Malformed,
    /// The annotation was encrypted with another key, or has changed since.
    #[error(
        "the annotation {} of the Node was encrypted with another private key, or is damaged: remove it, and the operator writes it again",
        api::names::key::USERNAME
    )]
    WrongKey,
}

/// Encrypts a user name for the annotation. `pem` is the private key exactly as its Secret has it.
///
/// # Errors
/// [`UsernameError::Encrypt`] when OpenPGP refuses.
pub fn encrypt_username(username: &str, pem: &[u8]) -> Result<String, UsernameError> {
    let armored = encrypt(username, pem).map_err(|_| UsernameError::Encrypt)?;
    let lines: Vec<&str> = armored.lines().filter(|line| !line.is_empty() && !line.starts_with("-----")).collect();
    Ok(lines.join(NEWLINE))
}

fn encrypt(username: &str, pem: &[u8]) -> pgp::errors::Result<String> {
    let s2k = StringToKey::new_iterated(OsRng, HashAlgorithm::Sha256, HASHED_BYTES);
    let message = MessageBuilder::from_bytes("", username.as_bytes().to_vec());
    let mut message = message.seipd_v1(OsRng, SymmetricKeyAlgorithm::AES128);
    message.encrypt_with_password(s2k, &Password::from(pem))?;
    message.to_armored_string(OsRng, armor_options())
}

fn armor_options() -> pgp::composed::ArmorOptions<'static> {
    pgp::composed::ArmorOptions { headers: None, include_checksum: true }
}

/// Decrypts the annotation of a Node, as written by any release. `pem` is the private key exactly as its Secret has it.
///
/// # Errors
/// [`UsernameError::Malformed`] when the annotation is not of a form that any release writes, or the user name in it is too
/// long or not UTF-8. [`UsernameError::WrongKey`] when it was made with another key, or was changed.
pub fn decrypt_username(annotation: &str, pem: &[u8]) -> Result<String, UsernameError> {
    let message = dearmor(annotation).ok_or(UsernameError::Malformed)?;
    let message = Message::from_bytes(message.as_slice()).map_err(|_| UsernameError::Malformed)?;
    if !is_cheap(&message) {
        return Err(UsernameError::Malformed);
    }
    let message = message.decrypt_with_password(&Password::from(pem)).map_err(|_| UsernameError::WrongKey)?;
    let Message::Literal { .. } = &message else {
        return Err(UsernameError::Malformed);
    };
    let mut name = Vec::new();
    // The message is verified only once its end is read.
    message.take(MAX_USERNAME + 1).read_to_end(&mut name).map_err(|_| UsernameError::WrongKey)?;
    if name.len() as u64 > MAX_USERNAME {
        return Err(UsernameError::Malformed);
    }
    String::from_utf8(name).map_err(|_| UsernameError::Malformed)
}

/// Reports whether a message is cheap to decrypt. Any client that may write the Node controls the annotation, and must not choose a key derivation
/// that takes gigabytes.
fn is_cheap(message: &Message<'_>) -> bool {
    let Message::Encrypted { esk, .. } = message else { return false };
    matches!(
        esk.as_slice(),
        [Esk::SymKeyEncryptedSessionKey(SymKeyEncryptedSessionKey::V4 {
            s2k: StringToKey::IteratedAndSalted { .. },
            ..
        })]
    )
}

/// Decodes an ASCII armor with or without its first and last line, under any label. The checksum is ignored: the message has a better one.
fn dearmor(annotation: &str) -> Option<Vec<u8>> {
    if annotation.len() > MAX_ANNOTATION {
        return None;
    }
    let text = annotation.replace(NEWLINE, "\n");
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("-----") && !line.starts_with('='));
    BASE64_STANDARD.decode(lines.collect::<String>()).ok().filter(|message| !message.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Message of Go's OpenPGP, with the key `secret key` and the name `Administrator`. Its first partial
    /// length is 64 bytes, although RFC 4880 requires at least 512: it must be accepted nevertheless.
    const BY_GO: &str = "wx4EBwMIAQIDBAUGBwhgnGZh2echnbAT2yZ9ZXbo3e3S5gHmgBkUo6p9pUdmq0mN<wmcoMarker>\
        5fZWKar0/Tr6FyVhxTWLCSboCspo2yQUSkJ2L4Nw3GEzp7bIw0Bv7oVi1PYWgCJg<wmcoMarker>\
        owPgcAA=<wmcoMarker>=Cuoe";
    /// Message of Go's OpenPGP, with [`PEM`] and `FACTORY\svc-nodes`.
    const BY_GO_WITH_PEM: &str = "wx4EBwMI90anHMhMrP5gdWaMAEAhKXhL8HsIkeM7HK3S5gG26904G0m/n8vbGMvt<wmcoMarker>\
        XdGL9s8rhFIbE4gAS0+8nSacYudEgZpbVBdrPAF2sCxv7U6rpvamuUvn+uV6Qcjk<wmcoMarker>\
        9+7ibp3XhOH7iQA=<wmcoMarker>=gQaU";
    const KEY: &[u8] = b"secret key";
    const PEM: &[u8] = b"-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n";

    #[test]
    fn annotations_round_trip() {
        for name in ["Administrator", r"FACTORY\svc-nodes", "Übung 7", "", &"a".repeat(1000)] {
            let annotation = encrypt_username(name, PEM).unwrap();
            assert!(!annotation.contains(['\n', '-']), "{annotation}");
            assert!(annotation.rsplit(NEWLINE).next().unwrap().starts_with('='), "no checksum: {annotation}");
            assert_eq!(decrypt_username(&annotation, PEM).as_deref(), Ok(name));
        }
    }

    #[test]
    fn both_encodings_of_wmco_are_read() {
        assert_eq!(decrypt_username(BY_GO, KEY).as_deref(), Ok("Administrator"));
        assert_eq!(decrypt_username(BY_GO_WITH_PEM, PEM).as_deref(), Ok(r"FACTORY\svc-nodes"));
        let block = BY_GO.replace(NEWLINE, "\n");
        let block = format!("-----BEGIN ENCRYPTED DATA-----\n\n{block}\n-----END ENCRYPTED DATA-----");
        assert_eq!(decrypt_username(&block, KEY).as_deref(), Ok("Administrator"));
        assert_eq!(decrypt_username(&block.replace('\n', NEWLINE), KEY).as_deref(), Ok("Administrator"));
    }

    #[test]
    fn messages_of_gnupg_are_read() {
        // gpg 2.2 --symmetric --cipher-algo AES128 --s2k-digest-algo SHA256 --compress-algo none --armor
        let by_gnupg = "jA0EBwMItItHpozwoKRg0j4BkIGQHrP0ZNLcOQxWyogdK6YncXqJWhNGU2Oazm27<wmcoMarker>ObpTw5v9PnYBrSpPDji0zixN/LzI20kBkt2vpyQNUA==<wmcoMarker>=Y7a4";
        assert_eq!(decrypt_username(by_gnupg, KEY).as_deref(), Ok("Administrator"));
    }

    #[test]
    fn another_key_is_refused() {
        for key in [&b"secret kex"[..], b"", b"secret key\n", PEM] {
            assert_eq!(decrypt_username(BY_GO, key), Err(UsernameError::WrongKey));
        }
    }

    #[test]
    fn expensive_and_malformed_messages_are_refused_before_a_key_is_derived() {
        let password = Password::from(KEY);
        let argon2 = StringToKey::new_argon2(OsRng, 1, 1, 3);
        for (what, s2k, how_many) in [
            ("a memory-hard derivation", argon2, 1),
            ("two session keys", StringToKey::new_iterated(OsRng, HashAlgorithm::Sha256, 96), 2),
        ] {
            let mut message = MessageBuilder::from_bytes("", "x").seipd_v1(OsRng, SymmetricKeyAlgorithm::AES128);
            for _ in 0..how_many {
                message.encrypt_with_password(s2k.clone(), &password).unwrap();
            }
            let armored = message.to_armored_string(OsRng, armor_options()).unwrap();
            assert_eq!(decrypt_username(&armored, KEY), Err(UsernameError::Malformed), "{what}");
        }
        let plain = MessageBuilder::from_bytes("", "x").to_armored_string(OsRng, armor_options()).unwrap();
        assert_eq!(decrypt_username(&plain, KEY), Err(UsernameError::Malformed));
        assert_eq!(decrypt_username(&"A".repeat(MAX_ANNOTATION + 1), KEY), Err(UsernameError::Malformed));
    }

    #[test]
    fn a_user_name_that_is_too_long_is_refused() {
        let long = encrypt_username(&"a".repeat(1025), KEY).unwrap();
        assert_eq!(decrypt_username(&long, KEY), Err(UsernameError::Malformed));
    }

    #[test]
    fn errors_contain_no_secret() {
        for error in [UsernameError::Encrypt, UsernameError::Malformed, UsernameError::WrongKey] {
            let text = format!("{error} {error:?}");
            assert!(!text.contains("secret key") && !text.contains("Administrator"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_an_error(text in ".{0,300}", bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(decrypt_username(&text, KEY).is_err());
            prop_assert!(decrypt_username(&BASE64_STANDARD.encode(bytes), KEY).is_err());
        }

        /// Manipulated messages fail or yield the same name: lengths in packet headers have several encodings.
        #[test]
        fn a_changed_message_is_an_error_or_the_same(at in 0_usize..200, to in any::<u8>()) {
            let mut message = dearmor(BY_GO).unwrap();
            let at = at % message.len();
            message[at] = to;
            // A longer derivation is allowed, but slow in a debug build.
            prop_assume!(at != 14);
            if let Ok(name) = decrypt_username(&BASE64_STANDARD.encode(message), KEY) {
                prop_assert_eq!(name, "Administrator");
            }
        }
    }
}
