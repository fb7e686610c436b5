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

/// Reports the result of the preflight check. New warnings get an event. A restart that the operation is about to make is no warning.
pub(super) fn report(scope: &mut Scope, of_pool: &Rendered, found: Result<(), &Faults>, state: &HostState) {
    let leaves = scope.status.operation.as_ref().and_then(|o| o.boot_id_to_leave.as_ref());
    let is_on_aws = scope.cx.hosts.release.get().cluster.platform == Platform::Aws && of_pool.has_cloud_controller();
    let name = scope.name();
    let asked = Asked {
        restarts: leaves == Some(&state.machine.boot_id),
        now: clock::now(),
        name_on_aws: is_on_aws.then_some(&name),
    };
    let warnings = preflight_warnings::in_words(&asked, state);
    let (status, why, message) = match found {
        Ok(()) if warnings.is_empty() => (Status::True, Reason::Succeeded, String::new()),
        Ok(()) => (Status::True, Reason::PassedWithWarnings, format!("warning: {warnings}")),
        Err(faults) if warnings.is_empty() => (Status::False, faults.reason(), faults.to_string()),
        Err(faults) => (Status::False, faults.reason(), format!("{faults}; warning: {warnings}")),
    };
    let before = scope.set_condition(kind::PREFLIGHT_PASSED, status, why, &message);
    if !warnings.is_empty() && before.is_none_or(|before| !before.contains(&warnings)) {
        scope.say(EventReason::HostWarning, "Connect", &warnings);
    }
}

/// Reports whether the host can use the accounts of its pool. Removes the condition if there are no accounts.
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
