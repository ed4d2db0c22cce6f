//! A plan without a solver: legal always, good mostly. Pure.
//!
//! Demands are poured in small parts, each to the pool where one more request costs least at that moment and there is room. What then
//! finds no room, because others have taken the only engines it may use, is pushed in along augmenting paths; so what is served is what
//! can be served, by priority and fairly ([`crate::plan::solve::max_min`]); where memory is a limit, which paths do not see, it is refused instead.
//! Budgets of detours are not kept. Prices are marginal costs, and the gap is the bound that they prove.

use crate::plan::NEGLIGIBLE_RPS;
use crate::plan::load::Load;
use crate::plan::problem::formulation::Problem;
use crate::plan::problem::linearization::Point;
use crate::plan::solve::max_min;
use crate::plan::solve::optimizer::Round;
use crate::plan::verify::check;
use crate::plan::verify::check::Kkt;

/// Parts that what a demand lacks is poured in: what a part costs more than the best is a few percent of a few percent.
const PARTS: usize = 32;

/// Fills `problem`, whose unavoidable shed is already decided.
pub(crate) fn fill(problem: &Problem<'_>) -> Round {
    pour(problem, vec![0.0; problem.arcs.len()])
}

/// The same, but what the held weights make of the demand stays where it is as far as it can.
pub(crate) fn refill(problem: &Problem<'_>) -> Round {
    let mut kept_rps = vec![0.0; problem.demands.len()];
    problem.arcs.iter().for_each(|arc| kept_rps[arc.demand] += arc.kept_rps);
    let stays = |arc: &crate::plan::problem::formulation::Arc| {
        let demand = &problem.demands[arc.demand];
        arc.kept_rps * ((demand.rps - demand.shed_rps) / kept_rps[arc.demand]).min(1.0)
    };
    let mut flow_rps: Vec<f64> = problem.arcs.iter().map(|arc| if arc.kept_rps > 0.0 { stays(arc) } else { 0.0 }).collect();
    let mut used: Vec<(f64, f64)> = problem.pools.iter().map(|pool| (pool.pinned.work, pool.pinned_memory)).collect();
    for (arc, flow) in problem.arcs.iter().zip(&mut flow_rps) {
        let (each, of_memory) = (problem.demands[arc.demand].request.work, problem.memory(arc));
        let (work, memory) = &mut used[arc.pool];
        let capacity_rps = problem.pools[arc.pool].cost.capacity_rps;
        *flow = flow.min((capacity_rps - *work).max(0.0) / each);
        if of_memory > 0.0 {
            *flow = flow.min((capacity_rps - *memory).max(0.0) / of_memory);
        }
        *work += *flow * each;
        *memory += *flow * of_memory;
    }
    pour(problem, flow_rps)
}

/// Pours what `flow_rps`, one per arc, leaves of each demand.
fn pour(problem: &Problem<'_>, mut flow_rps: Vec<f64>) -> Round {
    let mut loads: Vec<Load> = problem.pools.iter().map(|pool| pool.pinned).collect();
    let mut arcs_of = vec![Vec::new(); problem.demands.len()];
    problem.arcs.iter().enumerate().for_each(|(at, arc)| arcs_of[arc.demand].push(at));
    let wanted: Vec<f64> = problem.demands.iter().map(|demand| demand.rps - demand.shed_rps).collect();
    let has_memory = problem.pools.iter().any(|pool| !pool.memory.is_empty());
    let mut memory: Vec<f64> = problem.pools.iter().map(|pool| pool.pinned_memory).collect();
    let mut lacking = wanted.clone();
    for (arc, &flow) in problem.arcs.iter().zip(&flow_rps) {
        lacking[arc.demand] -= flow;
        loads[arc.pool].add(problem.demands[arc.demand].request.times(flow));
        memory[arc.pool] += flow * problem.memory(arc);
    }
    // Who has the fewest engines chooses first; where nothing is completed later, who is served first does.
    let mut order: Vec<usize> = (0..wanted.len()).filter(|&demand| lacking[demand] > NEGLIGIBLE_RPS).collect();
    let priority = |demand: usize| if has_memory { problem.demands[demand].priority } else { 0 };
    order.sort_by_key(|&demand| (priority(demand), arcs_of[demand].len()));
    for level in order.chunk_by(|&a, &b| priority(a) == priority(b)) {
        for &demand in std::iter::repeat_n(level, PARTS).flatten() {
            let (part, request) = (lacking[demand] / PARTS as f64, problem.demands[demand].request);
            let cost = |at: usize| {
                let arc = &problem.arcs[at];
                let moving = if flow_rps[at] + part > arc.kept_rps { arc.move_ms } else { 0.0 };
                let (engine, load) = (&problem.pools[arc.pool].cost, loads[arc.pool]);
                arc.cost_ms + moving + engine.cost_ms(load.work, request) + request.work * engine.slope_ms(load.work, load)
            };
            let has_room = |at: usize| {
                let pool = problem.arcs[at].pool;
                let capacity_rps = problem.pools[pool].cost.capacity_rps;
                let has_memory = memory[pool] + part * problem.memory(&problem.arcs[at]) <= capacity_rps;
                has_memory && loads[pool].work + part * request.work <= capacity_rps
            };
            let best = arcs_of[demand].iter().copied().filter(|&at| has_room(at)).min_by(|&a, &b| cost(a).total_cmp(&cost(b)));
            if let Some(at) = best {
                flow_rps[at] += part;
                let arc = &problem.arcs[at];
                loads[arc.pool].add(request.times(part));
                memory[arc.pool] += part * problem.memory(arc);
            }
        }
    }
    if !has_memory {
        max_min::complete(problem, &wanted, &mut flow_rps);
    }
    judge(problem, flow_rps)
}

/// Puts flows in the form of a solved round: marginal costs as prices, and what they prove.
fn judge(problem: &Problem<'_>, flow_rps: Vec<f64>) -> Round {
    let loads = problem.loads(&flow_rps);
    let mut shed_rps: Vec<f64> = problem.demands.iter().map(|demand| demand.rps).collect();
    for (arc, &flow) in problem.arcs.iter().zip(&flow_rps) {
        shed_rps[arc.demand] = (shed_rps[arc.demand] - flow).max(0.0);
    }
    let zeros = |count: usize| vec![0.0; count];
    let mut point = Point {
        flow_rps,
        shed_rps,
        demand_price_ms: zeros(problem.demands.len()),
        pool_price_ms: zeros(problem.pools.len()),
        loads,
        memory_price_ms: zeros(problem.pools.len()),
        budget_price_ms: zeros(problem.budgets.len()),
        move_limit_price_ms: 0.0,
    };
    let frame = problem.refined(&problem.first_frame(), &point);
    for (at, pool) in problem.pools.iter().enumerate().filter(|(_, pool)| pool.cost.is_ready()) {
        point.pool_price_ms[at] = pool.cost.marginal_ms(point.loads[at].work, frame.mix[at]);
    }
    for (at, demand) in problem.demands.iter().enumerate() {
        point.demand_price_ms[at] = demand.shed_price_ms;
    }
    for arc in &problem.arcs {
        let work = problem.demands[arc.demand].request.work;
        let delivered = problem.arc_cost_ms(&frame, arc) + work * point.pool_price_ms[arc.pool] + arc.move_ms;
        let price = &mut point.demand_price_ms[arc.demand];
        *price = price.min(delivered);
    }
    let gap = check::gap(problem, &frame, &point, &point.pool_price_ms);
    // No program was solved, so there is nothing that a residual could be of.
    Round::of(problem, frame, point, Kkt { residual_rps: 0.0, reduced_cost_ms: 0.0 }, gap)
}
