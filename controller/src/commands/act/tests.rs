//! Tests of the commands against an API server that refuses a patch if the object has changed since it was read.

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

/// Parses a command line.
fn args(line: &str) -> Act {
    #[derive(clap::Parser)]
    struct Line {
        #[command(subcommand)]
        act: Act,
    }
    <Line as clap::Parser>::try_parse_from(format!("x {line}").split(' ')).unwrap().act
}

async fn done(api: &FakeApi, line: &str) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    perform(&api.client(), &args(line), &|_: &str| Ok(()), &mut outcomes).await.unwrap();
    outcomes
}

#[tokio::test]
async fn changes_by_other_clients_are_kept() {
    let api = world();
    api.at_write(0, AtWrite::Overtake);
    let outcomes = done(&api, "pause factory").await;
    assert_eq!(
        outcomes[0].message,
        "WindowsNodePool factory: paused. No new operation begins, and drains are aborted; a change that has begun on a host finishes. To resume: kubectl windows-node-pools resume factory"
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
async fn a_change_that_cannot_be_undone_is_confirmed_once() {
    let api = world();
    let asked = Mutex::new(Vec::new());
    let no = |danger: &str| -> anyhow::Result<()> {
        asked.lock().push(danger.to_owned());
        anyhow::bail!("no")
    };
    let mut outcomes = Vec::new();
    perform(&api.client(), &args("approve factory"), &no, &mut outcomes).await.unwrap_err();
    assert!(outcomes.is_empty(), "{outcomes:?}");
    assert!(asked.lock()[0].starts_with("WindowsNodePool factory: 2 hosts will be drained"), "{asked:?}");
    assert!(api.calls("PATCH", POOL).is_empty());

    // The user is asked once, although another client changes the object in between.
    api.at_write(0, AtWrite::Overtake);
    let yes = |danger: &str| -> anyhow::Result<()> {
        asked.lock().push(danger.to_owned());
        Ok(())
    };
    perform(&api.client(), &args("approve factory"), &yes, &mut outcomes).await.unwrap();
    assert!(!outcomes[0].is_refused() && asked.lock().len() == 2, "{outcomes:?} {asked:?}");
    assert_eq!(annotation(&api, "windowsnodepools", "factory", key::APPROVE_REMOVAL), "2");
    let outcomes = done(&api, "approve factory --yes").await;
    assert!(outcomes[0].message.ends_with("is approved already"), "{outcomes:?}");
}

#[tokio::test]
async fn outcomes_before_an_error_are_kept() {
    let api = world();
    api.objects(|objects| {
        objects.put("nodes", json!({"metadata": {"name": "win-1", "annotations": {key::HOLD: "false"}}}));
    });
    api.at_write(1, AtWrite::Fail);
    let mut outcomes = Vec::new();
    perform(&api.client(), &args("pause --host win-1"), &|_: &str| Ok(()), &mut outcomes).await.unwrap_err();
    assert_eq!(outcomes.iter().map(|o| o.kind.as_str()).collect::<Vec<_>>(), ["WindowsInstance"]);
}

#[tokio::test]
async fn the_hold_of_a_host_is_that_of_its_instance() {
    let api = world();
    let of = |plural: &str| annotation(&api, plural, "win-1", key::HOLD);
    for (on_node, kinds) in [(Value::Null, vec!["WindowsInstance"]), (json!("false"), vec!["WindowsInstance", "Node"])]
    {
        api.objects(|objects| {
            let node = json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": "win-1", "annotations": {key::HOLD: on_node}}});
            objects.put("nodes", if on_node.is_null() { json!({"metadata": {"name": "win-1"}}) } else { node });
        });
        let outcomes = done(&api, "pause --host win-1").await;
        assert_eq!(outcomes.iter().map(|o| o.kind.as_str()).collect::<Vec<_>>(), kinds);
        assert_eq!((of("windowsinstances"), of("nodes")), (json!("true"), Value::Null));
        let again = done(&api, "pause --host win-1").await;
        assert!(again.iter().all(|outcome| outcome.message.ends_with("it is paused already")), "{again:?}");
        done(&api, "resume --host win-1").await;
        assert_eq!((of("windowsinstances"), of("nodes")), (Value::Null, Value::Null));
    }
}

#[tokio::test]
async fn a_missing_object_is_refused() {
    let api = world();
    for line in ["retry win-9", "pause --host win-9", "resume --host win-9", "abandon win-9 --yes"] {
        let outcomes = done(&api, line).await;
        let expected = "WindowsInstance win-9: it does not exist; see: kubectl get windowsinstances";
        assert!(outcomes[0].is_refused() && outcomes[0].message == expected, "{outcomes:?}");
    }
    let outcomes = done(&api, "abandon win-1 --yes").await;
    let message = &outcomes[0].message;
    assert!(outcomes[0].is_refused() && message.contains("it is a host of the pool factory"), "{message}");
}

#[test]
fn a_pause_names_either_a_pool_or_a_host() {
    for (line, is_one) in [
        ("pause a", true),
        ("pause a --until 2027-01-15T02:00:00Z", true),
        ("pause --host a", true),
        ("pause", false),
        ("resume", false),
        ("pause a --host b", false),
        ("pause --host a --until 2027-01-15T02:00:00Z", false),
    ] {
        let words = format!("x {line}");
        let command = <Act as clap::Subcommand>::augment_subcommands(clap::Command::new("x"));
        assert_eq!(command.try_get_matches_from(words.split(' ')).is_ok(), is_one, "{line}");
    }
}
