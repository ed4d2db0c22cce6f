//! How good is a plan? Plain arithmetic that shares no code with the solver.
//!
//! [`kkt`] checks that an iterate solves its linear program; [`gap`] bounds how far it is from the
//! best on the true curves.

use crate::plan::problem::formulation::{Demand, Problem};
use crate::plan::problem::linearization::{Iterate, Linearization};
use crate::plan::problem::lp::LinearProgram;
use crate::plan::solve::highs::Solution;
use crate::plan::verify::legality::AMOUNT_TOLERANCE;
use crate::plan::verify::violation::Violation;

/// Wrong sign a reduced cost may have, as a share of the largest price: ten times the solver's own
/// tolerance.
const PRICE_TOLERANCE: f64 = 1e-6;

/// Residuals of an iterate in its linear program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kkt {
    pub(crate) residual_rps: f64,
    pub(crate) reduced_cost_ms: f64,
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

    /// The gap of an iterate that costs `more` than this one, with the same bound.
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
    // current flows offer for less; shed too is without limit, unless it is known what can be
    // served.
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
        let limit_ms = if problem.demands[edge.demand].has_current { iterate.move_limit_price_ms } else { 0.0 };
        beyond[edge.demand] = beyond[edge.demand].min(delivered + edge.move_ms + limit_ms);
        free[edge.demand] = free[edge.demand].min(delivered);
        if edge.kept_rps > 0.0 {
            kept[edge.demand].push((delivered, edge.kept_rps));
        }
        latency += flow * edge_cost;
    }
    let (mut shed_cost, mut bound, mut base_bound) = (0.0, 0.0, 0.0);
    for (at, demand) in problem.demands.iter().enumerate() {
        // Demand that is shed before the program is not a choice of the program.
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
