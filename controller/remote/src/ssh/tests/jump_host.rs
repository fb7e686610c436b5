//! Tests of hosts that are reached through a jump host.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use tokio::net::TcpListener;

use super::{
    CLOSED_PORT, TIME, bytes, connect,
    forwards::Forwards,
    host::{Host, Running, ed25519, identity, public},
    refusal,
};
use crate::ssh::{HostKeyCheck, JumpHost, SshError, Target};

/// Seed of the jump host's key. `JUMP_KEY` is the seed of the log-in key that it accepts.
const JUMP: u8 = 11;
const JUMP_KEY: u8 = 12;

fn jump(forwards: Forwards) -> Host {
    Host {
        own_keys: vec![ed25519(JUMP)],
        authorized: vec![ed25519(JUMP_KEY).public_key().clone()],
        forwards,
        ..Host::default()
    }
}

fn through(host: &Running, jump: &Running) -> Target {
    Target { jump_host: Some(jump_host(jump, JUMP_KEY, JUMP)), ..host.target() }
}

/// Returns the jump host `jump`, with its log-in key and its expected host key.
fn jump_host(jump: &Running, key: u8, own: u8) -> JumpHost {
    jump_host_at(jump.address, key, own)
}

fn jump_host_at(address: SocketAddr, key: u8, own: u8) -> JumpHost {
    let (ip, host_key) = (address.ip().to_string(), public(&ed25519(own)).fingerprint());
    JumpHost::new(&ip, address.port(), "relay", identity(&ed25519(key)), &host_key).unwrap()
}

/// Returns a host and a jump host that forwards to any address.
async fn host_and_jump_host() -> (Running, Running) {
    (Host::default().start().await, jump(Forwards::Asked).start().await)
}

#[tokio::test]
async fn a_host_is_reached_through_a_jump_host_that_gets_no_key_of_it() {
    let (host, jump) = host_and_jump_host().await;
    let target = through(&host, &jump);
    let connection = connect(&target).await;
    assert_eq!(connection.host_key(), &public(&ed25519(1)), "the key is that of the host");
    assert_eq!(connection.identity().fingerprint(), public(&ed25519(2)).fingerprint());
    assert_eq!(connection.peer_address(), host.address.ip());
    assert_eq!(connection.exec("exit 7", TIME).await.unwrap().status, Some(7));
    connection.write(r"C:\k\x", &bytes(300_000)).await.unwrap();
    assert_eq!(connection.read(r"C:\k\x", 300_000).await.unwrap(), Some(bytes(300_000)));
    let key = public(&ed25519(JUMP_KEY)).fingerprint();
    let connect = format!("connect {} {}", host.address.ip(), host.address.port());
    assert_eq!(*jump.asked.lock(), [format!("publickey relay {key}"), connect]);
    assert!(host.asked.lock().iter().all(|asked| asked.starts_with("publickey Administrator ")));
    assert_eq!((host.connections.load(Ordering::Relaxed), jump.connections.load(Ordering::Relaxed)), (1, 1));
}

#[tokio::test]
async fn both_connections_end_when_one_is_closed_or_dropped() {
    let (host, jump) = host_and_jump_host().await;
    let (mut at_host, mut at_jump) = (host.open.clone(), jump.open.clone());
    for close in [true, false] {
        let connection = connect(&through(&host, &jump)).await;
        assert_eq!((*at_host.borrow(), *at_jump.borrow()), (1, 1));
        if close {
            connection.close().await;
        } else {
            drop(connection);
        }
        for open in [&mut at_host, &mut at_jump] {
            tokio::time::timeout(TIME, open.wait_for(|n| *n == 0)).await.unwrap().unwrap();
        }
    }
}

/// Covers a deadlock: both connections must keep reading while they write.
#[tokio::test]
async fn an_upload_and_endless_output_do_not_delay_each_other() {
    let (host, jump) = host_and_jump_host().await;
    let connection = connect(&through(&host, &jump)).await;
    let flood = connection.exec("junk 1000000000", 6 * TIME);
    let content = bytes(2 * 1024 * 1024);
    let files = async {
        let total = content.len() as u64;
        let mut source = std::io::Cursor::new(&content);
        connection.upload(r"C:\k\big", total, &mut source).await.unwrap();
    };
    tokio::select! {
        exit = flood => panic!("the flood ended: {exit:?}"),
        () = files => {}
    }
    assert_eq!(std::fs::read(host.file("k/big")).unwrap(), content);
}

#[tokio::test]
async fn a_jump_host_with_another_key_gets_no_log_in() {
    let (host, jump) = host_and_jump_host().await;
    let target = Target { jump_host: Some(jump_host(&jump, JUMP_KEY, 99)), ..host.target() };
    let error = refusal(&target).await;
    assert_eq!(error.reason(), "JumpHostKeyMismatch");
    let text = error.to_string();
    assert!(text.contains(&public(&ed25519(JUMP)).fingerprint()), "{text}");
    assert!(text.contains(&public(&ed25519(99)).fingerprint()) && text.contains("ssh.jumpHost.hostKey"), "{text}");
    assert!(error.is_of_jump_host());
    assert!(jump.asked.lock().is_empty(), "{:?}", jump.asked.lock());
    assert_eq!(host.connections.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_jump_host_that_leads_to_another_host_is_detected_by_the_host_key() {
    let host = Host::default().start().await;
    let other = Host { own_keys: vec![ed25519(9)], ..Host::default() }.start().await;
    let jump = jump(Forwards::Always(other.address)).start().await;
    let host_key = HostKeyCheck::Pinned(public(&ed25519(1)));
    let error = refusal(&Target { host_key, ..through(&host, &jump) }).await;
    assert!(matches!(error, SshError::HostKeyMismatch { .. }), "{error}");
    assert!(!error.is_of_jump_host());
    assert!(other.asked.lock().is_empty(), "{:?}", other.asked.lock());
}

#[tokio::test]
async fn a_refusal_by_the_jump_host_is_reported_with_its_cause() {
    let host = Host::default().start().await;
    let closed = SocketAddr::from((Ipv4Addr::LOCALHOST, CLOSED_PORT));
    let refuses = jump(Forwards::Nothing).start().await;
    let forwards = jump(Forwards::Asked).start().await;
    let other_key = Target { jump_host: Some(jump_host(&forwards, 13, JUMP)), ..host.target() };
    let off = Target { port: closed.port(), ..through(&host, &forwards) };
    for (target, reason, at_fault, says) in [
        (other_key, "JumpHostUnreachable", true, &["relay", "authorized_keys"]),
        (through(&host, &refuses), "JumpHostUnreachable", true, &["administratively prohibited", "AllowTcpForwarding"]),
        (off, "Unreachable", false, &["the connection failed", "firewall"]),
    ] {
        let error = refusal(&target).await;
        assert_eq!((error.reason().as_str(), error.is_of_jump_host()), (reason, at_fault), "{error}");
        let text = error.to_string();
        assert!(says.iter().all(|words| text.contains(words)) && text.contains("127.0.0.1"), "{text}");
    }
    for jump in [refuses, forwards] {
        let asked = jump.asked.lock();
        assert!(asked.iter().all(|a| a.starts_with("publickey relay ") || a.starts_with("connect ")), "{asked:?}");
    }
    assert_eq!(host.connections.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn the_time_limit_holds_for_the_jump_host_and_the_host_together() {
    let host = Host::default().start().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let mute = jump_host_at(address, JUMP_KEY, JUMP);
    let hangs = jump(Forwards::Hangs).start().await;
    // Forwards to a port on which the kernel accepts connections, but nothing answers.
    let to_silence = jump(Forwards::Always(address)).start().await;
    let limit = Duration::from_secs(2);
    for (jump_host, reason) in [
        (mute, "JumpHostUnreachable"),
        (jump_host(&hangs, JUMP_KEY, JUMP), "Unreachable"),
        (jump_host(&to_silence, JUMP_KEY, JUMP), "Unreachable"),
    ] {
        let begin = Instant::now();
        let target = Target { jump_host: Some(jump_host), connect_timeout: limit, ..host.target() };
        let error = refusal(&target).await;
        assert_eq!(error.reason(), reason, "{error}");
        assert!(begin.elapsed() < 2 * limit, "{:?}", begin.elapsed());
    }
}

#[tokio::test]
async fn a_jump_host_that_cannot_be_reached_is_named_with_the_cause() {
    let host = Host::default().start().await;
    let closed = SocketAddr::from((Ipv4Addr::LOCALHOST, CLOSED_PORT));
    let target = Target { jump_host: Some(jump_host_at(closed, JUMP_KEY, JUMP)), ..host.target() };
    let error = refusal(&target).await;
    assert_eq!(error.reason(), "JumpHostUnreachable");
    let text = error.to_string();
    assert!(text.starts_with("the jump host cannot be used") && text.contains("refuses connections"), "{text}");
    assert!(error.is_of_jump_host());
}

#[tokio::test]
async fn a_jump_host_that_breaks_the_connection_is_at_fault_and_not_the_host() {
    let host = Host::default().start().await;
    // The connection breaks during the key exchange, and then during a transfer.
    let early = jump(Forwards::Breaks(100)).start().await;
    let error = refusal(&through(&host, &early)).await;
    assert_eq!(error.reason(), "JumpHostUnreachable", "{error}");

    let late = jump(Forwards::Breaks(1_000_000)).start().await;
    let connection = connect(&through(&host, &late)).await;
    let waits = connection.while_open(std::future::pending::<Result<(), SshError>>());
    let (error, _) = tokio::join!(waits, connection.exec("junk 100", TIME));
    let error = error.unwrap_err();
    assert_eq!(error.reason(), "JumpHostUnreachable", "{error}");

    // The host ends the connection, while the jump host works.
    let jump = jump(Forwards::Asked).start().await;
    let connection = connect(&through(&host, &jump)).await;
    let waits = connection.while_open(std::future::pending::<Result<(), SshError>>());
    let (error, _) = tokio::join!(waits, connection.exec("reboot", TIME));
    assert_eq!(error.unwrap_err().reason(), "Unreachable");
}

#[tokio::test]
async fn the_operator_resolves_the_name_of_a_host_behind_a_jump_host() {
    let (host, jump) = host_and_jump_host().await;
    let target = Target { address: "localhost".to_owned(), ..through(&host, &jump) };
    let connection = connect(&target).await;
    assert_eq!(connection.peer_address(), host.address.ip());
    let asked = jump.asked.lock().clone();
    assert_eq!(asked.last(), Some(&format!("connect 127.0.0.1 {}", host.address.port())), "{asked:?}");

    let target = Target { address: "no such name".to_owned(), ..target };
    assert_eq!(refusal(&target).await.reason(), "Unreachable");
    assert_eq!(jump.asked.lock().len(), asked.len(), "the jump host was asked: {:?}", jump.asked.lock());
}

#[test]
fn a_jump_host_is_never_trusted_at_first_use() {
    for text in ["", "SHA256:", "SHA256:short", "ssh-ed25519"] {
        assert!(JumpHost::new("jump", 22, "relay", identity(&ed25519(1)), text).is_err(), "{text:?}");
    }
}
