//! Tests of grants for key rotations.

use super::*;

#[test]
fn keys_are_rotated_on_one_host_at_a_time() {
    use GrantType::{Remove, RotateKey, Stage, Update};
    let keyless = |candidate| Candidate { wants_key: true, ..candidate };
    let rotates = |candidate| Candidate { rotating: true, ..granted(keyless(candidate), RotateKey) };
    let failed = |s, candidate| Candidate { key_waits_until: at(s), ..keyless(candidate) };
    let spent = Limits { max_unavailable: IntOrPercent::Int(0), others: Some(Share::default()), ..limits() };
    check! {
        "one of two hosts gets a grant": [keyless(node("b")), keyless(node("a"))] => "a RotateKey",
        "the other host waits for a granted rotation": [granted(keyless(node("b")), RotateKey), keyless(node("a"))] => "",
        "the other host waits for a rotation in progress": [rotates(node("b")), keyless(node("a"))] => "",
        "a rotation in progress continues in a paused pool": [rotates(node("b")), keyless(node("a"))], &paused() => "",
        "a rotation in progress continues on a host on hold": [rotates(held(node("b"))), keyless(node("a"))] => "",
        "the grant is revoked after the rotation": [granted(node("b"), RotateKey), keyless(node("a"))] => "b -",
        "a pause revokes a grant whose rotation has not begun": [keyless(node("a")), granted(keyless(node("b")), RotateKey)], &paused() => "b -",
        "no window is needed": [keyless(node("a"))], &closed() => "a RotateKey",
        "no budget is needed": [dead("b"), keyless(node("a"))], &spent => "a RotateKey",
        "a host on hold gets no grant": [held(keyless(node("a"))), keyless(node("b"))] => "b RotateKey",
        "a host that has not joined gets no grant": [keyless(new("a"))], &Limits { max_concurrent: 0, ..limits() } => "",
        "a host whose node is not Ready gets no grant": [keyless(dead("a")), keyless(node("b"))] => "b RotateKey",
        "a leaving host is removed": [leaving(keyless(node("a")))] => "a Remove",
        "a removal replaces a rotation in progress": [leaving(rotates(node("a")))] => "a Remove",
        "the next host gets its turn when a removal has replaced a rotation":
            [granted(leaving(rotates(dead("a"))), Remove), keyless(node("b"))] => "b RotateKey",
        "the grant of a host in backoff is revoked": [failed(60, granted(node("a"), RotateKey)), keyless(node("b"))] => "a -",
        "the next host gets its turn while the first is in backoff": [failed(60, node("a")), keyless(node("b"))] => "b RotateKey",
        "a host whose rotation failed comes last": [failed(-1, node("a")), keyless(node("b"))] => "b RotateKey",
        "a failed rotation is retried": [failed(-1, node("a"))] => "a RotateKey",
        "a host in backoff after another operation gets no grant": [waiting(keyless(node("a")))] => "",
        "an update comes first": [keyless(ready_to_go("a"))] => "a Update",
        "the copying of files comes first": [keyless(old(node("a")))] => "a Stage",
        "a node that has all files and waits for its turn gets a rotation":
            [begun(to(V2, Update, ready_to_go("a"))), keyless(to(V2, Stage, ready_to_go("b")))] => "b RotateKey",
        "a node with a begun update gets no rotation": [keyless(begun(to(V2, Update, ready_to_go("a"))))] => "",
        "a restart comes first": [Candidate { wants_reboot: true, ..keyless(node("a")) }] => "a Reboot",
        "an update replaces a granted rotation, and the next host waits for the next decision":
            [granted(keyless(ready_to_go("a")), RotateKey), keyless(node("b"))] => "a Update",
        "the repair of a node does not block the rotation on another host":
            [keyless(long_dead("a")), keyless(node("b")), node("c")] => "a Repair, b RotateKey",
    }
    let next = |candidate| decide(&[candidate], &limits(), NOW).next;
    assert_eq!(next(failed(60, node("a"))), at(60));
    assert_eq!(next(Candidate { wants_key: false, ..failed(60, node("a")) }), None);
    assert_eq!(decide(&[rotates(node("a"))], &limits(), NOW).disrupting, 0);
}
