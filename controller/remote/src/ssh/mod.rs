//! SSH access to hosts: one connection for each operation, directly or through a jump host, with SFTP for all bytes and exec for starting `wicd.exe`.
//!
//! The shell of a host hardly matters: an exec request has only plain words ([`check_command`]), and is repeated in the form for POSIX shells if the
//! shell does not find the program; requests and answers are files. Standard input is not used, because exec channels of OpenSSH on Windows lose or
//! delay it, depending on the shell. Standard output is kept for the log and never parsed.

mod connection;
mod error;
mod exec;
mod files;
mod handshake;
mod hash;
mod host_key;
mod identity;
mod jump_host;
mod path;
mod session;
mod sftp;
mod tail;
#[cfg(test)]
pub(crate) mod tests;
mod upload;

use std::{sync::Arc, time::Duration};

pub(crate) use self::exec::NOT_FOUND;
pub use self::{
    connection::Connection,
    error::{Refusal, RefusedKey, SshError},
    exec::Exit,
    files::Entry,
    host_key::{HostKey, HostKeyCheck, HostKeyError},
    identity::{Identity, KeyError},
    jump_host::JumpHost,
    path::{check_command, sftp_path},
    sftp::PERMISSION_DENIED,
};

/// Host with the settings to log in to it.
#[derive(Debug, Clone)]
pub struct Target {
    /// IPv4 or IPv6 address (with or without brackets), or a DNS name, whose addresses are tried in order.
    pub address: String,
    /// Port of the SSH server, usually 22.
    pub port: u16,
    /// User to log in as, an administrator of the host.
    pub username: String,
    /// Private keys, tried in this order.
    pub keys: Vec<Arc<Identity>>,
    /// Policy for the host key.
    pub host_key: HostKeyCheck,
    /// Jump host through which the host is reached. `None` connects directly.
    pub jump_host: Option<JumpHost>,
    /// Time limit for name look-up, TCP connection, key exchange and log-in together, including the log-in to the jump host.
    pub connect_timeout: Duration,
    /// Time limit for each answer to a file request. Commands have their own limit ([`Connection::exec`]).
    pub command_timeout: Duration,
}
