//! `cargo xtask dist`: the manifests of a release, each in one file, the bundle and the catalog for OLM, and the list of images.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result, ensure};
use devenv::workspace_root;

use crate::{
    deploy::{self, Platform, manifest},
    payload,
};

/// Writes `install-openshift.yaml`, `install-kubernetes.yaml`, `images.txt` and the OLM bundle for an image of the operator.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The operator's image by digest, as `registry.example.com/you/windows-node-pools@sha256:…`.
    #[arg(long)]
    pub image: String,
    /// Minor version of Kubernetes of the payload that is in the image. May be given several times.
    #[arg(long, value_name = "MINOR", default_value = payload::KUBERNETES[0], value_parser = clap::builder::PossibleValuesParser::new(payload::KUBERNETES))]
    pub kubernetes: Vec<String>,
    /// The image of the OLM bundle by digest, once it is in a registry: with it, the catalog is written, too.
    #[arg(long)]
    pub bundle_image: Option<String>,
    /// Folder to write to.
    #[arg(long, default_value = "target/dist")]
    pub out: PathBuf,
}

/// Writes the files.
pub(crate) fn run(args: &Args) -> Result<()> {
    for image in std::iter::once(&args.image).chain(&args.bundle_image) {
        ensure!(is_digest(image), "{image} does not end with @sha256: and 64 hexadecimal digits: a tag moves");
    }
    let kubernetes = args.kubernetes.iter().map(|version| payload::minor(version)).collect::<Result<Vec<_>>>()?;
    let release = deploy::Release { image: &args.image, kubernetes: &kubernetes };
    let out = workspace_root().join(&args.out);
    let write = |name: &str, text: &str| {
        let path = out.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&out)).with_context(|| format!("make the folder of {name}"))?;
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    for platform in Platform::ALL {
        write(&format!("install-{}.yaml", platform.name()), &manifest(platform, &args.image)?)?;
    }
    for (path, text) in deploy::bundle(&release)? {
        write(&format!("olm/bundle/{path}"), &text)?;
    }
    if let Some(bundle_image) = &args.bundle_image {
        write("olm/catalog/catalog.yaml", &deploy::catalog(&release, bundle_image)?)?;
    }
    let images: Vec<&str> = std::iter::once(&args.image).chain(&args.bundle_image).map(String::as_str).collect();
    write("images.txt", &(images.join("\n") + "\n"))?;
    println!("wrote {}", out.display());
    Ok(())
}

/// Whether an image is named by its digest.
fn is_digest(image: &str) -> bool {
    let is_hex = |digest: &str| digest.len() == 64 && digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    image.split_once("@sha256:").is_some_and(|(name, digest)| !name.is_empty() && is_hex(digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_named_by_its_digest() {
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
}
