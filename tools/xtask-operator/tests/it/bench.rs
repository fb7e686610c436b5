//! Tests that each benchmark runs, with few hosts and as a debug build, and reports the fields that its page lists. Speed is not
//! tested.

use std::{collections::BTreeSet, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value};

const PAGE: &str = include_str!("../../../../docs/reference/limits.md");
const PROGRAM: &str = env!("CARGO_BIN_EXE_xtask-operator");

/// Runs a benchmark, and returns its report: one object per line.
fn reports(benchmark: &str, args: &[&str]) -> Result<Vec<Map<String, Value>>> {
    let operator = Path::new(PROGRAM).with_file_name("windows-node-pools");
    ensure!(operator.exists(), "{} is not built: run the tests with --workspace", operator.display());
    let mut command = Command::new(PROGRAM);
    command.args(["bench", benchmark]).args(args).env("WNP_BENCH_OPERATOR", operator);
    let output = command.output()?;
    let (out, err) = (String::from_utf8(output.stdout)?, String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{benchmark}: {}\n{out}\n{err}", output.status);
    out.lines().map(|line| serde_json::from_str(line).with_context(|| format!("{benchmark}: {line}"))).collect()
}

/// Returns the fields that the page lists for a benchmark: in a table, or in a sentence that begins with `Fields:`.
fn listed(page: &str, benchmark: &str) -> BTreeSet<String> {
    let section = page.split("\n### ").find(|section| section.lines().next() == Some(benchmark)).unwrap_or_default();
    let table = section.split("| field | meaning |").nth(1).unwrap_or_default();
    let cells = table.lines().skip(1).take_while(|line| line.starts_with('|')).filter_map(|row| row.split('|').nth(1));
    let sentence = section.split("Fields:").nth(1).unwrap_or_default();
    let sentence = sentence.split(". ").next().unwrap_or_default().split("\n\n").next();
    let is_field = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let quoted =
        |text: &str| text.split('`').skip(1).step_by(2).filter(is_field).map(str::to_owned).collect::<Vec<_>>();
    cells.chain(sentence).flat_map(quoted).collect()
}

fn check_fields(benchmark: &str, args: &[&str], results: usize) -> Result<()> {
    let reported = reports(benchmark, args)?;
    ensure!(reported.len() == results, "{} results: {reported:?}", reported.len());
    let expected = listed(PAGE, benchmark);
    for result in &reported {
        let fields: BTreeSet<String> = result.keys().cloned().collect();
        ensure!(fields == expected, "{benchmark} reports {fields:?}, and its page lists {expected:?}");
    }
    Ok(())
}

#[test]
fn join_reports_the_fields_of_its_page() -> Result<()> {
    check_fields("join", &["--profile", "processes"], 1)
}

#[test]
fn rollout_reports_the_fields_of_its_page() -> Result<()> {
    check_fields("rollout", &["--hosts", "1"], 1)
}

#[test]
fn idle_reports_the_fields_of_its_page() -> Result<()> {
    check_fields("idle", &["--hosts", "1", "--seconds", "1", "--settle", "0"], 1)
}

/// Checks the report of `bench upload` for both round-trip times.
#[test]
fn upload_reports_the_fields_of_its_page() -> Result<()> {
    check_fields("upload", &["--mib", "1", "--times", "1"], 2)
}
