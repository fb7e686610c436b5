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
async fn what_cannot_be_read_does_not_end_the_rest() {
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
    // All else is not in this cluster, or an error of the script.
    let reader = Reader::new(api.client());
    let dir = tempfile::tempdir().unwrap();
    let mut folder = Folder::create(&dir.path().join("x"), None).unwrap();
    of_cluster(&reader, "operator", Since(None), &mut folder).await;
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
    let failures = folder.failures().join("\n");
    assert!(failures.contains("events in operator: events is forbidden; ask a person"), "{failures}");
    assert!(failures.contains("no previous container"), "{failures}");
    assert!(api.all_calls().iter().all(|call| call.method == "GET"), "gathering changes nothing");
}

#[test]
fn the_beginning_of_logs_is_given_as_must_gather_gives_it() {
    let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
    let of = |time: &str, duration: &str| {
        let (since_time, since) = (Some(time.to_owned()), Some(duration.to_owned()));
        super::since(&Gather { since, since_time, ..Gather::default() }, now)
            .map(|Since(time)| time.map(|t| t.to_string()))
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
