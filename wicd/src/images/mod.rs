//! Container images: containerd's image store, as a trait.

mod containerd;
mod login;
mod messages;

use api::Reason;
use std::io;
use std::time::Duration;

pub use containerd::Containerd;
pub use login::{Login, logins};

use crate::access::is_trusted;

/// containerd's images, as kubelet sees them.
pub trait ImageStore {
    /// Returns the ID of an image, `sha256:…`; `None` if containerd does not have the image.
    ///
    /// # Errors
    /// Fails when containerd does not answer.
    fn find(&self, image: &str) -> Result<Option<String>, ImageError>;
    /// Pulls an image.
    ///
    /// # Errors
    /// Fails when containerd does not answer in time, or cannot pull it.
    fn pull(&self, image: &str, login: Option<&Login>, limit: Duration) -> Result<(), ImageError>;
    /// Reports whether the image of this ID is pinned. kubelet does not remove pinned images when the disk is full.
    ///
    /// # Errors
    /// Fails when containerd does not answer.
    fn is_pinned(&self, id: &str) -> Result<bool, ImageError>;
    /// Pins or unpins the image of this ID. Unpinning a missing image is success.
    ///
    /// # Errors
    /// Fails when containerd does not answer, or an image to pin is missing.
    fn set_pinned(&self, id: &str, pinned: bool) -> Result<(), ImageError>;
}

/// Refuses to use a pipe that another user may have created: while containerd does not run, any user of the host can take the pipe's name, and would
/// get the registry logins. Only an administrator can create a pipe that an administrator owns.
///
/// # Errors
/// Fails when `owner` (a SID) may not be an administrator.
pub fn check_owner(owner: &str) -> io::Result<()> {
    if is_trusted(owner) {
        return Ok(());
    }
    let problem = format!(
        "the pipe belongs to the user {owner}, who may not be an administrator, so wicd does not send registry credentials to it; end the program \
         of that user"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
}

/// Failure of a request to containerd.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// containerd is unreachable.
    #[error("containerd does not answer at {endpoint}: {problem}; check that the containerd service runs")]
    Unavailable {
        /// Endpoint at which containerd should listen.
        endpoint: String,
        /// Reason why containerd is unreachable.
        problem: String,
    },
    /// containerd did not answer in time.
    #[error(
        "containerd did not complete the request to {what} within {seconds} s; check the containerd service of the host and its log in \
         C:\\var\\log\\containerd"
    )]
    Timeout {
        /// Requested action.
        what: String,
        /// Limit of the request, in seconds.
        seconds: u64,
    },
    /// containerd did not pull an image in time.
    #[error(
        "containerd did not pull the image {image} within {seconds} s; check the network between the host and the registry. \
         template.spec.containerd.maxConcurrentDownloads of the pool limits how many layers are downloaded at once"
    )]
    PullTimeout {
        /// Name of the image.
        image: String,
        /// Limit of the pull, in seconds.
        seconds: u64,
    },
    /// containerd refused the request.
    #[error("cannot {what}: {problem}")]
    Refused {
        /// Requested action.
        what: String,
        /// Message from containerd.
        problem: String,
    },
}

impl ImageError {
    /// Reason for conditions and events.
    pub fn reason(&self) -> Reason {
        Reason::PrePullFailed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pipe_of_an_administrator_is_used() {
        const USER: &str = "S-1-5-21-1-2-3-1001";
        for administrator in [crate::access::SYSTEM, crate::access::ADMINISTRATORS] {
            assert!(check_owner(administrator).is_ok(), "{administrator}");
        }
        assert!(check_owner(USER).unwrap_err().to_string().contains(USER));
    }
}
