//! Hostile content of a repository: the pool reports it, no host is changed, and the next good commit repairs it.

use anyhow::{Result, ensure};
use serde_json::json;
use testbed::git::Origin;

use crate::git::{LIST, POOL, Scene, refuses};

/// Mode of a directory in Git.
const DIRECTORY: &str = "40000";
const FILE: &str = "100644";
const LINK: &str = "120000";
const SUBMODULE: &str = "160000";

/// Way in which the branch is repaired.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cure {
    /// Good commit on top.
    Commit,
    /// Reset to an earlier commit: an object that is too large to fetch stays in the history of every commit on top.
    Reset,
}

/// Stores arbitrary bytes as a Git object, and returns its id.
fn store(origin: &Origin, kind: &str, bytes: impl AsRef<[u8]>) -> String {
    origin.write("../object", bytes);
    origin.git(&["hash-object", "-w", "--literally", "-t", kind, "../object"])
}

/// Stores a directory of these entries, also with names that Git itself would not accept.
fn directory(origin: &Origin, entries: &[(&str, &str, &str)]) -> String {
    let mut raw = Vec::new();
    for (mode, name, id) in entries {
        raw.extend(format!("{mode} {name}\0").into_bytes());
        raw.extend(hex::decode(id).unwrap());
    }
    store(origin, "tree", raw)
}

/// Commits a directory to the branch without the work tree.
fn commit_tree(origin: &Origin, tree: &str, about: &str) -> String {
    let commit = origin.git(&["commit-tree", tree, "-p", "main", "-m", about]);
    origin.git(&["update-ref", "refs/heads/main", &commit]);
    commit
}

/// Stores nested directories that share their content: ten to the tenth files in few bytes.
fn endless(origin: &Origin, file: &str) -> String {
    let mut tree = directory(origin, &[(FILE, "a.yaml", file)]);
    for _ in 0..10 {
        let names: Vec<String> = (0..10).map(|n| format!("d{n}")).collect();
        let entries: Vec<_> = names.iter().map(|name| (DIRECTORY, name.as_str(), tree.as_str())).collect();
        tree = directory(origin, &entries);
    }
    tree
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_repository_hides_is_reported_and_touches_nobody() -> Result<()> {
    let scene = Scene::new(2).await?;
    let (world, origin) = (&scene.world, &scene.origin);
    let first = origin.commit(LIST, scene.list(2), "Both");
    world.apply(POOL, &scene.spec(json!({}))).await?;
    scene.until_ready(2).await?;
    scene.until_used(&first).await?;
    let stats = scene.stats();

    let good = origin.git(&["rev-parse", "main^{tree}"]);
    let list = origin.git(&["rev-parse", &format!("main:{LIST}")]);
    let few = store(origin, "blob", scene.list(1));
    let bomb = store(origin, "blob", vec![0; 65 << 20]);
    let pointer = store(origin, "blob", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n");
    let outside = store(origin, "blob", "../../../../etc");
    let only_few = directory(origin, &[(FILE, "b.yaml", &few)]);
    let halls = |entries: &[(&str, &str, &str)]| (DIRECTORY, directory(origin, entries));
    for (about, reason, says, cure, (mode, halls)) in [
        (
            "a file that unpacks to very much",
            "GitOperationFailed",
            "keep the hosts in a repository of their own",
            Cure::Reset,
            halls(&[(FILE, "a.yaml", &list), (FILE, "bomb.yaml", &bomb)]),
        ),
        (
            "directories in each other",
            "InvalidInventory",
            "more than 10000 files of hosts",
            Cure::Commit,
            (DIRECTORY, endless(origin, &list)),
        ),
        (
            "a directory that is the one above",
            "InvalidInventory",
            "\"halls/..\"",
            Cure::Commit,
            halls(&[(DIRECTORY, "..", &only_few), (FILE, "a.yaml", &list)]),
        ),
        (
            "a file whose name climbs",
            "InvalidInventory",
            "\"halls/../b.yaml\"",
            Cure::Commit,
            halls(&[(FILE, "../b.yaml", &few), (FILE, "a.yaml", &list)]),
        ),
        ("a link in the place of the directory", "InvalidInventory", "halls is", Cure::Commit, (LINK, outside.clone())),
        (
            "a link in the place of a directory below",
            "InvalidInventory",
            "halls/deep is",
            Cure::Commit,
            halls(&[(FILE, "a.yaml", &list), (LINK, "deep", &outside)]),
        ),
        (
            "a pointer of Git LFS in the place of the file",
            "InvalidInventory",
            "halls/a.yaml",
            Cure::Commit,
            halls(&[(FILE, "a.yaml", &pointer)]),
        ),
        (
            "a submodule in the place of the directory",
            "InvalidInventory",
            "halls is",
            Cure::Commit,
            (SUBMODULE, first.clone()),
        ),
    ] {
        let before = scene.revision().await?;
        let healthy = origin.git(&["rev-parse", "main"]);
        commit_tree(origin, &directory(origin, &[(mode, "halls", &halls)]), about);
        refuses(&scene, about, reason, says).await?;
        ensure!(scene.revision().await? == before, "{about}: it is in use");
        if cure == Cure::Reset {
            origin.git(&["update-ref", "refs/heads/main", &healthy]);
        }
        let mended = commit_tree(origin, &good, "Corrected");
        scene.until_used(&mended).await?;
        ensure!(scene.stats() == stats, "{about}: a host was worked on: {:?}", scene.stats());
    }

    // The path in the pool's spec leads out of the repository.
    let used = origin.git(&["rev-parse", "main"]);
    let refused = world.apply(POOL, &scene.spec(json!({"path": "halls/../../x"}))).await.unwrap_err();
    ensure!(refused.to_string().contains("must not contain `..`"), "{refused}");
    world.apply(POOL, &scene.spec(json!({"path": "halls\n"}))).await?;
    refuses(&scene, "a path in two lines", "SourceInvalid", "is outside the repository").await?;
    world.apply(POOL, &scene.spec(json!({}))).await?;
    scene.until_used(&used).await?;
    scene.until_ready(2).await?;
    ensure!(scene.stats() == stats, "a host was worked on: {:?}", scene.stats());
    Ok(())
}
