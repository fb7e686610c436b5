//! Cluster facts that a pool overrides or adds to.

use api::{CloudProvider, ImageMirror, MirrorPull, MirrorSourcePolicy, ProxySettings, TemplateSpec};

use super::{Cluster, MirrorRule, Proxy, PullSecret, RenderError, check, mirrors};

const PROXY: &str = "template.spec.proxy";
const CERTIFICATES: &str = "template.spec.trustedCertificates";
const MIRRORS: &str = "template.spec.imageMirrors";
/// Maximum size of a pool's mirrors, in bytes: they share one annotation with other settings.
const MAX_MIRRORS: usize = 64 << 10;

/// Reports whether a cloud controller manager is responsible for the Nodes of a pool.
pub fn has_cloud_controller(cluster: &Cluster, template: &TemplateSpec) -> bool {
    let chosen = template.kubelet.as_ref().and_then(|kubelet| kubelet.cloud_provider);
    chosen.map_or(cluster.external_cloud_provider, |c| c == CloudProvider::External)
}

/// Image settings of a pool's hosts, for the comparison with nodes of WMCO.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageSources {
    /// True if the pool names the sandbox image.
    pub names_sandbox: bool,
    /// Sources whose mirrors WMCO gives to hosts and this operator does not.
    pub without_mirrors: Vec<String>,
}

impl ImageSources {
    /// Returns the image sources of a pool's hosts.
    pub fn of(cluster: &Cluster, template: &TemplateSpec) -> Self {
        let containerd = template.containerd.as_ref();
        Self {
            names_sandbox: containerd.is_some_and(|c| c.sandbox_image.is_some()),
            without_mirrors: mirrors::not_followed(&cluster.mirrors, &rules(template.image_mirrors.as_deref())),
        }
    }
}

/// Returns the facts of the cluster with the overrides of a pool. Fails if the pool's proxy, certificates or mirrors cannot be used.
pub(super) fn of_pool(cluster: &Cluster, template: &TemplateSpec) -> Result<Cluster, RenderError> {
    let mut own = Cluster { external_cloud_provider: has_cloud_controller(cluster, template), ..cluster.clone() };
    if let Some(ProxySettings { http_proxy, https_proxy, no_proxy }) = template.proxy.clone() {
        let given = |value: Option<String>| value.filter(|v| !v.is_empty());
        own.proxy = Proxy { http: given(http_proxy), https: given(https_proxy), no: given(no_proxy) };
        check::proxy(&own.proxy).map_err(|(what, problem)| RenderError::Metadata {
            field: PROXY,
            problem: format!("the {what} cannot be used: {problem}"),
        })?;
    }
    let trusted = template.trusted_certificates.as_deref();
    if let Some(Err(damaged)) = trusted.map(|pem| check::certificates(pem.as_bytes())) {
        return refuse(CERTIFICATES, format!("certificate {damaged} is damaged; correct or remove it"));
    }
    let size =
        template.image_mirrors.as_ref().map_or(0, |mirrors| serde_json::to_string(mirrors).map_or(0, |t| t.len()));
    if size > MAX_MIRRORS {
        return refuse(
            MIRRORS,
            format!(
                "it has {} KiB, and at most {} KiB can be stored; name fewer mirrors",
                size.div_ceil(1024),
                MAX_MIRRORS >> 10
            ),
        );
    }
    // Checked without logins: a new login in the cluster's pull secret must not make a working pool invalid.
    let no_logins = PullSecret::default();
    if let Some(problem) = mirrors::problems(&rules(template.image_mirrors.as_deref()), &no_logins).into_iter().next() {
        return refuse(MIRRORS, problem);
    }
    Ok(with_files(own, trusted, template.image_mirrors.as_deref()))
}

fn refuse<T>(field: &'static str, problem: String) -> Result<T, RenderError> {
    Err(RenderError::Metadata { field, problem })
}

/// Adds certificates and mirrors of a pool to a cluster. Other facts that a pool overrides are not needed for the files of
/// [`of_cluster`](super::files::of_cluster) and [`of_registries`](super::files::of_registries).
pub(super) fn with_files(mut cluster: Cluster, trusted: Option<&str>, own: Option<&[ImageMirror]>) -> Cluster {
    if let Some(pem) = trusted {
        let before = cluster.trusted_ca.map(|before| before.trim().to_owned() + "\n").unwrap_or_default();
        cluster.trusted_ca = Some(before + pem.trim() + "\n");
    }
    cluster.mirrors.splice(0..0, rules(own));
    cluster
}

fn rules(own: Option<&[ImageMirror]>) -> Vec<MirrorRule> {
    let rule = |ImageMirror { source, mirrors, mirror_source_policy, pull }| MirrorRule {
        origin: "imageMirrors".to_owned(),
        source,
        mirrors: mirrors.unwrap_or_default(),
        tags: pull.unwrap_or_default() == MirrorPull::All,
        never_source: mirror_source_policy == Some(MirrorSourcePolicy::NeverContactSource),
    };
    own.unwrap_or_default().iter().cloned().map(rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixtures;

    fn certificate(name: &str) -> String {
        rcgen::generate_simple_self_signed([name.to_owned()]).unwrap().cert.pem()
    }

    fn mirror(source: &str, mirror: &str) -> ImageMirror {
        ImageMirror { source: source.into(), mirrors: Some(vec![mirror.into()]), ..ImageMirror::default() }
    }

    fn tags(mirrors: Vec<ImageMirror>) -> TemplateSpec {
        TemplateSpec { image_mirrors: Some(mirrors), ..TemplateSpec::default() }
    }

    fn digests(mirrors: Vec<ImageMirror>) -> TemplateSpec {
        tags(mirrors.into_iter().map(|m| ImageMirror { pull: Some(MirrorPull::Digest), ..m }).collect())
    }

    fn proxy(url: &str) -> TemplateSpec {
        let proxy = ProxySettings { https_proxy: Some(url.into()), ..ProxySettings::default() };
        TemplateSpec { proxy: Some(proxy), ..TemplateSpec::default() }
    }

    #[test]
    fn a_login_of_the_cluster_does_not_make_a_pool_invalid() {
        let two = digests(vec![mirror("r.example/a", "m.example/a"), mirror("r.example/b", "m.example/b")]);
        let text = br#"{"auths": {"m.example/a": {"auth": "YTpi"}, "m.example/b": {"auth": "Yzpk"}}}"#;
        let (pull_secret, _) = PullSecret::parse(text, "1").unwrap();
        of_pool(&Cluster { pull_secret, ..fixtures::cluster() }, &two).unwrap();
    }

    #[test]
    fn a_pool_overrides_the_proxy_and_adds_mirrors_and_certificates() {
        let cluster = Cluster {
            proxy: Proxy { http: Some("http://cluster:1".into()), no: Some(".svc".into()), ..Proxy::default() },
            mirrors: vec![MirrorRule { source: "quay.io".into(), ..MirrorRule::default() }],
            ..fixtures::cluster()
        };
        assert_eq!(of_pool(&cluster, &TemplateSpec::default()).unwrap(), cluster);
        let own = of_pool(&cluster, &proxy("http://pool:1")).unwrap().proxy;
        assert_eq!(own, Proxy { https: Some("http://pool:1".into()), ..Proxy::default() });
        assert_eq!(of_pool(&cluster, &proxy("")).unwrap().proxy, Proxy::default(), "an empty proxy means none");

        let own = of_pool(&cluster, &tags(vec![mirror("docker.io", "mirror.example.com/hub")])).unwrap().mirrors;
        let sources: Vec<(&str, bool)> = own.iter().map(|m| (m.source.as_str(), m.tags)).collect();
        assert_eq!(sources, [("docker.io", true), ("quay.io", false)]);

        let pem = certificate("pool");
        let template = TemplateSpec { trusted_certificates: Some(pem.clone()), ..TemplateSpec::default() };
        let both = Cluster { trusted_ca: Some(certificate("cluster")), ..cluster };
        for (about, cluster, expected) in [("alone", fixtures::cluster(), 1), ("in addition", both, 2)] {
            let trusted = of_pool(&cluster, &template).unwrap().trusted_ca.unwrap();
            assert_eq!(trusted.matches("BEGIN CERTIFICATE").count(), expected, "{about}");
            assert_eq!(check::certificates(trusted.as_bytes()).map(|_| ()), Ok(()), "{about}");
        }
    }

    #[test]
    fn an_unusable_setting_is_refused_with_its_field() {
        let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned();
        let damaged = TemplateSpec { trusted_certificates: Some(pem), ..TemplateSpec::default() };
        for (template, field) in [
            (proxy("http://user:hunter2@pool:1"), PROXY),
            (proxy("http://pool:1\nX=1"), PROXY),
            (damaged, CERTIFICATES),
            (tags(vec![mirror("*.example.com", "mirror.example.com")]), MIRRORS),
            (tags(vec![mirror("registry.example.com/a", "mirror.example.com/b")]), MIRRORS),
            (tags(vec![mirror("registry.example.com", &format!("{}.example.com", "a".repeat(63))); 1000]), MIRRORS),
            // The mirror would be asked for other images, too: the rule must name the registry.
            (tags(vec![mirror("registry.example.com/a", "mirror.example.com/a")]), MIRRORS),
            (
                digests(vec![
                    mirror("registry.example.com", "m.example.com"),
                    mirror("registry.example.com/a", "n.example.com/a"),
                ]),
                MIRRORS,
            ),
        ] {
            let error = of_pool(&fixtures::cluster(), &template).unwrap_err();
            assert_eq!(error.reason(), "SpecInvalid");
            assert!(error.to_string().contains(field) && !error.to_string().contains("hunter2"), "{error}");
        }
    }
}
