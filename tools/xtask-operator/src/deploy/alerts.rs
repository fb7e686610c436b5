//! The alerts of the chart.

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// A rule file of Prometheus.
pub(super) const FILE: &str = include_str!("../../../../deploy/chart/windows-node-pools/files/alerts.yaml");

/// An alert.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Alert {
    /// Name of the alert.
    #[serde(rename = "alert")]
    pub name: String,
    /// Expression that must hold for the alert to fire.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests evaluate it"))]
    pub expr: String,
    /// Time for which the expression must hold. `None`: the alert fires at once.
    #[serde(rename = "for")]
    pub lasts: Option<String>,
    /// Labels of the alert.
    pub labels: Labels,
    /// Texts of the alert.
    pub annotations: Annotations,
}

/// Labels of an alert.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Labels {
    /// Severity, such as `warning`.
    pub severity: String,
}

/// Texts of an alert.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Annotations {
    /// Summary: a sentence.
    pub summary: String,
    /// Description: the fault, its object and the remedy.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests read it"))]
    pub description: String,
    /// URL of the runbook page about the alert.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests read it"))]
    pub runbook_url: String,
}

/// Returns all alerts.
pub(crate) fn alerts() -> Result<Vec<Alert>> {
    #[derive(Deserialize)]
    struct File {
        groups: Vec<Group>,
    }
    #[derive(Deserialize)]
    struct Group {
        rules: Vec<Alert>,
    }
    let file: File = serde_yaml::from_str(FILE).context("read files/alerts.yaml of the chart")?;
    Ok(file.groups.into_iter().flat_map(|group| group.rules).collect())
}
