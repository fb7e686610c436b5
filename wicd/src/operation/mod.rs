//! Operations that the operator requests over SSH. See [`api::host`] for the protocol.
//!
//! All verbs are idempotent: they can be repeated after success or a crash, and lead to the same state.

mod apply;
mod cleanup;
mod fence;
mod pending;
mod pull;
mod recipient;
mod stage;
mod start;
mod state;
mod support;

use api::Reason;
use std::collections::BTreeMap;
use std::time::Duration;

use api::host::{Answer, Body, CertificateKind, HostState, Outcome, PROTOCOL, Request, Verb, path};

use crate::credential_plugin;
use crate::files::{self, Access};
use crate::host::{Host, HostError, chain};
use crate::lock::{self, Lock};
use crate::ownership::Ownership;
use crate::secure;

pub use apply::{untrusted, wanted_variables};
pub use pending::{pending_reboot, require_reboot, settle_reboot};
pub use start::{SETTINGS, SETTLED, Settings, service_spec};
pub use state::{blob, marker, observe};

/// File with the blobs of the current payload and of the previous one.
const PAYLOADS: &str = r"C:\k\wicd\payloads.json";

/// Maximum size of a request, in bytes: desired state, configuration files and a list of payload files.
pub const MAX_REQUEST: u64 = 16 << 20;
/// Maximum wait for another operation, or the service, to release the lock.
const PATIENCE: Duration = Duration::from_secs(30);

/// Failure of [`serve`]. The process then exits with another status than [`api::host::EXIT_ANSWERED`].
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Invalid name of an operation.
    #[error("{0:?} is not the name of an operation: at most 63 lower-case letters, digits and `-`")]
    OperationId(String),
    /// Request that cannot be read.
    #[error(
        "the request {path} is missing, cannot be read, is larger than 16 MiB, or is not a request for this verb and operation"
    )]
    Request {
        /// Path of the request.
        path: String,
        /// Cause, if it is known.
        #[source]
        source: Option<HostError>,
    },
    /// Answer that cannot be written.
    #[error("cannot write the answer {path}")]
    Answer {
        /// Path of the answer.
        path: String,
        /// Cause of the failure.
        #[source]
        source: HostError,
    },
    /// Directory of the operator's uploads that cannot be protected from other users.
    #[error("{} cannot be protected", path::LAUNCH)]
    Launch(#[source] HostError),
    /// Restart of the host that failed.
    #[error("cannot restart the host")]
    Reboot(#[source] HostError),
}

/// Reason why an operation failed, for [`Outcome::Failed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    reason: Reason,
    message: String,
}

impl Failure {
    fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

impl From<HostError> for Failure {
    fn from(error: HostError) -> Self {
        Self::new(error.reason(), chain(&error))
    }
}

/// Results of an operation in addition to its outcome.
#[derive(Default)]
pub(crate) struct Report {
    requests: BTreeMap<CertificateKind, String>,
    warnings: Vec<String>,
    missing_images: Vec<String>,
}

impl Report {
    fn warn(&mut self, text: impl Into<String>) {
        self.warnings.push(text.into());
    }
}

/// Performs the requested operation. Never fails: the answer reports failures. [`Verb::Reboot`] only makes the checks; [`serve`] restarts the host
/// after it has written the answer.
pub fn run(host: &dyn Host, request: &Request) -> Answer {
    let mut report = Report::default();
    let outcome = attempt(host, request, &mut report)
        .unwrap_or_else(|f| Outcome::Failed { reason: f.reason.to_string(), message: f.message });
    let files = match &request.body {
        Body::Facts(b) => b.files.as_slice(),
        Body::Stage(b) => &b.files,
        Body::Apply(b) => &b.files,
        Body::Start(_) | Body::Reboot(_) | Body::Pull(_) | Body::Cleanup(_) | Body::Support(_) => &[],
    };
    let observed = match &request.body {
        Body::Support(_) => support::state(support::LIMITS.part, host),
        _ => observe(host, files),
    };
    let state = match observed {
        Ok(state) => Some(further(host, &request.body, state)),
        Err(e) => {
            report.warn(format!("cannot get the state of the host: {}", chain(&e)));
            None
        }
    };
    Answer {
        protocol: PROTOCOL,
        operation: request.operation.clone(),
        outcome,
        state,
        requests: report.requests,
        warnings: report.warnings,
        missing_images: report.missing_images,
    }
}

/// Adds the facts that take time, which only a request for facts needs.
fn further(host: &dyn Host, body: &Body, state: HostState) -> HostState {
    let Body::Facts(asked) = body else { return state };
    let api_server = asked.api_server.as_deref().and_then(|url| host.unreachable(url));
    let ports_in_use = asked.ports.iter().copied().filter(|port| host.is_in_use(*port)).collect();
    // Without a domain, these calls take long to fail.
    let accounts = state.machine.domain.as_ref().map_or(&[][..], |_| &asked.service_accounts);
    let owned = Ownership::load(host).ok().flatten().unwrap_or_default();
    // A failure to read the registrations is ignored here: `apply` reports it before it changes the host.
    let foreign = credential_plugin::foreign(host, asked.credential_plugin.as_deref(), &owned).unwrap_or_default();
    HostState {
        api_server,
        ports_in_use,
        restart_causes: host.restart_causes(),
        antivirus: host.antivirus(apply::CONTAINERD),
        service_accounts: accounts.iter().map(|name| (name.clone(), host.service_account(name))).collect(),
        foreign_credential_plugins: foreign,
        ..state
    }
}

fn attempt(host: &dyn Host, request: &Request, report: &mut Report) -> Result<Outcome, Failure> {
    if request.protocol != PROTOCOL {
        let message = format!(
            "the request has version {} of the protocol, but wicd.exe on the host supports version {PROTOCOL}; the operator sends its own wicd.exe \
             again",
            request.protocol
        );
        return Err(Failure::new(Reason::HostFilesChanged, message));
    }
    if let Body::Facts(_) = request.body {
        secure::check_root(host)?;
        return Ok(Outcome::Done);
    }
    if let Body::Support(asked) = &request.body {
        return support::collect(support::LIMITS, host, &request.operation, asked);
    }
    if !host.is_admin()? {
        return Err(Failure::new(
            Reason::NotAdministrator,
            "the SSH user does not have administrator rights on the host; add the user to the group Administrators, or set another username in the \
             pool or in the entry of the host",
        ));
    }
    secure::root(host)?;
    let lock = lock(host)?;
    // The recipient is checked first, so that the operator of another cluster does not record its epoch on the host.
    recipient::check(host, request)?;
    fence::check(host, request)?;
    match &request.body {
        Body::Stage(body) => stage::stage(host, body),
        Body::Apply(body) => apply::apply(host, request, body, report),
        Body::Start(body) => start::start(host, body, report),
        // For a reboot, the answer has the state of the host, and `serve` restarts the host afterwards. Facts and support data are handled above.
        Body::Facts(_) | Body::Reboot(_) | Body::Support(_) => Ok(Outcome::Done),
        Body::Pull(body) => {
            drop(lock);
            pull::pull(host, body, report)
        }
        Body::Cleanup(_) => cleanup::cleanup(host, report),
    }
}

/// Takes the lock of the host, and waits a limited time for another operation or the service.
fn lock(host: &dyn Host) -> Result<Lock, Failure> {
    const BUSY: &str =
        "another operation or the service windows-instance-config-daemon is changing the host; the operator retries";
    lock::take(host, PATIENCE)?.ok_or_else(|| Failure::new(Reason::HostBusy, BUSY))
}

/// Serves `wicd.exe <verb> <operation>`: reads the request file, performs the request, writes the answer file, and restarts the host if requested.
/// After success, the process exits with [`api::host::EXIT_ANSWERED`].
///
/// # Errors
/// Fails when `operation` is not an operation's ID, the request cannot be protected or read or is for another verb, the answer cannot be written, or
/// the host does not restart. An operation that fails is not an error: the answer has its outcome.
pub fn serve(host: &dyn Host, verb: Verb, operation: &str) -> Result<(), ServeError> {
    if !api::host::is_operation_id(operation) {
        return Err(ServeError::OperationId(operation.to_string()));
    }
    secure::launch(host).map_err(ServeError::Launch)?;
    let request = read_request(host, verb, operation)?;
    let answer = run(host, &request);
    let path = api::host::answer_path(operation, verb);
    files::write_json(host, &path, &answer, Access::Inherited).map_err(|source| ServeError::Answer { path, source })?;
    if let (Body::Reboot(reboot), Outcome::Done, Some(state)) = (&request.body, &answer.outcome, &answer.state)
        && state.machine.boot_id == reboot.boot_id
    {
        host.reboot().map_err(ServeError::Reboot)?;
    }
    Ok(())
}

fn read_request(host: &dyn Host, verb: Verb, operation: &str) -> Result<Request, ServeError> {
    let path = api::host::request_path(operation, verb);
    let refuse = |source| ServeError::Request { path: path.clone(), source };
    if files::size(host, &path).map_err(|e| refuse(Some(e)))?.is_none_or(|size| size > MAX_REQUEST) {
        return Err(refuse(None));
    }
    let content = files::read(host, &path).map_err(|e| refuse(Some(e)))?.unwrap_or_default();
    parse_request(&content, verb, operation).ok_or_else(|| refuse(None))
}

/// Parses a request, if it is for this verb and operation. [`run`] checks the protocol, so that the answer reports a mismatch.
fn parse_request(content: &[u8], verb: Verb, operation: &str) -> Option<Request> {
    let request: Request = serde_json::from_slice(content).ok()?;
    (request.body.verb() == verb && request.operation == operation).then_some(request)
}

#[cfg(test)]
pub(crate) mod tests;
