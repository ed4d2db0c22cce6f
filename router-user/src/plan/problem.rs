//! The fleet and its inputs as a linear program. Pure: it knows no solver.
//!
//! docs/model.md, section 3: one flow per eligible (cluster, class, engine), one shed per (cluster, class), each engine's convex cost
//! cut into linear segments. Everything is laid out in the order of names, never of indices, so that neither the order of a file nor
//! a new entry in it decides between equal plans.

use crate::model::{ClassId, ClusterId, EngineId, Fleet};

use super::engine_cost::EngineCost;
use super::{Inputs, NEGLIGIBLE_RPS};

/// Largest cost, in ms, that the order of names adds to a flow: far below any latency, so that it only decides between equals.
const TIE_MS: f64 = 1e-3;

/// Steps that are tried towards a new solution.
const STEPS: [f64; 8] = [1.0, 0.75, 0.5, 0.25, 0.125, 0.0625, 0.031_25, 0.015_625];

/// A linear program in equality form: least cost, columns between 0 and `upper`, rows equal to `rhs`.
#[derive(Clone, Debug, Default)]
pub(super) struct LinearProgram {
    pub(super) columns: Vec<Column>,
    pub(super) rhs: Vec<f64>,
}

#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) cost: f64,
    pub(super) upper: f64,
    /// `(row, coefficient)`; one or two of them.
    pub(super) entries: Vec<(usize, f64)>,
}

/// A (cluster, class) with demand that the program distributes.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    pub(super) cluster: ClusterId,
    pub(super) class: ClassId,
    pub(super) rps: f64,
    pub(super) shed_price_ms: f64,
}

/// A flow the program may choose: a demand to an eligible, ready engine.
#[derive(Clone, Debug)]
pub(super) struct Arc {
    /// Index into [`Problem::demands`].
    pub(super) demand: usize,
    pub(super) engine: EngineId,
    /// Network and tie-break, in ms.
    pub(super) cost_ms: f64,
    pub(super) tokens: f64,
    /// Kept at 0: the demand had a sliver, and is held to its other engines.
    pub(super) is_pruned: bool,
}

/// Where the program is linearised: one entry per engine, in fleet order.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    /// Mean output length of the engine's requests, in tokens.
    pub(super) tokens: Vec<f64>,
    /// TBOT, in ms, at which a class's difference from that mean is priced.
    pub(super) tbot_ms: Vec<f64>,
    /// Centre and half-width of the refined breakpoints, in requests/s.
    pub(super) focus: Vec<(f64, f64)>,
}

/// A solution in the fleet's terms.
#[derive(Clone, Debug)]
pub(super) struct Point {
    /// Requests/s of each arc.
    pub(super) flow_rps: Vec<f64>,
    /// Requests/s shed of each demand.
    pub(super) shed_rps: Vec<f64>,
    /// Marginal cost of each demand, in ms.
    pub(super) demand_price_ms: Vec<f64>,
    /// Marginal cost of load on each engine, in ms, for a request of the frame's mean length; fleet order.
    pub(super) engine_price_ms: Vec<f64>,
    /// Load and output tokens/s of each engine, pins included; fleet order.
    pub(super) load_rps: Vec<f64>,
    pub(super) load_tokens: Vec<f64>,
}

impl Point {
    /// The point `step` of the way to `other`; the prices are `other`'s.
    fn towards(&self, other: &Self, step: f64) -> Self {
        let blend = |from: &[f64], to: &[f64]| from.iter().zip(to).map(|(a, b)| a + step * (b - a)).collect();
        Self {
            flow_rps: blend(&self.flow_rps, &other.flow_rps),
            shed_rps: blend(&self.shed_rps, &other.shed_rps),
            demand_price_ms: other.demand_price_ms.clone(),
            engine_price_ms: other.engine_price_ms.clone(),
            load_rps: blend(&self.load_rps, &other.load_rps),
            load_tokens: blend(&self.load_tokens, &other.load_tokens),
        }
    }
}

#[derive(Debug)]
pub(super) struct Problem<'a> {
    pub(super) demands: Vec<Demand>,
    pub(super) arcs: Vec<Arc>,
    /// In fleet order.
    pub(super) engines: Vec<EngineCost<'a>>,
    /// Load and output tokens/s that pins put on each engine; fleet order.
    pub(super) pinned_rps: Vec<f64>,
    pub(super) pinned_tokens: Vec<f64>,
    /// No price that latency alone makes is above this, in ms.
    pub(super) price_limit_ms: f64,
    /// Engines in the order of their names: the order of rows, of segments and of sums, whose last bits depend on it.
    pub(super) engine_order: Vec<EngineId>,
}

impl<'a> Problem<'a> {
    pub(super) fn new(fleet: &'a Fleet, inputs: &Inputs) -> Self {
        let engines: Vec<_> = fleet.engine_ids().map(|engine| EngineCost::new(fleet, inputs, engine)).collect();
        let engine_order = by_name(fleet.engine_ids(), |engine| &fleet.engines[engine.index()].name);
        let class_order = by_name(fleet.class_ids(), |class| &fleet.classes[class.index()].name);
        let (mut pinned_rps, mut pinned_tokens) = (vec![0.0; engines.len()], vec![0.0; engines.len()]);
        let (mut demands, mut arcs) = (Vec::new(), Vec::new());
        for cluster in by_name(fleet.cluster_ids(), |cluster| &fleet.clusters[cluster.index()].name) {
            for &class in &class_order {
                let (rps, tokens) = (inputs.demand(cluster, class), fleet.classes[class.index()].output_tokens);
                if let Some(pin) = inputs.pin(cluster, class) {
                    for (engine, share) in pin.shares() {
                        pinned_rps[engine.index()] += rps * share;
                        pinned_tokens[engine.index()] += rps * share * tokens;
                    }
                } else if rps > NEGLIGIBLE_RPS {
                    for (rank, &engine) in engine_order.iter().enumerate() {
                        if engines[engine.index()].is_ready() && fleet.ineligible(class, engine).is_none() {
                            let tie_ms = TIE_MS * rank as f64 / engine_order.len() as f64;
                            let cost_ms = inputs.rtt_ms[cluster.index()][engine.index()] + tie_ms;
                            arcs.push(Arc { demand: demands.len(), engine, cost_ms, tokens, is_pruned: false });
                        }
                    }
                    demands.push(Demand { cluster, class, rps, shed_price_ms: 0.0 });
                }
            }
        }
        let mut problem = Self { demands, arcs, engines, pinned_rps, pinned_tokens, price_limit_ms: 0.0, engine_order };
        problem.price_shed(fleet);
        problem
    }

    /// Prices shed so high that capacity alone forces it, and the more the earlier a class is served.
    ///
    /// Serving one more request can at worst push flows along a chain of engines that visits each demand and each engine once, and
    /// ends where there is room; no such chain costs more than the limit. So a price above it never sheds early, and as large a
    /// difference between priorities never sheds the wrong one: the exact penalty of docs/model.md, section 4.
    fn price_shed(&mut self, fleet: &Fleet) {
        let links = self.demands.len().min(self.engines.len()) as f64;
        let tokens = |pick: fn(f64, f64) -> f64, start| self.arcs.iter().map(|arc| arc.tokens).fold(start, pick);
        let (longest, shortest) = (tokens(f64::max, 0.0), tokens(f64::min, f64::INFINITY).min(1e9));
        let (mut dearest, mut spread) = (0.0_f64, 0.0_f64);
        for (engine, &pinned_rps) in self.engines.iter().zip(&self.pinned_rps) {
            let full = engine.capacity_rps.max(pinned_rps);
            if engine.is_ready() {
                dearest = dearest.max(engine.marginal_ms(full, longest));
                spread = spread.max(engine.tbot_ms(full) * (longest - shortest).max(0.0));
            }
        }
        let farthest = self.arcs.iter().map(|arc| arc.cost_ms).fold(0.0, f64::max);
        self.price_limit_ms = dearest + spread + (links + 1.0) * (farthest + spread) + 1.0;
        let mut priorities: Vec<u8> = self.demands.iter().map(|demand| priority(fleet, demand)).collect();
        priorities.sort_unstable();
        priorities.dedup();
        for demand in &mut self.demands {
            let later = priorities.iter().filter(|&&other| other >= priority(fleet, demand)).count();
            demand.shed_price_ms = self.price_limit_ms * (1 + later) as f64;
        }
    }

    /// The first linearisation: every engine with the mean length of all that may reach it.
    pub(super) fn first_frame(&self) -> Frame {
        let (mut rps, mut tokens) = (self.pinned_rps.clone(), self.pinned_tokens.clone());
        for arc in &self.arcs {
            rps[arc.engine.index()] += self.demands[arc.demand].rps;
            tokens[arc.engine.index()] += self.demands[arc.demand].rps * arc.tokens;
        }
        let mean = rps.iter().zip(&tokens).map(|(&rps, &tokens)| if rps > 0.0 { tokens / rps } else { 0.0 });
        let middle = self.engines.iter().map(|engine| (engine.capacity_rps / 2.0, engine.capacity_rps / 2.0));
        Frame {
            tokens: mean.collect(),
            tbot_ms: self.engines.iter().map(|engine| engine.tbot_ms(engine.capacity_rps / 2.0)).collect(),
            focus: middle.collect(),
        }
    }

    /// The frame at `point`: its own mix of lengths, and breakpoints a quarter as far apart, or following a load that left them.
    pub(super) fn refined(&self, frame: &Frame, point: &Point) -> Frame {
        let mut next = frame.clone();
        for (at, engine) in self.engines.iter().enumerate() {
            let load = point.load_rps[at];
            if load > NEGLIGIBLE_RPS {
                next.tokens[at] = point.load_tokens[at] / load;
            }
            next.tbot_ms[at] = engine.tbot_ms(load);
            let (centre, half_width) = frame.focus[at];
            let moved = (load - centre).abs();
            let narrow = if moved > half_width * 0.5 { moved } else { half_width / 4.0 };
            next.focus[at] = (load, narrow.max(engine.capacity_rps * 1e-5));
        }
        next
    }

    /// Cost of `point` on the true curves, in ms x requests/s, shed included.
    pub(super) fn cost(&self, point: &Point) -> f64 {
        let network: f64 = self.arcs.iter().zip(&point.flow_rps).map(|(arc, flow)| arc.cost_ms * flow).sum();
        let in_engines = self.engine_order.iter().map(|engine| {
            let (at, engine) = (engine.index(), &self.engines[engine.index()]);
            let (load, tokens) = (point.load_rps[at], point.load_tokens[at]);
            load * engine.ttft_ms(load) + tokens * engine.tbot_ms(load)
        });
        network + in_engines.sum::<f64>() + self.shed_cost(point)
    }

    /// The part of [`Self::cost`] that stands for what is shed.
    pub(super) fn shed_cost(&self, point: &Point) -> f64 {
        self.demands.iter().zip(&point.shed_rps).map(|(demand, shed)| demand.shed_price_ms * shed).sum()
    }

    /// The point from `from` towards `to` with the least true cost, by halving steps; `from` itself if none is better.
    pub(super) fn descended(&self, from: Point, to: &Point) -> Point {
        let steps = STEPS.iter().map(|&step| from.towards(to, step));
        let (mut least, mut best) = (self.cost(&from), None);
        for point in steps {
            let cost = self.cost(&point);
            if cost < least {
                (least, best) = (cost, Some(point));
            }
        }
        best.unwrap_or(from)
    }

    /// Largest change in the price of a request, in ms, if `frame` took the mix of lengths of `point`.
    pub(super) fn mix_shift_ms(&self, frame: &Frame, point: &Point) -> f64 {
        let shift = |arc: &Arc| {
            let (at, load) = (arc.engine.index(), point.load_rps[arc.engine.index()]);
            let extra = arc.tokens - frame.tokens[at];
            (extra * (self.engines[at].tbot_ms(load) - frame.tbot_ms[at])).abs()
        };
        self.arcs.iter().map(shift).fold(0.0, f64::max)
    }

    /// What one request of `arc` costs besides its share of the engine's load, in ms.
    pub(super) fn arc_cost_ms(&self, frame: &Frame, arc: &Arc) -> f64 {
        arc.cost_ms + self.mix_ms(frame, arc.engine, arc.tokens)
    }

    /// The correction for requests that are longer or shorter than the engine's mean, in ms.
    pub(super) fn mix_ms(&self, frame: &Frame, engine: EngineId, tokens: f64) -> f64 {
        (tokens - frame.tokens[engine.index()]) * frame.tbot_ms[engine.index()]
    }

    /// The program at `frame`. Columns: arcs, shed of each demand, segments of each engine. Rows: demands, engines.
    pub(super) fn program(&self, frame: &Frame) -> LinearProgram {
        let row_of_engine = self.rows_of_engines();
        let mut columns = Vec::with_capacity(self.arcs.len() + self.demands.len() + self.engines.len() * 32);
        for arc in &self.arcs {
            columns.push(Column {
                cost: self.arc_cost_ms(frame, arc),
                upper: if arc.is_pruned { 0.0 } else { f64::INFINITY },
                entries: vec![(arc.demand, 1.0), (row_of_engine[arc.engine.index()], 1.0)],
            });
        }
        for (row, demand) in self.demands.iter().enumerate() {
            columns.push(Column { cost: demand.shed_price_ms, upper: f64::INFINITY, entries: vec![(row, 1.0)] });
        }
        for engine in &self.engine_order {
            let at = engine.index();
            let (around, half_width) = frame.focus[at];
            for segment in self.engines[at].segments(self.pinned_rps[at], frame.tokens[at], around, half_width) {
                let entries = vec![(row_of_engine[at], -1.0)];
                columns.push(Column { cost: segment.slope_ms, upper: segment.width_rps, entries });
            }
        }
        let mut rhs: Vec<f64> = self.demands.iter().map(|demand| demand.rps).collect();
        rhs.resize(self.demands.len() + self.engines.len(), 0.0);
        LinearProgram { columns, rhs }
    }

    /// Reads a solution of [`Self::program`]: column values, and row duals as costs of one more unit on the right-hand side.
    pub(super) fn point(&self, frame: &Frame, values: &[f64], duals: &[f64]) -> Point {
        let row_of_engine = self.rows_of_engines();
        let flow_rps: Vec<f64> = values[..self.arcs.len()].iter().map(|value| value.max(0.0)).collect();
        let shed_rps = values[self.arcs.len()..][..self.demands.len()].iter().map(|value| value.max(0.0)).collect();
        let (mut load_rps, mut load_tokens) = (self.pinned_rps.clone(), self.pinned_tokens.clone());
        for (arc, flow) in self.arcs.iter().zip(&flow_rps) {
            load_rps[arc.engine.index()] += flow;
            load_tokens[arc.engine.index()] += flow * arc.tokens;
        }
        let mut engine_price_ms: Vec<f64> = row_of_engine.iter().map(|&row| -duals[row]).collect();
        for (at, price) in engine_price_ms.iter_mut().enumerate() {
            // The dual of an engine without free load is not unique: take the true cost of the first request.
            let free = load_rps[at] - self.pinned_rps[at];
            if free <= NEGLIGIBLE_RPS && self.engines[at].capacity_rps > self.pinned_rps[at] {
                *price = self.engines[at].marginal_ms(self.pinned_rps[at], frame.tokens[at]);
            }
        }
        let demand_price_ms = duals[..self.demands.len()].to_vec();
        Point { flow_rps, shed_rps, demand_price_ms, engine_price_ms, load_rps, load_tokens }
    }

    fn rows_of_engines(&self) -> Vec<usize> {
        let mut rows = vec![0; self.engines.len()];
        for (nth, engine) in self.engine_order.iter().enumerate() {
            rows[engine.index()] = self.demands.len() + nth;
        }
        rows
    }
}

fn priority(fleet: &Fleet, demand: &Demand) -> u8 {
    fleet.classes[demand.class.index()].priority
}

/// Ids in the order of their names.
fn by_name<'n, I: Copy>(ids: impl Iterator<Item = I>, name: impl Fn(I) -> &'n String) -> Vec<I> {
    let mut sorted: Vec<I> = ids.collect();
    sorted.sort_by(|&a, &b| name(a).cmp(name(b)));
    sorted
}
