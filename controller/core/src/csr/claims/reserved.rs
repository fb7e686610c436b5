//! Addresses and names that no host may have in a certificate, even if they are proven. Pure.
//!
//! If one CA signs all certificates of the cluster, a host with such a serving certificate could pose as the API server or as a Service.

use std::net::IpAddr;

use crate::render::Cluster;

/// Addresses and names that belong to the cluster itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    services: Vec<(IpAddr, u8)>,
    addresses: Vec<IpAddr>,
    /// Host name of the API server and other names of the cluster; `*.domain` covers all names of a domain.
    names: Vec<String>,
    domain: String,
    /// True if hosts may have loopback addresses: the API server has one (a test cluster on one machine), or the caller allows it.
    allows_loopback: bool,
}

impl Reserved {
    /// Returns the reserved names and addresses of a cluster. `loopback_hosts` allows hosts at loopback addresses even if the API server has
    /// none.
    pub fn of(cluster: &Cluster, loopback_hosts: bool) -> Self {
        let url = cluster.api_server.split_once("://").map_or(cluster.api_server.as_str(), |(_, rest)| rest);
        let authority = url.split('/').next().unwrap_or_default();
        let host = match authority.strip_prefix('[') {
            Some(six) => six.split(']').next().unwrap_or_default(),
            None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
        };
        let api_server = host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
        let dns = cluster.cluster_dns.iter().filter_map(|a| a.parse::<IpAddr>().ok());
        let own = cluster.own_names.iter().filter_map(|name| name.parse::<IpAddr>().ok());
        let names = cluster.own_names.iter().map(String::as_str).filter(|name| name.parse::<IpAddr>().is_err());
        Self {
            services: networks(&cluster.service_cidr).collect(),
            addresses: dns.chain(api_server).chain(own).map(|ip| ip.to_canonical()).collect(),
            names: names.chain([host]).map(str::to_ascii_lowercase).collect(),
            domain: cluster.cluster_domain.to_ascii_lowercase(),
            allows_loopback: loopback_hosts || api_server.is_some_and(|ip| ip.is_loopback()),
        }
    }

    /// Reports whether a host may have this address.
    pub fn allows_address(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        let is_local = match ip {
            IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        let is_special =
            ip.is_unspecified() || ip.is_multicast() || is_local || (ip.is_loopback() && !self.allows_loopback);
        !is_special && !self.addresses.contains(&ip) && !self.services.iter().any(|network| contains(*network, ip))
    }

    /// Reports whether a host may have this DNS name.
    pub fn allows_name(&self, name: &str) -> bool {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let labels: Vec<&str> = name.split('.').collect();
        let first = labels.first().copied().unwrap_or_default();
        let of_cluster = |domain: &str| !domain.is_empty() && (name == domain || name.ends_with(&format!(".{domain}")));
        let is_service = labels.contains(&"svc")
            || (["kubernetes", "openshift"].contains(&first) && labels.get(1).is_none_or(|l| *l == "default"));
        let is_local = labels.last() == Some(&"localhost");
        !(name.is_empty()
            || name.contains('*')
            || is_service
            || is_local
            || of_cluster(&self.domain)
            || self.names.iter().any(|own| is_of(&name, own)))
    }
}

/// Reports whether a name is `own`, or belongs to the domain if `own` is `*.domain`.
fn is_of(name: &str, own: &str) -> bool {
    match own.strip_prefix("*.") {
        Some(domain) => name == domain || name.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')),
        None => name == own,
    }
}

/// Reports whether an address is in the address ranges of Services. `service_cidr` holds one range, or several separated by commas.
pub fn is_of_service(service_cidr: &str, ip: IpAddr) -> bool {
    networks(service_cidr).any(|network| contains(network, ip.to_canonical()))
}

fn networks(cidrs: &str) -> impl Iterator<Item = (IpAddr, u8)> {
    cidrs.split(',').filter_map(|cidr| network(cidr.trim()))
}

fn network(cidr: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = cidr.split_once('/')?;
    Some((address.parse().ok()?, length.parse().ok()?))
}

fn contains((network, length): (IpAddr, u8), ip: IpAddr) -> bool {
    match (network, ip) {
        (IpAddr::V4(network), IpAddr::V4(ip)) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(length.into())).unwrap_or(0);
            u32::from(network) & mask == u32::from(ip) & mask
        }
        (IpAddr::V6(network), IpAddr::V6(ip)) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(length.into())).unwrap_or(0);
            u128::from(network) & mask == u128::from(ip) & mask
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reserved(api_server: &str) -> Reserved {
        Reserved::of(
            &Cluster {
                api_server: api_server.into(),
                service_cidr: "10.96.0.0/12,fd02::/112".into(),
                cluster_dns: vec!["169.254.20.10".into(), "10.200.0.53".into()],
                cluster_domain: "cluster.local".into(),
                own_names: ["10.1.0.9", "fd00::9", "api.shop.example.com", "*.apps.shop.example.com"]
                    .map(Into::into)
                    .into(),
                ..Cluster::default()
            },
            false,
        )
    }

    #[test]
    fn no_host_has_an_address_of_the_cluster() {
        let far = reserved("https://10.1.0.5:6443");
        for (ip, expected) in [
            ("10.0.0.7", true),
            ("203.0.113.7", true),
            ("fd00::7", true),
            ("10.112.0.1", true),
            // The network of Services.
            ("10.96.0.1", false),
            ("10.111.255.255", false),
            ("::ffff:10.96.0.1", false),
            ("fd02::1", false),
            ("10.1.0.5", false),
            ("10.1.0.9", false),
            ("fd00::9", false),
            ("10.200.0.53", false),
            ("127.0.0.1", false),
            ("127.9.9.9", false),
            ("::1", false),
            ("0.0.0.0", false),
            ("::", false),
            ("169.254.1.1", false),
            ("fe80::1", false),
            ("224.0.0.1", false),
            ("ff02::1", false),
            ("255.255.255.255", false),
        ] {
            assert_eq!(far.allows_address(ip.parse().unwrap()), expected, "{ip}");
        }
        let here = reserved("https://127.0.0.1:6443/");
        for (ip, expected) in [("127.0.0.1", false), ("127.9.9.9", true), ("10.96.0.1", false)] {
            assert_eq!(here.allows_address(ip.parse().unwrap()), expected, "on one machine: {ip}");
        }
        assert!(!reserved("https://[fd00::5]:6443").allows_address("fd00::5".parse().unwrap()));
    }

    #[test]
    fn no_host_has_a_name_of_the_cluster() {
        let reserved = reserved("https://api-int.shop.example.com:6443");
        for (name, expected) in [
            ("win-1", true),
            ("win-1.corp.example", true),
            ("ip-10-0-0-7.ec2.internal", true),
            ("kubernetes-1", true),
            ("kubernetes.corp.example", true),
            ("kubernetes", false),
            ("kubernetes.default", false),
            ("Kubernetes.Default.svc", false),
            ("shop.default.svc.cluster.local", false),
            ("x.svc.corp.example", false),
            ("cluster.local", false),
            ("win.cluster.local.", false),
            ("openshift.default", false),
            ("api-int.shop.example.com", false),
            ("API-INT.shop.example.com.", false),
            // Names of the API server's certificate, and of the ingress.
            ("api.shop.example.com", false),
            ("apps.shop.example.com", false),
            ("console.apps.shop.example.com", false),
            ("myapps.shop.example.com", true),
            ("localhost", false),
            ("a.localhost", false),
            ("*.corp.example", false),
            ("", false),
            (".", false),
        ] {
            assert_eq!(reserved.allows_name(name), expected, "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn any_network_and_any_name_can_be_checked(cidr in ".{0,40}", url in ".{0,40}", name in ".{0,40}", ip: IpAddr) {
            let cluster = Cluster { service_cidr: cidr, api_server: url, ..Cluster::default() };
            let reserved = Reserved::of(&cluster, false);
            reserved.allows_address(ip);
            reserved.allows_name(&name);
        }

        #[test]
        fn all_of_a_service_network_is_reserved(network: u32, length in 0_u8..=32, offset: u32) {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            let ip = IpAddr::from((network & mask | offset & !mask).to_be_bytes());
            let cluster = Cluster { service_cidr: format!("{}/{length}", std::net::Ipv4Addr::from(network)), ..Cluster::default() };
            prop_assert!(!Reserved::of(&cluster, false).allows_address(ip));
        }
    }
}
