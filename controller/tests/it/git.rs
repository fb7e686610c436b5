//! Hosts from a Git repository on a real Git server: good commits are followed, and bad ones are refused and change no host.

use std::{
    fs,
    process::Command,
    sync::{Arc, Mutex},
};

use anyhow::{Context as _, Result, ensure};
use api::{WindowsNodePool, WindowsNodePoolSpec, conditions, conditions::kind, names::key};
use ring::hmac;
use serde_json::{Value, json};
use testbed::{
    deployment::{NAMESPACE, within},
    git::{Origin, Reply, Server},
    sim::{SimHost, SimOptions, Stats},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::fleet::{LIMIT, World, all_ready, has, inventory_file, is_ready, pool_status, status};

pub(crate) const POOL: &str = "halls";
pub(crate) const LIST: &str = "halls/a.yaml";

/// Repository, its server, and the hosts that it lists.
pub(crate) struct Scene {
    pub world: World,
    pub origin: Origin,
    pub server: Server,
    pub hosts: Vec<SimHost>,
    /// Fault of the server. Without one, Git answers.
    rule: Arc<Mutex<Option<Trick>>>,
}

#[derive(Clone, Copy)]
enum Trick {
    Unavailable,
    Redirect,
}

impl Scene {
    pub(crate) async fn new(hosts: usize) -> Result<Self> {
        let world = World::new(SimOptions::default(), &[]).await?;
        let hosts = world.hosts("win", hosts).await?;
        let origin = Origin::new();
        let rule = Arc::<Mutex<Option<Trick>>>::default();
        let tricks = rule.clone();
        let server = Server::with(origin.root(), false, move |_| match *tricks.lock().unwrap() {
            None => None,
            Some(Trick::Unavailable) => Some(Reply::Full(503, Vec::new(), Vec::new())),
            Some(Trick::Redirect) => {
                let away = vec![("Location", "https://elsewhere.invalid/hosts".to_owned())];
                Some(Reply::Full(302, away, Vec::new()))
            }
        });
        let scene = Self { world, origin, server, hosts, rule };
        scene.secret("repository", &json!({"ca.crt": scene.server.authority.pem})).await?;
        Ok(scene)
    }

    pub(crate) async fn secret(&self, name: &str, data: &Value) -> Result<()> {
        let metadata = json!({"name": name, "namespace": NAMESPACE});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data});
        self.world.control_plane.apply_yaml(&secret.to_string()).await
    }

    pub(crate) fn spec(&self, more: Value) -> WindowsNodePoolSpec {
        let mut git = json!({
            "url": self.server.url(),
            "path": "halls",
            "intervalSeconds": 1,
            "secretRef": {"name": "repository"},
        });
        git.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(json!({"inventory": {"git": git}})).unwrap()
    }

    /// Returns an inventory file of the first `count` hosts, with one line for each.
    pub(crate) fn list(&self, count: usize) -> String {
        inventory_file(&self.hosts[..count])
    }

    pub(crate) async fn until_ready(&self, count: i32) -> Result<()> {
        self.world.until(POOL, &format!("{count} hosts are Ready"), all_ready(count)).await
    }

    pub(crate) fn stats(&self) -> Vec<Stats> {
        self.hosts.iter().map(SimHost::stats).collect()
    }

    /// Waits until the pool uses the whole commit, and refuses none.
    pub(crate) async fn until_used(&self, commit: &str) -> Result<()> {
        let revision = Some(format!("main@sha1:{commit}"));
        let used = |p: &WindowsNodePool| {
            let status = pool_status(p);
            let inventory = status.inventory.clone().unwrap_or_default();
            is_ready(p)
                && conditions::is_true(&status.conditions, kind::INVENTORY_SYNCED)
                && (inventory.revision, inventory.refused_revision) == (revision.clone(), None)
        };
        self.world.until(POOL, &format!("{commit} is in use"), used).await
    }

    pub(crate) async fn revision(&self) -> Result<String> {
        let inventory = pool_status(&self.world.pool(POOL).await?).inventory;
        inventory.and_then(|i| i.revision).context("the pool has no revision")
    }

    async fn annotate(&self, key: &str, value: &str) -> Result<()> {
        self.world.edit_pool(POOL, json!({"metadata": {"annotations": {key: value}}})).await
    }

    /// Signs all further commits with this key, or leaves them unsigned without one.
    pub(crate) fn signs_with(&self, key: Option<&str>) {
        self.origin.git(&["config", "commit.gpgsign", if key.is_some() { "true" } else { "false" }]);
        if let Some(key) = key {
            self.origin.git(&["config", "gpg.format", "ssh"]);
            self.origin.git(&["config", "user.signingkey", key]);
        }
    }

    /// Creates a signing key. Returns the path of the private key, and the text of the public key.
    pub(crate) fn new_signer(&self, name: &str) -> Result<(String, String)> {
        let path = self.origin.root().join(name);
        let made =
            Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"]).arg(&path).status()?;
        ensure!(made.success(), "ssh-keygen failed");
        let public = fs::read_to_string(path.with_extension("pub"))?;
        Ok((path.to_str().context("the path is not UTF-8")?.to_owned(), public))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_is_followed() -> Result<()> {
    let scene = Scene::new(4).await?;
    let (world, origin) = (&scene.world, &scene.origin);
    let first = origin.commit(LIST, scene.list(2), "Two hosts");
    world.apply(POOL, &scene.spec(json!({"intervalSeconds": 3600}))).await?;
    scene.until_ready(2).await?;
    ensure!(scene.revision().await? == format!("main@sha1:{first}"), "{:?}", scene.revision().await?);

    let metrics = world.operator.get("/metrics").await?;
    let success = format!("windows_node_pool_source_last_success_timestamp_seconds{{pool=\"{POOL}\",source=\"git\"}} ");
    ensure!(metrics.contains(&success), "{metrics}");

    // The interval is an hour: only a user's request or a push triggers a fetch.
    let second = origin.commit(LIST, scene.list(3), "A third one");
    scene.annotate(key::RECONCILE_REQUESTED, "now").await?;
    scene.until_ready(3).await?;
    let status_of = pool_status(&world.pool(POOL).await?);
    ensure!(status_of.last_handled_reconcile_at.as_deref() == Some("now"), "{status_of:?}");
    let third = origin.commit("halls/b.json", format!("[{}]", json_of(&scene.hosts[3])), "A fourth one");
    ensure!(push(&scene, "right").await.is_err(), "the port for pushes is open without a token");
    scene.secret("windows-node-pools-webhook", &json!({"token": "right"})).await?;
    within(LIMIT, "the port for pushes is open", || async { push(&scene, "wrong").await.is_ok() }).await?;
    ensure!(push(&scene, "wrong").await?.contains("403"), "a push with a wrong token was accepted");
    let said = push(&scene, "right").await?;
    ensure!(said.contains("202"), "{said}");
    scene.until_ready(4).await?;

    // Each instance records the commit that added its entry, and keeps it while other entries change.
    for (host, commit, file, line) in
        [(0, &first, LIST, 1), (1, &first, LIST, 2), (2, &second, LIST, 3), (3, &third, "halls/b.json", 1)]
    {
        let name = scene.hosts[host].name();
        let instance = world.instance(name).await?.context("no instance")?;
        let origin = instance.spec.origin.context("no origin")?;
        let made = origin.commit.context("no commit")?;
        ensure!((&made.id, made.or_older) == (commit, false), "{name}: {made:?}");
        ensure!(made.author == "Ada Example <ada@example.com>", "{made:?}");
        ensure!((origin.file.as_deref(), origin.line) == (Some(file), Some(line)), "{name}: {:?}", origin.file);
        let place = format!("{name} (");
        let note = world.until_note(POOL, "HostsAdmitted", |note| note.contains(&place)).await?;
        ensure!(note.contains(commit.as_str()) && note.contains(&format!("{file}:{line})")), "{note}");
    }
    let said = explain(world, scene.hosts[2].name())?;
    let now = format!("main@sha1:{third}");
    for part in ["halls/a.yaml:3\n", &second, "Ada Example", "A third one", "Ready", &now] {
        ensure!(said.contains(part), "{part:?} is not in\n{said}");
    }
    let audit: Vec<String> =
        world.operator.log().lines().filter(|l| l.contains("event=\"HostAdmitted\"")).map(Into::into).collect();
    ensure!(audit.len() == 4, "{audit:?}");
    ensure!(audit.iter().any(|l| l.contains(&second) && l.contains("ada@example.com")), "{audit:?}");

    // One host is removed, and the others are not touched.
    let stats = scene.hosts[0].stats();
    origin.commit("halls/b.json", "{\"kind\": \"WindowsHostInventory\", \"apiVersion\": \"windowsmachineconfig.openshift.io/v1alpha1\", \"hosts\": []}", "Without it");
    scene.annotate(key::RECONCILE_REQUESTED, "again").await?;
    world.until_gone(&scene.hosts[3]).await?;
    scene.until_ready(3).await?;
    ensure!(scene.hosts[0].stats() == stats, "a host that stays was worked on");
    Ok(())
}

fn json_of(host: &SimHost) -> Value {
    json!({"name": host.name(), "address": host.address().to_string(), "port": host.port()})
}

/// Sends a push event that is signed with a token, and returns the operator's answer.
async fn push(scene: &Scene, token: &str) -> Result<String> {
    let body = json!({"ref": "refs/heads/main", "repository": {"clone_url": scene.server.url()}}).to_string();
    let signature = hex::encode(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes()), body.as_bytes()));
    let mut stream = tokio::net::TcpStream::connect(scene.world.operator.webhook_address()).await?;
    let request = format!(
        "POST /hooks/git HTTP/1.1\r\nHost: operator\r\nConnection: close\r\nContent-Type: application/json\r\n\
         X-Hub-Signature-256: sha256={signature}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Returns the output of the command `explain` about a host.
pub(crate) fn explain(world: &World, host: &str) -> Result<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_kubectl-windows_node_pools"))
        .args(["explain", host])
        .env("KUBECONFIG", world.control_plane.kubeconfig())
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Waits until the pool reports that a list cannot be used, for this reason.
pub(crate) async fn refuses(scene: &Scene, about: &str, reason: &str, says: &str) -> Result<()> {
    let told = |p: &WindowsNodePool| {
        let status = pool_status(p);
        let synced = conditions::find(&status.conditions, kind::INVENTORY_SYNCED).cloned();
        synced.is_some_and(|c| c.status == "False" && c.reason == reason && c.message.contains(says))
            && has(&status.conditions, kind::DEGRADED, "True", reason)
    };
    scene.world.until(POOL, &format!("{about}: {reason}, {says:?}"), told).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_used_is_reported_and_touches_nobody() -> Result<()> {
    let scene = Scene::new(4).await?;
    let (world, origin) = (&scene.world, &scene.origin);
    let (mine, public) = scene.new_signer("mine")?;
    let (foreign, _) = scene.new_signer("foreign")?;
    scene.secret("signers", &json!({"mine.sshpub": public})).await?;
    scene.signs_with(Some(&mine));
    origin.commit(LIST, scene.list(4), "All");
    world.apply(POOL, &scene.spec(json!({"verify": {"secretRef": {"name": "signers"}}}))).await?;
    scene.until_ready(4).await?;
    let status = pool_status(&world.pool(POOL).await?);
    ensure!(has(&status.conditions, kind::SOURCE_VERIFIED, "True", "Succeeded"), "{:?}", status.conditions);
    ensure!(status.inventory.and_then(|i| i.signer).is_some_and(|s| s.starts_with("SSH SHA256:")), "no signer");
    let (stats, used) = (scene.stats(), scene.revision().await?);

    let good = scene.list(4);
    let bad_entry = good.replacen("address", "adress", 1);
    for (about, reason, says, text) in [
        ("one bad entry", "InvalidInventory", "halls/a.yaml:1", bad_entry.as_str()),
        ("an empty file", "InvalidInventory", "hosts: []", ""),
        ("half of the hosts", "RemovalBlocked", "2 of 4", &scene.list(2)),
        (
            "none",
            "RemovalBlocked",
            "4 hosts of the pool stay",
            "kind: WindowsHostInventory\napiVersion: windowsmachineconfig.openshift.io/v1alpha1\nhosts: []\n",
        ),
    ] {
        origin.commit(LIST, text, about);
        refuses(&scene, about, reason, says).await?;
        origin.commit(LIST, &good, "Corrected");
        scene.until_ready(4).await?;
    }
    origin.git(&["mv", "halls", "elsewhere"]);
    origin.commit_all("Moved away");
    refuses(&scene, "the path is gone", "SourceInvalid", "halls").await?;
    origin.git(&["mv", "elsewhere", "halls"]);
    std::os::unix::fs::symlink("/etc/passwd", origin.work().join("halls/b.yaml"))?;
    origin.commit_all("A link that leads out");
    refuses(&scene, "a symbolic link", "InvalidInventory", "halls/b.yaml").await?;
    fs::remove_file(origin.work().join("halls/b.yaml"))?;
    origin.commit_all("Without the link");
    scene.until_ready(4).await?;

    // Commits without a signature, or with the signature of an untrusted key, are refused.
    for (about, key, says) in
        [("not signed", None, "not signed"), ("by an untrusted key", Some(foreign.as_str()), "SHA256:")]
    {
        scene.signs_with(key);
        let refused = origin.commit(LIST, scene.list(3), about);
        refuses(&scene, about, "VerificationError", says).await?;
        let inventory = pool_status(&world.pool(POOL).await?).inventory.context("no inventory")?;
        ensure!(inventory.refused_revision == Some(format!("main@sha1:{refused}")), "{inventory:?}");
        scene.signs_with(Some(&mine));
        origin.commit(LIST, &good, "Signed again");
        scene.until_ready(4).await?;
    }
    scene.secret("signers", &json!({"mine.sshpub": fs::read_to_string(format!("{foreign}.pub"))?})).await?;
    refuses(&scene, "the key was revoked", "VerificationError", "SHA256:").await?;
    scene.secret("signers", &json!({"mine.sshpub": public})).await?;
    scene.until_ready(4).await?;

    // A rewritten history and faults of the server are reported.
    let before = origin.head();
    origin.git(&["commit", "-q", "--amend", "-m", "Another history"]);
    refuses(&scene, "a force push", "HistoryRewritten", "allowNonFastForward").await?;
    origin.git(&["reset", "-q", "--hard", &before]);
    scene.until_ready(4).await?;
    origin.git(&["checkout", "-q", "-b", "aside"]);
    origin.git(&["branch", "-q", "-D", "main"]);
    world
        .apply(POOL, &scene.spec(json!({"ref": {"branch": "main"}, "verify": {"secretRef": {"name": "signers"}}})))
        .await?;
    refuses(&scene, "the branch is gone", "SourceInvalid", "main").await?;
    origin.git(&["checkout", "-q", "-b", "main"]);
    scene.until_ready(4).await?;
    fs::rename(origin.work(), origin.root().join("away"))?;
    refuses(&scene, "the repository is gone", "SourceInvalid", "localhost").await?;
    fs::rename(origin.root().join("away"), origin.work())?;
    scene.until_ready(4).await?;
    for (about, trick, reason, says) in [
        ("a server that is away", Trick::Unavailable, "GitOperationFailed", "503"),
        ("a server that leads away", Trick::Redirect, "GitOperationFailed", "elsewhere.invalid"),
    ] {
        *scene.rule.lock().unwrap() = Some(trick);
        refuses(&scene, about, reason, says).await?;
        let conditions = pool_status(&world.pool(POOL).await?).conditions;
        let told = match trick {
            Trick::Unavailable => has(&conditions, kind::RECONCILING, "True", "ProgressingWithRetry"),
            Trick::Redirect => has(&conditions, kind::STALLED, "True", reason),
        };
        ensure!(told, "{about}: {conditions:?}");
        *scene.rule.lock().unwrap() = None;
        scene.until_ready(4).await?;
    }
    ensure!(scene.stats() == stats, "a host was worked on: {:?}", scene.stats());
    ensure!(scene.revision().await? != used, "the pool stays at the old revision");
    for host in &scene.hosts {
        let instance = world.instance(host.name()).await?.context("no instance")?;
        ensure!(is_idle(&instance), "{} has an operation", host.name());
    }
    Ok(())
}

fn is_idle(instance: &api::WindowsInstance) -> bool {
    status(instance).operation.is_none() && !instance.is_leaving()
}

/// Returns the conditions of the pool, with their transition times.
async fn said(scene: &Scene) -> Result<Vec<String>> {
    let conditions = pool_status(&scene.world.pool(POOL).await?).conditions;
    Ok(conditions
        .iter()
        .map(|c| format!("{} {} {} {:?}", c.type_, c.status, c.reason, c.last_transition_time))
        .collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_starts_leaves_all_as_it_is() -> Result<()> {
    let mut scene = Scene::new(2).await?;
    let (mine, public) = scene.new_signer("mine")?;
    scene.secret("signers", &json!({"mine.sshpub": public})).await?;
    scene.signs_with(Some(&mine));
    scene.origin.commit(LIST, scene.list(2), "Both");
    let verify = json!({"secretRef": {"name": "signers"}});
    scene.world.apply(POOL, &scene.spec(json!({"verify": verify.clone()}))).await?;
    scene.until_ready(2).await?;
    let (stats, before) = (scene.stats(), said(&scene).await?);

    // An operator that has just started reports no fault before its first fetch.
    scene.world.restart().await?;
    scene.annotate(key::RECONCILE_REQUESTED, "after the start").await?;
    let has_looked =
        |p: &WindowsNodePool| pool_status(p).last_handled_reconcile_at.as_deref() == Some("after the start");
    scene.world.until(POOL, "it has looked", has_looked).await?;
    let after = said(&scene).await?;
    ensure!(after == before, "{after:#?}\nbefore: {before:#?}\n{}", scene.world.operator.log());

    // The server is down. The list in the cache was verified, and still is.
    scene.world.apply(POOL, &scene.spec(json!({"verify": verify}))).await?;
    *scene.rule.lock().unwrap() = Some(Trick::Unavailable);
    scene.world.restart().await?;
    refuses(&scene, "it is as it was", "GitOperationFailed", "503").await?;
    let status = pool_status(&scene.world.pool(POOL).await?);
    ensure!(has(&status.conditions, kind::SOURCE_VERIFIED, "True", "Succeeded"), "{:?}", status.conditions);

    scene.world.stop().await?;
    fs::remove_dir_all(scene.world.control_plane.dir().join("cache"))?;
    scene.world.new_operator().await?;
    refuses(&scene, "nothing is known", "GitOperationFailed", "503").await?;
    let status = pool_status(&scene.world.pool(POOL).await?);
    ensure!((status.hosts, status.ready_nodes, status.removing_nodes) == (2, 2, 0), "{status:?}");
    *scene.rule.lock().unwrap() = None;
    scene.until_ready(2).await?;
    ensure!(scene.stats() == stats, "a host was worked on: {:?}", scene.stats());
    Ok(())
}
