//! Rotation of the hosts' SSH key, one host at a time, with no host ever locked out.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use api::{GrantType, WindowsInstance, WindowsNodePoolSpec, conditions, conditions::kind, names::key};
use kube::ResourceExt;
use remote::ssh::{Connection, HostKeyCheck, Identity, SshError, Target};
use russh::keys::{PrivateKey, ssh_key::LineEnding};
use serde_json::json;
use testbed::{
    deployment,
    sim::{Link, SimHost, SimOptions},
};
use wnp_core::node::username::decrypt_username;

use crate::{
    fleet::{AtOnce, World, has, is_ready, pool_status, spec, spec_with, status},
    rollout::Watcher,
};

const FOREIGN: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB another user's";
const NEW: &str = "new-key";

/// World in which hosts have files with keys, and a Secret holds a new key.
struct Keys {
    world: World,
    old: Arc<Identity>,
    new: Arc<Identity>,
    new_pem: String,
}

fn pem(key: &PrivateKey) -> Result<String> {
    Ok(key.to_openssh(LineEnding::LF)?.to_string())
}

fn administrators(host: &SimHost) -> PathBuf {
    host.drive_c().join("ProgramData/ssh/administrators_authorized_keys")
}

impl Keys {
    async fn new() -> Result<Self> {
        // Each request takes a moment, so that concurrent rotations would be seen.
        let link = Link { rtt: Duration::from_millis(40), line: None };
        let world = World::new(SimOptions { link, ..SimOptions::default() }, &[]).await?;
        let new = deployment::new_key()?;
        deployment::store_key_as(&world.control_plane, NEW, &new).await?;
        let new_pem = pem(&new)?;
        let identity = |pem: &str| Ok::<_, anyhow::Error>(Arc::new(Identity::from_pem("a key", pem.as_bytes())?));
        Ok(Self { old: identity(&pem(&world.key)?)?, new: identity(&new_pem)?, new_pem, world })
    }

    /// Creates hosts whose key file has the old key and another user's key.
    async fn hosts(&self, prefix: &str, count: usize) -> Result<Vec<SimHost>> {
        let hosts = self.world.hosts(prefix, count).await?;
        for host in &hosts {
            std::fs::write(administrators(host), self.before())?;
        }
        Ok(hosts)
    }

    fn before(&self) -> String {
        format!("{FOREIGN}\n{} old\n", self.old.authorized_key())
    }

    fn after(&self) -> String {
        format!("{FOREIGN}\n{} {}\n", self.new.authorized_key(), api::names::COMPONENT)
    }

    fn spec(hosts: &[SimHost]) -> WindowsNodePoolSpec {
        let refs = json!([{"name": NEW}, {"name": api::names::DEFAULT_KEY_SECRET}]);
        spec_with(hosts, json!({"ssh": {"privateKeySecretRefs": refs}}))
    }

    /// Reports whether a host accepts a log-in with this key.
    async fn admits(host: &SimHost, key: &Arc<Identity>) -> Result<bool> {
        let target = Target {
            address: host.address().to_string(),
            port: host.port(),
            username: "Administrator".into(),
            keys: vec![key.clone()],
            host_key: HostKeyCheck::TrustOnFirstUse,
            jump_host: None,
            connect_timeout: Duration::from_secs(30),
            command_timeout: Duration::from_secs(30),
        };
        match Connection::connect(&target).await {
            Ok(connection) => {
                connection.close().await;
                Ok(true)
            }
            Err(SshError::AuthenticationFailed { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn takes_new(&self, instance: &WindowsInstance) -> bool {
        let status = status(instance);
        status.public_key_hash == Some(self.new.public_key_hash()) && status.key_rotation.is_none()
    }

    async fn until_current(&self, pool: &str) -> Result<()> {
        let current = "all take the new key";
        self.world
            .until(pool, current, |p| {
                let status = pool_status(p);
                let seen = status.observed_generation == p.metadata.generation;
                seen && has(&status.conditions, kind::KEYS_CURRENT, "True", "AsExpected")
            })
            .await
    }

    /// Checks that a host accepts the new key and not the old one, and that its instance and Node record the new key.
    async fn check(&self, host: &SimHost) -> Result<()> {
        let name = host.name();
        ensure!(Self::admits(host, &self.new).await?, "{name} refuses the new key");
        ensure!(!Self::admits(host, &self.old).await?, "{name} takes the old key");
        let instance = self.world.instance(name).await?.context("no instance")?;
        ensure!(self.takes_new(&instance), "{:?}", instance.status);
        let hash = self.new.public_key_hash();
        self.world
            .eventually(&format!("the Node {name} has the new key"), || async {
                let Ok(Some(node)) = self.world.node(name).await else { return false };
                let user = node.annotations().get(key::USERNAME).map(|u| decrypt_username(u, self.new_pem.as_bytes()));
                node.annotations().get(key::PUB_KEY_HASH) == Some(&hash)
                    && user.is_some_and(|u| u.is_ok_and(|u| u == "Administrator"))
            })
            .await
    }
}

/// Reports whether a host has a grant for a key rotation, or is in one.
fn rotates(instance: &WindowsInstance) -> bool {
    let granted = instance.spec.grant.as_ref().is_some_and(|g| g.type_ == GrantType::RotateKey);
    granted || status(instance).operation.is_some_and(|o| o.type_ == GrantType::RotateKey)
}

#[tokio::test(flavor = "multi_thread")]
async fn all_get_the_new_key_one_at_a_time() -> Result<()> {
    let keys = Keys::new().await?;
    let world = &keys.world;
    let hosts = keys.hosts("win", 3).await?;
    let (old, new) = (keys.old.authorized_key(), keys.new.authorized_key());
    // The user of the first host has edited the file on Windows: it has CRLF, and a Windows code page.
    let [before, both] = [
        format!("# k\u{fc}che\r\n\r\nfrom=\"127.0.0.0/8\" {old} of the operator"),
        format!("# k\u{fc}che\r\n\r\nfrom=\"127.0.0.0/8\" {new} {}\r\n", api::names::COMPONENT),
    ]
    .map(|text| text.chars().map(|c| c as u8).collect::<Vec<u8>>());
    std::fs::write(administrators(&hosts[0]), before)?;
    // The SSH server of the second host reads the file in the user's profile.
    let profile = hosts[1].drive_c().join("Users/Administrator/.ssh/authorized_keys");
    std::fs::create_dir(profile.parent().context("the path has no parent")?)?;
    std::fs::rename(administrators(&hosts[1]), &profile)?;

    world.join("factory", &spec(&hosts)).await?;
    keys.until_current("factory").await?;
    let watcher = Watcher::of(&world.client, "factory");
    let rotating = AtOnce::watch(&world.client, rotates);
    world.apply("factory", &Keys::spec(&hosts)).await?;
    keys.until_current("factory").await?;
    for host in &hosts {
        keys.check(host).await?;
        let fingerprints = [("KeyAdded", &keys.new), ("KeyRetired", &keys.old)];
        for (reason, key) in fingerprints {
            let note = world.until_event(host.name(), reason).await?;
            ensure!(note.contains(&key.fingerprint()), "{note}");
        }
    }
    ensure!(std::fs::read(administrators(&hosts[0]))? == both, "{:?}", std::fs::read(administrators(&hosts[0])));
    ensure!(std::fs::read_to_string(&profile)? == keys.after());
    ensure!(!administrators(&hosts[1]).exists(), "a file was made that was not there");
    ensure!(std::fs::read_to_string(administrators(&hosts[2]))? == keys.after());
    let seen = rotating.lock().unwrap();
    ensure!(seen.most == 1, "{} at once", seen.most);
    ensure!(seen.ever.len() == 3, "{:?}", seen.ever);
    let observed = watcher.seen.lock().unwrap();
    ensure!(observed.ever_cordoned.is_empty() && observed.ever_disrupted.is_empty(), "nodes were disturbed");
    let secret = keys.new_pem.lines().nth(1).context("the key has only one line")?;
    ensure!(!world.operator.log().contains(secret), "a private key is in the log");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_key_in_the_only_secret_is_detected() -> Result<()> {
    let keys = Keys::new().await?;
    let world = &keys.world;
    let hosts = keys.hosts("win", 3).await?;
    world.join("factory", &spec(&hosts)).await?;
    keys.until_current("factory").await?;
    let watcher = Watcher::of(&world.client, "factory");

    // A user gives one host the new key by hand, and forgets the others.
    std::fs::write(administrators(&hosts[0]), keys.after())?;
    let new = PrivateKey::from_openssh(&keys.new_pem)?;
    deployment::store_key(&world.control_plane, &new).await?;
    world.until_instance(hosts[0].name(), "takes the new key", |i| keys.takes_new(i)).await?;
    keys.check(&hosts[0]).await?;
    let told = |p: &api::WindowsNodePool| conditions::find(&pool_status(p).conditions, kind::KEYS_CURRENT).cloned();
    world
        .until("factory", "the remaining hosts are reported", |p| {
            told(p).is_some_and(|c| {
                c.reason == "KeyRotationFailed"
                    && c.message.starts_with("2 of 3 hosts accept an old key: win-1, win-2; win-1: Connect: ")
                    && c.message.contains("or add the key that the host accepts to the list, after the first key")
            }) && is_ready(p)
        })
        .await?;
    for host in &hosts[1..] {
        ensure!(std::fs::read_to_string(administrators(host))? == keys.before(), "{} was changed", host.name());
    }

    // Once the pool lists the old key, too, the other hosts get the new one.
    deployment::store_key_as(&world.control_plane, "ssh-old", &world.key).await?;
    let refs = json!([{"name": api::names::DEFAULT_KEY_SECRET}, {"name": "ssh-old"}]);
    world.apply("factory", &spec_with(&hosts, json!({"ssh": {"privateKeySecretRefs": refs}}))).await?;
    keys.until_current("factory").await?;
    for host in &hosts {
        keys.check(host).await?;
        ensure!(std::fs::read_to_string(administrators(host))? == keys.after(), "{}", host.name());
    }
    let observed = watcher.seen.lock().unwrap();
    ensure!(observed.ever_cordoned.is_empty() && observed.ever_disrupted.is_empty(), "nodes were disturbed");
    Ok(())
}
