//! Tests that pages name as the proof of a sentence: each exists.

use std::collections::BTreeMap;

/// Code spans of the form `file::test`, of which the file is one of the tests with a real API server, that name no test there.
pub(super) fn faults(documents: &BTreeMap<String, String>, source_of: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, text) in documents.iter().filter(|(path, _)| path.starts_with("docs/")) {
        for (at, line) in text.lines().enumerate() {
            for span in line.split('`').skip(1).step_by(2) {
                let Some((file, test)) = span.split_once("::").filter(|_| is_test(span)) else { continue };
                let is_there = source_of(file).is_some_and(|source| source.contains(&format!("fn {test}(")));
                if !is_there {
                    faults.push(format!("{path}:{}: there is no test {span}", at + 1));
                }
            }
        }
    }
    faults
}

/// Targets of log levels and functions look like tests, which have longer names.
fn is_test(span: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c);
    span.chars().all(is_word)
        && !span.starts_with("controller::")
        && span.matches("::").count() == 1
        && span.rsplit(':').next().is_some_and(|name| name.contains('_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_that_is_named_exists() {
        for (text, expected) in [
            ("A (`a::of_one`), `controller::pool_of`, `a::b`, `two`, `Pod::list`, `-- a::`.", vec![]),
            (
                "A.\nB (`a::of_two`, `b::of_one`).",
                vec!["docs/x.md:2: there is no test a::of_two", "docs/x.md:2: there is no test b::of_one"],
            ),
        ] {
            let documents = BTreeMap::from([("docs/x.md".to_owned(), text.to_owned())]);
            let source_of = |file: &str| (file == "a").then(|| "async fn of_one() {}".to_owned());
            assert_eq!(faults(&documents, &source_of), expected, "{text}");
        }
    }
}
