//! Reasons of errors, as conditions, events, metrics and logs have them: each with its meaning and the remedy.
//!
//! Several errors share a word, in several crates, and a reader searches for the word: its meaning stands here, once for each place where
//! the word appears. `cargo xtask gen` writes docs/reference/conditions.md from these tables and those of [`crate::conditions`], and
//! `cargo xtask reasons` fails if the code has a word without a row, or a row has a word that the code does not have.

mod certificates;
mod check;
mod host;
mod list;
mod operator;
mod single;
mod wicd;

/// A reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// PascalCase, stable.
    pub word: &'static str,
    /// Conditions that have it, in Markdown. Empty if the section of the reason names the place.
    pub conditions: &'static str,
    /// Its meaning, in Markdown.
    pub meaning: &'static str,
    /// What to do, in Markdown.
    pub remedy: &'static str,
}

/// Reasons that appear in the same places.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Heading.
    pub title: &'static str,
    /// Where the reasons appear, in Markdown.
    pub place: &'static str,
    /// The reasons; none if other sections refer to the place.
    pub reasons: &'static [Reason],
}

/// All sections, in the order of the page.
pub const SECTIONS: &[Section] = &[
    single::SINGLE,
    list::ENTRIES,
    list::REMOVALS,
    list::GIT,
    list::FLUX,
    list::LEGACY,
    check::CHECK,
    check::TAKEOVER,
    host::ANY,
    host::CONNECTING,
    host::UNFIT,
    host::REFUSED,
    host::KEYS,
    host::IMAGES,
    host::VERSIONS,
    certificates::ISSUING,
    host::DRAINING,
    operator::OPERATOR,
    operator::POOL,
    operator::POLICIES,
    operator::NOTES,
    operator::METRICS,
    operator::UPGRADEABLE,
    certificates::DENIED,
    wicd::LOG,
];

/// A row of a section that names the place.
const fn row(word: &'static str, meaning: &'static str, remedy: &'static str) -> Reason {
    Reason { word, conditions: "", meaning, remedy }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::conditions;

    #[test]
    fn each_row_is_a_word_with_sentences() {
        let all = SECTIONS.iter().flat_map(|s| s.reasons).chain(conditions::reason::TABLE);
        for Reason { word, meaning, remedy, .. } in all {
            assert!(word.starts_with(|c: char| c.is_ascii_uppercase()), "{word}");
            assert!(word.bytes().all(|b| b.is_ascii_alphanumeric()), "{word}");
            for text in [meaning, remedy] {
                assert!(
                    text.ends_with('.') && text.split_whitespace().count() > 1 && !text.contains('|'),
                    "{word}: {text:?}"
                );
            }
        }
    }

    #[test]
    fn a_section_has_each_word_once() {
        for Section { title, reasons, .. } in SECTIONS {
            let words: BTreeSet<&str> = reasons.iter().map(|r| r.word).collect();
            assert_eq!(words.len(), reasons.len(), "{title}");
        }
    }
}
