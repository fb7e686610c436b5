//! Installed alerts in a real Prometheus that scrapes the operator: faults fire them, and a pause or a hold silences them.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};
use api::{Host, Reason, WindowsNodePool, conditions::kind, names::key};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{admissionregistration::v1::ValidatingAdmissionPolicy, core::v1::ConfigMap};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{
    ControlPlane, ControlPlaneOptions,
    deployment::within,
    prometheus::Prometheus,
    sim::{Fault, HostOptions, SimOptions},
};

use crate::{
    another_operator::{start_wmco, stop_wmco},
    cluster::NAMESPACE,
    dashboard,
    fleet::{LIMIT, World, entries, entry, has, is_ready, pool_status, spec, spec_with, status},
    guide::Guide,
    metrics_tls::{bind, token},
    removal::{budget, pod},
    repair::{mark_node_not_ready, stop_services},
    transcripts::root,
    waits::daily,
};

/// Returns the installed alert rules.
fn installed() -> Result<Value> {
    let file = root().join("deploy/components/monitoring/alerts.yaml");
    let object: Value = serde_yaml::from_str(&std::fs::read_to_string(file)?)?;
    Ok(object["spec"].clone())
}

/// Returns the rules, changed to fire as soon as their expression has held for a second.
fn hasty(mut rules: Value) -> Value {
    for group in rules["groups"].as_array_mut().into_iter().flatten() {
        for rule in group["rules"].as_array_mut().into_iter().flatten() {
            if rule.get("for").is_some() {
                rule["for"] = "1s".into();
            }
        }
    }
    rules
}

#[test]
fn hasty_rules_differ_in_nothing_but_their_time() {
    let rule = |lasts: Value| json!({"groups": [{"name": "g", "rules": [{"alert": "A", "expr": "up == 0", "for": lasts}, {"alert": "B", "expr": "1"}]}]});
    assert_eq!(hasty(rule(json!("15m"))), rule(json!("1s")));
}

/// World, and the Prometheus that scrapes its operator.
struct Watched {
    world: World,
    prometheus: Prometheus,
}

impl Watched {
    async fn start(options: ControlPlaneOptions) -> Result<Self> {
        let args = ["--metrics-tls", "true", "--backoff-base", "1h", "--backoff-max", "1h"];
        let control_plane = Box::pin(ControlPlane::start(options)).await?;
        let world =
            Box::pin(World::on(control_plane, SimOptions::default(), &entries(b"kubelet"), None, &args)).await?;
        let token = token(&world.client, "prometheus").await?;
        bind(&world.client, "prometheus").await?;
        let prometheus = Prometheus::start(&hasty(installed()?), &token)?;
        Ok(Self { world, prometheus })
    }

    /// Points Prometheus at the running operator, and waits for the first scrape.
    async fn scrape(&self) -> Result<()> {
        let target = self.world.operator.metrics_address();
        within(LIMIT, "Prometheus reads the operator's metrics", || async {
            let is_set = self.prometheus.target(target, NAMESPACE).is_ok();
            is_set
                && self.prometheus.query("windows_node_pool_build_info").await.is_ok_and(|samples| !samples.is_empty())
        })
        .await
        .with_context(|| format!("{}\n{}", self.prometheus.log(), self.world.operator.log()))
    }

    /// Returns the firing alerts: each name without `WindowsNodePool`, and the pool or, if the alert has none, the reason.
    async fn firing(&self) -> BTreeSet<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let firing = self.prometheus.firing().await.unwrap_or_default();
        let labels = |alert: &Value| {
            let labels = &alert["labels"];
            let which = if labels["pool"].is_null() { &labels["reason"] } else { &labels["pool"] };
            (text(&labels["alertname"]).trim_start_matches("WindowsNodePool").to_owned(), text(which))
        };
        firing.iter().map(labels).collect()
    }

    async fn until(&self, what: &str, is_so: impl Fn(&BTreeSet<(String, String)>) -> bool) -> Result<()> {
        let Err(error) = within(LIMIT, what, || async { is_so(&self.firing().await) }).await else { return Ok(()) };
        bail!("{error}: {:?}\n{}", self.firing().await, self.world.show().await)
    }

    async fn until_fires(&self, alert: &str, which: &str) -> Result<()> {
        let expected = (alert.to_owned(), which.to_owned());
        self.until(&format!("{alert} of {which:?} fires"), |firing| firing.contains(&expected)).await
    }

    async fn until_silent(&self, alert: &str, which: &str) -> Result<()> {
        let expected = (alert.to_owned(), which.to_owned());
        self.until(&format!("{alert} of {which:?} ends"), |firing| !firing.contains(&expected)).await
    }
}

/// Returns a patch whose rollout drains the nodes.
fn change() -> Value {
    json!({"spec": {"template": {"spec": {"containerd": {"maxConcurrentDownloads": 6}}}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_fire_alerts_until_a_user_corrects_or_pauses_them() -> Result<()> {
    let mut watched = Box::pin(Watched::start(ControlPlaneOptions::default())).await?;
    faults_of_pools_fire_alerts(&watched).await?;
    holds_and_pauses_silence_alerts(&watched).await?;
    waiting_changes_fire_no_alert(&watched).await?;
    faults_of_the_operator_fire_alerts(&mut watched).await
}

/// Covers two slow alerts in a cluster of their own: the shortest deadline is a minute, and wicd renews its certificate long before it expires
/// unless the cluster signs for a shorter time than requested.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_operation_and_a_certificate_that_expires_soon_fire_alerts() -> Result<()> {
    let controller_manager_flags = vec!["--cluster-signing-duration=10m".to_owned()];
    let options = ControlPlaneOptions { controller_manager_flags, ..ControlPlaneOptions::default() };
    let watched = Box::pin(Watched::start(options)).await?;
    let world = &watched.world;
    let slow = world.hosts("slow", 1).await?;
    world.join("slow", &spec_with(&slow, json!({"rollout": {"progressDeadlineSeconds": 60}}))).await?;
    slow[0].fault(Fault::HangInCommand);
    world.edit_node("slow-0", json!({"metadata": {"annotations": {key::REBOOT_REQUIRED: ""}}})).await?;
    let short = world.hosts("short", 1).await?;
    world.join("short", &spec(&short)).await?;
    watched.scrape().await?;

    watched.until_fires("CertificateExpiring", "short").await?;
    world.annotate("short-0", key::HOLD, "true").await?;
    watched.until_silent("CertificateExpiring", "short").await?;

    watched.until_fires("OperationSlow", "slow").await?;
    world.edit_pool("slow", json!({"spec": {"rollout": {"paused": true}}})).await?;
    watched.until_silent("OperationSlow", "slow").await?;
    let instance = world.instance("slow-0").await?.context("no instance")?;
    ensure!(status(&instance).operation.is_some(), "the fault is gone: nothing is silenced");
    Ok(())
}

async fn faults_of_pools_fire_alerts(watched: &Watched) -> Result<()> {
    let world = &watched.world;
    let refuses = HostOptions { faults: vec![Fault::Refuse], ..HostOptions::named("refused-0") };
    let refused = vec![world.sim.host(refuses).await?];
    world.apply("refused", &spec(&refused)).await?;
    let [twice, blocked, key, emptied] =
        futures::future::try_join_all(["twice", "blocked", "key", "emptied"].map(|name| world.hosts(name, 1)))
            .await?
            .try_into()
            .map_err(|_| anyhow::anyhow!("there are not four lists of hosts"))?;
    let down = world.hosts("down", 4).await?;
    let mut doubled = spec(&twice);
    doubled.inventory.hosts = Some(vec![entry(&twice[0]), Host { name: "twice-copy".into(), ..entry(&twice[0]) }]);
    world.apply("twice", &doubled).await?;
    for (pool, hosts) in [("blocked", &blocked), ("key", &key), ("emptied", &emptied), ("down", &down)] {
        let fields = json!({"rollout": {"maxUnavailable": 1}, "remediation": {"type": "None"}});
        world.apply(pool, &spec_with(hosts, fields)).await?;
    }
    for pool in ["blocked", "key", "emptied", "down"] {
        world.until(pool, "it has joined", is_ready).await?;
    }
    watched.scrape().await?;
    for host in &down[..2] {
        stop_services(host);
        mark_node_not_ready(world, host.name()).await?;
    }
    key[0].fault(Fault::ChangedHostKey);
    world.edit_pool("key", change()).await?;
    world.edit_pool("emptied", json!({"spec": {"inventory": {"hosts": []}}})).await?;
    pod(world, "cart", "blocked-0", &[("app", "cart")]).await?;
    budget(world, "cart", "cart").await?;
    world.edit_pool("blocked", change()).await?;
    for (alert, pool) in [
        ("Degraded", "refused"),
        ("Stalled", "twice"),
        ("NodesUnavailable", "down"),
        ("HostKeyChanged", "key"),
        ("RemovalHeld", "emptied"),
        ("DrainBlocked", "blocked"),
    ] {
        watched.until_fires(alert, pool).await?;
    }
    // This source is applied last, because no pool removes hosts while the list of another pool is unknown.
    let missing = json!({"inventory": {"configMapRef": {"name": "missing"}}});
    world.apply("source", &serde_json::from_value(missing)?).await?;
    watched.until_fires("SourceStale", "source").await?;
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), NAMESPACE);
    maps.create(&PostParams::default(), &serde_json::from_value(json!({"metadata": {"name": "missing"}}))?).await?;
    watched.until_silent("SourceStale", "source").await?;
    dashboard::check_queries(&watched.prometheus).await
}

async fn holds_and_pauses_silence_alerts(watched: &Watched) -> Result<()> {
    let world = &watched.world;
    for host in ["down-0", "down-1"] {
        world.edit_node(host, json!({"metadata": {"annotations": {key::HOLD: "true"}}})).await?;
    }
    watched.until_silent("NodesUnavailable", "down").await?;
    documented_commands_find_the_host_and_silence(watched).await?;
    for pool in ["refused", "twice", "blocked", "key", "emptied", "down"] {
        world.edit_pool(pool, json!({"spec": {"rollout": {"paused": true}}})).await?;
    }
    watched.until("nothing fires", BTreeSet::is_empty).await?;
    let failed = pool_status(&world.pool("refused").await?).failed_nodes;
    let held = pool_status(&world.pool("emptied").await?).removals_to_confirm;
    ensure!(failed == 1 && held == 1, "the faults are gone: nothing is silenced");
    Ok(())
}

/// Runs the commands of the alert and of its runbook, as a user enters them: they name the host, and a hold silences the alert.
async fn documented_commands_find_the_host_and_silence(watched: &Watched) -> Result<()> {
    let world = &watched.world;
    let runbook = Guide::open(&world.control_plane, "../reference/alerts.md", "runbooks")?;
    let run = async |commands: &str| {
        let output = runbook.output(world, commands).await?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{commands}: {text}{}", String::from_utf8_lossy(&output.stderr));
        Ok(text)
    };
    let names_host =
        |text: &str| text.lines().any(|line| line.starts_with("key-0 ") && line.ends_with("HostKeyMismatch"));
    let diagnosis = run(&runbook.block("## WindowsNodePoolHostKeyChanged", "sh")?.replace("HOST", "key-0")).await?;
    ensure!(names_host(&diagnosis) && diagnosis.contains("got SHA256:"), "{diagnosis}");
    let firing = watched.prometheus.firing().await?;
    let alert = firing.iter().find(|alert| alert["labels"]["alertname"] == "WindowsNodePoolHostKeyChanged");
    let description =
        alert.and_then(|alert| alert["annotations"]["description"].as_str()).context("the alert does not fire")?;
    let shown = run(description.split('`').nth(1).context("the description has no command")?).await?;
    ensure!(names_host(&shown), "{description}: {shown}");
    run("kubectl windows-node-pools pause --host key-0").await?;
    watched.until_silent("HostKeyChanged", "key").await
}

/// Checks that changes that wait for a maintenance window or an approval make no alert of their pools even pending.
async fn waiting_changes_fire_no_alert(watched: &Watched) -> Result<()> {
    let world = &watched.world;
    let opens = Timestamp::now().checked_add(SignedDuration::from_hours(12))?;
    for (pool, hosts, rollout, reason) in [
        ("window", 1, json!({"maintenanceWindows": [daily(opens)]}), Reason::WaitingForWindow),
        ("approval", 2, json!({"steps": [{"nodes": 1, "approval": true}]}), Reason::WaitingForApproval),
    ] {
        let hosts = world.hosts(pool, hosts).await?;
        world.join(pool, &spec_with(&hosts, json!({"rollout": rollout}))).await?;
        world.edit_pool(pool, change()).await?;
        let waits = |p: &WindowsNodePool| has(&pool_status(p).conditions, kind::UPDATED, "False", reason);
        world.until(pool, reason.as_str(), waits).await?;
        // Rules are evaluated as often as the operator is scraped: after four samples, they have seen the reason at least three times.
        let series = format!(r#"windows_node_pool_status_reason{{pool="{pool}",type="Updated",reason="{reason}"}}"#);
        let seen = format!("count_over_time({series}[5m]) > 3");
        let is_seen = || async { watched.prometheus.query(&seen).await.is_ok_and(|samples| !samples.is_empty()) };
        within(LIMIT, "Prometheus sees that the pool waits", is_seen).await?;
        let alerts = watched.prometheus.query(&format!(r#"ALERTS{{pool="{pool}"}}"#)).await?;
        ensure!(alerts.is_empty(), "{pool}: {alerts:?}");
    }
    Ok(())
}

async fn faults_of_the_operator_fire_alerts(watched: &mut Watched) -> Result<()> {
    start_wmco(&watched.world.control_plane, "wmco-1").await?;
    watched.until_fires("sOtherOperator", "").await?;
    stop_wmco(&watched.world, "wmco-1").await?;
    watched.until_silent("sOtherOperator", "").await?;

    let policies: Api<ValidatingAdmissionPolicy> = Api::all(watched.world.client.clone());
    policies.delete("windows-node-pools-wicd-requests", &DeleteParams::default()).await?;
    watched.until_fires("sPoliciesMissing", "").await?;

    watched.world.stop().await?;
    watched.until_fires("sDown", "").await?;
    // An operator with an invalid payload waits for two Lease durations before it leads and reports the fault.
    watched.world.options.payload = "/nowhere".into();
    let args = &mut watched.world.options.args;
    let set = args.iter().position(|arg| arg == "--lease-duration").context("the operator has no --lease-duration")?;
    args[set + 1] = "10s".into();
    watched.world.start_operator().await?;
    watched.scrape().await?;
    watched.until_fires("sNoLeader", "").await?;
    watched.until_fires("sErrors", "PayloadInvalid").await?;
    watched.until_silent("sDown", "").await
}
