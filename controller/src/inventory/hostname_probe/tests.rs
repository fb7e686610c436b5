//! Tests of the probe for the names of hosts.

use super::*;
use api::{Host, HostKeyPolicy, Reason, Ssh, WindowsNodePoolSpec, WindowsNodePoolStatus};

const KEY: &str = "SHA256:mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE";

fn pool(contacts: Vec<FirstContact>, policy: Option<HostKeyPolicy>) -> Arc<WindowsNodePool> {
    let ssh = Some(Ssh { host_key_policy: policy, ..Ssh::default() });
    let mut pool = WindowsNodePool::new("p", WindowsNodePoolSpec { ssh, ..WindowsNodePoolSpec::default() });
    pool.status = Some(WindowsNodePoolStatus { contacts, ..WindowsNodePoolStatus::default() });
    Arc::new(pool)
}

fn host(address: &str) -> (Endpoint, Entry) {
    let host = Host { address: address.into(), ..Host::default() };
    ((address.into(), 22), Entry { host, origin: None })
}

fn contact(hostname: Option<&str>) -> FirstContact {
    FirstContact {
        address: "10.0.0.1".into(),
        port: 22,
        host_key: KEY.into(),
        dialed: "10.0.0.1".into(),
        hostname: hostname.map(Into::into),
        ..FirstContact::default()
    }
}

/// Takes the next task, and returns its host if it is a contact.
fn begun(asking: &HostnameProbe) -> Option<Arc<Ask>> {
    let mut state = asking.lock();
    let (pool, task) = state.queue.next()?;
    state.queue.done(&pool, &task);
    match task {
        Task::Contact(place) => state.asked.get(&(pool, place)).cloned(),
        Task::Lookup(_) => None,
    }
}

#[test]
fn a_host_is_asked_for_its_name_once_its_key_is_stored() {
    let asking = HostnameProbe::default();
    let (hosts, now) = ([host("10.0.0.1")], Instant::now());
    let places = BTreeSet::from([hosts[0].0.clone()]);
    asking.queue(&pool(vec![], None), &hosts, now);
    let first = begun(&asking).unwrap();
    assert_eq!(host_key_of(&first.entry, first.stored.as_ref(), &first.pool), Ok(HostKeySource::FirstUse));
    asking.answered(&first, Ok(contact(None)), now);
    // The key is known, but not stored yet.
    asking.queue(&pool(vec![], None), &hosts, now);
    assert!(begun(&asking).is_none());
    assert_eq!(asking.contacts("p", &[], &places), [contact(None)]);

    asking.queue(&pool(vec![contact(None)], None), &hosts, now);
    let second = begun(&asking).unwrap();
    assert!(matches!(
        host_key_of(&second.entry, second.stored.as_ref(), &second.pool),
        Ok(HostKeySource::Check(remote::ssh::HostKeyCheck::PinnedFingerprint(f))) if f == KEY
    ));
    asking.answered(&second, Ok(contact(Some("win"))), now);
    assert_eq!(asking.contacts("p", &[contact(None)], &places), [contact(Some("win"))]);

    // The name is refused, so the host is contacted again only rarely, also by an operator that has just started.
    let stored = pool(vec![contact(Some("win"))], None);
    for asking in [&asking, &HostnameProbe::default()] {
        assert_eq!(asking.queue(&stored, &hosts, now), Some(FIRST_REVISIT));
        assert!(begun(asking).is_none());
        let mut at = now;
        for wait in [2 * FIRST_REVISIT, 4 * FIRST_REVISIT, 8 * FIRST_REVISIT, LAST_REVISIT, LAST_REVISIT] {
            at += LAST_REVISIT;
            asking.queue(&stored, &hosts, at);
            asking.answered(&begun(asking).unwrap(), Ok(contact(Some("win"))), at);
            assert_eq!(asking.queue(&stored, &hosts, at), Some(wait));
            assert!(begun(asking).is_none(), "it was asked at once");
            assert!(asking.lock().fresh.is_empty(), "there is nothing new");
        }
    }
    // An entry that is removed from the list is forgotten.
    asking.queue(&stored, &[], now);
    assert!(asking.lock().revisits.is_empty() && asking.contacts("p", &[contact(None)], &BTreeSet::new()).is_empty());
}

#[test]
fn a_host_that_fails_is_asked_again_with_backoff_and_stays_reported() {
    let asking = HostnameProbe::default();
    let (hosts, pool, mut now) = ([host("10.0.0.1")], pool(vec![], None), Instant::now());
    asking.queue(&pool, &hosts, now);
    for wait in [10, 20, 40, 80, 160, 300, 300] {
        let ask = begun(&asking).unwrap();
        asking.answered(&ask, Err(Failure { reason: Reason::HostnameUnknown, message: "no".into() }), now);
        let wait = Duration::from_secs(wait);
        assert_eq!(asking.queue(&pool, &hosts, now), Some(wait));
        assert!(begun(&asking).is_none());
        now += wait;
        asking.queue(&pool, &hosts, now);
        assert!(asking.failure("p", &hosts[0].0).is_some(), "it is reported while the host is asked again");
    }
}

#[test]
fn with_policy_strict_only_hosts_with_a_declared_key_are_asked() {
    let asking = HostnameProbe::default();
    let strict = pool(vec![], Some(HostKeyPolicy::Strict));
    let mut declared = host("10.0.0.2");
    declared.1.host.host_key = Some(KEY.into());
    asking.queue(&strict, &[host("10.0.0.1"), declared], Instant::now());
    assert_eq!(begun(&asking).map(|a| a.place.0.clone()).as_deref(), Some("10.0.0.2"));
    assert!(begun(&asking).is_none());
}

#[test]
fn the_number_of_hosts_to_ask_is_limited() {
    let asking = HostnameProbe::default();
    let hosts: Vec<_> = (0..MAX_ASKED + 500).map(|n| host(&format!("host-{n}"))).collect();
    asking.queue(&pool(vec![], None), &hosts, Instant::now());
    assert_eq!(std::iter::from_fn(|| begun(&asking)).count(), MAX_ASKED);
    asking.forget("p");
    assert!(asking.lock().asked.is_empty());
}
