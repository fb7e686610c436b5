//! The table of contents of the site: every page stands in it, once.

use std::collections::BTreeMap;

use crate::links;

/// Path of the table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";

/// What is wrong with the table of contents, as sentences.
pub(super) fn faults(documents: &BTreeMap<String, String>) -> Vec<String> {
    let Some(text) = documents.get(SUMMARY) else { return vec!["it is missing".into()] };
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for (_, link) in links::links(text) {
        *times.entry(links::joined(SUMMARY, &link)).or_default() += 1;
    }
    let pages = documents.keys().filter(|path| path.starts_with("docs/") && *path != SUMMARY);
    let missing = pages.filter(|path| !times.contains_key(*path)).map(|path| format!("{path} is not in it: add it"));
    let twice =
        times.iter().filter(|(_, times)| **times > 1).map(|(path, times)| format!("{path} is in it {times} times"));
    let nowhere = times
        .keys()
        .filter(|path| !documents.contains_key(*path))
        .map(|path| format!("{path} is in it and is no page"));
    missing.chain(twice).chain(nowhere).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_is_in_it_once() {
        let page = |path: &str| (path.to_owned(), "# Title\n".to_owned());
        for (summary, expected) in [
            ("- [A](guide/a.md)\n- [B](b.md)\n- [C](../CHANGELOG.md)\n", vec![]),
            ("- [A](guide/a.md)\n", vec!["docs/b.md is not in it: add it"]),
            ("- [A](guide/a.md)\n- [B](b.md)\n- [Again](guide/a.md)\n", vec!["docs/guide/a.md is in it 2 times"]),
            ("- [A](guide/a.md)\n- [B](b.md)\n- [C](guide/c.md)\n", vec!["docs/guide/c.md is in it and is no page"]),
        ] {
            let pages = [page("docs/guide/a.md"), page("docs/b.md"), page("CHANGELOG.md")];
            let documents = pages.into_iter().chain([(SUMMARY.to_owned(), summary.to_owned())]).collect();
            assert_eq!(faults(&documents), expected, "{summary}");
        }
    }
}
