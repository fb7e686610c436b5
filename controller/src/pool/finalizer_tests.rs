//! Tests that no instance is left without its pool, however short-lived the pool is.

use std::sync::Arc;

use api::{
    Host, Inventory, PoolRef, WindowsInstance, WindowsInstanceSpec, WindowsNodePool, WindowsNodePoolSpec,
    names::{FINALIZER_POOL, key},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::{PoolContext, reconcile};
use crate::instance::test_bed::Bed;

const POOL: &str = "/apis/windowsmachineconfig.openshift.io/v1alpha1/windowsnodepools/p";

async fn bed(finalizers: &[&str]) -> (Bed, WindowsNodePool) {
    let bed = Bed::with_objects().await;
    bed.api.objects(|o| {
        o.put("roles", json!({"metadata": {"name": "windows-node-pools-wicd-services", "namespace": "operator"}}));
    });
    let host = Host { name: "w1".into(), address: "10.0.0.1".into(), ..Host::default() };
    let inventory = Inventory { hosts: Some(vec![host]), ..Inventory::default() };
    let mut pool = WindowsNodePool::new("p", WindowsNodePoolSpec { inventory, ..WindowsNodePoolSpec::default() });
    pool.metadata.uid = Some("p-1".into());
    pool.metadata.finalizers = Some(finalizers.iter().map(ToString::to_string).collect());
    bed.api.objects(|o| o.put("windowsnodepools", json!(pool)));
    (bed, pool)
}

#[tokio::test]
async fn a_pool_has_no_instance_before_its_finalizer() {
    for (is_changed, expected) in [(false, true), (true, false)] {
        let (mut bed, pool) = bed(&[]).await;
        bed.sync();
        if is_changed {
            bed.api.fail("PATCH", POOL, 409, "Conflict", "it was changed", Value::Null);
        }
        reconcile(Arc::new(pool), Arc::new(PoolContext::new(bed.cx.clone(), None))).await.unwrap();
        let made = bed.api.objects(|o| o.get("windowsinstances", "w1").is_some());
        assert_eq!(made, expected, "changed meanwhile: {is_changed}");
    }
}

#[tokio::test]
async fn a_pool_stays_for_an_instance_that_no_cache_has_yet() {
    for (pool_of_instance, expected) in [("p", true), ("q", false)] {
        let (mut bed, mut pool) = bed(&[FINALIZER_POOL]).await;
        bed.sync();
        pool.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let pool_ref = PoolRef { name: pool_of_instance.into() };
        let spec = WindowsInstanceSpec { pool_ref, ..WindowsInstanceSpec::default() };
        let mut instance = WindowsInstance::new("w1", spec);
        instance.labels_mut().insert(key::POOL.into(), "p".into());
        bed.api.objects(|o| o.put("windowsinstances", json!(instance)));
        reconcile(Arc::new(pool), Arc::new(PoolContext::new(bed.cx.clone(), None))).await.unwrap();
        let left: WindowsNodePool =
            serde_json::from_value(bed.api.objects(|o| o.get("windowsnodepools", "p").unwrap().clone())).unwrap();
        assert_eq!(!left.finalizers().is_empty(), expected, "{pool_of_instance}");
    }
}
