//! Report of a run: its rows, the host and the programs, what failed rows have printed, and what is left.

use controller::args::output;

use super::{
    Ended,
    judge::{FAILED, PASSED, SKIPPED},
    world::HostObjects,
};

/// Maximum number of lines of a command's output in the report, and maximum number of characters of a line.
const LINES: usize = 12;
const LINE: usize = 200;
/// Words of lines that may contain a secret, in lower case.
const SECRET: [&str; 9] =
    ["private key", "password", "passwd", "token", "secret", "authorization", "bearer", "-key-data", "auth ="];
/// Minimum length of a word that may be a key or a certificate.
const KEY: usize = 48;

/// Returns the report. `windows` is the version of Windows at the log-in, `seen` has the objects of the host before its removal, and `end` says what
/// is left.
pub(crate) fn text(rows: &[Ended], windows: &str, seen: Option<&HostObjects>, end: &str) -> String {
    let head = ["ROW", "RESULT", "TIME", "EVIDENCE"].map(str::to_owned);
    let cells: Vec<_> = [head].into_iter().chain(rows.iter().map(Ended::cells)).collect();
    let count = |of: &str| format!("{} {of}", rows.iter().filter(|row| row.outcome.result == of).count());
    let counts = [PASSED, FAILED, SKIPPED].map(count).join(", ");
    let printed: String = rows.iter().map(printed).collect();
    format!("{}\n{counts}\n\n{}\n{printed}{end}", output::aligned(&cells), tested(windows, seen))
}

/// Returns lines about the host and the tested programs.
fn tested(windows: &str, seen: Option<&HostObjects>) -> String {
    let status = seen.and_then(|seen| seen.instance.as_ref()?.status.as_ref());
    let host = status.and_then(|status| status.facts.as_ref()).map_or_else(
        || format!("it reported no facts {windows}"),
        |facts| format!("{} {}, {}", facts.os_name, facts.os_build, facts.language.as_deref().unwrap_or("no language")),
    );
    let node = seen.and_then(|seen| seen.node.as_ref()?.status.as_ref()?.node_info.as_ref()).map_or_else(
        || "none".to_owned(),
        |info| format!("kubelet {}, {}", info.kubelet_version, info.container_runtime_version),
    );
    let follows = status.and_then(|status| status.current_version.as_deref()).unwrap_or("nothing");
    let programs = format!("acceptance {}, the host follows {follows}", env!("CARGO_PKG_VERSION"));
    let line = |text: String| format!("{}\n", api::text::line(&text, LINE));
    [format!("Windows:  {host}"), format!("Node:     {node}"), format!("Programs: {programs}")].map(line).concat()
}

/// Returns the commands of a failed row with their outputs.
fn printed(row: &Ended) -> String {
    let command = |(command, output): &(&str, super::Output)| {
        let status = output.status.map_or_else(|| "none".to_owned(), |status| status.to_string());
        let mut lines = output.text.lines().map(str::trim_end).filter(|line| !line.is_empty());
        let first: Vec<String> = lines.by_ref().take(LINES).map(|line| format!("    {}\n", harmless(line))).collect();
        let more = lines.count();
        let more = if more > 0 { format!("    … and {more} lines\n") } else { String::new() };
        format!("{}> {command} (exit status {status})\n{}{more}\n", row.id, first.concat())
    };
    row.printed.iter().map(command).collect()
}

/// Returns the line, or a note in its place if it may contain a secret.
fn harmless(line: &str) -> String {
    let small = line.to_ascii_lowercase();
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=' | '-' | '_');
    // In a URL, a password comes before an @. A long word of hexadecimal digits is a hash, and no key.
    let is_key = |word: &str| word.len() >= KEY && !word.chars().all(|c| c.is_ascii_hexdigit());
    let has_password =
        small.split("://").skip(1).any(|rest| rest.split(['/', ' ']).next().is_some_and(|h| h.contains('@')));
    if has_password || SECRET.iter().any(|word| small.contains(word)) || line.split(|c| !is_word(c)).any(is_key) {
        return "(left out: the line may hold a secret)".to_owned();
    }
    api::text::line(line, LINE)
}

/// Returns the last lines of the report: whether the run was interrupted, and what is left.
pub(crate) fn end(left: &[String], interrupted: bool) -> String {
    let interrupted = if interrupted { "The run was interrupted.\n" } else { "" };
    let nothing = if left.is_empty() { "Nothing is left.\n" } else { "" };
    let left: Vec<String> = left.iter().map(|what| format!("Left: {what}\n")).collect();
    [interrupted, &left.concat(), nothing].concat()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::judge::{Output, failed, passed, skipped},
        *,
    };

    #[test]
    fn the_report_has_the_rows_and_the_output_of_failed_ones() {
        let output = format!("[SC] OpenService FAILED 5:\n\nHTTP_PROXY=http://a:b@proxy\n{}", "line\n".repeat(20));
        let printed = vec![("sc.exe qfailure kubelet", Output { status: Some(5), text: output })];
        let rows = [(passed("fine"), vec![]), (skipped("needs --image"), vec![]), (failed("unexpected"), printed)]
            .map(|(outcome, printed)| Ended { id: "join", outcome, took: Duration::from_millis(2_500), printed });
        let lines = "    line\n".repeat(10);
        let expected = format!(
            "\
ROW    RESULT    TIME   EVIDENCE
join   passed    2 s    fine
join   skipped   2 s    needs --image
join   failed    2 s    unexpected

1 passed, 1 failed, 1 skipped

Windows:  it reported no facts
Node:     none
Programs: acceptance {}, the host follows nothing

join> sc.exe qfailure kubelet (exit status 5)
    [SC] OpenService FAILED 5:
    (left out: the line may hold a secret)
{lines}    … and 10 lines

The run was interrupted.
Left: the pool x
",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(text(&rows, "", None, &end(&["the pool x".into()], true)), expected);
        assert_eq!(end(&[], false), "Nothing is left.\n");
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
