//! Tests of stored versions: how they are read, replaced and restored.

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

struct Fixture {
    api: FakeApi,
    versions: Versions,
    version: String,
    path: String,
    right: Value,
    forged: Value,
}

impl Fixture {
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

    /// Makes the API server answer lists of ConfigMaps with this ConfigMap.
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
async fn content_of_another_client_is_not_used() {
    let fixture = Fixture::new();
    fixture.api.on("GET", &fixture.path, 200, fixture.forged.clone()).on("DELETE", &fixture.path, 200, success());
    assert_eq!(fixture.versions.get(&fixture.version).await.unwrap(), None);
    assert_eq!(fixture.deletes(), [json!("forged")]);

    // Content with a change of the annotation alone, which an immutable ConfigMap allows, is not used.
    let fixture = Fixture::new();
    let mut other = fixture.right.clone();
    other["metadata"]["annotations"][api::names::key::RENDERED] = json!("{}");
    fixture.api.on("GET", &fixture.path, 200, other).on("DELETE", &fixture.path, 200, success());
    assert_eq!(fixture.versions.get(&fixture.version).await.unwrap(), None);
    assert_eq!(fixture.deletes(), [json!("right")]);

    let fixture = Fixture::new();
    fixture.api.on("GET", &fixture.path, 200, fixture.right.clone());
    assert_eq!(fixture.versions.get(&fixture.version).await.unwrap().as_deref(), Some(&Stored::Ours(rendered())));
    assert_eq!(fixture.deletes(), Vec::<Value>::new());
}

#[tokio::test]
async fn a_command_replaces_no_version() {
    let fixture = Fixture::with(false);
    fixture.api.on("GET", &fixture.path, 200, fixture.forged.clone());
    assert_eq!(fixture.versions.get(&fixture.version).await.unwrap(), None);
    assert_eq!(fixture.deletes(), Vec::<Value>::new());
}

#[tokio::test]
async fn a_published_version_replaces_content_of_another_client() {
    let fixture = Fixture::new();
    fixture
        .api
        .fail("POST", MAPS, 409, "AlreadyExists", "it exists", Value::Null)
        .on("POST", MAPS, 201, fixture.right.clone())
        .on("GET", &fixture.path, 200, fixture.forged.clone())
        .on("DELETE", &fixture.path, 200, success());
    fixture.listed(&fixture.right).versions.publish(&fixture.version, &rendered()).await.unwrap();
    assert_eq!(fixture.deletes(), [json!("forged")]);
    assert_eq!(fixture.api.calls("POST", MAPS).len(), 2);
    let permitted = fixture.api.calls("PATCH", ROLE).pop().unwrap().body;
    assert_eq!(permitted["rules"][0]["resourceNames"], json!([format!("windows-services-{}", fixture.version)]));

    // If another client recreates the forged ConfigMap after each deletion, publishing fails.
    let fixture = Fixture::new();
    fixture
        .api
        .fail("POST", MAPS, 409, "AlreadyExists", "it exists", Value::Null)
        .on("GET", &fixture.path, 200, fixture.forged.clone())
        .on("DELETE", &fixture.path, 200, success());
    let error = fixture.versions.publish(&fixture.version, &rendered()).await.unwrap_err();
    assert_eq!(error.reason(), "VersionUnreadable");
    assert!(fixture.api.calls("PATCH", ROLE).is_empty());
}

#[tokio::test]
async fn a_replaced_version_that_is_needed_is_restored() {
    let fixture = Fixture::new();
    fixture.api.on("GET", &fixture.path, 200, fixture.right.clone()).on(
        "GET",
        &fixture.path,
        200,
        fixture.forged.clone(),
    );
    fixture.versions.get(&fixture.version).await.unwrap();
    fixture
        .api
        .fail("POST", MAPS, 409, "AlreadyExists", "it exists", Value::Null)
        .on("POST", MAPS, 201, fixture.right.clone())
        .on("DELETE", &fixture.path, 200, success());
    let needed = BTreeSet::from([fixture.version.clone()]);
    fixture.listed(&fixture.forged).versions.keep(&needed, Duration::from_mins(1)).await.unwrap();
    assert_eq!(fixture.deletes(), [json!("forged")]);
    let again = fixture.api.calls("POST", MAPS).pop().unwrap().body;
    assert_eq!((&again["data"], &again["immutable"]), (&fixture.right["data"], &json!(true)));
    assert_eq!(again["metadata"]["annotations"], fixture.right["metadata"]["annotations"]);
    assert_eq!(again["metadata"].get("uid"), None);
}

#[tokio::test]
async fn an_unchanged_version_is_not_read_again() {
    let fixture = Fixture::new();
    fixture.api.on("GET", &fixture.path, 200, fixture.right.clone());
    fixture.versions.get(&fixture.version).await.unwrap();
    let needed = BTreeSet::from([fixture.version.clone()]);
    fixture.listed(&fixture.right).versions.keep(&needed, Duration::from_mins(1)).await.unwrap();
    assert_eq!(fixture.api.calls("GET", &fixture.path).len(), 1);
    assert!(fixture.api.calls("POST", MAPS).is_empty());
}

#[tokio::test]
async fn a_version_without_a_digest_counts_only_as_services_of_wmco() {
    let fixture = Fixture::new();
    let mut legacy = fixture.right.clone();
    legacy["metadata"]["name"] = json!("windows-services-10.18.0");
    fixture.api.on("GET", &format!("{MAPS}/windows-services-10.18.0"), 200, legacy.clone());
    let stored = fixture.versions.get("10.18.0").await.unwrap();
    assert_eq!(stored.as_deref(), Some(&Stored::Legacy(rendered().services)));
    // The operator's hosts get no right to read the legacy ConfigMap.
    fixture.api.on("POST", MAPS, 201, fixture.right.clone());
    fixture.listed(&legacy).versions.publish(&fixture.version, &rendered()).await.unwrap();
    assert_eq!(fixture.api.calls("PATCH", ROLE).pop().unwrap().body["rules"], json!([]));
}
