//! What `status` prints, and with what it exits.

use api::{InstanceHost, PoolRef, WindowsInstanceSpec, WindowsNodePoolSpec, WindowsNodePoolStatus};
use serde_json::json;

use super::*;

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
fn the_worst_comes_first_and_what_works_takes_one_line() {
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
    let pools = summarize(&pools, &instances);
    let expected = "\
yard  1 of 13 nodes Ready; 1 of 13 failed: gate-1: Connect: refused
├─ gate-1  Failed     Connect: 10.0.0.9 port 22 refuses connections: check that
│      the OpenSSH server runs there[2J and listens on this port (since
│      2027-01-15 02:00:00Z)
├─ held    Ready      kubelet is posting ready status; on hold
├─ gate-2  Refused    belongs to gate-1
└─ 11 more are Ready
factory  1 of 1 nodes Ready
└─ win-1  Ready
";
    assert_eq!(tree(&pools, false, 80), expected);
    let all = tree(&pools, true, 80);
    assert!(all.contains("├─ ok-00   Ready\n") && !all.contains("more are Ready"), "{all}");
    assert_eq!(tree(&[], false, 80), "There is no WindowsNodePool.\n");
}

#[test]
fn the_exit_status_is_that_of_the_worst_pool() {
    let of = |pools: &[(&str, &str)]| {
        let pools: Vec<_> = pools.iter().map(|(ready, degraded)| pool("p", ready, "", degraded)).collect();
        exit(&summarize(&pools, &[]))
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
    assert_eq!(exit(&summarize(&[old], &[])), 2, "its status is about an older generation");
}
