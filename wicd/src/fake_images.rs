//! Fake containerd in memory, for tests and simulated hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::images::{ImageError, ImageStore, Login};

/// State of a simulated containerd.
#[derive(Clone, Debug, Default)]
pub struct Images {
    /// Image IDs by name.
    pub records: BTreeMap<String, String>,
    /// IDs of pinned images.
    pub pinned: BTreeSet<String>,
    /// Images of all attempts to pull while containerd answers, with the user name of the login.
    pub pulls: Vec<(String, Option<String>)>,
    /// Images that cannot be pulled, with the registry's error message.
    pub refused: BTreeMap<String, String>,
    /// User name that the registry requires.
    pub user: Option<String>,
    /// Duration of a pull.
    pub pull_time: Duration,
    /// True if containerd does not answer.
    pub down: bool,
}

/// Returns the ID of an image that is pulled under this name.
pub fn id(image: &str) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(image)))
}

/// Image store of a simulated host.
pub(crate) struct FakeImages {
    pub(crate) images: Arc<Mutex<Images>>,
    /// True if containerd's service exists and does not run.
    pub(crate) is_stopped: bool,
}

impl FakeImages {
    fn answer<T>(&self, of: impl FnOnce(&mut Images) -> T) -> Result<T, ImageError> {
        let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        if images.down || self.is_stopped {
            return Err(ImageError::Unavailable { endpoint: "the pipe".into(), problem: "it is not there".into() });
        }
        Ok(of(&mut images))
    }
}

impl ImageStore for FakeImages {
    fn find(&self, image: &str) -> Result<Option<String>, ImageError> {
        self.answer(|images| images.records.get(image).cloned())
    }

    fn pull(&self, image: &str, login: Option<&Login>, limit: Duration) -> Result<(), ImageError> {
        let refuse =
            |problem: &str| ImageError::Refused { what: format!("pull image {image}"), problem: problem.into() };
        let takes = self.answer(|images| images.pull_time)?;
        std::thread::sleep(takes.min(limit));
        self.answer(|images| {
            images.pulls.push((image.to_string(), login.map(|l| l.username.clone())));
            if takes > limit {
                return Err(ImageError::PullTimeout { image: image.to_string(), seconds: limit.as_secs() });
            }
            if let Some(words) = images.refused.get(image) {
                return Err(refuse(words));
            }
            if images.user.is_some() && images.user.as_ref() != login.map(|l| &l.username) {
                return Err(refuse("401 Unauthorized"));
            }
            images.records.entry(image.to_string()).or_insert_with(|| id(image));
            Ok(())
        })?
    }

    fn is_pinned(&self, id: &str) -> Result<bool, ImageError> {
        self.answer(|images| images.pinned.contains(id))
    }

    fn set_pinned(&self, id: &str, pinned: bool) -> Result<(), ImageError> {
        self.answer(|images| {
            if !pinned {
                images.pinned.remove(id);
                return Ok(());
            }
            if !images.records.values().any(|its| its == id) {
                let problem = "containerd no longer has the image".into();
                return Err(ImageError::Refused { what: format!("pin image {id}"), problem });
            }
            images.pinned.insert(id.to_string());
            Ok(())
        })?
    }
}
