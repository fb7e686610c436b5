//! Files of kustomize's base and components: the chart as Helm renders it with all options, and without values that differ by platform.

use std::{collections::BTreeMap, sync::OnceLock};

use anyhow::{Context as _, Result};
use serde_json::json;

use super::{HEADER, chart, object::Object};

/// Templates of the chart, and the files below `deploy/` with the objects that they render.
const FILES: [(&str, &str); 18] = [
    ("operator.yaml", "base/operator.yaml"),
    ("metrics-reader.yaml", "base/metrics-reader.yaml"),
    ("wicd.yaml", "base/wicd.yaml"),
    ("policies.yaml", "base/policies.yaml"),
    ("deployment.yaml", "base/deployment.yaml"),
    ("service.yaml", "base/service.yaml"),
    ("machine-api.yaml", "machine-api/user-data.yaml"),
    ("cluster-api.yaml", "cluster-api/user-data.yaml"),
    ("pull-secret.yaml", "openshift-config/pull-secret.yaml"),
    ("node-manager.yaml", "azure/node-manager.yaml"),
    ("monitoring.yaml", "components/monitoring/monitoring.yaml"),
    ("alerts.yaml", "components/monitoring/alerts.yaml"),
    ("windows-exporter.yaml", "components/windows-exporter/windows-exporter.yaml"),
    ("guards.yaml", "components/guards/guards.yaml"),
    ("network-policy.yaml", "components/network-policy/network-policy.yaml"),
    ("roles.yaml", "components/view-roles/roles.yaml"),
    ("dashboard-grafana.yaml", "components/dashboard-grafana/dashboard.yaml"),
    ("dashboard-openshift.yaml", "components/dashboard-openshift/dashboard.yaml"),
];

/// Returns all objects of kustomize except the CRDs, including those of components, each with its file below `deploy/`.
pub(crate) fn objects() -> Result<Vec<Object>> {
    static RENDERED: OnceLock<Vec<Object>> = OnceLock::new();
    if let Some(rendered) = RENDERED.get() {
        return Ok(rendered.clone());
    }
    let mut values = chart::values("kubernetes");
    values["metrics"] = json!({"podAnnotations": false});
    values["dashboards"] = json!({"grafana": true, "openshift": true});
    for option in [
        "azure",
        "clusterApi",
        "guards",
        "machineApi",
        "monitoring",
        "networkPolicy",
        "openshiftConfig",
        "viewRoles",
        "windowsExporter",
    ] {
        values[option] = json!({"enabled": true});
    }
    let mut objects = chart::render("kustomize", values)?;
    for object in &mut objects {
        let file = FILES.iter().find(|(template, _)| *template == object.file);
        let (_, file) =
            file.with_context(|| format!("no file of kustomize contains the objects of template {}", object.file))?;
        object.file = (*file).to_owned();
    }
    Ok(RENDERED.get_or_init(|| objects).clone())
}

/// Returns the generated files of kustomize, by path from the root of the repository.
pub(super) fn files() -> Result<BTreeMap<String, String>> {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for object in objects()? {
        let file = files.entry(format!("deploy/{}", object.file)).or_default();
        *file += if file.is_empty() { HEADER } else { "---\n" };
        *file += &object.text;
    }
    Ok(files)
}
