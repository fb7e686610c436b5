//! Allowed artifact servers. Any client that may write the status of a Flux object controls the URL of its artifact, so the operator connects only to
//! Services of this cluster, and to hosts that a user allows.

use std::net::SocketAddr;

use reqwest::Url;
use wnp_core::csr::claims::reserved::is_of_service;

/// Servers from which artifacts may be fetched.
#[derive(Clone, Debug, Default)]
pub(crate) struct Servers {
    /// DNS domain of the cluster.
    pub domain: String,
    /// Hosts that a user allows with `--artifact-host`, in lower case.
    pub others: Vec<String>,
}

impl Servers {
    /// Returns the URL of an artifact if its server is allowed. The error names only the host of the URL, because the rest may contain a secret.
    pub(crate) fn url(&self, text: &str) -> Result<Url, String> {
        let check = "check who writes the status of the source";
        let url = Url::parse(text).map_err(|_| format!("its URL cannot be read: {check}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("its URL is neither http nor https: {check}"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(format!("its URL has a user name or password in it, which Flux never writes: {check}"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(format!("its URL has a `?` or `#` in it, which Flux never writes: {check}"));
        }
        let host = url.host_str().unwrap_or_default().to_ascii_lowercase();
        if self.is_service(&host) || self.others.contains(&host) {
            return Ok(url);
        }
        let host = api::text::line(&host, 253);
        Err(format!(
            "its server {host} is not a Service of this cluster (<service>.<namespace>.svc, or the same followed by .{}): if the operator may \
             contact this server, start the operator with --artifact-host {host}; if the cluster has another DNS domain, start it with --cluster-domain",
            self.domain
        ))
    }

    /// Returns those of the server's addresses in `found` that the operator may contact, or an error if there are none. `services` is the service
    /// network: a Service must have an address in it, because a Service of type `ExternalName` can name any server.
    pub(crate) fn addresses(
        &self,
        url: &Url,
        found: impl Iterator<Item = SocketAddr>,
        services: &str,
    ) -> Result<Vec<SocketAddr>, String> {
        let is_named = self.others.contains(&url.host_str().unwrap_or_default().to_ascii_lowercase());
        let addresses: Vec<SocketAddr> = found.filter(|a| is_named || is_of_service(services, a.ip())).collect();
        if addresses.is_empty() {
            let host = url.host_str().unwrap_or_default();
            return Err(format!(
                "its server {host} has no address in the network of Services ({services}): if the operator may contact this server, start the operator \
                 with --artifact-host {host}; if the network is incomplete, start it with --service-cidr"
            ));
        }
        Ok(addresses)
    }

    /// Reports whether a host is a Service: `<service>.<namespace>.svc`, with or without the cluster's domain and a trailing dot.
    fn is_service(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        let short = host.strip_suffix(&self.domain).and_then(|h| h.strip_suffix('.')).unwrap_or(host);
        let parts: Vec<&str> = short.split('.').collect();
        matches!(parts.as_slice(), [service, namespace, "svc"] if !service.is_empty() && !namespace.is_empty())
    }
}

/// Returns the parts of a URL that contain no secret: scheme, host, port and path.
pub(crate) fn shown(text: &str) -> String {
    Url::parse(text).map_or_else(
        |_| "a URL that cannot be read".to_owned(),
        |url| {
            let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
            let (scheme, host) = (url.scheme(), url.host_str().unwrap_or_default());
            api::text::line(&format!("{scheme}://{host}{port}{}", url.path()), 300)
        },
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn artifacts_are_fetched_only_from_services_of_this_cluster() {
        let servers = Servers { domain: "cluster.local".into(), others: vec!["artifacts.example.com".into()] };
        for (url, expected) in [
            ("http://source-controller.flux-system.svc.cluster.local./gitrepository/f/n/a.tar.gz", None),
            ("http://source-controller.flux-system.svc.cluster.local/a", None),
            ("http://source-controller.flux-system.svc/a", None),
            ("https://artifacts.example.com:8443/a", None),
            ("http://169.254.169.254/latest/meta-data/", Some("Service")),
            ("http://kubernetes.default/a", Some("Service")),
            ("http://a.b.svc.example.com/a", Some("Service")),
            ("http://x.a.b.svc.cluster.local/a", Some("Service")),
            ("http://127.0.0.1:9183/log-level", Some("Service")),
            ("http://a.b.svc@evil.example/a", Some("user name")),
            ("http://u:p@a.b.svc/a", Some("user name or password")),
            ("http://a.b.svc/a?token=secret", Some("`?`")),
            ("http://a.b.svc/a#secret", Some("`?` or `#`")),
            ("file:///etc/passwd", Some("neither http")),
            ("a.b.svc/a", Some("cannot be read")),
            ("", Some("cannot be read")),
        ] {
            let problem = servers.url(url).err();
            assert_eq!(problem.is_some(), expected.is_some(), "{url}: {problem:?}");
            let problem = problem.unwrap_or_default();
            assert!(problem.contains(expected.unwrap_or_default()), "{url}: {problem}");
        }
    }

    #[test]
    fn a_service_without_an_address_of_the_service_network_is_refused() {
        let servers = Servers { domain: "cluster.local".into(), others: vec!["artifacts.example.com".into()] };
        for (url, found, expected) in [
            ("http://a.b.svc/a", &["10.96.0.7:80"][..], 1),
            ("http://a.b.svc/a", &["10.96.0.7:80", "169.254.169.254:80"], 1),
            ("http://a.b.svc/a", &["169.254.169.254:80"], 0),
            ("http://a.b.svc/a", &[], 0),
            ("http://artifacts.example.com/a", &["203.0.113.7:80"], 1),
        ] {
            let found = found.iter().map(|address| address.parse().unwrap());
            let asked = servers.addresses(&Url::parse(url).unwrap(), found, "10.96.0.0/12,fd02::/112");
            assert_eq!(asked.unwrap_or_default().len(), expected, "{url}");
        }
    }

    #[test]
    fn a_displayed_url_has_no_secret() {
        for (url, expected) in [
            ("http://a.b.svc:8080/x/y.tar.gz", "http://a.b.svc:8080/x/y.tar.gz"),
            ("https://me:secret@example.com/a?token=secret#secret", "https://example.com/a"),
            ("ssh://git:secret@example.com/a", "ssh://example.com/a"),
            ("secret", "a URL that cannot be read"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }

    proptest! {
        #[test]
        fn a_displayed_url_has_no_user(user in "[a-z0-9:%]{1,20}", query in "[a-zA-Z0-9=&]{0,20}") {
            let shown = shown(&format!("https://{user}@example.com/a?{query}"));
            prop_assert!(shown == "https://example.com/a" || shown == "a URL that cannot be read", "{}", shown);
        }
    }
}
