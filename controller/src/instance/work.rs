//! One instance that is being worked on: its status, and how it is stored.

use std::sync::Arc;

use api::{
    Failures, Grant, Operation, WindowsInstance, WindowsInstanceStatus, WindowsNodePool,
    names::{MANAGER_INSTANCE, key},
};
use jiff::{SignedDuration, Timestamp};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{
    error::StepError,
    status::{Situation, describe, reached},
};
use crate::{context::Context, events::Level, plan::backoff::backoff};

/// Credentials are mended by a person who then looks at the pool: no point in letting them wait long.
const CREDENTIALS_BACKOFF_MAX: std::time::Duration = std::time::Duration::from_secs(15);

/// One instance that is being worked on.
pub struct Work {
    /// What all share.
    pub cx: Arc<Context>,
    /// The instance, as it was read when the work began.
    pub instance: WindowsInstance,
    /// Its pool.
    pub pool: Arc<WindowsNodePool>,
    /// Its status, as it shall be.
    pub status: WindowsInstanceStatus,
    stored: WindowsInstanceStatus,
    /// Whether the operation is not stored yet: a grant that was taken back in the meantime must not be used.
    begins: bool,
    step_began: std::time::Instant,
}

/// How a piece of work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// There is nothing to do until something changes.
    Rest,
    /// To be looked at again after this time, if nothing changes before.
    After(std::time::Duration),
}

impl Work {
    /// Takes an instance up.
    pub fn new(cx: Arc<Context>, instance: WindowsInstance, pool: Arc<WindowsNodePool>) -> Self {
        let status = instance.status.clone().unwrap_or_default();
        Self {
            cx,
            instance,
            pool,
            stored: status.clone(),
            status,
            begins: false,
            step_began: std::time::Instant::now(),
        }
    }

    /// Its name, which is that of its host and of its Node.
    pub fn name(&self) -> String {
        self.instance.name_any()
    }

    /// Whether it is to go.
    pub fn leaving(&self) -> bool {
        self.instance.metadata.deletion_timestamp.is_some()
    }

    /// The operation of this grant: the one that is stored if it is the same, else a new one.
    pub fn take_up(&mut self, grant: &Grant, first_step: &str) -> &mut Operation {
        let (epoch, now) = (self.cx.epoch, Timestamp::now().to_string());
        let stored = self.status.operation.take().filter(|o| o.id == grant.id && o.type_ == grant.type_);
        self.begins = stored.is_none();
        let operation = stored.unwrap_or_else(|| Operation {
            id: grant.id.clone(),
            type_: grant.type_,
            step: first_step.into(),
            step_start_time: now.clone(),
            start_time: now,
            epoch,
            from_version: None,
            to_version: None,
            disruption: None,
            services: Vec::new(),
            attempts: 0,
            rolling_back: false,
            pre_cordoned: false,
            boot_id_to_leave: None,
            boot_id_before: None,
            drain: None,
        });
        self.status.operation.insert(Operation { epoch, ..operation })
    }

    /// Stores that a step begins, before its first side effect.
    pub async fn begin(&mut self, step: &str, what: &str) -> Result<(), StepError> {
        let before = self.status.operation.as_ref().map(|o| o.step.clone()).filter(|s| s != step);
        if let Some(before) = before {
            self.observe_step(&before);
            if let Some(operation) = self.status.operation.as_mut() {
                operation.step = step.into();
                operation.step_start_time = Timestamp::now().to_string();
            }
        }
        tracing::info!(instance = self.name(), step, "{what}");
        let leaving = self.leaving();
        self.say(&Situation::Working { leaving, step, what });
        self.save().await
    }

    fn observe_step(&mut self, step: &str) {
        let known = [
            "Connect",
            "Upload",
            "Configure",
            "Reboot",
            "Certify",
            "Start",
            "Register",
            "Cordon",
            "Drain",
            "Deconfigure",
            "DeleteNode",
        ];
        if let Some(step) = known.into_iter().find(|k| *k == step) {
            let label = crate::metrics::StepLabel { step };
            self.cx.metrics.step_seconds.get_or_create(&label).observe(self.step_began.elapsed().as_secs_f64());
        }
        self.step_began = std::time::Instant::now();
    }

    /// How long the current step has been going on, by the stored clock.
    pub fn in_step(&self) -> std::time::Duration {
        let since = self.status.operation.as_ref().and_then(|o| o.step_start_time.parse::<Timestamp>().ok());
        since.map_or(std::time::Duration::ZERO, |t| {
            std::time::Duration::try_from(Timestamp::now().duration_since(t)).unwrap_or_default()
        })
    }

    /// Brings conditions in line.
    pub fn say(&mut self, situation: &Situation<'_>) {
        describe(&mut self.status, situation, self.instance.metadata.generation, Timestamp::now());
    }

    /// Notes that the host answered.
    pub fn reached(&mut self) {
        reached(&mut self.status, Ok(()), self.instance.metadata.generation, Timestamp::now());
    }

    /// Notes a failure, and when the next attempt is made.
    pub async fn fail(&mut self, error: &StepError) -> Result<std::time::Duration, StepError> {
        let (reason, message) = (error.reason(), error.to_string());
        let now = Timestamp::now();
        let count = self.status.failures.as_ref().map_or(0, |f| f.count).saturating_add(1);
        let max = match error {
            StepError::Secret(_) => CREDENTIALS_BACKOFF_MAX.min(self.cx.args.backoff_max),
            _ => self.cx.args.backoff_max,
        };
        let wait = backoff(u32::try_from(count).unwrap_or(1), self.cx.args.backoff_base.min(max), max, rand::random());
        let next = now.checked_add(SignedDuration::try_from(wait).unwrap_or_default()).unwrap_or(now);
        let step = self.status.operation.as_ref().map(|o| o.step.clone()).unwrap_or_default();
        self.status.failures = Some(Failures {
            count,
            next_retry_time: next.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            last_reason: reason.clone(),
            last_message: message.clone(),
            step: step.clone(),
        });
        if error.is_unreachable() {
            reached(&mut self.status, Err((&reason, &message)), self.instance.metadata.generation, now);
        }
        let leaving = self.leaving();
        self.say(&Situation::Failed { leaving });
        self.cx.metrics.failed(&reason);
        let note = format!("{step}: {message}");
        // The reasons of events are few and fixed; what exactly failed is in the note, where it may vary.
        let event = if leaving { "RemoveFailed" } else { "JoinFailed" };
        self.cx.events.say(&self.instance, Level::Warning, event, &step, &format!("{reason}: {note}"));
        self.save().await?;
        Ok(wait)
    }

    /// Until when the next attempt waits, if it does. A person ends the wait by asking for a retry, or by allowing a host key.
    pub fn waits(&mut self) -> Option<std::time::Duration> {
        let asked: Vec<&str> = [key::RETRY, key::TRUST_HOST_KEY]
            .iter()
            .filter_map(|k| self.instance.annotations().get(*k))
            .map(String::as_str)
            .collect();
        let asked = (!asked.is_empty()).then(|| asked.join(" "));
        if asked.is_some() && asked != self.status.last_handled_retry {
            self.status.last_handled_retry = asked;
            if let Some(failures) = &mut self.status.failures {
                failures.next_retry_time = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            }
            return None;
        }
        let until = self.status.failures.as_ref()?.next_retry_time.parse::<Timestamp>().ok()?;
        std::time::Duration::try_from(until.duration_since(Timestamp::now())).ok().filter(|d| !d.is_zero())
    }

    /// Stores the status, if it differs from what is stored.
    pub async fn save(&mut self) -> Result<(), StepError> {
        if self.status == self.stored {
            return Ok(());
        }
        let api: Api<WindowsInstance> = Api::all(self.cx.client.clone());
        let mut patch = json!({
            "apiVersion": format!("{}/{}", api::names::GROUP, api::names::VERSION),
            "kind": "WindowsInstance",
            "metadata": {"name": self.name(), "uid": self.instance.uid()},
            "status": self.status,
        });
        if self.begins {
            patch["metadata"]["resourceVersion"] = json!(self.instance.resource_version());
        }
        self.cx.metrics.wrote("WindowsInstance");
        let params = PatchParams::apply(MANAGER_INSTANCE).force();
        match api.patch_status(&self.name(), &params, &Patch::Apply(patch)).await {
            Ok(written) => self.cx.written.note(&written),
            Err(kube::Error::Api(status)) if status.is_conflict() => return Err(StepError::Outdated),
            Err(error) => return Err(StepError::api("store the status")(error)),
        }
        self.begins = false;
        self.stored = self.status.clone();
        Ok(())
    }
}
