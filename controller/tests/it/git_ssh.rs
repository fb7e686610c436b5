//! Hosts from a Git repository behind OpenSSH.

use std::fs;

use anyhow::{Result, ensure};
use kube::ResourceExt as _;
use russh::keys::{HashAlg, PrivateKey, ssh_key::LineEnding};
use serde_json::json;
use testbed::{deployment::new_key, git::SshServer};

use crate::git::{LIST, POOL, Scene, refuses};

const SECRET: &str = "over-ssh";

/// Stores the identity, and the server's current host key as the known one, in the pool's Secret.
async fn log_in_with(scene: &Scene, server: &SshServer, identity: &PrivateKey) -> Result<()> {
    let identity = identity.to_openssh(LineEnding::LF)?;
    scene.secret(SECRET, &json!({"identity": identity.as_str(), "known_hosts": server.known_hosts()})).await
}

fn fingerprint(key: &PrivateKey) -> String {
    key.fingerprint(HashAlg::Sha256).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_come_over_ssh_from_the_server_that_is_known() -> Result<()> {
    let scene = Scene::new(3).await?;
    let (world, origin) = (&scene.world, &scene.origin);
    let mut server = SshServer::new(origin.root());
    let identity = server.openssh.key().clone();
    log_in_with(&scene, &server, &identity).await?;
    let first = origin.commit(LIST, scene.list(2), "Two hosts");
    world.apply(POOL, &scene.spec(json!({"url": server.url(), "secretRef": {"name": SECRET}}))).await?;
    scene.until_ready(2).await?;
    scene.until_used(&first).await?;

    // A commit labels one host, adds another, and leaves the third unchanged.
    let alone = scene.hosts[1].stats();
    let list = scene.list(3).replacen('}', ", labels: {hall: north}}", 1);
    let second = origin.commit(LIST, &list, "A label, and a third host");
    scene.until_ready(3).await?;
    scene.until_used(&second).await?;
    let labelled = scene.hosts[0].name();
    world
        .eventually("the label is on the Node", || async {
            let node = world.node(labelled).await.ok().flatten();
            node.is_some_and(|node| node.labels().get("hall").is_some_and(|hall| hall == "north"))
        })
        .await?;
    ensure!(scene.hosts[1].stats() == alone, "a host that stays was worked on");

    // A server with an unknown host key gets no commands, and its data are not used.
    let stats = scene.stats();
    let known = server.change_host_key();
    refuses(&scene, "another host key", "HostKeyUnknown", &fingerprint(server.openssh.host_key())).await?;
    let commands = server.commands().len();
    let less = origin.commit(LIST, scene.list(2), "One less");
    // A report of yet another key shows that the operator has connected since.
    server.change_host_key();
    refuses(&scene, "yet another host key", "HostKeyUnknown", &fingerprint(server.openssh.host_key())).await?;
    ensure!(server.commands().len() == commands, "an unknown server was asked for something");
    ensure!(scene.revision().await? == format!("main@sha1:{second}"), "{less} is in use: {}", scene.revision().await?);
    let third = origin.commit(LIST, &list, "All again");
    server.openssh.set_host_key(known)?;
    scene.until_used(&third).await?;
    // A user confirms the new host key.
    server.change_host_key();
    refuses(&scene, "a new host key", "HostKeyUnknown", &fingerprint(server.openssh.host_key())).await?;
    log_in_with(&scene, &server, &identity).await?;
    scene.until_used(&third).await?;

    let stranger = new_key()?;
    log_in_with(&scene, &server, &stranger).await?;
    refuses(&scene, "a revoked identity", "AuthenticationFailed", &fingerprint(&stranger)).await?;
    log_in_with(&scene, &server, &identity).await?;
    scene.until_used(&third).await?;
    fs::rename(origin.work(), origin.root().join("away"))?;
    refuses(&scene, "the repository is gone", "SourceInvalid", "127.0.0.1").await?;
    fs::rename(origin.root().join("away"), origin.work())?;
    let last = origin.commit(LIST, format!("# Back.\n{list}"), "Back again");
    scene.until_used(&last).await?;
    scene.until_ready(3).await?;
    ensure!(scene.stats() == stats, "a host was worked on: {:?}", scene.stats());
    Ok(())
}
