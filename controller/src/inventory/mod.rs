//! Where hosts come from. Every source gives the same: a list of entries, each with where it stands, and a list of problems, each
//! with one entry. What becomes of them is the same for all (`hosts`).

pub(crate) mod claims;
mod files;
pub(crate) mod flux;
pub(crate) mod git;
pub(crate) mod hostname_probe;
pub(crate) mod hosts;
pub(crate) mod naming;
pub(crate) mod removals;

use std::{collections::BTreeSet, sync::Arc};

use api::{Host, InventoryStatus, Origin};
use jiff::Timestamp;

pub(crate) use hosts::EntryError;

use crate::context::Context;
use claims::Claims;
use flux::Flux;
use git::GitSources;
use hostname_probe::HostnameProbe;

/// The sources of hosts that are read all the time, and what is known of their lists.
pub(crate) struct Sources {
    /// Which pool lists which hosts.
    pub claims: Claims,
    /// Hosts that are asked for their names.
    pub names: HostnameProbe,
    /// Git repositories.
    pub git: GitSources,
    /// Artifacts of Flux.
    pub flux: Arc<Flux>,
}

impl Sources {
    /// Begins with nothing read.
    pub(crate) fn new(cx: &Context) -> Self {
        let git = GitSources::new(
            cx.cluster.client.clone(),
            &cx.process.args,
            cx.wake.clone(),
            cx.process.metrics.clone(),
            cx.process.stop.clone(),
        );
        Self {
            claims: Claims::default(),
            names: HostnameProbe::default(),
            git,
            flux: Arc::new(Flux::new(&cx.process.args)),
        }
    }
}

/// An entry of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The entry of the host. The name is empty where the source has no names: the host reports it.
    pub host: Host,
    /// Where the entry stands. `None` for the pool's own list.
    pub origin: Option<Origin>,
}

/// A whole list, read and checked without the lists of other pools.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HostList {
    /// Entries that can be used.
    pub entries: Vec<Entry>,
    /// Those that cannot, where one bad entry stops only itself.
    pub problems: Vec<EntryError>,
    /// Where it comes from. `None` for the pool's own list.
    pub status: Option<InventoryStatus>,
    /// Why something newer is not used, or is not known.
    pub trouble: Option<SourceError>,
    /// Read of the source that it is from, if that was before this one: a repository is not fetched each time.
    pub as_of: Option<claims::Begun>,
    /// Time of the next read of the source. `None`: when it reports a change.
    pub next: Option<Timestamp>,
    /// For Machines: the hosts that leave with them. `None`: the removal of an entry is the sign.
    pub departures: Option<Departures>,
}

/// Hosts that leave because of their Machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Departures {
    /// Instances whose Machine is being deleted, or is gone, and the host with it. The host is left alone.
    pub vanishing: BTreeSet<String>,
    /// Instances whose Machine a person has excluded from the operator.
    pub dismissed: BTreeSet<String>,
}

/// Why a source cannot be read, or not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceError {
    /// PascalCase.
    pub reason: &'static str,
    /// What is wrong and what to do.
    pub message: String,
    /// Whether it lasts until a person acts.
    pub stalls: bool,
}

/// What came of asking a source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SourceOutcome {
    /// This list is in force.
    Listed(Box<HostList>),
    /// There is no list: present hosts stay unchanged until a person confirms their removal.
    Missing(SourceError),
    /// No list is known: hosts that are there stay as they are, and nothing is removed.
    Unknown(SourceError, Option<Timestamp>),
}
