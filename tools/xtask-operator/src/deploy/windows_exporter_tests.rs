//! Tests of the recording rules with promtool, for the windows_exporter of this operator's payload and for the one that WMCO installs.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    alerts_tests::{promtool, series_in},
    windows_exporter_series_tests,
};

/// Series of the payload's windows_exporter that the rules need.
const OURS: &[&str] = &[
    "windows_container_cpu_usage_seconds_total",
    "windows_container_memory_usage_private_working_set_bytes",
    "windows_container_network_receive_bytes_total",
    "windows_container_network_transmit_bytes_total",
    "windows_cpu_info",
    "windows_cpu_time_total",
    "windows_logical_disk_free_bytes",
    "windows_logical_disk_size_bytes",
    "windows_memory_available_bytes",
    "windows_net_bytes_received_total",
    "windows_net_bytes_sent_total",
    "windows_os_visible_memory_bytes",
];
/// Name of `windows_os_visible_memory_bytes` in the windows_exporter of WMCO.
const MEMORY_OF_WMCO: &str = "windows_memory_physical_total_bytes";

/// Returns sets of labels with which a host has a series, without `instance` and `job`. Newer exporters, such as those of WMCO, name the pod of a
/// container.
fn labels(series: &str, host: &str) -> &'static [&'static str] {
    match series {
        "windows_cpu_time_total" => &[r#"core="0,0",mode="idle""#, r#"core="0,0",mode="user""#],
        s if s.starts_with("windows_container_") && host == "ours" => &[r#"container_id="containerd://c1""#],
        s if s.starts_with("windows_container_") => {
            &[r#"container_id="containerd://c2",namespace="shop",pod="shelf",container="web""#]
        }
        _ => &[""],
    }
}

fn rule_file() -> Value {
    let objects = super::objects().unwrap();
    let is_its = |object: &&super::Object| {
        object.kind() == "PrometheusRule" && object.file.starts_with("components/windows-exporter/")
    };
    objects.iter().find(is_its).unwrap().value["spec"].clone()
}

/// Returns the record and the expression of each rule.
fn recordings() -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let rules = rule_file()["groups"][0]["rules"].as_array().unwrap().clone();
    rules.iter().map(|rule| (text(&rule["record"]), text(&rule["expr"]))).collect()
}

#[test]
fn the_rules_need_only_series_of_the_payload_or_of_wmco() {
    let of_rules = recordings().into_iter().flat_map(|(_, expr)| series_in(&expr));
    let needed: BTreeSet<String> = of_rules.filter(|series| series.starts_with("windows_")).collect();
    let known: BTreeSet<String> = OURS.iter().chain([&MEMORY_OF_WMCO]).map(ToString::to_string).collect();
    assert_eq!(needed, known);
    let recorded = windows_exporter_series_tests::recorded();
    let missing: Vec<_> = OURS.iter().filter(|series| !recorded.contains(*series)).collect();
    assert!(missing.is_empty(), "windows_exporter has no {missing:?}");
}

#[test]
fn every_series_is_recorded_for_hosts_of_both_operators() {
    const PODS: [(&str, &str, &str); 2] = [("ours", "c1", "cart"), ("wmcos", "c2", "shelf")];
    let of_container = |(_, container, pod): &(&str, &str, &str)| {
        let labels = format!(r#"container_id="containerd://{container}",namespace="shop",pod="{pod}",container="web""#);
        json!({"series": format!("kube_pod_container_info{{{labels}}}"), "values": "1+0x10"})
    };
    let mut input: Vec<Value> = PODS.iter().map(of_container).collect();
    for host in ["ours", "wmcos"] {
        for series in OURS.iter().chain([&MEMORY_OF_WMCO]) {
            let is_of_other =
                if host == "ours" { *series == MEMORY_OF_WMCO } else { *series == "windows_os_visible_memory_bytes" };
            if is_of_other {
                continue;
            }
            for more in labels(series, host) {
                let values = if *more == r#"core="0,0",mode="idle""# { "0+15x10" } else { "60+30x10" };
                input.push(json!({"series": format!(r#"{series}{{instance="{host}",job="windows-exporter",{more}}}"#), "values": values}));
            }
        }
    }
    // For five minutes, a quarter of the CPU time is idle and half of it is in user mode.
    let hosts = |of: &str| -> Vec<(String, f64)> {
        let value = match of {
            "instance:node_cpu_utilisation:rate1m" => 0.75,
            "instance:node_cpu:rate:sum" | "node_network_receive_bytes_total" | "node_network_transmit_bytes_total" => {
                0.5
            }
            _ => 210.0,
        };
        let job = if of == "instance:node_cpu:rate:sum" { "" } else { r#",job="windows-exporter""# };
        ["ours", "wmcos"].map(|host| (format!(r#"{of}{{instance="{host}"{job}}}"#), value)).into()
    };
    let of_pods = |of: &str| PODS.map(|(_, _, pod)| (format!(r#"{of}{{namespace="shop",pod="{pod}"}}"#), 0.5)).into();
    let of_containers = |of: &str| {
        let labels = |(host, container, pod)| {
            format!(
                r#"{of}{{container_id="containerd://{container}",instance="{host}",job="windows-exporter",namespace="shop",pod="{pod}"}}"#
            )
        };
        PODS.map(|pod| (labels(pod), 210.0)).into()
    };
    let tests: Vec<Value> = recordings()
        .iter()
        .map(|(record, _)| {
            let expected: Vec<(String, f64)> = match record.as_str() {
                "container_memory_working_set_bytes" => of_containers(record),
                pods if pods.starts_with("pod") => of_pods(pods),
                other => hosts(other),
            };
            let samples: Vec<Value> =
                expected.iter().map(|(labels, value)| json!({"labels": labels, "value": value})).collect();
            json!({"expr": record, "eval_time": "5m", "exp_samples": samples})
        })
        .collect();
    let tests = json!({"rule_files": ["rules.yaml"], "evaluation_interval": "30s",
        "tests": [{"interval": "1m", "input_series": input, "promql_expr_test": tests}]});
    promtool(&["test", "rules", "tests.yaml"], &[("rules.yaml", &rule_file()), ("tests.yaml", &tests)]).unwrap();
}
