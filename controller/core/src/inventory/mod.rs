//! Hosts of a pool, from the list of its source: names, conflicts, removals, and whether a newer list is used.
//!
//! Every source provides the same: a list of entries, with their origins unless the list is the pool's own, and a list of problems, each of one
//! entry. [`hosts`] treats all entries in the same way.

pub mod address;
pub mod concerns;
mod departing;
pub mod fleet;
pub mod hosts;
pub mod instances;
pub mod list;
pub mod naming;
pub mod orphaning;
pub mod ownership;
pub mod removals;
pub mod revision_policy;
pub mod second_node;
pub mod source_pool;
pub mod strays;
pub mod wmco_nodes;

use std::collections::BTreeSet;

use api::{Host, InventoryStatus, Origin, Reason};
use jiff::Timestamp;

/// Entry of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Host of the entry. The name is empty if the source gives none; then [`naming`] looks for the name.
    pub host: Host,
    /// Origin of the entry in its source. `None` for the pool's own list.
    pub origin: Option<Origin>,
}

/// Complete list of a source, checked without the lists of other pools.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostList {
    /// Entries that can be used.
    pub entries: Vec<Entry>,
    /// Entries that cannot be used. A bad entry does not affect the others.
    pub problems: Vec<EntryError>,
    /// Source of the list. `None` for the pool's own list.
    pub status: Option<InventoryStatus>,
    /// Reason why a newer list is not used, or is not known. `None` if the list is the newest one.
    pub trouble: Option<SourceError>,
    /// Start of the earlier read that provided the list, because a repository is not fetched each time. `None` if this read provided it.
    pub as_of: Option<ownership::ReadStart>,
    /// Time when the source was last read. `None` for the pool's own list, and for a list that was kept from an earlier read.
    pub read_at: Option<Timestamp>,
    /// Time of the next read of the source. `None` if the source reports its changes.
    pub next: Option<Timestamp>,
    /// Hosts that leave because of their Machines. `None` for other sources, where a removed entry means that its host leaves.
    pub departures: Option<Departures>,
}

/// Hosts that leave because of their Machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Departures {
    /// Instances whose Machine is being deleted or gone, and their host with it. The operator does not touch these hosts.
    pub vanishing: BTreeSet<String>,
    /// Instances whose Machine a user has excluded from the operator.
    pub dismissed: BTreeSet<String>,
}

/// Reason why a source cannot be read, or its list cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceError {
    /// Reason for conditions and events.
    pub reason: Reason,
    /// Fault and remedy.
    pub message: String,
    /// True if the fault lasts until a user acts.
    pub stalls: bool,
}

impl From<&SourceError> for EntryError {
    /// Converts a fault of the source, which belongs to no entry.
    fn from(trouble: &SourceError) -> Self {
        Self { host: String::new(), reason: trouble.reason, message: trouble.message.clone() }
    }
}

/// Outcome of reading a source.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceOutcome {
    /// A list that is in force.
    Listed(Box<HostList>),
    /// The list does not exist: existing hosts stay unchanged until a user confirms their removal.
    Missing(SourceError),
    /// The list is not known: existing hosts stay unchanged, and none is removed. Holds the time of the next read.
    Unknown(SourceError, Option<Timestamp>),
}

impl SourceOutcome {
    /// Returns the time of the last successful read. `None` if the last read failed, if the list was kept from an earlier read, or if there is no
    /// source to read.
    pub fn success(&self) -> Option<Timestamp> {
        match self {
            Self::Listed(list) if list.trouble.is_none() => list.read_at,
            _ => None,
        }
    }

    /// Reports whether the source cannot be read, or its content cannot be used. A first read that is in progress is not a failure.
    pub fn is_failure(&self) -> bool {
        match self {
            Self::Listed(list) => list.trouble.is_some(),
            Self::Missing(_) => true,
            Self::Unknown(trouble, _) => !list::is_no_news(trouble),
        }
    }
}

/// Entry with a fault, or fault of the source, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryError {
    /// Name of the host, or its address if the entry has no name; empty for a fault of the source.
    pub host: String,
    /// Reason for conditions and events.
    pub reason: Reason,
    /// Fault and remedy.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_current_list_is_a_success() {
        let at: Timestamp = "2027-01-01T08:00:00Z".parse().unwrap();
        let error = SourceError { reason: Reason::GitOperationFailed, message: String::new(), stalls: false };
        let listed =
            |read_at, trouble| SourceOutcome::Listed(Box::new(HostList { trouble, read_at, ..HostList::default() }));
        let first = SourceError { reason: Reason::Fetching, ..error.clone() };
        for (about, outcome, success, is_failure) in [
            ("a list that was read", listed(Some(at), None), Some(at), false),
            ("the pool's own list, or one kept from before", listed(None, None), None, false),
            ("an older list, because the source fails", listed(Some(at), Some(error.clone())), None, true),
            ("no list", SourceOutcome::Missing(error.clone()), None, true),
            ("the list is unknown", SourceOutcome::Unknown(error, None), None, true),
            ("the source is read for the first time", SourceOutcome::Unknown(first, None), None, false),
        ] {
            assert_eq!((outcome.success(), outcome.is_failure()), (success, is_failure), "{about}");
        }
    }
}
