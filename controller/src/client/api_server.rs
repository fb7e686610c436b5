//! Connection to the API server, by a kubeconfig or from a pod. Proxies of the environment are not used: they are for Git servers and hosts, and kube
//! does not read `NO_PROXY`.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};

use crate::args::Cluster;

/// Placeholder for the proxy in a kubeconfig, without which kube would read environment variables. Nothing connects to it.
const NO_PROXY: &str = "http://none.invalid";

/// Cluster that a command uses.
pub struct Chosen {
    /// Configuration for a client.
    pub config: Config,
    /// Title that identifies the cluster to users.
    pub title: String,
}

/// Returns the named cluster, otherwise that of the current context or of the pod.
///
/// # Errors
/// Fails when there is neither a kubeconfig nor a service account, the kubeconfig cannot be read or used, or it lacks the named context.
pub async fn choose(cluster: &Cluster) -> anyhow::Result<Chosen> {
    let mut chosen = find(cluster).await?;
    if let Some(user) = &cluster.as_user {
        chosen.config.auth_info.impersonate = Some(user.clone());
        chosen.config.auth_info.impersonate_groups = Some(cluster.as_groups.clone());
    }
    Ok(chosen)
}

async fn find(cluster: &Cluster) -> anyhow::Result<Chosen> {
    let context = cluster.context.as_deref();
    if let Some(file) = &cluster.kubeconfig {
        let kubeconfig = Kubeconfig::read_from(file).map_err(|error| unusable(&error))?;
        let failed = || format!("the kubeconfig {} cannot be used", file.display());
        return of_kubeconfig(kubeconfig, context).await.with_context(failed);
    }
    match Kubeconfig::read() {
        Ok(kubeconfig) => of_kubeconfig(kubeconfig, context).await.context("the kubeconfig cannot be used"),
        Err(error) if context.is_some() => {
            Err(unusable(&error)).context("--context needs a kubeconfig: name one with --kubeconfig, or set KUBECONFIG")
        }
        Err(error) => {
            // The error of the in-cluster configuration does not help users outside of a pod.
            let Ok(config) = Config::incluster() else {
                bail!("{}. Name a kubeconfig with --kubeconfig, set KUBECONFIG, or run in a pod", unusable(&error));
            };
            let title = format!("cluster of this pod at {}", config.cluster_url);
            Ok(Chosen { config, title })
        }
    }
}

/// Returns an error that names the path of the kubeconfig once: kube's own message names it twice.
fn unusable(error: &KubeconfigError) -> anyhow::Error {
    match error {
        KubeconfigError::ReadConfig(error, path) => {
            anyhow!("the kubeconfig {} cannot be read: {error}", path.display())
        }
        error => anyhow!("the kubeconfig cannot be used: {error}"),
    }
}

/// Returns the configuration for callers that do not need the title of the cluster.
///
/// # Errors
/// Fails as [`choose`] does.
pub(crate) async fn config(cluster: &Cluster) -> anyhow::Result<Config> {
    Ok(choose(cluster).await?.config)
}

/// Returns the configuration for an interactive command, with a timeout for each request.
///
/// # Errors
/// Fails as [`choose`] does, and when the API server does not answer in time, so that no command begins a change that it cannot finish.
pub(crate) async fn bounded_config(cluster: &Cluster) -> anyhow::Result<Config> {
    bounded(config(cluster).await?, cluster.request_timeout).await
}

/// Returns a configuration with a timeout for each request, after the API server has answered one. If `limit` is zero, sets no timeout.
///
/// # Errors
/// Fails when the configuration is invalid, or the API server does not answer in time.
pub(crate) async fn bounded(mut config: Config, limit: Duration) -> anyhow::Result<Config> {
    if limit.is_zero() {
        return Ok(config);
    }
    let url = config.cluster_url.clone();
    let client =
        Client::try_from(config.clone()).context("the connection settings for the API server cannot be used")?;
    // Any answer counts, also a refusal.
    if tokio::time::timeout(limit, client.apiserver_version()).await.is_err() {
        let seconds = limit.as_secs_f64();
        bail!(
            "the API server at {url} did not answer within {seconds} s: check the control plane and the network, or allow more time with --request-timeout"
        );
    }
    config.connect_timeout = Some(limit);
    config.read_timeout = Some(limit);
    config.write_timeout = Some(limit);
    Ok(config)
}

/// Returns a client for an interactive command.
///
/// # Errors
/// Fails as [`bounded_config`] does.
pub(crate) async fn client(cluster: &Cluster) -> anyhow::Result<Client> {
    Client::try_from(bounded_config(cluster).await?)
        .context("the connection settings for the API server cannot be used")
}

/// Returns the cluster of a kubeconfig. A proxy in the kubeconfig itself is kept, so that the client, which supports no proxy, refuses it.
async fn of_kubeconfig(mut kubeconfig: Kubeconfig, context: Option<&str>) -> anyhow::Result<Chosen> {
    let names: Vec<&str> = kubeconfig.contexts.iter().map(|named| named.name.as_str()).collect();
    if let Some(context) = context.filter(|context| !names.contains(context)) {
        bail!("it has no context {context}; it has: {}", names.join(", "));
    }
    let title = title(&kubeconfig, context);
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        cluster.proxy_url.get_or_insert_with(|| NO_PROXY.to_owned());
    }
    let options = KubeConfigOptions { context: context.map(Into::into), ..KubeConfigOptions::default() };
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.proxy_url = config.proxy_url.filter(|url| url.host() != Some("none.invalid"));
    let title = format!("{title} at {}", config.cluster_url);
    Ok(Chosen { config, title })
}

fn title(kubeconfig: &Kubeconfig, context: Option<&str>) -> String {
    let chosen = context.or(kubeconfig.current_context.as_deref()).unwrap_or_default();
    let found = kubeconfig.contexts.iter().find(|named| named.name == chosen).and_then(|named| named.context.as_ref());
    let cluster = found.map(|context| context.cluster.as_str()).unwrap_or_default();
    format!("cluster {cluster} (context {chosen})")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns a kubeconfig with the context `t` for a cluster `test`.
    fn kubeconfig(cluster: &Value) -> Value {
        json!({
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "t", "context": {"cluster": "test", "user": "me"}}],
            "current-context": "t",
        })
    }

    #[tokio::test]
    async fn only_a_proxy_of_the_kubeconfig_counts() {
        for (proxy, expected) in [(None, None), (Some("http://proxy:3128/"), Some("http://proxy:3128/"))] {
            let kubeconfig = kubeconfig(&json!({"server": "https://api.example:6443", "proxy-url": proxy}));
            let config = of_kubeconfig(serde_json::from_value(kubeconfig).unwrap(), None).await.unwrap().config;
            assert_eq!(config.proxy_url.map(|url| url.to_string()).as_deref(), expected);
        }
    }

    #[tokio::test]
    async fn a_context_chooses_the_cluster_which_the_title_names() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        let mut kubeconfig = kubeconfig(&json!({"server": "https://test.example:6443"}));
        let prod = json!({"name": "prod", "cluster": {"server": "https://prod.example:6443"}});
        kubeconfig["clusters"].as_array_mut().unwrap().push(prod);
        let context = json!({"name": "p", "context": {"cluster": "prod", "user": "me"}});
        kubeconfig["contexts"].as_array_mut().unwrap().push(context);
        std::fs::write(&file, kubeconfig.to_string()).unwrap();
        let choose = async |context: Option<&str>| {
            choose(&Cluster { kubeconfig: Some(file.clone()), context: context.map(Into::into), ..Cluster::default() })
                .await
        };
        for (context, url, title) in [
            (None, "https://test.example:6443/", "cluster test (context t) at https://test.example:6443/"),
            (Some("p"), "https://prod.example:6443/", "cluster prod (context p) at https://prod.example:6443/"),
        ] {
            let chosen = choose(context).await.unwrap();
            assert_eq!((chosen.config.cluster_url.to_string().as_str(), chosen.title.as_str()), (url, title));
        }
        let error = choose(Some("x")).await.map(|chosen| chosen.title).unwrap_err();
        assert!(format!("{error:#}").ends_with("it has no context x; it has: t, p"), "{error:#}");
    }

    /// Connection that is accepted and never answered, as with a stopped API server or a firewall that drops answers.
    #[tokio::test]
    async fn an_api_server_that_does_not_answer_is_reported_in_time() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let hung = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        let server = format!("https://{}", hung.local_addr().unwrap());
        std::fs::write(&file, kubeconfig(&json!({"server": server})).to_string()).unwrap();
        let cluster =
            Cluster { kubeconfig: Some(file), request_timeout: Duration::from_millis(50), ..Cluster::default() };
        let error = client(&cluster).await.err().unwrap().to_string();
        assert!(error.contains(&server) && error.contains("--request-timeout"), "{error}");
    }

    #[tokio::test]
    async fn a_missing_kubeconfig_is_named_once() {
        let cluster = Cluster { kubeconfig: Some("/does/not/exist".into()), ..Cluster::default() };
        let error = format!("{:#}", choose(&cluster).await.map(|chosen| chosen.title).unwrap_err());
        assert_eq!(error.matches("/does/not/exist").count(), 1, "{error}");
        assert!(!error.contains('"') && error.contains("cannot be read"), "{error}");
    }

    /// Runs in its own process, because environment variables belong to the whole process.
    #[test]
    fn a_proxy_of_the_environment_does_not_count() {
        for proxy in ["http://user:hunter2@proxy.example.com:3128", "no URL"] {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let test = ["--exact", "client::api_server::tests::only_a_proxy_of_the_kubeconfig_counts"];
            let output = again.args(test).env("HTTPS_PROXY", proxy).env("https_proxy", proxy).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{proxy}: {text}");
        }
    }
}
