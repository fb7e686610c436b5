//! Lasting failures, for which a user should no longer wait. Argo CD shows them as Degraded, and kstatus as Failed.

use api::Failures;
use jiff::{SignedDuration, Timestamp};

/// Number of consecutive failures that count as lasting.
const TIMES: i32 = 3;
/// Time since the first failure after which failures count as lasting.
const FOR: SignedDuration = SignedDuration::from_mins(10);

/// Reports whether a host has failed for long enough, or often enough, to count as failed although the operator continues to retry.
pub(super) fn lasts(failures: &Failures, now: Timestamp) -> bool {
    failures.count >= TIMES || lasts_from(failures).is_some_and(|at| at <= now)
}

/// Returns the time from which failures count as lasting, regardless of their number.
pub(super) fn lasts_from(failures: &Failures) -> Option<Timestamp> {
    failures.first_time?.known()?.checked_add(FOR).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_last_after_three_of_them_or_ten_minutes() {
        let now: Timestamp = "2027-01-15T02:00:00Z".parse().unwrap();
        for (about, count, first, expected) in [
            ("the first", 1, Some("2027-01-15T02:00:00Z"), false),
            ("nearly ten minutes", 2, Some("2027-01-15T01:50:01Z"), false),
            ("ten minutes", 1, Some("2027-01-15T01:50:00Z"), true),
            ("three times", 3, Some("2027-01-15T01:59:59Z"), true),
            ("since an unknown time", 2, None, false),
        ] {
            let failures = Failures { count, first_time: first.map(|t| t.parse().unwrap()), ..Failures::default() };
            assert_eq!(lasts(&failures, now), expected, "{about}");
        }
    }
}
