//! Choice of the Node's address among the addresses of its host.

use std::{fmt, net::IpAddr};

use api::WindowsInstanceStatus;

/// Chooses the address of a Node among the addresses that the host has: the one that a user named; otherwise the one that the SSH connection reached;
/// otherwise the one of the default route, if others can reach it; otherwise the first that others can reach. `None` if the host has no usable
/// address.
///
/// An address of the last two kinds is a claim of the host. Its Node gets such an address, but a certificate with this address needs the approval of
/// a user.
pub fn node_ip(named: &str, reached: Option<IpAddr>, has: &[IpAddr], default_route: Option<IpAddr>) -> Option<IpAddr> {
    let proven = [named.parse().ok(), reached].into_iter().flatten().find(|a| has.contains(a));
    let reported =
        || default_route.filter(|a| has.contains(a)).into_iter().chain(has.iter().copied()).find(can_be_reached);
    proven.or_else(reported)
}

/// Returns the address that the Node of a host must have, by what the host last reported; empty if it has reported none. `entry` is the address
/// in the host's entry.
///
/// The Node keeps the address that kubelet was given as long as the host has it: a host with several addresses may be reached at a different one
/// each time. An address that a user names takes precedence.
pub fn desired(entry: &str, status: &WindowsInstanceStatus) -> String {
    let Some(facts) = &status.facts else { return String::new() };
    let is = |text: &str, other: &str| text.parse::<IpAddr>().is_ok_and(|ip| other.parse() == Ok(ip));
    let is_named = is(entry, &facts.node_ip);
    let given = status.node_ip.as_deref().filter(|given| facts.addresses.iter().any(|has| is(given, has)));
    given.filter(|_| !is_named).unwrap_or(&facts.node_ip).to_owned()
}

/// Change of a host's address: its Node must have another one than kubelet was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Address that kubelet was given.
    pub from: String,
    /// Address that the Node must have.
    pub to: String,
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the address of the host has changed from {} to {}", self.from, self.to)
    }
}

/// Returns the change of the host's address since kubelet was given one. Returns `None` if it has not changed, or if that is not known.
pub fn moved(entry: &str, status: &WindowsInstanceStatus) -> Option<Moved> {
    let from = status.node_ip.clone().filter(|given| !given.is_empty())?;
    let to = desired(entry, status);
    let is_other = !to.is_empty() && to != from && to.parse::<IpAddr>().ok() != from.parse().ok();
    is_other.then_some(Moved { from, to })
}

/// Reports whether others can reach an address. Windows assigns itself a link-local address if it gets no other.
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
    fn a_node_gets_another_address_only_where_it_must() {
        use api::HostFacts;
        for (what, entry, given, has, reports, expected) in [
            ("another one in the list", "10.0.0.2", Some("10.0.0.1"), "10.0.0.2", "10.0.0.2", Some("10.0.0.2")),
            ("one of two, named", "10.0.0.2", Some("10.0.0.1"), "10.0.0.1 10.0.0.2", "10.0.0.2", Some("10.0.0.2")),
            ("one of two, reached", "win-1.example.com", Some("10.0.0.1"), "10.0.0.1 10.0.0.2", "10.0.0.2", None),
            ("a new lease", "win-1.example.com", Some("10.0.0.1"), "10.0.0.2", "10.0.0.2", Some("10.0.0.2")),
            ("behind NAT", "203.0.113.5", Some("10.0.0.1"), "10.0.0.1", "10.0.0.1", None),
            ("behind NAT, a new lease", "203.0.113.5", Some("10.0.0.1"), "10.0.0.2", "10.0.0.2", Some("10.0.0.2")),
            ("the same, written otherwise", "fd00::1", Some("fd00:0::1"), "fd00::1", "fd00::1", None),
            ("a node of an older operator", "10.0.0.2", None, "10.0.0.2", "10.0.0.2", None),
            ("nothing is reported", "10.0.0.2", Some("10.0.0.1"), "", "", None),
        ] {
            let addresses = has.split_whitespace().map(str::to_owned).collect();
            let facts = HostFacts { node_ip: reports.into(), addresses, ..HostFacts::default() };
            let given = given.map(str::to_owned);
            let status =
                WindowsInstanceStatus { node_ip: given, facts: Some(facts), ..WindowsInstanceStatus::default() };
            assert_eq!(moved(entry, &status).map(|m| m.to).as_deref(), expected, "{what}");
        }
    }

    #[test]
    fn a_named_address_goes_before_a_reached_one_and_that_before_a_reported_one() {
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
