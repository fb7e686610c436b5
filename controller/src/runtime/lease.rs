//! Leader election with a Lease. The number of its transitions is the epoch of the leader, with which hosts refuse earlier leaders.
//!
//! A Lease has expired, as in client-go, when this process has seen it unchanged for its duration, regardless of other clocks. The epoch increases
//! with every new holder, and hosts refuse a lower epoch, so that an operator that was suspended and lost its Lease unnoticed does no harm. Hosts
//! remember the epoch longer than a Lease exists. So an epoch is at least the current time, and also increases when a Lease is deleted, or a host
//! moves to another cluster.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};

use crate::{args::MAX_LEASE_DURATION, runtime::errors::api_message};

/// Reason why leading ended. `name` is the namespace and the name of the Lease.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseError {
    /// The API server shows an older Lease than the one that this process has written.
    #[error(
        "the resource version of the Lease {name} decreased from {written} to {found}: the cluster's data were restored from a backup; this process \
         exits, because its caches would miss all changes from now on, and kubelet restarts it. No action is needed"
    )]
    WentBack {
        name: String,
        /// Resource version that this process has written.
        written: u64,
        found: u64,
    },
    /// Another process holds the Lease, or the Lease was released.
    #[error("the Lease {name} {}; this process exits so that two operators never act at once, and kubelet restarts it. No action is needed", how_lost(.holder))]
    Lost {
        name: String,
        /// Current holder, or empty if the Lease was released.
        holder: String,
    },
    /// The Lease was deleted, so that another process may acquire it at once.
    #[error(
        "the Lease {name} was deleted; this process exits so that two operators never act at once, and kubelet restarts it. No action is needed"
    )]
    Deleted { name: String },
    /// The API server did not renew the Lease in time.
    #[error(
        "the Lease {name} was not renewed for {seconds} s ({cause}); this process exits so that two operators never act at once, and kubelet \
         restarts it. Check the API server, and the network between the operator and the API server"
    )]
    NotRenewed { name: String, seconds: u64, cause: String },
}

fn how_lost(holder: &str) -> String {
    if holder.is_empty() { "was released".to_owned() } else { format!("was lost to {holder:?}") }
}

/// Election that this process takes part in.
pub(crate) struct Election {
    api: Api<Lease>,
    namespace: String,
    name: String,
    identity: String,
    duration: Duration,
}

/// Action on a Lease that was read.
#[derive(Debug, PartialEq, Eq)]
enum Move {
    /// Acquire the Lease, with this number of transitions.
    Take(i32),
    /// Renew the Lease.
    Renew,
    /// Wait, because another process holds the Lease.
    Wait,
}

/// Decides on the action from the Lease and the time for which this process has seen it unchanged. A free Lease is left to other processes for
/// `patience`.
fn decide(spec: &LeaseSpec, identity: &str, unchanged: Duration, patience: Duration) -> Move {
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    let lasts = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
    let is_held = !holder.is_empty();
    let free_after = if is_held { Duration::from_secs(lasts).min(MAX_LEASE_DURATION) } else { Duration::ZERO };
    if holder == identity {
        Move::Renew
    } else if unchanged >= free_after + patience {
        Move::Take(spec.lease_transitions.unwrap_or(0).saturating_add(1))
    } else {
        Move::Wait
    }
}

/// Unix time from which epochs count seconds: 2020-01-01. Until 2088, they fit into the 32-bit number of transitions of a Lease.
const EPOCHS_BEGIN: i64 = 1_577_836_800;

/// Maximum lead of the number of transitions over the clock, in seconds. The number may be ahead, because clocks are set back and holders change.
const MAX_AHEAD: i32 = 24 * 60 * 60;
/// Number of Lease durations for which a process that cannot work leaves a free Lease to other processes.
const PATIENCE: u32 = 2;

/// Returns the number of transitions for a new holder: at least `transitions`, and at least the current time, so that it is not lower than the
/// number of an earlier Lease. A number that no holder can have reached is replaced with the current time, because hosts would remember it, and no
/// operator could ever have a newer epoch.
fn newer(transitions: i32, now: Timestamp) -> i32 {
    let clock = now.as_second().saturating_sub(EPOCHS_BEGIN).max(0);
    let clock = i32::try_from(clock).unwrap_or(i32::MAX);
    if transitions > clock.saturating_add(MAX_AHEAD) { clock } else { transitions.max(clock) }
}

/// Result of a renewal.
#[derive(Debug, PartialEq, Eq)]
enum Renewal {
    /// The Lease was renewed, with this resource version.
    Renewed(u64),
    /// The Lease was lost to this holder, or was released if the string is empty.
    Held(String),
    /// The Lease is older than the one that this process has written.
    WentBack(u64),
}

/// Returns the resource version of a Lease as a number. Resource versions of one kind can be compared as numbers.
fn version_of(lease: &Lease) -> u64 {
    lease.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// Returns the response to a request, or an error after the time limit.
async fn answered<T>(limit: Duration, request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    timeout(limit, request).await.unwrap_or_else(|_| {
        Err(kube::Error::Service(format!("the API server did not answer within {} s", limit.as_secs_f64()).into()))
    })
}

impl Election {
    /// Returns an election for the Lease `name`. `client` must not retry by itself, because a late renewal is worse than none.
    pub(crate) fn new(client: Client, namespace: &str, name: &str, identity: &str, duration: Duration) -> Self {
        let api = Api::namespaced(client, namespace);
        Self { api, namespace: namespace.into(), name: name.into(), identity: identity.into(), duration }
    }

    /// Returns the interval of attempts to acquire or renew the Lease.
    fn retry(&self) -> Duration {
        self.duration / 7
    }

    fn spec(&self, transitions: i32, acquired: Option<MicroTime>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(i32::try_from(self.duration.as_secs().max(1)).unwrap_or(i32::MAX)),
            acquire_time: Some(acquired.unwrap_or_else(|| now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    async fn write(&self, mut lease: Lease, spec: LeaseSpec) -> kube::Result<Lease> {
        lease.spec = Some(spec);
        match lease.metadata.resource_version {
            Some(_) => self.api.replace(&self.name, &PostParams::default(), &lease).await,
            None => self.api.create(&PostParams::default(), &lease).await,
        }
    }

    /// Waits until this process holds the Lease, and returns its epoch. A process that `is_able` to work acquires a free Lease at once. A process
    /// that is not able leaves the Lease to others for a while, and then acquires it, so that pools report the fault.
    pub(crate) async fn acquire(&self, is_able: impl Fn() -> bool) -> i64 {
        let mut seen: Option<(Option<String>, Instant)> = None;
        loop {
            let patience = if is_able() { Duration::ZERO } else { self.duration * PATIENCE };
            match timeout(self.duration, self.try_acquire(&mut seen, patience)).await {
                Ok(Ok(Some(epoch))) => return epoch,
                Ok(Ok(None)) => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, lease = self.name, "failed to acquire the Lease; the operator retries");
                }
                Err(_) => tracing::warn!(
                    lease = self.name,
                    "failed to acquire the Lease, because the API server did not answer; the operator retries"
                ),
            }
            sleep(self.retry()).await;
        }
    }

    async fn try_acquire(
        &self,
        seen: &mut Option<(Option<String>, Instant)>,
        patience: Duration,
    ) -> kube::Result<Option<i64>> {
        // A missing Lease is free, like one without a holder.
        let missing =
            || Lease { metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() }, spec: None };
        let lease = self.api.get_opt(&self.name).await?.unwrap_or_else(missing);
        let version = lease.metadata.resource_version.clone();
        let since = match seen {
            Some((v, since)) if *v == version => *since,
            _ => {
                let now = Instant::now();
                *seen = Some((version, now));
                now
            }
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let transitions = match decide(&spec, &self.identity, since.elapsed(), patience) {
            Move::Wait => {
                tracing::debug!(holder = spec.holder_identity, "another operator leads; standing by");
                return Ok(None);
            }
            Move::Take(transitions) => transitions,
            // An earlier attempt acquired the Lease, but its response was lost. This process counts as a new holder.
            Move::Renew => spec.lease_transitions.unwrap_or(0).saturating_add(1),
        };
        let transitions = newer(transitions, Timestamp::now());
        match self.write(lease, self.spec(transitions, None)).await {
            Ok(_) => Ok(Some(i64::from(transitions))),
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Renews the Lease until it is lost, and returns the cause. The caller drops this future when it stops, and calls [`Self::release`].
    pub(crate) async fn hold(&self, epoch: i64) -> LeaseError {
        let deadline = self.deadline();
        let (mut renewed, mut written) = (Instant::now(), 0);
        let mut cause = String::from("the API server does not answer");
        let mut turns = interval_at(renewed + self.retry(), self.retry());
        // After an attempt that takes longer, the next one follows at once.
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            let left = deadline.saturating_sub(renewed.elapsed());
            let name = format!("{}/{}", self.namespace, self.name);
            match timeout(left, self.renew(epoch, written)).await {
                Ok(Ok(Renewal::Renewed(version))) => {
                    (renewed, written) = (Instant::now(), version);
                    continue;
                }
                Ok(Ok(Renewal::Held(holder))) => return LeaseError::Lost { name, holder },
                Ok(Ok(Renewal::WentBack(found))) => return LeaseError::WentBack { name, written, found },
                Ok(Err(kube::Error::Api(status))) if status.is_not_found() => return LeaseError::Deleted { name },
                Ok(Err(error)) => {
                    tracing::warn!(%error, lease = self.name, "failed to renew the Lease; the operator retries");
                    cause = api_message(&error);
                }
                Err(_) => {}
            }
            if renewed.elapsed() >= deadline {
                return LeaseError::NotRenewed { name, seconds: renewed.elapsed().as_secs(), cause };
            }
        }
    }

    /// Returns the time limit for a renewal. It is shorter than the duration of the Lease, so that this process has stopped before another process
    /// leads.
    fn deadline(&self) -> Duration {
        self.duration * 2 / 3
    }

    /// Renews the Lease once. `written` is the resource version of the last renewal.
    async fn renew(&self, epoch: i64, written: u64) -> kube::Result<Renewal> {
        // An unanswered request leaves time for another attempt, on another connection.
        let limit = self.deadline() / 2;
        let lease = answered(limit, self.api.get(&self.name)).await?;
        let found = version_of(&lease);
        if found < written {
            return Ok(Renewal::WentBack(found));
        }
        let spec = lease.spec.clone().unwrap_or_default();
        if spec.holder_identity.as_deref() != Some(&self.identity)
            || i64::from(spec.lease_transitions.unwrap_or(0)) != epoch
        {
            return Ok(Renewal::Held(spec.holder_identity.unwrap_or_default()));
        }
        let next = self.spec(spec.lease_transitions.unwrap_or(0), spec.acquire_time);
        Ok(Renewal::Renewed(version_of(&answered(limit, self.write(lease, next)).await?)))
    }

    /// Releases the Lease, so that the next operator need not wait.
    pub(crate) async fn release(&self, epoch: i64) {
        let give_back = async {
            let lease = self.api.get(&self.name).await?;
            let spec = lease.spec.clone().unwrap_or_default();
            if spec.holder_identity.as_deref() == Some(&self.identity)
                && i64::from(spec.lease_transitions.unwrap_or(0)) == epoch
            {
                let next = LeaseSpec { holder_identity: None, lease_duration_seconds: Some(1), ..spec };
                self.write(lease, next).await?;
            }
            Ok::<(), kube::Error>(())
        };
        if let Ok(Err(error)) = timeout(self.retry(), give_back).await {
            tracing::warn!(%error, lease = self.name, "failed to release the Lease; it expires by itself");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fake_api::FakeApi;

    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
    const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/lease";

    fn held_by(holder: &str, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(15),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    /// Returns the Lease of epoch 5 with this holder, as the API server stores it.
    fn lease(holder: &str, version: &str) -> Value {
        json!({"metadata": {"name": "lease", "resourceVersion": version}, "spec": held_by(holder, 5)})
    }

    fn election(api: &FakeApi, seconds: u64) -> Election {
        Election::new(api.client(), "ns", "lease", "me", Duration::from_secs(seconds))
    }

    #[test]
    fn an_epoch_is_newer_than_the_last_one_and_than_that_of_a_lease_that_is_gone() {
        let at = |seconds| Timestamp::from_second(EPOCHS_BEGIN + seconds).unwrap();
        for (transitions, seconds, expected) in [
            (1, 1000, 1000),
            (1001, 1000, 1001),
            (1, -5, 1),
            (1000 + MAX_AHEAD, 1000, 1000 + MAX_AHEAD),
            // Numbers that were not written by an operator.
            (1001 + MAX_AHEAD, 1000, 1000),
            (i32::MAX, 1000, 1000),
            (7, i64::from(i32::MAX) + 9, i32::MAX),
        ] {
            assert_eq!(newer(transitions, at(seconds)), expected, "{transitions} {seconds}");
        }
    }

    #[test]
    fn only_an_expired_lease_is_acquired() {
        let s = Duration::from_secs;
        let now = Duration::ZERO;
        for (spec, unchanged, patience, expected) in [
            (held_by("a", 4), s(0), now, Move::Renew),
            (held_by("b", 4), s(0), now, Move::Wait),
            (held_by("b", 4), s(14), now, Move::Wait),
            (held_by("b", 4), s(15), now, Move::Take(5)),
            (held_by("", 4), s(0), now, Move::Take(5)),
            (LeaseSpec::default(), s(0), now, Move::Take(1)),
            // A holder is waited for only up to a limit.
            (LeaseSpec { lease_duration_seconds: Some(i32::MAX), ..held_by("b", 4) }, s(599), now, Move::Wait),
            (LeaseSpec { lease_duration_seconds: Some(i32::MAX), ..held_by("b", 4) }, s(600), now, Move::Take(5)),
            // A process that cannot work waits for one that can.
            (held_by("b", 4), s(74), s(60), Move::Wait),
            (held_by("b", 4), s(75), s(60), Move::Take(5)),
            (held_by("", 4), s(59), s(60), Move::Wait),
            (held_by("", 4), s(60), s(60), Move::Take(5)),
            // Missing Lease.
            (LeaseSpec::default(), s(59), s(60), Move::Wait),
            (LeaseSpec::default(), s(60), s(60), Move::Take(1)),
        ] {
            assert_eq!(decide(&spec, "a", unchanged, patience), expected, "{spec:?} {patience:?}");
        }
    }

    /// A deleted, forbidden, released or lost Lease ends the leadership, and the error names the cause.
    #[tokio::test]
    async fn the_cause_of_a_lost_lease_is_named() {
        let api = FakeApi::new();
        api.fail("GET", PATH, 404, "NotFound", "leases \"lease\" not found", Value::Null);
        let error = election(&api, 3).hold(5).await;
        assert!(matches!(error, LeaseError::Deleted { .. }), "{error}");
        assert_eq!(
            api.calls("GET", PATH).len(),
            1,
            "the Lease was read again, although another process may have acquired it"
        );
        let api = FakeApi::new();
        for _ in 0..9 {
            api.fail("GET", PATH, 403, "Forbidden", "you may not read leases", Value::Null);
        }
        let error = election(&api, 3).hold(5).await.to_string();
        assert!(error.contains("not renewed for 2 s") && error.contains("may not read leases"), "{error}");
        for (holder, words) in
            [("", "the Lease ns/lease was released; "), ("another", "the Lease ns/lease was lost to \"another\"; ")]
        {
            let api = FakeApi::new();
            api.on("GET", PATH, 200, lease(holder, "1"));
            let error = election(&api, 3).hold(5).await.to_string();
            assert!(error.starts_with(words), "{error}");
        }
    }

    /// Several API servers may share one address, and the API server at the other end of the connection may be gone.
    #[tokio::test]
    async fn one_request_that_is_never_answered_does_not_lose_the_lease() {
        let api = FakeApi::new();
        api.hang("GET", PATH);
        api.on("GET", PATH, 200, lease("me", "1")).on("GET", PATH, 200, lease("another", "1"));
        api.on("PUT", PATH, 200, lease("me", "1"));
        let election = election(&api, 3);
        let error = election.hold(5).await;
        assert!(matches!(&error, LeaseError::Lost { holder, .. } if holder == "another"), "{error}");
    }

    /// Both responses of a renewal together may take longer than one alone.
    #[tokio::test]
    async fn a_slow_api_server_does_not_cost_the_lease() {
        let api = FakeApi::new();
        let election = election(&api, 6);
        let slow = election.deadline() * 3 / 10;
        for _ in 0..2 {
            api.late("GET", PATH, slow, lease("me", "1")).late("PUT", PATH, slow, lease("me", "1"));
        }
        api.on("GET", PATH, 200, lease("another", "1"));
        let error = election.hold(5).await;
        assert!(matches!(&error, LeaseError::Lost { holder, .. } if holder == "another"), "{error}");
    }

    #[tokio::test]
    async fn a_missing_lease_is_left_to_a_process_that_can_work() {
        for (about, patience, expected) in [("able", Duration::ZERO, 1), ("unable", Duration::from_hours(1), 0)] {
            let api = FakeApi::new();
            let election = election(&api, 15);
            api.fail("GET", PATH, 404, "NotFound", "there is no such Lease", Value::Null);
            api.on("POST", LEASES, 201, json!({"metadata": {"name": "lease", "resourceVersion": "1"}}));
            let mut seen = None;
            let epoch = election.try_acquire(&mut seen, patience).await.unwrap();
            assert_eq!((epoch.is_some(), api.calls("POST", LEASES).len()), (expected == 1, expected), "{about}");
            // The wait of the unable process starts with the first attempt.
            assert!(seen.is_some_and(|(version, _)| version.is_none()), "{about}");
        }
    }

    #[tokio::test]
    async fn of_two_that_create_the_lease_one_waits() {
        let api = FakeApi::new();
        let election = election(&api, 15);
        api.fail("GET", PATH, 404, "NotFound", "there is no such Lease", Value::Null);
        api.fail("POST", LEASES, 409, "AlreadyExists", "another process was faster", Value::Null);
        assert_eq!(election.try_acquire(&mut None, Duration::ZERO).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_restored_older_lease_is_detected() {
        let api = FakeApi::new();
        let election = election(&api, 15);
        api.on("GET", PATH, 200, lease("me", "1932")).on("PUT", PATH, 200, lease("me", "1933"));
        assert_eq!(election.renew(5, 0).await.unwrap(), Renewal::Renewed(1933));
        assert_eq!(election.renew(6, 1932).await.unwrap(), Renewal::Held("me".into()), "another process of this name");
        // etcd was restored from a backup: same holder and epoch, older version.
        api.forget("GET", PATH).on("GET", PATH, 200, lease("me", "374"));
        assert_eq!(election.renew(5, 1933).await.unwrap(), Renewal::WentBack(374));
        assert_eq!(api.calls("PUT", PATH).len(), 1, "a Lease that went back was written");
    }
}
