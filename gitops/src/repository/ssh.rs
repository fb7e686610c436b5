//! SSH transport, in this process. The server authenticates with a key that `known_hosts` lists, the client with the identity.

use std::{
    borrow::Cow,
    cell::RefCell,
    io::{self, Read, Write},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use russh::{
    ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Preferred, cipher,
    client::{self, AuthResult},
    compression, kex,
    keys::{Algorithm, HashAlg, PrivateKey, PrivateKeyWithHashAlg, PublicKey, PublicKeyOrCertificate},
    mac,
};
use tokio::net::TcpStream;
use zeroize::Zeroizing;

use super::{Access, AccessError, GitError, link::Link, url::SshLocation};
use crate::known_hosts::{Known, host_name, known_hosts};

/// Time limit for establishing a connection to one address. The whole fetch has its own time limit.
const CONNECT: Duration = Duration::from_secs(20);

/// Size of the SSH window: number of bytes that the server may send before the client reads them.
const WINDOW: u32 = 2 << 20;

/// Maximum number of bytes that are kept of the server's standard error.
const STDERR_LIMIT: usize = 2048;

/// Key exchanges that FIPS 140 permits, offered in addition to the defaults.
const ECDH: [kex::Name; 3] = [kex::ECDH_SHA2_NISTP256, kex::ECDH_SHA2_NISTP384, kex::ECDH_SHA2_NISTP521];

const CIPHERS: [cipher::Name; 5] =
    [cipher::AES_256_GCM, cipher::AES_128_GCM, cipher::AES_256_CTR, cipher::AES_192_CTR, cipher::AES_128_CTR];

/// Maximum number of bytes of an identity, more than any key needs.
const IDENTITY: usize = 64 << 10;

/// Connects, logs in, and starts `git-upload-pack` on the server.
pub(super) fn connect<'a>(
    link: &'a Link<'a>,
    place: &SshLocation,
    access: &Access,
) -> Result<(Reader<'a>, Writer<'a>), GitError> {
    let host = host_name(&place.host, place.port);
    let text =
        access.known_hosts.as_deref().ok_or(AccessError::Missing { url: "an ssh:// URL", key: "known_hosts" })?;
    let Known { keys: known, damaged } =
        known_hosts(text, &place.host, place.port, |key| PublicKey::from_openssh(key).ok())?;
    let identity = identity(access)?;
    let refused = Arc::<Mutex<Option<String>>>::default();
    let check = Check { known: known.clone(), refused: Arc::clone(&refused) };
    let session = async {
        let stream = dial(place).await.map_err(|error| link.failed(format!("the connection failed: {error}")))?;
        let mut session = client::connect_stream(Arc::new(config(&known)), stream, check).await.map_err(|error| {
            match refused.lock().take() {
                Some(offered) => GitError::HostKeyUnknown { host: host.clone(), damaged: damaged.clone(), offered },
                None => handshake_error(link, &host, &damaged, &error),
            }
        })?;
        log_in(link, place, &mut session, identity).await?;
        let channel = session.channel_open_session().await.map_err(|error| link.failed(error.to_string()))?;
        let lost = |error: russh::Error| link.failed(error.to_string());
        // Servers may refuse this variable, and then speak an older protocol version.
        channel.set_env(false, "GIT_PROTOCOL", "version=2").await.map_err(lost)?;
        channel.exec(true, format!("git-upload-pack {}", quoted(&place.path))).await.map_err(lost)?;
        Ok::<_, GitError>((session, channel))
    };
    let (session, channel) =
        link.wait(session).map_err(|error| link.failure().unwrap_or_else(|| link.failed(error.to_string())))??;
    let (reader, writer) = channel.split();
    let session = Rc::new(Session { link, _handle: session, said: RefCell::default() });
    Ok((
        Reader { session: Rc::clone(&session), channel: reader, chunk: bytes::Bytes::new(), ended: false },
        Writer { session, channel: writer },
    ))
}

/// Quotes a path for a shell. Single quotes protect all characters except the single quote.
fn quoted(path: &str) -> String {
    // Shells of older servers expand `!` even in single quotes.
    format!("'{}'", path.replace('\'', r"'\''").replace('!', r"'\!'"))
}

fn identity(access: &Access) -> Result<PrivateKey, GitError> {
    let missing = AccessError::Missing { url: "an ssh:// URL", key: "identity" };
    let unusable = |problem| AccessError::Unusable { key: "identity", problem };
    let pem = access.identity.as_ref().ok_or(missing)?;
    if pem.len() > IDENTITY {
        return Err(unusable("it is larger than 64 KiB: add the private key alone").into());
    }
    let text =
        api::text::decode(pem).map_err(|_| unusable("it is not PEM text (-----BEGIN …) in UTF-8: save it in UTF-8"))?;
    let text = Zeroizing::new(text.into_owned());
    // The parser requires the markers alone on their lines; Secrets from Windows have carriage returns.
    let mut lines = Zeroizing::new(String::with_capacity(text.len() + 1));
    for line in text.trim().lines() {
        lines.push_str(line.trim());
        lines.push('\n');
    }
    let passphrase = access.password.as_ref().map(|password| password.as_str());
    let key = russh::keys::decode_secret_key(&lines, passphrase).map_err(|error| match (error, passphrase) {
        (russh::keys::Error::KeyIsEncrypted, _) => unusable("it has a passphrase: add the passphrase as password"),
        (_, Some(_)) => {
            unusable("it is not a private key, or password is not its passphrase: correct identity or password")
        }
        (_, None) => unusable("it is not a private key in PEM form: use Ed25519, ECDSA or RSA"),
    })?;
    Ok(key)
}

/// Connects to the first address that accepts.
async fn dial(place: &SshLocation) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    for address in tokio::net::lookup_host((place.host.as_str(), place.port)).await? {
        failure = match tokio::time::timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
    }
    Err(failure)
}

/// Returns the SSH settings. If host keys are known, only their types are requested, as a server may also have keys of other types. SHA-1 is
/// excluded, and so is compression, which a hostile server may abuse. ChaCha20-Poly1305 and encrypt-then-MAC are excluded because they
/// are vulnerable to Terrapin (CVE-2023-48795) with a server that does not support strict key exchange.
fn config(known: &[PublicKey]) -> client::Config {
    let all = Preferred::DEFAULT.key.iter().filter(|a| **a != Algorithm::Rsa { hash: None });
    let same = |algorithm: &Algorithm, key: &PublicKey| match (algorithm, key.algorithm()) {
        (Algorithm::Rsa { .. }, Algorithm::Rsa { .. }) => true,
        (one, other) => *one == other,
    };
    let mut keys: Vec<_> = all.clone().filter(|a| known.iter().any(|key| same(a, key))).cloned().collect();
    if keys.is_empty() {
        keys = all.cloned().collect();
    }
    client::Config {
        window_size: WINDOW,
        preferred: Preferred {
            kex: Preferred::DEFAULT.kex.iter().copied().chain(ECDH).collect(),
            key: Cow::Owned(keys),
            cipher: Cow::Borrowed(&CIPHERS),
            mac: Cow::Borrowed(&[mac::HMAC_SHA512, mac::HMAC_SHA256]),
            compression: Cow::Borrowed(&[compression::NONE]),
            ..Preferred::DEFAULT
        },
        ..client::Config::default()
    }
}

fn handshake_error(link: &Link<'_>, host: &str, damaged: &[usize], error: &russh::Error) -> GitError {
    match error {
        // Only the types of the known keys were requested, if there are any.
        russh::Error::NoCommonAlgo { kind: russh::AlgorithmKind::Key, theirs, .. } => GitError::HostKeyUnknown {
            host: host.to_owned(),
            damaged: damaged.to_vec(),
            offered: super::error::excerpt(&format!("of type {}", theirs.join(", "))),
        },
        error => link.failed(format!("no SSH connection: {error}")),
    }
}

async fn log_in(
    link: &Link<'_>,
    place: &SshLocation,
    session: &mut client::Handle<Check>,
    key: PrivateKey,
) -> Result<(), GitError> {
    let fingerprint = key.public_key().fingerprint(HashAlg::Sha256);
    // SHA-512 if the server announces no hash: OpenSSH accepts it since 7.2. Only RSA keys use the hash.
    let hash = match session.best_supported_rsa_hash().await {
        Ok(Some(Some(hash))) => hash,
        _ => HashAlg::Sha512,
    };
    let key = PrivateKeyWithHashAlg::new(Arc::new(key), Some(hash));
    match session.authenticate_publickey(&place.user, key).await {
        Ok(AuthResult::Success) => Ok(()),
        Ok(AuthResult::Failure { .. }) => Err(GitError::AuthenticationFailed {
            host: link.host.clone(),
            problem: format!(
                "it does not accept the key {fingerprint} for the user {:?}: register the key at the server, or change identity",
                place.user
            ),
        }),
        Err(error) => Err(link.failed(format!("the connection ended during log-in: {error}"))),
    }
}

/// Host key check. `refused` receives an offered key that is not a known one.
struct Check {
    known: Vec<PublicKey>,
    refused: Arc<Mutex<Option<String>>>,
}

impl client::Handler for Check {
    type Error = russh::Error;

    async fn check_server_key(&mut self, key: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        let offered = match key {
            PublicKeyOrCertificate::PublicKey { key, .. }
                if self.known.iter().any(|known| known.key_data() == key.key_data()) =>
            {
                return Ok(true);
            }
            PublicKeyOrCertificate::PublicKey { key, .. } => {
                format!("{} {}", key.algorithm().as_str(), key.fingerprint(HashAlg::Sha256))
            }
            PublicKeyOrCertificate::Certificate(_) => "in a certificate".to_owned(),
        };
        *self.refused.lock() = Some(offered);
        Ok(false)
    }
}

/// SSH session, kept until the reader and the writer are dropped.
struct Session<'a> {
    link: &'a Link<'a>,
    _handle: client::Handle<Check>,
    /// Standard error of the server, which explains an early end.
    said: RefCell<Vec<u8>>,
}

impl Session<'_> {
    fn ended(&self, status: u32) -> io::Error {
        let said = self.said.borrow();
        let words = super::error::excerpt(&String::from_utf8_lossy(&said));
        let error = if is_absent(status, &words) {
            GitError::RepositoryNotFound { host: self.link.host.clone() }
        } else if words.is_empty() {
            self.link.failed(format!("git-upload-pack ended with status {status} on the server"))
        } else {
            self.link.failed(format!("it reports: {words}"))
        };
        self.link.fail(error)
    }
}

/// Reports whether the exit status and the standard error of the server say that it does not have the repository.
fn is_absent(status: u32, words: &str) -> bool {
    let words = words.to_lowercase();
    let absent = ["not found", "does not exist", "not appear to be a git repository", "no such"];
    // With status 127, a shell reports that it does not find the program.
    status != 127 && absent.iter().any(|text| words.contains(text))
}

/// Reader of the server's output.
pub(super) struct Reader<'a> {
    session: Rc<Session<'a>>,
    channel: ChannelReadHalf,
    chunk: bytes::Bytes,
    ended: bool,
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() && !self.ended {
            match self.session.link.wait(self.channel.wait())? {
                Some(ChannelMsg::Data { data }) => {
                    self.session.link.count(data.len())?;
                    self.chunk = data;
                }
                Some(ChannelMsg::ExtendedData { data, .. }) => {
                    self.session.link.count(data.len())?;
                    let mut said = self.session.said.borrow_mut();
                    let room = STDERR_LIMIT.saturating_sub(said.len()).min(data.len());
                    said.extend_from_slice(&data[..room]);
                }
                Some(ChannelMsg::Failure) => {
                    return Err(self.session.link.fail(self.session.link.failed("it does not start git-upload-pack")));
                }
                Some(ChannelMsg::ExitStatus { exit_status }) if exit_status != 0 => {
                    return Err(self.session.ended(exit_status));
                }
                None | Some(ChannelMsg::Close) => self.ended = true,
                // Read on after the end of the data: the exit status may explain why there is none.
                Some(_) => {}
            }
        }
        let length = buffer.len().min(self.chunk.len());
        buffer[..length].copy_from_slice(&self.chunk.split_to(length));
        Ok(length)
    }
}

/// Writer of the server's input.
pub(super) struct Writer<'a> {
    session: Rc<Session<'a>>,
    channel: ChannelWriteHalf<client::Msg>,
}

impl Write for Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.session.link.wait(self.channel.data_bytes(bytes.to_vec()))?;
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_algorithm_is_offered_that_is_open_to_terrapin() {
        let preferred = config(&[]).preferred;
        let ciphers: Vec<&str> = preferred.cipher.iter().map(AsRef::as_ref).collect();
        assert_eq!(
            ciphers,
            ["aes256-gcm@openssh.com", "aes128-gcm@openssh.com", "aes256-ctr", "aes192-ctr", "aes128-ctr"]
        );
        let macs: Vec<&str> = preferred.mac.iter().map(AsRef::as_ref).collect();
        assert_eq!(macs, ["hmac-sha2-512", "hmac-sha2-256"]);
        let kex: Vec<&str> = preferred.kex.iter().map(AsRef::as_ref).collect();
        assert!(kex.iter().all(|name| !name.ends_with("-sha1")) && kex.contains(&"kex-strict-c-v00@openssh.com"));
        assert!(preferred.key.iter().all(|key| *key != Algorithm::Rsa { hash: None }));
    }

    #[test]
    fn a_server_without_git_is_not_one_without_the_repository() {
        for (status, words, expected) in [
            (1, "ERROR: Repository not found.", true),
            (128, "fatal: '/x' does not appear to be a git repository", true),
            (127, "bash: git-upload-pack: command not found", false),
            (128, "fatal: detected dubious ownership in repository at '/x'", false),
        ] {
            assert_eq!(is_absent(status, words), expected, "{words}");
        }
    }

    #[test]
    fn a_path_is_one_word_for_every_shell() {
        let cases = [("/a b", "'/a b'"), ("/it's", r"'/it'\''s'"), ("/a;id", "'/a;id'"), ("/$(id)!", r"'/$(id)'\!''")];
        for (path, expected) in cases {
            assert_eq!(quoted(path), expected);
        }
    }
}
