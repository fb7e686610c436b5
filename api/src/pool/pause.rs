//! Pause of a pool.

use std::fmt;

use jiff::Timestamp;

use super::Rollout;
use crate::Time;

/// Pause of a pool, in which the operator begins no operation on its hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Pause by `rollout.paused`, without an end.
    Indefinite,
    /// Pause by `rollout.pausedUntil`, which ends at this time, or has no end if the time is unknown.
    Until(Time),
}

impl Rollout {
    /// Returns the pause that applies now. No other code decides this.
    ///
    /// An unknown time pauses without an end. The API server does not store unreadable times, so the origin of such a time is
    /// unclear, and no operation may begin by mistake.
    pub fn pause(&self, now: Timestamp) -> Option<Pause> {
        if self.paused == Some(true) {
            return Some(Pause::Indefinite);
        }
        let until = self.paused_until?;
        until.known().is_none_or(|end| end > now).then_some(Pause::Until(until))
    }
}

impl Pause {
    /// Time when the pause ends, if it has an end.
    pub fn end(self) -> Option<Timestamp> {
        match self {
            Self::Indefinite => None,
            Self::Until(time) => time.known(),
        }
    }

    /// Returns the field that sets the pause.
    pub fn field(self) -> &'static str {
        match self {
            Self::Indefinite => "rollout.paused",
            Self::Until(_) => "rollout.pausedUntil",
        }
    }
}

/// Displays `paused`, with the end if there is one.
impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.end() {
            None => f.write_str("paused"),
            Some(end) => write!(f, "paused until {}", Time::from(end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_ends_only_at_its_end() {
        let now: Timestamp = "2027-01-01T12:00:00Z".parse().unwrap();
        for (rollout, pause, words) in [
            ("{}", None, ""),
            (r#"{"paused": false}"#, None, ""),
            (r#"{"paused": true}"#, Some("rollout.paused"), "paused"),
            (
                r#"{"pausedUntil": "2027-01-01T12:00:01Z"}"#,
                Some("rollout.pausedUntil"),
                "paused until 2027-01-01T12:00:01Z",
            ),
            (
                r#"{"pausedUntil": "2027-01-01T14:00:00+01:00"}"#,
                Some("rollout.pausedUntil"),
                "paused until 2027-01-01T13:00:00Z",
            ),
            (r#"{"pausedUntil": "2027-01-01T12:00:00Z"}"#, None, ""),
            (r#"{"pausedUntil": "2026-01-01T00:00:00Z"}"#, None, ""),
            (
                r#"{"paused": false, "pausedUntil": "2028-01-01T00:00:00Z"}"#,
                Some("rollout.pausedUntil"),
                "paused until 2028-01-01T00:00:00Z",
            ),
            (r#"{"paused": true, "pausedUntil": "2026-01-01T00:00:00Z"}"#, Some("rollout.paused"), "paused"),
            (r#"{"paused": true, "pausedUntil": "2028-01-01T00:00:00Z"}"#, Some("rollout.paused"), "paused"),
            (r#"{"pausedUntil": "tomorrow"}"#, Some("rollout.pausedUntil"), "paused"),
        ] {
            let found = serde_json::from_str::<Rollout>(rollout).unwrap().pause(now);
            assert_eq!(found.map(Pause::field), pause, "{rollout}");
            assert_eq!(found.map(|p| p.to_string()).unwrap_or_default(), words, "{rollout}");
        }
    }
}
