//! Tests of stored versions: how they are read, replaced and collected.

use api::TemplateSpec;
use serde_json::{Value, json};

use super::*;
use crate::fake_api::{FakeApi, list, success};
use wnp_core::render::{
    Settings,
    fixtures::{PROGRAMS, cluster, payload},
    render,
};

const MAPS: &str = "/api/v1/namespaces/ns/configmaps";
const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/ns/roles/windows-node-pools-wicd-services";

fn rendered() -> Rendered {
    render(&cluster(), &payload(&PROGRAMS), &Settings::default(), &TemplateSpec::default()).unwrap()
}

struct Bed {
    api: FakeApi,
    versions: Versions,
    version: String,
    path: String,
    right: Value,
    forged: Value,
}

impl Bed {
    fn new() -> Self {
        Self::with(true)
    }

    fn with(may_write: bool) -> Self {
        let api = FakeApi::new();
        let events = may_write.then(|| Events::new(api.client(), "it"));
        let versions = Versions::new(api.client(), "ns", events);
        let version = rendered().name("1.0.0");
        let mut right = serde_json::to_value(rendered().to_config_map(&version, "ns")).unwrap();
        right["metadata"]["uid"] = json!("right");
        right["metadata"]["resourceVersion"] = json!("1");
        let mut forged = right.clone();
        let services = forged["data"]["services"].as_str().unwrap().replace("kubelet.exe", "kubelet.exe --x=PWNED");
        forged["data"]["services"] = json!(services);
        forged["metadata"]["uid"] = json!("forged");
        forged["metadata"]["resourceVersion"] = json!("2");
        let path = format!("{MAPS}/windows-services-{version}");
        api.on("PATCH", ROLE, 200, json!({"metadata": {"name": "windows-node-pools-wicd-services"}}));
        Self { api, versions, version, path, right, forged }
    }

    /// Answers a list of ConfigMaps with this ConfigMap.
    fn listed(&self, config_map: &Value) -> &Self {
        let item = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": config_map["metadata"]});
        self.api.on("GET", MAPS, 200, list("PartialObjectMetadataList", "meta.k8s.io/v1", &[item], ""));
        self
    }

    fn deletes(&self) -> Vec<Value> {
        self.api.calls("DELETE", &self.path).into_iter().map(|c| c.body["preconditions"]["uid"].clone()).collect()
    }
}

#[tokio::test]
async fn what_somebody_else_has_written_is_not_used() {
    let bed = Bed::new();
    bed.api.on("GET", &bed.path, 200, bed.forged.clone()).on("DELETE", &bed.path, 200, success());
    assert_eq!(bed.versions.get(&bed.version).await.unwrap(), None);
    assert_eq!(bed.deletes(), [json!("forged")]);

    // A change of the annotation alone, which an immutable ConfigMap allows, is not accepted either.
    let bed = Bed::new();
    let mut other = bed.right.clone();
    other["metadata"]["annotations"][api::names::key::RENDERED] = json!("{}");
    bed.api.on("GET", &bed.path, 200, other).on("DELETE", &bed.path, 200, success());
    assert_eq!(bed.versions.get(&bed.version).await.unwrap(), None);
    assert_eq!(bed.deletes(), [json!("right")]);

    let bed = Bed::new();
    bed.api.on("GET", &bed.path, 200, bed.right.clone());
    assert_eq!(bed.versions.get(&bed.version).await.unwrap().as_deref(), Some(&Stored::Ours(rendered())));
    assert_eq!(bed.deletes(), Vec::<Value>::new());
}

#[tokio::test]
async fn a_command_that_looks_once_replaces_nothing() {
    let bed = Bed::with(false);
    bed.api.on("GET", &bed.path, 200, bed.forged.clone());
    assert_eq!(bed.versions.get(&bed.version).await.unwrap(), None);
    assert_eq!(bed.deletes(), Vec::<Value>::new());
}

#[tokio::test]
async fn what_is_published_replaces_what_somebody_else_has_put_there() {
    let bed = Bed::new();
    bed.api
        .fail("POST", MAPS, 409, "AlreadyExists", "it exists", Value::Null)
        .on("POST", MAPS, 201, bed.right.clone())
        .on("GET", &bed.path, 200, bed.forged.clone())
        .on("DELETE", &bed.path, 200, success());
    bed.listed(&bed.right).versions.publish(&bed.version, &rendered()).await.unwrap();
    assert_eq!(bed.deletes(), [json!("forged")]);
    assert_eq!(bed.api.calls("POST", MAPS).len(), 2);
    let permitted = bed.api.calls("PATCH", ROLE).pop().unwrap().body;
    assert_eq!(permitted["rules"][0]["resourceNames"], json!([format!("windows-services-{}", bed.version)]));

    // If another client recreates the forged ConfigMap after each deletion, publishing fails.
    let bed = Bed::new();
    bed.api
        .fail("POST", MAPS, 409, "AlreadyExists", "it exists", Value::Null)
        .on("GET", &bed.path, 200, bed.forged.clone())
        .on("DELETE", &bed.path, 200, success());
    let error = bed.versions.publish(&bed.version, &rendered()).await.unwrap_err();
    assert_eq!(error.reason(), "VersionUnreadable");
    assert!(bed.api.calls("PATCH", ROLE).is_empty());
}

#[tokio::test]
async fn what_is_replaced_while_it_is_needed_is_put_back() {
    let bed = Bed::new();
    bed.api.on("GET", &bed.path, 200, bed.right.clone()).on("GET", &bed.path, 200, bed.forged.clone());
    bed.versions.get(&bed.version).await.unwrap();
    bed.api
        .fail("POST", MAPS, 409, "AlreadyExists", "it exists", Value::Null)
        .on("POST", MAPS, 201, bed.right.clone())
        .on("DELETE", &bed.path, 200, success());
    let needed = BTreeSet::from([bed.version.clone()]);
    bed.listed(&bed.forged).versions.keep(&needed, Duration::from_mins(1)).await.unwrap();
    assert_eq!(bed.deletes(), [json!("forged")]);
    let again = bed.api.calls("POST", MAPS).pop().unwrap().body;
    assert_eq!((&again["data"], &again["immutable"]), (&bed.right["data"], &json!(true)));
    assert_eq!(again["metadata"]["annotations"], bed.right["metadata"]["annotations"]);
    assert_eq!(again["metadata"].get("uid"), None);
}

#[tokio::test]
async fn what_is_as_it_was_read_is_not_read_again() {
    let bed = Bed::new();
    bed.api.on("GET", &bed.path, 200, bed.right.clone());
    bed.versions.get(&bed.version).await.unwrap();
    let needed = BTreeSet::from([bed.version.clone()]);
    bed.listed(&bed.right).versions.keep(&needed, Duration::from_mins(1)).await.unwrap();
    assert_eq!(bed.api.calls("GET", &bed.path).len(), 1);
    assert!(bed.api.calls("POST", MAPS).is_empty());
}

#[tokio::test]
async fn a_name_without_a_digest_vouches_for_nothing_but_wmcos_services() {
    let bed = Bed::new();
    let mut legacy = bed.right.clone();
    legacy["metadata"]["name"] = json!("windows-services-10.18.0");
    bed.api.on("GET", &format!("{MAPS}/windows-services-10.18.0"), 200, legacy.clone());
    let stored = bed.versions.get("10.18.0").await.unwrap();
    assert_eq!(stored.as_deref(), Some(&Stored::Legacy(rendered().services)));
    // The operator's hosts may not read it.
    bed.api.on("POST", MAPS, 201, bed.right.clone());
    bed.listed(&legacy).versions.publish(&bed.version, &rendered()).await.unwrap();
    assert_eq!(bed.api.calls("PATCH", ROLE).pop().unwrap().body["rules"], json!([]));
}
