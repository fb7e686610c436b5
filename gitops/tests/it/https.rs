//! Tests of fetches over HTTPS.

use api::Reason;
use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use gitops::repository::{Access, GitError, Proxy};
use zeroize::Zeroizing;

use crate::{
    fetch::{Client, access_trusting, branch, commit, semver, served, tag},
    origin::{Origin, PATH},
    proxy,
    server::{Protocol, Reply, Server},
    tls::Authority,
};

#[test]
fn a_reference_resolves_to_a_revision() {
    let origin = Origin::new();
    let first = origin.head();
    origin.git(&["tag", "plain"]);
    origin.git(&["tag", "-a", "v1.2.0", "-m", "one two"]);
    let second = origin.commit("hosts.yaml", "a: 2\n", "Second");
    origin.git(&["tag", "-a", "v2.0.0", "-m", "two"]);
    origin.git(&["tag", "v2.1.0-rc.1"]);
    origin.git(&["checkout", "-q", "-b", "feature/x"]);
    let third = origin.commit("hosts.yaml", "a: 3\n", "Third");
    origin.git(&["checkout", "-q", "main"]);
    let tag_object = origin.git(&["rev-parse", "v1.2.0"]);
    let server = Server::new(origin.root());
    let cases = [
        (api::GitRef::default(), format!("main@sha1:{second}"), None),
        (branch("feature/x"), format!("feature/x@sha1:{third}"), None),
        (tag("plain"), format!("plain@sha1:{first}"), None),
        (tag("v1.2.0"), format!("v1.2.0@sha1:{first}"), Some(tag_object.clone())),
        (semver("~1.2"), format!("v1.2.0@sha1:{first}"), Some(tag_object)),
        (commit(&first), format!("sha1:{first}"), None),
    ];
    // Each reference is fetched into a repository of its own, and into a shared one.
    let mut shared = Client::of(&server);
    for (reference, revision, tag) in cases {
        let head = Client::of(&server).fetch_as(reference.clone()).unwrap();
        assert_eq!((head.revision.as_str(), head.tag.as_deref()), (revision.as_str(), tag.as_deref()));
        let head = shared.fetch_as(reference).unwrap();
        assert_eq!((head.revision, head.tag), (revision.clone(), tag));
        assert_eq!(shared.files(&head.commit, "hosts.yaml").unwrap().len(), 1);
    }
    let head = shared.fetch_as(semver(">=1.0.0")).unwrap();
    assert_eq!(head.revision, format!("v2.0.0@sha1:{second}"));
    for missing in [branch("gone"), tag("gone"), semver(">=3"), commit(&"ab".repeat(20))] {
        let error = shared.fetch_as(missing).unwrap_err();
        assert!(matches!(error, GitError::RevisionNotFound { .. }), "{error}");
    }
}

#[test]
fn repositories_with_sha_256_ids_are_fetched() {
    let origin = Origin::empty(&["--object-format=sha256"]);
    let first = origin.commit("hosts.yaml", "a: 1\n", "First");
    let server = Server::new(origin.root());
    let client = Client::of(&server);
    let head = client.fetch().unwrap();
    assert_eq!(head.revision, format!("main@sha256:{first}"));
    assert_eq!(client.files(&first, "").unwrap(), [("hosts.yaml".to_owned(), "a: 1\n".to_owned())]);
    let second = origin.commit("hosts.yaml", "a: 2\n", "Second");
    assert_eq!(client.fetch().unwrap().commit, second);
}

#[test]
fn nothing_is_fetched_twice() {
    let (_origin, server, client) = served();
    let mut client = client.branch("main");
    let first = client.fetch().unwrap();
    let asked = server.asked();
    let again = client.fetch().unwrap();
    assert_eq!(again.revision, first.revision);
    // One request for the handshake, and one for the branch.
    assert_eq!(server.asked() - asked, 2);
    assert!(again.received < 2048, "{}", again.received);
    // A commit is immutable: no request is sent.
    let asked = server.asked();
    assert_eq!(client.fetch_as(commit(&first.commit)).unwrap().received, 0);
    assert_eq!(server.asked(), asked);
}

#[test]
fn a_small_change_of_a_large_repository_transfers_little() {
    let (origin, _server, client) = served();
    let client = client.branch("main");
    let noise = |seed: u64| -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[0]
        };
        (0..40_000).map(|_| next()).collect()
    };
    origin.grow(60, |n| {
        let hosts = format!("a: {n}\n").into_bytes();
        vec![(format!("noise/{n}"), noise(u64::from(n))), ("hosts.yaml".to_owned(), hosts)]
    });
    let first = client.fetch().unwrap();
    assert!(first.received > 2_000_000, "{}", first.received);
    for n in 0..3 {
        let commit = origin.commit("hosts.yaml", format!("b: {n}\n"), "One line");
        let head = client.fetch().unwrap();
        assert_eq!(head.commit, commit);
        assert!(head.received < 64 << 10, "{}", head.received);
        assert_eq!(client.files(&commit, "").unwrap(), [("hosts.yaml".to_owned(), format!("b: {n}\n"))]);
    }
}

#[test]
fn the_older_protocol_is_supported() {
    let origin = Origin::new();
    // The server uses the older protocol, as behind a proxy that drops unknown headers.
    let server = Server::with(origin.root(), false, |_| Some(Reply::Old));
    let client = Client::of(&server).branch("main");
    client.fetch().unwrap();
    let commit = origin.commit("hosts.yaml", "a: 2\n", "Second");
    assert_eq!(client.fetch().unwrap().commit, commit);
    // The server sends a commit by its ID only if a branch or tag points to it.
    let mut client = Client::of(&server);
    assert_eq!(client.fetch_as(crate::fetch::commit(&commit)).unwrap().commit, commit);
    origin.git(&["reset", "-q", "--hard", "HEAD~1"]);
    let error = Client::of(&server).fetch_as(crate::fetch::commit(&commit)).unwrap_err();
    assert!(matches!(error, GitError::RevisionNotFound { .. }), "{error}");
}

#[test]
fn a_server_without_shallow_clones_is_supported() {
    let origin = Origin::new();
    let first = origin.head();
    origin.more(60, "b");
    for protocol in [Protocol::Older, Protocol::Newer] {
        let server = Server::with(origin.root(), false, move |_| Some(Reply::Whole(protocol)));
        let client = Client::of(&server).branch("main");
        let head = client.fetch().unwrap();
        assert_eq!(client.repository.follows(&head.commit, &first).unwrap(), Some(true), "{protocol:?}");
        let next = origin.commit("hosts.yaml", format!("{protocol:?}: 1\n"), "Next");
        assert_eq!(client.fetch().unwrap().commit, next);
    }
}

#[test]
fn an_old_tag_is_fetched_without_the_history_between() {
    let (origin, _server, mut client) = served();
    origin.more(11, "a");
    origin.git(&["tag", "-a", "v1", "-m", "one"]);
    origin.more(109, "b");
    let far = origin.git(&["rev-parse", "v1^{commit}"]);
    let head = client.fetch_as(branch("main")).unwrap();
    assert_eq!(client.repository.follows(&head.commit, &far).unwrap(), None);
    assert_eq!(client.fetch_as(tag("v1")).unwrap().commit, far);
    assert_eq!(client.files(&far, "").unwrap()[0].1, "a: 10\n");
    assert_eq!(client.repository.follows(&far, &head.commit).unwrap(), Some(false));
    let next = origin.commit("hosts.yaml", "c: 1\n", "Next");
    let after = client.fetch_as(branch("main")).unwrap();
    assert_eq!(after.commit, next);
    assert!(after.received < 8 << 10, "{}", after.received);
    assert_eq!(client.repository.follows(&next, &head.commit).unwrap(), Some(true));
}

fn basic(server: &Server, user: &str, password: &str) -> Access {
    let password = Some(Zeroizing::new(password.to_owned()));
    Access { username: Some(user.to_owned()), password, ..access_trusting(server) }
}

#[test]
fn basic_and_bearer_authentication_are_supported() {
    let origin = Origin::new();
    let guarded = |expected: String| {
        Server::with(origin.root(), false, move |asked| {
            let is_allowed = asked.header("authorization") == Some(&expected);
            (!is_allowed).then(|| Reply::Full(401, vec![("WWW-Authenticate", "Basic".to_owned())], Vec::new()))
        })
    };
    let server = guarded(format!("Basic {}", STANDARD.encode("ada:s3cret")));
    Client::new(server.url(), basic(&server, "ada", "s3cret")).fetch().unwrap();
    let error = Client::new(server.url(), basic(&server, "ada", "wr0ng")).fetch().unwrap_err();
    assert_eq!((error.reason(), error.stalls()), (Reason::AuthenticationFailed, false));
    assert!(error.to_string().contains("credentials of the Secret") && !error.to_string().contains("wr0ng"), "{error}");
    let error = Client::of(&server).fetch().unwrap_err();
    assert!(error.to_string().contains("set inventory.git.secretRef"), "{error}");
    let server = guarded("Bearer t0ken".to_owned());
    let access = Access { bearer: Some(Zeroizing::new("t0ken".to_owned())), ..access_trusting(&server) };
    Client::new(server.url(), access).fetch().unwrap();
}

#[test]
fn client_certificates_are_sent() {
    let origin = Origin::new();
    let server = Server::with(origin.root(), true, |_| None);
    let with = |authority: &Authority| {
        let signed = authority.sign("ada");
        let pair = (signed.certificate.into_bytes(), Zeroizing::new(signed.key.into_bytes()));
        Client::new(server.url(), Access { client_certificate: Some(pair), ..access_trusting(&server) })
    };
    with(&server.authority).fetch().unwrap();
    for client in [with(&Authority::new()), Client::of(&server)] {
        let error = client.fetch().unwrap_err();
        assert!(error.to_string().contains("check tls.crt and tls.key"), "{error}");
    }
}

#[test]
fn a_certificate_of_an_unknown_authority_is_refused() {
    let origin = Origin::new();
    let server = Server::new(origin.root());
    let other = Access { authority: Some(Authority::new().pem.into_bytes()), ..Access::default() };
    for access in [Access::default(), other] {
        let error = Client::new(server.url(), access).fetch().unwrap_err();
        assert_eq!((error.reason(), error.stalls()), (Reason::CertificateInvalid, false));
        assert!(error.to_string().contains("ca.crt"), "{error}");
    }
    // The right authority signed the certificate, but for another name.
    let url = server.url().replace("localhost", "127.0.0.1");
    let error = Client::new(url, access_trusting(&server)).fetch().unwrap_err();
    assert!(error.to_string().contains("not valid for this host"), "{error}");
    assert_eq!(server.asked(), 0);
}

#[test]
fn a_proxy_with_credentials_is_used() {
    let origin = Origin::new();
    let server = Server::new(origin.root());
    let through = |proxy: &proxy::Proxy, password: &str| {
        let (username, password) = (Some("ada".to_owned()), Some(Zeroizing::new(password.to_owned())));
        let settings = Proxy { address: proxy.address(), username, password, except: None };
        Client::new(server.url(), Access { proxy: Some(settings), ..access_trusting(&server) })
    };
    let proxy = proxy::Proxy::new(&format!("Basic {}", STANDARD.encode("ada:pr0xy")));
    through(&proxy, "pr0xy").fetch().unwrap();
    assert!(proxy.connections() > 0);
    let error = through(&proxy, "wr0ng").fetch().unwrap_err();
    assert_eq!(error.reason(), "AuthenticationFailed");
    assert!(error.to_string().contains("proxy") && !error.to_string().contains("wr0ng"), "{error}");
}

/// Checks proxy settings in the format of `HTTPS_PROXY` and `NO_PROXY`.
#[test]
fn the_proxy_of_the_operator_is_used() {
    let origin = Origin::new();
    let server = Server::new(origin.root());
    let proxy = proxy::Proxy::new(&format!("Basic {}", STANDARD.encode("ada:pr0xy")));
    let address = proxy.address().replace("http://", "http://ada:pr0xy@");
    let through = |except: &str| {
        let settings = Proxy::from_settings(&address, Some(except)).unwrap();
        Client::new(server.url(), Access { proxy: settings, ..access_trusting(&server) })
    };
    through(".svc,localhost").fetch().unwrap();
    assert_eq!(proxy.connections(), 0, "the proxy was used for a server that NO_PROXY names");
    through(".svc,.example.com").fetch().unwrap();
    assert!(proxy.connections() > 0);
}

#[test]
fn redirects_on_the_same_server_are_followed() {
    let origin = Origin::new();
    let server = Server::with(origin.root(), false, |asked| {
        let tail = asked.path.strip_prefix("/moved/")?;
        let to = format!("/{PATH}/{tail}?{}", asked.query);
        Some(Reply::Full(301, vec![("Location", to)], Vec::new()))
    });
    let client = Client::new(server.at("moved"), basic(&server, "ada", "s3cret"));
    assert_eq!(client.fetch().unwrap().commit, origin.head());
}

#[test]
fn redirects_to_other_servers_are_refused() {
    let origin = Origin::new();
    let elsewhere = Server::new(origin.root());
    for target in [
        elsewhere.at(PATH),
        format!("http://localhost:{}/{PATH}", elsewhere.port),
        "https://user:pw@127.0.0.1/x".into(),
    ] {
        let to = target.clone();
        let server = Server::with(origin.root(), false, move |asked| {
            let tail = asked.path.strip_prefix("/moved")?;
            Some(Reply::Full(302, vec![("Location", format!("{to}{tail}?{}", asked.query))], Vec::new()))
        });
        let error = Client::new(server.at("moved"), basic(&server, "ada", "s3cret")).fetch().unwrap_err();
        assert_eq!((error.reason(), error.stalls()), (Reason::GitOperationFailed, true));
        assert!(!error.to_string().contains("pw"), "{error}");
    }
    assert_eq!(elsewhere.asked(), 0);
}

#[test]
fn a_missing_repository_or_branch_is_reported() {
    let origin = Origin::new();
    let server = Server::new(origin.root());
    let error = Client::new(server.at("nothing.git"), access_trusting(&server)).fetch().unwrap_err();
    assert_eq!((error.reason(), error.stalls()), (Reason::SourceInvalid, false));
    origin.git(&["branch", "soon-gone"]);
    let client = Client::of(&server).branch("soon-gone");
    let head = client.fetch().unwrap();
    origin.git(&["branch", "-D", "soon-gone"]);
    let error = client.fetch().unwrap_err();
    assert_eq!(error.to_string(), "the repository has no branch \"soon-gone\": correct inventory.git.ref, or push it");
    // Fetched files can still be read.
    assert!(client.files(&head.commit, "hosts.yaml").is_ok());
    let empty = Origin::empty(&[]);
    let server = Server::new(empty.root());
    assert_eq!(Client::of(&server).fetch().unwrap_err().reason(), "SourceInvalid");
}

#[test]
fn an_unavailable_server_is_reported() {
    let origin = Origin::new();
    let server = Server::new(origin.root());
    let mut client = Client::of(&server);
    client.request.timeout = Duration::from_secs(5);
    // The number 407 in a URL does not mean that a proxy requires credentials.
    for url in ["https://localhost:1/x", "https://localhost:1/407.git"] {
        client.request.url = url.to_owned();
        let error = client.fetch().unwrap_err();
        assert_eq!((error.reason(), error.stalls()), (Reason::GitOperationFailed, false));
        assert!(error.to_string().contains("refused"), "{error}");
    }
    client.request.url = server.url();
    for status in [429, 500, 503] {
        let server = Server::with(origin.root(), false, move |_| Some(Reply::Full(status, Vec::new(), Vec::new())));
        let error = Client::of(&server).fetch().unwrap_err();
        assert!(error.to_string().contains(&status.to_string()), "{error}");
    }
    let server = Server::with(origin.root(), false, |_| {
        Some(Reply::Full(200, vec![("Content-Type", "text/html".to_owned())], b"<form>log in</form>".to_vec()))
    });
    let error = Client::of(&server).fetch().unwrap_err();
    assert!(error.to_string().contains("check the URL"), "{error}");
}
