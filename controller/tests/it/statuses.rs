//! Invariants of every status that a pool or an instance has in any test.

use std::{
    collections::BTreeMap,
    io::Write as _,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use api::{
    Kstatus, Reason, WindowsInstance, WindowsNodePool,
    conditions::{find, is_true, kind},
};
use futures::StreamExt as _;
use kube::{
    Api, Client, Resource, ResourceExt,
    runtime::{WatchStreamExt as _, watcher},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use testbed::binaries::kstatus;
use tokio::{sync::watch, task::JoinHandle, time::timeout};

use crate::argocd;

/// Watcher of all pools and instances of a cluster. Its drop fails the test if a status was invalid.
pub(crate) struct Statuses {
    seen: Arc<Mutex<Vec<WindowsNodePool>>>,
    /// Instances, one for each combination of conditions: a test may have very many equal ones.
    instances: Arc<Mutex<BTreeMap<String, WindowsInstance>>>,
    /// Number of states of each pool that [`Statuses::kstatus_results`] has read.
    read: Mutex<BTreeMap<String, usize>>,
    /// Number of states that the objects of each name have had.
    states: watch::Sender<BTreeMap<String, usize>>,
    tasks: [JoinHandle<()>; 2],
}

impl Statuses {
    pub(crate) fn watch(client: &Client) -> Self {
        let seen = Arc::<Mutex<Vec<WindowsNodePool>>>::default();
        let instances = Arc::<Mutex<BTreeMap<String, WindowsInstance>>>::default();
        let (pools, one_of_each) = (seen.clone(), instances.clone());
        let states = watch::Sender::default();
        let tasks = [
            follow(client, &states, move |pool| pools.lock().unwrap().push(pool)),
            follow(client, &states, move |instance| {
                one_of_each.lock().unwrap().insert(status_key(&instance), instance);
            }),
        ];
        Self { seen, instances, read: Mutex::default(), states, tasks }
    }

    /// Calls `ask` now, and again whenever an object of this name has changed, until it returns true. `ask` is also called periodically, because its
    /// result may depend on more than the object.
    pub(crate) async fn poll_on_change<F: Future<Output = bool>>(&self, name: &str, ask: impl Fn() -> F) {
        const POLL_INTERVAL: Duration = Duration::from_millis(500);
        let mut states = self.states.subscribe();
        loop {
            let seen = states.borrow_and_update().get(name).copied();
            if ask().await {
                return;
            }
            let _ = timeout(POLL_INTERVAL, states.wait_for(|states| states.get(name).copied() != seen)).await;
        }
    }

    /// Returns the results of kstatus for a pool since the last call, without consecutive repetitions.
    pub(crate) fn kstatus_results(&self, name: &str) -> Result<Vec<String>> {
        let of_pool: Vec<_> = self.seen.lock().unwrap().iter().filter(|p| p.name_any() == name).cloned().collect();
        let read = self.read.lock().unwrap().insert(name.to_owned(), of_pool.len()).unwrap_or_default();
        let mut words = real_kstatus(&of_pool[read..])?;
        words.dedup();
        Ok(words)
    }

    /// Returns the problems of the statuses that were seen.
    fn problems(&self) -> Result<Vec<String>> {
        let seen = self.seen.lock().unwrap();
        let words = real_kstatus(&seen)?;
        let mut problems = Vec::new();
        for (pool, word) in seen.iter().zip(&words) {
            let status = pool.status.clone().unwrap_or_default();
            let ours = Kstatus::of(&pool.metadata, status.observed_generation, &status.conditions);
            let other =
                (format!("{ours:?}") != *word).then(|| format!("kstatus says {word}, and api::Kstatus {ours:?}"));
            if let Some(problem) = other.or_else(|| problem(pool)) {
                problems.push(format!("{}: {problem}: {:?}", pool.name_any(), pool.status));
            }
        }
        problems.extend(disagreements(&seen, &words)?);
        let instances: Vec<_> = self.instances.lock().unwrap().values().cloned().collect();
        problems.extend(disagreements(&instances, &real_kstatus(&instances)?)?);
        Ok(problems)
    }
}

impl Drop for Statuses {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        if !std::thread::panicking() {
            let wrong = self.problems().unwrap();
            assert!(wrong.is_empty(), "{} statuses were invalid, the first: {}", wrong.len(), wrong[0]);
        }
    }
}

/// Calls `take` with every object of a kind, now and after each change, and counts its states.
fn follow<K>(
    client: &Client,
    states: &watch::Sender<BTreeMap<String, usize>>,
    mut take: impl FnMut(K) + Send + 'static,
) -> JoinHandle<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let objects = Api::<K>::all(client.clone());
    let states = states.clone();
    tokio::spawn(async move {
        let mut objects =
            std::pin::pin!(watcher(objects, watcher::Config::default()).default_backoff().applied_objects());
        while let Some(object) = objects.next().await {
            // Some tests write objects that cannot be parsed.
            let Ok(mut object) = object else { continue };
            object.meta_mut().managed_fields = None;
            let name = object.name_any();
            take(object);
            states.send_modify(|states| *states.entry(name).or_default() += 1);
        }
    })
}

/// Returns the fields of an instance that kstatus and Argo CD read, as a key.
fn status_key(instance: &WindowsInstance) -> String {
    let status = instance.status.clone().unwrap_or_default();
    let conditions: Vec<_> = status.conditions.iter().map(|c| (&c.type_, &c.status, &c.reason)).collect();
    let is_old = status.observed_generation != instance.metadata.generation;
    format!("{is_old} {} {:?} {conditions:?}", instance.metadata.deletion_timestamp.is_some(), status.phase)
}

/// Describes the objects on which Argo CD and kstatus disagree. `words` are the results of kstatus.
fn disagreements<K: Serialize>(objects: &[K], words: &[String]) -> Result<Vec<String>> {
    let objects: Vec<Value> = objects.iter().map(|object| json!(object)).collect();
    let health = argocd::health(&objects)?;
    let said = objects.iter().zip(words).zip(&health);
    let problem = said.filter_map(|((object, word), health)| {
        let problem = argocd::disagreement(object, word, &health.status)?;
        Some(format!("{}: {problem}: {}", object["metadata"]["name"], object["status"]))
    });
    Ok(problem.collect())
}

/// Returns the results of the kstatus library, which Flux and others use, for objects.
fn real_kstatus<K: Serialize>(pools: &[K]) -> Result<Vec<String>> {
    let mut program = Command::new(kstatus()?).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = program.stdin.take().context("no input")?;
    let texts = pools.iter().map(serde_json::to_vec).collect::<Result<Vec<_>, _>>()?;
    // A thread writes, because the pipe of the answers may be full before the program has read everything.
    let writer = std::thread::spawn(move || texts.iter().try_for_each(|text| input.write_all(text)));
    let output = program.wait_with_output()?;
    writer.join().ok().context("the writer panicked")??;
    let words: Vec<String> = String::from_utf8(output.stdout)?.lines().map(Into::into).collect();
    ensure!(
        output.status.success() && words.len() == pools.len(),
        "kstatus failed: {} of {}",
        words.len(),
        pools.len()
    );
    Ok(words)
}

/// Returns the problem of a pool's status, if there is one.
fn problem(pool: &WindowsNodePool) -> Option<String> {
    let status = pool.status.as_ref()?;
    let conditions = &status.conditions;
    let ready = find(conditions, kind::READY)?;
    if is_true(conditions, kind::RECONCILING) && is_true(conditions, kind::STALLED) {
        return Some("Reconciling and Stalled at once".into());
    }
    if let Some(bare) = conditions.iter().find(|c| c.reason.is_empty() || c.message.len() > 4_000) {
        return Some(format!("{} has no reason, or a message longer than 4,000 bytes", bare.type_));
    }
    if status.observed_generation != pool.metadata.generation || pool.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let read = Kstatus::of(&pool.metadata, status.observed_generation, conditions);
    let done = ready.reason == Reason::Succeeded;
    let all = [status.ready_nodes, status.up_to_date_nodes].iter().all(|n| *n == status.hosts);
    let at_it = [status.joining_nodes, status.updating_nodes, status.removing_nodes, status.failed_nodes];
    match ready.status.as_str() {
        "True" if read != Kstatus::Current => Some(format!("Ready is True, but kstatus says {read:?}")),
        "True" if done && !all => Some("Succeeded before all nodes are Ready and follow their version".into()),
        "True" if done && at_it != [0; 4] => Some("Succeeded while a node joins, changes, leaves or has failed".into()),
        "Unknown" if read == Kstatus::Current => Some("Ready is Unknown, but kstatus says Current".into()),
        _ => None,
    }
}
