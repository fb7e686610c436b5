//! Image settings of hosts: registry mirrors, registry logins, and the certificates of registries.

use std::collections::BTreeMap;

use api::text::NotText;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use serde::Deserialize;
use serde_json::Value;
use wnp_core::{
    render::{Fact, MirrorRule, PullSecret, Unusable},
    yaml,
};

use super::{ClusterError, custom_object, failed, resource};
use crate::cluster::texts;

/// ConfigMap with mirrors in the operator's namespace, the only source of mirrors on plain Kubernetes.
const MIRRORS: &str = "image-mirrors";
const MIRRORS_KEY: &str = "mirrors.yaml";
/// Secret with registry logins: the one in the operator's namespace, or without it, on OpenShift, the one in [`OPENSHIFT_CONFIG`].
const PULL_SECRET: &str = "pull-secret";
const OPENSHIFT_CONFIG: &str = "openshift-config";

/// Image settings of the cluster, and the faults of settings that cannot be used.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Images {
    pub mirrors: Vec<MirrorRule>,
    pub pull_secret: PullSecret,
    /// PEM certificates of registries.
    pub trusted: String,
    /// Messages about parts of the settings that are left out.
    pub left_out: Vec<String>,
    /// Settings that cannot be used as a whole.
    pub unusable: Vec<Unusable>,
}

/// Reads all image settings of the cluster.
pub(super) async fn discover(client: &Client, namespace: &str, is_openshift: bool) -> Result<Images, ClusterError> {
    let mut images = Images::default();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    if let Some(map) = maps.get_opt(MIRRORS).await.map_err(failed("the ConfigMap image-mirrors"))? {
        images.add_config_map(texts::of_config_map(map, MIRRORS_KEY), namespace);
    }
    let own = secret(client, namespace).await?;
    if is_openshift {
        // Tag mirrors come last, because a digest can be served by any mirror that has it.
        for (group, version, kind) in [
            ("config.openshift.io", "v1", "ImageDigestMirrorSet"),
            ("operator.openshift.io", "v1alpha1", "ImageContentSourcePolicy"),
            ("config.openshift.io", "v1", "ImageTagMirrorSet"),
        ] {
            for object in list(client, group, version, kind).await? {
                images.add_mirror_set(kind, &object.name_any(), &object.data["spec"]);
            }
        }
        images.trusted = images.certificates(&controller_config(client).await?);
    }
    let found = match own {
        None if is_openshift => secret(client, OPENSHIFT_CONFIG).await?.map(|s| (s, OPENSHIFT_CONFIG)),
        own => own.map(|s| (s, namespace)),
    };
    match found {
        Some((secret, namespace)) => images.add_pull_secret(&secret, namespace),
        // Every OpenShift cluster has a pull secret. Elsewhere, users delete the Secret to remove the logins.
        None if is_openshift => images.unusable.push(Unusable {
            fact: Fact::PullSecret,
            problem: format!(
                "Secret {OPENSHIFT_CONFIG}/{PULL_SECRET} is missing; restore it, or, if hosts must have no logins, give each pool \
                 template.spec.pullSecretRegistries: []"
            ),
            is_missing: true,
        }),
        None => {}
    }
    Ok(images)
}

/// Content of the ConfigMap `image-mirrors`, with the field names of OpenShift's mirror sets.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct MirrorLists {
    image_digest_mirrors: Vec<Entry>,
    image_tag_mirrors: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    source: String,
    #[serde(default)]
    mirrors: Vec<String>,
    #[serde(default)]
    mirror_source_policy: String,
}

/// Parses the YAML text of the ConfigMap `image-mirrors`. Empty text is an error.
pub(crate) fn mirror_lists(text: &str) -> Result<MirrorLists, String> {
    // Empty text would count as empty lists.
    if text.trim().is_empty() {
        return Err("it is missing or empty".to_owned());
    }
    let lists = yaml::document(text).map_err(|(line, fault)| format!("line {line}: {fault}"))?;
    serde_json::from_value(lists.to_json()).map_err(|error| error.to_string())
}

impl Entry {
    fn rule(self, origin: &str, tags: bool) -> MirrorRule {
        let never_source = self.mirror_source_policy == "NeverContactSource";
        MirrorRule { origin: origin.to_owned(), source: self.source, mirrors: self.mirrors, tags, never_source }
    }
}

impl Images {
    pub(super) fn add_config_map(&mut self, text: Result<Option<String>, NotText>, namespace: &str) {
        let origin = format!("ConfigMap/{MIRRORS}");
        let lists = text.map_err(|error| error.to_string()).and_then(|text| mirror_lists(&text.unwrap_or_default()));
        match lists {
            Ok(MirrorLists { image_digest_mirrors: digests, image_tag_mirrors: tags }) => {
                let rules = digests.into_iter().map(|m| (m, false)).chain(tags.into_iter().map(|m| (m, true)));
                self.mirrors.extend(rules.map(|(entry, tags)| entry.rule(&origin, tags)));
            }
            Err(error) => self.unusable.push(Unusable {
                problem: format!(
                    "ConfigMap {namespace}/{MIRRORS}: the key {MIRRORS_KEY} must be YAML with the lists imageDigestMirrors and imageTagMirrors, whose \
                     entries have source and mirrors: {error}; correct it, or delete the ConfigMap if hosts need no mirrors"
                ),
                fact: Fact::Mirrors(origin),
                is_missing: false,
            }),
        }
    }

    fn add_mirror_set(&mut self, kind: &str, name: &str, spec: &Value) {
        let origin = format!("{kind}/{name}");
        for (field, tags) in
            [("imageDigestMirrors", false), ("repositoryDigestMirrors", false), ("imageTagMirrors", true)]
        {
            for entry in spec[field].as_array().into_iter().flatten() {
                match Entry::deserialize(entry) {
                    Ok(read) => self.mirrors.push(read.rule(&origin, tags)),
                    Err(error) => self.left_out.push(format!(
                        "{origin}: an entry of {field} is left out, because it cannot be read: {error}; correct it"
                    )),
                }
            }
        }
    }

    pub(super) fn add_pull_secret(&mut self, secret: &Secret, namespace: &str) {
        let name = format!("Secret {namespace}/{PULL_SECRET}");
        let revision = secret.resource_version().unwrap_or_default();
        let text = texts::of_secret(secret, ".dockerconfigjson").map_err(|error| error.to_string());
        let parse = |text: Option<String>| {
            PullSecret::parse(text.unwrap_or_default().as_bytes(), &revision).map_err(|error| error.to_string())
        };
        match text.and_then(parse) {
            Ok((pull_secret, unusable)) => {
                self.pull_secret = pull_secret;
                let sentence = |r: String| {
                    format!("{name}: the entry {r:?} is not a registry login and is left out; correct or remove it")
                };
                self.left_out.extend(unusable.into_iter().map(sentence));
            }
            Err(error) => self.unusable.push(Unusable {
                fact: Fact::PullSecret,
                problem: format!("{name}: {error}; correct it"),
                is_missing: false,
            }),
        }
    }

    /// Returns the readable certificates of a `ControllerConfig` in PEM. Adds a message for each unreadable entry.
    fn certificates(&mut self, config: &Value) -> String {
        let mut trusted = String::new();
        for field in ["imageRegistryBundleUserData", "imageRegistryBundleData"] {
            for entry in config["spec"][field].as_array().into_iter().flatten() {
                let pem = entry["data"].as_str().and_then(|data| STANDARD.decode(data).ok());
                if let Some(Ok(pem)) = pem.as_deref().map(wnp_core::render::certificates) {
                    trusted.push_str(&pem);
                    continue;
                }
                // Each file is named after its registry, with two dots for a colon.
                let name = entry["file"].as_str().unwrap_or_default().replace("..", ":");
                self.left_out.push(format!(
                    "ControllerConfig/{CONTROLLER_CONFIG}: the certificates of the registry {name:?} are damaged and left out; correct them in the \
                     ConfigMap that spec.additionalTrustedCA of Image/cluster names, or in openshift-config-managed/image-registry-ca"
                ));
            }
        }
        trusted
    }
}

const CONTROLLER_CONFIG: &str = "machine-config-controller";

/// Reads the certificates that Linux nodes trust for registries: those of `Image/cluster` and of the cluster's own registry, as collected by the
/// machine config operator.
async fn controller_config(client: &Client) -> Result<Value, ClusterError> {
    let resource = resource("machineconfiguration.openshift.io", "ControllerConfig", "controllerconfigs");
    let found = custom_object(client, &resource, CONTROLLER_CONFIG, "the ControllerConfig").await?;
    Ok(found.map(|object| object.data).unwrap_or_default())
}

async fn secret(client: &Client, namespace: &str) -> Result<Option<Secret>, ClusterError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    api.get_opt(PULL_SECRET).await.map_err(failed("the Secret pull-secret"))
}

/// Lists all objects of a kind, sorted by name. The list is empty in a version of OpenShift without this kind.
async fn list(
    client: &Client,
    group: &str,
    version: &str,
    kind: &'static str,
) -> Result<Vec<DynamicObject>, ClusterError> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    match api.list(&ListParams::default()).await {
        Ok(list) => {
            let sorted: BTreeMap<String, DynamicObject> = list.into_iter().map(|o| (o.name_any(), o)).collect();
            Ok(sorted.into_values().collect())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(failed(kind)(error)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mirrors_of_each_kind_are_read() {
        let mut images = Images::default();
        images.add_config_map(
            Ok(Some("imageDigestMirrors:\n- source: quay.io\n  mirrors: [m]\nimageTagMirrors:\n- source: docker.io\n  mirrors: [n]\n".into())),
            "ns",
        );
        let entry = json!({"source": "a/b", "mirrors": ["m/b"], "mirrorSourcePolicy": "NeverContactSource", "more": 1});
        images.add_mirror_set("ImageDigestMirrorSet", "x", &json!({"imageDigestMirrors": [entry]}));
        images.add_mirror_set("ImageTagMirrorSet", "y", &json!({"imageTagMirrors": [{"source": "c"}]}));
        images.add_mirror_set(
            "ImageContentSourcePolicy",
            "z",
            &json!({"repositoryDigestMirrors": [{"source": "d", "mirrors": ["e"]}]}),
        );
        let seen: Vec<_> =
            images.mirrors.iter().map(|m| (m.origin.as_str(), m.source.as_str(), m.tags, m.never_source)).collect();
        assert_eq!(
            seen,
            [
                ("ConfigMap/image-mirrors", "quay.io", false, false),
                ("ConfigMap/image-mirrors", "docker.io", true, false),
                ("ImageDigestMirrorSet/x", "a/b", false, true),
                ("ImageTagMirrorSet/y", "c", true, false),
                ("ImageContentSourcePolicy/z", "d", false, false),
            ]
        );
        assert_eq!((images.left_out, images.unusable), (Vec::new(), Vec::new()));
    }

    #[test]
    fn an_unreadable_entry_is_named_and_does_not_affect_the_others() {
        let mut images = Images::default();
        images.add_mirror_set(
            "ImageDigestMirrorSet",
            "x",
            &json!({"imageDigestMirrors": [{"mirrors": 1}, {"source": "a"}]}),
        );
        let config = r#"{"auths": {"a": {"auth": "YTpi"}, "b": {"auth": "hunter2"}}}"#;
        images.add_pull_secret(&secret(config), "ns");
        assert_ne!(images.pull_secret, PullSecret::default());
        assert_eq!((images.mirrors.len(), images.unusable), (1, Vec::new()));
        assert_eq!(images.left_out.len(), 2, "{:?}", images.left_out);
        for (found, expected) in
            images.left_out.iter().zip(["ImageDigestMirrorSet/x", "Secret ns/pull-secret: the entry \"b\""])
        {
            assert!(found.contains(expected) && !found.contains("hunter2"), "{found}");
        }
    }

    fn secret(text: &str) -> Secret {
        Secret {
            data: Some([(".dockerconfigjson".to_owned(), k8s_openapi::ByteString(text.as_bytes().to_vec()))].into()),
            ..Secret::default()
        }
    }

    #[test]
    fn an_unreadable_object_does_not_count_as_empty() {
        let texts = ["imageDigestMirror: []", "]", "", "- hunter2"].map(|text| Ok(Some(text.to_owned())));
        for text in texts.into_iter().chain([Ok(None), Err(NotText::Utf16)]) {
            let mut images = Images::default();
            images.add_config_map(text.clone(), "ns");
            let unusable = images.unusable.pop().unwrap_or_else(|| panic!("{text:?} is taken for no mirrors"));
            assert_eq!(unusable.fact, Fact::Mirrors("ConfigMap/image-mirrors".into()), "{text:?}");
            let names = ["ConfigMap ns/image-mirrors", "imageDigestMirrors and imageTagMirrors"];
            assert!(names.iter().all(|name| unusable.problem.contains(name)), "{}", unusable.problem);
        }
        for secret in [secret("hunter2"), secret(""), secret("{}"), Secret::default()] {
            let mut images = Images::default();
            images.add_pull_secret(&secret, "ns");
            let unusable = images.unusable.pop().unwrap_or_else(|| panic!("{secret:?} is taken for no logins"));
            assert_eq!((unusable.fact, unusable.is_missing), (Fact::PullSecret, false));
            let problem = unusable.problem;
            assert!(problem.contains("Secret ns/pull-secret") && !problem.contains("hunter2"), "{problem}");
        }
        // No logins and no mirrors, on purpose.
        let mut images = Images::default();
        images.add_config_map(Ok(Some("{}".into())), "ns");
        images.add_pull_secret(&secret(r#"{"auths": {}}"#), "ns");
        assert_eq!((images.left_out, images.unusable), (Vec::new(), Vec::new()));
    }

    #[test]
    fn damaged_certificates_of_a_registry_do_not_affect_the_others() {
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap().pem();
        let entry = |file: &str, pem: &str| json!({"file": file, "data": STANDARD.encode(pem)});
        let junk = format!("{pem}-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        let config = json!({"spec": {
            "imageRegistryBundleUserData": [entry("good.example.com", &format!("# a comment\n{pem}")), entry("bad.example.com..5000", &junk)],
            "imageRegistryBundleData": [entry("inner", &pem), {"file": "odd", "data": "%"}],
        }});
        let mut images = Images::default();
        let trusted = images.certificates(&config);
        assert_eq!(trusted.matches("BEGIN CERTIFICATE").count(), 2);
        assert!(!trusted.contains('#'), "{trusted}");
        assert_eq!(images.left_out.len(), 2, "{:?}", images.left_out);
        assert!(images.left_out[0].contains("bad.example.com:5000"), "{:?}", images.left_out);
        assert_eq!(images.certificates(&Value::Null), "");
    }
}
