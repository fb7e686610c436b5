//! The limit of disruptions over all pools.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use api::{Disruption, GrantType, WindowsInstance};

use crate::{context::Context, plan::grants::Decision};

/// How many nodes each pool disturbs, as it last decided.
#[derive(Debug, Default)]
pub struct Disrupting(Mutex<HashMap<String, u32>>);

impl Disrupting {
    /// Has a pool decide, with what the others leave it. One pool at a time: two that decide at once would each take what is left.
    pub fn decide(&self, pool: &str, cx: &Context, decide: impl FnOnce(Option<u32>) -> Decision) -> Decision {
        let Some(cap) = cx.args.max_disruptions else { return decide(None) };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Of a pool that has not decided in this process, what it was granted before counts.
        let mut others: HashMap<String, u32> = HashMap::new();
        for instance in cx.instances.state() {
            *others.entry(instance.spec.pool_ref.name.clone()).or_default() += u32::from(disrupts(&instance));
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
    pub fn forget(&self, pool: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(pool);
    }
}

fn disrupts(instance: &WindowsInstance) -> bool {
    instance.spec.grant.as_ref().is_some_and(|g| match g.type_ {
        GrantType::Update => g.disruption > Some(Disruption::None),
        GrantType::Reboot | GrantType::Remove => true,
        _ => false,
    })
}
