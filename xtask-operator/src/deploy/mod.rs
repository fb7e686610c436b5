//! What is installed in a cluster, as typed values: the one source of `deploy/`, of the Helm chart and of the manifests of a release.

mod alerts;
mod argocd;
mod chart;
pub(crate) mod dashboards;
mod kustomize;
mod marks;
mod monitoring;
mod object;
mod olm;
mod payload;
mod platform;
mod policies;
mod rights;
mod single;
mod users;
mod windows_exporter;
mod workload;
mod yaml;

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

pub(crate) use alerts::{Alert, alerts};
pub(crate) use chart::values_table as chart_values;
pub(crate) use object::{Object, Site, VERSION};
pub(crate) use olm::{Release, bundle, catalog, catalog_source, openshift};
pub(crate) use platform::Platform;
pub(crate) use rights::under_olm;
pub(crate) use single::manifest;
pub(crate) use yaml::comment;

/// All objects but the CRDs, in the order in which they are written.
pub(crate) fn objects(site: &Site) -> Vec<Object> {
    let workload = workload::objects(site);
    let (namespace, rest) = workload.split_at(1);
    [
        namespace,
        &rights::objects(site),
        &policies::objects(site),
        rest,
        &monitoring::objects(site),
        &dashboards::objects(site),
        &windows_exporter::objects(site),
    ]
    .concat()
}

/// All roles, with those of components and of OLM.
pub(crate) fn roles(site: &Site) -> Vec<Object> {
    let all = [objects(site), rights::under_olm(site)].concat();
    all.into_iter().filter(|object| object.kind().ends_with("Role")).collect()
}

/// Labels of the CRDs.
pub(crate) fn crd_labels(site: &Site) -> Option<BTreeMap<String, String>> {
    site.meta("", "api").labels
}

/// The CRDs, with the labels of the other objects.
pub(crate) fn crds(site: &Site) -> Result<Vec<Object>> {
    let labelled = |mut crd: CustomResourceDefinition| {
        crd.metadata.labels = crd_labels(site);
        Ok(Object { file: "crds", about: "", whys: Vec::new(), value: serde_json::to_value(&crd)? })
    };
    api::crds().into_iter().map(labelled).collect()
}

/// Every file below `deploy/`: path from the root of the repository, and text.
pub(crate) fn files() -> Result<BTreeMap<String, String>> {
    let of_olm = olm::files(&[crate::payload::minor(crate::payload::KUBERNETES[0])?])?;
    let of_others = chart::files()?.into_iter().chain(argocd::files()).chain(of_olm);
    let dashboard = std::iter::once(dashboards::file());
    Ok(kustomize::files().into_iter().chain(dashboard).chain(users::files()?).chain(of_others).collect())
}

#[cfg(test)]
mod alerts_tests;
#[cfg(test)]
mod argocd_tests;
#[cfg(test)]
mod dashboards_tests;
#[cfg(test)]
mod drift_tests;
#[cfg(test)]
mod kustomize_tests;
#[cfg(test)]
mod windows_exporter_series_tests;
#[cfg(test)]
mod windows_exporter_tests;
