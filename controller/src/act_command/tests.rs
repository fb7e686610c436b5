//! The commands against an API server that refuses what has changed since.

use api::names::{MANAGER_COMMAND, key};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::fake_api::{AtWrite, FakeApi};

const POOL: &str = "/apis/windowsmachineconfig.openshift.io/v1alpha1/windowsnodepools/factory";

fn world() -> FakeApi {
    let api = FakeApi::with_objects();
    api.objects(|objects| {
        objects.put(
            "windowsnodepools",
            json!({
                "apiVersion": "windowsmachineconfig.openshift.io/v1alpha1", "kind": "WindowsNodePool",
                "metadata": {"name": "factory", "generation": 1, "annotations": {"example.com/other": "stays"}},
                "spec": {"inventory": {"hosts": []}, "rollout": {"maxUnavailable": 2}},
                "status": {"observedGeneration": 1, "removalsToConfirm": 2},
            }),
        );
        for (name, node) in [("win-1", json!({"name": "win-1", "uid": "node-1"})), ("win-2", Value::Null)] {
            objects.put(
                "windowsinstances",
                json!({
                    "apiVersion": "windowsmachineconfig.openshift.io/v1alpha1", "kind": "WindowsInstance",
                    "metadata": {"name": name},
                    "spec": {"poolRef": {"name": "factory"}, "host": {"name": name, "address": "10.0.0.1", "port": 22,
                        "username": "Administrator", "privateKeys": [], "labels": {}, "annotations": {}, "taints": []}},
                    "status": {"nodeRef": node},
                }),
            );
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": "node-1"}});
            objects.put("nodes", node);
        }
    });
    api
}

fn annotation(api: &FakeApi, plural: &str, name: &str, key: &str) -> Value {
    api.objects(|objects| objects.get(plural, name).unwrap()["metadata"]["annotations"][key].clone())
}

fn approve(yes: bool) -> Act {
    Act::Approve(Approve { pool: "factory".into(), version: None, removals: None, yes, output: Output::Table })
}

async fn done(api: &FakeApi, args: Act) -> Vec<Outcome> {
    perform(&api.client(), args, &|danger: &str| panic!("it asked: {danger}")).await.unwrap().0
}

#[tokio::test]
async fn what_others_change_meanwhile_stays() {
    let api = world();
    api.at_write(0, AtWrite::Overtake);
    let outcomes = done(&api, Act::Pause { pool: "factory".into(), until: None, output: Output::Table }).await;
    assert_eq!(
        outcomes[0].message,
        "WindowsNodePool factory: it was not paused; now it is paused, until: windows-node-pools resume. Nothing new begins; what has begun is finished"
    );
    let patches = api.calls("PATCH", POOL);
    assert_eq!(patches.len(), 2, "the first was overtaken: {patches:?}");
    assert_ne!(patches[0].body["metadata"]["resourceVersion"], patches[1].body["metadata"]["resourceVersion"]);
    assert_eq!(patches[1].query("fieldManager"), Some(MANAGER_COMMAND));
    let pool = api.objects(|objects| objects.get("windowsnodepools", "factory").unwrap().clone());
    assert_eq!(pool["spec"]["rollout"], json!({"maxUnavailable": 2, "paused": true}));
    let others = json!({"example.com/other": "stays", "example.com/touched": "true"});
    assert_eq!(pool["metadata"]["annotations"], others);
}

#[tokio::test]
async fn what_cannot_be_undone_is_confirmed_once() {
    let api = world();
    let asked = Mutex::new(Vec::new());
    let no = |danger: &str| -> anyhow::Result<()> {
        asked.lock().push(danger.to_owned());
        anyhow::bail!("no")
    };
    perform(&api.client(), approve(false), &no).await.unwrap_err();
    assert!(asked.lock()[0].starts_with("WindowsNodePool factory: 2 hosts will be drained"), "{asked:?}");
    assert!(api.calls("PATCH", POOL).is_empty());

    // It is asked once although another client changes the object in between.
    api.at_write(0, AtWrite::Overtake);
    let yes = |danger: &str| -> anyhow::Result<()> {
        asked.lock().push(danger.to_owned());
        Ok(())
    };
    let (outcomes, _) = perform(&api.client(), approve(false), &yes).await.unwrap();
    assert!(!outcomes[0].is_refused() && asked.lock().len() == 2, "{outcomes:?} {asked:?}");
    assert_eq!(annotation(&api, "windowsnodepools", "factory", key::APPROVE_REMOVAL), "2");
    let outcomes = done(&api, approve(true)).await;
    assert!(outcomes[0].message.ends_with("is approved already"), "{outcomes:?}");
}

#[tokio::test]
async fn a_hold_is_on_the_instance_and_on_the_node_of_the_host() {
    let api = world();
    // The Node of the second is another host's.
    for (host, on_node) in [("win-1", json!("true")), ("win-2", Value::Null)] {
        done(&api, Act::Hold { host: host.into(), output: Output::Table }).await;
        assert_eq!(annotation(&api, "windowsinstances", host, key::HOLD), "true", "{host}");
        assert_eq!(annotation(&api, "nodes", host, key::HOLD), on_node, "{host}");
    }
    let again = done(&api, Act::Hold { host: "win-1".into(), output: Output::Table }).await;
    assert!(again.iter().all(|outcome| outcome.message.ends_with("it is on hold already")), "{again:?}");
    let outcomes = done(&api, Act::Release { host: "win-1".into(), output: Output::Table }).await;
    assert_eq!(outcomes.iter().map(|o| o.kind.as_str()).collect::<Vec<_>>(), ["Node", "WindowsInstance"]);
    for plural in ["nodes", "windowsinstances"] {
        assert_eq!(annotation(&api, plural, "win-1", key::HOLD), Value::Null);
    }
}

#[tokio::test]
async fn what_does_not_exist_is_refused() {
    let api = world();
    let (host, output) = (|| "win-9".to_owned(), Output::Table);
    for args in [
        Act::Retry { hosts: vec![host()], output },
        Act::Hold { host: host(), output },
        Act::Release { host: host(), output },
        Act::Abandon { host: host(), yes: true, output },
    ] {
        let outcomes = done(&api, args).await;
        let expected = "WindowsInstance win-9: it does not exist; see: kubectl get windowsinstances";
        assert!(outcomes[0].is_refused() && outcomes[0].message == expected, "{outcomes:?}");
    }
    let outcomes = done(&api, Act::Abandon { host: "win-1".into(), yes: true, output }).await;
    assert!(
        outcomes[0].is_refused() && outcomes[0].message.contains("it is a host of the pool factory"),
        "{outcomes:?}"
    );
}

#[test]
fn a_person_confirms_what_happens_in_which_cluster() {
    let text = question(
        "cluster prod (context p) at https://prod.example:6443/",
        "WindowsInstance win-1: the host is given up",
    );
    assert_eq!(
        text,
        "In the cluster prod (context p) at https://prod.example:6443/:\nWindowsInstance win-1: the host is given up"
    );
}
