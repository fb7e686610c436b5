//! Annotations that users set on an instance or a Node. Pure.

use std::collections::BTreeMap;

use api::{names::key, text::line};

/// Boolean annotations of an instance.
pub const OF_INSTANCE: &[&str] = &[key::HOLD, key::ABANDON];
/// Boolean annotations of a Node.
pub const OF_NODE: &[&str] = &[key::HOLD, key::KEEP_CORDONED];

/// Maximum length of an annotation's value in a note, in characters.
const MAX_VALUE_CHARS: usize = 40;

/// Returns notes on the annotations in `switches` whose value is neither `true` nor `false`, so that they have no effect. `kind` is the kind of the
/// annotated object.
pub fn without_effect(annotations: &BTreeMap<String, String>, switches: &[&str], kind: &str) -> Vec<String> {
    let value = |switch: &&&str| annotations.get(**switch).filter(|v| !matches!(v.as_str(), "true" | "false"));
    let note = |switch: &&str| {
        let value = value(&switch)?;
        let value = line(value, MAX_VALUE_CHARS);
        Some(format!("the annotation {switch}={value} of the {kind} has no effect: its value must be true or false"))
    };
    switches.iter().filter_map(note).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_true_and_false_mean_something() {
        for (value, expected) in [
            (None, false),
            (Some("true"), false),
            (Some("false"), false),
            (Some("yes"), true),
            (Some("True"), true),
            (Some(""), true),
        ] {
            let set = value.map(|v| (key::ABANDON.to_owned(), v.to_owned()));
            let other = ("example.com/abandon".to_owned(), "yes".to_owned());
            let notes = without_effect(&set.into_iter().chain([other]).collect(), OF_INSTANCE, "WindowsInstance");
            assert_eq!(notes.len(), usize::from(expected), "{value:?}: {notes:?}");
        }
        let long = BTreeMap::from([(key::HOLD.to_owned(), "no\u{202e}".repeat(100))]);
        let notes = without_effect(&long, OF_NODE, "Node");
        assert!(notes[0].len() < 200 && !notes[0].contains('\u{202e}'), "{notes:?}");
    }
}
