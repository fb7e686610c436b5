//! Tests against real repositories: a revision is used only if its signature and its place in the history allow it.

use std::{collections::BTreeMap, process::Command, sync::atomic::AtomicBool, time::Duration};

use api::{GitRef, GitSource, GitVerify, SecretRef, VerifyMode};
use gitops::{
    Limits,
    repository::{Access, Repository, Request},
};
use tempfile::TempDir;
use testbed::git::{Origin, server::Server};

use super::evaluate::{Task, evaluate};
use wnp_core::inventory::{HostList, SourceError};

const LIST: &str = "- {name: win-1, address: 127.0.0.1}\n";

/// Repository with tags signed by a user, its server, and the operator's copy.
struct Fixture {
    origin: Origin,
    server: Server,
    _dir: TempDir,
    repository: Repository,
    keys: BTreeMap<String, Vec<u8>>,
    git: GitSource,
}

impl Fixture {
    fn new() -> Self {
        let (origin, dir) = (Origin::new(), TempDir::new().unwrap());
        let key = origin.root().join("signer");
        let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status().unwrap();
        assert!(made.success());
        for (name, value) in [("gpg.format", "ssh"), ("user.signingkey", key.to_str().unwrap())] {
            origin.git(&["config", name, value]);
        }
        let public = std::fs::read(key.with_extension("pub")).unwrap();
        let server = Server::new(origin.root());
        let git = GitSource {
            url: server.url(),
            path: Some("halls".into()),
            reference: Some(GitRef { semver: Some(">=1".into()), ..GitRef::default() }),
            verify: Some(GitVerify { mode: Some(VerifyMode::Tag), secret_ref: SecretRef { name: "signers".into() } }),
            ..GitSource::default()
        };
        let repository = Repository::open(dir.path()).unwrap();
        Self { origin, server, _dir: dir, repository, keys: BTreeMap::from([("a.sshpub".into(), public)]), git }
    }

    fn tag(&self, name: &str) {
        self.origin.commit("halls/a.yaml", LIST, name);
        self.origin.git(&["tag", "-s", "-m", name, name]);
    }

    /// Evaluates the server's repository while `before` is in use.
    fn evaluate(&self, before: Option<&str>) -> Result<HostList, SourceError> {
        let access = Access { authority: Some(self.server.authority.pem.clone().into_bytes()), ..Access::default() };
        let request = Request {
            url: self.git.url.clone(),
            reference: self.git.reference.clone().unwrap(),
            access,
            timeout: Duration::from_secs(30),
            limits: Limits::default(),
        };
        let head = self.repository.fetch(&request, &AtomicBool::new(false)).unwrap();
        let task = Task { git: self.git.clone(), head, before: before.map(Into::into), keys: Some(self.keys.clone()) };
        evaluate(&self.repository, &task)
    }
}

fn revision(list: &HostList) -> String {
    list.status.as_ref().and_then(|s| s.revision.clone()).unwrap()
}

#[test]
fn a_signed_tag_counts_under_its_own_name_and_no_version_goes_back() {
    let fixture = Fixture::new();
    fixture.tag("v1.0.0");
    let first = fixture.evaluate(None).unwrap();
    assert!(revision(&first).starts_with("v1.0.0@sha1:"), "{:?}", first.status);
    assert!(first.status.as_ref().is_some_and(|s| s.signer.is_some()));
    fixture.tag("v1.1.0");
    let second = revision(&fixture.evaluate(Some(&revision(&first))).unwrap());
    assert!(second.starts_with("v1.1.0@"), "{second}");

    // A user with push access publishes a signed tag under the name of a higher version.
    let old = fixture.origin.git(&["rev-parse", "v1.0.0"]);
    fixture.origin.git(&["update-ref", "refs/tags/v9.0.0", &old]);
    let refused = fixture.evaluate(Some(&second)).unwrap_err();
    assert_eq!(refused.reason, "VerificationError", "{}", refused.message);
    fixture.origin.git(&["update-ref", "-d", "refs/tags/v9.0.0"]);

    // A tag without a signature, with a higher version.
    fixture.origin.git(&["tag", "-a", "-m", "mine", "v3.0.0"]);
    assert_eq!(fixture.evaluate(Some(&second)).unwrap_err().reason, "VerificationError");
    fixture.origin.git(&["tag", "-d", "v3.0.0"]);

    // The server hides the newest tag, or a user deletes it.
    fixture.origin.git(&["tag", "-d", "v1.1.0"]);
    let refused = fixture.evaluate(Some(&second)).unwrap_err();
    assert_eq!(refused.reason, "HistoryRewritten", "{}", refused.message);
    assert!(refused.stalls && refused.message.contains("allowNonFastForward"), "{}", refused.message);
}

#[test]
fn tag_and_commit_must_be_signed_if_the_pool_asks_for_both() {
    let mut fixture = Fixture::new();
    fixture.git.verify.as_mut().unwrap().mode = Some(VerifyMode::TagAndHead);
    fixture.tag("v1.0.0");
    assert_eq!(fixture.evaluate(None).unwrap_err().reason, "VerificationError", "the commit is not signed");
    fixture.origin.git(&["config", "commit.gpgsign", "true"]);
    fixture.tag("v1.1.0");
    assert!(revision(&fixture.evaluate(None).unwrap()).starts_with("v1.1.0@"));
    fixture.origin.commit("halls/a.yaml", LIST, "v1.2.0");
    fixture.origin.git(&["tag", "-a", "-m", "mine", "v1.2.0"]);
    assert_eq!(fixture.evaluate(None).unwrap_err().reason, "VerificationError", "the tag is not signed");
}
