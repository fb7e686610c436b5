//! Drift: changes on a host that do not come from a change of the desired state.
//!
//! A difference is drift only if the item has matched the same desired state before. The file [`SETTLED`] records the items that have matched, so
//! that wicd can distinguish drift from its own pending changes after a restart of the host.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::host::Desired;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::warn;

use super::plan::DesiredService;
use crate::files::{self, Access, Stamp};
use crate::host::{Host, HostError, ServiceInfo, StartType};
use crate::operation::SETTLED;

/// Time for which a corrected item is still reported.
const SHOWN: Duration = Duration::from_mins(10);
/// Maximum number of reported items.
const MAX_ITEMS: usize = 10;
/// Maximum length of the Node's drift annotation, in bytes.
const LONGEST: usize = 1024;

/// Record of the items that have matched the desired state, stored in the file [`SETTLED`].
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
struct Settled {
    /// Digest of the desired state and of the operation that applied it.
    of: String,
    /// Desired services when all services last ran as desired; `None` until then.
    services: Option<BTreeMap<String, Right>>,
    /// Files that had the right content, with their stamps at that time.
    files: BTreeMap<String, Stamp>,
}

/// Desired state of a service when all services last ran as desired.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
struct Right {
    command: Option<String>,
    dependencies: Vec<String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
}

/// Kind of checked items. Each check replaces the uncorrected drift of the previous check of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckKind {
    /// Services.
    Services,
    /// Variables and trusted certificates.
    Environment,
    /// Payload files.
    Files,
}

/// Record of the items on the host that have matched the desired state, and of drift since then.
#[derive(Debug, Default)]
pub struct Drift {
    settled: Settled,
    unsaved: bool,
    left: BTreeMap<CheckKind, BTreeSet<String>>,
    healed: BTreeMap<String, Duration>,
}

impl Drift {
    /// Loads the record on the host if it is of this desired state as applied by `operation`, otherwise starts an empty one. An operation of the
    /// operator applies the whole desired state, and so corrects drift that was left.
    pub fn follow(&mut self, host: &dyn Host, desired: &Desired, operation: &str) {
        let json = serde_json::to_vec(desired).unwrap_or_default();
        let of = hex::encode(Sha256::new().chain_update(json).chain_update(operation).finalize());
        // An unreadable record counts as none.
        let on_record = files::read_json::<Settled>(host, SETTLED).ok().flatten();
        self.settled = on_record.filter(|s| s.of == of).unwrap_or(Settled { of, ..Settled::default() });
        self.unsaved = false;
        self.left.clear();
    }

    /// Reports whether all services have run as desired under this desired state.
    pub fn is_settled(&self) -> bool {
        self.settled.services.is_some()
    }

    /// Records that all services run as desired.
    pub fn settle(&mut self, wanted: &[DesiredService]) {
        let before = self.settled.services.clone().unwrap_or_default();
        let right = |w: &DesiredService| {
            // While a variable is not known, the service keeps the command that it had.
            let command = w.command.clone().or_else(|| before.get(&w.name)?.command.clone());
            let (dependencies, environment) = (w.dependencies.clone(), w.environment.clone());
            (w.name.clone(), Right { command, dependencies, environment })
        };
        let services = wanted.iter().map(right).collect();
        self.unsaved |= self.settled.services.as_ref() != Some(&services);
        self.settled.services = Some(services);
    }

    /// Returns the parts of a service that have drifted: none if the service never was in its current desired state, for example because a variable
    /// in its command has another value by now.
    pub fn of_service(&self, wanted: &DesiredService, actual: Option<&ServiceInfo>) -> Vec<&'static str> {
        let right = self.settled.services.as_ref().and_then(|s| s.get(&wanted.name));
        let as_before = |r: &Right| {
            (&r.dependencies, &r.environment) == (&wanted.dependencies, &wanted.environment)
                && (wanted.command.is_none() || wanted.command == r.command)
        };
        if right.is_some_and(as_before) { changes(wanted, actual) } else { Vec::new() }
    }

    /// Returns the stamp that a file had when its content was last right.
    pub fn right_file(&self, path: &str) -> Option<Stamp> {
        self.settled.files.get(path).copied()
    }

    /// Records that a file's content is right.
    pub fn file_is_right(&mut self, path: &str, stamp: Stamp) {
        self.unsaved |= self.settled.files.insert(path.to_owned(), stamp) != Some(stamp);
    }

    /// Records the result of a check: items that were corrected, and items that were left.
    pub fn found(&mut self, kind: CheckKind, healed: BTreeSet<String>, left: BTreeSet<String>, now: Duration) {
        let before = self.left.insert(kind, left).unwrap_or_default();
        for what in self.left[&kind].difference(&before) {
            warn!(
                what,
                "a change on the host is not reverted: remediation.drift of the pool is Report, or wicd cannot revert it yet and tries again at each check. Undo \
                 the change by hand, or set remediation.drift to Heal"
            );
        }
        self.healed(healed, now);
    }

    /// Records items that were corrected.
    pub fn healed(&mut self, healed: BTreeSet<String>, now: Duration) {
        for what in healed {
            warn!(what, "a change on the host has been reverted");
            self.healed.insert(what, now);
        }
    }

    /// Returns drift for the operator: at most ten short texts, sorted. Items that were left take precedence over corrected ones.
    pub fn texts(&mut self, now: Duration) -> Vec<String> {
        self.healed.retain(|_, at| now.saturating_sub(*at) < SHOWN);
        let left: BTreeSet<&String> = self.left.values().flatten().collect();
        let healed = self.healed.keys().filter(|what| !left.contains(what)).map(|what| format!("{what} (healed)"));
        let mut texts: Vec<String> =
            left.iter().map(|what| format!("{what} (left)")).chain(healed).take(MAX_ITEMS).collect();
        texts.sort();
        texts
    }

    /// Stores the record of matching items, if it has changed.
    ///
    /// # Errors
    /// Fails when the record cannot be written. The next call tries again.
    pub fn save(&mut self, host: &dyn Host) -> Result<(), HostError> {
        if self.unsaved {
            files::write_json(host, SETTLED, &self.settled, Access::Inherited)?;
            self.unsaved = false;
        }
        Ok(())
    }
}

fn changes(wanted: &DesiredService, actual: Option<&ServiceInfo>) -> Vec<&'static str> {
    let Some(actual) = actual else { return vec!["deleted"] };
    let mut parts = wanted.differences(actual);
    parts.extend((actual.start != StartType::Demand).then_some("start type"));
    parts
}

/// Returns the value of the Node's drift annotation: as many of the texts as fit; `None` if there are none.
pub fn annotation(texts: &[String]) -> Option<String> {
    let mut value = String::new();
    for text in texts {
        let separator = if value.is_empty() { "" } else { "; " };
        if value.len() + separator.len() + text.len() <= LONGEST {
            value.push_str(separator);
            value.push_str(text);
        }
    }
    (!value.is_empty()).then_some(value)
}

#[cfg(test)]
#[path = "drift_tests.rs"]
mod tests;
