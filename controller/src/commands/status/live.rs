//! Watch of pools and hosts, for commands that show them continuously.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use api::{WindowsInstance, WindowsNodePool, text::line};
use futures::{FutureExt as _, StreamExt as _, future, stream};
use jiff::{SignedDuration, Timestamp};
use kube::{
    Api, Client,
    runtime::{reflector, reflector::Store, watcher},
};
use tokio::time::{sleep, timeout};

use super::{ClusterState, Operator, operator_now, summarize};
use crate::{args::Status, caches::watch::restarting};

/// Time for which changes are collected before they are shown together.
const COLLECT: Duration = Duration::from_millis(250);
/// Maximum time between two refreshes. The watches do not show that the operator has ended, because pools and hosts do not change then.
const REFRESH: Duration = Duration::from_secs(10);

/// Watches of pools and instances.
pub(in crate::commands) struct Live {
    client: Client,
    pools: Store<WindowsNodePool>,
    instances: Store<WindowsInstance>,
    /// Results of the two watches, each with the number of its watch.
    results: stream::BoxStream<'static, (usize, watcher::Result<()>)>,
    /// Fault of each watch, by its number.
    faults: [Option<watcher::Error>; 2],
    /// Last result of [`operator_now`], and the time of the query.
    asked: Option<(Instant, Operator, Timestamp)>,
}

impl Live {
    /// Starts the watches. The client must have no timeout, because a watch receives nothing as long as nothing changes.
    pub(in crate::commands) fn of(client: &Client) -> Self {
        let (pools, pool_writer) = reflector::store::<WindowsNodePool>();
        let (instances, instance_writer) = reflector::store::<WindowsInstance>();
        let of = watcher::Config::default;
        let pool_events = reflector(pool_writer, restarting(watcher(Api::all(client.clone()), of())));
        let instance_events = reflector(instance_writer, restarting(watcher(Api::all(client.clone()), of())));
        let results = stream::select(
            pool_events.map(|event| (0, event.map(drop))),
            instance_events.map(|event| (1, event.map(drop))),
        );
        let (client, results) = (client.clone(), results.boxed());
        Self { client, pools, instances, results, faults: [None, None], asked: None }
    }

    /// Waits for changes, or for the next refresh, and returns the new snapshot, with warnings if it may be outdated.
    ///
    /// # Errors
    /// Fails when the watches of pools and hosts cannot be started.
    pub(in crate::commands) async fn next(&mut self, args: &Status) -> anyhow::Result<(ClusterState, Vec<String>)> {
        loop {
            self.collect().await;
            let are_ready = future::try_join(self.pools.wait_until_ready(), self.instances.wait_until_ready());
            if are_ready.now_or_never().is_some() {
                break;
            }
            if let Some(error) = self.faults.iter_mut().find_map(Option::take) {
                return Err(error).context("failed to watch the WindowsNodePools and WindowsInstances");
            }
        }
        let (mut pools, instances) = (self.pools.state(), self.instances.state());
        pools.retain(|pool| args.selects(pool));
        let (operator, now) = self.operator(args).await?;
        let old =
            |error: &watcher::Error| format!("what follows may be out of date: {}", line(&error.to_string(), 400));
        let warnings = self.faults.iter().flatten().map(old).collect();
        Ok((ClusterState { pools: summarize(&pools, &instances, now), operator, now }, warnings))
    }

    /// Waits for a result of a watch, and for those that follow shortly after. Returns without one when a refresh is due.
    async fn collect(&mut self) {
        let mut next = timeout(REFRESH, self.results.next()).await.ok().flatten();
        let mut collected = pin!(sleep(COLLECT));
        while let Some((watch, result)) = next {
            // Only a result of the same watch clears its fault.
            self.faults[watch] = result.err();
            next = match future::select(self.results.next(), &mut collected).await {
                future::Either::Left((next, _)) => next,
                future::Either::Right(_) => None,
            };
        }
    }

    /// Returns the state of the operator and the time. They need extra requests, which are not repeated for each change of a large fleet.
    async fn operator(&mut self, args: &Status) -> anyhow::Result<(Operator, Timestamp)> {
        let asked = self.asked.take().filter(|(at, ..)| at.elapsed() < REFRESH);
        let (at, operator, then) = if let Some(asked) = asked {
            asked
        } else {
            // The client has no timeout, and output that is no longer updated must say so.
            let silent = || {
                let what = "Whether an operator works is not known, and what follows may be out of date: the API server does not answer.";
                (Operator::Unknown(what.to_owned()), Timestamp::now())
            };
            let found = timeout(REFRESH, operator_now(args, &self.client)).await;
            let (operator, now) = found.unwrap_or_else(|_| silent());
            (Instant::now(), operator, now)
        };
        self.asked = Some((at, operator.clone(), then));
        Ok((operator, then.checked_add(SignedDuration::try_from(at.elapsed())?)?))
    }
}
