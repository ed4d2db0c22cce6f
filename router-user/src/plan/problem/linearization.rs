//! Linearization of a problem, and the evaluation of iterates on its true curves. Pure.

use crate::plan::NEGLIGIBLE_RPS;
use crate::plan::load::Load;
use crate::plan::problem::formulation::{Edge, Problem};

/// Step lengths of the line search towards a new solution, as fractions of the way. Halving reaches
/// 1/64 in few evaluations; 3/4 refines the range above one half.
const STEPS: [f64; 8] = [1.0, 0.75, 0.5, 0.25, 0.125, 0.0625, 0.031_25, 0.015_625];

/// Half-width of the first refined breakpoints around the load of current weights, as a fraction of
/// the pool's reach: a few times the change of demand between two plans.
const HELD_WIDTH_FRAC: f64 = 0.02;

/// Smallest half-width of refined breakpoints, as a fraction of the pool's reach. Profiles are
/// never known to one part in 10^5, so finer breakpoints gain nothing.
const FINEST_FRAC: f64 = 1e-5;

/// Smallest half-width of refined breakpoints, in units of the program: ten times the solver's
/// tolerance for a bound. The larger of the two limits holds.
const FINEST_UNITS: f64 = 1e-6;

/// The point at which the program is linearised: one entry per pool in each field.
#[derive(Clone, Debug)]
pub(crate) struct Linearization {
    /// Composition of one unit of the pool's work.
    pub(crate) mix: Vec<Load>,
    /// TTFT and TBOT, in ms, that price the difference between a class and that mix.
    pub(crate) times_ms: Vec<(f64, f64)>,
    /// Centre and half-width of the refined breakpoints, in requests/s of the profile.
    pub(crate) focus: Vec<(f64, f64)>,
    /// Upper bound on the work of each pool: its capacity, or all the demand that may flow there if
    /// that is less; in requests/s of the profile.
    reach_rps: Vec<f64>,
}

/// A primal and dual solution in the fleet's terms. Prices are duals.
#[derive(Clone, Debug)]
pub(crate) struct Iterate {
    /// Flow of each edge, in requests/s.
    pub(crate) flow_rps: Vec<f64>,
    /// Shed of each demand, in requests/s.
    pub(crate) shed_rps: Vec<f64>,
    /// Marginal cost of each demand, in ms.
    pub(crate) demand_price_ms: Vec<f64>,
    /// Marginal cost of load on each pool, in ms, per unit of work of the linearization's mix.
    pub(crate) pool_price_ms: Vec<f64>,
    /// Load of each pool, pins included.
    pub(crate) loads: Vec<Load>,
    /// Marginal cost of each pool's memory, in ms per unit of load, and of each budget, in ms per
    /// budget; 0 unless the limit binds.
    pub(crate) memory_price_ms: Vec<f64>,
    pub(crate) budget_price_ms: Vec<f64>,
    /// Saving by one more moved request/s, in ms; 0 unless the limit on movement binds.
    pub(crate) move_limit_price_ms: f64,
}

impl Iterate {
    /// The point at fraction `step` of the way to `other`; the prices are `other`'s.
    fn towards(&self, other: &Self, step: f64) -> Self {
        let blend = |from: &[f64], to: &[f64]| from.iter().zip(to).map(|(a, b)| a + step * (b - a)).collect();
        Self {
            flow_rps: blend(&self.flow_rps, &other.flow_rps),
            shed_rps: blend(&self.shed_rps, &other.shed_rps),
            demand_price_ms: other.demand_price_ms.clone(),
            pool_price_ms: other.pool_price_ms.clone(),
            loads: self.loads.iter().zip(&other.loads).map(|(from, to)| from.towards(*to, step)).collect(),
            memory_price_ms: other.memory_price_ms.clone(),
            budget_price_ms: other.budget_price_ms.clone(),
            move_limit_price_ms: other.move_limit_price_ms,
        }
    }
}

impl Problem<'_> {
    /// The first linearization. If every demand has current weights, it is made at the loads that
    /// these weights give; otherwise each pool gets the mix of everything that may reach it.
    pub(crate) fn first_linearization(&self) -> Linearization {
        let has_current = !self.demands.is_empty() && self.demands.iter().all(|demand| demand.has_current);
        let mut loads: Vec<Load> = self.pools.iter().map(|pool| pool.pinned).collect();
        for edge in &self.edges {
            let demand = &self.demands[edge.demand];
            let amount = if has_current { edge.kept_rps } else { demand.rps };
            loads[edge.pool].add(demand.request.times(amount));
        }
        let reach_rps = self.reach_rps();
        let around = |at: usize| {
            let (capacity, reach) = (self.pools[at].cost.capacity_rps, reach_rps[at]);
            if has_current { (loads[at].work.min(capacity), reach * HELD_WIDTH_FRAC) } else { (reach / 2.0, reach / 2.0) }
        };
        let focus: Vec<(f64, f64)> = (0..self.pools.len()).map(around).collect();
        Linearization {
            mix: loads.iter().map(|load| load.mix().unwrap_or(Load { work: 1.0, ..Load::default() })).collect(),
            times_ms: self.pools.iter().zip(&focus).map(|(pool, &(load, _))| pool.cost.times_ms(load)).collect(),
            focus,
            reach_rps,
        }
    }

    /// Upper bound on the work of each pool, pins included, in requests/s of its profile.
    fn reach_rps(&self) -> Vec<f64> {
        let mut reach: Vec<f64> = self.pools.iter().map(|pool| pool.pinned.work).collect();
        for edge in &self.edges {
            let demand = &self.demands[edge.demand];
            reach[edge.pool] += demand.rps * demand.request.work;
        }
        reach.iter().zip(&self.pools).map(|(reach, pool)| reach.min(pool.cost.capacity_rps)).collect()
    }

    /// Load of each pool under `flow_rps`, one entry per edge; pins included.
    pub(crate) fn loads(&self, flow_rps: &[f64]) -> Vec<Load> {
        let mut loads: Vec<Load> = self.pools.iter().map(|pool| pool.pinned).collect();
        for (edge, &flow) in self.edges.iter().zip(flow_rps) {
            loads[edge.pool].add(self.demands[edge.demand].request.times(flow));
        }
        loads
    }

    /// The linearization at `iterate`, with the mix of the iterate. The half-width of the
    /// breakpoints shrinks by a factor of four; where the load has left the middle half of its
    /// interval, the half-width becomes the distance that the load has moved.
    pub(crate) fn refined(&self, linearization: &Linearization, iterate: &Iterate) -> Linearization {
        let mut next = linearization.clone();
        let finest_rps = self.unit() * FINEST_UNITS;
        for (at, pool) in self.pools.iter().enumerate() {
            let load = iterate.loads[at].work;
            if load > NEGLIGIBLE_RPS
                && let Some(mix) = iterate.loads[at].mix()
            {
                next.mix[at] = mix;
            }
            next.times_ms[at] = pool.cost.times_ms(load);
            let (centre, half_width) = linearization.focus[at];
            let moved = (load - centre).abs();
            let narrow = if moved > half_width * 0.5 { moved } else { half_width / 4.0 };
            next.focus[at] = (load, narrow.max(linearization.reach_rps[at] * FINEST_FRAC).max(finest_rps));
        }
        next
    }

    /// Cost of `iterate` on the true curves, in ms x requests/s, shed and movement included.
    pub(crate) fn cost(&self, iterate: &Iterate) -> f64 {
        let network: f64 = self.edges.iter().zip(&iterate.flow_rps).map(|(edge, flow)| edge.cost_ms * flow).sum();
        let in_engines = self.pools.iter().zip(&iterate.loads).map(|(pool, &load)| pool.cost.cost_ms(load.work, load));
        network + in_engines.sum::<f64>() + self.move_cost(iterate) + self.shed_cost(iterate)
    }

    /// The shed part of [`Self::cost`].
    pub(crate) fn shed_cost(&self, iterate: &Iterate) -> f64 {
        self.demands.iter().zip(&iterate.shed_rps).map(|(demand, shed)| demand.shed_price_ms * shed).sum()
    }

    /// The part of [`Self::cost`] for requests that change their pool.
    pub(crate) fn move_cost(&self, iterate: &Iterate) -> f64 {
        self.edges.iter().zip(&iterate.flow_rps).map(|(edge, flow)| edge.move_ms * (flow - edge.kept_rps).max(0.0)).sum()
    }

    /// Requests/s that change their pool relative to the current weights.
    pub(crate) fn moved_rps(&self, iterate: &Iterate) -> f64 {
        let current = self.edges.iter().zip(&iterate.flow_rps).filter(|(edge, _)| self.demands[edge.demand].has_current);
        current.map(|(edge, flow)| (flow - edge.kept_rps).max(0.0)).sum()
    }

    /// Line search: the point on the way from `from` to `to` with the least true cost, among
    /// [`STEPS`]; `from` itself if no step improves it.
    pub(crate) fn descended(&self, from: Iterate, to: &Iterate) -> Iterate {
        let steps = STEPS.iter().map(|&step| from.towards(to, step));
        let (mut least, mut best) = (self.cost(&from), None);
        for iterate in steps {
            let cost = self.cost(&iterate);
            if cost < least {
                (least, best) = (cost, Some(iterate));
            }
        }
        best.unwrap_or(from)
    }

    /// Largest change of a request's price, in ms, if `linearization` used the engines' TTFT and
    /// TBOT at `iterate`.
    pub(crate) fn mix_shift_ms(&self, linearization: &Linearization, iterate: &Iterate) -> f64 {
        let shift = |edge: &Edge| {
            let extra = self.demands[edge.demand].request.beyond(linearization.mix[edge.pool]);
            let ((ttft_ms, tbot_ms), then) = (linearization.times_ms[edge.pool], iterate.loads[edge.pool].work);
            let (ttft_then, tbot_then) = self.pools[edge.pool].cost.times_ms(then);
            extra.cost(ttft_then - ttft_ms, tbot_then - tbot_ms).abs()
        };
        self.edges.iter().map(shift).fold(0.0, f64::max)
    }

    /// KV memory of one request/s of `edge`, in units of load; 0 where the pool has no memory
    /// limit.
    pub(crate) fn memory(&self, edge: &Edge) -> f64 {
        self.pools[edge.pool].memory.get(self.demands[edge.demand].class.index()).copied().unwrap_or(0.0)
    }

    /// Excess of one request of `edge` over the detour budget of its cluster, in budgets; negative
    /// below it, 0 for a cluster without a budget.
    pub(crate) fn detour(&self, edge: &Edge) -> f64 {
        self.demands[edge.demand].budget.map_or(0.0, |budget| edge.rtt_ms / self.budgets[budget].mean_ms - 1.0)
    }

    /// Cost of one request of `edge` for binding memory and detour limits, in ms.
    pub(crate) fn limits_ms(&self, iterate: &Iterate, edge: &Edge) -> f64 {
        let budget_ms = self.demands[edge.demand].budget.map_or(0.0, |budget| iterate.budget_price_ms[budget]);
        self.memory(edge) * iterate.memory_price_ms[edge.pool] + self.detour(edge) * budget_ms
    }

    /// Memory of a pool that pins leave free, in units of load.
    pub(crate) fn memory_room(&self, pool: usize) -> f64 {
        (self.pools[pool].cost.capacity_rps - self.pools[pool].pinned_memory).max(0.0)
    }

    /// Cost of one request of `edge` besides its share of the pool's load and besides moving, in
    /// ms.
    pub(crate) fn edge_cost_ms(&self, linearization: &Linearization, edge: &Edge) -> f64 {
        edge.cost_ms + self.mix_ms(linearization, edge.pool, self.demands[edge.demand].request)
    }

    /// Correction of a request's cost, in ms, because its composition differs from the pool's mix.
    pub(crate) fn mix_ms(&self, linearization: &Linearization, pool: usize, request: Load) -> f64 {
        let (ttft_ms, tbot_ms) = linearization.times_ms[pool];
        request.beyond(linearization.mix[pool]).cost(ttft_ms, tbot_ms)
    }
}
