//! URLs of repositories.

use reqwest::Url;

use super::GitError;

/// Location of a repository that can be fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// URL of a repository over https.
    Https(Url),
    /// Repository over SSH.
    Ssh(SshLocation),
}

/// Repository on an SSH server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SshLocation {
    pub user: String,
    /// Host name or address, without brackets.
    pub host: String,
    pub port: u16,
    /// Decoded path on the server, not quoted for a shell.
    pub path: String,
}

impl Location {
    /// Parses a URL.
    pub(super) fn parse(text: &str) -> Result<Self, GitError> {
        let invalid = |problem| GitError::UrlInvalid { problem };
        if text.len() > 2048 || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(invalid(
                "it has more than 2048 characters, or white space or a control character in it: correct it",
            ));
        }
        let url = Url::parse(text).map_err(|_| {
            invalid("it is not a URL: write https://host/path or ssh://git@host/path (not git@host:path)")
        })?;
        if url.query().is_some() || url.fragment().is_some() {
            return Err(invalid("it must end with the path, without `?` and `#`"));
        }
        if url.password().is_some() {
            return Err(invalid("it has a password: move it to the Secret"));
        }
        match url.scheme() {
            "https" if url.username().is_empty() => Ok(Self::Https(url)),
            "https" => Err(invalid("it has a user name: move it to the Secret")),
            "ssh" => ssh(&url).map(Self::Ssh),
            _ => Err(invalid("write https://… or ssh://…: other protocols do not authenticate the server")),
        }
    }

    /// Returns the server's name for messages: its host, and its port if that is not the default.
    pub(super) fn host(&self) -> String {
        match self {
            Self::Https(url) => origin(url),
            Self::Ssh(place) if place.port == 22 => place.host.clone(),
            Self::Ssh(place) => format!("{}:{}", place.host, place.port),
        }
    }
}

/// Returns host, and port if it is not the default.
pub(super) fn origin(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn ssh(url: &Url) -> Result<SshLocation, GitError> {
    let invalid = |problem| GitError::UrlInvalid { problem };
    let decode = |text: &str| {
        percent_decode(text).ok_or_else(|| {
            invalid("its %-encoding is wrong, or encodes a control character: write % and two hexadecimal digits, and no control character")
        })
    };
    let user = if url.username().is_empty() { "git".to_owned() } else { decode(url.username())? };
    let host = url.host_str().map(|host| host.trim_start_matches('[').trim_end_matches(']')).unwrap_or_default();
    let host = decode(host)?;
    if host.is_empty() || host.starts_with('-') {
        return Err(invalid("it names no host: write ssh://git@host/path"));
    }
    let path = decode(url.path())?;
    // A path in a home directory has no leading slash.
    let path = path.strip_prefix('/').filter(|rest| rest.starts_with('~')).map_or(path.clone(), ToOwned::to_owned);
    if path.trim_matches('/').is_empty() {
        return Err(invalid("it names no repository: write ssh://git@host/path"));
    }
    Ok(SshLocation { user, host, port: url.port().unwrap_or(22), path })
}

/// Decodes %-encoding. `None` if the encoding is wrong, or the result is not UTF-8 or has control characters.
fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'%' {
            let digits = str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(hex::decode(digits).ok()?.first().copied()?);
            rest = rest.get(2..)?;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok().filter(|text| !text.chars().any(char::is_control))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn https_urls_are_read() {
        for text in ["https://example.com/a/b.git", "https://example.com:8443/a", "https://[::1]/a"] {
            let Ok(Location::Https(url)) = Location::parse(text) else { panic!("{text} is not read") };
            assert_eq!(url.as_str(), text);
        }
        assert_eq!(Location::parse("https://example.com:8443/a").unwrap().host(), "example.com:8443");
    }

    #[test]
    fn ssh_urls_are_read() {
        let place = |user: &str, host: &str, port, path: &str| {
            Location::Ssh(SshLocation { user: user.into(), host: host.into(), port, path: path.into() })
        };
        let cases = [
            ("ssh://example.com/a.git", place("git", "example.com", 22, "/a.git")),
            ("ssh://me@example.com:2222/a/b", place("me", "example.com", 2222, "/a/b")),
            ("ssh://me%40corp@example.com/a%20b", place("me@corp", "example.com", 22, "/a b")),
            ("ssh://git@[fd00::1]:22/a", place("git", "fd00::1", 22, "/a")),
            ("ssh://git@example.com/~me/a", place("git", "example.com", 22, "~me/a")),
        ];
        for (text, expected) in cases {
            assert_eq!(Location::parse(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_url_that_cannot_be_used_is_refused() {
        let cases = [
            ("http://example.com/a", "https://"),
            ("git://example.com/a", "https://"),
            ("file:///etc", "https://"),
            ("ext::sh -c id", "white space"),
            ("git@example.com:a/b", "ssh://git@host/path"),
            ("https://me@example.com/a", "user name"),
            ("https://me:secret@example.com/a", "password"),
            ("ssh://me:secret@example.com/a", "password"),
            ("https://example.com/a?b=c", "without `?`"),
            ("ssh://example.com", "names no repository"),
            ("ssh://-oProxyCommand=id/a", "names no host"),
            ("ssh://example.com/a%0ab", "%-encoding"),
            ("ssh://example.com/a%zz", "%-encoding"),
        ];
        for (text, expected) in cases {
            let message = Location::parse(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
            assert!(!message.contains("secret"), "{text}: {message}");
        }
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused(text in "(https|ssh)?:?/?/?.{0,80}") {
            if let Ok(Location::Ssh(place)) = Location::parse(&text) {
                prop_assert!(!place.host.is_empty() && !place.path.chars().any(char::is_control));
            }
        }
    }
}
