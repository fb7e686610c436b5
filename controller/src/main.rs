//! Binary `windows-node-pools`: the operator. `--help` lists its commands and settings.

use std::process::ExitCode;

use clap::CommandFactory as _;
use controller::{
    args::{self, Operator, OperatorCommand},
    runtime::errors,
};

/// Global allocator. `.cargo/config.toml` sets its options at build time.
#[cfg(all(target_env = "musl", target_arch = "x86_64"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() -> ExitCode {
    // Must come first: without exactly one provider in the process, the first TLS connection panics.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let Operator { cluster, command } = match args::parse(Operator::command()) {
        Ok(operator) => operator,
        Err(status) => return status,
    };
    errors::exit(match command {
        OperatorCommand::Run(args) => Box::pin(controller::run::run(*args, &cluster)).await.map(|()| ExitCode::SUCCESS),
        OperatorCommand::Payload { copy } => controller::args::payload_command::run(&copy),
    })
}
