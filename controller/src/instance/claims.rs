//! What is proven of a host, for the verdict on its certificate requests.

use api::{WindowsInstance, WindowsInstanceStatus};
use kube::{
    ResourceExt,
    runtime::reflector::{ObjectRef, Store},
};

use crate::csr::Claim;

/// What is proven of an instance: its Node's address and the address that a person wrote down. Other addresses that the
/// host says it has are not: a certificate with them could be shown in another's place.
pub fn claim(node_name: &str, instance: &WindowsInstance, status: &WindowsInstanceStatus) -> Claim {
    let facts = status.facts.as_ref();
    let mut addresses: Vec<std::net::IpAddr> = Vec::new();
    addresses.extend(instance.spec.host.address.parse::<std::net::IpAddr>());
    addresses.extend(facts.and_then(|f| f.node_ip.parse::<std::net::IpAddr>().ok()));
    addresses.dedup();
    let mut dns_names = vec![node_name.to_string()];
    dns_names.extend(facts.map(|f| f.hostname.to_ascii_lowercase()).filter(|h| !h.is_empty() && h != node_name));
    Claim {
        node_name: node_name.into(),
        addresses,
        dns_names,
        joined: status.node_ref.is_some(),
        proven: facts.is_some() && status.host_key.is_some(),
    }
}

/// Looks a host up by the name of its Node.
pub fn lookup(instances: &Store<WindowsInstance>, node_name: &str) -> Option<Claim> {
    let instance = instances.get(&ObjectRef::new(node_name))?;
    Some(claim(&instance.name_any(), &instance, instance.status.as_ref().unwrap_or(&WindowsInstanceStatus::default())))
}
