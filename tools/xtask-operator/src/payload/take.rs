//! `cargo xtask payload take`: extracts programs that cannot be built here from an image of the Windows Machine Config Operator.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read, Seek as _, Write as _},
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use flate2::read::MultiGzDecoder;
use futures::TryStreamExt as _;
use oci_client::{
    Client, Reference,
    client::{ClientConfig, ClientProtocol, linux_amd64_resolver},
    errors::{OciDistributionError, OciErrorCode},
    manifest::OciDescriptor,
    secrets::RegistryAuth,
};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::{OPENSHIFT_4_MINOR_OFFSET, OPENSHIFT_5_FIRST_MINOR, mib};

/// Takes the programs of OpenShift from an image of the Windows Machine Config Operator.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Image by its digest, such as registry.example.com/wmco@sha256:….
    image: String,
    /// Folder for the programs, to be named with --from; created if it does not exist.
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// Minor version of Kubernetes of the cluster, such as 1.33. An image for another version is refused.
    #[arg(long, value_name = "MINOR")]
    kubernetes: Option<String>,
    /// File with logins of registries, in the format of podman and docker. Defaults to `~/.docker/config.json`, if it exists. Trusted certificates
    /// are those of the machine, or of `SSL_CERT_FILE`.
    #[arg(long, env = "REGISTRY_AUTH_FILE", value_name = "FILE")]
    auth_file: Option<PathBuf>,
    /// Use HTTP without TLS.
    #[arg(long)]
    plain_http: bool,
}

/// Programs, and the consequence if one is missing.
const PROGRAMS: [(&str, &str); 3] = [
    (REQUIRED, "no node joins a cluster with OVN-Kubernetes"),
    ("csi-proxy.exe", "storage drivers that need it cannot attach volumes"),
    ("azure-cloud-node-manager.exe", "no node joins a cluster on Azure with a cloud controller manager"),
];
/// Program that the image must have.
const REQUIRED: &str = "hybrid-overlay-node.exe";
/// Folder of the image with the programs. Some are packed, some are in a subfolder.
const FOLDER: &str = "payload";
/// Maximum bytes of a layer, both compressed and unpacked.
const MAX_LAYER: u64 = 8 << 30;
/// Maximum bytes of a program.
const MAX_PROGRAM: u64 = 512 << 20;
/// Maximum bytes of all programs, as they are in the image.
const MAX_PROGRAMS: u64 = 1 << 30;

/// Maximum number of files with names of programs.
const MAX_FILES: usize = 16;

/// Program files in the image, by path.
type Files = BTreeMap<PathBuf, Vec<u8>>;

pub(super) fn run(args: &Args) -> Result<()> {
    // Without this provider, the first TLS connection panics.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let image: Reference = args.image.parse().with_context(|| format!("{} is not the name of an image", args.image))?;
    ensure!(
        image.digest().is_some(),
        "{} does not have a digest, and a tag can refer to another image later: add @sha256:…, which `skopeo inspect` and `crane digest` print",
        args.image
    );
    let login = login(args, &image)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (version, files) = runtime.block_on(pull(args, &image, &login))?;
    println!("{image}: {}", version.as_deref().unwrap_or("the image does not name its version"));
    let mut programs = Vec::new();
    for (name, without) in PROGRAMS {
        match program(&files, name).with_context(|| format!("{name} of {image}"))? {
            Some(program) => programs.push((name, program)),
            None if name == REQUIRED => {
                bail!("{image} has no {name}: is it an image of the Windows Machine Config Operator?")
            }
            None => println!("{name:<30} is not in the image: without it, {without}"),
        }
    }
    // Nothing is written unless all programs are valid.
    fs::create_dir_all(&args.out).with_context(|| format!("cannot create {}", args.out.display()))?;
    for (name, program) in programs {
        let path = args.out.join(name);
        fs::write(&path, &program).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{name:<30} {:>10}  sha256:{:x}", mib(program.len() as u64), Sha256::digest(&program));
    }
    println!("make the payload with: cargo xtask payload --out payload --from {}", args.out.display());
    Ok(())
}

/// Reads the version and the program files of an image.
async fn pull(args: &Args, image: &Reference, login: &RegistryAuth) -> Result<(Option<String>, Files)> {
    let client = Client::try_from(ClientConfig {
        protocol: if args.plain_http { ClientProtocol::Http } else { ClientProtocol::Https },
        platform_resolver: Some(Box::new(linux_amd64_resolver)),
        ..ClientConfig::default()
    })
    .context("cannot create a client for registries")?;
    let pulled = client.pull_manifest_and_config(image, login).await;
    let (manifest, _, config) =
        pulled.map_err(|error| refused(error, login)).with_context(|| format!("cannot read {image}"))?;
    let version = version(&config);
    if let Some(kubernetes) = &args.kubernetes {
        fits(version.as_deref(), kubernetes)?;
    }
    let mut files = Files::new();
    for (n, layer) in manifest.layers.iter().enumerate() {
        let size = u64::try_from(layer.size).ok().filter(|size| *size <= MAX_LAYER);
        let size = size.with_context(|| {
            format!(
                "the size of layer {} is {} bytes, which is not between 0 and {}",
                layer.digest,
                layer.size,
                mib(MAX_LAYER)
            )
        })?;
        println!("[{}/{}] {} {}", n + 1, manifest.layers.len(), layer.digest, mib(size));
        let file = download(&client, image, layer, size).await.with_context(|| format!("layer {}", layer.digest))?;
        read_layer(file, &mut files).with_context(|| format!("layer {}", layer.digest))?;
    }
    Ok((version, files))
}

/// Adds a remedy to an error of the registry if the registry has refused access.
fn refused(error: OciDistributionError, login: &RegistryAuth) -> anyhow::Error {
    let is_login = match &error {
        OciDistributionError::UnauthorizedError { .. } | OciDistributionError::AuthenticationFailure(_) => true,
        OciDistributionError::RegistryError { envelope, .. } => {
            envelope.errors.iter().any(|error| matches!(error.code, OciErrorCode::Denied | OciErrorCode::Unauthorized))
        }
        _ => false,
    };
    let error = anyhow::Error::from(error);
    match login {
        _ if !is_login => error,
        RegistryAuth::Anonymous => {
            error.context("log in with `podman login --authfile FILE`, and set the file with --auth-file")
        }
        _ => error
            .context("the log-in was not accepted, or the token server of the registry does not answer: log in again"),
    }
}

/// Downloads a layer. Fails if its size or digest differs from the manifest.
async fn download(client: &Client, image: &Reference, layer: &OciDescriptor, size: u64) -> Result<fs::File> {
    let mut file = tempfile::tempfile()?;
    let mut stream = client.pull_blob_stream(image, layer).await?;
    let mut left = size;
    // The end of the stream is an error if the digest differs.
    while let Some(bytes) = stream.try_next().await? {
        left = left.checked_sub(bytes.len() as u64).context("the registry sent more bytes than the manifest states")?;
        file.write_all(&bytes)?;
    }
    ensure!(left == 0, "the registry sent {left} bytes less than the manifest states");
    file.rewind()?;
    Ok(file)
}

/// Adds the program files of a layer to those of the layers below, and removes the files that the layer deletes.
fn read_layer(layer: impl Read, files: &mut Files) -> Result<()> {
    let mut here = Files::new();
    let mut gone = Vec::new();
    for entry in tar::Archive::new(unpacked(layer)?.take(MAX_LAYER)).entries()? {
        let mut entry = entry?;
        let Some(path) = inside(&entry.path()?) else { continue };
        let (Some(name), Some(folder)) = (path.file_name().and_then(|name| name.to_str()), path.parent()) else {
            continue;
        };
        if name == ".wh..wh..opq" {
            gone.push(folder.to_owned());
        } else if let Some(name) = name.strip_prefix(".wh.") {
            gone.push(folder.join(name));
        } else {
            let type_ = entry.header().entry_type();
            // An entry that replaces a file or folder hides it. Links are not followed.
            if files.keys().any(|file| if type_.is_dir() { *file == path } else { file.starts_with(&path) }) {
                gone.push(path.clone());
            }
            if is_wanted(&path) && type_.is_file() {
                let content = bounded(&mut entry)?;
                // A program in an upper layer replaces that of a lower layer, packed or not.
                gone.push(other_form(&path));
                here.insert(path, content);
                ensure!(
                    here.len() + files.len() <= MAX_FILES,
                    "it has more than {MAX_FILES} files with names of programs"
                );
                let size: usize = here.values().chain(files.values()).map(Vec::len).sum();
                ensure!(size as u64 <= MAX_PROGRAMS, "the programs in the image have more than {}", mib(MAX_PROGRAMS));
            }
        }
    }
    files.retain(|path, _| !gone.iter().any(|gone| path.starts_with(gone)));
    files.append(&mut here);
    Ok(())
}

/// Returns the relative path of an entry. `None` if it leads out of the image, or is the root.
fn inside(path: &Path) -> Option<PathBuf> {
    let parts = path.components().filter(|part| !matches!(part, Component::CurDir | Component::RootDir));
    let parts: Option<PathBuf> = parts.map(|part| matches!(part, Component::Normal(_)).then_some(part)).collect();
    parts.filter(|path| path.file_name().is_some())
}

/// Reports whether a path in the image is one of the programs, packed or not: in [`FOLDER`] or below it.
fn is_wanted(path: &Path) -> bool {
    path.starts_with(FOLDER) && PROGRAMS.iter().any(|(program, _)| is_named(path, program))
}

/// Reports whether a path ends in the name of a program, packed or not.
fn is_named(path: &Path, program: &str) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.strip_suffix(".tar.gz").unwrap_or(name) == program
}

/// Returns the other path of a program: the packed one for an unpacked program, and the unpacked one for a packed program.
fn other_form(path: &Path) -> PathBuf {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    path.with_file_name(name.strip_suffix(".tar.gz").map_or_else(|| format!("{name}.tar.gz"), ToOwned::to_owned))
}

/// Returns a program, unpacked if necessary. `None` if the image does not have it.
fn program(files: &Files, name: &str) -> Result<Option<Vec<u8>>> {
    let Some((path, content)) = files.iter().find(|(path, _)| is_named(path, name)) else { return Ok(None) };
    let content = if path.extension().is_some_and(|extension| extension == "gz") {
        unpack(content, name)?.with_context(|| format!("{} does not contain it", path.display()))?
    } else {
        content.clone()
    };
    ensure!(is_windows_program(&content), "{} is not a program for Windows on amd64", path.display());
    Ok(Some(content))
}

/// Returns the file of this name in an archive.
fn unpack(archive: &[u8], name: &str) -> Result<Option<Vec<u8>>> {
    for entry in tar::Archive::new(unpacked(archive)?.take(MAX_LAYER)).entries()? {
        let mut entry = entry?;
        let is_it = entry.path()?.file_name().is_some_and(|file| file == name);
        if is_it && entry.header().entry_type().is_file() {
            return bounded(&mut entry).map(Some);
        }
    }
    Ok(None)
}

/// Reads a file. Fails if it is larger than a program may be.
fn bounded(file: &mut impl Read) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    let size = file.take(MAX_PROGRAM + 1).read_to_end(&mut content)? as u64;
    ensure!(size <= MAX_PROGRAM, "a program is larger than {}", mib(MAX_PROGRAM));
    Ok(content)
}

/// Returns a reader of the content, which may be compressed with gzip or zstd.
fn unpacked<'a>(from: impl Read + 'a) -> Result<Box<dyn Read + 'a>> {
    let mut from = BufReader::new(from);
    Ok(match from.fill_buf()? {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(from)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(zstd::Decoder::with_buffer(from)?),
        _ => Box::new(from),
    })
}

/// Reports whether a file is a program for Windows on amd64, by its [headers](https://learn.microsoft.com/windows/win32/debug/pe-format).
fn is_windows_program(file: &[u8]) -> bool {
    let at = file.get(0x3c..0x40).and_then(|at| at.try_into().ok()).map(u32::from_le_bytes);
    let header = at.and_then(|at| file.get(at as usize..)).unwrap_or_default();
    file.starts_with(b"MZ") && header.starts_with(b"PE\0\0\x64\x86")
}

/// Returns the label with the version of an image, such as v10.20.0.
fn version(config: &str) -> Option<String> {
    let config: serde_json::Value = serde_json::from_str(config).ok()?;
    let version = config.pointer("/config/Labels/version")?.as_str()?;
    Some(api::text::line(version, 60))
}

/// Returns the minor version of Kubernetes for the programs in a version of WMCO, such as v10.20.1: 10.y is for OpenShift 4.y, 11.y for 5.y.
/// `None` for other versions.
fn kubernetes_of_wmco(version: &str) -> Option<u32> {
    let mut numbers = version.strip_prefix('v').unwrap_or(version).split('.');
    let first = match numbers.next()? {
        "10" => OPENSHIFT_4_MINOR_OFFSET,
        "11" => OPENSHIFT_5_FIRST_MINOR,
        _ => return None,
    };
    first.checked_add(numbers.next()?.parse().ok()?)
}

/// Refuses an image whose version is for another minor version of Kubernetes, or is not a version of WMCO. Accepts an image without a version, with a
/// warning.
fn fits(version: Option<&str>, kubernetes: &str) -> Result<()> {
    let wanted = super::minor(kubernetes)?;
    let Some(version) = version else {
        println!("the image does not name its version: check that it is for Kubernetes {kubernetes}");
        return Ok(());
    };
    let found = kubernetes_of_wmco(version).with_context(|| {
        format!(
            "the image has version {version}, which is not a version of WMCO: leave --kubernetes out to take it nevertheless"
        )
    })?;
    ensure!(
        found == wanted,
        "the image has version {version}, which is for Kubernetes 1.{found}, and not for {kubernetes}: use the image for the version of your cluster"
    );
    Ok(())
}

/// File with logins: the [format](https://github.com/containers/image/blob/main/docs/containers-auth.json.5.md) of podman and docker.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Logins {
    #[serde(default)]
    auths: BTreeMap<String, Login>,
    #[serde(default)]
    creds_store: Option<String>,
    #[serde(default)]
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
struct Login {
    #[serde(default)]
    auth: String,
}

/// Returns the login for an image's registry.
fn login(args: &Args, image: &Reference) -> Result<RegistryAuth> {
    let of_docker = || std::env::home_dir().map(|home| home.join(".docker/config.json")).filter(|file| file.is_file());
    let Some(file) = args.auth_file.clone().or_else(of_docker) else { return Ok(RegistryAuth::Anonymous) };
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    // An error of the parser may quote a secret.
    let Ok(logins) = serde_json::from_str(&text) else {
        bail!("{} is not a file with registry credentials in JSON", file.display())
    };
    login_of(&logins, image)
        .with_context(|| format!("cannot use the login for {} in {}", image.registry(), file.display()))
}

/// Returns the login whose key is the longest prefix of the image's name, or an anonymous login if there is no such key. Fails if the login is in a
/// credential helper, or cannot be read.
fn login_of(logins: &Logins, image: &Reference) -> Result<RegistryAuth> {
    let name = format!("{}/{}/", image.registry(), image.repository());
    let names = |key: &str| name.starts_with(&format!("{}/", key.trim_start_matches("https://").trim_end_matches('/')));
    let known = logins.auths.iter().filter(|(key, login)| names(key) && !login.auth.is_empty());
    let Some((_, login)) = known.max_by_key(|(key, _)| key.len()) else {
        let has_helper = logins.creds_store.is_some() || logins.cred_helpers.keys().any(|key| names(key));
        ensure!(
            !has_helper,
            "it is in a credential helper, which is not supported: create a file with `podman login --authfile FILE`, and set it with --auth-file"
        );
        return Ok(RegistryAuth::Anonymous);
    };
    let pair = STANDARD.decode(&login.auth).ok().and_then(|pair| String::from_utf8(pair).ok());
    let pair = pair
        .as_deref()
        .and_then(|pair| pair.split_once(':'))
        .context("it is not in base64, or does not have a user")?;
    Ok(RegistryAuth::Basic(pair.0.into(), pair.1.into()))
}

#[cfg(test)]
#[path = "take_tests.rs"]
mod tests;
