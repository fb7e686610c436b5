//! Drains that read namespaces, volume claims and DaemonSets, with the rights that the operator ships with.

use anyhow::Result;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Namespace, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use serde_json::json;
use testbed::sim::{HostOptions, SimOptions};

use crate::{
    access::create,
    fleet::{World, spec_with},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_may_read_namespaces_volume_claims_and_daemon_sets() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let host = world.sim.host(HostOptions::named("ruled")).await?;
    let drain = json!({"podRules": [{"namespaceSelector": {"matchLabels": {"keep": "yes"}}, "behavior": "Skip"}]});
    world.join("ruled", &spec_with(std::slice::from_ref(&host), json!({"drain": drain}))).await?;

    // One pod stays because of the label of its namespace, and keeps a volume attached to the node.
    create::<Namespace>(&world.client, json!({"metadata": {"name": "kept", "labels": {"keep": "yes"}}})).await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(world.client.clone(), "kept");
    let claim = json!({
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": "of-kept", "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}}},
    });
    claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
    let attachment = json!({
        "metadata": {"name": "of-kept"},
        "spec": {"attacher": "csi.example.com", "nodeName": "ruled", "source": {"persistentVolumeName": "of-kept"}},
    });
    create::<VolumeAttachment>(&world.client, attachment).await?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "kept");
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "stays"},
        "spec": {
            "nodeName": "ruled", "containers": [{"name": "c", "image": "example.com/image"}],
            "tolerations": [{"operator": "Exists"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    }))?;
    // The creation fails until the namespace has its ServiceAccount.
    let post = PostParams::default();
    world.eventually("the pod is there", || async { pods.create(&post, &pod).await.is_ok() }).await?;
    let phase = |p: Pod| p.status.and_then(|s| s.phase);
    world
        .eventually("the pod runs", || async {
            pods.get("stays").await.is_ok_and(|p| phase(p).as_deref() == Some("Running"))
        })
        .await?;

    // A pod of a DaemonSet stays as well. (There is no scheduler: the pod names its node.)
    let labels = json!({"app": "agent"});
    let set = json!({
        "metadata": {"name": "agent"},
        "spec": {"selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels},
            "spec": {"nodeName": "ruled", "containers": [{"name": "c", "image": "example.com/image"}],
                "tolerations": [{"operator": "Exists"}]},
        }},
    });
    let sets: Api<DaemonSet> = Api::default_namespaced(world.client.clone());
    sets.create(&post, &serde_json::from_value(set)?).await?;
    let (agents, pods) =
        (ListParams::default().labels("app=agent"), Api::<Pod>::default_namespaced(world.client.clone()));
    world
        .eventually("the pod of the DaemonSet runs", || async {
            let found = pods.list(&agents).await.map(|all| all.items).unwrap_or_default();
            found.into_iter().any(|p| phase(p).as_deref() == Some("Running"))
        })
        .await?;

    world.empty("ruled").await?;
    world.until_gone(&host).await
}
