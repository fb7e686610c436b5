//! Tests hosts that are listed without names: from which of them the operator reads their names, how often, with which host key, and how far it
//! trusts the result.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
};

use anyhow::{Context as _, Result, ensure};
use api::{
    WindowsInstance, WindowsNodePool, WindowsNodePoolSpec, conditions,
    conditions::kind,
    names::{DEFAULT_NAMESPACE, key},
};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api, ResourceExt,
    api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use russh::keys::PublicKeyBase64 as _;
use serde_json::{Value, json};
use testbed::sim::{Fault, ServingCertificate, SimHost, SimOptions};
use tokio::net::{TcpListener, TcpStream};

use crate::fleet::{World, is_ready, pool_status};

const USER: &str = "username=Administrator";

fn maps(world: &World) -> Api<ConfigMap> {
    Api::namespaced(world.client.clone(), DEFAULT_NAMESPACE)
}

/// Creates a ConfigMap of these addresses.
async fn create_map(world: &World, name: &str, addresses: &[String]) -> Result<()> {
    let data: BTreeMap<String, String> = addresses.iter().map(|a| (a.clone(), USER.to_owned())).collect();
    let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    let map = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
    maps(world).create(&PostParams::default(), &map).await?;
    Ok(())
}

/// Creates a ConfigMap of these addresses, and a pool of the same name that reads it.
async fn list(world: &World, name: &str, addresses: &[String], port: u16, ssh: Value) -> Result<()> {
    create_map(world, name, addresses).await?;
    world.apply(name, &spec(name, port, ssh)).await
}

fn spec(name: &str, port: u16, mut ssh: Value) -> WindowsNodePoolSpec {
    ssh["port"] = json!(port);
    serde_json::from_value(json!({"inventory": {"configMapRef": {"name": name}}, "ssh": ssh})).unwrap()
}

async fn edit(world: &World, name: &str, data: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"data": data}));
    maps(world).patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

fn addresses(hosts: &[SimHost]) -> Vec<String> {
    hosts.iter().map(|h| h.address().to_string()).collect()
}

/// Returns reason, message and time of a pool's condition InventorySynced.
fn synced(pool: &WindowsNodePool) -> Option<(String, String, String)> {
    let status = pool_status(pool);
    let condition = conditions::find(&status.conditions, kind::INVENTORY_SYNCED)?;
    let since = serde_json::to_string(&condition.last_transition_time).unwrap_or_default();
    Some((condition.reason.clone(), condition.message.clone(), since))
}

/// Waits until a pool reports a problem of its list for this reason, with these parts in the message.
async fn until_problem(world: &World, pool: &str, reason: &str, parts: &[&str]) -> Result<()> {
    let says = |p: &WindowsNodePool| {
        synced(p).is_some_and(|(r, message, _)| r == reason && parts.iter().all(|part| message.contains(part)))
    };
    world.until(pool, &format!("it says {reason} with {parts:?}"), says).await
}

/// Forwards connections to a host, and returns the port. Ends with the test.
async fn forward(host: &SimHost) -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let (port, to) = (listener.local_addr()?.port(), SocketAddr::new(host.address(), host.port()));
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            tokio::spawn(async move {
                if let Ok(mut far) = TcpStream::connect(to).await {
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                }
            });
        }
    });
    Ok(port)
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_without_names_are_asked_for_them() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    tokio::try_join!(
        two_clones_are_asked_rarely(&world),
        strict_needs_a_declared_key_for_hosts_without_names(&world),
        a_join_trusts_only_the_key_of_the_first_contact(&world),
        a_host_cannot_have_the_name_of_another_node(&world),
        a_host_whose_node_has_another_name_does_not_get_a_second_node(&world),
        two_thousand_silent_addresses_are_reported(&world),
    )?;
    Ok(())
}

async fn two_clones_are_asked_rarely(world: &World) -> Result<()> {
    const POOL: &str = "clones";
    let hosts = world.hosts("clone", 3).await?;
    hosts[1].windows().state().machine.hostname = hosts[0].name().into();
    list(world, POOL, &addresses(&hosts[..2]), hosts[0].port(), json!({})).await?;
    let joined = world.until_joined(hosts[0].name()).await?;
    let loser = hosts[..2].iter().find(|h| h.address().to_string() != joined.spec.host.address).context("no loser")?;
    until_problem(world, POOL, "HostConflict", &[&loser.address().to_string(), "rename the host"]).await?;
    let before = (synced(&world.pool(POOL).await?), loser.stats());

    // Another host joins, so that the pool is reconciled many times.
    edit(world, POOL, json!({addresses(&hosts[2..])[0].clone(): USER})).await?;
    world.until_joined(hosts[2].name()).await?;
    world.until(POOL, "both are Ready", |p| pool_status(p).ready_nodes == 2).await?;
    ensure!(before == (synced(&world.pool(POOL).await?), loser.stats()), "{before:?}, {:?}", loser.stats());
    ensure!(loser.stats().connections <= 2, "it was logged in to {} times", loser.stats().connections);
    let is_logged = |line: &str| line.contains("HostConflict") && line.contains(POOL);
    ensure!(world.operator.log().lines().any(is_logged), "the operator has not logged the HostConflict");

    // The name is stored: the next operator does not contact the host either.
    let contacts = pool_status(&world.pool(POOL).await?).contacts;
    ensure!(contacts.len() == 1 && contacts[0].hostname.is_some(), "{contacts:?}");
    // The contact of the refused host is forgotten once its entry is removed.
    edit(world, POOL, json!({loser.address().to_string(): null})).await?;
    world.until(POOL, "nothing is wrong", |p| is_ready(p) && pool_status(p).contacts.is_empty()).await
}

async fn strict_needs_a_declared_key_for_hosts_without_names(world: &World) -> Result<()> {
    const POOL: &str = "strictly";
    let hosts = world.hosts(POOL, 1).await?;
    let strict = json!({"hostKeyPolicy": "Strict"});
    list(world, POOL, &addresses(&hosts), hosts[0].port(), strict).await?;
    let address = hosts[0].address().to_string();
    until_problem(world, POOL, "HostKeyUnknown", &[&address, "ssh.knownHostsSecretRef"]).await?;
    ensure!(!is_ready(&world.pool(POOL).await?), "it says that all is well");
    ensure!(hosts[0].stats().connections == 0, "it was logged in to");

    let key = hosts[0].host_key();
    let known = format!("[{address}]:{} {} {}\n", hosts[0].port(), key.algorithm(), key.public_key_base64());
    let metadata = json!({"name": "strictly-known", "namespace": DEFAULT_NAMESPACE});
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"known_hosts": known}});
    world.control_plane.apply_yaml(&secret.to_string()).await?;
    let strict = json!({"hostKeyPolicy": "Strict", "knownHostsSecretRef": {"name": "strictly-known"}});
    world.apply(POOL, &spec(POOL, hosts[0].port(), strict)).await?;
    world.until_joined(hosts[0].name()).await?;
    Ok(())
}

async fn a_join_trusts_only_the_key_of_the_first_contact(world: &World) -> Result<()> {
    const POOL: &str = "swapped";
    let hosts = world.hosts(POOL, 1).await?;
    let name = hosts[0].name();
    let pause = |paused: bool| {
        let mut spec = spec(POOL, hosts[0].port(), json!({}));
        spec.rollout = serde_json::from_value(json!({"paused": paused})).unwrap();
        spec
    };
    world.apply(POOL, &pause(true)).await?;
    create_map(world, POOL, &addresses(&hosts)).await?;
    let first = |i: &WindowsInstance| i.annotations().contains_key(key::FIRST_HOST_KEY);
    world.until_instance(name, "it knows the key of the first contact", first).await?;
    let before = hosts[0].stats().processes;

    hosts[0].fault(Fault::ChangedHostKey);
    world.apply(POOL, &pause(false)).await?;
    world.until_failed(name, "HostKeyMismatch").await?;
    ensure!(hosts[0].stats().processes == before, "something was done on the host");
    hosts[0].mend();
    world.until_joined(name).await?;
    Ok(())
}

async fn a_host_cannot_have_the_name_of_another_node(world: &World) -> Result<()> {
    const POOL: &str = "impostor";
    let nodes: Api<Node> = Api::all(world.client.clone());
    let linux = json!({"metadata": {"name": "master-0", "labels": {"kubernetes.io/os": "linux"}}});
    nodes.create(&PostParams::default(), &serde_json::from_value(linux)?).await?;
    let hosts = world.hosts(POOL, 1).await?;
    hosts[0].windows().state().machine.hostname = "MASTER-0".into();
    list(world, POOL, &addresses(&hosts), hosts[0].port(), json!({})).await?;
    let address = hosts[0].address().to_string();
    until_problem(world, POOL, "HostConflict", &[&address, "the Node master-0", "rename the host"]).await?;
    ensure!(world.instance("master-0").await?.is_none(), "it has the name of the Node");
    Ok(())
}

/// Checks a pool with two thousand silent addresses while the hosts of the other pools join. Returns the listener, so that the addresses stay
/// silent until all have joined.
async fn two_thousand_silent_addresses_are_reported(world: &World) -> Result<TcpListener> {
    // The test accepts no connection: the kernel opens each one, and nobody answers.
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    let silent: Vec<String> =
        (0..2000_u32).map(|n| Ipv4Addr::from_bits(Ipv4Addr::new(127, 9, 0, 0).to_bits() + n).to_string()).collect();
    list(world, "silent", &silent, listener.local_addr()?.port(), json!({})).await?;
    until_problem(world, "silent", "HostnameUnknown", &["2000 hosts", "contacts only the first 1000 of them"]).await?;
    Ok(listener)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_is_rewritten_keeps_its_node() -> Result<()> {
    const POOL: &str = "rewritten";
    // The hosts request no serving certificates: `localhost` leads to the address of the API server, for which no host gets one.
    let world = World::new(SimOptions { serving: ServingCertificate::Skip, ..SimOptions::default() }, &[]).await?;
    let hosts = world.hosts(POOL, 1).await?;
    hosts[0].windows().state().machine.addresses = vec!["127.0.0.1".into()];
    let (port, other_port) = (forward(&hosts[0]).await?, forward(&hosts[0]).await?);
    list(&world, POOL, &["127.0.0.1".into()], port, json!({})).await?;
    let name = hosts[0].name();
    let joined = world.until_joined(name).await?;
    let uid = world.node(name).await?.context("no Node")?.uid();
    let at = |address: &'static str, port: u16| {
        move |i: &WindowsInstance| (i.spec.host.address.as_str(), i.spec.host.port) == (address, i32::from(port))
    };

    edit(&world, POOL, json!({"127.0.0.1": null, "localhost": USER})).await?;
    world.until_instance(name, "is known by its DNS name", at("localhost", port)).await?;
    world.apply(POOL, &spec(POOL, other_port, json!({}))).await?;
    world.until_instance(name, "is known by its other port", at("localhost", other_port)).await?;
    edit(&world, POOL, json!({"127.0.0.1": USER, "localhost": null})).await?;
    world.until_instance(name, "is known by its address", at("127.0.0.1", other_port)).await?;
    let after = world.until_joined(name).await?;
    ensure!(after.uid() == joined.uid() && after.metadata.deletion_timestamp.is_none(), "it was recreated");
    ensure!(world.node(name).await?.context("the Node is gone")?.uid() == uid, "it registered again");
    Ok(())
}

async fn a_host_whose_node_has_another_name_does_not_get_a_second_node(world: &World) -> Result<()> {
    let hosts = world.hosts("dn", 1).await?;
    let node = "ip-10-0-0-7.ec2.internal";
    let nodes: Api<Node> = Api::all(world.client.clone());
    let labels = json!({"kubernetes.io/os": "windows", key::BYOH: "true"});
    let made = json!({"metadata": {"name": node, "labels": labels, "annotations": {key::VERSION: "10.19.0-a"}}});
    nodes.create(&PostParams::default(), &serde_json::from_value(made)?).await?;
    let address = json!({"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}});
    nodes.patch_status(node, &PatchParams::default(), &Patch::Merge(address)).await?;
    list(world, "cloud", &["localhost".into()], forward(&hosts[0]).await?, json!({})).await?;
    world.until_instance(node, "has the name of its Node", |i| i.spec.pool_ref.name == "cloud").await?;
    let instances = Api::<WindowsInstance>::all(world.client.clone()).list(&ListParams::default()).await?;
    let of_pool = instances.iter().filter(|i| i.spec.pool_ref.name == "cloud");
    let names: Vec<String> = of_pool.map(ResourceExt::name_any).collect();
    ensure!(names == [node], "{names:?}");
    ensure!(world.node(hosts[0].name()).await?.is_none(), "it was joined as a second Node");

    // A host that a user has given another name does not become a second Node either.
    let api = Api::<Node>::all(world.client.clone());
    let other = json!({"metadata": {"name": "as-the-cloud-has-it", "labels": {"kubernetes.io/os": "windows", key::BYOH: "true"}}});
    api.create(&PostParams::default(), &serde_json::from_value(other)?).await?;
    let third = world.hosts("third", 1).await?;
    let address = json!({"status": {"addresses": [{"type": "InternalIP", "address": third[0].address().to_string()}]}});
    api.patch_status("as-the-cloud-has-it", &PatchParams::default(), &Patch::Merge(address)).await?;
    world.apply("named", &crate::fleet::spec(&third)).await?;
    until_problem(world, "named", "HostConflict", &["the Node as-the-cloud-has-it", "set the name of the entry"])
        .await?;
    ensure!(world.instance(third[0].name()).await?.is_none(), "it is about to be joined as a second Node");
    Ok(())
}
