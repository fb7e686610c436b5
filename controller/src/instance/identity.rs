//! Proves that the host that answered is the expected one, before it is changed.

use std::net::IpAddr;

use api::{
    ProvenAt, WindowsInstance,
    host::{HostState, Owner, Recipient},
    names::key,
};
use kube::ResourceExt;

use super::{error::StepError, login::is_key_declared, scope::Scope};
use remote::{ProvenHost, Session};
use wnp_core::{
    acts,
    node::owner::{NodeOwner, whose},
    operation::identity::{ExpectedHost, Found, Identity, NodeProof, Others, Purpose, identify},
};

/// Returns the purpose of contacting a host that is not being removed.
pub(super) fn purpose(scope: &Scope) -> Purpose {
    if scope.status.current_version.is_some() { Purpose::Keep } else { Purpose::Join }
}

/// Identifies the host that answered, binds the session to it, so that the host accepts commands, and records the address in the status. Fails if the
/// host is not the expected one. Only for [`Purpose::Remove`] without a Node, returns [`Identity::OtherOwner`] for the host of another owner instead,
/// and leaves the session unbound.
pub(super) fn prove(
    scope: &mut Scope,
    session: &mut Session,
    state: &HostState,
    purpose: Purpose,
) -> Result<Identity, StepError> {
    let host = scope.instance.spec.host.clone();
    let owner = Owner { cluster_id: scope.cx.cluster.id.clone(), node_name: scope.name() };
    let found = Found::of(state);
    let meant = ExpectedHost {
        owner: &owner,
        address: &host.address,
        machine_id: scope.status.facts.as_ref().map(|f| f.machine_id.as_str()),
        node: node_proof(scope, session.connection().peer_address().to_canonical()),
        key_declared: is_key_declared(&scope.instance, &scope.pool),
        address_and_key_changed: address_and_key_changed(scope, session),
        take_over_from: scope.pool.spec.take_over_from.as_deref().unwrap_or_default(),
    };
    let identity = identify(purpose, meant, &found, &others(scope, &found))?;
    let superseded = match &identity {
        Identity::Supersedes(owner) => Some(owner.clone()),
        Identity::ExpectedHost => None,
        // The host of another owner gets no commands.
        Identity::OtherOwner(_) => return Ok(identity),
    };
    session.speak_to(ProvenHost {
        recipient: Recipient {
            cluster_id: owner.cluster_id.clone(),
            node_name: owner.node_name.clone(),
            machine_id: Some(found.machine_id.clone()),
        },
        supersedes: superseded,
        void_epoch: acts::in_force(&scope.pool, key::VOID_EPOCH).and_then(|v| v.trim().parse().ok()),
    });
    scope.status.record().proven_address = Some(session.connection().peer_address().to_canonical().to_string());
    scope.status.record().proven_at = Some(ProvenAt { address: host.address, port: host.port });
    scope.status.record().address_failures = None;
    Ok(identity)
}

/// Reports whether both the address (or port) and the host key differ from the recorded ones, and no user has allowed the key for this host. The author of a
/// list can change both, and so point the entry to another machine.
fn address_and_key_changed(scope: &Scope, session: &Session) -> bool {
    let (host, status) = (&scope.instance.spec.host, &scope.status);
    let moved = status.proven_at.as_ref().is_some_and(|p| (&p.address, p.port) != (&host.address, host.port));
    let shown = session.connection().host_key().fingerprint();
    let other_key = status.host_key.as_ref().is_some_and(|k| k.fingerprint != shown);
    let is_allowed = scope.instance.annotations().get(key::TRUST_HOST_KEY).is_some_and(|k| *k == shown);
    moved && other_key && !is_allowed
}

/// Returns whether the Node with the host's name is proven to belong to the host. `reached` is the address of the connection.
fn node_proof(scope: &Scope, reached: IpAddr) -> NodeProof {
    let Some(node) = scope.cx.node(&scope.name()) else { return NodeProof::Missing };
    let mut evidence = scope.evidence();
    evidence.proven.push(reached);
    if matches!(whose(Some(&node), &evidence), NodeOwner::Hosts(_)) { NodeProof::Proven } else { NodeProof::Unproven }
}

/// Returns the other Nodes and instances that may belong to the host that answered.
fn others(scope: &Scope, found: &Found) -> Others {
    let (cx, name) = (&scope.cx, scope.name());
    let other = found.owner.as_ref().map(|o| o.node_name.as_str()).filter(|other| *other != name);
    let instance = |other: &str| cx.caches.instances.get(&kube::runtime::reflector::ObjectRef::new(other)).is_some();
    let owner_lives = other.is_some_and(|other| instance(other) || cx.node(other).is_some());
    let same = |other: &WindowsInstance| {
        let facts = other.status.as_ref().and_then(|s| s.facts.as_ref());
        !found.machine_id.is_empty() && facts.is_some_and(|f| f.machine_id == found.machine_id)
    };
    // Of two instances for the same host, at most one continues: the one with a node, otherwise the first by name.
    let first = |other: &WindowsInstance| {
        let joined = other.status.as_ref().is_some_and(|s| s.current_version.is_some() || s.node_ref.is_some());
        joined || other.name_any() < name
    };
    let same_machine_instance =
        cx.caches.instances.state().into_iter().find(|other| other.name_any() != name && same(other) && first(other));
    Others { owner_lives, same_machine_instance: same_machine_instance.map(|t| t.name_any()) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::instance::test_bed::{Bed, CLUSTER};

    /// A host is recognized by its machine ID at any address, and by the node name in its own record. Otherwise, one machine would get two names.
    #[tokio::test]
    async fn a_host_with_an_instance_of_another_name_is_recognized() {
        let mut bed = Bed::with_objects().await;
        let facts =
            |machine: &str| json!({"hostname": "h", "machineId": machine, "osBuild": "", "osName": "", "bootId": ""});
        let node = |machine: &str| json!({"facts": facts(machine), "currentVersion": "1-a"});
        for (name, status) in [
            ("win-0", json!({"facts": facts("joins-first")})),
            ("win-1", json!({})),
            ("win-2", json!({"facts": facts("joins-later")})),
            ("win-3", node("is-a-node")),
        ] {
            let instance = bed.instance(&json!({"name": name, "uid": name}), &json!({}), &status);
            bed.api.objects(|o| o.put("windowsinstances", serde_json::to_value(instance).unwrap()));
        }
        bed.api.objects(|o| o.put("nodes", json!({"metadata": {"name": "adopted", "uid": "n"}})));
        bed.sync();
        let scope = bed.scope_with(&Value::Null);

        for (machine, owner, same_machine_instance, owner_lives) in [
            ("new", None, None, false),
            ("", None, None, false),
            ("joins-first", None, Some("win-0"), false),
            ("joins-later", None, None, false),
            ("is-a-node", None, Some("win-3"), false),
            ("new", Some("win-1"), None, false),
            ("new", Some("gone"), None, false),
            ("new", Some("win-2"), None, true),
            ("new", Some("adopted"), None, true),
        ] {
            let owner = owner.map(|name| Owner { cluster_id: CLUSTER.into(), node_name: name.into() });
            let found = Found { machine_id: machine.into(), owner, has_kubelet: true };
            let expected = Others { owner_lives, same_machine_instance: same_machine_instance.map(Into::into) };
            assert_eq!(others(&scope, &found), expected, "{found:?}");
        }
    }
}
