//! The rows of the cluster's side.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use api::names;
use kube::ResourceExt as _;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::{process::Command, time::sleep};

use super::{
    host::{Host, Kind},
    judge::Outcome,
    rows::Act,
    spec::{self, change},
    world::{Seen, World, said},
};
use crate::args::{Acceptance, Cluster};

/// For how long a held pod must stay.
const HELD: Duration = Duration::from_secs(10);
/// Log of wicd on the host, below `C:\var\log`.
const WICD_LOG: &str = "wicd/windows-instance-config-daemon.exe.INFO";

/// A run.
pub(super) struct Run {
    pub(super) args: Acceptance,
    pub(super) world: World,
    pub(super) host: Host,
    pub(super) kind: Kind,
    pub(super) fingerprint: String,
    /// Directories of the operator that the host had before.
    pub(super) before: Vec<&'static str>,
    /// What `template.spec` has beside the taint.
    pub(super) template: Mutex<Map<String, Value>>,
    /// Images that the host pulls ahead.
    pub(super) images: Mutex<Vec<String>>,
    /// The version that the node followed first.
    pub(super) first_version: Mutex<Option<String>>,
}

impl Run {
    /// Runs a row of the cluster's side.
    pub(super) async fn act(&self, act: Act) -> Outcome {
        if let Some(why) = self.shows_nothing(act) {
            return Outcome::skipped(why);
        }
        match Box::pin(self.try_act(act)).await {
            Ok(evidence) => Outcome::passed(evidence),
            Err(error) if act == Act::Exec && is_missing(&error) => Outcome::skipped("needs kubectl"),
            Err(error) => Outcome::failed(said(&error)),
        }
    }

    /// Why a row cannot be shown here.
    fn shows_nothing(&self, act: Act) -> Option<&'static str> {
        let needs_image = matches!(
            act,
            Act::Pod | Act::PodNetwork | Act::Logs | Act::Exec | Act::Drain | Act::PrePull | Act::ImagesPinned
        );
        match act {
            Act::NodeLog => self.kind.shows_nothing(),
            // They need a program and the registry of the host, which Wine has.
            Act::HostMaintenance | Act::PatchedRestart if self.kind == Kind::Simulated => self.kind.shows_nothing(),
            _ if !needs_image => None,
            _ if self.args.image.is_none() => Some("needs --image"),
            // Pods of a simulated host are bound and evicted, and run no image, and it has a list of images; under Wine there is no containerd.
            Act::Drain | Act::PrePull if self.kind == Kind::Simulated => None,
            _ => self.kind.shows_nothing(),
        }
    }

    async fn try_act(&self, act: Act) -> anyhow::Result<String> {
        match act {
            Act::Join => self.join().await,
            Act::NodeFacts => self.node_facts().await,
            Act::NodeLog => self.node_log().await,
            Act::Reboot => self.reboot().await,
            Act::PrePull => self.pre_pull().await,
            Act::ImagesPinned => self.images_pinned().await,
            Act::Pod => self.pod().await,
            Act::PodNetwork => self.pod_network().await,
            Act::Logs => self.logs().await,
            Act::Exec => self.exec().await,
            Act::Update => self.update().await,
            Act::Rollback => self.rollback().await,
            Act::Drain => self.drain().await,
            Act::Maintenance => self.maintenance().await,
            Act::HostMaintenance => self.host_maintenance().await,
            Act::PatchedRestart => self.patched_restart().await,
            Act::Proxy => self.change(change::proxy()).await,
            Act::TrustedCertificates => self.change(change::certificates()).await,
            Act::ImageMirrors => self.change(change::mirrors()).await,
            Act::Removal => self.removal().await,
        }
    }

    pub(super) async fn apply(&self) -> anyhow::Result<()> {
        let host = spec::Host {
            name: &self.world.names.name(),
            suffix: &self.world.names.suffix,
            address: &self.args.host,
            port: self.args.login.port,
            user: &self.args.login.user,
            fingerprint: &self.fingerprint,
        };
        let pool = spec::pool(&host, &Value::Object(self.template.lock().clone()), &self.images.lock());
        self.world.apply(&pool).await
    }

    async fn join(&self) -> anyhow::Result<String> {
        let pem = std::fs::read(&self.args.login.identity).context("cannot read the key")?;
        self.world.store_key(pem).await?;
        self.apply().await?;
        let phases = Mutex::new(Vec::new());
        let version = self
            .world
            .until("the host is a Ready node", async || {
                let seen = self.world.see().await?;
                let status = seen.pool.status.as_ref();
                if let Some(entry) = status.and_then(|status| status.refused.first()) {
                    return Ok(Ok(Err(format!("{}: {}", entry.reason, entry.message))));
                }
                let phase = seen.instance.as_ref().and_then(|i| i.status.as_ref()?.phase);
                let mut phases = phases.lock();
                let last = phases.last().copied();
                phases.extend(phase.filter(|phase| last != Some(*phase)));
                Ok(seen.follows().map(Ok).ok_or_else(|| seen.says()))
            })
            .await?
            .map_err(anyhow::Error::msg)?;
        let phases: Vec<String> = phases.into_inner().iter().map(|phase| format!("{phase:?}")).collect();
        *self.first_version.lock() = Some(version.clone());
        Ok(format!("{}; follows {version}", phases.join(", ")))
    }

    async fn node_facts(&self) -> anyhow::Result<String> {
        let seen = self.world.see().await?;
        let node = seen.node.context("there is no Node")?;
        let facts = seen.instance.and_then(|i| i.status?.facts).context("the instance has no facts of the host")?;
        let label = |key: &str| node.labels().get(key).map(String::as_str);
        ensure!(label("kubernetes.io/os") == Some("windows"), "kubernetes.io/os is {:?}", label("kubernetes.io/os"));
        ensure!(label(names::key::POOL) == Some(&self.world.names.name()), "the Node has no label of the pool");
        ensure!(label(names::ACCEPTANCE) == Some(&self.world.names.suffix), "the Node lacks the label of the template");
        let build = label("node.kubernetes.io/windows-build").context("the Node has no label windows-build")?;
        ensure!(
            facts.os_build.starts_with(build),
            "the label windows-build is {build}, and the host has {}",
            facts.os_build
        );
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        ensure!(taints.iter().any(|t| t.key == names::ACCEPTANCE), "the Node lacks the taint of the template");
        Ok(format!("{} {}", facts.os_name, facts.os_build))
    }

    async fn node_log(&self) -> anyhow::Result<String> {
        let log = self.world.node_log(WICD_LOG).await?;
        ensure!(log.lines().any(|line| line.contains("INFO")), "no line of wicd: {log}");
        Ok(format!("{} lines", log.lines().count()))
    }

    pub(super) async fn until_restarted(&self, before: &str) -> anyhow::Result<String> {
        let is_wine = self.kind == Kind::Wine;
        let restarted = |seen: &Seen| {
            let node = seen.node.as_ref()?.spec.as_ref()?;
            let is_over = !seen.asks_restart() && node.unschedulable != Some(true) && seen.follows().is_some();
            seen.boot_id(is_wine).filter(|now| is_over && now != before)
        };
        self.world.until_seen("the host has restarted and takes pods", restarted).await
    }

    pub(super) async fn boot_id(&self) -> anyhow::Result<String> {
        self.world.see().await?.boot_id(self.kind == Kind::Wine).context("the Node reports no boot id")
    }

    async fn reboot(&self) -> anyhow::Result<String> {
        let before = self.boot_id().await?;
        self.world.ask_restart().await?;
        let after = self.until_restarted(&before).await?;
        Ok(format!("boot id {before}, then {after}"))
    }

    pub(super) fn image(&self) -> anyhow::Result<&str> {
        self.args.image.as_deref().context("needs --image")
    }

    /// A word that the pod prints, and which is in no text that could be there otherwise.
    fn mark(&self) -> String {
        format!("acceptance-mark-{}", self.world.names.suffix)
    }

    async fn pod(&self) -> anyhow::Result<String> {
        let (mark, domain) = (self.mark(), &self.args.cluster_domain);
        let command = format!(
            "echo {mark}-1& curl.exe -sk -m 60 https://%KUBERNETES_SERVICE_HOST%:%KUBERNETES_SERVICE_PORT%/version& echo {mark}-2& curl.exe -sk -m 60 https://kubernetes.default.svc.{domain}/version& echo {mark}-3& ping.exe -n 36000 127.0.0.1 >NUL"
        );
        self.world.start_pod(&self.world.names.name(), self.image()?, &command).await?;
        Ok("Ready".to_owned())
    }

    async fn pod_network(&self) -> anyhow::Result<String> {
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

    async fn logs(&self) -> anyhow::Result<String> {
        let log = self.world.log(&self.world.names.name()).await?;
        ensure!(log.lines().any(|line| line.trim() == format!("{}-1", self.mark())), "not what the pod printed: {log}");
        Ok("the line that the pod printed".to_owned())
    }

    /// By kubectl: the operator itself never runs commands in pods, and has no client for it.
    async fn exec(&self) -> anyhow::Result<String> {
        let (name, mark) = (self.world.names.name(), format!("{}-exec", self.mark()));
        let mut kubectl = Command::new("kubectl");
        let Cluster { kubeconfig, context, .. } = &self.world.cluster;
        if let Some(file) = kubeconfig {
            kubectl.arg("--kubeconfig").arg(file);
        }
        if let Some(context) = context {
            kubectl.args(["--context", context]);
        }
        kubectl
            .args(["--namespace", "default", "exec", &name, "--", "cmd.exe", "/c", "echo", &mark])
            .kill_on_drop(true);
        let output = tokio::time::timeout(self.args.timeout, kubectl.output()).await??;
        let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success() && said.trim() == mark, "{said} {error}");
        Ok("the line that the command printed".to_owned())
    }

    /// Changes the template and waits until the node follows another version.
    async fn change(&self, more: Value) -> anyhow::Result<String> {
        let from = self.world.see().await?.follows().context("the node is not Ready")?;
        let before = self.template.lock().clone();
        self.template.lock().extend(more.as_object().cloned().unwrap_or_default());
        if let Err(error) = self.apply().await {
            // The rows that follow change the rest.
            *self.template.lock() = before;
            return Err(error);
        }
        let version = self
            .world
            .until_seen("the node follows another version", |seen| seen.follows().filter(|version| *version != from))
            .await?;
        Ok(format!("follows {version}"))
    }

    async fn update(&self) -> anyhow::Result<String> {
        let follows = self.change(change::kubelet()).await?;
        if self.kind != Kind::Windows {
            return Ok(follows);
        }
        let expected = change::PODS.to_string();
        let capacity =
            |seen: &Seen| seen.node.as_ref()?.status.as_ref()?.capacity.as_ref()?.get("pods").map(|q| q.0.clone());
        self.world
            .until_seen("the Node has the new capacity", |seen| capacity(seen).filter(|found| *found == expected))
            .await?;
        Ok(format!("{follows}, capacity of {expected} pods"))
    }

    async fn rollback(&self) -> anyhow::Result<String> {
        let Some(first) = self.first_version.lock().clone() else { bail!("the node followed no version") };
        let has_changed = self.template.lock().remove("kubelet").is_some();
        ensure!(has_changed, "there is no change to take back");
        self.apply().await?;
        self.world
            .until_seen("the node follows its first version", |seen| seen.follows().filter(|version| *version == first))
            .await?;
        Ok(format!("follows {first}"))
    }

    async fn drain(&self) -> anyhow::Result<String> {
        let (pod, image) = (self.world.names.held(), self.image()?);
        let before = self.boot_id().await?;
        self.world.start_pod(&pod, image, "ping.exe -n 36000 127.0.0.1 >NUL").await?;
        let held = async {
            self.world.hold_pod().await?;
            self.world.ask_restart().await
        };
        if let Err(error) = held.await {
            self.world.release_pod().await?;
            return Err(error);
        }
        let blocked = |seen: &Seen| {
            let drain = seen.instance.as_ref()?.status.as_ref()?.operation.as_ref()?.drain.as_ref()?;
            drain.blockers.first().map(|blocker| json!(blocker).to_string())
        };
        let result = self.world.until_seen("the drain names what holds the pod", blocked).await;
        sleep(HELD).await;
        let stays = self.world.pod_stays(&pod).await;
        let same = self.boot_id().await;
        // Before any error, so that the rows that follow have a node.
        self.world.release_pod().await?;
        result?;
        ensure!(stays?, "the pod was evicted although a PodDisruptionBudget holds it");
        ensure!(same? == before, "the host restarted under the pod");
        self.until_restarted(&before).await?;
        ensure!(!self.world.pod_stays(&pod).await?, "the pod was not evicted");
        Ok(format!("the pod stayed for {} s, and left when the PodDisruptionBudget did", HELD.as_secs()))
    }

    async fn removal(&self) -> anyhow::Result<String> {
        self.world.remove(&self.world.names).await?;
        self.host.is_as_before(&self.before).await?;
        Ok("no pool, instance and Node, and none of the operator's directories on the host".to_owned())
    }
}

/// Whether there is no program of the name.
fn is_missing(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref().map(std::io::Error::kind);
    kind == Some(std::io::ErrorKind::NotFound)
}

/// Whether a pod that printed `mark`s around its two requests has got two answers of an API server. The outer error: not all is printed yet.
fn answers(log: &str, mark: &str) -> Result<Result<(), String>, &'static str> {
    let part = |number: u8| {
        let (begin, end) = (format!("{mark}-{number}"), format!("{mark}-{}", number + 1));
        log.split_once(&begin)?.1.split_once(&end).map(|(text, _)| text)
    };
    let (Some(service), Some(dns)) = (part(1), part(2)) else { return Err("the log is not complete") };
    // /version, or the refusal of an API server that shows it to no user without a name.
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
}
