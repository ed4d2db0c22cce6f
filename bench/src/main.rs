//! `ilb-bench`: parse the arguments and run one tool.

use std::io::IsTerminal;
use std::process::ExitCode;

use bench::{compare, demo, engine, faults, load, plan, real_engine, relay, sim};
use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// False engines, distance, load and measurements for ilb
#[derive(Parser)]
#[command(name = "ilb-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// A false engine: OpenAI's API, with latencies that follow a profile at its present load
    Engine(engine::Args),
    /// A relay that adds network distance between two addresses
    Relay(relay::Args),
    /// Open-loop load: Poisson arrivals, streaming clients
    Load(load::Args),
    /// ilb beside haproxy and nginx: latency, rate and CPU
    Compare(compare::Args),
    /// Engines that misbehave, overload and wrong numbers: what clients of ilb notice, beside other
    /// proxies
    Faults(faults::Args),
    /// Time, churn and certificates of the planner on a synthetic fleet
    Plan(plan::Args),
    /// An hour of a fleet's life on a virtual clock: swings, faults, and what each policy makes of
    /// them
    Sim(sim::Args),
    /// Two real llama.cpp engines with ilb in front
    RealEngine(real_engine::Args),
    /// A whole fleet with false engines, live, beside nearest-only routing
    Demo(demo::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_env("ILB_LOG").unwrap_or_else(|_| EnvFilter::new("info")))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    // One thread for every tool: a false engine or a client that spreads over cores would take them
    // from what is measured.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("ilb-bench: failed to start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let local = tokio::task::LocalSet::new();
    let result = local.block_on(&runtime, async {
        match cli.command {
            Command::Engine(args) => engine::run(args).await,
            Command::Relay(args) => relay::run(args).await,
            Command::Load(args) => load::run(args).await,
            Command::Compare(args) => compare::run(args).await,
            Command::Faults(args) => faults::run(args).await,
            Command::Plan(args) => plan::run(&args),
            Command::Sim(args) => sim::run(&args),
            Command::RealEngine(args) => real_engine::run(args).await,
            Command::Demo(args) => demo::run(args).await,
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ilb-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
