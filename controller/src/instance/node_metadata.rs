//! Desired metadata of an instance's Node: from the pool's template, the host's entry, and the legacy metadata.

use std::sync::Arc;

use api::names::key;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::{drain::is_legacy_cordon, scope::Scope};
use crate::cluster::secrets::Key;
use wnp_core::{
    node::{desired_metadata::DesiredNodeMetadata, metadata::template, username},
    render::has_cloud_controller,
};

/// Gathers the desired metadata of the Node. The legacy user annotation needs the private key: if the key is not available now, the annotation is
/// written later.
pub(super) async fn wanted_node(scope: &Scope, node: &Node) -> DesiredNodeMetadata {
    let mut wanted = template(&scope.pool, &scope.instance.spec.host, scope.status.facts.as_ref());
    if let Some(version) = scope.version_for_wicd() {
        wanted.annotations.insert(key::DESIRED_VERSION.into(), version.to_string());
    }
    if let Some(host_key) = &scope.status.host_key {
        wanted.annotations.insert(key::SSH_HOST_KEY.into(), host_key.public_key.clone());
        wanted.annotations.insert(key::SSH_HOST_KEY_TYPE.into(), host_key.key_type.clone());
    }
    // The legacy operator sets this label during an upgrade. A leftover label is needed only to recognize the legacy operator's cordon.
    if !is_legacy_cordon(scope, node) {
        wanted.stale.push(key::UPGRADING);
    }
    if restarted(scope) {
        wanted.stale.push(key::REBOOT_REQUIRED);
    }
    wanted.provider_id = provider_id(scope);
    add_user(&mut wanted, scope, node).await;
    wanted
}

/// Returns the provider ID of the host's Machine, with which the Machine API finds the Node. Returns `None` if the Machine has no provider ID, or a
/// cloud controller manager sets the ID of the Node.
fn provider_id(scope: &Scope) -> Option<String> {
    let id = scope.instance.spec.origin.as_ref()?.provider_id.clone();
    id.filter(|_| !has_cloud_controller(&scope.cx.hosts.release.get().cluster, &scope.pool.spec.template_spec()))
}

/// Adds the legacy user name, and the hash of the key that encrypts it. If the Node has a user name, a new hash is added only together with a new
/// user name. Otherwise, the hash would name a key that cannot decrypt the user name.
async fn add_user(wanted: &mut DesiredNodeMetadata, scope: &Scope, node: &Node) {
    let host = &scope.instance.spec.host;
    let same_key = node.annotations().get(key::PUB_KEY_HASH) == scope.status.public_key_hash.as_ref();
    let annotation = node.annotations().get(key::USERNAME);
    if let Some(hash) = scope.status.public_key_hash.as_ref().filter(|_| same_key || annotation.is_none()) {
        wanted.annotations.insert(key::PUB_KEY_HASH.into(), hash.clone());
    }
    // The same name has many encrypted forms, so the last decrypted name is stored instead of being decrypted each time.
    wanted.username.clone_from(&scope.status.annotated_username);
    let is_known = scope.status.annotated_username.as_ref() == Some(&host.username);
    if annotation.is_some() && same_key && is_known {
        return;
    }
    let keys = match scope.cx.hosts.secrets.keys(&host.private_keys).await {
        Ok((keys, _)) => keys,
        Err(error) => {
            return tracing::debug!(%error, "the user name annotation of a Node is written later, because no private key can be read now");
        }
    };
    let is_taken =
        |k: &&Arc<Key>| scope.status.public_key_hash.as_ref().is_some_and(|h| *h == k.identity.public_key_hash());
    let Some(taken) = keys.iter().find(is_taken) else { return };
    if let Some(annotation) = annotation.filter(|_| same_key)
        && username::decrypt_username(annotation, &taken.pem).is_ok_and(|name| name == host.username)
    {
        wanted.username = Some(host.username.clone());
        return;
    }
    // The name is encrypted with the private key, so a new key requires a new annotation.
    match username::encrypt_username(&host.username, &taken.pem) {
        Ok(text) => {
            wanted.username = Some(host.username.clone());
            if annotation.is_some() {
                wanted.annotations.insert(key::USERNAME.into(), text);
                wanted.annotations.insert(key::PUB_KEY_HASH.into(), taken.identity.public_key_hash());
            } else {
                wanted.annotations_if_missing.insert(key::USERNAME.into(), text);
            }
        }
        Err(error) => {
            let (node, annotation) = (node.name_any(), key::USERNAME);
            tracing::warn!(%error, node, annotation, "the user name annotation of the Node is not written; the node works without it, but the Windows Machine Config Operator could not manage it again");
        }
    }
}

/// Reports whether the restart of the current operation has happened.
fn restarted(scope: &Scope) -> bool {
    let left = scope.status.operation.as_ref().and_then(|o| o.boot_id_to_leave.as_ref());
    left.is_some_and(|left| scope.status.facts.as_ref().is_some_and(|f| f.boot_id != *left))
}
