//! Tests of slow, silent and malicious servers, and of content that is refused.

use api::Reason;
use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use gitops::{Limits, repository::GitError};

use crate::{
    fetch::{Client, branch, served},
    origin::Origin,
    server::{Reply, Server},
};

/// Tolerance for the duration of immediate steps on a busy machine.
const LITTLE: Duration = Duration::from_secs(5);

#[test]
fn a_silent_or_slow_server_times_out() {
    let origin = Origin::new();
    let half =
        b"HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-advertisement\r\n\r\n001e# serv".to_vec();
    let rules: [fn(&[u8]) -> Reply; 3] =
        [|_| Reply::Stall(Vec::new()), |half| Reply::Stall(half.to_vec()), |_| Reply::Drip(Duration::from_millis(50))];
    for rule in rules {
        let half = half.clone();
        let server = Server::with(origin.root(), false, move |_| Some(rule(&half)));
        let mut client = Client::of(&server);
        client.request.timeout = Duration::from_secs(1);
        let began = Instant::now();
        let error = client.fetch().unwrap_err();
        assert!(matches!(error, GitError::Timeout { .. }), "{error}");
        assert!(!error.stalls() && began.elapsed() < Duration::from_secs(1) + LITTLE);
    }
}

#[test]
fn a_stop_ends_a_fetch() {
    let origin = Origin::new();
    let server = Server::with(origin.root(), false, |_| Some(Reply::Stall(Vec::new())));
    let client = Client::of(&server);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let fetch = scope.spawn(|| client.repository.fetch(&client.request, &stop).map(|_| ()));
        while server.asked() == 0 {
            thread::yield_now();
        }
        let began = Instant::now();
        stop.store(true, Ordering::SeqCst);
        assert!(matches!(fetch.join().unwrap(), Err(GitError::Stopped)));
        assert!(began.elapsed() < LITTLE);
    });
}

#[test]
fn a_repository_above_the_byte_limit_is_refused() {
    let (origin, _server, mut client) = served();
    // Random data, which cannot be compressed.
    let mut state = 1_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    let noise: Vec<u8> = (0..3 << 20).map(|_| next()).collect();
    origin.commit("noise", noise, "Noise");
    client.request.limits.transfer = 1 << 20;
    let error = client.fetch().unwrap_err();
    assert_eq!((error.reason(), error.stalls()), (Reason::GitOperationFailed, true));
    client.request.limits.transfer = Limits::default().transfer;
    client.fetch().unwrap();
}

#[test]
fn too_many_names_of_branches_are_refused() {
    let origin = Origin::new();
    let server = Server::with(origin.root(), false, |asked| {
        let listing = asked.body.windows(7).any(|word| word == b"ls-refs");
        let line = format!("{:04x}{} refs/heads/{}\n", 4 + 40 + 1 + 11 + 200 + 1, "ab".repeat(20), "x".repeat(200));
        let kind = "application/x-git-upload-pack-result".to_owned();
        listing.then(|| Reply::Full(200, vec![("Content-Type", kind)], line.repeat(140_000).into_bytes()))
    });
    let error = Client::of(&server).fetch().unwrap_err();
    assert_eq!((error.reason(), error.stalls()), (Reason::GitOperationFailed, true), "{error}");
    assert!(error.to_string().contains("names of branches and tags"), "{error}");
}

#[test]
fn a_decompression_bomb_is_refused() {
    let (origin, _server, client) = served();
    origin.commit("hosts.yaml", vec![0; 65 << 20], "Bomb");
    let error = client.fetch().unwrap_err();
    assert_eq!((error.reason(), error.stalls()), (Reason::GitOperationFailed, true), "{error}");
    // Nothing remains on disk.
    assert_eq!(fs::read_dir(client.dir.path()).unwrap().count(), 0);
    // A commit without the file still has it in its history.
    origin.commit("hosts.yaml", "a: 2\n", "Without");
    assert_eq!(client.fetch().unwrap_err().reason(), "GitOperationFailed");
    origin.git(&["reset", "-q", "--hard", "HEAD~2"]);
    assert_eq!(client.fetch().unwrap().commit, origin.head());
}

#[test]
fn files_above_the_limits_are_refused() {
    let (origin, _server, mut client) = served();
    origin.write("large/a.yaml", vec![b'a'; 9 << 20]);
    for n in 0..5 {
        origin.write(&format!("many/{n}.yaml"), vec![b'a'; 1000]);
    }
    let commit = origin.commit_all("Large and many");
    client.fetch().unwrap();
    let error = client.files(&commit, "large").unwrap_err();
    assert_eq!((error.reason(), error.stalls()), (Reason::InvalidInventory, true));
    assert!(error.to_string().starts_with("large/a.yaml is too large"), "{error}");
    assert_eq!(client.files(&commit, "many").unwrap().len(), 5);
    client.request.limits.total = 4999;
    assert!(client.files(&commit, "many").unwrap_err().to_string().starts_with("many/4.yaml"));
    client.request.limits = Limits { files: 4, ..Limits::default() };
    assert_eq!(client.files(&commit, "many").unwrap_err().reason(), "InvalidInventory");
}

#[test]
fn a_bomb_of_nested_directories_is_refused() {
    let (origin, _server, client) = served();
    let client = client.branch("bomb");
    let mut tree = origin.git(&["rev-parse", "HEAD^{tree}"]);
    for _ in 0..10 {
        let mut raw = Vec::new();
        for n in 0..10 {
            raw.extend(format!("40000 d{n}\0").into_bytes());
            raw.extend(hex::decode(&tree).unwrap());
        }
        origin.write("../tree", raw);
        tree = origin.git(&["hash-object", "-w", "-t", "tree", "../tree"]);
    }
    let commit = origin.git(&["commit-tree", &tree, "-m", "Ten to the tenth"]);
    origin.git(&["branch", "bomb", &commit]);
    client.fetch().unwrap();
    let began = Instant::now();
    let error = client.files(&commit, "").unwrap_err();
    assert_eq!(error.reason(), "InvalidInventory");
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn links_submodules_and_lfs_pointers_are_refused() {
    let (origin, _server, client) = served();
    origin.write("plain/a.yaml", "a: 1\n");
    origin.write("plain/deep/er/b.yml", "b: 1\n");
    origin.write("plain/c.json", "{}");
    origin.write("plain/readme.md", "no");
    std::os::unix::fs::symlink("/etc/passwd", origin.work().join("link.yaml")).unwrap();
    std::os::unix::fs::symlink("plain", origin.work().join("folder")).unwrap();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
    origin.write("lfs/hosts.yaml", pointer);
    let module = origin.head();
    origin.git(&["add", "-A"]);
    origin.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{module},sub/module")]);
    origin.git(&["commit", "-q", "-m", "All sorts"]);
    let commit = origin.head();
    client.fetch().unwrap();
    let paths =
        |path| client.files(&commit, path).map(|files| files.into_iter().map(|(path, _)| path).collect::<Vec<_>>());
    assert_eq!(paths("plain").unwrap(), ["plain/a.yaml", "plain/c.json", "plain/deep/er/b.yml"]);
    assert_eq!(paths("./plain/deep/").unwrap(), ["plain/deep/er/b.yml"]);
    assert_eq!(paths("plain/readme.md").unwrap(), ["plain/readme.md"]);
    let cases = [
        ("../x", "SourceInvalid", "../x"),
        ("plain/../../x", "SourceInvalid", ".."),
        ("gone", "SourceInvalid", "gone"),
        ("plain/a.yaml/b", "SourceInvalid", "plain/a.yaml/b"),
        ("link.yaml", "InvalidInventory", "link.yaml"),
        ("folder/a.yaml", "InvalidInventory", "folder"),
        ("", "InvalidInventory", "folder"),
        ("sub", "InvalidInventory", "sub/module"),
        ("sub/module/x", "InvalidInventory", "sub/module"),
        ("lfs", "InvalidInventory", "lfs/hosts.yaml"),
    ];
    for (path, reason, named) in cases {
        let error = client.files(&commit, path).unwrap_err();
        assert_eq!((error.reason().as_str(), error.stalls()), (reason, true), "{path}");
        assert!(error.to_string().contains(named), "{path}: {error}");
    }
    assert_eq!(client.files(&"ab".repeat(20), "").unwrap_err().reason(), "GitOperationFailed");
}

#[test]
fn names_that_look_like_other_paths_are_refused() {
    let (origin, _server, client) = served();
    let client = client.branch("main");
    let file = origin.git(&["rev-parse", "HEAD:hosts.yaml"]);
    let directory = |kind: &str, name: &str, id: &str| {
        origin.write("../tree", [format!("{kind} {name}\0").as_bytes(), &hex::decode(id).unwrap()].concat());
        origin.git(&["hash-object", "-w", "--literally", "-t", "tree", "../tree"])
    };
    let inner = directory("100644", "a.yaml", &file);
    let cases = [
        (directory("40000", "..", &inner), "halls/.."),
        (directory("40000", ".", &inner), "halls/."),
        (directory("100644", "../a.yaml", &file), "halls/../a.yaml"),
        (directory("100644", "b/../../a.yaml", &file), "halls/b/../../a.yaml"),
        (directory("100644", "b\n.yaml", &file), "halls/b\n.yaml"),
        (directory("40000", "b\n", &inner), "halls/b\n/a.yaml"),
    ];
    let commits = cases.map(|(halls, named)| {
        let commit = origin.git(&["commit-tree", &directory("40000", "halls", &halls), "-p", "main", "-m", "Climbs"]);
        origin.git(&["update-ref", "refs/heads/main", &commit]);
        (commit, named)
    });
    client.fetch().unwrap();
    for (commit, named) in commits {
        for path in ["", "halls"] {
            let error = client.files(&commit, path).unwrap_err();
            assert_eq!((error.reason(), error.stalls()), (Reason::InvalidInventory, true), "{named}");
            assert!(error.to_string().contains(&format!("{named:?}")), "{named}: {error}");
        }
    }
}

#[test]
fn malformed_responses_are_errors() {
    let origin = Origin::new();
    let hello = b"001e# service=git-upload-pack\n0000000eversion 2\n000cls-refs\n000bfetch\n0000";
    let advertised = |body: Vec<u8>| {
        Reply::Full(200, vec![("Content-Type", "application/x-git-upload-pack-advertisement".to_owned())], body)
    };
    let answered = |body: Vec<u8>| {
        Reply::Full(200, vec![("Content-Type", "application/x-git-upload-pack-result".to_owned())], body)
    };
    let id = "ab".repeat(20);
    let line = |text: String| format!("{:04x}{text}", text.len() + 4).into_bytes();
    let refs = [line(format!("{id} refs/heads/main\n")), b"0000".to_vec()].concat();
    let pack = |bytes: &[u8]| {
        let mut data = b"\x01".to_vec();
        data.extend_from_slice(bytes);
        let mut packet = format!("{:04x}", data.len() + 4).into_bytes();
        packet.extend(data);
        [line("packfile\n".to_owned()), packet, b"0000".to_vec()].concat()
    };
    let packs = [
        Vec::new(),
        b"0000".to_vec(),
        b"ffff".to_vec(),
        b"zzzz".to_vec(),
        line("nonsense\n".to_owned()),
        line("ERR upload-pack: \u{1b}[31mno".to_owned()),
        pack(b""),
        pack(b"PACK\0\0\0\x02\xff\xff\xff\xff"),
        pack(b"PACK\0\0\0\x02\0\0\0\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
        pack(b"PACK\0\0\0\x02\0\0\0\0\x02\x9d\x08\x82;\xd8\xa8\xea\xb5\x10\xadj\xc7\\\x82<\xfd>\xd3\x1e"),
    ];
    let cases = [
        (b"".to_vec(), refs.clone(), Vec::new()),
        (b"0000".to_vec(), refs.clone(), Vec::new()),
        (vec![b'x'; 9999], refs.clone(), Vec::new()),
    ]
    .into_iter()
    .chain(
        [b"".to_vec(), b"xxxx".to_vec(), line("no ref\n".to_owned()), line(format!("{id} refs/../../etc/passwd\n"))]
            .map(|refs| (hello.to_vec(), refs, Vec::new())),
    )
    .chain(packs.map(|pack| (hello.to_vec(), refs.clone(), pack)));
    for (hello, refs, pack) in cases {
        let said = format!("{hello:?} {refs:?} {pack:?}");
        let server = Server::with(origin.root(), false, move |asked| {
            Some(match asked.method.as_str() {
                "GET" => advertised(hello.clone()),
                _ if asked.body.windows(7).any(|w| w == b"ls-refs") => answered(refs.clone()),
                _ => answered(pack.clone()),
            })
        });
        let mut client = Client::of(&server).branch("main");
        client.request.timeout = Duration::from_secs(10);
        let error = client.fetch().expect_err(&said);
        assert!(!error.to_string().contains('\u{1b}') && error.to_string().len() < 600, "{said}: {error}");
        assert!(!matches!(error, GitError::Timeout { .. }), "{said}: {error}");
    }
}

#[test]
fn a_damaged_repository_is_fetched_again() {
    let (origin, _server, client) = served();
    let mut client = client.branch("main");
    let first = client.fetch().unwrap();
    let git = client.dir.path().join("git");
    let packs =
        || fs::read_dir(git.join("objects/pack")).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    // Each file in turn is emptied.
    let files = [packs(), vec![git.join("HEAD"), git.join("config"), git.join("fetched.json")]].concat();
    assert!(files.len() >= 5, "{files:?}");
    for n in 0..files.len() {
        let path = [packs(), vec![git.join("HEAD"), git.join("config"), git.join("fetched.json")]].concat()[n].clone();
        let _ = fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644));
        fs::write(&path, b"").unwrap();
        client.repository = gitops::repository::Repository::open(client.dir.path()).unwrap();
        // The first fetch may only detect the damage, and the second one repairs it.
        let _ = client.fetch().map(|head| client.files(&head.commit, ""));
        client.fetch().unwrap();
        assert_eq!(client.files(&first.commit, "").unwrap().len(), 1, "{}", path.display());
    }
    // The objects that the next pack builds on are removed.
    let base: Vec<_> = packs();
    let large: String = (0..2000).map(|n| format!("host-{n}\n")).collect::<Vec<_>>().concat();
    origin.commit("hosts.yaml", &large, "Large");
    client.fetch().unwrap();
    let second: Vec<_> = packs().into_iter().filter(|path| !base.contains(path)).collect();
    origin.commit("readme.md", "a", "Elsewhere");
    client.fetch().unwrap();
    for path in second {
        fs::remove_file(path).unwrap();
    }
    let last = origin.commit("hosts.yaml", format!("{large}one more\n"), "One more");
    assert_eq!(client.fetch().unwrap().commit, last);
    assert_eq!(client.files(&last, "hosts.yaml").unwrap()[0].1.len(), large.len() + 9);
    // A crash during a fetch.
    let half = git.join("objects/pack/.tmpABCDEF");
    fs::write(&half, b"PACK").unwrap();
    client.repository = gitops::repository::Repository::open(client.dir.path()).unwrap();
    assert!(!half.exists());
    // A crash during the replacement of the repository.
    fs::rename(&git, client.dir.path().join("old")).unwrap();
    fs::create_dir(client.dir.path().join("new")).unwrap();
    client.repository = gitops::repository::Repository::open(client.dir.path()).unwrap();
    assert_eq!(client.files(&first.commit, "").unwrap().len(), 1);
}

#[test]
fn names_of_a_server_are_not_file_names() {
    let (origin, _server, mut client) = served();
    let commit = origin.head();
    origin.git(&["update-ref", "refs/heads/deep/-/x/y", &commit]);
    client.fetch_as(branch("deep/-/x/y")).unwrap();
    let root = client.dir.path();
    let here: Vec<_> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(here, ["git"]);
    assert_eq!(fs::read_dir(root.join("git/refs/heads")).map_or(0, Iterator::count), 0);
}
