//! Resource usage of a process, from `/proc`.

use anyhow::{Context as _, Result};

/// Clock ticks per second in `/proc/<pid>/stat`. Linux always reports 100 to programs.
const TICKS: f64 = 100.0;

/// Resource usage of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Usage {
    /// CPU time of the process in user and kernel mode, in seconds.
    pub(super) cpu_seconds: f64,
    /// Current memory, in MiB.
    pub(super) rss_mib: f64,
    /// Peak memory, in MiB.
    pub(super) peak_rss_mib: f64,
}

impl Usage {
    /// Reads the usage of the process with this id.
    pub(super) fn of(pid: u32) -> Result<Self> {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
        parse(&read("stat")?, &read("status")?)
            .with_context(|| format!("cannot parse /proc/{pid}/stat or /proc/{pid}/status"))
    }
}

fn parse(stat: &str, status: &str) -> Option<Usage> {
    // The name, in parentheses, may contain any character.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    let mib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_whitespace().next()?.parse::<f64>().ok()? / 1024.0)
    };
    Some(Usage { cpu_seconds: ticks / TICKS, rss_mib: mib("VmRSS:")?, peak_rss_mib: mib("VmHWM:")? })
}
