//! The alerts of the chart.

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// A rule file of Prometheus.
pub(super) const FILE: &str = include_str!("../../../../deploy/chart/windows-node-pools/files/alerts.yaml");

/// An alert.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Alert {
    /// Its name.
    #[serde(rename = "alert")]
    pub name: String,
    /// When it fires.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests evaluate it"))]
    pub expr: String,
    /// For how long that must be so. `None`: it fires at once.
    #[serde(rename = "for")]
    pub lasts: Option<String>,
    /// Its own labels.
    pub labels: Labels,
    /// What it says.
    pub annotations: Annotations,
}

/// Labels of an alert.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Labels {
    /// `warning`, for example.
    pub severity: String,
}

/// Texts of an alert.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Annotations {
    /// A sentence.
    pub summary: String,
    /// What is wrong with what, and what to do.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests read it"))]
    pub description: String,
    /// The page about it.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests read it"))]
    pub runbook_url: String,
}

/// All alerts.
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
