//! Fair shed under memory limits, and the least excess of detour budgets: linear programs without
//! latency.
//!
//! With capacity alone the served amounts are a network flow, which [`crate::plan::solve::max_min`]
//! divides. A second limit per pool breaks the flow structure. So linear programs make the same
//! division, and only when a plan sheds more than that flow requires. docs/model.md, section 4.

use crate::plan::problem::formulation::Problem;
use crate::plan::problem::lp::LinearProgram;
use crate::plan::solve::highs::{Solution, Solver};
use crate::plan::solve::round::{PlanError, SHED_LEFT_RPS};
use crate::plan::verify::certificate;
use crate::plan::{NEGLIGIBLE_RPS, ROUNDING_FRAC};

/// Upper bound on the linear programs of one priority, which bounds the time of a plan. The demands
/// that still rise at the last program keep its share.
const MAX_SHARES: usize = 64;

impl Problem<'_> {
    /// True if the problem has limits that the network flow of `max_min` ignores: memory or detour
    /// budgets.
    pub(crate) fn has_limits(&self) -> bool {
        !self.budgets.is_empty() || self.pools.iter().any(|pool| !pool.memory.is_empty())
    }

    /// True if `shed_rps` exceeds the shed that was decided before the program.
    pub(crate) fn sheds_beyond(&self, shed_rps: &[f64]) -> bool {
        let allowed = |rps: f64| 2.0 * SHED_LEFT_RPS + ROUNDING_FRAC * rps;
        self.demands.iter().zip(shed_rps).any(|(demand, shed)| shed - demand.shed_rps > allowed(demand.rps))
    }
}

/// Decides shed and the excess of budgets again, so that only cost is left for the program to
/// decide. First the least shed, by priority and max-min fair within a priority, under capacity and
/// memory; then the least excess of budgets.
///
/// Errors: [`PlanError`]. `budget_s` is the time limit of each linear program.
pub(crate) fn decide(problem: &mut Problem<'_>, budget_s: f64) -> Result<(), PlanError> {
    if problem.pools.iter().any(|pool| !pool.memory.is_empty()) {
        let served = fair(problem, budget_s)?;
        for (demand, served) in problem.demands.iter_mut().zip(served) {
            demand.shed_rps = (demand.rps - served - SHED_LEFT_RPS).max(0.0);
        }
    }
    for demand in &mut problem.demands {
        // Leaves room for rounding. A demand without decided shed stays below the threshold of
        // shed.
        demand.shed_most_rps = if demand.shed_rps > 0.0 { 2.0 * SHED_LEFT_RPS } else { NEGLIGIBLE_RPS };
    }
    if !problem.budgets.is_empty() {
        let excess = least_excess(problem, budget_s)?;
        let scale: f64 = problem.demands.iter().map(|demand| demand.rps).sum();
        for (budget, excess) in problem.budgets.iter_mut().zip(excess) {
            // Above the solver's tolerance, so that the excess that was found stays feasible.
            budget.excess = if excess > NEGLIGIBLE_RPS { excess + ROUNDING_FRAC * scale } else { ROUNDING_FRAC * scale };
        }
    }
    Ok(())
}

/// The rows of demands, pools and memory with every edge and the slack of capacity and memory; with
/// the coefficients of budgets if `has_budgets`.
fn program(problem: &Problem<'_>, has_budgets: bool) -> LinearProgram {
    let rows = problem.rows();
    let mut program = LinearProgram::default();
    let mut entries = Vec::new();
    for edge in &problem.edges {
        problem.entries(&rows, edge, &mut entries);
        entries.retain(|&(row, _)| has_budgets || row < rows.budget);
        program.push(0.0, f64::INFINITY, &entries);
    }
    program.rhs = vec![0.0; problem.demands.len()];
    for (at, pool) in problem.pools.iter().enumerate() {
        program.push(0.0, f64::INFINITY, &[(rows.pool + at, 1.0)]);
        program.rhs.push((pool.cost.capacity_rps - pool.pinned.work).max(0.0));
    }
    problem.push_memory(&rows, &mut program);
    program
}

/// Served amount of each demand, in requests/s. The share of a priority rises for all its demands
/// together. A demand whose row has a dual at the optimum cannot be served more by any flow that
/// serves no other demand less; it keeps its share.
fn fair(problem: &Problem<'_>, budget_s: f64) -> Result<Vec<f64>, PlanError> {
    let mut served = vec![0.0; problem.demands.len()];
    let mut priorities: Vec<u8> = problem.demands.iter().map(|demand| demand.priority).collect();
    priorities.sort_unstable();
    priorities.dedup();
    for priority in priorities {
        let mut open: Vec<usize> = (0..served.len()).filter(|&at| problem.demands[at].priority == priority).collect();
        for nth in 0..MAX_SHARES {
            let (share, solution) = largest_share(problem, &served, &open, budget_s)?;
            // The dual of a row tells how much its demand limits the share, per request/s.
            let is_stuck = |at: usize| solution.duals[at].abs() * problem.demands[at].rps > ROUNDING_FRAC;
            let is_last = share >= 1.0 - ROUNDING_FRAC || nth + 1 == MAX_SHARES || !open.iter().any(|&at| is_stuck(at));
            open.retain(|&at| {
                let is_done = is_last || is_stuck(at);
                if is_done {
                    // Rounded down, so that the next program is feasible.
                    served[at] = (share * (1.0 - ROUNDING_FRAC)).max(0.0) * problem.demands[at].rps;
                }
                !is_done
            });
            if open.is_empty() {
                break;
            }
        }
    }
    Ok(served)
}

/// The largest share at which all of `open` can be served beside the amounts in `served`.
fn largest_share(problem: &Problem<'_>, served: &[f64], open: &[usize], budget_s: f64) -> Result<(f64, Solution), PlanError> {
    let mut program = program(problem, false);
    let rises: Vec<(usize, f64)> = open.iter().map(|&at| (at, -problem.demands[at].rps)).collect();
    program.push(-1.0, 1.0, &rises);
    program.rhs[..served.len()].copy_from_slice(served);
    let solution = solved(program, budget_s)?;
    Ok((solution.values.last().copied().unwrap_or(0.0), solution))
}

/// Excess of each budget, with the least sum, when all demand that is not shed is served.
fn least_excess(problem: &Problem<'_>, budget_s: f64) -> Result<Vec<f64>, PlanError> {
    let rows = problem.rows();
    let mut program = program(problem, true);
    for (at, demand) in problem.demands.iter().enumerate() {
        program.rhs[at] = demand.rps - demand.shed_rps;
        program.push(0.0, demand.shed_most_rps, &[(at, 1.0)]);
    }
    for at in 0..problem.budgets.len() {
        program.push(0.0, f64::INFINITY, &[(rows.budget + at, 1.0)]);
        program.rhs.push(0.0);
    }
    let first = program.columns();
    (0..problem.budgets.len()).for_each(|at| program.push(1.0, f64::INFINITY, &[(rows.budget + at, -1.0)]));
    Ok(solved(program, budget_s)?.values.split_off(first))
}

fn solved(program: LinearProgram, budget_s: f64) -> Result<Solution, PlanError> {
    let mut solver = Solver::whole(program, budget_s)?;
    let solution = solver.solve()?;
    certificate::kkt(solver.program(), &solution)?;
    Ok(solution)
}
