//! The commands that need no running ilb.

use std::path::Path;

use router_user::clock::Clock;
use router_user::config::Config;
use router_user::kernel::{self, KernelStatus};
use router_user::model::Fleet;
use router_user::plan::decide::whatif;
use router_user::plan::decide::whatif::Change;
use router_user::plan::explain::{report, weights};
use router_user::plan::{Inputs, Plan, evaluate, nearest, plan_or_greedy};

use super::args::Explain;
use super::print::print;
use super::usage::{UsageError, load};

pub(crate) fn check(file: &Path) -> anyhow::Result<()> {
    print(&load(file)?.to_toml())
}

pub(crate) fn solve(file: &Path, changes: &[Change], json: bool) -> anyhow::Result<()> {
    let config = load(file)?;
    let fleet = &config.fleet;
    let inputs = configured(&config);
    let plan = planned(fleet, &inputs)?;
    let table =
        |inputs: &Inputs, plan: &Plan| report::table(fleet, inputs, plan, &evaluate(fleet, inputs, &nearest(fleet, inputs)));
    if changes.is_empty() {
        return match json {
            true => print(&format!("{}\n", serde_json::to_string_pretty(&report::solution(fleet, &inputs, &plan))?)),
            false => print(&table(&inputs, &plan)),
        };
    }
    let mut changed = inputs.clone();
    for change in changes {
        change.apply(fleet, &mut changed).map_err(|error| UsageError::Arguments(format!("--what-if {error}")))?;
    }
    let after = planned(fleet, &changed)?;
    let comparison = whatif::compare(fleet, changes, (&inputs, &plan), (&changed, &after));
    if json {
        return print(&format!("{}\n", serde_json::to_string_pretty(&comparison)?));
    }
    let (before, after, what) = (table(&inputs, &plan), table(&changed, &after), comparison.changes.join(", "));
    print(&format!("as configured\n\n{before}\nwhat if {what}\n\n{after}\ndifferences\n\n{}", comparison.differences))
}

pub(crate) fn explain(file: &Path, args: &Explain) -> anyhow::Result<()> {
    let config = load(file)?;
    let fleet = &config.fleet;
    let unknown = |kind: &str, name: &Option<String>, known: bool| match name {
        Some(name) if !known => Err(UsageError::Arguments(format!("--{kind} names the unknown {kind} {name:?}"))),
        _ => Ok(()),
    };
    unknown("cluster", &args.cluster, args.cluster.as_ref().is_some_and(|n| fleet.cluster(n).is_some()))?;
    unknown("class", &args.class, args.class.as_ref().is_some_and(|n| fleet.class(n).is_some()))?;
    unknown("engine", &args.engine, args.engine.as_ref().is_some_and(|n| fleet.engine(n).is_some()))?;
    let inputs = configured(&config);
    let plan = planned(fleet, &inputs)?;
    let explanation =
        weights::explain(fleet, &inputs, &plan).only(args.cluster.as_deref(), args.class.as_deref(), args.engine.as_deref());
    if args.ask.json {
        print(&format!("{}\n", serde_json::to_string_pretty(&explanation)?))
    } else {
        print(&explanation.to_string())
    }
}

/// The configured demand and headroom, every replica ready.
fn configured(config: &Config) -> Inputs {
    Inputs {
        headroom_frac: config.control.headroom_frac,
        move_limit_frac: config.control.move_limit_frac,
        ..Inputs::from_fleet(&config.fleet)
    }
}

fn planned(fleet: &Fleet, inputs: &Inputs) -> anyhow::Result<Plan> {
    let clock = Clock::start();
    let mut plan = plan_or_greedy(fleet, inputs, None)?;
    plan.solve_ms = clock.now().as_secs_f64() * 1e3;
    Ok(plan)
}

pub(crate) fn kernel_status(pin_dir: &Path, json: bool) -> anyhow::Result<()> {
    let status = KernelStatus::read(pin_dir)?;
    if json { print(&format!("{}\n", serde_json::to_string_pretty(&status)?)) } else { print(&status.to_string()) }
}

pub(crate) fn kernel_detach(pin_dir: &Path) -> anyhow::Result<()> {
    let detached = kernel::detach(pin_dir)?;
    print(if detached { "detached\n" } else { "nothing was attached\n" })
}
