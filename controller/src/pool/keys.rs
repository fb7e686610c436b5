//! Which SSH key the hosts of a pool shall take, and which of them do not yet.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    time::Duration,
};

use api::{InstanceHost, WindowsInstance};
use kube::ResourceExt;

use super::members::Member;
use crate::context::Context;

/// Nobody tells when a Secret changes, and a pool that has several keys waits for the end of something.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// The first keys of hosts that have several.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// The hash of each, or why it cannot be had, by Secret and key in it.
    first: HashMap<Place, Result<String, String>>,
    /// Where that of each host is. What the pool lists counts: its instances may not have been told yet.
    of_host: HashMap<String, Place>,
}

/// Secret, and key in it.
type Place = (String, String);

impl Keys {
    /// Reads them. A Secret that nobody needs is not read: with a single key there is nothing to come from.
    pub async fn read(hosts: &BTreeMap<String, InstanceHost>, cx: &Context) -> Self {
        let mut keys = Self::default();
        for (name, host) in hosts {
            let Some(reference) = host.private_keys.first().filter(|_| host.private_keys.len() > 1) else { continue };
            let place: Place = (reference.name.clone(), reference.key().to_owned());
            keys.of_host.insert(name.clone(), place.clone());
            if let Entry::Vacant(unread) = keys.first.entry(place) {
                let key = cx.secrets.key(reference).await;
                unread.insert(key.map(|k| k.identity.public_key_hash()).map_err(|e| e.to_string()));
            }
        }
        keys
    }

    /// Whether a host is to be given another one. Never when it is not known which.
    pub fn wants(&self, instance: &WindowsInstance) -> bool {
        let place = self.of_host.get(&instance.name_any());
        let Some(Ok(first)) = place.and_then(|place| self.first.get(place)) else { return false };
        let status = instance.status.as_ref();
        let taken = status.and_then(|s| s.public_key_hash.as_ref());
        let retires = status.and_then(|s| s.key_rotation.as_ref()).is_some_and(|k| k.retiring_key_hash.is_some());
        taken.is_some_and(|taken| taken != first || retires)
    }

    /// When to look at the Secrets again.
    pub fn look_again(&self) -> Option<Duration> {
        (!self.first.is_empty()).then_some(LOOK_AGAIN)
    }

    /// How it stands with them; `None` if there is nothing to say.
    pub fn standing(&self, members: &[Member]) -> Option<Standing> {
        if self.first.is_empty() {
            return None;
        }
        let problems = self.first.values().filter_map(|k| k.as_ref().err());
        let mut standing = Standing { problem: problems.min().cloned(), ..Standing::default() };
        for Member { instance, slot } in members {
            if !slot.joined || slot.leaving || !self.of_host.contains_key(&slot.name) {
                continue;
            }
            standing.total += 1;
            if !self.wants(instance) {
                continue;
            }
            let name = instance.name_any();
            let failures = instance.status.as_ref().and_then(|s| s.key_rotation.as_ref()?.failures.as_ref());
            if let Some(f) = failures {
                standing.failed.push((name.clone(), format!("{}: {}", f.step, f.last_message)));
            }
            standing.old.push(name);
        }
        standing.old.sort();
        standing.failed.sort();
        Some(standing)
    }
}

/// How it stands with the keys of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Nodes that have several keys listed.
    pub total: usize,
    /// Those that take an old one, by name.
    pub old: Vec<String>,
    /// Those for which giving them the new one has failed, and why.
    pub failed: Vec<(String, String)>,
    /// Why a key cannot be had.
    pub problem: Option<String>,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::{Failures, KeyRotation, WindowsInstanceSpec, WindowsInstanceStatus};

    use super::*;
    use crate::plan::grants::Slot;

    fn member(name: &str, taken: Option<&str>, rotation: Option<KeyRotation>) -> Member {
        let mut instance = WindowsInstance::new(name, WindowsInstanceSpec::default());
        let public_key_hash = taken.map(str::to_owned);
        instance.status =
            Some(WindowsInstanceStatus { public_key_hash, key_rotation: rotation, ..WindowsInstanceStatus::default() });
        Member { instance: Arc::new(instance), slot: Slot { name: name.into(), joined: true, ..Slot::default() } }
    }

    /// The first keys of hosts, each in a Secret of its own.
    fn keys(of: &[(&str, Result<&str, &str>)]) -> Keys {
        let place = |host: &str| (format!("of-{host}"), "private-key.pem".to_owned());
        Keys {
            first: of.iter().map(|(h, key)| (place(h), key.map(str::to_owned).map_err(str::to_owned))).collect(),
            of_host: of.iter().map(|(h, _)| ((*h).to_owned(), place(h))).collect(),
        }
    }

    fn retiring() -> KeyRotation {
        KeyRotation { retiring_key_hash: Some("1".into()), failures: None }
    }

    #[test]
    fn who_gets_another_key() {
        let (known, unknown) = (keys(&[("a", Ok("2"))]), keys(&[("a", Err("gone"))]));
        for (about, keys, taken, rotation, expected) in [
            ("takes the old one", &known, Some("1"), None, true),
            ("takes the new one", &known, Some("2"), None, false),
            ("and has the old one yet", &known, Some("2"), Some(retiring()), true),
            ("has only failed", &known, Some("2"), Some(KeyRotation::default()), false),
            ("was never reached", &known, None, None, false),
            ("has one key", &Keys::default(), Some("1"), None, false),
            ("its key cannot be read", &unknown, Some("1"), None, false),
        ] {
            assert_eq!(keys.wants(&member("a", taken, rotation).instance), expected, "{about}");
        }
    }

    #[test]
    fn what_is_told() {
        let known = keys(&[("a", Ok("2")), ("b", Ok("2")), ("c", Ok("2")), ("d", Err("there is no Secret x"))]);
        let failures = Failures { step: "AddKey".into(), last_message: "read-only".into(), ..Failures::default() };
        let failing = KeyRotation { retiring_key_hash: None, failures: Some(failures) };
        let mut members: Vec<Member> = ["e", "d", "a"].into_iter().map(|name| member(name, Some("1"), None)).collect();
        members.extend([member("c", Some("1"), Some(failing)), member("b", Some("2"), None)]);
        let expected = Standing {
            total: 4,
            old: vec!["a".into(), "c".into()],
            failed: vec![("c".into(), "AddKey: read-only".into())],
            problem: Some("there is no Secret x".into()),
        };
        assert_eq!(known.standing(&members), Some(expected.clone()));
        members[2].slot.leaving = true;
        let without = Standing { total: 3, old: vec!["c".into()], ..expected };
        assert_eq!(known.standing(&members), Some(without));
        assert_eq!(Keys::default().standing(&members), None);
        assert_eq!((known.look_again(), Keys::default().look_again()), (Some(LOOK_AGAIN), None));
    }
}
