//! `cleanup`: removes the objects that the ownership record lists, and wicd's own state. If an object cannot be removed, the rest is still removed.
//!
//! `wicd.exe`, the lock and the record of the highest epoch stay in `C:\k\wicd`, which the operator removes.

use api::Reason;
use std::collections::BTreeSet;

use api::host::{Marker, Outcome, WICD_SERVICE, path};

use super::{Failure, Report, chain, pending, pull};
use crate::credential_plugin;
use crate::files::{self, Access};
use crate::host::{Host, HostError, ServiceInfo};
use crate::kept_files;
use crate::ownership::{Ownership, Routes};

/// Directory of containerd's images and state. Only containerd itself can remove image layers completely, so a cleanup succeeds even if some are
/// left.
pub(super) const CONTAINERD_STATE: &str = r"C:\ProgramData\containerd";
/// Maximum number of leftovers of [`CONTAINERD_STATE`].
const LEFTOVERS: u32 = 8;

/// Path to which [`CONTAINERD_STATE`] is moved before it is removed.
fn leftover(n: u32) -> String {
    format!("{CONTAINERD_STATE}.old-{n}")
}

/// Failures of a cleanup, as messages.
#[derive(Default)]
struct Failures(Vec<String>);

impl Failures {
    fn note<T>(&mut self, result: Result<T, HostError>) -> Option<T> {
        result.map_err(|e| self.0.push(chain(&e))).ok()
    }

    /// Records a failure, unless it is about a link, which is a warning: files behind a link are not wicd's and stay, and the cleanup still
    /// succeeds.
    fn unless_link<T>(&mut self, result: Result<T, HostError>, report: &mut Report) -> Option<T> {
        match result {
            Err(link @ HostError::Link { .. }) => {
                report.warn(link.to_string());
                None
            }
            result => self.note(result),
        }
    }
}

pub(super) fn cleanup(host: &dyn Host, report: &mut Report) -> Result<Outcome, Failure> {
    let mut owned = Ownership::load_or_adopt(host)?;
    credential_plugin::claim(host, None, &mut owned)?;
    let mut left = BTreeSet::new();
    let mut failures = Failures::default();
    withdraw(host)?;
    if owned != Ownership::default() {
        // An adopted record is derived from WMCO's services, so it is saved before these are removed.
        owned.save(host)?;
        failures.note(credential_plugin::close_keys(host, &mut owned));
        // Unpinning needs containerd, so it comes before the removal of the services.
        pull::unpin_all(host, &owned, report);
        remove_services(host, &owned, report, &mut failures);
        failures.note(host.kill_leftovers());
        restore(host, &owned, &mut failures);
        failures.note(remove_routes(host, &owned.routes));
        let kept = failures.note(credential_plugin::unregister_others(host, None, &mut owned));
        for warning in kept.into_iter().flatten() {
            report.warn(warning);
        }
        host.remove_any();
        left = remove_containerd_state(host, &mut owned, report);
        remove_files(host, &owned, report, &mut failures);
        failures.note(kept_files::restore(host, &mut owned, &BTreeSet::new()));
    }
    failures.note(files::remove_tree(host, path::BLOBS));
    for file in pending::own_files() {
        failures.note(files::remove(host, file));
    }
    if owned != Ownership::default() {
        // The networks are removed last, because that may cut the SSH connection of this operation; a repeated cleanup then only repeats this step.
        failures.note(host.remove_networks());
    }
    if !failures.0.is_empty() {
        let message = format!(
            "the host is not clean, because {} of the cleanup's steps failed: {}",
            failures.0.len(),
            failures.0.join("; ")
        );
        return Err(Failure::new(Reason::CleanupIncomplete, message));
    }
    if left.is_empty() {
        Ownership::forget(host)?;
    } else {
        Ownership::only_left(left).save(host)?;
    }
    files::remove(host, path::STATE)?;
    Ok(Outcome::Done)
}

/// Clears the version that the host follows. The owner stays on record until the host is clean, so that no other operator takes over the host.
fn withdraw(host: &dyn Host) -> Result<(), HostError> {
    let Some(marker) = super::state::marker(host) else { return Ok(()) };
    let nothing = Marker { version: String::new(), payload: String::new(), configs: String::new(), ..marker };
    files::write_json(host, path::STATE, &nothing, Access::Inherited).map(drop)
}

fn remove_services(host: &dyn Host, owned: &Ownership, report: &mut Report, failures: &mut Failures) {
    let Some(services) = failures.note(host.services()) else { return };
    let (ours, others): (Vec<_>, Vec<_>) = services.into_iter().partition(|s| owned.is_ours(s));
    for other in others.iter().filter(|s| owned.services.contains(&s.name)) {
        report.warn(format!(
            "service {} stays: its description is not the operator's. If nobody needs it, delete it with sc.exe delete",
            other.name
        ));
    }
    let names: BTreeSet<String> = ours.iter().map(|s| s.name.clone()).collect();
    for name in removal_order(ours) {
        let Some(stopped) = failures.note(host.stop_service(&name)) else { continue };
        for dependent in stopped.iter().filter(|dependent| !names.contains(*dependent)) {
            report.warn(format!(
                "service {dependent}, which the operator did not install, was stopped because it depends on {name}, which the operator removes: \
                 uninstall {dependent}, or remove this dependency from it and start it again"
            ));
        }
        failures.note(host.delete_service(&name));
    }
}

/// Orders services for their removal: wicd's first, because it restarts the others; then each before its dependencies. Services in a cycle keep
/// their order.
fn removal_order(mut services: Vec<ServiceInfo>) -> Vec<String> {
    let mut order = Vec::new();
    while !services.is_empty() {
        let needed = |name: &str| {
            services.iter().any(|s| s.name != name && s.dependencies.iter().any(|d| d.eq_ignore_ascii_case(name)))
        };
        let next = services
            .iter()
            .position(|s| s.name == WICD_SERVICE)
            .or_else(|| services.iter().position(|s| !needed(&s.name)))
            .unwrap_or_default();
        order.push(services.remove(next).name);
    }
    order
}

/// Restores variables, trusted certificates and antivirus exclusions to their original state.
fn restore(host: &dyn Host, owned: &Ownership, failures: &mut Failures) {
    for (name, value) in &owned.env_vars {
        failures.note(host.set_env_var(name, value.as_deref()));
    }
    for der in owned.trusted.union(&owned.adopted_trust) {
        failures.note(host.untrust(&hex::decode(der).unwrap_or_default()));
    }
    for program in &owned.excluded {
        failures.note(host.include_in_antivirus(program));
    }
}

/// Removes the routes that wicd has created since the host was started. Windows does not keep older ones.
fn remove_routes(host: &dyn Host, routes: &Routes) -> Result<(), HostError> {
    if routes.made.is_empty() || routes.boot_id != host.boot_id()? {
        return Ok(());
    }
    routes.made.iter().try_for_each(|route| host.remove_route(route))
}

/// Moves containerd's state away atomically, and removes it there: the next containerd must not find layers whose records are missing. If it cannot
/// be moved, it stays complete. Returns the leftovers, which stay on record for the next cleanup.
fn remove_containerd_state(host: &dyn Host, owned: &mut Ownership, report: &mut Report) -> BTreeSet<String> {
    let mut left = BTreeSet::new();
    if owned.trees.remove(CONTAINERD_STATE)
        && let Err(e) = move_aside(host, owned)
    {
        let later = if matches!(e, HostError::Link { .. }) {
            ""
        } else {
            left.insert(CONTAINERD_STATE.to_owned());
            "; restart Windows, and remove this directory by hand or with the next removal of the host"
        };
        report.warn(format!("images of containerd stay in {CONTAINERD_STATE}{later}: {}", chain(&e)));
    }
    for aside in (0..LEFTOVERS).map(leftover).filter(|aside| owned.trees.remove(aside)).collect::<Vec<_>>() {
        if let Err(e) = files::remove_tree(host, &aside) {
            report.warn(format!(
                "images of containerd are left in {aside}, which cannot be removed: {}. Restart Windows, and remove the directory by hand",
                chain(&e)
            ));
            left.insert(aside);
        }
    }
    left
}

fn move_aside(host: &dyn Host, owned: &mut Ownership) -> Result<(), HostError> {
    if !files::exists(host, CONTAINERD_STATE)? {
        return Ok(());
    }
    let mut free = None;
    for aside in (0..LEFTOVERS).map(leftover) {
        if !files::exists(host, &aside)? {
            free = Some(aside);
            break;
        }
    }
    let aside = free.ok_or_else(|| {
        let problem = format!("{LEFTOVERS} earlier copies of it are left; remove {CONTAINERD_STATE}.old-* by hand");
        HostError::Refused { path: CONTAINERD_STATE.to_owned(), problem }
    })?;
    // Both paths are on record before the move.
    let mut both = owned.clone();
    both.trees.extend([CONTAINERD_STATE.to_owned(), aside.clone()]);
    both.save(host)?;
    files::move_tree(host, CONTAINERD_STATE, &aside)?;
    owned.trees.insert(aside);
    Ok(())
}

fn remove_files(host: &dyn Host, owned: &Ownership, report: &mut Report, failures: &mut Failures) {
    for file in owned.placed.union(&owned.files) {
        if failures.unless_link(files::remove(host, file), report).is_none() {
            continue;
        }
        if failures.note(files::remove_old(host, file)) == Some(false) {
            failures.0.push(format!(
                "earlier copies of {file} ({file}.old-*) cannot be removed; end the programs that use them"
            ));
        }
    }
    for tree in &owned.trees {
        failures.unless_link(files::remove_tree(host, tree), report);
    }
    // Longer paths come first, because they may be below shorter ones.
    let mut directories: Vec<&String> = owned.directories.iter().collect();
    directories.sort_by_key(|d| std::cmp::Reverse(d.len()));
    for directory in directories {
        if failures.unless_link(files::remove_empty(host, directory), report) == Some(false) {
            report.warn(format!(
                "directory {directory} stays because it is not empty; delete it if nobody needs its files"
            ));
        }
    }
}

#[cfg(test)]
#[path = "cleanup_tests.rs"]
mod tests;
