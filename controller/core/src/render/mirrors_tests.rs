//! Tests of registry mirrors in `hosts.toml`.

use proptest::prelude::*;

use super::*;

fn rule(source: &str, mirrors: &[&str]) -> MirrorRule {
    MirrorRule {
        origin: "ImageDigestMirrorSet/factory".into(),
        source: source.into(),
        mirrors: mirrors.iter().map(ToString::to_string).collect(),
        ..MirrorRule::default()
    }
}

fn tags(rule: MirrorRule) -> MirrorRule {
    MirrorRule { tags: true, ..rule }
}

fn never(rule: MirrorRule) -> MirrorRule {
    MirrorRule { never_source: true, ..rule }
}

fn secret() -> PullSecret {
    // One login for the mirror, and one for an organisation on it.
    let text = br#"{"auths": {"mirror:5000": {"auth": "YTpi"}, "mirror:5000/own": {"auth": "Yzpk"}}}"#;
    PullSecret::parse(text, "1").unwrap().0
}

fn written(rules: &[MirrorRule]) -> Vec<(String, String)> {
    files(rules, &secret())
}

#[test]
fn a_mirror_must_have_the_images_of_the_source_under_the_same_path() {
    for (source, mirror, expected) in [
        ("quay.io", "mirror", Some("https://mirror/v2")),
        ("quay.io", "mirror:5000/all", Some("https://mirror:5000/v2/all")),
        ("quay.io/org", "mirror/org", Some("https://mirror/v2")),
        ("quay.io/org/repo", "mirror/a/b/org/repo", Some("https://mirror/v2/a/b")),
        ("quay.io/org", "docker.io/org", Some("https://registry-1.docker.io/v2")),
        ("quay.io/org/repo", "mirror/a/repo", None),
        ("quay.io/org", "mirror/myorg", None),
        ("quay.io/org", "mirror", None),
    ] {
        let found = endpoint(Location::parse(source).unwrap(), Location::parse(mirror).unwrap());
        assert_eq!(found.map(|e| e.url()).as_deref(), expected, "{source} {mirror}");
    }
}

#[test]
fn rules_of_release_images_are_not_reported() {
    let release = |name: &str, mirror: &str| rule(&format!("quay.io/openshift-release-dev/{name}"), &[mirror]);
    let (images, content) =
        (release("ocp-release", "mirror/ocp/release"), release("ocp-v4.0-art-dev", "mirror/ocp/release"));
    for (about, rules, expected) in [
        ("the two rules of each disconnected cluster", vec![images.clone(), content.clone()], 0),
        ("with tags", vec![tags(images.clone()), never(content.clone())], 0),
        (
            "a mirror with the path of the source",
            vec![release("ocp-release", "mirror/openshift-release-dev/ocp-release"), content],
            0,
        ),
        (
            "a rule that is followed, for tags of all images of the registry",
            vec![tags(release("ocp-release", "mirror/openshift-release-dev/ocp-release"))],
            0,
        ),
        ("another source that begins alike", vec![rule("quay.io/openshift-release-developers/x", &["mirror/y"])], 1),
        ("a rule for other images", vec![images, rule("quay.io/org/image", &["mirror/other"])], 1),
    ] {
        assert_eq!(problems(&rules, &secret()).len(), expected, "{about}: {:?}", problems(&rules, &secret()));
    }
    let followed = never(release("ocp-release", "mirror/openshift-release-dev/ocp-release"));
    assert!(
        problems(&[followed], &secret())[0].contains("NeverContactSource"),
        "no image of the registry is pulled from the source"
    );
}

/// Covers the example in OpenShift's documentation of mirrors for Windows nodes.
#[test]
fn the_example_of_openshift_needs_the_whole_path_of_the_source() {
    let ubi = |mirrors: &[&str]| rule("registry.access.redhat.com/ubi9/ubi-minimal", mirrors);
    let rest =
        [never(rule("registry.redhat.io", &["mirror.example.com"])), rule("docker-mirror.internal", &["docker.io"])];
    let names = |rules: &[MirrorRule]| written(rules).into_iter().map(|(path, _)| path).collect::<Vec<_>>();
    let file = |registry: &str| format!(r"C:\k\containerd\registries\{registry}\hosts.toml");

    // containerd would request example.io/example/ubi9/ubi-minimal, where the image is not.
    let given = [&[ubi(&["example.io/example/ubi-minimal", "example.com/example2/ubi-minimal"])], &rest[..]].concat();
    assert_eq!(names(&given), [file("docker-mirror.internal"), file("registry.redhat.io")]);
    let said = problems(&given, &secret());
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said.iter().all(|text| text.contains("must end with \"ubi9/ubi-minimal\"")), "{said:?}");

    let whole = [&[ubi(&["example.io/example/ubi9/ubi-minimal"])], &rest[..]].concat();
    assert_eq!(names(&whole)[1], file("registry.access.redhat.com"));
    assert_eq!((names(&whole).len(), problems(&whole, &secret())), (3, Vec::new()));
}

#[test]
fn mirrors_that_only_the_legacy_operator_gives_are_listed() {
    let of = |kind: &str, rule: MirrorRule| MirrorRule { origin: format!("{kind}/x"), ..rule };
    let digest = |source: &str, mirrors: &[&str]| of("ImageDigestMirrorSet", rule(source, mirrors));
    let lost = digest("quay.io/remote-org/image", &["quay.io/my-org/image"]);
    for (about, cluster, own, expected) in [
        ("its path does not end with the source's", vec![lost.clone()], vec![], &["quay.io/remote-org/image"][..]),
        (
            "twice, and by tag",
            vec![lost.clone(), of("ImageTagMirrorSet", tags(lost.clone()))],
            vec![],
            &["quay.io/remote-org/image"],
        ),
        ("one of several mirrors is followed", vec![digest("quay.io/a", &["m/b", "m/a"])], vec![], &[]),
        ("the mirror has the path of the source", vec![digest("quay.io/a", &["m/x/a"])], vec![], &[]),
        ("all registries of a domain", vec![digest("*.example.com", &["m"])], vec![], &["*.example.com"]),
        ("no mirror", vec![never(digest("quay.io/a", &[]))], vec![], &[]),
        ("a kind that WMCO does not read", vec![of("ImageContentSourcePolicy", lost.clone())], vec![], &[]),
        ("release images", vec![digest("quay.io/openshift-release-dev/ocp-release", &["m/x"])], vec![], &[]),
        ("release images of OKD", vec![digest("quay.io/okd/scos-content", &["m/x"])], vec![], &[]),
        (
            "the pool names the source",
            vec![lost.clone()],
            vec![rule("quay.io/remote-org/image", &["m/remote-org/image"])],
            &[],
        ),
        ("the pool names the registry", vec![lost.clone()], vec![rule("quay.io", &["m"])], &[]),
        (
            "the pool names another source",
            vec![lost],
            vec![rule("quay.io/other", &["m/other"])],
            &["quay.io/remote-org/image"],
        ),
    ] {
        assert_eq!(not_followed(&cluster, &own), expected, "{about}");
    }
}

#[test]
fn locations_are_registries_with_an_optional_path() {
    for good in ["quay.io", "localhost:5000", "a.b-c.d/x_y/z.1", "10.0.0.1:443/a"] {
        assert!(Location::parse(good).is_ok(), "{good}");
    }
    for bad in [
        "",
        "/",
        "quay.io/",
        "quay.io//a",
        "https://quay.io",
        "quay.io:",
        "quay.io:0",
        "quay.io:x",
        "quay.io:+1",
        "*.io",
        "a/../b",
        "a b",
        "..",
        ".a",
        "-a",
        "a/\"]\n[host]",
        "[::1]:5000",
        "a:1:2",
    ] {
        assert!(Location::parse(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn each_registry_has_one_file() {
    let rules = [
        rule("registry.example.com:5000/org", &["mirror:5000/own/org", "second/org", "mirror:5000/own/org"]),
        tags(rule("registry.example.com:5000", &["second", "zebra", "alpha"])),
        never(rule("docker.io", &["mirror:5000/hub"])),
        never(rule("nowhere.example.com", &[])),
    ];
    let expected = [
        (
            r"C:\k\containerd\registries\docker.io\hosts.toml",
            "server = \"https://mirror:5000/v2/hub\"\ncapabilities = [\"pull\"]\noverride_path = true\n\n[header]\n\
             Authorization = \"Basic YTpi\"\n\n[host.\"https://mirror:5000/v2/hub\"]\ncapabilities = [\"pull\"]\noverride_path = true\n\n\
             [host.\"https://mirror:5000/v2/hub\".header]\nAuthorization = \"Basic YTpi\"\n",
        ),
        (
            r"C:\k\containerd\registries\nowhere.example.com\hosts.toml",
            "server = \"https://never-contact-source.invalid/v2\"\n",
        ),
        (
            r"C:\k\containerd\registries\registry.example.com_5000_\hosts.toml",
            "[host.\"https://mirror:5000/v2/own\"]\ncapabilities = [\"pull\"]\noverride_path = true\n\n\
             [host.\"https://mirror:5000/v2/own\".header]\nAuthorization = \"Basic Yzpk\"\n\n\
             [host.\"https://second/v2\"]\ncapabilities = [\"pull\", \"resolve\"]\noverride_path = true\n\n\
             [host.\"https://zebra/v2\"]\ncapabilities = [\"pull\", \"resolve\"]\noverride_path = true\n\n\
             [host.\"https://alpha/v2\"]\ncapabilities = [\"pull\", \"resolve\"]\noverride_path = true\n",
        ),
    ];
    let files = written(&rules);
    for ((path, text), (expected_path, expected)) in files.iter().zip(expected) {
        assert_eq!((path.as_str(), text.as_str()), (expected_path, expected));
        assert!(api::payload::is_host_path(path), "{path}");
    }
    assert_eq!(files.len(), expected.len());
}

#[test]
fn rules_that_containerd_cannot_follow_exactly_are_reported() {
    let none: [&[&str]; 0] = [];
    for (about, rules, expected) in [
        ("a whole registry", vec![tags(never(rule("quay.io", &["mirror", "other"])))], none.to_vec()),
        ("one organisation", vec![rule("quay.io/org", &["mirror/org"])], none.to_vec()),
        (
            "several organisations on one mirror",
            vec![rule("quay.io/a", &["m/x/a"]), rule("quay.io/b", &["m/x/b"])],
            none.to_vec(),
        ),
        (
            "several organisations on several mirrors",
            vec![rule("quay.io/a", &["m/a"]), rule("quay.io/b", &["n/b"])],
            vec![&["quay.io/a", "quay.io/b", "https://n/v2"]],
        ),
        (
            "one organisation, and the whole registry with another mirror",
            vec![rule("quay.io/a", &["m/a"]), rule("quay.io", &["n"])],
            vec![&["quay.io/a", "\"quay.io\"", "https://m/v2", "the other way round"]],
        ),
        (
            "the whole registry, also for tags, and two organisations",
            vec![tags(rule("quay.io", &["n"])), rule("quay.io/a", &["m/a"]), rule("quay.io/b", &["n/b"])],
            vec![&["images of \"quay.io\"", "mirrors of \"quay.io/a\"", "https://m/v2"]],
        ),
        (
            "one organisation of a registry that must not be contacted",
            vec![never(rule("quay.io", &[])), rule("quay.io/a", &["m/a"])],
            vec![&["images of \"quay.io\"", "mirrors of \"quay.io/a\"", "https://m/v2"]],
        ),
        (
            "one organisation, and the whole registry with the same mirror",
            vec![rule("quay.io", &["m"]), rule("quay.io/a", &["m/a"])],
            none.to_vec(),
        ),
        ("tags of one organisation", vec![tags(rule("quay.io/a", &["m/a"]))], vec![&["tags", "quay.io/a", "m/a"]]),
        (
            "a part of a registry that must not be contacted",
            vec![never(rule("quay.io/a", &["m/a"]))],
            vec![&["Never", "quay.io/a", "all of quay.io"]],
        ),
        ("another path", vec![rule("quay.io/a", &["m/b"])], vec![&["factory", "m/b", "quay.io/a", "must end with"]]),
        (
            "a source that must not be contacted, without usable mirrors",
            vec![never(rule("quay.io/a", &["m/b"]))],
            vec![&["m/b"], &["NeverContactSource", "quay.io/a"]],
        ),
        ("a wildcard", vec![rule("*.example.com", &["m"])], vec![&["*.example.com", "name each registry"]]),
        ("an invalid mirror", vec![rule("quay.io", &["https://m", "n"])], vec![&["https://m", "quay.io"]]),
    ] {
        let found = problems(&rules, &secret());
        assert_eq!(found.len(), expected.len(), "{about}: {found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(expected.iter().all(|part| found.contains(part)), "{about}: {found}");
        }
    }
    let left_out = [never(rule("quay.io/a", &["m/b"])), rule("*.example.com", &["m"]), rule("x/y", &["m/z"])];
    assert_eq!(written(&left_out), []);
}

/// Covers the login for the mirror's full path, as in podman, although containerd contacts an endpoint above it.
#[test]
fn the_login_with_the_longest_path_of_the_mirror_is_used() {
    let text = br#"{"auths": {
        "mirror:5000": {"auth": "YTpi"}, "mirror:5000/factory": {"auth": "Yzpk"}, "mirror:5000/factory/line": {"auth": "ZTpm"},
        "scoped/a": {"auth": "YTpi"}, "scoped/b": {"auth": "Yzpk"}, "*.example.com": {"auth": "ZTpm"}
    }}"#;
    let (secret, _) = PullSecret::parse(text, "1").unwrap();
    let none: &[&str] = &[];
    for (about, rules, expected, problem) in [
        ("the registry", vec![rule("quay.io", &["mirror:5000"])], vec![Some("YTpi")], none),
        ("an organisation", vec![rule("quay.io/factory", &["mirror:5000/factory"])], vec![Some("Yzpk")], none),
        ("below an organisation", vec![rule("quay.io/line", &["mirror:5000/factory/line"])], vec![Some("ZTpm")], none),
        ("a longer name", vec![rule("quay.io/factory2", &["mirror:5000/factory2"])], vec![Some("YTpi")], none),
        ("a login for the organisation only", vec![rule("quay.io/a", &["scoped/a"])], vec![Some("YTpi")], none),
        ("a login for another organisation only", vec![rule("quay.io/c", &["scoped/c"])], vec![None], none),
        ("a wildcard", vec![rule("quay.io", &["m.example.com"])], vec![Some("ZTpm")], none),
        (
            "two mirrors with the same login",
            vec![rule("quay.io/a", &["scoped/a", "mirror:5000/a"])],
            vec![Some("YTpi"), Some("YTpi")],
            none,
        ),
        (
            "one endpoint, two logins",
            vec![rule("quay.io/a", &["scoped/a"]), rule("quay.io/b", &["scoped/b"])],
            vec![Some("YTpi")],
            &["factory", "\"quay.io/b\"", "\"scoped/b\"", "the login of \"scoped/a\""],
        ),
        (
            "one endpoint, one login",
            vec![rule("quay.io/c", &["scoped/c"]), rule("quay.io/b", &["scoped/b"])],
            vec![Some("Yzpk")],
            none,
        ),
    ] {
        let read: toml::Value = toml::from_str(&files(&rules, &secret)[0].1).unwrap();
        let hosts = read["host"].as_table().unwrap();
        let header = |host: &toml::Value| host.get("header").map(|h| h["Authorization"].as_str().unwrap().to_owned());
        let found: Vec<Option<String>> = hosts.values().map(header).collect();
        let expected: Vec<Option<String>> = expected.iter().map(|login| login.map(|l| format!("Basic {l}"))).collect();
        assert_eq!(found, expected, "{about}");
        let problems = problems(&rules, &secret);
        assert_eq!(problems.len(), usize::from(!problem.is_empty()), "{about}: {problems:?}");
        assert!(problem.iter().all(|part| problems[0].contains(part)), "{about}: {problems:?}");
    }
}

#[test]
fn a_mirror_without_a_login_has_no_header() {
    let (_, text) = files(&[rule("quay.io", &["mirror:5000"])], &PullSecret::default()).remove(0);
    assert!(!text.contains("uthorization"), "{text}");
}

proptest! {
    #[test]
    fn any_rule_gives_valid_files(
        source in "[a-z*.:/0-9\"\\]\n_-]{0,20}",
        mirrors in proptest::collection::vec("[a-z.:/0-9\"\\]\n_-]{0,20}", 0..4),
        tags: bool,
        never_source: bool,
    ) {
        let rules = [MirrorRule { origin: "o".into(), source, mirrors, tags, never_source }];
        for (path, text) in written(&rules) {
            prop_assert!(api::payload::is_host_path(&path), "{}", path);
            let read: toml::Value = toml::from_str(&text).unwrap();
            prop_assert!(read.as_table().unwrap().keys().all(|k| ["server", "capabilities", "override_path", "header", "host"].contains(&k.as_str())));
        }
        problems(&rules, &secret());
    }
}
