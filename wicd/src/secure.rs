//! The directories of ours: that they are what they seem to be, and that no user of the host but its administrators can change
//! what lies in them.
//!
//! By default every user may make directories on `C:`, and change what is made below them later. So a directory may be a link to
//! another place, or belong to a user, who may then change its access list at any time, before we come to it. Such a
//! one is refused, with what to do. One that belongs to an administrator is given to all of them, with all that is below it.
//!
//! What was there before and is not ours (`C:\var`, `C:\var\log`) keeps its access list.

use api::host::path;

use crate::files;
use crate::host::{Guard, Host, HostError, Kind, Place};

/// kubelet's state.
const KUBELET: &str = r"C:\var\lib\kubelet";
/// Volumes of pods. The users of containers are no administrators of the host, and read and write here.
pub const VOLUMES: &str = r"C:\var\lib\kubelet\pods";
/// Directories above ours, which are not ours alone. Those that are missing are made such that no user can put another one
/// in the place of what is in them.
const SHARED: [&str; 3] = [r"C:\var", r"C:\var\lib", path::LOGS];

/// Users whose directories are taken over: SYSTEM, the group Administrators, TrustedInstaller.
const TRUSTED: [&str; 3] =
    ["S-1-5-18", "S-1-5-32-544", "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"];

/// Makes sure of `C:\k` and `C:\k\wicd`: what lies there runs as SYSTEM.
pub fn root(host: &dyn Host) -> Result<(), HostError> {
    // Before anything is taken over: `C:\k\wicd` of a user in a `C:\k` of an administrator would be taken over with it.
    check_root(host)?;
    own(host, path::ROOT, Guard::Private)?;
    own(host, path::WICD, Guard::Private)
}

/// Refuses a `C:\k` that cannot be trusted. Changes nothing.
pub fn check_root(host: &dyn Host) -> Result<(), HostError> {
    [path::ROOT, path::WICD].into_iter().try_for_each(|directory| check(host, directory).map(drop))
}

/// Lets only administrators read what the operator sends from now on. That no other user can write there was so before.
pub fn launch(host: &dyn Host) -> Result<(), HostError> {
    if host.place(&host.path(path::LAUNCH)?)?.is_some() {
        own(host, path::LAUNCH, Guard::Private)?;
    }
    Ok(())
}

/// Makes sure of the directories for kubelet's keys and for logs, before anything is in them.
pub fn state<'a>(host: &dyn Host, logs: impl IntoIterator<Item = &'a String>) -> Result<(), HostError> {
    for directory in SHARED {
        if check(host, directory)?.is_none() {
            host.make_guarded(&host.path(directory)?, Guard::Readable)?;
        }
    }
    let kubelet = check(host, KUBELET)?;
    if kubelet.is_none() {
        host.make_guarded(&host.path(KUBELET)?, Guard::Private)?;
    }
    // Volumes come before what is above them: an access list goes on to all below that has none of its own.
    match check(host, VOLUMES)? {
        None => host.make_guarded(&host.path(VOLUMES)?, Guard::Volumes)?,
        Some(place) if place.is_guarded => {}
        Some(_) => host.protect(&host.path(VOLUMES)?, Guard::Volumes)?,
    }
    if kubelet.is_some_and(|place| !place.is_guarded) {
        host.protect(&host.path(KUBELET)?, Guard::Private)?;
    }
    own(host, path::KUBELET_PKI, Guard::Private)?;
    logs.into_iter().try_for_each(|directory| own(host, directory, Guard::Private))
}

/// What [`state`] would refuse. Changes nothing.
pub fn check_state<'a>(host: &dyn Host, logs: impl IntoIterator<Item = &'a String>) -> Result<(), HostError> {
    let ours = [KUBELET, VOLUMES, path::KUBELET_PKI];
    let all = SHARED.into_iter().chain(ours).chain(logs.into_iter().map(String::as_str));
    all.into_iter().try_for_each(|directory| check(host, directory).map(drop))
}

/// Makes a directory ours: it is made, or taken over if it may be.
fn own(host: &dyn Host, directory: &str, guard: Guard) -> Result<(), HostError> {
    let real = host.path(directory)?;
    let Some(place) = check(host, directory)? else { return host.make_guarded(&real, guard) };
    host.protect(&real, guard)?;
    if !place.is_guarded {
        // Until now others could write here: what they have made is theirs, and what they have opened to others is open.
        host.reset_below(&real)?;
    }
    Ok(())
}

/// What is at the place of a directory, if it can be used.
fn check(host: &dyn Host, directory: &str) -> Result<Option<Place>, HostError> {
    let _held = files::parents(host, directory)?;
    let Some(place) = host.place(&host.path(directory)?)? else { return Ok(None) };
    match objection(&place, directory) {
        None => Ok(Some(place)),
        Some(problem) => Err(HostError::Refused { path: directory.to_string(), problem }),
    }
}

/// Why a directory cannot be used, and what to do.
fn objection(place: &Place, directory: &str) -> Option<String> {
    match place.kind {
        Kind::Directory => {}
        Kind::Link => return Some("it is a link to another place; remove the link".into()),
        Kind::File => return Some("it is not a directory; move it".into()),
    }
    // A directory that others may write may belong to any user.
    let trusted = SHARED.contains(&directory) || place.is_own || is_trusted(&place.owner);
    (!trusted).then(|| {
        format!(
            "it belongs to {}, who may not be an administrator; check its content, then remove it, or give it to the administrators (takeown /a /r /f {directory})",
            place.owner
        )
    })
}

/// Whether an owner (a SID) is an administrator in any case: one of [`TRUSTED`], or the built-in Administrator, whatever its
/// name is.
fn is_trusted(sid: &str) -> bool {
    let built_in = sid.strip_prefix("S-1-5-21-").and_then(|rest| rest.strip_suffix("-500"));
    TRUSTED.contains(&sid)
        || built_in.is_some_and(|machine| machine.split('-').filter(|n| n.parse::<u32>().is_ok()).count() == 3)
}

#[cfg(test)]
#[path = "secure_tests.rs"]
mod tests;
