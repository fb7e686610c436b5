//! Tests of the release file.

use api::Disruption;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::render::{fixtures, program};

fn file() -> ReleaseFile {
    let payloads = [(None, fixtures::payload(&fixtures::PROGRAMS))].into();
    ReleaseFile::new("0.2.0", &"b".repeat(64), payloads).unwrap()
}

fn json_of(file: &ReleaseFile) -> Value {
    serde_json::to_value(file).unwrap()
}

fn parse(value: &Value) -> Result<ReleaseFile, ReleaseFileError> {
    ReleaseFile::parse(&serde_json::to_vec(value).unwrap())
}

#[test]
fn a_written_file_is_read_again() {
    let file = file();
    let read = parse(&json_of(&file)).unwrap();
    assert_eq!(read, file);
    assert_eq!(read.payloads()[&None], fixtures::payload(&fixtures::PROGRAMS));
    assert_eq!(file.references.len(), 12);
    let size = serde_json::to_vec(&file).unwrap().len();
    assert!(size < 200 << 10, "{size} bytes are published with each release");
}

#[test]
fn the_file_of_this_program_shows_no_change() {
    for (platform, network) in references() {
        let cluster = Cluster { platform, network, ..fixtures::cluster() };
        assert_eq!(file().render_change(&cluster).unwrap(), RenderChange::default(), "{platform:?} {network:?}");
    }
}

#[test]
fn a_different_rendering_is_found() {
    type Edit = fn(&mut Rendered);
    fn service<'a>(rendered: &'a mut Rendered, name: &str) -> &'a mut api::services::Service {
        rendered.services.services.iter_mut().find(|s| s.name == name).unwrap()
    }
    for (about, edit, disruption, services, why) in [
        (
            "an argument of kubelet",
            (|r| service(r, "kubelet").path.push_str(" --new")) as Edit,
            Disruption::Restart,
            &["kubelet"][..],
            "the command of kubelet",
        ),
        (
            "an argument of containerd",
            |r| service(r, "containerd").path.push_str(" --new"),
            Disruption::Drain,
            &["containerd", "kubelet"],
            "the command of containerd",
        ),
        (
            "a setting of kubelet",
            |r| r.shared.kubelet["maxPods"] = json!(17),
            Disruption::Restart,
            &["kubelet"],
            "kubelet's settings (maxPods)",
        ),
    ] {
        let mut file = file();
        let reference = &mut file.references[0];
        let mut rendered = reference.rendered().unwrap();
        edit(&mut rendered);
        reference.config_map = rendered.to_config_map("reference", "reference");
        let file = parse(&json_of(&file)).unwrap();
        let found = file.render_change(&fixtures::cluster()).unwrap();
        assert_eq!((found.change.disruption, found.unknown), (disruption, None), "{about}");
        assert!(services.iter().all(|s| found.change.services.contains(*s)), "{about}: {:?}", found.change);
        assert_eq!(found.change.why, [why], "{about}");
        let elsewhere = Cluster { platform: Platform::Aws, ..fixtures::cluster() };
        assert_eq!(file.render_change(&elsewhere).unwrap(), RenderChange::default(), "{about}: another platform");
    }
}

#[test]
fn parts_that_cannot_be_compared_are_reported() {
    let mut unknown = json_of(&file());
    let annotation = unknown["references"][0]["configMap"]["metadata"]["annotations"].as_object_mut().unwrap();
    for text in annotation.values_mut() {
        let mut shared: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
        shared["aNewSetting"] = json!(true);
        *text = shared.to_string().into();
    }
    let mut without = json_of(&file());
    without["references"] = json!([]);
    let mut bare = json_of(&file());
    bare["payloads"][0]["manifest"]["files"] = json!([]);
    for (about, value, expected) in [
        ("an unknown setting", unknown, "does not know"),
        ("no reference for the platform", without, "on this platform"),
        ("a payload without kubelet", bare, "cannot render"),
    ] {
        let found = parse(&value).unwrap().render_change(&fixtures::cluster()).unwrap();
        assert!(found.unknown.clone().unwrap_or_default().contains(expected), "{about}: {found:?}");
        assert_eq!(found.change, Change::default(), "{about}");
    }
}

#[test]
fn hostile_files_are_refused() {
    let with = |pointer: &str, value: Value| {
        let mut file = json_of(&file());
        *file.pointer_mut(pointer).unwrap() = value;
        serde_json::to_vec(&file).unwrap()
    };
    let twice = {
        let payloads = json_of(&file())["payloads"][0].clone();
        with("/payloads", json!([payloads, payloads]))
    };
    let first = "/payloads/0/manifest/files/0";
    for (about, bytes, expected) in [
        ("nothing", Vec::new(), "it is not valid"),
        ("no JSON", b"version: 1".to_vec(), "it is not valid"),
        ("another object", br#"{"kind": "Secret"}"#.to_vec(), "it is not valid"),
        ("a newer format", br#"{"schema": 2, "all": "new"}"#.to_vec(), "with the program of that release"),
        ("too large", vec![b' '; MAX_BYTES + 1], "more than 8 MiB"),
        ("a version for a terminal", with("/version", json!("0.2.0\u{1b}[2J")), "the version is not"),
        ("a long version", with("/version", json!("1".repeat(100))), "the version is not"),
        ("a hash", with("/wicd", json!("B".repeat(64))), "64 lower-case"),
        ("no payload", with("/payloads", json!([])), "empty or too long"),
        ("two payloads", twice, "two for one version"),
        ("a path out", with(&format!("{first}/path"), json!("../../etc/passwd")), "must be relative"),
        ("another drive", with(&format!("{first}/destination"), json!(r"D:\x")), "must begin with C:"),
        ("no settings", with("/references/0/configMap/metadata/annotations", json!({})), "lacks the settings"),
        ("no services", with("/references/0/configMap/data", json!({})), "it is damaged (platform"),
        ("a reference", with("/references/0/configMap", json!("x")), "it is not valid"),
    ] {
        let error = ReleaseFile::parse(&bytes).unwrap_err().to_string();
        assert!(error.contains(expected), "{about}: {error}");
        assert!(!error.contains(char::is_control), "{about}: {error:?}");
    }
}

#[test]
fn another_payload_is_not_a_difference_in_rendering() {
    let mut payload = fixtures::payload(&fixtures::PROGRAMS);
    payload.files.iter_mut().for_each(|file| file.sha256 = "c".repeat(64));
    payload.files.retain(|file| file.destination != program::CSI_PROXY);
    let file = ReleaseFile::new("0.2.0", &"b".repeat(64), [(Some(36), payload)].into()).unwrap();
    assert_eq!(file.render_change(&fixtures::cluster()).unwrap(), RenderChange::default());
}

#[test]
fn a_payload_without_an_overlay_has_no_references_with_one() {
    let payload = fixtures::payload(&[program::KUBELET]);
    let file = ReleaseFile::new("0.2.0", &"b".repeat(64), [(None, payload)].into()).unwrap();
    assert!(file.references.iter().any(|r| !r.hybrid_overlay) && file.references.iter().all(|r| !r.hybrid_overlay));
    assert!(ReleaseFile::new("0.2.0", &"b".repeat(64), [(None, fixtures::payload(&[]))].into()).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = ReleaseFile::parse(&bytes);
    }

    /// Checks that a valid file with one changed value is read or refused, and that a file that is read can be used.
    #[test]
    fn any_value_is_read_or_refused(at in 0usize..4000, value in prop_oneof![
        Just(Value::Null), any::<i64>().prop_map(Value::from), ".{0,20}".prop_map(Value::from), Just(json!([])), Just(json!({})),
    ]) {
        let mut file = json_of(&file());
        let mut all = Vec::new();
        pointers(&file, String::new(), &mut all);
        *file.pointer_mut(&all[at % all.len()]).unwrap() = value;
        if let Ok(read) = parse(&file) {
            let _ = read.render_change(&fixtures::cluster());
        }
    }
}

/// Collects the JSON pointers of all values.
fn pointers(value: &Value, here: String, all: &mut Vec<String>) {
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(key, value)| pointers(value, format!("{here}/{}", escaped(key)), all));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, value)| pointers(value, format!("{here}/{at}"), all));
        }
        _ => {}
    }
    all.push(here);
}
