//! Tests of a host from `start` to a Node and to the end of its Pods, on a real control plane.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use api::{
    host::{Apply, Body, CertificateKind, ConfigFile, Desired, Outcome, Start, WICD_SERVICE, path},
    names::key,
    services::{Service, ServicesConfig},
};
use k8s_openapi::{
    ByteString,
    api::{
        certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
        coordination::v1::Lease,
        core::v1::{Node, Pod},
    },
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, EvictParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::json;
use testbed::{
    ControlPlane,
    sim::{Fault, HostOptions, ServingCertificate, Sim, SimHost, SimOptions},
};

use super::operator::{CLUSTER, Connection, eventually, options};

/// Version of the host in these tests.
const VERSION: &str = "1.2.3";

/// Permissions of wicd on its Node; the product has its own, stricter rules.
const RIGHTS: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: sim-wicd}
rules: [{apiGroups: [""], resources: [nodes], verbs: [get, patch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: sim-wicd}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: sim-wicd}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:wicd-nodes"}]
"#;

struct World {
    client: Client,
    sim: Sim,
}

impl World {
    async fn new(options: SimOptions) -> Result<Self> {
        let control_plane = ControlPlane::shared().await?;
        control_plane.apply_yaml(RIGHTS).await?;
        let client = control_plane.client().await?;
        Ok(Self { sim: Sim::start(client.clone(), options)?, client })
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    async fn host(&self, name: &str) -> Result<SimHost> {
        self.sim.host(HostOptions::named(name)).await
    }

    async fn ready(&self, name: &str) -> Result<Node> {
        eventually("the node is ready", || async {
            Ok(self.nodes().get_opt(name).await?.filter(|n| condition(n, "Ready").as_deref() == Some("True")))
        })
        .await
    }

    /// Creates a certificate request, approves it, and returns the certificate.
    async fn issue(&self, kind: CertificateKind, pem: String) -> Result<String> {
        let requests: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        let signer = match kind {
            CertificateKind::Kubelet => "kubernetes.io/kube-apiserver-client-kubelet",
            CertificateKind::Wicd => "kubernetes.io/kube-apiserver-client",
        };
        let request = CertificateSigningRequest {
            metadata: ObjectMeta { generate_name: Some("it-".into()), ..ObjectMeta::default() },
            spec: CertificateSigningRequestSpec {
                request: ByteString(pem.into_bytes()),
                signer_name: signer.into(),
                usages: Some(vec!["digital signature".into(), "client auth".into()]),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        };
        let name = requests.create(&PostParams::default(), &request).await?.name_any();
        approve(&requests, &name).await?;
        let issued = eventually("the certificate is issued", || async {
            Ok(requests.get(&name).await?.status.and_then(|s| s.certificate))
        });
        Ok(String::from_utf8(issued.await?.0)?)
    }

    /// Runs `apply` and `start` on a host.
    async fn join(&self, host: &SimHost) -> Result<()> {
        let connection = Connection::open(host).await?;
        let exe = connection.upload_exe().await?;
        let kubelet = Service { name: "kubelet".into(), path: r"C:\k\kubelet.exe".into(), ..Service::default() };
        let desired = Desired {
            cluster_id: CLUSTER.into(),
            node_name: host.name().into(),
            node_ip: host.address().to_string(),
            pool: "it".into(),
            version: VERSION.into(),
            services: ServicesConfig { services: vec![kubelet], ..ServicesConfig::default() },
            ..Desired::default()
        };
        let certificates = vec![CertificateKind::Kubelet, CertificateKind::Wicd];
        let kubeconfig = json!({"users": [{"name": "node", "user": {}}]}).to_string();
        let configs = vec![ConfigFile { path: path::NODE_KUBECONFIG.into(), content: kubeconfig, secret: false }];
        let apply = Apply { desired, configs, certificates, wicd_sha256: exe.clone(), ..Apply::default() };
        let answer = connection.verb(&exe, "join", Body::Apply(Box::new(apply))).await?;
        assert_eq!(answer.outcome, Outcome::Done);
        let mut certificates = BTreeMap::new();
        for (kind, request) in answer.requests {
            certificates.insert(kind, self.issue(kind, request).await?);
        }
        let start = Start { certificates, wicd_sha256: exe.clone(), certificate_seconds: 3600, ..Start::default() };
        let answer = connection.verb(&exe, "join", Body::Start(start)).await?;
        assert_eq!(answer.outcome, Outcome::Done);
        Ok(())
    }

    async fn serving_request(&self, node: &str) -> Result<CertificateSigningRequest> {
        let requests: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        let by = format!("system:node:{node}");
        let params = ListParams::default().fields("spec.signerName=kubernetes.io/kubelet-serving");
        eventually("a serving certificate is asked for", || async {
            let all = requests.list(&params).await?;
            Ok(all.into_iter().find(|r| r.spec.username.as_deref() == Some(&by)))
        })
        .await
    }
}

async fn approve(requests: &Api<CertificateSigningRequest>, name: &str) -> Result<()> {
    let approved = json!({ "status": { "conditions": [
        { "type": "Approved", "status": "True", "reason": "Test", "message": "approved by a test" },
    ] } });
    requests.patch_approval(name, &PatchParams::default(), &Patch::Strategic(approved)).await?;
    Ok(())
}

fn condition(node: &Node, kind: &str) -> Option<String> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == kind).map(|c| c.status.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_started_host_becomes_a_ready_node_once_its_certificate_is_approved() -> Result<()> {
    let world = World::new(options()).await?;
    let host = world.host("sim-joins").await?;
    world.join(&host).await?;
    assert_eq!(host.services()[WICD_SERVICE], api::host::ServiceState::Running);

    let request = world.serving_request(host.name()).await?;
    let node = world.nodes().get(host.name()).await?;
    assert_eq!(condition(&node, "Ready").as_deref(), Some("False"));
    assert!(request.spec.groups.unwrap_or_default().contains(&"system:nodes".to_string()));
    assert_eq!(request.spec.usages.context("usages")?, ["digital signature", "server auth"]);
    approve(&Api::all(world.client.clone()), &request.metadata.name.context("name")?).await?;

    let node = world.ready(host.name()).await?;
    for (label, value) in
        [("kubernetes.io/os", "windows"), ("kubernetes.io/hostname", "sim-joins"), (key::OS_ID, "Windows")]
    {
        assert_eq!(node.labels().get(label).map(String::as_str), Some(value));
    }
    let taints = node.spec.unwrap_or_default().taints.unwrap_or_default();
    assert!(taints.iter().any(|t| t.key == "os" && t.value.as_deref() == Some("Windows") && t.effect == "NoSchedule"));
    let status = node.status.context("status")?;
    assert_eq!(status.addresses.context("addresses")?[0].address, host.address().to_string());
    assert_eq!(status.node_info.context("info")?.boot_id, "1");

    let desired = json!({ "metadata": { "annotations": { key::DESIRED_VERSION: VERSION } } });
    world.nodes().patch(host.name(), &PatchParams::default(), &Patch::Merge(desired)).await?;
    eventually("wicd reports its version", || async {
        Ok(world.nodes().get(host.name()).await?.annotations().get(key::VERSION).filter(|v| *v == VERSION).cloned())
    })
    .await?;
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), "kube-node-lease");
    eventually("there is a lease", || async { Ok(leases.get_opt(host.name()).await?) }).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_host_says_so() -> Result<()> {
    let world = World::new(SimOptions { serving: ServingCertificate::Skip, ..options() }).await?;
    let host = world.host("sim-restarts").await?;
    host.fault(Fault::NeverRegisters);
    world.join(&host).await?;
    let other = world.host("sim-registers").await?;
    world.join(&other).await?;
    world.ready(other.name()).await?;
    assert!(world.nodes().get_opt(host.name()).await?.is_none(), "a kubelet that never registers has no node");
    host.mend();
    world.ready(host.name()).await?;
    host.reboot();
    eventually("the node has the new boot id", || async {
        let node = world.ready(host.name()).await?;
        Ok(node.status.and_then(|s| s.node_info).filter(|i| i.boot_id == "2"))
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_run_and_end_while_their_kubelet_does() -> Result<()> {
    let world = World::new(SimOptions { serving: ServingCertificate::Skip, ..options() }).await?;
    let host = world.host("sim-pods").await?;
    world.join(&host).await?;
    world.ready(host.name()).await?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    let phase = |name: &'static str| {
        let pods = pods.clone();
        async move { Ok::<_, anyhow::Error>(pods.get_opt(name).await?.and_then(|p| p.status).and_then(|s| s.phase)) }
    };
    let other = world.host("sim-pods-too").await?;
    world.join(&other).await?;
    world.ready(other.name()).await?;
    for (name, host) in [("sim-evicted", &host), ("sim-stays", &host), ("sim-ends", &other)] {
        let pod = json!({
            "metadata": { "name": name },
            "spec": {
                "nodeName": host.name(),
                "terminationGracePeriodSeconds": 3600,
                "tolerations": [{ "operator": "Exists" }],
                "containers": [{ "name": "main", "image": "none" }],
            },
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        eventually("it runs", || async { Ok(phase(name).await?.filter(|p| p == "Running")) }).await?;
    }
    pods.evict("sim-evicted", &EvictParams::default()).await?;
    eventually("it is gone", || async { Ok(pods.get_opt("sim-evicted").await?.is_none().then_some(())) }).await?;

    host.power_off();
    for name in ["sim-stays", "sim-ends"] {
        pods.delete(name, &DeleteParams::default()).await?;
    }
    eventually("one elsewhere is gone", || async { Ok(pods.get_opt("sim-ends").await?.is_none().then_some(())) })
        .await?;
    assert!(pods.get_opt("sim-stays").await?.is_some(), "no kubelet is there to end it");
    host.power_on();
    eventually("it is gone", || async { Ok(pods.get_opt("sim-stays").await?.is_none().then_some(())) }).await?;
    Ok(())
}
