//! SSH keys that the hosts of a pool must accept, and the hosts that do not accept them yet.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use api::{InstanceHost, Reason, SecretKeyRef, WindowsInstance};
use kube::ResourceExt;

use super::member::Member;

/// Minimum interval between reads of the Secrets, which the operator does not watch.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// First SSH key of each host.
#[derive(Debug, Default)]
pub struct Keys {
    /// Hash of each key, or the reason why it is not available, by Secret and data key.
    first: HashMap<SecretKey, Result<String, String>>,
    /// Warnings for keys that are too weak.
    weak: Vec<String>,
    /// Location of each host's first key. The pool's list applies: its instances may not have been updated yet.
    of_host: HashMap<String, SecretKey>,
}

/// Name of a Secret, and a key in its data.
pub type SecretKey = (String, String);

fn secret_key(reference: &SecretKeyRef) -> SecretKey {
    (reference.name.clone(), reference.key().to_owned())
}

/// Returns the maximum age of cached Secrets. It grows with their number, so that at most twenty are read per second.
pub fn max_cache_age(secrets: usize) -> Duration {
    Duration::from_millis(50).saturating_mul(u32::try_from(secrets).unwrap_or(u32::MAX))
}

/// Returns references to the first keys of hosts, each once.
pub fn first_keys(hosts: &BTreeMap<String, InstanceHost>) -> HashMap<SecretKey, SecretKeyRef> {
    hosts.values().filter_map(|h| h.private_keys.first()).map(|key| (secret_key(key), key.clone())).collect()
}

impl Keys {
    /// Creates the keys of `hosts`. `first` has a hash for each of [`first_keys`], or the reason why it is missing; `weak` has warnings.
    pub fn new(
        hosts: &BTreeMap<String, InstanceHost>,
        first: HashMap<SecretKey, Result<String, String>>,
        weak: Vec<String>,
    ) -> Self {
        let of_host = hosts.iter().filter_map(|(name, h)| Some((name.clone(), secret_key(h.private_keys.first()?))));
        Self { first, weak, of_host: of_host.collect() }
    }

    /// Returns the warnings for keys that are too weak.
    pub fn weak(&self) -> &[String] {
        &self.weak
    }

    /// Reports whether a host must get another key or give up its old one. False if its first key is not available, or if no accepted key is
    /// recorded.
    pub fn wants(&self, instance: &WindowsInstance) -> bool {
        let place = self.of_host.get(&instance.name_any());
        let Some(Ok(first)) = place.and_then(|place| self.first.get(place)) else { return false };
        let status = instance.status.as_ref();
        let taken = status.and_then(|s| s.public_key_hash.as_ref());
        let retires = status.and_then(|s| s.key_rotation.as_ref()).is_some_and(|k| k.retiring_key_hash.is_some());
        taken.is_some_and(|taken| taken != first || retires)
    }

    /// Returns the time until the Secrets are read again; `None` if there are no keys.
    pub fn look_again(&self) -> Option<Duration> {
        (!self.first.is_empty()).then(|| LOOK_AGAIN.max(max_cache_age(self.first.len())))
    }

    /// Returns the state of the hosts' keys; `None` if there are no keys.
    pub fn standing(&self, members: &[Member]) -> Option<KeyRotationStatus> {
        if self.first.is_empty() {
            return None;
        }
        let problems = self.first.values().filter_map(|k| k.as_ref().err());
        let mut standing = KeyRotationStatus { problem: problems.min().cloned(), ..KeyRotationStatus::default() };
        for Member { instance, candidate } in members {
            if !candidate.joined || candidate.leaving || !self.of_host.contains_key(&candidate.name) {
                continue;
            }
            standing.total += 1;
            if !self.wants(instance) {
                continue;
            }
            let name = instance.name_any();
            let failures = instance.status.as_ref().and_then(|s| s.key_rotation.as_ref()?.failures.as_ref());
            if let Some(f) = failures {
                let remedies =
                    if f.reason() == Reason::AuthenticationFailed { further_remedies(instance) } else { String::new() };
                standing.failed.push((name.clone(), f.summary() + &remedies));
            }
            standing.old.push(name);
        }
        standing.old.sort();
        standing.failed.sort();
        Some(standing)
    }
}

/// Returns further remedies for a host that refuses every key.
fn further_remedies(instance: &WindowsInstance) -> String {
    let machine = instance.spec.origin.as_ref().and_then(|o| o.machine.as_deref());
    let machine = machine.map(|m| format!("; to see whether the Machine {m} is replaced, read its events"));
    format!("; or add the key that the host accepts to the list, after the first key{}", machine.unwrap_or_default())
}

/// State of the SSH keys of a pool's hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRotationStatus {
    /// Number of nodes with a listed key.
    pub total: usize,
    /// Names of the nodes that do not accept the first key of their list yet, or still accept an old key.
    pub old: Vec<String>,
    /// Names of the nodes whose key rotation failed, with the failures.
    pub failed: Vec<(String, String)>,
    /// Reason why a key is not available.
    pub problem: Option<String>,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::{Failures, KeyRotation, Origin, WindowsInstanceSpec, WindowsInstanceStatus};

    use super::*;
    use crate::rollout::grants::Candidate;

    fn member(name: &str, taken: Option<&str>, rotation: Option<KeyRotation>) -> Member {
        let mut instance = WindowsInstance::new(name, WindowsInstanceSpec::default());
        let public_key_hash = taken.map(str::to_owned);
        instance.status =
            Some(WindowsInstanceStatus { public_key_hash, key_rotation: rotation, ..WindowsInstanceStatus::default() });
        Member {
            instance: Arc::new(instance),
            candidate: Candidate { name: name.into(), joined: true, ..Candidate::default() },
        }
    }

    /// Returns keys of hosts, each in a Secret of its own.
    fn keys(of: &[(&str, Result<&str, &str>)]) -> Keys {
        let secret_key = |host: &str| (format!("of-{host}"), "private-key.pem".to_owned());
        Keys {
            first: of.iter().map(|(h, key)| (secret_key(h), key.map(str::to_owned).map_err(str::to_owned))).collect(),
            weak: Vec::new(),
            of_host: of.iter().map(|(h, _)| ((*h).to_owned(), secret_key(h))).collect(),
        }
    }

    fn retiring() -> KeyRotation {
        KeyRotation { retiring_key_hash: Some("1".into()), failures: None }
    }

    #[test]
    fn a_host_with_another_key_or_an_old_key_wants_a_rotation() {
        let (known, unknown) = (keys(&[("a", Ok("2"))]), keys(&[("a", Err("gone"))]));
        for (about, keys, taken, rotation, expected) in [
            ("accepts the old key", &known, Some("1"), None, true),
            ("accepts the new key", &known, Some("2"), None, false),
            ("accepts the new key, and still has the old one", &known, Some("2"), Some(retiring()), true),
            ("accepts the new key after a failed rotation", &known, Some("2"), Some(KeyRotation::default()), false),
            ("was never reached", &known, None, None, false),
            ("is not listed", &Keys::default(), Some("1"), None, false),
            ("its key cannot be read", &unknown, Some("1"), None, false),
        ] {
            assert_eq!(keys.wants(&member("a", taken, rotation).instance), expected, "{about}");
        }
    }

    #[test]
    fn the_status_names_nodes_with_old_keys_and_failed_rotations() {
        let known = keys(&[("a", Ok("2")), ("b", Ok("2")), ("c", Ok("2")), ("d", Err("there is no Secret x"))]);
        let failures = Failures { step: "AddKey".into(), last_message: "read-only".into(), ..Failures::default() };
        let failing = KeyRotation { retiring_key_hash: None, failures: Some(failures) };
        let mut members: Vec<Member> = ["e", "d", "a"].into_iter().map(|name| member(name, Some("1"), None)).collect();
        members.extend([member("c", Some("1"), Some(failing)), member("b", Some("2"), None)]);
        let expected = KeyRotationStatus {
            total: 4,
            old: vec!["a".into(), "c".into()],
            failed: vec![("c".into(), "AddKey: read-only".into())],
            problem: Some("there is no Secret x".into()),
        };
        assert_eq!(known.standing(&members), Some(expected.clone()));
        members[2].candidate.leaving = true;
        let without = KeyRotationStatus { total: 3, old: vec!["c".into()], ..expected };
        assert_eq!(known.standing(&members), Some(without));
        assert_eq!(Keys::default().standing(&members), None);
        assert_eq!((known.look_again(), Keys::default().look_again()), (Some(LOOK_AGAIN), None));
    }

    #[test]
    fn the_message_for_a_host_that_refuses_all_keys_has_further_remedies() {
        let refused = Failures {
            step: "Connect".into(),
            last_reason: "AuthenticationFailed".into(),
            last_message: "add it".into(),
            ..Failures::default()
        };
        let rotation = KeyRotation { retiring_key_hash: None, failures: Some(refused) };
        for (machine, expected) in [
            (None, "Connect: add it; or add the key that the host accepts to the list, after the first key"),
            (
                Some("ns/m"),
                "Connect: add it; or add the key that the host accepts to the list, after the first key; to see whether the Machine ns/m is replaced, read its events",
            ),
        ] {
            let mut member = member("a", Some("1"), Some(rotation.clone()));
            let origin = Origin { machine: machine.map(Into::into), ..Origin::default() };
            Arc::get_mut(&mut member.instance).unwrap().spec.origin = Some(origin);
            let standing = keys(&[("a", Ok("2"))]).standing(&[member]).unwrap();
            assert_eq!(standing.failed, [("a".to_owned(), expected.to_owned())]);
        }
    }

    #[test]
    fn many_secrets_are_read_less_often() {
        for (count, old, again) in
            [(1, 50, 60_000), (20, 1_000, 60_000), (1_200, 60_000, 60_000), (4_000, 200_000, 200_000)]
        {
            let names: Vec<String> = (0..count).map(|n| n.to_string()).collect();
            let known = keys(&names.iter().map(|n| (n.as_str(), Ok("2"))).collect::<Vec<_>>());
            assert_eq!(max_cache_age(count), Duration::from_millis(old), "{count}");
            assert_eq!(known.look_again(), Some(Duration::from_millis(again)), "{count}");
        }
    }
}
