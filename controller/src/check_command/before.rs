//! The command `check --pre`: whether the operator can be installed, and what is in the way. Changes nothing.

use futures::{StreamExt as _, stream};
use k8s_openapi::{
    api::{
        authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
        rbac::v1::{ClusterRole, PolicyRule},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, Client, ResourceExt as _, api::PostParams};
use serde::Deserialize as _;
use serde_json::Value;

use super::{
    fault::Fault,
    installation::{conflict, other_operator, version},
    row::Row,
};
use crate::{args::Run, cluster};

/// What the operator is given: the very file that is installed.
const RIGHTS: &str = include_str!("../../../deploy/base/operator.yaml");
/// Questions at a time.
const AT_ONCE: usize = 8;
/// How many rights a message has.
const SHOWN: usize = 5;

pub(super) async fn rows(client: &Client, run: &Run) -> Vec<Row> {
    let network = cluster::network_fault(client, run.network).await.map(|error| Fault::of_cluster(&error));
    vec![
        version(client).await,
        rights(client).await,
        crds(client).await,
        other_operator(client, &run.namespace).await,
        Row::of("network", network.as_slice(), "pods on Windows can have a network"),
    ]
}

/// Who installs must hold what the operator is given: the API server lets no user grant more than they have.
async fn rights(client: &Client) -> Row {
    let wanted: Vec<ResourceAttributes> = to_install().into_iter().chain(granted()).collect();
    let answers = stream::iter(wanted).map(|right| async move {
        let allowed = allowed(client, &right).await;
        (right, allowed)
    });
    let answers: Vec<_> = answers.buffered(AT_ONCE).collect().await;
    let mut missing = Vec::new();
    for (right, allowed) in answers {
        match allowed {
            Ok(true) => {}
            Ok(false) => missing.push(in_words(&right)),
            Err(error) => return Row::of("rights", &[Fault::not_readable("your rights", &error)], ""),
        }
    }
    let some = missing.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    let found = (!missing.is_empty()).then_some(Fault::Rights { count: missing.len(), some });
    Row::of("rights", found.as_slice(), "you hold what the operator is given")
}

async fn allowed(client: &Client, right: &ResourceAttributes) -> kube::Result<bool> {
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(right.clone()), ..Default::default() };
    let question = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let answer = Api::all(client.clone()).create(&PostParams::default(), &question).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// What is created for the operator.
fn to_install() -> Vec<ResourceAttributes> {
    [
        ("", "namespaces"),
        ("apiextensions.k8s.io", "customresourcedefinitions"),
        ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
        ("rbac.authorization.k8s.io", "clusterroles"),
        ("rbac.authorization.k8s.io", "clusterrolebindings"),
        ("apps", "deployments"),
    ]
    .map(|(group, resource)| right(group, resource, "create", None))
    .into()
}

fn right(group: &str, resource: &str, verb: &str, name: Option<&str>) -> ResourceAttributes {
    let (resource, subresource) = resource.split_once('/').map_or((resource, None), |(r, s)| (r, Some(s)));
    ResourceAttributes {
        group: Some(group.into()),
        resource: Some(resource.into()),
        subresource: subresource.map(Into::into),
        verb: Some(verb.into()),
        name: name.map(Into::into),
        ..ResourceAttributes::default()
    }
}

/// The rights in the operator's ClusterRole, one by one.
fn granted() -> Vec<ResourceAttributes> {
    let documents = serde_yaml::Deserializer::from_str(RIGHTS).filter_map(|d| Value::deserialize(d).ok());
    let roles = documents.filter(|d| d["kind"] == "ClusterRole").filter_map(|d| serde_json::from_value(d).ok());
    roles.flat_map(|role: ClusterRole| role.rules.unwrap_or_default()).flat_map(|rule| each(&rule)).collect()
}

fn each(rule: &PolicyRule) -> Vec<ResourceAttributes> {
    let names: Vec<Option<&str>> = match rule.resource_names.as_deref() {
        None | Some([]) => vec![None],
        Some(names) => names.iter().map(|name| Some(name.as_str())).collect(),
    };
    let mut all = Vec::new();
    for group in rule.api_groups.iter().flatten() {
        for resource in rule.resources.iter().flatten() {
            for verb in &rule.verbs {
                all.extend(names.iter().map(|name| right(group, resource, verb, *name)));
            }
        }
    }
    all
}

/// As `patch nodes`, or `get networks.config.openshift.io/cluster`.
fn in_words(right: &ResourceAttributes) -> String {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let mut words = format!("{} {}", text(&right.verb), text(&right.resource));
    for (mark, field) in [("/", &right.subresource), (".", &right.group), (" ", &right.name)] {
        if let Some(value) = field.as_ref().filter(|value| !value.is_empty()) {
            words.push_str(mark);
            words.push_str(value);
        }
    }
    words
}

/// CRDs of these names that are there already.
async fn crds(client: &Client) -> Row {
    let mut found = Vec::new();
    for shipped in api::crds() {
        let name = shipped.name_any();
        match Api::<CustomResourceDefinition>::all(client.clone()).get_opt(&name).await {
            Ok(None) => {}
            Ok(Some(crd)) => found.extend(conflict(&shipped, &crd)),
            Err(error) => found.push(Fault::not_readable(&format!("the CustomResourceDefinition {name}"), &error)),
        }
    }
    Row::of("crds", &found, "none is in the way")
}
