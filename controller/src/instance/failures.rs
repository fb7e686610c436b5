//! Failures of an instance that is being reconciled, and its retries.

use std::time::Duration;

use api::{
    Failures, GrantType, Step,
    act::{Act, IF_GONE},
    names::key,
    text::line,
};
use jiff::SignedDuration;
use kube::ResourceExt;
use sha2::{Digest as _, Sha256};

use super::{error::StepError, scope::Scope};
use crate::runtime::{clock, events::EventReason};
use wnp_core::{
    acts::{is_handled, is_retry_open, retry_requested},
    backoff::{backoff, believed},
    node::ready,
    rollout::image_pull,
    status::instance::Situation,
};

/// Maximum wait after an error of a Secret or of wicd's rights, unless the configured backoff begins with a longer wait. Users correct such an error
/// in another object and watch the pool meanwhile, so a long wait has no benefit.
pub(super) const CREDENTIALS_BACKOFF_MAX: Duration = Duration::from_secs(15);

impl Scope {
    /// Returns the failure for this error, counted from the failures `before`, and the wait until the next attempt.
    pub(super) fn next_failure(&self, before: Option<&Failures>, error: &StepError) -> (Failures, Duration) {
        let now = clock::now();
        let count = before.map_or(0, |f| f.count).saturating_add(1);
        let max = match error {
            // No watch reports the correction, so the next attempt must follow soon.
            StepError::Secret(_) | StepError::Rights(_) => {
                CREDENTIALS_BACKOFF_MAX.max(self.cx.process.args.backoff_base).min(self.cx.process.args.backoff_max)
            }
            _ => self.cx.process.args.backoff_max,
        };
        let wait =
            backoff(u32::try_from(count).unwrap_or(1), self.cx.process.args.backoff_base.min(max), max, rand::random());
        let next = now.checked_add(SignedDuration::try_from(wait).unwrap_or_default()).unwrap_or(now);
        let failures = Failures {
            count,
            first_time: before.and_then(|f| f.first_time).or_else(|| Some(now.into())),
            next_retry_time: Some(next.into()),
            last_reason: error.reason().into(),
            last_message: self.message_with_remedy(error),
            step: self.step(),
            host_digest: Some(self.host_digest()),
        };
        (failures, wait)
    }

    /// Returns the message of the error. If the host of a removal cannot be reached or deconfigured, adds how a user can end the removal. A lost jump
    /// host is not a reason to abandon the hosts behind it.
    fn message_with_remedy(&self, error: &StepError) -> String {
        if !self.removes() || error.is_of_jump_host() || (self.step() != Step::Deconfigure && !error.is_of_ssh()) {
            return error.to_string();
        }
        format!("{error}{IF_GONE}{}", Act::Abandon(&self.name()))
    }

    /// Records a failure, and returns the wait until the next attempt.
    pub(super) async fn fail(&mut self, error: &StepError) -> Result<Duration, StepError> {
        let (failures, wait) = self.next_failure(self.status.failures.as_ref(), error);
        let (reason, step, summary) = (failures.reason(), failures.step, failures.summary());
        self.status.record().failures = Some(failures);
        if error.is_unreachable() {
            self.mark_unreachable(error);
        }
        self.note_refusal(error).await;
        let leaving = self.removes();
        // After a failed staging, or a failure before the drain and before any change of the host, the node continues unchanged.
        let is_quiet = self.status.operation.as_ref().is_some_and(|o| match o.type_ {
            GrantType::Stage => true,
            GrantType::Update | GrantType::Reboot | GrantType::Maintenance => !o.is_irrevocable() && o.drain.is_none(),
            _ => false,
        });
        if leaving || !is_quiet {
            self.set_conditions(&Situation::Failed { leaving });
        }
        self.cx.process.metrics.failed(&self.instance.spec.pool_ref.name, reason);
        self.count_operation(false);
        // Event reasons are few and fixed; the note has the exact failure, which may vary.
        let event = match self.operation_type() {
            _ if leaving => EventReason::RemoveFailed,
            Some(GrantType::Stage) => EventReason::StageFailed,
            Some(GrantType::Update) => EventReason::UpdateFailed,
            Some(GrantType::Reboot) => EventReason::RebootFailed,
            Some(GrantType::Repair) => EventReason::RepairFailed,
            Some(GrantType::Maintenance) => EventReason::MaintenanceFailed,
            None if self.status.current_version.is_some() => EventReason::UpdateFailed,
            _ => EventReason::JoinFailed,
        };
        self.say(event, step.as_str(), &format!("{reason}: {summary}"));
        self.save().await?;
        Ok(wait)
    }

    /// Ends an operation that does not disrupt the node, like a key rotation, with a failure, so that other operations can begin. Returns the
    /// failure, counted from the failures `before`, which the caller stores, and the wait until the next attempt.
    pub(super) async fn fail_side_operation(
        &mut self,
        before: Option<&Failures>,
        error: &StepError,
        event: EventReason,
    ) -> (Failures, Duration) {
        let (failures, wait) = self.next_failure(before, error);
        let (reason, step) = (error.reason(), failures.step);
        if error.is_unreachable() && step == Step::Connect {
            self.mark_unreachable(error);
        }
        self.note_refusal(error).await;
        self.cx.process.metrics.failed(&self.instance.spec.pool_ref.name, reason);
        self.say(event, step.as_str(), &format!("{reason}: {step}: {error}"));
        self.drop_operation();
        (failures, wait)
    }

    /// Clears failures from before the host was marked for removal: they belong to another operation, and must not delay the removal.
    pub(super) fn forget_failures_before_leaving(&mut self) {
        let marked = self.instance.spec.leaving.as_ref().and_then(|l| l.since.known());
        let since = marked.or_else(|| self.instance.metadata.deletion_timestamp.as_ref().map(|t| t.0));
        let first = self.status.failures.as_ref().and_then(|f| f.first_time?.known());
        if first.zip(since).is_some_and(|(first, since)| first < since) {
            self.status.record().failures = None;
        }
    }

    fn is_retry_open(&self) -> bool {
        is_retry_open(&self.instance, self.status.last_handled_retry.as_ref())
    }

    /// Reports whether a user requests another attempt on a node that is not Ready: its pool grants a repair, and the request stays open until the
    /// repair begins.
    pub(super) fn awaits_repair(&self) -> bool {
        let is_idle = self.status.operation.is_none() && self.status.current_version.is_some() && !self.leaving();
        is_idle && self.is_retry_open() && self.cx.node(&self.name()).is_some_and(|node| !ready(&node).0)
    }

    /// Records that the request for another attempt was handled.
    pub(super) fn take_retry(&mut self) {
        self.status.record().last_handled_retry = retry_requested(&self.instance);
    }

    /// Reports a request for another attempt that finds nothing to retry.
    fn report_needless_retry(&self) {
        let status = &self.status;
        let is_due = status.failures.is_some()
            || status.address_failures.is_some()
            || status.failed_version.is_some()
            || status.pre_pulled.is_some()
            || status.key_rotation.as_ref().is_some_and(|k| k.failures.is_some());
        let value = self.instance.annotations().get(key::RETRY).filter(|_| !is_due);
        if let Some(value) = value.filter(|value| !is_handled(value, status.last_handled_retry.as_ref())) {
            let why = match self.operation_type() {
                Some(type_) => format!("the operation {} is still in progress and has not failed", type_.as_str()),
                None => "no attempt on this host has failed, so there is nothing to retry".to_owned(),
            };
            let note = format!(
                "the annotation {}={} of the WindowsInstance has no effect: {why}",
                key::RETRY,
                line(value, 40)
            );
            self.say(EventReason::AnnotationWithoutEffect, "Retry", &note);
        }
    }

    /// Returns the remaining wait until the next attempt, if any. A user ends the wait by requesting a retry or by changing the entry of the host.
    /// Records a requested retry as handled, except for a node that awaits a repair.
    pub(super) fn retry_after(&mut self) -> Option<Duration> {
        if self.is_retry_open() && !self.awaits_repair() {
            self.report_needless_retry();
            self.take_retry();
            // A requested retry also tries a version that has failed permanently.
            self.status.record().failed_version = None;
            self.retry_now();
            end_wait(self.status.record().address_failures.as_mut());
            end_wait(self.status.record().key_rotation.as_mut().and_then(|k| k.failures.as_mut()));
            if let Some(pulled) = &mut self.status.record().pre_pulled {
                // The next pull queries the host for its images again.
                pulled.images.clear();
                pulled.failures = None;
            }
            return None;
        }
        // An error in an entry is often corrected in the entry itself.
        let now = self.host_digest();
        let failures = self.status.record().failures.as_mut()?;
        if failures.host_digest.as_ref().is_some_and(|then| *then != now) {
            (failures.host_digest, failures.next_retry_time) = (Some(now), None);
        }
        until(self.status.failures.as_ref()?, self.cx.process.args.backoff_max)
    }

    /// Returns the remaining wait until the next attempt, if the last attempt failed with the same error and no retry was requested. Such a failure
    /// is already reported.
    pub(super) fn same_failure(&mut self, error: &StepError) -> Option<Duration> {
        let wait = self.retry_after()?;
        let (reason, message) = (error.reason(), self.message_with_remedy(error));
        let is_same = |f: &Failures| f.last_reason == reason && f.last_message == message;
        self.status.failures.as_ref().is_some_and(is_same).then_some(wait)
    }

    /// Returns a digest of the host's entry in the instance's spec.
    pub(super) fn host_digest(&self) -> String {
        let text = serde_json::to_vec(&self.instance.spec.host).unwrap_or_default();
        hex::encode(&Sha256::digest(text)[..8])
    }

    /// Returns the remaining wait before the next key rotation after a failure, if any.
    pub(super) fn key_waits(&self) -> Option<Duration> {
        until(self.status.key_rotation.as_ref()?.failures.as_ref()?, self.cx.process.args.backoff_max)
    }

    /// Returns the remaining wait before the next image pull after a failure, if any.
    pub(super) fn images_wait(&self) -> Option<Duration> {
        let pulled = self.status.pre_pulled.as_ref()?;
        let failures = image_pull::failures(pulled, self.pool.spec.pre_pull_images())?;
        until(failures, self.cx.process.args.backoff_max)
    }

    /// Makes the next attempt due at once.
    pub(super) fn retry_now(&mut self) {
        end_wait(self.status.record().failures.as_mut());
    }
}

/// Makes the next attempt after these failures due at once.
pub(super) fn end_wait(failures: Option<&mut Failures>) {
    if let Some(failures) = failures {
        failures.next_retry_time = None;
    }
}

/// Returns the remaining wait until the next attempt after these failures, if any. A stored time that lies too far ahead for the maximum wait `max`
/// was written with a wrong clock, and is ignored.
pub(super) fn until(failures: &Failures, max: Duration) -> Option<Duration> {
    let now = clock::now();
    let until = believed(failures.next_retry_time?.known()?, now, max);
    Duration::try_from(until.duration_since(now)).ok().filter(|d| !d.is_zero())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::{super::test_bed::Bed, *};

    /// Each write of the status triggers a reconcile of its instance: a refusal that is counted each time would loop forever.
    #[tokio::test]
    async fn a_failure_is_counted_once_until_its_wait_is_over() {
        let bed = Bed::new().await;
        let refused = |why: &str| StepError::NodeRefused { name: "win-1".into(), why: why.into() };
        let after = |failed: Option<&str>, seconds: i64| {
            let mut scope = bed.scope_with(&json!({}));
            scope.status.record().failures = failed.map(|why| {
                let next = Timestamp::now() + SignedDuration::from_secs(seconds);
                Failures { next_retry_time: Some(next.into()), ..scope.next_failure(None, &refused(why)).0 }
            });
            scope.same_failure(&refused("a")).is_some()
        };
        for (failed, seconds, is_same) in
            [(None, 2, false), (Some("a"), 2, true), (Some("b"), 2, false), (Some("a"), -1, false)]
        {
            assert_eq!(after(failed, seconds), is_same, "{failed:?} {seconds}");
        }
    }

    /// A requested retry of a broken node stays open for its repair. If nothing has failed, an event says that there is nothing to retry.
    #[tokio::test]
    async fn a_retry_request_leads_to_a_repair_or_is_reported_as_needless() {
        let mut bed = Bed::new().await;
        let failures = json!({"failures": {"count": 1, "lastReason": "x", "lastMessage": "y", "nextRetryTime": "2040-01-01T00:00:00Z"}});
        let is_told = |bed: &Bed| {
            let calls = bed.api.calls("POST", "/apis/events.k8s.io/v1/namespaces/default/events");
            calls.iter().filter(|c| c.body["reason"] == "AnnotationWithoutEffect").count()
        };
        for (about, ready, more, stays_open, told) in [
            ("the node does not work", "Unknown", json!({}), true, 0),
            ("the node does not work, and a repair has failed", "False", failures.clone(), true, 0),
            ("it has failed, and its node works", "True", failures, false, 0),
            ("nothing has failed", "True", json!({}), false, 1),
        ] {
            bed.node_that_is(ready, "n-1", "127.0.0.1", &json!({}));
            let mut status = json!({"currentVersion": "1-a", "nodeRef": {"name": "win-1", "uid": "n-1"}});
            status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let asked = json!({"annotations": {key::RETRY: "now"}});
            let mut scope = bed.scope(bed.instance(&asked, &json!({}), &status));
            let _ = scope.retry_after();
            assert_eq!(scope.awaits_repair(), stays_open, "{about}");
            assert_eq!(scope.status.last_handled_retry.is_none(), stays_open, "{about}");
            while is_told(&bed) < told {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(is_told(&bed), 1);
    }
}
