//! The dashboard of pools, as Grafana reads it. The console of OpenShift has the same queries in an older form.

use serde_json::Value;

/// The file that people import by hand.
pub(super) const GRAFANA: &str = include_str!("../../../deploy/chart/windows-node-pools/files/dashboards/grafana.json");
/// The form for the console.
#[cfg(test)]
pub(super) const CONSOLE: &str =
    include_str!("../../../deploy/chart/windows-node-pools/files/dashboards/openshift.json");
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
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    /// What it shows.
    pub(crate) title: String,
    /// How.
    pub(crate) form: Form,
    /// Unit, as Grafana calls it.
    pub(crate) unit: String,
    /// Each with the name of its series.
    pub(crate) queries: Vec<(String, String)>,
    /// Columns.
    pub(crate) width: usize,
    /// Lines.
    pub(crate) height: usize,
}

/// Rows with their panels, the first with what a person on call must see first.
pub(crate) fn rows() -> Vec<(String, Vec<Panel>)> {
    let dashboard: Value = serde_json::from_str(GRAFANA).unwrap_or_default();
    let mut rows: Vec<(String, Vec<Panel>)> = Vec::new();
    for panel in dashboard["panels"].as_array().into_iter().flatten() {
        match (panel["type"].as_str(), rows.last_mut()) {
            (Some("row"), _) => rows.push((text(&panel["title"]), Vec::new())),
            (_, Some((_, panels))) => panels.push(of(panel)),
            (_, None) => {}
        }
    }
    rows
}

fn of(panel: &Value) -> Panel {
    let size = |key: &str| panel["gridPos"][key].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or_default();
    let targets = panel["targets"].as_array().into_iter().flatten();
    Panel {
        title: text(&panel["title"]),
        form: match panel["type"].as_str() {
            Some("stat") => Form::Number,
            Some("table") => Form::Table,
            _ => Form::Graph,
        },
        unit: text(&panel["fieldConfig"]["defaults"]["unit"]),
        queries: targets.map(|target| (text(&target["legendFormat"]), text(&target["expr"]))).collect(),
        width: size("w"),
        height: size("h"),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
