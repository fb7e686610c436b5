//! What differs between OpenShift and Kubernetes.

use serde_json::json;

use super::{
    object::{Object, Patch},
    windows_exporter,
};

/// Which cluster it is.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Platform {
    /// OpenShift.
    #[value(name = "openshift")]
    OpenShift,
    /// Any other Kubernetes.
    Kubernetes,
}

impl Platform {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::OpenShift, Self::Kubernetes];

    /// Its overlay below `deploy/`, and the chart's value `platform`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OpenShift => "openshift",
            Self::Kubernetes => "kubernetes",
        }
    }

    /// The folders of its objects.
    pub(crate) fn folders(self) -> &'static [&'static str] {
        match self {
            Self::OpenShift => {
                &["base", "machine-api", "openshift-config", "components/monitoring", windows_exporter::FOLDER]
            }
            Self::Kubernetes => &["base"],
        }
    }

    /// What is changed in them.
    pub(crate) fn patches(self) -> Vec<Patch> {
        let of_namespace = |labels| Patch { kind: "Namespace", path: "/metadata/labels", value: labels };
        let of_deployment = |path, value| Patch { kind: "Deployment", path, value };
        let tolerated = |role: &str| json!({"key": format!("node-role.kubernetes.io/{role}"), "operator": "Exists", "effect": "NoSchedule"});
        match self {
            Self::OpenShift => vec![
                of_namespace(json!({"openshift.io/cluster-monitoring": "true"})),
                of_deployment("/spec/template/spec/priorityClassName", json!("system-cluster-critical")),
                of_deployment(
                    "/spec/template/spec/tolerations",
                    json!([tolerated("master"), tolerated("control-plane")]),
                ),
                of_deployment("/spec/template/spec/nodeSelector/node-role.kubernetes.io~1control-plane", json!("")),
            ],
            Self::Kubernetes => vec![
                of_namespace(json!({"pod-security.kubernetes.io/enforce": "restricted"})),
                of_deployment("/spec/template/metadata/annotations/prometheus.io~1scrape", json!("true")),
                of_deployment(
                    "/spec/template/metadata/annotations/prometheus.io~1port",
                    json!(super::workload::METRICS.to_string()),
                ),
            ],
        }
    }

    /// The objects that are installed on it.
    pub(crate) fn objects(self, all: &[Object]) -> Vec<Object> {
        let mut objects: Vec<_> =
            all.iter().filter(|object| self.folders().contains(&object.folder())).cloned().collect();
        for patch in self.patches() {
            for object in &mut objects {
                patch.apply(object);
            }
        }
        objects
    }
}
