//! The route to the cloud's metadata service.
//!
//! When a network of containers is made on a network card, its address and routes move to a virtual card, and routes that were made for
//! the old one go or lead nowhere. The metadata service has an address that no router announces, so that its route is not made again: the
//! node has no credentials and no zone then, most often after a restart.

use std::net::Ipv4Addr;

use crate::host::{Host, HostError, Route};
use crate::ownership::Ownership;

/// Low, so that it wins over a route that leads nowhere.
const METRIC: u32 = 1;

/// What to do about the route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is there.
    None,
    /// Make it.
    Add(Route),
    /// There is no way out of the host that it could follow.
    NoWayOut,
}

/// Chooses what to do: the route must follow the default route, wherever that is now.
pub fn step(routes: &[Route], address: Ipv4Addr) -> Step {
    let default = routes.iter().filter(|r| r.length == 0).min_by_key(|r| r.metric);
    let Some(default) = default else { return Step::NoWayOut };
    let is_it = |r: &Route| (r.destination, r.length, r.interface) == (address, 32, default.interface);
    if routes.iter().any(is_it) {
        return Step::None;
    }
    Step::Add(Route { destination: address, length: 32, metric: METRIC, ..*default })
}

/// Makes the route if it is missing, and records it as ours. Returns whether nothing had to be done.
///
/// The caller holds the [`crate::lock`].
///
/// # Errors
/// When Windows does not list its routes or refuses the new one, or the record of ownership cannot be read or written.
pub fn keep(host: &dyn Host, address: Ipv4Addr) -> Result<bool, HostError> {
    match step(&host.routes()?, address) {
        // Without a default route the host is in no network of a cloud.
        Step::None | Step::NoWayOut => Ok(true),
        Step::Add(route) => {
            tracing::info!(%address, via = %route.next_hop, "making the route to the metadata service");
            let (there, boot_id) = (host.routes()?, host.boot_id()?);
            Ownership::update(host, |owned| {
                let routes = &mut owned.routes;
                let is_this_run = routes.boot_id == boot_id;
                routes.made.retain(|made| is_this_run && there.iter().any(|other| other.is(made)));
                routes.made.push(route);
                routes.boot_id = boot_id;
            })?;
            host.add_route(&route).map(|()| false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    fn default(interface: u32, metric: u32) -> Route {
        Route { destination: Ipv4Addr::UNSPECIFIED, length: 0, next_hop: GATEWAY, interface, metric }
    }

    fn to(destination: Ipv4Addr, interface: u32, metric: u32) -> Route {
        Route { destination, length: 32, next_hop: GATEWAY, interface, metric }
    }

    #[test]
    fn the_route_follows_the_default_route() {
        let other = Ipv4Addr::new(169, 254, 169, 250);
        for (about, routes, expected) in [
            ("it is there", vec![default(7, 15), to(ADDRESS, 7, 20)], Step::None),
            ("it is missing", vec![default(7, 15), to(other, 7, 20)], Step::Add(to(ADDRESS, 7, 1))),
            ("the card is another now", vec![default(9, 15), to(ADDRESS, 7, 20)], Step::Add(to(ADDRESS, 9, 1))),
            ("both are there", vec![default(9, 15), to(ADDRESS, 7, 20), to(ADDRESS, 9, 1)], Step::None),
            (
                "both are there, and the old one is nearer",
                vec![default(9, 15), to(ADDRESS, 7, 1), to(ADDRESS, 9, 26)],
                Step::None,
            ),
            ("two cards", vec![default(7, 50), default(9, 15)], Step::Add(to(ADDRESS, 9, 1))),
            ("no way out", vec![to(ADDRESS, 7, 1)], Step::NoWayOut),
            ("nothing", vec![], Step::NoWayOut),
        ] {
            assert_eq!(step(&routes, ADDRESS), expected, "{about}");
        }
    }
}
