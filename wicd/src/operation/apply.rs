//! `apply`: puts files in place, writes configuration, creates keys and certificate requests. Starts no service: wicd's service updates running
//! services when it sees the new desired state.

use api::Reason;
use std::collections::{BTreeMap, BTreeSet};

use api::host::{Apply, Desired, Marker, Outcome, Request, ServiceState, WICD_SERVICE, configs_digest, path};
use api::payload::{self, is_host_path};
use api::services::{Prepare, ServicesConfig};

use super::pending::{CONTAINERS, pending_reboot, require_reboot};
use super::recipient;
use super::stage::{Payloads, check};
use super::state::{blob, foreign, missing};
use super::{Failure, Report, chain};
use crate::access::{AccessList, Guard};
use crate::certificates::{self, CertificateError};
use crate::credential_plugin::{self, Owner};
use crate::files::{self, Access};
use crate::host::{Host, HostError};
use crate::kept_files;
use crate::network;
use crate::ownership::{Ownership, reserved};
use crate::secure;

/// Program that an antivirus slows down most, by checking image layers. WMCO excludes the same program.
pub(super) const CONTAINERD: &str = r"C:\k\containerd\containerd.exe";
/// State directories of services, claimed with their content if they did not exist before.
const STATE_TREES: [&str; 5] = [
    r"C:\var\lib\kubelet",
    r"C:\var\lib\cni",
    super::cleanup::CONTAINERD_STATE,
    // Created by kubelet, for the logs of pods.
    r"C:\var\log\pods",
    r"C:\var\log\containers",
];

pub(super) fn apply(host: &dyn Host, request: &Request, body: &Apply, report: &mut Report) -> Result<Outcome, Failure> {
    check(&body.files)?;
    let placed = places(body)?;
    let trusted = certificates::bundle(body.desired.trusted_ca.as_bytes()).map_err(|e| {
        Failure::new(Reason::CertificateInvalid, format!("the certificates to trust cannot be used; correct the ConfigMap trusted-ca in the operator's namespace, or template.spec.trustedCertificates of the pool: {}", chain(&e)))
    })?;
    let variables = wanted_variables(&body.desired.services);
    let mut owned = Ownership::load_or_adopt(host)?;
    preflight(host, body, &owned)?;
    let before = recipient::owner(host)?;

    credential_plugin::close_keys(host, &mut owned)?;
    quiet(host, body, report)?;
    kept_files::keep(host, body.configs.iter().map(|config| config.path.as_str()), &mut owned)?;
    claim(host, body, &placed, &mut owned)?;
    let plugin = body.desired.credential_plugin.as_ref();
    credential_plugin::claim(host, plugin, &mut owned)?;
    for (name, value) in &variables {
        owned.claim_env_var(host, name, *value)?;
    }
    let untrusted = untrusted(host, &trusted)?;
    for der in &untrusted {
        owned.claim_trust(der);
    }
    owned.save(host)?;
    secure::state(host, &body.desired, &log_directories(&body.desired))?;
    files::write_json(host, path::DESIRED, &body.desired, Access::Protected)?;
    Payloads::switch(host, &body.files)?;

    enable_containers(host, report)?;
    for file in &body.files {
        place(host, file)?;
    }
    for config in &body.configs {
        let access = if config.secret { Access::Protected } else { Access::Inherited };
        files::write(host, &config.path, config.content.as_bytes(), access)?;
    }
    set_variables(host, &variables, &body.desired.services, &mut owned)?;
    trust(host, &trusted, &mut owned)?;
    for warning in credential_plugin::unregister_others(host, plugin, &mut owned)? {
        report.warn(warning);
    }
    if let Some(plugin) = plugin {
        // All users may read the library, because Windows selects the account that loads it. The library holds no secret.
        host.set_access(&host.path(&plugin.library)?, &AccessList::of(Guard::Readable))?;
        credential_plugin::register(host, plugin, &mut owned)?;
    }
    for stale in owned.placed.difference(&placed) {
        files::remove(host, stale)?;
    }
    kept_files::restore(host, &mut owned, &placed)?;
    owned.placed = placed;
    owned.save(host)?;

    if body.files.iter().any(|f| f.destination.eq_ignore_ascii_case(CONTAINERD))
        && let Err(e) = exclude(host, CONTAINERD, &mut owned)
    {
        report.warn(format!(
            "Windows Defender may still check the files of {CONTAINERD}, so that pulls of images may be slow; exclude this process from its checks by hand: {}",
            chain(&e)
        ));
    }
    // Certificates of another cluster, or for another Node name, are useless even while they are valid.
    if request.supersedes.is_some() && before.as_ref() != Some(&recipient::meant(request)) {
        certificates::forget(host)?;
        for token in tokens(&body.desired.services) {
            files::remove(host, &token)?;
        }
    }
    make_requests(host, body, report)?;
    let marker = Marker {
        operation: request.operation.clone(),
        epoch: request.epoch,
        cluster_id: body.desired.cluster_id.clone(),
        node_name: body.desired.node_name.clone(),
        pool: body.desired.pool.clone(),
        version: body.desired.version.clone(),
        payload: payload::digest(&body.files),
        configs: configs_digest(&body.configs),
    };
    files::write_json(host, path::STATE, &marker, Access::Inherited)?;
    Ok(pending_reboot(host)?.map_or(Outcome::Done, |why| Outcome::RebootRequired { why }))
}

/// Stops wicd's service if it runs and follows another desired state. Otherwise, the service would treat a partially written state as complete or,
/// while its Node still names the previous version, return to that version. Other services continue; `start` starts wicd's service again.
fn quiet(host: &dyn Host, body: &Apply, report: &mut Report) -> Result<(), Failure> {
    let follows = files::read_json::<Desired>(host, path::DESIRED).ok().flatten();
    if follows.as_ref() == Some(&body.desired)
        || host.service(WICD_SERVICE)?.is_none_or(|s| s.state != ServiceState::Running)
    {
        return Ok(());
    }
    for dependent in host.stop_service(WICD_SERVICE)? {
        report.warn(format!("service {dependent} was stopped because it depends on {WICD_SERVICE}; start it again when this operation has ended"));
    }
    Ok(())
}

/// Paths of all files, and of kubelet's kubeconfig, which `start` writes. Refuses invalid paths of configuration files.
fn places(body: &Apply) -> Result<BTreeSet<String>, Failure> {
    if let Some(bad) = body.configs.iter().find(|c| !is_host_path(&c.path)) {
        return Err(HostError::Path { path: bad.path.clone() }.into());
    }
    let files = body.files.iter().map(|f| &f.destination);
    let placed = files.chain(body.configs.iter().map(|c| &c.path)).cloned();
    Ok(placed.chain([path::KUBELET_KUBECONFIG.to_owned()]).collect())
}

/// Excludes the files that a program opens from Windows Defender's checks, and records a new exclusion.
fn exclude(host: &dyn Host, program: &str, owned: &mut Ownership) -> Result<(), HostError> {
    if host.is_excluded_from_antivirus(program)? {
        return Ok(());
    }
    if owned.excluded.insert(program.to_owned()) {
        owned.save(host)?;
    }
    host.exclude_from_antivirus(program)
}

/// Refuses a host with services, directories or a plugin of others, and a payload with missing files, before anything is changed.
fn preflight(host: &dyn Host, body: &Apply, owned: &Ownership) -> Result<(), Failure> {
    let wanted = body.desired.services.services.iter().map(|s| s.name.as_str());
    let foreign = foreign(&host.services()?, owned, reserved(wanted));
    if !foreign.is_empty() {
        let message = format!(
            "the host has services that this operator did not install: {}; remove them, or remove the host from the pool",
            foreign.join(", ")
        );
        return Err(Failure::new(Reason::ForeignServices, message));
    }
    check_plugin(host, body, owned)?;
    secure::check_state(host, &body.desired, &log_directories(&body.desired))?;
    let missing = missing(host, &body.files)?;
    if let Some(first) = missing.first() {
        let message = format!(
            "payload files are missing on the host: {} in total, the first one with the SHA-256 {first}; the operator sends them again",
            missing.len()
        );
        return Err(Failure::new(Reason::HostFilesChanged, message));
    }
    Ok(())
}

/// Refuses a plugin that is not a payload file, or whose class another installer has registered.
fn check_plugin(host: &dyn Host, body: &Apply, owned: &Ownership) -> Result<(), Failure> {
    let Some(plugin) = &body.desired.credential_plugin else { return Ok(()) };
    let is_sent = body.files.iter().any(|f| f.destination.eq_ignore_ascii_case(&plugin.library));
    if !credential_plugin::is_class(&plugin.clsid) || !credential_plugin::is_our_library(&plugin.library) || !is_sent {
        let message = format!(
            "the class {:?} of the credential plugin is invalid, or its library {:?} is not a payload file in {}; this is a bug in the operator: \
             report it",
            plugin.clsid,
            plugin.library,
            path::CREDENTIAL_PLUGINS
        );
        return Err(Failure::new(Reason::PayloadInvalid, message));
    }
    // The operator has checked this with `facts`, but another installer may have run since.
    match credential_plugin::owner(host, &plugin.clsid, owned)? {
        Owner::None | Owner::Ours => Ok(()),
        Owner::Other(what) => Err(Failure::new(
            Reason::ForeignServices,
            format!(
                "another installer registered the credential plugin {} ({what}); uninstall that plugin, or remove template.spec.gmsa.plugin from \
                 the pool",
                plugin.clsid
            ),
        )),
    }
}

/// Records all objects that are about to be created.
fn claim(host: &dyn Host, body: &Apply, placed: &BTreeSet<String>, owned: &mut Ownership) -> Result<(), HostError> {
    owned.services.insert(WICD_SERVICE.to_string());
    owned.services.extend(body.desired.services.services.iter().map(|s| s.name.clone()));
    // kubelet's certificates are for one cluster. Certificates of an earlier kubelet are useless, so they are claimed as well.
    owned.trees.extend([path::WICD_CERTS, path::KUBELET_PKI].map(String::from));
    let trees = STATE_TREES.into_iter().map(String::from).chain(network::trees(&body.desired.services));
    let trees = trees.chain([secure::VOLUMES.to_string()]);
    // `C:\k` and `C:\k\wicd` are removed by the operator.
    let programs = secure::programs(&body.desired).filter(|d| ![path::ROOT, path::WICD].contains(d));
    let trees = trees.chain(programs.map(String::from));
    for directory in trees.chain(log_directories(&body.desired)) {
        owned.claim_tree(host, &directory)?;
    }
    let first = [path::KUBELET_FIRST_CERT, certificates::key_path(api::host::CertificateKind::Kubelet)];
    owned.files.extend(first.map(String::from));
    owned.files.extend(tokens(&body.desired.services));
    owned.placed.extend(placed.iter().cloned());
    for file in placed {
        owned.claim_parents(host, file)?;
    }
    Ok(())
}

/// Paths of the tokens that wicd requests for services.
fn tokens(services: &ServicesConfig) -> impl Iterator<Item = String> {
    services.services.iter().filter_map(|service| match &service.prepare {
        Some(Prepare::ServiceAccountToken(token)) => Some(token.path.clone()),
        Some(Prepare::OvnHybridNetwork(_)) | None => None,
    })
}

/// Puts a payload file in place. A correct file is not touched; a damaged one is repaired.
fn place(host: &dyn Host, file: &payload::File) -> Result<(), Failure> {
    if files::sha256(host, &file.destination)?.as_deref() != Some(&file.sha256) {
        let blob = blob(&file.sha256);
        if files::sha256(host, &blob)?.as_deref() != Some(&file.sha256) {
            // Once removed, the blob is reported as missing, so that the operator sends it again.
            files::remove(host, &blob)?;
            return Err(Failure::new(
                Reason::HashMismatch,
                format!("the staged copy of {} is missing or damaged; the operator sends it again", file.destination),
            ));
        }
        files::place(host, &blob, &file.destination)?;
    }
    files::remove_old(host, &file.destination)?;
    Ok(())
}

/// Enables the feature Containers, unless Windows has reported in this boot that the feature is enabled. A failure is only a warning if the host has
/// the feature, because updates lock the servicing of Windows.
fn enable_containers(host: &dyn Host, report: &mut Report) -> Result<(), HostError> {
    const WHY: &str = "the Windows feature Containers has been enabled";
    let boot_id = host.boot_id()?;
    if files::read_json(host, CONTAINERS).ok().flatten().as_ref() == Some(&boot_id) {
        return Ok(());
    }
    match host.enable_containers() {
        Ok(true) => require_reboot(host, WHY),
        Ok(false) => files::write_json(host, CONTAINERS, &boot_id, Access::Inherited).map(drop),
        Err(e) if host.has_containers() => {
            let why = "the Windows feature Containers is installed, so the operator continues, although its state cannot be read or changed";
            report.warn(format!("{why}: {}", chain(&e)));
            Ok(())
        }
        Err(e) => Err(e),
    }
}

/// Returns the desired machine-wide variables; `None` removes one.
pub fn wanted_variables(services: &ServicesConfig) -> BTreeMap<&str, Option<&str>> {
    let watched = services.watched_environment_vars.iter().map(|name| (name.as_str(), None));
    let set = services.environment_vars.iter().map(|(name, value)| (name.as_str(), Some(value.as_str())));
    watched.chain(set).collect()
}

/// Sets the desired variables, and restores the original values of those that are no longer desired. Exception: a variable stays until the host
/// leaves if every service has its own value for it. No service then sees the machine-wide value, and WMCO would restart the host to set the variable
/// again if it got the host back. Running programs do not see a change, so the host must be restarted if wicd's service is installed.
fn set_variables(
    host: &dyn Host,
    wanted: &BTreeMap<&str, Option<&str>>,
    services: &ServicesConfig,
    owned: &mut Ownership,
) -> Result<(), HostError> {
    const WHY: &str = "machine-wide environment variables have changed";
    let stays = |name: &str| wanted.contains_key(name) || services.is_own_variable(name);
    let restored = owned.env_vars.iter().filter(|(name, _)| !stays(name));
    let restored = restored.map(|(name, value)| (name.as_str(), value.as_deref()));
    let services_run = host.service(WICD_SERVICE)?.is_some();
    for (name, value) in wanted.iter().map(|(name, value)| (*name, *value)).chain(restored) {
        if host.env_var(name)?.as_deref() != value {
            if services_run {
                require_reboot(host, WHY)?;
            }
            host.set_env_var(name, value)?;
        }
    }
    owned.env_vars.retain(|name, _| stays(name));
    Ok(())
}

/// Returns the certificates that the host does not trust. Lists the store once, because a cluster may have more than a hundred.
///
/// # Errors
/// Fails when the store cannot be opened.
pub fn untrusted<'a>(host: &dyn Host, wanted: &'a [Vec<u8>]) -> Result<Vec<&'a Vec<u8>>, HostError> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let there = host.trusted()?;
    Ok(wanted.iter().filter(|der| !there.contains(*der)).collect())
}

/// Trusts these certificates, and removes others that wicd has added earlier.
fn trust(host: &dyn Host, wanted: &[Vec<u8>], owned: &mut Ownership) -> Result<(), HostError> {
    for der in untrusted(host, wanted)? {
        host.trust(der)?;
    }
    let wanted: BTreeSet<String> = wanted.iter().map(hex::encode).collect();
    for stale in owned.trusted.difference(&wanted) {
        host.untrust(&hex::decode(stale).unwrap_or_default())?;
    }
    owned.trusted.retain(|der| wanted.contains(der));
    Ok(())
}

fn make_requests(host: &dyn Host, body: &Apply, report: &mut Report) -> Result<(), Failure> {
    let now = host.now()?;
    for &kind in &body.certificates {
        if !certificates::has_good(host, kind, &body.desired.node_name, now)? {
            report.requests.insert(kind, certificates::request(host, kind, &body.desired.node_name)?);
        }
    }
    Ok(())
}

impl From<CertificateError> for Failure {
    fn from(error: CertificateError) -> Self {
        Self::new(error.reason(), chain(&error))
    }
}

/// Directories below [`path::LOGS`] that the services' command lines name, and wicd's log directory.
fn log_directories(desired: &Desired) -> BTreeSet<String> {
    let logs = format!(r"{}\", path::LOGS);
    let mut directories = BTreeSet::from([format!(r"{logs}wicd")]);
    for service in &desired.services.services {
        for (at, _) in service.path.match_indices(&logs) {
            let rest = &service.path[at + logs.len()..];
            let name = rest.split(['\\', ' ', '"']).next().unwrap_or_default();
            let directory = format!("{logs}{name}");
            if rest[name.len()..].starts_with('\\') && is_host_path(&directory) {
                directories.insert(directory);
            }
        }
    }
    directories
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
