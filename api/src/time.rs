//! Times in API objects.

use std::{borrow::Cow, fmt, str::FromStr};

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Time in an API object: RFC 3339 in UTC with whole seconds, like Kubernetes' times.
///
/// The epoch, which is the default, stands for an unknown time. An invalid stored text is read as the epoch, so that one field does not make the
/// whole object unreadable: the operator removes no host while it cannot read a pool. Only [`Time::known`] returns the [`Timestamp`], so that each
/// caller handles an unknown time and cannot mistake an unknown time for one long ago, which would end waits and deadlines at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(Timestamp);

impl Time {
    /// Returns the current time.
    pub fn now() -> Self {
        Timestamp::now().into()
    }

    /// Returns the time, or `None` if it is unknown.
    pub fn known(self) -> Option<Timestamp> {
        (self != Self::default()).then_some(self.0)
    }
}

/// Converts to whole seconds. A time before the epoch becomes unknown: the API server accepts only years of four digits, and a host may
/// report any time.
impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        Self(Timestamp::from_second(time.as_second().max(0)).unwrap_or_default())
    }
}

impl FromStr for Time {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<Timestamp>().map(Self::from)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(String::deserialize(d)?.parse().unwrap_or_default())
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "date-time"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Failures, Operation};

    #[test]
    fn json_has_whole_seconds() {
        for (stored, written) in [
            ("2026-03-01T08:00:00Z", "2026-03-01T08:00:00Z"),
            ("2026-03-01T08:00:00.987654321Z", "2026-03-01T08:00:00Z"),
            ("2026-03-01T08:00:00+01:00", "2026-03-01T07:00:00Z"),
            ("9999-12-30T22:00:00.999999999Z", "9999-12-30T22:00:00Z"),
        ] {
            let time: Time = serde_json::from_value(stored.into()).unwrap();
            assert!(time.known().is_some(), "{stored}");
            assert_eq!(serde_json::to_value(time).unwrap(), written, "{stored}");
        }
    }

    #[test]
    fn an_invalid_time_is_unknown_and_leaves_the_object_readable() {
        for text in ["", "yesterday", "2026-02-30T00:00:00Z", "1970-01-01T00:00:00Z", "-000400-01-01T00:00:00Z"] {
            let operation: Operation = serde_json::from_value(serde_json::json!({
                "id": "update-1", "type": "Update", "step": "Drain", "stepStartTime": text, "startTime": "2026-03-01T08:00:00Z",
            }))
            .unwrap();
            assert_eq!(operation.step_start_time.known(), None, "{text}");
            assert!(operation.start_time.known().is_some(), "{text}");
            assert_eq!(serde_json::to_value(operation.step_start_time).unwrap(), "1970-01-01T00:00:00Z", "{text}");
        }
        let failures: Failures = serde_json::from_value(serde_json::json!({
            "count": 1, "firstTime": "?", "nextRetryTime": "?", "lastReason": "", "lastMessage": "",
        }))
        .unwrap();
        assert_eq!(failures.first_time.and_then(Time::known), None);
    }

    #[test]
    fn a_time_that_the_api_server_would_refuse_is_not_written() {
        for seconds in [-1, -62_167_219_201, Timestamp::MIN.as_second()] {
            let time = Time::from(Timestamp::from_second(seconds).unwrap());
            assert_eq!(time.to_string(), "1970-01-01T00:00:00Z", "{seconds}");
        }
    }
}
