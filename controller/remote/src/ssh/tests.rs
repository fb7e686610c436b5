//! Tests of SSH and SFTP against a real server on loopback.

pub(crate) mod forwards;
pub(crate) mod host;
mod jump_host;
mod keys;

use std::{
    io::Cursor,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use tokio::net::TcpListener;

use self::host::{Host, Running, ed25519, identity, public};
use super::{Connection, HostKeyCheck, SshError, Target};

const TIME: Duration = Duration::from_secs(20);
/// Port without a listener. A port that was just free could belong to another test.
const CLOSED_PORT: u16 = 1;

async fn connect(target: &Target) -> Connection {
    Connection::connect(target).await.unwrap()
}

/// Starts a host, and connects to it.
async fn connected(host: Host) -> (Running, Connection) {
    let running = host.start().await;
    let connection = connect(&running.target()).await;
    (running, connection)
}

async fn refusal(target: &Target) -> SshError {
    Connection::connect(target).await.unwrap_err()
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|i| u8::try_from((i ^ (i >> 8) ^ (i >> 16)) & 0xff).unwrap()).collect()
}

#[tokio::test]
async fn one_connection_serves_commands_and_files() {
    for extensions in [true, false] {
        let (running, connection) = connected(Host { extensions, ..Host::default() }).await;
        assert_eq!(connection.host_key(), &public(&ed25519(1)));
        assert_eq!(connection.identity().fingerprint(), public(&ed25519(2)).fingerprint());
        assert_eq!(connection.peer_address(), running.address.ip());

        let path = r"C:\k\operations\1\request.json";
        assert_eq!(connection.read(path, 10).await.unwrap(), None);
        assert_eq!(connection.size(path).await.unwrap(), None);
        assert_eq!(connection.list(r"C:\k").await.unwrap(), []);
        for content in [bytes(100_000), b"short".to_vec(), Vec::new()] {
            connection.write(path, &content).await.unwrap();
            assert_eq!(connection.read(path, content.len()).await.unwrap().as_ref(), Some(&content));
            assert_eq!(connection.size(path).await.unwrap(), Some(content.len() as u64));
            assert_eq!(std::fs::read(running.file("k/operations/1/request.json")).unwrap(), content);
        }
        let names: Vec<_> = connection.list(r"C:\k\operations\1").await.unwrap().into_iter().map(|e| e.name).collect();
        assert_eq!(names, ["request.json"], "neither a partial file nor an invalid name");

        connection.write(r"C:\k\a\b\moved", b"old").await.unwrap();
        connection.rename(path, r"C:\k\a\b\moved").await.unwrap();
        assert_eq!(connection.size(r"C:\k\a\b\moved").await.unwrap(), Some(0));
        connection.remove(r"C:\k\a\b\moved").await.unwrap();
        connection.remove(r"C:\k\a\b\moved").await.unwrap();
        assert_eq!(connection.list(r"C:\k\a\b").await.unwrap(), []);

        let exit = connection.exec("exit 7", TIME).await.unwrap();
        assert_eq!((exit.status, exit.log.as_str()), (Some(7), "out[1m\nerr"));
        assert_eq!(running.connections.load(Ordering::Relaxed), 1);
        connection.close().await;
    }
}

/// Microsoft documents bash as a default shell, in which a backslash starts an escape sequence.
#[tokio::test]
async fn a_program_is_started_by_a_posix_shell_too() {
    use std::os::unix::fs::PermissionsExt as _;
    let (running, connection) = connected(Host::default()).await;
    let program = running.root.path().join(r"C:\windows\wicd\0a\wicd.exe");
    std::fs::write(&program, "#!/bin/sh\ntest \"$*\" = 'facts op-1' && exit 3\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    for shell in ["bash", "sh"] {
        for (program, status) in [("0a", 3), ("0b", super::NOT_FOUND)] {
            let command = format!(r"{shell} C:\windows\wicd\{program}\wicd.exe facts op-1");
            assert_eq!(connection.exec(&command, TIME).await.unwrap().status, Some(status), "{command}");
        }
    }
    connection.close().await;
}

#[tokio::test]
async fn a_file_is_rewritten_in_place() {
    use std::os::unix::fs::MetadataExt as _;
    let (running, connection) = connected(Host::default()).await;
    assert_eq!(connection.home().await.unwrap().as_deref(), Some(r"C:\Users\Administrator"));
    let (path, local) = (r"C:\k\keys", running.file("k/keys"));
    let error = connection.rewrite(path, b"", b"x").await.unwrap_err();
    assert_eq!(error.reason(), "TransferFailed", "no file is made: {error}");
    connection.write(path, b"a\nbb\nccc\n").await.unwrap();
    let inode = std::fs::metadata(&local).unwrap().ino();
    for [old, new] in [
        ["a\nbb\nccc\n", "a\nbb\nccc\ndddd\n"],
        ["a\nbb\nccc\ndddd\n", "a\nccc\ndddd\n"],
        ["a\nccc\ndddd\n", "a\nccc\ndddd\n"],
        ["a\nccc\ndddd\n", ""],
        ["", "e\n"],
    ] {
        connection.rewrite(path, old.as_bytes(), new.as_bytes()).await.unwrap();
        assert_eq!(std::fs::read_to_string(&local).unwrap(), new, "{old:?}");
    }
    assert_eq!(std::fs::metadata(&local).unwrap().ino(), inode, "it is another file");

    // A change of more than one request could be interrupted in the middle.
    let error = connection.rewrite(path, b"e\n", &bytes(40_000)).await.unwrap_err();
    assert_eq!(error.reason(), "TransferFailed");
    assert_eq!(std::fs::read_to_string(&local).unwrap(), "e\n");
    // Another client wrote the file in between, so the change must not count as done.
    let error = connection.rewrite(path, b"other text", b"other").await.unwrap_err();
    assert_eq!(error.reason(), "TransferFailed");
}

/// Checks the content that a file has if the connection breaks between the write and the truncation.
#[test]
fn surplus_bytes_are_overwritten_before_a_file_is_truncated() {
    for (old, new, expected) in [
        ("a\nb\nc\n", "a\nc\n", "a\nc\n\n\n"),
        ("a\nb\n", "a\n", "a\n\n\n"),
        ("a\n", "a\nb\n", "a\nb\n"),
        ("a\n", "a\n", "a\n"),
        ("", "a\n", "a\n"),
    ] {
        let (offset, data) = super::files::difference(old.as_bytes(), new.as_bytes());
        let mut there = old.as_bytes().to_vec();
        there.resize(there.len().max(offset + data.len()), 0);
        there[offset..offset + data.len()].copy_from_slice(&data);
        assert_eq!(String::from_utf8(there).unwrap(), expected);
        assert_eq!(&expected[..new.len()], new);
    }
}

#[tokio::test]
async fn invalid_commands_and_paths_are_refused() {
    let (_running, connection) = connected(Host::default()).await;
    for (error, reason) in [
        (connection.exec("cmd /c dir & del x", TIME).await.unwrap_err(), "InternalError"),
        (connection.read(r"C:\k\..\x", 1).await.unwrap_err(), "InternalError"),
        (connection.write("/etc/passwd", b"").await.unwrap_err(), "InternalError"),
    ] {
        assert_eq!(error.reason(), reason, "{error}");
    }
    connection.write(r"C:\k\big", &bytes(70_000)).await.unwrap();
    let error = connection.read(r"C:\k\big", 69_999).await.unwrap_err();
    assert_eq!(error.reason(), "TransferFailed");
}

#[tokio::test]
async fn keys_are_tried_in_order() {
    let running = Host { authorized: vec![ed25519(4).public_key().clone()], ..Host::default() }.start().await;
    let keys: Vec<_> = [3, 4, 5].iter().map(|&seed| identity(&ed25519(seed))).collect();
    let target = Target { keys: keys.clone(), ..running.target() };
    let connection = connect(&target).await;
    assert_eq!(connection.identity().fingerprint(), keys[1].fingerprint());

    let target = Target { keys: vec![Arc::clone(&keys[0]), Arc::clone(&keys[2])], ..target };
    let error = refusal(&target).await;
    assert_eq!(error.reason(), "AuthenticationFailed");
    let text = error.to_string();
    assert!(text.contains("Administrator") && text.contains(&keys[0].fingerprint()), "{text}");
    assert!(text.contains(&keys[2].fingerprint()), "{text}");

    let error = refusal(&Target { keys: Vec::new(), ..target }).await;
    assert_eq!(error.reason(), "AuthenticationFailed");
}

#[tokio::test]
async fn rsa_keys_log_in_without_sha1() {
    let key = russh::keys::decode_secret_key(keys::RSA_PKCS1, None).unwrap();
    let running = Host { authorized: vec![key.public_key().clone()], ..Host::default() }.start().await;
    let target = Target { keys: vec![identity(&key)], ..running.target() };
    assert_eq!(connect(&target).await.exec("exit 0", TIME).await.unwrap().status, Some(0));
}

#[tokio::test]
async fn a_host_with_an_unexpected_key_is_refused() {
    // The host has an RSA key and an Ed25519 key. Without an expected type, the Ed25519 key is negotiated: the client prefers it.
    let rsa = russh::keys::decode_secret_key(keys::RSA_PKCS1, None).unwrap();
    let running = Host { own_keys: vec![rsa.clone(), ed25519(1)], ..Host::default() }.start().await;
    let (own, other) = (public(&ed25519(1)), public(&ed25519(9)));
    let ecdsa = super::HostKey::parse(keys::ECDSA_PUBLIC).unwrap();
    for check in [
        HostKeyCheck::TrustOnFirstUse,
        HostKeyCheck::Pinned(own.clone()),
        HostKeyCheck::Pinned(public(&rsa)),
        HostKeyCheck::PinnedFingerprint(own.fingerprint()),
        HostKeyCheck::AnyOf(vec![other.clone(), own.clone()]),
    ] {
        let target = Target { host_key: check.clone(), ..running.target() };
        let connection = connect(&target).await;
        assert!([&own, &public(&rsa)].contains(&connection.host_key()), "{check:?}");
    }
    for (check, reason) in [
        (HostKeyCheck::Pinned(other.clone()), "HostKeyMismatch"),
        (HostKeyCheck::PinnedFingerprint(other.fingerprint()), "HostKeyMismatch"),
        (HostKeyCheck::AnyOf(vec![other.clone()]), "HostKeyMismatch"),
        // The host no longer has a key of that type.
        (HostKeyCheck::Pinned(ecdsa), "HostKeyMismatch"),
        (HostKeyCheck::AnyOf(Vec::new()), "HostKeyUnknown"),
    ] {
        let error = refusal(&Target { host_key: check.clone(), ..running.target() }).await;
        assert_eq!(error.reason(), reason, "{check:?}: {error}");
    }
    let error = refusal(&Target { host_key: HostKeyCheck::Pinned(other.clone()), ..running.target() }).await;
    let text = error.to_string();
    assert!(text.contains(&own.fingerprint()) && text.contains(&other.fingerprint()), "{text}");
}

#[tokio::test]
async fn any_key_of_a_host_may_be_the_declared_one() {
    let decode = |pem| russh::keys::decode_secret_key(pem, None).unwrap();
    let own = [decode(keys::RSA_PKCS1), decode(keys::ECDSA_SEC1), decode(keys::ECDSA_P521_PKCS8), ed25519(1)];
    let running = Host { own_keys: own.to_vec(), forwards: forwards::Forwards::Asked, ..Host::default() }.start().await;
    let stale = public(&ed25519(9));
    for key in own.iter().map(public) {
        for check in [
            HostKeyCheck::pinned(&key.fingerprint()).unwrap(),
            HostKeyCheck::Pinned(key.clone()),
            HostKeyCheck::AnyOf(vec![stale.clone(), key.clone()]),
        ] {
            let target = Target { host_key: check.clone(), ..running.target() };
            assert_eq!(connect(&target).await.host_key(), &key, "{check:?}");
            // The same applies behind a jump host, and to the jump host itself.
            let login = identity(&ed25519(2));
            let (address, port) = (running.address.ip().to_string(), running.address.port());
            let jump_host = super::JumpHost::new(&address, port, "Administrator", login, &key.fingerprint()).unwrap();
            let target = Target { jump_host: Some(jump_host), ..target };
            assert_eq!(connect(&target).await.host_key(), &key, "{check:?}");
        }
    }
    let target = Target { host_key: HostKeyCheck::PinnedFingerprint(stale.fingerprint()), ..running.target() };
    let text = refusal(&target).await.to_string();
    let shown = format!("got {};", public(&ed25519(1)).fingerprint());
    assert!(text.contains(&shown), "the key of the first attempt: {text}");
}

#[tokio::test]
async fn hosts_with_fips_algorithms_are_supported() {
    use russh::{Preferred, cipher, kex, mac};
    let host = |kex: &[kex::Name], cipher: &[cipher::Name], mac: &[mac::Name]| Host {
        own_keys: vec![russh::keys::decode_secret_key(keys::ECDSA_SEC1, None).unwrap()],
        preferred: Preferred {
            kex: kex.to_vec().into(),
            cipher: cipher.to_vec().into(),
            mac: mac.to_vec().into(),
            ..Preferred::default()
        },
        ..Host::default()
    };
    for kex in [kex::ECDH_SHA2_NISTP256, kex::ECDH_SHA2_NISTP384, kex::ECDH_SHA2_NISTP521, kex::DH_G14_SHA256] {
        for cipher in
            [cipher::AES_256_GCM, cipher::AES_128_GCM, cipher::AES_256_CTR, cipher::AES_192_CTR, cipher::AES_128_CTR]
        {
            let running = host(&[kex], &[cipher], &[mac::HMAC_SHA256]).start().await;
            connect(&running.target()).await.close().await;
        }
    }
    let running = host(&[kex::DH_G14_SHA1], &[cipher::AES_256_GCM], &[mac::HMAC_SHA256]).start().await;
    let text = refusal(&running.target()).await.to_string();
    assert!(text.contains("KexAlgorithms diffie-hellman-group14-sha1"), "{text}");
    assert!(text.contains("ecdh-sha2-nistp256") && !text.contains("kex-strict"), "{text}");
    let running = host(&[kex::CURVE25519], &[cipher::AES_256_CTR], &[mac::HMAC_SHA256_ETM]).start().await;
    let text = refusal(&running.target()).await.to_string();
    assert!(text.contains("MACs hmac-sha2-256-etm") && text.contains("one of hmac-sha2-512, hmac-sha2-256"), "{text}");
}

#[tokio::test]
async fn an_unreachable_host_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = Host::default().start().await;
    let short = Duration::from_millis(300);
    // The kernel accepts the connection, but nothing answers.
    let target = Target { port: listener.local_addr().unwrap().port(), connect_timeout: short, ..silent.target() };
    assert_eq!(refusal(&target).await.reason(), "Unreachable");

    let target = Target { port: CLOSED_PORT, ..target };
    assert_eq!(refusal(&target).await.reason(), "Unreachable");

    let target = Target { address: "no such name".to_owned(), connect_timeout: TIME, ..target };
    let error = refusal(&target).await;
    assert_eq!(error.reason(), "Unreachable");
}

#[tokio::test]
async fn a_host_that_stops_in_the_middle_of_the_handshake_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let running = Host::default().start().await;
    let target = Target {
        port: listener.local_addr().unwrap().port(),
        connect_timeout: Duration::from_millis(300),
        ..running.target()
    };
    let banner = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"SSH-2.0-x\r\n").await.unwrap();
        std::future::pending::<()>().await;
    });
    assert_eq!(refusal(&target).await.reason(), "Unreachable");
    banner.abort();
}

#[tokio::test]
async fn hosts_are_reached_over_ipv6_and_by_name() {
    for (listen, address) in [("[::1]:0", "::1"), ("[::1]:0", "[::1]"), ("127.0.0.1:0", "localhost")] {
        let running = Host { listen, ..Host::default() }.start().await;
        let target = Target { address: address.to_owned(), ..running.target() };
        let connection = connect(&target).await;
        assert_eq!(connection.peer_address(), running.address.ip());
    }
}

#[tokio::test]
async fn a_command_may_end_in_any_way() {
    let (_running, connection) = connected(Host::default()).await;
    assert_eq!(connection.exec("hold", TIME).await.unwrap().status, Some(0));
    assert_eq!(connection.exec("vanish", TIME).await.unwrap().status, None);
    assert_eq!(connection.exec("refuse", TIME).await.unwrap_err().reason(), "SshServerUnfit");
    let error = connection.exec("hang", Duration::from_millis(200)).await.unwrap_err();
    assert_eq!(error.reason(), "HostCallFailed");
    // The connection is still usable.
    assert_eq!(connection.exec("exit 3", TIME).await.unwrap().status, Some(3));
    assert_eq!(connection.exec("reboot", TIME).await.unwrap().status, None);
    let error = connection.exec("exit 0", TIME).await.unwrap_err();
    assert_eq!(error.reason(), "Unreachable", "{error}");
}

#[tokio::test]
async fn endless_output_does_not_delay_file_requests() {
    let (_running, connection) = connected(Host::default()).await;
    // A command with 16 MiB of output ends normally.
    let exit = connection.exec("junk 512", TIME).await.unwrap();
    assert_eq!(exit.status, Some(0));
    assert!(exit.log.len() <= 3 * super::tail::LOG_LIMIT);

    // The output ends with the connection, however slow the machine is.
    let flood = connection.exec("junk 1000000000", Duration::from_hours(1));
    let files = async {
        for i in 0..20 {
            let path = format!(r"C:\k\{i}");
            connection.write(&path, &bytes(50_000)).await.unwrap();
            assert_eq!(connection.read(&path, 50_000).await.unwrap(), Some(bytes(50_000)));
        }
    };
    tokio::select! {
        exit = flood => panic!("the flood ended: {exit:?}"),
        () = files => {}
    }
}

#[tokio::test]
async fn an_interrupted_upload_is_resumed() {
    let content = bytes(6 * 1024 * 1024 + 123);
    let total = content.len() as u64;
    let (running, connection) = connected(Host { cut_after: 4 * 1024 * 1024, ..Host::default() }).await;
    let path = r"C:\k\wicd\0a\wicd.exe";
    let error = connection.upload(path, total, &mut Cursor::new(&content)).await.unwrap_err();
    assert_eq!(error.reason(), "Unreachable", "{error}");
    let there = std::fs::metadata(running.file("k/wicd/0a/wicd.exe")).unwrap().len();
    assert!(there > 2 * 1024 * 1024 && there < total, "{there}");

    let connection = connect(&running.target()).await;
    let sent = connection.upload(path, total, &mut Cursor::new(&content)).await.unwrap();
    assert!(total - there <= sent && sent < total, "{sent}");
    assert_eq!(std::fs::read(running.file("k/wicd/0a/wicd.exe")).unwrap(), content);
    assert_eq!(connection.upload(path, total, &mut Cursor::new(&content)).await.unwrap(), 0);

    // A file that is longer than expected is not the operator's.
    assert_eq!(connection.upload(path, 10, &mut Cursor::new(&content[..10])).await.unwrap(), 10);
    assert_eq!(std::fs::read(running.file("k/wicd/0a/wicd.exe")).unwrap(), &content[..10]);
}

#[tokio::test]
async fn a_pending_request_fails_when_the_connection_ends() {
    let (_running, connection) = connected(Host::default()).await;
    let waits = connection.while_open(std::future::pending::<Result<(), SshError>>());
    let (waited, _) = tokio::join!(waits, connection.exec("reboot", Duration::from_secs(20)));
    let error = waited.unwrap_err();
    assert_eq!(error.reason(), "Unreachable", "{error}");
}

/// Requests that are made while the connection breaks get no answer at all.
#[tokio::test(flavor = "multi_thread")]
async fn no_request_outlives_its_connection() {
    let running = Host::default().start().await;
    let target = running.target();
    let round = async |round: u64| {
        let connection = connect(&target).await;
        let file = format!(r"C:\k\{round}");
        connection.write(&file, b"1").await.unwrap();
        let asks = async {
            loop {
                let asked = match round % 4 {
                    0 => connection.read(&file, 10).await.map(drop),
                    1 => connection.size(&file).await.map(drop),
                    2 => connection.remove(r"C:\k\y").await,
                    _ => connection.list(r"C:\k").await.map(drop),
                };
                if let Err(error) = asked {
                    return error;
                }
            }
        };
        let ends = async { tokio::join!(asks, connection.exec("reboot", Duration::from_secs(20))).0 };
        // Much shorter than the time limit of a request.
        let error = tokio::time::timeout(Duration::from_secs(15), ends).await;
        assert!(error.is_ok(), "round {round}: a request waits although the connection is gone");
    };
    stream::iter(0..150).for_each_concurrent(10, round).await;
}

#[tokio::test]
async fn a_failed_write_is_reported_and_leaves_the_old_file() {
    // Without statvfs, a full disk looks like any other failure.
    for (extensions, reason) in [(true, "DiskFull"), (false, "TransferFailed")] {
        let (_running, connection) = connected(Host { disk: 100_000, extensions, ..Host::default() }).await;
        connection.write(r"C:\k\x", b"old").await.unwrap();
        let error = connection.write(r"C:\k\x", &bytes(200_000)).await.unwrap_err();
        assert_eq!(error.reason(), reason, "{error}");
        assert_eq!(connection.read(r"C:\k\x", 10).await.unwrap().as_deref(), Some(&b"old"[..]));
    }

    let (_running, connection) = connected(Host::default()).await;
    let mut short = Cursor::new(b"abc");
    let error = connection.upload(r"C:\k\y", 10, &mut short).await.unwrap_err();
    assert_eq!(error.reason(), "PayloadInvalid");
}

#[tokio::test]
async fn a_rename_waits_until_an_antivirus_closes_the_file() {
    for extensions in [true, false] {
        let (_running, connection) = connected(Host { held: 3, extensions, ..Host::default() }).await;
        connection.write(r"C:\k\x", b"new").await.unwrap();
        assert_eq!(connection.read(r"C:\k\x", 10).await.unwrap().as_deref(), Some(&b"new"[..]));
    }
    let (_running, connection) = connected(Host { held: i64::MAX, ..Host::default() }).await;
    let error = connection.write(r"C:\k\x", b"new").await.unwrap_err();
    assert_eq!(error.reason(), "TransferFailed", "{error}");
}

#[tokio::test]
async fn a_host_without_sftp_is_reported() {
    let (_running, connection) = connected(Host { sftp: false, ..Host::default() }).await;
    assert_eq!(connection.read(r"C:\k\x", 10).await.unwrap_err().reason(), "SshServerUnfit");
    assert_eq!(connection.exec("exit 0", TIME).await.unwrap().status, Some(0));
}

#[tokio::test]
async fn a_connection_ends_when_it_is_closed_or_dropped() {
    let running = Host::default().start().await;
    let mut open = running.open.clone();
    for close in [true, false] {
        let connection = connect(&running.target()).await;
        connection.write(r"C:\k\x", b"1").await.unwrap();
        let command = tokio::time::timeout(Duration::from_millis(100), connection.exec("hang", TIME)).await;
        assert!(command.is_err());
        assert_eq!(*open.borrow(), 1);
        if close {
            connection.close().await;
        } else {
            drop(connection);
        }
        tokio::time::timeout(TIME, open.wait_for(|n| *n == 0)).await.unwrap().unwrap();
    }
}
