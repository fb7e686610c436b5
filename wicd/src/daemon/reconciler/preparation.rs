//! Preparation of a service's prerequisites on the host before it starts.

use api::host::{Desired, ServiceState, path};
use api::services::{Prepare, Service};
use serde_json::Value;
use tracing::info;

use super::{DesiredService, Prepared, Reconciler, find};
use crate::files;
use crate::host::{HostError, ServiceInfo};
use crate::network::{self, Progress};

/// Name of the service that stores the Node's client certificate, which other services use as well.
const KUBELET: &str = "kubelet";

impl Reconciler {
    /// Creates the prerequisites of a service on the host, as far as possible at once.
    pub(super) fn prepare(
        &mut self,
        wanted: &DesiredService,
        all: &[ServiceInfo],
        desired: &Desired,
        node: Option<&Value>,
    ) -> Prepared {
        let services = &desired.services.services;
        let Some(service) = services.iter().find(|s| s.name == wanted.name) else { return Prepared::Ready };
        let runs = |name: &str| find(all, name).is_some_and(|a| a.state == ServiceState::Running);
        let running = find(all, &service.name).is_some_and(ServiceInfo::is_up);
        let ours = |name: &str| services.iter().any(|s| s.name.eq_ignore_ascii_case(name));
        // A running service has found its certificate.
        if acts_as_node(service) && !running {
            let missing = || format!("kubelet has not stored {} yet", path::KUBELET_CURRENT_CERT);
            let is_there = self.has_file(path::KUBELET_CURRENT_CERT, missing);
            let found = self.is_done(service, "certificate", is_there);
            // kubelet stores it right after its start.
            self.moving |= !found && runs(KUBELET);
            if !found {
                return Prepared::NotYet;
            }
        }
        let config = match &service.prepare {
            None => return Prepared::Ready,
            Some(Prepare::ServiceAccountToken(token)) => {
                // A running service reloads the token by itself. The file must exist only when the service starts.
                let missing = || format!("there is no token of the ServiceAccount {} yet", token.service_account);
                let is_there = if running { Ok(Progress::Ready) } else { self.has_file(&token.path, missing) };
                let is_done = self.is_done(service, "token", is_there);
                return if is_done { Prepared::Ready } else { Prepared::NotYet };
            }
            Some(Prepare::OvnHybridNetwork(config)) => config,
        };
        // A dependency creates the network. The wait for the dependency is logged elsewhere.
        if service.dependencies.iter().any(|d| ours(d) && !runs(d)) {
            return Prepared::NotYet;
        }
        let wish =
            network::DesiredNetwork { config, node_name: &desired.node_name, node_subnet: network::node_subnet(node) };
        let progress = network::prepare(&*self.host, wish, running);
        if matches!(progress, Ok(Progress::Stale)) {
            return Prepared::Stale;
        }
        self.moving |= matches!(progress, Ok(Progress::Moving));
        if self.is_done(service, "network", progress) { Prepared::Ready } else { Prepared::NotYet }
    }

    /// Returns [`Progress::Ready`] if a file exists. Otherwise the service waits for it, and `missing` describes it.
    fn has_file(&self, path: &str, missing: impl FnOnce() -> String) -> Result<Progress, HostError> {
        let is_there = files::size(&*self.host, path)?.is_some();
        Ok(if is_there { Progress::Ready } else { Progress::Waiting(missing()) })
    }

    /// Logs a missing prerequisite once, and returns whether it exists.
    fn is_done(&mut self, service: &Service, part: &str, progress: Result<Progress, HostError>) -> bool {
        let about = format!("{part} of {}", service.name);
        match progress {
            Ok(Progress::Ready) => {
                self.complaints.remove(&about);
                return true;
            }
            Ok(Progress::Waiting(missing)) => {
                if self.complaints.get(&about) != Some(&missing) {
                    info!(service = service.name, "waiting: {missing}");
                    self.complaints.insert(about, missing);
                }
            }
            Ok(Progress::Moving | Progress::Stale) => {}
            Err(e) => self.complain(&about, &e),
        }
        false
    }
}

/// Reports whether a service authenticates to the API server as the Node, with kubelet's certificate.
fn acts_as_node(service: &Service) -> bool {
    let is_of_network = match &service.prepare {
        Some(Prepare::OvnHybridNetwork(network)) => network.kubeconfig == path::NODE_KUBECONFIG,
        Some(Prepare::ServiceAccountToken(_)) | None => false,
    };
    service.path.contains(path::NODE_KUBECONFIG) || is_of_network
}
