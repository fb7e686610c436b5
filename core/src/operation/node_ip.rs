//! Which of a host's addresses its Node has.

use std::net::IpAddr;

/// The address that a person named, if the host has it; otherwise the one that the SSH connection reached; otherwise
/// the one of the default route; otherwise the first that others can reach. `None` if the host reported no usable
/// address.
///
/// The last two are the host's own word. Its Node gets such an address, and no certificate names it unasked.
pub fn node_ip(named: &str, reached: Option<IpAddr>, has: &[IpAddr], default_route: Option<IpAddr>) -> Option<IpAddr> {
    let proven = [named.parse().ok(), reached].into_iter().flatten().find(|a| has.contains(a));
    let reported =
        || default_route.filter(|a| has.contains(a)).into_iter().chain(has.iter().copied()).find(can_be_reached);
    proven.or_else(reported)
}

/// Windows gives itself a link-local address where it gets no other.
fn can_be_reached(ip: &IpAddr) -> bool {
    let is_link_local = match ip.to_canonical() {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(is_link_local || ip.is_loopback() || ip.is_unspecified() || ip.is_multicast())
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
        let has = [ip("127.0.0.1"), ip("169.254.7.7"), ip("fe80::1"), ip("10.0.0.3")];
        assert_eq!(node_ip("win-1", Some(ip("203.0.113.5")), &has, Some(ip("169.254.7.7"))), Some(ip("10.0.0.3")));
        assert_eq!(node_ip("win-1", None, &has[..3], None), None);
    }
}
