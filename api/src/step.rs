//! Steps of the operations on a host.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Defines the type, the names and the list of all steps from one list.
macro_rules! steps {
    ($($(#[doc = $doc:expr])+ $step:ident,)+) => {
        /// Step of an operation, as in `status.operation.step`, events and metrics.
        ///
        /// The names are part of the API. An unknown stored name is read as [`Step::Unknown`]: a step of another version must not make
        /// the whole object unreadable.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum Step {
            /// No step, or one of another version of the operator.
            #[default]
            Unknown,
            $($(#[doc = $doc])+ $step,)+
        }

        impl Step {
            /// All steps except the unknown one.
            pub const ALL: &[Self] = &[$(Self::$step),+];

            /// Returns the name of the step in the API.
            pub const fn as_str(self) -> &'static str {
                match self {
                    Self::Unknown => "Unknown",
                    $(Self::$step => stringify!($step),)+
                }
            }
        }
    };
}

steps! {
    /// Log in, send wicd, query the state of the host.
    Connect,
    /// Send the payload of a version ahead. The node continues unchanged.
    Stage,
    /// Check that the host can be changed, and send missing files. The node continues unchanged.
    Check,
    /// Keep new pods off the node.
    Cordon,
    /// Evict the pods.
    Drain,
    /// Keep the node drained until its maintenance ends.
    Maintain,
    /// Send the payload files that are missing.
    Upload,
    /// Put files in place, write the configuration, create keys.
    Configure,
    /// Restart the host.
    Reboot,
    /// Have certificates issued.
    Certify,
    /// Send the certificates to the host, and start its services.
    Start,
    /// Wait until the Node exists, is Ready, and follows its version.
    Register,
    /// Verify that the changed node stays Ready.
    Verify,
    /// Allow pods on the node again.
    Uncordon,
    /// Remove everything that the operator put on the host.
    Deconfigure,
    /// Delete the Node.
    DeleteNode,
    /// Put the new SSH key beside the old one.
    AddKey,
    /// Log in with only the new SSH key.
    VerifyKey,
    /// Remove the old SSH key.
    RetireKey,
    /// Have the host pull images ahead.
    PullImages,
    /// Prove the host at its changed address.
    VerifyAddress,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<&str> for Step {
    fn from(name: &str) -> Self {
        Self::ALL.iter().copied().find(|s| s.as_str() == name).unwrap_or_default()
    }
}

impl Serialize for Step {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Step {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(String::deserialize(d)?.as_str().into())
    }
}

/// Schema of a string without a list of values, so that steps of other versions are accepted.
impl JsonSchema for Step {
    fn schema_name() -> Cow<'static, str> {
        "Step".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_are_read() {
        for step in Step::ALL {
            let json = serde_json::to_string(step).unwrap();
            assert_eq!(json, format!("\"{step}\""));
            assert_eq!(serde_json::from_str::<Step>(&json).unwrap(), *step);
        }
        for other in ["\"\"", "\"Levitate\"", "\"Unknown\""] {
            assert_eq!(serde_json::from_str::<Step>(other).unwrap(), Step::Unknown);
        }
    }
}
