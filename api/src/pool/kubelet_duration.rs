//! Durations in kubelet's configuration.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Duration in the format of kubelet, for example `1m30s`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(transparent)]
pub struct KubeletDuration(pub String);

impl JsonSchema for KubeletDuration {
    fn schema_name() -> Cow<'static, str> {
        "KubeletDuration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 32,
            "x-kubernetes-validations": [{
                "rule": r"self.matches(r'^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$') && duration(self) <= duration('87600h')",
                "message": "must be a duration with units of at most 87600h, for example 30s or 1h30m",
            }],
        })
    }
}
