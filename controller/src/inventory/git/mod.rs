//! Source `inventory.git`: repositories that pools name, fetched in the background and shared between pools.
//!
//! A fetch takes seconds or fails slowly, so a reconcile of the running operator never waits for it. The reconcile gets the last result, and each new
//! result triggers another reconcile.

mod evaluate;
#[cfg(test)]
mod evaluate_tests;
mod fetch;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use api::{GitSource, InventoryStatus, Reason, WindowsNodePool, names::key};
use gitops::repository::{Head, Repository};
use jiff::Timestamp;
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{
    args::Run,
    inventory::temporary,
    runtime::{clock, metrics::Metrics, reconcile_trigger::ReconcileTrigger},
};
use evaluate::{Task, evaluate, source};
use fetch::{FetchContext, look, on_disk, secret};
use wnp_core::inventory::{HostList, SourceError, SourceOutcome, ownership::ReadStart, revision_policy};

/// Git repositories that pools name.
pub(crate) struct GitSources {
    cx: FetchContext,
    known: Mutex<HashMap<Key, Arc<CachedRepository>>>,
}

/// Settings that pools must have in common to share a repository.
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

/// Shared repository with the state of its fetches.
#[derive(Default)]
struct CachedRepository {
    state: Mutex<State>,
    /// Lock for the directory, with the repository once it is open.
    disk: tokio::sync::Mutex<Option<Arc<Repository>>>,
    /// Notification at the end of a fetch.
    looked: tokio::sync::Notify,
}

#[derive(Default)]
struct State {
    /// True while a fetch is in progress.
    looking: bool,
    /// True if a push arrived during the fetch in progress, which may have read the references before the push.
    is_pushed: bool,
    /// Number of completed fetches, so that each pool evaluates each result once.
    looks: u64,
    /// Head of the reference at the last successful fetch.
    head: Option<Head>,
    /// Error of the last fetch, if it failed.
    trouble: Option<SourceError>,
    /// Number of failures since the last successful fetch.
    failures: u32,
    /// Time of the next fetch, or `None` before the first fetch.
    next: Option<Timestamp>,
    /// Time when the last fetch ended.
    looked: Option<Timestamp>,
    /// Start of the last fetch, in the order of the reads of all pools.
    began: Option<ReadStart>,
    /// Pools that read the repository, which each new result triggers.
    pools: BTreeSet<String>,
    /// Last value of each pool's annotation that requests a manual reconcile.
    requested: BTreeMap<String, String>,
    /// Host list of each pool from the repository.
    lists: BTreeMap<String, List>,
}

/// Host list of a pool from a repository.
#[derive(Clone)]
struct List {
    looks: u64,
    settings: GitSource,
    in_force: Option<Arc<HostList>>,
    trouble: Option<SourceError>,
    refused: Option<String>,
}

impl GitSources {
    /// Creates the sources, which keep repositories in the cache directory.
    pub(crate) fn new(
        client: Client,
        args: &Run,
        wake: ReconcileTrigger,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) -> Self {
        let secrets = Api::namespaced(client, &args.namespace);
        let proxy = (args.https_proxy.clone(), args.no_proxy.clone());
        let cx = FetchContext { secrets, dir: args.cache.clone(), proxy, wake, metrics, stop };
        Self { cx, known: Mutex::default() }
    }

    /// Returns the host list in force for a pool, and starts a fetch in the background if one is due. With `waits`, waits for the end of that fetch.
    pub(crate) async fn ask(
        &self,
        pool: &WindowsNodePool,
        git: &GitSource,
        begun: ReadStart,
        waits: bool,
    ) -> SourceOutcome {
        let (name, key) = (pool.name_any(), Key::of(git));
        let remote = self.remote(&name, &key);
        let requested = pool.annotations().get(key::RECONCILE_REQUESTED);
        if remote.is_due(&name, git, requested, begun, clock::now()) {
            let looked = remote.looked.notified();
            tokio::spawn(look(self.cx.clone(), key, remote.clone(), git.clone(), begun));
            if waits {
                looked.await;
            }
        }
        let (looks, next, as_of, read_at) = {
            let state = remote.lock();
            (state.looks, state.next, state.began, state.looked)
        };
        let before = pool.status.as_ref().and_then(|s| s.inventory.clone());
        let before = before.filter(|b| b.source == source(git) && b.revision.is_some());
        let list = match remote.list(&name, looks, git) {
            Some(list) => list,
            None => self.evaluate(&name, &remote, git, before, looks).await,
        };
        asked(list, next, as_of, read_at)
    }

    /// Makes a fetch of all matching repositories due at once after a push, and triggers their pools. Returns the number of matching repositories.
    pub(crate) fn on_push(&self, is_it: impl Fn(&str) -> bool) -> usize {
        let known = self.known.lock();
        let mut count = 0;
        for (_, remote) in known.iter().filter(|(key, _)| is_it(&key.url)) {
            let mut state = remote.lock();
            state.next = Some(Timestamp::UNIX_EPOCH);
            state.is_pushed = state.looking;
            count += 1;
            for pool in &state.pools {
                self.cx.wake.pool(pool);
            }
        }
        count
    }

    /// Returns the repository for a pool, and records that the pool reads no other repository.
    fn remote(&self, pool: &str, key: &Key) -> Arc<CachedRepository> {
        self.forget_except(pool, Some(key));
        let remote = self.known.lock().entry(key.clone()).or_default().clone();
        remote.lock().pools.insert(pool.to_owned());
        remote
    }

    /// Records that a pool reads no repository.
    pub(crate) fn forget(&self, pool: &str) {
        self.forget_except(pool, None);
    }

    /// Records that a pool reads no repository except `read`. Forgets the repositories that no pool reads any longer, unless a fetch is in progress.
    fn forget_except(&self, pool: &str, read: Option<&Key>) {
        self.known.lock().retain(|key, remote| {
            let mut state = remote.lock();
            if Some(key) != read {
                state.pools.remove(pool);
                state.lists.remove(pool);
                state.requested.remove(pool);
            }
            Some(key) == read || !state.pools.is_empty() || state.looking
        });
    }

    /// Evaluates the last fetched revision for a pool. If it may not be used, the earlier list stays in force. `known` is the inventory in the pool's
    /// status, from which the earlier list is read again after a restart.
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
            Some(verify) => secret(&self.cx.secrets, &verify.secret_ref.name).await.map(Some),
        };
        let known = old.as_ref().and_then(|o| o.status.clone()).or(known);
        let before = known.as_ref().and_then(|k| k.revision.clone());
        let found = match (head, keys) {
            (None, _) => Err(None),
            (Some(head), Err(trouble)) => Err(Some((trouble, head.revision))),
            (Some(head), Ok(keys)) => {
                let revision = head.revision.clone();
                let task = Task { git: git.clone(), head, before: before.clone(), keys };
                on_disk(remote, &self.cx.dir, &Key::of(git), move |r| evaluate(r, &task))
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

    /// Reads the host list at the revision in the pool's status, if the repository is still on disk. The signature was verified when that revision
    /// came into force.
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
        on_disk(remote, &self.cx.dir, &Key::of(git), read).await.ok().map(Arc::new)
    }
}

/// Returns the outcome for a pool. `read_at` is the time when the last fetch ended, whether it succeeded or not.
fn asked(list: List, next: Option<Timestamp>, as_of: Option<ReadStart>, read_at: Option<Timestamp>) -> SourceOutcome {
    let List { in_force, trouble, refused, .. } = list;
    let Some(listing) = in_force else {
        let message = "the repository is being fetched, and its list is not known yet";
        let nothing_yet = || temporary(Reason::Fetching, message.into());
        return SourceOutcome::Unknown(trouble.unwrap_or_else(nothing_yet), next);
    };
    let mut listing = HostList::clone(&listing);
    listing.trouble = trouble;
    (listing.next, listing.as_of, listing.read_at) = (next, as_of, read_at);
    if let Some(status) = &mut listing.status {
        status.refused_revision = refused;
    }
    SourceOutcome::Listed(Box::new(listing))
}

impl CachedRepository {
    fn lock(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Reports whether a fetch is due. If so, records that it is in progress, and the caller must perform it.
    fn is_due(
        &self,
        pool: &str,
        git: &GitSource,
        requested: Option<&String>,
        begun: ReadStart,
        now: Timestamp,
    ) -> bool {
        let mut state = self.lock();
        let by_hand = requested.is_some_and(|r| state.requested.get(pool) != Some(r));
        // The first fetch of this process also answers a request that was made before it.
        let is_new = by_hand && (state.looks > 0 || state.requested.contains_key(pool));
        // A request during a fetch waits for the next one.
        if let Some(requested) = requested.filter(|_| !(is_new && state.looking)) {
            state.requested.insert(pool.to_owned(), requested.clone());
        }
        // The interval may have been longer when the last fetch ended.
        let long_ago =
            state.looked.and_then(|l| l.checked_add(git.interval().mul_f64(1.06)).ok()).is_some_and(|next| next <= now);
        let in_time = state.next.is_none_or(|next| next <= now) || (long_ago && state.failures == 0);
        let due = !state.looking && (is_new || in_time || begun.is_awaited(state.began));
        state.looking |= due;
        due
    }

    /// Returns the pool's evaluation of fetch number `looks` with these settings, if there is one.
    fn list(&self, pool: &str, looks: u64, git: &GitSource) -> Option<List> {
        self.lock().lists.get(pool).filter(|l| l.looks == looks && l.settings == *git).cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use api::WindowsNodePoolSpec;

    use super::*;
    use wnp_core::inventory::ownership::HostOwners;

    /// A list that was fetched minutes ago does not show a host that moved to it from another pool since then.
    #[test]
    fn a_cached_list_does_not_count_for_a_pool_that_waits_for_a_read() {
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

    /// The fetch in progress may have read the references before the request.
    #[test]
    fn a_request_during_a_fetch_leads_to_another_fetch() {
        let (remote, git, now) = (CachedRepository::default(), GitSource::default(), Timestamp::now());
        let mut owners = HostOwners::default();
        let mut is_due =
            |requested: &str| remote.is_due("p", &git, Some(&requested.to_owned()), owners.begin("p"), now);
        assert!(is_due("before the first fetch") && !is_due("during the first fetch"));
        remote.lock().looking = false;
        assert!(is_due("during the first fetch") && !is_due("during the first fetch"));
        {
            let mut state = remote.lock();
            (state.looking, state.looks, state.looked) = (false, 1, Some(now));
            state.next = now.checked_add(Duration::from_mins(5)).ok();
        }
        assert!(is_due("later") && !is_due("during the second fetch"));
        remote.lock().looking = false;
        assert!(is_due("during the second fetch"));
        remote.lock().looking = false;
        assert!(!is_due("during the second fetch"));
    }

    #[test]
    fn a_failed_or_refused_fetch_is_not_a_success() {
        let at = Timestamp::now();
        let error = temporary(Reason::GitOperationFailed, "no answer".into());
        let list = |is_in_force: bool, trouble: Option<SourceError>| List {
            looks: 1,
            settings: GitSource::default(),
            in_force: is_in_force.then(Arc::default),
            trouble,
            refused: None,
        };
        for (about, list, read_at, expected) in [
            ("fetched", list(true, None), Some(at), Some(at)),
            ("read from disk", list(true, None), None, None),
            ("the fetch fails, or its revision is refused", list(true, Some(error)), Some(at), None),
            ("not fetched yet", list(false, None), None, None),
        ] {
            assert_eq!(asked(list, None, None, read_at).success(), expected, "{about}");
        }
    }
}
