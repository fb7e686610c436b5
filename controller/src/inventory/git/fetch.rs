//! Background fetch of a repository, whose result is shared by all pools that read the repository.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use api::{GitSource, Reason};
use gitops::{
    Limits,
    repository::{Access, Head, Proxy, Repository, Request},
};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::{CachedRepository, Key, evaluate::trouble};
use crate::{
    inventory::{flux::server::shown, temporary},
    runtime::{
        self, clock,
        metrics::Metrics,
        reconcile_trigger::ReconcileTrigger,
        supervision::{Panicked, catch},
    },
};
use wnp_core::inventory::{SourceError, ownership::ReadStart};

/// Initial backoff after a failed fetch, doubled after each further failure, up to the interval.
const FIRST_RETRY: Duration = Duration::from_secs(5);

/// Time limit for one fetch.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Dependencies of a background fetch.
#[derive(Clone)]
pub(super) struct FetchContext {
    pub secrets: Api<Secret>,
    /// Directory of the repositories on disk.
    pub dir: PathBuf,
    /// Proxy settings: `HTTPS_PROXY` and `NO_PROXY`.
    pub proxy: (Option<String>, Option<String>),
    pub wake: ReconcileTrigger,
    pub metrics: Arc<Metrics>,
    pub stop: CancellationToken,
}

/// Fetches the repository once, records the result in `remote`, and triggers the pools that read it. `begun` orders this read among the reads of all
/// pools.
pub(super) async fn look(cx: FetchContext, key: Key, remote: Arc<CachedRepository>, git: GitSource, begun: ReadStart) {
    let result = catch(fetch(&cx, &key, &remote, &git))
        .await
        .unwrap_or_else(|fault| Err(temporary(Panicked::REASON, fault.to_string())));
    let now = clock::now();
    let pools = {
        let mut state = remote.lock();
        state.looking = false;
        if result.is_err() && cx.stop.is_cancelled() {
            // The shutdown interrupted the fetch, which says nothing about the repository.
            remote.looked.notify_waiters();
            return;
        }
        state.looks += 1;
        state.began = Some(begun);
        let wait = match result {
            Ok(head) => {
                cx.metrics.git_received.inc_by(head.received);
                state.failures = 0;
                state.trouble = None;
                state.head = Some(head);
                jitter(git.interval())
            }
            Err(trouble) => {
                if state.trouble.as_ref() != Some(&trouble) {
                    tracing::warn!(url = shown(&key.url), reason = trouble.reason.as_str(), "{}", trouble.message);
                }
                let wait = FIRST_RETRY.saturating_mul(1 << state.failures.min(10)).min(git.interval());
                state.failures += 1;
                state.trouble = Some(trouble);
                jitter(wait)
            }
        };
        let next = if std::mem::take(&mut state.is_pushed) { Some(now) } else { now.checked_add(wait).ok() };
        (state.next, state.looked) = (next, Some(now));
        state.pools.clone()
    };
    remote.looked.notify_waiters();
    for pool in &pools {
        cx.wake.pool(pool);
    }
}

async fn fetch(
    cx: &FetchContext,
    key: &Key,
    remote: &Arc<CachedRepository>,
    git: &GitSource,
) -> Result<Head, SourceError> {
    let mut access = match &git.secret_ref {
        None => Access::default(),
        Some(s) => {
            let data = secret(&cx.secrets, &s.name).await?;
            Access::from_secret(&git.url, &data).map_err(|e| credentials(&s.name, &e))?
        }
    };
    if let Some(s) = &git.proxy_secret_ref {
        let data = secret(&cx.secrets, &s.name).await?;
        access.proxy = Some(Proxy::from_secret(&data).map_err(|e| credentials(&s.name, &e))?);
    } else if let (Some(https), except) = &cx.proxy {
        access.proxy = Proxy::from_settings(https, except.as_deref()).map_err(|_| {
            let message = "the operator's setting --https-proxy (HTTPS_PROXY) cannot be used: write http://host:port, or set \
                           inventory.git.proxySecretRef";
            unavailable(message.into())
        })?;
    }
    let request = Request {
        url: git.url.clone(),
        reference: git.reference.clone().unwrap_or_default(),
        access,
        timeout: TIMEOUT,
        limits: Limits::default(),
    };
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = interrupted.clone();
    let fetching = on_disk(remote, &cx.dir, key, move |r| r.fetch(&request, &flag).map_err(|e| trouble(&e)));
    tokio::pin!(fetching);
    tokio::select! {
        result = &mut fetching => result,
        () = cx.stop.cancelled() => {
            interrupted.store(true, Ordering::Relaxed);
            fetching.await
        }
    }
}

/// Runs work on the repository on disk, which is opened first if necessary. Only one task works on the repository at a time.
pub(super) async fn on_disk<T: Send + 'static>(
    remote: &Arc<CachedRepository>,
    dir: &Path,
    key: &Key,
    work: impl FnOnce(&Repository) -> Result<T, SourceError> + Send + 'static,
) -> Result<T, SourceError> {
    let mut disk = remote.disk.lock().await;
    let there = disk.clone();
    let url = shown(&key.url);
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
        Err(_) => {
            let message = format!(
                "the repository {url} could not be read because of an internal fault: report it with the operator's log; the operator retries"
            );
            Err(temporary(Reason::GitOperationFailed, message))
        }
    }
}

/// Reads the data of a Secret in the operator's namespace. A missing or unreadable Secret is an error.
pub(super) async fn secret(secrets: &Api<Secret>, name: &str) -> Result<BTreeMap<String, Vec<u8>>, SourceError> {
    let unread = |error| {
        unavailable(format!(
            "the Secret {name} could not be read: {}; the operator retries, and the hosts stay as they are",
            runtime::errors::api_message(&error)
        ))
    };
    let secret = secrets.get_opt(name).await.map_err(unread)?.ok_or_else(|| {
        unavailable(format!(
            "the Secret {}/{name} does not exist; create it, or name another Secret of this namespace in inventory.git",
            secrets.namespace().unwrap_or_default()
        ))
    })?;
    Ok(secret.data.unwrap_or_default().into_iter().map(|(k, v)| (k, v.0)).collect())
}

fn credentials(secret: &str, error: &impl std::fmt::Display) -> SourceError {
    unavailable(format!("the Secret {secret} cannot be used: {error}"))
}

fn unavailable(message: String) -> SourceError {
    temporary(Reason::CredentialsUnavailable, message)
}

/// Returns the wait, made up to 5 % longer or shorter at random, so that many repositories are not fetched at the same time.
fn jitter(wait: Duration) -> Duration {
    wait.mul_f64(rand::random_range(0.95..1.05))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api::FakeApi;
    use wnp_core::inventory::ownership::HostOwners;

    /// Pools must not report a failure of their source whenever the operator is replaced.
    #[tokio::test]
    async fn a_fetch_that_a_shutdown_interrupts_is_not_a_failure_of_the_source() {
        for stops in [false, true] {
            let (files, stop, remote) =
                (tempfile::tempdir().unwrap(), CancellationToken::new(), Arc::new(CachedRepository::default()));
            let cx = FetchContext {
                secrets: Api::namespaced(FakeApi::new().client(), "operator"),
                dir: files.path().to_owned(),
                proxy: (None, None),
                wake: ReconcileTrigger::default(),
                metrics: Arc::new(Metrics::default()),
                stop: stop.clone(),
            };
            // No server listens there.
            let git = GitSource { url: "http://127.0.0.1:9/hosts.git".into(), ..GitSource::default() };
            if stops {
                stop.cancel();
            }
            {
                let mut state = remote.lock();
                (state.looking, state.is_pushed) = (true, true);
            }
            let begun = HostOwners::default().begin("p");
            look(cx, Key::of(&git), remote.clone(), git, begun).await;
            let state = remote.lock();
            assert_eq!((state.trouble.is_none(), state.looks == 0, state.looking), (stops, stops, false));
            let is_due_at_once = state.next.is_some_and(|next| next <= clock::now());
            assert_eq!(is_due_at_once, !stops, "a push during a fetch leads to another fetch");
        }
    }
}
