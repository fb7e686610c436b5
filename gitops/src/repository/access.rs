//! Credentials of a repository, from a Secret.

use std::{collections::BTreeMap, fmt};

use reqwest::Url;
use zeroize::Zeroizing;

/// Reason why a Secret cannot be used. Its values are never quoted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Key without the other key of its pair.
    #[error("it has {has}, but not {lacks}: add {lacks}")]
    Incomplete {
        /// Key that the Secret has.
        has: &'static str,
        /// Key that the Secret lacks.
        lacks: &'static str,
    },
    /// Missing key that this kind of URL needs.
    #[error("{url} needs {key}: add it")]
    Missing {
        /// Kind of URL, or purpose of the Secret.
        url: &'static str,
        /// Missing key.
        key: &'static str,
    },
    /// Keys for two authentication methods.
    #[error("it has both {one} and {other}: remove one")]
    Ambiguous {
        /// Key for one method.
        one: &'static str,
        /// Key for the other method.
        other: &'static str,
    },
    /// Value that cannot be used.
    #[error("{key} cannot be used: {problem}")]
    Unusable {
        /// Key of the value.
        key: &'static str,
        /// Fault of the value, and the remedy.
        problem: &'static str,
    },
}

/// Credentials. Empty credentials mean anonymous access, with the certificate authorities that the system trusts.
#[derive(Clone, Default)]
pub struct Access {
    /// User name for https.
    pub username: Option<String>,
    /// Password for https, or passphrase of the SSH identity.
    pub password: Option<Zeroizing<String>>,
    /// Bearer token for https, instead of a user name.
    pub bearer: Option<Zeroizing<String>>,
    /// Client certificates and key for https, PEM.
    pub client_certificate: Option<(Vec<u8>, Zeroizing<Vec<u8>>)>,
    /// Certificate authorities for https that are trusted instead of the system's, PEM.
    pub authority: Option<Vec<u8>>,
    /// Private key for SSH.
    pub identity: Option<Zeroizing<Vec<u8>>>,
    /// Text in the `known_hosts` format, for SSH.
    pub known_hosts: Option<String>,
    /// Proxy for https.
    pub proxy: Option<Proxy>,
}

/// Proxy for https.
#[derive(Clone)]
pub struct Proxy {
    /// URL of the proxy: `http://host:port` or `https://host:port`. The operator's own setting may have a user name and a password in it.
    pub address: String,
    /// User name for the proxy.
    pub username: Option<String>,
    /// Password for the proxy.
    pub password: Option<Zeroizing<String>>,
    /// Hosts that are reached without the proxy, as in `NO_PROXY`.
    pub except: Option<String>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").finish_non_exhaustive()
    }
}

type Data = BTreeMap<String, Vec<u8>>;

impl Access {
    /// Reads the credentials of a Secret for a URL. Keys for the other kind of URL are ignored.
    ///
    /// # Errors
    /// [`AccessError::Missing`] when an `ssh://` URL has no `identity` or no `known_hosts`. For other URLs,
    /// [`AccessError::Incomplete`] when `username` or `password`, or `tls.crt` or `tls.key`, is there without the other, and
    /// [`AccessError::Ambiguous`] when both `username` and `bearerToken` are there. [`AccessError::Unusable`] when a value
    /// that has to be text is neither UTF-8 nor UTF-16 with a byte order mark.
    pub fn from_secret(url: &str, data: &Data) -> Result<Self, AccessError> {
        if url.starts_with("ssh://") { ssh(data) } else { https(data) }
    }
}

fn ssh(data: &Data) -> Result<Access, AccessError> {
    let missing = |key| AccessError::Missing { url: "an ssh:// URL", key };
    let identity = bytes(data, "identity").ok_or_else(|| missing("identity"))?;
    let known_hosts = line(data, "known_hosts")?.ok_or_else(|| missing("known_hosts"))?;
    Ok(Access {
        identity: Some(Zeroizing::new(identity)),
        known_hosts: Some(known_hosts.to_string()),
        password: line(data, "password")?,
        ..Access::default()
    })
}

fn https(data: &Data) -> Result<Access, AccessError> {
    let (username, password) = log_in(data)?.unzip();
    let bearer = line(data, "bearerToken")?;
    if username.is_some() && bearer.is_some() {
        return Err(AccessError::Ambiguous { one: "username", other: "bearerToken" });
    }
    let client_certificate = pair(("tls.crt", bytes(data, "tls.crt")), ("tls.key", bytes(data, "tls.key")))?;
    Ok(Access {
        username,
        password,
        bearer,
        client_certificate: client_certificate.map(|(certificate, key)| (certificate, Zeroizing::new(key))),
        authority: bytes(data, "ca.crt"),
        ..Access::default()
    })
}

impl Proxy {
    /// Reads proxy settings from a Secret.
    ///
    /// # Errors
    /// [`AccessError::Missing`] when there is no `address`. [`AccessError::Unusable`] when it is not an `http://` or
    /// `https://` URL or has a user name or a password, or when a value is not text. [`AccessError::Incomplete`] when
    /// `username` or `password` is there without the other.
    pub fn from_secret(data: &Data) -> Result<Self, AccessError> {
        let address = line(data, "address")?.ok_or(AccessError::Missing { url: "a proxy", key: "address" })?;
        let unusable = |problem| AccessError::Unusable { key: "address", problem };
        let url = Url::parse(&address).map_err(|_| unusable("it is not a URL: write http://host:port"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
            return Err(unusable("write http://host:port or https://host:port"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(unusable("it has a user name: move it to username and password"));
        }
        let (username, password) = log_in(data)?.unzip();
        Ok(Self { address: address.to_string(), username, password, except: None })
    }

    /// Parses the operator's own proxy settings, as in `HTTPS_PROXY` and `NO_PROXY`. Returns `None` if `https` is empty. The address may contain a
    /// user name and a password, and may lack a scheme, as in other programs.
    ///
    /// # Errors
    /// [`AccessError::Unusable`] when the address is not an `http://` or `https://` URL.
    pub fn from_settings(https: &str, except: Option<&str>) -> Result<Option<Self>, AccessError> {
        let https = https.trim();
        if https.is_empty() {
            return Ok(None);
        }
        let address = if https.contains("://") { https.to_owned() } else { format!("http://{https}") };
        let url = Url::parse(&address).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        if url.as_ref().and_then(Url::host_str).is_none_or(str::is_empty) {
            return Err(AccessError::Unusable { key: "HTTPS_PROXY", problem: "write http://host:port" });
        }
        Ok(Some(Self { address, username: None, password: None, except: except.map(str::to_owned) }))
    }
}

type Text = Zeroizing<String>;

/// Returns the user name and the password, or `None` if the Secret has neither.
fn log_in(data: &Data) -> Result<Option<(String, Text)>, AccessError> {
    let found = pair(("username", line(data, "username")?), ("password", line(data, "password")?))?;
    Ok(found.map(|(username, password)| (username.to_string(), password)))
}

/// Returns the values of two keys that must be set together. Each argument is the name of a key, with its value if the key is set.
fn pair<T>(
    (one, value): (&'static str, Option<T>),
    (other, value_of_other): (&'static str, Option<T>),
) -> Result<Option<(T, T)>, AccessError> {
    match (value, value_of_other) {
        (Some(_), None) => Err(AccessError::Incomplete { has: one, lacks: other }),
        (None, Some(_)) => Err(AccessError::Incomplete { has: other, lacks: one }),
        (value, value_of_other) => Ok(value.zip(value_of_other)),
    }
}

/// Returns a value if it is not blank. Text in UTF-16 is converted to UTF-8.
fn bytes(data: &Data, key: &str) -> Option<Vec<u8>> {
    let value = data.get(key).filter(|value| !value.trim_ascii().is_empty())?;
    Some(api::text::decode(value).map_or_else(|_| value.clone(), |text| text.as_bytes().to_vec()))
}

/// Returns a value as text, without the line end that an editor or `echo` has appended.
fn line(data: &Data, key: &'static str) -> Result<Option<Text>, AccessError> {
    let Some(value) = bytes(data, key) else { return Ok(None) };
    let value = Zeroizing::new(value);
    let text = api::text::decode(&value);
    let text = text.map_err(|_| AccessError::Unusable { key, problem: "it is not text in UTF-8: save it in UTF-8" })?;
    let text = Zeroizing::new(text.into_owned());
    Ok(Some(Zeroizing::new(text.trim_end_matches(['\r', '\n']).to_owned())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn data(pairs: &[(&str, &str)]) -> Data {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect()
    }

    #[test]
    fn a_missing_key_of_a_secret_is_named() {
        let (https, ssh) = ("https://example.com/a", "ssh://example.com/a");
        type Case = (&'static str, &'static [(&'static str, &'static str)], &'static str);
        let cases: &[Case] = &[
            (https, &[("username", "me")], "add password"),
            (https, &[("password", "p")], "add username"),
            (https, &[("username", "me"), ("password", "\n")], "add password"),
            (https, &[("tls.crt", "c")], "add tls.key"),
            (https, &[("tls.key", "k")], "add tls.crt"),
            (https, &[("username", "me"), ("password", "p"), ("bearerToken", "t")], "remove one"),
            (ssh, &[("known_hosts", "h")], "needs identity"),
            (ssh, &[("identity", "i")], "needs known_hosts"),
            (ssh, &[("username", "me"), ("password", "p")], "needs identity"),
        ];
        for (url, pairs, expected) in cases {
            let message = Access::from_secret(url, &data(pairs)).unwrap_err().to_string();
            assert!(message.contains(expected), "{pairs:?}: {message}");
        }
    }

    #[test]
    fn the_keys_of_a_secret_are_read() {
        let access = Access::from_secret("https://h/a", &data(&[])).unwrap();
        assert!(access.username.is_none() && access.bearer.is_none() && access.authority.is_none());
        let access = Access::from_secret(
            "https://h/a",
            &data(&[("username", "me\n"), ("password", "p w\r\n"), ("ca.crt", "pem"), ("identity", "not for https")]),
        )
        .unwrap();
        assert_eq!(
            (access.username.as_deref(), access.password.as_deref().map(String::as_str)),
            (Some("me"), Some("p w"))
        );
        assert!(access.authority.is_some() && access.identity.is_none());
        let access =
            Access::from_secret("ssh://h/a", &data(&[("identity", "i"), ("known_hosts", "h"), ("password", "p")]))
                .unwrap();
        assert!(access.identity.is_some() && access.known_hosts.is_some() && access.password.is_some());
    }

    #[test]
    fn the_proxy_of_a_secret_is_read() {
        let cases: &[(&[(&str, &str)], &str)] = &[
            (&[], "needs address"),
            (&[("address", "proxy:3128")], "address cannot be used"),
            (&[("address", "socks5://proxy:1080")], "http://host:port"),
            (&[("address", "http://me:secret@proxy:3128")], "username and password"),
            (&[("address", "http://proxy:3128"), ("username", "me")], "add password"),
        ];
        for (pairs, expected) in cases {
            let message = Proxy::from_secret(&data(pairs)).unwrap_err().to_string();
            assert!(message.contains(expected) && !message.contains("secret"), "{pairs:?}: {message}");
        }
        let proxy = Proxy::from_secret(&data(&[("address", "http://proxy:3128\n")])).unwrap();
        assert_eq!(proxy.address, "http://proxy:3128");
    }

    #[test]
    fn the_proxy_of_the_operator_is_read() {
        for (https, expected) in [
            ("http://proxy:3128", Ok(Some("http://proxy:3128"))),
            ("https://me:secret@proxy:3128", Ok(Some("https://me:secret@proxy:3128"))),
            ("proxy:3128", Ok(Some("http://proxy:3128"))),
            (" ", Ok(None)),
            ("socks5://me:secret@proxy:1080", Err(())),
            ("http://", Err(())),
        ] {
            let found = Proxy::from_settings(https, Some(".svc"));
            let message = found.as_ref().err().map(ToString::to_string).unwrap_or_default();
            assert!(!message.contains("secret") && message.is_empty() == expected.is_ok(), "{https}: {message}");
            let address = found.map(|proxy| proxy.map(|p| (p.address, p.except))).map_err(|_| ());
            let except = || Some(".svc".to_owned());
            assert_eq!(address, expected.map(|a| a.map(|a| (a.to_owned(), except()))), "{https}");
        }
    }

    proptest! {
        #[test]
        fn any_secret_is_taken_or_refused(
            ssh in any::<bool>(),
            data in prop::collection::btree_map(
                "username|password|bearerToken|tls.crt|tls.key|ca.crt|identity|known_hosts|address",
                prop::collection::vec(any::<u8>(), 0..8),
                0..9,
            ),
        ) {
            let url = if ssh { "ssh://h/a" } else { "https://h/a" };
            if let Ok(access) = Access::from_secret(url, &data) {
                prop_assert_eq!(access.identity.is_some(), ssh);
                prop_assert!(ssh || access.username.is_some() == access.password.is_some());
            }
            let _ = Proxy::from_secret(&data);
        }
    }

    #[test]
    fn debug_output_has_no_secrets() {
        let access = Access { bearer: Some(Zeroizing::new("hush".into())), ..Access::default() };
        assert!(!format!("{access:?}").contains("hush"));
    }
}
