//! Tests of rendered versions: what changes a version, and what does not.

use api::{
    CloudProvider, ContainerdSettings, EvictionThresholds, KubeletSettings, LogLevel, LogRotation as PoolLogs,
    Reserved, TaintEffect, services::HostVariable,
};
use serde_json::json;

use super::*;
use crate::render::{
    LogSettings, Platform, TlsPair,
    fixtures::{PROGRAMS, cluster, host, payload},
};

fn rendered_in(cluster: &Cluster, template: &TemplateSpec) -> Rendered {
    render(cluster, &payload(&PROGRAMS), &Settings::default(), template).unwrap()
}

fn rendered(template: &TemplateSpec) -> Rendered {
    rendered_in(&cluster(), template)
}

fn plain() -> Rendered {
    rendered(&TemplateSpec::default())
}

fn of_cloud(cloud_provider: Option<CloudProvider>) -> TemplateSpec {
    kubelet_of(KubeletSettings { cloud_provider, ..KubeletSettings::default() })
}

fn kubelet_of(settings: KubeletSettings) -> TemplateSpec {
    TemplateSpec { kubelet: Some(settings), ..TemplateSpec::default() }
}

/// Returns a template with settings of kubelet, containerd and logs, each of which changes the rendered version.
fn full() -> TemplateSpec {
    let reserved = Reserved::from([("memory".to_owned(), "4Gi".into())]);
    let template = kubelet_of(KubeletSettings {
        max_pods: Some(50),
        system_reserved: Some(reserved.clone()),
        kube_reserved: Some(reserved),
        eviction_hard: Some(EvictionThresholds::from([("nodefs.available".to_owned(), "5%".into())])),
        image_gc_high_threshold_percent: Some(60),
        image_gc_low_threshold_percent: Some(50),
        container_log_max_size: Some("10Mi".into()),
        container_log_max_files: Some(3),
        cloud_provider: Some(CloudProvider::External),
    });
    TemplateSpec {
        containerd: Some(ContainerdSettings { sandbox_image: Some("x/pause:1".into()), ..Default::default() }),
        logs: Some(PoolLogs {
            max_size: Some("10Mi".into()),
            max_age_seconds: Some(7200),
            level: Some(LogLevel::Debug),
        }),
        ..template
    }
}

#[test]
fn a_pool_overrides_the_cloud_provider_of_the_cluster() {
    use CloudProvider::{External, None as Nobody};
    for (in_cluster, of_pool, expected) in [
        (false, None, false),
        (true, None, true),
        (true, Some(Nobody), false),
        (true, Some(External), true),
        (false, Some(External), true),
        (false, Some(Nobody), false),
    ] {
        let cluster = Cluster { platform: Platform::Azure, external_cloud_provider: in_cluster, ..cluster() };
        let rendered = rendered_in(&cluster, &of_cloud(of_pool));
        assert_eq!(rendered.has_cloud_controller(), expected, "{in_cluster} {of_pool:?}");
        let services = rendered.services.services;
        let has_flag = services.iter().any(|s| s.name == "kubelet" && s.path.contains("--cloud-provider=external"));
        let has_manager = services.iter().any(|s| s.name == "cloud-node-manager");
        assert_eq!((has_flag, has_manager), (expected, expected), "{in_cluster} {of_pool:?}");
    }
}

/// Checks the row of each platform in `docs/reference/limits.md`.
#[test]
fn each_platform_is_as_documented() {
    const PAGE: &str = include_str!("../../../../docs/reference/limits.md");
    let platforms =
        [Platform::None, Platform::Vsphere, Platform::Nutanix, Platform::Aws, Platform::Azure, Platform::Gcp];
    for platform in platforms {
        // OpenShift runs a cloud controller manager on each of these platforms except `none`.
        let cluster = Cluster { platform, external_cloud_provider: platform != Platform::None, ..cluster() };
        let rendered = rendered_in(&cluster, &TemplateSpec::default());
        let services = &rendered.services.services;
        let kubelet = services.iter().find(|s| s.name == "kubelet").unwrap();
        let mark = |is_there: bool| if is_there { "yes" } else { "-" };
        let row = format!(
            "| {} | {} | {} | {} | {} |",
            platform.as_str(),
            mark(kubelet.path.contains(" --cloud-provider=external ")),
            mark(services.iter().any(|s| s.name == "cloud-node-manager")),
            mark(kubelet.path.contains(" --image-credential-provider-config=")),
            mark(rendered.shared.metadata_address.is_some()),
        );
        assert!(PAGE.lines().any(|line| line.starts_with(&row)), "docs/reference/limits.md lacks\n{row}");
        // Hosts that the cloud does not know have no metadata service.
        let rendered = rendered_in(&cluster, &of_cloud(Some(CloudProvider::None)));
        assert_eq!(rendered.shared.metadata_address, None, "{platform:?}");
    }
}

#[test]
fn settings_of_the_pool_override_the_operators_and_these_override_the_defaults() {
    let patch = json!({"maxPods": 10, "evictionHard": {"memory.available": "1Gi"}, "podPidsLimit": 7,
        "registerWithTaints": [{"key": "x", "effect": "NoSchedule"}]});
    let settings = Settings {
        kubelet_extra: patch.as_object().unwrap().clone(),
        logs: LogSettings { size: Some("5Mi".into()), age: None, flush: Some("5s".into()), ..LogSettings::default() },
    };
    let with = |template: &TemplateSpec| render(&cluster(), &payload(&PROGRAMS), &settings, template).unwrap();

    let operator = with(&TemplateSpec::default()).shared;
    assert_eq!(operator.kubelet["maxPods"], 10);
    assert_eq!(operator.logs, Some(LogRotation { max_bytes: 5 << 20, max_age_seconds: 87_600 * 3600 }));

    let pool = with(&full());
    let config = &pool.shared.kubelet;
    for (key, expected) in [
        ("maxPods", json!(50)),
        ("podPidsLimit", json!(7)),
        ("evictionHard", json!({"nodefs.available": "5%", "imagefs.available": "15%", "memory.available": "1Gi"})),
        ("systemReserved", json!({"cpu": "500m", "memory": "4Gi", "ephemeral-storage": "1Gi"})),
        ("kubeReserved", json!({"memory": "4Gi"})),
        ("imageGCHighThresholdPercent", json!(60)),
        ("imageGCLowThresholdPercent", json!(50)),
        ("containerLogMaxSize", json!("10Mi")),
        ("containerLogMaxFiles", json!(3)),
    ] {
        assert_eq!(config[key], expected, "{key}");
    }
    assert_eq!(config.get("registerWithTaints"), None, "taints belong to the host");
    assert_eq!(pool.shared.logs, Some(LogRotation { max_bytes: 10 << 20, max_age_seconds: 7200 }));
    let command = &pool.services.services.iter().find(|s| s.name == "kubelet").unwrap().path;
    assert!(command.contains(" -log-file-size=10Mi -log-file-age=2h -flush-interval=5s C:"), "{command}");
    assert!(command.contains(" --v=4 "), "{command}");
    assert!(pool.shared.containerd.as_ref().unwrap().contains("x/pause:1"));
}

#[test]
fn by_default_logs_are_rotated_and_containerd_has_no_drop_in() {
    let Shared { logs, containerd, hash_version, .. } = plain().shared;
    assert_eq!(logs, Some(LogRotation { max_bytes: 100 << 20, max_age_seconds: 168 * 3600 }));
    assert_eq!((containerd, hash_version), (None, HASH_VERSION));
}

#[test]
fn settings_of_containerd_need_containerd_in_the_payload() {
    let template = TemplateSpec { kubelet: None, ..full() };
    let error = render(&cluster(), &payload(&["C:\\k\\kubelet.exe"]), &Settings::default(), &template).unwrap_err();
    assert!(matches!(error, RenderError::Setting { field: "template.spec.containerd.sandboxImage", .. }), "{error}");
}

#[test]
fn the_hash_depends_on_the_effect_and_not_on_the_notation() {
    type Alter = fn(&mut Rendered);
    let template = full();
    let mut before = rendered(&template);
    before.services.watched_environment_vars = ["a", "b"].map(Into::into).into();
    let same: [(&str, Alter); 8] = [
        ("order of services", |r| r.services.services.reverse()),
        ("order of files", |r| r.services.files.reverse()),
        ("order of payload files", |r| r.shared.files.reverse()),
        ("order of variables", |r| r.services.watched_environment_vars.reverse()),
        ("path of a file in the payload", |r| r.shared.files[0].path = "elsewhere".into()),
        ("compressed size of a file", |r| r.shared.files[0].compressed_size += 1),
        ("services that read a file", |r| r.shared.files[0].services = ["x".to_owned()].into()),
        ("version of the hash", |r| r.shared.hash_version += 1),
    ];
    for (name, alter) in same {
        let mut after = before.clone();
        alter(&mut after);
        assert_ne!(after, before, "{name}");
        assert_eq!(after.hash(), before.hash(), "{name}");
    }
    let other: [(&str, Alter); 18] = [
        ("certificates of the pool", |r| r.shared.trusted_certificates = Some("x".into())),
        ("mirrors of the pool", |r| r.shared.image_mirrors = Some(Vec::new())),
        ("command", |r| r.services.services[0].path.push('x')),
        ("dependencies", |r| r.services.services[0].dependencies.push("x".into())),
        ("variables in a command", |r| {
            let fact = api::services::HostFact::NodeIp;
            r.services.services[0].host_variables_in_command.push(HostVariable { name: "x".into(), fact });
        }),
        ("variable", |r| drop(r.services.environment_vars.insert("NO_PROXY".into(), "x".into()))),
        ("watched variable", |r| r.services.watched_environment_vars.push("x".into())),
        ("content of a file", |r| r.shared.files[0].sha256 = "b".repeat(64)),
        ("destination of a file", |r| r.shared.files[0].destination.push('x')),
        ("kubelet", |r| r.shared.kubelet["maxPods"] = json!(51)),
        ("containerd", |r| r.shared.containerd = None),
        ("containerd, empty", |r| r.shared.containerd = Some(String::new())),
        ("logs", |r| r.shared.logs = None),
        ("age of logs", |r| r.shared.logs = Some(LogRotation { max_bytes: 10 << 20, max_age_seconds: 7201 })),
        ("accounts", |r| r.shared.service_accounts.push("web".into())),
        ("a plugin", |r| r.shared.credential_plugin = Some(CredentialPlugin::default())),
        ("another plugin", |r| {
            let library = "x".into();
            r.shared.credential_plugin = Some(CredentialPlugin { library, ..CredentialPlugin::default() });
        }),
        ("file of the cluster", |r| drop(r.shared.cluster_files.insert(path::API_CA.into(), "c".repeat(64)))),
    ];
    let mut hashes = std::collections::BTreeSet::from([before.hash()]);
    for (name, alter) in other {
        let mut after = before.clone();
        alter(&mut after);
        assert!(api::payload::is_sha256(&after.hash()));
        assert!(hashes.insert(after.hash()), "{name}");
    }
}

#[test]
fn the_order_of_keys_does_not_count_and_the_order_of_lists_does() {
    let parse = |text: &str| canonical_json(&serde_json::from_str(text).unwrap());
    assert_eq!(parse(r#"{"a": 1, "b": {"c": [1, 2], "d": null}}"#), parse(r#"{"b":{"d":null,"c":[1,2]},"a":1}"#));
    for (one, other) in [("[1,2]", "[2,1]"), ("[]", "{}"), (r#""1""#, "1"), ("[[1],2]", "[[1,2]]"), ("[12]", "[1,2]")] {
        assert_ne!(parse(one), parse(other));
    }
}

#[test]
fn taints_do_not_change_the_version_but_reach_the_host() {
    let taint = api::Taint { key: "gpu".into(), value: None, effect: TaintEffect::NoExecute };
    let template = TemplateSpec { taints: Some(vec![taint.clone()]), ..TemplateSpec::default() };
    let rendered = rendered(&template);
    assert_eq!(rendered.hash(), plain().hash());
    let configs = rendered.configs(&cluster(), &HostParams { taints: vec![taint], ..host() }).unwrap();
    let kubelet = configs.iter().find(|c| c.path == path::KUBELET_CONFIG).unwrap();
    let config: Value = serde_json::from_str(&kubelet.content).unwrap();
    assert_eq!(config["registerWithTaints"], json!([{"key": "gpu", "value": "", "effect": "NoExecute"}]));
}

#[test]
fn a_version_has_hashes_of_cluster_files_and_no_secrets() {
    let tls = TlsPair { certificate: "cert".into(), key: "hunter2".into() };
    let with_tls = Cluster { exporter_tls: Some(tls), platform: Platform::Aws, ..cluster() };
    let render = |cluster: &Cluster| rendered_in(cluster, &TemplateSpec::default());
    let rendered = render(&with_tls);
    let text = serde_json::to_string(&rendered.shared).unwrap();
    assert!(!text.contains("BEGIN CERTIFICATE") && !text.contains("hunter2") && !text.contains("tls.key"), "{text}");
    let files = &rendered.shared.cluster_files;
    assert_eq!(
        files.len(),
        6,
        "two CAs, two kubeconfigs, a certificate, and the configuration of credential providers: {files:?}"
    );

    let key = TlsPair { certificate: "cert".into(), key: "other".into() };
    assert_eq!(render(&Cluster { exporter_tls: Some(key), ..with_tls.clone() }).hash(), rendered.hash());
    for (name, other) in [
        ("API server", Cluster { api_server: "https://other:6443".into(), ..with_tls.clone() }),
        ("CA", Cluster { api_ca: cluster().kubelet_client_ca, ..with_tls.clone() }),
        ("certificate", Cluster { exporter_tls: None, ..with_tls.clone() }),
    ] {
        assert_ne!(render(&other).hash(), rendered.hash(), "{name}");
    }
}

#[test]
fn an_older_version_has_its_own_kubelet_settings_and_current_cluster_files() {
    let old = rendered(&full());
    let ca = "-----BEGIN CERTIFICATE-----\nnew\n-----END CERTIFICATE-----\n";
    let now = Cluster { api_ca: ca.into(), cluster_dns: vec!["10.1.1.1".into()], ..cluster() };
    let configs = old.configs(&now, &host()).unwrap();
    let content = |path: &str| configs.iter().find(|c| c.path == path).map(|c| c.content.as_str()).unwrap();
    assert_eq!(content(path::API_CA), ca);
    assert!(content(path::KUBELET_CONFIG).contains("172.30.0.10"), "kubelet's configuration is unchanged");
    assert_eq!(Some(content(program::CONTAINERD_DROP_IN)), old.shared.containerd.as_deref());
    assert!(configs.is_sorted_by_key(|c| c.path.clone()));
    assert!(plain().configs(&now, &host()).unwrap().iter().all(|c| c.path != program::CONTAINERD_DROP_IN));
}

#[test]
fn the_name_has_the_operator_version_and_a_digest() {
    let rendered = plain();
    let stored = rendered.to_config_map("x", "ns");
    let annotation = &stored.metadata.annotations.as_ref().unwrap()[api::names::key::RENDERED];
    let digits = api::services_version::digest(stored.data.as_ref().unwrap(), annotation);
    for (version, expected) in [("11.2.0", "11.2.0-"), ("1.2.3-RC.1+build_7", "1.2.3-rc.1-build-7-"), ("-x-", "x-")] {
        assert_eq!(rendered.name(version), format!("{expected}{digits}"));
    }
}

#[test]
fn a_rendering_with_the_same_effect_keeps_the_current_version() {
    let (now, other) = (plain(), rendered(&full()));
    let mut stored = now.clone();
    stored.shared.hash_version = 0;
    stored.shared.files[0].compressed_size += 1;
    for (name, current, expected) in [
        ("no current version", None, now.name("2.0.0")),
        ("the same effect, by an older operator", Some(("1.0.0-abc", &stored)), "1.0.0-abc".to_owned()),
        ("another effect", Some(("1.0.0-abc", &other)), now.name("2.0.0")),
    ] {
        assert_eq!(version_for(&now, "2.0.0", current), expected, "{name}");
    }
}

#[test]
fn a_version_has_the_payload_files_for_its_platform() {
    let rendered = plain();
    assert_eq!(rendered.files(), payload(&PROGRAMS).for_platform("none"));
    assert_eq!(rendered.payload_digest(), api::payload::digest(rendered.files()));
}
