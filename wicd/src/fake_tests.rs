//! Hosts of tests, in temporary directories.

use std::sync::{Arc, Mutex};

use super::{FakeHost, ServiceEvent};
use crate::files::{self, Access};
use crate::host::ServiceInfo;

/// Directory of a host, removed when the first handle of the host is dropped. Clones of the handle do not own it, because hooks of the host may hold
/// clones.
#[derive(Default)]
pub(super) struct Owned(#[expect(dead_code, reason = "removes the directory when dropped")] Option<tempfile::TempDir>);

impl Clone for Owned {
    fn clone(&self) -> Self {
        Self(None)
    }
}

impl FakeHost {
    /// Creates a host in a directory of its own.
    pub(crate) fn temporary() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let host = Self::new(dir.path());
        Self { owned: Owned(Some(dir)), ..host }
    }

    /// Writes a file. Creates missing directories.
    pub(crate) fn write(&self, path: &str, content: &[u8]) {
        files::write(self, path, content, Access::Inherited).unwrap();
    }

    /// Returns the content of a file as text, `None` if there is none.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        files::read(self, path).unwrap().map(|content| String::from_utf8_lossy(&content).into_owned())
    }

    /// Reports whether there is a file or directory.
    pub(crate) fn exists(&self, path: &str) -> bool {
        files::exists(self, path).unwrap()
    }

    /// Records what `of` returns for each start and stop of a service from now on.
    pub(crate) fn record<T: Send + 'static>(
        &self,
        of: impl Fn(ServiceEvent, &ServiceInfo) -> T + Send + Sync + 'static,
    ) -> Arc<Mutex<Vec<T>>> {
        let events = Arc::new(Mutex::new(Vec::new()));
        let seen = events.clone();
        self.on_service(move |event, service| seen.lock().unwrap().push(of(event, service)));
        events
    }
}
