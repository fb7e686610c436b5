//! Answers of a fake API server to the requests that several checks make, and the faults in the rows of a check.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use russh::keys::{Algorithm, PrivateKey, key::safe_rng, ssh_key::LineEnding};
use serde_json::{Map, Value, json};

use crate::fake_api::FakeApi;

pub(super) const VERSION: &str = "/version";
pub(super) const NODES: &str = "/api/v1/nodes";
pub(super) const POOLS: &str = "/apis/windowsmachineconfig.openshift.io/v1alpha1/windowsnodepools";
pub(super) const KEY: &str = "/api/v1/namespaces/ns/secrets/cloud-private-key";
pub(super) const LOCK: &str = "/api/v1/namespaces/ns/configmaps/windows-machine-config-operator-lock";
pub(super) const WMCO_LOCK: &str =
    "/api/v1/namespaces/openshift-windows-machine-config-operator/configmaps/windows-machine-config-operator-lock";

impl FakeApi {
    /// Replaces the answer to reads of this path.
    pub(super) fn instead(&self, path: &str, body: Value) {
        self.forget("GET", path).on("GET", path, 200, body);
    }

    /// Answers that there is no object at this path.
    pub(super) fn gone(&self, path: &str) {
        self.forget("GET", path).fail("GET", path, 404, "NotFound", "there is none", Value::Null);
    }

    /// Answers that the user may not read this path.
    pub(super) fn forbidden(&self, path: &str) {
        self.forget("GET", path).fail("GET", path, 403, "Forbidden", "no", Value::Null);
    }

    /// Lets WMCO hold its lock.
    pub(super) fn wmco_runs(&self) {
        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "wmco-1", "uid": "1"}]);
        let name = "windows-machine-config-operator-lock";
        let metadata = json!({"name": name, "namespace": "ns", "ownerReferences": owner});
        self.instead(LOCK, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}));
        let pod = json!({"metadata": {"name": "wmco-1", "uid": "1"}});
        self.instead("/api/v1/namespaces/ns/pods", json!({"metadata": {}, "items": [pod]}));
    }
}

/// Returns the version of an API server with this minor version.
pub(super) fn version(minor: &str) -> Value {
    json!({"major": "1", "minor": minor, "gitVersion": format!("v1.{minor}.0"), "gitCommit": "c", "gitTreeState": "clean", "buildDate": "d",
        "goVersion": "g", "compiler": "gc", "platform": "linux/amd64"})
}

/// Returns a new private key.
pub(super) fn pem() -> String {
    let key = PrivateKey::random(&mut safe_rng(), Algorithm::Ed25519).unwrap();
    key.to_openssh(LineEnding::LF).unwrap().to_string()
}

/// Returns a Secret with this data.
pub(super) fn secret(data: &[(&str, &str)]) -> Value {
    let data: Map<_, _> = data.iter().map(|(k, v)| ((*k).to_owned(), json!(STANDARD.encode(v)))).collect();
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": data})
}

/// Returns the checks that report a fault, each with its result and reason.
pub(super) fn faults(rows: &[Value]) -> String {
    let word = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let faults = rows.iter().filter(|row| row["result"] != "passed");
    faults.map(|row| ["check", "result", "reason"].map(|key| word(row, key)).join(" ")).collect::<Vec<_>>().join("; ")
}
