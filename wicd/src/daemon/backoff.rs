//! Backoff for restarts of a failing service.

use std::time::Duration;

/// Delay before the second restart; the first restart is immediate. Each further restart doubles the delay.
const FIRST: Duration = Duration::from_secs(10);
/// Maximum delay before a restart.
const LONGEST: Duration = Duration::from_mins(5);
/// Running time after which a service counts as healthy again.
const HEALTHY: Duration = Duration::from_mins(10);

/// Restart history of one service. Times are from a monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Backoff {
    /// Number of consecutive unexpected exits and failed starts.
    pub failures: u32,
    /// Time when the service was first seen running after its last start.
    running_since: Option<Duration>,
    /// Earliest time of the next start.
    pub not_before: Duration,
}

impl Backoff {
    /// Records that the service was seen running.
    pub fn runs(&mut self, now: Duration) {
        let since = *self.running_since.get_or_insert(now);
        if now.saturating_sub(since) >= HEALTHY {
            self.failures = 0;
        }
    }

    /// Records that the service was seen stopped, which is a failure if it was running before. Returns whether it was running before.
    pub fn stopped(&mut self, now: Duration) -> bool {
        let unasked = self.running_since.is_some();
        if unasked {
            self.failed(now);
        }
        unasked
    }

    /// Records that the service did not start, or ended unexpectedly.
    pub fn failed(&mut self, now: Duration) {
        self.running_since = None;
        self.failures = self.failures.saturating_add(1);
        self.not_before = now + delay(self.failures);
    }

    /// Records that the service was stopped on purpose, which is not a failure.
    pub fn stopped_on_purpose(&mut self) {
        self.running_since = None;
    }

    /// Reports whether the service may be started.
    pub fn may_start(&self, now: Duration) -> bool {
        now >= self.not_before
    }
}

fn delay(failures: u32) -> Duration {
    match failures {
        0 | 1 => Duration::ZERO,
        n => FIRST.saturating_mul(1 << (n - 2).min(16)).min(LONGEST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_five_minutes() {
        let seconds: Vec<u64> = (0..9).chain([u32::MAX]).map(|n| delay(n).as_secs()).collect();
        assert_eq!(seconds, [0, 0, 10, 20, 40, 80, 160, 300, 300, 300]);
    }

    #[test]
    fn a_long_run_resets_the_failures() {
        let at = Duration::from_secs;
        let mut backoff = Backoff::default();
        backoff.runs(at(0));
        assert!(backoff.stopped(at(1)) && backoff.may_start(at(1)), "the first restart is at once");
        assert!(!backoff.stopped(at(2)), "an end counts once");
        backoff.runs(at(3));
        assert!(backoff.stopped(at(4)) && !backoff.may_start(at(13)) && backoff.may_start(at(14)));
        backoff.runs(at(20));
        backoff.runs(at(620));
        assert_eq!(backoff.failures, 0);
    }

    #[test]
    fn a_stop_on_purpose_is_not_a_failure() {
        let mut backoff = Backoff::default();
        backoff.runs(Duration::ZERO);
        backoff.stopped_on_purpose();
        assert!(!backoff.stopped(Duration::from_secs(1)));
        assert_eq!(backoff.failures, 0);
    }
}
