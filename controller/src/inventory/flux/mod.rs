//! Source `inventory.sourceRef`: a Flux object. Its artifact is downloaded from the artifact server, verified against its digest, and parsed.

mod object;
pub(crate) mod server;
mod watching;

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use api::{InventoryStatus, Reason, SignatureCheck, SourceRef, WindowsNodePool, names::key};
use gitops::{Limits, artifact, hosts};
use jiff::Timestamp;
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use reqwest::Url;
use tokio::sync::Semaphore;

use super::{
    files::{Changes, placed, refused},
    temporary,
};
use crate::{args::Run, runtime::clock};
use object::{Artifact, Object, source};
use server::{Servers, shown};
pub(crate) use watching::run;
use wnp_core::{
    backoff::backoff,
    inventory::{HostList, SourceError, SourceOutcome},
};

/// Interval at which the object is read even without a watch event, and maximum backoff for an artifact that cannot be fetched.
const INTERVAL: Duration = Duration::from_mins(5);
/// Initial backoff for an artifact that cannot be fetched, doubled after each further failure.
const FIRST_RETRY: Duration = Duration::from_secs(2);
/// Delay before the object is read again after an error of the API server.
const API_RETRY: Duration = Duration::from_secs(15);
/// Time limit for a download.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of a TCP connection to the artifact server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Source of host lists from Flux artifacts.
pub(crate) struct Flux {
    servers: Servers,
    /// State of the artifacts of each pool, by pool name.
    kept: Mutex<HashMap<String, Kept>>,
}

/// State of a pool's artifacts. A change of the pool's `sourceRef` resets it.
#[derive(Clone, Default)]
struct Kept {
    from: SourceRef,
    in_use: Option<InUse>,
    refused: Option<Refused>,
    /// Last value of the pool's annotation that requests a manual reconcile. A new value allows another attempt at a refused artifact.
    requested: Option<String>,
}

/// Host list in force, and the digest of its artifact.
#[derive(Clone)]
struct InUse {
    digest: String,
    listing: Arc<HostList>,
}

/// Artifact that could not be used.
#[derive(Clone, Debug)]
struct Refused {
    artifact: Artifact,
    trouble: SourceError,
    failures: u32,
    /// Time of the next attempt, or `None` if an attempt is useless because the content is faulty.
    again: Option<Timestamp>,
}

/// Decision about the artifact that the object names.
#[derive(Debug, PartialEq)]
enum Fetching {
    /// The artifact is in use.
    Keep,
    /// The artifact has failed, and is not fetched again yet, or not at all because its content is faulty.
    Wait(SourceError, Option<Timestamp>),
    /// The artifact must be fetched, after this number of failures.
    Fetch(u32),
}

impl Flux {
    /// Creates the source, which fetches only from the allowed servers.
    pub(crate) fn new(args: &Run) -> Self {
        let others = args.artifact_hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        Self { servers: Servers { domain: args.cluster_domain.clone(), others }, kept: Mutex::default() }
    }

    /// Returns the host list in force for a pool. `services` is the service network.
    pub(crate) async fn ask(
        &self,
        pool: &WindowsNodePool,
        from: &SourceRef,
        client: &Client,
        services: &str,
    ) -> SourceOutcome {
        let name = pool.name_any();
        let mut kept = self.kept.lock().get(&name).filter(|k| k.from == *from).cloned().unwrap_or_default();
        kept.from = from.clone();
        let requested = pool.annotations().get(key::RECONCILE_REQUESTED);
        if requested != kept.requested.as_ref() {
            kept.requested = requested.cloned();
            kept.refused = None;
        }
        let asked = match object::get(from, client).await {
            Ok(object) => kept.look(&object, &self.servers, services).await,
            Err(trouble) => {
                let wait = if trouble.reason == Reason::SourceNotFound { INTERVAL } else { API_RETRY };
                kept.outcome(Some((trouble, None)), after(wait))
            }
        };
        self.kept.lock().insert(name, kept);
        asked
    }

    /// Forgets all pools except these.
    fn keep_only(&self, pools: &BTreeSet<String>) {
        self.kept.lock().retain(|name, _| pools.contains(name));
    }
}

impl Kept {
    /// Evaluates the object, and fetches its artifact if it is new or its next attempt is due.
    async fn look(&mut self, object: &Object, servers: &Servers, services: &str) -> SourceOutcome {
        let artifact = match object.usable(&self.from, self.in_use.as_ref().map(|u| u.digest.as_str())) {
            Ok(artifact) => artifact,
            Err(refusal) => return self.outcome(Some(refusal), after(INTERVAL)),
        };
        let refuse = |trouble: SourceError| Some((trouble, Some(artifact.revision.clone())));
        match self.step(artifact, clock::now()) {
            Fetching::Keep => {
                self.refused = None;
                self.note(artifact);
            }
            Fetching::Wait(trouble, again) => return self.outcome(refuse(trouble), again.or_else(|| after(INTERVAL))),
            Fetching::Fetch(failures) => match fetch(&self.from, artifact, servers, services).await {
                Ok(listing) => {
                    self.in_use = Some(InUse { digest: artifact.digest.clone(), listing: Arc::new(listing) });
                    self.refused = None;
                }
                Err(trouble) => {
                    let failures = failures.saturating_add(1);
                    let wait = backoff(failures, FIRST_RETRY, INTERVAL, rand::random());
                    let again = if trouble.stalls { None } else { after(wait) };
                    let why = trouble.clone();
                    self.refused = Some(Refused { artifact: artifact.clone(), trouble, failures, again });
                    return self.outcome(refuse(why), again.or_else(|| after(INTERVAL)));
                }
            },
        }
        self.outcome(object.unready(&self.from).map(|t| (t, None)), after(INTERVAL))
    }

    /// Records the new revision of an unchanged artifact, for example after a commit that changes no file in it.
    fn note(&mut self, artifact: &Artifact) {
        let Some(in_use) = &mut self.in_use else { return };
        let revision = in_use.listing.status.as_ref().and_then(|s| s.revision.as_deref());
        if revision == Some(artifact.revision.as_str()) {
            return;
        }
        if let Some(status) = &mut Arc::make_mut(&mut in_use.listing).status {
            status.revision = Some(artifact.revision.clone());
            status.time = artifact.last_update_time;
        }
    }

    /// Decides whether to fetch the artifact that the object names.
    fn step(&self, artifact: &Artifact, now: Timestamp) -> Fetching {
        if self.in_use.as_ref().is_some_and(|u| u.digest == artifact.digest) {
            return Fetching::Keep;
        }
        match self.refused.as_ref().filter(|r| r.artifact == *artifact) {
            None => Fetching::Fetch(0),
            Some(r) if r.again.is_some_and(|again| again <= now) => Fetching::Fetch(r.failures),
            Some(r) => Fetching::Wait(r.trouble.clone(), r.again),
        }
    }

    /// Returns the outcome for the pool: the list in force, with the refusal of a newer one, if any.
    fn outcome(&self, refusal: Option<object::Refusal>, next: Option<Timestamp>) -> SourceOutcome {
        let (trouble, revision) = refusal.unzip();
        let Some(in_use) = &self.in_use else {
            // Without a list in force, there is always a refusal. The default is never used.
            let nothing = || temporary(Reason::SourceNotReady, String::new());
            return SourceOutcome::Unknown(trouble.unwrap_or_else(nothing), next);
        };
        let mut listing = HostList::clone(&in_use.listing);
        (listing.next, listing.trouble, listing.read_at) = (next, trouble, Some(clock::now()));
        if let Some(status) = &mut listing.status {
            status.refused_revision = revision.flatten();
        }
        SourceOutcome::Listed(Box::new(listing))
    }
}

fn after(wait: Duration) -> Option<Timestamp> {
    clock::now().checked_add(wait).ok()
}

/// Limit of concurrent downloads. Each download may take dozens of megabytes, and holds a thread.
static DOWNLOADS: Semaphore = Semaphore::const_new(16);

/// Fetches an artifact, and returns the host list in it.
async fn fetch(
    from: &SourceRef,
    artifact: &Artifact,
    servers: &Servers,
    services: &str,
) -> Result<HostList, SourceError> {
    let refuse = |why: &str| failed(format!("the artifact of {} is not fetched: {why}", source(from)));
    let url = servers.url(&artifact.url).map_err(|why| refuse(&why))?;
    let host = (url.host_str().unwrap_or_default().to_owned(), url.port_or_known_default().unwrap_or(80));
    let found = tokio::net::lookup_host(host).await.map_err(|e| {
        let why = format!("the name of its server cannot be resolved: {e}; check the DNS of the cluster");
        failed(format!("the artifact of {} is not fetched: {why}", source(from)))
    })?;
    let addresses = servers.addresses(&url, found, services).map_err(|why| refuse(&why))?;
    let (task, path) = (artifact.clone(), from.path().to_owned());
    // The semaphore is never closed.
    let _place = DOWNLOADS.acquire().await;
    let files =
        tokio::task::spawn_blocking(move || download(&task, url, &addresses, &path)).await.unwrap_or_else(|_| {
            let what = format!("the artifact of {} could not be read", source(from));
            Err(failed(format!(
                "{what} because of an internal fault: report it with the operator's log; the operator retries"
            )))
        })?;
    let entries = hosts::read(&files).map_err(|findings| refused(&artifact.revision, &findings))?;
    let is_verified = from.require_verified == Some(true);
    let status = InventoryStatus {
        source: source(from),
        revision: Some(artifact.revision.clone()),
        time: artifact.last_update_time,
        verdict: if is_verified { SignatureCheck::Verified } else { SignatureCheck::NotAsked },
        signer: is_verified.then(|| "a key that Flux trusts".into()),
        ..InventoryStatus::default()
    };
    // An artifact has no history, so the commit that last changed an entry is unknown.
    let entries = placed(entries, &status.source, &artifact.revision, &Changes::new());
    Ok(HostList { entries, status: Some(status), ..HostList::default() })
}

fn failed(message: String) -> SourceError {
    temporary(Reason::ArtifactNotReadable, message)
}

/// Downloads the artifact, verifies its digest and unpacks it.
fn download(
    artifact: &Artifact,
    url: Url,
    addresses: &[SocketAddr],
    path: &str,
) -> Result<Vec<gitops::File>, SourceError> {
    let limits = Limits::default();
    let place = shown(url.as_str());
    let unusable = |what: &str| failed(format!("the artifact at {place} {what}"));
    let digest: artifact::Digest =
        artifact.digest.parse().map_err(|e: artifact::DigestError| unusable(&format!("is not used: {e}")))?;
    let client = reqwest::blocking::Client::builder()
        .timeout(TIMEOUT)
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .resolve_to_addrs(url.host_str().unwrap_or_default(), addresses)
        .no_proxy()
        .build()
        .map_err(|e| {
            unusable(&format!(
                "could not be requested: {e}; the operator retries. If this persists, report it with the operator's log"
            ))
        })?;
    let answer = client.get(url).send().map_err(|e| {
        unusable(&format!(
            "could not be fetched: {}; check that its server runs (for Flux, source-controller), and that no NetworkPolicy blocks the connection",
            root(&e.without_url())
        ))
    })?;
    if !answer.status().is_success() {
        return Err(unusable(&format!(
            "could not be fetched: its server answers with HTTP {}; check the server (for Flux, source-controller)",
            answer.status()
        )));
    }
    artifact::unpack(digest.check(answer), path, &limits).map_err(|e| SourceError {
        reason: e.reason(),
        message: unusable(&format!("is not used: {e}")).message,
        stalls: e.stalls(),
    })
}

/// Returns the root cause of an error, which is more specific than `error sending request`.
fn root(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_selects_the_artifact_to_fetch_and_a_failure_the_time() {
        let now: Timestamp = "2026-03-01T08:00:00Z".parse().unwrap();
        let artifact = |digest: &str, url: &str| Artifact {
            digest: digest.into(),
            url: url.into(),
            revision: "main@sha1:a".into(),
            ..Artifact::default()
        };
        let trouble = failed("away".into());
        let refused = |again: Option<i64>| Refused {
            artifact: artifact("2", "u"),
            trouble: trouble.clone(),
            failures: 3,
            again: again.map(|s| now + jiff::SignedDuration::from_secs(s)),
        };
        let later = Some(now + jiff::SignedDuration::from_secs(9));
        for (about, in_use, refused, named, expected) in [
            ("the first one", None, None, artifact("1", "u"), Fetching::Fetch(0)),
            ("the same", Some("1"), None, artifact("1", "u"), Fetching::Keep),
            ("the same elsewhere", Some("1"), None, artifact("1", "v"), Fetching::Keep),
            ("a new one", Some("1"), None, artifact("2", "u"), Fetching::Fetch(0)),
            ("not yet", Some("1"), Some(refused(Some(9))), artifact("2", "u"), Fetching::Wait(trouble.clone(), later)),
            ("now", Some("1"), Some(refused(Some(0))), artifact("2", "u"), Fetching::Fetch(3)),
            ("never again", None, Some(refused(None)), artifact("2", "u"), Fetching::Wait(trouble.clone(), None)),
            ("from elsewhere", None, Some(refused(Some(9))), artifact("2", "v"), Fetching::Fetch(0)),
            ("a newer one", None, Some(refused(None)), artifact("3", "u"), Fetching::Fetch(0)),
            ("taken back", Some("1"), Some(refused(None)), artifact("1", "u"), Fetching::Keep),
        ] {
            let in_use = in_use.map(|digest: &str| InUse { digest: digest.into(), listing: Arc::default() });
            let kept = Kept { in_use, refused, ..Kept::default() };
            assert_eq!(kept.step(&named, now), expected, "{about}");
        }
    }
}
