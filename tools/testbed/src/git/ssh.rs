//! Git server over SSH: OpenSSH, and `git-shell` for the repositories below one folder.

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use russh::keys::PrivateKey;

use super::origin::{self, isolated};
use crate::{deployment::new_key, openssh::OpenSsh};

/// Treatment of the environment variable `GIT_PROTOCOL`, which requests a newer protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Environment {
    /// The server accepts the variable.
    Taken,
    /// The server ignores the variable.
    Refused,
}

/// Git server over SSH on loopback.
pub struct SshServer {
    pub openssh: OpenSsh,
    commands: PathBuf,
}

impl SshServer {
    /// Starts a server of the repositories below `root` that accepts the environment variable.
    pub fn new(root: &Path) -> Self {
        Self::with(root, Environment::Taken)
    }

    /// Starts a server of the repositories below `root`.
    pub fn with(root: &Path, environment: Environment) -> Self {
        let mut commands = PathBuf::new();
        let openssh = OpenSsh::start(|dir| {
            commands = dir.join("commands");
            fs::write(&commands, "").unwrap();
            let shell = dir.join("shell");
            fs::write(&shell, script(root, &commands)).unwrap();
            fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).unwrap();
            let accepts = if environment == Environment::Taken { "AcceptEnv GIT_PROTOCOL\n" } else { "" };
            Ok(format!("{accepts}ForceCommand {}\nDisableForwarding yes\nPermitTTY no\n", shell.display()))
        });
        Self { openssh: openssh.unwrap(), commands }
    }

    /// Returns the URL of the repository of an [`Origin`](super::origin::Origin).
    pub fn url(&self) -> String {
        self.at(origin::PATH)
    }

    /// Returns the URL of a path on the server.
    pub fn at(&self, path: &str) -> String {
        format!("ssh://{}@{}/{path}", self.openssh.user(), self.openssh.address())
    }

    /// Returns the line of `known_hosts` for the current host key of the server.
    pub fn known_hosts(&self) -> String {
        let key = self.openssh.host_key().public_key();
        format!("[127.0.0.1]:{} {}\n", self.openssh.address().port(), key.to_openssh().unwrap())
    }

    /// Gives the server a new host key, from the next connection on, and returns the old one.
    pub fn change_host_key(&mut self) -> PrivateKey {
        self.openssh.set_host_key(new_key().unwrap()).unwrap()
    }

    /// Returns the commands that clients sent.
    pub fn commands(&self) -> Vec<String> {
        fs::read_to_string(&self.commands).unwrap().lines().map(Into::into).collect()
    }
}

/// Returns a script that passes a client's command to `git-shell`, with `root` in front of its path. Any other command yields a path
/// that does not exist, which `git-shell` refuses.
fn script(root: &Path, commands: &Path) -> String {
    let mut script = "#!/bin/sh\n".to_owned();
    let mut git = Command::new("git");
    isolated(&mut git, root);
    for (name, value) in git.get_envs().filter_map(|(name, value)| Some((name.to_str()?, value?.to_str()?))) {
        writeln!(script, "export {name}='{value}'").unwrap();
    }
    let (root, commands) = (root.display(), commands.display());
    script
        + &format!(
            "printf '%s\\n' \"$SSH_ORIGINAL_COMMAND\" >>'{commands}'\n\
             exec git-shell -c \"git-upload-pack '{root}/${{SSH_ORIGINAL_COMMAND#\"git-upload-pack '/\"}}\"\n"
        )
}
