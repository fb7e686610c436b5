//! Which of a host's addresses its Node has.

use std::net::IpAddr;

/// The address that a person named, if the host has it; else the one that the SSH connection reached; else the one of the
/// default route; else the first. `None` if the host told no usable address.
pub fn node_ip(named: &str, reached: Option<IpAddr>, has: &[IpAddr], default_route: Option<IpAddr>) -> Option<IpAddr> {
    let named = named.parse().ok();
    [named, reached, default_route].into_iter().flatten().find(|a| has.contains(a)).or_else(|| has.first().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let has = [ip("10.0.0.1"), ip("10.0.0.2"), ip("fd00::1")];
        for (named, reached, default_route, expected) in [
            ("10.0.0.2", Some("10.0.0.1"), None, "10.0.0.2"),
            ("fd00::1", None, Some("10.0.0.1"), "fd00::1"),
            ("win.example.com", Some("10.0.0.2"), Some("10.0.0.1"), "10.0.0.2"),
            // Behind NAT neither the name nor the peer address is the host's own.
            ("203.0.113.5", Some("203.0.113.5"), Some("10.0.0.2"), "10.0.0.2"),
            ("203.0.113.5", None, Some("192.0.2.1"), "10.0.0.1"),
        ] {
            assert_eq!(node_ip(named, reached.map(ip), &has, default_route.map(ip)), Some(ip(expected)), "{named}");
        }
        assert_eq!(node_ip("10.0.0.1", None, &[], None), None);
    }
}
