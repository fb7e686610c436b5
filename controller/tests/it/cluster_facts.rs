//! Cluster facts that change while nodes run: changes reach the nodes, with no more disturbance than necessary.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use api::{
    WindowsNodePool,
    conditions::{self, kind},
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use testbed::{deployment, sim::SimOptions};

use crate::fleet::{World, has, is_ready, pool_status, spec, spec_with, status};

const POOL: &str = "factory";
const KEY: &str = "client-ca-file";

/// Writes the proxy of an OpenShift cluster as its network operator does.
async fn set_proxy(world: &World, url: &str) -> Result<()> {
    let status = json!({"httpProxy": url, "httpsProxy": url, "noProxy": ".cluster.local,.svc"});
    let proxy: Value = json!({"apiVersion": "config.openshift.io/v1", "kind": "Proxy", "metadata": {"name": "cluster"}, "status": status});
    world.control_plane.apply_yaml(&proxy.to_string()).await
}

/// Writes the TLS profile of an OpenShift cluster.
async fn set_tls_profile(world: &World, profile: Value) -> Result<()> {
    openshift(world, "config.openshift.io/v1", "APIServer", "cluster", json!({"spec": {"tlsSecurityProfile": profile}}))
        .await
}

/// Writes the ConfigMap `trusted-ca` with the certificates that hosts must trust, or without any.
async fn trust(world: &World, pem: Option<&str>) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), api::names::DEFAULT_NAMESPACE);
    let data = pem.map(|pem| json!({"ca-bundle.crt": pem}));
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "trusted-ca"}, "data": data});
    maps.patch("trusted-ca", &PatchParams::apply("a-person").force(), &Patch::Apply(map)).await?;
    Ok(())
}

fn is_reported(pool: &WindowsNodePool) -> bool {
    has(&pool_status(pool).conditions, kind::WARNING, "True", "ClusterFactsInvalid")
}

async fn version(world: &World) -> Result<String> {
    let instance = world.instance("win-0").await?.context("there is no instance")?;
    status(&instance).current_version.context("win-0 follows no version")
}

/// Waits until the node follows a version other than `before`, and its pool is Ready.
async fn until_followed(world: &World, before: &str) -> Result<()> {
    let is_other = |s: &api::WindowsInstanceStatus| s.current_version.as_deref().is_some_and(|v| v != before);
    world.until_instance("win-0", "it follows another version", |i| is_other(&status(i))).await?;
    world.until(POOL, "it is Ready", is_ready).await
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_the_cluster_reach_running_nodes() -> Result<()> {
    let world = World::new(SimOptions::default(), &["--cluster-facts-interval", "500ms"]).await?;
    deployment::install_openshift(&world.control_plane).await?;
    let hosts = world.hosts("win", 1).await?;
    let host = &hosts[0];
    world.join(POOL, &spec(&hosts)).await?;
    ensure!(world.operator.log().contains(r#"log rotation of services on hosts size="100Mi" age="168h""#));
    world.until(POOL, "it is Ready", is_ready).await?;

    // A second CA for kubelet's clients, as during a rotation, disturbs nothing: kubelet reloads the file by itself.
    let (before, starts, boots) = (version(&world).await?, host.kubelet_starts(), host.boots());
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), "kube-system");
    let map = maps.get("extension-apiserver-authentication").await?;
    let present = map.data.and_then(|d| d.get(KEY).cloned()).context("the ConfigMap has no CA")?;
    let key = rcgen::KeyPair::generate()?;
    let mut params = rcgen::CertificateParams::new(Vec::new())?;
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let next = params.self_signed(&key)?.pem();
    let patch = json!({"data": {KEY: format!("{present}{next}")}});
    maps.patch("extension-apiserver-authentication", &PatchParams::default(), &Patch::Merge(patch)).await?;
    until_followed(&world, &before).await?;
    let trusted = fs::read_to_string(host.drive_c().join("k").join("kubelet-ca.crt"))?;
    ensure!(trusted.replace("\r\n", "\n").contains(next.trim()), "{trusted}");
    ensure!((host.kubelet_starts(), host.boots()) == (starts, boots), "a new CA disturbed the node");

    // A trusted certificate is added and removed without a restart.
    let before = version(&world).await?;
    let key = rcgen::KeyPair::generate()?;
    let registry = rcgen::CertificateParams::new(Vec::new())?.self_signed(&key)?;
    trust(&world, Some(&registry.pem())).await?;
    until_followed(&world, &before).await?;
    let is_trusted = || host.windows().state().trusted.contains(&registry.der().to_vec());
    ensure!(is_trusted(), "the host does not trust the certificate");
    let with_registry = version(&world).await?;
    trust(&world, Some("-----BEGIN CERTIFICATE-----\njunk")).await?;
    world.until(POOL, "it reports the junk", is_reported).await?;
    ensure!(version(&world).await? == with_registry && is_trusted(), "junk reached the host");
    trust(&world, None).await?;
    until_followed(&world, &with_registry).await?;
    ensure!(!is_trusted(), "the host still trusts the certificate");
    ensure!((host.kubelet_starts(), host.boots()) == (starts, boots), "a certificate to trust disturbed the node");

    // A proxy is set for the services alone, not for the whole host, and the host does not restart.
    let (before, starts) = (version(&world).await?, host.kubelet_starts());
    set_proxy(&world, "http://proxy.example.com:3128").await?;
    until_followed(&world, &before).await?;
    let variables = host.windows().state().services["kubelet"].environment.clone();
    let variable = |name: &str| variables.get(name).map(String::as_str);
    ensure!(variable("HTTPS_PROXY") == Some("http://proxy.example.com:3128"), "{variables:?}");
    let without = variable("NO_PROXY").is_some_and(|no| no.starts_with(".cluster.local,.svc,"));
    ensure!(without && variable("NO_PROXY").is_some_and(|no| no.contains("169.254.169.254")), "{variables:?}");
    ensure!(host.windows().state().env.is_empty(), "{:?}", host.windows().state().env);
    ensure!((host.kubelet_starts(), host.boots()) == (starts + 1, boots), "{} restarts", host.boots() - boots);

    // The TLS profile of the cluster reaches kubelet with a restart of kubelet alone. A profile with which kubelet cannot serve
    // is reported and replaced by the default, as on Linux nodes: no other fact waits for it.
    let (before, starts, boots) = (version(&world).await?, host.kubelet_starts(), host.boots());
    set_tls_profile(&world, json!({"type": "Modern", "modern": {}})).await?;
    until_followed(&world, &before).await?;
    let served = || -> Result<Value> {
        let config: Value = serde_json::from_str(&fs::read_to_string(host.drive_c().join("k").join("kubelet.conf"))?)?;
        Ok(config["tlsMinVersion"].clone())
    };
    ensure!(served()? == "VersionTLS13", "{}", served()?);
    ensure!(
        (host.kubelet_starts(), host.boots()) == (starts + 1, boots),
        "a TLS profile did not restart kubelet exactly once"
    );
    let weak = json!({"minTLSVersion": "VersionTLS12", "ciphers": ["AES128-SHA"]});
    let before = version(&world).await?;
    set_tls_profile(&world, json!({"type": "Custom", "custom": weak})).await?;
    until_followed(&world, &before).await?;
    let names_profile = |p: &WindowsNodePool| {
        let warning = conditions::find(&pool_status(p).conditions, kind::WARNING).map(|c| c.message.clone());
        warning.is_some_and(|message| message.contains("tlsSecurityProfile"))
    };
    world.until(POOL, "it reports the profile", names_profile).await?;
    ensure!(served()? == "VersionTLS12", "{}", served()?);
    let before = version(&world).await?;
    set_tls_profile(&world, json!({"type": "Modern"})).await?;
    until_followed(&world, &before).await?;
    world.until(POOL, "it no longer reports the profile", |p| !names_profile(p)).await?;

    // An invalid proxy is reported without its password, and changes nothing.
    let (before, boots) = (version(&world).await?, host.boots());
    set_proxy(&world, "http://user:hunter2@proxy.example.com:3128").await?;
    world.until(POOL, "it reports the proxy", is_reported).await?;
    let reported = pool_status(&world.pool(POOL).await?);
    let message = conditions::find(&reported.conditions, kind::WARNING).map(|c| c.message.clone()).unwrap_or_default();
    ensure!(message.contains("HTTPS proxy") || message.contains("HTTP proxy"), "{message}");
    ensure!(!serde_json::to_string(&reported)?.contains("hunter2"), "a status shows the password");
    ensure!(!world.operator.log().contains("hunter2"), "the log shows the password");

    set_proxy(&world, "http://proxy.example.com:3128").await?;
    world.until(POOL, "it no longer reports the proxy", |p| !is_reported(p)).await?;
    ensure!((version(&world).await?, host.boots()) == (before, boots), "a fact that cannot be used reached the node");
    Ok(())
}

/// Writes the pull secret of an OpenShift cluster.
async fn set_pull_secret(world: &World, login: &str) -> Result<()> {
    let config = json!({"auths": {
        "mirror.example.com:5000": {"username": "robot", "password": login},
        "quay.io": {"username": "robot", "password": "of-quay"},
        "cloud.openshift.com": {"username": "cluster", "password": "of-telemetry"},
    }});
    let secret = Secret {
        metadata: kube::api::ObjectMeta { name: Some("pull-secret".into()), ..Default::default() },
        type_: Some("kubernetes.io/dockerconfigjson".into()),
        data: Some([(".dockerconfigjson".to_owned(), ByteString(config.to_string().into_bytes()))].into()),
        ..Secret::default()
    };
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "openshift-config");
    secrets.patch("pull-secret", &PatchParams::apply("a-person").force(), &Patch::Apply(&secret)).await?;
    Ok(())
}

/// Writes an OpenShift object.
async fn openshift(world: &World, version: &str, kind: &str, name: &str, fields: Value) -> Result<()> {
    let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}});
    object
        .as_object_mut()
        .context("it is not an object")?
        .extend(fields.as_object().context("the fields are not an object")?.clone());
    world.control_plane.apply_yaml(&object.to_string()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn mirrors_and_logins_of_registries_reach_running_nodes() -> Result<()> {
    let world = World::new(SimOptions::default(), &["--cluster-facts-interval", "500ms"]).await?;
    deployment::install_openshift(&world.control_plane).await?;
    let config = "config.openshift.io/v1";
    openshift(&world, config, "Infrastructure", "cluster", json!({"status": {"platformStatus": {"type": "None"}}}))
        .await?;
    let hosts = world.hosts("win", 1).await?;
    let host = &hosts[0];
    world.join(POOL, &spec(&hosts)).await?;
    world.until(POOL, "it is Ready", is_ready).await?;
    let (starts, boots) = (host.kubelet_starts(), host.boots());
    let read = |path: &Path| fs::read_to_string(host.drive_c().join(path)).unwrap_or_default();
    let toml = |registry: &str| read(&Path::new("k/containerd/registries").join(registry).join("hosts.toml"));
    let config_json = || read(Path::new("var/lib/kubelet/config.json"));

    // Adds logins, a mirror, and a mirror that containerd on Windows cannot express.
    let before = version(&world).await?;
    set_pull_secret(&world, "first-login").await?;
    world.eventually("kubelet has the login", || async { config_json().contains("quay.io") }).await?;
    until_followed(&world, &before).await?;
    ensure!(!config_json().contains("cloud.openshift.com"), "kubelet got a login for a host that is not a registry");
    let before = version(&world).await?;
    let mirrors = json!({"spec": {"imageDigestMirrors": [
        {"source": "registry.example.com:5000/org", "mirrors": ["mirror.example.com:5000/org"]},
        {"source": "quay.io/a/b", "mirrors": ["mirror.example.com:5000/c"]},
    ]}});
    openshift(&world, config, "ImageDigestMirrorSet", "factory", mirrors).await?;
    until_followed(&world, &before).await?;
    let login = || toml("registry.example.com_5000_");
    let mirror = "[host.\"https://mirror.example.com:5000/v2\"]";
    ensure!(login().contains(mirror) && login().contains("Authorization = \"Basic "), "{}", login());
    let named = |pool: &WindowsNodePool| {
        let found = conditions::find(&pool_status(pool).conditions, kind::WARNING).cloned();
        found.filter(|c| c.reason == "ClusterFactsInvalid").map(|c| c.message).unwrap_or_default()
    };
    let parts = ["ImageDigestMirrorSet/factory", "quay.io/a/b", "mirror.example.com:5000/c"];
    world.until(POOL, "it names the mirror", |p| parts.iter().all(|part| named(p).contains(part))).await?;
    ensure!(toml("quay.io").is_empty(), "a mirror that leads nowhere was written");

    // A new password changes the files on the host, and is shown nowhere.
    let (before, first) = (version(&world).await?, login());
    set_pull_secret(&world, "hunter2").await?;
    until_followed(&world, &before).await?;
    ensure!(login() != first, "containerd still has the old login");
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), api::names::DEFAULT_NAMESPACE);
    let seen = serde_json::to_string(&maps.list(&ListParams::default()).await?.items)?
        + &serde_json::to_string(&pool_status(&world.pool(POOL).await?))?
        + &serde_json::to_string(&world.instance("win-0").await?)?
        + &world.operator.log();
    for secret in ["hunter2", "first-login", "of-quay", "of-telemetry"]
        .map(|login| [login.to_owned(), BASE64.encode(format!("robot:{login}"))])
    {
        ensure!(!secret.iter().any(|form| seen.contains(form)), "a login is shown");
    }

    // A pool that takes nothing of the cluster's pull secret has no logins; the mirror stays.
    let before = version(&world).await?;
    world.join(POOL, &spec_with(&hosts, json!({"template": {"spec": {"pullSecretRegistries": []}}}))).await?;
    until_followed(&world, &before).await?;
    ensure!(config_json().is_empty() && login().contains(mirror) && !login().contains("uthorization"), "{}", login());

    // A mirror that the cluster drops is removed from hosts.
    let before = version(&world).await?;
    openshift(&world, config, "ImageDigestMirrorSet", "factory", json!({"spec": {"imageDigestMirrors": []}})).await?;
    until_followed(&world, &before).await?;
    ensure!(login().is_empty(), "the mirror is still there");

    // A damaged certificate for one registry does not affect the certificate for the other registry.
    let before = version(&world).await?;
    let key = rcgen::KeyPair::generate()?;
    let registry = rcgen::CertificateParams::new(Vec::new())?.self_signed(&key)?;
    let bundle = |file: &str, text: &str| json!({"file": file, "data": BASE64.encode(text)});
    let bundles =
        [bundle("good.example.com", &registry.pem()), bundle("bad.example.com..5000", "-----BEGIN CERTIFICATE-----\n")];
    let fields = json!({"spec": {"imageRegistryBundleUserData": bundles}});
    openshift(&world, "machineconfiguration.openshift.io/v1", "ControllerConfig", "machine-config-controller", fields)
        .await?;
    until_followed(&world, &before).await?;
    ensure!(host.windows().state().trusted.contains(&registry.der().to_vec()), "the host does not trust the registry");
    world.until(POOL, "it names the damaged ones", |p| named(p).contains("bad.example.com:5000")).await?;

    // Certificates and mirrors of a pool are added to those of the cluster.
    let before = version(&world).await?;
    let own = rcgen::CertificateParams::new(Vec::new())?.self_signed(&rcgen::KeyPair::generate()?)?;
    let mirrors = json!([{"source": "registry.example.com", "mirrors": ["mirror.plant.example.com:5000"]}]);
    let template = json!({"template": {"spec": {"trustedCertificates": own.pem(), "imageMirrors": mirrors}}});
    world.join(POOL, &spec_with(&hosts, template)).await?;
    until_followed(&world, &before).await?;
    ensure!(toml("registry.example.com").contains("mirror.plant.example.com:5000"), "the pool's mirror is missing");
    let trusted = host.windows().state().trusted.clone();
    ensure!(trusted.contains(&own.der().to_vec()) && trusted.contains(&registry.der().to_vec()), "{}", trusted.len());
    ensure!((host.kubelet_starts(), host.boots()) == (starts, boots), "the node was disturbed");
    Ok(())
}
