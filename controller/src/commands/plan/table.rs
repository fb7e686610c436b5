//! Plan of a pool as a table for users. Pure functions.

use api::services_version::short;
use std::fmt::Write as _;

use super::Answer;
use crate::args::output::aligned;

const HEAD: [&str; 4] = ["HOST", "ACTION", "DISRUPTION", "WHY"];

/// Returns a table of hosts, the problems, the notes, and the totals.
pub(super) fn text(answer: &Answer) -> String {
    let mut text = String::new();
    if !answer.hosts.is_empty() {
        let row = |h: &api::PlannedHost| [h.host.clone(), h.action.clone(), h.disruption.clone(), h.why.clone()];
        let rows: Vec<[String; 4]> =
            [HEAD.map(str::to_owned)].into_iter().chain(answer.hosts.iter().map(row)).collect();
        text += &aligned(&rows);
    }
    for problem in &answer.problems {
        let _ = writeln!(text, "{}: {}", problem.reason, problem.message);
    }
    for note in &answer.notes {
        let _ = writeln!(text, "Note: {note}");
    }
    let _ = match &answer.version {
        Some(version) => {
            let (summary, unchanged) = (&answer.summary, answer.unchanged);
            writeln!(text, "{}: {summary}; {unchanged} unchanged; version {}", answer.pool, short(version))
        }
        None => writeln!(text, "{}: {}", answer.pool, answer.summary),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::{super::PlanProblem, *};
    use api::PlannedHost;

    fn answer() -> Answer {
        let host = |host: &str, action: &str, disruption: &str, why: &str| PlannedHost {
            host: host.into(),
            action: action.into(),
            disruption: disruption.into(),
            why: why.into(),
        };
        Answer {
            pool: "factory".into(),
            version: Some("1-a".into()),
            summary: "1 join, 1 update with a drain".into(),
            unchanged: 7,
            hosts: vec![
                host("win-1", "Join", "None", "new in the inventory"),
                host("press-hall-b", "Update", "Drain", "containerd's settings"),
            ],
            ..Answer::default()
        }
    }

    #[test]
    fn columns_are_aligned() {
        let expected = "\
HOST           ACTION   DISRUPTION   WHY
win-1          Join     None         new in the inventory
press-hall-b   Update   Drain        containerd's settings
factory: 1 join, 1 update with a drain; 7 unchanged; version 1-a
";
        assert_eq!(text(&answer()), expected);
    }

    #[test]
    fn problems_and_notes_precede_the_summary() {
        let refused = Answer {
            hosts: Vec::new(),
            version: None,
            summary: "the pool cannot be planned".into(),
            problems: vec![PlanProblem {
                host: None,
                reason: api::Reason::SpecInvalid,
                message: "no such field".into(),
            }],
            notes: vec!["not asked".into()],
            ..answer()
        };
        assert_eq!(
            text(&refused),
            "SpecInvalid: no such field\nNote: not asked\nfactory: the pool cannot be planned\n"
        );
    }
}
