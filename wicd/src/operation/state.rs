//! Observation of a host's state, without changes.

use std::collections::BTreeMap;

use api::host::{CertificateKind, HostState, Marker, ServiceState, WICD_SERVICE, path};
use api::payload;

use super::pending::pending_reboot;
use crate::certificates;
use crate::files;
use crate::host::{Host, HostError, ServiceInfo, StartType};
use crate::ownership::{Ownership, is_tagged, reserved};

/// Returns the state of the host, with the missing blobs of `files`.
///
/// # Errors
/// Fails when the facts, the services, a certificate or a blob of the host cannot be read. An unreadable ownership record counts as none.
pub fn observe(host: &dyn Host, files: &[payload::File]) -> Result<HostState, HostError> {
    let owned = Ownership::load(host).ok().flatten().unwrap_or_default();
    let services = host.services()?;
    let ours: BTreeMap<String, ServiceState> =
        services.iter().filter(|s| owned.is_ours(s)).map(|s| (s.name.clone(), s.state)).collect();
    let wicd = services.iter().find(|s| s.name == WICD_SERVICE);
    let mut certificates = BTreeMap::new();
    for kind in [CertificateKind::Kubelet, CertificateKind::Wicd] {
        certificates.extend(certificates::not_after(host, kind)?.map(|end| (kind, end)));
    }
    Ok(HostState {
        machine: host.machine()?,
        marker: marker(host),
        missing: missing(host, files)?,
        wicd: wicd.map_or(ServiceState::Missing, |s| s.state),
        wicd_sha256: wicd.and_then(|s| sha256_of_command(&s.command)),
        services: ours.into_iter().filter(|(name, _)| name != WICD_SERVICE).collect(),
        certificates,
        reboot_required: pending_reboot(host)?,
        foreign_services: foreign(&services, &owned, reserved(of_programs(files))),
        container_runtimes: container_runtimes(&services),
        ..HostState::default()
    })
}

/// Marker of the version that the host follows. An unreadable one counts as none.
pub fn marker(host: &dyn Host) -> Option<Marker> {
    files::read_json(host, path::STATE).ok().flatten()
}

/// Path of the blob with the content of a payload file.
pub fn blob(sha256: &str) -> String {
    format!(r"{}\{sha256}", path::BLOBS)
}

/// SHA-256 of each blob that is missing or has the wrong size, without duplicates.
pub(super) fn missing(host: &dyn Host, files: &[payload::File]) -> Result<Vec<String>, HostError> {
    let mut missing = Vec::new();
    for file in files.iter().filter(|f| payload::is_sha256(&f.sha256)) {
        if !missing.contains(&file.sha256) && files::size(host, &blob(&file.sha256))? != Some(file.size) {
            missing.push(file.sha256.clone());
        }
    }
    Ok(missing)
}

/// Services whose programs are among the payload files.
fn of_programs(files: &[payload::File]) -> impl Iterator<Item = &str> {
    let programs = files.iter().filter(|file| file.destination.to_ascii_lowercase().ends_with(".exe"));
    programs.flat_map(|file| file.services.iter().map(String::as_str))
}

/// Services with these names that are not the operator's.
pub(super) fn foreign<'a>(
    services: &[ServiceInfo],
    owned: &Ownership,
    names: impl IntoIterator<Item = &'a str>,
) -> Vec<String> {
    let mut foreign: Vec<String> = names
        .into_iter()
        .filter_map(|name| services.iter().find(|s| s.name.eq_ignore_ascii_case(name)))
        .filter(|s| !is_tagged(s) && !owned.is_ours(s))
        .map(|s| s.name.clone())
        .collect();
    foreign.sort();
    foreign.dedup();
    foreign
}

/// Services of other container runtimes and node agents: Docker Engine and Mirantis Container Runtime, Docker Desktop, RKE2, Rancher, k0s.
const CONTAINER_RUNTIMES: [&str; 5] = ["docker", "com.docker.service", "rke2", "rancher-wins", "k0sworker"];

/// Services of [`CONTAINER_RUNTIMES`] that exist and are not disabled.
fn container_runtimes(services: &[ServiceInfo]) -> Vec<String> {
    let is_one = |name: &str| CONTAINER_RUNTIMES.iter().any(|known| known.eq_ignore_ascii_case(name));
    let found = services.iter().filter(|s| is_one(&s.name) && s.start != StartType::Disabled);
    found.map(|s| s.name.clone()).collect()
}

/// SHA-256 of the `wicd.exe` in a command line, from its path.
fn sha256_of_command(command: &str) -> Option<String> {
    let rest = command.trim_start_matches('"').strip_prefix(path::WICD)?.strip_prefix('\\')?;
    let sha256 = rest.split('\\').next()?;
    payload::is_sha256(sha256).then(|| sha256.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_wicd_is_read_from_its_command_line() {
        let sha = "a".repeat(64);
        for (command, expected) in [
            (format!("{} service", api::host::exe_path(&sha)), Some(sha.clone())),
            (format!("\"{}\" service", api::host::exe_path(&sha)), Some(sha.clone())),
            (r"C:\k\windows-instance-config-daemon.exe controller".to_string(), None),
            (r"C:\k\wicd\short\wicd.exe".to_string(), None),
            (String::new(), None),
        ] {
            assert_eq!(sha256_of_command(&command), expected, "{command}");
        }
    }

    #[test]
    fn other_container_runtimes_are_reported_unless_disabled() {
        let service = |name: &str, start| ServiceInfo { name: name.into(), start, ..ServiceInfo::default() };
        let services = [
            service("Docker", StartType::Auto),
            service("com.docker.service", StartType::Disabled),
            service("rke2", StartType::Demand),
            service("containerd", StartType::Auto),
            service("dockerized-printer", StartType::Auto),
        ];
        assert_eq!(container_runtimes(&services), ["Docker", "rke2"]);
    }

    #[test]
    fn services_of_another_installer_are_reported() {
        let service = |name: &str, description: &str| ServiceInfo {
            name: name.into(),
            description: description.into(),
            ..ServiceInfo::default()
        };
        let services = [
            service("kubelet", "OpenShift managed kubelet"),
            service("Containerd", "Container runtime"),
            service("kube-proxy", ""),
            service("spooler", "Prints"),
            service("windows_exporter", "Monitoring of the owner"),
        ];
        let owned = Ownership { services: ["kube-proxy".to_string()].into(), ..Ownership::default() };
        assert_eq!(foreign(&services, &owned, reserved([])), ["Containerd"]);
        let exporter = |destination: &str| payload::File {
            destination: destination.into(),
            services: ["windows_exporter".to_owned()].into(),
            ..payload::File::default()
        };
        for (destination, expected) in [
            (r"C:\k\windows-exporter\windows_exporter.exe", &["Containerd", "windows_exporter"][..]),
            (r"C:\k\windows-exporter\windows-exporter-webconfig.yaml", &["Containerd"]),
        ] {
            let files = [exporter(destination)];
            assert_eq!(foreign(&services, &owned, reserved(of_programs(&files))), expected, "{destination}");
        }
        assert_eq!(foreign(&services, &Ownership::default(), ["kube-proxy", "kube-proxy"]), ["kube-proxy"]);
    }
}
