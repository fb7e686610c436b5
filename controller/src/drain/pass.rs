//! One pass of a drain.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use api::OnTimeout;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, ListParams, ObjectMeta};
use tokio::time::Instant;

use super::clock::{Clock, list_all};
use super::error::DrainError;
use super::evict::Target;
use super::{Drain, Drainer, Progress, State, cordon, take_cordon, volumes};
use wnp_core::drain::classify::{EvictionDecision, Facts, Rules, Skip, Treatment, classify, daemon_set};
use wnp_core::drain::cordon::{Cordon, is_cordoned};
use wnp_core::drain::put_back::{PutBack, put_back};
use wnp_core::drain::{Options, elapsed};

/// Wait between passes during [`PATIENCE`]. Afterwards, [`SLOW_RETRY`] applies.
const RETRY: Duration = Duration::from_secs(5);
/// Wait between passes after [`PATIENCE`].
pub(super) const SLOW_RETRY: Duration = Duration::from_secs(20);
/// Time since the beginning of the drain after which passes become less frequent.
const PATIENCE: Duration = Duration::from_mins(5);
/// Time for which a scheduler that has not seen the cordon may still bind pods.
const CORDON_SETTLES: Duration = Duration::from_secs(5);
/// Grace period and wait while the kubelet does not report: nothing confirms then that a pod has stopped.
const UNREACHABLE: Duration = Duration::from_secs(1);
/// Time after the end of its grace period from which a terminating pod counts as stuck.
const STUCK_AFTER: SignedDuration = SignedDuration::from_secs(5);
/// Maximum number of blockers in a report.
const MAX_BLOCKERS: usize = 5;

/// Performs one round: ensures that the node is cordoned, lists all its pods, evicts those that may leave, and reports.
///
/// Takes at most 10 s of API time; the next call continues with the rest. An error loses nothing: call again.
pub(crate) async fn pass(cx: &Drainer, drain: &Drain<'_>) -> Result<Progress, DrainError> {
    let mut pass = Pass::new(cx, drain)?;
    // Boxed, because callers hold this future inside large ones.
    Box::pin(pass.run()).await
}

/// Returns the pods bound to a missing Node that a drain would evict or wait for. Changes nothing.
pub(crate) async fn left_behind(
    cx: &Drainer,
    name: &str,
    now: Timestamp,
    options: &Options,
) -> Result<Vec<String>, DrainError> {
    let node = Node { metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() }, ..Node::default() };
    let cordon = Cordon { operation_id: String::new(), pre_cordoned: false };
    let drain = Drain { node: &node, cordon: &cordon, may_cordon: true, started: now, now, cordoned_at: now, options };
    let pass = Pass::new(cx, &drain)?;
    let verdicts = Box::pin(async { pass.judge(pass.list_pods().await?).await }).await?;
    let stays = |verdict: &EvictionDecision| matches!(verdict, EvictionDecision::Skip(_));
    Ok(verdicts.iter().filter(|(_, verdict)| !stays(verdict)).map(|(pod, _)| key(pod)).collect())
}

/// State of one pass.
pub(super) struct Pass<'a> {
    pub(super) cx: &'a Drainer,
    pub(super) drain: &'a Drain<'a>,
    rules: Rules,
    pub(super) clock: Clock,
    /// Time since the drain began.
    waited: Duration,
    /// True if the kubelet does not report, so that the condition `Ready` of the Node is `Unknown`.
    unreachable: bool,
    recordoned: bool,
    pub(super) blockers: Vec<String>,
    warnings: Vec<String>,
    pub(super) forced: Vec<String>,
}

impl<'a> Pass<'a> {
    fn new(cx: &'a Drainer, drain: &'a Drain<'a>) -> Result<Self, DrainError> {
        Ok(Self {
            cx,
            drain,
            rules: Rules::compile(&drain.options.rules)?,
            clock: Clock { deadline: Instant::now() + cx.budget, limit: cx.budget },
            waited: elapsed(drain.started, drain.now),
            unreachable: false,
            recordoned: false,
            blockers: Vec::new(),
            warnings: Vec::new(),
            forced: Vec::new(),
        })
    }

    async fn run(&mut self) -> Result<Progress, DrainError> {
        let node = self.clock.bound("read the node", cordon::reread(&self.cx.client, self.drain.node)).await?;
        self.unreachable = is_unreachable(&node);
        self.ensure_cordoned(&node).await?;

        let pods = self.list_pods().await?;
        let mut verdicts = self.judge(pods).await?;
        let (overdue, on_timeout) = (self.overdue(), self.drain.options.on_timeout);
        if overdue && on_timeout == OnTimeout::Force {
            for (pod, verdict) in &mut verdicts {
                if matches!(verdict, EvictionDecision::Evict { .. })
                    && let Some(found) = self.put_back(pod)
                {
                    self.warnings.push(format!("{}: the pod stays: {}", Target::of(pod), found.why));
                    *verdict = EvictionDecision::Skip(Skip::Rule);
                }
                if let EvictionDecision::WaitCompleted { order } = *verdict {
                    *verdict = EvictionDecision::Evict {
                        order,
                        warnings: vec!["stopped before completion: the drain has exceeded its timeout"],
                    };
                }
            }
        }

        let remaining = verdicts.iter().filter(|(_, verdict)| !matches!(verdict, EvictionDecision::Skip(_))).count();
        self.warn(&verdicts);
        if remaining == 0 {
            return self.conclude(&node, verdicts).await;
        }
        if overdue && on_timeout == OnTimeout::Abort {
            for (pod, verdict) in &verdicts {
                match verdict {
                    EvictionDecision::Skip(_) => {}
                    EvictionDecision::Refuse(why) => self.block(pod, why),
                    _ => self.block(pod, "has not left in time"),
                }
            }
            return Ok(self.report(State::TimedOut, remaining, Duration::ZERO));
        }

        for (pod, verdict) in &verdicts {
            if let EvictionDecision::Refuse(why) = verdict {
                self.block(pod, why);
            }
        }
        if !self.blockers.is_empty() {
            return Ok(self.report(State::Refused, remaining, self.patience()));
        }

        let next = self.ask_all(&verdicts).await?;
        Ok(self.report(State::Waiting, remaining, next))
    }

    /// Cordons the node if another client has uncordoned it and the drain may do so.
    async fn ensure_cordoned(&mut self, node: &Node) -> Result<(), DrainError> {
        if is_cordoned(node) {
            return Ok(());
        }
        if !self.drain.may_cordon {
            return Err(DrainError::CordonConflict { node: node.name_any() });
        }
        let take = take_cordon(self.drain.cordon, &self.cx.client, node, |_| true);
        self.clock.bound("cordon the node", take).await?;
        self.recordoned = true;
        Ok(())
    }

    async fn list_pods(&self) -> Result<Vec<Pod>, DrainError> {
        let name = self.drain.node.name_any();
        let params = ListParams::default().fields(&format!("spec.nodeName={name}"));
        let api = Api::all(self.cx.client.clone());
        let mut pods: Vec<Pod> = list_all(&api, params, &self.clock, &format!("list the pods of node {name}")).await?;
        pods.sort_by_cached_key(key);
        Ok(pods)
    }

    /// Classifies every pod before any is evicted.
    async fn judge(&self, pods: Vec<Pod>) -> Result<Vec<(Pod, EvictionDecision)>, DrainError> {
        let client = &self.cx.client;
        let mut daemon_sets: HashMap<(String, String), bool> = HashMap::new();
        let mut namespaces: HashMap<String, BTreeMap<String, String>> = HashMap::new();
        let mut verdicts = Vec::with_capacity(pods.len());
        for pod in pods {
            let namespace = pod.namespace().unwrap_or_default();
            let mut facts = Facts {
                now: self.drain.now,
                daemon_set_exists: false,
                rule: Treatment::default(),
                skip_deleted_after: self.unreachable.then_some(UNREACHABLE),
            };
            if let Some(name) = daemon_set(&pod) {
                let id = (namespace.clone(), name.to_owned());
                facts.daemon_set_exists = if let Some(exists) = daemon_sets.get(&id) {
                    *exists
                } else {
                    let api: Api<DaemonSet> = Api::namespaced(client.clone(), &namespace);
                    let what = || format!("read daemon set {namespace}/{name}");
                    let found = self.clock.call(what, api.get_metadata_opt(name)).await?;
                    *daemon_sets.entry(id).or_insert(found.is_some())
                };
            }
            if self.rules.needs_namespace(&pod) && !namespaces.contains_key(&namespace) {
                let api: Api<Namespace> = Api::all(client.clone());
                let what = || format!("read namespace {namespace}");
                let found = self.clock.call(what, api.get_metadata_opt(&namespace)).await?;
                let labels = found.and_then(|found| found.metadata.labels).unwrap_or_default();
                namespaces.insert(namespace.clone(), labels);
            }
            facts.rule = self.rules.find(&pod, namespaces.get(&namespace).unwrap_or(&BTreeMap::new()));
            let verdict = classify(&pod, &facts, self.drain.options);
            verdicts.push((pod, verdict));
        }
        Ok(verdicts)
    }

    /// Decides whether the drain is complete when no pod has to leave: the scheduler must have seen the cordon, and volumes must be detached.
    async fn conclude(&mut self, node: &Node, verdicts: Vec<(Pod, EvictionDecision)>) -> Result<Progress, DrainError> {
        let settled = elapsed(self.drain.cordoned_at, self.drain.now);
        if self.recordoned || settled < CORDON_SETTLES {
            let left = if self.recordoned { CORDON_SETTLES } else { CORDON_SETTLES.saturating_sub(settled) };
            return Ok(self.report(State::Waiting, 0, left));
        }

        let staying: Vec<Pod> = verdicts.into_iter().map(|(pod, _)| pod).collect();
        let attached = volumes::attached(&self.cx.client, &self.clock, &node.name_any(), &staying).await?;
        match (attached.is_empty(), self.overdue(), self.drain.options.on_timeout) {
            (true, ..) => {}
            (false, true, OnTimeout::Force) => self.warnings.extend(attached),
            (false, overdue, on_timeout) => {
                self.blockers.extend(attached);
                return Ok(if overdue && on_timeout == OnTimeout::Abort {
                    self.report(State::TimedOut, 0, Duration::ZERO)
                } else {
                    self.report(State::Waiting, 0, self.clip(self.patience()))
                });
            }
        }

        let last_look = self.clock.bound("read the node", cordon::reread(&self.cx.client, node)).await?;
        self.ensure_cordoned(&last_look).await?;
        if self.recordoned {
            return Ok(self.report(State::Waiting, 0, CORDON_SETTLES));
        }
        Ok(self.report(State::Drained, 0, Duration::ZERO))
    }

    /// Returns the report of this pass.
    fn report(&mut self, state: State, remaining: usize, next: Duration) -> Progress {
        if matches!(state, State::Drained | State::TimedOut) {
            self.resume().remove(&self.drain.node.name_any());
        }
        self.blockers.sort();
        self.blockers.dedup();
        self.blockers.truncate(MAX_BLOCKERS);
        self.warnings.sort();
        Progress {
            state,
            remaining: i32::try_from(remaining).unwrap_or(i32::MAX),
            blockers: std::mem::take(&mut self.blockers),
            overdue: self.overdue(),
            next,
            forced: std::mem::take(&mut self.forced),
            warnings: std::mem::take(&mut self.warnings),
            recordoned: self.recordoned,
        }
    }

    /// Records a reason why the pod has not left.
    pub(super) fn block(&mut self, pod: &Pod, why: &str) {
        self.blockers.push(format!("{}: {why}", key(pod)));
    }

    /// Returns the cause if the pod was put back on the node after the cordon.
    pub(super) fn put_back(&self, pod: &Pod) -> Option<PutBack> {
        if self.recordoned { None } else { put_back(pod, self.drain.cordoned_at, self.drain.now) }
    }

    /// Records a terminating pod whose grace period has ended as an obstacle.
    pub(super) fn block_if_stuck(&mut self, pod: &Pod) {
        // The kubelet takes a moment to report that containers have stopped.
        let late = |time: &Timestamp| self.drain.now.duration_since(*time) > STUCK_AFTER;
        if let Some(deletion) = pod.metadata.deletion_timestamp.as_ref().filter(|time| late(&time.0)) {
            self.block(
                pod,
                &format!(
                    "is still terminating, though its grace period ended at {}; see C:\\var\\log\\kubelet on the host",
                    deletion.0
                ),
            );
        }
    }

    fn warn(&mut self, verdicts: &[(Pod, EvictionDecision)]) {
        for (pod, verdict) in verdicts {
            let target = Target::of(pod);
            match verdict {
                EvictionDecision::Evict { warnings, .. } => {
                    self.warnings.extend(warnings.iter().map(|warning| format!("{target}: {warning}")));
                }
                EvictionDecision::Skip(Skip::DeletedLongAgo) => {
                    self.warnings.push(format!(
                        "{target}: kubelet does not report, so nothing confirms that the pod has stopped; the drain no longer waits for it, and its containers may \
                         still run on the host"
                    ));
                }
                _ => {}
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        self.drain.options.timeout.filter(|timeout| !timeout.is_zero())
    }

    /// Reports whether the drain has exceeded its timeout.
    pub(super) fn overdue(&self) -> bool {
        self.timeout().is_some_and(|timeout| self.waited >= timeout)
    }

    /// Returns the wait until the next pass.
    pub(super) fn patience(&self) -> Duration {
        if self.waited < PATIENCE { RETRY } else { SLOW_RETRY }
    }

    /// Limits a wait to the rest of the drain's timeout, because the pass after the timeout may force or abort the drain.
    pub(super) fn clip(&self, wait: Duration) -> Duration {
        match self.timeout() {
            Some(timeout) if !self.overdue() => {
                wait.min(timeout.saturating_sub(self.waited).max(Duration::from_secs(1)))
            }
            _ => wait,
        }
    }

    /// Returns the grace period of evictions, in seconds. `None` for the grace period of each pod.
    pub(super) fn grace(&self) -> Option<u32> {
        if self.unreachable {
            return u32::try_from(UNREACHABLE.as_secs()).ok();
        }
        let seconds = self.drain.options.grace_period_seconds.filter(|seconds| *seconds >= 0)?;
        Some(u32::try_from(seconds).unwrap_or(u32::MAX).max(1))
    }

    /// Locks the record of the pod at which the last pass of each node stopped early.
    pub(super) fn resume(&self) -> parking_lot::MutexGuard<'_, HashMap<String, String>> {
        self.cx.resume.lock()
    }
}

pub(super) fn key(pod: &Pod) -> String {
    Target::of(pod).to_string()
}

/// Returns the order in which the pod leaves. `None` if the drain neither evicts the pod nor waits for it.
pub(super) fn order(verdict: &EvictionDecision) -> Option<i32> {
    match verdict {
        EvictionDecision::Evict { order, .. }
        | EvictionDecision::Terminating { order }
        | EvictionDecision::WaitCompleted { order } => Some(*order),
        EvictionDecision::Skip(_) | EvictionDecision::Refuse(_) => None,
    }
}

fn is_unreachable(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "Unknown")
}
