//! Counters of a rollout, from the events of watches and their times. No I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api::{GrantType, WindowsInstance, WindowsInstanceStatus, conditions};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

/// Counters of a rollout. All times count from the same arbitrary moment, and never decrease.
#[derive(Debug, Default)]
pub(super) struct Tally {
    slots: Slots,
    statuses: BTreeMap<String, Option<WindowsInstanceStatus>>,
    status_writes: u32,
    /// Hosts that were given a slot at least once.
    granted: BTreeSet<String>,
    /// Nodes that are cordoned, not Ready or gone, with the time when this began.
    disrupted: BTreeMap<String, Duration>,
    disruption: Duration,
}

impl Tally {
    /// Resets the counters. A disruption that lasts counts from now on, and a slot in use from the next event of its instance.
    pub(super) fn begin(&mut self, at: Duration) {
        (self.slots, self.status_writes, self.disruption) = (Slots::default(), 0, Duration::ZERO);
        self.granted.clear();
        self.disrupted.values_mut().for_each(|since| *since = at);
    }

    /// Records the current state of an instance.
    pub(super) fn instance(&mut self, at: Duration, instance: &WindowsInstance) {
        let name = instance.name_any();
        let update = instance.open_grant().filter(|g| g.type_ == GrantType::Update).map(|g| g.id.as_str());
        if update.is_some() {
            self.granted.insert(name.clone());
        }
        self.slots.set(at, &name, update);
        let before = self.statuses.insert(name, instance.status.clone());
        self.status_writes += u32::from(before.is_some_and(|before| before != instance.status));
    }

    /// Records the current state of a Node.
    pub(super) fn node(&mut self, at: Duration, node: &Node) {
        let unschedulable = node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false);
        let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let ready = conditions.iter().any(|c| c.type_ == conditions::kind::READY && c.status == "True");
        self.set_disrupted(at, &node.name_any(), unschedulable || !ready);
    }

    /// Records that a Node is gone.
    pub(super) fn node_gone(&mut self, at: Duration, name: &str) {
        self.set_disrupted(at, name, true);
    }

    fn set_disrupted(&mut self, at: Duration, name: &str, disrupted: bool) {
        if disrupted {
            self.disrupted.entry(name.to_owned()).or_insert(at);
        } else if let Some(since) = self.disrupted.remove(name) {
            self.disruption += at.saturating_sub(since);
        }
    }

    /// Returns the number of hosts that were given a slot for an update.
    pub(super) fn granted(&self) -> usize {
        self.granted.len()
    }

    /// Returns the number of status changes of instances.
    pub(super) fn status_writes(&self) -> u32 {
        self.status_writes
    }

    /// Returns the seconds for which Nodes were cordoned, not Ready or gone, as the sum over all Nodes.
    pub(super) fn disrupted_seconds(&self, at: Duration) -> f64 {
        let still: Duration = self.disrupted.values().map(|since| at.saturating_sub(*since)).sum();
        (self.disruption + still).as_secs_f64()
    }

    /// Returns the average share of `cap` slots that were in use between the first grant and the last. Afterwards, fewer hosts are left to
    /// change than there are slots. `None` without a grant, or if all grants had the same time.
    pub(super) fn slots_used_ratio(&self, cap: u32) -> Option<f64> {
        self.slots.mean().map(|mean| mean / f64::from(cap))
    }
}

/// Slots in use, over time.
#[derive(Debug, Default)]
struct Slots {
    /// Hosts that have a slot, with the id of their grant.
    used: BTreeMap<String, String>,
    /// Time for which slots were in use up to `until`, summed over all slots, in seconds.
    seconds: f64,
    until: Duration,
    /// Time when the first slot was given.
    first: Option<Duration>,
    /// Time when the last slot was given, and the seconds until then.
    last: Option<(Duration, f64)>,
}

impl Slots {
    fn set(&mut self, at: Duration, name: &str, operation: Option<&str>) {
        if self.used.get(name).map(String::as_str) == operation {
            return;
        }
        let used = f64::from(u32::try_from(self.used.len()).unwrap_or(u32::MAX));
        self.seconds += used * at.saturating_sub(self.until).as_secs_f64();
        self.until = at;
        if let Some(operation) = operation {
            self.used.insert(name.to_owned(), operation.to_owned());
            self.first.get_or_insert(at);
            self.last = Some((at, self.seconds));
        } else {
            self.used.remove(name);
        }
    }

    fn mean(&self) -> Option<f64> {
        let (last, seconds) = self.last?;
        let span = last.saturating_sub(self.first?).as_secs_f64();
        (span > 0.0).then(|| seconds / span)
    }
}

#[cfg(test)]
mod tests {
    use api::{Grant, Phase};
    use serde_json::{from_value, json};

    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn instance(name: &str, grant: Option<(GrantType, &str)>, phase: Option<Phase>) -> WindowsInstance {
        let mut instance = WindowsInstance::new(name, api::WindowsInstanceSpec::default());
        instance.spec.grant = grant.map(|(type_, id)| Grant {
            id: id.into(),
            type_,
            granted_time: api::Time::default(),
            version: None,
            disruption: None,
            services: Vec::new(),
            without_place: false,
        });
        instance.status = phase.map(|phase| WindowsInstanceStatus { phase: Some(phase), ..Default::default() });
        instance
    }

    fn node(name: &str, unschedulable: bool, ready: &str) -> Node {
        from_value(json!({
            "metadata": {"name": name},
            "spec": {"unschedulable": unschedulable},
            "status": {"conditions": [{"type": "DiskPressure", "status": "True"}, {"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    #[test]
    fn slots_are_weighed_with_time_from_the_first_grant_to_the_last() {
        let mut tally = Tally::default();
        let mut grant = |seconds, name: &str, id: Option<&str>| {
            tally.instance(at(seconds), &instance(name, id.map(|id| (GrantType::Update, id)), None));
        };
        grant(0, "a", None);
        grant(10, "a", Some("1"));
        grant(10, "b", Some("1"));
        grant(20, "a", None);
        grant(25, "c", Some("1"));
        // An unchanged grant does not count again; another grant of the same host does.
        grant(28, "c", Some("1"));
        grant(30, "b", Some("2"));
        grant(90, "b", None);
        grant(99, "c", None);
        // Two slots are used for 10 s, one for 5 s, and two for 5 s.
        assert_eq!(tally.slots_used_ratio(2), Some(35.0 / 20.0 / 2.0));
        assert_eq!(tally.granted(), 3);
        tally.begin(at(100));
        assert_eq!((tally.slots_used_ratio(2), tally.granted()), (None, 0));
    }

    #[test]
    fn grants_of_other_kinds_use_no_slot() {
        let mut tally = Tally::default();
        tally.instance(at(0), &instance("a", Some((GrantType::Stage, "1")), None));
        tally.instance(at(9), &instance("b", Some((GrantType::Provision, "1")), None));
        assert_eq!((tally.slots_used_ratio(1), tally.granted()), (None, 0));
    }

    #[test]
    fn statuses_count_when_they_change() {
        let mut tally = Tally::default();
        tally.instance(at(0), &instance("a", None, Some(Phase::Joining)));
        tally.instance(at(0), &instance("b", None, None));
        assert_eq!(tally.status_writes(), 0);
        tally.instance(at(1), &instance("a", None, Some(Phase::Ready)));
        tally.begin(at(2));
        tally.instance(at(3), &instance("a", Some((GrantType::Update, "1")), Some(Phase::Ready)));
        assert_eq!(tally.status_writes(), 0);
        tally.instance(at(4), &instance("a", None, Some(Phase::Joining)));
        tally.instance(at(5), &instance("b", None, Some(Phase::Joining)));
        assert_eq!(tally.status_writes(), 2);
    }

    #[test]
    fn a_node_is_disrupted_while_it_takes_no_pods_or_is_not_ready() {
        let mut tally = Tally::default();
        tally.node(at(0), &node("a", false, "False"));
        tally.node(at(0), &node("b", false, "True"));
        tally.begin(at(10));
        tally.node(at(13), &node("a", false, "True"));
        // The node is cordoned, then not Ready as well, then only not Ready.
        tally.node(at(20), &node("b", true, "True"));
        tally.node(at(21), &node("b", true, "Unknown"));
        tally.node(at(22), &node("b", false, "Unknown"));
        tally.node(at(24), &node("b", false, "True"));
        assert!((tally.disrupted_seconds(at(30)) - 7.0).abs() < 1e-9);
        tally.node_gone(at(30), "a");
        assert!((tally.disrupted_seconds(at(32)) - 9.0).abs() < 1e-9);
    }
}
