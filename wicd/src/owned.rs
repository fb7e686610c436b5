//! What wicd has put on the host.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Content of [`api::host::path::OWNED`]. An entry is written before the thing itself, so that nothing of ours is ever
/// without one; an entry without a thing is harmless.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Owned {
    /// Services, in the order in which they were made.
    pub services: Vec<String>,
    /// Files.
    pub files: BTreeSet<String>,
    /// Directories that were not there before.
    pub directories: BTreeSet<String>,
    /// Environment variables, and what they were before (`None`: not there).
    pub env_vars: BTreeMap<String, Option<String>>,
    /// Certificates (lower-case hex of the DER) that were not trusted before.
    pub trusted: BTreeSet<String>,
}
