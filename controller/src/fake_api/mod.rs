//! Fake API server for tests. It answers requests by method and path from a script, and records them.
//!
//! ```ignore
//! let api = FakeApi::new();
//! api.on("GET", "/api/v1/nodes/win-1", 200, json!({…}));
//! api.on("GET", "/api/v1/pods?continue=2", 200, json!({…}));   // only with this in the query
//! let client = api.client();
//! …
//! assert_eq!(api.calls("POST", "/api/v1/namespaces/shop/pods/cart/eviction").len(), 1);
//! ```
//!
//! The order of the script does not matter between paths. For one method and path, each answer is given once, in the order of the script, and
//! the last one is repeated. Requests without a script are answered from [`Objects`], if there are any. All others get a 501, and are listed
//! in [`FakeApi::unexpected`].

mod objects;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

pub(crate) use objects::Objects;

/// Recorded request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    pub method: String,
    pub path: String,
    /// Percent-decoded query parameters.
    pub query: Vec<(String, String)>,
    pub content_type: String,
    /// JSON body; `Null` if there was none.
    pub body: Value,
}

impl Call {
    /// Returns the value of a query parameter.
    pub(crate) fn query(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }
}

#[derive(Clone)]
enum Reply {
    Json(u16, Value),
    Held(Arc<Notify>, Value),
    Late(Duration, Value),
    Hang,
}

struct Route {
    method: String,
    path: String,
    query: Vec<(String, String)>,
    replies: VecDeque<Reply>,
}

/// Fault that a test injects at a write to [`Objects`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtWrite {
    /// The write takes effect, but its client gets no answer.
    Crash,
    /// Another client changes the object just before the write.
    Overtake,
    /// The write fails.
    Fail,
}

#[derive(Default)]
struct State {
    objects: Option<Objects>,
    /// Number of writes so far that the script did not answer, without writes of Event objects.
    writes: usize,
    /// Number of a later write, and the fault at that write.
    fault: Option<(usize, AtWrite)>,
    crashed: Arc<Notify>,
    routes: Vec<Route>,
    calls: Vec<Call>,
    unexpected: Vec<String>,
}

/// Fake API server; see the module. Clones share one script and one record.
#[derive(Clone, Default)]
pub(crate) struct FakeApi(Arc<Mutex<State>>);

impl FakeApi {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Returns a fake API server with objects.
    pub(crate) fn with_objects() -> Self {
        let api = Self::default();
        api.0.lock().objects = Some(Objects::default());
        api
    }

    /// Reads or changes the objects, as another client would.
    pub(crate) fn objects<T>(&self, with: impl FnOnce(&mut Objects) -> T) -> T {
        with(self.0.lock().objects.as_mut().unwrap())
    }

    /// Sets a fault at the write with this number, counted from now and from 0. Scripted answers and Event objects do not count.
    pub(crate) fn at_write(&self, number: usize, what: AtWrite) {
        let mut state = self.0.lock();
        state.fault = Some((state.writes + number, what));
    }

    /// Reports whether the write with the fault has not happened yet.
    pub(crate) fn is_still_to_come(&self) -> bool {
        self.0.lock().fault.is_some()
    }

    /// Waits for a write at which the writer crashes.
    pub(crate) async fn crashed(&self) {
        let crashed = self.0.lock().crashed.clone();
        crashed.notified().await;
    }

    /// Returns a client of this server, without retries.
    pub(crate) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let call = record(request).await;
                match api.reply(call) {
                    Reply::Json(code, body) => Ok::<_, Infallible>(response(code, &body)),
                    Reply::Held(release, body) => {
                        release.notified().await;
                        Ok(response(200, &body))
                    }
                    Reply::Late(time, body) => {
                        tokio::time::sleep(time).await;
                        Ok(response(200, &body))
                    }
                    Reply::Hang => std::future::pending().await,
                }
            }
        });
        Client::new(service, "default")
    }

    /// Adds an answer. `path` may end in `?key=value&…`: then the answer is only for requests whose query has all of these, and takes precedence
    /// over one without.
    pub(crate) fn on(&self, method: &str, path: &str, code: u16, body: Value) -> &Self {
        self.add(method, path, Reply::Json(code, body))
    }

    /// Adds an answer with status 200 that is held back until the returned `Notify` releases it.
    pub(crate) fn hold(&self, method: &str, path: &str, body: Value) -> Arc<Notify> {
        let release = Arc::new(Notify::new());
        self.add(method, path, Reply::Held(release.clone(), body));
        release
    }

    /// Adds an answer with status 200 that comes after this time.
    pub(crate) fn late(&self, method: &str, path: &str, time: Duration, body: Value) -> &Self {
        self.add(method, path, Reply::Late(time, body))
    }

    /// Leaves requests to this method and path without an answer.
    pub(crate) fn hang(&self, method: &str, path: &str) -> &Self {
        self.add(method, path, Reply::Hang)
    }

    /// Adds a failure in the format of the API server. `details` may be `Null`.
    pub(crate) fn fail(
        &self,
        method: &str,
        path: &str,
        code: u16,
        reason: &str,
        message: &str,
        details: Value,
    ) -> &Self {
        self.on(method, path, code, failure(code, reason, message, details))
    }

    /// Removes the answers for this method and path, so that new ones can take their place.
    pub(crate) fn forget(&self, method: &str, path: &str) -> &Self {
        let (path, query) = split(path);
        self.0.lock().routes.retain(|r| (r.method != method) || r.path != path || r.query != query);
        self
    }

    /// Returns the requests to this method and path, whatever their query, in the order of arrival.
    pub(crate) fn calls(&self, method: &str, path: &str) -> Vec<Call> {
        self.all_calls().into_iter().filter(|call| call.method == method && call.path == path).collect()
    }

    /// Returns all requests, in the order of arrival.
    pub(crate) fn all_calls(&self) -> Vec<Call> {
        self.0.lock().calls.clone()
    }

    /// Returns `METHOD path` for each request that was answered neither by the script nor from the objects.
    pub(crate) fn unexpected(&self) -> Vec<String> {
        self.0.lock().unexpected.clone()
    }

    fn add(&self, method: &str, path: &str, reply: Reply) -> &Self {
        let (path, query) = split(path);
        let mut state = self.0.lock();
        let known = state.routes.iter_mut().find(|r| r.method == method && r.path == path && r.query == query);
        match known {
            Some(route) => route.replies.push_back(reply),
            None => state.routes.push(Route { method: method.into(), path, query, replies: [reply].into() }),
        }
        drop(state);
        self
    }

    fn reply(&self, call: Call) -> Reply {
        let mut state = self.0.lock();
        state.calls.push(call.clone());
        let matching = state
            .routes
            .iter_mut()
            .filter(|r| {
                r.method == call.method && r.path == call.path && r.query.iter().all(|q| call.query.contains(q))
            })
            .max_by_key(|route| route.query.len());
        match matching {
            Some(route) if route.replies.len() > 1 => route.replies.pop_front().unwrap(),
            Some(route) => route.replies[0].clone(),
            None => {
                if let Some(reply) = state.answer(&call) {
                    return reply;
                }
                let what = format!("{} {}", call.method, call.path);
                let body = failure(501, "", &format!("the test has no answer for {what}"), Value::Null);
                state.unexpected.push(what);
                Reply::Json(501, body)
            }
        }
    }
}

impl State {
    fn answer(&mut self, call: &Call) -> Option<Reply> {
        let is_write = call.method != "GET" && !call.path.ends_with("/events");
        let fault = self.fault.filter(|(at, _)| is_write && *at == self.writes).map(|(_, what)| what);
        self.writes += usize::from(is_write);
        if fault.is_some() {
            self.fault = None;
        }
        let objects = self.objects.as_mut()?;
        match fault {
            Some(AtWrite::Fail) => {
                return Some(Reply::Json(500, failure(500, "InternalError", "etcd is away", Value::Null)));
            }
            Some(AtWrite::Overtake) => objects.overtake(call),
            Some(AtWrite::Crash) | None => {}
        }
        let (code, body) = objects.answer(call)?;
        if fault == Some(AtWrite::Crash) {
            self.crashed.notify_one();
            return Some(Reply::Hang);
        }
        Some(Reply::Json(code, body))
    }
}

/// Returns a `Status` object of a failure.
pub(crate) fn failure(code: u16, reason: &str, message: &str, details: Value) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message, "details": details,
    })
}

/// Returns a `Status` object of a success.
pub(crate) fn success() -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 })
}

/// Returns one page of a list; `continue_token` is empty on the last.
pub(crate) fn list(kind: &str, api_version: &str, items: &[Value], continue_token: &str) -> Value {
    json!({ "kind": kind, "apiVersion": api_version, "metadata": { "resourceVersion": "1", "continue": continue_token }, "items": items })
}

async fn record(request: Request<Body>) -> Call {
    let (parts, body) = request.into_parts();
    let bytes = body.collect_bytes().await.unwrap();
    Call {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: pairs(parts.uri.query().unwrap_or_default()),
        content_type: parts
            .headers
            .get(http::header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned(),
        body: if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() },
    }
}

fn response(code: u16, body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(serde_json::to_vec(body).unwrap()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    let date = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&jiff::Timestamp::now()).unwrap();
    response.headers_mut().insert(http::header::DATE, date.parse().unwrap());
    response
}

fn split(path: &str) -> (String, Vec<(String, String)>) {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    (path.to_owned(), pairs(query))
}

fn pairs(query: &str) -> Vec<(String, String)> {
    let url = reqwest::Url::parse(&format!("http://api-server/?{query}")).unwrap();
    url.query_pairs().into_owned().collect()
}
