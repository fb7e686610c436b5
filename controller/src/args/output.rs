//! Output of commands, and questions to users.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use anyhow::ensure;
use serde::Serialize;

use crate::args::Output;

/// Number of spaces between columns.
const GAP: usize = 3;

/// Prints a text. A closed pipe is not an error: readers such as `head` end early.
///
/// # Errors
/// Fails when standard output cannot be written.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Returns the answer in the requested format: the table, or the value as JSON or YAML.
///
/// # Errors
/// Fails when the value cannot be serialised.
pub fn answer(format: Output, value: &impl Serialize, table: impl FnOnce() -> String) -> anyhow::Result<String> {
    Ok(match format {
        Output::Table => table(),
        Output::Json => serde_json::to_string_pretty(value)? + "\n",
        Output::Yaml => serde_yaml::to_string(value)?,
    })
}

/// Returns the rows as lines of text in which each column begins at the same position, without trailing spaces.
pub fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or_default() + GAP;
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    rows.iter().map(line).collect()
}

/// Prints the step that a command has reached, if standard error is a terminal.
pub fn progress(step: &str) {
    if io::stderr().is_terminal() {
        eprintln!("{step}");
    }
}

/// Prints the consequence of a command. Unless `yes` is set, also asks the user on the terminal for confirmation.
///
/// # Errors
/// Fails when standard input is not a terminal or cannot be read, or the answer is not yes.
pub fn ask(yes: bool, danger: &str) -> anyhow::Result<()> {
    eprintln!("{danger}");
    if yes {
        return Ok(());
    }
    ensure!(io::stdin().is_terminal(), "standard input is not a terminal, so nobody can be asked: confirm with --yes");
    eprint!("Continue? [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    ensure!(matches!(answer.trim(), "y" | "Y" | "yes"), "not confirmed; nothing was changed");
    Ok(())
}
