//! Host for tests: an SSH server with SFTP over a directory, and faults.

use std::{
    collections::HashMap,
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
    net::{Shutdown, SocketAddr},
    path::PathBuf,
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
use russh_sftp::protocol::{Attrs, Data, FileAttributes, Handle, Name, OpenFlags, Packet, Status, StatusCode, Version};
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

/// Behaviour of the host.
pub(crate) struct Host {
    pub(crate) own_keys: Vec<PrivateKey>,
    pub(crate) preferred: russh::Preferred,
    pub(crate) authorized: Vec<PublicKey>,
    pub(crate) listen: &'static str,
    /// True if OpenSSH's posix-rename, limits and statvfs are offered.
    pub(crate) extensions: bool,
    pub(crate) sftp: bool,
    /// Bytes that can be written before the connection is cut.
    pub(crate) cut_after: i64,
    /// Bytes that fit on the disk.
    pub(crate) disk: i64,
    /// Renames that fail because another program holds the file.
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
    /// Number of all connections so far.
    pub(crate) connections: Arc<AtomicUsize>,
    /// Number of open connections.
    pub(crate) open: watch::Receiver<usize>,
    /// Requests of clients: methods of log-in with users and keys, and places to connect to.
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
        // As of OpenSSH 8.8.
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
                let files = Files {
                    shared: Arc::clone(&self.shared),
                    wire: Arc::clone(&self.wire),
                    open: HashMap::new(),
                    next: 0,
                };
                russh_sftp::server::run(channel.into_stream(), files).await;
            }
            _ => session.channel_failure(id)?,
        }
        Ok(())
    }

    /// Acts as the command's first word says.
    async fn exec_request(&mut self, id: ChannelId, data: &[u8], session: &mut Session) -> Result<(), Self::Error> {
        // Its output is not read: what a client writes to standard input would fill it.
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
                // The service that the command started holds its output.
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
                // Windows' OpenSSH runs its default shell in the same way, and that may be bash.
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

struct Files {
    shared: Arc<Shared>,
    wire: Arc<std::net::TcpStream>,
    open: HashMap<String, Open>,
    next: usize,
}

enum Open {
    File(File),
    Directory(Vec<russh_sftp::protocol::File>),
}

impl Files {
    /// Refuses a rename while another program holds the file, as Windows does.
    fn is_let_go(&self) -> Result<(), StatusCode> {
        let is_held = self.shared.held.fetch_sub(1, Ordering::Relaxed) > 0;
        if is_held { Err(StatusCode::PermissionDenied) } else { Ok(()) }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.shared.root.join(path.trim_start_matches('/'))
    }

    fn add(&mut self, id: u32, open: Open) -> Handle {
        self.next += 1;
        let handle = self.next.to_string();
        self.open.insert(handle.clone(), open);
        Handle { id, handle }
    }

    fn file(&mut self, handle: &str) -> Result<&mut File, StatusCode> {
        match self.open.get_mut(handle) {
            Some(Open::File(file)) => Ok(file),
            _ => Err(StatusCode::Failure),
        }
    }
}

fn ok(id: u32) -> Status {
    Status { id, status_code: StatusCode::Ok, error_message: "Ok".to_owned(), language_tag: String::new() }
}

fn code(error: std::io::Error) -> StatusCode {
    if error.kind() == std::io::ErrorKind::NotFound { StatusCode::NoSuchFile } else { StatusCode::Failure }
}

impl russh_sftp::server::Handler for Files {
    type Error = StatusCode;

    fn unimplemented(&self) -> StatusCode {
        StatusCode::OpUnsupported
    }

    async fn init(&mut self, _version: u32, _extensions: HashMap<String, String>) -> Result<Version, StatusCode> {
        let mut version = Version::new();
        if self.shared.host.extensions {
            for (name, revision) in
                [("posix-rename@openssh.com", "1"), ("limits@openssh.com", "1"), ("statvfs@openssh.com", "2")]
            {
                version.extensions.insert(name.to_owned(), revision.to_owned());
            }
        }
        Ok(version)
    }

    async fn extended(&mut self, id: u32, request: String, data: Vec<u8>) -> Result<Packet, StatusCode> {
        match request.as_str() {
            "limits@openssh.com" => Ok(Packet::ExtendedReply(russh_sftp::protocol::ExtendedReply {
                id,
                data: [34_000_u64, 1000, 1000, 0].iter().flat_map(|n| n.to_be_bytes()).collect(),
            })),
            "statvfs@openssh.com" => {
                let free = u64::try_from(self.shared.disk.load(Ordering::Relaxed)).unwrap_or(0);
                Ok(Packet::ExtendedReply(russh_sftp::protocol::ExtendedReply {
                    id,
                    data: [1, 1, free, free, free, 0, 0, 0, 0, 0, 255].iter().flat_map(|n| n.to_be_bytes()).collect(),
                }))
            }
            "posix-rename@openssh.com" => {
                let length = u32::from_be_bytes(data[..4].try_into().unwrap()) as usize;
                let name = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                let (from, to) = (name(&data[4..4 + length]), name(&data[8 + length..]));
                self.is_let_go()?;
                std::fs::rename(self.path(&from), self.path(&to)).map_err(code)?;
                Ok(Packet::Status(ok(id)))
            }
            _ => Err(StatusCode::OpUnsupported),
        }
    }

    async fn open(
        &mut self,
        id: u32,
        filename: String,
        pflags: OpenFlags,
        _attrs: FileAttributes,
    ) -> Result<Handle, StatusCode> {
        let file = std::fs::OpenOptions::from(pflags).open(self.path(&filename)).map_err(code)?;
        Ok(self.add(id, Open::File(file)))
    }

    async fn close(&mut self, id: u32, handle: String) -> Result<Status, StatusCode> {
        self.open.remove(&handle).map(|_| ok(id)).ok_or(StatusCode::Failure)
    }

    async fn read(&mut self, id: u32, handle: String, offset: u64, len: u32) -> Result<Data, StatusCode> {
        let file = self.file(&handle)?;
        file.seek(SeekFrom::Start(offset)).map_err(code)?;
        let mut data = Vec::new();
        file.take(u64::from(len)).read_to_end(&mut data).map_err(code)?;
        if data.is_empty() { Err(StatusCode::Eof) } else { Ok(Data { id, data }) }
    }

    async fn write(&mut self, id: u32, handle: String, offset: u64, data: Vec<u8>) -> Result<Status, StatusCode> {
        let length = i64::try_from(data.len()).unwrap();
        if self.shared.cut.fetch_sub(length, Ordering::Relaxed) < length {
            self.shared.cut.store(i64::MAX, Ordering::Relaxed);
            self.wire.shutdown(Shutdown::Both).unwrap();
            return Err(StatusCode::Failure);
        }
        if self.shared.disk.fetch_sub(length, Ordering::Relaxed) < length {
            return Err(StatusCode::Failure);
        }
        let file = self.file(&handle)?;
        file.seek(SeekFrom::Start(offset)).map_err(code)?;
        file.write_all(&data).map_err(code)?;
        Ok(ok(id))
    }

    async fn fstat(&mut self, id: u32, handle: String) -> Result<Attrs, StatusCode> {
        let metadata = self.file(&handle)?.metadata().map_err(code)?;
        Ok(Attrs { id, attrs: FileAttributes::from(&metadata) })
    }

    async fn fsetstat(&mut self, id: u32, handle: String, attrs: FileAttributes) -> Result<Status, StatusCode> {
        self.file(&handle)?.set_len(attrs.size.unwrap()).map_err(code).map(|()| ok(id))
    }

    async fn realpath(&mut self, id: u32, _path: String) -> Result<Name, StatusCode> {
        Ok(Name { id, files: vec![russh_sftp::protocol::File::dummy("/C:/Users/Administrator")] })
    }

    async fn stat(&mut self, id: u32, path: String) -> Result<Attrs, StatusCode> {
        let metadata = std::fs::metadata(self.path(&path)).map_err(code)?;
        Ok(Attrs { id, attrs: FileAttributes::from(&metadata) })
    }

    async fn mkdir(&mut self, id: u32, path: String, _attrs: FileAttributes) -> Result<Status, StatusCode> {
        std::fs::create_dir(self.path(&path)).map_err(code).map(|()| ok(id))
    }

    async fn remove(&mut self, id: u32, filename: String) -> Result<Status, StatusCode> {
        std::fs::remove_file(self.path(&filename)).map_err(code).map(|()| ok(id))
    }

    /// Renames a file as OpenSSH's server does: the target must not exist.
    async fn rename(&mut self, id: u32, oldpath: String, newpath: String) -> Result<Status, StatusCode> {
        self.is_let_go()?;
        if self.path(&newpath).exists() {
            return Err(StatusCode::Failure);
        }
        std::fs::rename(self.path(&oldpath), self.path(&newpath)).map_err(code).map(|()| ok(id))
    }

    async fn opendir(&mut self, id: u32, path: String) -> Result<Handle, StatusCode> {
        let entries = std::fs::read_dir(self.path(&path)).map_err(code)?;
        let mut files = vec![russh_sftp::protocol::File::dummy("."), russh_sftp::protocol::File::dummy("..")];
        files.push(russh_sftp::protocol::File::dummy("../evil\n"));
        files.extend(entries.map(|entry| {
            let entry = entry.unwrap();
            let attributes = FileAttributes::from(&entry.metadata().unwrap());
            russh_sftp::protocol::File::new(entry.file_name().into_string().unwrap(), attributes)
        }));
        Ok(self.add(id, Open::Directory(files)))
    }

    async fn readdir(&mut self, id: u32, handle: String) -> Result<Name, StatusCode> {
        match self.open.get_mut(&handle) {
            Some(Open::Directory(files)) if files.is_empty() => Err(StatusCode::Eof),
            Some(Open::Directory(files)) => Ok(Name { id, files: std::mem::take(files) }),
            _ => Err(StatusCode::Failure),
        }
    }
}
