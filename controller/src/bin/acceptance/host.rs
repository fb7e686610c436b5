//! Access to the host over SSH: its kind, commands, and directories.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use remote::ssh::{Connection, HostKeyCheck, Target};

use super::judge::Output;

/// Timeout of a command on the host.
const LIMIT: Duration = Duration::from_mins(3);
/// Maximum size of an output in bytes.
const MAX_OUTPUT_BYTES: usize = 1 << 20;
/// Directories that the operator creates on each host, and that a removal of the host deletes.
const DIRECTORIES: [&str; 3] = [r"C:\k", r"C:\windows\wicd", r"C:\var\lib\kubelet"];
/// Program that Wine has and Windows does not.
const WINECFG: &str = r"C:\windows\system32\winecfg.exe";

/// Kind of a host, which decides what can be observed on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Windows.
    Windows,
    /// Wine, in the test bed.
    Wine,
    /// Host that runs only wicd, in the test bed.
    Simulated,
}

/// Returns the kind of the host, judged by a program of Wine and by the output of `ver`, if it ran.
fn kind(has_winecfg: bool, ver: Option<&Output>) -> Kind {
    let version = |output: &Output| {
        let text = output.text.trim().strip_prefix("Microsoft Windows [Version 10.0.")?;
        text.strip_suffix(']')
            .filter(|build| output.status == Some(0) && build.starts_with(|c: char| c.is_ascii_digit()))?;
        Some(())
    };
    match ver {
        _ if has_winecfg => Kind::Wine,
        Some(output) if version(output).is_some() => Kind::Windows,
        _ => Kind::Simulated,
    }
}

/// Host of a run. Each use has its own connection, because the host restarts in between.
pub(crate) struct Host {
    target: Target,
    /// Path of the batch file and of its output, without an extension.
    script: String,
    /// Version of Windows, as `ver` prints it. Empty if `ver` did not run.
    pub(crate) version: String,
}

impl Host {
    /// Logs in, and pins the host key for all later connections. Also returns the fingerprint and the kind of the host.
    pub(crate) async fn open(mut target: Target) -> anyhow::Result<(Self, String, Kind)> {
        let connection = Connection::connect(&target).await?;
        let key = connection.host_key().clone();
        let fingerprint = key.fingerprint();
        target.host_key = HostKeyCheck::Pinned(key);
        // Only administrators can write to this directory, and the name cannot be guessed.
        let script = format!(r"C:\windows\acceptance-{:016x}", rand::random::<u64>());
        let mut host = Self { target, script, version: String::new() };
        let has_winecfg = connection.size(WINECFG).await?.is_some();
        let ver = if has_winecfg { None } else { host.run_on(&connection, "ver").await.ok() };
        connection.close().await;
        let kind = kind(has_winecfg, ver.as_ref());
        host.version = ver.map(|output| api::text::line(&output.text, 100)).unwrap_or_default();
        Ok((host, fingerprint, kind))
    }

    /// Reports whether the host lets a user log in within `limit`.
    pub(crate) async fn answers(&self, limit: Duration) -> bool {
        let answer = tokio::time::timeout(limit, async {
            let connection = Connection::connect(&self.target).await?;
            connection.close().await;
            anyhow::Ok(())
        });
        answer.await.is_ok_and(|answer| answer.is_ok())
    }

    /// Runs commands of cmd.exe one after another, and returns what each printed.
    pub(crate) async fn run(&self, commands: &[&str]) -> anyhow::Result<Vec<Output>> {
        let connection = Connection::connect(&self.target).await?;
        let mut outputs = Vec::new();
        for command in commands {
            outputs.push(self.run_on(&connection, command).await?);
        }
        connection.close().await;
        Ok(outputs)
    }

    /// Uploads a program, runs it, and removes it.
    pub(crate) async fn try_program(&self, content: Vec<u8>, arguments: &str) -> anyhow::Result<Output> {
        let connection = Connection::connect(&self.target).await?;
        let path = format!("{}.exe", self.script);
        let size = content.len().try_into()?;
        let ran = async {
            connection.upload(&path, size, &mut std::io::Cursor::new(content)).await?;
            self.run_on(&connection, &format!("{path} {arguments}")).await
        };
        let ran = ran.await;
        connection.remove(&path).await?;
        connection.close().await;
        ran
    }

    /// Runs a command in a batch file, and reads its output from a file: whole, and without what a login shell prints around it.
    async fn run_on(&self, connection: &Connection, command: &str) -> anyhow::Result<Output> {
        let (script, text) = (format!("{}.cmd", self.script), format!("{}.txt", self.script));
        let lines = format!("@echo off\r\n{command} >{text} 2>&1 <nul\r\nexit /b %errorlevel%\r\n");
        connection.write(&script, lines.as_bytes()).await?;
        let ran = connection.exec(&format!("cmd.exe /c {script}"), LIMIT).await;
        let read = connection.read(&text, MAX_OUTPUT_BYTES).await;
        connection.remove(&script).await?;
        connection.remove(&text).await?;
        let (ran, bytes) = (ran?, read?);
        let bytes = bytes.with_context(|| format!("the host did not run {command}, whose output is missing"))?;
        Ok(Output { status: ran.status, text: api::text::lines(&String::from_utf8_lossy(&bytes)) })
    }

    /// Returns the operator's directories that the host has.
    pub(crate) async fn directories(&self) -> anyhow::Result<Vec<&'static str>> {
        let connection = Connection::connect(&self.target).await?;
        let mut found = Vec::new();
        for directory in DIRECTORIES {
            if connection.size(directory).await?.is_some() {
                found.push(directory);
            }
        }
        connection.close().await;
        Ok(found)
    }

    /// Checks that the host has none of the operator's directories, except those from before the run.
    pub(crate) async fn check_directories(&self, before: &[&str]) -> anyhow::Result<()> {
        let left: Vec<&str> = self.directories().await?.into_iter().filter(|found| !before.contains(found)).collect();
        ensure!(left.is_empty(), "the host still has {}", left.join(", "));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_host_is_found_by_winecfg_and_ver() {
        let printed = |status, text: &str| Some(Output { status, text: text.into() });
        for (has_winecfg, ver, expected) in [
            (false, printed(Some(0), "\nMicrosoft Windows [Version 10.0.20348.2527]"), Kind::Windows),
            (true, printed(Some(0), "Microsoft Windows [Version 10.0.20348.2527]"), Kind::Wine),
            (false, printed(Some(0), "Microsoft Windows 10.0.17763"), Kind::Simulated),
            (false, printed(Some(1), "Microsoft Windows [Version 10.0.20348.2527]"), Kind::Simulated),
            (false, printed(None, "Microsoft Windows [Version 10.0.20348.2527]"), Kind::Simulated),
            (false, printed(Some(0), "Microsoft Windows [Version 10.0.]"), Kind::Simulated),
            (false, printed(Some(0), ""), Kind::Simulated),
            (false, None, Kind::Simulated),
        ] {
            assert_eq!(kind(has_winecfg, ver.as_ref()), expected, "{ver:?}");
        }
    }
}
