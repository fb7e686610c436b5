//! Status of the instance that is being reconciled. Dereferencing reads it, `record` changes it, and `commit` stores it.

use std::{
    ops::Deref,
    sync::{Arc, LazyLock},
};

use api::{GrantType, Operation, WindowsInstance, WindowsInstanceStatus, names::MANAGER_INSTANCE};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::error::StepError;
use crate::{context::Context, runtime::clock};
use wnp_core::{
    operation::{remove::is_irrevocable, times},
    status::apply,
};

/// Empty status, for an instance that has none yet.
static NO_STATUS: LazyLock<WindowsInstanceStatus> = LazyLock::new(WindowsInstanceStatus::default);

/// Status of the instance that is being reconciled.
pub(super) struct OwnStatus {
    /// Status to be stored.
    desired: WindowsInstanceStatus,
    /// Status that this reconcile has stored last, if any.
    saved: Option<WindowsInstanceStatus>,
    /// True if the operation is not stored yet. Its first write fails if the instance has changed, because the grant may have been revoked.
    begins: bool,
}

impl Deref for OwnStatus {
    type Target = WindowsInstanceStatus;

    fn deref(&self) -> &WindowsInstanceStatus {
        &self.desired
    }
}

impl OwnStatus {
    /// Creates the status from an instance as it was read, or from the status that the previous reconcile has left unsaved.
    pub(super) fn of(instance: &WindowsInstance, unsaved: Option<WindowsInstanceStatus>) -> Self {
        // Copied in any case, because nearly every reconcile sets the conditions again.
        let mut desired = unsaved.or_else(|| instance.status.clone()).unwrap_or_default();
        times::correct(&mut desired, clock::now());
        Self { desired, saved: None, begins: false }
    }

    /// Returns the status for changes. The change is stored at the end of the reconcile, or by an earlier [`commit`](Self::commit).
    pub(super) fn record(&mut self) -> &mut WindowsInstanceStatus {
        &mut self.desired
    }

    /// Continues the stored operation if it has the same ID and type. Otherwise, begins this operation.
    pub(super) fn begin(&mut self, operation: Operation) {
        let is_same = |o: &Operation| o.id == operation.id && o.type_ == operation.type_;
        let stored = self.desired.operation.take().filter(is_same);
        self.begins = stored.is_none();
        let epoch = operation.epoch;
        self.desired.operation = Some(Operation { epoch, ..stored.unwrap_or(operation) });
    }

    /// Reports whether the operation is not stored yet.
    pub(super) fn begins(&self) -> bool {
        self.begins
    }

    /// Returns the status as it is stored.
    pub(super) fn stored<'a>(&'a self, instance: &'a WindowsInstance) -> &'a WindowsInstanceStatus {
        self.saved.as_ref().or(instance.status.as_ref()).unwrap_or(&NO_STATUS)
    }

    /// Stores the status, if it has changed. The write is bound to the resource version: an operator that was replaced while it was suspended must
    /// not overwrite its successor's status.
    pub(super) async fn commit(&mut self, instance: &mut Arc<WindowsInstance>, cx: &Context) -> Result<(), StepError> {
        if self.desired == *self.stored(instance) {
            return Ok(());
        }
        let api: Api<WindowsInstance> = Api::all(cx.cluster.client.clone());
        let params = PatchParams::apply(MANAGER_INSTANCE).force();
        let name = instance.name_any();
        let written = loop {
            let patch = json!({
                "apiVersion": format!("{}/{}", api::names::GROUP, api::names::VERSION),
                "kind": "WindowsInstance",
                "metadata": {"name": name, "uid": instance.uid(), "resourceVersion": instance.resource_version()},
                "status": apply::body(&self.desired),
            });
            match api.patch_status(&name, &params, &Patch::Apply(patch)).await {
                Ok(written) => break written,
                Err(kube::Error::Api(status)) if status.is_conflict() && !self.begins => {
                    let version = self.version_of_fresh(instance, &api).await?;
                    Arc::make_mut(instance).metadata.resource_version = version;
                }
                Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {
                    return Err(StepError::Outdated);
                }
                Err(error) => return Err(StepError::api("store the status of the WindowsInstance")(error)),
            }
        };
        cx.writes.instances.note(&written);
        Arc::make_mut(instance).metadata.resource_version = written.metadata.resource_version;
        self.begins = false;
        self.saved = Some(self.desired.clone());
        Ok(())
    }

    /// Returns the current resource version of an instance that has changed since it was read. Fails if the instance no longer exists, if its status
    /// has changed, because another operator then works on the host, or if the grant of a removal or change that can still be aborted was revoked.
    async fn version_of_fresh(
        &self,
        instance: &WindowsInstance,
        api: &Api<WindowsInstance>,
    ) -> Result<Option<String>, StepError> {
        let fresh = api.get_opt(&instance.name_any()).await.map_err(StepError::api("get the WindowsInstance"))?;
        let fresh = fresh.filter(|f| f.uid() == instance.uid()).ok_or(StepError::Outdated)?;
        // Compared as JSON, so that times have the same precision on both sides.
        if json!(fresh.status.clone().unwrap_or_default()) != json!(self.stored(instance)) {
            return Err(StepError::Outdated);
        }
        // An operation that can still be aborted ends here: a revoked grant permits no disruption.
        let is_same = |now: &Operation, o: &Operation| (&now.id, now.type_) == (&o.id, o.type_);
        let goes_on = |o: &&Operation| self.desired.operation.as_ref().is_some_and(|now| is_same(now, o));
        let going_on = self.stored(instance).operation.as_ref().filter(goes_on);
        let is_granted = |o: &Operation| fresh.spec.grant.as_ref().is_some_and(|g| g.id == o.id);
        let is_taken_back = |o: &Operation| match o.type_ {
            GrantType::Remove => !(is_irrevocable(&fresh) || is_granted(o) && fresh.is_leaving()),
            type_ => type_.is_change() && !o.is_irrevocable() && !is_granted(o),
        };
        if going_on.is_some_and(is_taken_back) {
            return Err(StepError::Outdated);
        }
        Ok(fresh.metadata.resource_version)
    }
}
