//! Whole numbers or percentages, for budgets of nodes.

use std::{fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Number of nodes, or a percentage of them: `3` or `"10%"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntOrPercent {
    /// Number. Zero is refused in texts and by the API server, but can be read from JSON.
    Int(u32),
    /// Percentage, 1 to 100.
    Percent(u32),
}

impl IntOrPercent {
    /// Returns the number, or the share of `total`. A percentage is rounded down, but never below one: a rollout must make
    /// progress.
    pub fn of(self, total: u32) -> u32 {
        match self {
            Self::Int(n) => n,
            Self::Percent(p) => u32::try_from(u64::from(total) * u64::from(p) / 100).unwrap_or(u32::MAX).max(1),
        }
    }
}

/// Error for a text that is neither a whole number nor a percentage from 1% to 100%.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is neither a whole number of at least 1 nor a percentage from 1% to 100%")]
pub struct ParseIntOrPercentError(String);

impl FromStr for IntOrPercent {
    type Err = ParseIntOrPercentError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let refuse = || ParseIntOrPercentError(s.into());
        let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit()).then(|| t.parse::<u32>().ok()).flatten();
        match s.strip_suffix('%') {
            Some(share) => digits(share).filter(|p| (1..=100).contains(p)).map(Self::Percent),
            None => digits(s).filter(|n| *n >= 1).map(Self::Int),
        }
        .ok_or_else(refuse)
    }
}

impl fmt::Display for IntOrPercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(n) => write!(f, "{n}"),
            Self::Percent(p) => write!(f, "{p}%"),
        }
    }
}

impl Serialize for IntOrPercent {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Int(n) => s.serialize_u32(*n),
            Self::Percent(_) => s.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for IntOrPercent {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Int(u32),
            Text(String),
        }
        match Raw::deserialize(d)? {
            Raw::Int(n) => Ok(Self::Int(n)),
            Raw::Text(t) => t.parse().map_err(de::Error::custom),
        }
    }
}

impl JsonSchema for IntOrPercent {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "IntOrPercent".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // A longer regular expression in a list exceeds the cost limit of Kubernetes 1.33, which assumes the maximum length of
        // a request for such a text.
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "maxLength": 4,
            "x-kubernetes-validations": [{
                "rule": "type(self) == int ? self >= 1 : self == '100%' || !self.startsWith('0') && self.matches(r'^\\d\\d?%$')",
                "message": "must be a whole number of at least 1, or a percentage from \"1%\" to \"100%\""
            }]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_rounded_down_but_at_least_one() {
        for (value, total, expected) in
            [("1", 0, 1), ("3", 2, 3), ("10%", 100, 10), ("10%", 19, 1), ("10%", 3, 1), ("100%", 7, 7), ("33%", 10, 3)]
        {
            assert_eq!(value.parse::<IntOrPercent>().unwrap().of(total), expected, "{value} of {total}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for bad in ["", "%", "0", "0%", "101%", "-1", "1.5", " 1", "1 %", "10%%", "+5", "+5%", "ten"] {
            assert!(bad.parse::<IntOrPercent>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn json_round_trips() {
        for json in ["3", "\"10%\""] {
            let value: IntOrPercent = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&value).unwrap(), json);
        }
    }
}
