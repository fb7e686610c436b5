//! The whole way of hosts with the API server and the controller manager of each version of Kubernetes that is claimed. All other tests run
//! with the newest.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{certificates::v1::CertificateSigningRequest, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{ListParams, ObjectList},
};
use serde_json::json;
use testbed::{ControlPlane, ControlPlaneOptions, binaries::KUBERNETES, sim::SimOptions};

use crate::{
    csr::conditions,
    fleet::{World, entries, spec_with},
    removal::{pod, the_pool_is_deleted},
    rollout::{Watcher, until_updated},
    takeover::{Legacy, OTHER, what_differs_is_changed_in_turn},
};

const POOL: &str = "changed";

/// Defines the test of each minor version. Each but the oldest takes minutes to build.
macro_rules! tests {
    ($($(#[$ignore:meta])? $name:ident = $minor:literal;)*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            $(#[$ignore])?
            async fn $name() -> Result<()> {
                let version = KUBERNETES.into_iter().find(|version| version.starts_with($minor));
                Box::pin(the_whole_way(version.context("it is not claimed")?)).await
            }
        )*

        #[test]
        fn each_version_has_its_test() {
            let minors: &[&str] = &[$($minor),*];
            assert!(KUBERNETES.iter().zip(minors).all(|(version, minor)| version.starts_with(minor)));
            assert_eq!(KUBERNETES.len(), minors.len());
        }
    };
}

tests! {
    #[ignore = "it runs by night"] hosts_go_the_whole_way_with_1_37 = "v1.37.";
    #[ignore = "it runs by night"] hosts_go_the_whole_way_with_1_36 = "v1.36.";
    #[ignore = "it runs by night"] hosts_go_the_whole_way_with_1_35 = "v1.35.";
    #[ignore = "it runs by night"] hosts_go_the_whole_way_with_1_34 = "v1.34.";
    hosts_go_the_whole_way_with_1_33 = "v1.33.";
}

/// Installs the operator, and has hosts join, follow a change, be taken over and be removed.
async fn the_whole_way(version: &'static str) -> Result<()> {
    let options = ControlPlaneOptions { kubernetes: Some(version), ..ControlPlaneOptions::default() };
    let control_plane = ControlPlane::start(options).await?;
    let start = Instant::now();
    let sim = SimOptions { kubelet_version: version.into(), ..SimOptions::default() };
    let world = World::on(control_plane, sim, &entries(b"kubelet"), None, &[]).await?;
    world.operator.leads().await?;
    let server = world.client.apiserver_version().await?.git_version;
    ensure!(server == version, "{server} runs in place of {version}");
    let legacy = Legacy::new(&world, "legacy", OTHER, 2).await?;
    tokio::try_join!(
        a_change_is_rolled_out(&world),
        what_differs_is_changed_in_turn(&world, &legacy),
        the_pool_is_deleted(&world),
    )?;
    every_request_got_its_certificate(&world).await?;
    println!("Kubernetes {version}: the whole way in {} s", start.elapsed().as_secs());
    Ok(())
}

async fn a_change_is_rolled_out(world: &World) -> Result<()> {
    let hosts = world.hosts(POOL, 2).await?;
    let pool = |downloads: i32| {
        let containerd = json!({"containerd": {"maxConcurrentDownloads": downloads}});
        spec_with(&hosts, json!({"template": {"spec": containerd}}))
    };
    world.join(POOL, &pool(3)).await?;
    for host in &hosts {
        pod(world, POOL, host.name(), &[]).await?;
    }
    let watcher = Watcher::of(&world.client, POOL);
    world.apply(POOL, &pool(4)).await?;
    until_updated(world, POOL).await?;
    let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
    for host in &hosts {
        ensure!(pods.get_opt(&format!("{POOL}-{}", host.name())).await?.is_none(), "{} was not drained", host.name());
    }
    let seen = watcher.seen.lock().unwrap();
    ensure!(seen.ever_cordoned.len() == hosts.len(), "only {:?} were cordoned", seen.ever_cordoned);
    Ok(())
}

async fn every_request_got_its_certificate(world: &World) -> Result<()> {
    let requests: ObjectList<CertificateSigningRequest> =
        Api::all(world.client.clone()).list(&ListParams::default()).await?;
    ensure!(!requests.items.is_empty(), "nothing was requested");
    for request in requests {
        let is_approved = conditions(&request).iter().any(|(type_, _)| type_ == "Approved");
        let is_issued = request.status.as_ref().is_some_and(|status| status.certificate.is_some());
        ensure!(is_approved && is_issued, "{}: {:?}", request.name_any(), request.status);
    }
    Ok(())
}
