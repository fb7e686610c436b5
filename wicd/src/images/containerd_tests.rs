//! Tests of the containerd client, one of them against the real containerd and a registry in this process. If containerd is missing, that test is
//! skipped with a message. If containerd is installed and does not work, the test fails.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use base64::Engine;
use sha2::{Digest, Sha256};
use tokio::net::UnixStream;

use super::*;

/// Answers of a registry, by path: media type and content.
type Content = Arc<std::collections::BTreeMap<String, (String, Vec<u8>)>>;

fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(content)))
}

/// Starts a registry with the image `app:1`, which requires a login, and returns its address.
fn registry(user: &str, password: &str) -> String {
    let mut layer = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(2);
    header.set_mode(0o644);
    layer.append_data(&mut header, "hello", &b"hi"[..]).unwrap();
    let layer = layer.into_inner().unwrap();
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = serde_json::json!({
        "architecture": architecture, "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
    });
    let config = config.to_string().into_bytes();
    let (of_config, of_layer) = ("application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar");
    let manifest_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = serde_json::json!({
        "schemaVersion": 2, "mediaType": manifest_type,
        "config": {"mediaType": of_config, "digest": digest(&config), "size": config.len()},
        "layers": [{"mediaType": of_layer, "digest": digest(&layer), "size": layer.len()}],
    });
    let manifest = manifest.to_string().into_bytes();
    let content: Content = Arc::new(
        [
            ("/v2/app/manifests/1".to_string(), (manifest_type.to_string(), manifest.clone())),
            (format!("/v2/app/manifests/{}", digest(&manifest)), (manifest_type.to_string(), manifest)),
            (format!("/v2/app/blobs/{}", digest(&config)), (of_config.to_string(), config)),
            (format!("/v2/app/blobs/{}", digest(&layer)), (of_layer.to_string(), layer)),
        ]
        .into(),
    );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let login = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (content, login) = (content.clone(), login.clone());
            std::thread::spawn(move || answer(&stream.unwrap(), &content, &login));
        }
    });
    address.to_string()
}

/// Answers one request of a connection, and then closes it.
fn answer(mut stream: &TcpStream, content: &Content, login: &str) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok).take_while(|l| !l.is_empty());
    let Some(request) = lines.next() else { return };
    let headers: Vec<String> = lines.collect();
    let (method, path) = request.split_once(' ').unwrap();
    let path = path.split([' ', '?']).next().unwrap();
    let is_in = headers.iter().any(|h| h.ends_with(&format!("Basic {login}")));
    let (status, more, body) = match content.get(path) {
        _ if !is_in => ("401 Unauthorized", "WWW-Authenticate: Basic realm=\"test\"\r\n".to_string(), Vec::new()),
        Some((media_type, body)) => {
            let more = format!("Content-Type: {media_type}\r\nDocker-Content-Digest: {}\r\n", digest(body));
            ("200 OK", more, body.clone())
        }
        None => ("404 Not Found", String::new(), Vec::new()),
    };
    let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n{more}Content-Length: {}\r\n\r\n", body.len());
    let body = if method == "HEAD" { &[] } else { body.as_slice() };
    let _ = stream.write_all(&[head.as_bytes(), body].concat());
}

/// Running containerd in its own process group, killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(dir: &Path) -> Result<Running, String> {
    let program = std::env::var("CONTAINERD").unwrap_or_else(|_| "containerd".into());
    let dir_text = dir.display();
    let config = format!(
        "version = 2\nroot = \"{dir_text}/root\"\nstate = \"{dir_text}/state\"\n\
         disabled_plugins = [\"io.containerd.internal.v1.opt\"]\n[grpc]\n  address = \"{dir_text}/c.sock\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  snapshotter = \"native\"\n"
    );
    std::fs::write(dir.join("config.toml"), config).unwrap();
    let log = std::fs::File::create(dir.join("log")).unwrap();
    let mut command = Command::new(&program);
    command.arg("-c").arg(dir.join("config.toml")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let child = command.process_group(0).spawn().map_err(|e| format!("{program}: {e}"))?;
    Ok(Running(child))
}

/// Connects to containerd as soon as it answers.
fn connect(dir: &Path) -> Result<Containerd, String> {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let socket = dir.join("c.sock");
        let connected = Containerd::connect("c.sock", move || UnixStream::connect(socket.clone()), |_| Ok(()));
        let found = connected.and_then(|c| c.find("r.example/none:1").map(|_| c));
        match found {
            Ok(containerd) => return Ok(containerd),
            // CRI has failed to load.
            Err(ImageError::Refused { problem, .. }) if problem.contains("unknown service") => return Err(problem),
            Err(error) if Instant::now() > deadline => return Err(error.to_string()),
            Err(_) => std::thread::yield_now(),
        }
    }
}

#[test]
fn the_real_containerd_pulls_with_a_login_and_pins() {
    let dir = tempfile::tempdir().unwrap();
    let _running = match start(dir.path()) {
        Ok(running) => running,
        Err(reason) => return devenv::skip(&format!("{reason}; cargo xtask setup installs it")).unwrap(),
    };
    let containerd = match connect(dir.path()) {
        Ok(containerd) => containerd,
        Err(reason) => {
            let log = std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
            panic!("containerd is there, and does not work: {reason}\n{log}");
        }
    };
    let limit = Duration::from_mins(1);
    let registry = registry("user", "pass:word");
    let (image, none) = (format!("{registry}/app:1"), format!("{registry}/none:1"));
    let login = Login { username: "user".into(), password: "pass:word".into() };

    assert_eq!(containerd.find(&image).unwrap(), None);
    let refused = containerd.pull(&image, None, limit).unwrap_err();
    assert_eq!(refused.reason(), "PrePullFailed", "{refused}");
    assert_eq!(containerd.pull(&none, Some(&login), limit).unwrap_err().reason(), "PrePullFailed");
    assert_eq!(containerd.pull(&image, Some(&login), Duration::ZERO).unwrap_err().reason(), "PrePullFailed");
    containerd.pull(&image, Some(&login), limit).unwrap();
    let id = containerd.find(&image).unwrap().unwrap();

    assert!(!containerd.is_pinned(&id).unwrap());
    containerd.set_pinned(&id, true).unwrap();
    assert!(containerd.is_pinned(&id).unwrap());
    // A second pull, as kubelet does for a pod with the pull policy Always.
    containerd.pull(&image, Some(&login), limit).unwrap();
    assert!(containerd.is_pinned(&id).unwrap());
    containerd.set_pinned(&id, false).unwrap();
    assert!(!containerd.is_pinned(&id).unwrap());

    let unknown = digest(b"unknown");
    assert!(!containerd.is_pinned(&unknown).unwrap());
    containerd.set_pinned(&unknown, false).unwrap();
    assert_eq!(containerd.set_pinned(&unknown, true).unwrap_err().reason(), "PrePullFailed");
}

#[test]
fn a_program_that_is_refused_gets_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("c.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let check = |_: &UnixStream| super::super::check_owner("S-1-5-21-1-2-3-1001");
    let error = Containerd::connect("c.sock", move || UnixStream::connect(socket.clone()), check).err().unwrap();
    assert_eq!(error.reason(), "PrePullFailed");
    assert!(error.to_string().contains("S-1-5-21-1-2-3-1001"), "{error}");
    let mut received = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
    assert_eq!(received, b"");
}

#[test]
fn a_socket_that_is_not_there_is_reported() {
    let connect = || UnixStream::connect("/nonexistent/containerd.sock");
    let error = Containerd::connect("/nonexistent/containerd.sock", connect, |_| Ok(())).err().unwrap();
    assert_eq!(error.reason(), "PrePullFailed");
    assert!(error.to_string().contains("/nonexistent/containerd.sock"), "{error}");
}
