//! Tests of the logins that hosts get from a pull secret.

use proptest::prelude::*;

use super::*;

fn parse(config: &Value) -> (PullSecret, Vec<String>) {
    PullSecret::parse(config.to_string().as_bytes(), "7").unwrap()
}

fn secret() -> PullSecret {
    let auth = |login: &str| json!({"auth": STANDARD.encode(login), "email": "a@example.com"});
    let config = json!({"auths": {
        "quay.io": auth("robot:q"),
        "quay.io/org": auth("robot:org"),
        "mirror.example.com:5000": {"username": "u", "password": "p:p"},
        "https://index.docker.io/v1/": auth("hub:h"),
        "cloud.openshift.com": auth("cluster:token"),
    }});
    let (secret, unusable) = parse(&config);
    assert_eq!(unusable, [""; 0]);
    secret
}

/// Returns what hosts get if their pool names these registries.
fn named(registries: &[&str]) -> PullSecret {
    let registries: Vec<_> = registries.iter().map(ToString::to_string).collect();
    secret().of_hosts(Some(&registries))
}

#[test]
fn kubelet_gets_only_logins_of_registries() {
    let file = secret().file().unwrap();
    let keys: Vec<&String> = file["auths"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["https://index.docker.io/v1/", "mirror.example.com:5000", "quay.io", "quay.io/org"]);
    let entry = &file["auths"]["mirror.example.com:5000"];
    assert_eq!(entry, &json!({"auth": STANDARD.encode("u:p:p")}));
    assert_eq!(file["auths"]["quay.io"].as_object().unwrap().len(), 1, "only the login");
    assert_eq!(PullSecret::default().file(), None);
    assert_eq!(parse(&json!({"auths": {"cloud.openshift.com": {"auth": "YTpi"}}})).0.file(), None);
}

#[test]
fn the_login_with_the_longest_path_is_used() {
    let secret = secret();
    for (registry, path, expected) in [
        ("quay.io", "", Some("robot:q")),
        ("quay.io", "other", Some("robot:q")),
        ("quay.io", "organ", Some("robot:q")),
        ("quay.io", "org", Some("robot:org")),
        ("quay.io", "org/deep", Some("robot:org")),
        ("mirror.example.com:5000", "x", Some("u:p:p")),
        ("mirror.example.com", "x", None),
        ("registry-1.docker.io", "", Some("hub:h")),
        ("cloud.openshift.com", "", None),
    ] {
        let expected = expected.map(|login| STANDARD.encode(login));
        assert_eq!(secret.of(registry, path), expected.as_deref(), "{registry} {path}");
    }
}

#[test]
fn wildcards_match_as_in_kubelet() {
    let auth = |login: &str| json!({"auth": STANDARD.encode(login)});
    let (secret, _) = parse(&json!({"auths": {
        "*.example.com": auth("all:a"),
        "*.example.com/org": auth("org:o"),
        "exact.example.com": auth("exact:e"),
        "*.example.com:5000": auth("port:p"),
    }}));
    for (registry, path, expected) in [
        ("mirror.example.com", "", Some("all:a")),
        ("mirror.example.com", "org/app", Some("org:o")),
        ("exact.example.com", "app", Some("exact:e")),
        ("exact.example.com", "org", Some("exact:e")),
        ("mirror.example.com:5000", "org", Some("port:p")),
        ("mirror.example.com:5001", "", None),
        ("a.mirror.example.com", "", None),
        ("example.com", "", None),
    ] {
        let expected = expected.map(|login| STANDARD.encode(login));
        assert_eq!(secret.of(registry, path), expected.as_deref(), "{registry} {path}");
    }
}

#[test]
fn a_pool_restricts_the_logins_of_its_hosts() {
    assert_eq!(secret().of_hosts(None), secret());
    for (registries, expected) in [
        (&["quay.io"][..], 2),
        (&["quay.io/org"], 1),
        (&["mirror.example.com:5000", "index.docker.io"], 2),
        (&["docker.io"], 1),
        (&["quay.io/organ"], 0),
        (&["mirror.example.com"], 0),
        (&[], 0),
    ] {
        assert_eq!(named(registries).entries.len(), expected, "{registries:?}");
    }
}

/// Covers hosts that get no login: their version stays the same, whatever happens to the Secret.
#[test]
fn without_logins_there_is_no_revision() {
    let (empty, _) = parse(&json!({"auths": {"quay.io": {}}}));
    assert_eq!(empty, PullSecret::default());
    assert_eq!(named(&[]), PullSecret::default());
    assert_eq!(named(&["quay.io"]).revision(), "7");
}

#[test]
fn an_invalid_login_is_named_and_the_others_are_used() {
    let (secret, unusable) = parse(&json!({"auths": {
        "good.example.com": {"auth": "YTpi"},
        "empty.example.com": {},
        "junk.example.com": {"auth": "%%%"},
        "name.example.com": {"auth": STANDARD.encode("no colon")},
        "text.example.com": "hunter2",
        "lines.example.com": {"username": "a\nb", "password": "c"},
        "evil.example.com\"\n": {"auth": "YTpi"},
        "": {"auth": "YTpi"},
    }}));
    assert_eq!(secret.entries.keys().collect::<Vec<_>>(), ["good.example.com"]);
    assert_eq!(unusable.len(), 7, "{unusable:?}");
    assert!(unusable.iter().all(|name| !name.contains(['\n', ' ']) && !name.contains("hunter2")), "{unusable:?}");
    for bad in ["", "[]", "{}", r#"{"auths": []}"#, "hunter2"] {
        let error = PullSecret::parse(bad.as_bytes(), "7").unwrap_err();
        assert!(!error.to_string().contains("hunter2"));
    }
}

#[test]
fn neither_debug_output_nor_the_redacted_form_has_a_password() {
    let secret = secret();
    let logins: Vec<String> = secret.entries.values().cloned().collect();
    let redacted = secret.redacted().file().unwrap().to_string();
    for text in [format!("{secret:?}"), redacted.clone()] {
        assert!(logins.iter().all(|login| !text.contains(login)), "{text}");
    }
    let later = PullSecret { revision: "8".into(), ..secret };
    assert_ne!(later.redacted().file().unwrap().to_string(), redacted, "another revision of the Secret");
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,80}", key in "\\PC{0,30}", auth in "\\PC{0,30}") {
        let _ = PullSecret::parse(text.as_bytes(), "1");
        let (secret, _) = parse(&json!({"auths": {key.clone(): {"auth": auth}}}));
        secret.of(&key, &key);
        secret.file();
    }
}
