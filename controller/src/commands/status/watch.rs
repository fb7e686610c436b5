//! Command `status --watch`: the tree again, whenever a pool or a host has changed.

use std::{
    collections::VecDeque,
    io::{self, Write as _},
    pin::pin,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use api::{WindowsInstance, WindowsNodePool, text::line};
use futures::{FutureExt as _, StreamExt as _, future, stream};
use jiff::{SignedDuration, Timestamp};
use kube::{
    Api, Client,
    runtime::{WatchStreamExt as _, reflector, watcher},
};
use tokio::time::{sleep, timeout};

use super::{Operator, Seen, columns, operator_now, summarize, terminal};
use crate::args::{Status, StatusOutput};

/// Time for which changes are collected before the tree is printed once for all of them.
const COLLECT: Duration = Duration::from_millis(250);
/// Maximum time between two trees: whether an operator works is no change of a pool or of a host.
const REFRESH: Duration = Duration::from_secs(10);

/// Prints the tree whenever it has changed, until the program is interrupted.
///
/// # Errors
/// When the pools and hosts cannot be watched at first, or nothing can be printed.
pub(super) async fn run(args: &Status, client: &Client) -> anyhow::Result<ExitCode> {
    let (pools, pool_writer) = reflector::store::<WindowsNodePool>();
    let (instances, instance_writer) = reflector::store::<WindowsInstance>();
    let of = watcher::Config::default;
    let pool_events = reflector(pool_writer, watcher(Api::all(client.clone()), of())).default_backoff();
    let instance_events = reflector(instance_writer, watcher(Api::all(client.clone()), of())).default_backoff();
    // A fault of one watch ends with an answer to that watch alone.
    let results = stream::select(
        pool_events.map(|event| (0, event.map(drop))),
        instance_events.map(|event| (1, event.map(drop))),
    );
    let mut results = pin!(results);
    let mut before = String::new();
    let mut faults = [None, None];
    let mut asked: Option<(Instant, Operator, Timestamp)> = None;
    loop {
        let first = timeout(REFRESH, results.next()).await.ok().flatten();
        let mut seen: VecDeque<_> = first.into_iter().collect();
        let mut collected = pin!(sleep(COLLECT));
        while let future::Either::Left((Some(result), _)) = future::select(results.next(), &mut collected).await {
            seen.push_back(result);
        }
        for (watch, result) in seen {
            faults[watch] = result.err();
        }
        if future::try_join(pools.wait_until_ready(), instances.wait_until_ready()).now_or_never().is_none() {
            if let Some(error) = faults.iter_mut().find_map(Option::take) {
                return Err(error).context("failed to watch the WindowsNodePools and WindowsInstances");
            }
            continue;
        }
        let (mut pools, instances) = (pools.state(), instances.state());
        pools.retain(|pool| args.selects(pool));
        // Requests of their own: not for each change of a large fleet.
        if asked.as_ref().is_none_or(|(at, ..)| at.elapsed() >= REFRESH) {
            let (operator, now) = operator_now(args, client).await;
            asked = Some((Instant::now(), operator, now));
        }
        let Some((at, operator, then)) = &asked else { continue };
        let now = then.checked_add(SignedDuration::try_from(at.elapsed())?)?;
        let seen = Seen { pools: summarize(&pools, &instances, now), operator: operator.clone() };
        let mut text = String::new();
        for error in faults.iter().flatten() {
            text += "Warning: what follows may be old: ";
            text += &line(&error.to_string(), 400);
            text += "\n";
        }
        text += &seen.text(args.output == StatusOutput::Wide, columns(args));
        if text != before {
            let mut out = io::stdout().lock();
            let shown = frame(&text, terminal().map(|(_, lines)| lines));
            match out.write_all(shown.as_bytes()).and_then(|()| out.flush()) {
                // The reader has what it wants, as `head` does.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
                result => result?,
            }
            drop(out);
            before = text;
        }
    }
}

/// Returns the text to print: on a terminal in place of the one before, and no longer than the terminal; otherwise after it, with a line between
/// them.
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
