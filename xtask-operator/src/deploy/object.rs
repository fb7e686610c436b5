//! An object of the installation, and where it is installed.

use api::{host::MAX_WICD_CERTIFICATE_LIFE, names::DEFAULT_NAMESPACE};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::{Value, json};

/// Name of the Deployment, and of most objects of the operator's own.
pub(super) const NAME: &str = "windows-node-pools";
/// Version of the operator, of its image and of its chart.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// An object, with what a reader of its YAML must know.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    /// Its file, from `deploy/`.
    pub file: &'static str,
    /// Comment above it.
    pub about: &'static str,
    /// Comments above its fields and items, by JSON pointer.
    pub whys: Vec<(String, &'static str)>,
    /// The object.
    pub value: Value,
}

impl Object {
    pub(super) fn new(file: &'static str, about: &'static str, object: &impl Serialize) -> Self {
        // Nothing in the types of Kubernetes is a map with keys that are no strings.
        let value = serde_json::to_value(object).unwrap_or_default();
        Self { file, about, whys: Vec::new(), value }
    }

    pub(super) fn why(mut self, pointer: impl Into<String>, why: &'static str) -> Self {
        self.whys.push((pointer.into(), why));
        self
    }

    /// `ClusterRole`, for example.
    pub(crate) fn kind(&self) -> &str {
        self.value["kind"].as_str().unwrap_or_default()
    }

    /// The folder of its file.
    pub(crate) fn folder(&self) -> &'static str {
        self.file.rsplit_once('/').map_or("", |(folder, _)| folder)
    }
}

/// A change of one field of an object, as an operation `add` of JSON Patch.
#[derive(Clone, Debug)]
pub(crate) struct Patch {
    /// Kind of the object.
    pub kind: &'static str,
    /// Its name, where there are several of the kind.
    pub name: Option<&'static str>,
    /// JSON pointer; it ends with `/-` for a further item of a list.
    pub path: String,
    /// What is added.
    pub value: Value,
}

impl Patch {
    /// The operation.
    pub(crate) fn operation(&self) -> Value {
        json!({"op": "add", "path": self.path, "value": self.value})
    }

    /// The object, as kustomize is given it.
    pub(crate) fn target(&self) -> Value {
        match self.name {
            Some(name) => json!({"kind": self.kind, "name": name}),
            None => json!({"kind": self.kind}),
        }
    }

    /// Changes the object, if it is the one that is meant.
    pub(crate) fn apply(&self, object: &mut Object) {
        let is_meant = object.kind() == self.kind && self.name.is_none_or(|n| object.value["metadata"]["name"] == n);
        if is_meant {
            self.apply_to(&mut object.value);
        }
    }

    /// Changes the object.
    pub(crate) fn apply_to(&self, object: &mut Value) {
        let Some((parent, key)) = self.path.rsplit_once('/') else { return };
        match object.pointer_mut(parent) {
            Some(Value::Object(parent)) => {
                parent.insert(key.replace("~1", "/"), self.value.clone());
            }
            Some(Value::Array(items)) if key == "-" => items.push(self.value.clone()),
            _ => {}
        }
    }
}

/// Where the runbooks are if an installation names no other place. The project has no public site: a house sets the URL of its own copy, which
/// `cargo xtask docs` builds. The name is one that no house has (RFC 2606), so that an alert leads to no stranger.
pub(crate) const RUNBOOKS: &str = "https://windows-node-pools.example.com/runbooks";

/// Where the objects are installed, and by which tool.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    /// The operator's namespace.
    pub namespace: String,
    /// The operator's ServiceAccount.
    pub service_account: String,
    /// URL of the folder of the site that has the runbooks of alerts, without a slash at its end.
    pub runbooks: String,
    /// The tool that keeps the objects, for the label `managed-by`.
    pub managed_by: String,
    /// Labels of this tool's own.
    pub labels: Vec<(&'static str, String)>,
}

impl Default for Site {
    fn default() -> Self {
        Self {
            namespace: DEFAULT_NAMESPACE.into(),
            service_account: NAME.into(),
            runbooks: RUNBOOKS.into(),
            managed_by: "kustomize".into(),
            labels: Vec::new(),
        }
    }
}

impl Site {
    /// The operator's user and namespace in the place of `$OPERATOR` and `$NAMESPACE`, and the longest life of wicd's certificates in that of
    /// `$WICD_SECONDS`.
    pub(super) fn fill(&self, text: &str) -> String {
        let Self { namespace, service_account, .. } = self;
        let user = format!("system:serviceaccount:{namespace}:{service_account}");
        let most = MAX_WICD_CERTIFICATE_LIFE.as_secs().to_string();
        text.replace("$OPERATOR", &user).replace("$NAMESPACE", namespace).replace("$WICD_SECONDS", &most)
    }

    /// Metadata of an object without a namespace.
    pub(super) fn meta(&self, name: &str, component: &str) -> ObjectMeta {
        let common = [
            ("app.kubernetes.io/name", NAME),
            ("app.kubernetes.io/part-of", NAME),
            ("app.kubernetes.io/component", component),
            ("app.kubernetes.io/managed-by", &self.managed_by),
            ("app.kubernetes.io/version", VERSION),
        ];
        let own = self.labels.iter().map(|(key, value)| (*key, value.as_str()));
        let labels = common.into_iter().chain(own).map(|(key, value)| (key.into(), value.into())).collect();
        ObjectMeta { name: Some(name.into()), labels: Some(labels), ..ObjectMeta::default() }
    }

    /// Metadata of an object in the operator's namespace.
    pub(super) fn namespaced(&self, name: &str, component: &str) -> ObjectMeta {
        self.within(&self.namespace, name, component)
    }

    /// Metadata of an object in another namespace.
    pub(super) fn within(&self, namespace: &str, name: &str, component: &str) -> ObjectMeta {
        ObjectMeta { namespace: Some(namespace.into()), ..self.meta(name, component) }
    }
}
