//! The admission policies where an operator creates them itself, because its installer cannot: a bundle of the Operator Lifecycle Manager.
//!
//! It may create policies and read them, and neither change nor delete one. So each release has policies of its own, under names that end in a
//! hash of their content, and those of earlier releases stay. All policies apply together: each holds only while its release is the one
//! in force, which the ConfigMap [`MARKER`] names. The new operator creates all of its policies first, and then writes the ConfigMap: at no
//! time is none in force. Two lasting policies, which hold always, let only the operator write the ConfigMap, and only the release that its
//! Deployment names: the installer writes that one, and the operator has no right to.

use k8s_openapi::{
    Resource as _,
    api::{
        admissionregistration::v1::{
            MatchCondition, ParamKind, ParamRef, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
        },
        core::v1::ConfigMap,
    },
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::caches::wicd_policy::{self, Guard, Observed, Seen, Shipped};

/// Name of the ConfigMap that names the release in force.
pub const MARKER: &str = "windows-node-pools-release";
/// Its key.
const RELEASE: &str = "policies";
/// Characters of a hash.
const HASH: usize = 12;

/// The name of a release by the texts of its policies: two with the same version and other policies have different names.
fn release_of<'a>(version: &str, texts: impl Iterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update(text.len().to_le_bytes());
        hash.update(text);
    }
    format!("{version}-{}", &hex::encode(hash.finalize())[..HASH])
}

/// The release of this binary.
pub fn release() -> String {
    release_of(crate::args::version(), wicd_policy::texts())
}

/// All policies of a release, for an operator in a namespace: those that hold while the release is in force.
pub fn of_release(guards: Vec<Shipped>, release: &str, namespace: &str) -> Vec<Shipped> {
    let in_force = MatchCondition {
        name: "release-in-force".into(),
        expression: format!("params.?data[?\"{RELEASE}\"].orValue(\"\") == \"{release}\""),
    };
    guards
        .into_iter()
        .map(|mut guard| {
            let spec = guard.policy.spec.get_or_insert_default();
            spec.param_kind = Some(ParamKind { api_version: Some("v1".into()), kind: Some(ConfigMap::KIND.into()) });
            spec.match_conditions.get_or_insert_default().insert(0, in_force.clone());
            // Without the ConfigMap nothing is refused: otherwise all that the policy is asked for would be, of every client. The lasting
            // policies keep the ConfigMap.
            guard.binding.spec.param_ref = Some(ParamRef {
                name: Some(MARKER.into()),
                namespace: Some(namespace.into()),
                parameter_not_found_action: Some("Allow".into()),
                ..ParamRef::default()
            });
            by_hash(guard)
        })
        .collect()
}

/// The policies that keep the ConfigMap, in all releases.
pub fn lasting(namespace: &str, user: &str) -> Vec<Shipped> {
    wicd_policy::lasting(namespace, user).into_iter().map(by_hash).collect()
}

/// Under a name that ends in the hash of both, and with the label of what the operator creates: by it a person deletes them who uninstalls it.
fn by_hash(mut guard: Shipped) -> Shipped {
    guard.binding.spec.policy_name = String::new();
    let content = json!([guard.policy.spec, guard.binding.spec]).to_string();
    let name = format!("{}-{}", guard.name, &hex::encode(Sha256::digest(content))[..HASH]);
    guard.binding.spec.policy_name.clone_from(&name);
    guard.policy.metadata.name = Some(name.clone());
    guard.binding.metadata.name = Some(name);
    for metadata in [&mut guard.policy.metadata, &mut guard.binding.metadata] {
        let labels = metadata.labels.get_or_insert_default();
        labels.insert(api::names::MANAGED_BY.into(), api::names::COMPONENT.into());
        labels.insert("app.kubernetes.io/version".into(), crate::args::version().into());
    }
    guard
}

/// What the API server has of the policies, after those that are missing were created.
///
/// # Errors
/// When it does not answer. That says nothing about the policies, and must not take rights away.
pub(crate) async fn create(client: &Client, guards: &[Shipped]) -> kube::Result<Vec<Seen>> {
    let (policies, bindings) = (Api::all(client.clone()), Api::all(client.clone()));
    let mut seen = Vec::new();
    for Guard { name, policy, binding } in guards {
        let policy: Observed<ValidatingAdmissionPolicy> = get_or_create(&policies, policy).await?;
        let binding: Observed<ValidatingAdmissionPolicyBinding> = get_or_create(&bindings, binding).await?;
        seen.push(Guard { name: name.clone(), policy, binding });
    }
    Ok(seen)
}

/// Whether the API server has refused the request, as it will the next time.
fn is_answer(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429)
}

async fn get_or_create<K>(api: &Api<K>, object: &K) -> kube::Result<Observed<K>>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let found = match api.get_opt(&object.name_any()).await {
        Ok(Some(found)) => Ok(found),
        Ok(None) => {
            tracing::info!(kind = %K::kind(&()), name = object.name_any(), "creating an admission policy of this release");
            api.create(&PostParams::default(), object).await
        }
        Err(error) => Err(error),
    };
    match found {
        Ok(found) => Ok(Observed::There(Box::new(found))),
        Err(error) if is_answer(&error) => Ok(Observed::Unreadable(crate::runtime::errors::said(&error))),
        Err(error) => Err(error),
    }
}

fn marker(client: &Client, namespace: &str) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), namespace)
}

/// The release in force. `None` if the ConfigMap names none.
pub(crate) async fn in_force(client: &Client, namespace: &str) -> kube::Result<Option<String>> {
    let found = marker(client, namespace).get_opt(MARKER).await?;
    Ok(found.and_then(|found| found.data).and_then(|mut data| data.remove(RELEASE)))
}

/// Makes a release the one in force.
pub(crate) async fn put_in_force(client: &Client, namespace: &str, release: &str) -> kube::Result<()> {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": MARKER}, "data": {RELEASE: release},
    });
    let params = PatchParams::apply(api::names::MANAGER_POOL).force();
    marker(client, namespace).patch(MARKER, &params, &Patch::Apply(object)).await.map(drop)
}

#[cfg(test)]
mod tests {
    use api::names::DEFAULT_NAMESPACE;

    use super::*;
    use crate::fake_api::FakeApi;

    #[tokio::test]
    async fn an_api_server_that_does_not_answer_says_nothing_about_policies() {
        let guards = lasting("ns", "u");
        for (code, is_known) in [(403, true), (422, true), (429, false), (500, false), (503, false)] {
            let api = FakeApi::new();
            for guard in &guards {
                for kind in ["validatingadmissionpolicies", "validatingadmissionpolicybindings"] {
                    let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}/{}", guard.policy.name_any());
                    api.fail("GET", &path, code, "Because", "no", serde_json::Value::Null);
                }
            }
            assert_eq!(create(&api.client(), &guards).await.is_ok(), is_known, "{code}");
            assert_eq!(api.unexpected(), Vec::<String>::new());
        }
    }

    #[test]
    fn a_release_has_policies_of_its_own() {
        let of = |release: &str| of_release(wicd_policy::shipped(DEFAULT_NAMESPACE), release, DEFAULT_NAMESPACE);
        let (one, two) = (of("0.1.0-a"), of("0.2.0-b"));
        assert_eq!(one, of("0.1.0-a"));
        for (one, two) in one.iter().zip(&two) {
            assert_eq!(one.name, two.name);
            assert_ne!(one.policy.name_any(), two.policy.name_any());
            assert!(one.policy.name_any().starts_with(&format!("{}-", one.name)));
            assert_eq!(one.policy.name_any(), one.binding.name_any());
            assert_eq!(one.policy.name_any(), one.binding.spec.policy_name);
            for labels in [one.policy.labels(), one.binding.labels()] {
                assert_eq!(labels[api::names::MANAGED_BY], "windows-node-pools");
            }
            let first = &one.policy.spec.as_ref().unwrap().match_conditions.as_ref().unwrap()[0];
            assert!(first.expression.ends_with(r#"== "0.1.0-a""#), "{}", first.expression);
        }
        let (here, there) = (lasting("here", "u"), lasting("there", "u"));
        assert!(!here.is_empty() && here[0].policy.name_any() != there[0].policy.name_any());
    }

    /// Those of any release stay in clusters beside those of the next, with no condition: with another content, both would hold for ever. Who must
    /// change one lets the operator delete the old names, which needs a right that it does not have.
    #[test]
    fn what_lasts_is_the_same_in_each_release() {
        let user = format!("system:serviceaccount:{DEFAULT_NAMESPACE}:{}", api::names::COMPONENT);
        let names: Vec<_> = lasting(DEFAULT_NAMESPACE, &user).iter().map(|guard| guard.policy.name_any()).collect();
        assert_eq!(names, ["windows-node-pools-release-852eeb4aa178", "windows-node-pools-release-kept-69047bae11ac"]);
    }

    #[test]
    fn a_release_is_named_by_all_of_its_policies() {
        let of = |texts: &[&str]| release_of("0.1.0", texts.iter().copied());
        assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
        assert!(of(&["a", "b"]) != of(&["a", "c"]) && of(&["a", "b"]) != of(&["ab", ""]));
        assert!(release().starts_with(concat!(env!("CARGO_PKG_VERSION"), "-")));
    }
}
