//! Tests of `support`.

use std::collections::BTreeMap;

#[cfg(unix)]
use api::host::{Body, ServiceState};

#[cfg(unix)]
use super::super::run;
use super::super::tests::TestHost;
#[cfg(unix)]
use super::super::tests::{request, service};
use super::*;

#[cfg(unix)]
const SECRET: &str = "hunter2hunter2";

fn unpacked(test_host: &TestHost) -> BTreeMap<String, String> {
    let archive = std::fs::File::open(test_host.path(&support_path("gather-1")).unwrap()).unwrap();
    let mut tar = tar::Archive::new(zstd::Decoder::new(archive).unwrap());
    let entries = tar.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut text = Vec::new();
        entry.read_to_end(&mut text).unwrap();
        (entry.path().unwrap().display().to_string(), String::from_utf8_lossy(&text).into_owned())
    });
    entries.collect()
}

/// Collects support data within these limits. Returns the parts, and the entries of the index.
fn collected(test_host: &TestHost, limits: Limits) -> (BTreeMap<String, String>, Vec<Value>) {
    files::make_directory(&test_host.host, &api::host::operation_dir("gather-1")).unwrap();
    let outcome = collect(limits, &test_host.host, "gather-1", &Support { hours: 24 });
    assert_eq!(outcome, Ok(Outcome::Done));
    let parts = unpacked(test_host);
    let index = serde_json::from_str(&parts["index.json"]).unwrap();
    (parts, index)
}

// Unix only, because of the link: Windows lets only some users create links.
#[cfg(unix)]
#[test]
fn the_archive_describes_a_node_and_the_host_does_not_change() {
    let test_host = TestHost::new();
    test_host.join("1");
    test_host.write(r"C:\var\log\kubelet\kubelet.log", b"I0101 kubelet runs\n");
    test_host.write(r"C:\var\log\pods\shop_web\0.log", SECRET.as_bytes());
    let long = [vec![b'x'; usize::try_from(MAX_LOG_BYTES).unwrap()], b"\nthe end\n".to_vec()].concat();
    test_host.write(r"C:\var\log\long.log", &long);
    std::os::unix::fs::symlink("/etc/passwd", test_host.path(r"C:\var\log\link.log").unwrap()).unwrap();
    {
        let mut state = test_host.state();
        let mut failed = service("broken", "", &[]);
        failed.state = ServiceState::Stopped;
        failed.environment.insert("TOKEN".into(), SECRET.into());
        state.services.insert("broken".into(), failed);
        state.exit_codes.insert("broken".into(), 1067);
        state.events.insert("System".into(), vec!["<Event>one</Event>".into()]);
        state.updates = vec!["Package_for_KB5034439~1.0".into()];
        state.hns.insert("/networks".into(), json!([{"Name": "OVN"}]));
    }
    files::make_directory(&test_host.host, &api::host::operation_dir("gather-1")).unwrap();
    let before = test_host.tree();
    let mut asked = request("gather-1", 0, Body::Support(Support { hours: 24 }));
    asked.recipient = api::host::Recipient::default();
    assert_eq!(run(&test_host.host, &asked).outcome, Outcome::Done);
    let parts = unpacked(&test_host);
    for (part, text) in [
        ("machine.json", "win-1"),
        ("services.json", "1067"),
        ("events/System.xml", "<Event>one"),
        ("updates.json", "KB5034439"),
        ("hns/networks.json", "OVN"),
        ("owned.json", "kubelet"),
        ("state.json", "win-1"),
        ("desired.json", "HTTP_PROXY"),
        ("logs/kubelet/kubelet.log", "kubelet runs"),
        ("index.json", "logs of workloads are not collected"),
        ("index.json", "is a link"),
    ] {
        assert!(parts.get(part).is_some_and(|found| found.contains(text)), "{part}: {:?}", parts.get(part));
    }
    assert_eq!(parts["logs/long.log"], "the end\n");
    assert!(!parts["desired.json"].contains("http://proxy"));
    assert!(
        parts.values().all(|text| !text.contains(SECRET) && !text.contains("PRIVATE KEY") && !text.contains("root:"))
    );
    assert!(parts["certificates.json"].contains("system:wicd-node:win-1"), "{}", parts["certificates.json"]);
    files::remove(&test_host.host, &support_path("gather-1")).unwrap();
    let after = test_host.tree();
    let changed: Vec<&String> =
        before.keys().chain(after.keys()).filter(|name| before.get(*name) != after.get(*name)).collect();
    assert!(changed.is_empty(), "changed: {changed:?}");
}

#[test]
fn a_failed_part_does_not_affect_the_others() {
    let test_host = TestHost::new();
    test_host.state().refused.extend(["services ".to_owned(), "events System".to_owned(), "hns /networks".to_owned()]);
    // The test does not use `run`, because its answer would need the list of services as well.
    let (parts, _) = collected(&test_host, LIMITS);
    for part in ["services.json", "events/System.xml", "hns/networks.json"] {
        assert!(!parts.contains_key(part) && parts["index.json"].contains(part), "{part}: {}", parts["index.json"]);
    }
    assert!(parts.contains_key("machine.json") && parts.contains_key("updates.json"));
}

#[test]
fn a_call_that_hangs_affects_only_its_own_part() {
    let test_host = TestHost::new();
    test_host.write(r"C:\var\log\kubelet\kubelet.log", b"I0101 kubelet runs\n");
    // The guard is held until the end of the test.
    let held = std::sync::Arc::new(std::sync::Mutex::new(()));
    let _guard = held.lock().unwrap();
    test_host.state().hung.insert("hns /networks".into(), held.clone());
    let (parts, index) = collected(&test_host, Limits { part: Duration::from_secs(3), all: LIMITS.all });
    let failed: Vec<&Value> = index.iter().filter(|entry| !entry["failed"].is_null()).collect();
    assert_eq!(failed, [&json!({"part": "hns/networks.json", "failed": "no answer within 3 s"})]);
    for part in ["logs/kubelet/kubelet.log", "certificates.json", "machine.json", "hns/endpoints.json", "updates.json"]
    {
        assert!(parts.contains_key(part), "{part} is not in {:?}", parts.keys());
    }
}

#[test]
fn files_of_wicd_are_collected_even_when_the_time_is_up() {
    let test_host = TestHost::new();
    test_host.write(r"C:\var\log\kubelet\kubelet.log", b"I0101 kubelet runs\n");
    let (parts, index) = collected(&test_host, Limits { part: LIMITS.part, all: Duration::ZERO });
    let names: Vec<&str> = parts.keys().map(String::as_str).collect();
    let ours =
        ["certificates.json", "desired.json", "index.json", "logs/kubelet/kubelet.log", "owned.json", "state.json"];
    assert_eq!(names, ours);
    let left_out = json!({"part": "updates.json", "failed": "left out: the parts before it took 0 s"});
    assert!(index.contains(&left_out), "{index:?}");
}

#[test]
fn the_answer_does_not_wait_for_a_call_that_hangs() {
    let test_host = TestHost::new();
    let held = std::sync::Arc::new(std::sync::Mutex::new(()));
    let _guard = held.lock().unwrap();
    test_host.state().hung.insert("machine ".into(), held.clone());
    let error = state(Duration::from_secs(1), &test_host.host).unwrap_err();
    assert_eq!(error.to_string(), "timed out after 1 s while waiting for Windows to describe the host");
}

#[test]
fn limits_drop_the_oldest_logs_and_never_the_index() {
    let test_host = TestHost::new();
    let full = vec![b'x'; usize::try_from(MAX_LOG_BYTES).unwrap() - 1];
    let write = |file: &str, age: u64| {
        test_host.write(file, &full);
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(2_000_000_000 - age);
        std::fs::File::options().write(true).open(test_host.path(file).unwrap()).unwrap().set_modified(at).unwrap();
    };
    // More logs than fit, of the service that sorts first by name.
    for n in 0..=MAX_TOTAL_BYTES / MAX_LOG_BYTES {
        let file = format!(r"C:\var\log\containerd\containerd-{n:02}.log");
        write(&file, n);
    }
    for (file, age) in [
        (r"C:\var\log\kubelet\kubelet.log", 100),
        (r"C:\var\log\wicd\wicd.log", 101),
        (r"C:\var\log\wicd\old.log", 900),
    ] {
        write(file, age);
    }
    test_host.state().events.insert("System".into(), vec!["x".repeat(MAX_EVENTS_BYTES - 10), "y".repeat(20)]);
    let (parts, index) = collected(&test_host, LIMITS);
    for part in
        ["logs/kubelet/kubelet.log", "logs/wicd/wicd.log", "logs/wicd/old.log", "logs/containerd/containerd-00.log"]
    {
        assert!(parts.contains_key(part), "{part} is not in {:?}", parts.keys());
    }
    let oldest = format!("logs/containerd/containerd-{:02}.log", MAX_TOTAL_BYTES / MAX_LOG_BYTES);
    assert!(!parts.contains_key(&oldest));
    assert!(index.iter().any(|e| e["part"] == oldest.as_str() && e["failed"] == "the archive is full"), "{index:?}");
    assert!(parts["events/System.xml"].len() <= MAX_EVENTS_BYTES && !parts["events/System.xml"].contains('y'));
}

#[test]
fn the_index_is_limited() {
    let test_host = TestHost::new();
    let target = test_host.path(r"C:\x.tar.zst").unwrap();
    let file = File::create(&target).unwrap();
    let tar = tar::Builder::new(Encoder::new(file, LEVEL).unwrap());
    let mut archive = Archive { tar, bytes: MAX_TOTAL_BYTES, index: Vec::new() };
    for n in 0..=MAX_INDEX_ENTRIES {
        archive.failed(&n.to_string(), "is a link");
    }
    archive.finish_index().unwrap();
    archive.tar.into_inner().and_then(Encoder::finish).unwrap();
    let mut tar = tar::Archive::new(zstd::Decoder::new(File::open(target).unwrap()).unwrap());
    let mut text = String::new();
    tar.entries().unwrap().next().unwrap().unwrap().read_to_string(&mut text).unwrap();
    let index: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(index.len(), MAX_INDEX_ENTRIES + 1);
    assert_eq!(index[MAX_INDEX_ENTRIES]["failed"], "the index has 1 more entries, which are left out");
}

#[test]
fn the_newest_log_of_each_service_comes_first() {
    let log = |directory: &str, name: &str, modified: u64| Log {
        directory: format!(r"C:\var\log\{directory}"),
        file: name.to_owned(),
        modified,
    };
    for (about, logs, expected) in [
        ("none", vec![], ""),
        ("newest first", vec![log("a", "1", 1), log("a", "3", 3), log("a", "2", 2)], "3 2 1"),
        ("one of each", vec![log("a", "1", 9), log("a", "2", 8), log("b", "3", 1)], "1 3 2"),
        (
            "kubelet first",
            vec![log("a", "1", 9), log("KUBELET", "2", 1), log("kubelet", "3", 0), log("a", "4", 8)],
            "2 1 3 4",
        ),
        ("by name at one time", vec![log("a", "2", 1), log("a", "1", 1)], "1 2"),
    ] {
        let order: Vec<String> = in_order(logs).into_iter().map(|log| log.file).collect();
        assert_eq!(order.join(" "), expected, "{about}");
    }
}
