//! What a cluster has already: its platform, its name, and MachineSets of Linux workers. Pure.

use std::collections::BTreeMap;

use api::names::key;
use kube::{ResourceExt, api::DynamicObject};
use serde_json::Value;

use super::{refusal::Refusal, text_at};

/// A MachineSet of Linux workers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Worker {
    pub name: String,
    /// `spec.template.spec.providerSpec.value`
    pub provider: Value,
    /// What the autoscaler reads.
    pub annotations: BTreeMap<String, String>,
}

impl Worker {
    /// Reads a MachineSet, if it is one of Linux workers.
    pub(super) fn read(set: &DynamicObject) -> Option<Self> {
        let template = set.data.pointer("/spec/template")?;
        let label = |key: &str| template["metadata"]["labels"][key].as_str();
        let is_worker = label("machine.openshift.io/cluster-api-machine-role") == Some("worker");
        let provider = template.pointer("/spec/providerSpec/value").filter(|value| value.is_object())?.clone();
        let is_linux = label(key::MACHINE_OS) != Some("Windows");
        (is_worker && is_linux).then(|| Self { name: set.name_any(), provider, annotations: set.annotations().clone() })
    }

    /// Its zone, where the platforms have one.
    pub(super) fn zone(&self) -> Option<&str> {
        ["/placement/availabilityZone", "/zone"].iter().find_map(|at| self.provider.pointer(at)?.as_str())
    }
}

/// What is known of a cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Cluster {
    platform: Option<String>,
    pub infrastructure: Option<String>,
    workers: Vec<Worker>,
}

impl Cluster {
    pub(super) fn new(infrastructure: &Value, mut workers: Vec<Worker>) -> Self {
        workers.sort_by(|a, b| a.name.cmp(&b.name));
        Self {
            platform: text_at(infrastructure, "/status/platformStatus/type")
                .map(|platform| platform.to_ascii_lowercase()),
            infrastructure: text_at(infrastructure, "/status/infrastructureName"),
            workers,
        }
    }

    /// The worker to begin with: the first by name in this zone, otherwise the first.
    ///
    /// # Errors
    /// When the cluster is on another platform.
    pub(super) fn worker(&self, platform: &str, zone: Option<&str>) -> Result<Option<&Worker>, Refusal> {
        if let Some(found) = self.platform.as_deref().filter(|found| *found != platform) {
            return Err(Refusal::OtherPlatform { found: api::text::line(found, 40), wanted: platform.to_owned() });
        }
        let in_zone = self.workers.iter().find(|worker| zone.is_some() && worker.zone() == zone);
        Ok(in_zone.or_else(|| self.workers.first()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(name: &str, labels: &Value, zone: &str) -> DynamicObject {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "openshift-machine-api"},
            "spec": {"template": {
                "metadata": {"labels": labels},
                "spec": {"providerSpec": {"value": {"placement": {"availabilityZone": zone}}}},
            }},
        }))
        .unwrap()
    }

    #[test]
    fn a_worker_of_the_zone_is_the_model() {
        let role = |role: &str| json!({"machine.openshift.io/cluster-api-machine-role": role});
        let windows = json!({"machine.openshift.io/cluster-api-machine-role": "worker", key::MACHINE_OS: "Windows"});
        let sets = [
            set("c", &role("worker"), "1c"),
            set("b", &role("worker"), "1b"),
            set("a", &windows, "1a"),
            set("0", &role("infra"), "1a"),
        ];
        let workers: Vec<Worker> = sets.iter().filter_map(Worker::read).collect();
        let infrastructure = json!({"status": {"infrastructureName": "ocp-7x2kq", "platformStatus": {"type": "AWS"}}});
        let cluster = Cluster::new(&infrastructure, workers);
        assert_eq!(cluster.infrastructure.as_deref(), Some("ocp-7x2kq"));
        for (platform, zone, expected) in [
            ("aws", None, Ok(Some("b"))),
            ("aws", Some("1c"), Ok(Some("c"))),
            ("aws", Some("1a"), Ok(Some("b"))),
            ("azure", None, Err("the cluster is on the platform aws, not on azure: give --platform aws")),
        ] {
            let found = cluster.worker(platform, zone).map(|worker| worker.map(|w| w.name.as_str()));
            assert_eq!(found.map_err(|e| e.to_string()), expected.map_err(Into::into), "{platform} {zone:?}");
        }
        assert_eq!(Cluster::new(&Value::Null, Vec::new()).worker("aws", None).unwrap(), None);
    }
}
