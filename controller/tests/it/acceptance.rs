//! The program `acceptance` on simulated hosts and Wine hosts: its rows, its exit status, and its cleanup after success and failure.

use std::{collections::BTreeMap, net::IpAddr, path::Path, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use api::{WindowsInstance, WindowsNodePool};
use k8s_openapi::api::{
    core::v1::{Node, Pod, Secret},
    policy::v1::PodDisruptionBudget,
};
use kube::{Api, ResourceExt, api::ListParams};
use russh::keys::ssh_key::LineEnding;
use testbed::{
    sim::{Fault, SimHost, SimOptions},
    wine::WineHost,
};
use tokio::process::Command;

use crate::fleet::{World, is_ready, spec};

/// Rows that a simulated host passes.
const SHOWN: [&str; 12] = [
    "join",
    "node-facts",
    "reboot",
    "pre-pull",
    "update",
    "rollback",
    "drain",
    "maintenance",
    "proxy",
    "trusted-certificates",
    "image-mirrors",
    "removal",
];

/// Rows that a simulated host passes and a Wine host does not, because they need containerd.
const NEED_CONTAINERD: [&str; 2] = ["pre-pull", "drain"];
/// Rows that only a Wine host passes: they need a Windows registry, and wicd as a program.
const SHOWN_BY_WINE: [&str; 2] = ["maintenance-on-host", "patched-restart"];

/// Result and text of each row, by its id.
type Rows = BTreeMap<String, (String, String)>;

/// Parses the rows of a table whose cells are separated by two or more spaces.
fn of_table(table: &str) -> Rows {
    let lines = table.lines().skip(1).take_while(|line| !line.is_empty());
    let cells = lines.map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>());
    let row = |cells: Vec<&str>| match cells[..] {
        [id, result, _, text] => Some((id.to_owned(), (result.to_owned(), text.to_owned()))),
        _ => None,
    };
    cells.filter_map(row).collect()
}

/// Returns a command that runs the program against a host, with the SSH key in the file `identity`.
fn command(host: IpAddr, kubeconfig: &Path, identity: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_acceptance"));
    command.arg("--host").arg(host.to_string()).arg("--kubeconfig").arg(kubeconfig).arg("--identity").arg(identity);
    command.args(more).stdin(Stdio::null()).kill_on_drop(true);
    command
}

struct Bed {
    world: World,
    host: SimHost,
    key: tempfile::NamedTempFile,
}

impl Bed {
    async fn new() -> Result<Self> {
        let world = World::new(SimOptions::default(), &[]).await?;
        let key = tempfile::NamedTempFile::new()?;
        std::fs::write(key.path(), world.key.to_openssh(LineEnding::LF)?.as_bytes())?;
        let host = world.hosts("win", 1).await?.remove(0);
        Ok(Self { world, host, key })
    }

    fn command(&self, more: &[&str]) -> Command {
        let kubeconfig = self.world.control_plane.kubeconfig();
        let mut command = command(self.host.address(), kubeconfig.as_ref(), self.key.path(), more);
        command.arg("--port").arg(self.host.port().to_string());
        command
    }

    /// Runs the program, and returns exit status, standard output and standard error.
    async fn run(&self, more: &[&str]) -> Result<(Option<i32>, String, String)> {
        let output = self.command(more).output().await?;
        Ok((output.status.code(), String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
    }

    /// Returns the objects and files that runs have created and not removed.
    async fn left(&self) -> Result<Vec<String>> {
        let (client, all) = (&self.world.client, ListParams::default());
        let made = ListParams::default().labels(api::names::ACCEPTANCE);
        let mut left: Vec<String> = Vec::new();
        left.extend(Api::<WindowsNodePool>::all(client.clone()).list(&made).await?.iter().map(ResourceExt::name_any));
        left.extend(Api::<WindowsInstance>::all(client.clone()).list(&all).await?.iter().map(ResourceExt::name_any));
        left.extend(Api::<Node>::all(client.clone()).list(&all).await?.iter().map(ResourceExt::name_any));
        left.extend(Api::<Secret>::all(client.clone()).list(&made).await?.iter().map(ResourceExt::name_any));
        left.extend(Api::<Pod>::all(client.clone()).list(&made).await?.iter().map(ResourceExt::name_any));
        left.extend(
            Api::<PodDisruptionBudget>::all(client.clone()).list(&made).await?.iter().map(ResourceExt::name_any),
        );
        let has = |path: &str| Path::new(&self.host.drive_c()).join(path).exists();
        left.extend(["k", "windows/wicd"].into_iter().filter(|path| has(path)).map(str::to_owned));
        Ok(left)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_pass_for_a_simulated_host_and_are_undone() -> Result<()> {
    let bed = Bed::new().await?;
    the_first_hour_is_one_page(&bed).await?;
    let (code, out, error) = bed.run(&[]).await?;
    ensure!(code == Some(1) && out.is_empty() && error.contains("confirm with --yes"), "{code:?}\n{out}\n{error}");
    let (code, _, error) = bed.run(&["--yes", "--namespace", "default"]).await?;
    ensure!(code == Some(1) && error.contains("no operator runs in the namespace default"), "{error}");

    let (code, table, progress) = bed.run(&["--yes", "--image", "example.com/windows", "--timeout", "2m"]).await?;
    let rows = of_table(&table);
    for id in SHOWN {
        let passed = rows.get(id).is_some_and(|(result, _)| result == "passed");
        ensure!(passed, "{id}\n{table}\n{progress}\n{}", bed.world.operator.log());
    }
    for (id, (result, why)) in &rows {
        let is_shown = SHOWN.contains(&id.as_str());
        let reason = if id == "check-host" { "needs --wicd" } else { "not shown by a simulated host" };
        ensure!(is_shown || (result == "skipped" && why == reason), "{id}\n{table}");
    }
    ensure!(code == Some(0) && table.contains("Nothing is left."), "{code:?}\n{table}");
    ensure!(bed.left().await?.is_empty(), "left: {:?}", bed.left().await?);
    ensure!(rows["node-facts"].1.contains("10.0.20348"), "{table}");

    // A node of another pool is left alone.
    bed.world.join("factory", &spec(std::slice::from_ref(&bed.host))).await?;
    let starts = bed.host.kubelet_starts();
    let (code, _, error) = bed.run(&["--yes"]).await?;
    ensure!(code == Some(1) && error.contains("win-0 of the pool factory"), "{error}");
    bed.world.until("factory", "it is Ready", is_ready).await?;
    ensure!(bed.host.kubelet_starts() == starts, "the node was disturbed");
    Ok(())
}

/// First-hour checks that a simulated host passes. The others need Windows or a user.
const SHOWN_IN_FIRST_HOUR: [&str; 1] = ["check host"];

async fn the_first_hour_is_one_page(bed: &Bed) -> Result<()> {
    let out = tempfile::NamedTempFile::new()?;
    let (wicd, file) = (bed.world.options.wicd.to_string_lossy(), out.path().to_string_lossy());
    let more = ["--yes", "--first-hour", "--timeout", "2m", "--image", "example.com/windows"];
    let (code, page, progress) = bed.run(&[&more[..], &["--wicd", &wicd, "--out", &file]].concat()).await?;
    ensure!(code == Some(0) && page.contains("Nothing is left."), "{code:?}\n{page}\n{progress}");
    ensure!(std::fs::read_to_string(out.path())? == page, "the file differs from the printed page");
    ensure!(page.contains("Windows:  Windows Server 2022 Datacenter 10.0.20348.2527, en-US\n"), "{page}");
    ensure!(page.contains("Node:     kubelet v") && page.contains("the host follows "), "{page}");
    let lines: Vec<Vec<&str>> = page
        .lines()
        .skip_while(|line| !line.starts_with("CHECK "))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    ensure!(lines.len() == 10, "{page}");
    for (number, line) in lines.iter().enumerate() {
        let [at, subject, result, _, evidence] = line[..] else { anyhow::bail!("{line:?}\n{page}") };
        ensure!(at == (number + 1).to_string(), "{page}");
        let is_shown = SHOWN_IN_FIRST_HOUR.contains(&subject);
        let is_skipped = evidence.contains("not shown by a simulated host") || evidence.starts_with("by hand: ");
        ensure!(if is_shown { result == "passed" } else { result == "skipped" && is_skipped }, "{line:?}\n{page}");
    }
    for part in [
        "check-host: 13 of 13",
        "; join: the node follows ",
        "; removal: no pool",
        "memory: not shown by a simulated host",
    ] {
        ensure!(page.contains(part), "{part}\n{page}");
    }
    let begun =
        ["programs", "check-host", "join", "command-lines", "memory"].map(|id| progress.find(&format!("{id} …")));
    ensure!(begun.is_sorted() && begun[0].is_some(), "{begun:?}\n{progress}");
    ensure!(bed.left().await?.is_empty(), "left: {:?}", bed.left().await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_run_leaves_nothing() -> Result<()> {
    let bed = Bed::new().await?;
    bed.host.fault(Fault::WrongKey);
    let (code, _, error) = bed.run(&["--yes"]).await?;
    ensure!(code == Some(1) && error.contains("cannot use the host"), "{error}");
    ensure!(bed.left().await?.is_empty(), "left: {:?}", bed.left().await?);

    // A run is killed while the host joins. The next run cleans up after it, and the host never becomes a node.
    bed.host.mend();
    bed.host.fault(Fault::NeverRegisters);
    let instances = Api::<WindowsInstance>::all(bed.world.client.clone());
    let begun = async || instances.list(&ListParams::default()).await.is_ok_and(|all| !all.items.is_empty());
    let mut child = bed.command(&["--yes"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    bed.world.eventually("the host joins", &begun).await?;
    child.kill().await?;
    ensure!(!bed.left().await?.is_empty(), "a killed process has removed what it made");
    let (code, table, progress) = bed.run(&["--yes", "--timeout", "30s"]).await?;
    ensure!(progress.contains("has left objects with these names: acceptance-"), "{progress}");
    let rows = of_table(&table);
    ensure!(code == Some(1) && rows["join"].0 == "failed" && rows["update"].0 == "skipped", "{table}");
    ensure!(rows["removal"].0 == "passed" && table.contains("Nothing is left."), "{table}");
    ensure!(bed.left().await?.is_empty(), "left: {:?}", bed.left().await?);

    // A user interrupts a run while the host joins.
    child = bed.command(&["--yes"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    bed.world.eventually("the host joins", &begun).await?;
    signal(&child, "INT").await?;
    let output = child.wait_with_output().await?;
    let table = String::from_utf8(output.stdout)?;
    ensure!(output.status.code() == Some(1) && table.contains("The run was interrupted."), "{table}");
    ensure!(bed.left().await?.is_empty(), "left: {:?}", bed.left().await?);
    Ok(())
}

/// Runs the program on Wine hosts. Rows that need Windows or containerd are skipped.
#[tokio::test(flavor = "multi_thread")]
async fn rows_pass_for_wine_hosts() -> Result<()> {
    if let Err(reason) = testbed::wine::available() {
        return testbed::skip(&reason);
    }
    let world = crate::wine::World::new().await?;
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), api::names::DEFAULT_NAMESPACE);
    let key = secrets.get(api::names::DEFAULT_KEY_SECRET).await?.data.unwrap_or_default();
    let key = key.into_values().next().context("the Secret has no key")?.0;
    let identity = tempfile::NamedTempFile::new()?;
    std::fs::write(identity.path(), key)?;
    futures::future::try_join_all(world.hosts.iter().map(|host| passes(&world, host, identity.path()))).await?;
    Ok(())
}

async fn passes(world: &crate::wine::World, host: &WineHost, identity: &Path) -> Result<()> {
    let more = ["--yes", "--timeout", "3m", "--image", "example.com/windows"];
    let kubeconfig = world.control_plane.kubeconfig();
    let output = command(host.address(), kubeconfig.as_ref(), identity, &more).output().await?;
    let table = String::from_utf8(output.stdout)?;
    let progress = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(0), "{table}\n{progress}\n{}", world.show().await);
    for (id, (result, why)) in of_table(&table) {
        let is_in = |ids: &[&str]| ids.contains(&id.as_str());
        let is_shown = is_in(&SHOWN) && !is_in(&NEED_CONTAINERD) || is_in(&SHOWN_BY_WINE);
        let reason = if id == "check-host" { "needs --wicd" } else { "not shown by Wine" };
        let is_skipped = result == "skipped" && why == reason;
        ensure!(if is_shown { result == "passed" } else { is_skipped }, "{id}\n{table}");
    }
    let update = r"HKLM\Software\Microsoft\Windows\CurrentVersion\WindowsUpdate\Auto Update\RebootRequired";
    ensure!(
        !host.cmd(&format!(r#"reg query "{update}""#)).await?.status.success(),
        "Windows still waits for a restart"
    );
    Ok(())
}

async fn signal(child: &tokio::process::Child, name: &str) -> Result<()> {
    let pid = child.id().context("the program has ended")?;
    let status = Command::new("kill").args(["-s", name, &pid.to_string()]).status().await?;
    ensure!(status.success(), "kill -s {name} failed");
    Ok(())
}
