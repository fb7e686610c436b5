//! kubelet's command line and configuration.

use api::{KubeletSettings, host::path, names::key};
use serde_json::{Map, Value, json};

use super::{
    Cluster, RenderError, Settings,
    context::{Context, NODE_IP, NODE_NAME},
    credential_provider,
    prerequisites::OLDEST,
    program,
};

/// Default of kubelet for `imageGCHighThresholdPercent`.
const IMAGE_GC_HIGH: i64 = 85;
/// Default of kubelet for `imageGCLowThresholdPercent`.
const IMAGE_GC_LOW: i64 = 80;

/// Argument with which kubelet leaves the initialisation of the Node to a cloud controller manager.
pub(super) const EXTERNAL_CLOUD: &str = "--cloud-provider=external";

/// Feature gate that `enableSystemLogQuery` needs.
const LOG_QUERY: &str = "NodeLogQuery";
/// First minor version of kubelet that locks [`LOG_QUERY`] to true. Such a kubelet warns if the gate is set, and kubelet 1.39 would not start with
/// the gate.
const LOG_QUERY_IS_LOCKED: u32 = 36;

/// Returns kubelet's command line, with placeholders for the host's values.
pub(super) fn command(context: &Context<'_>) -> String {
    let mut arguments = vec![
        program::KUBELET.to_owned(),
        format!("--config={}", path::KUBELET_CONFIG),
        format!("--kubeconfig={}", path::KUBELET_KUBECONFIG),
        format!("--cert-dir={}", path::KUBELET_PKI),
        "--windows-service".to_owned(),
        format!("--node-labels={}=Windows", key::OS_ID),
        "--windows-priorityclass=ABOVE_NORMAL_PRIORITY_CLASS".to_owned(),
        format!("--v={}", context.settings.logs.of_level(2, 4)),
    ];
    if context.cluster.external_cloud_provider {
        arguments.push(EXTERNAL_CLOUD.to_owned());
    }
    // kubelet uses the name that the operator has proven, whatever name a cloud or DNS has for the host.
    arguments.push(format!("--hostname-override={NODE_NAME}"));
    arguments.push(format!("--node-ip={NODE_IP}"));
    arguments.extend(credential_provider::arguments(|file| context.has(file)));
    arguments.join(" ")
}

/// Field of [`config`] that depends on the host.
pub(super) const TAINTS: &str = "registerWithTaints";

/// Returns the configuration file (kind `KubeletConfiguration`, `kubelet.config.k8s.io/v1beta1`) without [`TAINTS`]. The numbers are WMCO's, except
/// for the reserved memory and the eviction thresholds. The operator's patch takes precedence over them, and the pool's settings over both. `minor`
/// is kubelet's minor version. Fails if the thresholds of image garbage collection contradict each other.
pub(super) fn config(
    cluster: &Cluster,
    minor: Option<u32>,
    settings: &Settings,
    pool: &KubeletSettings,
) -> Result<Value, RenderError> {
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
        // Setting one signal removes all of kubelet's defaults for Windows, so that each is set here. Without eviction, all programs of a host fail
        // when its memory is used up.
        "evictionHard": {"memory.available": "500Mi", "nodefs.available": "10%", "imagefs.available": "15%"},
        "featureGates": feature_gates(minor, cluster.kubernetes_minor),
        "kubeAPIBurst": 100,
        "kubeAPIQPS": 50,
        "logging": {"flushFrequency": "5s"},
        "maxPods": 250,
        "registerNode": true,
        // Windows has no such file, but the default names one.
        "resolvConf": "",
        "rotateCertificates": true,
        "runtimeRequestTimeout": "10m",
        "serializeImagePulls": false,
        "serverTLSBootstrap": true,
        "systemReserved": {"cpu": "500m", "memory": "2Gi", "ephemeral-storage": "1Gi"},
        // kubelet runs programs from this directory as SYSTEM, and any user may create the default directory.
        "volumePluginDir": path::VOLUME_PLUGINS,
    });
    if let Value::Object(config) = &mut config {
        if let Some(tls) = &cluster.tls_profile {
            config.insert("tlsMinVersion".to_owned(), tls.min_version.into());
            config.insert("tlsCipherSuites".to_owned(), tls.ciphers.clone().into());
        }
        merge(config, &settings.kubelet_extra);
        // The fields have kubelet's names, except for `cloudProvider`, which is an argument of kubelet.
        if let Ok(Value::Object(mut pool)) = serde_json::to_value(pool) {
            pool.remove("cloudProvider");
            merge(config, &pool);
        }
        // A list of TLS 1.3 ciphers alone is invalid for an older version: kubelet would not start with it.
        if let Some(tls) = &cluster.tls_profile
            && config.get("tlsMinVersion").is_some_and(|v| v != tls.min_version)
            && config.get("tlsCipherSuites") == Some(&tls.ciphers.clone().into())
        {
            config.remove("tlsCipherSuites");
        }
        // A version must not have taints, because they are updated in place.
        config.remove(TAINTS);
    }
    image_gc(&config, pool)?;
    Ok(config)
}

/// Returns the feature gates for a minor version of kubelet. A kubelet of unknown version may be as old as the API server allows.
fn feature_gates(minor: Option<u32>, server: Option<u32>) -> Value {
    let oldest = minor.or(server.map(|server| server.saturating_sub(OLDEST)));
    if oldest.is_some_and(|minor| minor >= LOG_QUERY_IS_LOCKED) { json!({}) } else { json!({LOG_QUERY: true}) }
}

/// Adds the taints of one host to its [`config`], in kubelet's format.
pub(super) fn with_taints(mut config: Value, taints: &[api::Taint]) -> Value {
    let taint =
        |t: &api::Taint| json!({"key": t.key, "value": t.value.clone().unwrap_or_default(), "effect": t.effect});
    if let Value::Object(config) = &mut config {
        config.insert(TAINTS.to_owned(), taints.iter().map(taint).collect());
    }
    config
}

/// Checks the thresholds of image garbage collection: kubelet does not start unless the low threshold is lower. The API server has compared the
/// pool's values, but does not know the effective value of a threshold that the pool leaves out.
fn image_gc(config: &Value, pool: &KubeletSettings) -> Result<(), RenderError> {
    let effective = |name: &str, default| config.get(name).and_then(Value::as_i64).unwrap_or(default);
    let (low, high) = (
        effective("imageGCLowThresholdPercent", IMAGE_GC_LOW),
        effective("imageGCHighThresholdPercent", IMAGE_GC_HIGH),
    );
    let (field, value, problem) = match (pool.image_gc_low_threshold_percent, pool.image_gc_high_threshold_percent) {
        (_, Some(value)) => (
            "template.spec.kubelet.imageGCHighThresholdPercent",
            value,
            "it must be more than imageGCLowThresholdPercent (by default 80); correct one of the two",
        ),
        (Some(value), None) => (
            "template.spec.kubelet.imageGCLowThresholdPercent",
            value,
            "it must be less than imageGCHighThresholdPercent (by default 85); correct one of the two",
        ),
        (None, None) => return Ok(()),
    };
    if low < high { Ok(()) } else { Err(RenderError::Setting { field, value: value.to_string(), problem }) }
}

/// Applies a JSON merge patch, RFC 7386: objects are merged, null removes, any other value replaces.
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
    use crate::render::TlsProfile;

    #[test]
    fn the_low_threshold_of_image_collection_must_be_lower_than_the_high_one() {
        let pool = |low, high| KubeletSettings {
            image_gc_low_threshold_percent: low,
            image_gc_high_threshold_percent: high,
            ..KubeletSettings::default()
        };
        let patched =
            |patch: Value| Settings { kubelet_extra: patch.as_object().unwrap().clone(), ..Settings::default() };
        let low_patch = || patched(json!({"imageGCLowThresholdPercent": 50}));
        for (name, settings, pool, fine) in [
            ("none", Settings::default(), pool(None, None), true),
            ("both", Settings::default(), pool(Some(50), Some(60)), true),
            ("high under the default of low", Settings::default(), pool(None, Some(80)), false),
            ("high above the default of low", Settings::default(), pool(None, Some(81)), true),
            ("low above the default of high", Settings::default(), pool(Some(85), None), false),
            ("low under the default of high", Settings::default(), pool(Some(84), None), true),
            ("high above the operator's low", low_patch(), pool(None, Some(60)), true),
            ("high not above the operator's low", low_patch(), pool(None, Some(50)), false),
            ("the pool's low takes precedence", low_patch(), pool(Some(59), Some(60)), true),
        ] {
            let config = config(&Cluster::default(), None, &settings, &pool);
            assert_eq!(config.is_ok(), fine, "{name}");
            if let Err(error) = config {
                assert!(error.to_string().contains("imageGC") && error.reason() == "SpecInvalid", "{error}");
            }
        }
    }

    #[test]
    fn the_log_query_gate_is_set_only_for_a_kubelet_that_may_need_it() {
        let log_query = || json!({"NodeLogQuery": true});
        for (minor, server, expected) in [
            (None, None, log_query()),
            (None, Some(38), log_query()),
            (None, Some(39), json!({})),
            (Some(33), Some(36), log_query()),
            (Some(34), None, log_query()),
            (Some(35), Some(38), log_query()),
            (Some(36), Some(36), json!({})),
            (Some(37), Some(39), json!({})),
        ] {
            assert_eq!(feature_gates(minor, server), expected, "{minor:?} {server:?}");
        }
    }

    #[test]
    fn the_operators_patch_takes_precedence_over_the_tls_profile_of_the_cluster() {
        let tls_profile = Some(TlsProfile::of_cluster(Some(&json!({"type": "Modern"}))).0);
        let modern = Cluster { tls_profile, ..Cluster::default() };
        let patch = json!({"tlsMinVersion": "VersionTLS12"}).as_object().unwrap().clone();
        let patched = Settings { kubelet_extra: patch, ..Settings::default() };
        for (cluster, settings, version, has_ciphers) in [
            (&Cluster::default(), &Settings::default(), Value::Null, false),
            (&modern, &Settings::default(), json!("VersionTLS13"), true),
            (&modern, &patched, json!("VersionTLS12"), false),
        ] {
            let config = config(cluster, None, settings, &KubeletSettings::default()).unwrap();
            assert_eq!((&config["tlsMinVersion"], config["tlsCipherSuites"].is_array()), (&version, has_ciphers));
        }
    }

    #[test]
    fn the_pools_settings_take_precedence_over_the_operators_patch() {
        let patch = json!({"maxPods": 50, "imageMinimumGCAge": "5m"}).as_object().unwrap().clone();
        let settings = Settings { kubelet_extra: patch, ..Settings::default() };
        let pool = json!({
            "maxPods": 100, "containerLogMaxSize": "10Mi", "evictionHard": {"memory.available": "1Gi"}, "cloudProvider": "None",
        });
        let set = config(&Cluster::default(), None, &settings, &serde_json::from_value(pool).unwrap()).unwrap();
        for (field, expected) in [
            ("maxPods", json!(100)),
            ("imageMinimumGCAge", json!("5m")),
            ("cloudProvider", Value::Null),
            ("containerLogMaxSize", json!("10Mi")),
            ("evictionHard", json!({"memory.available": "1Gi", "nodefs.available": "10%", "imagefs.available": "15%"})),
        ] {
            assert_eq!(set[field], expected, "{field}");
        }
    }

    #[test]
    fn a_merge_patch_adds_replaces_and_removes_values() {
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
