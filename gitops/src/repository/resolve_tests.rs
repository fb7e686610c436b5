//! Tests for the resolution of references.

use proptest::prelude::*;

use super::*;

fn id(n: u8) -> ObjectId {
    ObjectId::from_hex(format!("{n:02x}").repeat(20).as_bytes()).unwrap()
}

fn direct(name: &str, n: u8) -> Ref {
    Ref::Direct { full_ref_name: name.into(), object: id(n) }
}

fn annotated(name: &str, tag: u8, n: u8) -> Ref {
    Ref::Peeled { full_ref_name: name.into(), tag: id(tag), object: id(n) }
}

fn head(target: &str, n: u8) -> Ref {
    Ref::Symbolic { full_ref_name: "HEAD".into(), target: target.into(), tag: None, object: id(n) }
}

fn reference(branch: &str, tag: &str, semver: &str, commit: &str) -> GitRef {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    GitRef { branch: some(branch), tag: some(tag), semver: some(semver), commit: some(commit) }
}

#[test]
fn the_most_specific_reference_is_requested() {
    let commit = "ab".repeat(20);
    let cases = [
        (reference("", "", "", ""), RefRequest::Default),
        (reference("main", "", "", ""), RefRequest::Branch("main".into())),
        (reference("refs/heads/main", "", "", ""), RefRequest::Branch("main".into())),
        (reference("main", "v1", "", ""), RefRequest::Tag("v1".into())),
        (reference("main", "v1", "1.x", ""), RefRequest::Range(VersionReq::parse("1.x").unwrap())),
        (reference("main", "v1", "1.x", &commit), RefRequest::Commit(id(0xab))),
    ];
    for (reference, expected) in cases {
        assert_eq!(RefRequest::of(&reference).unwrap(), expected);
    }
}

#[test]
fn a_name_that_git_does_not_allow_is_refused() {
    for branch in ["a b", "../x", "a..b", "a\nb", "a~1", "x.lock", "@{u}"] {
        let error = RefRequest::of(&reference(branch, "", "", "")).unwrap_err();
        assert_eq!(error.reason(), "SourceInvalid", "{branch:?}");
        assert!(error.stalls());
    }
    let error = RefRequest::of(&reference("", "", "latest", "")).unwrap_err().to_string();
    assert!(error.contains("semver \"latest\"") && error.contains(">=1.2.0"), "{error}");
}

#[test]
fn a_reference_is_found_by_its_whole_name() {
    let refs = [
        head("refs/heads/trunk", 1),
        direct("refs/heads/trunk", 1),
        direct("refs/heads/trunk-2", 2),
        direct("refs/tags/plain", 3),
        annotated("refs/tags/signed", 4, 5),
        Ref::Unborn { full_ref_name: "refs/heads/new".into(), target: "refs/heads/new".into() },
    ];
    let found =
        |wanted: RefRequest| wanted.find(&refs).map(|found| (found.id, found.name.unwrap_or_default(), found.key));
    let cases = [
        (RefRequest::Default, id(1), "trunk", "refs/heads/trunk"),
        (RefRequest::Branch("trunk".into()), id(1), "trunk", "refs/heads/trunk"),
        (RefRequest::Tag("plain".into()), id(3), "plain", "refs/tags/plain"),
        (RefRequest::Tag("signed".into()), id(4), "signed", "refs/tags/signed"),
    ];
    for (wanted, id, name, key) in cases {
        assert_eq!(found(wanted).unwrap(), (id, name.into(), key.into()));
    }
    for wanted in [RefRequest::Branch("tru".into()), RefRequest::Branch("new".into()), RefRequest::Tag("trunk".into())]
    {
        assert!(matches!(found(wanted).unwrap_err(), GitError::RevisionNotFound { .. }));
    }
    assert!(RefRequest::Default.find(&[]).unwrap_err().to_string().contains("set inventory.git.ref.branch"));
}

#[test]
fn a_head_that_names_no_branch_is_called_head() {
    let hostile = ["refs/heads/../../etc", "refs/heads/a\u{7}b", "refs/tags/x", "refs/heads/", "x"];
    for target in hostile {
        let found = RefRequest::Default.find(&[head(target, 1)]).unwrap();
        assert_eq!(found.name.as_deref(), Some("HEAD"), "{target:?}");
    }
}

#[test]
fn the_highest_version_in_a_range_is_found() {
    let tags = ["1.0.0", "v1.2.0", "1.10.0", "v2.0.0", "2.1.0-rc.1", "2.1.0-rc.2", "latest", "v1", "1.10.0+b", "refs"];
    let cases = [
        ("*", Some("v2.0.0")),
        ("1.x", Some("1.10.0+b")),
        ("^1.0.0", Some("1.10.0+b")),
        (">=1.0.0 <1.10.0", Some("v1.2.0")),
        (">= 1.0.0, < 1.10.0", Some("v1.2.0")),
        ("~1.0", Some("1.0.0")),
        (">=2.1.0-rc.1", Some("2.1.0-rc.2")),
        (">=2.1.0-0", Some("2.1.0-rc.2")),
        (">2.0.0", None),
        ("3", None),
    ];
    for (range, expected) in cases {
        let RefRequest::Range(range) = RefRequest::of(&reference("", "", range, "")).unwrap() else {
            panic!("no range")
        };
        assert_eq!(highest(&range, tags.iter().map(|tag| (*tag, ()))).map(|(tag, ())| tag), expected, "{range}");
    }
}

#[test]
fn versions_are_compared_only_within_the_range() {
    for (range, old, new, expected) in [
        (">=1.0.0", "v1.0.0", "v9.9.9", Some(Ordering::Greater)),
        (">=1.0.0", "v1.2.0", "v1.0.0", Some(Ordering::Less)),
        (">=1.0.0", "1.10.0", "v1.9.0", Some(Ordering::Less)),
        (">=1.0.0", "v1.0.0", "1.0.0+build", Some(Ordering::Equal)),
        // The pool's reference has changed.
        ("^1.0.0", "v2.0.0", "v1.0.0", None),
        (">=1.0.0", "main", "v1.0.0", None),
        ("", "v2.0.0", "v1.0.0", None),
    ] {
        assert_eq!(compare_versions(&reference("", "", range, ""), old, new), expected, "{range} {old} {new}");
    }
}

proptest! {
    #[test]
    fn the_order_of_tags_does_not_matter(mut tags in prop::collection::vec("v?[0-3]\\.[0-3]\\.[0-3](-rc)?", 0..12)) {
        let range = VersionReq::parse(">=1").unwrap();
        let pick = |tags: &[String]| highest(&range, tags.iter().map(|tag| (tag.as_str(), ()))).map(|(tag, ())| tag.to_owned());
        let first = pick(&tags);
        tags.reverse();
        prop_assert_eq!(first, pick(&tags));
    }

    #[test]
    fn any_range_is_read_or_refused(range in ".{0,40}") {
        let _ = RefRequest::of(&reference("", "", &range, ""));
    }
}
