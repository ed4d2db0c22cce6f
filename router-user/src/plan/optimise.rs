//! From a fleet and its inputs to a checked plan: the rounds of linearise, solve, check, refine.

use thiserror::Error;

use crate::model::Fleet;

use super::assemble::{assemble, with_evaluation};
use super::check::{self, Kkt, Violation};
use super::inputs::InputError;
use super::outcome::Plan;
use super::problem::{Arc, Frame, Point, Problem};
use super::solve::{Solution, SolveError, Solver};
use super::{Inputs, ROUNDING_FRAC};

/// Gap at which the rounds end: small enough that prices agree with the slopes of the true curves to a tenth of a millisecond.
const GAP_GOAL_FRAC: f64 = 1e-9;

/// What the correction for output lengths may still move in a price when the rounds end, in ms.
const PRICE_GOAL_MS: f64 = 0.01;

/// Most linear programs of one plan. Breakpoints close in by a factor of four each round, so eight rounds resolve a load to a part in
/// 10^5; the rest is for fleets whose mix of lengths moves between rounds.
const MAX_ROUNDS: u32 = 24;

/// After this many rounds a gap this small, far below what any profile is known to, ends them too.
const PATIENT_ROUNDS: u32 = 10;
const LATE_GAP_FRAC: f64 = 1e-5;

/// A share of a route below this is pruned if that costs next to nothing ([`PRUNE_COST_FRAC`]): a route that rare keeps no cache warm.
const SLIVER_FRAC: f64 = 5e-4;
const PRUNE_COST_FRAC: f64 = 2e-4;

/// Gap above which a plan is refused where one output length makes the program convex. Mixed lengths are judged by the gap they report.
const MAX_GAP_FRAC: f64 = 5e-4;

/// Why there is no plan. Demand above capacity is none of the reasons: that is planned, as shed.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PlanError {
    #[error("inputs are not of this fleet: {0}")]
    Input(#[from] InputError),
    #[error(transparent)]
    Solve(#[from] SolveError),
    #[error("plan failed its check: {0}")]
    Check(#[from] Violation),
}

/// One solved and checked round.
#[derive(Clone, Debug)]
pub(super) struct Round {
    pub(super) frame: Frame,
    pub(super) point: Point,
    pub(super) kkt: Kkt,
    pub(super) gap_frac: f64,
    /// On the true curves, shed included, and the part that stands for shed; in ms x requests/s.
    cost: f64,
    shed: f64,
}

/// Plans the weights of `fleet` for `inputs`.
///
/// Deterministic: the same fleet and inputs, in whatever order they are listed, give the same plan.
/// Errors: [`PlanError`]; never for lack of capacity. A plan that is returned has passed [`super::check`].
pub fn plan(fleet: &Fleet, inputs: &Inputs) -> Result<Plan, PlanError> {
    inputs.validate(fleet)?;
    let mut problem = Problem::new(fleet, inputs);
    let (mut best, rounds) = optimise(&mut problem)?;
    let has_one_length = fleet.classes.windows(2).all(|pair| pair[0].output_tokens == pair[1].output_tokens);
    if has_one_length && best.gap_frac > MAX_GAP_FRAC {
        return Err(Violation::Gap { found: best.gap_frac, allowed: MAX_GAP_FRAC }.into());
    }
    for price in &mut best.point.demand_price_ms {
        *price = price.max(0.0);
    }
    let plan = assemble(fleet, inputs, &problem, &best, rounds);
    let evaluation = check::legal(fleet, inputs, &plan.weights())?;
    Ok(with_evaluation(plan, &evaluation))
}

/// Solves rounds until the gap closes, then prunes slivers. Returns the best round and how many programs were solved.
///
/// With several output lengths the program linearised at one solution may jump to another and back. So the point to linearise at
/// goes towards each new solution only as far as the true cost falls; the plan itself is always a solution with its own prices.
fn optimise(problem: &mut Problem<'_>) -> Result<(Round, u32), PlanError> {
    let mut frame = problem.first_frame();
    if problem.demands.is_empty() {
        let program = problem.program(&frame);
        let solution = Solution { values: vec![0.0; program.columns.len()], duals: vec![0.0; program.rhs.len()] };
        let kkt = Kkt { residual_rps: 0.0, reduced_cost_ms: 0.0 };
        return Ok((round(problem, &frame, &solution, kkt), 0));
    }
    let mut solver = Solver::new(problem.program(&frame))?;
    let mut best: Option<Round> = None;
    let mut centre: Option<Point> = None;
    let mut rounds = 0;
    while rounds < MAX_ROUNDS {
        let (solution, kkt) = solve_checked(&mut solver)?;
        rounds += 1;
        let done = round(problem, &frame, &solution, kkt);
        let next = match centre {
            Some(centre) => problem.descended(centre, &done.point),
            None => done.point.clone(),
        };
        let is_closed = done.gap_frac <= GAP_GOAL_FRAC && problem.mix_shift_ms(&frame, &done.point) <= PRICE_GOAL_MS;
        let is_late = rounds >= PATIENT_ROUNDS && done.gap_frac <= LATE_GAP_FRAC;
        if is_closed || is_late || best.as_ref().is_none_or(|best| done.cost < best.cost) {
            best = Some(done);
        }
        if is_closed || is_late {
            break;
        }
        frame = problem.refined(&frame, &next);
        centre = Some(next);
        solver.edit(problem.program(&frame));
    }
    let best = best.expect("at least one round was solved");
    let (best, was_tried) = without_slivers(problem, &mut solver, best)?;
    Ok((best, rounds + u32::from(was_tried)))
}

/// Solves, and checks what the solver says; a point that fails is given one cold start.
fn solve_checked(solver: &mut Solver) -> Result<(Solution, Kkt), PlanError> {
    if let Ok(solution) = solver.solve()
        && let Ok(kkt) = check::kkt(solver.program(), &solution)
    {
        return Ok((solution, kkt));
    }
    *solver = Solver::new(solver.program().clone())?;
    let solution = solver.solve()?;
    let kkt = check::kkt(solver.program(), &solution)?;
    Ok((solution, kkt))
}

/// Puts a solution in the fleet's terms and judges it on the true curves.
fn round(problem: &Problem<'_>, frame: &Frame, solution: &Solution, kkt: Kkt) -> Round {
    let point = problem.point(frame, &solution.values, &solution.duals);
    let own = problem.refined(frame, &point);
    // The prices are for the lengths of the frame they were found in; the gap is asked at the point's own.
    let shifted = |at: usize| point.engine_price_ms[at] + (own.tokens[at] - frame.tokens[at]) * frame.tbot_ms[at];
    let prices: Vec<f64> = (0..problem.engines.len()).map(shifted).collect();
    let gap_frac = check::gap_frac(problem, &own, &point, &prices);
    let (cost, shed) = (problem.cost(&point), problem.shed_cost(&point));
    Round { frame: frame.clone(), point, kkt, gap_frac, cost, shed }
}

/// Solves once more with every route that has a sliver held to its other engines, and takes the result if it costs next to nothing.
fn without_slivers(problem: &mut Problem<'_>, solver: &mut Solver, best: Round) -> Result<(Round, bool), PlanError> {
    let share = |at: usize, arc: &Arc| {
        let served = problem.demands[arc.demand].rps - best.point.shed_rps[arc.demand];
        if served > 0.0 { best.point.flow_rps[at] / served } else { 0.0 }
    };
    let shares: Vec<f64> = problem.arcs.iter().enumerate().map(|(at, arc)| share(at, arc)).collect();
    let mut has_sliver = vec![false; problem.demands.len()];
    for (arc, &share) in problem.arcs.iter().zip(&shares) {
        has_sliver[arc.demand] |= share > ROUNDING_FRAC && share < SLIVER_FRAC;
    }
    if !has_sliver.contains(&true) {
        return Ok((best, false));
    }
    for (arc, &share) in problem.arcs.iter_mut().zip(&shares) {
        arc.is_pruned = has_sliver[arc.demand] && share < SLIVER_FRAC;
    }
    solver.edit(problem.program(&best.frame));
    let (solution, kkt) = solve_checked(solver)?;
    let mut pruned = round(problem, &best.frame, &solution, kkt);
    let latency = best.cost - best.shed;
    let sheds_no_more = pruned.shed <= best.shed * (1.0 + ROUNDING_FRAC);
    if sheds_no_more && pruned.cost - pruned.shed <= latency * (1.0 + PRUNE_COST_FRAC) {
        // The bound of the program with all flows holds for the one with fewer, and is the tighter one.
        pruned.gap_frac = best.gap_frac + ((pruned.cost - best.cost) / latency).max(0.0);
        return Ok((pruned, true));
    }
    for arc in &mut problem.arcs {
        arc.is_pruned = false;
    }
    Ok((best, true))
}
