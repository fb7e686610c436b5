//! Payload of the operator: the directory that `cargo xtask payload` makes, and [`Archive`], the stream of the files
//! that a host lacks. [`api::payload`] documents the format of the directory.

mod archive;
mod copy;
mod wicd;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use api::payload::{File, MANIFEST, Manifest, ManifestError};
use sha2::{Digest, Sha256};

pub use archive::Archive;
pub use wicd::Wicd;

/// Error for a payload that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    /// A file cannot be read.
    #[error("cannot read {path}; check that the payload is complete and readable, or make it again (docs/guide/upgrade.md#the-payload)", path = path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// A file of a copy cannot be written.
    #[error("cannot write {path}; check that the volume has space and that its user may write to it", path = path.display())]
    Unwritable {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The directory for a copy is neither empty nor an earlier copy.
    #[error("{path} has files that are not part of a payload and would be removed: name an empty directory", path = path.display())]
    Occupied {
        /// Path of the directory.
        path: PathBuf,
    },
    /// Files of the manifest are missing.
    #[error(
        "the payload lacks {n} of the files in its manifest: {list}; make it again (docs/guide/upgrade.md#the-payload)",
        n = paths.len(),
        list = paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    Missing {
        /// Paths of all missing files.
        paths: Vec<PathBuf>,
    },
    /// The manifest is not valid. Its message names the fault and the remedy.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A compressed file has another size than in the manifest.
    #[error(
        "{path} has {found} bytes and should have {expected}; make the payload again (docs/guide/upgrade.md#the-payload)",
        path = path.display()
    )]
    WrongSize {
        /// Path of the file.
        path: PathBuf,
        /// Size in the manifest, in bytes.
        expected: u64,
        /// Size of the file, in bytes.
        found: u64,
    },
    /// The content of a compressed file does not match the manifest.
    #[error("the content of {path} does not match the manifest; make the payload again (docs/guide/upgrade.md#the-payload)", path = path.display())]
    WrongContent {
        /// Path of the file.
        path: PathBuf,
    },
    /// A host lacks a file that is not in the payload.
    #[error(
        "the payload has no file with the hash {sha256}, because the host answered for another payload; the operator retries"
    )]
    NotInPayload {
        /// Hash of the file.
        sha256: String,
    },
}

/// Destination of kubelet on a host. The version of kubelet determines the clusters that a payload is for.
const KUBELET: &str = r"C:\k\kubelet.exe";

fn kubelet(manifest: &Manifest) -> Option<&File> {
    manifest.files.iter().find(|file| file.destination.eq_ignore_ascii_case(KUBELET))
}

/// Payload directory. Its files are known to exist, except after [`Payload::announced`]. Cheap to clone; the files stay on disk.
#[derive(Default, Clone, Debug)]
pub struct Payload {
    /// Manifests by minor version of Kubernetes. The key `None` stands for all versions.
    manifests: Arc<BTreeMap<Option<u32>, Manifest>>,
    /// Files of all manifests, by hash. Files with the same content share one entry.
    blobs: Arc<BTreeMap<String, Blob>>,
}

/// Compressed file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Blob {
    path: PathBuf,
    /// Size of the compressed file in bytes.
    compressed: u64,
    /// Size of the content in bytes.
    size: u64,
}

impl Payload {
    /// Reads the manifest in `dir`, or the manifests in its subdirectories that are named after minor versions of Kubernetes, such as `1.36`, and
    /// checks that every file exists and has its compressed size. [`Payload::verify`] checks the contents.
    ///
    /// # Errors
    /// [`PayloadError::Unreadable`] when a manifest or the size of a file cannot be read. [`PayloadError::Manifest`] when
    /// a manifest is not valid. [`PayloadError::WrongSize`] for the first file with another compressed size.
    /// [`PayloadError::Missing`] with all files of a manifest that are not there.
    pub fn open(dir: &Path) -> Result<Self, PayloadError> {
        let mut manifests = BTreeMap::new();
        let mut blobs = BTreeMap::new();
        for (minor, dir) in Self::directories(dir) {
            let (manifest, more) = Self::open_one(&dir)?;
            manifests.insert(minor, manifest);
            blobs.extend(more);
        }
        Ok(Self { manifests: Arc::new(manifests), blobs: Arc::new(blobs) })
    }

    /// Creates a payload from manifests alone, by minor version of Kubernetes. For a plan, which sends no files.
    pub fn announced(manifests: BTreeMap<Option<u32>, Manifest>) -> Self {
        let files = manifests.values().flat_map(|manifest| &manifest.files);
        let blob = |f: &File| Blob { path: PathBuf::new(), compressed: f.compressed_size, size: f.size };
        let blobs = files.map(|file| (file.sha256.clone(), blob(file))).collect();
        Self { manifests: Arc::new(manifests), blobs: Arc::new(blobs) }
    }

    /// Returns the manifests by minor version of Kubernetes.
    pub fn by_minor(&self) -> &BTreeMap<Option<u32>, Manifest> {
        &self.manifests
    }

    /// Returns the minor versions of Kubernetes of all kubelets whose version is known.
    pub fn kubelets(&self) -> BTreeSet<u32> {
        let minor = |version: &str| version.trim_start_matches('v').strip_prefix("1.")?.split('.').next()?.parse().ok();
        self.manifests.values().filter_map(|manifest| minor(kubelet(manifest)?.version.as_deref()?)).collect()
    }

    /// Returns a description of the payloads and their kubelets, for messages.
    pub fn in_words(&self) -> String {
        let words = |(minor, manifest): (&Option<u32>, &Manifest)| {
            let of =
                minor.map_or_else(|| "all versions of Kubernetes".to_owned(), |minor| format!("Kubernetes 1.{minor}"));
            match kubelet(manifest).and_then(|file| file.version.as_ref()) {
                Some(version) => format!("{of} (kubelet {version})"),
                None => of,
            }
        };
        let all: Vec<String> = self.manifests.iter().map(words).collect();
        if all.is_empty() { "no version of Kubernetes".to_owned() } else { all.join(", ") }
    }

    /// Returns the directories that have a manifest, or `dir` itself if there are none, so that the error names it.
    fn directories(dir: &Path) -> BTreeMap<Option<u32>, PathBuf> {
        let mut found = BTreeMap::new();
        let entries = if dir.join(MANIFEST).is_file() { None } else { fs::read_dir(dir).ok() };
        for path in entries.into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path()) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let minor = name.strip_prefix("1.").and_then(|minor| minor.parse().ok());
            if minor.is_some() && path.join(MANIFEST).is_file() {
                found.insert(minor, path);
            }
        }
        if found.is_empty() {
            found.insert(None, dir.to_owned());
        }
        found
    }

    fn open_one(dir: &Path) -> Result<(Manifest, BTreeMap<String, Blob>), PayloadError> {
        let path = dir.join(MANIFEST);
        let json = fs::read(&path).map_err(|source| PayloadError::Unreadable { path, source })?;
        let manifest = Manifest::parse(&json)?;
        let mut blobs = BTreeMap::new();
        let mut missing = Vec::new();
        for file in &manifest.files {
            let path = dir.join(format!("{}.zst", file.path));
            let found = match fs::metadata(&path) {
                Ok(metadata) => metadata.len(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    missing.push(path);
                    continue;
                }
                Err(source) => return Err(PayloadError::Unreadable { path, source }),
            };
            if found != file.compressed_size {
                return Err(PayloadError::WrongSize { path, expected: file.compressed_size, found });
            }
            let blob = Blob { path, compressed: file.compressed_size, size: file.size };
            blobs.entry(file.sha256.clone()).or_insert(blob);
        }
        if !missing.is_empty() {
            return Err(PayloadError::Missing { paths: missing });
        }
        Ok((manifest, blobs))
    }

    /// Returns the manifest for nodes of a cluster whose oldest API server has the minor version `server`: the newest manifest up to this version. If
    /// all manifests are newer, returns the oldest one, which the version check refuses. If `server` is `None`, returns the newest one.
    pub fn manifest(&self, server: Option<u32>) -> Option<&Manifest> {
        let fits = |minor: &Option<u32>| minor.zip(server).is_none_or(|(minor, server)| minor <= server);
        let newest = self.manifests.iter().rev().find(|(minor, _)| fits(minor));
        newest.or_else(|| self.manifests.iter().next()).map(|(_, manifest)| manifest)
    }

    /// Returns all manifests.
    pub fn manifests(&self) -> impl Iterator<Item = &Manifest> {
        self.manifests.values()
    }

    /// Reports whether the payload has a file with this hash.
    pub fn has(&self, sha256: &str) -> bool {
        self.blobs.contains_key(sha256)
    }

    /// Checks the content of the file with this hash. After a host has answered `HashMismatch`, the result shows which side is at fault: the operator
    /// if the check fails, otherwise the network or the host. Blocks while it reads and unpacks the file.
    ///
    /// # Errors
    /// [`PayloadError::NotInPayload`] when no file has this hash. [`PayloadError::Unreadable`] when the file cannot be
    /// opened. [`PayloadError::WrongContent`] when it cannot be unpacked, or its content has another size or hash.
    pub fn verify(&self, sha256: &str) -> Result<(), PayloadError> {
        let blob = self.blob(sha256)?;
        let unreadable = |source| PayloadError::Unreadable { path: blob.path.clone(), source };
        let file = fs::File::open(&blob.path).map_err(unreadable)?;
        let wrong = || PayloadError::WrongContent { path: blob.path.clone() };
        // Reads at most one byte more than expected, so that a damaged frame cannot unpack without end.
        let mut content = zstd::Decoder::new(file).map_err(|_| wrong())?.take(blob.size + 1);
        let (mut hash, mut size, mut buffer) = (Sha256::new(), 0, vec![0; 256 << 10]);
        loop {
            match content.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    hash.update(&buffer[..n]);
                    size += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(wrong()),
            }
        }
        if size == blob.size && hex::encode(hash.finalize()) == sha256 { Ok(()) } else { Err(wrong()) }
    }

    /// Checks the contents of all files. Blocks for seconds.
    ///
    /// # Errors
    /// Fails when [`Payload::verify`] fails for a file. Later files are not checked.
    pub fn verify_all(&self) -> Result<(), PayloadError> {
        self.blobs.keys().try_for_each(|sha256| self.verify(sha256))
    }

    fn blob(&self, sha256: &str) -> Result<&Blob, PayloadError> {
        self.blobs.get(sha256).ok_or_else(|| PayloadError::NotInPayload { sha256: sha256.to_owned() })
    }
}

#[cfg(test)]
mod tests;
