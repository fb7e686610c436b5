//! Rows of the acceptance test that act on the host, on the cluster, or on both.

use std::{fs, time::Duration};

use anyhow::{Context as _, ensure};
use api::{
    TemplateSpec,
    payload::{MANIFEST, Manifest},
};
use controller::{
    args::{CheckHost, Login, Output},
    commands::check,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use wnp_core::render::{self, Cluster, Settings, program};

use super::{
    acts::{CERTIFICATE, Run, Silence, evidence},
    judge,
    world::HostObjects,
};

/// Command that queries how often Windows has started.
const BOOT_COUNT: &str = r#"reg.exe query "HKLM\SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters" /v BootId"#;
/// Commands that replace `kubelet.exe` with a copy that has some extra bytes, and end the process, so that its service starts the copy.
const REPLACE: [&str; 3] = [
    r"ren C:\k\kubelet.exe acceptance.exe",
    r"copy /b C:\k\acceptance.exe+C:\Windows\win.ini C:\k\kubelet.exe",
    "taskkill.exe /f /im kubelet.exe",
];
/// Commands that hash the current `kubelet.exe` and the renamed original.
const HASHES: [&str; 2] =
    [r"certutil.exe -hashfile C:\k\kubelet.exe SHA256", r"certutil.exe -hashfile C:\k\acceptance.exe SHA256"];
/// Commands that query the languages and the domain of Windows.
const WINDOWS_FACTS: [&str; 2] = [
    r"reg.exe query HKLM\SYSTEM\CurrentControlSet\Control\MUI\UILanguages",
    r"reg.exe query HKLM\SYSTEM\CurrentControlSet\Services\Tcpip\Parameters /v Domain",
];
/// URL of an API server that DNS cannot resolve.
const UNKNOWN_API_SERVER: &str = "https://api.acceptance.invalid:6443";
/// Command that takes all memory. It retries when an allocation fails.
const TAKE_MEMORY: &str = "powershell.exe -NoProfile -Command $all = @(); while (1) { try { $all += ,(New-Object byte[] 64MB) } catch { Start-Sleep 1 } }";
/// Free space on C: that a host needs, as in `check host`.
const NEEDED_MIB: u64 = 2048;

/// Returns the command line of kubelet's service for this payload, in a cluster with default settings.
fn kubelet_line(payload: &Manifest) -> anyhow::Result<String> {
    let cluster = Cluster {
        api_server: UNKNOWN_API_SERVER.into(),
        api_ca: CERTIFICATE.into(),
        kubelet_client_ca: CERTIFICATE.into(),
        service_cidr: "10.96.0.0/12".into(),
        cluster_dns: vec!["10.96.0.10".into()],
        cluster_domain: "cluster.local".into(),
        ..Cluster::default()
    };
    let rendered = render::render(&cluster, payload, &Settings::default(), &TemplateSpec::default())?;
    let kubelet = rendered.services.services.into_iter().find(|service| service.name == "kubelet");
    Ok(kubelet.context("the payload has no service kubelet")?.path)
}

impl Run {
    /// Runs `kube-log-runner` and kubelet of each payload before the host joins, and checks that they know the flags of the service's command line.
    pub(crate) async fn programs(&self) -> anyhow::Result<String> {
        let mut all = Vec::new();
        for directory in &self.args.payload {
            let name = directory.display();
            let manifest =
                fs::read(directory.join(MANIFEST)).with_context(|| format!("there is no payload in {name}"))?;
            let manifest = Manifest::parse(&manifest)?;
            let content = |destination: &str| {
                let file = manifest.files.iter().find(|file| file.destination.eq_ignore_ascii_case(destination));
                let file = file.with_context(|| format!("{name} has no {destination}"))?;
                let packed = fs::File::open(directory.join(format!("{}.zst", file.path)))?;
                zstd::decode_all(packed).with_context(|| format!("cannot unpack {}", file.path))
            };
            let runner = self.host.try_program(content(program::LOG_RUNNER)?, "-help").await?;
            let kubelet = self.host.try_program(content(program::KUBELET)?, "--help").await?;
            let line = kubelet_line(&manifest)?;
            let known = evidence(|outputs| judge::flags(&line, outputs), &[runner, kubelet]);
            all.push(format!("{name}: {}", known.with_context(|| name.to_string())?));
        }
        Ok(all.join("; "))
    }

    /// Checks that a host that cannot reach the API server reports this, and stays unchanged.
    pub(crate) async fn api_server_unknown(&self) -> anyhow::Result<String> {
        let results = self.check_results(Some(UNKNOWN_API_SERVER.to_owned())).await?;
        let row = results
            .iter()
            .find(|row| row["check"] == "api-server")
            .context("`check host` did not check the API server")?;
        let message = row["message"].as_str().unwrap_or_default().to_owned();
        let is_named = row["reason"] == "ApiServerUnreachable" && message.contains("api.acceptance.invalid");
        ensure!(row["result"] == "failed" && is_named, "{row}");
        ensure!(self.host.directories().await? == self.before, "the host was changed");
        Ok(message)
    }

    pub(super) async fn check_results(&self, api_server: Option<String>) -> anyhow::Result<Vec<Value>> {
        self.check_results_of(api_server, self.args.login.clone()).await
    }

    /// Checks the host as another user.
    pub(super) async fn check_results_as(&self, user: String) -> anyhow::Result<Vec<Value>> {
        self.check_results_of(None, Login { user, ..self.args.login.clone() }).await
    }

    async fn check_results_of(&self, api_server: Option<String>, login: Login) -> anyhow::Result<Vec<Value>> {
        let wicd = self.args.wicd.clone().context("needs --wicd")?;
        let address = self.args.host.clone();
        let asked = CheckHost {
            address,
            login,
            api_server,
            vxlan_port: None,
            needed_mib: NEEDED_MIB,
            gmsa: Vec::new(),
            wicd,
            output: Output::Json,
        };
        check::host_results(asked).await
    }

    /// Checks the host as `check host` does.
    pub(crate) async fn check_host(&self) -> anyhow::Result<String> {
        let begin = Instant::now();
        let results = self.check_results(None).await?;
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

    /// Restarts the host, and checks which services run at certain times after it answers again.
    pub(crate) async fn after_restart(&self) -> anyhow::Result<String> {
        let (before, count) = (self.boot_id().await?, self.boot_count().await?);
        self.ask_restart().await?;
        self.world
            .until("the host answers after its restart", async || {
                let now = self.boot_count().await?;
                Ok(if now == count { Err("the host has not restarted".to_owned()) } else { Ok(()) })
            })
            .await?;
        let (begin, queries) = (Instant::now(), judge::SERVICES.map(|name| format!("sc.exe query {name}")));
        let mut outputs = Vec::new();
        for second in judge::TIMES {
            sleep_until(begin + Duration::from_secs(second)).await;
            let now = self.host.run(&queries.each_ref().map(String::as_str)).await?;
            // The first hour has no time to see whether they run on.
            let is_enough = self.args.first_hour && judge::all_run(&now);
            outputs.extend(now);
            if is_enough {
                break;
            }
        }
        // Later rows need the node, whatever the result.
        self.until_restarted(&before).await?;
        evidence(judge::after_restart, &outputs)
    }

    /// Checks that a HostProcess pod sees files of the host, and that the pod of an ordinary user can write to its volume.
    pub(crate) async fn pod_accounts(&self) -> anyhow::Result<String> {
        let (mark, image) = (self.mark(), self.image()?);
        let pause = "ping.exe -n 36000 127.0.0.1 >NUL";
        let (on_host, of_user) = (self.world.names.pod("host"), self.world.names.pod("user"));
        let command = format!(r"if exist C:\k\kubelet.exe echo {mark}-host& {pause}");
        let account = json!({"hostProcess": true, "runAsUserName": r"NT AUTHORITY\SYSTEM"});
        self.world
            .start_pod_with(&on_host, &image, &command, |spec| {
                spec["hostNetwork"] = json!(true);
                spec["securityContext"] = json!({"windowsOptions": account});
            })
            .await?;
        let command = format!(
            r#"(echo {mark}-user)>C:\data\x& findstr.exe /c:"BEGIN CERTIFICATE" C:\ca\ca.crt >NUL && type C:\data\x& {pause}"#
        );
        self.world
            .start_pod_with(&of_user, &image, &command, |spec| {
                spec["securityContext"] = json!({"windowsOptions": {"runAsUserName": "ContainerUser"}});
                spec["volumes"] =
                    json!([{"name": "data", "emptyDir": {}}, {"name": "ca", "configMap": {"name": "kube-root-ca.crt"}}]);
                spec["containers"][0]["volumeMounts"] =
                    json!([{"name": "data", "mountPath": r"C:\data"}, {"name": "ca", "mountPath": r"C:\ca"}]);
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
        Ok("a HostProcess pod sees the host's files, ContainerUser writes into an emptyDir and reads a ConfigMap"
            .to_owned())
    }

    /// Checks that wicd restores `kubelet.exe` while another program runs in its place.
    pub(crate) async fn replaced_in_use(&self) -> anyhow::Result<String> {
        let outputs = self.host.run(&REPLACE).await?;
        let is_done = outputs.iter().all(|output| output.status == Some(0));
        ensure!(is_done, "kubelet.exe cannot be replaced by another program: {outputs:?}");
        self.world
            .until("wicd has restored kubelet.exe", async || {
                let outputs = self.host.run(&HASHES).await?;
                Ok(if judge::is_same_file(&outputs) { Ok(()) } else { Err(format!("{outputs:?}")) })
            })
            .await?;
        let outputs = self.host.run(&[r"del C:\k\acceptance.exe", r"dir /b C:\k\kubelet.exe*"]).await?;
        self.world.until_seen("the node is Ready", HostObjects::follows).await?;
        let files: Vec<&str> = outputs.last().context("no output")?.text.lines().map(str::trim).collect();
        ensure!(files.contains(&"kubelet.exe"), "there is no kubelet.exe: {outputs:?}");
        Ok(format!("wicd has restored kubelet.exe; C:\\k has {}", files.join(", ")))
    }

    /// Compares the language and the domain in the host's facts with the registry of Windows.
    pub(crate) async fn windows_facts(&self) -> anyhow::Result<String> {
        let seen = self.world.see().await?;
        let facts = seen.instance.and_then(|i| i.status?.facts).context("the instance has no facts of the host")?;
        let language = facts.language.context("the facts of the host have no language")?;
        let outputs = self.host.run(&WINDOWS_FACTS).await?;
        evidence(|o| judge::windows_facts(&language, facts.domain.as_deref(), o), &outputs)
    }

    /// Judges the access lists of the directories with containerd's CNI programs and CNI configuration.
    pub(crate) async fn cni_directories(&self) -> anyhow::Result<String> {
        let dump = self.host.run(&[judge::CONFIG_DUMP]).await?;
        let directories = dump
            .first()
            .and_then(judge::cni_directories)
            .with_context(|| format!("containerd names no directories of CNI: {dump:?}"))?;
        let commands: Vec<String> = directories.iter().map(|path| format!("icacls.exe \"{path}\"")).collect();
        let outputs = self.host.run(&commands.iter().map(String::as_str).collect::<Vec<_>>()).await?;
        evidence(|outputs| judge::cni_access(&directories, outputs), &outputs)
    }

    /// Checks that containerd's log is rotated while containerd writes it.
    pub(crate) async fn log_rotation(&self) -> anyhow::Result<String> {
        // Less than containerd writes at its start.
        self.change(json!({"logs": {"maxSize": "8Ki"}})).await?;
        let rotated = self
            .world
            .until("containerd's log is rotated", async || {
                let outputs = self.host.run(&[r"dir /b C:\var\log\containerd"]).await?;
                let names: Vec<&str> = outputs.iter().flat_map(|output| output.text.lines()).map(str::trim).collect();
                let is_rotated =
                    names.contains(&"containerd.log") && names.iter().any(|n| n.starts_with("containerd-"));
                Ok(if is_rotated { Ok(names.join(", ")) } else { Err(names.join(", ")) })
            })
            .await;
        self.change(json!({"logs": {"maxSize": "100Mi"}})).await?;
        rotated
    }

    /// Starts a pod that takes all memory until kubelet evicts it, and measures how long the host does not answer meanwhile.
    pub(crate) async fn memory(&self) -> anyhow::Result<String> {
        let (pod, image, silence) = (self.world.names.pod("greedy"), self.image()?, Mutex::new(Silence::begin()));
        let evicted = async {
            self.world.start_pod(&pod, &image, TAKE_MEMORY).await?;
            self.world.until_evicted(&pod).await
        };
        tokio::select! {
            evicted = evicted => evicted?,
            never = self.measure_silence(&silence) => match never {},
        }
        let silence = silence.into_inner().until_now().as_secs_f32();
        self.world.until_seen("the node is Ready", HostObjects::follows).await?;
        Ok(format!(
            "kubelet evicted the pod; meanwhile, the host accepted a log-in of this program at least every {silence:.1} s"
        ))
    }
}

#[cfg(test)]
mod tests {
    use wnp_core::render::fixtures;

    use super::*;

    #[test]
    fn kubelet_is_tried_with_the_line_of_its_service() {
        let line = kubelet_line(&fixtures::payload(&fixtures::PROGRAMS)).unwrap();
        for part in [program::LOG_RUNNER, "-log-file=", program::KUBELET, "--windows-service"] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}
