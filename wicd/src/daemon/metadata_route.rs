//! Route to the cloud's metadata service.
//!
//! The creation of a container network moves the address and default route of its network adapter to a virtual adapter. Other routes of the network
//! adapter are lost or lead nowhere. No router announces the address of the metadata service, so its route does not come back: the node then has no
//! credentials and no zone. This happens most often after a restart.

use std::io;
use std::net::Ipv4Addr;

use crate::host::{Host, HostError, Route};
use crate::ownership::Ownership;

/// Metric of the route, low so that Windows prefers it to a route that leads nowhere.
const METRIC: u32 = 1;

/// Next step for the route to the metadata service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// No step: the route exists, and no other route to the service has a lower metric.
    None,
    /// Create this route.
    Add(Route),
    /// Route with a lower metric that leads elsewhere, so that Windows does not use the existing one.
    Hidden(Route),
    /// No step is possible: the host has no default route.
    NoWayOut,
}

/// Returns the next step: the route must use the gateway of the default route, and no route with a lower metric may lead elsewhere.
pub fn step(routes: &[Route], address: Ipv4Addr) -> Step {
    let default = routes.iter().filter(|r| r.length == 0).min_by_key(|r| r.metric);
    let Some(default) = default else { return Step::NoWayOut };
    let ours = Route { destination: address, length: 32, metric: METRIC, ..*default };
    // A cloud's own agent may create a route without a gateway: the service then answers on the adapter's own link.
    let is_it = |r: &Route| r.is(&ours) || r.is(&Route { next_hop: Ipv4Addr::UNSPECIFIED, ..ours });
    let to_it = routes.iter().filter(|r| (r.destination, r.length) == (address, 32));
    match to_it.min_by_key(|r| (r.metric, !is_it(r))) {
        Some(nearest) if is_it(nearest) => Step::None,
        Some(nearest) if routes.iter().any(|r| r.is(&ours)) => Step::Hidden(*nearest),
        _ => Step::Add(ours),
    }
}

/// Creates the route to the metadata service if it is missing, and records it as wicd's. Removes an outdated route of wicd that has a lower metric.
/// Returns true for [`Step::None`].
///
/// The caller holds the [`crate::lock`].
///
/// # Errors
/// Fails when Windows does not list its routes or refuses a change, when the ownership record cannot be read or written, or when a route with a lower
/// metric is not wicd's.
pub fn keep(host: &dyn Host, address: Ipv4Addr) -> Result<bool, HostError> {
    match step(&host.routes()?, address) {
        Step::None => Ok(true),
        // The host has no default route yet.
        Step::NoWayOut => Ok(false),
        Step::Hidden(nearer) => remove_nearer(host, &nearer).map(|()| false),
        Step::Add(route) => {
            tracing::info!(%address, via = %route.next_hop, "creating the route to the metadata service");
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

/// Removes a route with a lower metric that wicd created for an earlier default route. A route of another program stays, and is an error.
fn remove_nearer(host: &dyn Host, nearer: &Route) -> Result<(), HostError> {
    let Route { destination, next_hop, interface, .. } = nearer;
    let boot_id = host.boot_id()?;
    let made = Ownership::load(host)?.map(|owned| owned.routes).filter(|routes| routes.boot_id == boot_id);
    if !made.is_some_and(|routes| routes.made.iter().any(|made| made.is(nearer))) {
        let problem = format!(
            "another program has created a route through {next_hop} on the network adapter with the index {interface}, and Windows prefers that route: check whether \
             it leads to the metadata service, and remove it if it does not (route delete {destination})"
        );
        return Err(HostError::system("use the default route to", destination.to_string())(io::Error::other(problem)));
    }
    tracing::info!(%destination, via = %next_hop, interface, "removing an outdated route to the metadata service");
    host.remove_route(nearer)?;
    Ownership::update(host, |owned| owned.routes.made.retain(|made| !made.is(nearer)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const OLD: Ipv4Addr = Ipv4Addr::new(10, 0, 9, 1);

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
            ("the adapter is another now", vec![default(9, 15), to(ADDRESS, 7, 20)], Step::Add(to(ADDRESS, 9, 1))),
            ("both are there", vec![default(9, 15), to(ADDRESS, 7, 20), to(ADDRESS, 9, 1)], Step::None),
            (
                "both are there, and the old one has the lower metric",
                vec![default(9, 15), to(ADDRESS, 7, 1), to(ADDRESS, 9, 26)],
                Step::Hidden(to(ADDRESS, 7, 1)),
            ),
            ("both have the same metric", vec![default(9, 15), to(ADDRESS, 7, 26), to(ADDRESS, 9, 26)], Step::None),
            (
                "the gateway is another now",
                vec![default(7, 15), Route { next_hop: OLD, ..to(ADDRESS, 7, 20) }],
                Step::Add(to(ADDRESS, 7, 1)),
            ),
            (
                "the gateway is another now, and the old route has the lower metric",
                vec![default(7, 15), Route { next_hop: OLD, ..to(ADDRESS, 7, 1) }, to(ADDRESS, 7, 20)],
                Step::Hidden(Route { next_hop: OLD, ..to(ADDRESS, 7, 1) }),
            ),
            (
                "the cloud's agent has made one without a gateway",
                vec![default(7, 15), Route { next_hop: Ipv4Addr::UNSPECIFIED, ..to(ADDRESS, 7, 20) }],
                Step::None,
            ),
            ("two network adapters", vec![default(7, 50), default(9, 15)], Step::Add(to(ADDRESS, 9, 1))),
            ("no default route", vec![to(ADDRESS, 7, 1)], Step::NoWayOut),
            ("no routes", vec![], Step::NoWayOut),
        ] {
            assert_eq!(step(&routes, ADDRESS), expected, "{about}");
        }
    }
}
