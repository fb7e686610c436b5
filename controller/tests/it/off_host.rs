//! Hosts that were off. Hosts that were off for longer than their certificates are valid, and whose pool changed meanwhile, come back without a user
//! and do not block other hosts. Hosts that were off for four days, with a certificate of wicd that is still valid, come back without the operator.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::{
    Step, WindowsInstance,
    host::{WICD_CERTIFICATE_LIFE, path},
    names::{key, user},
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use testbed::{
    deployment::operator_client,
    sim::{SimHost, SimOptions},
};

use crate::{
    fleet::{World, is_cordoned, spec_with, status},
    removal::{is_not_evicted, pod},
};

const POOL: &str = "factory";

fn on_host(host: &SimHost, windows_path: &str) -> std::path::PathBuf {
    host.drive_c().join(windows_path[3..].replace('\\', "/"))
}

/// Replaces the certificates of kubelet and wicd with ones that expired a day ago.
fn let_certificates_expire(world: &World, host: &SimHost) -> Result<()> {
    let name = host.name();
    let pem = |user: &str, group: &str| -> Result<String> {
        let (age, life) = (Duration::from_hours(48), Duration::from_hours(24));
        let identity = world.control_plane.old_certificate(&format!("{user}{name}"), &[group], age, life)?;
        Ok(format!("{}{}", identity.certificate, identity.key))
    };
    let kubelet = pem(user::NODE_PREFIX, user::NODES_GROUP)?;
    let wicd = pem(user::WICD_PREFIX, user::WICD_GROUP)?;
    std::fs::write(on_host(host, path::KUBELET_CURRENT_CERT), &kubelet)?;
    std::fs::write(on_host(host, path::WICD_CERT), &wicd)?;
    // The certificate in kubelet's kubeconfig has expired, too.
    let file = on_host(host, path::KUBELET_KUBECONFIG);
    let mut kubeconfig: Value = serde_yaml::from_str(&std::fs::read_to_string(&file)?)?;
    let of_user = kubeconfig.pointer_mut("/users/0/user").and_then(Value::as_object_mut).context("it has no user")?;
    for field in ["client-certificate-data", "client-key-data"] {
        of_user.insert(field.to_owned(), json!(BASE64.encode(&kubelet)));
    }
    std::fs::write(&file, kubeconfig.to_string())?;
    Ok(())
}

/// Sets the Node to the state that Kubernetes shows for a host that has been off since yesterday.
pub(crate) async fn mark_not_ready_for_a_day(world: &World, name: &str) -> Result<()> {
    silent_for(world, name, 24).await
}

/// Sets the Node to the state that Kubernetes shows for a host that has been off for this number of hours.
async fn silent_for(world: &World, name: &str, hours: i64) -> Result<()> {
    let since = Timestamp::now().checked_sub(SignedDuration::from_hours(hours))?.to_string();
    let ready = json!({
        "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status.", "lastTransitionTime": since,
    });
    let patch = Patch::Strategic(json!({"status": {"conditions": [ready]}}));
    Api::<Node>::all(world.client.clone()).patch_status(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_that_were_off_come_back_by_themselves() -> Result<()> {
    let world = World::new(SimOptions { own_credentials: true, ..SimOptions::default() }, &[]).await?;
    tokio::try_join!(
        hosts_that_were_off_for_a_day_come_back_without_a_user(&world),
        a_host_that_was_off_for_four_days_comes_back_without_the_operator(&world),
    )?;
    Ok(())
}

async fn hosts_that_were_off_for_a_day_come_back_without_a_user(world: &World) -> Result<()> {
    let hosts = world.hosts("win", 3).await?;
    let pool = |pods: i32| {
        let fields = json!({
            "template": {"spec": {"kubelet": {"maxPods": pods}}},
            "rollout": {"maxUnavailable": 1},
            "remediation": {"notReadySeconds": 30, "maxUnhealthy": "100%"},
        });
        spec_with(&hosts, fields)
    };
    world.join(POOL, &pool(100)).await?;
    let (expired, valid, on) = (&hosts[0], &hosts[1], &hosts[2]);
    pod(world, "app", expired.name(), &[]).await?;
    let uids = |node: Option<Node>| node.and_then(|n| n.metadata.uid);
    let mut before = Vec::new();
    for host in &hosts {
        before.push(uids(world.node(host.name()).await?));
    }

    for host in [expired, valid] {
        host.power_off();
        mark_not_ready_for_a_day(world, host.name()).await?;
    }
    let_certificates_expire(world, expired)?;
    let ended = Patch::Merge(json!({"status": {"wicdCertificateExpires": "2026-01-01T00:00:00Z"}}));
    let instances: Api<WindowsInstance> = Api::all(operator_client(&world.control_plane).await?);
    instances.patch_status(expired.name(), &PatchParams::default(), &ended).await?;

    // A change of the pool reaches the node that works: hosts that are off take nothing of the budget.
    world.apply(POOL, &pool(101)).await?;
    let version = |name: &'static str| async {
        let node = world.node(name).await.ok().flatten();
        node.and_then(|n| n.metadata.annotations?.get(key::VERSION).cloned())
    };
    let old = version("win-0").await;
    world.eventually("the node that works follows", || async { version("win-2").await != old }).await?;
    for host in [expired, valid] {
        let instance = world.instance(host.name()).await?.context("no instance")?;
        ensure!(!instance.is_leaving(), "{} is removed", host.name());
        let step = status(&instance).operation.map(|o| o.step);
        ensure!(step != Some(Step::Drain), "{} is being drained, although its host is off", host.name());
    }

    for host in [expired, valid] {
        host.power_on();
    }
    let new = version("win-2").await;
    for name in ["win-0", "win-1"] {
        world.until_joined(name).await?;
        world
            .eventually("a host that was off follows the current version", || async { version(name).await == new })
            .await?;
    }
    world
        .until(POOL, "all are Ready", |p| {
            crate::fleet::is_ready(p)
                && p.status.as_ref().is_some_and(|s| s.ready_nodes == 3 && s.up_to_date_nodes == 3)
        })
        .await?;
    for (host, before) in hosts.iter().zip(&before) {
        let node = world.node(host.name()).await?;
        ensure!(uids(node.clone()) == *before, "{} is another Node", host.name());
        ensure!(!is_cordoned(&node.context("no Node")?), "{} is cordoned", host.name());
    }
    let instance = world.instance(expired.name()).await?.context("no instance")?;
    let end = status(&instance)
        .wicd_certificate_expires
        .and_then(api::Time::known)
        .context("the end of wicd's certificate is not known")?;
    ensure!(end > Timestamp::now(), "wicd's certificate ended at {end}");
    is_not_evicted(world, "app-win-0").await?;
    ensure!(on.boots() == 1, "a host that was on was restarted");
    Ok(())
}

/// Covers a host that is switched off when its wicd certificate is as old as it can get on a running host.
async fn a_host_that_was_off_for_four_days_comes_back_without_the_operator(world: &World) -> Result<()> {
    const POOL: &str = "four-days";
    let hosts = world.hosts("four-days", 1).await?;
    let host = &hosts[0];
    let name = host.name();
    // The pool disables repairs by the operator.
    world.join(POOL, &spec_with(&hosts, json!({"remediation": {"type": "None"}}))).await?;
    host.power_off();
    silent_for(world, name, 96).await?;

    let (age, user) = (Duration::from_hours(67 + 96), format!("{}{name}", user::WICD_PREFIX));
    let old = world.control_plane.old_certificate(&user, &[user::WICD_GROUP], age, WICD_CERTIFICATE_LIFE)?;
    let old = format!("{}{}", old.certificate, old.key);
    std::fs::write(on_host(host, path::WICD_CERT), &old)?;
    let end = Timestamp::now().checked_sub(SignedDuration::try_from(age)?)?;
    let end = end.checked_add(SignedDuration::try_from(WICD_CERTIFICATE_LIFE)?)?;
    let known = Patch::Merge(json!({"status": {"wicdCertificateExpires": end}}));
    let instances: Api<WindowsInstance> = Api::all(operator_client(&world.control_plane).await?);
    instances.patch_status(name, &PatchParams::default(), &known).await?;
    world
        .until(POOL, "it knows that the node is away", |p| p.status.as_ref().is_some_and(|s| s.ready_nodes == 0))
        .await?;
    let before = world.instance(name).await?.context("no instance")?;

    host.power_on();
    let renewed = world
        .until_instance(name, "it knows the end of a certificate that wicd renewed", |i| {
            status(i).wicd_certificate_expires.and_then(api::Time::known).is_some_and(|at| at > end)
        })
        .await?;
    world.until(POOL, "it is Ready", crate::fleet::is_ready).await?;
    world
        .eventually("wicd has the renewed certificate", || async {
            std::fs::read_to_string(on_host(host, path::WICD_CERT)).is_ok_and(|now| now != old)
        })
        .await?;
    // The operator checks whether the host answers again, and begins no operation.
    let begun = |i: &api::WindowsInstance| status(i).last_operation;
    ensure!(begun(&renewed) == begun(&before), "the operator has changed the host");
    ensure!(renewed.spec.grant == before.spec.grant, "the operator has granted {:?}", renewed.spec.grant);
    Ok(())
}
