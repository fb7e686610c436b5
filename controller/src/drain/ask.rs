//! Part of a drain pass that evicts pods.

use std::collections::HashMap;
use std::time::Duration;

use api::OnTimeout;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tokio::time::timeout_at;

use super::error::DrainError;
use super::evict::{self, Target};
use super::pass::{Pass, SLOW_RETRY, key, order};
use wnp_core::drain::answer::{self, Answer, Refusal};
use wnp_core::drain::classify::{EvictionDecision, EvictionKey, eviction_key};

/// Grace period that the API server gives a pod that sets none.
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// Result of the attempt to evict or delete one pod.
enum Asked {
    /// The pod is terminating, or gone.
    Leaving,
    /// The pod cannot be evicted now.
    Refused { blocker: String, after: Option<Duration>, by: Refusal },
}

impl Pass<'_> {
    /// Evicts the pods of the lowest remaining order. Returns the wait until the next pass.
    pub(super) async fn ask_all(&mut self, verdicts: &[(Pod, EvictionDecision)]) -> Result<Duration, DrainError> {
        let current = verdicts.iter().filter_map(|(_, verdict)| order(verdict)).min();
        let mut candidates = Vec::new();
        let mut next = None;
        let mut come_back_in = |wait: Duration| next = Some(next.map_or(wait, |next: Duration| next.min(wait)));
        for (pod, verdict) in verdicts.iter().filter(|(_, verdict)| order(verdict) == current) {
            match verdict {
                EvictionDecision::Evict { .. } => match self.put_back(pod) {
                    Some(found) => {
                        self.blockers.push(found.why);
                        if found.wait.is_zero() {
                            candidates.push(pod);
                        } else {
                            come_back_in(found.wait.min(SLOW_RETRY));
                        }
                    }
                    None => candidates.push(pod),
                },
                EvictionDecision::Terminating { .. } => {
                    self.block_if_stuck(pod);
                    come_back_in(self.patience());
                }
                EvictionDecision::WaitCompleted { .. } => {
                    self.block(pod, "the drain waits for the pod to complete");
                    come_back_in(self.patience());
                }
                EvictionDecision::Skip(_) | EvictionDecision::Refuse(_) => {}
            }
        }

        // Pods with the same namespace, labels and state get the same answer from their budget. After one refusal by a budget, the others are not
        // tried.
        let mut refused: HashMap<EvictionKey, String> = HashMap::new();
        let mut at_least = Duration::ZERO;
        let mut first_error = None;
        for pod in self.after_last_time(candidates) {
            if let Some(blocker) = refused.get(&eviction_key(pod)) {
                self.block(pod, blocker);
                continue;
            }
            match timeout_at(self.clock.deadline, self.ask(pod)).await {
                Ok(Ok(Asked::Leaving)) => come_back_in(self.patience()),
                Ok(Ok(Asked::Refused { blocker, after, by })) => {
                    self.block(pod, &blocker);
                    let wait = after.unwrap_or_else(|| self.patience());
                    come_back_in(wait);
                    match by {
                        Refusal::Server => {}
                        Refusal::Budget => drop(refused.insert(eviction_key(pod), blocker)),
                        Refusal::Overload => {
                            self.go_on_after(pod);
                            at_least = wait;
                            break;
                        }
                    }
                }
                Ok(Err(error @ (DrainError::EvictionForbidden { .. } | DrainError::EvictionRejected { .. }))) => {
                    first_error.get_or_insert(error);
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    self.go_on_after(pod);
                    come_back_in(self.patience());
                    break;
                }
            }
        }
        match first_error {
            // Forced deletions must be reported. The error occurs again in the next pass.
            Some(error) if self.forced.is_empty() => Err(error),
            _ => Ok(self.clip(next.unwrap_or_else(|| self.patience()).max(at_least))),
        }
    }

    /// Evicts one pod. After the drain's timeout, deletes the pod despite a refusal by its budget if the pool sets `onTimeout: Force`.
    async fn ask(&mut self, pod: &Pod) -> Result<Asked, DrainError> {
        let target = Target::of(pod);
        let _in_flight = self.cx.limits.permit(&target.namespace).await;
        let answer = read(evict::evict(&self.cx.client, &target, self.grace()).await, "evict", &target)?;
        let may_force = self.overdue() && self.drain.options.on_timeout == OnTimeout::Force;
        match Self::settle(answer, &target)? {
            Asked::Refused { blocker, by: Refusal::Budget, .. } if may_force => self.force(pod, &target, blocker).await,
            asked => Ok(asked),
        }
    }

    /// Deletes a pod despite its budget, with the grace period of the drain, or else of the pod.
    async fn force(&mut self, pod: &Pod, target: &Target, blocker: String) -> Result<Asked, DrainError> {
        let own = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
        let own = u32::try_from(own.unwrap_or(DEFAULT_GRACE_SECONDS)).unwrap_or_default();
        let grace = self.grace().unwrap_or(own).max(1);
        // Logged before the request, because the answer may be lost.
        tracing::warn!(pod = %target, blocker, grace, "deleting the pod despite its disruption budget: the drain has exceeded its timeout");
        let answer = read(evict::delete(&self.cx.client, target, grace).await, "delete", target)?;
        if answer == Answer::Evicting {
            self.forced.push(format!("{target}: {blocker}"));
        }
        Self::settle(answer, target)
    }

    /// Translates an answer of the API server into the result for the pod.
    fn settle(answer: Answer, target: &Target) -> Result<Asked, DrainError> {
        match answer {
            Answer::Evicting | Answer::Gone | Answer::Terminating => Ok(Asked::Leaving),
            Answer::RetryAfter { after, blocker, by } => Ok(Asked::Refused { blocker, after, by }),
            Answer::NeedsUser { blocker } => {
                Ok(Asked::Refused { blocker, after: Some(SLOW_RETRY), by: Refusal::Budget })
            }
            Answer::Forbidden(message) => Err(DrainError::EvictionForbidden { pod: target.to_string(), message }),
            Answer::Error(message) => Err(DrainError::EvictionRejected { pod: target.to_string(), message }),
        }
    }

    /// Returns the candidates in order, starting after the pod at which the last pass stopped early, so that no pod is starved.
    fn after_last_time<'p>(&self, mut candidates: Vec<&'p Pod>) -> Vec<&'p Pod> {
        if let Some(last) = self.resume().remove(&self.drain.node.name_any()) {
            let start = candidates.partition_point(|pod| key(pod) <= last);
            candidates.rotate_left(start);
        }
        candidates
    }

    /// Stores the pod after which the next pass begins.
    fn go_on_after(&self, pod: &Pod) {
        self.resume().insert(self.drain.node.name_any(), key(pod));
    }
}

/// Reads the result of a request for a pod. A status from the API server is an answer, and any other failure is an error.
fn read(result: Result<(), kube::Error>, verb: &str, target: &Target) -> Result<Answer, DrainError> {
    match result {
        Ok(()) => Ok(Answer::Evicting),
        Err(kube::Error::Api(status)) => Ok(answer::read(&status)),
        Err(source) => Err(DrainError::Api { what: format!("{verb} pod {target}"), source: Box::new(source) }),
    }
}
