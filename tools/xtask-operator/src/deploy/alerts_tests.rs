//! Tests of the alerts with promtool: each fires for its cause, is silent while the cause is intended, and has a section in the page of alerts.

use std::{collections::BTreeSet, fs, process::Command};

use controller::runtime::metrics::Metrics;
use serde::Deserialize;
use serde_json::{Value, json};
use testbed::binaries;

/// Rule file of Prometheus.
const FILE: &str = include_str!("../../../../deploy/chart/windows-node-pools/files/alerts.yaml");

#[derive(Deserialize)]
struct Alert {
    #[serde(rename = "alert")]
    name: String,
    expr: String,
    /// Time for which the expression must hold. `None`: the alert fires at once.
    #[serde(rename = "for")]
    lasts: Option<String>,
    labels: Value,
    annotations: Annotations,
}

#[derive(Deserialize)]
struct Annotations {
    summary: String,
    description: String,
    runbook_url: String,
}

/// Series, each with its values.
type Series = &'static [(&'static str, &'static str)];

/// Series of other programs that the expressions use.
const OF_OTHERS: [&str; 1] = ["kube_deployment_spec_replicas"];

const ON: &str = "1+0x120";
const OFF: &str = "0+0x120";

/// Case of an alert: series that fire it, and series that do not, with the reason.
struct Case {
    alert: &'static str,
    fires: Series,
    silent: &'static [(&'static str, Series)],
}

macro_rules! reason {
    ($type:literal, $reason:literal) => {
        concat!(
            r#"windows_node_pool_status_reason{namespace="n",pool="p",type=""#,
            $type,
            r#"",status="true",reason=""#,
            $reason,
            r#""}"#
        )
    };
}

macro_rules! pool {
    ($gauge:literal) => {
        concat!("windows_node_pool_", $gauge, r#"{namespace="n",pool="p"}"#)
    };
}

const UP: &str = r#"windows_node_pool_source_up{namespace="n",pool="p",source="git"}"#;
const FAULT: &str = r#"windows_node_pool_fault{namespace="n",reason="AnotherOperator"}"#;
const ERRORS: &str = r#"windows_node_pool_reconcile_errors_total{namespace="n",kind="WindowsInstance"}"#;
const LIFETIME: &str = r#"windows_node_pool_host_certificate_lifetime_seconds{namespace="n"}"#;
const EXPIRY: &str = pool!("host_certificate_earliest_expiry_timestamp_seconds");

const CASES: &[Case] = &[
    Case {
        alert: "WindowsNodePoolDegraded",
        fires: &[(reason!("Degraded", "NodesFailed"), ON), (pool!("idle"), OFF), (pool!("nodes_unavailable"), OFF)],
        silent: &[
            ("the pool is paused", &[(reason!("Degraded", "NodesFailed"), ON), (pool!("idle"), ON)]),
            (
                "the nodes that are not Ready are on hold",
                &[(reason!("Degraded", "NodeNotReady"), ON), (pool!("nodes_unavailable"), OFF)],
            ),
            ("a drain has an alert of its own", &[(reason!("Degraded", "DrainBlocked"), ON)]),
            ("the source has an alert of its own", &[(reason!("Degraded", "GitUnreachable"), ON), (UP, OFF)]),
            (
                "another alert reports the same reason",
                &[(reason!("Degraded", "HostConflict"), ON), (reason!("Stalled", "HostConflict"), ON)],
            ),
            ("it recovers by itself", &[(reason!("Degraded", "NodesFailed"), "1+0x10 _x110")]),
        ],
    },
    Case {
        alert: "WindowsNodePoolStalled",
        fires: &[(reason!("Stalled", "FailureLimitReached"), ON), (pool!("idle"), OFF), (UP, ON)],
        silent: &[
            ("the pool is paused", &[(reason!("Stalled", "FailureLimitReached"), ON), (pool!("idle"), ON)]),
            ("another alert reports it", &[(reason!("Stalled", "RemovalBlocked"), ON)]),
            ("the operator tries failed hosts again", &[(reason!("Stalled", "NodesFailed"), ON)]),
            ("changes wait for a window", &[(reason!("Reconciling", "WaitingForWindow"), ON)]),
            ("changes wait for an approval", &[(reason!("Reconciling", "WaitingForApproval"), ON)]),
        ],
    },
    Case {
        alert: "WindowsNodePoolOperationSlow",
        fires: &[(reason!("Stalled", "ProgressDeadlineExceeded"), ON), (pool!("drain_blocked_nodes"), OFF)],
        silent: &[
            ("the pool is paused", &[(reason!("Stalled", "ProgressDeadlineExceeded"), ON), (pool!("idle"), ON)]),
            (
                "pods block it",
                &[(reason!("Stalled", "ProgressDeadlineExceeded"), ON), (pool!("drain_blocked_nodes"), ON)],
            ),
            ("changes wait for an approval", &[(reason!("Reconciling", "WaitingForApproval"), ON)]),
        ],
    },
    Case {
        alert: "WindowsNodePoolDrainBlocked",
        fires: &[(pool!("drain_blocked_nodes"), ON), (pool!("idle"), OFF)],
        silent: &[
            ("the pool is paused", &[(pool!("drain_blocked_nodes"), ON), (pool!("idle"), ON)]),
            ("pods take half an hour to end", &[(pool!("drain_blocked_nodes"), "1+0x30 0+0x90")]),
        ],
    },
    Case {
        alert: "WindowsNodePoolRemovalHeld",
        fires: &[(pool!("removals_to_confirm"), "3+0x120"), (pool!("idle"), OFF)],
        silent: &[
            ("the pool is in mode Plan", &[(pool!("removals_to_confirm"), "3+0x120"), (pool!("idle"), ON)]),
            ("a user confirms it", &[(pool!("removals_to_confirm"), "3+0x10 0+0x110")]),
        ],
    },
    Case {
        alert: "WindowsNodePoolSourceStale",
        fires: &[(UP, OFF), (pool!("idle"), ON)],
        silent: &[("the source is suspended", &[(UP, ON)]), ("one attempt fails", &[(UP, "1+0x20 0+0x6 1+0x93")])],
    },
    Case {
        alert: "WindowsNodePoolHostKeyChanged",
        fires: &[(pool!("hosts_key_changed"), "2+0x120"), (pool!("idle"), ON)],
        silent: &[("a user trusts the new key, or holds the host", &[(pool!("hosts_key_changed"), OFF)])],
    },
    Case {
        alert: "WindowsNodePoolNodesUnavailable",
        fires: &[
            (pool!("nodes_unavailable"), "2+0x120"),
            (pool!("max_unavailable"), ON),
            (pool!("window_open"), OFF),
            (pool!("idle"), OFF),
        ],
        silent: &[
            (
                "a maintenance window is open",
                &[(pool!("nodes_unavailable"), "2+0x120"), (pool!("max_unavailable"), ON), (pool!("window_open"), ON)],
            ),
            (
                "the pool is paused",
                &[(pool!("nodes_unavailable"), "2+0x120"), (pool!("max_unavailable"), ON), (pool!("idle"), ON)],
            ),
            ("a rollout within its limit", &[(pool!("nodes_unavailable"), ON), (pool!("max_unavailable"), ON)]),
        ],
    },
    Case {
        alert: "WindowsNodePoolCertificateExpiring",
        // The certificate expires at 09:36. The alert begins 8 h before, a fifteenth of 5 days.
        fires: &[(EXPIRY, "34560+0x120"), (LIFETIME, "432000+0x120")],
        silent: &[
            ("it is renewed at the last moment", &[(EXPIRY, "3600+0x54 7200+0x66"), (LIFETIME, "3600+0x120")]),
            ("the host is on hold", &[(LIFETIME, "432000+0x120")]),
        ],
    },
    Case {
        alert: "WindowsNodePoolsDown",
        fires: &[(
            r#"kube_deployment_spec_replicas{namespace="openshift-windows-machine-config-operator",deployment="windows-node-pools"}"#,
            ON,
        )],
        silent: &[
            (
                "a user has scaled it to zero",
                &[(
                    r#"kube_deployment_spec_replicas{namespace="openshift-windows-machine-config-operator",deployment="windows-node-pools"}"#,
                    OFF,
                )],
            ),
            ("it works", &[(r#"windows_node_pool_build_info{namespace="n",version="1"}"#, ON)]),
        ],
    },
    Case {
        alert: "WindowsNodePoolsNoLeader",
        fires: &[
            (r#"windows_node_pool_leader{namespace="n",pod="a"}"#, OFF),
            (r#"windows_node_pool_leader{namespace="n",pod="b"}"#, OFF),
        ],
        silent: &[
            (
                "one stands by for the other",
                &[
                    (r#"windows_node_pool_leader{namespace="n",pod="a"}"#, OFF),
                    (r#"windows_node_pool_leader{namespace="n",pod="b"}"#, ON),
                ],
            ),
            ("an update", &[(r#"windows_node_pool_leader{namespace="n",pod="a"}"#, "1+0x30 0+0x5 1+0x90")]),
        ],
    },
    Case {
        alert: "WindowsNodePoolsErrors",
        fires: &[(ERRORS, "0+1x120")],
        silent: &[
            ("errors of a while ago", &[(ERRORS, "0+1x10 10+0x110")]),
            ("another operator runs", &[(FAULT, ON)]),
            (
                "the control plane is upgraded",
                &[(r#"windows_node_pool_fault{namespace="n",reason="ControlPlaneUpgrading"}"#, ON)],
            ),
        ],
    },
    Case {
        alert: "WindowsNodePoolsErrors",
        fires: &[(r#"windows_node_pool_fault{namespace="n",reason="PayloadInvalid"}"#, ON)],
        silent: &[],
    },
    Case {
        alert: "WindowsNodePoolsPoliciesMissing",
        fires: &[(
            r#"windows_node_pool_policy_in_force{namespace="n",policy="windows-node-pools-services"}"#,
            "0+0x120",
        )],
        silent: &[(
            "all are in force",
            &[(r#"windows_node_pool_policy_in_force{namespace="n",policy="windows-node-pools-services"}"#, ON)],
        )],
    },
    Case {
        alert: "WindowsNodePoolsPoliciesMissing",
        fires: &[(r#"windows_node_pool_condition{namespace="n",pool="p",type="PoliciesInForce",status="false"}"#, ON)],
        silent: &[(
            "policies are replaced by an update",
            &[(
                r#"windows_node_pool_condition{namespace="n",pool="p",type="PoliciesInForce",status="false"}"#,
                "0+0x10 1+0x5 0+0x105",
            )],
        )],
    },
    Case {
        alert: "WindowsNodePoolsOtherOperator",
        fires: &[(FAULT, ON)],
        silent: &[("a takeover takes some minutes", &[(FAULT, "1+0x10 _x110")])],
    },
];

fn rule_file() -> Value {
    serde_yaml::from_str(FILE).unwrap()
}

fn alerts() -> Vec<Alert> {
    serde_json::from_value(rule_file()["groups"][0]["rules"].take()).unwrap()
}

/// Runs promtool on files with these contents, and returns its output.
pub(super) fn promtool(args: &[&str], files: &[(&str, &Value)]) -> anyhow::Result<String> {
    let folder = tempfile::tempdir()?;
    for (name, value) in files {
        fs::write(folder.path().join(name), value.to_string())?;
    }
    devenv::read(Command::new(binaries::promtool()?).args(args).current_dir(folder.path()))
}

fn minutes(alert: &Alert) -> u32 {
    match alert.lasts.as_deref().map(|lasts| lasts.split_at(lasts.len() - 1)) {
        None => 0,
        Some((n, "m")) => n.parse().unwrap(),
        Some((n, "h")) => n.parse::<u32>().unwrap() * 60,
        Some(other) => panic!("{other:?}"),
    }
}

/// Returns a test for promtool that an alert fires, or not, at some minutes.
fn test(name: &str, alert: &str, series: Series, expected: &[(u32, bool)]) -> Value {
    let input: Vec<Value> = series.iter().map(|(series, values)| json!({"series": series, "values": values})).collect();
    let at = |(minute, fires): &(u32, bool)| {
        let samples = if *fires { json!([{"labels": "{}", "value": 1}]) } else { json!([]) };
        let expr = format!(r#"count(ALERTS{{alertname="{alert}",alertstate="firing"}})"#);
        json!({"expr": expr, "eval_time": format!("{minute}m"), "exp_samples": samples})
    };
    let expected: Vec<Value> = expected.iter().map(at).collect();
    json!({"name": name, "interval": "1m", "input_series": input, "promql_expr_test": expected})
}

#[test]
fn each_alert_fires_for_its_cause_and_is_silent_while_the_cause_is_intended() {
    let all = alerts();
    let names: BTreeSet<&str> = all.iter().map(|alert| alert.name.as_str()).collect();
    assert_eq!(CASES.iter().map(|case| case.alert).collect::<BTreeSet<_>>(), names);
    let mut tests = Vec::new();
    for Case { alert, fires, silent } in CASES {
        let lasts = minutes(all.iter().find(|a| a.name == *alert).unwrap());
        // The certificate is due for renewal only later, and a counter increases only from its second value.
        let begins = if alert.ends_with("CertificateExpiring") { 97 } else { 1 };
        let mut expected = vec![(begins + lasts + 3, true)];
        if lasts > 0 {
            expected.push((begins + lasts - 2, false));
        }
        tests.push(test(&format!("{alert} fires"), alert, fires, &expected));
        for (about, series) in *silent {
            tests.push(test(&format!("{alert}: {about}"), alert, series, &[(30, false), (60, false), (90, false)]));
        }
        assert!(!silent.is_empty() || CASES.iter().filter(|case| case.alert == *alert).count() > 1, "{alert}");
    }
    let tests = json!({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests});
    let checked = promtool(&["check", "rules", "rules.yaml"], &[("rules.yaml", &rule_file())]).unwrap();
    assert!(checked.contains(&format!("{} rules found", all.len())), "{checked}");
    promtool(&["test", "rules", "tests.yaml"], &[("rules.yaml", &rule_file()), ("tests.yaml", &tests)]).unwrap();
}

#[test]
fn each_alert_names_the_object_and_a_remedy() {
    for Alert { name, expr, annotations, .. } in alerts() {
        let (summary, description) = (annotations.summary, annotations.description);
        assert!(name.starts_with("WindowsNodePool"), "{name}");
        assert!(summary.ends_with('.') && summary.len() < 100 && !summary.contains("{{"), "{name}: {summary}");
        let whole = name.starts_with("WindowsNodePools");
        assert!(whole || description.contains("{{ $labels.pool }}"), "{name} does not name the pool");
        assert!(
            description.contains("kubectl") || description.contains(api::names::DEFAULT_NAMESPACE),
            "{name}: {description}"
        );
        for label in ["reason", "source", "kind", "pool"] {
            let is_shown = description.contains(&format!("$labels.{label}"));
            assert!(!is_shown || expr.contains(label), "{name} has no label {label}");
        }
    }
}

/// Returns the metrics in an expression: all words with a known prefix.
pub(super) fn series_in(expr: &str) -> BTreeSet<String> {
    let words = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let is_series = |word: &&str| {
        ["windows_", "kube_", "process_", "node_", "container_", "instance:", "pod:", "pod_interface"]
            .iter()
            .any(|prefix| word.starts_with(prefix))
    };
    words.filter(is_series).map(str::to_owned).collect()
}

/// Returns the names of the operator's series.
pub(super) fn of_the_operator() -> BTreeSet<String> {
    let metrics = Metrics::default();
    let of = |d: &controller::runtime::metrics::Description| match d.type_ {
        "histogram" => ["bucket", "sum", "count"].iter().map(|suffix| format!("{}_{suffix}", d.name)).collect(),
        _ => vec![d.name.clone()],
    };
    metrics.descriptions().iter().flat_map(of).collect()
}

#[test]
fn expressions_use_only_existing_series() {
    let known = of_the_operator();
    for Alert { name, expr, .. } in alerts() {
        let series = series_in(&expr);
        assert!(!series.is_empty(), "{name}");
        for series in series {
            assert!(known.contains(&series) || OF_OTHERS.contains(&series.as_str()), "{name}: no series {series}");
        }
    }
}

/// Checks the page of alerts, to whose sections Alertmanager and the console link.
#[test]
fn each_alert_has_a_section_and_each_section_an_alert() {
    let page = include_str!("../../../../docs/reference/alerts.md");
    let mut sections = page.split("\n## ").skip(1);
    for Alert { name, lasts, labels, annotations, .. } in alerts() {
        let anchor = name.to_lowercase();
        let url = format!("https://windows-node-pools.example.com/docs/reference/alerts.md#{anchor}");
        assert_eq!(annotations.runbook_url, url);
        let (severity, after) = (labels["severity"].as_str().unwrap(), lasts.as_deref().unwrap_or("at once"));
        let row = format!("\n| [{name}](#{anchor}) | {severity} | {after} | {} |\n", annotations.summary);
        assert!(page.contains(&row), "the page lacks{row}");
        let (title, section) = sections.next().unwrap().split_once('\n').unwrap();
        assert_eq!(title, name);
        let parts: Vec<&str> = section.split("\n**").skip(1).collect();
        for (part, title) in parts.iter().zip(["Meaning", "Impact", "Diagnosis", "Mitigation"]) {
            assert!(part.starts_with(&format!("{title}.** ")) && part.len() > 30, "{name}: {part:?}");
        }
        assert!(parts.len() == 4 && parts[2].contains("```sh\nkubectl"), "{name}: no command");
    }
    assert_eq!(sections.next(), None);
}
