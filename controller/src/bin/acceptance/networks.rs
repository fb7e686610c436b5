//! Judges of the output of network commands on the host, as in [`judge`](super::judge).

use serde_json::Value;

use super::judge::{Outcome, Output, failed, field, is_no_service, passed, running_process, skipped};

/// Reports whether a text contains an IPv4 address or network as a whole word.
fn has_address(text: &str, address: &str) -> bool {
    text.split(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '/'))).any(|word| word == address)
}

/// Judges `sc query kube-proxy`, and the other outputs with `judge`. Without kube-proxy, there is no hybrid overlay.
pub(super) fn overlay(outputs: &[Output], judge: impl Fn(&[Output]) -> Option<Outcome>) -> Option<Outcome> {
    let (service, rest) = outputs.split_first()?;
    if is_no_service(service) {
        return Some(skipped("the host has no kube-proxy of a hybrid overlay"));
    }
    field(service.ok()?, "STATE")?.split_whitespace().eq(["4", "RUNNING"]).then_some(())?;
    judge(rest)
}

/// Judges `sc query kube-proxy`, the CNI configuration, and `hnsdiag list networks -d`: HNS must have the configured subnet and address.
pub(crate) fn overlay_network(outputs: &[Output]) -> Option<Outcome> {
    overlay(outputs, |outputs| {
        let [configuration, networks] = outputs else { return None };
        let (configuration, networks) = (serde_json::from_str::<Value>(configuration.ok()?).ok()?, networks.ok()?);
        let subnet = configuration["ipam"]["subnet"].as_str()?;
        let mut policies = configuration["policies"].as_array()?.iter();
        let provider = policies.find_map(|policy| policy["value"]["settings"]["providerAddress"].as_str())?;
        (has_address(networks, subnet) && has_address(networks, provider))
            .then(|| passed(format!("HNS has the subnet {subnet} and the address {provider}")))
    })
}

/// Judges `sc query kube-proxy`, the configuration of kube-proxy, and `ipconfig /all`: an adapter must have the source address of kube-proxy.
pub(crate) fn overlay_adapter(outputs: &[Output]) -> Option<Outcome> {
    overlay(outputs, |outputs| {
        let [configuration, adapters] = outputs else { return None };
        let configuration: Value = serde_json::from_str(configuration.ok()?).ok()?;
        let address = configuration["winkernel"]["sourceVip"].as_str()?;
        has_address(adapters.ok()?, address)
            .then(|| passed(format!("a network adapter has the source address of kube-proxy, {address}")))
    })
}

/// Judges `sc query kube-proxy`, `findstr` in wicd's log and in that of kube-proxy, and `hnsdiag list loadbalancers`. `findstr` prints nothing and
/// ends with 1 if it finds nothing.
pub(crate) fn overlay_proxy(outputs: &[Output]) -> Option<Outcome> {
    overlay(outputs, |outputs| {
        let [waits, errors, balancers] = outputs else { return None };
        let found = |output: &Output| match (output.status?, output.text.trim()) {
            (0, text) if !text.is_empty() => Some(text.lines().map(str::to_owned).collect::<Vec<_>>()),
            (1, "") => Some(Vec::new()),
            _ => None,
        };
        let (waits, errors) = (found(waits)?.len(), found(errors)?);
        let is_address = |word: &&str| word.parse::<std::net::Ipv4Addr>().is_ok();
        let addresses = balancers.ok()?.split_whitespace().filter(is_address).count();
        Some(match errors.first() {
            Some(error) => failed(format!("{} errors in the log of kube-proxy, the first: {error}", errors.len())),
            None if addresses == 0 => failed("HNS has no load balancer"),
            None => passed(format!(
                "wicd waited {waits} times for the network; the log of kube-proxy has no error, and HNS has load balancers with {addresses} addresses"
            )),
        })
    })
}

/// Judges `sc queryex hns`, `hnsdiag list networks` and `hnsdiag list endpoints`. HNS must run, because otherwise an empty list proves nothing.
pub(crate) fn hns_removed(outputs: &[Output]) -> Option<Outcome> {
    let [service, networks, endpoints] = outputs else { return None };
    running_process(service)?;
    (!networks.ok()?.contains("OVNKubernetesHybridOverlayNetwork") && !endpoints.ok()?.contains("VIPEndpoint"))
        .then(|| passed("HNS runs, and has no network and no endpoint of the hybrid overlay"))
}

/// Judges `sc query kube-proxy` and `hnsdiag list endpoints`: HNS must have one `VIPEndpoint`.
pub(crate) fn hybrid_endpoint(outputs: &[Output]) -> Option<Outcome> {
    overlay(outputs, |outputs| {
        let [endpoints] = outputs else { return None };
        (endpoints.ok()?.matches("VIPEndpoint").count() == 1).then(|| passed("HNS has one VIPEndpoint"))
    })
}

/// Judges `sc query kube-proxy`, and `hnsdiag list endpoints` before and after the removal of the endpoint: HNS must have another `VIPEndpoint`.
pub(crate) fn endpoint_again(outputs: &[Output]) -> Option<Outcome> {
    overlay(outputs, |outputs| {
        let [before, removal, after] = outputs else { return None };
        removal.ok()?;
        let (before, after) = (before.ok()?, after.ok()?);
        let is_id = |word: &&str| word.len() == 36 && word.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
        let ids = |text| str::split_whitespace(text).filter(is_id).map(str::to_ascii_lowercase).collect::<Vec<_>>();
        let (known, now) = (ids(before), ids(after));
        let is_other = now.iter().any(|id| !known.contains(id));
        (before.matches("VIPEndpoint").count() == 1 && after.matches("VIPEndpoint").count() == 1 && is_other)
            .then(|| passed("wicd has made another VIPEndpoint in place of the one that was removed"))
    })
}

/// Judges the desired state of the host, which says whether it is in a cloud, and `route print -4 169.254.169.254`.
pub(crate) fn metadata_route(outputs: &[Output]) -> Option<Outcome> {
    let [desired, output] = outputs else { return None };
    let desired: api::host::Desired = serde_json::from_str(desired.ok()?).ok()?;
    if desired.metadata_address.is_none() {
        return Some(skipped("the host is in no cloud with a metadata service"));
    }
    let active = output.ok()?.split_once("Active Routes:")?.1.split_once("Persistent Routes:")?.0;
    active.lines().find_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["169.254.169.254", "255.255.255.255", gateway, ..] if gateway.parse::<std::net::Ipv4Addr>().is_ok() => {
            Some(passed(format!("the route to the metadata service goes through {gateway}")))
        }
        _ => None,
    })
}
