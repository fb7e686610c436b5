//! Tests of the differences between two versions.

use api::{
    Disruption::{Drain, None as Nothing, Reboot, Restart},
    TemplateSpec,
    host::path,
    payload::Manifest,
    services::FileInfo,
};
use serde_json::json;

use super::*;
use crate::render::{Cluster, Network, Settings, render};

/// Returns the version of a host with the hybrid overlay, so that every dependency exists.
fn base() -> Rendered {
    let file = |(destination, services): (&str, &[&str])| File {
        path: destination.rsplit('\\').next().unwrap().into(),
        destination: destination.into(),
        sha256: "a".repeat(64),
        services: services.iter().map(ToString::to_string).collect(),
        ..File::default()
    };
    let files: [(&str, &[&str]); 13] = [
        (program::KUBELET, &["kubelet"]),
        (program::KUBE_PROXY, &["kube-proxy"]),
        (program::LOG_RUNNER, &["kubelet", "kube-proxy"]),
        (program::CONTAINERD, &["containerd"]),
        (program::SHIM, &["containerd"]),
        (program::CONTAINERD_CONFIG, &["containerd"]),
        (program::WINDOWS_EXPORTER, &["windows_exporter"]),
        (program::CSI_PROXY, &["csi-proxy"]),
        (program::HYBRID_OVERLAY, &["hybrid-overlay-node"]),
        (program::AZURE_NODE_MANAGER, &["cloud-node-manager"]),
        (program::WIN_OVERLAY, &[]),
        (program::HOST_LOCAL, &[]),
        (r"C:\k\readme.txt", &[]),
    ];
    let manifest = Manifest { schema: 1, files: files.into_iter().map(file).collect() };
    let ca = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n";
    let cluster = Cluster {
        api_server: "https://api.example.com:6443".into(),
        api_ca: ca.into(),
        kubelet_client_ca: ca.into(),
        service_cidr: "172.30.0.0/16".into(),
        network: Network::OvnHybrid { vxlan_port: None },
        ..Cluster::default()
    };
    render(&cluster, &manifest, &Settings::default(), &TemplateSpec::default()).unwrap()
}

fn service<'a>(rendered: &'a mut Rendered, name: &str) -> &'a mut Service {
    rendered.services.services.iter_mut().find(|s| s.name == name).unwrap()
}

/// Changes the content of a payload file.
fn other(rendered: &mut Rendered, destination: &str) {
    rendered.shared.files.iter_mut().find(|f| f.destination == destination).unwrap().sha256 = "b".repeat(64);
    rendered.services.files.iter_mut().find(|f| f.path == destination).unwrap().checksum = "b".repeat(64);
}

/// Changes the content of a file of the cluster.
fn cluster_file(rendered: &mut Rendered, path: &str) {
    rendered.shared.cluster_files.insert(path.into(), "b".repeat(64));
}

/// Removes a payload file.
fn gone(rendered: &mut Rendered, destination: &str) {
    rendered.shared.files.retain(|f| f.destination != destination);
    rendered.services.files.retain(|f| f.path != destination);
}

const ABOVE_CONTAINERD: &[&str] = &["containerd", "hybrid-overlay-node", "kube-proxy", "kubelet"];
const ABOVE_KUBELET: &[&str] = &["hybrid-overlay-node", "kube-proxy", "kubelet"];
const ABOVE_OVERLAY: &[&str] = &["hybrid-overlay-node", "kube-proxy"];

type Alter = fn(&mut Rendered);
/// Case: alteration of a version, its disruption, the services to restart, and its description.
type Case = (Alter, Disruption, &'static [&'static str], &'static str);

const CASES: &[Case] = &[
    (|r| cluster_file(r, path::API_CA), Restart, ABOVE_KUBELET, "bootstrap-ca.crt"),
    (|r| cluster_file(r, path::KUBELET_CA), Nothing, &[], "kubelet-ca.crt"),
    (|r| cluster_file(r, path::NODE_KUBECONFIG), Restart, ABOVE_KUBELET, "node-kubeconfig"),
    // No host here runs a cloud-node-manager.
    (|r| cluster_file(r, path::NODE_MANAGER_KUBECONFIG), Nothing, &[], "cloud-node-manager-kubeconfig"),
    (|r| cluster_file(r, CREDENTIAL_PROVIDER_CONFIG), Restart, ABOVE_KUBELET, "credential-provider-config.yaml"),
    (|r| cluster_file(r, program::CONTAINERD_NETWORK), Drain, ABOVE_CONTAINERD, "network.toml"),
    (
        |r| r.shared.metadata_address = Some([169, 254, 169, 254].into()),
        Nothing,
        &[],
        "the route to the metadata service",
    ),
    (|r| r.shared.pull_secret_registries = Some(vec![]), Nothing, &[], "the use of the pull secret"),
    (|r| r.shared.trusted_certificates = Some("x".into()), Nothing, &[], "the certificates that the pool trusts"),
    (|r| r.shared.image_mirrors = Some(Vec::new()), Nothing, &[], "the mirrors of the pool"),
    (|r| r.shared.service_accounts.push("web".into()), Nothing, &[], "the accounts that hosts are checked for"),
    (
        |r| r.shared.credential_plugin = Some(api::host::CredentialPlugin::default()),
        Nothing,
        &[],
        "the plugin of Container Credential Guard",
    ),
    (|r| r.shared.logs = None, Nothing, &[], "the rotation of logs"),
    (|r| service(r, "csi-proxy").priority = 9, Nothing, &[], "the start order of csi-proxy"),
    (|r| service(r, "kubelet").path.push('x'), Restart, ABOVE_KUBELET, "the command of kubelet"),
    (|r| service(r, "kube-proxy").path.push('x'), Restart, &["kube-proxy"], "the command of kube-proxy"),
    (|r| service(r, "csi-proxy").path.push('x'), Restart, &["csi-proxy"], "the command of csi-proxy"),
    (
        |r| service(r, "windows_exporter").path.push('x'),
        Restart,
        &["windows_exporter"],
        "the command of windows_exporter",
    ),
    (|r| service(r, "containerd").path.push('x'), Drain, ABOVE_CONTAINERD, "the command of containerd"),
    (
        // The network is created again, which ends the containers on it.
        |r| service(r, "hybrid-overlay-node").path.push_str(" --hybrid-overlay-vxlan-port 9898"),
        Drain,
        ABOVE_OVERLAY,
        "the command of hybrid-overlay-node",
    ),
    (
        |r| service(r, "hybrid-overlay-node").path.push_str(" --loglevel 5"),
        Drain,
        ABOVE_OVERLAY,
        "the command of hybrid-overlay-node",
    ),
    (
        |r| service(r, "hybrid-overlay-node").host_variables_in_command.clear(),
        Drain,
        ABOVE_OVERLAY,
        "the command of hybrid-overlay-node",
    ),
    (
        |r| service(r, "csi-proxy").dependencies.push("kubelet".into()),
        Restart,
        &["csi-proxy"],
        "the dependencies of csi-proxy",
    ),
    (|r| service(r, "kube-proxy").prepare = None, Restart, &["kube-proxy"], "the steps before the start of kube-proxy"),
    (|r| other(r, program::KUBELET), Drain, ABOVE_KUBELET, "kubelet.exe"),
    (|r| other(r, program::KUBE_PROXY), Restart, &["kube-proxy"], "kube-proxy.exe"),
    (|r| other(r, program::LOG_RUNNER), Restart, ABOVE_KUBELET, "kube-log-runner.exe"),
    (|r| other(r, program::CONTAINERD), Drain, ABOVE_CONTAINERD, "containerd.exe"),
    (|r| other(r, program::SHIM), Drain, ABOVE_CONTAINERD, "containerd-shim-runhcs-v1.exe"),
    (|r| other(r, program::CONTAINERD_CONFIG), Drain, ABOVE_CONTAINERD, "containerd_conf.toml"),
    (|r| other(r, program::CSI_PROXY), Restart, &["csi-proxy"], "csi-proxy.exe"),
    (|r| other(r, program::HYBRID_OVERLAY), Drain, ABOVE_OVERLAY, "hybrid-overlay-node.exe"),
    // No host here runs a cloud-node-manager.
    (|r| other(r, program::AZURE_NODE_MANAGER), Nothing, &[], "azure-cloud-node-manager.exe"),
    (|r| other(r, program::WIN_OVERLAY), Drain, &[], "win-overlay.exe"),
    // No service reads the file.
    (|r| other(r, r"C:\k\readme.txt"), Nothing, &[], "readme.txt"),
    (|r| r.shared.kubelet["maxPods"] = json!(9), Restart, ABOVE_KUBELET, "kubelet's settings (maxPods)"),
    (
        |r| {
            r.shared.kubelet["systemReserved"]["cpu"] = json!("1");
            r.shared.kubelet["maxPods"] = json!(9);
            r.shared.kubelet["podPidsLimit"] = json!(9);
        },
        Restart,
        ABOVE_KUBELET,
        "kubelet's settings (maxPods, podPidsLimit, systemReserved)",
    ),
    (|r| r.shared.containerd = Some("version = 3".into()), Drain, ABOVE_CONTAINERD, "containerd's settings"),
    (
        |r| r.services.services.push(Service { name: "x".into(), bootstrap: true, ..Service::default() }),
        Drain,
        &[],
        "the new service x",
    ),
    (
        |r| drop(service(r, "containerd").environment.insert("HTTPS_PROXY".into(), "http://user:hunter2@p".into())),
        Drain,
        ABOVE_CONTAINERD,
        "the variables of containerd (HTTPS_PROXY)",
    ),
    (
        |r| drop(r.services.environment_vars.insert("HTTPS_PROXY".into(), "http://user:hunter2@p".into())),
        Reboot,
        &[],
        "environment variables (HTTPS_PROXY)",
    ),
    (
        |r| r.services.watched_environment_vars.push("NO_PROXY".into()),
        Nothing,
        &[],
        "environment variables that wicd keeps (NO_PROXY)",
    ),
];

/// Cases that remove a part. They are not combined with [`CASES`], which may alter the same part.
const REMOVALS: &[Case] = &[
    (|r| drop(r.shared.cluster_files.remove(path::WICD_KUBECONFIG)), Nothing, &[], "wicd-kubeconfig"),
    (|r| gone(r, program::SHIM), Drain, ABOVE_CONTAINERD, "containerd-shim-runhcs-v1.exe"),
    (|r| gone(r, program::WIN_OVERLAY), Drain, &[], "win-overlay.exe"),
    (|r| r.services.services.retain(|s| s.name != "csi-proxy"), Restart, &[], "removal of the service csi-proxy"),
];

#[test]
fn each_difference_has_its_disruption_services_and_description() {
    let from = base();
    for (alter, disruption, services, why) in CASES.iter().chain(REMOVALS) {
        let mut to = from.clone();
        alter(&mut to);
        let services = services.iter().map(ToString::to_string).collect();
        let expected = Change { disruption: *disruption, services, why: vec![(*why).to_owned()] };
        assert_eq!(change(&Stored::Ours(from.clone()), &to), expected);
        let back = change(&Stored::Ours(to), &from);
        assert_eq!((back.disruption, back.why.len()), (*disruption, 1), "{why}, back");
    }
}

/// Covers a takeover from the legacy operator, which sets machine-wide variables.
#[test]
fn a_removed_machine_wide_variable_that_each_service_sets_needs_no_restart_of_the_host() {
    let mut from = base();
    from.services.environment_vars.insert("HTTPS_PROXY".into(), "x".into());
    from.services.watched_environment_vars.push("HTTPS_PROXY".into());
    let mut to = base();
    for service in &mut to.services.services {
        service.environment.insert("HTTPS_PROXY".into(), "x".into());
    }
    assert_eq!(change(&Stored::Ours(from.clone()), &to).disruption, Drain);
    to.services.services[0].environment.clear();
    assert_eq!(change(&Stored::Ours(from), &to).disruption, Reboot, "one service used the machine-wide variable");
}

#[test]
fn versions_with_the_same_effect_have_no_differences() {
    let from = base();
    let mut to = from.clone();
    to.services.services.reverse();
    to.shared.files.reverse();
    to.shared.files[0].services.clear();
    to.shared.hash_version += 1;
    assert_eq!(change(&Stored::Ours(from), &to), Change::default());
}

#[test]
fn the_greatest_disruption_counts_and_only_five_differences_are_named() {
    let from = base();
    let mut to = from.clone();
    let expected =
        ["kubelet.exe", "csi-proxy.exe", "the command of windows_exporter", "kubelet-ca.crt", "the rotation of logs"];
    for (alter, ..) in CASES.iter().filter(|case| expected.contains(&case.3)) {
        alter(&mut to);
    }
    let five = change(&Stored::Ours(from.clone()), &to);
    assert_eq!((five.disruption, five.why.as_slice()), (Drain, expected.map(String::from).as_slice()));

    to.services.environment_vars.insert("HTTP_PROXY".into(), "x".into());
    to.shared.kubelet["maxPods"] = json!(9);
    let seven = change(&Stored::Ours(from), &to);
    assert_eq!(seven.disruption, Reboot);
    assert_eq!(seven.why.len(), 6);
    assert_eq!(seven.why[..2], ["environment variables (HTTP_PROXY)", "kubelet.exe"]);
    assert_eq!(seven.why[5], "and 2 more");
}

#[test]
fn many_settings_are_cut_short() {
    let from = base();
    let mut to = from.clone();
    for key in ["a", "b", "c", "d", "e", "f", "g"] {
        to.shared.kubelet[key] = json!(1);
    }
    assert_eq!(change(&Stored::Ours(from), &to).why, ["kubelet's settings (a, b, c, d, e, and 2 more)"]);
}

#[test]
fn a_change_from_wmco_restarts_kubelet_in_any_case() {
    type Legacy = fn(&mut ServicesConfig, &mut Rendered);
    let cases: [(&str, Legacy, Disruption, &[&str], &str); 6] = [
        ("the same services", |_, _| (), Restart, ABOVE_KUBELET, "kubelet's settings"),
        (
            "another file of a service",
            |old, _| old.files.iter_mut().find(|f| f.path == program::CSI_PROXY).unwrap().checksum = "b".repeat(64),
            Restart,
            &["csi-proxy", "hybrid-overlay-node", "kube-proxy", "kubelet"],
            "csi-proxy.exe",
        ),
        (
            "the same in capitals",
            |old, _| old.files.iter_mut().for_each(|f| f.checksum.make_ascii_uppercase()),
            Restart,
            ABOVE_KUBELET,
            "kubelet's settings",
        ),
        (
            "a file of WMCO's",
            |old, _| old.files.push(FileInfo { path: r"C:\k\x.ps1".into(), checksum: "a".repeat(64) }),
            Restart,
            ABOVE_KUBELET,
            "x.ps1",
        ),
        (
            "containerd's settings",
            |_, new| new.shared.containerd = Some("version = 3".into()),
            Drain,
            ABOVE_CONTAINERD,
            "containerd's settings",
        ),
        (
            "a script",
            |old, _| old.services.last_mut().unwrap().powershell_pre_scripts.push(json!({})),
            Restart,
            ABOVE_KUBELET,
            "the steps before the start of kube-proxy",
        ),
    ];
    for (name, alter, disruption, services, why) in cases {
        let (mut old, mut new) = (base().services, base());
        alter(&mut old, &mut new);
        let got = change(&Stored::Legacy(old), &new);
        assert_eq!(got.disruption, disruption, "{name}");
        assert_eq!(got.services.iter().map(String::as_str).collect::<Vec<_>>(), services, "{name}");
        assert!(got.why.iter().any(|w| w == why), "{name}: {:?}", got.why);
    }
}

#[test]
fn an_unknown_version_means_a_drain() {
    let unknown = unknown();
    assert_eq!((unknown.disruption, unknown.services.len()), (Drain, 0));
    assert_eq!(unknown.why, ["the version that the host follows is unknown"]);
}

proptest::proptest! {
    #[test]
    fn all_that_differs_is_reported_and_nothing_else_disturbs(
        chosen in proptest::sample::subsequence(CASES.to_vec(), 0..6)
    ) {
        let from = base();
        let mut to = from.clone();
        for (alter, ..) in &chosen {
            alter(&mut to);
        }
        let got = change(&Stored::Ours(from.clone()), &to);
        proptest::prop_assert_eq!(from.hash() == to.hash(), got.why.is_empty());
        let most = chosen.iter().map(|c| c.1).max().unwrap_or_default();
        proptest::prop_assert_eq!(got.disruption, most);
        let restarts = chosen.iter().flat_map(|c| c.2).all(|s| got.services.contains(*s));
        proptest::prop_assert!(restarts, "{:?}", got.services);
    }
}
