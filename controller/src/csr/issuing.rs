//! Requests that this process is issuing, and those that it has just decided.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Time for which a decision is remembered. By then, the watch has shown the decision.
const REMEMBERED: Duration = Duration::from_mins(1);

/// Requests that the approver must skip, although its cache shows them as undecided: a second decision on the same request costs a write, and causes
/// a conflict.
#[derive(Clone, Debug, Default)]
pub struct Issuing(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Names of the operator's own requests that [`super::request_and_sign`] is issuing, with a count. Requests that are no longer in the map, or
    /// that another process has posted, are left to the approver.
    names: BTreeMap<String, usize>,
    /// Times of this process's decisions, by UID of the request.
    decided: BTreeMap<String, Instant>,
}

impl Issuing {
    /// Registers a request until the returned value is dropped.
    pub(super) fn begin(&self, name: String) -> Registered {
        *self.0.lock().names.entry(name.clone()).or_default() += 1;
        Registered { issuing: self.clone(), name }
    }

    /// Reports whether the request with this name is being issued.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.lock().names.contains_key(name)
    }

    /// Records that this process has decided a request.
    pub(super) fn decided(&self, uid: String, now: Instant) {
        let decided = &mut self.0.lock().decided;
        decided.retain(|_, at| now.duration_since(*at) < REMEMBERED);
        decided.insert(uid, now);
    }

    /// Reports whether this process has just decided the request.
    pub(super) fn has_decided(&self, uid: &str, now: Instant) -> bool {
        self.0.lock().decided.get(uid).is_some_and(|at| now.duration_since(*at) < REMEMBERED)
    }
}

/// Registration of a request's name. It ends when the value is dropped.
#[derive(Debug)]
pub(super) struct Registered {
    issuing: Issuing,
    name: String,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let names = &mut self.issuing.0.lock().names;
        if let Some(times) = names.get_mut(&self.name) {
            *times -= 1;
            if *times == 0 {
                names.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_registered_until_its_last_registration_ends() {
        let issuing = Issuing::default();
        let (first, second) = (issuing.begin("a".into()), issuing.clone().begin("a".into()));
        drop(first);
        assert!(issuing.contains("a") && !issuing.contains("b"));
        drop(second);
        assert!(!issuing.contains("a"));
    }

    #[test]
    fn a_decision_is_remembered_until_the_watch_must_have_shown_it() {
        let (issuing, start) = (Issuing::default(), Instant::now());
        issuing.decided("a".into(), start);
        assert!(issuing.has_decided("a", start) && !issuing.has_decided("b", start));
        assert!(!issuing.has_decided("a", start + REMEMBERED));
        issuing.decided("b".into(), start + REMEMBERED);
        assert_eq!(issuing.0.lock().decided.len(), 1, "old decisions are forgotten");
    }
}
