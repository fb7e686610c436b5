//! How to reach the API server: as a kubeconfig says, or as a pod does. Without a proxy of the environment, which is for Git servers and
//! registries: kube has no use for it, and does not read `NO_PROXY`.

use std::path::Path;

use anyhow::Context as _;
use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig},
};

/// Stands in a kubeconfig where kube would otherwise read variables. Nothing connects to it.
const NO_PROXY: &str = "http://none.invalid";

/// Configuration for a client.
///
/// # Errors
/// When there is neither a kubeconfig nor a service account, or the kubeconfig cannot be used.
pub(crate) async fn config() -> anyhow::Result<Config> {
    match Kubeconfig::read() {
        Ok(kubeconfig) => of_kubeconfig(kubeconfig).await.context("the kubeconfig cannot be used"),
        Err(e) => Config::incluster()
            .with_context(|| format!("no configuration for the API server: run in a pod, or set KUBECONFIG ({e})")),
    }
}

/// Configuration for a client by the kubeconfig in this file, or as [`config`] without one.
///
/// # Errors
/// When the file cannot be read or used, or as [`config`].
pub(crate) async fn config_of(file: Option<&Path>) -> anyhow::Result<Config> {
    let Some(file) = file else { return config().await };
    let context = || format!("the kubeconfig {} cannot be used", file.display());
    of_kubeconfig(Kubeconfig::read_from(file).with_context(context)?).await.with_context(context)
}

/// A proxy that the kubeconfig itself names stays, so that making a client refuses it.
async fn of_kubeconfig(mut kubeconfig: Kubeconfig) -> anyhow::Result<Config> {
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        cluster.proxy_url.get_or_insert_with(|| NO_PROXY.to_owned());
    }
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.proxy_url = config.proxy_url.filter(|url| url.host() != Some("none.invalid"));
    Ok(config)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn only_a_proxy_of_the_kubeconfig_counts() {
        for (proxy, expected) in [(None, None), (Some("http://proxy:3128/"), Some("http://proxy:3128/"))] {
            let kubeconfig = json!({
                "clusters": [{"name": "a", "cluster": {"server": "https://api.example:6443", "proxy-url": proxy}}],
                "users": [{"name": "a", "user": {}}],
                "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
                "current-context": "a",
            });
            let config = of_kubeconfig(serde_json::from_value(kubeconfig).unwrap()).await.unwrap();
            assert_eq!(config.proxy_url.map(|url| url.to_string()).as_deref(), expected);
        }
    }

    /// A process of its own, because variables belong to the whole process.
    #[test]
    fn a_proxy_of_the_environment_does_not_count() {
        for proxy in ["http://user:hunter2@proxy.example.com:3128", "no URL"] {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let test = ["--exact", "api_server::tests::only_a_proxy_of_the_kubeconfig_counts"];
            let output = again.args(test).env("HTTPS_PROXY", proxy).env("https_proxy", proxy).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{proxy}: {text}");
        }
    }
}
