//! Tests of grants for image pulls ahead of use.

use super::*;
use crate::node::maintenance::By;

#[test]
fn images_on_a_few_hosts_at_a_time() {
    use GrantType::{PullImages, Remove, Stage, Update};
    let bare = |candidate| Candidate { wants_images: true, ..candidate };
    let at_it = |candidate| Candidate { pulling: true, ..granted(bare(candidate), PullImages) };
    let failed = |s, candidate| Candidate { images_wait_until: at(s), ..bare(candidate) };
    let spent = Limits { max_unavailable: IntOrPercent::Int(0), others: Some(Share::default()), ..limits() };
    let one = Limits { max_pulling: 1, ..limits() };
    let quiet = |s: Candidate| Candidate {
        change: s.change.clone().map(|c| PendingChange { disruption: Disruption::None, ..c }),
        ..s
    };
    check! {
        "so many": [bare(node("c")), bare(node("b")), bare(node("a"))] => "a PullImages, b PullImages",
        "one is at it": [at_it(node("b")), bare(node("a"))], &one => "",
        "who has the grant keeps it": [granted(bare(node("b")), PullImages), bare(node("a"))], &one => "",
        "a pause ends it": [at_it(node("b")), bare(node("a"))], &paused() => "b -",
        "so does a hold": [held(at_it(node("b")))] => "b -",
        "and a maintenance": [Candidate { maintenance: Some(By::Host), ..at_it(node("b")) }] => "b Maintenance",
        "what WMCO made stays": [bare(Candidate { withheld: true, ..old(node("a")) })] => "",
        "it is over": [granted(node("b"), PullImages)] => "b -",
        "paused": [bare(node("a")), granted(bare(node("b")), PullImages)], &paused() => "b -",
        "no window is needed": [bare(node("a"))], &closed() => "a PullImages",
        "and no budget": [dead("b"), bare(node("a"))], &spent => "a PullImages",
        "held": [held(bare(node("a")))] => "",
        "not joined": [bare(new("a"))], &Limits { max_concurrent: 0, ..limits() } => "",
        "not Ready": [bare(dead("a"))] => "",
        "leaves while it is at it": [leaving(at_it(node("a")))] => "a Remove",
        "one that leaves counts as long as it pulls":
            [granted(leaving(at_it(node("a"))), Remove), bare(node("b"))], &one => "",
        "a failure lets the next one go":
            [failed(60, granted(node("a"), PullImages)), bare(node("b"))], &one => "a -, b PullImages",
        "who has failed goes last": [failed(-1, node("a")), bare(node("b"))], &one => "b PullImages",
        "and is tried again": [failed(-1, node("a"))] => "a PullImages",
        "before a change": [bare(ready_to_go("a"))] => "a PullImages",
        "also if it waits with all that the change needs": [bare(to(V2, Stage, ready_to_go("a")))] => "a PullImages",
        "sending goes first": [bare(old(node("a")))] => "a Stage",
        "a granted change is not taken back": [bare(to(V2, Update, ready_to_go("a")))] => "",
        "a change without disruption does not wait": [bare(quiet(ready_to_go("a")))] => "a Update",
        "nor one after a failed pull": [failed(60, ready_to_go("a"))] => "a Update",
        "the change of another goes on": [bare(ready_to_go("a")), ready_to_go("b")] => "a PullImages, b Update",
        "another key goes first": [Candidate { wants_key: true, ..bare(node("a")) }] => "a RotateKey",
    }
    let next = |s| decide(&[failed(s, node("a"))], &limits(), NOW).next;
    assert_eq!((next(60), next(-1)), (at(60), None));
}
