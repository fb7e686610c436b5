//! Minimal operator for tests: just enough SSH, SFTP and protocol for a simulated host.

use std::{borrow::Cow, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use api::host::{
    Answer, Body, EXIT_ANSWERED, PROTOCOL, Recipient, Request, answer_path, command, launcher_path, operation_dir,
    path, request_path,
};
use russh::{
    ChannelMsg, Preferred, cipher,
    client::{self, AuthResult, Handle},
    keys::{PrivateKey, PrivateKeyWithHashAlg, PublicKey, PublicKeyOrCertificate, ssh_key::private::Ed25519Keypair},
};
use russh_sftp::client::SftpSession;
use sha2::{Digest as _, Sha256};
use testbed::sim::{HostOptions, Sim, SimHost, SimOptions};
use tokio::io::AsyncWriteExt as _;

/// Stand-in for `wicd.exe`: a simulated host checks only that its hash matches its name.
pub(super) const EXE: &[u8] = b"MZ not really a program";

/// Id of this operator's cluster.
pub(super) const CLUSTER: &str = "8c5d9c5e-0000-4000-8000-000000000001";

pub(super) fn key(seed: u8) -> PrivateKey {
    PrivateKey::from(Ed25519Keypair::from_seed(&[seed; 32]))
}

/// Returns options of a simulation that accepts `key(1)`.
pub(super) fn options() -> SimOptions {
    SimOptions { authorized_keys: vec![key(1).public_key().clone()], ..SimOptions::default() }
}

/// Creates a host without a cluster. Its simulation ends when the returned [`Sim`] is dropped.
pub(super) async fn lonely_host(options: SimOptions) -> Result<(Sim, SimHost)> {
    let sim = Sim::without_cluster(options)?;
    let host = sim.host(HostOptions::named("win-1")).await?;
    Ok((sim, host))
}

pub(super) struct Connection {
    ssh: Handle<Seen>,
    /// Name of the host, and of its Node.
    host: String,
    pub host_key: PublicKey,
}

/// Client that accepts any host key and records it.
pub(super) struct Seen(Arc<std::sync::Mutex<Option<PublicKey>>>);

impl client::Handler for Seen {
    type Error = russh::Error;

    async fn check_server_key(&mut self, key: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        if let PublicKeyOrCertificate::PublicKey { key, .. } = key {
            *self.0.lock().expect("no other task panics with it") = Some(key.clone());
        }
        Ok(true)
    }
}

impl Connection {
    pub(super) async fn open(host: &SimHost) -> Result<Self> {
        Self::open_as(host, "Administrator", key(1)).await
    }

    pub(super) async fn open_as(host: &SimHost, user: &str, key: PrivateKey) -> Result<Self> {
        // The operator's preferred cipher; the default is slower by half.
        let preferred = Preferred { cipher: Cow::Borrowed(&[cipher::AES_256_GCM]), ..Preferred::DEFAULT };
        let config = client::Config { nodelay: true, preferred, ..client::Config::default() };
        let seen = Arc::default();
        let mut ssh = client::connect(config.into(), (host.address(), host.port()), Seen(Arc::clone(&seen))).await?;
        let key = PrivateKeyWithHashAlg::new(key.into(), None);
        let AuthResult::Success = ssh.authenticate_publickey(user, key).await? else {
            anyhow::bail!("authentication refused");
        };
        let host_key = seen.lock().expect("no other task panics with it").clone().context("no host key")?;
        Ok(Self { ssh, host: host.name().into(), host_key })
    }

    pub(super) async fn sftp(&self) -> Result<SftpSession> {
        let channel = self.ssh.channel_open_session().await?;
        channel.request_subsystem(true, "sftp").await?;
        // 4 MiB in flight, at least as much as the host's window admits.
        let config = russh_sftp::client::Config { max_concurrent_writes: 128, ..Default::default() };
        Ok(SftpSession::new_with_config(channel.into_stream(), config).await?)
    }

    /// Runs a command, and returns its exit status and output.
    pub(super) async fn exec(&self, line: &str) -> Result<(u32, Vec<u8>)> {
        let mut channel = self.ssh.channel_open_session().await?;
        channel.exec(true, line).await?;
        let (mut status, mut output) = (None, Vec::new());
        while let Some(message) = channel.wait().await {
            match message {
                ChannelMsg::Data { data } => output.extend_from_slice(&data),
                ChannelMsg::ExitStatus { exit_status } => status = Some(exit_status),
                _ => {}
            }
        }
        Ok((status.context("no exit status")?, output))
    }

    /// Uploads the program and returns its hash.
    pub(super) async fn upload_exe(&self) -> Result<String> {
        let sha256 = hex::encode(Sha256::digest(EXE));
        let sftp = self.sftp().await?;
        for dir in [path::LAUNCH, path::OPERATIONS, &format!(r"{}\{sha256}", path::LAUNCH)] {
            let dir = sftp_path(dir);
            if !sftp.try_exists(&dir).await? {
                sftp.create_dir(&dir).await?;
            }
        }
        put(&sftp, &launcher_path(&sha256), EXE).await?;
        Ok(sha256)
    }

    /// Runs one verb, from the request to the answer.
    pub(super) async fn verb(&self, exe: &str, id: &str, body: Body) -> Result<Answer> {
        let verb = body.verb();
        let sftp = self.sftp().await?;
        let dir = sftp_path(&operation_dir(id));
        if !sftp.try_exists(&dir).await? {
            sftp.create_dir(&dir).await?;
        }
        let recipient = Recipient { cluster_id: CLUSTER.into(), node_name: self.host.clone(), machine_id: None };
        let operation = id.into();
        let request =
            Request { protocol: PROTOCOL, operation, epoch: 1, recipient, supersedes: None, void_epoch: None, body };
        put(&sftp, &request_path(id, verb), &serde_json::to_vec(&request)?).await?;
        let (status, output) = self.exec(&command(exe, verb, id)).await?;
        ensure!(status == EXIT_ANSWERED, "{} ended with {status}: {}", verb.as_str(), String::from_utf8_lossy(&output));
        let answer = sftp.read(sftp_path(&answer_path(id, verb))).await?;
        Ok(serde_json::from_slice(&answer)?)
    }
}

pub(super) async fn put(sftp: &SftpSession, windows_path: &str, content: &[u8]) -> Result<()> {
    let mut file = sftp.create(sftp_path(windows_path)).await?;
    file.write_all(content).await?;
    file.close().await?;
    Ok(())
}

pub(super) fn sftp_path(windows_path: &str) -> String {
    format!("/{}", windows_path.replace('\\', "/"))
}

/// Polls until `look` finds something. The limit only ends a test that has failed.
pub(super) async fn eventually<T, F: Future<Output = Result<Option<T>>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> Result<T> {
    let wait = async {
        loop {
            if let Some(found) = look().await? {
                return Ok(found);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), wait).await.with_context(|| format!("never: {what}"))?
}

/// Returns a request for facts, without files to look for.
pub(super) fn facts() -> Body {
    Body::Facts(api::host::Facts::default())
}
