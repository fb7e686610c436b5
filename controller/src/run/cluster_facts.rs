//! Reads the facts of the cluster repeatedly, so that a changed proxy or CA reaches hosts without a restart of the operator.
//!
//! The objects are read at an interval, and most of them by name. A watch of each would need the permission to list, for changes that are rare.

use std::sync::Arc;

use crate::{
    cluster::{ClusterError, discover, kept},
    context::Context,
};

/// Number of consecutive failed reads that are tolerated before pools report the failure, because API servers restart.
const TOLERATED: u32 = 1;

/// Reads the facts at each interval until the operator stops, stores them, and wakes all pools when the facts or their fault have changed.
pub(crate) async fn follow(cx: Arc<Context>) {
    let (stop, interval) = (&cx.process.stop, cx.process.args.cluster_facts_interval);
    let (mut failed, mut stored) = (0, String::new());
    keep(&cx, &mut stored).await;
    while stop.run_until_cancelled(tokio::time::sleep(interval)).await.is_some() {
        let found = discover(&cx.cluster.client, &cx.cluster.config, &cx.process.args).await;
        if let Err(ClusterError::Api { .. } | ClusterError::NoAnswer { .. }) = &found {
            failed += 1;
            if failed <= TOLERATED {
                continue;
            }
        } else {
            failed = 0;
        }
        if cx.hosts.release.follow(found) {
            cx.wake_all_pools();
        }
        keep(&cx, &mut stored).await;
    }
}

/// Stores the current facts for the next operator.
async fn keep(cx: &Context, stored: &mut String) {
    kept::store(&cx.cluster.client, &cx.process.args.namespace, &cx.hosts.release.get().cluster, stored).await;
}
