//! Guard policies for pools, on an API server of their own, because other tests make changes that the guards refuse.

use std::sync::Mutex;

use anyhow::{Context as _, Result, ensure};
use api::{WindowsNodePool, names::key};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, PropagationPolicy},
    core::ApiResource,
};
use serde_json::{Value, json};
use testbed::{ControlPlane, ControlPlaneOptions, deployment};

use crate::{
    access::assert_refused,
    cluster::{eventually, operator},
    crd,
};

/// Maximum number of hosts of a pool in the CRD.
const MAX_HOSTS: usize = 1000;

/// API server with the guards in force, and an administrator's API for pools.
struct Guarded {
    control_plane: ControlPlane,
    pools: Api<DynamicObject>,
}

impl Guarded {
    async fn start() -> Result<Self> {
        let control_plane = Box::pin(ControlPlane::start(ControlPlaneOptions::default())).await?;
        deployment::install(&control_plane).await?;
        let guards = repository_file("deploy/components/guards/guards.yaml");
        control_plane.apply_file(&guards).await?;
        let pools = pools(control_plane.client().await?);
        let guarded = Self { control_plane, pools };
        guarded.create("probe", numbered("probe", 0, 2)).await?;
        let (doubled, emptied) =
            (object("probe-2", numbered("probe", 0, 1)), json!({"spec": {"inventory": {"hosts": []}}}));
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        eventually(|| async { guarded.pools.create(&dry_run, &doubled).await.is_err() }).await?;
        let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
        eventually(|| async { guarded.pools.patch("probe", &dry_run, &Patch::Merge(&emptied)).await.is_err() }).await?;
        Ok(guarded)
    }

    async fn create(&self, name: &str, spec: Value) -> Result<()> {
        self.done(Change::Create(Box::new(object(name, spec)))).await
    }

    async fn merge(&self, name: &str, patch: Value) -> Result<()> {
        self.done(Change::Merge(name.to_owned(), patch)).await
    }

    async fn list(&self, name: &str, hosts: Vec<Value>) -> Result<()> {
        self.done(list(name, hosts)).await
    }

    /// Sends a change until it succeeds: policies read other pools from a cache, which follows shortly after each change.
    async fn done(&self, change: Change) -> Result<()> {
        self.until("done", &change, false, Result::is_ok).await
    }

    /// Asserts that a change is refused, with this text, once the policies have seen the current pools.
    async fn refuses(&self, change: Change, why: &str) -> Result<()> {
        let is_refused = |result: &kube::Result<DynamicObject>| matches!(result, Err(kube::Error::Api(status)) if status.message.contains(why));
        self.until(&format!("refused with {why:?}"), &change, true, is_refused).await?;
        assert_refused(self.send(&change, false).await, why);
        Ok(())
    }

    async fn until(
        &self,
        what: &str,
        change: &Change,
        dry_run: bool,
        is_so: impl Fn(&kube::Result<DynamicObject>) -> bool,
    ) -> Result<()> {
        let last = Mutex::new(None);
        let asked = eventually(|| async {
            let result = self.send(change, dry_run).await;
            let is_so = is_so(&result);
            *last.lock().unwrap() = Some(result.map(|_| "it was done"));
            is_so
        });
        asked.await.with_context(|| format!("{} is not {what}: {:?}", change.pool(), last.lock().unwrap()))
    }

    async fn send(&self, change: &Change, dry_run: bool) -> kube::Result<DynamicObject> {
        match change {
            Change::Create(pool) => self.pools.create(&PostParams { dry_run, ..PostParams::default() }, pool).await,
            Change::Merge(name, patch) => {
                let params = PatchParams { dry_run, ..PatchParams::default() };
                self.pools.patch(name, &params, &Patch::Merge(patch)).await
            }
        }
    }

    async fn announce(&self, name: &str, number: &str) -> Result<()> {
        self.merge(name, json!({"metadata": {"annotations": {key::ANNOUNCE_REMOVAL: number}}})).await
    }

    async fn delete(&self, name: &str) -> kube::Result<()> {
        self.pools.delete(name, &DeleteParams::default()).await.map(drop)
    }
}

/// Change that an administrator sends.
enum Change {
    Create(Box<DynamicObject>),
    Merge(String, Value),
}

impl Change {
    fn pool(&self) -> &str {
        match self {
            Self::Create(pool) => pool.metadata.name.as_deref().unwrap_or_default(),
            Self::Merge(name, _) => name,
        }
    }
}

fn merge(name: &str, patch: Value) -> Change {
    Change::Merge(name.to_owned(), patch)
}

fn list(name: &str, hosts: Vec<Value>) -> Change {
    merge(name, json!({"spec": {"inventory": {"hosts": hosts}}}))
}

fn repository_file(path: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn pools(client: Client) -> Api<DynamicObject> {
    Api::all_with(client, &ApiResource::erase::<WindowsNodePool>(&()))
}

fn object(name: &str, spec: Value) -> DynamicObject {
    serde_json::from_value(crd::pool(name, &spec)).unwrap()
}

fn host(name: &str, address: &str) -> Value {
    json!({"name": name, "address": address})
}

fn hosts(hosts: &[Value]) -> Value {
    json!({"inventory": {"hosts": hosts}})
}

/// Returns `count` hosts with names and addresses of their own, numbered from `from`.
fn listed(prefix: &str, from: usize, count: usize) -> Vec<Value> {
    (from..from + count).map(|n| host(&format!("{prefix}-{n}"), &format!("{prefix}-{n}.windows.example.com"))).collect()
}

fn numbered(prefix: &str, from: usize, count: usize) -> Value {
    hosts(&listed(prefix, from, count))
}

#[tokio::test]
async fn guards_refuse_mistakes_and_accept_announced_changes() -> Result<()> {
    let guarded = Box::pin(Guarded::start()).await?;
    a_host_is_in_one_pool(&guarded).await?;
    a_host_moves_in_two_steps(&guarded).await?;
    pools_of_the_largest_size_are_compared(&guarded).await?;
    many_hosts_leave_when_their_number_was_announced(&guarded).await?;
    a_pool_with_nodes_is_deleted_when_that_was_announced(&guarded).await?;
    the_operator_is_exempt(&guarded).await?;
    in_warn_mode_all_pass_with_a_warning(&guarded).await
}

async fn a_host_is_in_one_pool(guarded: &Guarded) -> Result<()> {
    guarded.create("one", hosts(&[host("a", "10.1.0.1"), host("b", "b.example.com")])).await?;
    let with_port = |address: &str, port: u16| json!({"name": "x", "address": address, "port": port});
    let with = |hosts: &[Value], patch: Value| {
        let mut spec = json!({"inventory": {"hosts": hosts}});
        crd::merge(&mut spec, &patch);
        spec
    };
    let none = || json!({});
    for (about, spec, expected) in [
        ("other hosts", with(&[host("x", "10.1.0.9")], none()), None),
        ("a name", with(&[host("a", "10.1.0.9")], none()), Some("host a already belongs to pool one")),
        (
            "two names",
            with(&[host("x", "10.1.0.8"), host("a", "10.1.0.9"), host("b", "10.1.0.7")], none()),
            Some("host a and 1 more of this change already belong to pool one"),
        ),
        (
            "an address",
            with(&[host("y", "10.1.0.8"), host("x", "10.1.0.1")], none()),
            Some("host x: address 10.1.0.1 port 22 already belongs to a host of pool one"),
        ),
        (
            "an address in other letters",
            with(&[host("x", "B.example.COM")], none()),
            Some("host x: address b.example.com port 22 already belongs to a host of pool one"),
        ),
        ("an address, another port", with(&[with_port("10.1.0.1", 2222)], none()), None),
        ("an address, another port of the pool", with(&[host("x", "10.1.0.1")], json!({"ssh": {"port": 2222}})), None),
        (
            "an address, the same port after all",
            with(&[with_port("10.1.0.1", 22)], json!({"ssh": {"port": 2222}})),
            Some("host x: address 10.1.0.1 port 22"),
        ),
        ("a pool that only reports", with(&[host("a", "10.1.0.1")], json!({"mode": "Plan"})), None),
        ("an address twice in one pool", with(&[host("x", "10.1.0.9"), host("y", "10.1.0.9")], none()), None),
        ("hosts of Machines", json!({"inventory": {"hosts": null, "machineSetRef": {"name": "m"}}}), None),
    ] {
        let created = Change::Create(Box::new(object("two", spec)));
        let result = match expected {
            None => guarded.until("done", &created, true, Result::is_ok).await,
            Some(why) => guarded.refuses(created, why).await,
        };
        result.context(about)?;
    }
    // A pool that already shares a host with another one can be paused and corrected, but not set to mode Apply.
    guarded.create("two", with(&[host("a", "10.1.0.1")], json!({"mode": "Plan"}))).await?;
    guarded.merge("one", json!({"spec": {"mode": "Plan"}})).await?;
    guarded.merge("two", json!({"spec": {"mode": "Apply"}})).await?;
    guarded.refuses(merge("one", json!({"spec": {"mode": "Apply"}})), "host a already belongs to pool two").await?;
    guarded.merge("one", json!({"spec": {"rollout": {"paused": true}}})).await?;
    guarded.list("one", vec![host("b", "b.example.com")]).await?;
    guarded.merge("one", json!({"spec": {"mode": "Apply"}})).await?;
    // Labels of hosts may change.
    let labelled = json!({"name": "b", "address": "b.example.com", "labels": {"example.com/hall": "b"}});
    guarded.list("one", vec![labelled]).await?;
    // A host may not get the address of another pool's host.
    guarded.refuses(list("one", vec![host("b", "10.1.0.1")]), "host b: address 10.1.0.1 port 22").await?;
    // Two hosts of another pool share an address.
    guarded.create("three", hosts(&[host("x", "10.1.0.9"), host("y", "10.1.0.9")])).await?;
    guarded.refuses(list("one", vec![host("b", "10.1.0.9")]), "host b: address 10.1.0.9 port 22").await?;
    guarded.list("one", vec![host("b", "10.1.0.10")]).await?;
    Ok(())
}

async fn a_host_moves_in_two_steps(guarded: &Guarded) -> Result<()> {
    let all = listed("moving", 0, 3);
    guarded.create("from", hosts(&all)).await?;
    guarded.create("to", numbered("staying", 0, 1)).await?;
    let with_it = [listed("staying", 0, 1), all[2..].to_vec()].concat();
    guarded
        .refuses(list("to", with_it.clone()), "host moving-2 already belongs to pool from; remove it there first")
        .await?;
    guarded.list("from", all[..2].to_vec()).await?;
    guarded.list("to", with_it).await?;
    guarded.refuses(list("from", all), "host moving-2 already belongs to pool to").await?;
    Ok(())
}

async fn pools_of_the_largest_size_are_compared(guarded: &Guarded) -> Result<()> {
    guarded.create("large", numbered("large", 0, MAX_HOSTS)).await?;
    guarded.create("larger", numbered("larger", 0, MAX_HOSTS)).await?;
    let with_last = |last: Value| {
        let mut all = listed("largest", 0, MAX_HOSTS);
        all[MAX_HOSTS - 1] = last;
        hosts(&all)
    };
    for (spec, why) in [
        (with_last(host("large-999", "10.2.0.1")), "host large-999 already belongs to pool large"),
        (
            with_last(host("by-address", "large-999.windows.example.com")),
            "host by-address: address large-999.windows.example.com port 22 already belongs to a host of pool large",
        ),
        (numbered("large", 0, MAX_HOSTS), "host large-0 and 999 more of this change already belong to pool large"),
    ] {
        guarded.refuses(Change::Create(Box::new(object("largest", spec))), why).await?;
    }
    guarded.create("largest", numbered("largest", 0, MAX_HOSTS)).await?;
    // A new port for all hosts is not a removal: their names stay.
    guarded.merge("largest", json!({"spec": {"ssh": {"port": 2222}}})).await?;
    guarded.refuses(list("large", listed("large", 0, MAX_HOSTS / 2)), "500 of 1000 hosts would be drained").await?;
    guarded.list("large", listed("large", 0, MAX_HOSTS - MAX_HOSTS / 10)).await?;
    Ok(())
}

async fn many_hosts_leave_when_their_number_was_announced(guarded: &Guarded) -> Result<()> {
    guarded.create("many", numbered("many", 0, 30)).await?;
    let leave = |stay: usize| list("many", listed("many", 0, stay));
    guarded.refuses(leave(26), "4 of 30 hosts would be drained and deconfigured").await?;
    let how = "kubectl annotate wnp many windowsmachineconfig.openshift.io/announce-removal=4 --overwrite";
    guarded.refuses(leave(26), how).await?;
    let orphan = json!({"spec": {"deletionPolicy": "Orphan", "inventory": {"hosts": listed("many", 0, 26)}}});
    guarded.refuses(merge("many", orphan), "4 of 30 hosts would leave the pool and stay nodes").await?;
    // An announcement in the same request does not count.
    let both = json!({"metadata": {"annotations": {key::ANNOUNCE_REMOVAL: "4"}},
        "spec": {"inventory": {"hosts": listed("many", 0, 26)}}});
    guarded.refuses(merge("many", both), "4 of 30").await?;
    guarded.announce("many", "5").await?;
    guarded.refuses(leave(26), "4 of 30").await?;
    guarded.announce("many", "4").await?;
    guarded.done(leave(26)).await?;
    // A tenth of the hosts, or one of a few, may leave without an announcement.
    guarded.done(leave(24)).await?;
    guarded.create("few", numbered("few", 0, 3)).await?;
    guarded.list("few", listed("few", 0, 2)).await?;
    guarded.refuses(list("few", vec![]), "2 of 2 hosts").await?;
    // New hosts do not make up for those that leave.
    guarded.refuses(list("few", listed("fresh", 0, 9)), "2 of 2 hosts").await?;
    // The guard allows a change to another source, whose hosts the operator compares.
    guarded.merge("few", json!({"spec": {"inventory": {"hosts": null, "configMapRef": {"name": "few"}}}})).await?;
    Ok(())
}

async fn a_pool_with_nodes_is_deleted_when_that_was_announced(guarded: &Guarded) -> Result<()> {
    guarded.create("without-nodes", numbered("without-nodes", 0, 5)).await?;
    guarded.delete("without-nodes").await?;
    let as_operator = pools(operator(&guarded.control_plane).await?);
    let nodes = json!({"status": {"availableNodes": 1, "unavailableNodes": 1, "removingNodes": 1}});
    let with_nodes = async |name: &str, patch: Value| -> Result<()> {
        let mut spec = numbered(name, 0, 5);
        crd::merge(&mut spec, &patch);
        guarded.create(name, spec).await?;
        as_operator.patch_status(name, &PatchParams::default(), &Patch::Merge(&nodes)).await?;
        Ok(())
    };
    with_nodes("deleted", json!({})).await?;
    assert_refused(guarded.delete("deleted").await, "the 3 nodes of the pool would be drained and deconfigured");
    assert_refused(guarded.delete("deleted").await, "announce-removal=3 --overwrite");
    let named = ListParams::default().fields("metadata.name=deleted");
    assert_refused(guarded.pools.delete_collection(&DeleteParams::default(), &named).await.map(drop), "the 3 nodes");
    guarded.announce("deleted", "3").await?;
    guarded.delete("deleted").await?;
    with_nodes("released", json!({"deletionPolicy": "Orphan"})).await?;
    guarded.delete("released").await?;
    with_nodes("orphaning", json!({})).await?;
    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    guarded.pools.delete("orphaning", &orphan).await?;
    // The guard allows further requests to delete a pool that is being deleted.
    with_nodes("held", json!({})).await?;
    guarded.merge("held", json!({"metadata": {"finalizers": ["example.com/held"]}})).await?;
    guarded.announce("held", "3").await?;
    guarded.delete("held").await?;
    guarded.announce("held", "0").await?;
    guarded.delete("held").await?;
    guarded.merge("held", json!({"metadata": {"finalizers": null}})).await?;
    Ok(())
}

/// Checks that the operator is exempt, because it stores finalizers of any pool, and creates and deletes the pools for the legacy sources.
async fn the_operator_is_exempt(guarded: &Guarded) -> Result<()> {
    let as_operator = pools(operator(&guarded.control_plane).await?);
    guarded.create("theirs", numbered("theirs", 0, 2)).await?;
    as_operator.create(&PostParams::default(), &object("of-the-operator", numbered("theirs", 0, 2))).await?;
    let nodes = json!({"status": {"availableNodes": 2}});
    as_operator.patch_status("of-the-operator", &PatchParams::default(), &Patch::Merge(&nodes)).await?;
    as_operator.delete("of-the-operator", &DeleteParams::default()).await?;
    Ok(())
}

async fn in_warn_mode_all_pass_with_a_warning(guarded: &Guarded) -> Result<()> {
    let kubectl = async |args: &[&str]| -> Result<(bool, String)> {
        let output = guarded.control_plane.kubectl(args).await?;
        Ok((output.status.success(), String::from_utf8(output.stderr)?))
    };
    let actions = r#"{"spec":{"validationActions":["Warn","Audit"]}}"#;
    for name in ["windows-node-pools-guard-hosts", "windows-node-pools-guard-removals"] {
        let args = ["patch", "validatingadmissionpolicybinding", name, "--type", "merge", "-p", actions];
        let (done, error) = kubectl(&args).await?;
        ensure!(done, "{error}");
    }
    guarded.create("warned", numbered("warned", 0, 3)).await?;
    let empty = r#"{"spec":{"inventory":{"hosts":[]}}}"#;
    let removal = ["patch", "wnp", "warned", "--type", "merge", "-p", empty];
    let dry_run = [removal.as_slice(), &["--dry-run=server"]].concat();
    eventually(|| async { kubectl(&dry_run).await.is_ok_and(|(done, _)| done) }).await?;
    let (done, warning) = kubectl(&removal).await?;
    ensure!(done && warning.contains("Warning") && warning.contains("3 of 3 hosts would be drained"), "{warning}");
    let first = crd::pool("first", &hosts(&[host("c", "10.3.0.1")]));
    let second = crd::pool("second", &hosts(&[host("c", "10.3.0.2")]));
    for (pool, part) in [(&first, ""), (&second, "host c already belongs to pool first")] {
        let file = tempfile::NamedTempFile::with_suffix(".yaml")?;
        std::fs::write(file.path(), pool.to_string())?;
        let path = file.path().to_str().context("path is not UTF-8")?;
        // The API server notices changed bindings and new pools after a delay.
        let dry_run = ["create", "--dry-run=server", "-f", path];
        eventually(|| async { kubectl(&dry_run).await.is_ok_and(|(done, said)| done && said.contains(part)) }).await?;
        let (done, said) = kubectl(&["create", "-f", path]).await?;
        ensure!(done && said.contains(part) && said.contains("Warning") != part.is_empty(), "{said}");
    }
    Ok(())
}
