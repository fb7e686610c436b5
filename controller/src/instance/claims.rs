//! Certificate claims of hosts: the facts about a host and its Node on which the verdicts on their certificate requests depend.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use api::{WindowsInstance, WindowsInstanceStatus};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams, runtime::reflector::ObjectRef};
use tokio::{sync::Mutex, time::timeout};

use crate::{
    caches::name_owner as whose,
    context::{Base, Context, OTHER_NODES},
    csr::{self, Claim, Kind},
    runtime::errors::api_message,
};
use wnp_core::{
    csr::claims::{self, ClaimInputs, neighbours::Neighbours, reserved::Reserved},
    node::{
        essentials::keep_essentials,
        owner::{Mismatch, NodeOwner, evidence, is_of_operator, proven_addresses},
    },
};

/// Time for which a list of the Nodes of other operating systems is reused. These Nodes are read only for serving certificates.
const FRESH: Duration = Duration::from_mins(1);
/// Time for which the error of a failed list is reused: hundreds of hosts may request certificates at once.
const FAILED: Duration = Duration::from_secs(5);
/// Maximum number of Nodes in one page of the list.
const PAGE: u32 = 500;
/// Time limit for a page of the list, including the client's queue. All requests for serving certificates wait for the list.
const ANSWER: Duration = Duration::from_mins(2);

/// Returns the claim of an instance with this status, for a certificate request that the operator itself creates for the host.
pub(crate) fn claim(instance: &WindowsInstance, status: &WindowsInstanceStatus, cx: &Context) -> Claim {
    let reserved = Reserved::of(&cx.hosts.release.get().cluster, cx.process.args.loopback_hosts);
    claims::claim(instance, status, &cx.claim_inputs(instance, status, &reserved, &Neighbours::default(), None))
}

impl Base {
    /// Returns the inputs of a claim beyond the instance and its status. `node` is the Node of the host, if it exists and the claim depends on it.
    fn claim_inputs<'a>(
        &'a self,
        instance: &WindowsInstance,
        status: &WindowsInstanceStatus,
        reserved: &'a Reserved,
        neighbours: &'a Neighbours,
        node: Option<&'a Node>,
    ) -> ClaimInputs<'a> {
        let origin = instance.spec.origin.as_ref();
        let addresses = |machine: &str| self.caches.machines.addresses(machine);
        let machine = origin.and_then(|o| o.machine.as_deref()).map(addresses).unwrap_or_default();
        ClaimInputs {
            proven: proven_addresses(origin, status, &addresses),
            machine: machine.into_iter().map(|(_, address)| address).collect(),
            reserved,
            neighbours,
            node,
            namespace: &self.process.args.namespace,
        }
    }
}

/// Lookup of claims for the certificate approver, over the hosts of all pools.
pub(crate) struct Hosts {
    cx: Arc<Base>,
    reserved: Reserved,
    neighbours: Recent,
}

impl Hosts {
    /// Creates the lookup. No host may claim the names and addresses in `reserved`.
    pub(crate) fn new(cx: Arc<Base>, reserved: Reserved) -> Self {
        Self { reserved, neighbours: Recent::default(), cx }
    }

    /// Returns the claim of a Node that an operator created and that has no instance, so that it can renew its certificates. Returns `None` for a
    /// Node that no operator created, and while WMCO runs, because WMCO approves the requests of its own nodes.
    fn of_node(&self, node: &Node, neighbours: &Neighbours) -> Option<Claim> {
        let is_left = is_of_operator(node) && self.cx.other_operator.is_gone();
        is_left.then(|| claims::of_node(node, &self.reserved, neighbours))
    }
}

impl csr::Hosts for Hosts {
    fn lookup(&self, node_name: &str) -> Option<Claim> {
        let (node, neighbours) = (self.cx.node(node_name), Neighbours::default());
        let Some(instance) = self.cx.caches.instances.get(&ObjectRef::new(node_name)) else {
            return self.of_node(node.as_deref()?, &neighbours);
        };
        let none = WindowsInstanceStatus::default();
        let status = instance.status.as_ref().unwrap_or(&none);
        let inputs = self.cx.claim_inputs(&instance, status, &self.reserved, &neighbours, node.as_deref());
        Some(claims::claim(&instance, status, &inputs))
    }

    /// Returns the claim of a host, confirmed with its Node in the API server. Returns `None` if the Node is not a Windows Node, or if the host was
    /// reached before and the Node belongs to another owner. For a name without an instance, returns the claim of its Node, if it has one.
    async fn confirm(&self, node_name: &str, kind: Option<Kind>) -> kube::Result<Option<Claim>> {
        // The neighbours are read first, because that may take long, and the facts about the host must be current.
        let neighbours = match kind {
            Some(Kind::KubeletServing) => self.neighbours.get(&self.cx).await?,
            _ => Arc::default(),
        };
        let Some(instance) = self.cx.caches.instances.get(&ObjectRef::new(node_name)) else {
            let node = Api::<Node>::all(self.cx.cluster.client.clone()).get_opt(node_name).await?;
            return Ok(node.and_then(|node| self.of_node(&node, &neighbours)));
        };
        let none = WindowsInstanceStatus::default();
        let status = instance.status.as_ref().unwrap_or(&none);
        let evidence = evidence(&instance, status, &|machine| self.cx.caches.machines.addresses(machine));
        let (node, whose) = whose::ask(&self.cx.cluster.client, &evidence).await?;
        match whose {
            NodeOwner::Others(Mismatch::NotWindows { .. }) => return Ok(None),
            // For a host that was never reached, the owner of the Node is unknown: valid requests of the host wait for a proof.
            NodeOwner::Others(_) if status.proven_address.is_some() => return Ok(None),
            _ => {}
        }
        let inputs = self.cx.claim_inputs(&instance, status, &self.reserved, &neighbours, node.as_ref());
        Ok(Some(claims::claim(&instance, status, &inputs)))
    }
}

/// Cache of the neighbours that were last gathered, or of the error, with the time.
#[derive(Default)]
struct Recent(Mutex<Option<(Instant, Gathered)>>);

type Gathered = Result<Arc<Neighbours>, Failed>;

/// Failure to list the Nodes of other operating systems.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "failed to list the Nodes of other operating systems, so requests for serving certificates wait, and the operator retries: {0}"
)]
struct Failed(String);

impl Recent {
    /// Returns the cached neighbours, or gathers them again.
    async fn get(&self, cx: &Base) -> kube::Result<Arc<Neighbours>> {
        let mut known = self.0.lock().await;
        let gathered = match &*known {
            Some((since, Ok(neighbours))) if since.elapsed() < FRESH => Ok(neighbours.clone()),
            Some((since, Err(failed))) if since.elapsed() < FAILED => Err(failed.clone()),
            _ => {
                let gathered = gather(cx).await.map_err(|error| Failed(api_message(&error)));
                *known = Some((Instant::now(), gathered.clone()));
                gathered
            }
        };
        gathered.map_err(|failed| kube::Error::Service(failed.into()))
    }
}

/// Returns the message about a page of the list that did not arrive in time.
fn late() -> String {
    format!("the API server did not answer within {} s", ANSWER.as_secs())
}

/// Gathers the names and addresses of all instances and Nodes. Lists only the Nodes of other operating systems, because the Windows Nodes are in the
/// cache.
async fn gather(cx: &Base) -> kube::Result<Arc<Neighbours>> {
    let api: Api<Node> = Api::all(cx.cluster.client.clone());
    let (mut others, mut params) = (Vec::new(), ListParams::default().labels(OTHER_NODES).limit(PAGE));
    loop {
        let page = timeout(ANSWER, api.list(&params)).await.map_err(|_| kube::Error::Service(late().into()))??;
        others.extend(page.items.into_iter().map(|mut node| {
            keep_essentials(&mut node);
            node
        }));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    let of_windows = cx.caches.nodes.state();
    let nodes = others.iter().chain(of_windows.iter().map(AsRef::as_ref));
    Ok(Arc::new(Neighbours::gather(&cx.caches.instances.state(), nodes)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{csr::Hosts as _, instance::test_bed::Bed};

    #[tokio::test]
    async fn a_node_without_an_instance_renews_while_no_other_operator_runs() {
        let mut bed = Bed::with_objects().await;
        let node = |name: &str, marked: bool, address: &str| {
            let annotations = if marked { json!({api::names::key::VERSION: "11.0.0-a"}) } else { json!({}) };
            json!({
                "metadata": {"name": name, "uid": name, "labels": {"kubernetes.io/os": "windows"}, "annotations": annotations},
                "status": {"addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}]},
            })
        };
        for (name, marked, address) in [
            ("wmco-1", true, "10.0.0.1"),
            ("of-another", false, "10.0.0.2"),
            ("wmco-2", true, "10.0.0.3"),
            ("wmco-3", true, "10.0.0.3"),
        ] {
            bed.api.objects(|o| o.put("nodes", node(name, marked, address)));
        }
        bed.sync();
        let hosts = Hosts::new(bed.cx.base.clone(), Reserved::default());
        for (name, is_known, addresses) in [
            ("wmco-1", true, &["10.0.0.1"][..]),
            ("of-another", false, &[]),
            ("wmco-2", true, &[]),
            ("gone", false, &[]),
        ] {
            assert_eq!(hosts.lookup(name).is_some(), is_known, "{name}");
            let claim = hosts.confirm(name, Some(Kind::KubeletServing)).await.unwrap();
            assert_eq!(claim.is_some(), is_known, "{name}");
            let Some(claim) = claim else { continue };
            let found: Vec<String> = claim.addresses.iter().map(ToString::to_string).collect();
            assert_eq!(
                (found, claim.dns_names),
                (addresses.iter().map(|a| (*a).to_owned()).collect(), vec![name.to_owned()])
            );
            assert!(claim.renews && claim.unclaimed && !claim.proven, "{name}");
        }
        bed.cx.other_operator.set(true);
        assert_eq!(hosts.lookup("wmco-1"), None);
        assert_eq!(hosts.confirm("wmco-1", Some(Kind::KubeletClient)).await.unwrap(), None);
    }

    /// The cache has only Windows Nodes. A control-plane node is only in the API server.
    #[tokio::test]
    async fn no_host_gets_the_certificate_of_a_node_that_is_not_its_own() {
        let mut bed = Bed::with_objects().await;
        let own = bed.host.address().to_string();
        let status = json!({"provenAddress": own, "nodeRef": {"name": "win-1", "uid": "n-1"}});
        let instance = bed.instance(&json!({}), &json!({}), &status);
        bed.api.objects(|o| o.put("windowsinstances", serde_json::to_value(instance).unwrap()));
        bed.sync();
        let hosts = Hosts::new(bed.cx.base.clone(), Reserved::default());

        let node = |uid: &str, os: &str, address: &str| {
            json!({
                "metadata": {"name": "win-1", "uid": uid, "labels": {"kubernetes.io/os": os}},
                "status": {"addresses": [{"type": "InternalIP", "address": address}]},
            })
        };
        let cases: [(&str, Value, bool); 4] = [
            ("its own", node("n-1", "windows", &own), true),
            ("one of Linux with its address", node("n-2", "linux", &own), false),
            ("a control-plane node of another address", node("n-2", "linux", "10.0.0.1"), false),
            ("one of Windows with another address", node("n-2", "windows", "10.0.0.1"), false),
        ];
        for (about, node, expected) in cases {
            bed.api.objects(|o| o.put("nodes", node));
            for kind in csr::Kind::ALL {
                let claim = hosts.confirm("win-1", Some(kind)).await.unwrap();
                assert_eq!(claim.is_some(), expected, "{about}: {kind:?}");
            }
        }
    }
}
