//! Condition of a pool for the admission policies that ship with the operator. Pure.

use api::{
    Reason, WindowsNodePoolStatus,
    conditions::{Status, kind, remove, set},
};
use jiff::Timestamp;

/// State of the admission policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policies {
    /// All policies are in force as shipped.
    InForce,
    /// Some policies that limit the operator or other clients are not in force; no operation stops. Holds a message.
    Missing(String),
    /// The daemons on the hosts have no permissions. Holds a reason and a message.
    Withheld(Reason, String),
}

/// Adds the condition of the policies to a pool's status. A pool that is `idle` (in mode Plan, or being deleted) needs no permissions and does
/// not stall.
pub fn describe(status: &mut WindowsNodePoolStatus, policies: &Policies, idle: bool, now: Timestamp) {
    let generation = status.observed_generation;
    let conditions = &mut status.conditions;
    let (why, message) = match policies {
        Policies::InForce => {
            set(conditions, kind::POLICIES_IN_FORCE, Status::True, Reason::AsExpected, "", generation, now);
            return;
        }
        Policies::Missing(message) => {
            set(conditions, kind::POLICIES_IN_FORCE, Status::False, Reason::PoliciesMissing, message, generation, now);
            return;
        }
        Policies::Withheld(why, message) => (*why, message),
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
    fn a_missing_policy_is_reported_until_it_is_in_force() {
        let now = Timestamp::UNIX_EPOCH;
        let withheld = Policies::Withheld(Reason::PolicyMissing, "there is none".into());
        let mut status = WindowsNodePoolStatus::default();
        set(&mut status.conditions, kind::RECONCILING, Status::True, Reason::Progressing, "", None, now);
        let ready = |status: &WindowsNodePoolStatus| find(&status.conditions, kind::READY).map(|c| c.reason.clone());
        let in_force = |status: &WindowsNodePoolStatus| {
            find(&status.conditions, kind::POLICIES_IN_FORCE).map(|c| (c.status.clone(), c.reason.clone())).unwrap()
        };

        let mut idle = status.clone();
        describe(&mut idle, &withheld, true, now);
        assert_eq!(ready(&idle), None);
        assert_eq!(in_force(&idle), ("False".into(), "PolicyMissing".into()));

        let mut limited = status.clone();
        describe(&mut limited, &Policies::Missing("one is gone".into()), false, now);
        assert_eq!(in_force(&limited), ("False".into(), "PoliciesMissing".into()));
        assert_eq!(ready(&limited), None);
        assert!(is_true(&limited.conditions, kind::RECONCILING), "nothing stops");

        describe(&mut status, &withheld, false, now);
        assert_eq!(ready(&status).as_deref(), Some("PolicyMissing"));
        assert!(is_true(&status.conditions, kind::STALLED) && is_true(&status.conditions, kind::DEGRADED));
        assert_eq!(find(&status.conditions, kind::RECONCILING), None);

        describe(&mut status, &Policies::InForce, false, now);
        assert!(is_true(&status.conditions, kind::POLICIES_IN_FORCE));
    }
}
