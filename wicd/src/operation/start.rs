//! `start`: installs certificates, and installs and starts wicd's service, which starts all others.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use api::host::{
    CertificateKind, Desired, Outcome, SERVICE_DESCRIPTION_PREFIX, ServiceState, Start, WICD_SERVICE, path,
};
use api::{Reason, payload::is_sha256};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Failure, Report, chain};
use crate::certificates::{self, CertificateError};
use crate::files::{self, Access};
use crate::host::{Host, Recovery, ServiceSpec, StartType};
use crate::ownership::{Ownership, is_tagged};

/// File with the [`Settings`] of the service, beside [`path::DESIRED`].
pub const SETTINGS: &str = r"C:\k\wicd\settings.json";
/// File with the items that have matched the desired state, for [`crate::daemon::drift`].
pub const SETTLED: &str = r"C:\k\wicd\settled.json";
/// File name of the service's program, which is in a directory of its own.
const EXE: &str = "wicd.exe";
/// Name of kubelet's service.
const KUBELET: &str = "kubelet";
/// WMCO's kubeconfig for a kubelet without a certificate.
const LEGACY_BOOTSTRAP: &str = r"C:\k\bootstrap-kubeconfig";
/// Maximum wait for the service to report that it runs, which it does right after its start.
const PATIENCE: Duration = Duration::from_mins(1);

/// Settings of the service, stored in [`SETTINGS`].
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Lifetime of wicd's renewed certificates, in seconds.
    pub certificate_seconds: i32,
}

/// Specification of wicd's own service, which runs the `wicd.exe` with this hash.
pub fn service_spec(wicd_sha256: &str) -> ServiceSpec {
    ServiceSpec {
        name: WICD_SERVICE.to_string(),
        description: format!("{SERVICE_DESCRIPTION_PREFIX}{WICD_SERVICE}"),
        command: format!("{} service", api::host::exe_path(wicd_sha256)),
        dependencies: Vec::new(),
        environment: BTreeMap::new(),
        start: StartType::Auto,
        recovery: Recovery {
            delays: [10, 30, 60, 120].map(Duration::from_secs).to_vec(),
            reset: Duration::from_mins(5),
        },
    }
}

pub(super) fn start(host: &dyn Host, body: &Start, report: &mut Report) -> Result<Outcome, Failure> {
    place_exe(host, &body.wicd_sha256)?;
    let Some(desired) = files::read_json::<Desired>(host, path::DESIRED)? else {
        return Err(Failure::new(
            Reason::HostFilesChanged,
            format!("{} is missing; the operator configures the host again", path::DESIRED),
        ));
    };
    let now = host.now()?;
    let mut owned = Ownership::load_or_adopt(host)?;
    for (&kind, chain) in &body.certificates {
        let pem = certificates::with_key(host, kind, &desired.node_name, chain, now).map_err(|e| refused(kind, &e))?;
        if kind == CertificateKind::Kubelet && pem.is_some() {
            stop_ours(host, KUBELET, &owned, report)?;
        }
        certificates::install(host, kind, pem.as_deref(), now)?;
    }
    if let Some(kubeconfig) = certificates::other_kubelet_kubeconfig(host)? {
        // A kubelet whose kubeconfig named the certificate as a file stores the certificate only at a start with the new kubeconfig.
        if !files::exists(host, path::KUBELET_CURRENT_CERT)? {
            stop_ours(host, KUBELET, &owned, report)?;
        }
        files::write(host, path::KUBELET_KUBECONFIG, &kubeconfig, Access::Protected)?;
    }
    let settings = Settings { certificate_seconds: body.certificate_seconds };
    files::write_json(host, SETTINGS, &settings, Access::Inherited)?;

    let spec = service_spec(&body.wicd_sha256);
    owned.services.insert(spec.name.clone());
    owned.save(host)?;
    // wicd's service uses a new command line only after a restart, and would treat a stop of another service as a failure.
    if !body.restart.is_empty() || host.service(WICD_SERVICE)?.is_some_and(|s| s.command != spec.command) {
        stop(host, WICD_SERVICE, report)?;
    }
    for name in &body.restart {
        stop_ours(host, name, &owned, report)?;
    }
    host.put_service(&spec)?;
    host.start_service(WICD_SERVICE)?;
    wait_until_running(host, PATIENCE)?;
    remove_other_exes(host, &body.wicd_sha256)?;
    // The token in this file is valid as long as the cluster, and the operator's kubelet does not read it.
    if !desired.services.services.iter().any(|s| s.path.contains(LEGACY_BOOTSTRAP)) {
        files::remove(host, LEGACY_BOOTSTRAP)?;
    }
    Ok(Outcome::Done)
}

/// Returns the failure for a certificate that cannot be installed.
fn refused(kind: CertificateKind, error: &CertificateError) -> Failure {
    let program = match kind {
        CertificateKind::Kubelet => "kubelet",
        CertificateKind::Wicd => "wicd",
    };
    Failure::new(error.reason(), format!("the client certificate of {program} is not installed: {}", chain(error)))
}

/// Puts the service's program in place, as a copy of the one that the operator has sent. The hash of the content is verified, so that a damaged copy
/// is replaced.
fn place_exe(host: &dyn Host, sha256: &str) -> Result<(), Failure> {
    let (from, to) = (api::host::launcher_path(sha256), api::host::exe_path(sha256));
    let is_right = |content: &Vec<u8>| hex::encode(Sha256::digest(content)) == sha256;
    let sent = if is_sha256(sha256) { files::read(host, &from)?.filter(is_right) } else { None };
    let Some(content) = sent else {
        return Err(Failure::new(
            Reason::HostFilesChanged,
            format!("{from} is missing, or its content is not what the operator sent; the operator sends it again"),
        ));
    };
    files::write(host, &to, &content, Access::Inherited)?;
    files::remove_old(host, &to)?;
    remove_beside(host, sha256)
}

/// Removes other files from the directory of the service's program: Windows loads libraries from there first, and files from before the takeover of
/// `C:\k` may belong to any user.
fn remove_beside(host: &dyn Host, sha256: &str) -> Result<(), Failure> {
    let directory = format!(r"{}\{sha256}", path::WICD);
    for name in files::list(host, &directory)? {
        let is_program =
            name.eq_ignore_ascii_case(EXE) || name.strip_prefix(EXE).is_some_and(|rest| rest.starts_with(".old-"));
        if !is_program {
            files::remove_tree(host, &format!(r"{directory}\{name}"))?;
        }
    }
    Ok(())
}

/// Stops a service, and warns about stopped dependents of others, which wicd's service does not start again.
fn stop(host: &dyn Host, name: &str, report: &mut Report) -> Result<(), Failure> {
    for dependent in host.stop_service(name)? {
        if !host.service(&dependent)?.is_some_and(|s| is_tagged(&s)) {
            report.warn(format!(
                "service {dependent}, which the operator did not install, was stopped because it depends on {name}; \
                 start it again when this operation has ended"
            ));
        }
    }
    Ok(())
}

/// Stops a service if it is the operator's.
fn stop_ours(host: &dyn Host, name: &str, owned: &Ownership, report: &mut Report) -> Result<(), Failure> {
    if host.service(name)?.is_some_and(|s| owned.is_ours(&s)) { stop(host, name, report) } else { Ok(()) }
}

fn wait_until_running(host: &dyn Host, patience: Duration) -> Result<(), Failure> {
    const AGAIN: Duration = Duration::from_millis(250);
    let until = Instant::now() + patience;
    let failed = |what: &str| {
        let message = format!(r"service {WICD_SERVICE} {what}; see {}\wicd on the host", path::LOGS);
        Err(Failure::new(Reason::HostCallFailed, message))
    };
    loop {
        match host.service(WICD_SERVICE)?.map_or(ServiceState::Missing, |s| s.state) {
            ServiceState::Running => return Ok(()),
            ServiceState::Stopped | ServiceState::Missing => return failed("ended right after it was started"),
            ServiceState::Pending if Instant::now() >= until => {
                return failed(&format!("did not start within {} s", patience.as_secs()));
            }
            ServiceState::Pending => std::thread::sleep(AGAIN),
        }
    }
}

/// Removes other versions of `wicd.exe`. A version that still runs is removed the next time.
fn remove_other_exes(host: &dyn Host, wicd_sha256: &str) -> Result<(), Failure> {
    for parent in [path::LAUNCH, path::WICD] {
        for name in files::list(host, parent)? {
            if is_sha256(&name) && name != wicd_sha256 {
                let _still_running = files::remove_tree(host, &format!(r"{parent}\{name}"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "start_tests.rs"]
mod tests;
