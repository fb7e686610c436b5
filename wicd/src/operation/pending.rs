//! Record of a restart that the host needs, kept until the host has been restarted.

use api::host::path;
use serde::{Deserialize, Serialize};

use crate::files::{self, Access};
use crate::host::{Host, HostError};

/// File with the record of a restart that the host needs.
const PENDING: &str = r"C:\k\wicd\reboot.json";
/// File with the boot ID of the boot in which Windows last reported that the feature Containers is enabled.
pub(super) const CONTAINERS: &str = r"C:\k\wicd\containers.json";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pending {
    /// ID of the boot in which the restart became necessary. In any other boot, the restart has happened.
    boot_id: String,
    why: String,
}

/// Returns the reason for which the host must be restarted; `None` if it need not be.
///
/// # Errors
/// Fails when a restart is on record and the boot ID cannot be read. An unreadable record counts as none.
pub fn pending_reboot(host: &dyn Host) -> Result<Option<String>, HostError> {
    let Some((pending, is_over)) = record(host)? else { return Ok(None) };
    Ok((!is_over).then_some(pending.why))
}

/// Returns the reason for which the host must be restarted, `None` if it need not be, and removes the record of a restart that has happened.
///
/// # Errors
/// Fails as [`pending_reboot`] does, or when a parent directory of the record is a link. A record that cannot be removed now is not an error.
pub fn settle_reboot(host: &dyn Host) -> Result<Option<String>, HostError> {
    let Some((pending, is_over)) = record(host)? else { return Ok(None) };
    if is_over {
        files::remove_if_unused(host, PENDING)?;
    }
    Ok((!is_over).then_some(pending.why))
}

/// Returns the record of a restart, and whether the restart has happened.
fn record(host: &dyn Host) -> Result<Option<(Pending, bool)>, HostError> {
    let Some(pending) = files::read_json::<Pending>(host, PENDING).unwrap_or_default() else { return Ok(None) };
    let is_over = pending.boot_id != host.boot_id()?;
    Ok(Some((pending, is_over)))
}

/// Records that the host must be restarted.
///
/// # Errors
/// Fails when the boot ID cannot be read, or the record cannot be written.
pub fn require_reboot(host: &dyn Host, why: &str) -> Result<(), HostError> {
    let pending = Pending { boot_id: host.boot_id()?, why: why.to_string() };
    files::write_json(host, PENDING, &pending, Access::Inherited).map(drop)
}

/// Files of wicd in [`path::WICD`] that a cleanup removes, without the ownership record and the marker, which are removed last. The operator removes
/// the lock and the epoch with the directory.
pub(super) fn own_files() -> Vec<&'static str> {
    vec![PENDING, CONTAINERS, super::SETTINGS, super::PAYLOADS, path::DESIRED, super::SETTLED]
}
