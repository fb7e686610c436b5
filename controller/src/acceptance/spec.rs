//! The pool that is made, and its changes.

use api::names;
use serde_json::{Value, json};

/// Proxy of the change of `template.spec.proxy`. Only plain HTTP goes to it, which no program of a node needs.
pub(super) const PROXY: &str = "http://acceptance.invalid:3128";
/// Certificate of the change of `template.spec.trustedCertificates`. Its key was not kept, and it may sign only for `acceptance.invalid`.
pub(super) const CERTIFICATE: &str = include_str!("certificate.pem");
/// SHA-1 of it, as certutil prints it.
pub(super) const THUMBPRINT: &str = "3bb1582d319ffed7adfd0bf58077497a884f9b15";
/// Looks for it in the store of the host.
pub(super) const CERTUTIL: &str = "certutil.exe -store Root 3bb1582d319ffed7adfd0bf58077497a884f9b15";
/// Registry of the change of `template.spec.imageMirrors`.
pub(super) const MIRRORED: &str = "registry.acceptance.invalid";

/// The host of the pool. `fingerprint` is that of its host key.
pub(super) struct Host<'a> {
    pub(super) name: &'a str,
    pub(super) suffix: &'a str,
    pub(super) address: &'a str,
    pub(super) port: u16,
    pub(super) user: &'a str,
    pub(super) fingerprint: &'a str,
}

/// Metadata of an object that the run makes.
pub(super) fn metadata(name: &str, suffix: &str, address: &str) -> Value {
    json!({"name": name, "labels": {names::ACCEPTANCE: suffix}, "annotations": {names::ACCEPTANCE: address}})
}

/// The pool with this one host, in which `template` and the images that the host pulls ahead are the parts that change. JSON and not a type, so that a field that the cluster's CRD
/// lacks is sent all the same, and refused.
pub(super) fn pool(host: &Host<'_>, template: &Value, images: &[String]) -> Value {
    let Host { name, suffix, address, port, user, fingerprint } = host;
    let mut spec = json!({"taints": [{"key": names::ACCEPTANCE, "value": suffix, "effect": "NoSchedule"}]});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), template.as_object()) {
        spec.extend(more.clone());
    }
    let mut pool = json!({
        "apiVersion": format!("{}/{}", names::GROUP, names::VERSION),
        "kind": "WindowsNodePool",
        "metadata": metadata(name, suffix, address),
        "spec": {
            "inventory": {"hosts": [
                {"name": name, "address": address, "port": port, "username": user, "hostKey": fingerprint}
            ]},
            "ssh": {"privateKeySecretRefs": [{"name": name}]},
            "template": {"metadata": {"labels": {names::ACCEPTANCE: suffix}}, "spec": spec},
        },
    });
    if !images.is_empty() {
        pool["spec"]["provisioning"] = json!({"prePull": {"images": images}});
    }
    pool
}

/// The changes, one after another: each keeps those before.
pub(super) mod change {
    use super::{CERTIFICATE, MIRRORED, PROXY, Value, json};

    /// Pods of the node after the update.
    pub(in super::super) const PODS: i64 = 97;

    pub(in super::super) fn kubelet() -> Value {
        json!({"kubelet": {"maxPods": PODS}})
    }

    pub(in super::super) fn proxy() -> Value {
        json!({"proxy": {"httpProxy": PROXY, "noProxy": ".svc,.cluster.local"}})
    }

    pub(in super::super) fn certificates() -> Value {
        json!({"trustedCertificates": CERTIFICATE})
    }

    pub(in super::super) fn mirrors() -> Value {
        json!({"imageMirrors": {"imageDigestMirrors": [
            {"source": MIRRORED, "mirrors": ["mirror.acceptance.invalid"]}
        ]}})
    }
}
