//! Tests of a release whose cluster facts change.

use api::Reason;
use testbed::payload::{Entry, LEVEL_FAST, write};
use wnp_core::render::{Fact, Unusable, fixtures};

use super::*;
use crate::instance::test_bed::Bed;

fn proxy(url: &str) -> Cluster {
    let mut cluster = fixtures::cluster();
    cluster.proxy.https = Some(url.to_owned());
    cluster
}

/// Payloads of two minor versions have different kubelets.
#[tokio::test]
async fn nodes_follow_the_control_plane_when_its_upgrade_is_done() {
    let dir = tempfile::tempdir().unwrap();
    for (minor, kubelet) in [("1.34", "1.34.9"), ("1.36", "1.36.3")] {
        let entries = [Entry::new(r"C:\k\kubelet.exe", kubelet).version(Some(kubelet))];
        write(&dir.path().join(minor), &entries, LEVEL_FAST).unwrap();
    }
    let bed = Bed::new().await;
    let cluster =
        |minor: u32, is_upgrading: bool| Cluster { kubernetes_minor: Some(minor), is_upgrading, ..fixtures::cluster() };
    let first = bed.cx.hosts.release.get();
    let release = Release {
        cluster: cluster(34, false),
        payload: Payload::open(dir.path()).unwrap(),
        wicd: first.wicd.clone(),
        settings: first.settings.clone(),
    };
    let current = CurrentRelease::new(release);
    let kubelet = || current.get().manifest().files[0].version.clone().unwrap();
    let rendered = || current.get().render(&TemplateSpec::default()).unwrap();
    let (old, mut last) = (rendered(), rendered().hash());
    for (about, found, expected, changes) in [
        ("the upgrade begins", cluster(34, true), "1.34.9", false),
        ("all API servers are new", cluster(36, true), "1.34.9", false),
        ("it is done", cluster(36, false), "1.36.3", true),
        ("the next one, which no payload is for", cluster(37, false), "1.36.3", false),
        ("a control plane that is downgraded", cluster(35, false), "1.34.9", true),
    ] {
        current.follow(Ok(found.into()));
        assert_eq!((kubelet().as_str(), rendered().hash() != last), (expected, changes), "{about}");
        assert_eq!(current.fault(), None, "{about}");
        let waits = current.waits().map(|(_, message)| message).unwrap_or_default();
        let is_said = waits.contains("1.36") && waits.contains("stay with 1.34") && waits.contains("ClusterVersion");
        assert_eq!(is_said, about == "all API servers are new", "{about}: {waits}");
        last = rendered().hash();
    }
    assert!(current.get().has(old.files()), "a node can go back");
    current.follow(Ok(cluster(33, false).into()));
    assert_eq!(current.fault().map(|(reason, _)| reason), Some(Reason::KubeletVersionSkew));
}

/// Operators may start while nodes follow an older version than the API servers have.
#[tokio::test]
async fn an_operator_may_start_during_an_upgrade() {
    let dir = tempfile::tempdir().unwrap();
    for minor in ["34", "36"] {
        let version = format!("1.{minor}.1");
        let entries = [Entry::new(r"C:\k\kubelet.exe", version.clone()).version(Some(&version))];
        for payload in [format!("both/1.{minor}"), format!("only-{minor}/1.{minor}")] {
            write(&dir.path().join(payload), &entries, LEVEL_FAST).unwrap();
        }
    }
    let bed = Bed::new().await;
    let args = bed.cx.process.args.clone();
    let kept = Kept::of_nodes(34);
    // Payload and obstacles to the new version, followed by the version that nodes follow and the reported reason.
    for (payload, is_upgrading, is_silent, follows, reason) in [
        ("both", false, false, Ok(36), None),
        ("both", true, false, Ok(34), Some("ControlPlaneUpgrading")),
        ("both", false, true, Ok(34), Some("ApiServerSilent")),
        ("only-34", true, false, Ok(34), Some("ControlPlaneUpgrading")),
        // No payload fits the old version, and all API servers have the new one.
        ("only-36", true, false, Ok(36), None),
        ("only-36", true, true, Err("KubeletVersionSkew"), None),
    ] {
        let args = Run { payload: dir.path().join(payload), ..args.clone() };
        let silent = is_silent.then(|| "10.0.0.3:6443".to_owned());
        let found = Cluster {
            kubernetes_minor: Some(36),
            is_upgrading,
            silent_api_servers: silent.into_iter().collect(),
            ..fixtures::cluster()
        };
        let about = format!("{payload} {is_upgrading} {is_silent}");
        let release = Release::begin(Some(&kept), found.into(), &args);
        let minor = release.as_ref().map(|r| r.cluster.kubernetes_minor.unwrap()).map_err(|e| e.reason().as_str());
        assert_eq!(minor, follows, "{about}");
        let Ok(release) = release else { continue };
        let waits = CurrentRelease::new(release).waits();
        assert_eq!(waits.as_ref().map(|(reason, _)| reason.as_str()), reason, "{about}");
        let names_it = waits.is_some_and(|(_, message)| message.contains("10.0.0.3:6443"));
        assert_eq!(names_it, reason == Some("ApiServerSilent"), "{about}");
    }
}

#[tokio::test]
async fn a_fact_that_keeps_its_earlier_value_is_reported_and_the_others_are_followed() {
    let bed = Bed::new().await;
    let release = &bed.cx.hosts.release;
    release.follow(Ok(proxy("http://proxy:3128").into()));
    let problem = "Proxy/cluster: it has a password".to_owned();
    let unusable = vec![Unusable { fact: Fact::Proxy, problem, is_missing: false }];
    let cluster = Cluster { cluster_domain: "other.local".into(), ..fixtures::cluster() };
    assert!(release.follow(Ok(Found { cluster, unusable })));
    let Cluster { proxy: in_force, cluster_domain, .. } = &release.get().cluster;
    assert_eq!((in_force.https.as_deref(), cluster_domain.as_str()), (Some("http://proxy:3128"), "other.local"));
    let (reason, message) = release.fault().unwrap();
    assert!(reason == "ClusterFactsInvalid" && message.contains("Proxy/cluster"), "{reason}: {message}");
    release.follow(Ok(proxy("http://other:3128").into()));
    assert_eq!(release.fault(), None);
}

#[tokio::test]
async fn unusable_facts_leave_the_earlier_ones_in_force() {
    let bed = Bed::new().await;
    let release = &bed.cx.hosts.release;
    let unreadable = || ClusterError::Invalid { what: "the proxy", value: String::new(), problem: "it is empty" };
    let (good, other) = (|| proxy("http://proxy:3128"), || proxy("http://other:3128"));
    let fault = || release.fault().map(|(reason, _)| reason.as_str());
    let hidden = || proxy("http://user:hunter2@proxy:3128");
    // Facts that are read, whether pools are reconciled, the proxy in force, and the reported fault.
    for (about, found, changed, in_force, reported) in [
        ("the same", Ok(fixtures::cluster()), false, None, None),
        ("a change", Ok(good()), true, Some("http://proxy:3128"), None),
        ("no change", Ok(good()), false, Some("http://proxy:3128"), None),
        ("a password", Ok(hidden()), true, Some("http://proxy:3128"), Some("ClusterFactsInvalid")),
        ("still", Ok(hidden()), false, Some("http://proxy:3128"), Some("ClusterFactsInvalid")),
        ("another fault", Err(unreadable()), true, Some("http://proxy:3128"), Some("ClusterUnknown")),
        ("as before", Ok(good()), true, Some("http://proxy:3128"), None),
        ("a fault again", Err(unreadable()), true, Some("http://proxy:3128"), Some("ClusterUnknown")),
        ("another proxy", Ok(other()), true, Some("http://other:3128"), None),
    ] {
        assert_eq!(release.follow(found.map(Found::from)), changed, "{about}");
        assert_eq!(release.get().cluster.proxy.https.as_deref(), in_force, "{about}");
        assert_eq!(fault(), reported, "{about}");
        let message = release.fault().map(|(_, message)| message).unwrap_or_default();
        assert!(!message.contains("hunter2"), "{message}");
    }
}
