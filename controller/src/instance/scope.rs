//! Scope of a reconcile: the instance with its pool and its status, and the methods that change and store the status.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use api::{
    Disruption, Grant, GrantType, Operation, PinnedHostKey, ProvenAt, Reason, Step, Time, WindowsInstance,
    WindowsInstanceStatus, WindowsNodePool,
    conditions::{self, Status, kind},
    names::UNKNOWN_VERSION,
};
use futures::future::{self, BoxFuture, Either};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::{error::StepError, failures::end_wait, own_status::OwnStatus};
use crate::{
    context::Context,
    runtime::{clock, events::EventReason},
};
use remote::{
    RemoteError, facts,
    ssh::{Connection, SshError},
};
use wnp_core::{
    node::ready,
    operation::{
        key_refusal,
        node_ip::{self, Moved},
        update::drains,
    },
    render::Rendered,
    status::instance::{Situation, describe, reached},
};

/// Time after which the status reports what a registering Node waits for. Each step of the registration usually takes only moments, and earlier
/// reports would cost one more write for every host that joins.
pub(super) const REGISTER_QUIET: Duration = Duration::from_secs(10);

/// Scope of the reconcile of one instance.
pub(super) struct Scope {
    /// Context that all controllers share.
    pub cx: Arc<Context>,
    /// Instance as it was read when the work began; this reconcile's writes update its metadata. Shared with the cache until it is changed.
    pub instance: Arc<WindowsInstance>,
    /// Pool of the instance.
    pub pool: Arc<WindowsNodePool>,
    /// Status of the instance.
    pub status: OwnStatus,
    step_began: Option<Instant>,
}

/// Target version of a host, with its configuration.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// Name of the version.
    pub version: String,
    /// Rendered configuration of the version.
    pub rendered: Arc<Rendered>,
}

impl Scope {
    /// Creates the scope of an instance.
    pub(super) fn new(cx: Arc<Context>, instance: Arc<WindowsInstance>, pool: Arc<WindowsNodePool>) -> Self {
        let status = OwnStatus::of(&instance, cx.writes.unsaved.take(&instance));
        Self { cx, instance, pool, status, step_began: None }
    }

    /// Returns the status as it is stored.
    fn stored(&self) -> &WindowsInstanceStatus {
        self.status.stored(&self.instance)
    }

    /// Returns the name of the instance, which is also the name of its host and of its Node.
    pub(super) fn name(&self) -> String {
        self.instance.name_any()
    }

    /// Reports whether the host must leave: its instance is marked for removal, or is being deleted. The mark alone can be revoked.
    pub(super) fn leaving(&self) -> bool {
        self.instance.is_leaving()
    }

    /// Reports whether an operation of this type is in progress on a host that must stay.
    pub(super) fn is_in_progress(&self, type_: GrantType) -> bool {
        !self.leaving() && self.operation_type() == Some(type_)
    }

    /// Reports whether this Node, by its UID, is on record for the host.
    pub(super) fn is_recorded(&self, node: &Node) -> bool {
        self.status.node_ref.as_ref().is_some_and(|r| Some(&r.uid) == node.metadata.uid.as_ref())
    }

    /// Returns a message about the log-in to the host.
    pub(super) fn logging_in(&self) -> String {
        let host = &self.instance.spec.host;
        format!("logging in to {} port {} as {}", host.address, host.port, host.username)
    }

    /// Reports whether the current operation removes or releases the host.
    pub(super) fn removes(&self) -> bool {
        matches!(self.operation_type(), Some(GrantType::Remove | GrantType::Orphan))
    }

    /// Reports whether the pool is in mode Plan, so that nothing begins. A pool that is being deleted counts as applied.
    pub(super) fn is_plan(&self) -> bool {
        self.pool.spec.is_plan() && self.pool.metadata.deletion_timestamp.is_none()
    }

    /// Reports whether no operation may begin, because the pool is in mode Plan or the legacy operator runs. [`Self::may_start`] decides which begun
    /// operations continue.
    pub(super) fn only_watches(&self) -> bool {
        self.is_plan() || !self.cx.other_operator.is_gone()
    }

    /// Reports whether the operation of this grant is the last one that ended, according to the status of this reconcile.
    pub(super) fn has_used(&self, grant: &Grant) -> bool {
        self.status.last_operation.as_ref() == Some(&grant.id)
    }

    /// Reports whether the operation of this grant may begin or continue. While the legacy operator runs, no operation begins, and one that was begun
    /// continues only if it has changed the host: a drain is aborted, and a failed join is not begun again. No join begins in a paused pool, because
    /// a used grant may have been restored from a backup without its status.
    pub(super) fn may_start(&self, grant: &Grant) -> bool {
        let begun = self.status.operation.as_ref().filter(|o| o.id == grant.id);
        let waits = grant.type_ == GrantType::Provision && self.pool.spec.rollout().pause(clock::now()).is_some();
        begun.map_or(!self.only_watches() && !waits, |o| self.cx.other_operator.is_gone() || o.has_changed_the_host())
    }

    /// Returns the time until a pause ends by itself, if a grant waits for it. Such an end changes no object, and triggers no reconcile.
    pub(super) fn until_pause_ends(&self) -> Option<Duration> {
        let now = clock::now();
        let pause = self.pool.spec.rollout().pause(now).filter(|_| self.instance.open_grant().is_some());
        let wait = Duration::try_from(pause?.end()?.duration_since(now)).unwrap_or_default();
        Some(wait.max(Duration::from_secs(1)))
    }

    /// Starts the operation of this grant, or continues the stored one if it is the same.
    pub(super) fn start_operation(&mut self, grant: &Grant, first_step: Step) -> &mut Operation {
        let (epoch, now) = (self.cx.process.epoch, clock::now().into());
        self.status.begin(Operation {
            id: grant.id.clone(),
            type_: grant.type_,
            step: first_step,
            step_start_time: now,
            start_time: now,
            disruption: grant.disruption,
            services: grant.services.clone(),
            epoch,
            ..Operation::default()
        });
        if self.status.begins() {
            self.step_began = Some(Instant::now());
        }
        self.status.record().operation.get_or_insert_default()
    }

    /// Returns a stored version as a target.
    pub(super) async fn target(&self, version: &str) -> Result<Target, StepError> {
        let rendered = self.cx.own_version(version).await?;
        let rendered = rendered.ok_or_else(|| StepError::NoVersion { version: version.into() })?;
        Ok(Target { version: version.into(), rendered })
    }

    /// Returns the version for the Node's annotation, which wicd follows: the version whose files are in place, or the desired version before any
    /// files are in place.
    pub(super) fn version_for_wicd(&self) -> Option<&str> {
        let operation = self.status.operation.as_ref().filter(|o| o.applied);
        let current = self.status.current_version.as_deref();
        // The annotation of an adopted node whose version is unknown stays until its first change.
        if current == Some(UNKNOWN_VERSION) && operation.is_none() {
            return None;
        }
        let desired = self.instance.spec.desired.as_ref().map(|d| d.version.as_str());
        operation.and_then(|o| o.to_version.as_deref()).or(current).or(desired)
    }

    /// Reports whether the host has the version that its pool wants, this operator's wicd, and the right address for its Node. Any version counts
    /// while the pool wants none.
    pub(super) fn up_to_date(&self) -> bool {
        let wanted = self.pool.status.as_ref().and_then(|s| s.desired_version.as_deref());
        let current = self.status.current_version.as_deref();
        let wicd = self.status.wicd.as_ref() == Some(&self.cx.hosts.release.get().wicd.sha256);
        wicd && (wanted.is_none() || wanted == current) && self.moved().is_none()
    }

    /// Returns the address that the Node must have. The string is empty until the host has reported an address.
    pub(super) fn node_ip(&self) -> String {
        node_ip::desired(&self.instance.spec.host.address, &self.status)
    }

    /// Returns the address change of the host, if its Node needs another address than kubelet was given.
    pub(super) fn moved(&self) -> Option<Moved> {
        node_ip::moved(&self.instance.spec.host.address, &self.status)
    }

    /// Returns the step of the operation, or [`Step::Unknown`] without an operation.
    pub(super) fn step(&self) -> Step {
        self.status.operation.as_ref().map(|o| o.step).unwrap_or_default()
    }

    /// Returns the ID of the operation, or an empty string without an operation.
    pub(super) fn operation_id(&self) -> String {
        self.status.operation.as_ref().map(|o| o.id.clone()).unwrap_or_default()
    }

    /// Returns the type of the operation.
    pub(super) fn operation_type(&self) -> Option<GrantType> {
        self.status.operation.as_ref().map(|o| o.type_)
    }

    /// Returns the disruption that the operation may cause.
    pub(super) fn disruption(&self) -> Disruption {
        self.status.operation.as_ref().and_then(|o| o.disruption).unwrap_or_default()
    }

    /// Reports whether the operation evicts the pods first.
    pub(super) fn drains(&self) -> bool {
        self.operation_type().is_some_and(|type_| drains(type_, self.disruption()))
    }

    /// Records that the operation has succeeded, and clears its failures.
    pub(super) fn finish_operation(&mut self) {
        self.end_operation();
        self.status.record().failures = None;
    }

    /// Counts the end of an attempt in the metrics.
    pub(super) fn count_operation(&self, succeeded: bool) {
        if let Some(type_) = self.operation_type() {
            self.cx.process.metrics.ended(&self.instance.spec.pool_ref.name, type_, succeeded);
        }
    }

    /// Drops an operation that is not complete. Does not record its grant as used.
    pub(super) fn drop_operation(&mut self) {
        self.status.record().operation = None;
    }

    /// Records that the operation has succeeded, which uses its grant.
    pub(super) fn end_operation(&mut self) {
        self.observe_step();
        self.count_operation(true);
        if let Some(operation) = self.status.record().operation.take() {
            self.status.record().last_operation = Some(operation.id);
        }
    }

    /// Stores that a step begins, before its first side effect.
    pub(super) async fn enter_step(&mut self, step: Step, what: &str) -> Result<(), StepError> {
        self.announce_step(step, what);
        self.save().await
    }

    /// Begins a step, and stores the status only if essential state has changed since it was stored: the operation, its mark that it changes the
    /// host, the host key, or the claim of the Node name.
    pub(super) async fn enter_step_if_changed(&mut self, step: Step, what: &str) -> Result<(), StepError> {
        self.announce_step(step, what);
        let essential = |s: &WindowsInstanceStatus| {
            let operation = s.operation.as_ref().map(|o| (o.id.clone(), o.type_, o.changed));
            (s.holds_node_name, s.host_key.clone(), operation)
        };
        if essential(&self.status) == essential(self.stored()) {
            return Ok(());
        }
        self.save().await
    }

    /// Runs the `work` of the announced step. If the work takes long, stores the step in the meantime, so that users see the progress.
    pub(super) fn run_showing_step<'a, T: Send + 'a>(
        &'a mut self,
        work: impl Future<Output = T> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, StepError>> {
        // Boxed, because the futures of connections are large.
        let mut work = Box::pin(work);
        Box::pin(async move {
            if let Ok(done) = tokio::time::timeout(self.cx.process.args.show_step_after, &mut work).await {
                return Ok(done);
            }
            // Both are polled: otherwise, a pending request of the work would keep a client slot for which the write may wait.
            match future::select(pin!(self.save()), work).await {
                Either::Left((saved, work)) => {
                    saved?;
                    Ok(work.await)
                }
                Either::Right((done, saved)) => {
                    saved.await?;
                    Ok(done)
                }
            }
        })
    }

    /// Begins a step without storing it, because an operator that resumes it detects the progress on the host. The next write of the status stores
    /// the step, or [`run_showing_step`](Self::run_showing_step) if the work takes long.
    pub(super) fn announce_step(&mut self, step: Step, what: &str) {
        if self.step() != step {
            self.observe_step();
            if let Some(operation) = &mut self.status.record().operation {
                operation.step = step;
                operation.step_start_time = clock::now().into();
            }
        }
        self.attempt_begins();
        let reported = |status: &WindowsInstanceStatus| {
            conditions::find(&status.conditions, kind::RECONCILING).map(|c| c.message.clone())
        };
        let before = reported(&self.status);
        let type_ = self.operation_type().unwrap_or(GrantType::Provision);
        self.set_conditions(&Situation::Working { type_, step, what });
        // A wait is reported many times, but logged at level info only once.
        if reported(&self.status) == before {
            tracing::debug!(instance = self.name(), step = step.as_str(), "{what}");
        } else {
            tracing::info!(instance = self.name(), step = step.as_str(), "{what}");
        }
    }

    /// Clears the time of the next attempt, because the attempt has begun.
    fn attempt_begins(&mut self) {
        let failures = match self.operation_type() {
            Some(GrantType::RotateKey) => self.status.record().key_rotation.as_mut().and_then(|k| k.failures.as_mut()),
            Some(GrantType::PullImages) => self.status.record().pre_pulled.as_mut().and_then(|p| p.failures.as_mut()),
            _ => self.status.record().failures.as_mut(),
        };
        end_wait(failures);
    }

    /// Records the duration of the ending step in the metrics. If the step began in another reconcile or process, uses the stored time, which has
    /// whole seconds.
    fn observe_step(&mut self) {
        let step = self.step();
        if step != Step::Unknown {
            let took = self.step_began.map_or_else(|| self.in_step(), |began| began.elapsed());
            let label = crate::runtime::metrics::StepLabel { step: step.as_str() };
            self.cx.process.metrics.step_seconds.get_or_create(&label).observe(took.as_secs_f64());
        }
        self.step_began = Some(Instant::now());
    }

    /// Returns the duration of the current step, by its stored start time.
    pub(super) fn in_step(&self) -> Duration {
        let since = self.status.operation.as_ref().and_then(|o| o.step_start_time.known());
        since.map_or(Duration::ZERO, |t| Duration::try_from(clock::now().duration_since(t)).unwrap_or_default())
    }

    /// Reports an event on the instance.
    pub(super) fn say(&self, reason: EventReason, action: &str, note: &str) {
        self.cx.events.say(&*self.instance, reason, action, note);
    }

    /// Reports the warnings of the host about a step, at most 10.
    pub(super) fn say_warnings(&self, step: Step, warnings: &[String]) {
        for warning in warnings.iter().take(10) {
            self.say(EventReason::HostWarning, step.as_str(), &facts::message(warning));
        }
    }

    /// Sets a condition, and returns its previous message, if it existed.
    pub(super) fn set_condition(
        &mut self,
        type_: &'static str,
        status: Status,
        why: Reason,
        message: &str,
    ) -> Option<String> {
        let conditions = &mut self.status.record().conditions;
        let before = conditions::find(conditions, type_).map(|c| c.message.clone());
        conditions::set(conditions, type_, status, why, message, self.instance.metadata.generation, clock::now());
        before
    }

    /// Removes a condition.
    pub(super) fn remove_condition(&mut self, type_: &'static str) {
        conditions::remove(&mut self.status.record().conditions, type_);
    }

    /// Sets the conditions for a host that is a node.
    pub(super) fn describe_node(&mut self, node: &Node) {
        let ((ready, _, says), up_to_date) = (ready(node), self.up_to_date());
        self.set_conditions(&Situation::Node { ready, says: &says, up_to_date });
    }

    /// Sets the conditions for a situation.
    pub(super) fn set_conditions(&mut self, situation: &Situation<'_>) {
        describe(self.status.record(), situation, self.instance.metadata.generation, clock::now());
    }

    /// Records the expiry of wicd's certificate, unless a later expiry is known.
    pub(super) fn note_wicd_certificate(&mut self, end: Timestamp) {
        let known = self.status.wicd_certificate_expires.and_then(Time::known);
        if known.is_none_or(|known| known < end) {
            self.status.record().wicd_certificate_expires = Some(end.into());
        }
    }

    /// Records that the host answered.
    pub(super) fn mark_reachable(&mut self) {
        reached(self.status.record(), Ok(()), self.instance.metadata.generation, clock::now());
    }

    /// Records the identity of the host at the other end of the connection: its host key, its address in the entry if none is recorded yet, and the
    /// private key that it accepts.
    pub(super) fn record_identity(&mut self, connection: &Connection) {
        let host_key = connection.host_key();
        self.status.record().host_key = Some(PinnedHostKey {
            key_type: host_key.key_type.clone(),
            public_key: host_key.public_key_base64.clone(),
            fingerprint: host_key.fingerprint(),
        });
        let host = &self.instance.spec.host;
        let place = || ProvenAt { address: host.address.clone(), port: host.port };
        self.status.record().proven_at.get_or_insert_with(place);
        let taken = Some(connection.identity().public_key_hash());
        if self.status.public_key_hash != taken {
            // Failures of the previous key do not apply to the new one. The record of a key that must still be removed stays.
            self.status.record().key_rotation =
                self.status.record().key_rotation.take().filter(|k| k.retiring_key_hash.is_some());
        }
        self.status.record().public_key_hash = taken;
        self.status.record().key_refusal = None;
        self.mark_reachable();
    }

    /// Records that the host refuses all its listed keys, if the error says so. Clears the record if a key cannot be read now, because the host might
    /// accept it.
    pub(super) async fn note_refusal(&mut self, error: &StepError) {
        if matches!(error, StepError::Remote(RemoteError::Ssh(SshError::AuthenticationFailed { .. }))) {
            let before = self.status.record().key_refusal.take();
            let listed = self.cx.hosts.secrets.hashes(&self.instance.spec.host.private_keys).await.ok();
            self.status.record().key_refusal = listed.map(|listed| key_refusal::again(before, listed, clock::now()));
        }
    }

    /// Records that the host could not be reached, with the error.
    pub(super) fn mark_unreachable(&mut self, error: &StepError) {
        let (reason, message, generation) = (error.reason(), error.to_string(), self.instance.metadata.generation);
        reached(self.status.record(), Err((reason, &message)), generation, clock::now());
    }

    /// Stores the status at the end of a reconcile. While a host registers, changes of its Node trigger many reconciles, and the status is kept in
    /// memory for a while: an operator that restarts finds out the same from the host.
    pub(super) async fn save_at_end(&mut self) -> Result<(), StepError> {
        self.observe_generation();
        if self.may_wait_unsaved() && self.in_step() < REGISTER_QUIET {
            self.cx.writes.unsaved.keep(&self.instance, self.stored(), &self.status);
            return Ok(());
        }
        self.save().await
    }

    /// Reports whether the status may stay in memory for a while: the host registers, and everything that must not be lost is stored. For a node that
    /// changes, the step `Register` itself must be stored, because the verdicts on its certificate requests depend on it.
    fn may_wait_unsaved(&self) -> bool {
        let lasting = |s: &WindowsInstanceStatus| {
            let operation =
                s.operation.as_ref().filter(|o| o.type_ == GrantType::Provision || o.step == Step::Register)?;
            let begun = (operation.id.clone(), operation.type_, operation.changed);
            Some((begun, s.failures.clone(), s.current_version.clone(), s.observed_generation))
        };
        self.step() == Step::Register && lasting(&self.status).is_some_and(|now| lasting(self.stored()) == Some(now))
    }

    /// Records the observed generation, even if nothing else has changed: otherwise, a client that waits for it would wait until the next attempt on
    /// the host. Skips a new instance, which has reported nothing yet.
    fn observe_generation(&mut self) {
        if self.status.observed_generation.is_some_and(|observed| observed >= 0) {
            self.status.record().observed_generation = self.instance.metadata.generation;
        }
    }

    /// Stores the status, if it has changed.
    pub(super) async fn save(&mut self) -> Result<(), StepError> {
        self.observe_generation();
        self.status.commit(&mut self.instance, &self.cx).await
    }
}

#[cfg(test)]
#[path = "scope_tests.rs"]
mod tests;
