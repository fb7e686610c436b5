//! Test host: an SSH server with faults, and with the SFTP of simulated hosts.

use std::{
    collections::HashMap,
    net::{Shutdown, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use russh::{
    Channel, ChannelId,
    keys::{
        Algorithm, PrivateKey, PublicKey,
        ssh_key::{LineEnding, private::Ed25519Keypair},
    },
    server::{self, Auth, ChannelOpenHandle, Msg, PublicKeyOffer, Session, VerifiedPublicKey},
};
use russh_sftp::protocol::StatusCode;
use testbed::sim::sftp::{self, Disk};
use tokio::{net::TcpListener, sync::watch};

use super::forwards::{self, Forwards};
use crate::ssh::{HostKey, HostKeyCheck, Identity, Target};

pub(crate) fn ed25519(seed: u8) -> PrivateKey {
    PrivateKey::from(Ed25519Keypair::from_seed(&[seed; 32]))
}

pub(crate) fn pem(key: &PrivateKey) -> String {
    key.to_openssh(LineEnding::default()).unwrap().to_string()
}

pub(crate) fn identity(key: &PrivateKey) -> Arc<Identity> {
    Arc::new(Identity::from_pem("a key", pem(key).as_bytes()).unwrap())
}

/// Behaviour of a test host.
pub(crate) struct Host {
    pub(crate) own_keys: Vec<PrivateKey>,
    pub(crate) preferred: russh::Preferred,
    pub(crate) authorized: Vec<PublicKey>,
    pub(crate) listen: &'static str,
    /// True if OpenSSH's posix-rename, limits and statvfs are offered.
    pub(crate) extensions: bool,
    pub(crate) sftp: bool,
    /// Number of bytes that can be written before the connection is cut.
    pub(crate) cut_after: i64,
    /// Free space on the disk in bytes.
    pub(crate) disk: i64,
    /// Number of renames that fail because another program has the file open.
    pub(crate) held: i64,
    /// Behaviour as a jump host.
    pub(crate) forwards: Forwards,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            own_keys: vec![ed25519(1)],
            preferred: russh::Preferred::default(),
            authorized: vec![ed25519(2).public_key().clone()],
            listen: "127.0.0.1:0",
            extensions: true,
            sftp: true,
            cut_after: i64::MAX,
            disk: i64::MAX,
            held: 0,
            forwards: Forwards::Nothing,
        }
    }
}

/// Test host that runs until it is dropped.
pub(crate) struct Running {
    pub(crate) root: tempfile::TempDir,
    pub(crate) address: SocketAddr,
    /// Total number of connections.
    pub(crate) connections: Arc<AtomicUsize>,
    /// Number of open connections.
    pub(crate) open: watch::Receiver<usize>,
    /// Requests of clients: log-in methods with users and keys, and addresses to connect to.
    pub(crate) asked: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Running {
    pub(crate) fn target(&self) -> Target {
        Target {
            address: self.address.ip().to_string(),
            port: self.address.port(),
            username: "Administrator".to_owned(),
            keys: vec![identity(&ed25519(2))],
            host_key: HostKeyCheck::TrustOnFirstUse,
            jump_host: None,
            connect_timeout: Duration::from_secs(20),
            command_timeout: Duration::from_secs(20),
        }
    }

    pub(crate) fn file(&self, relative: &str) -> PathBuf {
        self.root.path().join("C:").join(relative)
    }
}

pub(crate) fn public(key: &PrivateKey) -> HostKey {
    HostKey::of(key.public_key()).unwrap()
}

impl Host {
    pub(crate) async fn start(self) -> Running {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("C:")).unwrap();
        let listener = TcpListener::bind(self.listen).await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = Arc::new(server::Config {
            keys: self.own_keys.clone(),
            preferred: self.preferred.clone(),
            auth_rejection_time: Duration::ZERO,
            nodelay: true,
            ..server::Config::default()
        });
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let shared = Arc::new(Shared {
            asked: Arc::clone(&asked),
            root: root.path().to_owned(),
            cut: AtomicI64::new(self.cut_after),
            disk: AtomicI64::new(self.disk),
            held: AtomicI64::new(self.held),
            host: self,
        });
        let connections = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&connections);
        let (now_open, open) = watch::channel(0);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                let stream = stream.into_std().unwrap();
                let wire = Arc::new(stream.try_clone().unwrap());
                let stream = tokio::net::TcpStream::from_std(stream).unwrap();
                let login = Login { shared: Arc::clone(&shared), wire, channels: HashMap::new() };
                let (config, now_open) = (Arc::clone(&config), now_open.clone());
                now_open.send_modify(|n| *n += 1);
                tokio::spawn(async move {
                    if let Ok(session) = server::run_stream(config, stream, login).await {
                        let _ = session.await;
                    }
                    now_open.send_modify(|n| *n -= 1);
                });
            }
        });
        Running { root, address, connections, open, asked, task }
    }
}

struct Shared {
    asked: Arc<Mutex<Vec<String>>>,
    root: PathBuf,
    cut: AtomicI64,
    disk: AtomicI64,
    held: AtomicI64,
    host: Host,
}

struct Login {
    shared: Arc<Shared>,
    wire: Arc<std::net::TcpStream>,
    channels: HashMap<ChannelId, Channel<Msg>>,
}

impl server::Handler for Login {
    type Error = russh::Error;

    async fn auth_none(&mut self, _user: &str) -> Result<Auth, Self::Error> {
        self.shared.asked.lock().push("none".to_owned());
        Ok(Auth::reject())
    }

    async fn auth_password(&mut self, _user: &str, _password: &str) -> Result<Auth, Self::Error> {
        self.shared.asked.lock().push("password".to_owned());
        Ok(Auth::reject())
    }

    async fn auth_publickey_offered(&mut self, user: &str, offer: PublicKeyOffer<'_>) -> Result<Auth, Self::Error> {
        let fingerprint = HostKey::of(offer.public_key).unwrap().fingerprint();
        self.shared.asked.lock().push(format!("publickey {user} {fingerprint}"));
        Ok(Auth::Accept)
    }

    async fn auth_publickey(&mut self, _user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
        let known = self.shared.host.authorized.iter().any(|k| k.key_data() == key.public_key.key_data());
        // OpenSSH refuses SHA-1 signatures since version 8.8.
        let sha1 = *key.algorithm == Algorithm::Rsa { hash: None };
        Ok(if known && !sha1 { Auth::Accept } else { Auth::reject() })
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

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _originator: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.shared.asked.lock().push(format!("connect {host} {port}"));
        let asked = SocketAddr::new(host.parse().unwrap(), u16::try_from(port).unwrap());
        forwards::forward(self.shared.host.forwards, asked, channel, reply, Arc::clone(&self.wire)).await;
        Ok(())
    }

    async fn subsystem_request(&mut self, id: ChannelId, name: &str, session: &mut Session) -> Result<(), Self::Error> {
        match self.channels.remove(&id) {
            Some(channel) if name == "sftp" && self.shared.host.sftp => {
                session.channel_success(id)?;
                let files = Files { shared: Arc::clone(&self.shared), wire: Arc::clone(&self.wire) };
                russh_sftp::server::run(channel.into_stream(), sftp::Session::new(Arc::new(files))).await;
            }
            _ => session.channel_failure(id)?,
        }
        Ok(())
    }

    /// Performs the action that the first word of the command names.
    async fn exec_request(&mut self, id: ChannelId, data: &[u8], session: &mut Session) -> Result<(), Self::Error> {
        // The channel is dropped because its unread standard input would fill up.
        self.channels.remove(&id);
        let command = String::from_utf8_lossy(data).into_owned();
        let (handle, wire, root) = (session.handle(), Arc::clone(&self.wire), self.shared.root.clone());
        if command == "refuse" {
            session.channel_failure(id)?;
            return Ok(());
        }
        session.channel_success(id)?;
        tokio::spawn(async move {
            let words: Vec<_> = command.split(' ').collect();
            match words[0] {
                "exit" => {
                    let _ = handle.data(id, "out\x1b[1m\r\n").await;
                    let _ = handle.extended_data(id, 1, "err").await;
                    let _ = handle.exit_status_request(id, words[1].parse().unwrap()).await;
                    let _ = handle.close(id).await;
                }
                // A service that the command started keeps its output open.
                "hold" => drop(handle.exit_status_request(id, 0).await),
                "vanish" => drop(handle.close(id).await),
                "reboot" => wire.shutdown(Shutdown::Both).unwrap(),
                "junk" => {
                    for _ in 0..words[1].parse().unwrap() {
                        let _ = handle.data(id, vec![0xff_u8; 32 * 1024]).await;
                    }
                    let _ = handle.exit_status_request(id, 0).await;
                    let _ = handle.close(id).await;
                }
                // OpenSSH on Windows runs its default shell in the same way, and that may be bash.
                shell @ ("bash" | "sh") => {
                    let programs =
                        [root.as_os_str(), std::env::var_os("PATH").unwrap_or_default().as_os_str()].join(":".as_ref());
                    let mut shell = tokio::process::Command::new(shell);
                    let status =
                        shell.arg("-c").arg(words[1..].join(" ")).env("PATH", programs).status().await.unwrap();
                    let _ = handle.exit_status_request(id, status.code().unwrap().try_into().unwrap()).await;
                    let _ = handle.close(id).await;
                }
                _ => {}
            }
        });
        Ok(())
    }
}

/// Disk of the host for one connection.
struct Files {
    shared: Arc<Shared>,
    wire: Arc<std::net::TcpStream>,
}

impl Disk for Files {
    fn root(&self) -> PathBuf {
        self.shared.root.join("C:")
    }

    fn free(&self) -> u64 {
        u64::try_from(self.shared.disk.load(Ordering::Relaxed)).unwrap_or(0)
    }

    fn has_extensions(&self) -> bool {
        self.shared.host.extensions
    }

    fn largest(&self) -> u32 {
        1000
    }

    fn take(&self, bytes: usize) -> Result<(), StatusCode> {
        let bytes = i64::try_from(bytes).unwrap();
        if self.shared.cut.fetch_sub(bytes, Ordering::Relaxed) < bytes {
            self.shared.cut.store(i64::MAX, Ordering::Relaxed);
            self.wire.shutdown(Shutdown::Both).unwrap();
            return Err(StatusCode::Failure);
        }
        if self.shared.disk.fetch_sub(bytes, Ordering::Relaxed) < bytes { Err(StatusCode::Failure) } else { Ok(()) }
    }

    /// Refuses a rename while another program has the file open, as Windows does.
    fn release(&self, _: &Path) -> Result<(), StatusCode> {
        let is_held = self.shared.held.fetch_sub(1, Ordering::Relaxed) > 0;
        if is_held { Err(StatusCode::PermissionDenied) } else { Ok(()) }
    }

    fn more_names(&self) -> &'static [&'static str] {
        &[".", "..", "../evil\n"]
    }
}
