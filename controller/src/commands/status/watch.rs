//! Command `status --watch`: prints the tree whenever a pool or a host has changed.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use kube::Client;

use super::{Layout, live::Live, terminal};
use crate::args::Status;

/// Prints the tree whenever it or a warning changes, and on a terminal at every refresh, until the program is interrupted or its output is closed.
///
/// # Errors
/// Fails when the watches of pools and hosts cannot be started, or nothing can be printed.
pub(super) async fn run(args: &Status, client: &Client) -> anyhow::Result<ExitCode> {
    let mut live = Live::of(client);
    let mut before = None;
    loop {
        let (seen, warnings) = live.next(args).await?;
        let lines = terminal().map(|(_, lines)| lines);
        let now = Some((seen.pools.clone(), seen.operator.clone(), warnings.clone()));
        // Only a terminal, where a tree replaces the previous one, is updated for changed ages.
        if lines.is_some() || now != before {
            let warnings = warnings.into_iter().map(|warning| format!("Warning: {warning}\n"));
            let text = warnings.chain([seen.text(Layout::of(args))]).collect::<String>();
            let mut out = io::stdout().lock();
            let shown = frame(&text, lines);
            match out.write_all(shown.as_bytes()).and_then(|()| out.flush()) {
                // The reader has ended, as `head` does.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
                result => result?,
            }
            drop(out);
            before = now;
        }
    }
}

/// Returns the text to print. On a terminal, it replaces the previous one and is no longer than the terminal; otherwise an empty line follows it.
fn frame(text: &str, lines: Option<usize>) -> String {
    let Some(lines) = lines else { return format!("{text}\n") };
    let all = text.lines().count();
    let shown = if all < lines { all } else { lines.saturating_sub(2) };
    let more = (shown < all).then(|| format!("… {} more lines", all - shown));
    let shown = text.lines().take(shown).chain(more.as_deref());
    format!("\x1b[H{}\x1b[J", shown.flat_map(|line| [line, "\x1b[K\n"]).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_shows_one_tree_that_fits() {
        assert_eq!(frame("a\nb\n", None), "a\nb\n\n");
        assert_eq!(frame("a\nb\n", Some(10)), "\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J");
        assert_eq!(frame("a\nb\nc\n", Some(3)), "\x1b[Ha\x1b[K\n… 2 more lines\x1b[K\n\x1b[J");
        assert_eq!(frame("a\nb\nc\n", Some(0)), "\x1b[H… 3 more lines\x1b[K\n\x1b[J");
    }
}
