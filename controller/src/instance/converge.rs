//! Brings a host to a version: carries out the steps that [`operation::join`](wnp_core::operation::join) chooses, for a host that joins and for a
//! node that changes.

use crate::runtime::clock;
use std::{ops::ControlFlow, sync::Arc};

use api::{
    Disruption, GrantType, Operation, Step,
    host::{self, HostState, Verb},
    names::{UNKNOWN_VERSION, key},
};
use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt, runtime::controller::Action};

use super::{
    error::StepError,
    host_steps::{certify, configs, configure, connect, reboot, restarting, start, upload},
    register::{own_node, register, request_restart, sync_node_metadata},
    scope::{Scope, Target},
};
use remote::Session;
use wnp_core::{
    node::{boot_id, ready},
    operation::join::{self, DesiredJoin, HostSeen, NodeSeen, OnHost, WithoutConnection, is_placed},
};

/// Result of bringing a host closer to its target.
pub(super) enum Converged {
    /// The host follows the target and its Node is Ready, or the change is in place and only a requested restart is left, which needs its own grant.
    Works(Option<Arc<Node>>),
    /// The joining host turns out to be a node already.
    AlreadyNode(FoundNode),
    /// The host must be drained first: it needs a restart, and pods may run on it, because the change itself needs no drain.
    MustBeEmpty,
    /// The host has not reached the target yet: the reconcile ends with this action.
    Waits(Action),
}

/// Existing node that a joining host turns out to be.
pub(super) struct FoundNode {
    /// Version that the node follows, or [`UNKNOWN_VERSION`].
    pub version: String,
    /// SHA-256 of wicd on the host, if the status records no earlier contact, the host has this operator's record, and its Node names a version.
    pub wicd: Option<String>,
}

/// Open connection to the host, and the state observed over it.
struct OpenHost {
    session: Session,
    seen: HostSeen,
}

/// Result of a step: continue with or without a connection, or end the work in this reconcile.
type Flow = ControlFlow<Converged, Option<OpenHost>>;

/// Ends the work of this reconcile with an action.
fn waits(action: Action) -> Flow {
    Flow::Break(Converged::Waits(action))
}

/// Brings the host closer to the target, until one of the results in [`Converged`] applies. The caller has started the operation.
pub(super) async fn converge(scope: &mut Scope, target: &Target) -> Result<Converged, StepError> {
    let mut work = Convergence::begin(scope, target);
    let mut host = None;
    loop {
        if work.scope.cx.process.stop.is_cancelled() {
            return Ok(Converged::Waits(Action::await_change()));
        }
        let wanted = wanted(work.scope, target)?;
        let node = work.observe_node(host.is_some())?;
        let flow = match host.take() {
            None => work.without_connection(&wanted, node).await?,
            Some(open) => work.on_host(open, &wanted, node).await?,
        };
        match flow {
            ControlFlow::Continue(open) => host = open,
            ControlFlow::Break(converged) => return Ok(converged),
        }
    }
}

/// Work of one reconcile on a host.
struct Convergence<'a> {
    scope: &'a mut Scope,
    target: &'a Target,
    /// True if the status of a joining host records neither facts nor a Node, because the host is new or its status was lost, for example after a
    /// restore from a backup. Then the record on the host counts.
    restored: bool,
    /// True if the services were started in this operation, and only the Node is awaited.
    registering: bool,
    /// True if a requested restart waits for its own grant.
    restarts_later: bool,
}

impl<'a> Convergence<'a> {
    fn begin(scope: &'a mut Scope, target: &'a Target) -> Self {
        let has_facts = scope.status.facts.is_some();
        Self {
            restored: joins(scope) && !has_facts && scope.status.node_ref.is_none(),
            registering: scope.is_registering(&target.version),
            restarts_later: false,
            scope,
            target,
        }
    }

    /// Returns the Node of the host, if it exists. Returns `None` for a joining host without a connection, unless only its Node is awaited. Records
    /// that the Node of a changing host was deleted.
    fn observe_node(&mut self, is_connected: bool) -> Result<Option<Arc<Node>>, StepError> {
        if joins(self.scope) && !self.registering && !is_connected {
            return Ok(None);
        }
        let node = own_node(self.scope)?;
        if !joins(self.scope) && node.is_none() && !is_connected && self.scope.status.record().node_ref.take().is_some()
        {
            // The Node was deleted. kubelet registers a Node only when it starts, and the next Node with this name belongs to the host.
            self.scope.status.record().holds_node_name = true;
            self.registering = false;
        }
        Ok(node)
    }

    async fn without_connection(&mut self, wanted: &DesiredJoin, node: Option<Arc<Node>>) -> Result<Flow, StepError> {
        let seen = node.as_deref().map(observe);
        match join::without_connection(wanted, seen.as_ref(), self.registering) {
            WithoutConnection::Joined => Ok(Flow::Break(Converged::Works(node))),
            WithoutConnection::Connect => self.connect().await,
            WithoutConnection::Register => register(self.scope, node.as_deref(), wanted).await.map(waits),
            WithoutConnection::Reboot if self.scope.is_nondisruptive_update_applied() => {
                request_restart(self.scope).await?;
                Ok(Flow::Break(Converged::Works(node)))
            }
            WithoutConnection::Reboot if self.scope.has_pods() => Ok(Flow::Break(Converged::MustBeEmpty)),
            WithoutConnection::Reboot => {
                let boot_id = self.scope.status.facts.as_ref().map(|f| f.boot_id.clone());
                if let Some(operation) = &mut self.scope.status.record().operation {
                    operation.boot_id_to_leave = boot_id;
                }
                self.registering = false;
                Ok(Flow::Continue(None))
            }
        }
    }

    async fn connect(&mut self) -> Result<Flow, StepError> {
        let (scope, target) = (&mut *self.scope, self.target);
        let (session, state) = match connect(scope, target, Step::Connect).await {
            Ok(connected) => connected,
            Err(error) => return restarting(scope, error).map(waits),
        };
        let node = scope.cx.node(&scope.name());
        if joins(scope)
            && let Some(node) = already_node(node.as_deref(), &state, &target.version, self.restored)
        {
            // The next operation removes leftover files. An error must not discard this result.
            let _ = session.tidy(&[Verb::Facts]).await;
            session.close().await;
            return Ok(Flow::Break(Converged::AlreadyNode(node)));
        }
        note_placed(scope, target, &state)?;
        if state.reboot_required.is_some() && scope.has_pods() && !scope.is_nondisruptive_update_applied() {
            session.close().await;
            return Ok(Flow::Break(Converged::MustBeEmpty));
        }
        Ok(Flow::Continue(Some(OpenHost { session, seen: HostSeen { state, ..HostSeen::default() } })))
    }

    async fn on_host(
        &mut self,
        mut open: OpenHost,
        wanted: &DesiredJoin,
        node: Option<Arc<Node>>,
    ) -> Result<Flow, StepError> {
        let (scope, target) = (&mut *self.scope, self.target);
        let OpenHost { session, seen } = &mut open;
        let observed = node.as_deref().map(observe);
        match join::on_host(wanted, observed.as_ref(), seen, clock::now()) {
            OnHost::Upload => seen.state = upload(scope, session, target, &seen.state, Step::Upload).await?,
            OnHost::Configure => {
                configure(scope, session, target, seen).await?;
                // wicd was stopped, or is not installed yet. It may start with the host, and the Node must not name the previous version then.
                if let Some(node) = &node {
                    sync_node_metadata(scope, node).await?;
                }
            }
            OnHost::Reboot if scope.is_nondisruptive_update_applied() => {
                request_restart(scope).await?;
                if self.restarts_later {
                    return Ok(Flow::Break(Converged::Works(node)));
                }
                self.restarts_later = true;
                seen.state.reboot_required = None;
            }
            OnHost::Reboot if scope.has_pods() => {
                open.session.close().await;
                return Ok(Flow::Break(Converged::MustBeEmpty));
            }
            OnHost::Reboot => return reboot(scope, session, &seen.state).await.map(waits),
            OnHost::Certify => certify(scope, seen).await?,
            OnHost::Start => {
                // wicd reads its version from the annotation of an existing Node, which must not name an older one.
                if let Some(node) = &node {
                    sync_node_metadata(scope, node).await?;
                }
                start(scope, session, seen, node.is_none()).await?;
            }
            OnHost::Register => {
                open.session.close().await;
                if self.restarts_later {
                    return Ok(Flow::Break(Converged::Works(node)));
                }
                return register(scope, node.as_deref(), wanted).await.map(waits);
            }
            OnHost::Joined => {
                open.session.close().await;
                return Ok(Flow::Break(Converged::Works(node)));
            }
        }
        Ok(Flow::Continue(Some(open)))
    }
}

/// Reports whether the operation joins the host. Otherwise, it changes a node.
fn joins(scope: &Scope) -> bool {
    scope.operation_type().unwrap_or_default() == GrantType::Provision
}

fn observe(node: &Node) -> NodeSeen {
    NodeSeen {
        ready: ready(node).0,
        version: node.annotations().get(key::VERSION).cloned(),
        boot_id: boot_id(node),
        asks_restart: node.annotations().contains_key(key::REBOOT_REQUIRED),
    }
}

/// Records that the files of the target are in place, if the host reports so: an operator that crashed may have placed all files without recording
/// it. The next start of the services uses the new files in any case.
fn note_placed(scope: &mut Scope, target: &Target, state: &HostState) -> Result<(), StepError> {
    let placed = is_placed(&wanted(scope, target)?, state);
    if placed {
        scope.note_placed(&target.version);
    }
    Ok(())
}

impl Scope {
    /// Records that the files of a version are in place. For a host that joins, also records the version: the pool may want another one before the
    /// host is a node.
    pub(super) fn note_placed(&mut self, version: &str) {
        let Some(operation) = &mut self.status.record().operation else { return };
        operation.applied = true;
        if operation.type_ == GrantType::Provision {
            operation.to_version = Some(version.to_owned());
        }
    }

    /// Returns the version that a joining host is brought to: the one that its pool wants, or an empty string without one. A host that is already a
    /// Ready node keeps the version in place for its join: it may have pods, and is updated later like any other node.
    pub(super) fn version_to_join(&mut self) -> Result<String, StepError> {
        let placed = self.status.operation.as_ref().and_then(|o| o.to_version.clone());
        if let Some(placed) = placed.filter(|placed| self.is_registering(placed))
            && own_node(self)?.is_some_and(|node| ready(&node).0)
        {
            return Ok(placed);
        }
        Ok(self.instance.spec.desired.as_ref().map(|d| d.version.clone()).unwrap_or_default())
    }

    /// Reports whether the services were started in this operation with the files of this version, so that only the Node is awaited. For an operation
    /// that is not a join, or that records no version, any version counts.
    pub(super) fn is_registering(&self, version: &str) -> bool {
        let placed = self.status.operation.as_ref().filter(|_| joins(self)).and_then(|o| o.to_version.as_deref());
        self.step() == Step::Register && self.status.facts.is_some() && placed.is_none_or(|placed| placed == version)
    }

    /// Reports whether a non-disruptive update, which has no slot in the disruption budget, is in place. A restart that turns out to be necessary
    /// needs a grant of its own. Until that restart, wicd reports no version, and the operation ends without the report.
    fn is_nondisruptive_update_applied(&self) -> bool {
        let is_placed = |o: &Operation| o.type_ == GrantType::Update && o.applied && !o.rolling_back;
        self.disruption() == Disruption::None && self.status.operation.as_ref().is_some_and(is_placed)
    }

    /// Reports whether pods may run on the host: its operation is an update that does not drain the node.
    fn has_pods(&self) -> bool {
        self.operation_type() == Some(GrantType::Update) && !self.drains()
    }
}

/// Returns the existing node of a host that joins, if there is one: a node of the legacy operator, of another client, or of this operator with
/// another version or a lost status. The host is adopted unchanged, and updated later like any other node.
///
/// `restored` is true if the status records no earlier contact with the host. A host with this operator's record and a Node with a version is then
/// adopted even if the Node is not Ready.
fn already_node(node: Option<&Node>, state: &HostState, target: &str, restored: bool) -> Option<FoundNode> {
    let node = node?;
    let says = node.annotations().get(key::VERSION).filter(|v| !v.is_empty()).cloned();
    match (&state.marker, says) {
        (Some(_), Some(version)) if restored => Some(FoundNode { version, wicd: state.wicd_sha256.clone() }),
        // This operator has begun this join and has not finished it.
        (Some(marker), _) if marker.version == target => None,
        (_, says) if ready(node).0 => {
            Some(FoundNode { version: says.unwrap_or_else(|| UNKNOWN_VERSION.to_owned()), wicd: None })
        }
        _ => None,
    }
}

/// Returns the desired state of the host and its Node for this target.
fn wanted(scope: &Scope, target: &Target) -> Result<DesiredJoin, StepError> {
    // Until the host is proven, its address is unknown, and the digest is not compared.
    let configs =
        if scope.status.facts.is_some() { host::configs_digest(&configs(scope, target)?) } else { String::new() };
    let operation = scope.status.operation.as_ref();
    Ok(DesiredJoin {
        cluster_id: scope.cx.cluster.id.clone(),
        node_name: scope.name(),
        version: target.version.clone(),
        payload: target.rendered.payload_digest(),
        configs,
        wicd: scope.cx.hosts.release.get().wicd.sha256.clone(),
        restarts: operation.is_some_and(|o| !o.services.is_empty()),
        moves: scope.moved().is_some(),
        leaves_boot: operation.and_then(|o| o.boot_id_to_leave.clone()),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_existing_node_is_adopted_and_a_begun_join_continues() {
        let node = |ready: &str, annotations: serde_json::Value| -> Node {
            let status = json!({"conditions": [{"type": "Ready", "status": ready}]});
            serde_json::from_value(json!({"metadata": {"annotations": annotations}, "status": status})).unwrap()
        };
        for (name, ready, annotations, marker, restored, expected) in [
            ("a Node of another operator", "True", json!({key::VERSION: "10.19.0-a"}), None, false, Some("10.19.0-a")),
            ("a Node of an unknown client", "True", json!({}), None, false, Some(UNKNOWN_VERSION)),
            ("a Node with an empty version", "True", json!({key::VERSION: ""}), None, false, Some(UNKNOWN_VERSION)),
            (
                "a Node of this operator, with another version",
                "True",
                json!({key::VERSION: "1-a"}),
                Some("1-a"),
                false,
                Some("1-a"),
            ),
            (
                "a Node of this operator, without a version",
                "True",
                json!({}),
                Some("1-a"),
                false,
                Some(UNKNOWN_VERSION),
            ),
            ("a join of this operator has begun", "True", json!({}), Some("2-b"), false, None),
            (
                "the status was lost, and the Node is not Ready",
                "False",
                json!({key::VERSION: "2-b"}),
                Some("2-b"),
                true,
                Some("2-b"),
            ),
            (
                "the status was lost, and the Node has no version",
                "True",
                json!({}),
                Some("1-a"),
                true,
                Some(UNKNOWN_VERSION),
            ),
            ("a Node that is not Ready does not prevent the join", "False", json!({}), None, false, None),
        ] {
            let marker = marker.map(|v: &str| host::Marker { version: v.into(), ..host::Marker::default() });
            let state = HostState { marker, ..HostState::default() };
            let found = already_node(Some(&node(ready, annotations)), &state, "2-b", restored);
            assert_eq!(found.map(|f| f.version).as_deref(), expected, "{name}");
        }
        assert!(already_node(None, &HostState::default(), "2-b", false).is_none());
    }
}
