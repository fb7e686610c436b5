//! Values of the chart, from `values.yaml` and its comments.

use serde_json::Value;

const FILE: &str = include_str!("../../../../deploy/chart/windows-node-pools/values.yaml");

/// Value that a user may set.
pub(super) struct Setting {
    /// Path of the value below `.Values`.
    pub(super) path: String,
    /// Comment of the value.
    pub(super) about: String,
    /// Default of the value. Null if the file sets none, and the comment describes the default.
    pub(super) default: Value,
}

/// Returns the settings of all keys with a comment, in the order of the file. A key without a comment contains other keys.
pub(super) fn all() -> Vec<Setting> {
    let defaults: Value = serde_yaml::from_str(FILE).unwrap_or_default();
    let (mut keys, mut about, mut settings) = (Vec::new(), String::new(), Vec::new());
    for line in FILE.lines() {
        let text = line.trim_start();
        if let Some(comment) = text.strip_prefix("# ") {
            about += if about.is_empty() { "" } else { " " };
            about += comment;
        } else if let Some((key, _)) = text.split_once(':') {
            keys.truncate((line.len() - text.len()) / 2);
            keys.push(key);
            let path = keys.join(".");
            if !about.is_empty() {
                let default = defaults.pointer(&format!("/{}", path.replace('.', "/"))).cloned().unwrap_or_default();
                settings.push(Setting { path, about: std::mem::take(&mut about), default });
            }
        }
    }
    settings
}

/// Returns the table of all values, in Markdown.
pub(crate) fn table() -> String {
    let row = |Setting { path, about, default }: Setting| {
        let default = if default.is_null() { String::new() } else { format!("`{default}`") };
        format!("| `{path}` | {default} | {} |\n", about.replace('|', "\\|"))
    };
    let rows: String = all().into_iter().map(row).collect();
    format!("| value | default | meaning |\n|---|---|---|\n{rows}")
}
