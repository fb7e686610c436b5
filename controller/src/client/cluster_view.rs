//! View of the cluster from this process: its watches, its status writes, and its clock compared with the API server's.
//!
//! A layer of the client observes every answer. While a watch fails and does not restart, its cache is stale. After a minute of such failures, or of
//! failed status writes, no new operation begins.

use api::Reason;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Display,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use http::{Method, Request, Response, StatusCode, header};
use jiff::{SignedDuration, Timestamp, fmt::rfc2822};
use kube::client::Body;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tower::{Layer, Service};

use crate::{client::write_count::resource_of, runtime::clock};

/// Time after which failures of requests count. Shorter failures are normal: a watch that ends restarts within seconds.
const LASTING: Duration = Duration::from_mins(1);
/// Time within which a request that is still repeated fails again: the longest wait for an answer plus the longest backoff.
const REPEATED: Duration = Duration::from_mins(2);
/// Difference from the clock of the API server above which the clock of this machine counts as wrong.
const MAX_SKEW: SignedDuration = SignedDuration::from_mins(1);
/// Difference up to which the operator's own clock is not corrected: answers take time, and dates have whole seconds.
const TOLERANCE: SignedDuration = SignedDuration::from_secs(5);
/// Number of consecutive answers whose times must all differ from a clock, because one of several API servers may itself have a wrong clock.
const CLOCKS: usize = 5;

/// Access to the API server that the operator needs for its decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    /// Watch of this resource.
    Watch(&'static str),
    /// Write of this resource's status.
    WriteStatus(&'static str),
}

impl Need {
    /// Returns the need that a request serves, if any.
    fn of<B>(request: &Request<B>) -> Option<Self> {
        let query = request.uri().query().unwrap_or_default();
        let is_watch = query.split('&').any(|part| matches!(part, "watch=true" | "watch=1" | "watch=&"));
        let known = |found: &str| ["windowsnodepools", "windowsinstances", "nodes"].into_iter().find(|r| *r == found);
        let (resource, subresource) = resource_of(request.uri().path())?;
        let resource = known(resource)?;
        match (request.method(), subresource) {
            (&Method::GET, None) if is_watch => Some(Self::Watch(resource)),
            (&Method::PATCH | &Method::PUT, Some("status")) if resource != "nodes" => Some(Self::WriteStatus(resource)),
            _ => None,
        }
    }
}

/// Repeated failures of requests.
#[derive(Debug)]
struct Failing {
    since: Instant,
    last: Instant,
    times: u32,
    /// Paths of the requests, at most two.
    paths: BTreeSet<String>,
    answer: String,
}

impl Failing {
    /// Returns the time from which the failures count. `None` if the request has failed only once, or is no longer repeated.
    fn counts_from(&self, now: Instant) -> Option<Instant> {
        (self.times > 1 && now < self.last + REPEATED).then_some(self.since + LASTING)
    }
}

/// Reason why no new operation may begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ApiProblem {
    /// The watch of a resource fails, so its cache is stale.
    #[error(
        "the watch of {resource} has failed for a minute or longer, so the operator's data may be stale and no new operation starts: {answer}. Check \
         the operator's ClusterRole and ClusterRoleBinding (kubectl windows-node-pools check), and what is between the operator and the API server"
    )]
    Watch {
        /// Watched resource.
        resource: &'static str,
        /// Answer of the API server.
        answer: String,
    },
    /// The status of a resource cannot be stored.
    #[error(
        "the status of {resource} cannot be stored, so `kubectl get` shows old statuses, and no new operation starts: {answer}. Check the operator's \
         ClusterRole and ClusterRoleBinding (kubectl windows-node-pools check), and admission webhooks and policies"
    )]
    Write {
        /// Resource whose status is written.
        resource: &'static str,
        /// Answer of the API server.
        answer: String,
    },
}

impl ApiProblem {
    /// Returns the reason for conditions and for the metric.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Watch { .. } | Self::Write { .. } => Reason::ApiError,
        }
    }
}

/// Differences between a clock and the API server's, from the newest answers.
#[derive(Debug, Default)]
struct Skews(VecDeque<SignedDuration>);

impl Skews {
    fn note(&mut self, ahead: SignedDuration) {
        self.0.push_back(ahead);
        if self.0.len() > CLOCKS {
            self.0.pop_front();
        }
    }

    /// Returns the smallest difference, if each of the last [`CLOCKS`] differences is more than `more_than`.
    fn agreed(&self, more_than: SignedDuration) -> Option<SignedDuration> {
        let differ = self.0.len() == CLOCKS && self.0.iter().all(|ahead| ahead.abs() > more_than);
        self.0.iter().min_by_key(|ahead| ahead.abs()).copied().filter(|_| differ)
    }
}

/// Health of the access to the API server, from its observed answers.
#[derive(Debug, Default)]
pub(crate) struct ApiHealth {
    failing: Mutex<BTreeMap<Need, Failing>>,
    /// Clock of the machine, compared with the API server's.
    machine: Mutex<Skews>,
    /// Clock of the operator with its corrections, compared with the API server's.
    own: Mutex<Skews>,
    changed: Notify,
}

impl ApiHealth {
    fn succeeded(&self, need: Need) {
        if self.failing.lock().remove(&need).is_some() {
            self.changed.notify_one();
        }
    }

    fn failed(&self, need: Need, path: &str, answer: String, now: Instant) {
        let mut failing = self.failing.lock();
        let new = || Failing { since: now, last: now, times: 0, paths: BTreeSet::new(), answer: String::new() };
        let entry = failing.entry(need).or_insert_with(new);
        if now >= entry.last + REPEATED {
            *entry = new();
        }
        if entry.paths.len() < 2 {
            entry.paths.insert(path.to_owned());
        }
        (entry.last, entry.times, entry.answer) = (now, entry.times.saturating_add(1), answer);
        self.changed.notify_one();
    }

    /// Records the date of an answer, `server`. `here` is the arrival time by the clock of this machine, and `now` the arrival time by the
    /// operator's corrected clock. Returns the correction that the operator's clock needs, if any.
    fn dated(&self, server: Timestamp, here: Timestamp, now: Timestamp) -> Option<SignedDuration> {
        self.machine.lock().note(here.duration_since(server));
        let mut own = self.own.lock();
        own.note(now.duration_since(server));
        let ahead = own.agreed(TOLERANCE)?;
        *own = Skews::default();
        Some(-ahead)
    }

    /// Returns the fault of this machine's clock with its remedy, if the clock is wrong.
    pub(crate) fn clock_warning(&self) -> Option<(Reason, String)> {
        let ahead = self.machine.lock().agreed(MAX_SKEW)?;
        let direction = if ahead.is_positive() { "ahead" } else { "behind" };
        let message = format!(
            "the clock of the operator's node is {} s {direction} of that of the API server; the operator uses the API server's time meanwhile. Correct the time \
             service of that node, or of the API server",
            ahead.as_secs().unsigned_abs()
        );
        Some((Reason::ClockSkew, message))
    }

    /// Returns the reason why no new operation may begin now.
    pub(crate) fn problem(&self) -> Option<ApiProblem> {
        self.problem_at(Instant::now())
    }

    fn problem_at(&self, now: Instant) -> Option<ApiProblem> {
        let failing = self.failing.lock();
        let counts = |failing: &&Failing| failing.counts_from(now).is_some_and(|from| from <= now);
        let failing: Vec<_> = failing.iter().filter(|(_, failing)| counts(failing)).collect();
        // A webhook may refuse a single object, which must not stop the others.
        let writes = failing.iter().filter(|(need, _)| matches!(need, Need::WriteStatus(_)));
        let written: usize = writes.map(|(_, failing)| failing.paths.len()).sum();
        let (need, failing) = failing.into_iter().find(|(need, _)| matches!(need, Need::Watch(_)) || written > 1)?;
        let answer = failing.answer.clone();
        Some(match *need {
            Need::Watch(resource) => ApiProblem::Watch { resource, answer },
            Need::WriteStatus(resource) => ApiProblem::Write { resource, answer },
        })
    }

    /// Returns the time when the problem may change without another answer.
    fn changes_at(&self, now: Instant) -> Option<Instant> {
        let failing = self.failing.lock();
        let times = failing.values().flat_map(|failing| [failing.since + LASTING, failing.last + REPEATED]);
        times.filter(|at| *at > now).min()
    }

    /// Waits until the problem may have changed.
    pub(crate) async fn changed(&self) {
        let at = self.changes_at(Instant::now());
        let passed = async {
            match at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.changed.notified() => {}
            () = passed => {}
        }
    }

    /// Returns a layer of the client that observes each answer.
    pub(crate) fn layer(self: &Arc<Self>) -> Observe {
        Observe(self.clone())
    }
}

/// Layer of a client that observes each answer for an [`ApiHealth`].
#[derive(Clone)]
pub(crate) struct Observe(Arc<ApiHealth>);

impl<S> Layer<S> for Observe {
    type Service = Observed<S>;

    fn layer(&self, inner: S) -> Observed<S> {
        Observed { inner, health: self.0.clone() }
    }
}

/// Client whose answers are observed.
#[derive(Clone)]
pub(crate) struct Observed<S> {
    inner: S,
    health: Arc<ApiHealth>,
}

impl<S, A> Service<Request<Body>> for Observed<S>
where
    S: Service<Request<Body>, Response = Response<A>, Error: Display, Future: Send + 'static>,
    S::Error: Send,
    A: Send,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (need, health) = (Need::of(&request), self.health.clone());
        let of = need.map(|_| (request.method().clone(), request.uri().path().to_owned()));
        let answer = self.inner.call(request);
        async move {
            let answer = answer.await;
            if let Ok(answer) = &answer
                && let Some(server) = date(answer)
                && let Some(by) = health.dated(server, Timestamp::now(), clock::now())
            {
                tracing::warn!(seconds = by.as_secs(), "the operator's clock differs from that of the API server; the operator uses the time of the API server");
                clock::correct(by);
            }
            let (Some(need), Some((method, path))) = (need, of) else { return answer };
            match &answer {
                // A refusal of a single object, or a conflict that is retried, does not count as a failure.
                Ok(answer) if answer.status().is_success() || is_of_one_object(answer.status()) => {
                    health.succeeded(need);
                }
                Ok(answer) => {
                    health.failed(need, &path, format!("{method} {path}: {}", answer.status()), Instant::now());
                }
                Err(error) => health.failed(need, &path, format!("{method} {path}: {error}"), Instant::now()),
            }
            answer
        }
        .boxed()
    }
}

/// Reports whether an HTTP status concerns only the object of the request, so that other requests may succeed.
fn is_of_one_object(status: StatusCode) -> bool {
    let of_one = [
        StatusCode::NOT_FOUND,
        StatusCode::CONFLICT,
        StatusCode::GONE,
        // A refused object must not stop the others.
        StatusCode::BAD_REQUEST,
        StatusCode::PAYLOAD_TOO_LARGE,
        StatusCode::UNPROCESSABLE_ENTITY,
    ];
    of_one.contains(&status)
}

fn date<A>(answer: &Response<A>) -> Option<Timestamp> {
    let text = answer.headers().get(header::DATE)?.to_str().ok()?;
    rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method, uri: &str) -> Request<()> {
        Request::builder().method(method).uri(uri).body(()).unwrap()
    }

    #[test]
    fn watches_and_status_writes_are_recognised() {
        let group = "/apis/windowsmachineconfig.openshift.io/v1alpha1";
        for (method, path, expected) in [
            (Method::GET, format!("{group}/windowsnodepools?watch=true"), Some(Need::Watch("windowsnodepools"))),
            (Method::GET, format!("{group}/windowsinstances?&watch=true&x=1"), Some(Need::Watch("windowsinstances"))),
            (Method::GET, "/api/v1/nodes?watch=1".into(), Some(Need::Watch("nodes"))),
            (Method::GET, "/api/v1/nodes?limit=500".into(), None),
            (Method::GET, "/api/v1/pods?watch=true".into(), None),
            (Method::PATCH, format!("{group}/windowsinstances/a/status"), Some(Need::WriteStatus("windowsinstances"))),
            (Method::PATCH, format!("{group}/windowsinstances/a"), None),
            (Method::PATCH, "/api/v1/nodes/a/status".into(), None),
        ] {
            assert_eq!(Need::of(&request(method.clone(), &path)), expected, "{method} {path}");
        }
    }

    #[test]
    fn failures_for_a_minute_count_until_a_success_or_their_end() {
        let (begin, need) = (Instant::now(), Need::Watch("nodes"));
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        for (about, failures, then, expected) in [
            ("never", &[][..], 100, false),
            ("for less than a minute", &[0, 10, 40], 59, false),
            ("for a minute", &[0, 10, 40], 60, true),
            ("once, a while ago", &[0], 90, false),
            ("again and again, with hanging requests", &[0, 100, 200], 300, true),
            ("not repeated", &[0, 100], 220, false),
            ("a second run", &[0, 10, 500, 510], 540, false),
        ] {
            let health = ApiHealth::default();
            for failure in failures {
                health.failed(need, "nodes", "403 Forbidden".into(), at(*failure));
            }
            assert_eq!(health.problem_at(at(then)).is_some(), expected, "{about}");
            health.succeeded(need);
            assert_eq!(health.problem_at(at(then)), None, "{about}");
        }
    }

    #[test]
    fn a_refused_status_of_one_object_does_not_stop_the_others() {
        let (pool, instance) = (Need::WriteStatus("windowsnodepools"), Need::WriteStatus("windowsinstances"));
        for (about, refused, expected) in [
            ("one object", &[(instance, "a")][..], false),
            ("two objects", &[(instance, "a"), (instance, "b")], true),
            ("the only pool and its only host", &[(pool, "p"), (instance, "a")], true),
        ] {
            let (health, begin) = (ApiHealth::default(), Instant::now());
            for seconds in [0, 30, 60] {
                for (need, path) in refused {
                    health.failed(*need, path, "403 Forbidden".into(), begin + Duration::from_secs(seconds));
                }
            }
            assert_eq!(health.problem_at(begin + Duration::from_secs(61)).is_some(), expected, "{about}");
        }
        for (status, of_one) in [(403, false), (500, false), (409, true), (422, true), (413, true), (400, true)] {
            assert_eq!(is_of_one_object(StatusCode::from_u16(status).unwrap()), of_one, "{status}");
        }
    }

    #[test]
    fn a_clock_that_differs_from_every_answer_is_corrected() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        for (about, answers, expected, corrected) in [
            ("right", &[0, 1, 0, 2, 0][..], None, None),
            ("ahead", &[600, 601, 600, 600, 600], Some("600 s ahead"), Some(-600)),
            ("behind", &[-90, -90, -91, -90, -90], Some("90 s behind"), Some(90)),
            ("a little ahead", &[7, 6, 7, 7, 7], None, Some(-6)),
            ("too few answers", &[600, 600, 600, 600], None, None),
            ("one API server of two is wrong", &[600, 0, 600, 600, 600], None, None),
            ("right again", &[600, 600, 600, 600, 600, 0], None, Some(-600)),
        ] {
            let health = ApiHealth::default();
            let noted = answers.iter().map(|ahead| health.dated(now - SignedDuration::from_secs(*ahead), now, now));
            let by: Vec<_> = noted.flatten().map(|by| by.as_secs()).collect();
            assert_eq!(by, corrected.into_iter().collect::<Vec<i64>>(), "{about}");
            let said = health.clock_warning().map(|(_, message)| message);
            assert_eq!(said.is_some(), expected.is_some(), "{about}");
            assert!(said.is_none_or(|said| said.contains(expected.unwrap_or_default())), "{about}");
        }
    }
}
