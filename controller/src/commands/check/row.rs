//! Results of checks, as a table and as JSON.

use api::Reason;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::catalog::{self, Scope};
use crate::args::Output;

/// Exit status when a check has failed.
const FAILED: u8 = 1;

/// What can be wrong. Its text is the message.
pub(super) trait Problem: std::fmt::Display {
    /// Reason, as in conditions.
    fn reason(&self) -> Reason;
    /// Whether it does not matter for the exit status.
    fn is_warning(&self) -> bool;
    /// What to do. None if the message ends with it.
    fn remedy(&self) -> Option<String>;
}

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
    pub reason: Reason,
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

    /// What is wrong, the worst with its reason and all with their messages and remedies; or a note.
    pub(super) fn of<P: Problem>(check: &'static str, problems: &[P], note: &str) -> Self {
        let Some(worst) = problems.iter().min_by_key(|p| p.is_warning()) else { return Self::passed(check, note) };
        let mut remedies: Vec<String> = problems.iter().filter_map(P::remedy).collect();
        remedies.dedup();
        let finding = Finding {
            is_warning: worst.is_warning(),
            reason: worst.reason(),
            message: problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
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
pub(super) fn print(rows: &[Row], output: Output, scope: Scope) -> anyhow::Result<ExitCode> {
    let objects: Vec<Value> = rows.iter().map(|row| object(row, scope)).collect();
    crate::args::output::print(&crate::args::output::answer(output, &objects, || table(rows, scope))?)?;
    Ok(if rows.iter().all(Row::is_fit) { ExitCode::SUCCESS } else { FAILED.into() })
}

fn table(rows: &[Row], scope: Scope) -> String {
    let row = |Row { check, finding, note }: &Row| match finding {
        None => [(*check).to_owned(), "passed".to_owned(), note.clone()],
        Some(f) => {
            let remedy = f.remedy.as_ref().map(|r| format!("; {r}")).unwrap_or_default();
            let link = catalog::link(scope, check);
            [(*check).to_owned(), f.result().to_owned(), format!("{}: {}{remedy}; see {link}", f.reason, f.message)]
        }
    };
    let head = ["CHECK", "RESULT", "MESSAGE"].map(str::to_owned);
    crate::args::output::aligned(&[head].into_iter().chain(rows.iter().map(row)).collect::<Vec<_>>())
}

pub(super) fn object(row: &Row, scope: Scope) -> Value {
    let Row { check, finding, note } = row;
    let link = catalog::link(scope, check);
    let Some(f) = finding else {
        return json!({"check": check, "result": "passed", "message": note, "link": link});
    };
    let mut object =
        json!({"check": check, "result": f.result(), "reason": f.reason, "message": f.message, "link": link});
    if let Some(remedy) = &f.remedy {
        object["remedy"] = remedy.clone().into();
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_ends_with_where_to_read_on() {
        let finding = Finding {
            is_warning: false,
            reason: Reason::CrdInvalid,
            message: "it is missing".into(),
            remedy: Some("install".into()),
        };
        let rows = [
            Row { check: "crds", finding: Some(finding), note: String::new() },
            Row::passed("leader", "a process holds the Lease"),
        ];
        assert_eq!(
            table(&rows, Scope::Installation),
            "CHECK    RESULT   MESSAGE\n\
             crds     failed   CrdInvalid: it is missing; install; see docs/reference/checks.md#check-crds\n\
             leader   passed   a process holds the Lease\n"
        );
        let leader = object(&rows[1], Scope::Installation);
        assert_eq!(leader["link"], "docs/reference/checks.md#check-leader");
    }
}
