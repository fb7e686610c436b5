//! The entries of a `windows-instances` ConfigMap. Pure.

use std::collections::BTreeMap;

/// Longest name of an account on Windows, with its domain.
const LONGEST: usize = 104;

/// An entry that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bad {
    /// Its key, which should be an address.
    pub key: String,
    /// What is wrong and what to do.
    pub message: String,
}

/// Addresses and the users to log in as there, and the entries that cannot be used. Whitespace around a value is nobody's intention: a
/// block scalar in YAML ends with a newline.
pub fn windows_instances(data: &BTreeMap<String, String>) -> (Vec<(String, String)>, Vec<Bad>) {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for (key, value) in data {
        match username(value) {
            Ok(user) => good.push((key.clone(), user.to_owned())),
            Err(problem) => bad.push(Bad { key: key.clone(), message: format!("{key}: {problem}") }),
        }
    }
    (good, bad)
}

fn username(value: &str) -> Result<&str, String> {
    let Some(("username", user)) = value.trim().split_once('=').map(|(k, v)| (k.trim(), v.trim())) else {
        let shown: String = value.trim().chars().take(40).collect();
        return Err(format!("the value must be username=<name of an administrator>, not {shown:?}"));
    };
    if user.is_empty() {
        return Err("the name after username= is missing".into());
    }
    let forbidden = |c: char| c.is_whitespace() || c.is_control() || "\"/:;|=,+*?<>".contains(c);
    if user.len() > LONGEST || user.contains(forbidden) {
        let shown: String = user.chars().take(40).collect();
        return Err(format!("{shown:?} can be no name of a user on Windows"));
    }
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_entry_stands_for_itself() {
        for (value, expected) in [
            ("username=Administrator", Ok("Administrator")),
            ("username=Administrator\n", Ok("Administrator")),
            (" username = core ", Ok("core")),
            (r"username=FACTORY\svc", Ok(r"FACTORY\svc")),
            ("username=", Err("missing")),
            ("username", Err("must be username=")),
            ("Username=core", Err("must be username=")),
            ("core", Err("must be username=")),
            ("", Err("must be username=")),
            ("username=a=b", Err("no name of a user")),
            ("username=a\nusername=b", Err("no name of a user")),
            ("username=two words", Err("no name of a user")),
        ] {
            let data = BTreeMap::from([("10.0.0.1".to_string(), value.to_string())]);
            let (good, bad) = windows_instances(&data);
            match expected {
                Ok(user) => assert_eq!(good, [("10.0.0.1".to_string(), user.to_string())], "{value:?}"),
                Err(part) => {
                    assert!(good.is_empty() && bad[0].message.contains(part), "{value:?}: {bad:?}");
                    assert_eq!(bad[0].key, "10.0.0.1");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn every_entry_is_good_or_bad(data in proptest::collection::btree_map("[a-z0-9.]{1,12}", ".{0,130}", 0..8)) {
            let (good, bad) = windows_instances(&data);
            prop_assert_eq!(good.len() + bad.len(), data.len());
            prop_assert!(good.iter().all(|(_, user)| !user.is_empty() && user.len() <= LONGEST && user.trim() == user));
        }
    }
}
