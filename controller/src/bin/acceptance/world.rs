//! Access to the cluster: reads and writes of the run through the API server.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use anyhow::{Context as _, bail, ensure};
use api::{
    WindowsInstance, WindowsNodePool,
    conditions::{find, is_true, kind},
    names::{self, key},
};
use controller::args::Cluster;
use k8s_openapi::{
    ByteString,
    api::{
        coordination::v1::Lease,
        core::v1::{Node, Pod, Secret},
        policy::v1::PodDisruptionBudget,
    },
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, LogParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::host::Kind;

/// Interval at which waits read the API server.
const POLL: Duration = Duration::from_millis(500);
/// Namespace of the pods and PodDisruptionBudgets.
const PODS: &str = "default";

/// Names of a run's objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Names {
    /// Suffix of the names, and label value of all objects of the run.
    pub(crate) suffix: String,
}

impl Names {
    /// Returns random names for a new run.
    pub(crate) fn new() -> Self {
        Self { suffix: format!("{:04x}", rand::random::<u16>()) }
    }

    /// Returns the name of the pool, Secret, instance and Node. It has 15 characters, the maximum of a Windows host name.
    pub(crate) fn name(&self) -> String {
        format!("acceptance-{}", self.suffix)
    }

    /// Returns the name of a pod of the run.
    pub(crate) fn pod(&self, what: &str) -> String {
        format!("{}-{what}", self.name())
    }

    /// Returns the name of the pod of the row `drain`, and of its PodDisruptionBudget.
    pub(crate) fn held(&self) -> String {
        self.pod("held")
    }
}

/// Cluster objects of the host.
#[derive(Clone, Debug)]
pub(crate) struct HostObjects {
    pub(crate) pool: WindowsNodePool,
    pub(crate) instance: Option<WindowsInstance>,
    pub(crate) node: Option<Node>,
}

impl HostObjects {
    /// Returns the version that the node follows, if pool and host are Ready and up to date, and no operation runs.
    pub(crate) fn follows(&self) -> Option<String> {
        let status = self.pool.status.as_ref()?;
        let is_so = |type_| is_true(&status.conditions, type_);
        let instance = self.instance.as_ref()?.status.as_ref()?;
        let desired = status.desired_version.clone()?;
        let is_settled = status.observed_generation == self.pool.metadata.generation
            && is_so(kind::READY)
            && is_so(kind::UPDATED)
            && instance.operation.is_none()
            && is_true(&instance.conditions, kind::READY)
            && instance.current_version.as_ref() == Some(&desired);
        is_settled.then_some(desired)
    }

    /// Returns the boot id that kubelet has reported last, which is current after a restart. Under Wine, kubelet's id does not change, so the id in
    /// the host's facts is returned.
    pub(crate) fn boot_id(&self, kind: Kind) -> Option<String> {
        let info = || self.node.as_ref()?.status.as_ref()?.node_info.as_ref().map(|info| info.boot_id.clone());
        let facts = || self.instance.as_ref()?.status.as_ref()?.facts.as_ref().map(|facts| facts.boot_id.clone());
        let id = if kind == Kind::Wine { facts() } else { info() };
        id.filter(|id| !id.is_empty())
    }

    /// Reports whether the Node has a request for a restart.
    pub(crate) fn asks_restart(&self) -> bool {
        self.node.as_ref().is_some_and(|node| node.annotations().contains_key(key::REBOOT_REQUIRED))
    }

    /// Returns the state of the node's maintenance.
    pub(crate) fn maintenance(&self) -> Option<&str> {
        self.node.as_ref()?.annotations().get(key::MAINTENANCE_STATE).map(String::as_str)
    }

    /// Reports whether the node is cordoned.
    pub(crate) fn is_cordoned(&self) -> bool {
        self.node.as_ref().and_then(|node| node.spec.as_ref()?.unschedulable) == Some(true)
    }

    /// Reports whether the host has pre-pulled this image.
    pub(crate) fn has_pulled(&self, image: &str) -> bool {
        let pulled = self.instance.as_ref().and_then(|i| i.status.as_ref()?.pre_pulled.as_ref());
        let status = self.pool.status.as_ref();
        pulled.is_some_and(|pulled| pulled.images.iter().any(|found| found == image))
            && status.is_some_and(|status| is_true(&status.conditions, kind::IMAGES_PULLED))
    }

    /// Reports whether kubelet lists this image, which it does only for the largest images of the node.
    pub(crate) fn reports_image(&self, image: &str) -> bool {
        let images = self.node.iter().filter_map(|node| node.status.as_ref()?.images.as_ref()).flatten();
        images.flat_map(|found| found.names.iter().flatten()).any(|name| name == image)
    }

    /// Returns the operator's report, for the error of a wait that has timed out.
    pub(crate) fn says(&self) -> String {
        let status = self.pool.status.as_ref();
        let ready =
            self.instance.as_ref().and_then(|i| i.status.as_ref()).and_then(|s| find(&s.conditions, kind::READY));
        let ready = ready.or_else(|| find(&status?.conditions, kind::READY));
        ready.map_or_else(
            || "the operator has not reported on the pool".into(),
            |c| format!("{}: {}", c.reason, c.message),
        )
    }
}

/// Access to the cluster of a run.
pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) names: Names,
    /// Address of the host.
    pub(crate) address: String,
    /// Timeout of each wait.
    pub(crate) limit: Duration,
    /// Cluster arguments for `kubectl`.
    pub(crate) cluster: Cluster,
}

impl World {
    fn pools(&self) -> Api<WindowsNodePool> {
        Api::all(self.client.clone())
    }

    fn instances(&self) -> Api<WindowsInstance> {
        Api::all(self.client.clone())
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), PODS)
    }

    fn budgets(&self) -> Api<PodDisruptionBudget> {
        Api::namespaced(self.client.clone(), PODS)
    }

    /// Waits until `look` finds something, and retries after an error. Fails after the timeout of the wait.
    pub(crate) async fn until<T>(
        &self,
        what: &str,
        look: impl AsyncFn() -> anyhow::Result<Result<T, String>>,
    ) -> anyhow::Result<T> {
        let begin = Instant::now();
        loop {
            let last = match look().await {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(last)) => last,
                Err(error) => error_text(&error),
            };
            if begin.elapsed() >= self.limit {
                bail!("timed out after {} s while waiting until {what}; last seen: {last}", self.limit.as_secs());
            }
            sleep(POLL).await;
        }
    }

    /// Waits until `read` finds something in the host's objects, as [`World::until`] does.
    pub(crate) async fn until_seen<T>(
        &self,
        what: &str,
        read: impl Fn(&HostObjects) -> Option<T>,
    ) -> anyhow::Result<T> {
        self.until(what, async || {
            let seen = self.see().await?;
            Ok(read(&seen).ok_or_else(|| seen.says()))
        })
        .await
    }

    /// Reads the host's objects in the cluster.
    pub(crate) async fn see(&self) -> anyhow::Result<HostObjects> {
        let name = self.names.name();
        let pool = self.pools().get(&name).await.context("cannot read the pool")?;
        Ok(HostObjects {
            pool,
            instance: self.instances().get_opt(&name).await?,
            node: self.nodes().get_opt(&name).await?,
        })
    }

    /// Checks that an operator works by waiting for a renewal of its Lease. Clocks are not compared.
    pub(crate) async fn check_operator(&self) -> anyhow::Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let read = async || leases.get_opt(names::LEASE).await.context("cannot read the Lease of the operator");
        let advice = "check the operator, or set its namespace with --namespace";
        let namespace = &self.namespace;
        let missing =
            || format!("no operator runs in the namespace {namespace}, which has no Lease {}; {advice}", names::LEASE);
        let first = read().await?.with_context(missing)?;
        let lasts = first.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(15).clamp(1, 600);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(u64::try_from(lasts)? + 5) {
            sleep(POLL).await;
            let now = read().await?.with_context(missing)?;
            let is_held = now.spec.as_ref().is_some_and(|s| s.holder_identity.as_ref().is_some_and(|h| !h.is_empty()));
            if is_held && now.metadata.resource_version != first.metadata.resource_version {
                return Ok(());
            }
        }
        bail!("no operator runs in the namespace {namespace}, whose Lease {} is not renewed; {advice}", names::LEASE)
    }

    /// Checks that the host is in no pool and is not a node.
    pub(crate) async fn check_host_is_free(&self, port: u16, addresses: &[IpAddr]) -> anyhow::Result<()> {
        let all = ListParams::default();
        let is_it = |address: &str| {
            address == self.address || address.parse().is_ok_and(|address: IpAddr| addresses.contains(&address))
        };
        for instance in self.instances().list(&all).await.context("cannot list the WindowsInstances")?.items {
            let host = &instance.spec.host;
            let pool = &instance.spec.pool_ref.name;
            ensure!(
                !(is_it(&host.address) && host.port == i32::from(port)),
                "the host is already {} of the pool {pool}; remove it from the pool, or set another host with --host",
                host.name
            );
        }
        for pool in self.pools().list(&all).await.context("cannot list the WindowsNodePools")?.items {
            let port_of =
                |host: &api::Host| host.port.or(pool.spec.ssh.as_ref().and_then(|ssh| ssh.port)).unwrap_or(22);
            let listed = pool.spec.hosts().iter().any(|host| is_it(&host.address) && port_of(host) == i32::from(port));
            ensure!(
                !listed,
                "the host is already in the pool {}; remove it from the pool, or set another host with --host",
                pool.name_any()
            );
        }
        for node in self.nodes().list(&all).await.context("cannot list the Nodes")?.items {
            let found = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
            ensure!(
                !found.into_iter().any(|a| is_it(&a.address)),
                "the host is already the node {}; set another host with --host",
                node.name_any()
            );
        }
        Ok(())
    }

    /// Returns the names of the runs for this host that have left objects, as a killed run does.
    pub(crate) async fn leftovers(&self) -> anyhow::Result<Vec<Names>> {
        let made = ListParams::default().labels(names::ACCEPTANCE);
        let mut found = self.made(&self.pools().list(&made).await?.items);
        found.extend(self.made(&self.secrets().list(&made).await?.items));
        found.extend(self.made(&self.pods().list(&made).await?.items));
        found.extend(self.made(&self.budgets().list(&made).await?.items));
        found.sort();
        found.dedup();
        Ok(found)
    }

    fn made<K: Resource>(&self, objects: &[K]) -> Vec<Names> {
        let is_of_host = |o: &&K| o.annotations().get(names::ACCEPTANCE) == Some(&self.address);
        let suffix = |o: &K| o.labels().get(names::ACCEPTANCE).map(|suffix| Names { suffix: suffix.clone() });
        objects.iter().filter(is_of_host).filter_map(suffix).collect()
    }

    /// Stores the private key for the host in a Secret.
    pub(crate) async fn store_key(&self, pem: Vec<u8>) -> anyhow::Result<()> {
        let metadata: ObjectMeta = serde_json::from_value(self.metadata(&self.names.name()))?;
        let data = BTreeMap::from([(names::DEFAULT_KEY_SECRET_KEY.to_owned(), ByteString(pem))]);
        let secret = Secret { metadata, data: Some(data), ..Secret::default() };
        self.secrets().create(&PostParams::default(), &secret).await.context("cannot create the Secret")?;
        Ok(())
    }

    /// Returns the metadata of an object that the run creates.
    pub(crate) fn metadata(&self, name: &str) -> Value {
        json!({
            "name": name,
            "labels": {names::ACCEPTANCE: self.names.suffix},
            "annotations": {names::ACCEPTANCE: self.address},
        })
    }

    /// Applies the pool. A field that the CRD lacks is an error instead of being dropped.
    pub(crate) async fn apply(&self, pool: &Value) -> anyhow::Result<()> {
        let manner = PatchParams::apply(names::ACCEPTANCE).validation_strict();
        self.pools().patch(&self.names.name(), &manner, &Patch::Apply(pool)).await.context("cannot apply the pool")?;
        Ok(())
    }

    /// Sets an annotation of the Node, or removes it.
    pub(crate) async fn annotate_node(&self, key: &str, value: Option<&str>) -> anyhow::Result<()> {
        annotate(&self.nodes(), &self.names.name(), key, value).await
    }

    /// Requests maintenance of the node, as users do, or withdraws the request.
    pub(crate) async fn ask_maintenance(&self, reason: Option<&str>) -> anyhow::Result<()> {
        annotate(&self.instances(), &self.names.name(), key::MAINTENANCE, reason).await
    }

    /// Runs a pod on the node and waits until it is Ready. The pod names its node, so that no scheduler places it elsewhere.
    pub(crate) async fn start_pod(&self, name: &str, image: &str, command: &str) -> anyhow::Result<()> {
        self.start_pod_with(name, image, command, |_| ()).await
    }

    /// Runs a pod as [`World::start_pod`] does, with a change of its spec.
    pub(crate) async fn start_pod_with(
        &self,
        name: &str,
        image: &str,
        command: &str,
        edit: impl FnOnce(&mut Value),
    ) -> anyhow::Result<()> {
        let mut pod = json!({
            "metadata": self.metadata(name),
            "spec": {
                "nodeName": self.names.name(),
                "os": {"name": "windows"},
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 5,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "acceptance", "image": image, "command": ["cmd.exe", "/c", command]}],
            },
        });
        edit(&mut pod["spec"]);
        self.pods()
            .create(&PostParams::default(), &serde_json::from_value(pod)?)
            .await
            .context("cannot create the pod")?;
        self.until(&format!("the pod {name} is Ready"), async || {
            let status = self.pods().get(name).await?.status.unwrap_or_default();
            let is_ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
            let waiting = status.container_statuses.iter().flatten().find_map(|c| c.state.as_ref()?.waiting.clone());
            let waiting =
                waiting.map(|w| format!("{}: {}", w.reason.unwrap_or_default(), w.message.unwrap_or_default()));
            Ok(if is_ready { Ok(()) } else { Err(waiting.or(status.phase).unwrap_or_default()) })
        })
        .await
    }

    /// Reports whether a pod exists and is not being deleted.
    pub(crate) async fn pod_stays(&self, name: &str) -> anyhow::Result<bool> {
        Ok(self.pods().get_opt(name).await?.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none()))
    }

    /// Waits until kubelet has evicted a pod, and deletes the pod in any case.
    pub(crate) async fn until_evicted(&self, name: &str) -> anyhow::Result<()> {
        let look = async || {
            let status = self.pods().get(name).await?.status.unwrap_or_default();
            Ok(status.reason.filter(|r| r == "Evicted").map(drop).ok_or_else(|| status.phase.unwrap_or_default()))
        };
        let evicted = self.until(&format!("the pod {name} is evicted"), look).await;
        gone(self.pods().delete(name, &DeleteParams::default().grace_period(0)).await)?;
        evicted
    }

    /// Reads the log of a pod.
    pub(crate) async fn log(&self, name: &str) -> anyhow::Result<String> {
        let manner = LogParams { limit_bytes: Some(1 << 20), ..LogParams::default() };
        Ok(self.pods().logs(name, &manner).await?)
    }

    /// Reads a file of the node's log directory, through kubelet.
    pub(crate) async fn node_log(&self, path: &str) -> anyhow::Result<String> {
        let url = format!("/api/v1/nodes/{}/proxy/logs/{path}", self.names.name());
        Ok(self.client.request_text(http::Request::get(url).body(Vec::new())?).await?)
    }

    /// Protects the pods of the run from eviction by a PodDisruptionBudget, and waits until the budget is in force.
    pub(crate) async fn hold_pod(&self) -> anyhow::Result<()> {
        let name = self.names.held();
        let budget = json!({
            "metadata": self.metadata(&name),
            // More than there are pods, because maxUnavailable does not count pods without a controller.
            "spec": {"minAvailable": 9, "selector": {"matchLabels": {names::ACCEPTANCE: self.names.suffix}}},
        });
        self.budgets().create(&PostParams::default(), &serde_json::from_value(budget)?).await?;
        self.until("the PodDisruptionBudget is in force", async || {
            let is_observed = |b: PodDisruptionBudget| b.status.is_some_and(|s| s.observed_generation.is_some());
            Ok(if is_observed(self.budgets().get(&name).await?) {
                Ok(())
            } else {
                Err("kube-controller-manager has not observed it".into())
            })
        })
        .await
    }

    /// Allows the eviction of the pods again.
    pub(crate) async fn release_pod(&self) -> anyhow::Result<()> {
        gone(self.budgets().delete(&self.names.held(), &DeleteParams::default()).await)
    }

    /// Deletes the PodDisruptionBudget and the pool of a run, waits until the operator has removed the host, and then deletes the pods and the
    /// Secret.
    pub(crate) async fn remove(&self, of: &Names) -> anyhow::Result<()> {
        let (now, name) = (DeleteParams::default(), of.name());
        let made = ListParams::default().labels(&format!("{}={}", names::ACCEPTANCE, of.suffix));
        self.budgets().delete_collection(&now, &made).await.context("cannot delete the PodDisruptionBudget")?;
        gone(self.pools().delete(&name, &now).await).context("cannot delete the pool")?;
        self.until("the host is released", async || {
            let instance = self.instances().get_opt(&name).await?;
            let is_free = instance.is_none()
                && self.nodes().get_opt(&name).await?.is_none()
                && self.pools().get_opt(&name).await?.is_none();
            let status = instance.and_then(|i| i.status).unwrap_or_default();
            let says = find(&status.conditions, kind::READY)
                .map_or_else(|| "its WindowsInstance, Node or pool still exists".into(), |c| c.message.clone());
            Ok(if is_free { Ok(()) } else { Err(says) })
        })
        .await?;
        self.pods().delete_collection(&now, &made).await.context("cannot delete the pods")?;
        gone(self.secrets().delete(&name, &now).await).context("cannot delete the Secret")
    }
}

async fn annotate<K>(api: &Api<K>, name: &str, key: &str, value: Option<&str>) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let patch = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
    let done = api.patch(name, &PatchParams::default(), &patch).await;
    done.map(drop).with_context(|| format!("cannot annotate the {} with {key}", K::kind(&())))
}

/// Returns an error with its causes. For an answer of the API server, includes only the message.
pub(crate) fn error_text(error: &anyhow::Error) -> String {
    let one = |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref() {
        Some(kube::Error::Api(status)) => status.message.clone(),
        _ => cause.to_string(),
    };
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let part = one(cause);
        // An error often repeats its source.
        if !parts.iter().any(|before| before.contains(&part)) {
            parts.push(part);
        }
        if matches!(cause.downcast_ref(), Some(kube::Error::Api(_))) {
            break;
        }
    }
    parts.join(": ")
}

/// Treats the deletion of a missing object as a success.
fn gone<T>(result: kube::Result<T>) -> anyhow::Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => Ok(other.map(drop)?),
    }
}
