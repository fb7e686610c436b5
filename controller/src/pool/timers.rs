//! Times at which a pool is reconciled again without a change. No I/O.

use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::controller::Action;
use wnp_core::rollout::maintenance_window::Windows;

/// Minimum wait, which prevents a busy loop when a time is nearly reached.
const SHORTEST: Duration = Duration::from_millis(200);

/// Times at which the state of a pool changes by itself. A pool in mode Plan has all of them except `grant` and `contact`, because its
/// preview and its status follow the clock, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Timers {
    /// Expiry of a wicd certificate.
    pub certificate: Option<Timestamp>,
    /// Next read of a Secret with keys.
    pub keys: Option<Timestamp>,
    /// End of the wait between two steps of a rollout.
    pub rollout: Option<Timestamp>,
    /// Opening or closing of a maintenance window.
    pub window: Option<Timestamp>,
    /// End of the pool's pause.
    pub pause: Option<Timestamp>,
    /// Time when a node has been Ready long enough to count as available.
    pub available: Option<Timestamp>,
    /// Time when an operation has taken as long as the pool allows.
    pub deadline: Option<Timestamp>,
    /// Next read of the source of hosts.
    pub source: Option<Timestamp>,
    /// Time when another pool is expected to have taken over a host.
    pub handed_over: Option<Timestamp>,
    /// Time when a grant may become possible. Only for an applied plan.
    pub grant: Option<Timestamp>,
    /// Next contact with a host without a name. Only for an applied plan.
    pub contact: Option<Timestamp>,
}

impl Timers {
    /// Returns the wait until the next of these times; `None` without one.
    fn wait(self, now: Timestamp) -> Option<Duration> {
        let Self {
            certificate,
            keys,
            rollout,
            window,
            pause,
            available,
            deadline,
            source,
            handed_over,
            grant,
            contact,
        } = self;
        let all = [certificate, keys, rollout, window, pause, available, deadline, source, handed_over, grant, contact];
        let first = all.into_iter().flatten().filter(|at| *at > now).min()?;
        Some(Duration::try_from(first.duration_since(now)).unwrap_or_default().max(SHORTEST))
    }

    /// Returns the next action of the controller for the pool.
    pub(super) fn action(self, now: Timestamp) -> Action {
        self.wait(now).map_or_else(Action::await_change, Action::requeue)
    }
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
    fn the_first_time_to_come_counts() {
        let at = |seconds: i64| Some(now() + SignedDuration::from_secs(seconds));
        for (about, timers, expected) in [
            ("none", Timers::default(), None),
            ("past", Timers { source: at(-1), ..Timers::default() }, None),
            ("now", Timers { pause: at(0), ..Timers::default() }, None),
            // Timers of a pool in mode Plan.
            ("a source that is read again", Timers { source: at(300), ..Timers::default() }, Some(300)),
            ("a pause that ends", Timers { pause: at(60), source: at(300), ..Timers::default() }, Some(60)),
            ("a window", Timers { window: at(7200), pause: at(-60), ..Timers::default() }, Some(7200)),
            ("a step", Timers { rollout: at(30), ..Timers::default() }, Some(30)),
            ("a host that hangs", Timers { deadline: at(60), source: at(300), ..Timers::default() }, Some(60)),
            ("a node", Timers { available: at(20), ..Timers::default() }, Some(20)),
            ("a certificate", Timers { certificate: at(86_400), ..Timers::default() }, Some(86_400)),
            ("a Secret", Timers { keys: at(10), ..Timers::default() }, Some(10)),
            ("another pool", Timers { handed_over: at(1), ..Timers::default() }, Some(1)),
            // Additional timers of an applied pool.
            ("a grant", Timers { grant: at(5), source: at(300), ..Timers::default() }, Some(5)),
            ("a contact", Timers { contact: at(7), source: at(300), ..Timers::default() }, Some(7)),
        ] {
            assert_eq!(timers.wait(now()), expected.map(Duration::from_secs), "{about}");
            let action = expected.map_or_else(Action::await_change, |s| Action::requeue(Duration::from_secs(s)));
            assert_eq!(timers.action(now()), action, "{about}");
        }
    }

    #[test]
    fn a_time_that_has_nearly_come_makes_no_busy_loop() {
        let soon = Timers { pause: Some(now() + SignedDuration::from_millis(1)), ..Timers::default() };
        assert_eq!(soon.wait(now()), Some(SHORTEST));
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
