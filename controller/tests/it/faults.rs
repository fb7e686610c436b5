//! Faults as an on-call engineer sees them: `docs/guide/transcripts/faults.txt` shows the output of kubectl, the metrics, and the command that
//! corrects each fault.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::{
    Host, WindowsNodePool, WindowsNodePoolSpec,
    conditions::{find, kind},
    names::key,
};
use futures::future::LocalBoxFuture;
use k8s_openapi::{api::events::v1::Event, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, api::ListParams};
use serde_json::{Value, json};
use testbed::sim::{Fault, SimHost, SimOptions};

use crate::{
    fleet::{World, entry, has, is_ready, pool_status, spec, spec_with, status},
    removal::{budget, pod},
    repair::{mark_node_not_ready, stop_services},
    transcripts::Transcript,
};

/// Fault in a pool of its own, which has the fault's name.
pub(crate) struct Case<'a> {
    world: &'a World,
    name: &'static str,
    hosts: Vec<SimHost>,
    page: Transcript,
}

impl Case<'_> {
    fn host(&self) -> String {
        self.hosts[0].name().to_owned()
    }

    async fn apply(&self, spec: &WindowsNodePoolSpec) -> Result<()> {
        self.world.apply(self.name, spec).await
    }

    /// Applies the pool, and waits until all its hosts are nodes.
    async fn join(&self, fields: Value) -> Result<()> {
        self.apply(&spec_with(&self.hosts, fields)).await?;
        self.until_ready("it has joined").await
    }

    async fn kubectl(&mut self, args: &[&str]) -> Result<()> {
        self.page.kubectl(self.world, args).await
    }

    async fn patch(&mut self, patch: &Value) -> Result<()> {
        let text = patch.to_string();
        self.kubectl(&["patch", "wnp", self.name, "--type=merge", "-p", &text]).await
    }

    async fn retry(&mut self) -> Result<()> {
        let (host, retry) = (self.host(), format!("{}=1", key::RETRY));
        self.kubectl(&["annotate", "wi", &host, &retry]).await
    }

    /// Waits until a condition of the pool has this status and reason.
    async fn until(&self, type_: &str, status: &str, reason: &str) -> Result<()> {
        let is_so = |p: &_| has(&pool_status(p).conditions, type_, status, reason);
        self.world.until(self.name, &format!("{type_}={status}, {reason}"), is_so).await
    }

    /// Waits until the first host has failed, and its pool names it.
    async fn until_failed(&self, reason: &str) -> Result<()> {
        let failed = |i: &_| status(i).failures.is_some_and(|f| f.last_reason == reason);
        let host = self.host();
        self.world.until_instance(&host, reason, failed).await?;
        let names_it = |p: &_| {
            find(&pool_status(p).conditions, kind::DEGRADED).is_some_and(|c| c.message.contains(&format!("{host}: ")))
        };
        self.world.until(self.name, "its pool names it", names_it).await
    }

    async fn until_ready(&self, what: &str) -> Result<()> {
        self.world.until(self.name, what, is_ready).await
    }

    /// Adds to the page what the on-call engineer reads first, once conditions, events and metrics no longer change.
    async fn show(&mut self) -> Result<()> {
        self.settled(async |case| case.capture().await).await
    }

    /// Adds a capture to the page, once nothing that it shows has changed for half a second. Fails after 60 attempts.
    async fn settled(&mut self, capture: impl AsyncFn(&mut Self) -> Result<()>) -> Result<()> {
        let mut versions = self.versions().await?;
        for _ in 0..60 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let before = std::mem::replace(&mut versions, self.versions().await?);
            if before != versions {
                continue;
            }
            let page = std::mem::take(&mut self.page);
            let captured = capture(self).await;
            let shown = std::mem::replace(&mut self.page, page);
            captured?;
            versions = self.versions().await?;
            if before == versions {
                self.page.append(&shown);
                return Ok(());
            }
        }
        anyhow::bail!("the objects or metrics change all the time: {versions:?}")
    }

    /// Returns the versions of the objects that the on-call engineer reads, and the pool's metrics.
    async fn versions(&self) -> Result<Vec<String>> {
        let version = |meta: &ObjectMeta| meta.resource_version.clone().unwrap_or_default();
        let client = &self.world.client;
        let pool = Api::<WindowsNodePool>::all(client.clone()).get_opt(self.name).await?;
        let mut versions: Vec<String> = pool.iter().map(|pool| version(&pool.metadata)).collect();
        for host in &self.hosts {
            versions.extend(self.world.instance(host.name()).await?.map(|instance| version(&instance.metadata)));
        }
        let names: Vec<&str> = self.hosts.iter().map(SimHost::name).chain([self.name]).collect();
        let about = |e: &Event| e.regarding.iter().filter_map(|r| r.name.as_deref()).any(|name| names.contains(&name));
        let events = Api::<Event>::all(client.clone()).list(&ListParams::default()).await?;
        versions.extend(events.iter().filter(|e| about(e)).map(|e| version(&e.metadata)));
        let mut metrics = Transcript::default();
        metrics.metrics(self.world, self.name).await?;
        versions.push(metrics.text());
        Ok(versions)
    }

    async fn capture(&mut self) -> Result<()> {
        let name = self.name;
        self.kubectl(&["get", "wnp", name, "-o", "wide"]).await?;
        let mut names: Vec<String> = self.hosts.iter().map(|h| h.name().to_owned()).collect();
        names.sort();
        let mut there = Vec::new();
        for name in names {
            if self.world.instance(&name).await?.is_some() {
                there.push(name);
            }
        }
        if !there.is_empty() {
            let args: Vec<&str> = ["get", "wi"].into_iter().chain(there.iter().map(String::as_str)).collect();
            self.kubectl(&args).await?;
        }
        for object in there.iter().map(|n| format!("windowsinstance/{n}")).chain([format!("windowsnodepool/{name}")]) {
            self.page.warnings(self.world, &object).await?;
        }
        self.page.metrics(self.world, name).await
    }

    /// Shows the pool again, and compares the transcript with the page.
    async fn ends(mut self) -> Result<()> {
        let name = self.name;
        self.settled(async |case| case.kubectl(&["get", "wnp", name]).await).await?;
        self.page.check(&format!("fault-{name}"))
    }
}

/// Function that causes a fault, and corrects it as the on-call engineer would.
type Happens = for<'a> fn(Case<'a>) -> LocalBoxFuture<'a, Result<()>>;

/// Faults: the name, the number of hosts, and the function. Each has a section in `docs/guide/transcripts/faults.txt`, and a row in
/// `docs/guide/troubleshooting.md`.
pub(crate) const FAULTS: [(&str, usize, Happens); 16] = [
    ("connection-refused", 1, |case| Box::pin(connection_refused(case))),
    ("key-refused", 1, |case| Box::pin(key_refused(case))),
    ("secret-missing", 1, |case| Box::pin(secret_missing(case))),
    ("host-listed-twice", 1, |case| Box::pin(host_listed_twice(case))),
    ("clock-wrong", 1, |case| Box::pin(clock_wrong(case))),
    ("host-off-in-rollout", 2, |case| Box::pin(host_off_in_rollout(case))),
    ("drain-blocked", 1, |case| Box::pin(drain_blocked(case))),
    ("node-not-ready", 3, |case| Box::pin(node_not_ready(case))),
    ("host-key-changed", 1, |case| Box::pin(host_key_changed(case))),
    ("list-emptied", 2, |case| Box::pin(list_emptied(case))),
    ("node-on-hold", 2, |case| Box::pin(node_on_hold(case))),
    ("paused-and-deleted", 1, |case| Box::pin(paused_and_deleted(case))),
    ("removal-of-a-lost-host", 2, |case| Box::pin(removal_of_a_lost_host(case))),
    ("annotation-without-effect", 1, |case| Box::pin(annotation_without_effect(case))),
    ("window-closed", 1, |case| Box::pin(window_closed(case))),
    ("repository-unreachable", 0, |case| Box::pin(repository_unreachable(case))),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_fault_says_where_why_and_what_to_do() -> Result<()> {
    // With a long backoff, no second attempt falls between two commands.
    let world = World::new(SimOptions::default(), &["--backoff-base", "1h", "--backoff-max", "1h"]).await?;
    let mut cases = Vec::new();
    for (name, count, happens) in FAULTS {
        let mut hosts = Vec::new();
        for n in 1..=count {
            let name = if count == 1 { format!("{name}-host") } else { format!("{name}-{n}") };
            hosts.push(world.sim.host(testbed::sim::HostOptions::named(&name)).await?);
        }
        cases.push((name, happens(Case { world: &world, name, hosts, page: Transcript::default() })));
    }
    // The fault `repository-unreachable` comes after all others: while the list of one pool cannot be read, no other pool removes a node.
    let (alone, together): (Vec<_>, Vec<_>) =
        cases.into_iter().partition(|(name, _)| *name == "repository-unreachable");
    let mut ends = Vec::new();
    for group in [together, alone] {
        let group = group.into_iter().map(async |(name, case)| case.await.context(name));
        ends.extend(futures::future::join_all(group).await);
    }
    let failed: Vec<String> = ends.into_iter().filter_map(Result::err).map(|error| format!("{error:#}")).collect();
    ensure!(failed.is_empty(), "{} of {}: {}", failed.len(), FAULTS.len(), failed.join("\n\n"));
    Ok(())
}

/// Returns a patch whose rollout drains the nodes.
fn change() -> Value {
    json!({"spec": {"template": {"spec": {"containerd": {"maxConcurrentDownloads": 6}}}}})
}

async fn connection_refused(mut case: Case<'_>) -> Result<()> {
    let mut wrong = spec(&case.hosts);
    wrong.inventory.hosts = Some(vec![Host { port: Some(2299), ..entry(&case.hosts[0]) }]);
    case.apply(&wrong).await?;
    case.until_failed("Unreachable").await?;
    case.show().await?;
    let right = json!([entry(&case.hosts[0])]);
    case.patch(&json!({"spec": {"inventory": {"hosts": right}}})).await?;
    case.until_ready("it joins").await?;
    case.ends().await
}

async fn key_refused(mut case: Case<'_>) -> Result<()> {
    case.hosts[0].fault(Fault::WrongKey);
    case.apply(&spec(&case.hosts)).await?;
    case.until_failed("AuthenticationFailed").await?;
    case.show().await?;
    case.hosts[0].mend();
    case.retry().await?;
    case.until_ready("it joins").await?;
    case.ends().await
}

async fn secret_missing(mut case: Case<'_>) -> Result<()> {
    let keys = json!({"ssh": {"privateKeySecretRefs": [{"name": "hall-7"}]}});
    case.apply(&spec_with(&case.hosts, keys)).await?;
    case.until_failed("CredentialsUnavailable").await?;
    case.show().await?;
    let pem = case.world.key.to_openssh(russh::keys::ssh_key::LineEnding::LF)?;
    let file = case.world.options.payload.with_file_name("windows-key");
    std::fs::write(&file, pem.as_bytes())?;
    let namespace = api::names::DEFAULT_NAMESPACE;
    let from = format!("--from-file=private-key.pem={}", file.display());
    let output =
        case.world.control_plane.kubectl(&["-n", namespace, "create", "secret", "generic", "hall-7", &from]).await?;
    let command =
        format!("kubectl -n {namespace} create secret generic hall-7 --from-file=private-key.pem=windows-key");
    case.page.say(&command, &String::from_utf8(output.stdout)?);
    // The backoff of this test is an hour. With the default one, the operator would try again within seconds.
    case.world.annotate(&case.host(), key::RETRY, "1").await?;
    case.until_ready("it joins").await?;
    case.ends().await
}

async fn host_listed_twice(mut case: Case<'_>) -> Result<()> {
    let twice = Host { name: "host-listed-twice-copy".into(), ..entry(&case.hosts[0]) };
    let mut wrong = spec(&case.hosts);
    wrong.inventory.hosts = Some(vec![entry(&case.hosts[0]), twice]);
    case.apply(&wrong).await?;
    let said = |p: &_| pool_status(p).ready_nodes == 1 && pool_status(p).refused_hosts == 1;
    case.world.until(case.name, "one is a node, the other is refused", said).await?;
    case.show().await?;
    case.patch(&json!({"spec": {"inventory": {"hosts": [entry(&case.hosts[0])]}}})).await?;
    case.until_ready("one entry is left").await?;
    case.ends().await
}

async fn clock_wrong(mut case: Case<'_>) -> Result<()> {
    case.hosts[0].fault(Fault::ClockBehind(Duration::from_hours(10_000)));
    case.apply(&spec(&case.hosts)).await?;
    case.until_failed("ClockSkew").await?;
    case.show().await?;
    case.hosts[0].mend();
    case.retry().await?;
    case.until_ready("it joins").await?;
    case.ends().await
}

async fn host_off_in_rollout(mut case: Case<'_>) -> Result<()> {
    case.join(json!({})).await?;
    case.hosts[0].fault(Fault::Refuse);
    case.patch(&change()).await?;
    case.until_failed("Unreachable").await?;
    let waits = |p: &_| pool_status(p).up_to_date_nodes == 1 && pool_status(p).updating_nodes == 0;
    case.world.until(case.name, "the other node is updated", waits).await?;
    case.show().await?;
    case.hosts[0].mend();
    case.retry().await?;
    case.until_ready("both are updated").await?;
    case.ends().await
}

async fn drain_blocked(mut case: Case<'_>) -> Result<()> {
    case.join(json!({})).await?;
    pod(case.world, "cart", &case.host(), &[("app", "cart")]).await?;
    budget(case.world, "cart", "cart").await?;
    case.patch(&change()).await?;
    case.until(kind::DEGRADED, "True", "DrainBlocked").await?;
    case.show().await?;
    case.kubectl(&["patch", "pdb", "cart", "--type=merge", "-p", r#"{"spec":{"minAvailable":0}}"#]).await?;
    case.until_ready("it is updated").await?;
    case.ends().await
}

async fn node_not_ready(mut case: Case<'_>) -> Result<()> {
    case.join(json!({})).await?;
    stop_services(&case.hosts[0]);
    mark_node_not_ready(case.world, &case.host()).await?;
    case.world.until(case.name, "its node is down", |p| pool_status(p).ready_nodes == 2).await?;
    case.show().await?;
    case.patch(&json!({"spec": {"remediation": {"type": "Reconfigure", "notReadySeconds": 30}}})).await?;
    case.until_ready("it is repaired").await?;
    case.ends().await
}

async fn host_key_changed(mut case: Case<'_>) -> Result<()> {
    case.join(json!({})).await?;
    case.hosts[0].fault(Fault::ChangedHostKey);
    case.patch(&change()).await?;
    case.until_failed("HostKeyMismatch").await?;
    case.show().await?;
    let fingerprint = case.hosts[0].host_key().fingerprint(russh::keys::HashAlg::Sha256);
    let (host, trust) = (case.host(), format!("{}={fingerprint}", key::TRUST_HOST_KEY));
    case.kubectl(&["annotate", "wi", &host, &trust]).await?;
    case.until_ready("it is updated").await?;
    case.ends().await
}

async fn list_emptied(mut case: Case<'_>) -> Result<()> {
    case.join(json!({})).await?;
    case.patch(&json!({"spec": {"inventory": {"hosts": []}}})).await?;
    case.until(kind::INVENTORY_SYNCED, "False", "RemovalBlocked").await?;
    case.show().await?;
    let (name, approve) = (case.name, format!("{}=2", key::APPROVE_REMOVAL));
    case.kubectl(&["annotate", "wnp", name, &approve]).await?;
    let gone = |p: &_| is_ready(p) && pool_status(p).hosts == 0 && pool_status(p).removing_nodes == 0;
    case.world.until(name, "both have left", gone).await?;
    case.ends().await
}

async fn node_on_hold(mut case: Case<'_>) -> Result<()> {
    case.join(json!({})).await?;
    let (host, hold, free) = (case.host(), format!("{}=true", key::HOLD), format!("{}-", key::HOLD));
    case.kubectl(&["annotate", "node", &host, &hold]).await?;
    // Without this wait, the operator may see the change before the annotation, and begin with this node.
    case.world.until_on_hold(&host).await?;
    case.patch(&change()).await?;
    case.until(kind::READY, "True", "OnHold").await?;
    case.show().await?;
    case.kubectl(&["annotate", "node", &host, &free]).await?;
    let all = |p: &_| is_ready(p) && pool_status(p).up_to_date_nodes == 2;
    case.world.until(case.name, "both are updated", all).await?;
    case.ends().await
}

async fn paused_and_deleted(mut case: Case<'_>) -> Result<()> {
    case.join(json!({})).await?;
    case.patch(&json!({"spec": {"rollout": {"paused": true}}})).await?;
    let name = case.name;
    case.kubectl(&["delete", "wnp", name, "--wait=false"]).await?;
    let says =
        |p: &_| find(&pool_status(p).conditions, kind::READY).is_some_and(|c| c.message.contains("rollout.paused"));
    case.world.until(name, "it says what keeps it", says).await?;
    case.show().await?;
    case.patch(&json!({"spec": {"rollout": {"paused": false}}})).await?;
    case.world.until_gone(&case.hosts[0]).await?;
    case.page.check(&format!("fault-{name}"))
}

async fn removal_of_a_lost_host(mut case: Case<'_>) -> Result<()> {
    case.join(json!({})).await?;
    case.hosts[0].fault(Fault::Refuse);
    let rest: Vec<Host> = case.hosts[1..].iter().map(entry).collect();
    case.patch(&json!({"spec": {"inventory": {"hosts": rest}}})).await?;
    case.until_failed("Unreachable").await?;
    case.show().await?;
    let (host, abandon) = (case.host(), format!("{}=true", key::ABANDON));
    case.kubectl(&["annotate", "wi", &host, &abandon]).await?;
    case.world.until(case.name, "one is left", |p| is_ready(p) && pool_status(p).hosts == 1).await?;
    case.ends().await
}

async fn annotation_without_effect(mut case: Case<'_>) -> Result<()> {
    case.join(json!({})).await?;
    let (host, yes, no) = (case.host(), format!("{}=yes", key::ABANDON), format!("{}-", key::ABANDON));
    case.kubectl(&["annotate", "wi", &host, &yes]).await?;
    case.world.until_event(&host, "AnnotationWithoutEffect").await?;
    case.show().await?;
    case.kubectl(&["annotate", "wi", &host, &no]).await?;
    case.until_ready("nothing has happened").await?;
    case.ends().await
}

async fn window_closed(mut case: Case<'_>) -> Result<()> {
    let rollout = json!({"maintenanceWindows": [{"schedule": "0 3 29 2 *", "durationSeconds": 3600}]});
    case.join(json!({"rollout": rollout})).await?;
    case.patch(&change()).await?;
    case.until(kind::READY, "Unknown", "WaitingForWindow").await?;
    case.show().await?;
    case.patch(&json!({"spec": {"rollout": {"maintenanceWindows": null}}})).await?;
    case.until_ready("it is updated").await?;
    case.ends().await
}

async fn repository_unreachable(mut case: Case<'_>) -> Result<()> {
    let git = json!({"inventory": {"git": {"url": "https://127.9.9.9:2299/hosts.git", "path": "halls"}}});
    case.apply(&serde_json::from_value(git)?).await?;
    let said = |p: &_| {
        let synced = find(&pool_status(p).conditions, kind::INVENTORY_SYNCED).cloned();
        synced.is_some_and(|c| c.status != "True" && c.message.contains("127.9.9.9"))
    };
    case.world.until(case.name, "it cannot be fetched", said).await?;
    case.show().await?;
    let name = case.name;
    case.page.check(&format!("fault-{name}"))
}
