//! Performance targets ("aims") of the operator, on 2 cores that also run the control plane and all hosts.

use std::time::Duration;

use api::host::WICD_CERTIFICATE_LIFE;

use super::report::{Field, number};

const DAY: Duration = Duration::from_hours(24);

/// Bound of a field, and the comparison that a value must pass.
#[derive(Clone, Copy)]
pub(super) struct Aim {
    field: &'static str,
    is_met: fn(&f64, &f64) -> bool,
    bound: f64,
}

const fn below(field: &'static str, bound: f64) -> Aim {
    Aim { field, is_met: f64::lt, bound }
}

const fn at_most(field: &'static str, bound: f64) -> Aim {
    Aim { field, is_met: f64::le, bound }
}

const fn at_least(field: &'static str, bound: f64) -> Aim {
    Aim { field, is_met: f64::ge, bound }
}

/// Returns the aims of `bench join` for a profile.
pub(super) fn join(profile: &str) -> Vec<Aim> {
    // These profiles have one aim, the time. In `hanging`, the operator's counters also include the pool whose hosts hang.
    match profile {
        "hanging" => return vec![at_most("ratio_to_alone", 1.2)],
        "limited" => return vec![at_most("ratio_to_alone", 1.5)],
        _ => {}
    }
    let mut aims = vec![at_most("ssh_connections_per_host", 1.0), at_most("processes_per_host", 4.0)];
    // In other profiles, few hosts share the writes for their pool, so that each host has more.
    let writes = if matches!(profile, "20" | "100" | "1000" | "5000" | "payload") { 11.0 } else { 14.0 };
    aims.push(at_most("api_writes_per_host", writes));
    match profile {
        "100" => aims.extend([at_most("ratio_to_one", 1.6), at_most("peak_rss_mib", 48.0)]),
        "1000" => aims.extend([at_most("seconds", 75.0), below("peak_rss_mib", 150.0)]),
        "5000" => aims.extend([at_most("seconds", 450.0), at_most("peak_rss_mib", 180.0)]),
        "line" => aims.push(at_least("line_used_ratio", 0.9)),
        "payload" => aims.push(below("seconds", 40.0)),
        "direct" => aims.extend([at_most("ratio_to_sftp", 1.0), below("seconds", 10.0)]),
        "latency" => aims.extend([at_most("ratio_to_sftp", 1.1), below("seconds", 10.0)]),
        "processes" => aims.push(below("seconds", 8.0)),
        _ => {}
    }
    aims
}

/// Returns the aims of `bench rollout` for a number of hosts.
pub(super) fn rollout(hosts: u32) -> Vec<Aim> {
    let slots = if hosts <= 500 { 0.95 } else { 0.9 };
    vec![
        at_least("slots_used_ratio", slots),
        at_most("api_writes_per_host", 9.0),
        below("status_writes_per_host", 15.0),
        below("disrupted_seconds_per_host", 10.0),
    ]
}

/// Returns the aims of `bench upload`: as fast as the fastest of OpenSSH's tools.
pub(super) fn upload() -> Vec<Aim> {
    vec![at_least("ratio_to_fastest", 1.0)]
}

/// Number of the operator's writes for each renewal of wicd's certificate: the approval, and the status of the instance.
const WRITES_OF_A_RENEWAL: f64 = 2.0;
/// Minimum share of a certificate's lifetime after which wicd renews the certificate.
const EARLIEST_RENEWAL: f64 = 0.2;

/// Returns the maximum number of writes for renewals per node and day, with the default lifetime of a certificate.
fn certificate_writes_each_day() -> f64 {
    WRITES_OF_A_RENEWAL * DAY.as_secs_f64() / (EARLIEST_RENEWAL * WICD_CERTIFICATE_LIFE.as_secs_f64())
}

/// Returns the aims of `bench idle`. The limit of the CPU time is 0.5 % of a core.
pub(super) fn idle(hosts: u32, seconds: u32) -> Vec<Aim> {
    let days = f64::from(hosts) * f64::from(seconds) / DAY.as_secs_f64();
    let rss = match hosts {
        0 => 24.0,
        1..=1000 => 100.0,
        _ => 180.0,
    };
    vec![
        at_most("ssh_connections", 0.0),
        at_most("certificate_writes", days * certificate_writes_each_day()),
        at_most("api_writes", 0.0),
        at_most("cpu_seconds", f64::from(seconds) / 200.0),
        below("rss_mib", rss),
    ]
}

/// Returns two fields for a report: the names of the fields that miss their aims, and of those that could not be judged.
pub(super) fn judged(aims: &[Aim], fields: &[Field]) -> [Field; 2] {
    let names = |of: &dyn Fn(&Aim) -> bool| {
        let names: Vec<&str> = aims.iter().filter(|aim| of(aim)).map(|aim| aim.field).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(",") }
    };
    let value = |aim: &Aim| number(fields, aim.field);
    [
        ("aims_missed", names(&|aim| value(aim).is_some_and(|value| !(aim.is_met)(&value, &aim.bound))).into()),
        ("aims_not_measured", names(&|aim| value(aim).is_none()).into()),
    ]
}

#[cfg(test)]
mod tests {
    use super::{
        super::report::{Cell, ratio, round, share},
        *,
    };

    const NONE: &str = "none";

    /// Returns a field for each aim, with a value that just meets the bound.
    fn met(aims: &[Aim]) -> Vec<Field> {
        let just = |aim: &Aim| if (aim.is_met)(&aim.bound, &aim.bound) { aim.bound } else { aim.bound - 0.001 };
        aims.iter().map(|aim| (aim.field, round(just(aim)))).collect()
    }

    #[test]
    fn a_result_names_the_aims_that_it_misses_and_those_that_were_not_measured() {
        for (aims, other, missed, not_measured) in [
            (join("100"), vec![], NONE, NONE),
            (join("100"), vec![("ratio_to_one", share(1.61))], "ratio_to_one", NONE),
            (join("100"), vec![("ratio_to_one", ratio(20.0, None))], NONE, "ratio_to_one"),
            (
                join("1000"),
                vec![("seconds", round(75.01)), ("ssh_connections_per_host", round(1.001))],
                "ssh_connections_per_host,seconds",
                NONE,
            ),
            (
                join("latency"),
                vec![("ratio_to_sftp", Cell::NONE), ("seconds", round(10.0))],
                "seconds",
                "ratio_to_sftp",
            ),
            // Values count before they are rounded: these are printed as 0.95, 9 and 48.
            (rollout(500), vec![("slots_used_ratio", share(0.945))], "slots_used_ratio", NONE),
            (rollout(500), vec![("api_writes_per_host", round(9.01))], "api_writes_per_host", NONE),
            (join("100"), vec![("peak_rss_mib", round(48.01))], "peak_rss_mib", NONE),
            (rollout(2000), vec![("slots_used_ratio", share(0.9))], NONE, NONE),
            (rollout(2000), vec![("slots_used_ratio", share(f64::NAN))], NONE, "slots_used_ratio"),
            (idle(1000, 300), vec![("rss_mib", round(100.0))], "rss_mib", NONE),
            (idle(0, 300), vec![("rss_mib", round(26.1))], "rss_mib", NONE),
            (idle(5000, 300), vec![("rss_mib", round(100.0))], NONE, NONE),
            // The aim is 1.43 per node and day.
            (idle(1000, 864), vec![("certificate_writes", 14.into())], NONE, NONE),
            (idle(1000, 864), vec![("certificate_writes", 15.into())], "certificate_writes", NONE),
        ] {
            // The first field with a name counts.
            let fields = [other.clone(), met(&aims)].concat();
            let expected = [("aims_missed", missed.into()), ("aims_not_measured", not_measured.into())];
            assert_eq!(judged(&aims, &fields), expected, "{other:?}");
        }
        let [(_, missed), (_, not_measured)] = judged(&upload(), &[]);
        assert_eq!((missed, not_measured), (NONE.into(), "ratio_to_fastest".into()));
    }
}
