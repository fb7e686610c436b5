//! Tests of the command `gather` against a scripted API server.

use serde_json::{Value, json};

use super::*;
use crate::fake_api::FakeApi;

const SECRET: &str = "hunter2Hunter2";

fn list(items: Value) -> Value {
    json!({"kind": "XList", "apiVersion": "v1", "metadata": {}, "items": items})
}

fn all_below(folder: &std::path::Path) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(all_below(&path));
        } else {
            let text = std::fs::read_to_string(&path).unwrap();
            files.push((path, text));
        }
    }
    files
}

#[tokio::test]
async fn a_failed_read_does_not_end_the_rest() {
    let api = FakeApi::new();
    let node = json!({"metadata": {"name": "win-1"}, "status": {"addresses": [{"address": "10.1.2.3"}]}});
    api.on("GET", "/api/v1/nodes", 200, list(json!([node])));
    let pod = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"containers": [{"env": [{"value": SECRET}]}]}});
    api.on("GET", "/api/v1/pods", 200, list(json!([pod])));
    let operator = json!({
        "metadata": {"name": "windows-node-pools-1", "namespace": "operator"},
        "spec": {"containers": [{"name": "operator", "env": [{"name": "MY_TOKEN", "value": SECRET}]}]},
        "status": {"containerStatuses": [{"name": "operator", "restartCount": 1}]},
    });
    api.on("GET", "/api/v1/namespaces/operator/pods", 200, list(json!([operator])));
    let log = "/api/v1/namespaces/operator/pods/windows-node-pools-1/log";
    api.on("GET", &format!("{log}?previous=false"), 200, json!({"message": format!("Authorization: Bearer {SECRET}")}));
    api.fail("GET", &format!("{log}?previous=true"), 400, "BadRequest", "no previous container", Value::Null);
    api.fail("GET", "/api/v1/namespaces/operator/events", 403, "Forbidden", "events is forbidden", Value::Null);
    let partial = json!([{"metadata": {"name": "cloud-private-key"}}]);
    api.on("GET", "/api/v1/namespaces/operator/secrets", 200, list(partial));
    let page = |name: &str, next: &str| json!({"kind": "XList", "metadata": {"continue": next}, "items": [{"metadata": {"name": name}}]});
    let pools = "/apis/windowsmachineconfig.openshift.io/v1alpha1/windowsnodepools";
    api.on("GET", pools, 200, page("one", "a/b="));
    api.on("GET", &format!("{pools}?continue=a/b="), 200, page("two", ""));
    let event = |name: &str, time: &str| json!({"metadata": {"name": name}, "lastTimestamp": time, "involvedObject": {"kind": "Node", "name": "win-1"}});
    let events = json!([event("z", "2027-01-01T00:00:00Z"), event("a", "2027-01-01T01:00:00Z")]);
    api.on("GET", "/api/v1/namespaces/default/events", 200, list(events));
    // All other requests get a 501, which is recorded as a failure.
    let reader = Reader { client: api.client(), since: None };
    let dir = tempfile::tempdir().unwrap();
    let mut folder = Folder::create(&dir.path().join("x")).unwrap();
    of_cluster(&reader, "operator", &mut folder).await;
    folder.finish().unwrap();

    let files = all_below(&dir.path().join("x"));
    let has = |end: &str| files.iter().any(|(path, _)| path.ends_with(end));
    for path in [
        "cluster-scoped-resources/core/nodes/win-1.yaml",
        "cluster-scoped-resources/core/nodes/win-1.pods.yaml",
        "cluster-scoped-resources/windowsmachineconfig.openshift.io/windowsnodepools/one.yaml",
        "cluster-scoped-resources/windowsmachineconfig.openshift.io/windowsnodepools/two.yaml",
        "namespaces/operator/pods/windows-node-pools-1/operator/operator/logs/current.log",
        "namespaces/operator/core/secrets/cloud-private-key.yaml",
    ] {
        assert!(has(path), "{path} is not in {files:?}");
    }
    assert!(files.iter().all(|(_, text)| !text.contains(SECRET)), "{files:?}");
    let (_, events) = files.iter().find(|(file, _)| file.ends_with("default/core/events.yaml")).unwrap();
    assert!(events.find("name: z") < events.find("name: a"), "the newest event is not last: {events}");
    let failures = folder.failures.join("\n");
    assert!(failures.contains("events in operator: events is forbidden; ask a user"), "{failures}");
    assert!(!failures.contains("no previous container"), "{failures}");
    assert!(api.all_calls().iter().all(|call| call.method == "GET"), "gathering sent a write request");
}

/// Returns an object that the plan keeps, with secrets in fields of every kind that may have them.
fn with_canaries(item: &plan::Item) -> Value {
    let name = match &item.keep {
        plan::Keep::Prefixes(prefixes) => format!("{}x", prefixes[0]),
        plan::Keep::Nodes => "win-1".to_owned(),
        plan::Keep::Namespace => "operator".to_owned(),
        _ => "x".to_owned(),
    };
    let container =
        json!({"name": "c", "args": ["--password", SECRET], "env": [{"name": "DB_PASSWORD", "value": SECRET}]});
    let containers = json!([container]);
    json!({
        "metadata": {
            "name": name, "namespace": item.namespace, "labels": {"machine.openshift.io/os-id": "Windows"},
            "annotations": {"example.com/api-key": SECRET, "example.com/proxy": format!("http://me:{SECRET}@proxy.example.com")},
        },
        "involvedObject": {"kind": "Node", "name": "win-1"},
        "message": format!("Authorization: Bearer {SECRET}"),
        "data": {"token": SECRET},
        "spec": {
            "signerName": "kubernetes.io/kubelet-serving", "containers": containers,
            "template": {"spec": {"containers": containers}},
        },
        "status": {"message": format!("token={SECRET}")},
    })
}

/// Covers each kind of the plan, so that no new kind can bypass the redaction.
#[tokio::test]
async fn no_kind_of_the_plan_is_written_with_a_secret() {
    for item in plan::items("operator") {
        let (api, what) = (FakeApi::new(), item.name());
        api.on("GET", &item.path(), 200, list(json!([with_canaries(&item)])));
        let log = json!({"line": format!("Authorization: Bearer {SECRET}")});
        api.on("GET", &format!("{}/x/log", item.path()), 200, log);
        let dir = tempfile::tempdir().unwrap();
        let mut folder = Folder::create(&dir.path().join("x")).unwrap();
        let scope = Scope { namespace: "operator".into(), nodes: ["win-1".to_owned()].into() };
        Reader { client: api.client(), since: None }.gather(&item, &scope, &mut folder).await;
        let written = all_below(&dir.path().join("x"));
        assert!(!written.is_empty(), "{what}: nothing is written, {:?}", folder.failures);
        for (path, text) in &written {
            assert!(!text.contains(SECRET), "{what}: {}: {text}", path.display());
            // Secrets are written without values, so nothing is replaced.
            let had_some = text.contains(redact::REDACTED);
            assert_eq!(had_some, item.form != plan::Form::Secret, "{what}: {}: {text}", path.display());
        }
        let expected = if item.form == plan::Form::Pod { 3 } else { 1 };
        assert_eq!(written.len(), expected, "{what}: {written:?}");
    }
}

#[test]
fn log_age_options_are_those_of_must_gather() {
    let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
    let of = |time: &str, duration: &str| {
        let (since_time, since) = (Some(time.to_owned()), Some(duration.to_owned()));
        super::since(&Gather { since, since_time, ..Gather::default() }, now)
            .map(|time| time.map(|t| t.to_string()))
            .ok()
    };
    for (time, duration, expected) in [
        ("", "", Some(None)),
        ("", "24h0m0s", Some(Some("2026-01-01T00:00:00Z"))),
        ("", "90m", Some(Some("2026-01-01T22:30:00Z"))),
        ("2026-01-01T10:00:00Z", "", Some(Some("2026-01-01T10:00:00Z"))),
        ("yesterday", "", None),
        ("", "long", None),
    ] {
        assert_eq!(of(time, duration), expected.map(|e: Option<&str>| e.map(str::to_owned)), "{time} {duration}");
    }
}
