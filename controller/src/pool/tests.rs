//! Tests of whole reconciles of a pool against the objects of an API server.

use std::sync::{Arc, atomic::Ordering};

use api::{
    Host, Inventory, PoolRef, WindowsInstance, WindowsInstanceSpec, WindowsNodePool, WindowsNodePoolSpec,
    names::{FINALIZER_POOL, key},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{ResourceExt as _, runtime::controller::Action};
use serde_json::{Value, json};

use super::{PoolContext, PoolError, reconcile};
use crate::instance::test_bed::Bed;

const POOL: &str = "/apis/windowsmachineconfig.openshift.io/v1alpha1/windowsnodepools/p";

/// Returns a test bed with a pool that lists this number of hosts.
async fn bed(hosts: usize) -> (Bed, WindowsNodePool) {
    let mut bed = Bed::with_objects().await;
    let role = json!({"metadata": {"name": "windows-node-pools-wicd-services", "namespace": "operator"}});
    bed.api.objects(|o| o.put("roles", role));
    bed.sync();
    let hosts = (0..hosts).map(|n| Host { name: format!("w{n}"), address: address(n), ..Host::default() }).collect();
    let inventory = Inventory { hosts: Some(hosts), ..Inventory::default() };
    let mut pool = WindowsNodePool::new("p", WindowsNodePoolSpec { inventory, ..WindowsNodePoolSpec::default() });
    pool.metadata.uid = Some("p-1".into());
    bed.api.objects(|o| o.put("windowsnodepools", json!(pool)));
    (bed, pool)
}

fn address(n: usize) -> String {
    format!("10.0.{}.{}", n / 250, n % 250)
}

async fn reconciled(bed: &Bed, pool: WindowsNodePool) -> Result<Action, PoolError> {
    reconcile(Arc::new(pool), Arc::new(PoolContext::new(bed.cx.clone(), None))).await
}

fn stored(bed: &Bed) -> Value {
    bed.api.objects(|o| o.get("windowsnodepools", "p").unwrap().clone())
}

/// Number of hosts in the pool whose reconcile the test measures.
const HOSTS: usize = 10;

/// Returns the number of instances that a reconcile of the pool reads, next to another pool with `others` hosts.
async fn instances_read(others: usize) -> usize {
    let (mut bed, pool) = bed(HOSTS).await;
    for n in 0..HOSTS + others {
        let (name, pool) = (format!("w{n}"), if n < HOSTS { "p" } else { "q" });
        let keys = [json!({"name": "cloud-private-key"})];
        let host =
            json!({"name": name, "address": address(n), "port": 22, "username": "Administrator", "privateKeys": keys});
        let instance = json!({
            "apiVersion": "windowsmachineconfig.openshift.io/v1alpha1", "kind": "WindowsInstance",
            "metadata": {"name": name}, "spec": {"poolRef": {"name": pool}, "host": host},
        });
        bed.api.objects(|o| o.put("windowsinstances", instance));
    }
    bed.sync();
    let read = bed.cx.caches.instances.returned.clone();
    read.store(0, Ordering::Relaxed);
    reconciled(&bed, pool).await.unwrap();
    let status = &stored(&bed)["status"];
    assert_eq!((&status["hosts"], &status["refusedHosts"]), (&json!(HOSTS), &json!(0)), "{status}");
    read.load(Ordering::Relaxed)
}

#[tokio::test]
async fn a_pool_reads_only_its_own_instances() {
    let alone = instances_read(0).await;
    assert!((HOSTS..=10 * HOSTS).contains(&alone), "{alone}");
    assert_eq!(instances_read(490).await, alone);
}

#[tokio::test]
async fn a_pool_has_no_instance_before_its_finalizer() {
    for (is_changed, expected) in [(false, true), (true, false)] {
        let (bed, pool) = bed(1).await;
        if is_changed {
            bed.api.fail("PATCH", POOL, 409, "Conflict", "it was changed", Value::Null);
        }
        reconciled(&bed, pool).await.unwrap();
        let made = bed.api.objects(|o| o.get("windowsinstances", "w0").is_some());
        assert_eq!(made, expected, "changed meanwhile: {is_changed}");
    }
}

#[tokio::test]
async fn a_pool_stays_for_an_instance_that_no_cache_has_yet() {
    for (pool_of_instance, expected) in [("p", true), ("q", false)] {
        let (bed, mut pool) = bed(1).await;
        pool.metadata.finalizers = Some(vec![FINALIZER_POOL.into()]);
        bed.api.objects(|o| o.put("windowsnodepools", json!(pool)));
        pool.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let pool_ref = PoolRef { name: pool_of_instance.into() };
        let spec = WindowsInstanceSpec { pool_ref, ..WindowsInstanceSpec::default() };
        let mut instance = WindowsInstance::new("w0", spec);
        instance.labels_mut().insert(key::POOL.into(), "p".into());
        bed.api.objects(|o| o.put("windowsinstances", json!(instance)));
        reconciled(&bed, pool).await.unwrap();
        let left: WindowsNodePool = serde_json::from_value(stored(&bed)).unwrap();
        assert_eq!(!left.finalizers().is_empty(), expected, "{pool_of_instance}");
    }
}

/// The pool to which a host moves may be deleted, and may have listed its instances, before the cache shows it.
#[tokio::test]
async fn a_host_is_not_moved_to_a_pool_that_is_gone() {
    let with_host = |name: &str, host: &str| {
        let hosts = Some(vec![Host { name: host.into(), address: address(0), ..Host::default() }]);
        let inventory = Inventory { hosts, ..Inventory::default() };
        let mut pool = WindowsNodePool::new(name, WindowsNodePoolSpec { inventory, ..WindowsNodePoolSpec::default() });
        pool.metadata.finalizers = Some(vec![FINALIZER_POOL.into()]);
        pool.metadata.uid = Some(format!("{name}-1"));
        pool
    };
    let deleted = |mut pool: WindowsNodePool| {
        pool.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        pool
    };
    let again = |mut pool: WindowsNodePool| {
        pool.metadata.uid = Some("q-2".into());
        pool
    };
    let other = || with_host("q", "w0");
    for (about, in_api, expected) in [
        ("the other pool exists", Some(other()), "q"),
        ("the other pool is gone", None, "p"),
        ("the other pool was created again", Some(again(other())), "p"),
        ("the other pool is being deleted", Some(deleted(other())), "p"),
    ] {
        let (mut bed, _) = bed(1).await;
        let own = with_host("p", "w0");
        bed.api.objects(|o| o.put("windowsnodepools", json!(own)));
        reconciled(&bed, own).await.unwrap();
        bed.sync();
        if let Some(other) = in_api {
            bed.api.objects(|o| o.put("windowsnodepools", json!(other)));
        }
        bed.cache_pool(other());
        let own = with_host("p", "w1");
        bed.cache_pool(own.clone());
        reconciled(&bed, own).await.unwrap();
        let instance = bed.api.objects(|o| o.get("windowsinstances", "w0").unwrap().clone());
        let found = (&instance["spec"]["poolRef"]["name"], &instance["metadata"]["labels"][key::POOL]);
        assert_eq!(found, (&json!(expected), &json!(expected)), "{about}");
        assert_eq!(instance["metadata"]["ownerReferences"][0]["uid"], format!("{expected}-1"), "{about}");
    }
}

/// Returns the conditions of a pool with one host after a failed reconcile, in which ConfigMap writes get this status code.
async fn conditions_after_refusal(code: u16, reason: &str) -> Value {
    let (bed, pool) = bed(1).await;
    let path = "/api/v1/namespaces/operator/configmaps";
    bed.api.fail("POST", path, code, reason, "exceeded quota: namespace-limits", Value::Null);
    let done = reconciled(&bed, pool).await;
    assert!(done.is_err(), "it is not tried again: {done:?}");
    stored(&bed)["status"]["conditions"].clone()
}

#[tokio::test]
async fn a_refused_request_is_in_the_status_and_an_outage_is_not() {
    let refused = conditions_after_refusal(403, "Forbidden").await;
    let of = |kind: &str| refused.as_array().unwrap().iter().find(|c| c["type"] == kind).cloned().unwrap_or_default();
    for (kind, status) in [("Ready", "False"), ("Stalled", "True")] {
        let condition = of(kind);
        assert_eq!((&condition["status"], &condition["reason"]), (&json!(status), &json!("ApiError")), "{refused}");
        assert!(condition["message"].to_string().contains("exceeded quota: namespace-limits"), "{condition}");
    }
    assert_eq!(conditions_after_refusal(500, "InternalError").await, Value::Null);
}
