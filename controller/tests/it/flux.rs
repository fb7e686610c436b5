//! Hosts from Flux artifacts of each kind of source: every change is followed at once, and bad artifacts are refused and change no host.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use anyhow::{Context as _, Result, ensure};
use api::{WindowsNodePool, WindowsNodePoolSpec, conditions, conditions::kind};
use flate2::{Compression, write::GzEncoder};
use futures::future::try_join_all;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::Header;
use testbed::{
    deployment,
    sim::{SimHost, SimOptions},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use crate::{
    fleet::{World, all_ready, entry, has, inventory_file, is_ready, pool_status, status},
    git::explain,
};

/// Kinds of sources, and their plural names in the API server.
const KINDS: [(&str, &str); 3] = [
    ("GitRepository", "gitrepositories"),
    ("OCIRepository", "ocirepositories"),
    ("ExternalArtifact", "externalartifacts"),
];
const LIST: &str = "halls/a.yaml";

/// Test double of a Flux controller: an object, and a server for its artifact.
pub(crate) struct Source {
    kind: &'static str,
    objects: Api<DynamicObject>,
    address: SocketAddr,
    reply: Arc<Mutex<Reply>>,
}

#[derive(Clone, Default)]
enum Reply {
    /// Closed connection without an answer.
    #[default]
    Nothing,
    Artifact(Vec<u8>),
}

impl Source {
    /// Starts the server, but does not create the object.
    pub(crate) async fn new(world: &World, kind: &'static str, plural: &str) -> Result<Self> {
        let reply = Arc::<Mutex<Reply>>::default();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let served = reply.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let Reply::Artifact(body) = served.lock().unwrap().clone() else { continue };
                tokio::spawn(async move {
                    let mut asked = [0; 4096];
                    let _ = stream.read(&mut asked).await;
                    let length = body.len();
                    let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
                    let _ = stream.write_all(head.as_bytes()).await;
                    let _ = stream.write_all(&body).await;
                });
            }
        });
        let gvk = GroupVersionKind::gvk("source.toolkit.fluxcd.io", "v1", kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
        let objects = Api::namespaced_with(world.client.clone(), "flux-system", &resource);
        Ok(Self { kind, objects, address, reply })
    }

    /// Returns the `sourceRef` of a pool that takes its hosts from this source.
    pub(crate) fn reference(&self) -> Value {
        json!({"kind": self.kind, "name": "hosts", "namespace": "flux-system", "path": "halls"})
    }

    /// Applies the object as a user does.
    async fn object(&self, spec: Value) -> Result<()> {
        let object = json!({
            "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": self.kind, "metadata": {"name": "hosts"}, "spec": spec,
        });
        self.objects.patch("hosts", &PatchParams::apply("flux").force(), &Patch::Apply(&object)).await?;
        Ok(())
    }

    /// Writes the status of the object as Flux does.
    async fn says(&self, status: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"status": status}));
        self.objects.patch_status("hosts", &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Creates the object if it does not exist, and writes an artifact into its status, with this digest instead of the right one, if given.
    async fn names(&self, bytes: &[u8], revision: &str, digest: Option<&str>) -> Result<()> {
        let right = format!("sha256:{}", hex::encode(Sha256::digest(bytes)));
        let artifact = json!({
            "revision": revision,
            "digest": digest.unwrap_or(&right),
            "url": format!("http://{}/hosts.tar.gz", self.address),
            "lastUpdateTime": "2026-01-02T03:04:05Z",
        });
        self.object(json!({})).await?;
        self.says(json!({"artifact": artifact})).await
    }

    /// Makes an artifact of a list, serves it, and writes it into the status.
    pub(crate) async fn publish(&self, list: &str, revision: &str) -> Result<()> {
        let bytes = archive(list);
        self.serves(Reply::Artifact(bytes.clone()));
        self.names(&bytes, revision, None).await
    }

    fn serves(&self, reply: Reply) {
        *self.reply.lock().unwrap() = reply;
    }
}

/// Returns a tar.gz with the list.
fn archive(list: &str) -> Vec<u8> {
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    let mut header = Header::new_ustar();
    header.set_size(list.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, LIST, list.as_bytes()).unwrap();
    tar.into_inner().unwrap().finish().unwrap()
}

/// Pool with hosts from one source, named after the source's kind in lower case.
struct Scene<'a> {
    world: &'a World,
    pool: String,
    hosts: Vec<SimHost>,
    source: Source,
}

impl<'a> Scene<'a> {
    async fn new(world: &'a World, kind: &'static str, plural: &str, hosts: usize) -> Result<Self> {
        let pool = kind.to_lowercase();
        let source = Source::new(world, kind, plural).await?;
        Ok(Self { world, hosts: world.hosts(&pool, hosts).await?, pool, source })
    }

    async fn apply(&self, require_verified: bool) -> Result<()> {
        let mut reference = self.source.reference();
        reference["requireVerified"] = json!(require_verified);
        self.world.apply(&self.pool, &spec(json!({"sourceRef": reference}))?).await
    }

    /// Returns an inventory file of the first `count` hosts, with one line for each.
    fn list(&self, count: usize) -> String {
        inventory_file(&self.hosts[..count])
    }

    async fn until_ready(&self, count: i32, revision: &str) -> Result<()> {
        let all = |p: &WindowsNodePool| {
            let used = pool_status(p).inventory.and_then(|i| i.revision);
            all_ready(count)(p) && used.as_deref() == Some(revision)
        };
        self.world.until(&self.pool, &format!("{count} hosts of {revision} are Ready"), all).await
    }

    /// Waits until the pool reports a refusal with this reason, message and refused revision, and is Stalled or tries
    /// again, according to `then`.
    async fn refuses(&self, about: &str, reason: &str, says: &str, refused: Option<&str>, then: Then) -> Result<()> {
        let told = |p: &WindowsNodePool| {
            let status = pool_status(p);
            let conditions = &status.conditions;
            let synced = conditions::find(conditions, kind::INVENTORY_SYNCED);
            let is_stalled = has(conditions, kind::STALLED, "True", reason);
            let tries_again = has(conditions, kind::RECONCILING, "True", "ProgressingWithRetry");
            synced.is_some_and(|c| c.status == "False" && c.reason == reason && c.message.contains(says))
                && has(conditions, kind::DEGRADED, "True", reason)
                && (is_stalled, tries_again) == (then == Then::Stalls, then == Then::TriesAgain)
                && status.inventory.and_then(|i| i.refused_revision).as_deref() == refused
        };
        self.world.until(&self.pool, &format!("{about}: {reason}, {says:?}"), told).await
    }

    /// Checks that the operator has changed no host.
    async fn is_untouched(&self, before: &[testbed::sim::Stats]) -> Result<()> {
        let now: Vec<_> = self.hosts.iter().map(SimHost::stats).collect();
        ensure!(now == before, "a host of {} was worked on: {now:?}, before: {before:?}", self.pool);
        for host in &self.hosts {
            let instance = self.world.instance(host.name()).await?.context("no instance")?;
            ensure!(!instance.is_leaving(), "{} is being removed", host.name());
            ensure!(status(&instance).operation.is_none(), "{} has an operation", host.name());
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    TriesAgain,
    Stalls,
}

fn spec(inventory: Value) -> Result<WindowsNodePoolSpec> {
    Ok(serde_json::from_value(json!({"inventory": inventory}))?)
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_of_each_kind_are_followed_and_invalid_ones_refused() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let scenes = try_join_all(KINDS.map(|(kind, plural)| Scene::new(&world, kind, plural, 3))).await?;
    for scene in &scenes {
        scene.apply(false).await?;
        scene.refuses("no Flux at all", "SourceNotFound", "no such API", None, Then::TriesAgain).await?;
    }
    deployment::install_flux(&world.control_plane).await?;
    try_join_all(scenes.iter().map(changes_are_seen_without_hosts)).await?;
    leads_back_to_its_commit(&scenes[0]).await?;
    let before: Vec<Vec<_>> = scenes.iter().map(|s| s.hosts.iter().map(SimHost::stats).collect()).collect();
    try_join_all(scenes.iter().map(is_refused)).await?;
    try_join_all(scenes.iter().map(is_not_ready)).await?;
    try_join_all(scenes.iter().map(is_verified)).await?;
    for (scene, (_, plural)) in scenes.iter().zip(KINDS) {
        // The garbage collector of Kubernetes opens a watch, too, some time after a kind appears.
        let both = format!("the operator and the garbage collector watch {plural}");
        world.eventually(&both, || async { watches(&world, plural).await.is_ok_and(|n| n == 2) }).await?;
        let list: Vec<_> = scene.hosts.iter().map(entry).collect();
        world.apply(&scene.pool, &spec(json!({"hosts": list}))?).await?;
        let what = format!("the operator does not watch {plural} any more");
        world.eventually(&what, || async { watches(&world, plural).await.is_ok_and(|n| n == 1) }).await?;
        let own = |p: &WindowsNodePool| is_ready(p) && pool_status(p).inventory.is_none();
        world.until(&scene.pool, "the pool's own list is in force", own).await?;
    }
    for (scene, before) in scenes.iter().zip(&before) {
        scene.is_untouched(before).await?;
    }
    Ok(())
}

/// Checks that a pool without hosts sees changes of its source by a watch: nothing else triggers such a pool in the five minutes before the
/// operator's next periodic read.
async fn changes_are_seen_without_hosts(scene: &Scene<'_>) -> Result<()> {
    scene.source.object(json!({})).await?;
    scene.refuses("no artifact", "SourceNotReady", "no artifact yet", None, Then::TriesAgain).await?;
    scene.source.publish("[]", "main@sha1:00").await?;
    scene.until_ready(0, "main@sha1:00").await?;
    scene.source.publish(&scene.list(2), &commit("1")).await?;
    scene.until_ready(2, &commit("1")).await?;
    scene.source.publish(&scene.list(3), &commit("2")).await?;
    scene.until_ready(3, &commit("2")).await
}

/// Returns a revision in Flux's format.
fn commit(digit: &str) -> String {
    format!("main@sha1:{}", digit.repeat(40))
}

async fn leads_back_to_its_commit(scene: &Scene<'_>) -> Result<()> {
    for (host, revision, line) in [(0, commit("1"), 1), (1, commit("1"), 2), (2, commit("2"), 3)] {
        let name = scene.hosts[host].name();
        let origin = scene.world.instance(name).await?.and_then(|i| i.spec.origin).context("no origin")?;
        ensure!(origin.source == "GitRepository flux-system/hosts", "{origin:?}");
        ensure!(origin.revision.as_deref() == Some(revision.as_str()), "{name}: {origin:?}");
        ensure!((origin.file.as_deref(), origin.line) == (Some(LIST), Some(line)), "{name}: {origin:?}");
        let place = format!("{name} (");
        let note = scene.world.until_note(&scene.pool, "HostsAdmitted", |note| note.contains(&place)).await?;
        ensure!(note.contains(&revision) && note.contains(&format!("{LIST}:{line})")), "{note}");
        let said = explain(scene.world, name)?;
        let id = revision.trim_start_matches("main@sha1:");
        let made = format!("{id}, or an older one");
        for part in ["GitRepository flux-system/hosts", &format!("{LIST}:{line}\n"), &revision, &made, &commit("2")] {
            ensure!(said.contains(part), "{part:?} is not in\n{said}");
        }
    }
    Ok(())
}

async fn is_refused(scene: &Scene<'_>) -> Result<()> {
    let (source, good) = (&scene.source, scene.list(3));
    let fewer = archive(&scene.list(2));
    let zeros = format!("sha256:{}", "0".repeat(64));
    let served = |bytes: &[u8]| Reply::Artifact(bytes.to_vec());
    let bad_entry = archive(&good.replacen("address", "adress", 1));
    for (n, (about, reason, says, bytes, digest, reply, then)) in [
        ("digest", "ArtifactNotReadable", "digest", &fewer, Some(zeros.as_str()), served(&fewer), Then::TriesAgain),
        ("a bad entry", "InvalidInventory", "halls/a.yaml:1", &bad_entry, None, served(&bad_entry), Then::Stalls),
        ("no server", "ArtifactNotReadable", "could not be fetched", &fewer, None, Reply::Nothing, Then::TriesAgain),
    ]
    .into_iter()
    .enumerate()
    {
        let (bad, mended) = (format!("main@sha1:b{n}"), format!("main@sha1:c{n}"));
        source.serves(reply);
        source.names(bytes, &bad, digest).await?;
        scene.refuses(about, reason, says, Some(&bad), then).await?;
        source.publish(&good, &mended).await?;
        scene.until_ready(3, &mended).await?;
    }
    // The server comes back, and the object does not change.
    let more = archive(&format!("# More.\n{good}"));
    source.serves(Reply::Nothing);
    source.names(&more, "main@sha1:d1", None).await?;
    scene.refuses("away", "ArtifactNotReadable", "fetched", Some("main@sha1:d1"), Then::TriesAgain).await?;
    source.serves(Reply::Artifact(more));
    scene.until_ready(3, "main@sha1:d1").await?;

    source.objects.delete("hosts", &DeleteParams::default()).await?;
    scene.refuses("the object is gone", "SourceNotFound", "flux-system/hosts", None, Then::TriesAgain).await?;
    source.publish(&good, "main@sha1:d2").await?;
    scene.until_ready(3, "main@sha1:d2").await
}

/// Checks that a pool reports a source that is not Ready, unless the source is suspended, and keeps its hosts.
async fn is_not_ready(scene: &Scene<'_>) -> Result<()> {
    let ready = |status| json!({"conditions": [{"type": "Ready", "status": status, "message": "cannot clone"}]});
    scene.source.says(ready("False")).await?;
    scene.refuses("not Ready", "SourceNotReady", "cannot clone", None, Then::TriesAgain).await?;
    scene.source.object(json!({"suspend": true})).await?;
    scene.until_ready(3, "main@sha1:d2").await?;
    scene.source.object(json!({"suspend": false})).await?;
    scene.refuses("not Ready again", "SourceNotReady", "cannot clone", None, Then::TriesAgain).await?;
    scene.source.says(ready("True")).await?;
    scene.until_ready(3, "main@sha1:d2").await
}

/// Checks that a pool with `requireVerified` uses only artifacts that Flux has verified.
async fn is_verified(scene: &Scene<'_>) -> Result<()> {
    let (source, reason) = (&scene.source, "VerificationError");
    if source.kind == "ExternalArtifact" {
        let refused = scene.apply(true).await.unwrap_err().to_string();
        ensure!(refused.contains("Flux does not verify an ExternalArtifact"), "{refused}");
        return Ok(());
    }
    scene.apply(true).await?;
    scene.refuses("never verified", reason, "set spec.verify of the object", None, Then::Stalls).await?;
    let says = |status| json!({"conditions": [{"type": "SourceVerified", "status": status, "message": "no key"}]});
    source.says(says("True")).await?;
    scene.until_ready(3, "main@sha1:d2").await?;
    let conditions = pool_status(&scene.world.pool(&scene.pool).await?).conditions;
    ensure!(has(&conditions, kind::SOURCE_VERIFIED, "True", "Succeeded"), "{conditions:?}");
    // Flux keeps the earlier artifact.
    source.says(says("False")).await?;
    scene.refuses("a newer one is not", reason, "no key", None, Then::Stalls).await?;
    source.publish(&scene.list(2), "main@sha1:e0").await?;
    scene.refuses("this one is not", reason, "no key", Some("main@sha1:e0"), Then::Stalls).await?;
    source.publish(&format!("# Signed.\n{}", scene.list(3)), "main@sha1:e1").await?;
    source.says(says("True")).await?;
    scene.until_ready(3, "main@sha1:e1").await?;
    scene.apply(false).await?;
    scene.until_ready(3, "main@sha1:e1").await
}

/// Returns the number of watches of a resource that the API server has open.
async fn watches(world: &World, plural: &str) -> Result<u32> {
    let output = world.control_plane.kubectl(&["get", "--raw", "/metrics"]).await?;
    let text = String::from_utf8(output.stdout)?;
    let lines = text.lines().filter(|l| l.starts_with("apiserver_longrunning_requests{"));
    let mut count = 0;
    for line in lines.filter(|l| l.contains(&format!("resource=\"{plural}\"")) && l.contains("verb=\"WATCH\"")) {
        count += line.rsplit_once(' ').context("no number")?.1.parse::<u32>()?;
    }
    Ok(count)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_starts_while_the_server_is_away_leaves_all_as_it_is() -> Result<()> {
    let mut world = World::new(SimOptions::default(), &[]).await?;
    deployment::install_flux(&world.control_plane).await?;
    let Scene { pool, hosts, source, .. } = Scene::new(&world, "OCIRepository", "ocirepositories", 2).await?;
    let scene = Scene { world: &world, pool, hosts, source };
    let (list, revision) = (scene.list(2), "latest@sha256:1");
    scene.source.publish(&list, revision).await?;
    scene.apply(false).await?;
    scene.until_ready(2, revision).await?;
    let Scene { pool, hosts, source, .. } = scene;
    let before: Vec<_> = hosts.iter().map(SimHost::stats).collect();
    source.serves(Reply::Nothing);
    world.restart().await?;

    let scene = Scene { world: &world, pool, hosts, source };
    scene.refuses("nothing is known", "ArtifactNotReadable", "could not be fetched", None, Then::TriesAgain).await?;
    let seen = pool_status(&world.pool(&scene.pool).await?);
    ensure!((seen.hosts, seen.ready_nodes, seen.removing_nodes) == (2, 2, 0), "{seen:?}");
    ensure!(seen.inventory.and_then(|i| i.revision).as_deref() == Some(revision), "the pool forgot its revision");
    scene.is_untouched(&before).await?;
    scene.source.serves(Reply::Artifact(archive(&list)));
    scene.until_ready(2, revision).await?;
    scene.is_untouched(&before).await
}
