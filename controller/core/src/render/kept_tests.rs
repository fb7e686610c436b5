//! Tests of facts that keep their earlier value.

use proptest::prelude::*;

use super::*;
use crate::render::fixtures;

fn certificate(name: &str) -> (String, String) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

fn logins(config: &str) -> PullSecret {
    PullSecret::parse(config.as_bytes(), "7").unwrap().0
}

fn rule(origin: &str) -> MirrorRule {
    MirrorRule {
        origin: origin.into(),
        source: "quay.io".into(),
        mirrors: vec!["m".into()],
        tags: true,
        never_source: true,
    }
}

/// Returns a cluster with a value for each fact.
fn full() -> Cluster {
    let (certificate, key) = certificate("exporter");
    Cluster {
        kubernetes_minor: Some(34),
        proxy: Proxy { https: Some("http://proxy:3128".into()), no: Some(".svc".into()), ..Proxy::default() },
        trusted_ca: Some(self::certificate("registry").0),
        mirrors: vec![rule("ConfigMap/image-mirrors"), rule("ImageDigestMirrorSet/x")],
        pull_secret: logins(r#"{"auths": {"quay.io": {"username": "robot", "password": "hunter2"}}}"#),
        exporter_tls: Some(TlsPair { certificate, key }),
        ..fixtures::cluster()
    }
}

fn all() -> Vec<Fact> {
    let mirrors = Fact::Mirrors("ConfigMap/image-mirrors".into());
    vec![Fact::Proxy, Fact::TrustedCa, mirrors, Fact::PullSecret, Fact::ExporterTls]
}

/// Returns the facts as they are read while one of them is unusable.
fn without(full: &Cluster, fact: &Fact, is_missing: bool) -> Found {
    let mut cluster = full.clone();
    match fact {
        Fact::Proxy => cluster.proxy = Proxy::default(),
        Fact::TrustedCa => cluster.trusted_ca = None,
        Fact::Mirrors(origin) => cluster.mirrors.retain(|rule| rule.origin != *origin),
        Fact::PullSecret => cluster.pull_secret = PullSecret::default(),
        Fact::ExporterTls => cluster.exporter_tls = None,
    }
    let problem = "the object x is broken".to_owned();
    Found { cluster, unusable: vec![Unusable { fact: fact.clone(), problem, is_missing }] }
}

#[test]
fn an_unusable_fact_keeps_its_earlier_value_even_after_a_restart() {
    let full = full();
    let kept = Kept::of(&full);
    let stored = Kept::parse(kept.to_json().as_bytes()).unwrap();
    assert_eq!(stored, kept);
    for fact in all() {
        for is_missing in [true, false] {
            for before in [&kept, &stored] {
                let found = without(&full, &fact, is_missing);
                assert_ne!(Kept::of(&found.cluster), kept, "{fact:?}");
                let now = settled(Some(before), found);
                assert_eq!(Kept::of(&now), kept, "{fact:?}");
                assert_eq!(now.held, ["the object x is broken; until then hosts keep what was in force before"]);
            }
        }
    }
}

#[test]
fn without_an_earlier_value_hosts_get_none_and_only_an_existing_object_is_reported() {
    let full = full();
    for fact in all() {
        for before in [None, Some(Kept::default())] {
            let now = settled(before.as_ref(), without(&full, &fact, false));
            assert_eq!(Kept::of(&now), Kept::of(&without(&full, &fact, false).cluster), "{fact:?}");
            assert!(now.held[0].contains("hosts get none"), "{fact:?}: {:?}", now.held);
            assert_eq!(settled(before.as_ref(), without(&full, &fact, true)).held, [""; 0], "{fact:?}");
        }
    }
    // The usable certificates are used.
    let (registry, _) = certificate("registry");
    let mut found = without(&full, &Fact::TrustedCa, false);
    found.cluster.trusted_ca = Some(registry.clone());
    assert_eq!(settled(None, found).trusted_ca, Some(registry));
}

#[test]
fn usable_facts_replace_earlier_values_and_removed_facts_end_them() {
    let other = Cluster { trusted_ca: Some(certificate("other").0), ..full() };
    for found in [other, fixtures::cluster()] {
        assert_eq!(settled(Some(&Kept::of(&full())), found.clone().into()), found);
    }
}

#[test]
fn nodes_follow_a_version_that_the_whole_control_plane_has() {
    // Version before, version found, upgrade in progress, silent API server, version to follow, version that waits.
    for (before, found, is_upgrading, is_silent, follows, waits) in [
        (None, Some(36), false, false, Some(36), None),
        (None, Some(36), true, true, Some(36), None),
        (Some(34), Some(36), false, false, Some(36), None),
        (Some(34), Some(36), true, false, Some(34), Some(36)),
        (Some(34), Some(36), false, true, Some(34), Some(36)),
        (Some(34), Some(36), true, true, Some(34), Some(36)),
        (Some(34), Some(34), false, true, Some(34), None),
        (Some(36), Some(34), false, true, Some(34), None),
        (Some(36), Some(34), false, false, Some(34), None),
        (Some(34), None, true, false, Some(34), None),
        (Some(34), None, false, true, None, None),
    ] {
        let silent: Vec<String> = is_silent.then(|| "10.0.0.3:6443".into()).into_iter().collect();
        let cluster = Cluster {
            kubernetes_minor: found,
            is_upgrading,
            silent_api_servers: silent.clone(),
            ..fixtures::cluster()
        };
        let kept = Kept { kubernetes_minor: before, ..Kept::default() };
        let about = format!("{before:?} {found:?} {is_upgrading} {is_silent}");
        let now = settled(Some(&kept), cluster.into());
        assert_eq!((now.kubernetes_minor, now.next_minor), (follows, waits), "{about}");
        assert_eq!(now.silent_api_servers, if waits.is_some() { silent } else { Vec::new() }, "{about}");
    }
}

#[test]
fn stored_values_that_cannot_have_been_in_force_are_left_out() {
    for junk in ["", "{", "7", r#"{"mirrors": 1}"#, r#"{"kubernetesMinor": "hunter2"}"#] {
        let error = Kept::parse(junk.as_bytes()).unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
    let wrong = serde_json::json!({
        "httpProxy": "http://user:hunter2@proxy", "trustedCa": "-----BEGIN CERTIFICATE-----\njunk",
        "logins": {"auths": {"quay.io": {"auth": "junk"}}}, "exporterCertificate": "x", "exporterKey": "y", "more": 1,
    });
    assert_eq!(Kept::parse(wrong.to_string().as_bytes()).unwrap().pull_secret.file(), None);
    let kept = Kept { pull_secret: PullSecret::default(), ..Kept::parse(wrong.to_string().as_bytes()).unwrap() };
    assert_eq!(kept, Kept::default());
    assert_eq!(Kept::parse(b"{}").unwrap(), Kept::default());
    assert!(!format!("{:?}", Kept::of(&full())).contains("hunter2"));
}

proptest! {
    #[test]
    fn facts_that_are_read_are_stored_and_read_again_unchanged(text in r#"\{("httpProxy"|"trustedCa"|"noProxy"|"loginsRevision"): ".{0,40}"\}|.{0,80}"#) {
        if let Ok(kept) = Kept::parse(text.as_bytes()) {
            prop_assert_eq!(Kept::parse(kept.to_json().as_bytes()).unwrap().to_json(), kept.to_json());
            prop_assert!(check::proxy(&kept.proxy).is_ok());
        }
    }
}
