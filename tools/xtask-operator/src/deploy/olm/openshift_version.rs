//! Versions of OpenShift that work with the kubelets of a payload.

use wnp_core::render::api_servers_of_kubelet;

use crate::payload::{OPENSHIFT_4_MINOR_OFFSET, OPENSHIFT_5_FIRST_MINOR};

/// Returns the version of OpenShift with a minor version of Kubernetes.
pub(crate) fn openshift(kubernetes: u32) -> String {
    match kubernetes.checked_sub(OPENSHIFT_5_FIRST_MINOR) {
        Some(minor) => format!("5.{minor}"),
        None => format!("4.{}", kubernetes.saturating_sub(OPENSHIFT_4_MINOR_OFFSET)),
    }
}

/// Returns the property `olm.maxOpenShiftVersion`, beyond which OLM does not let the cluster upgrade. `None` without a kubelet.
pub(super) fn newest_openshift(kubelets: &[u32]) -> Option<String> {
    kubelets.iter().max().map(|newest| openshift(*api_servers_of_kubelet(*newest).end()))
}

/// Returns the oldest Kubernetes, for `minKubeVersion`: for an older one, every kubelet is too new. `None` without a kubelet.
pub(super) fn oldest_kubernetes(kubelets: &[u32]) -> Option<String> {
    kubelets.iter().min().map(|oldest| format!("1.{}.0", api_servers_of_kubelet(*oldest).start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openshift_has_a_minor_of_kubernetes() {
        for (kubernetes, expected) in [(32, "4.19"), (33, "4.20"), (34, "4.21"), (35, "4.22"), (36, "5.0"), (39, "5.3")]
        {
            assert_eq!(openshift(kubernetes), expected);
        }
    }

    #[test]
    fn a_payload_bounds_the_versions_of_the_cluster() {
        for (kubelets, oldest, newest) in [
            (&[36][..], Some("1.36.0"), Some("5.3")),
            (&[32], Some("1.32.0"), Some("4.22")),
            (&[33], Some("1.33.0"), Some("5.0")),
            (&[36, 33, 35], Some("1.33.0"), Some("5.3")),
            (&[], None, None),
        ] {
            assert_eq!(oldest_kubernetes(kubelets).as_deref(), oldest, "{kubelets:?}");
            assert_eq!(newest_openshift(kubelets).as_deref(), newest, "{kubelets:?}");
        }
    }
}
