//! Collection of the plan's objects and logs from the API server. A failure is recorded, and the rest continues.

use std::{collections::BTreeSet, time::Duration};

use anyhow::Context as _;
use futures::AsyncReadExt as _;
use http::{Request, header::ACCEPT};
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    plan::{self, Form, Item, Scope},
    write::{Folder, MAX_FILE_BYTES},
};

/// Timeout of each request to the API server: long enough for a busy API server, and short enough that timeouts for all kinds of the plan take less
/// than an hour together.
const LIMIT: Duration = Duration::from_mins(1);
/// Number of objects per page.
const PAGE: usize = 500;
/// Maximum number of objects of one kind. More are the result of a fault, which the first ones show.
const MAX_OBJECTS: usize = 5000;
/// Maximum number of events in a list. They are sorted by name, so the newest may come last.
const MAX_EVENTS: usize = 50_000;
/// Media type for Secrets without their data. The request accepts nothing else, so an API server that does not support this type refuses the request.
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Reports whether the error says that the kind or the object does not exist.
fn is_missing(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.code == 404)
}

/// Returns the message about an error, with the remedy if the user lacks a right.
fn words(error: &anyhow::Error) -> String {
    let words = match error.downcast_ref() {
        // The user lacks the right, not the operator.
        Some(kube::Error::Api(status)) if status.is_forbidden() => {
            format!("{}; ask a user who has this right to run gather", status.message)
        }
        Some(kube::Error::Api(status)) => status.message.clone(),
        _ => error.to_string(),
    };
    api::text::line(&words, 500)
}

/// Reader of the API server.
pub(super) struct Reader {
    pub client: Client,
    /// Time of the oldest log lines.
    pub since: Option<Timestamp>,
}

impl Reader {
    /// Reads an answer. Whenever it exceeds twice `most` bytes, only its last `most` bytes are kept: the newest lines of a log.
    async fn bytes(&self, path: &str, accept: &str, most: usize) -> anyhow::Result<Vec<u8>> {
        let request = Request::get(path).header(ACCEPT, accept).body(Vec::new())?;
        let read = async {
            let mut stream = Box::pin(self.client.request_stream(request).await?);
            let (mut bytes, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
            loop {
                let length = stream.read(&mut chunk).await?;
                if length == 0 {
                    return anyhow::Ok(bytes);
                }
                bytes.extend_from_slice(&chunk[..length]);
                if bytes.len() > 2 * most {
                    bytes.drain(..bytes.len() - most);
                }
            }
        };
        timeout(LIMIT, read).await.with_context(|| format!("no answer within {} s", LIMIT.as_secs()))?
    }

    async fn text(&self, path: &str) -> anyhow::Result<String> {
        Ok(String::from_utf8_lossy(&self.bytes(path, "*/*", MAX_FILE_BYTES).await?).into_owned())
    }

    /// Lists objects page by page until there are at least `most`, and reports whether the API server has more. `query` has selectors, such as
    /// `&labelSelector=…`.
    async fn list(&self, path: &str, query: &str, accept: &str, most: usize) -> anyhow::Result<(Vec<Value>, bool)> {
        let (mut objects, mut next) = (Vec::new(), String::new());
        loop {
            let page = format!("{path}?limit={PAGE}{query}{next}");
            let bytes = self.bytes(&page, accept, usize::MAX / 4).await?;
            let mut list: Value = serde_json::from_slice(&bytes)?;
            // Only the list itself names the kind.
            let kind = list["kind"].as_str().and_then(|k| k.strip_suffix("List")).unwrap_or_default().to_owned();
            let (version, token) = (list["apiVersion"].take(), list["metadata"]["continue"].take());
            for mut object in list["items"].as_array_mut().map(std::mem::take).unwrap_or_default() {
                if let Some(fields) = object.as_object_mut() {
                    fields.entry("apiVersion").or_insert_with(|| version.clone());
                    fields.entry("kind").or_insert_with(|| kind.clone().into());
                }
                objects.push(object);
            }
            match token.as_str().filter(|token| !token.is_empty()) {
                Some(_) if objects.len() >= most => return Ok((objects, true)),
                Some(token) => next = format!("&continue={}", encode(token)),
                None => return Ok((objects, false)),
            }
        }
    }

    /// Reads the names of the Windows Nodes.
    pub(super) async fn nodes(&self) -> BTreeSet<String> {
        let of_windows = "&labelSelector=kubernetes.io%2Fos%3Dwindows";
        let listed = self.list("/api/v1/nodes", of_windows, "application/json", MAX_OBJECTS).await;
        // A failure is reported when the nodes themselves are gathered.
        let nodes = listed.map(|(nodes, _)| nodes).unwrap_or_default();
        nodes.iter().filter_map(|node| node["metadata"]["name"].as_str().map(str::to_owned)).collect()
    }

    /// Gathers the objects of an item of the plan.
    pub(super) async fn gather(&self, item: &Item, scope: &Scope, folder: &mut Folder) {
        let (accept, most) = match item.form {
            Form::Secret => (METADATA_ONLY, MAX_OBJECTS),
            Form::List => ("application/json", MAX_EVENTS),
            _ => ("application/json", MAX_OBJECTS),
        };
        let (mut objects, has_more) = match self.list(&item.path(), "", accept, most).await {
            Ok(list) => list,
            Err(error) if is_missing(&error) => {
                return folder.note(&item.name(), &format!("the API server does not serve it in {}", item.version()));
            }
            Err(error) => return folder.failed(&item.name(), &words(&error)),
        };
        if has_more {
            folder.failed(
                &item.name(),
                &format!("the cluster has more than {} objects of this kind; the rest is left out", objects.len()),
            );
        }
        objects.retain(|object| item.keeps(object, scope));
        folder.note(&item.name(), &format!("{} objects", objects.len()));
        if item.form == Form::List {
            let path = format!("{}.yaml", item.folder(None));
            let listed = objects.len();
            // YAML is longer than JSON.
            let objects = plan::newest_events(objects, MAX_FILE_BYTES / 2);
            if objects.len() < listed {
                folder.failed(
                    &path,
                    &format!(
                        "the oldest {} events are left out, because the file is limited in size",
                        listed - objects.len()
                    ),
                );
            }
            return folder.object(&path, json!({"apiVersion": "v1", "kind": "List", "items": objects}));
        }
        for object in objects {
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
            if item.form == Form::Pod {
                self.pod(&item.path(), &name, object, folder).await;
            } else {
                let path = format!("{}/{name}.yaml", item.folder(namespace.as_deref()));
                let is_secret = item.form == Form::Secret;
                folder.object(&path, if is_secret { plan::names_of_keys(&object) } else { object });
            }
        }
    }

    /// Gathers a pod and its logs. `pods` is the API path of the pod list.
    async fn pod(&self, pods: &str, name: &str, pod: Value, folder: &mut Folder) {
        let place = format!("{}/{name}", pods.trim_start_matches("/api/v1/"));
        let containers = plan::containers(&pod);
        folder.object(&format!("{place}/{name}.yaml"), pod);
        let since = self.since.map(|time| format!("&sinceTime={}", encode(&time.to_string()))).unwrap_or_default();
        for container in containers {
            for (file, previous) in [("current", false), ("previous", true)] {
                let path = format!("{place}/{container}/{container}/logs/{file}.log");
                let query = format!("container={}&timestamps=true&previous={previous}{since}", encode(&container));
                match self.text(&format!("{pods}/{name}/log?{query}")).await {
                    Ok(log) => folder.text(&path, &log),
                    // Most containers have no previous run.
                    Err(_) if previous => {}
                    Err(error) => folder.failed(&path, &words(&error)),
                }
            }
        }
    }

    /// Gathers a summary of the pods on a Windows node, without their containers.
    pub(super) async fn pods_on(&self, node: &str, folder: &mut Folder) {
        let query = format!("&fieldSelector=spec.nodeName%3D{}", encode(node));
        match self.list("/api/v1/pods", &query, "application/json", MAX_OBJECTS).await {
            Ok((pods, has_more)) => {
                if has_more {
                    let left_out = format!("there are more than {} pods; the rest is left out", pods.len());
                    folder.failed(&format!("pods on {node}"), &left_out);
                }
                let path = format!("cluster-scoped-resources/core/nodes/{node}.pods.yaml");
                folder.object(&path, pods.iter().map(plan::summary).collect());
            }
            Err(error) => folder.failed(&format!("pods on {node}"), &words(&error)),
        }
    }

    /// Gathers the version of the API server. If this fails, the error also explains why the rest is missing.
    pub(super) async fn version(&self, folder: &mut Folder) {
        match self.text("/version").await {
            Ok(text) => folder.text("cluster-version.json", &text),
            Err(error) => folder.failed("version of the API server", &words(&error)),
        }
    }
}

/// Percent-encodes a text for a URL query.
fn encode(text: &str) -> String {
    let safe = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if safe(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
