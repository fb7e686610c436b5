//! `wicd.exe`: performs the operator's requests on a Windows host, and is the Windows service that keeps the host in
//! its desired state.

use std::process::ExitCode;

use api::host::Verb;
use clap::{Parser, Subcommand};
use wicd::maintenance;

#[derive(Parser)]
#[command(name = "wicd", version, about = "Configures a Windows host as a node and maintains its configuration")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// Command of wicd. The operator starts the verbs over SSH; each reads its request from the operation's directory.
#[derive(Subcommand, Clone)]
enum Command {
    /// Report the state of the host, change nothing
    Facts { operation: String },
    /// Unpack and verify payload files
    Stage { operation: String },
    /// Put files and configuration in place, create certificate requests
    Apply { operation: String },
    /// Install the certificates, install and start the service
    Start { operation: String },
    /// Restart the host
    Reboot { operation: String },
    /// Pin listed images, pull at most one of them, unpin those that are no longer listed
    Pull { operation: String },
    /// Remove everything that the ownership record lists
    Cleanup { operation: String },
    /// Collect support data in an archive, change nothing else
    Support { operation: String },
    /// Run as the Windows service; started by the service manager
    Service,
    /// Run the service in the foreground
    Run,
    /// Request that the node of this host be drained for maintenance, and hand it back
    ///
    /// Exit codes: 0 success, 1 wicd cannot start, 2 invalid arguments, 3 timed out, 4 refused, 5 the API server cannot be used, 6 interrupted.
    #[command(subcommand)]
    Maintenance(maintenance::Action),
    /// Print the version
    Version,
}

impl Command {
    fn verb(&self) -> Option<(Verb, &str)> {
        match self {
            Self::Facts { operation } => Some((Verb::Facts, operation)),
            Self::Stage { operation } => Some((Verb::Stage, operation)),
            Self::Apply { operation } => Some((Verb::Apply, operation)),
            Self::Start { operation } => Some((Verb::Start, operation)),
            Self::Reboot { operation } => Some((Verb::Reboot, operation)),
            Self::Pull { operation } => Some((Verb::Pull, operation)),
            Self::Cleanup { operation } => Some((Verb::Cleanup, operation)),
            Self::Support { operation } => Some((Verb::Support, operation)),
            Self::Service | Self::Run | Self::Maintenance(_) | Self::Version => None,
        }
    }
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    if matches!(command, Command::Version) {
        println!("{}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    match on_windows(&command) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("wicd: {e:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(windows)]
fn on_windows(command: &Command) -> anyhow::Result<ExitCode> {
    use anyhow::Context;
    use wicd::windows::{WindowsHost, library, service};

    library::from_system_only().context("cannot restrict the library search path")?;
    // Fails only if the process has a TLS provider already, which is not possible here.
    let _ = rustls::crypto::ring::default_provider().install_default();
    if let Some((verb, operation)) = command.verb() {
        wicd::operation::serve(&WindowsHost, verb, operation)?;
        return Ok(ExitCode::SUCCESS);
    }
    match command {
        Command::Maintenance(action) => return request_maintenance(action),
        Command::Run => service::run_in_foreground().context("cannot run in the foreground")?,
        _ => {
            service::run().context("cannot run as a service; only the service manager can start `wicd.exe service`")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(windows)]
fn request_maintenance(action: &maintenance::Action) -> anyhow::Result<ExitCode> {
    use std::sync::Arc;

    use anyhow::Context;
    use wicd::{daemon::cluster::Kube, windows::WindowsHost};

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the asynchronous runtime")?;
    let connect = Kube::new(Arc::new(WindowsHost));
    let say = |text: &str| eprintln!("wicd: {text}");
    let second = std::time::Duration::from_secs(1);
    let means = maintenance::MaintenanceContext { host: &WindowsHost, connect: &connect, say: &say, second };
    let outcome = runtime.block_on(maintenance::run(&means, action, interrupted()));
    if outcome.code() == 0 {
        println!("{}", outcome.message());
    } else {
        eprintln!("wicd: {}", outcome.message());
    }
    Ok(ExitCode::from(outcome.code()))
}

/// Waits until a user interrupts the command or closes its window. After the window is closed, Windows ends the command within a few seconds.
#[cfg(windows)]
async fn interrupted() {
    use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close};

    let (Ok(mut c), Ok(mut pause), Ok(mut close)) = (ctrl_c(), ctrl_break(), ctrl_close()) else {
        // Without a console, nothing can interrupt the command.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = c.recv() => {}
        _ = pause.recv() => {}
        _ = close.recv() => {}
    }
}

#[cfg(not(windows))]
#[expect(clippy::unnecessary_wraps, reason = "the same signature as on Windows")]
fn on_windows(command: &Command) -> anyhow::Result<ExitCode> {
    /// Exit code when nothing was started, as for wrong arguments.
    const NOT_BEGUN: u8 = 2;
    let what = command.verb().map_or("this command", |(verb, _)| verb.as_str());
    eprintln!("wicd: {what} runs only on Windows");
    Ok(ExitCode::from(NOT_BEGUN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maintenance_needs_a_reason_and_its_timeout_is_a_number() {
        let begins = |line: &str| {
            let command = Arguments::try_parse_from(line.split(' ')).map(|arguments| arguments.command);
            matches!(command, Ok(Command::Maintenance(maintenance::Action::Begin { .. })))
        };
        for (line, is_good) in [
            ("wicd maintenance begin --reason patches", true),
            ("wicd maintenance begin --reason patches --timeout 60 --keep", true),
            ("wicd maintenance begin", false),
            ("wicd maintenance begin --reason ", false),
            ("wicd maintenance begin --reason x --timeout soon", false),
        ] {
            assert_eq!(begins(line), is_good, "{line}");
        }
    }

    #[test]
    fn the_command_lines_of_the_operator_are_parsed() {
        for verb in [Verb::Facts, Verb::Stage, Verb::Apply, Verb::Start, Verb::Reboot, Verb::Pull, Verb::Cleanup] {
            let line = api::host::command(&"a".repeat(64), verb, "join-1");
            let arguments = Arguments::try_parse_from(line.split(' ')).ok().unwrap();
            assert_eq!(arguments.command.verb(), Some((verb, "join-1")));
        }
    }
}
