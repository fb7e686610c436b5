//! Credential providers, from which kubelet gets passwords for the image registries of clouds.

use api::host::path;
use serde_json::{Value, json};

use super::program;

/// Path of the configuration of credential providers, the same as WMCO's.
pub(crate) const PATH: &str = r"C:\k\credential-provider-config.yaml";

/// Program that gives kubelet passwords.
struct Provider {
    program: &'static str,
    /// Files that the program needs: without them, it would make every pull fail.
    files: &'static [&'static str],
    cache: &'static str,
    images: &'static [&'static str],
    args: &'static [&'static str],
}

/// Credential providers, configured as on OpenShift's Linux nodes, except that Amazon's public registry is added, and registries of isolated regions
/// are left out: <https://github.com/openshift/machine-config-operator/tree/master/templates/common>.
const PROVIDERS: [Provider; 3] = [
    Provider {
        program: program::ECR_CREDENTIAL_PROVIDER,
        files: &[],
        cache: "12h",
        images: &[
            "*.dkr.ecr.*.amazonaws.com",
            "*.dkr.ecr.*.amazonaws.com.cn",
            "*.dkr.ecr-fips.*.amazonaws.com",
            "public.ecr.aws",
        ],
        args: &[],
    },
    Provider {
        program: program::ACR_CREDENTIAL_PROVIDER,
        files: &[program::ACR_CREDENTIAL_PROVIDER_CONFIG],
        cache: "10m",
        images: &["*.azurecr.io", "*.azurecr.cn", "*.azurecr.de", "*.azurecr.us"],
        args: &[program::ACR_CREDENTIAL_PROVIDER_CONFIG],
    },
    Provider {
        program: program::GCR_CREDENTIAL_PROVIDER,
        files: &[],
        cache: "1m",
        images: &["gcr.io", "*.gcr.io", "*.pkg.dev", "container.cloud.google.com"],
        args: &["get-credentials"],
    },
];

/// Returns kubelet's arguments for credential providers; empty if hosts have no provider.
pub(super) fn arguments(has: impl Fn(&str) -> bool) -> Vec<String> {
    if config(has).is_none() {
        return Vec::new();
    }
    vec![
        format!("--image-credential-provider-bin-dir={}", path::ROOT),
        format!("--image-credential-provider-config={PATH}"),
    ]
}

/// Returns the configuration (kind `CredentialProviderConfig`, `kubelet.config.k8s.io/v1`) of the providers that hosts have; `None`
/// if they have none. JSON is valid YAML. On Windows, the name of a provider includes `.exe`.
pub(super) fn config(has: impl Fn(&str) -> bool) -> Option<Value> {
    let there = PROVIDERS.iter().filter(|p| has(p.program) && p.files.iter().all(|file| has(file)));
    let providers: Vec<Value> = there
        .map(|Provider { program, files: _, cache, images, args }| {
            let mut provider = json!({
                "name": program.rsplit('\\').next(),
                "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
                "defaultCacheDuration": cache,
                "matchImages": images,
            });
            if !args.is_empty() {
                provider["args"] = json!(args);
            }
            provider
        })
        .collect();
    (!providers.is_empty()).then(|| {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1",
            "kind": "CredentialProviderConfig",
            "providers": providers,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_providers_that_hosts_have_are_configured() {
        const ECR: &str = program::ECR_CREDENTIAL_PROVIDER;
        const ACR: &str = program::ACR_CREDENTIAL_PROVIDER;
        const GCR: &str = program::GCR_CREDENTIAL_PROVIDER;
        for (about, files, expected) in [
            ("none", &[][..], &[][..]),
            ("Amazon", &[ECR], &["ecr-credential-provider.exe"]),
            ("Azure without its configuration", &[ACR], &[]),
            ("Azure", &[ACR, program::ACR_CREDENTIAL_PROVIDER_CONFIG], &["acr-credential-provider.exe"]),
            ("Google", &[GCR], &["gcr-credential-provider.exe"]),
            ("two", &[GCR, ECR], &["ecr-credential-provider.exe", "gcr-credential-provider.exe"]),
        ] {
            let has = |file: &str| files.contains(&file);
            let config = config(has);
            let providers = config.iter().flat_map(|c| c["providers"].as_array().unwrap());
            assert_eq!(providers.map(|p| p["name"].as_str().unwrap()).collect::<Vec<_>>(), expected, "{about}");
            assert_eq!(arguments(has).is_empty(), expected.is_empty(), "{about}");
        }
    }

    #[test]
    fn the_provider_of_azure_is_given_its_configuration() {
        let config = config(|file| file.contains("acr-")).unwrap();
        assert_eq!(config["providers"][0]["args"], json!([r"C:\k\acr-credential-provider.json"]));
    }
}
