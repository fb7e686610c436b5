//! Exponential backoff with jitter after failures.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Returns the delay before the next attempt after `failures` failures in a row. It is `base` after the first failure, and doubles with each further
/// failure up to `max`. Jitter of up to 20 % in either direction is then added, so that hosts that failed together do not retry together. `spread` is
/// any number from which the jitter is computed.
pub fn backoff(failures: u32, base: Duration, max: Duration, spread: u32) -> Duration {
    let doubled = base.saturating_mul(1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
    doubled.min(max) * (800 + spread % 401) / 1000
}

/// Returns the stored time of an attempt if it is plausible, otherwise `now`. No delay is longer than `max` plus jitter: a later time was written
/// with a wrong clock.
pub fn believed(stored: Timestamp, now: Timestamp, max: Duration) -> Timestamp {
    let longest = SignedDuration::try_from(max.saturating_mul(6) / 5).unwrap_or(SignedDuration::MAX);
    let latest = now.checked_add(longest).unwrap_or(Timestamp::MAX);
    if stored > latest { now } else { stored }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_time_of_a_wrong_clock_is_not_waited_for() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (name, stored, expected) in [
            ("a time that has passed is kept", 900, 900),
            ("a time in the future is kept", 1300, 1300),
            ("the longest delay is kept", 1720, 1720),
            ("written when the clock was years ahead", 400_000_000, 1000),
        ] {
            assert_eq!(believed(at(stored), at(1000), Duration::from_mins(10)), at(expected), "{name}");
        }
        assert_eq!(believed(at(2000), at(1000), Duration::MAX), at(2000));
    }

    #[test]
    fn doubles_up_to_its_limit_and_is_spread() {
        let s = Duration::from_secs;
        for (failures, middle) in [(0, 10), (1, 10), (2, 20), (3, 40), (6, 320), (7, 600), (40, 600), (u32::MAX, 600)] {
            let of = |spread| backoff(failures, s(10), s(600), spread);
            assert_eq!(of(200), s(middle), "{failures}");
            assert_eq!(of(0), s(middle) * 4 / 5);
            assert_eq!(of(400), s(middle) * 6 / 5);
            assert_eq!(of(401), of(0));
        }
    }
}
