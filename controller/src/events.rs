//! Events on our objects.
//!
//! kube's recorder keeps the first note for six minutes and drops changed ones (it does not count the note as part of an
//! event), so `kubectl` would show the wrong text. This one distinguishes notes and reports the same note once in ten
//! minutes.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

pub(crate) use api::events::EventReason;
use api::events::Level;
use jiff::Timestamp;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client, Resource,
    api::{ObjectMeta, PostParams},
};
use parking_lot::Mutex;

const SAY_AGAIN_AFTER: Duration = Duration::from_mins(10);
const NOTE_LIMIT: usize = 1000;

/// Different notes of one object and reason in [`SAY_AGAIN_AFTER`]. Notes may hold words of a host, which can vary them as it likes.
const MAX_NOTES: usize = 10;

/// Object and reason of reported events.
type Subject = (String, &'static str);

/// Writes events.
#[derive(Clone)]
pub(crate) struct Events {
    client: Client,
    identity: String,
    said: Arc<Mutex<Said>>,
}

impl Events {
    /// Writes events in the name of `identity`.
    pub(crate) fn new(client: Client, identity: &str) -> Self {
        Self { client, identity: identity.into(), said: Arc::default() }
    }

    /// Reports an event of an object; `action` is what was being done. Never fails: an event that cannot be written is logged.
    pub(crate) fn say<K: Resource<DynamicType = ()>>(&self, object: &K, reason: EventReason, action: &str, note: &str) {
        self.say_of(object.object_ref(&()), reason, action, note);
    }

    /// The same for a reference.
    pub(crate) fn say_of(&self, regarding: ObjectReference, reason: EventReason, action: &str, note: &str) {
        let (reason, level) = (reason.as_str(), reason.level());
        let name = regarding.name.clone().unwrap_or_default();
        match level {
            Level::Normal => tracing::info!(kind = regarding.kind, name, reason, "{note}"),
            Level::Warning => tracing::warn!(kind = regarding.kind, name, reason, "{note}"),
        }
        let subject = (format!("{}/{name}", regarding.kind.as_deref().unwrap_or_default()), reason);
        let mut said = self.said.lock();
        if !said.is_new(subject, note, Instant::now()) {
            return;
        }
        drop(said);
        // Events of cluster-scoped objects live in `default`, as the API server insists.
        let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".into());
        let event = Event {
            metadata: ObjectMeta { generate_name: Some(format!("{name}-")), ..ObjectMeta::default() },
            action: Some(action.into()),
            event_time: Some(MicroTime(Timestamp::now())),
            note: Some(note.chars().take(NOTE_LIMIT).collect()),
            reason: Some(reason.into()),
            regarding: Some(regarding),
            reporting_controller: Some(format!("{}/{}", api::names::GROUP, api::names::COMPONENT)),
            reporting_instance: Some(self.identity.chars().take(128).collect()),
            type_: Some(level.as_str().into()),
            ..Event::default()
        };
        let api = Api::<Event>::namespaced(self.client.clone(), &namespace);
        tokio::spawn(async move {
            if let Err(error) = api.create(&PostParams::default(), &event).await {
                tracing::warn!(%error, reason, "failed to write an event");
            }
        });
    }
}

/// The notes that were reported lately.
#[derive(Debug, Default)]
struct Said {
    notes: HashMap<Subject, Vec<(String, Instant)>>,
    cleaned: Option<Instant>,
}

impl Said {
    /// Whether a note is to be reported; if so, it counts as reported.
    fn is_new(&mut self, subject: Subject, note: &str, now: Instant) -> bool {
        let is_recent = |(_, at): &(String, Instant)| now.duration_since(*at) < SAY_AGAIN_AFTER;
        if self.cleaned.is_none_or(|at| now.duration_since(at) >= SAY_AGAIN_AFTER) {
            self.notes.retain(|_, notes| notes.iter().any(is_recent));
            self.cleaned = Some(now);
        }
        let notes = self.notes.entry(subject).or_default();
        notes.retain(is_recent);
        let is_new = notes.len() < MAX_NOTES && notes.iter().all(|(said, _)| said != note);
        if is_new {
            notes.push((note.to_owned(), now));
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_cannot_have_events_written_without_limit() {
        let (mut said, now) = (Said::default(), Instant::now());
        let drifted = || ("WindowsInstance/win-1".to_owned(), "Drifted");
        let written = (0..1000).filter(|n| said.is_new(drifted(), &format!("note {n}"), now)).count();
        assert_eq!((written, said.notes.values().map(Vec::len).sum::<usize>()), (MAX_NOTES, MAX_NOTES));
        assert!(said.is_new(("WindowsInstance/win-2".to_owned(), "Drifted"), "note 1", now), "another host");
        let later = now + SAY_AGAIN_AFTER;
        assert!(said.is_new(drifted(), "note 1", later) && !said.is_new(drifted(), "note 1", later));
        assert_eq!(said.notes.len(), 1, "what is long ago is forgotten");
    }
}
