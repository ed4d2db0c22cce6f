//! The commands that need no running ilb.

use std::io::{ErrorKind, Write};
use std::path::Path;

use router_user::clock::Clock;
use router_user::config::Config;
use router_user::kernel::{self, KernelStatus};
use router_user::plan::{Inputs, Plan, evaluate, explain, nearest, plan, report};

use crate::app::{UsageError, load};
use crate::cli::Explain;

/// Writes to stdout; a reader that went away early ends the program quietly.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        outcome => Ok(outcome?),
    }
}

pub(crate) fn check(file: &Path) -> anyhow::Result<()> {
    print(&load(file)?.to_toml())
}

pub(crate) fn solve(file: &Path, json: bool) -> anyhow::Result<()> {
    let config = load(file)?;
    let (inputs, plan) = plan_configured(&config)?;
    if json {
        return print(&format!("{}\n", serde_json::to_string_pretty(&report::solution(&config.fleet, &plan))?));
    }
    let nearest = evaluate(&config.fleet, &inputs, &nearest(&config.fleet, &inputs));
    print(&report::table(&config.fleet, &plan, &nearest))
}

pub(crate) fn explain(args: Explain) -> anyhow::Result<()> {
    let config = load(&args.file)?;
    let fleet = &config.fleet;
    let unknown = |kind: &str, name: &Option<String>, known: bool| match name {
        Some(name) if !known => Err(UsageError::Arguments(format!("--{kind} names the unknown {kind} {name:?}"))),
        _ => Ok(()),
    };
    unknown("cluster", &args.cluster, args.cluster.as_ref().is_some_and(|n| fleet.cluster(n).is_some()))?;
    unknown("class", &args.class, args.class.as_ref().is_some_and(|n| fleet.class(n).is_some()))?;
    unknown("engine", &args.engine, args.engine.as_ref().is_some_and(|n| fleet.engine(n).is_some()))?;
    let (inputs, plan) = plan_configured(&config)?;
    let explanation =
        explain::explain(fleet, &inputs, &plan).only(args.cluster.as_deref(), args.class.as_deref(), args.engine.as_deref());
    if args.json { print(&format!("{}\n", serde_json::to_string_pretty(&explanation)?)) } else { print(&explanation.to_string()) }
}

/// Plans with the configured demand and headroom, every replica ready.
fn plan_configured(config: &Config) -> anyhow::Result<(Inputs, Plan)> {
    let inputs = Inputs { headroom_frac: config.control.headroom_frac, ..Inputs::from_fleet(&config.fleet) };
    let clock = Clock::start();
    let mut plan = plan(&config.fleet, &inputs, None)?;
    plan.solve_ms = clock.now().as_secs_f64() * 1e3;
    Ok((inputs, plan))
}

pub(crate) fn kernel_status(pin_dir: &Path, json: bool) -> anyhow::Result<()> {
    let status = KernelStatus::read(pin_dir)?;
    if json { print(&format!("{}\n", serde_json::to_string_pretty(&status)?)) } else { print(&status.to_string()) }
}

pub(crate) fn kernel_detach(pin_dir: &Path) -> anyhow::Result<()> {
    let detached = kernel::detach(pin_dir)?;
    print(if detached { "detached\n" } else { "nothing was attached\n" })
}
