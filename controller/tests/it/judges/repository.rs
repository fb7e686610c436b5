//! Flux, with a Git repository on a real server: it applies the objects of the example.

use std::sync::Mutex;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde::Deserialize as _;
use serde_json::{Value, json};
use testbed::{
    ControlPlane,
    deployment::within,
    git::{Origin, Server},
    judges::flux::{Flux, NAMESPACE},
};

use crate::fleet::LIMIT;

/// Flux, and the repository of a team that uses it.
pub(crate) struct Repository {
    flux: Flux,
    pub origin: Origin,
    server: Server,
    client: Client,
}

impl Repository {
    /// Starts a Git server and Flux.
    pub(crate) async fn start(control_plane: &ControlPlane) -> Result<Self> {
        let origin = Origin::new();
        let server = Server::new(origin.root());
        let flux = Box::pin(Flux::start(control_plane)).await?;
        let ca = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "git", "namespace": NAMESPACE},
            "stringData": {"ca.crt": server.authority.pem},
        });
        control_plane.apply_yaml(&ca.to_string()).await?;
        Ok(Self { flux, origin, server, client: control_plane.client().await? })
    }

    /// Applies the example with this repository, and this timeout for pools.
    pub(crate) async fn apply_example(&self, timeout: &str) -> Result<()> {
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/gitops/flux.yaml");
        for document in serde_yaml::Deserializer::from_str(&std::fs::read_to_string(example)?) {
            let mut object = Value::deserialize(document)?;
            if object["kind"] == "GitRepository" {
                crate::crd::merge(&mut object["spec"], &self.git());
            }
            if object["metadata"]["name"] == "windows-node-pools" {
                object["spec"]["timeout"] = timeout.into();
                object["spec"]["retryInterval"] = "1s".into();
            }
            self.apply(&object).await?;
        }
        Ok(())
    }

    /// Returns the spec of a GitRepository that refers to this repository.
    pub(crate) fn git(&self) -> Value {
        json!({"url": self.server.url(), "secretRef": {"name": "git"}, "ref": {"branch": "main"}})
    }

    /// Applies an object of Flux, as a user does.
    pub(crate) async fn apply(&self, object: &Value) -> Result<()> {
        let (kind, name) = (object["kind"].as_str().context("no kind")?, object["metadata"]["name"].as_str());
        let params = PatchParams::apply("a-person").force();
        self.objects(kind).patch(name.context("no name")?, &params, &Patch::Apply(object)).await?;
        Ok(())
    }

    /// Makes Flux read the repository and apply the newest commit, and waits until it has applied or attempted it.
    pub(crate) async fn reconcile(&self, kustomization: &str) -> Result<()> {
        self.request("GitRepository", "cluster").await?;
        self.request("Kustomization", kustomization).await?;
        let head = self.origin.head();
        let applied = |object: &Value| {
            object["status"]["lastAppliedRevision"].as_str().is_some_and(|revision| revision.ends_with(&head))
                || object["status"]["lastAttemptedRevision"].as_str().is_some_and(|revision| revision.ends_with(&head))
        };
        self.until("Kustomization", kustomization, "the newest commit is applied or attempted", applied).await.map(drop)
    }

    /// Requests a reconcile as `flux reconcile` does, and waits for its end.
    pub(crate) async fn request(&self, kind: &str, name: &str) -> Result<()> {
        let at = Timestamp::now().to_string();
        let annotate = json!({"metadata": {"annotations": {"reconcile.fluxcd.io/requestedAt": at}}});
        self.objects(kind).patch(name, &PatchParams::default(), &Patch::Merge(annotate)).await?;
        let handled = |object: &Value| object["status"]["lastHandledReconcileAt"] == at.as_str();
        self.until(kind, name, "it is reconciled", handled).await.map(drop)
    }

    /// Waits until the condition Ready of a Flux object has this status and reason, and returns the object.
    pub(crate) async fn until_says(&self, kind: &str, name: &str, status: &str, reason: &str) -> Result<Value> {
        let says = |object: &Value| {
            let conditions = object["status"]["conditions"].as_array();
            conditions.is_some_and(|all| {
                all.iter().any(|c| c["type"] == "Ready" && c["status"] == status && c["reason"] == reason)
            })
        };
        self.until(kind, name, &format!("Ready={status}, {reason}"), says).await
    }

    async fn until(&self, kind: &str, name: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
        let (objects, last) = (self.objects(kind), Mutex::new(Value::Null));
        let asked = within(LIMIT, &format!("{kind} {name}: {what}"), || async {
            let Ok(object) = objects.get(name).await else { return false };
            let seen = json!(object);
            let is_so = is_so(&seen);
            *last.lock().unwrap() = seen;
            is_so
        })
        .await;
        let last = last.into_inner().unwrap();
        asked.with_context(|| format!("{:#}\n{}", last["status"], self.flux.last_lines()))?;
        Ok(last)
    }

    fn objects(&self, kind: &str) -> Api<DynamicObject> {
        let group = if kind == "Kustomization" { "kustomize.toolkit.fluxcd.io" } else { "source.toolkit.fluxcd.io" };
        let plural = kind.strip_suffix('y').map_or_else(|| format!("{kind}s"), |stem| format!("{stem}ies"));
        let kind = GroupVersionKind::gvk(group, "v1", kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, &plural.to_lowercase());
        Api::namespaced_with(self.client.clone(), NAMESPACE, &resource)
    }
}
