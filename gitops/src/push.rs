//! Push events of Git servers, which sign the body with HMAC-SHA256, as GitHub, Gitea and Forgejo do.

use ring::hmac;
use serde_json::Value;

/// Reports whether a signature is the HMAC of the body, as `sha256=<hex>`.
pub fn is_signed(token: &[u8], body: &[u8], signature: &str) -> bool {
    let Some(Ok(signature)) = signature.strip_prefix("sha256=").map(hex::decode) else { return false };
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, token), body, &signature).is_ok()
}

/// Returns the repository that a body names: each of its URLs as host and path (`host/a/b`). Returns `None` if the body is not JSON.
pub fn repositories(body: &[u8]) -> Option<Vec<String>> {
    const FIELDS: [&str; 5] = ["clone_url", "ssh_url", "git_url", "html_url", "url"];
    let body: Value = serde_json::from_slice(body).ok()?;
    Some(FIELDS.iter().filter_map(|field| place(body["repository"][field].as_str()?)).collect())
}

/// Returns the host and path of a URL as `host/a/b`. The URL may have any notation: `https://host/a/b.git`, `ssh://git@host:22/a/b`,
/// `git@host:a/b.git`.
pub fn place(url: &str) -> Option<String> {
    let (rest, is_url) = match url.split_once("://") {
        Some((_, rest)) => (rest, true),
        None => (url, false),
    };
    let (host, path) = if is_url { rest.split_once('/')? } else { rest.split_once(':')? };
    let host = host.rsplit('@').next()?;
    let host = if is_url {
        host.rsplit_once(':').map_or(host, |(h, port)| if port.bytes().all(|b| b.is_ascii_digit()) { h } else { host })
    } else {
        host
    };
    let path = path.trim_matches('/');
    let path = path.strip_suffix(".git").unwrap_or(path);
    let is_host = !host.is_empty() && !host.contains('/');
    (is_host && !path.is_empty()).then(|| format!("{}/{path}", host.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_signed_pushes_are_accepted() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"token");
        let right = format!("sha256={}", hex::encode(hmac::sign(&key, b"body")));
        assert!(is_signed(b"token", b"body", &right));
        for (token, body, signature) in [
            (&b"other"[..], &b"body"[..], right.as_str()),
            (b"token", b"other", &right),
            (b"token", b"body", ""),
            (b"token", b"body", "sha256="),
            (b"token", b"body", "sha1=da39a3ee5e6b4b0d3255bfef95601890afd80709"),
            (b"token", b"body", &right[..right.len() - 2]),
        ] {
            assert!(!is_signed(token, body, signature), "{signature}");
        }
    }

    #[test]
    fn all_notations_of_a_url_name_the_same_repository() {
        for url in [
            "https://git.example.com/team/hosts",
            "https://git.example.com/team/hosts.git",
            "https://Git.Example.com:8443/team/hosts/",
            "https://user@git.example.com/team/hosts",
            "ssh://git@git.example.com:2222/team/hosts.git",
            "git@git.example.com:team/hosts.git",
        ] {
            assert_eq!(place(url).as_deref(), Some("git.example.com/team/hosts"), "{url}");
        }
        for url in ["", "https://", "https://host", "host", "https:///a", "git@host:", "//a:b@host:22/c"] {
            assert_eq!(place(url), None, "{url}");
        }
        assert_eq!(repositories(b"[]"), Some(vec![]));
        let body = br#"{"repository": {"clone_url": "https://git.example.com/a/b.git", "url": 3, "ssh_url": "no"}}"#;
        assert_eq!(repositories(body), Some(vec!["git.example.com/a/b".to_string()]));
        assert_eq!(repositories(b"{"), None);
    }

    proptest! {
        #[test]
        fn any_header_and_url_is_handled(header in ".{0,80}", url in ".{0,80}") {
            prop_assert!(!is_signed(b"token", b"body", &header));
            let _ = place(&url);
        }
    }
}
