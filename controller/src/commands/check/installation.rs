//! Command `check`: reports whether the installed operator can work. It changes nothing.

use std::{collections::BTreeSet, time::Duration};

use api::{
    Mode, Reason, SecretKeyRef, WindowsNodePool,
    conditions::{self, kind},
    names::LEASE,
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        coordination::v1::Lease,
        core::v1::Node,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::{apis::meta::v1::Condition, version::Info},
};
use kube::{Api, Client, Config, ResourceExt, api::ListParams, client::Body};
use wnp_core::render::api_servers_of_kubelet;

use super::row::{Finding, Outcome, Read, read};
use crate::{
    args::Run,
    caches::wicd_policy::{self, Guard, Observed, ObservedGuard, Shipped},
    cluster,
    cluster::{
        crds::{CrdFault, conflict, outdated},
        release::{Release, ReleaseError},
        secrets::Secrets,
    },
    commands::age::age,
    context::WINDOWS_NODES,
    csr,
    runtime::operator_namespace::OperatorNamespace,
    wmco::lock::{self, Holder},
};

/// Tolerated clock skew in seconds. The duration of the request causes smaller differences.
const SKEW: i64 = 10;
/// Maximum number of names in a message.
const SHOWN: usize = 5;

/// Shipped CRD, and the cluster's CRD with the same name.
pub(super) type Crd = (CustomResourceDefinition, Result<Option<CustomResourceDefinition>, Finding>);

/// Facts about an installation.
pub(super) struct Facts {
    home: OperatorNamespace,
    pub(super) version: Read<Info>,
    /// Time of this machine.
    here: Timestamp,
    /// Time of the API server, unless it is unknown.
    server: Option<Timestamp>,
    crds: Vec<Crd>,
    lease: Read<Option<Lease>>,
    /// Holder of WMCO's lock, if WMCO runs.
    wmco: Read<Option<Holder>>,
    /// Admission policies that restrict wicd, and all others.
    policies: [Vec<(Shipped, ObservedGuard)>; 2],
    pools: Read<Vec<WindowsNodePool>>,
    /// Windows nodes.
    nodes: Read<Vec<Node>>,
    /// Private keys that pools name, each with its fault.
    keys: Vec<(SecretKeyRef, Option<Finding>)>,
    /// URL of the API server for hosts, with the fault of its certificate. `None` before [`Facts::observe_release`].
    release: Option<Read<(String, Option<Finding>)>>,
}

/// Reads all facts except `release`.
pub(super) async fn observe(client: &Client, home: OperatorNamespace) -> Facts {
    let namespace = home.name.as_str();
    let user = operator_user(client, namespace).await;
    let pools: Api<WindowsNodePool> = Api::all(client.clone());
    let pools = read("the pools", pools.list(&ListParams::default())).await.map(|list| list.items);
    let (nodes, of_windows) = (Api::all(client.clone()), ListParams::default().labels(WINDOWS_NODES));
    let nodes = read("the nodes", nodes.list(&of_windows)).await.map(|list| list.items);
    Facts {
        version: read_version(client).await,
        here: Timestamp::now(),
        server: server_time(client).await,
        crds: read_crds(client).await,
        lease: read("the Lease", Api::namespaced(client.clone(), namespace).get_opt(LEASE)).await,
        wmco: read_wmco(client, namespace).await,
        policies: [
            read_policies(client, wicd_policy::shipped(namespace)).await,
            read_policies(client, wicd_policy::others(namespace, &user)).await,
        ],
        keys: read_keys(client, namespace, pools.as_deref().unwrap_or_default()).await,
        pools,
        nodes,
        release: None,
        home,
    }
}

impl Facts {
    /// Records the release, and checks the certificate of the API server at its URL for hosts.
    pub(super) async fn observe_release(&mut self, release: Result<&Release, &ReleaseError>, run: &Run) {
        self.release = Some(match release {
            Ok(release) => {
                let url = release.cluster.api_server.clone();
                let fault = Box::pin(certificate_fault(&url, &release.cluster.api_ca)).await;
                Ok((url, fault))
            }
            Err(error) => Err(Finding::of_release(error, &run.payload)),
        });
    }
}

pub(super) async fn read_version(client: &Client) -> Read<Info> {
    read("the version of the API server", client.apiserver_version()).await
}

pub(super) async fn read_crds(client: &Client) -> Vec<Crd> {
    let all: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut crds = Vec::new();
    for shipped in api::crds() {
        let name = shipped.name_any();
        crds.push((shipped, read(&format!("the CustomResourceDefinition {name}"), all.get_opt(&name)).await));
    }
    crds
}

pub(super) async fn read_wmco(client: &Client, namespace: &str) -> Read<Option<Holder>> {
    read("the lock of WMCO", lock::holder(client, namespace)).await
}

async fn read_policies(client: &Client, shipped: Vec<Shipped>) -> Vec<(Shipped, ObservedGuard)> {
    let mut all = Vec::new();
    for guard in shipped {
        let policy = find_by_name::<ValidatingAdmissionPolicy>(client, &guard.name).await;
        let binding = find_by_name::<ValidatingAdmissionPolicyBinding>(client, &guard.name).await;
        let seen = Guard { name: guard.name.clone(), policy, binding };
        all.push((guard, seen));
    }
    all
}

async fn find_by_name<K>(client: &Client, name: &str) -> Observed<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    // The operator has the rights to list and watch policies with these names, but not to get them.
    let by_name = ListParams::default().fields(&format!("metadata.name={name}"));
    match Api::<K>::all(client.clone()).list(&by_name).await.map(|list| list.items.into_iter().next()) {
        Ok(Some(found)) => Observed::There(Box::new(found)),
        Ok(None) => Observed::Missing,
        Err(error) => Observed::Unreadable(crate::runtime::errors::api_message(&error)),
    }
}

/// Returns the operator's user, which policies name: the ServiceAccount of this process if it belongs to the namespace, otherwise the default one.
async fn operator_user(client: &Client, namespace: &str) -> String {
    let me = csr::operator_user(client).await.ok();
    let is_account = |user: &String| user.starts_with(&format!("system:serviceaccount:{namespace}:"));
    me.filter(is_account).unwrap_or_else(|| wicd_policy::default_user(namespace))
}

/// Reads the private keys of all pools; without pools, the default key, which the first pool will need.
async fn read_keys(
    client: &Client,
    namespace: &str,
    pools: &[WindowsNodePool],
) -> Vec<(SecretKeyRef, Option<Finding>)> {
    let mut references: Vec<SecretKeyRef> = Vec::new();
    let of_pools = pools.iter().flat_map(|pool| pool.spec.ssh.clone().unwrap_or_default().private_keys());
    let default = pools.is_empty().then(|| api::Ssh::default().private_keys());
    for reference in of_pools.chain(default.into_iter().flatten()) {
        if !references.contains(&reference) {
            references.push(reference);
        }
    }
    let secrets = Secrets::new(client.clone(), namespace);
    let mut keys = Vec::new();
    for reference in references {
        let fault = secrets.key(&reference).await.err().map(|error| Finding::failed(error.reason(), error));
        keys.push((reference, fault));
    }
    keys
}

pub(super) fn version(found: &Read<Info>) -> Outcome {
    Outcome::judged(found, |Info { major, minor, .. }| {
        let finding = match cluster::lacks_policies(major, minor) {
            Some(message) => Some(Finding::failed(cluster::TOO_OLD, message)),
            None => cluster::version_warning(major, minor).map(|(reason, message)| Finding::warning(reason, message)),
        };
        Outcome::of(finding, "the version of the API server is supported")
    })
}

pub(super) fn clock(facts: &Facts) -> Outcome {
    let finding = match facts.server.map(|server| facts.here.duration_since(server).as_secs().abs()) {
        None => {
            let message = "the API server did not answer with its time, so its clock was not checked";
            Some(Finding::warning(Reason::ApiError, message).remedy("run the command again"))
        }
        Some(skew) => (skew > SKEW).then(|| {
            let message = format!("the clocks of this machine and of the API server differ by {skew} s");
            Finding::failed(Reason::ClockSkew, message).remedy("correct the time service of this machine, or of the API server; certificates and the Lease depend on the time")
        }),
    };
    Outcome::of(finding, "the clock of this machine agrees with that of the API server")
}

pub(super) fn crds(facts: &Facts) -> Outcome {
    let fault = |shipped: &CustomResourceDefinition, crd: Option<&CustomResourceDefinition>| match crd {
        None => Some(CrdFault::Missing(shipped.name_any())),
        Some(crd) => conflict(shipped, crd).or_else(|| outdated(shipped, crd)),
    };
    Outcome::of(of_crds(&facts.crds, fault), "both CRDs match this release and are served")
}

/// Returns the findings about CRDs. `fault` compares the cluster's CRD with the shipped one.
pub(super) fn of_crds(
    crds: &[Crd],
    fault: impl Fn(&CustomResourceDefinition, Option<&CustomResourceDefinition>) -> Option<CrdFault>,
) -> Vec<Finding> {
    let finding = |(shipped, found): &Crd| match found {
        Err(finding) => Some(finding.clone()),
        Ok(crd) => {
            fault(shipped, crd.as_ref()).map(|fault| Finding::failed(fault.reason(), &fault).remedy(fault.remedy()))
        }
    };
    crds.iter().filter_map(finding).collect()
}

pub(super) fn leads(facts: &Facts) -> Outcome {
    // The operator's clock sets the time in the Lease. The API server's clock matches it better than that of a laptop.
    let now = facts.server.unwrap_or(facts.here);
    Outcome::judged(&facts.lease, |lease| match leader(lease.as_ref(), now) {
        Ok(holder) => Outcome::of([], format!("{holder} holds the Lease")),
        Err(problem) => {
            let message = format!("no operator leads: the Lease {}/{LEASE} {problem}", facts.home.name);
            Outcome::of([Finding::failed(Reason::NoLeader, message).remedy(facts.home.remedy())], "")
        }
    })
}

pub(super) fn other_operator(facts: &Facts) -> Outcome {
    let works = |holder: &Holder| Finding::failed(lock::REASON, holder.message());
    Outcome::judged(&facts.wmco, |holder| {
        Outcome::of(holder.as_ref().map(works), "no Pod of the Windows Machine Config Operator holds its lock")
    })
}

pub(super) fn policies(facts: &Facts) -> Outcome {
    let [of_wicd, others] = facts.policies.each_ref().map(|policies| {
        policies.iter().filter_map(|(shipped, seen)| wicd_policy::fault_of(shipped, std::slice::from_ref(seen)))
    });
    let missing = of_wicd.map(|fault| Finding::failed(Reason::PolicyMissing, fault));
    let findings = missing.chain(others.map(|fault| Finding::warning(Reason::PoliciesMissing, fault)));
    let count: usize = facts.policies.iter().map(Vec::len).sum();
    let findings = findings.map(|finding| finding.remedy(wicd_policy::REMEDY));
    Outcome::of(findings, format!("{count} admission policies are in force as they ship"))
}

pub(super) fn keys(facts: &Facts) -> Outcome {
    let names: BTreeSet<&str> = facts.keys.iter().map(|(reference, _)| reference.name.as_str()).collect();
    let names = names.into_iter().collect::<Vec<_>>().join(", ");
    let faults = facts.keys.iter().filter_map(|(_, fault)| fault.clone());
    Outcome::judged(&facts.pools, |_| {
        Outcome::of(faults, format!("the private keys can be read from the Secrets {names}"))
    })
}

pub(super) fn pools(facts: &Facts) -> Outcome {
    Outcome::judged(&facts.pools, |pools| {
        let names: Vec<String> = pools
            .iter()
            .filter(|pool| condition(pool, kind::READY).is_none_or(|ready| ready.status != "True"))
            .map(ResourceExt::name_any)
            .collect();
        let count = names.len();
        let finding = first_names(names).map(|names| {
            Finding::warning(Reason::PoolsNotReady, format!("{count} of {} pools are not Ready: {names}", pools.len()))
                .remedy("kubectl windows-node-pools status shows the hosts, the worst first")
        });
        let note = match pools.len() {
            0 => "no pool exists".to_owned(),
            1 => "the only pool is Ready".to_owned(),
            count => format!("all {count} pools are Ready"),
        };
        Outcome::of(finding, note)
    })
}

/// Warns about pools and nodes for which an upgrade of the cluster must wait. A pool in mode Plan follows no version.
pub(super) fn upgrade(facts: &Facts) -> Outcome {
    let (pools, nodes, info) = match (&facts.pools, &facts.nodes, &facts.version) {
        (Ok(pools), Ok(nodes), Ok(info)) => (pools, nodes, info),
        (pools, nodes, version) => {
            let unreadable = [pools.as_ref().err(), nodes.as_ref().err(), version.as_ref().err()];
            return Outcome::of(unreadable.into_iter().flatten().cloned(), "");
        }
    };
    let outdated = pools.iter().filter(|pool| pool.spec.mode != Some(Mode::Plan)).filter_map(|pool| {
        let updated = condition(pool, kind::UPDATED).filter(|updated| updated.status != "True");
        updated.map(|updated| format!("{} ({})", pool.name_any(), updated.reason))
    });
    let outdated = first_names(outdated.collect()).map(|names| {
        Finding::warning(
            Reason::Outdated,
            format!("pools with nodes that do not have the version of their pool yet: {names}"),
        )
        .remedy("kubectl windows-node-pools status shows what each waits for")
    });
    let server = minor(&info.minor).unwrap_or_default();
    let behind = nodes.iter().filter_map(|node| {
        let version = &node.status.as_ref()?.node_info.as_ref()?.kubelet_version;
        let kubelet = minor(version.strip_prefix("v1.")?)?;
        (kubelet < server).then(|| (kubelet, format!("{} ({version})", node.name_any())))
    });
    let (minors, names): (Vec<u32>, Vec<String>) = behind.unzip();
    let behind = first_names(names).map(|names| {
        let last = *api_servers_of_kubelet(minors.into_iter().min().unwrap_or_default()).end();
        let message = format!("nodes older than the API server, which is of version 1.{server}: {names}");
        Finding::warning(Reason::KubeletVersionSkew, message).remedy(format!(
            "during an upgrade over two minor versions, do nothing: the API server may go up to 1.{last}. Otherwise, end the pause of their pools, \
             or give the operator a payload of 1.{server}"
        ))
    });
    Outcome::of(
        outdated.into_iter().chain(behind),
        "pools follow their versions, and nodes are as new as the API server",
    )
}

/// Returns the number of a minor version such as `36`, `36.3` or, on some clusters, `36+`.
fn minor(version: &str) -> Option<u32> {
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Returns the first names, with `…` if there are more. `None` without names.
fn first_names(names: Vec<String>) -> Option<String> {
    let more = if names.len() > SHOWN { ", …" } else { "" };
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    (!names.is_empty()).then(|| shown + more)
}

fn condition<'a>(pool: &'a WindowsNodePool, type_: &str) -> Option<&'a Condition> {
    conditions::find(&pool.status.as_ref()?.conditions, type_)
}

pub(super) fn payload(facts: &Facts) -> Outcome {
    let Some(release) = &facts.release else { return Outcome::default() };
    let finding = release.as_ref().err().cloned();
    Outcome::of(finding, "hosts can be given the payload, with the facts of this cluster")
}

pub(super) fn certificate(facts: &Facts) -> Outcome {
    let Some(Ok((url, fault))) = &facts.release else { return Outcome::default() };
    Outcome::of(fault.clone(), format!("hosts trust the certificate of {url}"))
}

/// Returns the fault of the certificate at the URL for hosts. A refusal of the unknown client also proves that the certificate is valid.
async fn certificate_fault(url: &str, ca: &str) -> Option<Finding> {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};
    let problem = |problem: String| {
        Finding::failed(Reason::CertificateInvalid, format!("hosts cannot verify the certificate of {url}: {problem}")).remedy(
            "name with --api-server a URL whose host is in the certificate; if its authority is not trusted, correct the ConfigMap kube-root-ca.crt; if it has \
             expired, renew it",
        )
    };
    let uri = match url.parse() {
        Ok(uri) => uri,
        Err(error) => return Some(problem(format!("it is not a URL: {error}"))),
    };
    let mut config = Config::new(uri);
    config.root_cert =
        Some(CertificateDer::pem_slice_iter(ca.as_bytes()).flatten().map(|cert| cert.as_ref().to_vec()).collect());
    config.connect_timeout = Some(Duration::from_secs(5));
    config.read_timeout = Some(Duration::from_secs(5));
    let client = match Client::try_from(config) {
        Ok(client) => client,
        Err(error) => return Some(problem(crate::runtime::errors::api_message(&error))),
    };
    match client.apiserver_version().await {
        Ok(_) | Err(kube::Error::Api(_)) => None,
        Err(error) => Some(of_tls(&error).map_or_else(
            || {
                let message = format!("{url} does not answer this machine: {}", root_cause(&error));
                Finding::warning(Reason::ApiServerUnreachable, message)
                    .remedy("run the command in the operator's Pod, and check that hosts reach this URL")
            },
            |error| problem(error.to_string()),
        )),
    }
}

/// Returns the TLS error among the causes of an error.
fn of_tls<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return Some(error);
    }
    // `source` of an I/O error skips the error that it wraps.
    if let Some(inner) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
        return of_tls(inner);
    }
    of_tls(error.source()?)
}

/// Returns the innermost cause of an error. The outer ones only name layers of the client.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.last().map(ToString::to_string).unwrap_or_default()
}

/// Returns the holder of the Lease, or the reason why no process leads.
pub(crate) fn leader(lease: Option<&Lease>, now: Timestamp) -> Result<String, String> {
    let Some(lease) = lease else { return Err("does not exist".into()) };
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty()).ok_or("is held by no process")?;
    let renewed = spec.renew_time.map(|time| time.0).ok_or("was never renewed")?;
    let duration = i64::from(spec.lease_duration_seconds.unwrap_or(0));
    if now.duration_since(renewed).as_secs() > duration {
        return Err(format!(
            "has expired: {holder} renewed it {} ago, and it is valid for {duration}s",
            age(renewed, now)
        ));
    }
    Ok(holder)
}

/// Returns the time of the API server from the `Date` header of an answer.
pub(crate) async fn server_time(client: &Client) -> Option<Timestamp> {
    let request = http::Request::get("/version").body(Body::empty()).ok()?;
    let answer = client.send(request).await.ok()?;
    let text = answer.headers().get(http::header::DATE)?.to_str().ok()?;
    jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

#[cfg(test)]
#[path = "installation_tests.rs"]
mod tests;
