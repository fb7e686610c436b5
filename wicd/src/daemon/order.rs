//! Order of services by their dependencies. Names of services are not case-sensitive.

use std::collections::BTreeSet;

use api::services::Service;

use crate::host::ServiceInfo;

/// Returns the services that directly or indirectly depend on `name` and are not stopped, in the order in which to stop them:
/// each service comes before its dependencies.
pub fn dependents(all: &[ServiceInfo], name: &str) -> Vec<String> {
    fn visit(all: &[ServiceInfo], name: &str, seen: &mut BTreeSet<String>, order: &mut Vec<String>) {
        for service in all.iter().filter(|s| s.dependencies.iter().any(|d| d.eq_ignore_ascii_case(name))) {
            if seen.insert(service.name.to_ascii_lowercase()) {
                visit(all, &service.name, seen, order);
                if service.is_up() {
                    order.push(service.name.clone());
                }
            }
        }
    }
    let mut seen = BTreeSet::from([name.to_ascii_lowercase()]);
    let mut order = Vec::new();
    visit(all, name, &mut seen, &mut order);
    order
}

/// Returns the services in the order in which to start them: by priority, but each after its dependencies in the list.
/// `services` has no cycles, see [`api::services::ServicesConfig::validate`].
pub fn start_order(services: &[Service]) -> Vec<&Service> {
    let mut left: Vec<&Service> = services.iter().collect();
    left.sort_by_key(|s| s.priority);
    let mut order: Vec<&Service> = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let ready = left
            .iter()
            .position(|s| !s.dependencies.iter().any(|d| left.iter().any(|other| other.name.eq_ignore_ascii_case(d))));
        // In a cycle, services keep the order of their priorities.
        order.push(left.remove(ready.unwrap_or(0)));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::host::ServiceState;

    fn info(name: &str, dependencies: &[&str], state: ServiceState) -> ServiceInfo {
        ServiceInfo {
            name: name.into(),
            dependencies: dependencies.iter().map(ToString::to_string).collect(),
            state,
            ..ServiceInfo::default()
        }
    }

    #[test]
    fn dependents_come_before_what_they_need() {
        use ServiceState::{Pending, Running, Stopped};
        let all = [
            info("containerd", &[], Running),
            info("kubelet", &["Containerd"], Running),
            info("hybrid-overlay-node", &["kubelet"], Pending),
            info("kube-proxy", &["hybrid-overlay-node", "kubelet"], Running),
            info("idle", &["kubelet"], Stopped),
            info("behind-idle", &["idle"], Running),
            info("other", &[], Running),
        ];
        let cases: &[(&str, &[&str])] = &[
            ("containerd", &["kube-proxy", "hybrid-overlay-node", "behind-idle", "kubelet"]),
            ("hybrid-overlay-node", &["kube-proxy"]),
            ("other", &[]),
            ("nowhere", &[]),
        ];
        for (name, expected) in cases {
            assert_eq!(dependents(&all, name), *expected, "{name}");
        }
        // Windows refuses cycles when a service starts, not when it is created.
        let circle = [info("a", &["b"], Running), info("b", &["a"], Running)];
        assert_eq!(dependents(&circle, "a"), ["b"]);
    }

    #[test]
    fn dependencies_come_before_priorities() {
        let service = |name: &str, priority, dependencies: &[&str]| Service {
            name: name.into(),
            priority,
            dependencies: dependencies.iter().map(ToString::to_string).collect(),
            ..Service::default()
        };
        let services = [
            service("exporter", 2, &[]),
            service("proxy", 3, &["overlay"]),
            service("early", 0, &["kubelet"]),
            service("containerd", 0, &[]),
            service("kubelet", 1, &["containerd", "dhcp"]),
            service("overlay", 4, &["kubelet"]),
        ];
        let names: Vec<_> = start_order(&services).iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["containerd", "kubelet", "early", "exporter", "overlay", "proxy"]);
    }
}
