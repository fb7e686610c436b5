//! Pools that are paused until a time, and continue by themselves, in mode Plan, too.

use anyhow::{Result, ensure};
use api::{Mode, Time, WindowsNodePoolSpec, conditions, conditions::kind};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use testbed::sim::{SimHost, SimOptions};

use crate::fleet::{World, has, pool_status, ready_condition, spec_with};

const POOL: &str = "quiet";
const PLANNED: &str = "planned";

fn pool(hosts: &[SimHost], until: Time) -> WindowsNodePoolSpec {
    spec_with(hosts, json!({"rollout": {"pausedUntil": until}}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_with_an_end_ends_by_itself() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let (hosts, planned) = (world.hosts("win", 1).await?, world.hosts("plan", 1).await?);
    let untouched = hosts[0].stats();

    let far = Time::from(Timestamp::now() + SignedDuration::from_hours(12));
    world.apply(POOL, &pool(&hosts, far)).await?;
    let words = format!("paused until {far}");
    world
        .until(POOL, "it names the end of the pause", |p| {
            let conditions = pool_status(p).conditions;
            has(&conditions, kind::PAUSED, "True", "Paused")
                && has(&conditions, kind::READY, "Unknown", "Paused")
                && conditions::find(&conditions, kind::READY).is_some_and(|c| c.message.contains(&words))
        })
        .await?;
    world
        .until_instance("win-0", "it waits for the end of the pause", |i| {
            ready_condition(i).is_ok_and(|c| c.reason == "Waiting" && c.message.contains(&words))
        })
        .await?;
    ensure!(hosts[0].stats() == untouched, "a host of a paused pool was touched: {:?}", hosts[0].stats());

    // After this, only time passes. In mode Plan, the pool reports the end of its pause, and begins nothing.
    let soon = Time::from(Timestamp::now() + SignedDuration::from_secs(8));
    world.apply(PLANNED, &WindowsNodePoolSpec { mode: Some(Mode::Plan), ..pool(&planned, soon) }).await?;
    world.apply(POOL, &pool(&hosts, soon)).await?;
    for name in [PLANNED, POOL] {
        world
            .until(name, "the pause is over", |p| has(&pool_status(p).conditions, kind::PAUSED, "False", "AsExpected"))
            .await?;
        ensure!(Time::now() >= soon, "the pause of {name} was over before {soon}");
    }
    world.until_joined("win-0").await?;
    ensure!(world.instance("plan-0").await?.is_none(), "a pool in mode Plan has an instance");
    Ok(())
}
