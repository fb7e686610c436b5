//! Messages for invalid input, and hosts that are reached by DNS name or over IPv6.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use api::{Host, Inventory, WindowsNodePoolSpec, conditions, conditions::kind, names::key};
use russh::keys::{PublicKeyBase64 as _, ssh_key::LineEnding};
use serde_json::{Value, json};
use testbed::{
    deployment::{self, NAMESPACE},
    sim::{HostOptions, ServingCertificate, SimHost, SimOptions},
};
use tokio::net::{TcpListener, TcpStream};

use crate::fleet::{World, entry, is_ready, pool_status, spec, spec_with, status};

const PASSPHRASE_PROTECTED: &str = include_str!("../../remote/src/ssh/tests/keys/ed25519-openssh-encrypted.pem");

#[tokio::test(flavor = "multi_thread")]
async fn invalid_input_is_reported() -> Result<()> {
    // The hosts request no serving certificates: `localhost` leads to the address of the API server, for which no host gets one.
    let sim = SimOptions { serving: ServingCertificate::Skip, ..SimOptions::default() };
    let world = World::new(sim, &[]).await?;
    tokio::try_join!(
        each_unusable_private_key_has_a_message(&world),
        a_host_joins_with_the_third_of_three_keys(&world),
        a_repeated_problem_is_logged_once(&world),
        strict_refuses_a_key_that_is_not_in_known_hosts(&world),
        hosts_join_by_dns_name_and_over_ipv6(&world),
    )?;
    Ok(())
}

async fn create_secret(world: &World, name: &str, data: Value) -> Result<()> {
    let metadata = json!({"name": name, "namespace": NAMESPACE});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data});
    world.control_plane.apply_yaml(&secret.to_string()).await
}

fn with_keys(host: &SimHost, names: &[&str]) -> WindowsNodePoolSpec {
    let keys: Vec<Value> = names.iter().map(|n| json!({"name": n})).collect();
    spec_with(std::slice::from_ref(host), json!({"ssh": {"privateKeySecretRefs": keys}}))
}

fn pem(key: &russh::keys::PrivateKey) -> Result<String> {
    Ok(key.to_openssh(LineEnding::LF)?.to_string())
}

/// Checks that a problem of a pool is logged once, however often the pool is reconciled.
async fn a_repeated_problem_is_logged_once(world: &World) -> Result<()> {
    let host = world.sim.host(HostOptions::named("noise-a")).await?;
    let twice = Host { name: "noise-b".into(), ..entry(&host) };
    let mut noise = spec(std::slice::from_ref(&host));
    noise.inventory.hosts = Some(vec![entry(&host), twice]);
    world.apply("noise", &noise).await?;
    for n in 0..20 {
        let patch = json!({"metadata": {"annotations": {key::RECONCILE_REQUESTED: n.to_string()}}});
        world.edit_pool("noise", patch).await?;
        let is_handled = |p: &api::WindowsNodePool| {
            let status = pool_status(p);
            status.last_handled_reconcile_at.as_deref() == Some(&n.to_string()) && status.refused_hosts == 1
        };
        world.until("noise", "it is reconciled again", is_handled).await?;
    }
    world.until_joined("noise-a").await?;
    let log = world.operator.log();
    let lines: Vec<&str> = log.lines().filter(|l| l.contains("HostConflict") && l.contains("noise-b")).collect();
    ensure!(lines.len() == 1, "{lines:?}");
    Ok(())
}

/// Checks the message for each unusable Secret, and that the host joins with a valid key.
async fn each_unusable_private_key_has_a_message(world: &World) -> Result<()> {
    let host = world.sim.host(HostOptions::named("keys")).await?;
    world.apply("keys", &with_keys(&host, &["mine"])).await?;
    let foreign = pem(&deployment::new_key()?)?;
    for (n, (data, reason, says)) in [
        (None, "CredentialsUnavailable", vec!["does not exist", "/mine", "create it"]),
        (Some(json!({"other.pem": "x"})), "CredentialsUnavailable", vec!["/mine", "private-key.pem", "other.pem"]),
        (Some(json!({"private-key.pem": "no key"})), "CredentialsUnavailable", vec!["mine", "not in PEM form"]),
        (Some(json!({"private-key.pem": PASSPHRASE_PROTECTED})), "CredentialsUnavailable", vec!["mine", "passphrase"]),
        (
            Some(json!({"private-key.pem": foreign})),
            "AuthenticationFailed",
            vec!["Administrator cannot log in", "SHA256:", "administrators_authorized_keys"],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        if let Some(data) = data {
            // Remove the keys of earlier cases.
            let secrets: kube::Api<k8s_openapi::api::core::v1::Secret> =
                kube::Api::namespaced(world.client.clone(), NAMESPACE);
            let _ = secrets.delete("mine", &kube::api::DeleteParams::default()).await;
            create_secret(world, "mine", data).await?;
            // Retry at once, as a user does after a correction.
            world.annotate("keys", key::RETRY, &n.to_string()).await?;
        }
        world
            .until_instance("keys", &format!("says {says:?}"), |i| {
                let ready = conditions::find(&status(i).conditions, kind::READY).cloned();
                ready.is_some_and(|c| c.reason == reason && says.iter().all(|s| c.message.contains(s)))
            })
            .await?;
    }
    ensure!(host.stats().processes == 0, "something was done on the host");
    create_secret(world, "mine", json!({"private-key.pem": pem(&world.key)?})).await?;
    world.until_joined("keys").await?;
    ensure!(!world.operator.log().contains("PRIVATE KEY"), "a key is in the log");
    Ok(())
}

/// Joins a host with three keys: the first is missing, the second is refused, the third works.
async fn a_host_joins_with_the_third_of_three_keys(world: &World) -> Result<()> {
    create_secret(world, "refused", json!({"private-key.pem": pem(&deployment::new_key()?)?})).await?;
    create_secret(world, "right", json!({"private-key.pem": pem(&world.key)?})).await?;
    let host = world.sim.host(HostOptions::named("several")).await?;
    world.join("several", &with_keys(&host, &["missing", "refused", "right"])).await?;
    let note = world.until_event("several", "CredentialsUnavailable").await?;
    ensure!(note.contains("/missing"), "{note}");
    Ok(())
}

async fn strict_refuses_a_key_that_is_not_in_known_hosts(world: &World) -> Result<()> {
    let hosts = world.hosts("strict", 2).await?;
    let line = |host: &SimHost, key: &russh::keys::ssh_key::PublicKey| {
        format!("[{}]:{} {} {}\n", host.address(), host.port(), key.algorithm(), key.public_key_base64())
    };
    let other = deployment::new_key()?;
    create_secret(world, "known", json!({"known_hosts": line(&hosts[0], other.public_key())})).await?;
    let ssh = json!({"ssh": {"hostKeyPolicy": "Strict", "knownHostsSecretRef": {"name": "known"}}});
    world.apply("strict", &spec_with(&hosts, ssh)).await?;
    let mismatch = world.until_failed("strict-0", "HostKeyMismatch").await?;
    let unknown = world.until_failed("strict-1", "HostKeyUnknown").await?;
    ensure!(mismatch.contains("known_hosts") && unknown.contains("known_hosts"), "{mismatch} {unknown}");
    ensure!(hosts.iter().all(|h| h.stats().processes == 0), "something was done on a host");
    let right: String = hosts.iter().map(|h| line(h, &h.host_key())).collect();
    create_secret(world, "known", json!({"known_hosts": right})).await?;
    world.until("strict", "both have joined", |p| is_ready(p) && pool_status(p).ready_nodes == 2).await
}

/// Forwards connections to a host, and returns the port. Ends with the test.
async fn forward(from: IpAddr, host: &SimHost) -> Result<u16> {
    let listener = TcpListener::bind((from, 0)).await?;
    let port = listener.local_addr()?.port();
    let to = SocketAddr::new(host.address(), host.port());
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

/// Joins hosts by a DNS name and over IPv6, and expects a message for a DNS name that does not exist.
async fn hosts_join_by_dns_name_and_over_ipv6(world: &World) -> Result<()> {
    let named = world.sim.host(HostOptions::named("by-name")).await?;
    let six = world.sim.host(HostOptions::named("over-six")).await?;
    let nowhere = world.sim.host(HostOptions::named("nowhere")).await?;
    // A host must report the address at which it is reached as one of its own.
    named.windows().state().machine.addresses = vec!["127.0.0.1".into()];
    six.windows().state().machine.addresses = vec!["::1".into()];
    let at = |host: &SimHost, address: &str, port: u16| api::Host {
        address: address.into(),
        port: Some(i32::from(port)),
        ..entry(host)
    };
    let mut hosts = vec![
        at(&named, "localhost", forward("127.0.0.1".parse()?, &named).await?),
        at(&nowhere, "nowhere.invalid", 22),
    ];
    match forward("::1".parse()?, &six).await {
        Ok(port) => hosts.push(at(&six, "::1", port)),
        Err(error) => println!("this machine has no IPv6: {error}"),
    }
    let count = hosts.len();
    let mut pool =
        WindowsNodePoolSpec { inventory: Inventory { hosts: Some(hosts), ..Inventory::default() }, ..spec(&[]) };
    world.apply("ways", &pool).await?;
    let message = world.until_failed("nowhere", "Unreachable").await?;
    ensure!(message.contains("nowhere.invalid") && message.contains("DNS"), "{message}");
    world.until_joined("by-name").await?;
    if count == 3 {
        world.until_joined("over-six").await?;
    }
    if let Some(hosts) = &mut pool.inventory.hosts {
        hosts.retain(|h| h.name != "nowhere");
    }
    world.join("ways", &pool).await
}
