//! How kubelet gets passwords for Amazon's image registries.

use serde_json::{Value, json};

/// Where the configuration goes. Legacy.
pub(crate) const PATH: &str = r"C:\k\credential-provider-config.yaml";

/// The configuration (kind `CredentialProviderConfig`, `kubelet.config.k8s.io/v1`). JSON is YAML. On Windows the name of a
/// provider is the file name with `.exe`.
pub(super) fn config() -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1",
        "kind": "CredentialProviderConfig",
        "providers": [{
            "name": "ecr-credential-provider.exe",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "defaultCacheDuration": "12h",
            "matchImages": [
                "*.dkr.ecr.*.amazonaws.com",
                "*.dkr.ecr.*.amazonaws.com.cn",
                "*.dkr.ecr-fips.*.amazonaws.com",
                "public.ecr.aws",
            ],
        }],
    })
}
