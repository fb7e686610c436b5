//! `wicd.exe`: performs the operator's requests on a Windows host, and is the Windows service that keeps the host in
//! its desired state.

use std::process::ExitCode;

use api::host::Verb;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "wicd", version, about = "Configures a Windows host as a node and maintains its configuration")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// The verbs are started by the operator over SSH; each reads its request from the directory of the operation.
#[derive(Subcommand, Clone)]
enum Command {
    /// Look, change nothing
    Facts { operation: String },
    /// Unpack and verify payload files
    Stage { operation: String },
    /// Put files and configuration in place, make certificate requests
    Apply { operation: String },
    /// Take certificates, install and start the service
    Start { operation: String },
    /// Restart the host
    Reboot { operation: String },
    /// Remove everything that the operator put on the host
    Cleanup { operation: String },
    /// Be the Windows service; started by the service manager
    Service,
    /// Do what the service does, in the foreground
    Run,
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
            Self::Cleanup { operation } => Some((Verb::Cleanup, operation)),
            Self::Service | Self::Run | Self::Version => None,
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

    library::from_system_only().context("cannot restrict the search path of libraries")?;
    // One TLS provider for the process. A second call cannot happen here.
    let _ = rustls::crypto::ring::default_provider().install_default();
    if let Some((verb, operation)) = command.verb() {
        wicd::operation::serve(&WindowsHost, verb, operation)?;
        return Ok(ExitCode::SUCCESS);
    }
    match command {
        Command::Run => service::run_in_foreground().context("cannot run in the foreground")?,
        _ => service::run().context("cannot run as a service; only the service manager can start it")?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(not(windows))]
#[expect(clippy::unnecessary_wraps, reason = "the same signature as on Windows")]
fn on_windows(command: &Command) -> anyhow::Result<ExitCode> {
    /// As for wrong arguments: nothing was begun.
    const NOT_BEGUN: u8 = 2;
    let what = command.verb().map_or("the service", |(verb, _)| verb.as_str());
    eprintln!("wicd: {what} does its work only on Windows");
    Ok(ExitCode::from(NOT_BEGUN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operators_command_line_is_understood() {
        for verb in [Verb::Facts, Verb::Stage, Verb::Apply, Verb::Start, Verb::Reboot, Verb::Cleanup] {
            let line = api::host::command(&"a".repeat(64), verb, "join-1");
            let arguments = Arguments::try_parse_from(line.split(' ')).ok().unwrap();
            assert_eq!(arguments.command.verb(), Some((verb, "join-1")));
        }
    }
}
