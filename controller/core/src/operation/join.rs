//! Next step of joining a host as a node, chosen from the observed state and not from a stored one.

use std::collections::BTreeMap;

use api::host::{CertificateKind, HostState, ServiceState};
use jiff::Timestamp;

/// Desired state of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredJoin {
    /// Id of this cluster.
    pub cluster_id: String,
    /// Name of the Node.
    pub node_name: String,
    /// Version of the services.
    pub version: String,
    /// Digest of the payload.
    pub payload: String,
    /// Digest of the configuration files.
    pub configs: String,
    /// SHA-256 of wicd.
    pub wicd: String,
    /// True if services must be restarted in this operation.
    pub restarts: bool,
    /// True if the Node must have another address than kubelet was given.
    pub moves: bool,
    /// Boot id of the host before a restart that this operation requires.
    pub leaves_boot: Option<String>,
}

/// Observed state of the Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSeen {
    /// True if the Node is Ready.
    pub ready: bool,
    /// Version that the host follows completely, as wicd reports.
    pub version: Option<String>,
    /// Boot id of the host, as kubelet last reported it.
    pub boot_id: String,
    /// True if the Node requests a restart of the host.
    pub asks_restart: bool,
}

/// Observed state of the host while the connection is open.
#[derive(Clone, Debug, Default)]
pub struct HostSeen {
    /// Last answer of wicd.
    pub state: HostState,
    /// Certificate requests of the host.
    pub requests: BTreeMap<CertificateKind, String>,
    /// Certificates that were issued for the requests.
    pub issued: BTreeMap<CertificateKind, String>,
    /// True if the services were started over this connection.
    pub started: bool,
}

/// Next step while no connection is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutConnection {
    /// Login, upload of wicd, and query of the host's state.
    Connect,
    /// Restart of the host, which its Node requests.
    Reboot,
    /// Wait until the Node exists, is Ready and follows the desired version, and the host has restarted if it must.
    Register,
    /// End: the host is a node.
    Joined,
}

/// Next step while a connection is open, in execution order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHost {
    /// Upload of the payload files that are missing.
    Upload,
    /// Configuration of the host: files, settings and private keys.
    Configure,
    /// Restart of the host.
    Reboot,
    /// Issue of the certificates.
    Certify,
    /// Handover of the certificates, and start of the services.
    Start,
    /// End of the connection, and wait for the Node.
    Register,
    /// End: the host is a node.
    Joined,
}

/// Minimum remaining lifetime of a certificate with which the services may start, in seconds: one hour.
const SPARE_SECONDS: i64 = 3600;

/// Reports whether the host still has the boot id from before the required restart.
fn stays(wanted: &DesiredJoin, boot_id: &str) -> bool {
    wanted.leaves_boot.as_deref() == Some(boot_id)
}

fn is_right(wanted: &DesiredJoin, node: &NodeSeen) -> bool {
    node.ready && node.version.as_deref() == Some(&wanted.version) && !stays(wanted, &node.boot_id)
}

/// Chooses the next step while no connection is open. `registering` is true if the services were already started in this operation, so that only
/// the Node is waited for.
pub fn without_connection(wanted: &DesiredJoin, node: Option<&NodeSeen>, registering: bool) -> WithoutConnection {
    let asks_restart = node.is_some_and(|n| n.asks_restart) && wanted.leaves_boot.is_none();
    match registering {
        true if node.is_some_and(|n| is_right(wanted, n)) => WithoutConnection::Joined,
        true if asks_restart => WithoutConnection::Reboot,
        true => WithoutConnection::Register,
        false => WithoutConnection::Connect,
    }
}

/// Chooses the next step on the host while a connection to it is open.
pub fn on_host(wanted: &DesiredJoin, node: Option<&NodeSeen>, host: &HostSeen, now: Timestamp) -> OnHost {
    let state = &host.state;
    if !state.missing.is_empty() {
        return OnHost::Upload;
    }
    let placed = is_placed(wanted, state);
    let lives = |kind| state.certificates.get(&kind).is_some_and(|end| *end > now.as_second() + SPARE_SECONDS);
    let kinds = [CertificateKind::Kubelet, CertificateKind::Wicd];
    let wants: Vec<CertificateKind> = kinds.into_iter().filter(|k| !lives(*k)).collect();
    if !placed || wants.iter().any(|k| !host.requests.contains_key(k)) {
        return OnHost::Configure;
    }
    if state.reboot_required.is_some() || stays(wanted, &state.machine.boot_id) {
        return OnHost::Reboot;
    }
    if wants.iter().any(|k| !host.issued.contains_key(k)) {
        return OnHost::Certify;
    }
    let runs = state.wicd == ServiceState::Running && state.wicd_sha256.as_deref() == Some(&wanted.wicd);
    // kubelet registers its Node only when it starts: with everything running and no Node, it must restart.
    if !host.started && (!wants.is_empty() || !runs || node.is_none() || wanted.restarts) {
        return OnHost::Start;
    }
    if node.is_some_and(|n| is_right(wanted, n)) { OnHost::Joined } else { OnHost::Register }
}

/// Reports whether files and configuration on the host match the desired state.
pub fn is_placed(wanted: &DesiredJoin, state: &HostState) -> bool {
    !wanted.moves
        && state.marker.as_ref().is_some_and(|m| {
            (m.cluster_id.as_str(), m.node_name.as_str(), m.version.as_str(), m.payload.as_str(), m.configs.as_str())
                == (&wanted.cluster_id, &wanted.node_name, &wanted.version, &wanted.payload, &wanted.configs)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::host::Marker;

    const NOW: i64 = 1_000_000;

    fn now() -> Timestamp {
        Timestamp::from_second(NOW).unwrap()
    }

    /// Returns a Ready node of this version.
    fn node(version: &str, boot_id: &str) -> NodeSeen {
        NodeSeen { ready: true, version: Some(version.into()), boot_id: boot_id.into(), asks_restart: false }
    }

    fn wanted() -> DesiredJoin {
        DesiredJoin {
            cluster_id: "k".into(),
            node_name: "win-1".into(),
            version: "1-a".into(),
            payload: "p".into(),
            configs: "c".into(),
            wicd: "w".into(),
            restarts: false,
            moves: false,
            leaves_boot: None,
        }
    }

    fn finished() -> HostSeen {
        let ends = BTreeMap::from([(CertificateKind::Kubelet, NOW + 90_000), (CertificateKind::Wicd, NOW + 7200)]);
        HostSeen {
            state: HostState {
                marker: Some(Marker {
                    cluster_id: "k".into(),
                    node_name: "win-1".into(),
                    version: "1-a".into(),
                    payload: "p".into(),
                    configs: "c".into(),
                    ..Marker::default()
                }),
                certificates: ends,
                wicd: ServiceState::Running,
                wicd_sha256: Some("w".into()),
                ..HostState::default()
            },
            ..HostSeen::default()
        }
    }

    fn but(change: impl FnOnce(&mut HostSeen)) -> HostSeen {
        let mut seen = finished();
        change(&mut seen);
        seen
    }

    fn pem() -> BTreeMap<CertificateKind, String> {
        BTreeMap::from([(CertificateKind::Kubelet, "k".into()), (CertificateKind::Wicd, "w".into())])
    }

    #[test]
    fn the_state_of_the_host_decides_the_next_step() {
        use OnHost::{Certify, Configure, Reboot, Register, Start, Upload};
        let no_certificates = |s: &mut HostSeen| s.state.certificates.clear();
        let keys_made = |s: &mut HostSeen| {
            no_certificates(s);
            s.requests = pem();
        };
        for (name, seen, expected) in [
            ("files are missing", but(|s| s.state.missing = vec!["x".into()]), Upload),
            ("the host has no record of its configuration", but(|s| s.state.marker = None), Configure),
            ("the keys were made by an operator that died", but(no_certificates), Configure),
            (
                "a certificate is about to end",
                but(|s| {
                    s.state.certificates.insert(CertificateKind::Wicd, NOW + 3599);
                }),
                Configure,
            ),
            (
                "keys are made, and a restart is needed",
                but(|s| {
                    keys_made(s);
                    s.state.reboot_required = Some("Containers".into());
                }),
                Reboot,
            ),
            ("keys are made", but(keys_made), Certify),
            (
                "one of two certificates is issued",
                but(|s| {
                    keys_made(s);
                    s.issued = pem();
                    s.issued.remove(&CertificateKind::Wicd);
                }),
                Certify,
            ),
            (
                "both certificates are issued",
                but(|s| {
                    keys_made(s);
                    s.issued = pem();
                }),
                Start,
            ),
            ("wicd is stopped", but(|s| s.state.wicd = ServiceState::Stopped), Start),
            ("another wicd runs", but(|s| s.state.wicd_sha256 = Some("old".into())), Start),
            ("all services run, but the Node was deleted", finished(), Start),
            ("all services were started", but(|s| s.started = true), Register),
        ] {
            assert_eq!(on_host(&wanted(), None, &seen, now()), expected, "{name}");
        }
        let in_place: [fn(&mut Marker) -> &mut String; 5] =
            [|m| &mut m.version, |m| &mut m.payload, |m| &mut m.configs, |m| &mut m.cluster_id, |m| &mut m.node_name];
        for field in in_place {
            let seen = but(|s| *field(s.state.marker.as_mut().unwrap()) = "another".into());
            assert_eq!(on_host(&wanted(), None, &seen, now()), Configure, "{:?}", seen.state.marker);
        }
    }

    #[test]
    fn the_node_decides_the_end() {
        let down = NodeSeen { ready: false, ..node("1-a", "1") };
        for (node, registering, expected) in [
            (None, false, WithoutConnection::Connect),
            // A Node of that name says nothing about the host as long as the host is not proven in this operation.
            (Some(node("1-a", "1")), false, WithoutConnection::Connect),
            (None, true, WithoutConnection::Register),
            (Some(down), true, WithoutConnection::Register),
            (Some(node("0", "1")), true, WithoutConnection::Register),
            (Some(node("1-a", "1")), true, WithoutConnection::Joined),
        ] {
            let chosen = without_connection(&wanted(), node.as_ref(), registering);
            assert_eq!(chosen, expected, "{node:?} {registering}");
        }
        assert_eq!(on_host(&wanted(), Some(&node("1-a", "1")), &finished(), now()), OnHost::Joined);
    }

    #[test]
    fn a_node_that_changes_restarts_its_services_or_its_host() {
        let asks = |boot_id, version| NodeSeen { asks_restart: true, ..node(version, boot_id) };
        let on = |boot_id: &str| but(|s| s.state.machine.boot_id = boot_id.into());
        let restarts = DesiredJoin { restarts: true, ..wanted() };
        let started = but(|s| s.started = true);
        let leaves = DesiredJoin { leaves_boot: Some("1".into()), ..wanted() };
        for (name, wanted, node, host, expected) in [
            ("services must be restarted", &restarts, node("1-a", "1"), finished(), OnHost::Start),
            ("services were restarted", &restarts, node("1-a", "1"), started, OnHost::Joined),
            ("the host must be restarted", &leaves, node("1-a", "1"), on("1"), OnHost::Reboot),
            (
                "the host was restarted, and its Node still reports the boot before",
                &leaves,
                node("1-a", "1"),
                on("2"),
                OnHost::Register,
            ),
            ("host and Node have the new boot", &leaves, node("1-a", "2"), on("2"), OnHost::Joined),
        ] {
            assert_eq!(on_host(wanted, Some(&node), &host, now()), expected, "{name}");
        }
        for (name, wanted, node, expected) in [
            ("kubelet has not started since the restart", &leaves, node("1-a", "1"), WithoutConnection::Register),
            ("a user requests a restart", &restarts, asks("1", "0"), WithoutConnection::Reboot),
            (
                "a user requests a restart, and this operation has restarted the host",
                &leaves,
                asks("2", "0"),
                WithoutConnection::Register,
            ),
            (
                "a requested restart waits if the host is in its desired state",
                &restarts,
                asks("1", "1-a"),
                WithoutConnection::Joined,
            ),
        ] {
            assert_eq!(without_connection(wanted, Some(&node), true), expected, "{name}");
        }
    }
}
