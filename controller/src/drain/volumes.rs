//! Volumes that are still attached to a node although their pods have left.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Volume};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;
use kube::api::{Api, ListParams};

use super::clock::{Clock, list_all};
use super::error::DrainError;

/// Returns a blocker for each volume attached to `node` that no pod in `staying` uses, sorted.
///
/// The API cannot select VolumeAttachments by node, so all are listed.
pub(super) async fn attached(
    client: &kube::Client,
    clock: &Clock,
    node: &str,
    staying: &[Pod],
) -> Result<Vec<String>, DrainError> {
    let all: Vec<VolumeAttachment> =
        list_all(&Api::all(client.clone()), ListParams::default(), clock, "list the volume attachments").await?;
    let mut attached: Vec<VolumeAttachment> = all.into_iter().filter(|a| a.spec.node_name == node).collect();
    if !attached.is_empty() {
        let in_use = volumes_of(client, clock, staying).await?;
        attached.retain(|a| !a.spec.source.persistent_volume_name.as_ref().is_some_and(|name| in_use.contains(name)));
    }
    let describe = |attachment: VolumeAttachment| {
        let name = attachment.name_any();
        let volume = attachment.spec.source.persistent_volume_name.unwrap_or(name);
        format!(
            "volume {volume}: {} has not detached it from the node yet; if this lasts, check the CSI driver",
            attachment.spec.attacher
        )
    };
    let mut blockers: Vec<String> = attached.into_iter().map(describe).collect();
    blockers.sort();
    Ok(blockers)
}

/// Returns the names of the PersistentVolumes that these pods use.
async fn volumes_of(client: &kube::Client, clock: &Clock, pods: &[Pod]) -> Result<BTreeSet<String>, DrainError> {
    let claims: BTreeSet<(String, String)> = pods
        .iter()
        .flat_map(|pod| {
            let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
            volumes.filter_map(|volume| Some((pod.namespace()?, claim(pod, volume)?)))
        })
        .collect();
    let mut names = BTreeSet::new();
    for (namespace, claim) in claims {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
        let found = clock.call(|| format!("read volume claim {namespace}/{claim}"), api.get_opt(&claim)).await?;
        names.extend(found.and_then(|claim| claim.spec?.volume_name));
    }
    Ok(names)
}

/// Returns the claim of a volume. A generic ephemeral volume has a claim named after the pod and the volume.
fn claim(pod: &Pod, volume: &Volume) -> Option<String> {
    match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => Some(source.claim_name.clone()),
        (None, Some(_)) => Some(format!("{}-{}", pod.name_any(), volume.name)),
        (None, None) => None,
    }
}
