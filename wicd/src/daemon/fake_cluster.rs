//! Fake API server in memory, for tests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::authentication::v1::TokenRequest;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::cluster::{Annotations, Cluster, ClusterError, Connect, Issue, Response, ServicesConfigMap};

type Issuing = Box<dyn Fn(&str) -> Issue + Send + Sync>;

/// Fake API server. Clones share its state.
#[derive(Clone)]
pub(crate) struct FakeCluster(Arc<Inner>);

pub(crate) struct Inner {
    pub node: watch::Sender<Option<Value>>,
    pub config_maps: Mutex<BTreeMap<String, ServicesConfigMap>>,
    pub down: AtomicBool,
    pub connections: AtomicU32,
    /// Answer to a certificate request.
    pub issuing: Mutex<Issuing>,
    request: Mutex<String>,
    /// Answer to token requests, which fail if it is `None`. `tokens` has all requests.
    pub token: Mutex<Option<String>>,
    pub tokens: Mutex<Vec<String>>,
    pub patches: Mutex<Vec<Annotations>>,
}

impl std::ops::Deref for FakeCluster {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl FakeCluster {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner {
            node: watch::channel(None).0,
            config_maps: Mutex::default(),
            down: AtomicBool::new(false),
            connections: AtomicU32::new(0),
            issuing: Mutex::new(Box::new(|_| Issue::Pending)),
            request: Mutex::default(),
            token: Mutex::default(),
            tokens: Mutex::default(),
            patches: Mutex::default(),
        }))
    }

    /// Replaces the Node by a Ready one with these annotations.
    pub(crate) fn set_node(&self, annotations: &[(&str, &str)]) {
        let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
        self.node.send_replace(Some(json!({"metadata": {"name": "win-1", "annotations": annotations},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}})));
    }

    pub(crate) fn annotation(&self, key: &str) -> Option<String> {
        self.node.borrow().as_ref()?["metadata"]["annotations"][key].as_str().map(String::from)
    }
}

fn unreachable() -> ClusterError {
    ClusterError::Call { action: "reach the API server".into(), source: "connection refused".into() }
}

impl Connect for FakeCluster {
    fn connect(&self) -> Response<'_, Arc<dyn Cluster>> {
        async move {
            self.connections.fetch_add(1, Ordering::SeqCst);
            if self.down.load(Ordering::SeqCst) {
                return Err(unreachable());
            }
            Ok(Arc::new(self.clone()) as Arc<dyn Cluster>)
        }
        .boxed()
    }
}

impl Cluster for FakeCluster {
    fn watch_node(&self, _name: &str) -> BoxStream<'static, Result<Option<Value>, ClusterError>> {
        let mut seen = self.node.subscribe();
        seen.mark_changed();
        stream::unfold(seen, |mut seen| async move {
            seen.changed().await.ok()?;
            let node = seen.borrow_and_update().clone();
            Some((Ok(node), seen))
        })
        .boxed()
    }

    fn config_map<'a>(&'a self, _namespace: &'a str, name: &'a str) -> Response<'a, Option<ServicesConfigMap>> {
        async move { Ok(self.config_maps.lock().unwrap().get(name).cloned()) }.boxed()
    }

    fn annotate<'a>(&'a self, _node: &'a str, annotations: Annotations) -> Response<'a, ()> {
        async move {
            self.patches.lock().unwrap().push(annotations.clone());
            self.node.send_modify(|node| {
                let on_node = &mut node.as_mut().unwrap()["metadata"]["annotations"];
                for (key, value) in annotations {
                    match value {
                        Some(value) => on_node[key] = value.into(),
                        None => drop(on_node.as_object_mut().unwrap().remove(key)),
                    }
                }
            });
            Ok(())
        }
        .boxed()
    }

    fn request_token<'a>(
        &'a self,
        namespace: &'a str,
        account: &'a str,
        request: TokenRequest,
    ) -> Response<'a, String> {
        async move {
            let node = request.spec.and_then(|s| s.bound_object_ref?.name).unwrap_or_default();
            self.tokens.lock().unwrap().push(format!("{namespace}/{account} for {node}"));
            self.token.lock().unwrap().clone().ok_or_else(unreachable)
        }
        .boxed()
    }

    fn request_certificate(&self, pem: String, _seconds: i32) -> Response<'_, String> {
        async move {
            *self.request.lock().unwrap() = pem;
            Ok("csr-wicd-x".into())
        }
        .boxed()
    }

    fn certificate<'a>(&'a self, _request: &'a str) -> Response<'a, Issue> {
        async move { Ok((self.issuing.lock().unwrap())(&self.request.lock().unwrap())) }.boxed()
    }
}
