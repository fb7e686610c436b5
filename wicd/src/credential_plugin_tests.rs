//! Tests of the registration of a credential plugin.

use api::host::{Apply, Body, Facts, Outcome};

use super::*;
use crate::fake::OPENED;
use crate::operation::tests::{TestHost, crash_anywhere, file, message, payload_files, reason, wanted};

const AZURE: &str = "{CCC2A336-D7F3-4818-A213-272B7924213E}";
const OTHER: &str = "{859E1386-BDB4-49E8-85C7-3070B13920E1}";
const LIBRARY: &str = r"C:\windows\wicd-ccg\plugin.dll";

/// Desired state at version `v` with this plugin.
fn with_plugin(test_host: &TestHost, v: &str, clsid: &str) -> Apply {
    let mut apply = wanted(v);
    let content = format!("library {v}").into_bytes();
    let mut contents = payload_files(v);
    contents.push((file(LIBRARY, &content), content));
    test_host.stage_all(&contents);
    apply.files = contents.into_iter().map(|(file, _)| file).collect();
    apply.desired.credential_plugin = Some(CredentialPlugin { clsid: clsid.into(), library: LIBRARY.into() });
    apply
}

fn registered(test_host: &TestHost) -> Vec<String> {
    test_host.state().registry.keys().cloned().collect()
}

fn keys_of(clsid: &str) -> Vec<String> {
    BTreeSet::from(keys(clsid)).into_iter().collect()
}

#[test]
fn a_class_is_a_guid_in_braces_and_upper_case() {
    for (text, expected) in [
        (AZURE, true),
        ("{ccc2a336-d7f3-4818-a213-272b7924213e}", false),
        ("CCC2A336-D7F3-4818-A213-272B7924213E", false),
        ("{CCC2A336D7F34818A213272B7924213E}", false),
        ("{CCC2A336-D7F3-4818-A213-272B7924213G}", false),
        (r"{CCC2A336-D7F3-4818-A213-\..\24213E}", false),
        ("{}", false),
        ("", false),
    ] {
        assert_eq!(is_class(text), expected, "{text}");
    }
}

#[test]
fn a_plugin_is_registered_as_that_of_microsoft() {
    let test_host = TestHost::new();
    assert_eq!(test_host.apply(with_plugin(&test_host, "1", AZURE)).outcome, Outcome::Done);
    let registry = test_host.state().registry.clone();
    let class = format!(r"SOFTWARE\Classes\CLSID\{AZURE}");
    let text = |key: &str, value: &str| match &registry[key][value] {
        Value::Text(text) => text.clone(),
        other @ Value::Bytes(_) => panic!("{other:?}"),
    };
    assert_eq!(text(&class, "AppID"), AZURE);
    assert_eq!(text(&format!(r"{class}\InprocServer32"), ""), LIBRARY);
    assert_eq!(text(&format!(r"{class}\InprocServer32"), "ThreadingModel"), "Both");
    assert_eq!(text(&format!(r"SOFTWARE\Classes\AppID\{AZURE}"), "DllSurrogate"), "");
    assert_eq!(text(&format!(r"{CLASSES_OF_CCG}\{AZURE}"), ""), "");
    let rights = "01,00,04,80,44,00,00,00,54,00,00,00,00,00,00,00,14,00,00,00,02,00,30,00,02,00,00,00,00,00,14,00,0B,00,00,00,01,01,00,00,00,00,00,05,12,00,00,00,00,00,14,00,0B,00,00,00,01,01,00,00,00,00,00,05,06,00,00,00,01,02,00,00,00,00,00,05,20,00,00,00,20,02,00,00,01,02,00,00,00,00,00,05,20,00,00,00,20,02,00,00";
    assert_eq!(hex::encode_upper(USE_BY_SERVICES), rights.replace(',', ""));
    // All accounts may load it.
    let library = test_host.path(LIBRARY).unwrap();
    assert!(test_host.state().access[&library].is(crate::access::Guard::Readable));
    // A second operation changes nothing.
    test_host.state().counts.clear();
    assert_eq!(test_host.apply(with_plugin(&test_host, "1", AZURE)).outcome, Outcome::Done);
    assert_eq!(test_host.state().counts.get("put_registry_key"), None);
}

fn theirs() -> Values {
    Values::from([(String::new(), Value::Text(r"C:\theirs.dll".into()))])
}

#[test]
fn a_changed_registration_is_corrected() {
    let test_host = TestHost::new();
    test_host.apply(with_plugin(&test_host, "1", AZURE));
    let before = test_host.state().registry.clone();
    let app = format!(r"SOFTWARE\Classes\AppID\{AZURE}");
    test_host.state().registry.get_mut(&app).unwrap().insert("DllSurrogate".into(), Value::Text("x.exe".into()));
    test_host.state().registry.remove(&format!(r"{CLASSES_OF_CCG}\{AZURE}"));
    assert_eq!(test_host.apply(with_plugin(&test_host, "1", AZURE)).outcome, Outcome::Done);
    assert_eq!(test_host.state().registry, before);
}

/// Any existing key marks a registration as another installer's.
#[test]
fn a_registration_of_another_installer_does_not_change() {
    for key in keys_of(AZURE) {
        let test_host = TestHost::new();
        test_host.state().registry.insert(key.clone(), theirs());
        let before = test_host.state().registry.clone();
        let answer = test_host.apply(with_plugin(&test_host, "1", AZURE));
        assert_eq!(reason(&answer), "ForeignServices");
        let what = if key == server(AZURE) { r"(C:\theirs.dll)".to_owned() } else { format!(r"(HKLM\{key} exists)") };
        assert!(message(&answer).contains(&what), "{}", message(&answer));
        assert_eq!(test_host.state().registry, before);
        assert!(!test_host.exists(LIBRARY));
        // The operator sees it before it drains the node.
        let found = |asked: Option<&str>| {
            let facts = Facts { credential_plugin: asked.map(str::to_owned), ..Facts::default() };
            test_host.run(Body::Facts(facts)).state.unwrap().foreign_credential_plugins
        };
        assert_eq!(found(Some(AZURE)).keys().collect::<Vec<_>>(), [AZURE], "{key}");
        // Without a class, as in `check host`, only listed classes are reported.
        assert_eq!(found(None).contains_key(AZURE), key.starts_with(CLASSES_OF_CCG), "{key}");
        assert!(!found(Some(OTHER)).contains_key(OTHER));
        // A cleanup leaves it alone, too.
        assert_eq!(test_host.clean_up().outcome, Outcome::Done);
        assert_eq!(test_host.state().registry, before);
    }
}

/// Keys on record may belong to another program by now.
#[test]
fn a_class_that_another_installer_has_taken_stays() {
    let test_host = TestHost::new();
    test_host.apply(with_plugin(&test_host, "1", AZURE));
    test_host.state().registry.get_mut(&server(AZURE)).unwrap().extend(theirs());
    let before = test_host.state().registry.clone();
    assert_eq!(reason(&test_host.apply(with_plugin(&test_host, "1", AZURE))), "ForeignServices");
    let report = test_host.clean_up();
    assert_eq!((report.outcome, test_host.state().registry.clone()), (Outcome::Done, before));
    assert!(report.warnings.iter().any(|w| w.contains(r"(C:\theirs.dll)")), "{:?}", report.warnings);
}

/// An earlier wicd without support for plugins removes the library, and drops the keys from the record.
#[test]
fn a_registration_that_is_not_on_record_is_recognized_by_its_library() {
    for is_removed in [false, true] {
        let test_host = TestHost::new();
        test_host.apply(with_plugin(&test_host, "1", AZURE));
        let mut owned = Ownership::load(&test_host.host).unwrap().unwrap();
        owned.keys.clear();
        owned.save(&test_host.host).unwrap();
        if is_removed {
            assert_eq!(test_host.clean_up().outcome, Outcome::Done);
        } else {
            assert_eq!(test_host.apply(with_plugin(&test_host, "2", OTHER)).outcome, Outcome::Done);
        }
        assert_eq!(registered(&test_host), if is_removed { Vec::new() } else { keys_of(OTHER) });
    }
}

#[test]
fn only_libraries_in_the_directory_of_plugins_are_wicds() {
    for (library, expected) in [
        (LIBRARY, true),
        (r"c:\WINDOWS\wicd-ccg\other.dll", true),
        (r"C:\windows\wicd-ccg\", false),
        (r"C:\windows\wicd-ccg", false),
        (r"C:\windows\wicd-ccg\sub\x.dll", false),
        (r"C:\windows\wicd-ccg\..\x.dll", false),
        (r"C:\k\ccg\plugin.dll", false),
        ("plugin.dll", false),
        ("", false),
    ] {
        assert_eq!(is_our_library(library), expected, "{library}");
    }
}

#[test]
fn a_plugin_that_is_not_a_payload_file_is_refused() {
    for (clsid, library) in [(AZURE, r"C:\Users\Public\x.dll"), (r"{..\..\X}", LIBRARY), ("", LIBRARY)] {
        let test_host = TestHost::new();
        let mut wanted = with_plugin(&test_host, "1", AZURE);
        wanted.desired.credential_plugin = Some(CredentialPlugin { clsid: clsid.into(), library: library.into() });
        assert_eq!(reason(&test_host.apply(wanted)), "PayloadInvalid", "{clsid} {library}");
        assert!(registered(&test_host).is_empty());
    }
}

#[test]
fn another_plugin_replaces_the_registration_and_none_removes_it() {
    let test_host = TestHost::new();
    test_host.apply(with_plugin(&test_host, "1", AZURE));
    assert_eq!(registered(&test_host), keys_of(AZURE));
    assert_eq!(test_host.apply(with_plugin(&test_host, "2", OTHER)).outcome, Outcome::Done);
    assert_eq!((registered(&test_host), test_host.read(LIBRARY).as_deref()), (keys_of(OTHER), Some("library 2")));
    test_host.stage_version("3");
    assert_eq!(test_host.apply(wanted("3")).outcome, Outcome::Done);
    assert_eq!((registered(&test_host), test_host.exists(LIBRARY)), (Vec::new(), false));
    assert!(Ownership::load(&test_host.host).unwrap().unwrap().keys.is_empty());
}

#[test]
fn a_cleanup_removes_the_registration_except_keys_of_another_program() {
    let test_host = TestHost::new();
    test_host.apply(with_plugin(&test_host, "1", AZURE));
    test_host.state().registry.insert(format!(r"{CLASSES_OF_CCG}\{OTHER}"), Values::new());
    let theirs = format!(r"SOFTWARE\Classes\CLSID\{AZURE}\ProgID");
    test_host.state().registry.insert(theirs.clone(), Values::new());
    let report = test_host.clean_up();
    assert_eq!(report.outcome, Outcome::Done);
    let class = format!(r"SOFTWARE\Classes\CLSID\{AZURE}");
    assert!(report.warnings.iter().any(|w| w.contains(&format!(r"HKLM\{class} stays"))), "{:?}", report.warnings);
    assert!(!registered(&test_host).contains(&format!(r"{CLASSES_OF_CCG}\{AZURE}")), "CCG still finds it");
    let mut left = vec![class, theirs, format!(r"{CLASSES_OF_CCG}\{OTHER}")];
    left.sort();
    assert_eq!(test_host.state().registry.keys().cloned().collect::<Vec<_>>(), left);
    assert!(!test_host.exists(r"C:\windows\wicd-ccg"));
}

/// Owner and access list that Windows gives CCG's list.
const TRUSTED_INSTALLER: &[u8] = b"O:TI";

fn keep_from_administrators(test_host: &TestHost) {
    test_host.state().registry_access.insert(CLASSES_OF_CCG.to_owned(), TRUSTED_INSTALLER.to_vec());
}

/// At any crash, all keys that wicd has created are on record; the next operation finishes, and closes CCG's list.
#[test]
fn every_key_is_on_record_after_a_crash_anywhere() {
    let arrange = || {
        let test_host = TestHost::new();
        keep_from_administrators(&test_host);
        let wanted = with_plugin(&test_host, "1", AZURE);
        (test_host, wanted)
    };
    let act = |test_host: &TestHost, wanted: &Apply| drop(test_host.apply(wanted.clone()));
    let mut applies_again = false;
    crash_anywhere(arrange, act, 11, |test_host, wanted, about| {
        let owned = || Ownership::load(&test_host.host).unwrap().unwrap_or_default();
        assert!(registered(test_host).iter().all(|key| owned().keys.contains(key)), "{about}");
        applies_again = !applies_again;
        if applies_again {
            assert_eq!(test_host.apply(wanted.clone()).outcome, Outcome::Done, "{about}");
            assert_eq!(registered(test_host), keys_of(AZURE), "{about}");
        }
        assert_eq!(test_host.clean_up().outcome, Outcome::Done, "{about}");
        assert_eq!(registered(test_host), Vec::<String>::new(), "{about}");
        assert_eq!(test_host.state().registry_access[CLASSES_OF_CCG], TRUSTED_INSTALLER, "{about}");
        assert!(owned().opened_keys.is_empty(), "{about}");
    });
}

/// The next operation applies a plugin, applies none, or is a cleanup.
#[test]
fn a_list_that_was_left_open_is_closed() {
    for next in 0..3 {
        let test_host = TestHost::new();
        keep_from_administrators(&test_host);
        // Fails while the list is open, as if wicd crashed there.
        test_host.state().refused.insert(format!("restore_registry_key {CLASSES_OF_CCG}"));
        assert_eq!(reason(&test_host.apply(with_plugin(&test_host, "1", AZURE))), "HostCallFailed");
        assert_eq!(test_host.state().registry_access[CLASSES_OF_CCG], OPENED);
        test_host.state().refused.clear();
        let answer = match next {
            0 => test_host.apply(with_plugin(&test_host, "1", AZURE)),
            1 => test_host.apply(wanted("1")),
            _ => test_host.clean_up(),
        };
        assert_eq!(answer.outcome, Outcome::Done, "{next}");
        assert_eq!(test_host.state().registry_access[CLASSES_OF_CCG], TRUSTED_INSTALLER, "{next}");
        assert_eq!(registered(&test_host), if next == 0 { keys_of(AZURE) } else { Vec::new() }, "{next}");
    }
}
