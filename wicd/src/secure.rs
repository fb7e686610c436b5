//! Protection of wicd's directories: they must be real directories whose content only administrators of the host can change.
//!
//! By default, every user may create directories on `C:`, and owns what they create. So a directory of wicd may exist already as a link, or belong to
//! a user, who can change its access list at any time. Such a directory is refused with a remedy. A directory of an administrator
//! is taken over: Administrators become the owner of it and its content. The content of pod volumes stays as it is, and existing state directories
//! of other services are only checked.
//!
//! Parent directories (`C:\var`, `C:\var\log`) are shared with other programs. A user who may rename one or its entries can replace wicd's
//! directories. So a parent that belongs to a user is refused, too. Users lose the rights to change `C:\var`, `C:\var\lib` and `C:\var\log`
//! themselves, and the rights to replace the parents of the directories with CNI programs. Their rights to the content stay.

use api::host::{Desired, path};

use crate::access::{self, CHANGE, Guard, REPLACE, is_trusted};
use crate::files;
use crate::host::{Host, HostError, Kind, PathEntry};

/// Directory of kubelet's state.
const KUBELET: &str = r"C:\var\lib\kubelet";
/// Directory of pod volumes. Users of containers, who are not administrators of the host, read and write here.
pub const VOLUMES: &str = r"C:\var\lib\kubelet\pods";
/// Parent directories that are shared with other programs. Each comes after its own parent.
const SHARED: [&str; 3] = [r"C:\var", r"C:\var\lib", path::LOGS];
/// State directories of services. The services accept an existing directory, and maintain its access list themselves.
const STATE: [&str; 4] =
    [r"C:\var\lib\cni", r"C:\var\log\pods", r"C:\var\log\containers", r"C:\ProgramData\containerd"];

/// Directories from which SYSTEM starts programs, each after its parent: `wicd.exe` and all services, kubelet's FlexVolume drivers, and CNI programs
/// and configuration of containerd. Add any further directory of this kind here. Directories below `C:\Windows`, which Windows protects, are not
/// included.
pub fn programs(desired: &Desired) -> impl Iterator<Item = &str> {
    let cni = desired.cni_directories.iter().map(String::as_str);
    [path::ROOT, path::WICD, path::VOLUME_PLUGINS].into_iter().chain(cni)
}

/// Parents of a directory with programs, the topmost first. Empty for a directory in `C:\k`, which protects its content.
fn above(directory: &str) -> Vec<&str> {
    let is_below_root = directory.to_ascii_lowercase().starts_with(&format!(r"{}\", path::ROOT).to_ascii_lowercase());
    let mut above: Vec<&str> = std::iter::successors(files::parent(directory), |d| files::parent(d)).collect();
    above.reverse();
    if is_below_root { Vec::new() } else { above }
}

/// Creates or takes over `C:\k` and `C:\k\wicd`, whose programs run as SYSTEM.
///
/// # Errors
/// Fails when [`check_root`] refuses one of them, or it cannot be created or taken over.
pub fn root(host: &dyn Host) -> Result<(), HostError> {
    // Both are checked first, because a user's `C:\k\wicd` in an administrator's `C:\k` would be taken over with it.
    check_root(host)?;
    own(host, path::ROOT)?;
    own(host, path::WICD)
}

/// Refuses `C:\k` and `C:\k\wicd` if they cannot be trusted. Changes nothing.
///
/// # Errors
/// [`HostError::Refused`] for a directory that is a link, is a file, or belongs to a user who may not be an administrator. Also fails when a directory
/// cannot be inspected.
pub fn check_root(host: &dyn Host) -> Result<(), HostError> {
    [path::ROOT, path::WICD].into_iter().try_for_each(|directory| check(host, directory, Guard::Private).map(drop))
}

/// Restricts read access to the operator's uploads to administrators. Other users never have write access there. A missing directory is success.
///
/// # Errors
/// Fails when the directory is a link, is a file, or belongs to a user who may not be an administrator. Also fails when it cannot be inspected or
/// taken over.
pub fn launch(host: &dyn Host) -> Result<(), HostError> {
    if host.place(&host.path(path::LAUNCH)?)?.is_some() {
        own(host, path::LAUNCH)?;
    }
    Ok(())
}

/// Creates or takes over the directories for programs, kubelet's state and logs, before they are used. The content of pod volumes stays as it is.
/// Existing directories of [`STATE`] are only checked.
///
/// # Errors
/// Fails when [`check_state`] refuses one of them, or it cannot be created, taken over or protected.
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
        // Until now, another user may have been able to replace this directory.
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

/// Refuses the directories that [`state`] would refuse. Changes nothing.
///
/// # Errors
/// [`HostError::Refused`] for the first directory that is a link, is a file, or belongs to a user who may not be an administrator,
/// [`HostError::Link`] for a link above it. Also fails when a directory cannot be inspected.
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

/// Creates a private directory, or takes over an existing one if that is allowed.
fn own(host: &dyn Host, directory: &str) -> Result<(), HostError> {
    let place = there(host, directory, Guard::Private)?;
    if is_ours(&place, Guard::Private) { Ok(()) } else { take(host, directory, None) }
}

/// Takes over a directory with its content except `except`: others could write here until now, and may own files or have granted rights to them.
fn take(host: &dyn Host, directory: &str, except: Option<&str>) -> Result<(), HostError> {
    let real = host.path(directory)?;
    let except = except.map(|except| host.path(except)).transpose()?;
    // From now on, no other user can write here. The directory gets its final access list only at the end, so that an interrupted takeover is
    // repeated.
    host.protect(&real, Guard::TakingOver)?;
    host.reset_below(&real, except.as_deref())?;
    host.protect(&real, Guard::Private)
}

/// Removes these rights of untrusted users to a shared parent directory, which is created if it is missing.
fn share(host: &dyn Host, directory: &str, rights: u32) -> Result<(), HostError> {
    let place = there(host, directory, Guard::Readable)?;
    match place.access.narrowed(is_trusted, rights) {
        Some(list) => host.set_access(&host.path(directory)?, &list),
        None => Ok(()),
    }
}

/// Returns the directory at this path, which is created if it is missing.
fn there(host: &dyn Host, directory: &str, guard: Guard) -> Result<PathEntry, HostError> {
    if let Some(place) = check(host, directory, guard)? {
        return Ok(place);
    }
    host.make_guarded(&host.path(directory)?, guard)?;
    // Another user may have created it meanwhile.
    check(host, directory, guard)?.ok_or_else(|| HostError::Refused {
        path: directory.to_string(),
        problem: "it was removed right after it was created; the operator retries".into(),
    })
}

/// Reports whether a directory has the owner and access list that wicd sets. Otherwise others may have written in it, and it must be taken over with
/// its content.
fn is_ours(place: &PathEntry, guard: Guard) -> bool {
    place.owner == access::ADMINISTRATORS && place.access.is(guard)
}

/// Returns the directory at this path, `None` if there is none. Refuses one that cannot be used. `guard` is [`Guard::Readable`] for a shared parent.
fn check(host: &dyn Host, directory: &str, guard: Guard) -> Result<Option<PathEntry>, HostError> {
    let _held = files::parents(host, directory)?;
    let Some(place) = host.place(&host.path(directory)?)? else { return Ok(None) };
    match objection(&place, directory, guard) {
        None => Ok(Some(place)),
        Some(problem) => Err(HostError::Refused { path: directory.to_string(), problem }),
    }
}

/// Returns the reason why a directory cannot be used, with a remedy.
fn objection(place: &PathEntry, directory: &str, guard: Guard) -> Option<String> {
    match place.kind {
        Kind::Directory => {}
        Kind::Link => return Some("it is a link to another place; remove the link".into()),
        Kind::File => return Some("it is not a directory; move it".into()),
    }
    // A directory of wicd is taken over with its content. The content of a shared parent may belong to other owners, and stays unchanged.
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
