//! The command `check`: whether the operator that is installed can work. Changes nothing.

use std::{collections::BTreeSet, time::Duration};

use api::{SecretKeyRef, WindowsNodePool, conditions::kind, names::LEASE};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        coordination::v1::Lease,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, Client, Config, ResourceExt, api::ListParams, client::Body};

use super::{fault::Fault, row::Row};
use crate::{
    args::Run,
    cluster,
    context::Cluster,
    crds::{CrdFault, conflict, outdated},
    csr,
    operator_namespace::OperatorNamespace,
    release::{Release, ReleaseError},
    secrets::Secrets,
    wicd_policy::{self, Guard, Observed, Seen, Shipped},
    wmco::lock,
};

/// Clocks that differ by less are those of a request that took its time.
const SKEW: i64 = 10;
/// How many names a message has.
const SHOWN: usize = 5;

/// All results.
pub(super) async fn rows(cluster: Cluster, run: &Run, home: OperatorNamespace) -> Vec<Row> {
    let release = Box::pin(cluster.release(run)).await;
    let mut rows = Check { client: cluster.client, run: run.clone(), home }.rows().await;
    rows.extend(of_release(release.as_ref(), run).await);
    rows
}

/// What hosts get, and from where.
async fn of_release(release: Result<&Release, &ReleaseError>, run: &Run) -> Vec<Row> {
    match release {
        Ok(release) => {
            let url = &release.cluster.api_server;
            let found = Box::pin(certificate(url, &release.cluster.api_ca)).await;
            let note = format!("the certificate of {url} is one that hosts trust");
            vec![
                Row::passed("payload", "hosts can be given the payload, with the facts of this cluster"),
                Row::of("certificate", found.as_slice(), &note),
            ]
        }
        Err(error) => vec![Row::of("payload", &[Fault::of_release(error, &run.payload)], "")],
    }
}

/// Whether the URL that hosts use has a certificate that they trust. That it refuses a stranger is an answer, too.
async fn certificate(url: &str, ca: &str) -> Option<Fault> {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};
    let problem = |problem: String| Fault::Certificate { url: url.to_owned(), problem };
    let uri = match url.parse() {
        Ok(uri) => uri,
        Err(error) => return Some(problem(format!("it is no URL: {error}"))),
    };
    let mut config = Config::new(uri);
    config.root_cert =
        Some(CertificateDer::pem_slice_iter(ca.as_bytes()).flatten().map(|cert| cert.as_ref().to_vec()).collect());
    config.connect_timeout = Some(Duration::from_secs(5));
    config.read_timeout = Some(Duration::from_secs(5));
    let client = match Client::try_from(config) {
        Ok(client) => client,
        Err(error) => return Some(problem(crate::errors::said(&error))),
    };
    match client.apiserver_version().await {
        Ok(_) | Err(kube::Error::Api(_)) => None,
        Err(error) => Some(match of_tls(&error) {
            Some(error) => problem(error.to_string()),
            None => Fault::NoAnswer { url: url.to_owned(), problem: root_cause(&error) },
        }),
    }
}

/// The fault of TLS that is the cause of an error.
fn of_tls<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return Some(error);
    }
    // What an I/O error wraps is not its source, but itself.
    if let Some(inner) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
        return of_tls(inner);
    }
    of_tls(error.source()?)
}

/// The last cause of an error: that of a client begins with its own layers.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.last().map(ToString::to_string).unwrap_or_default()
}

/// One run of the command, without what is read of hosts' files.
pub(super) struct Check {
    pub(super) client: Client,
    pub(super) run: Run,
    pub(super) home: OperatorNamespace,
}

impl Check {
    pub(super) async fn rows(&self) -> Vec<Row> {
        let here = Timestamp::now();
        let server = server_time(&self.client).await;
        // What the operator has written has the time of its own clock, which is compared with the server's, not with that of a laptop.
        let now = server.unwrap_or(here);
        vec![
            version(&self.client).await,
            clock(server, here),
            self.crds().await,
            self.leader(now).await,
            other_operator(&self.client, &self.run.namespace).await,
            self.policies().await,
            self.keys().await,
            self.pools().await,
        ]
    }

    async fn crds(&self) -> Row {
        let mut found = Vec::new();
        for shipped in api::crds() {
            let name = shipped.name_any();
            match Api::<CustomResourceDefinition>::all(self.client.clone()).get_opt(&name).await {
                Ok(None) => found.push(CrdFault::Missing(name).into()),
                Ok(Some(crd)) => {
                    found.extend(conflict(&shipped, &crd).or_else(|| outdated(&shipped, &crd)).map(Fault::Crd));
                }
                Err(error) => found.push(Fault::not_readable(&format!("the CustomResourceDefinition {name}"), &error)),
            }
        }
        Row::of("crds", &found, "they are served as this release has them")
    }

    async fn leader(&self, now: Timestamp) -> Row {
        let namespace = &self.run.namespace;
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
        let found = match leases.get_opt(LEASE).await {
            Ok(lease) => leader(lease.as_ref(), now),
            Err(error) => return Row::of("leader", &[Fault::not_readable("the Lease", &error)], ""),
        };
        match found {
            Ok(holder) => Row::passed("leader", format!("{holder} holds the Lease")),
            Err(problem) => {
                let fault = Fault::NoLeader { namespace: namespace.clone(), problem, remedy: self.home.remedy() };
                Row::of("leader", &[fault], "")
            }
        }
    }

    async fn policies(&self) -> Row {
        let namespace = &self.run.namespace;
        let user = self.operator().await;
        let (shipped, others) = (wicd_policy::shipped(namespace), wicd_policy::others(namespace, &user));
        let mut faults = Vec::new();
        let count = shipped.len() + others.len();
        for (guards, fault) in [
            (shipped, Fault::PolicyMissing as fn(String) -> Fault),
            (others, Fault::PoliciesMissing as fn(String) -> Fault),
        ] {
            for guard in guards {
                let seen = self.seen(&guard).await;
                faults.extend(wicd_policy::fault_of(&guard, &[seen]).map(|f| fault(f.to_string())));
            }
        }
        Row::of("policies", &faults, &format!("{count} are in force as they ship"))
    }

    /// The user of the operator, which policies name: a command that runs with an account of its namespace has its account.
    async fn operator(&self) -> String {
        let namespace = &self.run.namespace;
        let me = csr::operator_user(&self.client).await.ok();
        let is_account = |user: &String| user.starts_with(&format!("system:serviceaccount:{namespace}:"));
        me.filter(is_account).unwrap_or_else(|| wicd_policy::default_user(namespace))
    }

    async fn seen(&self, guard: &Shipped) -> Seen {
        let policy = self.one::<ValidatingAdmissionPolicy>(&guard.name).await;
        let binding = self.one::<ValidatingAdmissionPolicyBinding>(&guard.name).await;
        Guard { name: guard.name.clone(), policy, binding }
    }

    async fn one<K>(&self, name: &str) -> Observed<K>
    where
        K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        // The operator may list and watch policies of these names, and not get them.
        let by_name = ListParams::default().fields(&format!("metadata.name={name}"));
        match Api::<K>::all(self.client.clone()).list(&by_name).await.map(|list| list.items.into_iter().next()) {
            Ok(Some(found)) => Observed::There(Box::new(found)),
            Ok(None) => Observed::Missing,
            Err(error) => Observed::Unreadable(crate::errors::said(&error)),
        }
    }

    /// The private keys of all pools. Without a pool the default one, which the next pool needs.
    async fn keys(&self) -> Row {
        let pools = match self.all_pools().await {
            Ok(pools) => pools,
            Err(error) => return Row::of("keys", &[Fault::not_readable("the pools", &error)], ""),
        };
        let mut references: Vec<SecretKeyRef> = Vec::new();
        let of_pools = pools.iter().flat_map(|pool| pool.spec.ssh.clone().unwrap_or_default().private_keys());
        let default = pools.is_empty().then(|| api::Ssh::default().private_keys());
        for reference in of_pools.chain(default.into_iter().flatten()) {
            if !references.contains(&reference) {
                references.push(reference);
            }
        }
        let secrets = Secrets::new(self.client.clone(), &self.run.namespace);
        let mut found = Vec::new();
        for reference in &references {
            found.extend(secrets.key(reference).await.err().map(|error| Fault::of_secret(&error)));
        }
        let names: BTreeSet<&str> = references.iter().map(|r| r.name.as_str()).collect();
        let names: Vec<&str> = names.into_iter().collect();
        Row::of("keys", &found, &format!("private keys can be read from {}", names.join(", ")))
    }

    async fn pools(&self) -> Row {
        match self.all_pools().await {
            Ok(pools) => {
                let note = match pools.len() {
                    0 => "there is none".to_owned(),
                    count => format!("all {count} are Ready"),
                };
                Row::of("pools", of_pools(&pools).as_slice(), &note)
            }
            Err(error) => Row::of("pools", &[Fault::not_readable("the pools", &error)], ""),
        }
    }

    async fn all_pools(&self) -> kube::Result<Vec<WindowsNodePool>> {
        Ok(Api::<WindowsNodePool>::all(self.client.clone()).list(&ListParams::default()).await?.items)
    }
}

/// Reports whether the API server is of a version that is supported.
pub(super) async fn version(client: &Client) -> Row {
    let found = match client.apiserver_version().await {
        Ok(v) => match cluster::lacks_policies(&v.major, &v.minor) {
            Some(message) => Some(Fault::VersionRefused(message)),
            None => {
                cluster::version_warning(&v.major, &v.minor).map(|(reason, message)| Fault::Version { reason, message })
            }
        },
        Err(error) => Some(Fault::not_readable("the version of the API server", &error)),
    };
    Row::of("version", found.as_slice(), "the API server is of a version that is supported")
}

/// Whether WMCO works here.
pub(super) async fn other_operator(client: &Client, namespace: &str) -> Row {
    let found = match lock::holder(client, namespace).await {
        Ok(holder) => holder.map(|holder| Fault::AnotherOperator(holder.message())),
        Err(error) => Some(Fault::not_readable("the lock of WMCO", &error)),
    };
    Row::of("other-operator", found.as_slice(), "none works on these nodes")
}

/// Who leads, or why no process does.
pub(crate) fn leader(lease: Option<&Lease>, now: Timestamp) -> Result<String, String> {
    let Some(lease) = lease else { return Err("does not exist".into()) };
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty()).ok_or("is held by no process")?;
    let renewed = spec.renew_time.map(|time| time.0).ok_or("was never renewed")?;
    let age = now.duration_since(renewed).as_secs();
    let duration = i64::from(spec.lease_duration_seconds.unwrap_or(0));
    if age > duration {
        return Err(format!("was renewed by {holder} {age} s ago, and lasts {duration} s"));
    }
    Ok(holder)
}

fn of_pools(pools: &[WindowsNodePool]) -> Option<Fault> {
    let is_ready = |pool: &&WindowsNodePool| {
        let conditions = pool.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
        conditions.iter().any(|c| c.type_ == kind::READY && c.status == "True")
    };
    let names: Vec<String> = pools.iter().filter(|pool| !is_ready(pool)).map(ResourceExt::name_any).collect();
    let shown: Vec<&str> = names.iter().take(SHOWN).map(String::as_str).collect();
    let more = if names.len() > SHOWN { ", …" } else { "" };
    (!names.is_empty())
        .then(|| Fault::Pools(format!("{} of {} are not Ready: {}{more}", names.len(), pools.len(), shown.join(", "))))
}

/// The time of the API server, from the head of an answer.
pub(crate) async fn server_time(client: &Client) -> Option<Timestamp> {
    let request = http::Request::get("/version").body(Body::empty()).ok()?;
    let answer = client.send(request).await.ok()?;
    let text = answer.headers().get(http::header::DATE)?.to_str().ok()?;
    jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

fn clock(server: Option<Timestamp>, here: Timestamp) -> Row {
    let Some(server) = server else {
        let what = "the time of the API server".to_owned();
        return Row::of("clock", &[Fault::NotReadable { what, error: "its answer has no date".into() }], "");
    };
    let skew = here.duration_since(server).as_secs().abs();
    let found = (skew > SKEW).then_some(Fault::Clock(skew));
    Row::of("clock", found.as_slice(), "it agrees with that of the API server")
}

#[cfg(test)]
#[path = "installation_tests.rs"]
mod tests;
