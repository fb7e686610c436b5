//! Brings a host to a version: carries out the steps that [`operation::join`](wnp_core::operation::join) chooses, for a host that joins as well
//! as for a node that changes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::{
    Disruption, GrantType, Operation,
    host::{self, Body, CertificateKind, HostState, Outcome, ServiceState, Verb},
    names::{UNKNOWN_VERSION, key},
    payload,
};
use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt, runtime::controller::Action};

use super::{
    error::StepError,
    identity,
    login::{self, login},
    node::{boot_id, ready},
    register::{own_node, record_template, register, request_restart, sync_node_metadata},
    scope::{Scope, Target},
};
use crate::{csr, events::EventReason};
use remote::{RemoteError, Session, facts};
use wnp_core::{
    operation::{
        join::{HostSeen, Next, NodeSeen, Step, Wanted, is_placed, next},
        update::drains,
    },
    render::HostParams,
};

/// Certificates that the cluster issues are valid from five minutes before; beyond that they are from the future.
const MAX_CLOCK_SKEW: Duration = Duration::from_mins(5);
/// A host that restarts is asked this often whether it is back.
const REBOOT_POLL: Duration = Duration::from_secs(5);
/// A host that still answers after this time, not restarted, is asked again.
const REBOOT_ASK_AGAIN: Duration = Duration::from_secs(20);
/// kubelet's first certificate; it rotates it by itself.
const KUBELET_CERTIFICATE: Duration = Duration::from_hours(24);

/// How far it got.
pub enum Converged {
    /// The host follows the target completely and its Node is Ready.
    Works(Option<Arc<Node>>),
    /// The host is a node already, of this version, which an operator before us has made.
    AlreadyNode(FoundNode),
    /// The host has to be restarted, and there may be pods on it, because the change itself needs no drain.
    MustBeEmpty,
    /// There is something to wait for.
    Waits(Action),
}

/// A node that was found.
pub struct FoundNode {
    /// The version that it follows.
    pub version: String,
    /// SHA-256 of the wicd that it runs, where it is this cluster's own by its record.
    pub wicd: Option<String>,
}

/// Brings the host closer to the target, until it is reached or a wait is needed. The operation has been
/// taken up.
pub async fn converge(scope: &mut Scope, target: &Target) -> Result<Converged, StepError> {
    let cx = scope.cx.clone();
    let operation = scope.status.operation.clone().unwrap_or_default();
    let joins = operation.type_ == GrantType::Provision;
    // A host whose status was lost, as after the cluster's objects were restored from a backup: what it is, it is found to be.
    let restored = joins && scope.status.facts.is_none() && scope.status.node_ref.is_none();
    let mut registering = operation.step == Step::Register.as_str() && scope.status.facts.is_some();
    let mut session: Option<Session> = None;
    let mut seen: Option<HostSeen> = None;
    let mut restarts_later = false;
    loop {
        if cx.process.stop.is_cancelled() {
            return Ok(Converged::Waits(Action::await_change()));
        }
        let wanted = wanted(scope, target)?;
        let node = if !joins || registering || seen.is_some() { own_node(scope)? } else { None };
        if !joins && node.is_none() && seen.is_none() && scope.status.node_ref.take().is_some() {
            // It was deleted: kubelet registers only when it starts, and what it registers then under this name is the host's.
            scope.status.holds_node_name = true;
            registering = false;
        }
        let node_seen = node.as_deref().map(observe);
        let step = match next(&wanted, node_seen.as_ref(), seen.as_ref(), registering, Timestamp::now()) {
            Next::Joined => {
                close(session).await;
                return Ok(Converged::Works(node));
            }
            Next::Do(step) => step,
        };
        match (step, session.as_ref(), seen.as_mut()) {
            (Step::Connect, ..) => match connect(scope, target, Step::Connect.as_str()).await {
                Ok((open, state)) => {
                    let node = scope.cx.node(&scope.name());
                    if joins && let Some(node) = already_node(node.as_deref(), &state, &target.version, restored) {
                        // What is left there is removed by the next operation. This one must not be forgotten for it.
                        let _ = open.tidy(&[Verb::Facts]).await;
                        open.close().await;
                        return Ok(Converged::AlreadyNode(node));
                    }
                    note_placed(scope, target, &state)?;
                    if state.reboot_required.is_some()
                        && has_pods(scope.operation())
                        && !is_placed_quietly(scope.operation())
                    {
                        open.close().await;
                        return Ok(Converged::MustBeEmpty);
                    }
                    session = Some(open);
                    seen = Some(HostSeen { state, ..HostSeen::default() });
                }
                Err(error) => return restarting(scope, error).map(Converged::Waits),
            },
            (Step::Register, ..) => {
                close(session).await;
                if restarts_later {
                    return Ok(Converged::Works(node));
                }
                return register(scope, node.as_deref(), &wanted).await.map(Converged::Waits);
            }
            (Step::Upload, Some(session), Some(seen)) => {
                seen.state = upload(scope, session, target, &seen.state, Step::Upload.as_str()).await?;
            }
            (Step::Configure, Some(session), Some(seen)) => {
                configure(scope, session, target, seen).await?;
                // wicd has been stopped, or is not there yet. When it starts, and that may be with the host, the Node must not
                // report the version before.
                if let Some(node) = &node {
                    sync_node_metadata(scope, node).await?;
                }
            }
            (Step::Reboot, ..) if is_placed_quietly(scope.operation()) => {
                request_restart(scope).await?;
                let Some(seen) = seen.as_mut().filter(|_| !restarts_later) else { return Ok(Converged::Works(node)) };
                restarts_later = true;
                seen.state.reboot_required = None;
            }
            (Step::Reboot, ..) if has_pods(scope.operation()) => {
                close(session).await;
                return Ok(Converged::MustBeEmpty);
            }
            (Step::Reboot, None, _) => {
                let boot_id = scope.status.facts.as_ref().map(|f| f.boot_id.clone());
                if let Some(operation) = &mut scope.status.operation {
                    operation.boot_id_to_leave = boot_id;
                }
                registering = false;
            }
            (Step::Reboot, Some(session), Some(seen)) => {
                return reboot(scope, session, &seen.state).await.map(Converged::Waits);
            }
            (Step::Certify, _, Some(seen)) => certify(scope, seen).await?,
            (Step::Start, Some(session), Some(seen)) => {
                // Where there is a Node, its annotation names the version for wicd: it must not name an older one.
                if let Some(node) = &node {
                    sync_node_metadata(scope, node).await?;
                }
                start(scope, session, seen, node.is_none()).await?;
            }
            // Every other step is chosen only with an open connection.
            (_, _, _) => return Err(RemoteError::NoAddress.into()),
        }
    }
}

fn observe(node: &Node) -> NodeSeen {
    NodeSeen {
        ready: ready(node).0,
        version: node.annotations().get(key::VERSION).cloned(),
        boot_id: boot_id(node),
        asks_restart: node.annotations().contains_key(key::REBOOT_REQUIRED),
    }
}

async fn close(session: Option<Session>) {
    if let Some(session) = session {
        session.close().await;
    }
}

/// An operator that died may have placed everything, and not have stored that. The services that start next are the new ones
/// all the same.
fn note_placed(scope: &mut Scope, target: &Target, state: &HostState) -> Result<(), StepError> {
    let placed = is_placed(&wanted(scope, target)?, state);
    if let Some(operation) = scope.status.operation.as_mut().filter(|_| placed) {
        operation.applied = true;
    }
    Ok(())
}

/// Whether an update that has no place in the budget, because it disturbs nothing, is in place. A restart that the host turns out to need
/// waits for its own turn, and until then wicd reports no version: what is left to do goes on without it.
fn is_placed_quietly(operation: &Operation) -> bool {
    let is_quiet = operation.disruption.unwrap_or_default() == Disruption::None;
    operation.type_ == GrantType::Update && is_quiet && operation.applied && !operation.rolling_back
}

/// Whether pods may be on the host: those of a node that works and was not drained.
fn has_pods(operation: &Operation) -> bool {
    operation.type_ == GrantType::Update && !drains(operation.type_, operation.disruption.unwrap_or_default())
}

/// The version of a host that joins and is found to be a node already: of the legacy operator, of this one, whose record of it was
/// lost, or of another client. It is taken as it is, and changed like any other node.
///
/// `restored`: all that was stored of the host is lost. A host that was proven and has its record is then the node that it was, Ready or
/// not, of whichever version.
fn already_node(node: Option<&Node>, state: &HostState, target: &str, restored: bool) -> Option<FoundNode> {
    let node = node?;
    let says = node.annotations().get(key::VERSION).filter(|v| !v.is_empty()).cloned();
    match (&state.marker, says) {
        (Some(_), Some(version)) if restored => Some(FoundNode { version, wicd: state.wicd_sha256.clone() }),
        // What this operator itself has begun to join, and not ended.
        (Some(marker), _) if marker.version == target => None,
        (_, says) if ready(node).0 => {
            Some(FoundNode { version: says.unwrap_or_else(|| UNKNOWN_VERSION.to_owned()), wicd: None })
        }
        _ => None,
    }
}

/// Connects, checks that the host can be changed, sends the missing files of the target, and makes no other change.
pub async fn look_and_stage(scope: &mut Scope, target: &Target, step: &str) -> Result<(), StepError> {
    let (session, state) = connect(scope, target, step).await?;
    if !state.missing.is_empty() {
        upload(scope, &session, target, &state, step).await?;
    }
    session.tidy(&[Verb::Facts, Verb::Stage]).await?;
    session.close().await;
    Ok(())
}

/// The step of sending ahead, as the status shows it.
pub const STAGE: &str = "Stage";

fn wanted(scope: &Scope, target: &Target) -> Result<Wanted, StepError> {
    // As long as the host is not proven, its address is not known and nothing is compared with this.
    let configs =
        if scope.status.facts.is_some() { host::configs_digest(&configs(scope, target)?) } else { String::new() };
    let operation = scope.status.operation.as_ref();
    Ok(Wanted {
        cluster_id: scope.cx.cluster.id.clone(),
        node_name: scope.name(),
        version: target.version.clone(),
        payload: target.rendered.payload_digest(),
        configs,
        wicd: scope.cx.hosts.release.wicd.sha256.clone(),
        restarts: operation.is_some_and(|o| !o.services.is_empty()),
        leaves_boot: operation.and_then(|o| o.boot_id_to_leave.clone()),
    })
}

fn configs(scope: &Scope, target: &Target) -> Result<Vec<host::ConfigFile>, StepError> {
    let node_ip = scope.status.facts.as_ref().map(|f| f.node_ip.clone()).unwrap_or_default();
    let host = HostParams { node_name: scope.name(), node_ip, taints: scope.pool.spec.taints() };
    target.rendered.configs(&scope.cx.hosts.release.cluster, &host).map_err(StepError::Render)
}

/// Logs in, pins the host key, sends wicd, asks the host what it is, and checks that it can be a node.
async fn connect(scope: &mut Scope, target: &Target, step: &str) -> Result<(Session, HostState), StepError> {
    let host = scope.instance.spec.host.clone();
    let rebooting = scope.status.operation.as_ref().is_some_and(|o| o.boot_id_before.is_some());
    if !rebooting {
        let what = format!("logging in to {} port {} as {}", host.address, host.port, host.username);
        scope.enter_step(step, &what).await?;
    }
    let operation = scope.status.operation.as_ref().map(|o| o.id.clone()).unwrap_or_default();
    let login = login(&scope.cx, &scope.instance, &scope.pool).await?;
    let mut session = login::open(&scope.cx, &scope.instance, &operation, &login).await?;
    scope.mark_reachable();
    // A host gets nothing as long as its name may be another's.
    scope.claim_name(Some(session.connection().peer_address())).await?;
    // The first key is stored before anything is done to the host: what was trusted once is trusted for good. Another one only when
    // the host is proven: it may be that of another host.
    if scope.status.host_key.is_none() {
        scope.record_identity(session.connection());
        scope.save().await?;
    }
    session.prepare().await?;
    let state = session.look(target.rendered.files()).await?;
    check(scope, &mut session, &state)?;
    scope.record_identity(session.connection());
    note_wicd_certificate(scope, &state);
    note_boot(scope, &state);
    if let Some(before) = scope.status.operation.as_ref().and_then(|o| o.boot_id_before.clone()) {
        if before == state.machine.boot_id {
            // An operator that died may have stored that it asks for the restart, and not have asked. Asking twice does no
            // harm: wicd restarts nothing that has another boot id by then.
            if scope.in_step() > REBOOT_ASK_AGAIN {
                let _ = session.ask(Body::Reboot(host::Reboot { boot_id: before })).await;
            }
            return Err(StepError::NotRestarted { minutes: scope.cx.process.args.reboot_timeout.as_secs() / 60 });
        }
        if let Some(operation) = &mut scope.status.operation {
            operation.boot_id_before = None;
        }
    }
    scope.cx.wicd.proven.notify_one();
    Ok((session, state))
}

/// When wicd's certificate ends, as the host shows it.
fn note_wicd_certificate(scope: &mut Scope, state: &HostState) {
    let end = state.certificates.get(&CertificateKind::Wicd).and_then(|end| Timestamp::from_second(*end).ok());
    if let Some(end) = end {
        scope.note_wicd_certificate(end);
    }
}

/// An operation that is to restart the host stores, before it does, which run of the host is to end.
fn note_boot(scope: &mut Scope, state: &HostState) {
    let boot_id = scope.status.facts.as_ref().map(|f| f.boot_id.clone());
    if let Some(operation) =
        scope.status.operation.as_mut().filter(|o| o.must_restart() && o.boot_id_to_leave.is_none())
    {
        operation.boot_id_to_leave = boot_id.or_else(|| Some(state.machine.boot_id.clone()));
    }
}

/// Checks the facts that the host reports before the operator trusts them, and before the first change of the host.
fn check(scope: &mut Scope, session: &mut Session, state: &HostState) -> Result<(), StepError> {
    let machine = &state.machine;
    let host = scope.instance.spec.host.clone();
    let now = Timestamp::now();
    let facts = facts::parse_facts(machine, &host.address, session.connection().peer_address(), now)?;
    let purpose = identity::purpose(scope);
    identity::prove(scope, session, state, purpose)?;
    let name = scope.name();
    if !machine.is_admin {
        return Err(RemoteError::NotAdministrator { user: host.username.clone() }.into());
    }
    let skew_ms = facts::clock_skew_ms(machine, now);
    if skew_ms.unsigned_abs() > u64::try_from(MAX_CLOCK_SKEW.as_millis()).unwrap_or(u64::MAX) {
        let direction = if skew_ms > 0 { "ahead" } else { "behind" };
        return Err(StepError::ClockSkew { seconds: skew_ms.unsigned_abs() / 1000, direction });
    }
    if !state.foreign_services.is_empty() {
        let names = facts::short(&state.foreign_services.join(", "), 200);
        return Err(StepError::ForeignServices { names });
    }
    if facts.hostname.eq_ignore_ascii_case(&name) || name.len() <= 15 {
        // Nothing to report.
    } else if name.to_ascii_uppercase().starts_with(&facts.hostname.to_ascii_uppercase()) {
        let note = format!(
            "the name {name} is longer than the 15 characters that Windows allows for a computer name; the host reports the name {}. Its Node is still named {name}",
            facts.hostname
        );
        scope.cx.events.say(&scope.instance, EventReason::HostNameTooLong, "Connect", &note);
    }
    scope.status.facts = Some(facts);
    Ok(())
}

/// An error while a host restarts on our behalf is expected; only taking too long is one.
fn restarting(scope: &mut Scope, error: StepError) -> Result<Action, StepError> {
    let rebooting = scope.status.operation.as_ref().is_some_and(|o| o.boot_id_before.is_some());
    // A host that goes down may take the question with it.
    let expected = error.is_unreachable() || matches!(error, StepError::Remote(RemoteError::NoAnswer { .. }));
    if !rebooting || !expected {
        return Err(error);
    }
    if scope.in_step() > scope.cx.process.args.reboot_timeout {
        return Err(StepError::NotRestarted { minutes: scope.cx.process.args.reboot_timeout.as_secs() / 60 });
    }
    Ok(Action::requeue(REBOOT_POLL))
}

async fn upload(
    scope: &mut Scope,
    session: &Session,
    target: &Target,
    state: &HostState,
    step: &str,
) -> Result<HostState, StepError> {
    let files = target.rendered.files();
    let missing: Vec<&payload::File> = files.iter().filter(|f| state.missing.contains(&f.sha256)).collect();
    let (sent, unpacked) = missing.iter().fold((0, 0), |(s, u), f| (s + f.compressed_size, u + f.size));
    let needed = sent + unpacked;
    if state.machine.disk_free < needed {
        return Err(StepError::DiskFull { free_mib: state.machine.disk_free >> 20, needed_mib: (needed >> 20) + 1 });
    }
    let what = format!("sending {} of {} files, {} MiB", missing.len(), files.len(), sent.div_ceil(1 << 20));
    scope.enter_step(step, &what).await?;
    Ok(session.upload(files, &state.missing).await?)
}

/// From here on the host is changed: what has begun is brought to its end. The step that begins next stores it, and is refused if
/// the grant was revoked in the meantime.
fn pass_return(scope: &mut Scope) {
    if let Some(operation) = &mut scope.status.operation {
        operation.changed = true;
    }
}

async fn configure(
    scope: &mut Scope,
    session: &Session,
    target: &Target,
    seen: &mut HostSeen,
) -> Result<(), StepError> {
    record_template(scope);
    pass_return(scope);
    scope.enter_step(Step::Configure.as_str(), "placing files, writing configuration, making keys").await?;
    let (release, rendered) = (&scope.cx.hosts.release, &target.rendered);
    let ip = scope.status.facts.as_ref().map(|f| f.node_ip.clone()).unwrap_or_default();
    let apply = host::Apply {
        desired: host::Desired {
            cluster_id: scope.cx.cluster.id.clone(),
            node_name: scope.name(),
            node_ip: ip.clone(),
            pool: scope.pool.name_any(),
            namespace: scope.cx.process.args.namespace.clone(),
            version: target.version.clone(),
            services: rendered.services.clone(),
            payload: rendered.payload_digest(),
            trusted_ca: release.cluster.trusted_ca.clone().unwrap_or_default(),
            logs: rendered.shared.logs,
            drift: scope.pool.spec.remediation().drift.unwrap_or_default(),
        },
        files: rendered.files().to_vec(),
        configs: configs(scope, target)?,
        certificates: vec![CertificateKind::Kubelet, CertificateKind::Wicd],
        wicd_sha256: release.wicd.sha256.clone(),
    };
    let answer = session.ask(Body::Apply(Box::new(apply))).await?;
    for warning in answer.warnings.iter().take(10) {
        let warning = facts::message(warning);
        scope.cx.events.say(&scope.instance, EventReason::HostWarning, Step::Configure.as_str(), &warning);
    }
    let mut state = answer.state.ok_or(RemoteError::BadAnswer { verb: Verb::Apply.as_str() })?;
    if let Outcome::RebootRequired { why } = answer.outcome {
        state.reboot_required.get_or_insert(why);
    }
    let digest = host::configs_digest(&configs(scope, target)?);
    let placed = state.marker.as_ref().is_some_and(|m| m.configs == digest && m.version == target.version);
    if !placed {
        // It reported success; a retry would repeat for ever.
        return Err(RemoteError::BadAnswer { verb: Verb::Apply.as_str() }.into());
    }
    seen.requests = answer.requests;
    seen.state = state;
    if let Some(operation) = &mut scope.status.operation {
        operation.applied = true;
    }
    Ok(())
}

async fn reboot(scope: &mut Scope, session: &Session, state: &HostState) -> Result<Action, StepError> {
    pass_return(scope);
    let boot_id = state.machine.boot_id.clone();
    if let Some(operation) = &mut scope.status.operation {
        operation.boot_id_before = Some(boot_id.clone());
    }
    let why = facts::message(state.reboot_required.as_deref().unwrap_or("a restart was requested"));
    scope.enter_step(Step::Reboot.as_str(), &format!("restarting the host: {why}")).await?;
    scope.cx.events.say(
        &scope.instance,
        EventReason::Rebooting,
        Step::Reboot.as_str(),
        &format!("restarting the host: {why}"),
    );
    match session.ask(Body::Reboot(host::Reboot { boot_id })).await {
        // The connection breaking is how a restart looks from here.
        Ok(_) | Err(RemoteError::Ssh(_) | RemoteError::NoAnswer { .. }) => Ok(Action::requeue(REBOOT_POLL)),
        Err(error) => Err(error.into()),
    }
}

async fn certify(scope: &mut Scope, seen: &mut HostSeen) -> Result<(), StepError> {
    scope.enter_step(Step::Certify.as_str(), "requesting certificates").await?;
    scope.claim_name(None).await?;
    let claim = super::claims::claim(&scope.instance, &scope.status, &scope.cx);
    // Without the policies that hold wicd its identity could change every Node.
    if seen.requests.contains_key(&CertificateKind::Wicd)
        && let Some(problem) = scope.cx.wicd.rights.problem()
    {
        return Err(StepError::Rights(problem));
    }
    let cx = &scope.cx;
    let issue = |kind: CertificateKind, pem: String| {
        let claim = &claim;
        async move {
            let (csr_kind, life) = match kind {
                CertificateKind::Kubelet => (csr::Kind::KubeletClient, KUBELET_CERTIFICATE),
                CertificateKind::Wicd => (csr::Kind::WicdClient, cx.process.args.wicd_certificate_lifetime),
            };
            cx.process.metrics.wrote("CertificateSigningRequest");
            cx.process.metrics.wrote("CertificateSigningRequest");
            let chain = csr::request_and_sign(cx.cluster.client.clone(), claim, csr_kind, &pem, life).await;
            chain.map(|chain| (kind, chain)).map_err(StepError::Csr)
        }
    };
    let issued = try_join_all(seen.requests.clone().into_iter().map(|(kind, pem)| issue(kind, pem))).await?;
    seen.issued = issued.into_iter().collect();
    Ok(())
}

async fn start(scope: &mut Scope, session: &Session, seen: &mut HostSeen, no_node: bool) -> Result<(), StepError> {
    pass_return(scope);
    scope.enter_step(Step::Start.as_str(), "starting the services").await?;
    let asked = scope.status.operation.as_ref().map(|o| o.services.clone()).unwrap_or_default();
    let restart = services_to_restart(asked, &seen.state, no_node);
    let body = host::Start {
        certificates: std::mem::take(&mut seen.issued),
        wicd_sha256: scope.cx.hosts.release.wicd.sha256.clone(),
        certificate_seconds: i32::try_from(scope.cx.process.args.wicd_certificate_lifetime.as_secs())
            .unwrap_or(i32::MAX),
        restart,
    };
    let answer = session.ask(Body::Start(body)).await?;
    seen.state = answer.state.ok_or(RemoteError::BadAnswer { verb: Verb::Start.as_str() })?;
    note_wicd_certificate(scope, &seen.state);
    seen.requests = BTreeMap::new();
    seen.started = true;
    Ok(session.tidy(&[Verb::Facts, Verb::Stage, Verb::Apply, Verb::Start]).await?)
}

const KUBELET: &str = "kubelet";

/// Services to restart: those of the operation, and kubelet where the Node is missing. It registers only when
/// it starts, and may run all the while that wicd does not.
fn services_to_restart(mut asked: Vec<String>, state: &HostState, no_node: bool) -> Vec<String> {
    let runs = |s: &ServiceState| matches!(s, ServiceState::Running | ServiceState::Pending);
    if no_node && state.services.get(KUBELET).is_some_and(runs) && !asked.iter().any(|s| s == KUBELET) {
        asked.push(KUBELET.to_owned());
    }
    asked
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn state(kubelet: ServiceState, wicd: ServiceState, version: Option<&str>) -> HostState {
        HostState {
            marker: version.map(|v| host::Marker { version: v.into(), ..host::Marker::default() }),
            wicd,
            services: BTreeMap::from([(KUBELET.to_owned(), kubelet)]),
            ..HostState::default()
        }
    }

    #[test]
    fn kubelet_that_runs_without_a_node_does_not_stay_as_it_is() {
        use ServiceState::{Missing, Pending, Running, Stopped};
        for (kubelet, wicd, no_node, asked, expected) in [
            (Running, Running, true, vec![], vec!["kubelet"]),
            // Apply has stopped wicd, and left kubelet, which did not have to change.
            (Running, Stopped, true, vec![], vec!["kubelet"]),
            (Pending, Missing, true, vec![], vec!["kubelet"]),
            (Stopped, Stopped, true, vec![], vec![]),
            (Missing, Missing, true, vec![], vec![]),
            (Running, Running, false, vec![], vec![]),
            (Running, Running, true, vec!["kubelet"], vec!["kubelet"]),
            (Running, Running, true, vec!["csi-proxy"], vec!["csi-proxy", "kubelet"]),
        ] {
            let asked = asked.into_iter().map(str::to_owned).collect();
            assert_eq!(
                services_to_restart(asked, &state(kubelet, wicd, None), no_node),
                expected,
                "{kubelet:?} {wicd:?}"
            );
        }
    }

    #[test]
    fn no_ready_node_is_rebuilt_in_place() {
        let node = |ready: &str, annotations: serde_json::Value| -> Node {
            let status = json!({"conditions": [{"type": "Ready", "status": ready}]});
            serde_json::from_value(json!({"metadata": {"annotations": annotations}, "status": status})).unwrap()
        };
        for (name, ready, annotations, marker, restored, expected) in [
            ("of another operator", "True", json!({key::VERSION: "10.19.0-a"}), None, false, Some("10.19.0-a")),
            ("of an unknown client", "True", json!({}), None, false, Some(UNKNOWN_VERSION)),
            (
                "an empty annotation says as little",
                "True",
                json!({key::VERSION: ""}),
                None,
                false,
                Some(UNKNOWN_VERSION),
            ),
            ("ours, of another version", "True", json!({key::VERSION: "1-a"}), Some("1-a"), false, Some("1-a")),
            ("ours, and the Node does not say so", "True", json!({}), Some("1-a"), false, Some(UNKNOWN_VERSION)),
            ("ours, and it joins", "True", json!({}), Some("2-b"), false, None),
            ("ours, and its record was lost", "False", json!({key::VERSION: "2-b"}), Some("2-b"), true, Some("2-b")),
            ("its record was lost, and it says nothing", "True", json!({}), Some("1-a"), true, Some(UNKNOWN_VERSION)),
            ("one that does not work is made a node", "False", json!({}), None, false, None),
        ] {
            let state = state(ServiceState::Running, ServiceState::Running, marker);
            let found = already_node(Some(&node(ready, annotations)), &state, "2-b", restored);
            assert_eq!(found.map(|f| f.version).as_deref(), expected, "{name}");
        }
        assert!(already_node(None, &HostState::default(), "2-b", false).is_none());
    }
}
