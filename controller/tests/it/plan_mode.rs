//! Plans of a pool in mode Plan and of the command `plan`: changes are reported, and nothing is done.

use std::{collections::BTreeMap, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use api::{
    PlannedHost, WindowsInstance, WindowsNodePool, WindowsNodePoolSpec, conditions::kind, services_version::short,
};
use k8s_openapi::{
    api::{
        certificates::v1::CertificateSigningRequest,
        core::v1::{ConfigMap, Node},
        events::v1::Event,
        rbac::v1::{ClusterRole, ClusterRoleBinding, Role},
    },
    serde::de::DeserializeOwned,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use testbed::{
    deployment::{OPERATOR, OPERATOR_GROUPS},
    sim::{SimHost, SimOptions},
};
use tokio::io::AsyncWriteExt as _;

use crate::fleet::{World, entry, has, pool_status, spec_with, status};

const POOL: &str = "factory";
const HALL: &str = "example.com/hall";

/// Objects that a plan must not change, by kind and name, each with a text that changes when the operator writes the object. Leaves out the statuses
/// of pools, which the operator writes in mode Plan, and those of Nodes, which kubelet writes.
type Written = BTreeMap<String, String>;

async fn versions<K>(world: &World, into: &mut Written) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    for object in Api::<K>::all(world.client.clone()).list_metadata(&ListParams::default()).await? {
        let name = format!("{} {}/{}", K::kind(&()), object.namespace().unwrap_or_default(), object.name_any());
        into.insert(name, format!("{:?} {:?}", object.uid(), object.resource_version()));
    }
    Ok(())
}

async fn written(world: &World) -> Result<Written> {
    let mut all = Written::new();
    versions::<WindowsInstance>(world, &mut all).await?;
    versions::<ConfigMap>(world, &mut all).await?;
    versions::<Role>(world, &mut all).await?;
    versions::<ClusterRole>(world, &mut all).await?;
    versions::<ClusterRoleBinding>(world, &mut all).await?;
    versions::<CertificateSigningRequest>(world, &mut all).await?;
    for node in Api::<Node>::all(world.client.clone()).list(&ListParams::default()).await? {
        let mut node = node;
        if let Some(taints) = node.spec.as_mut().and_then(|s| s.taints.as_mut()) {
            // The controller manager sets these taints.
            taints.retain(|t| !t.key.starts_with("node.kubernetes.io/"));
        }
        let text = json!([node.metadata.labels, node.metadata.annotations, node.spec]).to_string();
        all.insert(format!("Node {}", node.name_any()), text);
    }
    for pool in Api::<WindowsNodePool>::all(world.client.clone()).list(&ListParams::default()).await? {
        all.insert(format!("WindowsNodePool {}", pool.name_any()), format!("{:?}", pool.finalizers()));
    }
    for event in Api::<Event>::all(world.client.clone()).list(&ListParams::default()).await? {
        // Skips the events of the controller manager about Nodes.
        let of = event.regarding.clone().and_then(|r| r.kind).unwrap_or_default();
        if of.starts_with("Windows") {
            all.insert(format!("Event {of} {}", event.name_any()), event.note.clone().unwrap_or_default());
        }
    }
    Ok(all)
}

/// Waits until the operator writes nothing more, so that later writes have a new cause. Returns the objects.
async fn until_at_rest(world: &World) -> Result<Written> {
    let last = std::sync::Mutex::new(written(world).await?);
    world
        .eventually("nothing is written any more", || async {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            let Ok(now) = written(world).await else { return false };
            let mut last = last.lock().unwrap();
            // The operator writes this binding when it starts, which may take a while on a busy machine.
            let has_begun = now
                .keys()
                .any(|object| object.starts_with("ClusterRoleBinding ") && object.ends_with("windows-node-pools-wicd"));
            let same = has_begun && *last == now;
            *last = now;
            same
        })
        .await?;
    Ok(last.into_inner().unwrap())
}

async fn nothing_was_written(world: &World, before: &Written, about: &str) -> Result<()> {
    let after = written(world).await?;
    let differs: Vec<_> = before
        .keys()
        .chain(after.keys())
        .filter(|k| before.get(*k) != after.get(*k))
        .map(|k| format!("{k}: {:?} -> {:?}", before.get(k), after.get(k)))
        .collect();
    ensure!(differs.is_empty(), "{about}: these objects were changed: {}", differs.join("\n"));
    Ok(())
}

/// Exit status and output of the command `plan`.
#[derive(Debug)]
struct Said {
    status: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    /// Returns the plans that `-o json` prints, one for each pool.
    fn answers(&self) -> Result<Vec<Value>> {
        serde_json::from_str(&self.out).with_context(|| format!("{self:?}"))
    }

    fn hosts(&self) -> Result<Vec<PlannedHost>> {
        let answers = self.answers()?;
        let hosts = answers.first().with_context(|| format!("{self:?}"))?["hosts"].clone();
        Ok(serde_json::from_value(hosts)?)
    }
}

/// User who runs the command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Operator,
    Administrator,
    /// User with read-only access.
    Auditor,
}

const AUDITOR: &str = "an-auditor";

/// Allows the auditor to read everything.
async fn allow_reads(world: &World) -> Result<()> {
    let rbac = |kind: &str, rest: Value| {
        let mut object = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": AUDITOR},
        });
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        object.to_string()
    };
    let rules = json!({"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]});
    let binding = json!({
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": AUDITOR},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": AUDITOR}],
    });
    world.control_plane.apply_yaml(&rbac("ClusterRole", rules)).await?;
    world.control_plane.apply_yaml(&rbac("ClusterRoleBinding", binding)).await
}

/// Runs the command `plan` with this file on its standard input.
async fn plan(world: &World, by: By, file: &str, args: &[&str]) -> Result<Said> {
    let (user, groups) = match by {
        By::Operator => (OPERATOR, &OPERATOR_GROUPS[..]),
        By::Administrator => ("a-person", &["system:masters"][..]),
        By::Auditor => (AUDITOR, &[][..]),
    };
    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_kubectl-windows_node_pools"))
        .args(["plan", "-f", "-", "--payload"])
        .arg(&world.options.payload)
        .arg("--wicd")
        .arg(&world.options.wicd)
        .args(args)
        // The operator's pod, in which the command also runs, can write to nothing but its cache.
        .env("TMPDIR", "/nonexistent")
        .env("CACHE_DIR", world.control_plane.dir())
        .env("KUBECONFIG", world.control_plane.kubeconfig_as(user, groups)?)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    stdin.write_all(file.as_bytes()).await?;
    drop(stdin);
    let output = child.wait_with_output().await?;
    let text = |bytes| String::from_utf8(bytes);
    Ok(Said { status: output.status.code(), out: text(output.stdout)?, err: text(output.stderr)? })
}

fn file(spec: &WindowsNodePoolSpec) -> Result<String> {
    Ok(serde_yaml::to_string(&WindowsNodePool::new(POOL, spec.clone()))?)
}

/// Returns a pool of these hosts in this mode, with this template.
fn pool(hosts: &[SimHost], mode: &str, template: &Value) -> WindowsNodePoolSpec {
    // A block without fields is left out as a whole.
    let template = template.as_object().filter(|fields| !fields.is_empty());
    spec_with(hosts, json!({"mode": mode, "template": template}))
}

/// Waits until the pool has reported its plan, and returns the hosts of the plan.
async fn planned(world: &World) -> Result<Vec<PlannedHost>> {
    world
        .until(POOL, "it says what would be done", |p| {
            let status = pool_status(p);
            status.observed_generation == p.metadata.generation
                && status.plan.is_some()
                && has(&status.conditions, kind::READY, "True", "Planned")
        })
        .await?;
    Ok(pool_status(&world.pool(POOL).await?).plan.context("no plan")?.hosts)
}

fn rows(hosts: &[PlannedHost]) -> Vec<[&str; 4]> {
    hosts.iter().map(|h| [h.host.as_str(), h.action.as_str(), h.disruption.as_str(), h.why.as_str()]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn mode_plan_and_the_command_plan_report_the_same_and_change_nothing() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("win", 3).await?;
    let stats = || hosts.iter().map(SimHost::stats).collect::<Vec<_>>();
    let plain = json!({});

    // The operator binds the role of wicd when it starts, in whichever mode its pools are.
    let bindings: Api<ClusterRoleBinding> = Api::all(world.client.clone());
    let is_bound = || async { bindings.get_opt("windows-node-pools-wicd").await.is_ok_and(|b| b.is_some()) };
    world.eventually("the role of wicd is bound", is_bound).await?;

    // The command plans a new pool before the pool exists.
    let new = pool(&hosts, "Plan", &plain);
    let (before, untouched) = (until_at_rest(&world).await?, stats());
    let said = plan(&world, By::Administrator, &file(&new)?, &["-o", "json"]).await?;
    nothing_was_written(&world, &before, "the command, for a new pool").await?;
    ensure!(said.status == Some(2) && said.err.is_empty(), "{said:?}");
    let joins: Vec<_> =
        ["win-0", "win-1", "win-2"].map(|h| [h, "Join", "None", "new in the inventory"]).into_iter().collect();
    ensure!(rows(&said.hosts()?) == joins, "{said:?}");
    world.apply(POOL, &new).await?;
    ensure!(rows(&planned(&world).await?) == joins, "{}", world.show().await);
    let shown = world.show().await;
    ensure!(shown.contains("mode Plan, no operation begins: 3 join"), "{shown}");
    let mut expected = before.clone();
    expected.insert(format!("WindowsNodePool {POOL}"), "[]".into());
    nothing_was_written(&world, &expected, "mode Plan, for a new pool").await?;
    ensure!(stats() == untouched, "a host was touched: {:?}", stats());

    // Once the plan is carried out, there is nothing left to do.
    world.join(POOL, &pool(&hosts, "Apply", &plain)).await?;
    ensure!(pool_status(&world.pool(POOL).await?).plan.is_none(), "the plan stayed");
    let (mut rest, joined) = (until_at_rest(&world).await?, stats());
    let said = plan(&world, By::Operator, &file(&pool(&hosts, "Apply", &plain))?, &[]).await?;
    ensure!(said.status == Some(0), "{said:?}");
    let version = pool_status(&world.pool(POOL).await?).desired_version.context("no version")?;
    ensure!(
        said.out == format!("{POOL}: nothing to do for 3 hosts; 3 unchanged; version {}\n", short(&version)),
        "{said:?}"
    );

    // Changes of every kind are reported first by the command, then by the pool.
    let all = |action: &'static str, disruption: &'static str, why: &'static str| -> Vec<[&'static str; 4]> {
        ["win-0", "win-1", "win-2"].map(|h| [h, action, disruption, why]).into_iter().collect()
    };
    for (about, hosts_left, template, expected) in [
        (
            "a setting of kubelet",
            &hosts[..],
            json!({"spec": {"kubelet": {"maxPods": 77}}}),
            all("Update", "Restart", "kubelet's settings (maxPods)"),
        ),
        (
            "a setting of containerd and a label",
            &hosts[..],
            json!({"metadata": {"labels": {HALL: "b"}}, "spec": {"containerd": {"maxConcurrentDownloads": 7}}}),
            all("Update", "Drain", "containerd's settings, labels (example.com/hall)"),
        ),
        (
            "a host is gone",
            &hosts[..2],
            plain.clone(),
            vec![["win-2", "Remove", "Drain", "no longer in the inventory"]],
        ),
    ] {
        let wanted = file(&pool(hosts_left, "Apply", &template))?;
        let said = plan(&world, By::Operator, &wanted, &["-o", "json"]).await?;
        ensure!(said.status == Some(2), "{about}: {said:?}");
        ensure!(rows(&said.hosts()?) == expected, "{about}: {said:?}");
        world.apply(POOL, &pool(hosts_left, "Plan", &template)).await?;
        ensure!(rows(&planned(&world).await?) == expected, "{about}: {}", world.show().await);
        nothing_was_written(&world, &rest, about).await?;
        ensure!(stats() == joined, "{about}: a host was touched: {:?}", stats());

        // The host is reconciled while its pool is in mode Plan, and no operation begins.
        // The trigger is a condition of kubelet: wicd would revert other changes of the Node before the operator sees them.
        let note = format!("while {about} was planned");
        let says = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "message": note}]}});
        let nodes: Api<Node> = Api::all(world.client.clone());
        nodes.patch_status("win-2", &PatchParams::default(), &Patch::Strategic(&says)).await?;
        world
            .until_instance("win-2", "it was reconciled", |i| {
                api::conditions::find(&status(i).conditions, kind::READY).is_some_and(|c| c.message == note)
            })
            .await?;
        let (node, instance) = (world.node("win-2").await?, world.instance("win-2").await?);
        ensure!(node.is_some_and(|n| !n.labels().contains_key(HALL)), "{about}: the Node was changed");
        let idle = |i: &WindowsInstance| i.open_grant().is_none() && !i.is_leaving();
        ensure!(instance.is_some_and(|i| idle(&i)), "{about}: something was granted");
        rest = until_at_rest(&world).await?;
    }

    // With the first spec in mode Apply, nothing is left to do, and nothing was done meanwhile.
    world.join(POOL, &pool(&hosts, "Apply", &plain)).await?;
    ensure!(stats() == joined, "a host was touched: {:?}", stats());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn problems_of_a_plan_are_reported() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("win", 2).await?;
    let clash = api::Host { name: "win-9".into(), ..entry(&hosts[0]) };
    let with_clash = |mode: &str| {
        let mut spec = pool(&hosts, mode, &json!({}));
        spec.inventory.hosts.get_or_insert_default().push(clash.clone());
        spec
    };
    let before = until_at_rest(&world).await?;

    // One host of three cannot be used. The others are planned.
    let said = plan(&world, By::Administrator, &file(&with_clash("Plan"))?, &[]).await?;
    ensure!(said.status == Some(1), "{said:?}");
    ensure!(said.out.contains("HostConflict: host win-9: address"), "{said:?}");
    ensure!(said.out.contains("win-1   Join     None         new in the inventory"), "{said:?}");
    nothing_was_written(&world, &before, "the command").await?;
    world.apply(POOL, &with_clash("Plan")).await?;
    world
        .until(POOL, "it reports the host that it cannot use", |p| {
            has(&pool_status(p).conditions, kind::READY, "False", "HostConflict")
        })
        .await?;
    let planned = pool_status(&world.pool(POOL).await?).plan.context("no plan")?.hosts;
    ensure!(planned.len() == 2, "{planned:?}");

    // Specs that the API server would refuse, for an existing pool and for a new one. `Strict` needs host keys.
    let good = file(&pool(&hosts, "Apply", &json!({})))?;
    let strict = file(&spec_with(&hosts, json!({"ssh": {"hostKeyPolicy": "Strict"}})))?;
    let typo = good.replace("inventory:", "templat: {}\n  inventory:");
    ensure!(typo != good, "{good}");
    let other = |text: &str| text.replace(&format!("name: {POOL}"), "name: other");
    for (about, by, text, expected) in [
        ("a rule", By::Operator, strict.clone(), "hostKeyPolicy Strict needs ssh.knownHostsSecretRef"),
        (
            "a rule, for a new pool",
            By::Administrator,
            other(&strict),
            "hostKeyPolicy Strict needs ssh.knownHostsSecretRef",
        ),
        ("a field that is not known", By::Operator, typo.clone(), "unknown field \"spec.templat\""),
        ("the same, for a new pool", By::Administrator, other(&typo), "unknown field \"spec.templat\""),
    ] {
        let said = plan(&world, by, &text, &["-o", "json"]).await?;
        let answers = said.answers()?;
        let problem = &answers[0]["problems"][0];
        ensure!(said.status == Some(1) && problem["reason"] == "SpecInvalid", "{about}: {said:?}");
        ensure!(problem["message"].as_str().is_some_and(|m| m.contains(expected)), "{about}: {said:?}");
        ensure!(said.out.len() < 1_000, "{about}: {said:?}");
    }

    // A user who may not create pools gets a note that the check was skipped.
    allow_reads(&world).await?;
    let said = plan(&world, By::Auditor, &other(&good), &[]).await?;
    ensure!(said.out.contains("Note: the API server did not validate the pool, because you may not "), "{said:?}");
    ensure!(said.status == Some(2), "{said:?}");

    // Two pools in one file want the same hosts: the second gets none.
    let said = plan(&world, By::Administrator, &format!("{good}---\n{}", other(&good)), &["-o", "json"]).await?;
    let answers = said.answers()?;
    ensure!(said.status == Some(1) && answers.len() == 2, "{said:?}");
    ensure!(answers[0]["problems"] == json!([]) && answers[1]["hosts"] == json!([]), "{said:?}");
    ensure!(
        answers[1]["problems"][0]["message"].as_str().is_some_and(|m| m.contains("belongs to pool factory")),
        "{said:?}"
    );

    // The command refuses invalid input and invalid options.
    for (about, text, args, expected) in [
        ("no YAML", "a: [", &[][..], "document 1 is not YAML"),
        ("the same pool twice", &format!("{good}---\n{good}"), &[], "the WindowsNodePool factory is defined twice"),
        ("no such file", &good, &["--kubelet-config-patch", "/nowhere"], "/nowhere"),
        ("no such option", &good, &["--nonsense"], "--nonsense"),
    ] {
        let said = plan(&world, By::Operator, text, args).await?;
        ensure!(said.status == Some(1) && said.err.contains(expected), "{about}: {said:?}");
    }
    Ok(())
}
