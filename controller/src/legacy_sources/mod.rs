//! Sources of hosts that users of the legacy operator have. Each is adapted into a pool, so that such a user changes nothing.
//!
//! * [`config_map`]: the ConfigMap `windows-instances`, and any other that a pool names.

mod adapter;
pub mod config_map;
mod config_maps;
mod entries;

use std::sync::Arc;

use api::WindowsNodePool;

use crate::{context::Context, watch::Changes};

/// Watches the sources and keeps their pools, until the process stops.
pub async fn run(cx: Arc<Context>, pools: Changes<WindowsNodePool>) {
    let stop = cx.stop.clone();
    stop.run_until_cancelled(config_maps::run(&cx, pools)).await;
}
