//! Asks hosts for their names: those of lists that have none.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use api::{InstanceHost, WindowsInstance, WindowsInstanceSpec, WindowsNodePool, host::Verb};
use kube::ResourceExt;
use sha2::{Digest as _, Sha256};

use super::{
    Entry,
    naming::{Place, Said},
};
use crate::{
    context::Context,
    instance::{Session, StepError, login},
};

/// A host that could not be asked is asked again after this time, and after twice as long each further time.
const FIRST_RETRY: Duration = Duration::from_secs(10);
const LAST_RETRY: Duration = Duration::from_mins(5);

/// What hosts have said, and who is being asked.
#[derive(Default)]
pub struct Asking(Mutex<HashMap<(String, Place), State>>);

#[derive(Clone)]
enum State {
    Asked { failures: u32 },
    Said(String),
    Failed { message: String, again: Instant, failures: u32 },
}

impl Asking {
    /// What the host at a place of this pool has said, or why it could not be asked.
    pub fn said(&self, pool: &str, place: &Place) -> Option<Said> {
        match self.lock().get(&(pool.to_owned(), place.clone()))? {
            State::Asked { .. } => None,
            State::Said(name) => Some(Ok(name.clone())),
            State::Failed { message, .. } => Some(Err(("HostnameUnknown", message.clone()))),
        }
    }

    /// Has hosts asked that are due, in the background; the pool is woken when one has answered. Returns when the next is due.
    pub fn ask(&self, pool: &Arc<WindowsNodePool>, unnamed: &[(Place, Entry)], cx: &Arc<Context>) -> Option<Duration> {
        let (name, now) = (pool.name_any(), Instant::now());
        let mut known = self.lock();
        known.retain(|(p, place), _| *p != name || unnamed.iter().any(|(u, _)| u == place));
        let mut next = None;
        for (place, entry) in unnamed {
            let key = (name.clone(), place.clone());
            let failures = match known.get(&key) {
                None => 0,
                Some(State::Failed { again, failures, .. }) if *again <= now => *failures,
                Some(State::Failed { again, .. }) => {
                    let wait = again.duration_since(now);
                    next = Some(next.map_or(wait, |n: Duration| n.min(wait)));
                    continue;
                }
                // A name that was said and cannot be used is asked for again only when the list changes.
                Some(State::Asked { .. } | State::Said(_)) => continue,
            };
            known.insert(key, State::Asked { failures });
            tokio::spawn(ask(cx.clone(), pool.clone(), place.clone(), entry.clone()));
        }
        next
    }

    fn store(&self, pool: &str, place: Place, result: Result<String, StepError>) {
        let mut known = self.lock();
        let Some(state) = known.get_mut(&(pool.to_owned(), place)) else { return };
        let before = match state {
            State::Asked { failures } => *failures,
            _ => 0,
        };
        *state = match result {
            Ok(name) => State::Said(name),
            Err(error) => {
                let wait = FIRST_RETRY.saturating_mul(1 << before.min(8)).min(LAST_RETRY);
                let message = format!("the host has not told its name yet: {error}");
                State::Failed { message, again: Instant::now() + wait, failures: before + 1 }
            }
        };
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(String, Place), State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ask(cx: Arc<Context>, pool: Arc<WindowsNodePool>, place: Place, entry: Entry) {
    let result = Box::pin(cx.stop.run_until_cancelled(hostname(&cx, &pool, &place, &entry))).await;
    let Some(result) = result else { return };
    if let Err(error) = &result {
        tracing::warn!(pool = pool.name_any(), address = place.0, %error, "a host could not be asked for its name");
    }
    cx.asking.store(&pool.name_any(), place, result);
    cx.wake.pool(&pool.name_any());
}

/// What a host calls itself. Nothing is left on it but wicd's exe, which it gets anyway when it joins.
async fn hostname(
    cx: &Arc<Context>,
    pool: &WindowsNodePool,
    place: &Place,
    entry: &Entry,
) -> Result<String, StepError> {
    let (host, ssh) = (&entry.host, pool.spec.ssh());
    let keys = host.private_key_secret_ref.clone().map_or_else(|| ssh.private_keys(), |key| vec![key]);
    let host = InstanceHost {
        name: String::new(),
        address: host.address.clone(),
        port: place.1,
        username: host.username.clone().unwrap_or_else(|| ssh.username().into()),
        host_key: host.host_key.clone(),
        private_keys: keys,
        labels: host.labels.clone().unwrap_or_default(),
    };
    let spec = WindowsInstanceSpec { host, ..WindowsInstanceSpec::default() };
    let instance = WindowsInstance::new("", spec);
    let id = hex::encode(Sha256::digest(format!("{} {}", place.0, place.1)));
    let login = login(cx, &instance, pool).await?;
    let session = Session::open(cx, &instance, &format!("name-{}", &id[..10]), login).await?;
    session.prepare().await?;
    let state = session.look(&[]).await?;
    session.tidy(&[Verb::Facts]).await?;
    session.close().await;
    Ok(state.machine.hostname)
}
