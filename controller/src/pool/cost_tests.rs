//! Tests of the cost of a pool's reconcile in a large fleet.

use std::sync::{Arc, atomic::Ordering};

use api::{Host, Inventory, WindowsNodePool, WindowsNodePoolSpec};
use serde_json::json;

use super::{PoolContext, reconcile};
use crate::instance::test_bed::Bed;

/// Number of hosts of the pool.
const HOSTS: usize = 10;

/// Returns the number of instances that a reconcile of the pool reads, next to another pool with `others` hosts.
async fn instances_read(others: usize) -> usize {
    let mut bed = Bed::with_objects().await;
    let address = |n: usize| format!("10.0.{}.{}", n / 250, n % 250);
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
    let role = json!({"metadata": {"name": "windows-node-pools-wicd-services", "namespace": "operator"}});
    bed.api.objects(|o| o.put("roles", role));
    bed.sync();
    let hosts = (0..HOSTS).map(|n| Host { name: format!("w{n}"), address: address(n), ..Host::default() }).collect();
    let inventory = Inventory { hosts: Some(hosts), ..Inventory::default() };
    let mut pool = WindowsNodePool::new("p", WindowsNodePoolSpec { inventory, ..WindowsNodePoolSpec::default() });
    pool.metadata.uid = Some("p-1".into());
    bed.api.objects(|o| o.put("windowsnodepools", json!(pool)));

    let read = bed.cx.caches.instances.handed_out.clone();
    read.store(0, Ordering::Relaxed);
    reconcile(Arc::new(pool), Arc::new(PoolContext::new(bed.cx.clone(), None))).await.unwrap();
    let status = bed.api.objects(|o| o.get("windowsnodepools", "p").unwrap()["status"].clone());
    assert_eq!((&status["hosts"], &status["refusedHosts"]), (&json!(HOSTS), &json!(0)), "{status}");
    read.load(Ordering::Relaxed)
}

#[tokio::test]
async fn a_pool_reads_its_own_instances_however_many_others_there_are() {
    let alone = instances_read(0).await;
    assert!((HOSTS..=10 * HOSTS).contains(&alone), "{alone}");
    assert_eq!(instances_read(490).await, alone);
}
