//! Errors of the API server, with messages and classification, and the error output of commands.

use std::process::ExitCode;

/// Maximum number of characters of a message, which must fit into a condition.
const MAX_MESSAGE_CHARS: usize = 2000;

/// Returns the API server's message, without details of the client. If the operator lacks a right, the message also names the remedy, because the
/// error would otherwise look like an outage.
pub(crate) fn api_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if is_missing_right(status) && is_of_service_account(status) => {
            let message = api::text::line(&status.message, MAX_MESSAGE_CHARS);
            format!(
                "{message}. The operator lacks this right: install this release again with the tool that installed it"
            )
        }
        other => plain(other),
    }
}

/// Returns the API server's message for the user of a command. It names no remedy for a missing right, because the right may be the user's.
pub(crate) fn plain(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => api::text::line(&status.message, MAX_MESSAGE_CHARS),
        other => api::text::line(&other.to_string(), MAX_MESSAGE_CHARS),
    }
}

/// Returns the error with its causes, one per line. A cause that is already in the text above is left out. The backtrace is also left out, because it
/// does not help the user of a command.
pub(crate) fn in_lines(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str("\n  because ");
            text.push_str(&cause);
        }
    }
    text
}

/// Returns the exit status of the program. Prints the error, if there is one.
pub fn exit(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("Error: {}", in_lines(&error));
        ExitCode::FAILURE
    })
}

/// Returns the result of a write, or `None` if its object was changed or deleted concurrently.
pub(crate) fn unless_changed<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Ok(written) => Ok(Some(written)),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reports whether the API server or an admission policy refuses the content of a request, so that a retry cannot succeed.
pub(crate) fn is_refused(status: &kube::core::Status) -> bool {
    status.is_invalid() || status.code == 400 || (status.is_forbidden() && !is_missing_right(status))
}

/// Reports whether RBAC refused the request. Admission policies and webhooks refuse requests with other messages.
pub(crate) fn is_missing_right(status: &kube::core::Status) -> bool {
    status.is_forbidden() && status.message.contains("is forbidden: User ") && status.message.contains(" cannot ")
}

/// Reports whether a ServiceAccount sent the request, not the user of a command.
fn is_of_service_account(status: &kube::core::Status) -> bool {
    status.message.contains("is forbidden: User \"system:serviceaccount:")
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_cause_is_printed_once_and_without_a_backtrace() {
        let error =
            anyhow::anyhow!("connection refused").context("cannot connect: connection refused").context("no pools");
        assert_eq!(in_lines(&error), "no pools\n  because cannot connect: connection refused");
    }

    #[test]
    fn a_missing_right_is_distinguished_from_other_refusals() {
        let error_message = |message: &str| {
            api_message(&kube::Error::Api(Box::new(Status::failure(message, "Forbidden").with_code(403))))
        };
        let rbac = |user: &str| {
            format!(
                "namespaces \"default\" is forbidden: User \"{user}\" cannot get resource \"namespaces\" in API group \"\""
            )
        };
        let (of_person, of_operator) = (rbac("jane"), rbac("system:serviceaccount:ns:windows-node-pools"));
        assert!(error_message(&of_operator).starts_with(&of_operator));
        assert!(error_message(&of_operator).ends_with("install this release again with the tool that installed it"));
        assert_eq!(error_message(&of_person), of_person, "the user of a command has no release to install");
        let policy = "nodes \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no";
        assert_eq!(error_message(policy), policy);
        let error = kube::Error::Api(Box::new(Status::failure(&of_operator, "Forbidden").with_code(403)));
        assert_eq!(plain(&error), of_operator);
    }
}
