//! The dashboard of pools, once as data: written as Grafana reads it, and as the console of OpenShift does, which knows an older form.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use super::object::{NAME, Object, Site};

/// Folder of kustomize for Grafana.
pub(super) const GRAFANA: &str = "components/dashboard-grafana";
/// That for the console of OpenShift.
pub(super) const CONSOLE: &str = "components/dashboard-openshift";
/// Where the console looks for dashboards.
const CONSOLE_NAMESPACE: &str = "openshift-config-managed";
const TITLE: &str = "Windows node pools";
/// Columns of Grafana; the console has half as many.
pub(crate) const COLUMNS: usize = 24;

/// How a panel shows its series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One number.
    Number,
    /// Lines over time.
    Graph,
    /// The present values in a table.
    Table,
}

/// A panel.
pub(crate) struct Panel {
    /// What it shows.
    pub(crate) title: &'static str,
    /// How.
    pub(crate) form: Form,
    /// Unit, as Grafana calls it.
    pub(crate) unit: &'static str,
    /// Each with the name of its series.
    pub(crate) queries: &'static [(&'static str, &'static str)],
}

const fn panel(
    title: &'static str,
    form: Form,
    unit: &'static str,
    queries: &'static [(&'static str, &'static str)],
) -> Panel {
    Panel { title, form, unit, queries }
}

/// Rows, the first with what a person on call must see first.
pub(crate) const ROWS: &[(&str, &[Panel])] = &[
    (
        "Now",
        &[
            panel(
                "Nodes Ready",
                Form::Number,
                "none",
                &[("", r#"sum(max by (pool) (windows_node_pool_nodes_ready{pool=~"$pool"}))"#)],
            ),
            panel(
                "Hosts that failed",
                Form::Number,
                "none",
                &[("", r#"sum(max by (pool) (windows_node_pool_hosts_failed{pool=~"$pool"}))"#)],
            ),
            panel(
                "Nodes unavailable",
                Form::Number,
                "none",
                &[("", r#"sum(max by (pool) (windows_node_pool_nodes_unavailable{pool=~"$pool"}))"#)],
            ),
            panel(
                "Drains blocked",
                Form::Number,
                "none",
                &[("", r#"sum(max by (pool) (windows_node_pool_drain_blocked_nodes{pool=~"$pool"}))"#)],
            ),
            panel(
                "Removals to confirm",
                Form::Number,
                "none",
                &[("", r#"sum(max by (pool) (windows_node_pool_removals_to_confirm{pool=~"$pool"}))"#)],
            ),
            panel(
                "Pools paused or in mode Plan",
                Form::Number,
                "none",
                &[("", r#"sum(max by (pool) (windows_node_pool_idle{pool=~"$pool"}))"#)],
            ),
        ],
    ),
    (
        "Pools",
        &[
            panel(
                "Conditions",
                Form::Table,
                "none",
                &[(
                    "",
                    r#"max by (pool, type, status, reason) (windows_node_pool_status_reason{pool=~"$pool",type=~"Ready|Updated|Updating|Degraded|Stalled|InventorySynced"})"#,
                )],
            ),
            panel(
                "Hosts by phase",
                Form::Graph,
                "none",
                &[("{{pool}} {{phase}}", r#"max by (pool, phase) (windows_node_pool_hosts{pool=~"$pool"}) > 0"#)],
            ),
            panel(
                "Nodes",
                Form::Graph,
                "none",
                &[
                    ("{{pool}} ready", r#"max by (pool) (windows_node_pool_nodes_ready{pool=~"$pool"})"#),
                    ("{{pool}} available", r#"max by (pool) (windows_node_pool_nodes_available{pool=~"$pool"})"#),
                    ("{{pool}} up to date", r#"max by (pool) (windows_node_pool_nodes_up_to_date{pool=~"$pool"})"#),
                ],
            ),
            panel(
                "Age of the oldest operation",
                Form::Graph,
                "s",
                &[(
                    "{{pool}} {{type}}",
                    r#"time() - min by (pool, type) (windows_node_pool_oldest_operation_start_timestamp_seconds{pool=~"$pool"})"#,
                )],
            ),
            panel(
                "Age of the list of hosts",
                Form::Graph,
                "s",
                &[(
                    "{{pool}} {{source}}",
                    r#"time() - max by (pool, source) (windows_node_pool_source_last_success_timestamp_seconds{pool=~"$pool"})"#,
                )],
            ),
        ],
    ),
    (
        "Operations",
        &[
            panel(
                "Operations that ended",
                Form::Graph,
                "none",
                &[(
                    "{{operation}} {{result}}",
                    r#"sum by (operation, result) (increase(windows_node_pool_operations_total{pool=~"$pool"}[5m]))"#,
                )],
            ),
            panel(
                "Failures by reason",
                Form::Graph,
                "none",
                &[("{{reason}}", r#"sum by (reason) (increase(windows_node_pool_failures_total{pool=~"$pool"}[5m]))"#)],
            ),
            panel(
                "Duration of steps, mean",
                Form::Graph,
                "s",
                &[(
                    "{{step}}",
                    "sum by (step) (rate(windows_node_pool_step_duration_seconds_sum[5m])) / sum by (step) (rate(windows_node_pool_step_duration_seconds_count[5m]))",
                )],
            ),
        ],
    ),
    (
        "Hosts",
        &[
            panel(
                "CPU in use",
                Form::Graph,
                "percentunit",
                &[("{{instance}}", r#"1 - avg by (instance) (rate(windows_cpu_time_total{mode="idle"}[5m]))"#)],
            ),
            panel(
                "Memory available",
                Form::Graph,
                "bytes",
                &[("{{instance}}", "max by (instance) (windows_memory_available_bytes)")],
            ),
            panel(
                "Disk free",
                Form::Graph,
                "bytes",
                &[("{{instance}} {{volume}}", "min by (instance, volume) (windows_logical_disk_free_bytes)")],
            ),
        ],
    ),
    (
        "Operator",
        &[
            panel("Processes that lead", Form::Number, "none", &[("", "sum(windows_node_pool_leader)")]),
            panel(
                "Versions",
                Form::Table,
                "none",
                &[("", "count by (version, revision) (windows_node_pool_build_info)")],
            ),
            panel("Faults", Form::Table, "none", &[("", "max by (reason) (windows_node_pool_fault)")]),
            panel(
                "Reconcile errors",
                Form::Graph,
                "none",
                &[("{{kind}}", "sum by (kind) (increase(windows_node_pool_reconcile_errors_total[5m]))")],
            ),
            panel(
                "Writes to the API server",
                Form::Graph,
                "none",
                &[("{{resource}}", "sum by (resource) (rate(windows_node_pool_api_writes_total[5m]))")],
            ),
            panel(
                "Memory",
                Form::Graph,
                "bytes",
                &[(
                    "{{pod}}",
                    "max by (pod) (process_resident_memory_bytes * on (instance, job) group_left () windows_node_pool_build_info)",
                )],
            ),
        ],
    ),
];

/// The pools that there are.
const POOLS: &str = "label_values(windows_node_pool_idle, pool)";

/// All queries. `$pool` stands for the pools that are chosen.
#[cfg(test)]
pub(super) fn queries() -> impl Iterator<Item = &'static str> {
    ROWS.iter().flat_map(|(_, panels)| *panels).flat_map(|panel| panel.queries).map(|(_, query)| *query)
}

fn targets(panel: &Panel) -> Vec<Value> {
    let target = |(n, (legend, query)): (usize, &(&str, &str))| {
        let now = panel.form != Form::Graph;
        let mut target = json!({
            "expr": query,
            "refId": char::from(b'A' + u8::try_from(n).unwrap_or_default()).to_string(),
            "instant": now,
        });
        if !legend.is_empty() {
            target["legendFormat"] = (*legend).into();
        }
        if panel.form == Form::Table {
            target["format"] = "table".into();
        }
        target
    };
    panel.queries.iter().enumerate().map(target).collect()
}

/// Columns of a panel.
pub(crate) fn width(panel: &Panel) -> usize {
    match panel.form {
        Form::Number => 4,
        Form::Graph | Form::Table => 8,
    }
}

/// Lines of a panel.
pub(crate) fn height(panel: &Panel) -> usize {
    match panel.form {
        Form::Number => 4,
        Form::Graph | Form::Table => 8,
    }
}

fn variable() -> Value {
    json!({
        "name": "pool", "label": "Pool", "type": "query", "datasource": "$datasource", "query": POOLS,
        "includeAll": true, "allValue": ".*", "multi": true, "refresh": 2, "sort": 1,
        "current": {"selected": true, "text": "All", "value": "$__all"},
    })
}

/// As Grafana reads it.
fn grafana() -> Value {
    let source = json!({"type": "prometheus", "uid": "${datasource}"});
    let (mut panels, mut y, mut id) = (Vec::new(), 0, 0);
    for (title, row) in ROWS {
        id += 1;
        panels.push(json!({"id": id, "type": "row", "title": title, "collapsed": false, "panels": [], "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1}}));
        y += 1;
        let (mut x, mut highest) = (0, 0);
        for panel in *row {
            let (w, h) = (width(panel), height(panel));
            let type_ = match panel.form {
                Form::Number => "stat",
                Form::Graph => "timeseries",
                Form::Table => "table",
            };
            if x + w > COLUMNS {
                (x, y, highest) = (0, y + highest, 0);
            }
            id += 1;
            panels.push(json!({
                "id": id, "type": type_, "title": panel.title, "datasource": source, "targets": targets(panel),
                "gridPos": {"x": x, "y": y, "w": w, "h": h},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []}, "options": {},
            }));
            (x, highest) = (x + w, highest.max(h));
        }
        y += highest;
    }
    let datasource = json!({"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"});
    json!({
        "uid": NAME, "title": TITLE, "tags": ["windows"], "schemaVersion": 39, "editable": false, "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"}, "timezone": "browser",
        "templating": {"list": [datasource, variable()]}, "annotations": {"list": []}, "panels": panels,
    })
}

/// As the console of OpenShift reads it.
fn console() -> Value {
    let rows: Vec<Value> = ROWS
        .iter()
        .map(|(title, row)| {
            let panels: Vec<Value> = row
                .iter()
                .map(|panel| {
                    let type_ = match panel.form {
                        Form::Number => "singlestat",
                        Form::Graph => "graph",
                        Form::Table => "table",
                    };
                    let mut value = json!({
                        "title": panel.title, "type": type_, "span": width(panel) / 2, "targets": targets(panel), "format": panel.unit,
                        "datasource": "prometheus",
                    });
                    if panel.form == Form::Graph {
                        value["yaxes"] = json!([{"format": panel.unit, "min": 0}, {"show": false}]);
                    }
                    if panel.form == Form::Table {
                        let hidden = ["Time", "Value", "Value #A"].map(|name| json!({"pattern": name, "type": "hidden"}));
                        value["styles"] = hidden.to_vec().into();
                        value["transform"] = "table".into();
                    }
                    value
                })
                .collect();
            json!({"title": title, "collapse": false, "showTitle": true, "height": "250px", "panels": panels})
        })
        .collect();
    json!({
        "title": TITLE, "uid": NAME, "schemaVersion": 14, "tags": ["windows"], "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"}, "timezone": "browser",
        "templating": {"list": [variable()]}, "rows": rows,
    })
}

/// Both, each in a ConfigMap.
pub(super) fn objects(site: &Site) -> Vec<Object> {
    let map = |file, about, namespace: &str, label: &str, value: &str, dashboard: &Value| {
        let name = format!("grafana-dashboard-{NAME}");
        let mut metadata = site.within(namespace, &name, "monitoring");
        metadata.labels.get_or_insert_with(BTreeMap::new).insert(label.into(), value.into());
        // In a fixed order, and in lines that a reviewer can compare.
        let text = serde_json::to_string_pretty(dashboard).unwrap_or_default();
        let data = Some(BTreeMap::from([(format!("{NAME}.json"), text)]));
        Object::new(file, about, &ConfigMap { metadata, data, ..ConfigMap::default() })
    };
    vec![
        map(
            "components/dashboard-grafana/dashboard.yaml",
            "For a Grafana whose sidecar collects ConfigMaps with this label.",
            &site.namespace,
            "grafana_dashboard",
            "1",
            &grafana(),
        ),
        map(
            "components/dashboard-openshift/dashboard.yaml",
            "For the console of OpenShift: Observe, Dashboards.",
            CONSOLE_NAMESPACE,
            "console.openshift.io/dashboard",
            "true",
            &console(),
        ),
    ]
}

/// The file that people import by hand.
pub(super) fn file() -> (String, String) {
    let text = serde_json::to_string_pretty(&grafana()).unwrap_or_default() + "\n";
    (format!("deploy/{GRAFANA}/{NAME}.json"), text)
}
