//! containerd settings of a pool, as a file that the payload's configuration imports.
//!
//! containerd merges imported files key by key over the importing file, and reads a file without `version` as an older format.

use api::ContainerdSettings;
use serde::Serialize;

use super::{Cluster, RenderError};

#[derive(Serialize)]
struct DropIn<P> {
    version: u32,
    plugins: P,
}

#[derive(Serialize)]
struct Plugins<'a> {
    #[serde(rename = "io.containerd.cri.v1.images")]
    images: Images<'a>,
}

#[derive(Serialize)]
struct Images<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    max_concurrent_downloads: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pinned_images: Option<PinnedImages<'a>>,
}

#[derive(Serialize)]
struct PinnedImages<'a> {
    sandbox: &'a str,
}

const SANDBOX_IMAGE: &str = "template.spec.containerd.sandboxImage";
const MAX_CONCURRENT_DOWNLOADS: &str = "template.spec.containerd.maxConcurrentDownloads";

/// Renders the file with a pool's settings; `None` if the pool sets nothing. `there` is true if the payload has containerd and its configuration.
/// Fails if a setting is invalid, or if `there` is false and the pool has settings.
pub(super) fn drop_in(pool: &ContainerdSettings, there: bool) -> Result<Option<String>, RenderError> {
    let ContainerdSettings { sandbox_image, max_concurrent_downloads } = pool;
    if sandbox_image.is_none() && max_concurrent_downloads.is_none() {
        return Ok(None);
    }
    let refuse = |field, value: String, problem| Err(RenderError::Setting { field, value, problem });
    if !there {
        let problem = "the payload lacks containerd or its configuration file; remove this field, and set the value in the configuration of the containerd that hosts use";
        let number = || max_concurrent_downloads.map(|n| n.to_string()).unwrap_or_default();
        return match sandbox_image {
            Some(image) => refuse(SANDBOX_IMAGE, image.clone(), problem),
            None => refuse(MAX_CONCURRENT_DOWNLOADS, number(), problem),
        };
    }
    if let Some(image) = sandbox_image.as_ref().filter(|i| i.is_empty() || !i.bytes().all(|b| b.is_ascii_graphic())) {
        let problem = "it must be an image such as registry.k8s.io/pause:3.10";
        return refuse(SANDBOX_IMAGE, image.clone(), problem);
    }
    if let Some(number) = max_concurrent_downloads.filter(|n| *n < 1) {
        return refuse(MAX_CONCURRENT_DOWNLOADS, number.to_string(), "it must be 1 or more");
    }
    let images = Images {
        max_concurrent_downloads: *max_concurrent_downloads,
        pinned_images: sandbox_image.as_deref().map(|sandbox| PinnedImages { sandbox }),
    };
    let drop_in = DropIn { version: 3, plugins: Plugins { images } };
    // Serialization does not fail: TOML has all of these types.
    Ok(toml::to_string(&drop_in).ok())
}

#[derive(Serialize)]
struct RuntimePlugins<'a> {
    #[serde(rename = "io.containerd.cri.v1.runtime")]
    runtime: Runtime<'a>,
}

#[derive(Serialize)]
struct Runtime<'a> {
    cni: Cni<'a>,
}

#[derive(Serialize)]
struct Cni<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    bin_dirs: Option<[&'a str; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conf_dir: Option<&'a str>,
}

/// Renders the file with the CNI directories; `None` if the cluster sets none.
pub(super) fn network(cluster: &Cluster) -> Option<String> {
    let Cluster { cni_bin_dir, cni_conf_dir, .. } = cluster;
    let cni = Cni { bin_dirs: cni_bin_dir.as_deref().map(|d| [d]), conf_dir: cni_conf_dir.as_deref() };
    let drop_in = DropIn { version: 3, plugins: RuntimePlugins { runtime: Runtime { cni } } };
    // Serialization does not fail: TOML has all of these types.
    (cni_bin_dir.is_some() || cni_conf_dir.is_some()).then(|| toml::to_string(&drop_in).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_network_file_replaces_only_the_cni_directories_that_are_set() {
        let cluster = |bin: Option<&str>, conf: Option<&str>| Cluster {
            cni_bin_dir: bin.map(Into::into),
            cni_conf_dir: conf.map(Into::into),
            ..Cluster::default()
        };
        assert_eq!(network(&cluster(None, None)), None);
        let text = network(&cluster(Some(r"C:\opt\cni\bin"), Some(r"C:\etc\cni\net.d"))).unwrap();
        let ours: toml::Value = toml::from_str(&text).unwrap();
        let main: toml::Value =
            toml::from_str(include_str!("../../../../tools/xtask/payload/static/containerd_conf.toml")).unwrap();
        let cni = |config: &toml::Value| config["plugins"]["io.containerd.cri.v1.runtime"]["cni"].clone();
        assert_eq!(cni(&ours)["bin_dirs"][0].as_str(), Some(r"C:\opt\cni\bin"));
        assert_eq!(cni(&ours)["conf_dir"].as_str(), Some(r"C:\etc\cni\net.d"));
        // An imported value replaces the payload's value only if both have the same name.
        assert!(cni(&main).get("bin_dirs").is_some() && cni(&main).get("conf_dir").is_some());
        let (directory, _) = super::super::program::CONTAINERD_NETWORK.rsplit_once('\\').unwrap();
        assert_eq!(main["imports"][0].as_str(), Some(format!(r"{directory}\*.toml").as_str()));
        let text = network(&cluster(None, Some(r"C:\x"))).unwrap();
        assert!(!text.contains("bin_dirs"), "{text}");
    }

    fn pool(image: Option<&str>, downloads: Option<i32>) -> ContainerdSettings {
        ContainerdSettings { sandbox_image: image.map(Into::into), max_concurrent_downloads: downloads }
    }

    #[test]
    fn the_settings_of_a_pool_are_rendered_or_refused() {
        let both = "version = 3\n\n[plugins.\"io.containerd.cri.v1.images\"]\nmax_concurrent_downloads = 5\n\n\
                    [plugins.\"io.containerd.cri.v1.images\".pinned_images]\nsandbox = \"example.com/pause:1\"\n";
        let downloads = "version = 3\n\n[plugins.\"io.containerd.cri.v1.images\"]\nmax_concurrent_downloads = 5\n";
        for (pool, expected) in [
            (pool(None, None), None),
            (pool(Some("example.com/pause:1"), Some(5)), Some(both)),
            (pool(None, Some(5)), Some(downloads)),
        ] {
            assert_eq!(drop_in(&pool, true).unwrap().as_deref(), expected);
        }
        for (pool, there, field) in [
            (pool(Some("a b"), None), true, "template.spec.containerd.sandboxImage"),
            (pool(None, Some(0)), true, "template.spec.containerd.maxConcurrentDownloads"),
            (pool(None, Some(5)), false, "template.spec.containerd.maxConcurrentDownloads"),
            (pool(Some("x"), Some(5)), false, "template.spec.containerd.sandboxImage"),
        ] {
            let error = drop_in(&pool, there).unwrap_err();
            assert!(matches!(error, RenderError::Setting { field: f, .. } if f == field), "{error}");
        }
        assert_eq!(
            drop_in(&pool(None, None), false),
            Ok(None),
            "a pool without settings needs no containerd in the payload"
        );
    }

    #[test]
    fn the_configuration_of_the_payload_imports_the_file_and_has_the_same_keys() {
        let text = include_str!("../../../../tools/xtask/payload/static/containerd_conf.toml");
        let main: toml::Value = toml::from_str(text).unwrap();
        let ours: toml::Value = toml::from_str(&drop_in(&pool(Some("x"), Some(5)), true).unwrap().unwrap()).unwrap();
        let (directory, _) = super::super::program::CONTAINERD_DROP_IN.rsplit_once('\\').unwrap();
        assert_eq!(main["imports"][0].as_str(), Some(format!(r"{directory}\*.toml").as_str()));
        assert_eq!(main["version"], ours["version"]);
        let images = |config: &toml::Value| config["plugins"]["io.containerd.cri.v1.images"].clone();
        for path in [["max_concurrent_downloads"].as_slice(), ["pinned_images", "sandbox"].as_slice()] {
            for config in [&main, &ours] {
                let value = path.iter().try_fold(images(config), |value, key| value.get(*key).cloned());
                assert!(value.is_some(), "{path:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_image_stays_within_its_key(image in "[!-~]{1,40}") {
            let text = drop_in(&pool(Some(&image), None), true).unwrap().unwrap();
            let read: toml::Value = toml::from_str(&text).unwrap();
            let images = &read["plugins"]["io.containerd.cri.v1.images"];
            prop_assert_eq!(images["pinned_images"]["sandbox"].as_str(), Some(image.as_str()));
            prop_assert_eq!(read.as_table().unwrap().len(), 2);
        }
    }
}
