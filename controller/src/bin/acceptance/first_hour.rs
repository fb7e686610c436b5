//! First hour on a real host: ten checks, each made of rows, and the page with their results.

use controller::args::output;

use super::{
    Ended, JOIN,
    judge::{self, FAILED, Outcome, PASSED, SKIPPED},
    rows::{Need, ROWS, Row},
    world::HostObjects,
};

/// Check of the first hour.
pub(crate) struct Check {
    /// Subject of the check.
    about: &'static str,
    /// Ids of the rows that make up the check.
    rows: &'static [&'static str],
    /// Part of the check that must be done by hand.
    by_hand: &'static str,
}

const fn check(about: &'static str, rows: &'static [&'static str], by_hand: &'static str) -> Check {
    Check { about, rows, by_hand }
}

/// All checks, in their order.
#[rustfmt::skip]
pub(crate) const CHECKS: [Check; 10] = [
    check("command lines", &["programs", "command-lines"], ""),
    check("check host", &["check-host"], "run it again while Windows Update installs an update"),
    check("access lists", &["access-lists", "owner", "directories-above", "cni-directories"], "as an ordinary user, try mkdir in each directory"),
    check("services", &["service-recovery", "service-dependencies", "service-process", "killed-service", "lost-log-runner"], "stop a service that hangs; see whether the containers are those from before the log runner was killed"),
    check("containerd, pods", &["containerd-config", "pod", "pod-network", "pod-accounts", "pod-volumes"], ""),
    check("restart", &["after-restart", "restart-event", "clean-shutdown"], ""),
    check("hybrid overlay", &["join", "node-facts", "hybrid-endpoint", "overlay-network", "overlay-adapter", "overlay-proxy"], "repeat it on a host with a static address"),
    check("memory", &["memory"], ""),
    check("programs in use", &["replaced-in-use", "update", "rollback", "old-programs"], ""),
    check("removal", &["removal", "services-removed", "shims-ended", "hns-removed", "nothing-left"], ""),
];

/// Maximum number of lines of a command's output on the page.
const LINES: usize = 12;
/// Maximum number of characters of a line on the page.
const LINE: usize = 200;
/// Words in lower case that mark a line that may contain a secret.
const SECRET: [&str; 9] =
    ["private key", "password", "passwd", "token", "secret", "authorization", "bearer", "-key-data", "auth ="];
/// Note in place of a line that may contain a secret.
const LEFT_OUT: &str = "(left out: the line may hold a secret)";
/// Minimum length of a word that may be a key or a certificate.
const KEY: usize = 48;

/// Returns the rows in three groups: those that run before the join, the join and the facts of the node, and all others. Each group has the order of
/// the checks.
pub(crate) fn rows() -> Vec<&'static Row> {
    let with_join = [JOIN, "node-facts"];
    let of_checks = CHECKS.iter().flat_map(|check| check.rows).filter(|id| !with_join.contains(id));
    let found = of_checks.filter_map(|id| ROWS.iter().find(|row| row.id == *id));
    let (before, after): (Vec<_>, Vec<_>) = found.partition(|row| matches!(row.needs, Need::Wicd | Need::Payload));
    let join = ROWS.iter().filter(|row| with_join.contains(&row.id));
    before.into_iter().chain(join).chain(after).collect()
}

impl Check {
    /// Returns the outcome of the check, passed if all of its rows have passed, and the seconds that its rows took.
    fn outcome(&self, ended: &[Ended]) -> (Outcome, u64) {
        let of_check = || ended.iter().filter(|row| self.rows.contains(&row.id));
        let text = |result: &str| texts(of_check().filter(|row| row.outcome.result == result));
        let (failures, mut texts) = (text(FAILED), text(SKIPPED));
        let missing = self.rows.iter().filter(|id| !ended.iter().any(|row| row.id == **id));
        texts.extend(missing.map(|id| format!("{id}: not run")));
        let result = match (failures.is_empty(), texts.is_empty() && !self.rows.is_empty()) {
            (false, _) => FAILED,
            (true, true) => PASSED,
            (true, false) => SKIPPED,
        };
        let mut all = [failures, texts, text(PASSED)].concat();
        if !self.by_hand.is_empty() {
            all.push(format!("by hand: {}", self.by_hand));
        }
        (Outcome { result, text: all.join("; ") }, of_check().map(|row| row.took.as_secs()).sum())
    }
}

/// Returns the evidence of these rows, without evidence that may contain a secret. Rows with the same evidence are grouped.
fn texts<'a>(rows: impl Iterator<Item = &'a Ended>) -> Vec<String> {
    let mut texts: Vec<(Vec<&str>, &str)> = Vec::new();
    for row in rows {
        match texts.iter_mut().find(|(_, text)| *text == row.outcome.text) {
            Some((ids, _)) => ids.push(row.id),
            None => texts.push((vec![row.id], &row.outcome.text)),
        }
    }
    let shown = |text| if may_hold_secret(text) { LEFT_OUT } else { text };
    texts.into_iter().map(|(ids, text)| format!("{}: {}", ids.join(", "), shown(text))).collect()
}

/// Returns the page: the host, a line for each check, the `end` of the run, and the output of the commands of failed rows.
pub(crate) fn page(address: &str, version: &str, seen: Option<&HostObjects>, ended: &[Ended], end: &str) -> String {
    let head = ["CHECK", "SUBJECT", "RESULT", "TIME", "EVIDENCE"].map(str::to_owned);
    let lines = CHECKS.iter().enumerate().map(|(number, check)| {
        let (Outcome { result, text }, seconds) = check.outcome(ended);
        let text = judge::short(&text);
        [(number + 1).to_string(), check.about.to_owned(), result.to_owned(), format!("{seconds} s"), text]
    });
    let cells: Vec<_> = [head].into_iter().chain(lines).collect();
    let mut page = vec![heading(address, version, seen), output::aligned(&cells), end.to_owned()];
    for row in ended.iter().filter(|row| row.outcome.result == FAILED) {
        page.push(format!("{}: {}\n", row.id, harmless(&row.outcome.text)));
        for (command, output) in &row.printed {
            let status = output.status.map_or_else(|| "none".to_owned(), |status| status.to_string());
            let mut lines = output.text.lines().map(str::trim_end).filter(|line| !line.is_empty());
            let mut printed = vec![format!("  > {command} (exit status {status})\n")];
            printed.extend(lines.by_ref().take(LINES).map(|line| format!("    {}\n", harmless(line))));
            let more = lines.count();
            printed.extend((more > 0).then(|| format!("    … and {more} lines\n")));
            page.push(printed.concat());
        }
    }
    page.join("\n")
}

/// Returns the heading: the host and the tested programs.
fn heading(address: &str, version: &str, seen: Option<&HostObjects>) -> String {
    let facts = seen.and_then(|seen| seen.instance.as_ref()?.status.as_ref()?.facts.as_ref());
    let info = seen.and_then(|seen| seen.node.as_ref()?.status.as_ref()?.node_info.as_ref());
    let follows = seen.and_then(|seen| seen.instance.as_ref()?.status.as_ref()?.current_version.as_deref());
    let host = facts.map_or_else(
        || format!("the host reported no facts {version}"),
        |facts| format!("{} {}, {}", facts.os_name, facts.os_build, facts.language.as_deref().unwrap_or("no language")),
    );
    let node = info.map_or_else(
        || "none".to_owned(),
        |info| format!("kubelet {}, {}", info.kubelet_version, info.container_runtime_version),
    );
    let lines = [
        format!("The first hour on {address}"),
        format!("Windows:  {host}"),
        format!("Node:     {node}"),
        format!(
            "Programs: acceptance {}, the host follows {}",
            env!("CARGO_PKG_VERSION"),
            follows.unwrap_or("no version")
        ),
    ];
    lines.map(|line| format!("{}\n", api::text::line(&line, LINE).trim_end())).concat()
}

/// Returns the line, or a note in its place if it may contain a secret.
fn harmless(line: &str) -> String {
    if may_hold_secret(line) { LEFT_OUT.to_owned() } else { api::text::line(line, LINE) }
}

/// Reports whether a line may contain a secret.
fn may_hold_secret(line: &str) -> bool {
    let small = line.to_ascii_lowercase();
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=' | '-' | '_');
    // In a URL, a password comes before an @. A long word of hexadecimal digits is a hash, not a key.
    let is_key = |word: &str| word.len() >= KEY && !word.chars().all(|c| c.is_ascii_hexdigit());
    let has_password =
        small.split("://").skip(1).any(|rest| rest.split(['/', ' ']).next().is_some_and(|h| h.contains('@')));
    has_password || SECRET.iter().any(|word| small.contains(word)) || line.split(|c| !is_word(c)).any(is_key)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::judge::{Output, failed, passed, skipped},
        *,
    };

    fn ended(id: &'static str, outcome: Outcome) -> Ended {
        Ended { id, outcome, took: Duration::from_secs(2), printed: Vec::new() }
    }

    #[test]
    fn the_join_comes_before_the_rows_that_need_a_node() {
        let ids: Vec<&str> = rows().iter().map(|row| row.id).collect();
        let of_checks: Vec<&str> = CHECKS.iter().flat_map(|check| check.rows).copied().collect();
        assert_eq!(ids[..5], ["programs", "check-host", "join", "node-facts", "command-lines"]);
        let rest: Vec<&str> = of_checks.into_iter().filter(|id| !ids[..4].contains(id)).collect();
        assert_eq!(ids[4..], rest);
    }

    #[test]
    fn a_check_passes_only_if_all_its_rows_have() {
        let both = check("x", &["a", "b"], "");
        let (a, b, other) = (ended("a", passed("fine")), ended("b", passed("good")), ended("c", failed("bad")));
        for (rows, expected) in [
            (vec![a, b, other], (PASSED, "a: fine; b: good", 4)),
            (vec![ended("a", passed("fine"))], (SKIPPED, "b: not run; a: fine", 2)),
            (vec![ended("a", passed("fine")), ended("b", skipped("no"))], (SKIPPED, "b: no; a: fine", 4)),
            (vec![ended("a", skipped("no")), ended("b", failed("bad"))], (FAILED, "b: bad; a: no", 4)),
            (vec![ended("a", skipped("no")), ended("b", skipped("no"))], (SKIPPED, "a, b: no", 4)),
            (vec![], (SKIPPED, "a: not run; b: not run", 0)),
            (
                vec![ended("a", passed("fine")), ended("b", failed("Password = x"))],
                (FAILED, "b: (left out: the line may hold a secret); a: fine", 4),
            ),
            (
                vec![ended("a", passed("fi\u{1b}[2Jne")), ended("b", passed("good"))],
                (PASSED, "a: fi [2Jne; b: good", 4),
            ),
        ] {
            let (outcome, seconds) = both.outcome(&rows);
            assert_eq!((outcome.result, outcome.text.as_str(), seconds), expected);
        }
        let (outcome, _) = check("x", &[], "do it").outcome(&[]);
        assert_eq!((outcome.result, outcome.text.as_str()), (SKIPPED, "by hand: do it"));
    }

    #[test]
    fn the_page_has_what_a_failed_row_has_printed() {
        let mut row = ended("service-recovery", failed("unexpected"));
        let text = format!("[SC] OpenService FAILED 5:\n\nHTTP_PROXY=http://a:b@proxy\n{}", "line\n".repeat(20));
        row.printed = vec![("sc.exe qfailure kubelet", Output { status: Some(5), text })];
        let page = page("10.0.0.1", "", None, &[row], "Nothing is left.\n");
        assert!(
            page.starts_with("The first hour on 10.0.0.1\nWindows:  the host reported no facts\nNode:     none\n"),
            "{page}"
        );
        let expected = "\nNothing is left.\n\nservice-recovery: unexpected\n\n  > sc.exe qfailure kubelet (exit status 5)\n    [SC] OpenService FAILED 5:\n    (left out: the line may hold a secret)\n    line\n";
        assert!(page.contains(expected) && page.ends_with("    … and 10 lines\n"), "{page}");
        assert!(page.contains("4       services           failed    2 s    service-recovery: unexpected"), "{page}");
    }

    #[test]
    fn a_line_with_a_secret_is_left_out() {
        for line in [
            "-----BEGIN OPENSSH PRIVATE KEY-----",
            "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj",
            "    token: abc",
            "  client-key-data: LS0t",
            "HTTP_PROXY=http://user:word@proxy:3128",
            "Password = x",
            r#"auth = "dXNlcjpwYXNz""#,
        ] {
            assert!(harmless(line).starts_with("(left out"), "{line}");
        }
        for line in [
            r"BINARY_PATH_NAME   : C:\k\kube-log-runner.exe -log-file=C:\var\log\kubelet\kubelet.log C:\k\kubelet.exe",
            "http://proxy.example.com:3128/a@b",
            r"C:\windows\wicd\bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\wicd.exe service",
            "BUILTIN\\Administrators:(OI)(CI)(F)",
        ] {
            assert_eq!(harmless(line), line);
        }
    }
}
