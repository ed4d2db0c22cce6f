//! A solved round in the words of a plan: weights, prices, loads.

use crate::model::{ClassId, ClusterId, EngineId, Fleet};

use super::optimise::Round;
use super::outcome::{Certificate, EngineLoad, Plan, Route, RouteWeight, Status};
use super::problem::Problem;
use super::{Evaluation, Inputs, NEGLIGIBLE_RPS, ROUNDING_FRAC};

/// The plan of one round, still without what the true curves say of it.
pub(super) fn assemble(fleet: &Fleet, inputs: &Inputs, problem: &Problem<'_>, round: &Round, rounds: u32) -> Plan {
    let engines: Vec<EngineLoad> = fleet.engine_ids().map(|engine| engine_load(fleet, problem, round, engine)).collect();
    let mut arcs_of = vec![Vec::new(); problem.demands.len()];
    for (at, arc) in problem.arcs.iter().enumerate() {
        arcs_of[arc.demand].push(at);
    }
    let mut demand_of = vec![None; fleet.clusters.len() * fleet.classes.len()];
    for (at, demand) in problem.demands.iter().enumerate() {
        demand_of[demand.cluster.index() * fleet.classes.len() + demand.class.index()] = Some(at);
    }
    let mut routes = Vec::with_capacity(demand_of.len());
    for cluster in fleet.cluster_ids() {
        for class in fleet.class_ids() {
            let idle = idle_route(fleet, inputs, &engines, cluster, class);
            routes.push(match demand_of[cluster.index() * fleet.classes.len() + class.index()] {
                Some(demand) => busy_route(problem, round, demand, &arcs_of[demand], idle),
                None => idle,
            });
        }
    }
    let mix_error = problem.engines.iter().enumerate().map(|(at, engine)| {
        let extra_tokens = round.point.load_tokens[at] - round.frame.tokens[at] * round.point.load_rps[at];
        extra_tokens * (round.frame.tbot_ms[at] - engine.tbot_ms(round.point.load_rps[at]))
    });
    let served: f64 = round.point.load_rps.iter().sum();
    let certificate = Certificate {
        residual_rps: round.kkt.residual_rps,
        reduced_cost_ms: round.kkt.reduced_cost_ms,
        gap_frac: round.gap_frac,
        mix_error_ms: if served > 0.0 { mix_error.map(f64::abs).sum::<f64>() / served } else { 0.0 },
        rounds,
    };
    let price_limit_ms = problem.price_limit_ms;
    Plan { status: Status::Optimal, objective_ms: 0.0, routes, engines, certificate, price_limit_ms, solve_ms: 0.0 }
}

/// Completes a plan by what its weights come to on the true curves.
pub(super) fn with_evaluation(mut plan: Plan, evaluation: &Evaluation) -> Plan {
    for (load, truth) in plan.engines.iter_mut().zip(&evaluation.engines) {
        load.load_rps = truth.load_rps;
        load.utilisation = truth.utilisation;
        if truth.load_rps > NEGLIGIBLE_RPS {
            load.latency_ms = truth.latency_ms;
        }
    }
    let sheds = plan.routes.iter().any(|route| route.shed_rps > 0.0);
    plan.status = if sheds || evaluation.is_overloaded { Status::Degraded } else { Status::Optimal };
    plan.objective_ms = evaluation.mean_ms;
    plan
}

fn engine_load(fleet: &Fleet, problem: &Problem<'_>, round: &Round, engine: EngineId) -> EngineLoad {
    let (at, cost) = (engine.index(), &problem.engines[engine.index()]);
    let load_rps = round.point.load_rps[at];
    let full = cost.capacity_rps.max(problem.pinned_rps[at]);
    // Just below, so that the slope is the one that leads to a full engine.
    let steepest = cost.marginal_ms(full * (1.0 - 1e-9), round.frame.tokens[at]);
    let (price_ms, capacity_price_ms) = if !cost.is_ready() {
        (0.0, 0.0)
    } else if load_rps >= full * (1.0 - ROUNDING_FRAC) && full > 0.0 {
        // What a full engine's price has beyond its steepest slope is the price of its capacity.
        let price = round.point.engine_price_ms[at].max(if problem.pinned_rps[at] >= full { steepest } else { 0.0 });
        (price, (price - steepest).max(0.0))
    } else {
        (round.point.engine_price_ms[at], 0.0)
    };
    let class_price =
        |class: ClassId| price_ms + problem.mix_ms(&round.frame, engine, fleet.classes[class.index()].output_tokens);
    EngineLoad {
        engine,
        load_rps,
        pinned_rps: problem.pinned_rps[at],
        capacity_rps: cost.capacity_rps,
        utilisation: 0.0,
        output_tokens: round.frame.tokens[at],
        latency_ms: cost.latency_ms(load_rps, round.frame.tokens[at]),
        price_ms,
        capacity_price_ms,
        class_price_ms: fleet.class_ids().map(class_price).collect(),
    }
}

/// The route of a (cluster, class) with no demand of its own to plan: as pinned, or wherever its first request would cost least.
fn idle_route(fleet: &Fleet, inputs: &Inputs, engines: &[EngineLoad], cluster: ClusterId, class: ClassId) -> Route {
    let demand_rps = inputs.demand(cluster, class);
    let usable = engines.iter().filter(|load| load.capacity_rps > 0.0 && fleet.ineligible(class, load.engine).is_none());
    let price = |load: &EngineLoad| inputs.rtt_ms[cluster.index()][load.engine.index()] + load.class_price_ms[class.index()];
    let cheapest = usable.min_by(|a, b| {
        let by_name = || fleet.engines[a.engine.index()].name.cmp(&fleet.engines[b.engine.index()].name);
        a.is_filled_by_pins().cmp(&b.is_filled_by_pins()).then(price(a).total_cmp(&price(b))).then_with(by_name)
    });
    let pin = inputs.pin(cluster, class);
    let mut weights: Vec<RouteWeight> = match (pin, cheapest) {
        (Some(pin), _) => pin.shares().map(|(engine, weight)| RouteWeight { engine, weight, rps: weight * demand_rps }).collect(),
        (None, Some(load)) => vec![RouteWeight { engine: load.engine, weight: 1.0, rps: demand_rps }],
        (None, None) => Vec::new(),
    };
    weights.sort_by_key(|share| share.engine);
    Route {
        cluster,
        class,
        demand_rps,
        price_ms: cheapest.map_or(0.0, price),
        shed_rps: if weights.is_empty() { demand_rps } else { 0.0 },
        is_pinned: pin.is_some(),
        weights,
        pruned: Vec::new(),
    }
}

/// The route of a demand of the program. Where all of it is shed, the weights stay those of `idle`: what comes through goes there.
fn busy_route(problem: &Problem<'_>, round: &Round, demand: usize, arcs: &[usize], idle: Route) -> Route {
    let rps = problem.demands[demand].rps;
    let shed_rps = round.point.shed_rps[demand].min(rps);
    let shed_rps = if shed_rps > NEGLIGIBLE_RPS.max(rps * ROUNDING_FRAC) { shed_rps } else { 0.0 };
    let flow = |at: usize| round.point.flow_rps[at];
    let most: f64 = arcs.iter().map(|&at| flow(at)).sum();
    let kept: Vec<usize> = arcs.iter().copied().filter(|&at| flow(at) > ROUNDING_FRAC * most).collect();
    let total: f64 = kept.iter().map(|&at| flow(at)).sum();
    let price_ms = round.point.demand_price_ms[demand];
    let pruned = arcs.iter().map(|&at| &problem.arcs[at]).filter(|arc| arc.is_pruned).map(|arc| arc.engine).collect();
    if total <= rps * ROUNDING_FRAC {
        let weights = idle.weights.iter().map(|share| RouteWeight { rps: 0.0, ..*share }).collect();
        return Route { price_ms, shed_rps: rps, weights, pruned, ..idle };
    }
    let share = |&at: &usize| {
        let weight = flow(at) / total;
        RouteWeight { engine: problem.arcs[at].engine, weight, rps: weight * (rps - shed_rps) }
    };
    let mut weights: Vec<RouteWeight> = kept.iter().map(share).collect();
    weights.sort_by_key(|share| share.engine);
    Route { price_ms, shed_rps, weights, pruned, ..idle }
}
