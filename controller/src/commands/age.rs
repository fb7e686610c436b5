//! Ages in the format of kubectl's columns.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};

/// Unit of time: its length in seconds and its letter.
type Unit = (i64, char);

const SECOND: Unit = (1, 's');
const MINUTE: Unit = (60, 'm');
const HOUR: Unit = (3_600, 'h');
const DAY: Unit = (86_400, 'd');
const YEAR: Unit = (31_536_000, 'y');
/// Ranges of ages: the exclusive end in seconds, the larger unit, and the smaller unit, if shown. The page of `ui` has the same ranges.
const AGES: [(i64, Unit, Option<Unit>); 9] = [
    (120, SECOND, None),
    (600, MINUTE, Some(SECOND)),
    (10_800, MINUTE, None),
    (28_800, HOUR, Some(MINUTE)),
    (172_800, HOUR, None),
    (691_200, DAY, Some(HOUR)),
    (63_072_000, DAY, None),
    (252_288_000, YEAR, Some(DAY)),
    (i64::MAX, YEAR, None),
];

/// Returns the age in the format of kubectl's columns, for example `90s`, `5m30s`, `3h12m` or `9d`. The age of a future time is `0s`.
pub fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).max(SignedDuration::ZERO).as_secs();
    let units = AGES.iter().find(|(end, ..)| seconds < *end);
    let (large, small) = units.map_or((YEAR, None), |(_, large, small)| (*large, *small));
    let part = |seconds: i64, (size, unit): Unit| format!("{}{unit}", seconds / size);
    let rest = small.map(|small| (seconds % large.0, small)).filter(|(rest, small)| *rest >= small.0);
    part(seconds, large) + &rest.map(|(rest, small)| part(rest, small)).unwrap_or_default()
}

/// Returns a message of the operator with ages in place of its times: a past `since TIME` becomes `for 5m`, a future
/// `next try TIME` becomes `next try in 5m`, and a future `begins at TIME` becomes `begins in 5m`. Other times, for
/// example those of maintenance windows, are kept.
pub fn with_ages(message: &str, now: Timestamp) -> String {
    let mut text = String::new();
    for word in message.split_inclusive(' ') {
        let bare = word.trim_end_matches([' ', ')', ',', ';', ':', '.']);
        let rest = &word[bare.len()..];
        let Ok(at) = bare.parse::<Timestamp>() else {
            text += word;
            continue;
        };
        if let Some(before) = text.strip_suffix("since ").filter(|_| at <= now) {
            text = format!("{before}for {}{rest}", age(at, now));
        } else if text.ends_with("next try ") && at > now {
            // Writing to a String cannot fail.
            let _ = write!(text, "in {}{rest}", age(now, at));
        } else if let Some(before) = text.strip_suffix("begins at ").filter(|_| at > now) {
            text = format!("{before}begins in {}{rest}", age(now, at));
        } else {
            text += word;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2027-01-15T02:00:00Z".parse().unwrap()
    }

    /// Test cases of `HumanDuration` in k8s.io/apimachinery/pkg/util/duration.
    #[test]
    fn ages_are_those_of_kubectl() {
        for (seconds, expected) in [
            (-5, "0s"),
            (0, "0s"),
            (1, "1s"),
            (70, "70s"),
            (119, "119s"),
            (120, "2m"),
            (190, "3m10s"),
            (599, "9m59s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_520, "3h12m"),
            (28_799, "7h59m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (691_199, "7d23h"),
            (691_200, "8d"),
            (63_071_999, "729d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
            (252_287_999, "7y364d"),
            (252_288_000, "8y"),
        ] {
            assert_eq!(age(now() - SignedDuration::from_secs(seconds), now()), expected, "{seconds}");
        }
    }

    #[test]
    fn messages_have_ages() {
        for (message, expected) in [
            ("no times", "no times"),
            ("refused (since 2027-01-15T01:55:00Z); 1 not", "refused (for 5m); 1 not"),
            ("h0 since 2027-01-14T22:48:00Z, being repaired", "h0 for 3h12m, being repaired"),
            ("(failed once; next try 2027-01-15T02:00:40Z)", "(failed once; next try in 40s)"),
            ("next try 2027-01-15T01:00:00Z", "next try 2027-01-15T01:00:00Z"),
            ("since 2027-01-15T03:00:00Z", "since 2027-01-15T03:00:00Z"),
            ("its repair begins at 2027-01-15T02:06:00Z", "its repair begins in 6m"),
            ("begins at 2027-01-15T01:00:00Z", "begins at 2027-01-15T01:00:00Z"),
            ("the next opens at 2027-01-16T02:00:00Z.", "the next opens at 2027-01-16T02:00:00Z."),
        ] {
            assert_eq!(with_ages(message, now()), expected);
        }
    }
}
