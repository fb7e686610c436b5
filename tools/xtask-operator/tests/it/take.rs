//! Test of `payload take` with a registry like most others: over TLS, with a token for a login.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Output},
    sync::{Arc, Mutex},
};

use anyhow::{Context as _, Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use testbed::git::{Asked, Reply, Server};

const PROGRAM: &str = env!("CARGO_BIN_EXE_xtask-operator");
const LOGIN: &str = "user:password";
const TOKEN: &str = "a-token";

/// Content of a registry, by path, with its media type.
type Content = BTreeMap<String, (&'static str, Vec<u8>)>;

fn digest(content: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(content))
}

/// Returns an image with one program, and the digests of its manifest and its layer.
fn image() -> Result<(Content, String, String)> {
    let mut archive = tar::Builder::new(Vec::new());
    // The headers are those of a program for amd64.
    let mut program = vec![0; 0x40];
    program[..2].copy_from_slice(b"MZ");
    program[0x3c] = 0x40;
    program.extend(b"PE\0\0\x64\x86");
    let mut header = tar::Header::new_gnu();
    header.set_size(program.len() as u64);
    header.set_mode(0o755);
    archive.append_data(&mut header, "payload/hybrid-overlay-node.exe", &program[..])?;
    let layer = archive.into_inner()?;
    let config = serde_json::to_vec(&json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Labels": {"version": "v10.20.0"}},
        "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
    }))?;
    let part =
        |type_: &str, content: &[u8]| json!({"mediaType": type_, "digest": digest(content), "size": content.len()});
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": part("application/vnd.oci.image.config.v1+json", &config),
        "layers": [part("application/vnd.oci.image.layer.v1.tar", &layer)],
    }))?;
    let (whole, of_layer) = (digest(&manifest), digest(&layer));
    let mut content = Content::new();
    for blob in [config, layer] {
        content.insert(format!("/v2/wmco/blobs/{}", digest(&blob)), ("application/octet-stream", blob));
    }
    content.insert(format!("/v2/wmco/manifests/{whole}"), (MANIFEST, manifest));
    Ok((content, whole, of_layer))
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Answers as a registry that refers to a token server, and for blobs to a storage at another port.
fn answer(content: &Content, asked: &Asked, storage: u16) -> Reply {
    let authorization = asked.header("authorization").unwrap_or_default();
    if asked.path == "/token" {
        let is_known = authorization == format!("Basic {}", STANDARD.encode(LOGIN));
        let body = if is_known { json!({"token": TOKEN}) } else { json!({"errors": [{"code": "DENIED"}]}) };
        return Reply::Full(if is_known { 200 } else { 401 }, Vec::new(), body.to_string().into_bytes());
    }
    let host = asked.header("host").unwrap_or_default();
    if authorization != format!("Bearer {TOKEN}") {
        let challenge =
            format!("Bearer realm=\"https://{host}/token\",service=\"registry\",scope=\"repository:wmco:pull\"");
        return Reply::Full(401, vec![("WWW-Authenticate", challenge)], Vec::new());
    }
    if asked.path.contains("/blobs/") {
        let storage = format!("https://localhost:{storage}{}", asked.path);
        return Reply::Full(307, vec![("Location", storage)], Vec::new());
    }
    match content.get(&asked.path) {
        Some((type_, content)) => Reply::Full(200, vec![("Content-Type", (*type_).to_owned())], content.clone()),
        None => Reply::Full(if asked.path == "/v2/" { 200 } else { 404 }, Vec::new(), Vec::new()),
    }
}

/// Answers as a blob storage, which must not receive the token.
fn stored(content: &Content, asked: &Asked) -> Reply {
    let blob = content.get(&asked.path).filter(|_| asked.header("authorization").is_none());
    blob.map_or_else(
        || Reply::Full(400, Vec::new(), Vec::new()),
        |(_, blob)| Reply::Full(200, Vec::new(), blob.clone()),
    )
}

#[test]
fn programs_come_over_tls_for_a_login_and_are_those_of_the_digest() -> Result<()> {
    let (honest, whole, of_layer) = image()?;
    let served = Arc::new(Mutex::new(honest.clone()));
    let dir = tempfile::tempdir()?;
    let storage = Server::with(dir.path(), false, {
        let served = Arc::clone(&served);
        move |asked| Some(stored(&served.lock().unwrap(), asked))
    });
    let port = storage.port;
    let server = Server::with(dir.path(), false, {
        let served = Arc::clone(&served);
        move |asked| Some(answer(&served.lock().unwrap(), asked, port))
    });
    let registry = format!("localhost:{}", server.port);
    fs::write(dir.path().join("ca.pem"), [&server, &storage].map(|server| server.authority.pem.as_str()).concat())?;
    for (file, login) in [("good", LOGIN), ("other", "user:forgotten")] {
        let auths = json!({"auths": {&registry: {"auth": STANDARD.encode(login)}}});
        fs::write(dir.path().join(file), auths.to_string())?;
    }
    fs::write(dir.path().join("none"), "{}")?;

    let changed = |path: &str| {
        let mut content = honest.clone();
        let (_, bytes) = content.get_mut(path).unwrap();
        // The result is still a manifest or an archive, but a different one.
        let at = bytes.windows(4).position(|w| w == b"MZ\0\0" || w == b"imag").unwrap();
        bytes[at + 2] ^= 1;
        content
    };
    let (manifest, layer) = (format!("/v2/wmco/manifests/{whole}"), format!("/v2/wmco/blobs/{of_layer}"));
    for (about, content, login, ca, expected) in [
        ("a known user", honest.clone(), "good", "ca.pem", None),
        ("no log-in", honest.clone(), "none", "ca.pem", Some("log in with `podman login")),
        ("a wrong password", honest.clone(), "other", "ca.pem", Some("was not accepted")),
        ("an unknown authority", honest.clone(), "good", "none", Some("certificate")),
        ("another manifest", changed(&manifest), "good", "ca.pem", Some("digest")),
        ("another layer", changed(&layer), "good", "ca.pem", Some("digest")),
    ] {
        *served.lock().unwrap() = content;
        let out = dir.path().join("out");
        let image = format!("{registry}/wmco@{whole}");
        let Output { status, stderr, .. } = take(&image, &out, &dir.path().join(login), &dir.path().join(ca))?;
        let said = String::from_utf8_lossy(&stderr);
        ensure!(status.success() == expected.is_none(), "{about}: {status} {said}");
        ensure!(expected.is_none_or(|part| said.contains(part)), "{about}: {said}");
        ensure!(!said.contains("password") && !said.contains("forgotten"), "{about}: {said}");
        ensure!(out.join("hybrid-overlay-node.exe").exists() == expected.is_none(), "{about}");
        if out.exists() {
            fs::remove_dir_all(&out)?;
        }
    }
    Ok(())
}

fn take(image: &str, out: &Path, login: &Path, ca: &Path) -> Result<Output> {
    let mut command = Command::new(PROGRAM);
    command.args(["payload", "take", image, "--kubernetes", "1.33", "--out"]).arg(out).arg("--auth-file").arg(login);
    command.env("SSL_CERT_FILE", ca).output().context("cannot start xtask-operator")
}
