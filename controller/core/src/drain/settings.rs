//! Drain settings of a pool.

use super::Options;

/// Returns the drain settings of a pool with their defaults. Selectors of rules are checked by [`Rules::compile`](super::classify::Rules::compile).
pub fn options(drain: &api::Drain) -> Options {
    Options {
        timeout: Some(drain.timeout()).filter(|t| !t.is_zero()),
        on_timeout: drain.on_timeout.unwrap_or_default(),
        grace_period_seconds: drain.grace_period_seconds.map(i64::from),
        delete_empty_dir_data: drain.delete_empty_dir_data.unwrap_or(true),
        evict_unmanaged: drain.evict_unmanaged.unwrap_or(true),
        rules: drain.pod_rules.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use api::{Drain, OnTimeout};

    #[test]
    fn missing_settings_have_their_documented_defaults() {
        let options = options(&Drain::default());
        assert_eq!(options.timeout, Some(Duration::from_hours(1)));
        assert_eq!(options.on_timeout, OnTimeout::Wait);
        assert_eq!(options.grace_period_seconds, None);
        assert!(options.delete_empty_dir_data && options.evict_unmanaged && options.rules.is_empty());
    }

    #[test]
    fn zero_is_no_deadline() {
        assert_eq!(options(&Drain { timeout_seconds: Some(0), ..Drain::default() }).timeout, None);
    }
}
