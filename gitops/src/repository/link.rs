//! The limits of one fetch: time, bytes, and cancellation.
//!
//! gix reads and writes blocking. Everything that it waits for is a future here, run on a small runtime of its own, so that a
//! server that sends nothing, or a byte a second, holds the caller no longer than the time limit, or than a moment
//! after a stop.

use std::{
    cell::{Cell, RefCell},
    io,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use tokio::runtime::{Builder, Runtime};

use super::GitError;

/// How often it is looked whether the fetch is still wanted.
const TICK: Duration = Duration::from_millis(100);

/// Most bytes that a server may send before any content: they are kept in memory. Half a million names have room.
const GREETING: u64 = 32 << 20;

/// A fetch from a server.
pub(super) struct Link<'a> {
    /// Only `None` while it is dropped.
    runtime: Option<Runtime>,
    pub host: String,
    deadline: Instant,
    timeout: Duration,
    stop: &'a AtomicBool,
    received: Cell<u64>,
    /// Most bytes for now, and what they are.
    ceiling: Cell<(u64, &'static str)>,
    limit: u64,
    /// The first error. The error of gix contains less.
    failure: RefCell<Option<GitError>>,
}

impl<'a> Link<'a> {
    pub(super) fn new(host: String, timeout: Duration, limit: u64, stop: &'a AtomicBool) -> Result<Self, GitError> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(GitError::Disk)?;
        Ok(Self {
            runtime: Some(runtime),
            host,
            deadline: Instant::now() + timeout,
            timeout,
            stop,
            received: Cell::new(0),
            ceiling: Cell::new((limit.min(GREETING), "names of branches and tags")),
            limit,
            failure: RefCell::new(None),
        })
    }

    /// Waits for something, but not longer than is wanted.
    pub(super) fn wait<T>(&self, work: impl Future<Output = T>) -> io::Result<T> {
        let Some(runtime) = &self.runtime else { return Err(io::ErrorKind::NotConnected.into()) };
        if let Some(over) = self.over() {
            return Err(self.fail(over));
        }
        let over = async {
            loop {
                match self.over() {
                    Some(over) => return over,
                    None => tokio::time::sleep(TICK.min(self.left())).await,
                }
            }
        };
        let result = runtime.block_on(async {
            tokio::select! {
                biased;
                value = work => Ok(value),
                error = over => Err(error),
            }
        });
        result.map_err(|error| self.fail(error))
    }

    /// Why there is no use in going on.
    pub(super) fn over(&self) -> Option<GitError> {
        if self.stop.load(Ordering::Relaxed) {
            return Some(GitError::Stopped);
        }
        self.left().is_zero().then(|| GitError::Timeout { host: self.host.clone(), after: self.timeout })
    }

    /// The same question for another thread.
    pub(super) fn watch(&self) -> Watch<'a> {
        Watch { stop: self.stop, deadline: self.deadline }
    }

    /// How much time is left.
    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Adds to what was received.
    pub(super) fn count(&self, bytes: usize) -> io::Result<()> {
        let received = self.received.get().saturating_add(bytes as u64);
        self.received.set(received);
        let (most, of) = self.ceiling.get();
        if received > most {
            let what = format!("the server sends more than {} KiB of {of}", most >> 10);
            return Err(self.fail(GitError::RepositoryTooLarge { what }));
        }
        Ok(())
    }

    /// From here on content is sent, of which there may be more: it goes to disk.
    pub(super) fn expect_content(&self) {
        self.ceiling.set((self.limit, "content"));
    }

    /// How many bytes came in so far.
    pub(super) fn received(&self) -> u64 {
        self.received.get()
    }

    /// Remembers what went wrong, and gives gix an error to carry.
    pub(super) fn fail(&self, error: GitError) -> io::Error {
        let words = error.to_string();
        self.failure.borrow_mut().get_or_insert(error);
        io::Error::other(words)
    }

    /// Something between us and the server.
    pub(super) fn failed(&self, problem: impl AsRef<str>) -> GitError {
        GitError::Failed { host: self.host.clone(), problem: super::error::excerpt(problem.as_ref()) }
    }

    /// What went wrong first, if it is known.
    pub(super) fn failure(&self) -> Option<GitError> {
        self.failure.borrow_mut().take()
    }
}

/// Whether a fetch is still wanted.
pub(super) struct Watch<'a> {
    stop: &'a AtomicBool,
    deadline: Instant,
}

impl Watch<'_> {
    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || Instant::now() >= self.deadline
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        // Not to wait for a name look-up that goes on.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(stop: &AtomicBool, timeout: u64) -> Link<'_> {
        Link::new("example.com".into(), Duration::from_millis(timeout), 10, stop).unwrap()
    }

    #[test]
    fn waits_no_longer_than_the_time_limit() {
        let stop = AtomicBool::new(false);
        let link = link(&stop, 50);
        assert!(link.wait(std::future::pending::<()>()).is_err());
        assert!(matches!(link.failure(), Some(GitError::Timeout { .. })));
        // Nor does it begin anything afterwards.
        assert!(link.wait(async {}).is_err());
    }

    #[test]
    fn a_stop_ends_a_wait() {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let link = link(&stop, 60_000);
                let began = Instant::now();
                assert!(link.wait(std::future::pending::<()>()).is_err());
                (began.elapsed(), link.failure())
            });
            stop.store(true, Ordering::Relaxed);
            let (took, failure) = waits.join().unwrap();
            assert!(took < Duration::from_secs(1) && matches!(failure, Some(GitError::Stopped)));
        });
    }

    #[test]
    fn bytes_are_counted_up_to_the_limit() {
        let stop = AtomicBool::new(false);
        let link = link(&stop, 60_000);
        assert!(link.count(10).is_ok() && link.count(1).is_err());
        assert_eq!(link.received(), 11);
        assert!(matches!(link.failure(), Some(GitError::RepositoryTooLarge { .. })));
    }
}
