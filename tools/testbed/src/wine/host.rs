//! Windows host under Wine.

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    net::{IpAddr, SocketAddr},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use tokio::{net::TcpStream, task::spawn_blocking};

use super::{NAMESPACES, programs, scripts, template};
use crate::{
    binaries::{Run as _, say},
    children::Daemon,
    control_plane::ControlPlane,
    host_network::{Cable, HostNetwork},
    lock::lock,
    run_dir::RunDir,
};

/// Time limit for the start or restart of a host.
const BOOT: Duration = crate::deployment::LIMIT;
const SSH_PORT: u16 = 22;

/// Log-in shell of a host's user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shell {
    /// cmd.exe, the default of OpenSSH on Windows.
    #[default]
    Plain,
    /// Shell that runs the command and returns its exit status, but prints a banner before and after, garbles the command's output, and
    /// consumes standard input.
    Hostile,
}

/// Options of a host.
#[derive(Clone, Debug)]
pub struct WineOptions {
    /// Host name: a DNS label of at most 15 characters.
    pub name: String,
    /// Log-in shell.
    pub shell: Shell,
    /// `CurrentBuildNumber`: 20348 is Windows Server 2022, 26100 is 2025.
    pub build: u32,
    /// `UBR`, the last part of Windows' version.
    pub revision: u32,
}

impl WineOptions {
    /// Returns options for Windows Server 2022 with a plain shell.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), shell: Shell::Plain, build: 20348, revision: 2527 }
    }
}

/// Windows service as reported by the service manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Name of the service.
    pub name: String,
    /// State of the service: `RUNNING`, `STOPPED`, `START_PENDING`, …
    pub state: String,
}

/// Running program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process id inside the host, as Linux counts.
    pub pid: u32,
    /// Command line, starting with the Windows path of the program.
    pub command: String,
}

/// Running Windows host with the user `Administrator`, who logs in with the keys given to [`WineHost::authorize`]. Ended on
/// drop with all its processes.
#[derive(Debug)]
pub struct WineHost {
    // Fields are declared in the order of the shutdown.
    first_process: Mutex<Option<Daemon>>,
    cable: Cable,
    _network: Arc<HostNetwork>,
    dir: RunDir,
    name: String,
    pid: u32,
    host_public_key: String,
}

impl WineHost {
    /// Starts a host in the network of `control_plane`, which was started with [`ControlPlaneOptions::network`], and waits
    /// until its SSH port responds. Creates the template first if necessary.
    ///
    /// # Errors
    /// Fails when `control_plane` has no network, or [`WineHost::start_in`] fails.
    ///
    /// [`ControlPlaneOptions::network`]: crate::ControlPlaneOptions::network
    pub async fn start(control_plane: &ControlPlane, options: WineOptions) -> Result<Self> {
        let network = control_plane
            .network()
            .context("the control plane has no network: start it with ControlPlaneOptions::network")?;
        Self::start_in(network, options).await
    }

    /// Starts a host in `network` and waits until its SSH port responds.
    ///
    /// # Errors
    /// Fails when the template cannot be created, the network has no free address, a program or a link cannot be set up, or the host does not respond
    /// in time.
    pub async fn start_in(network: &Arc<HostNetwork>, options: WineOptions) -> Result<Self> {
        let network = Arc::clone(network);
        let host = spawn_blocking(move || Self::spawn(network, options)).await??;
        host.wait_for_boot(1).await?;
        Ok(host)
    }

    fn spawn(network: Arc<HostNetwork>, options: WineOptions) -> Result<Self> {
        let (wine, wineserver) = programs().map_err(|name| anyhow!("there is no {name}"))?;
        let template = template::template()?;
        let dir = RunDir::new("host")?;
        template::copy(&template, &dir.join("prefix"), |registry| customize(registry, &options))?;

        let address = network.reserve()?;
        Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f"])
            .arg(dir.join("host_key"))
            .run()?;
        let host_public_key = fs::read_to_string(dir.join("host_key.pub"))?.trim().to_owned();
        fs::write(dir.join("authorized_keys"), "")?;
        let shell = match options.shell {
            Shell::Plain => "shell-plain.sh",
            Shell::Hostile => "shell-hostile.sh",
        };
        fs::copy(scripts().join(shell), dir.join("shell"))?;
        fs::set_permissions(dir.join("shell"), fs::Permissions::from_mode(0o755))?;
        fs::write(dir.join("sshd_config"), sshd_config(address.into(), &dir))?;
        let prefix = dir.join("prefix");
        let environment = [
            ("WINEPREFIX", prefix.display().to_string()),
            ("WINEDEBUG", "-all".to_owned()),
            ("DISPLAY", String::new()),
            ("WINE", wine.display().to_string()),
        ];
        let mut exports = String::new();
        for (key, value) in &environment {
            writeln!(exports, "export {key}='{value}'")?;
        }
        fs::write(dir.join("environment"), exports)?;

        let mut command = Command::new("unshare");
        command
            .args(NAMESPACES)
            .arg("sh")
            .arg(scripts().join("host.sh"))
            .envs(environment)
            .env("WINESERVER", wineserver)
            .env("SCRIPTS", scripts())
            .env("DIR", dir.path())
            .env("NAME", &options.name)
            .env("ADDRESS", address.to_string());
        let mut first_process = Daemon::start(&options.name, dir.join("log"), &command)?;
        let pid = wait_for_pid(&mut first_process, &dir)?;
        let cable = network.connect(pid, address)?;
        Ok(Self {
            first_process: Mutex::new(Some(first_process)),
            cable,
            _network: network,
            dir,
            name: options.name,
            pid,
            host_public_key,
        })
    }

    /// Returns the name of the host.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address of the host, reachable from this machine and from the other hosts of its network.
    pub fn address(&self) -> IpAddr {
        self.cable.address.into()
    }

    /// Returns the SSH port of the host.
    pub fn port(&self) -> u16 {
        SSH_PORT
    }

    /// Returns the public host key, such as `ssh-ed25519 AAAA…`.
    pub fn host_public_key(&self) -> &str {
        &self.host_public_key
    }

    /// Allows the holder of a public key (in OpenSSH's format) to log in as `Administrator`.
    ///
    /// # Errors
    /// Fails when the key file cannot be written.
    pub fn authorize(&self, public_key: &str) -> Result<()> {
        let mut file = fs::File::options().append(true).open(self.dir.join("authorized_keys"))?;
        Ok(writeln!(file, "{}", public_key.trim())?)
    }

    /// Returns the folder that is the host's `C:\`, and `/C:` over SFTP.
    pub fn drive_c(&self) -> PathBuf {
        self.dir.join("prefix/drive_c")
    }

    /// Returns the path of the log with the output of the host's SSH server and services.
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Runs a line of cmd.exe on the host, without SSH. A failing line is not an error: check the output's status.
    ///
    /// # Errors
    /// Fails when `nsenter` cannot be started.
    pub async fn cmd(&self, line: &str) -> Result<Output> {
        self.inside(
            r#". "$0/environment"; cd /C:/users/Administrator; SHELL_LINE="$1" exec "$WINE" "C:\testbed\shell.exe""#,
            line,
        )
        .await
    }

    /// Returns all Win32 services, in the order of the service manager.
    ///
    /// # Errors
    /// Fails when `nsenter` cannot be started, or the services cannot be listed.
    pub async fn services(&self) -> Result<Vec<Service>> {
        let output = self.cmd(r"C:\testbed\list-services.exe").await?;
        if !output.status.success() {
            bail!("cannot list the services of {}: {}", self.name, String::from_utf8_lossy(&output.stderr));
        }
        Ok(parse_services(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Returns the Windows programs that run on the host, including services.
    ///
    /// # Errors
    /// Fails when `nsenter` cannot be started.
    pub async fn processes(&self) -> Result<Vec<Process>> {
        const LIST: &str =
            r#"cd /proc; for p in [0-9]*; do printf '%s ' "$p"; tr '\0' ' ' <"$p/cmdline"; echo; done 2>/dev/null"#;
        let output = self.inside(LIST, "").await?;
        Ok(parse_processes(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Kills a process, as a crash does.
    ///
    /// # Errors
    /// Fails when `nsenter` cannot be started, or the process no longer exists.
    pub async fn kill(&self, process: &Process) -> Result<()> {
        let output = self.inside(r#"kill -KILL "$1""#, &process.pid.to_string()).await?;
        if !output.status.success() {
            bail!("cannot kill {process:?} of {}: {}", self.name, String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    /// Returns the number of Windows starts so far, which is also the host's `BootId`. A start counts once the host is up.
    pub fn boots(&self) -> u32 {
        fs::read_to_string(self.dir.join("boots")).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// Waits until Windows has started `boots` times and its SSH port responds. With `boots() + 1`, waits for a restart that
    /// something on the host requested.
    ///
    /// # Errors
    /// Fails when the host was stopped or has ended, or does not start within 2 minutes.
    pub async fn wait_for_boot(&self, boots: u32) -> Result<()> {
        let deadline = Instant::now() + BOOT;
        loop {
            lock(&self.first_process).as_mut().context("the host was stopped")?.check()?;
            if self.boots() >= boots && TcpStream::connect(SocketAddr::new(self.address(), SSH_PORT)).await.is_ok() {
                return Ok(());
            }
            if Instant::now() > deadline {
                let log = fs::read_to_string(self.log()).unwrap_or_default();
                bail!("{} did not start within {BOOT:?}:\n{log}", self.name);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Ends every process on the host and starts Windows again; returns when its SSH port responds.
    ///
    /// # Errors
    /// Fails when Windows cannot be ended, or does not start again within 2 minutes.
    pub async fn reboot(&self) -> Result<()> {
        let next = self.boots() + 1;
        let output = self.inside(r#"WINEPREFIX="$0/prefix" exec wineserver -k"#, "").await?;
        // No exit code means that the command was killed with everything else on the host.
        if output.status.code().is_some_and(|code| code != 0) {
            bail!("cannot restart {}: {}", self.name, String::from_utf8_lossy(&output.stderr));
        }
        self.wait_for_boot(next).await
    }

    /// Cuts the host off: packets vanish, as with a pulled cable.
    ///
    /// # Errors
    /// Fails when `ip` fails.
    pub fn cut_network(&self) -> Result<()> {
        self.cable.cut()
    }

    /// Undoes [`WineHost::cut_network`].
    ///
    /// # Errors
    /// Fails when `ip` fails.
    pub fn mend_network(&self) -> Result<()> {
        self.cable.mend()
    }

    /// Stops the host like a power cut: nothing is written to disk. The content of `drive_c` stays until the drop.
    pub fn stop(&self) {
        let Some(mut unshare) = lock(&self.first_process).take() else { return };
        // When the first process of the namespace ends, everything in it ends, and `unshare` ends after that.
        match Command::new("kill").args(["-KILL", &self.pid.to_string()]).run() {
            Ok(()) => unshare.wait(),
            Err(error) => say(&format!("{}: {error:#}", self.name)),
        }
    }

    /// Runs a shell script in the host's namespaces, with the host's folder as `$0` and `argument` as `$1`.
    async fn inside(&self, script: &str, argument: &str) -> Result<Output> {
        let output = tokio::process::Command::new("nsenter")
            .args(["--net", "--mount", "--pid", "--uts", "--target", &self.pid.to_string(), "sh", "-c", script])
            .arg(self.dir.path())
            .arg(argument)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        output.await.context("cannot start nsenter")
    }
}

impl Drop for WineHost {
    fn drop(&mut self) {
        self.stop();
    }
}

fn wait_for_pid(first_process: &mut Daemon, dir: &RunDir) -> Result<u32> {
    let deadline = Instant::now() + BOOT;
    loop {
        if let Ok(text) = fs::read_to_string(dir.join("pid")) {
            return text.trim().parse().with_context(|| format!("the host's process id {text:?} is not a number"));
        }
        first_process.check()?;
        if Instant::now() > deadline {
            bail!("the host did not start within {BOOT:?}:\n{}", first_process.last_lines());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Adapts a copy of the template's registry to this host.
fn customize(registry: &str, options: &WineOptions) -> String {
    let product =
        if options.build >= 26100 { "Windows Server 2025 Datacenter" } else { "Windows Server 2022 Datacenter" };
    [
        ("MachineGuid", format!("\"{}\"", uuid())),
        ("LastConfig", format!("\"{{{}}}\"", uuid())),
        ("CurrentBuild", format!("\"{}\"", options.build)),
        ("CurrentBuildNumber", format!("\"{}\"", options.build)),
        ("UBR", format!("dword:{:08x}", options.revision)),
        ("ProductName", format!("\"{product}\"")),
    ]
    .into_iter()
    .fold(registry.to_owned(), |registry, (name, data)| template::with_value(&registry, name, &data))
}

fn uuid() -> String {
    let hex = hex::encode(rand::random::<[u8; 16]>());
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn sshd_config(address: IpAddr, dir: &RunDir) -> String {
    let dir = dir.path().display();
    format!(
        "ListenAddress {address}\nPort {SSH_PORT}\nHostKey {dir}/host_key\nAuthorizedKeysFile {dir}/authorized_keys\n\
         AuthenticationMethods publickey\nPermitRootLogin prohibit-password\nStrictModes no\nUsePAM no\nUseDNS no\n\
         PidFile none\nPrintMotd no\nPrintLastLog no\nMaxStartups 100\nMaxSessions 100\nLogLevel VERBOSE\n\
         Subsystem sftp internal-sftp\n"
    )
}

/// Parses lines of `STATE NAME`.
fn parse_services(text: &str) -> Vec<Service> {
    text.lines()
        .filter_map(|line| line.trim().split_once(' '))
        .map(|(state, name)| Service { name: name.to_owned(), state: state.to_owned() })
        .collect()
}

/// Parses lines of `PID COMMAND` and keeps those of Windows programs.
fn parse_processes(text: &str) -> Vec<Process> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(_, command)| command.get(1..3) == Some(r":\"))
        .filter_map(|(pid, command)| Some(Process { pid: pid.parse().ok()?, command: command.trim().to_owned() }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_states_and_names() {
        let services = parse_services("RUNNING EventLog\r\nSTOPPED A name with spaces\r\n\r\n");
        assert_eq!(services[0], Service { name: "EventLog".into(), state: "RUNNING".into() });
        assert_eq!(services[1].name, "A name with spaces");
        assert_eq!(services.len(), 2);
    }

    #[test]
    fn processes_are_those_of_windows() {
        let text = "1 sh host.sh \n7 C:\\windows\\system32\\services.exe \n8 C:\\k\\kubelet.exe --v=2 \n9 \n";
        let commands: Vec<_> = parse_processes(text).into_iter().map(|p| (p.pid, p.command)).collect();
        let expected = [(7, r"C:\windows\system32\services.exe"), (8, r"C:\k\kubelet.exe --v=2")];
        assert_eq!(commands, expected.map(|(pid, command)| (pid, command.to_owned())));
    }

    #[test]
    fn hosts_do_not_share_an_identity() {
        let template = "\"MachineGuid\"=\"x\"\n\"CurrentBuildNumber\"=\"1\"\n\"UBR\"=dword:0\n";
        let options = WineOptions { build: 26100, revision: 255, ..WineOptions::new("a") };
        let (one, two) = (customize(template, &options), customize(template, &options));
        assert_ne!(one, two);
        assert!(one.ends_with("\"CurrentBuildNumber\"=\"26100\"\n\"UBR\"=dword:000000ff\n"), "{one}");
    }
}
