//! Validation rules of the CRDs, with messages that explain valid values.
//!
//! For a `pattern`, the API server answers with the regular expression, which explains nothing. Fields that users write have rules with messages
//! instead. The estimated cost of a rule must be within the API server's limit, so texts and the lists around them have maximum lengths.

use kube::core::Rule;

/// Rule that a text matches `pattern`, which must not contain `'`. The message begins with "must".
pub fn matches(pattern: &str, message: &str) -> Rule {
    Rule::new(format!("self.matches(r'{pattern}')")).message(message)
}

/// Rule that a time is after the Unix epoch: [`Time`](crate::Time) treats others as unknown.
pub fn after_epoch() -> Rule {
    Rule::new("self > timestamp('1970-01-01T00:00:00Z')")
        .message("must be a time after 1970, for example 2027-01-01T08:00:00Z")
}

/// Rule that each text of a list matches `pattern`, which must not contain `'`.
pub fn all_match(pattern: &str, message: &str) -> Rule {
    Rule::new(format!("self.all(text, text.matches(r'{pattern}'))")).message(message)
}
