//! Objects of the fake API server. They are created, patched and deleted with those checks of a real API server on which the operator relies
//! (resource versions, preconditions, finalizers, subresources). A certificate request is signed when it is approved.

use std::collections::BTreeMap;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use rcgen::{CertificateParams, CertificateSigningRequestParams, Issuer, KeyPair};
use serde_json::{Value, json};

use super::{Call, failure, list};

/// Key of an object: plural, namespace, name.
type Key = (String, String, String);
type Answer = (u16, Value);

/// Target of a request.
struct Target {
    plural: String,
    namespace: String,
    name: Option<String>,
    subresource: Option<String>,
}

/// Objects of the fake API server.
pub(crate) struct Objects {
    all: BTreeMap<Key, Value>,
    /// Resource version of the newest object.
    version: u64,
    signer: Issuer<'static, KeyPair>,
}

impl Default for Objects {
    fn default() -> Self {
        let signer = Issuer::new(CertificateParams::default(), KeyPair::generate().unwrap());
        Self { all: BTreeMap::new(), version: 100, signer }
    }
}

impl Objects {
    /// Returns the object of a cluster-scoped kind.
    pub(crate) fn get(&self, plural: &str, name: &str) -> Option<&Value> {
        self.all.get(&(plural.into(), String::new(), name.into()))
    }

    /// Returns the objects of a kind.
    pub(crate) fn of_kind(&self, plural: &str) -> Vec<Value> {
        self.all.iter().filter(|(key, _)| key.0 == plural).map(|(_, object)| object.clone()).collect()
    }

    /// Stores an object as another client would, and returns it with its new version.
    pub(crate) fn put(&mut self, plural: &str, mut object: Value) -> Value {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let key = (plural.to_owned(), text("namespace"), text("name"));
        self.version += 1;
        let metadata = object["metadata"].as_object_mut().unwrap();
        metadata.insert("resourceVersion".into(), json!(self.version.to_string()));
        metadata.entry("uid").or_insert_with(|| json!(format!("uid-{}", self.version)));
        metadata.entry("creationTimestamp").or_insert_with(|| json!("2026-01-01T00:00:00Z"));
        self.all.insert(key, object.clone());
        object
    }

    /// Changes an object of a cluster-scoped kind as another client would.
    pub(crate) fn edit(&mut self, plural: &str, name: &str, change: impl FnOnce(&mut Value)) {
        if let Some(mut object) = self.get(plural, name).cloned() {
            change(&mut object);
            let object = self.put(plural, object);
            self.end(&object, |key| key.0 == plural && key.2 == name);
        }
    }

    /// Removes an object that is marked for deletion, if no finalizer is left.
    fn end(&mut self, object: &Value, is_it: impl Fn(&Key) -> bool) {
        let is_free = object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        if is_free && object["metadata"]["deletionTimestamp"].is_string() {
            self.all.retain(|key, _| !is_it(key));
        }
    }

    /// Annotates the target of a request, as another client would.
    pub(super) fn overtake(&mut self, call: &Call) {
        let Some(Target { plural, namespace, name: Some(name), .. }) = target(&call.path) else { return };
        if let Some(mut object) = self.all.get(&(plural.clone(), namespace, name)).cloned() {
            merge(&mut object, &json!({"metadata": {"annotations": {"example.com/touched": "true"}}}));
            self.put(&plural, object);
        }
    }

    /// Answers a request. `None` if this server does not support the request.
    pub(super) fn answer(&mut self, call: &Call) -> Option<Answer> {
        let target = target(&call.path)?;
        let name = target.name.clone();
        let key = |name: String| (target.plural.clone(), target.namespace.clone(), name);
        Some(match (call.method.as_str(), name, target.subresource.as_deref()) {
            ("GET", None, None) => (200, self.list(&target, call)),
            ("GET", Some(name), None) => {
                let key = key(name);
                self.all.get(&key).map_or_else(|| missing(&key), |object| (200, object.clone()))
            }
            ("POST", None, None) if target.plural == "events" => (201, call.body.clone()),
            ("POST", None, None) => self.create(&target, call.body.clone()),
            ("POST", Some(name), Some("eviction")) => {
                let key = key(name);
                if self.all.remove(&key).is_some() { (201, super::success()) } else { missing(&key) }
            }
            ("PATCH", Some(name), subresource) => self.patch(&key(name), subresource, call),
            ("DELETE", Some(name), None) => {
                let key = key(name);
                match self.all.get(&key) {
                    None => missing(&key),
                    Some(object) if !fits(&call.body["preconditions"], object) => conflict(&key),
                    Some(_) => (200, self.remove(&key)),
                }
            }
            _ => return None,
        })
    }

    fn list(&self, target: &Target, call: &Call) -> Value {
        let node = call.query("fieldSelector").and_then(|s| s.strip_prefix("spec.nodeName="));
        let is_meant = |(key, object): &(&Key, &Value)| {
            key.0 == target.plural
                && (target.namespace.is_empty() || key.1 == target.namespace)
                && node.is_none_or(|node| object["spec"]["nodeName"] == node)
        };
        let items: Vec<Value> = self.all.iter().filter(is_meant).map(|(_, object)| object.clone()).collect();
        list("List", "v1", &items, "")
    }

    fn create(&mut self, target: &Target, mut object: Value) -> Answer {
        if !target.namespace.is_empty() {
            object["metadata"]["namespace"] = json!(target.namespace);
        }
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if self.all.contains_key(&(target.plural.clone(), target.namespace.clone(), name)) {
            return (409, failure(409, "AlreadyExists", "it exists", Value::Null));
        }
        (201, self.put(&target.plural, object))
    }

    fn patch(&mut self, key: &Key, subresource: Option<&str>, call: &Call) -> Answer {
        let Some(mut object) = self.all.get(key).cloned() else { return missing(key) };
        if !fits(&call.body["metadata"], &object) {
            return conflict(key);
        }
        let before = object.clone();
        let mut patch = call.body.clone();
        for field in ["resourceVersion", "uid"] {
            if let Some(metadata) = patch["metadata"].as_object_mut() {
                metadata.remove(field);
            }
        }
        match subresource {
            // Server-side apply removes fields that their owner no longer applies, and the operator owns the whole status.
            Some("status") if call.content_type.contains("apply") => object["status"] = patch["status"].clone(),
            Some("status" | "approval") => merge(&mut object["status"], &patch["status"]),
            _ => {
                if let Some(patch) = patch.as_object_mut() {
                    patch.remove("status");
                }
                merge(&mut object, &patch);
            }
        }
        if object != before {
            object = self.put(&key.0, object);
        }
        let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        if subresource == Some("approval") && conditions.any(|condition| condition["type"] == "Approved") {
            self.sign(key);
        }
        self.end(&object, |k| k == key);
        (200, object)
    }

    fn remove(&mut self, key: &Key) -> Value {
        let Some(mut object) = self.all.get(key).cloned() else { return super::success() };
        if object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty) {
            self.all.remove(key);
            return super::success();
        }
        if !object["metadata"]["deletionTimestamp"].is_string() {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:01Z");
            object = self.put(&key.0, object);
        }
        object
    }

    fn sign(&mut self, key: &Key) {
        let Some(mut request) = self.all.get(key).cloned() else { return };
        let pem = BASE64_STANDARD.decode(request["spec"]["request"].as_str().unwrap_or_default()).unwrap();
        let mut asked = CertificateSigningRequestParams::from_pem(&String::from_utf8(pem).unwrap()).unwrap();
        let second = |n: i64| std::time::SystemTime::now() + std::time::Duration::from_secs(u64::try_from(n).unwrap());
        let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(86_400);
        asked.params.not_before = second(0).into();
        asked.params.not_after = second(seconds).into();
        let certificate = asked.signed_by(&self.signer).unwrap().pem();
        request["status"]["certificate"] = json!(BASE64_STANDARD.encode(certificate));
        self.put(&key.0, request);
    }
}

/// Reports whether the resource version and the UID in a request, if any, match the object.
fn fits(wanted: &Value, object: &Value) -> bool {
    ["resourceVersion", "uid"].iter().all(|f| wanted[f].is_null() || wanted[f] == object["metadata"][f])
}

fn missing(key: &Key) -> Answer {
    (404, failure(404, "NotFound", &format!("{} {:?} not found", key.0, key.2), Value::Null))
}

fn conflict(key: &Key) -> Answer {
    (409, failure(409, "Conflict", &format!("{} {:?} has been modified", key.0, key.2), Value::Null))
}

/// Applies a JSON Merge Patch, RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let target = target.as_object_mut().unwrap();
    for (field, value) in patch {
        if value.is_null() {
            target.remove(field);
        } else {
            merge(target.entry(field).or_insert(Value::Null), value);
        }
    }
}

fn target(path: &str) -> Option<Target> {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let rest = match *parts.first()? {
        "api" => parts.get(2..)?,
        "apis" => parts.get(3..)?,
        _ => return None,
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        rest => ("", rest),
    };
    let part = |n: usize| rest.get(n).map(|p| (*p).to_owned());
    Some(Target { plural: part(0)?, namespace: namespace.to_owned(), name: part(1), subresource: part(2) })
}
