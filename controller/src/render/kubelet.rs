//! kubelet's command line and configuration.

use api::{host::path, names::key};
use serde_json::{Map, Value, json};

use super::{
    Cluster, HostParams, Settings, credential_provider, program,
    services::{Context, NODE_IP, NODE_NAME},
};

/// The command line, with variables in it.
pub(super) fn command(context: &Context<'_>) -> String {
    let mut arguments = vec![
        program::KUBELET.to_owned(),
        format!("--config={}", path::KUBELET_CONFIG),
        format!("--kubeconfig={}", path::KUBELET_KUBECONFIG),
        format!("--cert-dir={}", path::KUBELET_PKI),
        "--windows-service".to_owned(),
        format!("--node-labels={}=Windows", key::OS_ID),
        "--windows-priorityclass=ABOVE_NORMAL_PRIORITY_CLASS".to_owned(),
        format!("--v={}", context.level("2", "4")),
    ];
    if context.cluster.external_cloud_provider {
        arguments.push("--cloud-provider=external".to_owned());
    }
    // The name is the one that the operator has proven; what a cloud or DNS calls the host now does not matter.
    arguments.push(format!("--hostname-override={NODE_NAME}"));
    arguments.push(format!("--node-ip={NODE_IP}"));
    if context.has(program::ECR_CREDENTIAL_PROVIDER) {
        arguments.push(format!("--image-credential-provider-bin-dir={}", path::ROOT));
        arguments.push(format!("--image-credential-provider-config={}", credential_provider::PATH));
    }
    arguments.join(" ")
}

/// The configuration file (kind `KubeletConfiguration`, `kubelet.config.k8s.io/v1beta1`). The numbers are WMCO's.
pub(super) fn config(cluster: &Cluster, settings: &Settings, host: &HostParams) -> Value {
    let taint =
        |t: &api::Taint| json!({"key": t.key, "value": t.value.clone().unwrap_or_default(), "effect": t.effect});
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "x509": {"clientCAFile": path::KUBELET_CA},
        },
        "cgroupsPerQOS": false,
        "clusterDNS": cluster.cluster_dns,
        "clusterDomain": cluster.cluster_domain,
        "containerLogMaxSize": "50Mi",
        "containerRuntimeEndpoint": "npipe://./pipe/containerd-containerd",
        "enableSystemLogHandler": true,
        "enableSystemLogQuery": true,
        "enforceNodeAllocatable": ["none"],
        "evictionHard": {"nodefs.available": "10%", "imagefs.available": "15%"},
        "featureGates": {"NodeLogQuery": true, "RotateKubeletServerCertificate": true},
        "kubeAPIBurst": 100,
        "kubeAPIQPS": 50,
        "logging": {"flushFrequency": "5s"},
        "maxPods": 250,
        "registerNode": true,
        "registerWithTaints": host.taints.iter().map(taint).collect::<Vec<_>>(),
        // Windows has no such file, and the default is one.
        "resolvConf": "",
        "rotateCertificates": true,
        "runtimeRequestTimeout": "10m",
        "serializeImagePulls": false,
        "serverTLSBootstrap": true,
        "systemReserved": {"cpu": "500m", "memory": "2Gi", "ephemeral-storage": "1Gi"},
    });
    if let Value::Object(config) = &mut config {
        merge(config, &settings.kubelet_extra);
    }
    config
}

/// JSON merge patch, RFC 7386: objects are merged, null takes away, anything else replaces.
fn merge(target: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (name, value) in patch {
        match value {
            Value::Null => {
                target.remove(name);
            }
            Value::Object(inner) => {
                let old = target.entry(name.clone()).or_insert(Value::Null);
                if !old.is_object() {
                    *old = Value::Object(Map::new());
                }
                if let Value::Object(old) = old {
                    merge(old, inner);
                }
            }
            other => {
                target.insert(name.clone(), other.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_patch() {
        let cases = [
            (json!({"a": 1}), json!({"a": 2}), json!({"a": 2})),
            (json!({"a": 1}), json!({"b": 2}), json!({"a": 1, "b": 2})),
            (json!({"a": 1}), json!({"a": null}), json!({})),
            (json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": null, "d": 3}}), json!({"a": {"c": 2, "d": 3}})),
            (json!({"a": [1]}), json!({"a": {"b": null, "c": 1}}), json!({"a": {"c": 1}})),
            (json!({}), json!({"a": {"b": {"c": null}}}), json!({"a": {"b": {}}})),
            (json!({"a": {"b": 1}}), json!({"a": [2]}), json!({"a": [2]})),
        ];
        for (mut target, patch, expected) in cases {
            merge(target.as_object_mut().unwrap(), patch.as_object().unwrap());
            assert_eq!(target, expected, "{patch}");
        }
    }
}
