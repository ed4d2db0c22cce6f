//! What can be served where memory is a limit, and how far budgets of detours have to be exceeded:
//! linear programs without latency.
//!
//! Work alone makes a flow, which [`crate::plan::solve::max_min`] divides. With a second limit it
//! is none any more, so the same division is made by linear programs, and only when a plan refuses
//! more than that flow has to. docs/model.md, section 4.

use crate::plan::problem::formulation::Problem;
use crate::plan::problem::lp::LinearProgram;
use crate::plan::solve::highs::{Solution, Solver};
use crate::plan::solve::round::{PlanError, SHED_LEFT_RPS};
use crate::plan::verify::certificate;
use crate::plan::{NEGLIGIBLE_RPS, ROUNDING_FRAC};

/// Most linear programs that divide what can be served; beyond it who still rises keeps the share
/// of the last one.
const MAX_SHARES: usize = 64;

impl Problem<'_> {
    /// Whether it has limits that fair shed by flows does not see.
    pub(crate) fn has_limits(&self) -> bool {
        !self.budgets.is_empty() || self.pools.iter().any(|pool| !pool.memory.is_empty())
    }

    /// Whether `shed_rps` is more than was decided before the program.
    pub(crate) fn sheds_beyond(&self, shed_rps: &[f64]) -> bool {
        let allowed = |rps: f64| 2.0 * SHED_LEFT_RPS + ROUNDING_FRAC * rps;
        self.demands.iter().zip(shed_rps).any(|(demand, shed)| shed - demand.shed_rps > allowed(demand.rps))
    }
}

/// Decides again what is shed and how far budgets are exceeded, so that the program has nothing
/// left to choose but the least cost: least shed by priority and max-min fair within one, as far as
/// engines and memory allow; then the least excess of budgets.
///
/// Errors: as of a plan; `budget_s` is the time of each linear program.
pub(crate) fn decide(problem: &mut Problem<'_>, budget_s: f64) -> Result<(), PlanError> {
    if problem.pools.iter().any(|pool| !pool.memory.is_empty()) {
        let served = fair(problem, budget_s)?;
        for (demand, served) in problem.demands.iter_mut().zip(served) {
            demand.shed_rps = (demand.rps - served - SHED_LEFT_RPS).max(0.0);
        }
    }
    for demand in &mut problem.demands {
        // Room for rounding; what is not to be shed at all stays below what counts as shed.
        demand.shed_most_rps = if demand.shed_rps > 0.0 { 2.0 * SHED_LEFT_RPS } else { NEGLIGIBLE_RPS };
    }
    if !problem.budgets.is_empty() {
        let excess = least_excess(problem, budget_s)?;
        let scale: f64 = problem.demands.iter().map(|demand| demand.rps).sum();
        for (budget, excess) in problem.budgets.iter_mut().zip(excess) {
            // Above what counts for the solver, so that what was found possible stays so.
            budget.excess = if excess > NEGLIGIBLE_RPS { excess + ROUNDING_FRAC * scale } else { ROUNDING_FRAC * scale };
        }
    }
    Ok(())
}

/// Rows of demands, pools and memory with every edge, and room up to capacity and memory; entries
/// of budgets if asked for.
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

/// What each demand is to be served, in requests/s. The share of a priority rises for all together;
/// those whose row has a price when it ends cannot be served more by any flow that serves nobody
/// less, and keep their share.
fn fair(problem: &Problem<'_>, budget_s: f64) -> Result<Vec<f64>, PlanError> {
    let mut served = vec![0.0; problem.demands.len()];
    let mut priorities: Vec<u8> = problem.demands.iter().map(|demand| demand.priority).collect();
    priorities.sort_unstable();
    priorities.dedup();
    for priority in priorities {
        let mut open: Vec<usize> = (0..served.len()).filter(|&at| problem.demands[at].priority == priority).collect();
        for nth in 0..MAX_SHARES {
            let (share, solution) = largest_share(problem, &served, &open, budget_s)?;
            // A row's price is what its demand holds back the share, per request/s.
            let is_stuck = |at: usize| solution.duals[at].abs() * problem.demands[at].rps > ROUNDING_FRAC;
            let is_last = share >= 1.0 - ROUNDING_FRAC || nth + 1 == MAX_SHARES || !open.iter().any(|&at| is_stuck(at));
            open.retain(|&at| {
                let is_done = is_last || is_stuck(at);
                if is_done {
                    // A hair less, so that the next program has a point.
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

/// The largest share of their demand at which all of `open` can be served beside what is `served`
/// already.
fn largest_share(problem: &Problem<'_>, served: &[f64], open: &[usize], budget_s: f64) -> Result<(f64, Solution), PlanError> {
    let mut program = program(problem, false);
    let rises: Vec<(usize, f64)> = open.iter().map(|&at| (at, -problem.demands[at].rps)).collect();
    program.push(-1.0, 1.0, &rises);
    program.rhs[..served.len()].copy_from_slice(served);
    let solution = solved(program, budget_s)?;
    Ok((solution.values.last().copied().unwrap_or(0.0), solution))
}

/// By how much each budget has to be exceeded if all that is not shed is served, the sum being the
/// least there is.
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
