//! Tests of which hosts pull images ahead.

use super::*;

#[test]
fn images_on_a_few_hosts_at_a_time() {
    use GrantType::{Maintenance, PullImages, Remove, RotateKey, Stage, Update};
    let bare = |candidate| Candidate { wants_images: true, ..candidate };
    let at_it = |candidate| Candidate { pulling: true, ..granted(bare(candidate), PullImages) };
    let failed = |s, candidate| Candidate { images_wait_until: at(s), ..bare(candidate) };
    let paused = Limits { paused: true, ..limits() };
    let closed = Limits { open: false, ..limits() };
    let spent = Limits { max_unavailable: IntOrPercent::Int(0), others: Some(Share::default()), ..limits() };
    let one = Limits { max_pulling: 1, ..limits() };
    let quiet = |s: Candidate| Candidate {
        change: s.change.clone().map(|c| PendingChange { disruption: Disruption::None, ..c }),
        ..s
    };
    check(vec![
        (
            "so many",
            vec![bare(node("c")), bare(node("b")), bare(node("a"))],
            limits(),
            vec![("a", Some(PullImages)), ("b", Some(PullImages))],
        ),
        ("one is at it", vec![at_it(node("b")), bare(node("a"))], one.clone(), vec![]),
        (
            "who has the grant keeps it",
            vec![granted(bare(node("b")), PullImages), bare(node("a"))],
            one.clone(),
            vec![],
        ),
        ("a pause ends it", vec![at_it(node("b")), bare(node("a"))], paused.clone(), vec![("b", None)]),
        ("so does a hold", vec![held(at_it(node("b")))], limits(), vec![("b", None)]),
        (
            "and a maintenance",
            vec![Candidate { maintenance: Some(By::Host), ..at_it(node("b")) }],
            limits(),
            vec![("b", Some(Maintenance))],
        ),
        ("what WMCO made stays", vec![bare(Candidate { withheld: true, ..old(node("a")) })], limits(), vec![]),
        ("it is over", vec![granted(node("b"), PullImages)], limits(), vec![("b", None)]),
        ("paused", vec![bare(node("a")), granted(bare(node("b")), PullImages)], paused, vec![("b", None)]),
        ("no window is needed", vec![bare(node("a"))], closed, vec![("a", Some(PullImages))]),
        ("and no budget", vec![dead("b"), bare(node("a"))], spent, vec![("a", Some(PullImages))]),
        ("held", vec![held(bare(node("a")))], limits(), vec![]),
        ("not joined", vec![bare(new("a"))], Limits { max_concurrent: 0, ..limits() }, vec![]),
        ("not Ready", vec![bare(dead("a"))], limits(), vec![]),
        ("leaves while it is at it", vec![leaving(at_it(node("a")))], limits(), vec![("a", Some(Remove))]),
        (
            "one that leaves counts as long as it pulls",
            vec![granted(leaving(at_it(node("a"))), Remove), bare(node("b"))],
            one.clone(),
            vec![],
        ),
        (
            "a failure lets the next one go",
            vec![failed(60, granted(node("a"), PullImages)), bare(node("b"))],
            one.clone(),
            vec![("a", None), ("b", Some(PullImages))],
        ),
        ("who has failed goes last", vec![failed(-1, node("a")), bare(node("b"))], one, vec![("b", Some(PullImages))]),
        ("and is tried again", vec![failed(-1, node("a"))], limits(), vec![("a", Some(PullImages))]),
        ("before a change", vec![bare(ready_to_go("a"))], limits(), vec![("a", Some(PullImages))]),
        (
            "also if it waits with all that the change needs",
            vec![bare(to(V2, Stage, ready_to_go("a")))],
            limits(),
            vec![("a", Some(PullImages))],
        ),
        ("sending goes first", vec![bare(old(node("a")))], limits(), vec![("a", Some(Stage))]),
        ("a granted change is not taken back", vec![bare(to(V2, Update, ready_to_go("a")))], limits(), vec![]),
        ("a change without disruption does not wait", vec![bare(quiet(ready_to_go("a")))], limits(), {
            vec![("a", Some(Update))]
        }),
        ("nor one after a failed pull", vec![failed(60, ready_to_go("a"))], limits(), vec![("a", Some(Update))]),
        (
            "the change of another goes on",
            vec![bare(ready_to_go("a")), ready_to_go("b")],
            limits(),
            vec![("a", Some(PullImages)), ("b", Some(Update))],
        ),
        (
            "another key goes first",
            vec![Candidate { wants_key: true, ..bare(node("a")) }],
            limits(),
            vec![("a", Some(RotateKey))],
        ),
    ]);
    let next = |s| decide(&[failed(s, node("a"))], &limits(), NOW).next;
    assert_eq!((next(60), next(-1)), (at(60), None));
}
