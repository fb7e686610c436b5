//! Tests of the services and files of a host.

use std::collections::BTreeMap;

use api::{
    LogLevel, TemplateSpec,
    host::{ConfigFile, path},
    services::{OvnHybridNetwork, Prepare, Service, ServicesConfig},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    fixtures::{PROGRAMS, cluster, host, payload},
    services::services,
    *,
};

fn no_rotation() -> Settings {
    Settings { logs: LogSettings { size: None, age: None, ..LogSettings::default() }, ..Settings::default() }
}

/// Returns the services of the full payload, with the default settings.
fn config(cluster: &Cluster) -> Result<ServicesConfig, RenderError> {
    services(cluster, &payload(&PROGRAMS), &Settings::default())
}

fn rendered(cluster: &Cluster, destinations: &[&str], settings: &Settings) -> BTreeMap<String, Service> {
    let config = services(cluster, &payload(destinations), settings).unwrap();
    config.validate().unwrap();
    config.services.into_iter().map(|s| (s.name.clone(), s)).collect()
}

fn configs(cluster: &Cluster, settings: &Settings, host: &HostParams) -> Result<Vec<ConfigFile>, RenderError> {
    render(cluster, &payload(&PROGRAMS), settings, &TemplateSpec::default())?.configs(cluster, host)
}

fn files(cluster: &Cluster, settings: &Settings) -> BTreeMap<String, ConfigFile> {
    let files = configs(cluster, settings, &host()).unwrap();
    files.into_iter().map(|f| (f.path.clone(), f)).collect()
}

const OVN: Network = Network::OvnHybrid { vxlan_port: None };

#[test]
fn services_follow_the_payload_the_platform_and_the_network() {
    let on = |platform, network| Cluster { platform, network, ..cluster() };
    let with_cloud = Cluster { external_cloud_provider: true, ..on(Platform::Azure, Network::External) };
    let overlay =
        [program::KUBELET, program::KUBE_PROXY, program::HYBRID_OVERLAY, program::WIN_OVERLAY, program::HOST_LOCAL];
    let cases: [(&str, Cluster, &[&str], &str); 6] = [
        (
            "another network",
            on(Platform::None, Network::External),
            &PROGRAMS,
            "containerd kubelet csi-proxy windows_exporter",
        ),
        (
            "hybrid overlay",
            on(Platform::Aws, OVN),
            &PROGRAMS,
            "containerd kubelet csi-proxy hybrid-overlay-node windows_exporter kube-proxy",
        ),
        ("Azure", with_cloud, &PROGRAMS, "containerd kubelet csi-proxy windows_exporter cloud-node-manager"),
        ("only kubelet", on(Platform::Azure, Network::External), &[program::KUBELET], "kubelet"),
        ("no csi-proxy", cluster(), &[program::KUBELET, program::CONTAINERD], "containerd kubelet"),
        (
            "only the programs of the overlay",
            on(Platform::None, OVN),
            &overlay,
            "kubelet hybrid-overlay-node kube-proxy",
        ),
    ];
    for (name, cluster, destinations, expected) in cases {
        let config = services(&cluster, &payload(destinations), &Settings::default()).unwrap();
        let names: Vec<_> = config.services.into_iter().map(|s| s.name).collect();
        assert_eq!(names.join(" "), expected, "{name}");
    }
    assert_eq!(
        services(&cluster(), &payload(&[program::CONTAINERD]), &Settings::default()),
        Err(RenderError::NoPrograms(vec![program::KUBELET]))
    );
}

#[test]
fn services_have_the_expected_command_lines() {
    let tls = Some(TlsPair { certificate: "cert".into(), key: "key".into() });
    let cluster = Cluster {
        platform: Platform::Azure,
        external_cloud_provider: true,
        network: Network::OvnHybrid { vxlan_port: Some(9898) },
        exporter_tls: tls,
        ..cluster()
    };
    let services = rendered(&cluster, &PROGRAMS, &no_rotation());
    for (name, expected) in [
        (
            "containerd",
            r"C:\k\containerd\containerd.exe --config C:\k\containerd\containerd_conf.toml --log-file C:\var\log\containerd\containerd.log --run-service --log-level info",
        ),
        (
            "kubelet",
            r"C:\k\kube-log-runner.exe -log-file=C:\var\log\kubelet\kubelet.log C:\k\kubelet.exe --config=C:\k\kubelet.conf --kubeconfig=C:\k\kubeconfig --cert-dir=C:\var\lib\kubelet\pki --windows-service --node-labels=node.openshift.io/os_id=Windows --windows-priorityclass=ABOVE_NORMAL_PRIORITY_CLASS --v=2 --cloud-provider=external --hostname-override=NODE_NAME --node-ip=NODE_IP",
        ),
        (
            "windows_exporter",
            r"C:\k\windows_exporter.exe --collectors.enabled cpu,logical_disk,net,os,service,system,container,memory,cpu_info --web.config.file C:\k\tls\windows-exporter-webconfig.yaml --log.level info --log.file C:\var\log\windows_exporter\windows_exporter.log",
        ),
        (
            "hybrid-overlay-node",
            r"C:\k\hybrid-overlay-node.exe --node NODE_NAME --bootstrap-kubeconfig=C:\k\node-kubeconfig --cert-dir=C:\k\cni\config --cert-duration=24h --windows-service --logfile C:\var\log\hybrid-overlay\hybrid-overlay.log --k8s-apiserver=https://api-int.example.com:6443 --k8s-cacert C:\k\bootstrap-ca.crt --hybrid-overlay-vxlan-port 9898",
        ),
        (
            "csi-proxy",
            r"C:\k\csi-proxy.exe -log_file=C:\var\log\csi-proxy\csi-proxy.log -logtostderr=false -windows-service --v=2",
        ),
        (
            "kube-proxy",
            r"C:\k\kube-log-runner.exe -log-file=C:\var\log\kube-proxy\kube-proxy.log C:\k\kube-proxy.exe --config C:\k\kube-proxy.conf --windows-service",
        ),
        (
            "cloud-node-manager",
            r"C:\k\azure-cloud-node-manager.exe --windows-service --node-name=NODE_NAME --wait-routes=false --kubeconfig=C:\k\cloud-node-manager-kubeconfig",
        ),
    ] {
        assert_eq!(services[name].path, expected, "{name}");
    }
    let facts =
        |name: &str| services[name].host_variables_in_command.iter().map(|v| v.name.as_str()).collect::<Vec<_>>();
    assert_eq!(facts("kubelet"), ["NODE_NAME", "NODE_IP"]);
    assert_eq!(facts("hybrid-overlay-node"), ["NODE_NAME"]);
    assert_eq!(facts("cloud-node-manager"), ["NODE_NAME"]);
    assert!(facts("containerd").is_empty());
    assert_eq!(services["kubelet"].dependencies, ["containerd"]);
    assert_eq!(services["kube-proxy"].dependencies, ["hybrid-overlay-node"]);
    assert!(services["kubelet"].bootstrap && services["containerd"].bootstrap && !services["kube-proxy"].bootstrap);
}

#[test]
fn settings_change_command_lines() {
    type Change = fn(&mut Cluster, &mut Settings);
    let aws = r"--image-credential-provider-bin-dir=C:\k --image-credential-provider-config=C:\k\credential-provider-config.yaml";
    let cases: [(&str, Change, &str, &str); 5] = [
        ("rotation by default", |_, _| (), "kubelet", " -log-file-size=100Mi -log-file-age=168h C:"),
        (
            "rotation",
            |_, s| {
                s.logs = LogSettings {
                    size: Some("1Gi".into()),
                    age: None,
                    flush: Some("5s".into()),
                    ..LogSettings::default()
                }
            },
            "kube-proxy",
            " -log-file-size=1Gi -flush-interval=5s C:",
        ),
        ("cloud", |c, _| c.external_cloud_provider = true, "kubelet", " --cloud-provider=external --hostname-override"),
        ("AWS", |c, _| c.platform = Platform::Aws, "kubelet", aws),
        ("no certificate", |_, _| (), "windows_exporter", "cpu_info --log.level info"),
    ];
    for (name, change, service, expected) in cases {
        let (mut cluster, mut settings) = (Cluster { network: OVN, ..cluster() }, Settings::default());
        change(&mut cluster, &mut settings);
        let command = &rendered(&cluster, &PROGRAMS, &settings)[service].path;
        assert!(command.contains(expected), "{name}: {command}");
    }
}

#[test]
fn one_log_level_applies_to_all_services() {
    let cluster = Cluster { network: OVN, ..cluster() };
    let of = |level| {
        let logs = LogSettings { level, ..LogSettings::default() };
        rendered(&cluster, &PROGRAMS, &Settings { logs, ..Settings::default() })
    };
    let (info, debug) = (of(LogLevel::Info), of(LogLevel::Debug));
    assert_eq!(info, rendered(&cluster, &PROGRAMS, &Settings::default()));
    for (service, usual, detailed) in [
        ("kubelet", "--v=2 ", "--v=4 "),
        ("csi-proxy", "--v=2", "--v=4"),
        ("windows_exporter", "--log.level info ", "--log.level debug "),
        ("hybrid-overlay-node", r"C:\k\bootstrap-ca.crt", r"C:\k\bootstrap-ca.crt --loglevel 5"),
        ("containerd", "--log-level info", "--log-level info"),
    ] {
        let (before, after) = (&info[service].path, &debug[service].path);
        assert!(before.contains(usual), "{before}");
        assert_eq!(&before.replace(usual, detailed), after);
    }
    let verbosity = |services: &BTreeMap<String, Service>| match &services["kube-proxy"].prepare {
        Some(Prepare::OvnHybridNetwork(network)) => network.verbosity,
        other => panic!("{other:?}"),
    };
    assert_eq!((verbosity(&info), verbosity(&debug)), (0, 4));
}

#[test]
fn kube_proxy_is_prepared_by_the_host() {
    let ovn = Cluster { network: OVN, ..cluster() };
    for networks in ["172.30.0.0/16", "172.30.0.0/16,fd02::/112", "fd02::/112, 172.30.0.0/16"] {
        let cluster = Cluster { service_cidr: networks.into(), ..ovn.clone() };
        let all = rendered(&cluster, &PROGRAMS, &Settings::default());
        let network = OvnHybridNetwork {
            service_cidr: "172.30.0.0/16".into(),
            kubeconfig: path::NODE_KUBECONFIG.into(),
            verbosity: 0,
        };
        assert_eq!(all["kube-proxy"].prepare, Some(Prepare::OvnHybridNetwork(network)), "{networks}");
        assert!(all.values().filter(|s| s.name != "kube-proxy").all(|s| s.prepare.is_none()));
    }
    for bad in ["", "172.30.0.0", "172.30.0.0/33", "fd02::/112"] {
        let cluster = Cluster { service_cidr: bad.into(), ..ovn.clone() };
        let error = config(&cluster).unwrap_err();
        assert!(matches!(error, RenderError::Fact { what: "service network", .. }), "{bad}: {error}");
        let own = Cluster { network: Network::External, ..cluster };
        assert!(config(&own).is_ok(), "{bad}: only the overlay needs it");
    }
}

#[test]
fn only_another_network_may_have_its_own_cni_directories() {
    let cluster = |network, directory: &str| Cluster { network, cni_conf_dir: Some(directory.into()), ..cluster() };
    let good = r"C:\etc\cni\net.d";
    let written = files(&cluster(Network::External, good), &Settings::default());
    assert!(written[program::CONTAINERD_NETWORK].content.contains(r"conf_dir = 'C:\etc\cni\net.d'"));
    let longer = r"C:\Program Files\containerd\cni\bin";
    config(&cluster(Network::External, longer)).unwrap();
    for (network, directory, problem) in [
        (OVN, good, "hybrid overlay has its own"),
        (Network::External, "/etc/cni/net.d", "must be a directory on C:"),
        (Network::External, r"C:\x'\..\y", "must be a directory on C:"),
        (Network::External, r"C:\cni", "use a directory for CNI only"),
        (Network::External, r"C:\Windows\System32\cni", "use a directory for CNI only"),
        (Network::External, r"C:\Program Files\containerd", "use a directory for CNI only"),
    ] {
        let error = config(&cluster(network, directory)).unwrap_err();
        assert!(error.to_string().contains(problem), "{directory}: {error}");
    }
}

#[test]
fn without_the_log_runner_services_run_directly() {
    let services = rendered(&cluster(), &[program::KUBELET], &Settings::default());
    assert!(services["kubelet"].path.starts_with(r"C:\k\kubelet.exe "));
    assert!(services["kubelet"].dependencies.is_empty(), "there is no containerd to depend on");
}

#[test]
fn addresses_that_every_node_needs_are_reached_without_the_proxy() {
    let of = |api_server: &str, no: &str| {
        let proxy = Proxy { https: Some("http://proxy:3128".into()), no: Some(no.into()), ..Proxy::default() };
        let cluster = Cluster { api_server: api_server.into(), proxy, ..cluster() };
        config(&cluster).unwrap().services[0].environment["NO_PROXY"].clone()
    };
    let rest = "172.30.0.0/16,169.254.169.254";
    for (api_server, no, expected) in [
        ("https://api:6443", "", format!("localhost,127.0.0.1,.svc,api,{rest}")),
        ("https://api", ".svc, 10.0.0.0/8,", format!(".svc,10.0.0.0/8,localhost,127.0.0.1,api,{rest}")),
        ("https://[fd00::1]:6443/x", ".svc", format!(".svc,localhost,127.0.0.1,fd00::1,{rest}")),
        ("https://[fd00::1]", ".svc", format!(".svc,localhost,127.0.0.1,fd00::1,{rest}")),
        (
            "https://10.0.0.1:6443",
            &format!("127.0.0.1,localhost,.svc,10.0.0.1,{rest}"),
            format!("127.0.0.1,localhost,.svc,10.0.0.1,{rest}"),
        ),
    ] {
        assert_eq!(of(api_server, no), expected, "{api_server} {no}");
    }
    let no = Proxy { no: Some(".svc".into()), ..Proxy::default() };
    let config = config(&Cluster { proxy: no, ..cluster() }).unwrap();
    assert!(config.services[0].environment.is_empty(), "there is no proxy");
}

#[test]
fn services_have_the_proxy_variables_and_files_are_listed() {
    let proxy = Proxy { http: Some("http://proxy:3128".into()), https: Some(String::new()), no: None };
    let cluster = Cluster { proxy, ..cluster() };
    let config = config(&cluster).unwrap();
    let without = "localhost,127.0.0.1,.svc,api-int.example.com,172.30.0.0/16,169.254.169.254";
    let variables =
        BTreeMap::from([("HTTP_PROXY".into(), "http://proxy:3128".into()), ("NO_PROXY".into(), without.into())]);
    assert!(!config.services.is_empty() && config.services.iter().all(|s| s.environment == variables));
    assert!(
        config.environment_vars.is_empty() && config.watched_environment_vars.is_empty(),
        "machine-wide variables belong to the owner of the host"
    );
    assert_eq!(config.files.len(), PROGRAMS.len() - 2, "programs for other clouds are left out");
    assert!(config.files.is_sorted_by_key(|f| f.path.clone()));
}

#[test]
fn kubelet_has_the_expected_configuration_and_a_patch_changes_it() {
    let patch = json!({"address": "10.0.0.7", "maxPods": 10, "logging": {"verbosity": 3}, "registerNode": null});
    let settings = Settings { kubelet_extra: patch.as_object().unwrap().clone(), ..Settings::default() };
    let of = |settings: &Settings| -> Value {
        serde_json::from_str(&files(&cluster(), settings)[path::KUBELET_CONFIG].content).unwrap()
    };
    let expected = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "rotateCertificates": true,
        "serverTLSBootstrap": true,
        "authentication": {"x509": {"clientCAFile": r"C:\k\kubelet-ca.crt"}, "anonymous": {"enabled": false}},
        "clusterDomain": "cluster.local",
        "clusterDNS": ["172.30.0.10"],
        "cgroupsPerQOS": false,
        "runtimeRequestTimeout": "10m",
        "maxPods": 250,
        "kubeAPIQPS": 50,
        "kubeAPIBurst": 100,
        "serializeImagePulls": false,
        "logging": {"flushFrequency": "5s"},
        "enableSystemLogHandler": true,
        "enableSystemLogQuery": true,
        "featureGates": {"NodeLogQuery": true},
        "containerLogMaxSize": "50Mi",
        "enforceNodeAllocatable": ["none"],
        "evictionHard": {"memory.available": "500Mi", "nodefs.available": "10%", "imagefs.available": "15%"},
        "systemReserved": {"cpu": "500m", "memory": "2Gi", "ephemeral-storage": "1Gi"},
        "volumePluginDir": r"C:\k\volume-plugins",
        "containerRuntimeEndpoint": "npipe://./pipe/containerd-containerd",
        "registerNode": true,
        "registerWithTaints": [{"key": "os", "value": "Windows", "effect": "NoSchedule"}],
        "resolvConf": "",
    });
    assert_eq!(of(&Settings::default()), expected);
    let patched = of(&settings);
    assert_eq!(patched["address"], "10.0.0.7");
    assert_eq!(patched["maxPods"], 10);
    assert_eq!(patched["logging"], json!({"flushFrequency": "5s", "verbosity": 3}));
    assert_eq!(patched.get("registerNode"), None);
}

#[test]
fn kubeconfigs_name_certificates_and_hold_no_token() {
    let files = files(&cluster(), &Settings::default());
    for (path, user, certificate) in [
        (path::WICD_KUBECONFIG, "system:wicd-node:win-1", path::WICD_CERT),
        (path::NODE_KUBECONFIG, "system:node:win-1", path::KUBELET_CURRENT_CERT),
    ] {
        let content = &files[path].content;
        let config: kube::config::Kubeconfig = serde_json::from_str(content).unwrap();
        assert_eq!(config.current_context.as_deref(), Some(user), "{path}");
        let cluster = config.clusters[0].cluster.clone().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://api-int.example.com:6443"), "{path}");
        assert_eq!(cluster.certificate_authority.as_deref(), Some(path::API_CA), "{path}");
        let auth = config.auth_infos[0].auth_info.clone().unwrap();
        assert_eq!(auth.client_certificate.as_deref(), Some(certificate), "{path}");
        assert_eq!(auth.client_key.as_deref(), Some(certificate), "{path}");
        assert!(!content.contains("token"), "{path}");
    }
}

#[test]
fn files_follow_the_facts_of_the_cluster() {
    let least = [path::API_CA, path::KUBELET_CA, path::KUBELET_CONFIG, path::NODE_KUBECONFIG, path::WICD_KUBECONFIG];
    let plain = files(&cluster(), &Settings::default());
    assert_eq!(plain.len(), least.len());
    assert!(least.iter().all(|path| plain.contains_key(*path)));
    assert!(plain[path::API_CA].content.contains("\napi\n") && plain[path::KUBELET_CA].content.contains("\nkubelet\n"));

    let tls = TlsPair { certificate: "cert".into(), key: "hunter2".into() };
    let full = Cluster { platform: Platform::Aws, trusted_ca: Some(ca_pem()), exporter_tls: Some(tls), ..cluster() };
    assert!(!format!("{full:?}").contains("hunter2"));
    let full = files(&full, &Settings::default());
    assert_eq!(full.len(), least.len() + 4);
    let secret: Vec<&str> = full.values().filter(|f| f.secret).map(|f| f.path.as_str()).collect();
    assert_eq!(secret, [r"C:\k\tls\certs\tls.key"]);
    let provider: Value = serde_json::from_str(&full[r"C:\k\credential-provider-config.yaml"].content).unwrap();
    assert_eq!(provider["providers"][0]["name"], "ecr-credential-provider.exe");
    assert!(full.keys().all(|path| api::payload::is_host_path(path)));
}

fn ca_pem() -> String {
    rcgen::generate_simple_self_signed(["ca.example.com".to_owned()]).unwrap().cert.pem()
}

#[test]
fn damaged_certificates_are_refused() {
    let (one, other) = (ca_pem(), ca_pem());
    let damaged = one.replacen("MII", "AAA", 1);
    for (about, pem, bad) in [
        ("nothing", String::new(), None),
        ("one certificate", one.clone(), None),
        ("several, with comments", format!("# a.example.com..5000\n{one}\n# b\n{other}"), None),
        ("damaged", format!("{one}{damaged}"), Some("certificate 2")),
        ("truncated", format!("{one}{}", &other[..90]), Some("certificate 2")),
        ("a header only", "-----BEGIN CERTIFICATE-----".to_owned(), Some("certificate 1")),
    ] {
        let cluster = Cluster { trusted_ca: Some(pem), ..cluster() };
        match (configs(&cluster, &Settings::default(), &host()), bad) {
            (Ok(_), None) => {}
            (Err(error), Some(bad)) => {
                assert!(error.to_string().contains(bad) && error.reason() == "ClusterFactsInvalid", "{about}: {error}");
            }
            (result, _) => panic!("{about}: {result:?}"),
        }
    }
}

#[test]
fn bad_facts_are_refused() {
    type Spoil = fn(&mut Cluster, &mut HostParams);
    let cases: [(&str, Spoil); 9] = [
        ("API server", |c, _| c.api_server = String::new()),
        ("API server", |c, _| c.api_server = "https://x --kubeconfig=y".into()),
        ("API server", |c, _| c.api_server = "http://x:6443".into()),
        ("API server CA", |c, _| c.api_ca = String::new()),
        ("kubelet client CA", |c, _| c.kubelet_client_ca = "x".into()),
        ("DNS address", |c, _| c.cluster_dns = vec!["dns".into()]),
        ("node name", |_, h| h.node_name = "Win 1".into()),
        ("node name", |_, h| h.node_name = String::new()),
        ("node address", |_, h| h.node_ip = "10.0.0.7 10.0.0.8".into()),
    ];
    for (expected, spoil) in cases {
        let (mut cluster, mut host) = (cluster(), host());
        spoil(&mut cluster, &mut host);
        let error = configs(&cluster, &Settings::default(), &host).unwrap_err();
        assert!(matches!(error, RenderError::Fact { what, .. } if what == expected), "{expected}: {error}");
        assert_eq!(error.reason(), "ClusterFactsInvalid");
    }
}

#[test]
fn a_proxy_with_a_password_is_refused_without_showing_it() {
    let of = |http: Option<&str>, https: Option<&str>| {
        let proxy = Proxy { http: http.map(str::to_owned), https: https.map(str::to_owned), no: Some("a@b".into()) };
        config(&Cluster { proxy, ..cluster() })
    };
    for secret in ["http://user:hunter2@proxy", "http://user:hunter2@proxy\n", "hunter2@proxy:3128"] {
        for error in [of(Some(secret), None).unwrap_err(), of(None, Some(secret)).unwrap_err()] {
            assert!(!format!("{error} {error:?}").contains("hunter2"));
        }
    }
    assert!(of(Some("http://proxy:3128"), Some("http://proxy:3129")).is_ok());
}

#[test]
fn platforms_are_found_by_name() {
    for (name, platform) in [
        ("AWS", Platform::Aws),
        ("Azure", Platform::Azure),
        ("VSphere", Platform::Vsphere),
        ("gcp", Platform::Gcp),
        ("Nutanix", Platform::Nutanix),
        ("BareMetal", Platform::None),
        ("", Platform::None),
    ] {
        assert_eq!(Platform::from_name(name), platform, "{name}");
    }
}

fn platform() -> impl Strategy<Value = Platform> {
    prop::sample::select(vec![
        Platform::None,
        Platform::Aws,
        Platform::Azure,
        Platform::Gcp,
        Platform::Vsphere,
        Platform::Nutanix,
    ])
}

proptest! {
    #[test]
    fn any_rendered_configuration_is_valid(
        platform in platform(),
        vxlan in proptest::option::of(proptest::option::of(1_u16..)),
        others in prop::sample::subsequence(PROGRAMS[1..].to_vec(), 0..PROGRAMS.len()),
        (tls, cloud, rotate) in any::<(bool, bool, bool)>(),
    ) {
        let destinations: Vec<&str> = [program::KUBELET].into_iter().chain(others).collect();
        let cluster = Cluster {
            platform,
            network: vxlan.map_or(Network::External, |vxlan_port| Network::OvnHybrid { vxlan_port }),
            external_cloud_provider: cloud,
            exporter_tls: tls.then(|| TlsPair { certificate: "cert".into(), key: "key".into() }),
            ..cluster()
        };
        let settings = if rotate { Settings::default() } else { no_rotation() };
        let manifest = payload(&destinations);
        let config = match services(&cluster, &manifest, &settings) {
            Ok(config) => config,
            Err(RenderError::NoPrograms(missing)) => {
                prop_assert!(!missing.is_empty() && missing.iter().all(|m| !manifest.has_destination(m)), "{missing:?}");
                return Ok(());
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        prop_assert!(config.validate().is_ok(), "{config:?}");
        prop_assert_eq!(&ServicesConfig::from_data(&config.to_data()).unwrap(), &config);
        let names: Vec<&str> = config.services.iter().map(|s| s.name.as_str()).collect();
        for service in &config.services {
            let (first, _) = service.path.split_once(' ').unwrap();
            prop_assert!(manifest.has_destination(first), "{} runs a program that the payload lacks", service.path);
            prop_assert!(service.dependencies.iter().all(|d| names.contains(&d.as_str())));
            for variable in ["NODE_NAME", "NODE_IP"] {
                let declared = service.host_variables_in_command.iter().any(|v| v.name == variable);
                prop_assert_eq!(service.path.contains(variable), declared);
            }
        }
        let rendered = render(&cluster, &manifest, &settings, &TemplateSpec::default()).unwrap();
        prop_assert_eq!(&rendered.services, &config);
        prop_assert!(rendered.configs(&cluster, &host()).is_ok());
        let stored = Rendered::from_config_map(&rendered.to_config_map("1.0.0-abc", "ns")).unwrap();
        prop_assert_eq!(stored, Stored::Ours(rendered));
    }
}
