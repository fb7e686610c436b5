//! Table of all checks: the requirement, the function that judges it, and the page with the remedy. The reference page is generated from this
//! table. Pure functions.

use std::process::ExitCode;

use serde_json::Value;

use self::Judge::{Before, Host, Installation, Takeover};
use super::{before, host, installation, row::Outcome, takeover};
use crate::args::{Output, output};

/// Path of the reference page with all checks in this repository.
pub const PAGE: &str = "docs/reference/conditions.md";
/// Exit status when a check has failed.
const FAILED: u8 = 1;

/// Check commands, in the order of the reference page.
pub const COMMANDS: [&str; 3] = ["check", "check host", "check takeover"];

/// Check of a command.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Name of the check in its row.
    pub id: &'static str,
    /// Requirement that the check verifies. Empty for a check of `check --pre` that is described with `check`.
    pub about: &'static str,
    /// Page with more information, relative to the reference page.
    pub more: &'static str,
    judge: Judge,
}

/// Function that judges a check, by the facts that it needs.
#[derive(Clone, Copy, Debug)]
enum Judge {
    Installation(fn(&installation::Facts) -> Outcome),
    Before(fn(&before::Facts) -> Outcome),
    /// Function for the facts about a host and the name of the check. Several checks share one function.
    Host(fn(&host::Facts, &str) -> Outcome),
    Takeover(fn(&takeover::Facts) -> Outcome),
}

/// Facts that a command has observed.
#[derive(Clone, Copy)]
pub(super) enum Facts<'a> {
    Installation(&'a installation::Facts),
    Before(&'a before::Facts),
    Host(&'a host::Facts),
    Takeover(&'a takeover::Facts),
}

impl Check {
    /// Returns the command that runs the check.
    pub fn command(&self) -> &'static str {
        match self.judge {
            Installation(_) | Before(_) => COMMANDS[0],
            Host(_) => COMMANDS[1],
            Takeover(_) => COMMANDS[2],
        }
    }

    /// Returns the title of the check's section on the reference page.
    pub fn title(&self) -> String {
        format!("{} {}", self.command(), self.id)
    }

    /// Returns the anchor of the check's section: the title with dashes for spaces.
    pub fn anchor(&self) -> String {
        self.title().replace(' ', "-")
    }
}

/// Returns the results of the checks that judge these facts, in the order of the table.
pub(super) fn outcomes(facts: Facts<'_>) -> Vec<(&'static Check, Outcome)> {
    let judge = |check: &'static Check| {
        let outcome = match (check.judge, facts) {
            (Installation(judge), Facts::Installation(facts)) => judge(facts),
            (Before(judge), Facts::Before(facts)) => judge(facts),
            (Host(judge), Facts::Host(facts)) => judge(facts, check.id),
            (Takeover(judge), Facts::Takeover(facts)) => judge(facts),
            _ => return None,
        };
        outcome.is_asked().then_some((check, outcome))
    };
    CHECKS.iter().filter_map(judge).collect()
}

/// Returns the outcomes as rows in JSON.
pub(super) fn objects(outcomes: &[(&Check, Outcome)]) -> Vec<Value> {
    let object = |(check, outcome): &(&Check, Outcome)| outcome.object(check.id, &format!("{PAGE}#{}", check.anchor()));
    outcomes.iter().map(object).collect()
}

/// Prints the results, and returns the exit status.
///
/// # Errors
/// Fails when the results cannot be printed.
pub(super) fn print(facts: Facts<'_>, format: Output) -> anyhow::Result<ExitCode> {
    let outcomes = outcomes(facts);
    let rows = objects(&outcomes);
    output::print(&output::answer(format, &rows, || table(&rows))?)?;
    Ok(if outcomes.iter().all(|(_, outcome)| outcome.is_fit()) { ExitCode::SUCCESS } else { FAILED.into() })
}

fn table(rows: &[Value]) -> String {
    let row = |row: &Value| {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let message = match row["reason"].as_str() {
            None => text("message"),
            Some(reason) => {
                let remedy = row["remedy"].as_str().map(|remedy| format!("; {remedy}")).unwrap_or_default();
                format!("{reason}: {}{remedy}; see {}", text("message"), text("link"))
            }
        };
        [text("check"), text("result"), message]
    };
    let head = ["CHECK", "RESULT", "MESSAGE"].map(str::to_owned);
    output::aligned(&[head].into_iter().chain(rows.iter().map(row)).collect::<Vec<_>>())
}

const fn check(id: &'static str, about: &'static str, more: &'static str, judge: Judge) -> Check {
    Check { id, about, more, judge }
}

/// Table of all checks, in the order of their rows.
#[rustfmt::skip]
pub const CHECKS: &[Check] = &[
    check("version", "The API server is of a version that the operator can work with and that is supported.", "versions.md", Installation(|facts| installation::version(&facts.version))),
    check("clock", "The clock of this machine agrees with that of the API server.", "conditions.md#reasons", Installation(installation::clock)),
    check("crds", "Both CRDs are those of this release and served, and no object is stored in a version that this release does not know. With --pre: \
         no existing CRD prevents the installation.", "conditions.md#reasons", Installation(installation::crds)),
    check("leader", "A process of the operator holds the Lease and renews it.", "../guide/troubleshooting.md#check-the-installation", Installation(installation::leads)),
    check("other-operator", "The Windows Machine Config Operator works neither in the operator's namespace nor in its own.", "../guide/from-wmco.md#2-stop-wmco", Installation(installation::other_operator)),
    check("policies", "All admission policies are in force as they ship.", "rights.md", Installation(installation::policies)),
    check("keys", "The private keys that pools name can be read.", "../guide/hosts.md#ssh-server", Installation(installation::keys)),
    check("pools", "All pools are Ready.", "../guide/troubleshooting.md", Installation(installation::pools)),
    check("upgrade", "An upgrade of the cluster need not wait: all pools follow their versions, and no node is older than the API server. This check only warns.", "../guide/upgrade.md#two-minor-versions-at-once-eus-to-eus", Installation(installation::upgrade)),
    check("payload", "Hosts can be given the payload, with the facts of this cluster.", "../guide/upgrade.md#the-payload", Installation(installation::payload)),
    check("certificate", "Hosts trust the certificate of the API server at the URL that they are given.", "../guide/cluster-facts.md", Installation(installation::certificate)),
    check("version", "", "", Before(|facts| installation::version(&facts.version))),
    check("rights", "With --pre: you have the rights to create all objects of the installation, and all rights that the operator gets.", "rights.md", Before(before::rights)),
    check("crds", "", "", Before(before::crds)),
    check("other-operator", "", "", Before(before::other_operator)),
    check("network", "With --pre: the pod network that the cluster reports supports Windows. Only OpenShift reports its pod network: on other clusters, this check finds no fault.", "../guide/cluster-facts.md#networks", Before(before::network)),
    check("login", "The host accepts the private key, and shows the host key that was named.", "../guide/hosts.md#ssh-server", Host(host::login)),
    check("program", "`wicd.exe` runs on the host and answers.", "../guide/hosts.md#in-short", Host(host::program)),
    check("rights", "The user is an administrator of the host.", "../guide/hosts.md#user", Host(host::fault)),
    check("windows", "The host has a version of Windows that nodes can have.", "limits.md#versions-of-windows", Host(host::fault)),
    check("clock", "The clock of the host agrees with that of this machine.", "../guide/hosts.md#in-short", Host(host::fault)),
    check("services", "No service of another installer has a name that the operator needs.", "../guide/hosts.md#services-of-other-installers", Host(host::fault)),
    check("disk", "C: has enough free space for what the host gets.", "../guide/hosts.md#in-short", Host(host::fault)),
    check("port", "The port of kubelet is free.", "../guide/hosts.md#ports", Host(host::fault)),
    check("api-server", "The host opens a connection to the API server. Only with --api-server.", "../guide/hosts.md#ports", Host(host::fault)),
    check("feature", "The Windows feature Containers is enabled, so that the join need not restart the host.", "../guide/hosts.md#restarts", Host(host::feature)),
    check("restart", "No restart of Windows that needs a user is pending.", "../guide/hosts.md#warnings", Host(host::warning)),
    check("antivirus", "No antivirus needs an exclusion that the operator does not add itself.", "../guide/hosts.md#warnings", Host(host::warning)),
    check("runtimes", "No other container runtime is installed.", "../guide/hosts.md#warnings", Host(host::warning)),
    check("updates", "The host's Windows has the update that nodes need.", "limits.md#versions-of-windows", Host(host::warning)),
    check("support", "Microsoft supports the host's Windows beyond this year.", "limits.md#versions-of-windows", Host(host::warning)),
    check("gmsa", "The host can use the accounts that were named. Only with --gmsa.", "../guide/workloads.md#group-managed-service-accounts-gmsa", Host(host::accounts)),
    check("wmco", "The Windows Machine Config Operator does not hold its lock.", "../guide/from-wmco.md#2-stop-wmco", Takeover(takeover::wmco)),
    check("package", "No object in the namespace of the operator can start WMCO again.", "../guide/from-wmco.md#2-stop-wmco", Takeover(takeover::package)),
    check("idle", "WMCO is not changing any node.", "../guide/from-wmco.md#1-before-you-begin", Takeover(takeover::idle)),
    check("key", "The Secret with the private key can be read.", "../guide/from-wmco.md#1-before-you-begin", Takeover(takeover::key)),
    check("nodes", "Each node of WMCO has its version, and its host key is on record: on the Node, in the ConfigMap `windows-ssh-host-keys` or in a pool.", "../guide/from-wmco.md#host-keys", Takeover(takeover::nodes)),
    check("users", "The private key decrypts the user names in the annotations of nodes.", "../guide/from-wmco.md#what-a-node-has-and-what-it-would-lose", Takeover(takeover::users)),
    check("services", "The services of each version of a node can be read.", "../guide/from-wmco.md#what-a-node-has-and-what-it-would-lose", Takeover(takeover::services)),
    check("version", "The API server is of a version that is supported.", "versions.md", Takeover(|facts| installation::version(&facts.version))),
    check("settings", "No node would lose a setting.", "../guide/from-wmco.md#what-a-node-has-and-what-it-would-lose", Takeover(takeover::settings)),
    check("exporter-certificate", "There is a certificate for windows_exporter.", "../guide/metrics.md", Takeover(takeover::certificate)),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_check_has_its_section_on_the_page_and_each_section_its_check() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let page = std::fs::read_to_string(root.join(PAGE)).unwrap();
        let sections: Vec<String> =
            page.lines().filter_map(|line| line.strip_prefix("#### ")).map(|title| title.replace(' ', "-")).collect();
        let all: BTreeSet<String> = CHECKS.iter().map(Check::anchor).collect();
        let described = CHECKS.iter().filter(|check| !check.about.is_empty());
        let described: Vec<String> = described.map(Check::anchor).collect();
        assert_eq!(sections, described, "run: cargo xtask gen");
        assert_eq!(all, described.into_iter().collect(), "a check is not described");
    }

    /// Commands with which the guide prepares a host, each with the check that fails without it. `None` for the firewall rules of ports other than
    /// that of SSH: no program on the host can find out from which addresses a port can be reached.
    const PREPARED: [(&str, Option<&str>); 13] = [
        ("Add-WindowsCapability -Online -Name OpenSSH.Server~~~~0.0.1.0", Some("login")),
        ("Set-Service -Name sshd -StartupType Automatic", Some("login")),
        ("Start-Service sshd", Some("login")),
        (r"Add-Content C:\ProgramData\ssh\administrators_authorized_keys -Encoding ascii -Value $key", Some("login")),
        (
            r"icacls.exe C:\ProgramData\ssh\administrators_authorized_keys /inheritance:r /grant '*S-1-5-32-544:F' '*S-1-5-18:F'",
            Some("login"),
        ),
        ("if (!(Get-NetFirewallRule -Name OpenSSH-Server-In-TCP -ErrorAction SilentlyContinue)) {", Some("login")),
        (
            "  New-NetFirewallRule -Name OpenSSH-Server-In-TCP -DisplayName sshd -Direction Inbound -Protocol TCP -LocalPort 22 -Action Allow",
            Some("login"),
        ),
        ("}", Some("login")),
        (
            "Set-NetFirewallRule -Name OpenSSH-Server-In-TCP -Enabled True -Profile Any -RemoteAddress $operator",
            Some("login"),
        ),
        (
            "New-NetFirewallRule -DisplayName kubelet -Direction Inbound -Protocol TCP -LocalPort 10250 -RemoteAddress $apiServers -Action Allow",
            None,
        ),
        (
            "New-NetFirewallRule -DisplayName windows_exporter -Direction Inbound -Protocol TCP -LocalPort 9182 -RemoteAddress $apiServers -Action Allow",
            None,
        ),
        (
            "New-NetFirewallRule -DisplayName VXLAN -Direction Inbound -Protocol UDP -LocalPort 4789 -RemoteAddress $nodes -Action Allow",
            None,
        ),
        ("Install-WindowsFeature -Name Containers -Restart", Some("feature")),
    ];
    /// Checks of conditions that no script can prepare: the machine, its network, and other software.
    const NOT_PREPARED: &str =
        "program rights windows clock services disk port api-server restart antivirus runtimes updates support gmsa";

    #[test]
    fn the_guide_prepares_what_a_host_is_checked_for() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let page = std::fs::read_to_string(root.join("docs/guide/hosts.md")).unwrap();
        let section = page.split("## Do this\n").nth(1).unwrap();
        let block = section.split("```powershell\n").nth(1).unwrap().split("```").next().unwrap();
        assert_eq!(
            block.lines().filter(|line| !line.starts_with('$')).collect::<Vec<_>>(),
            PREPARED.map(|(line, _)| line)
        );
        let of_hosts = CHECKS.iter().filter(|check| check.command() == COMMANDS[1]).map(|check| check.id);
        let prepared = PREPARED.iter().filter_map(|(_, check)| *check);
        assert_eq!(of_hosts.collect::<BTreeSet<_>>(), prepared.chain(NOT_PREPARED.split(' ')).collect());

        // The start script of Machines does the same except for the feature. The page names what else the script does.
        let script = include_str!("../../inventory/wmco_sources/user_data/host.ps1");
        for part in [
            "OpenSSH.Server~~~~0.0.1.0",
            "-StartupType Automatic",
            "administrators_authorized_keys",
            "/inheritance:r /grant '*S-1-5-32-544:F' '*S-1-5-18:F'",
            "Set-NetFirewallRule -Name 'OpenSSH-Server-In-TCP' -Enabled True -Profile Any",
            "10250",
        ] {
            assert!(block.replace("OpenSSH-Server-In-TCP", "'OpenSSH-Server-In-TCP'").contains(part), "{part}");
            assert!(script.contains(part), "{part}");
        }
        for (done, named) in [
            ("Enable-LocalUser", "enables a disabled Administrator"),
            ("PasswordAuthentication no", "ends password log-in"),
            ("9182", "port 9182"),
        ] {
            assert!(script.contains(done) && page.contains(named), "{done}");
        }
    }

    #[test]
    fn a_row_has_the_reason_of_the_worst_finding_and_a_link() {
        use crate::commands::check::row::Finding;
        use api::Reason;
        let of = |id: &str| CHECKS.iter().find(|check| check.id == id).unwrap();
        let findings = [
            Finding::warning(Reason::ApiError, "it is slow").remedy("wait"),
            Finding::failed(Reason::CrdInvalid, "it is missing").remedy("install"),
        ];
        let outcomes =
            [(of("crds"), Outcome::of(findings, "")), (of("leader"), Outcome::of([], "a process holds the Lease"))];
        assert_eq!(
            table(&objects(&outcomes)),
            "CHECK    RESULT   MESSAGE\n\
             crds     failed   CrdInvalid: it is slow; it is missing; wait; install; see docs/reference/conditions.md#check-crds\n\
             leader   passed   a process holds the Lease\n"
        );
        assert_eq!(objects(&outcomes)[1]["link"], "docs/reference/conditions.md#check-leader");
        assert!(!outcomes[0].1.is_fit() && outcomes[1].1.is_fit());
    }
}
