//! Checks of our directories: that they are what they seem to be, and that no user of the host but its administrators can change what lies in them.
//!
//! By default every user may make directories on `C:`, and change what is made below them later. So a directory may be a link to
//! another place, or belong to a user, who may then change its access list at any time, before we come to it. Such a
//! one is refused, with what to do. One that belongs to an administrator is given to all of them, with all that is below it.
//!
//! Directories above ours (`C:\var`, `C:\var\log`) are not ours alone. Who may rename one, or what is in it, can put another one in place of ours. So
//! one of a user is refused too, and in the others users may no longer change the directory itself. What they may do with what is below it stays.

use api::host::{Desired, path};

use crate::access::{self, CHANGE, Guard, REPLACE, is_trusted};
use crate::files;
use crate::host::{Host, HostError, Kind, Place};

/// Directory of kubelet's state.
const KUBELET: &str = r"C:\var\lib\kubelet";
/// Directory of the volumes of pods. The users of containers are no administrators of the host, and read and write here.
pub const VOLUMES: &str = r"C:\var\lib\kubelet\pods";
/// Directories above ours, which are not ours alone. Each comes after the one above it.
const SHARED: [&str; 3] = [r"C:\var", r"C:\var\lib", path::LOGS];
/// State directories of services, whose programs take a directory that is there for their own, and keep its access list themselves.
const STATE: [&str; 4] =
    [r"C:\var\lib\cni", r"C:\var\log\pods", r"C:\var\log\containers", r"C:\ProgramData\containerd"];

/// Directories from which SYSTEM starts programs, each after the one above it: `wicd.exe` and all services, FlexVolume drivers of
/// kubelet, and what containerd starts and reads for CNI. Another place of this kind belongs here. What Windows itself keeps from
/// users, below `C:\Windows`, is not in it.
pub fn programs(desired: &Desired) -> impl Iterator<Item = &str> {
    let cni = desired.cni_directories.iter().map(String::as_str);
    [path::ROOT, path::WICD, path::VOLUME_PLUGINS].into_iter().chain(cni)
}

/// Directories above one from which programs are started, the topmost first. None above a directory in `C:\k`, which guards what is below.
fn above(directory: &str) -> Vec<&str> {
    let is_below_root = directory.to_ascii_lowercase().starts_with(&format!(r"{}\", path::ROOT).to_ascii_lowercase());
    let mut above: Vec<&str> = std::iter::successors(files::parent(directory), |d| files::parent(d)).collect();
    above.reverse();
    if is_below_root { Vec::new() } else { above }
}

/// Makes or takes over `C:\k` and `C:\k\wicd`: what lies there runs as SYSTEM.
///
/// # Errors
/// Fails when [`check_root`] refuses one of them, or it cannot be made or taken over.
pub fn root(host: &dyn Host) -> Result<(), HostError> {
    // Before anything is taken over: `C:\k\wicd` of a user in a `C:\k` of an administrator would be taken over with it.
    check_root(host)?;
    own(host, path::ROOT)?;
    own(host, path::WICD)
}

/// Refuses a `C:\k` that cannot be trusted. Changes nothing.
///
/// # Errors
/// [`HostError::Refused`] for a directory that is a link, is a file, or belongs to a user who may not be an administrator. Also fails when it cannot
/// be inspected.
pub fn check_root(host: &dyn Host) -> Result<(), HostError> {
    [path::ROOT, path::WICD].into_iter().try_for_each(|directory| check(host, directory, Guard::Private).map(drop))
}

/// Restricts reading of what the operator sends to administrators. Other users could not write there before either.
///
/// # Errors
/// Fails when the operator's directory there is a link, is a file, or belongs to a user who may not be an administrator. Also fails when it cannot be
/// inspected or taken over.
pub fn launch(host: &dyn Host) -> Result<(), HostError> {
    if host.place(&host.path(path::LAUNCH)?)?.is_some() {
        own(host, path::LAUNCH)?;
    }
    Ok(())
}

/// Makes or takes over the directories for programs, state and logs, before anything is in them.
///
/// # Errors
/// Fails when [`check_state`] refuses one of them, or it cannot be made, taken over or protected.
pub fn state<'a>(
    host: &dyn Host,
    desired: &Desired,
    logs: impl IntoIterator<Item = &'a String>,
) -> Result<(), HostError> {
    SHARED.into_iter().try_for_each(|directory| share(host, directory, CHANGE))?;
    for directory in programs(desired) {
        above(directory).into_iter().try_for_each(|directory| share(host, directory, REPLACE))?;
        own(host, directory)?;
    }
    let kubelet = there(host, KUBELET, Guard::Private)?;
    if !is_ours(&there(host, VOLUMES, Guard::Volumes)?, Guard::Volumes) {
        host.protect(&host.path(VOLUMES)?, Guard::Volumes)?;
    }
    if !is_ours(&kubelet, Guard::Private) {
        take(host, KUBELET, Some(VOLUMES))?;
        // Until now another user may have been able to put his own in its place.
        check(host, VOLUMES, Guard::Volumes)?;
    }
    own(host, path::KUBELET_PKI)?;
    logs.into_iter().try_for_each(|directory| own(host, directory))?;
    for directory in STATE {
        if let Some(above) = files::parent(directory) {
            files::make_directory(host, above)?;
        }
        there(host, directory, Guard::Private)?;
    }
    Ok(())
}

/// Refuses what [`state`] would refuse. Changes nothing.
///
/// # Errors
/// [`HostError::Refused`] for the first directory that is a link, is a file, or belongs to a user who may not be an administrator,
/// [`HostError::Link`] for a link above it. Also fails when it cannot be inspected.
pub fn check_state<'a>(
    host: &dyn Host,
    desired: &'a Desired,
    logs: impl IntoIterator<Item = &'a String>,
) -> Result<(), HostError> {
    let ours = [KUBELET, VOLUMES, path::KUBELET_PKI].into_iter().chain(STATE).chain(programs(desired));
    let ours = ours.chain(logs.into_iter().map(String::as_str)).map(|directory| (directory, Guard::Private));
    let shared =
        SHARED.into_iter().chain(programs(desired).flat_map(above)).map(|directory| (directory, Guard::Readable));
    shared.chain(ours).try_for_each(|(directory, guard)| check(host, directory, guard).map(drop))
}

/// Makes a directory ours, for no other user: it is made, or taken over if it may be.
fn own(host: &dyn Host, directory: &str) -> Result<(), HostError> {
    let place = there(host, directory, Guard::Private)?;
    if is_ours(&place, Guard::Private) { Ok(()) } else { take(host, directory, None) }
}

/// Takes a directory over, with all that is below it but `except`: others could write here until now, so what they have made is
/// theirs, and what they have opened to others is open.
fn take(host: &dyn Host, directory: &str, except: Option<&str>) -> Result<(), HostError> {
    let real = host.path(directory)?;
    let except = except.map(|except| host.path(except)).transpose()?;
    // No other user can write here from now on. It has the list that says so only when all is done: if something fails in the
    // middle, all is gone through again.
    host.protect(&real, Guard::Unsettled)?;
    host.reset_below(&real, except.as_deref())?;
    host.protect(&real, Guard::Private)
}

/// Makes sure that no other user has one of these rights to a directory above ours.
fn share(host: &dyn Host, directory: &str, rights: u32) -> Result<(), HostError> {
    let place = there(host, directory, Guard::Readable)?;
    match place.access.narrowed(is_trusted, rights) {
        Some(list) => host.set_access(&host.path(directory)?, &list),
        None => Ok(()),
    }
}

/// Returns a directory of this path, which is made if it is missing.
fn there(host: &dyn Host, directory: &str, guard: Guard) -> Result<Place, HostError> {
    if let Some(place) = check(host, directory, guard)? {
        return Ok(place);
    }
    host.make_guarded(&host.path(directory)?, guard)?;
    // Another user may have been faster.
    check(host, directory, guard)?.ok_or_else(|| HostError::Refused {
        path: directory.to_string(),
        problem: "it was removed when it had just been made".into(),
    })
}

/// Reports whether a directory has all that it gets from us: where others could write, more is to be done than to change its access list.
fn is_ours(place: &Place, guard: Guard) -> bool {
    place.owner == access::ADMINISTRATORS && place.access.is(guard)
}

/// Returns the directory of this path, `None` if there is none. Refuses one that cannot be used. A directory that users may read is not ours alone.
fn check(host: &dyn Host, directory: &str, guard: Guard) -> Result<Option<Place>, HostError> {
    let _held = files::parents(host, directory)?;
    let Some(place) = host.place(&host.path(directory)?)? else { return Ok(None) };
    match objection(&place, directory, guard) {
        None => Ok(Some(place)),
        Some(problem) => Err(HostError::Refused { path: directory.to_string(), problem }),
    }
}

/// Returns why a directory cannot be used, and what to do.
fn objection(place: &Place, directory: &str, guard: Guard) -> Option<String> {
    match place.kind {
        Kind::Directory => {}
        Kind::Link => return Some("it is a link to another place; remove the link".into()),
        Kind::File => return Some("it is not a directory; move it".into()),
    }
    // All below a directory of ours is taken over; what else is below one above ours may be of others, and stays theirs.
    let command = if guard == Guard::Readable { "takeown /a /f" } else { "takeown /a /r /f" };
    let is_administrators = place.is_own || is_trusted(&place.owner);
    (!is_administrators).then(|| {
        format!(
            "it belongs to {}, who may not be an administrator; check its content, then remove it, or give it to the administrators ({command} {directory})",
            place.owner
        )
    })
}

#[cfg(test)]
#[path = "secure_tests.rs"]
mod tests;
