//! The requests that this process is issuing now.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

/// Names of the operator's own requests that [`super::request_and_sign`] approves at this moment. The approver leaves them to it: two that approve the
/// same request cost a write more, and one of them meets a conflict. What is not in it any more, or was another process's, is the approver's.
#[derive(Clone, Debug, Default)]
pub struct Issuing(Arc<Mutex<BTreeMap<String, usize>>>);

impl Issuing {
    /// Registers a request, until what is returned is dropped.
    pub(super) fn begin(&self, name: String) -> Registered {
        *self.0.lock().entry(name.clone()).or_default() += 1;
        Registered { issuing: self.clone(), name }
    }

    /// Whether the request of that name is being issued.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.lock().contains_key(name)
    }
}

/// Keeps the name of a request registered.
#[derive(Debug)]
pub(super) struct Registered {
    issuing: Issuing,
    name: String,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut names = self.issuing.0.lock();
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
    fn a_name_is_registered_as_long_as_any_issues_it() {
        let issuing = Issuing::default();
        let (first, second) = (issuing.begin("a".into()), issuing.clone().begin("a".into()));
        drop(first);
        assert!(issuing.contains("a") && !issuing.contains("b"));
        drop(second);
        assert!(!issuing.contains("a"));
    }
}
