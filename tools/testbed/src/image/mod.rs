//! Images of the operator, built by buildah without a base image and without a running container. The same files have the same digest.
//!
//! | image | layers |
//! |---|---|
//! | `windows-node-pools` | the payload, and above it the operator, the client, `wicd.exe`, certificate authorities, the licence |
//! | `windows-node-pools-payload` | the same payload alone, for an image volume or an init container |
//! | `windows-node-pools-slim` | the first image without a payload |
//! | `windows-node-pools-must-gather` | the client with a shell, for `oc adm must-gather` |

mod arch;
pub mod must_gather;
mod programs;
mod store;

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use api::payload::{MANIFEST, Manifest};
use devenv::{find, has_target, workspace_root};
use serde_json::json;
use sha2::{Digest as _, Sha256};

pub use arch::Arch;
pub use programs::{Compiler, Profile};
pub use store::{Built, Store};

/// Name of the operator's program, and of its image with a payload.
pub const OPERATOR: &str = "windows-node-pools";
/// Name of the client program, the kubectl plugin that users run.
pub const CLIENT: &str = "kubectl-windows_node_pools";
/// Name of the image of the operator without a payload.
pub const SLIM: &str = "windows-node-pools-slim";
/// Name of the image of the payload.
pub const PAYLOAD: &str = "windows-node-pools-payload";

/// Name of the image for `oc adm must-gather`.
pub const MUST_GATHER: &str = "windows-node-pools-must-gather";

const ABOUT_OPERATOR: &str = "Operator that turns Windows hosts into nodes, with the files that hosts get";
const ABOUT_SLIM: &str = "Operator that turns Windows hosts into nodes, without the files that hosts get";
const ABOUT_PAYLOAD: &str = "Files that Windows hosts get to become nodes";
const ABOUT_MUST_GATHER: &str = "Support data of Windows node pools, for oc adm must-gather";

/// User of the operator's process. Any other user works, too: all users can read all files, and none is written.
const USER: &str = "65532:65532";
/// Path of the operator in its image.
const PROGRAM: &str = "usr/local/bin/windows-node-pools";
const CLIENT_PROGRAM: &str = "usr/local/bin/kubectl-windows_node_pools";
const CLIENT_FOR_WINDOWS: &str = "usr/local/share/windows-node-pools/kubectl-windows_node_pools.exe";
const WICD: &str = "usr/local/share/windows-node-pools/wicd.exe";
/// Folder with Debian's copy of Mozilla's list of authorities. The bundle in `/etc` is not used, because a machine may have added authorities to it.
const AUTHORITIES: &str = "/usr/share/ca-certificates/mozilla";
/// Path of the authorities in an image, where Rust's TLS looks for them.
pub const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";

/// Files that images are made of.
#[derive(Clone, Debug)]
pub struct Files {
    /// Operator, a static program.
    pub operator: PathBuf,
    /// Client, a static program that users run.
    pub client: PathBuf,
    /// Client for Windows. An image of a test has none.
    pub client_for_windows: Option<PathBuf>,
    /// `wicd.exe`.
    pub wicd: PathBuf,
    /// Payload directory.
    pub payload: PathBuf,
    /// Commit, for a label of the images.
    pub revision: Option<String>,
    /// Processor of the nodes on which the operator runs.
    pub arch: Arch,
}

/// Images of a build.
#[derive(Clone, Debug)]
pub struct Images {
    /// Image of the operator with a payload.
    pub operator: Built,
    /// Image of the operator without a payload.
    pub slim: Built,
    /// Image of the payload.
    pub payload: Built,
    /// Image for `oc adm must-gather`, if [it can be built](must_gather::is_built).
    pub must_gather: Option<Built>,
}

/// Lists missing requirements to build or run an image: programs, the target of the Rust toolchain, and Debian's list of authorities.
pub fn missing(arch: Arch, programs: &[&'static str]) -> Vec<&'static str> {
    let mut missing: Vec<_> = programs.iter().copied().filter(|name| find(name).is_none()).collect();
    missing.extend((!has_target(arch.target())).then_some(arch.target()));
    missing.extend((!Path::new(AUTHORITIES).is_dir()).then_some(AUTHORITIES));
    missing
}

/// Builds the images in `store`, and writes each to a folder of its own in `out`, in the layout of the Open Container Initiative.
///
/// # Errors
/// Fails when a file cannot be read, or buildah fails.
pub fn build(store: &Store, files: &Files, out: &Path) -> Result<Images> {
    let stage = tempfile::tempdir()?;
    let (of_payload, of_operator) = (stage.path().join("payload"), stage.path().join("operator"));
    copy_tree(&files.payload, &of_payload.join("payload"))?;
    let program = |from: &Path, to: &str, mode: u32| place(&of_operator.join(to), &fs::read(from)?, mode);
    program(&files.operator, PROGRAM, 0o755)?;
    program(&files.client, CLIENT_PROGRAM, 0o755)?;
    if let Some(client) = &files.client_for_windows {
        program(client, CLIENT_FOR_WINDOWS, 0o644)?;
    }
    program(&files.wicd, WICD, 0o644)?;
    program(&workspace_root().join("LICENSE"), "licenses/LICENSE", 0o644)?;
    place(&of_operator.join(BUNDLE), &authorities()?, 0o644)?;

    let arch = files.arch;
    let tag = |version: &str| match arch {
        Arch::Amd64 => version.to_owned(),
        Arch::Arm64 => format!("{version}-{}", arch.name()),
    };
    let (version, tag) = (tag(env!("CARGO_PKG_VERSION")), tag(&payload_tag(&files.payload)?));
    // The commit is left out, so that the same payload is the same image.
    let mut config = labels(PAYLOAD, ABOUT_PAYLOAD, &tag, None);
    // The image may be an init container of a pod that must not run as root.
    config.extend(["--user".into(), USER.into()]);
    let payload = store.build(None, &of_payload, arch, &config)?;
    let config = |name, about| operator_config(name, about, files.revision.as_deref());
    let operator = store.build(Some(&payload), &of_operator, arch, &config(OPERATOR, ABOUT_OPERATOR))?;
    let slim = store.build(None, &of_operator, arch, &config(SLIM, ABOUT_SLIM))?;
    let must_gather = must_gather::is_built(arch).then(|| {
        let of_gather = stage.path().join("must-gather");
        must_gather::stage(files, &of_gather)?;
        let mut config = labels(MUST_GATHER, ABOUT_MUST_GATHER, &version, files.revision.as_deref());
        let path = "PATH=/usr/local/bin:/usr/bin:/bin";
        config.extend(
            ["--entrypoint", "[]", "--cmd", "/usr/bin/gather", "--user", USER, "--env", path].map(str::to_owned),
        );
        store.export(&store.build(None, &of_gather, arch, &config)?, MUST_GATHER, &version, out)
    });
    Ok(Images {
        must_gather: must_gather.transpose()?,
        operator: store.export(&operator, OPERATOR, &version, out)?,
        slim: store.export(&slim, SLIM, &version, out)?,
        payload: store.export(&payload, PAYLOAD, &tag, out)?,
    })
}

/// Returns the flags of `buildah config` for the operator.
fn operator_config(name: &str, about: &str, revision: Option<&str>) -> Vec<String> {
    let mut config = labels(name, about, env!("CARGO_PKG_VERSION"), revision);
    let entrypoint = json!([format!("/{PROGRAM}")]).to_string();
    for (flag, value) in [
        ("--entrypoint", entrypoint.as_str()),
        ("--cmd", "run"),
        ("--user", USER),
        ("--env", "PATH=/usr/local/bin"),
        ("--port", "9182/tcp"),
        ("--port", "9184/tcp"),
        ("--port", "9185/tcp"),
    ] {
        config.extend([flag.into(), value.into()]);
    }
    config
}

fn labels(name: &str, about: &str, version: &str, revision: Option<&str>) -> Vec<String> {
    let labels = [
        ("title", Some(name)),
        ("description", Some(about)),
        ("version", Some(version)),
        ("revision", revision),
        ("licenses", Some("Apache-2.0")),
    ];
    let set = labels.into_iter().filter_map(|(key, value)| Some((key, value?)));
    set.flat_map(|(key, value)| ["--label".into(), format!("org.opencontainers.image.{key}={value}")]).collect()
}

/// Returns the tag of a payload: `k1.36-0123456789ab`, the minor versions of its kubelets and the beginning of a hash of its manifests.
fn payload_tag(payload: &Path) -> Result<String> {
    let mut minors: Vec<String> = Vec::new();
    let mut hash = Sha256::new();
    for (_, manifest) in manifests(payload)? {
        hash.update(serde_json::to_vec(&manifest)?);
        let kubelet = manifest.files.iter().find(|file| file.destination.ends_with(r"\kubelet.exe"));
        let version = kubelet.and_then(|file| file.version.as_deref());
        minors.extend(version.and_then(|version| version.rsplit_once('.')).map(|(minor, _)| minor.to_owned()));
    }
    let hash = hex::encode(&hash.finalize()[..6]);
    Ok(if minors.is_empty() { hash } else { format!("k{}-{hash}", minors.join("-k")) })
}

/// Returns the manifests of a payload with their folders: one, or one for each minor version of Kubernetes.
///
/// # Errors
/// Fails when a manifest cannot be read.
pub fn manifests(payload: &Path) -> Result<Vec<(PathBuf, Manifest)>> {
    let read = |folder: PathBuf| -> Result<(PathBuf, Manifest)> {
        let path = folder.join(MANIFEST);
        let json = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok((folder, Manifest::parse(&json)?))
    };
    if payload.join(MANIFEST).is_file() {
        return Ok(vec![read(payload.to_owned())?]);
    }
    let mut folders: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(payload).with_context(|| format!("cannot list {}", payload.display()))? {
        folders.push(entry?.path());
    }
    folders.sort();
    folders.into_iter().map(read).collect()
}

/// Returns the certificates of the authorities that Debian trusts, as they are in the images.
///
/// # Errors
/// Fails when they are not installed.
pub fn authorities() -> Result<Vec<u8>> {
    let mut files = Vec::new();
    for entry in
        fs::read_dir(AUTHORITIES).with_context(|| format!("cannot list {AUTHORITIES}: install ca-certificates"))?
    {
        files.push(entry?.path());
    }
    files.sort();
    let mut bundle = Vec::new();
    for file in files {
        bundle.extend(fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?);
    }
    Ok(bundle)
}

/// Copies files and folders, readable for all users: modes do not depend on the umask of the build.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    make_folder(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), &to).with_context(|| format!("cannot copy {}", entry.path().display()))?;
            fs::set_permissions(&to, fs::Permissions::from_mode(0o644))?;
        }
    }
    Ok(())
}

fn place(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    make_folder(path.parent().unwrap_or(path))?;
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(())
}

fn make_folder(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make_folder(parent)?;
    }
    fs::create_dir(path).with_context(|| format!("cannot create {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
