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

/// An object that the plan keeps, with canaries where an object of any kind may have them.
fn with_canaries(item: &plan::Item) -> Value {
    let name = match &item.keep {
        plan::Keep::Prefixes(prefixes) => format!("{}x", prefixes[0]),
        plan::Keep::Names(names) => names.first().unwrap().clone(),
        _ => "x".to_owned(),
    };
    let namespace = match &item.keep {
        plan::Keep::Namespaces(namespaces) => namespaces.first().cloned(),
        _ => item.namespace.clone(),
    };
    let container =
        json!({"name": "c", "args": ["--password", SECRET], "env": [{"name": "DB_PASSWORD", "value": SECRET}]});
    let containers = json!([container]);
    json!({
        "metadata": {
            "name": name, "namespace": namespace, "labels": {"machine.openshift.io/os-id": "Windows"},
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

/// Each kind of the plan, so that none is added that passes by the redaction.
#[tokio::test]
async fn no_kind_of_the_plan_is_written_with_a_secret() {
    let names = |name: &str| BTreeSet::from([name.to_owned()]);
    for item in plan::items("operator", &names("win-1"), &names("shop")) {
        let (api, what) = (FakeApi::new(), item.name());
        api.on("GET", &item.path(), 200, list(json!([with_canaries(&item)])));
        let log = json!({"line": format!("Authorization: Bearer {SECRET}")});
        api.on("GET", &format!("{}/x/log", item.path()), 200, log);
        let dir = tempfile::tempdir().unwrap();
        let mut folder = Folder::create(&dir.path().join("x"), None).unwrap();
        Reader::new(api.client()).gather(&item, Since(None), &mut folder).await;
        let written = all_below(&dir.path().join("x"));
        assert!(!written.is_empty(), "{what}: nothing is written, {:?}", folder.failures());
        for (path, text) in &written {
            assert!(!text.contains(SECRET), "{what}: {}: {text}", path.display());
            // The values of Secrets are not even replaced: there are none.
            let had_some = text.contains(redact::REDACTED);
            assert_eq!(had_some, item.form != plan::Form::Secret, "{what}: {}: {text}", path.display());
        }
        let expected = if item.form == plan::Form::Pod { 2 } else { 1 };
        assert_eq!(written.len(), expected, "{what}: {written:?}");
    }
}

/// A canary in each kind of object, where the name beside it is what says that it is a secret.
#[tokio::test]
async fn what_the_template_of_a_report_asks_for_is_gathered_without_secrets() {
    let api = FakeApi::new();
    let openshift = "/apis/machine.openshift.io/v1beta1/namespaces/openshift-machine-api";
    let capi = "/apis/cluster.x-k8s.io/v1beta1";
    let metadata = |name: &str, namespace: &str| json!({"name": name, "namespace": namespace});
    let template = json!({"metadata": {"labels": {"machine.openshift.io/os-id": "Windows"}}});
    let set = |name: &str| {
        json!({"metadata": metadata(name, "openshift-machine-api"), "spec": {"template": template,
        "providerSpec": {"userData": format!("<powershell>$pass = {SECRET}</powershell>")}}})
    };
    let check = |namespace: &str| json!({"metadata": metadata("any", namespace), "spec": {"maxUnhealthy": "40%"}});
    let cluster_api =
        json!({"metadata": {"name": "m", "namespace": "c", "labels": {"node.cluster.x-k8s.io/os": "windows"}}});
    let network = json!({"metadata": {"name": "cluster"}, "spec": {"defaultNetwork": {"type": "OVNKubernetes"}}});
    let helm = json!({"metadata": {"name": "sh.helm.release.v1.wnp.v1", "namespace": "operator", "annotations": {"x": SECRET},
        "managedFields": [{"fieldsV1": {"f:data": {"f:release": {}}}}]}, "data": {"release": SECRET}});
    let env = json!([{"name": "SECRET_ID", "value": SECRET}, {"name": "DB_PASS", "value": SECRET}, {"name": "HOST_KEY", "value": SECRET},
        {"name": "URL", "value": format!("https://x.blob.core.windows.net/c?sv=1&sig={SECRET}")}]);
    let deployment = json!({"metadata": metadata("windows-node-pools", "operator"),
        "spec": {"template": {"spec": {"containers": [{"name": "operator", "env": env}]}}}});
    let data = json!({"a": format!("<Data Name='Password'>{SECRET}</Data>"), "b": format!("password: {{{SECRET}}}\n"),
        "c": format!("token: &x {SECRET}\n"), "d": format!("secret: {{a: {SECRET}}}\nuser: me\n")});
    let config_map = json!({"metadata": metadata("windows-services-1", "operator"), "data": data});
    let event = |name: &str, time: &str| {
        json!({"metadata": metadata(name, "operator"), "lastTimestamp": time,
        "message": format!("wicd says {{\"pass\": [\"{SECRET}\"")})
    };
    let events = json!([event("z", "2027-01-01T00:00:00Z"), event("a", "2027-01-01T01:00:00Z")]);
    for (path, items) in [
        (format!("{openshift}/machinesets"), json!([set("win")])),
        (format!("{openshift}/machinehealthchecks"), json!([check("openshift-machine-api")])),
        (format!("{capi}/machines"), json!([cluster_api])),
        (format!("{capi}/machinehealthchecks"), json!([check("c")])),
        ("/apis/operator.openshift.io/v1/networks".into(), json!([network])),
        ("/api/v1/namespaces/operator/secrets".into(), json!([helm])),
        ("/apis/apps/v1/namespaces/operator/deployments".into(), json!([deployment])),
        ("/api/v1/namespaces/operator/configmaps".into(), json!([config_map])),
        ("/api/v1/namespaces/operator/events".into(), events),
    ] {
        api.on("GET", &path, 200, list(items));
    }
    for resource in ["machines", "machinehealthchecks"] {
        let newer = format!("/apis/cluster.x-k8s.io/v1beta2/{resource}");
        api.fail("GET", &newer, 404, "NotFound", "there is none", Value::Null);
    }
    let dir = tempfile::tempdir().unwrap();
    let mut folder = Folder::create(&dir.path().join("x"), None).unwrap();
    of_cluster(&Reader::new(api.client()), "operator", Since(None), &mut folder).await;
    let files = all_below(&dir.path().join("x"));
    for path in [
        "namespaces/openshift-machine-api/machine.openshift.io/machinesets/win.yaml",
        "namespaces/openshift-machine-api/machine.openshift.io/machinehealthchecks/any.yaml",
        "namespaces/c/cluster.x-k8s.io/machines/m.yaml",
        "namespaces/c/cluster.x-k8s.io/machinehealthchecks/any.yaml",
        "cluster-scoped-resources/operator.openshift.io/networks/cluster.yaml",
        "namespaces/operator/core/secrets/sh.helm.release.v1.wnp.v1.yaml",
        "namespaces/operator/apps/deployments/windows-node-pools.yaml",
        "namespaces/operator/core/configmaps/windows-services-1.yaml",
        "namespaces/operator/core/events.yaml",
    ] {
        let found = files.iter().find(|(file, _)| file.ends_with(path));
        assert!(found.is_some(), "{path} is not in {files:?}");
        assert!(found.is_some_and(|(_, text)| !text.contains(SECRET)), "{found:?}");
    }
    let (_, events) = files.iter().find(|(file, _)| file.ends_with("core/events.yaml")).unwrap();
    assert!(events.find("name: z") < events.find("name: a"), "the newest is last: {events}");
}

async fn pseudonyms_of(api: &FakeApi) -> anyhow::Result<Pseudonyms> {
    let args = Gather { namespace: "operator".into(), ..Gather::default() };
    pseudonyms(&Reader::new(api.client()), &args, "https://10.0.0.1:6443").await
}

/// The cluster does not have the other kinds that have names.
fn others_are_missing(api: &FakeApi) {
    let items = plan::with_names("operator");
    for item in items.iter().cloned().chain(items.iter().filter_map(plan::Item::in_earlier_version)) {
        // Answers are given in their order: what a test has said before comes first, and stays if it is the last.
        if !api.has("GET", &item.path()) {
            api.fail("GET", &item.path(), 404, "NotFound", "there is none", Value::Null);
        }
    }
}

/// An archive of which a person believes that it has no names must have none.
#[tokio::test]
async fn without_all_names_nothing_is_anonymised() {
    const GROUP: &str = "/apis/machine.openshift.io/v1beta1";
    let machines = format!("{GROUP}/namespaces/openshift-machine-api/machines");
    let forbids = |api: &FakeApi, path: &str| {
        api.fail("GET", path, 403, "Forbidden", "machines is forbidden", Value::Null);
    };
    let serves = |api: &FakeApi, name: &str| {
        api.on("GET", GROUP, 200, json!({"kind": "APIResourceList", "resources": [{"name": name}]}));
    };
    let nodes = |api: &FakeApi, code: u16| {
        api.fail("GET", "/api/v1/nodes", code, "Forbidden", "nodes is forbidden", Value::Null);
    };
    type Arrange<'a> = Box<dyn Fn(&FakeApi) + 'a>;
    let cases: [(&str, Arrange<'_>, Result<(), &str>); 8] = [
        ("no such kind", Box::new(|_| {}), Ok(())),
        (
            "Nodes are forbidden",
            Box::new(|api| nodes(api, 403)),
            Err("failed to list nodes, whose names must get pseudonyms"),
        ),
        ("the API server fails", Box::new(|api| nodes(api, 500)), Err("or without --anonymise")),
        (
            "too many",
            Box::new(|api| {
                let page = json!({"kind": "NodeList", "metadata": {"continue": "x"}, "items": vec![json!({"metadata": {"name": "n"}}); 5000]});
                api.on("GET", "/api/v1/nodes", 200, page);
            }),
            Err("there are more than 5000 nodes"),
        ),
        (
            "a forbidden kind that is there",
            Box::new(|api| {
                forbids(api, &machines);
                serves(api, "machines");
            }),
            Err("failed to list machines.machine.openshift.io in openshift-machine-api"),
        ),
        (
            "a forbidden kind that is not",
            Box::new(|api| {
                forbids(api, &machines);
                serves(api, "others");
            }),
            Ok(()),
        ),
        (
            "a forbidden kind of a group that is not there",
            Box::new(|api| {
                forbids(api, &machines);
                api.fail("GET", GROUP, 404, "NotFound", "there is none", Value::Null);
            }),
            Ok(()),
        ),
        (
            "a forbidden kind of which nothing is known",
            Box::new(|api| forbids(api, &machines)),
            Err("failed to list machines.machine"),
        ),
    ];
    for (about, arrange, expected) in cases {
        let api = FakeApi::new();
        arrange(&api);
        others_are_missing(&api);
        let found = pseudonyms_of(&api).await.map(drop).map_err(|error| error.to_string());
        match expected {
            Ok(()) => assert_eq!(found, Ok(()), "{about}"),
            Err(words) => assert!(found.as_ref().is_err_and(|error| error.contains(words)), "{about}: {found:?}"),
        }
    }
}

#[test]
fn a_pod_that_ends_anonymises_nothing() {
    for (dest, anonymise, is_refused) in
        [("/must-gather", true, true), ("/must-gather", false, false), ("gathered", true, false)]
    {
        let args = Gather { dest: Some(dest.into()), anonymise, ..Gather::default() };
        let refusal = keeps_table(&args).map_err(|error| error.to_string());
        assert_eq!(refusal.is_err(), is_refused, "{dest} {anonymise}");
        assert!(refusal.is_ok() || refusal.is_err_and(|error| error.contains("anonymise from a laptop")), "{dest}");
    }
}

/// Names of Linux nodes and of the infrastructure stand in Leases, events and names of Machines.
#[tokio::test]
async fn pseudonyms_cover_every_node_and_the_infrastructure() {
    let api = FakeApi::new();
    let node = |name: &str, os: &str| json!({"metadata": {"name": name, "labels": {"kubernetes.io/os": os}}});
    let nodes = json!({"kind": "NodeList", "metadata": {}, "items": [node("win-1", "windows"), node("control-plane-1", "linux")]});
    api.on("GET", "/api/v1/nodes", 200, nodes);
    let infrastructure = json!({"metadata": {"name": "cluster"}, "status": {"infrastructureName": "prod-x7k2p"}});
    let infrastructures = json!({"kind": "InfrastructureList", "metadata": {}, "items": [infrastructure]});
    api.on("GET", "/apis/config.openshift.io/v1/infrastructures", 200, infrastructures);
    others_are_missing(&api);
    let pseudonyms = pseudonyms_of(&api).await.unwrap();
    let written = pseudonyms.apply("win-1 control-plane-1 prod-x7k2p-worker-0");
    for name in ["win-1", "control-plane-1", "prod-x7k2p"] {
        assert!(!written.contains(name), "{written}");
    }
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
