//! Tests which inventories of a pool the API server accepts and which it refuses.

use anyhow::Result;
use serde_json::{Value, json};

use crate::crd::{
    Expected::{self, Refused, Valid},
    check, host, merge, pool, specs,
};

#[tokio::test]
async fn lists_of_hosts_are_validated() -> Result<()> {
    let hosts = |hosts: Vec<Value>| json!({"inventory": {"hosts": hosts}});
    let many = |n: usize| hosts((0..n).map(|i| host(&format!("win-{i}"))).collect());
    let source = "exactly one source of hosts";
    check(specs([
        (json!({}), Valid),
        (hosts(vec![]), Valid),
        (json!({"inventory": {"hosts": null}}), Refused(source)),
        (many(1000), Valid),
        (many(1001), Refused("must have at most 1000 items")),
        (hosts(vec![host("win-1"), host("win-1")]), Refused("Duplicate value")),
        (hosts(vec![host("win-1"), host("win-2")]), Valid),
    ]))
    .await
}

#[tokio::test]
async fn fields_of_a_host_are_validated() -> Result<()> {
    let one = |patch: Value| {
        let mut host = host("win-1");
        merge(&mut host, &patch);
        json!({"inventory": {"hosts": [host]}})
    };
    let mut cases = Vec::new();
    let mut add = |field: &'static str, value: Value, verdict: Expected| {
        cases.push((format!("{field} {value}"), pool("case", &one(json!({field: value}))), verdict));
    };
    let long = "a".repeat(64);
    for name in ["a", "7", "win-1", "win.1", "ip-10-0-1-2.ec2.internal", &long[..63]] {
        add("name", json!(name), Valid);
    }
    for name in ["Win-1", "win_1", "win..1", ".win", "win.-1", "-win", "win-", "win 1", "wïn"] {
        add("name", json!(name), Refused("must be lower-case letters, digits and `-`"));
    }
    add("name", json!(""), Refused("should be at least 1 chars"));
    add("name", json!(long), Refused("may not be more than 63"));
    for address in [
        "10.0.0.1",
        "2001:db8::1",
        "::1",
        "::ffff:10.0.0.1",
        "win-1",
        "win-1.example.com",
        "win-1.example.com.",
        "WIN-1.Example.COM",
    ] {
        add("address", json!(address), Valid);
    }
    for address in
        ["10.0.0.1 ", "a b", "user@host", "[::1]", "10.0.0.1/24", "host:22", "fe80::1%eth0", "-host", "a..", "a\nb"]
    {
        add("address", json!(address), Refused("must be an IPv4 address, an IPv6 address"));
    }
    add("address", json!(""), Refused("should be at least 1 chars"));
    add("address", Value::Null, Refused("Required value"));
    for (port, verdict) in
        [(0, Refused("greater than or equal to 1")), (65536, Refused("less than or equal to 65535")), (22, Valid)]
    {
        add("port", json!(port), verdict);
    }
    for user in ["Administrator", r"FACTORY\svc", "svc@factory.example.com", "Büro", "Local Admin"] {
        add("username", json!(user), Valid);
    }
    for user in [" a", "a:b", "a\"b", "a/b"] {
        add("username", json!(user), Refused("must be a Windows user name"));
    }
    add("username", json!(""), Refused("should be at least 1 chars"));
    let fingerprint = "SHA256:mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE";
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";
    for host_key in
        [fingerprint, &format!("{fingerprint}="), key, "ecdsa-sha2-nistp256 AAAA", "sk-ssh-ed25519@openssh.com AAAA="]
    {
        add("hostKey", json!(host_key), Valid);
    }
    for host_key in [
        "",
        "SHA256:short",
        "MD5:00:11",
        "AAAA",
        "ssh-ed25519",
        "ssh-ed25519  AAAA",
        &format!("{key} comment"),
        &format!("{key}\n"),
    ] {
        add("hostKey", json!(host_key), Refused("must be the fingerprint"));
    }
    let labels = |n: usize| (0..n).map(|i| (format!("l{i}"), json!(""))).collect::<serde_json::Map<_, _>>();
    add("labels", json!(labels(32)), Valid);
    add("labels", json!(labels(33)), Refused("must have at most 32 items"));
    for key in ["example.com/hall", "node-role.kubernetes.io/factory"] {
        add("labels", json!({key: "b"}), Valid);
    }
    for key in ["kubernetes.io/os", "windowsmachineconfig.openshift.io/pool"] {
        add("labels", json!({key: "b"}), Refused("are reserved"));
    }
    add("labels", json!({"node-role.kubernetes.io/master": ""}), Refused("cannot have the role of a control plane"));
    add("labels", json!({"a": "b c"}), Refused("labels must have values"));
    let taint = |key: &str| json!([{"key": key, "effect": "NoExecute"}]);
    add("taints", taint("hall"), Valid);
    add("taints", taint("a b"), Refused("must be letters, digits"));
    add("taints", taint("node.kubernetes.io/not-ready"), Refused("taints with a key under"));
    add("taints", json!([{"key": "hall", "effect": "Never"}]), Refused("Unsupported value"));
    check(cases).await
}

#[tokio::test]
async fn sources_are_validated() -> Result<()> {
    let only = |source: Value| {
        let mut inventory = json!({"hosts": null});
        merge(&mut inventory, &source);
        json!({"inventory": inventory})
    };
    let git = |fields: Value| {
        let mut git = json!({"url": "https://git.example.com/hosts.git"});
        merge(&mut git, &fields);
        only(json!({"git": git}))
    };
    let flux = |kind: &str| only(json!({"sourceRef": {"kind": kind, "name": "hosts", "namespace": "flux-system"}}));
    let (source, url) = ("exactly one source of hosts", "must begin with https:// or ssh://");
    check(specs([
        (only(json!({"configMapRef": {"name": "windows-instances"}})), Valid),
        (only(json!({"machineSetRef": {"name": "paint"}})), Valid),
        (only(json!({"machineSetRef": {}})), Valid),
        (only(json!({"machineSetRef": {"group": "cluster.x-k8s.io", "name": "paint"}})), Valid),
        (only(json!({"machineSetRef": {"group": "example.com"}})), Refused("Unsupported value")),
        (git(json!({})), Valid),
        (flux("OCIRepository"), Valid),
        (flux("Bucket"), Refused("Unsupported value")),
        (json!({"inventory": {"git": {"url": "https://a/b.git"}}}), Refused(source)),
        (only(json!({"configMapRef": {"name": "a"}, "machineSetRef": {}})), Refused(source)),
        // The files in Git can declare the host keys.
        (
            json!({"inventory": {"hosts": null, "git": {"url": "ssh://git/a"}}, "ssh": {"hostKeyPolicy": "Strict"}}),
            Valid,
        ),
        (git(json!({"path": "halls/..a/b..yaml"})), Valid),
        (git(json!({"path": "halls/../../x"})), Refused("must not contain `..`")),
        (
            only(json!({"sourceRef": {"kind": "GitRepository", "name": "a", "namespace": "b", "path": ".."}})),
            Refused("must not contain `..`"),
        ),
        (git(json!({"url": "ssh://git@git.example.com:2222/hosts"})), Valid),
        (git(json!({"url": "http://git.example.com/hosts"})), Refused(url)),
        (git(json!({"url": "git@git.example.com:hosts"})), Refused(url)),
        (git(json!({"url": "file:///etc/hosts"})), Refused(url)),
        (git(json!({"url": "https://me:secret@git.example.com/hosts"})), Refused(url)),
        (git(json!({"url": "ssh://git:secret@git.example.com/hosts"})), Refused(url)),
        (git(json!({"url": "https://git.example.com/hosts?token=secret"})), Refused(url)),
        (git(json!({"url": "ssh://git@git.example.com/hosts?secret"})), Refused(url)),
        (git(json!({"ref": {"commit": "0123456789abcdef0123456789abcdef01234567"}})), Valid),
        (git(json!({"ref": {"commit": "0123456"}})), Refused("must be a full commit hash")),
        (git(json!({"intervalSeconds": 1})), Valid),
        (git(json!({"intervalSeconds": "5m"})), Refused("must be of type integer")),
        (git(json!({"intervalSeconds": 0})), Refused("greater than or equal to 1")),
        (git(json!({"intervalSeconds": 604_800})), Valid),
        (git(json!({"intervalSeconds": 604_801})), Refused("less than or equal to 604800")),
        (git(json!({"verify": {"secretRef": {"name": "keys"}}})), Valid),
        (git(json!({"verify": {"mode": "TagAndHEAD", "secretRef": {"name": "keys"}}})), Valid),
        (git(json!({"verify": {}})), Refused("Required value")),
        (json!({"inventory": {"maxRemovals": "10%"}}), Valid),
        (json!({"inventory": {"maxRemovals": 3}}), Valid),
        (json!({"inventory": {"maxRemovals": 0}}), Refused("a whole number of at least 1")),
    ]))
    .await
}
