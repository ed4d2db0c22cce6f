//! `ilb-bench plan`: how fast and how calm the planner is, on a synthetic fleet that lives on.
//!
//! Each tick takes measured demand and distances with noise, plans from the current weights,
//! checks the certificate, accounts for every weight, and publishes only what the production rule
//! publishes. Then the largest region is lost. Times are wall-clock times of all of that; the
//! machine and its load belong beside every figure.

mod report;
pub(crate) mod world;

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use router_user::control::estimate::deadband::SteadyRtt;
use router_user::model::{ClassId, ClusterId, EngineId};
use router_user::plan::decide::gate::{decide, moved_frac};
use router_user::plan::explain::weights;
use router_user::plan::{Inputs, Optimiser, Plan, RouteWeights, evaluate};

use crate::clock;
use crate::origin::Origin;

pub use report::Report;
use world::{Size, World};

/// Weights below this need no reason of their own.
const LEAST_WEIGHT: f64 = 1e-3;
/// Ticks within which a weight that turns round by more than [`REVERSAL_FRAC`] counts as flapping.
const REVERSAL_TICKS: usize = 10;
const REVERSAL_FRAC: f64 = 0.01;
/// Clusters x engines x classes above which the plain linear program is left out: it is there to
/// compare churn, not speed.
const PLAIN_LIMIT: usize = 20_000;
/// Time for the solves of one plan.
const BUDGET: Duration = Duration::from_secs(60);

/// Measure the planner on a synthetic fleet: time, churn, gap, explanations
///
/// Example: ilb-bench plan --clusters 100 --engines 2000 --classes 5 --pooled --json
#[derive(Clone, Debug, Parser)]
pub struct Args {
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    clusters: u16,
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    engines: u16,
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    classes: u16,
    /// Engines of one region, kind and model are identical; without it each is at a distance of its
    /// own
    #[arg(long)]
    pooled: bool,
    /// Demand of everybody together as a share of all capacity, above 0 to 2
    #[arg(long, default_value_t = 0.7)]
    load: f64,
    /// Plans after the first
    #[arg(long, default_value_t = 40)]
    ticks: u32,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Let demand stand still, so that distances alone are noisy
    #[arg(long)]
    still: bool,
    /// Also keep the figures in this folder, in a file of their own
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let origin = Origin::here()?;
    let report = measure(args)?;
    if let Some(folder) = &args.save {
        std::fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))?;
        let path = folder.join(format!("plan-{}.json", origin.date.replace(':', "")));
        let text = serde_json::to_string_pretty(&report::Saved { origin: &origin, report: &report })? + "\n";
        std::fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{report}");
    }
    Ok(())
}

/// Runs the whole measurement.
///
/// Errors: no plan, or too few engines for the models of the classes.
pub fn measure(args: &Args) -> Result<Report> {
    let [clusters, engines, classes] = [args.clusters, args.engines, args.classes].map(usize::from);
    ensure!(engines >= classes, "{engines} engines serve {classes} classes; wanted at least one engine per class");
    ensure!(args.load > 0.0 && args.load <= 2.0, "--load is {}; wanted a share of capacity above 0, at most 2", args.load);
    let mut world = World::new(Size { clusters, engines, classes, load_frac: args.load, is_pooled: args.pooled }, args.seed);
    let mut steady = SteadyRtt::new(world.fleet.rtt_ms.clone());
    let has_plain = clusters * engines * classes <= PLAIN_LIMIT;
    let mut calm = Follower::new();
    let mut plain = Follower::new();
    let mut report = Report::new(args);
    let mut inputs = Inputs::from_fleet(&world.fleet);
    for tick in 0..=args.ticks {
        let demand_rps = world.demand_rps();
        if tick == 0 || !args.still {
            inputs.demand_rps = demand_rps;
        }
        let measured = world.rtt_ms();
        steady.observe(&measured);
        inputs.rtt_ms = steady.rtt_ms().to_vec();
        let plan = calm.follow(&world, &inputs, true)?;
        report.add(&plan, calm.last_ms, calm.last_moved, calm.has_published, calm.unexplained, tick == 0);
        if has_plain {
            let noisy = Inputs { rtt_ms: measured, ..inputs.clone() };
            let best = plain.follow(&world, &noisy, false)?;
            let truth = Inputs { rtt_ms: world.fleet.rtt_ms.clone(), ..inputs.clone() };
            let current_ms = evaluate(&world.fleet, &truth, calm.current.as_deref().unwrap_or_default()).mean_ms;
            report.add_plain(
                plain.last_moved,
                current_ms / evaluate(&world.fleet, &truth, &best.weights()).mean_ms - 1.0,
                tick == 0,
            );
        }
    }
    report.reversals = calm.reversals;
    if has_plain {
        report.plain_reversals = Some(plain.reversals);
    }
    let lost = world.largest_region();
    for (ready, engine) in inputs.ready.iter_mut().zip(&world.fleet.engines) {
        if engine.region == lost {
            *ready = 0;
        }
    }
    let plan = calm.follow(&world, &inputs, true)?;
    ensure!(calm.has_published, "the loss of {lost} has to change the weights");
    report.add_loss(&plan, calm.last_ms, calm.unexplained);
    Ok(report)
}

/// One policy that plans tick by tick, and what its weights do.
struct Follower {
    optimiser: Optimiser,
    current: Option<Vec<RouteWeights>>,
    last_ms: f64,
    last_moved: f64,
    has_published: bool,
    unexplained: usize,
    reversals: u32,
    /// Changes of weights above the threshold in the last ticks.
    turns: VecDeque<HashMap<(ClusterId, ClassId, EngineId), bool>>,
}

impl Follower {
    fn new() -> Self {
        Self {
            optimiser: Optimiser::new(BUDGET),
            current: None,
            last_ms: 0.0,
            last_moved: 0.0,
            has_published: false,
            unexplained: 0,
            reversals: 0,
            turns: VecDeque::new(),
        }
    }

    /// Plans one tick: calmly as in production, or as a plain program that takes every plan.
    fn follow(&mut self, world: &World, inputs: &Inputs, is_calm: bool) -> Result<Plan> {
        let started = clock::now();
        let current = self.current.as_deref().filter(|_| is_calm);
        let plan = self.optimiser.plan(&world.fleet, inputs, current)?;
        self.unexplained = weights::unexplained(&world.fleet, inputs, &plan, LEAST_WEIGHT);
        let decision = decide(&world.fleet, inputs, current, &plan);
        let published = if is_calm { decision.publishes(&plan) } else { Some(Cow::Borrowed(&plan)) };
        self.has_published = published.is_some();
        self.last_ms = started.elapsed().as_secs_f64() * 1e3;
        self.last_moved = 0.0;
        let mut turns = HashMap::new();
        if let Some(published) = published {
            let weights = published.weights();
            if let Some(before) = &self.current {
                self.last_moved = moved_frac(inputs, before, &weights);
                turns = changes(before, &weights);
            }
            self.current = Some(weights);
        }
        let back = |(key, up): (&_, &bool)| self.turns.iter().any(|before| before.get(key).is_some_and(|other| other != up));
        self.reversals += turns.iter().filter(|&(key, up)| back((key, up))).count() as u32;
        self.turns.push_back(turns);
        if self.turns.len() > REVERSAL_TICKS {
            self.turns.pop_front();
        }
        Ok(plan)
    }
}

/// Weights that changed by more than [`REVERSAL_FRAC`], and whether they grew.
fn changes(before: &[RouteWeights], after: &[RouteWeights]) -> HashMap<(ClusterId, ClassId, EngineId), bool> {
    let mut difference: HashMap<(ClusterId, ClassId, EngineId), f64> = HashMap::new();
    for (routes, sign) in [(before, -1.0), (after, 1.0)] {
        for route in routes {
            for &(engine, weight) in &route.weights {
                *difference.entry((route.cluster, route.class, engine)).or_default() += sign * weight;
            }
        }
    }
    difference.into_iter().filter(|(_, by)| by.abs() > REVERSAL_FRAC).map(|(key, by)| (key, by > 0.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_under_noise_stays_calm_certified_and_explained() {
        let args = "plan --clusters 10 --engines 100 --classes 1 --ticks 40 --seed 1".split(' ');
        let report = measure(&Args::parse_from(args)).expect("a fleet with room");
        assert!(report.gap_max <= 5e-4 && report.unexplained == 0, "{report}");
        assert!(report.churn_mean <= 0.005 && report.published_share <= 0.2, "{report}");
        let (plain, cost) = (report.plain_churn_mean.expect("small"), report.cost_over_plain_mean.expect("small"));
        assert!(plain > 20.0 * report.churn_mean && cost <= 1e-3, "{report}");
        assert!(report.region_loss_ms > 0.0 && report.region_loss_shed_rps == 0.0, "{report}");
    }

    #[test]
    fn noise_of_distances_inside_their_dead_band_moves_nothing() {
        for args in ["plan --ticks 30 --still", "plan --classes 5 --pooled --ticks 10 --still --seed 2"] {
            let report = measure(&Args::parse_from(args.split(' '))).expect("a fleet with room");
            assert_eq!((report.churn_max, report.published_share, report.reversals), (0.0, 0.0, 0), "{args}: {report}");
        }
    }

    #[test]
    fn nothing_turns_round_in_fleets_under_noise() {
        let fleets =
            ["--classes 1 --ticks 100 --seed 1", "--classes 1 --ticks 100 --seed 2", "--classes 5 --pooled --ticks 100 --seed 1"];
        for fleet in fleets {
            let args = format!("plan --clusters 10 --engines 100 {fleet}");
            let report = measure(&Args::parse_from(args.split(' '))).expect("a fleet with room");
            assert_eq!(report.reversals, 0, "{report}");
            assert!(report.churn_mean <= 0.005 && report.published_share <= 0.2, "{report}");
        }
    }

    #[test]
    fn pooled_engines_and_several_classes_are_planned_in_parts_and_the_same_seed_repeats() {
        let run = || {
            let args = "plan --clusters 12 --engines 216 --classes 4 --pooled --ticks 5 --seed 7".split(' ');
            measure(&Args::parse_from(args)).expect("a fleet with room")
        };
        let (report, again) = (run(), run());
        assert!(report.components == 2 && report.unexplained == 0 && report.gap_max <= 5e-4, "{report}");
        assert_eq!((report.gap_max, report.churn_mean), (again.gap_max, again.churn_mean));
        let starved = measure(&Args::parse_from("plan --engines 2 --classes 3".split(' '))).expect_err("no plan");
        assert!(starved.to_string().contains("2 engines serve 3 classes"), "{starved}");
    }
}
