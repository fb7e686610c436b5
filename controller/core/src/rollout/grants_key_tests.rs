//! Tests of grants for key rotations.

use super::*;

#[test]
fn keys_one_host_at_a_time() {
    use GrantType::{Remove, RotateKey, Stage, Update};
    let keyless = |candidate| Candidate { wants_key: true, ..candidate };
    let at_it = |candidate| Candidate { rotating: true, ..granted(keyless(candidate), RotateKey) };
    let failed = |s, candidate| Candidate { key_waits_until: at(s), ..keyless(candidate) };
    let spent = Limits { max_unavailable: IntOrPercent::Int(0), others: Some(Share::default()), ..limits() };
    check! {
        "one": [keyless(node("b")), keyless(node("a"))] => "a RotateKey",
        "the others wait": [granted(keyless(node("b")), RotateKey), keyless(node("a"))] => "",
        "also for one that is at it": [at_it(node("b")), keyless(node("a"))] => "",
        "it goes on when paused": [at_it(node("b")), keyless(node("a"))], &paused() => "",
        "and when held": [at_it(held(node("b"))), keyless(node("a"))] => "",
        "it is over": [granted(node("b"), RotateKey), keyless(node("a"))] => "b -",
        "paused": [keyless(node("a")), granted(keyless(node("b")), RotateKey)], &paused() => "b -",
        "no window is asked": [keyless(node("a"))], &closed() => "a RotateKey",
        "and no budget": [dead("b"), keyless(node("a"))], &spent => "a RotateKey",
        "held": [held(keyless(node("a"))), keyless(node("b"))] => "b RotateKey",
        "not joined": [keyless(new("a"))], &Limits { max_concurrent: 0, ..limits() } => "",
        "not Ready": [keyless(dead("a")), keyless(node("b"))] => "b RotateKey",
        "leaves": [leaving(keyless(node("a")))] => "a Remove",
        "leaves while it is at it": [leaving(at_it(node("a")))] => "a Remove",
        "then the next one goes, though the first never ended it":
            [granted(leaving(at_it(dead("a"))), Remove), keyless(node("b"))] => "b RotateKey",
        "waits, and lets the next one go": [failed(60, granted(node("a"), RotateKey)), keyless(node("b"))] => "a -",
        "then that one goes": [failed(60, node("a")), keyless(node("b"))] => "b RotateKey",
        "who has failed goes last": [failed(-1, node("a")), keyless(node("b"))] => "b RotateKey",
        "and is tried again": [failed(-1, node("a"))] => "a RotateKey",
        "after another failure it waits, too": [waiting(keyless(node("a")))] => "",
        "a change goes first": [keyless(ready_to_go("a"))] => "a Update",
        "sending, too": [keyless(old(node("a")))] => "a Stage",
        "but not waiting for a turn":
            [begun(to(V2, Update, ready_to_go("a"))), keyless(to(V2, Stage, ready_to_go("b")))] => "b RotateKey",
        "nor a change that is under way": [keyless(begun(to(V2, Update, ready_to_go("a"))))] => "",
        "a restart goes first": [Candidate { wants_reboot: true, ..keyless(node("a")) }] => "a Reboot",
        "a change replaces it, and the next one waits until that is seen":
            [granted(keyless(ready_to_go("a")), RotateKey), keyless(node("b"))] => "a Update",
        "a repair blocks no other host":
            [keyless(long_dead("a")), keyless(node("b")), node("c")] => "a Repair, b RotateKey",
    }
    let next = |candidate| decide(&[candidate], &limits(), NOW).next;
    assert_eq!(next(failed(60, node("a"))), at(60));
    assert_eq!(next(Candidate { wants_key: false, ..failed(60, node("a")) }), None);
    assert_eq!(decide(&[at_it(node("a"))], &limits(), NOW).disrupting, 0);
}
