//! Tests of `cleanup`.

use std::collections::BTreeMap;

use api::host::ServiceState;

use super::*;
use crate::access::AccessList;
use crate::operation::tests::{TestHost, ca_pem, crash_anywhere, exe, message, reason, service, wanted};

/// Returns a joined host whose services have run, with other files and services around.
fn joined() -> TestHost {
    let test_host = TestHost::new();
    test_host.write(r"C:\Temp\theirs.txt", b"");
    test_host.write(r"C:\var\log\theirs.log", b"");
    test_host.state().env.insert("NO_PROXY".into(), "theirs".into());
    test_host.add_service("spooler", "Prints", &[]);
    test_host.join("1");
    for (name, dependencies) in [("containerd", &[][..]), ("kubelet", &["containerd"][..])] {
        test_host.add_service(name, &format!("OpenShift managed {name}"), dependencies);
    }
    test_host.write(r"C:\var\log\kubelet\kubelet.log", b"");
    test_host.write(r"C:\var\lib\kubelet\pki\kubelet-client-current.pem", b"");
    test_host.write(r"C:\var\lib\kubelet\pods\1\volume", b"");
    test_host.write(r"C:\ProgramData\containerd\root\layer", b"");
    test_host
}

/// Returns the files that are left: those for the operator to remove, and those of others.
fn left(test_host: &TestHost) -> Vec<String> {
    let tree = test_host.tree();
    tree.into_iter().filter(|(_, content)| content.is_some()).map(|(name, _)| name.replace('/', "\\")).collect()
}

/// Only the operator's files, services and settings are removed, although others are in the same directories.
#[test]
fn a_cleanup_removes_all_of_the_operator_and_nothing_else() {
    let test_host = joined();
    for _twice in 0..2 {
        let answer = test_host.clean_up();
        assert_eq!((answer.outcome, answer.warnings), (Outcome::Done, Vec::new()));
        let (exe, sent) = (format!(r"k\wicd\{}\wicd.exe", exe("1")), format!(r"windows\wicd\{}\wicd.exe", exe("1")));
        let mut expected = ["Temp\\theirs.txt", &exe, r"k\wicd\epoch", r"k\wicd\lock", r"var\log\theirs.log", &sent];
        expected.sort_unstable();
        assert_eq!(left(&test_host), expected);
        assert!(
            !test_host.exists(r"C:\var\lib")
                && !test_host.exists(r"C:\ProgramData")
                && !test_host.exists(r"C:\k\containerd")
        );
        assert_eq!(test_host.state().services.keys().collect::<Vec<_>>(), ["spooler"]);
        assert_eq!(test_host.state().env, [("NO_PROXY".to_string(), "theirs".to_string())].into());
        assert_eq!(test_host.state().trusted.len(), 0);
        assert!(test_host.state().excluded.is_empty(), "containerd is still excluded from the antivirus");
        assert_eq!(
            test_host.state().sweeps,
            (1, 1),
            "networks and processes are swept only where something of ours was"
        );
        assert_eq!(answer.state.unwrap().marker, None);
    }
}

/// CNI directories may be the owner's, with programs of another installer.
#[test]
fn directories_with_programs_are_removed_unless_they_existed_before() {
    let test_host = TestHost::new();
    test_host.write(r"C:\opt\cni\bin\theirs.exe", b"");
    let mut apply = wanted("1");
    apply.desired.cni_directories = [r"C:\opt\cni\bin", r"C:\etc\cni\net.d"].map(String::from).into();
    let programs: Vec<String> = crate::secure::programs(&apply.desired).map(String::from).collect();
    test_host.stage_version("1");
    assert_eq!(test_host.apply(apply).outcome, Outcome::Done);
    for directory in &programs {
        assert!(test_host.exists(directory), "{directory}");
        test_host.write(&format!(r"{directory}\x.exe"), b"");
    }
    assert_eq!(test_host.clean_up().outcome, Outcome::Done);
    let stay = [path::ROOT, path::WICD, r"C:\opt\cni\bin"];
    for directory in &programs {
        assert_eq!(test_host.exists(directory), stay.contains(&directory.as_str()), "{directory}");
    }
    assert!(test_host.exists(r"C:\opt\cni\bin\theirs.exe") && !test_host.exists(r"C:\etc"));
}

#[test]
fn an_earlier_exclusion_from_the_antivirus_stays() {
    let test_host = TestHost::new();
    test_host.state().excluded.insert(super::super::apply::CONTAINERD.into());
    test_host.stage_version("1");
    for _twice in 0..2 {
        assert_eq!(test_host.apply(wanted("1")).outcome, Outcome::Done);
    }
    assert_eq!(test_host.clean_up().outcome, Outcome::Done);
    assert_eq!(test_host.state().excluded.len(), 1);
}

#[test]
fn the_configuration_of_kube_proxy_is_removed() {
    use crate::network;
    let test_host = TestHost::new();
    let config = api::services::OvnHybridNetwork { service_cidr: "172.30.0.0/16".into(), ..Default::default() };
    let mut apply = wanted("1");
    apply.desired.services.services[1].prepare = Some(api::services::Prepare::OvnHybridNetwork(config.clone()));
    test_host.stage_version("1");
    assert_eq!(test_host.apply(apply).outcome, Outcome::Done);
    network::tests::make_network(&test_host);
    // hybrid-overlay-node has created the directory before.
    test_host.write(r"C:\k\cni\config\ovnkube-client-current.pem", b"");
    // WMCO's nodes have many of these.
    test_host.write(r"C:\k\cni\config\ovnkube-client-2026-01-01-00-00-00.pem", b"");
    let wish = network::DesiredNetwork { config: &config, node_name: "win-1", node_subnet: None };
    assert_eq!(network::prepare(&test_host.host, wish, false).unwrap(), network::Progress::Ready);
    assert!(test_host.exists(network::KUBE_PROXY_CONF) && test_host.exists(network::CNI_CONF));

    let answer = test_host.clean_up();
    assert_eq!((answer.outcome, answer.warnings), (Outcome::Done, Vec::new()));
    assert!(!test_host.exists(network::KUBE_PROXY_CONF) && !test_host.exists(r"C:\k\cni"));
}

/// Image layers can be in use, or protected from all but containerd: the leftovers must not look like a store.
#[test]
fn an_image_layer_that_cannot_be_removed_does_not_prevent_a_later_join() {
    let old = r"C:\ProgramData\containerd.old-0\root\layer";
    let test_host = TestHost::new();
    test_host.write(r"C:\ProgramData\theirs.txt", b"");
    let fill = || {
        test_host.write(r"C:\ProgramData\containerd\root\layer", b"");
        test_host.write(r"C:\ProgramData\containerd\root\meta.db", b"");
    };
    test_host.join("1");
    fill();
    files::tests::stuck(&["layer"]);
    let answer = test_host.clean_up();
    assert_eq!(answer.outcome, Outcome::Done);
    assert!(
        matches!(&answer.warnings[..], [w] if w.contains(r"left in C:\ProgramData\containerd.old-0")),
        "{answer:?}"
    );
    assert!(
        !test_host.exists(super::CONTAINERD_STATE) && test_host.exists(old) && answer.state.unwrap().marker.is_none()
    );

    test_host.join("1");
    assert_eq!(files::list(&test_host.host, super::CONTAINERD_STATE).unwrap(), Vec::<String>::new());
    fill();
    let answer = test_host.clean_up();
    assert_eq!((answer.outcome, answer.warnings.len()), (Outcome::Done, 2));
    assert!(!test_host.exists(super::CONTAINERD_STATE) && test_host.exists(&old.replace("old-0", "old-1")));

    files::tests::stuck(&[]);
    for _twice in 0..2 {
        let answer = test_host.clean_up();
        assert_eq!((answer.outcome, answer.warnings), (Outcome::Done, Vec::new()));
        assert_eq!(files::list(&test_host.host, r"C:\ProgramData").unwrap(), ["theirs.txt"]);
        assert!(!test_host.exists(path::OWNED));
    }
}

/// A store that cannot be moved is not touched, and stays on record.
#[test]
fn an_image_store_that_cannot_be_moved_stays_complete() {
    let test_host = joined();
    test_host.write(r"C:\ProgramData\containerd\root\meta.db", b"");
    for n in 0..LEFTOVERS {
        test_host.write(&format!(r"{}\theirs", leftover(n)), b"");
    }
    let answer = test_host.clean_up();
    assert_eq!(answer.outcome, Outcome::Done);
    assert!(
        answer.warnings.iter().any(|w| w.contains("images of containerd stay") && w.contains("by hand")),
        "{answer:?}"
    );
    assert!(test_host.exists(r"C:\ProgramData\containerd\root\meta.db") && test_host.exists(&leftover(0)));
    files::remove_tree(&test_host.host, &leftover(3)).unwrap();
    assert_eq!(test_host.clean_up().outcome, Outcome::Done);
    assert!(
        !test_host.exists(super::CONTAINERD_STATE) && !test_host.exists(&leftover(3)) && test_host.exists(&leftover(0))
    );
}

/// An administrator may have moved the logs to another disk with a link, or a user may try to have files of other users deleted.
#[cfg(unix)]
#[test]
fn files_behind_a_link_stay() {
    for (link, behind) in [
        (r"C:\var\log", r"C:\theirs\kubelet\kubelet.log"),
        (r"C:\var", r"C:\theirs\log\kubelet\kubelet.log"),
        (r"C:\Temp", r"C:\theirs\hns.psm1"),
        (r"C:\ProgramData", r"C:\theirs\containerd\root\layer"),
    ] {
        let test_host = joined();
        let mut owned = Ownership::load(&test_host.host).unwrap().unwrap();
        owned.files.insert(r"C:\Temp\hns.psm1".into());
        owned.save(&test_host.host).unwrap();
        test_host.write(behind, b"theirs");
        let real = test_host.path(link).unwrap();
        std::fs::remove_dir_all(&real).unwrap();
        std::os::unix::fs::symlink(test_host.path(r"C:\theirs").unwrap(), &real).unwrap();
        let answer = test_host.clean_up();
        assert_eq!(answer.outcome, Outcome::Done, "{link}");
        assert_eq!(test_host.read(behind).as_deref(), Some("theirs"), "{link}");
        assert!(
            answer.warnings.iter().any(|w| w.contains(&format!("{link} is a symbolic link"))),
            "{:?}",
            answer.warnings
        );
    }
}

/// Services of other owners that stop together with the operator's services are not started again, so the answer has a warning.
#[test]
fn a_cleanup_warns_of_other_files_and_services() {
    type Case = (fn(&TestHost), fn(&TestHost) -> bool, &'static str);
    let cases: [Case; 3] = [
        (
            |test_host| test_host.write(r"C:\k\cni\theirs.exe", b""),
            |test_host| test_host.exists(r"C:\k\cni\theirs.exe"),
            r"directory C:\k\cni stays because it is not empty; delete it if nobody needs its files",
        ),
        (
            |test_host| test_host.add_service("theirs", "x", &["kubelet"]),
            |test_host| test_host.state().services.contains_key("theirs"),
            "service theirs, which the operator did not install, was stopped because it depends on kubelet, which the operator removes: \
             uninstall theirs, or remove this dependency from it and start it again",
        ),
        (
            |test_host| test_host.add_service("kubelet", "a user's", &[]),
            |test_host| test_host.state().services["kubelet"].state == ServiceState::Running,
            "service kubelet stays: its description is not the operator's. If nobody needs it, delete it with sc.exe delete",
        ),
    ];
    for (arrange, stays, warning) in cases {
        let test_host = joined();
        arrange(&test_host);
        let answer = test_host.clean_up();
        assert_eq!((answer.outcome, answer.warnings), (Outcome::Done, vec![warning.to_owned()]));
        assert!(stays(&test_host), "{warning}");
    }
}

#[test]
fn earlier_state_of_services_stays() {
    let test_host = TestHost::new();
    test_host.write(r"C:\ProgramData\containerd\theirs", b"");
    test_host.write(r"C:\var\log\kubelet\theirs.log", b"");
    test_host.join("1");
    test_host.write(r"C:\var\lib\kubelet\pki\kubelet-client-current.pem", b"");
    assert_eq!(test_host.clean_up().outcome, Outcome::Done);
    assert!(
        test_host.exists(r"C:\ProgramData\containerd\theirs") && test_host.exists(r"C:\var\log\kubelet\theirs.log")
    );
    assert!(!test_host.exists(path::KUBELET_PKI));
}

/// The removal guide names all directories that existed before and whose access lists stay restricted.
#[test]
fn access_lists_stay_as_the_removal_guide_says() {
    const PAGE: &str = include_str!("../../../docs/guide/removal.md");
    const CNI: &str = r"C:\opt\cni\bin";
    let said = PAGE.lines().find(|line| line.starts_with("- Access lists")).unwrap();
    let test_host = TestHost::new();
    let whole = [path::ROOT, r"C:\var\lib\kubelet", r"C:\var\log\kubelet", CNI];
    for directory in whole {
        test_host.write(&format!(r"{directory}\theirs.txt"), b"");
    }
    let mut apply = wanted("1");
    apply.desired.cni_directories = [CNI.to_owned()].into();
    test_host.stage_version("1");
    assert_eq!(test_host.apply(apply).outcome, Outcome::Done);
    assert_eq!(test_host.clean_up().outcome, Outcome::Done);
    let is_left = |directory: &&str| {
        let real = test_host.path(directory).unwrap();
        test_host.state().access.get(&real).is_some_and(|list| *list != AccessList::usual()) && real.exists()
    };
    // The parents of the CNI directories are not in the list: by default, no user may replace them.
    let above = [r"C:\var", r"C:\var\lib", path::LOGS];
    let named: Vec<&str> = whole.into_iter().chain(above).filter(is_left).collect();
    assert_eq!(named, whole.into_iter().chain(above).collect::<Vec<_>>());
    let theirs =
        ["`C:\\k`", "`C:\\var\\lib\\kubelet`", "`C:\\var`", "`C:\\var\\lib`", "`C:\\var\\log`", "those of CNI"];
    assert!(theirs.iter().all(|words| said.contains(words)), "{said}");
    let root = test_host.path(path::ROOT).unwrap();
    let all = test_host.state().access.keys().filter(|real| real.exists()).cloned().collect::<Vec<_>>();
    let others = all.iter().filter(|real| !real.starts_with(&root));
    let others: Vec<_> = others.filter(|real| !named.iter().any(|d| test_host.path(d).unwrap() == **real)).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn services_are_removed_before_their_dependencies() {
    let all = [
        service("containerd", "", &[]),
        service("kubelet", "", &["Containerd"]),
        service("kube-proxy", "", &["hybrid-overlay-node"]),
        service("hybrid-overlay-node", "", &["kubelet"]),
        service(WICD_SERVICE, "", &[]),
    ];
    let expected = [WICD_SERVICE, "kube-proxy", "hybrid-overlay-node", "kubelet", "containerd"];
    assert_eq!(removal_order(all.to_vec()), expected);
    assert_eq!(removal_order(all.into_iter().rev().collect()), expected);
    let circle = [service("a", "", &["b"]), service("b", "", &["a"])];
    assert_eq!(removal_order(circle.to_vec()), ["a", "b"]);
}

#[test]
fn a_failure_does_not_stop_the_rest_of_a_cleanup() {
    let test_host = joined();
    test_host.state().refused = ["delete_service kubelet", "set_env_var HTTP_PROXY"].map(String::from).into();
    let answer = test_host.clean_up();
    assert_eq!(reason(&answer), "CleanupIncomplete");
    let text = message(&answer);
    assert!(
        text.contains("2 of the cleanup's steps failed") && text.contains("kubelet") && text.contains("HTTP_PROXY"),
        "{text}"
    );
    assert_eq!(test_host.state().services.keys().collect::<Vec<_>>(), ["kubelet", "spooler"]);
    assert!(!test_host.exists(r"C:\k\kubelet.exe") && test_host.exists(path::OWNED));
    test_host.state().refused.clear();
    assert_eq!(test_host.clean_up().outcome, Outcome::Done);
    assert_eq!(test_host.state().services.keys().collect::<Vec<_>>(), ["spooler"]);
    assert!(!test_host.exists(path::OWNED));
}

/// A variable that existed before is not the operator's, and cleaning up an unconfigured host is not an error.
#[test]
fn a_host_without_objects_of_the_operator_does_not_change() {
    let test_host = TestHost::new();
    test_host.state().env.insert("HTTP_PROXY".into(), "theirs".into());
    test_host.add_service("containerd", "Container runtime", &[]);
    test_host.write(r"C:\k\theirs", b"");
    let before = test_host.rest();
    assert_eq!(test_host.clean_up().outcome, Outcome::Done);
    assert_eq!(test_host.rest(), before);
    assert_eq!(test_host.state().sweeps, (0, 0));
    assert!(test_host.exists(r"C:\k\theirs"));
}

/// Services, variables and number of trusted certificates of a host of WMCO after a cleanup.
const CLEAN: (BTreeMap<String, ServiceInfo>, BTreeMap<String, String>, usize) = (BTreeMap::new(), BTreeMap::new(), 1);

fn host_of_wmco() -> TestHost {
    let test_host = TestHost::new();
    for (name, dependencies) in [(WICD_SERVICE, &[][..]), ("containerd", &[][..]), ("kubelet", &["containerd"][..])] {
        test_host.add_service(name, &format!("OpenShift managed {name}"), dependencies);
    }
    test_host.state().env.insert("HTTPS_PROXY".into(), "of the cluster".into());
    let (pem, _) = ca_pem("of the cluster");
    test_host.state().trusted.extend(crate::certificates::bundle(pem.as_bytes()).unwrap());
    test_host.state().trusted.insert(b"theirs".to_vec());
    test_host.write(r"C:\k\imported-certs.pem", pem.as_bytes());
    for path in [
        r"C:\k\kubelet.exe",
        r"C:\k\cni\config\cni.conf",
        r"C:\k\wicd-certs\wicd-client-current.pem",
        r"C:\Temp\hns.psm1",
        r"C:\Temp\theirs.txt",
        r"C:\var\log\kubelet\kubelet.log",
        r"C:\var\log\theirs.log",
        r"C:\var\lib\kubelet\pki\kubelet-client-current.pem",
        r"C:\var\lib\kubelet\pods\x",
    ] {
        if !test_host.exists(path) {
            test_host.write(path, b"");
        }
    }
    test_host
}

/// Only known files of WMCO are removed.
#[test]
fn a_cleanup_removes_the_known_objects_of_wmco() {
    let test_host = host_of_wmco();
    assert_eq!(test_host.clean_up().outcome, Outcome::Done);
    let expected =
        [r"Temp\theirs.txt", r"k\wicd\epoch", r"k\wicd\lock", r"var\lib\kubelet\pods\x", r"var\log\theirs.log"];
    assert_eq!(left(&test_host), expected);
    assert_eq!(test_host.rest(), CLEAN);
}

/// A new version does not show which certificates of WMCO are still needed: programs on the host may use them.
#[test]
fn certificates_that_wmco_has_imported_stay_until_a_cleanup() {
    let test_host = host_of_wmco();
    let imported =
        crate::certificates::bundle(&files::read(&test_host.host, r"C:\k\imported-certs.pem").unwrap().unwrap());
    let imported = imported.unwrap().remove(0);
    test_host.write(r"C:\k\bootstrap-kubeconfig", b"token: secret");
    for version in ["1", "2"] {
        test_host.stage_version(version);
        let mut body = wanted(version);
        body.desired.trusted_ca = if version == "1" { String::new() } else { ca_pem("of the cluster").0 };
        test_host.apply_and_start(version, body);
        assert!(test_host.state().trusted.contains(&imported), "after version {version}");
        assert!(!test_host.exists(r"C:\k\bootstrap-kubeconfig"), "after version {version}");
    }
    assert_eq!(test_host.clean_up().outcome, Outcome::Done);
    assert_eq!(test_host.rest(), CLEAN);
}

/// containerd reads all existing mirror files, so those that the cluster no longer has must be removed.
#[test]
fn mirror_files_of_wmco_that_the_cluster_does_not_have_are_removed() {
    let test_host = host_of_wmco();
    let mirrors = |registry: &str| format!(r"C:\k\containerd\registries\{registry}\hosts.toml");
    let (kept, gone) = (mirrors("quay.io"), mirrors("old.example.com"));
    test_host.write(&kept, b"wmco");
    test_host.write(&gone, b"wmco");
    test_host.stage_version("1");
    let mut body = wanted("1");
    body.configs.push(api::host::ConfigFile { path: kept.clone(), content: "ours".into(), secret: true });
    test_host.apply(body);
    assert_eq!(files::read(&test_host.host, &kept).unwrap().as_deref(), Some(&b"ours"[..]));
    assert!(!test_host.exists(&gone));
}

/// On a host that was taken over from WMCO in place, a cleanup removes WMCO's files, too.
#[test]
fn a_cleanup_removes_the_files_of_wmco_after_a_takeover() {
    let test_host = host_of_wmco();
    test_host.stage_version("1");
    test_host.apply_and_start("1", wanted("1"));
    assert_eq!(test_host.clean_up().outcome, Outcome::Done);
    assert_eq!(test_host.rest(), CLEAN);
    assert_eq!(files::list(&test_host.host, path::ROOT).unwrap(), ["wicd"]);
    assert!(!test_host.exists(path::KUBELET_PKI));
}

/// After a crash at any point, cleaning up again leads to the same host as without a crash.
#[test]
fn cleanup_converges_after_a_crash_anywhere() {
    for arrange in [joined, host_of_wmco] {
        let straight = arrange();
        assert_eq!(straight.clean_up().outcome, Outcome::Done);
        let files = |test_host: &TestHost| test_host.tree().into_keys().collect::<Vec<_>>();
        let act = |test_host: &TestHost, (): &()| drop(test_host.clean_up());
        crash_anywhere(
            || (arrange(), ()),
            act,
            1,
            |test_host, (), about| {
                // Removing networks may cut the connection, and sshd then ends its processes.
                if test_host.state().sweeps.0 > 0 {
                    let record = [r"wicd\owned.json", r"wicd\owned.copy.json", r"wicd\state.json"];
                    let files: BTreeSet<String> =
                        left(test_host).into_iter().filter(|f| !record.iter().any(|r| f.ends_with(r))).collect();
                    assert!(files.is_subset(&left(&straight).into_iter().collect()), "{about}: {files:?}");
                }
                assert_eq!(test_host.clean_up().outcome, Outcome::Done, "{about}");
                assert_eq!((files(test_host), test_host.rest()), (files(&straight), straight.rest()), "{about}");
            },
        );
    }
}
