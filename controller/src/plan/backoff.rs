//! When a host that failed is tried again.

use std::time::Duration;

/// Time until the next attempt after `failures` failures in a row: `base`, doubled each time, at most `max`, and then
/// spread by up to a fifth in either direction, so that hosts that failed together do not come back together. `spread` is
/// any number; its remainder decides.
pub fn backoff(failures: u32, base: Duration, max: Duration, spread: u32) -> Duration {
    let doubled = base.saturating_mul(1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
    doubled.min(max) * (800 + spread % 401) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

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
