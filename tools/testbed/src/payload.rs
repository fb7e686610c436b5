//! Writes payload directories (see [`api::payload`]): the real one for `cargo xtask payload`, and synthetic ones for tests, the
//! demo and benchmarks.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context, Result, anyhow};
use api::payload::{File, MANIFEST, Manifest};
use rand::{RngCore, SeedableRng, rngs::StdRng};
use sha2::{Digest, Sha256};

use crate::binaries::{host_containerd, host_node_manager, host_overlay, host_proxy, log_runner};

/// Compression level for synthetic payloads: the fastest.
pub const LEVEL_FAST: i32 = 1;
/// Compression level for releases, which are compressed once and sent to every host.
pub const LEVEL_RELEASE: i32 = 19;

/// Number of bytes that are read at once. It is fixed, so that the same content always gives the same frame.
const CHUNK: u64 = 128 << 10;

/// Source of the bytes of a file.
#[derive(Clone, Debug)]
pub enum Content {
    /// Bytes from memory.
    Bytes(Vec<u8>),
    /// Bytes from a file.
    File(PathBuf),
    /// Random bytes, which do not compress. The same seed gives the same bytes. They are never in memory as a whole.
    Random {
        /// Number of bytes.
        size: u64,
        /// Seed, which distinguishes contents of the same size.
        seed: u64,
    },
}

/// File for a payload.
#[derive(Clone, Debug)]
pub struct Entry {
    path: String,
    destination: String,
    content: Content,
    services: BTreeSet<String>,
    platforms: BTreeSet<String>,
    version: Option<String>,
}

impl Entry {
    /// Returns an entry with these bytes for `destination`, such as `C:\k\cni\host-local.exe`. Its path in the payload directory is the part after
    /// `C:\k\` or, in another directory, after `C:\`, with `/`: `cni/host-local.exe`.
    pub fn new(destination: &str, content: impl Into<Vec<u8>>) -> Self {
        Self::with(destination, Content::Bytes(content.into()))
    }

    /// Returns an entry as [`Entry::new`] does, from a [`Content`].
    pub fn with(destination: &str, content: Content) -> Self {
        let below_root = destination.strip_prefix(r"C:\k\").or_else(|| destination.strip_prefix(r"C:\"));
        Self {
            path: below_root.unwrap_or(destination).replace('\\', "/"),
            destination: destination.to_owned(),
            content,
            services: BTreeSet::new(),
            platforms: BTreeSet::new(),
            version: None,
        }
    }

    /// Sets the version of the program, such as `1.36.3`.
    pub fn version(mut self, version: Option<&str>) -> Self {
        self.version = version.map(|version| version.trim_start_matches('v').to_owned());
        self
    }

    /// Adds services that read the file.
    pub fn services(mut self, names: &[&str]) -> Self {
        self.services.extend(names.iter().map(ToString::to_string));
        self
    }

    /// Adds platforms that need the file. Without any, all platforms need it.
    pub fn platforms(mut self, names: &[&str]) -> Self {
        self.platforms.extend(names.iter().map(ToString::to_string));
        self
    }
}

/// Returns further entries, which a Wine host needs on a cluster with OVN-Kubernetes' hybrid overlay.
///
/// # Errors
/// Fails when a program of the test bed cannot be built.
pub fn hybrid_overlay() -> Result<Vec<Entry>> {
    Ok(vec![
        Entry::with(r"C:\k\containerd\containerd.exe", Content::File(host_containerd()?)).services(&["containerd"]),
        Entry::new(r"C:\k\containerd\containerd_conf.toml", "version = 3\n").services(&["containerd"]),
        Entry::with(r"C:\k\hybrid-overlay-node.exe", Content::File(host_overlay()?)).services(&["hybrid-overlay-node"]),
        Entry::with(r"C:\k\kube-proxy.exe", Content::File(host_proxy()?)).services(&["kube-proxy"]),
        Entry::with(r"C:\k\kube-log-runner.exe", Content::File(log_runner()?)).services(&["kubelet", "kube-proxy"]),
        // CNI plug-ins run with pods, which do not exist here.
        Entry::new(r"C:\k\cni\win-overlay.exe", "never run"),
        Entry::new(r"C:\k\cni\host-local.exe", "never run"),
    ])
}

/// Returns further entries, which a Wine host needs on Azure.
///
/// # Errors
/// Fails when a program of the test bed cannot be built.
pub fn azure() -> Result<Vec<Entry>> {
    let manager = Entry::with(r"C:\k\azure-cloud-node-manager.exe", Content::File(host_node_manager()?));
    Ok(vec![manager.services(&["cloud-node-manager"]).platforms(&["azure"])])
}

/// Writes the payload of these entries into `dir`, and returns its manifest. The same entries and level give the same
/// bytes. Compressed files of an earlier payload in `dir` that are not in this one are deleted.
///
/// # Errors
/// Fails when a content cannot be read, `dir` cannot be written, or two entries have the same path or destination.
pub fn write(dir: &Path, entries: &[Entry], level: i32) -> Result<Manifest> {
    write_with(dir, entries, level, &|_| ())
}

/// Writes a payload as [`write`] does, and reports each finished file to `progress`.
///
/// # Errors
/// Fails as [`write`] does.
pub fn write_with(dir: &Path, entries: &[Entry], level: i32, progress: &(dyn Fn(&File) + Sync)) -> Result<Manifest> {
    let paths: BTreeSet<String> = entries.iter().map(|e| e.path.to_ascii_lowercase()).collect();
    anyhow::ensure!(paths.len() == entries.len(), "two payload entries have the same path");
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let before = fs::read(dir.join(MANIFEST)).ok().and_then(|json| Manifest::parse(&json).ok()).unwrap_or_default();

    // Level 19 is slow, so all cores take files from the list, one after the other.
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<File>> {
        let mut done = Vec::new();
        while let Some(entry) = entries.get(next.fetch_add(1, Ordering::Relaxed)) {
            let file = compress(dir, entry, level)?;
            progress(&file);
            done.push(file);
        }
        Ok(done)
    };
    let mut files = std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..cores.min(entries.len())).map(|_| scope.spawn(work)).collect();
        let panicked = |_| anyhow!("a thread that compressed payload files has panicked");
        workers.into_iter().map(|worker| worker.join().map_err(panicked)?).collect::<Result<Vec<_>>>()
    })?
    .concat();
    files.sort_by(|a, b| a.path.cmp(&b.path));

    let manifest = Manifest { schema: 1, files };
    let mut json = serde_json::to_vec_pretty(&manifest)?;
    json.push(b'\n');
    Manifest::parse(&json)?;
    replace(&dir.join(MANIFEST), &json)?;
    for file in before.files.iter().filter(|f| !paths.contains(&f.path.to_ascii_lowercase())) {
        // The file may be gone already.
        let _ = fs::remove_file(blob(dir, &file.path));
    }
    Ok(manifest)
}

/// Returns the path of a compressed file.
fn blob(dir: &Path, path: &str) -> PathBuf {
    dir.join(format!("{path}.zst"))
}

fn compress(dir: &Path, entry: &Entry, level: i32) -> Result<File> {
    let target = blob(dir, &entry.path);
    let parent = target.parent().unwrap_or(dir);
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    let (mut source, size) = entry.content.open().with_context(|| format!("cannot read {}", entry.path))?;

    let part = target.with_extension("part");
    let out = fs::File::create(&part).with_context(|| format!("cannot write {}", part.display()))?;
    let mut encoder = zstd::Encoder::new(out, level)?;
    encoder.set_pledged_src_size(Some(size))?;
    encoder.include_contentsize(true)?;
    let (mut hash, mut total, mut chunk) = (Sha256::new(), 0, Vec::new());
    while source.by_ref().take(CHUNK).read_to_end(&mut chunk)? > 0 {
        hash.update(&chunk);
        encoder.write_all(&chunk)?;
        total += chunk.len() as u64;
        chunk.clear();
    }
    anyhow::ensure!(total == size, "{} changed while it was read", entry.path);
    let compressed_size = encoder.finish()?.metadata()?.len();
    fs::rename(&part, &target).with_context(|| format!("cannot write {}", target.display()))?;
    Ok(File {
        path: entry.path.clone(),
        destination: entry.destination.clone(),
        sha256: hex::encode(hash.finalize()),
        size,
        compressed_size,
        version: entry.version.clone(),
        platforms: entry.platforms.clone(),
        services: entry.services.clone(),
    })
}

impl Content {
    /// Returns a reader and the number of bytes that it yields.
    fn open(&self) -> Result<(Box<dyn Read + '_>, u64)> {
        Ok(match self {
            Self::Bytes(bytes) => (Box::new(bytes.as_slice()), bytes.len() as u64),
            Self::File(path) => {
                let file = fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
                let size = file.metadata()?.len();
                (Box::new(file), size)
            }
            Self::Random { size, seed } => (Box::new(Random(StdRng::seed_from_u64(*seed)).take(*size)), *size),
        })
    }
}

struct Random(StdRng);

impl Read for Random {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.fill_bytes(buffer);
        Ok(buffer.len())
    }
}

fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let part = path.with_extension("part");
    fs::write(&part, content).with_context(|| format!("cannot write {}", part.display()))?;
    fs::rename(&part, path).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<Entry> {
        vec![
            Entry::new(r"C:\k\kubelet.exe", "kubelet".repeat(1000)).services(&["kubelet"]),
            Entry::with(r"C:\k\cni\host-local.exe", Content::Random { size: 300_000, seed: 1 }),
            Entry::new(r"C:\k\ecr-credential-provider.exe", "").platforms(&["aws"]),
        ]
    }

    #[test]
    fn a_written_payload_can_be_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = write(dir.path(), &entries(), LEVEL_FAST).unwrap();
        assert_eq!(Manifest::parse(&fs::read(dir.path().join(MANIFEST)).unwrap()).unwrap(), manifest);
        let paths: Vec<&str> = manifest.files.iter().map(|f| f.path.as_str()).collect();
        assert_eq!(paths, ["cni/host-local.exe", "ecr-credential-provider.exe", "kubelet.exe"]);
        for file in &manifest.files {
            let compressed = fs::read(blob(dir.path(), &file.path)).unwrap();
            assert_eq!(compressed.len() as u64, file.compressed_size, "{}", file.path);
            let plain = zstd::decode_all(compressed.as_slice()).unwrap();
            assert_eq!(plain.len() as u64, file.size, "{}", file.path);
            assert_eq!(hex::encode(Sha256::digest(&plain)), file.sha256, "{}", file.path);
        }
        assert!(manifest.files[0].compressed_size >= 300_000, "random bytes do not compress");
        assert_eq!(manifest.files[1].platforms, BTreeSet::from(["aws".to_owned()]));
        assert_eq!(manifest.files[2].services, BTreeSet::from(["kubelet".to_owned()]));
    }

    #[test]
    fn equal_entries_give_equal_bytes_and_replace_old_ones() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let old = Entry::new(r"C:\k\old.exe", "old");
        write(b.path(), &[old], LEVEL_FAST).unwrap();
        fs::write(b.path().join("notes.zst"), "not ours").unwrap();
        write(a.path(), &entries(), 3).unwrap();
        let manifest = write(b.path(), &entries(), 3).unwrap();
        for path in manifest.files.iter().map(|f| format!("{}.zst", f.path)).chain([MANIFEST.to_owned()]) {
            assert_eq!(fs::read(a.path().join(&path)).unwrap(), fs::read(b.path().join(&path)).unwrap(), "{path}");
        }
        assert!(!b.path().join("old.exe.zst").exists());
        assert!(b.path().join("notes.zst").exists());
    }

    #[test]
    fn duplicate_entries_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let double = [Entry::new(r"C:\k\a", "1"), Entry::new(r"C:\k\A", "2")];
        assert!(write(dir.path(), &double, LEVEL_FAST).is_err());
    }
}
