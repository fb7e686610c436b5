//! Body of a status for server-side apply. Pure.

use serde::Serialize;
use serde_json::Value;

/// Returns the JSON of a status without fields that are empty objects. When an object loses its last field, server-side apply turns it into null,
/// which the API server rejects as an object.
pub fn body(status: &impl Serialize) -> Value {
    let mut value = serde_json::json!(status);
    remove_empty(&mut value);
    value
}

fn remove_empty(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(remove_empty);
            fields.retain(|_, field| field.as_object().is_none_or(|object| !object.is_empty()));
        }
        Value::Array(items) => items.iter_mut().for_each(remove_empty),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use api::{KeyRotation, PrePulled, WindowsInstanceStatus};
    use serde_json::json;

    use super::*;

    #[test]
    fn no_object_is_left_without_a_field() {
        let status = WindowsInstanceStatus {
            observed_generation: Some(3),
            key_rotation: Some(KeyRotation::default()),
            pre_pulled: Some(PrePulled::default()),
            ..WindowsInstanceStatus::default()
        };
        assert_eq!(body(&status), json!({"observedGeneration": 3}));
        assert_eq!(body(&json!({"a": {"b": {"c": {}}}, "d": [{"e": {}, "f": 1}]})), json!({"d": [{"f": 1}]}));
    }
}
