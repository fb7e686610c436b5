//! `cargo xtask dist`: the manifests of a release, each in one file, the bundle and the catalog for OLM, the lists of images that a disconnected
//! cluster needs, and the release file, which describes the release's effects on hosts.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use devenv::workspace_root;
use remote::payload::{Payload, Wicd};
use serde_json::json;
use wnp_core::{
    operation::windows_versions::{VERSIONS, WindowsVersion},
    rollout::release_file::ReleaseFile,
};

use crate::{
    deploy::{self, Platform, VERSION, manifest},
    payload,
};

/// containerd's configuration on hosts.
const CONTAINERD: &str = include_str!("../../xtask/payload/static/containerd_conf.toml");
/// Admission policies, which the bundle for OLM cannot hold.
const POLICIES: &str = include_str!("../../../deploy/base/policies.yaml");
/// Base images of containers, whose layers hosts may have to pull from the original registry.
const BASES: [&str; 2] = ["mcr.microsoft.com/windows/nanoserver", "mcr.microsoft.com/windows/servercore"];

/// Writes the manifests of a release, the OLM bundle, and the lists of its images: `install-openshift.yaml`, `install-kubernetes.yaml`, `olm/`,
/// `images.txt`, `images-of-hosts.txt`, `imageset-config.yaml`. With the payload, also writes `release.json`, from which
/// `kubectl windows-node-pools plan --release` shows how the release affects nodes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Operator's image by digest, such as `registry.example.com/you/windows-node-pools@sha256:…`.
    #[arg(long)]
    pub image: String,
    /// Payload's image by digest. Manifests mount it as a volume, and the OLM bundle copies from it. Set --image to the operator's image without a
    /// payload then.
    #[arg(long)]
    pub payload_image: Option<String>,
    /// Image for `oc adm must-gather` by digest, which the OLM bundle names.
    #[arg(long)]
    pub must_gather_image: Option<String>,
    /// Folder with the payload that is in the image.
    #[arg(long, requires = "wicd")]
    pub payload: Option<PathBuf>,
    /// Path of the `wicd.exe` that is in the image.
    #[arg(long, requires = "payload")]
    pub wicd: Option<PathBuf>,
    /// Minor version of Kubernetes of the payload that is in the image. May be given several times. Not needed with --payload.
    /// Defaults to the newest version that a payload can have.
    #[arg(long, value_name = "MINOR", value_parser = clap::builder::PossibleValuesParser::new(payload::KUBERNETES))]
    pub kubernetes: Vec<String>,
    /// OLM bundle's image by digest, once it is in a registry. If set, the catalog is also written.
    #[arg(long)]
    pub bundle_image: Option<String>,
    /// Catalog's image by digest, once it is in a registry. If set, the CatalogSource is also written.
    #[arg(long, requires = "bundle_image")]
    pub catalog_image: Option<String>,
    /// Folder to write to.
    #[arg(long, default_value = "target/dist")]
    pub out: PathBuf,
}

/// Writes the files.
pub(crate) fn run(args: &Args) -> Result<()> {
    let given =
        [&args.image].into_iter().chain(&args.payload_image).chain(&args.must_gather_image).chain(&args.bundle_image);
    let images: Vec<&str> = given.chain(&args.catalog_image).map(String::as_str).collect();
    for image in &images {
        ensure!(
            is_digest(image),
            "{image} does not end with @sha256: and 64 lower-case hexadecimal digits: a tag can refer to another image later, so set the digest"
        );
    }
    let opened = args.payload.as_deref().map(Payload::open).transpose().context("cannot open the payload")?;
    let kubernetes = Vec::from_iter(kubernetes(&args.kubernetes, opened.as_ref())?);
    let release = deploy::Release {
        image: &args.image,
        must_gather: args.must_gather_image.as_deref(),
        payload: args.payload_image.as_deref(),
        kubernetes: &kubernetes,
    };
    let out = workspace_root().join(&args.out);
    for platform in Platform::ALL {
        let text = manifest(platform, &args.image, args.payload_image.as_deref())?;
        write(&out, &format!("install-{}.yaml", platform.name()), &text)?;
    }
    let sandbox = sandbox()?;
    write(&out, "images.txt", &(images.join("\n") + "\n"))?;
    write(&out, "images-of-hosts.txt", of_hosts(&sandbox))?;
    write(&out, "imageset-config.yaml", &image_set(&images, &sandbox)?)?;
    if let Some((payload, wicd)) = opened.as_ref().zip(args.wicd.as_deref()) {
        write(&out, "release.json", &release_file(payload, wicd)?)?;
    }
    for (path, text) in deploy::bundle(&release)? {
        write(&out, &format!("olm/bundle/{path}"), &text)?;
    }
    write(&out, "olm/policies.yaml", POLICIES)?;
    if let Some(bundle_image) = &args.bundle_image {
        write(&out, "olm/catalog/catalog.yaml", &deploy::catalog(&release, bundle_image)?)?;
    }
    if let Some(catalog_image) = &args.catalog_image {
        write(&out, "olm/catalogsource.yaml", deploy::catalog_source(catalog_image)?)?;
    }
    println!("wrote {}", out.display());
    Ok(())
}

fn write(out: &Path, name: &str, text: impl AsRef<[u8]>) -> Result<()> {
    let path = out.join(name);
    fs::create_dir_all(path.parent().unwrap_or(out)).with_context(|| format!("cannot create the folder of {name}"))?;
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the release file, which describes what the release installs on hosts.
fn release_file(payload: &Payload, wicd: &Path) -> Result<String> {
    let manifests = payload.by_minor().clone();
    let wicd = Wicd::open(wicd).context("cannot open wicd.exe")?;
    let file = ReleaseFile::new(VERSION, &wicd.sha256, manifests).context("cannot render the services of hosts")?;
    let text = serde_json::to_string_pretty(&file)? + "\n";
    // Readers refuse an invalid file.
    ReleaseFile::parse(text.as_bytes()).context("cannot read what was written")?;
    Ok(text)
}

/// Returns the minor versions of the kubelets in the image, which limit the clusters for which the bundle is made. Versions in arguments must
/// match those of the payload.
fn kubernetes(said: &[String], payload: Option<&Payload>) -> Result<BTreeSet<u32>> {
    let said = said.iter().map(|version| payload::minor(version)).collect::<Result<BTreeSet<_>>>()?;
    let found = payload.map(Payload::kubelets).unwrap_or_default();
    let in_words =
        |minors: &BTreeSet<u32>| minors.iter().map(|minor| format!("1.{minor}")).collect::<Vec<_>>().join(", ");
    match (said.is_empty(), found.is_empty()) {
        (_, true) if payload.is_some() && said.is_empty() => {
            bail!("the payload does not state the version of its kubelet.exe: set its minor version with --kubernetes")
        }
        (true, true) => {
            let newest = payload::KUBERNETES[0];
            println!(
                "the OLM bundle is for a payload of Kubernetes {newest} only: to change this, set --kubernetes or --payload"
            );
            Ok([payload::minor(newest)?].into())
        }
        (false, false) if said != found => {
            bail!(
                "--kubernetes is {}, but the kubelets of the payload have the versions {}; correct --kubernetes, or omit it",
                in_words(&said),
                in_words(&found)
            )
        }
        (true, false) => Ok(found),
        (false, _) => Ok(said),
    }
}

/// Reports whether an image is referenced by its digest.
fn is_digest(image: &str) -> bool {
    let is_hex = |digest: &str| digest.len() == 64 && digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    image.split_once("@sha256:").is_some_and(|(name, digest)| !name.is_empty() && is_hex(digest))
}

/// Returns the image of sandbox containers, which the payload's containerd pulls for the first pod.
fn sandbox() -> Result<String> {
    let path = ["plugins", "io.containerd.cri.v1.images", "pinned_images", "sandbox"];
    let configuration: toml::Value =
        toml::from_str(CONTAINERD).context("the configuration of containerd in this repository is not TOML")?;
    let sandbox = path.iter().try_fold(&configuration, |value, key| value.get(key)).and_then(toml::Value::as_str);
    Ok(sandbox.context("the configuration of containerd in this repository has no sandbox image")?.to_owned())
}

/// Returns the list of images that hosts pull, by version of Windows. They have tags, because hosts refer to them by tag.
fn of_hosts(sandbox: &str) -> String {
    let about = "# Images that Windows hosts pull in addition to those of your pods.\n\
                 # Base images are needed only if the images of your pods refer to their layers in the original registry.";
    let of_version = |version: WindowsVersion| {
        let bases = BASES.map(|base| format!("{base}:{}", version.image));
        format!("\n# {} (build {})\n{sandbox}\n{}", version.name, version.build, bases.join("\n"))
    };
    format!("{about}\n{}\n", VERSIONS.map(of_version).join("\n"))
}

/// Returns a configuration for version 2 of oc-mirror.
fn image_set(images: &[&str], sandbox: &str) -> Result<String> {
    let names: Vec<_> = images.iter().copied().chain([sandbox]).map(|name| json!({"name": name})).collect();
    let set = json!({
        "apiVersion": "mirror.openshift.io/v2alpha1",
        "kind": "ImageSetConfiguration",
        "mirror": {"additionalImages": names},
    });
    Ok(format!("# For oc-mirror --v2. Generated by `cargo xtask dist`.\n{}", serde_yaml::to_string(&set)?))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use serde_json::Value;
    use testbed::{
        binaries,
        image::{self, Built, Files, Store},
        payload::{self, Entry},
        registry::Registry,
    };

    use super::*;
    use crate::yaml::documents;

    #[test]
    fn images_need_a_digest() {
        let digest = "0123456789abcdef".repeat(4);
        for (image, expected) in [
            (format!("registry.example.com/a@sha256:{digest}"), true),
            (format!("registry.example.com:5000/a:1.0@sha256:{digest}"), true),
            ("registry.example.com/a:1.0".to_owned(), false),
            (format!("a@sha256:{}", &digest[1..]), false),
            (format!("a@sha256:{}G", &digest[1..]), false),
            (format!("@sha256:{digest}"), false),
        ] {
            assert_eq!(is_digest(&image), expected, "{image}");
        }
    }

    #[test]
    fn the_bundle_supports_the_kubelets_of_the_payload() {
        let of = |versions: &[Option<&str>]| {
            let manifest = |version: Option<&str>| {
                let entry = Entry::new(r"C:\k\kubelet.exe", "kubelet").version(version);
                let folder = tempfile::tempdir().unwrap();
                payload::write(folder.path(), &[entry], payload::LEVEL_FAST).unwrap()
            };
            // The name of a directory does not matter, only its kubelet.
            let all = versions.iter().zip([None, Some(1), Some(2)]).map(|(version, at)| (at, manifest(*version)));
            Payload::announced(all.collect())
        };
        for (about, said, payload, expected) in [
            ("the payload says it", &[][..], Some(of(&[Some("v1.33.5"), Some("v1.35.1")])), Ok(vec![33, 35])),
            ("both say the same", &["1.35", "1.33"], Some(of(&[Some("v1.33.5"), Some("v1.35.1")])), Ok(vec![33, 35])),
            (
                "they differ",
                &["1.36"],
                Some(of(&[Some("v1.33.5")])),
                Err("--kubernetes is 1.36, but the kubelets of the payload have the versions 1.33"),
            ),
            (
                "the newest is not there",
                &["1.36", "1.33"],
                Some(of(&[Some("v1.33.5")])),
                Err("payload have the versions 1.33"),
            ),
            ("a kubelet without a version", &["1.34"], Some(of(&[None])), Ok(vec![34])),
            ("and nothing is said", &[], Some(of(&[None])), Err("set its minor version with --kubernetes")),
            ("no payload", &["1.34"], None, Ok(vec![34])),
            ("nothing", &[], None, Ok(vec![crate::payload::minor(crate::payload::KUBERNETES[0]).unwrap()])),
        ] {
            let said: Vec<String> = said.iter().map(ToString::to_string).collect();
            match (kubernetes(&said, payload.as_ref()), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found.into_iter().collect::<Vec<_>>(), expected, "{about}"),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{about}: {error}"),
                (found, _) => panic!("{about}: {found:?}"),
            }
        }
    }

    #[test]
    fn hosts_of_each_build_have_their_images() {
        let text = of_hosts(&sandbox().unwrap());
        for (heading, image) in [
            ("# Windows Server 2019 (build 17763)", "mcr.microsoft.com/windows/servercore:ltsc2019"),
            ("# Windows Server 2022 (build 20348)", "mcr.microsoft.com/windows/nanoserver:ltsc2022"),
            ("# Windows Server 2025 (build 26100)", "registry.k8s.io/pause:3.10.2"),
        ] {
            let part = text.split("\n\n").find(|part| part.starts_with(heading)).unwrap();
            assert!(part.lines().any(|line| line == image), "{part}");
        }
    }

    fn crane(args: &[&str]) -> String {
        devenv::read(Command::new(binaries::crane().unwrap()).args(args)).unwrap()
    }

    /// Returns every image that the manifests of a release and its bundle name.
    fn named(out: &Path) -> BTreeSet<String> {
        let mut images = BTreeSet::new();
        for platform in Platform::ALL {
            let text = fs::read_to_string(out.join(format!("install-{}.yaml", platform.name()))).unwrap();
            for pod in documents(&text).into_iter().filter_map(|object| object.pointer("/spec/template/spec").cloned())
            {
                let of = |list: &str, pointer: &str| {
                    let items = pod[list].as_array().cloned().unwrap_or_default();
                    items
                        .iter()
                        .filter_map(|item| Some(item.pointer(pointer)?.as_str()?.to_owned()))
                        .collect::<Vec<_>>()
                };
                images.extend(of("containers", "/image"));
                images.extend(of("initContainers", "/image"));
                images.extend(of("volumes", "/image/reference"));
            }
        }
        for entry in fs::read_dir(out.join("olm/bundle/manifests")).unwrap() {
            let object: Value = serde_yaml::from_slice(&fs::read(entry.unwrap().path()).unwrap()).unwrap();
            let related = object.pointer("/spec/relatedImages").and_then(Value::as_array).cloned().unwrap_or_default();
            images.extend(related.iter().map(|one| one["image"].as_str().unwrap().to_owned()));
        }
        for (file, pointer) in [("catalog/catalog.yaml", "/image"), ("catalogsource.yaml", "/spec/image")] {
            let text = fs::read_to_string(out.join("olm").join(file)).unwrap();
            images.extend(documents(&text).iter().filter_map(|one| Some(one.pointer(pointer)?.as_str()?.to_owned())));
        }
        images
    }

    /// Returns the labels of an image.
    fn labels(built: &Built) -> Value {
        let blob = |digest: &str| -> Value {
            let blob = fs::read(built.layout.join("blobs").join(digest.replace(':', "/"))).unwrap();
            serde_json::from_slice(&blob).unwrap()
        };
        let manifest = blob(&built.digest);
        blob(manifest["config"]["digest"].as_str().unwrap())["config"]["Labels"].clone()
    }

    #[test]
    fn images_of_a_release_are_listed_and_the_same_in_a_mirror() {
        if !image::missing(image::Arch::Amd64, &["buildah"]).is_empty() {
            return devenv::skip("no buildah; `cargo xtask setup` installs what is missing").unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let files = Files {
            operator: path("o"),
            client: path("c"),
            client_for_windows: None,
            wicd: path("w"),
            payload: path("p"),
            revision: None,
            arch: image::Arch::Amd64,
        };
        fs::write(&files.operator, "a program").unwrap();
        fs::write(&files.client, "another program").unwrap();
        fs::write(&files.wicd, "wicd").unwrap();
        payload::write(&files.payload, &[Entry::new(r"C:\k\kubelet.exe", "kubelet")], payload::LEVEL_FAST).unwrap();
        let store = Store::new(&path("store")).unwrap();
        let images = image::build(&store, &files, &path("out")).unwrap();

        let (source, mirror) = (Registry::start().unwrap(), Registry::start().unwrap());
        let push = |built: &Built, name: &str| {
            crane(&["push", built.layout.to_str().unwrap(), &format!("{}/you/{name}:test", source.address())]);
            format!("{}/you/{name}@{}", source.address(), built.digest)
        };
        let mut args = Args {
            image: push(&images.slim, image::SLIM),
            payload_image: Some(push(&images.payload, image::PAYLOAD)),
            must_gather_image: images.must_gather.as_ref().map(|built| push(built, image::MUST_GATHER)),
            payload: None,
            wicd: None,
            kubernetes: vec![crate::payload::KUBERNETES[0].into()],
            bundle_image: None,
            catalog_image: None,
            out: path("dist"),
        };
        run(&args).unwrap();
        let bundle = path("dist/olm/bundle");
        let bundle = store.build_by("bundle.Containerfile", &bundle, "bundle", "test", &path("out")).unwrap();
        let labels = labels(&bundle);
        let of_bundle = |key: &str| labels[format!("operators.operatorframework.io.bundle.{key}")].as_str();
        assert_eq!(of_bundle("mediatype.v1"), Some("registry+v1"), "{labels}");
        assert_eq!(of_bundle("manifests.v1"), Some("manifests/"), "{labels}");
        args.bundle_image = Some(push(&bundle, "bundle"));
        // `opm` builds the real image of the catalog. Its content does not matter here.
        args.catalog_image = Some(push(&images.payload, "catalog"));
        run(&args).unwrap();

        let list = fs::read_to_string(path("dist/images.txt")).unwrap();
        let listed: BTreeSet<String> = list.lines().map(Into::into).collect();
        assert_eq!(named(&args.out), listed);
        let set = fs::read_to_string(path("dist/imageset-config.yaml")).unwrap();
        let set: Value = serde_yaml::from_str(&set).unwrap();
        let of_set =
            set["mirror"]["additionalImages"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap());
        let of_set: BTreeSet<String> = of_set.map(Into::into).collect();
        let of_hosts = [sandbox().unwrap()];
        assert_eq!(of_set, listed.iter().chain(&of_hosts).cloned().collect());

        for image in &listed {
            let (name, digest) = image.split_once('@').unwrap();
            let copy = format!("{}:mirrored", name.replace(source.address(), mirror.address()));
            crane(&["copy", image, &copy]);
            assert_eq!(crane(&["digest", &copy]), digest, "{copy}");
        }
        // The mirror must not need the first registry.
        drop(source);
        for image in &listed {
            let (name, digest) = image.split_once("/you/").unwrap().1.split_once('@').unwrap();
            crane(&["validate", "--remote", &format!("{}/you/{name}@{digest}", mirror.address())]);
        }
    }
}
