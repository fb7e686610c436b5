//! Commands of the guide on objects of other owners: each adds the operator's part, and everything else stays, in whichever way the owner
//! has applied the object.

use anyhow::{Result, ensure};
use api::names::DEFAULT_NAMESPACE;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};
use testbed::sim::SimOptions;

use crate::{fleet::World, guide::Guide, transcripts::root};

/// Ways in which users create objects in a cluster.
const WAYS: [&[&str]; 3] = [&["apply"], &["apply", "--server-side"], &["create"]];

/// Object of another owner.
struct Others {
    kind: ApiResource,
    object: Value,
    /// JSON pointer to the part to which the guide's command adds entries.
    part: &'static str,
}

impl Others {
    fn new(gvk: &GroupVersionKind, name: &str, namespace: &str, part: &'static str, content: &Value) -> Self {
        let kind = ApiResource::from_gvk(gvk);
        let mut object = json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, "namespace": namespace,
            "labels": {"team": "platform"}, "annotations": {"example.com/contact": "platform@example.com"}}});
        crate::crd::merge(&mut object, content);
        Self { kind, object, part }
    }

    fn api(&self, world: &World) -> Api<DynamicObject> {
        let namespace = self.object["metadata"]["namespace"].as_str().unwrap_or_default();
        Api::namespaced_with(world.client.clone(), namespace, &self.kind)
    }

    fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    async fn read(&self, world: &World) -> Result<Value> {
        Ok(json!(self.api(world).get(self.name()).await?))
    }

    /// Creates the object in the cluster, as its owner does.
    async fn put(&self, world: &World, way: &[&str]) -> Result<()> {
        let api = self.api(world);
        if api.get_opt(self.name()).await?.is_some() {
            api.delete(self.name(), &kube::api::DeleteParams::default()).await?;
        }
        let file = tempfile::NamedTempFile::with_suffix(".json")?;
        std::fs::write(file.path(), self.object.to_string())?;
        kubectl(world, &[way, &["-f", file.path().to_str().unwrap()]].concat()).await
    }

    /// Checks that everything from the owner is still in the object.
    fn is_whole(&self, found: &Value, about: &str) -> Result<()> {
        let mut merged = found.clone();
        crate::crd::merge(&mut merged, &self.object);
        ensure!(merged == *found, "{about}: something of it is gone: {found}");
        Ok(())
    }

    /// Returns the number of entries in the part to which the guide's command adds some.
    fn size(&self, found: &Value) -> usize {
        found.pointer(self.part).and_then(Value::as_object).map_or(0, serde_json::Map::len)
    }
}

async fn kubectl(world: &World, args: &[&str]) -> Result<()> {
    let output = world.control_plane.kubectl(args).await?;
    ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Creates a CRD for the kind ArgoCD of OpenShift GitOps, which accepts any content.
async fn serve_argocd(world: &World) -> Result<()> {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let crd: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {"name": "argocds.argoproj.io"},
        "spec": {
            "group": "argoproj.io", "scope": "Namespaced",
            "names": {"kind": "ArgoCD", "plural": "argocds", "singular": "argocd"},
            "versions": [{"name": "v1beta1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    }))?;
    let crds: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    crds.patch("argocds.argoproj.io", &PatchParams::apply("test"), &Patch::Apply(&crd)).await?;
    testbed::deployment::served(&world.client, "argocds.argoproj.io").await
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_guide_keep_what_others_have_set() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    commands_for_argo_cd_leave_all_else_in_its_objects(&world).await?;
    a_new_key_leaves_all_else_in_its_secret(&world).await
}

async fn commands_for_argo_cd_leave_all_else_in_its_objects(world: &World) -> Result<()> {
    serve_argocd(world).await?;
    for name in ["argocd", "openshift-gitops"] {
        kubectl(world, &["create", "namespace", name]).await?;
    }
    let guide = Guide::open(&world.control_plane, "gitops.md", "others_objects")?;
    std::os::unix::fs::symlink(root().join("deploy"), guide.folder().join("deploy"))?;
    let of_argocd = json!({"url": "https://argocd.example.com", "oidc.config": "issuer: https://sso.example.com"});
    let config_map = GroupVersionKind::gvk("", "v1", "ConfigMap");
    let argocd = GroupVersionKind::gvk("argoproj.io", "v1beta1", "ArgoCD");
    let mine = json!({"kind": "Pod", "check": "return {status = 'Healthy'}"});
    let spec = json!({"spec": {"extraConfig": of_argocd, "resourceHealthChecks": [mine]}});
    let all = [
        Others::new(&config_map, "argocd-cm", "argocd", "/data", &json!({"data": of_argocd})),
        Others::new(&argocd, "openshift-gitops", "openshift-gitops", "/spec/extraConfig", &spec),
    ];
    for way in WAYS {
        for object in &all {
            object.put(world, way).await?;
        }
        guide.run(world, "## Argo CD").await?;
        for object in &all {
            let (about, found) = (format!("{way:?} {}", object.name()), object.read(world).await?);
            object.is_whole(&found, &about)?;
            ensure!(object.size(&found) == 6, "{about}: {found}");
            let (file, namespace) = match object.name() {
                "argocd-cm" => ("argocd-cm-remove.yaml", "argocd"),
                _ => ("openshift-gitops-remove.yaml", "openshift-gitops"),
            };
            let file = root().join("deploy/argocd").join(file);
            let kind = object.kind.kind.to_lowercase();
            let patch = ["patch", &kind, object.name(), "-n", namespace, "--type", "merge", "--patch-file"];
            kubectl(world, &[&patch, &[file.to_str().unwrap()][..]].concat()).await?;
            let found = object.read(world).await?;
            object.is_whole(&found, &about)?;
            ensure!(object.size(&found) == 2, "{about}: something of ours is left: {found}");
        }
    }
    Ok(())
}

async fn a_new_key_leaves_all_else_in_its_secret(world: &World) -> Result<()> {
    let pool = json!({"mode": "Plan", "inventory": {"hosts": [{"name": "win-1", "address": "127.0.0.1"}]}});
    world.apply("factory", &serde_json::from_value(pool)?).await?;
    let guide = Guide::open(&world.control_plane, "maintenance.md", "others_objects")?;
    std::fs::write(guide.folder().join("new-key"), "new")?;
    let data = json!({"stringData": null, "data": {"private-key.pem": "b2xk", "known_hosts": "aG9zdA=="}});
    let secret = GroupVersionKind::gvk("", "v1", "Secret");
    let secret = Others::new(&secret, "cloud-private-key", DEFAULT_NAMESPACE, "/data", &data);
    for way in WAYS {
        secret.put(world, way).await?;
        guide.run(world, "### The Secret `cloud-private-key`").await?;
        let mut found = secret.read(world).await?;
        ensure!(found["data"]["private-key.pem"] == "bmV3", "{way:?}: {found}");
        found["data"]["private-key.pem"] = "b2xk".into();
        secret.is_whole(&found, &format!("{way:?}"))?;
        kubectl(world, &["-n", DEFAULT_NAMESPACE, "delete", "secret", "ssh-old"]).await?;
    }
    Ok(())
}
