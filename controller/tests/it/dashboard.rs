//! Queries of the dashboard, run by a real Prometheus that scrapes the operator.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testbed::prometheus::Prometheus;

use crate::transcripts::root;

/// Panels that are empty in the test bed: hosts run no `windows_exporter`, and nothing is wrong with the operator itself.
const EMPTY: [&str; 5] = ["CPU in use", "Memory available", "Disk free", "Faults", "Reconcile errors"];

fn installed() -> Result<String> {
    let file = "deploy/chart/windows-node-pools/files/dashboards/grafana.json";
    Ok(std::fs::read_to_string(root().join(file))?)
}

/// Returns the queries of panels, annotations and variables, each with its title, and with `.*` in place of `$pool`.
fn queries(dashboard: &str) -> Result<Vec<(String, String)>> {
    let dashboard: Value = serde_json::from_str(dashboard)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let panels = list(&dashboard["panels"]);
    let of_panels = panels.iter().flat_map(|panel| {
        list(&panel["targets"]).into_iter().map(|target| (text(&panel["title"]), text(&target["expr"])))
    });
    let annotations = list(&dashboard["annotations"]["list"]);
    let of_annotations = annotations.iter().map(|one| (text(&one["name"]), text(&one["expr"])));
    let variables = list(&dashboard["templating"]["list"]);
    // `label_values(SERIES, LABEL)` is Grafana's query for the values of a label.
    let of_variables = variables.iter().filter_map(|variable| {
        let query = text(&variable["query"]);
        let (series, label) = query.strip_prefix("label_values(")?.strip_suffix(')')?.rsplit_once(", ")?;
        Some((text(&variable["name"]), format!(r#"count by ({label}) ({series}{{{label}!=""}})"#)))
    });
    let all = of_panels.chain(of_annotations).chain(of_variables);
    Ok(all.map(|(title, query)| (title, query.replace("$pool", ".*"))).collect())
}

/// Returns the titles of queries without a sample.
async fn without_samples(prometheus: &Prometheus, dashboard: &str) -> Result<Vec<String>> {
    let mut titles = Vec::new();
    for (title, query) in queries(dashboard)? {
        if prometheus.query(&query).await?.is_empty() {
            titles.push(title);
        }
    }
    Ok(titles)
}

/// Checks that Prometheus accepts each query, and finds samples for all but those of [`EMPTY`]. Requires that faults of pools have raised alerts.
pub(crate) async fn check_queries(prometheus: &Prometheus) -> Result<()> {
    let dashboard = installed()?;
    let empty = without_samples(prometheus, &dashboard).await?;
    ensure!(empty == EMPTY, "queries without samples: {empty:?}");
    let misspelt = dashboard.replace("windows_node_pool_idle", "windows_node_pool_idl");
    let empty = without_samples(prometheus, &misspelt).await?;
    ensure!(
        empty.len() == EMPTY.len() + 2,
        "besides the panels that are always empty, one panel and one variable should have no samples: {empty:?}"
    );
    let broken = dashboard.replace("sum by (reason)", "sum by reason");
    ensure!(without_samples(prometheus, &broken).await.is_err(), "Prometheus accepts an invalid query");
    Ok(())
}

#[test]
fn numbers_have_colours() -> Result<()> {
    let dashboard: Value = serde_json::from_str(&installed()?)?;
    let panels = dashboard["panels"].as_array().context("no panels")?.iter();
    let plain: Vec<_> = panels
        .filter(|panel| panel["type"] == "stat" && panel["fieldConfig"]["defaults"]["thresholds"].is_null())
        .map(|panel| &panel["title"])
        .collect();
    ensure!(plain.is_empty(), "{plain:?}");
    Ok(())
}

#[test]
fn panels_annotations_and_variables_have_queries() -> Result<()> {
    let queries = queries(&installed()?)?;
    ensure!(queries.len() > 25 && queries.iter().all(|(_, query)| !query.is_empty()), "{queries:?}");
    for (title, query) in [
        ("Nodes Ready", r#"count_values("hosts", sum(max by (pool, phase) (windows_node_pool_hosts{pool=~".*"})))"#),
        ("Rollouts", r#"windows_node_pool_condition{pool=~".*",type="Updating",status="true"}"#),
        ("pool", r#"count by (pool) (windows_node_pool_idle{pool!=""})"#),
    ] {
        ensure!(queries.iter().any(|(of, found)| of == title && found.contains(query)), "{title}: {queries:?}");
    }
    Ok(())
}
