//! Tests of the events on the Node for each operation that disturbs the node: users of the node may not know instances and pools.

use api::GrantType;
use serde_json::{Value, json};

use super::executor_tests::World;

/// Returns the notes of the Node's events with this reason.
fn notes(world: &World, reason: &str) -> Vec<String> {
    let calls = world.bed.api.calls("POST", "/apis/events.k8s.io/v1/namespaces/default/events");
    let is_it =
        |b: &&Value| b["reason"] == reason && b["regarding"]["kind"] == "Node" && b["regarding"]["name"] == "win-1";
    calls.iter().map(|c| &c.body).filter(is_it).map(|b| b["note"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Marks the host as leaving and grants its removal, as its pool does after a new revision of its list.
fn take_out(world: &World) {
    world.take_out();
    world.edit(|i| i["spec"]["leaving"]["why"] = json!("no longer listed at main@sha1:0f3c"));
}

#[tokio::test]
async fn operations_that_disturb_a_node_report_events_on_it() {
    type Begin = Box<dyn Fn(&World, &str, &str)>;
    // Expected reasons and notes, the last one at the end of the operation; and a reason that must not occur.
    type Case = (&'static str, Begin, &'static [(&'static str, &'static str)], &'static str);
    let update = |more: Value| -> Begin {
        Box::new(move |world, _, new| {
            let mut grant = more.clone();
            grant["version"] = json!(new);
            world.grant("update-1", GrantType::Update, new, &grant);
        })
    };
    let cases: [Case; 5] = [
        (
            "a change with a drain",
            update(json!({"disruption": "Drain"})),
            &[
                ("Draining", "evicting the pods: pool p changes the node from version 1.0.0-"),
                ("Updated", "the node follows version 1.0.0-"),
            ],
            "ServicesRestarting",
        ),
        (
            "a restart of services",
            update(json!({"disruption": "Restart", "services": ["kubelet"]})),
            &[(
                "ServicesRestarting",
                "restarting kubelet while the pods continue to run: pool p changes the node from version 1.0.0-",
            )],
            "Updated",
        ),
        (
            "a restart of the host",
            Box::new(|world, old, _| world.grant("reboot-1", GrantType::Reboot, old, &json!({"disruption": "Reboot"}))),
            &[
                ("Draining", "evicting the pods: the host must be restarted"),
                ("Rebooting", "restarting the host: a restart was requested"),
                ("Rebooted", "the host was restarted, and its node is Ready again"),
            ],
            "Updated",
        ),
        (
            "a repair",
            Box::new(|world, old, _| {
                world.set_ready("Unknown");
                world.grant("repair-1", GrantType::Repair, old, &json!({"disruption": "Reboot"}));
            }),
            &[
                ("Repairing", "pool p repairs the node, which does not work"),
                ("Rebooting", "restarting the host: a restart was requested"),
                ("Repaired", "the host was repaired, and its node is Ready again"),
            ],
            "Updated",
        ),
        (
            "a removal",
            Box::new(|world, _, _| take_out(world)),
            &[
                ("Draining", "evicting the pods: the host leaves pool p: no longer listed at main@sha1:0f3c"),
                ("Removed", "deleting the Node: the host leaves pool p: no longer listed at main@sha1:0f3c"),
            ],
            "Updated",
        ),
    ];
    // The cases are concurrent, because each of them mostly waits.
    let each = cases.map(|(about, begin, expected, absent)| async move {
        let (mut world, old) = World::joined().await;
        let new = world.publish(120);
        begin(&world, &old, &new);
        let (last, _) = expected.last().unwrap();
        world.works_until(&format!("{about}: {last}"), |w| !notes(w, last).is_empty()).await;
        for (reason, note) in expected {
            let found = notes(&world, reason);
            assert!(found.len() == 1 && found[0].starts_with(note), "{about}: {reason}: {found:?}");
        }
        assert_eq!(notes(&world, absent), Vec::<String>::new(), "{about}: {absent}");
    });
    futures::future::join_all(each).await;
}

/// An attempt on an unreachable host disturbs nothing, however often it is repeated.
#[tokio::test]
async fn no_event_is_reported_before_the_login() {
    for (type_, more) in [
        (GrantType::Update, json!({"disruption": "Restart", "services": ["kubelet"]})),
        (GrantType::Update, json!({"disruption": "Drain"})),
        (GrantType::Repair, json!({})),
    ] {
        let (mut world, _) = World::joined().await;
        let new = world.publish(120);
        let gone = std::net::TcpListener::bind((world.bed.host.address(), 0)).unwrap();
        let port = gone.local_addr().unwrap().port();
        drop(gone);
        world.set_ready("Unknown");
        world.edit(|i| i["spec"]["host"]["port"] = json!(port));
        let mut grant = more.clone();
        grant["version"] = json!(new);
        world.grant("g-1", type_, &new, &grant);
        world.works_until(&format!("{type_:?} fails"), World::has_failed).await;
        for reason in ["ServicesRestarting", "Draining", "Rebooting", "Repairing"] {
            assert_eq!(notes(&world, reason), Vec::<String>::new(), "{type_:?} {more}");
        }
    }
}

/// A drain may be aborted, for example when the maintenance window closes: pods were evicted, and the node is as it was before.
#[tokio::test]
async fn a_drain_that_is_aborted_is_reported_with_the_cause() {
    for (hold, cause) in [(false, "pool p has ended the operation"), (true, "hold=true holds the host")] {
        let (mut world, _) = World::joined().await;
        world.run_pod("cart");
        let eviction = "/api/v1/namespaces/shop/pods/cart/eviction";
        world.bed.api.fail("POST", eviction, 429, "TooManyRequests", "its budget does not allow it", Value::Null);
        world.begin_update("Drain");
        world.works_until("its drain is blocked", |w| !w.operation()["drain"].is_null()).await;
        world.edit(|i| {
            i["spec"]["grant"] = Value::Null;
            if hold {
                i["metadata"]["annotations"] = json!({api::names::key::HOLD: "true"});
            }
        });
        world.works_until("it is reported", |w| !notes(w, "DrainAborted").is_empty()).await;
        let found = notes(&world, "DrainAborted");
        assert!(found[0].contains("no longer keeps the node cordoned") && found[0].contains(cause), "{found:?}");
    }
}
