//! Live table: redrawn in place on a terminal, and otherwise one line for each change.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::Write as _,
    time::{Duration, Instant},
};

use api::{
    WindowsInstance, WindowsNodePool,
    conditions::{find, kind},
};
use jiff::Timestamp;

/// Maximum number of rows, so that the table fits on a terminal. Rows of Ready hosts are left out first.
const ROWS: usize = 16;

/// Objects of the cluster that the table shows.
pub(super) struct View {
    /// Pool, if it exists yet.
    pub(super) pool: Option<WindowsNodePool>,
    /// Instances of the pool.
    pub(super) instances: Vec<WindowsInstance>,
}

/// Row of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    host: String,
    step: String,
    since: Option<Timestamp>,
    status: String,
    ready: bool,
}

/// Live table.
pub(super) struct Table {
    terminal: bool,
    begun: Instant,
    /// Number of lines that were drawn last.
    drawn: usize,
    /// Last reported state of each host and of the pool.
    told: BTreeMap<String, (String, String)>,
}

impl Table {
    /// Returns a table that has not been drawn. `terminal` allows it to redraw lines.
    pub(super) fn new(terminal: bool) -> Self {
        Self { terminal, begun: Instant::now(), drawn: 0, told: BTreeMap::new() }
    }

    /// Draws the table, or prints the changes if the output is not a terminal. Returns true if the pool and all of `hosts` hosts are Ready.
    pub(super) fn draw(&mut self, view: &View, hosts: usize) -> bool {
        let rows: Vec<Row> = view.instances.iter().map(row).collect();
        let pool = pool_line(view, &rows, hosts);
        let mut out = String::new();
        if self.terminal {
            let text = lines(&rows, &pool, Timestamp::now());
            // Moves up to the first line and disables wrapping: the terminal truncates long lines.
            if self.drawn > 0 {
                let _ = write!(out, "\x1b[{}A", self.drawn);
            }
            let _ = write!(out, "\r\x1b[J\x1b[?7l{}\n\x1b[?7h", text.join("\n"));
            self.drawn = text.len();
        } else {
            let pool = ("pool".to_owned(), (String::new(), pool));
            let said = rows.iter().map(|r| (r.host.clone(), (r.step.clone(), r.status.clone()))).chain([pool]);
            for (name, (step, status)) in said {
                let now = (step.clone(), status.clone());
                if self.told.insert(name.clone(), now.clone()) != Some(now) {
                    let _ = writeln!(out, "{} {name:<10} {step:<10} {status}", stamp(self.begun.elapsed()));
                }
            }
        }
        print!("{out}");
        let _ = std::io::stdout().flush();
        let pool_ready = view.pool.as_ref().and_then(|p| p.status.as_ref()).is_some_and(|s| {
            find(&s.conditions, kind::READY).is_some_and(|c| c.status == "True")
                && usize::try_from(s.hosts) == Ok(hosts)
        });
        pool_ready && rows.iter().filter(|r| r.ready).count() == hosts
    }

    /// Prints the final table, unless the terminal already shows it.
    pub(super) fn finish(&self, view: &View, hosts: usize) {
        if !self.terminal {
            let rows: Vec<Row> = view.instances.iter().map(row).collect();
            println!("\n{}", lines(&rows, &pool_line(view, &rows, hosts), Timestamp::now()).join("\n"));
        }
    }
}

fn stamp(time: Duration) -> String {
    format!("{:>6.1} s ", time.as_secs_f64())
}

fn row(instance: &WindowsInstance) -> Row {
    let status = instance.status.clone().unwrap_or_default();
    let ready = find(&status.conditions, kind::READY);
    let phase = status.phase.map_or_else(|| "Pending".to_owned(), |p| format!("{p:?}"));
    let (step, since) = match &status.operation {
        Some(operation) => (operation.step.to_string(), operation.step_start_time.known()),
        None => (phase, ready.map(|c| c.last_transition_time.0)),
    };
    let says = ready.map(|c| c.message.clone()).unwrap_or_default();
    // The step has a column of its own.
    let status_text = says.strip_prefix(&format!("{step}: ")).unwrap_or(&says).to_owned();
    Row {
        host: instance.spec.host.name.clone(),
        step,
        since,
        status: status_text,
        ready: ready.is_some_and(|c| c.status == "True"),
    }
}

fn pool_line(view: &View, rows: &[Row], hosts: usize) -> String {
    let status = view.pool.as_ref().and_then(|p| p.status.clone()).unwrap_or_default();
    let message = find(&status.conditions, kind::READY).map(|c| c.message.clone()).unwrap_or_default();
    let ready = rows.iter().filter(|r| r.ready).count();
    if message.is_empty() { format!("{ready} of {hosts} nodes Ready") } else { message }
}

/// Returns all lines of the table: a heading, rows, and the pool.
fn lines(rows: &[Row], pool: &str, now: Timestamp) -> Vec<String> {
    let mut shown: Vec<&Row> = rows.iter().collect();
    if shown.len() > ROWS {
        shown.sort_by_key(|r| r.ready);
        shown.truncate(ROWS);
        shown.sort_by_key(|r| rows.iter().position(|other| other.host == r.host));
    }
    let width = |of: &dyn Fn(&Row) -> usize, least: usize| shown.iter().map(|r| of(r)).max().unwrap_or(0).max(least);
    let (host, step) = (width(&|r| r.host.len(), 4), width(&|r| r.step.len(), 11));
    let mut lines = vec![format!("{:<host$}  {:<step$}  {:>5}  STATUS", "HOST", "STEP", "SINCE")];
    for r in &shown {
        let since = r.since.map(|t| age(now.duration_since(t).as_secs())).unwrap_or_default();
        lines.push(format!("{:<host$}  {:<step$}  {since:>5}  {}", r.host, r.step, r.status));
    }
    if rows.len() > shown.len() {
        lines.push(format!("… and {} more", rows.len() - shown.len()));
    }
    lines.push(String::new());
    lines.push(format!("POOL  {pool}"));
    lines
}

/// Returns an age in a short form, such as `90s`, `5m` or `3h`.
fn age(seconds: i64) -> String {
    match seconds.max(0) {
        s @ 0..120 => format!("{s}s"),
        s @ 120..7200 => format!("{}m", s / 60),
        s => format!("{}h", s / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn instance(name: &str, status: serde_json::Value) -> WindowsInstance {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "poolRef": {"name": "demo"},
                "host": {"name": name, "address": "10.0.0.1", "port": 22, "username": "Administrator", "privateKeys": []},
            },
            "status": status,
        }))
        .unwrap()
    }

    fn condition(status: &str, message: &str) -> serde_json::Value {
        json!([{"type": "Ready", "status": status, "reason": "R", "message": message, "lastTransitionTime": "1970-01-01T00:00:10Z"}])
    }

    #[test]
    fn a_row_has_step_and_status() {
        let operation = json!({"id": "a", "type": "Provision", "step": "Upload", "startTime": "x", "stepStartTime": "1970-01-01T00:01:00Z"});
        let joining = instance(
            "w1",
            json!({"phase": "Joining", "operation": operation, "conditions": condition("Unknown", "Upload: sending 4 of 4 files")}),
        );
        let ready = instance("w2", json!({"phase": "Ready", "conditions": condition("True", "posting")}));
        let rows = [row(&joining), row(&ready), row(&instance("w3", json!({})))];
        let now = Timestamp::from_second(70).unwrap();
        assert_eq!(
            lines(&rows, "1 of 3 nodes Ready", now),
            [
                "HOST  STEP         SINCE  STATUS",
                "w1    Upload         10s  sending 4 of 4 files",
                "w2    Ready          60s  posting",
                "w3    Pending             ",
                "",
                "POOL  1 of 3 nodes Ready",
            ]
        );
    }

    #[test]
    fn hosts_that_are_not_ready_have_rows_first() {
        let ready =
            |n: usize| instance(&format!("r{n}"), json!({"phase": "Ready", "conditions": condition("True", "")}));
        let mut rows: Vec<Row> = (0..40).map(|n| row(&ready(n))).collect();
        rows.push(row(&instance("last", json!({}))));
        let lines = lines(&rows, "", Timestamp::UNIX_EPOCH);
        assert_eq!(lines.len(), ROWS + 4);
        assert!(lines[ROWS].starts_with("last"), "{lines:?}");
        assert_eq!(lines[ROWS + 1], "… and 25 more");
    }
}
