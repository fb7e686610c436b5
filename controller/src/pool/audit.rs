//! Records the effect of the list on hosts: an event on the instance, or on the pool for new hosts, and a line in the audit log, which has the same
//! fields for every source.

use api::{Origin, WindowsInstance, WindowsNodePool};
use kube::ResourceExt;

use crate::{context::Context, runtime::events::EventReason};

/// Effect of the list on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HostEvent {
    /// The host was added to the pool.
    Admitted,
    /// The entry of the host has changed.
    Changed,
    /// The host was marked for removal.
    Dismissed {
        /// Reason why the host leaves.
        why: String,
        /// Revision of the list that no longer has the host.
        revision: Option<String>,
    },
    /// The removal was revoked, and the host stays.
    Returned,
    /// The host moves to another pool.
    Moved {
        /// Name of the other pool.
        to: String,
    },
}

impl HostEvent {
    /// Returns the reason of the event on the instance, if it has one.
    fn reason(&self) -> Option<EventReason> {
        match self {
            Self::Admitted => None,
            Self::Changed => Some(EventReason::HostChanged),
            Self::Dismissed { .. } => Some(EventReason::HostDismissed),
            Self::Returned => Some(EventReason::HostReturned),
            Self::Moved { .. } => Some(EventReason::HostMoved),
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
        let at = |what: &str| format!("{what} in {}", place.as_deref().unwrap_or("the pool's own list"));
        match self {
            Self::Admitted => at("listed"),
            Self::Changed => at("its entry was changed"),
            Self::Dismissed { why, .. } => why.clone(),
            Self::Returned => "its removal was cancelled; the host stays in the pool".into(),
            Self::Moved { to } => format!("the host moves to the pool {to}, which lists it now"),
        }
    }
}

/// Returns the location of an entry, in words.
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

/// Maximum number of hosts that the note of an event names with the location of their entry.
const LOCATED: usize = 5;
/// Maximum number of hosts that the note of an event names.
const NAMED: usize = 20;

/// Returns the note about new hosts, at least one.
fn admitted(instances: &[WindowsInstance]) -> String {
    let named = instances.iter().take(NAMED).enumerate().map(|(n, instance)| match &instance.spec.origin {
        Some(origin) if n < LOCATED => format!("{} ({})", instance.name_any(), place(origin)),
        _ => instance.name_any(),
    });
    let named: Vec<String> = named.collect();
    let more = instances.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    format!("hosts added: {}{more}", named.join(", "))
}

impl Context {
    /// Reports new hosts of a pool.
    pub(super) fn record_admitted(&self, pool: &WindowsNodePool, instances: &[WindowsInstance]) {
        if !instances.is_empty() {
            self.events.say(pool, EventReason::HostsAdmitted, "ReadInventory", &admitted(instances));
        }
    }

    /// Records an event of a host.
    pub(super) fn record_host_event(&self, instance: &WindowsInstance, event: &HostEvent) {
        let (origin, host) = (instance.spec.origin.as_ref(), &instance.spec.host);
        let note = event.note(origin);
        if let Some(reason) = event.reason() {
            self.events.say(instance, reason, "ReadInventory", &note);
        }
        let commit = origin.and_then(|o| o.commit.as_ref());
        tracing::info!(
            target: "audit",
            event = event.reason().map_or("HostAdmitted", EventReason::as_str),
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
    use api::WindowsInstanceSpec;

    use super::*;

    #[test]
    fn new_hosts_are_one_event() {
        let hosts = |count: usize, origin: Option<Origin>| -> Vec<WindowsInstance> {
            let spec = WindowsInstanceSpec { origin, ..WindowsInstanceSpec::default() };
            (1..=count).map(|n| WindowsInstance::new(&format!("w{n}"), spec.clone())).collect()
        };
        let git = Origin { source: "git".into(), file: Some("a.yaml".into()), line: Some(7), ..Origin::default() };
        for (instances, expected) in [
            (hosts(1, None), "hosts added: w1"),
            (hosts(2, Some(git.clone())), "hosts added: w1 (git, a.yaml:7), w2 (git, a.yaml:7)"),
            (
                hosts(22, None),
                "hosts added: w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15, w16, w17, w18, w19, w20, and 2 more",
            ),
        ] {
            assert_eq!(admitted(&instances), expected);
        }
        let note = admitted(&hosts(7, Some(git)));
        assert!(note.ends_with("w5 (git, a.yaml:7), w6, w7"), "{note}");
    }

    #[test]
    fn each_event_names_its_origin() {
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
            (HostEvent::Admitted, Some(&git), format!("listed in {at}")),
            (HostEvent::Admitted, None, "listed in the pool's own list".into()),
            (HostEvent::Changed, Some(&git), format!("its entry was changed in {at}")),
            (HostEvent::Dismissed { why: why(), revision: None }, Some(&git), why()),
            (HostEvent::Returned, None, "its removal was cancelled; the host stays in the pool".into()),
            (HostEvent::Moved { to: "q".into() }, None, "the host moves to the pool q, which lists it now".into()),
        ] {
            assert_eq!(event.note(origin), expected);
        }
    }
}
