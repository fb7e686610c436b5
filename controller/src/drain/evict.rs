//! Evictions and deletions of single pods.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::api::{Api, DeleteParams, PostParams};
use kube::core::{Status, response::StatusSummary};
use kube::{Client, ResourceExt};

/// Pod as it was listed. Evictions and deletions apply only to the pod with this UID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
}

impl Target {
    pub(super) fn of(pod: &Pod) -> Self {
        Self {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Posts one `policy/v1` `Eviction` for the pod. `Ok` means that the pod will be deleted; a refusal is `kube::Error::Api` with a status.
///
/// - `client` must not retry by itself: a budget refuses with status 429, which the default client retries for minutes.
/// - `grace_period_seconds` is never 0, which would kill the pod. With `None`, the pod's own grace period applies.
///
/// `kube::Api::evict` is not usable: it writes its options under a key that the server does not know, and the UID and the grace period are
/// silently dropped (kube 5.0.0).
pub(super) async fn evict(
    client: &Client,
    target: &Target,
    grace_period_seconds: Option<u32>,
) -> Result<(), kube::Error> {
    let eviction = Eviction {
        metadata: ObjectMeta {
            name: Some(target.name.clone()),
            namespace: Some(target.namespace.clone()),
            ..ObjectMeta::default()
        },
        delete_options: Some(DeleteOptions {
            grace_period_seconds: grace_period_seconds.map(i64::from),
            preconditions: Some(Preconditions { uid: Some(target.uid.clone()), resource_version: None }),
            ..DeleteOptions::default()
        }),
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), &target.namespace);
    let answer: serde_json::Value =
        pods.create_subresource("eviction", &target.name, &PostParams::default(), &eviction).await?;
    // The server returns some refusals (two budgets for one pod) as a Failure in the body of a 201.
    match serde_json::from_value::<Status>(answer) {
        Ok(status) if status.status == Some(StatusSummary::Failure) => Err(kube::Error::Api(status.boxed())),
        _ => Ok(()),
    }
}

/// Deletes a pod despite its budget. Only for `onTimeout: Force`, after the drain's timeout and after a refusal. `grace_period_seconds` is at least
/// 1: 0 would free the pod's name before its containers are known to have stopped.
pub(super) async fn delete(client: &Client, target: &Target, grace_period_seconds: u32) -> Result<(), kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &target.namespace);
    let options = DeleteParams {
        grace_period_seconds: Some(grace_period_seconds.max(1)),
        preconditions: Some(kube::api::Preconditions { uid: Some(target.uid.clone()), resource_version: None }),
        ..DeleteParams::default()
    };
    pods.delete(&target.name, &options).await.map(drop)
}
