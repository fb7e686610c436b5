use std::fs;

use super::*;
use crate::fake::FakeHost;
use crate::files::Access;

const USER: &str = "S-1-5-21-1-2-3-1001";

fn host() -> (tempfile::TempDir, FakeHost) {
    let dir = tempfile::tempdir().unwrap();
    let host = FakeHost::new(dir.path());
    (dir, host)
}

fn guard(host: &FakeHost, directory: &str) -> Option<Guard> {
    let real = host.path(directory).unwrap();
    host.state().guards.get(&real).copied()
}

fn owned_by(host: &FakeHost, directory: &str, sid: &str) {
    files::make_directory(host, directory).unwrap();
    let real = host.path(directory).unwrap();
    host.state().owners.insert(real, sid.into());
}

#[test]
fn who_is_an_administrator_in_any_case() {
    for (sid, trusted) in [
        ("S-1-5-18", true),
        ("S-1-5-32-544", true),
        (TRUSTED[2], true),
        ("S-1-5-21-1111-2222-3333-500", true),
        ("S-1-5-21-1111-2222-3333-1500", false),
        ("S-1-5-21-1111-2222-3333-501", false),
        ("S-1-5-21-500", false),
        ("S-1-5-21-1-2-3-4-500", false),
        ("S-1-5-32-545", false),
        ("S-1-5-11", false),
        ("", false),
    ] {
        assert_eq!(is_trusted(sid), trusted, "{sid}");
    }
}

#[test]
fn what_may_be_a_directory_of_ours() {
    let good = Place { owner: TRUSTED[1].into(), ..Place::default() };
    for (about, place, directory, part) in [
        ("an administrator's", good.clone(), path::ROOT, None),
        ("a link", Place { kind: Kind::Link, ..good.clone() }, path::ROOT, Some("link")),
        ("a file", Place { kind: Kind::File, ..good.clone() }, path::ROOT, Some("not a directory")),
        ("a user's", Place { owner: USER.into(), ..good.clone() }, path::ROOT, Some("takeown")),
        ("our own user's", Place { owner: USER.into(), is_own: true, ..good.clone() }, path::ROOT, None),
        ("not ours alone", Place { owner: USER.into(), ..good.clone() }, path::LOGS, None),
        ("not ours alone, but a link", Place { kind: Kind::Link, ..good }, path::LOGS, Some("link")),
    ] {
        let objection = objection(&place, directory);
        assert_eq!(objection.is_some(), part.is_some(), "{about}: {objection:?}");
        assert!(objection.unwrap_or_default().contains(part.unwrap_or_default()), "{about}");
    }
}

#[test]
fn what_was_open_to_others_is_taken_from_them_once() {
    let (_dir, host) = host();
    // As WMCO makes it: by an administrator, with what users may do everywhere below `C:\`.
    files::write(&host, r"C:\k\kubelet.exe", b"", Access::Inherited).unwrap();
    owned_by(&host, r"C:\k\theirs", USER);
    root(&host).unwrap();
    assert_eq!((guard(&host, path::ROOT), guard(&host, path::WICD)), (Some(Guard::Private), Some(Guard::Private)));
    let (theirs, ours) = (host.path(r"C:\k\theirs").unwrap(), host.path(path::ROOT).unwrap());
    assert!(!host.state().owners.contains_key(&theirs));
    assert_eq!(host.state().resets, [ours]);
    root(&host).unwrap();
    assert_eq!(host.state().resets.len(), 1, "what is guarded already is not gone through again");
}

/// Who owns a directory may change its access list at any time.
#[test]
fn a_directory_of_a_user_is_refused_and_left_alone() {
    for directory in [path::ROOT, path::WICD] {
        let (_dir, host) = host();
        owned_by(&host, directory, USER);
        let error = root(&host).unwrap_err();
        assert_eq!(error.reason(), "DirectoryRefused");
        assert!(error.to_string().contains(USER) && check_root(&host).is_err(), "{error}");
        assert_eq!(guard(&host, directory), None);
    }
}

#[cfg(unix)]
#[test]
fn a_link_in_the_place_of_a_directory_is_refused() {
    for (link, ours) in [
        (path::ROOT, path::ROOT),
        (path::LOGS, path::LOGS),
        (r"C:\var", path::KUBELET_PKI),
        (KUBELET, KUBELET),
        (path::KUBELET_PKI, path::KUBELET_PKI),
    ] {
        let (_dir, host) = host();
        files::make_directory(&host, r"C:\theirs").unwrap();
        let real = host.path(link).unwrap();
        fs::create_dir_all(real.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(host.path(r"C:\theirs").unwrap(), &real).unwrap();
        let logs = [r"C:\var\log\kubelet".to_string()];
        let refused = [
            root(&host).and_then(|()| state(&host, &logs)).unwrap_err(),
            check_root(&host).and_then(|()| check_state(&host, &logs)).unwrap_err(),
        ];
        for error in refused {
            assert!(["DirectoryRefused", "LinkRefused"].contains(&error.reason()), "{link}: {error}");
        }
        assert_eq!(files::list(&host, r"C:\theirs").unwrap(), Vec::<String>::new(), "{link} {ours}");
    }
}

#[test]
fn keys_and_logs_are_guarded_before_anything_is_in_them() {
    let (_dir, host) = host();
    let logs = [r"C:\var\log\kubelet".to_string(), r"C:\var\log\wicd".to_string()];
    for _twice in 0..2 {
        state(&host, &logs).unwrap();
        for (directory, expected) in [
            (r"C:\var", Guard::Readable),
            (r"C:\var\lib", Guard::Readable),
            (path::LOGS, Guard::Readable),
            (KUBELET, Guard::Private),
            (path::KUBELET_PKI, Guard::Private),
            (VOLUMES, Guard::Volumes),
            (&logs[0], Guard::Private),
            (&logs[1], Guard::Private),
        ] {
            assert_eq!(guard(&host, directory), Some(expected), "{directory}");
        }
    }
}

#[test]
fn what_was_there_before_and_is_not_ours_keeps_its_access_list() {
    let (_dir, host) = host();
    owned_by(&host, r"C:\var\log", USER);
    state(&host, &[r"C:\var\log\kubelet".to_string()]).unwrap();
    assert_eq!((guard(&host, r"C:\var"), guard(&host, r"C:\var\log")), (None, None));
    assert_eq!(guard(&host, r"C:\var\log\kubelet"), Some(Guard::Private));
}
