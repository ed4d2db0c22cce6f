//! A greedy plan without a solver: always legal, mostly good. Pure.
//!
//! The heuristic distributes demands in small parts, each to the pool with room that has the lowest
//! marginal cost at that moment. A demand that finds no room, because others have taken the only
//! engines it may use, is completed along augmenting paths. So the served amounts are the largest
//! possible ones, by priority and max-min fair ([`crate::plan::solve::max_min`]). Where memory is a
//! limit, augmenting paths do not apply, and such a demand is shed instead. Detour budgets are not
//! kept. Prices are marginal costs, and the gap is the bound that they prove.

use crate::plan::NEGLIGIBLE_RPS;
use crate::plan::load::Load;
use crate::plan::problem::formulation::Problem;
use crate::plan::problem::linearization::Iterate;
use crate::plan::solve::max_min;
use crate::plan::solve::round::Round;
use crate::plan::verify::certificate;
use crate::plan::verify::certificate::Kkt;

/// Number of equal parts in which [`pour`] distributes the missing flow of each demand. Parts of 3
/// % keep the error of a greedy choice small; more parts only take longer.
const PARTS: usize = 32;

/// Distributes all demand of `problem`, whose unavoidable shed is already decided.
pub(crate) fn fill(problem: &Problem<'_>) -> Round {
    pour(problem, vec![0.0; problem.edges.len()])
}

/// As [`fill`], but starts from the flows of the current weights, cut down to capacity and memory.
pub(crate) fn refill(problem: &Problem<'_>) -> Round {
    let mut kept_rps = vec![0.0; problem.demands.len()];
    problem.edges.iter().for_each(|edge| kept_rps[edge.demand] += edge.kept_rps);
    let stays = |edge: &crate::plan::problem::formulation::Edge| {
        let demand = &problem.demands[edge.demand];
        edge.kept_rps * ((demand.rps - demand.shed_rps) / kept_rps[edge.demand]).min(1.0)
    };
    let mut flow_rps: Vec<f64> = problem.edges.iter().map(|edge| if edge.kept_rps > 0.0 { stays(edge) } else { 0.0 }).collect();
    let mut used: Vec<(f64, f64)> = problem.pools.iter().map(|pool| (pool.pinned.work, pool.pinned_memory)).collect();
    for (edge, flow) in problem.edges.iter().zip(&mut flow_rps) {
        let (each, of_memory) = (problem.demands[edge.demand].request.work, problem.memory(edge));
        let (work, memory) = &mut used[edge.pool];
        let capacity_rps = problem.pools[edge.pool].cost.capacity_rps;
        *flow = flow.min((capacity_rps - *work).max(0.0) / each);
        if of_memory > 0.0 {
            *flow = flow.min((capacity_rps - *memory).max(0.0) / of_memory);
        }
        *work += *flow * each;
        *memory += *flow * of_memory;
    }
    pour(problem, flow_rps)
}

/// Distributes the demand that `flow_rps`, one entry per edge, leaves unserved.
fn pour(problem: &Problem<'_>, mut flow_rps: Vec<f64>) -> Round {
    let mut loads: Vec<Load> = problem.pools.iter().map(|pool| pool.pinned).collect();
    let mut edges_of = vec![Vec::new(); problem.demands.len()];
    problem.edges.iter().enumerate().for_each(|(at, edge)| edges_of[edge.demand].push(at));
    let wanted: Vec<f64> = problem.demands.iter().map(|demand| demand.rps - demand.shed_rps).collect();
    let has_memory = problem.pools.iter().any(|pool| !pool.memory.is_empty());
    let mut memory: Vec<f64> = problem.pools.iter().map(|pool| pool.pinned_memory).collect();
    let mut lacking = wanted.clone();
    for (edge, &flow) in problem.edges.iter().zip(&flow_rps) {
        lacking[edge.demand] -= flow;
        loads[edge.pool].add(problem.demands[edge.demand].request.times(flow));
        memory[edge.pool] += flow * problem.memory(edge);
    }
    // Demands with the fewest engines choose first. With memory limits no augmenting paths follow,
    // so demands of an earlier priority come before that.
    let mut order: Vec<usize> = (0..wanted.len()).filter(|&demand| lacking[demand] > NEGLIGIBLE_RPS).collect();
    let priority = |demand: usize| if has_memory { problem.demands[demand].priority } else { 0 };
    order.sort_by_key(|&demand| (priority(demand), edges_of[demand].len()));
    for level in order.chunk_by(|&a, &b| priority(a) == priority(b)) {
        for &demand in std::iter::repeat_n(level, PARTS).flatten() {
            let (part, request) = (lacking[demand] / PARTS as f64, problem.demands[demand].request);
            let cost = |at: usize| {
                let edge = &problem.edges[at];
                let moving = if flow_rps[at] + part > edge.kept_rps { edge.move_ms } else { 0.0 };
                let (engine, load) = (&problem.pools[edge.pool].cost, loads[edge.pool]);
                edge.cost_ms + moving + engine.cost_ms(load.work, request) + request.work * engine.slope_ms(load.work, load)
            };
            let has_room = |at: usize| {
                let pool = problem.edges[at].pool;
                let capacity_rps = problem.pools[pool].cost.capacity_rps;
                let has_memory = memory[pool] + part * problem.memory(&problem.edges[at]) <= capacity_rps;
                has_memory && loads[pool].work + part * request.work <= capacity_rps
            };
            let best = edges_of[demand].iter().copied().filter(|&at| has_room(at)).min_by(|&a, &b| cost(a).total_cmp(&cost(b)));
            if let Some(at) = best {
                flow_rps[at] += part;
                let edge = &problem.edges[at];
                loads[edge.pool].add(request.times(part));
                memory[edge.pool] += part * problem.memory(edge);
            }
        }
    }
    if !has_memory {
        max_min::complete(problem, &wanted, &mut flow_rps);
    }
    judge(problem, flow_rps)
}

/// Builds a round from flows: marginal costs are its prices, and the gap is the bound they prove.
fn judge(problem: &Problem<'_>, flow_rps: Vec<f64>) -> Round {
    let loads = problem.loads(&flow_rps);
    let mut shed_rps: Vec<f64> = problem.demands.iter().map(|demand| demand.rps).collect();
    for (edge, &flow) in problem.edges.iter().zip(&flow_rps) {
        shed_rps[edge.demand] = (shed_rps[edge.demand] - flow).max(0.0);
    }
    let zeros = |count: usize| vec![0.0; count];
    let mut iterate = Iterate {
        flow_rps,
        shed_rps,
        demand_price_ms: zeros(problem.demands.len()),
        pool_price_ms: zeros(problem.pools.len()),
        loads,
        memory_price_ms: zeros(problem.pools.len()),
        budget_price_ms: zeros(problem.budgets.len()),
        move_limit_price_ms: 0.0,
    };
    let linearization = problem.refined(&problem.first_linearization(), &iterate);
    for (at, pool) in problem.pools.iter().enumerate().filter(|(_, pool)| pool.cost.is_ready()) {
        iterate.pool_price_ms[at] = pool.cost.marginal_ms(iterate.loads[at].work, linearization.mix[at]);
    }
    for (at, demand) in problem.demands.iter().enumerate() {
        iterate.demand_price_ms[at] = demand.shed_price_ms;
    }
    for edge in &problem.edges {
        let work = problem.demands[edge.demand].request.work;
        let delivered = problem.edge_cost_ms(&linearization, edge) + work * iterate.pool_price_ms[edge.pool] + edge.move_ms;
        let price = &mut iterate.demand_price_ms[edge.demand];
        *price = price.min(delivered);
    }
    let gap = certificate::gap(problem, &linearization, &iterate, &iterate.pool_price_ms);
    // No linear program was solved, so there are no residuals.
    Round::of(problem, linearization, iterate, Kkt { residual_rps: 0.0, reduced_cost_ms: 0.0 }, gap)
}
