//! Limits of one fetch: time, bytes, and cancellation.
//!
//! gix uses blocking I/O. Each of its waits runs here as a future on a single-threaded runtime, so that a server that sends nothing, or sends very
//! slowly, blocks the caller only until the time limit or a stop.

use std::{
    cell::{Cell, RefCell},
    io,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use tokio::runtime::{Builder, Runtime};

use super::GitError;
use crate::shown_size;

/// Interval at which a wait checks the time limit and the stop.
const TICK: Duration = Duration::from_millis(100);

/// Maximum number of bytes that a server may send before any content: they are kept in memory. This is enough for half a million names.
const GREETING: u64 = 32 << 20;

/// State of one fetch: its runtime, its limits, and its first error.
pub(super) struct Link<'a> {
    /// Runtime of the fetch. `None` only while the link is dropped.
    runtime: Option<Runtime>,
    pub host: String,
    deadline: Instant,
    timeout: Duration,
    stop: &'a AtomicBool,
    received: Cell<u64>,
    /// Current limit of received bytes, and a name of these bytes for messages.
    ceiling: Cell<(u64, &'static str)>,
    limit: u64,
    /// First error of the fetch. It has more details than the error that gix returns.
    failure: RefCell<Option<GitError>>,
}

impl<'a> Link<'a> {
    pub(super) fn new(host: String, timeout: Duration, limit: u64, stop: &'a AtomicBool) -> Result<Self, GitError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| GitError::Failed { host: host.clone(), problem: error.to_string() })?;
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

    /// Waits for `work`, until the time limit or a stop at most.
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

    /// Returns the reason why the fetch must end, if there is one.
    pub(super) fn over(&self) -> Option<GitError> {
        if self.stop.load(Ordering::Relaxed) {
            return Some(GitError::Stopped);
        }
        self.left().is_zero().then(|| GitError::Timeout { host: self.host.clone(), after: self.timeout })
    }

    /// Returns a function that reports whether the fetch must end, for another thread.
    pub(super) fn is_over(&self) -> impl Fn() -> bool + Send + use<'a> {
        let (stop, deadline) = (self.stop, self.deadline);
        move || stop.load(Ordering::Relaxed) || Instant::now() >= deadline
    }

    /// Returns the remaining time.
    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Adds to the number of received bytes. Fails above the current limit.
    pub(super) fn count(&self, bytes: usize) -> io::Result<()> {
        let received = self.received.get().saturating_add(bytes as u64);
        self.received.set(received);
        let (most, of) = self.ceiling.get();
        if received > most {
            let what = format!("the server sends more than {} of {of}", shown_size(most));
            return Err(self.fail(GitError::RepositoryTooLarge { what }));
        }
        Ok(())
    }

    /// Raises the byte limit to the one for content, which is stored on disk.
    pub(super) fn expect_content(&self) {
        self.ceiling.set((self.limit, "content"));
    }

    /// Returns the number of received bytes.
    pub(super) fn received(&self) -> u64 {
        self.received.get()
    }

    /// Records the first error, and returns an I/O error to pass through gix.
    pub(super) fn fail(&self, error: GitError) -> io::Error {
        let words = error.to_string();
        self.failure.borrow_mut().get_or_insert(error);
        io::Error::other(words)
    }

    /// Returns an error of the connection or the server.
    pub(super) fn failed(&self, problem: impl AsRef<str>) -> GitError {
        GitError::Failed { host: self.host.clone(), problem: super::error::excerpt(problem.as_ref()) }
    }

    /// Takes the first error, if there is one.
    pub(super) fn failure(&self) -> Option<GitError> {
        self.failure.borrow_mut().take()
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        // Do not wait for a pending name look-up.
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
    fn a_wait_ends_at_the_time_limit() {
        let stop = AtomicBool::new(false);
        let link = link(&stop, 50);
        assert!(link.wait(std::future::pending::<()>()).is_err());
        assert!(matches!(link.failure(), Some(GitError::Timeout { .. })));
        // No work starts after the time limit.
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
