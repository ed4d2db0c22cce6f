//! From a fleet and its inputs to a checked plan: the rounds of linearise, solve, check, refine.

use thiserror::Error;

use crate::model::{ClassId, ClusterId, EngineId, Fleet};

use super::check::{self, Kkt, Violation};
use super::inputs::InputError;
use super::outcome::{Certificate, EngineLoad, Plan, Route, RouteWeight, Status};
use super::problem::{Frame, Point, Problem};
use super::solve::{Solution, SolveError, Solver};
use super::{Inputs, NEGLIGIBLE_RPS, ROUNDING_FRAC};

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
struct Round {
    frame: Frame,
    point: Point,
    kkt: Kkt,
    gap_frac: f64,
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

/// Solves once more without the slivers of `best`, and takes the result if it costs next to nothing.
fn without_slivers(problem: &mut Problem<'_>, solver: &mut Solver, best: Round) -> Result<(Round, bool), PlanError> {
    let mut slivers = Vec::new();
    for (at, (arc, &flow)) in problem.arcs.iter().zip(&best.point.flow_rps).enumerate() {
        let served = problem.demands[arc.demand].rps - best.point.shed_rps[arc.demand];
        if flow > ROUNDING_FRAC * served && flow < SLIVER_FRAC * served {
            slivers.push(at);
        }
    }
    if slivers.is_empty() {
        return Ok((best, false));
    }
    for &at in &slivers {
        problem.arcs[at].is_pruned = true;
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
    for &at in &slivers {
        problem.arcs[at].is_pruned = false;
    }
    Ok((best, true))
}

/// The plan of one round, still without what the true curves say of it.
fn assemble(fleet: &Fleet, inputs: &Inputs, problem: &Problem<'_>, round: &Round, rounds: u32) -> Plan {
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

fn engine_load(fleet: &Fleet, problem: &Problem<'_>, round: &Round, engine: EngineId) -> EngineLoad {
    let (at, cost) = (engine.index(), &problem.engines[engine.index()]);
    let load_rps = round.point.load_rps[at];
    let full = cost.capacity_rps.max(problem.pinned_rps[at]);
    let steepest = cost.marginal_ms(full, round.frame.tokens[at]);
    let (price_ms, capacity_price_ms) = if !cost.is_ready() {
        (0.0, 0.0)
    } else if load_rps >= full * (1.0 - ROUNDING_FRAC) && full > 0.0 {
        // What a full engine's price has beyond its steepest slope is the price of its capacity.
        let segments = cost.segments(problem.pinned_rps[at], round.frame.tokens[at], full, 0.0);
        let last = segments.iter().rev().find(|segment| segment.width_rps > 0.0).map_or(steepest, |segment| segment.slope_ms);
        let price = round.point.engine_price_ms[at].max(if problem.pinned_rps[at] >= full { steepest } else { 0.0 });
        (price, (price - steepest.max(last)).max(0.0))
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
    let shed_rps = if round.point.shed_rps[demand] > rps * ROUNDING_FRAC { round.point.shed_rps[demand].min(rps) } else { 0.0 };
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

/// Completes a plan by what its weights come to on the true curves.
fn with_evaluation(mut plan: Plan, evaluation: &super::Evaluation) -> Plan {
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
