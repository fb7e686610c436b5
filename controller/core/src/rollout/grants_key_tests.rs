//! Tests of which host is given another SSH key.

use super::*;

#[test]
fn keys_one_host_at_a_time() {
    use GrantType::{Reboot, Remove, Repair, RotateKey, Stage, Update};
    let keyless = |candidate| Candidate { wants_key: true, ..candidate };
    let at_it = |candidate| Candidate { rotating: true, ..granted(keyless(candidate), RotateKey) };
    let failed = |s, candidate| Candidate { key_waits_until: at(s), ..keyless(candidate) };
    let paused = Limits { paused: true, ..limits() };
    let closed = Limits { open: false, ..limits() };
    let spent = Limits { max_unavailable: IntOrPercent::Int(0), others: Some(Share::default()), ..limits() };
    check(vec![
        ("one", vec![keyless(node("b")), keyless(node("a"))], limits(), vec![("a", Some(RotateKey))]),
        ("the others wait", vec![granted(keyless(node("b")), RotateKey), keyless(node("a"))], limits(), vec![]),
        ("also for one that is at it", vec![at_it(node("b")), keyless(node("a"))], limits(), vec![]),
        ("it goes on when paused", vec![at_it(node("b")), keyless(node("a"))], paused.clone(), vec![]),
        ("and when held", vec![at_it(held(node("b"))), keyless(node("a"))], limits(), vec![]),
        ("it is over", vec![granted(node("b"), RotateKey), keyless(node("a"))], limits(), vec![("b", None)]),
        ("paused", vec![keyless(node("a")), granted(keyless(node("b")), RotateKey)], paused, vec![("b", None)]),
        ("no window is asked", vec![keyless(node("a"))], closed, vec![("a", Some(RotateKey))]),
        ("and no budget", vec![dead("b"), keyless(node("a"))], spent, vec![("a", Some(RotateKey))]),
        ("held", vec![held(keyless(node("a"))), keyless(node("b"))], limits(), vec![("b", Some(RotateKey))]),
        ("not joined", vec![keyless(new("a"))], Limits { max_concurrent: 0, ..limits() }, vec![]),
        ("not Ready", vec![keyless(dead("a")), keyless(node("b"))], limits(), vec![("b", Some(RotateKey))]),
        ("leaves", vec![leaving(keyless(node("a")))], limits(), vec![("a", Some(Remove))]),
        ("leaves while it is at it", vec![leaving(at_it(node("a")))], limits(), vec![("a", Some(Remove))]),
        (
            "then the next one goes, though the first never ended it",
            vec![granted(leaving(at_it(dead("a"))), Remove), keyless(node("b"))],
            limits(),
            vec![("b", Some(RotateKey))],
        ),
        (
            "waits, and lets the next one go",
            vec![failed(60, granted(node("a"), RotateKey)), keyless(node("b"))],
            limits(),
            vec![("a", None)],
        ),
        ("then that one goes", vec![failed(60, node("a")), keyless(node("b"))], limits(), vec![("b", Some(RotateKey))]),
        (
            "who has failed goes last",
            vec![failed(-1, node("a")), keyless(node("b"))],
            limits(),
            vec![("b", Some(RotateKey))],
        ),
        ("and is tried again", vec![failed(-1, node("a"))], limits(), vec![("a", Some(RotateKey))]),
        ("after another failure it waits, too", vec![waiting(keyless(node("a")))], limits(), vec![]),
        ("a change goes first", vec![keyless(ready_to_go("a"))], limits(), vec![("a", Some(Update))]),
        ("sending, too", vec![keyless(old(node("a")))], limits(), vec![("a", Some(Stage))]),
        (
            "but not waiting for a turn",
            vec![begun(to(V2, Update, ready_to_go("a"))), keyless(to(V2, Stage, ready_to_go("b")))],
            limits(),
            vec![("b", Some(RotateKey))],
        ),
        ("nor a change that is under way", vec![keyless(begun(to(V2, Update, ready_to_go("a"))))], limits(), vec![]),
        (
            "a restart goes first",
            vec![Candidate { wants_reboot: true, ..keyless(node("a")) }],
            limits(),
            vec![("a", Some(Reboot))],
        ),
        (
            "a change replaces it, and the next one waits until that is seen",
            vec![granted(keyless(ready_to_go("a")), RotateKey), keyless(node("b"))],
            limits(),
            vec![("a", Some(Update))],
        ),
        (
            "a repair blocks no other host",
            vec![keyless(long_dead("a")), keyless(node("b")), node("c")],
            limits(),
            vec![("a", Some(Repair)), ("b", Some(RotateKey))],
        ),
    ]);
    let next = |candidate| decide(&[candidate], &limits(), NOW).next;
    assert_eq!(next(failed(60, node("a"))), at(60));
    assert_eq!(next(Candidate { wants_key: false, ..failed(60, node("a")) }), None);
    assert_eq!(decide(&[at_it(node("a"))], &limits(), NOW).disrupting, 0);
}
