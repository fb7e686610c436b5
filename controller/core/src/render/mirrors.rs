//! Mirrors of image registries, as `hosts.toml` of containerd.
//!
//! OpenShift's kinds name mirrors for each repository; containerd has mirrors for each registry. Rules that containerd cannot express are left out.
//! [`problems`] reports these rules, and rules that containerd extends to other repositories, with exceptions for release images. The format:
//! <https://github.com/containerd/containerd/blob/main/docs/hosts.md>.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

use super::PullSecret;

/// Directory that containerd reads at each pull, the same as WMCO's. containerd's configuration in the payload names it.
const DIRECTORY: &str = r"C:\k\containerd\registries";
/// Name of Docker Hub in images, and the registry that serves them.
const DOCKER_HUB: (&str, &str) = ("docker.io", "registry-1.docker.io");
/// Header with a login. Only in this spelling does a registry's token replace the header. With another spelling containerd sends both, and a proxy in
/// front of the registry may refuse that.
const AUTHORIZATION: &str = "Authorization";
/// OpenShift kinds from which WMCO reads mirrors.
const READ_BY_WMCO: [&str; 2] = ["ImageDigestMirrorSet/", "ImageTagMirrorSet/"];
/// Sources of release images of OpenShift and OKD. Each disconnected cluster has mirrors for them, and Windows hosts do not pull such images.
const RELEASE_IMAGES: [&str; 3] =
    ["quay.io/openshift-release-dev", "quay.io/okd/scos-release", "quay.io/okd/scos-content"];
/// Host name that never resolves (RFC 2606), for a source that must not be contacted and has no mirror.
const NOWHERE: &str = "never-contact-source.invalid";

/// Rule that names mirrors of a source.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MirrorRule {
    /// Object that has the rule, for example `ImageDigestMirrorSet/factory`.
    pub origin: String,
    /// Registry of the source, optionally with the path of an organisation or a repository.
    pub source: String,
    /// Registry of each mirror, optionally with a path, in order of preference.
    pub mirrors: Vec<String>,
    /// True if the rule also applies to images that are named by tag.
    pub tags: bool,
    /// True if the source must never be contacted.
    pub never_source: bool,
}

impl MirrorRule {
    /// Reports whether the rule is for release images, which Windows hosts do not pull.
    fn is_of_release(&self) -> bool {
        let rest = RELEASE_IMAGES.iter().find_map(|images| self.source.strip_prefix(images));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Registry with a path, for example `mirror.example.com:5000/openshift/release`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Location<'a> {
    registry: &'a str,
    path: &'a str,
}

impl<'a> Location<'a> {
    fn parse(text: &'a str) -> Result<Self, &'static str> {
        let (registry, path) = text.split_once('/').unwrap_or((text, ""));
        if registry.starts_with("*.") {
            return Err("containerd has no mirrors for all registries of a domain; name each registry");
        }
        let (name, port) = registry.split_once(':').map_or((registry, None), |(name, port)| (name, Some(port)));
        let label = |label: &str| {
            label.starts_with(|c: char| c.is_ascii_alphanumeric())
                && label.ends_with(|c: char| c.is_ascii_alphanumeric())
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        let part = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_alphanumeric())
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        };
        let is_port = port.is_none_or(|p| p.parse::<u16>().is_ok_and(|p| p > 0) && !p.starts_with(['+', '0']));
        let is_path = text.len() == registry.len() || path.split('/').all(part);
        if name.len() > 100 || !name.split('.').all(label) || !is_port || !is_path {
            return Err("it must be a registry such as registry.example.com:5000, optionally with a path");
        }
        Ok(Self { registry, path })
    }
}

/// Endpoint that containerd contacts: a registry, and the prefix of image paths there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Endpoint {
    registry: String,
    prefix: String,
}

impl Endpoint {
    fn url(&self) -> String {
        let separator = if self.prefix.is_empty() { "" } else { "/" };
        format!("https://{}/v2{separator}{}", self.registry, self.prefix)
    }
}

/// Returns the endpoint of a mirror, if the mirror has every image of the source under the same path.
fn endpoint(source: Location<'_>, mirror: Location<'_>) -> Option<Endpoint> {
    let before = mirror.path.strip_suffix(source.path)?;
    let prefix = if source.path.is_empty() || before.is_empty() { before } else { before.strip_suffix('/')? };
    let registry = if mirror.registry == DOCKER_HUB.0 { DOCKER_HUB.1 } else { mirror.registry };
    Some(Endpoint { registry: registry.to_owned(), prefix: prefix.to_owned() })
}

/// Rules that containerd can follow, by registry, and problems with the others.
#[derive(Debug, Default)]
struct Merged<'a> {
    registries: BTreeMap<&'a str, Registry<'a>>,
    problems: Vec<String>,
}

#[derive(Debug, Default)]
struct Registry<'a> {
    mirrors: Vec<Mirror<'a>>,
    never_source: bool,
    /// Rules that the registry follows, each with the endpoints of its mirrors.
    rules: Vec<(&'a MirrorRule, Vec<Endpoint>)>,
}

/// Endpoint of a mirror, with the rules that name it.
#[derive(Debug)]
struct Mirror<'a> {
    endpoint: Endpoint,
    tags: bool,
    /// Rules that name the mirror, each with the full path of its mirror, which selects the login.
    paths: Vec<(&'a MirrorRule, &'a str)>,
}

impl Mirror<'_> {
    /// Returns the login of the first rule that has one: containerd sends one header to each endpoint.
    fn login<'s>(&self, secret: &'s PullSecret) -> Option<&'s str> {
        self.logins(secret).map(|(_, _, login)| login).next()
    }

    fn logins<'s>(&self, secret: &'s PullSecret) -> impl Iterator<Item = (&MirrorRule, &str, &'s str)> {
        let login = |path| secret.of(&self.endpoint.registry, path);
        self.paths.iter().filter_map(move |(rule, path)| Some((*rule, *path, login(path)?)))
    }
}

fn merge(rules: &[MirrorRule]) -> Merged<'_> {
    let mut merged = Merged::default();
    for rule in rules {
        let MirrorRule { origin, source, mirrors, .. } = rule;
        let place = match Location::parse(source) {
            Ok(place) => place,
            Err(problem) => {
                merged.problems.push(format!("{origin}: the source {source:?} is left out: {problem}"));
                continue;
            }
        };
        let mut endpoints = Vec::new();
        for mirror in mirrors {
            match Location::parse(mirror).map(|m| endpoint(place, m).map(|endpoint| (endpoint, m.path))) {
                Ok(Some(endpoint)) => endpoints.push(endpoint),
                _ if rule.is_of_release() => {}
                Ok(None) => merged.problems.push(format!(
                    "{origin}: the mirror {mirror:?} of {source:?} is left out: its path must end with {:?}, the source's, because containerd \
                     adds the whole path of an image",
                    place.path
                )),
                Err(problem) => {
                    merged.problems.push(format!("{origin}: the mirror {mirror:?} of {source:?} is left out: {problem}"));
                }
            }
        }
        if endpoints.is_empty() && !(rule.never_source && mirrors.is_empty()) {
            // NeverContactSource without a usable mirror would make the images of the registry unreachable.
            if rule.never_source && !rule.is_of_release() {
                merged.problems.push(format!(
                    "{origin}: NeverContactSource of {source:?} is left out, because none of its mirrors can be used; correct the mirrors"
                ));
            }
            continue;
        }
        let registry = merged.registries.entry(place.registry).or_default();
        registry.never_source |= rule.never_source;
        for (endpoint, path) in &endpoints {
            match registry.mirrors.iter_mut().find(|known| known.endpoint == *endpoint) {
                Some(known) => {
                    known.tags |= rule.tags;
                    known.paths.push((rule, path));
                }
                None => registry.mirrors.push(Mirror {
                    endpoint: endpoint.clone(),
                    tags: rule.tags,
                    paths: vec![(rule, path)],
                }),
            }
        }
        registry.rules.push((rule, endpoints.into_iter().map(|(endpoint, _)| endpoint).collect()));
    }
    merged
}

/// Returns the sources whose mirrors WMCO gives to hosts and this operator does not, because containerd cannot follow their rules. `own` are the
/// rules of a pool: a source is left out of the result if a usable rule of the pool names it or its whole registry.
pub(super) fn not_followed(cluster: &[MirrorRule], own: &[MirrorRule]) -> Vec<String> {
    let is_followed =
        |rule: &MirrorRule| merge(std::slice::from_ref(rule)).registries.values().any(|r| !r.mirrors.is_empty());
    let registry = |source: &str| source.split('/').next().unwrap_or_default().to_owned();
    let is_named = |source: &str| {
        let is_same = |rule: &&MirrorRule| rule.source == source || rule.source == registry(source);
        own.iter().any(|rule| is_same(&rule) && is_followed(rule))
    };
    let is_lost = |rule: &&MirrorRule| {
        let of_wmco = READ_BY_WMCO.iter().any(|kind| rule.origin.starts_with(kind)) && !rule.mirrors.is_empty();
        of_wmco && !rule.is_of_release() && !is_followed(rule) && !is_named(&rule.source)
    };
    let mut sources: Vec<String> = cluster.iter().filter(is_lost).map(|rule| rule.source.clone()).collect();
    sources.sort();
    sources.dedup();
    sources
}

/// Lists problems for users: rules that are left out, rules that extend to other repositories, and logins that are not used. Of rules for release
/// images, only an invalid source, and a source that is never contacted, are reported.
pub(super) fn problems(rules: &[MirrorRule], secret: &PullSecret) -> Vec<String> {
    let Merged { registries, mut problems } = merge(rules);
    for (name, registry) in registries {
        // A rule for a whole registry does not extend to other repositories.
        let in_part = |(rule, _): &&(&MirrorRule, Vec<Endpoint>)| rule.source != name;
        for (rule, _) in registry.rules.iter().filter(in_part) {
            let MirrorRule { origin, source, mirrors, .. } = rule;
            let mirrors = mirrors.join(", ");
            if rule.never_source {
                problems.push(format!(
                    "{origin}: NeverContactSource of {source:?} applies on Windows to all of {name}, because containerd has mirrors of whole \
                     registries only. If that is intended, name {name} as the source; otherwise set AllowContactingSource"
                ));
            }
            if rule.tags && !rule.is_of_release() {
                problems.push(format!(
                    "{origin}: requests for tags of all images of {name} go to the mirrors of {source:?} ({mirrors}) first, because containerd \
                     has mirrors of whole registries only. If that is intended, name {name} as the source; otherwise use these mirrors for digests only"
                ));
            }
        }
        problems.extend(redirected(name, &registry));
        problems.extend(registry.mirrors.iter().flat_map(|mirror| unused_logins(mirror, secret)));
    }
    problems
}

/// Returns messages about rules for parts of a registry whose images are also requested from other mirrors: those of other parts, or those of the
/// whole registry.
fn redirected(name: &str, registry: &Registry<'_>) -> Vec<String> {
    let (parts, wholes): (Vec<_>, Vec<_>) = registry.rules.iter().partition(|(rule, _)| rule.source != name);
    // Rules for tags of a part have been reported already.
    let parts: Vec<_> = parts.into_iter().filter(|(rule, _)| !rule.tags && !rule.is_of_release()).collect();
    let others = if wholes.is_empty() { &parts[..parts.len().min(1)] } else { &wholes[..] };
    let urls = |endpoints: &[Endpoint]| endpoints.iter().map(Endpoint::url).collect::<Vec<_>>().join(", ");
    let redirect = |(rule, endpoints): &&(&MirrorRule, Vec<Endpoint>)| {
        let (other, _) = others.iter().find(|(_, others)| others != endpoints)?;
        Some(format!(
            "{}: images of {:?} are also requested from the mirrors of {:?} ({}), and the other way round, because containerd has mirrors of whole \
             registries only. What a mirror lacks comes from the next one; to avoid these requests, use the same mirrors for all of {name}",
            rule.origin,
            other.source,
            rule.source,
            urls(endpoints)
        ))
    };
    parts.iter().filter_map(redirect).collect()
}

/// Returns messages about logins of a mirror that are not used: containerd sends only one login to each endpoint.
fn unused_logins(mirror: &Mirror<'_>, secret: &PullSecret) -> Vec<String> {
    let Some(used) = mirror.login(secret) else { return Vec::new() };
    let shown = |path: &str| format!("{}/{path}", mirror.endpoint.registry).trim_end_matches('/').to_owned();
    let first = mirror.logins(secret).map(|(_, path, _)| path).next().unwrap_or_default();
    let unused = mirror.logins(secret).filter(|(rule, _, login)| *login != used && !rule.is_of_release());
    unused
        .map(|(MirrorRule { origin, source, .. }, path, _)| {
            format!(
                "{origin}: images of {source:?} are requested from the mirror {:?} with the login of {:?}, because containerd has one login for {}; use a login that may read both",
                shown(path),
                shown(first),
                mirror.endpoint.url()
            )
        })
        .collect()
}

/// Returns path and content of each `hosts.toml`.
pub(super) fn files(rules: &[MirrorRule], secret: &PullSecret) -> Vec<(String, String)> {
    let merged = merge(rules);
    merged.registries.iter().map(|(name, registry)| (path(name), hosts_toml(registry, secret))).collect()
}

/// Returns the path of a registry's `hosts.toml`. Windows does not allow colons in names, and containerd reads this form instead.
fn path(registry: &str) -> String {
    let name = registry.split_once(':').map_or_else(|| registry.to_owned(), |(name, port)| format!("{name}_{port}_"));
    format!(r"{DIRECTORY}\{name}\hosts.toml")
}

#[derive(Serialize)]
struct HostsToml {
    /// Server that containerd contacts last. Without this field, containerd contacts the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    #[serde(flatten)]
    last: Option<Host>,
    #[serde(serialize_with = "in_order", skip_serializing_if = "Vec::is_empty")]
    host: Vec<(String, Host)>,
}

#[derive(Clone, Serialize)]
struct Host {
    capabilities: &'static [&'static str],
    /// True if containerd must not extend the path of the URL.
    override_path: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    header: BTreeMap<&'static str, String>,
}

/// Writes mirrors in the order of the list, in which containerd contacts them.
fn in_order<S: Serializer>(hosts: &[(String, Host)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(hosts.iter().map(|(url, host)| (url, host)))
}

fn hosts_toml(registry: &Registry<'_>, secret: &PullSecret) -> String {
    let host = |mirror: &Mirror<'_>| {
        let basic = mirror.login(secret).map(|basic| format!("Basic {basic}"));
        let header = basic.map(|value| (AUTHORIZATION, value)).into_iter().collect();
        let capabilities: &[&str] = if mirror.tags { &["pull", "resolve"] } else { &["pull"] };
        Host { capabilities, override_path: true, header }
    };
    let hosts: Vec<(String, Host)> = registry.mirrors.iter().map(|m| (m.endpoint.url(), host(m))).collect();
    let (server, last) = match hosts.first() {
        _ if !registry.never_source => (None, None),
        Some((url, host)) => (Some(url.clone()), Some(host.clone())),
        None => (Some(format!("https://{NOWHERE}/v2")), None),
    };
    // Serialization does not fail: TOML has all of these types.
    toml::to_string(&HostsToml { server, last, host: hosts }).unwrap_or_default()
}

#[cfg(test)]
#[path = "mirrors_tests.rs"]
mod tests;
