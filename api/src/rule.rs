//! Rules of the CRDs that say in words what a value must be.
//!
//! The API server answers a `pattern` with the regular expression, which does not explain it. A field that users write has a rule with a sentence in
//! its place. Its estimated cost must fit into the API server's budget: the length of a text, and the number of entries of the lists around it, have
//! limits.

use kube::core::Rule;

/// Rule that a text matches `pattern`, which has no `'`. The message begins with "must".
pub fn matches(pattern: &str, message: &str) -> Rule {
    Rule::new(format!("self.matches(r'{pattern}')")).message(message)
}

/// Rule that a time is one that [`Time`](crate::Time) can hold: it takes the Unix epoch and what is before it for unknown.
pub fn after_epoch() -> Rule {
    Rule::new("self > timestamp('1970-01-01T00:00:00Z')")
        .message("must be a time after 1970, for example 2027-01-01T08:00:00Z")
}

/// Rule for each text of a list.
pub fn all_match(pattern: &str, message: &str) -> Rule {
    Rule::new(format!("self.all(text, text.matches(r'{pattern}'))")).message(message)
}
