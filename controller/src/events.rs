//! Events on our objects.
//!
//! kube's recorder keeps the first note for six minutes and drops changed ones (it does not count the note as part of an
//! event), so `kubectl` would show the wrong text. This one distinguishes notes and reports the same note once in ten
//! minutes.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client, Resource,
    api::{ObjectMeta, PostParams},
};

use crate::metrics::Metrics;

const SAY_AGAIN_AFTER: Duration = Duration::from_mins(10);
const NOTE_LIMIT: usize = 1000;

/// Key of a reported event: object, reason and note.
type Saying = (String, &'static str, String);

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Progress.
    Normal,
    /// A problem.
    Warning,
}

/// Writes events.
#[derive(Clone)]
pub struct Events {
    client: Client,
    identity: String,
    metrics: Arc<Metrics>,
    said: Arc<Mutex<HashMap<Saying, Instant>>>,
}

impl Events {
    /// Writes events in the name of `identity`.
    pub fn new(client: Client, identity: &str, metrics: Arc<Metrics>) -> Self {
        Self { client, identity: identity.into(), metrics, said: Arc::default() }
    }

    /// Reports an event of an object. `reason` is a PascalCase word, `action` what was being done. Never fails: an
    /// event that cannot be written is logged.
    pub fn say<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        level: Level,
        reason: &'static str,
        action: &str,
        note: &str,
    ) {
        self.say_of(object.object_ref(&()), level, reason, action, note);
    }

    /// The same for a reference.
    pub fn say_of(&self, regarding: ObjectReference, level: Level, reason: &'static str, action: &str, note: &str) {
        let name = regarding.name.clone().unwrap_or_default();
        match level {
            Level::Normal => tracing::info!(kind = regarding.kind, name, reason, "{note}"),
            Level::Warning => tracing::warn!(kind = regarding.kind, name, reason, "{note}"),
        }
        let key = (format!("{}/{name}", regarding.kind.as_deref().unwrap_or_default()), reason, note.to_string());
        if !self.is_new(key) {
            return;
        }
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
            type_: Some(format!("{level:?}")),
            ..Event::default()
        };
        let (api, metrics) = (Api::<Event>::namespaced(self.client.clone(), &namespace), self.metrics.clone());
        tokio::spawn(async move {
            metrics.wrote("Event");
            if let Err(error) = api.create(&PostParams::default(), &event).await {
                tracing::warn!(%error, reason, "failed to write an event");
            }
        });
    }

    fn is_new(&self, key: Saying) -> bool {
        let mut said = self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = Instant::now();
        said.retain(|_, at| now.duration_since(*at) < SAY_AGAIN_AFTER);
        said.insert(key, now).is_none()
    }
}
