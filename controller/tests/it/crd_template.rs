//! Templates of a pool's nodes that the API server accepts, and those that it refuses.

use anyhow::Result;
use serde_json::{Value, json};

use crate::crd::{
    Expected::{self, Refused, Valid},
    check, pool, specs,
};

#[tokio::test]
async fn labels_and_annotations_of_others_are_refused() -> Result<()> {
    let mut cases = Vec::new();
    let mut add = |what: &'static str, key: &str, verdict: Expected| {
        let patch = json!({"template": {"metadata": {what: {key: "x"}}}});
        cases.push((format!("{what} {key}"), pool("case", &patch), verdict));
    };
    for key in [
        "line",
        "example.com/line",
        "node-role.kubernetes.io/factory",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/zone",
    ] {
        add("labels", key, Valid);
    }
    for key in [
        "kubernetes.io/os",
        "beta.kubernetes.io/os",
        "kubernetes.io/hostname",
        "node-restriction.kubernetes.io/a",
        "k8s.io/a",
        "x.k8s.io/a",
        "windowsmachineconfig.openshift.io/byoh",
    ] {
        add("labels", key, Refused("are reserved; only node-role.kubernetes.io/"));
        add("annotations", key, Refused("annotations with a key under"));
    }
    for key in ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"] {
        add("labels", key, Refused("cannot have the role of a control plane"));
    }
    for key in ["a b", "-a", "Example.com/a", "a/b/c"] {
        add("labels", key, Refused("labels must have keys of letters"));
        add("annotations", key, Refused("annotations must have keys of letters"));
    }
    add("annotations", "example.com/contact", Valid);
    add("annotations", "contact", Valid);
    add("annotations", "node.kubernetes.io/a", Refused("annotations with a key under"));
    let many = |n: usize| (0..n).map(|i| (format!("k{i}"), json!(""))).collect::<serde_json::Map<_, _>>();
    for (value, verdict) in [
        ("a_b.C-9", Valid),
        ("", Valid),
        ("x y", Refused("labels must have keys of letters")),
        (&*"a".repeat(64), Refused("may not be more than 63")),
    ] {
        let patch = json!({"template": {"metadata": {"labels": {"line": value}}}});
        cases.push((format!("the value {value}"), pool("case", &patch), verdict));
    }
    for what in ["labels", "annotations"] {
        for (n, verdict) in [(64, Valid), (65, Refused("must have at most 64 items"))] {
            let patch = json!({"template": {"metadata": {what: many(n)}}});
            cases.push((format!("{n} {what}"), pool("case", &patch), verdict));
        }
    }
    check(cases).await
}

#[tokio::test]
async fn taints_are_validated() -> Result<()> {
    let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
    let taints = |list: Vec<Value>| json!({"template": {"spec": {"taints": list}}});
    let others = "taints with a key under";
    check(specs([
        (taints(vec![]), Valid),
        (taints(vec![taint("os")]), Valid),
        (taints(vec![taint("example.com/a_b.C")]), Valid),
        (taints(vec![taint("node.kubernetes.io/unschedulable")]), Refused(others)),
        (taints(vec![taint("windowsmachineconfig.openshift.io/a")]), Refused(others)),
        (taints(vec![taint("x.node.kubernetes.io/a")]), Valid),
        (taints(vec![taint("a b")]), Refused("must be letters, digits")),
        (taints(vec![taint("a/b/c")]), Refused("must be letters, digits")),
        (taints(vec![json!({"key": "a", "value": "b c", "effect": "NoExecute"})]), Refused("must be letters, digits")),
        (taints(vec![json!({"key": "a", "value": "b", "effect": "PreferNoSchedule"})]), Valid),
        (taints(vec![json!({"key": "a", "effect": "Never"})]), Refused("Unsupported value")),
        (taints(vec![json!({"key": "a"})]), Refused("Required value")),
        (taints(vec![taint("a"), taint("a")]), Refused("Duplicate value")),
        (taints(vec![taint("a"), json!({"key": "a", "effect": "NoExecute"})]), Valid),
        (taints((0..33).map(|i| taint(&format!("t{i}"))).collect()), Refused("must have at most 32 items")),
    ]))
    .await
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
async fn settings_of_services_are_validated() -> Result<()> {
    let spec = |spec: Value| json!({"template": {"spec": spec}});
    let kubelet = |kubelet: Value| spec(json!({"kubelet": kubelet}));
    let gc = |low: Value, high: Value| {
        kubelet(json!({"imageGCLowThresholdPercent": low, "imageGCHighThresholdPercent": high}))
    };
    let less =
        "imageGCLowThresholdPercent (80 if not set) must be less than imageGCHighThresholdPercent (85 if not set)";
    let pulls = |registries: &[&str]| spec(json!({"pullSecretRegistries": registries}));
    let gmsa = |accounts: &[&str]| spec(json!({"gmsa": {"accounts": accounts}}));
    let plugin = |file: &str, clsid: &str| spec(json!({"gmsa": {"plugin": {"file": file, "clsid": clsid}}}));
    let proxy = |url: &str| spec(json!({"proxy": {"httpsProxy": url}}));
    let mirrors = |policy: &str| {
        let mirror = json!({"source": "a.example.com", "mirrors": ["b.example.com"], "mirrorSourcePolicy": policy});
        spec(json!({"imageMirrors": [mirror]}))
    };
    let mut cases = specs([
        (kubelet(json!({"systemReserved": {"pid": "1"}})), Refused("no other keys than cpu")),
        (kubelet(json!({"evictionHard": {"pid.available": "1Gi"}})), Refused("no other keys than memory")),
        (kubelet(json!({"cloudProvider": "None"})), Valid),
        (kubelet(json!({"cloudProvider": "aws"})), Refused("Unsupported value: \"aws\"")),
        (gmsa(&["web", "sql_1", "a.b-c"]), Valid),
        (gmsa(&["web$"]), Refused("must be names of accounts without a domain and without $ at the end")),
        (gmsa(&["corp/web"]), Refused("must be names of accounts")),
        (gmsa(&["abcdefghijklmnop"]), Refused("may not be more than 15")),
        (gmsa(&[]), Refused("should have at least 1 items")),
        (gmsa(&["web", "web"]), Refused("Duplicate value")),
        (plugin("CCGAKVPlugin.dll", "{CCC2A336-D7F3-4818-A213-272B7924213E}"), Valid),
        (plugin("a.dll", "{ccc2a336-d7f3-4818-a213-272b7924213e}"), Valid),
        (plugin("a.dll", "CCC2A336-D7F3-4818-A213-272B7924213E00"), Refused("must be a GUID in braces")),
        (plugin("a.dll", r"{CCC2A336-D7F3-4818-A213-..\..\24213E}"), Refused("must be a GUID in braces")),
        (plugin(r"..\a.dll", "{CCC2A336-D7F3-4818-A213-272B7924213E}"), Refused("name of a file")),
        (plugin("a.exe", "{CCC2A336-D7F3-4818-A213-272B7924213E}"), Refused("name of a file")),
        (pulls(&[]), Valid),
        (pulls(&["quay.io/org", "mirror.example.com:5000"]), Valid),
        (pulls(&["quay.io", "quay.io"]), Refused("Duplicate value")),
        (pulls(&["*.io"]), Refused("must be registries")),
        (proxy("http://proxy.example.com:3128"), Valid),
        (spec(json!({"proxy": {}})), Valid),
        (proxy("http://u:p@proxy.example.com:3128"), Refused("without a user name and a password")),
        (proxy("proxy.example.com:3128"), Refused("must be a URL such as")),
        (spec(json!({"proxy": {"noProxy": "a, b"}})), Refused("must be a list with commas")),
        (spec(json!({"trustedCertificates": "-----BEGIN CERTIFICATE-----"})), Valid),
        (spec(json!({"trustedCertificates": "x"})), Refused("must be certificates in PEM")),
        (
            spec(json!({"trustedCertificates": "-----BEGIN CERTIFICATE----- BEGIN PRIVATE KEY"})),
            Refused("without a private key"),
        ),
        (mirrors("NeverContactSource"), Valid),
        (spec(json!({"imageMirrors": [{"source": "a.b", "pull": "Tag"}]})), Refused("Unsupported")),
        (mirrors("Sometimes"), Refused("Unsupported value: \"Sometimes\"")),
        (gc(json!(79), json!(80)), Valid),
        (gc(json!(80), json!(80)), Refused(less)),
        (gc(json!(90), json!(80)), Refused(less)),
        (gc(json!(84), Value::Null), Valid),
        (gc(json!(85), Value::Null), Refused(less)),
        (gc(Value::Null, json!(80)), Refused(less)),
        (gc(Value::Null, json!(81)), Valid),
        (gc(Value::Null, json!(101)), Refused("less than or equal to 100")),
        (kubelet(json!({"maxPods": 0})), Refused("greater than or equal to 1")),
        (kubelet(json!({"maxPods": 1000})), Valid),
        (kubelet(json!({"maxPods": 1001})), Refused("less than or equal to 1000")),
        (kubelet(json!({"containerLogMaxFiles": 1})), Refused("greater than or equal to 2")),
        (spec(json!({"containerd": {"maxConcurrentDownloads": 64}})), Valid),
        (spec(json!({"containerd": {"maxConcurrentDownloads": 0}})), Refused("greater than or equal to 1")),
        (spec(json!({"containerd": {"sandboxImage": "mcr.example.com/oss/pause:3.10@sha256:ab"}})), Valid),
        (spec(json!({"containerd": {"sandboxImage": "a b"}})), Refused("must be the name of an image")),
        (spec(json!({"logs": {"maxSize": "100Mi", "maxAgeSeconds": 3600}})), Valid),
        (spec(json!({"logs": {"level": "Debug"}})), Valid),
        (spec(json!({"logs": {"level": "debug"}})), Refused("Unsupported value: \"debug\"")),
        (spec(json!({"logs": {"maxAgeSeconds": 0}})), Refused("greater than or equal to 3600")),
        (spec(json!({"logs": {"maxSize": "0Mi"}})), Refused("must be a quantity of at least 1Ki")),
        (kubelet(json!({"containerLogMaxSize": "big"})), Refused("must be a quantity of at least 1Ki")),
        (kubelet(json!({"containerLogMaxSize": "10m"})), Refused("must be a quantity of at least 1Ki")),
        (kubelet(json!({"containerLogMaxSize": "1.5Gi"})), Refused("without a fraction")),
        (kubelet(json!({"containerLogMaxSize": 1_048_576})), Valid),
    ]);
    let mut add = |field: &str, key: &str, value: Value, verdict: Expected| {
        cases.push((format!("{field} {key} {value}"), pool("case", &kubelet(json!({field: {key: value}}))), verdict));
    };
    for field in ["systemReserved", "kubeReserved"] {
        for cpu in [json!("500m"), json!("2"), json!(2), json!("0.5"), json!("1.1234"), json!("0")] {
            add(field, "cpu", cpu, Valid);
        }
        for cpu in [json!(""), json!("-1"), json!(-1), json!("2Gi"), json!(1000), json!("two")] {
            add(field, "cpu", cpu, Refused("cpu must be a quantity of CPUs, 0 or more and below 1000"));
        }
        for key in ["memory", "ephemeral-storage"] {
            for size in [json!("2Gi"), json!("1.5Gi"), json!("1Ti"), json!("1500M"), json!(1_073_741_824), json!("1e9")]
            {
                add(field, key, size, Valid);
            }
            for size in [json!(""), json!("2gi"), json!("-1Gi"), json!(-1), json!("10%"), json!("2048m"), json!(512)] {
                add(field, key, size, Refused("memory and ephemeral-storage must be 0 or a quantity of at least 1Ki"));
            }
            add(field, key, json!("1".repeat(33)), Refused("Too long"));
        }
    }
    for key in ["memory.available", "nodefs.available", "imagefs.available"] {
        for left in [json!("500Mi"), json!("1.5Gi"), json!("10%"), json!("0%"), json!(1_048_576)] {
            add("evictionHard", key, left, Valid);
        }
        for left in [json!(""), json!("0"), json!(0), json!("100%"), json!("-1%"), json!("1.5%"), json!("500m")] {
            add(
                "evictionHard",
                key,
                left,
                Refused("each threshold must be a quantity of at least 1Ki or a percentage"),
            );
        }
    }
    check(cases).await
}
