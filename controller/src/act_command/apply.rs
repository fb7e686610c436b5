//! Reads an object, lets a decision be made about it, and writes that if the object is still the one that was read.

use std::fmt::Debug;

use anyhow::bail;
use api::names::MANAGER_COMMAND;
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use super::decision::Decided;
use crate::errors::plain;

/// Attempts on an object that other clients change at the same time, as the operator does with each step.
const ATTEMPTS: usize = 10;

/// Asks a person whether this may happen. An error ends the command.
pub(super) type Agree<'a> = &'a (dyn Fn(&str) -> anyhow::Result<()> + Sync);

/// What became of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Outcome {
    pub kind: String,
    pub name: String,
    pub result: Done,
    /// What was and what is, or why not.
    pub message: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// In a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Done {
    Changed,
    Unchanged,
    Refused,
}

impl Outcome {
    pub(super) fn is_refused(&self) -> bool {
        self.result == Done::Refused
    }
}

/// Decides about the object and changes it. What others change meanwhile is read again, and decided about again.
///
/// # Errors
/// When the API server refuses a request or does not answer, a person does not agree, or the object changes too often.
pub(super) async fn act<K>(
    api: &Api<K>,
    name: &str,
    agree: Agree<'_>,
    decide: impl Fn(&K) -> Decided,
) -> anyhow::Result<Outcome>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let kind = K::kind(&()).into_owned();
    let outcome = |result, message: &str, warnings| Outcome {
        result,
        message: format!("{kind} {name}: {message}"),
        warnings,
        kind: kind.clone(),
        name: name.to_owned(),
    };
    let mut agreed = None;
    for _ in 0..ATTEMPTS {
        let Some(object) = super::get(api, name).await? else {
            let message = format!("it does not exist; see: kubectl get {}", K::plural(&()));
            return Ok(outcome(Done::Refused, &message, Vec::new()));
        };
        let change = match decide(&object) {
            Ok(change) => change,
            Err(refusal) => return Ok(outcome(Done::Refused, &refusal.to_string(), Vec::new())),
        };
        let Some(mut patch) = change.patch else {
            return Ok(outcome(Done::Unchanged, &change.message, change.warnings));
        };
        if let Some(danger) = &change.danger
            && agreed.as_ref() != Some(danger)
        {
            agree(&format!("{kind} {name}: {danger}"))?;
            agreed = Some(danger.clone());
        }
        // With it, the API server refuses the patch if the object is another one by now.
        patch["metadata"]["resourceVersion"] = json!(object.resource_version());
        let parameters = PatchParams { field_manager: Some(MANAGER_COMMAND.into()), ..PatchParams::default() };
        match api.patch(name, &parameters, &Patch::Merge(&patch)).await {
            Ok(_) => return Ok(outcome(Done::Changed, &change.message, change.warnings)),
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            Err(error) => bail!("failed to change the {kind} {name}: {}", plain(&error)),
        }
    }
    bail!("{kind} {name} is changed by other clients all the time; nothing was changed: run the command again")
}
