//! Warnings about a host that do not stop an operation: the owner of the host decides about them. Text from the host is shortened and sanitised
//! before users see it.

use std::net::Ipv4Addr;

use api::{
    host::{Defender, Feature, HostState, RestartCause},
    text,
};
use jiff::Timestamp;

use super::windows_versions;

/// Directories whose files an antivirus should not check, because a check slows down the access to a file or keeps it open: programs and settings,
/// layers of images and containers, volumes of pods.
pub const PATHS_TO_EXCLUDE: [&str; 3] = [r"C:\k", r"C:\ProgramData\containerd", r"C:\var\lib\kubelet"];
/// Maximum number of names from a host in a message, and maximum number of characters of each.
const NAMES: (usize, usize) = (8, 40);

/// Reason why a host works less well as a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// Windows waits for a restart, and the operator has no reason to restart the host.
    #[error(
        "Windows waits for a restart because of {causes}; restart the host. If it is already a node, request its maintenance first, so that it is drained: set the annotation windowsmachineconfig.openshift.io/maintenance of its WindowsInstance to a reason"
    )]
    WindowsRestartPending {
        /// Causes of the restart, as text.
        causes: String,
    },
    /// The host has filters of an antivirus product other than Windows Defender.
    #[error("the host has antivirus filters: {filters}; make sure that their product excludes {}. This warning stays, because the operator cannot see the exclusions of other products", PATHS_TO_EXCLUDE.join(", "))]
    AntivirusFilter {
        /// Names of the antivirus filters.
        filters: String,
    },
    /// Windows Defender checks files that the operator has excluded.
    #[error(
        r"Windows Defender checks the files of containerd, although the operator excluded C:\k\containerd\containerd.exe by policy; find what manages this policy, for example Group Policy, and add the exclusion there"
    )]
    DefenderChecksContainerd,
    /// Another container runtime or node agent is installed.
    #[error(
        "other container runtimes or node agents are installed as services ({names}), and their networks, ports and disk use may collide with those of pods; remove these services, or set their start type to disabled"
    )]
    OtherContainerRuntime {
        /// Names of the services.
        names: String,
    },
    /// Windows lacks an update that nodes need.
    #[error(
        "{name} lacks the update {update}, without which pods on the host may have no network; install the current cumulative update of Windows"
    )]
    WindowsUpdateMissing {
        /// Name of the Windows version.
        name: &'static str,
        /// Oldest update with the changes that nodes need.
        update: &'static str,
    },
    /// Microsoft's support of the host's Windows ends this year, or has ended.
    #[error(
        "the last year of Microsoft's extended support of {name} is {year}; replace the host with one that runs a newer version of Windows Server"
    )]
    WindowsSupportEnds {
        /// Name of the Windows version.
        name: &'static str,
        /// Year in which the support ends.
        year: u16,
    },
    /// The name of the Node does not have the form by which the cloud controller manager of AWS finds instances.
    #[error(
        "on AWS, a Node must have the private DNS name of its instance, such as ip-10-0-0-1.eu-west-1.compute.internal, and {name:?} is not such a name, so the cloud controller manager deletes the Node when it is not \
         Ready; list the host under its private DNS name, or in a pool with template.spec.kubelet.cloudProvider: None"
    )]
    NameNotOfInstance {
        /// Name of the Node.
        name: String,
    },
}

/// Inputs of the checks other than the state of the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// True if the operator is about to restart the host.
    pub restarts: bool,
    /// Current time.
    pub now: Timestamp,
    /// Name of the Node, if AWS's cloud controller manager must find an instance by it.
    pub name_on_aws: Option<&'a str>,
}

/// Returns each check with its warning, if there is one.
pub fn results(asked: &Asked<'_>, state: &HostState) -> Vec<(&'static str, Option<Warning>)> {
    let mut results = vec![
        ("restart", restart(state, asked.restarts)),
        ("antivirus", antivirus(state)),
        ("runtimes", runtimes(state)),
        ("updates", updates(state)),
        ("support", support(state, asked.now)),
    ];
    if let Some(name) = asked.name_on_aws {
        let warning = Warning::NameNotOfInstance { name: name.to_owned() };
        results.push(("cloud-name", (!is_name_of_instance(name)).then_some(warning)));
    }
    results
}

/// Returns the text of each warning.
pub fn texts(asked: &Asked<'_>, state: &HostState) -> Vec<String> {
    results(asked, state).into_iter().filter_map(|(_, w)| w).map(|w| w.to_string()).collect()
}

/// Returns the causes for which Windows waits for a restart as text; `None` if it does not wait.
pub fn restart_causes(state: &HostState) -> Option<String> {
    let word = |cause: &RestartCause| match cause {
        RestartCause::Servicing => "changed features or packages",
        RestartCause::WindowsUpdate => "Windows Update",
        RestartCause::NameOrDomain => "a changed name or domain of the computer",
    };
    let causes: Vec<&str> = state.restart_causes.iter().map(word).collect();
    (!causes.is_empty()).then(|| causes.join(" and "))
}

/// Warns of a pending restart of Windows, unless the operator restarts the host anyway.
fn restart(state: &HostState, restarts: bool) -> Option<Warning> {
    let is_restarted =
        restarts || state.reboot_required.is_some() || state.machine.containers_feature == Feature::Disabled;
    restart_causes(state).filter(|_| !is_restarted).map(|causes| Warning::WindowsRestartPending { causes })
}

/// Warns of an antivirus that checks files. The operator excludes containerd from Defender when it configures the host, so Defender is reported only
/// on a configured host.
fn antivirus(state: &HostState) -> Option<Warning> {
    let is_configured = state.marker.as_ref().is_some_and(|m| !m.version.is_empty());
    let filters = &state.antivirus.filters;
    if !filters.is_empty() {
        return Some(Warning::AntivirusFilter { filters: names(filters) });
    }
    (is_configured && state.antivirus.defender == Defender::Checks).then_some(Warning::DefenderChecksContainerd)
}

fn runtimes(state: &HostState) -> Option<Warning> {
    let found = &state.container_runtimes;
    (!found.is_empty()).then(|| Warning::OtherContainerRuntime { names: names(found) })
}

fn updates(state: &HostState) -> Option<Warning> {
    let version = windows_versions::find(&state.machine.os_name, &state.machine.os_build)?;
    let update = windows_versions::lacks(version, &state.machine.os_build)?;
    Some(Warning::WindowsUpdateMissing { name: version.name, update })
}

fn support(state: &HostState, now: Timestamp) -> Option<Warning> {
    let version = windows_versions::find(&state.machine.os_name, &state.machine.os_build)?;
    let warning = Warning::WindowsSupportEnds { name: version.name, year: version.support_ends };
    version.is_support_ending(now).then_some(warning)
}

/// Reports whether a name has the form of an AWS instance's private DNS name, with its address or its id. A custom domain of the network does not
/// change that name.
fn is_name_of_instance(name: &str) -> bool {
    let Some((host, domain)) = name.split_once('.') else { return false };
    let is_address = host.strip_prefix("ip-").is_some_and(|ip| ip.replace('-', ".").parse::<Ipv4Addr>().is_ok());
    let is_id = host.strip_prefix("i-").is_some_and(|id| id.bytes().all(|b| b.is_ascii_hexdigit()));
    (is_address || is_id) && (domain == "ec2.internal" || domain.ends_with(".compute.internal"))
}

fn names(all: &[String]) -> String {
    let mut shown: Vec<String> = all.iter().take(NAMES.0).map(|name| text::line(name, NAMES.1)).collect();
    if all.len() > NAMES.0 {
        shown.push(format!("and {} more", all.len() - NAMES.0));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use api::host::Marker;

    use super::*;

    fn in_words(asked: &Asked<'_>, state: &HostState) -> String {
        texts(asked, state).join("; ")
    }

    fn configured(state: &mut HostState) {
        state.marker = Some(Marker { version: "1".into(), ..Marker::default() });
    }

    #[test]
    fn each_warning_has_its_cause_and_its_remedy() {
        type Change = fn(&mut HostState);
        let update: Change = |s| s.restart_causes = [RestartCause::WindowsUpdate, RestartCause::Servicing].into();
        let restarted: Change = |s| {
            s.restart_causes.insert(RestartCause::WindowsUpdate);
            s.machine.containers_feature = Feature::Disabled;
        };
        let restarting: Change = |s| {
            s.restart_causes.insert(RestartCause::NameOrDomain);
            s.reboot_required = Some("variables".into());
        };
        let removed: Change = |s| {
            configured(s);
            s.antivirus.defender = Defender::Checks;
        };
        let excluded: Change = |s| {
            configured(s);
            s.antivirus.defender = Defender::Excludes;
        };
        let old: Change = |s| {
            s.machine.os_name = "Windows Server 2019 Standard".into();
            s.machine.os_build = "10.0.17763.6414".into();
        };
        let newer: Change = |s| {
            s.machine.os_name = "Windows Server 2022 Standard".into();
            s.machine.os_build = "10.0.20348.2527".into();
        };
        let unpatched: Change = |s| {
            s.machine.os_name = "Windows Server 2022 Standard".into();
            s.machine.os_build = "10.0.20348.1".into();
        };
        let now = "2029-02-01T00:00:00Z".parse().unwrap();
        let cases: [(&str, Change, bool, &str); 13] = [
            ("a good host", |_| (), false, ""),
            ("an update", update, true, "changed features or packages and Windows Update"),
            ("a new name", |s| s.restart_causes = [RestartCause::NameOrDomain].into(), true, "name"),
            ("the join restarts it for a feature", restarted, false, ""),
            ("wicd wants a restart", restarting, false, ""),
            ("a filter", |s| s.antivirus.filters.push("csagent".into()), true, r"filters: csagent;"),
            ("Defender before the join", |s| s.antivirus.defender = Defender::Checks, false, ""),
            ("Defender without the exclusion", removed, true, "by policy"),
            ("Defender with the exclusion", excluded, false, ""),
            ("a Windows whose support ends", old, true, "support of Windows Server 2019 is 2029"),
            ("a Windows without updates", unpatched, true, "lacks the update KB5012637"),
            ("a newer one", newer, false, ""),
            ("docker", |s| s.container_runtimes.push("docker".into()), true, "services (docker)"),
        ];
        for (about, change, expected, part) in cases {
            let mut state = HostState::default();
            change(&mut state);
            let asked = Asked { now, ..Asked::default() };
            let found: Vec<Warning> = results(&asked, &state).into_iter().filter_map(|(_, w)| w).collect();
            assert_eq!(found.len(), usize::from(expected), "{about}: {found:?}");
            let text = in_words(&asked, &state);
            assert!(text.contains(part) && text.is_empty() != expected, "{about}");
            assert!(!in_words(&Asked { restarts: true, ..asked }, &state).contains("Windows waits"), "{about}");
        }
    }

    #[test]
    fn a_name_that_no_aws_instance_has_is_a_warning() {
        for (name, expected) in [
            (None, true),
            (Some("ip-10-0-12-7.ec2.internal"), true),
            (Some("ip-10-0-12-7.eu-west-1.compute.internal"), true),
            (Some("i-0123456789abcdef0.us-west-2.compute.internal"), true),
            (Some("ip-10-0-12-7"), false),
            (Some("ip-10-0-12-777.ec2.internal"), false),
            (Some("ip-10-0-12-7.example.com"), false),
            (Some("i-win.ec2.internal"), false),
            (Some("win-1"), false),
        ] {
            let asked = Asked { name_on_aws: name, ..Asked::default() };
            let text = in_words(&asked, &HostState::default());
            assert_eq!(text.is_empty(), expected, "{name:?}: {text}");
            assert!(text.is_empty() || text.contains(name.unwrap()), "{text}");
        }
    }

    #[test]
    fn names_from_a_host_are_limited_and_sanitised() {
        let bad = vec![format!("\u{1b}[2J\u{202e}{}", "x".repeat(10_000)); 10_000];
        let mut state = HostState::default();
        state.antivirus.filters.clone_from(&bad);
        state.container_runtimes = bad;
        let text = in_words(&Asked::default(), &state);
        assert!(text.len() < 1500 && text.chars().all(|c| c == ' ' || c.is_ascii_graphic()), "{text}");
        assert!(text.contains("and 9992 more"), "{text}");
    }
}
