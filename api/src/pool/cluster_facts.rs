//! Facts of the cluster that a pool can override for its hosts.

#![expect(
    clippy::struct_field_names,
    reason = "the fields are those of OpenShift's Proxy, and the derive repeats the type"
)]

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rule::matches;

/// Rule for the URL of a proxy, without credentials.
const PROXY_URL: (&str, &str) = (
    "self == '' || isURL(self) && url(self).getScheme() in ['http', 'https'] && !self.contains('@')",
    "must be a URL such as http://proxy.example.com:3128, without a user name and a password",
);

/// Proxy of the hosts of a pool, instead of the cluster's.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ProxySettings {
    /// URL of the proxy for HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = PROXY_URL)]
    pub http_proxy: Option<String>,
    /// URL of the proxy for HTTPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = PROXY_URL)]
    pub https_proxy: Option<String>,
    /// Hosts, domains and networks that are reached without the proxy, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8192))]
    #[x_kube(validation = matches("^[^\\s]*$", "must be a list with commas and without spaces, for example .svc,10.0.0.0/8"))]
    pub no_proxy: Option<String>,
}

/// Mirrors of a registry.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ImageMirror {
    /// Registry, optionally with the path of an organisation or a repository.
    #[schemars(length(min = 1, max = 255))]
    pub source: String,
    /// Mirrors of the registry, in the order in which they are tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 255)))]
    pub mirrors: Option<Vec<String>>,
    /// Policy for an image that no mirror has. With `AllowContactingSource`, hosts pull it from the source. Defaults to `AllowContactingSource`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror_source_policy: Option<MirrorSourcePolicy>,
    /// Pulls that the mirrors serve. Defaults to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull: Option<MirrorPull>,
}

/// Pulls that mirrors serve. All (default): of every image. Digest: of images that are named by digest.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MirrorPull {
    /// Pulls of every image.
    #[default]
    All,
    /// Pulls of images that are named by digest.
    Digest,
}

/// Policy for the source of an image.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorSourcePolicy {
    /// Hosts pull from the source if no mirror has the image.
    AllowContactingSource,
    /// Hosts never pull from the source.
    NeverContactSource,
}
