//! Tests of the command `wicd.exe maintenance`.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use api::host::Marker;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::daemon::fake_cluster::FakeCluster;
use crate::fake::FakeHost;

fn node(annotations: &[(&str, &str)], ready: bool) -> Value {
    let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
    let ready = if ready { "True" } else { "False" };
    json!({"metadata": {"annotations": annotations}, "status": {"conditions": [{"type": "Ready", "status": ready}]}})
}

#[test]
fn each_state_of_the_node_has_its_next_step() {
    const ASKED: (&str, &str) = (key::MAINTENANCE_REQUEST, "patches");
    let is = |state| (key::MAINTENANCE_STATE, state);
    let code = |next: Next| match next {
        Next::Write(value) => value.map_or("withdraw", |_| "request").to_owned(),
        Next::Wait(_) => "wait".to_owned(),
        Next::End(outcome) => outcome.code().to_string(),
    };
    for (annotations, ready, on_begin, on_end) in [
        (vec![], true, "request", "0"),
        (vec![], false, "request", "wait"),
        (vec![is("Drained")], true, "request", "wait"),
        (vec![is("Drained"), (key::MAINTENANCE, "disk")], true, "request", "4"),
        (vec![is("Returning")], true, "request", "wait"),
        (vec![ASKED], true, "wait", "withdraw"),
        (vec![ASKED, is("Waiting")], true, "wait", "withdraw"),
        (vec![ASKED, is("Draining")], true, "wait", "withdraw"),
        (vec![ASKED, is("Returning")], true, "wait", "withdraw"),
        (vec![ASKED, is("Levitating")], true, "wait", "withdraw"),
        (vec![ASKED, is("Drained")], false, "0", "withdraw"),
        (vec![ASKED, is("Held")], true, "4", "withdraw"),
        (vec![(key::HOLD, "true")], true, "4", "0"),
        (vec![ASKED, (key::HOLD, "true")], true, "4", "withdraw"),
        // A later hold changes nothing: patching may be in progress.
        (vec![ASKED, is("Drained"), (key::HOLD, "true")], true, "0", "withdraw"),
        // The annotation that refuses maintenance also ends one.
        (vec![ASKED, is("Drained"), (key::MAINTENANCE, "false")], true, "4", "withdraw"),
        (vec![(key::MAINTENANCE, "false"), ASKED], true, "4", "withdraw"),
    ] {
        let node = node(&annotations, ready);
        let shown = Shown { node: &node };
        assert_eq!((code(begin(&shown, "x")), code(end(&shown, true))), (on_begin.into(), on_end.into()), "{node}");
        assert!(matches!(status(&shown), Next::End(outcome) if outcome.code() == 0));
    }
}

#[test]
fn a_reason_is_one_line() {
    for (text, is_good) in
        [("patches", true), (" patches ", true), ("", false), (" ", false), ("a\nb", false), ("a\u{202e}b", false)]
    {
        assert_eq!(reason(text).is_ok(), is_good, "{text:?}");
    }
    assert!(reason(&"x".repeat(MAX_REASON_CHARS)).is_ok() && reason(&"x".repeat(MAX_REASON_CHARS + 1)).is_err());
}

proptest! {
    #[test]
    fn a_node_of_any_form_is_read(text in any::<String>()) {
        for node in [json!(text), json!({"metadata": {"annotations": text}}), json!({"metadata": {"annotations": {key::MAINTENANCE_STATE: text}}})] {
            let shown = Shown { node: &node };
            let _ = (begin(&shown, "x"), end(&shown, true), status(&shown));
        }
    }
}

/// Length of a second, shortened for timeouts in tests.
const SECOND: Duration = Duration::from_millis(10);

struct TestHost {
    host: FakeHost,
    cluster: FakeCluster,
    said: Mutex<Vec<String>>,
}

impl TestHost {
    fn new() -> Self {
        let host = FakeHost::temporary();
        let marker = Marker { node_name: "win-1".into(), ..Marker::default() };
        crate::files::write_json(&host, api::host::path::STATE, &marker, crate::files::Access::Protected).unwrap();
        let cluster = FakeCluster::new();
        cluster.set_node(&[]);
        Self { host, cluster, said: Mutex::default() }
    }

    async fn run(&self, action: Action) -> Outcome {
        self.run_until(action, std::future::pending()).await
    }

    async fn run_until(&self, action: Action, interrupted: impl Future<Output = ()>) -> Outcome {
        let say = |text: &str| self.said.lock().unwrap().push(text.to_owned());
        run(
            &MaintenanceContext { host: &self.host, connect: &self.cluster, say: &say, second: SECOND },
            &action,
            interrupted,
        )
        .await
    }

    fn request(&self) -> Option<String> {
        self.cluster.annotation(key::MAINTENANCE_REQUEST)
    }

    /// Answers the request as the operator does.
    async fn answer(&self, states: &[&str]) {
        let mut nodes = self.cluster.node.subscribe();
        let is_requested = |n: &Option<Value>| n.as_ref().is_some_and(|n| Shown { node: n }.request().is_some());
        nodes.wait_for(is_requested).await.unwrap();
        for state in states {
            self.cluster.annotate("win-1", [(key::MAINTENANCE_STATE, Some((*state).to_owned()))].into()).await.unwrap();
            tokio::time::sleep(SECOND).await;
        }
    }
}

fn begins(timeout: u32, keep: bool) -> Action {
    Action::Begin { reason: "patches".into(), timeout, keep }
}

#[tokio::test]
async fn a_maintenance_waits_until_the_node_is_drained_and_returns_it() {
    let test_host = TestHost::new();
    let (outcome, ()) =
        tokio::join!(test_host.run(begins(6000, false)), test_host.answer(&["Waiting", "Draining", "Drained"]));
    assert_eq!((outcome.code(), test_host.request().as_deref()), (0, Some("patches")), "{outcome:?}");
    // After a restart of the host, a script may run from its beginning.
    assert_eq!(test_host.run(begins(6000, false)).await.code(), 0);
    assert!(test_host.run(Action::Status).await.message().contains("state: Drained\nrequest: patches"));
    assert_eq!((test_host.run(Action::End { wait: None }).await.code(), test_host.request()), (0, None));
    let outcome = test_host.run(Action::End { wait: Some(30) }).await;
    assert_eq!(outcome.code(), 3, "the operator has not verified the node yet");
    assert!(outcome.message().contains("administrators have requested"), "{outcome:?}");
    test_host.cluster.set_node(&[(key::MAINTENANCE_STATE, "Returning")]);
    assert!(test_host.run(Action::End { wait: Some(30) }).await.message().contains("verifies"));
    test_host.cluster.set_node(&[]);
    assert_eq!(test_host.run(Action::End { wait: Some(6000) }).await.code(), 0);
}

#[tokio::test]
async fn a_request_is_withdrawn_when_the_time_is_over() {
    for (keep, left) in [(false, None), (true, Some("patches"))] {
        let test_host = TestHost::new();
        let (outcome, ()) = tokio::join!(test_host.run(begins(60, keep)), test_host.answer(&["Waiting"]));
        assert_eq!((outcome.code(), test_host.request().as_deref()), (3, left), "{outcome:?}");
        assert!(outcome.message().contains("maxUnavailable"), "{outcome:?}");
    }
    let test_host = TestHost::new();
    let (outcome, ()) = tokio::join!(test_host.run(begins(6000, false)), test_host.answer(&["Held"]));
    assert_eq!((outcome.code(), test_host.request()), (4, None), "{outcome:?}");
}

/// Ctrl-C, or closing the window of the shell, interrupts the command.
#[tokio::test]
async fn an_interrupted_request_is_withdrawn() {
    for (keep, left) in [(false, None), (true, Some("patches"))] {
        let test_host = TestHost::new();
        let outcome = test_host.run_until(begins(6000, keep), test_host.answer(&["Waiting", "Draining"])).await;
        assert_eq!((outcome.code(), test_host.request().as_deref()), (6, left), "{outcome:?}");
    }
    // An earlier request is not withdrawn.
    let test_host = TestHost::new();
    test_host.cluster.set_node(&[(key::MAINTENANCE_REQUEST, "patches")]);
    let outcome = test_host.run_until(begins(6000, false), test_host.answer(&["Waiting"])).await;
    assert_eq!((outcome.code(), test_host.request().as_deref()), (6, Some("patches")), "{outcome:?}");
}

/// An earlier request is another program's, or this one's from before a restart of the host; patching may be in progress for
/// it.
#[tokio::test]
async fn an_earlier_request_stays() {
    for (reason, annotation) in [
        ("another tool", (key::MAINTENANCE_STATE, "Waiting")),
        ("patches", (key::MAINTENANCE_STATE, "Waiting")),
        ("another tool", (key::HOLD, "true")),
    ] {
        let test_host = TestHost::new();
        test_host.cluster.set_node(&[(key::MAINTENANCE_REQUEST, reason), annotation]);
        let outcome = test_host.run(begins(60, false)).await;
        assert!([3, 4].contains(&outcome.code()), "{outcome:?}");
        assert_eq!(test_host.request().as_deref(), Some(reason), "{outcome:?}");
    }
    // A request that replaces the program's own is another program's.
    let test_host = TestHost::new();
    let (outcome, ()) = tokio::join!(test_host.run(begins(60, false)), async {
        test_host.answer(&["Waiting"]).await;
        let other = [(key::MAINTENANCE_REQUEST, Some("another tool".to_owned()))];
        test_host.cluster.annotate("win-1", other.into()).await.unwrap();
    });
    assert_eq!((outcome.code(), test_host.request().as_deref()), (3, Some("another tool")), "{outcome:?}");
}

#[tokio::test]
async fn each_refusal_has_its_code() {
    let test_host = TestHost::new();
    test_host.cluster.down.store(true, Ordering::SeqCst);
    let outcome = test_host.run(begins(60, false)).await;
    assert_eq!(outcome.code(), 5, "{outcome:?}");
    assert!(outcome.message().contains("connection refused"), "{outcome:?}");
    assert!(test_host.cluster.connections.load(Ordering::SeqCst) > 5, "it tries until its time is up");
    let test_host = TestHost::new();
    test_host.cluster.node.send_replace(None);
    assert_eq!(test_host.run(begins(60, false)).await.code(), 4);
    let test_host = TestHost::new();
    test_host.host.state().machine.is_admin = false;
    assert_eq!(test_host.run(begins(60, false)).await.code(), 4);
    let not_a_node = FakeHost::temporary();
    let means = MaintenanceContext { host: &not_a_node, connect: &test_host.cluster, say: &|_| {}, second: SECOND };
    assert_eq!(run(&means, &Action::Status, std::future::pending()).await.code(), 4, "the host is not a node");
    assert!(test_host.cluster.patches.lock().unwrap().is_empty());
}
