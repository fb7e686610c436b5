//! Kubernetes quantities.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

/// Kubernetes quantity, such as `500m` or `1.5Gi`, or a percentage where the field allows one. An integer is equal to its text. The validation rule
/// of each field limits its values.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(transparent)]
pub struct Quantity(String);

impl Quantity {
    /// Returns the quantity as text, for example `500m`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Quantity {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Int(i64),
            Text(String),
        }
        Ok(match Raw::deserialize(d)? {
            Raw::Int(n) => Self(n.to_string()),
            Raw::Text(text) => Self(text),
        })
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"x-kubernetes-int-or-string": true, "maxLength": 32})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_the_same_as_its_text() {
        for (json, text) in [("2", "2"), ("\"2\"", "2"), ("\"1.5Gi\"", "1.5Gi"), ("\"10%\"", "10%")] {
            let quantity: Quantity = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_value(&quantity).unwrap(), text, "{json}");
        }
    }
}
