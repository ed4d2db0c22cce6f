//! Evaluation of given weights on the true curves, whatever their origin.

use crate::model::{EngineId, Fleet};

use super::engine_cost::EngineCost;
use super::load::Load;
use super::{Inputs, RouteWeights};

/// Relative and absolute excess over the capacity that does not count as overload: the precision
/// that printing and reading weights loses.
const CAPACITY_TOLERANCE: f64 = 1e-6;

/// Latencies and loads under given weights and inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean latency of a served request (network, TTFT and all tokens), in ms; 0 if none is served.
    /// Overload adds the wait in a queue that grows for ten minutes: a finite latency, and above
    /// that of any legal plan.
    pub mean_ms: f64,
    /// Mean cost of a served request, in ms: its latency, each part times its class's weight. Plans
    /// minimise it.
    pub cost_ms: f64,
    pub served_rps: f64,
    /// Demand that the weights shed or do not mention, in requests/s.
    pub shed_rps: f64,
    /// True if some engine gets more than its capacity.
    pub is_overloaded: bool,
    /// One per engine of the fleet.
    pub engines: Vec<EngineEvaluation>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineEvaluation {
    /// Work, in reference requests/s like the capacity.
    pub load_rps: f64,
    pub capacity_rps: f64,
    /// KV memory, in the same unit: full at the capacity. 0 where the size of the cache is unknown.
    pub memory_rps: f64,
    /// Load divided by capacity: 0 without load, and `1 + load` where capacity is 0, so that it is
    /// finite and above 1.
    pub utilisation: f64,
    /// Mean time of its requests in the engine, in ms, overload included. Without load, the time of
    /// a first request of mean length.
    pub latency_ms: f64,
    pub is_overloaded: bool,
}

/// Evaluates `weights` for `inputs`, which must be of `fleet`.
///
/// The engines need not be eligible, ready or within capacity: [`crate::plan::verify::legal`]
/// checks that.
pub fn evaluate(fleet: &Fleet, inputs: &Inputs, weights: &[RouteWeights]) -> Evaluation {
    let nothing = || vec![Load::default(); fleet.engines.len()];
    // Loads with the classes' weights, for the cost, and loads without them, for the latency.
    let (mut loads, mut plain) = (nothing(), nothing());
    let mut memory_rps = vec![0.0; fleet.engines.len()];
    let (mut served_rps, mut network, mut network_cost) = (0.0, 0.0, 0.0);
    for route in weights {
        let class = &fleet.classes[route.class.index()];
        let (request, unweighted) = (Load::of(class), Load { work: class.work, ttft: 1.0, decode: class.output_tokens });
        let demand = inputs.demand(route.cluster, route.class) * (1.0 - route.shed_frac);
        for &(engine, weight) in &route.weights {
            let rps = demand * weight;
            loads[engine.index()].add(request.times(rps));
            memory_rps[engine.index()] += rps * fleet.profile_of(engine).memory(class).unwrap_or(0.0);
            plain[engine.index()].add(unweighted.times(rps));
            let rtt_ms = rps * inputs.rtt_ms[route.cluster.index()][engine.index()];
            network += rtt_ms;
            network_cost += request.ttft * rtt_ms;
            served_rps += rps;
        }
    }
    let usual_tokens = mean(fleet.classes.iter().map(|class| class.output_tokens));
    let first = Load { work: 1.0, ttft: 1.0, decode: usual_tokens };
    let (mut total, mut total_cost) = (network, network_cost);
    let engines: Vec<EngineEvaluation> = fleet
        .engine_ids()
        .map(|engine| {
            let cost = EngineCost::new(fleet, inputs, engine);
            let (load, count) = (loads[engine.index()].work, plain[engine.index()].ttft);
            let is_overloaded = load > cost.capacity_rps * (1.0 + CAPACITY_TOLERANCE) + CAPACITY_TOLERANCE;
            // Beyond capacity the profile is undefined: the latency is its value at capacity, and
            // the queue.
            let (ttft_ms, tbot_ms) = cost.times_ms(load.min(cost.capacity_rps));
            let ttft_ms = ttft_ms + cost.overload_ms(load);
            let spent = plain[engine.index()].cost(ttft_ms, tbot_ms);
            let latency_ms = if count > 0.0 { spent / count } else { first.cost(ttft_ms, tbot_ms) };
            total += spent;
            total_cost += loads[engine.index()].cost(ttft_ms, tbot_ms);
            let utilisation = match (load > 0.0, cost.capacity_rps > 0.0) {
                (false, _) => 0.0,
                (true, true) => load / cost.capacity_rps,
                (true, false) => 1.0 + load,
            };
            let (capacity_rps, memory_rps) = (cost.capacity_rps, memory_rps[engine.index()]);
            EngineEvaluation { load_rps: load, capacity_rps, memory_rps, utilisation, latency_ms, is_overloaded }
        })
        .collect();
    let demand_rps: f64 = inputs.demand_rps.iter().flatten().sum();
    Evaluation {
        mean_ms: if served_rps > 0.0 { total / served_rps } else { 0.0 },
        cost_ms: if served_rps > 0.0 { total_cost / served_rps } else { 0.0 },
        served_rps,
        shed_rps: (demand_rps - served_rps).max(0.0),
        is_overloaded: engines.iter().any(|engine| engine.is_overloaded),
        engines,
    }
}

/// Sends every (cluster, class) to its nearest eligible, ready engine, ties by name: the weights of
/// a fleet without a plan.
pub fn nearest(fleet: &Fleet, inputs: &Inputs) -> Vec<RouteWeights> {
    let mut routes = Vec::with_capacity(fleet.clusters.len() * fleet.classes.len());
    for cluster in fleet.cluster_ids() {
        for class in fleet.class_ids() {
            let usable = fleet
                .engine_ids()
                .filter(|&e| inputs.ready[e.index()] > 0 && inputs.ineligible(fleet, cluster, class, e).is_none());
            let best = usable.min_by(|&a, &b| {
                let rtt = |engine: EngineId| inputs.rtt_ms[cluster.index()][engine.index()];
                let name = |engine: EngineId| &fleet.engines[engine.index()].name;
                rtt(a).total_cmp(&rtt(b)).then_with(|| name(a).cmp(name(b)))
            });
            let weights = best.map(|engine| (engine, 1.0)).into_iter().collect();
            routes.push(RouteWeights { cluster, class, shed_frac: 0.0, weights });
        }
    }
    routes
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len();
    if count == 0 { 0.0 } else { values.sum::<f64>() / count as f64 }
}
