//! Count of the writes to the API server, by a layer of the client through which all of them pass.

use std::sync::Arc;

use http::{Method, Request};
use kube::client::Body;
use tower::util::MapRequestLayer;

use crate::runtime::metrics::Metrics;

/// API groups of reviews: a `POST` of a review stores nothing.
const REVIEWS: [&str; 2] = ["authentication.k8s.io", "authorization.k8s.io"];

/// Returns a layer of the client that counts each write in the metrics, also one that the API server refuses.
pub(crate) fn layer(
    metrics: Arc<Metrics>,
) -> MapRequestLayer<impl Fn(Request<Body>) -> Request<Body> + Clone + Send + Sync + 'static> {
    MapRequestLayer::new(move |request: Request<Body>| {
        if let Some(resource) = written(request.method(), request.uri().path(), request.uri().query()) {
            metrics.wrote(resource);
        }
        request
    })
}

/// Returns the resource that a request writes, for example `nodes` or `pods/eviction`.
fn written<'a>(method: &Method, path: &'a str, query: Option<&str>) -> Option<(&'a str, Option<&'a str>)> {
    let is_read = [Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
    let is_dry = query.is_some_and(|q| q.split('&').any(|p| p.starts_with("dryRun=")));
    if is_read || is_dry {
        return None;
    }
    if REVIEWS.iter().any(|group| path.strip_prefix("/apis/").is_some_and(|path| path.starts_with(group))) {
        return None;
    }
    resource_of(path)
}

/// Returns the resource of a request's path, and the subresource.
pub(crate) fn resource_of(path: &str) -> Option<(&str, Option<&str>)> {
    let mut parts = path.trim_start_matches('/').split('/');
    match parts.next()? {
        "api" => {}
        "apis" => drop(parts.next()?),
        _ => return None,
    }
    // Skips the version.
    parts.next()?;
    let mut resource = parts.next()?;
    if resource == "namespaces" {
        let namespace = parts.next();
        match parts.next() {
            Some(namespaced) => resource = namespaced,
            None => return namespace.map(|_| (resource, None)),
        }
    }
    // Skips the name.
    parts.next();
    Some((resource, parts.next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_write_is_counted_once_by_its_resource() {
        let write =
            |method, path: &str| written(&method, path, None).map(|(r, s)| (r.to_owned(), s.map(str::to_owned)));
        let of = |resource: &str, sub: Option<&str>| Some((resource.to_owned(), sub.map(str::to_owned)));
        for (method, path, expected) in [
            (Method::PATCH, "/api/v1/nodes/win-1", of("nodes", None)),
            (Method::POST, "/api/v1/namespaces/shop/pods/web/eviction", of("pods", Some("eviction"))),
            (Method::POST, "/apis/events.k8s.io/v1/namespaces/default/events", of("events", None)),
            (Method::DELETE, "/api/v1/namespaces/shop", of("namespaces", None)),
            (
                Method::PATCH,
                "/apis/windowsmachineconfig.openshift.io/v1alpha1/windowsinstances/win-1/status",
                of("windowsinstances", Some("status")),
            ),
            (Method::GET, "/api/v1/nodes/win-1", None),
            (Method::POST, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", None),
            (Method::POST, "/version", None),
            (Method::POST, "/", None),
        ] {
            assert_eq!(write(method.clone(), path), expected, "{method} {path}");
        }
        assert_eq!(written(&Method::POST, "/api/v1/nodes", Some("fieldManager=a&dryRun=All")), None);
    }
}
