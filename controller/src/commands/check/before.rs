//! Command `check --pre`: reports whether the operator can be installed, and what prevents it. It changes nothing.

use std::collections::BTreeSet;

use api::{Reason, names::DEFAULT_NAMESPACE};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::{
    api::{
        authorization::v1::{
            NonResourceAttributes, ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
        },
        rbac::v1::PolicyRule,
    },
    apimachinery::pkg::version::Info,
};
use kube::{
    Api, Client,
    api::{ApiResource, PostParams},
    core::GroupVersionKind,
};
use serde::Deserialize as _;
use serde_json::Value;

use super::{
    installation::{Crd, of_crds, read_crds, read_version, read_wmco},
    row::{Finding, Outcome, Read, read},
};
use crate::{
    args::Run,
    caches::wicd_policy,
    cluster::{self, ClusterError, crds::conflict},
    wmco::lock::{self, Holder},
};
use wnp_core::enumeration::counted;

/// Manifests in `deploy/` that are installed on all clusters. [`installed`] adds the admission policies.
const BASE: [(&str, &str); 6] = [
    ("base/namespace.yaml", include_str!("../../../../deploy/base/namespace.yaml")),
    ("base/operator.yaml", include_str!("../../../../deploy/base/operator.yaml")),
    ("base/metrics-reader.yaml", include_str!("../../../../deploy/base/metrics-reader.yaml")),
    ("base/wicd.yaml", include_str!("../../../../deploy/base/wicd.yaml")),
    ("base/deployment.yaml", include_str!("../../../../deploy/base/deployment.yaml")),
    ("base/service.yaml", include_str!("../../../../deploy/base/service.yaml")),
];
/// Manifests that are installed on OpenShift in addition.
const OPENSHIFT: [&str; 4] = [
    include_str!("../../../../deploy/machine-api/user-data.yaml"),
    include_str!("../../../../deploy/openshift-config/pull-secret.yaml"),
    include_str!("../../../../deploy/components/monitoring/monitoring.yaml"),
    include_str!("../../../../deploy/components/windows-exporter/windows-exporter.yaml"),
];
/// Number of rights that are queried at the same time.
const AT_ONCE: usize = 8;
/// Maximum number of rights in a message.
const SHOWN: usize = 5;

/// Facts about a cluster before an installation.
pub(super) struct Facts {
    pub(super) version: Read<Info>,
    crds: Vec<Crd>,
    /// Holder of WMCO's lock, if WMCO runs.
    wmco: Read<Option<Holder>>,
    /// Rights that the user lacks.
    rights: Read<Vec<String>>,
    /// Fault of the cluster's network, if any.
    network: Option<ClusterError>,
}

/// Reads the facts about the cluster, with the rights of the user.
pub(super) async fn observe(client: &Client, run: &Run) -> Facts {
    Facts {
        network: cluster::network_fault(client, run.network).await,
        version: read_version(client).await,
        rights: missing_rights(client, &run.namespace).await,
        crds: read_crds(client).await,
        wmco: read_wmco(client, &run.namespace).await,
    }
}

/// Judges the cluster's network.
pub(super) fn network(facts: &Facts) -> Outcome {
    let finding = facts.network.as_ref().map(|error| Finding::failed(error.reason(), error));
    Outcome::of(finding, "the pod network that the cluster reports supports Windows, or the cluster reports none")
}

/// Warns if WMCO runs. The operator may be installed beside WMCO, but waits until it is gone.
pub(super) fn other_operator(facts: &Facts) -> Outcome {
    let waits = |holder: &Holder| {
        let message = format!("the Windows Machine Config Operator runs in the Pod {}", holder.pod());
        Finding::warning(lock::REASON, message).remedy(
            "you can install the operator now: it begins no operation while that Pod runs, and continues when you have deleted the \
             Subscription and the ClusterServiceVersion of WMCO, or its Deployment (docs/guide/from-wmco.md, step 2)",
        )
    };
    Outcome::judged(&facts.wmco, |holder| {
        Outcome::of(holder.as_ref().map(waits), "no Pod of the Windows Machine Config Operator holds its lock")
    })
}

/// Judges whether the user has all rights that the installation needs.
pub(super) fn rights(facts: &Facts) -> Outcome {
    Outcome::judged(&facts.rights, |missing| {
        let more = if missing.len() > SHOWN { ", …" } else { "" };
        let some = missing.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
        let message = format!("you lack {} that the installation needs: {some}{more}", counted(missing.len(), "right"));
        let finding = Finding::failed(Reason::RightsMissing, message)
            .remedy("install as cluster-admin: a user cannot grant rights that they lack");
        let note =
            "you have the rights to create all objects of the installation, and all rights that the operator gets";
        Outcome::of((!missing.is_empty()).then_some(finding), note)
    })
}

/// Judges the CRDs. CRDs of an older release are not conflicts.
pub(super) fn crds(facts: &Facts) -> Outcome {
    Outcome::of(
        of_crds(&facts.crds, |shipped, crd| conflict(shipped, crd?)),
        "no existing CRD prevents the installation",
    )
}

/// Returns the rights that the installing user lacks: to create each object, and all that the operator gets, because the API server lets no user
/// grant more than they have.
async fn missing_rights(client: &Client, namespace: &str) -> Read<Vec<String>> {
    let needed = needed(&installed(cluster::is_openshift(client).await), namespace);
    let answers = stream::iter(needed).map(|right| async move {
        let allowed = is_allowed(client, &right).await;
        allowed.map(|allowed| (!allowed).then(|| right.to_string()))
    });
    let missing: Vec<_> = read("your rights", answers.buffered(AT_ONCE).try_collect()).await?;
    Ok(missing.into_iter().flatten().collect())
}

/// Right in a namespace or in the whole cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    verb: String,
    group: String,
    /// Resource with its subresource, or a path that begins with `/`.
    resource: String,
    name: Option<String>,
    namespace: Option<String>,
}

/// Text of a right, such as `patch nodes`, or `get secrets pull-secret in openshift-config`.
impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        if let Some(name) = &self.name {
            write!(f, " {name}")?;
        }
        self.namespace.as_ref().map_or(Ok(()), |namespace| write!(f, " in {namespace}"))
    }
}

async fn is_allowed(client: &Client, right: &Right) -> kube::Result<bool> {
    let Right { verb, group, resource, name, namespace } = right.clone();
    let spec = if resource.starts_with('/') {
        let path = NonResourceAttributes { path: Some(resource), verb: Some(verb) };
        SelfSubjectAccessReviewSpec { non_resource_attributes: Some(path), ..Default::default() }
    } else {
        let (resource, subresource) = match resource.split_once('/') {
            Some((resource, subresource)) => (resource.to_owned(), Some(subresource.to_owned())),
            None => (resource, None),
        };
        let attributes = ResourceAttributes {
            verb: Some(verb),
            group: Some(group),
            resource: Some(resource),
            subresource,
            name,
            namespace,
            ..ResourceAttributes::default()
        };
        SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() }
    };
    let question = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let answer = Api::all(client.clone()).create(&PostParams::default(), &question).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Returns the objects that are installed.
fn installed(openshift: bool) -> Vec<Value> {
    let base = BASE.iter().map(|(_, text)| *text);
    base.chain(OPENSHIFT.into_iter().filter(|_| openshift)).chain(wicd_policy::texts()).flat_map(objects).collect()
}

fn objects(text: &str) -> Vec<Value> {
    let documents = serde_yaml::Deserializer::from_str(text).filter_map(|d| Value::deserialize(d).ok());
    documents.filter(Value::is_object).collect()
}

/// Returns the rights that are needed to install these objects for an operator in `namespace`.
fn needed(objects: &[Value], namespace: &str) -> BTreeSet<Right> {
    let mut all = BTreeSet::from([Right {
        verb: "create".into(),
        group: "apiextensions.k8s.io".into(),
        resource: "customresourcedefinitions".into(),
        ..Right::default()
    }]);
    for object in objects {
        let of = |field: &str| object[field].as_str().unwrap_or_default();
        let (group, version) = of("apiVersion").split_once('/').unwrap_or(("", of("apiVersion")));
        let place = object["metadata"]["namespace"].as_str();
        let place = place.map(|place| if place == DEFAULT_NAMESPACE { namespace } else { place }.to_owned());
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, of("kind"))).plural;
        let right = |verb: &str, resource: &str, name: Option<&str>| Right {
            verb: verb.into(),
            group: group.into(),
            resource: resource.into(),
            name: name.map(Into::into),
            namespace: place.clone(),
        };
        all.insert(right("create", &resource, None));
        let rules: Vec<PolicyRule> = serde_json::from_value(object["rules"].clone()).unwrap_or_default();
        all.extend(rules.iter().flat_map(rights_of).map(|right| Right { namespace: place.clone(), ..right }));
        // Only the verb `bind` allows binding a role that does not exist yet, such as the role for wicd, which the operator creates.
        let role = &object["roleRef"];
        let is_there = |one: &Value| {
            one["kind"] == role["kind"]
                && one["metadata"]["name"] == role["name"]
                && (one["kind"] != "Role" || one["metadata"]["namespace"] == object["metadata"]["namespace"])
        };
        if let (Some(kind), Some(name)) = (role["kind"].as_str(), role["name"].as_str())
            && !objects.iter().any(is_there)
        {
            all.insert(right("bind", if kind == "Role" { "roles" } else { "clusterroles" }, Some(name)));
        }
    }
    all
}

/// Splits a rule into single rights.
fn rights_of(rule: &PolicyRule) -> Vec<Right> {
    let names: Vec<Option<String>> = match rule.resource_names.as_deref() {
        None | Some([]) => vec![None],
        Some(names) => names.iter().cloned().map(Some).collect(),
    };
    let mut all = Vec::new();
    for verb in &rule.verbs {
        for path in rule.non_resource_urls.iter().flatten() {
            all.push(Right { verb: verb.clone(), resource: path.clone(), ..Right::default() });
        }
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                all.extend(names.iter().map(|name| Right {
                    verb: verb.clone(),
                    group: group.clone(),
                    resource: resource.clone(),
                    name: name.clone(),
                    namespace: None,
                }));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(openshift: bool, namespace: &str) -> BTreeSet<String> {
        needed(&installed(openshift), namespace).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_right_is_that_of_a_manifest_and_in_its_namespace() {
        let (plain, openshift) = (all(false, "ns"), all(true, "ns"));
        for right in [
            "create customresourcedefinitions.apiextensions.k8s.io",
            "create validatingadmissionpolicies.admissionregistration.k8s.io",
            "create namespaces",
            "create deployments.apps in ns",
            "create services in ns",
            "create roles.rbac.authorization.k8s.io in kube-system",
            "patch nodes",
            "get secrets in ns",
            "get configmaps extension-apiserver-authentication in kube-system",
            "get endpointslices.discovery.k8s.io kubernetes in default",
            "patch roles.rbac.authorization.k8s.io windows-node-pools-wicd-services in ns",
            "bind roles.rbac.authorization.k8s.io windows-node-pools-wicd-services in ns",
            "create serviceaccounts/token windows-node-pools-node-manager",
            "get /metrics",
        ] {
            assert!(plain.contains(right), "{right}: {plain:#?}");
        }
        for right in [
            "get secrets pull-secret in openshift-config",
            "patch secrets windows-user-data in openshift-machine-api",
            "create servicemonitors.monitoring.coreos.com in ns",
        ] {
            assert!(openshift.contains(right) && !plain.contains(right), "{right}: {openshift:#?}");
        }
        assert!(openshift.is_superset(&plain));
        assert!(
            !openshift.iter().any(|right| right.contains(DEFAULT_NAMESPACE) || right.ends_with("deployments.apps"))
        );
    }

    #[test]
    fn rights_are_read_from_every_file_of_the_base() {
        let kustomization: Value =
            serde_yaml::from_str(include_str!("../../../../deploy/base/kustomization.yaml")).unwrap();
        let listed = kustomization["resources"].as_array().unwrap().iter().filter_map(Value::as_str);
        let listed: BTreeSet<String> =
            listed.filter(|name| !name.starts_with("..")).map(|name| format!("base/{name}")).collect();
        let read = BASE.iter().map(|(name, _)| *name).chain(["base/policies.yaml"]);
        let read: BTreeSet<String> = read.map(str::to_owned).collect();
        assert_eq!(listed, read);
    }
}
