//! A Git server over SSH: `git upload-pack`, for one user's key.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use russh::{
    Channel, ChannelId, MethodKind, MethodSet,
    keys::{Algorithm, PrivateKey, PublicKey, ssh_key::LineEnding},
    server::{Auth, ChannelOpenHandle, Config, Handler, Msg, PublicKeyOffer, Session, VerifiedPublicKey},
};
use tokio::{net::TcpListener, process::Command, runtime::Runtime};
use zeroize::Zeroizing;

use crate::origin::isolated;

/// How a server takes the wish for a newer protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Environment {
    Taken,
    Refused,
}

pub struct Sshd {
    pub port: u16,
    host_key: PrivateKey,
    user_key: PrivateKey,
    /// The commands that were sent.
    pub log: Arc<Mutex<Vec<String>>>,
    _runtime: Runtime,
}

impl Sshd {
    pub fn new(root: &Path, environment: Environment) -> Self {
        let (host_key, user_key) = (key(), key());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        let config = Arc::new(Config {
            methods: MethodSet::from([MethodKind::PublicKey].as_slice()),
            keys: vec![host_key.clone()],
            auth_rejection_time: Duration::ZERO,
            auth_rejection_time_initial: Some(Duration::ZERO),
            ..Config::default()
        });
        let log = Arc::<Mutex<Vec<String>>>::default();
        let (welcome, root, commands) = (user_key.public_key().clone(), root.to_owned(), Arc::clone(&log));
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let connection = Connection {
                    welcome: welcome.clone(),
                    root: root.clone(),
                    environment,
                    protocol: None,
                    channels: HashMap::new(),
                    log: Arc::clone(&commands),
                };
                let config = Arc::clone(&config);
                tokio::spawn(async move {
                    if let Ok(session) = russh::server::run_stream(config, stream, connection).await {
                        let _ = session.await;
                    }
                });
            }
        });
        Self { port, host_key, user_key, log, _runtime: runtime }
    }

    pub fn at(&self, path: &str) -> String {
        format!("ssh://git@127.0.0.1:{}/{path}", self.port)
    }

    /// A line of `known_hosts` for this server.
    pub fn known_hosts(&self) -> String {
        self.known_as(self.host_key.public_key())
    }

    pub fn known_as(&self, key: &PublicKey) -> String {
        format!("[127.0.0.1]:{} {}\n", self.port, key.to_openssh().unwrap())
    }

    pub fn identity(&self) -> Zeroizing<Vec<u8>> {
        pem(&self.user_key)
    }

    pub fn locked_identity(&self, passphrase: &str) -> Zeroizing<Vec<u8>> {
        pem(&self.user_key.encrypt(&mut russh::keys::key::safe_rng(), passphrase).unwrap())
    }
}

pub fn key() -> PrivateKey {
    PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519).unwrap()
}

pub fn pem(key: &PrivateKey) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(key.to_openssh(LineEnding::CRLF).unwrap().as_bytes().to_vec())
}

struct Connection {
    welcome: PublicKey,
    root: PathBuf,
    environment: Environment,
    protocol: Option<String>,
    channels: HashMap<ChannelId, Channel<Msg>>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Connection {
    fn judge(&self, user: &str, key: &PublicKey) -> Auth {
        if user == "git" && key.key_data() == self.welcome.key_data() { Auth::Accept } else { Auth::reject() }
    }
}

impl Handler for Connection {
    type Error = russh::Error;

    async fn auth_publickey_offered(&mut self, user: &str, offer: PublicKeyOffer<'_>) -> Result<Auth, Self::Error> {
        Ok(self.judge(user, offer.public_key))
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
        Ok(self.judge(user, key.public_key))
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.channels.insert(channel.id(), channel);
        reply.accept().await;
        Ok(())
    }

    async fn env_request(
        &mut self,
        id: ChannelId,
        name: &str,
        value: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        if self.environment == Environment::Refused || name != "GIT_PROTOCOL" {
            return session.channel_failure(id);
        }
        self.protocol = Some(value.to_owned());
        session.channel_success(id)
    }

    async fn exec_request(&mut self, id: ChannelId, command: &[u8], session: &mut Session) -> Result<(), Self::Error> {
        let Some(channel) = self.channels.remove(&id) else { return session.channel_failure(id) };
        session.channel_success(id)?;
        let line = String::from_utf8_lossy(command).into_owned();
        self.log.lock().unwrap().push(line.clone());
        // As a user's shell would, with the root of the file system elsewhere.
        let mut shell = std::process::Command::new("sh");
        isolated(&mut shell, &self.root);
        let line = line.replacen("'/", &format!("'{}/", self.root.display()), 1);
        shell.args(["-c", &line]).env("GIT_PROTOCOL", self.protocol.as_deref().unwrap_or_default());
        let mut shell = Command::from(shell);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = shell.spawn()?;
        let (mut input, mut output, mut errors) =
            (child.stdin.take().unwrap(), child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let handle = session.handle();
        tokio::spawn(async move {
            let (mut reader, writer) = channel.split();
            tokio::spawn(async move {
                let _ = tokio::io::copy(&mut reader.make_reader(), &mut input).await;
            });
            let (mut out, mut err) = (writer.make_writer(), writer.make_writer_ext(Some(1)));
            let _ = tokio::join!(tokio::io::copy(&mut output, &mut out), tokio::io::copy(&mut errors, &mut err));
            let status = child.wait().await.ok().and_then(|status| status.code()).unwrap_or(255);
            let _ = handle.exit_status_request(id, status.cast_unsigned()).await;
            let _ = handle.eof(id).await;
            let _ = handle.close(id).await;
        });
        Ok(())
    }
}
