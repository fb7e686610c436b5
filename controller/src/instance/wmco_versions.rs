//! Legacy versions that nodes follow, and the settings that a change to this operator's version would lose. A node keeps its legacy version until no
//! setting would be lost, or its users accept the losses.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use api::{
    WindowsInstance, WindowsNodePool,
    names::{UNKNOWN_VERSION, key},
    services::ServicesConfig,
};
use kube::ResourceExt;

use crate::context::Context;
pub(crate) use wnp_core::inventory::fleet::adopted_version;
use wnp_core::{
    acts,
    render::{ImageSources, Stored},
    rollout::lost_settings::{Loss, images, losses, node_manager, unaccepted},
};

/// Versions of the legacy operator that nodes of a pool follow, and the losses that its users accept.
#[derive(Default)]
pub(crate) struct WmcoVersions {
    /// Stored versions by name; `None` for one that is not stored, and an error message for one that is unreadable.
    versions: HashMap<String, Result<Option<Arc<Stored>>, String>>,
    /// Value of the pool's annotation that accepts lost settings.
    accepted: Option<String>,
    /// True if the ServiceAccount of cloud-node-managers is missing.
    lacks_node_manager: bool,
    /// Sources of the images of the pool's hosts.
    image_sources: ImageSources,
}

impl WmcoVersions {
    /// Reads these versions, and the losses that the pool accepts.
    pub(crate) async fn read(versions: BTreeSet<String>, pool: &WindowsNodePool, cx: &Context) -> Self {
        let accepted = acts::in_force(pool, key::ACCEPT_LOST_SETTINGS).map(str::to_owned);
        let cluster = &cx.hosts.release.get().cluster;
        let image_sources = ImageSources::of(cluster, &pool.spec.template_spec());
        let lacks_node_manager = cluster.lacks_node_manager;
        let mut read = Self { versions: HashMap::new(), accepted, lacks_node_manager, image_sources };
        for version in versions {
            let stored = cx.hosts.versions.get(&version).await.map_err(|error| error.to_string());
            read.versions.insert(version, stored);
        }
        read
    }

    /// Returns the settings that a node of this version would lose, and whose loss is not accepted. `accepted` is the value of the instance's
    /// annotation.
    pub(crate) fn losses(&self, version: &str, accepted: Option<&String>, to: &ServicesConfig) -> Vec<Loss> {
        let all = match self.versions.get(version) {
            Some(Ok(Some(stored))) => match stored.as_ref() {
                Stored::Legacy(from) => {
                    let node_manager = node_manager(from, to, self.lacks_node_manager);
                    losses(from, to)
                        .into_iter()
                        .chain(node_manager)
                        .chain(images(from, to, &self.image_sources))
                        .collect()
                }
                Stored::Ours(_) => Vec::new(),
            },
            Some(Ok(None)) if version != UNKNOWN_VERSION => vec![Loss::Gone(version.to_owned())],
            Some(Err(error)) => vec![Loss::Unreadable(error.clone())],
            // A node of unknown version has no recorded settings: it is drained and changed.
            Some(Ok(None)) | None => Vec::new(),
        };
        unaccepted(&all, &[self.accepted.as_ref(), accepted])
    }

    /// Returns the settings that a host would lose, and whose loss is not accepted.
    pub(crate) fn losses_of(&self, instance: &WindowsInstance, to: &ServicesConfig) -> Vec<Loss> {
        let Some(version) = adopted_version(instance) else { return Vec::new() };
        self.losses(version, instance.annotations().get(key::ACCEPT_LOST_SETTINGS), to)
    }
}

#[cfg(test)]
mod tests {
    use api::services::Service;

    use super::*;

    #[test]
    fn settings_that_a_change_drops_or_that_cannot_be_read_count_as_lost() {
        let kubelet = Service { name: "kubelet".into(), ..Service::default() };
        let to = ServicesConfig { services: vec![kubelet], ..ServicesConfig::default() };
        let legacy = |config: &ServicesConfig| Ok(Some(Arc::new(Stored::Legacy(config.clone()))));
        let more = Service { name: "csi-proxy".into(), ..Service::default() };
        let richer = ServicesConfig { services: [to.services.clone(), vec![more]].concat(), ..to.clone() };
        for (about, version, stored, accepted, expected) in [
            ("the version has the same services", "10.19.0-a", legacy(&to), None, vec![]),
            (
                "the version has one more service",
                "10.19.0-a",
                legacy(&richer),
                None,
                vec![Loss::Service("csi-proxy".into())],
            ),
            ("its ConfigMap is missing", "10.19.0-a", Ok(None), None, vec![Loss::Gone("10.19.0-a".into())]),
            ("its ConfigMap is missing, which is accepted", "10.19.0-a", Ok(None), Some("unknown"), vec![]),
            (
                "its ConfigMap is damaged",
                "10.19.0-a",
                Err("no JSON".into()),
                None,
                vec![Loss::Unreadable("no JSON".into())],
            ),
            ("the version is unknown", UNKNOWN_VERSION, Ok(None), None, vec![]),
        ] {
            let versions = [(version.to_owned(), stored)].into();
            let accepted = accepted.map(str::to_owned);
            let wmco_versions =
                WmcoVersions { versions, accepted, lacks_node_manager: true, image_sources: ImageSources::default() };
            assert_eq!(wmco_versions.losses(version, None, &to), expected, "{about}");
        }
    }

    #[test]
    fn a_node_manager_that_works_is_not_replaced_by_one_that_waits() {
        let manager = Service { name: "cloud-node-manager".into(), ..Service::default() };
        let config = ServicesConfig { services: vec![manager], ..ServicesConfig::default() };
        for (lacks_node_manager, accepted, expected) in
            [(true, None, vec![Loss::NodeManager]), (true, Some("cloud-node-manager"), vec![]), (false, None, vec![])]
        {
            let stored = Ok(Some(Arc::new(Stored::Legacy(config.clone()))));
            let versions = [("10.19.0-a".to_owned(), stored)].into();
            let accepted = accepted.map(str::to_owned);
            let versions =
                WmcoVersions { versions, accepted, lacks_node_manager, image_sources: ImageSources::default() };
            assert_eq!(versions.losses("10.19.0-a", None, &config), expected, "{lacks_node_manager}");
        }
    }
}
