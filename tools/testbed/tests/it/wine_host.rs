//! Tests of Wine hosts. They are skipped, with a message, on a machine that cannot run Wine hosts.

use std::{fs, process::Output, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;
use testbed::wine::{HostNetwork, Shell, WineHost, WineOptions, available};
use tokio::process::Command;

/// Host, and a client that it accepts.
struct Session {
    host: WineHost,
    client: TempDir,
}

impl Session {
    async fn start(options: WineOptions) -> Result<Option<Self>> {
        if let Err(reason) = available() {
            testbed::skip(&reason)?;
            return Ok(None);
        }
        let host = WineHost::start_in(&Arc::new(HostNetwork::create()?), options).await?;
        let client = tempfile::tempdir()?;
        let key = client.path().join("key");
        let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status().await?;
        ensure!(made.success());
        host.authorize(&fs::read_to_string(key.with_extension("pub"))?)?;
        let known = format!("{} {}\n", host.address(), host.host_public_key());
        fs::write(client.path().join("known_hosts"), known)?;
        Ok(Some(Self { host, client }))
    }

    async fn ssh(&self, command: &str) -> Result<Output> {
        self.ssh_within(60, command).await
    }

    async fn ssh_within(&self, seconds: u8, command: &str) -> Result<Output> {
        let mut ssh = self.openssh("ssh", seconds);
        ssh.arg(format!("Administrator@{}", self.host.address())).arg(command);
        ssh.output().await.context("start ssh")
    }

    async fn sftp(&self, batch: &str) -> Result<Output> {
        let file = self.client.path().join("batch");
        fs::write(&file, batch)?;
        let mut sftp = self.openssh("sftp", 60);
        sftp.arg("-b").arg(file).arg(format!("Administrator@{}", self.host.address()));
        sftp.output().await.context("start sftp")
    }

    /// Returns an OpenSSH command for the host. `seconds` limits the wait for the connection and the server's greeting, which takes seconds on a busy
    /// machine.
    fn openssh(&self, program: &str, seconds: u8) -> Command {
        let dir = self.client.path().display();
        let mut command = Command::new(program);
        command
            .args(["-F", "/dev/null", "-o", "BatchMode=yes", "-o", &format!("ConnectTimeout={seconds}")])
            .args(["-o", &format!("UserKnownHostsFile={dir}/known_hosts"), "-i", &format!("{dir}/key")])
            .kill_on_drop(true);
        command
    }

    async fn registry(&self, key: &str, value: &str) -> Result<String> {
        let output = self.host.cmd(&format!("reg query \"HKLM\\{key}\" /v {value}")).await?;
        let text = String::from_utf8(output.stdout)?;
        text.split_whitespace().last().map(ToOwned::to_owned).with_context(|| format!("no {value} in {text:?}"))
    }

    async fn boot_id(&self) -> Result<String> {
        let key = r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters";
        self.registry(key, "BootId").await
    }
}

#[tokio::test]
async fn a_plain_shell_runs_commands_as_windows_does() -> Result<()> {
    let options = WineOptions { build: 26100, ..WineOptions::new("plain") };
    let Some(session) = Session::start(options).await? else { return Ok(()) };

    let output = session.ssh("ver").await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("Microsoft Windows 10.0.26100"), "{output:?}");
    let output = session.ssh("cmd /c exit 7").await?;
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let output = session.ssh("echo %COMPUTERNAME% %USERNAME% & cd").await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["PLAIN", "Administrator", r"C:\users\Administrator"]);

    // SFTP and Windows see the same files under the same names.
    fs::write(session.client.path().join("content"), "hello")?;
    let content = session.client.path().join("content").display().to_string();
    let output = session.sftp(&format!("mkdir /C:/k\nput {content} /C:/k/content\n")).await?;
    assert!(output.status.success(), "{output:?}");
    let output = session.ssh(r"type C:\k\content").await?;
    assert_eq!(output.stdout, b"hello", "{output:?}");
    assert_eq!(fs::read_to_string(session.host.drive_c().join("k/content"))?, "hello");
    Ok(())
}

#[tokio::test]
async fn a_hostile_shell_garbles_all_but_the_exit_status_and_files() -> Result<()> {
    let options = WineOptions { shell: Shell::Hostile, ..WineOptions::new("hostile") };
    let Some(session) = Session::start(options).await? else { return Ok(()) };

    let output = session.ssh("echo hello").await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("Welcome!") && !text.contains("hello"), "{output:?}");
    assert_eq!(session.ssh("cmd /c exit 7").await?.status.code(), Some(7));
    let output = session.sftp("mkdir /C:/k\nls /C:/\n").await?;
    assert!(output.status.success() && session.host.drive_c().join("k").is_dir(), "{output:?}");
    Ok(())
}

#[tokio::test]
async fn a_restart_raises_the_boot_id_and_starts_services_again() -> Result<()> {
    let Some(session) = Session::start(WineOptions::new("restart")).await? else { return Ok(()) };
    let host = &session.host;
    let running = |services: Vec<testbed::wine::Service>| {
        services.iter().any(|service| service.name == "Eventlog" && service.state == "RUNNING")
    };
    assert!(running(host.services().await?));
    assert_eq!(session.boot_id().await?, "0x1");
    host.cmd(r"reg add HKLM\Software\Testbed /v Kept /d yes").await?;

    host.reboot().await?;
    assert_eq!(session.boot_id().await?, "0x2");
    assert!(running(host.services().await?));
    assert_eq!(session.registry(r"Software\Testbed", "Kept").await?, "yes");

    // Programs on the host request restarts.
    session.ssh("shutdown /r /t 0").await?;
    host.wait_for_boot(3).await?;
    assert_eq!(session.boot_id().await?, "0x3");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/restart.c");
    let exe = host.drive_c().join("wicd.exe");
    ensure!(Command::new("x86_64-w64-mingw32-gcc").args([source, "-o"]).arg(exe).status().await?.success());
    // The restart may end the session before it reports the program's exit status.
    session.ssh(r"C:\wicd.exe").await?;
    host.wait_for_boot(4).await?;
    assert!(session.ssh("ver").await?.status.success());
    Ok(())
}

#[tokio::test]
async fn a_cut_network_can_be_mended_and_a_stopped_host_is_gone() -> Result<()> {
    let Some(session) = Session::start(WineOptions::new("cut")).await? else { return Ok(()) };
    session.host.cut_network()?;
    assert_eq!(session.ssh_within(3, "ver").await?.status.code(), Some(255));
    session.host.mend_network()?;
    session.host.wait_for_boot(1).await?;
    assert!(session.ssh("ver").await?.status.success());
    session.host.stop();
    assert_eq!(session.ssh_within(3, "ver").await?.status.code(), Some(255));
    Ok(())
}
