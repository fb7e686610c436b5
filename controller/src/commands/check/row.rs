//! Findings of checks: faults and their remedies.

use std::path::Path;

use api::Reason;
use serde_json::{Value, json};

use crate::cluster::release::ReleaseError;

/// Answer of the API server, or a finding that it cannot be read.
pub(super) type Read<T> = Result<T, Finding>;

/// Waits for an answer of the API server. `what` names its subject in the finding.
pub(super) async fn read<T>(what: &str, answer: impl Future<Output = kube::Result<T>>) -> Read<T> {
    answer.await.map_err(|error| Finding::unreadable(what, &crate::runtime::errors::api_message(&error)))
}

/// Fault and its remedy.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    /// True if the finding does not affect the exit status.
    is_warning: bool,
    pub(super) reason: Reason,
    message: String,
    /// Remedy; `None` if the message contains it.
    remedy: Option<String>,
}

impl Finding {
    /// Returns a finding that makes the command fail.
    pub(super) fn failed(reason: Reason, message: impl ToString) -> Self {
        Self { is_warning: false, reason, message: message.to_string(), remedy: None }
    }

    /// Returns a warning: the operator works despite the fault, or the fault is not certain.
    pub(super) fn warning(reason: Reason, message: impl ToString) -> Self {
        Self { is_warning: true, ..Self::failed(reason, message) }
    }

    pub(super) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    /// Returns a warning that something cannot be read.
    pub(super) fn unreadable(what: &str, error: &str) -> Self {
        Self::warning(Reason::ApiError, format!("{what} cannot be read: {error}"))
            .remedy("run the command again, with rights of cluster-admin if you lack a right")
    }

    /// Returns a finding about a release that cannot be built. If there is no payload where the command runs, it is a warning.
    pub(super) fn of_release(error: &ReleaseError, payload: &Path) -> Self {
        if !matches!(error, ReleaseError::Payload(_)) || payload.exists() {
            return Self::failed(error.reason(), error);
        }
        let message = format!("there is no payload in {}, so what hosts get is unknown", payload.display());
        Self::warning(Reason::PayloadInvalid, message)
            .remedy("run the command in the operator's image, or name a payload with --payload")
    }
}

/// Result of a check. A check without findings and without a note has no row, because it does not apply.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    findings: Vec<Finding>,
    note: Option<String>,
}

impl Outcome {
    /// Returns the result with these findings. The note is shown if there are none.
    pub(super) fn of(findings: impl IntoIterator<Item = Finding>, note: impl Into<String>) -> Self {
        Self { findings: findings.into_iter().collect(), note: Some(note.into()) }
    }

    /// Returns the result of judging the answer, or the finding that it cannot be read.
    pub(super) fn judged<T>(read: &Read<T>, judge: impl FnOnce(&T) -> Self) -> Self {
        match read {
            Ok(answer) => judge(answer),
            Err(finding) => Self { findings: vec![finding.clone()], note: None },
        }
    }

    /// Reports whether the check applies, and has a row.
    pub(super) fn is_asked(&self) -> bool {
        self.note.is_some() || !self.findings.is_empty()
    }

    /// Reports whether the command can succeed with this result.
    pub(super) fn is_fit(&self) -> bool {
        self.findings.iter().all(|finding| finding.is_warning)
    }

    /// Returns the row in JSON: the reason of the worst finding, and the messages and remedies of all.
    pub(super) fn object(&self, check: &str, link: &str) -> Value {
        let Some(worst) = self.findings.iter().min_by_key(|finding| finding.is_warning) else {
            return json!({"check": check, "result": "passed", "message": self.note, "link": link});
        };
        let result = if worst.is_warning { "warning" } else { "failed" };
        let messages: Vec<&str> = self.findings.iter().map(|finding| finding.message.as_str()).collect();
        let mut remedies: Vec<&str> = self.findings.iter().filter_map(|finding| finding.remedy.as_deref()).collect();
        remedies.dedup();
        let mut object = json!({"check": check, "result": result, "reason": worst.reason, "message": messages.join("; "), "link": link});
        if !remedies.is_empty() {
            object["remedy"] = remedies.join("; ").into();
        }
        object
    }
}
