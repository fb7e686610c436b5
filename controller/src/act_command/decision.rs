//! What a command decides about an object.

use serde_json::Value;

/// A change, and what is said about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Change {
    /// Merge patch; `None` if nothing is to be changed.
    pub patch: Option<Value>,
    /// What was, and what is now, in a sentence that follows the kind and the name of the object.
    pub message: String,
    /// What could undo it, and what to know beside it.
    pub warnings: Vec<String>,
    /// What will happen that cannot be undone. A person has to confirm it.
    pub danger: Option<String>,
}

impl Change {
    pub(super) fn new(patch: Value, message: impl Into<String>) -> Self {
        Self { patch: Some(patch), message: message.into(), ..Self::default() }
    }

    /// Everything is as it is to be.
    pub(super) fn none(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }
}

/// Why the object is not changed, and what to do. Follows the kind and the name of the object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refusal(String);

impl Refusal {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// A decision.
pub(super) type Decided = Result<Change, Refusal>;
