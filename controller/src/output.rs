//! Answers of commands, on standard output.

use std::io::{self, Write as _};

/// Space between columns.
const GAP: usize = 3;

/// Prints a text. Who reads only the first lines, as `head` does, has what it wants.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Rows with columns as wide as their widest cell. Nothing follows the last.
pub(crate) fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or_default() + GAP;
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    rows.iter().map(line).collect()
}
