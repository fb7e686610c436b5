//! Tests of which artifacts of Flux objects may be used.

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
fn an_artifact_is_used_if_it_is_there_and_verified_if_asked() {
    use SourceKind::{ExternalArtifact, GitRepository, OCIRepository};
    let there = json!({"url": "http://x", "revision": "main@sha1:a", "digest": "sha256:1", "size": 3});
    let verified = |status| [("SourceVerified", status, "no key of ours")];
    let (yes, no) = (verified("True"), verified("False"));
    let waits = [("Ready", "False", "no such branch")];
    for (about, kind, asked, in_use, object, expected) in [
        ("nothing asked", GitRepository, None, None, object(&there, &[], false), None),
        ("suspended", GitRepository, None, None, object(&there, &[], true), None),
        ("verified", OCIRepository, Some(true), None, object(&there, &yes, false), None),
        (
            "not verified",
            OCIRepository,
            Some(true),
            None,
            object(&there, &no, false),
            Some(("main@sha1:a of OCIRepository f/n is not used: Flux has not verified it: no key of ours", true)),
        ),
        (
            "something newer is not verified",
            GitRepository,
            Some(true),
            Some("sha256:1"),
            object(&there, &no, false),
            Some((
                "no revision newer than main@sha1:a of GitRepository f/n is used: Flux has not verified it: no",
                false,
            )),
        ),
        (
            "never verified",
            GitRepository,
            Some(true),
            Some("sha256:0"),
            object(&there, &[], false),
            Some(("set its spec.verify, or remove inventory.sourceRef.requireVerified", true)),
        ),
        (
            "no url",
            GitRepository,
            None,
            None,
            object(&json!({"revision": "a"}), &waits, false),
            Some(("GitRepository f/n has no artifact yet: no such branch", false)),
        ),
        (
            "nothing, and nothing will come",
            GitRepository,
            None,
            None,
            object(&Value::Null, &[], true),
            Some(("has no artifact yet: it is suspended", false)),
        ),
        ("nothing at all", ExternalArtifact, None, None, Object::default(), Some(("has no artifact yet", false))),
    ] {
        match (object.usable(&from(kind, asked), in_use), expected) {
            (Ok(artifact), None) => assert_eq!(artifact.url, "http://x", "{about}"),
            (Err((trouble, refused)), Some((says, names_it))) => {
                assert!(trouble.message.contains(says), "{about}: {}", trouble.message);
                assert_eq!(refused.is_some(), names_it, "{about}");
            }
            (other, _) => panic!("{about}: {other:?}"),
        }
    }
}

#[test]
fn a_source_that_is_not_ready_says_why() {
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
