//! Tests of versions that are stored as ConfigMaps, and read again.

use api::{
    TemplateSpec,
    payload::{File, Manifest},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::render::{
    Settings,
    fixtures::{PROGRAMS, cluster, payload},
    render,
};

fn rendered(manifest: &Manifest) -> Rendered {
    render(&cluster(), manifest, &Settings::default(), &TemplateSpec::default()).unwrap()
}

fn with_annotation(text: &str) -> ConfigMap {
    let mut config_map = rendered(&payload(&PROGRAMS)).to_config_map("1.0.0-abc", "ns");
    config_map.metadata.annotations = Some(BTreeMap::from([(key::RENDERED.to_owned(), text.to_owned())]));
    config_map
}

#[test]
fn a_stored_version_is_read_back() {
    let rendered = rendered(&payload(&PROGRAMS));
    let config_map = rendered.to_config_map("1.0.0-abc", "ns");
    assert_eq!(config_map.metadata.name.as_deref(), Some("windows-services-1.0.0-abc"));
    assert_eq!(config_map.metadata.namespace.as_deref(), Some("ns"));
    assert_eq!(config_map.immutable, Some(true));
    assert_eq!(config_map.metadata.labels.as_ref().unwrap()["app.kubernetes.io/managed-by"], "windows-node-pools");
    let over_the_wire: ConfigMap = serde_json::from_value(serde_json::to_value(&config_map).unwrap()).unwrap();
    assert_eq!(Rendered::from_config_map(&over_the_wire).unwrap(), Stored::Ours(rendered.clone()));

    let mut legacy = config_map;
    legacy.metadata.annotations = None;
    assert_eq!(Rendered::from_config_map(&legacy).unwrap(), Stored::Legacy(rendered.services));
}

#[test]
fn a_payload_of_realistic_size_fits() {
    let file = |i: usize| File {
        path: format!("kubernetes/{i:02}/some-rather-long-program-name-{i:02}.exe"),
        destination: format!(r"C:\k\some\directory\some-rather-long-program-name-{i:02}.exe"),
        sha256: "a".repeat(64),
        size: 123_456_789,
        compressed_size: 12_345_678,
        services: ["hybrid-overlay-node".to_owned(), "windows_exporter".to_owned()].into(),
        ..File::default()
    };
    let mut manifest = payload(&PROGRAMS);
    manifest.files.extend((0..40).map(file));
    let rendered = rendered(&manifest);
    let config_map = rendered.to_config_map("1.0.0-abc", "ns");
    let annotation = &config_map.metadata.annotations.as_ref().unwrap()[key::RENDERED];
    assert!(annotation.len() < MAX_ANNOTATION / 8, "{}", annotation.len());
    assert_eq!(Rendered::from_config_map(&config_map).unwrap(), Stored::Ours(rendered));
}

#[test]
fn invalid_content_is_refused() {
    type Spoil = fn(&mut Value);
    let good = serde_json::to_value(rendered(&payload(&PROGRAMS)).shared).unwrap();
    let cases: [(&str, Spoil, &str); 11] = [
        ("nothing", |v| *v = json!({}), "cannot be read"),
        ("path of a file", |v| v["files"][0]["path"] = json!("../../etc/passwd"), "relative"),
        ("destination", |v| v["files"][0]["destination"] = json!(r"D:\x"), "must begin with C:"),
        ("hash", |v| v["files"][0]["sha256"] = json!("x"), "hex"),
        ("twice", |v| v["files"][1] = v["files"][0].clone(), "same destination"),
        ("too many files", |v| v["files"] = vec![v["files"][0].clone(); 1001].into(), "more than 1,000 entries"),
        ("kubelet is not an object", |v| v["kubelet"] = json!([]), "kubelet's configuration is not an object"),
        ("taints", |v| v["kubelet"]["registerWithTaints"] = json!([]), "taints"),
        ("containerd", |v| v["containerd"] = json!("x".repeat(20_000)), "containerd's configuration has more than"),
        ("path of the cluster", |v| v["clusterFiles"][r"C:\..\x"] = json!("a".repeat(64)), "path on C:"),
        ("hash of the cluster", |v| v["clusterFiles"][r"C:\k\x"] = json!("secret"), "SHA-256"),
    ];
    for (name, spoil, expected) in cases {
        let mut shared = good.clone();
        spoil(&mut shared);
        let error = Rendered::from_config_map(&with_annotation(&shared.to_string())).unwrap_err();
        assert!(error.to_string().contains(expected), "{name}: {error}");
        assert!(!error.to_string().contains(';'), "{name}: the caller names the remedy: {error}");
    }
    assert!(Rendered::from_config_map(&with_annotation(&good.to_string())).is_ok());

    let long = " ".repeat(MAX_ANNOTATION);
    let large = Rendered::from_config_map(&with_annotation(&format!("{good}{long}")));
    assert!(matches!(large, Err(StoredError::TooLarge)));
    let mut large = with_annotation(&good.to_string());
    large.data.as_mut().unwrap().get_mut("files").unwrap().push_str(&" ".repeat(MAX_DATA));
    assert!(matches!(Rendered::from_config_map(&large), Err(StoredError::TooLarge)));
    assert!(matches!(Rendered::from_config_map(&ConfigMap::default()), Err(StoredError::Services(_))));
}

#[test]
fn only_unreferenced_versions_of_this_operator_are_collectable() {
    let stored = [("old", true), ("current", true), ("of WMCO", false), ("of WMCO, in use", false)];
    let stored = stored.map(|(name, is_ours)| StoredVersion { name: name.to_owned(), is_ours });
    let referenced = ["current", "of WMCO, in use", "gone"].map(str::to_owned).into();
    assert_eq!(collectable(&stored, &referenced), ["old"]);
    assert_eq!(collectable(&stored, &BTreeSet::new()), ["old", "current"]);
}

/// Returns JSON that differs from a valid annotation in one value.
fn near(good: Value) -> impl Strategy<Value = Value> {
    let keys: Vec<String> = good.as_object().unwrap().keys().cloned().collect();
    let other = prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
        proptest::collection::vec(".{0,9}".prop_map(Value::from), 0..3).prop_map(Value::from),
        proptest::collection::btree_map(".{0,9}", ".{0,9}", 0..3).prop_map(|m| json!(m)),
    ];
    (prop::sample::select(keys), other).prop_map(move |(key, value)| {
        let mut spoilt = good.clone();
        spoilt[key] = value;
        spoilt
    })
}

proptest! {
    #[test]
    fn any_annotation_is_read_or_refused(text in ".{0,200}") {
        let _ = Rendered::from_config_map(&with_annotation(&text));
    }

    #[test]
    fn an_annotation_with_one_changed_value_is_usable_or_refused(
        shared in near(serde_json::to_value(rendered(&payload(&PROGRAMS)).shared).unwrap())
    ) {
        if let Ok(Stored::Ours(rendered)) = Rendered::from_config_map(&with_annotation(&shared.to_string())) {
            let again = Rendered::from_config_map(&rendered.to_config_map("1.0.0-abc", "ns")).unwrap();
            prop_assert_eq!(&again, &Stored::Ours(rendered.clone()));
            prop_assert!(rendered.configs(&cluster(), &crate::render::fixtures::host()).is_ok());
            prop_assert_eq!(rendered.hash().len(), 64);
        }
    }
}
