//! `pull`: pulls at most one image, pins the listed images that exist, and unpins those that wicd has pinned and that are no longer listed.
//!
//! A pin is recorded before it is set, so that it is released even after a crash. An image that was pinned before, such as containerd's sandbox
//! image, is never recorded, and stays pinned.

use std::time::Duration;

use api::host::{Outcome, Pull, path};

use super::{Failure, Report, lock};
use crate::files;
use crate::host::Host;
use crate::images::{ImageError, ImageStore, logins};
use crate::ownership::Ownership;

/// Maximum number of attempts with different logins for an image.
const MAX_LOGINS: usize = 4;
/// Upper bound of the requested time limit for a pull.
const LONGEST: Duration = Duration::from_hours(6);

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Self {
        Self::new(error.reason(), error.to_string())
    }
}

/// Pulls and pins images. Runs without the lock, which the caller has released: a pull may take hours, and must not block the service. Takes the lock
/// only to change the ownership record.
pub(super) fn pull(host: &dyn Host, body: &Pull, report: &mut Report) -> Result<Outcome, Failure> {
    let store = host.images()?;
    let store = store.as_ref();
    release(host, store, &body.images)?;
    let mut missing = Vec::new();
    for image in &body.images {
        let mut id = store.find(image)?;
        if id.is_none() && body.pull.as_ref() == Some(image) {
            fetch(host, store, image, Duration::from_secs(body.limit_seconds).min(LONGEST))?;
            id = store.find(image)?;
        }
        match id {
            Some(id) => pin(host, store, image, &id)?,
            None => missing.push(image.clone()),
        }
    }
    report.missing_images = missing;
    Ok(Outcome::Done)
}

/// Unpins all images that wicd has pinned. A failure is only a warning, because the host may have no containerd by now.
pub(super) fn unpin_all(host: &dyn Host, owned: &Ownership, report: &mut Report) {
    if owned.pinned.is_empty() {
        return;
    }
    let unpin = |store: Box<dyn ImageStore>| owned.pinned.values().try_for_each(|id| store.set_pinned(id, false));
    if let Err(error) = host.images().and_then(unpin) {
        let images: Vec<&str> = owned.pinned.keys().map(String::as_str).collect();
        report.warn(format!(
            "images that were pulled in advance stay pinned in containerd, so that kubelet never deletes them ({}): {error}. If this containerd stays in \
             use, delete them by hand (ctr.exe -n k8s.io images rm IMAGE)",
            images.join(", ")
        ));
    }
}

fn fetch(host: &dyn Host, store: &dyn ImageStore, image: &str, limit: Duration) -> Result<(), Failure> {
    let config = files::read(host, path::REGISTRY_LOGINS)?.unwrap_or_default();
    let mut failure = None;
    for login in logins(&config, image).iter().take(MAX_LOGINS) {
        match store.pull(image, Some(login), limit) {
            Ok(()) => return Ok(()),
            // The registry may accept another login.
            Err(refused @ ImageError::Refused { .. }) => failure = Some(refused),
            Err(error) => return Err(error.into()),
        }
    }
    match failure {
        Some(failure) => Err(failure.into()),
        None => Ok(store.pull(image, None, limit)?),
    }
}

/// Unpins images that are no longer listed.
fn release(host: &dyn Host, store: &dyn ImageStore, listed: &[String]) -> Result<(), Failure> {
    let owned = Ownership::load_or_adopt(host)?;
    for (image, id) in owned.pinned.iter().filter(|(image, _)| !listed.contains(image)) {
        let is_kept = owned.pinned.iter().any(|(other, its)| its == id && listed.contains(other));
        if !is_kept {
            store.set_pinned(id, false)?;
        }
        record(host, |owned| drop(owned.pinned.remove(image)))?;
    }
    Ok(())
}

fn pin(host: &dyn Host, store: &dyn ImageStore, image: &str, id: &str) -> Result<(), Failure> {
    let owned = Ownership::load_or_adopt(host)?;
    let is_ours = owned.pinned.values().any(|its| its == id);
    let is_pinned = store.is_pinned(id)?;
    if is_pinned && !is_ours {
        return Ok(());
    }
    let before = owned.pinned.get(image).filter(|before| *before != id);
    if let Some(before) = before
        && !owned.pinned.iter().any(|(other, its)| its == before && other != image)
    {
        // The name refers to another image now.
        store.set_pinned(before, false)?;
    }
    if owned.pinned.get(image).is_none_or(|its| its != id) {
        record(host, |owned| drop(owned.pinned.insert(image.to_string(), id.to_string())))?;
    }
    if !is_pinned {
        store.set_pinned(id, true)?;
    }
    Ok(())
}

fn record(host: &dyn Host, change: impl FnOnce(&mut Ownership)) -> Result<(), Failure> {
    let _lock = lock(host)?;
    Ok(Ownership::update(host, change)?)
}

#[cfg(test)]
#[path = "pull_tests.rs"]
mod tests;
