//! Tests of `pull`.

use api::host::{Body, Cleanup, ConfigFile};
use base64::Engine;

use super::super::tests::{Bed, reason, request};
use super::*;
use crate::fake_images::id;
use crate::operation::run;

const A: &str = "r.example/a:1";
const B: &str = "r.example/b:1";

fn ask(bed: &Bed, images: &[&str], pull: Option<&str>) -> api::host::Answer {
    let images = images.iter().map(ToString::to_string).collect();
    let body = Pull { images, pull: pull.map(Into::into), limit_seconds: 60 };
    run(&bed.host, &request("pull-1", 1, Body::Pull(body)))
}

fn pinned(bed: &Bed) -> Vec<String> {
    bed.images_state().pinned.iter().cloned().collect()
}

#[test]
fn images_are_pulled_one_at_a_time_pinned_and_released() {
    let bed = Bed::new();
    assert_eq!(ask(&bed, &[A, B], None).missing_images, [A, B]);
    assert!(bed.images_state().pulls.is_empty(), "to look pulls nothing");
    assert_eq!(ask(&bed, &[A, B], Some(A)).missing_images, [B]);
    assert!(ask(&bed, &[A, B], Some(B)).missing_images.is_empty());
    assert!(ask(&bed, &[A, B], Some(B)).missing_images.is_empty());
    assert_eq!(bed.images_state().pulls.len(), 2, "what is there is not pulled again");
    let mut both = vec![id(A), id(B)];
    both.sort();
    assert_eq!(pinned(&bed), both);
    ask(&bed, &[B], None);
    assert_eq!(pinned(&bed), [id(B)]);
    ask(&bed, &[], None);
    assert!(pinned(&bed).is_empty());
    assert!(bed.images_state().records.contains_key(A), "to release an image does not delete it");
}

#[test]
fn an_earlier_pin_stays() {
    let bed = Bed::new();
    bed.images_state().records.insert(A.into(), id(A));
    bed.images_state().pinned.insert(id(A));
    ask(&bed, &[A], None);
    ask(&bed, &[], None);
    assert_eq!(pinned(&bed), [id(A)]);
}

#[test]
fn names_of_the_same_image_share_a_pin() {
    let bed = Bed::new();
    bed.images_state().records.extend([(A.to_string(), id(A)), (B.to_string(), id(A))]);
    ask(&bed, &[A, B], None);
    ask(&bed, &[B], None);
    assert_eq!(pinned(&bed), [id(A)]);
    // The name refers to another image now.
    bed.images_state().records.extend([(A.to_string(), id(A)), (B.to_string(), id(B))]);
    ask(&bed, &[B], None);
    assert_eq!(pinned(&bed), [id(B)]);
}

/// Whenever `pull` is interrupted, all pins are on record, and the same request completes it.
#[test]
fn every_pin_is_on_record_after_a_crash_anywhere() {
    for calls in 0.. {
        let bed = Bed::new();
        bed.images_state().records.insert(A.into(), id(A));
        bed.fail_after(Some(calls));
        let is_done = reason(&ask(&bed, &[A], None)) == "Done";
        bed.fail_after(None);
        let owned = Ownership::load(&bed.host).unwrap().unwrap_or_default();
        assert!(pinned(&bed).iter().all(|pin| owned.pinned.values().any(|its| its == pin)), "{calls}");
        ask(&bed, &[A], None);
        assert_eq!(pinned(&bed), [id(A)]);
        ask(&bed, &[], None);
        assert!(pinned(&bed).is_empty(), "{calls}");
        if is_done {
            assert!(calls > 10);
            return;
        }
    }
}

#[test]
fn failures_name_their_cause() {
    let bed = Bed::new();
    bed.images_state().refused.insert(A.into(), "manifest unknown".into());
    let answer = ask(&bed, &[A, B], Some(A));
    assert_eq!(reason(&answer), "PrePullFailed");
    assert!(format!("{:?}", answer.outcome).contains("manifest unknown"));
    bed.images_state().pull_time = Duration::from_millis(1);
    let body = Pull { images: vec![B.into()], pull: Some(B.into()), limit_seconds: 0 };
    assert_eq!(reason(&run(&bed.host, &request("pull-1", 1, Body::Pull(body)))), "PrePullFailed");
    bed.images_state().down = true;
    assert_eq!(reason(&ask(&bed, &[B], None)), "PrePullFailed");
}

#[test]
fn logins_of_kubelet_are_tried_until_one_is_accepted() {
    let bed = Bed::new();
    let auth = |user: &str| base64::engine::general_purpose::STANDARD.encode(format!("{user}:pw"));
    let config = serde_json::json!({"auths": {
        "r.example": {"auth": auth("all")}, "r.example/a": {"auth": auth("special")}, "other.example": {"auth": auth("other")},
    }});
    let config = ConfigFile { content: config.to_string(), ..ConfigFile::default() };
    files::write(&bed.host, path::REGISTRY_LOGINS, config.content.as_bytes(), files::Access::Protected).unwrap();
    bed.images_state().user = Some("all".into());
    assert!(ask(&bed, &[A], Some(A)).missing_images.is_empty());
    let users = |user: &str| (A.to_string(), Some(user.to_string()));
    assert_eq!(bed.images_state().pulls, [users("special"), users("all")]);
}

#[test]
fn a_cleanup_releases_all_and_needs_no_containerd() {
    for down in [false, true] {
        let bed = Bed::new();
        ask(&bed, &[A], Some(A));
        bed.images_state().down = down;
        let answer = run(&bed.host, &request("remove-1", 1, Body::Cleanup(Cleanup {})));
        assert_eq!(reason(&answer), "Done");
        assert_eq!(pinned(&bed).is_empty(), !down);
        assert_eq!(answer.warnings.iter().any(|w| w.contains("stay pinned")), down, "{:?}", answer.warnings);
    }
}
