//! The command `check --pre`: whether the operator can be installed, and what is in the way. Changes nothing.

use std::collections::BTreeSet;

use api::names::DEFAULT_NAMESPACE;
use futures::{StreamExt as _, stream};
use k8s_openapi::{
    api::{
        authorization::v1::{
            NonResourceAttributes, ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
        },
        rbac::v1::PolicyRule,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, PostParams},
    core::GroupVersionKind,
};
use serde::Deserialize as _;
use serde_json::Value;

use super::{fault::Fault, installation::version, row::Row};
use crate::{args::Run, caches::wicd_policy, cluster, cluster::crds::conflict, wmco::lock};

/// What is installed everywhere, from `deploy/`: the very files. The policies are added.
const BASE: [(&str, &str); 6] = [
    ("base/namespace.yaml", include_str!("../../../../deploy/base/namespace.yaml")),
    ("base/operator.yaml", include_str!("../../../../deploy/base/operator.yaml")),
    ("base/metrics-reader.yaml", include_str!("../../../../deploy/base/metrics-reader.yaml")),
    ("base/wicd.yaml", include_str!("../../../../deploy/base/wicd.yaml")),
    ("base/deployment.yaml", include_str!("../../../../deploy/base/deployment.yaml")),
    ("base/service.yaml", include_str!("../../../../deploy/base/service.yaml")),
];
/// What is added on OpenShift.
const OPENSHIFT: [(&str, &str); 4] = [
    ("machine-api/user-data.yaml", include_str!("../../../../deploy/machine-api/user-data.yaml")),
    ("openshift-config/pull-secret.yaml", include_str!("../../../../deploy/openshift-config/pull-secret.yaml")),
    ("components/monitoring/monitoring.yaml", include_str!("../../../../deploy/components/monitoring/monitoring.yaml")),
    (
        "components/windows-exporter/windows-exporter.yaml",
        include_str!("../../../../deploy/components/windows-exporter/windows-exporter.yaml"),
    ),
];
/// Questions at a time.
const AT_ONCE: usize = 8;
/// How many rights a message has.
const SHOWN: usize = 5;

pub(super) async fn rows(client: &Client, run: &Run) -> Vec<Row> {
    let network = cluster::network_fault(client, run.network).await.map(|error| Fault::of_cluster(&error));
    vec![
        version(client).await,
        rights(client, &run.namespace).await,
        crds(client).await,
        wmco(client, &run.namespace).await,
        Row::of(
            "network",
            network.as_slice(),
            "nothing that the cluster says of its network speaks against pods on Windows",
        ),
    ]
}

/// Whether WMCO works here. The operator may be installed beside it, and waits.
async fn wmco(client: &Client, namespace: &str) -> Row {
    let found = match lock::holder(client, namespace).await {
        Ok(holder) => holder.map(|holder| Fault::WmcoRuns(holder.pod().to_owned())),
        Err(error) => Some(Fault::not_readable("the lock of WMCO", &error)),
    };
    Row::of("other-operator", found.as_slice(), "none works on these nodes")
}

/// Who installs must be allowed to create each object, and hold what the operator is given: the API server lets no user grant more than they
/// have.
async fn rights(client: &Client, namespace: &str) -> Row {
    let openshift = cluster::is_openshift(client).await;
    let files = BASE.iter().chain(OPENSHIFT.iter().filter(|_| openshift)).map(|(_, text)| *text);
    let objects: Vec<Value> = files.chain(wicd_policy::texts()).flat_map(objects).collect();
    let answers = stream::iter(needed(&objects, namespace)).map(|right| async move {
        let allowed = allowed(client, &right).await;
        (right, allowed)
    });
    let answers: Vec<_> = answers.buffered(AT_ONCE).collect().await;
    let mut missing = Vec::new();
    for (right, allowed) in answers {
        match allowed {
            Ok(true) => {}
            Ok(false) => missing.push(right.to_string()),
            Err(error) => return Row::of("rights", &[Fault::not_readable("your rights", &error)], ""),
        }
    }
    let some = missing.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    let found = (!missing.is_empty()).then_some(Fault::Rights { count: missing.len(), some });
    Row::of("rights", found.as_slice(), "you may create what is installed, and hold what the operator is given")
}

/// A right, in a namespace or in the whole cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    verb: String,
    group: String,
    /// With its subresource; or a path, if it begins with `/`.
    resource: String,
    name: Option<String>,
    namespace: Option<String>,
}

/// As `patch nodes`, or `get secrets pull-secret in openshift-config`.
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

async fn allowed(client: &Client, right: &Right) -> kube::Result<bool> {
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

fn objects(text: &str) -> Vec<Value> {
    let documents = serde_yaml::Deserializer::from_str(text).filter_map(|d| Value::deserialize(d).ok());
    documents.filter(Value::is_object).collect()
}

/// The rights that it takes to install these objects for an operator in a namespace.
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
        all.extend(rules.iter().flat_map(each).map(|right| Right { namespace: place.clone(), ..right }));
        // A role that is not there yet, as that of the hosts' daemons, which the operator makes: it can be bound by this right alone.
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

/// The rights of a rule, one by one.
fn each(rule: &PolicyRule) -> Vec<Right> {
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

/// CRDs of these names that are there already.
async fn crds(client: &Client) -> Row {
    let mut found = Vec::new();
    for shipped in api::crds() {
        let name = shipped.name_any();
        match Api::<CustomResourceDefinition>::all(client.clone()).get_opt(&name).await {
            Ok(None) => {}
            Ok(Some(crd)) => found.extend(conflict(&shipped, &crd).map(Fault::Crd)),
            Err(error) => found.push(Fault::not_readable(&format!("the CustomResourceDefinition {name}"), &error)),
        }
    }
    Row::of("crds", &found, "none is in the way")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(openshift: bool, namespace: &str) -> BTreeSet<String> {
        let files = BASE.iter().chain(OPENSHIFT.iter().filter(|_| openshift)).map(|(_, text)| *text);
        let objects: Vec<Value> = files.chain(wicd_policy::texts()).flat_map(objects).collect();
        needed(&objects, namespace).iter().map(ToString::to_string).collect()
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
    fn every_file_of_the_base_is_among_them() {
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
