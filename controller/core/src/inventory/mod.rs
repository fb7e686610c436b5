//! Hosts of a pool, by the list that names them: names, conflicts, removals, and whether a newer list is used.
//!
//! Every source gives the same: a list of entries, each with its location, and a list of problems, each with one entry. All are treated in the same
//! way ([`hosts`]).

pub mod address;
pub mod concerns;
mod departing;
pub mod fleet;
pub mod hosts;
pub mod instances;
pub mod letting_go;
pub mod list;
pub mod naming;
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

/// An entry of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The entry of the host. The name is empty where the source has no names: the host reports it.
    pub host: Host,
    /// Place of the entry. `None` for the pool's own list.
    pub origin: Option<Origin>,
}

/// A whole list, read and checked without the lists of other pools.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostList {
    /// Entries that can be used.
    pub entries: Vec<Entry>,
    /// Entries that cannot be used. One bad entry stops only itself.
    pub problems: Vec<EntryError>,
    /// Source of the list. `None` for the pool's own list.
    pub status: Option<InventoryStatus>,
    /// Reason why something newer is not used, or is not known.
    pub trouble: Option<SourceError>,
    /// Read of the source that the list is from, if that was before this one: a repository is not fetched each time.
    pub as_of: Option<ownership::Begun>,
    /// Time when the source was last read. `None` for the pool's own list, and of a list that was kept from before.
    pub read_at: Option<Timestamp>,
    /// Time of the next read of the source. `None`: when it reports a change.
    pub next: Option<Timestamp>,
    /// Hosts that leave with their Machines, for a list of Machines. `None`: the removal of an entry is the sign.
    pub departures: Option<Departures>,
}

/// Hosts that leave because of their Machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Departures {
    /// Instances whose Machine is being deleted, or is gone, and the host with it. The host is left alone.
    pub vanishing: BTreeSet<String>,
    /// Instances whose Machine a user has excluded from the operator.
    pub dismissed: BTreeSet<String>,
}

/// Reason why a source cannot be read, or not followed.
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
    /// Converts the fault of the source, which is that of no entry.
    fn from(trouble: &SourceError) -> Self {
        Self { host: String::new(), reason: trouble.reason, message: trouble.message.clone() }
    }
}

/// Outcome of asking a source.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceOutcome {
    /// A list that is in force.
    Listed(Box<HostList>),
    /// No list is there: existing hosts stay unchanged until a user confirms their removal.
    Missing(SourceError),
    /// No list is known: hosts that are there stay as they are, and nothing is removed.
    Unknown(SourceError, Option<Timestamp>),
}

impl SourceOutcome {
    /// Returns the time when the source last gave what is in force. `None` while it does not, or if there is no source to read.
    pub fn success(&self) -> Option<Timestamp> {
        match self {
            Self::Listed(list) if list.trouble.is_none() => list.read_at,
            _ => None,
        }
    }

    /// Reports whether the source cannot be read, or what it has cannot be used. A source that is being read for the first time fails in nothing.
    pub fn is_failure(&self) -> bool {
        match self {
            Self::Listed(list) => list.trouble.is_some(),
            Self::Missing(_) => true,
            Self::Unknown(trouble, _) => !list::is_no_news(trouble),
        }
    }
}

/// An entry that is not used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryError {
    /// Name of the host.
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
    fn only_what_is_in_force_is_a_success() {
        let at: Timestamp = "2027-01-01T08:00:00Z".parse().unwrap();
        let error = SourceError { reason: Reason::GitOperationFailed, message: String::new(), stalls: false };
        let listed =
            |read_at, trouble| SourceOutcome::Listed(Box::new(HostList { trouble, read_at, ..HostList::default() }));
        let first = SourceError { reason: Reason::Fetching, ..error.clone() };
        for (about, outcome, success, is_failure) in [
            ("read", listed(Some(at), None), Some(at), false),
            ("the pool's own list, or one kept from before", listed(None, None), None, false),
            ("an old list, because the source fails", listed(Some(at), Some(error.clone())), None, true),
            ("no list", SourceOutcome::Missing(error.clone()), None, true),
            ("nothing is known", SourceOutcome::Unknown(error, None), None, true),
            ("it is read for the first time", SourceOutcome::Unknown(first, None), None, false),
        ] {
            assert_eq!((outcome.success(), outcome.is_failure()), (success, is_failure), "{about}");
        }
    }
}
