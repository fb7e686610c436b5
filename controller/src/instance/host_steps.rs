//! Steps over a connection to a host, one function each. The callers decide their order.

use std::{collections::BTreeMap, time::Duration};

use api::{
    Operation, Reason, Step,
    host::{self, Body, CertificateKind, HostState, Outcome, ServiceState, Verb},
    payload,
    services_version::short,
};
use futures::future::{self, Either, try_join_all};
use jiff::Timestamp;
use kube::{ResourceExt, runtime::controller::Action};

use super::{
    error::StepError,
    identity,
    login::{self, login},
    node_events,
    register::record_template,
    scope::{Scope, Target},
    suitability,
};
use crate::{
    csr,
    runtime::{clock, events::EventReason},
};
use remote::{RemoteError, Session, facts, payload::Payload, ssh::Connection};
use wnp_core::{
    node::metadata::template_taints,
    operation::{
        join::HostSeen,
        preflight::{self, Preflight},
        preflight_warnings::restart_causes,
        update::is_restart_due,
    },
    render::{Cluster, HostParams},
};

/// Interval at which a restarting host is contacted.
const REBOOT_POLL: Duration = Duration::from_secs(5);
/// Time after which the operator requests the restart again from a host that has not restarted.
const REBOOT_ASK_AGAIN: Duration = Duration::from_secs(20);
/// Lifetime of the client certificate that the operator requests for kubelet. kubelet then rotates it by itself.
const KUBELET_CERTIFICATE: Duration = Duration::from_hours(24);

/// Connects, checks that the host can be changed, and sends the missing files of the target. Changes neither configuration nor services.
pub(super) async fn look_and_stage(scope: &mut Scope, target: &Target, step: Step) -> Result<(), StepError> {
    let (session, state) = connect(scope, target, step).await?;
    if !state.missing.is_empty() {
        upload(scope, &session, target, &state, step).await?;
    }
    session.tidy(&[Verb::Facts, Verb::Stage]).await?;
    session.close().await;
    Ok(())
}

/// Renders the configuration files of the target for this host.
pub(super) fn configs(scope: &Scope, target: &Target) -> Result<Vec<host::ConfigFile>, StepError> {
    let node_ip = scope.node_ip();
    let taints = template_taints(&scope.pool, &scope.instance.spec.host);
    let host = HostParams { node_name: scope.name(), node_ip, taints };
    Ok(target.rendered.configs(&scope.cx.hosts.release.get().cluster, &host)?)
}

/// Logs in, claims the Node name, pins the host key, sends wicd, queries the facts of the host, and checks that the host can be a node. Fails if the
/// operation has requested a restart that has not happened yet.
pub(super) async fn connect(scope: &mut Scope, target: &Target, step: Step) -> Result<(Session, HostState), StepError> {
    let what = scope.logging_in();
    if !is_rebooting(scope) {
        scope.announce_step(step, &what);
    }
    let login = login(&scope.cx, &scope.instance, &scope.pool).await?;
    let operation = scope.operation_id();
    let mut session = login::open(scope, &operation, &login, &what).await?;
    scope.mark_reachable();
    // Preparing the session changes nothing on the host, so it runs at the same time as the claim.
    let prepare = Box::pin(session.prepare());
    let prepare = match future::select(Box::pin(claim(scope, session.connection())), prepare).await {
        Either::Left((claimed, prepare)) => {
            claimed?;
            Either::Left(prepare)
        }
        Either::Right((prepared, claim)) => {
            claim.await?;
            Either::Right(future::ready(prepared))
        }
    };
    scope.run_showing_step(prepare).await??;
    let release = scope.cx.hosts.release.get();
    let asked = host::Facts {
        files: target.rendered.files().to_vec(),
        api_server: Some(release.cluster.api_server.clone()),
        ports: vec![preflight::KUBELET_PORT],
        service_accounts: target.rendered.shared.service_accounts.clone(),
        credential_plugin: target.rendered.shared.credential_plugin.as_ref().map(|plugin| plugin.clsid.clone()),
    };
    let state = scope.run_showing_step(session.facts(asked)).await??;
    check(scope, &mut session, &state)?;
    note_boot(scope, &state);
    preflight(scope, target, &release.cluster, &state)?;
    suitability::report_accounts(scope, &target.rendered.shared, &state);
    scope.record_identity(session.connection());
    note_wicd_certificate(scope, &state);
    if let Some(before) = scope.status.operation.as_ref().and_then(|o| o.boot_id_before.clone()) {
        if before == state.machine.boot_id {
            // An operator that crashed may have stored the restart without requesting it. A second request does no harm: wicd ignores it once the
            // boot ID has changed.
            if scope.in_step() > REBOOT_ASK_AGAIN {
                let _ = session.ask(Body::Reboot(host::Reboot { boot_id: before })).await;
            }
            return Err(StepError::StillRunning { minutes: scope.cx.process.args.reboot_timeout.as_secs() / 60 });
        }
        if let Some(operation) = &mut scope.status.record().operation {
            operation.boot_id_before = None;
        }
    }
    Ok((session, state))
}

/// Claims the Node name for the host that answered, and pins its first host key, before the host is changed.
async fn claim(scope: &mut Scope, connection: &Connection) -> Result<(), StepError> {
    // The host gets nothing while its name may belong to another host.
    scope.claim_name(Some(connection.peer_address())).await?;
    // A pinned host key stays. A different key replaces it only when the host is proven, because the key may belong to another host.
    if scope.status.host_key.is_none() {
        scope.record_identity(connection);
        scope.save().await?;
    }
    Ok(())
}

/// Records the expiry of wicd's certificate, as the host reports it.
fn note_wicd_certificate(scope: &mut Scope, state: &HostState) {
    let end = state.certificates.get(&CertificateKind::Wicd).and_then(|end| Timestamp::from_second(*end).ok());
    if let Some(end) = end {
        scope.note_wicd_certificate(end);
    }
}

/// Records the ID of the boot that the restart of this operation must end, if the operation restarts the host. So the operation restarts the host
/// only once, even if the cause of the restart remains.
fn note_boot(scope: &mut Scope, state: &HostState) {
    let boot_id = scope.status.facts.as_ref().map(|f| f.boot_id.clone());
    if let Some(operation) =
        scope.status.record().operation.as_mut().filter(|o| must_restart(o, state) && o.boot_id_to_leave.is_none())
    {
        operation.boot_id_to_leave = boot_id.or_else(|| Some(state.machine.boot_id.clone()));
    }
}

fn must_restart(operation: &Operation, state: &HostState) -> bool {
    operation.must_restart() || is_restart_due(operation.type_, &state.restart_causes)
}

/// Checks and records the facts that the host reports, and proves the identity of the host, before the host is changed.
fn check(scope: &mut Scope, session: &mut Session, state: &HostState) -> Result<(), StepError> {
    let machine = &state.machine;
    let host = scope.instance.spec.host.clone();
    let now = clock::now();
    let facts = facts::parse_facts(machine, &host.address, session.connection().peer_address(), now)?;
    let purpose = identity::purpose(scope);
    identity::prove(scope, session, state, purpose)?;
    let name = scope.name();
    let label = name.split('.').next().unwrap_or_default();
    let is_cut = label.len() > 15 && label.to_ascii_uppercase().starts_with(&facts.hostname.to_ascii_uppercase());
    if is_cut && !facts.hostname.eq_ignore_ascii_case(label) {
        let note = format!(
            "the Node is named {name}, but the computer name of the host is {}: Windows limits computer names to 15 characters. This is harmless \
             unless a tool expects both names to match",
            facts.hostname
        );
        scope.say(EventReason::HostNameTooLong, "Connect", &note);
    }
    scope.status.record().facts = Some(facts);
    Ok(())
}

/// Checks whether the host can be a node, and reports the result in the condition `PreflightPassed`.
fn preflight(scope: &mut Scope, target: &Target, cluster: &Cluster, state: &HostState) -> Result<(), StepError> {
    let user = scope.instance.spec.host.username.clone();
    let (now, needed) = (clock::now(), space(target.rendered.files(), state));
    let cluster_id = &scope.cx.cluster.id;
    let credential_plugin = target.rendered.shared.credential_plugin.as_ref().map(|plugin| plugin.clsid.as_str());
    let asked = Preflight {
        cluster_id,
        user: &user,
        api_server: Some(&cluster.api_server),
        needed,
        credential_plugin,
        vxlan_port: cluster.network.vxlan_port(),
        now,
    };
    let found = preflight::check(&asked, state);
    suitability::report(scope, &target.rendered, found.as_ref().copied(), state);
    Ok(found?)
}

/// Returns the space in bytes that the missing files take on the host: both the compressed and the unpacked files.
fn space(files: &[payload::File], state: &HostState) -> u64 {
    let missing = files.iter().filter(|f| state.missing.contains(&f.sha256));
    missing.map(|f| f.compressed_size + f.size).sum()
}

/// Reports whether the operation waits for a restart of the host.
fn is_rebooting(scope: &Scope) -> bool {
    scope.status.operation.as_ref().is_some_and(|o| o.boot_id_before.is_some())
}

/// Returns the action that waits for a restarting host. Connection errors, a wrong clock and a host that still runs are expected while a restart is
/// outstanding, until it times out. Fails in all other cases.
pub(super) fn restarting(scope: &mut Scope, error: StepError) -> Result<Action, StepError> {
    // A host that shuts down may drop the request, and its clock may be wrong until a time server has answered.
    let has_wrong_clock = error.reason() == Reason::ClockSkew;
    let is_down = error.is_of_ssh() || matches!(error, StepError::Remote(RemoteError::NoAnswer { .. }));
    let is_still_running = matches!(error, StepError::StillRunning { .. });
    let expected = is_down || has_wrong_clock || is_still_running;
    if !is_rebooting(scope) || !expected {
        return Err(error);
    }
    if scope.in_step() > scope.cx.process.args.reboot_timeout {
        return Err(restart_failed(error, scope.cx.process.args.reboot_timeout));
    }
    Ok(Action::requeue(REBOOT_POLL))
}

/// Returns the failure of a restart that has exceeded its timeout. An error of a host that answers, or of the jump host before it, tells the cause
/// itself.
fn restart_failed(error: StepError, timeout: Duration) -> StepError {
    if error.reason() == Reason::Unreachable {
        StepError::NotRestarted { minutes: timeout.as_secs() / 60 }
    } else {
        error
    }
}

/// Sends the missing files of the target to the host. Returns the state of the host afterwards.
pub(super) async fn upload(
    scope: &mut Scope,
    session: &Session,
    target: &Target,
    state: &HostState,
    step: Step,
) -> Result<HostState, StepError> {
    let files = target.rendered.files();
    let missing: Vec<&payload::File> = files.iter().filter(|f| state.missing.contains(&f.sha256)).collect();
    can_send(&target.version, &missing, &scope.cx.hosts.release.get().payload)?;
    let sent: u64 = missing.iter().map(|f| f.compressed_size).sum();
    let what = format!("sending {} of {} files, {} MiB", missing.len(), files.len(), sent.div_ceil(1 << 20));
    scope.announce_step(step, &what);
    Ok(scope.run_showing_step(session.upload(files, &state.missing)).await??)
}

/// Fails if the host lacks files that no payload of this operator has, as for a version of an earlier operator.
fn can_send(version: &str, missing: &[&payload::File], payload: &Payload) -> Result<(), StepError> {
    let mut lacking = missing.iter().filter(|file| !payload.has(&file.sha256));
    let Some(first) = lacking.next() else { return Ok(()) };
    let of = |version: &String| format!("{} of version {version}", first.destination);
    Err(StepError::VersionFilesMissing {
        version: version.to_owned(),
        count: 1 + lacking.count(),
        file: first.version.as_ref().map_or_else(|| first.destination.clone(), of),
        payloads: payload.in_words(),
    })
}

/// Records that the host is changed from here on, so that the change must be completed. The next stored step stores the record, and fails if the
/// grant was revoked in the meantime. Returns true if the change begins here, and false if it is resumed and was already announced.
fn mark_irrevocable(scope: &mut Scope) -> bool {
    scope.status.record().operation.as_mut().is_some_and(|operation| !std::mem::replace(&mut operation.changed, true))
}

/// Places the files and configuration of the target on the host. wicd also makes the keys, whose certificate requests are recorded in `seen`.
pub(super) async fn configure(
    scope: &mut Scope,
    session: &Session,
    target: &Target,
    seen: &mut HostSeen,
) -> Result<(), StepError> {
    record_template(scope);
    let begins = mark_irrevocable(scope);
    scope.enter_step(Step::Configure, "placing files, writing configuration, making keys").await?;
    node_events::disturbing(scope, begins);
    let (release, rendered) = (scope.cx.hosts.release.get(), &target.rendered);
    let ip = scope.node_ip();
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
            trusted_ca: rendered.trusted_ca(&release.cluster),
            metadata_address: rendered.shared.metadata_address,
            logs: rendered.shared.logs,
            drift: scope.pool.spec.remediation().drift.unwrap_or_default(),
            credential_plugin: rendered.shared.credential_plugin.clone(),
            cni_directories: release.cluster.cni_directories(),
        },
        files: rendered.files().to_vec(),
        configs: configs(scope, target)?,
        certificates: vec![CertificateKind::Kubelet, CertificateKind::Wicd],
        wicd_sha256: release.wicd.sha256.clone(),
    };
    let answer = session.ask(Body::Apply(Box::new(apply))).await?;
    scope.say_warnings(Step::Configure, &answer.warnings);
    let mut state = answer.state.ok_or(RemoteError::BadAnswer { verb: Verb::Apply.as_str() })?;
    if let Outcome::RebootRequired { why } = answer.outcome {
        state.reboot_required.get_or_insert(why);
    }
    let digest = host::configs_digest(&configs(scope, target)?);
    let placed = state.marker.as_ref().is_some_and(|m| m.configs == digest && m.version == target.version);
    if !placed {
        // wicd reported success without placing the files. Without an error, `converge` would repeat this step forever.
        return Err(not_placed(&target.version).into());
    }
    scope.status.record().node_ip = Some(ip).filter(|ip| !ip.is_empty());
    seen.requests = answer.requests;
    seen.state = state;
    scope.note_placed(&target.version);
    Ok(())
}

/// Returns the error of a host that reports success without the files and the configuration of the version.
fn not_placed(version: &str) -> RemoteError {
    let message = format!(
        "wicd on the host reported success, but the host does not have the configuration of version {}; the operator retries. If this lasts, check \
         whether another program changes files in C:\\k\\wicd",
        short(version)
    );
    RemoteError::Host { reason: Reason::HostFilesChanged, message }
}

/// Restarts the host. Returns the action that waits until the host answers again.
pub(super) async fn reboot(scope: &mut Scope, session: &Session, state: &HostState) -> Result<Action, StepError> {
    let begins = mark_irrevocable(scope);
    let boot_id = state.machine.boot_id.clone();
    if let Some(operation) = &mut scope.status.record().operation {
        operation.boot_id_before = Some(boot_id.clone());
    }
    let of_windows = scope.operation_type().filter(|&t| is_restart_due(t, &state.restart_causes));
    let causes = of_windows
        .and_then(|_| restart_causes(state))
        .map(|causes| format!("Windows waits for a restart because of {causes}"));
    let why = state.reboot_required.clone().or(causes).unwrap_or_else(|| "a restart was requested".to_owned());
    let why = facts::message(&why);
    scope.enter_step(Step::Reboot, &format!("restarting the host: {why}")).await?;
    node_events::disturbing(scope, begins);
    node_events::say(scope, EventReason::Rebooting, Step::Reboot.as_str(), &format!("restarting the host: {why}"));
    match session.ask(Body::Reboot(host::Reboot { boot_id })).await {
        // A restart breaks the connection.
        Ok(_) | Err(RemoteError::Ssh(_) | RemoteError::NoAnswer { .. }) => Ok(Action::requeue(REBOOT_POLL)),
        Err(error) => Err(error.into()),
    }
}

/// Gets the certificates that the host has requested, and records them in `seen`. Fails if wicd requests a certificate while it may not get one.
pub(super) async fn certify(scope: &mut Scope, seen: &mut HostSeen) -> Result<(), StepError> {
    scope.claim_name(None).await?;
    scope.enter_step_if_changed(Step::Certify, "requesting certificates").await?;
    let claim = super::claims::claim(&scope.instance, &scope.status, &scope.cx);
    // Without the admission policies that restrict wicd, its identity could change every Node.
    if seen.requests.contains_key(&CertificateKind::Wicd)
        && let Some(problem) = scope.cx.wicd.rights.problem()
    {
        return Err(problem.into());
    }
    let cx = &scope.cx.clone();
    let issue = |kind: CertificateKind, pem: String| {
        let claim = &claim;
        async move {
            let (csr_kind, life) = match kind {
                CertificateKind::Kubelet => (csr::Kind::KubeletClient, KUBELET_CERTIFICATE),
                CertificateKind::Wicd => (csr::Kind::WicdClient, cx.process.args.wicd_certificate_lifetime),
            };
            let (client, issuing) = (cx.cluster.client.clone(), &cx.wicd.issuing);
            let chain = csr::request_and_sign(client, claim, csr_kind, &pem, life, issuing).await?;
            Ok::<_, StepError>((kind, chain))
        }
    };
    let requests = seen.requests.clone().into_iter();
    let issued = scope.run_showing_step(try_join_all(requests.map(|(kind, pem)| issue(kind, pem)))).await??;
    seen.issued = issued.into_iter().collect();
    Ok(())
}

/// Sends the issued certificates to the host, and starts the services. `no_node` is true if the host has no Node.
pub(super) async fn start(
    scope: &mut Scope,
    session: &Session,
    seen: &mut HostSeen,
    no_node: bool,
) -> Result<(), StepError> {
    let begins = mark_irrevocable(scope);
    scope.enter_step_if_changed(Step::Start, "starting the services").await?;
    node_events::disturbing(scope, begins);
    let asked = scope.status.operation.as_ref().map(|o| o.services.clone()).unwrap_or_default();
    let restart = services_to_restart(asked, &seen.state, no_node);
    let body = host::Start {
        certificates: std::mem::take(&mut seen.issued),
        wicd_sha256: scope.cx.hosts.release.get().wicd.sha256.clone(),
        certificate_seconds: i32::try_from(scope.cx.process.args.wicd_certificate_lifetime.as_secs())
            .unwrap_or(i32::MAX),
        restart,
    };
    let answer = scope.run_showing_step(session.ask(Body::Start(body))).await??;
    seen.state = answer.state.ok_or(RemoteError::BadAnswer { verb: Verb::Start.as_str() })?;
    note_wicd_certificate(scope, &seen.state);
    seen.requests = BTreeMap::new();
    seen.started = true;
    Ok(session.tidy(&[Verb::Facts, Verb::Stage, Verb::Apply, Verb::Start]).await?)
}

const KUBELET: &str = "kubelet";

/// Returns the services to restart: those of the operation, and a running kubelet if the Node is missing. kubelet registers only when it starts, and
/// may have kept running while wicd did not.
fn services_to_restart(mut asked: Vec<String>, state: &HostState, no_node: bool) -> Vec<String> {
    let runs = |s: &ServiceState| matches!(s, ServiceState::Running | ServiceState::Pending);
    if no_node && state.services.get(KUBELET).is_some_and(runs) && !asked.iter().any(|s| s == KUBELET) {
        asked.push(KUBELET.to_owned());
    }
    asked
}

#[cfg(test)]
mod tests {
    use remote::ssh::SshError;
    use serde_json::json;
    use wnp_core::operation::preflight::{Fault, Faults};

    use super::{
        super::test_bed::{Bed, operation},
        *,
    };

    #[test]
    fn a_failed_restart_is_reported_by_its_cause() {
        let address = || "10.0.0.1".to_owned();
        let silent = SshError::ConnectTimeout { address: address(), phase: "connect", after: REBOOT_POLL };
        let other_key = SshError::HostKeyUnknown { address: address(), offered: "SHA256:a".into() };
        for (error, expected) in [
            (StepError::from(silent), "the SSH server of the host did not answer within 30 min"),
            (other_key.into(), "10.0.0.1 offers the host key SHA256:a"),
            (StepError::StillRunning { minutes: 30 }, "the host answers, but has not restarted within 30 min"),
        ] {
            let said = restart_failed(error, Duration::from_mins(30)).to_string();
            assert!(said.starts_with(expected), "{said}");
        }
    }

    #[test]
    fn a_running_kubelet_without_a_node_is_restarted() {
        use ServiceState::{Missing, Pending, Running, Stopped};
        for (kubelet, wicd, no_node, asked, expected) in [
            (Running, Running, true, vec![], vec!["kubelet"]),
            // Apply has stopped wicd, but not kubelet, which did not change.
            (Running, Stopped, true, vec![], vec!["kubelet"]),
            (Pending, Missing, true, vec![], vec!["kubelet"]),
            (Stopped, Stopped, true, vec![], vec![]),
            (Missing, Missing, true, vec![], vec![]),
            (Running, Running, false, vec![], vec![]),
            (Running, Running, true, vec!["kubelet"], vec!["kubelet"]),
            (Running, Running, true, vec!["csi-proxy"], vec!["csi-proxy", "kubelet"]),
        ] {
            let asked = asked.into_iter().map(str::to_owned).collect();
            let services = BTreeMap::from([(KUBELET.to_owned(), kubelet)]);
            let state = HostState { wicd, services, ..HostState::default() };
            assert_eq!(services_to_restart(asked, &state, no_node), expected, "{kubelet:?} {wicd:?}");
        }
    }

    #[tokio::test]
    async fn a_restart_that_times_out_fails_with_the_reason_of_its_cause() {
        let bed = Bed::new().await;
        let operation = operation("g-1", "Reboot", "Reboot", &json!({"changed": true, "bootIdBefore": "1"}));
        let mut scope = bed.scope_with(&json!({"operation": operation}));
        let broken = || SshError::Disconnected { address: "10.0.0.1".into(), why: "the host closed it".into() };
        let of_jump_host = SshError::JumpHostUnreachable { fault: Box::new(broken()) };
        let skew = Faults::from(Fault::ClockSkew { seconds: 3600, direction: "behind" });
        for (error, reason) in [
            (StepError::from(broken()), "Unreachable"),
            (of_jump_host.into(), "JumpHostUnreachable"),
            (skew.into(), "ClockSkew"),
            (StepError::StillRunning { minutes: 30 }, "HostCallFailed"),
        ] {
            let error = restarting(&mut scope, error).unwrap_err();
            assert_eq!(error.reason(), reason);
        }
    }
}
