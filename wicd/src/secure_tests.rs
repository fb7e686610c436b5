//! Tests of the protection of the operator's directories.

use super::*;
use crate::access::{AccessList, Entry};
use crate::fake::FakeHost;
use crate::files::Access;

const USER: &str = "S-1-5-21-1-2-3-1001";

/// Returns the guard of a directory.
fn guard(host: &FakeHost, directory: &str) -> Option<Guard> {
    let real = host.path(directory).unwrap();
    let list = host.state().access.get(&real).cloned()?;
    [Guard::Private, Guard::TakingOver, Guard::Readable, Guard::Volumes].into_iter().find(|guard| list.is(*guard))
}

fn set_access(host: &FakeHost, directory: &str, list: AccessList) {
    files::make_directory(host, directory).unwrap();
    let real = host.path(directory).unwrap();
    host.state().access.insert(real, list);
}

fn owner(host: &FakeHost, directory: &str) -> String {
    host.place(&host.path(directory).unwrap()).unwrap().unwrap().owner
}

fn set_owner(host: &FakeHost, directory: &str, sid: &str) {
    files::make_directory(host, directory).unwrap();
    let real = host.path(directory).unwrap();
    host.state().owners.insert(real, sid.into());
}

#[test]
fn only_some_users_are_always_administrators() {
    for (sid, trusted) in [
        ("S-1-5-18", true),
        ("S-1-5-32-544", true),
        (access::TRUSTED[2], true),
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
fn only_a_directory_of_an_administrator_is_used() {
    let good = PathEntry { owner: access::TRUSTED[1].into(), ..PathEntry::default() };
    for (about, place, guard, part) in [
        ("an administrator's", good.clone(), Guard::Private, None),
        ("a link", PathEntry { kind: Kind::Link, ..good.clone() }, Guard::Private, Some("link")),
        ("a file", PathEntry { kind: Kind::File, ..good.clone() }, Guard::Private, Some("not a directory")),
        ("a user's", PathEntry { owner: USER.into(), ..good.clone() }, Guard::Private, Some("(takeown /a /r /f C:")),
        ("our own user's", PathEntry { owner: USER.into(), is_own: true, ..good.clone() }, Guard::Private, None),
        (
            "above ours, a user's",
            PathEntry { owner: USER.into(), ..good.clone() },
            Guard::Readable,
            Some("(takeown /a /f C:"),
        ),
        ("above ours, an administrator's", good.clone(), Guard::Readable, None),
        ("above ours, a link", PathEntry { kind: Kind::Link, ..good }, Guard::Readable, Some("link")),
    ] {
        let objection = objection(&place, path::LOGS, guard);
        assert_eq!(objection.is_some(), part.is_some(), "{about}: {objection:?}");
        assert!(objection.unwrap_or_default().contains(part.unwrap_or_default()), "{about}");
    }
}

#[test]
fn a_directory_of_an_administrator_is_taken_over_once() {
    let host = FakeHost::temporary();
    // The directory is as WMCO creates it: by an administrator, with the rights that users have everywhere below `C:\`.
    files::write(&host, r"C:\k\kubelet.exe", b"", Access::Inherited).unwrap();
    set_owner(&host, r"C:\k\theirs", USER);
    root(&host).unwrap();
    assert_eq!((guard(&host, path::ROOT), guard(&host, path::WICD)), (Some(Guard::Private), Some(Guard::Private)));
    let (theirs, ours) = (host.path(r"C:\k\theirs").unwrap(), host.path(path::ROOT).unwrap());
    assert!(!host.state().owners.contains_key(&theirs));
    assert_eq!(host.state().resets, [ours]);
    root(&host).unwrap();
    assert_eq!(host.state().resets.len(), 1, "a directory that is ours is not taken over again");
}

/// A directory without inherited entries may still let others write in it.
#[test]
fn a_directory_is_taken_over_unless_it_has_the_access_list_of_wicd() {
    let ours = AccessList::of(Guard::Private);
    let with = |entry: Entry| {
        let mut list = ours.clone();
        list.entries.push(entry);
        list
    };
    let admins = access::ADMINISTRATORS;
    for (about, sid, list, expected) in [
        ("ours", admins, ours.clone(), 0),
        ("ours, but of another administrator", "S-1-5-21-1-2-3-500", ours.clone(), 1),
        ("ours, but inherited", admins, AccessList { is_protected: false, ..ours.clone() }, 1),
        ("users may change what is in it", admins, with(Entry::grant("S-1-5-32-545", 0x0013_01bf, access::TO_ALL)), 1),
        ("a user may read it", admins, with(Entry::grant(USER, 0x0012_00a9, 0)), 1),
        ("users may change what is below", admins, AccessList::of(Guard::Volumes), 1),
        ("nothing for others, but not ours", admins, AccessList { is_protected: true, entries: vec![] }, 1),
        ("as usual", admins, AccessList::usual(), 1),
    ] {
        let host = FakeHost::temporary();
        set_access(&host, path::ROOT, list);
        set_owner(&host, path::ROOT, sid);
        set_access(&host, path::WICD, ours.clone());
        for theirs in [r"C:\k\cni", r"C:\k\wicd\blobs"] {
            set_owner(&host, theirs, USER);
        }
        root(&host).unwrap();
        assert_eq!(guard(&host, path::ROOT), Some(Guard::Private), "{about}");
        assert_eq!(owner(&host, path::ROOT), access::ADMINISTRATORS, "{about}");
        let root = host.path(path::ROOT).unwrap();
        assert_eq!(host.state().resets.iter().filter(|reset| **reset == root).count(), expected, "{about}");
        for theirs in [r"C:\k\cni", r"C:\k\wicd\blobs"] {
            assert_eq!(owner(&host, theirs) == USER, expected == 0, "{about}: {theirs}");
        }
    }
}

/// A takeover that fails is repeated completely the next time.
#[test]
fn a_takeover_that_was_interrupted_is_repeated() {
    let host = FakeHost::temporary();
    set_owner(&host, r"C:\k\theirs", USER);
    for _again in 0..2 {
        host.state().refused.insert("reset_below ".into());
        root(&host).unwrap_err();
        assert_eq!(guard(&host, path::ROOT), Some(Guard::TakingOver));
    }
    host.state().refused.clear();
    root(&host).unwrap();
    assert_eq!(
        (guard(&host, path::ROOT), owner(&host, r"C:\k\theirs").as_str()),
        (Some(Guard::Private), access::TRUSTED[1])
    );
}

/// The owner of a directory may change its access list at any time, and replace the directories in it.
#[test]
fn a_directory_of_a_user_is_refused_and_does_not_change() {
    let desired = with_cni();
    // Directories below `C:\k` are taken over with it.
    let of_programs = programs(&desired).filter(|directory| *directory != path::VOLUME_PLUGINS);
    let parents = programs(&desired).flat_map(above);
    for directory in of_programs.chain(parents).chain(SHARED).chain(STATE) {
        let host = FakeHost::temporary();
        set_owner(&host, directory, USER);
        for refused in [
            check_root(&host).and_then(|()| check_state(&host, &desired, &[])),
            root(&host).and_then(|()| state(&host, &desired, &[])),
        ] {
            let error = refused.unwrap_err();
            let text = error.to_string();
            assert_eq!(error.reason(), "DirectoryRefused", "{directory}: {text}");
            assert!(text.contains(directory) && text.contains(USER) && text.contains("takeown"), "{text}");
        }
        assert_eq!((owner(&host, directory).as_str(), guard(&host, directory)), (USER, None), "{directory}");
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
        let host = FakeHost::temporary();
        files::make_directory(&host, r"C:\theirs").unwrap();
        let real = host.path(link).unwrap();
        std::fs::create_dir_all(real.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(host.path(r"C:\theirs").unwrap(), &real).unwrap();
        let logs = [r"C:\var\log\kubelet".to_string()];
        let refused = [
            root(&host).and_then(|()| state(&host, &Desired::default(), &logs)).unwrap_err(),
            check_root(&host).and_then(|()| check_state(&host, &Desired::default(), &logs)).unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.reason(), "DirectoryRefused", "{link}: {error}");
        }
        assert_eq!(files::list(&host, r"C:\theirs").unwrap(), Vec::<String>::new(), "{link} {ours}");
    }
}

#[test]
fn directories_of_keys_and_logs_are_created_with_their_access_lists() {
    let host = FakeHost::temporary();
    let logs = [r"C:\var\log\kubelet".to_string(), r"C:\var\log\wicd".to_string()];
    let private = STATE.into_iter().chain([KUBELET, path::KUBELET_PKI]).chain(logs.iter().map(String::as_str));
    let expected: Vec<(&str, Guard)> = SHARED
        .into_iter()
        .map(|directory| (directory, Guard::Readable))
        .chain(private.map(|directory| (directory, Guard::Private)))
        .chain([(VOLUMES, Guard::Volumes)])
        .collect();
    for _twice in 0..2 {
        state(&host, &Desired::default(), &logs).unwrap();
        for (directory, expected) in &expected {
            assert_eq!(guard(&host, directory).as_ref(), Some(expected), "{directory}");
        }
    }
}

/// Directories as on a host of WMCO, on any image of Windows: created by an administrator, with the entries that they inherit from
/// `C:\`.
#[test]
fn users_lose_rights_to_parent_directories_and_keep_those_to_the_content() {
    let authenticated = Entry::grant("S-1-5-11", 0x0013_01bf, access::TO_ALL);
    let mut open = AccessList::usual();
    open.entries.push(authenticated.clone());
    for (about, list) in [("as usual", AccessList::usual()), ("all users may change everything", open)] {
        let host = FakeHost::temporary();
        for directory in SHARED {
            set_access(&host, directory, list.clone());
        }
        set_owner(&host, r"C:\var\log\theirs", USER);
        state(&host, &Desired::default(), &[r"C:\var\log\kubelet".to_string()]).unwrap();
        for directory in SHARED {
            let place = host.place(&host.path(directory).unwrap()).unwrap().unwrap();
            assert_eq!(place.access.narrowed(is_trusted, CHANGE), None, "{about}: {directory}");
            let below = Entry { flags: access::TO_ALL | 0x8, ..authenticated.clone() };
            assert_eq!(place.access.entries.contains(&below), list.entries.contains(&authenticated), "{about}");
        }
        assert_eq!(owner(&host, r"C:\var\log\theirs"), USER, "{about}: what is theirs stays theirs");
        assert_eq!(guard(&host, r"C:\var\log\kubelet"), Some(Guard::Private));
        let before = host.state().access.clone();
        state(&host, &Desired::default(), &[r"C:\var\log\kubelet".to_string()]).unwrap();
        assert!(host.state().access == before, "{about}: changed again");
    }
}

/// Volume plugins communicate with kubelet through files in its state directory.
#[test]
fn files_of_users_in_the_state_of_kubelet_are_taken_over_except_volumes() {
    let host = FakeHost::temporary();
    let (theirs, volume) = (r"C:\var\lib\kubelet\plugins_registry", r"C:\var\lib\kubelet\pods\x\volumes");
    set_owner(&host, theirs, USER);
    set_owner(&host, volume, USER);
    state(&host, &Desired::default(), &[]).unwrap();
    assert_eq!((owner(&host, theirs).as_str(), owner(&host, volume).as_str()), (access::TRUSTED[1], USER));
    assert_eq!((guard(&host, KUBELET), guard(&host, VOLUMES)), (Some(Guard::Private), Some(Guard::Volumes)));
}

/// Desired state with CNI directories.
fn with_cni() -> Desired {
    let cni_directories = [r"C:\opt\cni\bin", r"C:\etc\cni\net.d"].map(String::from).into();
    Desired { cni_directories, ..Desired::default() }
}

/// SYSTEM would start a file that a user puts into a directory of programs.
#[test]
fn no_user_can_write_to_a_directory_with_programs() {
    let desired = with_cni();
    let guarded = |host: &FakeHost| root(host).and_then(|()| state(host, &desired, &[]));
    for directory in programs(&desired) {
        let missing = FakeHost::temporary();
        guarded(&missing).unwrap();
        assert_eq!(guard(&missing, directory), Some(Guard::Private), "{directory}: created");

        let open = FakeHost::temporary();
        let theirs = format!(r"{directory}\theirs");
        set_access(&open, directory, AccessList::usual());
        set_owner(&open, &theirs, USER);
        guarded(&open).unwrap();
        assert_eq!(guard(&open, directory), Some(Guard::Private), "{directory}: taken over");
        assert_eq!(owner(&open, &theirs), access::ADMINISTRATORS, "{directory}: with its content");
    }
}

/// On some images of Windows, users may change everything on `C:`.
#[test]
fn no_user_can_replace_a_directory_with_programs() {
    let desired = with_cni();
    let host = FakeHost::temporary();
    let modify = Entry::grant("S-1-5-11", 0x0013_01bf, access::TO_ALL);
    let shared: Vec<&str> = programs(&desired).flat_map(above).collect();
    assert_eq!(shared, [r"C:\opt", r"C:\opt\cni", r"C:\etc", r"C:\etc\cni"]);
    for directory in &shared {
        let mut list = AccessList::usual();
        list.entries.push(modify.clone());
        set_access(&host, directory, list);
    }
    state(&host, &desired, &[]).unwrap();
    for directory in shared {
        let place = host.place(&host.path(directory).unwrap()).unwrap().unwrap();
        assert!(!place.access.grants(is_trusted, REPLACE), "{directory}");
        assert!(
            place.access.entries.iter().any(|entry| entry.sid == modify.sid),
            "{directory}: what is below stays theirs"
        );
    }
}
