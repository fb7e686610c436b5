//! Random walks of simulated pools: operations succeed and fail, hosts die and recover, and users change the pool.

#[path = "grants_invariants_tests.rs"]
mod invariants;
#[path = "grants_world_tests.rs"]
mod world;

use api::{FailureAction, RolloutStatus, RolloutStep};
use proptest::prelude::*;
use world::{Event, Host, World, time};

use super::{tests::limits, *};
use crate::{
    node::maintenance::By,
    rollout::progress::{ObservedNodes, Settings, course},
};

fn any_version() -> impl Strategy<Value = String> {
    prop_oneof![Just("v1".to_string()), Just("v2".to_string())]
}

fn any_disruption() -> impl Strategy<Value = Disruption> {
    prop_oneof![Just(Disruption::None), Just(Disruption::Restart), Just(Disruption::Drain), Just(Disruption::Reboot)]
}

fn any_grant() -> impl Strategy<Value = Option<GrantType>> {
    use GrantType::{Maintenance, Orphan, Provision, PullImages, Reboot, Remove, Repair, RotateKey, Stage, Update};
    proptest::option::of(proptest::sample::select(vec![
        Provision,
        Stage,
        Update,
        Update,
        Reboot,
        Repair,
        Remove,
        Orphan,
        RotateKey,
        Maintenance,
        PullImages,
    ]))
}

prop_compose! {
    fn any_host()(
        grant in any_grant(),
        versions in (any_version(), any_version(), proptest::option::of(any_version()), proptest::option::weighted(0.1, any_version())),
        disruptions in (any_disruption(), any_disruption()),
        zone in "[ab]?",
        (begun, irrevocable) in any::<(bool, bool)>(),
        joined in proptest::bool::weighted(0.9),
        state in (proptest::bool::weighted(0.8), proptest::bool::weighted(0.9), -2000..0i64, any::<bool>()),
        flags in (proptest::bool::weighted(0.1), proptest::bool::weighted(0.1), proptest::bool::weighted(0.2), proptest::option::weighted(0.15, prop_oneof![Just(By::Person), Just(By::Host)])),
        lots in (proptest::bool::weighted(0.2), proptest::bool::weighted(0.1), proptest::bool::weighted(0.1)),
        waits in proptest::option::weighted(0.2, -60..60i64),
        images in (proptest::bool::weighted(0.3), proptest::bool::weighted(0.2), proptest::option::weighted(0.2, -60..60i64)),
        key in (proptest::bool::weighted(0.5), proptest::bool::weighted(0.2), proptest::option::weighted(0.2, -60..60i64)),
    ) -> Host {
        let (ready, schedulable, down, unreachable) = state;
        let (leaving, held, wants_reboot, maintenance) = flags;
        let (follows, granted, has, gave_up) = versions;
        let ready = joined && ready;
        let names_version = matches!(grant, Some(GrantType::Stage | GrantType::Update));
        let begun = begun && joined && matches!(grant, Some(
                GrantType::Update
                    | GrantType::Reboot
                    | GrantType::Repair
                    | GrantType::Remove
                    | GrantType::Maintenance
            ));
        let has_begun = begun && grant != Some(GrantType::Remove);
        let candidate = Candidate {
            zone,
            grant,
            grant_version: names_version.then_some(granted),
            grant_disruption: (grant == Some(GrantType::Update)).then_some(disruptions.0),
            begun: has_begun,
            irrevocable: has_begun && irrevocable,
            leaving,
            deconfiguring: begun && leaving && grant == Some(GrantType::Remove),
            let_go: leaving && lots.0,
            vanishing: lots.1,
            withheld: joined && lots.2,
            joined,
            ready,
            available: ready && schedulable,
            waits_until: waits.map(time),
            held,
            wants_reboot: joined && wants_reboot,
            maintenance: maintenance.filter(|_| joined),
            down_since: (joined && !ready).then(|| time(down)),
            unreachable,
            wants_key: joined && key.0,
            rotating: joined && key.1 && grant == Some(GrantType::RotateKey),
            key_waits_until: key.2.map(time),
            wants_images: joined && images.0,
            pulling: joined && images.1 && grant == Some(GrantType::PullImages),
            images_wait_until: images.2.map(time),
            ..Candidate::default()
        };
        Host { candidate, follows, has, gave_up, disruption: disruptions.1, broken: false, asks_again: false }
    }
}

prop_compose! {
    fn any_limits()(
        max_concurrent in 1..5u32,
        max_unavailable in prop_oneof![(1..4u32).prop_map(IntOrPercent::Int), (1..60u32).prop_map(IntOrPercent::Percent)],
        flags in (proptest::bool::weighted(0.1), proptest::bool::weighted(0.1), proptest::bool::weighted(0.8), any::<bool>(), any::<bool>()),
        limit in proptest::option::of(0..10u32),
        max_unhealthy in (1..=100u32).prop_map(IntOrPercent::Percent),
        others in proptest::option::of(0..3u32),
    ) -> Limits {
        let (paused, orphan, open, ignores_lost, repairs) = flags;
        Limits {
            max_concurrent,
            max_unavailable,
            paused,
            orphan,
            open,
            ignore_lost_after: ignores_lost.then_some(Duration::from_mins(25)),
            gate: UpdateLimit { limit, ..UpdateLimit::default() },
            remediation: if repairs { RemediationType::Reconfigure } else { RemediationType::None },
            max_unhealthy,
            others: others.map(|left| Share { left, ..Share::default() }),
            ..limits()
        }
    }
}

prop_compose! {
    fn any_world()(hosts in proptest::collection::vec(any_host(), 1..14), limits in any_limits()) -> World {
        let mut hosts = hosts;
        for (n, host) in hosts.iter_mut().enumerate() {
            host.candidate.name = format!("h{n}");
        }
        World { now: 0, target: "v2".into(), hosts, limits }
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => Just(Event::GoesOn),
        2 => Just(Event::Fails),
        1 => Just(Event::Dies),
        2 => Just(Event::Recovers),
        4 => Just(Event::Nothing),
    ]
}

proptest! {
    #[test]
    fn every_decision_keeps_to_the_limits(world in any_world()) {
        let mut world = world;
        world.decide()?;
    }

    /// Checks the limits while hosts progress, fail, die and come back, and users pause the pool, close its window, hold hosts, remove hosts, add
    /// them again and change the target.
    #[test]
    fn a_walk_keeps_to_the_limits(
        world in any_world(),
        rounds in proptest::collection::vec((proptest::collection::vec(any_event(), 14), 0..120i64, 0..14usize, 0..40u8), 60),
    ) {
        let mut world = world;
        for (events, passed, who, whim) in rounds {
            world.now += passed;
            let who = who % world.hosts.len();
            let Candidate { joined, held, vanishing, withheld, wants_reboot, wants_key, maintenance, .. } = &mut world.hosts[who].candidate;
            match whim {
                0 => world.limits.paused ^= true,
                1 => world.limits.open ^= true,
                2 => *held ^= true,
                3 => world.hosts[who].toggle_listing(),
                4 => *wants_reboot = *joined,
                5 => world.target = format!("v{passed}"),
                6 => world.limits.gate.limit = None,
                7 => world.limits.gate.limit = Some(3),
                8 => *wants_key = *joined,
                9 => *vanishing ^= true,
                10 => *withheld ^= true,
                11 => *maintenance = joined.then_some(By::Host),
                12 => *maintenance = None,
                _ => {}
            }
            world.decide()?;
            world.act(&events);
        }
    }

    /// Checks that no node stays cordoned, whatever happened before: when a user pauses the pool, holds its nodes, closes its window or revokes the
    /// change, operations that have changed nothing on a host are aborted, and the others are completed.
    #[test]
    fn no_node_stays_cordoned(
        world in any_world(),
        rounds in proptest::collection::vec((proptest::collection::vec(any_event(), 14), 0..120i64, 0..20u8), 30),
        stop in 0..4u8,
    ) {
        let mut world = world;
        for host in &mut world.hosts {
            let Candidate { name, zone, wants_reboot, .. } = host.candidate.clone();
            host.candidate = Candidate { name, zone, wants_reboot, joined: true, ready: true, available: true, ..Candidate::default() };
        }
        (world.limits.open, world.limits.paused) = (true, false);
        for (events, passed, whim) in rounds {
            world.now += passed;
            if whim == 0 {
                world.target = format!("v{passed}");
            }
            world.decide()?;
            world.act(&events);
        }
        match stop {
            0 => world.limits.paused = true,
            1 => world.limits.open = false,
            2 => world.hosts.iter_mut().for_each(|h| h.candidate.held = true),
            _ => for host in &mut world.hosts {
                (host.follows, host.candidate.wants_reboot) = (world.target.clone(), false);
            },
        }
        world.limits.remediation = RemediationType::None;
        for round in 0..6 {
            world.decide()?;
            let begun = world.hosts.iter().filter(|h| h.candidate.begun && !h.candidate.irrevocable).count();
            prop_assert!(begun == 0, "round {}: {:?}", round, world);
            world.now += 100;
            let (target, now) = (world.target.clone(), world.now);
            for host in &mut world.hosts {
                host.broken = false;
                host.act(Event::GoesOn, &target, now);
                if host.candidate.down_since.is_some() && !host.candidate.begun {
                    host.come_up();
                }
                if stop == 3 && !host.candidate.begun {
                    // An operation that could not be aborted may have ended at an earlier target.
                    host.follows.clone_from(&target);
                }
            }
        }
        for host in &world.hosts {
            prop_assert!(host.candidate.available && !host.candidate.begun, "{:?}", host);
        }
    }

    /// Checks that no more nodes than allowed are ever unavailable, however operations begin, end and fail, as long as no node dies by itself, and
    /// the limits stay the same.
    #[test]
    fn no_more_nodes_than_allowed_are_ever_unavailable(
        world in any_world(),
        rounds in proptest::collection::vec((proptest::collection::vec(any_event(), 14), 0..120i64, 0..20u8), 60),
    ) {
        let mut world = world;
        let many = world.hosts.len();
        for host in &mut world.hosts {
            let Candidate { name, zone, wants_reboot, wants_key, leaving, .. } = host.candidate.clone();
            host.candidate = Candidate { name, zone, wants_reboot, wants_key, leaving, joined: true, ready: true, available: true, ..Candidate::default() };
        }
        let total = u32::try_from(world.hosts.len()).unwrap();
        let cap = world.limits.max_unavailable.of(total) as usize;
        // Lost and orphaned nodes would change the number of nodes that a percentage stands for.
        (world.limits.ignore_lost_after, world.limits.orphan) = (None, false);
        for (events, passed, whim) in rounds {
            world.now += passed;
            match whim {
                0 => world.target = format!("v{passed}"),
                1..=4 => world.hosts[usize::try_from(passed).unwrap() % many].toggle_listing(),
                _ => {}
            }
            world.decide()?;
            let (target, now) = (world.target.clone(), world.now);
            for (host, event) in world.hosts.iter_mut().zip(events) {
                let removes = host.candidate.grant == Some(GrantType::Remove) && !host.candidate.available;
                if event != Event::Dies && !removes {
                    host.act(event, &target, now);
                }
            }
            let unavailable = world.hosts.iter().filter(|h| !h.candidate.available || h.candidate.begun && h.candidate.grant_disruption != Some(Disruption::None)).count();
            prop_assert!(unavailable <= cap, "{} of {}: {:?}", unavailable, cap, world);
        }
    }

    /// Checks that a rollout ends, whatever the initial state: when nothing blocks it and operations succeed, all nodes change step by step, and
    /// unreachable nodes are not waited for.
    #[test]
    fn a_rollout_ends(
        world in any_world(),
        broken in proptest::collection::vec(proptest::bool::weighted(0.15), 14),
        steps in proptest::collection::vec((1..100u32, 0..300i32), 0..4),
        cycles in any::<bool>(),
    ) {
        let mut world = world;
        let percent = IntOrPercent::Percent(100);
        world.limits = Limits { paused: false, open: true, orphan: false, ignore_lost_after: Some(Duration::from_mins(25)), max_unhealthy: percent, others: None, ..world.limits };
        for (host, broken) in world.hosts.iter_mut().zip(broken) {
            (host.candidate.held, host.gave_up, host.candidate.vanishing, host.candidate.withheld) = (false, None, false, false);
            let dead = host.candidate.joined && !host.candidate.ready;
            // A node that no repair brings back must also be unreachable, so that it counts as lost.
            if dead && (broken || world.limits.remediation == RemediationType::None) {
                (host.broken, host.candidate.unreachable) = (true, true);
                // A node that stays in maintenance would be waited for.
                host.candidate.maintenance = None;
            }
            // Only a user uncordons a node that was cordoned before: the test does it here.
            host.candidate.available |= host.candidate.ready && !host.candidate.begun;
        }
        if let Some(host) = world.hosts.iter_mut().find(|h| cycles && h.candidate.ready) {
            (host.asks_again, host.candidate.maintenance) = (true, Some(By::Host));
        }
        let steps: Vec<RolloutStep> = steps.into_iter().map(|(p, s)| RolloutStep { nodes: IntOrPercent::Percent(p), pause_seconds: Some(s), approval: None }).collect();
        let settings = Settings { steps: &steps, approved: &[], max_failures: percent, action: FailureAction::Pause };
        let mut status: Option<RolloutStatus> = None;
        let done = |world: &World| world.hosts.iter().all(|h| h.broken || (h.candidate.joined && h.follows == "v2" && (h.asks_again || (h.candidate.available && h.candidate.grant.is_none())) && !h.candidate.wants_reboot && !h.candidate.wants_key));
        for _ in 0..400 {
            let candidates = world.candidates();
            let now = time(world.now);
            let gone = lost(&candidates, world.limits.ignore_lost_after, percent, now);
            let base: Vec<&Host> = world.hosts.iter().filter(|h| h.candidate.joined && !h.candidate.leaving && !gone.names.contains(&h.candidate.name)).collect();
            let count = |f: &dyn Fn(&Host) -> bool| u32::try_from(base.iter().filter(|h| f(h)).count()).unwrap();
            let follows = |h: &Host| h.follows == "v2";
            let seen = ObservedNodes {
                total: count(&|_| true),
                changed: count(&|h| follows(h) && h.candidate.available),
                following: count(&follows),
                failed: 0,
                current: base.first().map(|h| h.follows.clone()),
                foreign: false,
            };
            let course = course(status.as_ref(), "v2", &seen, settings, now);
            status.clone_from(&course.status);
            world.limits.gate = course.gate;
            world.decide()?;
            // A rollout without nodes makes no progress.
            let nobody = world.hosts.iter().all(|h| h.broken);
            if done(&world) && (nobody || status.as_ref().is_some_and(|s| s.completed)) {
                return Ok(());
            }
            world.now += 100;
            let now = world.now;
            for host in &mut world.hosts {
                if host.candidate.leaving && !host.candidate.joined {
                    // The instance is deleted, and the next one of that name joins again.
                    host.candidate.leaving = false;
                }
                host.act(Event::GoesOn, "v2", now);
            }
        }
        prop_assert!(false, "does not end: {:?} {:?}", world, status);
    }
}
