//! Maintenance windows: when changes may begin.
//!
//! A window is open if its last start is less than its duration ago. The state is computed from the clock alone, so that an operator that starts in
//! the middle of a window, or was away at its start, still finds it open.
//!
//! Starts are in local time. When clocks go forward, a skipped start moves to the first moment after the gap; when they go back, a repeated start
//! counts the first time. So starts are in the order of local time, on which the searches rely. The duration is elapsed time.

use api::{MaintenanceWindow, Reason};
use croner::{
    Weekday,
    parser::{CronParser, Seconds, Year},
};
use jiff::{
    SignedDuration, Timestamp, ToSpan as _,
    civil::{Date, Time},
    tz::{AmbiguousOffset, Offset, TimeZone},
};

/// State of the maintenance windows at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// True if changes may begin.
    pub open: bool,
    /// Time when the last of the open windows closes. Another window may have opened by then. `None` if no window is open, or none is defined.
    pub closes: Option<Timestamp>,
    /// Time when the next window opens, if none is open.
    pub opens: Option<Timestamp>,
}

/// Fault of an invalid maintenance window.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum WindowError {
    /// The schedule has more or fewer than five fields.
    #[error(
        "the schedule {schedule:?} of a maintenance window must have five fields (minute, hour, day of month, month and day of week), not {fields}; write for example \"0 22 * * FRI\""
    )]
    Fields {
        /// Schedule of the window.
        schedule: String,
        /// Number of fields in the schedule.
        fields: usize,
    },
    /// A field of the schedule cannot be read.
    #[error(
        "{value:?} in the schedule {schedule:?} of a maintenance window is not a valid {field}; write {expected}, a list (1,3), a range (1-5), steps (*/2 or 1-9/2), or *"
    )]
    Field {
        /// Schedule of the window.
        schedule: String,
        /// Text of the field.
        value: String,
        /// Name of the field.
        field: &'static str,
        /// Values that the field accepts.
        expected: &'static str,
    },
    /// The time zone is unknown.
    #[error(
        "the time zone {time_zone:?} of the maintenance window {schedule:?} is unknown; write a name of the IANA database, for example Europe/Paris, or leave it out for UTC"
    )]
    TimeZone {
        /// Schedule of the window.
        schedule: String,
        /// Time zone of the window.
        time_zone: String,
    },
    /// The window has no duration.
    #[error(
        "the maintenance window {schedule:?} has no durationSeconds; write how many seconds it stays open, for example 14400"
    )]
    Duration {
        /// Schedule of the window.
        schedule: String,
    },
    /// The window is closed, and its schedule matches no day of the next five years.
    #[error(
        "the maintenance window {schedule:?} never opens: its schedule matches no day of the next five years; correct the day or the month"
    )]
    Never {
        /// Schedule of the window.
        schedule: String,
    },
}

impl WindowError {
    /// Returns the reason for conditions and events.
    pub fn reason(&self) -> Reason {
        Reason::InvalidWindow
    }
}

/// Maximum duration of a window, in seconds, as in the CRD. The limit is also applied here, because the API server does not check stored objects
/// again.
const LONGEST: i32 = 7 * 24 * 3600;
/// Number of days within which a window has to open: five years. Eight years without a leap day come only around 2100.
const AHEAD: i32 = 5 * 366;

/// Fields of a schedule: name, accepted values, and accepted words. Without the words, croner would accept the name of a month as the weekday of the
/// same number.
const FIELDS: [(&str, &str, &[&str]); 5] = [
    ("minute", "0 to 59", &[]),
    ("hour", "0 to 23", &[]),
    ("day of month", "1 to 31, L for the last one, 15W for the working day nearest to the 15th", &["L", "W", "LW"]),
    (
        "month",
        "1 to 12 or JAN to DEC",
        &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
    ),
    (
        "day of week",
        "0 to 7 or SUN to SAT, TUE#2 for the second Tuesday of a month, 5L for the last one",
        &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT", "L"],
    ),
];

/// Returns the state of the windows. Without windows, changes may always begin. One invalid window makes the result an error, even if others are
/// open: its author must learn of it at once.
///
/// # Errors
/// [`WindowError`] of the first invalid window: its schedule or time zone cannot be read, it has no duration, or it is closed and does not open
/// within five years.
pub fn observe(windows: &[MaintenanceWindow], now: Timestamp) -> Result<Windows, WindowError> {
    let mut closes: Option<Timestamp> = None;
    let mut opens: Option<Timestamp> = None;
    for window in windows {
        let schedule = Schedule::read(window)?;
        if let Some(end) = schedule.open_until(now) {
            closes = closes.max(Some(end));
        } else if let Some(start) = schedule.next(now) {
            opens = Some(opens.map_or(start, |first| first.min(start)));
        } else {
            return Err(WindowError::Never { schedule: window.schedule.clone() });
        }
    }
    let open = windows.is_empty() || closes.is_some();
    Ok(Windows { open, closes, opens: opens.filter(|_| !open) })
}

/// Parsed maintenance window.
struct Schedule {
    pattern: croner::CronPattern,
    /// Times of the starts on each matching day, in order.
    times: Vec<Time>,
    zone: TimeZone,
    duration: SignedDuration,
}

impl Schedule {
    fn read(window: &MaintenanceWindow) -> Result<Self, WindowError> {
        let pattern = parse(&window.schedule)?;
        let zone = match window.time_zone.as_deref() {
            None => TimeZone::UTC,
            Some(name) => TimeZone::get(name).ok().filter(|zone| !zone.is_unknown()).ok_or_else(|| {
                WindowError::TimeZone { schedule: window.schedule.clone(), time_zone: name.to_owned() }
            })?,
        };
        let (hours, minutes) = (pattern.hours.values(), pattern.minutes.values());
        let small = |n: &u16| i8::try_from(*n).ok();
        let hours = hours.iter().filter_map(small);
        let times = hours
            .flat_map(|hour| minutes.iter().filter_map(small).filter_map(move |m| Time::new(hour, m, 0, 0).ok()))
            .collect();
        let seconds =
            window.duration_seconds.ok_or_else(|| WindowError::Duration { schedule: window.schedule.clone() })?;
        let duration = SignedDuration::from_secs(seconds.clamp(0, LONGEST).into());
        Ok(Self { pattern, times, zone, duration })
    }

    /// Returns the time when the window closes, if it is open now.
    fn open_until(&self, now: Timestamp) -> Option<Timestamp> {
        let earliest = now.saturating_sub(self.duration).unwrap_or(Timestamp::MIN);
        let date = |at: Timestamp| self.zone.to_datetime(at).date();
        // One more day on both sides: when clocks go back, the local date may go back, too.
        let first = date(earliest).yesterday().unwrap_or(Date::MIN);
        let mut day = date(now).tomorrow().unwrap_or(Date::MAX);
        while day >= first {
            let starts = self.times(day);
            let begun = starts.partition_point(|time| self.start(day, *time).is_some_and(|start| start <= now));
            let last = begun.checked_sub(1).and_then(|i| starts.get(i)).and_then(|time| self.start(day, *time));
            if let Some(start) = last {
                let end = start.saturating_add(self.duration).unwrap_or(Timestamp::MAX);
                return Some(end).filter(|end| now < *end);
            }
            day = day.yesterday().ok()?;
        }
        None
    }

    /// Returns the first start after `now`; `None` if none is within [`AHEAD`] days.
    fn next(&self, now: Timestamp) -> Option<Timestamp> {
        let mut day = self.zone.to_datetime(now).date();
        let last = day.saturating_add(AHEAD.days());
        while day <= last {
            let starts = self.times(day);
            let passed = starts.partition_point(|time| self.start(day, *time).is_some_and(|start| start <= now));
            if let Some(start) = starts.get(passed).and_then(|time| self.start(day, *time)) {
                return Some(start);
            }
            day = day.tomorrow().ok()?;
        }
        None
    }

    /// Returns the times of the starts on a day.
    fn times(&self, day: Date) -> &[Time] {
        let number = |n: i8| u32::try_from(n).unwrap_or_default();
        let month = number(day.month());
        let weekday = Weekday::from_days_from_sunday(number(day.weekday().to_sunday_zero_offset()));
        let pattern = &self.pattern;
        let matches = pattern.month_match(month).unwrap_or(false)
            && pattern.day_match(day.year().into(), month, number(day.day()), weekday).unwrap_or(false);
        if matches { &self.times } else { &[] }
    }

    /// Returns the moment of a start; `None` if it is out of range.
    fn start(&self, day: Date, time: Time) -> Option<Timestamp> {
        let local = day.to_datetime(time);
        let at = |offset: Offset| offset.to_timestamp(local).ok();
        match self.zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } => at(offset),
            AmbiguousOffset::Fold { before, .. } => at(before),
            // The offset after the gap is the greater one: with it, the moment is before the change of the clock.
            AmbiguousOffset::Gap { after, .. } => {
                let mut later = self.zone.following(at(after)?);
                later.find(|change| change.offset() == after).map(|change| change.timestamp())
            }
        }
    }
}

/// Parses a schedule. Some forms that croner accepts are refused: nicknames such as `@daily`, `?` for `*`, and a `+` that turns "either day" into
/// "both days".
fn parse(schedule: &str) -> Result<croner::CronPattern, WindowError> {
    let fields: Vec<&str> = schedule.split_ascii_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(WindowError::Fields { schedule: schedule.to_owned(), fields: fields.len() });
    }
    let invalid = |index: usize| {
        let (field, expected, _) = FIELDS[index];
        WindowError::Field { schedule: schedule.to_owned(), value: fields[index].to_owned(), field, expected }
    };
    if let Some(strange) = fields.iter().zip(FIELDS).position(|(field, (_, _, words))| !is_plain(field, words)) {
        return Err(invalid(strange));
    }
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    parser.parse(&fields.join(" ")).map(|cron| cron.pattern).map_err(|_| {
        // croner does not report which field is invalid.
        let alone = |i: usize| (0..fields.len()).map(|n| if n == i { fields[i] } else { "*" }).collect::<Vec<_>>();
        let wrong = (0..fields.len()).find(|i| parser.parse(&alone(*i).join(" ")).is_err()).unwrap_or_default();
        invalid(wrong)
    })
}

/// Reports whether a field consists of non-empty items that contain only numbers, signs and the words of the field.
fn is_plain(field: &str, words: &[&str]) -> bool {
    let known = |word: &str| word.is_empty() || words.iter().any(|w| w.eq_ignore_ascii_case(word));
    field.bytes().all(|c| c.is_ascii_alphanumeric() || b"*,-/#".contains(&c))
        && field.split(',').all(|item| !item.is_empty())
        && field.split(|c: char| !c.is_ascii_alphabetic()).all(known)
}

#[cfg(test)]
#[path = "maintenance_window_tests.rs"]
mod tests;
