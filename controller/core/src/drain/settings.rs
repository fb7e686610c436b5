//! Conversion of a pool's drain settings.

use api::{OnTimeout, PodBehavior, PodRule};

use super::{Behavior, Options, Rule};

/// Translates the drain settings of a pool. Selectors of rules are checked by [`Rules::compile`](super::classify::Rules::compile).
pub fn options(drain: &api::Drain) -> Options {
    Options {
        timeout: Some(drain.timeout()).filter(|t| !t.is_zero()),
        on_timeout: match drain.on_timeout.unwrap_or_default() {
            OnTimeout::Wait => super::OnTimeout::Wait,
            OnTimeout::Abort => super::OnTimeout::Abort,
            OnTimeout::Force => super::OnTimeout::Force,
        },
        grace_period_seconds: drain.grace_period_seconds.map(i64::from),
        delete_empty_dir_data: drain.delete_empty_dir_data.unwrap_or(true),
        evict_unmanaged: drain.evict_unmanaged.unwrap_or(true),
        rules: drain.pod_rules.iter().flatten().map(rule).collect(),
    }
}

fn rule(rule: &PodRule) -> Rule {
    Rule {
        pod_selector: rule.selector.clone().unwrap_or_default(),
        namespace_selector: rule.namespace_selector.clone().unwrap_or_default(),
        behavior: match rule.behavior {
            PodBehavior::Drain => Behavior::Drain,
            PodBehavior::Skip => Behavior::Skip,
            PodBehavior::WaitCompleted => Behavior::WaitCompleted,
        },
        order: rule.order.unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use api::Drain;

    #[test]
    fn what_is_not_set_is_as_documented() {
        let options = options(&Drain::default());
        assert_eq!(options.timeout, Some(Duration::from_hours(1)));
        assert_eq!(options.on_timeout, crate::drain::OnTimeout::Wait);
        assert_eq!(options.grace_period_seconds, None);
        assert!(options.delete_empty_dir_data && options.evict_unmanaged && options.rules.is_empty());
    }

    #[test]
    fn zero_is_no_deadline() {
        assert_eq!(options(&Drain { timeout_seconds: Some(0), ..Drain::default() }).timeout, None);
    }
}
