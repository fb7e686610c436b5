//! Rows of the first hour that are more than commands on the host.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use controller::{
    args::{CheckHost, Output},
    commands::check,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::{
    acts::{Run, shown},
    judge,
    world::Seen,
};

/// Query for the number of Windows starts.
const BOOT_COUNT: &str = r#"reg.exe query "HKLM\SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters" /v BootId"#;
/// Puts another program in place of kubelet's, with which its service starts again: it has some bytes more.
const REPLACE: [&str; 3] = [
    r"ren C:\k\kubelet.exe acceptance.exe",
    r"copy /b C:\k\acceptance.exe+C:\Windows\win.ini C:\k\kubelet.exe",
    "taskkill.exe /f /im kubelet.exe",
];
/// Hashes of the program in place of kubelet's, and of the right one.
const HASHES: [&str; 2] =
    [r"certutil.exe -hashfile C:\k\kubelet.exe SHA256", r"certutil.exe -hashfile C:\k\acceptance.exe SHA256"];
/// Room on C: that a host needs, as `check host` has it.
const NEEDED_MIB: u64 = 2048;

impl Run {
    /// Checks the host as `check host` does.
    pub(crate) async fn check_host(&self) -> anyhow::Result<String> {
        let wicd = self.args.wicd.clone().context("needs --wicd")?;
        let (address, login) = (self.args.host.clone(), self.args.login.clone());
        let asked = CheckHost {
            address,
            login,
            api_server: None,
            vxlan_port: None,
            needed_mib: NEEDED_MIB,
            gmsa: Vec::new(),
            wicd,
            output: Output::Json,
        };
        let begin = Instant::now();
        let results = check::host_results(asked).await?;
        let took = begin.elapsed().as_millis();
        let of = |result: &str| {
            let found = results.iter().filter(|row| row["result"] == result);
            let text = |row: &Value| format!("{}: {}", row["check"].as_str().unwrap_or_default(), row["message"]);
            found.map(text).collect::<Vec<_>>()
        };
        let (failed, warnings) = (of("failed"), of("warning"));
        ensure!(!results.is_empty() && failed.is_empty(), failed.join("; "));
        let passed = format!("{} of {} checks passed in {took} ms", of("passed").len(), results.len());
        Ok([vec![passed], warnings].concat().join("; "))
    }

    async fn boot_count(&self) -> anyhow::Result<String> {
        let outputs = self.host.run(&[BOOT_COUNT]).await?;
        judge::boot_count(&outputs).with_context(|| format!("the number of starts cannot be read: {outputs:?}"))
    }

    /// Restarts the host, and sees what runs at some times after it answers again.
    pub(crate) async fn after_restart(&self) -> anyhow::Result<String> {
        let (before, count) = (self.boot_id().await?, self.boot_count().await?);
        self.ask_restart().await?;
        self.world
            .until("the host answers after its restart", async || {
                let now = self.boot_count().await?;
                Ok(if now == count { Err("it has not restarted".to_owned()) } else { Ok(()) })
            })
            .await?;
        let (begin, queries) = (Instant::now(), judge::SERVICES.map(|name| format!("sc.exe query {name}")));
        let mut outputs = Vec::new();
        for second in judge::TIMES {
            sleep_until(begin + Duration::from_secs(second)).await;
            outputs.extend(self.host.run(&queries.each_ref().map(String::as_str)).await?);
        }
        // Whatever runs, the rows that follow need the node.
        self.until_restarted(&before).await?;
        shown(judge::outcome(judge::after_restart, &outputs))
    }

    /// Makes a pod see files of the host, and another one, of a user without rights, write into its volume.
    pub(crate) async fn pod_accounts(&self) -> anyhow::Result<String> {
        let (mark, image) = (self.mark(), self.image()?);
        let pause = "ping.exe -n 36000 127.0.0.1 >NUL";
        let (on_host, of_user) = (self.world.names.on_host(), self.world.names.of_user());
        let command = format!(r"if exist C:\k\kubelet.exe echo {mark}-host& {pause}");
        let account = json!({"hostProcess": true, "runAsUserName": r"NT AUTHORITY\SYSTEM"});
        self.world
            .start_pod_with(&on_host, &image, &command, |spec| {
                spec["hostNetwork"] = json!(true);
                spec["securityContext"] = json!({"windowsOptions": account});
            })
            .await?;
        let command = format!(r"(echo {mark}-user)>C:\data\x& type C:\data\x& {pause}");
        self.world
            .start_pod_with(&of_user, &image, &command, |spec| {
                spec["securityContext"] = json!({"windowsOptions": {"runAsUserName": "ContainerUser"}});
                spec["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
                spec["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": r"C:\data"}]);
            })
            .await?;
        for (pod, mark) in [(on_host, format!("{mark}-host")), (of_user, format!("{mark}-user"))] {
            self.world
                .until(&format!("the pod {pod} prints its line"), async || {
                    let log = self.world.log(&pod).await?;
                    Ok(if log.lines().any(|line| line.trim() == mark) { Ok(()) } else { Err(log) })
                })
                .await?;
        }
        Ok("a HostProcess pod sees the host's files, ContainerUser writes into an emptyDir".to_owned())
    }

    /// Makes wicd put kubelet's program back while another one runs in its place.
    pub(crate) async fn replaced_in_use(&self) -> anyhow::Result<String> {
        let outputs = self.host.run(&REPLACE).await?;
        let is_done = outputs.iter().all(|output| output.status == Some(0));
        ensure!(is_done, "another program cannot be put in place of kubelet.exe: {outputs:?}");
        self.world
            .until("wicd has put kubelet.exe back", async || {
                let outputs = self.host.run(&HASHES).await?;
                Ok(if judge::is_same_file(&outputs) { Ok(()) } else { Err(format!("{outputs:?}")) })
            })
            .await?;
        let outputs = self.host.run(&[r"del C:\k\acceptance.exe", r"dir /b C:\k\kubelet.exe*"]).await?;
        self.world.until_seen("the node is Ready", Seen::follows).await?;
        let files: Vec<&str> = outputs.last().context("no output")?.text.lines().map(str::trim).collect();
        ensure!(files.contains(&"kubelet.exe"), "there is no kubelet.exe: {outputs:?}");
        Ok(format!("put back; C:\\k has {}", files.join(", ")))
    }
}
