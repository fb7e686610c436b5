//! Requirements on the payload before a host can become a node of the cluster: programs, and a kubelet that the API server supports.

use std::ops::RangeInclusive;

use api::payload::Manifest;

use super::{Cluster, Network, Platform, RenderError, context::Context, program};

/// Number of minor versions that kubelet may be older than the API server (<https://kubernetes.io/releases/version-skew-policy/#kubelet>). kubelet
/// must not be newer.
pub(super) const OLDEST: u32 = 3;

/// Returns the programs without which a host of the cluster does not become a Ready node.
fn programs(cluster: &Cluster) -> Vec<&'static str> {
    let mut programs = vec![program::KUBELET];
    if let Network::OvnHybrid { .. } = cluster.network {
        programs.extend([program::HYBRID_OVERLAY, program::KUBE_PROXY, program::WIN_OVERLAY, program::HOST_LOCAL]);
    }
    if cluster.platform == Platform::Azure && cluster.external_cloud_provider {
        programs.push(program::AZURE_NODE_MANAGER);
    }
    programs
}

/// Checks that the payload has the programs that every node of the cluster needs, and a kubelet that the API server supports.
pub(super) fn check(context: &Context<'_>) -> Result<(), RenderError> {
    let missing: Vec<_> = programs(context.cluster).into_iter().filter(|program| !context.has(program)).collect();
    if !missing.is_empty() {
        return Err(RenderError::NoPrograms(missing));
    }
    skew(context.cluster, context.payload)
}

/// Returns the minor versions of API servers that support a kubelet of this minor version.
pub fn api_servers_of_kubelet(minor: u32) -> RangeInclusive<u32> {
    minor..=minor.saturating_add(OLDEST)
}

/// Returns the version and the minor version of the payload's kubelet. A kubelet that a user has added to the payload may have none.
pub(super) fn kubelet(payload: &Manifest) -> Option<(&str, u32)> {
    let kubelet = payload.files.iter().find(|f| f.destination.eq_ignore_ascii_case(program::KUBELET))?;
    let version = kubelet.version.as_deref()?;
    Some((version, minor(version)?))
}

fn skew(cluster: &Cluster, payload: &Manifest) -> Result<(), RenderError> {
    let Some(((version, minor), server)) = kubelet(payload).zip(cluster.kubernetes_minor) else { return Ok(()) };
    let supported = api_servers_of_kubelet(minor);
    let problem = if supported.contains(&server) {
        return Ok(());
    } else if server < *supported.start() {
        "this kubelet is newer than the API server, which Kubernetes does not support"
    } else {
        "this kubelet is more than three minor versions older than the API server, which Kubernetes does not support"
    };
    Err(RenderError::Skew { kubelet: version.to_owned(), server, problem })
}

/// Returns the minor version of a Kubernetes version such as `1.36.3` or `v1.36.3`.
fn minor(version: &str) -> Option<u32> {
    let (major, rest) = version.trim_start_matches('v').split_once('.')?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    (major == "1").then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixtures;

    #[test]
    fn kubelet_is_at_most_as_new_as_the_api_server_and_at_most_three_minors_older() {
        for (kubelet, server, is_supported) in [
            (Some("1.36.3"), Some(36), true),
            (Some("1.36.3"), Some(35), false),
            (Some("v1.36.3"), Some(35), false),
            (Some("1.33.9"), Some(36), true),
            (Some("1.32.0"), Some(36), false),
            (Some("1.37.0-rc.1"), Some(36), false),
            (None, Some(30), true),
            (Some("1.36.3"), None, true),
            (Some("of our own"), Some(36), true),
        ] {
            let mut payload = fixtures::payload(&[program::KUBELET]);
            payload.files[0].version = kubelet.map(Into::into);
            let cluster = Cluster { kubernetes_minor: server, ..Cluster::default() };
            let found = skew(&cluster, &payload);
            assert_eq!(found.is_ok(), is_supported, "{kubelet:?} {server:?}: {found:?}");
            if let Err(error) = found {
                assert!(
                    error.to_string().contains(kubelet.unwrap()) && error.reason() == "KubeletVersionSkew",
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn a_payload_must_have_the_programs_that_the_cluster_needs() {
        let overlay = [program::HYBRID_OVERLAY, program::KUBE_PROXY, program::WIN_OVERLAY, program::HOST_LOCAL];
        let ovn = Cluster { network: Network::OvnHybrid { vxlan_port: None }, ..Cluster::default() };
        let azure = |external_cloud_provider| Cluster {
            platform: Platform::Azure,
            external_cloud_provider,
            ..Cluster::default()
        };
        for (about, cluster, needed) in [
            ("another network", Cluster::default(), &[][..]),
            ("OVN with a hybrid overlay", ovn, &overlay[..]),
            ("Azure", azure(false), &[][..]),
            ("Azure with a cloud controller manager", azure(true), &[program::AZURE_NODE_MANAGER][..]),
        ] {
            let all: Vec<&str> = [program::KUBELET].into_iter().chain(needed.iter().copied()).collect();
            assert_eq!(programs(&cluster), all, "{about}");
            let settings = crate::render::Settings::default();
            for without in 0..all.len() {
                let mut there = all.clone();
                let missing = there.remove(without);
                let payload = fixtures::payload(&there);
                let found = check(&Context { cluster: &cluster, payload: &payload, settings: &settings });
                assert_eq!(found, Err(RenderError::NoPrograms(vec![missing])), "{about}");
            }
            let found = check(&Context { cluster: &cluster, payload: &fixtures::payload(&[]), settings: &settings });
            let says = found.unwrap_err().to_string();
            assert!(all.iter().all(|program| says.contains(program.rsplit('\\').next().unwrap())), "{about}: {says}");
            assert!(says.contains("`make image PROGRAMS=FOLDER`"), "{says}");
        }
    }
}
