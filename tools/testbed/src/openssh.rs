//! Real OpenSSH server on loopback. It accepts the user who runs the test, with one key.
//!
//! Each connection starts a new sshd, as with systemd's `ssh.socket`: the port never belongs to another process, the server
//! responds at once, and an sshd ends when its client disconnects.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::{
        fd::OwnedFd,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
};

use anyhow::{Context as _, Result};
use russh::keys::{PrivateKey, ssh_key::LineEnding};

use crate::{
    binaries::{Run as _, find},
    deployment::new_key,
    run_dir::RunDir,
};

/// Running OpenSSH server.
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
    /// Fails when there is no sshd, `config` fails, files cannot be written, or no port is free.
    pub fn start(config: impl FnOnce(&Path) -> Result<String>) -> Result<Self> {
        let sshd = find("sshd").context("there is no sshd: run `cargo xtask setup`")?;
        if fs::metadata("/proc/self")?.uid() == 0 {
            // Debian's sshd requires this folder.
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
        let folder = dir.path().to_owned();
        // The thread ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                match start_sshd(&sshd, &folder, stream) {
                    // The parent must wait for the process, which otherwise stays a zombie.
                    Ok(mut child) => drop(thread::spawn(move || child.wait())),
                    // The server's folder was removed, or the machine has no resources left: the client's connection ends.
                    Err(error) => crate::binaries::say(&format!("cannot start sshd for a connection: {error}")),
                }
            }
        });
        let user = Command::new("id").arg("-un").read()?;
        Ok(Self { address, user, key, host_key, dir })
    }

    /// Returns the address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the user that the server accepts.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Returns the key that the server accepts.
    pub fn key(&self) -> &PrivateKey {
        &self.key
    }

    /// Returns the path of the file with the accepted key.
    pub fn key_file(&self) -> PathBuf {
        self.dir.join("key")
    }

    /// Returns the folder of the server.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the host key of the server.
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

/// Starts an sshd for a connection.
fn start_sshd(sshd: &Path, dir: &Path, stream: TcpStream) -> io::Result<Child> {
    let log = File::options().append(true).create(true).open(dir.join("log"))?;
    let output = OwnedFd::from(stream.try_clone()?);
    let mut command = Command::new(sshd);
    command.args(["-i", "-e", "-f"]).arg(dir.join("sshd_config"));
    command.stdin(OwnedFd::from(stream)).stdout(output).stderr(log).spawn()
}
