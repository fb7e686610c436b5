//! A real OpenSSH server on loopback. It lets the user that runs the test in, with one key, and does what its settings say.
//!
//! Each connection has a new sshd, as systemd's `ssh.socket` starts it: so the port never belongs to another process, it
//! answers at once, and an sshd ends when its client hangs up.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::{
        fd::OwnedFd,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use anyhow::{Context as _, Result};
use russh::keys::{PrivateKey, ssh_key::LineEnding};

use crate::{
    binaries::{Run as _, find},
    deployment::new_key,
    run_dir::RunDir,
};

/// A running OpenSSH server.
#[derive(Debug)]
pub struct OpenSsh {
    address: SocketAddr,
    user: String,
    key: PrivateKey,
    host_key: PrivateKey,
    dir: RunDir,
}

impl OpenSsh {
    /// Starts a server with further lines of `sshd_config`, which may name files of the server's folder.
    ///
    /// # Errors
    /// Fails when there is no sshd, or files cannot be written.
    pub fn start(config: impl FnOnce(&Path) -> Result<String>) -> Result<Self> {
        let sshd = find("sshd").context("there is no sshd: run `cargo xtask setup`")?;
        if fs::metadata("/proc/self")?.uid() == 0 {
            // Debian's wants it there.
            fs::create_dir_all("/run/sshd")?;
        }
        let dir = RunDir::new("openssh")?;
        let (key, host_key) = (new_key()?, new_key()?);
        write_private(&dir.join("host_key"), &host_key)?;
        write_private(&dir.join("key"), &key)?;
        fs::write(dir.join("authorized_keys"), key.public_key().to_openssh()?)?;
        let settings = format!(
            "HostKey {dir}/host_key\nAuthorizedKeysFile {dir}/authorized_keys\nAuthenticationMethods publickey\n\
             PermitRootLogin prohibit-password\nStrictModes no\nUsePAM no\nUseDNS no\nPidFile none\nPrintMotd no\n\
             LogLevel ERROR\n{}",
            config(dir.path())?,
            dir = dir.path().display(),
        );
        fs::write(dir.join("sshd_config"), settings)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let serves = Connections { sshd, config: dir.join("sshd_config"), log: dir.join("log") };
        // It ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serves.start(stream);
            }
        });
        let user = Command::new("id").arg("-un").read()?;
        Ok(Self { address, user, key, host_key, dir })
    }

    /// Address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// User that the server lets in.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Key that the server lets in.
    pub fn key(&self) -> &PrivateKey {
        &self.key
    }

    /// File with the key that the server lets in.
    pub fn key_file(&self) -> PathBuf {
        self.dir.join("key")
    }

    /// Folder of the server.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Host key of the server.
    pub fn host_key(&self) -> &PrivateKey {
        &self.host_key
    }

    /// Gives the server another host key from the next connection on, and returns the old one.
    ///
    /// # Errors
    /// Fails when the key cannot be written.
    pub fn set_host_key(&mut self, key: PrivateKey) -> Result<PrivateKey> {
        write_private(&self.dir.join("host_key"), &key)?;
        Ok(std::mem::replace(&mut self.host_key, key))
    }
}

/// Writes a key atomically: a reader of the file finds the old one or the new one.
fn write_private(path: &Path, key: &PrivateKey) -> Result<()> {
    let new = path.with_extension("new");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(key.to_openssh(LineEnding::LF)?.as_bytes())?;
    Ok(fs::rename(new, path)?)
}

/// Program, configuration and log of the sshd for each connection.
struct Connections {
    sshd: PathBuf,
    config: PathBuf,
    log: PathBuf,
}

impl Connections {
    fn start(&self, stream: TcpStream) {
        match self.spawn(stream) {
            // A parent must wait for it, or it stays a zombie.
            Ok(mut child) => drop(thread::spawn(move || child.wait())),
            // The folder is gone with the server, or the machine is full: the client sees the connection end.
            Err(error) => crate::binaries::say(&format!("no sshd for a connection: {error}")),
        }
    }

    fn spawn(&self, stream: TcpStream) -> io::Result<std::process::Child> {
        let log = File::options().append(true).create(true).open(&self.log)?;
        let output = OwnedFd::from(stream.try_clone()?);
        let mut sshd = Command::new(&self.sshd);
        sshd.args(["-i", "-e", "-f"]).arg(&self.config);
        sshd.stdin(OwnedFd::from(stream)).stdout(output).stderr(log).spawn()
    }
}
