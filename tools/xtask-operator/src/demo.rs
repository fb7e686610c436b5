//! `cargo xtask demo`: from a fresh clone to Ready nodes, on this machine alone.

mod guide;
mod switches;
mod table;
mod world;

use std::{
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use testbed::{binaries, wine};
use tokio::time::sleep;

use self::{switches::Switches, table::Table, world::World};

/// Interval at which the table reads the cluster.
const LOOK: Duration = Duration::from_millis(250);

/// Shows hosts becoming nodes: starts a control plane, hosts and the operator, applies a pool, and shows a live table. Then
/// prints commands to try, and runs until Ctrl-C. It ends everything that it started.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Exit when all nodes of the first table are Ready, or with an error after `--timeout`.
    #[arg(long)]
    once: bool,
    /// Number of simulated hosts. Defaults to 3 in addition to the 2 under Wine, or to 5 without Wine.
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..=500))]
    hosts: Option<u16>,
    /// Use only simulated hosts, even if Wine is available.
    #[arg(long)]
    simulated: bool,
    /// Time limit, with `--once`, for all nodes to become Ready after the pool is applied, in seconds.
    #[arg(long, default_value_t = 600)]
    timeout: u64,
}

/// Runs the demo.
pub(crate) fn run(args: &Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::select! {
            // Dropping the future stops everything that it started.
            result = show(args) => result,
            pressed = tokio::signal::ctrl_c() => {
                pressed?;
                println!("\nEnding everything.");
                Ok(())
            }
        }
    })
}

/// Shows the demo. If the programs of Wine hosts are not built yet, simulated hosts become nodes first.
async fn show(args: &Args) -> Result<()> {
    let with_wine = match wine::available() {
        _ if args.simulated => false,
        Ok(()) => true,
        Err(reason) => {
            println!("Only simulated hosts: {reason}.");
            false
        }
    };
    if with_wine && !binaries::wine_programs_are_built() {
        let first = Box::pin(show_nodes(args, false)).await?;
        println!(
            "\nTwo hosts under Wine run the real wicd.exe, once their programs are built (about 6 minutes, once)."
        );
        if args.once {
            println!("`make demo` builds them.");
            return Ok(());
        }
        world::build_for_wine().await?;
        drop(first);
    }
    let mut world = Box::pin(show_nodes(args, with_wine)).await?;
    if args.once {
        return Ok(());
    }
    let mut switches = Switches::new(world.control_plane.dir()).context("cannot create the hosts' switches")?;
    println!("\n{}", guide::text(&world)?);
    loop {
        switches.follow(&world)?;
        world.operator.check()?;
        sleep(LOOK).await;
    }
}

/// Starts everything, applies the pool, and shows the table until all nodes are Ready.
async fn show_nodes(args: &Args, with_wine: bool) -> Result<World> {
    let begun = Instant::now();
    let mut world = World::start(args.hosts, with_wine).await?;
    println!("\nApplying the pool {}: {} hosts will become nodes.\n", world::POOL, world.count());
    world.apply_pool().await?;
    let applied = Instant::now();
    let mut table = Table::new(std::io::stdout().is_terminal());
    let mut view = world.look().await?;
    while !table.draw(&view, world.count()) {
        world.operator.check()?;
        if args.once && applied.elapsed() > Duration::from_secs(args.timeout) {
            table.finish(&view, world.count());
            let log = world.operator.log();
            let lines: Vec<&str> = log.lines().collect();
            println!("\nThe end of the operator's log:\n{}", lines[lines.len().saturating_sub(30)..].join("\n"));
            bail!("not all nodes are Ready after {} s", args.timeout);
        }
        sleep(LOOK).await;
        view = world.look().await?;
    }
    table.finish(&view, world.count());
    let (all, since_pool) = (begun.elapsed().as_secs_f64(), applied.elapsed().as_secs_f64());
    println!("\nAll {} nodes are Ready: {since_pool:.1} s after the pool, {all:.1} s in all.", world.count());
    Ok(world)
}
