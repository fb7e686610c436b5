//! Machines of OpenShift's Machine API and of Cluster API: which of them are hosts, and which are replaced.

pub mod health_check;
pub mod list;
pub mod pools;
pub mod provider_id;
pub mod read;
pub mod replace;

/// Namespace of OpenShift's own Machines.
pub const MACHINE_API: &str = "openshift-machine-api";
/// Namespace of the Machines that OpenShift creates with Cluster API.
pub const CLUSTER_API: &str = "openshift-cluster-api";
