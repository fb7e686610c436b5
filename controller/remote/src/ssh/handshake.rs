//! Log-in to one SSH server, a host or a jump host, with one time limit for name look-up, key exchange and log-in.

use std::{
    borrow::Cow,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use russh::{
    AlgorithmKind, Disconnect, MethodKind, Preferred, cipher,
    client::{self, AuthResult, DisconnectReason},
    compression, kex,
    keys::{Algorithm, HashAlg, PublicKeyOrCertificate},
    mac,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    HostKey, HostKeyCheck, Identity, Refusal, RefusedKey, SshError, Target,
    error::TCP,
    host_key::{self, HostKeyDecision},
    tail,
};

/// Interval of keepalives to a silent host. The connection is closed after [`KEEPALIVE_MAX`] keepalives without an answer.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_MAX: usize = 3;

/// Time after which a peer that stalls before log-in or stops reading is disconnected, which keepalives do not detect. Longer than the 60 s after
/// which unanswered keepalives end the connection.
const INACTIVITY: Duration = Duration::from_secs(90);

/// Number of bytes that a host may send ahead on one channel. The window limits the speed of downloads, which are small here, and the memory that a
/// host can fill by flooding a channel.
const WINDOW: u32 = 256 * 1024;

/// Maximum number of messages (of up to 32 KiB) that wait for the reader of their channel. Both channels of an operation are always read, so few are
/// enough, and 100 connections need little memory.
const CHANNEL_BUFFER: usize = 8;

/// Key exchanges for hosts that allow only FIPS 140 algorithms, in addition to the defaults.
const ECDH: [kex::Name; 3] = [kex::ECDH_SHA2_NISTP256, kex::ECDH_SHA2_NISTP384, kex::ECDH_SHA2_NISTP521];

const CIPHERS: [cipher::Name; 5] =
    [cipher::AES_256_GCM, cipher::AES_128_GCM, cipher::AES_256_CTR, cipher::AES_192_CTR, cipher::AES_128_CTR];

/// Connection to a server that proved its key and accepted the log-in.
pub(super) struct LoggedIn {
    pub(super) handle: client::Handle<Client>,
    pub(super) seen: Arc<TaskState>,
    pub(super) host_key: HostKey,
    pub(super) identity: Arc<Identity>,
}

impl LoggedIn {
    /// Disconnects, and waits until the connection has ended. The caller limits the time.
    pub(super) async fn close(self) {
        if self.handle.disconnect(Disconnect::ByApplication, "", "en").await.is_ok() {
            let _ = self.handle.await;
        }
    }
}

/// State that the connection's task reports.
#[derive(Default)]
pub(super) struct TaskState {
    host_key: Mutex<Option<HostKey>>,
    end: Mutex<Option<String>>,
    /// Token that is cancelled when the connection has ended.
    pub(super) over: CancellationToken,
}

impl TaskState {
    /// Returns the cause of the connection's end, once the task has reported it.
    pub(super) fn end(&self) -> Option<String> {
        self.end.lock().clone()
    }
}

/// Event handler of the connection's task.
pub(super) struct Client {
    address: String,
    check: HostKeyCheck,
    seen: Arc<TaskState>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.seen.over.cancel();
    }
}

/// Error with which the connection's task ended.
#[derive(Debug)]
pub(super) enum End {
    Protocol(russh::Error),
    HostKey(SshError),
}

impl From<russh::Error> for End {
    fn from(error: russh::Error) -> Self {
        Self::Protocol(error)
    }
}

impl client::Handler for Client {
    type Error = End;

    /// Checks the server key at each key exchange. When a long connection renews its session keys, the server key must stay the same.
    async fn check_server_key(&mut self, key: &PublicKeyOrCertificate) -> Result<bool, End> {
        let offered = match key {
            PublicKeyOrCertificate::PublicKey { key, .. } => HostKey::of(key),
            PublicKeyOrCertificate::Certificate(_) => None,
        };
        let offered = offered.ok_or(russh::Error::UnknownKey)?;
        let first = self.seen.host_key.lock().clone();
        let verdict = match first {
            Some(first) => HostKeyCheck::Pinned(first).verdict(&offered),
            None => self.check.verdict(&offered),
        };
        let (address, fingerprint) = (self.address.clone(), offered.fingerprint());
        match verdict {
            HostKeyDecision::Accepted => {
                *self.seen.host_key.lock() = Some(offered);
                Ok(true)
            }
            HostKeyDecision::Mismatch(expected) => {
                Err(End::HostKey(SshError::HostKeyMismatch { host: None, address, expected, offered: fingerprint }))
            }
            HostKeyDecision::Unknown => Err(End::HostKey(SshError::HostKeyUnknown { address, offered: fingerprint })),
        }
    }

    async fn disconnected(&mut self, reason: DisconnectReason<End>) -> Result<(), End> {
        let why = match &reason {
            DisconnectReason::ReceivedDisconnect(info) if info.message.trim().is_empty() => {
                "the host closed it".to_owned()
            }
            DisconnectReason::ReceivedDisconnect(info) => {
                format!("the host closed it: {}", tail::excerpt(&info.message))
            }
            DisconnectReason::Error(End::Protocol(russh::Error::Disconnect)) => "the host closed it".to_owned(),
            DisconnectReason::Error(End::Protocol(russh::Error::KeepaliveTimeout)) => {
                format!("no answer to {KEEPALIVE_MAX} keepalives")
            }
            DisconnectReason::Error(End::Protocol(error)) => tail::excerpt(&error.to_string()),
            DisconnectReason::Error(End::HostKey(error)) => error.to_string(),
        };
        *self.seen.end.lock() = Some(why);
        match reason {
            DisconnectReason::ReceivedDisconnect(_) => Ok(()),
            DisconnectReason::Error(end) => Err(end),
        }
    }
}

/// Attempts to log in to a server, each with a different set of host key types.
pub(super) struct Attempts {
    now: Vec<Algorithm>,
    left: std::vec::IntoIter<Vec<Algorithm>>,
    /// Error of the first attempt, which names the key that the server prefers.
    first: Option<SshError>,
}

impl Attempts {
    pub(super) fn of(target: &Target) -> Self {
        let mut left = target.host_key.attempts().into_iter();
        Self { now: left.next().unwrap_or_default(), left, first: None }
    }

    /// Returns the algorithms of the current attempt.
    pub(super) fn algorithms(&self) -> &[Algorithm] {
        &self.now
    }

    /// Starts the next attempt if another key of the server may be the expected one.
    ///
    /// # Errors
    /// Returns the error of the first attempt when none is left, and `error` itself if it is not a mismatch of the host key.
    pub(super) fn fail(&mut self, error: SshError) -> Result<(), SshError> {
        if !matches!(error, SshError::HostKeyMismatch { .. }) {
            return Err(error);
        }
        let first = self.first.take().unwrap_or(error);
        match self.left.next() {
            Some(next) => {
                (self.now, self.first) = (next, Some(first));
                Ok(())
            }
            None => Err(first),
        }
    }
}

/// Connects to a host directly and logs in.
pub(super) async fn direct(target: &Target, deadline: Instant) -> Result<(LoggedIn, IpAddr), SshError> {
    let mut attempts = Attempts::of(target);
    loop {
        let (stream, peer) = dial(target, deadline).await?;
        match establish(target, stream, deadline, attempts.algorithms()).await {
            Ok(logged_in) => return Ok((logged_in, peer)),
            Err(error) => attempts.fail(error)?,
        }
    }
}

/// Performs the steps after the TCP connection: key exchange, host key check, log-in. `algorithms` are the host key algorithms to request.
pub(super) async fn establish<S>(
    target: &Target,
    stream: S,
    deadline: Instant,
    algorithms: &[Algorithm],
) -> Result<LoggedIn, SshError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let seen = Arc::<TaskState>::default();
    let client = Client { address: target.address.clone(), check: target.host_key.clone(), seen: Arc::clone(&seen) };
    let exchange = client::connect_stream(Arc::new(config(algorithms.to_vec())), stream, client);
    let mut handle = within(target, deadline, "the SSH key exchange", exchange)
        .await?
        .map_err(|end| handshake_error(target, algorithms, end))?;
    let identity = within(target, deadline, "the SSH log-in", log_in(target, &mut handle, &seen)).await??;
    // The host key is set before log-in can begin.
    let host_key = seen.host_key.lock().clone().ok_or_else(|| disconnected(target, &seen))?;
    Ok(LoggedIn { handle, seen, host_key, identity })
}

/// Returns the SSH configuration. OpenSSH on Windows Server 2019 and 2022 lacks strict key exchange, without which ChaCha20-Poly1305 and
/// encrypt-then-MAC modes are vulnerable to Terrapin (CVE-2023-48795), so neither is offered. AES-CTR with a plain MAC is for hosts without AES-GCM.
/// Compression costs CPU and may be abused. SHA-1 is never used. The page `docs/guide/hosts.md` lists all algorithms.
fn config(host_keys: Vec<Algorithm>) -> client::Config {
    client::Config {
        window_size: WINDOW,
        channel_buffer_size: CHANNEL_BUFFER,
        preferred: Preferred {
            kex: Preferred::DEFAULT.kex.iter().copied().chain(ECDH).collect(),
            key: Cow::Owned(host_keys),
            cipher: Cow::Borrowed(&CIPHERS),
            mac: Cow::Borrowed(&[mac::HMAC_SHA512, mac::HMAC_SHA256]),
            compression: Cow::Borrowed(&[compression::NONE]),
            ..Preferred::DEFAULT
        },
        inactivity_timeout: Some(INACTIVITY),
        keepalive_interval: Some(KEEPALIVE),
        keepalive_max: KEEPALIVE_MAX,
        ..client::Config::default()
    }
}

/// Resolves the addresses of the target.
pub(super) async fn resolve(target: &Target, deadline: Instant) -> Result<Vec<SocketAddr>, SshError> {
    let address = target.address.clone();
    let name = target.address.trim_start_matches('[').trim_end_matches(']');
    // A look-up that takes too long is an error of the name, because the host has no part in it.
    let found = timeout_at(deadline, tokio::net::lookup_host((name, target.port))).await;
    let found: Vec<SocketAddr> = match found.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(found) => found.collect(),
        Err(source) => return Err(SshError::NameNotResolved { address, source: Some(source) }),
    };
    if found.is_empty() { Err(SshError::NameNotResolved { address, source: None }) } else { Ok(found) }
}

/// Returns the addresses to try, each with the number of untried addresses including itself.
pub(super) fn in_turn(addresses: Vec<SocketAddr>) -> impl Iterator<Item = (u32, SocketAddr)> {
    (1..=u32::try_from(addresses.len()).unwrap_or(u32::MAX)).rev().zip(addresses)
}

/// Returns the time limit for the next address: an equal share of the remaining time.
pub(super) fn share(deadline: Instant, left: u32) -> Duration {
    deadline.saturating_duration_since(Instant::now()) / left.max(1)
}

/// Connects to the first address of the target that accepts a connection.
pub(super) async fn dial(target: &Target, deadline: Instant) -> Result<(TcpStream, IpAddr), SshError> {
    let address = target.address.clone();
    let mut failure = SshError::NameNotResolved { address: address.clone(), source: None };
    for (left, peer) in in_turn(resolve(target, deadline).await?) {
        failure = match timeout(share(deadline, left), TcpStream::connect(peer)).await {
            Ok(Ok(stream)) => {
                // Otherwise each small SFTP request waits for the answer to the previous one (Nagle's algorithm).
                if let Err(source) = stream.set_nodelay(true) {
                    return Err(SshError::Unreachable { address, source });
                }
                return Ok((stream, peer.ip()));
            }
            Ok(Err(source)) => dial_error(target, source),
            Err(_) => timed_out(target, TCP),
        };
    }
    Err(failure)
}

fn dial_error(target: &Target, source: io::Error) -> SshError {
    let address = target.address.clone();
    match source.kind() {
        io::ErrorKind::ConnectionRefused => SshError::ConnectRefused { address, port: target.port, source },
        io::ErrorKind::TimedOut => timed_out(target, TCP),
        _ => SshError::Unreachable { address, source },
    }
}

async fn within<F: Future>(
    target: &Target,
    deadline: Instant,
    phase: &'static str,
    future: F,
) -> Result<F::Output, SshError> {
    timeout_at(deadline, future).await.map_err(|_| timed_out(target, phase))
}

fn timed_out(target: &Target, phase: &'static str) -> SshError {
    SshError::ConnectTimeout { address: target.address.clone(), phase, after: target.connect_timeout }
}

fn disconnected(target: &Target, seen: &TaskState) -> SshError {
    let why = seen.end().unwrap_or_else(|| "the host closed it during log-in".to_owned());
    SshError::Disconnected { address: target.address.clone(), why }
}

fn handshake_error(target: &Target, algorithms: &[Algorithm], end: End) -> SshError {
    let address = target.address.clone();
    let expected = target.host_key.fingerprints();
    let is_limited = algorithms.len() < host_key::all().len();
    match end {
        End::HostKey(error) => error,
        // Only the types of the known keys were requested.
        End::Protocol(russh::Error::NoCommonAlgo { kind: AlgorithmKind::Key, theirs, .. })
            if is_limited && !expected.is_empty() =>
        {
            SshError::HostKeyMismatch {
                host: None,
                address,
                expected,
                offered: format!("only keys of type {}", tail::excerpt(&names(&theirs))),
            }
        }
        End::Protocol(
            error @ (russh::Error::Disconnect | russh::Error::HUP | russh::Error::IO(_) | russh::Error::SendError),
        ) => SshError::Disconnected {
            address,
            why: format!("during the key exchange: {}", tail::excerpt(&error.to_string())),
        },
        End::Protocol(error) => {
            let why = match &error {
                russh::Error::NoCommonAlgo { kind, ours, theirs } => {
                    let what = match kind {
                        AlgorithmKind::Kex => "KexAlgorithms",
                        AlgorithmKind::Key => "HostKeyAlgorithms",
                        AlgorithmKind::Cipher => "Ciphers",
                        AlgorithmKind::Mac => "MACs",
                        AlgorithmKind::Compression => "Compression",
                    };
                    let (ours, theirs) = (names(ours), tail::excerpt(&names(theirs)));
                    format!("the host offers {what} {theirs}; allow one of {ours} in its sshd_config")
                }
                other => format!(
                    "{}; check that an OpenSSH server answers on port {}",
                    tail::excerpt(&other.to_string()),
                    target.port
                ),
            };
            SshError::HandshakeFailed { address, why, source: Box::new(error) }
        }
    }
}

/// Returns the names of algorithms, without names that only announce extensions.
fn names(all: &[String]) -> String {
    let is_extension = |name: &str| name.starts_with("ext-info-") || name.starts_with("kex-strict-");
    all.iter().map(String::as_str).filter(|name| !is_extension(name)).collect::<Vec<_>>().join(", ")
}

/// Tries the keys in order. A host refuses an unknown key before anything is signed with it.
async fn log_in(
    target: &Target,
    handle: &mut client::Handle<Client>,
    seen: &TaskState,
) -> Result<Arc<Identity>, SshError> {
    let mut tried = Vec::new();
    for identity in &target.keys {
        let hash = if identity.is_rsa() { rsa_hash(handle).await } else { Some(HashAlg::Sha512) };
        let Some(hash) = hash else {
            tried.push(RefusedKey { fingerprint: identity.fingerprint(), why: Refusal::Sha1 });
            continue;
        };
        match handle.authenticate_publickey(&target.username, identity.signing(hash)).await {
            Ok(AuthResult::Success) => return Ok(Arc::clone(identity)),
            Ok(AuthResult::Failure { remaining_methods, partial_success }) => {
                if remaining_methods.is_empty() && handle.is_closed() {
                    tried.push(RefusedKey { fingerprint: identity.fingerprint(), why: Refusal::Closed });
                    if tried.len() == 1 {
                        return Err(disconnected(target, seen));
                    }
                    break;
                }
                let why = if partial_success { Refusal::Factor } else { Refusal::Unknown };
                tried.push(RefusedKey { fingerprint: identity.fingerprint(), why });
                if !remaining_methods.contains(&MethodKind::PublicKey) {
                    break;
                }
            }
            Err(_) => return Err(disconnected(target, seen)),
        }
    }
    Err(SshError::AuthenticationFailed { address: target.address.clone(), username: target.username.clone(), tried })
}

/// Returns the hash for RSA signatures, or `None` if the host accepts only SHA-1. The default is SHA-512, which OpenSSH 7.2 and newer support.
async fn rsa_hash(handle: &client::Handle<Client>) -> Option<HashAlg> {
    match handle.best_supported_rsa_hash().await {
        Ok(Some(hash)) => hash,
        Ok(None) | Err(_) => Some(HashAlg::Sha512),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_algorithm_is_offered_that_is_open_to_terrapin() {
        let Preferred { kex, key, cipher, mac, compression: compressions, host_key_certificates } =
            config(host_key::all()).preferred;
        let ciphers: Vec<&str> = cipher.iter().map(AsRef::as_ref).collect();
        assert_eq!(
            ciphers,
            ["aes256-gcm@openssh.com", "aes128-gcm@openssh.com", "aes256-ctr", "aes192-ctr", "aes128-ctr"]
        );
        let macs: Vec<&str> = mac.iter().map(AsRef::as_ref).collect();
        assert_eq!(macs, ["hmac-sha2-512", "hmac-sha2-256"]);
        assert_eq!(*compressions, [compression::NONE]);
        let kex: Vec<&str> = kex.iter().map(AsRef::as_ref).collect();
        assert!(kex.iter().all(|name| !name.ends_with("-sha1") && *name != "none"), "{kex:?}");
        assert!(kex.contains(&"kex-strict-c-v00@openssh.com"), "{kex:?}");
        let weak = |a: &Algorithm| matches!(a, Algorithm::Rsa { hash: None } | Algorithm::Dsa);
        assert!(host_key_certificates.is_empty() && !key.iter().any(weak), "{key:?}");
    }
}
