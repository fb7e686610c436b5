//! Events on the operator's objects.
//!
//! kube's recorder does not count the note as part of an event: for six minutes, it keeps the first note and drops changed notes, so that `kubectl`
//! shows the wrong text. This recorder distinguishes notes, and reports the same note once in ten minutes.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

pub(crate) use api::events::EventReason;
use api::events::EventType;
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

/// Time after which the same note is reported again.
const SAY_AGAIN_AFTER: Duration = Duration::from_mins(10);
/// Maximum number of bytes of a note. The API server refuses an event with more.
const NOTE_LIMIT: usize = 1024;

/// Maximum number of different notes for one object and reason within [`SAY_AGAIN_AFTER`]. Notes may contain text from a host, which can vary it.
const MAX_NOTES: usize = 10;

/// Object and reason of reported events.
type Subject = (String, &'static str);

/// Recorder of events.
#[derive(Clone)]
pub(crate) struct Events {
    client: Client,
    identity: String,
    said: Arc<Mutex<Said>>,
}

impl Events {
    /// Returns a recorder whose events name `identity` as the reporting instance.
    pub(crate) fn new(client: Client, identity: &str) -> Self {
        Self { client, identity: identity.into(), said: Arc::default() }
    }

    /// Logs an event of an object and writes it in the background, unless the same note was reported within [`SAY_AGAIN_AFTER`] or the object has too
    /// many notes. `action` is the operator's current action. Never fails: an event that cannot be written is only logged.
    pub(crate) fn say<K: Resource<DynamicType = ()>>(&self, object: &K, reason: EventReason, action: &str, note: &str) {
        self.say_of(object.object_ref(&()), reason, action, note);
    }

    /// Reports an event of a referenced object, like [`Self::say`].
    pub(crate) fn say_of(&self, regarding: ObjectReference, reason: EventReason, action: &str, note: &str) {
        let (reason, event_type) = (reason.as_str(), reason.event_type());
        let name = regarding.name.clone().unwrap_or_default();
        let subject = (format!("{}/{name}", regarding.kind.as_deref().unwrap_or_default()), reason);
        let Some(repeated) = self.said.lock().say(subject, note, Instant::now()) else { return };
        let repeated = (repeated > 0).then_some(repeated);
        match event_type {
            EventType::Normal => tracing::info!(kind = regarding.kind, name, reason, repeated, "{note}"),
            EventType::Warning => tracing::warn!(kind = regarding.kind, name, reason, repeated, "{note}"),
        }
        // The API server requires events of cluster-scoped objects to be in `default`.
        let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".into());
        let event = Event {
            metadata: ObjectMeta { generate_name: Some(format!("{name}-")), ..ObjectMeta::default() },
            action: Some(action.into()),
            event_time: Some(MicroTime(Timestamp::now())),
            note: Some(bounded(note).to_owned()),
            reason: Some(reason.into()),
            regarding: Some(regarding),
            reporting_controller: Some(format!("{}/{}", api::names::GROUP, api::names::COMPONENT)),
            reporting_instance: Some(self.identity.chars().take(128).collect()),
            type_: Some(event_type.as_str().into()),
            ..Event::default()
        };
        let api = Api::<Event>::namespaced(self.client.clone(), &namespace);
        tokio::spawn(async move {
            if let Err(error) = api.create(&PostParams::default(), &event).await {
                tracing::warn!(%error, name, reason, "failed to write an event; its text is only in this log");
            }
        });
    }
}

/// Returns the beginning of a note, at most [`NOTE_LIMIT`] bytes.
fn bounded(note: &str) -> &str {
    &note[..note.floor_char_boundary(NOTE_LIMIT)]
}

/// Note that was reported.
#[derive(Debug)]
struct Note {
    text: String,
    at: Instant,
    /// Number of suppressed reports since `at`.
    repeated: u64,
}

/// Notes that were reported recently.
#[derive(Debug, Default)]
struct Said {
    notes: HashMap<Subject, Vec<Note>>,
    cleaned: Option<Instant>,
}

impl Said {
    /// Decides whether a note is reported. If so, returns the number of suppressed reports since the last one.
    fn say(&mut self, subject: Subject, text: &str, now: Instant) -> Option<u64> {
        let is_recent = |note: &Note| now.duration_since(note.at) < SAY_AGAIN_AFTER;
        // The count of a continuing note is kept for its next report.
        let is_kept = |note: &Note| now.duration_since(note.at) < SAY_AGAIN_AFTER * 2;
        if self.cleaned.is_none_or(|at| now.duration_since(at) >= SAY_AGAIN_AFTER) {
            self.notes.retain(|_, notes| notes.iter().any(is_kept));
            self.cleaned = Some(now);
        }
        let notes = self.notes.entry(subject).or_default();
        let known = notes.iter().position(|note| note.text == text);
        if let Some(note) = known.map(|n| &mut notes[n]).filter(|note| is_recent(note)) {
            note.repeated += 1;
            return None;
        }
        let repeated = known.map_or(0, |n| notes.swap_remove(n).repeated);
        notes.retain(is_kept);
        if notes.iter().filter(|note| is_recent(note)).count() >= MAX_NOTES {
            return None;
        }
        notes.push(Note { text: text.to_owned(), at: now, repeated: 0 });
        Some(repeated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_cannot_have_events_written_without_limit() {
        let (mut said, now) = (Said::default(), Instant::now());
        let drifted = || ("WindowsInstance/win-1".to_owned(), "Drifted");
        let written = (0..1000).filter(|n| said.say(drifted(), &format!("note {n}"), now).is_some()).count();
        assert_eq!((written, said.notes.values().map(Vec::len).sum::<usize>()), (MAX_NOTES, MAX_NOTES));
        let other = ("WindowsInstance/win-2".to_owned(), "Drifted");
        assert_eq!(said.say(other, "note 1", now), Some(0), "another host");
        let later = now + SAY_AGAIN_AFTER;
        assert_eq!((said.say(drifted(), "note 1", later), said.say(drifted(), "note 1", later)), (Some(0), None));
        assert!(said.say(drifted(), "note 1", later + SAY_AGAIN_AFTER * 2).is_some());
        assert_eq!(said.notes.values().map(Vec::len).sum::<usize>(), 1, "old notes are forgotten");
    }

    #[test]
    fn a_note_is_bounded_in_bytes() {
        for (note, length) in [
            ("", 0),
            (&*"a".repeat(1024), 1024),
            (&"a".repeat(1025), 1024),
            (&"ä".repeat(513), 1024),
            (&format!("a{}", "ä".repeat(512)), 1023),
            (&"🙂".repeat(300), 1024),
            (&format!("abc{}", "🙂".repeat(300)), 1023),
        ] {
            let bounded = bounded(note);
            assert!(note.starts_with(bounded) && bounded.len() == length, "{} of {}", bounded.len(), note.len());
        }
    }

    #[test]
    fn a_repeated_note_is_reported_once_in_ten_minutes_with_a_count() {
        let (mut said, now) = (Said::default(), Instant::now());
        let conflict = || ("WindowsNodePool/p".to_owned(), "HostConflict");
        let mut reported = Vec::new();
        for second in (0..1_300).step_by(2) {
            let at = now + Duration::from_secs(second);
            reported.extend(said.say(conflict(), "host a", at).map(|repeated| (second, repeated)));
        }
        assert_eq!(reported, [(0, 0), (600, 299), (1_200, 299)]);
    }
}
