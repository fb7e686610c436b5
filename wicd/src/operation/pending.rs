//! A restart that the host needs, remembered until it has happened.

use api::host::path;
use serde::{Deserialize, Serialize};

use crate::files::{self, Access};
use crate::host::{Host, HostError};

/// Where it is remembered.
const PENDING: &str = r"C:\k\wicd\reboot.json";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pending {
    /// Boot in which the need arose. In another one it is over.
    boot_id: String,
    why: String,
}

/// Why the host must be restarted, if it must and has not been yet.
///
/// # Errors
/// When a restart is on record and the facts of the host cannot be read. A record that cannot be read is as good as none.
pub fn pending_reboot(host: &dyn Host) -> Result<Option<String>, HostError> {
    let pending: Option<Pending> = files::read_json(host, PENDING).unwrap_or_default();
    let Some(pending) = pending else { return Ok(None) };
    Ok((pending.boot_id == host.machine()?.boot_id).then_some(pending.why))
}

/// Remembers that the host must be restarted.
///
/// # Errors
/// When the facts of the host cannot be read, or the record cannot be written.
pub fn require_reboot(host: &dyn Host, why: &str) -> Result<(), HostError> {
    let pending = Pending { boot_id: host.machine()?.boot_id, why: why.to_string() };
    files::write_json(host, PENDING, &pending, Access::Inherited).map(drop)
}

/// Files of wicd's own in [`path::WICD`] that cleanup removes, besides the marker, which goes last. The lock and the epoch stay, and go with the directory.
pub(super) fn own_files() -> Vec<&'static str> {
    vec![PENDING, super::SETTINGS, super::PAYLOADS, path::DESIRED, super::SETTLED]
}
