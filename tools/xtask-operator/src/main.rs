//! Tasks of `cargo xtask` that need the operator's code. Each has a file of its own, with its arguments and a `run`.

mod bench;
mod demo;
mod deploy;
mod dist;
mod r#gen;
mod image;
mod payload;
mod rights;
mod sign;
mod yaml;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks for developers and CI.")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Bench(bench::Args),
    Demo(demo::Args),
    Dist(dist::Args),
    Gen(r#gen::Args),
    Image(image::Args),
    Payload(payload::Args),
    Rights(rights::Args),
}

fn main() -> std::process::ExitCode {
    devenv::exit(run(Cli::parse().task))
}

fn run(task: Task) -> anyhow::Result<()> {
    match task {
        Task::Bench(args) => bench::run(&args),
        Task::Demo(args) => demo::run(&args),
        Task::Dist(args) => dist::run(&args),
        Task::Gen(args) => r#gen::run(&args),
        Task::Image(args) => image::run(&args),
        Task::Payload(args) => payload::run(args),
        Task::Rights(args) => rights::run(&args),
    }
}
