//! `windows-node-pools`: see `--help`.

use clap::Parser;
use controller::args::{Cli, Command};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // The first line: two providers in one process, or none, make the first TLS connection panic.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match Cli::parse().command {
        Command::Run(args) => Box::pin(controller::run::run(*args)).await,
        Command::Crds => {
            for crd in api::crds() {
                print!("---\n{}", serde_yaml::to_string(&crd)?);
            }
            Ok(())
        }
    }
}
