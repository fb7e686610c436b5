//! Check whether a host can become a node, or a node can be changed, before the operator configures the host. All faults are reported at once, so
//! that a user can correct them together. The host's reports count only against it: a false report can prevent only its own join or change.

use std::{fmt, time::Duration};

use api::{
    Reason,
    host::{HostState, ServiceState},
    text,
};
use jiff::Timestamp;

use super::windows_versions;

/// Maximum clock difference of a host. The cluster issues certificates that are valid from five minutes before the time of issue: on a host whose
/// clock is further behind, they would not be valid yet.
const MAX_CLOCK_SKEW: Duration = Duration::from_mins(5);
/// Port at which the API server reaches kubelet.
pub const KUBELET_PORT: u16 = 10250;
/// Maximum length of a host's text in a message, in characters.
const WORDS: usize = 200;

/// Reason why a host cannot become a node, or a node cannot be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The SSH user has too few rights.
    #[error(
        "user {user} does not have administrator rights on the host; add the user to the group Administrators, or set another username in the pool or in the entry of the host"
    )]
    NotAdministrator {
        /// User that the operator logs in as.
        user: String,
    },
    /// The host's version of Windows is not supported for nodes.
    #[error(
        "the host runs {name} (build {build}), which nodes do not support; use one of: {}",
        windows_versions::list()
    )]
    WindowsNotSupported {
        /// Name that Windows reports.
        name: String,
        /// Version that Windows reports.
        build: String,
    },
    /// The host's version of Windows does not support the cluster's VXLAN port.
    #[error(
        "{name} supports only the VXLAN port {}, and the hybrid overlay of the cluster uses {port}, so the Node would not become Ready; install Windows Server 2022 or newer on the host, or \
         change the port of the overlay to {} (hybridOverlayVXLANPort, or --vxlan-port)",
        windows_versions::VXLAN_PORT,
        windows_versions::VXLAN_PORT
    )]
    VxlanPortNotSupported {
        /// Name of the version of Windows.
        name: &'static str,
        /// VXLAN port of the cluster.
        port: u16,
    },
    /// The clock of the host differs too much.
    #[error(
        "the clock of the host is {seconds} s {direction}, compared with the operator's clock; at most {} s are allowed, because certificates depend on the time. Correct the time service of the host",
        MAX_CLOCK_SKEW.as_secs()
    )]
    ClockSkew {
        /// Difference of the clock, in seconds.
        seconds: u64,
        /// Direction of the difference: `ahead` or `behind`.
        direction: &'static str,
    },
    /// Services of another installer have the names of the operator's services.
    #[error(
        "the host has services that this operator did not install, under names that it uses: {names}; remove these services"
    )]
    ForeignServices {
        /// Names of the foreign services.
        names: String,
    },
    /// The disk is too full.
    #[error(
        "the host has {free_mib} MiB free on C:, and the operator needs {needed_mib} MiB there; free space on C:, or extend the volume"
    )]
    DiskFull {
        /// Free space, in MiB.
        free_mib: u64,
        /// Needed space, in MiB.
        needed_mib: u64,
    },
    /// The host cannot reach the API server.
    #[error(
        "the host cannot reach the API server at {server}: {why}; check DNS, routes and firewalls between the host and the API server, and that the operator's flag --api-server, if set, is a URL at which hosts reach the API server"
    )]
    ApiServerUnreachable {
        /// API server as hosts reach it.
        server: String,
        /// Error that Windows reports.
        why: String,
    },
    /// Another program has kubelet's port.
    #[error(
        "the host cannot use port {ports}, which kubelet needs: stop the program that listens there (`netstat -abno`), or end the reservation by Windows (`netsh interface ipv4 show excludedportrange tcp`)"
    )]
    PortInUse {
        /// Ports that are in use.
        ports: String,
    },
    /// Another installer has registered the class of the pool's plugin.
    #[error(
        "another installer registered the plugin {clsid} on the host ({what}); uninstall that plugin, or take template.spec.gmsa.plugin out of the pool"
    )]
    ForeignCredentialPlugin {
        /// Class ID of the plugin.
        clsid: String,
        /// Library of the other installer's plugin, or what else the host reports.
        what: String,
    },
}

impl Fault {
    /// Returns the reason for conditions and events.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NotAdministrator { .. } => Reason::NotAdministrator,
            Self::WindowsNotSupported { .. } | Self::VxlanPortNotSupported { .. } => Reason::WindowsNotSupported,
            Self::ClockSkew { .. } => Reason::ClockSkew,
            Self::ForeignServices { .. } | Self::ForeignCredentialPlugin { .. } => Reason::ForeignServices,
            Self::DiskFull { .. } => Reason::DiskFull,
            Self::ApiServerUnreachable { .. } => Reason::ApiServerUnreachable,
            Self::PortInUse { .. } => Reason::PortInUse,
        }
    }

    /// Reports whether the fault counts only before the first change to a host. On a configured host, the pending operation may be what corrects
    /// the fault.
    fn is_of_first_change(&self) -> bool {
        matches!(
            self,
            Self::WindowsNotSupported { .. }
                | Self::VxlanPortNotSupported { .. }
                | Self::ApiServerUnreachable { .. }
                | Self::PortInUse { .. }
        )
    }
}

/// Reasons why a host cannot become a node, or a node cannot be changed: at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// Returns the reason for conditions and events, from the first fault.
    pub fn reason(&self) -> Reason {
        self.0.first().map_or(Reason::HostFailed, Fault::reason)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&all.join("; "))
    }
}

impl std::error::Error for Faults {}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Self(vec![fault])
    }
}

/// Requirements that a host is checked against.
#[derive(Clone, Copy, Debug)]
pub struct Preflight<'a> {
    /// Id of the cluster that the host must join.
    pub cluster_id: &'a str,
    /// User that the operator logs in as.
    pub user: &'a str,
    /// API server as hosts reach it. `None` if the host was not asked whether it reaches the API server.
    pub api_server: Option<&'a str>,
    /// Bytes that will be written to the disk.
    pub needed: u64,
    /// Class ID of the plugin of Container Credential Guard that the host must have.
    pub credential_plugin: Option<&'a str>,
    /// VXLAN port of the cluster's hybrid overlay. `None` if it has the default port, or there is no overlay.
    pub vxlan_port: Option<u16>,
    /// Current time.
    pub now: Timestamp,
}

/// Checks a host before it is changed.
///
/// # Errors
/// All faults that count, the most basic one first.
pub fn check(asked: &Preflight<'_>, state: &HostState) -> Result<(), Faults> {
    let configured = state.marker.as_ref().is_some_and(|m| !m.version.is_empty() && m.cluster_id == asked.cluster_id);
    let found = results(asked, state).into_iter().filter_map(|(_, fault)| fault);
    let faults: Vec<Fault> = found.filter(|f| !(configured && f.is_of_first_change())).collect();
    if faults.is_empty() { Ok(()) } else { Err(Faults(faults)) }
}

/// Returns each check with its fault, if there is one.
pub fn results(asked: &Preflight<'_>, state: &HostState) -> Vec<(&'static str, Option<Fault>)> {
    let mut results = vec![
        ("rights", rights(asked, state)),
        ("windows", windows(asked, state)),
        ("clock", clock(asked, state)),
        ("services", services(state)),
        ("disk", disk(asked, state)),
        ("port", port(state)),
    ];
    if let Some(clsid) = asked.credential_plugin {
        results.push(("plugin", plugin(clsid, state)));
    }
    if let Some(server) = asked.api_server {
        let fault =
            |why: &String| Fault::ApiServerUnreachable { server: server.to_owned(), why: text::line(why, WORDS) };
        results.push(("api-server", state.api_server.as_ref().map(fault)));
    }
    results
}

fn rights(asked: &Preflight<'_>, state: &HostState) -> Option<Fault> {
    (!state.machine.is_admin).then(|| Fault::NotAdministrator { user: asked.user.to_owned() })
}

fn windows(asked: &Preflight<'_>, state: &HostState) -> Option<Fault> {
    let machine = &state.machine;
    let Some(version) = windows_versions::find(&machine.os_name, &machine.os_build) else {
        let (name, build) = (text::line(&machine.os_name, 64), text::line(&machine.os_build, 32));
        return Some(Fault::WindowsNotSupported { name, build });
    };
    let port = asked.vxlan_port.filter(|port| !version.any_vxlan_port && *port != windows_versions::VXLAN_PORT)?;
    Some(Fault::VxlanPortNotSupported { name: version.name, port })
}

fn clock(asked: &Preflight<'_>, state: &HostState) -> Option<Fault> {
    let skew = state.machine.clock_ms.saturating_sub(asked.now.as_millisecond());
    let direction = if skew > 0 { "ahead" } else { "behind" };
    // A part of a second must not make the message contradict itself.
    let seconds = (skew.unsigned_abs() / 1000).max(MAX_CLOCK_SKEW.as_secs() + 1);
    let fault = Fault::ClockSkew { seconds, direction };
    (u128::from(skew.unsigned_abs()) > MAX_CLOCK_SKEW.as_millis()).then_some(fault)
}

fn services(state: &HostState) -> Option<Fault> {
    let foreign = &state.foreign_services;
    (!foreign.is_empty()).then(|| Fault::ForeignServices { names: text::line(&foreign.join(", "), WORDS) })
}

fn disk(asked: &Preflight<'_>, state: &HostState) -> Option<Fault> {
    let free = state.machine.disk_free;
    (free < asked.needed)
        .then_some(Fault::DiskFull { free_mib: free >> 20, needed_mib: asked.needed.div_ceil(1 << 20) })
}

fn plugin(clsid: &str, state: &HostState) -> Option<Fault> {
    let what = state.foreign_credential_plugins.get(clsid)?;
    Some(Fault::ForeignCredentialPlugin { clsid: clsid.to_owned(), what: text::line(what, WORDS) })
}

/// Finds ports of kubelet that another program uses. On a node, kubelet itself listens there.
fn port(state: &HostState) -> Option<Fault> {
    let runs = state.services.get("kubelet").is_some_and(|s| *s != ServiceState::Stopped);
    let ports: Vec<String> = state.ports_in_use.iter().take(8).map(ToString::to_string).collect();
    (!runs && !ports.is_empty()).then(|| Fault::PortInUse { ports: ports.join(", ") })
}

#[cfg(test)]
mod tests {
    use api::host::{Machine, Marker};

    use super::*;

    fn asked() -> Preflight<'static> {
        let now = Timestamp::from_second(1_000_000).unwrap();
        Preflight {
            cluster_id: "here",
            user: "Administrator",
            api_server: Some("https://api:6443"),
            needed: 1 << 30,
            credential_plugin: Some("{A}"),
            vxlan_port: None,
            now,
        }
    }

    fn good() -> HostState {
        let machine = Machine {
            is_admin: true,
            os_name: "Windows Server 2022 Datacenter".into(),
            os_build: "10.0.20348.2527".into(),
            clock_ms: 1_000_000_000,
            disk_free: 2 << 30,
            ..Machine::default()
        };
        HostState { machine, ..HostState::default() }
    }

    /// Returns the marker of a node of a cluster.
    fn node_of(cluster_id: &str) -> Marker {
        Marker { version: "1".into(), cluster_id: cluster_id.into(), ..Marker::default() }
    }

    #[test]
    fn each_fault_is_found_with_its_remedy() {
        type Change = fn(&mut HostState);
        let node: Change = |s| {
            s.ports_in_use.push(10250);
            s.services.insert("kubelet".into(), ServiceState::Running);
        };
        let lost: Change = |s| {
            s.marker = Some(node_of("here"));
            s.ports_in_use.push(10250);
            s.api_server = Some("timed out".into());
            s.machine.os_build = "10.0.25398.1".into();
        };
        let cases: [(&str, Change, Option<&str>, &str); 18] = [
            ("a good host", |_| (), None, ""),
            ("no rights", |s| s.machine.is_admin = false, Some("NotAdministrator"), "Administrator"),
            ("another Windows", |s| s.machine.os_build = "10.0.25398.1".into(), Some("WindowsNotSupported"), "20348"),
            (
                "a desktop",
                |s| s.machine.os_name = "Windows 10 Pro".into(),
                Some("WindowsNotSupported"),
                "Windows 10 Pro",
            ),
            ("a clock ahead", |s| s.machine.clock_ms += 301_000, Some("ClockSkew"), "301 s ahead"),
            ("a clock behind", |s| s.machine.clock_ms -= 301_000, Some("ClockSkew"), "301 s behind"),
            ("a clock a little off", |s| s.machine.clock_ms += 299_000, None, ""),
            ("foreign services", |s| s.foreign_services.push("kubelet".into()), Some("ForeignServices"), "kubelet"),
            ("a full disk", |s| s.machine.disk_free = 1 << 29, Some("DiskFull"), "512 MiB free"),
            (
                "the API server cannot be reached",
                |s| s.api_server = Some("timed out".into()),
                Some("ApiServerUnreachable"),
                "timed out",
            ),
            ("a port in use", |s| s.ports_in_use.push(10250), Some("PortInUse"), "10250"),
            (
                "a plugin of another installer",
                |s| drop(s.foreign_credential_plugins.insert("{A}".into(), r"C:\theirs.dll".into())),
                Some("ForeignServices"),
                r"(C:\theirs.dll)",
            ),
            // Otherwise the node would be drained for a change that cannot succeed.
            (
                "the same on a node",
                |s| {
                    s.marker = Some(node_of("here"));
                    s.foreign_credential_plugins.insert("{A}".into(), r"C:\theirs.dll".into());
                },
                Some("ForeignServices"),
                "take template.spec.gmsa.plugin out",
            ),
            (
                "another plugin of another installer",
                |s| drop(s.foreign_credential_plugins.insert("{B}".into(), r"C:\theirs.dll".into())),
                None,
                "",
            ),
            ("a node", node, None, ""),
            ("a configured node without kubelet that cannot reach the API server", lost, None, ""),
            (
                "a node of another cluster that cannot reach the API server",
                |s| {
                    s.marker = Some(node_of("there"));
                    s.api_server = Some("timed out".into());
                },
                Some("ApiServerUnreachable"),
                "timed out",
            ),
            (
                "a host that was a node and cannot reach the API server",
                |s| {
                    s.marker = Some(Marker { cluster_id: "here".into(), ..Marker::default() });
                    s.api_server = Some("timed out".into());
                },
                Some("ApiServerUnreachable"),
                "timed out",
            ),
        ];
        let mut bad = good();
        for (about, change, expected, part) in cases {
            let mut state = good();
            change(&mut state);
            let found = check(&asked(), &state);
            assert_eq!(found.as_ref().err().map(|f| f.reason().as_str()), expected, "{about}: {found:?}");
            assert!(found.err().is_none_or(|e| e.to_string().contains(part)), "{about}");
            if expected.is_some() {
                change(&mut bad);
            }
        }
        let all = check(&asked(), &bad).unwrap_err();
        // The two clock faults cancel each other out, and the two Windows faults become one.
        assert_eq!((all.reason().as_str(), all.0.len()), ("NotAdministrator", 7), "{all}");
    }

    #[test]
    fn windows_server_2019_takes_no_other_vxlan_port() {
        for (build, vxlan_port, marker, expected) in [
            ("10.0.17763.6414", None, None, None),
            ("10.0.17763.6414", Some(4789), None, None),
            ("10.0.17763.6414", Some(9898), None, Some("WindowsNotSupported")),
            ("10.0.17763.6414", Some(9898), Some(node_of("here")), None),
            ("10.0.20348.2527", Some(9898), None, None),
            ("10.0.26100.1", Some(9898), None, None),
        ] {
            let asked = Preflight { vxlan_port, ..asked() };
            let mut state = good();
            state.machine.os_build = build.into();
            state.marker = marker;
            let found = check(&asked, &state).err();
            assert_eq!(found.as_ref().map(|f| f.reason().as_str()), expected, "{build} {vxlan_port:?}");
            let text = found.map(|f| f.to_string()).unwrap_or_default();
            assert!(
                expected.is_none()
                    || ["9898", "2019", "2022 or newer", "--vxlan-port"].iter().all(|p| text.contains(p)),
                "{text}"
            );
        }
    }

    #[test]
    fn texts_of_a_host_are_truncated_and_sanitised() {
        let mut state = good();
        state.machine.os_name = "\u{202e}\n".repeat(1000);
        state.api_server = Some("x".repeat(10_000));
        state.foreign_services = vec!["\u{1b}[2J".to_owned(); 1000];
        let text = check(&asked(), &state).unwrap_err().to_string();
        assert!(text.len() < 1500 && text.chars().all(|c| c == ' ' || c.is_ascii_graphic()), "{text}");
    }
}
