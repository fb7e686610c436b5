//! Child processes that never outlive the process of the tests.

use std::{
    fs::File,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{LazyLock, Mutex, mpsc},
    thread,
};

use anyhow::{Context as _, Result};

/// Child process that is killed on drop, and by the kernel when this process ends in any way.
#[derive(Debug)]
pub(crate) struct Daemon {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Daemon {
    /// Starts `command` without standard input. Its output and errors go to the file `log`, which is emptied first.
    pub(crate) fn start(name: &str, log: PathBuf, command: &Command) -> Result<Self> {
        let out = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let err = out.try_clone()?;
        // `setpriv` sets the parent-death signal and executes the command. It is in util-linux, as `unshare` is.
        let mut bound = Command::new("setpriv");
        bound.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => bound.env(key, value),
                None => bound.env_remove(key),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            bound.current_dir(dir);
        }
        bound.stdin(Stdio::null()).stdout(out).stderr(err);
        let child = spawn_for_ever(bound).with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name: name.to_owned(), log, child })
    }

    /// Returns the exit status of the process, if it has ended.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for the end of the process.
    pub(crate) fn wait(&mut self) {
        let _ = self.child.wait(); // fails only if there is no such child any more
    }

    /// Fails with the last lines of the log if the process has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("{} ended: {status}\n{}", self.name, self.last_lines()),
        }
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill(); // fails only for a process that is gone
        self.wait();
    }

    /// Returns the last 20 lines of the log.
    pub(crate) fn last_lines(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Spawns from a thread that lives as long as the process: the parent-death signal is sent when the *thread* that
/// spawned ends, and the worker threads of a `#[tokio::test]` end with that test.
fn spawn_for_ever(command: Command) -> std::io::Result<Child> {
    type Request = (Command, mpsc::Sender<std::io::Result<Child>>);
    static SPAWNER: LazyLock<Mutex<mpsc::Sender<Request>>> = LazyLock::new(|| {
        let (sender, requests) = mpsc::channel::<Request>();
        thread::spawn(move || {
            for (mut command, answer) in requests {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (sender, answer) = mpsc::channel();
    let gone = || std::io::Error::other("the spawning thread is gone");
    SPAWNER.lock().map_err(|_| gone())?.send((command, sender)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}
