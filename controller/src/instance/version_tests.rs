//! Tests of versions that cannot be given to a host, of payload changes, and of outdated state on a host.

use std::fs;

use api::{
    GrantType, TemplateSpec,
    host::{CredentialPlugin, path},
    names,
};
use serde_json::{Value, json};
use testbed::payload::Entry;
use wnp_core::{
    render::{Cluster, Rendered, Stored, fixtures},
    rollout::version_diff,
};

use super::{
    executor_tests::{World, is_cordoned},
    test_bed::IMAGES,
};

/// Stores the default version with a change of its content, and a change of its ConfigMap by another client. Returns its name.
fn publish(world: &World, content: impl FnOnce(&mut Rendered), config_map: impl FnOnce(&mut Value)) -> String {
    let mut rendered = world.bed.cx.hosts.release.get().render(&TemplateSpec::default()).unwrap();
    content(&mut rendered);
    let version = rendered.name("1.0.0");
    let mut stored = serde_json::to_value(rendered.to_config_map(&version, "operator")).unwrap();
    config_map(&mut stored);
    world.bed.api.objects(|o| o.put("configmaps", stored));
    version
}

/// Stores a version whose ConfigMap another client has changed. Returns its name.
fn publish_changed(world: &World, change: impl FnOnce(&mut Value)) -> String {
    publish(world, |rendered| rendered.shared.kubelet["maxPods"] = json!(77), change)
}

fn failure(world: &World) -> String {
    world.status()["failures"]["lastReason"].as_str().unwrap_or_default().to_owned()
}

type Publish = fn(&World) -> String;

#[tokio::test]
async fn an_unusable_version_is_reported_and_changes_nothing() {
    let cases: [(&str, &str, Publish); 4] = [
        ("there is no ConfigMap", "VersionUnreadable", |_| "9.9.9-none".into()),
        ("another client made it", "VersionUnreadable", |w| {
            publish_changed(w, |c| drop(c["metadata"].as_object_mut().unwrap().remove("annotations")))
        }),
        ("another client wrote to it", "VersionUnreadable", |w| {
            publish_changed(w, |c| {
                let annotation = &mut c["metadata"]["annotations"][names::key::RENDERED];
                *annotation = json!(annotation.as_str().unwrap().replace("77", "78"));
            })
        }),
        ("no payload has its files", "VersionFilesMissing", |w| {
            publish(w, |rendered| rendered.shared.files[0].sha256 = "b".repeat(64), |_| {})
        }),
    ];
    for (about, reason, publish) in cases {
        let mut world = World::new().await;
        let version = publish(&world);
        world.grant("join-1", GrantType::Provision, &version, &json!({}));
        world.works_until(about, |w| failure(w) == reason).await;
        // In each case, the message names the requested version.
        let message = world.status()["failures"]["lastMessage"].to_string();
        assert!(message.contains(&version), "{about}: {message}");
        assert!(
            reason != "VersionFilesMissing" || message.contains("the operator has payloads for all versions"),
            "{message}"
        );
        assert!(world.bed.host.services().is_empty() && world.node().is_none(), "{about}: {:?}", world.node());

        let (mut world, old) = World::joined().await;
        let (version, starts) = (publish(&world), world.bed.host.kubelet_starts());
        world.grant("u-1", GrantType::Update, &version, &json!({"version": version, "disruption": "Drain"}));
        world.works_until(about, |w| failure(w) == reason).await;
        let node = world.node().unwrap();
        assert!(!is_cordoned(&node) && world.bed.host.kubelet_starts() == starts, "{about}: {node}");
        assert_eq!(world.status()["currentVersion"], json!(old), "{about}");
    }
}

/// A rollout brings kubelet on a host to the minor version of the API server, and back if the cluster is downgraded.
#[tokio::test]
async fn a_node_moves_to_the_payload_of_the_clusters_version() {
    let mut world = World::new().await;
    let kubelet =
        |version: &str| Entry::new(r"C:\k\kubelet.exe", version).version(Some(version)).services(&["kubelet"]);
    let of_minor = |(minor, version)| (minor, vec![kubelet(version)]);
    let payloads = [("1.34", "1.34.9"), ("1.35", "1.35.4"), ("1.36", "1.36.3")].map(of_minor);
    world.bed.take_payloads(&payloads);
    let follow = |world: &World, minor: u32, is_upgrading: bool| {
        let cluster = Cluster { kubernetes_minor: Some(minor), is_upgrading, ..fixtures::cluster() };
        world.bed.cx.hosts.release.follow(Ok(cluster.into()));
        assert_eq!(world.bed.cx.hosts.release.fault(), None, "{minor}");
    };
    let rendered = |world: &World| {
        let template: TemplateSpec = serde_json::from_value(json!({"kubelet": {"maxPods": 110}})).unwrap();
        world.bed.cx.hosts.release.get().render(&template).unwrap()
    };
    let on_host = |world: &World| fs::read_to_string(world.bed.host.drive_c().join("k/kubelet.exe")).unwrap();

    follow(&world, 34, false);
    let first = world.publish(110);
    world.grant("join-1", GrantType::Provision, &first, &json!({}));
    world.works_until("it joins", |w| w.follows(&first)).await;
    assert_eq!(on_host(&world), "1.34.9");

    // The control plane skips a minor version in one upgrade, as from EUS to EUS.
    for minor in [35, 36] {
        follow(&world, minor, true);
        assert_eq!(world.publish(110), first, "the upgrade of the control plane is not done");
    }
    let mut last = first.clone();
    for (minor, expected) in [(36, "1.36.3"), (35, "1.35.4"), (34, "1.34.9")] {
        let before = rendered(&world);
        follow(&world, minor, false);
        let (version, starts) = (world.publish(110), world.bed.host.kubelet_starts());
        assert_ne!(version, last, "{minor}");
        let change = version_diff::change(&Stored::Ours(before), &rendered(&world));
        let grant = json!({"version": version, "disruption": change.disruption, "services": change.services});
        world.grant(&format!("update-{minor}"), GrantType::Update, &version, &grant);
        world.works_until(expected, |w| w.follows(&version)).await;
        assert_eq!(on_host(&world), expected);
        assert!(world.bed.host.kubelet_starts() > starts, "{minor}: the new kubelet was not started");
        last = version;
    }
    assert_eq!(last, first, "the same again");
}

/// wicd would refuse such a plugin only after the drain.
#[tokio::test]
async fn a_plugin_of_another_installer_is_found_before_the_node_is_drained() {
    let clsid = "{CCC2A336-D7F3-4818-A213-272B7924213E}";
    let (mut world, old) = World::joined().await;
    let library = format!(r"{}\plugin.dll", path::CREDENTIAL_PLUGINS);
    let plugin = CredentialPlugin { clsid: clsid.into(), library };
    let version = publish(&world, |rendered| rendered.shared.credential_plugin = Some(plugin), |_| {});
    world.bed.host.register_plugin(clsid, r"C:\theirs.dll");
    world.grant("u-1", GrantType::Update, &version, &json!({"version": version, "disruption": "Drain"}));
    world.works_until("it is refused", |w| failure(w) == "ForeignServices").await;
    let passed = world.condition("PreflightPassed");
    assert_eq!((&passed["status"], &passed["reason"]), (&json!("False"), &json!("ForeignServices")), "{passed}");
    assert!(passed["message"].to_string().contains("theirs.dll"), "{passed}");
    assert!(!is_cordoned(&world.node().unwrap()) && world.status()["currentVersion"] == json!(old));
}

/// A host that joins again may be another machine, or have a new containerd.
#[tokio::test]
async fn a_host_that_joins_again_forgets_its_pulled_images() {
    let mut world = World::new().await;
    world.edit(|i| i["status"]["prePulled"] = json!({"requested": IMAGES, "images": IMAGES}));
    let version = world.begin_join();
    world.works_until("it joins", |w| w.follows(&version)).await;
    let pulled = world.status()["prePulled"].clone();
    assert_eq!((&pulled["requested"], pulled.get("images")), (&json!(IMAGES), None), "{pulled}");
}
