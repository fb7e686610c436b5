//! Rotation of logs that services do not rotate themselves: those below [`path::LOGS`] that their command lines name. Services under the log
//! runner are skipped, because it rotates their logs; wicd rotates its own log, see [`super::log`].
//!
//! Go programs open their logs on Windows without `FILE_SHARE_DELETE`: a log that is in use cannot be renamed, but can be read and truncated. So a
//! log is copied and then truncated. containerd and klog open their logs for appending, so that they continue at the new beginning. Lines written
//! between the last read and the truncation, a few at most, are lost. A program that does not append leaves zeros at the beginning of its log; such
//! a log is detected, and no longer rotated.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek};
use std::sync::Arc;
use std::time::Duration;

use api::host::{Desired, LogRotation, path};
use api::payload::is_host_path;
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use tracing::{info, warn};

use super::variables;
use crate::files;
use crate::host::{Host, HostError};

/// Interval between checks of the logs.
const EVERY: Duration = Duration::from_mins(1);
/// Program that runs a service and rotates its log.
const LOG_RUNNER: &str = "kube-log-runner.exe";
/// Space that a copy must leave free on `C:`, in bytes.
const RESERVE: u64 = 1 << 30;
/// Format of the UTC time in the name of a copied log.
const TIME: &str = "%Y%m%dT%H%M%S";
/// Number of zero bytes at the beginning of a log that show that its program does not append.
const GAP: usize = 512;

/// File in the directory of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFile {
    /// Path of the file.
    pub path: String,
    /// Size of the file in bytes.
    pub size: u64,
}

/// Action of a log rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Copy a log and truncate it.
    CopyTruncate {
        /// Path of the log.
        from: String,
        /// Path to which the content of the log is copied.
        to: String,
    },
    /// Delete the copy of a log.
    Delete(String),
}

/// Checks the logs every minute, forever. Returns only if a check panics. Without log settings in the desired state, no log is changed.
pub async fn keep(host: Arc<dyn Host>) {
    let mut complaints = BTreeMap::new();
    loop {
        let host = host.clone();
        let pass = tokio::task::spawn_blocking(move || {
            pass(&*host, Timestamp::now(), &mut complaints);
            complaints
        });
        let Ok(back) = pass.await else { return };
        complaints = back;
        tokio::time::sleep(EVERY).await;
    }
}

/// Makes one pass over the logs. A failure is logged once, and retried in the next pass.
fn pass(host: &dyn Host, now: Timestamp, complaints: &mut BTreeMap<String, String>) {
    let Some(desired) = files::read_json::<Desired>(host, path::DESIRED).ok().flatten() else { return };
    let Some(rotation) = desired.logs else { return };
    let logs = logs(&desired);
    let found = match look(host, &logs) {
        Ok(found) => found,
        Err(e) => return complain(complaints, path::LOGS, super::chain(&e)),
    };
    for action in plan_rotation(&logs, &found, rotation, now) {
        let (about, done) = match &action {
            Action::CopyTruncate { from, to } => (from, copy_truncate(host, from, to)),
            Action::Delete(aside) => (aside, files::remove(host, aside)),
        };
        match done {
            Ok(()) => drop(complaints.remove(about)),
            Err(e) => complain(complaints, about, super::chain(&e)),
        }
    }
}

/// Logs a problem with a log, unless it is the same as before.
fn complain(complaints: &mut BTreeMap<String, String>, log: &str, text: String) {
    if complaints.get(log) != Some(&text) {
        warn!(log, "{text}");
        complaints.insert(log.to_owned(), text);
    }
}

/// Returns the logs that the command lines of services name, without those of services that the log runner runs.
fn logs(desired: &Desired) -> BTreeSet<String> {
    let services = desired.services.services.iter();
    // The Node is not known here: a log whose name needs one of its variables is not found, and not rotated.
    services.flat_map(|s| named(&variables::command(s, desired, None).unwrap_or_else(|_| s.path.clone()))).collect()
}

/// Returns the files below [`path::LOGS`] that a command line names; none if the log runner is its program.
fn named(command: &str) -> Vec<String> {
    let program = match command.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => command.split(' ').next(),
    };
    let program = program.unwrap_or_default().rsplit('\\').next().unwrap_or_default();
    if program.eq_ignore_ascii_case(LOG_RUNNER) {
        return Vec::new();
    }
    let below = format!(r"{}\", path::LOGS).to_ascii_lowercase();
    let lower = command.to_ascii_lowercase();
    lower
        .match_indices(&below)
        .map(|(at, _)| {
            let end = if command[..at].ends_with('"') { &['"'][..] } else { &['"', ' '][..] };
            command[at..].split(end).next().unwrap_or_default().to_owned()
        })
        .filter(|log| is_host_path(log))
        .collect()
}

/// Returns the logs that exist, and the files beside them.
fn look(host: &dyn Host, logs: &BTreeSet<String>) -> Result<Vec<LogFile>, HostError> {
    let mut found = Vec::new();
    for directory in logs.iter().filter_map(|log| files::parent(log)).collect::<BTreeSet<_>>() {
        // A directory behind a link is skipped.
        let _held = match files::parents(host, &format!(r"{directory}\x")) {
            Err(HostError::Link { .. }) => continue,
            held => held?,
        };
        for name in files::list(host, directory)? {
            let path = format!(r"{directory}\{name}");
            // Files with names that wicd would not use are skipped.
            let stamp = if is_host_path(&path) { files::stamp(host, &path)? } else { None };
            found.extend(stamp.map(|s| LogFile { path, size: s.size }));
        }
    }
    Ok(found)
}

/// Returns the actions on the files that were found in the directories of `logs`. Only logs and their copies are touched.
pub fn plan_rotation(logs: &BTreeSet<String>, files: &[LogFile], rotation: LogRotation, now: Timestamp) -> Vec<Action> {
    let is_log = |path: &str| logs.iter().any(|log| log.eq_ignore_ascii_case(path));
    let time = now.to_zoned(TimeZone::UTC).strftime(TIME).to_string();
    let mut actions = Vec::new();
    for file in files {
        if is_log(&file.path) {
            let to = format!("{}-{time}.log", stem(&file.path));
            if file.size > 0 && file.size >= rotation.max_bytes {
                actions.push(Action::CopyTruncate { from: file.path.clone(), to });
            }
        } else if let Some(since) = logs.iter().find_map(|log| put_aside(log, &file.path)) {
            let age = now.as_second().saturating_sub(since.as_second());
            if u64::try_from(age).is_ok_and(|age| age > rotation.max_age_seconds) {
                actions.push(Action::Delete(file.path.clone()));
            }
        }
    }
    // Deletions come first, to free space for the copies.
    actions.sort_by_key(|a| matches!(a, Action::CopyTruncate { .. }));
    actions
}

fn stem(log: &str) -> &str {
    match log.len().checked_sub(4).and_then(|at| log.split_at_checked(at)) {
        Some((stem, end)) if end.eq_ignore_ascii_case(".log") => stem,
        _ => log,
    }
}

/// Returns the time of the copy if `path` is a copy of `log`.
fn put_aside(log: &str, path: &str) -> Option<Timestamp> {
    let stem = stem(log);
    let (start, rest) = path.split_at_checked(stem.len())?;
    let time = rest.strip_prefix('-')?.strip_suffix(".log")?;
    let digits = time.bytes().enumerate().all(|(n, b)| if n == 8 { b == b'T' } else { b.is_ascii_digit() });
    if !start.eq_ignore_ascii_case(stem) || time.len() != 15 || !digits {
        return None;
    }
    Some(DateTime::strptime(TIME, time).ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// Copies a log and truncates it, even without space for the copy: a full disk is worse than a lost log.
fn copy_truncate(host: &dyn Host, from: &str, to: &str) -> Result<(), HostError> {
    let failed = |e| HostError::system("rotate", from)(e);
    let _held = files::parents(host, from)?;
    let mut log = OpenOptions::new().read(true).write(true).open(host.path(from)?).map_err(failed)?;
    let size = log.metadata().map_err(failed)?.len();
    if begins_with_gap(&mut log).map_err(failed)? {
        let why = "its service does not append to it, so that truncating it frees no space; stop the service windows-instance-config-daemon \
                   and then the service of the log, delete the log, and start windows-instance-config-daemon, which starts the other service";
        return Err(failed(io::Error::new(ErrorKind::Unsupported, why)));
    }
    let free = host.disk_free()?;
    let copied = if free < size.saturating_add(RESERVE) {
        Err(ErrorKind::StorageFull.into())
    } else {
        let mut aside = File::create_new(host.path(to)?).map_err(failed)?;
        let copied = copy(&mut log, &mut aside, size);
        drop(aside);
        if copied.is_err() {
            // An incomplete copy is useless, and the log still exists.
            files::remove(host, to)?;
        }
        copied
    };
    match copied {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::StorageFull => {
            warn!(
                log = from,
                size_mib = size >> 20,
                free_mib = free >> 20,
                "C: is nearly full, so the log is truncated without a copy; free space on C:"
            );
        }
        Err(e) => return Err(failed(e)),
    }
    log.set_len(0).map_err(failed)?;
    info!(log = from, size_mib = size >> 20, "the log has been rotated");
    Ok(())
}

fn begins_with_gap(log: &mut File) -> io::Result<bool> {
    let mut start = Vec::with_capacity(GAP);
    log.by_ref().take(GAP as u64).read_to_end(&mut start)?;
    log.rewind()?;
    Ok(start.len() == GAP && start.iter().all(|b| *b == 0))
}

/// Copies a log of `size` bytes, and then the lines that were appended meanwhile.
fn copy(log: &mut File, aside: &mut File, size: u64) -> io::Result<()> {
    io::copy(&mut log.by_ref().take(size), aside)?;
    // The write to the disk takes most of the time, so lines that are appended meanwhile are copied afterwards.
    aside.sync_all()?;
    let rest = log.metadata()?.len().saturating_sub(size);
    io::copy(&mut log.take(rest), aside)?;
    Ok(())
}

#[cfg(test)]
#[path = "logs_tests.rs"]
mod tests;
