//! Semantics of Windows that a plain directory does not have: services that are marked for deletion, files in use, DISM, login shells and SFTP
//! servers of OpenSSH, and output in other languages. In each case, the host becomes a node or reports why not, and no other host waits for it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::host::WICD_SERVICE;
use futures::future::try_join_all;
use k8s_openapi::api::events::v1::Event;
use kube::{Api, api::ListParams};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use testbed::sim::{Fault, Held, HostOptions, Shell, SimHost, SimOptions};

use crate::{
    fleet::{World, entries, pool_status, spec_with},
    rollout::until_updated,
};

/// Simulated call that enables the feature Containers.
const ENABLE: &str = "enable_containers ";
/// Fault: the feature Containers is enabled only after a restart.
const NO_CONTAINERS: &[Fault] = &[Fault::NeedsReboot];
/// Faults: programs fail, and their output is in another language.
const GARBLED_FAILURE: &[Fault] = &[Fault::GarbledOutput, Fault::ProgramsFail(3)];
/// Hosts on which a file is in use during the rollout, with the file. An antivirus denies access to the new file, not to the one that the new file
/// replaces.
const HELD: [(&str, &str, Held); 2] = [
    ("held-a-while", r"C:\k\kubelet.exe", Held::Open(3)),
    ("denied-a-while", r"C:\k\kubelet.exe.new", Held::Denied(3)),
];
/// Number of attempts that no host makes.
const UNREACHABLE_ATTEMPTS: u32 = u32::MAX;

/// Case: the host's name and faults, a function that prepares the host, and, if the host cannot join until its faults and its preparation are undone,
/// the reason and a part of the message.
type Case = (&'static str, &'static [Fault], fn(&SimHost) -> Result<()>, Option<(&'static str, &'static str)>);

const CASES: [Case; 16] = [
    ("plain", &[], |_| Ok(()), None),
    ("service-deleted", &[], |host| deleted(host, WICD_SERVICE), Some(("HostCallFailed", "os error 1072"))),
    ("held-a-while", &[], |host| hold(host, Held::Open(3)), None),
    ("denied-a-while", &[], |host| hold(host, Held::Denied(3)), None),
    (
        "held-for-ever",
        &[],
        |host| hold(host, Held::Open(UNREACHABLE_ATTEMPTS)),
        Some(("HostCallFailed", "os error 32")),
    ),
    (
        "denied-for-ever",
        &[],
        |host| hold(host, Held::Denied(UNREACHABLE_ATTEMPTS)),
        Some(("AccessDenied", r"C:\k\kubelet.exe")),
    ),
    ("servicing", NO_CONTAINERS, |host| dism(host, "HRESULT 0x800f0902"), Some(("HostCallFailed", "0x800f0902"))),
    ("rolls-back", NO_CONTAINERS, |host| dism(host, "HRESULT 0x80070bc9"), Some(("HostCallFailed", "0x80070bc9"))),
    ("node-servicing", &[], |host| dism(host, "HRESULT 0x800f0902"), None),
    ("slow-dism", NO_CONTAINERS, slow_dism, None),
    ("sftp-plain", &[Fault::PlainSftp], hold_wicd, None),
    ("sftp-7-7", &[Fault::OldSftp], hold_wicd, None),
    ("powershell", &[Fault::Shell(Shell::PowerShell)], |_| Ok(()), None),
    ("bash", &[Fault::Shell(Shell::Bash)], |_| Ok(()), None),
    ("garbled", &[Fault::GarbledOutput], |_| Ok(()), None),
    ("garbled-failure", GARBLED_FAILURE, |_| Ok(()), Some(("NoAnswer", "exit status 3 and no answer; it printed: "))),
];

/// Marks a service for deletion while another program has it open.
#[expect(clippy::unnecessary_wraps, reason = "same type as the other faults")]
fn deleted(host: &SimHost, service: &str) -> Result<()> {
    let mut state = host.windows().state();
    state.open_services.insert(service.to_owned());
    state.deleted_services.insert(service.to_owned());
    Ok(())
}

/// Makes another program use `kubelet.exe.new`, before it is moved into place.
fn hold(host: &SimHost, by: Held) -> Result<()> {
    Ok(host.windows().hold(r"C:\k\kubelet.exe.new", Some(by))?)
}

/// Makes an antivirus deny access to wicd while the operator uploads it.
fn hold_wicd(host: &SimHost) -> Result<()> {
    let path = api::host::launcher_path(&hex::encode(Sha256::digest(crate::fleet::WICD)));
    Ok(host.windows().hold(&format!("{path}.partial"), Some(Held::Denied(3)))?)
}

/// Makes DISM fail with this error when it enables the feature Containers.
#[expect(clippy::unnecessary_wraps, reason = "same type as the other faults")]
fn dism(host: &SimHost, error: &str) -> Result<()> {
    host.windows().state().errors.insert(ENABLE.to_owned(), error.to_owned());
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "same type as the other faults")]
fn slow_dism(host: &SimHost) -> Result<()> {
    host.windows().state().slow.insert(ENABLE.to_owned(), Duration::from_secs(2));
    Ok(())
}

/// Undoes the preparation of a host.
fn mend(host: &SimHost) -> Result<()> {
    host.windows().hold(r"C:\k\kubelet.exe.new", None)?;
    host.windows().close_services();
    host.windows().state().errors.clear();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_host_becomes_a_node_or_reports_why_not() -> Result<()> {
    let mut world = World::new(SimOptions::default(), &[]).await?;
    let mut hosts = Vec::new();
    for (name, faults, arrange, _) in CASES {
        let host = world.sim.host(HostOptions { faults: faults.to_vec(), ..HostOptions::named(name) }).await?;
        arrange(&host)?;
        hosts.push(host);
    }
    // All hosts may leave at once, because a host that cannot be cleaned up counts as unavailable.
    let all = json!({"rollout": {"maxUnavailable": CASES.len()}});
    world.apply("semantics", &spec_with(&hosts, all)).await?;
    try_join_all(CASES.iter().map(async |(name, _, _, stuck)| match stuck {
        None => world.until_joined(name).await.map(drop),
        Some((reason, part)) => {
            let message = world.until_failed(name, reason).await?;
            ensure!(message.contains(part) && !message.contains(char::is_control), "{name}: {message:?}");
            Ok(())
        }
    }))
    .await?;
    for (host, (_, faults, ..)) in hosts.iter().zip(CASES).filter(|(_, (.., stuck))| stuck.is_some()) {
        mend(host)?;
        if faults == GARBLED_FAILURE {
            host.mend();
        }
    }
    try_join_all(hosts.iter().map(async |host| world.until_joined(host.name()).await.map(drop))).await?;

    // For a while, another program has the replaced program open, or an antivirus denies access to the new one.
    for (name, path, by) in HELD {
        let host = hosts.iter().find(|host| host.name() == name).context("no such host")?;
        host.windows().hold(path, Some(by))?;
    }
    let before = pool_status(&world.pool("semantics").await?).desired_version;
    world.give("next", &entries(b"kubelet 2"))?;
    world.restart().await?;
    world.until("semantics", "has another version", |p| pool_status(p).desired_version != before).await?;
    until_updated(&world, "semantics").await?;
    for host in &hosts {
        ensure!(std::fs::read(host.drive_c().join("k/kubelet.exe"))? == b"kubelet 2", "{}", host.name());
    }
    for (name, ..) in HELD {
        let failed = failures(&world, name).await?;
        ensure!(failed.is_empty(), "{name}: {failed:?}");
    }

    // A program that has a service open blocks the cleanup of one host, and of no other.
    let (open, others) = hosts.split_first().context("no hosts")?;
    open.windows().state().open_services.insert("kubelet".to_owned());
    world.empty("semantics").await?;
    try_join_all(others.iter().map(|host| world.until_gone(host))).await?;
    let message = world.until_failed(open.name(), "CleanupIncomplete").await?;
    ensure!(message.contains("service kubelet to be deleted; a program, for example services.msc"), "{message}");
    open.windows().close_services();
    world.until_gone(open).await
}

/// Returns the notes of the events about failed operations of a host.
pub(crate) async fn failures(world: &World, name: &str) -> Result<Vec<String>> {
    let all = Api::<Event>::all(world.client.clone()).list(&ListParams::default()).await?.items;
    let is_of_host = |e: &Event| e.regarding.as_ref().is_some_and(|r| r.name.as_deref() == Some(name));
    let is_failure = |e: &Event| e.reason.as_ref().is_some_and(|reason| reason.ends_with("Failed"));
    Ok(all.into_iter().filter(|e| is_of_host(e) && is_failure(e)).filter_map(|e| e.note).collect())
}
