//! File-based catalog with one bundle.

use anyhow::{Context as _, Result};
use api::names::GROUP;
use serde_json::{Map, Value, json};

use super::{
    CHANNEL, PACKAGE, Release, VERSION,
    csv::{self, MAX_OPENSHIFT},
    csv_name,
    openshift_version::newest_openshift,
};

/// Fields of a ClusterServiceVersion that the catalog repeats, for consoles.
const OF_SPEC: [&str; 9] = [
    "description",
    "displayName",
    "installModes",
    "keywords",
    "links",
    "maintainers",
    "maturity",
    "minKubeVersion",
    "provider",
];

/// Returns the documents of the catalog: the package, its channel and its bundle.
pub(super) fn documents(release: &Release<'_>, csv: &Value, bundle_image: &str) -> Result<String> {
    let package =
        json!({"schema": "olm.package", "name": PACKAGE, "defaultChannel": CHANNEL, "description": csv::DESCRIPTION});
    let entry = json!({"name": csv_name(), "skipRange": csv::skip_range()});
    let channel = json!({"schema": "olm.channel", "name": CHANNEL, "package": PACKAGE, "entries": [entry]});
    let mut images = csv["spec"]["relatedImages"].as_array().context("no related images")?.clone();
    images.push(json!({"name": "bundle", "image": bundle_image}));
    let bundle = json!({
        "schema": "olm.bundle",
        "name": csv_name(),
        "package": PACKAGE,
        "image": bundle_image,
        "properties": properties(release, csv),
        "relatedImages": images,
    });
    let documents = [package, channel, bundle];
    documents.iter().map(|document| Ok(format!("---\n{}", serde_yaml::to_string(document)?))).collect()
}

fn properties(release: &Release<'_>, csv: &Value) -> Vec<Value> {
    let owned = csv["spec"]["customresourcedefinitions"]["owned"].as_array().into_iter().flatten();
    let gvk = |crd: &Value| json!({"type": "olm.gvk", "value": {"group": GROUP, "kind": crd["kind"], "version": crd["version"]}});
    let mut value: Map<_, _> = OF_SPEC.iter().map(|key| ((*key).to_owned(), csv["spec"][*key].clone())).collect();
    value.insert("annotations".into(), csv["metadata"]["annotations"].clone());
    value.insert("labels".into(), csv["metadata"]["labels"].clone());
    value.insert("crdDescriptions".into(), csv["spec"]["customresourcedefinitions"].clone());
    let mut properties: Vec<_> = owned.map(gvk).collect();
    properties.push(json!({"type": "olm.package", "value": {"packageName": PACKAGE, "version": VERSION}}));
    properties.extend(newest_openshift(release.kubernetes).map(|value| json!({"type": MAX_OPENSHIFT, "value": value})));
    properties.push(json!({"type": "olm.csv.metadata", "value": value}));
    properties
}
