//! Records the effect of the list on a host: an event on its instance, and a line for auditors in the log, which has
//! the same fields for every source.

use api::{Origin, WindowsInstance};
use kube::ResourceExt;

use crate::{context::Context, events::EventReason};

/// What became of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HostEvent {
    /// It is in the pool from now on.
    Admitted,
    /// Its entry has changed.
    Changed,
    /// It is to leave.
    Dismissed {
        /// Why.
        why: String,
        /// The revision of the list that does not have it any more.
        revision: Option<String>,
    },
    /// It was to leave, and stays.
    Returned,
    /// It goes over to another pool.
    Moved {
        /// That pool.
        to: String,
    },
}

impl HostEvent {
    /// Reason of the event, and name in the audit log.
    fn reason(&self) -> EventReason {
        match self {
            Self::Admitted => EventReason::HostAdmitted,
            Self::Changed => EventReason::HostChanged,
            Self::Dismissed { .. } => EventReason::HostDismissed,
            Self::Returned => EventReason::HostReturned,
            Self::Moved { .. } => EventReason::HostMoved,
        }
    }

    fn revision(&self) -> Option<&str> {
        match self {
            Self::Dismissed { revision, .. } => revision.as_deref(),
            _ => None,
        }
    }

    fn note(&self, origin: Option<&Origin>) -> String {
        let place = origin.map(place);
        let by = |what: &str| match &place {
            Some(place) => format!("{what} by {place}"),
            None => format!("{what} by the pool's own list"),
        };
        match self {
            Self::Admitted => by("listed"),
            Self::Changed => by("its entry was changed"),
            Self::Dismissed { why, .. } => why.clone(),
            Self::Returned => "its removal was revoked, and it stays a node".into(),
            Self::Moved { to } => format!("pool {to} lists it now; it stays a node"),
        }
    }
}

/// Where an entry stands, in words.
pub(super) fn place(origin: &Origin) -> String {
    let revision = origin.revision.as_ref().map(|r| format!(" at {r}")).unwrap_or_default();
    let file = match (&origin.file, origin.line) {
        (Some(file), Some(line)) => format!(", {file}:{line}"),
        (Some(file), None) => format!(", {file}"),
        _ => String::new(),
    };
    let machine = origin.machine.as_ref().map(|m| format!(", Machine {m}")).unwrap_or_default();
    format!("{}{revision}{file}{machine}", origin.source)
}

impl Context {
    /// Records an event of a host.
    pub(super) fn record_host_event(&self, instance: &WindowsInstance, event: &HostEvent) {
        let (origin, host) = (instance.spec.origin.as_ref(), &instance.spec.host);
        let note = event.note(origin);
        self.events.say(instance, event.reason(), "ReadInventory", &note);
        let commit = origin.and_then(|o| o.commit.as_ref());
        tracing::info!(
            target: "audit",
            event = event.reason().as_str(),
            host = instance.name_any(),
            pool = instance.spec.pool_ref.name,
            address = host.address,
            port = host.port,
            username = host.username,
            source = origin.map(|o| o.source.as_str()),
            revision = event.revision().or_else(|| origin.and_then(|o| o.revision.as_deref())),
            file = origin.and_then(|o| o.file.as_deref()),
            line = origin.and_then(|o| o.line),
            machine = origin.and_then(|o| o.machine.as_deref()),
            commit = commit.map(|c| c.id.as_str()),
            author = commit.map(|c| c.author.as_str()),
            committed = commit.map(|c| c.time.to_string()),
            "{note}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tells_where_it_comes_from() {
        let git = Origin {
            source: "git https://git.example.com/hosts".into(),
            revision: Some("main@sha1:0a".into()),
            file: Some("hall-b.yaml".into()),
            line: Some(7),
            ..Origin::default()
        };
        let at = "git https://git.example.com/hosts at main@sha1:0a, hall-b.yaml:7";
        let why = || "no longer listed at main@sha1:0b".to_owned();
        for (event, origin, expected) in [
            (HostEvent::Admitted, Some(&git), format!("listed by {at}")),
            (HostEvent::Admitted, None, "listed by the pool's own list".into()),
            (HostEvent::Changed, Some(&git), format!("its entry was changed by {at}")),
            (HostEvent::Dismissed { why: why(), revision: None }, Some(&git), why()),
            (HostEvent::Returned, None, "its removal was revoked, and it stays a node".into()),
            (HostEvent::Moved { to: "q".into() }, None, "pool q lists it now; it stays a node".into()),
        ] {
            assert_eq!(event.note(origin), expected);
        }
    }
}
