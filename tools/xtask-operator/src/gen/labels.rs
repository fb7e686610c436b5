//! Reference page of labels and annotations, finalizers and other names, from their doc comments.

use api::names::{self, key};

use super::{
    reference::capital,
    tables::{code, page, section},
};

/// Sections of the page, each with the first word of the doc comments that belong to it. The empty word is for all other keys.
const OBJECTS: &[(&str, &str)] =
    &[("Nodes", "Node"), ("Pools", "Pool"), ("Instances", "Instance"), ("Other objects", "")];

/// Key with the parts of its doc comment.
struct Key {
    name: &'static str,
    /// Place of the key, such as `Node annotation`.
    place: String,
    /// Writer of the key.
    writer: String,
    meaning: String,
}

impl Key {
    /// Parses a doc comment: it begins with the objects and the kind of the key, and names the writer.
    fn of((name, meaning): &(&'static str, &'static str)) -> Option<Self> {
        let meaning = meaning.trim();
        let ends = |word: &str| ["with", "that", "while", "on"].contains(&word) || word.starts_with('`');
        let head = meaning.split([':', ',', '.']).next()?;
        let place: Vec<&str> = head.split_whitespace().take_while(|word| !ends(word)).collect();
        let (_, after) = meaning.split_once("ritten by ")?;
        let said = after.split([':', '.', ',', ';']).next()?;
        let ends = [" before ", " on ", " when "];
        let writer = ends.iter().fold(said, |said, end| said.split(end).next().unwrap_or(said)).to_owned();
        let place = place.join(" ");
        // Place and writer have columns of their own.
        let rest = meaning.strip_prefix(&place)?.replace(&format!(", written by {said}"), "");
        let rest = rest.replace(&format!(" Written by {said}."), "");
        let meaning = capital(rest.trim_start_matches([':', '.', ' ']));
        Some(Self { name, place, writer, meaning })
    }
}

/// Returns the page of labels and annotations.
pub(super) fn labels() -> String {
    let about = "The operator, users and other programs exchange these keys on objects of the cluster. *Legacy* keys are those of the Windows \
                 Machine Config Operator. All keys are defined in `api/src/names.rs`.";
    let mut text = page("Labels and annotations", about);
    let keys: Vec<Key> = key::TABLE.iter().filter_map(Key::of).collect();
    for (title, first) in OBJECTS {
        let is_here = |key: &&Key| match key.place.split(' ').next() {
            Some(word) if !first.is_empty() => word == *first,
            word => OBJECTS.iter().all(|(_, other)| Some(*other) != word),
        };
        let rows = keys
            .iter()
            .filter(is_here)
            .map(|key| vec![code(key.name), key.place.clone(), key.writer.clone(), key.meaning.clone()]);
        section(&mut text, title, "", &["key", "on", "written by", "meaning"], rows);
    }
    let taint = names::default_taint();
    let others = [
        (names::FINALIZER_INSTANCE, "Finalizer of an instance: its host must still be deconfigured or released."),
        (names::FINALIZER_POOL, "Finalizer of a pool: it still has instances."),
        (names::MANAGER_POOL, "Field manager of the pool controller."),
        (names::MANAGER_INSTANCE, "Field manager of the instance controller."),
        (names::MANAGER_ADAPTER, "Field manager of pools that the operator makes, and of the user data of Machines."),
    ];
    let taint = format!("{}={}:{:?}", taint.key, taint.value.unwrap_or_default(), taint.effect);
    let taint = (taint.as_str(), "Taint of a Windows node whose pool names no taints.");
    let rows = others.into_iter().chain([taint]).map(|(name, meaning)| vec![code(name), meaning.to_owned()]);
    section(&mut text, "Finalizers, field managers and taints", "", &["name", "meaning"], rows);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_says_where_it_is_and_who_writes_it() {
        let text = labels();
        for row in key::TABLE {
            let Some(key) = Key::of(row) else { panic!("{}: no writer: {}", row.0, row.1) };
            let last = key.place.to_lowercase();
            assert!(last.contains("annotation") || last.contains("label"), "{}: {}", key.name, key.place);
            assert!(key.writer.split(' ').count() < 9, "{}: {}", key.name, key.writer);
            assert_eq!(text.matches(&format!("| `{}` |", key.name)).count(), 1, "{}", key.name);
        }
    }
}
