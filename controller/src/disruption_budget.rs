//! The limit of disruptions over all pools.

use std::{collections::HashMap, sync::Arc};

use api::{Disruption, GrantType, WindowsInstance};
use parking_lot::Mutex;

use wnp_core::rollout::grants::Decision;

/// How many nodes each pool disturbs, as it last decided.
#[derive(Debug, Default)]
pub(crate) struct GlobalDisruptionBudget(Mutex<HashMap<String, u32>>);

impl GlobalDisruptionBudget {
    /// Has a pool decide, with what the others leave it. One pool at a time: two that decide at once would each take what is left.
    pub(crate) fn decide(
        &self,
        pool: &str,
        cap: Option<u32>,
        instances: &[Arc<WindowsInstance>],
        decide: impl FnOnce(Option<u32>) -> Decision,
    ) -> Decision {
        let Some(cap) = cap else { return decide(None) };
        let mut known = self.0.lock();
        // Of a pool that has not decided in this process, what it was granted before counts.
        let mut others: HashMap<String, u32> = HashMap::new();
        for instance in instances {
            *others.entry(instance.spec.pool_ref.name.clone()).or_default() += u32::from(disrupts(instance));
        }
        let taken: u32 = others
            .iter()
            .filter(|(p, _)| *p != pool)
            .map(|(p, n)| known.get(p).copied().unwrap_or_default().max(*n))
            .sum();
        let decision = decide(Some(cap.saturating_sub(taken)));
        known.insert(pool.to_string(), decision.disrupting);
        known.retain(|p, _| others.contains_key(p));
        decision
    }

    /// Of a pool that is not carried out only what it was granted before counts.
    pub(crate) fn forget(&self, pool: &str) {
        self.0.lock().remove(pool);
    }
}

fn disrupts(instance: &WindowsInstance) -> bool {
    instance.spec.grant.as_ref().is_some_and(|g| match g.type_ {
        GrantType::Update => g.disruption > Some(Disruption::None),
        GrantType::Reboot | GrantType::Remove | GrantType::Maintenance => true,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{Grant, PoolRef, WindowsInstanceSpec};

    fn instance(pool: &str, grant: Option<(GrantType, Option<Disruption>)>) -> Arc<WindowsInstance> {
        let grant = grant.map(|(type_, disruption)| Grant {
            id: "x".into(),
            type_,
            granted_time: api::Time::default(),
            without_place: false,
            version: None,
            disruption,
            services: Vec::new(),
        });
        let pool_ref = PoolRef { name: pool.into() };
        Arc::new(WindowsInstance::new("w", WindowsInstanceSpec { pool_ref, grant, ..WindowsInstanceSpec::default() }))
    }

    /// What is left to a pool.
    fn left(
        known: &GlobalDisruptionBudget,
        pool: &str,
        instances: &[Arc<WindowsInstance>],
        disrupting: u32,
    ) -> Option<u32> {
        let mut seen = None;
        known.decide(pool, Some(3), instances, |others| {
            seen = others;
            Decision { disrupting, ..Decision::default() }
        });
        seen
    }

    #[test]
    fn pools_share_what_there_is() {
        use GrantType::{Maintenance, Provision, Reboot, Remove, Stage, Update};
        let granted = |type_, disruption| instance("a", Some((type_, disruption)));
        for (name, of_a, expected) in [
            ("nothing granted", instance("a", None), 3),
            ("a join is not disruptive", granted(Provision, None), 3),
            ("sending ahead neither", granted(Stage, None), 3),
            ("nor a change without disruption", granted(Update, Some(Disruption::None)), 3),
            ("a change with a drain", granted(Update, Some(Disruption::Drain)), 2),
            ("a restart", granted(Reboot, None), 2),
            ("a removal", granted(Remove, None), 2),
            ("a maintenance", granted(Maintenance, None), 2),
        ] {
            let instances = [of_a, instance("b", None)];
            assert_eq!(left(&GlobalDisruptionBudget::default(), "b", &instances, 0), Some(expected), "{name}");
            assert_eq!(
                left(&GlobalDisruptionBudget::default(), "a", &instances, 0),
                Some(3),
                "{name}: its own are not counted"
            );
        }
        let mut seen = Some(0);
        GlobalDisruptionBudget::default().decide("a", None, &[], |others| {
            seen = others;
            Decision::default()
        });
        assert_eq!(seen, None, "there is no limit");
    }

    #[test]
    fn what_was_decided_counts_before_it_is_seen() {
        let (known, instances) = (GlobalDisruptionBudget::default(), [instance("a", None), instance("b", None)]);
        assert_eq!(left(&known, "a", &instances, 2), Some(3));
        assert_eq!(left(&known, "b", &instances, 0), Some(1));
        assert_eq!(left(&known, "a", &instances, 0), Some(3));
        assert_eq!(left(&known, "b", &instances, 3), Some(3));
        assert_eq!(left(&known, "a", &instances, 0), Some(0));
        known.forget("b");
        assert_eq!(left(&known, "a", &instances, 0), Some(3));
    }
}
