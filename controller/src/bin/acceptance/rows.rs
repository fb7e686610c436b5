//! Rows of the acceptance test, in the order in which a whole run has them.

use futures::future::LocalBoxFuture;

use super::{
    acts::Run,
    environments,
    host::Kind,
    judge::{self, Judge},
    networks,
};

/// Function that acts on the cluster, on the host, or on both, and returns the evidence.
type Act = for<'a> fn(&'a Run) -> LocalBoxFuture<'a, anyhow::Result<String>>;

/// Way to run a row.
pub(crate) enum How {
    /// Function that acts, and judges the result itself.
    Act(Act),
    /// Commands on the host, with the judge of their outputs.
    Host(&'static [&'static str], Judge),
}

/// Prerequisite of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// A Ready node.
    Node,
    /// A Ready node and the argument `--image`.
    Image,
    /// The argument `--wicd`, before the host has joined.
    Wicd,
    /// The argument `--payload`, before the host has joined.
    Payload,
    /// Only the host, whatever the state of the node.
    Host,
}

/// Row of the acceptance test.
pub(crate) struct Row {
    pub(crate) id: &'static str,
    /// Kinds of hosts on which the row can run.
    pub(crate) on: &'static [Kind],
    pub(crate) needs: Need,
    pub(crate) how: How,
}

const ANY: &[Kind] = &[Kind::Windows, Kind::Wine, Kind::Simulated];
/// Hosts with programs and a registry.
const PROGRAMS: &[Kind] = &[Kind::Windows, Kind::Wine];
/// Hosts with containerd, or with a simulation that binds and evicts pods and lists images, but runs no containers.
const IMAGES: &[Kind] = &[Kind::Windows, Kind::Simulated];
const WINDOWS: &[Kind] = &[Kind::Windows];

const fn act(id: &'static str, on: &'static [Kind], function: Act) -> Row {
    Row { id, on, needs: Need::Node, how: How::Act(function) }
}

const fn image(id: &'static str, on: &'static [Kind], function: Act) -> Row {
    Row { needs: Need::Image, ..act(id, on, function) }
}

const fn host(id: &'static str, commands: &'static [&'static str], judge: Judge) -> Row {
    Row { id, on: WINDOWS, needs: Need::Node, how: How::Host(commands, judge) }
}

/// Returns a row like [`host`] that needs no Ready node.
const fn without_node(id: &'static str, commands: &'static [&'static str], judge: Judge) -> Row {
    Row { needs: Need::Host, ..host(id, commands, judge) }
}

/// Command that queries the events of the last two hours in the System log.
macro_rules! events {
    ($which:literal) => {
        concat!(
            r#"wevtutil.exe qe System "/q:*[System[("#,
            $which,
            r#") and TimeCreated[timediff(@SystemTime) <= 7200000]]]" /c:40 /rd:true /f:text"#
        )
    };
}

/// Table of all rows. `ping.exe` serves as a pause that needs no console.
#[rustfmt::skip]
pub(crate) const ROWS: &[Row] = &[
    Row { needs: Need::Payload, ..act("programs", WINDOWS, |run| Box::pin(run.programs())) },
    Row { needs: Need::Wicd, ..act("check-host", ANY, |run| Box::pin(run.check_host())) },
    Row { needs: Need::Wicd, ..act("api-server-unknown", WINDOWS, |run| Box::pin(run.api_server_unknown())) },
    Row { needs: Need::Wicd, ..act("facts-while-servicing", WINDOWS, |run| Box::pin(run.facts_while_servicing())) },
    Row { needs: Need::Wicd, ..act("other-antivirus", WINDOWS, |run| Box::pin(run.other_antivirus())) },
    Row { needs: Need::Wicd, ..act("ordinary-user", WINDOWS, |run| Box::pin(run.ordinary_user())) },
    act("join", ANY, |run| Box::pin(run.join())),
    act("node-facts", ANY, |run| Box::pin(run.node_facts())),
    act("windows-facts", WINDOWS, |run| Box::pin(run.windows_facts())),
    without_node("command-lines", &[r"reg.exe query HKLM\SYSTEM\CurrentControlSet\Services\kubelet /v ImagePath", r"C:\k\kube-log-runner.exe -help", r"C:\k\kubelet.exe --help"], judge::command_lines),
    host("feature-containers", &["dism.exe /online /get-featureinfo /featurename:Containers"], judge::feature_containers),
    host("service-recovery", &["sc.exe qfailure kubelet", "sc.exe qfailureflag kubelet"], judge::service_recovery),
    host("service-dependencies", &["sc.exe qc kubelet"], judge::service_dependencies),
    host("service-process", &["sc.exe queryex kubelet", r#"tasklist.exe /fo csv /nh /fi "imagename eq kubelet.exe""#, r#"tasklist.exe /fo csv /nh /fi "imagename eq kube-log-runner.exe""#], judge::service_process),
    host("killed-service", &["sc.exe queryex kubelet", "taskkill.exe /f /im kubelet.exe", "ping.exe -n 30 127.0.0.1", "sc.exe queryex kubelet"], judge::killed_service),
    host("lost-log-runner", &["sc.exe queryex kubelet", "taskkill.exe /f /im kube-log-runner.exe", "ping.exe -n 90 127.0.0.1", "sc.exe queryex kubelet", r#"tasklist.exe /fo csv /nh /fi "imagename eq kubelet.exe""#], judge::lost_log_runner),
    host("access-lists", &[r"icacls.exe C:\k", r"icacls.exe C:\windows\wicd", r"icacls.exe C:\var\lib\kubelet", r"icacls.exe C:\var\lib\kubelet\pki", r"icacls.exe C:\k\volume-plugins"], judge::access_lists),
    host("owner", &[r"dir /q C:\"], judge::owner),
    host("directories-above", &[r"icacls.exe C:\var", r"icacls.exe C:\var\lib", r"icacls.exe C:\var\log"], judge::directories_above),
    host("parents-held", &[environments::RENAME], environments::parents_held),
    without_node("authorized-keys", &["sc.exe queryex sshd", r"icacls.exe C:\ProgramData\ssh\administrators_authorized_keys"], environments::authorized_keys),
    act("cni-directories", WINDOWS, |run| Box::pin(run.cni_directories())),
    host("libraries", &["powershell.exe -NoProfile -Command (Get-Process -Name wicd).Modules.FileName"], judge::libraries),
    host("pod-volumes", &[r"icacls.exe C:\var\lib\kubelet\pods"], judge::pod_volumes),
    host("client-certificate", &[r"dir C:\var\lib\kubelet\pki", r"icacls.exe C:\k\kubeconfig"], judge::client_certificate),
    host("logins", &[r"icacls.exe C:\var\lib\kubelet\config.json"], judge::logins),
    host("antivirus-exclusion", &[r#"reg.exe query "HKLM\SOFTWARE\Policies\Microsoft\Windows Defender\Exclusions\Processes""#], judge::antivirus_exclusion),
    act("lost-exclusion", WINDOWS, |run| Box::pin(run.lost_exclusion())),
    host("containerd-config", &[judge::CONFIG_DUMP], judge::containerd_config),
    host("metadata-route", &[r"type C:\k\wicd\desired.json", "route.exe print -4 169.254.169.254"], networks::metadata_route),
    act("node-log", WINDOWS, |run| Box::pin(run.node_log())),
    act("support-data", WINDOWS, |run| Box::pin(run.support_data())),
    act("reboot", ANY, |run| Box::pin(run.reboot())),
    act("after-restart", WINDOWS, |run| Box::pin(run.after_restart())),
    host("restart-event", &[events!("EventID=1074")], judge::restart_event),
    host("clean-shutdown", &[events!("EventID=7043 or EventID=6005")], judge::clean_shutdown),
    host("hybrid-endpoint", &["sc.exe query kube-proxy", "hnsdiag.exe list endpoints"], networks::hybrid_endpoint),
    host("overlay-network", &["sc.exe query kube-proxy", r"type C:\k\cni\config\cni.conf", "hnsdiag.exe list networks -d"], networks::overlay_network),
    host("vxlan-port", &["sc.exe query kube-proxy", r"type C:\k\wicd\desired.json", "hnsdiag.exe list networks -d"], environments::vxlan_port),
    host("overlay-adapter", &["sc.exe query kube-proxy", r"type C:\k\kube-proxy.conf", "ipconfig.exe /all"], networks::overlay_adapter),
    host("overlay-proxy", &["sc.exe query kube-proxy", r#"findstr.exe /l /c:"has not created the network" C:\var\log\wicd\windows-instance-config-daemon.exe.INFO"#, r"findstr.exe /b E C:\var\log\kube-proxy\kube-proxy.log", "hnsdiag.exe list loadbalancers"], networks::overlay_proxy),
    host("endpoint-again", &["sc.exe query kube-proxy", "hnsdiag.exe list endpoints", r#"powershell.exe -NoProfile -Command "$old = Get-HnsEndpoint | Where-Object Name -eq VIPEndpoint; if ($old) { $old | Remove-HnsEndpoint; Start-Sleep 150 }""#, "hnsdiag.exe list endpoints"], networks::endpoint_again),
    image("pre-pull", IMAGES, |run| Box::pin(run.pre_pull())),
    image("images-pinned", WINDOWS, |run| Box::pin(run.images_pinned())),
    image("pod", WINDOWS, |run| Box::pin(run.pod())),
    image("pod-network", WINDOWS, |run| Box::pin(run.pod_network())),
    image("logs", WINDOWS, |run| Box::pin(run.logs())),
    image("exec", WINDOWS, |run| Box::pin(run.exec())),
    image("pod-accounts", WINDOWS, |run| Box::pin(run.pod_accounts())),
    image("memory", WINDOWS, |run| Box::pin(run.memory())),
    act("log-rotation", WINDOWS, |run| Box::pin(run.log_rotation())),
    act("own-access-list", WINDOWS, |run| Box::pin(run.own_access_list())),
    act("replaced-in-use", WINDOWS, |run| Box::pin(run.replaced_in_use())),
    act("update", ANY, |run| Box::pin(run.update())),
    act("rollback", ANY, |run| Box::pin(run.rollback())),
    act("credential-plugin", WINDOWS, |run| Box::pin(run.credential_plugin())),
    act("hung-service", WINDOWS, |run| Box::pin(run.hung_service())),
    host("old-programs", &[r"(if exist C:\k\*.old-* (dir /b C:\k\*.old-*) else echo none)"], judge::none_left),
    image("drain", IMAGES, |run| Box::pin(run.drain())),
    act("maintenance", ANY, |run| Box::pin(run.maintenance())),
    act("maintenance-on-host", PROGRAMS, |run| Box::pin(run.host_maintenance())),
    act("patched-restart", PROGRAMS, |run| Box::pin(run.patched_restart())),
    act("proxy", ANY, |run| Box::pin(run.proxy())),
    host("service-variables", &[r"reg.exe query HKLM\SYSTEM\CurrentControlSet\Services\kubelet /v Environment"], judge::service_variables),
    act("trusted-certificates", ANY, |run| Box::pin(run.trusted_certificates())),
    host("certificate-store", &["certutil.exe -store Root 3bb1582d319ffed7adfd0bf58077497a884f9b15"], judge::certificate_store),
    act("image-mirrors", ANY, |run| Box::pin(run.image_mirrors())),
    host("mirrors-on-host", &[r"dir /b C:\k\containerd\registries"], judge::mirrors_on_host),
    Row { needs: Need::Host, ..act("removal", ANY, |run| Box::pin(run.removal())) },
    without_node("services-removed", &["sc.exe query kubelet", "sc.exe query containerd", "sc.exe query kube-proxy", "sc.exe query windows-instance-config-daemon"], judge::services_removed),
    without_node("shims-ended", &[r#"tasklist.exe /fi "imagename eq containerd-shim-runhcs-v1.exe""#], judge::shims_ended),
    without_node("hns-removed", &["sc.exe queryex hns", "hnsdiag.exe list networks", "hnsdiag.exe list endpoints"], networks::hns_removed),
    without_node("nothing-left", &[r"(if exist C:\usr\libexec\kubernetes (echo C:\usr\libexec\kubernetes) else echo none)", r"(if exist C:\ProgramData\containerd* (dir /b C:\ProgramData\containerd*) else echo none)"], judge::none_left),
    Row { needs: Need::Host, ..act("others-files", WINDOWS, |run| Box::pin(run.others_files())) },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PAGE: &str = include_str!("../../../../docs/concept/windows-only.md");
    /// Rows with a function that depend on Windows itself or on containerd.
    const OF_WINDOWS: &str = "programs api-server-unknown windows-facts cni-directories memory log-rotation pod-network node-log \
                              after-restart pre-pull images-pinned pod-accounts replaced-in-use maintenance-on-host \
                              patched-restart own-access-list others-files lost-exclusion support-data hung-service \
                              facts-while-servicing other-antivirus ordinary-user credential-plugin";

    /// Returns the row ids in the last column of the page's tables. Each check has at least one.
    fn of_page() -> BTreeSet<&'static str> {
        let rows = PAGE.lines().filter(|line| line.starts_with("| **"));
        let cells = rows.filter_map(|line| line.trim_end_matches([' ', '|']).rsplit(" | ").next());
        let mut found = BTreeSet::new();
        for cell in cells {
            let ids = cell.split('`').skip(1).step_by(2).filter(|id| !id.starts_with("--")).collect::<Vec<_>>();
            assert!(!ids.is_empty(), "no row: {cell}");
            found.extend(ids);
        }
        found
    }

    #[test]
    fn the_page_names_the_row_of_each_check() {
        let is_listed = |row: &Row| OF_WINDOWS.split_ascii_whitespace().any(|id| id == row.id);
        let is_of_windows = |row: &&Row| matches!(row.how, How::Host(..)) || is_listed(row);
        let ids: Vec<&str> = ROWS.iter().filter(is_of_windows).map(|row| row.id).collect();
        assert_eq!(of_page(), ids.iter().copied().collect());
        assert_eq!(of_page().len(), ids.len(), "two rows have one id");
    }

    #[test]
    fn a_batch_file_takes_the_commands_as_they_are() {
        for row in ROWS {
            if let How::Host(commands, _) = row.how {
                assert!(commands.iter().all(|c| c.is_ascii() && !c.contains(['%', '\n', '^', '!'])), "{}", row.id);
                assert!(commands.iter().all(|c| c.matches('"').count() % 2 == 0), "{}", row.id);
            }
        }
        assert!(ROWS.iter().any(|row| matches!(row.how, How::Host([c], _) if c.ends_with(judge::THUMBPRINT))));
    }
}
