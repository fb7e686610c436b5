//! Host lists in the format of the Windows Machine Config Operator: an address and `username=<name>` for each host. No I/O.

use std::{collections::BTreeMap, sync::LazyLock};

use regex::Regex;

use super::quote;
use wnp_core::inventory::address::is_address;

/// Maximum number of characters of a user name, as for a host of a pool.
const MAX_USERNAME: usize = 104;

/// Invalid entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bad {
    /// Key of the entry.
    pub key: String,
    /// Message that begins with the key and describes the fault.
    pub message: String,
}

/// Parses `data` and `binaryData` of a ConfigMap such as `windows-instances`. Returns pairs of address and user name, in the order of the
/// keys, and the invalid entries, which do not affect the others. kubectl stores values that are not UTF-8 in `binaryData`.
///
/// White space around the value and its parts is ignored, and so are line breaks at the ends of the value: `username=x` in a block scalar
/// has them.
pub fn windows_instances(data: &BTreeMap<String, Vec<u8>>) -> (Vec<(String, String)>, Vec<Bad>) {
    let (mut hosts, mut bad) = (Vec::new(), Vec::new());
    for (key, value) in data {
        match entry(key, value) {
            Ok(username) => hosts.push((key.trim().to_owned(), username)),
            Err(message) => bad.push(Bad { key: key.clone(), message }),
        }
    }
    (hosts, bad)
}

/// Returns the user name of an entry, or the fault of the entry.
pub(super) fn entry(key: &str, value: &[u8]) -> Result<String, String> {
    if !is_address(key.trim()) {
        return Err(format!(
            "{} is neither an IPv4 or IPv6 address nor a DNS name: use the address of the host as the key",
            quote(key)
        ));
    }
    let remedy = "write `username=<name>`";
    let value = api::text::decode(value).map_err(|error| format!("{key}: the value cannot be read: {error}"))?;
    let value = value.trim();
    if value.is_empty() {
        return Err(format!("{key}: the user name is missing: {remedy}"));
    }
    if value.contains(['\n', '\r']) {
        return Err(format!("{key}: the value has more than one line: {remedy} alone"));
    }
    let Some((_, username)) = value.split_once('=').filter(|(word, _)| word.trim() == "username") else {
        return Err(format!("{key}: {} does not begin with `username=`: {remedy}", quote(value)));
    };
    let username = username.trim();
    if username.is_empty() {
        return Err(format!("{key}: the user name is empty: {remedy}"));
    }
    if !is_username(username) {
        return Err(format!("{key}: {} cannot be the name of a Windows user: {remedy}", quote(username)));
    }
    Ok(username.to_owned())
}

/// Returns the reason why a user name is probably a mistake, if it is. Windows accepts such a name, so it is not refused.
pub(super) fn doubt(username: &str) -> Option<String> {
    let is_quoted = username.len() > 1 && username.starts_with('\'') && username.ends_with('\'');
    let part = if username.contains(" #") {
        "the text after ` #` is part of the name, not a comment"
    } else if is_quoted {
        "the quotes are part of the name"
    } else {
        return None;
    };
    Some(format!("the user name is {}: {part}", quote(username)))
}

/// Reports whether Windows accepts the text as a user, with or without a domain. The API server checks the same for the users in a pool.
fn is_username(text: &str) -> bool {
    static PATTERN: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(api::USERNAME_PATTERN).ok());
    text.chars().count() <= MAX_USERNAME && PATTERN.as_ref().is_some_and(|p| p.is_match(text))
}

/// Reports whether a ConfigMap is a host list: its name is `windows-instances`, or one of its values begins with `username`. A file may also contain
/// other ConfigMaps.
pub(super) fn is_host_list<'a>(name: Option<&str>, mut values: impl Iterator<Item = &'a [u8]>) -> bool {
    let is_entry = |value: &str| value.trim_start().to_ascii_lowercase().starts_with("username");
    name == Some("windows-instances") || values.any(|v| api::text::decode(v).is_ok_and(|text| is_entry(&text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(key: &str, value: &str) -> Result<String, String> {
        let (hosts, bad) = windows_instances(&[(key.to_owned(), value.into())].into());
        assert_eq!(hosts.len() + bad.len(), 1);
        hosts.into_iter().next().map(|h| h.1).ok_or_else(|| bad[0].message.clone())
    }

    #[test]
    fn white_space_around_the_parts_of_an_entry_is_ignored() {
        for value in [
            "username=core",
            "username=core\n",
            "username=core\r\n",
            "  username=core  ",
            "\nusername=core\n\n",
            "username = core",
        ] {
            assert_eq!(read("10.0.0.1", value).as_deref(), Ok("core"), "{value:?}");
        }
        assert_eq!(read("win-1.example.com", r"username=DOMAIN\core").as_deref(), Ok(r"DOMAIN\core"));
        assert_eq!(read("10.0.0.1", "username=Jörg").as_deref(), Ok("Jörg"));
        assert_eq!(read("win_1.example.com", "username=Local Admin\n").as_deref(), Ok("Local Admin"));
    }

    #[test]
    fn the_fault_of_an_entry_is_named() {
        for (key, value, part) in [
            ("10.0.0.1", "", "the user name is missing"),
            ("10.0.0.1", "username=", "the user name is empty"),
            ("10.0.0.1", "username= \n", "the user name is empty"),
            ("10.0.0.1", "username", "does not begin with `username=`"),
            ("10.0.0.1", "core", "does not begin with `username=`"),
            ("10.0.0.1", "user=core", "does not begin with `username=`"),
            ("10.0.0.1", "Username=core", "does not begin with `username=`"),
            ("10.0.0.1", "username=core\nport=22", "more than one line"),
            ("10.0.0.1", "username=core\rport=22", "more than one line"),
            ("10.0.0.1", "username=a=b", "cannot be the name"),
            ("10.0.0.1", "username=...", "cannot be the name"),
            ("10.0.0.256", "username=core", "neither an IPv4 or IPv6 address"),
            ("win 1", "username=core", "neither an IPv4 or IPv6 address"),
        ] {
            let message = read(key, value).unwrap_err();
            assert!(message.contains(part) && message.contains(key), "{key} {value:?}: {message}");
        }
    }

    #[test]
    fn user_names_that_windows_accepts_are_accepted() {
        let long = "a".repeat(104);
        for good in [
            "Administrator",
            "Local Admin",
            r"DOMAIN\Local Admin",
            r".\Administrator",
            "svc@example.com",
            "Jörg",
            ".dot",
            "dot.",
            ". a",
            "a . b",
            "x",
            "(a) {b} 'c' #1!",
            &long,
        ] {
            assert!(is_username(good), "{good:?}");
        }
        let long = "a".repeat(105);
        for bad in [
            "",
            " ",
            ".",
            ". .",
            " a",
            "a ",
            r"a\",
            r"\a",
            r"D M\a",
            r"a\b\c",
            "a\tb",
            "a\u{7f}",
            "a\u{8b}b",
            "\u{9f}\\a",
            r"D\...",
            &long,
        ] {
            assert!(!is_username(bad), "{bad:?}");
        }
        for refused in "\"/[]:;|=,+*?<>\n\r\0".chars() {
            assert!(!is_username(&format!("a{refused}b")), "{refused:?}");
        }
    }

    #[test]
    fn a_user_name_that_is_probably_a_mistake_is_reported() {
        for (username, part) in [
            ("Administrator # the admin", Some("not a comment")),
            ("'Administrator'", Some("the quotes are part")),
            ("Administrator#1", None),
            ("O'Neil", None),
            ("'", None),
        ] {
            let doubt = doubt(username);
            assert_eq!(doubt.is_some(), part.is_some(), "{username}");
            assert!(doubt.unwrap_or_default().contains(part.unwrap_or_default()), "{username}");
        }
    }

    #[test]
    fn a_faulty_entry_does_not_affect_the_others() {
        let data = [("10.0.0.2", "username=b"), ("10.0.0.1", "x"), ("win-1", "username=a")];
        let (hosts, bad) = windows_instances(&data.map(|(k, v)| (k.into(), v.into())).into());
        assert_eq!(hosts, [("10.0.0.2".into(), "b".into()), ("win-1".into(), "a".into())]);
        assert_eq!(bad.iter().map(|b| b.key.as_str()).collect::<Vec<_>>(), ["10.0.0.1"]);
    }

    /// Reports whether Windows accepts a user without a domain, by the rules in its documentation.
    fn by_the_rules(text: &str) -> bool {
        let refused = |c: char| c.is_control() || "\"/\\[]:;|=,+*?<>".contains(c);
        !text.is_empty()
            && text.chars().count() <= MAX_USERNAME
            && !text.contains(refused)
            && !text.chars().all(|c| c == '.' || c == ' ')
            && text.trim_matches(' ') == text
    }

    proptest! {
        #[test]
        fn user_names_follow_the_rules_of_windows(text in "[a-c. \\[\\]\"/:@é\t\u{7f}\u{8b}-]{0,8}", domain in "[A-Z0-9.-]{1,8}") {
            prop_assert_eq!(is_username(&text), by_the_rules(&text));
            prop_assert_eq!(is_username(&format!("{domain}\\{text}")), by_the_rules(&text));
        }

        #[test]
        fn every_entry_is_used_or_refused(data in proptest::collection::btree_map(".{0,20}", "(username ?= ?)?.{0,20}", 0..5)) {
            let data = data.into_iter().map(|(key, value)| (key, value.into_bytes())).collect();
            let (hosts, bad) = windows_instances(&data);
            prop_assert_eq!(hosts.len() + bad.len(), data.len());
            prop_assert!(hosts.iter().all(|(a, u)| is_address(a) && !u.is_empty() && u.trim() == u));
        }
    }
}
