//! The commands `check` and `check host`: their output and exit status, and that the host stays unchanged.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use api::host::{Antivirus, Defender, RestartCause};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use kube::{Api, api::DeleteParams};
use russh::keys::{HashAlg, ssh_key::LineEnding};
use serde_json::Value;
use testbed::{
    deployment::OPERATOR,
    sim::{Fault, SimHost, SimOptions},
};

use crate::fleet::{World, is_ready, spec};

/// Runs `check host`, and returns exit status and standard output. Does not block, because the simulated host runs in this process.
async fn run_check_host(world: &World, host: &SimHost, key: &Path, more: &[&str]) -> Result<(Option<i32>, String)> {
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_kubectl-windows_node_pools"))
        .args(["check", "host", &host.address().to_string(), "--port", &host.port().to_string()])
        .args(["--api-server", "https://api.example.com:6443", "--wicd"])
        .arg(&world.options.wicd)
        .arg("--identity")
        .arg(key)
        .args(more)
        .output()
        .await?;
    ensure!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok((output.status.code(), String::from_utf8(output.stdout)?))
}

/// Reports whether files of the operator or the command are left on the host.
fn has_leftovers(host: &SimHost) -> bool {
    ["k/wicd", "windows/wicd"].iter().any(|directory| host.drive_c().join(directory).exists())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_checked_and_left_as_it_is() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let keys = tempfile::tempdir()?;
    let key = keys.path().join("key");
    std::fs::write(&key, world.key.to_openssh(LineEnding::LF)?.as_bytes())?;
    let hosts = world.hosts("win", 1).await?;
    let host = &hosts[0];
    let fingerprint = host.host_key().fingerprint(HashAlg::Sha256).to_string();

    let (code, table) = run_check_host(&world, host, &key, &["--host-key", &fingerprint]).await?;
    ensure!(code == Some(0) && !table.contains("failed") && table.lines().count() == 15, "{code:?}\n{table}");
    ensure!(table.contains("Windows Server 2022 Datacenter 10.0.20348") && table.contains(&fingerprint), "{table}");
    ensure!(!has_leftovers(host), "something is left on the host");

    // The command also cleans up in a directory that existed before.
    std::fs::create_dir_all(host.drive_c().join("k"))?;
    std::fs::write(host.drive_c().join("k/mine.txt"), "mine")?;
    host.fault(Fault::ClockBehind(Duration::from_hours(1)));
    host.windows().state().unreachable = Some("api.example.com cannot be resolved".to_owned());
    host.windows().state().ports_in_use.insert(10250);
    let (code, json) = run_check_host(&world, host, &key, &["-o", "json"]).await?;
    let rows: Vec<Value> = serde_json::from_str(&json)?;
    let reasons: Vec<&str> = rows.iter().filter_map(|row| row["reason"].as_str()).collect();
    ensure!(code == Some(1) && reasons == ["ClockSkew", "PortInUse", "ApiServerUnreachable"], "{code:?} {json}");
    ensure!(!has_leftovers(host), "something is left on the host");
    host.windows().state().unreachable = None;
    host.windows().state().ports_in_use.clear();

    // Warnings do not change the exit status.
    host.mend();
    host.windows().state().restart_causes.insert(RestartCause::Servicing);
    host.windows().state().antivirus = Antivirus { defender: Defender::Checks, filters: vec!["csagent".to_owned()] };
    host.windows().state().services.entry("docker".to_owned()).or_default().name = "docker".to_owned();
    let (code, json) = run_check_host(&world, host, &key, &["-o", "json", "--gmsa", "web"]).await?;
    let rows: Vec<Value> = serde_json::from_str(&json)?;
    let warnings: Vec<&str> =
        rows.iter().filter(|row| row["result"] == "warning").filter_map(|row| row["reason"].as_str()).collect();
    let expected = ["HostWarning", "HostWarning", "HostWarning", "AccountNotUsable"];
    ensure!(code == Some(0) && warnings == expected, "{code:?} {json}");
    host.windows().state().restart_causes.clear();
    host.windows().state().antivirus = Antivirus::default();
    host.windows().state().services.remove("docker");

    for (fault, expected) in [(Fault::WrongKey, "AuthenticationFailed"), (Fault::NotWindows, "WindowsNotSupported")] {
        host.mend();
        host.fault(fault);
        let (code, table) = run_check_host(&world, host, &key, &[]).await?;
        ensure!(code == Some(1) && table.contains(&format!("failed   {expected}: ")), "{code:?}\n{table}");
    }
    host.mend();

    // The check does not disturb a node.
    world.join("factory", &spec(&hosts)).await?;
    world.until("factory", "it is Ready", is_ready).await?;
    let starts = host.kubelet_starts();
    let (code, table) = run_check_host(&world, host, &key, &[]).await?;
    ensure!(code == Some(0), "{table}");
    ensure!(has_leftovers(host) && host.kubelet_starts() == starts, "the node was disturbed");
    Ok(())
}

/// Runs `check` as a user, and returns its exit status and its rows by the name of the check.
async fn run_check(world: &World, user: &str, args: &[&str]) -> Result<(Option<i32>, BTreeMap<String, Value>)> {
    let groups: &[&str] = if user == "a-person" { &["system:masters"] } else { &[] };
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_kubectl-windows_node_pools"))
        .args(["check", "-o", "json", "--payload"])
        .arg(&world.options.payload)
        .arg("--wicd")
        .arg(&world.options.wicd)
        .args(args)
        .env("KUBECONFIG", world.control_plane.kubeconfig_as(user, groups)?)
        .output()
        .await?;
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{} {}", output.status, String::from_utf8_lossy(&output.stderr)))?;
    let by_name = rows.into_iter().map(|row| (row["check"].as_str().unwrap_or_default().to_owned(), row));
    Ok((output.status.code(), by_name.collect()))
}

/// Returns the checks that did not pass, with their reasons.
fn not_passed(rows: &BTreeMap<String, Value>) -> BTreeMap<&str, &str> {
    let others = rows.iter().filter(|(_, row)| row["result"] != "passed");
    others.map(|(check, row)| (check.as_str(), row["reason"].as_str().unwrap_or_default())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_is_checked_with_the_rights_of_the_operator_and_of_users() -> Result<()> {
    let mut world = World::new(SimOptions::default(), &[]).await?;
    world.operator.leads().await?;
    let (code, rows) = run_check(&world, OPERATOR, &[]).await?;
    ensure!(code == Some(0) && not_passed(&rows).is_empty() && rows.len() == 11, "{code:?} {rows:#?}");

    // A URL that does not answer here is only a warning: hosts may reach it.
    let (code, rows) = run_check(&world, OPERATOR, &["--api-server", "https://127.0.0.1:9"]).await?;
    ensure!(
        code == Some(0) && not_passed(&rows) == [("certificate", "ApiServerUnreachable")].into(),
        "{code:?} {rows:#?}"
    );

    // The check finds two faults: no process leads, and a policy is missing.
    world.stop().await?;
    let name = "windows-node-pools-services";
    Api::<ValidatingAdmissionPolicy>::all(world.client.clone()).delete(name, &DeleteParams::default()).await?;
    let (code, rows) = run_check(&world, "a-person", &[]).await?;
    let expected = [("leader", "NoLeader"), ("policies", "PoliciesMissing")].into();
    ensure!(code == Some(1) && not_passed(&rows) == expected, "{code:?} {rows:#?}");

    // The check runs before an installation, for a user who may install and for one who may not.
    let (code, rows) = run_check(&world, "a-person", &["--pre"]).await?;
    ensure!(code == Some(0) && not_passed(&rows).is_empty() && rows.len() == 5, "{code:?} {rows:#?}");
    let (code, rows) = run_check(&world, "alice", &["--pre"]).await?;
    ensure!(code == Some(1) && not_passed(&rows).get("rights") == Some(&"RightsMissing"), "{code:?} {rows:#?}");
    Ok(())
}
