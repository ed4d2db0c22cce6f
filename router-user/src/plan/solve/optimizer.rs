//! The optimiser: rounds of linearise, solve, check and refine, up to a checked plan.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::model::Fleet;

use crate::plan::load::Load;
use crate::plan::outcome::Plan;
use crate::plan::problem::cooldown::Cooldown;
use crate::plan::problem::formulation::{Demand, Edge, Problem};
use crate::plan::problem::linearization::{Iterate, Linearization};
use crate::plan::solve::assemble::assemble;
use crate::plan::solve::highs::{Solution, SolveError, Solver};
use crate::plan::solve::round::{Component, GAP_GOAL_FRAC, PlanError, Round, SHED_LEFT_RPS};
use crate::plan::solve::warm_start::Start;
use crate::plan::solve::{greedy, max_min, memory_limits};
use crate::plan::verify;
use crate::plan::verify::Violation;
use crate::plan::verify::certificate;
use crate::plan::verify::certificate::{Gap, Kkt};
use crate::plan::{Inputs, ROUNDING_FRAC, RouteWeights};

/// Default time limit of the solves of one plan, for callers without a planning period of their
/// own.
pub(super) const BUDGET: Duration = Duration::from_secs(20);

/// Gap at which the rounds end where all demands have current weights: a hundredth of the gain for
/// which the publish gate gives up current weights.
const HELD_GAP_GOAL_FRAC: f64 = 1e-5;

/// Price shift, in ms, at which the rounds end: the correction for output lengths would change no
/// price by more.
const PRICE_GOAL_MS: f64 = 0.01;

/// Upper bound on the rounds of one optimisation, each of which solves one linear program.
/// Breakpoints close in by a factor of four per round, so eight rounds resolve a load to one part
/// in 10^5. The other rounds serve fleets whose mix of lengths moves between rounds.
const MAX_ROUNDS: u32 = 24;

/// After this many rounds a gap of [`LATE_GAP_FRAC`] ends them too. That gap is far below the
/// accuracy of any profile.
const PATIENT_ROUNDS: u32 = 10;
const LATE_GAP_FRAC: f64 = 1e-5;

/// Share of a route below which an edge is a sliver: so rare a route keeps no cache warm. Slivers
/// are pruned if that raises the latency by at most [`PRUNE_COST_FRAC`].
const SLIVER_FRAC: f64 = 5e-4;
const PRUNE_COST_FRAC: f64 = 2e-4;

/// Gap above which a plan is an error where classes differ in work only, so that the program is
/// convex. Plans of other fleets report their gap.
const MAX_GAP_FRAC: f64 = 5e-4;

/// Number of edges below which components are solved one after the other: starting threads would
/// take longer.
const PARALLEL_EDGES: usize = 2_000;

/// Plans repeatedly, within a time limit. It remembers which routes are in cooldown
/// ([`crate::plan::problem::cooldown`]).
#[derive(Debug)]
pub struct Optimiser {
    budget: Duration,
    cooldown: Cooldown,
}

/// Plans the weights of `fleet` for `inputs`, without a history of cooldowns. `current` are the
/// active weights, from which moving has a price.
///
/// Deterministic: the same arguments, in whatever order they are listed, give the same plan.
/// Errors: [`PlanError`]; lack of capacity is no error. A returned plan has passed
/// [`crate::plan::verify`].
pub fn plan(fleet: &Fleet, inputs: &Inputs, current: Option<&[RouteWeights]>) -> Result<Plan, PlanError> {
    Optimiser::new(BUDGET).plan(fleet, inputs, current)
}

/// A greedy plan for `inputs` without a solver: always legal, but not optimal. It stands in where
/// the optimiser fails; docs/model.md, section 7.
///
/// Errors: [`PlanError::Input`], or [`PlanError::Check`] if the weights break a rule.
pub fn plan_greedily(fleet: &Fleet, inputs: &Inputs, current: Option<&[RouteWeights]>) -> Result<Plan, PlanError> {
    filled(fleet, inputs, current, greedy::fill)
}

/// As [`plan_greedily`], but the `current` weights stay as far as they can: only requests without
/// room there move.
pub(crate) fn plan_around(fleet: &Fleet, inputs: &Inputs, current: &[RouteWeights]) -> Result<Plan, PlanError> {
    filled(fleet, inputs, Some(current), greedy::refill)
}

fn filled(
    fleet: &Fleet,
    inputs: &Inputs,
    current: Option<&[RouteWeights]>,
    fill: fn(&Problem<'_>) -> Round,
) -> Result<Plan, PlanError> {
    inputs.validate(fleet)?;
    let mut problems = Problem::new(fleet, inputs, current, &Cooldown::default()).components();
    problems.iter_mut().for_each(share_shed);
    let components: Vec<_> =
        problems.into_iter().map(|problem| Component { round: fill(&problem), problem, rounds: 0 }).collect();
    Ok(Plan { is_greedy: true, ..assemble(fleet, inputs, &components)? })
}

impl Optimiser {
    /// `budget` is the time limit of the solves of one plan.
    pub fn new(budget: Duration) -> Self {
        Self { budget, cooldown: Cooldown::default() }
    }

    /// Ends all cooldowns.
    pub(super) fn forget(&mut self) {
        self.cooldown = Cooldown::default();
    }

    /// As [`plan`], but routes whose weights have changed between the `current` of the last calls
    /// are in cooldown.
    pub fn plan(&mut self, fleet: &Fleet, inputs: &Inputs, current: Option<&[RouteWeights]>) -> Result<Plan, PlanError> {
        inputs.validate(fleet)?;
        // Weights that break a rule must be replaced, however much moves.
        let limit_frac = current
            .filter(|current| verify::legal(fleet, inputs, current).is_ok() && current.iter().all(|route| route.shed_frac == 0.0))
            .map(|_| inputs.move_limit_frac);
        self.cooldown.observe(current);
        let mut problems = Problem::new(fleet, inputs, current, &self.cooldown).components();
        problems.iter_mut().for_each(share_shed);
        let components = solve_all(problems, limit_frac, self.budget.as_secs_f64())?;
        let gap = components.iter().fold(Gap::default(), |sum, component| sum.and(component.round.gap));
        // The small amount of shed left to the LP is not an optimality gap, though on a near-idle
        // fleet it can exceed the gap limit.
        let left: f64 = components.iter().flat_map(|component| &component.problem.demands).map(shed_left_cost).sum();
        if Load::has_one_mix(fleet) && gap.frac() > MAX_GAP_FRAC && gap.excess > left {
            return Err(Violation::Gap { found: gap.frac(), allowed: MAX_GAP_FRAC }.into());
        }
        let mut plan = assemble(fleet, inputs, &components)?;
        plan.reversal = self.cooldown.reversal(plan.legal.routes());
        Ok(plan)
    }
}

/// Decides the shed of each demand where not everything fits.
fn share_shed(problem: &mut Problem<'_>) {
    if let Some(served) = max_min::served(problem) {
        for (demand, served) in problem.demands.iter_mut().zip(served) {
            demand.shed_rps = (demand.rps - served - SHED_LEFT_RPS).max(0.0);
        }
    }
}

/// Upper bound on the cost of the shed that is left to the program, in ms x requests/s.
fn shed_left_cost(demand: &Demand) -> f64 {
    if demand.shed_rps > 0.0 { SHED_LEFT_RPS * demand.shed_price_ms } else { 0.0 }
}

/// Solves every component; on all cores if there are enough edges. The result does not depend on
/// the number of threads.
fn solve_all<'a>(problems: Vec<Problem<'a>>, limit_frac: Option<f64>, budget_s: f64) -> Result<Vec<Component<'a>>, PlanError> {
    let edges: usize = problems.iter().map(|problem| problem.edges.len()).sum();
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(problems.len());
    if cores < 2 || edges < PARALLEL_EDGES {
        return problems.into_iter().map(|problem| solve_component(problem, limit_frac, budget_s)).collect();
    }
    let next = AtomicUsize::new(0);
    type Slot<'a> = (Option<Problem<'a>>, Option<Result<Component<'a>, PlanError>>);
    let slots: Vec<Mutex<Slot<'a>>> = problems.into_iter().map(|problem| Mutex::new((Some(problem), None))).collect();
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(slot) = slots.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut slot = slot.lock().expect("no other thread takes this slot");
                    let problem = slot.0.take().expect("each slot is taken once");
                    slot.1 = Some(solve_component(problem, limit_frac, budget_s));
                }
            });
        }
    });
    let outcome = |slot: Mutex<Slot<'a>>| slot.into_inner().expect("no thread panicked").1.expect("every slot was solved");
    slots.into_iter().map(outcome).collect()
}

fn solve_component<'a>(mut problem: Problem<'a>, limit_frac: Option<f64>, budget_s: f64) -> Result<Component<'a>, PlanError> {
    let (mut round, mut rounds) = optimise(&mut problem, budget_s)?;
    if problem.has_limits() && problem.sheds_beyond(&round.iterate.shed_rps) {
        let (edges, demands, budgets) = (problem.edges.clone(), problem.demands.clone(), problem.budgets.clone());
        problem.edges.iter_mut().for_each(|edge| edge.is_pruned = false);
        let decided = memory_limits::decide(&mut problem, budget_s).and_then(|()| optimise(&mut problem, budget_s));
        if let Ok((better, more_rounds)) = decided {
            (round, rounds) = (better, rounds + more_rounds);
        } else {
            // The first round is legal but sheds more than necessary: better than no plan.
            (problem.edges, problem.demands, problem.budgets) = (edges, demands, budgets);
        }
    }
    let current = problem.demands.iter().filter(|demand| demand.has_current).map(|demand| demand.rps).sum::<f64>();
    if let Some(limit_rps) = limit_frac.map(|frac| frac * current)
        && round.iterate.shed_rps.iter().all(|&shed| shed <= crate::plan::NEGLIGIBLE_RPS)
        && problem.moved_rps(&round.iterate) > limit_rps + crate::plan::NEGLIGIBLE_RPS
    {
        problem.edges.iter_mut().for_each(|edge| edge.is_pruned = false);
        problem.move_limit_rps = Some(limit_rps);
        problem.admit_held();
        let first_rounds = rounds;
        (round, rounds) = optimise(&mut problem, budget_s)?;
        rounds += first_rounds;
    }
    // A marginal cost is negative only where a budget binds: a request below the mean allows others
    // a detour.
    if problem.budgets.is_empty() {
        round.iterate.demand_price_ms.iter_mut().for_each(|price| *price = price.max(0.0));
    }
    Ok(Component { problem, round, rounds })
}

/// Solves rounds until the gap closes, then prunes slivers. Returns the best round, and the number
/// of programs that were solved.
///
/// With several output lengths the program linearised at one solution may jump to another and back.
/// So the centre of the linearization moves towards each new solution only as far as the true cost
/// falls. The plan itself is always a solution with its own duals.
fn optimise(problem: &mut Problem<'_>, budget_s: f64) -> Result<(Round, u32), PlanError> {
    let mut linearization = problem.first_linearization();
    if problem.demands.is_empty() {
        let program = problem.program(&linearization);
        let solution = Solution { values: vec![0.0; program.columns()], duals: vec![0.0; program.rhs.len()] };
        let kkt = Kkt { residual_rps: 0.0, reduced_cost_ms: 0.0 };
        return Ok((round(problem, &linearization, &solution, kkt), 0));
    }
    let program = problem.program(&linearization);
    let start = problem.start(&program, &linearization);
    let mut solver = Solver::new(program, &start, budget_s)?;
    let has_current = problem.demands.iter().all(|demand| demand.has_current);
    let goal = if has_current { HELD_GAP_GOAL_FRAC } else { GAP_GOAL_FRAC };
    let mut best: Option<Round> = None;
    let mut centre: Option<Iterate> = None;
    let mut prices = Vec::new();
    let mut rounds = 0;
    while rounds < MAX_ROUNDS {
        let (solution, kkt) = solve_checked(&mut solver, budget_s)?;
        rounds += 1;
        let done = round(problem, &linearization, &solution, kkt);
        prices = solution.duals;
        let next = match centre {
            Some(centre) => problem.descended(centre, &done.iterate),
            None => done.iterate.clone(),
        };
        let work_rps = work_of(&done.iterate);
        let is_closed = done.gap.frac() <= goal && problem.mix_shift_ms(&linearization, &done.iterate) <= PRICE_GOAL_MS;
        let is_late = rounds >= PATIENT_ROUNDS && done.gap.frac() <= LATE_GAP_FRAC;
        if is_closed || is_late || best.as_ref().is_none_or(|best| done.is_better_than(best)) {
            best = Some(done);
        }
        if is_closed || is_late {
            break;
        }
        linearization = problem.refined(&linearization, &next);
        centre = Some(next);
        relinearise(problem, &mut solver, &linearization, &work_rps, &prices)?;
    }
    let best = best.expect("at least one round was solved");
    let (best, was_tried) = without_slivers(problem, &mut solver, best, &prices, budget_s)?;
    Ok((best, rounds + u32::from(was_tried)))
}

/// Load of each pool.
fn work_of(iterate: &Iterate) -> Vec<f64> {
    iterate.loads.iter().map(|load| load.work).collect()
}

/// Gives the solver the program at `linearization`, to start from its last basis, adapted to the
/// loads and prices that were found.
fn relinearise(
    problem: &Problem<'_>,
    solver: &mut Solver,
    linearization: &Linearization,
    work_rps: &[f64],
    prices: &[f64],
) -> Result<(), SolveError> {
    let program = problem.program(linearization);
    let start = solver.basis().map(|(mut columns, rows)| {
        problem.restart(&program, work_rps, &mut columns);
        Start { columns, rows, prices: prices.to_vec() }
    });
    solver.edit(program, start.as_ref())
}

/// Solves, and checks the solution; after a failure it solves the whole program once more, cold.
fn solve_checked(solver: &mut Solver, budget_s: f64) -> Result<(Solution, Kkt), PlanError> {
    if let Ok(solution) = solver.solve()
        && let Ok(kkt) = certificate::kkt(solver.program(), &solution)
    {
        return Ok((solution, kkt));
    }
    *solver = Solver::whole(solver.program().clone(), budget_s)?;
    let solution = solver.solve()?;
    let kkt = certificate::kkt(solver.program(), &solution)?;
    Ok((solution, kkt))
}

/// Translates a solution into the fleet's terms, and evaluates it on the true curves.
fn round(problem: &Problem<'_>, linearization: &Linearization, solution: &Solution, kkt: Kkt) -> Round {
    let iterate = problem.iterate(linearization, &solution.values, &solution.duals);
    let own = problem.refined(linearization, &iterate);
    // The prices belong to the mix of their linearization; the gap is computed at the mix of the
    // iterate.
    let shifted = |at: usize| {
        let (ttft_ms, tbot_ms) = linearization.times_ms[at];
        iterate.pool_price_ms[at] + own.mix[at].beyond(linearization.mix[at]).cost(ttft_ms, tbot_ms)
    };
    let prices: Vec<f64> = (0..problem.pools.len()).map(shifted).collect();
    let gap = certificate::gap(problem, &own, &iterate, &prices);
    Round::of(problem, linearization.clone(), iterate, kkt, gap)
}

/// Solves once more with all slivers pruned, and takes the result if it costs at most
/// [`PRUNE_COST_FRAC`] more.
fn without_slivers(
    problem: &mut Problem<'_>,
    solver: &mut Solver,
    best: Round,
    prices: &[f64],
    budget_s: f64,
) -> Result<(Round, bool), PlanError> {
    let share = |at: usize, edge: &Edge| {
        let served = problem.demands[edge.demand].rps - best.iterate.shed_rps[edge.demand];
        if served > 0.0 { best.iterate.flow_rps[at] / served } else { 0.0 }
    };
    let shares: Vec<f64> = problem.edges.iter().enumerate().map(|(at, edge)| share(at, edge)).collect();
    let mut has_sliver = vec![false; problem.demands.len()];
    for (edge, &share) in problem.edges.iter().zip(&shares) {
        has_sliver[edge.demand] |= share > ROUNDING_FRAC && share < SLIVER_FRAC;
    }
    if !has_sliver.contains(&true) {
        return Ok((best, false));
    }
    for (edge, &share) in problem.edges.iter_mut().zip(&shares) {
        edge.is_pruned = has_sliver[edge.demand] && share < SLIVER_FRAC;
    }
    relinearise(problem, solver, &best.linearization, &work_of(&best.iterate), prices)?;
    let solved = solve_checked(solver, budget_s);
    if problem.has_limits() && solved.is_err() {
        // Where shed is bounded, the program without these flows may be infeasible.
        problem.edges.iter_mut().for_each(|edge| edge.is_pruned = false);
        return Ok((best, true));
    }
    let (solution, kkt) = solved?;
    let mut pruned = round(problem, &best.linearization, &solution, kkt);
    let latency = best.cost - best.shed;
    let sheds_no_more = pruned.shed <= best.shed * (1.0 + ROUNDING_FRAC);
    if sheds_no_more && pruned.cost - pruned.shed <= latency * (1.0 + PRUNE_COST_FRAC) {
        // The lower bound of the program with all flows also holds for the one with fewer, and it
        // is the tighter one.
        pruned.gap = best.gap.grown(pruned.cost - best.cost);
        return Ok((pruned, true));
    }
    for edge in &mut problem.edges {
        edge.is_pruned = false;
    }
    Ok((best, true))
}
