//! Replaces names of hosts, addresses and domains by pseudonyms that are the same in the whole archive. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::LazyLock,
};

use parking_lot::Mutex;
use regex::Regex;
use serde_json::Value;

/// What may be an address. Whether it is one, the standard library decides.
#[expect(clippy::unwrap_used, reason = "a constant, which the tests compile")]
static ADDRESS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[0-9A-Fa-f]*(?::[0-9A-Fa-f]*){2,}(?:\.[0-9]+){0,3}|[0-9]+(?:\.[0-9]+){3}").unwrap());

/// What is a name of a host and of a domain.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    hosts: BTreeSet<String>,
    domains: BTreeSet<String>,
}

impl Names {
    /// Takes a name or address of a host, and its domain. Addresses need not be known.
    pub(crate) fn host(&mut self, name: &str) {
        let name = name.trim().trim_end_matches('.').to_lowercase();
        if !is_dns_name(&name) || name.parse::<IpAddr>().is_ok() {
            return;
        }
        if let Some((first, domain)) = name.split_once('.') {
            self.hosts.insert(first.to_owned());
            self.domain(domain);
        }
        self.hosts.insert(name);
    }

    /// Takes a domain. A top-level domain says nothing, and stands in every name of an image.
    pub(crate) fn domain(&mut self, name: &str) {
        let name = name.trim().trim_matches('.').to_lowercase();
        if is_dns_name(&name)
            && name.contains('.')
            && !KEPT.iter().any(|kept| name == *kept || name.ends_with(&format!(".{kept}")))
        {
            self.domains.insert(name);
        }
    }

    /// Takes the host of a URL: a server of the cluster, whose last part is its domain.
    pub(crate) fn url(&mut self, url: &str) {
        let Some(authority) = url.split_once("://").and_then(|(_, rest)| rest.split(['/', '?', '#']).next()) else {
            return;
        };
        let host = authority.rsplit('@').next().unwrap_or_default();
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        if let Some((_, domain)) = host.split_once('.').filter(|_| host.parse::<IpAddr>().is_err()) {
            self.domain(domain);
        }
    }

    /// Takes the names in an object that has some.
    pub(crate) fn learn(&mut self, object: &Value) {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        match object["kind"].as_str().unwrap_or_default() {
            "Node" => {
                self.host(text("/metadata/name").unwrap_or_default());
                let labels = &object["metadata"]["labels"];
                self.host(labels["kubernetes.io/hostname"].as_str().unwrap_or_default());
                self.domain(labels[api::names::key::DOMAIN].as_str().unwrap_or_default());
                for address in object["status"]["addresses"].as_array().into_iter().flatten() {
                    self.host(address["address"].as_str().unwrap_or_default());
                }
            }
            "WindowsInstance" => {
                // Windows' own name for itself need not be that of its node.
                for pointer in ["/metadata/name", "/spec/host/name", "/spec/host/address", "/status/facts/hostname"] {
                    self.host(text(pointer).unwrap_or_default());
                }
                self.domain(text("/status/facts/domain").unwrap_or_default());
            }
            "WindowsNodePool" => {
                // Hosts that are listed, refused, planned, contacted for their name or given up: not all of them have an instance.
                for (hosts, keys) in [
                    ("/spec/inventory/hosts", ["name", "address"]),
                    ("/status/refused", ["host", "host"]),
                    ("/status/plan/hosts", ["host", "host"]),
                    ("/status/contacts", ["hostname", "address"]),
                    ("/status/uncleanHosts", ["name", "address"]),
                ] {
                    for host in object.pointer(hosts).and_then(Value::as_array).into_iter().flatten() {
                        keys.iter().filter_map(|key| host[*key].as_str()).for_each(|name| self.host(name));
                    }
                }
                self.host(text("/spec/ssh/jumpHost/address").unwrap_or_default());
                self.urls(object);
            }
            "ConfigMap" if text("/metadata/name") == Some(api::names::WINDOWS_INSTANCES) => {
                let data = object["data"].as_object();
                data.into_iter().flat_map(serde_json::Map::keys).for_each(|name| self.host(name));
            }
            "Machine" => {
                for pointer in ["/metadata/name", "/metadata/labels/cluster.x-k8s.io~1cluster-name"] {
                    self.host(text(pointer).unwrap_or_default());
                }
            }
            "DNS" => text("/spec/baseDomain").into_iter().for_each(|name| self.domain(name)),
            "Infrastructure" => {
                // With it begin the names of Machines, MachineSets and nodes, and it begins with that of the cluster.
                self.host(text("/status/infrastructureName").unwrap_or_default());
                self.urls(object);
            }
            "Proxy" => self.urls(object),
            _ => {}
        }
    }

    fn urls(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.url(text),
            Value::Array(items) => items.iter().for_each(|v| self.urls(v)),
            Value::Object(fields) => fields.values().for_each(|v| self.urls(v)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Domains of this product, of Kubernetes and of its images: without them no object can be read.
const KEPT: [&str; 8] =
    ["openshift.io", "kubernetes.io", "k8s.io", "microsoft.com", "github.com", "cluster.local", "svc", "coreos.com"];

fn is_dns_name(name: &str) -> bool {
    (1..=253).contains(&name.len())
        && name.split('.').all(|label| {
            !label.is_empty()
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
                && label.starts_with(|c: char| c.is_ascii_alphanumeric())
                && label.ends_with(|c: char| c.is_ascii_alphanumeric())
        })
}

/// Pseudonyms of names and addresses.
#[derive(Debug)]
pub(crate) struct Pseudonyms {
    names: BTreeMap<String, String>,
    pattern: Option<Regex>,
    addresses: Mutex<BTreeMap<IpAddr, String>>,
}

impl Pseudonyms {
    /// Pseudonyms for these names. Addresses get theirs when they are first met.
    pub(crate) fn new(names: &Names) -> Self {
        let hosts = names.hosts.iter().filter(|name| !names.domains.contains(*name));
        let hosts = hosts.enumerate().map(|(n, name)| (name.clone(), format!("x-host-{}-x", n + 1)));
        let domains = names.domains.iter().enumerate().map(|(n, name)| (name.clone(), format!("x-domain-{}-x", n + 1)));
        let names: BTreeMap<String, String> = hosts.chain(domains).collect();
        let mut longest_first: Vec<&String> = names.keys().collect();
        longest_first.sort_by_key(|name| std::cmp::Reverse(name.len()));
        let alternatives: Vec<String> = longest_first.into_iter().map(|name| regex::escape(name)).collect();
        let pattern = (!alternatives.is_empty()).then(|| format!(r"(?i)\b(?:{})\b", alternatives.join("|")));
        let compile = |pattern: String| regex::RegexBuilder::new(&pattern).size_limit(64 << 20).build().ok();
        Self { pattern: pattern.and_then(compile), names, addresses: Mutex::default() }
    }

    /// Whether every known name can be replaced: some ten thousand can, a million cannot.
    pub(crate) fn is_complete(&self) -> bool {
        self.names.is_empty() || self.pattern.is_some()
    }

    /// The text with pseudonyms.
    pub(crate) fn apply(&self, text: &str) -> String {
        let name = |found: &regex::Captures<'_>| {
            self.names.get(&found[0].to_lowercase()).cloned().unwrap_or_else(|| found[0].to_owned())
        };
        let text = match &self.pattern {
            Some(pattern) => pattern.replace_all(text, name),
            None => text.into(),
        };
        ADDRESS.replace_all(&text, |found: &regex::Captures<'_>| self.address(&found[0])).into_owned()
    }

    fn address(&self, text: &str) -> String {
        // The end of a sentence or a list, as in `fe80::1:`.
        let trimmed = text.trim_end_matches(':');
        let address = [text, trimmed].into_iter().find_map(|t| Some((t, t.parse::<IpAddr>().ok()?)));
        let Some((matched, address)) = address.filter(|(_, address)| !is_kept(address)) else { return text.to_owned() };
        let mut addresses = self.addresses.lock();
        let number = addresses.len() + 1;
        let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
        let pseudonym = addresses.entry(address).or_insert_with(|| format!("x-{family}-{number}-x"));
        format!("{pseudonym}{}", &text[matched.len()..])
    }

    /// What stands for what, by pseudonym, for who has to find a host again.
    pub(crate) fn table(&self) -> BTreeMap<String, String> {
        let names = self.names.iter().map(|(name, pseudonym)| (pseudonym.clone(), name.clone()));
        let addresses = self.addresses.lock();
        names.chain(addresses.iter().map(|(address, pseudonym)| (pseudonym.clone(), address.to_string()))).collect()
    }
}

/// Addresses that are the same everywhere, and masks.
fn is_kept(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.octets()[0] == 0 || v4.octets()[0] == 255,
        IpAddr::V6(v6) => {
            v6.is_loopback()
                || *v6 == Ipv6Addr::UNSPECIFIED
                || v6.to_ipv4_mapped().is_some_and(|v4: Ipv4Addr| v4.is_loopback())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn names() -> Names {
        let mut names = Names::default();
        for object in [
            json!({"kind": "Node", "metadata": {"name": "win-1", "labels": {"kubernetes.io/hostname": "win-1"}},
                "status": {"addresses": [{"address": "10.1.2.3"}, {"address": "WIN-1.corp.example.com"}]}}),
            json!({"kind": "WindowsInstance", "metadata": {"name": "win-10"}, "spec": {"host": {"address": "10.1.2.4"}}}),
            json!({"kind": "Infrastructure", "status": {
                "apiServerURL": "https://api.prod.example.net:6443", "infrastructureName": "prod-x7k2p",
            }}),
        ] {
            names.learn(&object);
        }
        names
    }

    #[test]
    fn names_addresses_and_domains_have_pseudonyms() {
        let pseudonyms = Pseudonyms::new(&names());
        for (text, expected) in [
            ("node win-1 and win-10", "node x-host-2-x and x-host-4-x"),
            ("WIN-1.CORP.example.com", "x-host-3-x"),
            ("MachineSet prod-x7k2p-windows of prod-x7k2p", "MachineSet x-host-1-x-windows of x-host-1-x"),
            ("other.corp.example.com", "other.x-domain-1-x"),
            ("https://api.prod.example.net:6443/x", "https://api.x-domain-2-x:6443/x"),
            ("kube-proxy-win-1.yaml", "kube-proxy-x-host-2-x.yaml"),
            ("win-11 darwin-1 win-1a", "win-11 darwin-1 win-1a"),
            ("10.1.2.3:22, 10.1.2.3/32", "x-ipv4-1-x:22, x-ipv4-1-x/32"),
            ("[fd00::1]:22 FD00:0::1", "[x-ipv6-2-x]:22 x-ipv6-2-x"),
            ("127.0.0.1 ::1 0.0.0.0 255.255.255.0", "127.0.0.1 ::1 0.0.0.0 255.255.255.0"),
            ("12:34:56 10.0.20348.2527 a::b::c x: y", "12:34:56 10.0.20348.2527 a::b::c x: y"),
        ] {
            assert_eq!(pseudonyms.apply(text), expected, "{text}");
        }
        let table = pseudonyms.table();
        assert_eq!((table["x-host-2-x"].as_str(), table["x-ipv4-1-x"].as_str()), ("win-1", "10.1.2.3"));
        assert!(pseudonyms.is_complete());
    }

    #[test]
    fn names_are_learned_from_wherever_a_kind_has_them() {
        let instance =
            |status: Value| json!({"kind": "WindowsInstance", "metadata": {"name": "node-1"}, "status": status});
        let pool =
            |status: Value| json!({"kind": "WindowsNodePool", "metadata": {"name": "factory"}, "status": status});
        for (about, object) in [
            ("Windows' own name", instance(json!({"facts": {"hostname": "SECRET-PC"}}))),
            ("its domain", instance(json!({"facts": {"domain": "secret-pc.example"}}))),
            ("refused", pool(json!({"refused": [{"host": "secret-pc"}]}))),
            ("planned", pool(json!({"plan": {"hosts": [{"host": "secret-pc"}]}}))),
            ("contacted", pool(json!({"contacts": [{"address": "10.0.0.1", "hostname": "secret-pc"}]}))),
            ("given up", pool(json!({"uncleanHosts": [{"name": "secret-pc", "address": "10.0.0.1"}]}))),
        ] {
            let mut names = Names::default();
            names.learn(&object);
            let written = Pseudonyms::new(&names).apply("kubelet on secret-pc.example of Factory");
            assert!(!written.contains("secret-pc"), "{about}: {written}");
        }
    }

    proptest! {
        #[test]
        fn no_address_is_left(v4 in any::<[u8; 4]>(), v6 in any::<[u16; 8]>(), before in "[ \n\"\\[(=,/]", after in "[ \n\"\\]),/]") {
            let pseudonyms = Pseudonyms::new(&Names::default());
            for address in [IpAddr::from(v4), IpAddr::from(v6)] {
                let written = pseudonyms.apply(&format!("{before}{address}{after}"));
                prop_assert!(is_kept(&address) || !written.contains(&address.to_string()), "{written}");
            }
        }

        #[test]
        fn any_name_and_any_text_is_taken(name in "\\PC{0,40}", text in "\\PC{0,100}") {
            let mut names = Names::default();
            names.host(&name);
            names.url(&name);
            let pseudonyms = Pseudonyms::new(&names);
            prop_assert!(pseudonyms.is_complete());
            pseudonyms.apply(&text);
        }
    }
}
