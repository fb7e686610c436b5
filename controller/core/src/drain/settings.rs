//! The pool's drain settings, as the drain takes them.

use std::time::Duration;

use api::{OnTimeout, PodBehavior, PodRule};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{ParseExpressionError, Selector};

use super::{Behavior, Options, Rule};

/// Translates.
///
/// # Errors
/// When a selector means nothing: taken for "all" it would evict what should stay.
pub fn options(drain: &api::Drain) -> Result<Options, ParseExpressionError> {
    let pod_selector = drain.pod_selector.clone().map(selector).transpose()?;
    Ok(Options {
        timeout: Some(drain.timeout()).filter(|t| !t.is_zero()),
        on_timeout: match drain.on_timeout.unwrap_or_default() {
            OnTimeout::Wait => super::OnTimeout::Wait,
            OnTimeout::Abort => super::OnTimeout::Abort,
            OnTimeout::Force => super::OnTimeout::Force,
        },
        grace_period_seconds: drain.grace_period_seconds.map(i64::from),
        delete_empty_dir_data: drain.delete_empty_dir_data.unwrap_or(true),
        evict_unmanaged: drain.evict_unmanaged.unwrap_or(true),
        pod_selector,
        skip_wait_for_delete_timeout: drain
            .skip_wait_for_delete_timeout_seconds
            .and_then(|s| u64::try_from(s).ok())
            .filter(|s| *s > 0)
            .map(Duration::from_secs),
        wait_for_volume_detach: drain.wait_for_volume_detach.unwrap_or(true),
        rules: drain.pod_rules.iter().flatten().map(rule).collect(),
    })
}

fn selector(selector: LabelSelector) -> Result<String, ParseExpressionError> {
    Ok(Selector::try_from(selector)?.to_string())
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
    use super::*;
    use api::Drain;

    #[test]
    fn what_is_not_set_is_as_documented() {
        let options = options(&Drain::default()).unwrap();
        assert_eq!(options.timeout, Some(Duration::from_hours(1)));
        assert_eq!(options.on_timeout, crate::drain::OnTimeout::Wait);
        assert_eq!((options.grace_period_seconds, options.pod_selector), (None, None));
        assert!(options.delete_empty_dir_data && options.evict_unmanaged && options.wait_for_volume_detach);
        assert_eq!(options.skip_wait_for_delete_timeout, None);
    }

    #[test]
    fn zero_is_for_ever_and_selectors_are_kept() {
        let labels = [("app".to_string(), "x".to_string())].into();
        let set = Drain {
            timeout_seconds: Some(0),
            skip_wait_for_delete_timeout_seconds: Some(0),
            pod_selector: Some(LabelSelector { match_labels: Some(labels), match_expressions: None }),
            ..Drain::default()
        };
        let options = options(&set).unwrap();
        assert_eq!((options.timeout, options.skip_wait_for_delete_timeout), (None, None));
        assert_eq!(options.pod_selector.as_deref(), Some("app=x"));
    }
}
