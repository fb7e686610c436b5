//! Forty hosts, four of them broken: the others are not affected, the four report their faults, and recover by themselves once the faults are gone.

use anyhow::{Context as _, Result, ensure};
use api::conditions::kind;
use serde_json::json;
use testbed::sim::{Fault, HostOptions, SimOptions};

use crate::fleet::{World, has, pool_status, spec_with, status};

const HOSTS: usize = 40;
/// Number of hosts that are not broken.
const SOUND: i32 = 36;

/// Broken hosts: the host, the fault, the reported reason, and parts of the expected message.
const BROKEN: [(&str, Fault, &str, &[&str]); 4] = [
    ("win-7", Fault::Refuse, "Unreachable", &["refuses connections", "check that the OpenSSH server runs"]),
    ("win-23", Fault::Hang, "Unreachable", &["did not answer within 15 s", "check the load of the host"]),
    ("win-31", Fault::ChangedHostKey, "HostKeyMismatch", &["host key", "does not match", "trust-host-key", "SHA256:"]),
    ("win-39", Fault::DiskFull, "DiskFull", &["disk is full", "free some space"]),
];

#[tokio::test(flavor = "multi_thread")]
async fn four_of_a_fleet_are_broken_and_mended() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let mut hosts = Vec::new();
    for n in 0..HOSTS {
        let name = format!("win-{n}");
        let fault = BROKEN.iter().find(|b| b.0 == name).map(|b| match &b.1 {
            // The host first shows its true key and fails afterwards, so that the operator pins the key.
            Fault::ChangedHostKey => Fault::ProgramsFail(3),
            fault => fault.clone(),
        });
        hosts.push(
            world.sim.host(HostOptions { faults: fault.into_iter().collect(), ..HostOptions::named(name) }).await?,
        );
    }
    let host = |name: &str| hosts.iter().find(|h| h.name() == name).context("no such host");
    let fields = json!({"provisioning": {"maxConcurrent": 25}});
    world.apply("factory", &spec_with(&hosts, fields)).await?;

    world.until_instance("win-31", "its key is pinned", |i| status(i).host_key.is_some()).await?;
    host("win-31")?.fault(Fault::ChangedHostKey);
    world.until("factory", "the others are Ready", |p| pool_status(p).ready_nodes == SOUND).await?;

    for (name, _, reason, says) in BROKEN {
        let message = world.until_failed(name, reason).await?;
        for text in says.iter().chain(&["next try"]) {
            ensure!(message.contains(text), "{name} does not say {text:?}: {message}");
        }
        let failed = world.instance(name).await?.context("no instance")?;
        let failures = status(&failed).failures.context("no failures")?;
        let next = failures.next_retry_time.is_none_or(|at| at.known().is_some());
        ensure!(next, "the time of the next attempt is invalid");
        ensure!(failures.count >= 1 && failures.last_reason == reason, "{failures:?}");
    }
    let mut broken: Vec<&str> = BROKEN.iter().map(|b| b.0).collect();
    broken.sort_unstable();
    world
        .until("factory", "the pool reports all four", |p| {
            let s = pool_status(p);
            s.failed_nodes == 4
                && s.failed_node_names == broken
                && s.hosts == SOUND + 4
                && has(&s.conditions, kind::DEGRADED, "True", "NodesFailed")
                && has(&s.conditions, kind::READY, "False", "NodesFailed")
                && has(&s.conditions, kind::STALLED, "True", "NodesFailed")
        })
        .await?;

    for (name, ..) in BROKEN {
        host(name)?.mend();
    }
    world
        .until("factory", "all are Ready", |p| pool_status(p).ready_nodes == SOUND + 4 && crate::fleet::is_ready(p))
        .await?;
    world
        .until("factory", "nothing is wrong any more", |p| {
            let s = pool_status(p);
            s.failed_nodes == 0
                && s.failed_node_names.is_empty()
                && has(&s.conditions, kind::DEGRADED, "False", "AsExpected")
        })
        .await?;
    for host in hosts.iter().filter(|h| !broken.contains(&h.name())) {
        let stats = host.stats();
        ensure!(stats.connections == 1 && stats.processes <= 4, "{}: {stats:?}", host.name());
        ensure!(host.boots() == 1, "{} was restarted", host.name());
    }
    a_pool_that_changes_all_the_time_is_reconciled(&world).await
}

/// Checks that a host joins although one node of its pool changes all the time, as in a large pool.
async fn a_pool_that_changes_all_the_time_is_reconciled(world: &World) -> Result<()> {
    let hosts = world.hosts("restless", 2).await?;
    world.join("restless", &spec_with(&hosts[..1], json!({}))).await?;
    let both = spec_with(&hosts, json!({}));
    let changes = async {
        for n in 0_u64.. {
            world.edit_node(hosts[0].name(), json!({"metadata": {"annotations": {"tests/n": n.to_string()}}})).await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        joined = world.join("restless", &both) => joined,
        failed = changes => failed,
    }
}
