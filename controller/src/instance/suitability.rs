//! Reports about the host of an instance, independent of the operation: whether it can be a node, its warnings, and whether it can use the accounts
//! of its pool.

use api::{
    Reason,
    conditions::{Status, kind},
    host::HostState,
};
use wnp_core::{
    operation::{
        preflight::Faults,
        preflight_warnings::{self, Asked},
        service_accounts,
    },
    render::{Platform, Rendered, Shared},
};

use super::scope::Scope;
use crate::runtime::{clock, events::EventReason};

/// Reports the result of the preflight check. New warnings get an event. A pending restart causes no warning if the operation is about to restart the
/// host.
pub(super) fn report(scope: &mut Scope, of_pool: &Rendered, found: Result<(), &Faults>, state: &HostState) {
    let boot_id_to_leave = scope.status.operation.as_ref().and_then(|o| o.boot_id_to_leave.as_ref());
    let is_on_aws = scope.cx.hosts.release.get().cluster.platform == Platform::Aws && of_pool.has_cloud_controller();
    let name = scope.name();
    let asked = Asked {
        restarts: boot_id_to_leave == Some(&state.machine.boot_id),
        now: clock::now(),
        name_on_aws: is_on_aws.then_some(&name),
    };
    let all = preflight_warnings::texts(&asked, state);
    let warnings = all.join("; ");
    let (status, why, message) = match found {
        Ok(()) if warnings.is_empty() => (Status::True, Reason::Succeeded, String::new()),
        Ok(()) => (Status::True, Reason::PassedWithWarnings, format!("warning: {warnings}")),
        Err(faults) if warnings.is_empty() => (Status::False, faults.reason(), faults.to_string()),
        Err(faults) => (Status::False, faults.reason(), format!("{faults}; warning: {warnings}")),
    };
    let before = scope.set_condition(kind::PREFLIGHT_PASSED, status, why, &message);
    if has_new_warning(before.as_deref(), &all) {
        scope.say(EventReason::HostWarning, "Connect", &warnings);
    }
}

/// Reports whether one of the warnings is not in the earlier message of the condition.
fn has_new_warning(before: Option<&str>, warnings: &[String]) -> bool {
    warnings.iter().any(|warning| before.is_none_or(|before| !before.contains(warning.as_str())))
}

/// Sets the condition `GMSAReady`: whether the host can use the group Managed Service Accounts of its pool. Removes the condition if the pool has
/// none.
pub(super) fn report_accounts(scope: &mut Scope, of_pool: &Shared, state: &HostState) {
    let accounts = &of_pool.service_accounts;
    if accounts.is_empty() {
        return scope.remove_condition(kind::GMSA_READY);
    }
    let plugin = of_pool.credential_plugin.as_ref().map(|plugin| plugin.clsid.as_str());
    let (status, why, message, is_warning) = match service_accounts::check(accounts, plugin, state) {
        Ok(message) => (Status::True, Reason::Succeeded, message, false),
        Err(fault) => (fault.status(), fault.reason(), fault.to_string(), fault.is_warning()),
    };
    let before = scope.set_condition(kind::GMSA_READY, status, why, &message);
    if is_warning && before.as_deref() != Some(message.as_str()) {
        scope.say(EventReason::HostWarning, "Connect", &message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_new_warning_is_reported() {
        let before = "Windows has a fault; warning: restart the host; exclude C:\\k; remove docker";
        for (about, before, warnings, expected) in [
            ("none", Some(before), &[][..], false),
            ("the same", Some(before), &["restart the host", r"exclude C:\k", "remove docker"], false),
            ("the middle one is gone", Some(before), &["restart the host", "remove docker"], false),
            ("another order", Some(before), &["remove docker", "restart the host"], false),
            ("another one", Some(before), &["restart the host", "remove podman"], true),
            ("the first", Some(""), &["remove docker"], true),
            ("no condition", None, &["remove docker"], true),
            ("none, and no condition", None, &[], false),
        ] {
            let warnings: Vec<String> = warnings.iter().map(|warning| (*warning).to_owned()).collect();
            assert_eq!(has_new_warning(before, &warnings), expected, "{about}");
        }
    }
}
