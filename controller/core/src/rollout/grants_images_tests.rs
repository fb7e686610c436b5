//! Tests of grants for image pulls ahead of use.

use super::*;
use crate::node::maintenance::By;

#[test]
fn images_are_pulled_on_a_few_hosts_at_a_time() {
    use GrantType::{PullImages, Remove, Stage, Update};
    let bare = |candidate| Candidate { wants_images: true, ..candidate };
    let pulls = |candidate| Candidate { pulling: true, ..granted(bare(candidate), PullImages) };
    let failed = |s, candidate| Candidate { images_wait_until: at(s), ..bare(candidate) };
    let spent = Limits { max_unavailable: IntOrPercent::Int(0), others: Some(Share::default()), ..limits() };
    let one = Limits { max_pulling: 1, ..limits() };
    let quiet = |s: Candidate| Candidate {
        change: s.change.clone().map(|c| PendingChange { disruption: Disruption::None, ..c }),
        ..s
    };
    check! {
        "no more hosts pull than the limit": [bare(node("c")), bare(node("b")), bare(node("a"))] => "a PullImages, b PullImages",
        "a pull in progress counts": [pulls(node("b")), bare(node("a"))], &one => "",
        "a granted pull keeps its grant": [granted(bare(node("b")), PullImages), bare(node("a"))], &one => "",
        "a pause revokes the grant of a pull in progress": [pulls(node("b")), bare(node("a"))], &paused() => "b -",
        "a hold revokes the grant of a pull in progress": [held(pulls(node("b")))] => "b -",
        "maintenance replaces a pull in progress": [Candidate { maintenance: Some(By::Host), ..pulls(node("b")) }] => "b Maintenance",
        "an adopted node whose change is not accepted gets no grant": [bare(Candidate { withheld: true, ..old(node("a")) })] => "",
        "the grant is revoked after the pull": [granted(node("b"), PullImages)] => "b -",
        "a pause revokes the grant of a pull that has not begun": [bare(node("a")), granted(bare(node("b")), PullImages)], &paused() => "b -",
        "no window is needed": [bare(node("a"))], &closed() => "a PullImages",
        "no budget of unavailable nodes is needed": [dead("b"), bare(node("a"))], &spent => "a PullImages",
        "a host on hold gets no grant": [held(bare(node("a")))] => "",
        "a host that has not joined gets no grant": [bare(new("a"))], &Limits { max_concurrent: 0, ..limits() } => "",
        "a host whose node is not Ready gets no grant": [bare(dead("a"))] => "",
        "a removal replaces a pull in progress": [leaving(pulls(node("a")))] => "a Remove",
        "a leaving host counts while it pulls":
            [granted(leaving(pulls(node("a"))), Remove), bare(node("b"))], &one => "",
        "the slot of a failed pull goes to the next host":
            [failed(60, granted(node("a"), PullImages)), bare(node("b"))], &one => "a -, b PullImages",
        "a host whose pull failed comes last": [failed(-1, node("a")), bare(node("b"))], &one => "b PullImages",
        "a failed pull is retried": [failed(-1, node("a"))] => "a PullImages",
        "a pull comes before an update": [bare(ready_to_go("a"))] => "a PullImages",
        "a pull replaces a grant to stage on a host that has all files": [bare(to(V2, Stage, ready_to_go("a")))] => "a PullImages",
        "the copying of files comes first": [bare(old(node("a")))] => "a Stage",
        "a granted update is not revoked": [bare(to(V2, Update, ready_to_go("a")))] => "",
        "a change without disruption does not wait for a pull": [bare(quiet(ready_to_go("a")))] => "a Update",
        "an update does not wait after a failed pull": [failed(60, ready_to_go("a"))] => "a Update",
        "the update of another node does not wait": [bare(ready_to_go("a")), ready_to_go("b")] => "a PullImages, b Update",
        "a key rotation comes first": [Candidate { wants_key: true, ..bare(node("a")) }] => "a RotateKey",
    }
    let next = |s| decide(&[failed(s, node("a"))], &limits(), NOW).next;
    assert_eq!((next(60), next(-1)), (at(60), None));
}
