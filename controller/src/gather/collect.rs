//! Reads a plan's objects, logs and metrics from the API server into the folder. What fails is recorded, and the rest goes on.

use std::{collections::BTreeSet, time::Duration};

use futures::AsyncReadExt as _;
use http::{Request, header::ACCEPT};
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    plan::{self, Form, Item},
    write::{Folder, MOST_OF_A_FILE},
};

/// For each answer of the API server: longer than a busy one needs, and short enough that forty dead ones are no hour.
const LIMIT: Duration = Duration::from_mins(1);
/// Objects of one page.
const PAGE: usize = 500;
/// Objects of one kind. A cluster with more has them from a fault, and the first ones show it.
const MOST_OBJECTS: usize = 5000;
/// Events of one kind, which are listed by name, so that the newest may be the last.
const MOST_EVENTS: usize = 50_000;
/// Metadata of Secrets alone. An API server that cannot return it refuses, because the request accepts only that.
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// Port of the operator's metrics.
const METRICS: [&str; 2] = ["https:{pod}:9185", "http:{pod}:9185"];

/// From when logs are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Since(pub Option<Timestamp>);

/// Why something could not be read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    /// The cluster has no such kind, or no such object.
    #[error("not in this cluster")]
    Missing,
    /// The API server refuses, or does not answer.
    #[error("{}", refusal(.0))]
    Api(kube::Error),
    /// It does not answer in time.
    #[error("no answer within {} s", LIMIT.as_secs())]
    Timeout,
    /// The answer is none.
    #[error("the answer cannot be read: {0}")]
    Answer(String),
}

/// Not as the operator's own errors: the rights are those of who gathers.
fn refusal(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.is_forbidden() => {
            format!("{}; ask a person with this right to gather", api::text::line(&status.message, 500))
        }
        kube::Error::Api(status) => api::text::line(&status.message, 500),
        other => api::text::line(&other.to_string(), 500),
    }
}

impl From<kube::Error> for ReadError {
    fn from(error: kube::Error) -> Self {
        match &error {
            kube::Error::Api(status) if status.code == 404 => Self::Missing,
            _ => Self::Api(error),
        }
    }
}

/// Why names are not known that would then stand in the archive.
#[derive(Debug, thiserror::Error)]
pub(super) enum NamesError {
    /// The list cannot be read.
    #[error(
        "failed to list {what}, whose names must get pseudonyms: {why}. Nothing was gathered: run the command again as a person who may list {what}, or without --anonymise"
    )]
    NotListed {
        /// Objects of one kind.
        what: String,
        /// Why not.
        why: String,
    },
    /// The list is not whole.
    #[error(
        "there are more than {MOST_OBJECTS} {0}, too many to give each a pseudonym. Nothing was gathered: run the command again without --anonymise"
    )]
    TooMany(String),
}

/// Reads from the API server.
pub(super) struct Reader {
    client: Client,
}

impl Reader {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    async fn bytes(&self, path: &str, accept: &str, most: usize) -> Result<Vec<u8>, ReadError> {
        let request = Request::get(path).header(ACCEPT, accept).body(Vec::new());
        let request = request.map_err(|e| ReadError::Answer(e.to_string()))?;
        let read = async {
            let mut stream = Box::pin(self.client.request_stream(request).await?);
            let (mut bytes, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
            loop {
                let length = stream.read(&mut chunk).await.map_err(|e| ReadError::Answer(e.to_string()))?;
                if length == 0 {
                    return Ok(bytes);
                }
                bytes.extend_from_slice(&chunk[..length]);
                // The newest end of a log.
                if bytes.len() > 2 * most {
                    bytes.drain(..bytes.len() - most);
                }
            }
        };
        timeout(LIMIT, read).await.map_err(|_| ReadError::Timeout)?
    }

    async fn text(&self, path: &str) -> Result<String, ReadError> {
        let bytes = self.bytes(path, "*/*", MOST_OF_A_FILE).await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The objects that an item keeps, and whether there are more than can be gathered.
    async fn list(&self, item: &Item) -> Result<(Vec<Value>, bool), ReadError> {
        match (self.list_version(item).await, item.in_earlier_version()) {
            (Err(ReadError::Missing), Some(earlier)) => self.list_version(&earlier).await,
            (listed, _) => listed,
        }
    }

    async fn list_version(&self, item: &Item) -> Result<(Vec<Value>, bool), ReadError> {
        let most = if item.form == Form::List { MOST_EVENTS } else { MOST_OBJECTS };
        let accept = if item.form == Form::Secret { METADATA_ONLY } else { "application/json" };
        let (mut objects, mut next) = (Vec::new(), String::new());
        loop {
            let mut path = format!("{}?limit={PAGE}", item.path());
            for part in [item.query, &next].into_iter().filter(|part| !part.is_empty()) {
                path = format!("{path}&{part}");
            }
            let bytes = self.bytes(&path, accept, usize::MAX / 4).await?;
            let mut list: Value = serde_json::from_slice(&bytes).map_err(|e| ReadError::Answer(e.to_string()))?;
            let kind = list["kind"].as_str().and_then(|k| k.strip_suffix("List")).unwrap_or_default().to_owned();
            let (version, token) = (list["apiVersion"].take(), list["metadata"]["continue"].take());
            for mut object in list["items"].as_array_mut().map(std::mem::take).unwrap_or_default() {
                if item.keeps(&object) {
                    // Lists name the kind once.
                    if let Some(object) = object.as_object_mut().filter(|_| item.form != Form::Secret) {
                        object.entry("apiVersion").or_insert_with(|| version.clone());
                        object.entry("kind").or_insert_with(|| kind.clone().into());
                    }
                    objects.push(object);
                }
            }
            match token.as_str().filter(|token| !token.is_empty()) {
                Some(_) if objects.len() >= most => return Ok((objects, true)),
                Some(token) => next = format!("continue={}", encode(token)),
                None => return Ok((objects, false)),
            }
        }
    }

    /// The objects of an item, as far as they can be read: those that cannot are reported when they are gathered.
    pub(super) async fn readable(&self, item: &Item) -> Vec<Value> {
        self.list(item).await.map(|(objects, _)| objects).unwrap_or_default()
    }

    /// All objects of an item, for the names in them. None if the cluster does not have the kind.
    pub(super) async fn names(&self, item: &Item) -> Result<Vec<Value>, NamesError> {
        match self.list(item).await {
            Ok((objects, false)) => Ok(objects),
            Ok((_, true)) => Err(NamesError::TooMany(item.name())),
            Err(ReadError::Missing) => Ok(Vec::new()),
            // A person without the right is refused before the API server sees that it does not have the kind.
            Err(error) if self.may_be_served(item).await => {
                Err(NamesError::NotListed { what: item.name(), why: error.to_string() })
            }
            Err(_) => Ok(Vec::new()),
        }
    }

    /// Whether the cluster has a kind. Yes, too, if the API server does not say.
    async fn may_be_served(&self, item: &Item) -> bool {
        for version in [Some(item.clone()), item.in_earlier_version()].into_iter().flatten() {
            let is_not = match self.bytes(&version.group_version(), "application/json", MOST_OF_A_FILE).await {
                Ok(bytes) => serde_json::from_slice::<Value>(&bytes).is_ok_and(|list| {
                    let resources = list["resources"].as_array();
                    resources.is_some_and(|all| all.iter().all(|one| one["name"] != item.resource))
                }),
                Err(ReadError::Missing) => true,
                Err(_) => false,
            };
            if !is_not {
                return true;
            }
        }
        false
    }

    /// Gathers the objects of an item.
    pub(super) async fn gather(&self, item: &Item, since: Since, folder: &mut Folder) {
        let (objects, has_more) = match self.list(item).await {
            Ok(list) => list,
            Err(ReadError::Missing) => return folder.note(&item.name(), "not in this cluster"),
            Err(error) => return folder.failed(&item.name(), &error.to_string()),
        };
        folder.note(&item.name(), &format!("{} objects", objects.len()));
        if has_more {
            folder.failed(&item.name(), &format!("there are more than {}; the rest is left out", objects.len()));
        }
        if item.form == Form::List {
            let path = item.folder(item.namespace.as_deref()) + ".yaml";
            let listed = objects.len();
            // YAML is longer than JSON.
            let objects = plan::newest_events(objects, MOST_OF_A_FILE / 2);
            if objects.len() < listed {
                folder.failed(&path, &format!("the oldest {} are left out", listed - objects.len()));
            }
            let result = folder.object(&path, json!({"apiVersion": "v1", "kind": "List", "items": objects}));
            return folder.keep(&path, result);
        }
        for object in objects {
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let namespace = object["metadata"]["namespace"].as_str().or(item.namespace.as_deref()).map(str::to_owned);
            if item.form == Form::Pod {
                self.pod(&object, namespace.as_deref().unwrap_or_default(), &name, since, folder).await;
                continue;
            }
            let path = format!("{}/{name}.yaml", item.folder(namespace.as_deref()));
            let result = folder.object(&path, plan::formed(item.form, object));
            folder.keep(&path, result);
        }
    }

    async fn pod(&self, pod: &Value, namespace: &str, name: &str, since: Since, folder: &mut Folder) {
        let (place, url) =
            (format!("namespaces/{namespace}/pods/{name}"), format!("/api/v1/namespaces/{namespace}/pods"));
        let path = format!("{place}/{name}.yaml");
        let result = folder.object(&path, pod.clone());
        folder.keep(&path, result);
        let since = since.0.map(|time| format!("&sinceTime={}", encode(&time.to_string()))).unwrap_or_default();
        for (container, restarted) in plan::containers(pod) {
            for (file, previous) in [("current", false), ("previous", true)] {
                if previous && !restarted {
                    continue;
                }
                let path = format!("{place}/{container}/{container}/logs/{file}.log");
                let query = format!("container={}&timestamps=true&previous={previous}{since}", encode(&container));
                match self.text(&format!("{url}/{name}/log?{query}")).await {
                    Ok(log) => {
                        let result = folder.text(&path, &log);
                        folder.keep(&path, result);
                    }
                    Err(error) => folder.failed(&path, &error.to_string()),
                }
            }
        }
        if pod["metadata"]["labels"]["app.kubernetes.io/name"] == api::names::COMPONENT
            || name.starts_with(api::names::COMPONENT)
        {
            self.metrics(&place, &url, name, folder).await;
        }
    }

    /// The operator asks for a token, which an API server does not pass on: these are metrics of an operator without TLS, or the reason why
    /// there are none.
    async fn metrics(&self, place: &str, url: &str, name: &str, folder: &mut Folder) {
        let mut why = String::new();
        for target in METRICS {
            let path = format!("{url}/{}/proxy/metrics", target.replace("{pod}", name));
            match self.text(&path).await {
                Ok(metrics) => {
                    let path = format!("{place}/metrics.txt");
                    let result = folder.text(&path, &metrics);
                    return folder.keep(&path, result);
                }
                Err(error) => why = error.to_string(),
            }
        }
        let remedy =
            "the operator shows them to a token, which the API server does not pass on; get them from Prometheus";
        folder.failed(&format!("metrics of pod {name}"), &format!("{why}; {remedy}"));
    }

    /// Gathers what runs on Windows nodes, without what it runs with. Returns the namespaces.
    pub(super) async fn pods_on(&self, nodes: &BTreeSet<String>, folder: &mut Folder) -> BTreeSet<String> {
        let mut namespaces = BTreeSet::new();
        let pods = Item { version: "v1", resource: "pods", ..Item::default() };
        for node in nodes {
            let what = format!("pods on {node}");
            match self.list_on(&pods, node).await {
                Ok(found) => {
                    let of = |pod: &Value| pod["metadata"]["namespace"].as_str().map(str::to_owned);
                    namespaces.extend(found.iter().filter_map(of));
                    let path = format!("cluster-scoped-resources/core/nodes/{node}.pods.yaml");
                    let result = folder.object(&path, found.iter().map(plan::summary).collect());
                    folder.note(&what, &format!("{} objects", found.len()));
                    folder.keep(&path, result);
                }
                Err(error) => folder.failed(&what, &error.to_string()),
            }
        }
        namespaces
    }

    async fn list_on(&self, pods: &Item, node: &str) -> Result<Vec<Value>, ReadError> {
        let path = format!("{}?limit={MOST_OBJECTS}&fieldSelector=spec.nodeName%3D{}", pods.path(), encode(node));
        let bytes = self.bytes(&path, "application/json", usize::MAX / 4).await?;
        let mut list: Value = serde_json::from_slice(&bytes).map_err(|e| ReadError::Answer(e.to_string()))?;
        Ok(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Gathers the version of the API server. An error is the reason why the rest cannot be had either.
    pub(super) async fn version(&self, folder: &mut Folder) {
        match self.text("/version").await {
            Ok(text) => {
                let result = folder.text("cluster-version.json", &text);
                folder.keep("cluster-version.json", result);
            }
            Err(error) => folder.failed("version of the API server", &error.to_string()),
        }
    }
}

/// For a query.
fn encode(text: &str) -> String {
    let safe = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if safe(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
