//! Benchmark of the operator's upload against OpenSSH's sftp and scp: the same bytes to the same OpenSSH server.

use std::{
    fs,
    io::Write as _,
    net::SocketAddr,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
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
    aims, load,
    proxy::Proxy,
    report::{self, ratio, round},
};

/// Amount of data.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Amount of data to send, in MiB.
    #[arg(long, default_value_t = 235, value_parser = clap::value_parser!(u32).range(1..))]
    mib: u32,
    /// Number of times that each tool sends the data. The median is reported.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
}

/// Tool that sends the data.
#[derive(Clone, Copy, Debug)]
enum Tool {
    Ours,
    Sftp,
    Scp,
}

/// Measures the time that each tool takes, log-in included, at each round-trip time.
pub(super) async fn run(args: &Args) -> Result<()> {
    let sender = Sender::start(args.mib)?;
    for rtt_ms in [0, 20] {
        let load = load();
        let rtt = Duration::from_millis(rtt_ms);
        let [ours, sftp, scp] = sender.medians([Tool::Ours, Tool::Sftp, Tool::Scp], rtt, args.times).await?;
        let speed = |seconds: f64| f64::from(args.mib) / seconds;
        let mut fields = vec![
            ("rtt_ms", rtt_ms.into()),
            ("mib", args.mib.into()),
            ("times", args.times.into()),
            ("ours_mib_per_second", round(speed(ours))),
            ("sftp_mib_per_second", round(speed(sftp))),
            ("scp_mib_per_second", round(speed(scp))),
            ("ratio_to_fastest", ratio(speed(ours), Some(speed(sftp.min(scp))))),
            ("load", load.into()),
        ];
        fields.extend(aims::judged(&aims::upload(), &fields));
        report::add(&fields);
    }
    Ok(())
}

/// Number of measurements in [`sftp_seconds`].
const TIMES: u32 = 3;

/// Returns the seconds that OpenSSH's sftp takes to send `mib` MiB: the median of [`TIMES`] measurements.
pub(super) async fn sftp_seconds(mib: u32, rtt: Duration) -> Result<f64> {
    let [seconds] = Sender::start(mib)?.medians([Tool::Sftp], rtt, TIMES).await?;
    Ok(seconds)
}

/// File to send, and an OpenSSH server whose root has a folder `C:`, with which the operator's paths begin.
struct Sender {
    server: OpenSsh,
    source: PathBuf,
}

impl Sender {
    fn start(mib: u32) -> Result<Self> {
        ensure!(
            fs::metadata("/proc/self")?.uid() == 0,
            "run this benchmark as root, which the OpenSSH server needs for its ChrootDirectory"
        );
        let server = OpenSsh::start(|dir| {
            let root = dir.join("root");
            fs::create_dir_all(root.join("C:"))?;
            // OpenSSH requires that only the user root can write to the ChrootDirectory and to its parent folders.
            for entry in [dir, &root] {
                fs::set_permissions(entry, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
            }
            let root = root.display();
            Ok(format!("Subsystem sftp internal-sftp\nForceCommand internal-sftp\nChrootDirectory {root}\n"))
        })?;
        let source = server.dir().join("source");
        fill(&source, mib)?;
        Ok(Self { server, source })
    }

    /// Returns the median seconds of each tool. The tools take turns, so that other load on the machine affects all equally.
    async fn medians<const N: usize>(&self, tools: [Tool; N], rtt: Duration, times: u32) -> Result<[f64; N]> {
        let proxy = if rtt.is_zero() { None } else { Some(Proxy::start(self.server.address(), rtt).await?) };
        let address = proxy.as_ref().map_or(self.server.address(), |proxy| proxy.address);
        let mut seconds = [const { Vec::new() }; N];
        for _ in 0..times {
            for (tool, seconds) in tools.iter().zip(&mut seconds) {
                let begun = Instant::now();
                self.send(*tool, address).await?;
                seconds.push(begun.elapsed().as_secs_f64());
                let sent = self.server.dir().join("root/C:/sent");
                ensure!(fs::read(&self.source)? == fs::read(&sent)?, "other bytes arrived than were sent");
                fs::remove_file(sent)?;
            }
        }
        Ok(seconds.map(median))
    }

    async fn send(&self, tool: Tool, address: SocketAddr) -> Result<()> {
        let name = match tool {
            Tool::Ours => return self.send_as_operator(address).await,
            Tool::Sftp => "sftp",
            Tool::Scp => "scp",
        };
        let (port, host) = (address.port().to_string(), "root@127.0.0.1");
        let mut command = Command::new(name);
        command.args(["-q", "-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"]);
        command.args(["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-P", &port, "-i"]);
        command.arg(self.server.key_file());
        if matches!(tool, Tool::Scp) {
            command.arg(&self.source).arg(format!("{host}:/C:/sent"));
        } else {
            let batch = self.server.dir().join("batch");
            fs::write(&batch, format!("put {} /C:/sent\n", self.source.display()))?;
            command.arg("-b").arg(batch).arg(host);
        }
        let output = spawn_blocking(move || command.stdin(Stdio::null()).output()).await?;
        let output = output.with_context(|| format!("cannot start {name}"))?;
        ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    async fn send_as_operator(&self, address: SocketAddr) -> Result<()> {
        let target = Target {
            address: address.ip().to_string(),
            port: address.port(),
            username: "root".into(),
            keys: vec![Arc::new(Identity::from_pem("the key", &fs::read(self.server.key_file())?)?)],
            host_key: HostKeyCheck::TrustOnFirstUse,
            jump_host: None,
            connect_timeout: Duration::from_secs(15),
            command_timeout: Duration::from_mins(1),
        };
        let connection = Connection::connect(&target).await?;
        let mut file = tokio::fs::File::open(&self.source).await?;
        let size = file.metadata().await?.len();
        connection.upload(r"C:\sent", size, &mut file).await?;
        Ok(())
    }
}

/// Returns the median of at least one value.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

/// Writes random bytes, which do not compress, and leaves them in the page cache.
fn fill(path: &Path, mib: u32) -> Result<()> {
    let mut file = fs::File::create(path)?;
    let (mut random, mut piece) = (StdRng::seed_from_u64(1), vec![0; 1 << 20]);
    for _ in 0..mib {
        random.fill_bytes(&mut piece);
        file.write_all(&piece)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_outliers() {
        for (values, expected) in
            [(vec![3.0], 3.0), (vec![9.0, 1.0, 2.0], 2.0), (vec![4.0, 1.0, 2.0, 99.0], 3.0), (vec![1.0, 2.0], 1.5)]
        {
            assert_eq!(median(values.clone()).total_cmp(&expected), std::cmp::Ordering::Equal, "{values:?}");
        }
    }
}
