use api::host::{Apply, Body, Cleanup, Outcome};

use super::*;
use crate::operation::tests::{Bed, archive, file, frame, message, payload_files, reason, wanted};

const AZURE: &str = "{CCC2A336-D7F3-4818-A213-272B7924213E}";
const OTHER: &str = "{859E1386-BDB4-49E8-85C7-3070B13920E1}";
const LIBRARY: &str = r"C:\k\ccg\plugin.dll";

/// What the pool wants at version `v` with this plugin.
fn with_plugin(bed: &Bed, v: &str, clsid: &str) -> Apply {
    let mut apply = wanted(v);
    let content = format!("library {v}").into_bytes();
    let mut contents = payload_files(v);
    contents.push((file(LIBRARY, &content), content));
    let entries: Vec<_> = contents.iter().map(|(file, content)| (file.sha256.clone(), frame(content))).collect();
    let entries: Vec<_> = entries.iter().map(|(name, frame)| (name.as_str(), frame.as_slice())).collect();
    apply.files = contents.iter().map(|(file, _)| file.clone()).collect();
    assert_eq!(bed.stage(&apply.files, &archive(&entries)).outcome, Outcome::Done);
    apply.desired.credential_plugin = Some(CredentialPlugin { clsid: clsid.into(), library: LIBRARY.into() });
    apply
}

fn registered(bed: &Bed) -> Vec<String> {
    bed.host.state().registry.keys().cloned().collect()
}

fn keys_of(clsid: &str) -> Vec<String> {
    let plugin = CredentialPlugin { clsid: clsid.into(), library: LIBRARY.into() };
    keys(&plugin).map(|(key, _)| key).into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}

fn apply(bed: &Bed, apply: Apply) -> api::host::Answer {
    bed.run(Body::Apply(Box::new(apply)))
}

#[test]
fn classes() {
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
fn it_is_registered_as_microsofts_own() {
    let bed = Bed::new();
    assert_eq!(apply(&bed, with_plugin(&bed, "1", AZURE)).outcome, Outcome::Done);
    let registry = bed.host.state().registry.clone();
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
    let library = bed.host.path(LIBRARY).unwrap();
    assert!(bed.host.state().access[&library].is(crate::access::Guard::Readable));
    // A second time changes nothing.
    bed.host.state().counts.clear();
    assert_eq!(apply(&bed, with_plugin(&bed, "1", AZURE)).outcome, Outcome::Done);
    assert_eq!(bed.host.state().counts.get("put_registry_key"), None);
}

#[test]
fn what_differs_is_mended() {
    let bed = Bed::new();
    apply(&bed, with_plugin(&bed, "1", AZURE));
    let before = bed.host.state().registry.clone();
    let server = format!(r"SOFTWARE\Classes\CLSID\{AZURE}\InprocServer32");
    bed.host.state().registry.get_mut(&server).unwrap().insert(String::new(), Value::Text(r"C:\theirs.dll".into()));
    bed.host.state().registry.remove(&format!(r"{CLASSES_OF_CCG}\{AZURE}"));
    assert_eq!(apply(&bed, with_plugin(&bed, "1", AZURE)).outcome, Outcome::Done);
    assert_eq!(bed.host.state().registry, before);
}

/// Whichever part of it is there.
#[test]
fn a_registration_of_another_installer_is_left_alone() {
    for key in keys_of(AZURE) {
        let bed = Bed::new();
        let theirs = Values::from([(String::new(), Value::Text("theirs".into()))]);
        bed.host.state().registry.insert(key.clone(), theirs);
        let before = bed.host.state().registry.clone();
        let answer = apply(&bed, with_plugin(&bed, "1", AZURE));
        assert_eq!(reason(&answer), "ForeignCredentialPlugin");
        assert!(message(&answer).contains(&key), "{}", message(&answer));
        assert_eq!(bed.host.state().registry, before);
        assert!(!bed.exists(LIBRARY));
        // Neither does the cleanup of what there is touch it.
        assert_eq!(bed.run(Body::Cleanup(Cleanup {})).outcome, Outcome::Done);
        assert_eq!(bed.host.state().registry, before);
    }
}

#[test]
fn a_plugin_that_is_no_payload_file_is_refused() {
    for (clsid, library) in [(AZURE, r"C:\Users\Public\x.dll"), (r"{..\..\X}", LIBRARY), ("", LIBRARY)] {
        let bed = Bed::new();
        let mut wanted = with_plugin(&bed, "1", AZURE);
        wanted.desired.credential_plugin = Some(CredentialPlugin { clsid: clsid.into(), library: library.into() });
        assert_eq!(reason(&apply(&bed, wanted)), "PathRefused", "{clsid} {library}");
        assert!(registered(&bed).is_empty());
    }
}

#[test]
fn another_plugin_replaces_it_and_none_removes_it() {
    let bed = Bed::new();
    apply(&bed, with_plugin(&bed, "1", AZURE));
    assert_eq!(registered(&bed), keys_of(AZURE));
    assert_eq!(apply(&bed, with_plugin(&bed, "2", OTHER)).outcome, Outcome::Done);
    assert_eq!((registered(&bed), bed.read(LIBRARY).as_deref()), (keys_of(OTHER), Some("library 2")));
    assert_eq!(bed.stage_version("3").outcome, Outcome::Done);
    assert_eq!(apply(&bed, wanted("3")).outcome, Outcome::Done);
    assert_eq!((registered(&bed), bed.exists(LIBRARY)), (Vec::new(), false));
    assert!(Ownership::load(&bed.host).unwrap().unwrap().keys.is_empty());
}

#[test]
fn a_cleanup_removes_it_and_leaves_what_another_program_put_into_it() {
    let bed = Bed::new();
    apply(&bed, with_plugin(&bed, "1", AZURE));
    bed.host.state().registry.insert(format!(r"{CLASSES_OF_CCG}\{OTHER}"), Values::new());
    let theirs = format!(r"SOFTWARE\Classes\CLSID\{AZURE}\ProgID");
    bed.host.state().registry.insert(theirs.clone(), Values::new());
    let report = bed.run(Body::Cleanup(Cleanup {}));
    assert_eq!(report.outcome, Outcome::Done);
    let class = format!(r"SOFTWARE\Classes\CLSID\{AZURE}");
    assert!(report.warnings.iter().any(|w| w.contains(&format!(r"HKLM\{class} stays"))), "{:?}", report.warnings);
    assert!(!registered(&bed).contains(&format!(r"{CLASSES_OF_CCG}\{AZURE}")), "CCG still finds it");
    let mut left = vec![class, theirs, format!(r"{CLASSES_OF_CCG}\{OTHER}")];
    left.sort();
    assert_eq!(bed.host.state().registry.keys().cloned().collect::<Vec<_>>(), left);
    assert!(!bed.exists(r"C:\k\ccg"));
}

/// Whenever wicd ends, what it has made is on record, and the next attempt or the cleanup finishes.
#[test]
fn a_crash_leaves_nothing_that_is_not_on_record() {
    let straight = Bed::new();
    let wanted = with_plugin(&straight, "1", AZURE);
    straight.host.fail_after(None);
    assert_eq!(apply(&straight, wanted).outcome, Outcome::Done);
    let calls = straight.host.state().calls;
    for n in (0..calls).step_by(11) {
        let bed = Bed::new();
        let wanted = with_plugin(&bed, "1", AZURE);
        bed.host.fail_after(Some(n));
        apply(&bed, wanted.clone());
        bed.host.fail_after(None);
        let owned = Ownership::load(&bed.host).unwrap().unwrap_or_default();
        assert!(registered(&bed).iter().all(|key| owned.keys.contains(key)), "after {n} calls");
        if n % 2 == 0 {
            assert_eq!(apply(&bed, wanted).outcome, Outcome::Done, "after {n} calls");
            assert_eq!(registered(&bed), keys_of(AZURE), "after {n} calls");
        }
        assert_eq!(bed.run(Body::Cleanup(Cleanup {})).outcome, Outcome::Done, "after {n} calls");
        assert_eq!(registered(&bed), Vec::<String>::new(), "after {n} calls");
    }
}
