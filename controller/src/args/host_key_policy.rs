//! Decides which host key is trusted at a log-in. Pure functions.
//!
//! A source that exists but cannot be read is an error, without a fallback to a weaker source. Otherwise a client that
//! can damage an annotation could make the operator trust any host.

use api::{HostKeyPolicy, PinnedHostKey, Ssh, WindowsInstance};

use remote::ssh::{HostKey, HostKeyCheck, HostKeyError};
use wnp_core::operation::host_key_problem::HostKeyProblem;

/// Known keys of one host by source, the strongest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownKeys<'a> {
    /// Address of the host, for messages.
    pub address: &'a str,
    /// `hostKey` in the host's inventory entry.
    pub declared: Option<&'a str>,
    /// Annotation `trust-host-key` of the host's instance, which a user has set.
    pub allowed: Option<&'a str>,
    /// Key in the status of the host's instance, which the host has proven.
    pub pinned: Option<&'a PinnedHostKey>,
    /// Fingerprint of the key that the host showed at its first contact, before it had an instance.
    pub first_contact: Option<&'a str>,
    /// Name of the host's Node, and the Node's annotation `ssh-host-key`.
    pub node: Option<(&'a str, &'a str)>,
}

/// Source of the trust in a host key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HostKeySource {
    /// Host keys that are known already.
    Check(HostKeyCheck),
    /// Known hosts Secret with this name.
    KnownHosts(String),
    /// Key that the legacy operator recorded for the address, otherwise the first key that the host shows.
    FirstUse,
}

/// Decides which host key is trusted, by the first source that exists: the inventory entry; the user's annotation on the instance; with `Strict`, the
/// known hosts Secret; the key that the host has proven before; the key of its first contact; the key in the annotation of its Node; and, unless the
/// policy is `Strict`, the first key that the host shows.
///
/// # Errors
/// Fails when the strongest existing source cannot be read, or the policy is `Strict` and there is no source.
pub(crate) fn host_key_source(known: &KnownKeys<'_>, ssh: &Ssh) -> Result<HostKeySource, HostKeyProblem> {
    let unusable =
        |place: String| move |error: HostKeyError| HostKeyProblem::Unusable { place, error: error.to_string() };
    let pinned =
        |text: &str, place: String| HostKeyCheck::pinned(text).map(HostKeySource::Check).map_err(unusable(place));
    if let Some(text) = known.declared {
        return pinned(text, format!("hostKey of the entry for {}", known.address));
    }
    if let Some(text) = known.allowed {
        return pinned(
            text,
            format!("annotation {} of the WindowsInstance at {}", api::names::key::TRUST_HOST_KEY, known.address),
        );
    }
    let is_strict = ssh.host_key_policy == Some(HostKeyPolicy::Strict);
    if is_strict && let Some(secret) = &ssh.known_hosts_secret_ref {
        return Ok(HostKeySource::KnownHosts(secret.name.clone()));
    }
    if let Some(key) = known.pinned {
        return Ok(HostKeySource::Check(HostKeyCheck::Pinned(HostKey {
            key_type: key.key_type.clone(),
            public_key_base64: key.public_key.clone(),
        })));
    }
    if let Some(text) = known.first_contact {
        return pinned(
            text,
            format!(
                "key that {} showed at its first contact (annotation {} of its WindowsInstance, or status.contacts of the pool)",
                known.address,
                api::names::key::FIRST_HOST_KEY
            ),
        );
    }
    if let Some((node, text)) = known.node {
        let place = format!("annotation {} of the Node {node}", api::names::key::SSH_HOST_KEY);
        let key = HostKey::parse(text).map_err(unusable(place))?;
        return Ok(HostKeySource::Check(HostKeyCheck::Pinned(key)));
    }
    if is_strict {
        return Err(HostKeyProblem::NotDeclared { address: known.address.to_owned() });
    }
    Ok(HostKeySource::FirstUse)
}

/// Reports whether the first key that the host of an existing Node shows is trusted. The pool must have the policy `TrustOnAdoption`, and the host
/// must be a new one: the Node follows no version of this operator (`is_ours` is false), and the instance was not a node before, holds no node name,
/// and is not leaving. After the log-in, and before the host gets anything, its identification checks that the Node has the address of the
/// connection.
pub(crate) fn may_adopt(instance: &WindowsInstance, ssh: &Ssh, is_ours: bool) -> bool {
    let is_new = instance
        .status
        .as_ref()
        .is_none_or(|s| s.current_version.is_none() && s.node_ref.is_none() && !s.holds_node_name);
    ssh.host_key_policy == Some(HostKeyPolicy::TrustOnAdoption) && is_new && !is_ours && !instance.is_leaving()
}

/// Text before the key that a host has shown, in the message of a failed log-in.
const SHOWN: &str = ", got ";

/// Returns the fingerprint of the key that a host has shown, from the message of a failed log-in. `None` without a whole fingerprint.
pub(crate) fn shown_key(message: &str) -> Option<&str> {
    let (_, after) = message.rsplit_once(SHOWN)?;
    let fingerprint = after.split([';', ' ']).next()?;
    is_fingerprint(fingerprint).then_some(fingerprint)
}

/// Reports whether a text is a whole fingerprint, `SHA256:` and 43 characters of base64, as `ssh-keygen -l` prints it.
pub(crate) fn is_fingerprint(text: &str) -> bool {
    fingerprint_of(text).is_some_and(|whole| whole == text)
}

/// Returns the fingerprint of a trusted key, which is given as a fingerprint or a whole key.
pub(crate) fn fingerprint_of(trusted: &str) -> Option<String> {
    match HostKeyCheck::pinned(trusted).ok()? {
        HostKeyCheck::PinnedFingerprint(fingerprint) => Some(fingerprint),
        HostKeyCheck::Pinned(key) => Some(key.fingerprint()),
        HostKeyCheck::AnyOf(_) | HostKeyCheck::TrustOnFirstUse => None,
    }
}

/// Reports whether the annotation `trust-host-key` allows the key that the message of a failed log-in names. The annotation has no effect for another
/// key, or while the inventory declares the key.
pub(crate) fn trusts_shown_key(allowed: Option<&str>, declared: Option<&str>, message: &str) -> bool {
    let allowed = allowed.filter(|_| declared.is_none()).and_then(fingerprint_of);
    allowed.is_some_and(|allowed| shown_key(message) == Some(allowed.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::SecretRef;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const DECLARED: &str = "SHA256:mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE";
    const ALLOWED: &str = "SHA256:AAAAvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE";
    const CONTACT: &str = "SHA256:BBBBvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE";
    const NODE: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";
    const PINNED: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";

    /// Returns the source of the trust, or the reason of the problem, in one word.
    fn word(result: Result<HostKeySource, HostKeyProblem>) -> &'static str {
        match result {
            Ok(HostKeySource::KnownHosts(name)) if name == "known" => "known hosts",
            Ok(HostKeySource::FirstUse) => "first",
            Ok(HostKeySource::Check(HostKeyCheck::PinnedFingerprint(f))) if f == DECLARED => "declared",
            Ok(HostKeySource::Check(HostKeyCheck::PinnedFingerprint(f))) if f == ALLOWED => "allowed",
            Ok(HostKeySource::Check(HostKeyCheck::PinnedFingerprint(f))) if f == CONTACT => "contact",
            Ok(HostKeySource::Check(HostKeyCheck::Pinned(k)))
                if k.public_key_base64.trim_end_matches('=') == PINNED =>
            {
                "pinned"
            }
            Ok(HostKeySource::Check(HostKeyCheck::Pinned(k))) if k.public_key_base64.trim_end_matches('=') == NODE => {
                "node"
            }
            Ok(other) => panic!("{other:?}"),
            Err(problem) => problem.reason().as_str(),
        }
    }

    #[test]
    fn the_strongest_source_counts_and_strict_never_trusts_at_first_use() {
        let pinned = PinnedHostKey { public_key: PINNED.into(), key_type: "ssh-ed25519".into(), ..Default::default() };
        let ssh = |policy, secret: bool| Ssh {
            host_key_policy: policy,
            known_hosts_secret_ref: secret.then(|| SecretRef { name: "known".into() }),
            ..Ssh::default()
        };
        let strict = Some(HostKeyPolicy::Strict);
        let all = KnownKeys {
            address: "10.0.0.1",
            declared: Some(DECLARED),
            allowed: Some(ALLOWED),
            pinned: Some(&pinned),
            first_contact: Some(CONTACT),
            node: Some(("win-1", NODE)),
        };
        let no_declared = KnownKeys { declared: None, ..all.clone() };
        let no_allowed = KnownKeys { allowed: None, ..no_declared.clone() };
        let no_pinned = KnownKeys { pinned: None, ..no_allowed.clone() };
        let no_contact = KnownKeys { first_contact: None, ..no_pinned.clone() };
        let none = KnownKeys { node: None, ..no_contact.clone() };
        // Known keys, and the trusted source by default, with Strict, and with Strict and known hosts.
        for (known, first_use, is_strict, with_known_hosts) in [
            (&all, "declared", "declared", "declared"),
            (&no_declared, "allowed", "allowed", "allowed"),
            (&no_allowed, "pinned", "pinned", "known hosts"),
            (&no_pinned, "contact", "contact", "known hosts"),
            (&no_contact, "node", "node", "known hosts"),
            (&none, "first", "HostKeyUnknown", "known hosts"),
        ] {
            assert_eq!(word(host_key_source(known, &ssh(None, false))), first_use, "{known:?}");
            assert_eq!(word(host_key_source(known, &ssh(None, true))), first_use, "{known:?}");
            assert_eq!(word(host_key_source(known, &ssh(strict, false))), is_strict, "{known:?}");
            assert_eq!(word(host_key_source(known, &ssh(strict, true))), with_known_hosts, "{known:?}");
        }
    }

    #[test]
    fn the_first_key_is_trusted_only_at_an_adoption() {
        let instance = |spec: serde_json::Value, status: serde_json::Value| {
            let mut instance = WindowsInstance::new("win-1", serde_json::from_value(spec).unwrap());
            instance.status = serde_json::from_value(status).unwrap();
            instance
        };
        let stays = json!({"poolRef": {"name": "p"}, "host": {"name": "win-1", "address": "10.0.0.1", "port": 22, "username": "u",
            "privateKeys": []}});
        let mut leaving = stays.clone();
        leaving["leaving"] = json!({"since": "2026-01-01T00:00:00Z", "why": "x"});
        let adoption = Some(HostKeyPolicy::TrustOnAdoption);
        for (about, policy, spec, status, is_ours, expected) in [
            ("a node of WMCO", adoption, &stays, Value::Null, false, true),
            ("a node of WMCO whose adoption has failed", adoption, &stays, json!({"failures": null}), false, true),
            ("a pool without a policy", None, &stays, Value::Null, false, false),
            ("trust on first use", Some(HostKeyPolicy::TrustOnFirstUse), &stays, Value::Null, false, false),
            ("a strict pool", Some(HostKeyPolicy::Strict), &stays, Value::Null, false, false),
            ("a node of this operator with a lost status", adoption, &stays, Value::Null, true, false),
            ("a host that was adopted before", adoption, &stays, json!({"currentVersion": "10.19.0-a"}), false, false),
            ("a node before", adoption, &stays, json!({"nodeRef": {"name": "win-1", "uid": "u"}}), false, false),
            ("a host that leaves", adoption, &leaving, Value::Null, false, false),
        ] {
            let ssh = Ssh { host_key_policy: policy, ..Ssh::default() };
            assert_eq!(may_adopt(&instance(spec.clone(), status), &ssh, is_ours), expected, "{about}");
        }
    }

    #[test]
    fn only_the_key_that_a_host_shows_is_trusted() {
        let whole_key = HostKey { key_type: "ssh-ed25519".into(), public_key_base64: NODE.into() };
        let mismatch = |offered: &str| {
            let (address, expected) = ("10.0.0.1".to_owned(), vec![DECLARED.to_owned(), CONTACT.to_owned()]);
            remote::ssh::SshError::HostKeyMismatch { host: None, address, expected, offered: offered.into() }
                .to_string()
        };
        let of_key = mismatch(&whole_key.fingerprint());
        for (about, allowed, declared, message, expected) in [
            ("no annotation", None, None, mismatch(ALLOWED), false),
            ("the shown key", Some(ALLOWED), None, mismatch(ALLOWED), true),
            ("with padding", Some(&*format!("{ALLOWED}=")), None, mismatch(ALLOWED), true),
            ("another one", Some(ALLOWED), None, mismatch(PINNED), false),
            ("one of those that were expected", Some(DECLARED), None, mismatch(ALLOWED), false),
            ("the beginning of it", Some(&ALLOWED[..20]), None, mismatch(ALLOWED), false),
            ("nothing", Some(""), None, mismatch(ALLOWED), false),
            ("a whole key", Some(&*format!("ssh-ed25519 {NODE}")), None, of_key, true),
            ("the list declares another", Some(ALLOWED), Some(DECLARED), mismatch(ALLOWED), false),
            ("no key of this type", Some(ALLOWED), None, mismatch("only keys of type ssh-rsa"), false),
            ("another message", Some(ALLOWED), None, "x".into(), false),
        ] {
            assert_eq!(trusts_shown_key(allowed, declared, &message), expected, "{about}: {message}");
        }
    }

    #[test]
    fn a_damaged_key_is_never_trust_on_first_use() {
        let none = KnownKeys { address: "10.0.0.1", ..KnownKeys::default() };
        for (known, place) in [
            (KnownKeys { declared: Some("SHA256:short"), ..none.clone() }, "entry for 10.0.0.1"),
            (KnownKeys { allowed: Some(""), ..none.clone() }, "trust-host-key"),
            (KnownKeys { first_contact: Some("SHA256:"), ..none.clone() }, "first contact"),
            (KnownKeys { node: Some(("win-1", "AAAA")), ..none.clone() }, "ssh-host-key of the Node win-1"),
            (KnownKeys { node: Some(("win-1", "")), ..none.clone() }, "ssh-host-key of the Node win-1"),
        ] {
            let problem = host_key_source(&known, &Ssh::default()).unwrap_err();
            assert_eq!(problem.reason(), "HostKeyInvalid");
            assert!(problem.to_string().contains(place), "{problem} does not name {place}");
        }
    }

    proptest! {
        #[test]
        fn any_annotation_is_a_key_or_an_error(text in ".{0,80}") {
            let known = KnownKeys { node: Some(("n", &text)), ..KnownKeys::default() };
            prop_assert!(!matches!(host_key_source(&known, &Ssh::default()), Ok(HostKeySource::FirstUse)));
        }
    }
}
