//! `cargo xtask check`: all checks of CI, ordered so that failures appear early.

use std::{
    fs,
    io::{self, BufRead as _, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use devenv::{AUDIT_DIR, WINDOWS_TARGET, execute, has_windows_target, skip, workspace_root};

use crate::{
    boundaries, deny, docs, fuzz, modules, operator_task,
    tools::{LYCHEE, prebuilt},
};

/// Runs all checks of CI for a change: format, spelling, links, tracked files, documentation, modules, dependencies, the site, clippy for
/// both targets, generated files, tests, the operator's permissions, and fuzz targets for a few seconds each.
#[derive(clap::Args)]
#[group(multiple = false)]
pub(crate) struct Args {
    /// Run only the steps that do not build the operator: format, spelling, links, tracked files, documentation, modules, boundaries and unused
    /// dependencies.
    #[arg(long)]
    fast: bool,
    /// Run the steps that take minutes: those of --fast, dependencies, the site, clippy, generated files, the build of the fuzz targets, and unit tests,
    /// which start no API server.
    #[arg(long)]
    quick: bool,
    /// Run the steps that take hours instead, or one part of them.
    #[arg(long, value_name = "PART", num_args = 0..=1, default_missing_value = "all")]
    nightly: Option<Night>,
}

/// Part of the steps that take hours. Machines can share them.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Night {
    /// All parts.
    All,
    /// Tests of each change with more cases, longer walks and larger fleets.
    Tests,
    /// Each version of Kubernetes, and programs of other projects.
    Programs,
    /// Fuzz targets, ten minutes each.
    Fuzz,
    /// Payloads of a release, its images, built twice, and the soak benchmark.
    Release,
}

impl Night {
    fn steps(self) -> &'static [&'static [Step]] {
        match self {
            Self::All => &[LONG_TESTS, OTHER_PROGRAMS, LONG_FUZZING, RELEASE],
            Self::Tests => &[LONG_TESTS],
            Self::Programs => &[OTHER_PROGRAMS],
            Self::Fuzz => &[LONG_FUZZING],
            Self::Release => &[RELEASE],
        }
    }
}

type Step = (&'static str, fn() -> Result<()>);

/// Steps that take seconds.
const FAST: &[Step] = &[
    ("format", || cargo(&["fmt", "--all", "--check"])),
    ("format of the fuzz targets", || cargo(&["fmt", "--manifest-path", "tools/fuzz/Cargo.toml", "--check"])),
    ("spelling", || execute(&mut prebuilt("typos")?)),
    ("links", || execute(prebuilt("lychee")?.args(LYCHEE).args(["--extensions", "md", "."]))),
    ("large files", || {
        finds_nothing("git ls-files -z | xargs -0 sh -c 'find \"$@\" -maxdepth 0 -type f -size +1M 2>/dev/null' find")
    }),
    ("absolute paths of one machine", || {
        finds_nothing(r"git grep -nE '(^|[^A-Za-z0-9_./-])/(root|(home|tmp)/[A-Za-z0-9_.-]+)/'")
    }),
    ("documentation", || docs::run(&docs::Args { check: true })),
    ("modules", || modules::run(&modules::Args {})),
    ("unused dependencies", || execute(prebuilt("cargo-shear")?.arg("--locked"))),
    ("unused dependencies of the fuzz targets", || execute(prebuilt("cargo-shear")?.args(["--locked", "tools/fuzz"]))),
    ("boundaries", || boundaries::run(&boundaries::Args {})),
];

/// Steps that take minutes.
const OF_MINUTES: &[Step] = &[
    ("generated files", || execute(operator_task("gen").arg("--check"))),
    ("dependencies", || deny::run(&deny::Args {})),
    ("site of the documentation", || docs::run(&docs::Args { check: false })),
    ("clippy", || cargo(&["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"])),
    ("clippy for Windows", clippy_for_windows),
    // The fuzz targets are in a workspace of their own: no other step compiles them.
    ("build of the fuzz targets", || fuzz::build().map(drop)),
];

/// Tests without an API server.
const QUICK: &[Step] = &[("tests beside the code", || tests(BESIDE_THE_CODE, &[]))];

/// Further steps that each change must pass.
const THOROUGH: &[Step] = &[
    ("tests", all_tests),
    ("the operator's rights", || execute(operator_task("rights").arg("--logs").arg(audit_logs()))),
    ("fuzz targets", || fuzz_targets(4)),
];

/// Tests of each change with more cases, and tests of larger fleets.
const LONG_TESTS: &[Step] = &[
    ("property tests with many cases", || tests(BESIDE_THE_CODE, &[("PROPTEST_CASES", "10000")])),
    ("long walks", || tests(&["--test", "it", "--", "walk::"], &[("WALK_STEPS", "500")])),
    ("pairs with the whole cluster", || tests(&["--test", "it", "--", "pairs::", "--ignored"], &[])),
    ("page of a large fleet", || tests(&["--test", "it", "--", "ui::", "--ignored"], &[])),
];

/// Each version of Kubernetes, and compatibility with programs of other projects.
const OTHER_PROGRAMS: &[Step] = &[
    ("each version of Kubernetes", || {
        let file = workspace_root().join("tools/xtask-operator/src/gen/versions.tsv");
        let record = [("RECORD_VERSIONS", file.to_str().context("the folder's name is not UTF-8")?)];
        tests(&["--test", "it", "--", "versions::", "upgrade::", "node_programs::", "--include-ignored"], &record)
    }),
    ("judges", || tests(&["--test", "it", "--", JUDGES, "--test-threads", "1"], &[])),
];

const LONG_FUZZING: &[Step] = &[("fuzz targets", || fuzz_targets(600))];

/// Payloads of all versions, images that are built twice from the same sources, and an operator that runs for an hour.
const RELEASE: &[Step] = &[
    ("payload", || execute(operator_task("payload").args(["--out", "target/payload", "--kubernetes", "all"]))),
    ("images of a release, twice", || {
        execute(operator_task("image").args(["--payload", "target/payload", "--check-reproducible"]))
    }),
    ("soak", || execute(operator_task("bench").args(["soak", "--minutes", "60"]))),
];

/// Runs the selected steps, and stops at the first failure.
pub(crate) fn run(args: &Args) -> Result<()> {
    let begin = Instant::now();
    let steps: &[&[Step]] = match args {
        Args { fast: true, .. } => &[FAST],
        Args { quick: true, .. } => &[FAST, OF_MINUTES, QUICK],
        Args { nightly: Some(part), .. } => part.steps(),
        _ => &[FAST, OF_MINUTES, THOROUGH],
    };
    for (name, step) in steps.iter().copied().flatten() {
        println!("\n== {name} (after {} s)", begin.elapsed().as_secs());
        step().with_context(|| format!("check failed: {name}"))?;
    }
    println!("\nall good after {} s", begin.elapsed().as_secs());
    Ok(())
}

/// Runs a shell command that searches for files or lines that must not be committed. Fails if the command prints anything.
fn finds_nothing(search: &str) -> Result<()> {
    let output =
        Command::new("sh").args(["-c", search]).current_dir(workspace_root()).output().context("cannot start sh")?;
    let (found, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(error.is_empty(), "{search}: {error}");
    ensure!(found.is_empty(), "these files or lines must not be committed:\n{found}");
    Ok(())
}

fn cargo(args: &[&str]) -> Result<()> {
    execute(devenv::cargo().args(args))
}

fn clippy_for_windows() -> Result<()> {
    if !has_windows_target() {
        return skip(&format!(
            "clippy for Windows: the Rust toolchain has no {WINDOWS_TARGET}, which `cargo xtask setup` adds. The tests still build wicd.exe"
        ));
    }
    cargo(&["clippy", "--locked", "-p", "wicd", "-p", "api", "--target", WINDOWS_TARGET, "--", "-D", "warnings"])?;
    // The dependencies of the kubectl plug-in take minutes to build the first time.
    cargo(&["check", "--locked", "-p", "controller", "--bin", CLIENT, "--target", WINDOWS_TARGET])
}

/// kubectl plug-in, which is also built for Windows.
const CLIENT: &str = "kubectl-windows_node_pools";

fn fuzz_targets(seconds: u64) -> Result<()> {
    fuzz::run(&fuzz::Args { seconds, input: None, targets: Vec::new() })
}

/// Arguments for unit tests. They use more threads than processors, because some of them wait.
const BESIDE_THE_CODE: &[&str] = &["--lib", "--bins", "--", "--test-threads", "8"];

/// Integration tests whose fleets keep all processors busy. They run after the others, which mostly wait.
const BUSY: &[&str] = &["fleet_faults::", "pairs::", "waits::", "walk::"];

/// Number of `BUSY` tests that run at once, as some of them also wait.
const BUSY_TEST_THREADS: &str = "4";

/// Packages with few integration tests, which end within a minute and run last. `xtask-operator` also has few, but stays with the others: a cargo
/// command without it would build all packages again, with fewer features of their dependencies.
const SMALL: [&str; 2] = ["gitops", "testbed"];

/// Integration tests with programs of other projects, which take half an hour to build: they run only in the nightly check.
const JUDGES: &str = "judges::";

/// Number of the other integration tests that run at once.
const AT_ONCE: &str = "14";

/// Runs the tests of a change: all but [`JUDGES`] and ignored ones. Their API servers write audit logs to [`audit_logs`].
fn all_tests() -> Result<()> {
    let logs = empty_audit_logs()?;
    let logs = logs.to_str().context("the folder's name is not UTF-8")?;
    let small = [
        "--exclude",
        "controller",
        "--test",
        "it",
        "--",
        "--test-threads",
        AT_ONCE,
        "--skip",
        "bench::",
        "--skip",
        "take::",
    ];
    let mut others: Vec<&str> = SMALL.iter().flat_map(|package| ["--exclude", package]).collect();
    others.extend(["--test", "it", "--", "--test-threads", AT_ONCE]);
    others.extend(BUSY.iter().chain(&[JUDGES]).flat_map(|other| ["--skip", other]));
    let busy = [&["--test", "it", "--", "--test-threads", BUSY_TEST_THREADS], BUSY].concat();
    // Control planes live for seconds: less garbage collection saves time and costs memory.
    let variables = [(AUDIT_DIR, logs), ("GOGC", "400")];
    // One build of all tests uses the processors better than one for each choice.
    cargo(&["test", "--locked", "--workspace", "--lib", "--bins", "--test", "it", "--no-run"])?;
    let code = cargo_test(BESIDE_THE_CODE, &variables, None)?;
    let docs = cargo_test(&["--doc"], &variables, None)?;
    let (others, busy, small) = thread::scope(|scope| {
        let (running, ended) = mpsc::channel();
        let others = scope.spawn(|| cargo_test(&others, &variables, Some(running)));
        // Nothing is sent: the sender is dropped when few tests are left.
        let _ = ended.recv();
        let (busy, small) = (cargo_test(&busy, &variables, None), cargo_test(&small, &variables, None));
        (others.join(), busy, small)
    });
    report([code, docs, others.map_err(|_| anyhow!("the thread of a cargo command panicked"))??, busy?, small?])
}

/// Runs a choice of tests.
fn tests(chosen: &[&str], variables: &[(&str, &str)]) -> Result<()> {
    report([cargo_test(chosen, variables, None)?])
}

/// Prints the sums of several outcomes, and fails with all failures, below the output of all test binaries.
fn report<const N: usize>(outcomes: [Outcome; N]) -> Result<()> {
    let sum = |kind: usize| -> u32 { outcomes.iter().map(|outcome| outcome.sum[kind]).sum() };
    let passed = sum(0);
    println!("\n{passed} passed, {} failed, {} skipped", sum(1), sum(2));
    let failed: Vec<_> = outcomes.into_iter().flat_map(|outcome| outcome.failed).collect();
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    ensure!(passed > 0, "no test ran");
    Ok(())
}

/// Returns the failed test in a line such as `test a::b ... FAILED`.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// Returns the test whose output begins at a line such as `---- a::b stdout ----`.
fn begins_output(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// Maximum number of lines of a failure's reason that are repeated at the end.
const REASON_LINES: usize = 8;
/// Maximum number of characters of such a line.
const REASON_WIDTH: usize = 240;

/// Failed tests with their reasons. If a long output is truncated, its end still shows them.
#[derive(Default)]
struct Failures {
    tests: Vec<(String, Vec<String>)>,
    /// Test whose output is being read.
    at: Option<usize>,
}

impl Failures {
    fn read(&mut self, line: &str) {
        if let Some(test) = failed_test(line) {
            self.tests.push((test.to_owned(), Vec::new()));
        } else if let Some(test) = begins_output(line) {
            self.at = self.tests.iter().position(|(failed, _)| failed == test);
        } else if line == "failures:" || counts(line).is_some() {
            self.at = None;
        } else if let Some((_, reason)) = self.at.and_then(|at| self.tests.get_mut(at)) {
            // The last error or panic ended the test.
            if line.starts_with("Error: ") || line.contains(" panicked at ") {
                reason.clear();
            }
            if reason.len() < REASON_LINES && !line.trim().is_empty() {
                reason.push(line.chars().take(REASON_WIDTH).collect());
            }
        }
    }

    fn lines(self) -> Vec<String> {
        let indented = |lines: Vec<String>| lines.into_iter().map(|line| format!("    {line}"));
        self.tests.into_iter().flat_map(|(test, reason)| [test].into_iter().chain(indented(reason))).collect()
    }
}

/// Results of one cargo command.
#[derive(Default)]
struct Outcome {
    /// Numbers of passed, failed and skipped tests.
    sum: [u32; 3],
    /// Failed tests with their reasons.
    failed: Vec<String>,
}

/// Runs a choice of tests. Drops `running` when [`FEW`] tests of a long test binary are left, because processors are idle then.
fn cargo_test(chosen: &[&str], variables: &[(&str, &str)], mut running: Option<mpsc::Sender<()>>) -> Result<Outcome> {
    let mut command = devenv::cargo();
    command.args(["test", "--locked", "--workspace", "--no-fail-fast"]).args(chosen);
    let mut child =
        command.envs(variables.iter().copied()).stdout(Stdio::piped()).spawn().context("cannot start cargo test")?;
    let (mut failures, mut outcome, mut left) = (Failures::default(), Outcome::default(), Left(0));
    for line in BufReader::new(child.stdout.take().context("cargo test has no output")?).lines() {
        let line = line?;
        println!("{line}");
        failures.read(&line);
        if left.are_few_after(&line) {
            running = None;
        }
        for (sum, count) in outcome.sum.iter_mut().zip(counts(&line).into_iter().flatten()) {
            *sum += count;
        }
    }
    drop(running);
    let status = child.wait()?;
    outcome.failed = failures.lines();
    if !status.success() && outcome.failed.is_empty() {
        outcome.failed.push(format!("cargo test {}: {status}", chosen.join(" ")));
    }
    Ok(outcome)
}

/// Minimum number of tests of a long test binary.
const LONG: u32 = 100;
/// Number of remaining tests at which processors become idle.
const FEW: u32 = 5;

/// Number of tests that have not ended in the current test binary, or 0 if it is not long.
struct Left(u32);

impl Left {
    /// Updates the number by a line of output. Returns true for the line that brings it down to [`FEW`].
    fn are_few_after(&mut self, line: &str) -> bool {
        if let Some(count) = line.strip_prefix("running ").and_then(|rest| rest.strip_suffix(" tests")) {
            self.0 = count.parse().ok().filter(|count| *count >= LONG).unwrap_or_default();
        } else if is_result(line) && self.0 > 0 {
            self.0 -= 1;
            return self.0 == FEW;
        }
        false
    }
}

/// Reports whether a line such as `test a::b ... ok` says that a test has ended or is ignored.
fn is_result(line: &str) -> bool {
    line.starts_with("test ") && [" ... ok", " ... FAILED"].iter().any(|end| line.ends_with(end))
        || line.contains(" ... ignored")
}

/// Returns the folder to which API servers in tests write audit logs.
fn audit_logs() -> PathBuf {
    workspace_root().join("target/audit")
}

fn empty_audit_logs() -> Result<PathBuf> {
    let dir = audit_logs();
    match fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// Returns the numbers of passed, failed and skipped tests in a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
fn counts(line: &str) -> Option<[u32; 3]> {
    let words: Vec<&str> = line.strip_prefix("test result: ")?.split(' ').collect();
    let [_, passed, _, failed, _, skipped, ..] = *words else { return None };
    Some([passed.parse().ok()?, failed.parse().ok()?, skipped.parse().ok()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_tests_are_read() {
        for (line, failed, counted) in [
            ("test fleet::a_fleet_joins ... FAILED", Some("fleet::a_fleet_joins"), None),
            ("test fleet::a_fleet_joins ... ok", None, None),
            ("    fleet::a_fleet_joins ... FAILED", None, None),
            ("test test result: ok ... ok", None, None),
            ("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out", None, Some([3, 0, 1])),
            ("test result: FAILED. 40 passed; 2 failed; 0 ignored; 0 measured", None, Some([40, 2, 0])),
        ] {
            assert_eq!((failed_test(line), counts(line)), (failed, counted), "{line}");
        }
    }

    #[test]
    fn idle_processors_are_seen_near_the_end_of_a_long_binary() {
        let few_after = |count: u32, results: u32| {
            let begin = [format!("running {count} tests")];
            let ends = [" ... ok", " ... FAILED", " ... ignored, it runs by night"];
            let results = (0..results).zip(ends.iter().cycle()).map(|(i, end)| format!("test a::b{i}{end}"));
            let slow = ["test a::c has been running for over 60 seconds".to_owned()];
            let mut left = Left(0);
            begin.into_iter().chain(results).chain(slow).filter(|line| left.are_few_after(line)).count()
        };
        assert_eq!([few_after(120, 114), few_after(120, 115), few_after(120, 120), few_after(20, 20)], [0, 1, 1, 0]);
    }

    #[test]
    fn a_failed_test_is_repeated_with_its_reason() {
        let mut failures = Failures::default();
        let output = "test a::b ... FAILED\ntest c::d ... ok\ntest e::f ... FAILED\n\nfailures:\n\n---- a::b stdout ----\n\
            an operator's log\nError: no node\n\nCaused by:\n    timeout\n\n---- e::f stdout ----\n\n\
            thread 'e::f' (7) panicked at src/x.rs:3:\nnot equal\n\n\nfailures:\n    a::b\n    e::f\n\n\
            test result: FAILED. 1 passed; 2 failed; 0 ignored\nof nobody";
        output.lines().for_each(|line| failures.read(line));
        assert_eq!(
            failures.lines().join("\n"),
            "a::b\n    Error: no node\n    Caused by:\n        timeout\ne::f\n    thread 'e::f' (7) panicked at src/x.rs:3:\n    not equal"
        );
    }
}
