//! Golden files in `controller/core/goldens` for reviewers: the rendering for each platform, and the preflight results for each Windows version. Set
//! `UPDATE_GOLDENS=1` to rewrite them.

use std::path::PathBuf;

use api::{
    TemplateSpec,
    host::{HostState, Machine, path},
    services::Service,
};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::{
    operation::{
        preflight::{Preflight, results},
        windows_versions::{VERSIONS, WindowsVersion, find},
    },
    render::{
        Cluster, Network, Platform, Settings,
        fixtures::{CREDENTIAL_PROVIDERS, PROGRAMS, cluster, host, payload},
        render,
    },
};

/// Compares a value with a golden file. With `UPDATE_GOLDENS`, writes the file first.
fn assert_golden(name: &str, about: &str, value: &Value) {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("goldens").join(format!("{name}.yaml"));
    let text = format!("# {about}\n{}", serde_yaml::to_string(value).unwrap());
    if std::env::var_os("UPDATE_GOLDENS").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let there = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        there == text,
        "controller/core/goldens/{name}.yaml differs from the result of this test; set UPDATE_GOLDENS=1 to rewrite it. Result:\n{text}"
    );
}

/// Returns a service in a form that is easy to compare: each word of its command has a line of its own.
fn shown(service: &Service) -> Value {
    let command: Vec<&str> = service.path.split(' ').collect();
    let mut shown = serde_json::to_value(service).unwrap();
    shown["path"] = json!(command);
    shown
}

#[test]
fn the_rendering_for_each_platform_matches_its_golden_file() {
    let platforms =
        [Platform::None, Platform::Vsphere, Platform::Nutanix, Platform::Aws, Platform::Azure, Platform::Gcp];
    for platform in platforms {
        // Here, each platform has a hybrid overlay, and each platform except `none` has a cloud controller manager, as on OpenShift.
        let cluster = Cluster {
            platform,
            external_cloud_provider: platform != Platform::None,
            network: Network::OvnHybrid { vxlan_port: None },
            ..cluster()
        };
        let payload = payload(&[PROGRAMS.as_slice(), &CREDENTIAL_PROVIDERS].concat());
        let rendered = render(&cluster, &payload, &Settings::default(), &TemplateSpec::default()).unwrap();
        let configs = rendered.configs(&cluster, &host()).unwrap();
        let kubelet = configs.iter().find(|c| c.path == path::KUBELET_CONFIG).unwrap();
        let providers = configs.iter().find(|c| c.path == crate::render::CREDENTIAL_PROVIDER_CONFIG);
        let content = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let services = &rendered.services;
        let mut value = Map::new();
        value.insert("services".into(), services.services.iter().map(shown).collect());
        value.insert("environment".into(), json!(services.environment_vars));
        value.insert("metadataAddress".into(), json!(rendered.shared.metadata_address));
        value.insert("payload".into(), rendered.files().iter().map(|f| json!(f.destination)).collect());
        value.insert("files".into(), configs.iter().map(|c| json!(c.path)).collect());
        value.insert("kubelet".into(), content(&kubelet.content));
        value.insert("credentialProviders".into(), providers.map(|p| content(&p.content)).into());
        let about = format!("What a host gets on the platform {}.", platform.as_str());
        assert_golden(platform.as_str(), &about, &Value::Object(value));
    }
}

/// Checks the results that depend on the Windows version. The rendering does not depend on it, because the host is not known at that time. The
/// version decides whether a host may become a node, and which message users read.
#[test]
fn the_preflight_results_for_each_windows_version_match_their_golden_file() {
    for WindowsVersion { name, build, support_ends, image, .. } in VERSIONS {
        let verdict = |os_name: &str, os_build: String| {
            let machine = Machine {
                is_admin: true,
                os_name: os_name.into(),
                os_build: os_build.clone(),
                disk_free: 1,
                ..Machine::default()
            };
            let asked = Preflight {
                cluster_id: "here",
                user: "Administrator",
                api_server: None,
                needed: 0,
                credential_plugin: None,
                vxlan_port: None,
                now: Timestamp::UNIX_EPOCH,
            };
            let found = results(&asked, &HostState { machine, ..HostState::default() });
            let (_, fault) = found.into_iter().find(|(check, _)| *check == "windows").unwrap();
            let said = fault.map_or_else(|| "passed".to_owned(), |fault| format!("{}: {fault}", fault.reason()));
            let known = find(os_name, &os_build).map(|v| v.name);
            json!({"name": os_name, "build": os_build, "version": known, "preflight": said})
        };
        let value = json!({
            "name": name,
            "build": build,
            "supportEnds": support_ends,
            "baseImage": image,
            "hosts": [
                verdict(&format!("{name} Datacenter"), format!("10.0.{build}.1")),
                verdict(&format!("{name} Standard"), format!("10.0.{build}")),
                // A desktop edition may have the same build.
                verdict("Windows 11 Enterprise", format!("10.0.{build}.1")),
                // The next build, of a release without long-term servicing.
                verdict(&format!("{name} Datacenter"), format!("10.0.{}.1", build + 1)),
            ],
        });
        let file = name.to_ascii_lowercase().replace(' ', "-");
        assert_golden(&file, &format!("What is known of {name}, and how its hosts are judged."), &value);
    }
}
