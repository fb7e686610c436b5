//! The result, for people and as a document.

use std::{fmt::Write as _, time::Duration};

use serde_json::{Value, json};

use super::judge::Outcome;

/// A row that ended.
pub(super) struct Ended {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) outcome: Outcome,
    pub(super) took: Duration,
}

/// What was tested.
#[derive(Default)]
pub(super) struct Versions {
    /// Of this command.
    pub(super) kit: String,
    /// Of the operator that runs.
    pub(super) operator: Option<String>,
    /// Of the API server.
    pub(super) cluster: Option<String>,
    /// Name and build.
    pub(super) windows: Option<String>,
    /// Whether it is Windows, or a host of the test bed.
    pub(super) host: &'static str,
}

/// The result of a run.
pub(super) struct Report {
    pub(super) versions: Versions,
    pub(super) begin: String,
    pub(super) rows: Vec<Ended>,
    /// What the run could not remove, and why.
    pub(super) left: Vec<String>,
    /// Whether a person ended it before its last row.
    pub(super) interrupted: bool,
}

impl Report {
    /// Whether nothing failed, nothing is left, and all rows were run.
    pub(super) fn is_good(&self) -> bool {
        let failed = self.rows.iter().any(|row| matches!(row.outcome, Outcome::Failed(_)));
        !failed && self.left.is_empty() && !self.interrupted
    }

    /// A table, and a summary below.
    pub(super) fn table(&self) -> String {
        let head = ["ROW", "RESULT", "TIME", "EVIDENCE"].map(str::to_owned);
        let row = |row: &Ended| {
            let (result, text) = parts(&row.outcome);
            [row.id.to_owned(), result.to_owned(), format!("{} s", row.took.as_secs()), text.to_owned()]
        };
        let mut text = crate::output::aligned(&[head].into_iter().chain(self.rows.iter().map(row)).collect::<Vec<_>>());
        let count = |result: &str| self.rows.iter().filter(|row| parts(&row.outcome).0 == result).count();
        let (passed, failed, skipped) = (count("passed"), count("failed"), count("skipped"));
        let Versions { kit, operator, cluster, windows, host } = &self.versions;
        let known = |version: &Option<String>| version.clone().unwrap_or_else(|| "unknown".to_owned());
        let _ = writeln!(text, "\n{passed} passed, {failed} failed, {skipped} skipped");
        let _ = writeln!(
            text,
            "operator {}, cluster {}, host {} ({host}), acceptance {kit}",
            known(operator),
            known(cluster),
            known(windows)
        );
        if self.interrupted {
            text.push_str("The run was interrupted.\n");
        }
        match &self.left[..] {
            [] => text.push_str("Nothing is left.\n"),
            left => left.iter().for_each(|what| {
                let _ = writeln!(text, "Left: {what}");
            }),
        }
        text
    }

    /// The document.
    pub(super) fn json(&self) -> Value {
        let row = |row: &Ended| {
            let (result, text) = parts(&row.outcome);
            let why = if matches!(row.outcome, Outcome::Skipped(_)) { "reason" } else { "evidence" };
            json!({"id": row.id, "title": row.title, "result": result, why: text, "seconds": row.took.as_secs()})
        };
        let Versions { kit, operator, cluster, windows, host } = &self.versions;
        json!({
            "result": if self.is_good() { "passed" } else { "failed" },
            "startedTime": self.begin,
            "interrupted": self.interrupted,
            "versions": {"acceptance": kit, "operator": operator, "cluster": cluster, "windows": windows, "host": host},
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "left": self.left,
        })
    }
}

/// The word for an outcome, and its text.
pub(super) fn parts(outcome: &Outcome) -> (&'static str, &str) {
    match outcome {
        Outcome::Passed(text) => ("passed", text),
        Outcome::Failed(text) => ("failed", text),
        Outcome::Skipped(text) => ("skipped", text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcomes: &[Outcome]) -> Report {
        let row = |outcome: &Outcome| Ended {
            id: "join",
            title: "the host becomes a Ready node",
            outcome: outcome.clone(),
            took: Duration::from_millis(2_500),
        };
        Report {
            versions: Versions { kit: "0.1.0".into(), host: "Windows", ..Versions::default() },
            begin: "2027-01-15T02:00:00Z".into(),
            rows: outcomes.iter().map(row).collect(),
            left: Vec::new(),
            interrupted: false,
        }
    }

    #[test]
    fn one_failure_or_something_that_is_left_is_a_failure() {
        let (passed, skipped, failed) = (Outcome::passed("a"), Outcome::skipped("b"), Outcome::failed("c"));
        assert!(report(&[passed.clone(), skipped]).is_good());
        assert!(!report(&[passed.clone(), failed]).is_good());
        assert!(!Report { left: vec!["the pool x".into()], ..report(std::slice::from_ref(&passed)) }.is_good());
        assert!(!Report { interrupted: true, ..report(&[passed]) }.is_good());
    }

    #[test]
    fn what_is_printed() {
        let report = report(&[Outcome::passed("fine"), Outcome::skipped("needs --image")]);
        let table = report.table();
        assert!(table.contains("join   passed    2 s    fine\n"), "{table}");
        assert!(table.contains("1 passed, 0 failed, 1 skipped") && table.ends_with("Nothing is left.\n"), "{table}");
        let json = report.json();
        assert_eq!(json["result"], "passed");
        assert_eq!(
            json["rows"][1],
            json!({"id": "join", "title": "the host becomes a Ready node", "result": "skipped", "reason": "needs --image", "seconds": 2})
        );
    }
}
