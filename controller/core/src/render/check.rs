//! Checks of facts, which come from API objects, before they are written to command lines and files.

use std::net::{IpAddr, Ipv4Addr};

use api::payload::is_host_path;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use x509_parser::pem::Pem;

use super::{Cluster, HostParams, Network, Proxy, RenderError, TlsPair};

type Checked = Result<(), RenderError>;

fn require(good: bool, what: &'static str, value: &str, problem: &'static str) -> Checked {
    if good { Ok(()) } else { Err(RenderError::Fact { what, value: value.to_owned(), problem }) }
}

/// Checks the facts for the services.
pub(super) fn services(cluster: &Cluster) -> Checked {
    api_server(cluster)?;
    if let Network::OvnHybrid { vxlan_port: Some(port) } = cluster.network {
        require(
            port > 0,
            "VXLAN port",
            &port.to_string(),
            "it must be 1 to 65535; correct --vxlan-port of the operator, or hybridOverlayVXLANPort of the cluster's network",
        )?;
    }
    if let Network::OvnHybrid { .. } = cluster.network {
        let cidr = cluster.service_network();
        let length = |l: &str| l.parse::<u8>().is_ok_and(|l| l <= 32);
        let is_network = cidr.split_once('/').is_some_and(|(a, l)| a.parse::<Ipv4Addr>().is_ok() && length(l));
        require(
            is_network,
            "service network",
            cidr,
            "the hybrid overlay needs an IPv4 network; set --service-cidr of the operator, for example to 172.30.0.0/16",
        )?;
    }
    for (what, directory) in [
        ("directory of CNI programs (--cni-bin-dir)", &cluster.cni_bin_dir),
        ("directory of CNI configuration (--cni-conf-dir)", &cluster.cni_conf_dir),
    ] {
        let Some(directory) = directory else { continue };
        require(is_host_path(directory), what, directory, r"it must be a directory on C:, for example C:\opt\cni\bin")?;
        let problem =
            r"users of the hosts would lose access to it: use a directory for CNI only, for example C:\opt\cni\bin";
        require(is_own_directory(directory), what, directory, problem)?;
        let is_external = cluster.network == Network::External;
        require(
            is_external,
            what,
            directory,
            "the hybrid overlay has its own; remove the setting, or set --network external",
        )?;
    }
    proxy(&cluster.proxy).map_err(|(what, problem)| RenderError::Fact { what, value: "hidden".to_owned(), problem })?;
    Ok(())
}

/// Reports whether a directory can be closed to a host's users: not directly on `C:`, and not a directory of Windows, of its users or shared by
/// programs.
fn is_own_directory(directory: &str) -> bool {
    let parts: Vec<String> = directory.split('\\').skip(1).map(str::to_ascii_lowercase).collect();
    match parts.first().map_or("", String::as_str) {
        "windows" | "users" => false,
        "program files" | "program files (x86)" | "programdata" => parts.len() > 2,
        _ => parts.len() > 1,
    }
}

/// Checks a proxy. The error has the faulty part and its fault, but no value: it may hold a password.
pub(super) fn proxy(proxy: &Proxy) -> Result<(), (&'static str, &'static str)> {
    // wicd on each host can read services ConfigMaps, and every program on a host can read its variables.
    const NO_PASSWORD: &str = "it must have no user name and no password, which every host could read; use a proxy that admits hosts by \
                               their addresses";
    for (what, value, is_url) in [
        ("HTTP proxy", &proxy.http, true),
        ("HTTPS proxy", &proxy.https, true),
        ("list of proxy exceptions", &proxy.no, false),
    ] {
        let value = value.as_deref().unwrap_or_default();
        if value.contains(['\0', '\r', '\n']) {
            return Err((what, "it must be one line"));
        }
        if is_url && value.contains('@') {
            return Err((what, NO_PASSWORD));
        }
    }
    Ok(())
}

/// Returns the reason why hosts cannot use a proxy, without any value of it.
pub fn proxy_problem(proxy: &Proxy) -> Option<String> {
    self::proxy(proxy).err().map(|(what, problem)| format!("its {what} cannot be used: {problem}"))
}

/// Checks the facts for the files that all hosts get.
pub(super) fn files(cluster: &Cluster) -> Checked {
    api_server(cluster)?;
    for (what, pem) in [("API server CA", &cluster.api_ca), ("kubelet client CA", &cluster.kubelet_client_ca)] {
        let problem = "it must be certificates in PEM; check the object from which the operator reads it";
        require(pem.contains("-----BEGIN CERTIFICATE-----"), what, "not shown", problem)?;
    }
    if let Some(pem) = &cluster.trusted_ca {
        trusted(pem.as_bytes())?;
    }
    for address in &cluster.cluster_dns {
        require(address.parse::<IpAddr>().is_ok(), "DNS address", address, "it must be an IP address")?;
    }
    Ok(())
}

/// Checks that each trusted certificate is readable: one damaged certificate makes a host refuse all of them.
fn trusted(pem: &[u8]) -> Checked {
    let Err(damaged) = certificates(pem) else { return Ok(()) };
    let problem = "the certificate is damaged; correct the ConfigMap trusted-ca in the operator's namespace";
    require(false, "trusted certificates", &format!("certificate {damaged}"), problem)
}

/// Returns the certificates in PEM, without the comments between them.
///
/// # Errors
/// Returns the number of the first damaged certificate.
pub fn certificates(pem: &[u8]) -> Result<String, usize> {
    const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
    const WIDTH: usize = 64;
    let wanted = pem.windows(BEGIN.len()).filter(|window| *window == BEGIN).count();
    let blocks = Pem::iter_from_buffer(pem).map_while(Result::ok).filter(|block| block.label == "CERTIFICATE");
    let good: Vec<Pem> = blocks.take_while(|block| block.parse_x509().is_ok()).collect();
    if good.len() != wanted {
        return Err(good.len() + 1);
    }
    let text = |block: &Pem| {
        let base64 = STANDARD.encode(&block.contents);
        let lines: Vec<&str> =
            (0..base64.len()).step_by(WIDTH).map(|at| &base64[at..base64.len().min(at + WIDTH)]).collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    };
    Ok(good.iter().map(text).collect())
}

impl TlsPair {
    /// Reports whether the pair consists of certificates and a key in PEM.
    pub fn is_usable(&self) -> bool {
        let has_certificates = certificates(self.certificate.as_bytes()).is_ok_and(|pem| !pem.is_empty());
        has_certificates && self.key.contains("-----BEGIN") && self.key.contains("PRIVATE KEY-----")
    }
}

/// Checks the facts for the files of one host.
pub(super) fn host(host: &HostParams) -> Checked {
    let (name, ip) = (&host.node_name, &host.node_ip);
    let fine = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    let is_name = (1..=253).contains(&name.len()) && name.bytes().all(fine);
    require(
        is_name,
        "node name",
        name,
        "it must be lower-case letters, digits, `-` and `.`; correct the name of the host in its list",
    )?;
    require(ip.parse::<IpAddr>().is_ok(), "node address", ip, "it must be an IP address")
}

fn api_server(cluster: &Cluster) -> Checked {
    let url = &cluster.api_server;
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"-._~:/[]%".contains(&b);
    let is_url = url.strip_prefix("https://").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(fine));
    require(
        is_url,
        "API server",
        url,
        "it must be an HTTPS URL; set --api-server of the operator to one such as https://host:port",
    )
}
