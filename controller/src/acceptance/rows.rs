//! The rows, in the order in which they run.

use super::judge::{self, Judge};

/// What is done on the cluster's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Join,
    NodeFacts,
    NodeLog,
    Reboot,
    PrePull,
    ImagesPinned,
    Pod,
    PodNetwork,
    Logs,
    Exec,
    Update,
    Rollback,
    Drain,
    Maintenance,
    HostMaintenance,
    PatchedRestart,
    Proxy,
    TrustedCertificates,
    ImageMirrors,
    Removal,
}

/// How a row is run.
pub(super) enum How {
    /// Through the API server.
    Cluster(Act),
    /// By commands on the host, whose outputs are judged.
    Host(&'static [&'static str], Judge),
}

/// A row.
pub(super) struct Row {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) how: How,
}

const fn cluster(id: &'static str, title: &'static str, act: Act) -> Row {
    Row { id, title, how: How::Cluster(act) }
}

const fn host(id: &'static str, title: &'static str, commands: &'static [&'static str], judge: Judge) -> Row {
    Row { id, title, how: How::Host(commands, judge) }
}

/// Events of the last two hours in the System log.
macro_rules! events {
    ($which:literal) => {
        concat!(
            r#"wevtutil.exe qe System "/q:*[System[("#,
            $which,
            r#") and TimeCreated[timediff(@SystemTime) <= 7200000]]]" /c:40 /rd:true /f:text"#
        )
    };
}

/// All rows.
pub(super) const ROWS: &[Row] = &[
    cluster("join", "the host becomes a Ready node", Act::Join),
    cluster("node-facts", "the Node has the host's Windows, its labels and its taint", Act::NodeFacts),
    host(
        "feature-containers",
        "the feature Containers is enabled",
        &["dism.exe /online /get-featureinfo /featurename:Containers"],
        judge::feature_containers,
    ),
    host(
        "service-recovery",
        "Windows restarts services that end",
        &["sc.exe qfailure kubelet", "sc.exe qfailureflag kubelet"],
        judge::service_recovery,
    ),
    host("service-dependencies", "kubelet depends on containerd", &["sc.exe qc kubelet"], judge::service_dependencies),
    host(
        "killed-service",
        "a killed service runs again",
        // ping is the pause that needs no console.
        &[
            "sc.exe queryex kubelet",
            "taskkill.exe /f /im kubelet.exe",
            "ping.exe -n 30 127.0.0.1",
            "sc.exe queryex kubelet",
        ],
        judge::killed_service,
    ),
    host(
        "access-lists",
        "only administrators read and write the operator's directories",
        &[
            r"icacls.exe C:\k",
            r"icacls.exe C:\windows\wicd",
            r"icacls.exe C:\var\lib\kubelet",
            r"icacls.exe C:\var\lib\kubelet\pki",
            r"icacls.exe C:\k\volume-plugins",
        ],
        judge::access_lists,
    ),
    host("owner", "C:\\k belongs to administrators", &[r"dir /q C:\"], judge::owner),
    host(
        "directories-above",
        "users cannot write into the directories above",
        &[r"icacls.exe C:\var", r"icacls.exe C:\var\lib", r"icacls.exe C:\var\log"],
        judge::directories_above,
    ),
    host(
        "pod-volumes",
        "users of pods reach their volumes",
        &[r"icacls.exe C:\var\lib\kubelet\pods"],
        judge::pod_volumes,
    ),
    host(
        "client-certificate",
        "kubelet has its own certificate, and its kubeconfig is closed",
        &[r"dir C:\var\lib\kubelet\pki", r"icacls.exe C:\k\kubeconfig"],
        judge::client_certificate,
    ),
    host(
        "logins",
        "only administrators read the logins of registries",
        &[r"icacls.exe C:\var\lib\kubelet\config.json"],
        judge::logins,
    ),
    host(
        "antivirus-exclusion",
        "containerd is excluded from real-time protection",
        &[r#"reg.exe query "HKLM\SOFTWARE\Policies\Microsoft\Windows Defender\Exclusions\Processes""#],
        judge::antivirus_exclusion,
    ),
    host(
        "metadata-route",
        "the route to the cloud's metadata service exists",
        &[r"type C:\k\wicd\desired.json", "route.exe print -4 169.254.169.254"],
        judge::metadata_route,
    ),
    host(
        "hybrid-endpoint",
        "kube-proxy has one endpoint",
        &["sc.exe query kube-proxy", "hnsdiag.exe list endpoints"],
        judge::hybrid_endpoint,
    ),
    cluster("node-log", "kubelet serves wicd's log", Act::NodeLog),
    cluster("reboot", "the host restarts when a person asks for it", Act::Reboot),
    host("restart-event", "the System log names wicd.exe", &[events!("EventID=1074")], judge::restart_event),
    host(
        "clean-shutdown",
        "the services stop when the host does",
        &[events!("EventID=7043 or EventID=6005")],
        judge::clean_shutdown,
    ),
    cluster("pre-pull", "the host pulls an image before a pod needs it", Act::PrePull),
    cluster("images-pinned", "wicd has pinned the image", Act::ImagesPinned),
    cluster("pod", "a pod runs", Act::Pod),
    cluster("pod-network", "the pod reaches the API server by its Service and by DNS", Act::PodNetwork),
    cluster("logs", "its log can be read", Act::Logs),
    cluster("exec", "commands can be run in it", Act::Exec),
    cluster("update", "a change of kubelet's settings reaches the node", Act::Update),
    cluster("rollback", "the change is taken back", Act::Rollback),
    cluster("drain", "a restart waits for a PodDisruptionBudget", Act::Drain),
    cluster("maintenance", "a person has the node drained, and hands it back", Act::Maintenance),
    cluster("maintenance-on-host", "wicd.exe on the host does the same", Act::HostMaintenance),
    cluster("patched-restart", "a host that waits for a restart gets it when it is handed back", Act::PatchedRestart),
    cluster("proxy", "the node follows a version with template.spec.proxy", Act::Proxy),
    host(
        "service-variables",
        "the proxy is among the variables of kubelet",
        &[r"reg.exe query HKLM\SYSTEM\CurrentControlSet\Services\kubelet /v Environment"],
        judge::service_variables,
    ),
    cluster(
        "trusted-certificates",
        "the node follows a version with template.spec.trustedCertificates",
        Act::TrustedCertificates,
    ),
    host("certificate-store", "the host trusts the certificate", &[super::spec::CERTUTIL], judge::certificate_store),
    cluster("image-mirrors", "the node follows a version with template.spec.imageMirrors", Act::ImageMirrors),
    host(
        "mirrors-on-host",
        "containerd has the mirror",
        &[r"dir /b C:\k\containerd\registries"],
        judge::mirrors_on_host,
    ),
    cluster("removal", "the host leaves, and has none of the operator's directories", Act::Removal),
    host(
        "services-removed",
        "the host has none of the operator's services",
        &[
            "sc.exe query kubelet",
            "sc.exe query containerd",
            "sc.exe query kube-proxy",
            "sc.exe query windows-instance-config-daemon",
        ],
        judge::services_removed,
    ),
    host(
        "shims-ended",
        "no shim of a pod runs",
        &[r#"tasklist.exe /fi "imagename eq containerd-shim-runhcs-v1.exe""#],
        judge::shims_ended,
    ),
    host(
        "hns-removed",
        "the hybrid overlay is removed",
        &["sc.exe queryex hns", "hnsdiag.exe list networks", "hnsdiag.exe list endpoints"],
        judge::hns_removed,
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const BY_HAND: [&str; 2] = ["by hand", "and by hand"];
    const PAGE: &str = include_str!("../../../docs/reference/windows-only.md");

    /// What only Windows shows: the rows with commands, the one that the kubelet of the test bed cannot serve, and those that need containerd or
    /// what Windows itself does.
    fn only_windows() -> BTreeSet<&'static str> {
        let is_of_windows = |act| {
            use Act::{HostMaintenance, ImagesPinned, NodeLog, PatchedRestart, PrePull};
            matches!(act, NodeLog | PrePull | ImagesPinned | HostMaintenance | PatchedRestart)
        };
        let of_host = |row: &&Row| match row.how {
            How::Host(..) => true,
            How::Cluster(act) => is_of_windows(act),
        };
        ROWS.iter().filter(of_host).map(|row| row.id).collect()
    }

    /// The ids in the last column of the page's tables.
    fn of_page() -> BTreeSet<&'static str> {
        let is_row = |line: &&str| line.starts_with("| **");
        let cells =
            PAGE.lines().filter(is_row).filter_map(|line| line.trim_end_matches([' ', '|']).rsplit(" | ").next());
        cells
            .flat_map(|cell| cell.split(", "))
            .map(str::trim)
            .filter(|id| !BY_HAND.contains(id))
            .map(|id| id.trim_matches('`'))
            .collect()
    }

    #[test]
    fn the_page_names_the_row_of_each_check() {
        assert_eq!(of_page(), only_windows());
    }

    /// Rows that show a part of what the page asks for, where a machine cannot judge the rest: a second user, a shell without rights, Windows'
    /// own updates.
    #[test]
    fn the_page_says_what_is_left_to_do_by_hand() {
        for id in ["images-pinned", "maintenance-on-host", "patched-restart"] {
            let is_there = |line: &str| line.ends_with(&format!("`{id}`, and by hand |"));
            assert!(PAGE.lines().any(is_there), "{id}");
        }
    }

    #[test]
    fn ids_are_unique_and_kebab_case() {
        let ids: BTreeSet<&str> = ROWS.iter().map(|row| row.id).collect();
        assert_eq!(ids.len(), ROWS.len());
        assert!(ids.iter().all(|id| id.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')), "{ids:?}");
    }

    #[test]
    fn a_batch_file_takes_the_commands_as_they_are() {
        for row in ROWS {
            if let How::Host(commands, _) = row.how {
                assert!(commands.iter().all(|c| c.is_ascii() && !c.contains(['%', '\n', '^', '!'])), "{}", row.id);
                assert!(commands.iter().all(|c| c.matches('"').count() % 2 == 0), "{}", row.id);
            }
        }
    }
}
