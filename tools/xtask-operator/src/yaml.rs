//! Objects in YAML.

use anyhow::Result;
use serde::Serialize;
use serde_yaml::Value;

/// Returns an object as YAML in the form that a user would write: without nulls, and with whole numbers without a fraction.
pub(crate) fn text(object: &impl Serialize) -> Result<String> {
    let mut value = serde_yaml::to_value(object)?;
    tidy(&mut value);
    Ok(serde_yaml::to_string(&value)?)
}

/// Removes nulls, and the fractions of whole numbers.
pub(crate) fn tidy(value: &mut Value) {
    match value {
        Value::Mapping(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(tidy);
        }
        Value::Sequence(list) => list.iter_mut().for_each(tidy),
        Value::Number(number) => {
            if let Some(whole) = number.as_f64().and_then(whole) {
                *value = Value::Number(whole.into());
            }
        }
        _ => {}
    }
}

/// Returns the whole number that a floating-point number represents exactly, if any.
fn whole(number: f64) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "the limits are checked")]
    (number.fract() == 0.0 && number.abs() < 1e15).then_some(number as i64)
}

/// Returns the objects of a text with several documents, without empty ones.
#[cfg(test)]
pub(crate) fn documents(text: &str) -> Vec<serde_json::Value> {
    let documents = serde_yaml::Deserializer::from_str(text).map(|one| serde::Deserialize::deserialize(one).unwrap());
    documents.filter(|value: &serde_json::Value| !value.is_null()).collect()
}
