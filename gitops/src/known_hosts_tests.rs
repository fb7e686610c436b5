//! Tests of the `known_hosts` parser.

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

/// Returns the keys for a host, where a key is any word after `kind`.
fn keys(text: &str, address: &str, port: u16) -> Result<Vec<String>, KnownHostsError> {
    known_hosts(text, address, port, |key| key.strip_prefix("kind ").map(ToOwned::to_owned)).map(|known| known.keys)
}

fn public_keys(text: &str, address: &str, port: u16) -> Result<Known<PublicKey>, KnownHostsError> {
    known_hosts(text, address, port, |key| PublicKey::from_openssh(key).ok())
}

#[test]
fn a_line_counts_for_the_hosts_that_its_patterns_match() {
    let hashed = HASHED.map(|name| format!("{name} kind h\n")).concat();
    let text = format!(
        "\
# git.example.org kind comment

git.example.org,10.0.0.1 kind a a comment
*.example.org,!git.example.org,10.1.?.* kind b
[git.example.org]:2222 kind c
[*.lab]:2222 kind d
[FD00::1]:22 kind e
fd00::1 kind f
{hashed}"
    );
    for (address, port, expected) in [
        ("git.example.org", 22, &["a"][..]),
        ("GIT.example.org", 22, &["a"]),
        ("git.example.org.", 22, &["a"]),
        ("10.0.0.1", 22, &["a"]),
        ("www.example.org", 22, &["b"]),
        ("a.b.example.org", 22, &["b"]),
        ("10.1.7.200", 22, &["b"]),
        ("10.1.77.200", 22, &[]),
        ("git.example.org", 2222, &["c"]),
        ("www.example.org", 2222, &[]),
        ("h.lab", 2222, &["d"]),
        ("h.lab", 22, &[]),
        ("[fd00::1]", 22, &["f"]),
        ("[fd00:0::0001]", 22, &["f"]),
        ("example.org", 22, &[]),
        ("win-1.example.com", 22, &["h"]),
        ("WIN-1.example.com", 22, &["h"]),
        ("win-1.example.com", 2222, &[]),
        ("win-2", 2222, &["h"]),
        ("win-2", 22, &[]),
        ("192.0.2.7", 22, &["h"]),
        ("192.0.2.70", 22, &[]),
    ] {
        assert_eq!(keys(&text, address, port).unwrap(), expected, "{address} {port}");
    }
}

#[test]
fn a_host_whose_lines_have_no_usable_key_is_refused() {
    let key = ECDSA_PUBLIC;
    for (text, reason) in [
        (format!("h {key}\n@revoked * {key}"), "HostKeyUnknown"),
        (format!("@cert-authority *.x,h {key}"), "HostKeyInvalid"),
        ("h ssh-ed25519".to_owned(), "HostKeyInvalid"),
        ("h ssh-ed25519 AAAA".to_owned(), "HostKeyInvalid"),
        (format!("h ssh-rsa {}", &key[20..]), "HostKeyInvalid"),
        (format!("@unheard-of h {key}"), "HostKeyInvalid"),
    ] {
        let error = public_keys(&text, "h", 22).unwrap_err();
        assert_eq!(error.reason(), reason, "{text}: {error}");
    }
    assert_eq!(keys("other kind", "h", 22), Ok(Vec::new()));
}

#[test]
fn a_damaged_line_does_not_affect_the_other_lines() {
    let other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";
    let key = ECDSA_PUBLIC;
    let good = format!("h {key}\n");
    for bad in [
        "h ssh-ed25519\n",
        "h ssh-ed25519 AAAA\n",
        "h,x ssh-rsa \u{fffd}\n",
        "@unheard-of h kind\n",
        "@revoked h kind\n",
    ] {
        for (text, line) in [(format!("{bad}{good}"), 1), (format!("{good}{bad}"), 2)] {
            let known = public_keys(&text, "h", 22).unwrap();
            assert_eq!((known.keys.len(), known.damaged), (1, vec![line]), "{text}");
        }
    }
    // Lines for other hosts are ignored, and a revoked key does not revoke the other key.
    let text = format!("x ssh-ed25519\nh {key}\nh {other}\n@revoked h {key}\n@cert-authority h {key}");
    assert_eq!(public_keys(&text, "h", 22).unwrap().keys, [PublicKey::from_openssh(other).unwrap()]);
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
    fn a_malformed_line_causes_no_panic(
        line in "(@revoked |@cert-authority |@x )?(h|\\*|!h|\\|1\\|[A-Za-z0-9+/=]{0,30}\\|[A-Za-z0-9+/=]{0,30}|[*?,!h]{1,40})[ \t]+(ssh-ed25519 )?[A-Za-z0-9+/=]{0,80}"
    ) {
        let _ = public_keys(&line, "h", 22);
    }
}
