//! Tests of host lists: files that are accepted, and faults with file and line.

use proptest::prelude::*;

use super::*;

fn file(path: &str, text: &str) -> File {
    File { path: path.into(), bytes: text.into() }
}

fn names(files: &[File]) -> Vec<String> {
    let entries = read(files).unwrap_or_else(|findings| panic!("{}", said(&findings).join("\n")));
    entries.iter().map(|e| format!("{}:{} {} {}", e.file, e.line, e.host.name, e.host.address)).collect()
}

fn said(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(ToString::to_string).collect()
}

const HEAD: &str = "apiVersion: windowsmachineconfig.openshift.io/v1alpha1\nkind: WindowsHostInventory\n";

#[test]
fn every_format_is_read() {
    let inventory = format!(
        "{HEAD}metadata:\n  name: factory\nhosts:\n- name: a\n  address: 10.0.0.1\n- name: b\n  address: ::1\n"
    );
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: windows-instances\ndata:\n  10.0.0.1: |-\n    username=core\n  win-1: username=Administrator\n";
    let json = "[\n\t{\"name\": \"a\", \"address\": \"10.0.0.1\", \"port\": 22},\n\t{\"name\": \"b\",\n\t \"address\": \"\\u0062\"}\n]\n";
    for (path, text, read) in [
        ("i.yaml", inventory.as_str(), vec!["i.yaml:6 a 10.0.0.1", "i.yaml:8 b ::1"]),
        ("i.yaml", "- name: a\n  address: 10.0.0.1\n", vec!["i.yaml:1 a 10.0.0.1"]),
        ("i.yaml", "# one\nname: a\naddress: 10.0.0.1\n", vec!["i.yaml:2 a 10.0.0.1"]),
        ("i.yaml", "hosts:\n  - {name: a, address: 10.0.0.1}\n", vec!["i.yaml:2 a 10.0.0.1"]),
        ("i.yaml", "name: a\naddress: a\n---\n- name: b\n  address: b\n---\n", vec!["i.yaml:1 a a", "i.yaml:4 b b"]),
        ("i.yaml", "\u{feff}name: a\r\naddress: a\r\n", vec!["i.yaml:1 a a"]),
        ("i.yaml", map, vec!["i.yaml:6  10.0.0.1", "i.yaml:8  win-1"]),
        ("i.json", json, vec!["i.json:2 a 10.0.0.1", "i.json:3 b b"]),
        ("i.yaml", "hosts: []\n", vec![]),
        ("i.yaml", "[]\n", vec![]),
        ("i.yaml", "kind: ConfigMap\nmetadata: {name: windows-instances}\ndata: {}\n", vec![]),
    ] {
        assert_eq!(names(&[file(path, text)]), read, "{text}");
    }
}

#[test]
fn every_field_is_read() {
    let text = "
name: a
address: a.example.com
port: 2222
username: DOMAIN\\core
hostKey: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti
labels:
  example.com/hall: b
  'line': '7'
taints:
- {key: hall, value: b, effect: NoExecute}
";
    let [entry] = read(&[file("a.yaml", text)]).unwrap().try_into().unwrap();
    let host = entry.host;
    assert_eq!((host.port, host.username.as_deref()), (Some(2222), Some(r"DOMAIN\core")));
    assert_eq!(host.labels.unwrap()["line"], "7");
    assert_eq!(host.taints.unwrap()[0].effect, api::TaintEffect::NoExecute);
    assert!(host.host_key.unwrap().starts_with("ssh-ed25519 "));
}

#[test]
fn other_manifests_are_ignored() {
    let others = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a.conf: 'b=c'}\n---\nkind: Kustomization\n---\nkind: WindowsNodePool\napiVersion: windowsmachineconfig.openshift.io/v1alpha1\n";
    let files = [file("other.yaml", others), file("a.yaml", "name: a\naddress: a\n")];
    assert_eq!(names(&files), ["a.yaml:1 a a"]);
    assert_eq!(
        said(&read(&files[..1]).unwrap_err()),
        ["there are no hosts in other.yaml: for an empty inventory, write `hosts: []`"]
    );
    assert_eq!(
        said(&read(&[]).unwrap_err()),
        ["there is no *.yaml, *.yml or *.json file: for an empty inventory, write `hosts: []`"]
    );
}

#[test]
fn each_fault_is_reported_with_its_line_and_the_remedy() {
    let bad_api = HEAD.replace("v1alpha1", "v1") + "hosts: []\n";
    let extra = format!("{HEAD}hosts: []\nhost: []\n");
    let none = HEAD.to_owned();
    for (text, line, part) in [
        ("name: a\nadress: a\n", 2, "unknown field `adress`, did you mean `address`?"),
        ("name: a\nadress: a\n", 1, "a host needs `address`"),
        ("name: Win_1\naddress: a\n", 1, "`name`: \"Win_1\" cannot be used: use lower-case letters"),
        ("name: a\naddress: 10.0.0.256\n", 2, "is neither an IPv4 or IPv6 address"),
        ("name: a\naddress: '[::1]'\n", 2, "without brackets or zone"),
        ("name: a\naddress: a\nport: 65536\n", 3, "`port`: \"65536\" is not a number from 1 to 65535"),
        ("name: a\naddress: a\nport: '22'\n", 3, "without quotes"),
        ("name: a\naddress: a\nport: [22]\n", 3, "`port` must be a number, but is a list"),
        ("name: a\naddress: a\nport: 022\n", 3, "kubectl reads an octal number: write 22"),
        ("name: a\naddress: ' 10.20.0.15'\n", 2, "\" 10.20.0.15\" cannot be used"),
        ("name: a\naddress: \"10.0.0.1\\u200B\"\n", 2, "\"10.0.0.1\\u{200b}\" cannot be used"),
        ("kind: List\nitems: {}\n", 2, "`items` must be a list"),
        (
            "kind: List\nitems:\n- kind: ConfigMap\n  data: {10.0.0.1: username=b, 10.0.0.2: user=a}\n",
            4,
            "does not begin with `username=`",
        ),
        ("kind: ConfigMap\ndata: {10.0.0.1: username=a}\nbinaryData: {10.0.0.2: '%'}\n", 3, "write `username=<name>`"),
        (
            "kind: ConfigMap\nmetadata: {name: windows-instances}\nbinaryData: {10.0.0.2: dXNlcm5hbWU9Svw=}\n",
            3,
            "not text in UTF-8",
        ),
        ("name: 12\naddress: a\n", 1, "`name`: 12 is read as a number: put it in quotes"),
        ("name: no\naddress: a\n", 1, "put it in quotes"),
        ("name: ''\naddress: a\n", 1, "`name` is empty"),
        ("name: a\naddress: a\nusername: a=b\n", 3, "`username`"),
        ("name: a\naddress: a\nhostKey: SHA256:short\n", 3, "`hostKey`"),
        ("name: a\naddress: a\nhostKey: ssh-ed25519 AAAA\n", 3, "is not a public key"),
        ("name: a\naddress: a\nlabels:\n  a b: c\n", 4, "is not a valid key of a label"),
        ("name: a\naddress: a\nlabels:\n  a: b c\n", 4, "is not a valid value of a label"),
        ("name: a\naddress: a\nlabels:\n  a: true\n", 4, "`labels.a`: true is read as a boolean: put it in quotes"),
        (
            "name: a\naddress: a\nlabels:\n  node-role.kubernetes.io/master: ''\n",
            4,
            "this role is for control plane nodes: remove the label",
        ),
        ("name: a\naddress: a\ntaints: hall\n", 3, "`taints` must be a list, but is text"),
        (
            "name: a\naddress: a\ntaints:\n- key: hall\n  effect: Never\n",
            5,
            "`taints[0].effect`: \"Never\" must be one of NoSchedule",
        ),
        ("name: a\naddress: a\ntaints:\n- effect: NoExecute\n", 4, "needs `key`"),
        (
            "name: a\naddress: a\ntaints:\n- {key: hall, effect: NoExecute}\n- {key: node.kubernetes.io/x, effect: NoExecute}\n",
            5,
            "is not a valid key of a taint",
        ),
        ("name: a\nname: b\naddress: a\n", 2, "duplicate key `name`"),
        ("- name: a\n  address: a\n- name: a\n  address: b\n", 3, "duplicate name `a` (first defined at i.yaml:1)"),
        (
            "- name: a\n  address: fd00::1\n- name: b\n  address: FD00:0::1\n",
            3,
            "duplicate address `FD00:0::1` (first defined at i.yaml:1)",
        ),
        ("- 10.0.0.1\n", 1, "a host must be an object, but is text"),
        ("hosts: {a: b}\n", 1, "`hosts` must be a list, but is an object"),
        ("resources:\n- x.yaml\n", 1, "not a host list, it begins with `resources`: add `kind: WindowsHostInventory`"),
        ("just text\n", 1, "this is text, not a host list"),
        ("# nothing\n", 1, "the file is empty"),
        ("", 1, "the file is empty"),
        ("kind: WindowsHostInventry\nhosts: []\n", 1, "did you mean `WindowsHostInventory`?"),
        (bad_api.as_str(), 1, "needs `apiVersion: windowsmachineconfig.openshift.io/v1alpha1`"),
        (extra.as_str(), 4, "unknown field `host`, did you mean `hosts`?"),
        (none.as_str(), 1, "`hosts` is missing"),
        ("kind: ConfigMap\nmetadata: {name: windows-instances}\n", 1, "`data` is missing"),
        ("kind: ConfigMap\ndata:\n  10.0.0.1: username=a\n  10.0.0.2: user=a\n", 4, "does not begin with `username=`"),
        ("kind: ConfigMap\ndata:\n  10.0.0.1: username=a\n  10.0.0.2: {}\n", 4, "write `username=<name>`"),
    ] {
        let findings = read(&[file("i.yaml", text)]).unwrap_err();
        let there = findings.iter().any(|f| f.line == Some(line) && f.message.contains(part));
        assert!(there, "{text}\n{}", said(&findings).join("\n"));
    }
    let findings = read(&[File { path: "b.yaml".into(), bytes: b"a: 1\nb: \xff\n".into() }]).unwrap_err();
    assert_eq!(
        said(&findings),
        ["b.yaml:2: the file cannot be read: it is not text in UTF-8 (line 2): save it in UTF-8"]
    );
    let findings = read(&[file("b.json", "[\n{\"name\": \"a\",}\n]")]).unwrap_err();
    assert!(said(&findings)[0].starts_with("b.json:2: the file is not JSON: "), "{findings:?}");
}

#[test]
fn all_faults_are_reported_in_the_order_of_files_and_lines() {
    let files = [
        file("b.yaml", "- name: A\n  address: a\n- name: b\n"),
        file("a.yaml", "x: y\n"),
        file("c.yaml", "- name: c\n  address: c\n"),
        file("d.yaml", "- name: c\n  address: C\n"),
    ];
    let lines: Vec<String> = said(&read(&files).unwrap_err()).iter().map(|s| s.chars().take(8).collect()).collect();
    assert_eq!(lines, ["a.yaml:1", "b.yaml:1", "b.yaml:3", "d.yaml:1", "d.yaml:1"]);
}

/// Checks that the files in `examples/inventory` are valid inventories, and that the guide shows them as they are.
#[test]
fn the_examples_are_read() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/inventory");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let page = include_str!("../../../docs/guide/inventory.md");
        let text = str::from_utf8(&bytes).unwrap();
        assert!(page.contains(text), "{} differs from the guide", path.display());
        let found = names(&[File { path: path.file_name().unwrap().to_string_lossy().into(), bytes }]);
        assert!(!found.is_empty(), "{}", path.display());
        seen += 1;
    }
    assert!(seen >= 4, "{seen}");
}

#[test]
fn thousands_of_hosts_are_read() {
    let host = |i| format!("- name: win-{i}\n  address: 10.0.{}.{}\n", i / 256, i % 256);
    let text = (0..5000).map(host).collect::<Vec<_>>().concat();
    let entries = read(&[file("a.yaml", &text)]).unwrap();
    assert_eq!((entries.len(), entries[4999].line), (5000, 9999));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300), json: bool) {
        let path = if json { "x.json" } else { "x.yaml" };
        let _ = read(&[File { path: path.into(), bytes }]);
    }

    #[test]
    fn accepted_hosts_are_valid_for_the_api(name in "[-a-zA-Z0-9._]{0,70}", address in "[-a-f0-9.:]{0,20}", port in -1..70_000_i32) {
        let text = format!("- name: '{name}'\n  address: '{address}'\n  port: {port}\n");
        if let Ok(entries) = read(&[file("a.yaml", &text)]) {
            let host = &entries[0].host;
            prop_assert_eq!((&host.name, &host.address, host.port), (&name, &address, Some(port)));
            prop_assert!(!name.is_empty() && name.len() <= 63 && (1..=65535).contains(&port));
            prop_assert!(wnp_core::inventory::address::is_address(&address));
        }
    }

    #[test]
    fn near_misses_of_yaml_do_not_panic(text in "((name|address|hosts|kind|data|port|labels|<<|-|a|10\\.0\\.0\\.1|&a|\\*a|!|ConfigMap|username=x)(: |\n|\n  |- | )){0,30}") {
        let _ = read(&[file("a.yaml", &text)]);
    }
}
