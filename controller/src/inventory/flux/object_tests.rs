//! Tests of the decision whether the artifact of a Flux object may be used.

use serde_json::json;

use super::*;

fn object(artifact: &Value, conditions: &[(&str, &str, &str)], suspend: bool) -> Object {
    let conditions: Vec<Value> =
        conditions.iter().map(|(t, s, m)| json!({"type": t, "status": s, "message": m})).collect();
    let status = json!({"artifact": artifact, "conditions": conditions});
    let spec = if suspend { json!({"suspend": true, "url": "https://x"}) } else { Value::Null };
    Object::read(&json!({"spec": spec, "status": status}))
}

fn from(kind: SourceKind, require_verified: Option<bool>) -> SourceRef {
    SourceRef { kind, name: "n".into(), namespace: "f".into(), require_verified, path: None }
}

#[test]
fn an_artifact_is_used_if_it_exists_and_has_the_required_verification() {
    use SourceKind::{ExternalArtifact, GitRepository, OCIRepository};
    let there = json!({"url": "http://x", "revision": "main@sha1:a", "digest": "sha256:1", "size": 3});
    let verified = |status| [("SourceVerified", status, "no key of ours")];
    let (yes, no) = (verified("True"), verified("False"));
    let waits = [("Ready", "False", "no such branch")];
    for (from, in_use, object, expected) in [
        (from(GitRepository, None), None, object(&there, &[], false), None),
        (from(GitRepository, None), None, object(&there, &[], true), None),
        (from(OCIRepository, Some(true)), None, object(&there, &yes, false), None),
        (
            from(OCIRepository, Some(true)),
            None,
            object(&there, &no, false),
            Some(("main@sha1:a of OCIRepository f/n is not used: Flux has not verified it: no key of ours", true)),
        ),
        (
            from(GitRepository, Some(true)),
            Some("sha256:1"),
            object(&there, &no, false),
            Some(("no revision newer than main@sha1:a of GitRepository f/n is used: Flux has not verified", false)),
        ),
        (
            from(GitRepository, Some(true)),
            Some("sha256:0"),
            object(&there, &[], false),
            Some(("set spec.verify of the object, or remove inventory.sourceRef.requireVerified", true)),
        ),
        (
            from(GitRepository, None),
            None,
            object(&json!({"revision": "a"}), &waits, false),
            Some(("GitRepository f/n has no artifact yet: no such branch", false)),
        ),
        (
            from(GitRepository, None),
            None,
            object(&Value::Null, &[], true),
            Some(("has no artifact yet: it is suspended", false)),
        ),
        (from(ExternalArtifact, None), None, Object::default(), Some(("has no artifact yet", false))),
    ] {
        match (object.usable(&from, in_use), expected) {
            (Ok(artifact), None) => assert_eq!(artifact.url, "http://x", "{object:?}"),
            (Err((trouble, refused)), Some((says, names_it))) => {
                assert!(trouble.message.contains(says), "{object:?}: {}", trouble.message);
                assert_eq!(refused.is_some(), names_it, "{object:?}");
            }
            (other, _) => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_source_that_is_not_ready_is_reported_with_the_cause() {
    let says = |status, suspend| {
        let object = object(&Value::Null, &[("Ready", status, "cannot clone")], suspend);
        object.unready(&from(SourceKind::OCIRepository, None)).map(|t| (t.message, t.stalls))
    };
    let (message, stalls) = says("False", false).unwrap();
    assert!(message.contains("OCIRepository f/n is not Ready") && message.ends_with("cannot clone"), "{message}");
    assert!(!stalls);
    // Flux reports Unknown during a fetch.
    for (status, suspend) in [("True", false), ("Unknown", false), ("False", true)] {
        assert_eq!(says(status, suspend), None, "{status} {suspend}");
    }
}
