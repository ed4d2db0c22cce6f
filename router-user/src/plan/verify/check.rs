//! Is this plan legal, and how good is it? Plain arithmetic that shares no code with the solver.
//!
//! Three questions, from the outside in: do weights obey the rules ([`legal`]), does an iterate
//! solve its linear program ([`kkt`]), and how far is it from the best on the true curves
//! ([`gap_frac`])?

use thiserror::Error;

use crate::model::{ClassId, ClusterId, EngineId, Fleet};

use crate::plan::problem::formulation::{Demand, Problem};
use crate::plan::problem::linearization::{Iterate, Linearization};
use crate::plan::problem::lp::LinearProgram;
use crate::plan::solve::highs::Solution;
use crate::plan::{Evaluation, Inputs, NEGLIGIBLE_RPS, RouteWeights, evaluate};

/// Demand that may be unaccounted for, in requests/s, and the same as a share of an amount.
const AMOUNT_TOLERANCE: f64 = 1e-6;

/// Error of a sum of weights.
const WEIGHT_TOLERANCE: f64 = 1e-9;

/// Wrong sign a reduced cost may have, as a share of the largest price: ten times the solver's own
/// tolerance.
const PRICE_TOLERANCE: f64 = 1e-6;

/// Why weights are not legal, or an iterate is not optimal.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Violation {
    #[error("class {class:?} of cluster {cluster:?} has {found} routes, wanted one")]
    Routes { cluster: String, class: String, found: usize },
    #[error("class {class:?} of cluster {cluster:?} sheds a share of {found}, wanted one in [0, 1]")]
    Shed { cluster: String, class: String, found: f64 },
    #[error("class {class:?} of cluster {cluster:?} gives engine {engine:?} weight {found}, wanted a finite number >= 0")]
    Weight { cluster: String, class: String, engine: String, found: f64 },
    #[error("class {class:?} of cluster {cluster:?} has weights that sum to {found}, wanted 1")]
    Sum { cluster: String, class: String, found: f64 },
    #[error("class {class:?} of cluster {cluster:?} serves {found} requests/s with no engine, wanted all of them shed")]
    Unrouted { cluster: String, class: String, found: f64 },
    #[error("class {class:?} of cluster {cluster:?} uses engine {engine:?}, which {why}")]
    Ineligible { cluster: String, class: String, engine: String, why: String },
    #[error("class {class:?} of cluster {cluster:?} uses engine {engine:?}, which has no ready replica")]
    NotReady { cluster: String, class: String, engine: String },
    #[error("class {class:?} of cluster {cluster:?} gives engine {engine:?} weight {found}, wanted {pinned} as pinned")]
    Pin { cluster: String, class: String, engine: String, found: f64, pinned: f64 },
    #[error("engine {engine:?} gets {found} requests/s, wanted at most {allowed}")]
    Capacity { engine: String, found: f64, allowed: f64 },
    #[error(
        "engine {engine:?} gets requests whose KV caches take {found} of its memory, in units of load, wanted at most {allowed}"
    )]
    Memory { engine: String, found: f64, allowed: f64 },
    #[error("a row or bound of the program is missed by {found} requests/s, wanted at most {allowed}")]
    Residual { found: f64, allowed: f64 },
    #[error("a reduced cost has the wrong sign by {found} ms, wanted at most {allowed}: the iterate is not optimal")]
    ReducedCost { found: f64, allowed: f64 },
    #[error("the plan may cost {found} more than the best, as a share, wanted at most {allowed}")]
    Gap { found: f64, allowed: f64 },
}

/// How exactly an iterate solves its linear program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kkt {
    pub(crate) residual_rps: f64,
    pub(crate) reduced_cost_ms: f64,
}

/// Whether `weights` obey every rule of `fleet` for `inputs`: one route for each (cluster, class),
/// weights that sum to 1, only eligible and ready engines, pins as they were set, and no engine
/// above its capacity or memory but by its pins.
///
/// Returns the evaluation it needed anyway. Errors: the first [`Violation`] found.
pub fn legal(fleet: &Fleet, inputs: &Inputs, weights: &[RouteWeights]) -> Result<Evaluation, Violation> {
    let mut seen = vec![0_usize; fleet.clusters.len() * fleet.classes.len()];
    let at = |cluster: ClusterId, class: ClassId| cluster.index() * fleet.classes.len() + class.index();
    for route in weights {
        seen[at(route.cluster, route.class)] += 1;
        route_is_legal(fleet, inputs, route)?;
    }
    for cluster in fleet.cluster_ids() {
        for class in fleet.class_ids() {
            let found = seen[at(cluster, class)];
            if found != 1 {
                let (cluster, class) = names(fleet, cluster, class);
                return Err(Violation::Routes { cluster, class, found });
            }
        }
    }
    let evaluation = evaluate(fleet, inputs, weights);
    let mut pinned_rps = vec![(0.0, 0.0); fleet.engines.len()];
    for pin in &inputs.pins {
        for (engine, share) in pin.shares() {
            let (rps, class) = (share * inputs.demand(pin.cluster, pin.class), &fleet.classes[pin.class.index()]);
            let (load, memory) = &mut pinned_rps[engine.index()];
            *load += rps * class.work;
            *memory += rps * fleet.profile_of(engine).memory(class).unwrap_or(0.0);
        }
    }
    // Each route may bring an amount of requests that is none.
    let memory = fleet.profiles.iter().flat_map(|profile| fleet.classes.iter().filter_map(|class| profile.memory(class)));
    let heaviest = fleet.classes.iter().map(|class| class.work).chain(memory).fold(1.0, f64::max);
    let negligible = NEGLIGIBLE_RPS * heaviest * seen.len() as f64;
    for (engine, (pinned, pinned_memory)) in fleet.engine_ids().zip(pinned_rps) {
        let load = &evaluation.engines[engine.index()];
        let allowed = load.capacity_rps.max(pinned);
        if load.load_rps > allowed * (1.0 + AMOUNT_TOLERANCE) + negligible {
            return Err(Violation::Capacity { engine: engine_name(fleet, engine), found: load.load_rps, allowed });
        }
        let allowed = load.capacity_rps.max(pinned_memory);
        if load.memory_rps > allowed * (1.0 + AMOUNT_TOLERANCE) + negligible {
            return Err(Violation::Memory { engine: engine_name(fleet, engine), found: load.memory_rps, allowed });
        }
    }
    Ok(evaluation)
}

fn route_is_legal(fleet: &Fleet, inputs: &Inputs, route: &RouteWeights) -> Result<(), Violation> {
    let (cluster, class) = names(fleet, route.cluster, route.class);
    if !(0.0..=1.0).contains(&route.shed_frac) {
        return Err(Violation::Shed { cluster, class, found: route.shed_frac });
    }
    let pin = inputs.pin(route.cluster, route.class);
    for &(engine, found) in &route.weights {
        let name = engine_name(fleet, engine);
        if !(found.is_finite() && found >= 0.0) {
            return Err(Violation::Weight { cluster, class, engine: name, found });
        }
        if let Some(why) = inputs.ineligible(fleet, route.cluster, route.class, engine) {
            return Err(Violation::Ineligible { cluster, class, engine: name, why: why.to_string() });
        }
        if inputs.ready[engine.index()] == 0 && found > 0.0 && pin.is_none() {
            return Err(Violation::NotReady { cluster, class, engine: name });
        }
    }
    for (engine, pinned) in pin.into_iter().flat_map(|pin| pin.shares()) {
        let found = route.weight(engine);
        if (found - pinned).abs() > AMOUNT_TOLERANCE {
            return Err(Violation::Pin { cluster, class, engine: engine_name(fleet, engine), found, pinned });
        }
    }
    let served = inputs.demand(route.cluster, route.class) * (1.0 - route.shed_frac);
    if route.weights.is_empty() {
        if served > NEGLIGIBLE_RPS {
            return Err(Violation::Unrouted { cluster, class, found: served });
        }
        return Ok(());
    }
    let found: f64 = route.weights.iter().map(|&(_, weight)| weight).sum();
    if (found - 1.0).abs() > WEIGHT_TOLERANCE * (1.0 + route.weights.len() as f64) {
        return Err(Violation::Sum { cluster, class, found });
    }
    Ok(())
}

/// Checks feasibility, dual feasibility and complementary slackness of `solution`: together they
/// prove it optimal.
///
/// Errors: [`Violation::Residual`] or [`Violation::ReducedCost`].
pub(crate) fn kkt(program: &LinearProgram, solution: &Solution) -> Result<Kkt, Violation> {
    let largest = |values: &[f64], least: f64| values.iter().fold(least, |most, value| most.max(value.abs()));
    let (amounts, prices) = (largest(&program.rhs, program.unit), largest(&solution.duals, 1.0));
    let mut rows: Vec<f64> = program.rhs.iter().map(|rhs| -rhs).collect();
    let (mut residual_rps, mut reduced_cost_ms) = (0.0_f64, 0.0_f64);
    for (column, &value) in solution.values.iter().enumerate() {
        let upper = program.upper[column];
        residual_rps = residual_rps.max(-value).max(value - upper);
        let mut reduced = program.cost[column];
        for &(row, coefficient) in program.entries(column) {
            rows[row] += coefficient * value;
            reduced -= coefficient * solution.duals[row];
        }
        // A column above 0 must not be worth lowering, one below its upper bound not worth raising.
        let slack = AMOUNT_TOLERANCE * amounts;
        if value > slack {
            reduced_cost_ms = reduced_cost_ms.max(reduced);
        }
        if value < upper - slack {
            reduced_cost_ms = reduced_cost_ms.max(-reduced);
        }
        if !value.is_finite() || !reduced.is_finite() {
            return Err(Violation::Residual { found: f64::INFINITY, allowed: AMOUNT_TOLERANCE * amounts });
        }
    }
    residual_rps = rows.iter().fold(residual_rps, |most, row| most.max(row.abs()));
    let allowed = AMOUNT_TOLERANCE * amounts;
    if residual_rps > allowed {
        return Err(Violation::Residual { found: residual_rps, allowed });
    }
    let allowed = PRICE_TOLERANCE * prices;
    if reduced_cost_ms > allowed {
        return Err(Violation::ReducedCost { found: reduced_cost_ms, allowed });
    }
    Ok(Kkt { residual_rps, reduced_cost_ms })
}

/// How much more an iterate may cost than the best, on the true curves; amounts in ms x requests/s.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gap {
    /// Cost of the iterate over a bound that no flows are below, movement included.
    pub(crate) excess: f64,
    /// The same without movement, over what free movement could reach.
    pub(crate) base_excess: f64,
    /// Latency and movement of the iterate.
    pub(crate) latency: f64,
}

impl Gap {
    /// As a share of the latency cost. A bound above the cost would be an error of this arithmetic,
    /// and no better than a gap.
    pub(crate) fn frac(self) -> f64 {
        if self.latency > 0.0 { (self.excess / self.latency).abs() } else { 0.0 }
    }

    pub(crate) fn base_frac(self) -> f64 {
        if self.latency > 0.0 { (self.base_excess / self.latency).max(0.0) } else { 0.0 }
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            excess: self.excess + other.excess.abs(),
            base_excess: self.base_excess + other.base_excess.max(0.0),
            latency: self.latency + other.latency,
        }
    }

    /// The gap of an iterate that costs `more` under the same bound.
    pub(crate) fn grown(self, more: f64) -> Self {
        let more = more.max(0.0);
        Self { excess: self.excess.abs() + more, base_excess: self.base_excess.max(0.0) + more, ..self }
    }
}

/// How much more `iterate` costs than any flows could on the true curves of the single engines: an
/// upper bound.
///
/// The bound is the Lagrangian of docs/model.md, section 5, at the iterate's own prices; it needs
/// nothing but arithmetic and holds whatever the prices are. `linearization` must be the iterate's
/// own ([`Problem::refined`]), with `prices` for its mix.
pub(crate) fn gap(problem: &Problem<'_>, linearization: &Linearization, iterate: &Iterate, prices: &[f64]) -> Gap {
    // Least cost of one more request without limit, of one where movement is free, and what the
    // held flows offer for less; shed too is without limit, unless it is known what can be served.
    let is_free = |demand: &Demand| demand.shed_most_rps == f64::INFINITY;
    let shed = |demand: &Demand| if is_free(demand) { demand.shed_price_ms } else { f64::INFINITY };
    let mut beyond: Vec<f64> = problem.demands.iter().map(shed).collect();
    let mut free = beyond.clone();
    let limited = |demand: &Demand| (demand.shed_price_ms, demand.shed_most_rps);
    let limited = |demand: &Demand| if is_free(demand) { Vec::new() } else { vec![limited(demand)] };
    let mut kept: Vec<Vec<(f64, f64)>> = problem.demands.iter().map(limited).collect();
    let mut latency = 0.0;
    for (edge, &flow) in problem.edges.iter().zip(&iterate.flow_rps) {
        let edge_cost = problem.edge_cost_ms(linearization, edge);
        let work = problem.demands[edge.demand].request.work;
        let delivered = edge_cost + work * prices[edge.pool] + problem.limits_ms(iterate, edge);
        let limit_ms = if problem.demands[edge.demand].is_held { iterate.move_limit_price_ms } else { 0.0 };
        beyond[edge.demand] = beyond[edge.demand].min(delivered + edge.move_ms + limit_ms);
        free[edge.demand] = free[edge.demand].min(delivered);
        if edge.kept_rps > 0.0 {
            kept[edge.demand].push((delivered, edge.kept_rps));
        }
        latency += flow * edge_cost;
    }
    let (mut shed_cost, mut bound, mut base_bound) = (0.0, 0.0, 0.0);
    for (at, demand) in problem.demands.iter().enumerate() {
        // What is shed before the program is no choice of it.
        shed_cost += (iterate.shed_rps[at] - demand.shed_rps) * demand.shed_price_ms;
        let mut rest = demand.rps - demand.shed_rps;
        kept[at].sort_by(|a, b| a.0.total_cmp(&b.0));
        for &(delivered, rps) in kept[at].iter().take_while(|&&(delivered, _)| delivered < beyond[at]) {
            let amount = rps.min(rest);
            bound += amount * delivered;
            rest -= amount;
        }
        // Nothing is left for a price that does not exist.
        bound += if rest > 0.0 { rest * beyond[at] } else { 0.0 };
        let mut rest = demand.rps - demand.shed_rps;
        if !is_free(demand) && demand.shed_price_ms < free[at] {
            let amount = demand.shed_most_rps.min(rest);
            base_bound += amount * demand.shed_price_ms;
            rest -= amount;
        }
        base_bound += if rest > 0.0 { rest * free[at] } else { 0.0 };
    }
    for (at, pool) in problem.pools.iter().enumerate() {
        let (price, mix) = (prices[at], linearization.mix[at]);
        // Engine by engine, so that nothing rests on the pool being exact.
        for (engine, share) in pool.apart.iter().zip(&pool.shares) {
            let pinned = pool.pinned.work * share;
            latency += engine.total(iterate.loads[at].work * share, mix);
            let least = engine.cheapest(pinned, mix, price) + price * pinned;
            bound += least;
            base_bound += least;
        }
    }
    let memory: f64 = iterate.memory_price_ms.iter().enumerate().map(|(at, price)| price * problem.memory_room(at)).sum();
    let budgets: f64 = problem.budgets.iter().zip(&iterate.budget_price_ms).map(|(budget, price)| price * budget.excess).sum();
    bound -= memory + budgets;
    base_bound -= memory + budgets;
    if let Some(limit) = problem.move_limit_rps {
        bound -= limit * iterate.move_limit_price_ms;
    }
    let moved = problem.move_cost(iterate);
    Gap { excess: latency + moved + shed_cost - bound, base_excess: latency + shed_cost - base_bound, latency: latency + moved }
}

fn names(fleet: &Fleet, cluster: ClusterId, class: ClassId) -> (String, String) {
    (fleet.clusters[cluster.index()].name.clone(), fleet.classes[class.index()].name.clone())
}

fn engine_name(fleet: &Fleet, engine: EngineId) -> String {
    fleet.engines[engine.index()].name.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kkt_takes_the_optimum_and_nothing_else() {
        let mut program = LinearProgram::default();
        program.rhs = vec![10.0];
        program.push(2.0, 6.0, &[(0, 1.0)]);
        program.push(5.0, 100.0, &[(0, 1.0)]);
        let check = |values: [f64; 2], dual: f64| kkt(&program, &Solution { values: values.to_vec(), duals: vec![dual] });
        assert!(check([6.0, 4.0], 5.0).is_ok());
        assert!(matches!(check([5.0, 5.0], 5.0), Err(Violation::ReducedCost { found, .. }) if found == 3.0), "a dearer iterate");
        assert!(matches!(check([6.0, 4.0], 4.0), Err(Violation::ReducedCost { found, .. }) if found == 1.0), "a wrong price");
        assert!(matches!(check([6.0, 3.0], 5.0), Err(Violation::Residual { found, .. }) if found == 1.0), "a row missed");
        assert!(
            matches!(check([7.0, 3.0], 5.0), Err(Violation::Residual { found, .. }) if found == 1.0),
            "an upper bound missed"
        );
        assert!(matches!(check([-1.0, 11.0], 5.0), Err(Violation::Residual { .. })), "a lower bound missed");
        assert!(check([f64::NAN, 4.0], 5.0).is_err() && check([6.0, 4.0], f64::NAN).is_err());
    }
}
