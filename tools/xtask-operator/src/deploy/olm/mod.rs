//! Bundle for the Operator Lifecycle Manager (format registry+v1) and its file-based catalog, from the chart as rendered for OpenShift.

mod catalog;
mod csv;
mod metadata;
mod openshift_version;

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use api::names::DEFAULT_NAMESPACE;
use serde_json::{Value, json};

pub(crate) use openshift_version::openshift;

use super::{
    HEADER, VERSION,
    chart::{self, NAME},
    object::Object,
    plain,
    platform::Platform,
};

/// Value of the label `app.kubernetes.io/managed-by`.
const MANAGED_BY: &str = "olm";

/// Name of the package in catalogs.
const PACKAGE: &str = NAME;
/// Channel of the bundle. A more stable channel follows when the API is no longer an alpha version.
const CHANNEL: &str = "candidate";

/// Release that a bundle is made for.
#[derive(Clone, Debug)]
pub(crate) struct Release<'a> {
    /// Image of the operator, by digest, except in the files of the repository.
    pub image: &'a str,
    /// Image for `oc adm must-gather`, by digest.
    pub must_gather: Option<&'a str>,
    /// Image of the payload, by digest, if the operator's image has no payload.
    pub payload: Option<&'a str>,
    /// Minor versions of Kubernetes whose programs are in the image, for example 36.
    pub kubernetes: &'a [u32],
}

/// Returns the name of the ClusterServiceVersion.
fn csv_name() -> String {
    format!("{PACKAGE}.v{VERSION}")
}

/// Place of an object in a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// File of its own.
    Manifest,
    /// Deployment in the ClusterServiceVersion.
    Deployment,
    /// Rules for the whole cluster in the ClusterServiceVersion.
    ClusterPermissions,
    /// No place: OLM creates the object from the ClusterServiceVersion, or a bundle cannot contain it.
    Left,
}

/// Returns the place of an object. Permissions in the operator's own namespace are a file: if they were `permissions` in the
/// ClusterServiceVersion, OLM would grant them for the whole cluster when the operator watches all namespaces, and the operator could read every
/// Secret.
fn place(object: &Object) -> Place {
    let metadata = &object.value["metadata"];
    let is_operators = metadata["name"] == NAME;
    let is_here = metadata["namespace"] == DEFAULT_NAMESPACE;
    match object.kind() {
        "Deployment" => Place::Deployment,
        // A registry+v1 bundle cannot hold the policies: users apply them.
        "ValidatingAdmissionPolicy" | "ValidatingAdmissionPolicyBinding" => Place::Left,
        "ServiceAccount" | "ClusterRoleBinding" if is_operators => Place::Left,
        "ClusterRole" if is_operators => Place::ClusterPermissions,
        // OLM installs all objects of a bundle into one namespace.
        "Role" if is_operators && !is_here => Place::ClusterPermissions,
        "RoleBinding" if is_operators && !is_here => Place::Left,
        _ => Place::Manifest,
    }
}

/// Objects of the installation, sorted by their place in the bundle.
struct Sorted {
    manifests: Vec<Object>,
    deployment: Value,
    cluster_rules: Vec<Value>,
}

fn sorted(release: &Release<'_>) -> Result<Sorted> {
    let mut values = chart::values(Platform::OpenShift.name());
    values["image"] = chart::image(release.image);
    if let Some(image) = release.payload {
        // The payload is not mounted as a volume, because OLM also installs on clusters whose nodes cannot mount an image.
        values["payload"] = json!({"image": image, "by": "initContainers"});
    }
    let objects = chart::render(MANAGED_BY, values)?;
    let of = |place_of: Place| objects.iter().filter(move |object| place(object) == place_of);
    let deployment = of(Place::Deployment).next().context("no Deployment")?.value.clone();
    let rules = of(Place::ClusterPermissions).filter_map(|object| object.value["rules"].as_array()).flatten();
    Ok(Sorted {
        manifests: of(Place::Manifest).cloned().collect(),
        deployment,
        cluster_rules: rules.cloned().collect(),
    })
}

/// Returns the files of a bundle without the CRDs, which are in `crds/`, by path below the bundle's folder.
fn without_crds(release: &Release<'_>) -> Result<BTreeMap<String, String>> {
    let sorted = sorted(release)?;
    let csv = csv::csv(release, &sorted)?;
    let mut files: BTreeMap<String, String> = sorted
        .manifests
        .iter()
        .map(|object| (format!("manifests/{}", file_name(&object.value)), HEADER.to_owned() + &object.text))
        .collect();
    files.insert(format!("manifests/{}", file_name(&csv)), plain(&csv)?);
    files.insert("metadata/annotations.yaml".into(), plain(&metadata::annotations())?);
    files.insert("tests/scorecard/config.yaml".into(), plain(&metadata::scorecard())?);
    Ok(files)
}

/// Returns the files of a bundle, by path below its folder.
pub(crate) fn bundle(release: &Release<'_>) -> Result<BTreeMap<String, String>> {
    let mut files = without_crds(release)?;
    files.insert("bundle.Containerfile".into(), metadata::containerfile());
    for crd in super::crds(MANAGED_BY) {
        files.insert(format!("manifests/{}", file_name(&serde_json::to_value(&crd)?)), plain(&crd)?);
    }
    Ok(files)
}

/// Returns a catalog with this bundle, whose image is in a registry.
pub(crate) fn catalog(release: &Release<'_>, bundle_image: &str) -> Result<String> {
    let csv = csv::csv(release, &sorted(release)?)?;
    Ok(HEADER.to_owned() + &catalog::documents(release, &csv, bundle_image)?)
}

/// Returns the CatalogSource with which OLM v0 offers the catalog in this image.
pub(crate) fn catalog_source(catalog_image: &str) -> Result<String> {
    plain(&json!({
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "CatalogSource",
        "metadata": {"name": NAME, "namespace": "openshift-marketplace"},
        "spec": {"sourceType": "grpc", "image": catalog_image, "displayName": "Windows node pools"},
    }))
}

/// Returns the files for reviews and tests, by path from the root of the repository. The image has a tag, and the CRDs are in `crds/`.
pub(super) fn files(kubernetes: &[u32]) -> Result<BTreeMap<String, String>> {
    let image = format!("{NAME}:{VERSION}");
    let release = Release { image: &image, must_gather: None, payload: None, kubernetes };
    Ok(without_crds(&release)?.into_iter().map(|(path, text)| (format!("deploy/olm/{path}"), text)).collect())
}

fn file_name(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, name) = (text(&object["kind"]).to_lowercase(), text(&object["metadata"]["name"]));
    match kind.as_str() {
        "clusterserviceversion" => format!("{PACKAGE}.clusterserviceversion.yaml"),
        "customresourcedefinition" => format!("{name}.crd.yaml"),
        _ => format!("{name}.{kind}.yaml"),
    }
}

#[cfg(test)]
mod tests;
