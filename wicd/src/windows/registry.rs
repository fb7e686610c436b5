//! Registry values: environment variables of the machine and of services, dependencies of services, and Windows Defender exclusions.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use windows_registry::LOCAL_MACHINE;

use super::wide::{if_found, plain};
use crate::host::HostError;

const ENVIRONMENT: &str = r"SYSTEM\CurrentControlSet\Control\Session Manager\Environment";
/// Value of a service's registry key with a list of `name=value`.
const SERVICE_ENVIRONMENT: &str = "Environment";
/// Value of a service's registry key with the names of the operator's variables.
const OUR_VARIABLES: &str = "EnvironmentOfWindowsNodePools";
/// Registry key of the group policy with Defender's exclusions. Even SYSTEM cannot write Defender's own list of exclusions, which is below
/// `SOFTWARE\Microsoft\Windows Defender`.
pub(super) const DEFENDER_POLICY: &str = r"SOFTWARE\Policies\Microsoft\Windows Defender\Exclusions";
/// Name of Defender's service.
pub(super) const DEFENDER: &str = "WinDefend";

/// Value of a machine-wide environment variable.
pub(super) fn env_var(name: &str) -> Result<Option<String>, HostError> {
    let failed = || HostError::system("read the environment variable", name);
    let key = LOCAL_MACHINE.open(ENVIRONMENT).map_err(plain).map_err(failed())?;
    if_found(key.get_string(name)).map_err(failed())
}

/// Sets or (`None`) deletes a machine-wide environment variable.
pub(super) fn set_env_var(name: &str, value: Option<&str>) -> Result<(), HostError> {
    let key = LOCAL_MACHINE.options().read().write().open(ENVIRONMENT).map_err(plain);
    let done = key.and_then(|key| match value {
        Some(value) => key.set_string(name, value).map_err(plain),
        None => if_found(key.remove_value(name)).map(drop),
    });
    done.map_err(HostError::system("write the environment variable", name))
}

/// Excludes the files that a program opens from Defender's real-time checks, by policy.
pub(super) fn exclude_from_defender(program: &str) -> Result<(), HostError> {
    let failed = || HostError::system("create the Windows Defender exclusion of", program);
    LOCAL_MACHINE
        .create(DEFENDER_POLICY)
        .and_then(|key| key.set_u32("Exclusions_Processes", 1))
        .map_err(plain)
        .map_err(failed())?;
    LOCAL_MACHINE
        .create(format!(r"{DEFENDER_POLICY}\Processes"))
        .and_then(|key| key.set_string(program, "0"))
        .map_err(plain)
        .map_err(failed())
}

/// Reports whether the policy for Defender excludes a program.
pub(super) fn is_excluded_from_defender(program: &str) -> Result<bool, HostError> {
    let value = LOCAL_MACHINE.open(format!(r"{DEFENDER_POLICY}\Processes")).and_then(|key| key.get_value(program));
    let value = if_found(value).map_err(HostError::system("read the Windows Defender exclusion of", program))?;
    Ok(value.is_some())
}

/// Removes a program from the policy for Defender, and turns the policy off if no program is left in it. The keys stay.
pub(super) fn include_in_defender(program: &str) -> Result<(), HostError> {
    let remove = |key: &str, value: &str| -> windows_registry::Result<bool> {
        let key = LOCAL_MACHINE.options().read().write().open(key)?;
        key.remove_value(value)?;
        Ok(key.values()?.next().is_none())
    };
    let done = remove(&format!(r"{DEFENDER_POLICY}\Processes"), program).and_then(|is_empty| {
        if is_empty {
            remove(DEFENDER_POLICY, "Exclusions_Processes")?;
        }
        Ok(())
    });
    // If the key or the value does not exist, another program has removed it.
    if_found(done).map(drop).map_err(HostError::system("remove the Windows Defender exclusion of", program))
}

/// Services that a service depends on, as the service manager stores them.
pub(super) fn dependencies(service: &str) -> Vec<String> {
    list(service, "DependOnService")
}

/// The operator's variables of a service, in addition to those of the machine. The service manager reads them at each start of the service:
/// <https://learn.microsoft.com/windows-server/administration/windows-server-hklm-system-currentcontrolset-services>.
pub(super) fn service_environment(service: &str) -> BTreeMap<String, String> {
    let ours = list(service, OUR_VARIABLES);
    all_variables(service).into_iter().filter(|(name, _)| ours.contains(name)).collect()
}

/// Replaces the operator's variables of a service. Other variables, which the host's owner has set, stay.
pub(super) fn set_service_environment(service: &str, variables: &BTreeMap<String, String>) -> io::Result<()> {
    let before = list(service, OUR_VARIABLES);
    let mut all = all_variables(service);
    all.retain(|name, _| !before.contains(name));
    all.extend(variables.clone());
    let key = LOCAL_MACHINE.options().read().write().open(service_key(service)).map_err(plain)?;
    let set = |value: &str, list: Vec<String>| {
        if list.is_empty() {
            return if_found(key.remove_value(value)).map(drop);
        }
        key.set_multi_string(value, &list.iter().map(String::as_str).collect::<Vec<_>>()).map_err(plain)
    };
    // In this order, no variable of the operator looks like the owner's after a crash.
    let names: BTreeSet<String> = before.into_iter().chain(variables.keys().cloned()).collect();
    set(OUR_VARIABLES, names.into_iter().collect())?;
    set(SERVICE_ENVIRONMENT, all.iter().map(|(name, value)| format!("{name}={value}")).collect())?;
    set(OUR_VARIABLES, variables.keys().cloned().collect())
}

fn all_variables(service: &str) -> BTreeMap<String, String> {
    let pair = |text: String| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    list(service, SERVICE_ENVIRONMENT).into_iter().filter_map(pair).collect()
}

fn service_key(service: &str) -> String {
    format!(r"SYSTEM\CurrentControlSet\Services\{service}")
}

fn list(service: &str, value: &str) -> Vec<String> {
    let list = LOCAL_MACHINE.open(service_key(service)).and_then(|key| key.get_multi_string(value));
    // The end of the list is read as empty strings.
    list.unwrap_or_default().into_iter().filter(|d| !d.is_empty()).collect()
}
