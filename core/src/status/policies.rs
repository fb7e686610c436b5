//! The condition of a pool for the rights of its hosts' daemons. Pure.

use api::{
    WindowsNodePoolStatus,
    conditions::{Status, kind, reason, remove, set},
};
use jiff::Timestamp;

/// Adds it to a status. `problem` is a reason and a message. A pool that is `idle` (in mode Plan, or being deleted) needs no rights: nothing of it stalls.
pub fn describe(
    status: &mut WindowsNodePoolStatus,
    problem: Option<&(&'static str, String)>,
    idle: bool,
    now: Timestamp,
) {
    let generation = status.observed_generation;
    let conditions = &mut status.conditions;
    let Some((why, message)) = problem else {
        set(conditions, kind::POLICIES_IN_FORCE, Status::True, reason::AS_EXPECTED, "", generation, now);
        return;
    };
    set(conditions, kind::POLICIES_IN_FORCE, Status::False, why, message, generation, now);
    if idle {
        return;
    }
    for (type_, is_so) in [(kind::READY, Status::False), (kind::DEGRADED, Status::True), (kind::STALLED, Status::True)]
    {
        set(conditions, type_, is_so, why, message, generation, now);
    }
    remove(conditions, kind::RECONCILING);
}

#[cfg(test)]
mod tests {
    use api::conditions::{find, is_true};

    use super::*;

    #[test]
    fn a_missing_policy_is_said_by_every_pool_and_taken_back() {
        let now = Timestamp::UNIX_EPOCH;
        let problem = ("PolicyMissing", "there is none".to_owned());
        let mut status = WindowsNodePoolStatus::default();
        set(&mut status.conditions, kind::RECONCILING, Status::True, reason::PROGRESSING, "", None, now);
        let ready = |status: &WindowsNodePoolStatus| find(&status.conditions, kind::READY).map(|c| c.reason.clone());

        let mut idle = status.clone();
        describe(&mut idle, Some(&problem), true, now);
        assert_eq!(ready(&idle), None);
        assert_eq!(find(&idle.conditions, kind::POLICIES_IN_FORCE).unwrap().reason, "PolicyMissing");

        describe(&mut status, Some(&problem), false, now);
        assert_eq!(ready(&status).as_deref(), Some("PolicyMissing"));
        assert!(is_true(&status.conditions, kind::STALLED) && is_true(&status.conditions, kind::DEGRADED));
        assert_eq!(find(&status.conditions, kind::RECONCILING), None);

        describe(&mut status, None, false, now);
        assert!(is_true(&status.conditions, kind::POLICIES_IN_FORCE));
    }
}
