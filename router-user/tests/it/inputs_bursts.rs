//! What bursts do to a plan: room is kept where it is cheap, and nobody is refused for it.

use std::sync::Arc;
use std::time::Duration;

use router_user::config;
use router_user::control::Measured;
use router_user::model::{EngineId, Fleet};
use router_user::plan::verify;
use router_user::plan::{Inputs, RouteWeights, Status, evaluate, plan};
use router_user::protocol::DemandReport;

use crate::plan::fleet::curve;
use crate::plan::laws::{Dice, Recipe, explained, fleet, seeds};

/// Demand of the three clusters: four fifths of all capacity, and more at the second than its own
/// engine can carry.
const DEMAND_RPS: [f64; 3] = [75.0, 135.0, 20.0];
/// Time constants of the estimates many times over.
const LEARNING_S: u64 = 3_600;
/// Windows of ten seconds in which engines are looked at.
const WINDOWS: usize = 10_000;

/// Requests in one window when `mean` are expected, in batches of `size`: a stream with that index
/// of dispersion.
fn arrivals(dice: &mut Dice, mean: f64, size: f64) -> u64 {
    let (mut batches, mut left) = (0.0, mean / size);
    // Knuth's count, in parts that do not underflow.
    while left > 0.0 {
        let floor = (-left.min(50.0)).exp();
        left -= 50.0;
        let mut product = dice.real(0.0, 1.0);
        while product > floor {
            product *= dice.real(0.0, 1.0);
            batches += 1.0;
        }
    }
    (batches * size) as u64
}

/// Inputs as the control plane has them after an hour of arrivals in batches of `size`.
fn learned(size: f64) -> (Fleet, Inputs) {
    let mut config = config::parse(include_str!("../../../examples/three-regions.toml")).expect("legal");
    for profile in &mut config.fleet.profiles {
        // Engines that are as quick when nearly full as when half full: nothing but bursts speaks
        // against filling them.
        profile.ttft_ms = curve(&[(0.0, 120.0), (profile.capacity_rps, 140.0)]);
        profile.tbot_ms = curve(&[(0.0, 8.0), (profile.capacity_rps, 8.5)]);
    }
    let fleet = config.fleet.clone();
    let mut measured = Measured::new(Arc::new(config));
    let mut dice = Dice(1);
    let mut inputs = None;
    for now in (0..LEARNING_S).step_by(2) {
        let now = Duration::from_secs(now);
        for (cluster, rps) in fleet.clusters.iter().zip(DEMAND_RPS) {
            let report = DemandReport {
                cluster: cluster.name.clone(),
                instance: "p".to_owned(),
                window_ms: 2_000,
                arrivals: vec![("chat".to_owned(), arrivals(&mut dice, 2.0 * rps, size))],
                ..DemandReport::default()
            };
            measured.report(now, &report).expect("legal");
        }
        inputs = Some(measured.inputs(now, Vec::new(), None).0);
    }
    let learned = inputs.expect("at least one round");
    (fleet.clone(), Inputs { demand_rps: DEMAND_RPS.map(|rps| vec![rps]).to_vec(), ..learned })
}

/// Share of windows in which some engine is sent more than it can serve.
fn overloaded_frac(fleet: &Fleet, weights: &[RouteWeights], size: f64) -> f64 {
    let mut dice = Dice(2);
    let overloaded = (0..WINDOWS).filter(|_| {
        let mut load = vec![0.0; fleet.engines.len()];
        for route in weights {
            let count = arrivals(&mut dice, 10.0 * DEMAND_RPS[route.cluster.index()], size) as f64;
            for &(engine, weight) in &route.weights {
                load[engine.index()] += count * weight;
            }
        }
        fleet.engine_ids().any(|engine| load[engine.index()] > 10.0 * fleet.profile_of(engine).capacity_rps)
    });
    overloaded.count() as f64 / WINDOWS as f64
}

#[test]
fn windows_with_overload_are_rarer_at_a_small_cost() {
    for (size, fewer, dearer) in [(4.0, 0.5, 0.03), (70.0, 0.9, 0.05)] {
        let (fleet, inputs) = learned(size);
        let calm = Inputs { burst_ms: vec![0.0; 3], ..inputs.clone() };
        let weights = |inputs: &Inputs| plan(&fleet, inputs, None).expect("a plan").weights();
        let (without, with) = (weights(&calm), weights(&inputs));
        let (before, after) = (overloaded_frac(&fleet, &without, size), overloaded_frac(&fleet, &with, size));
        let cost = evaluate(&fleet, &calm, &with).mean_ms / evaluate(&fleet, &calm, &without).mean_ms - 1.0;
        println!("batches of {size}: {:?} ms, overloaded {before:.4} -> {after:.4}, cost {cost:.4}", inputs.burst_ms);
        assert!(inputs.burst_ms.iter().all(|&ms| ms > 0.0), "{:?}", inputs.burst_ms);
        assert!(before > 0.0 && after <= fewer * before, "batches of {size}: {before} -> {after}");
        assert!(cost <= dearer, "batches of {size} cost {cost}");
    }
}

#[test]
fn arrivals_without_bursts_cost_nothing() {
    assert_eq!(learned(1.0).1.burst_ms, [0.0; 3]);
}

#[test]
fn bursts_alone_refuse_nobody() {
    let (fleet, mut inputs) = learned(70.0);
    inputs.demand_rps = vec![vec![97.0], vec![123.0], vec![59.0]];
    assert!(inputs.burst_ms.iter().all(|&ms| ms > 100.0), "{:?}", inputs.burst_ms);
    let plan = plan(&fleet, &inputs, None).expect("a plan");
    assert_eq!(plan.status, Status::Optimal, "279 of 280 requests/s are carried");
}

#[test]
fn plans_with_bursts_and_limits_are_certified_and_explained() {
    let recipe = Recipe { clusters: 5, engines: 7, classes: 3, has_lengths: false, has_work: true, has_faults: true, load: 0.9 };
    for seed in seeds(200) {
        let mut dice = Dice(seed);
        let (fleet, mut inputs) = fleet(&mut dice, recipe);
        for engine in 0..fleet.engines.len() {
            inputs.burst_ms[engine] = if dice.one_in(2) { dice.real(0.0, 500.0) } else { 0.0 };
            let capacity = inputs.capacity_rps(&fleet, EngineId::of(engine));
            inputs.load_limit_rps[engine] = dice.one_in(4).then(|| [0.0, 0.5, 0.95, 1.5][dice.below(4)] * capacity);
        }
        let plan = plan(&fleet, &inputs, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        verify::legal(&fleet, &inputs, &plan.weights()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        explained(seed, &fleet, &inputs, &plan);
    }
}
