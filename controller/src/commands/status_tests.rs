//! Tests of the output and the exit status of `status`.

use api::{InstanceHost, PoolRef, WindowsInstanceSpec, WindowsNodePoolSpec, WindowsNodePoolStatus};
use serde_json::{Value, json};

use super::*;

const NO_HOSTS: &[WindowsInstance] = &[];

const fn layout(wide: bool, width: usize) -> Layout {
    Layout { wide, width, has_colours: false }
}

fn now() -> Timestamp {
    "2027-01-15T02:00:30Z".parse().unwrap()
}

fn pool(name: &str, ready: &str, message: &str, degraded: &str) -> WindowsNodePool {
    let condition = |type_: &str, status: &str| json!({"type": type_, "status": status, "reason": "R", "message": message, "lastTransitionTime": "2027-01-15T02:00:00Z"});
    let conditions = json!([condition("Ready", ready), condition("Degraded", degraded)]);
    let status = WindowsNodePoolStatus {
        conditions: serde_json::from_value(conditions).unwrap(),
        ..WindowsNodePoolStatus::default()
    };
    let pool = WindowsNodePool::new(name, WindowsNodePoolSpec::default());
    WindowsNodePool { status: Some(status), ..pool }
}

fn instance(name: &str, pool: &str, phase: &str, ready: &str, message: &str) -> WindowsInstance {
    let spec = WindowsInstanceSpec {
        pool_ref: PoolRef { name: pool.into() },
        host: InstanceHost::default(),
        ..WindowsInstanceSpec::default()
    };
    let instance = WindowsInstance::new(name, spec);
    let ready = json!({
        "type": "Ready", "status": ready, "reason": "R", "message": message, "lastTransitionTime": "2027-01-15T02:00:00Z",
    });
    let status = json!({"phase": phase, "conditions": [ready]});
    WindowsInstance { status: Some(serde_json::from_value(status).unwrap()), ..instance }
}

#[test]
fn the_worst_host_comes_first_and_ready_hosts_share_a_line() {
    let mut broken = pool("yard", "False", "1 of 13 nodes Ready; 1 of 13 failed: gate-1: Connect: refused", "True");
    broken.status.as_mut().unwrap().refused =
        serde_json::from_value(json!([{"host": "gate-2", "reason": "HostConflict", "message": "belongs to gate-1"}]))
            .unwrap();
    let pools = [pool("factory", "True", "1 of 1 nodes Ready", "False"), broken];
    let mut instances: Vec<_> = (0..11)
        .map(|n| instance(&format!("ok-{n:02}"), "yard", "Ready", "True", "kubelet is posting ready status"))
        .collect();
    instances.push(instance(
        "gate-1",
        "yard",
        "Failed",
        "False",
        "Connect: 10.0.0.9 port 22 refuses connections: check that the OpenSSH server runs there\u{1b}[2J and listens on this port",
    ));
    instances.push(instance("held", "yard", "Ready", "True", "kubelet is posting ready status; on hold"));
    instances.push(instance("win-1", "factory", "Ready", "True", "kubelet is posting ready status"));
    let pools = summarize(&pools, &instances, now());
    let expected = "\
yard  1 of 13 nodes Ready; 1 of 13 failed: gate-1: Connect: refused
├─ gate-1  Failed     Connect: 10.0.0.9 port 22 refuses connections: check that
│      the OpenSSH server runs there[2J and listens on this port (for 30s)
├─ held    Ready      kubelet is posting ready status; on hold
├─ gate-2  Refused    belongs to gate-1
└─ 11 more are Ready
factory  1 of 1 nodes Ready
└─ win-1  Ready
";
    assert_eq!(tree(&pools, now(), layout(false, 80)), expected);
    let all = tree(&pools, now(), layout(true, 80));
    assert!(all.contains("├─ ok-00 ") && all.contains("├─ ok-10 ") && !all.contains("more are Ready"), "{all}");
    assert_eq!(tree(&[], now(), layout(false, 80)), "There is no WindowsNodePool.\n");
}

#[test]
fn the_exit_status_is_that_of_the_worst_pool() {
    let of = |pools: &[(&str, &str)]| {
        let pools: Vec<_> = pools.iter().map(|(ready, degraded)| pool("p", ready, "", degraded)).collect();
        exit(&summarize(&pools, NO_HOSTS, now()), &Operator::Leads)
    };
    for (pools, expected) in [
        (&[][..], 0),
        (&[("True", "False")], 0),
        (&[("True", "False"), ("Unknown", "False")], 2),
        (&[("Unknown", "False"), ("False", "False")], 1),
        (&[("True", "True")], 1),
    ] {
        assert_eq!(of(pools), expected, "{pools:?}");
    }
    let mut old = pool("p", "True", "", "False");
    old.metadata.generation = Some(2);
    assert_eq!(
        exit(&summarize(&[old], NO_HOSTS, now()), &Operator::Leads),
        2,
        "its status is about an older generation"
    );
}

/// Checks the warning and the exit status: without an operator, nothing updates the statuses.
#[test]
fn a_missing_operator_comes_first() {
    let lease = |holder: &str, seconds: i64| -> Lease {
        let renewed = now() - SignedDuration::from_secs(seconds);
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 15,
            "renewTime": format!("{}", renewed.strftime("%Y-%m-%dT%H:%M:%S.000000Z"))});
        serde_json::from_value(json!({"spec": spec})).unwrap()
    };
    let (alive, dead, free) = (lease("a", 3), lease("a", 29), lease("", 3));
    for (about, lease, is_missing, words) in [
        ("it works", Ok(Some(&alive)), false, ""),
        ("it died", Ok(Some(&dead)), true, "has expired: a renewed it 29s ago, and it is valid for 15s"),
        ("it has stopped", Ok(Some(&free)), true, "is held by no process"),
        ("there is none", Ok(None), true, "does not exist"),
        (
            "it cannot be read",
            Err("leases is forbidden"),
            false,
            "not known: the Lease windows-node-pools in the namespace ns cannot be read",
        ),
    ] {
        let operator = judge(lease, "ns", "kubectl get pods", now());
        let warning = operator.warning().unwrap_or_default();
        assert!(warning.contains(words) && warning.is_empty() == words.is_empty(), "{about}: {warning}");
        assert_eq!(matches!(operator, Operator::Missing(_)), is_missing, "{about}");
        let pools = summarize(&[pool("p", "True", "", "False")], NO_HOSTS, now());
        assert_eq!(exit(&pools, &operator), u8::from(is_missing), "{about}");
    }
}

/// Users who approve a version need to see which hosts have it, and why the others wait.
#[test]
fn a_half_changed_pool_shows_the_version_of_each_host() {
    let (old, new) = (format!("0.1.0-{}", "a".repeat(32)), format!("0.1.0-{}", "b".repeat(32)));
    let mut changing = pool("demo", "Unknown", "2 of 2 nodes Ready, 1 updated", "False");
    let status = changing.status.as_mut().unwrap();
    status.desired_version = Some(new.clone());
    let updated = json!({"type": "Updated", "status": "False", "reason": "WaitingForApproval", "message": "", "lastTransitionTime": "2027-01-15T02:00:00Z"});
    status.conditions.push(serde_json::from_value(updated).unwrap());
    let of = |name: &str, version: &str| {
        let mut host = instance(name, "demo", "Ready", "True", "kubelet is posting ready status");
        host.spec.host.address = "10.0.0.1".into();
        host.status.as_mut().unwrap().current_version = Some(version.to_owned());
        host
    };
    let mut hosts = vec![of("win-1", &new), of("win-2", &old)];
    let expected = "\
demo  2 of 2 nodes Ready, 1 updated
│  to version 0.1.0-bbbbbbbb
├─ win-1  Ready      0.1.0-bbbbbbbb
└─ win-2  Ready      0.1.0-aaaaaaaa  to be updated (WaitingForApproval)
";
    let summary = summarize(&[changing.clone()], &hosts, now());
    assert_eq!(tree(&summary, now(), layout(false, 120)), expected);
    let shown = serde_json::to_value(&summary).unwrap();
    let host = &shown[0]["hosts"][1];
    assert_eq!(
        (&host["address"], &host["version"], &host["upToDate"]),
        (&json!("10.0.0.1"), &json!(old), &json!(false))
    );
    assert_eq!(host["failures"], 0);

    // In the wide layout, each line has the address.
    let text = tree(&summary, now(), layout(true, 120));
    assert!(text.contains("├─ win-1  10.0.0.1         Ready      0.1.0-bbbbbbbb\n"), "{text}");

    // Many Ready hosts are folded into one line for up-to-date and one for outdated hosts.
    hosts.extend((0..20).map(|n| of(&format!("more-{n:02}"), &old)));
    let text = tree(&summarize(&[changing.clone()], &hosts, now()), now(), layout(false, 120));
    assert!(text.ends_with("├─ 1 is Ready\n└─ 21 more are Ready, to be updated (WaitingForApproval)\n"), "{text}");

    changing.metadata.generation = Some(2);
    let text = tree(&summarize(&[changing], &hosts, now()), now(), layout(false, 120));
    assert!(
        text.starts_with("demo  the operator has not observed the latest change; previous status: 2 of 2"),
        "{text}"
    );
}

#[test]
fn an_attempt_that_was_not_made_is_overdue() {
    let failed = |next: &str| {
        let mut host = instance("win-1", "p", "Failed", "False", "Connect: refused");
        let failures = json!({"count": 3, "lastReason": "Unreachable", "lastMessage": "x", "nextRetryTime": next});
        host.status.as_mut().unwrap().failures = serde_json::from_value(failures).unwrap();
        host
    };
    for (next, overdue) in [("2027-01-15T02:00:20Z", false), ("2027-01-15T01:58:00Z", true)] {
        let pools = summarize(&[pool("p", "False", "", "True")], &[failed(next)], now());
        assert_eq!(pools[0].hosts[0].message.contains("overdue"), overdue, "{next}");
        assert_eq!(pools[0].hosts[0].failures, 3);
    }
}

#[test]
fn each_decision_of_a_user_has_its_command() {
    const KEY: &str = "SHA256:mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE";
    let condition = |type_: &str, status: &str, reason: &str| json!({"type": type_, "status": status, "reason": reason, "message": "Change it.", "lastTransitionTime": "2027-01-15T02:00:00Z"});
    let status = |conditions: &[Value], removals: i32| {
        let status = json!({"conditions": conditions, "removalsToConfirm": removals, "desiredVersion": "1.0.0-5c9a1f0e7b64d2380f1ac95be2370d68"});
        serde_json::from_value::<WindowsNodePoolStatus>(status).unwrap()
    };
    let waits = condition("Updated", "False", "WaitingForApproval");
    let stalled = condition("Stalled", "True", "FailureLimitReached");
    let mut mismatch = instance("win-1", "p", "Failed", "False", "");
    mismatch.status.as_mut().unwrap().failures = serde_json::from_value(json!({
        "count": 1, "lastReason": "HostKeyMismatch", "lastMessage": format!("pinned another key, got {KEY}"), "step": "Connect",
    }))
    .unwrap();
    let commands = |asks: Vec<Ask>| {
        asks.into_iter().map(|ask| ask.command.unwrap_or(ask.what).replace("kubectl windows-node-pools ", "")).collect()
    };
    for (about, status, members, expected) in [
        ("nothing", status(&[], 0), &[][..], vec![]),
        (
            "a version",
            status(&[waits.clone(), stalled.clone()], 0),
            &[],
            vec!["approve p --version 1.0.0-5c9a1f0e".to_owned()],
        ),
        (
            "a version that no operator has",
            WindowsNodePoolStatus { desired_version: Some("1; rm -rf ~".into()), ..status(&[waits], 0) },
            &[],
            vec![],
        ),
        ("a removal", status(&[], 4), &[], vec!["approve p --removals 4".into()]),
        ("a host key", status(&[], 0), &[&mismatch], vec![format!("trust-host-key win-1 {KEY}")]),
        ("another fault", status(&[stalled], 0), &[], vec!["Change it.".into()]),
    ] {
        let found: Vec<String> = commands(asks("p", &status, members));
        assert_eq!(found, expected, "{about}");
    }
}

/// Returns a host in this state. With a version, it is outdated.
fn host_in(phase: Option<Phase>, step: Option<Step>, next: Option<Time>, version: Option<&str>) -> Host {
    let unknown = host(&WindowsInstance::new("win-1", WindowsInstanceSpec::default()), None, now());
    Host { phase, step, next_retry_time: next, version: version.map(Into::into), up_to_date: false, ..unknown }
}

#[test]
fn each_host_counts_once() {
    use Phase::{Failed, Joining, Maintenance, NotReady, Pending, Ready, Removing, Updating};
    let old = Some("1.0.0-5c9a1f0e7b64d2380f1ac95be2370d68");
    for (phase, step, retries, version, expected) in [
        (None, None, false, None, "new"),
        (Some(Pending), None, false, None, "new"),
        (Some(Pending), None, true, None, "failed"),
        (Some(Joining), Some(Step::Register), false, None, "change"),
        (Some(Joining), Some(Step::Register), true, None, "failed"),
        (Some(Ready), None, false, None, "done"),
        (Some(Ready), None, false, old, "waiting"),
        (Some(Ready), Some(Step::Check), false, old, "change"),
        (Some(Updating), Some(Step::Drain), false, old, "change"),
        (Some(Maintenance), None, false, None, "change"),
        (Some(Removing), None, false, old, "change"),
        (Some(NotReady), None, true, old, "not-ready"),
        (Some(Failed), None, true, None, "failed"),
    ] {
        let next = retries.then(|| "2027-01-15T02:00:00Z".parse().unwrap());
        let host = host_in(phase, step, next, version);
        assert_eq!(json!(host.state()), expected, "{phase:?} {step:?} {retries} {version:?}");
    }
}

#[test]
fn only_a_host_in_trouble_has_a_reason_to_explain() {
    use Phase::{Failed, Joining, NotReady, Ready};
    for (phase, reason, expected) in [
        (Failed, "Unreachable", Some(Reason::Unreachable)),
        (NotReady, "NodeNotReady", Some(Reason::NodeNotReady)),
        (Ready, "UpdateFailed", Some(Reason::UpdateFailed)),
        (Ready, "Succeeded", None),
        (Joining, "Progressing", None),
        (Failed, "ReasonOfAnotherRelease", None),
    ] {
        let host = Host { reason: reason.into(), ..host_in(Some(phase), None, None, None) };
        assert_eq!(host.trouble(), expected, "{phase:?} {reason}");
    }
}

#[test]
fn colours_take_no_columns() {
    let pools = summarize(
        &[pool("yard", "False", "1 of 2 nodes Ready; 1 of 2 failed: gate-1", "True")],
        &[
            instance("gate-1", "yard", "Failed", "False", "Connect: refused"),
            instance("ok", "yard", "Ready", "True", ""),
        ],
        now(),
    );
    let plain = tree(&pools, now(), layout(false, 40));
    let coloured = tree(&pools, now(), Layout { has_colours: true, ..layout(false, 40) });
    assert!(coloured.starts_with("\x1b[31myard\x1b[0m  1 of 2"), "{coloured:?}");
    assert!(
        coloured.contains("gate-1  \x1b[31mFailed   \x1b[0m") && coloured.contains("\x1b[32mReady"),
        "{coloured:?}"
    );
    let trimmed = |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    let stripped = ["31", "32", "0"].iter().fold(coloured, |text, code| text.replace(&format!("\x1b[{code}m"), ""));
    assert_eq!(trimmed(&stripped), trimmed(&plain));
}
