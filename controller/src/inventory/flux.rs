//! `inventory.sourceRef`: an object of Flux, whose artifact is fetched from Flux's own server, checked, and read.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api::{InventoryStatus, SourceKind, SourceRef, Verdict, WindowsNodePool};
use gitops::{Limits, artifact, hosts};
use jiff::Timestamp;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde::Deserialize;

use super::{
    Asked, Listing, Trouble,
    files::{Changes, placed, refused},
};

/// How often the object is looked at. Flux itself looks for something new as often as its interval says.
const INTERVAL: Duration = Duration::from_secs(15);
/// How long a download may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What was made of artifacts.
#[derive(Default)]
pub struct Flux(Mutex<HashMap<String, Made>>);

/// What a pool has made of an artifact.
#[derive(Clone)]
struct Made {
    from: SourceRef,
    digest: String,
    listing: Arc<Listing>,
}

/// What is read of the object.
#[derive(Deserialize, Default, Debug)]
#[serde(default)]
struct Status {
    artifact: Option<Artifact>,
    conditions: Vec<Condition>,
}

#[derive(Deserialize, Default, Debug, Clone, PartialEq)]
#[serde(default, rename_all = "camelCase")]
struct Artifact {
    revision: String,
    digest: String,
    url: String,
    last_update_time: Option<String>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    message: String,
}

impl Flux {
    /// The list that is in force for a pool.
    pub async fn ask(&self, pool: &WindowsNodePool, from: &SourceRef, client: &Client) -> Asked {
        let next = Timestamp::now().checked_add(INTERVAL).ok();
        let name = pool.name_any();
        let made = self.made(&name, from);
        match newest(from, made.as_ref(), client).await {
            Ok(made) => {
                let mut listing = Listing::clone(&made.listing);
                listing.next = next;
                self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name, made);
                Asked::Listed(Box::new(listing))
            }
            Err((trouble, revision)) => match made {
                Some(made) => {
                    let mut listing = Listing::clone(&made.listing);
                    (listing.next, listing.trouble) = (next, Some(trouble));
                    if let Some(status) = &mut listing.status {
                        status.refused_revision = revision;
                    }
                    Asked::Listed(Box::new(listing))
                }
                None => Asked::Unknown(trouble, next),
            },
        }
    }

    fn made(&self, pool: &str, from: &SourceRef) -> Option<Made> {
        let made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        made.get(pool).filter(|m| m.from == *from).cloned()
    }
}

/// What the source is called in a pool's status.
fn source(from: &SourceRef) -> String {
    format!("{:?} {}/{}", from.kind, from.namespace, from.name)
}

type Refusal = (Trouble, Option<String>);

async fn newest(from: &SourceRef, made: Option<&Made>, client: &Client) -> Result<Made, Refusal> {
    let object = get(from, client).await.map_err(|t| (t, None))?;
    let status: Status =
        object.data.get("status").cloned().and_then(|s| serde_json::from_value(s).ok()).unwrap_or_default();
    let artifact = usable(from, &status)?;
    if let Some(made) = made.filter(|m| m.digest == artifact.digest) {
        return Ok(made.clone());
    }
    let refuse = |trouble| (trouble, Some(artifact.revision.clone()));
    let (task, path) = (artifact.clone(), from.path().to_owned());
    let files = tokio::task::spawn_blocking(move || download(&task, &path))
        .await
        .unwrap_or_else(|_| Err(failed("the artifact could not be read: see the operator's log".into())))
        .map_err(refuse)?;
    let refuse = |trouble| (trouble, Some(artifact.revision.clone()));
    let entries = hosts::read(&files).map_err(|findings| refuse(refused(&artifact.revision, &findings)))?;
    let source = source(from);
    let status = InventoryStatus {
        source: source.clone(),
        revision: Some(artifact.revision.clone()),
        time: artifact.last_update_time.clone(),
        verdict: if from.require_verified == Some(true) { Verdict::Verified } else { Verdict::NotAsked },
        signer: (from.require_verified == Some(true)).then(|| "somebody whom Flux believes".into()),
        ..InventoryStatus::default()
    };
    let entries = placed(entries, &source, &artifact.revision, &Changes::new());
    let listing = Listing { entries, status: Some(status), ..Listing::default() };
    Ok(Made { from: from.clone(), digest: artifact.digest, listing: Arc::new(listing) })
}

async fn get(from: &SourceRef, client: &Client) -> Result<DynamicObject, Trouble> {
    let kind = format!("{:?}", from.kind);
    let plural = match from.kind {
        SourceKind::GitRepository => "gitrepositories",
        SourceKind::OCIRepository => "ocirepositories",
        SourceKind::ExternalArtifact => "externalartifacts",
    };
    let kind =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("source.toolkit.fluxcd.io", "v1", &kind), plural);
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &from.namespace, &kind);
    match api.get_opt(&from.name).await {
        Ok(Some(object)) => Ok(object),
        Ok(None) => Err(Trouble {
            reason: "SourceNotFound",
            message: format!("there is no {}; create it, or name another in inventory.sourceRef", source(from)),
            stalls: false,
        }),
        Err(error) => Err(Trouble {
            reason: "SourceNotReadable",
            message: format!("{} could not be read: {}", source(from), crate::errors::said(&error)),
            stalls: false,
        }),
    }
}

/// The artifact, if it may be used.
fn usable(from: &SourceRef, status: &Status) -> Result<Artifact, Refusal> {
    let condition = |type_: &str| status.conditions.iter().find(|c| c.type_ == type_);
    let Some(artifact) = status.artifact.clone().filter(|a| !a.url.is_empty()) else {
        let why = condition("Ready").map(|c| format!(": {}", c.message)).unwrap_or_default();
        let message = format!("{} has no artifact yet{why}", source(from));
        return Err((Trouble { reason: "ArtifactMissing", message, stalls: false }, None));
    };
    let is_verified = condition("SourceVerified").is_some_and(|c| c.status == "True");
    if from.require_verified == Some(true) && !is_verified {
        let message = format!(
            "{} of {} is not used: Flux has not verified it (its condition SourceVerified is not True); set spec.verify there, or drop inventory.sourceRef.requireVerified",
            artifact.revision,
            source(from)
        );
        return Err((Trouble { reason: "VerificationError", message, stalls: true }, Some(artifact.revision)));
    }
    Ok(artifact)
}

fn failed(message: String) -> Trouble {
    Trouble { reason: "ArtifactNotReadable", message, stalls: false }
}

/// Fetches the artifact, checks its digest and unpacks it.
fn download(artifact: &Artifact, path: &str) -> Result<Vec<gitops::File>, Trouble> {
    let limits = Limits::default();
    let said = |what: &str| failed(format!("the artifact at {} {what}", artifact.url));
    let digest: artifact::Digest =
        artifact.digest.parse().map_err(|e: artifact::DigestError| said(&format!("is not used: {e}")))?;
    let client = reqwest::blocking::Client::builder()
        .timeout(TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
        .map_err(|_| said("could not be asked for"))?;
    let answer = client.get(&artifact.url).send().map_err(|e| said(&format!("could not be fetched: {}", root(&e))))?;
    if !answer.status().is_success() {
        return Err(said(&format!("could not be fetched: {}", answer.status())));
    }
    artifact::unpack(digest.check(answer), path, &limits).map_err(|e| Trouble {
        reason: e.reason(),
        message: said(&format!("is not used: {e}")).message,
        stalls: e.stalls(),
    })
}

/// The cause at the bottom, which says more than `error sending request`.
fn root(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), root)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(verified: Option<&str>, url: &str) -> Status {
        let conditions = verified.map(|status| Condition {
            type_: "SourceVerified".into(),
            status: status.into(),
            message: String::new(),
        });
        let artifact = Artifact { url: url.into(), revision: "main@sha1:a".into(), ..Artifact::default() };
        Status { artifact: Some(artifact), conditions: conditions.into_iter().collect() }
    }

    #[test]
    fn an_artifact_is_used_if_it_is_there_and_verified_if_asked() {
        let from = |require_verified| SourceRef {
            name: "n".into(),
            namespace: "f".into(),
            require_verified,
            ..SourceRef::default()
        };
        for (about, asked, status, expected) in [
            ("nothing asked", None, status(None, "http://x"), None),
            ("verified", Some(true), status(Some("True"), "http://x"), None),
            ("not verified", Some(true), status(Some("False"), "http://x"), Some("VerificationError")),
            ("never looked at", Some(true), status(None, "http://x"), Some("VerificationError")),
            ("no url", None, status(None, ""), Some("ArtifactMissing")),
            ("nothing", None, Status::default(), Some("ArtifactMissing")),
        ] {
            assert_eq!(usable(&from(asked), &status).err().map(|(t, _)| t.reason), expected, "{about}");
        }
    }
}
