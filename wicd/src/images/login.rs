//! Registry logins from kubelet's `config.json`, selected as kubelet does: by registry, port and the longest path.

use std::collections::BTreeMap;

use api::registries;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

/// Login at a registry.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// User name.
    pub username: String,
    /// Password.
    pub password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("username", &self.username).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    auth: String,
}

/// Returns the logins for an image, the most specific first; none if the file is not a valid `config.json`.
pub fn logins(config: &[u8], image: &str) -> Vec<Login> {
    let Ok(config) = serde_json::from_slice::<Config>(config) else { return Vec::new() };
    let (registry, path) = registries::split(image);
    let mut found: Vec<(&String, Login)> = config
        .auths
        .iter()
        .filter(|(key, _)| registries::specificity(key, registry, path).is_some())
        .filter_map(|(key, entry)| Some((key, login(&entry.auth)?)))
        .collect();
    found.sort_by_cached_key(|(key, _)| std::cmp::Reverse(registries::specificity(key, registry, path)));
    found.into_iter().map(|(_, login)| login).collect()
}

fn login(auth: &str) -> Option<Login> {
    let text = String::from_utf8(STANDARD.decode(auth.trim()).ok()?).ok()?;
    let (username, password) = text.split_once(':')?;
    Some(Login { username: username.into(), password: password.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config(keys: &[&str]) -> Vec<u8> {
        let entry =
            |key: &&str| ((*key).to_string(), serde_json::json!({"auth": STANDARD.encode(format!("{key}:pw"))}));
        let auths: serde_json::Map<String, serde_json::Value> = keys.iter().map(entry).collect();
        serde_json::json!({ "auths": auths }).to_string().into_bytes()
    }

    #[test]
    fn the_most_specific_login_comes_first() {
        for (keys, image, expected) in [
            (&["r.example", "r.example/team"][..], "r.example/team/app:1", &["r.example/team", "r.example"][..]),
            (&["r.example/team"], "r.example/teams/app:1", &[]),
            (&["r.example/team/app"], "r.example/team/app@sha256:0", &["r.example/team/app"]),
            (&["r.example:5000"], "r.example/app", &[]),
            (&["r.example:5000", "r.example"], "r.example:5000/app", &["r.example:5000"]),
            (&["*.example"], "r.example/app", &["*.example"]),
            (&["*.example"], "a.r.example/app", &[]),
            (&["r*y.example"], "registry.example/app", &["r*y.example"]),
            (&["other.example"], "r.example/app", &[]),
            (&["https//x", "https://r.example/v2/"], "r.example/app", &[]),
            (&["docker.io"], "registry-1.docker.io/library/app", &["docker.io"]),
            (&["docker.io"], "quay.io/app", &[]),
        ] {
            let names: Vec<String> = logins(&config(keys), image).into_iter().map(|l| l.username).collect();
            // The user name in these cases is the key up to the first colon.
            let expected: Vec<&str> = expected.iter().map(|e| e.split(':').next().unwrap()).collect();
            if keys.contains(&"https//x") {
                assert_eq!(names, ["https"], "a URL is a registry, too");
            } else {
                assert_eq!(names, expected, "{keys:?} {image}");
            }
        }
    }

    #[test]
    fn a_password_is_not_printed() {
        let login = Login { username: "u".into(), password: "hunter2".into() };
        assert!(!format!("{login:?}").contains("hunter2"));
    }

    proptest! {
        #[test]
        fn any_file_has_logins_or_none(text in "\\PC{0,80}", key in "[a-z.*:/]{0,20}", image in "[a-z.*:/@]{0,20}") {
            prop_assert!(logins(text.as_bytes(), &image).len() <= 1);
            let _ = logins(&config(&[&key]), &image);
        }
    }
}
