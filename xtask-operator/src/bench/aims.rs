//! What the operator must reach, on 2 cores with the control plane and all hosts on them.

use serde_json::Value;

use super::report::{Field, number};

/// One bound of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Aim {
    Below(&'static str, f64),
    AtMost(&'static str, f64),
    AtLeast(&'static str, f64),
}

use Aim::{AtLeast, AtMost, Below};

impl Aim {
    fn field(self) -> &'static str {
        match self {
            Below(field, _) | AtMost(field, _) | AtLeast(field, _) => field,
        }
    }

    fn met(self, value: f64) -> bool {
        match self {
            Below(_, bound) => value < bound,
            AtMost(_, bound) => value <= bound,
            AtLeast(_, bound) => value >= bound,
        }
    }
}

/// Of `bench join`. `one` is how long the profile `1` took, if it ran before.
pub(super) fn join(profile: &str, one: Option<f64>) -> Vec<Aim> {
    let mut aims = vec![
        AtMost("ssh_connections_per_host", 1.0),
        AtMost("processes_per_host", 4.0),
        AtMost("api_writes_per_host", 14.0),
    ];
    match profile {
        "100" => {
            aims.push(Below("peak_rss_mib", 64.0));
            aims.extend(one.map(|one| Below("seconds", 2.0 * one)));
        }
        "1000" => aims.extend([Below("seconds", 120.0), Below("peak_rss_mib", 150.0)]),
        "5000" => aims.extend([Below("seconds", 900.0), Below("peak_rss_mib", 250.0)]),
        "payload" => aims.push(Below("seconds", 40.0)),
        "direct" | "latency" => aims.push(Below("seconds", 10.0)),
        "processes" => aims.push(Below("seconds", 8.0)),
        _ => {}
    }
    aims
}

/// Of `bench rollout`.
pub(super) fn rollout(hosts: u32) -> Vec<Aim> {
    let slots = if hosts <= 500 { 0.95 } else { 0.9 };
    vec![
        AtLeast("slots_used_ratio", slots),
        AtMost("api_writes_per_host", 9.0),
        Below("status_writes_per_host", 15.0),
        Below("disrupted_seconds_per_host", 10.0),
    ]
}

/// Of `bench idle`: less than 1 % of a core.
pub(super) fn idle(hosts: u32, seconds: u32) -> Vec<Aim> {
    let rss = if hosts <= 1000 { 100.0 } else { 250.0 };
    vec![
        AtMost("ssh_connections", 0.0),
        AtMost("api_writes", 0.0),
        Below("cpu_seconds", f64::from(seconds) / 100.0),
        Below("rss_mib", rss),
    ]
}

/// Of `bench inventory`.
pub(super) fn inventory(hosts: u32) -> Vec<Aim> {
    let mut aims = vec![Below("fetched_bytes_one_line_change", 65536.0)];
    if hosts <= 1000 {
        aims.push(Below("push_to_instances_seconds", 10.0));
    }
    aims
}

/// Of `bench decision`: a host costs hardly more in a large pool, or beside other pools.
pub(super) fn decision() -> Vec<Aim> {
    vec![AtMost("idle_ratio", 1.5), AtMost("rollout_ratio", 1.5)]
}

/// The field of a report that names the fields whose aims a result misses. What was not measured misses nothing.
pub(super) fn missed(aims: &[Aim], fields: &[Field]) -> Field {
    let missed = |aim: &Aim| number(fields, aim.field()).is_some_and(|value| !aim.met(value));
    let names: Vec<&str> = aims.iter().copied().filter(missed).map(Aim::field).collect();
    ("aims_missed", if names.is_empty() { Value::from("none") } else { names.join(",").into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_names_the_aims_that_it_misses() {
        for (aims, fields, expected) in [
            (rollout(500), [("slots_used_ratio", 0.95), ("api_writes_per_host", 9.0)], "none"),
            (
                rollout(500),
                [("slots_used_ratio", 0.94), ("api_writes_per_host", 9.1)],
                "slots_used_ratio,api_writes_per_host",
            ),
            (
                rollout(2000),
                [("slots_used_ratio", 0.9), ("disrupted_seconds_per_host", 10.0)],
                "disrupted_seconds_per_host",
            ),
            (join("100", None), [("seconds", 20.0), ("peak_rss_mib", 63.9)], "none"),
            (join("100", Some(6.0)), [("seconds", 12.0), ("peak_rss_mib", 64.0)], "peak_rss_mib,seconds"),
            (
                join("1000", None),
                [("seconds", 120.0), ("ssh_connections_per_host", 1.1)],
                "ssh_connections_per_host,seconds",
            ),
            (join("5000", None), [("seconds", 899.9), ("peak_rss_mib", 249.9)], "none"),
            (idle(1000, 300), [("cpu_seconds", 3.0), ("api_writes", 1.0)], "api_writes,cpu_seconds"),
            (idle(1000, 300), [("cpu_seconds", 2.9), ("rss_mib", 100.0)], "rss_mib"),
            (
                inventory(1000),
                [("push_to_instances_seconds", 10.0), ("fetched_bytes_one_line_change", 1.0)],
                "push_to_instances_seconds",
            ),
            (decision(), [("idle_ratio", 1.5), ("rollout_ratio", 1.501)], "rollout_ratio"),
            (inventory(5000), [("push_to_instances_seconds", 10.0), ("fetched_bytes_one_line_change", 1.0)], "none"),
        ] {
            let fields = fields.map(|(name, value)| (name, Value::from(value)));
            assert_eq!(missed(&aims, &fields).1, expected, "{aims:?} {fields:?}");
        }
        assert_eq!(missed(&rollout(500), &[("slots_used_ratio", Value::Null)]).1, "none");
    }
}
