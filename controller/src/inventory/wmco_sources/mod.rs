//! Sources of hosts that the Windows Machine Config Operator (WMCO) also uses. The operator creates a pool for the ConfigMap `windows-instances` and
//! for each MachineSet with Windows Machines, so that users of WMCO need not change anything.
//!
//! * [`config_map`]: the ConfigMap `windows-instances`, and any other ConfigMap that a pool names.
//! * [`machines`]: the Machines of OpenShift and of Cluster API.
//! * [`user_data`]: not a source, but the script that new Machines run at their first start.

mod adapter;
pub(crate) mod config_map;
mod config_maps;
pub(crate) mod machines;
pub(crate) mod user_data;

use std::sync::Arc;

use api::WindowsNodePool;
use futures::StreamExt;

use crate::{caches::watch::Changes, context::Context};

/// Watches the sources, and creates and deletes their pools, until the process stops.
pub(crate) async fn run(cx: Arc<Context>, pools: Changes<WindowsNodePool>) {
    let context = cx.clone();
    let pools = pools.inspect(move |_| context.caches.machines.notify_change()).boxed();
    let all = async { tokio::join!(config_maps::run(&cx, pools), machines::run(&cx)) };
    Box::pin(cx.process.stop.run_until_cancelled(all)).await;
}
