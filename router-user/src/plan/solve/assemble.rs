//! Assembles a plan from solved components: weights, prices, loads.

use crate::model::{ClassId, ClusterId, EngineId, Fleet};

use crate::plan::load::Load;
use crate::plan::outcome::{Certificate, EngineLoad, Plan, Route, RouteWeight, Status, weights};
use crate::plan::problem::formulation::Demand;
use crate::plan::solve::round::Component;
use crate::plan::verify::certificate::{Gap, Kkt};
use crate::plan::verify::{self, LegalWeights, Violation};
use crate::plan::{Inputs, NEGLIGIBLE_RPS, ROUNDING_FRAC};

/// Share of a route below which a flow under the solver's tolerance is dropped: a fifth of the
/// share at which pruning starts.
const TRACE_FRAC: f64 = 1e-4;

/// The plan of all components, with legal weights, evaluated on the true curves.
///
/// Errors: the [`Violation`] if the weights break a rule.
pub(crate) fn assemble(fleet: &Fleet, inputs: &Inputs, components: &[Component<'_>]) -> Result<Plan, Violation> {
    let mut engines: Vec<Option<EngineLoad>> = vec![None; fleet.engines.len()];
    for component in components {
        for (at, pool) in component.problem.pools.iter().enumerate() {
            for (engine, share) in pool.split() {
                engines[engine.index()] = Some(engine_load(fleet, inputs, component, at, (engine, share)));
            }
        }
    }
    let engines: Vec<EngineLoad> = engines.into_iter().map(|load| load.expect("every engine is in a pool")).collect();
    let mut routes: Vec<Option<Route>> = vec![None; fleet.clusters.len() * fleet.classes.len()];
    for component in components {
        let mut edges_of = vec![Vec::new(); component.problem.demands.len()];
        for (at, edge) in component.problem.edges.iter().enumerate() {
            edges_of[edge.demand].push(at);
        }
        for (at, demand) in component.problem.demands.iter().enumerate() {
            let route = busy_route((fleet, inputs), component, at, &edges_of[at], || {
                idle_route(fleet, inputs, &engines, demand.cluster, demand.class)
            });
            routes[demand.cluster.index() * fleet.classes.len() + demand.class.index()] = Some(route);
        }
    }
    let pairs = fleet.cluster_ids().flat_map(|cluster| fleet.class_ids().map(move |class| (cluster, class)));
    let routes = routes.into_iter().zip(pairs);
    let routes =
        routes.map(|(route, (cluster, class))| route.unwrap_or_else(|| idle_route(fleet, inputs, &engines, cluster, class)));
    let routes: Vec<Route> = routes.collect();
    let legal = verify::legal(fleet, inputs, &weights(&routes))?;
    let price_limit_ms = components.iter().map(|component| component.problem.price_limit_ms).fold(0.0, f64::max);
    let plan = Plan {
        status: Status::Optimal,
        objective_ms: 0.0,
        latency_ms: 0.0,
        routes,
        engines,
        certificate: certificate(components),
        moved_frac: moved_frac(components),
        reversal: None,
        is_greedy: false,
        solver_failure: None,
        price_limit_ms,
        solve_ms: 0.0,
        legal,
    };
    Ok(evaluated(plan))
}

fn certificate(components: &[Component<'_>]) -> Certificate {
    let most = |of: fn(&Kkt) -> f64| components.iter().map(|component| of(&component.round.kkt)).fold(0.0, f64::max);
    let (mut served, mut mix_error) = (0.0, 0.0);
    for Component { problem, round, .. } in components {
        for (at, pool) in problem.pools.iter().enumerate() {
            let load = round.iterate.loads[at];
            let ((ttft_then, tbot_then), (ttft_ms, tbot_ms)) = (round.linearization.times_ms[at], pool.cost.times_ms(load.work));
            mix_error += load.beyond(round.linearization.mix[at]).cost(ttft_then - ttft_ms, tbot_then - tbot_ms).abs();
        }
        served += round.iterate.flow_rps.iter().sum::<f64>();
    }
    let gap = components.iter().fold(Gap::default(), |sum, component| sum.and(component.round.gap));
    Certificate {
        residual_rps: most(|kkt| kkt.residual_rps),
        reduced_cost_ms: most(|kkt| kkt.reduced_cost_ms),
        gap_frac: gap.frac(),
        stability_frac: gap.base_frac(),
        mix_error_ms: if served > 0.0 { mix_error / served } else { 0.0 },
        rounds: components.iter().map(|component| component.rounds).max().unwrap_or(0),
        components: components.iter().filter(|component| component.rounds > 0).count() as u32, // at most one per engine
    }
}

fn moved_frac(components: &[Component<'_>]) -> f64 {
    let moved: f64 = components.iter().map(|component| component.problem.moved_rps(&component.round.iterate)).sum();
    let demands = components.iter().flat_map(|component| &component.problem.demands);
    let demand: f64 = demands.map(|demand| demand.rps).sum();
    if demand > 0.0 { moved / demand } else { 0.0 }
}

/// `plan` with other weights, one entry per route in the same order. The prices stay those of
/// `plan`.
pub(crate) fn with_weights(plan: &Plan, legal: LegalWeights) -> Plan {
    let mut plan = plan.clone();
    for (route, new) in plan.routes.iter_mut().zip(legal.routes()) {
        let served = route.demand_rps * (1.0 - new.shed_frac);
        route.shed_rps = route.demand_rps - served;
        let share = |&(engine, weight): &(EngineId, f64)| RouteWeight { engine, weight, rps: weight * served };
        route.weights = new.weights.iter().map(share).collect();
    }
    evaluated(Plan { legal, ..plan })
}

/// Fills in the loads and latencies of a plan's weights on the true curves.
fn evaluated(mut plan: Plan) -> Plan {
    let evaluation = plan.legal.evaluation();
    for (load, truth) in plan.engines.iter_mut().zip(&evaluation.engines) {
        load.load_rps = truth.load_rps;
        load.utilisation = truth.utilisation;
        load.memory_rps = truth.memory_rps;
        load.latency_ms = truth.latency_ms;
    }
    let sheds = plan.routes.iter().any(|route| route.shed_rps > 0.0);
    plan.status = if sheds || evaluation.is_overloaded { Status::Degraded } else { Status::Optimal };
    (plan.objective_ms, plan.latency_ms) = (evaluation.cost_ms, evaluation.mean_ms);
    plan
}

fn engine_load(
    fleet: &Fleet,
    inputs: &Inputs,
    Component { problem, round, .. }: &Component<'_>,
    at: usize,
    (engine, share): (EngineId, f64),
) -> EngineLoad {
    let pool = &problem.pools[at];
    let (pool_rps, pinned_rps, mix) = (round.iterate.loads[at].work, pool.pinned.work, round.linearization.mix[at]);
    let full = pool.cost.capacity_rps.max(pinned_rps);
    // Just below the full load, where the slope to the right is that of the last segment.
    let steepest = pool.cost.marginal_ms(full * (1.0 - 1e-9), mix);
    let (price_ms, capacity_price_ms) = if !pool.cost.is_ready() {
        (0.0, 0.0)
    } else if pool_rps >= full * (1.0 - ROUNDING_FRAC) && full > 0.0 {
        // The price of a full engine beyond its steepest slope is the price of its capacity.
        let price = round.iterate.pool_price_ms[at].max(if pinned_rps >= full { steepest } else { 0.0 });
        (price, (price - steepest).max(0.0))
    } else {
        (round.iterate.pool_price_ms[at], 0.0)
    };
    let memory_price_ms = round.iterate.memory_price_ms[at];
    let class_price = |id: ClassId| {
        let request = Load::of(&fleet.classes[id.index()]);
        let memory = pool.memory.get(id.index()).copied().unwrap_or(0.0);
        (request.work * price_ms + problem.mix_ms(&round.linearization, at, request)).max(0.0) + memory * memory_price_ms
    };
    EngineLoad {
        engine,
        pool: pool.first(),
        load_rps: pool_rps * share,
        pinned_rps: pinned_rps * share,
        capacity_rps: inputs.capacity_rps(fleet, engine),
        utilisation: 0.0,
        mix,
        latency_ms: 0.0,
        price_ms,
        capacity_price_ms,
        memory_rps: 0.0,
        memory_price_ms,
        class_price_ms: fleet.class_ids().map(class_price).collect(),
    }
}

/// The route of a (cluster, class) without demand in the program: its pin, or the engine where its
/// first request would cost least.
fn idle_route(fleet: &Fleet, inputs: &Inputs, engines: &[EngineLoad], cluster: ClusterId, class: ClassId) -> Route {
    let demand_rps = inputs.demand(cluster, class);
    let may = |engine: EngineId| inputs.ineligible(fleet, cluster, class, engine).is_none();
    let usable = engines.iter().filter(|load| load.capacity_rps > 0.0 && may(load.engine));
    let price = |load: &EngineLoad| {
        let network_ms = fleet.classes[class.index()].ttft_weight * inputs.rtt_ms[cluster.index()][load.engine.index()];
        network_ms + load.class_price_ms[class.index()]
    };
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
        move_price_ms: 0.0,
        move_limit_price_ms: 0.0,
        detour_price_ms: 0.0,
        current_rps: Vec::new(),
        pruned: Vec::new(),
        too_far: too_far(fleet, inputs, cluster, class),
    }
}

fn too_far(fleet: &Fleet, inputs: &Inputs, cluster: ClusterId, class: ClassId) -> Vec<EngineId> {
    let Some(cap_ms) = fleet.classes[class.index()].rtt_cap_ms else { return Vec::new() };
    let is_far = |&engine: &EngineId| inputs.rtt_ms[cluster.index()][engine.index()] > cap_ms;
    fleet.engine_ids().filter(is_far).filter(|&engine| fleet.ineligible(class, engine).is_none()).collect()
}

/// The route of a demand of the program. Where the plan sheds all of it, the weights are those of
/// `idle`, for requests that get through nevertheless.
fn busy_route(
    (fleet, inputs): (&Fleet, &Inputs),
    Component { problem, round, .. }: &Component<'_>,
    demand: usize,
    edges: &[usize],
    idle: impl FnOnce() -> Route,
) -> Route {
    let Demand { cluster, class, rps, has_current, budget, .. } = problem.demands[demand];
    let detour_price_ms = budget.map_or(0.0, |budget| round.iterate.budget_price_ms[budget]);
    let shed_rps = round.iterate.shed_rps[demand].min(rps);
    let shed_rps = if shed_rps > NEGLIGIBLE_RPS.max(rps * ROUNDING_FRAC) { shed_rps } else { 0.0 };
    let flow = |at: usize| round.iterate.flow_rps[at];
    let most: f64 = edges.iter().map(|&at| flow(at)).sum();
    // Flows below the solver's tolerance are dropped if the route has a larger one.
    let least = (ROUNDING_FRAC * most).max(NEGLIGIBLE_RPS.min(TRACE_FRAC * most));
    let used: Vec<usize> = edges.iter().copied().filter(|&at| flow(at) > least).collect();
    let total: f64 = used.iter().map(|&at| flow(at)).sum();
    let price_ms = round.iterate.demand_price_ms[demand];
    let members = |at: usize| problem.pools[problem.edges[at].pool].split();
    let pruned =
        edges.iter().filter(|&&at| problem.edges[at].is_pruned).flat_map(|&at| members(at).map(|(engine, _)| engine)).collect();
    let kept = edges.iter().filter(|&&at| problem.edges[at].kept_rps > 0.0);
    let current_rps = kept.flat_map(|&at| members(at).map(move |(engine, share)| (engine, share * problem.edges[at].kept_rps)));
    let current_rps = current_rps.collect();
    let move_limit_price_ms = if has_current { round.iterate.move_limit_price_ms } else { 0.0 };
    let move_price_ms = edges.first().map_or(0.0, |&at| problem.edges[at].move_ms + move_limit_price_ms);
    if total <= NEGLIGIBLE_RPS.min(TRACE_FRAC * rps).max(ROUNDING_FRAC * rps) {
        let idle = idle();
        let weights = idle.weights.iter().map(|share| RouteWeight { rps: 0.0, ..*share }).collect();
        return Route {
            price_ms,
            shed_rps: rps,
            weights,
            move_price_ms,
            move_limit_price_ms,
            detour_price_ms,
            current_rps,
            pruned,
            ..idle
        };
    }
    let mut weights: Vec<RouteWeight> = Vec::new();
    for &at in &used {
        for (engine, share) in members(at).filter(|&(_, share)| share > 0.0) {
            let weight = flow(at) / total * share;
            weights.push(RouteWeight { engine, weight, rps: weight * (rps - shed_rps) });
        }
    }
    weights.sort_by_key(|share| share.engine);
    Route {
        cluster,
        class,
        demand_rps: rps,
        price_ms,
        shed_rps,
        is_pinned: false,
        weights,
        move_price_ms,
        move_limit_price_ms,
        detour_price_ms,
        current_rps,
        pruned,
        too_far: too_far(fleet, inputs, cluster, class),
    }
}
