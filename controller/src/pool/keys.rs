//! Which SSH key the hosts of a pool shall take, and which of them do not yet.

use std::{
    collections::{HashMap, hash_map::Entry},
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
    first: HashMap<(String, String), Result<String, String>>,
}

fn first(host: &InstanceHost) -> Option<(String, String)> {
    let first = host.private_keys.first().filter(|_| host.private_keys.len() > 1)?;
    Some((first.name.clone(), first.key().to_owned()))
}

impl Keys {
    /// Reads them. A Secret that nobody needs is not read: with a single key there is nothing to come from.
    pub async fn read(hosts: impl Iterator<Item = &InstanceHost>, cx: &Context) -> Self {
        let mut keys = Self::default();
        for host in hosts {
            let (Some(id), Some(reference)) = (first(host), host.private_keys.first()) else { continue };
            if let Entry::Vacant(unread) = keys.first.entry(id) {
                let key = cx.secrets.key(reference).await;
                unread.insert(key.map(|k| k.identity.public_key_hash()).map_err(|e| e.to_string()));
            }
        }
        keys
    }

    /// Whether a host with these keys is to be given another one. Never when it is not known which.
    pub fn wants(&self, host: &InstanceHost, instance: &WindowsInstance) -> bool {
        let Some(Ok(first)) = first(host).and_then(|id| self.first.get(&id)) else { return false };
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
            if !slot.joined || slot.leaving || first(&instance.spec.host).is_none() {
                continue;
            }
            standing.total += 1;
            if !self.wants(&instance.spec.host, instance) {
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

    use api::{Failures, KeyRotation, SecretKeyRef, WindowsInstanceSpec, WindowsInstanceStatus};

    use super::*;
    use crate::plan::grants::Slot;

    fn host(secrets: &[&str]) -> InstanceHost {
        let private_keys = secrets.iter().map(|s| SecretKeyRef { name: (*s).into(), key: None }).collect();
        InstanceHost { private_keys, ..InstanceHost::default() }
    }

    fn member(name: &str, secrets: &[&str], taken: Option<&str>, rotation: Option<KeyRotation>) -> Member {
        let spec = WindowsInstanceSpec { host: host(secrets), ..WindowsInstanceSpec::default() };
        let mut instance = WindowsInstance::new(name, spec);
        let public_key_hash = taken.map(str::to_owned);
        instance.status =
            Some(WindowsInstanceStatus { public_key_hash, key_rotation: rotation, ..WindowsInstanceStatus::default() });
        Member { instance: Arc::new(instance), slot: Slot { joined: true, ..Slot::default() } }
    }

    fn keys(of: &[(&str, Result<&str, &str>)]) -> Keys {
        let of = of.iter().map(|(secret, key)| {
            ((((*secret).to_owned()), "private-key.pem".to_owned()), key.map(str::to_owned).map_err(str::to_owned))
        });
        Keys { first: of.collect() }
    }

    fn retiring() -> KeyRotation {
        KeyRotation { retiring_key_hash: Some("1".into()), failures: None }
    }

    #[test]
    fn who_gets_another_key() {
        let (known, unknown) = (keys(&[("new", Ok("2"))]), keys(&[("new", Err("gone"))]));
        for (about, keys, secrets, taken, rotation, expected) in [
            ("takes the old one", &known, &["new", "old"][..], Some("1"), None, true),
            ("takes the new one", &known, &["new", "old"], Some("2"), None, false),
            ("and has the old one yet", &known, &["new", "old"], Some("2"), Some(retiring()), true),
            ("has only failed", &known, &["new", "old"], Some("2"), Some(KeyRotation::default()), false),
            ("was never reached", &known, &["new", "old"], None, None, false),
            ("one key", &known, &["new"], Some("1"), None, false),
            ("no key", &known, &[], Some("1"), None, false),
            ("other keys", &known, &["other", "old"], Some("1"), None, false),
            ("cannot be read", &unknown, &["new", "old"], Some("1"), None, false),
        ] {
            let member = member("a", secrets, taken, rotation);
            assert_eq!(keys.wants(&member.instance.spec.host, &member.instance), expected, "{about}");
        }
    }

    #[test]
    fn what_is_told() {
        let known = keys(&[("new", Ok("2")), ("mine", Err("there is no Secret mine"))]);
        let failures = Failures { step: "AddKey".into(), last_message: "read-only".into(), ..Failures::default() };
        let failing = KeyRotation { retiring_key_hash: None, failures: Some(failures) };
        let members = [
            member("c", &["new", "old"], Some("1"), Some(failing)),
            member("b", &["new", "old"], Some("2"), None),
            member("a", &["new", "old"], Some("1"), None),
            member("d", &["mine", "old"], Some("1"), None),
            member("e", &["old"], Some("1"), None),
        ];
        let expected = Standing {
            total: 4,
            old: vec!["a".into(), "c".into()],
            failed: vec![("c".into(), "AddKey: read-only".into())],
            problem: Some("there is no Secret mine".into()),
        };
        assert_eq!(known.standing(&members), Some(expected));
        assert_eq!(Keys::default().standing(&members), None);
        assert_eq!((known.look_again(), Keys::default().look_again()), (Some(LOOK_AGAIN), None));
    }
}
