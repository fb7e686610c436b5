//! Results of checks, as a table and as JSON.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::obstacle::Obstacle;
use crate::args::Output;

/// Exit status when a check has failed.
const FAILED: u8 = 1;

/// A check and its result.
pub(super) struct Row {
    pub check: &'static str,
    pub finding: Option<Finding>,
    pub note: String,
}

/// What is wrong.
pub(super) struct Finding {
    /// Whether it does not matter for the exit status.
    pub is_warning: bool,
    pub reason: String,
    pub message: String,
    /// What to do; none if the message ends with it.
    pub remedy: Option<String>,
}

impl Finding {
    fn result(&self) -> &'static str {
        if self.is_warning { "warning" } else { "failed" }
    }
}

impl Row {
    pub(super) fn passed(check: &'static str, note: impl Into<String>) -> Self {
        Self { check, finding: None, note: note.into() }
    }

    /// What stands in the way, the worst with its reason and remedy and all with their messages; or a note.
    pub(super) fn of(check: &'static str, obstacles: Vec<Obstacle>, note: &str) -> Self {
        let Some(worst) = obstacles.iter().min_by_key(|o| o.is_warning()) else { return Self::passed(check, note) };
        let remedies: Vec<String> = obstacles.iter().filter_map(Obstacle::remedy).collect();
        let mut remedies = remedies;
        remedies.dedup();
        let finding = Finding {
            is_warning: worst.is_warning(),
            reason: worst.reason().into(),
            message: obstacles.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
            remedy: (!remedies.is_empty()).then(|| remedies.join("; ")),
        };
        Self { check, finding: Some(finding), note: String::new() }
    }

    fn is_fit(&self) -> bool {
        self.finding.as_ref().is_none_or(|f| f.is_warning)
    }
}

/// Prints them, and returns the exit status.
///
/// # Errors
/// When they cannot be printed.
pub(super) fn print(rows: &[Row], output: Output) -> anyhow::Result<ExitCode> {
    let text = match output {
        Output::Table => table(rows),
        Output::Json => serde_json::to_string_pretty(&rows.iter().map(object).collect::<Vec<_>>())? + "\n",
    };
    crate::output::print(&text)?;
    Ok(if rows.iter().all(Row::is_fit) { ExitCode::SUCCESS } else { FAILED.into() })
}

fn table(rows: &[Row]) -> String {
    let row = |Row { check, finding, note }: &Row| match finding {
        None => [(*check).to_owned(), "passed".to_owned(), note.clone()],
        Some(f) => {
            let remedy = f.remedy.as_ref().map(|r| format!("; {r}")).unwrap_or_default();
            [(*check).to_owned(), f.result().to_owned(), format!("{}: {}{remedy}", f.reason, f.message)]
        }
    };
    let head = ["CHECK", "RESULT", "MESSAGE"].map(str::to_owned);
    crate::output::aligned(&[head].into_iter().chain(rows.iter().map(row)).collect::<Vec<_>>())
}

pub(super) fn object(row: &Row) -> Value {
    let Row { check, finding, note } = row;
    let Some(f) = finding else { return json!({"check": check, "result": "passed", "message": note}) };
    let mut object = json!({"check": check, "result": f.result(), "reason": f.reason, "message": f.message});
    if let Some(remedy) = &f.remedy {
        object["remedy"] = remedy.clone().into();
    }
    object
}
