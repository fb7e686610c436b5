//! The `known_hosts` format of OpenSSH (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"), for Git servers and for the hosts of a pool.
//!
//! The parser in `ssh_key::known_hosts` does not report the host names of a line with an invalid key: one bad line would affect all hosts.

use api::Reason;
use std::net::IpAddr;

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::hmac;

/// Reason why a `known_hosts` text cannot be used for a host. Lines are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KnownHostsError {
    /// No line for the host has a usable key, and at least one is damaged.
    #[error(
        "line {line} of known_hosts is for {host}, but has an unknown marker or no valid key: write \"{host} ssh-ed25519 AAAA…\""
    )]
    BadKey {
        /// First damaged line for the host, from 1.
        line: usize,
        /// Requested host.
        host: String,
    },
    /// Every key of the host is revoked.
    #[error("every key of {host} in known_hosts is revoked (@revoked, line {line}): add the host's new key")]
    Revoked {
        /// Last line that revokes a key of the host, from 1.
        line: usize,
        /// Requested host.
        host: String,
    },
    /// The host has a certificate authority, but no key of its own.
    #[error(
        "line {line} of known_hosts trusts a certificate authority for {host}, which is not supported: add the host's own key"
    )]
    CertAuthority {
        /// Last line with a certificate authority for the host, from 1.
        line: usize,
        /// Requested host.
        host: String,
    },
}

impl KnownHostsError {
    /// Returns the stable reason for conditions and metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::BadKey { .. } | Self::CertAuthority { .. } => Reason::HostKeyInvalid,
            Self::Revoked { .. } => Reason::HostKeyUnknown,
        }
    }
}

/// Keys of a host in a `known_hosts` text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known<K> {
    /// Trusted keys of the host. Empty if no line matches the host.
    pub keys: Vec<K>,
    /// Lines, from 1, that match the host and cannot be parsed. They are skipped, as in OpenSSH.
    pub damaged: Vec<usize>,
}

/// Returns the keys that `text` lists for a host, without revoked keys. Supports lists, hashed names, `[host]:port`, `*` and `?`, and
/// negation. Faults in lines for other hosts are ignored. `parse` parses `<type> <base64>`.
///
/// # Errors
/// [`KnownHostsError::BadKey`] when no line for the host has a usable key, and at least one has an unknown marker or no key that `parse` accepts.
/// [`KnownHostsError::Revoked`] when all keys of the host are revoked. [`KnownHostsError::CertAuthority`] when the host has a
/// certificate authority, and no key of its own.
pub fn known_hosts<K: PartialEq>(
    text: &str,
    address: &str,
    port: u16,
    parse: impl Fn(&str) -> Option<K>,
) -> Result<Known<K>, KnownHostsError> {
    let host = host_name(address, port);
    let (mut keys, mut damaged, mut revoked, mut authority) = (Vec::new(), Vec::new(), Vec::new(), None);
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.trim();
        if content.starts_with('#') {
            continue;
        }
        let mut words = content.split_ascii_whitespace().peekable();
        let marker = words.next_if(|word| word.starts_with('@'));
        let Some(patterns) = words.next() else { continue };
        if !matches_host(patterns, &host) {
            continue;
        }
        let key = words.next().zip(words.next()).and_then(|(key_type, base64)| parse(&format!("{key_type} {base64}")));
        match (marker, key) {
            (Some("@cert-authority"), _) => authority = Some(line),
            (Some("@revoked"), Some(key)) => revoked.push((line, key)),
            (None, Some(key)) => keys.push(key),
            _ => damaged.push(line),
        }
    }
    let listed = keys.len();
    keys.retain(|key| !revoked.iter().any(|(_, bad)| bad == key));
    match (keys.is_empty(), revoked.last(), authority, damaged.first()) {
        (true, Some(&(line, _)), ..) if listed > 0 => Err(KnownHostsError::Revoked { line, host }),
        (true, _, _, Some(&line)) => Err(KnownHostsError::BadKey { line, host }),
        (true, _, Some(line), None) => Err(KnownHostsError::CertAuthority { line, host }),
        _ => Ok(Known { keys, damaged }),
    }
}

/// Returns the name that a line must match: `host`, or `[host]:port` unless the port is 22. The name is in lower case, without the dot at
/// the end of an absolute DNS name.
pub fn host_name(address: &str, port: u16) -> String {
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    let absolute = || bare.strip_suffix('.').filter(|name| !name.is_empty()).unwrap_or(bare);
    // Parsing normalizes IPv6 addresses.
    let name = bare.parse::<IpAddr>().map_or_else(|_| absolute().to_ascii_lowercase(), |ip| ip.to_string());
    if port == 22 { name } else { format!("[{name}]:{port}") }
}

fn matches_host(patterns: &str, host: &str) -> bool {
    if patterns.starts_with('|') {
        return matches_hash(patterns, host);
    }
    let mut matched = false;
    for pattern in patterns.split(',') {
        let pattern = pattern.to_ascii_lowercase();
        match pattern.strip_prefix('!') {
            Some(negated) if glob(negated.as_bytes(), host.as_bytes()) => return false,
            Some(_) => {}
            None => matched |= glob(pattern.as_bytes(), host.as_bytes()),
        }
    }
    matched
}

/// Reports whether a hashed name (`|1|salt|hash`) matches the host: HMAC-SHA1 of the name with the salt as key, both in base64. The format
/// requires SHA-1, and uses it only to hide names.
fn matches_hash(pattern: &str, host: &str) -> bool {
    let Some((salt, hash)) = pattern.strip_prefix("|1|").and_then(|rest| rest.split_once('|')) else { return false };
    let (Ok(salt), Ok(hash)) = (STANDARD.decode(salt), STANDARD.decode(hash)) else { return false };
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &salt);
    hmac::verify(&key, host.as_bytes(), &hash).is_ok()
}

/// Reports whether `pattern` with `*` and `?` matches all of `text`. Backtracks only to the last `*`, which avoids exponential time.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
#[path = "known_hosts_tests.rs"]
mod tests;
