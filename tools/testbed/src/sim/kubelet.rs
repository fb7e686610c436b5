//! Simulated kubelet, and the part of wicd's service that talks to the API server.

use std::{collections::BTreeMap, io::Read as _, sync::Arc};

use anyhow::{Context as _, Error, Result, ensure};
use api::{
    Time,
    host::{Desired, REPORT_INTERVAL, path},
    names::{key, user},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    certificates::v1::CertificateSigningRequest,
    core::v1::{Node, ServiceAccount},
};
use kube::{
    Resource as _,
    api::{Patch, PatchParams, PostParams},
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
    core::{ObjectMeta, PartialObjectMeta, Request},
};
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use wicd::{
    daemon::{
        cluster::{Connect as _, Kube},
        drift,
        follow::is_report_due,
        reconciler::Report,
        rotation, service_token,
    },
    fake_kubelet,
};
use x509_parser::pem::Pem;

use super::{
    drive,
    fault::Fault,
    fleet::{Fleet, Identity, Issued, NodeView, RequestResult, ServingCertificate, retry_forever},
    kubelet_server,
    machine::{Machine, State},
    windows::KUBELET,
};
use crate::binaries::KUBERNETES_VERSION;

/// First bytes of a `kubelet.exe` that runs and registers its Node, but never becomes Ready.
pub const BROKEN: &[u8] = b"BROKEN";

/// Delay after which Windows restarts the service.
const START_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

/// Runs the machine's kubelet whenever its service runs, and lets wicd's service continue with its work, until the machine moves to another
/// cluster.
pub(super) async fn supervise(fleet: Arc<Fleet>, machine: Arc<Machine>, cluster: u32) {
    let mut state = machine.state();
    tokio::select! {
        _ = async { tokio::join!(run_when_started(&fleet, &machine), go_on(&machine)) } => {}
        _ = state.wait_for(|s| s.cluster != cluster) => {}
    }
}

/// Lets wicd's service retry work that it could not complete, for example because another process held the host's lock.
async fn go_on(machine: &Machine) {
    loop {
        sleep(START_AGAIN).await;
        if machine.windows().is_moving() {
            machine.windows().keep(None);
        }
    }
}

async fn run_when_started(fleet: &Arc<Fleet>, machine: &Arc<Machine>) {
    let mut state = machine.state();
    let running = |s: &State| s.powered && machine.windows().is_running(KUBELET);
    while let Ok(run_of_now) = state.wait_for(running).await.map(|s| s.kubelet_runs) {
        tokio::select! {
            () = run(fleet, machine) => {}
            _ = state.wait_for(|s| s.kubelet_runs != run_of_now || !running(s)) => {}
        }
    }
}

async fn run(fleet: &Arc<Fleet>, machine: &Arc<Machine>) {
    let mut state = machine.state();
    sleep(machine.parts().boot).await;
    if state.wait_for(|s| !s.faults.contains(&Fault::NeverRegisters)).await.is_err() {
        return;
    }
    let desired = loop {
        match read_desired(machine) {
            Ok(desired) => break desired,
            Err(error) => {
                tracing::warn!(
                    host = machine.parts().name,
                    error = format!("{error:#}"),
                    "simulated kubelet cannot start"
                );
            }
        }
        // Windows restarts a service that has ended.
        if let Ok(Err(_)) = timeout(START_AGAIN, state.changed()).await {
            return;
        }
    };
    let client = match fleet.options().own_credentials.then(|| own_client(machine)) {
        None => None,
        Some(client) => match Box::pin(client).await {
            Ok(client) => Some(client),
            Err(error) => {
                tracing::warn!(
                    host = machine.parts().name,
                    error = format!("{error:#}"),
                    "simulated kubelet has no client"
                );
                return sleep(START_AGAIN).await;
            }
        },
    };
    let kubelet = Kubelet {
        client,
        address: if desired.node_ip.is_empty() { machine.address().ip().to_string() } else { desired.node_ip },
        identity: Identity::kubelet(&desired.node_name),
        node: desired.node_name,
        fleet,
        machine,
    };
    kubelet.register().await;
    let _live = fleet.go_live(&kubelet.node, kubelet.address.clone(), machine.clone(), kubelet.client.clone());
    match fleet.options().serving {
        ServingCertificate::Await => while !kubelet.is_served().await {},
        ServingCertificate::Request => drop(retry_forever("serving request", || kubelet.request_serving()).await),
        ServingCertificate::Skip => {}
    }
    if !is_broken(machine) {
        kubelet.become_ready().await;
    }
    let serves = async {
        match kubelet.address.parse().ok().filter(|_| kubelet.client.is_some()) {
            Some(address) => kubelet_server::serve(machine, address).await,
            None => std::future::pending().await,
        }
    };
    tokio::join!(serves, kubelet.report_version(), kubelet.rotate());
}

/// Returns a kubelet's client for the API server, with the kubelet's own certificate and the authorities that were in the host's file when
/// kubelet started. (A kubelet before Kubernetes 1.36 does not reload them.)
async fn own_client(machine: &Machine) -> Result<kube::Client> {
    let mut kubeconfig: Kubeconfig = serde_json::from_slice(&drive::read(machine.drive(), path::NODE_KUBECONFIG)?)?;
    let pem = fake_kubelet::start(machine.windows().host()).map_err(Error::msg)?;
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|u| u.auth_info.as_mut()) {
        *user = AuthInfo {
            client_certificate_data: Some(BASE64_STANDARD.encode(&pem)),
            client_key_data: Some(BASE64_STANDARD.encode(&pem).into()),
            ..AuthInfo::default()
        };
    }
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|c| c.cluster.as_mut()) {
        let file = cluster.certificate_authority.take().context("it names no CA")?;
        cluster.certificate_authority_data = Some(BASE64_STANDARD.encode(drive::read(machine.drive(), &file)?));
    }
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.proxy_url = None;
    Ok(kube::Client::try_from(config)?)
}

/// Returns the Node that the kubelet of a host registers.
fn new_node(node: &str, status: Value) -> Value {
    let labels = BTreeMap::from([
        ("kubernetes.io/os", "windows"),
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/hostname", node),
        ("node.kubernetes.io/windows-build", "10.0.20348"),
        (key::OS_ID, "Windows"),
    ]);
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": node, "labels": labels },
        "spec": { "taints": [api::names::default_taint()] },
        "status": status,
    })
}

fn node_status(machine: &Machine, node: &str, address: &str, version: &str, ready: bool) -> Value {
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    let condition = |kind: &str, status: bool, reason: &str, message: &str| {
        json!({
            "type": kind,
            "status": if status { "True" } else { "False" },
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        })
    };
    let machine = machine.windows().machine();
    let quantities = json!({ "cpu": "4", "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "110" });
    json!({
        "addresses": [
            { "type": "InternalIP", "address": address },
            // The operator overrides the Windows host name.
            { "type": "Hostname", "address": node },
        ],
        "capacity": quantities,
        "allocatable": quantities,
        "conditions": [
            condition("MemoryPressure", false, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            condition("DiskPressure", false, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            condition("PIDPressure", false, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            if ready {
                condition("Ready", true, "KubeletReady", "kubelet is posting ready status")
            } else {
                condition("Ready", false, "KubeletNotReady", "kubelet is coming up")
            },
        ],
        "daemonEndpoints": { "kubeletEndpoint": { "Port": 10250 } },
        "nodeInfo": {
            "machineID": machine.hostname,
            "systemUUID": machine.machine_id,
            "bootID": machine.boot_id,
            "kernelVersion": machine.os_build,
            "osImage": machine.os_name,
            "containerRuntimeVersion": "containerd://2.2.0",
            "kubeletVersion": version,
            "kubeProxyVersion": "",
            "operatingSystem": "windows",
            "architecture": "amd64",
        },
    })
}

/// Returns the Node that the kubelet maintains, for a test without a cluster. The Node is Ready unless `kubelet.exe` is [`BROKEN`].
///
/// # Errors
/// Fails when the kubelet could not start, because its configuration or its certificate is missing or not that of a node.
pub(super) fn ready_node(machine: &Machine) -> Result<Value> {
    let desired = read_desired(machine)?;
    let own = machine.address().ip().to_string();
    let address = if desired.node_ip.is_empty() { own } else { desired.node_ip };
    Ok(new_node(
        &desired.node_name,
        node_status(machine, &desired.node_name, &address, KUBERNETES_VERSION, !is_broken(machine)),
    ))
}

/// Returns the changes of the Node's annotations by wicd.
pub(super) fn report(machine: &Machine, node: &PartialObjectMeta<Node>) -> BTreeMap<&'static str, Option<String>> {
    let seen = NodeView::of(node);
    annotations(&seen, &machine.windows().keep(seen.json.as_ref()))
}

/// Reports whether `kubelet.exe` is [`BROKEN`].
fn is_broken(machine: &Machine) -> bool {
    let mut begins = [0; BROKEN.len()];
    let program = drive::find(machine.drive(), &["k", "kubelet.exe"]);
    // The rest of the file may be large.
    std::fs::File::open(program).is_ok_and(|mut file| file.read_exact(&mut begins).is_ok()) && begins == BROKEN
}

/// Reads the desired state of the host, as a kubelet does before it starts. Fails if kubelet has no valid certificate of its Node.
fn read_desired(machine: &Machine) -> Result<Desired> {
    let desired: Desired = serde_json::from_slice(&drive::read(machine.drive(), path::DESIRED)?)?;
    let pem = fake_kubelet::start(machine.windows().host()).map_err(Error::msg)?;
    let is_certificate = |pem: &Pem| pem.label == "CERTIFICATE";
    let first =
        Pem::iter_from_buffer(pem.as_bytes()).flatten().find(is_certificate).context("no certificate for kubelet")?;
    let certificate = first.parse_x509()?;
    let is_valid = fake_kubelet::is_valid(machine.windows().host(), &certificate);
    ensure!(is_valid, "kubelet's certificate is not valid now");
    let subject = certificate.subject();
    let mut names = subject.iter_common_name().filter_map(|n| n.as_str().ok());
    let mut groups = subject.iter_organization().filter_map(|n| n.as_str().ok());
    let expected = format!("{}{}", user::NODE_PREFIX, desired.node_name);
    ensure!(names.next() == Some(&*expected), "kubelet's certificate is not one of {expected}");
    ensure!(groups.next() == Some(user::NODES_GROUP), "kubelet's certificate is not one of a node");
    Ok(desired)
}

/// Running kubelet of a machine.
struct Kubelet<'a> {
    /// Kubelet's own client of the API server. If it has none, it uses the shared client.
    client: Option<kube::Client>,
    fleet: &'a Arc<Fleet>,
    machine: &'a Arc<Machine>,
    node: String,
    address: String,
    identity: Identity,
}

impl Kubelet<'_> {
    async fn send<T: DeserializeOwned>(&self, request: RequestResult) -> kube::Result<T> {
        match &self.client {
            Some(client) => client.request(request.map_err(kube::Error::BuildRequest)?).await,
            None => self.fleet.send(&self.identity, request).await,
        }
    }

    async fn register(&self) {
        let body = new_node(&self.node, self.status(false)).to_string().into_bytes();
        retry_forever("node", || async {
            let create = Request::new(Node::url_path(&(), None)).create(&PostParams::default(), body.clone());
            match self.send::<IgnoredAny>(create).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => {
                    self.patch_status(self.status(false)).await
                }
                other => other.map(drop),
            }
        })
        .await;
    }

    async fn become_ready(&self) {
        retry_forever("node status", || self.patch_status(self.status(true))).await;
    }

    async fn patch_status(&self, status: Value) -> kube::Result<()> {
        let patch = Patch::Strategic(json!({ "status": status }));
        let request = Request::new(Node::url_path(&(), None)).patch_subresource(
            "status",
            &self.node,
            &PatchParams::default(),
            &patch,
        );
        self.send::<IgnoredAny>(request).await.map(drop)
    }

    fn status(&self, ready: bool) -> Value {
        node_status(self.machine, &self.node, &self.address, &self.version(), ready)
    }

    /// Returns the version of kubelet: the first 16 bytes of `kubelet.exe` if they are text that begins with `v1.`, and otherwise the default.
    fn version(&self) -> String {
        let program = std::fs::File::open(drive::find(self.machine.drive(), &["k", "kubelet.exe"]));
        let mut version = String::new();
        // The rest may be large, and is not text.
        let is_text = program.is_ok_and(|file| file.take(16).read_to_string(&mut version).is_ok());
        if is_text && version.starts_with("v1.") { version } else { self.fleet.options().kubelet_version.clone() }
    }

    /// Reports whether the host has a serving certificate. Requests one if it has none.
    async fn is_served(&self) -> bool {
        if self.machine.windows().has_serving_certificate(&self.node, &self.address) {
            return true;
        }
        let (name, key) = retry_forever("serving request", || self.request_serving()).await;
        let Issued::Yes(chain) = self.fleet.decision(&name).await else {
            tracing::warn!(
                node = self.node,
                request = name,
                "simulated kubelet got no serving certificate and requests another one"
            );
            sleep(std::time::Duration::from_secs(10)).await;
            return false;
        };
        self.machine.windows().keep_serving_certificate(&format!("{}\n{key}", chain.trim_end()));
        true
    }

    /// Creates a request for a serving certificate, and returns its name and the key.
    async fn request_serving(&self) -> kube::Result<(String, String)> {
        let (request, key) =
            serving_request(&self.node, &self.address).map_err(|e| kube::Error::Service(format!("{e:#}").into()))?;
        let object = CertificateSigningRequest {
            metadata: ObjectMeta { generate_name: Some("csr-".into()), ..ObjectMeta::default() },
            spec: k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec {
                request: k8s_openapi::ByteString(request.into_bytes()),
                signer_name: "kubernetes.io/kubelet-serving".into(),
                usages: Some(vec!["digital signature".into(), "server auth".into()]),
                ..Default::default()
            },
            status: None,
        };
        let body = serde_json::to_vec(&object).map_err(kube::Error::SerdeError)?;
        let create = Request::new(CertificateSigningRequest::url_path(&(), None)).create(&PostParams::default(), body);
        let created: CertificateSigningRequest = self.send(create).await?;
        Ok((created.metadata.name.unwrap_or_default(), key))
    }

    /// Renews the tokens of services that have an identity of their own, as wicd does.
    async fn renew_tokens(&self, wicd: &Identity, node: Option<&Value>) {
        let host = self.machine.windows().host();
        let now = k8s_openapi::jiff::Timestamp::now().as_second();
        let uid = node.and_then(|node| node["metadata"]["uid"].as_str());
        for due in service_token::due(host, uid, now).unwrap_or_default() {
            let accounts = ServiceAccount::url_path(&(), Some(&due.namespace));
            let made = retry_forever("token", async || {
                let body = serde_json::to_vec(&due.request()).map_err(kube::Error::SerdeError)?;
                let (account, params) = (&due.token.service_account, PostParams::default());
                let request = Request::new(accounts.as_str()).create_subresource("token", account, &params, body);
                self.fleet.send::<TokenRequest>(wicd, request).await
            });
            let token = made.await.status.and_then(|s| s.token).unwrap_or_default();
            if let Err(error) = due.keep(host, &token) {
                tracing::warn!(error = &error as &dyn std::error::Error, "a simulated host cannot store a token");
            }
        }
    }

    /// Renews wicd's certificate as wicd does, if wicd uses it for the API server. Runs until dropped.
    async fn rotate(&self) {
        if self.client.is_some() {
            let host = Arc::new(self.machine.windows().host().clone());
            Box::pin(rotation::rotate(host.clone(), Arc::new(Kube::new(host)), watch::channel(0).0)).await;
        }
    }

    /// Reconciles the host as wicd does, and reports in the Node the version that the host follows completely and whether it must restart. If the
    /// cluster marks the kubelet as silent, the kubelet reports again. Runs until dropped.
    async fn report_version(&self) {
        let mut view = self.fleet.view(&self.node);
        let mut state = self.machine.state();
        let wicd = Identity::wicd(&self.node);
        let mut last_status_write_by_controller = view.borrow().last_status_write_by_controller.clone();
        loop {
            let seen = view.borrow_and_update().clone();
            if seen.last_status_write_by_controller > last_status_write_by_controller && !is_broken(self.machine) {
                self.become_ready().await;
            }
            last_status_write_by_controller.clone_from(&seen.last_status_write_by_controller);
            state.borrow_and_update();
            self.renew_tokens(&wicd, seen.json.as_ref()).await;
            let report = self.machine.windows().keep(seen.json.as_ref());
            let annotations = annotations(&seen, &report);
            if !annotations.is_empty() && self.client.is_some() {
                // Like wicd, use the current credentials of the host.
                retry_forever("annotations", || async {
                    let host = Arc::new(self.machine.windows().host().clone());
                    let written =
                        async { Kube::new(host).connect().await?.annotate(&self.node, annotations.clone()).await };
                    Box::pin(written).await.map_err(|error| kube::Error::Service(error.into()))
                })
                .await;
            } else if !annotations.is_empty() {
                let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
                retry_forever("annotations", || {
                    let request =
                        Request::new(Node::url_path(&(), None)).patch(&self.node, &PatchParams::default(), &patch);
                    self.fleet.send::<IgnoredAny>(&wicd, request)
                })
                .await;
            }
            // Work that could not be completed, for example because a verb held the host's lock, is tried again soon.
            let again = if report.settled { REPORT_INTERVAL } else { START_AGAIN };
            tokio::select! {
                changed = view.changed() => if changed.is_err() { return },
                changed = state.changed() => if changed.is_err() { return },
                () = sleep(again) => {}
            }
        }
    }
}

/// Returns the annotations that wicd must set or remove. As in wicd, only the operator removes a request for a restart,
/// and no version is reported while there is a request.
fn annotations(seen: &NodeView, report: &Report) -> BTreeMap<&'static str, Option<String>> {
    let mut change = BTreeMap::new();
    if seen.uid.is_none() {
        return change;
    }
    if report.settled
        && report.version.is_some()
        && report.version == seen.desired_version
        && seen.version != report.version
        && !seen.reboot_required
        && report.reboot.is_none()
    {
        change.insert(key::VERSION, report.version.clone());
    }
    if report.reboot.is_some() && !seen.reboot_required {
        change.insert(key::REBOOT_REQUIRED, Some(String::new()));
    }
    let drift = drift::annotation(&report.drift);
    if report.version.is_some() && seen.drift != drift {
        change.insert(key::DRIFT, drift);
    }
    let now = Timestamp::now();
    let is_stamped = seen.version.is_some() || change.contains_key(key::VERSION);
    if report.version.is_some() && is_stamped && is_report_due(seen.reported.as_deref(), now) {
        change.insert(key::WICD_REPORTED, Some(Time::from(now).to_string()));
    }
    change
}

/// Returns a certificate request as kubelet makes it, and its key, both in PEM.
fn serving_request(node: &str, address: &str) -> Result<(String, String)> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::OrganizationName, user::NODES_GROUP);
    params.distinguished_name.push(DnType::CommonName, format!("{}{node}", user::NODE_PREFIX));
    params.subject_alt_names = vec![SanType::DnsName(node.try_into()?), SanType::IpAddress(address.parse()?)];
    let key = KeyPair::generate()?;
    Ok((params.serialize_request(&key)?.pem()?, key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use api::{
        host::WICD_SERVICE,
        services::{Service, ServicesConfig},
    };
    use wicd::host::{Host as _, ServiceSpec};

    use super::*;

    /// Checks that wicd continues once the lock is free. A process that starts while the lock is held inherits the lock until the process runs its
    /// program, so the lock may be held for longer than a verb takes.
    #[tokio::test]
    async fn wicd_continues_after_the_lock_was_held() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let machine = Machine::in_dir(dir.path());
        let host = machine.windows().host();
        let kubelet = Service { name: KUBELET.into(), path: r"C:\k\kubelet.exe".into(), ..Service::default() };
        let services = ServicesConfig { services: vec![kubelet], ..ServicesConfig::default() };
        let desired = Desired { node_name: "win-0".into(), services, ..Desired::default() };
        wicd::files::write_json(host, path::DESIRED, &desired, wicd::files::Access::Inherited)?;
        host.put_service(&ServiceSpec { name: WICD_SERVICE.into(), ..ServiceSpec::default() })?;

        let held = wicd::lock::take(host, std::time::Duration::ZERO)?;
        host.start_service(WICD_SERVICE)?;
        machine.windows().keep(None);
        assert!(!machine.windows().is_running(KUBELET), "services wait until the lock is released");
        drop(held);
        let started = async { machine.state().wait_for(|s| s.kubelet_runs == 1).await.is_ok() };
        tokio::select! {
            started = started => assert!(started),
            () = go_on(&machine) => {}
        }
        assert!(!machine.windows().is_moving(), "there is nothing left to do");
        Ok(())
    }

    #[test]
    fn wicd_annotates_its_node_only_with_changes() {
        let seen = NodeView { uid: Some("1".into()), reported: Some(Time::now().to_string()), ..NodeView::default() };
        let nothing = BTreeMap::new();
        let version = BTreeMap::from([(key::VERSION, Some("2".to_string()))]);
        let restart = BTreeMap::from([(key::REBOOT_REQUIRED, Some(String::new()))]);
        for (about, on_node, marked, follows, settled, reboots, expected) in [
            ("the first version", None, false, "2", true, false, &version),
            ("another version", Some("1"), false, "2", true, false, &version),
            ("already reported", Some("2"), false, "2", true, false, &nothing),
            ("not the desired version", Some("1"), false, "1", true, false, &nothing),
            ("not settled", Some("1"), false, "2", false, false, &nothing),
            ("a restart", Some("2"), false, "2", true, true, &restart),
            ("a restart that is already requested", Some("2"), true, "2", true, true, &nothing),
            ("a restart that another program requests", Some("2"), true, "2", true, false, &nothing),
            ("a version before the restart", Some("1"), true, "2", true, false, &nothing),
        ] {
            let seen = NodeView {
                desired_version: Some("2".into()),
                version: on_node.map(str::to_string),
                reboot_required: marked,
                ..seen.clone()
            };
            let reboot = reboots.then(|| "why".to_string());
            let report = Report { version: Some(follows.into()), settled, reboot, ..Report::default() };
            assert_eq!(annotations(&seen, &report), *expected, "{about}");
        }
        assert_eq!(annotations(&NodeView::default(), &Report::default()), nothing, "there is no node");

        for (on_node, drift, expected) in [
            (None, &["a (left)", "b (healed)"][..], Some(Some("a (left); b (healed)"))),
            (Some("a (left)"), &["a (left)"], None),
            (Some("a (left)"), &[], Some(None)),
        ] {
            let seen = NodeView { drift: on_node.map(str::to_string), ..seen.clone() };
            let drift = drift.iter().map(ToString::to_string).collect();
            let change = annotations(&seen, &Report { version: Some("1".into()), drift, ..Report::default() });
            let expected = expected.map(|value| (key::DRIFT, value.map(str::to_string)));
            assert_eq!(change, expected.into_iter().collect(), "{on_node:?}");
        }
    }
}
