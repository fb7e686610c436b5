//! Applications of Argo CD, with a Git repository on a real server.

use std::sync::Mutex;

use anyhow::{Context as _, Result, bail};
use jiff::Timestamp;
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde_json::{Value, json};
use testbed::{
    ControlPlane,
    deployment::within,
    git::{Origin, Server},
    judges::argocd::{ArgoCd, NAMESPACE, REDIS_PACKAGE, redis},
};

use crate::fleet::LIMIT;

/// Argo CD, and the repository of a team that uses it.
pub(crate) struct Argo {
    pub pages: ArgoCd,
    pub origin: Origin,
    server: Server,
    applications: Api<DynamicObject>,
}

/// Settings for the comparison and sync of an Application.
#[derive(Clone, Copy, Default)]
pub(crate) struct How {
    /// True if the Application has the compare option `ServerSideDiff=true`.
    pub diff: bool,
    /// True if the Application has the sync option `ServerSideApply=true`.
    pub apply: bool,
    /// True if a new commit is synced, and a change by hand is reverted, automatically.
    pub automated: bool,
}

impl Argo {
    /// Starts Argo CD. Returns `None` if a program is missing and the test may be skipped.
    pub(crate) async fn start(control_plane: &ControlPlane) -> Result<Option<Self>> {
        if redis().is_none() {
            testbed::skip(&format!("Argo CD needs Redis: apt-get install {REDIS_PACKAGE}"))?;
            return Ok(None);
        }
        let origin = Origin::new();
        let server = Server::new(origin.root());
        let pages = Box::pin(ArgoCd::start(control_plane, &server.authority.pem)).await?;
        let applications = applications(control_plane.client().await?);
        Ok(Some(Self { pages, origin, server, applications }))
    }

    /// Creates an Application for a folder of the repository.
    pub(crate) async fn create(&self, name: &str, folder: &str, how: How) -> Result<()> {
        let mut policy = json!({"syncOptions": [format!("ServerSideApply={}", how.apply)]});
        if how.automated {
            policy["automated"] = json!({"selfHeal": true});
        }
        let application = json!({
            "apiVersion": "argoproj.io/v1alpha1", "kind": "Application",
            "metadata": {
                "name": name,
                "annotations": {"argocd.argoproj.io/compare-options": format!("ServerSideDiff={}", how.diff)},
            },
            "spec": {
                "project": "default",
                "source": {"repoURL": self.server.url(), "targetRevision": "main", "path": folder},
                "destination": {"server": "https://kubernetes.default.svc"},
                "syncPolicy": policy,
            },
        });
        self.applications.patch(name, &PatchParams::apply("a-person"), &Patch::Apply(&application)).await?;
        Ok(())
    }

    /// Deletes an Application with all its objects, as Argo CD's page does.
    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        let with_all = json!({"metadata": {"finalizers": ["resources-finalizer.argocd.argoproj.io"]}});
        self.applications.patch(name, &PatchParams::default(), &Patch::Merge(with_all)).await?;
        self.applications.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Confirms the deletion, as `argocd app confirm-deletion` does.
    pub(crate) async fn confirm_deletion(&self, name: &str) -> Result<()> {
        let now = Timestamp::now().to_string();
        let confirm = json!({"metadata": {"annotations": {"argocd.argoproj.io/deletion-approved": now}}});
        self.applications.patch(name, &PatchParams::default(), &Patch::Merge(confirm)).await?;
        Ok(())
    }

    /// Waits until a condition holds for an Application, and returns the Application.
    pub(crate) async fn until(&self, name: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
        let last = Mutex::new(Value::Null);
        let asked = within(LIMIT, &format!("{name}: {what}"), || async {
            let Ok(application) = self.applications.get(name).await else { return false };
            let seen = json!(application);
            let is_so = is_so(&seen);
            *last.lock().unwrap() = seen;
            is_so
        })
        .await;
        let last = last.into_inner().unwrap();
        asked.with_context(|| format!("{:#}", last["status"]))?;
        Ok(last)
    }

    /// Makes Argo CD compare the newest commit with the cluster, and returns the result for each object.
    pub(crate) async fn compare(&self, name: &str) -> Result<Vec<Compared>> {
        let refresh = json!({"metadata": {"annotations": {REFRESH: "normal"}}});
        self.applications.patch(name, &PatchParams::default(), &Patch::Merge(refresh)).await?;
        let head = self.origin.head();
        let is_done = |application: &Value| {
            application["metadata"]["annotations"].get(REFRESH).is_none()
                && (application["status"]["sync"]["revision"] == head.as_str() || fault(application).is_some())
        };
        let application = self.until(name, "the newest commit is compared", is_done).await?;
        if let Some(fault) = fault(&application) {
            bail!("{fault}");
        }
        let resources = application["status"]["resources"].as_array().cloned().unwrap_or_default();
        Ok(resources.iter().map(Compared::new).collect())
    }

    /// Syncs the newest commit, as a user does.
    pub(crate) async fn sync(&self, name: &str) -> Result<()> {
        let is_idle = |application: &Value| {
            application.get("operation").is_none() && application["status"]["operationState"]["phase"] != "Running"
        };
        self.until(name, "no other sync runs", is_idle).await?;
        self.pages.sync(name).await?;
        let head = self.origin.head();
        let is_over = |application: &Value| {
            let state = &application["status"]["operationState"];
            application.get("operation").is_none()
                && state["syncResult"]["revision"] == head.as_str()
                && state["phase"] != "Running"
        };
        let application = self.until(name, "the sync is over", is_over).await?;
        let state = &application["status"]["operationState"];
        if state["phase"] != "Succeeded" {
            bail!("{name}: {}: {}", state["phase"], state["message"]);
        }
        Ok(())
    }
}

/// Returns the reason why an Application cannot be compared.
fn fault(application: &Value) -> Option<String> {
    let mut conditions = application["status"]["conditions"].as_array()?.iter();
    let fault = conditions.find(|condition| condition["type"] == "ComparisonError")?;
    Some(fault["message"].as_str().unwrap_or_default().to_owned())
}

const REFRESH: &str = "argocd.argoproj.io/refresh";

/// Result of Argo CD's comparison of an object.
#[derive(Clone, Debug)]
pub(crate) struct Compared {
    pub name: String,
    pub is_synced: bool,
}

impl Compared {
    fn new(resource: &Value) -> Self {
        Self { name: resource["name"].as_str().unwrap_or_default().into(), is_synced: resource["status"] == "Synced" }
    }
}

fn applications(client: Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("argoproj.io", "v1alpha1", "Application");
    Api::namespaced_with(client, NAMESPACE, &ApiResource::from_gvk(&kind))
}
