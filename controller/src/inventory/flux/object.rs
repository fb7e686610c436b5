//! Flux object with an artifact: the fields that are read, and the decision whether the artifact may be used.

use api::{Reason, SourceKind, SourceRef, Time, text};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde::Deserialize;
use serde_json::Value;

use crate::inventory::temporary;
use wnp_core::inventory::SourceError;

/// Maximum number of characters of Flux's text in a message.
const WORDS: usize = 600;

/// Fields of a Flux object that the operator reads.
#[derive(Default, Debug)]
pub(super) struct Object {
    is_suspended: bool,
    status: Status,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
struct Status {
    artifact: Option<Artifact>,
    conditions: Vec<Condition>,
}

/// Location and identity of the object's artifact.
#[derive(Deserialize, Default, Debug, Clone, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Artifact {
    pub revision: String,
    pub digest: String,
    pub url: String,
    pub last_update_time: Option<Time>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    message: String,
}

/// Error that prevents the use of an artifact, with the refused revision, if there is one.
pub(super) type Refusal = (SourceError, Option<String>);

/// Returns the name of the source for a pool's status.
pub(super) fn source(from: &SourceRef) -> String {
    format!("{:?} {}/{}", from.kind, from.namespace, from.name)
}

/// Returns the API resource of a Flux kind.
pub(super) fn resource(kind: SourceKind) -> ApiResource {
    let plural = match kind {
        SourceKind::GitRepository => "gitrepositories",
        SourceKind::OCIRepository => "ocirepositories",
        SourceKind::ExternalArtifact => "externalartifacts",
    };
    let gvk = GroupVersionKind::gvk("source.toolkit.fluxcd.io", "v1", &format!("{kind:?}"));
    ApiResource::from_gvk_with_plural(&gvk, plural)
}

/// Reads the object from the API server.
pub(super) async fn get(from: &SourceRef, client: &Client) -> Result<Object, SourceError> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &from.namespace, &resource(from.kind));
    match api.get_opt(&from.name).await {
        Ok(Some(object)) => Ok(Object::read(&object.data)),
        Ok(None) => Err(temporary(
            Reason::SourceNotFound,
            format!("{} does not exist; create it, or name another object in inventory.sourceRef", source(from)),
        )),
        Err(kube::Error::Api(status)) if status.code == 404 => Err(temporary(
            Reason::SourceNotFound,
            format!(
                "{} does not exist: this cluster has no such API; install Flux with this kind, or name another source",
                source(from)
            ),
        )),
        Err(error) => {
            let message = format!(
                "{} could not be read: {}; the operator retries, and the hosts stay as they are",
                source(from),
                crate::runtime::errors::api_message(&error)
            );
            Err(temporary(Reason::ApiError, message))
        }
    }
}

impl Object {
    /// Reads the fields of the object. A missing field counts as empty, and so does the whole status if one of its fields is malformed.
    fn read(data: &Value) -> Self {
        let mut status = Status::deserialize(&data["status"]).unwrap_or_default();
        for condition in &mut status.conditions {
            condition.message = text::line(&condition.message, WORDS);
        }
        if let Some(artifact) = &mut status.artifact {
            artifact.revision = text::line(&artifact.revision, WORDS);
        }
        Self { is_suspended: data["spec"]["suspend"] == true, status }
    }

    fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|c| c.type_ == type_)
    }

    /// Returns the artifact if it may be used. `in_use` is the digest of the artifact that the pool uses. If the object still names that artifact,
    /// which was verified when it was fetched, an error concerns only newer revisions.
    pub(super) fn usable(&self, from: &SourceRef, in_use: Option<&str>) -> Result<&Artifact, Refusal> {
        let Some(artifact) = self.status.artifact.as_ref().filter(|a| !a.url.is_empty()) else {
            let why = match self.condition("Ready").filter(|c| !c.message.is_empty()) {
                _ if self.is_suspended => ": it is suspended; resume it".to_owned(),
                Some(ready) => format!(": {}", ready.message),
                None => "; check the controller that makes it".to_owned(),
            };
            let message = format!("{} has no artifact yet{why}", source(from));
            return Err((temporary(Reason::SourceNotReady, message), None));
        };
        let verified = self.condition("SourceVerified");
        if from.require_verified != Some(true) || verified.is_some_and(|c| c.status == "True") {
            return Ok(artifact);
        }
        let why = match verified {
            None => {
                "Flux has not verified it, because the object has no condition SourceVerified: set spec.verify of the object, or remove inventory.sourceRef.requireVerified".to_owned()
            }
            Some(condition) => {
                format!(
                    "Flux has not verified it: {}; correct the signature, or spec.verify of the object",
                    condition.message
                )
            }
        };
        let (of, revision) = (source(from), &artifact.revision);
        let (message, refused) = if in_use == Some(artifact.digest.as_str()) {
            (format!("no revision newer than {revision} of {of} is used: {why}"), None)
        } else {
            (format!("{revision} of {of} is not used: {why}"), Some(revision.clone()))
        };
        Err((SourceError { reason: Reason::VerificationError, message, stalls: true }, refused))
    }

    /// Returns an error if the condition `Ready` of the object is `False`, so that no newer artifact is available. Returns `None` for an object that
    /// a user has suspended.
    pub(super) fn unready(&self, from: &SourceRef) -> Option<SourceError> {
        let ready = self.condition("Ready").filter(|c| c.status == "False" && !self.is_suspended)?;
        let message = format!("{} is not Ready, and its last artifact stays in use: {}", source(from), ready.message);
        Some(temporary(Reason::SourceNotReady, message))
    }
}

#[cfg(test)]
#[path = "object_tests.rs"]
mod tests;
