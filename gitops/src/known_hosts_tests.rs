//! Tests of the `known_hosts` parser.

use api::Reason;
use proptest::prelude::*;
use russh::keys::PublicKey;

use super::*;

const ECDSA_PUBLIC: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBC4Z29yVENBbZknAo3vOMGm7w6klaPMd3fP10ygZwkfgra1MjXIimpA4yB+oxFN0ZDY8KmyRtRwa2CY/zURX6fE=";

/// Hashed names from `ssh-keygen -H` of OpenSSH, for win-1.example.com, [win-2]:2222 and 192.0.2.7.
const HASHED: [&str; 3] = [
    "|1|HulTGkagHr5UWCXnSX8LYKbwpcY=|Xey3AfMLrVFKRQ139Z3hlltNGyk=",
    "|1|Yi3JKBAUMV5OdFUSRZNVUP8dx4k=|K3Tdc/lVQi18xVaLfP3zXy8GYvA=",
    "|1|r/uVxhhljhOXpLd6jbZXoHxQJ/k=|zOkLKXasplRdov6m9Ts3YxJJtjE=",
];

fn read(text: &str, address: &str, port: u16) -> Result<Vec<PublicKey>, KnownHostsError> {
    known_hosts(text, address, port, |key| PublicKey::from_openssh(key).ok()).map(|known| known.keys)
}

/// Returns the keys for a host, where a key is any word after `kind`.
fn keys(text: &str, address: &str, port: u16) -> Result<Vec<String>, KnownHostsError> {
    known_hosts(text, address, port, |key| key.strip_prefix("kind ").map(ToOwned::to_owned)).map(|known| known.keys)
}

#[test]
fn lines_that_are_for_a_host() {
    // The last line is for `hashed.example.org`.
    let text = "\
# git.example.com kind comment
git.example.com,10.0.0.1 kind a
*.example.com,!git.example.com kind b
[git.example.com]:2222 kind c
[FD00::1]:22 kind d
fd00::1 kind e
|1|AAAAAAAAAAAAAAAAAAAAAAAAAAA=|Hfo4B/7+LbBR/c0B8qJfFYQLc5U= kind f
";
    let cases: &[(&str, u16, &[&str])] = &[
        ("git.example.com", 22, &["a"]),
        ("GIT.example.com", 22, &["a"]),
        ("10.0.0.1", 22, &["a"]),
        ("www.example.com", 22, &["b"]),
        ("git.example.com", 2222, &["c"]),
        ("www.example.com", 2222, &[]),
        ("[fd00::1]", 22, &["e"]),
        ("example.com", 22, &[]),
        ("hashed.example.org", 22, &["f"]),
    ];
    for (address, port, expected) in cases {
        assert_eq!(keys(text, address, *port).unwrap(), *expected, "{address} {port}");
    }
}

#[test]
fn lines_that_are_of_no_use() {
    let reason = |text: &str| keys(text, "h", 22).map_err(|error| error.reason());
    assert_eq!(reason("h kind"), Err(Reason::HostKeyInvalid));
    assert_eq!(reason("h other a"), Err(Reason::HostKeyInvalid));
    assert_eq!(reason("h kind a\n@revoked h kind a"), Err(Reason::HostKeyUnknown));
    assert_eq!(reason("@cert-authority h kind a"), Err(Reason::HostKeyInvalid));
    assert_eq!(reason("h kind a\n@revoked h kind b"), Ok(vec!["a".to_owned()]));
    assert_eq!(reason("other kind"), Ok(Vec::new()));
}

#[test]
fn known_hosts_finds_the_keys_of_a_host() {
    let key = ECDSA_PUBLIC;
    let hashed = HASHED.map(|name| format!("{name} {key}\n")).concat();
    let plain = format!("# a comment\n\nwin-1.example.com,192.0.2.7 {key} admin@x\n[win-2]:2222 {key}\n");
    let patterns = format!("*.example.com,!win-9.example.com,10.0.?.* {key}\n[*.lab]:2222 {key}\n2001:db8::7 {key}\n");
    for (text, address, port, found) in [
        (&hashed, "win-1.example.com", 22, true),
        (&hashed, "WIN-1.example.com", 22, true),
        (&hashed, "win-1.example.com", 2222, false),
        (&hashed, "win-2", 2222, true),
        (&hashed, "win-2", 22, false),
        (&hashed, "192.0.2.7", 22, true),
        (&hashed, "192.0.2.70", 22, false),
        (&plain, "192.0.2.7", 22, true),
        (&plain, "Win-1.Example.com", 22, true),
        (&plain, "win-2", 2222, true),
        (&plain, "win-2", 22, false),
        (&plain, "example.com", 22, false),
        (&plain, "win-1.example.com.", 22, true),
        (&patterns, "a.b.example.com", 22, true),
        (&patterns, "win-9.example.com", 22, false),
        (&patterns, "10.0.7.200", 22, true),
        (&patterns, "10.0.77.200", 22, false),
        (&patterns, "h.lab", 2222, true),
        (&patterns, "h.lab", 22, false),
        (&patterns, "[2001:0db8::0007]", 22, true),
    ] {
        let expected = if found { vec![PublicKey::from_openssh(key).unwrap()] } else { Vec::new() };
        assert_eq!(read(text, address, port).unwrap(), expected, "{address} {port} in\n{text}");
    }
}

#[test]
fn known_hosts_refuses_what_it_cannot_honour() {
    let other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";
    let key = ECDSA_PUBLIC;
    for (text, reason) in [
        (format!("h {key}\n@revoked * {key}"), "HostKeyUnknown"),
        (format!("@cert-authority *.x,h {key}"), "HostKeyInvalid"),
        ("h ssh-ed25519".to_owned(), "HostKeyInvalid"),
        ("h ssh-ed25519 AAAA".to_owned(), "HostKeyInvalid"),
        (format!("h ssh-rsa {}", &key[20..]), "HostKeyInvalid"),
        (format!("@unheard-of h {key}"), "HostKeyInvalid"),
    ] {
        let error = read(&text, "h", 22).unwrap_err();
        assert_eq!(error.reason(), reason, "{text}: {error}");
    }
    // A damaged line does not affect the other lines, wherever it is.
    let good = format!("h {key}\n");
    for bad in [
        "h ssh-ed25519\n",
        "h ssh-ed25519 AAAA\n",
        "h,x ssh-rsa \u{fffd}\n",
        "@unheard-of h kind\n",
        "@revoked h kind\n",
    ] {
        for (text, line) in [(format!("{bad}{good}"), 1), (format!("{good}{bad}"), 2)] {
            let known = known_hosts(&text, "h", 22, |key| PublicKey::from_openssh(key).ok()).unwrap();
            assert_eq!((known.keys.len(), known.damaged), (1, vec![line]), "{text}");
        }
    }
    // Lines for other hosts are ignored, and a revoked key does not revoke the other key.
    let text = format!("x ssh-ed25519\nh {key}\nh {other}\n@revoked h {key}\n@cert-authority h {key}");
    assert_eq!(read(&text, "h", 22).unwrap(), [PublicKey::from_openssh(other).unwrap()]);
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "([@!*?h|1= \\[\\]:,a-c]{0,12}( kind [a-c])?\n?){0,8}") {
        let _ = keys(&text, "h", 22);
    }

    #[test]
    fn a_host_is_matched_by_its_own_name(host in "[a-z0-9.-]{1,30}", port in 1_u16..) {
        let text = format!("{} kind a", host_name(&host, port));
        prop_assert_eq!(keys(&text, &host, port).unwrap(), ["a"]);
    }

    #[test]
    fn known_hosts_never_panics_on_nearly_right_lines(
        line in "(@revoked |@cert-authority |@x )?(h|\\*|!h|\\|1\\|[A-Za-z0-9+/=]{0,30}\\|[A-Za-z0-9+/=]{0,30}|[*?,!h]{1,40})[ \t]+(ssh-ed25519 )?[A-Za-z0-9+/=]{0,80}"
    ) {
        let _ = read(&line, "h", 22);
    }
}
