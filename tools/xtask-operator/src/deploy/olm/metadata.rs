//! Metadata of a bundle outside the ClusterServiceVersion.

use serde_json::{Value, json};

use super::{
    super::HEADER,
    {CHANNEL, PACKAGE},
};

/// Prefix of the labels of a bundle's image.
const BUNDLE: &str = "operators.operatorframework.io.bundle";
/// Prefix of the labels for the tests of a bundle.
const TEST: &str = "operators.operatorframework.io.test";
/// Image whose tests `operator-sdk scorecard` runs as Pods.
const SCORECARD: &str = "quay.io/operator-framework/scorecard-test:v1.42.2";

fn labels() -> [(String, &'static str); 8] {
    [
        (format!("{BUNDLE}.mediatype.v1"), "registry+v1"),
        (format!("{BUNDLE}.manifests.v1"), "manifests/"),
        (format!("{BUNDLE}.metadata.v1"), "metadata/"),
        (format!("{BUNDLE}.package.v1"), PACKAGE),
        (format!("{BUNDLE}.channels.v1"), CHANNEL),
        (format!("{BUNDLE}.channel.default.v1"), CHANNEL),
        (format!("{TEST}.mediatype.v1"), "scorecard+v1"),
        (format!("{TEST}.config.v1"), "tests/scorecard/"),
    ]
}

/// Returns the content of `metadata/annotations.yaml`.
pub(super) fn annotations() -> Value {
    let annotations: serde_json::Map<_, _> = labels().into_iter().map(|(key, value)| (key, json!(value))).collect();
    json!({"annotations": annotations})
}

/// Returns the Containerfile of the bundle, which sets the labels of `metadata/annotations.yaml` on the image.
pub(super) fn containerfile() -> String {
    let labels: Vec<String> = labels().iter().map(|(key, value)| format!("LABEL {key}={value}\n")).collect();
    let copies = "COPY manifests /manifests/\nCOPY metadata /metadata/\nCOPY tests/scorecard /tests/scorecard/\n";
    format!("{HEADER}FROM scratch\n{}{copies}", labels.concat())
}

/// Returns the content of `tests/scorecard/config.yaml`.
pub(super) fn scorecard() -> Value {
    let test = |(suite, name): (&str, &str)| {
        json!({
            "image": SCORECARD,
            "entrypoint": ["scorecard-test", name],
            "labels": {"suite": suite, "test": format!("{name}-test")},
            "storage": {"spec": {"mountPath": {}}},
        })
    };
    let tests: Vec<_> = [
        ("basic", "basic-check-spec"),
        ("olm", "olm-bundle-validation"),
        ("olm", "olm-crds-have-validation"),
        ("olm", "olm-crds-have-resources"),
        ("olm", "olm-spec-descriptors"),
        ("olm", "olm-status-descriptors"),
    ]
    .into_iter()
    .map(test)
    .collect();
    json!({
        "apiVersion": "scorecard.operatorframework.io/v1alpha3",
        "kind": "Configuration",
        "metadata": {"name": "config"},
        "stages": [{"parallel": true, "tests": tests}],
        "storage": {"spec": {"mountPath": {}}},
    })
}
