//! Detection of a silent wicd. A stopped daemon reports no drift, no restart request and no version, so that its host seems to work. Pure.

use std::time::Duration;

use api::{
    host::{REPORT_INTERVAL, WICD_SERVICE},
    text::line,
};

/// Time without a new report after which wicd counts as silent: three reports are missing.
const SILENT_AFTER: Duration = REPORT_INTERVAL.saturating_mul(3);
/// Interval between checks while wicd is silent.
const LOOK_AGAIN: Duration = Duration::from_mins(1);
/// Maximum length of the reported time in a message, in characters.
const MAX_TEXT_CHARS: usize = 40;

/// Returns the message about a silent wicd, or `None` if it reports. `reported` is the time of the last report, `unchanged` the time for which this
/// process has seen that report on a Ready Node, and `told` the message in the status, on which a restarted operator relies.
pub fn silence(reported: &str, unchanged: Duration, told: Option<&str>) -> Option<String> {
    let message = format!(
        "wicd, the daemon of the host, last reported at {}, and kubelet works: until wicd reports again, drift may not be corrected, new versions may not be applied and certificates may not be renewed. On the host, check that the service {WICD_SERVICE} runs, and read its log in C:\\var\\log\\wicd",
        line(reported, MAX_TEXT_CHARS)
    );
    (unchanged >= SILENT_AFTER || told == Some(message.as_str())).then_some(message)
}

/// Returns the time until the next check of wicd: missing reports cause no event.
pub fn next_look(is_silent: bool) -> Duration {
    if is_silent { LOOK_AGAIN } else { REPORT_INTERVAL }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_silent_once_three_reports_did_not_come() {
        let (first, second) = ("2027-01-15T02:00:00Z", "2027-01-15T02:10:00Z");
        let told = silence(first, Duration::from_hours(1), None).unwrap();
        for (about, reported, minutes, told, expected) in [
            ("it has just reported", first, 0, None, false),
            ("two are missing", first, 29, None, false),
            ("three are missing", first, 30, None, true),
            ("it was reported, and the operator has just started", first, 0, Some(&*told), true),
            ("it has reported since", second, 0, Some(&*told), false),
        ] {
            let is_silent = silence(reported, Duration::from_mins(minutes), told).is_some();
            assert_eq!(is_silent, expected, "{about}");
        }
        let hostile = silence(&"\u{202e}x".repeat(5_000), Duration::from_hours(1), None).unwrap();
        assert!(hostile.len() < 400 && !hostile.contains('\u{202e}'), "{hostile}");
    }
}
