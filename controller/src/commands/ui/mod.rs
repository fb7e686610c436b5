//! Command `ui`: serves a web page that shows pools and hosts as they change.
//!
//! The server listens on loopback only, and reads with the rights of the user. The secret in the path of its URLs keeps out other users of the
//! machine and pages of other sites.

mod view;

use std::{convert::Infallible, net::Ipv4Addr, sync::Arc, time::Duration};

use anyhow::Context as _;
use api::Reason;
use axum::{
    Json, Router,
    extract::{Path, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
    routing::get,
};
use futures::{Stream, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1;
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use rand::RngCore as _;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

use crate::{
    args::{self, StatusOutput, Ui},
    client::api_server,
    commands::status::live::Live,
    runtime::{
        errors::plain,
        http::server::{Limits, serve},
    },
};
use view::{Snapshot, snapshot, update};

/// Limits for browsers. A page holds one connection, which the browser reopens when it ends.
const LIMITS: Limits =
    Limits { connections: 64, per_address: 64, head: Duration::from_secs(10), connection: Duration::from_hours(24) };
/// Maximum number of events that are shown for a host.
const EVENTS: usize = 20;
/// Files of the page: name, content type and content.
const FILES: [(&str, &str, &str); 3] = [
    ("", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("app.js", "text/javascript; charset=utf-8", include_str!("page/app.js")),
    ("style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
];
/// Headers of each answer. With them, browsers load no content from other sites, tell no other site the path, and cache nothing.
const HEADERS: [(HeaderName, &str); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
];

/// Serves the page until the program is interrupted.
///
/// # Errors
/// Fails when there is no configuration for the API server, it does not answer, the watches cannot be started, or the program cannot listen on the
/// port.
pub async fn run(args: Ui, cluster: &args::Cluster) -> anyhow::Result<()> {
    let chosen = api_server::choose(cluster).await?;
    // Checks that the API server answers in time. The client for the watches has no timeout, because a watch receives nothing as long as nothing
    // changes.
    api_server::bounded(chosen.config.clone(), cluster.request_timeout).await?;
    let client = Client::try_from(chosen.config).context("cannot make a client for the API server")?;
    let selection = args::Status {
        pools: Vec::new(),
        watch: true,
        columns: 0,
        namespace: args.namespace,
        output: StatusOutput::Json,
    };
    let mut live = Live::of(&client);
    let mut look = async || {
        let (seen, warnings) = live.next(&selection).await?;
        anyhow::Ok(Arc::new(snapshot(&chosen.title, &seen, &warnings)?))
    };
    let (sender, objects) = watch::channel(look().await?);

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).await;
    let listener = listener
        .with_context(|| format!("cannot listen on 127.0.0.1 port {}; name a free port with --port", args.port))?;
    let port = listener.local_addr()?.port();
    let mut secret = [0; 16];
    rand::rng().fill_bytes(&mut secret);
    let secret = hex::encode(secret);
    println!("http://127.0.0.1:{port}/{secret}/ shows {} until you interrupt this command.", chosen.title);
    let router = router(&secret, port, Page { client, objects });
    let stop = CancellationToken::new();
    let serving = serve(listener, None, router, LIMITS, stop.clone());
    let looking = async {
        loop {
            sender.send_replace(look().await?);
        }
    };
    tokio::select! {
        () = serving => Ok(()),
        error = looking => error,
        interrupted = tokio::signal::ctrl_c() => interrupted.context("cannot wait for an interrupt"),
    }
}

/// State of the server.
#[derive(Clone)]
struct Page {
    client: Client,
    objects: watch::Receiver<Arc<Snapshot>>,
}

/// Returns the routes, which are all below the secret.
fn router(secret: &str, port: u16, page: Page) -> Router {
    let at = |path: &str| format!("/{secret}/{path}");
    let mut routes = Router::new()
        .route(&at("live"), get(live))
        .route(&at("reasons/{reason}"), get(reason))
        .route(&at("events/{host}"), get(events))
        .with_state(page);
    for (name, type_, text) in FILES {
        routes = routes.route(&at(name), get(move || async move { ([(header::CONTENT_TYPE, type_)], text) }));
    }
    routes.layer(middleware::from_fn(move |request: Request, next: Next| guard(port, request, next)))
}

/// Refuses requests for another host name, as a page of another site sends them by DNS rebinding, and adds [`HEADERS`] to each answer.
async fn guard(port: u16, request: Request, next: Next) -> Response {
    let mut answer = if is_own(request.headers(), port) {
        next.run(request).await
    } else {
        (StatusCode::MISDIRECTED_REQUEST, "open the page with the URL that the command has printed\n").into_response()
    };
    for (name, value) in HEADERS {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// Reports whether the `Host` header of a request is that of the printed URL, or `localhost` with the same port.
fn is_own(headers: &HeaderMap, port: u16) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    host.is_some_and(|host| host == format!("127.0.0.1:{port}") || host == format!("localhost:{port}"))
}

/// Streams updates: first all objects, then those that have changed.
async fn live(State(page): State<Page>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let updates = stream::unfold((page.objects, None::<Arc<Snapshot>>), |(mut objects, sent)| async move {
        loop {
            let now = if sent.is_none() {
                objects.borrow_and_update().clone()
            } else {
                objects.changed().await.ok().map(|()| objects.borrow_and_update().clone())?
            };
            if let Some(update) = update(sent.as_deref(), &now) {
                return Some((Ok(Event::default().data(update)), (objects, Some(now))));
            }
        }
    });
    Sse::new(updates).keep_alive(KeepAlive::default())
}

/// Returns the explanation of a reason, to which the page links.
async fn reason(Path(reason): Path<Reason>) -> String {
    format!("{}: {}", reason.as_str(), words(reason.meaning()))
}

/// Returns Markdown as plain text.
fn words(markdown: &str) -> String {
    let mut text = String::new();
    let mut rest = markdown;
    while let Some((before, after)) = rest.split_once("](") {
        text += before;
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    (text + rest).replace(['[', '`'], "").replace('\n', " ")
}

/// Returns the newest events of a host, the newest first.
async fn events(State(page): State<Page>, Path(host): Path<String>) -> Result<Json<Vec<Value>>, (StatusCode, String)> {
    // The name becomes part of a selector.
    if !host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b)) {
        return Err((StatusCode::BAD_REQUEST, "this is not the name of a host".into()));
    }
    let selector = format!("involvedObject.kind=WindowsInstance,involvedObject.name={host}");
    let listed = Api::<v1::Event>::all(page.client).list(&ListParams::default().fields(&selector)).await;
    let listed = listed.map_err(|error| (StatusCode::BAD_GATEWAY, plain(&error)))?;
    let mut events: Vec<(Option<Timestamp>, v1::Event)> =
        listed.items.into_iter().map(|event| (time(&event), event)).collect();
    events.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
    let shown = events.into_iter().take(EVENTS);
    Ok(Json(shown.map(|(time, event)| json!({"time": time, "reason": event.reason, "note": event.message})).collect()))
}

/// Returns the time at which an event was seen last.
fn time(event: &v1::Event) -> Option<Timestamp> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    let seen = series.or(event.event_time.as_ref()).map(|time| time.0);
    seen.or(event.last_timestamp.as_ref().map(|time| time.0)).or(event.creation_timestamp().map(|time| time.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_must_name_the_printed_host() {
        for (host, expected) in [
            (Some("127.0.0.1:8080"), true),
            (Some("localhost:8080"), true),
            (Some("127.0.0.1"), false),
            (Some("127.0.0.1:8081"), false),
            (Some("rebound.example.com:8080"), false),
            (None, false),
        ] {
            let headers = host.map(|host| (header::HOST, HeaderValue::from_static(host)));
            assert_eq!(is_own(&headers.into_iter().collect(), 8080), expected, "{host:?}");
        }
    }

    #[tokio::test]
    async fn a_reason_is_explained_in_words() {
        let explanation = reason(Path(Reason::HostConflict)).await;
        assert!(explanation.starts_with("HostConflict: ") && explanation.ends_with('.'), "{explanation}");
    }

    #[test]
    fn markdown_becomes_plain_text() {
        for (markdown, expected) in [
            ("A `Lease` is\ngone.", "A Lease is gone."),
            ("See [the list](../guide/list.md#a), or [this](b).", "See the list, or this."),
        ] {
            assert_eq!(words(markdown), expected);
        }
        assert!(Reason::ALL.iter().all(|reason| !words(reason.meaning()).contains(['[', '`'])));
    }
}
