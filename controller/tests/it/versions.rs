//! Life of hosts with the API server and the controller manager of each supported version of Kubernetes. Most other tests use the newest version.

use std::{fs, path::Path, process::Command, sync::Mutex, time::Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{certificates::v1::CertificateSigningRequest, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{ListParams, ObjectList},
};
use serde_json::json;
use testbed::{
    ControlPlane, ControlPlaneOptions,
    binaries::{KUBERNETES, control_plane_of},
    sim::SimOptions,
};

use crate::{
    csr::conditions,
    deploy::overlays_are_accepted,
    fleet::{World, entries},
    removal::{pod, the_pool_is_deleted},
    rollout::{Watcher, until_updated, with_downloads},
    takeover::{Legacy, OTHER, nodes_with_other_services_are_drained_one_after_another},
};

const POOL: &str = "changed";

/// Defines a test for each minor version. All but the oldest run by night.
macro_rules! tests {
    ($($(#[$ignore:meta])? $name:ident = $minor:literal;)*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            $(#[$ignore])?
            async fn $name() -> Result<()> {
                let version = KUBERNETES.into_iter().find(|version| version.starts_with($minor));
                Box::pin(the_whole_way(version.context("the version is not supported")?)).await
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

/// Installs the operator, joins hosts, rolls out a change, takes over hosts and removes hosts.
async fn the_whole_way(version: &'static str) -> Result<()> {
    let options = ControlPlaneOptions { kubernetes: Some(version), ..ControlPlaneOptions::default() };
    let control_plane = ControlPlane::start(options).await?;
    let start = Instant::now();
    let sim = SimOptions { kubelet_version: version.into(), ..SimOptions::default() };
    let world = World::on(control_plane, sim, &entries(b"kubelet"), None, &[]).await?;
    world.operator.leads().await?;
    let server = world.client.apiserver_version().await?.git_version;
    ensure!(server == version, "{server} runs in place of {version}");
    has_settings_of_upstream(version)?;
    overlays_are_accepted(&world.control_plane, version).await?;
    let legacy = Legacy::new(&world, "legacy", OTHER, 2).await?;
    tokio::try_join!(
        a_change_is_rolled_out(&world),
        nodes_with_other_services_are_drained_one_after_another(&world, &legacy),
        the_pool_is_deleted(&world),
    )?;
    every_request_got_its_certificate(&world).await?;
    println!("Kubernetes {version}: all steps in {} s", start.elapsed().as_secs());
    std::env::var_os(RECORD).map_or(Ok(()), |file| record(Path::new(&file), version))
}

/// Environment variable with the path of a file. Each test that passes adds its version and the day to this file.
const RECORD: &str = "RECORD_VERSIONS";

fn record(file: &Path, version: &str) -> Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap();
    let day = jiff::Zoned::now().date();
    let others = fs::read_to_string(file).with_context(|| format!("{RECORD} is {}", file.display()))?;
    let others = others.lines().filter(|line| !line.starts_with(&format!("{version}\t"))).map(str::to_owned);
    let mut lines: Vec<String> = others.chain([format!("{version}\t{day}")]).collect();
    lines.sort();
    Ok(fs::write(file, lines.join("\n") + "\n")?)
}

/// Checks that the API server is built with the same default settings of Go (`GODEBUG`) as upstream's.
fn has_settings_of_upstream(version: &str) -> Result<()> {
    let go = |folder: &Path, arguments: &[&str]| -> Result<String> {
        let output = Command::new("go").args(arguments).current_dir(folder).output()?;
        ensure!(output.status.success(), "go {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    let (minor, _) = version.trim_start_matches('v').rsplit_once('.').context("it has no patch version")?;
    let set = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tools/xtask/payload/kubernetes-{minor}"));
    let upstream = fs::read_to_string(go(&set, &["list", "-m", "-f", "{{.GoMod}}", "k8s.io/kubernetes"])?)?;
    let is_kept = |line: &&str| ["go ", "godebug "].iter().any(|start| line.starts_with(start));
    let kept: Vec<&str> = upstream.lines().filter(is_kept).collect();
    let module = tempfile::tempdir()?;
    fs::write(module.path().join("go.mod"), format!("module upstream\n\n{}\n", kept.join("\n")))?;
    fs::write(module.path().join("main.go"), "package main\n\nfunc main() {}\n")?;
    let expected = go(module.path(), &["list", "-f", "{{.DefaultGODEBUG}}"])?;
    let server = control_plane_of(version)?.apiserver;
    let built = go(&set, &["version", "-m", server.to_str().context("path is not UTF-8")?])?;
    let built = built.lines().find_map(|line| line.trim().strip_prefix("build\tDefaultGODEBUG=")).unwrap_or_default();
    ensure!(built == expected, "{version} is built with {built:?}, and upstream's with {expected:?}");
    Ok(())
}

async fn a_change_is_rolled_out(world: &World) -> Result<()> {
    let hosts = world.hosts(POOL, 2).await?;
    let pool = |downloads: i32| with_downloads(&hosts, downloads, &json!({}));
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
