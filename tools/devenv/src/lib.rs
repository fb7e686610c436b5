//! Machine on which this workspace is built and tested: its programs, its cache folder, and cargo as a child process.
//!
//! `cargo xtask` and the test bed share this crate. It has few dependencies, so that the first command in a fresh clone starts within
//! seconds.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

/// Target for which `wicd.exe` is built.
pub const WINDOWS_TARGET: &str = "x86_64-pc-windows-gnu";

/// Target for which the operator is built as a static program for nodes with amd64 processors.
pub const STATIC_TARGET: &str = "x86_64-unknown-linux-musl";

/// Target for which the operator is built as a static program for nodes with 64-bit ARM processors.
pub const ARM64_STATIC_TARGET: &str = "aarch64-unknown-linux-musl";

/// Environment variable that names the folder to which API servers in tests write audit logs.
pub const AUDIT_DIR: &str = "TESTBED_AUDIT_DIR";

/// Environment variable that turns each skip into an error. CI sets it to 1. Empty and 0 count as unset.
pub const REQUIRE_ALL: &str = "WNP_REQUIRE_ALL";

/// Interval of the lines that [`with_progress`] prints.
const PROGRESS: Duration = Duration::from_secs(20);

/// Returns the root of the workspace, or `.` if there is none above the crate. The variable that cargo sets at run time takes precedence over the
/// path at compile time, which may belong to another clone that shares the target folder.
pub fn workspace_root() -> PathBuf {
    let member =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let root = member.ancestors().find(|folder| folder.join("rust-toolchain.toml").is_file());
    root.map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Returns the folder that keeps builds and downloads between runs: `windows-node-pools` in `$XDG_CACHE_HOME` or `~/.cache`.
///
/// # Errors
/// Fails when neither `XDG_CACHE_HOME` nor `HOME` is set.
pub fn cache_dir() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => {
            PathBuf::from(std::env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?).join(".cache")
        }
    };
    Ok(base.join("windows-node-pools"))
}

/// Returns the path of the program `name` in `$PATH`, `/usr/sbin` or `/sbin`. `None` if it is in none of them.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

/// Reports whether the Rust toolchain in use has the standard library for [`WINDOWS_TARGET`].
pub fn has_windows_target() -> bool {
    has_target(WINDOWS_TARGET)
}

/// Reports whether the Rust toolchain in use has the standard library for a target.
pub fn has_target(target: &str) -> bool {
    let sysroot = read(Command::new("rustc").current_dir(workspace_root()).args(["--print", "sysroot"]));
    sysroot.is_ok_and(|sysroot| Path::new(&sysroot).join("lib/rustlib").join(target).is_dir())
}

/// Returns cargo's home folder: `$CARGO_HOME` or `~/.cargo`.
///
/// # Errors
/// Fails when neither `CARGO_HOME` nor `HOME` is set.
pub fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = std::env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    Ok(PathBuf::from(std::env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?).join(".cargo"))
}

/// Removes the variables `CARGO_PKG_*` and `CARGO_MANIFEST_*`, which cargo set for this program, from the environment of a cargo command. Build
/// scripts (ring's) read these variables: with other values than in a manual build, each of the two builds would invalidate the other.
pub fn forget_caller(cargo: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let set_by_cargo = |n: &str| n.starts_with("CARGO_PKG_") || n.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(set_by_cargo) {
            cargo.env_remove(name);
        }
    }
}

/// Returns a cargo command in the root of the workspace, after [`forget_caller`].
pub fn cargo() -> Command {
    let mut cargo = Command::new("cargo");
    forget_caller(&mut cargo);
    cargo.current_dir(workspace_root());
    cargo
}

/// Reports that this machine cannot run a test or a step of the check, which is skipped. Prints the reason even where the output of passing tests
/// is not shown.
///
/// # Errors
/// Fails if [`REQUIRE_ALL`] is set.
pub fn skip(reason: &str) -> Result<()> {
    let line = skipped(reason, std::env::var(REQUIRE_ALL).ok().as_deref())?;
    let thread = thread::current();
    // Tests capture the output of `eprintln`. A failed write is ignored.
    let _ = writeln!(std::io::stderr(), "{} {line}", thread.name().unwrap_or_default());
    Ok(())
}

fn skipped(reason: &str, require_all: Option<&str>) -> Result<String> {
    let may = matches!(require_all, None | Some("" | "0"));
    ensure!(may, "{reason}; this is an error because {REQUIRE_ALL} is set: without it, the test or step is skipped");
    Ok(format!("skipped: {reason}"))
}

/// Returns the exit code of a task. Prints an error with its causes, without a backtrace, which would hide them at the end of a log.
pub fn exit(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a program to its end.
///
/// # Errors
/// Fails when the program does not start, or its exit status is not 0.
pub fn execute(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", command.get_program().display()))?;
    ensure!(status.success(), "{}: {status}", command.get_program().display());
    Ok(())
}

/// Runs a program without input to its end, and returns its standard output without white space around it.
///
/// # Errors
/// Fails when the program does not start, or its exit status is not 0: then the error contains its standard error.
pub fn read(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {command:?}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}\n{}", output.status, error.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs `work`, and prints a line to standard error every 20 seconds until it returns. `what` completes the phrase "still …", for example
/// "building kube-apiserver".
pub fn with_progress<T>(what: &str, work: impl FnOnce() -> T) -> T {
    every(PROGRESS, |elapsed| eprintln!("still {what} ({} s)", elapsed.as_secs()), work)
}

/// Runs `work`, and calls `tick` with the time since the start at each interval.
fn every<T>(interval: Duration, tick: impl Fn(Duration) + Send, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    thread::scope(|scope| {
        // `_end` is dropped when `work` returns or panics: this ends the thread.
        let (_end, ended) = mpsc::channel::<()>();
        scope.spawn(move || {
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                tick(begin.elapsed());
            }
        });
        work()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_an_error_where_all_is_required() {
        for (require_all, may) in
            [(None, true), (Some(""), true), (Some("0"), true), (Some("1"), false), (Some("yes"), false)]
        {
            let said = skipped("there is no wine64", require_all).map_err(|error| error.to_string());
            assert_eq!(said.is_ok(), may, "{require_all:?}");
            assert!(said.unwrap_or_else(|error| error).contains("there is no wine64"), "{require_all:?}");
        }
    }

    /// Checks that the scripts of CI turn skipped tests into errors.
    #[test]
    fn ci_requires_all() {
        for script in [".ci/run", ".ci/nightly"] {
            let text = std::fs::read_to_string(workspace_root().join(script)).unwrap();
            assert!(text.lines().any(|line| line == format!("export {REQUIRE_ALL}=1")), "{script}");
        }
    }

    #[test]
    fn long_work_ticks_and_short_work_does_not() {
        let (ticks, ticked) = mpsc::channel();
        let result = every(
            Duration::from_millis(1),
            move |elapsed| {
                let _ = ticks.send(elapsed);
            },
            || ticked.recv_timeout(Duration::from_mins(1)).is_ok(),
        );
        assert!(result);
        let quiet = every(Duration::from_hours(1), |_| unreachable!("an hour has not passed"), || 7);
        assert_eq!(quiet, 7);
    }

    #[test]
    fn the_workspace_is_found() {
        assert!(workspace_root().join("rust-toolchain.toml").is_file());
    }
}
