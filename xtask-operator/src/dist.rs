//! `cargo xtask dist`: the manifests of a release, each in one file, the list of its images, and what it gives to hosts.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use devenv::workspace_root;
use remote::payload::{Payload, Wicd};
use wnp_core::rollout::release_file::ReleaseFile;

use crate::deploy::{Platform, VERSION, manifest};

/// Writes `install-openshift.yaml`, `install-kubernetes.yaml` and `images.txt` for an image of the operator, and with its payload
/// `release.json`, from which `windows-node-pools plan --release` says what the release does to nodes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The operator's image by digest, as `registry.example.com/you/windows-node-pools@sha256:…`.
    #[arg(long)]
    pub image: String,
    /// Folder with the payload that is in the image.
    #[arg(long, requires = "wicd")]
    pub payload: Option<PathBuf>,
    /// The `wicd.exe` that is in the image.
    #[arg(long, requires = "payload")]
    pub wicd: Option<PathBuf>,
    /// Folder to write to.
    #[arg(long, default_value = "target/dist")]
    pub out: PathBuf,
}

/// Writes the files.
pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(is_digest(&args.image), "{} does not end with @sha256: and 64 hexadecimal digits: a tag moves", args.image);
    let out = workspace_root().join(&args.out);
    fs::create_dir_all(&out).with_context(|| format!("make {}", out.display()))?;
    let write = |name: &str, text: &str| {
        let path = out.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    for platform in Platform::ALL {
        write(&format!("install-{}.yaml", platform.name()), &manifest(platform, &args.image)?)?;
    }
    write("images.txt", &format!("{}\n", args.image))?;
    if let Some((payload, wicd)) = args.payload.as_deref().zip(args.wicd.as_deref()) {
        write("release.json", &release(payload, wicd)?)?;
    }
    println!("wrote {}", out.display());
    Ok(())
}

/// What the release gives to hosts.
fn release(payload: &Path, wicd: &Path) -> Result<String> {
    let manifests = Payload::open(payload).context("open the payload")?.by_minor().clone();
    let wicd = Wicd::open(wicd).context("open wicd.exe")?;
    let file = ReleaseFile::new(VERSION, &wicd.sha256, manifests).context("render the services of hosts")?;
    let text = serde_json::to_string_pretty(&file)? + "\n";
    // Who reads it refuses what is not fit.
    ReleaseFile::parse(text.as_bytes()).context("read what was written")?;
    Ok(text)
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
