//! Objects that a newer release of the operator has written, after a downgrade.

use anyhow::{Context as _, Result, ensure};
use api::{
    WindowsInstance, WindowsNodePool,
    conditions::{find, is_true, kind},
};
use k8s_openapi::{
    api::core::v1::Node, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{
    deployment::operator_client,
    sim::{SimHost, SimOptions},
};

use crate::fleet::{World, is_ready, pool_status, spec};

/// Makes every enum of a schema accept one more value, as a newer CRD does.
fn widen(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::Array(words) if name == "enum" => words.push(json!("Newer")),
                    other => widen(other),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(widen),
        _ => {}
    }
}

async fn widen_crd<K: Resource<DynamicType = ()>>(world: &World) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    let name = format!("{}.{}", K::plural(&()), K::group(&()));
    let mut crd = serde_json::to_value(crds.get(&name).await?)?;
    widen(&mut crd);
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    crd.pointer_mut(spec).context("no spec")?["newerField"] = json!({"type": "string"});
    let crd: CustomResourceDefinition = serde_json::from_value(crd)?;
    crds.replace(&crd.name_any(), &PostParams::default(), &crd).await?;
    Ok(())
}

/// Writes a field once the API server accepts its new value.
async fn write<K: Resource<DynamicType = ()>>(world: &World, name: &str, patch: &Value) -> Result<()> {
    // Only the operator may write instances.
    let client = operator_client(&world.control_plane).await?;
    let objects: Api<DynamicObject> = Api::all_with(client, &ApiResource::erase::<K>(&()));
    for _ in 0..600 {
        match objects.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.message.contains("Unsupported value") => {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    anyhow::bail!("the API server has not accepted {patch} within a minute")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_reported_and_touches_nobody() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("win", 2).await?;
    for (pool, host) in ["first", "second"].iter().zip(&hosts) {
        world.apply(pool, &spec(std::slice::from_ref(host))).await?;
        world.until(pool, "it is Ready", |p| is_ready(p) && pool_status(p).ready_nodes == 1).await?;
    }
    let stats: Vec<_> = hosts.iter().map(SimHost::stats).collect();
    widen_crd::<WindowsNodePool>(&world).await?;
    widen_crd::<WindowsInstance>(&world).await?;

    // An unreadable instance is reported on its pool, which continues once the instance can be read again.
    let with = |type_: Value| json!({"spec": {"grant": type_}});
    let newer = json!({"id": "n-1", "type": "Newer", "grantedTime": "2026-01-01T00:00:00Z"});
    write::<WindowsInstance>(&world, hosts[0].name(), &with(newer)).await?;
    let says = |p: &WindowsNodePool, reason: &str, name: &str| {
        let ready = find(&pool_status(p).conditions, kind::READY).cloned();
        ready.is_some_and(|c| c.status == "False" && c.reason == reason && c.message.contains(name))
    };
    world.until("first", "the pool reports it", |p| says(p, "ObjectUnreadable", hosts[0].name())).await?;
    ensure!(is_ready(&world.pool("second").await?), "the other pool is held up");
    write::<WindowsInstance>(&world, hosts[0].name(), &with(Value::Null)).await?;
    world.until("first", "it is Ready again", is_ready).await?;

    // An unreadable pool is reported, too, although no watch cache has it.
    write::<WindowsNodePool>(&world, "second", &json!({"spec": {"mode": "Newer"}})).await?;
    let pools: Api<DynamicObject> = Api::all_with(world.client.clone(), &ApiResource::erase::<WindowsNodePool>(&()));
    let is_told = async || -> Result<bool> {
        let pool = pools.get("second").await?;
        let conditions = pool.data["status"]["conditions"].as_array().context("no conditions")?.clone();
        Ok(conditions
            .iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "False" && c["reason"] == "ObjectUnreadable"))
    };
    let began = std::time::Instant::now();
    while !is_told().await? {
        ensure!(began.elapsed() < crate::fleet::LIMIT, "{:?}", pools.get("second").await?.data);
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    // What happens to its nodes does not make the operator work with the state that it could read before. The first reconcile may
    // have begun before the change, so the test waits for two.
    let reconciles = || world.operator.metric(r#"windows_node_pool_reconciles_total{kind="WindowsNodePool"}"#);
    for unschedulable in [true, false] {
        let before = reconciles().await?;
        write::<Node>(&world, hosts[1].name(), &json!({"spec": {"unschedulable": unschedulable}})).await?;
        world
            .eventually("the pool is reconciled", || async { reconciles().await.is_ok_and(|now| now > before) })
            .await?;
    }
    ensure!(is_told().await?, "the report was overwritten: {:?}", pools.get("second").await?.data);
    write::<WindowsNodePool>(&world, "second", &json!({"spec": {"mode": "Apply", "newerField": "kept"}})).await?;
    let is_sound = |p: &WindowsNodePool| is_ready(p) && !is_true(&pool_status(p).conditions, kind::STALLED);
    world.until("second", "it is Ready again, and no longer Stalled", is_sound).await?;
    let after: Vec<_> = hosts.iter().map(SimHost::stats).collect();
    ensure!(after == stats, "a host was worked on: {after:?}");
    // An unknown field does not stop the operator, and stays.
    let pool = pools.get("second").await?;
    ensure!(pool.data["spec"]["newerField"] == "kept", "{}", pool.data["spec"]);
    Ok(())
}
