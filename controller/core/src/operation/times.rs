//! Stored times from which the operator measures durations.

use api::{Time, WindowsInstanceStatus};
use jiff::{SignedDuration, Timestamp};

/// Maximum difference between the clocks of two machines that run the operator one after the other.
const SKEW: SignedDuration = SignedDuration::from_mins(1);

/// Returns a stored start time if it is plausible, otherwise `now`. A wrong clock may have written a start in the future, with which no deadline
/// would ever pass.
pub fn begun(stored: Timestamp, now: Timestamp) -> Timestamp {
    if stored.duration_since(now) > SKEW { now } else { stored }
}

/// Returns the age of a time that the clock of another machine wrote. A time that is at most [`SKEW`] in the future has the age 0. A later time was
/// written with a wrong clock; its age is its distance from `now`, so that it does not count as new.
pub fn age(stored: Timestamp, now: Timestamp) -> SignedDuration {
    let age = now.duration_since(stored);
    if age < -SKEW { age.abs() } else { age.max(SignedDuration::ZERO) }
}

/// Corrects the start times in the status of an instance.
pub fn correct(status: &mut WindowsInstanceStatus, now: Timestamp) {
    let correct = |time: &mut Time| {
        if let Some(known) = time.known() {
            let plausible = begun(known, now);
            if plausible != known {
                *time = plausible.into();
            }
        }
    };
    if let Some(operation) = &mut status.operation {
        correct(&mut operation.start_time);
        correct(&mut operation.step_start_time);
        if let Some(drain) = &mut operation.drain {
            correct(&mut drain.start_time);
            drain.cordoned_time.iter_mut().for_each(correct);
        }
    }
    let of_keys = status.key_rotation.iter_mut().filter_map(|k| k.failures.as_mut());
    let of_images = status.pre_pulled.iter_mut().filter_map(|p| p.failures.as_mut());
    status.failures.iter_mut().chain(of_keys).chain(of_images).filter_map(|f| f.first_time.as_mut()).for_each(correct);
}

#[cfg(test)]
mod tests {
    use api::{DrainStatus, Failures, Operation};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_start_time_of_a_wrong_clock_is_corrected() {
        for (name, stored, expected_begun, expected_age) in [
            ("a while ago", 1_000, 1_000, 600),
            ("by a clock that is a little ahead", 1_630, 1_630, 0),
            ("years ahead", 400_000_000, 1_600, 399_998_400),
        ] {
            let now = at(1_600);
            assert_eq!(begun(at(stored), now), at(expected_begun), "{name}");
            assert_eq!(age(at(stored), now), SignedDuration::from_secs(expected_age), "{name}");
        }
    }

    #[test]
    fn every_start_is_corrected_and_no_other_time() {
        let (wrong, now) = (Time::from(at(400_000_000)), at(1_600));
        let drain = DrainStatus { start_time: wrong, cordoned_time: Some(wrong), ..DrainStatus::default() };
        let operation =
            Operation { start_time: wrong, step_start_time: wrong, drain: Some(drain), ..Operation::default() };
        let failures = Failures { first_time: Some(wrong), next_retry_time: Some(wrong), ..Failures::default() };
        let mut status = WindowsInstanceStatus {
            operation: Some(operation),
            failures: Some(failures),
            wicd_certificate_expires: Some(wrong),
            ..WindowsInstanceStatus::default()
        };
        correct(&mut status, now);
        let text = serde_json::to_string(&status).unwrap();
        // The retry time is bounded where it is read, and a certificate expires in the future.
        assert_eq!(text.matches("1982-").count(), 2, "{text}");
        assert_eq!(text.matches("1970-01-01T00:26:40Z").count(), 5, "{text}");
        let before = status.clone();
        correct(&mut status, now);
        assert_eq!(status, before);
    }
}
