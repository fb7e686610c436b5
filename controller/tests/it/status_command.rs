//! The command `status` against the API server: its tree, and its exit status for scripts.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use api::{Host, WindowsNodePoolSpec, conditions::kind};
use serde_json::Value;
use testbed::sim::SimOptions;

use crate::{
    fleet::{World, has, is_ready, pool_status, spec},
    transcripts::Transcript,
};

/// Runs `status`, and returns exit status, standard output and standard error.
pub(crate) fn status(world: &World, args: &[&str]) -> Result<(Option<i32>, String, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_kubectl-windows_node_pools"))
        .arg("status")
        .args(args)
        .env("KUBECONFIG", world.control_plane.kubeconfig_as("a-person", &["system:masters"])?)
        .env_remove("COLUMNS")
        .output()?;
    Ok((output.status.code(), String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
}

/// Starts `status --watch`, and returns the program and the lines that it prints.
fn watched(world: &World) -> Result<(Child, impl Iterator<Item = String>)> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kubectl-windows_node_pools"))
        .args(["status", "--watch"])
        .env("KUBECONFIG", world.control_plane.kubeconfig_as("a-person", &["system:masters"])?)
        .stdout(Stdio::piped())
        .spawn()?;
    let out = child.stdout.take().context("it has no output")?;
    Ok((child, BufReader::new(out).lines().map_while(Result::ok)))
}

#[tokio::test(flavor = "multi_thread")]
async fn output_and_exit_status_name_what_is_wrong() -> Result<()> {
    // A failed host fails once, so that what is printed does not depend on the time.
    let world = World::new(SimOptions::default(), &["--backoff-base", "1h", "--backoff-max", "1h"]).await?;
    ensure!(status(&world, &[])? == (Some(0), "There is no WindowsNodePool.\n".into(), String::new()));
    let (code, out, error) = status(&world, &["factory"])?;
    ensure!(code == Some(1) && out.is_empty(), "{code:?} {out}");
    ensure!(error.contains("there is no WindowsNodePool factory"), "{error}");

    // A watch sees a healthy pool appear.
    let (mut child, mut lines) = watched(&world)?;
    ensure!(lines.any(|line| line == "There is no WindowsNodePool."), "it says nothing of a cluster without pools");
    world.join("factory", &spec(&world.hosts("win", 1).await?)).await?;
    world.until("factory", "it is Ready", is_ready).await?;
    // Pools and hosts are watched separately: a page may show one of them as it was a moment before.
    let mut line_before = String::new();
    let is_page = |line: String| {
        let is_below = line_before == "factory  1 of 1 nodes Ready" && line == "└─ win-0  Ready";
        line_before = line;
        is_below
    };
    ensure!(lines.any(is_page), "pool and host are never shown as Ready");
    // The command ends at the next change when nobody reads its output.
    drop(lines);
    let well = "factory  1 of 1 nodes Ready\n└─ win-0  Ready\n";
    ensure!(status(&world, &[])? == (Some(0), well.into(), String::new()), "{:?}", status(&world, &[])?);

    // Another pool has a host that does not answer.
    let closed = Host { name: "gate-1".into(), address: "127.9.9.9".into(), port: Some(2299), ..Host::default() };
    let mut yard: WindowsNodePoolSpec = spec(&[]);
    yard.inventory.hosts = Some(vec![closed]);
    world.apply("yard", &yard).await?;
    world.until_failed("gate-1", "Unreachable").await?;
    let ended = tokio::task::spawn_blocking(move || child.wait()).await??;
    ensure!(ended.success(), "{ended}");
    world
        .until("yard", "it reports the failed host", |p| {
            has(&pool_status(p).conditions, kind::READY, "False", "NodesFailed")
        })
        .await?;
    let (code, out, error) = status(&world, &[])?;
    ensure!(code == Some(1) && error.is_empty(), "{code:?} {error}");
    ensure!(out.starts_with("yard  0 of 1 nodes Ready; 1 of 1 failed: gate-1: Connect: "), "{out}");
    ensure!(out.contains("\n└─ gate-1  Failed     Connect: "), "{out}");
    ensure!(out.ends_with(well), "the pool that is well is not the last: {out}");
    let mut page = Transcript::default();
    page.status(&world, &[])?;
    page.check("status")?;

    // A script may name the pools that it needs.
    ensure!(status(&world, &["factory"])? == (Some(0), well.into(), String::new()));
    let (code, out, _) = status(&world, &["-o", "json", "yard"])?;
    let pools: Vec<Value> = serde_json::from_str(&out)?;
    ensure!(code == Some(1) && pools.len() == 1 && pools[0]["name"] == "yard", "{code:?} {out}");
    ensure!(pools[0]["ready"] == "False" && pools[0]["reason"] == "NodesFailed", "{out}");
    ensure!(pools[0]["hosts"][0]["name"] == "gate-1" && pools[0]["hosts"][0]["phase"] == "Failed", "{out}");
    let (_, out, _) = status(&world, &["-o", "yaml", "yard"])?;
    ensure!(serde_yaml::from_str::<Vec<Value>>(&out)? == pools, "{out}");
    let names = "windowsnodepool.windowsmachineconfig.openshift.io/yard\nwindowsnodepool.windowsmachineconfig.openshift.io/factory\n";
    ensure!(status(&world, &["-o", "name"])?.1 == names, "{:?}", status(&world, &["-o", "name"])?);
    let (_, out, _) = status(&world, &["-o", "wide", "factory"])?;
    ensure!(out.contains("win-0  127.") && out.contains("Ready      0.1.0-"), "{out}");
    Ok(())
}
