//! Tests which inventories of a pool the API server accepts and which it refuses.

use anyhow::Result;
use serde_json::{Value, json};

use crate::crd::{
    Expected::{self, Refused, Taken},
    check, host, merge, pool, specs,
};

#[tokio::test]
async fn inventory() -> Result<()> {
    let hosts = |hosts: Vec<Value>| json!({"inventory": {"hosts": hosts}});
    let many = |n: usize| hosts((0..n).map(|i| host(&format!("win-{i}"))).collect());
    let source = "exactly one source of hosts";
    check(specs(&[
        ("one host", json!({}), Taken),
        ("no host", hosts(vec![]), Taken),
        ("no source", json!({"inventory": {"hosts": null}}), Refused(source)),
        ("a thousand hosts", many(1000), Taken),
        ("too many hosts", many(1001), Refused("must have at most 1000 items")),
        ("two hosts of a name", hosts(vec![host("win-1"), host("win-1")]), Refused("Duplicate value")),
        ("two hosts", hosts(vec![host("win-1"), host("win-2")]), Taken),
    ]))
    .await
}

#[tokio::test]
async fn fields_of_a_host() -> Result<()> {
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
        add("name", json!(name), Taken);
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
        add("address", json!(address), Taken);
    }
    for address in
        ["10.0.0.1 ", "a b", "user@host", "[::1]", "10.0.0.1/24", "host:22", "fe80::1%eth0", "-host", "a..", "a\nb"]
    {
        add("address", json!(address), Refused("must be an IPv4 address, an IPv6 address"));
    }
    add("address", json!(""), Refused("should be at least 1 chars"));
    add("address", Value::Null, Refused("Required value"));
    for (port, verdict) in
        [(0, Refused("greater than or equal to 1")), (65536, Refused("less than or equal to 65535")), (22, Taken)]
    {
        add("port", json!(port), verdict);
    }
    for user in ["Administrator", r"FACTORY\svc", "svc@factory.example.com", "Büro", "Local Admin"] {
        add("username", json!(user), Taken);
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
        add("hostKey", json!(host_key), Taken);
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
    add("labels", json!(labels(32)), Taken);
    add("labels", json!(labels(33)), Refused("must have at most 32 items"));
    for key in ["example.com/hall", "node-role.kubernetes.io/factory"] {
        add("labels", json!({key: "b"}), Taken);
    }
    for key in ["kubernetes.io/os", "windowsmachineconfig.openshift.io/pool"] {
        add("labels", json!({key: "b"}), Refused("belong to others"));
    }
    add("labels", json!({"node-role.kubernetes.io/master": ""}), Refused("no role of a control plane"));
    add("labels", json!({"a": "b c"}), Refused("labels must have values"));
    let taint = |key: &str| json!([{"key": key, "effect": "NoExecute"}]);
    add("taints", taint("hall"), Taken);
    add("taints", taint("a b"), Refused("must be letters, digits"));
    add("taints", taint("node.kubernetes.io/not-ready"), Refused("taints with a key under"));
    add("taints", json!([{"key": "hall", "effect": "Never"}]), Refused("Unsupported value"));
    check(cases).await
}

#[tokio::test]
async fn sources() -> Result<()> {
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
    check(specs(&[
        ("a ConfigMap", only(json!({"configMapRef": {"name": "windows-instances"}})), Taken),
        ("a MachineSet", only(json!({"machineSetRef": {"name": "paint"}})), Taken),
        ("Machines without an owner", only(json!({"machineSetRef": {}})), Taken),
        ("of Cluster API", only(json!({"machineSetRef": {"group": "cluster.x-k8s.io", "name": "paint"}})), Taken),
        ("of another owner", only(json!({"machineSetRef": {"group": "example.com"}})), Refused("Unsupported value")),
        ("Git", git(json!({})), Taken),
        ("an OCI artifact", flux("OCIRepository"), Taken),
        ("a Bucket", flux("Bucket"), Refused("Unsupported value")),
        ("hosts and Git", json!({"inventory": {"git": {"url": "https://a/b.git"}}}), Refused(source)),
        ("two others", only(json!({"configMapRef": {"name": "a"}, "machineSetRef": {}})), Refused(source)),
        (
            "Strict, and keys in files",
            {
                let mut spec = git(json!({}));
                merge(&mut spec, &json!({"ssh": {"hostKeyPolicy": "Strict"}}));
                spec
            },
            Taken,
        ),
        ("a path", git(json!({"path": "halls/..a/b..yaml"})), Taken),
        ("a path that leads out", git(json!({"path": "halls/../../x"})), Refused("must not contain `..`")),
        (
            "out of an artifact",
            only(json!({"sourceRef": {"kind": "GitRepository", "name": "a", "namespace": "b", "path": ".."}})),
            Refused("must not contain `..`"),
        ),
        ("ssh", git(json!({"url": "ssh://git@git.example.com:2222/hosts"})), Taken),
        ("not encrypted", git(json!({"url": "http://git.example.com/hosts"})), Refused(url)),
        ("as scp writes it", git(json!({"url": "git@git.example.com:hosts"})), Refused(url)),
        ("a file", git(json!({"url": "file:///etc/hosts"})), Refused(url)),
        ("a password in the URL", git(json!({"url": "https://me:secret@git.example.com/hosts"})), Refused(url)),
        ("a password for ssh", git(json!({"url": "ssh://git:secret@git.example.com/hosts"})), Refused(url)),
        ("a token", git(json!({"url": "https://git.example.com/hosts?token=secret"})), Refused(url)),
        ("a token for ssh", git(json!({"url": "ssh://git@git.example.com/hosts?secret"})), Refused(url)),
        ("a commit", git(json!({"ref": {"commit": "0123456789abcdef0123456789abcdef01234567"}})), Taken),
        ("part of a commit", git(json!({"ref": {"commit": "0123456"}})), Refused("must be a full commit hash")),
        ("an interval", git(json!({"intervalSeconds": 1})), Taken),
        ("an interval as text", git(json!({"intervalSeconds": "5m"})), Refused("must be of type integer")),
        ("no interval", git(json!({"intervalSeconds": 0})), Refused("greater than or equal to 1")),
        ("a week", git(json!({"intervalSeconds": 604_800})), Taken),
        ("more than a week", git(json!({"intervalSeconds": 604_801})), Refused("less than or equal to 604800")),
        ("signed commits", git(json!({"verify": {"secretRef": {"name": "keys"}}})), Taken),
        ("signed tags", git(json!({"verify": {"mode": "TagAndHEAD", "secretRef": {"name": "keys"}}})), Taken),
        ("without a signature", git(json!({"verify": {}})), Refused("Required value")),
        ("a share", json!({"inventory": {"removal": {"maxRemovals": "10%"}}}), Taken),
        ("a number", json!({"inventory": {"removal": {"maxRemovals": 3}}}), Taken),
        ("none", json!({"inventory": {"removal": {"maxRemovals": 0}}}), Refused("a whole number of at least 1")),
    ]))
    .await
}
