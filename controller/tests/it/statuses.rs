//! What holds of every status that a pool has in any test, and for those who wait for it.

use std::sync::{Arc, Mutex};

use api::{
    Kstatus, WindowsNodePool,
    conditions::{find, is_true, kind, reason},
};
use futures::StreamExt as _;
use kube::{
    Api, Client, ResourceExt,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::task::JoinHandle;

/// Watches all pools of a cluster until it is dropped, which fails the test if a status was not as it must be.
pub(crate) struct Statuses {
    wrong: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Statuses {
    pub(crate) fn watch(client: &Client) -> Self {
        let wrong = Arc::<Mutex<Vec<String>>>::default();
        let (pools, into) = (Api::<WindowsNodePool>::all(client.clone()), wrong.clone());
        let task = tokio::spawn(async move {
            let mut pools =
                std::pin::pin!(watcher(pools, watcher::Config::default()).default_backoff().applied_objects());
            while let Some(pool) = pools.next().await {
                // Some tests write what cannot be read.
                let Ok(pool) = pool else { continue };
                if let Some(problem) = problem(&pool) {
                    into.lock().unwrap().push(format!("{}: {problem}: {:?}", pool.name_any(), pool.status));
                }
            }
        });
        Self { wrong, task }
    }
}

impl Drop for Statuses {
    fn drop(&mut self) {
        self.task.abort();
        let wrong = self.wrong.lock().unwrap();
        if !std::thread::panicking() {
            assert!(wrong.is_empty(), "{} statuses were not as they must be, the first: {}", wrong.len(), wrong[0]);
        }
    }
}

/// What is wrong with a status.
fn problem(pool: &WindowsNodePool) -> Option<String> {
    let status = pool.status.as_ref()?;
    let conditions = &status.conditions;
    let ready = find(conditions, kind::READY)?;
    if is_true(conditions, kind::RECONCILING) && is_true(conditions, kind::STALLED) {
        return Some("Reconciling and Stalled at once".into());
    }
    if let Some(bare) = conditions.iter().find(|c| c.reason.is_empty() || c.message.len() > 4_000) {
        return Some(format!("{} has no reason, or a message that is no message", bare.type_));
    }
    if status.observed_generation != pool.metadata.generation || pool.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let read = Kstatus::of(&pool.metadata, status.observed_generation, conditions);
    let done = ready.reason == reason::SUCCEEDED;
    let all = [status.ready_nodes, status.up_to_date_nodes].iter().all(|n| *n == status.hosts);
    let at_it = [status.joining_nodes, status.updating_nodes, status.removing_nodes, status.failed_nodes];
    match ready.status.as_str() {
        "True" if read != Kstatus::Current => Some(format!("Ready, and {read:?}")),
        "True" if done && !all => Some("done before all nodes are Ready and follow their version".into()),
        "True" if done && at_it != [0; 4] => Some("done while there is something to do".into()),
        "Unknown" if read == Kstatus::Current => Some("who waits for it reads that it is there".into()),
        _ => None,
    }
}
