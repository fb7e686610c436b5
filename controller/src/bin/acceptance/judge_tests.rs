//! Tests of the judges of command outputs.

use super::{super::networks::*, *};

fn ok(text: impl Into<String>) -> Output {
    status(0, text)
}

fn status(status: u32, text: impl Into<String>) -> Output {
    Output { status: Some(status), text: text.into() }
}

/// Test case: a judge, outputs that pass, and outputs that must not pass in place of one of them.
struct Case {
    judge: Judge,
    good: Vec<Output>,
    bad: Vec<(usize, Output)>,
}

fn case(judge: Judge, good: Vec<Output>, bad: Vec<(usize, Output)>) -> Case {
    Case { judge, good, bad }
}

/// Returns a case for a judge of a single output.
fn one(judge: Judge, good: Output, bad: &[Output]) -> Case {
    case(judge, vec![good], bad.iter().map(|output| (0, output.clone())).collect())
}

fn acl(path: &str, entries: &[&str]) -> Output {
    let list = entries.join("\n          ");
    ok(format!("{path} {list}\n\nSuccessfully processed 1 files; Failed processing 0 files"))
}

const SYSTEM: &str = r"NT AUTHORITY\SYSTEM:(OI)(CI)(F)";
const ADMINISTRATORS: &str = r"BUILTIN\Administrators:(OI)(CI)(F)";
const RUNNING: &str = "\nSERVICE_NAME: kubelet\n        TYPE               : 10  WIN32_OWN_PROCESS\n        STATE              : 4  RUNNING\n                                (STOPPABLE, NOT_PAUSABLE)\n        PID                : 4711\n        FLAGS              :";
const NO_SERVICE: &str = "[SC] EnumQueryServicesStatus:OpenService FAILED 1060:\n\nThe specified service does not exist as an installed service.";
const ACTIONS: &str = "[SC] QueryServiceConfig2 SUCCESS\n\nSERVICE_NAME: kubelet\n        RESET_PERIOD (in seconds)    : 3600\n        REBOOT_MESSAGE               :\n        COMMAND_LINE                 :\n        FAILURE_ACTIONS              : RESTART -- Delay = 10000 milliseconds.\n                                       RESTART -- Delay = 60000 milliseconds.\n                                       RESTART -- Delay = 300000 milliseconds.";

fn desired(in_cloud: bool) -> Output {
    let metadata_address = in_cloud.then_some([169, 254, 169, 254].into());
    let desired = api::host::Desired { metadata_address, ..api::host::Desired::default() };
    ok(serde_json::to_string_pretty(&desired).unwrap())
}

/// Returns an output of `hnsdiag list endpoints` with an endpoint of a pod, and `count` endpoints of the hybrid overlay whose id ends with `end`.
fn endpoints(end: &str, count: usize) -> Output {
    let one =
        |name: &str, end: &str| format!("Endpoint : 0f4a1c5e-3b1d-4a57-9c2b-7d0e6a9f00{end}\n    Name : {name}\n");
    ok(one("pod_eth0", "00") + &one("VIPEndpoint", end).repeat(count))
}

fn event(id: u32, says: &str) -> String {
    format!(
        "Event[0]\n  Log Name: System\n  Source: User32\n  Event ID: {id}\n  Level: Information\n  Description:\n{says}\n"
    )
}

fn services() -> Vec<Case> {
    let restarted = RUNNING.replace("4711", "5005");
    let flag = |value: &str| {
        ok(format!(
            "[SC] QueryServiceConfig2 SUCCESS\n\nSERVICE_NAME: kubelet\n        FAILURE_ACTIONS_ON_NONCRASH_FAILURES: {value}"
        ))
    };
    let dependencies = |value: &str| {
        ok(format!(
            "SERVICE_NAME: kubelet\n        TYPE               : 10\n        DEPENDENCIES       : {value}\n        SERVICE_START_NAME : LocalSystem"
        ))
    };
    vec![
        case(
            service_recovery,
            vec![ok(ACTIONS), flag("TRUE")],
            vec![
                (0, ok(ACTIONS.replace("60000", "6000"))),
                (0, ok(ACTIONS.replace("3600", "36000"))),
                (0, ok(format!("{ACTIONS}\n RESTART -- Delay = 1 milliseconds."))),
                (1, flag("FALSE")),
                (1, flag("TRUE\nFAILURE_ACTIONS_ON_NONCRASH_FAILURES: FALSE")),
            ],
        ),
        one(
            service_dependencies,
            dependencies("containerd"),
            &[dependencies(""), dependencies("other"), dependencies("containerd\n DEPENDENCIES : x")],
        ),
        case(
            killed_service,
            vec![ok(RUNNING), ok("SUCCESS: The process has been terminated."), ok(""), ok(&restarted)],
            vec![
                (3, ok(RUNNING)),
                (3, ok(restarted.replace("4  RUNNING", "1  STOPPED"))),
                (3, ok(restarted.replace("5005", "0"))),
            ],
        ),
        case(
            services_removed,
            vec![status(1060, NO_SERVICE), status(1060, NO_SERVICE)],
            vec![(1, ok(RUNNING)), (0, ok(NO_SERVICE))],
        ),
        one(
            shims_ended,
            ok("INFO: No tasks are running which match the specified criteria."),
            &[ok(
                "containerd-shim-runhcs-v1.exe 812 Services 0 9,000 K\nINFO: No tasks are running which match the specified criteria.",
            )],
        ),
    ]
}

/// Returns the registry entry of kubelet's service, with these flags of kube-log-runner.
fn kubelet_line(flags: &str) -> Output {
    ok(format!(
        "\nHKEY_LOCAL_MACHINE\\SYSTEM\\CurrentControlSet\\Services\\kubelet\n    ImagePath    REG_EXPAND_SZ    C:\\k\\kube-log-runner.exe {flags} C:\\k\\kubelet.exe --config=C:\\k\\kubelet.conf --windows-service --v=2\n\n"
    ))
}

/// Shortened outputs of `-help` of kube-log-runner 1.34, and of `--help` of kubelet.
const RUNNER_HELP: &str = "Usage of C:\\k\\kube-log-runner.exe:\n  -also-stdout\n    \tuseful with log-file, log to standard output as well as the log file\n  -log-file string\n    \tIf non-empty, save stdout to this file\n  -log-file-age duration\n    \tuseful with log-file-size\n  -log-file-size value\n    \tuseful with log-file\n  -redirect-stderr\n    \ttreat stderr same as stdout (default true)";
const KUBELET_HELP: &str = "The kubelet is the primary \"node agent\" that runs on each node.\n\nUsage:\n  kubelet [flags]\n\nFlags:\n      --config string                     The Kubelet will load its initial configuration from this file.\n  -v, --v Level                           number for the log level verbosity\n      --windows-service                   Enable Windows Service Control Manager API integration";

fn programs() -> Vec<Case> {
    let task = |program: &str, id: u32| ok(format!("\"{program}\",\"{id}\",\"Services\",\"0\",\"85.412 K\""));
    // Message of a German Windows that there is no process.
    let none = ok("INFORMATION: Es werden keine Aufgaben mit den angegebenen Kriterien ausgef\u{fffd}hrt.");
    let restarted = RUNNING.replace("4711", "5005");
    let dump = "disabled_plugins = []\nimports = []\nversion = 3\n\n[plugins]\n";
    let ignored = "time=\"2026-09-03T01:47:12Z\" level=warning msg=\"Ignoring unknown key in TOML for plugin\" error=\"strict mode: fields in the document are missing in the target struct\" key=bin_dirs plugin=io.containerd.cri.v1.runtime";
    let old = RUNNER_HELP.replace("  -log-file-size value\n", "");
    vec![
        case(
            command_lines,
            vec![
                kubelet_line(r"-log-file=C:\var\log\kubelet\kubelet.log -log-file-size=100Mi"),
                ok(RUNNER_HELP),
                ok(KUBELET_HELP),
            ],
            vec![
                (0, kubelet_line("-log-file-days=7")),
                (1, ok(old)),
                (2, ok(KUBELET_HELP.replace("--windows-service ", ""))),
            ],
        ),
        case(
            service_process,
            vec![ok(RUNNING), task("kubelet.exe", 4800), task("kube-log-runner.exe", 4711)],
            vec![
                (1, none.clone()),
                (1, ok(format!("{}\n{}", task("kubelet.exe", 4800).text, task("kubelet.exe", 4900).text))),
                (2, none.clone()),
                (2, task("kube-log-runner.exe", 12)),
            ],
        ),
        case(
            lost_log_runner,
            vec![
                ok(RUNNING),
                ok("ERFOLG: Der Prozess \"kube-log-runner.exe\" mit PID 4711 wurde beendet."),
                ok(""),
                ok(&restarted),
                task("kubelet.exe", 5010),
            ],
            vec![
                (3, ok(RUNNING)),
                (3, ok(restarted.replace("4  RUNNING", "1  STOPPED"))),
                (4, none),
                (4, ok(format!("{}\n{}", task("kubelet.exe", 4800).text, task("kubelet.exe", 5010).text))),
            ],
        ),
        one(
            libraries,
            ok(
                "C:\\k\\wicd\\a\\wicd.exe\nC:\\Windows\\SYSTEM32\\ntdll.dll\nC:\\Windows\\System32\\DISM\\dismcore.dll\n",
            ),
            &[
                ok("C:\\k\\wicd\\a\\wicd.exe\nC:\\k\\wicd\\a\\version.dll"),
                ok("C:\\k\\wicd\\a\\wicd.exe"),
                ok("C:\\Windows\\SYSTEM32\\ntdll.dll"),
            ],
        ),
        one(containerd_config, ok(dump), &[ok(format!("{ignored}\n{dump}")), ok(ignored)]),
        case(
            none_left,
            vec![ok("none\n"), ok("none")],
            vec![(0, ok("kubelet.exe.old-0")), (1, ok("none\ncontainerd.old-0"))],
        ),
        case(
            after_restart,
            vec![ok(RUNNING); 12],
            vec![
                (8, ok(RUNNING.replace("4  RUNNING", "1  STOPPED"))),
                (9, ok(RUNNING.replace("4  RUNNING", "2  START_PENDING"))),
                (10, status(1060, NO_SERVICE)),
            ],
        ),
    ]
}

#[test]
fn services_that_come_late_or_not_at_all_are_told_apart() {
    let stopped = || ok(RUNNING.replace("4  RUNNING", "1  STOPPED"));
    let missing = || {
        status(
            1060,
            "[SC] EnumQueryServicesStatus:OpenService FEHLER 1060:\n\nDer angegebene Dienst ist kein installierter Dienst.",
        )
    };
    let runs = || ok(RUNNING);
    let late =
        [runs(), runs(), stopped(), missing(), runs(), runs(), runs(), missing(), runs(), runs(), runs(), missing()];
    let outcome = after_restart(&late).unwrap();
    assert_eq!(
        outcome,
        passed("services that run or are not needed: 3 of 4 after 60 s, 4 of 4 after 120 s, 4 of 4 after 300 s")
    );
    assert!(!all_run(&late[..4]) && all_run(&late[4..8]));
    assert!(after_restart(&late[..8]).unwrap().text.ends_with("4 of 4 after 120 s"));
    assert_eq!(after_restart(&late[..7]), None);
    let mut never = late;
    never[10] = stopped();
    assert!(after_restart(&never).unwrap().text.starts_with("not running: kubelet; "));
}

#[test]
fn hashes_and_the_number_of_starts_are_read() {
    let hash = |of: &str| {
        ok(format!(
            "SHA256-Hash von C:\\k\\kubelet.exe:\n{}\nCertUtil: -hashfile-Befehl wurde erfolgreich ausgef\u{fffd}hrt.",
            of.repeat(64)
        ))
    };
    assert!(is_same_file(&[hash("a"), hash("a")]));
    for other in [hash("b"), ok(""), status(1, &hash("a").text)] {
        assert!(!is_same_file(&[hash("a"), other.clone()]) && !is_same_file(&[other.clone(), ok("")]), "{other:?}");
    }
    let key = "HKEY_LOCAL_MACHINE\\SYSTEM\\CurrentControlSet\\Control\\Session Manager\\Memory Management\\PrefetchParameters";
    assert_eq!(boot_count(&[ok(format!("\n{key}\n    BootId    REG_DWORD    0x1d\n"))]).as_deref(), Some("0x1d"));
    for output in [ok(key), ok("BootId"), status(1, "BootId    REG_DWORD    0x1d"), ok("BootId    REG_SZ    later")] {
        assert_eq!(boot_count(std::slice::from_ref(&output)), None, "{output:?}");
    }
}

fn logs_and_registry() -> Vec<Case> {
    let ours = r"The process C:\windows\wicd\a\wicd.exe (WIN) has initiated the restart of computer WIN";
    let hung =
        "The windows-instance-config-daemon service did not shut down properly after receiving a preshutdown control.";
    let value = |line: &str| ok(format!("\nHKEY_LOCAL_MACHINE\\SYSTEM\\X\n    {line}\n"));
    let languages = |language: &str| {
        let key = r"HKEY_LOCAL_MACHINE\SYSTEM\CurrentControlSet\Control\MUI\UILanguages";
        ok(format!("\n{key}\\en-US\n{key}\\{language}\n"))
    };
    vec![
        case(
            |outputs| windows_facts("de-DE", Some("corp.example.com"), outputs),
            vec![languages("de-DE"), value("Domain    REG_SZ    CORP.example.com")],
            vec![(0, languages("fr-FR")), (1, value("Domain    REG_SZ    other.example.com"))],
        ),
        one(
            restart_event,
            ok(event(1074, "other.exe") + &event(1074, ours)),
            &[ok(event(1074, "The process other.exe")), ok(event(6008, ours)), ok(ours)],
        ),
        one(
            clean_shutdown,
            ok(event(7043, "The Windows Update service") + &event(6005, "The Event log service was started.")),
            &[ok(event(6005, "") + &event(7043, hung)), ok(event(7043, "The Windows Update service"))],
        ),
        one(
            service_variables,
            value(&format!(r"Environment    REG_MULTI_SZ    HTTP_PROXY={PROXY}\0NO_PROXY=.svc")),
            &[
                value(r"Environment    REG_MULTI_SZ    HTTP_PROXY=http://other:3128\0NO_PROXY=.svc"),
                value("Environment    REG_MULTI_SZ"),
            ],
        ),
        one(
            antivirus_exclusion,
            value(r"C:\k\containerd\containerd.exe    REG_SZ    0"),
            &[value(r"C:\other.exe    REG_SZ    0"), value(r"C:\k\containerd\containerd.exe")],
        ),
        one(
            feature_containers,
            ok("Feature Information:\n\nFeature Name : Containers\nDisplay Name : Containers\nState : Enabled\n"),
            &[
                ok("Feature Name : Containers\nState : Disabled"),
                ok("Feature Name : Containers\nState : Enable Pending"),
                ok("Feature Name : Other\nState : Enabled"),
                ok("Feature Name : Containers\nState : Disabled\nState : Enabled"),
            ],
        ),
        one(
            certificate_store,
            ok(format!(
                "Root\n=== Certificate 0 ===\nCert Hash(sha1): {THUMBPRINT}\nCertUtil: -store command completed successfully."
            )),
            &[ok("Cert Hash(sha1): 00"), ok(THUMBPRINT)],
        ),
        one(
            mirrors_on_host,
            ok("docker.io\nregistry.acceptance.invalid"),
            &[ok("docker.io"), ok("xregistry.acceptance.invalid")],
        ),
    ]
}

fn networks() -> Vec<Case> {
    let route = |line: &str| {
        ok(format!(
            "IPv4 Route Table\nActive Routes:\nNetwork Destination        Netmask          Gateway       Interface  Metric\n{line}\nPersistent Routes:\n  None"
        ))
    };
    let cni = include_str!("../../../../wicd/src/network/cni.json");
    let proxy = include_str!("../../../../wicd/src/network/kube-proxy.json");
    let addresses = |subnet: &str, address: &str| {
        ok(format!("{{\"ManagementIP\":\"{address}\",\"Subnets\":[{{\"AddressPrefix\":\"{subnet}\"}}]}}"))
    };
    let adapter = |address: &str| ok(format!("   IPv4 Address. . . . . . . . . . . : {address}(Preferred)\n"));
    vec![
        case(
            overlay_network,
            vec![ok(RUNNING), ok(cni), addresses("10.132.1.0/24", "10.0.0.7")],
            vec![
                (1, ok("{}")),
                (2, addresses("10.132.1.0/23", "10.0.0.7")),
                (2, addresses("10.132.1.0/24", "10.0.0.77")),
            ],
        ),
        case(
            overlay_adapter,
            vec![ok(RUNNING), ok(proxy), adapter("10.132.1.2")],
            vec![(1, ok("{}")), (2, adapter("10.132.1.20")), (2, adapter("10.0.0.7"))],
        ),
        case(
            overlay_proxy,
            vec![
                ok(RUNNING),
                ok("WARN hybrid-overlay-node has not created the network yet"),
                status(1, ""),
                ok("Load Balancer : 1\n    Virtual IPs : 172.30.0.1"),
            ],
            vec![
                (0, ok(RUNNING.replace("4  RUNNING", "1  STOPPED"))),
                (1, status(1, "FINDSTR: Cannot open the file")),
                (2, ok("E0101 00:00:00.000000    1 proxier.go:1] policy creation failed")),
                (2, status(1, "FINDSTR: Cannot open the file")),
                (3, ok("")),
            ],
        ),
        case(
            hns_removed,
            vec![ok(RUNNING), ok("Network : 1\n    Name             : nat"), ok("")],
            vec![
                (0, ok(RUNNING.replace("4  RUNNING", "1  STOPPED"))),
                (1, ok("    Name             : BaseOVNKubernetesHybridOverlayNetwork")),
                (2, ok("    Name             : VIPEndpoint")),
            ],
        ),
        case(
            hybrid_endpoint,
            vec![ok(RUNNING), ok("Endpoint : 1\n    Name             : VIPEndpoint")],
            vec![(1, ok("Name : VIPEndpoint\nName : VIPEndpoint")), (1, ok("Name : other"))],
        ),
        case(
            endpoint_again,
            vec![ok(RUNNING), endpoints("1c", 1), ok(""), endpoints("2d", 1)],
            vec![
                (1, endpoints("1c", 0)),
                (2, status(1, "Get-HnsEndpoint is not recognized")),
                (3, endpoints("1c", 1)),
                (3, endpoints("2d", 0)),
                (3, endpoints("2d", 2)),
            ],
        ),
        case(
            metadata_route,
            vec![desired(true), route("  169.254.169.254  255.255.255.255       10.0.0.1        10.0.0.5     35")],
            vec![
                (1, route("  169.254.169.254  255.255.255.255       On-link        10.0.0.5     35")),
                (1, route("  169.254.0.0  255.255.0.0       10.0.0.1        10.0.0.5     35")),
                (1, route("  None")),
            ],
        ),
    ]
}

fn access() -> Vec<Case> {
    let lists = |paths: &[&str], entries: &[&str]| paths.iter().map(|path| acl(path, entries)).collect::<Vec<_>>();
    let (users, inherited) = (r"BUILTIN\Users:(OI)(CI)(RX)", r"NT AUTHORITY\SYSTEM:(I)(OI)(CI)(F)");
    let directory = |owner: &str| {
        ok(format!(
            " Directory of C:\\\n\n01/15/2027  10:00 AM    <DIR>          {owner} k\n01/15/2027  10:00 AM    <DIR>          NT SERVICE\\TrustedInstaller Windows\n"
        ))
    };
    let listing = |mark: &str| {
        ok(format!(
            "01/15/2027  10:00 AM    {mark}      kubelet-client-current.pem [C:\\var\\lib\\kubelet\\pki\\kubelet-client-2027-01-15-10-00-00.pem]"
        ))
    };
    let kubeconfig = |entries: &[&str]| acl(r"C:\k\kubeconfig", entries);
    let ours = || lists(&OURS, &[SYSTEM, ADMINISTRATORS]);
    vec![
        case(
            access_lists,
            ours(),
            vec![
                (0, acl(OURS[0], &[SYSTEM, ADMINISTRATORS, users])),
                (1, acl(OURS[1], &[inherited, ADMINISTRATORS])),
                (2, acl(OURS[2], &[SYSTEM])),
                (3, acl(OURS[3], &[SYSTEM, r"BUILTIN\Administrators:(OI)(CI)(RX)"])),
                (0, acl(r"C:\other", &[SYSTEM, ADMINISTRATORS])),
                (0, ok(format!(r"C:\k {SYSTEM}"))),
                (0, acl(OURS[0], &[SYSTEM, ADMINISTRATORS, "garbage"])),
                (0, ok("C:\\k: Access is denied.\n\nSuccessfully processed 0 files; Failed processing 1 files")),
            ],
        ),
        case(
            directories_above,
            lists(
                &ABOVE,
                &[
                    r"NT AUTHORITY\SYSTEM:(I)(OI)(CI)(F)",
                    ADMINISTRATORS,
                    r"BUILTIN\Users:(RX)",
                    r"CREATOR OWNER:(OI)(CI)(IO)(F)",
                ],
            ),
            vec![
                (0, acl(ABOVE[0], &[SYSTEM, r"BUILTIN\Users:(OI)(CI)(M)"])),
                (1, acl(ABOVE[1], &[SYSTEM, r"BUILTIN\Users:(OI)(CI)(IO)(RX)"])),
                (2, acl(ABOVE[2], &[SYSTEM, r"BUILTIN\Guests:(W)"])),
            ],
        ),
        one(
            pod_volumes,
            acl(r"C:\var\lib\kubelet\pods", &[SYSTEM, users, r"NT AUTHORITY\Authenticated Users:(OI)(CI)(M)"]),
            &[acl(r"C:\var\lib\kubelet\pods", &[SYSTEM, users]), ok(users)],
        ),
        one(
            logins,
            acl(r"C:\var\lib\kubelet\config.json", &[r"NT AUTHORITY\SYSTEM:(I)(F)", r"BUILTIN\Administrators:(I)(F)"]),
            &[acl(r"C:\var\lib\kubelet\config.json", &[SYSTEM, ADMINISTRATORS, r"BUILTIN\Guests:(R)"])],
        ),
        case(
            client_certificate,
            vec![listing("<SYMLINK>"), kubeconfig(&[r"NT AUTHORITY\SYSTEM:(I)(F)", r"BUILTIN\Administrators:(I)(F)"])],
            vec![(0, listing("         ")), (0, ok("<SYMLINK>")), (1, kubeconfig(&[SYSTEM, users]))],
        ),
        case(
            |outputs| cni_access(&[CNI[0].to_owned(), CNI[1].to_owned()], outputs),
            lists(&CNI, &[SYSTEM, ADMINISTRATORS]),
            vec![(0, acl(CNI[0], &[SYSTEM, ADMINISTRATORS, users])), (1, acl(CNI[0], &[SYSTEM, ADMINISTRATORS]))],
        ),
        one(owner, directory(r"BUILTIN\Administrators"), &[directory(r"WIN\alice"), ok(r"k BUILTIN\Administrators")]),
    ]
}

/// CNI directories of a network other than a hybrid overlay.
const CNI: [&str; 2] = [r"C:\opt\cni\bin", r"C:\etc\cni\net.d"];

#[test]
fn directories_of_cni_are_read() {
    let dump = |bin: &str, conf: &str| ok(format!("version = 3\n  bin_dirs = [{bin}]\n  conf_dir = {conf}\n"));
    for good in
        [dump(r"'C:\opt\cni\bin'", r"'C:\etc\cni\net.d'"), dump(r#""C:\\opt\\cni\\bin""#, r#""C:\\etc\\cni\\net.d""#)]
    {
        assert_eq!(cni_directories(&good).unwrap(), CNI, "{good:?}");
    }
    for bad in
        [dump("", "''"), dump(r"'C:\a & del'", r"'C:\etc'"), dump(r"'\\other\a'", r"'C:\etc'"), ok(""), status(1, "")]
    {
        assert_eq!(cni_directories(&bad), None, "{bad:?}");
    }
}

const IMAGE: &str = "example.com/windows:ltsc2022";

fn patching() -> Vec<Case> {
    let id = format!("sha256:{}", "a".repeat(64));
    let record = |image: &str, id: &str| ok(serde_json::json!({"pinned": {image: id}}).to_string());
    let waits = "wicd: the node waits for its turn (rollout.maxUnavailable, or its pool is paused)\nwicd: the node is being drained\n";
    let begun = "the node is drained: patch and restart the host, then run `wicd.exe maintenance end`";
    let ended = "the node is Ready, and its maintenance is over";
    let drained = "state: Drained\nrequest: acceptance";
    vec![
        one(
            |outputs| images_pinned(IMAGE, outputs),
            record(IMAGE, &id),
            &[
                record("example.com/windows:other", &id),
                record(IMAGE, "sha256:x"),
                record(IMAGE, ""),
                ok("{}"),
                ok(r#"{"pinned": null}"#),
                ok(format!(r#"["{IMAGE}", "{id}"]"#)),
            ],
        ),
        case(
            |outputs| host_maintenance("acceptance", outputs),
            vec![
                ok(format!("{waits}{begun}\n")),
                ok(format!("{drained}\n")),
                ok(format!("wicd: the operator verifies the node\n{ended}\n\n")),
                ok("state: None\nrequest: none"),
            ],
            vec![
                (0, ok(format!("{begun}\nwicd: the node is on hold"))),
                (0, ok(waits)),
                (1, ok("state: Draining\nrequest: acceptance")),
                (1, ok("state: Drained\nrequest: another")),
                (1, ok(format!("{drained}\nstate: None"))),
                (2, ok("the Node does not have a maintenance request of this host")),
                (3, ok(drained)),
                (3, ok("state: None")),
            ],
        ),
    ]
}

#[test]
fn only_the_services_own_program_is_run() {
    let sha256 = "b".repeat(64);
    let key = r"HKEY_LOCAL_MACHINE\SYSTEM\CurrentControlSet\Services\windows-instance-config-daemon";
    let value = |command: &str| ok(format!("\n{key}\n    ImagePath    REG_EXPAND_SZ    {command}\n\n"));
    let wicd = format!(r"C:\k\wicd\{sha256}\wicd.exe");
    assert_eq!(path_of_wicd(&[value(&format!("{wicd} service"))]).as_deref(), Some(wicd.as_str()));
    assert_eq!(path_of_wicd(&[value(&format!("\"{wicd}\" service"))]).as_deref(), Some(wicd.as_str()));
    for hostile in [
        value(&wicd),
        value(&format!("{wicd} & shutdown.exe /r service")),
        value(&format!(r"C:\Users\Public\{sha256}\wicd.exe service")),
        value(r"C:\k\wicd\..\wicd.exe service"),
        value(&format!(r"C:\k\wicd\{sha256}\other.exe service")),
        value(&format!(r"C:\k\wicd\{sha256}&x\wicd.exe service")),
        value(""),
        status(1, &value(&format!("{wicd} service")).text),
        ok(""),
    ] {
        assert_eq!(path_of_wicd(std::slice::from_ref(&hostile)), None, "{hostile:?}");
    }
    assert_eq!(path_of_wicd(&[]), None);
}

#[test]
fn a_key_of_windows_itself_has_no_mark() {
    let key = format!(r"HKEY_LOCAL_MACHINE\{RESTART_REQUIRED}");
    let marked = ok(format!("\n{key}\n    {MARK}    REG_SZ    1\n\n"));
    for (output, expected) in [
        (marked.clone(), Some(true)),
        (status(1, "ERROR: The system was unable to find the specified registry key or value."), Some(false)),
        (status(1, "FEHLER: Der angegebene Registrierungsschl\u{fffd}ssel wurde nicht gefunden."), Some(false)),
        (ok(format!("\n{key}\n    WuMark    REG_SZ    1\n")), None),
        (ok(&key), None),
        (ok(""), None),
        (status(1, &marked.text), None),
        (status(1, &key), None),
        (status(1, ""), None),
        (status(9009, "'reg.exe' is not recognized"), None),
        (Output { status: None, text: marked.text.clone() }, None),
        (Output { status: None, text: "ERROR".into() }, None),
    ] {
        assert_eq!(has_mark(std::slice::from_ref(&output)), expected, "{output:?}");
    }
    assert!(is_empty_key(&ok(&key)) && is_empty_key(&ok("\n")));
    for other in
        [&marked, &ok(format!("{key}\n{key}\\Sub\n")), &status(1, "ERROR"), &Output { status: None, text: key.clone() }]
    {
        assert!(!is_empty_key(other), "{other:?}");
    }
    assert_eq!((has_mark(&[]), has_mark(&[marked.clone(), marked])), (None, None));
}

#[test]
fn a_row_passes_by_what_windows_prints_and_by_no_other_text() {
    let garbage = ["", " \n\n", "passed", "TRUE", "\u{fffd}\u{fffd}[[[::::", ":(", " : \n : ", "Event[", "4  RUNNING"];
    for (number, case) in [services(), programs(), logs_and_registry(), networks(), access(), patching()]
        .into_iter()
        .flatten()
        .enumerate()
    {
        let judge = |outputs: &[Output]| outcome(case.judge, outputs);
        assert!(matches!(judge(&case.good), Outcome { result: PASSED, .. }), "{number}: {:?}", judge(&case.good));
        assert!(matches!(judge(&[]), Outcome { result: FAILED, .. }), "{number}");
        for (at, bad) in &case.bad {
            let mut outputs = case.good.clone();
            outputs[*at] = bad.clone();
            assert!(
                matches!(judge(&outputs), Outcome { result: FAILED, .. }),
                "{number}: {bad:?} gives {:?}",
                judge(&outputs)
            );
        }
        // Meaningless text as the output of all commands.
        for text in garbage {
            for code in [Some(0), Some(1), Some(1060), None] {
                let output = Output { status: code, text: text.into() };
                let all = vec![output; case.good.len()];
                assert!(matches!(judge(&all), Outcome { result: FAILED, .. }), "{number}: {text:?} {code:?}");
            }
        }
        // No output counts with another exit status, except that of a pause.
        for at in 0..case.good.len() {
            for code in [None, Some(5)] {
                let mut failed = case.good.clone();
                failed[at].status = code;
                let is_pause = case.good.len() == 4 && case.good[at] == ok("");
                assert!(is_pause || !matches!(judge(&failed), Outcome { result: PASSED, .. }), "{number}: {failed:?}");
            }
        }
    }
}

#[test]
fn a_feature_that_the_host_lacks_is_skipped() {
    for outcome in [
        metadata_route(&[desired(false), ok("")]),
        logins(&[status(
            2,
            "C:\\var\\lib\\kubelet\\config.json: The system cannot find the file specified.\nSuccessfully processed 0 files; Failed processing 1 files",
        )]),
        hybrid_endpoint(&[status(1060, NO_SERVICE), ok("")]),
        endpoint_again(&[status(1060, NO_SERVICE), ok(""), ok(""), ok("")]),
        overlay_network(&[status(1060, NO_SERVICE), ok(""), ok("")]),
        overlay_adapter(&[status(1060, NO_SERVICE), ok(""), ok("")]),
        overlay_proxy(&[status(1060, NO_SERVICE), ok(""), ok(""), ok("")]),
        lost_log_runner(&[
            ok(RUNNING),
            status(128, "FEHLER: Der Prozess \"kube-log-runner.exe\" wurde nicht gefunden."),
            ok(""),
            ok(RUNNING),
            ok(""),
        ]),
    ] {
        assert!(matches!(outcome, Some(Outcome { result: SKIPPED, .. })), "{outcome:?}");
    }
}

#[test]
fn evidence_is_one_short_line() {
    let printed = ok(format!("\u{1b}[31m\u{202e}a\nb{}", "x".repeat(5_000)));
    let Outcome { result: FAILED, text: why } = outcome(owner, &[printed]) else { panic!() };
    assert!(
        why.chars().count() <= MAX_EVIDENCE_CHARS && !why.chars().any(char::is_control) && !why.contains('\u{202e}'),
        "{why:?}"
    );
}
