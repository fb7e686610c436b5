//! Tests of `pull`.

use api::host::{Body, Cleanup, ConfigFile};
use base64::Engine;

use super::super::tests::{TestHost, reason, request};
use super::*;
use crate::fake_images::id;
use crate::operation::run;

const A: &str = "r.example/a:1";
const B: &str = "r.example/b:1";

fn ask(test_host: &TestHost, images: &[&str], pull: Option<&str>) -> api::host::Answer {
    let images = images.iter().map(ToString::to_string).collect();
    let body = Pull { images, pull: pull.map(Into::into), limit_seconds: 60 };
    run(&test_host.host, &request("pull-1", 1, Body::Pull(body)))
}

fn pinned(test_host: &TestHost) -> Vec<String> {
    test_host.images_state().pinned.iter().cloned().collect()
}

#[test]
fn images_are_pulled_one_at_a_time_pinned_and_released() {
    let test_host = TestHost::new();
    assert_eq!(ask(&test_host, &[A, B], None).missing_images, [A, B]);
    assert!(test_host.images_state().pulls.is_empty(), "a query pulls nothing");
    assert_eq!(ask(&test_host, &[A, B], Some(A)).missing_images, [B]);
    assert!(ask(&test_host, &[A, B], Some(B)).missing_images.is_empty());
    assert!(ask(&test_host, &[A, B], Some(B)).missing_images.is_empty());
    assert_eq!(test_host.images_state().pulls.len(), 2, "existing images are not pulled again");
    let mut both = vec![id(A), id(B)];
    both.sort();
    assert_eq!(pinned(&test_host), both);
    ask(&test_host, &[B], None);
    assert_eq!(pinned(&test_host), [id(B)]);
    ask(&test_host, &[], None);
    assert!(pinned(&test_host).is_empty());
    assert!(test_host.images_state().records.contains_key(A), "an image that is unpinned is not deleted");
}

#[test]
fn an_earlier_pin_stays() {
    let test_host = TestHost::new();
    test_host.images_state().records.insert(A.into(), id(A));
    test_host.images_state().pinned.insert(id(A));
    ask(&test_host, &[A], None);
    ask(&test_host, &[], None);
    assert_eq!(pinned(&test_host), [id(A)]);
}

#[test]
fn names_of_the_same_image_share_a_pin() {
    let test_host = TestHost::new();
    test_host.images_state().records.extend([(A.to_string(), id(A)), (B.to_string(), id(A))]);
    ask(&test_host, &[A, B], None);
    ask(&test_host, &[B], None);
    assert_eq!(pinned(&test_host), [id(A)]);
    // The name refers to another image now.
    test_host.images_state().records.extend([(A.to_string(), id(A)), (B.to_string(), id(B))]);
    ask(&test_host, &[B], None);
    assert_eq!(pinned(&test_host), [id(B)]);
}

/// An interrupted `pull` has all its pins on record, and the same request completes it.
#[test]
fn every_pin_is_on_record_after_a_crash_anywhere() {
    for calls in 0.. {
        let test_host = TestHost::new();
        test_host.images_state().records.insert(A.into(), id(A));
        test_host.fail_after(Some(calls));
        let is_done = reason(&ask(&test_host, &[A], None)) == "Done";
        test_host.fail_after(None);
        let owned = Ownership::load(&test_host.host).unwrap().unwrap_or_default();
        assert!(pinned(&test_host).iter().all(|pin| owned.pinned.values().any(|its| its == pin)), "{calls}");
        ask(&test_host, &[A], None);
        assert_eq!(pinned(&test_host), [id(A)]);
        ask(&test_host, &[], None);
        assert!(pinned(&test_host).is_empty(), "{calls}");
        if is_done {
            assert!(calls > 10);
            return;
        }
    }
}

#[test]
fn failures_name_their_cause() {
    let test_host = TestHost::new();
    test_host.images_state().refused.insert(A.into(), "manifest unknown".into());
    let answer = ask(&test_host, &[A, B], Some(A));
    assert_eq!(reason(&answer), "PrePullFailed");
    assert!(format!("{:?}", answer.outcome).contains("manifest unknown"));
    test_host.images_state().pull_time = Duration::from_millis(1);
    let body = Pull { images: vec![B.into()], pull: Some(B.into()), limit_seconds: 0 };
    assert_eq!(reason(&run(&test_host.host, &request("pull-1", 1, Body::Pull(body)))), "PrePullFailed");
    test_host.images_state().down = true;
    assert_eq!(reason(&ask(&test_host, &[B], None)), "PrePullFailed");
}

#[test]
fn logins_of_kubelet_are_tried_until_one_is_accepted() {
    let test_host = TestHost::new();
    let auth = |user: &str| base64::engine::general_purpose::STANDARD.encode(format!("{user}:pw"));
    let config = serde_json::json!({"auths": {
        "r.example": {"auth": auth("all")}, "r.example/a": {"auth": auth("special")}, "other.example": {"auth": auth("other")},
    }});
    let config = ConfigFile { content: config.to_string(), ..ConfigFile::default() };
    files::write(&test_host.host, path::REGISTRY_LOGINS, config.content.as_bytes(), files::Access::Protected).unwrap();
    test_host.images_state().user = Some("all".into());
    assert!(ask(&test_host, &[A], Some(A)).missing_images.is_empty());
    let users = |user: &str| (A.to_string(), Some(user.to_string()));
    assert_eq!(test_host.images_state().pulls, [users("special"), users("all")]);
}

#[test]
fn a_cleanup_releases_all_and_needs_no_containerd() {
    for down in [false, true] {
        let test_host = TestHost::new();
        ask(&test_host, &[A], Some(A));
        test_host.images_state().down = down;
        let answer = run(&test_host.host, &request("remove-1", 1, Body::Cleanup(Cleanup {})));
        assert_eq!(reason(&answer), "Done");
        assert_eq!(pinned(&test_host).is_empty(), !down);
        assert_eq!(answer.warnings.iter().any(|w| w.contains("stay pinned")), down, "{:?}", answer.warnings);
    }
}
