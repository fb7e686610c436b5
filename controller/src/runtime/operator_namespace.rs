//! Namespace of the operator, for commands that run outside its Pod: a chart may be installed in any namespace.

use std::collections::BTreeSet;

use api::names::{COMPONENT, DEFAULT_NAMESPACE};
use k8s_openapi::api::{
    apps::v1::Deployment,
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};

use crate::runtime::errors::plain;

/// Namespace of the operator, and the reason why it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OperatorNamespace {
    /// Name of the namespace.
    pub name: String,
    found: Found,
}

/// Result of the search for the operator's Deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    /// A namespace other than the default was named, as in the operator's Pod.
    Named,
    /// A Deployment of the operator is in the default namespace.
    Here,
    /// Only one namespace, which is not the default one, has a Deployment of the operator.
    Elsewhere,
    /// No Deployment of the operator exists.
    Nowhere,
    /// Several namespaces have a Deployment of the operator, and the default namespace has none.
    Several(BTreeSet<String>),
    /// Deployments cannot be listed.
    NotListed(String),
}

/// Finds the namespace of the operator. `named` is the namespace from the command line or the environment. If it is the default namespace, searches
/// for the operator's Deployment in all namespaces.
pub(crate) async fn find(client: &Client, named: &str) -> OperatorNamespace {
    if named != DEFAULT_NAMESPACE {
        return OperatorNamespace { name: named.into(), found: Found::Named };
    }
    if !may_search(client).await {
        return decide(Err("this account may not list the Deployments of all namespaces".into()));
    }
    let its_own = ListParams::default().labels(&format!("app.kubernetes.io/name={COMPONENT}"));
    let listed = Api::<Deployment>::all(client.clone()).list_metadata(&its_own).await;
    let namespaces = listed.map(|list| list.items.into_iter().filter_map(|one| one.metadata.namespace).collect());
    decide(namespaces.map_err(|error| plain(&error)))
}

/// Reports whether the account may list the Deployments of all namespaces. The operator's own account may not, and a refused request would look as
/// if it lacked a right that it needs.
async fn may_search(client: &Client) -> bool {
    let attributes = ResourceAttributes {
        verb: Some("list".into()),
        group: Some("apps".into()),
        resource: Some("deployments".into()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let question = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let answer = Api::all(client.clone()).create(&PostParams::default(), &question).await;
    // If the review fails, the list reports the cause.
    answer.map_or(true, |answer| answer.status.is_none_or(|status| status.allowed))
}

fn decide(listed: Result<BTreeSet<String>, String>) -> OperatorNamespace {
    let default = |found| OperatorNamespace { name: DEFAULT_NAMESPACE.into(), found };
    let namespaces = match listed {
        Ok(namespaces) => namespaces,
        Err(error) => return default(Found::NotListed(error)),
    };
    if namespaces.contains(DEFAULT_NAMESPACE) {
        return default(Found::Here);
    }
    match namespaces.len() {
        0 => default(Found::Nowhere),
        1 => OperatorNamespace { name: namespaces.into_iter().collect(), found: Found::Elsewhere },
        _ => default(Found::Several(namespaces)),
    }
}

impl OperatorNamespace {
    /// Returns a message with the namespace that is used, and the reason.
    pub(crate) fn note(&self) -> String {
        let name = &self.name;
        match &self.found {
            Found::Named | Found::Here => format!("the operator is expected in the namespace {name}"),
            Found::Elsewhere => {
                format!("the operator's Deployment is in the namespace {name}, so this namespace is used")
            }
            Found::Nowhere => format!("no namespace has a Deployment of the operator; {name} is used"),
            Found::Several(namespaces) => format!(
                "{} namespaces have a Deployment of the operator, and {name} is not one of them: name one with --namespace",
                namespaces.len()
            ),
            Found::NotListed(_) => format!(
                "the operator is expected in the namespace {name}; Deployments of all namespaces cannot be listed with this account"
            ),
        }
    }

    /// Returns the remedy if the operator is not found in the namespace.
    pub(crate) fn remedy(&self) -> String {
        let name = &self.name;
        match &self.found {
            Found::Named | Found::Here | Found::Elsewhere => {
                format!(
                    "run kubectl -n {name} get pods -l app.kubernetes.io/name={COMPONENT}, then kubectl -n {name} logs POD for one of them"
                )
            }
            Found::Nowhere => {
                "no namespace has a Deployment of the operator: install it (docs/guide/quick-start.md)".into()
            }
            Found::Several(namespaces) => {
                let names: Vec<&str> = namespaces.iter().map(String::as_str).collect();
                format!(
                    "name one of the namespaces with a Deployment of the operator with --namespace: {}",
                    names.join(", ")
                )
            }
            Found::NotListed(error) => format!(
                "only the namespace {name} was searched, because Deployments of all namespaces cannot be listed ({error}): if the operator is \
                 in another one, name it with --namespace"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fake_api::FakeApi;

    const DEPLOYMENTS: &str = "/apis/apps/v1/deployments";

    #[test]
    fn one_installation_is_found_wherever_it_is() {
        for (listed, name, note, remedy) in [
            (Ok(vec![DEFAULT_NAMESPACE]), DEFAULT_NAMESPACE, "expected in", "get pods"),
            (Ok(vec![DEFAULT_NAMESPACE, "a"]), DEFAULT_NAMESPACE, "expected in", "get pods"),
            (Ok(vec!["a"]), "a", "Deployment is in the namespace a", "kubectl -n a get pods"),
            (Ok(vec!["a", "b"]), DEFAULT_NAMESPACE, "2 namespaces have", "--namespace: a, b"),
            (Ok(vec![]), DEFAULT_NAMESPACE, "no namespace has", "install it"),
            (
                Err("not allowed"),
                DEFAULT_NAMESPACE,
                "cannot be listed",
                "(not allowed): if the operator is in another one, name it with --namespace",
            ),
        ] {
            let of_list = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
            let found = decide(listed.clone().map(of_list).map_err(str::to_owned));
            assert_eq!(found.name, name, "{listed:?}");
            assert!(found.note().contains(note) && found.note().contains(name), "{listed:?}: {}", found.note());
            assert!(found.remedy().contains(remedy), "{listed:?}: {}", found.remedy());
        }
    }

    #[tokio::test]
    async fn deployments_are_searched_by_their_label_unless_a_namespace_is_named() {
        let api = FakeApi::new();
        let path = format!("{DEPLOYMENTS}?labelSelector=app.kubernetes.io/name=windows-node-pools");
        let one = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "x", "namespace": "a"}});
        api.on("GET", &path, 200, json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": [one]}));
        assert_eq!(find(&api.client(), "mine").await.name, "mine");
        assert_eq!(api.all_calls(), []);
        assert_eq!(find(&api.client(), DEFAULT_NAMESPACE).await.name, "a");

        let api = FakeApi::new();
        let refused = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {}, "spec": {},
            "status": {"allowed": false}});
        api.on("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", 201, refused);
        let found = find(&api.client(), DEFAULT_NAMESPACE).await;
        assert!(found.remedy().contains("name it with --namespace"), "{}", found.remedy());
        assert_eq!((api.all_calls().len(), api.unexpected().len()), (1, 0), "{:?}", api.all_calls());

        let api = FakeApi::new();
        let message = "deployments.apps is forbidden: User \"x\" cannot list resource \"deployments\"";
        api.fail("GET", DEPLOYMENTS, 403, "Forbidden", message, Value::Null);
        let found = find(&api.client(), DEFAULT_NAMESPACE).await;
        assert_eq!(found.name, DEFAULT_NAMESPACE);
        assert!(
            found.remedy().contains(message) && !found.remedy().contains("install this release"),
            "{}",
            found.remedy()
        );
    }
}
