//! Tests of the order of commits, and of the commits that changed entries.

use gitops::{File, hosts::Entry};

use crate::{
    fetch::{Client, served},
    origin::Origin,
    server::Server,
};

#[test]
fn a_commit_follows_its_ancestors_only() {
    let (origin, _server, client) = served();
    let client = client.branch("main");
    let first = origin.head();
    client.fetch().unwrap();
    let second = origin.commit("hosts.yaml", "a: 2\n", "Second");
    client.fetch().unwrap();
    origin.git(&["reset", "-q", "--hard", &first]);
    let other = origin.commit("hosts.yaml", "a: 3\n", "Another second");
    let head = client.fetch().unwrap();
    assert_eq!(head.commit, other);
    let follows = |new: &str, old: &str| client.repository.follows(new, old).unwrap();
    assert_eq!(follows(&second, &first), Some(true));
    assert_eq!(follows(&second, &second), Some(true));
    assert_eq!(follows(&other, &second), Some(false));
    assert_eq!(follows(&first, &second), Some(false));
}

#[test]
fn a_branch_is_followed_over_many_commits() {
    let (origin, server, client) = served();
    let client = client.branch("main");
    origin.more(60, "a");
    let old = client.fetch().unwrap().commit;
    origin.more(80, "b");
    let new = client.fetch().unwrap().commit;
    assert_eq!(client.repository.follows(&new, &old).unwrap(), Some(true));
    // A client that has not fetched the old commit has only a part of the history, which does not include it.
    let stranger = Client::of(&server).branch("main");
    stranger.fetch().unwrap();
    assert_eq!(stranger.repository.follows(&new, &old).unwrap(), None);
}

#[test]
fn many_fetches_leave_few_packs() {
    let (origin, _server, client) = served();
    let client = client.branch("main");
    let mut before = client.fetch().unwrap().commit;
    for n in 0..55 {
        origin.commit("hosts.yaml", format!("a: {n}\n"), "Again");
        let head = client.fetch().unwrap();
        assert_eq!(client.repository.follows(&head.commit, &before).unwrap(), Some(true));
        before = head.commit;
    }
    let packs = std::fs::read_dir(client.dir.path().join("git/objects/pack")).unwrap();
    let packs = packs.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "pack")).count();
    assert!(packs <= 50, "{packs}");
}

/// Reads entries of the form `<name> <address>`, one per line. Returns `None` if a line has another form.
fn read(files: &[File]) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    for file in files {
        for (line, text) in (1..).zip(std::str::from_utf8(&file.bytes).ok()?.lines()) {
            let (name, address) = text.split_once(' ')?;
            let host = api::Host { name: name.to_owned(), address: address.to_owned(), ..api::Host::default() };
            entries.push(Entry { host, file: file.path.clone(), line });
        }
    }
    Some(entries)
}

#[test]
fn the_last_change_of_each_entry_is_found() {
    let origin = Origin::empty(&[]);
    let first = origin.commit("hosts/a.yaml", "one 10.0.0.1\ntwo 10.0.0.2\n", "  First\n\nMore words");
    origin.commit("readme.md", "no inventory", "Elsewhere");
    let third = origin.commit("hosts/a.yaml", "two 10.0.0.22\none 10.0.0.1\n", "Two moves\u{7}");
    origin.commit("hosts/a.yaml", "bad\n", "A mistake");
    let fifth =
        origin.commit("hosts/a.yaml", "two 10.0.0.22\none 10.0.0.1\n four 10.0.0.4\n", "Corrected, and one more");
    let sixth = origin.commit("hosts/b.yaml", "three 10.0.0.3\n", "Three");
    let server = Server::new(origin.root());
    let client = Client::of(&server);
    let head = client.fetch().unwrap();
    let changes = client.repository.last_changes(&head.commit, "hosts", &client.request.limits, &read).unwrap();
    let found: Vec<_> = changes
        .iter()
        .map(|((file, name), commit)| (file.as_str(), name.as_str(), commit.id.as_str(), commit.or_older))
        .collect();
    let expected = [
        // An entry without a name: the whole text is the address.
        ("hosts/a.yaml", "four 10.0.0.4", fifth.as_str(), false),
        ("hosts/a.yaml", "one", first.as_str(), false),
        ("hosts/a.yaml", "two", third.as_str(), false),
        ("hosts/b.yaml", "three", sixth.as_str(), false),
    ];
    assert_eq!(found, expected);
    let commit = &changes[&("hosts/a.yaml".to_owned(), "one".to_owned())];
    assert_eq!((commit.author.as_str(), commit.subject.as_str()), ("Ada Example <ada@example.com>", "First"));
    assert_eq!(commit.time.to_string(), "2026-01-02T02:04:05Z");
    assert_eq!(client.repository.commit(&third).unwrap().subject, "Two moves");
}

#[test]
fn a_change_before_the_fetched_history_is_marked_as_older() {
    let origin = Origin::empty(&[]);
    origin.commit("hosts.yaml", "one 10.0.0.1\n", "First");
    origin.grow(60, |n| vec![("readme.md".to_owned(), n.to_string().into_bytes())]);
    let late = origin.commit("hosts.yaml", "one 10.0.0.1\ntwo 10.0.0.2\n", "Late");
    let server = Server::new(origin.root());
    let client = Client::of(&server);
    let head = client.fetch().unwrap();
    let changes = client.repository.last_changes(&head.commit, "hosts.yaml", &client.request.limits, &read).unwrap();
    let of = |name: &str| &changes[&("hosts.yaml".to_owned(), name.to_owned())];
    assert_eq!((of("two").id.as_str(), of("two").or_older), (late.as_str(), false));
    assert!(of("one").or_older && of("one").id != late);
}

#[test]
fn a_signature_is_separated_from_the_signed_data() {
    let (origin, _server, client) = served();
    let mut client = client.branch("signed");
    let head = origin.head();
    let raw = origin.git(&["cat-file", "commit", &head]);
    let (headers, message) = raw.split_once("\n\n").unwrap();
    let signed =
        format!("{headers}\ngpgsig -----BEGIN SSH SIGNATURE-----\n abc\n -----END SSH SIGNATURE-----\n\n{message}\n");
    origin.write("../signed", signed);
    let file = origin.root().join("signed").display().to_string();
    let id = origin.git(&["hash-object", "-t", "commit", "-w", &file]);
    origin.git(&["branch", "signed", &id]);
    origin.git(&["tag", "-a", "v1", "-m", "words\n-----BEGIN PGP SIGNATURE-----\n\nxyz\n-----END PGP SIGNATURE-----"]);
    let tag = origin.git(&["rev-parse", "v1"]);
    client.fetch().unwrap();
    let commit = client.repository.signed_commit(&id).unwrap();
    assert_eq!(
        commit.signature.as_deref(),
        Some(&b"-----BEGIN SSH SIGNATURE-----\nabc\n-----END SSH SIGNATURE-----\n"[..])
    );
    assert_eq!(String::from_utf8(commit.data).unwrap(), format!("{headers}\n\n{message}\n"));
    client.fetch_as(crate::fetch::tag("v1")).unwrap();
    let signed = client.repository.signed_tag(&tag, Some("v1")).unwrap();
    assert!(signed.signature.unwrap().starts_with(b"-----BEGIN PGP SIGNATURE-----\n\nxyz"));
    assert!(signed.data.ends_with(b"\n\nwords\n"));
    assert_eq!(client.repository.signed_commit(&head).unwrap().signature, None);
    assert_eq!(client.repository.signed_tag(&head, None).unwrap_err().reason(), "GitOperationFailed");
}

#[test]
fn a_reference_to_a_directory_is_refused_with_what_to_name() {
    let (origin, _server, mut client) = served();
    origin.git(&["tag", "tree", "HEAD^{tree}"]);
    let error = client.fetch_as(crate::fetch::tag("tree")).unwrap_err();
    assert_eq!(error.reason(), "GitOperationFailed");
    assert!(error.to_string().contains("neither a commit nor a tag of one: name a commit"), "{error}");
}

/// Covers a pusher who publishes another user's signed tag under another name.
#[test]
fn a_signed_tag_is_valid_only_under_its_own_name() {
    let (origin, _server, mut client) = served();
    origin.git(&["tag", "-a", "v1.0.0", "-m", "words"]);
    let tag = origin.git(&["rev-parse", "v1.0.0"]);
    origin.git(&["update-ref", "refs/tags/v9.9.9", &tag]);
    let head = client.fetch_as(crate::fetch::semver(">=1.0.0")).unwrap();
    assert_eq!((head.name.as_deref(), head.tag.as_ref()), (Some("v9.9.9"), Some(&tag)));
    let error = client.repository.signed_tag(&tag, head.name.as_deref()).unwrap_err();
    assert_eq!(error.reason(), "VerificationError");
    assert!(error.to_string().contains("\"v9.9.9\" was made for the name \"v1.0.0\""), "{error}");
    assert!(client.repository.signed_tag(&tag, Some("v1.0.0")).is_ok());
    // A pool that requests the tag by its id names no reference.
    assert!(client.repository.signed_tag(&tag, None).is_ok());
}
