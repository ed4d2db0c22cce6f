//! The optimum of whole fleets with one output length, as a convex-cost flow: nothing of the
//! planner, no linear program.
//!
//! Cancels cycles of least mean cost in the residual graph of the true curves, whose arcs cost what
//! one more or one less request/s does there, each by a step of exact length. Source: Karzanov and
//! McCormick, "Polynomial methods for separable convex optimization in unimodular linear spaces"
//! (SIAM J. Comput. 26, 1997). When no cycle costs less than `-e` an edge, no flow costs less than
//! this one by more than `e` times the length of the way to it: the method proves its own answer.

use router_user::model::{Curve, EngineId, Fleet};
use router_user::plan::{Inputs, RouteWeights};

use crate::plan::flow::{self, Wanted};

/// Mean cost of a cycle that ends the search, as a share of the least latency of any engine.
const GOAL_FRAC: f64 = 1e-7;
/// Share of a capacity within which a load is at a knot, and of all demand below which a flow is
/// none.
const AT_KNOT: f64 = 1e-9;
/// Cycles after which the search has failed. The theory halves the mean cost in as many cycles as
/// there are arcs.
const MOST_CYCLES: u32 = 200_000;

/// An optimum and how sure it is; both in ms x requests/s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exact {
    pub(crate) cost: f64,
    /// No flow costs less by more than this.
    pub(crate) slack: f64,
}

/// Least cost of serving `served` requests/s, `[cluster][class]`: network, latency in engines, and
/// what moving from `current` costs.
///
/// Flows are of work. All classes must have one output length, and weights that are their work; and
/// what is served must fit.
pub(crate) fn least_cost(fleet: &Fleet, inputs: &Inputs, served: &[Vec<f64>], current: Option<&[RouteWeights]>) -> Exact {
    let mut graph = Graph::new(fleet, inputs, served, current);
    let total: f64 = graph.arcs.iter().filter(|arc| arc.engine.is_some()).map(|arc| arc.flow).sum();
    let least = graph.arcs.iter().filter_map(|arc| arc.engine.as_ref()).map(|engine| engine.knots[0].1).fold(1e9, f64::min);
    let goal = GOAL_FRAC * least.max(1e-3);
    for _ in 0..MOST_CYCLES {
        let Some((cycle, mean)) = graph.cheapest_cycle() else { break };
        if mean >= -goal {
            break;
        }
        graph.cancel(&cycle);
    }
    let mean = graph.cheapest_cycle().map_or(0.0, |(_, mean)| mean);
    assert!(mean >= -goal, "the search ended with a cycle of {mean} ms an edge");
    // Each request changes its way and its engine at most: four edges.
    Exact { cost: graph.cost(), slack: 4.0 * total * goal }
}

/// What `weights` cost in the same terms.
pub(crate) fn cost_of(fleet: &Fleet, inputs: &Inputs, weights: &[RouteWeights], current: Option<&[RouteWeights]>) -> f64 {
    let (mut cost, mut load) = (0.0, vec![0.0; fleet.engines.len()]);
    for route in weights {
        let (cluster, class) = (route.cluster.index(), route.class.index());
        for &(engine, weight) in &route.weights {
            let rps = inputs.demand_rps[cluster][class] * (1.0 - route.shed_frac) * weight;
            let work = fleet.classes[class].work;
            load[engine.index()] += work * rps;
            cost += work * rps * inputs.rtt_ms[cluster][engine.index()];
            if let Some(kept) = kept_rps(inputs, current, route, engine) {
                cost += inputs.move_price_ms[class] * (rps - kept).max(0.0);
            }
        }
    }
    for engine in fleet.engine_ids().filter(|&engine| load[engine.index()] > 0.0) {
        cost += EngineTotal::new(fleet, inputs, engine).total(load[engine.index()]);
    }
    cost
}

/// What the current weights would send of the present demand; `None` without current weights.
fn kept_rps(inputs: &Inputs, current: Option<&[RouteWeights]>, route: &RouteWeights, engine: EngineId) -> Option<f64> {
    let current = current?
        .iter()
        .find(|current| (current.cluster, current.class) == (route.cluster, route.class) && !current.weights.is_empty())?;
    let weight = current.weights.iter().find(|&&(other, _)| other == engine).map_or(0.0, |&(_, weight)| weight);
    Some(weight * inputs.demand_rps[route.cluster.index()][route.class.index()])
}

/// `L W(L)` of an engine with its replicas as ready as they are: linear between knots `(load,
/// latency)`.
#[derive(Clone, Debug)]
struct EngineTotal {
    knots: Vec<(f64, f64)>,
    rounding: f64,
}

impl EngineTotal {
    fn new(fleet: &Fleet, inputs: &Inputs, engine: EngineId) -> Self {
        let profile = fleet.profile_of(engine);
        let tokens = fleet.classes[0].output_tokens;
        let ready = f64::from(inputs.ready[engine.index()]) / f64::from(fleet.engines[engine.index()].replicas);
        let mut loads: Vec<f64> =
            [&profile.ttft_ms, &profile.tbot_ms].into_iter().flat_map(Curve::knots).map(|&(load, _)| load).collect();
        // Beyond the last knot the last slope goes on.
        loads.push(2.0 * profile.capacity_rps + loads.iter().fold(0.0, |most: f64, &load| most.max(load)));
        loads.sort_by(f64::total_cmp);
        loads.dedup();
        let between = |knots: &[(f64, f64)], load: f64| {
            let after = knots.iter().position(|&(x, _)| x > load).unwrap_or(knots.len());
            match (after.checked_sub(2), knots.get(after)) {
                (_, Some(&(x1, y1))) => {
                    let (x0, y0) = knots[after - 1];
                    y0 + (y1 - y0) * (load - x0) / (x1 - x0)
                }
                (Some(last), None) => {
                    let ((x0, y0), (x1, y1)) = (knots[last], knots[last + 1]);
                    y1 + (y1 - y0) * (load - x1) / (x1 - x0)
                }
                (None, None) => knots[0].1,
            }
        };
        let knot = |&load: &f64| {
            let latency = between(profile.ttft_ms.knots(), load) + tokens * between(profile.tbot_ms.knots(), load);
            (load * ready, latency)
        };
        Self { knots: loads.iter().map(knot).collect(), rounding: AT_KNOT * profile.capacity_rps * ready }
    }

    /// Latency at `load`, and its slope to the left or to the right.
    fn latency(&self, load: f64, is_right: bool) -> (f64, f64) {
        let side = if is_right { self.rounding } else { -self.rounding };
        let after = self.knots.iter().position(|&(x, _)| x > load + side).unwrap_or(self.knots.len());
        let after = after.clamp(1, self.knots.len() - 1);
        let ((x0, y0), (x1, y1)) = (self.knots[after - 1], self.knots[after]);
        let slope = if x1 > x0 { (y1 - y0) / (x1 - x0) } else { 0.0 };
        (y0 + slope * (load - x0), slope)
    }

    fn total(&self, load: f64) -> f64 {
        load * self.latency(load, true).0
    }

    fn marginal(&self, load: f64, is_right: bool) -> f64 {
        let (latency, slope) = self.latency(load, is_right);
        latency + load * slope
    }
}

#[derive(Clone, Debug)]
struct Arc {
    from: usize,
    to: usize,
    flow: f64,
    most: f64,
    cost_ms: f64,
    /// Of an arc from an engine to the sink.
    engine: Option<EngineTotal>,
}

impl Arc {
    /// What one more (forward) or one less request/s costs.
    fn marginal(&self, flow: f64, is_forward: bool) -> f64 {
        let own = self.cost_ms + self.engine.as_ref().map_or(0.0, |engine| engine.marginal(flow, is_forward));
        if is_forward { own } else { -own }
    }

    fn room(&self, is_forward: bool) -> f64 {
        if is_forward { self.most - self.flow } else { self.flow }
    }
}

/// Demands, engines, and one sink.
#[derive(Clone, Debug)]
struct Graph {
    arcs: Vec<Arc>,
    nodes: usize,
    /// Flow that is none.
    rounding: f64,
}

/// An arc and the direction in which it is gone.
type Edge = (usize, bool);

impl Graph {
    fn new(fleet: &Fleet, inputs: &Inputs, served: &[Vec<f64>], current: Option<&[RouteWeights]>) -> Self {
        let asked = Inputs { demand_rps: served.to_vec(), ..inputs.clone() };
        let wanted: Vec<Wanted> = flow::wanted(fleet, &asked, |_| true).into_iter().filter(|one| one.rps > 0.0).collect();
        let start = flow::largest(fleet, &asked, &wanted);
        let nodes = wanted.len() + fleet.engines.len() + 1;
        let (mut arcs, mut load) = (Vec::new(), vec![0.0; fleet.engines.len()]);
        for (from, (one, flows)) in wanted.iter().zip(&start).enumerate() {
            let (cluster, class) = (one.cluster.index(), one.class.index());
            let route = RouteWeights { cluster: one.cluster, class: one.class, shed_frac: 0.0, weights: Vec::new() };
            for engine in fleet.engine_ids() {
                if inputs.ready[engine.index()] == 0 || inputs.ineligible(fleet, one.cluster, one.class, engine).is_some() {
                    continue;
                }
                let (to, cost_ms) = (wanted.len() + engine.index(), inputs.rtt_ms[cluster][engine.index()]);
                let flow = flows[engine.index()];
                load[engine.index()] += flow;
                let work = fleet.classes[class].work;
                let kept = kept_rps(inputs, current, &route, engine).map(|kept| kept * work);
                if let Some(kept) = kept.filter(|&kept| kept > 0.0) {
                    arcs.push(Arc { from, to, flow: flow.min(kept), most: kept, cost_ms, engine: None });
                }
                let (moved, price) =
                    kept.map_or((flow, 0.0), |kept| ((flow - kept).max(0.0), inputs.move_price_ms[class] / work));
                arcs.push(Arc { from, to, flow: moved, most: f64::INFINITY, cost_ms: cost_ms + price, engine: None });
            }
        }
        for engine in fleet.engine_ids().filter(|&engine| inputs.ready[engine.index()] > 0) {
            arcs.push(Arc {
                from: wanted.len() + engine.index(),
                to: nodes - 1,
                flow: load[engine.index()],
                most: inputs.capacity_rps(fleet, engine),
                cost_ms: 0.0,
                engine: Some(EngineTotal::new(fleet, inputs, engine)),
            });
        }
        let total: f64 = wanted.iter().map(|one| one.rps).sum();
        Self { arcs, nodes, rounding: AT_KNOT * total }
    }

    fn cost(&self) -> f64 {
        let of = |arc: &Arc| arc.flow * arc.cost_ms + arc.engine.as_ref().map_or(0.0, |engine| engine.total(arc.flow));
        self.arcs.iter().map(of).sum()
    }

    /// The residual cycle of least mean cost, and that mean; none in a graph without cycles.
    ///
    /// Source: Karp, "A characterization of the minimum cycle mean in a digraph" (Discrete Math.
    /// 23, 1978).
    fn cheapest_cycle(&self) -> Option<(Vec<Edge>, f64)> {
        let mut edges: Vec<(usize, usize, f64, Edge)> = Vec::with_capacity(2 * self.arcs.len());
        for (at, arc) in self.arcs.iter().enumerate() {
            for is_forward in [true, false] {
                if arc.room(is_forward) > self.rounding {
                    let (from, to) = if is_forward { (arc.from, arc.to) } else { (arc.to, arc.from) };
                    edges.push((from, to, arc.marginal(arc.flow, is_forward), (at, is_forward)));
                }
            }
        }
        // Least cost of a walk of exactly k edges that ends at a node, wherever it starts, and its
        // last edge.
        let mut cost = vec![vec![0.0; self.nodes]];
        let mut last: Vec<Vec<usize>> = vec![vec![usize::MAX; self.nodes]];
        for walk in 1..=self.nodes {
            let (mut next, mut edge_of) = (vec![f64::INFINITY; self.nodes], vec![usize::MAX; self.nodes]);
            for (at, &(from, to, price, _)) in edges.iter().enumerate() {
                let reached = cost[walk - 1][from] + price;
                if reached < next[to] {
                    (next[to], edge_of[to]) = (reached, at);
                }
            }
            cost.push(next);
            last.push(edge_of);
        }
        let mean = |node: usize| {
            let all = cost[self.nodes][node];
            let of = |walk: usize| (all - cost[walk][node]) / (self.nodes - walk) as f64;
            (0..self.nodes).filter(|&walk| cost[walk][node].is_finite()).map(of).fold(f64::NEG_INFINITY, f64::max)
        };
        let end =
            (0..self.nodes).filter(|&node| cost[self.nodes][node].is_finite()).min_by(|&a, &b| mean(a).total_cmp(&mean(b)))?;
        // As many edges as nodes: some node comes twice, and what lies between is the cycle.
        let (mut node, mut seen, mut walked) = (end, vec![None; self.nodes], Vec::new());
        for walk in (0..=self.nodes).rev() {
            if let Some(first) = seen[node] {
                let cycle: Vec<usize> = walked[first..].to_vec();
                let sum: f64 = cycle.iter().map(|&edge: &usize| edges[edge].2).sum();
                let mean = sum / cycle.len() as f64;
                return Some((cycle.into_iter().rev().map(|edge| edges[edge].3).collect(), mean));
            }
            seen[node] = Some(walked.len());
            let edge = last[walk][node];
            walked.push(edge);
            node = edges[edge].0;
        }
        unreachable!("a walk with as many edges as nodes comes somewhere twice")
    }

    /// Sends as much around a cycle as makes it cheaper.
    fn cancel(&mut self, cycle: &[Edge]) {
        let most = cycle.iter().map(|&(at, is_forward)| self.arcs[at].room(is_forward)).fold(f64::INFINITY, f64::min);
        let mut stops = vec![most];
        for &(at, is_forward) in cycle {
            let arc = &self.arcs[at];
            for &(load, _) in arc.engine.iter().flat_map(|engine| &engine.knots) {
                stops.push(if is_forward { load - arc.flow } else { arc.flow - load });
            }
        }
        stops.retain(|&stop| stop > 0.0 && stop <= most);
        stops.sort_by(f64::total_cmp);
        // What the next bit of the way costs at `amount`, seen forwards or backwards: linear
        // between stops.
        let price = |amount: f64, is_ahead: bool| -> f64 {
            let of = |&(at, is_forward): &Edge| {
                let flow = self.arcs[at].flow + if is_forward { amount } else { -amount };
                let arc = &self.arcs[at];
                let own = arc.cost_ms + arc.engine.as_ref().map_or(0.0, |engine| engine.marginal(flow, is_forward == is_ahead));
                if is_forward { own } else { -own }
            };
            cycle.iter().map(of).sum()
        };
        let mut amount = 0.0;
        for stop in stops {
            let (ahead, behind) = (price(amount, true), price(stop, false));
            if ahead >= 0.0 {
                break;
            }
            if behind > 0.0 {
                amount += (stop - amount) * ahead / (ahead - behind);
                break;
            }
            amount = stop;
        }
        for &(at, is_forward) in cycle {
            let arc = &mut self.arcs[at];
            arc.flow = (arc.flow + if is_forward { amount } else { -amount }).clamp(0.0, arc.most);
        }
    }
}
