//! The kubectl plugin against a real API server: a user's commands, and the operator's response.

use std::{
    os::unix::fs::symlink,
    process::{Command, Stdio},
};

use anyhow::{Result, ensure};
use api::{Host, WindowsNodePool, WindowsNodePoolSpec, conditions::kind, names::key};
use controller::client::{COMPLETION, PROGRAM};
use kube::ResourceExt;
use serde_json::{Value, json};
use testbed::sim::SimOptions;

use crate::fleet::{World, has, is_ready, pool_status, spec, spec_with, status};

/// Folder with the plugin under the file names that kubectl looks for.
pub(crate) struct Plugin {
    folder: tempfile::TempDir,
    kubeconfig: std::path::PathBuf,
}

impl Plugin {
    pub(crate) fn new(world: &World) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        for name in [PROGRAM, COMPLETION] {
            symlink(env!("CARGO_BIN_EXE_kubectl-windows_node_pools"), folder.path().join(name))?;
        }
        Ok(Self { folder, kubeconfig: world.control_plane.kubeconfig_as("a-person", &["system:masters"])? })
    }

    /// Runs the program, and returns exit status, standard output and standard error. Standard input is not a terminal.
    fn run(&self, name: &str, args: &[&str]) -> Result<(Option<i32>, String, String)> {
        let mut command = Command::new(self.folder.path().join(name));
        let output = command.args(args).env("KUBECONFIG", &self.kubeconfig).stdin(Stdio::null()).output()?;
        Ok((output.status.code(), String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
    }

    /// Runs a command that must succeed, and returns its output.
    pub(crate) fn run_ok(&self, args: &[&str]) -> Result<String> {
        let (code, out, error) = self.run(PROGRAM, args)?;
        ensure!(code == Some(0), "{args:?}: {code:?} {out} {error}");
        Ok(out)
    }

    /// Runs a command that must fail with `words` in its error.
    fn run_refused(&self, args: &[&str], words: &str) -> Result<()> {
        let (code, out, error) = self.run(PROGRAM, args)?;
        ensure!(code == Some(1) && out.is_empty() && error.contains(words), "{args:?}: {code:?} {out} {error}");
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_controls_pools_and_hosts_with_the_plugin() -> Result<()> {
    const POOL: &str = "factory";
    let world = World::new(SimOptions::default(), &["--backoff-base", "1h", "--backoff-max", "1h"]).await?;
    let plugin = Plugin::new(&world)?;
    let hosts = world.hosts("win", 3).await?;
    let fields = |downloads: i32| {
        json!({
            "rollout": {"steps": [{"nodes": 1, "approval": true}, {"nodes": 2, "approval": true}]},
            "template": {"spec": {"containerd": {"maxConcurrentDownloads": downloads}}},
        })
    };
    let closed = Host { name: "gate-1".into(), address: "127.9.9.9".into(), port: Some(2299), ..Host::default() };
    let mut yard: WindowsNodePoolSpec = spec(&[]);
    yard.inventory.hosts = Some(vec![closed]);
    world.apply("yard", &yard).await?;
    world.join(POOL, &spec_with(&hosts, fields(3))).await?;

    // Pause and resume a pool.
    let out = plugin.run_ok(&["pause", POOL])?;
    ensure!(out.starts_with("WindowsNodePool factory: paused. "), "{out}");
    world
        .until(POOL, "the pool is paused", |p| has(&pool_status(p).conditions, kind::PAUSED, "True", "Paused"))
        .await?;
    let out = plugin.run_ok(&["resume", POOL, "-o", "json"])?;
    let outcomes: Vec<Value> = serde_json::from_str(&out)?;
    ensure!(outcomes[0]["result"] == "Changed" && outcomes[0]["kind"] == "WindowsNodePool", "{out}");
    world
        .until(POOL, "the pool is no longer paused", |p| {
            has(&pool_status(p).conditions, kind::PAUSED, "False", "AsExpected")
        })
        .await?;

    // Approve a version: one approval covers all steps of its rollout, even after a GitOps tool has removed the annotation.
    plugin.run_refused(&["approve", POOL], "nothing waits for an approval")?;
    world.apply(POOL, &spec_with(&hosts, fields(6))).await?;
    let waits = |p: &WindowsNodePool| has(&pool_status(p).conditions, kind::UPDATED, "False", "WaitingForApproval");
    world.until(POOL, "the pool waits for an approval", waits).await?;
    plugin.run_refused(&["approve", POOL, "--version", "1.0.0-other"], "waits for an approval, not 1.0.0-other")?;
    plugin.run_refused(&["approve", POOL], "confirm with --yes")?;
    plugin.run_ok(&["approve", POOL, "--yes"])?;
    world.until(POOL, "the approval is recorded", |p| !pool_status(p).acts.is_empty()).await?;
    world.edit_pool(POOL, json!({"metadata": {"annotations": {key::APPROVE: null}}})).await?;
    world.until(POOL, "all nodes follow the version", |p| is_ready(p) && pool_status(p).up_to_date_nodes == 3).await?;

    // Retry a failed host.
    plugin.run_refused(&["retry", "win-0"], "it has not failed")?;
    world.until_failed("gate-1", "Unreachable").await?;
    plugin.run_ok(&["retry", "gate-1"])?;
    let twice = |i: &api::WindowsInstance| status(i).failures.is_some_and(|failures| failures.count == 2);
    world.until_instance("gate-1", "the host was tried again", twice).await?;
    plugin.run_refused(&["abandon", "gate-1", "--yes"], "take it out of the list of yard first")?;

    // Pause and resume one host.
    let hold = async || {
        let instance = world.instance("win-0").await?;
        anyhow::Ok(instance.and_then(|instance| instance.annotations().get(key::HOLD).cloned()))
    };
    plugin.run_ok(&["pause", "--host", "win-0"])?;
    ensure!(hold().await?.as_deref() == Some("true"));
    plugin.run_ok(&["resume", "--host", "win-0"])?;
    ensure!(hold().await?.is_none());

    // kubectl completes the names of pools.
    let (code, out, error) = plugin.run(COMPLETION, &["pause", ""])?;
    ensure!(code == Some(0) && out == "factory\nyard\n:4\n", "{code:?} {out} {error}");

    // A list that becomes empty removes no host until a user confirms it.
    world.edit_pool(POOL, json!({"spec": {"inventory": {"hosts": []}}})).await?;
    let waits = |p: &WindowsNodePool| {
        pool_status(p).removals_to_confirm == 3 && pool_status(p).observed_generation == p.metadata.generation
    };
    world.until(POOL, "three removals wait", waits).await?;
    plugin.run_refused(&["approve", POOL, "--removals", "1", "--yes"], "the removal of 3 hosts waits, not of 1")?;
    plugin.run_refused(
        &["approve", POOL],
        "3 hosts will be drained and deconfigured, and their Nodes deleted: win-0, win-1, win-2",
    )?;
    plugin.run_ok(&["approve", POOL, "--removals", "3", "--yes"])?;
    for host in &hosts {
        world.until_gone(host).await?;
    }
    // A confirmation of removals is valid once.
    let is_used_up = |p: &WindowsNodePool| pool_status(p).acts.iter().all(|act| act.annotation != key::APPROVE_REMOVAL);
    world.until(POOL, "the confirmation is forgotten", is_used_up).await
}
