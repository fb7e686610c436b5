//! What the Node of an instance shall have: from the pool's template, the host's entry, and the legacy metadata.

use std::collections::BTreeMap;

use api::names::key;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::{
    node::{Wanted, template},
    work::Work,
};
use crate::legacy;

/// Gathers it. The legacy user annotation needs the private key: if that cannot be had now, it is left for later.
pub async fn wanted_node(work: &Work, node: &Node) -> Wanted {
    let host = &work.instance.spec.host;
    let Wanted { labels, mut annotations, taints, .. } = template(&work.pool, host);
    if let Some(version) = work.version_for_wicd() {
        annotations.insert(key::DESIRED_VERSION.into(), version.to_string());
    }
    if let Some(host_key) = &work.status.host_key {
        annotations.insert(key::SSH_HOST_KEY.into(), host_key.public_key.clone());
        annotations.insert(key::SSH_HOST_KEY_TYPE.into(), host_key.key_type.clone());
    }
    // The legacy operator puts it on a node for the time of an upgrade. One that is left says nothing any more.
    let mut stale = vec![key::UPGRADING];
    if restarted(work) {
        stale.push(key::REBOOT_REQUIRED);
    }
    let mut if_missing = BTreeMap::new();
    // It is encrypted with the private key, so it has to be made anew when that is another one.
    let same_key = node.annotations().get(key::PUB_KEY_HASH) == work.status.public_key_hash.as_ref();
    let has_user = node.annotations().contains_key(key::USERNAME);
    let wants_user = !has_user || !same_key;
    // The two go together: a user that nobody can decrypt any more would never be found out.
    if let Some(hash) = work.status.public_key_hash.as_ref().filter(|_| same_key || !has_user) {
        annotations.insert(key::PUB_KEY_HASH.into(), hash.clone());
    }
    if wants_user {
        match work.cx.secrets.keys(&host.private_keys).await {
            Ok((keys, _)) => {
                let taken = |k: &&std::sync::Arc<crate::secrets::Key>| {
                    Some(k.identity.public_key_hash()) == work.status.public_key_hash
                };
                let Some(k) = keys.iter().find(taken) else {
                    return Wanted { labels, annotations, annotations_if_missing: if_missing, stale, taints };
                };
                match legacy::encrypt_username(&host.username, &k.pem) {
                    Ok(text) if has_user => {
                        annotations.insert(key::USERNAME.into(), text);
                        annotations.insert(key::PUB_KEY_HASH.into(), k.identity.public_key_hash());
                    }
                    Ok(text) => drop(if_missing.insert(key::USERNAME.into(), text)),
                    Err(error) => {
                        tracing::warn!(%error, node = node.name_any(), "the legacy user annotation was left out");
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "the legacy user annotation is left for later"),
        }
    }
    Wanted { labels, annotations, annotations_if_missing: if_missing, stale, taints }
}

/// Whether the restart that was asked for has happened in the operation that is going on.
fn restarted(work: &Work) -> bool {
    let left = work.status.operation.as_ref().and_then(|o| o.boot_id_to_leave.as_ref());
    left.is_some_and(|left| work.status.facts.as_ref().is_some_and(|f| f.boot_id != *left))
}
