//! `wicd.exe maintenance`: an administrator or a patching program of the host requests that the node be drained, and hands it back.
//!
//! The request is an annotation of the host's own Node, written with wicd's certificate; the operator answers with another annotation. The host
//! stores nothing, so a restart loses nothing.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::MaintenanceState;
use api::host::path;
use api::maintenance::MAX_REASON_CHARS;
use api::names::key;
use api::text;
use clap::Subcommand;
use futures::StreamExt;
use serde_json::Value;
use tokio::time::timeout;

use crate::daemon::chain;
use crate::daemon::cluster::{Cluster, Connect, annotation, is_ready};
use crate::host::Host;
use crate::operation::marker;

/// Delay before another attempt to reach the API server, in seconds.
const AGAIN: u32 = 5;
/// Time limit to withdraw an abandoned request, in seconds.
const WITHDRAWING: u32 = 20;
/// Time limit of commands that do not wait, in seconds.
const SHORT: u32 = 60;

/// Requested action.
#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Request that the node be drained, and wait until it is
    Begin {
        /// Reason, which the operator shows
        #[arg(long, value_name = "TEXT", value_parser = reason)]
        reason: String,
        /// Seconds to wait until the node is drained
        #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
        timeout: u32,
        /// Leave the request in place if the command ends before the node is drained; otherwise the command withdraws its request
        #[arg(long)]
        keep: bool,
    },
    /// Hand the node back: the operator verifies it, and allows pods on it again
    End {
        /// Seconds to wait until the node is Ready and its maintenance is over; by default, the command does not wait
        #[arg(long, value_name = "SECONDS")]
        wait: Option<u32>,
    },
    /// Print the request and its state
    Status,
}

/// Outcome of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    kind: OutcomeKind,
    message: String,
}

/// Kind of an outcome, with the exit code of the command, which is part of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutcomeKind {
    Done = 0,
    TimedOut = 3,
    /// Refusal that a longer wait would not change.
    Refused = 4,
    /// API server that cannot be reached with the credentials of this host.
    Unreachable = 5,
    Interrupted = 6,
}

use OutcomeKind::{Done, Interrupted, Refused, TimedOut, Unreachable};

impl Outcome {
    fn new(kind: OutcomeKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Exit code of the command.
    pub fn code(&self) -> u8 {
        self.kind as u8
    }

    /// Text to print.
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// Checks a reason, which is printed on users' terminals.
fn reason(text: &str) -> Result<String, String> {
    let clean = text::line(text, MAX_REASON_CHARS);
    match clean.as_str() {
        "" => Err("a reason must have text, for example \"monthly patches\"".into()),
        _ if clean != text.trim() => {
            Err(format!("a reason must be one line of at most {MAX_REASON_CHARS} characters, without invisible ones"))
        }
        _ => Ok(clean),
    }
}

/// Maintenance state that a Node shows.
struct Shown<'a> {
    node: &'a Value,
}

impl Shown<'_> {
    fn annotation(&self, key: &str) -> Option<&str> {
        annotation(self.node, key)
    }

    fn state(&self) -> Option<MaintenanceState> {
        self.annotation(key::MAINTENANCE_STATE).and_then(MaintenanceState::parse)
    }

    fn request(&self) -> Option<&str> {
        self.annotation(key::MAINTENANCE_REQUEST)
    }
}

/// Next step of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Next {
    /// Write the request; `None` withdraws it.
    Write(Option<String>),
    /// Wait, for this reason.
    Wait(&'static str),
    /// End with this outcome.
    End(Outcome),
}

/// Decides the next step of `maintenance begin`. A drained node counts only while it has a request of the host: otherwise it is drained for another
/// reason, which may end at any moment.
fn begin(shown: &Shown<'_>, reason: &str) -> Next {
    let held = |what: &str| Next::End(Outcome::new(Refused, format!("{what}: ask a cluster administrator")));
    let (is_requested, state) = (shown.request().is_some(), shown.state());
    if shown.annotation(key::MAINTENANCE) == Some("false") {
        return held(&format!("the annotation {}=false of the Node refuses maintenance", key::MAINTENANCE));
    }
    // This check comes before the one for a hold, which prevents a maintenance but does not end one: patching may be in progress.
    if is_requested && state == Some(MaintenanceState::Drained) {
        let message = "the node is drained: patch and restart the host, then run `wicd.exe maintenance end`";
        return Next::End(Outcome::new(Done, message));
    }
    if shown.annotation(key::HOLD) == Some("true") {
        return held(&format!("the annotation {}=true of the Node holds the node", key::HOLD));
    }
    if !is_requested {
        return Next::Write(Some(reason.to_owned()));
    }
    match state {
        Some(MaintenanceState::Held) => held("the node is on hold, or its maintenance is refused"),
        Some(MaintenanceState::Draining) => Next::Wait("the node is being drained"),
        Some(MaintenanceState::Waiting) => {
            Next::Wait("the node waits for its turn (rollout.maxUnavailable, or its pool is paused)")
        }
        Some(MaintenanceState::Returning) => Next::Wait("an earlier maintenance of the node is being ended"),
        Some(MaintenanceState::Drained) | None => Next::Wait("the operator has not answered yet"),
    }
}

fn end(shown: &Shown<'_>, waits: bool) -> Next {
    if shown.request().is_some() {
        return Next::Write(None);
    }
    if !waits {
        return Next::End(Outcome::new(Done, "the Node does not have a maintenance request of this host"));
    }
    match shown.state() {
        Some(MaintenanceState::Drained) if shown.annotation(key::MAINTENANCE).is_some() => {
            let why = format!(
                "the annotation {} keeps the node in maintenance: ask a cluster administrator to remove it",
                key::MAINTENANCE
            );
            Next::End(Outcome::new(Refused, why))
        }
        None if is_ready(shown.node) => Next::End(Outcome::new(Done, "the node is Ready, and its maintenance is over")),
        None => Next::Wait("the node is not Ready"),
        Some(MaintenanceState::Returning) => Next::Wait("the operator verifies the node"),
        // A request on the WindowsInstance keeps the node in maintenance as well, and does not show on the Node.
        Some(_) => Next::Wait(
            "the operator has not answered yet, or the cluster's administrators have requested a maintenance themselves: ask them",
        ),
    }
}

fn status(shown: &Shown<'_>) -> Next {
    let (request, state) = (shown.request(), shown.state());
    let state = state.map_or("None", MaintenanceState::as_str);
    let request = text::line(request.unwrap_or("none"), MAX_REASON_CHARS);
    Next::End(Outcome::new(Done, format!("state: {state}\nrequest: {request}")))
}

/// Dependencies of a request.
pub struct MaintenanceContext<'a> {
    /// Host on which the request is made.
    pub host: &'a dyn Host,
    /// Source of connections to the API server.
    pub connect: &'a dyn Connect,
    /// Function that prints progress.
    pub say: &'a dyn Fn(&str),
    /// Length of a second, shorter in tests.
    pub second: Duration,
}

/// Performs the action, until it ends, times out or is interrupted. Withdraws an abandoned request.
pub async fn run(means: &MaintenanceContext<'_>, action: &Action, interrupted: impl Future<Output = ()>) -> Outcome {
    let host = means.host;
    match host.is_admin() {
        Ok(true) => {}
        Ok(false) => {
            return Outcome::new(Refused, "this command must be run as an administrator, in an elevated shell");
        }
        Err(e) => return Outcome::new(Refused, chain(&e)),
    }
    let Some(name) = marker(host).map(|marker| marker.node_name) else {
        let why = format!(
            "this host is not a node of a pool: {} is missing or cannot be read. If it should be one, ask a cluster administrator",
            path::STATE
        );
        return Outcome::new(Refused, why);
    };
    let waits = match action {
        Action::Begin { timeout, .. } => *timeout,
        Action::End { wait } => wait.unwrap_or(SHORT),
        Action::Status => SHORT,
    };
    let mut task =
        Task { means, name, action, written: None, request: None, last: Err("no answer from the API server".into()) };
    let ended = tokio::select! {
        ended = timeout(means.second.saturating_mul(waits), task.wait()) => ended.ok(),
        () = interrupted => Some(Outcome::new(Interrupted, "interrupted")),
    };
    let outcome = ended.unwrap_or_else(|| match &task.last {
        Ok(for_what) => Outcome::new(TimedOut, format!("timed out after {waits} s: {for_what}")),
        Err(why) => Outcome::new(Unreachable, format!("cannot use the API server: {why}")),
    });
    task.withdraw(outcome).await
}

struct Task<'a> {
    means: &'a MaintenanceContext<'a>,
    name: String,
    action: &'a Action,
    /// Request that this run has written, or has tried to write.
    written: Option<String>,
    /// Request that the Node had last.
    request: Option<String>,
    /// Reason of the last wait, or reason why the API server could not be used.
    last: Result<&'static str, String>,
}

impl Task<'_> {
    /// Waits until the command ends, also while the API server is unavailable.
    async fn wait(&mut self) -> Outcome {
        loop {
            match self.follow().await {
                Ok(outcome) => return outcome,
                Err(why) => self.last = Err(why),
            }
            tokio::time::sleep(self.means.second * AGAIN).await;
        }
    }

    async fn follow(&mut self) -> Result<Outcome, String> {
        let cluster: Arc<dyn Cluster> = self.means.connect.connect().await.map_err(|e| chain(&e))?;
        let mut nodes: Pin<Box<_>> = Box::pin(cluster.watch_node(&self.name));
        loop {
            let node = nodes.next().await.ok_or("the watch of the Node ended")?.map_err(|e| chain(&e))?;
            let Some(node) = node else {
                (self.written, self.request) = (None, None);
                return Ok(Outcome::new(
                    Refused,
                    format!("the Node {} does not exist in the cluster: ask a cluster administrator", self.name),
                ));
            };
            let shown = Shown { node: &node };
            self.request = shown.request().map(String::from);
            let next = match self.action {
                Action::Begin { reason, .. } => begin(&shown, reason),
                Action::End { wait } => end(&shown, wait.is_some()),
                Action::Status => status(&shown),
            };
            match next {
                Next::End(outcome) => return Ok(outcome),
                // After the write, the watch delivers the Node with the change.
                Next::Write(value) => {
                    self.written.clone_from(&value);
                    self.write(&*cluster, value).await?;
                }
                Next::Wait(for_what) => {
                    if self.last != Ok(for_what) {
                        (self.means.say)(for_what);
                    }
                    self.last = Ok(for_what);
                }
            }
        }
    }

    async fn write(&self, cluster: &dyn Cluster, value: Option<String>) -> Result<(), String> {
        let annotations = BTreeMap::from([(key::MAINTENANCE_REQUEST, value)]);
        cluster.annotate(&self.name, annotations).await.map_err(|e| chain(&e))
    }

    /// Reports whether the Node may have the request of this run. Any other request is from another program or from before a restart of the host, and
    /// patching may be in progress for it.
    fn has_ours(&self) -> bool {
        self.written.is_some() && (self.request.is_none() || self.request == self.written)
    }

    /// Withdraws an abandoned request, which would drain the node when no program patches it.
    async fn withdraw(&self, mut outcome: Outcome) -> Outcome {
        let Action::Begin { keep, .. } = self.action else { return outcome };
        if !self.has_ours() || outcome.kind == Done {
            return outcome;
        }
        if *keep {
            outcome.message += if self.request == self.written {
                "; the request stays in place (--keep)"
            } else {
                "; the request may be in place (--keep): run `wicd.exe maintenance status` when the API server answers"
            };
            return outcome;
        }
        let withdrawn = timeout(self.means.second * WITHDRAWING, async {
            let cluster = self.means.connect.connect().await.map_err(|e| chain(&e))?;
            self.write(&*cluster, None).await
        });
        outcome.message += match withdrawn.await {
            Ok(Ok(())) => {
                "; the request has been withdrawn, so the operator does not drain the node, or puts it back into service"
            }
            _ => "; the request could not be withdrawn: run `wicd.exe maintenance end` when the API server answers",
        };
        outcome
    }
}

#[cfg(test)]
#[path = "maintenance_tests.rs"]
mod tests;
