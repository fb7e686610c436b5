//! Messages for errors of the API server.

use std::process::ExitCode;

/// Maximum characters of a message, as much as a condition has room for.
const MOST: usize = 2000;

/// Returns the message of the API server, without the details of the client. It is part of messages, because the remedy depends on it: a missing
/// right looks the same as an outage otherwise.
pub(crate) fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if is_missing_right(status) && is_of_service_account(status) => {
            let message = api::text::line(&status.message, MOST);
            format!(
                "{message}. The operator lacks this right: install this release again with the tool that installed it"
            )
        }
        other => plain(other),
    }
}

/// Returns the message of the API server for the user of a command: a missing right is that of this user.
pub(crate) fn plain(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => api::text::line(&status.message, MOST),
        other => api::text::line(&other.to_string(), MOST),
    }
}

/// Returns the error with its causes, one a line. A cause that the text above has already is left out, and so is a backtrace, which is of no use to
/// the user of a command.
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

/// Returns the exit status of a program, after printing an error.
pub fn exit(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("Error: {}", in_lines(&error));
        ExitCode::FAILURE
    })
}

/// Reports whether the API server or an admission policy refuses the content of the request, which no repetition changes.
pub(crate) fn is_refused(status: &kube::core::Status) -> bool {
    status.is_invalid() || status.code == 400 || (status.is_forbidden() && !is_missing_right(status))
}

/// Reports whether RBAC refused: admission has messages of its own.
fn is_missing_right(status: &kube::core::Status) -> bool {
    status.is_forbidden() && status.message.contains("is forbidden: User ") && status.message.contains(" cannot ")
}

/// Reports whether the operator asked, and not the user of a command.
fn is_of_service_account(status: &kube::core::Status) -> bool {
    status.message.contains("is forbidden: User \"system:serviceaccount:")
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_cause_is_said_once_and_without_a_backtrace() {
        let error =
            anyhow::anyhow!("connection refused").context("cannot connect: connection refused").context("no pools");
        assert_eq!(in_lines(&error), "no pools\n  because cannot connect: connection refused");
    }

    #[test]
    fn a_missing_right_is_distinguished_from_other_refusals() {
        let said =
            |message: &str| said(&kube::Error::Api(Box::new(Status::failure(message, "Forbidden").with_code(403))));
        let rbac = |user: &str| {
            format!(
                "namespaces \"default\" is forbidden: User \"{user}\" cannot get resource \"namespaces\" in API group \"\""
            )
        };
        let (of_person, of_operator) = (rbac("jane"), rbac("system:serviceaccount:ns:windows-node-pools"));
        assert!(said(&of_operator).starts_with(&of_operator));
        assert!(said(&of_operator).ends_with("install this release again with the tool that installed it"));
        assert_eq!(said(&of_person), of_person, "who runs a command has no release to install");
        let policy = "nodes \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no";
        assert_eq!(said(policy), policy);
        let error = kube::Error::Api(Box::new(Status::failure(&of_operator, "Forbidden").with_code(403)));
        assert_eq!(plain(&error), of_operator);
    }
}
