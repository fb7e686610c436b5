//! Tests of fetches over SSH from an OpenSSH server.

use api::Reason;
use std::{net::TcpListener, time::Duration};

use gitops::repository::{Access, GitError};
use russh::keys::{HashAlg, PrivateKey, key::safe_rng, ssh_key::LineEnding};
use testbed::{
    deployment::new_key,
    git::{SshServer, ssh::Environment},
};
use zeroize::Zeroizing;

use crate::{
    fetch::{Client, commit, tag},
    origin::{Origin, PATH},
};

fn access(server: &SshServer) -> Access {
    let known_hosts = Some(server.known_hosts());
    Access { identity: Some(pem(server.openssh.key())), known_hosts, ..Access::default() }
}

/// Returns the key in PEM form with carriage returns, as in a Secret that was made on Windows.
fn pem(key: &PrivateKey) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(key.to_openssh(LineEnding::CRLF).unwrap().as_bytes().to_vec())
}

#[test]
fn a_repository_is_fetched_again() {
    let origin = Origin::new();
    origin.git(&["tag", "-a", "v1", "-m", "one"]);
    // Servers that accept the protocol variable use the newer protocol; others use the older one.
    for environment in [Environment::Taken, Environment::Refused] {
        let server = SshServer::with(origin.root(), environment);
        let mut client = Client::new(server.at(PATH), access(&server)).branch("main");
        let first = client.fetch().unwrap();
        assert_eq!(first.commit, origin.head());
        assert_eq!(client.fetch().unwrap().revision, first.revision);
        let second = origin.commit("hosts.yaml", "a: 2\n", "Second");
        assert_eq!(client.fetch().unwrap().commit, second);
        assert_eq!(client.repository.follows(&second, &first.commit).unwrap(), Some(true));
        assert_eq!(client.fetch_as(tag("v1")).unwrap().tag, Some(origin.git(&["rev-parse", "v1"])));
        assert_eq!(client.fetch_as(commit(&first.commit)).unwrap().received, 0);
        assert_eq!(server.commands()[0], format!("git-upload-pack '/{PATH}'"));
    }
}

#[test]
fn an_identity_with_a_passphrase_needs_it() {
    let origin = Origin::new();
    let server = SshServer::new(origin.root());
    let locked = server.openssh.key().encrypt(&mut safe_rng(), "open sesame").unwrap();
    let with = |passphrase: Option<&str>| {
        let password = passphrase.map(|text| Zeroizing::new(text.to_owned()));
        let access = Access { identity: Some(pem(&locked)), password, ..access(&server) };
        Client::new(server.at(PATH), access).fetch()
    };
    with(Some("open sesame")).unwrap();
    for (passphrase, expected) in
        [(None, "add the passphrase as password"), (Some("close sesame"), "password is not its passphrase")]
    {
        let error = with(passphrase).unwrap_err();
        assert_eq!(error.reason(), "CredentialsUnavailable");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn a_server_with_another_host_key_is_refused() {
    let origin = Origin::new();
    let mut server = SshServer::new(origin.root());
    let client = Client::new(server.at(PATH), access(&server));
    client.fetch().unwrap();
    let asked = server.commands().len();
    let known_before = server.known_hosts();
    let first = server.change_host_key();
    let offered = server.openssh.host_key().fingerprint(HashAlg::Sha256).to_string();
    let known_as_nothing = Access { known_hosts: Some("example.com ssh-ed25519 AAAA\n".to_owned()), ..access(&server) };
    for client in [&client, &Client::new(server.at(PATH), known_as_nothing)] {
        let error = client.fetch().unwrap_err();
        assert_eq!((error.reason(), error.stalls()), (Reason::HostKeyUnknown, false));
        assert!(error.to_string().contains(&offered) && error.to_string().contains("[127.0.0.1]:"), "{error}");
    }
    // A damaged line for the server may contain the missing key.
    let damaged = format!("{} ssh-ed25519 AAAA\n{}", server.known_hosts().split(' ').next().unwrap(), known_before);
    let error =
        Client::new(server.at(PATH), Access { known_hosts: Some(damaged), ..access(&server) }).fetch().unwrap_err();
    assert!(error.to_string().contains("line 1 is for this server, and cannot be read"), "{error}");
    let revoked = format!("{}@revoked {}", server.known_hosts(), server.known_hosts());
    let error =
        Client::new(server.at(PATH), Access { known_hosts: Some(revoked), ..access(&server) }).fetch().unwrap_err();
    assert_eq!(error.reason(), "HostKeyUnknown");
    assert_eq!(server.commands().len(), asked);
    server.openssh.set_host_key(first).unwrap();
    client.fetch().unwrap();
}

#[test]
fn an_unknown_identity_is_refused() {
    let origin = Origin::new();
    let server = SshServer::new(origin.root());
    let stranger = Access { identity: Some(pem(&new_key().unwrap())), ..access(&server) };
    let error = Client::new(server.at(PATH), stranger).fetch().unwrap_err();
    assert_eq!((error.reason(), error.stalls()), (Reason::AuthenticationFailed, false));
    assert!(error.to_string().contains("register the key at the server"), "{error}");
    let none = Client::new(server.at(PATH), Access::default()).fetch().unwrap_err();
    assert!(none.to_string().contains("add it"), "{none}");
}

#[test]
fn a_silent_server_times_out() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let access = Access {
        identity: Some(pem(&new_key().unwrap())),
        known_hosts: Some("example.com ssh-ed25519 AAAA\n".to_owned()),
        ..Access::default()
    };
    let mut client = Client::new(format!("ssh://{address}/x"), access.clone());
    client.request.timeout = Duration::from_millis(500);
    assert!(matches!(client.fetch().unwrap_err(), GitError::Timeout { .. }));

    // Nothing listens on port 1.
    let error = Client::new("ssh://127.0.0.1:1/x".to_owned(), access).fetch().unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn a_missing_repository_is_reported() {
    let origin = Origin::new();
    let server = SshServer::new(origin.root());
    for path in ["nothing", "it's;id"] {
        let error = Client::new(server.at(path), access(&server)).fetch().unwrap_err();
        assert_eq!(error.reason(), "SourceInvalid", "{error}");
    }
    assert_eq!(server.commands(), ["git-upload-pack '/nothing'", r"git-upload-pack '/it'\''s;id'"]);
}
