//! `inventory.git`: repositories that pools name, fetched in the background, once for all pools that name the same.
//!
//! Fetches take seconds or fail slowly; a pool never waits for one. It gets the last result, and is triggered when
//! there is something new.

mod evaluate;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use api::{GitSource, InventoryStatus, WindowsNodePool, conditions::reason, names::key};
use gitops::{
    Limits,
    repository::{Access, Head, Proxy, Repository, Request},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::flux::server::shown;
use crate::{
    args::Run,
    metrics::Metrics,
    reconcile_trigger::ReconcileTrigger,
    supervision::{Panicked, catch},
};
use evaluate::{Task, evaluate, source, trouble};
use wnp_core::inventory::{HostList, SourceError, SourceOutcome, ownership::Begun, revision_policy};

/// A look that failed is repeated after this time, and after twice as long each further time, at most after the interval.
const FIRST_RETRY: Duration = Duration::from_secs(5);

/// All repositories that pools name.
pub(crate) struct GitSources {
    client: Client,
    namespace: String,
    dir: PathBuf,
    wake: ReconcileTrigger,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    known: Mutex<HashMap<Key, Arc<CachedRepository>>>,
}

/// Key under which pools share a repository.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    url: String,
    reference: String,
    secret: Option<String>,
    proxy: Option<String>,
}

impl Key {
    fn of(git: &GitSource) -> Self {
        Self {
            url: git.url.clone(),
            reference: serde_json::to_string(&git.reference).unwrap_or_default(),
            secret: git.secret_ref.as_ref().map(|s| s.name.clone()),
            proxy: git.proxy_secret_ref.as_ref().map(|s| s.name.clone()),
        }
    }
}

/// One repository, and what was seen of it.
#[derive(Default)]
struct CachedRepository {
    state: Mutex<State>,
    /// Lock for readers and writers of the directory.
    disk: tokio::sync::Mutex<Option<Arc<Repository>>>,
    /// Signals the end of a fetch.
    looked: tokio::sync::Notify,
}

#[derive(Default)]
struct State {
    looking: bool,
    /// Counts looks, so that each is evaluated once for each pool.
    looks: u64,
    head: Option<Head>,
    trouble: Option<SourceError>,
    failures: u32,
    next: Option<Timestamp>,
    /// When the last look was over.
    looked: Option<Timestamp>,
    /// When it began, among the reads of all lists.
    began: Option<Begun>,
    /// Who is to be woken.
    pools: BTreeSet<String>,
    /// What each pool was last asked by hand.
    requested: BTreeMap<String, String>,
    /// What each pool has made of it.
    lists: BTreeMap<String, List>,
}

/// What a pool has made of a repository.
#[derive(Clone)]
struct List {
    looks: u64,
    settings: GitSource,
    in_force: Option<Arc<HostList>>,
    trouble: Option<SourceError>,
    refused: Option<String>,
}

impl GitSources {
    /// Keeps repositories below `dir`.
    pub(crate) fn new(
        client: Client,
        args: &Run,
        wake: ReconcileTrigger,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) -> Self {
        let (namespace, dir) = (args.namespace.clone(), args.cache.clone());
        Self { client, namespace, dir, wake, metrics, stop, known: Mutex::default() }
    }

    /// The list that is in force for a pool. With `waits` it is waited for if it is not known yet.
    pub(crate) async fn ask(
        &self,
        pool: &WindowsNodePool,
        git: &GitSource,
        begun: Begun,
        waits: bool,
    ) -> SourceOutcome {
        let (name, key) = (pool.name_any(), Key::of(git));
        let remote = self.remote(&name, &key);
        let requested = pool.annotations().get(key::RECONCILE_REQUESTED);
        if remote.is_due(&name, git, requested, begun, Timestamp::now()) {
            let looked = remote.looked.notified();
            tokio::spawn(look(self.clone_for_look(), key, remote.clone(), git.clone(), begun));
            if waits {
                looked.await;
            }
        }
        let (looks, next, as_of) = {
            let state = remote.lock();
            // What is suspended goes on listing what it has.
            let is_followed = git.suspend != Some(true);
            (state.looks, state.next.filter(|_| is_followed), state.began.filter(|_| is_followed))
        };
        let before = pool.status.as_ref().and_then(|s| s.inventory.clone());
        let before = before.filter(|b| b.source == source(git) && b.revision.is_some());
        let list = match remote.list(&name, looks, git) {
            Some(list) => list,
            None => self.evaluate(&name, &remote, git, before, looks).await,
        };
        asked(list, git.suspend == Some(true), next, as_of)
    }

    /// Fetches a repository at once, after a push. Returns the number of matching repositories.
    pub(crate) fn on_push(&self, is_it: impl Fn(&str) -> bool) -> usize {
        let known = self.known.lock();
        let mut count = 0;
        for (_, remote) in known.iter().filter(|(key, _)| is_it(&key.url)) {
            let mut state = remote.lock();
            state.next = Some(Timestamp::UNIX_EPOCH);
            count += 1;
            for pool in &state.pools {
                self.wake.pool(pool);
            }
        }
        count
    }

    fn remote(&self, pool: &str, key: &Key) -> Arc<CachedRepository> {
        let mut known = self.known.lock();
        // A pool that names another one now needs the first one no more.
        known.retain(|k, remote| {
            let mut state = remote.lock();
            if k != key {
                state.pools.remove(pool);
                state.lists.remove(pool);
            }
            k == key || !state.pools.is_empty() || state.looking
        });
        let remote = known.entry(key.clone()).or_default().clone();
        remote.lock().pools.insert(pool.to_owned());
        remote
    }

    fn clone_for_look(&self) -> Looker {
        Looker {
            secrets: Api::namespaced(self.client.clone(), &self.namespace),
            dir: self.dir.clone(),
            wake: self.wake.clone(),
            metrics: self.metrics.clone(),
            stop: self.stop.clone(),
        }
    }

    /// Makes a list of what was seen last.
    async fn evaluate(
        &self,
        pool: &str,
        remote: &Arc<CachedRepository>,
        git: &GitSource,
        known: Option<InventoryStatus>,
        looks: u64,
    ) -> List {
        let (head, trouble_of_look) = {
            let state = remote.lock();
            (state.head.clone(), state.trouble.clone())
        };
        let old = remote.lock().lists.get(pool).filter(|l| l.settings == *git).and_then(|l| l.in_force.clone());
        let keys = match &git.verify {
            None => Ok(None),
            Some(verify) => self.secret(&verify.secret_ref.name).await.map(Some),
        };
        let known = old.as_ref().and_then(|o| o.status.clone()).or(known);
        let before = known.as_ref().and_then(|k| k.revision.clone());
        let found = match (head, keys) {
            (None, _) => Err(None),
            (Some(head), Err(trouble)) => Err(Some((trouble, head.revision))),
            (Some(head), Ok(keys)) => {
                let revision = head.revision.clone();
                let task = Task { git: git.clone(), head, before: before.clone(), keys };
                on_disk(remote, &self.dir, &Key::of(git), move |r| evaluate(r, &task))
                    .await
                    .map_err(|trouble| Some((trouble, revision)))
            }
        };
        let list = match found {
            Ok(listing) => List {
                looks,
                settings: git.clone(),
                in_force: Some(Arc::new(listing)),
                trouble: trouble_of_look,
                refused: None,
            },
            Err(why) => {
                let in_force = match (old, known) {
                    (Some(old), _) => Some(old),
                    (None, Some(known)) => self.again(remote, git, known).await,
                    (None, None) => None,
                };
                let (trouble, refused) = match why {
                    Some((trouble, revision)) => (Some(trouble), Some(revision)),
                    None => (trouble_of_look, None),
                };
                List { looks, settings: git.clone(), in_force, trouble, refused }
            }
        };
        remote.lock().lists.insert(pool.to_owned(), list.clone());
        list
    }

    /// The list at a revision that was in force when this process began, if it is still there to be read. The signer at
    /// that time has signed it still.
    async fn again(
        &self,
        remote: &Arc<CachedRepository>,
        git: &GitSource,
        known: InventoryStatus,
    ) -> Option<Arc<HostList>> {
        let revision = known.revision?;
        let commit = revision_policy::commit(&revision)?.to_owned();
        let (settings, signer) = (git.clone(), known.signer);
        let read = move |r: &Repository| evaluate::read(r, &settings, &revision, &commit, signer);
        on_disk(remote, &self.dir, &Key::of(git), read).await.ok().map(Arc::new)
    }

    async fn secret(&self, name: &str) -> Result<BTreeMap<String, Vec<u8>>, SourceError> {
        secret(&Api::namespaced(self.client.clone(), &self.namespace), name).await
    }
}

/// Report for a pool.
fn asked(list: List, suspended: bool, next: Option<Timestamp>, as_of: Option<Begun>) -> SourceOutcome {
    let List { in_force, trouble, refused, .. } = list;
    let Some(listing) = in_force else {
        let (reason, message) = if suspended {
            (reason::SUSPENDED, "inventory.git.suspend is set, and this operator has not fetched the repository")
        } else {
            (reason::FETCHING, "the repository is being fetched for the first time")
        };
        let nothing_yet = || SourceError { reason, message: message.into(), stalls: false };
        return SourceOutcome::Unknown(trouble.unwrap_or_else(nothing_yet), next);
    };
    let mut listing = HostList::clone(&listing);
    listing.trouble = trouble;
    (listing.next, listing.as_of) = (next, as_of);
    if let Some(status) = &mut listing.status {
        status.refused_revision = refused;
    }
    SourceOutcome::Listed(Box::new(listing))
}

impl CachedRepository {
    fn lock(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether a fetch is due; if so, the caller must perform it.
    fn is_due(&self, pool: &str, git: &GitSource, requested: Option<&String>, begun: Begun, now: Timestamp) -> bool {
        // What is asked for meanwhile is done afterwards.
        if git.suspend == Some(true) {
            return false;
        }
        let mut state = self.lock();
        let by_hand = requested.is_some_and(|r| state.requested.get(pool) != Some(r));
        // What was asked for before this process began has been done.
        let is_new = by_hand && state.looks > 0;
        if let Some(requested) = requested {
            state.requested.insert(pool.to_owned(), requested.clone());
        }
        // The interval may have been longer when the last look was over.
        let long_ago =
            state.looked.and_then(|l| l.checked_add(git.interval().mul_f64(1.06)).ok()).is_some_and(|next| next <= now);
        let in_time = state.next.is_none_or(|next| next <= now) || (long_ago && state.failures == 0);
        let due = !state.looking && (is_new || in_time || begun.is_awaited(state.began));
        state.looking |= due;
        due
    }

    /// What a pool has made of the last look, if it has.
    fn list(&self, pool: &str, looks: u64, git: &GitSource) -> Option<List> {
        self.lock().lists.get(pool).filter(|l| l.looks == looks && l.settings == *git).cloned()
    }
}

/// What a look in the background needs.
struct Looker {
    secrets: Api<Secret>,
    dir: PathBuf,
    wake: ReconcileTrigger,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

/// Fetches from a server once, and triggers the pools.
async fn look(looker: Looker, key: Key, remote: Arc<CachedRepository>, git: GitSource, begun: Begun) {
    let result = catch(fetch(&looker, &key, &remote, &git)).await.unwrap_or_else(|fault| {
        Err(SourceError { reason: Panicked::REASON, message: fault.to_string(), stalls: false })
    });
    let now = Timestamp::now();
    let pools = {
        let mut state = remote.lock();
        state.looking = false;
        if result.is_err() && looker.stop.is_cancelled() {
            // The end of this process interrupted it, which says nothing about the repository.
            remote.looked.notify_waiters();
            return;
        }
        state.looks += 1;
        state.began = Some(begun);
        let wait = match result {
            Ok(head) => {
                looker.metrics.git_received.inc_by(head.received);
                state.failures = 0;
                state.trouble = None;
                state.head = Some(head);
                jitter(git.interval())
            }
            Err(trouble) => {
                tracing::warn!(url = shown(&key.url), reason = trouble.reason, "{}", trouble.message);
                let wait = FIRST_RETRY.saturating_mul(1 << state.failures.min(10)).min(git.interval());
                state.failures += 1;
                state.trouble = Some(trouble);
                jitter(wait)
            }
        };
        (state.next, state.looked) = (now.checked_add(wait).ok(), Some(now));
        state.pools.clone()
    };
    remote.looked.notify_waiters();
    for pool in &pools {
        looker.wake.pool(pool);
    }
}

async fn fetch(
    looker: &Looker,
    key: &Key,
    remote: &Arc<CachedRepository>,
    git: &GitSource,
) -> Result<Head, SourceError> {
    let mut access = match &git.secret_ref {
        None => Access::default(),
        Some(s) => {
            let data = secret(&looker.secrets, &s.name).await?;
            Access::from_secret(&git.url, &data).map_err(|e| credentials(&s.name, &e))?
        }
    };
    if let Some(s) = &git.proxy_secret_ref {
        let data = secret(&looker.secrets, &s.name).await?;
        access.proxy = Some(Proxy::from_secret(&data).map_err(|e| credentials(&s.name, &e))?);
    }
    let request = Request {
        url: git.url.clone(),
        reference: git.reference.clone().unwrap_or_default(),
        access,
        timeout: git.timeout(),
        limits: Limits::default(),
    };
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = interrupted.clone();
    let fetching = on_disk(remote, &looker.dir, key, move |r| r.fetch(&request, &flag).map_err(|e| trouble(&e)));
    tokio::pin!(fetching);
    tokio::select! {
        result = &mut fetching => result,
        () = looker.stop.cancelled() => {
            interrupted.store(true, Ordering::Relaxed);
            fetching.await
        }
    }
}

/// Does something with the repository on disk, which is opened first if it is not. One at a time.
async fn on_disk<T: Send + 'static>(
    remote: &Arc<CachedRepository>,
    dir: &Path,
    key: &Key,
    work: impl FnOnce(&Repository) -> Result<T, SourceError> + Send + 'static,
) -> Result<T, SourceError> {
    let mut disk = remote.disk.lock().await;
    let there = disk.clone();
    let dir = dir.join(&hex::encode(Sha256::digest(format!("{key:?}")))[..16]);
    let done = tokio::task::spawn_blocking(move || {
        let repository = match there {
            Some(repository) => repository,
            None => Arc::new(Repository::open(&dir).map_err(|e| trouble(&e))?),
        };
        let result = work(&repository);
        Ok((repository, result))
    });
    match done.await {
        Ok(Ok((repository, result))) => {
            *disk = Some(repository);
            result
        }
        Ok(Err(trouble)) => Err(trouble),
        Err(_) => Err(SourceError {
            reason: "GitOperationFailed",
            message: "the repository could not be read: see the operator's log".into(),
            stalls: false,
        }),
    }
}

async fn secret(secrets: &Api<Secret>, name: &str) -> Result<BTreeMap<String, Vec<u8>>, SourceError> {
    let reason = reason::CREDENTIALS_UNAVAILABLE;
    let found = secrets.get_opt(name).await.map_err(|error| SourceError {
        reason,
        message: format!("the Secret {name} could not be read: {}", crate::errors::said(&error)),
        stalls: false,
    })?;
    let secret = found.ok_or_else(|| SourceError {
        reason,
        message: format!(
            "the Secret {name} does not exist in the operator's namespace; create it, or name another in inventory.git"
        ),
        stalls: false,
    })?;
    Ok(secret.data.unwrap_or_default().into_iter().map(|(k, v)| (k, v.0)).collect())
}

fn credentials(secret: &str, error: &impl std::fmt::Display) -> SourceError {
    let message = format!("the Secret {secret} cannot be used: {error}");
    SourceError { reason: reason::CREDENTIALS_UNAVAILABLE, message, stalls: false }
}

/// A twentieth more or less, so that many pools do not look all at once.
fn jitter(wait: Duration) -> Duration {
    wait.mul_f64(rand::random_range(0.95..1.05))
}

#[cfg(test)]
mod tests {
    use api::WindowsNodePoolSpec;

    use super::*;
    use crate::fake_api::FakeApi;
    use wnp_core::inventory::ownership::HostOwners;

    /// Otherwise a pool reports a failure of its source whenever its operator is replaced.
    #[tokio::test]
    async fn a_fetch_that_the_end_of_the_process_interrupts_is_no_failure_of_the_source() {
        for stops in [false, true] {
            let (files, stop, remote) =
                (tempfile::tempdir().unwrap(), CancellationToken::new(), Arc::new(CachedRepository::default()));
            let looker = Looker {
                secrets: Api::namespaced(FakeApi::new().client(), "operator"),
                dir: files.path().to_owned(),
                wake: ReconcileTrigger::default(),
                metrics: Arc::new(Metrics::default()),
                stop: stop.clone(),
            };
            // No server listens there.
            let git = GitSource { url: "http://127.0.0.1:9/hosts.git".into(), ..GitSource::default() };
            if stops {
                stop.cancel();
            }
            remote.lock().looking = true;
            let begun = HostOwners::default().begin("p");
            look(looker, Key::of(&git), remote.clone(), git, begun).await;
            let state = remote.lock();
            assert_eq!((state.trouble.is_none(), state.looks == 0, state.looking), (stops, stops, false));
        }
    }

    /// The list of a repository that is fetched every five minutes says nothing of a host that another pool misses since a second ago.
    #[test]
    fn a_list_from_memory_is_no_answer_to_a_pool_that_waits_for_a_read() {
        let (remote, mut owners, git) = (CachedRepository::default(), HostOwners::default(), GitSource::default());
        let now = Timestamp::now();
        let pools = ["near", "far"].map(|name| Arc::new(WindowsNodePool::new(name, WindowsNodePoolSpec::default())));
        let early = owners.begin("far");
        {
            let mut state = remote.lock();
            (state.looks, state.began, state.looked) = (1, Some(early), Some(now));
            state.next = now.checked_add(Duration::from_mins(5)).ok();
        }
        let is_due = |begun| remote.is_due("far", &git, None, begun, now);
        assert!(!is_due(owners.begin("far")), "no pool waits");
        let unread = owners.unread("near", &BTreeSet::from(["host".to_owned()]), &pools);
        assert_eq!(unread.pending, ["far"]);
        let late = owners.begin("far");
        assert!(is_due(late) && !is_due(late), "it is fetched, once");
        let mut state = remote.lock();
        (state.began, state.looking) = (Some(late), false);
        drop(state);
        assert!(!is_due(owners.begin("far")), "that fetch is the answer");
    }
}
