//! Time at which a pool is reconciled again without a change. No I/O.

use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::controller::Action;
use wnp_core::rollout::maintenance_window::Windows;

/// Minimum wait, which prevents a busy loop when a time is nearly reached.
const SHORTEST: Duration = Duration::from_millis(200);

/// Returns the next action of the controller for a pool whose state changes by itself at these times.
pub(super) fn action(times: impl IntoIterator<Item = Option<Timestamp>>, now: Timestamp) -> Action {
    let Some(first) = times.into_iter().flatten().filter(|at| *at > now).min() else { return Action::await_change() };
    Action::requeue(Duration::try_from(first.duration_since(now)).unwrap_or_default().max(SHORTEST))
}

/// Returns the time when the maintenance windows next close or open.
pub(super) fn of_windows(windows: &Windows) -> Option<Timestamp> {
    windows.closes.or(windows.opens)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn now() -> Timestamp {
        "2027-01-01T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn the_first_future_time_counts() {
        let at = |milliseconds: i64| Some(now() + SignedDuration::from_millis(milliseconds));
        for (about, times, expected) in [
            ("none", vec![None], None),
            ("past", vec![at(-1000)], None),
            ("now", vec![at(0)], None),
            ("the first of several", vec![None, at(7_200_000), at(60_000), at(-60_000)], Some(Duration::from_mins(1))),
            ("nearly reached", vec![at(1)], Some(SHORTEST)),
        ] {
            let expected = expected.map_or_else(Action::await_change, Action::requeue);
            assert_eq!(action(times, now()), expected, "{about}");
        }
    }

    #[test]
    fn windows_change_when_they_close_or_open() {
        let at = now() + SignedDuration::from_hours(1);
        for (about, windows, expected) in [
            ("none", Windows { open: true, closes: None, opens: None }, None),
            ("open", Windows { open: true, closes: Some(at), opens: None }, Some(at)),
            ("closed", Windows { open: false, closes: None, opens: Some(at) }, Some(at)),
        ] {
            assert_eq!(of_windows(&windows), expected, "{about}");
        }
    }
}
