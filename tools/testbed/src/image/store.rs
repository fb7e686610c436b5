//! Image store of buildah and podman.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::Arch;
use crate::binaries::Run as _;

/// Images and containers in a folder of their own. No kernel driver is needed.
#[derive(Clone, Debug)]
pub struct Store {
    configuration: PathBuf,
    folder: PathBuf,
}

/// Image in a folder, in the layout of the Open Container Initiative.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// Name of the image in a [`Store`], with a tag.
    pub name: String,
    /// Folder of the image.
    pub layout: PathBuf,
    /// Digest of the manifest, as `sha256:…`. The image has the same digest in registries.
    pub digest: String,
}

impl Store {
    /// Creates a store in `folder`, which is created if it does not exist.
    ///
    /// # Errors
    /// Fails when the folder cannot be written.
    pub fn new(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let folder = folder.canonicalize()?;
        let configuration = folder.join("storage.conf");
        let of = |name: &str| Some(format!("{:?}", folder.join(name).to_str()?));
        let (images, run) = of("images").zip(of("run")).context("path is not UTF-8")?;
        let text = format!("[storage]\ndriver = \"vfs\"\ngraphroot = {images}\nrunroot = {run}\n");
        fs::write(&configuration, text).with_context(|| format!("cannot write {}", configuration.display()))?;
        Ok(Self { configuration, folder })
    }

    /// Returns a `buildah` or `podman` command that works with this store.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("CONTAINERS_STORAGE_CONF", &self.configuration).env_remove("STORAGE_DRIVER");
        command
    }

    /// Builds an image with all files in `files`, above the image `base` if there is one, and returns its id.
    pub(super) fn build(&self, base: Option<&str>, files: &Path, arch: Arch, config: &[String]) -> Result<String> {
        let buildah = |args: &[&str]| self.command("buildah").args(args).read();
        let container = buildah(&["from", "--pull-never", "--arch", arch.name(), base.unwrap_or("scratch")])?;
        let built = (|| {
            let files = files.to_str().context("path is not UTF-8")?;
            buildah(&["copy", "--quiet", "--chown", "0:0", &container, files, "/"])?;
            let mut args = vec!["config", "--arch", arch.name()];
            args.extend(config.iter().map(String::as_str));
            args.push(&container);
            buildah(&args)?;
            let id = self.folder.join("id");
            let id = id.to_str().context("path is not UTF-8")?;
            // Files and image have the time 1970, so that builds at different times are the same.
            buildah(&[
                "commit",
                "--quiet",
                "--timestamp",
                "0",
                "--identity-label=false",
                "--omit-history",
                "--iidfile",
                id,
                &container,
            ])?;
            Ok(fs::read_to_string(id)?.trim().to_owned())
        })();
        buildah(&["rm", &container])?;
        built
    }

    /// Builds an image from a Containerfile in `folder`, and writes it to `out`.
    ///
    /// # Errors
    /// Fails when buildah fails.
    pub fn build_by(&self, containerfile: &str, folder: &Path, name: &str, tag: &str, out: &Path) -> Result<Built> {
        let folder = folder.to_str().context("path is not UTF-8")?;
        let file = format!("{folder}/{containerfile}");
        let args = ["build", "--quiet", "--isolation", "chroot", "--file", &file, folder];
        let id = self.command("buildah").args(args).read()?;
        self.export(id.trim(), name, tag, out)
    }

    /// Tags an image, and writes it to a folder.
    pub(super) fn export(&self, id: &str, name: &str, tag: &str, out: &Path) -> Result<Built> {
        let buildah = |args: &[&str]| self.command("buildah").args(args).read();
        let tagged = format!("localhost/{name}:{tag}");
        buildah(&["tag", id, &tagged])?;
        let layout = out.join(name);
        // Remove blobs of earlier builds.
        match fs::remove_dir_all(&layout) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
        let digest = self.folder.join("digest");
        let target = format!("oci:{}:{tag}", layout.display());
        buildah(&["push", "--quiet", "--digestfile", digest.to_str().context("path is not UTF-8")?, id, &target])?;
        let digest = fs::read_to_string(&digest)?.trim().to_owned();
        Ok(Built { name: tagged, layout, digest })
    }
}
