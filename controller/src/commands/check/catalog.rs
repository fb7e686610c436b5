//! Every check: what must be so, and where the documentation says what to do. The reference page is generated from it. Pure.

/// Reference page with all checks, as a path in this repository.
pub const PAGE: &str = "docs/reference/checks.md";

/// The command that has a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// `check` and `check --pre`.
    Installation,
    /// `check host`.
    Host,
    /// `check takeover`.
    Takeover,
}

/// A check.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Whose.
    pub scope: Scope,
    /// As its row names it.
    pub id: &'static str,
    /// What must be so.
    pub about: &'static str,
    /// Where to read on, from the reference page.
    pub more: &'static str,
}

impl Scope {
    /// All, in the order of the page.
    pub const ALL: [Self; 3] = [Self::Installation, Self::Host, Self::Takeover];

    /// What a person types.
    pub fn command(self) -> &'static str {
        match self {
            Self::Installation => "check",
            Self::Host => "check host",
            Self::Takeover => "check takeover",
        }
    }
}

impl Check {
    /// Title of its section. The anchor of the section is that in lower case, with a dash for the space.
    pub fn title(&self) -> String {
        format!("{} {}", self.scope.command(), self.id)
    }

    /// Anchor of its section.
    pub fn anchor(&self) -> String {
        self.title().replace(' ', "-")
    }
}

/// Where a row of a command is explained.
pub(super) fn link(scope: Scope, id: &str) -> String {
    match CHECKS.iter().find(|check| check.scope == scope && check.id == id) {
        Some(check) => format!("{PAGE}#{}", check.anchor()),
        None => PAGE.to_owned(),
    }
}

const fn installation(id: &'static str, about: &'static str, more: &'static str) -> Check {
    Check { scope: Scope::Installation, id, about, more }
}

const fn host(id: &'static str, about: &'static str, more: &'static str) -> Check {
    Check { scope: Scope::Host, id, about, more }
}

const fn takeover(id: &'static str, about: &'static str, more: &'static str) -> Check {
    Check { scope: Scope::Takeover, id, about, more }
}

/// All checks.
pub const CHECKS: &[Check] = &[
    installation(
        "version",
        "The API server is of a version that the operator can work with and that is supported.",
        "versions.md",
    ),
    installation("clock", "The clock of this machine agrees with that of the API server.", "conditions.md#reasons"),
    installation(
        "crds",
        "Both CRDs are those of this release and served, and no object is stored in a version that this release does not know. With --pre: \
         none of another product is in the way.",
        "conditions.md#reasons",
    ),
    installation(
        "leader",
        "A process of the operator holds the Lease and renews it.",
        "../guide/troubleshooting.md#check-the-installation",
    ),
    installation(
        "other-operator",
        "The Windows Machine Config Operator works neither in the operator's namespace nor in its own.",
        "../guide/from-wmco.md#2-stop-wmco",
    ),
    installation("policies", "All admission policies are in force as they ship.", "rights.md"),
    installation("keys", "The private keys that pools name can be read.", "../guide/hosts.md#ssh-server"),
    installation("pools", "All pools are Ready.", "../guide/troubleshooting.md"),
    installation("payload", "Hosts can be given the payload, with the facts of this cluster.", "../guide/payload.md"),
    installation(
        "certificate",
        "Hosts trust the certificate of the API server at the URL that they are given.",
        "../guide/cluster-facts.md",
    ),
    installation(
        "rights",
        "With --pre: you may create what is installed, and hold what the operator is given.",
        "rights.md",
    ),
    installation(
        "network",
        "With --pre: nothing that the cluster says of its network speaks against pods on Windows. Networks other than those of OpenShift say nothing.",
        "../guide/networks.md",
    ),
    host(
        "login",
        "The host accepts the private key, and shows the host key that was named.",
        "../guide/hosts.md#ssh-server",
    ),
    host("program", "`wicd.exe` runs on the host and answers.", "../guide/hosts.md#in-short"),
    host("rights", "The user is an administrator of the host.", "../guide/hosts.md#user"),
    host("windows", "The version of Windows is one that can be a node.", "platforms.md"),
    host("clock", "The clock of the host agrees with that of this machine.", "../guide/hosts.md#in-short"),
    host(
        "services",
        "No service of another installer has a name that the operator needs.",
        "../guide/hosts.md#services-of-others",
    ),
    host("disk", "There is room on C: for what the host gets.", "../guide/hosts.md#in-short"),
    host("port", "The port of kubelet is free.", "../guide/hosts.md#ports"),
    host(
        "api-server",
        "The host opens a connection to the API server. Only with --api-server.",
        "../guide/hosts.md#ports",
    ),
    host("restart", "Windows waits for no restart that needs a person.", "../guide/hosts.md#warnings"),
    host("antivirus", "No antivirus slows containers.", "../guide/hosts.md#warnings"),
    host("runtimes", "No other container runtime is installed.", "../guide/hosts.md#warnings"),
    host("updates", "The host's Windows has the update that nodes need.", "platforms.md#versions-of-windows"),
    host(
        "support",
        "Microsoft's support of the host's Windows does not end in this year.",
        "platforms.md#versions-of-windows",
    ),
    host("gmsa", "The host can use the accounts that were named. Only with --gmsa.", "../guide/gmsa.md"),
    takeover(
        "wmco",
        "The Windows Machine Config Operator does not hold its lock.",
        "../guide/from-wmco.md#2-stop-wmco",
    ),
    takeover("package", "Nothing is there that starts it again.", "../guide/from-wmco.md#2-stop-wmco"),
    takeover("idle", "It changes no node.", "../guide/from-wmco.md#1-before-you-begin"),
    takeover("version", "The API server is of a version that is supported.", "versions.md"),
    takeover("exporter-certificate", "There is a certificate for windows_exporter.", "../guide/metrics.md"),
    takeover("key", "The Secret with the private key can be read.", "../guide/from-wmco.md#1-before-you-begin"),
    takeover(
        "nodes",
        "Each node of WMCO has its version, and its host key is on record: on the Node, in the ConfigMap `windows-ssh-host-keys` or in a pool.",
        "../guide/from-wmco.md#host-keys",
    ),
    takeover(
        "users",
        "The private key reads the users in the annotations of nodes.",
        "../guide/from-wmco.md#what-a-node-has-and-what-it-would-lose",
    ),
    takeover(
        "services",
        "The services of each version of a node can be read.",
        "../guide/from-wmco.md#what-a-node-has-and-what-it-would-lose",
    ),
    takeover(
        "settings",
        "No node would lose a setting.",
        "../guide/from-wmco.md#what-a-node-has-and-what-it-would-lose",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn page() -> String {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        std::fs::read_to_string(root.join(PAGE)).unwrap()
    }

    #[test]
    fn each_check_has_its_section_on_the_page_and_each_section_its_check() {
        let page = page();
        let sections: BTreeSet<String> =
            page.lines().filter_map(|line| line.strip_prefix("### ")).map(|title| title.replace(' ', "-")).collect();
        let anchors: BTreeSet<String> = CHECKS.iter().map(Check::anchor).collect();
        assert_eq!(anchors.len(), CHECKS.len(), "two checks have one anchor");
        assert_eq!(anchors, sections, "run: cargo xtask gen");
        for check in CHECKS {
            assert!(page.contains(&format!("({})", check.more)), "{}: run: cargo xtask gen", check.id);
        }
    }

    #[test]
    fn a_row_names_the_section_of_its_check() {
        for (scope, id, expected) in [
            (Scope::Installation, "crds", "docs/reference/checks.md#check-crds"),
            (Scope::Host, "disk", "docs/reference/checks.md#check-host-disk"),
            (Scope::Takeover, "services", "docs/reference/checks.md#check-takeover-services"),
            (Scope::Host, "crds", "docs/reference/checks.md"),
        ] {
            assert_eq!(link(scope, id), expected);
        }
    }
}
