//! Survey of pending restarts, antivirus programs and installed updates of the host, mostly from the registry. Values about restarts and antivirus
//! programs that cannot be read count as absent, because they are only for warnings.

use std::collections::BTreeSet;

use api::host::{Antivirus, Defender, RestartCause, ServiceState};
use windows_registry::LOCAL_MACHINE;

use super::registry::{DEFENDER, DEFENDER_POLICY};
use super::scm;
use super::wide::plain;

/// Registry key that exists from a change of features or packages until the next restart.
const SERVICING: &str = r"SOFTWARE\Microsoft\Windows\CurrentVersion\Component Based Servicing\RebootPending";
/// Registry key that exists from a change by Windows Update until the next restart.
const UPDATE: &str = r"SOFTWARE\Microsoft\Windows\CurrentVersion\WindowsUpdate\Auto Update\RebootRequired";
/// Registry keys with the current name of the computer, and with its name after the next restart.
const NAMES: [&str; 2] = [
    r"SYSTEM\CurrentControlSet\Control\ComputerName\ActiveComputerName",
    r"SYSTEM\CurrentControlSet\Control\ComputerName\ComputerName",
];
/// Registry key that has the value `JoinDomain` from the time when the host joins a domain until the next restart.
const NETLOGON: &str = r"SYSTEM\CurrentControlSet\Services\Netlogon";
/// Registry key of services, including drivers.
const SERVICES: &str = r"SYSTEM\CurrentControlSet\Services";
/// Group of the drivers that check files for malware.
const ANTIVIRUS_GROUP: &str = "FSFilter Anti-Virus";
/// Defender's own driver.
const DEFENDER_FILTER: &str = "WdFilter";
/// Value of `Start` for a driver that is not loaded.
const DISABLED: u32 = 4;
/// Maximum number of drivers that are reported.
const MAX_DRIVERS: usize = 32;
/// Registry keys of Defender's settings: by policy, and its own.
const DEFENDER_KEYS: [&str; 2] =
    [r"SOFTWARE\Policies\Microsoft\Windows Defender", r"SOFTWARE\Microsoft\Windows Defender"];

/// Registry key with a subkey for each package of updates and features.
const PACKAGES: &str = r"SOFTWARE\Microsoft\Windows\CurrentVersion\Component Based Servicing\Packages";
/// Value of `CurrentState` for a package that is installed.
const INSTALLED: u32 = 112;

/// Package names of installed updates, without the packages of their parts.
pub(super) fn updates() -> std::io::Result<Vec<String>> {
    let packages = LOCAL_MACHINE.open(PACKAGES).map_err(plain)?;
    let is_installed =
        |name: &String| packages.open(name).and_then(|p| p.get_u32("CurrentState")).is_ok_and(|s| s == INSTALLED);
    let names = packages.keys().map_err(plain)?;
    Ok(names.filter(|name| name.starts_with("Package_for_")).filter(is_installed).collect())
}

/// Causes for which Windows waits for a restart. Pending replacements of files (`PendingFileRenameOperations`) do not count, because almost every
/// host has some.
pub(super) fn restart_causes() -> BTreeSet<RestartCause> {
    let is_there = |key: &str| LOCAL_MACHINE.open(key).is_ok();
    let [active, next] = NAMES.map(|key| LOCAL_MACHINE.open(key).and_then(|k| k.get_string("ComputerName")).ok());
    let is_renamed = active.zip(next).is_some_and(|(active, next)| !active.eq_ignore_ascii_case(&next));
    let joins = LOCAL_MACHINE.open(NETLOGON).and_then(|k| k.get_value("JoinDomain")).is_ok();
    let causes = [
        (is_there(SERVICING), RestartCause::Servicing),
        (is_there(UPDATE), RestartCause::WindowsUpdate),
        (is_renamed || joins, RestartCause::NameOrDomain),
    ];
    causes.into_iter().filter_map(|(is_so, cause)| is_so.then_some(cause)).collect()
}

/// Antivirus programs of the host, and whether Defender excludes this program.
pub(super) fn antivirus(program: &str) -> Antivirus {
    Antivirus { defender: defender(program), filters: filters() }
}

fn defender(program: &str) -> Defender {
    let runs = scm::service(DEFENDER).ok().flatten().is_some_and(|s| s.state == ServiceState::Running);
    let is_off = |key: &&str| {
        let key = LOCAL_MACHINE.open(format!(r"{key}\Real-Time Protection"));
        key.and_then(|k| k.get_u32("DisableRealtimeMonitoring")).is_ok_and(|v| v != 0)
    };
    if !runs || DEFENDER_KEYS.iter().any(is_off) {
        return Defender::Off;
    }
    let own = format!(r"{}\Exclusions", DEFENDER_KEYS[1]);
    let excludes =
        |key: &str| LOCAL_MACHINE.open(format!(r"{key}\Processes")).is_ok_and(|k| k.get_value(program).is_ok());
    if [DEFENDER_POLICY, &own].into_iter().any(excludes) { Defender::Excludes } else { Defender::Checks }
}

fn filters() -> Vec<String> {
    let Ok(services) = LOCAL_MACHINE.open(SERVICES) else { return Vec::new() };
    let Ok(names) = services.keys() else { return Vec::new() };
    let checks = |name: &String| {
        services.open(name).is_ok_and(|driver| {
            driver.get_string("Group").is_ok_and(|group| group.eq_ignore_ascii_case(ANTIVIRUS_GROUP))
                && driver.get_u32("Start").is_ok_and(|start| start != DISABLED)
        })
    };
    names.filter(|name| !name.eq_ignore_ascii_case(DEFENDER_FILTER)).filter(checks).take(MAX_DRIVERS).collect()
}
