//! Matching of images with the registry logins in `config.json`, by kubelet's rules, so that mirrors and images that are pulled ahead get the login
//! that kubelet would use.

/// Equivalent names of Docker Hub.
const DOCKER_HUB: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

/// Returns registry and path of a key, without a scheme and without the API version at its end, as in `https://index.docker.io/v1/` for Docker Hub.
pub fn location(key: &str) -> &str {
    let rest = key.split_once("://").map_or(key, |(_, rest)| rest).trim_end_matches('/');
    rest.strip_suffix("/v1").or_else(|| rest.strip_suffix("/v2")).unwrap_or(rest)
}

/// Splits a location into registry and path, which may be empty.
pub fn split(location: &str) -> (&str, &str) {
    location.split_once('/').unwrap_or((location, ""))
}

/// Returns all equivalent names of a registry.
pub fn names(registry: &str) -> Vec<&str> {
    if DOCKER_HUB.contains(&registry) { DOCKER_HUB.to_vec() } else { vec![registry] }
}

/// Returns the rank of a login for images below a path of a registry, or `None` if its key does not match. kubelet tries the logins in descending
/// order of their locations as text: `*` sorts before letters and digits, and a location before a longer one that begins with it.
pub fn specificity<'a>(key: &'a str, registry: &str, path: &str) -> Option<&'a str> {
    let location = location(key);
    let (pattern, prefix) = split(location);
    (is_registry(pattern, registry) && is_below(path, prefix)).then_some(location)
}

/// Reports whether a path is equal to or below another one, optionally with a tag or a digest.
pub fn is_below(path: &str, above: &str) -> bool {
    let end = |rest: &str| rest.is_empty() || rest.starts_with(['/', ':', '@']);
    above.is_empty() || path.strip_prefix(above).is_some_and(end)
}

/// Reports whether a key matches a registry: each part of the name is equal or matches a pattern with `*`, and the ports are equal. Only the names of
/// Docker Hub match Docker Hub.
fn is_registry(pattern: &str, registry: &str) -> bool {
    if DOCKER_HUB.contains(&registry) {
        return DOCKER_HUB.contains(&pattern);
    }
    let ((pattern, port), (name, port_of)) = (host_and_port(pattern), host_and_port(registry));
    let parts = || pattern.split('.').zip(name.split('.'));
    port == port_of
        && pattern.split('.').count() == name.split('.').count()
        && parts().all(|(pattern, part)| fits(pattern, part))
}

fn host_and_port(registry: &str) -> (&str, &str) {
    registry.rsplit_once(':').unwrap_or((registry, ""))
}

/// Reports whether a text matches a pattern in which `*` stands for any text.
fn fits(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else { return rest.is_empty() };
    for piece in middle {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_key_wins() {
        for (keys, registry, path, expected) in [
            (&["r.example", "r.example/team"][..], "r.example", "team/app", Some("r.example/team")),
            (&["r.example", "r.example/team"], "r.example", "teams/app", Some("r.example")),
            (&["r.example/team/app"], "r.example", "team/app@sha256:0", Some("r.example/team/app")),
            (&["r.example:5000"], "r.example", "app", None),
            (&["r.example:5000", "r.example"], "r.example:5000", "app", Some("r.example:5000")),
            (&["*.example"], "r.example", "app", Some("*.example")),
            (&["*.example", "r.example"], "r.example", "app", Some("r.example")),
            (&["*.example/team", "r.example"], "r.example", "team", Some("r.example")),
            (&["https://*.example", "r.example"], "r.example", "app", Some("r.example")),
            (&["*.example"], "a.r.example", "app", None),
            (&["*.example"], "example", "app", None),
            (&["*.example"], "r.example:5000", "app", None),
            (&["*.example:5000"], "r.example:5000", "app", Some("*.example:5000")),
            (&["*"], "r.example", "app", None),
            (&["*"], "localhost", "app", Some("*")),
            (&["r*y.example"], "registry.example", "app", Some("r*y.example")),
            (&["https://r.example/v2/"], "r.example", "app", Some("https://r.example/v2/")),
            (&["docker.io"], "registry-1.docker.io", "library/app", Some("docker.io")),
            (&["*.docker.io"], "registry-1.docker.io", "library/app", None),
            (&["docker.io"], "quay.io", "app", None),
        ] {
            let found = keys.iter().filter_map(|key| specificity(key, registry, path).map(|s| (s, *key)));
            let found = found.max_by_key(|(rank, _)| *rank).map(|(_, key)| key);
            assert_eq!(found, expected, "{keys:?} {registry}/{path}");
        }
    }
}
