//! Tests of the route to the metadata service, which each pass of the reconciler keeps.

use std::net::Ipv4Addr;

use super::tests::*;
use super::*;
use crate::fake::FakeHost;
use crate::files::Access;
use crate::host::Route;
use api::services::{Service, ServicesConfig};

const ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

/// Sets the desired state of a node in a cloud.
fn desire(host: &FakeHost, version: &str, services: Vec<Service>) {
    let desired = Desired {
        cluster_id: crate::operation::tests::CLUSTER.into(),
        node_name: "win-1".into(),
        version: version.into(),
        metadata_address: Some(ADDRESS),
        services: ServicesConfig { services, ..ServicesConfig::default() },
        ..Desired::default()
    };
    files::write_json(host, path::DESIRED, &desired, Access::Protected).unwrap();
}

fn has_route(host: &FakeHost) -> bool {
    host.state().routes.iter().any(|r| r.destination == ADDRESS)
}

/// A container network takes over the network adapter with its routes, at any time, and most often when the host starts.
#[test]
fn a_node_without_the_route_to_the_metadata_service_does_not_match() {
    let default = |interface| Route {
        destination: Ipv4Addr::UNSPECIFIED,
        length: 0,
        next_hop: Ipv4Addr::new(10, 0, 0, 1),
        interface,
        metric: 15,
    };
    let mut bed = Bed::new();
    desire(&bed.host, "1", Vec::new());
    for interface in [7, 9] {
        bed.host.state().routes = vec![default(interface)];
        assert!(!bed.pass().settled && bed.reconciler.is_moving(), "it was not verified");
        assert!(bed.pass().settled);
        let made = bed.host.state().routes.last().copied().unwrap();
        assert_eq!((made.destination, made.interface), (ADDRESS, interface));
    }
    // The host has no routes yet.
    let routes = std::mem::take(&mut bed.host.state().routes);
    assert!(!bed.pass().settled && bed.reconciler.is_moving(), "there is no way to the service");
    bed.host.state().routes = routes;
    assert!(bed.pass().settled);
    // On another adapter with a higher metric, wicd's old route is removed, and a route of another program is reported.
    let farther = |routes: &mut Vec<Route>| routes.iter_mut().for_each(|r| r.metric += 25);
    {
        let mut state = bed.host.state();
        let old = state.routes.pop().unwrap();
        state.routes = vec![default(11), Route { interface: 11, ..old }];
        farther(&mut state.routes);
        state.routes.push(old);
    }
    assert!(!bed.pass().settled, "the nearer one leads nowhere");
    assert!(bed.pass().settled);
    let to_it = |bed: &Bed| bed.host.state().routes.iter().filter(|r| r.destination == ADDRESS).count();
    assert_eq!(to_it(&bed), 1);
    let theirs = Route { destination: ADDRESS, length: 32, metric: 1, ..default(13) };
    bed.host.state().routes.push(theirs);
    assert!(!bed.pass().settled && to_it(&bed) == 2, "it is not for wicd to take out");
    bed.host.state().routes.truncate(1);
    bed.host.state().refused.insert(format!("add_route {ADDRESS}"));
    for _ in 0..5 {
        assert!(!bed.pass().settled, "Windows refuses the route");
    }
    bed.host.state().refused.clear();
    bed.settle();
    // Outside of a cloud, routes are not queried.
    bed.desire("2", Vec::new());
    bed.settle();
    bed.host.state().counts.clear();
    bed.pass();
    assert_eq!(bed.host.state().counts.get("routes"), None);
}

/// A running node must not lose its credentials because another call fails: the next pass still creates the route.
#[test]
fn a_pass_that_fails_still_restores_the_route_to_the_metadata_service() {
    for (about, call) in [
        ("the record of drift", format!("path {}", crate::operation::SETTLED)),
        ("services cannot be listed", "services ".to_owned()),
    ] {
        let mut bed = Bed::new();
        desire(&bed.host, "1", three());
        bed.settle();
        desire(&bed.host, "2", three());
        bed.change("kubelet", |s| s.command = "mine".into());
        bed.host.state().refused.insert(call);
        let fails = |bed: &mut Bed| {
            bed.host.state().routes.retain(|r| r.length == 0);
            !bed.pass().settled && bed.reconciler.complaints.contains_key("pass")
        };
        assert!((0..5).any(|_| fails(&mut bed)), "{about}: nothing has failed");
        assert!(has_route(&bed.host), "{about}");
    }
}

/// hybrid-overlay-node creates a network when it starts, which takes over the network adapter.
#[test]
fn a_route_that_a_service_removes_is_restored_in_the_same_pass() {
    let mut bed = Bed::new();
    bed.host.on_service({
        let host = bed.host.clone();
        move |_, _| host.state().routes.retain(|r| r.length == 0)
    });
    desire(&bed.host, "1", three());
    bed.pass();
    assert_eq!(bed.host.state().starts.get("containerd"), Some(&1));
    assert!(has_route(&bed.host));
    bed.settle();
}

/// A cleanup removes the route that wicd created. A route that existed before, or that another program created after a restart, stays.
#[test]
fn a_cleanup_removes_only_the_route_that_wicd_created() {
    let theirs = |bed: &Bed| {
        let default = bed.host.state().routes[0];
        Route { destination: ADDRESS, length: 32, ..default }
    };
    for (about, was_there, restarts, stays) in [
        ("wicd made it", false, false, false),
        ("it was there", true, false, true),
        ("it is of another run of the host", false, true, true),
    ] {
        let mut bed = Bed::new();
        desire(&bed.host, "1", Vec::new());
        if was_there {
            let route = theirs(&bed);
            bed.host.state().routes.push(route);
        }
        bed.settle();
        if restarts {
            let route = Route { metric: 40, ..theirs(&bed) };
            bed.host.state().machine.boot_id = "2".into();
            bed.host.state().routes[1] = route;
            bed.settle();
        }
        assert_eq!(cleaned(&bed.host), api::host::Outcome::Done, "{about}");
        assert_eq!((has_route(&bed.host), bed.host.state().routes[0].length), (stays, 0), "{about}");
    }
}
