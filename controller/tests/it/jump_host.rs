//! Hosts that the operator reaches through a jump host only.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use api::{
    WindowsInstance, WindowsNodePool, WindowsNodePoolSpec,
    conditions::{self, kind},
    names::DEFAULT_NAMESPACE,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use remote::ssh::{Connection, HostKeyCheck, Identity, JumpHost, Target};
use russh::keys::{
    PrivateKey,
    ssh_key::{HashAlg, LineEnding},
};
use serde_json::{Value, json};
use testbed::{
    deployment,
    openssh::OpenSsh,
    sim::{Fault, HostOptions, Sim, SimHost, SimJumpHost, SimOptions},
};

use crate::{
    crd::{
        Expected::{Refused, Valid},
        check, merge, specs,
    },
    fleet::{LIMIT, World, has, is_cordoned, is_ready, pool_status, spec_with, status},
};

const USER: &str = "relay";
const KEY: &str = "jump-host-key";

/// Returns the SSH settings of a pool behind a jump host.
fn ssh(jump_host: &SimJumpHost) -> Value {
    json!({"jumpHost": {
        "address": jump_host.address().to_string(),
        "port": jump_host.port(),
        "username": USER,
        "privateKeySecretRef": {"name": KEY},
        "hostKey": jump_host.host_key().fingerprint(HashAlg::Sha256).to_string(),
    }})
}

fn with_max_pods(hosts: &[SimHost], jump_host: &SimJumpHost, max_pods: i32) -> WindowsNodePoolSpec {
    let template = json!({"spec": {"kubelet": {"maxPods": max_pods}}});
    spec_with(hosts, json!({"ssh": ssh(jump_host), "template": template}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jump_host_that_is_gone_delays_changes_and_rolls_nothing_back() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let key = deployment::new_key()?;
    deployment::store_key_as(&world.control_plane, KEY, &key).await?;
    let jump_host = world.sim.jump_host(USER, key.public_key().clone()).await?;
    let hosts = world.hosts("behind", 3).await?;
    let nodes = &hosts[..2];
    world.join("behind", &with_max_pods(nodes, &jump_host, 100)).await?;
    only_through(&world, &jump_host, &hosts).await?;
    let before = pool_status(&world.pool("behind").await?).desired_version.context("no version")?;

    jump_host.power_off();
    world.apply("behind", &with_max_pods(&hosts, &jump_host, 50)).await?;
    let message = world.until_failed(hosts[2].name(), "JumpHostUnreachable").await?;
    says_what_to_do(&message, &jump_host)?;
    let told = |i: &WindowsInstance| has(&status(i).conditions, kind::REACHABLE, "False", "JumpHostUnreachable");
    world
        .eventually("a node that waits for its change reports it", || async {
            for host in nodes {
                if world.instance(host.name()).await.ok().flatten().is_some_and(|i| told(&i)) {
                    return true;
                }
            }
            false
        })
        .await?;
    for host in nodes {
        let instance = world.instance(host.name()).await?.context("no instance")?;
        let status = status(&instance);
        ensure!(status.current_version.as_deref() == Some(before.as_str()), "{status:?}");
        ensure!(status.failed_version.is_none(), "the new version is blamed: {status:?}");
        if let Some(condition) = conditions::find(&status.conditions, kind::REACHABLE).filter(|c| c.status == "False") {
            says_what_to_do(&condition.message, &jump_host)?;
        }
        ensure!(!is_cordoned(&world.node(host.name()).await?.context("no Node")?), "{} is cordoned", host.name());
    }
    let pool = pool_status(&world.pool("behind").await?);
    ensure!(pool.desired_version.is_some_and(|v| v != before), "the change was taken back");
    ensure!(pool.ready_nodes == 2, "{} nodes are Ready", pool.ready_nodes);

    jump_host.power_on();
    let follows = |p: &WindowsNodePool| is_ready(p) && pool_status(p).up_to_date_nodes == 3;
    world.until("behind", "all follow the new version", follows).await?;
    for host in &hosts {
        let reached = |i: &WindowsInstance| has(&status(i).conditions, kind::REACHABLE, "True", "AsExpected");
        world.until_instance(host.name(), "is reached again", reached).await?;
    }
    let nameless = without_names(&world, &jump_host).await?;
    only_through(&world, &jump_host, &[hosts, nameless].concat()).await?;
    let secret = key.to_openssh(LineEnding::LF)?.to_string();
    let log = world.operator.log();
    ensure!(secret.lines().filter(|l| l.len() > 60).all(|line| !log.contains(line)), "the log has the key");
    Ok(())
}

#[tokio::test]
async fn no_jump_host_is_accepted_that_may_be_any_machine() -> Result<()> {
    let jump = |patch: Value| {
        let host_key = "SHA256:a5dbhnVDVV+wzA3hzpgP7k0GfTkN0yYuMJrxQhl8wrE";
        let key = json!({"name": "jump-host-key"});
        let mut jump =
            json!({"address": "jump.example.com", "username": USER, "privateKeySecretRef": key, "hostKey": host_key});
        merge(&mut jump, &patch);
        json!({"ssh": {"jumpHost": jump}})
    };
    check(specs([
        (jump(json!({})), Valid),
        (jump(json!({"address": "2001:db8::1"})), Valid),
        (jump(json!({"hostKey": null})), Refused("hostKey: Required value")),
        (jump(json!({"hostKey": "SHA256:short"})), Refused("must be the fingerprint")),
        (jump(json!({"privateKeySecretRef": null})), Refused("privateKeySecretRef: Required value")),
        (jump(json!({"username": null})), Refused("username: Required value")),
        (jump(json!({"username": "a\nb"})), Refused("must be a user name")),
        (jump(json!({"address": null})), Refused("address: Required value")),
        (jump(json!({"address": "ssh://jump"})), Refused("must be an IPv4 address, an IPv6 address")),
        (jump(json!({"port": 65_536})), Refused("less than or equal to 65535")),
    ]))
    .await
}

/// Checks an OpenSSH server that is configured as in the guide to hosts.
#[tokio::test]
async fn a_real_openssh_server_forwards_to_the_listed_hosts_and_to_no_other() -> Result<()> {
    let key = deployment::new_key()?;
    let authorized_keys = vec![key.public_key().clone()];
    let sim = Sim::without_cluster(SimOptions { authorized_keys, ..SimOptions::default() })?;
    let (listed, other) = (sim.host(HostOptions::named("listed")).await?, sim.host(HostOptions::named("other")).await?);
    let openssh = OpenSsh::start(|_| Ok(String::new()))?;
    let line = format!(
        "restrict,port-forwarding,permitopen=\"{}:{}\" {}",
        listed.address(),
        listed.port(),
        openssh.key().public_key().to_openssh()?
    );
    std::fs::write(openssh.dir().join("authorized_keys"), line)?;
    let identity = |key: &PrivateKey| {
        anyhow::Ok(Arc::new(Identity::from_pem("a key", key.to_openssh(LineEnding::LF)?.as_bytes())?))
    };
    let (place, own) = (openssh.address(), openssh.host_key().public_key().fingerprint(HashAlg::Sha256).to_string());
    let jump_host =
        JumpHost::new(&place.ip().to_string(), place.port(), openssh.user(), identity(openssh.key())?, &own)?;
    let target = |host: &SimHost| {
        anyhow::Ok(Target {
            address: host.address().to_string(),
            port: host.port(),
            username: "Administrator".into(),
            keys: vec![identity(&key)?],
            host_key: HostKeyCheck::pinned(&host.host_key().to_openssh()?)?,
            jump_host: Some(jump_host.clone()),
            connect_timeout: LIMIT,
            command_timeout: LIMIT,
        })
    };
    let connection = Connection::connect(&target(&listed)?).await?;
    connection.write(r"C:\k\through", b"the jump host").await?;
    ensure!(std::fs::read(listed.drive_c().join("k/through"))? == b"the jump host", "other bytes arrived");
    connection.close().await;
    let error = Connection::connect(&target(&other)?).await.err().context("the jump host forwards to any host")?;
    ensure!(error.reason() == "JumpHostUnreachable" && error.to_string().contains("permitopen"), "{error}");
    listed.fault(Fault::Refuse);
    let refuses = || async {
        let error = Connection::connect(&target(&listed).unwrap()).await.err();
        error.is_some_and(|e| e.reason() == "Unreachable")
    };
    deployment::eventually("the host refuses", refuses).await
}

/// Joins hosts of a ConfigMap through the jump host, over which the operator also reads their names.
async fn without_names(world: &World, jump_host: &SimJumpHost) -> Result<Vec<SimHost>> {
    const POOL: &str = "nameless";
    let hosts = world.hosts("nameless", 2).await?;
    let data: BTreeMap<String, String> =
        hosts.iter().map(|h| (h.address().to_string(), "username=Administrator".to_owned())).collect();
    let metadata = ObjectMeta { name: Some(POOL.into()), ..ObjectMeta::default() };
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), DEFAULT_NAMESPACE);
    let map = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
    maps.create(&PostParams::default(), &map).await?;
    let mut ssh = ssh(jump_host);
    ssh["port"] = json!(hosts[0].port());
    let spec = json!({"inventory": {"configMapRef": {"name": POOL}}, "ssh": ssh});
    world.apply(POOL, &serde_json::from_value(spec)?).await?;
    world.until(POOL, "both are Ready", |p| is_ready(p) && pool_status(p).ready_nodes == 2).await?;
    Ok(hosts)
}

/// Waits until the hosts have seen the connections of the jump host and no other.
async fn only_through(world: &World, jump_host: &SimJumpHost, hosts: &[SimHost]) -> Result<()> {
    let connections = || hosts.iter().map(|h| h.stats().connections).sum::<u64>();
    // A host counts a connection a moment after it is made.
    world
        .eventually("hosts have seen the connections of the jump host and no other", || async {
            connections() > 0 && connections() == jump_host.forwarded()
        })
        .await
}

fn says_what_to_do(message: &str, jump_host: &SimJumpHost) -> Result<()> {
    let address = jump_host.address().to_string();
    let parts = ["the jump host cannot be used", &address, "check that"];
    ensure!(parts.iter().all(|part| message.contains(part)), "{message}");
    Ok(())
}
