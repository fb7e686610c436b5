//! Validation and canonical form of addresses. Pure.

use std::net::IpAddr;

/// Returns the canonical form of an address: `::0:1` and `::1` become the same, and so do names that differ only in case or in a trailing dot.
pub fn canonical(address: &str) -> String {
    address
        .parse::<IpAddr>()
        .map_or_else(|_| address.trim_end_matches('.').to_ascii_lowercase(), |ip| ip.to_canonical().to_string())
}

/// Reports whether a text is an IP address or a DNS name. A text of only digits and dots must be an IPv4 address. DNS names may have underscores,
/// which host names must not, and a trailing dot, which keeps the resolver from trying other domains.
pub fn is_address(text: &str) -> bool {
    if text.parse::<IpAddr>().is_ok() {
        return true;
    }
    let label = |l: &str| {
        (1..=63).contains(&l.len())
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    text.len() <= 253
        && !text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
        && text.strip_suffix('.').unwrap_or(text).split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_are_ips_and_dns_names() {
        for (text, expected) in [
            ("10.0.0.1 ::1 fd00::1 win-1 Win-1.example.com win-1.example.com. win_1.example.com 1host", true),
            ("10.0.0.256 10.0.0 1 -a a- a..b a.. . 10.0.0.1. [::1] ::g 10.0.0.1:22", false),
        ] {
            for text in text.split(' ') {
                assert_eq!(is_address(text), expected, "{text}");
            }
        }
        assert!(!is_address("") && !is_address("a b"));
        assert!(is_address(&"a".repeat(63)) && !is_address(&"a".repeat(64)));
    }

    #[test]
    fn spellings_of_one_address_have_one_form() {
        for (one, other) in
            [("::1", "0:0::0:1"), ("FD00::A", "fd00::a"), ("::ffff:10.0.0.1", "10.0.0.1"), ("A.Example.", "a.example")]
        {
            assert_eq!(canonical(one), canonical(other));
        }
    }

    proptest! {
        #[test]
        fn a_canonical_address_stays_unchanged(text in "\\PC{0,40}") {
            prop_assert_eq!(canonical(&canonical(&text)), canonical(&text));
            is_address(&text);
        }
    }
}
