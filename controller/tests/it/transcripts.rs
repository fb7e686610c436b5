//! Transcripts in the guides, which match the output of kubectl and the operator. Set `UPDATE_TRANSCRIPTS=1` to rewrite them, in
//! `docs/guide/transcripts/` and in the guides.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, ensure};
use api::{GrantType, Host, Step, WindowsInstance, WindowsNodePool, conditions::kind, names::key};
use kube::Api;
use serde_json::{Value, json};
use testbed::{
    payload::{self, Entry},
    sim::{BROKEN, Fault, HostOptions, SimOptions},
};

use crate::{
    faults::FAULTS,
    fleet::{World, has, pool_status, spec, spec_with, status},
    removal::{budget, pod},
    rollout::until_updated,
};

/// Transcripts, and the document that shows each. Faults have a page of their own.
const PAGES: [(&str, &str); 7] = [
    ("first-pool", "docs/guide/quick-start.md"),
    ("two-pools", "README.md"),
    ("rollout", "docs/guide/rollouts.md"),
    ("blocked-drain", "docs/guide/rollouts.md"),
    ("failed-canary", "docs/guide/rollouts.md"),
    ("plan", "docs/guide/rollouts.md"),
    ("status", "docs/guide/troubleshooting.md"),
];
/// Replacements of versions, in the order in which versions appear.
const VERSIONS: [&str; 3] = [
    "1.0.0-5c9a1f0e7b64d2380f1ac95be2370d68",
    "1.0.0-d27b44c3a8e6015f39b07ed2418fc65a",
    "1.0.0-90be6a7163d5c8f20ae417b93c502df8",
];
/// Replacements of key fingerprints, in the order in which fingerprints appear.
const PRINTS: [&str; 2] =
    ["9gbz3WrAUJIugTtSO3pmEJe1Ps5ndot26TZzD4/NvUs", "qRGHopaXhShGRL6FYT7GceZuiHcLCm7TqW1Q/9G0ZT8"];
/// Replacement of any time.
const TIME: &str = "2027-01-15T02:00:00Z";

/// Returns the path of the repository.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into()))
        .join("..")
}

/// Copies a folder of the repository into another folder, and returns the path of the copy.
pub(crate) fn copied(folder: &str, to: &Path) -> Result<PathBuf> {
    let from = root().join(folder);
    let status = std::process::Command::new("cp").arg("-r").arg(&from).arg(to).status()?;
    ensure!(status.success(), "cp -r {folder}: {status}");
    Ok(to.join(from.file_name().context("no name")?))
}

/// Returns all transcripts, and the documents that show them.
fn pages() -> impl Iterator<Item = (String, &'static str)> {
    let faults = FAULTS.iter().map(|(name, ..)| (format!("fault-{name}"), "docs/guide/transcripts/faults.txt"));
    PAGES.iter().map(|(name, guide)| ((*name).to_owned(), *guide)).chain(faults)
}

/// Commands and their output.
#[derive(Default)]
pub(crate) struct Transcript(String);

impl Transcript {
    pub(crate) fn say(&mut self, command: &str, printed: &str) {
        let gap = if self.0.is_empty() { "" } else { "\n" };
        let _ = write!(self.0, "{gap}$ {command}\n{}", tidy_tables(printed));
    }

    /// Returns the text with which transcripts are compared.
    pub(crate) fn text(&self) -> String {
        steady(&self.0)
    }

    /// Appends another transcript.
    pub(crate) fn append(&mut self, other: &Self) {
        let gap = if self.0.is_empty() { "" } else { "\n" };
        let _ = write!(self.0, "{gap}{}", other.0);
    }

    pub(crate) async fn kubectl(&mut self, world: &World, args: &[&str]) -> Result<()> {
        let output = world.control_plane.kubectl(args).await?;
        ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        let quoted: Vec<String> = args.iter().map(|a| quoted(a)).collect();
        let mut printed = String::from_utf8(output.stdout)?;
        if !printed.ends_with('\n') {
            printed.push('\n');
        }
        self.say(&format!("kubectl {}", quoted.join(" ")), &printed);
        Ok(())
    }

    /// Adds the output of the plugin's command `status` for these pools, or for all if none is named.
    pub(crate) fn status(&mut self, world: &World, pools: &[&str]) -> Result<()> {
        let (_, printed, error) = crate::status_command::status(world, pools)?;
        ensure!(error.is_empty(), "{error}");
        self.say(&[&["kubectl windows-node-pools status"], pools].concat().join(" "), &printed);
        Ok(())
    }

    /// Adds the Warning events of an object, if there are any.
    pub(crate) async fn warnings(&mut self, world: &World, object: &str) -> Result<()> {
        let args = ["events", "--for", object, "--types=Warning"];
        let output = world.control_plane.kubectl(&args).await?;
        ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        let printed = String::from_utf8(output.stdout)?;
        if printed.starts_with("LAST SEEN") {
            // Events of the same second have no order.
            let mut rows: Vec<&str> = printed.lines().collect();
            let message = rows[0].find("TYPE").unwrap_or_default();
            rows[1..].sort_by_key(|row| row.get(message..).unwrap_or_default().to_owned());
            self.say(&format!("kubectl {}", args.join(" ")), &(rows.join("\n") + "\n"));
        }
        Ok(())
    }

    /// Adds the pool's metrics about conditions and failures that are not 0.
    pub(crate) async fn metrics(&mut self, world: &World, pool: &str) -> Result<()> {
        let text = world.operator.get("/metrics").await?;
        let label = format!("{{pool=\"{pool}\"");
        let is_told = |line: &&str| {
            let counts = ["failed", "refused", "blocked", "condition", "failures"].iter().any(|w| line.contains(w));
            line.contains(&label) && counts && !line.contains("timestamp") && !line.ends_with(" 0")
        };
        let mut lines: Vec<&str> = text.lines().filter(is_told).collect();
        lines.sort_unstable();
        let command = format!(
            "curl -sk --oauth2-bearer \"$TOKEN\" https://localhost:9185/metrics | grep 'pool=\"{pool}\"' | grep -E 'failed|refused|blocked|condition|failures' | grep -v ' 0$'"
        );
        self.say(&command, &(lines.join("\n") + "\n"));
        Ok(())
    }

    /// Compares the transcript with the repository, or writes it if `UPDATE_TRANSCRIPTS` is set.
    pub(crate) fn check(self, page: &str) -> Result<()> {
        let text = steady(&self.0);
        let file = root().join(format!("docs/guide/transcripts/{page}.txt"));
        if std::env::var_os("UPDATE_TRANSCRIPTS").is_some() {
            std::fs::create_dir_all(file.parent().context("the file has no folder")?)?;
            std::fs::write(&file, &text)?;
            for (_, guide) in pages().filter(|(name, _)| name == page) {
                let guide = root().join(guide);
                let there = std::fs::read_to_string(&guide)?;
                std::fs::write(&guide, with_block(&there, page, &text)?)?;
            }
            return Ok(());
        }
        let there = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        ensure!(there == text, "{page} is not what is printed now; UPDATE_TRANSCRIPTS=1 rewrites it. Now:\n{text}");
        Ok(())
    }
}

fn quoted(arg: &str) -> String {
    if arg.contains(['{', '"', ' ', '*', '$']) { format!("'{arg}'") } else { arg.to_owned() }
}

/// Returns the text with fixed ages in its tables, and with columns as wide as their content.
fn tidy_tables(printed: &str) -> String {
    let mut text = String::new();
    let mut table: Vec<&str> = Vec::new();
    for line in printed.lines().chain([""]) {
        let begins = line.starts_with("NAME ") || line.starts_with("LAST SEEN ");
        if begins || line.is_empty() {
            text += &tidy(&table);
            table.clear();
        }
        if begins || !table.is_empty() {
            table.push(line);
        } else if !line.is_empty() {
            text += line;
            text.push('\n');
        }
    }
    text
}

fn tidy(table: &[&str]) -> String {
    let Some(head) = table.first() else { return String::new() };
    // A column begins where its head does. A head may have a space in it, but never two.
    let begins = |at: usize| !head[at..].starts_with(' ') && (at == 0 || head[..at].ends_with("  "));
    let starts: Vec<usize> = (0..head.len()).filter(|at| begins(*at)).collect();
    let cells = |line: &str| -> Vec<String> {
        let ends = starts.iter().skip(1).copied().chain([line.len()]);
        starts
            .iter()
            .zip(ends)
            .map(|(a, b)| line.get(*a..b.min(line.len())).unwrap_or_default().trim().to_owned())
            .collect()
    };
    let mut rows: Vec<Vec<String>> = table.iter().map(|l| cells(l)).collect();
    let heads = rows[0].clone();
    for row in rows.iter_mut().skip(1) {
        for (cell, head) in row.iter_mut().zip(&heads) {
            match head.as_str() {
                "AGE" => "3d".clone_into(cell),
                "LAST SEEN" => "8s".clone_into(cell),
                "SINCE" if !cell.is_empty() => "8s".clone_into(cell),
                _ => {}
            }
        }
    }
    let width = |n: usize| rows.iter().map(|r| r[n].chars().count()).max().unwrap_or_default() + 3;
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Returns the text with the same versions, times, ages, addresses and fingerprints in every run.
fn steady(text: &str) -> String {
    let mut prints: Vec<String> = Vec::new();
    let mut parts = text.split("SHA256:");
    let mut without_prints = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric() && !"+/".contains(c)).unwrap_or(part.len());
        let at = prints.iter().position(|p| *p == part[..end]).unwrap_or(prints.len());
        if at == prints.len() {
            prints.push(part[..end].to_owned());
        }
        let (print, rest) = (PRINTS.get(at).copied().unwrap_or(&part[..end]), &part[end..]);
        let _ = write!(without_prints, "SHA256:{print}{rest}");
    }
    let text = &without_prints;
    let mut known: Vec<String> = Vec::new();
    let mut addresses: Vec<&str> = Vec::new();
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':');
    let mut steady = String::new();
    for piece in text.split_inclusive(|c: char| !is_part(c)) {
        let word = piece.trim_end_matches(|c: char| !is_part(c)).trim_end_matches([':', '.']);
        let rest = &piece[word.len()..];
        if is_version(word) {
            // Some texts have only the beginning of a version.
            let is_this = |known: &String| known.starts_with(word) || word.starts_with(known.as_str());
            let at = known.iter().position(is_this).unwrap_or(known.len());
            if at == known.len() {
                known.push(word.to_owned());
            }
            steady += VERSIONS.get(at).map_or(word, |version| &version[..word.len()]);
        } else if let Some(address) = host_address(word) {
            // Addresses differ from run to run: each run has a network of its own, which the hosts of all its tests share.
            let at = addresses.iter().position(|a| *a == address).unwrap_or(addresses.len());
            if at == addresses.len() {
                addresses.push(address);
            }
            let _ = write!(steady, "10.20.0.{}{}", at + 11, &word[address.len()..]);
        } else if word.parse::<jiff::Timestamp>().is_ok() {
            steady += TIME;
        } else if is_age(word) && ["for", "next try in"].iter().any(|before| steady.trim_end().ends_with(before)) {
            steady += "8s";
        } else if word.len() == "2027-01-15".len() && word.parse::<jiff::civil::Date>().is_ok() {
            steady += &TIME[.."2027-01-15".len()];
        } else if word.strip_suffix('Z').is_some_and(|w| w.len() == 8 && w.parse::<jiff::civil::Time>().is_ok()) {
            steady += &TIME["2027-01-15T".len()..];
        } else {
            steady += word;
        }
        steady += rest;
    }
    steady
}

/// Reports whether a word is an age such as `8s` or `3h12m`.
fn is_age(word: &str) -> bool {
    let mut parts = word.split_inclusive(|c: char| !c.is_ascii_digit());
    let is_part = |part: &str| part.len() > 1 && part.ends_with(['s', 'm', 'h', 'd', 'y']);
    !word.is_empty() && parts.all(is_part)
}

/// Returns the address of a test bed host in a word such as `127.20.0.1` or `127.20.0.1:22`. No host is at 127.9.9.9.
fn host_address(word: &str) -> Option<&str> {
    let address = word.split(':').next().filter(|a| a.starts_with("127.") && *a != "127.9.9.9")?;
    address.parse::<std::net::Ipv4Addr>().is_ok().then_some(address)
}

/// Reports whether a word is a version such as `0.1.0-` and 32 hex digits, or the first 8 of them.
fn is_version(word: &str) -> bool {
    word.split_once('-').is_some_and(|(release, hash)| {
        release.split('.').count() == 3
            && release.split('.').all(|n| n.parse::<u32>().is_ok())
            && matches!(hash.len(), 8 | api::services_version::DIGITS)
            && hash.bytes().all(|b| b.is_ascii_hexdigit())
    })
}

/// Returns a guide with this text in place of the block after the mark of the page.
fn with_block(guide: &str, page: &str, text: &str) -> Result<String> {
    let mark = format!("<!-- transcript: {page} -->\n```console\n");
    let (before, rest) = guide.split_once(&mark).with_context(|| format!("the guide has no {mark:?}"))?;
    let (_, after) = rest.split_once("```\n").context("the block has no end")?;
    Ok(format!("{before}{mark}{text}```\n{after}"))
}

/// Returns the commands `kubectl get` for pools and instances without `-o`, with the rows that they print.
fn short_rows(transcript: &str) -> impl Iterator<Item = &str> {
    let mut is_short = false;
    transcript.lines().filter(move |line| {
        if line.starts_with("$ ") {
            is_short = line.starts_with("$ kubectl get w") && !line.contains(" -o ");
        }
        is_short
    })
}

#[test]
fn the_guides_show_the_transcripts() -> Result<()> {
    for (page, guide) in pages() {
        let shown = std::fs::read_to_string(root().join(guide))?;
        let text = std::fs::read_to_string(root().join(format!("docs/guide/transcripts/{page}.txt")))?;
        ensure!(!text.trim().is_empty(), "{page} is empty");
        ensure!(with_block(&shown, &page, &text)? == shown, "{guide} shows another {page} than the transcript");
        let wide = short_rows(&text).find(|row| row.chars().count() > 140);
        ensure!(wide.is_none(), "{page}: a terminal of 140 columns breaks {wide:?}");
    }
    Ok(())
}

#[test]
fn what_differs_from_run_to_run_is_replaced() {
    assert_eq!(
        steady("127.20.3.9 port 22, 127.20.0.1:22 and 127.20.3.9"),
        "10.20.0.11 port 22, 10.20.0.12:22 and 10.20.0.11"
    );
    let ages = "refused (failed once; next try in 9m59s) (for 12s), --limit 5m, for 7 days";
    assert_eq!(steady(ages), "refused (failed once; next try in 8s) (for 8s), --limit 5m, for 7 days");
    let printed = "NAME    MIN STEP   SINCE   AGE    STATUS\nwin-1   Drain      71s     5m2s   a b\nwin-2                      12s    c\n";
    let expected = "NAME    MIN STEP   SINCE   AGE   STATUS\nwin-1   Drain      8s      3d    a b\nwin-2                      3d    c\n";
    assert_eq!(tidy_tables(printed), expected);
    assert_eq!(
        steady(
            &"at 0.1.0-A, then 0.1.0-B: not 0.1.0-A since 2026-11-21T16:57:25Z\n"
                .replace('A', &"d0f0".repeat(8))
                .replace('B', &"0".repeat(32))
        ),
        "at 1.0.0-5c9a1f0e7b64d2380f1ac95be2370d68, then 1.0.0-d27b44c3a8e6015f39b07ed2418fc65a: not 1.0.0-5c9a1f0e7b64d2380f1ac95be2370d68 since 2027-01-15T02:00:00Z\n"
    );
    assert_eq!(steady("0.1.0-d0f0d0f0 to 0.1.0-00000000\n"), "1.0.0-5c9a1f0e to 1.0.0-d27b44c3\n");
    assert_eq!(
        steady("(failed once; next try 2026-11-22T00:57:25Z)\n"),
        "(failed once; next try 2027-01-15T02:00:00Z)\n"
    );
}

/// Covers the first minutes: a host that joins, a host that is a node, and a second pool with two errors.
#[tokio::test(flavor = "multi_thread")]
async fn the_transcript_of_the_first_pools_matches() -> Result<()> {
    let world = World::new(SimOptions::default(), &["--backoff-base", "1h", "--backoff-max", "1h"]).await?;
    let late =
        world.sim.host(HostOptions { faults: vec![Fault::NeverRegisters], ..HostOptions::named("win-1") }).await?;
    let hosts = [late, world.sim.host(HostOptions::named("win-2")).await?];
    world.apply("factory", &spec(&hosts)).await?;
    world.until_joined("win-2").await?;
    let registers = |i: &WindowsInstance| status(i).operation.is_some_and(|o| o.step == Step::Register);
    world.until_instance("win-1", "waits for its Node", registers).await?;
    let mut page = Transcript::default();
    page.kubectl(&world, &["get", "wi"]).await?;

    let mut other = spec(&hosts[1..]);
    let closed = Host { name: "win-9".into(), address: "127.9.9.9".into(), port: Some(2299), ..Host::default() };
    other.inventory.hosts.get_or_insert_default().push(closed);
    world.apply("other", &other).await?;
    world.until_failed("win-9", "Unreachable").await?;
    let both_errors = |p: &WindowsNodePool| {
        let status = pool_status(p);
        status.failed_nodes == 1 && has(&status.conditions, kind::INVENTORY_SYNCED, "False", "HostConflict")
    };
    world.until("other", "both errors are reported", both_errors).await?;
    let mut two = Transcript::default();
    two.kubectl(&world, &["get", "wi"]).await?;
    two.kubectl(&world, &["get", "wnp"]).await?;
    two.check("two-pools")?;

    hosts[0].mend();
    hosts[0].reboot();
    world.until_joined("win-1").await?;
    world.until("factory", "all are Ready", crate::fleet::is_ready).await?;
    page.kubectl(&world, &["get", "wnp", "factory"]).await?;
    page.check("first-pool")
}

/// Arguments with which a user changes containerd's settings through kubectl.
const CHANGE: [&str; 6] = [
    "patch",
    "wnp",
    "factory",
    "--type=merge",
    "-p",
    r#"{"spec":{"template":{"spec":{"containerd":{"maxConcurrentDownloads":6}}}}}"#,
];

/// Returns a rollout that changes one node, and the others after an approval.
fn rollout() -> Value {
    json!({"steps": [{"nodes": 1, "approval": true}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn the_transcripts_of_a_rollout_and_a_plan_match() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("win", 4).await?;
    world.join("factory", &spec_with(&hosts[..3], json!({"rollout": rollout()}))).await?;

    let mut page = Transcript::default();
    let template = json!({
        "metadata": {"labels": {"example.com/hall": "b"}},
        "spec": {"containerd": {"maxConcurrentDownloads": 6}},
    });
    let wanted =
        WindowsNodePool::new("factory", spec_with(&hosts[1..], json!({"rollout": rollout(), "template": template})));
    for (command, more) in [
        ("kubectl windows-node-pools plan -f factory.yaml", &[][..]),
        ("kubectl windows-node-pools plan -f factory.yaml -o json | jq '.[0].hosts[0]'", &["-o", "json"]),
    ] {
        let file = world.options.payload.with_file_name("factory.yaml");
        std::fs::write(&file, serde_yaml::to_string(&wanted)?)?;
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_kubectl-windows_node_pools"))
            .args(["plan", "-f"])
            .arg(&file)
            .arg("--payload")
            .arg(&world.options.payload)
            .arg("--wicd")
            .arg(&world.options.wicd)
            .args(more)
            .env("KUBECONFIG", world.control_plane.kubeconfig_as("a-person", &["system:masters"])?)
            .stdin(Stdio::null())
            .output()
            .await?;
        let mut printed = String::from_utf8(output.stdout)?;
        ensure!(output.status.code() == Some(2), "{printed} {}", String::from_utf8_lossy(&output.stderr));
        if !more.is_empty() {
            let answers: Value = serde_json::from_str(&printed)?;
            printed = serde_json::to_string_pretty(&answers[0]["hosts"][0])? + "\n";
        }
        page.say(command, &printed);
    }
    page.check("plan")?;

    let mut page = Transcript::default();
    page.kubectl(&world, &CHANGE).await?;
    world
        .until("factory", "one node has it and the others wait", |p| {
            let status = pool_status(p);
            status.up_to_date_nodes == 1 && has(&status.conditions, kind::READY, "Unknown", "WaitingForApproval")
        })
        .await?;
    for name in ["win-0", "win-1", "win-2"] {
        world.until_joined(name).await?;
    }
    page.kubectl(&world, &["get", "wnp", "factory"]).await?;
    page.status(&world, &["factory"])?;
    let version = pool_status(&world.pool("factory").await?).desired_version.context("no version")?;
    let approve = json!({"spec": {"rollout": {"approvedVersion": version}}}).to_string();
    page.kubectl(&world, &["patch", "wnp", "factory", "--type=merge", "-p", &approve]).await?;
    until_updated(&world, "factory").await?;
    page.kubectl(&world, &["get", "wnp", "factory"]).await?;
    page.kubectl(&world, &["get", "wnp", "factory", "-o", "jsonpath={.status.versions}"]).await?;
    page.check("rollout")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_transcript_of_a_blocked_drain_matches() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("win", 1).await?;
    world.join("factory", &spec(&hosts)).await?;
    pod(&world, "cart", "win-0", &[("app", "cart")]).await?;
    budget(&world, "cart", "cart").await?;

    let mut page = Transcript::default();
    page.kubectl(&world, &CHANGE).await?;
    world
        .until("factory", "the drain is blocked", |p| {
            has(&pool_status(p).conditions, kind::DEGRADED, "True", "DrainBlocked")
        })
        .await?;
    page.kubectl(&world, &["get", "wnp", "factory"]).await?;
    page.kubectl(&world, &["get", "wi", "win-0"]).await?;
    page.status(&world, &["factory"])?;
    page.kubectl(&world, &["get", "pdb", "cart"]).await?;
    page.kubectl(&world, &["patch", "pdb", "cart", "--type=merge", "-p", r#"{"spec":{"minAvailable":0}}"#]).await?;
    until_updated(&world, "factory").await?;
    page.kubectl(&world, &["get", "wnp", "factory"]).await?;
    page.check("blocked-drain")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_transcript_of_a_failed_canary_matches() -> Result<()> {
    let mut world = World::new(SimOptions::default(), &["--register-timeout", "15s"]).await?;
    let hosts = world.hosts("win", 3).await?;
    world.join("factory", &spec(&hosts)).await?;
    // A host that is not yet known as a Ready node would leave its turn to the next one.
    for name in ["win-0", "win-1", "win-2"] {
        world.until_joined(name).await?;
    }
    let broken: &Path = &world.options.payload.with_file_name("broken");
    let kubelet = Entry::new(r"C:\k\kubelet.exe", [BROKEN, b" kubelet"].concat()).services(&["kubelet"]);
    let containerd = Entry::new(r"C:\k\containerd\containerd.exe", b"containerd".to_vec()).services(&["containerd"]);
    let settings =
        Entry::new(r"C:\k\containerd\containerd_conf.toml", b"version = 3".to_vec()).services(&["containerd"]);
    payload::write(broken, &[kubelet, containerd, settings], payload::LEVEL_FAST)?;
    world.options.payload = broken.to_owned();
    // The host whose uploads are complete first changes first. The other hosts are on hold until the change of `win-0` has begun.
    let hold = format!("{}=true", key::HOLD);
    world.control_plane.kubectl(&["annotate", "wi", "win-1", "win-2", &hold]).await?;
    world.restart().await?;
    let changes = |i: &WindowsInstance| status(i).operation.as_ref().is_some_and(|o| o.type_ == GrantType::Update);
    world.until_instance("win-0", "its change begins", changes).await?;
    world.control_plane.kubectl(&["annotate", "wi", "win-1", "win-2", &format!("{}-", key::HOLD)]).await?;
    world
        .until("factory", "it is stalled", |p| {
            let status = pool_status(p);
            status.updating_nodes == 0
                && status.ready_nodes == 3
                && has(&status.conditions, kind::STALLED, "True", "FailureLimitReached")
        })
        .await?;
    world.until_joined("win-0").await?;
    let mut page = Transcript::default();
    page.kubectl(&world, &["get", "wnp", "factory"]).await?;
    page.kubectl(&world, &["get", "wi"]).await?;
    let stalled = r#"jsonpath={.status.conditions[?(@.type=="Stalled")].message}"#;
    page.kubectl(&world, &["get", "wnp", "factory", "-o", stalled]).await?;
    let tried = "custom-columns=NAME:.metadata.name,FOLLOWS:.status.currentVersion,FAILED:.status.failedVersion";
    page.kubectl(&world, &["get", "wi", "-o", tried]).await?;
    let pools: Api<WindowsNodePool> = Api::all(world.client.clone());
    ensure!(
        pool_status(&pools.get("factory").await?).rollout.is_some_and(|r| !r.completed),
        "the rollout is reported as complete"
    );
    page.check("failed-canary")
}
