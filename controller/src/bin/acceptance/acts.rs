//! Rows of the acceptance test that act on the cluster.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use api::names::{self, key};
use controller::args::Cluster;
use kube::ResourceExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    process::Command,
    time::{Instant, sleep},
};

use super::{
    Args,
    host::{Host, Kind},
    judge::{self, Outcome},
    world::{HostObjects, World},
};

/// Time for which a pod that a PodDisruptionBudget protects must stay.
const HELD: Duration = Duration::from_secs(10);
/// Log of wicd on the host, below `C:\var\log`.
const WICD_LOG: &str = "wicd/windows-instance-config-daemon.exe.INFO";
/// Certificate of the row `trusted-certificates`. Its private key was discarded, and it may sign only for `acceptance.invalid`.
pub(super) const CERTIFICATE: &str = include_str!("certificate.pem");
/// Pod capacity of the node after the row `update`.
pub(super) const PODS: i64 = 97;
/// Reason of the maintenance request, which the operator reports.
const REASON: &str = "acceptance";
/// Seconds for which `wicd.exe maintenance` waits on the host, less than the timeout of a command there.
const WAIT: u32 = 150;
/// Command that queries the path of wicd, which contains its hash.
const SERVICE: &str =
    r"reg.exe query HKLM\SYSTEM\CurrentControlSet\Services\windows-instance-config-daemon /v ImagePath";

/// Interval and timeout of the log-ins that measure how long the host does not answer.
const LOOK: Duration = Duration::from_secs(2);

/// Reason why a row cannot be tried on this host or with these arguments.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotHere(pub(crate) &'static str);

/// Acceptance run on a host.
pub(crate) struct Run {
    pub(crate) args: Args,
    pub(crate) world: World,
    pub(crate) host: Host,
    pub(crate) kind: Kind,
    /// Directories of the operator that the host had before the run.
    pub(crate) before: Vec<&'static str>,
    /// Pool with this one host, as last applied. Untyped JSON, so that fields that the cluster's CRD lacks are sent and refused.
    pub(crate) pool: Mutex<Value>,
    /// First version that the node followed.
    pub(crate) first_version: Mutex<Option<String>>,
    /// True while the row `lost-exclusion` has removed containerd's exclusion.
    pub(crate) lacks_exclusion: Mutex<bool>,
    /// Cluster objects of the host before its removal.
    pub(crate) last: Mutex<Option<HostObjects>>,
}

/// Returns the pool of a run. `fingerprint` identifies the host key.
pub(crate) fn pool(world: &World, args: &Args, fingerprint: &str) -> Value {
    let (name, suffix) = (world.names.name(), &world.names.suffix);
    json!({
        "apiVersion": format!("{}/{}", names::GROUP, names::VERSION),
        "kind": "WindowsNodePool",
        "metadata": world.metadata(&name),
        "spec": {
            "inventory": {"hosts": [{
                "name": name, "address": args.host, "port": args.login.port, "username": args.login.user, "hostKey": fingerprint,
            }]},
            "ssh": {"privateKeySecretRefs": [{"name": name}]},
            "template": {
                "metadata": {"labels": {names::ACCEPTANCE: suffix}},
                "spec": {"taints": [{"key": names::ACCEPTANCE, "value": suffix, "effect": "NoSchedule"}]},
            },
        },
    })
}

/// Times of successful log-ins.
pub(super) struct Silence {
    /// Longest time between two of them.
    longest: Duration,
    /// Time of the last one, or of the beginning of the measurement.
    answered: Instant,
}

impl Silence {
    /// Begins a measurement.
    pub(super) fn begin() -> Self {
        Self { longest: Duration::ZERO, answered: Instant::now() }
    }

    /// Returns the longest time without a successful log-in until now.
    pub(super) fn until_now(&self) -> Duration {
        self.longest.max(self.answered.elapsed())
    }
}

impl Run {
    /// Applies the pool as it was last applied.
    pub(super) async fn apply(&self) -> anyhow::Result<()> {
        self.edit(|_| ()).await
    }

    /// Applies the pool with a change. A refused change is discarded, so that it does not affect later rows.
    pub(super) async fn edit(&self, edit: impl FnOnce(&mut Value)) -> anyhow::Result<()> {
        let mut pool = self.pool.lock().clone();
        edit(&mut pool);
        self.world.apply(&pool).await?;
        *self.pool.lock() = pool;
        Ok(())
    }

    /// Records the host's cluster objects for the result, unless they are recorded already.
    pub(crate) async fn remember(&self) {
        let seen = self.world.see().await.ok();
        let mut last = self.last.lock();
        *last = last.take().or(seen);
    }

    /// Logs in to the host again and again, and records the silence between successful log-ins.
    pub(super) async fn measure_silence(&self, silence: &Mutex<Silence>) -> std::convert::Infallible {
        loop {
            if self.host.answers(LOOK).await {
                let mut silence = silence.lock();
                *silence = Silence { longest: silence.until_now(), answered: Instant::now() };
            }
            sleep(LOOK).await;
        }
    }

    pub(crate) async fn join(&self) -> anyhow::Result<String> {
        let silence = Mutex::new(Silence::begin());
        let version = tokio::select! {
            version = self.join_and_wait() => version?,
            never = self.measure_silence(&silence) => match never {},
        };
        let silence = silence.into_inner().until_now().as_secs_f32();
        Ok(format!(
            "the node follows {version}; during the join, the host accepted a log-in of this program at least every {silence:.1} s"
        ))
    }

    async fn join_and_wait(&self) -> anyhow::Result<String> {
        let pem = std::fs::read(&self.args.login.identity).context("cannot read the private key of --identity")?;
        self.world.store_key(pem).await?;
        self.apply().await?;
        let version = self
            .world
            .until("the host is a Ready node", async || {
                let seen = self.world.see().await?;
                let refused = seen.pool.status.as_ref().and_then(|status| status.refused.first());
                if let Some(entry) = refused {
                    return Ok(Ok(Err(format!("{}: {}", entry.reason, entry.message))));
                }
                Ok(seen.follows().map(Ok).ok_or_else(|| seen.says()))
            })
            .await?
            .map_err(anyhow::Error::msg)?;
        *self.first_version.lock() = Some(version.clone());
        Ok(version)
    }

    pub(crate) async fn node_facts(&self) -> anyhow::Result<String> {
        let seen = self.world.see().await?;
        let node = seen.node.context("there is no Node")?;
        let facts = seen.instance.and_then(|i| i.status?.facts).context("the instance has no facts of the host")?;
        let name = self.world.names.name();
        for (key, expected) in [
            ("kubernetes.io/os", "windows"),
            (names::key::POOL, name.as_str()),
            (names::ACCEPTANCE, self.world.names.suffix.as_str()),
        ] {
            let found = node.labels().get(key);
            ensure!(
                found.is_some_and(|found| found == expected),
                "the label {key} of the Node is {found:?}, not {expected}"
            );
        }
        let build =
            node.labels().get("node.kubernetes.io/windows-build").context("the Node has no label windows-build")?;
        ensure!(
            facts.os_build.starts_with(build),
            "the label windows-build of the Node is {build}, but the host has build {}",
            facts.os_build
        );
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        ensure!(taints.iter().any(|t| t.key == names::ACCEPTANCE), "the Node lacks the taint of the template");
        Ok(format!("{} {}", facts.os_name, facts.os_build))
    }

    pub(crate) async fn node_log(&self) -> anyhow::Result<String> {
        let log = self.world.node_log(WICD_LOG).await?;
        ensure!(log.lines().any(|line| line.contains("INFO")), "the log has no line of wicd: {log}");
        Ok(format!("the log of wicd has {} lines", log.lines().count()))
    }

    pub(super) async fn until_restarted(&self, before: &str) -> anyhow::Result<String> {
        let restarted = |seen: &HostObjects| {
            let is_over = !seen.asks_restart() && !seen.is_cordoned() && seen.follows().is_some();
            seen.boot_id(self.kind).filter(|now| is_over && now != before)
        };
        let after = self.world.until_seen("the host has restarted and takes pods", restarted).await?;
        Ok(format!("the boot ID of the Node was {before}, and is {after}"))
    }

    pub(super) async fn boot_id(&self) -> anyhow::Result<String> {
        self.world.see().await?.boot_id(self.kind).context("the Node does not report a boot ID")
    }

    pub(super) async fn ask_restart(&self) -> anyhow::Result<()> {
        self.world.annotate_node(key::REBOOT_REQUIRED, Some("")).await
    }

    pub(crate) async fn reboot(&self) -> anyhow::Result<String> {
        let before = self.boot_id().await?;
        self.ask_restart().await?;
        self.until_restarted(&before).await
    }

    /// Returns the image of the run with a tag, which pools require.
    pub(super) fn image(&self) -> anyhow::Result<String> {
        self.args.image.as_deref().map(tagged).context("this row needs --image")
    }

    pub(crate) async fn pre_pull(&self) -> anyhow::Result<String> {
        let image = self.image()?;
        self.edit(|pool| pool["spec"]["provisioning"] = json!({"prePullImages": [image]})).await?;
        let is_there = |seen: &HostObjects| {
            (seen.has_pulled(&image) && (self.kind != Kind::Windows || seen.reports_image(&image))).then_some(())
        };
        self.world.until_seen("the host has pulled the image, and kubelet reports it", is_there).await?;
        Ok(format!("the host has {image}"))
    }

    pub(crate) async fn images_pinned(&self) -> anyhow::Result<String> {
        let image = self.image()?;
        let outputs = self.host.run(&[r"type C:\k\wicd\owned.json"]).await?;
        evidence(|outputs| judge::images_pinned(&image, outputs), &outputs)
    }

    /// Returns the word that the pod prints, which is unique to the run.
    pub(super) fn mark(&self) -> String {
        format!("acceptance-mark-{}", self.world.names.suffix)
    }

    pub(crate) async fn pod(&self) -> anyhow::Result<String> {
        let (mark, domain) = (self.mark(), &self.args.cluster_domain);
        let command = format!(
            "echo {mark}-1& curl.exe -sk -m 60 https://%KUBERNETES_SERVICE_HOST%:%KUBERNETES_SERVICE_PORT%/version& echo {mark}-2& curl.exe -sk -m 60 https://kubernetes.default.svc.{domain}/version& echo {mark}-3& ping.exe -n 36000 127.0.0.1 >NUL"
        );
        self.world.start_pod(&self.world.names.name(), &self.image()?, &command).await?;
        Ok("the pod is Ready".to_owned())
    }

    pub(crate) async fn pod_network(&self) -> anyhow::Result<String> {
        let mark = self.mark();
        self.world
            .until("the pod has asked the API server", async || {
                let log = self.world.log(&self.world.names.name()).await?;
                Ok(answers(&log, &mark).map_err(str::to_owned))
            })
            .await?
            .map_err(anyhow::Error::msg)?;
        Ok("the Service and its DNS name answer".to_owned())
    }

    pub(crate) async fn logs(&self) -> anyhow::Result<String> {
        let log = self.world.log(&self.world.names.name()).await?;
        ensure!(
            log.lines().any(|line| line.trim() == format!("{}-1", self.mark())),
            "the log lacks the line that the pod printed: {log}"
        );
        Ok("the log has the line that the pod printed".to_owned())
    }

    /// Runs a command in the pod with kubectl, because the operator has no client for exec.
    pub(crate) async fn exec(&self) -> anyhow::Result<String> {
        let mark = format!("{}-exec", self.mark());
        let mut kubectl = Command::new("kubectl");
        let Cluster { kubeconfig, context, .. } = &self.world.cluster;
        if let Some(file) = kubeconfig {
            kubectl.arg("--kubeconfig").arg(file);
        }
        if let Some(context) = context {
            kubectl.args(["--context", context]);
        }
        let name = self.world.names.name();
        kubectl.args(["--namespace", "default", "exec", &name, "--", "cmd.exe", "/c", "echo", &mark]);
        let output = tokio::time::timeout(self.args.timeout, kubectl.kill_on_drop(true).output()).await;
        let output =
            output.with_context(|| format!("kubectl exec did not end within {} s", self.args.timeout.as_secs()))?;
        let output = output.context("cannot run kubectl, which this row needs")?;
        let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success() && said.trim() == mark, "kubectl exec printed: {said} {error}");
        Ok("kubectl exec returned the line that the command printed".to_owned())
    }

    /// Adds settings to the template and waits until the node follows another version.
    pub(super) async fn change(&self, more: Value) -> anyhow::Result<String> {
        let from = self.world.see().await?.follows().context("the pool or the node is not Ready and up to date")?;
        self.edit(|pool| {
            if let (Some(spec), Value::Object(more)) = (pool["spec"]["template"]["spec"].as_object_mut(), more) {
                spec.extend(more);
            }
        })
        .await?;
        let another = |seen: &HostObjects| seen.follows().filter(|version| *version != from);
        let version = self.world.until_seen("the node follows another version", another).await?;
        Ok(format!("the node follows {version}"))
    }

    pub(crate) async fn update(&self) -> anyhow::Result<String> {
        let follows = self.change(json!({"kubelet": {"maxPods": PODS}})).await?;
        if self.kind != Kind::Windows {
            return Ok(follows);
        }
        let has_capacity = |seen: &HostObjects| {
            let capacity = seen.node.as_ref()?.status.as_ref()?.capacity.as_ref()?.get("pods")?;
            (capacity.0 == PODS.to_string()).then_some(())
        };
        self.world.until_seen("the Node has the new capacity", has_capacity).await?;
        Ok(format!("{follows}, and has a capacity of {PODS} pods"))
    }

    pub(crate) async fn rollback(&self) -> anyhow::Result<String> {
        let first = self.first_version.lock().clone().context("the node followed no version")?;
        ensure!(
            !self.pool.lock()["spec"]["template"]["spec"]["kubelet"].is_null(),
            "there is no change to undo: the row update has not changed the pool"
        );
        self.edit(|pool| {
            if let Some(spec) = pool["spec"]["template"]["spec"].as_object_mut() {
                spec.remove("kubelet");
            }
        })
        .await?;
        let is_first = |seen: &HostObjects| seen.follows().filter(|version| *version == first);
        self.world.until_seen("the node follows its first version", is_first).await?;
        Ok(format!("the node follows {first}"))
    }

    pub(crate) async fn proxy(&self) -> anyhow::Result<String> {
        self.change(json!({"proxy": {"httpProxy": judge::PROXY, "noProxy": ".svc,.cluster.local"}})).await
    }

    pub(crate) async fn trusted_certificates(&self) -> anyhow::Result<String> {
        self.change(json!({"trustedCertificates": CERTIFICATE})).await
    }

    pub(crate) async fn image_mirrors(&self) -> anyhow::Result<String> {
        let mirror = json!({"source": judge::MIRRORED, "mirrors": ["mirror.acceptance.invalid"], "pull": "Digest"});
        self.change(json!({"imageMirrors": [mirror]})).await
    }

    pub(crate) async fn drain(&self) -> anyhow::Result<String> {
        let (pod, image) = (self.world.names.held(), self.image()?);
        let before = self.boot_id().await?;
        self.world.start_pod(&pod, &image, "ping.exe -n 36000 127.0.0.1 >NUL").await?;
        let held = async {
            self.world.hold_pod().await?;
            self.ask_restart().await?;
            let is_blocked = |seen: &HostObjects| {
                let drain = seen.instance.as_ref()?.status.as_ref()?.operation.as_ref()?.drain.as_ref()?;
                (!drain.blockers.is_empty()).then_some(())
            };
            self.world.until_seen("the drain names what holds the pod", is_blocked).await?;
            sleep(HELD).await;
            ensure!(
                self.world.pod_stays(&pod).await?,
                "the pod was evicted although a PodDisruptionBudget protects it"
            );
            ensure!(self.boot_id().await? == before, "the host restarted while the pod was protected");
            Ok(())
        };
        let held = held.await;
        // The pod is released before an error is returned, because later rows need the node.
        self.world.release_pod().await?;
        held?;
        self.until_restarted(&before).await?;
        ensure!(!self.world.pod_stays(&pod).await?, "the pod was not evicted");
        Ok(format!(
            "the pod stayed for {} s, and was evicted after its PodDisruptionBudget was deleted",
            HELD.as_secs()
        ))
    }

    pub(crate) async fn maintenance(&self) -> anyhow::Result<String> {
        let drained = self.drain_for_maintenance().await;
        self.world.ask_maintenance(None).await?;
        drained?;
        self.until_back().await?;
        Ok("the node was drained and cordoned, then verified and uncordoned".to_owned())
    }

    async fn drain_for_maintenance(&self) -> anyhow::Result<()> {
        self.world.ask_maintenance(Some(REASON)).await?;
        let is_drained =
            |seen: &HostObjects| (seen.maintenance() == Some("Drained") && seen.is_cordoned()).then_some(());
        self.world.until_seen("the node is drained for maintenance", is_drained).await
    }

    async fn until_back(&self) -> anyhow::Result<()> {
        let is_back = |seen: &HostObjects| {
            seen.follows().filter(|_| seen.maintenance().is_none() && !seen.is_cordoned()).map(drop)
        };
        self.world.until_seen("the node takes pods again", is_back).await
    }

    pub(crate) async fn host_maintenance(&self) -> anyhow::Result<String> {
        let found = self.host.run(&[SERVICE]).await?;
        let wicd = judge::path_of_wicd(&found).with_context(|| format!("the service names no wicd.exe: {found:?}"))?;
        let outputs = maintenance_commands(&wicd, async |commands| self.host.run(commands).await).await;
        let judged = outputs.and_then(|outputs| evidence(|outputs| judge::host_maintenance(REASON, outputs), &outputs));
        if judged.is_err() {
            // Later rows need the node, even if the host could not end the maintenance.
            self.world.annotate_node(key::MAINTENANCE_REQUEST, None).await?;
        }
        let evidence = judged?;
        self.until_back().await?;
        Ok(evidence)
    }

    /// Restarts a host as after a patch. While the node is drained, the row sets the registry key that Windows Update sets when it needs a
    /// restart. The boot ID is read last, so that an earlier restart does not count.
    pub(crate) async fn patched_restart(&self) -> anyhow::Result<String> {
        let prepared = async {
            self.drain_for_maintenance().await?;
            self.require_restart().await?;
            self.boot_id().await
        };
        let before = prepared.await;
        self.world.ask_maintenance(None).await?;
        let evidence = self.until_restarted(&before?).await?;
        self.until_back().await?;
        self.forget_restart().await?;
        Ok(evidence)
    }

    async fn require_restart(&self) -> anyhow::Result<()> {
        let query = format!(r#"reg.exe query "HKLM\{}""#, judge::RESTART_REQUIRED);
        if self.host.run(&[&query]).await?.iter().any(|output| output.status == Some(0)) {
            bail!("Windows Update waits for a restart already: restart the host, and run this program again");
        }
        let command = format!(r#"reg.exe add "HKLM\{}" /v {} /d 1 /f"#, judge::RESTART_REQUIRED, judge::MARK);
        let outputs = self.host.run(&[&command]).await?;
        let is_made = outputs.iter().all(|output| output.status == Some(0));
        ensure!(is_made, "the key of Windows Update cannot be made: {outputs:?}");
        Ok(())
    }

    /// Removes the registry value that [`Self::require_restart`] has set, and then its key if the key is empty.
    async fn forget_restart(&self) -> anyhow::Result<()> {
        if self.kind == Kind::Simulated {
            return Ok(());
        }
        let query = format!(r#"reg.exe query "HKLM\{}" /v {}"#, judge::RESTART_REQUIRED, judge::MARK);
        let found = self.host.run(&[&query]).await?;
        match judge::has_mark(&found) {
            Some(true) => {}
            Some(false) => return Ok(()),
            None => bail!("cannot read whether the registry of the host has a value of this program: {found:?}"),
        }
        let unmark = format!(r#"reg.exe delete "HKLM\{}" /v {} /f"#, judge::RESTART_REQUIRED, judge::MARK);
        let all = format!(r#"reg.exe query "HKLM\{}""#, judge::RESTART_REQUIRED);
        let outputs = self.host.run(&[&unmark, &query, &all]).await?;
        if judge::has_mark(outputs.get(1..2).context("reg.exe printed nothing")?) != Some(false) {
            bail!("the value in the key of Windows Update cannot be removed: {outputs:?}");
        }
        // Values that Windows has added meanwhile are kept.
        if outputs.get(2).is_some_and(judge::is_empty_key) {
            let delete = format!(r#"reg.exe delete "HKLM\{}" /f"#, judge::RESTART_REQUIRED);
            self.host.run(&[&delete]).await?;
        }
        Ok(())
    }

    /// Removes from the host what rows have made to try the operator.
    pub(crate) async fn forget(&self) -> anyhow::Result<()> {
        self.restore_exclusion().await?;
        self.forget_restart().await?;
        self.forget_directories().await
    }

    pub(crate) async fn removal(&self) -> anyhow::Result<String> {
        self.world.remove(&self.world.names).await?;
        self.host.check_directories(&self.before).await?;
        Ok("no pool, WindowsInstance or Node is left, and the host has no directory of the operator that it did not have before".to_owned())
    }
}

/// Runs `begin`, `status`, `end` and `status`. `end` is sent even after a failure, on its own connection, and once more if that breaks, because a
/// remaining request keeps the node drained.
async fn maintenance_commands(
    wicd: &str,
    run: impl AsyncFn(&[&str]) -> anyhow::Result<Vec<judge::Output>>,
) -> anyhow::Result<Vec<judge::Output>> {
    let begin = format!("{wicd} maintenance begin --reason {REASON} --timeout {WAIT}");
    let (status, end) = (format!("{wicd} maintenance status"), format!("{wicd} maintenance end --wait {WAIT}"));
    let begun = run(&[&begin, &status]).await;
    let mut ended = run(&[&end, &status]).await;
    if ended.is_err() {
        ended = run(&[&end, &status]).await;
    }
    let (mut outputs, ended) = (begun?, ended?);
    outputs.extend(ended);
    Ok(outputs)
}

/// Returns the evidence of a judge that passes the outputs. Any other outcome is an error.
pub(super) fn evidence(
    judge: impl Fn(&[judge::Output]) -> Option<Outcome>,
    outputs: &[judge::Output],
) -> anyhow::Result<String> {
    let Outcome { result, text } = judge::outcome(judge, outputs);
    ensure!(result == judge::PASSED, text);
    Ok(text)
}

/// Returns the image, with the tag `latest` if it has none.
fn tagged(image: &str) -> String {
    let name = image.rsplit('/').next().unwrap_or(image);
    if name.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") }
}

/// Judges the log of a pod that prints `mark`s around its two requests to the API server. The outer error means that the log is incomplete.
fn answers(log: &str, mark: &str) -> Result<Result<(), String>, &'static str> {
    let part = |number: u8| {
        let (begin, end) = (format!("{mark}-{number}"), format!("{mark}-{}", number + 1));
        log.split_once(&begin)?.1.split_once(&end).map(|(text, _)| text)
    };
    let (Some(service), Some(dns)) = (part(1), part(2)) else { return Err("the log is not complete") };
    // The version, or the refusal of an API server that does not show it to anonymous users.
    let is_answer = |text: &str| {
        let answer: Option<Value> = serde_json::from_str(text.trim()).ok();
        answer.is_some_and(|json| json["gitVersion"].is_string() || json["kind"] == "Status")
    };
    Ok(match (is_answer(service), is_answer(dns)) {
        (true, true) => Ok(()),
        (false, _) => Err(format!("the Service does not answer: {service}")),
        (_, false) => Err(format!("the DNS name does not answer: {dns}")),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[test]
    fn only_answers_of_an_api_server_count() {
        let log = |service: &str, dns: &str| format!("m-1\r\n{service}m-2\r\n{dns}m-3\r\n");
        let version = "{\n  \"gitVersion\": \"v1.34.0\"\n}";
        let refusal = r#"{"kind": "Status", "code": 401}"#;
        assert_eq!(answers(&log(version, refusal), "m"), Ok(Ok(())));
        for (service, dns) in
            [("", version), (version, ""), ("<html>", version), (version, "{}"), (version, "\"gitVersion\"")]
        {
            assert!(matches!(answers(&log(service, dns), "m"), Ok(Err(_))), "{service} {dns}");
        }
        for log in ["", "m-1 m-2", "m-3 m-2 m-1", "other"] {
            assert!(answers(log, "m").is_err(), "{log}");
        }
    }

    /// Each case has: whether each connection breaks, how often `end` is sent, and whether there is a result.
    #[tokio::test]
    async fn the_end_follows_a_lost_connection() {
        for (breaks, sent, is_good) in [
            ([false, false, false], 1, true),
            ([true, false, false], 1, false),
            ([false, true, false], 2, true),
            ([true, true, true], 2, false),
        ] {
            let (connections, ends) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let run = async |commands: &[&str]| {
                ends.fetch_add(commands.iter().filter(|c| c.contains(" maintenance end ")).count(), Relaxed);
                if breaks[connections.fetch_add(1, Relaxed)] {
                    bail!("the connection is lost");
                }
                Ok(vec![judge::Output::default(); commands.len()])
            };
            let outputs = maintenance_commands("wicd.exe", run).await;
            assert_eq!((ends.into_inner(), outputs.is_ok_and(|o| o.len() == 4)), (sent, is_good), "{breaks:?}");
        }
    }
}
