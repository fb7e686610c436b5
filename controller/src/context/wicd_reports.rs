//! Last report of wicd from each node. Its age is measured with the clock of this process, because the clock of a host may be wrong.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Last report of each node by node name, with the time at which this process first saw it.
#[derive(Default)]
pub(crate) struct WicdReports(Mutex<HashMap<String, (String, Instant)>>);

impl WicdReports {
    /// Records the last report of a node, and returns the time for which it has not changed.
    pub(crate) fn unchanged(&self, node: &str, reported: &str, now: Instant) -> Duration {
        let mut seen = self.0.lock();
        let (last, since) = seen.entry(node.to_owned()).or_insert_with(|| (reported.to_owned(), now));
        if last != reported {
            (*last, *since) = (reported.to_owned(), now);
        }
        now.duration_since(*since)
    }

    /// Forgets a node that is not expected to report.
    pub(crate) fn forget(&self, node: &str) {
        self.0.lock().remove(node);
    }
}
