use std::collections::BTreeMap;

#[cfg(unix)]
use api::host::{Body, ServiceState};

#[cfg(unix)]
use super::super::run;
use super::super::tests::Bed;
#[cfg(unix)]
use super::super::tests::{request, service};
use super::*;

#[cfg(unix)]
const SECRET: &str = "hunter2hunter2";

fn unpacked(bed: &Bed) -> BTreeMap<String, String> {
    let archive = std::fs::File::open(bed.host.path(&support_path("gather-1")).unwrap()).unwrap();
    let mut tar = tar::Archive::new(zstd::Decoder::new(archive).unwrap());
    let entries = tar.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut text = Vec::new();
        entry.read_to_end(&mut text).unwrap();
        (entry.path().unwrap().display().to_string(), String::from_utf8_lossy(&text).into_owned())
    });
    entries.collect()
}

#[cfg(unix)]
fn collected(bed: &Bed) -> BTreeMap<String, String> {
    files::make_directory(&bed.host, &api::host::operation_dir("gather-1")).unwrap();
    let mut asked = request("gather-1", 0, Body::Support(Support { hours: 24 }));
    asked.recipient = api::host::Recipient::default();
    assert_eq!(run(&bed.host, &asked).outcome, Outcome::Done);
    unpacked(bed)
}

// With a link, as Windows lets only some users make one.
#[cfg(unix)]
#[test]
fn a_host_that_is_a_node_is_described_and_not_changed() {
    let bed = Bed::new();
    bed.join("1");
    bed.write(r"C:\var\log\kubelet\kubelet.log", b"I0101 kubelet runs\n");
    bed.write(r"C:\var\log\pods\shop_web\0.log", SECRET.as_bytes());
    let long = [vec![b'x'; usize::try_from(MOST_OF_A_LOG).unwrap()], b"\nthe end\n".to_vec()].concat();
    bed.write(r"C:\var\log\long.log", &long);
    std::os::unix::fs::symlink("/etc/passwd", bed.host.path(r"C:\var\log\link.log").unwrap()).unwrap();
    {
        let mut state = bed.host.state();
        let mut failed = service("broken", "", &[]);
        failed.state = ServiceState::Stopped;
        failed.environment.insert("TOKEN".into(), SECRET.into());
        state.services.insert("broken".into(), failed);
        state.exit_codes.insert("broken".into(), 1067);
        state.events.insert("System".into(), vec!["<Event>one</Event>".into()]);
        state.updates = vec!["Package_for_KB5034439~1.0".into()];
        state.hns.insert("/networks".into(), json!([{"Name": "OVN"}]));
    }
    files::make_directory(&bed.host, &api::host::operation_dir("gather-1")).unwrap();
    let (before, epoch) = (bed.tree(), files::read(&bed.host, super::super::EPOCH).unwrap());
    let parts = collected(&bed);
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
    files::remove(&bed.host, &support_path("gather-1")).unwrap();
    let after = bed.tree();
    let changed: Vec<&String> =
        before.keys().chain(after.keys()).filter(|name| before.get(*name) != after.get(*name)).collect();
    assert!(changed.is_empty(), "changed: {changed:?}");
    assert_eq!(files::read(&bed.host, super::super::EPOCH).unwrap(), epoch);
}

#[test]
fn parts_that_fail_do_not_end_the_rest() {
    let bed = Bed::new();
    bed.host.state().refused.extend(["services ".to_owned(), "events System".to_owned(), "hns /networks".to_owned()]);
    // The machine cannot be described in the answer either.
    files::make_directory(&bed.host, &api::host::operation_dir("gather-1")).unwrap();
    let outcome = collect(&bed.host, "gather-1", &Support { hours: 24 }).unwrap();
    assert_eq!(outcome, Outcome::Done);
    let parts = unpacked(&bed);
    for part in ["services.json", "events/System.xml", "hns/networks.json"] {
        assert!(!parts.contains_key(part) && parts["index.json"].contains(part), "{part}: {}", parts["index.json"]);
    }
    assert!(parts.contains_key("machine.json") && parts.contains_key("updates.json"));
}
