//! Logins of registries out of kubelet's `config.json`, chosen as kubelet chooses them: by registry, port and the longest path.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

/// Names of Docker Hub.
const DOCKER_HUB: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

/// User name and password at a registry.
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

/// Logins for an image, the most special first. A file that is no `config.json` has none.
pub fn logins(config: &[u8], image: &str) -> Vec<Login> {
    let Ok(config) = serde_json::from_slice::<Config>(config) else { return Vec::new() };
    let (registry, path) = split(image);
    let mut found: Vec<(usize, String, Login)> = config
        .auths
        .into_iter()
        .filter_map(|(key, entry)| {
            let (pattern, prefix) = split(location(&key));
            let fits = is_registry(pattern, registry) && is_below(path, prefix);
            let login = login(&entry.auth).filter(|_| fits)?;
            Some((prefix.len(), key, login))
        })
        .collect();
    found.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| b.1.cmp(&a.1)));
    found.into_iter().map(|(_, _, login)| login).collect()
}

fn split(location: &str) -> (&str, &str) {
    location.split_once('/').unwrap_or((location, ""))
}

/// Registry and path of a key, which may be a URL.
fn location(key: &str) -> &str {
    let rest = key.split_once("://").map_or(key, |(_, rest)| rest).trim_end_matches('/');
    rest.strip_suffix("/v1").or_else(|| rest.strip_suffix("/v2")).unwrap_or(rest)
}

/// Whether a path is another one, or goes on after it.
fn is_below(path: &str, above: &str) -> bool {
    let end = |rest: &str| rest.is_empty() || rest.starts_with(['/', ':', '@']);
    above.is_empty() || path.strip_prefix(above).is_some_and(end)
}

/// Whether a registry is meant by a key: each part of the name is the same or fits a pattern with `*`, and the port is the same.
fn is_registry(pattern: &str, registry: &str) -> bool {
    if DOCKER_HUB.contains(&registry) {
        return DOCKER_HUB.contains(&pattern);
    }
    let ((pattern, port), (name, port_of)) = (host_and_port(pattern), host_and_port(registry));
    let parts = || pattern.split('.').zip(name.split('.'));
    port == port_of
        && pattern.split('.').count() == name.split('.').count()
        && parts().all(|(pattern, part)| fits(pattern, part))
}

fn host_and_port(registry: &str) -> (&str, &str) {
    registry.rsplit_once(':').unwrap_or((registry, ""))
}

/// Whether a text fits a pattern in which `*` stands for any text.
fn fits(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else { return rest.is_empty() };
    for piece in middle {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
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
    fn the_most_special_login_comes_first() {
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
