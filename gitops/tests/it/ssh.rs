//! Over SSH.

use std::{net::TcpListener, time::Duration};

use gitops::repository::{Access, GitError};
use zeroize::Zeroizing;

use crate::{
    fetch::{Client, commit, tag},
    origin::{Origin, PATH},
    sshd::{Environment, Sshd, key, pem},
};

fn access(server: &Sshd) -> Access {
    Access { identity: Some(server.identity()), known_hosts: Some(server.known_hosts()), ..Access::default() }
}

#[test]
fn fetches_and_fetches_again() {
    let origin = Origin::new();
    origin.git(&["tag", "-a", "v1", "-m", "one"]);
    // With the newer protocol, and with the one that a server speaks that takes no wishes.
    for environment in [Environment::Taken, Environment::Refused] {
        let server = Sshd::new(origin.root(), environment);
        let mut client = Client::new(server.at(PATH), access(&server)).branch("main");
        let first = client.fetch().unwrap();
        assert_eq!(first.commit, origin.head());
        assert_eq!(client.fetch().unwrap().revision, first.revision);
        let second = origin.commit("hosts.yaml", "a: 2\n", "Second");
        assert_eq!(client.fetch().unwrap().commit, second);
        assert_eq!(client.repository.follows(&second, &first.commit).unwrap(), Some(true));
        assert_eq!(client.fetch_as(tag("v1")).unwrap().tag, Some(origin.git(&["rev-parse", "v1"])));
        assert_eq!(client.fetch_as(commit(&first.commit)).unwrap().received, 0);
        assert_eq!(server.log.lock().unwrap()[0], format!("git-upload-pack '/{PATH}'"));
    }
}

#[test]
fn an_identity_with_a_passphrase() {
    let origin = Origin::new();
    let server = Sshd::new(origin.root(), Environment::Taken);
    let with = |passphrase: Option<&str>| {
        let password = passphrase.map(|text| Zeroizing::new(text.to_owned()));
        let access = Access { identity: Some(server.locked_identity("open sesame")), password, ..access(&server) };
        Client::new(server.at(PATH), access).fetch()
    };
    with(Some("open sesame")).unwrap();
    for (passphrase, expected) in
        [(None, "add it as password"), (Some("close sesame"), "password is not its passphrase")]
    {
        let error = with(passphrase).unwrap_err();
        assert_eq!(error.reason(), "SecretInvalid");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn a_server_that_is_not_the_known_one() {
    let origin = Origin::new();
    let server = Sshd::new(origin.root(), Environment::Taken);
    let another = key();
    for known_hosts in [server.known_as(another.public_key()), "example.com ssh-ed25519 AAAA\n".to_owned()] {
        let access = Access { known_hosts: Some(known_hosts), ..access(&server) };
        let error = Client::new(server.at(PATH), access).fetch().unwrap_err();
        assert_eq!((error.reason(), error.stalls()), ("HostKeyUnknown", false));
        assert!(error.to_string().contains("SHA256:") && error.to_string().contains("[127.0.0.1]:"), "{error}");
    }
    let revoked = format!("{}@revoked {}", server.known_hosts(), server.known_hosts());
    let error =
        Client::new(server.at(PATH), Access { known_hosts: Some(revoked), ..access(&server) }).fetch().unwrap_err();
    assert_eq!(error.reason(), "HostKeyRevoked");
    assert!(server.log.lock().unwrap().is_empty());
}

#[test]
fn an_identity_that_the_server_does_not_know() {
    let origin = Origin::new();
    let server = Sshd::new(origin.root(), Environment::Taken);
    let stranger = Access { identity: Some(pem(&key())), ..access(&server) };
    let error = Client::new(server.at(PATH), stranger).fetch().unwrap_err();
    assert_eq!((error.reason(), error.stalls()), ("AuthenticationFailed", false));
    assert!(error.to_string().contains("register it there"), "{error}");
    let none = Client::new(server.at(PATH), Access::default()).fetch().unwrap_err();
    assert!(none.to_string().contains("add it"), "{none}");
}

#[test]
fn a_server_that_says_nothing() {
    let origin = Origin::new();
    let server = Sshd::new(origin.root(), Environment::Taken);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ssh://127.0.0.1:{}/x", silent.local_addr().unwrap().port());
    let mut client = Client::new(url, access(&server));
    client.request.timeout = Duration::from_millis(500);
    assert!(matches!(client.fetch().unwrap_err(), GitError::Timeout { .. }));
    drop(silent);
    client.request.timeout = Duration::from_secs(30);
    let error = client.fetch().unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn a_repository_that_is_not_there() {
    let origin = Origin::new();
    let server = Sshd::new(origin.root(), Environment::Taken);
    for path in ["nothing", "it's;id"] {
        let error = Client::new(server.at(path), access(&server)).fetch().unwrap_err();
        assert_eq!(error.reason(), "RepositoryNotFound", "{error}");
    }
}
