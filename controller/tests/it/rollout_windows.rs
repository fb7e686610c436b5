//! Changes that wait for maintenance windows, and report for which.

use anyhow::{Context as _, Result, ensure};
use api::{GrantType, WindowsNodePoolSpec, conditions, conditions::kind};
use jiff::{SignedDuration, Timestamp, Unit};
use serde_json::{Value, json};
use testbed::sim::{SimHost, SimOptions};

use crate::{
    fleet::{World, has, pool_status, spec_with},
    rollout::until_updated,
};

/// Returns a pool of these hosts with this maximum number of pods, which changes only in this window.
fn pool(hosts: &[SimHost], pods: i32, window: &Value) -> WindowsNodePoolSpec {
    spec_with(
        hosts,
        json!({
            "template": {"spec": {"kubelet": {"maxPods": pods}}},
            "rollout": {"maintenanceWindows": [window]},
        }),
    )
}

/// Returns a window of an hour each day, from this minute on.
pub(crate) fn daily(opens: Timestamp) -> Value {
    json!({"schedule": opens.strftime("%M %H * * *").to_string(), "durationSeconds": 3600})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_waits_for_its_window() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let (shut, soon) = (world.hosts("shut", 1).await?, world.hosts("soon", 1).await?);
    let far = (Timestamp::now() + SignedDuration::from_hours(12)).round(Unit::Minute)?;
    let specs = [pool(&shut, 100, &daily(far)), pool(&soon, 100, &daily(far))];
    // A join waits for no window.
    tokio::try_join!(world.join("shut", &specs[0]), world.join("soon", &specs[1]))?;
    let before = [shut[0].stats(), soon[0].stats()];

    // A full minute that is in the future when the pools are reconciled.
    let opens = (Timestamp::now() + SignedDuration::from_secs(90)).round(Unit::Minute)?;
    world.apply("shut", &pool(&shut, 101, &daily(far))).await?;
    world.apply("soon", &pool(&soon, 101, &daily(opens))).await?;
    for (name, at) in [("soon", opens), ("shut", far)] {
        let at = format!("the next opens at {}", api::Time::from(at));
        world
            .until(name, "says which window it waits for", |p| {
                let status = pool_status(p);
                let ready = conditions::find(&status.conditions, kind::READY);
                status.observed_generation == p.metadata.generation
                    && ready.is_some_and(|c| c.reason == "WaitingForWindow" && c.message.contains(&at))
                    && has(&status.conditions, kind::UPDATED, "False", "WaitingForWindow")
            })
            .await?;
    }
    world.until_event("shut", "WaitingForWindow").await?;
    ensure!(Timestamp::now() < opens, "this machine is too slow for this test");
    ensure!([shut[0].stats(), soon[0].stats()] == before, "a host was touched before its window was open");

    // The window of one pool opens by itself.
    until_updated(&world, "soon").await?;
    ensure!(Timestamp::now() >= opens, "it was changed before {opens}");
    ensure!(shut[0].stats() == before[0], "a host was touched outside of its window");
    let instance = world.instance("shut-0").await?.context("no instance")?;
    let grant = instance.spec.grant.filter(|g| g.type_ != GrantType::Provision);
    ensure!(grant.is_none(), "{grant:?}");

    // A user opens the window of the other pool.
    let open = json!({"schedule": "0 * * * *", "durationSeconds": 3600});
    world.apply("shut", &pool(&shut, 101, &open)).await?;
    until_updated(&world, "shut").await
}
