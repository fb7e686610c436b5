//! Repository with a work tree, created with git.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

/// Path of the repository below its server.
pub const PATH: &str = "work/.git";

/// Repository with a work tree, in a temporary folder.
pub struct Origin {
    dir: TempDir,
}

impl Origin {
    /// Creates a repository with one commit on `main`: `hosts.yaml`.
    pub fn new() -> Self {
        let origin = Self::empty(&[]);
        origin.commit("hosts.yaml", "a: 1\n", "First");
        origin
    }

    /// Creates a repository without a commit, with further options of `git init`.
    pub fn empty(options: &[&str]) -> Self {
        let origin = Self { dir: TempDir::new().unwrap() };
        fs::create_dir(origin.work()).unwrap();
        origin.git(&[&["init", "-q", "-b", "main"], options].concat());
        origin
    }

    /// Returns the folder that Git servers serve.
    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the folder of the work tree.
    pub fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    /// Runs git with a fixed author and time, and returns its output.
    pub fn git(&self, args: &[&str]) -> String {
        let mut command = Command::new("git");
        command.current_dir(self.work()).args(args).stdin(Stdio::null());
        isolated(&mut command, self.root());
        let output = command.output().unwrap();
        assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Writes a file in the work tree.
    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.work().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Commits all changes, and returns the commit.
    pub fn commit_all(&self, message: &str) -> String {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "--allow-empty", "-m", message]);
        self.head()
    }

    /// Writes a file, commits it, and returns the commit.
    pub fn commit(&self, path: &str, text: impl AsRef<[u8]>, message: &str) -> String {
        self.write(path, text);
        self.commit_all(message)
    }

    /// Adds a number of commits to `main`, all at once. Each contains the files that `write` returns for it.
    pub fn grow(&self, commits: u32, write: impl Fn(u32) -> Vec<(String, Vec<u8>)>) {
        let mut stream = Vec::new();
        for n in 0..commits {
            stream.extend(
                b"commit refs/heads/main\ncommitter Ada Example <ada@example.com> 1767319445 +0100\ndata 4\nMore\n",
            );
            if n == 0 {
                stream.extend(b"from refs/heads/main^0\n");
            }
            for (path, bytes) in write(n) {
                stream.extend(format!("M 100644 inline {path}\ndata {}\n", bytes.len()).into_bytes());
                stream.extend(bytes);
                stream.push(b'\n');
            }
        }
        let path = self.root().join("stream");
        fs::write(&path, stream).unwrap();
        let mut command = Command::new("git");
        command.current_dir(self.work()).args(["fast-import", "--quiet"]);
        isolated(&mut command, self.root());
        assert!(command.stdin(fs::File::open(path).unwrap()).status().unwrap().success());
        self.git(&["reset", "-q", "--hard"]);
    }

    /// Adds a number of commits that change `hosts.yaml`.
    pub fn more(&self, commits: u32, word: &str) {
        self.grow(commits, |n| vec![("hosts.yaml".to_owned(), format!("{word}: {n}\n").into_bytes())]);
    }

    /// Returns the hash of the last commit.
    pub fn head(&self) -> String {
        self.git(&["rev-parse", "HEAD"])
    }
}

/// Isolates a git command from the settings of this machine, except `PATH`.
pub fn isolated(command: &mut Command, home: &Path) {
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        // In a container, the files may have another owner than the user who runs the test.
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*");
    for who in ["AUTHOR", "COMMITTER"] {
        command
            .env(format!("GIT_{who}_NAME"), "Ada Example")
            .env(format!("GIT_{who}_EMAIL"), "ada@example.com")
            .env(format!("GIT_{who}_DATE"), "2026-01-02T03:04:05+01:00");
    }
}
