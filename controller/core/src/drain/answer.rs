//! Meaning of the API server's response to an eviction.
//!
//! Source of the responses: `pkg/registry/core/pod/storage/eviction.go` of Kubernetes 1.36.

use std::time::Duration;

use kube::core::Status;

/// Retry interval for an error of a budget that only its controller or a user can correct.
const SLOW_RETRY: Duration = Duration::from_secs(20);
/// Maximum delay that a response may request: a wrong value must not stop a drain for an hour.
const LONGEST_RETRY: Duration = Duration::from_mins(1);
/// Maximum length of the API server's text, in characters: webhooks may return whole pages.
const LONGEST_TEXT: usize = 240;

/// Meaning of the response to one eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The eviction was accepted: the pod is being deleted. It still counts until it is deleted.
    Evicting,
    /// The pod was deleted, or another one has its name.
    Gone,
    /// The namespace is being deleted, and the pod with it: only wait.
    Terminating,
    /// The eviction is refused for now.
    RetryAfter {
        /// Delay before the next attempt: the one that the server requests, up to one minute, or 20 seconds for an error of the budget; `None` = at
        /// the next pass.
        after: Option<Duration>,
        /// Obstacle, without the pod's name: "budget cart needs 3 healthy pods and has 3".
        blocker: String,
        /// Origin of the refusal.
        by: Refusal,
    },
    /// Retries do not help: a user must act.
    NeedsUser {
        /// Obstacle and remedy, without the pod's name.
        blocker: String,
    },
    /// Permission to evict is missing.
    Forbidden(String),
    /// The API server rejected the eviction for another reason.
    Error(String),
}

/// Origin of the refusal of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A PodDisruptionBudget. `onTimeout: Force` may override only this refusal and [`Answer::NeedsUser`].
    Budget,
    /// Temporary failure of the API server, or a conflict with another write.
    Server,
    /// Overload of the API server (priority and fairness), which wants fewer requests of any kind.
    Overload,
}

/// Interprets the error status of an eviction. An accepted eviction has no such status: it is [`Answer::Evicting`].
pub fn read(status: &Status) -> Answer {
    let cause = |reason: &str| status.details.iter().flat_map(|d| &d.causes).find(|c| c.reason == reason);
    let retry_after = status
        .details
        .as_ref()
        .filter(|d| d.retry_after_seconds > 0)
        .map(|d| Duration::from_secs(d.retry_after_seconds.into()).min(LONGEST_RETRY));
    let retry = |after, blocker, by| Answer::RetryAfter { after, blocker, by };
    let message = text(&status.message);

    match status.code {
        404 => Answer::Gone,
        409 if status.message.contains("UID in") => Answer::Gone,
        429 => match cause("DisruptionBudget") {
            Some(cause) => retry(retry_after, budget(&cause.message), Refusal::Budget),
            None => retry(retry_after, "the API server is overloaded".into(), Refusal::Overload),
        },
        403 if cause("NamespaceTerminating").is_some() => Answer::Terminating,
        403 if status.message.contains("disruptions allowed is negative")
            || status.message.contains("DisruptedPods map too big") =>
        {
            retry(Some(retry_after.unwrap_or(SLOW_RETRY)), message, Refusal::Budget)
        }
        403 => Answer::Forbidden(message),
        500 if status.message.contains("more than one PodDisruptionBudget") => Answer::NeedsUser {
            blocker: "more than one PodDisruptionBudget selects the pod, which eviction does not support; \
                      change the selectors so that only one does"
                .into(),
        },
        // Any other conflict, for example because the pod changed meanwhile, and a failure of the server may be over by the next attempt.
        409 | 500..=599 => retry(retry_after, message, Refusal::Server),
        _ => Answer::Error(message),
    }
}

/// Shortens "The disruption budget cart needs 3 healthy pods and has 3 currently" to "budget cart needs 3 healthy pods and has 3".
fn budget(message: &str) -> String {
    let message = text(message);
    let short = message.strip_prefix("The disruption ").unwrap_or(&message);
    short.strip_suffix(" currently").unwrap_or(short).trim_end_matches('.').to_owned()
}

/// Fits the API server's text into a condition: one line, without control characters, of limited length.
fn text(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.is_empty() {
        return "the API server gives no reason".into();
    }
    api::text::line(&line, LONGEST_TEXT)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn status(code: u16, message: &str, details: Value) -> Status {
        serde_json::from_value(json!({ "status": "Failure", "code": code, "message": message, "details": details }))
            .unwrap()
    }

    fn retry(after: Option<u64>, blocker: &str, by: Refusal) -> Answer {
        Answer::RetryAfter { after: after.map(Duration::from_secs), blocker: blocker.into(), by }
    }

    #[test]
    fn each_response_to_an_eviction_has_its_meaning() {
        let budget_cause = |text: &str| json!([{ "reason": "DisruptionBudget", "message": text }]);
        let violates = "Cannot evict pod as it would violate the pod's disruption budget.";
        let used_up = budget_cause("The disruption budget cart needs 3 healthy pods and has 3 currently");
        let unseen = budget_cause("The disruption budget cart is still being processed by the server.");
        let terminating =
            json!([{ "reason": "NamespaceTerminating", "message": "namespace shop is being terminated" }]);
        let (negative, behind) =
            ("pdb disruptions allowed is negative", "DisruptedPods map too big - too many evictions not confirmed");
        let forbidden = "pods \"cart\" is forbidden: User \"op\" cannot create";
        let contended = "couldn't update PodDisruptionBudget \"cart\" due to conflicts";
        let two = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        let overloaded = "the API server is overloaded";
        let budget = |after, blocker: &str| retry(after, blocker, Refusal::Budget);
        let server = |after, blocker: &str| retry(after, blocker, Refusal::Server);
        let overload = |after| retry(after, overloaded, Refusal::Overload);
        let needs_user = Answer::NeedsUser {
            blocker: "more than one PodDisruptionBudget selects the pod, which eviction does not support; \
                      change the selectors so that only one does"
                .into(),
        };
        for (name, code, message, details, expected) in [
            (
                "budget used up",
                429,
                violates,
                Some(json!({ "causes": used_up })),
                budget(None, "budget cart needs 3 healthy pods and has 3"),
            ),
            (
                "budget not seen by its controller yet",
                429,
                violates,
                Some(json!({ "retryAfterSeconds": 10, "causes": unseen })),
                budget(Some(10), "budget cart is still being processed by the server"),
            ),
            (
                "a budget text of a later version is kept as it is",
                429,
                violates,
                Some(json!({ "causes": budget_cause("no disruption today") })),
                budget(None, "no disruption today"),
            ),
            (
                "priority and fairness",
                429,
                "try again later.",
                Some(json!({ "retryAfterSeconds": 1 })),
                overload(Some(1)),
            ),
            ("a wait of a day is cut", 429, "", Some(json!({ "retryAfterSeconds": 86_400 })), overload(Some(60))),
            ("pod is gone", 404, "pods \"cart\" not found", None, Answer::Gone),
            (
                "another pod of that name, pod ran",
                409,
                "the UID in the precondition (a) does not match the UID in record (b).",
                None,
                Answer::Gone,
            ),
            (
                "another pod of that name, pod was pending",
                409,
                "Precondition failed: UID in precondition: a, UID in object meta: b",
                None,
                Answer::Gone,
            ),
            ("pod changed meanwhile", 409, "it has been modified", None, server(None, "it has been modified")),
            (
                "namespace is being deleted",
                403,
                "unable to create new content",
                Some(json!({ "causes": terminating })),
                Answer::Terminating,
            ),
            ("budget status is negative", 403, negative, None, budget(Some(20), negative)),
            ("budget's controller is behind", 403, behind, None, budget(Some(20), behind)),
            ("no permission", 403, forbidden, None, Answer::Forbidden(forbidden.into())),
            ("two budgets", 500, two, None, needs_user),
            ("a webhook is down", 500, "failed calling webhook", None, server(None, "failed calling webhook")),
            ("budget contended", 504, contended, Some(json!({ "retryAfterSeconds": 10 })), server(Some(10), contended)),
            ("bad request", 400, "not an Eviction", None, Answer::Error("not an Eviction".into())),
        ] {
            assert_eq!(read(&status(code, message, details.into())), expected, "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_text_becomes_one_bounded_line(code in 300u16..600, message in any::<String>(), cause in any::<String>()) {
            let status = status(code, &message, json!({ "causes": [{ "reason": "DisruptionBudget", "message": cause }] }));
            let text = match read(&status) {
                Answer::RetryAfter { blocker, .. } | Answer::NeedsUser { blocker } => blocker,
                Answer::Forbidden(text) | Answer::Error(text) => text,
                Answer::Evicting | Answer::Gone | Answer::Terminating => return Ok(()),
            };
            prop_assert!(text.chars().count() <= LONGEST_TEXT);
            prop_assert!(!text.chars().any(char::is_control));
        }
    }
}
