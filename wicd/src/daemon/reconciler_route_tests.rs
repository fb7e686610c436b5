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
    let mut test_host = TestHost::new();
    desire(&test_host.host, "1", Vec::new());
    for interface in [7, 9] {
        test_host.host.state().routes = vec![default(interface)];
        assert!(
            !test_host.pass().settled && test_host.reconciler.is_moving(),
            "a route that was just created is verified by the next pass"
        );
        assert!(test_host.pass().settled);
        let made = test_host.host.state().routes.last().copied().unwrap();
        assert_eq!((made.destination, made.interface), (ADDRESS, interface));
    }
    // The host has no routes yet.
    let routes = std::mem::take(&mut test_host.host.state().routes);
    assert!(!test_host.pass().settled && test_host.reconciler.is_moving(), "there is no way to the service");
    test_host.host.state().routes = routes;
    assert!(test_host.pass().settled);
    // On another adapter with a higher metric, wicd's old route is removed, and a route of another program is reported.
    let farther = |routes: &mut Vec<Route>| routes.iter_mut().for_each(|r| r.metric += 25);
    {
        let mut state = test_host.host.state();
        let old = state.routes.pop().unwrap();
        state.routes = vec![default(11), Route { interface: 11, ..old }];
        farther(&mut state.routes);
        state.routes.push(old);
    }
    assert!(!test_host.pass().settled, "the route with the lower metric leads nowhere");
    assert!(test_host.pass().settled);
    let to_it =
        |test_host: &TestHost| test_host.host.state().routes.iter().filter(|r| r.destination == ADDRESS).count();
    assert_eq!(to_it(&test_host), 1);
    let theirs = Route { destination: ADDRESS, length: 32, metric: 1, ..default(13) };
    test_host.host.state().routes.push(theirs);
    assert!(!test_host.pass().settled && to_it(&test_host) == 2, "wicd does not remove the route of another program");
    test_host.host.state().routes.truncate(1);
    test_host.host.state().refused.insert(format!("add_route {ADDRESS}"));
    for _ in 0..5 {
        assert!(!test_host.pass().settled, "Windows refuses the route");
    }
    test_host.host.state().refused.clear();
    test_host.settle();
    // Outside of a cloud, routes are not queried.
    test_host.desire("2", Vec::new());
    test_host.settle();
    test_host.host.state().counts.clear();
    test_host.pass();
    assert_eq!(test_host.host.state().counts.get("routes"), None);
}

/// A running node must not lose its credentials because another call fails: the next pass still creates the route.
#[test]
fn a_pass_that_fails_still_restores_the_route_to_the_metadata_service() {
    for (about, call) in [
        ("the record of drift", format!("path {}", crate::operation::SETTLED)),
        ("services cannot be listed", "services ".to_owned()),
    ] {
        let mut test_host = TestHost::new();
        desire(&test_host.host, "1", three());
        test_host.settle();
        desire(&test_host.host, "2", three());
        test_host.change("kubelet", |s| s.command = "mine".into());
        test_host.host.state().refused.insert(call);
        let fails = |test_host: &mut TestHost| {
            test_host.host.state().routes.retain(|r| r.length == 0);
            !test_host.pass().settled && test_host.reconciler.complaints.contains_key(super::CHECK)
        };
        assert!((0..5).any(|_| fails(&mut test_host)), "{about}: nothing has failed");
        assert!(has_route(&test_host.host), "{about}");
    }
}

/// hybrid-overlay-node creates a network when it starts, which takes over the network adapter.
#[test]
fn a_route_that_a_service_removes_is_restored_in_the_same_pass() {
    let mut test_host = TestHost::new();
    test_host.host.on_service({
        let host = test_host.host.clone();
        move |_, _| host.state().routes.retain(|r| r.length == 0)
    });
    desire(&test_host.host, "1", three());
    test_host.pass();
    assert_eq!(test_host.host.state().starts.get("containerd"), Some(&1));
    assert!(has_route(&test_host.host));
    test_host.settle();
}

/// A cleanup removes the route that wicd created. A route that existed before, or that another program created after a restart, stays.
#[test]
fn a_cleanup_removes_only_the_route_that_wicd_created() {
    let theirs = |test_host: &TestHost| {
        let default = test_host.host.state().routes[0];
        Route { destination: ADDRESS, length: 32, ..default }
    };
    for (about, was_there, restarts, stays) in [
        ("wicd made it", false, false, false),
        ("it was there", true, false, true),
        ("it is of another run of the host", false, true, true),
    ] {
        let mut test_host = TestHost::new();
        desire(&test_host.host, "1", Vec::new());
        if was_there {
            let route = theirs(&test_host);
            test_host.host.state().routes.push(route);
        }
        test_host.settle();
        if restarts {
            let route = Route { metric: 40, ..theirs(&test_host) };
            test_host.host.state().machine.boot_id = "2".into();
            test_host.host.state().routes[1] = route;
            test_host.settle();
        }
        assert_eq!(cleaned(&test_host.host), api::host::Outcome::Done, "{about}");
        assert_eq!((has_route(&test_host.host), test_host.host.state().routes[0].length), (stays, 0), "{about}");
    }
}
