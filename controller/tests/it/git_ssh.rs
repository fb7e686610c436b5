//! Hosts from a Git repository behind OpenSSH.

use anyhow::{Result, ensure};
use russh::keys::{HashAlg, PrivateKey, ssh_key::LineEnding};
use serde_json::json;
use testbed::git::SshServer;

use crate::git::{LIST, POOL, Scene, refuses};

const SECRET: &str = "over-ssh";

/// Stores the identity, and the server's current host key as the known one, in the pool's Secret.
async fn log_in_with(scene: &Scene, server: &SshServer, identity: &PrivateKey) -> Result<()> {
    let identity = identity.to_openssh(LineEnding::LF)?;
    scene.secret(SECRET, &json!({"identity": identity.as_str(), "known_hosts": server.known_hosts()})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_come_over_ssh_from_the_server_that_is_known() -> Result<()> {
    let scene = Scene::new(2).await?;
    let (world, origin) = (&scene.world, &scene.origin);
    let mut server = SshServer::new(origin.root());
    let identity = server.openssh.key().clone();
    log_in_with(&scene, &server, &identity).await?;
    let first = origin.commit(LIST, scene.list(2), "Two hosts");
    world.apply(POOL, &scene.spec(json!({"url": server.url(), "secretRef": {"name": SECRET}}))).await?;
    scene.until_ready(2).await?;
    scene.until_used(&first).await?;

    // A server with an unknown host key gets no commands, and its data are not used until a user confirms the key.
    let stats = scene.stats();
    let refused = async |server: &SshServer, about: &str| {
        let fingerprint = server.openssh.host_key().fingerprint(HashAlg::Sha256).to_string();
        refuses(&scene, about, "HostKeyUnknown", &fingerprint).await
    };
    server.change_host_key();
    refused(&server, "another host key").await?;
    let commands = server.commands().len();
    let second = origin.commit(LIST, format!("# More.\n{}", scene.list(2)), "A comment");
    // A report of yet another key shows that the operator has connected since.
    server.change_host_key();
    refused(&server, "yet another host key").await?;
    ensure!(server.commands().len() == commands, "an unknown server was asked for something");
    ensure!(scene.revision().await? == format!("main@sha1:{first}"), "{second} is in use: {}", scene.revision().await?);
    log_in_with(&scene, &server, &identity).await?;
    scene.until_used(&second).await?;
    scene.until_ready(2).await?;
    ensure!(scene.stats() == stats, "a host was worked on: {:?}", scene.stats());
    Ok(())
}
