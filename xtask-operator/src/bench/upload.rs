//! The operator's upload beside OpenSSH's sftp and scp: the same bytes to the same OpenSSH server.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::SocketAddr,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rand::{RngCore as _, SeedableRng as _, rngs::StdRng};
use remote::ssh::{Connection, HostKeyCheck, Identity, Target};
use testbed::openssh::OpenSsh;
use tokio::task::spawn_blocking;

use super::{
    load,
    proxy::Proxy,
    report::{Report, round},
};

/// How much.
#[derive(clap::Args)]
pub(super) struct Args {
    /// One JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
    /// MiB that are sent.
    #[arg(long, default_value_t = 256)]
    mib: u32,
}

/// What sends.
#[derive(Clone, Copy, Debug)]
enum Tool {
    Ours,
    Sftp,
    Scp,
}

/// Measures each tool once at each round trip, from its start to its end, log-in included.
pub(super) async fn run(args: &Args) -> Result<()> {
    let server = Server::start()?;
    let source = server.0.dir().join("source");
    fill(&source, args.mib)?;
    let mut report = Report::new(args.json);
    for rtt_ms in [0, 20] {
        let proxy = match rtt_ms {
            0 => None,
            _ => Some(Proxy::start(server.0.address(), Duration::from_millis(rtt_ms)).await?),
        };
        let address = proxy.as_ref().map_or(server.0.address(), |proxy| proxy.address);
        for tool in [Tool::Ours, Tool::Sftp, Tool::Scp] {
            let load = load();
            let begun = Instant::now();
            match tool {
                Tool::Ours => server.ours(address, &source).await?,
                Tool::Sftp | Tool::Scp => server.openssh(tool, address, &source).await?,
            }
            let seconds = begun.elapsed().as_secs_f64();
            server.take(&source)?;
            report.add(&[
                ("tool", format!("{tool:?}").to_lowercase().into()),
                ("rtt_ms", rtt_ms.into()),
                ("mib", args.mib.into()),
                ("mib_per_second", round(f64::from(args.mib) / seconds)),
                ("load", load.into()),
            ]);
        }
    }
    Ok(())
}

/// Writes bytes that do not compress, and leaves them in the page cache.
fn fill(path: &Path, mib: u32) -> Result<()> {
    let mut file = fs::File::create(path)?;
    let (mut random, mut piece) = (StdRng::seed_from_u64(1), vec![0; 1 << 20]);
    for _ in 0..mib {
        random.fill_bytes(&mut piece);
        file.write_all(&piece)?;
    }
    Ok(())
}

/// An OpenSSH server whose root has a folder `C:`, as our paths begin with.
struct Server(OpenSsh);

impl Server {
    fn start() -> Result<Self> {
        ensure!(fs::metadata("/proc/self")?.uid() == 0, "an OpenSSH server with a root of its own needs root");
        let openssh = OpenSsh::start(|dir| {
            let root = dir.join("root");
            fs::create_dir_all(root.join("C:"))?;
            // OpenSSH wants only root to write to its root and to every folder above.
            for entry in [dir, &root] {
                fs::set_permissions(entry, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
            }
            let root = root.display();
            Ok(format!("Subsystem sftp internal-sftp\nForceCommand internal-sftp\nChrootDirectory {root}\n"))
        })?;
        Ok(Self(openssh))
    }

    async fn ours(&self, address: SocketAddr, source: &Path) -> Result<()> {
        let target = Target {
            address: address.ip().to_string(),
            port: address.port(),
            username: "root".into(),
            keys: vec![Arc::new(Identity::from_pem("the key", &fs::read(self.0.key_file())?)?)],
            host_key: HostKeyCheck::TrustOnFirstUse,
            jump_host: None,
            connect_timeout: Duration::from_secs(15),
            command_timeout: Duration::from_mins(1),
        };
        let connection = Connection::connect(&target).await?;
        let mut file = tokio::fs::File::open(source).await?;
        let size = file.metadata().await?.len();
        connection.upload(r"C:\sent", size, &mut file, |_| ()).await?;
        Ok(())
    }

    async fn openssh(&self, tool: Tool, address: SocketAddr, source: &Path) -> Result<()> {
        let (port, host) = (address.port().to_string(), "root@127.0.0.1");
        let name = if matches!(tool, Tool::Scp) { "scp" } else { "sftp" };
        let mut command = Command::new(name);
        command.args(["-q", "-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"]);
        command
            .args(["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-P", &port, "-i"])
            .arg(self.0.key_file());
        if matches!(tool, Tool::Scp) {
            command.arg(source).arg(format!("{host}:/C:/sent"));
        } else {
            let batch = self.0.dir().join("batch");
            fs::write(&batch, format!("put {} /C:/sent\n", source.display()))?;
            command.arg("-b").arg(batch).arg(host);
        }
        let output = spawn_blocking(move || command.stdin(Stdio::null()).output()).await?;
        let output = output.with_context(|| format!("start {name}"))?;
        ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Compares what arrived with what was sent, and takes it away.
    fn take(&self, source: &Path) -> Result<()> {
        let sent = self.0.dir().join("root/C:/sent");
        ensure!(same(source, &sent)?, "other bytes arrived than were sent");
        Ok(fs::remove_file(sent)?)
    }
}

fn same(a: &Path, b: &Path) -> Result<bool> {
    let (mut a, mut b) = (fs::File::open(a)?, fs::File::open(b)?);
    if a.metadata()?.len() != b.metadata()?.len() {
        return Ok(false);
    }
    let (mut piece, mut other) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let n = a.read(&mut piece)?;
        b.read_exact(&mut other[..n])?;
        if n == 0 || piece[..n] != other[..n] {
            return Ok(n == 0);
        }
    }
}
